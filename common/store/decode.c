/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding of instance documents and their pending events. Everything in a document is somebody else's word: types,
 * lengths and ranges are checked field by field, and the first thing that breaks the contract is kept as the reason. */
#include "common/store/instance_bson.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX    1000000000LL /* attempts and the like */
#define SEQUENCE_MAX (INT64_MAX / 2)
#define DURATION_MAX (366LL * 86400 * 1000)
#define RESOURCE_MAX 1e12
#define DOUBLE_EXACT 9007199254740992.0 /* 2^53 */

__attribute__((format(printf, 2, 3))) static void malformed(struct sk_instance *out, const char *fmt, ...)
{
    va_list args;

    if (out->malformed)
        return;
    out->malformed = true;
    va_start(args, fmt);
    vsnprintf(out->malformed_reason, sizeof(out->malformed_reason), fmt, args);
    va_end(args);
}

static bool is_null(const bson_iter_t *iter)
{
    bson_type_t type = bson_iter_type(iter);

    return type == BSON_TYPE_NULL || type == BSON_TYPE_UNDEFINED;
}

/* Copies what fits, at a code point boundary, even when the answer is false: for display. */
bool sk_bson_text(const bson_iter_t *iter, char *out, size_t size)
{
    uint32_t length = 0;
    const char *text;
    size_t step, used = 0;

    out[0] = '\0';
    if (!BSON_ITER_HOLDS_UTF8(iter))
        return false;
    text = bson_iter_utf8(iter, &length);
    while (used < length && text[used] != '\0') {
        step = sk_utf8_sequence(text + used, length - used);
        if (step == 0 || used + step >= size)
            break;
        used += step;
    }
    memcpy(out, text, used);
    out[used] = '\0';
    return used == length;
}

bool sk_bson_int(const bson_iter_t *iter, int64_t min, int64_t max, int64_t *out)
{
    int64_t value;
    double number;

    if (BSON_ITER_HOLDS_INT32(iter)) {
        value = bson_iter_int32(iter);
    } else if (BSON_ITER_HOLDS_INT64(iter)) {
        value = bson_iter_int64(iter);
    } else if (BSON_ITER_HOLDS_DOUBLE(iter)) {
        /* A driver for JavaScript writes whole numbers beyond 32 bits as doubles. */
        number = bson_iter_double(iter);
        if (!isfinite(number) || number < -DOUBLE_EXACT || number > DOUBLE_EXACT || number != floor(number))
            return false;
        value = (int64_t)number;
    } else {
        return false;
    }
    if (value < min || value > max)
        return false;
    *out = value;
    return true;
}

bool sk_bson_date(const bson_iter_t *iter, int64_t *out)
{
    int64_t value;

    if (!BSON_ITER_HOLDS_DATE_TIME(iter))
        return false;
    value = bson_iter_date_time(iter);
    if (value <= 0 || value > SK_BSON_DATE_MAX)
        return false;
    *out = value;
    return true;
}

/* ---- field readers that complain: `path` is the field's name for the reason ----------------- */

static void read_text(struct sk_instance *out, const bson_iter_t *iter, const char *path, char *text, size_t size)
{
    if (!sk_bson_text(iter, text, size))
        malformed(out, "%s is not a text of at most %zu bytes", path, size - 1);
}

static void read_date(struct sk_instance *out, const bson_iter_t *iter, const char *path, int64_t *value)
{
    if (!sk_bson_date(iter, value))
        malformed(out, "%s is not a date", path);
}

static void read_int(struct sk_instance *out, const bson_iter_t *iter, const char *path, int64_t max, int64_t *value)
{
    if (!sk_bson_int(iter, 0, max, value))
        malformed(out, "%s is not a whole number in range", path);
}

static void read_quantity(struct sk_instance *out, const bson_iter_t *iter, const char *path, double *value)
{
    double number = -1;

    if (BSON_ITER_HOLDS_DOUBLE(iter))
        number = bson_iter_double(iter);
    else if (BSON_ITER_HOLDS_INT32(iter))
        number = bson_iter_int32(iter);
    else if (BSON_ITER_HOLDS_INT64(iter))
        number = (double)bson_iter_int64(iter);
    if (!isfinite(number) || number < 0 || number > RESOURCE_MAX)
        malformed(out, "%s is not a number in range", path);
    else
        *value = number;
}

