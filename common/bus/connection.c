/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection of a bus: made, watched and replaced by one thread (the keeper), so that neither a server that is away
 * nor an authentication error nor a wiped store ever needs a restart. The library's own reconnecting is off: it gives
 * up for good after two authentication errors, sends what it buffered to whatever server comes back, and can hang in
 * its handshake (probe.c). A connection that ends is torn down and a new one made, and everything is subscribed again.
 */
#include "common/bus/internal.h"

#include "common/base/id.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COMPLAIN_EVERY_US 10000000
#define PING_INTERVAL_MS  5000
#define PINGS_OUT_MAX     2 /* a server that froze is given up after about 15 s */
#define CLOSE_WAIT_MS     10000
#define DRAIN_WAIT_MS     5000

static pthread_mutex_t orphans_mu = PTHREAD_MUTEX_INITIALIZER;
static struct sk_bus_nats *orphans; /* freed buses that a library thread could not be waited for */
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

static void thread_end(void *value)
{
    (void)value;
    nats_ReleaseThreadMemory();
}

static void thread_key_make(void)
{
    if (pthread_key_create(&thread_key, thread_end) != 0)
        SK_LOG_WARN("no thread key for the bus: threads that end may leave memory behind");
}

void sk_bus_thread_note(void)
{
    pthread_once(&thread_once, thread_key_make);
    if (pthread_getspecific(thread_key) == NULL)
        (void)pthread_setspecific(thread_key, &thread_key);
}

void sk_bus_wait_changed(struct sk_bus_nats *bus, int64_t ms)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += ms / 1000;
    at.tv_nsec += ms % 1000 * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(&bus->changed, &bus->mu, &at);
}

int64_t sk_bus_backoff_ms(unsigned failures)
{
    int64_t ms = SK_BUS_RETRY_MIN_MS;

    for (unsigned i = 1; i < failures && ms < SK_BUS_RETRY_MAX_MS; i++)
        ms *= 2;
    return ms < SK_BUS_RETRY_MAX_MS ? ms : SK_BUS_RETRY_MAX_MS;
}

/* Under mu. */
static void state_changed(struct sk_bus_nats *bus)
{
    atomic_store(&bus->up, bus->linked);
    atomic_store(&bus->usable, bus->linked && bus->verified);
    pthread_cond_broadcast(&bus->changed);
}

static void remember_error(struct sk_bus_nats *bus, const char *text)
{
    pthread_mutex_lock(&bus->mu);
    sk_copy_cut(bus->last_error, sizeof(bus->last_error), text != NULL ? text : "");
    pthread_mutex_unlock(&bus->mu);
}

/* ---- callbacks of the library (one thread for all connections of the process) -------------------------------------
 */

static void on_disconnected(natsConnection *nc, void *arg)
{
    struct sk_link *link = arg;
    struct sk_bus_nats *bus = link->bus;
    bool current;

    (void)nc;
    pthread_mutex_lock(&bus->mu);
    link->connected = false;
    current = bus->link == link && bus->linked;
    if (current) {
        bus->linked = bus->verified = false;
        state_changed(bus);
    }
    pthread_mutex_unlock(&bus->mu);
    if (current) {
        sk_replies_connection_lost(bus);
        SK_LOG_WARN("bus disconnected");
    }
}

static void on_closed(natsConnection *nc, void *arg)
{
    struct sk_link *link = arg;
    struct sk_bus_nats *bus = link->bus;

    (void)nc;
    pthread_mutex_lock(&bus->mu);
    link->connected = false;
    link->closed = true;
    if (bus->link == link)
        bus->linked = bus->verified = false;
    state_changed(bus);
    pthread_mutex_unlock(&bus->mu);
}

static void on_error(natsConnection *nc, natsSubscription *sub, natsStatus status, void *arg)
{
    struct sk_bus_nats *bus = ((struct sk_link *)arg)->bus;
    int64_t now = sk_mono_us(bus->sched);
    long long last = atomic_load(&bus->complained_us);

    (void)nc;
    (void)sub;
    if (status == NATS_SLOW_CONSUMER)
        sk_metric_add(&sk_bus_metric_dropped, 0, 0, 1);
    if (now - last >= COMPLAIN_EVERY_US && atomic_compare_exchange_strong(&bus->complained_us, &last, now))
        SK_LOG_WARN("bus error", SK_F("status", natsStatus_GetText(status)));
}

