/* SPDX-License-Identifier: Apache-2.0
 *
 * What leaves this service as text: results, progress, CloudEvents (contract/messaging.md §2, §4). */
#include "services/lifecycle/internal.h"

#include "common/base/buf.h"
#include "common/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (512 * 1024)

/* ---- answers --------------------------------------------------------------------------------------------------------
 */
struct lc_answer *lc_answer_new(void)
{
    struct lc_answer *answer = calloc(1, sizeof(*answer));

    if (answer != NULL)
        atomic_init(&answer->references, 1);
    return answer;
}

struct lc_answer *lc_answer_keep(struct lc_answer *answer)
{
    atomic_fetch_add(&answer->references, 1);
    return answer;
}

void lc_answer_drop(struct lc_answer *answer)
{
    if (answer == NULL || atomic_fetch_sub(&answer->references, 1) != 1)
        return;
    free(answer->instance);
    free(answer);
}

json_t *lc_error_json(const struct sk_error *err, const struct lc_busy *busy)
{
    json_t *problem = sk_json_problem(err);

    if (problem != NULL && busy != NULL && busy->present)
        json_object_set_new(
            problem, "operation",
            json_pack("{s:s,s:s,s:s}", "id", busy->operation_id, "type", sk_op_name(busy->type), "phase", busy->phase));
    return problem;
}

/* `"key":<JSON string>`; ids come from checked commands, so they are valid UTF-8. */
static void put_text(struct sk_buf *out, const char *key, const char *text)
{
    sk_buf_printf(out, "\"%s\":\"", key);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\')
            sk_buf_append_char(out, '\\');
        if (*p < 0x20)
            sk_buf_printf(out, "\\u%04x", *p);
        else
            sk_buf_append_char(out, (char)*p);
    }
    sk_buf_append_char(out, '"');
}

static char *failure_text(const struct lc_answer *answer, const struct lc_command *command)
{
    json_t *message =
        json_pack("{s:o?,s:b}", "id", command->id[0] != '\0' ? json_string(command->id) : json_null(), "ok", 0);
    json_t *error = lc_error_json(&answer->err, &answer->busy);
    char *text = NULL;

    if (message != NULL && command->sandbox_id[0] != '\0')
        json_object_set_new(message, "sandboxId", json_string(command->sandbox_id));
    if (message != NULL && error != NULL && json_object_set(message, "error", error) == 0)
        text = json_dumps(message, JSON_COMPACT);
    json_decref(error);
    json_decref(message);
    return text;
}

/* Written by hand: one of these per command, and the instance is text already. */
static char *success_text(const struct lc_answer *answer, const struct lc_command *command)
{
    struct sk_buf out;

    sk_buf_init(&out, TEXT_MAX);
    sk_buf_append_char(&out, '{');
    put_text(&out, "id", command->id);
    sk_buf_append_text(&out, ",\"ok\":true,");
    put_text(&out, "sandboxId", command->sandbox_id);
    sk_buf_append_char(&out, ',');
    put_text(&out, "status", sk_status_name(answer->status));
    if (answer->epoch > 0)
        sk_buf_printf(&out, ",\"epoch\":%lld", (long long)answer->epoch);
    if (answer->operation_id[0] != '\0') {
        sk_buf_append_char(&out, ',');
        put_text(&out, "operationId", answer->operation_id);
    }
    if (answer->instance != NULL) {
        sk_buf_append_text(&out, ",\"instance\":");
        sk_buf_append_text(&out, answer->instance);
    }
    sk_buf_append_char(&out, '}');
    if (out.overflow) {
        sk_buf_fini(&out);
        return NULL;
    }
    return sk_buf_take(&out, NULL);
}

char *lc_answer_text(const struct lc_answer *answer, const struct lc_command *command)
{
    return answer->ok ? success_text(answer, command) : failure_text(answer, command);
}

/* ---- CloudEvents -------------------------------------------------------------------------------- */
static void add_header(struct lc_event_message *m, const char *name, char *value)
{
    /* Names are constants; the bus only reads them. */
    m->headers[m->message.header_count++] = (struct sk_header){.name = (char *)(uintptr_t)name, .value = value};
}

static void finish_message(struct lc_event_message *m, struct lc_replica *r, const char *type, int64_t time,
                           const char *sandbox_id, const char *traceparent, const char *tracestate)
{
    static char version[] = "1.0", json[] = "application/json";

    snprintf(m->subject, sizeof(m->subject), SK_SUBJECT_EVENT_FMT, r->settings.subject_prefix,
             sandbox_id[0] != '\0' ? sandbox_id : SK_SUBJECT_EVENT_UNKNOWN, type);
    snprintf(m->type, sizeof(m->type), SK_CE_TYPE_FMT, type);
    snprintf(m->source, sizeof(m->source), SK_CE_SOURCE_FMT, "lifecycle");
    sk_time_format(time, m->time);
    sk_copy_cut(m->sandbox_id, sizeof(m->sandbox_id), sandbox_id[0] != '\0' ? sandbox_id : SK_SUBJECT_EVENT_UNKNOWN);
    sk_copy_cut(m->trace, sizeof(m->trace), traceparent);
    m->message.subject = m->subject;
    m->message.message_id = m->id;
    m->message.headers = m->headers;
    m->message.header_count = 0;
    m->message.body = m->body;
    m->message.body_len = strlen(m->body);
    add_header(m, SK_HEADER_CE_ID, m->id);
    add_header(m, SK_HEADER_CE_TYPE, m->type);
    add_header(m, SK_HEADER_CE_SOURCE, m->source);
    add_header(m, SK_HEADER_CE_SUBJECT, m->sandbox_id);
    add_header(m, SK_HEADER_CE_VERSION, version);
    add_header(m, SK_HEADER_CE_TIME, m->time);
    add_header(m, "content-type", json);
    if (m->trace[0] != '\0')
        add_header(m, SK_HEADER_TRACEPARENT, m->trace);
    if (tracestate != NULL)
        add_header(m, SK_HEADER_TRACESTATE, (char *)(uintptr_t)tracestate);
}