static void read_status(struct sk_instance *out, const bson_iter_t *iter, const char *path, enum sk_status *status)
{
    char name[32];

    *status = sk_bson_text(iter, name, sizeof(name)) ? sk_status_parse(name) : SK_STATUS_INVALID;
    if (*status == SK_STATUS_INVALID)
        malformed(out, "%s is unknown", path);
}

static void read_op(struct sk_instance *out, const bson_iter_t *iter, const char *path, enum sk_op *op)
{
    char name[32];

    *op = sk_bson_text(iter, name, sizeof(name)) ? sk_op_parse(name) : SK_OP_INVALID;
    if (*op == SK_OP_INVALID)
        malformed(out, "%s is unknown", path);
}

/* FastGPT stores error texts without any limit (reference §12.27): the length is no fault, the type is. */
static void read_error(struct sk_instance *out, const bson_iter_t *iter, const char *path,
                       struct sk_stored_error *error)
{
    uint32_t length = 0;
    const char *text;

    if (!BSON_ITER_HOLDS_UTF8(iter)) {
        malformed(out, "%s is not a text", path);
        return;
    }
    text = bson_iter_utf8(iter, &length);
    sk_stored_error_parse(text, length, error);
}

/* Opens a sub-document; complains when it is none. Arrays only when `array`. */
static bool open_document(struct sk_instance *out, const bson_iter_t *iter, const char *path, bool array,
                          bson_iter_t *child)
{
    if ((array ? BSON_ITER_HOLDS_ARRAY(iter) : BSON_ITER_HOLDS_DOCUMENT(iter)) && bson_iter_recurse(iter, child))
        return true;
    malformed(out, "%s is not %s", path, array ? "an array" : "a document");
    return false;
}

/* A sub-document whose bytes end before it does looks like a shorter one: only the iterator knows. */
static void check_end(struct sk_instance *out, const bson_iter_t *iter, const char *path)
{
    if (iter->err_off != 0)
        malformed(out, "%s is cut", path);
}

/* ---- errors --------------------------------------------------------------------------------- */

void sk_stored_error_format(const struct sk_stored_error *error, char out[SK_ERROR_TEXT_SIZE])
{
    if (error->code[0] != '\0')
        snprintf(out, SK_ERROR_TEXT_SIZE, "%s: %s", error->code, error->detail);
    else
        snprintf(out, SK_ERROR_TEXT_SIZE, "%s", error->detail);
}

void sk_stored_error_parse(const char *text, size_t length, struct sk_stored_error *out)
{
    const char *separator = length > 2 ? memmem(text, length, ": ", 2) : NULL;
    size_t code_length = separator != NULL ? (size_t)(separator - text) : 0;
    size_t used = 0, step;

    memset(out, 0, sizeof(*out));
    if (code_length > 0 && code_length < sizeof(out->code)) {
        memcpy(out->code, text, code_length);
        if (strlen(out->code) == code_length && strcmp(sk_code_name(sk_code_parse(out->code)), out->code) == 0) {
            text += code_length + 2;
            length -= code_length + 2;
        } else {
            memset(out->code, 0, sizeof(out->code));
        }
    }
    while (used < length && text[used] != '\0') {
        step = sk_utf8_sequence(text + used, length - used);
        if (step == 0 || used + step >= sizeof(out->detail))
            break;
        used += step;
    }
    memcpy(out->detail, text, used);
}

/* ---- parts of the document ------------------------------------------------------------------ */

static void decode_limit(struct sk_instance *out, const bson_iter_t *iter)
{
    bson_iter_t child;

    if (!open_document(out, iter, "limit", false, &child))
        return;
    out->limit.present = true;
    while (bson_iter_next(&child)) {
        const char *key = bson_iter_key(&child);

        if (is_null(&child))
            continue;
        if (strcmp(key, "cpuCount") == 0)
            read_quantity(out, &child, "limit.cpuCount", &out->limit.cpu_count);
        else if (strcmp(key, "memoryMiB") == 0)
            read_quantity(out, &child, "limit.memoryMiB", &out->limit.memory_mib);
        else if (strcmp(key, "storageSize") == 0)
            read_text(out, &child, "limit.storageSize", out->limit.storage_size, sizeof(out->limit.storage_size));
    }
    check_end(out, &child, "limit");
}

