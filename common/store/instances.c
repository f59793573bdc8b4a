/* SPDX-License-Identifier: Apache-2.0
 *
 * The instance records: reads, insert, compare-and-set, removal, heartbeats and the clearing of outboxes
 * (contract/lifecycle.md §2). Each is one command. A compare-and-set is an `update` by _id: measured, it costs the same
 * as or less than findAndModify, and the changed document is known already. */
#include "common/store/instance_bson.h"
#include "common/store/mongo.h"

#include <stdlib.h>
#include <string.h>

#define GET_MANY_MAX  1024
#define HEARTBEAT_MAX 1024
#define PULL_MAX      4096

struct decode_arg {
    struct sk_instance *out;
};

static bool decode_one(void *arg, const bson_t *doc)
{
    struct decode_arg *decode = arg;

    sk_instance_decode(doc, decode->out);
    return true;
}

static int get_by(struct sk_store_mongo *store, struct sk_call *call, const bson_t *filter, struct sk_instance *out,
                  bool *found, struct sk_error *err)
{
    struct decode_arg decode = {.out = out};
    struct sk_mongo_op op;
    int result;

    *found = false;
    if (sk_mongo_begin(store, call, SK_MONGO_GET, &op, err) != 0)
        return -1;
    result = sk_mongo_find_one(&op, SK_MONGO_INSTANCES, filter, NULL, decode_one, &decode, found, err);
    sk_mongo_end(&op);
    return result;
}

int sk_mongo_get(void *self, struct sk_call *call, const char *sandbox_id, struct sk_instance *out, bool *found,
                 struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    struct decode_arg decode = {.out = out};

    return sk_mongo_find_by_key(store, &store->records, call, sandbox_id, decode_one, &decode, found, err);
}

int sk_mongo_find_identity(void *self, struct sk_call *call, const struct sk_identity *identity,
                           struct sk_instance *out, bool *found, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    int result;

    BSON_APPEND_UTF8(&filter, "sourceType", sk_source_type_name(identity->source_type));
    BSON_APPEND_UTF8(&filter, "sourceId", identity->source_id);
    BSON_APPEND_UTF8(&filter, "userId", identity->user_id);
    result = get_by(sk_mongo_self(self), call, &filter, out, found, err);
    bson_destroy(&filter);
    return result;
}

struct scan_arg {
    sk_scan_fn fn;
    void *arg;
    struct sk_instance instance;
    struct sk_event *events; /* made when the first record has some */
    bool no_memory;
};

static bool decode_and_hand_out(void *arg, const bson_t *doc)
{
    struct scan_arg *scan = arg;
    int events = 0;

    sk_instance_decode(doc, &scan->instance);
    if (scan->instance.outbox_count > 0) {
        if (scan->events == NULL)
            scan->events = malloc(SK_MONGO_EVENTS_MAX * sizeof(*scan->events));
        scan->no_memory = scan->events == NULL;
        if (scan->no_memory)
            return false;
        events = sk_outbox_decode(doc, &scan->instance, scan->events, SK_MONGO_EVENTS_MAX);
    }
    return scan->fn(scan->arg, &scan->instance, scan->events, events);
}

static void append_texts(bson_t *doc, const char *key, const char *texts, size_t stride, int count)
{
    bson_t list;
    char index[16];
    const char *position;

    BSON_APPEND_ARRAY_BEGIN(doc, key, &list);
    for (int i = 0; i < count; i++) {
        bson_uint32_to_string((uint32_t)i, &position, index, sizeof(index));
        BSON_APPEND_UTF8(&list, position, texts + (size_t)i * stride);
    }
    bson_append_array_end(doc, &list);
}

static void append_in(bson_t *filter, const char *field, const char *texts, size_t stride, int count)
{
    bson_t in;

    BSON_APPEND_DOCUMENT_BEGIN(filter, field, &in);
    append_texts(&in, "$in", texts, stride, count);
    bson_append_document_end(filter, &in);
}

int sk_mongo_get_many(void *self, struct sk_call *call, const char (*sandbox_ids)[SK_SANDBOX_ID_SIZE], int count,
                      sk_scan_fn fn, void *arg, struct sk_error *err)
{
    struct scan_arg scan = {.fn = fn, .arg = arg};
    bson_t filter = BSON_INITIALIZER;
    struct sk_mongo_op op;
    int result;

    if (count <= 0)
        return 0;
    if (count > GET_MANY_MAX)
        return sk_fail(err, SK_ERR_INTERNAL, "at most %d records can be read at once", GET_MANY_MAX);
    append_in(&filter, "sandboxId", sandbox_ids[0], sizeof(sandbox_ids[0]), count);
    result = sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_GET, &op, err);
    if (result == 0) {
        result = sk_mongo_find(&op, SK_MONGO_INSTANCES, &filter, NULL, decode_and_hand_out, &scan, err);
        sk_mongo_end(&op);
    }
    if (scan.no_memory)
        result = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    free(scan.events);
    bson_destroy(&filter);
    return result;
}

