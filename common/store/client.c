/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections of the Mongo store: the URI with our defaults, the bounded pool of clients (heartbeats go before all: a
 * replica that is busy must not look dead) and the begin and end of a call. */
#include "common/store/mongo.h"

#include "common/log/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const kind_names[] = {
    [SK_MONGO_GET] = "get",
    [SK_MONGO_INSERT] = "insert",
    [SK_MONGO_CAS] = "cas",
    [SK_MONGO_REMOVE] = "remove",
    [SK_MONGO_HEARTBEAT] = "heartbeat",
    [SK_MONGO_SCAN] = "scan",
    [SK_MONGO_OUTBOX] = "outbox_pull",
    [SK_MONGO_TIMELINE] = "timeline",
    [SK_MONGO_COMMAND] = "command",
    [SK_MONGO_QUOTA_CALL] = "quota",
    [SK_MONGO_SOURCE] = "source",
    [SK_MONGO_LIST] = "list",
    [SK_MONGO_STATS] = "stats",
    [SK_MONGO_SETUP] = "setup",
    [SK_MONGO_PING] = "ping",
    NULL,
};

static struct sk_metric pool_wait = {
    .name = "sandkeep_store_pool_wait_seconds",
    .help = "Time a call waited for one of the pool's connections",
    .kind = SK_METRIC_HISTOGRAM,
    .buckets = sk_buckets_latency,
};
static struct sk_metric pool_exhausted = {
    .name = "sandkeep_store_pool_exhausted_total",
    .help = "Calls refused because no connection became free in time",
    .kind = SK_METRIC_COUNTER,
};
static struct sk_metric call_seconds = {
    .name = "sandkeep_store_call_seconds",
    .help = "Duration of store calls, without the wait for a connection",
    .kind = SK_METRIC_HISTOGRAM,
    .labels = {{"call", kind_names}},
    .buckets = sk_buckets_latency,
};

/* ---- the driver's own words ----------------------------------------------------------------- */

/* By default the driver writes to stdout, every 10 s while a server is away. What matters reaches the log as an error
 * of the call that met it. */
static void driver_log(mongoc_log_level_t level, const char *domain, const char *message, void *arg)
{
    (void)arg;
    if (level <= MONGOC_LOG_LEVEL_WARNING)
        SK_LOG_DEBUG("mongo driver", SK_F("domain", domain), SK_F("text", message));
}

void sk_store_mongo_init(void)
{
    char counters[32];

    mongoc_log_set_handler(driver_log, NULL);
    mongoc_init(); /* a library that initialises itself has done so before main(): no setting could have hindered it */
    snprintf(counters, sizeof(counters), "/mongoc-%u", (unsigned)getpid());
    (void)shm_unlink(counters); /* stays mapped; missing where the driver has no such counters */
}

static void topology_changed(const mongoc_apm_topology_changed_t *event)
{
    struct sk_store_mongo *store = mongoc_apm_topology_changed_get_context(event);
    /* The function wants a pointer to non-const but changes nothing. */
    mongoc_topology_description_t *now =
        (mongoc_topology_description_t *)(uintptr_t)mongoc_apm_topology_changed_get_new_description(event);
    bool selectable = mongoc_topology_description_has_writable_server(now);

    if (atomic_exchange(&store->selectable, selectable) != selectable)
        SK_LOG_INFO(selectable ? "store reachable" : "store unreachable", SK_F("database", store->database));
}

/* ---- the URI -------------------------------------------------------------------------------- */

static int64_t int_option(mongoc_uri_t *uri, const char *name, int32_t fallback)
{
    int32_t value = mongoc_uri_get_option_as_int32(uri, name, 0);

    if (value <= 0) {
        value = fallback;
        mongoc_uri_set_option_as_int32(uri, name, value);
    }
    return value;
}

