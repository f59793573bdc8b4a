/* SPDX-License-Identifier: Apache-2.0
 *
 * What sweeps look for. Each scan costs in proportion to what it finds, not to what exists (contract/lifecycle.md §5).
 */
#include "common/store/instance_bson.h"
#include "common/store/window.h"

#include <stdlib.h>
#include <string.h>

#define QUOTA_BATCH 1000

struct scan {
    sk_scan_fn fn;
    void *arg;
    int limit, delivered;
    bool stopped;
    struct sk_instance instance;
    struct sk_event *events;        /* SK_SCAN_OUTBOX */
    struct sk_idle_cursor position; /* of the last one handed out by an idle scan */
};

static bool hand_out(void *arg, const bson_t *doc)
{
    struct scan *scan = arg;
    int events = 0;

    sk_instance_decode(doc, &scan->instance);
    if (scan->events != NULL)
        events = sk_outbox_decode(doc, &scan->instance, scan->events, SK_MONGO_EVENTS_MAX);
    scan->delivered++;
    scan->stopped = !scan->fn(scan->arg, &scan->instance, scan->events, events);
    return !scan->stopped && scan->delivered < scan->limit;
}

/* Only what a recount needs: the projection leaves everything else out, which is no fault of the document. */
static bool hand_out_counted(void *arg, const bson_t *doc)
{
    struct scan *scan = arg;
    bson_iter_t iter;
    char name[32];

    memset(&scan->instance, 0, sizeof(scan->instance));
    if (bson_iter_init_find(&iter, doc, "sandboxId"))
        (void)sk_bson_text(&iter, scan->instance.sandbox_id, sizeof(scan->instance.sandbox_id));
    if (bson_iter_init_find(&iter, doc, "teamId"))
        (void)sk_bson_text(&iter, scan->instance.team_id, sizeof(scan->instance.team_id));
    if (bson_iter_init_find(&iter, doc, "status") && sk_bson_text(&iter, name, sizeof(name)))
        scan->instance.status = sk_status_parse(name);
    scan->delivered++;
    scan->stopped = !scan->fn(scan->arg, &scan->instance, NULL, 0);
    return !scan->stopped && scan->delivered < scan->limit;
}

/* The transitional records are few, so their ranges of the index may be read whole. Blocked ones wait for a person and
 * have the oldest heartbeats of all: within a limited answer they would hide those that somebody has to continue. */
static int scan_transitional(struct sk_mongo_op *op, int64_t before_ms, struct scan *scan, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER, status, in, beat, *opts;
    char index[16];
    const char *position;
    uint32_t count = 0;
    int result;

    BSON_APPEND_DOCUMENT_BEGIN(&filter, "status", &status);
    BSON_APPEND_ARRAY_BEGIN(&status, "$in", &in);
    for (int s = SK_STATUS_NONE + 1; s < SK_STATUS_COUNT; s++) {
        if (sk_status_info((enum sk_status)s)->stable)
            continue;
        bson_uint32_to_string(count++, &position, index, sizeof(index));
        BSON_APPEND_UTF8(&in, position, sk_status_name((enum sk_status)s));
    }
    bson_append_array_end(&status, &in);
    bson_append_document_end(&filter, &status);
    BSON_APPEND_NULL(&filter, "operation.blocked"); /* null, or not there */
    if (before_ms > 0) {
        BSON_APPEND_DOCUMENT_BEGIN(&filter, "operation.heartbeatAt", &beat);
        BSON_APPEND_DATE_TIME(&beat, "$lt", before_ms);
        bson_append_document_end(&filter, &beat);
    }
    opts = BCON_NEW("sort", "{", "operation.heartbeatAt", BCON_INT32(1), "}", "limit", BCON_INT64(scan->limit));
    result = sk_mongo_find(op, SK_MONGO_INSTANCES, &filter, opts, hand_out, scan, err);
    bson_destroy(opts);
    bson_destroy(&filter);
    return result;
}

static int scan_outbox(struct sk_mongo_op *op, struct scan *scan, struct sk_error *err)
{
    bson_t *filter = BCON_NEW("outbox.id", "{", "$gte", BCON_UTF8(""), "}");
    bson_t *opts = BCON_NEW("limit", BCON_INT64(scan->limit));
    int result;

    scan->events = malloc(SK_MONGO_EVENTS_MAX * sizeof(*scan->events));
    if (scan->events == NULL)
        result = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    else
        result = sk_mongo_find(op, SK_MONGO_INSTANCES, filter, opts, hand_out, scan, err);
    free(scan->events);
    bson_destroy(opts);
    bson_destroy(filter);
    return result;
}