/* ---- subscriptions ------------------------------------------------------------------------------------------------
 */

static void on_subscription_complete(void *arg)
{
    struct sk_subscription *item = arg;
    struct sk_bus_nats *bus = item->bus;

    pthread_mutex_lock(&bus->mu);
    bus->live_subs--;
    item->live = false;
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->mu);
}

/* Under subs_mu. Subscribes on this connection; a failure means that the connection is going away (made good by the
 * next one) or that the subject is refused. */
static int subscription_open(struct sk_bus_nats *bus, natsConnection *nc, struct sk_subscription *item,
                             struct sk_error *err)
{
    natsStatus status;

    if (item->ended)
        return 0;
    if (item->queue_group[0] != '\0')
        status = natsConnection_QueueSubscribe(&item->sub, nc, item->subject, item->queue_group, item->handler, item);
    else
        status = natsConnection_Subscribe(&item->sub, nc, item->subject, item->handler, item);
    if (status != NATS_OK)
        return sk_fail(err, SK_ERR_INTERNAL, "subscribe to %s: %s", item->subject, natsStatus_GetText(status));
    if (item->unlimited)
        (void)natsSubscription_SetPendingLimits(item->sub, -1, -1);
    pthread_mutex_lock(&bus->mu);
    bus->live_subs++;
    item->live = true;
    pthread_mutex_unlock(&bus->mu);
    if (natsSubscription_SetOnCompleteCB(item->sub, on_subscription_complete, item) != NATS_OK) {
        /* Closed already: its thread cannot be waited for. The memory it may still look at is kept for ever. */
        pthread_mutex_lock(&bus->mu);
        bus->live_subs--;
        item->live = false;
        bus->orphaned = true;
        pthread_mutex_unlock(&bus->mu);
    }
    return 0;
}

struct sk_subscription *sk_bus_subscription_new(struct sk_bus_nats *bus, const char *subject, const char *queue_group,
                                                natsMsgHandler handler, void *arg)
{
    struct sk_subscription *item = calloc(1, sizeof(*item));

    if (item == NULL)
        return NULL;
    item->bus = bus;
    snprintf(item->subject, sizeof(item->subject), "%s", subject);
    snprintf(item->queue_group, sizeof(item->queue_group), "%s", queue_group != NULL ? queue_group : "");
    item->handler = handler;
    item->arg = arg;
    return item;
}