static void decode_image(struct sk_instance *out, const bson_iter_t *iter)
{
    bson_iter_t child;

    if (!open_document(out, iter, "image", false, &child))
        return;
    out->image.present = true;
    while (bson_iter_next(&child)) {
        const char *key = bson_iter_key(&child);

        if (is_null(&child))
            continue;
        if (strcmp(key, "repository") == 0)
            read_text(out, &child, "image.repository", out->image.repository, sizeof(out->image.repository));
        else if (strcmp(key, "tag") == 0)
            read_text(out, &child, "image.tag", out->image.tag, sizeof(out->image.tag));
    }
    check_end(out, &child, "image");
}

static void decode_volume(struct sk_instance *out, const bson_iter_t *iter, int index)
{
    struct sk_storage volume;
    bson_iter_t child;
    char name[sizeof(volume.volume_name)] = "";

    if (!open_document(out, iter, "storage.volumes", false, &child))
        return;
    memset(&volume, 0, sizeof(volume));
    while (bson_iter_next(&child)) {
        const char *key = bson_iter_key(&child);

        if (is_null(&child))
            continue;
        if (strcmp(key, "name") == 0)
            read_text(out, &child, "storage.volumes.name", name, sizeof(name));
        else if (strcmp(key, "claimName") == 0)
            read_text(out, &child, "storage.volumes.claimName", volume.claim_name, sizeof(volume.claim_name));
        else if (strcmp(key, "mountPath") == 0)
            read_text(out, &child, "storage.volumes.mountPath", volume.volume_mount_path,
                      sizeof(volume.volume_mount_path));
        else if (strcmp(key, "subPath") == 0)
            read_text(out, &child, "storage.volumes.subPath", volume.sub_path, sizeof(volume.sub_path));
    }
    check_end(out, &child, "storage.volumes");
    if (name[0] == '\0') {
        malformed(out, "storage.volumes holds a volume without a name");
        return;
    }
    /* The workspace's volume is the one we use; without it, the first. */
    if (out->storage.volume_name[0] != '\0' &&
        (strcmp(out->storage.volume_name, "workspace") == 0 || strcmp(name, "workspace") != 0))
        return;
    memcpy(out->storage.volume_name, name, sizeof(name));
    memcpy(out->storage.claim_name, volume.claim_name, sizeof(volume.claim_name));
    memcpy(out->storage.volume_mount_path, volume.volume_mount_path, sizeof(volume.volume_mount_path));
    memcpy(out->storage.sub_path, volume.sub_path, sizeof(volume.sub_path));
    out->storage.volume_index = index;
}

static void decode_storage(struct sk_instance *out, const bson_iter_t *iter)
{
    bson_iter_t child, volumes;

    if (!open_document(out, iter, "storage", false, &child))
        return;
    memset(&out->storage, 0, sizeof(out->storage));
    out->storage.present = true;
    while (bson_iter_next(&child)) {
        const char *key = bson_iter_key(&child);
        int index = 0;

        if (is_null(&child))
            continue;
        if (strcmp(key, "mountPath") == 0) {
            read_text(out, &child, "storage.mountPath", out->storage.mount_path, sizeof(out->storage.mount_path));
        } else if (strcmp(key, "volumes") == 0 && open_document(out, &child, "storage.volumes", true, &volumes)) {
            while (bson_iter_next(&volumes))
                decode_volume(out, &volumes, index++);
            check_end(out, &volumes, "storage.volumes");
        }
    }
    check_end(out, &child, "storage");
}

