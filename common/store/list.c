/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of records: filters, four orders, keyset pagination. Three plans:
 *   windows   the order's own index (with the team, source, user or status in front where one is asked for) is walked
 * in windows, everything else is compared on the way; sets      the filter names a set that is small or has no index in
 * this order (a team by creation, operations in progress): the set is read by its index and the server sorts it; ids
 * the same as windows, over sandbox ids. A page that takes longer than its budget ends early, with a cursor: it may
 * hold fewer records than asked for, or none. Positions are values of the sorted field plus _id, so a page never
 * repeats or skips a record that did not move. */
#include "common/store/instance_bson.h"
#include "common/store/window.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_MAX   500
#define CURSOR_SIZE 256
#define TIES_FIRST  64 /* records of one moment that a set's page allows for at first */

/* Where the next page begins. */
struct position {
    int64_t time;                /* by time */
    char oid[25];                /* the last record at `time`; "" = begin at `time` itself */
    char id[SK_SANDBOX_ID_SIZE]; /* by sandbox id */
    bool inclusive;
    int64_t width;
};

struct page {
    struct sk_mongo_op *op;
    const struct sk_list_filter *filter;
    enum sk_list_sort sort;
    bool descending;
    const char *field;
    sk_scan_fn fn;
    void *arg;
    int limit, delivered;
    bool more; /* a record beyond the page was seen, or the callback stopped */
    bool stopped;
    struct position position; /* of the last record delivered */
    struct sk_instance instance;
};

static unsigned transitional_statuses(void)
{
    unsigned mask = 0;

    for (int status = SK_STATUS_NONE + 1; status < SK_STATUS_COUNT; status++) {
        if (!sk_status_info((enum sk_status)status)->stable)
            mask |= 1u << status;
    }
    return mask;
}

static unsigned all_statuses(void)
{
    return (1u << SK_STATUS_COUNT) - 2;
}

/* ---- cursors -------------------------------------------------------------------------------- */

/* A cursor belongs to its filter and order: with another it would make no sense. */
static uint64_t query_hash(const struct sk_list_filter *filter, enum sk_list_sort sort)
{
    char text[2048], hex[65];
    int length = snprintf(text, sizeof(text), "%d|%u|%d|%s|%s|%s|%s|%d|%" PRId64, (int)sort, filter->statuses,
                          (int)filter->source_type, filter->source_id, filter->user_id, filter->team_id,
                          filter->provider, filter->blocked, filter->older_than);

    sk_sha256_hex(text, length < (int)sizeof(text) ? (size_t)length : sizeof(text) - 1, hex);
    hex[16] = '\0';
    return strtoull(hex, NULL, 16);
}

static char *cursor_make(const struct page *page)
{
    const struct position *p = &page->position;
    char *text = malloc(CURSOR_SIZE);

    if (text != NULL && page->sort == SK_LIST_BY_SANDBOX_ID)
        snprintf(text, CURSOR_SIZE, "i1.%016" PRIx64 ".%" PRIx64 ".%c%s", query_hash(page->filter, page->sort),
                 (uint64_t)p->width, p->inclusive ? '+' : '-', p->id);
    else if (text != NULL)
        snprintf(text, CURSOR_SIZE, "t1.%016" PRIx64 ".%" PRIx64 ".%" PRId64 ".%s",
                 query_hash(page->filter, page->sort), (uint64_t)p->width, p->time, p->oid);
    return text;
}

/* One number of a cursor, up to a dot. */
static bool take_number(const char **text, int base, uint64_t *value)
{
    char *end;

    if (**text == '\0' || **text == '-' || **text == '+' || **text == ' ')
        return false;
    *value = strtoull(*text, &end, base);
    if (*end != '.' || end == *text)
        return false;
    *text = end + 1;
    return true;
}

static bool cursor_read(const char *text, const struct sk_list_filter *filter, enum sk_list_sort sort,
                        struct position *out)
{
    bool by_id = sort == SK_LIST_BY_SANDBOX_ID;
    uint64_t hash, width, time;