int lc_message_of_event(struct lc_replica *r, const struct sk_event *event, struct lc_event_message *m)
{
    json_t *data = sk_event_data_json(event);

    memset(m, 0, sizeof(*m));
    m->body = data != NULL ? json_dumps(data, JSON_COMPACT) : NULL;
    json_decref(data);
    if (m->body == NULL)
        return -1;
    sk_copy_cut(m->id, sizeof(m->id), event->id);
    /* The record keeps the traceparent only (contract/lifecycle.md §2.2): what comes out of an outbox, perhaps in
     * another replica, has no tracestate. */
    finish_message(m, r, sk_event_type_name(event->type), event->time, event->sandbox_id, event->traceparent, NULL);
    return 0;
}

int lc_message_of_command(struct lc_replica *r, const struct lc_command *command, const char *type, const char *id,
                          char *body, struct lc_event_message *m)
{
    memset(m, 0, sizeof(*m));
    m->body = body;
    if (body == NULL)
        return -1;
    sk_copy_cut(m->id, sizeof(m->id), id);
    finish_message(m, r, type, sk_wall_ms(r->sched), command->sandbox_id, command->traceparent, command->tracestate);
    return 0;
}

void lc_message_fini(struct lc_event_message *m)
{
    free(m->body);
    m->body = NULL;
}

/* ---- core publishes: lost when nobody listens --------------------------------------------------- */
static void publish(struct lc_replica *r, const struct sk_message *message)
{
    struct sk_error err = {.code = SK_OK};

    if (r->seams.bus->ops->publish(r->seams.bus->self, message, &err) != 0)
        SK_LOG_DEBUG("message not published", SK_FE(&err));
}

void lc_publish_reply(struct lc_replica *r, const struct lc_command *command, const char *text, bool progress)
{
    static char name[] = SK_HEADER_PROGRESS, one[] = "1";
    const struct sk_header header = {.name = name, .value = one};
    const struct sk_message message = {
        .subject = command->reply_to,
        .headers = progress ? &header : NULL,
        .header_count = progress ? 1 : 0,
        .body = text,
        .body_len = strlen(text),
    };

    if (command->reply_to[0] != '\0')
        publish(r, &message);
}

void lc_publish_progress(struct lc_replica *r, struct lc_held *held, const char *phase, enum sk_status status)
{
    struct sk_buf out;

    if (held->command.reply_to[0] == '\0' || atomic_load(&held->replied))
        return;
    sk_buf_init(&out, 4096);
    sk_buf_append_char(&out, '{');
    put_text(&out, "id", held->command.id);
    sk_buf_append_char(&out, ',');
    put_text(&out, "phase", phase);
    sk_buf_append_char(&out, ',');
    put_text(&out, "status", sk_status_name(status));
    sk_buf_append_char(&out, '}');
    if (!out.overflow)
        lc_publish_reply(r, &held->command, sk_buf_data(&out), true);
    sk_buf_fini(&out);
}

void lc_publish_wake(struct lc_replica *r)
{
    char subject[SK_SUBJECT_SIZE];
    const struct sk_message message = {.subject = subject, .body = "{}", .body_len = 2};

    snprintf(subject, sizeof(subject), SK_SUBJECT_WAKE_FMT, r->settings.subject_prefix);
    publish(r, &message);
}

void lc_publish_quota_rejected(struct lc_run *run, const char *scope, int64_t limit, const char *team_id)
{
    const struct lc_command *command = run->command; /* NULL: a sweep asked */
    struct lc_replica *r = run->replica;
    json_t *data =
        json_pack("{s:s,s:s,s:I}", "sandboxId", run->job->sandbox_id, "scope", scope, "limit", (json_int_t)limit);
    struct lc_event_message message;

    if (data == NULL)
        return;
    if (team_id[0] != '\0')
        json_object_set_new(data, "teamId", sk_json_text(team_id));
    if (command != NULL && command->id[0] != '\0')
        json_object_set_new(data, "commandId", sk_json_text(command->id));
    memset(&message, 0, sizeof(message));
    message.body = json_dumps(data, JSON_COMPACT);
    if (message.body != NULL) {
        sk_ulid(r->sched, message.id);
        finish_message(&message, r, "quota.rejected", sk_wall_ms(r->sched), run->job->sandbox_id,
                       command != NULL ? command->traceparent : "", command != NULL ? command->tracestate : NULL);
        publish(r, &message.message);
    }
    lc_message_fini(&message);
    json_decref(data);
}
