/* SPDX-License-Identifier: Apache-2.0
 *
 * Following the event stream (contract/messaging.md §4) with an ordered consumer of our own: an ephemeral push consumer
 * without acknowledgements whose delivery counter must rise by one. A gap, a missed heartbeat or a new connection makes
 * a new consumer right after the last event that was shown, so nothing is lost or shown twice while the stream lives.
 */
#include "services/ctl/ctl.h"

#include "proto/subjects.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#define HEARTBEAT_MS     2000
#define SILENCE_MS       (3 * HEARTBEAT_MS)
#define IDLE_CONSUMER_MS 30000 /* the server forgets our consumer after this long without us */
#define RETRY_MS         500

struct watch {
    struct ctl *ctl;
    natsSubscription *subscription;
    natsInbox *inbox;
    char filter[256];
    char start[SK_TIME_SIZE]; /* "" = new events only, "all" = everything */
    uint64_t last_stream;     /* 0 = nothing seen yet */
    uint64_t last_delivery;
    int64_t heard_ms;
    unsigned reconnects;
    bool open;
    bool waiting; /* and said so */
    int64_t shown;
};

static json_t *consumer_config(const struct watch *watch)
{
    json_t *config =
        json_pack("{s:s, s:s, s:s, s:I, s:b, s:I, s:i, s:s, s:b}", "deliver_subject", watch->inbox, "ack_policy",
                  "none", "replay_policy", "instant", "idle_heartbeat", (json_int_t)HEARTBEAT_MS * 1000000,
                  "flow_control", 1, "inactive_threshold", (json_int_t)IDLE_CONSUMER_MS * 1000000, "max_deliver", 1,
                  "filter_subject", watch->filter, "mem_storage", 1);

    if (watch->last_stream > 0) {
        json_object_set_new(config, "deliver_policy", json_string("by_start_sequence"));
        json_object_set_new(config, "opt_start_seq", json_integer((json_int_t)watch->last_stream + 1));
    } else if (strcmp(watch->start, "all") == 0) {
        json_object_set_new(config, "deliver_policy", json_string("all"));
    } else if (watch->start[0] != '\0') {
        json_object_set_new(config, "deliver_policy", json_string("by_start_time"));
        json_object_set_new(config, "opt_start_time", json_string(watch->start));
    } else {
        json_object_set_new(config, "deliver_policy", json_string("new"));
    }
    return config;
}

/* A new consumer on a new inbox, so that nothing of the old one is mistaken for it. Returns 0, -1 (try again) or an
 * exit status. */
static int open_consumer(struct watch *watch)
{
    natsConnection *connection = ctl_link_connection(watch->ctl->link);
    json_t *body, *answer;
    const json_t *error;
    int status = -1;

    natsSubscription_Destroy(watch->subscription);
    natsInbox_Destroy(watch->inbox);
    watch->subscription = NULL;
    watch->inbox = NULL;
    if (natsInbox_Create(&watch->inbox) != NATS_OK ||
        natsConnection_SubscribeSync(&watch->subscription, connection, watch->inbox) != NATS_OK)
        return -1;
    body = json_pack("{s:s, s:o}", "stream_name", SK_STREAM_EVENTS, "config", consumer_config(watch));
    answer = ctl_api(watch->ctl, "$JS.API.CONSUMER.CREATE." SK_STREAM_EVENTS, body);
    error = json_object_get(answer, "error");
    if (answer == NULL) {
        status = -1;
    } else if (error != NULL && ctl_integer(error, "code", 0) == 404) {
        ctl_complain("there is no event stream on this bus: has sk-lifecycle been started (or sk-lifecycle --setup)?");
        status = CTL_UNREACHABLE;
    } else if (error != NULL && ctl_integer(error, "code", 0) != 503) {
        ctl_complain("the event stream refused: %s", ctl_clean(ctl_text(error, "description")));
        status = CTL_FAILED;
    } else if (error == NULL) {
        if (watch->start[0] == '\0' &&
            watch->last_stream == 0) { /* "new" starts here, also for a consumer made later */
            char now[SK_TIME_SIZE];
            sk_time_format(sk_wall_ms(&sk_sched_system), now);
            sk_copy_cut(watch->start, sizeof(watch->start), now);
        }
        watch->last_delivery = 0;
        watch->heard_ms = sk_mono_ms(&sk_sched_system);
        watch->open = true;
        status = 0;
    }
    json_decref(answer);
    json_decref(body);
    return status;
}

