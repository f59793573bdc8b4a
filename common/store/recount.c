/* SPDX-License-Identifier: Apache-2.0
 *
 * The recount of quotas: compares who counts with who holds a slot, scope by scope, and mends what crashes, changed
 * limits and FastGPT's own records leave behind. It costs in proportion to what counts, not to what exists. */
#include "common/store/instance_bson.h"
#include "common/store/quota.h"

#include <stdlib.h>
#include <string.h>

/* What a recount of one scope compares, each sorted by sandbox id: who counts, and who holds a slot. */
struct recount {
    char (*records)[SK_SANDBOX_ID_SIZE];
    size_t record_count, record_capacity;
    struct sk_quota_slot *slots;
    size_t slot_count, slot_capacity;
    bool failed;
};

static bool collect_record(void *arg, const bson_t *doc)
{
    struct recount *recount = arg;
    bson_iter_t iter;

    recount->records = sk_quota_grow(recount->records, recount->record_count, &recount->record_capacity,
                                     sizeof(*recount->records), &recount->failed);
    if (recount->failed)
        return false;
    if (bson_iter_init_find(&iter, doc, "sandboxId") &&
        sk_bson_text(&iter, recount->records[recount->record_count], SK_SANDBOX_ID_SIZE))
        recount->record_count++;
    return true;
}

static bool collect_held(void *arg, const bson_t *doc)
{
    struct recount *recount = arg;

    recount->slots = sk_quota_grow(recount->slots, recount->slot_count, &recount->slot_capacity,
                                   sizeof(*recount->slots), &recount->failed);
    if (recount->failed)
        return false;
    if (sk_quota_decode_slot(doc, &recount->slots[recount->slot_count]))
        recount->slot_count++;
    return true;
}

