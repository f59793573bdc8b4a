/* SPDX-License-Identifier: Apache-2.0
 *
 * Our own pull (the library's Fetch is not safe in 3.4.1): one request at a time is out for a durable consumer, asking
 * for as many messages as `want` allows; messages and the request's end come to a long-lived inbox subscription. A
 * request ends when its messages are all there, by a status of the server, by missing heartbeats or with the
 * connection; then the next one is sent, never without a pause when something was wrong. */
#include "common/bus/internal.h"

#include "common/log/log.h"
#include "common/metrics/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEARTBEATS_MISSED 2
#define QUICK_END_MS      100 /* an empty request that ends sooner than this counts as a failure */

static int64_t age_ms(struct sk_bus_nats *bus, int64_t since_us)
{
    return (sk_mono_us(bus->sched) - since_us) / 1000;
}

/* ---- what comes in (library thread of the subscription) -----------------------------------------------------------
 */

static void on_status(struct sk_pull *pull, natsMsg *message)
{
    struct sk_bus_nats *bus = pull->bus;
    const char *token = strrchr(natsMsg_GetSubject(message), '.'), *status = NULL, *description = NULL;
    uint32_t number = token != NULL ? (uint32_t)strtoul(token + 1, NULL, 10) : 0;
    bool look = false, odd = false;

    (void)natsMsgHeader_Get(message, "Status", &status);
    (void)natsMsgHeader_Get(message, "Description", &description);
    pthread_mutex_lock(&bus->mu);
    if (pull->open && number == pull->request) {
        pull->last_seen_us = sk_mono_us(bus->sched);
        if (status == NULL || strcmp(status, "100") != 0) {
            /* 404 and 408: nothing there, time is up. 503: no such consumer. 400, 409: refused, deleted, moved. */
            bool normal = status != NULL && (strcmp(status, "408") == 0 || strcmp(status, "404") == 0);
            pull->open = false;
            if (normal && (pull->taken > 0 || age_ms(bus, pull->opened_us) >= QUICK_END_MS)) {
                pull->failures = 0;
            } else {
                pull->failures++;
                odd = !normal && pull->failures == 1;
                look = !normal;
            }
            pthread_cond_broadcast(&bus->changed);
        }
    }
    pthread_mutex_unlock(&bus->mu);
    if (odd)
        SK_LOG_INFO("pull request ended", SK_F("consumer", pull->durable), SK_F("status", status),
                    SK_F("description", description));
    if (look)
        sk_bus_verify_again(bus);
}

static void on_message(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *arg)
{
    struct sk_pull *pull = ((struct sk_subscription *)arg)->arg;
    struct sk_bus_nats *bus = pull->bus;
    const char *reply = natsMsg_GetReply(message);
    struct sk_delivery *delivery;
    uint32_t number;
    bool stopping;

    (void)nc;
    (void)sub;
    /* Only a message of the stream has an ack subject; a status look-alike published as a command has one too. */
    if (reply == NULL || strncmp(reply, "$JS.ACK.", 8) != 0) {
        on_status(pull, message);
        sk_bus_discard(message);
        return;
    }
    pthread_mutex_lock(&bus->mu);
    stopping = pull->stopping;
    number = pull->request;
    pull->last_seen_us = sk_mono_us(bus->sched);
    pull->failures = 0;
    pull->taken++;
    pthread_mutex_unlock(&bus->mu);
    delivery = sk_delivery_from_message(bus, message);
    if (delivery == NULL)
        return; /* out of memory: comes again after AckWait, the request ends by its time */
    if (stopping)
        (void)sk_bus_op_nak(bus, delivery, 0, NULL);
    else
        pull->on_delivery(pull->arg, delivery);
    /* Only now may the next request be made: `want` has to know of this delivery. */
    pthread_mutex_lock(&bus->mu);
    if (pull->open && pull->request == number && --pull->remaining <= 0) {
        pull->open = false;
        pthread_cond_broadcast(&bus->changed);
    }
    pthread_mutex_unlock(&bus->mu);
}

/* ---- what goes out (thread of the pull) ---------------------------------------------------------------------------
 */

static int send_request(struct sk_pull *pull, int batch, uint32_t number)
{
    struct sk_bus_nats *bus = pull->bus;
    char subject[SK_SUBJECT_SIZE], reply[SK_BUS_INBOX_SIZE + 24], body[160];

    snprintf(subject, sizeof(subject), "$JS.API.CONSUMER.MSG.NEXT.%s.%s", SK_STREAM_COMMANDS, pull->durable);
    snprintf(reply, sizeof(reply), "%s.%" PRIu32, pull->inbox, number);
    snprintf(body, sizeof(body), "{\"batch\":%d,\"expires\":%" PRId64 ",\"idle_heartbeat\":%" PRId64 "}", batch,
             (int64_t)SK_BUS_PULL_EXPIRES_MS * 1000000, (int64_t)SK_BUS_PULL_HEARTBEAT_MS * 1000000);
    return sk_bus_publish_raw(bus, subject, reply, body, strlen(body), NULL, NULL);
}

/* Under mu. Closes a request that cannot bring anything any more; returns ms until it has to be looked at again, 0 when
 * none is open. */