static int prepare_uri(struct sk_store_mongo *store, const char *text, int pool_size, struct sk_error *err)
{
    const mongoc_write_concern_t *given;
    mongoc_write_concern_t *majority;
    bson_error_t error;
    const char *database;

    store->uri = mongoc_uri_new_with_error(text, &error);
    if (store->uri == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "Mongo URI: %s", error.message);
    database = mongoc_uri_get_database(store->uri);
    if (!sk_copy(store->database, sizeof(store->database),
                 database != NULL && database[0] != '\0' ? database : "fastgpt"))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "Mongo URI: the database name is too long");
    given = mongoc_uri_get_write_concern(store->uri);
    if (given == NULL || mongoc_write_concern_is_default(given)) {
        majority = mongoc_write_concern_new();
        mongoc_write_concern_set_wmajority(majority,
                                           mongoc_uri_get_option_as_int32(store->uri, MONGOC_URI_WTIMEOUTMS, 0));
        mongoc_uri_set_write_concern(store->uri, majority);
        mongoc_write_concern_destroy(majority);
    } else if (!mongoc_write_concern_is_acknowledged(given)) {
        return sk_fail(err, SK_ERR_INVALID_REQUEST,
                       "Mongo URI: w=0 is of no use here: a compare-and-set needs its answer");
    }
    /* A write that the majority has not seen can still be rolled back: it must not be read as done. */
    if (mongoc_read_concern_is_default(mongoc_uri_get_read_concern(store->uri)) &&
        mongoc_write_concern_get_wmajority(mongoc_uri_get_write_concern(store->uri))) {
        mongoc_read_concern_t *concern = mongoc_read_concern_new();

        mongoc_read_concern_set_level(concern, MONGOC_READ_CONCERN_LEVEL_MAJORITY);
        mongoc_uri_set_read_concern(store->uri, concern);
        mongoc_read_concern_destroy(concern);
    }
    store->retry_writes = mongoc_uri_get_option_as_bool(store->uri, MONGOC_URI_RETRYWRITES, true);
    store->retry_reads = mongoc_uri_get_option_as_bool(store->uri, MONGOC_URI_RETRYREADS, true);
    /* Both are kept by our own code (command.c), which knows when a call has ended. */
    mongoc_uri_set_option_as_bool(store->uri, MONGOC_URI_RETRYREADS, false);
    mongoc_uri_set_option_as_bool(store->uri, MONGOC_URI_RETRYWRITES, false);
    int_option(store->uri, MONGOC_URI_CONNECTTIMEOUTMS, SK_MONGO_CONNECT_MS);
    store->socket_ms = int_option(store->uri, MONGOC_URI_SOCKETTIMEOUTMS, SK_MONGO_SOCKET_MS);
    store->selection_ms = int_option(store->uri, MONGOC_URI_SERVERSELECTIONTIMEOUTMS, SK_MONGO_SELECTION_MS);
    store->pool_wait_ms = int_option(store->uri, MONGOC_URI_WAITQUEUETIMEOUTMS, SK_MONGO_POOL_WAIT_MS);
    /* The driver looks in short steps; the whole time is ours to keep, so that a cancel is seen between two steps. */
    mongoc_uri_set_option_as_int32(store->uri, MONGOC_URI_SERVERSELECTIONTIMEOUTMS, SK_MONGO_SELECT_STEP_MS);
    /* A server that was written off by an error is looked at again within this time at the latest. */
    int_option(store->uri, MONGOC_URI_HEARTBEATFREQUENCYMS, SK_MONGO_MONITOR_MS);
    mongoc_uri_set_option_as_int32(store->uri, MONGOC_URI_MAXPOOLSIZE, pool_size);
    mongoc_uri_set_appname(store->uri, "sandkeep");
    return 0;
}

int sk_mongo_connect(struct sk_store_mongo *store, const struct sk_store_mongo_config *config, struct sk_error *err)
{
    mongoc_apm_callbacks_t *callbacks;
    int limit = config->pool_size;

    if (limit <= 0 || limit > SK_MONGO_CLIENTS_MAX)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the pool must have 1 to %d connections", SK_MONGO_CLIENTS_MAX);
    sk_metric_register(&pool_wait);
    sk_metric_register(&pool_exhausted);
    sk_metric_register(&call_seconds);
    sk_mongo_command_metrics();
    store->client_limit = limit;
    sk_list_init(&store->waiters);
    if (prepare_uri(store, config->uri, limit, err) != 0)
        return -1;
    store->pool = mongoc_client_pool_new(store->uri);
    if (store->pool == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "Mongo URI: the driver refuses it");
    mongoc_client_pool_set_error_api(store->pool, MONGOC_ERROR_API_VERSION_2);
    callbacks = mongoc_apm_callbacks_new();
    mongoc_apm_set_topology_changed_cb(callbacks, topology_changed);
    mongoc_client_pool_set_apm_callbacks(store->pool, callbacks, store);
    mongoc_apm_callbacks_destroy(callbacks);
    return 0;
}