    memset(out, 0, sizeof(*out));
    if (strlen(text) >= CURSOR_SIZE || strncmp(text, by_id ? "i1." : "t1.", 3) != 0)
        return false;
    text += 3;
    if (!take_number(&text, 16, &hash) || hash != query_hash(filter, sort) || !take_number(&text, 16, &width) ||
        width > INT64_MAX)
        return false;
    out->width = (int64_t)width;
    if (by_id) {
        out->inclusive = *text == '+';
        return (*text == '+' || *text == '-') && sk_utf8_length(text + 1, strlen(text + 1)) >= 0 &&
               sk_copy(out->id, sizeof(out->id), text + 1);
    }
    if (!take_number(&text, 10, &time) || time > SK_WINDOW_TIME_MAX)
        return false;
    out->time = (int64_t)time;
    return (*text == '\0' || bson_oid_is_valid(text, strlen(text))) && sk_copy(out->oid, sizeof(out->oid), text);
}

/* ---- records of a page ---------------------------------------------------------------------- */

static int64_t sorted_time(const struct page *page, const struct sk_instance *instance)
{
    return page->sort == SK_LIST_BY_CREATED_DESC ? instance->created_at : instance->last_active_at;
}

/* Where a list by sandbox id goes on after this record. Ids that nobody of ours would write may hold a NUL or be longer
 * than any: the position then lies just behind everything that begins like them. */
static void note_id(struct page *page, const bson_t *doc)
{
    char *id = page->position.id;
    size_t length, end;
    bson_iter_t iter;

    page->position.inclusive = false;
    if (!bson_iter_init_find(&iter, doc, "sandboxId") || sk_bson_text(&iter, id, sizeof(page->position.id)))
        return;
    if (!BSON_ITER_HOLDS_UTF8(&iter))
        return;
    length = strlen(id);
    if (bson_iter_utf8(&iter, NULL)[length] == '\0' && length + 2 <= sizeof(page->position.id)) {
        memcpy(id + length, "\x01", 2);
        return;
    }
    /* Cut at a code point. */
    for (end = 0; end + SK_ID_END_SIZE < sizeof(page->position.id);) {
        size_t step = sk_utf8_sequence(id + end, length - end);

        if (step == 0 || end + step + SK_ID_END_SIZE >= sizeof(page->position.id))
            break;
        end += step;
    }
    memcpy(id + end, SK_ID_END, SK_ID_END_SIZE);
}

/* Hands out one record, or notes that there is one more than the page holds. */
static bool give(void *arg, const bson_t *doc)
{
    struct page *page = arg;

    if (page->delivered == page->limit) {
        page->more = true;
        return false;
    }
    sk_instance_decode(doc, &page->instance);
    page->position.time = sorted_time(page, &page->instance);
    memcpy(page->position.oid, page->instance.oid, sizeof(page->position.oid));
    note_id(page, doc);
    page->delivered++;
    if (!page->fn(page->arg, &page->instance, NULL, 0)) {
        page->more = page->stopped = true;
        return false;
    }
    return true;
}