static int64_t request_left_ms(struct sk_pull *pull)
{
    struct sk_bus_nats *bus = pull->bus;
    const int64_t silent_max_ms = HEARTBEATS_MISSED * SK_BUS_PULL_HEARTBEAT_MS + SK_BUS_PULL_HEARTBEAT_MS / 2;
    const int64_t old_max_ms = SK_BUS_PULL_EXPIRES_MS + SK_BUS_PULL_HEARTBEAT_MS;
    int64_t silent_left_ms, old_left_ms;

    if (!pull->open)
        return 0;
    if (pull->connect_count != bus->connect_count) {
        pull->open = false; /* sent on a connection that is gone; a late message is taken all the same */
        return 0;
    }
    silent_left_ms = silent_max_ms - age_ms(bus, pull->last_seen_us);
    old_left_ms = old_max_ms - age_ms(bus, pull->opened_us);
    if (silent_left_ms <= 0 || old_left_ms <= 0) {
        pull->open = false;
        pull->failures++;
        sk_metric_add(&sk_bus_metric_pull_stalls, 0, 0, 1);
        return 0;
    }
    return silent_left_ms < old_left_ms ? silent_left_ms : old_left_ms;
}

static void *pull_main(void *arg)
{
    struct sk_pull *pull = arg;
    struct sk_bus_nats *bus = pull->bus;

    sk_bus_thread_note();
    pthread_mutex_lock(&bus->mu);
    while (!pull->stopping) {
        int64_t left_ms = request_left_ms(pull);
        int want;

        if (left_ms > 0 || !bus->linked || !bus->verified) {
            sk_bus_wait_changed(bus, left_ms > 0 ? left_ms : SK_BUS_IDLE_WAIT_MS);
            continue;
        }
        if (pull->failures > 0) {
            int64_t until_us = sk_mono_us(bus->sched) + sk_bus_backoff_ms(pull->failures) * 1000;
            while (!pull->stopping && sk_mono_us(bus->sched) < until_us)
                sk_bus_wait_changed(bus, (until_us - sk_mono_us(bus->sched)) / 1000 + 1);
            if (pull->stopping || !bus->linked || !bus->verified)
                continue;
        }
        pthread_mutex_unlock(&bus->mu);
        want = pull->want(pull->arg);
        if (want <= 0) {
            /* Nothing tells us when there is room again: look a few dozen times a second. */
            sk_sleep_ms(bus->sched, SK_BUS_WANT_POLL_MS);
            pthread_mutex_lock(&bus->mu);
            continue;
        }
        if (want > bus->pull_batch)
            want = bus->pull_batch;
        pthread_mutex_lock(&bus->mu);
        if (pull->stopping)
            break;
        pull->open = true;
        pull->request++;
        pull->remaining = want;
        pull->taken = 0;
        pull->opened_us = pull->last_seen_us = sk_mono_us(bus->sched);
        pull->connect_count = bus->connect_count;
        {
            uint32_t number = pull->request;
            int rc;
            pthread_mutex_unlock(&bus->mu);
            rc = send_request(pull, want, number);
            pthread_mutex_lock(&bus->mu);
            if (rc != 0 && pull->request == number) {
                pull->open = false;
                pull->failures++;
            }
        }
    }
    pthread_mutex_unlock(&bus->mu);
    return NULL;
}

int sk_bus_nats_pull(struct sk_bus_nats *bus, const char *durable, const char *filter, int (*want)(void *arg),
                     void (*on_delivery)(void *arg, struct sk_delivery *delivery), void *arg, struct sk_error *err)
{
    struct sk_pull *pull;
    struct sk_subscription *item;
    char subject[SK_SUBJECT_SIZE];
    int index;

    if (strlen(durable) >= sizeof(pull->durable) || strpbrk(durable, ". *>\t\r\n") != NULL || durable[0] == '\0' ||
        strlen(filter) >= sizeof(pull->filter))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "pull: durable or filter cannot be used");
    pthread_mutex_lock(&bus->mu);
    index = bus->pull_count;
    if (index >= SK_BUS_PULLS_MAX) {
        pthread_mutex_unlock(&bus->mu);
        return sk_fail(err, SK_ERR_INTERNAL, "more than %d pulls", SK_BUS_PULLS_MAX);
    }
    pull = &bus->pulls[index];
    memset(pull, 0, sizeof(*pull));
    pull->bus = bus;
    snprintf(pull->durable, sizeof(pull->durable), "%s", durable);
    snprintf(pull->filter, sizeof(pull->filter), "%s", filter);
    snprintf(pull->inbox, sizeof(pull->inbox), "%s.p%d", bus->inbox, index);
    pull->want = want;
    pull->on_delivery = on_delivery;
    pull->arg = arg;
    bus->pull_count++;
    pthread_mutex_unlock(&bus->mu);

    snprintf(subject, sizeof(subject), "%s.*", pull->inbox);
    item = sk_bus_subscription_new(bus, subject, NULL, on_message, pull);
    if (item != NULL)
        item->unlimited = true; /* what is outstanding is what we asked for; a dropped message would wait for AckWait */
    if (sk_bus_subscription_add(bus, item, err) != 0)
        goto failed;
    pull->subscription = item;
    sk_bus_verify_again(bus); /* makes the consumer */
    if (pthread_create(&pull->thread, NULL, pull_main, pull) != 0) {
        (void)sk_fail(err, SK_ERR_INTERNAL, "cannot start a thread");
        goto failed;
    }
    pull->started = true;
    return 0;

failed:
    /* The place stays taken (its subscription may exist), but nothing is asked for. */
    pthread_mutex_lock(&bus->mu);
    pull->stopping = true;
    pthread_mutex_unlock(&bus->mu);
    return -1;
}

void sk_bus_nats_pull_stop(struct sk_bus_nats *bus)
{
    int count;

    sk_bus_thread_note();
    pthread_mutex_lock(&bus->mu);
    count = bus->pull_count;
    for (int i = 0; i < count; i++)
        bus->pulls[i].stopping = true;
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->mu);
    for (int i = 0; i < count; i++) {
        struct sk_pull *pull = &bus->pulls[i];
        if (!pull->started)
            continue;
        pthread_join(pull->thread, NULL);
        pull->started = false;
        sk_bus_subscription_end(bus, pull->subscription);
    }
}