int sk_bus_subscription_add(struct sk_bus_nats *bus, struct sk_subscription *item, struct sk_error *err)
{
    bool full;

    sk_bus_thread_note();
    if (item == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    pthread_mutex_lock(&bus->subs_mu);
    full = bus->subscription_count >= SK_BUS_SUBSCRIPTIONS_MAX;
    if (!full) {
        struct sk_error ignored;
        bus->subscription_count++;
        item->next = bus->subscriptions;
        bus->subscriptions = item;
        pthread_rwlock_rdlock(&bus->conn_lock);
        if (bus->nc != NULL && subscription_open(bus, bus->nc, item, &ignored) != 0)
            SK_LOG_WARN("subscription failed; it is made again with the next connection", SK_FE(&ignored));
        pthread_rwlock_unlock(&bus->conn_lock);
    }
    pthread_mutex_unlock(&bus->subs_mu);
    if (!full)
        return 0;
    free(item);
    return sk_fail(err, SK_ERR_INTERNAL, "more than %d subscriptions", SK_BUS_SUBSCRIPTIONS_MAX);
}

void sk_bus_subscription_end(struct sk_bus_nats *bus, struct sk_subscription *item)
{
    int64_t deadline_us = sk_mono_us(bus->sched) + DRAIN_WAIT_MS * 1000;

    if (item == NULL)
        return;
    pthread_mutex_lock(&bus->subs_mu);
    item->ended = true;
    pthread_rwlock_rdlock(&bus->conn_lock);
    if (bus->nc != NULL && item->sub != NULL)
        (void)natsSubscription_DrainTimeout(item->sub, DRAIN_WAIT_MS);
    pthread_rwlock_unlock(&bus->conn_lock);
    pthread_mutex_unlock(&bus->subs_mu);
    pthread_mutex_lock(&bus->mu);
    while (item->live && sk_mono_us(bus->sched) < deadline_us)
        sk_bus_wait_changed(bus, 100);
    pthread_mutex_unlock(&bus->mu);
}

void sk_bus_on_plain_message(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *arg)
{
    struct sk_subscription *item = arg;
    const char *data = natsMsg_GetData(message);

    (void)nc;
    (void)sub;
    item->on_message(item->arg, natsMsg_GetSubject(message), natsMsg_GetReply(message), data != NULL ? data : "",
                     (size_t)natsMsg_GetDataLength(message));
    sk_bus_discard(message);
}

static void on_full_message(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *arg)
{
    struct sk_subscription *item = arg;
    struct sk_delivery view;

    (void)nc;
    (void)sub;
    sk_delivery_view(&view, message);
    item->on_full(item->arg, &view);
    sk_delivery_headers_free(&view);
    sk_bus_discard(message);
}

/* A subject to subscribe to: as for publishing, but wildcards are welcome. */
static bool filter_valid(const char *subject)
{
    char plain[SK_SUBJECT_SIZE];
    size_t len = subject != NULL ? strlen(subject) : 0;

    if (len == 0 || len >= sizeof(plain))
        return false;
    for (size_t i = 0; i <= len; i++)
        plain[i] = subject[i] == '*' || (subject[i] == '>' && i + 1 == len) ? '_' : subject[i];
    return sk_subject_valid(plain);
}

int sk_bus_nats_subscribe(struct sk_bus_nats *bus, const char *subject, const char *queue_group,
                          void (*on_message)(void *arg, const char *subject, const char *reply, const char *body,
                                             size_t len),
                          void *arg, struct sk_error *err)
{
    struct sk_subscription *item;

    if (!filter_valid(subject))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "not a subject to subscribe to");
    item = sk_bus_subscription_new(bus, subject, queue_group, sk_bus_on_plain_message, arg);
    if (item != NULL)
        item->on_message = on_message;
    return sk_bus_subscription_add(bus, item, err);
}

int sk_bus_nats_subscribe_full(struct sk_bus_nats *bus, const char *subject,
                               void (*on_message)(void *arg, const struct sk_delivery *message), void *arg,
                               struct sk_error *err)
{
    struct sk_subscription *item;

    if (!filter_valid(subject))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "not a subject to subscribe to");
    item = sk_bus_subscription_new(bus, subject, NULL, on_full_message, arg);
    if (item != NULL)
        item->on_full = on_message;
    return sk_bus_subscription_add(bus, item, err);
}

/* ---- the seam
 * -------------------------------------------------------------------------------------------------------- */

static bool op_connected(void *self)
{
    return atomic_load(&((struct sk_bus_nats *)self)->usable);
}

static const struct sk_bus_ops nats_ops = {
    .publish_acked = sk_bus_op_publish_acked,
    .publish = sk_bus_op_publish,
    .ack = sk_bus_op_ack,
    .ack_many = sk_bus_op_ack_many,
    .term = sk_bus_op_term,
    .nak = sk_bus_op_nak,
    .in_progress = sk_bus_op_in_progress,
    .connected = op_connected,
};

/* ---- the keeper ---------------------------------------------------------------------------------------------------
 */

/* Cuts the list of URLs into bus->servers. Returns their number. */
static int split_servers(struct sk_bus_nats *bus)
{
    char *rest = bus->url, *url;

    while (bus->server_count < SK_BUS_SERVERS_MAX && (url = strsep(&rest, ",")) != NULL) {
        url += strspn(url, " ");
        url[strcspn(url, " ")] = '\0';
        if (*url != '\0')
            bus->servers[bus->server_count++] = url;
    }
    return bus->server_count;
}