/* Everything of the filter that the plan's index does not answer. */
static void append_rest(bson_t *rest, const struct page *page, const char *indexed, unsigned statuses)
{
    const struct sk_list_filter *filter = page->filter;
    bson_t not, other;

    if (filter->source_type != SK_SOURCE_NONE)
        sk_window_hidden_text(rest, "sourceType", sk_source_type_name(filter->source_type));
    if (filter->source_id[0] != '\0' && strcmp(indexed, "sourceId") != 0)
        sk_window_hidden_text(rest, "sourceId", filter->source_id);
    if (filter->user_id[0] != '\0' && strcmp(indexed, "userId") != 0)
        sk_window_hidden_text(rest, "userId", filter->user_id);
    if (filter->team_id[0] != '\0' && strcmp(indexed, "teamId") != 0)
        sk_window_hidden_text(rest, "teamId", filter->team_id);
    if (filter->provider[0] != '\0')
        sk_window_hidden_text(rest, "provider", filter->provider);
    if (statuses != 0 && statuses != all_statuses() && strcmp(indexed, "status") != 0)
        sk_window_hidden_statuses(rest, statuses);
    if (filter->blocked == 1) {
        BSON_APPEND_DOCUMENT_BEGIN(rest, "operation.blocked", &other);
        BSON_APPEND_UTF8(&other, "$gt", "");
        bson_append_document_end(rest, &other);
    } else if (filter->blocked == 2) {
        BSON_APPEND_DOCUMENT_BEGIN(rest, "operation.blocked", &not );
        BSON_APPEND_DOCUMENT_BEGIN(&not, "$not", &other);
        BSON_APPEND_UTF8(&other, "$gt", "");
        bson_append_document_end(&not, &other);
        bson_append_document_end(rest, &not );
    }
    if (filter->older_than != 0 && strcmp(page->field, "lastActiveAt") != 0)
        sk_window_hidden_date(rest, "lastActiveAt", "$gte", filter->older_than);
}

/* The field that narrows most, among those with an index of their own; NULL when none is asked for. */
static const char *narrowest(const struct sk_list_filter *filter, const char **value)
{
    if (filter->source_id[0] != '\0') {
        *value = filter->source_id;
        return "sourceId";
    }
    if (filter->user_id[0] != '\0') {
        *value = filter->user_id;
        return "userId";
    }
    if (filter->team_id[0] != '\0') {
        *value = filter->team_id;
        return "teamId";
    }
    return NULL;
}

/* ---- plan: windows over a time -------------------------------------------------------------- */

/* Records at the very moment where the last page ended, beyond its last record. */
static int give_ties(struct page *page, const struct sk_time_walk *walk, const char *indexed, const char *value,
                     const struct position *from, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    int result;

    if (indexed != NULL)
        sk_window_hidden_text(&filter, indexed, value);
    bson_concat(&filter, walk->filter);
    result = sk_walk_ties(page->op, walk, &filter, from->time, from->oid, err);
    bson_destroy(&filter);
    return result;
}

static int list_windows(struct page *page, const struct position *from, const char *indexed, const char *value,
                        unsigned statuses, struct sk_error *err)
{
    struct sk_mongo_hints *hints = &page->op->store->hints;
    struct sk_time_walk walk = {.field = page->field,
                                .descending = page->descending,
                                .fn = give,
                                .arg = page,
                                .want = page->limit + 1,
                                .budget_us = page->op->store->list_budget_us};
    int64_t low = SK_WINDOW_TIME_MIN, high = SK_WINDOW_TIME_MAX;
    bson_t leading = BSON_INITIALIZER, rest = BSON_INITIALIZER;
    bool plain;
    int result = 0;

    if (indexed != NULL)
        BSON_APPEND_UTF8(&leading, indexed, value);
    append_rest(&rest, page, indexed != NULL ? indexed : "", statuses);
    plain = indexed == NULL && bson_empty(&rest);
    if (page->filter->older_than != 0 && strcmp(page->field, "lastActiveAt") == 0)
        high = page->filter->older_than - 1;
    walk.leading = &leading;
    walk.filter = &rest;
    walk.width = plain ? atomic_load(&hints->width[page->sort]) : 0;
    walk.from = page->descending ? high : low;
    walk.end = page->descending ? low : high;
    if (from != NULL) {
        walk.width = from->width;
        walk.from = from->time;
        if (from->oid[0] != '\0') {
            result = give_ties(page, &walk, indexed, value, from, err);
            walk.from += page->descending ? -1 : 1;
        }
    }
    if (result == 0 && !page->more) {
        walk.want = page->limit + 1 - page->delivered;
        result = from == NULL && !page->descending
                     ? sk_walk_from_oldest(page->op, &walk, &hints->oldest_active, plain, err)
                     : sk_walk_time(page->op, &walk, err);
        if (result == 0 && walk.out_of_time) {
            page->more = true;
            page->position.time = walk.next;
            page->position.oid[0] = '\0';
        }
    }
    page->position.width = walk.width;
    if (result == 0 && plain && page->delivered == page->limit)
        atomic_store(&hints->width[page->sort], walk.width);
    bson_destroy(&leading);
    bson_destroy(&rest);
    return result;
}