/* ---- writes --------------------------------------------------------------------------------- */

/* Events and sequence must tell the same story: this is what subscribers count on. */
static const char *events_invariant(int64_t before, int64_t after, const struct sk_event *events, int count)
{
    if (after - before != count)
        return "the sequence does not rise by the number of events";
    for (int i = 0; i < count; i++) {
        if (events[i].sequence != before + 1 + i)
            return "an event does not carry the next sequence";
        if (events[i].id[0] == '\0' || (int)events[i].type < 0 || events[i].type >= SK_EVENT_TYPE_COUNT)
            return "an event has no id or no type";
    }
    return NULL;
}

int sk_mongo_insert(void *self, struct sk_call *call, const struct sk_instance *after, const struct sk_event *events,
                    int event_count, bool *created, struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    bson_t command = BSON_INITIALIZER, documents, document;
    const char *reason = sk_instance_invariant(after);
    char expected[SK_SANDBOX_ID_SIZE];
    struct sk_mongo_written written;
    struct sk_mongo_op op;
    int result;

    *created = false;
    if (reason == NULL)
        reason = events_invariant(0, after->sequence, events, event_count);
    if (reason == NULL && !bson_oid_is_valid(after->oid, strlen(after->oid)))
        reason = "a new record needs an _id";
    if (reason == NULL) {
        sk_identity_sandbox_id(&after->identity, expected);
        if (strcmp(expected, after->sandbox_id) != 0)
            reason = "the sandbox id is not that of the identity";
    }
    if (reason != NULL) {
        bson_destroy(&command);
        return sk_fail(err, SK_ERR_INTERNAL, "insert refused: %s", reason);
    }
    BSON_APPEND_UTF8(&command, "insert", store->names[SK_MONGO_INSTANCES]);
    BSON_APPEND_ARRAY_BEGIN(&command, "documents", &documents);
    BSON_APPEND_DOCUMENT_BEGIN(&documents, "0", &document);
    sk_instance_encode(after, events, event_count, &document);
    bson_append_document_end(&documents, &document);
    bson_append_array_end(&command, &documents);
    result = sk_mongo_begin(store, call, SK_MONGO_INSERT, &op, err);
    if (result == 0) {
        result = sk_mongo_write(&op, &command, &written, NULL, err);
        if (result == 0 && written.duplicate && op.resent)
            result = sk_fail_unknown(err, SK_ERR_STORE_UNAVAILABLE,
                                     "the insert was sent twice: one of them may have made the record");
        else if (result == 0)
            *created = !written.duplicate && written.matched == 1;
        sk_mongo_end(&op);
    }
    bson_destroy(&command);
    return result;
}

/* { _id, status, operation.id or no operation, epoch or none, sequence or none } and the guards. null also matches what
 * is absent. */
static bool append_filter(bson_t *filter, const struct sk_instance *before, const struct sk_cas_guard *guard)
{
    bson_oid_t oid;
    bson_t pins, not_later;

    if (!bson_oid_is_valid(before->oid, strlen(before->oid)))
        return false;
    bson_oid_init_from_string(&oid, before->oid);
    BSON_APPEND_OID(filter, "_id", &oid);
    BSON_APPEND_UTF8(filter, "status", sk_status_name(before->status));
    if (before->has_operation)
        BSON_APPEND_UTF8(filter, "operation.id", before->operation.id);
    else
        BSON_APPEND_NULL(filter, "operation");
    if (before->epoch != 0)
        BSON_APPEND_INT64(filter, "epoch", before->epoch);
    else
        BSON_APPEND_NULL(filter, "epoch");
    if (before->sequence != 0)
        BSON_APPEND_INT64(filter, "sequence", before->sequence);
    else
        BSON_APPEND_NULL(filter, "sequence");
    if (guard != NULL && guard->last_active_at)
        BSON_APPEND_DATE_TIME(filter, "lastActiveAt", before->last_active_at);
    if (guard != NULL && guard->unpinned_at != 0) {
        BSON_APPEND_DOCUMENT_BEGIN(filter, "pins.expiresAt", &pins);
        BSON_APPEND_DOCUMENT_BEGIN(&pins, "$not", &not_later);
        BSON_APPEND_DATE_TIME(&not_later, "$gt", guard->unpinned_at);
        bson_append_document_end(&pins, &not_later);
        bson_append_document_end(filter, &pins);
    }
    return true;
}