static natsOptions *options_new(struct sk_bus_nats *bus, const char *url, struct sk_link *link)
{
    natsOptions *options = NULL;
    bool ok = natsOptions_Create(&options) == NATS_OK && natsOptions_SetURL(options, url) == NATS_OK;

    ok = ok && natsOptions_SetName(options, bus->client_name) == NATS_OK;
    if (ok && bus->credentials_file != NULL)
        ok = natsOptions_SetUserCredentialsFromFiles(options, bus->credentials_file, NULL) == NATS_OK;
    if (ok && bus->token != NULL)
        ok = natsOptions_SetToken(options, bus->token) == NATS_OK;
    ok = ok && natsOptions_SetTimeout(options, SK_BUS_CONNECT_TIMEOUT_MS) == NATS_OK;
    ok = ok && natsOptions_SetPingInterval(options, PING_INTERVAL_MS) == NATS_OK;
    ok = ok && natsOptions_SetMaxPingsOut(options, PINGS_OUT_MAX) == NATS_OK;
    ok = ok && natsOptions_SetAllowReconnect(options, false) == NATS_OK; /* the keeper does it, see above */
    ok = ok && natsOptions_SetWriteDeadline(options, SK_BUS_WRITE_DEADLINE_MS) == NATS_OK;
    ok = ok && natsOptions_SetSendAsap(options, !bus->coalesce_writes) == NATS_OK;
    ok = ok && natsOptions_SetDisconnectedCB(options, on_disconnected, link) == NATS_OK;
    ok = ok && natsOptions_SetClosedCB(options, on_closed, link) == NATS_OK;
    ok = ok && natsOptions_SetErrorHandler(options, on_error, link) == NATS_OK;
    if (!ok) {
        natsOptions_Destroy(options);
        options = NULL;
    }
    return options;
}

static int connect_new(struct sk_bus_nats *bus)
{
    const char *url = bus->servers[bus->server_next++ % (unsigned)bus->server_count];
    struct sk_link *link;
    natsOptions *options = NULL;
    natsConnection *nc = NULL;
    natsStatus status = NATS_NO_MEMORY;
    struct sk_error err;
    bool again;

    if (sk_bus_probe(bus, url, SK_BUS_CONNECT_TIMEOUT_MS, &err) != 0) {
        remember_error(bus, err.message);
        return -1;
    }
    link = calloc(1, sizeof(*link));
    if (link != NULL) {
        *link = (struct sk_link){.bus = bus, .connected = true};
        options = options_new(bus, url, link);
    }
    if (options != NULL)
        status = natsConnection_Connect(&nc, options);
    natsOptions_Destroy(options);
    if (status != NATS_OK) {
        remember_error(bus, natsStatus_GetText(status));
        free(link);
        return -1;
    }
    atomic_store(&bus->max_payload, natsConnection_GetMaxPayload(nc));
    pthread_mutex_lock(&bus->subs_mu);
    pthread_rwlock_wrlock(&bus->conn_lock);
    bus->nc = nc;
    pthread_rwlock_unlock(&bus->conn_lock);
    for (struct sk_subscription *item = bus->subscriptions; item != NULL; item = item->next) {
        if (subscription_open(bus, nc, item, &err) != 0)
            SK_LOG_WARN("subscription failed; it is made again with the next connection", SK_FE(&err));
    }
    pthread_mutex_unlock(&bus->subs_mu);

    pthread_mutex_lock(&bus->mu);
    bus->link = link;
    bus->linked = link->connected;
    bus->verified = false;
    again = bus->connect_count++ > 0;
    bus->last_error[0] = '\0';
    state_changed(bus);
    pthread_mutex_unlock(&bus->mu);
    if (again)
        sk_metric_add(&sk_bus_metric_reconnects, 0, 0, 1);
    SK_LOG_INFO(again ? "bus connected again" : "bus connected");
    return 0;
}

