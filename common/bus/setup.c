/* SPDX-License-Identifier: Apache-2.0
 *
 * The JetStream API in JSON: streams and durable consumers are created or updated so that what others configured on
 * them stays (placement, compression, fields this release does not know), and the identity of the command stream is
 * watched: a stream made anew starts its sequences again, so deliveries of the old one must not be acknowledged. */
#include "common/bus/internal.h"

#include "common/log/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS_NS      INT64_C(1000000)
#define MINUTE_MS  INT64_C(60000)
#define HOUR_MS    (60 * MINUTE_MS)
#define DAY_MS     (24 * HOUR_MS)
#define DEAD_BYTES ((int64_t)1 << 30)

/* err_code of the server (stable, unlike its texts). */
#define JS_ERR_STREAM_NOT_FOUND   10059
#define JS_ERR_STREAM_NAME_IN_USE 10058
#define JS_ERR_CONSUMER_NOT_FOUND 10014
#define JS_ERR_NO_MESSAGE         10037

json_t *sk_js_api(struct sk_bus_nats *bus, json_t *request, int64_t timeout_ms, int *api_error, struct sk_error *err,
                  const char *name_fmt, ...)
{
    char subject[SK_SUBJECT_SIZE], *body = request != NULL ? json_dumps(request, JSON_COMPACT) : NULL, *answer = NULL;
    size_t answer_len = 0, used = 0;
    json_t *json = NULL, *error;
    json_error_t where;
    va_list args;
    int rc;

    *api_error = 0;
    memcpy(subject, "$JS.API.", 8);
    used = 8;
    va_start(args, name_fmt);
    rc = vsnprintf(subject + used, sizeof(subject) - used, name_fmt,
                   args); /* NOLINT(clang-analyzer-valist.Uninitialized) */
    va_end(args);
    if (rc < 0 || (size_t)rc >= sizeof(subject) - used || (request != NULL && body == NULL)) {
        (void)sk_fail(err, SK_ERR_INTERNAL, "JetStream request cannot be made");
        goto out;
    }
    if (sk_bus_nats_request(bus, subject, body, body != NULL ? strlen(body) : 0, timeout_ms, &answer, &answer_len,
                            err) != 0) {
        (void)sk_fail_context(err, "%s", subject);
        goto out;
    }
    json = json_loadb(answer, answer_len, 0, &where);
    if (!json_is_object(json)) {
        (void)sk_fail_unknown(err, SK_ERR_INTERNAL, "%s: the answer is not a JSON object", subject);
        goto failed;
    }
    error = json_object_get(json, "error");
    if (error == NULL)
        goto out;
    *api_error = (int)json_integer_value(json_object_get(error, "err_code"));
    if (*api_error == 0)
        *api_error = -1;
    {
        const char *text = json_string_value(json_object_get(error, "description"));
        (void)sk_fail(err, SK_ERR_INTERNAL, "%s: %s (%d)", subject, text != NULL ? text : "refused", *api_error);
    }
failed:
    json_decref(json);
    json = NULL;
out:
    json_decref(request);
    free(body);
    free(answer);
    return json;
}

/* Puts `wanted` over `config`; true when that changed anything. Missing and zero are the same to the server. */
static bool merge(json_t *config, json_t *wanted)
{
    const char *key;
    json_t *value;
    bool changed = false;

    json_object_foreach (wanted, key, value) {
        json_t *old = json_object_get(config, key);
        if (json_equal(old, value) || (old == NULL && json_is_integer(value) && json_integer_value(value) == 0))
            continue;
        changed = true;
        (void)json_object_set(config, key, value);
    }
    return changed;
}

/* Steals `wanted` (a stream configuration without name and subjects). */
static int ensure_stream(struct sk_bus_nats *bus, const char *name, const char *subject_fmt, json_t *wanted,
                         struct sk_error *err)
{
    char subject[SK_SUBJECT_SIZE];
    json_t *info = NULL, *config, *subjects;
    int api_error = 0, rc = -1;
    bool have = false;
    size_t i;
    json_t *item;