static void decode_operation(struct sk_instance *out, const bson_iter_t *iter)
{
    struct sk_operation *op = &out->operation;
    bson_iter_t child;
    int64_t number;

    if (!open_document(out, iter, "operation", false, &child))
        return;
    memset(op, 0, sizeof(*op));
    out->has_operation = true;
    while (bson_iter_next(&child)) {
        const char *key = bson_iter_key(&child);

        if (is_null(&child))
            continue;
        if (strcmp(key, "id") == 0) {
            read_text(out, &child, "operation.id", op->id, sizeof(op->id));
        } else if (strcmp(key, "type") == 0) {
            read_op(out, &child, "operation.type", &op->type);
        } else if (strcmp(key, "phase") == 0) {
            read_text(out, &child, "operation.phase", op->phase, sizeof(op->phase));
        } else if (strcmp(key, "previousStatus") == 0) {
            read_status(out, &child, "operation.previousStatus", &op->previous_status);
        } else if (strcmp(key, "startedAt") == 0) {
            read_date(out, &child, "operation.startedAt", &op->started_at);
        } else if (strcmp(key, "heartbeatAt") == 0) {
            read_date(out, &child, "operation.heartbeatAt", &op->heartbeat_at);
        } else if (strcmp(key, "failedAt") == 0) {
            read_date(out, &child, "operation.failedAt", &op->failed_at);
        } else if (strcmp(key, "error") == 0) {
            read_error(out, &child, "operation.error", &op->error);
        } else if (strcmp(key, "attempt") == 0) {
            number = 0;
            read_int(out, &child, "operation.attempt", COUNT_MAX, &number);
            op->attempt = (int)number;
        } else if (strcmp(key, "nextAttemptAt") == 0) {
            read_date(out, &child, "operation.nextAttemptAt", &op->next_attempt_at);
        } else if (strcmp(key, "owner") == 0) {
            read_text(out, &child, "operation.owner", op->owner, sizeof(op->owner));
        } else if (strcmp(key, "commandId") == 0) {
            read_text(out, &child, "operation.commandId", op->command_id, sizeof(op->command_id));
        } else if (strcmp(key, "jobId") == 0) {
            read_text(out, &child, "operation.jobId", op->job_id, sizeof(op->job_id));
        } else if (strcmp(key, "traceparent") == 0) {
            read_text(out, &child, "operation.traceparent", op->traceparent, sizeof(op->traceparent));
        } else if (strcmp(key, "deadlineAt") == 0) {
            read_date(out, &child, "operation.deadlineAt", &op->deadline_at);
        } else if (strcmp(key, "blocked") == 0) {
            read_text(out, &child, "operation.blocked", op->blocked, sizeof(op->blocked));
        }
    }
    check_end(out, &child, "operation");
    if (op->type == SK_OP_NONE)
        malformed(out, "operation.type is missing");
}

static void decode_last_operation(struct sk_instance *out, const bson_iter_t *iter)
{
    struct sk_last_operation *last = &out->last_operation;
    bson_iter_t child;

    if (!open_document(out, iter, "lastOperation", false, &child))
        return;
    memset(last, 0, sizeof(*last));
    last->present = true;
    while (bson_iter_next(&child)) {
        const char *key = bson_iter_key(&child);

        if (is_null(&child))
            continue;
        if (strcmp(key, "id") == 0)
            read_text(out, &child, "lastOperation.id", last->id, sizeof(last->id));
        else if (strcmp(key, "type") == 0)
            read_op(out, &child, "lastOperation.type", &last->type);
        else if (strcmp(key, "result") == 0)
            read_text(out, &child, "lastOperation.result", last->result, sizeof(last->result));
        else if (strcmp(key, "startedAt") == 0)
            read_date(out, &child, "lastOperation.startedAt", &last->started_at);
        else if (strcmp(key, "endedAt") == 0)
            read_date(out, &child, "lastOperation.endedAt", &last->ended_at);
        else if (strcmp(key, "error") == 0)
            read_error(out, &child, "lastOperation.error", &last->error);
    }
    check_end(out, &child, "lastOperation");
    if (last->type == SK_OP_NONE)
        malformed(out, "lastOperation.type is missing");
}

static void decode_pins(struct sk_instance *out, const bson_iter_t *iter)
{
    bson_iter_t pins, child;

    if (!open_document(out, iter, "pins", true, &pins))
        return;
    out->pin_count = 0;
    while (bson_iter_next(&pins)) {
        struct sk_pin *pin = &out->pins[out->pin_count];

        if (out->pin_count == SK_PINS_MAX) {
            malformed(out, "pins holds more than %d pins", SK_PINS_MAX);
            return;
        }
        if (!open_document(out, &pins, "pins", false, &child))
            return;
        memset(pin, 0, sizeof(*pin));
        while (bson_iter_next(&child)) {
            const char *key = bson_iter_key(&child);

            if (strcmp(key, "id") == 0)
                read_text(out, &child, "pins.id", pin->id, sizeof(pin->id));
            else if (strcmp(key, "kind") == 0)
                read_text(out, &child, "pins.kind", pin->kind, sizeof(pin->kind));
            else if (strcmp(key, "expiresAt") == 0)
                read_date(out, &child, "pins.expiresAt", &pin->expires_at);
        }
        check_end(out, &child, "pins");
        if (pin->id[0] == '\0' || pin->expires_at == 0)
            malformed(out, "pins holds a pin without id or expiresAt");
        out->pin_count++;
    }
    check_end(out, &pins, "pins");
}

/* ---- events --------------------------------------------------------------------------------- */

