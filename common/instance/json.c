/* SPDX-License-Identifier: Apache-2.0
 *
 * The public JSON of an instance record (contract/lifecycle.md §2.3) and the data object of a lifecycle event
 * (contract/messaging.md §4). Absent fields are left out; text that is not UTF-8 is shown with '?' in place of the bad
 * bytes, so that a document somebody else broke can still be shown. */
#include "common/instance/instance.h"

#include <math.h>
#include <string.h>

#define TEXT_MAX 1024 /* no text of a record is longer */

static const char *const event_names[SK_EVENT_TYPE_COUNT] = {
    [SK_EVENT_CLAIMED] = "lifecycle.claimed",     [SK_EVENT_PHASE] = "lifecycle.phase",
    [SK_EVENT_COMPLETED] = "lifecycle.completed", [SK_EVENT_FAILED] = "lifecycle.failed",
    [SK_EVENT_BLOCKED] = "lifecycle.blocked",     [SK_EVENT_TAKENOVER] = "lifecycle.takenover",
    [SK_EVENT_DELETED] = "lifecycle.deleted",
};

const char *sk_event_type_name(enum sk_event_type type)
{
    return (int)type >= 0 && type < SK_EVENT_TYPE_COUNT ? event_names[type] : "lifecycle.unknown";
}

const char *sk_event_result(const struct sk_event *event)
{
    switch (event->type) {
    case SK_EVENT_COMPLETED:
        return "completed";
    case SK_EVENT_FAILED:
        return event->to == SK_STATUS_NONE ? "failed" : "compensated";
    case SK_EVENT_BLOCKED:
        return "blocked";
    case SK_EVENT_DELETED:
        return "deleted";
    default:
        return NULL;
    }
}

enum sk_event_type sk_event_type_parse(const char *name)
{
    if (name == NULL)
        return SK_EVENT_TYPE_COUNT;
    for (int type = 0; type < SK_EVENT_TYPE_COUNT; type++) {
        if (strcmp(event_names[type], name) == 0)
            return (enum sk_event_type)type;
    }
    return SK_EVENT_TYPE_COUNT;
}

/* One bit for "something could not be allocated" instead of a check per line; the object is dropped at the end. */
struct builder {
    json_t *object;
    bool failed;
};

static void put(struct builder *b, const char *key, json_t *value)
{
    if (value == NULL || b->object == NULL || json_object_set_new(b->object, key, value) != 0)
        b->failed = true;
}

static json_t *text_json(const char *text)
{
    char clean[TEXT_MAX];
    size_t length = strnlen(text, TEXT_MAX - 1), i = 0;
    json_t *value = json_stringn(text, length);

    if (value != NULL)
        return value;
    while (i < length) {
        size_t step = sk_utf8_sequence(text + i, length - i);

        if (step == 0) {
            clean[i++] = '?';
            continue;
        }
        memcpy(clean + i, text + i, step);
        i += step;
    }
    return json_stringn(clean, length);
}

static void put_text(struct builder *b, const char *key, const char *text)
{
    put(b, key, text_json(text));
}

static void put_optional(struct builder *b, const char *key, const char *text)
{
    if (text[0] != '\0')
        put_text(b, key, text);
}

static void put_number(struct builder *b, const char *key, int64_t value)
{
    put(b, key, json_integer(value));
}

static void put_time(struct builder *b, const char *key, int64_t unix_ms)
{
    char text[SK_TIME_SIZE];

    if (unix_ms == 0)
        return;
    sk_time_format(unix_ms, text);
    put_text(b, key, text);
}

static json_t *finish(struct builder *b)
{
    if (b->failed) {
        json_decref(b->object);
        return NULL;
    }
    return b->object;
}

static struct builder begin(void)
{
    struct builder b = {.object = json_object()};

    b.failed = b.object == NULL;
    return b;
}

/* {"code"?, "detail"}: FastGPT's own texts have no code. */
static void put_error(struct builder *b, const struct sk_stored_error *error)
{
    struct builder e;

    if (error->code[0] == '\0' && error->detail[0] == '\0')
        return;
    e = begin();
    put_optional(&e, "code", error->code);
    put_text(&e, "detail", error->detail);
    put(b, "error", finish(&e));
}

static json_t *storage_json(const struct sk_storage *storage)
{
    struct builder b = begin(), volume;
    json_t *volumes;

    if (storage->volume_name[0] != '\0') {
        volume = begin();
        put_text(&volume, "name", storage->volume_name);
        put_optional(&volume, "claimName", storage->claim_name);
        put_optional(&volume, "mountPath", storage->volume_mount_path);
        put_optional(&volume, "subPath", storage->sub_path);
        volumes = json_array();
        if (volumes == NULL || json_array_append_new(volumes, finish(&volume)) != 0)
            b.failed = true;
        put(&b, "volumes", volumes);
    }
    put_optional(&b, "mountPath", storage->mount_path);
    return finish(&b);
}

