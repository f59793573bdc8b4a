/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring under a mutex, and one gate for each sleeping consumer, so that a push wakes one of them and not all (a pool
 * has dozens). The ticket is taken before the ring is looked at, so a push between the look and the wait ends the wait
 * at once; a consumer that was chosen by a push and timed out at the same moment looks at the ring once more. */
#include "common/base/queue.h"

#include "common/base/list.h"

#include <pthread.h>
#include <stdlib.h>

#define NO_MEMORY_NAP_MS 10

/* Belongs to the queue until it is freed; a consumer borrows one for the time of a wait. A late notification that meets
 * the next borrower is harmless: everybody looks at the ring again after waking. */
struct waiter {
    struct sk_list link; /* in `asleep` or in `idle` */
    struct sk_gate *gate;
};

struct sk_queue {
    const struct sk_sched *sched;
    pthread_mutex_t lock;
    struct sk_list asleep, idle;
    size_t capacity, head, count; /* head = index of the oldest */
    bool closed;
    void *ring[];
};

struct sk_queue *sk_queue_new(const struct sk_sched *sched, size_t capacity)
{
    struct sk_queue *queue;

    if (capacity == 0 || capacity > (SIZE_MAX - sizeof(*queue)) / sizeof(void *))
        return NULL;
    queue = calloc(1, sizeof(*queue) + capacity * sizeof(void *));
    if (queue == NULL)
        return NULL;
    queue->sched = sched;
    queue->capacity = capacity;
    sk_list_init(&queue->asleep);
    sk_list_init(&queue->idle);
    pthread_mutex_init(&queue->lock, NULL);
    return queue;
}

static struct waiter *waiter_new(const struct sk_sched *sched)
{
    struct waiter *waiter = malloc(sizeof(*waiter));

    if (waiter == NULL)
        return NULL;
    sk_list_init(&waiter->link);
    waiter->gate = sk_gate_new(sched);
    if (waiter->gate == NULL) {
        free(waiter);
        return NULL;
    }
    return waiter;
}

static void free_waiters(const struct sk_sched *sched, struct sk_list *list)
{
    struct sk_list *item;

    while ((item = sk_list_pop_front(list)) != NULL) {
        struct waiter *waiter = SK_LIST_ENTRY(struct waiter, item, link);
        sk_gate_free(sched, waiter->gate);
        free(waiter);
    }
}

