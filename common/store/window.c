/* SPDX-License-Identifier: Apache-2.0
 *
 * The window walkers of window.h. */
#include "common/store/window.h"
#include "common/store/instance_bson.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Too narrow costs a few empty windows (below 1 ms each), too wide the sorting of everything that is in it: at 20,000
 * records an hour a first window of one hour took 750 ms. */
#define TIME_WIDTH_FIRST 15000LL
#define TIME_WIDTH_MIN   1LL
#define TIME_WIDTH_MAX   (400LL * 365 * 86400000) /* more than any clock */
#define ID_WIDTH_FIRST   (INT64_C(1) << 52)       /* of 2^64: 16 ids of 65,536 */
#define ID_WIDTH_MIN     (INT64_C(1) << 20)
#define ID_WIDTH_MAX     (INT64_C(1) << 62)
#define GROWTH_MAX       8
#define LAYOUT_START     1577836800000LL /* 2020: nothing of FastGPT's is older */

void sk_window_hidden_text(bson_t *filter, const char *field, const char *value)
{
    bson_t not, other;

    BSON_APPEND_DOCUMENT_BEGIN(filter, field, &not );
    BSON_APPEND_DOCUMENT_BEGIN(&not, "$not", &other);
    BSON_APPEND_UTF8(&other, "$ne", value);
    bson_append_document_end(&not, &other);
    bson_append_document_end(filter, &not );
}

void sk_window_hidden_statuses(bson_t *filter, unsigned statuses)
{
    bson_t not, other, list;
    char index[16];
    const char *position;
    uint32_t count = 0;

    BSON_APPEND_DOCUMENT_BEGIN(filter, "status", &not );
    BSON_APPEND_DOCUMENT_BEGIN(&not, "$not", &other);
    BSON_APPEND_ARRAY_BEGIN(&other, "$nin", &list);
    for (int status = SK_STATUS_NONE + 1; status < SK_STATUS_COUNT; status++) {
        if ((statuses & 1u << status) == 0)
            continue;
        bson_uint32_to_string(count++, &position, index, sizeof(index));
        BSON_APPEND_UTF8(&list, position, sk_status_name((enum sk_status)status));
    }
    bson_append_array_end(&other, &list);
    bson_append_document_end(&not, &other);
    bson_append_document_end(filter, &not );
}

void sk_window_hidden_date(bson_t *filter, const char *field, const char *refused, int64_t value)
{
    bson_t not, other;

    BSON_APPEND_DOCUMENT_BEGIN(filter, field, &not );
    BSON_APPEND_DOCUMENT_BEGIN(&not, "$not", &other);
    BSON_APPEND_DATE_TIME(&other, refused, value);
    bson_append_document_end(&not, &other);
    bson_append_document_end(filter, &not );
}

/* The next width after a window that held `found` of the `want` documents that were still missing. */
static int64_t adapt(int64_t width, int found, int want, int64_t min, int64_t max)
{
    int64_t factor;

    if (found >= want)
        return width; /* full: how full is not known */
    factor = found == 0 ? GROWTH_MAX : (int64_t)want * 3 / 2 / found + 1;
    if (factor > GROWTH_MAX)
        factor = GROWTH_MAX;
    if (width > max / factor)
        return max;
    width *= factor;
    return width < min ? min : width;
}

/* The number that the hexadecimal digits at the start of a text stand for, as 16 digits. */
static uint64_t leading_hex(const char *text)
{
    uint64_t value = 0;

    for (int i = 0; i < 16; i++) {
        unsigned digit = 0;

        if (*text >= '0' && *text <= '9')
            digit = (unsigned)(*text++ - '0');
        else if (*text >= 'a' && *text <= 'f')
            digit = (unsigned)(*text++ - 'a') + 10;
        value = value << 4 | digit;
    }
    return value;
}