/* Ends the current connection object and waits until no thread of the library can call us about it. */
static void disconnect(struct sk_bus_nats *bus)
{
    natsConnection *nc;
    struct sk_link *link;
    int64_t deadline_us = sk_mono_us(bus->sched) + CLOSE_WAIT_MS * 1000;

    pthread_mutex_lock(&bus->subs_mu);
    pthread_rwlock_wrlock(&bus->conn_lock);
    nc = bus->nc;
    bus->nc = NULL;
    pthread_rwlock_unlock(&bus->conn_lock);
    pthread_mutex_unlock(&bus->subs_mu);
    if (nc == NULL)
        return;
    pthread_mutex_lock(&bus->mu);
    link = bus->link;
    bus->link = NULL; /* what its callbacks say from now on is about the past */
    bus->linked = bus->verified = false;
    state_changed(bus);
    pthread_mutex_unlock(&bus->mu);
    natsConnection_Close(nc);

    pthread_mutex_lock(&bus->mu);
    while ((bus->live_subs > 0 || !link->closed) && sk_mono_us(bus->sched) < deadline_us)
        sk_bus_wait_changed(bus, 100);
    if (bus->live_subs > 0 || !link->closed)
        bus->orphaned = true;
    bus->live_subs = 0;
    pthread_mutex_unlock(&bus->mu);
    sk_replies_connection_lost(bus);

    /* Only now: 3.4.1 may still be handling a message for a subscription that is destroyed under its feet. */
    pthread_mutex_lock(&bus->subs_mu);
    for (struct sk_subscription *item = bus->subscriptions; item != NULL; item = item->next) {
        natsSubscription_Destroy(item->sub);
        item->sub = NULL;
    }
    pthread_mutex_unlock(&bus->subs_mu);
    natsConnection_Destroy(nc);
    if (link->closed)
        free(link);
}

/* Grows after each round over the servers; +-20 %, so that many clients do not come back at one moment. */
static int64_t pause_ms(struct sk_bus_nats *bus, unsigned failures)
{
    int64_t ms = sk_bus_backoff_ms(1 + (failures - 1) / (unsigned)bus->server_count);
    uint16_t jitter;

    sk_random(bus->sched, &jitter, sizeof(jitter));
    return ms * 4 / 5 + ms * 2 / 5 * jitter / 65536;
}

static void *keeper_main(void *arg)
{
    struct sk_bus_nats *bus = arg;
    unsigned failures = 0;

    pthread_mutex_lock(&bus->mu);
    while (!bus->stop) {
        bool again = false;
        if (bus->link != NULL && bus->link->closed) {
            pthread_mutex_unlock(&bus->mu);
            disconnect(bus);
            pthread_mutex_lock(&bus->mu);
            again = true; /* not without a pause: a server may take connections and end them at once */
        } else if (bus->link == NULL) {
            pthread_mutex_unlock(&bus->mu);
            again = connect_new(bus) != 0;
            pthread_mutex_lock(&bus->mu);
        } else if (bus->linked && !bus->verified) {
            unsigned connects = bus->connect_count, wanted = bus->verify_count;
            bool setup = bus->setup_wanted;
            struct sk_error err;
            int rc;
            pthread_mutex_unlock(&bus->mu);
            rc = sk_bus_verify(bus, setup, &err);
            if (rc != 0) {
                remember_error(bus, err.message);
                if (failures == 0)
                    SK_LOG_WARN("bus not usable yet", SK_FE(&err));
            }
            pthread_mutex_lock(&bus->mu);
            if (rc != 0) {
                again = true;
            } else if (bus->linked && bus->connect_count == connects && bus->verify_count == wanted) {
                bus->verified = true;
                state_changed(bus);
            }
        } else {
            if (bus->linked)
                failures = 0;
            /* Whatever is for this thread to do comes with a notification. */
            sk_bus_wait_changed(bus, bus->linked ? SK_BUS_IDLE_WAIT_MS : 1000);
            continue;
        }
        if (again && !bus->stop) {
            /* A notification may end the pause early; the minimum is what keeps this loop from spinning. */
            int64_t until_us = sk_mono_us(bus->sched) + pause_ms(bus, ++failures) * 1000;
            while (!bus->stop && sk_mono_us(bus->sched) < until_us)
                sk_bus_wait_changed(bus, 50);
        }
    }
    pthread_mutex_unlock(&bus->mu);
    return NULL;
}

bool sk_bus_wait_link(struct sk_bus_nats *bus, bool verified, int64_t deadline_us)
{
    bool good;

    pthread_mutex_lock(&bus->mu);
    for (;;) {
        int64_t left_ms = (deadline_us - sk_mono_us(bus->sched) + 999) / 1000;
        good = bus->linked && (bus->verified || !verified);
        if (good || left_ms <= 0 || bus->stop)
            break;
        sk_bus_wait_changed(bus, left_ms < 1000 ? left_ms : 1000);
    }
    pthread_mutex_unlock(&bus->mu);
    return good;
}