/* One element of the outbox; false when it is of the wrong shape. */
static bool decode_event(const bson_iter_t *iter, struct sk_event *out)
{
    struct sk_instance verdict; /* only its `malformed` is used: the readers complain there */
    bson_iter_t child;
    char name[40];
    int64_t number;

    memset(out, 0, sizeof(*out));
    verdict.malformed = false;
    out->type = SK_EVENT_TYPE_COUNT;
    out->duration_ms = -1;
    if (!BSON_ITER_HOLDS_DOCUMENT(iter) || !bson_iter_recurse(iter, &child))
        return false;
    while (bson_iter_next(&child)) {
        const char *key = bson_iter_key(&child);

        if (is_null(&child))
            continue;
        if (strcmp(key, "id") == 0) {
            read_text(&verdict, &child, key, out->id, sizeof(out->id));
        } else if (strcmp(key, "type") == 0) {
            read_text(&verdict, &child, key, name, sizeof(name));
            out->type = sk_event_type_parse(name);
        } else if (strcmp(key, "time") == 0) {
            read_date(&verdict, &child, key, &out->time);
        } else if (strcmp(key, "epoch") == 0) {
            read_int(&verdict, &child, key, SEQUENCE_MAX, &out->epoch);
        } else if (strcmp(key, "sequence") == 0) {
            read_int(&verdict, &child, key, SEQUENCE_MAX, &out->sequence);
        } else if (strcmp(key, "from") == 0) {
            read_status(&verdict, &child, key, &out->from);
        } else if (strcmp(key, "to") == 0) {
            read_status(&verdict, &child, key, &out->to);
        } else if (strcmp(key, "operationId") == 0) {
            read_text(&verdict, &child, key, out->operation_id, sizeof(out->operation_id));
        } else if (strcmp(key, "jobId") == 0) {
            read_text(&verdict, &child, key, out->job_id, sizeof(out->job_id));
        } else if (strcmp(key, "operationType") == 0) {
            read_op(&verdict, &child, key, &out->operation_type);
        } else if (strcmp(key, "phase") == 0) {
            read_text(&verdict, &child, key, out->phase, sizeof(out->phase));
        } else if (strcmp(key, "attempt") == 0) {
            number = 0;
            read_int(&verdict, &child, key, COUNT_MAX, &number);
            out->attempt = (int)number;
        } else if (strcmp(key, "owner") == 0) {
            read_text(&verdict, &child, key, out->owner, sizeof(out->owner));
        } else if (strcmp(key, "reason") == 0) {
            read_text(&verdict, &child, key, out->reason, sizeof(out->reason));
        } else if (strcmp(key, "error") == 0) {
            read_error(&verdict, &child, key, &out->error);
        } else if (strcmp(key, "durationMs") == 0) {
            read_int(&verdict, &child, key, DURATION_MAX, &out->duration_ms);
        } else if (strcmp(key, "commandId") == 0) {
            read_text(&verdict, &child, key, out->command_id, sizeof(out->command_id));
        } else if (strcmp(key, "traceparent") == 0) {
            read_text(&verdict, &child, key, out->traceparent, sizeof(out->traceparent));
        }
    }
    return !verdict.malformed && child.err_off == 0 && out->id[0] != '\0' && out->type != SK_EVENT_TYPE_COUNT &&
           out->sequence > 0;
}

static void decode_outbox(struct sk_instance *out, const bson_iter_t *iter)
{
    struct sk_event event;
    bson_iter_t events;

    if (!open_document(out, iter, "outbox", true, &events))
        return;
    out->outbox_count = 0;
    while (bson_iter_next(&events)) {
        if (!decode_event(&events, &event))
            malformed(out, "outbox holds an event of the wrong shape");
        if (out->outbox_count < INT32_MAX)
            out->outbox_count++;
    }
    check_end(out, &events, "outbox");
}

static int by_sequence(const void *a, const void *b)
{
    const struct sk_event *left = a, *right = b;

    return left->sequence < right->sequence ? -1 : left->sequence > right->sequence;
}

