/* SPDX-License-Identifier: Apache-2.0
 *
 * Confirmations: what we publish with a reply subject (messages to a stream, acks, API calls, requests) is answered on
 * one inbox subscription, and this table finds who waits for it. One mechanism for all of them, with a fixed number of
 * places, deadlines owned by the waiter and nothing left behind after a time-out; the library's asynchronous publisher
 * (blocking when full, per-message timers, half-owned callbacks) is not needed. */
#include "common/bus/internal.h"

#include "common/metrics/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NO_SLOT UINT32_MAX

int sk_replies_init(struct sk_reply_table *table)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&table->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&table->freed, &attr);
    pthread_condattr_destroy(&attr);
    for (uint32_t i = 0; i < SK_BUS_IN_FLIGHT_MAX; i++)
        table->slots[i] = (struct sk_reply_slot){.next_free = i + 1 < SK_BUS_IN_FLIGHT_MAX ? i + 1 : NO_SLOT};
    table->free_head = 0;
    return 0;
}

void sk_replies_fini(struct sk_reply_table *table)
{
    pthread_cond_destroy(&table->freed);
    pthread_mutex_destroy(&table->mu);
}

/* False when the deadline passed. */
static bool timed_wait(struct sk_bus_nats *bus, pthread_cond_t *cond, int64_t deadline_us)
{
    int64_t left_us = deadline_us - sk_mono_us(bus->sched);
    struct timespec at;

    if (left_us <= 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += left_us / 1000000;
    at.tv_nsec += left_us % 1000000 * 1000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(cond, &bus->table.mu, &at);
    return true;
}

void sk_group_init(struct sk_reply_group *group, struct sk_reply *replies, int count)
{
    pthread_condattr_t attr;

    memset(group, 0, sizeof(*group));
    memset(replies, 0, (size_t)count * sizeof(*replies));
    for (int i = 0; i < count; i++)
        replies[i].slot = NO_SLOT;
    group->replies = replies;
    group->count = count;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&group->cond, &attr);
    pthread_condattr_destroy(&attr);
}

/* Under table->mu. */
static void slot_free(struct sk_reply_table *table, uint32_t slot)
{
    table->slots[slot].group = NULL;
    table->slots[slot].generation++; /* a late reply finds nobody */
    table->slots[slot].next_free = table->free_head;
    table->free_head = slot;
    sk_metric_add(&sk_bus_metric_in_flight, 0, 0, -1);
    if (table->waiters > 0)
        pthread_cond_signal(&table->freed);
}

bool sk_group_open(struct sk_bus_nats *bus, struct sk_reply_group *group, int index, char reply[SK_BUS_INBOX_SIZE + 24],
                   int64_t deadline_us)
{
    struct sk_reply_table *table = &bus->table;
    struct sk_reply_slot *slot;
    uint32_t at;

    pthread_mutex_lock(&table->mu);
    while (table->free_head == NO_SLOT) {
        bool again;
        table->waiters++;
        again = timed_wait(bus, &table->freed, deadline_us);
        table->waiters--;
        if (!again && table->free_head == NO_SLOT) {
            pthread_mutex_unlock(&table->mu);
            return false;
        }
    }
    at = table->free_head;
    slot = &table->slots[at];
    table->free_head = slot->next_free;
    slot->group = group;
    slot->index = index;
    group->replies[index] = (struct sk_reply){.state = SK_REPLY_WAITING, .slot = at};
    group->pending++;
    snprintf(reply, SK_BUS_INBOX_SIZE + 24, "%s.r.%x-%x", bus->inbox, at, slot->generation);
    sk_metric_add(&sk_bus_metric_in_flight, 0, 0, 1);
    pthread_mutex_unlock(&table->mu);
    return true;
}

void sk_group_abandon(struct sk_bus_nats *bus, struct sk_reply_group *group, int index)
{
    struct sk_reply *reply = &group->replies[index];

    pthread_mutex_lock(&bus->table.mu);
    if (reply->slot != NO_SLOT) {
        slot_free(&bus->table, reply->slot);
        *reply = (struct sk_reply){.state = SK_REPLY_UNUSED, .slot = NO_SLOT};
        group->pending--;
    }
    pthread_mutex_unlock(&bus->table.mu);
}

void sk_group_wait(struct sk_bus_nats *bus, struct sk_reply_group *group, int64_t deadline_us)
{
    pthread_mutex_lock(&bus->table.mu);
    while (group->pending > 0) {
        if (!timed_wait(bus, &group->cond, deadline_us))
            break;
    }
    for (int i = 0; i < group->count && group->pending > 0; i++) {
        if (group->replies[i].slot == NO_SLOT)
            continue;
        slot_free(&bus->table, group->replies[i].slot);
        group->replies[i].slot = NO_SLOT;
        group->pending--;
    }
    pthread_mutex_unlock(&bus->table.mu);
}

void sk_group_fini(struct sk_reply_group *group)
{
    for (int i = 0; i < group->count; i++)
        sk_bus_discard(group->replies[i].message);
    pthread_cond_destroy(&group->cond);
}

/* Under table->mu. */
static void settle(struct sk_reply_table *table, uint32_t at, enum sk_reply_state state, natsMsg *message)
{
    struct sk_reply_group *group = table->slots[at].group;
    struct sk_reply *reply = &group->replies[table->slots[at].index];

    reply->state = state;
    reply->message = message;
    reply->slot = NO_SLOT;
    slot_free(table, at);
    if (--group->pending == 0)
        pthread_cond_signal(&group->cond);
}

/* Library thread of the inbox subscription. */
void sk_replies_on_message(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *arg)
{
    struct sk_bus_nats *bus = ((struct sk_subscription *)arg)->bus;
    struct sk_reply_table *table = &bus->table;
    const char *token = strrchr(natsMsg_GetSubject(message), '.');
    unsigned at, generation;
    bool nobody = natsMsg_IsNoResponders(message);
    char extra;

    (void)nc;
    (void)sub;
    if (token == NULL || sscanf(token + 1, "%x-%x%c", &at, &generation, &extra) != 2 || at >= SK_BUS_IN_FLIGHT_MAX) {
        sk_bus_discard(message);
        return;
    }
    pthread_mutex_lock(&table->mu);
    if (table->slots[at].group != NULL && table->slots[at].generation == generation) {
        settle(table, at, nobody ? SK_REPLY_NOBODY : SK_REPLY_ARRIVED, nobody ? NULL : message);
        if (!nobody)
            message = NULL;
    }
    pthread_mutex_unlock(&table->mu);
    sk_bus_discard(message);
}

void sk_replies_connection_lost(struct sk_bus_nats *bus)
{
    struct sk_reply_table *table = &bus->table;

    pthread_mutex_lock(&table->mu);
    for (uint32_t i = 0; i < SK_BUS_IN_FLIGHT_MAX; i++) {
        if (table->slots[i].group != NULL)
            settle(table, i, SK_REPLY_LOST, NULL);
    }
    pthread_mutex_unlock(&table->mu);
}
