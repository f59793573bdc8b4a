/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of new instance documents, of changes to them and of events, with the types that mongoose writes: dates as
 * Date, JavaScript numbers as int32 or double, absent instead of null. epoch and sequence, which FastGPT does not know,
 * are int64. */
#include "common/store/instance_bson.h"

#include <stdio.h>
#include <string.h>

#define PATH_TEXT_MAX 64

/* What a driver for JavaScript makes of a number. */
static void append_number(bson_t *doc, const char *key, double value)
{
    if (value >= INT32_MIN && value <= INT32_MAX && value == (double)(int32_t)value)
        BSON_APPEND_INT32(doc, key, (int32_t)value);
    else
        BSON_APPEND_DOUBLE(doc, key, value);
}

static void append_text(bson_t *doc, const char *key, const char *text)
{
    if (text[0] != '\0')
        BSON_APPEND_UTF8(doc, key, text);
}

static void append_date(bson_t *doc, const char *key, int64_t value)
{
    if (value != 0)
        BSON_APPEND_DATE_TIME(doc, key, value);
}

static void append_error(bson_t *doc, const char *key, const struct sk_stored_error *error)
{
    char text[SK_ERROR_TEXT_SIZE];

    sk_stored_error_format(error, text);
    append_text(doc, key, text);
}

static void append_limit(bson_t *doc, const struct sk_limit *limit)
{
    bson_t child;

    BSON_APPEND_DOCUMENT_BEGIN(doc, "limit", &child);
    append_number(&child, "cpuCount", limit->cpu_count);
    append_number(&child, "memoryMiB", limit->memory_mib);
    append_text(&child, "storageSize", limit->storage_size);
    bson_append_document_end(doc, &child);
}

static void append_image(bson_t *doc, const struct sk_image *image)
{
    bson_t child;

    BSON_APPEND_DOCUMENT_BEGIN(doc, "image", &child);
    append_text(&child, "repository", image->repository);
    append_text(&child, "tag", image->tag);
    bson_append_document_end(doc, &child);
}

static void append_volumes(bson_t *doc, const char *key, const struct sk_storage *storage)
{
    bson_t volumes, volume;

    BSON_APPEND_ARRAY_BEGIN(doc, key, &volumes);
    if (storage->volume_name[0] != '\0') {
        BSON_APPEND_DOCUMENT_BEGIN(&volumes, "0", &volume);
        append_text(&volume, "name", storage->volume_name);
        append_text(&volume, "claimName", storage->claim_name);
        append_text(&volume, "mountPath", storage->volume_mount_path);
        append_text(&volume, "subPath", storage->sub_path);
        bson_append_document_end(&volumes, &volume);
    }
    bson_append_array_end(doc, &volumes);
}

static void append_storage(bson_t *doc, const struct sk_storage *storage)
{
    bson_t child;

    BSON_APPEND_DOCUMENT_BEGIN(doc, "storage", &child);
    if (storage->volume_name[0] != '\0')
        append_volumes(&child, "volumes", storage);
    append_text(&child, "mountPath", storage->mount_path);
    bson_append_document_end(doc, &child);
}

static void append_operation(bson_t *doc, const struct sk_operation *op)
{
    bson_t child;

    BSON_APPEND_DOCUMENT_BEGIN(doc, "operation", &child);
    append_text(&child, "id", op->id);
    append_text(&child, "type", sk_op_name(op->type));
    append_text(&child, "phase", op->phase);
    if (op->previous_status != SK_STATUS_NONE)
        append_text(&child, "previousStatus", sk_status_name(op->previous_status));
    append_date(&child, "startedAt", op->started_at);
    append_date(&child, "heartbeatAt", op->heartbeat_at);
    append_date(&child, "failedAt", op->failed_at);
    append_error(&child, "error", &op->error);
    if (op->job_id[0] != '\0' || op->attempt != 0)
        BSON_APPEND_INT32(&child, "attempt", op->attempt);
    append_date(&child, "nextAttemptAt", op->next_attempt_at);
    append_text(&child, "owner", op->owner);
    append_text(&child, "commandId", op->command_id);
    append_text(&child, "jobId", op->job_id);
    append_text(&child, "traceparent", op->traceparent);
    append_date(&child, "deadlineAt", op->deadline_at);
    append_text(&child, "blocked", op->blocked);
    bson_append_document_end(doc, &child);
}

