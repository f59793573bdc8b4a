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
#include "common/store/quota.h"
#include "common/store/instance_bson.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELD_SIZE    (SK_QUOTA_SCOPE_SIZE + SK_SANDBOX_ID_SIZE + 1)
#define TRIES_MAX    256  /* lost races before a reservation gives up */
#define FIRST_WINDOW 64   /* free slots looked at by the first search */
#define REFRESH_MS   5000 /* a reservation found to be held already is dated again when it is older */

void sk_quota_slot_id(char out[SK_QUOTA_ID_SIZE], const char *scope, int64_t slot)
{
    snprintf(out, SK_QUOTA_ID_SIZE, "%s#%08" PRId64, scope, slot);
}

static void held_key(char out[HELD_SIZE], const char *scope, const char *holder)
{
    snprintf(out, HELD_SIZE, "%s/%s", scope, holder);
}

static void counter_id(char out[SK_QUOTA_ID_SIZE], const char *scope)
{
    snprintf(out, SK_QUOTA_ID_SIZE, "slots:%s", scope);
}

/* { scope, <field>: every value that begins with "<scope><separator>" }: the range is what the index is searched by; a
 * team id may hold anything, so the scope itself is asked for as well. */
void sk_quota_append_range(bson_t *filter, const char *field, const char *scope, char separator)
{
    char first[SK_QUOTA_ID_SIZE], end[SK_QUOTA_ID_SIZE];
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
        (void)sk_bson_int(&iter, 0, SK_QUOTA_SLOTS_MAX, arg);
    return true;
}

/* How many slots of the scope were made. */
int sk_quota_count_slots(struct sk_mongo_op *op, const char *scope, int64_t *slots, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    char id[SK_QUOTA_ID_SIZE];
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

bool sk_quota_decode_slot(const bson_t *doc, struct sk_quota_slot *slot)
{
    bson_iter_t iter;

    memset(slot, 0, sizeof(*slot));
    slot->number = -1;
    if (!bson_iter_init(&iter, doc))
        return false;
    while (bson_iter_next(&iter)) {
        const char *key = bson_iter_key(&iter);

        if (strcmp(key, "slot") == 0)
            (void)sk_bson_int(&iter, 0, SK_QUOTA_SLOTS_MAX, &slot->number);
        else if (strcmp(key, "holder") == 0)
            (void)sk_bson_text(&iter, slot->holder, sizeof(slot->holder));
        else if (strcmp(key, "at") == 0)
            (void)sk_bson_date(&iter, &slot->at);
    }
    return slot->number >= 0 && slot->holder[0] != '\0';
}

static bool read_slot(void *arg, const bson_t *doc)
{
    (void)sk_quota_decode_slot(doc, arg);
    return true;
}

static int find_held(struct sk_mongo_op *op, const char *scope, const char *holder, struct sk_quota_slot *slot,
                     bool *held, struct sk_error *err)
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
static int change_held(struct sk_mongo_op *op, const char *scope, const struct sk_quota_slot *slot,
                       const bson_t *update, bool *changed, struct sk_error *err)
{
    struct sk_mongo_written written;
    char id[SK_QUOTA_ID_SIZE];
    bson_t *command;
    int result;

    sk_quota_slot_id(id, scope, slot->number);
    command = BCON_NEW("update", BCON_UTF8(op->store->names[SK_MONGO_QUOTA]), "updates", "[", "{", "q", "{", "_id",
                       BCON_UTF8(id), "holder", BCON_UTF8(slot->holder), "at", BCON_DATE_TIME(slot->at), "}", "u",
                       BCON_DOCUMENT(update), "}", "]");
    result = sk_mongo_write(op, command, &written, NULL, err);
    *changed = result == 0 && written.matched > 0;
    bson_destroy(command);
    return result;
}

int sk_quota_free_slot(struct sk_mongo_op *op, const char *scope, const struct sk_quota_slot *slot, bool *freed,
                       struct sk_error *err)
{
    char id[SK_QUOTA_ID_SIZE];
    bson_t *update;
    int result;

    sk_quota_slot_id(id, scope, slot->number);
    update = BCON_NEW("$set", "{", "free", BCON_UTF8(id), "}", "$unset", "{", "holder", BCON_INT32(1), "held",
                      BCON_INT32(1), "}");
    op->idempotent = true;
    result = change_held(op, scope, slot, update, freed, err);
    op->idempotent = false;
    bson_destroy(update);
    return result;
}

/* ---- reserving ------------------------------------------------------------------------------ */

void *sk_quota_grow(void *items, size_t count, size_t *capacity, size_t size, bool *failed)
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

static bool collect_number(void *arg, const bson_t *doc)
{
    struct sk_quota_numbers *numbers = arg;
    bson_iter_t iter;

    numbers->list =
        sk_quota_grow(numbers->list, numbers->count, &numbers->capacity, sizeof(*numbers->list), &numbers->failed);
    if (numbers->failed)
        return false;
    if (bson_iter_init_find(&iter, doc, "slot") &&
        sk_bson_int(&iter, 0, SK_QUOTA_SLOTS_MAX, &numbers->list[numbers->count]))
        numbers->count++;
    return true;
}

static int by_number(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;

    return left < right ? -1 : left > right;
}

int sk_quota_read_numbers(struct sk_mongo_op *op, const bson_t *filter, struct sk_quota_numbers *out,
                          struct sk_error *err)
{
    bson_t *opts = BCON_NEW("projection", "{", "slot", BCON_INT32(1), "}", "batchSize", BCON_INT32(SK_QUOTA_BATCH));
    int result = sk_mongo_find(op, SK_MONGO_QUOTA, filter, opts, collect_number, out, err);

    bson_destroy(opts);
    if (result == 0 && out->failed)
        result = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    if (result == 0 && out->count > 0)
        qsort(out->list, out->count, sizeof(*out->list), by_number);
    return result;
}

/* The limit was lowered (or a recount took slots beyond it): slots at or above it may be held. Then only numbers below
 * a smaller bound may be taken: the largest `bound` with bound + held(slot >= bound) <= limit. Held slots above a bound
 * only become fewer, so the sum holds also when others work with an older, smaller bound. */
static int lowered_bound(struct sk_mongo_op *op, const char *scope, int64_t limit, int64_t *bound, struct sk_error *err)
{
    struct sk_quota_numbers held = {.list = NULL};
    bson_t filter = BSON_INITIALIZER;
    int result;

    sk_quota_append_range(&filter, "held", scope, '/');
    result = sk_quota_read_numbers(op, &filter, &held, err);
    if (result == 0) {
        size_t left = held.count; /* those below the bound */

        for (*bound = limit; *bound > 0; --*bound) {
            while (left > 0 && held.list[left - 1] >= *bound)
                left--;
            if (*bound + (int64_t)(held.count - left) <= limit)
                break;
        }
    }
    free(held.list);
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
        sk_bson_int(&iter, 0, SK_QUOTA_SLOTS_MAX, &candidates->numbers[candidates->count]))
        candidates->count++;
    return candidates->count < FIRST_WINDOW;
}

