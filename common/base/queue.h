/* SPDX-License-Identifier: Apache-2.0
 *
 * A bounded first-in-first-out queue of pointers between threads (many producers, many consumers), waiting through the
 * scheduler's gates, so that it works under the simulator too: the ring has a mutex, which is never held while waiting.
 *
 * Pushing never waits: a full queue is the caller's decision (refuse, drop, park). After close, pushes are refused, and
 * consumers still get what is queued, then NULL. The queue does not own what it carries: empty it before sk_queue_free.
 */
#ifndef SK_BASE_QUEUE_H
#define SK_BASE_QUEUE_H

#include "common/base/sched.h"

struct sk_queue;

enum sk_queue_status {
    SK_QUEUE_OK = 0,
    SK_QUEUE_FULL,    /* push: at capacity */
    SK_QUEUE_CLOSED,  /* push: closed; pop: closed and empty, nothing will ever come */
    SK_QUEUE_TIMEOUT, /* pop: nothing came in time */
};

/* `capacity` items at most (> 0). NULL when out of memory. `sched` must outlive the queue. */
SK_MUST_USE struct sk_queue *sk_queue_new(const struct sk_sched *sched, size_t capacity);
/* No thread may be inside any call any more. NULL is allowed. */
void sk_queue_free(struct sk_queue *queue);

/* Any thread, never blocks (a mutex held for a few instructions). `item` must not be NULL. */
SK_MUST_USE enum sk_queue_status sk_queue_push_try(struct sk_queue *queue, void *item);
/* Puts it before all others (a command that overtakes). Same bound. */
SK_MUST_USE enum sk_queue_status sk_queue_push_front_try(struct sk_queue *queue, void *item);
/* Any thread; waits up to timeout_ms (0 = only looks, < 0 = no limit). *item is NULL unless SK_QUEUE_OK. */
SK_MUST_USE enum sk_queue_status sk_queue_pop(struct sk_queue *queue, int64_t timeout_ms, void **item);
/* Any thread, idempotent: wakes every waiting consumer. */
void sk_queue_close(struct sk_queue *queue);

size_t sk_queue_depth(struct sk_queue *queue); /* items now: for metrics, not for decisions */
size_t sk_queue_capacity(const struct sk_queue *queue);
bool sk_queue_closed(struct sk_queue *queue);

#endif