static void append_last_operation(bson_t *doc, const struct sk_last_operation *last)
{
    bson_t child;

    BSON_APPEND_DOCUMENT_BEGIN(doc, "lastOperation", &child);
    append_text(&child, "id", last->id);
    append_text(&child, "type", sk_op_name(last->type));
    append_text(&child, "result", last->result);
    append_date(&child, "startedAt", last->started_at);
    append_date(&child, "endedAt", last->ended_at);
    append_error(&child, "error", &last->error);
    bson_append_document_end(doc, &child);
}

static void append_pins(bson_t *doc, const struct sk_instance *instance)
{
    bson_t pins, pin;
    char index[16];
    const char *key;

    BSON_APPEND_ARRAY_BEGIN(doc, "pins", &pins);
    for (int i = 0; i < instance->pin_count && i < SK_PINS_MAX; i++) {
        bson_uint32_to_string((uint32_t)i, &key, index, sizeof(index));
        BSON_APPEND_DOCUMENT_BEGIN(&pins, key, &pin);
        append_text(&pin, "id", instance->pins[i].id);
        append_text(&pin, "kind", instance->pins[i].kind);
        append_date(&pin, "expiresAt", instance->pins[i].expires_at);
        bson_append_document_end(&pins, &pin);
    }
    bson_append_array_end(doc, &pins);
}

void sk_event_encode(const struct sk_event *event, bson_t *doc)
{
    append_text(doc, "id", event->id);
    append_text(doc, "type", sk_event_type_name(event->type));
    append_date(doc, "time", event->time);
    BSON_APPEND_INT64(doc, "epoch", event->epoch);
    BSON_APPEND_INT64(doc, "sequence", event->sequence);
    if (event->from != SK_STATUS_NONE)
        append_text(doc, "from", sk_status_name(event->from));
    if (event->to != SK_STATUS_NONE)
        append_text(doc, "to", sk_status_name(event->to));
    append_text(doc, "operationId", event->operation_id);
    append_text(doc, "jobId", event->job_id);
    if (event->operation_type != SK_OP_NONE)
        append_text(doc, "operationType", sk_op_name(event->operation_type));
    append_text(doc, "phase", event->phase);
    if (event->attempt != 0)
        BSON_APPEND_INT32(doc, "attempt", event->attempt);
    append_text(doc, "owner", event->owner);
    append_text(doc, "reason", event->reason);
    append_error(doc, "error", &event->error);
    if (event->duration_ms >= 0)
        append_number(doc, "durationMs", (double)event->duration_ms);
    append_text(doc, "commandId", event->command_id);
    append_text(doc, "traceparent", event->traceparent);
}

void sk_instance_encode(const struct sk_instance *instance, const struct sk_event *events, int event_count, bson_t *doc)
{
    bson_t outbox, child;
    bson_oid_t oid;
    char index[16];
    const char *key;

    if (bson_oid_is_valid(instance->oid, strlen(instance->oid))) {
        bson_oid_init_from_string(&oid, instance->oid);
        BSON_APPEND_OID(doc, "_id", &oid);
    }
    append_text(doc, "provider", instance->provider);
    append_text(doc, "sandboxId", instance->sandbox_id);
    append_text(doc, "sourceType", sk_source_type_name(instance->identity.source_type));
    append_text(doc, "sourceId", instance->identity.source_id);
    append_text(doc, "userId", instance->identity.user_id);
    append_text(doc, "status", sk_status_name(instance->status));
    append_date(doc, "lastActiveAt", instance->last_active_at);
    append_date(doc, "createdAt", instance->created_at);
    if (instance->limit.present)
        append_limit(doc, &instance->limit);
    if (instance->storage.present)
        append_storage(doc, &instance->storage);
    append_text(doc, "teamId", instance->team_id);
    if (instance->image.present)
        append_image(doc, &instance->image);
    append_text(doc, "versionId", instance->version_id);
    if (instance->has_operation)
        append_operation(doc, &instance->operation);
    if (instance->epoch != 0)
        BSON_APPEND_INT64(doc, "epoch", instance->epoch);
    if (instance->sequence != 0)
        BSON_APPEND_INT64(doc, "sequence", instance->sequence);
    if (instance->last_operation.present)
        append_last_operation(doc, &instance->last_operation);
    if (instance->pin_count > 0)
        append_pins(doc, instance);
    BSON_APPEND_ARRAY_BEGIN(doc, "outbox", &outbox);
    for (int i = 0; i < event_count; i++) {
        bson_uint32_to_string((uint32_t)i, &key, index, sizeof(index));
        BSON_APPEND_DOCUMENT_BEGIN(&outbox, key, &child);
        sk_event_encode(&events[i], &child);
        bson_append_document_end(&outbox, &child);
    }
    bson_append_array_end(doc, &outbox);
}

