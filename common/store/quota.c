/* SPDX-License-Identifier: Apache-2.0
 *
 * Quotas as reservations: one document per slot in sandkeep_quota (contract/lifecycle.md §2, §3).
 *
 *   { _id: "<scope>#<8 digits>", scope, slot, holder: <sandboxId>, held: "<scope>/<sandboxId>", at }   held
 *   { _id: "<scope>#<8 digits>", scope, slot, free: <_id>, at }                                        free
 *   { _id: "slots:<scope>", counts: <scope>, slots: n }                           how many slots were ever made
 *
 * Taking a slot is one update of one document, so two takers never get the same; the unique index on `held` keeps
 * a sandbox from holding two. Slots are numbered, and only numbers below the limit may be taken, which bounds the held
 * ones by the limit without any counting. `held` and `free` exist only in their state: each has a sparse index that
 * holds nothing else (a partial index on (scope, holder) would be the same, but the embedded server does not search by
 * it). */
#include "common/store/instance_bson.h"
#include "common/store/mongo.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCOPE_SIZE    (SK_TEAM_ID_SIZE + 8)
#define SLOT_ID_SIZE  (SCOPE_SIZE + 16)
#define HELD_SIZE     (SCOPE_SIZE + SK_SANDBOX_ID_SIZE + 1)
#define SLOTS_MAX     99999999 /* what 8 digits hold */
#define TRIES_MAX     256      /* lost races before a reservation gives up */
#define FIRST_WINDOW  64       /* free slots looked at by the first search */
#define REFRESH_MS    5000     /* a reservation found to be held already is dated again when it is older */
#define RECOUNT_BATCH 1000

static void slot_id(char out[SLOT_ID_SIZE], const char *scope, int64_t slot)
{
    snprintf(out, SLOT_ID_SIZE, "%s#%08" PRId64, scope, slot);
}

static void held_key(char out[HELD_SIZE], const char *scope, const char *holder)
{
    snprintf(out, HELD_SIZE, "%s/%s", scope, holder);
}

static void counter_id(char out[SLOT_ID_SIZE], const char *scope)
{
    snprintf(out, SLOT_ID_SIZE, "slots:%s", scope);
}

/* { scope, <field>: every value that begins with "<scope><separator>" }: the range is what the index is searched by; a
 * team id may hold anything, so the scope itself is asked for as well. */
static void append_scope_range(bson_t *filter, const char *field, const char *scope, char separator)
{
    char first[SLOT_ID_SIZE], end[SLOT_ID_SIZE];
    bson_t range;

    snprintf(first, sizeof(first), "%s%c", scope, separator);
    snprintf(end, sizeof(end), "%s%c", scope, separator + 1);
    BSON_APPEND_DOCUMENT_BEGIN(filter, field, &range);
    BSON_APPEND_UTF8(&range, "$gte", first);
    BSON_APPEND_UTF8(&range, "$lt", end);
    bson_append_document_end(filter, &range);
    BSON_APPEND_UTF8(filter, "scope", scope);
}

static bool read_slots(void *arg, const bson_t *doc)
{
    bson_iter_t iter;

    if (bson_iter_init_find(&iter, doc, "slots"))
        (void)sk_bson_int(&iter, 0, SLOTS_MAX, arg);
    return true;
}

/* How many slots of the scope were made. */
static int count_slots(struct sk_mongo_op *op, const char *scope, int64_t *slots, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    char id[SLOT_ID_SIZE];
    bool found;
    int result;

    *slots = 0;
    counter_id(id, scope);
    BSON_APPEND_UTF8(&filter, "_id", id);
    result = sk_mongo_find_one(op, SK_MONGO_QUOTA, &filter, NULL, read_slots, slots, &found, err);
    bson_destroy(&filter);
    return result;
}

/* ---- one slot ------------------------------------------------------------------------------- */

struct slot {
    char holder[SK_SANDBOX_ID_SIZE];
    int64_t number, at;
};

static bool decode_slot(const bson_t *doc, struct slot *slot)
{
    bson_iter_t iter;

    memset(slot, 0, sizeof(*slot));
    slot->number = -1;
    if (!bson_iter_init(&iter, doc))
        return false;
    while (bson_iter_next(&iter)) {
        const char *key = bson_iter_key(&iter);

        if (strcmp(key, "slot") == 0)
            (void)sk_bson_int(&iter, 0, SLOTS_MAX, &slot->number);
        else if (strcmp(key, "holder") == 0)
            (void)sk_bson_text(&iter, slot->holder, sizeof(slot->holder));
        else if (strcmp(key, "at") == 0)
            (void)sk_bson_date(&iter, &slot->at);
    }
    return slot->number >= 0 && slot->holder[0] != '\0';
}