static void append_update(bson_t *update, const struct sk_instance *before, const struct sk_instance *after,
                          const struct sk_event *events, int event_count)
{
    bson_t set = BSON_INITIALIZER, unset = BSON_INITIALIZER, push, outbox, each, event;
    char index[16];
    const char *position;

    sk_instance_encode_change(before, after, &set, &unset);
    if (!bson_empty(&set))
        BSON_APPEND_DOCUMENT(update, "$set", &set);
    if (!bson_empty(&unset))
        BSON_APPEND_DOCUMENT(update, "$unset", &unset);
    if (event_count > 0) {
        BSON_APPEND_DOCUMENT_BEGIN(update, "$push", &push);
        BSON_APPEND_DOCUMENT_BEGIN(&push, "outbox", &outbox);
        BSON_APPEND_ARRAY_BEGIN(&outbox, "$each", &each);
        for (int i = 0; i < event_count; i++) {
            bson_uint32_to_string((uint32_t)i, &position, index, sizeof(index));
            BSON_APPEND_DOCUMENT_BEGIN(&each, position, &event);
            sk_event_encode(&events[i], &event);
            bson_append_document_end(&each, &event);
        }
        bson_append_array_end(&outbox, &each);
        bson_append_document_end(&push, &outbox);
        bson_append_document_end(update, &push);
    }
    bson_destroy(&set);
    bson_destroy(&unset);
}

/* "Not matched" after a command that may have been applied by an earlier attempt proves nothing: the caller reads back.
 */
static enum sk_cas_result verdict(const struct sk_mongo_op *op, const struct sk_mongo_written *written,
                                  struct sk_error *err)
{
    if (written->matched == 1)
        return SK_CAS_APPLIED;
    if (!op->resent)
        return SK_CAS_LOST;
    sk_fail_unknown(err, SK_ERR_STORE_UNAVAILABLE, "the write was sent twice: one of them may have been applied");
    return SK_CAS_ERROR;
}

enum sk_cas_result sk_mongo_cas(void *self, struct sk_call *call, const struct sk_instance *before,
                                const struct sk_instance *after, const struct sk_event *events, int event_count,
                                const struct sk_cas_guard *guard, struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    bson_t filter = BSON_INITIALIZER, update = BSON_INITIALIZER, command = BSON_INITIALIZER, updates, statement;
    const char *reason = sk_instance_change_invariant(before, after);
    enum sk_cas_result result = SK_CAS_ERROR;
    struct sk_mongo_written written;
    struct sk_mongo_op op;
    bool found;

    if (reason == NULL)
        reason = events_invariant(before->sequence, after->sequence, events, event_count);
    if (reason == NULL && !append_filter(&filter, before, guard))
        reason = "the record was never stored";
    if (reason != NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "change refused: %s", reason);
        goto out;
    }
    append_update(&update, before, after, events, event_count);
    if (sk_mongo_begin(store, call, SK_MONGO_CAS, &op, err) != 0)
        goto out;
    if (bson_empty(&update)) {
        /* Nothing to write: the comparison alone is left. */
        if (sk_mongo_find_one(&op, SK_MONGO_INSTANCES, &filter, NULL, NULL, NULL, &found, err) == 0)
            result = found ? SK_CAS_APPLIED : SK_CAS_LOST;
    } else {
        BSON_APPEND_UTF8(&command, "update", store->names[SK_MONGO_INSTANCES]);
        BSON_APPEND_ARRAY_BEGIN(&command, "updates", &updates);
        BSON_APPEND_DOCUMENT_BEGIN(&updates, "0", &statement);
        BSON_APPEND_DOCUMENT(&statement, "q", &filter);
        BSON_APPEND_DOCUMENT(&statement, "u", &update);
        bson_append_document_end(&updates, &statement);
        bson_append_array_end(&command, &updates);
        if (sk_mongo_write(&op, &command, &written, NULL, err) == 0) {
            if (written.duplicate)
                sk_fail(err, SK_ERR_INTERNAL, "change refused: another record holds this identity at the provider");
            else
                result = verdict(&op, &written, err);
        }
    }
    sk_mongo_end(&op);
out:
    bson_destroy(&command);
    bson_destroy(&update);
    bson_destroy(&filter);
    return result;
}