/* ---- changes -------------------------------------------------------------------------------- */

static void unset_field(bson_t *unset, const char *path)
{
    BSON_APPEND_INT32(unset, path, 1);
}

static void change_text(bson_t *set, bson_t *unset, const char *path, const char *before, const char *after)
{
    if (strcmp(before, after) == 0)
        return;
    if (after[0] == '\0')
        unset_field(unset, path);
    else
        BSON_APPEND_UTF8(set, path, after);
}

static void change_date(bson_t *set, bson_t *unset, const char *path, int64_t before, int64_t after)
{
    if (before == after)
        return;
    if (after == 0)
        unset_field(unset, path);
    else
        BSON_APPEND_DATE_TIME(set, path, after);
}

static void change_error(bson_t *set, bson_t *unset, const char *path, const struct sk_stored_error *before,
                         const struct sk_stored_error *after)
{
    char text[SK_ERROR_TEXT_SIZE];

    if (strcmp(before->code, after->code) == 0 && strcmp(before->detail, after->detail) == 0)
        return;
    sk_stored_error_format(after, text);
    if (text[0] == '\0')
        unset_field(unset, path);
    else
        BSON_APPEND_UTF8(set, path, text);
}

static const char *optional_status(enum sk_status status)
{
    return status == SK_STATUS_NONE ? "" : sk_status_name(status);
}

static void change_operation(bson_t *set, bson_t *unset, const struct sk_instance *before,
                             const struct sk_instance *after)
{
    const struct sk_operation *old = &before->operation, *new = &after->operation;

    if (!after->has_operation) {
        if (before->has_operation)
            unset_field(unset, "operation");
        return;
    }
    if (!before->has_operation || strcmp(old->id, new->id) != 0) {
        append_operation(set, new);
        return;
    }
    change_text(set, unset, "operation.phase", old->phase, new->phase);
    change_text(set, unset, "operation.previousStatus", optional_status(old->previous_status),
                optional_status(new->previous_status));
    change_date(set, unset, "operation.startedAt", old->started_at, new->started_at);
    change_date(set, unset, "operation.heartbeatAt", old->heartbeat_at, new->heartbeat_at);
    change_date(set, unset, "operation.failedAt", old->failed_at, new->failed_at);
    change_error(set, unset, "operation.error", &old->error, &new->error);
    if (old->attempt != new->attempt)
        BSON_APPEND_INT32(set, "operation.attempt", new->attempt);
    change_date(set, unset, "operation.nextAttemptAt", old->next_attempt_at, new->next_attempt_at);
    change_text(set, unset, "operation.owner", old->owner, new->owner);
    change_text(set, unset, "operation.commandId", old->command_id, new->command_id);
    change_text(set, unset, "operation.traceparent", old->traceparent, new->traceparent);
    change_date(set, unset, "operation.deadlineAt", old->deadline_at, new->deadline_at);
    change_text(set, unset, "operation.blocked", old->blocked, new->blocked);
}

static void change_limit(bson_t *set, bson_t *unset, const struct sk_limit *before, const struct sk_limit *after)
{
    if (!after->present) {
        if (before->present)
            unset_field(unset, "limit");
        return;
    }
    if (!before->present) {
        append_limit(set, after);
        return;
    }
    if (before->cpu_count < after->cpu_count || before->cpu_count > after->cpu_count)
        append_number(set, "limit.cpuCount", after->cpu_count);
    if (before->memory_mib < after->memory_mib || before->memory_mib > after->memory_mib)
        append_number(set, "limit.memoryMiB", after->memory_mib);
    change_text(set, unset, "limit.storageSize", before->storage_size, after->storage_size);
}