void sk_bus_verify_again(struct sk_bus_nats *bus)
{
    pthread_mutex_lock(&bus->mu);
    bus->verify_count++;
    bus->verified = false;
    state_changed(bus);
    pthread_mutex_unlock(&bus->mu);
}

/* ---- lifetime -----------------------------------------------------------------------------------------------------
 */

static void inbox_make(struct sk_bus_nats *bus)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char bytes[22];

    sk_random(bus->sched, bytes, sizeof(bytes));
    memcpy(bus->inbox, "_INBOX.", 7);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bus->inbox[7 + i] = digits[bytes[i] % 62];
    bus->inbox[7 + sizeof(bytes)] = '\0';
}

static char *copy_or_null(const char *text)
{
    return text != NULL && text[0] != '\0' ? strdup(text) : NULL;
}

static void bus_free_memory(struct sk_bus_nats *bus)
{
    struct sk_subscription *item;

    while ((item = bus->subscriptions) != NULL) {
        bus->subscriptions = item->next;
        free(item);
    }
    sk_replies_fini(&bus->table);
    sk_bus_discard_kept();
    pthread_cond_destroy(&bus->changed);
    pthread_mutex_destroy(&bus->mu);
    pthread_mutex_destroy(&bus->subs_mu);
    pthread_rwlock_destroy(&bus->conn_lock);
    free(bus->url);
    free(bus->credentials_file);
    free(bus->token);
    free(bus->client_name);
    free(bus);
}

int sk_bus_nats_new(const struct sk_bus_nats_config *config, const struct sk_sched *sched, struct sk_bus_nats **out,
                    struct sk_bus *seam, struct sk_error *err)
{
    struct sk_bus_nats *bus = calloc(1, sizeof(*bus));
    const char *prefix =
        config->prefix != NULL && config->prefix[0] != '\0' ? config->prefix : SK_SUBJECT_PREFIX_DEFAULT;
    pthread_condattr_t attr;
    pthread_rwlockattr_t rwattr;
    natsOptions *probe;
    struct sk_subscription *confirmations;
    char subject[SK_SUBJECT_SIZE];