/* Free slots with a number in [from, to), by the index on `free`. */
static int find_free(struct sk_mongo_op *op, const char *scope, int64_t from, int64_t to, struct candidates *candidates,
                     struct sk_error *err)
{
    char first[SK_QUOTA_ID_SIZE], end[SK_QUOTA_ID_SIZE];
    bson_t *filter, *opts;
    int result;

    candidates->count = 0;
    sk_quota_slot_id(first, scope, from);
    sk_quota_slot_id(end, scope, to);
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
    char id[SK_QUOTA_ID_SIZE], key[HELD_SIZE];
    struct sk_mongo_written written;
    enum taken taken = TAKEN_ERROR;
    bson_t *command;

    sk_quota_slot_id(id, scope, number);
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

/* Is there a slot of this number, whoever holds it? */
static int slot_exists(struct sk_mongo_op *op, const char *id, bool *exists, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    int result;

    BSON_APPEND_UTF8(&filter, "_id", id);
    result = sk_mongo_find_one(op, SK_MONGO_QUOTA, &filter, NULL, NULL, NULL, exists, err);
    bson_destroy(&filter);
    return result;
}

/* Raises the number of slots that were made. A duplicate (two of the first slots counted at once) does not matter: the
 * next one to come finds its number taken and counts it again. */
static int count_slot(struct sk_mongo_op *op, const char *scope, int64_t slot, struct sk_error *err)
{
    struct sk_mongo_written written;
    char counter[SK_QUOTA_ID_SIZE];
    bson_t *command;
    int result;

    counter_id(counter, scope);
    command = BCON_NEW("update", BCON_UTF8(op->store->names[SK_MONGO_QUOTA]), "updates", "[", "{", "q", "{", "_id",
                       BCON_UTF8(counter), "}", "u", "{", "$set", "{", "counts", BCON_UTF8(scope), "}", "$max", "{",
                       "slots", BCON_INT64(slot + 1), "}", "}", "upsert", BCON_BOOL(true), "}", "]");
    result = sk_mongo_write(op, command, &written, NULL, err);
    bson_destroy(command);
    return result;
}

/* Makes slot number `slot`, held at once, and counts it. It is counted only when it is there: a number counted without
 * its slot would be lost to everybody. */
static enum taken make_slot(struct sk_mongo_op *op, const char *scope, const char *holder, int64_t slot,
                            struct sk_error *err)
{
    struct sk_mongo_written made;
    bson_t *insert;
    enum taken taken = TAKEN_ERROR;
    char id[SK_QUOTA_ID_SIZE], key[HELD_SIZE];
    bool exists = true;