static bool read_slot(void *arg, const bson_t *doc)
{
    (void)decode_slot(doc, arg);
    return true;
}

static int find_held(struct sk_mongo_op *op, const char *scope, const char *holder, struct slot *slot, bool *held,
                     struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    char key[HELD_SIZE];
    int result;

    memset(slot, 0, sizeof(*slot));
    held_key(key, scope, holder);
    BSON_APPEND_UTF8(&filter, "held", key);
    result = sk_mongo_find_one(op, SK_MONGO_QUOTA, &filter, NULL, read_slot, slot, held, err);
    bson_destroy(&filter);
    return result;
}

/* Changes a held slot if it is still the same reservation; *changed tells. */
static int change_held(struct sk_mongo_op *op, const char *scope, const struct slot *slot, const bson_t *update,
                       bool *changed, struct sk_error *err)
{
    struct sk_mongo_written written;
    char id[SLOT_ID_SIZE];
    bson_t *command;
    int result;

    slot_id(id, scope, slot->number);
    command = BCON_NEW("update", BCON_UTF8(op->store->names[SK_MONGO_QUOTA]), "updates", "[", "{", "q", "{", "_id",
                       BCON_UTF8(id), "holder", BCON_UTF8(slot->holder), "at", BCON_DATE_TIME(slot->at), "}", "u",
                       BCON_DOCUMENT(update), "}", "]");
    result = sk_mongo_write(op, command, &written, NULL, err);
    *changed = result == 0 && written.matched > 0;
    bson_destroy(command);
    return result;
}

static int free_slot(struct sk_mongo_op *op, const char *scope, const struct slot *slot, bool *freed,
                     struct sk_error *err)
{
    char id[SLOT_ID_SIZE];
    bson_t *update;
    int result;

    slot_id(id, scope, slot->number);
    update = BCON_NEW("$set", "{", "free", BCON_UTF8(id), "}", "$unset", "{", "holder", BCON_INT32(1), "held",
                      BCON_INT32(1), "}");
    op->idempotent = true;
    result = change_held(op, scope, slot, update, freed, err);
    op->idempotent = false;
    bson_destroy(update);
    return result;
}

/* ---- reserving ------------------------------------------------------------------------------ */

struct held_slots {
    int64_t *slots;
    int64_t count, capacity;
    bool failed;
};

static bool collect_slot(void *arg, const bson_t *doc)
{
    struct held_slots *held = arg;
    bson_iter_t iter;

    if (held->count == held->capacity) {
        int64_t capacity = held->capacity == 0 ? 64 : held->capacity * 2;
        int64_t *slots = realloc(held->slots, (size_t)capacity * sizeof(*slots));

        if (slots == NULL) {
            held->failed = true;
            return false;
        }
        held->slots = slots;
        held->capacity = capacity;
    }
    if (bson_iter_init_find(&iter, doc, "slot") && sk_bson_int(&iter, 0, SLOTS_MAX, &held->slots[held->count]))
        held->count++;
    return true;
}

static int by_number(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;

    return left < right ? -1 : left > right;
}

/* The limit was lowered (or a recount took slots beyond it): slots at or above it may be held. Then only numbers below
 * a smaller bound may be taken: the largest `bound` with bound + held(slot >= bound) <= limit. Held slots above a bound
 * only become fewer, so the sum holds also when others work with an older, smaller bound. */
static int lowered_bound(struct sk_mongo_op *op, const char *scope, int64_t limit, int64_t *bound, struct sk_error *err)
{
    struct held_slots held = {.slots = NULL};
    bson_t filter = BSON_INITIALIZER, *opts;
    int result;

    append_scope_range(&filter, "held", scope, '/');
    opts = BCON_NEW("projection", "{", "slot", BCON_INT32(1), "}");
    result = sk_mongo_find(op, SK_MONGO_QUOTA, &filter, opts, collect_slot, &held, err);
    if (result == 0 && held.failed)
        result = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    if (result == 0) {
        int64_t above = 0, next = held.count - 1;

        qsort(held.slots, (size_t)held.count, sizeof(*held.slots), by_number);
        for (*bound = limit; *bound > 0; --*bound) {
            while (next >= 0 && held.slots[next] >= *bound) {
                above++;
                next--;
            }
            if (*bound + above <= limit)
                break;
        }
    }
    free(held.slots);
    bson_destroy(opts);
    bson_destroy(&filter);
    return result;
}