    /* The formats are those of proto/subjects.h, one %s each. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(subject, sizeof(subject), subject_fmt, bus->prefix);
#pragma GCC diagnostic pop
    (void)json_object_set_new(wanted, "name", json_string(name));
    for (int attempt = 0; attempt < 2; attempt++) {
        info = sk_js_api(bus, NULL, SK_BUS_API_TIMEOUT_MS, &api_error, err, "STREAM.INFO.%s", name);
        if (info != NULL)
            break;
        if (api_error != JS_ERR_STREAM_NOT_FOUND)
            goto out;
        config = json_deep_copy(wanted);
        (void)json_object_set_new(config, "subjects", json_pack("[s]", subject));
        (void)json_object_set_new(config, "storage", json_string("file"));
        info = sk_js_api(bus, config, SK_BUS_API_TIMEOUT_MS, &api_error, err, "STREAM.CREATE.%s", name);
        if (info != NULL) {
            SK_LOG_INFO("stream created", SK_F("stream", name));
            rc = 0;
            goto out;
        }
        if (api_error != JS_ERR_STREAM_NAME_IN_USE)
            goto out; /* else: somebody was faster, look again */
    }
    if (info == NULL)
        goto out;
    config = json_object_get(info, "config");
    if (!json_is_object(config)) {
        (void)sk_fail(err, SK_ERR_INTERNAL, "stream %s: the server's answer has no configuration", name);
        goto out;
    }
    subjects = json_object_get(config, "subjects");
    json_array_foreach (subjects, i, item) {
        have = have || (json_is_string(item) && strcmp(json_string_value(item), subject) == 0);
    }
    if (!have) {
        subjects = json_is_array(subjects) ? json_copy(subjects) : json_array();
        (void)json_array_append_new(subjects, json_string(subject));
        (void)json_object_set_new(wanted, "subjects", subjects);
    }
    if (!merge(config, wanted)) {
        rc = 0;
        goto out;
    }
    config = json_deep_copy(config);
    json_decref(info);
    info = sk_js_api(bus, config, SK_BUS_API_TIMEOUT_MS, &api_error, err, "STREAM.UPDATE.%s", name);
    if (info == NULL)
        goto out;
    SK_LOG_INFO("stream updated", SK_F("stream", name));
    rc = 0;
out:
    json_decref(info);
    json_decref(wanted);
    return rc;
}

static int ensure_consumer(struct sk_bus_nats *bus, const char *durable, const char *filter, struct sk_error *err)
{
    json_int_t ack_wait_ns = bus->ack_wait_ms * MS_NS;
    json_t *wanted =
        json_pack("{s:s, s:s, s:I, s:i, s:i, s:s}", "ack_policy", "explicit", "filter_subject", filter, "ack_wait",
                  ack_wait_ns, "max_deliver", -1, "max_ack_pending", bus->max_ack_pending, "durable_name", durable);
    json_t *info, *config = NULL;
    int api_error = 0, rc = -1;

    info = sk_js_api(bus, NULL, SK_BUS_API_TIMEOUT_MS, &api_error, err, "CONSUMER.INFO.%s.%s", SK_STREAM_COMMANDS,
                     durable);
    if (info != NULL) {
        config = json_object_get(info, "config");
        if (!json_is_object(config)) {
            (void)sk_fail(err, SK_ERR_INTERNAL, "consumer %s: the server's answer has no configuration", durable);
            goto out;
        }
        if (!merge(config, wanted)) {
            rc = 0;
            goto out;
        }
        config = json_deep_copy(config);
    } else if (api_error == JS_ERR_CONSUMER_NOT_FOUND) {
        config = json_deep_copy(wanted);
        (void)json_object_set_new(config, "deliver_policy", json_string("all"));
        (void)json_object_set_new(config, "replay_policy", json_string("instant"));
    } else {
        goto out;
    }
    json_decref(info);
    /* Create and update in one: of two replicas that come at once, the second finds its wish fulfilled. */
    info =
        sk_js_api(bus, json_pack("{s:s, s:o}", "stream_name", SK_STREAM_COMMANDS, "config", config),
                  SK_BUS_API_TIMEOUT_MS, &api_error, err, "CONSUMER.DURABLE.CREATE.%s.%s", SK_STREAM_COMMANDS, durable);
    if (info == NULL)
        goto out;
    SK_LOG_INFO("consumer set up", SK_F("consumer", durable), SK_F("filter", filter));
    rc = 0;
out:
    json_decref(info);
    json_decref(wanted);
    return rc;
}

static json_t *stream_limits(struct sk_bus_nats *bus, const char *retention, const char *discard, int64_t age_ms,
                             int64_t bytes, int64_t window_ms)
{
    json_int_t age_ns = age_ms * MS_NS, window_ns = window_ms * MS_NS, max_bytes = bytes;

    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:i}", "retention", retention, "discard", discard, "max_age", age_ns,
                     "max_bytes", max_bytes, "duplicate_window", window_ns, "num_replicas", bus->stream_replicas);
}