struct window {
    sk_mongo_doc_fn fn;
    void *arg;
    const char *field;
    int found;
    bool stopped;
    int positions; /* documents that had a position: over all windows of a walk */
    uint64_t first, last;
};

/* Where a document stands on the walked axis; false for texts that are no sandbox ids. */
static bool position_of(const bson_t *doc, const char *field, uint64_t *position)
{
    char text[SK_SANDBOX_ID_SIZE];
    bson_iter_t iter;
    int64_t value;

    if (!bson_iter_init_find(&iter, doc, field))
        return false;
    if (sk_bson_date(&iter, &value)) {
        *position = (uint64_t)value;
        return true;
    }
    if (!sk_bson_text(&iter, text, sizeof(text)) || !sk_sandbox_id_valid(text))
        return false;
    *position = leading_hex(strrchr(text, '-') + 1);
    return true;
}

static bool deliver(void *arg, const bson_t *doc)
{
    struct window *window = arg;
    uint64_t position;

    window->found++;
    if (position_of(doc, window->field, &position)) {
        if (window->positions++ == 0)
            window->first = position;
        window->last = position;
    }
    window->stopped = !window->fn(window->arg, doc);
    return !window->stopped;
}

/* One window. `range` is the condition on the walked field. */
static int read_window(struct sk_mongo_op *op, const bson_t *leading, const bson_t *rest, const char *field,
                       const bson_t *range, bool descending, int want, struct window *window, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER, opts = BSON_INITIALIZER, sort;
    int result;

    if (leading != NULL)
        bson_concat(&filter, leading);
    BSON_APPEND_DOCUMENT(&filter, field, range);
    bson_concat(&filter, rest);
    BSON_APPEND_DOCUMENT_BEGIN(&opts, "sort", &sort);
    BSON_APPEND_INT32(&sort, field, descending ? -1 : 1);
    BSON_APPEND_INT32(&sort, "_id", descending ? -1 : 1);
    bson_append_document_end(&opts, &sort);
    BSON_APPEND_INT64(&opts, "limit", want);
    window->found = 0;
    result = sk_mongo_find(op, SK_MONGO_INSTANCES, &filter, &opts, deliver, window, err);
    bson_destroy(&opts);
    bson_destroy(&filter);
    return result;
}

/* What the page spanned, with a margin: the width that a next page like it should begin with. */
static int64_t span_of(const struct window *window, int64_t fallback, int64_t min, int64_t max)
{
    uint64_t span = window->last > window->first ? window->last - window->first : window->first - window->last;

    if (window->positions < 2)
        return fallback;
    if (span > (uint64_t)max / 2)
        return max;
    span += span / 4 + 1;
    return (int64_t)span < min ? min : (int64_t)span;
}

int sk_walk_time(struct sk_mongo_op *op, struct sk_time_walk *walk, struct sk_error *err)
{
    int64_t started_us = sk_mono_us(op->store->sched), now_ms = sk_wall_ms(op->store->sched);
    int64_t width = walk->width, at = walk->from, low, high;
    struct window window = {.fn = walk->fn, .arg = walk->arg, .field = walk->field};
    int windows = 0;

    if (width < TIME_WIDTH_MIN || width > TIME_WIDTH_MAX)
        width = TIME_WIDTH_FIRST;
    walk->found = 0;
    walk->first = 0;
    walk->finished = walk->out_of_time = false;
    for (;;) {
        bson_t range = BSON_INITIALIZER;
        int want = walk->want - walk->found, result;

        if (walk->descending ? at < walk->end : at > walk->end) {
            walk->finished = true;
            break;
        }
        if (windows > 0 && sk_mono_us(op->store->sched) - started_us > walk->budget_us) {
            walk->out_of_time = true;
            walk->next = at;
            walk->width = width; /* as wide as it has become, or sparse places would never be crossed */
            break;
        }
        /* What lies in the future (skewed clocks) belongs to the window that touches the present. */
        if (walk->descending) {
            high = at;
            low = (at > now_ms ? now_ms : at) - (width - 1);
            if (low < walk->end)
                low = walk->end;
        } else {
            low = at;
            high = at + (width - 1);
            if (high > walk->end || high >= now_ms)
                high = walk->end;
        }
        BSON_APPEND_DATE_TIME(&range, "$gte", low);
        BSON_APPEND_DATE_TIME(&range, "$lt", high + 1);
        result =
            read_window(op, walk->leading, walk->filter, walk->field, &range, walk->descending, want, &window, err);
        bson_destroy(&range);
        if (result != 0)
            return -1;
        windows++;
        walk->found += window.found;
        if (window.positions > 0)
            walk->first = (int64_t)window.first;
        if (window.stopped || walk->found >= walk->want) {
            walk->width = span_of(&window, width, TIME_WIDTH_MIN, TIME_WIDTH_MAX);
            return 0;
        }
        width = adapt(width, window.found, want, TIME_WIDTH_MIN, TIME_WIDTH_MAX);
        at = walk->descending ? low - 1 : high + 1;
    }
    return 0;
}