enum taken { TAKEN_ERROR = -1, TAKEN_NONE, TAKEN_SLOT, TAKEN_RACE };

struct candidates {
    int64_t numbers[FIRST_WINDOW];
    int count;
};

static bool collect_candidate(void *arg, const bson_t *doc)
{
    struct candidates *candidates = arg;
    bson_iter_t iter;

    if (bson_iter_init_find(&iter, doc, "slot") &&
        sk_bson_int(&iter, 0, SLOTS_MAX, &candidates->numbers[candidates->count]))
        candidates->count++;
    return candidates->count < FIRST_WINDOW;
}

/* Free slots with a number in [from, to), by the index on `free`. */
static int find_free(struct sk_mongo_op *op, const char *scope, int64_t from, int64_t to, struct candidates *candidates,
                     struct sk_error *err)
{
    char first[SLOT_ID_SIZE], end[SLOT_ID_SIZE];
    bson_t *filter, *opts;
    int result;

    candidates->count = 0;
    slot_id(first, scope, from);
    slot_id(end, scope, to);
    filter = BCON_NEW("free", "{", "$gte", BCON_UTF8(first), "$lt", BCON_UTF8(end), "}", "scope", BCON_UTF8(scope));
    opts = BCON_NEW("projection", "{", "slot", BCON_INT32(1), "}", "limit", BCON_INT64(FIRST_WINDOW));
    result = sk_mongo_find(op, SK_MONGO_QUOTA, filter, opts, collect_candidate, candidates, err);
    bson_destroy(opts);
    bson_destroy(filter);
    return result;
}

/* Takes this slot if it is free. By _id: the embedded server searches a findAndModify by nothing else quickly. */
static enum taken take_slot(struct sk_mongo_op *op, const char *scope, const char *holder, int64_t number,
                            struct sk_error *err)
{
    char id[SLOT_ID_SIZE], key[HELD_SIZE];
    struct sk_mongo_written written;
    enum taken taken = TAKEN_ERROR;
    bson_t *command;

    slot_id(id, scope, number);
    held_key(key, scope, holder);
    command = BCON_NEW("update", BCON_UTF8(op->store->names[SK_MONGO_QUOTA]), "updates", "[", "{", "q", "{", "_id",
                       BCON_UTF8(id), "free", BCON_UTF8(id), "}", "u", "{", "$set", "{", "holder", BCON_UTF8(holder),
                       "held", BCON_UTF8(key), "at", BCON_DATE_TIME(sk_wall_ms(op->store->sched)), "}", "$unset", "{",
                       "free", BCON_INT32(1), "}", "}", "}", "]");
    /* A duplicate: somebody reserved for the same sandbox meanwhile. */
    if (sk_mongo_write(op, command, &written, NULL, err) == 0)
        taken = !written.duplicate && written.matched == 1 ? TAKEN_SLOT : TAKEN_RACE;
    bson_destroy(command);
    return taken;
}

/* Looks for a free slot below `bound` in windows of doubling width, so that neither many free slots nor none cost much,
 * and takes one at random, so that those who look at once seldom meet. */
static enum taken take_any_free(struct sk_mongo_op *op, const char *scope, const char *holder, int64_t bound,
                                struct sk_error *err)
{
    struct candidates candidates;
    int64_t width = FIRST_WINDOW;
    uint32_t chance;

    for (int64_t from = 0; from < bound; from += width, width *= 2) {
        if (find_free(op, scope, from, from + width < bound ? from + width : bound, &candidates, err) != 0)
            return TAKEN_ERROR;
        if (candidates.count > 0) {
            sk_random(op->store->sched, &chance, sizeof(chance));
            return take_slot(op, scope, holder, candidates.numbers[chance % (uint32_t)candidates.count], err);
        }
    }
    return TAKEN_NONE;
}

/* Makes slot number `slot`, held at once, and counts it. */
static enum taken make_slot(struct sk_mongo_op *op, const char *scope, const char *holder, int64_t slot,
                            struct sk_error *err)
{
    struct sk_mongo_written made, counted;
    bson_t *insert, *count;
    enum taken taken = TAKEN_ERROR;
    char id[SLOT_ID_SIZE], counter[SLOT_ID_SIZE], key[HELD_SIZE];