/* ---- plan: sets ----------------------------------------------------------------------------- */

struct gathered {
    const struct page *page;
    const struct position *from;
    bson_t **docs;
    int count, capacity, raw;
    bool failed;
};

static bool after_position(const struct gathered *gathered, const bson_t *doc)
{
    const struct position *from = gathered->from;
    struct sk_instance *instance = &((struct page *)(uintptr_t)gathered->page)->instance;
    int64_t time;
    int order;

    if (from == NULL)
        return true;
    sk_instance_decode(doc, instance);
    if (gathered->page->sort == SK_LIST_BY_SANDBOX_ID)
        return strcmp(instance->sandbox_id, from->id) > 0;
    time = sorted_time(gathered->page, instance);
    if (time != from->time)
        return gathered->page->descending ? time < from->time : time > from->time;
    order = strcmp(instance->oid, from->oid);
    return from->oid[0] == '\0' || (gathered->page->descending ? order < 0 : order > 0);
}

static bool gather(void *arg, const bson_t *doc)
{
    struct gathered *gathered = arg;

    gathered->raw++;
    if (!after_position(gathered, doc))
        return true;
    if (gathered->count == gathered->capacity) {
        int capacity = gathered->capacity == 0 ? 64 : gathered->capacity * 2;
        bson_t **docs = realloc(gathered->docs, (size_t)capacity * sizeof(*docs));

        if (docs == NULL) {
            gathered->failed = true;
            return false;
        }
        gathered->docs = docs;
        gathered->capacity = capacity;
    }
    gathered->docs[gathered->count++] = bson_copy(doc);
    return true;
}

/* Reads the first records of one set beyond the position. Ties at the position are read and skipped, so the number to
 * ask for is not known: it is doubled until enough is left. */
static int gather_set(struct gathered *gathered, const bson_t *filter, struct sk_error *err)
{
    const struct page *page = gathered->page;
    int first = gathered->count;

    for (int64_t ask = page->limit + 1 + TIES_FIRST;; ask *= 2) {
        bson_t opts = BSON_INITIALIZER, sort;
        int result;

        gathered->raw = 0;
        BSON_APPEND_DOCUMENT_BEGIN(&opts, "sort", &sort);
        BSON_APPEND_INT32(&sort, page->field, page->descending ? -1 : 1);
        BSON_APPEND_INT32(&sort, "_id", page->descending ? -1 : 1);
        bson_append_document_end(&opts, &sort);
        BSON_APPEND_INT64(&opts, "limit", ask);
        result = sk_mongo_find(page->op, SK_MONGO_INSTANCES, filter, &opts, gather, gathered, err);
        bson_destroy(&opts);
        if (result == 0 && gathered->failed)
            result = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        if (result != 0 || gathered->raw < ask || gathered->count - first > page->limit)
            return result;
        while (gathered->count > first)
            bson_destroy(gathered->docs[--gathered->count]);
    }
}

static bson_iter_t field_of(const bson_t *doc, const char *field)
{
    bson_iter_t iter;

    if (!bson_iter_init_find(&iter, doc, field))
        memset(&iter, 0, sizeof(iter));
    return iter;
}