/* "$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>" */
static bool parse_position(const char *reply, uint64_t *stream, uint64_t *delivery)
{
    unsigned long long delivered;
    unsigned long long s, d;
    const char *at = reply;

    if (reply == NULL || strncmp(reply, "$JS.ACK.", 8) != 0)
        return false;
    for (int dots = 0; dots < 4; dots++) {
        at = strchr(at, '.');
        if (at == NULL)
            return false;
        at++;
    }
    if (sscanf(at, "%llu.%llu.%llu.", &delivered, &s, &d) != 3)
        return false;
    *stream = s;
    *delivery = d;
    return true;
}

static json_t *event_json(natsMsg *message)
{
    static const struct {
        const char *header, *name;
    } names[] = {{SK_HEADER_CE_VERSION, "specversion"}, {SK_HEADER_CE_ID, "id"},
                 {SK_HEADER_CE_TYPE, "type"},           {SK_HEADER_CE_SOURCE, "source"},
                 {SK_HEADER_CE_SUBJECT, "subject"},     {SK_HEADER_CE_TIME, "time"},
                 {"content-type", "datacontenttype"},   {SK_HEADER_TRACEPARENT, "traceparent"},
                 {SK_HEADER_TRACESTATE, "tracestate"}};
    json_t *event = json_object(), *data = ctl_message_json(message);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = NULL;
        if (natsMsgHeader_Get(message, names[i].header, &value) == NATS_OK && value != NULL)
            json_object_set_new(event, names[i].name, json_string(value));
    }
    json_object_set_new(event, "data", data != NULL ? data : json_null());
    return event;
}

/* "sandbox.evt.<id>.<type>" -> "<type>" */
static const char *event_type(const struct watch *watch, const char *subject)
{
    const char *at = subject + strlen(watch->ctl->config.prefix) + strlen(".evt.");

    at = strlen(subject) > (size_t)(at - subject) ? strchr(at, '.') : NULL;
    return at != NULL ? at + 1 : subject;
}

static bool type_wanted(const struct ctl_args *args, const char *type)
{
    for (int i = 0; i < args->type_count; i++) {
        if (fnmatch(args->types[i], type, 0) == 0)
            return true;
    }
    return args->type_count == 0;
}

static void print_event(const char *type, const json_t *event)
{
    const json_t *data = json_object_get(event, "data");
    const char *from = ctl_text(data, "from"), *to = ctl_text(data, "to"), *time = ctl_text(event, "time");
    int64_t took = ctl_integer(data, "durationMs", -1);

    printf("%s  %-28s  %-22s", time[0] != '\0' ? ctl_clean(time) : "-", ctl_clean(ctl_text(event, "subject")),
           ctl_clean(type));
    if (from[0] != '\0' || to[0] != '\0')
        printf("  %s%s%s", ctl_clean(from), strcmp(from, to) != 0 ? " -> " : "",
               strcmp(from, to) != 0 ? ctl_clean(to[0] != '\0' ? to : "gone") : "");
    if (ctl_text(data, "operation.phase")[0] != '\0')
        printf("  phase %s", ctl_clean(ctl_text(data, "operation.phase")));
    if (ctl_integer(data, "epoch", 0) > 0)
        printf("  epoch %lld", (long long)ctl_integer(data, "epoch", 0));
    if (ctl_integer(data, "sequence", 0) > 0) /* only lifecycle events are counted */
        printf(" #%lld", (long long)ctl_integer(data, "sequence", 0));
    if (took >= 0)
        printf("  %s", ctl_duration(took));
    if (ctl_text(data, "reason")[0] != '\0')
        printf("  (%s)", ctl_clean(ctl_text(data, "reason")));
    if (ctl_text(data, "error.code")[0] != '\0')
        printf("  %s", ctl_clean(ctl_text(data, "error.code")));
    putchar('\n');
    fflush(stdout);
}

