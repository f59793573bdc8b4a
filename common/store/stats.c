/* SPDX-License-Identifier: Apache-2.0
 *
 * Statistics over all records. Counting has to touch every record's index entry (the embedded server: every record), so
 * an answer is kept and given again until 20 times its own cost has passed: statistics never take more than a twentieth
 * of the store's time, and a small store answers fresh ones. */
#include "common/store/instance_bson.h"
#include "common/store/mongo.h"

#include <string.h>

#define COST_FACTOR 20

struct counting {
    struct sk_stats *stats;
    int64_t now_ms;
};

/* { _id: status, n } */
static bool count_group(void *arg, const bson_t *doc)
{
    struct sk_stats *stats = arg;
    enum sk_status status = SK_STATUS_INVALID;
    int64_t number = 0;
    bson_iter_t iter;
    char name[32];

    if (bson_iter_init_find(&iter, doc, "n"))
        (void)sk_bson_int(&iter, 0, INT64_MAX, &number);
    if (bson_iter_init_find(&iter, doc, "_id") && sk_bson_text(&iter, name, sizeof(name)))
        status = sk_status_parse(name);
    if (status == SK_STATUS_INVALID)
        stats->malformed += number;
    else
        stats->by_status[status] += number;
    return true;
}

static bool count_transitional(void *arg, const bson_t *doc)
{
    struct counting *counting = arg;
    struct sk_instance instance;
    int64_t age_ms;

    sk_instance_decode(doc, &instance);
    if (instance.malformed)
        counting->stats->malformed++;
    if (!instance.has_operation)
        return true;
    if (instance.operation.blocked[0] != '\0')
        counting->stats->blocked++;
    age_ms = counting->now_ms - instance.operation.heartbeat_at;
    if (instance.operation.heartbeat_at > 0 && age_ms > counting->stats->oldest_transitional_ms)
        counting->stats->oldest_transitional_ms = age_ms;
    return true;
}

static bool count_pending(void *arg, const bson_t *doc)
{
    (void)doc;
    ((struct sk_stats *)arg)->pending_outbox++;
    return true;
}

static int count_all(struct sk_mongo_op *op, struct sk_stats *out, struct sk_error *err)
{
    struct counting counting = {.stats = out, .now_ms = sk_wall_ms(op->store->sched)};
    bson_t filter = BSON_INITIALIZER, *opts, *command, reply;
    int result;

    memset(out, 0, sizeof(*out));
    command = BCON_NEW("aggregate", BCON_UTF8(op->store->names[SK_MONGO_INSTANCES]), "pipeline", "[", "{", "$group",
                       "{", "_id", "$status", "n", "{", "$sum", BCON_INT32(1), "}", "}", "}", "]", "cursor", "{", "}");
    result = sk_mongo_read(op, command, &reply, err);
    if (result == 0)
        sk_mongo_first_batch(&reply, count_group, out);
    bson_destroy(&reply);
    bson_destroy(command);
    for (int status = SK_STATUS_NONE + 1; status < SK_STATUS_COUNT && result == 0; status++) {
        if (sk_status_info((enum sk_status)status)->stable || out->by_status[status] == 0)
            continue;
        bson_reinit(&filter);
        BSON_APPEND_UTF8(&filter, "status", sk_status_name((enum sk_status)status));
        result = sk_mongo_find(op, SK_MONGO_INSTANCES, &filter, NULL, count_transitional, &counting, err);
    }
    if (result == 0) {
        bson_reinit(&filter);
        BCON_APPEND(&filter, "outbox.id", "{", "$gte", BCON_UTF8(""), "}");
        opts = BCON_NEW("projection", "{", "_id", BCON_INT32(1), "}");
        result = sk_mongo_find(op, SK_MONGO_INSTANCES, &filter, opts, count_pending, out, err);
        bson_destroy(opts);
    }
    bson_destroy(&filter);
    return result;
}

int sk_mongo_stats(void *self, struct sk_call *call, struct sk_stats *out, struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    struct sk_mongo_op op;
    int64_t started_us;
    bool fresh;
    int result;

    pthread_mutex_lock(&store->stats_lock);
    started_us = sk_mono_us(store->sched);
    fresh = store->stats_at_us != 0 && started_us - store->stats_at_us < store->stats_cost_us * COST_FACTOR;
    if (fresh)
        *out = store->stats;
    pthread_mutex_unlock(&store->stats_lock);
    if (fresh)
        return 0;
    if (sk_mongo_begin(store, call, SK_MONGO_STATS, &op, err) != 0)
        return -1;
    result = count_all(&op, out, err);
    sk_mongo_end(&op);
    if (result == 0) {
        pthread_mutex_lock(&store->stats_lock);
        store->stats = *out;
        store->stats_at_us = sk_mono_us(store->sched);
        store->stats_cost_us = store->stats_at_us - started_us;
        pthread_mutex_unlock(&store->stats_lock);
    }
    return result;
}