/* Ascending by the sorted field, then _id, both known to qsort by two comparison functions: it takes no argument. */
static int by_position(const bson_t *a, const bson_t *b, const char *field)
{
    bson_iter_t left = field_of(a, field), right = field_of(b, field);
    char left_text[SK_SANDBOX_ID_SIZE], right_text[SK_SANDBOX_ID_SIZE];
    int64_t left_time = 0, right_time = 0;
    int order;

    if (strcmp(field, "sandboxId") == 0) {
        if (left.raw == NULL || !sk_bson_text(&left, left_text, sizeof(left_text)))
            left_text[0] = '\0';
        if (right.raw == NULL || !sk_bson_text(&right, right_text, sizeof(right_text)))
            right_text[0] = '\0';
        order = strcmp(left_text, right_text);
    } else {
        if (left.raw != NULL)
            (void)sk_bson_date(&left, &left_time);
        if (right.raw != NULL)
            (void)sk_bson_date(&right, &right_time);
        order = left_time < right_time ? -1 : left_time > right_time;
    }
    if (order != 0)
        return order;
    left = field_of(a, "_id");
    right = field_of(b, "_id");
    if (left.raw == NULL || right.raw == NULL || !BSON_ITER_HOLDS_OID(&left) || !BSON_ITER_HOLDS_OID(&right))
        return 0;
    return bson_oid_compare(bson_iter_oid(&left), bson_iter_oid(&right));
}

static int compare_docs(const void *a, const void *b, void *arg)
{
    const struct page *page = arg;
    int order = by_position(*(bson_t *const *)a, *(bson_t *const *)b, page->field);

    return page->descending ? -order : order;
}

/* The range of lastActiveAt that a set's page can come from: the index on (status, lastActiveAt) answers it. */
static void append_active_range(bson_t *filter, const struct page *page, const struct position *from)
{
    int64_t low = SK_WINDOW_TIME_MIN, high = SK_WINDOW_TIME_MAX;
    bson_t range;

    if (page->filter->older_than != 0)
        high = page->filter->older_than - 1;
    if (from != NULL && page->descending && from->time < high)
        high = from->time;
    if (from != NULL && !page->descending)
        low = from->time;
    BSON_APPEND_DOCUMENT_BEGIN(filter, "lastActiveAt", &range);
    BSON_APPEND_DATE_TIME(&range, "$gte", low);
    BSON_APPEND_DATE_TIME(&range, "$lt", high + 1);
    bson_append_document_end(filter, &range);
}

/* `indexed` NULL: one set per status of the mask. */
static int list_sets(struct page *page, const struct position *from, const char *indexed, const char *value,
                     unsigned statuses, struct sk_error *err)
{
    struct gathered gathered = {.page = page, .from = from};
    bson_t filter = BSON_INITIALIZER;
    int result = 0;

    for (int status = SK_STATUS_NONE + 1; status < SK_STATUS_COUNT && result == 0; status++) {
        if (indexed == NULL && (statuses & 1u << status) == 0)
            continue;
        bson_reinit(&filter);
        if (indexed != NULL)
            BSON_APPEND_UTF8(&filter, indexed, value);
        else
            BSON_APPEND_UTF8(&filter, "status", sk_status_name((enum sk_status)status));
        append_rest(&filter, page, indexed != NULL ? indexed : "status", statuses);
        if (strcmp(page->field, "lastActiveAt") == 0)
            append_active_range(&filter, page, from);
        else if (from != NULL && page->sort == SK_LIST_BY_CREATED_DESC)
            sk_window_hidden_date(&filter, page->field, "$gt", from->time);
        result = gather_set(&gathered, &filter, err);
        if (indexed != NULL)
            break;
    }
    if (result == 0 && gathered.count > 0) {
        qsort_r(gathered.docs, (size_t)gathered.count, sizeof(*gathered.docs), compare_docs, page);
        for (int i = 0; i < gathered.count && give(page, gathered.docs[i]); i++)
            ;
    }
    for (int i = 0; i < gathered.count; i++)
        bson_destroy(gathered.docs[i]);
    free(gathered.docs);
    bson_destroy(&filter);
    return result;
}

/* ---- plan: ids ------------------------------------------------------------------------------ */