static void change_image(bson_t *set, bson_t *unset, const struct sk_image *before, const struct sk_image *after)
{
    if (!after->present) {
        if (before->present)
            unset_field(unset, "image");
        return;
    }
    if (!before->present) {
        append_image(set, after);
        return;
    }
    change_text(set, unset, "image.repository", before->repository, after->repository);
    change_text(set, unset, "image.tag", before->tag, after->tag);
}

static void change_storage(bson_t *set, bson_t *unset, const struct sk_storage *before, const struct sk_storage *after)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
        {"name", offsetof(struct sk_storage, volume_name)},
        {"claimName", offsetof(struct sk_storage, claim_name)},
        {"mountPath", offsetof(struct sk_storage, volume_mount_path)},
        {"subPath", offsetof(struct sk_storage, sub_path)},
    };
    char path[PATH_TEXT_MAX];

    if (!after->present) {
        if (before->present)
            unset_field(unset, "storage");
        return;
    }
    if (!before->present) {
        append_storage(set, after);
        return;
    }
    change_text(set, unset, "storage.mountPath", before->mount_path, after->mount_path);
    if (before->volume_name[0] == '\0') {
        if (after->volume_name[0] != '\0')
            append_volumes(set, "storage.volumes", after);
        return;
    }
    if (after->volume_name[0] == '\0') {
        unset_field(unset, "storage.volumes");
        return;
    }
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        snprintf(path, sizeof(path), "storage.volumes.%d.%s", before->volume_index, fields[i].name);
        change_text(set, unset, path, (const char *)before + fields[i].offset, (const char *)after + fields[i].offset);
    }
}

static bool same_last_operation(const struct sk_last_operation *a, const struct sk_last_operation *b)
{
    return a->present == b->present && strcmp(a->id, b->id) == 0 && a->type == b->type &&
           strcmp(a->result, b->result) == 0 && a->started_at == b->started_at && a->ended_at == b->ended_at &&
           strcmp(a->error.code, b->error.code) == 0 && strcmp(a->error.detail, b->error.detail) == 0;
}

static bool same_pins(const struct sk_instance *a, const struct sk_instance *b)
{
    if (a->pin_count != b->pin_count)
        return false;
    for (int i = 0; i < a->pin_count && i < SK_PINS_MAX; i++) {
        if (strcmp(a->pins[i].id, b->pins[i].id) != 0 || strcmp(a->pins[i].kind, b->pins[i].kind) != 0 ||
            a->pins[i].expires_at != b->pins[i].expires_at)
            return false;
    }
    return true;
}

void sk_instance_encode_change(const struct sk_instance *before, const struct sk_instance *after, bson_t *set,
                               bson_t *unset)
{
    change_text(set, unset, "provider", before->provider, after->provider);
    if (before->status != after->status)
        BSON_APPEND_UTF8(set, "status", sk_status_name(after->status));
    change_date(set, unset, "lastActiveAt", before->last_active_at, after->last_active_at);
    change_limit(set, unset, &before->limit, &after->limit);
    change_storage(set, unset, &before->storage, &after->storage);
    change_text(set, unset, "teamId", before->team_id, after->team_id);
    change_image(set, unset, &before->image, &after->image);
    change_text(set, unset, "versionId", before->version_id, after->version_id);
    change_operation(set, unset, before, after);
    if (before->epoch != after->epoch)
        BSON_APPEND_INT64(set, "epoch", after->epoch);
    if (before->sequence != after->sequence)
        BSON_APPEND_INT64(set, "sequence", after->sequence);
    if (!same_last_operation(&before->last_operation, &after->last_operation)) {
        if (after->last_operation.present)
            append_last_operation(set, &after->last_operation);
        else
            unset_field(unset, "lastOperation");
    }
    if (!same_pins(before, after)) {
        if (after->pin_count > 0)
            append_pins(set, after);
        else
            unset_field(unset, "pins");
    }
}