    sk_quota_slot_id(id, scope, slot);
    held_key(key, scope, holder);
    insert = BCON_NEW("insert", BCON_UTF8(op->store->names[SK_MONGO_QUOTA]), "documents", "[", "{", "_id",
                      BCON_UTF8(id), "scope", BCON_UTF8(scope), "slot", BCON_INT64(slot), "holder", BCON_UTF8(holder),
                      "held", BCON_UTF8(key), "at", BCON_DATE_TIME(sk_wall_ms(op->store->sched)), "}", "]");
    if (sk_mongo_write(op, insert, &made, NULL, err) == 0) {
        /* A duplicate is either this number, made by somebody else who may have died before he counted it, or this
         * holder, for whom somebody else reserved at the same time. */
        if ((!made.duplicate || slot_exists(op, id, &exists, err) == 0) &&
            (!exists || count_slot(op, scope, slot, err) == 0))
            taken = made.duplicate ? TAKEN_RACE : TAKEN_SLOT;
    }
    bson_destroy(insert);
    return taken;
}

bool sk_quota_scope_valid(const char *scope)
{
    return scope[0] != '\0' && strlen(scope) < SK_QUOTA_SCOPE_SIZE;
}

/* A reservation that is held already: it is dated again, so that a recount does not take a slot whose sandbox is about
 * to be claimed. *granted stays false when somebody freed it meanwhile. */
static int renew(struct sk_mongo_op *op, const char *scope, const struct sk_quota_slot *slot, bool *granted,
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
int sk_quota_take(struct sk_mongo_op *op, const char *scope, int64_t limit, const char *holder, bool *granted,
                  struct sk_error *err)
{
    int64_t slots, bound;
    struct sk_quota_slot slot;
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
        if (sk_quota_count_slots(op, scope, &slots, err) != 0)
            return -1;
        bound = limit < 0 ? SK_QUOTA_SLOTS_MAX : limit;
        if (slots > bound && lowered_bound(op, scope, limit, &bound, err) != 0)
            return -1;
        taken = take_any_free(op, scope, holder, bound < slots ? bound : slots, err);
        if (taken == TAKEN_NONE) {
            if (slots >= bound) {
                /* Every slot below the bound is held, perhaps by now for this very sandbox. */
                if (find_held(op, scope, holder, &slot, granted, err) != 0)
                    return -1;
                return 0;
            }
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
    if (!sk_quota_scope_valid(scope) || limit < 0 || limit > SK_QUOTA_SLOTS_MAX)
        return sk_fail(err, SK_ERR_INTERNAL, "not a quota: scope \"%s\", limit %" PRId64, scope, limit);
    if (sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_QUOTA_CALL, &op, err) != 0)
        return -1;
    result = sk_quota_take(&op, scope, limit, sandbox_id, granted, err);
    sk_mongo_end(&op);
    return result;
}

int sk_mongo_quota_release(void *self, const char *scope, const char *sandbox_id, struct sk_error *err)
{
    struct sk_mongo_op op;
    struct sk_quota_slot slot;
    bool found, freed;
    int result;

    if (!sk_quota_scope_valid(scope))
        return sk_fail(err, SK_ERR_INTERNAL, "not a quota scope");
    if (sk_mongo_begin(sk_mongo_self(self), NULL, SK_MONGO_QUOTA_CALL, &op, err) != 0)
        return -1;
    result = find_held(&op, scope, sandbox_id, &slot, &found, err);
    if (result == 0 && found && slot.number >= 0)
        result = sk_quota_free_slot(&op, scope, &slot, &freed, err);
    sk_mongo_end(&op);
    return result;
}