static int list_ids(struct page *page, const struct position *from, unsigned statuses, struct sk_error *err)
{
    struct sk_mongo_hints *hints = &page->op->store->hints;
    struct sk_id_walk walk = {.fn = give,
                              .arg = page,
                              .budget_us = page->op->store->list_budget_us,
                              .want = page->limit + 1,
                              .inclusive = true};
    bson_t rest = BSON_INITIALIZER;
    bool plain;
    int result;

    append_rest(&rest, page, "", statuses);
    plain = bson_empty(&rest);
    walk.filter = &rest;
    walk.width = plain ? atomic_load(&hints->width[page->sort]) : 0;
    if (from != NULL) {
        memcpy(walk.after, from->id, sizeof(walk.after));
        walk.inclusive = from->inclusive;
        walk.width = from->width;
    }
    result = sk_walk_ids(page->op, &walk, err);
    if (result == 0 && walk.out_of_time) {
        page->more = true;
        memcpy(page->position.id, walk.next, sizeof(page->position.id));
        page->position.inclusive = true;
    }
    page->position.width = walk.width;
    if (result == 0 && plain && page->delivered == page->limit)
        atomic_store(&hints->width[page->sort], walk.width);
    bson_destroy(&rest);
    return result;
}

/* ---- the operation of the store ------------------------------------------------------------- */

static int run_plan(struct page *page, const struct position *from, struct sk_error *err)
{
    unsigned statuses = page->filter->statuses & all_statuses();
    const char *value = NULL, *indexed;
    int single = -1;

    /* Only operations can be blocked, and only transitional records have one. */
    if (page->filter->blocked == 1)
        statuses = (statuses != 0 ? statuses : all_statuses()) & transitional_statuses();
    if ((page->filter->statuses != 0 || page->filter->blocked == 1) && statuses == 0)
        return 0;
    if (statuses != 0 && (statuses & ~transitional_statuses()) == 0)
        return list_sets(page, from, NULL, NULL, statuses, err);
    indexed = narrowest(page->filter, &value);
    if (page->sort == SK_LIST_BY_SANDBOX_ID)
        return indexed != NULL ? list_sets(page, from, indexed, value, statuses, err)
                               : list_ids(page, from, statuses, err);
    if (page->sort == SK_LIST_BY_CREATED_DESC)
        return indexed != NULL ? list_sets(page, from, indexed, value, statuses, err)
                               : list_windows(page, from, NULL, NULL, statuses, err);
    if (indexed == NULL && statuses != 0 && (statuses & (statuses - 1)) == 0) {
        for (single = SK_STATUS_NONE + 1; (statuses & 1u << single) == 0;)
            single++;
        indexed = "status";
        value = sk_status_name((enum sk_status)single);
    }
    return list_windows(page, from, indexed, value, statuses, err);
}

int sk_mongo_list(void *self, struct sk_call *call, const struct sk_list_filter *filter, enum sk_list_sort sort,
                  const char *cursor, int limit, sk_scan_fn fn, void *arg, char **next, struct sk_error *err)
{
    struct page page = {.filter = filter, .sort = sort, .fn = fn, .arg = arg, .limit = limit};
    struct position from;
    struct sk_mongo_op op;
    int result;

    *next = NULL;
    if (limit <= 0 || limit > LIMIT_MAX)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "a page holds 1 to %d records", LIMIT_MAX);
    if (cursor != NULL && !cursor_read(cursor, filter, sort, &from))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the cursor does not belong to this list");
    page.descending = sort == SK_LIST_BY_LAST_ACTIVE_DESC || sort == SK_LIST_BY_CREATED_DESC;
    page.field = sort == SK_LIST_BY_SANDBOX_ID     ? "sandboxId"
                 : sort == SK_LIST_BY_CREATED_DESC ? "createdAt"
                                                   : "lastActiveAt";
    if (cursor != NULL)
        page.position = from;
    if (sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_LIST, &op, err) != 0)
        return -1;
    page.op = &op;
    result = run_plan(&page, cursor != NULL ? &from : NULL, err);
    sk_mongo_end(&op);
    if (result == 0 && page.more) {
        *next = cursor_make(&page);
        if (*next == NULL)
            return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    }
    return result;
}