static void on_event(struct watch *watch, natsMsg *message)
{
    const char *type = event_type(watch, natsMsg_GetSubject(message));
    uint64_t stream, delivery;
    json_t *event;

    if (!parse_position(natsMsg_GetReply(message), &stream, &delivery))
        return;
    if (delivery != watch->last_delivery + 1) { /* something was dropped on the way */
        watch->open = false;
        return;
    }
    watch->last_delivery = delivery;
    watch->last_stream = stream;
    if (!type_wanted(&watch->ctl->args, type))
        return;
    event = event_json(message);
    if (watch->ctl->args.json)
        ctl_json_line(event);
    else
        print_event(type, event);
    json_decref(event);
    watch->shown++;
}

/* Heartbeats and flow control carry a status and no data. */
static bool on_control(struct watch *watch, natsMsg *message)
{
    const char *status = NULL, *stalled = NULL, *last = NULL;

    if (natsMsg_GetDataLength(message) != 0 || natsMsgHeader_Get(message, "Status", &status) != NATS_OK)
        return false;
    if (strcmp(status, "100") != 0) { /* 404, 409: the consumer is gone */
        watch->open = false;
        return true;
    }
    if (natsMsg_GetReply(message) != NULL)
        natsConnection_PublishString(ctl_link_connection(watch->ctl->link), natsMsg_GetReply(message), "");
    if (natsMsgHeader_Get(message, "Nats-Consumer-Stalled", &stalled) == NATS_OK)
        natsConnection_PublishString(ctl_link_connection(watch->ctl->link), stalled, "");
    if (natsMsgHeader_Get(message, "Nats-Last-Consumer", &last) == NATS_OK &&
        strtoull(last, NULL, 10) != watch->last_delivery)
        watch->open = false;
    return true;
}

static int follow(struct watch *watch)
{
    const struct ctl_args *args = &watch->ctl->args;
    int64_t end = args->for_ms >= 0 ? sk_mono_ms(&sk_sched_system) + args->for_ms : INT64_MAX;

    while (!ctl_interrupted) {
        int64_t now = sk_mono_ms(&sk_sched_system), left = end - now;
        natsMsg *message;
        if (left <= 0 || (args->count > 0 && watch->shown >= args->count) || ferror(stdout))
            return CTL_OK;
        if (watch->open &&
            (ctl_link_reconnects(watch->ctl->link) != watch->reconnects || now - watch->heard_ms > SILENCE_MS))
            watch->open = false;
        if (!watch->open) {
            int status;
            watch->reconnects = ctl_link_reconnects(watch->ctl->link);
            status = open_consumer(watch);
            if (status > 0)
                return status;
            if (status < 0 && !watch->waiting)
                ctl_note(watch->ctl, "waiting for the event stream…");
            watch->waiting = status < 0;
            if (status < 0)
                sk_sleep_ms(&sk_sched_system, RETRY_MS);
            continue;
        }
        message = ctl_next(watch->subscription, left < 500 ? left : 500);
        if (message == NULL)
            continue;
        watch->heard_ms = sk_mono_ms(&sk_sched_system);
        if (!on_control(watch, message))
            on_event(watch, message);
        natsMsg_Destroy(message);
    }
    return CTL_INTERRUPTED;
}

int ctl_watch(struct ctl *ctl)
{
    struct watch watch = {.ctl = ctl};
    const struct ctl_args *args = &ctl->args;
    int status = 0;

    if (args->positional_count > 0 || args->app != NULL || args->workflow != NULL || args->skill != NULL ||
        args->user != NULL)
        status = ctl_identity(ctl);
    if (status != 0)
        return status;
    if (args->since != NULL && strcmp(args->since, "all") == 0) {
        sk_copy_cut(watch.start, sizeof(watch.start), "all");
    } else if (args->since != NULL) {
        int64_t when;
        if (!ctl_parse_when(args->since, &when))
            return ctl_usage(ctl, "--since=%s: must be RFC 3339, a time such as 10m, or all", args->since);
        sk_time_format(when, watch.start);
    }
    status = ctl_link(ctl);
    if (status != 0)
        return status;
    watch.reconnects = ctl_link_reconnects(ctl->link);
    snprintf(watch.filter, sizeof(watch.filter), "%s.evt.%s.>", ctl->config.prefix,
             ctl->sandbox_id[0] != '\0' ? ctl->sandbox_id : "*");
    status = follow(&watch);
    natsConnection_Close(ctl_link_connection(ctl->link)); /* first: nothing may arrive while the subscription goes */
    natsSubscription_Destroy(watch.subscription);
    natsInbox_Destroy(watch.inbox);
    return status;
}
