/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam for time, chance and waiting. Workflow code never calls clock_gettime, nanosleep, pthread_cond_wait or
 * random itself: production gets the real thing (sk_sched_system), the simulator a seeded scheduler with virtual time.
 *
 * A `gate` is an event count: a waiter sleeps until the gate is notified or a time-out passes. Notifications are not
 * lost: a notify that comes between the caller's look at its queue and the wait makes the wait return at once
 * (pass the ticket taken with sk_gate_ticket before looking). */
#ifndef SK_BASE_SCHED_H
#define SK_BASE_SCHED_H

#include "common/base/error.h"

#include <stdatomic.h>

struct sk_gate; /* opaque, made by the scheduler */

struct sk_sched {
    const struct sk_sched_ops *ops;
    void *self;
};

struct sk_sched_ops {
    int64_t (*wall_ms)(void *self); /* Unix time in ms: for documents only, may jump and be skewed */
    int64_t (*mono_us)(void *self); /* monotonic microseconds: for every decision about elapsed time */
    void (*sleep_ms)(void *self, int64_t ms);
    void (*random_bytes)(void *self, void *out, size_t len);
    struct sk_gate *(*gate_new)(void *self); /* NULL when out of memory */
    void (*gate_free)(void *self, struct sk_gate *gate);
    uint64_t (*gate_ticket)(void *self, struct sk_gate *gate);
    /* Returns when the gate was notified after `ticket` was taken, or after timeout_ms (< 0 = no limit). */
    void (*gate_wait)(void *self, struct sk_gate *gate, uint64_t ticket, int64_t timeout_ms);
    void (*gate_notify)(void *self, struct sk_gate *gate); /* wakes all waiters; any thread, async-signal-unsafe */
};

/* The production scheduler: CLOCK_REALTIME, CLOCK_MONOTONIC, getrandom, mutex + condition per gate. Thread-safe. */
extern const struct sk_sched sk_sched_system;

static inline int64_t sk_wall_ms(const struct sk_sched *s)
{
    return s->ops->wall_ms(s->self);
}
static inline int64_t sk_mono_us(const struct sk_sched *s)
{
    return s->ops->mono_us(s->self);
}
static inline int64_t sk_mono_ms(const struct sk_sched *s)
{
    return s->ops->mono_us(s->self) / 1000;
}
static inline void sk_sleep_ms(const struct sk_sched *s, int64_t ms)
{
    s->ops->sleep_ms(s->self, ms);
}
static inline void sk_random(const struct sk_sched *s, void *out, size_t n)
{
    s->ops->random_bytes(s->self, out, n);
}
static inline struct sk_gate *sk_gate_new(const struct sk_sched *s)
{
    return s->ops->gate_new(s->self);
}
static inline void sk_gate_free(const struct sk_sched *s, struct sk_gate *g)
{
    s->ops->gate_free(s->self, g);
}
static inline uint64_t sk_gate_ticket(const struct sk_sched *s, struct sk_gate *g)
{
    return s->ops->gate_ticket(s->self, g);
}
static inline void sk_gate_wait(const struct sk_sched *s, struct sk_gate *g, uint64_t ticket, int64_t timeout_ms)
{
    s->ops->gate_wait(s->self, g, ticket, timeout_ms);
}
static inline void sk_gate_notify(const struct sk_sched *s, struct sk_gate *g)
{
    s->ops->gate_notify(s->self, g);
}

/* A call that may take long and can be called back. Owned by the worker that makes the call; `cancelled` may be raised
 * from any thread by sk_call_cancel, which also runs `wake` (for example curl_multi_wakeup) so that it is seen at once.
 * Blocking functions return SK_ERR_CANCELLED with outcome UNKNOWN when a request had already left. */
struct sk_call {
    const struct sk_sched *sched;
    int64_t deadline_us; /* monotonic; 0 = none. Every remote call clips its own time-out to it. */
    atomic_bool cancelled;
    void (*wake)(void *arg); /* set by the transport for the time of a call, under `lock` of the transport */
    void *wake_arg;
    atomic_flag wake_lock;
    void *transport; /* per-worker transport state (a curl multi); owned by the worker */
};

void sk_call_init(struct sk_call *call, const struct sk_sched *sched);
void sk_call_cancel(struct sk_call *call); /* any thread, idempotent */
bool sk_call_cancelled(const struct sk_call *call);
void sk_call_set_wake(struct sk_call *call, void (*wake)(void *), void *arg); /* owner thread; NULL clears */
/* Milliseconds left until the deadline, at most `cap_ms`; 0 = passed or cancelled. */
int64_t sk_call_budget_ms(const struct sk_call *call, int64_t cap_ms);
/* Sleeps up to ms, ends early on cancel or deadline (looks every 50 ms at most). Returns false when it ended early. */
bool sk_call_sleep_ms(struct sk_call *call, int64_t ms);

#endif