enum sk_cas_result sk_mongo_remove(void *self, struct sk_call *call, const struct sk_instance *before,
                                   struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    bson_t filter = BSON_INITIALIZER, command = BSON_INITIALIZER, deletes, statement, absent;
    enum sk_cas_result result = SK_CAS_ERROR;
    struct sk_mongo_written written;
    struct sk_mongo_op op;

    if (before->status != SK_STATUS_DELETING || !before->has_operation || !append_filter(&filter, before, NULL)) {
        sk_fail(err, SK_ERR_INTERNAL, "remove refused: only a record in deletion may be removed");
        goto out;
    }
    /* No first event: the outbox is absent or empty. (null would match events that have no field called "0".) */
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "outbox.0", &absent);
    BSON_APPEND_BOOL(&absent, "$exists", false);
    bson_append_document_end(&filter, &absent);
    BSON_APPEND_UTF8(&command, "delete", store->names[SK_MONGO_INSTANCES]);
    BSON_APPEND_ARRAY_BEGIN(&command, "deletes", &deletes);
    BSON_APPEND_DOCUMENT_BEGIN(&deletes, "0", &statement);
    BSON_APPEND_DOCUMENT(&statement, "q", &filter);
    BSON_APPEND_INT32(&statement, "limit", 1);
    bson_append_document_end(&deletes, &statement);
    bson_append_array_end(&command, &deletes);
    if (sk_mongo_begin(store, call, SK_MONGO_REMOVE, &op, err) != 0)
        goto out;
    if (sk_mongo_write(&op, &command, &written, NULL, err) == 0)
        result = verdict(&op, &written, err);
    sk_mongo_end(&op);
out:
    bson_destroy(&command);
    bson_destroy(&filter);
    return result;
}

/* One `update` statement for many records. */
static int update_many(struct sk_store_mongo *store, enum sk_mongo_kind kind, const bson_t *filter,
                       const bson_t *update, struct sk_error *err)
{
    bson_t command = BSON_INITIALIZER, updates, statement;
    struct sk_mongo_op op;
    int result;

    BSON_APPEND_UTF8(&command, "update", store->names[SK_MONGO_INSTANCES]);
    BSON_APPEND_ARRAY_BEGIN(&command, "updates", &updates);
    BSON_APPEND_DOCUMENT_BEGIN(&updates, "0", &statement);
    BSON_APPEND_DOCUMENT(&statement, "q", filter);
    BSON_APPEND_DOCUMENT(&statement, "u", update);
    BSON_APPEND_BOOL(&statement, "multi", true);
    bson_append_document_end(&updates, &statement);
    bson_append_array_end(&command, &updates);
    result = sk_mongo_begin(store, NULL, kind, &op, err);
    if (result == 0) {
        op.idempotent = true;
        result = sk_mongo_write(&op, &command, NULL, NULL, err);
        sk_mongo_end(&op);
    }
    bson_destroy(&command);
    return result;
}

int sk_mongo_heartbeat(void *self, const char *owner, const struct sk_heartbeat *items, int count, int64_t now_ms,
                       struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER, update = BSON_INITIALIZER, set;
    int result = 0;

    for (int done = 0; done < count && result == 0; done += HEARTBEAT_MAX) {
        int part = count - done < HEARTBEAT_MAX ? count - done : HEARTBEAT_MAX;

        bson_reinit(&filter);
        bson_reinit(&update);
        append_in(&filter, "sandboxId", items[done].sandbox_id, sizeof(items[0]), part);
        append_in(&filter, "operation.id", items[done].operation_id, sizeof(items[0]), part);
        BSON_APPEND_UTF8(&filter, "operation.owner", owner);
        BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &set);
        BSON_APPEND_DATE_TIME(&set, "operation.heartbeatAt", now_ms);
        bson_append_document_end(&update, &set);
        result = update_many(sk_mongo_self(self), SK_MONGO_HEARTBEAT, &filter, &update, err);
    }
    bson_destroy(&filter);
    bson_destroy(&update);
    return result;
}

int sk_mongo_outbox_pull(void *self, const char (*sandbox_ids)[SK_SANDBOX_ID_SIZE], int sandbox_count,
                         const char (*event_ids)[SK_ULID_SIZE], int event_count, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER, update = BSON_INITIALIZER, pull, outbox;
    int result;

    if (sandbox_count <= 0 || event_count <= 0)
        return 0;
    if (sandbox_count > PULL_MAX || event_count > PULL_MAX)
        return sk_fail(err, SK_ERR_INTERNAL, "at most %d events can be pulled at once", PULL_MAX);
    append_in(&filter, "sandboxId", sandbox_ids[0], sizeof(sandbox_ids[0]), sandbox_count);
    BSON_APPEND_DOCUMENT_BEGIN(&update, "$pull", &pull);
    BSON_APPEND_DOCUMENT_BEGIN(&pull, "outbox", &outbox);
    append_in(&outbox, "id", event_ids[0], sizeof(event_ids[0]), event_count);
    bson_append_document_end(&pull, &outbox);
    bson_append_document_end(&update, &pull);
    result = update_many(sk_mongo_self(self), SK_MONGO_OUTBOX, &filter, &update, err);
    bson_destroy(&filter);
    bson_destroy(&update);
    return result;
}