    if (bus == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    bus->sched = sched;
    bus->url = strdup(config->url != NULL && config->url[0] != '\0' ? config->url : "nats://127.0.0.1:4222");
    bus->credentials_file = copy_or_null(config->credentials_file);
    bus->token = copy_or_null(config->token);
    bus->client_name =
        strdup(config->client_name != NULL && config->client_name[0] != '\0' ? config->client_name : "sandkeep");
    bus->ack_wait_ms = config->ack_wait_ms > 0 ? config->ack_wait_ms : 30000;
    bus->max_ack_pending = config->max_ack_pending > 0 ? config->max_ack_pending : 20000;
    bus->pull_batch = config->pull_batch > 0 ? config->pull_batch : 256;
    bus->stream_replicas = config->stream_replicas > 0 ? config->stream_replicas : 1;
    bus->commands_max_bytes = config->commands_max_bytes > 0 ? config->commands_max_bytes : (int64_t)1 << 30;
    bus->events_max_bytes = config->events_max_bytes > 0 ? config->events_max_bytes : (int64_t)2 << 30;
    bus->coalesce_writes = config->coalesce_writes;
    atomic_store(&bus->complained_us, -COMPLAIN_EVERY_US);
    atomic_store(&bus->incarnation, 1);
    pthread_rwlockattr_init(&rwattr);
    pthread_rwlockattr_setkind_np(&rwattr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&bus->conn_lock, &rwattr);
    pthread_rwlockattr_destroy(&rwattr);
    pthread_mutex_init(&bus->subs_mu, NULL);
    pthread_mutex_init(&bus->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&bus->changed, &attr);
    pthread_condattr_destroy(&attr);
    sk_replies_init(&bus->table);
    inbox_make(bus);
    sk_bus_metrics_register();
    sk_bus_thread_note();

    if (bus->url == NULL || bus->client_name == NULL) {
        (void)sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        goto failed;
    }
    if (!sk_subject_valid(prefix) || strlen(prefix) >= sizeof(bus->prefix) || prefix[0] == '$' || prefix[0] == '_') {
        (void)sk_fail(err, SK_ERR_INVALID_REQUEST, "subject prefix \"%.80s\" cannot be used", prefix);
        goto failed;
    }
    memcpy(bus->prefix, prefix, strlen(prefix) + 1);
    probe = split_servers(bus) > 0 ? options_new(bus, bus->servers[0], NULL) : NULL;
    if (probe == NULL) {
        (void)sk_fail(err, SK_ERR_INVALID_REQUEST, "NATS URL, credentials file or token cannot be used");
        goto failed;
    }
    natsOptions_Destroy(probe);
    snprintf(subject, sizeof(subject), "%s.r.*", bus->inbox);
    confirmations = sk_bus_subscription_new(bus, subject, NULL, sk_replies_on_message, NULL);
    if (confirmations != NULL)
        confirmations->unlimited = true;
    if (sk_bus_subscription_add(bus, confirmations, err) != 0)
        goto failed;
    if (pthread_create(&bus->keeper, NULL, keeper_main, bus) != 0) {
        (void)sk_fail(err, SK_ERR_INTERNAL, "cannot start a thread");
        goto failed;
    }
    bus->keeper_started = true;
    *out = bus;
    seam->ops = &nats_ops;
    seam->self = bus;
    return 0;

failed:
    bus_free_memory(bus);
    return -1;
}

int sk_bus_nats_wait(struct sk_bus_nats *bus, int64_t timeout_ms, struct sk_error *err)
{
    char reason[sizeof(bus->last_error)];

    if (sk_bus_wait_link(bus, true, sk_mono_us(bus->sched) + timeout_ms * 1000))
        return 0;
    pthread_mutex_lock(&bus->mu);
    memcpy(reason, bus->last_error, sizeof(reason));
    pthread_mutex_unlock(&bus->mu);
    return sk_fail(err, SK_ERR_INTERNAL, "not connected to NATS: %s", reason[0] != '\0' ? reason : "no answer yet");
}

void sk_bus_nats_inbox(struct sk_bus_nats *bus, char out[SK_BUS_INBOX_SIZE])
{
    snprintf(out, SK_BUS_INBOX_SIZE, "%s.u.%u", bus->inbox, atomic_fetch_add(&bus->inbox_counter, 1));
}

int sk_bus_nats_drain(struct sk_bus_nats *bus, int64_t timeout_ms)
{
    natsStatus status = NATS_CONNECTION_DISCONNECTED;

    sk_bus_thread_note();
    pthread_rwlock_rdlock(&bus->conn_lock);
    if (bus->nc != NULL && atomic_load(&bus->up))
        status = natsConnection_FlushTimeout(bus->nc, timeout_ms > 0 ? timeout_ms : 1);
    pthread_rwlock_unlock(&bus->conn_lock);
    return status == NATS_OK ? 0 : -1;
}

void sk_bus_nats_free(struct sk_bus_nats *bus)
{
    if (bus == NULL)
        return;
    sk_strays_stop(bus);
    sk_bus_nats_pull_stop(bus);
    pthread_mutex_lock(&bus->mu);
    bus->stop = true;
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->mu);
    if (bus->keeper_started)
        pthread_join(bus->keeper, NULL);
    disconnect(bus);
    if (bus->orphaned) {
        /* A thread of the library may still look at it: kept until the library itself ends. */
        pthread_mutex_lock(&orphans_mu);
        bus->next_orphan = orphans;
        orphans = bus;
        pthread_mutex_unlock(&orphans_mu);
        return;
    }
    bus_free_memory(bus);
}

void sk_bus_nats_library_close(void)
{
    natsStatus status = nats_CloseAndWait(CLOSE_WAIT_MS);
    struct sk_bus_nats *bus;

    if (status != NATS_OK && status != NATS_NOT_INITIALIZED) {
        SK_LOG_WARN("threads of the NATS library did not end in time");
        return;
    }
    pthread_mutex_lock(&orphans_mu);
    while ((bus = orphans) != NULL) {
        orphans = bus->next_orphan;
        bus_free_memory(bus);
    }
    pthread_mutex_unlock(&orphans_mu);
}