static int ensure_streams(struct sk_bus_nats *bus, struct sk_error *err)
{
    if (ensure_stream(bus, SK_STREAM_COMMANDS, SK_SUBJECT_COMMANDS_FMT,
                      stream_limits(bus, "workqueue", "new", 24 * HOUR_MS, bus->commands_max_bytes, 2 * MINUTE_MS),
                      err) != 0)
        return -1;
    if (ensure_stream(bus, SK_STREAM_EVENTS, SK_SUBJECT_EVENTS_FMT,
                      stream_limits(bus, "limits", "old", 7 * DAY_MS, bus->events_max_bytes, 10 * MINUTE_MS), err) != 0)
        return -1;
    return ensure_stream(bus, SK_STREAM_DEAD, "%s.dead.>",
                         stream_limits(bus, "limits", "old", 30 * DAY_MS, DEAD_BYTES, 2 * MINUTE_MS), err);
}

/* Compares the command stream's birth with the one we knew. */
static int check_incarnation(struct sk_bus_nats *bus, struct sk_error *err)
{
    int api_error;
    json_t *info = sk_js_api(bus, NULL, SK_BUS_API_TIMEOUT_MS, &api_error, err, "STREAM.INFO.%s", SK_STREAM_COMMANDS);
    const char *created = json_string_value(json_object_get(info, "created"));
    bool other = false;

    if (info == NULL)
        return -1;
    if (created == NULL) {
        json_decref(info);
        return sk_fail(err, SK_ERR_INTERNAL, "the server does not say when a stream was created");
    }
    pthread_mutex_lock(&bus->mu);
    if (strcmp(bus->stream_created, created) != 0) {
        other = bus->stream_created[0] != '\0';
        snprintf(bus->stream_created, sizeof(bus->stream_created), "%s", created);
        if (other)
            atomic_fetch_add(&bus->incarnation, 1);
    }
    pthread_mutex_unlock(&bus->mu);
    if (other)
        SK_LOG_WARN("the command stream was made anew: earlier deliveries are void");
    json_decref(info);
    return 0;
}

int sk_bus_verify(struct sk_bus_nats *bus, bool setup, struct sk_error *err)
{
    struct {
        char durable[64], filter[SK_SUBJECT_SIZE];
    } wanted[SK_BUS_PULLS_MAX + 1];
    int count = 0;
    bool strays;

    pthread_mutex_lock(&bus->mu);
    strays = bus->strays.started;
    for (int i = 0; i < bus->pull_count; i++) {
        memcpy(wanted[count].durable, bus->pulls[i].durable, sizeof(wanted[count].durable));
        memcpy(wanted[count++].filter, bus->pulls[i].filter, sizeof(wanted[0].filter));
    }
    pthread_mutex_unlock(&bus->mu);
    if (!setup && count == 0 && !strays)
        return 0; /* a client: it has nothing to look after */
    if (setup) {
        bool have = false;
        for (int i = 0; i < count; i++)
            have = have || strcmp(wanted[i].durable, SK_CONSUMER_LIFECYCLE) == 0;
        if (!have) {
            snprintf(wanted[count].durable, sizeof(wanted[count].durable), "%s", SK_CONSUMER_LIFECYCLE);
            snprintf(wanted[count++].filter, sizeof(wanted[0].filter), SK_SUBJECT_FILTER_LIFECYCLE_FMT, bus->prefix);
        }
        if (ensure_streams(bus, err) != 0)
            return -1;
    }
    if (check_incarnation(bus, err) != 0)
        return -1;
    for (int i = 0; i < count; i++) {
        if (ensure_consumer(bus, wanted[i].durable, wanted[i].filter, err) != 0)
            return -1;
    }
    return 0;
}

int sk_bus_nats_setup(struct sk_bus_nats *bus, struct sk_error *err)
{
    pthread_mutex_lock(&bus->mu);
    bus->setup_wanted = true;
    pthread_mutex_unlock(&bus->mu);
    sk_bus_verify_again(bus);
    if (sk_bus_nats_wait(bus, 10000, err) != 0)
        return sk_fail_context(err, "set up streams");
    return 0;
}

int sk_bus_nats_delete_message(struct sk_bus_nats *bus, const char *stream, uint64_t sequence, struct sk_error *err)
{
    int api_error;
    struct sk_error ignored;
    json_t *answer = sk_js_api(bus, json_pack("{s:I, s:b}", "seq", (json_int_t)sequence, "no_erase", 1),
                               SK_BUS_API_TIMEOUT_MS, &api_error, err, "STREAM.MSG.DELETE.%s", stream);

    if (answer != NULL) {
        json_decref(answer);
        return 0;
    }
    if (api_error == 0)
        return -1;
    /* "Delete failed" has one number for every reason: look whether the message is there at all. */
    answer = sk_js_api(bus, json_pack("{s:I}", "seq", (json_int_t)sequence), SK_BUS_API_TIMEOUT_MS, &api_error,
                       &ignored, "STREAM.MSG.GET.%s", stream);
    json_decref(answer);
    return api_error == JS_ERR_NO_MESSAGE ? 0 : -1;
}