void sk_mongo_disconnect(struct sk_store_mongo *store)
{
    for (int i = 0; i < store->client_count; i++)
        mongoc_client_pool_push(store->pool, store->clients[i].driver);
    /* Destroys the clients, whose streams still use our locks. */
    if (store->pool != NULL)
        mongoc_client_pool_destroy(store->pool);
    for (int i = 0; i < store->client_count; i++)
        pthread_mutex_destroy(&store->clients[i].lock);
    if (store->uri != NULL)
        mongoc_uri_destroy(store->uri);
}

/* ---- the pool ------------------------------------------------------------------------------- */

/* Under the pool's lock: a client that was never used, made now. NULL when all are made. */
static struct sk_mongo_client *make_client(struct sk_store_mongo *store)
{
    struct sk_mongo_client *client;
    mongoc_client_t *driver;

    if (store->client_count == store->client_limit)
        return NULL;
    driver = mongoc_client_pool_try_pop(store->pool);
    if (driver == NULL)
        return NULL;
    client = &store->clients[store->client_count++];
    client->store = store;
    client->driver = driver;
    pthread_mutex_init(&client->lock, NULL);
    atomic_init(&client->interrupted, false);
    mongoc_client_set_stream_initiator(driver, sk_mongo_stream_open, client);
    return client;
}

struct cancel_wait {
    struct sk_store_mongo *store;
    struct sk_mongo_waiter *waiter;
};

static void cancel_waiting(void *arg)
{
    struct cancel_wait *wait = arg;

    pthread_mutex_lock(&wait->store->lock);
    wait->waiter->cancelled = true;
    pthread_cond_signal(&wait->waiter->changed);
    pthread_mutex_unlock(&wait->store->lock);
}

/* Under the pool's lock: a client that nobody uses, or NULL. */
static struct sk_mongo_client *take_free(struct sk_store_mongo *store)
{
    struct sk_mongo_client *client = store->free_clients;

    if (client != NULL)
        store->free_clients = client->next_free;
    return client;
}

/* Under the pool's lock. */
static struct sk_mongo_waiter *first_waiter(struct sk_store_mongo *store)
{
    return sk_list_empty(&store->waiters) ? NULL : SK_LIST_ENTRY(struct sk_mongo_waiter, store->waiters.next, link);
}

/* Under the pool's lock. */
static void wake_first(struct sk_store_mongo *store)
{
    struct sk_mongo_waiter *waiter = first_waiter(store);

    if (waiter != NULL)
        pthread_cond_signal(&waiter->changed);
}

/* `urgent`: before all who wait already, and given the next client that becomes free. */
static struct sk_mongo_client *wait_for_client(struct sk_store_mongo *store, struct sk_call *call, int64_t budget_ms,
                                               bool urgent)
{
    struct sk_mongo_waiter waiter = {.client = NULL, .since_us = urgent ? 0 : sk_mono_us(store->sched)};
    struct cancel_wait cancel = {.store = store, .waiter = &waiter};
    pthread_condattr_t attributes;
    struct timespec until;
    int status = 0;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&waiter.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += budget_ms / 1000;
    until.tv_nsec += budget_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    if (urgent)
        sk_list_push_front(&store->waiters, &waiter.link);
    else
        sk_list_push_back(&store->waiters, &waiter.link);
    pthread_mutex_unlock(&store->lock);
    /* Without the pool's lock: setting a wake may run it, and it takes the lock. */
    if (call != NULL)
        sk_call_set_wake(call, cancel_waiting, &cancel);
    pthread_mutex_lock(&store->lock);
    while (waiter.client == NULL && !waiter.cancelled && status == 0) {
        /* One may have been freed while this thread was waking up. */
        waiter.client = take_free(store);
        if (waiter.client == NULL)
            status = pthread_cond_timedwait(&waiter.changed, &store->lock, &until);
    }
    if (waiter.client == NULL && !waiter.cancelled)
        waiter.client = take_free(store); /* freed at the last moment */
    sk_list_remove(&waiter.link);
    /* Two may have been freed while this thread was waking up, or one that it does not want any more: only the first in
     * line is told, and the next one must not sleep beside a client that nobody uses. */
    if (store->free_clients != NULL)
        wake_first(store);
    pthread_mutex_unlock(&store->lock);
    if (call != NULL)
        sk_call_set_wake(call, NULL, NULL);
    pthread_mutex_lock(&store->lock);
    pthread_cond_destroy(&waiter.changed);
    return waiter.client;
}