static int by_holder(const void *a, const void *b)
{
    const struct sk_quota_slot *left = a, *right = b;

    return strcmp(left->holder, right->holder);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static int read_both(struct sk_mongo_op *op, const char *scope, struct recount *recount, struct sk_error *err)
{
    const char *team = strncmp(scope, "team:", 5) == 0 ? scope + 5 : NULL;
    bson_t filter = BSON_INITIALIZER, *opts;
    int result;

    /* Slots first: one that is taken while the records are read is younger than the grace. */
    opts = BCON_NEW("batchSize", BCON_INT32(SK_QUOTA_BATCH));
    sk_quota_append_range(&filter, "held", scope, '/');
    result = sk_mongo_find(op, SK_MONGO_QUOTA, &filter, opts, collect_held, recount, err);
    bson_destroy(opts);
    opts = BCON_NEW("projection", "{", "sandboxId", BCON_INT32(1), "_id", BCON_INT32(0), "}", "batchSize",
                    BCON_INT32(SK_QUOTA_BATCH));
    /* Status by status: the embedded server answers a $in over a big index slowly. */
    for (int status = SK_STATUS_NONE + 1; status < SK_STATUS_COUNT && result == 0; status++) {
        if (!sk_status_info((enum sk_status)status)->counts_for_quota)
            continue;
        bson_reinit(&filter);
        if (team != NULL)
            BSON_APPEND_UTF8(&filter, "teamId", team);
        BSON_APPEND_UTF8(&filter, "status", sk_status_name((enum sk_status)status));
        result = sk_mongo_find(op, SK_MONGO_INSTANCES, &filter, opts, collect_record, recount, err);
    }
    bson_destroy(opts);
    bson_destroy(&filter);
    if (result == 0 && recount->failed)
        result = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    return result;
}

static bool read_record(void *arg, const bson_t *doc)
{
    sk_instance_decode(doc, arg);
    return true;
}

static int make_free_slot(struct sk_mongo_op *op, const char *scope, int64_t number, struct sk_error *err)
{
    struct sk_mongo_written written; /* a duplicate is there already */
    char id[SK_QUOTA_ID_SIZE];
    bson_t *command;
    int result;

    sk_quota_slot_id(id, scope, number);
    command = BCON_NEW("insert", BCON_UTF8(op->store->names[SK_MONGO_QUOTA]), "documents", "[", "{", "_id",
                       BCON_UTF8(id), "scope", BCON_UTF8(scope), "slot", BCON_INT64(number), "free", BCON_UTF8(id),
                       "at", BCON_DATE_TIME(sk_wall_ms(op->store->sched)), "}", "]");
    result = sk_mongo_write(op, command, &written, NULL, err);
    bson_destroy(command);
    return result;
}

/* Slots that were counted but are not there (somebody removed them by hand) would be lost: they are made again, free.
 */
static int fill_holes(struct sk_mongo_op *op, const char *scope, struct sk_error *err)
{
    struct sk_quota_numbers numbers = {.list = NULL};
    bson_t filter = BSON_INITIALIZER;
    int64_t slots, next = 0;
    int result = sk_quota_count_slots(op, scope, &slots, err);

    sk_quota_append_range(&filter, "_id", scope, '#');
    if (result == 0)
        result = sk_quota_read_numbers(op, &filter, &numbers, err);
    bson_destroy(&filter);
    for (size_t i = 0; result == 0 && (int64_t)numbers.count < slots && next < slots; next++) {
        if (i < numbers.count && numbers.list[i] == next)
            i++;
        else
            result = make_free_slot(op, scope, next, err);
    }
    free(numbers.list);
    return result;
}

/* Does the record still count? The lists are a moment old, and a slot must not be taken from a living sandbox. */
static int still_counts(struct sk_mongo_op *op, const char *sandbox_id, bool *counts, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    const struct sk_status_info *info;
    struct sk_instance instance;
    bool found;
    int result;

    BSON_APPEND_UTF8(&filter, "sandboxId", sandbox_id);
    result = sk_mongo_find_one(op, SK_MONGO_INSTANCES, &filter, NULL, read_record, &instance, &found, err);
    bson_destroy(&filter);
    info = found ? sk_status_info(instance.status) : NULL;
    /* An unknown status is somebody else's business: its slot is left alone. */
    *counts = found && (info == NULL || info->counts_for_quota);
    return result;
}

static int release_stale(struct sk_mongo_op *op, const char *scope, const struct recount *recount, int64_t grace_ms,
                         int64_t *changed, struct sk_error *err)
{
    int64_t before_ms = sk_wall_ms(op->store->sched) - grace_ms;

    for (size_t i = 0; i < recount->slot_count; i++) {
        const struct sk_quota_slot *slot = &recount->slots[i];
        bool counts, freed;

        if (slot->at > before_ms ||
            (recount->record_count > 0 &&
             bsearch(slot->holder, recount->records, recount->record_count, SK_SANDBOX_ID_SIZE, by_text) != NULL))
            continue;
        if (still_counts(op, slot->holder, &counts, err) != 0)
            return -1;
        if (counts)
            continue;
        if (sk_quota_free_slot(op, scope, slot, &freed, err) != 0)
            return -1;
        *changed += freed;
    }
    return 0;
}

static int take_missing(struct sk_mongo_op *op, const char *scope, const struct recount *recount, int64_t *changed,
                        struct sk_error *err)
{
    for (size_t i = 0; i < recount->record_count; i++) {
        struct sk_quota_slot key;
        bool counts, granted = false;

        memcpy(key.holder, recount->records[i], sizeof(key.holder));
        if (recount->slot_count > 0 &&
            bsearch(&key, recount->slots, recount->slot_count, sizeof(key), by_holder) != NULL)
            continue;
        if (still_counts(op, recount->records[i], &counts, err) != 0)
            return -1;
        if (!counts)
            continue;
        if (sk_quota_take(op, scope, -1, recount->records[i], &granted, err) != 0)
            return -1;
        *changed += granted;
    }
    return 0;
}

static int recount_scope(struct sk_mongo_op *op, const char *scope, int64_t grace_ms, int64_t *changed,
                         struct sk_error *err)
{
    struct recount recount = {.records = NULL};
    int result = read_both(op, scope, &recount, err);

    if (result == 0) {
        if (recount.record_count > 0)
            qsort(recount.records, recount.record_count, sizeof(*recount.records), by_text);
        if (recount.slot_count > 0)
            qsort(recount.slots, recount.slot_count, sizeof(*recount.slots), by_holder);
        result = release_stale(op, scope, &recount, grace_ms, changed, err);
    }
    if (result == 0)
        result = fill_holes(op, scope, err);
    if (result == 0)
        result = take_missing(op, scope, &recount, changed, err);
    free(recount.records);
    free(recount.slots);
    return result;
}

struct scopes {
    char (*names)[SK_QUOTA_SCOPE_SIZE];
    size_t count, capacity;
    bool failed;
};

static bool collect_scope(void *arg, const bson_t *doc)
{
    struct scopes *scopes = arg;
    bson_iter_t iter;

    scopes->names =
        sk_quota_grow(scopes->names, scopes->count, &scopes->capacity, sizeof(*scopes->names), &scopes->failed);
    if (scopes->failed)
        return false;
    if (bson_iter_init_find(&iter, doc, "counts") &&
        sk_bson_text(&iter, scopes->names[scopes->count], SK_QUOTA_SCOPE_SIZE) &&
        sk_quota_scope_valid(scopes->names[scopes->count]))
        scopes->count++;
    return true;
}

/* Every scope that was ever reserved in. */
static int read_scopes(struct sk_mongo_op *op, struct scopes *scopes, struct sk_error *err)
{
    bson_t *filter = BCON_NEW("_id", "{", "$gte", BCON_UTF8("slots:"), "$lt", BCON_UTF8("slots;"), "}");
    int result = sk_mongo_find(op, SK_MONGO_QUOTA, filter, NULL, collect_scope, scopes, err);

    bson_destroy(filter);
    if (result == 0 && scopes->failed)
        result = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    return result;
}

int sk_mongo_quota_recount(void *self, struct sk_call *call, const char *scope, int64_t grace_ms, int64_t *changed,
                           struct sk_error *err)
{
    struct scopes scopes = {.names = NULL};
    struct sk_mongo_op op;
    int result;

    *changed = 0;
    if (scope != NULL && !sk_quota_scope_valid(scope))
        return sk_fail(err, SK_ERR_INTERNAL, "not a quota scope");
    if (sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_QUOTA_CALL, &op, err) != 0)
        return -1;
    if (scope != NULL) {
        result = recount_scope(&op, scope, grace_ms, changed, err);
    } else {
        result = read_scopes(&op, &scopes, err);
        for (size_t i = 0; i < scopes.count && result == 0; i++)
            result = recount_scope(&op, scopes.names[i], grace_ms, changed, err);
    }
    sk_mongo_end(&op);
    free(scopes.names);
    return result;
}