void sk_queue_free(struct sk_queue *queue)
{
    if (queue == NULL)
        return;
    free_waiters(queue->sched, &queue->idle);
    free_waiters(queue->sched, &queue->asleep);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

static enum sk_queue_status push(struct sk_queue *queue, void *item, bool front)
{
    enum sk_queue_status status = SK_QUEUE_OK;
    struct sk_gate *gate = NULL;

    pthread_mutex_lock(&queue->lock);
    if (queue->closed) {
        status = SK_QUEUE_CLOSED;
    } else if (queue->count == queue->capacity) {
        status = SK_QUEUE_FULL;
    } else {
        if (front) {
            queue->head = (queue->head + queue->capacity - 1) % queue->capacity;
            queue->ring[queue->head] = item;
        } else {
            queue->ring[(queue->head + queue->count) % queue->capacity] = item;
        }
        queue->count++;
        if (!sk_list_empty(&queue->asleep)) {
            /* The last one to fall asleep: its stack and caches are the warmest. Out of the list, so that the next push
             * chooses another. */
            struct waiter *chosen = SK_LIST_ENTRY(struct waiter, queue->asleep.prev, link);
            sk_list_remove(&chosen->link);
            gate = chosen->gate;
        }
    }
    pthread_mutex_unlock(&queue->lock);
    /* Outside the lock: a simulated scheduler may switch fibres here. */
    if (gate != NULL)
        sk_gate_notify(queue->sched, gate);
    return status;
}

enum sk_queue_status sk_queue_push_try(struct sk_queue *queue, void *item)
{
    return push(queue, item, false);
}

enum sk_queue_status sk_queue_push_front_try(struct sk_queue *queue, void *item)
{
    return push(queue, item, true);
}

/* Under the lock. */
static enum sk_queue_status take(struct sk_queue *queue, void **item)
{
    if (queue->count == 0)
        return queue->closed ? SK_QUEUE_CLOSED : SK_QUEUE_TIMEOUT;
    *item = queue->ring[queue->head];
    queue->head = (queue->head + 1) % queue->capacity;
    queue->count--;
    return SK_QUEUE_OK;
}

static int64_t time_left_ms(const struct sk_queue *queue, int64_t timeout_ms, int64_t end_us)
{
    int64_t left_us;

    if (timeout_ms <= 0)
        return timeout_ms;
    left_us = end_us - sk_mono_us(queue->sched);
    return left_us > 0 ? (left_us + 999) / 1000 : 0;
}

enum sk_queue_status sk_queue_pop(struct sk_queue *queue, int64_t timeout_ms, void **item)
{
    int64_t end_us = timeout_ms > 0 ? sk_mono_us(queue->sched) + timeout_ms * 1000 : 0;
    struct waiter *waiter = NULL;
    enum sk_queue_status status;

    *item = NULL;
    pthread_mutex_lock(&queue->lock);
    status = take(queue, item);
    if (status != SK_QUEUE_TIMEOUT || timeout_ms == 0)
        goto out;
    if (!sk_list_empty(&queue->idle)) {
        waiter = SK_LIST_ENTRY(struct waiter, queue->idle.prev, link);
        sk_list_remove(&waiter->link);
    }
    for (;;) {
        int64_t left_ms = time_left_ms(queue, timeout_ms, end_us);
        uint64_t ticket = 0;

        pthread_mutex_unlock(&queue->lock);
        if (waiter == NULL)
            waiter = waiter_new(queue->sched);
        if (waiter != NULL)
            ticket = sk_gate_ticket(queue->sched, waiter->gate);
        pthread_mutex_lock(&queue->lock);
        status = take(queue, item);
        if (status != SK_QUEUE_TIMEOUT || left_ms == 0)
            break;
        if (waiter != NULL)
            sk_list_push_back(&queue->asleep, &waiter->link);
        pthread_mutex_unlock(&queue->lock);
        if (waiter != NULL)
            sk_gate_wait(queue->sched, waiter->gate, ticket, left_ms);
        else
            sk_sleep_ms(queue->sched, NO_MEMORY_NAP_MS);
        pthread_mutex_lock(&queue->lock);
        if (waiter != NULL)
            sk_list_remove(&waiter->link); /* a no-op when a push has chosen it */
        status = take(queue, item);
        if (status != SK_QUEUE_TIMEOUT)
            break;
    }
out:
    if (waiter != NULL)
        sk_list_push_back(&queue->idle, &waiter->link);
    pthread_mutex_unlock(&queue->lock);
    return status;
}

void sk_queue_close(struct sk_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    /* One at a time and without the lock: notifying may switch fibres, and a woken consumer wants the lock. */
    while (!sk_list_empty(&queue->asleep)) {
        struct sk_list *item = sk_list_pop_front(&queue->asleep);
        struct sk_gate *gate = SK_LIST_ENTRY(struct waiter, item, link)->gate;
        pthread_mutex_unlock(&queue->lock);
        sk_gate_notify(queue->sched, gate);
        pthread_mutex_lock(&queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
}

size_t sk_queue_depth(struct sk_queue *queue)
{
    size_t count;

    pthread_mutex_lock(&queue->lock);
    count = queue->count;
    pthread_mutex_unlock(&queue->lock);
    return count;
}

size_t sk_queue_capacity(const struct sk_queue *queue)
{
    return queue->capacity;
}

bool sk_queue_closed(struct sk_queue *queue)
{
    bool closed;

    pthread_mutex_lock(&queue->lock);
    closed = queue->closed;
    pthread_mutex_unlock(&queue->lock);
    return closed;
}