int sk_walk_ties(struct sk_mongo_op *op, const struct sk_time_walk *walk, const bson_t *filter, int64_t at,
                 const char *oid, struct sk_error *err)
{
    bson_t query = BSON_INITIALIZER, opts = BSON_INITIALIZER, sort, range, not, other;
    bson_oid_t after;
    int result;

    bson_oid_init_from_string(&after, oid);
    BSON_APPEND_DOCUMENT_BEGIN(&query, walk->field, &range);
    BSON_APPEND_DATE_TIME(&range, "$gte", at);
    BSON_APPEND_DATE_TIME(&range, "$lt", at + 1);
    bson_append_document_end(&query, &range);
    BSON_APPEND_DOCUMENT_BEGIN(&query, "_id", &not );
    BSON_APPEND_DOCUMENT_BEGIN(&not, "$not", &other);
    BSON_APPEND_OID(&other, walk->descending ? "$gte" : "$lte", &after);
    bson_append_document_end(&not, &other);
    bson_append_document_end(&query, &not );
    bson_concat(&query, filter);
    BSON_APPEND_DOCUMENT_BEGIN(&opts, "sort", &sort);
    BSON_APPEND_INT32(&sort, "_id", walk->descending ? -1 : 1);
    bson_append_document_end(&opts, &sort);
    BSON_APPEND_INT64(&opts, "limit", walk->want);
    result = sk_mongo_find(op, SK_MONGO_INSTANCES, &query, &opts, walk->fn, walk->arg, err);
    bson_destroy(&opts);
    bson_destroy(&query);
    return result;
}

int sk_walk_from_oldest(struct sk_mongo_op *op, struct sk_time_walk *walk, atomic_llong *oldest, bool learn,
                        struct sk_error *err)
{
    int64_t hint = atomic_load(oldest), first = 0, now_ms = sk_wall_ms(op->store->sched);
    int found = 0, want = walk->want;

    if (hint == 0)
        hint = LAYOUT_START;
    if (hint > walk->from && hint <= walk->end) {
        struct sk_time_walk before = *walk;

        before.end = hint - 1;
        before.width = TIME_WIDTH_MAX;
        if (sk_walk_time(op, &before, err) != 0)
            return -1;
        found = before.found;
        first = before.first;
        walk->from = hint;
        walk->finished = walk->out_of_time = false;
        walk->found = 0;
        walk->want -= found;
        if (!before.finished) {
            walk->out_of_time = before.out_of_time;
            walk->next = before.next;
            walk->width = before.width;
            goto out;
        }
    }
    if (sk_walk_time(op, walk, err) != 0)
        return -1;
    if (first == 0)
        first = walk->first;
out:
    if (learn && first != 0)
        atomic_store(oldest, first);
    else if (learn && walk->finished)
        atomic_store(oldest, walk->end < now_ms ? walk->end + 1 : now_ms);
    walk->first = first;
    walk->found += found;
    walk->want = want;
    return 0;
}