static json_t *operation_json(const struct sk_operation *op)
{
    struct builder b = begin();

    put_text(&b, "id", op->id);
    put_text(&b, "type", sk_op_name(op->type));
    put_text(&b, "phase", op->phase);
    if (op->previous_status != SK_STATUS_NONE)
        put_text(&b, "previousStatus", sk_status_name(op->previous_status));
    put_time(&b, "startedAt", op->started_at);
    put_time(&b, "heartbeatAt", op->heartbeat_at);
    put_time(&b, "failedAt", op->failed_at);
    put_error(&b, &op->error);
    if (op->job_id[0] != '\0' || op->attempt != 0)
        put_number(&b, "attempt", op->attempt);
    put_optional(&b, "jobId", op->job_id);
    put_time(&b, "nextAttemptAt", op->next_attempt_at);
    put_optional(&b, "owner", op->owner);
    put_optional(&b, "commandId", op->command_id);
    put_optional(&b, "traceparent", op->traceparent);
    put_time(&b, "deadlineAt", op->deadline_at);
    put_optional(&b, "blocked", op->blocked);
    return finish(&b);
}

static json_t *last_operation_json(const struct sk_last_operation *last)
{
    struct builder b = begin();

    put_text(&b, "id", last->id);
    put_text(&b, "type", sk_op_name(last->type));
    put_text(&b, "result", last->result);
    put_time(&b, "startedAt", last->started_at);
    put_time(&b, "endedAt", last->ended_at);
    put_error(&b, &last->error);
    return finish(&b);
}

/* 2048, not 2048.0; JSON has no name for what is not finite. */
static json_t *quantity_json(double value)
{
    if (value >= -1e15 && value <= 1e15 && value == (double)(json_int_t)value)
        return json_integer((json_int_t)value);
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *limit_json(const struct sk_limit *limit)
{
    struct builder b = begin();

    put(&b, "cpuCount", quantity_json(limit->cpu_count));
    put(&b, "memoryMiB", quantity_json(limit->memory_mib));
    put_optional(&b, "storageSize", limit->storage_size);
    return finish(&b);
}

static json_t *pins_json(const struct sk_instance *instance)
{
    json_t *array = json_array();

    for (int i = 0; i < instance->pin_count && i < SK_PINS_MAX; i++) {
        struct builder b = begin();

        put_text(&b, "id", instance->pins[i].id);
        put_optional(&b, "kind", instance->pins[i].kind);
        put_time(&b, "expiresAt", instance->pins[i].expires_at);
        if (array == NULL || json_array_append_new(array, finish(&b)) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

json_t *sk_instance_public_json(const struct sk_instance *instance)
{
    struct builder b = begin(), image;

    put_text(&b, "sandboxId", instance->sandbox_id);
    put_text(&b, "provider", instance->provider);
    put_text(&b, "sourceType", sk_source_type_name(instance->identity.source_type));
    put_text(&b, "sourceId", instance->identity.source_id);
    put_text(&b, "userId", instance->identity.user_id);
    put_text(&b, "status", sk_status_name(instance->status));
    put_time(&b, "lastActiveAt", instance->last_active_at);
    put_time(&b, "createdAt", instance->created_at);
    if (instance->limit.present)
        put(&b, "limit", limit_json(&instance->limit));
    if (instance->storage.present)
        put(&b, "storage", storage_json(&instance->storage));
    put_optional(&b, "teamId", instance->team_id);
    if (instance->image.present) {
        image = begin();
        put_text(&image, "repository", instance->image.repository);
        put_optional(&image, "tag", instance->image.tag);
        put(&b, "image", finish(&image));
    }
    put_optional(&b, "versionId", instance->version_id);
    if (instance->has_operation)
        put(&b, "operation", operation_json(&instance->operation));
    if (instance->epoch != 0)
        put_number(&b, "epoch", instance->epoch);
    if (instance->sequence != 0)
        put_number(&b, "sequence", instance->sequence);
    if (instance->last_operation.present)
        put(&b, "lastOperation", last_operation_json(&instance->last_operation));
    if (instance->pin_count > 0)
        put(&b, "pins", pins_json(instance));
    if (instance->malformed)
        put_text(&b, "malformed", instance->malformed_reason);
    return finish(&b);
}

json_t *sk_event_data_json(const struct sk_event *event)
{
    struct builder b = begin(), op = begin();

    put_text(&b, "sandboxId", event->sandbox_id);
    put_text(&b, "sourceType", sk_source_type_name(event->identity.source_type));
    put_text(&b, "sourceId", event->identity.source_id);
    put_text(&b, "userId", event->identity.user_id);
    put_optional(&b, "teamId", event->team_id);
    put_text(&b, "provider", event->provider);
    put_number(&b, "epoch", event->epoch);
    put_number(&b, "sequence", event->sequence);
    /* "none" stands for "no record", as in the table of contract/lifecycle.md §3. */
    put_text(&b, "from", sk_status_name(event->from));
    put_text(&b, "to", sk_status_name(event->to));
    put_text(&op, "id", event->operation_id);
    put_text(&op, "type", sk_op_name(event->operation_type));
    put_text(&op, "phase", event->phase);
    put_number(&op, "attempt", event->attempt);
    put(&b, "operation", finish(&op));
    put_optional(&b, "reason", event->reason);
    put_error(&b, &event->error);
    if (event->duration_ms >= 0)
        put_number(&b, "durationMs", event->duration_ms);
    put_optional(&b, "commandId", event->command_id);
    return finish(&b);
}