    slot_id(id, scope, slot);
    counter_id(counter, scope);
    held_key(key, scope, holder);
    insert = BCON_NEW("insert", BCON_UTF8(op->store->names[SK_MONGO_QUOTA]), "documents", "[", "{", "_id",
                      BCON_UTF8(id), "scope", BCON_UTF8(scope), "slot", BCON_INT64(slot), "holder", BCON_UTF8(holder),
                      "held", BCON_UTF8(key), "at", BCON_DATE_TIME(sk_wall_ms(op->store->sched)), "}", "]");
    count = BCON_NEW("update", BCON_UTF8(op->store->names[SK_MONGO_QUOTA]), "updates", "[", "{", "q", "{", "_id",
                     BCON_UTF8(counter), "}", "u", "{", "$set", "{", "counts", BCON_UTF8(scope), "}", "$max", "{",
                     "slots", BCON_INT64(slot + 1), "}", "}", "upsert", BCON_BOOL(true), "}", "]");
    if (sk_mongo_write(op, insert, &made, NULL, err) == 0) {
        /* A duplicate is either this number, made by somebody else, or this holder: in both cases look again. The count
         * is written either way: its writer may have died in between. A duplicate of the upsert came second. */
        if (sk_mongo_write(op, count, &counted, NULL, err) == 0)
            taken = made.duplicate ? TAKEN_RACE : TAKEN_SLOT;
    }
    bson_destroy(insert);
    bson_destroy(count);
    return taken;
}

static bool scope_valid(const char *scope)
{
    return scope[0] != '\0' && strlen(scope) < SCOPE_SIZE;
}

/* A reservation that is held already: it is dated again, so that a recount does not take a slot whose sandbox is about
 * to be claimed. *granted stays false when somebody freed it meanwhile. */
static int renew(struct sk_mongo_op *op, const char *scope, const struct slot *slot, bool *granted,
                 struct sk_error *err)
{
    int64_t now_ms = sk_wall_ms(op->store->sched);
    bson_t *update;
    int result;

    if (slot->at > now_ms - REFRESH_MS) {
        *granted = true;
        return 0;
    }
    update = BCON_NEW("$set", "{", "at", BCON_DATE_TIME(now_ms), "}");
    result = change_held(op, scope, slot, update, granted, err);
    bson_destroy(update);
    return result;
}

/* `limit` < 0: whatever the number (a recount books what is there). */
static int reserve(struct sk_mongo_op *op, const char *scope, int64_t limit, const char *holder, bool *granted,
                   struct sk_error *err)
{
    int64_t slots, bound;
    struct slot slot;
    enum taken taken;
    bool held;

    for (int attempt = 0; attempt < TRIES_MAX; attempt++) {
        if (op->call != NULL && sk_call_cancelled(op->call))
            return sk_fail(err, SK_ERR_CANCELLED, "the call was cancelled");
        if (find_held(op, scope, holder, &slot, &held, err) != 0)
            return -1;
        if (held) {
            if (renew(op, scope, &slot, granted, err) != 0)
                return -1;
            if (*granted)
                return 0;
            continue;
        }
        if (limit == 0)
            return 0;
        if (count_slots(op, scope, &slots, err) != 0)
            return -1;
        bound = limit < 0 ? SLOTS_MAX : limit;
        if (slots > bound && lowered_bound(op, scope, limit, &bound, err) != 0)
            return -1;
        taken = take_any_free(op, scope, holder, bound < slots ? bound : slots, err);
        if (taken == TAKEN_NONE) {
            if (slots >= bound)
                return 0; /* every slot below the bound is held */
            taken = make_slot(op, scope, holder, slots, err);
        }
        if (taken == TAKEN_ERROR)
            return -1;
        if (taken == TAKEN_SLOT) {
            *granted = true;
            return 0;
        }
    }
    return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "the quota is too busy");
}

int sk_mongo_quota_reserve(void *self, struct sk_call *call, const char *scope, int64_t limit, const char *sandbox_id,
                           bool *granted, struct sk_error *err)
{
    struct sk_mongo_op op;
    int result;

    *granted = false;
    if (!scope_valid(scope) || limit < 0 || limit > SLOTS_MAX)
        return sk_fail(err, SK_ERR_INTERNAL, "not a quota: scope \"%s\", limit %" PRId64, scope, limit);
    if (sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_QUOTA_CALL, &op, err) != 0)
        return -1;
    result = reserve(&op, scope, limit, sandbox_id, granted, err);
    sk_mongo_end(&op);
    return result;
}