/* A client is not handed to the first waiter but left for whoever runs first: a thread that does one change after
 * another then keeps going, while handing over would let every connection idle until the waiter's thread gets the
 * processor (at 64 threads on a busy machine that cost three quarters of the throughput). A waiter that has waited for
 * long is served first, so nobody starves. */
static void release_client(struct sk_store_mongo *store, struct sk_mongo_client *client)
{
    struct sk_mongo_waiter *waiter;

    pthread_mutex_lock(&store->lock);
    waiter = first_waiter(store);
    if (waiter != NULL && sk_mono_us(store->sched) - waiter->since_us >= SK_MONGO_HAND_OVER_US) {
        sk_list_remove(&waiter->link);
        waiter->client = client;
    } else {
        client->next_free = store->free_clients;
        store->free_clients = client;
    }
    if (waiter != NULL)
        pthread_cond_signal(&waiter->changed);
    pthread_mutex_unlock(&store->lock);
}

/* A connection that an interrupt shut down is still in the driver's table, and the next command would fail on it. A
 * ping finds that out, and the driver makes a new connection. */
static void heal(struct sk_mongo_client *client)
{
    bson_t *ping = BCON_NEW("ping", BCON_INT32(1));

    mongoc_client_command_simple(client->driver, "admin", ping, NULL, NULL, NULL);
    bson_destroy(ping);
}

int sk_mongo_begin(struct sk_store_mongo *store, struct sk_call *call, enum sk_mongo_kind kind, struct sk_mongo_op *op,
                   struct sk_error *err)
{
    int64_t started_us = sk_mono_us(store->sched), budget_ms = store->pool_wait_ms;
    struct sk_mongo_client *client;

    if (call != NULL) {
        budget_ms = sk_call_budget_ms(call, budget_ms);
        if (sk_call_cancelled(call))
            return sk_fail(err, SK_ERR_CANCELLED, "the call was cancelled");
        if (budget_ms == 0)
            return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "the deadline had passed");
    }
    pthread_mutex_lock(&store->lock);
    client = take_free(store);
    if (client == NULL)
        client = make_client(store);
    if (client == NULL)
        client = wait_for_client(store, call, budget_ms, kind == SK_MONGO_HEARTBEAT);
    pthread_mutex_unlock(&store->lock);
    memset(op, 0, sizeof(*op));
    op->started_us = sk_mono_us(store->sched);
    sk_metric_observe(&pool_wait, 0, 0, (double)(op->started_us - started_us) / 1e6);
    if (client == NULL) {
        if (call != NULL && sk_call_cancelled(call))
            return sk_fail(err, SK_ERR_CANCELLED, "the call was cancelled");
        sk_metric_add(&pool_exhausted, 0, 0, 1);
        return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "no connection to the store became free in %lld ms",
                       (long long)budget_ms);
    }
    op->store = store;
    op->client = client;
    op->call = call;
    op->kind = kind;
    client->call = call;
    client->timeout_ms = store->socket_ms;
    client->sent = 0;
    atomic_store(&client->interrupted, false);
    if (sk_mongo_stream_broken(client)) {
        heal(client);
        client->sent = 0;
    }
    if (call != NULL)
        sk_call_set_wake(call, sk_mongo_stream_interrupt, client);
    return 0;
}

void sk_mongo_end(struct sk_mongo_op *op)
{
    /* After this nobody is inside the interrupt any more, so the client may serve another call. */
    if (op->call != NULL)
        sk_call_set_wake(op->call, NULL, NULL);
    op->client->call = NULL;
    sk_metric_observe(&call_seconds, op->kind, 0, (double)(sk_mono_us(op->store->sched) - op->started_us) / 1e6);
    release_client(op->store, op->client);
}