int sk_outbox_decode(const bson_t *doc, const struct sk_instance *instance, struct sk_event *out, int capacity)
{
    bson_iter_t iter, events;
    int count = 0;

    if (!bson_iter_init_find(&iter, doc, "outbox") || !BSON_ITER_HOLDS_ARRAY(&iter) ||
        !bson_iter_recurse(&iter, &events))
        return 0;
    while (count < capacity && bson_iter_next(&events)) {
        struct sk_event *event = &out[count];

        if (!decode_event(&events, event))
            continue;
        memcpy(event->sandbox_id, instance->sandbox_id, sizeof(event->sandbox_id));
        event->identity = instance->identity;
        memcpy(event->team_id, instance->team_id, sizeof(event->team_id));
        memcpy(event->provider, instance->provider, sizeof(event->provider));
        count++;
    }
    qsort(out, (size_t)count, sizeof(*out), by_sequence);
    return count;
}

/* ---- the document --------------------------------------------------------------------------- */

static void decode_field(struct sk_instance *out, const bson_iter_t *iter, const char *key)
{
    char name[32];

    if (strcmp(key, "provider") == 0) {
        read_text(out, iter, key, out->provider, sizeof(out->provider));
    } else if (strcmp(key, "sandboxId") == 0) {
        read_text(out, iter, key, out->sandbox_id, sizeof(out->sandbox_id));
    } else if (strcmp(key, "sourceType") == 0) {
        out->identity.source_type =
            sk_bson_text(iter, name, sizeof(name)) ? sk_source_type_parse(name, NULL) : SK_SOURCE_NONE;
        if (out->identity.source_type == SK_SOURCE_NONE)
            malformed(out, "sourceType is unknown");
    } else if (strcmp(key, "sourceId") == 0) {
        read_text(out, iter, key, out->identity.source_id, sizeof(out->identity.source_id));
    } else if (strcmp(key, "userId") == 0) {
        read_text(out, iter, key, out->identity.user_id, sizeof(out->identity.user_id));
    } else if (strcmp(key, "status") == 0) {
        read_status(out, iter, key, &out->status);
    } else if (strcmp(key, "lastActiveAt") == 0) {
        read_date(out, iter, key, &out->last_active_at);
    } else if (strcmp(key, "createdAt") == 0) {
        read_date(out, iter, key, &out->created_at);
    } else if (strcmp(key, "limit") == 0) {
        decode_limit(out, iter);
    } else if (strcmp(key, "storage") == 0) {
        decode_storage(out, iter);
    } else if (strcmp(key, "teamId") == 0) {
        read_text(out, iter, key, out->team_id, sizeof(out->team_id));
    } else if (strcmp(key, "image") == 0) {
        decode_image(out, iter);
    } else if (strcmp(key, "versionId") == 0) {
        read_text(out, iter, key, out->version_id, sizeof(out->version_id));
    } else if (strcmp(key, "operation") == 0) {
        decode_operation(out, iter);
    } else if (strcmp(key, "epoch") == 0) {
        read_int(out, iter, key, SEQUENCE_MAX, &out->epoch);
    } else if (strcmp(key, "sequence") == 0) {
        read_int(out, iter, key, SEQUENCE_MAX, &out->sequence);
    } else if (strcmp(key, "lastOperation") == 0) {
        decode_last_operation(out, iter);
    } else if (strcmp(key, "pins") == 0) {
        decode_pins(out, iter);
    } else if (strcmp(key, "outbox") == 0) {
        decode_outbox(out, iter);
    }
}

void sk_instance_decode(const bson_t *doc, struct sk_instance *out)
{
    bson_iter_t iter;
    const char *reason;

    memset(out, 0, sizeof(*out));
    if (!bson_iter_init(&iter, doc)) {
        malformed(out, "the document cannot be read");
        return;
    }
    while (bson_iter_next(&iter)) {
        const char *key = bson_iter_key(&iter);

        if (strcmp(key, "_id") == 0) {
            if (BSON_ITER_HOLDS_OID(&iter))
                bson_oid_to_string(bson_iter_oid(&iter), out->oid);
            else
                malformed(out, "_id is not an ObjectId");
        } else if (!is_null(&iter)) {
            /* An absent required field is found by the invariant below, a null one alike. */
            decode_field(out, &iter, key);
        } else if (strcmp(key, "outbox") == 0) {
            malformed(out, "outbox is null"); /* no event could be appended to it */
        }
    }
    if (iter.err_off != 0)
        malformed(out, "the document is cut");
    if (out->oid[0] == '\0')
        malformed(out, "_id is missing");
    if (out->status == SK_STATUS_NONE) {
        out->status = SK_STATUS_INVALID;
        malformed(out, "status is missing");
    }
    if (out->malformed)
        return;
    reason = sk_instance_invariant(out);
    if (reason != NULL)
        malformed(out, "%s", reason);
}