int sk_mongo_quota_release(void *self, const char *scope, const char *sandbox_id, struct sk_error *err)
{
    struct sk_mongo_op op;
    struct slot slot;
    bool found, freed;
    int result;

    if (!scope_valid(scope))
        return sk_fail(err, SK_ERR_INTERNAL, "not a quota scope");
    if (sk_mongo_begin(sk_mongo_self(self), NULL, SK_MONGO_QUOTA_CALL, &op, err) != 0)
        return -1;
    result = find_held(&op, scope, sandbox_id, &slot, &found, err);
    if (result == 0 && found && slot.number >= 0)
        result = free_slot(&op, scope, &slot, &freed, err);
    sk_mongo_end(&op);
    return result;
}

/* ---- recount -------------------------------------------------------------------------------- */

/* What a recount of one scope compares, each sorted by sandbox id: who counts, and who holds a slot. */
struct recount {
    char (*records)[SK_SANDBOX_ID_SIZE];
    size_t record_count, record_capacity;
    struct slot *slots;
    size_t slot_count, slot_capacity;
    bool failed;
};

static void *grow(void *items, size_t count, size_t *capacity, size_t size, bool *failed)
{
    size_t wanted = *capacity == 0 ? 256 : *capacity * 2;
    void *more;

    if (count < *capacity)
        return items;
    more = realloc(items, wanted * size);
    if (more == NULL) {
        *failed = true;
        return items;
    }
    *capacity = wanted;
    return more;
}

static bool collect_record(void *arg, const bson_t *doc)
{
    struct recount *recount = arg;
    bson_iter_t iter;

    recount->records = grow(recount->records, recount->record_count, &recount->record_capacity,
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

    recount->slots =
        grow(recount->slots, recount->slot_count, &recount->slot_capacity, sizeof(*recount->slots), &recount->failed);
    if (recount->failed)
        return false;
    if (decode_slot(doc, &recount->slots[recount->slot_count]))
        recount->slot_count++;
    return true;
}

static int by_holder(const void *a, const void *b)
{
    const struct slot *left = a, *right = b;

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
    opts = BCON_NEW("batchSize", BCON_INT32(RECOUNT_BATCH));
    append_scope_range(&filter, "held", scope, '/');
    result = sk_mongo_find(op, SK_MONGO_QUOTA, &filter, opts, collect_held, recount, err);
    bson_destroy(opts);
    opts = BCON_NEW("projection", "{", "sandboxId", BCON_INT32(1), "_id", BCON_INT32(0), "}", "batchSize",
                    BCON_INT32(RECOUNT_BATCH));
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
        const struct slot *slot = &recount->slots[i];
        bool counts, freed;

        if (slot->at > before_ms ||
            (recount->record_count > 0 &&
             bsearch(slot->holder, recount->records, recount->record_count, SK_SANDBOX_ID_SIZE, by_text) != NULL))
            continue;
        if (still_counts(op, slot->holder, &counts, err) != 0)
            return -1;
        if (counts)
            continue;
        if (free_slot(op, scope, slot, &freed, err) != 0)
            return -1;
        *changed += freed;
    }
    return 0;
}

static int take_missing(struct sk_mongo_op *op, const char *scope, const struct recount *recount, int64_t *changed,
                        struct sk_error *err)
{
    for (size_t i = 0; i < recount->record_count; i++) {
        struct slot key;
        bool counts, granted = false;

        memcpy(key.holder, recount->records[i], sizeof(key.holder));
        if (recount->slot_count > 0 &&
            bsearch(&key, recount->slots, recount->slot_count, sizeof(key), by_holder) != NULL)
            continue;
        if (still_counts(op, recount->records[i], &counts, err) != 0)
            return -1;
        if (!counts)
            continue;
        if (reserve(op, scope, -1, recount->records[i], &granted, err) != 0)
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
        result = take_missing(op, scope, &recount, changed, err);
    free(recount.records);
    free(recount.slots);
    return result;
}

struct scopes {
    char (*names)[SCOPE_SIZE];
    size_t count, capacity;
    bool failed;
};

static bool collect_scope(void *arg, const bson_t *doc)
{
    struct scopes *scopes = arg;
    bson_iter_t iter;

    scopes->names = grow(scopes->names, scopes->count, &scopes->capacity, sizeof(*scopes->names), &scopes->failed);
    if (scopes->failed)
        return false;
    if (bson_iter_init_find(&iter, doc, "counts") && sk_bson_text(&iter, scopes->names[scopes->count], SCOPE_SIZE) &&
        scope_valid(scopes->names[scopes->count]))
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
    if (scope != NULL && !scope_valid(scope))
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