/* Status by status: the embedded server answers a $in over a big part of an index slowly. */
static int scan_quota(struct sk_mongo_op *op, struct scan *scan, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER, *opts;
    int result = 0;

    opts = BCON_NEW("projection", "{", "sandboxId", BCON_INT32(1), "teamId", BCON_INT32(1), "status", BCON_INT32(1),
                    "_id", BCON_INT32(0), "}", "batchSize", BCON_INT32(QUOTA_BATCH));
    for (int s = SK_STATUS_NONE + 1; s < SK_STATUS_COUNT && result == 0; s++) {
        if (!sk_status_info((enum sk_status)s)->counts_for_quota || scan->stopped || scan->delivered >= scan->limit)
            continue;
        bson_reinit(&filter);
        BSON_APPEND_UTF8(&filter, "status", sk_status_name((enum sk_status)s));
        result = sk_mongo_find(op, SK_MONGO_INSTANCES, &filter, opts, hand_out_counted, scan, err);
    }
    bson_destroy(opts);
    bson_destroy(&filter);
    return result;
}

int sk_mongo_scan(void *self, struct sk_call *call, enum sk_scan_kind kind, int64_t before_ms, int limit, sk_scan_fn fn,
                  void *arg, struct sk_error *err)
{
    struct scan scan = {.fn = fn, .arg = arg, .limit = limit};
    struct sk_mongo_op op;
    int result = 0;

    if (limit <= 0)
        return 0;
    if (sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_SCAN, &op, err) != 0)
        return -1;
    switch (kind) {
    case SK_SCAN_TRANSITIONAL:
        result = scan_transitional(&op, before_ms, &scan, err);
        break;
    case SK_SCAN_OUTBOX:
        result = scan_outbox(&op, &scan, err);
        break;
    case SK_SCAN_QUOTA:
        result = scan_quota(&op, &scan, err);
        break;
    }
    sk_mongo_end(&op);
    return result;
}

/* ---- idle records ------------------------------------------------------------------------------- */

/* The position comes from the document itself: whatever else is wrong with it, it was met there. */
static bool hand_out_idle(void *arg, const bson_t *doc)
{
    struct scan *scan = arg;
    bson_iter_t iter;

    memset(&scan->position, 0, sizeof(scan->position));
    if (bson_iter_init_find(&iter, doc, "lastActiveAt"))
        (void)sk_bson_date(&iter, &scan->position.last_active_at);
    if (bson_iter_init_find(&iter, doc, "_id") && BSON_ITER_HOLDS_OID(&iter))
        bson_oid_to_string(bson_iter_oid(&iter), scan->position.oid);
    else
        scan->position.last_active_at++; /* no position among equals: go on behind them */
    return hand_out(scan, doc);
}

static int walk_idle(struct sk_mongo_op *op, struct sk_idle_cursor *cursor, struct sk_time_walk *walk,
                     struct scan *scan, struct sk_error *err)
{
    struct sk_mongo_hints *hints = &op->store->hints;
    bool from_oldest = cursor->last_active_at == 0;
    int result = 0;

    if (!from_oldest)
        walk->from = cursor->last_active_at;
    if (cursor->oid[0] != '\0') {
        bson_t filter = BSON_INITIALIZER;

        sk_window_hidden_text(&filter, "status", sk_status_name(SK_STATUS_RUNNING));
        result = sk_walk_ties(op, walk, &filter, cursor->last_active_at, cursor->oid, err);
        bson_destroy(&filter);
        walk->from++;
        walk->want -= scan->delivered;
    }
    if (result == 0 && !scan->stopped && walk->want > 0) {
        result = from_oldest ? sk_walk_from_oldest(op, walk, &hints->oldest_running, true, err)
                             : sk_walk_time(op, walk, err);
        if (result == 0 && !walk->finished)
            atomic_store(&hints->idle_width, walk->width);
    }
    if (result != 0)
        return -1;
    if (walk->finished) {
        memset(cursor, 0, sizeof(*cursor));
    } else if (walk->out_of_time) {
        memset(cursor, 0, sizeof(*cursor));
        cursor->last_active_at = walk->next;
    } else {
        *cursor = scan->position;
    }
    return 0;
}

int sk_mongo_scan_idle(void *self, struct sk_call *call, struct sk_idle_cursor *cursor, int64_t before_ms, int limit,
                       sk_scan_fn fn, void *arg, struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    struct scan scan = {.fn = fn, .arg = arg, .limit = limit};
    bson_t running = BSON_INITIALIZER, filter = BSON_INITIALIZER;
    struct sk_time_walk walk = {
        .leading = &running,
        .filter = &filter,
        .field = "lastActiveAt",
        .from = SK_WINDOW_TIME_MIN,
        .end = before_ms - 1,
        .width = atomic_load(&store->hints.idle_width),
        .budget_us = store->scan_budget_us,
        .want = limit,
        .fn = hand_out_idle,
        .arg = &scan,
    };
    struct sk_mongo_op op;
    int result;

    if (limit <= 0)
        return 0;
    if (walk.end < SK_WINDOW_TIME_MIN || cursor->last_active_at > walk.end) {
        memset(cursor, 0, sizeof(*cursor));
        return 0;
    }
    if (sk_mongo_begin(store, call, SK_MONGO_SCAN, &op, err) != 0)
        return -1;
    BSON_APPEND_UTF8(&running, "status", sk_status_name(SK_STATUS_RUNNING));
    result = walk_idle(&op, cursor, &walk, &scan, err);
    sk_mongo_end(&op);
    bson_destroy(&running);
    bson_destroy(&filter);
    return result;
}