/* ---- ids ------------------------------------------------------------------------------------ */

static const char *const id_prefixes[] = {"app-", "skilledit-", "workflowbuilder-"};
#define ID_PREFIX_COUNT (sizeof(id_prefixes) / sizeof(id_prefixes[0]))
#define ID_AFTER_HEX    'g' /* sorts after every hexadecimal digit */

/* The end (exclusive) of the window that begins at `from`, at most `width` ids wide. False: there is no end, and the
 * window is the last one. *dense tells whether the width mattered. */
static bool window_end(const char *from, int64_t width, char end[SK_SANDBOX_ID_SIZE], bool *dense)
{
    *dense = false;
    for (size_t i = 0; i < ID_PREFIX_COUNT; i++) {
        size_t length = strlen(id_prefixes[i]);
        uint64_t value;

        /* Before this type's ids: one window up to them. */
        if (strcmp(from, id_prefixes[i]) < 0) {
            strcpy(end, id_prefixes[i]);
            return true;
        }
        if (strncmp(from, id_prefixes[i], length) != 0 || from[length] >= ID_AFTER_HEX)
            continue;
        *dense = true;
        value = leading_hex(from + length);
        if (value > UINT64_MAX - (uint64_t)width)
            snprintf(end, SK_SANDBOX_ID_SIZE, "%s%c", id_prefixes[i], ID_AFTER_HEX);
        else
            snprintf(end, SK_SANDBOX_ID_SIZE, "%s%016" PRIx64, id_prefixes[i], value + (uint64_t)width);
        /* A text that sorts behind its own number: go on to the end of this type. */
        if (strcmp(end, from) <= 0)
            snprintf(end, SK_SANDBOX_ID_SIZE, "%s%c", id_prefixes[i], ID_AFTER_HEX);
        return true;
    }
    strcpy(end, SK_ID_END);
    return false;
}

int sk_walk_ids(struct sk_mongo_op *op, struct sk_id_walk *walk, struct sk_error *err)
{
    int64_t started_us = sk_mono_us(op->store->sched), width = walk->width;
    struct window window = {.fn = walk->fn, .arg = walk->arg, .field = "sandboxId"};
    char at[SK_SANDBOX_ID_SIZE], end[SK_SANDBOX_ID_SIZE];
    bool inclusive = walk->inclusive, more = true;
    int windows = 0;

    if (width < ID_WIDTH_MIN || width > ID_WIDTH_MAX)
        width = ID_WIDTH_FIRST;
    memcpy(at, walk->after, sizeof(at));
    walk->found = 0;
    walk->finished = walk->out_of_time = false;
    while (more) {
        bson_t range = BSON_INITIALIZER;
        int want = walk->want - walk->found, result;
        bool dense;

        if (windows > 0 && sk_mono_us(op->store->sched) - started_us > walk->budget_us) {
            walk->out_of_time = true;
            walk->width = width;
            memcpy(walk->next, at, sizeof(at));
            return 0;
        }
        more = window_end(at, width, end, &dense);
        BSON_APPEND_UTF8(&range, inclusive ? "$gte" : "$gt", at);
        BSON_APPEND_UTF8(&range, "$lt", end);
        result = read_window(op, NULL, walk->filter, "sandboxId", &range, false, want, &window, err);
        bson_destroy(&range);
        if (result != 0)
            return -1;
        windows++;
        walk->found += window.found;
        if (window.stopped || walk->found >= walk->want) {
            walk->width = span_of(&window, width, ID_WIDTH_MIN, ID_WIDTH_MAX);
            return 0;
        }
        if (dense)
            width = adapt(width, window.found, want, ID_WIDTH_MIN, ID_WIDTH_MAX);
        memcpy(at, end, sizeof(at));
        inclusive = true;
    }
    walk->finished = true;
    return 0;
}
