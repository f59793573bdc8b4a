/* SPDX-License-Identifier: Apache-2.0
 *
 * The production scheduler (real clocks, getrandom, one mutex and condition per gate) and the cancellable call, which
 * is the same code under every scheduler. */
#include "common/base/sched.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#define SLEEP_SLICE_MS 50 /* how often a cancellable sleep looks at its flag */

struct sk_gate {
    pthread_mutex_t lock;
    pthread_cond_t notified; /* on CLOCK_MONOTONIC */
    uint64_t count;          /* number of notifications so far; a ticket is a value of it */
};

static int64_t clock_us(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int64_t system_wall_ms(void *self)
{
    (void)self;
    return clock_us(CLOCK_REALTIME) / 1000;
}

static int64_t system_mono_us(void *self)
{
    (void)self;
    return clock_us(CLOCK_MONOTONIC);
}

/* The point in time `ms` from now; far-away values are clipped to a year, so that nothing overflows. */
static struct timespec deadline_after_ms(int64_t ms)
{
    const int64_t year_ms = 365LL * 24 * 3600 * 1000;
    struct timespec at;

    if (ms > year_ms)
        ms = year_ms;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += ms / 1000;
    at.tv_nsec += (ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

static void system_sleep_ms(void *self, int64_t ms)
{
    struct timespec at;

    (void)self;
    if (ms <= 0)
        return;
    at = deadline_after_ms(ms);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

static void system_random_bytes(void *self, void *out, size_t len)
{
    unsigned char *p = out;

    (void)self;
    while (len > 0) {
        ssize_t n = getrandom(p, len > 256 ? 256 : len, 0);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            /* Ids and lease tokens out of a broken source would break safety silently. */
            perror("getrandom");
            abort();
        }
        p += n;
        len -= (size_t)n;
    }
}

static struct sk_gate *system_gate_new(void *self)
{
    struct sk_gate *gate = calloc(1, sizeof(*gate));
    pthread_condattr_t attr;

    (void)self;
    if (gate == NULL)
        return NULL;
    pthread_mutex_init(&gate->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&gate->notified, &attr);
    pthread_condattr_destroy(&attr);
    return gate;
}

static void system_gate_free(void *self, struct sk_gate *gate)
{
    (void)self;
    if (gate == NULL)
        return;
    pthread_cond_destroy(&gate->notified);
    pthread_mutex_destroy(&gate->lock);
    free(gate);
}

static uint64_t system_gate_ticket(void *self, struct sk_gate *gate)
{
    uint64_t ticket;

    (void)self;
    pthread_mutex_lock(&gate->lock);
    ticket = gate->count;
    pthread_mutex_unlock(&gate->lock);
    return ticket;
}

static void system_gate_wait(void *self, struct sk_gate *gate, uint64_t ticket, int64_t timeout_ms)
{
    struct timespec at = deadline_after_ms(timeout_ms < 0 ? 0 : timeout_ms);

    (void)self;
    pthread_mutex_lock(&gate->lock);
    while (gate->count == ticket) {
        if (timeout_ms < 0)
            pthread_cond_wait(&gate->notified, &gate->lock);
        else if (pthread_cond_timedwait(&gate->notified, &gate->lock, &at) == ETIMEDOUT)
            break;
    }
    pthread_mutex_unlock(&gate->lock);
}

static void system_gate_notify(void *self, struct sk_gate *gate)
{
    (void)self;
    pthread_mutex_lock(&gate->lock);
    gate->count++;
    pthread_cond_broadcast(&gate->notified);
    pthread_mutex_unlock(&gate->lock);
}

static const struct sk_sched_ops system_ops = {
    .wall_ms = system_wall_ms,
    .mono_us = system_mono_us,
    .sleep_ms = system_sleep_ms,
    .random_bytes = system_random_bytes,
    .gate_new = system_gate_new,
    .gate_free = system_gate_free,
    .gate_ticket = system_gate_ticket,
    .gate_wait = system_gate_wait,
    .gate_notify = system_gate_notify,
};

const struct sk_sched sk_sched_system = {.ops = &system_ops, .self = NULL};

void sk_call_init(struct sk_call *call, const struct sk_sched *sched)
{
    call->sched = sched;
    call->deadline_us = 0;
    atomic_init(&call->cancelled, false);
    call->wake = NULL;
    call->wake_arg = NULL;
    atomic_flag_clear(&call->wake_lock);
    call->transport = NULL;
}

/* Held only for the two assignments of set_wake and for one wake (a write to a pipe): spinning is shorter than a
 * futex. It is held during wake so that after set_wake(NULL) nobody is inside the transport's wake any more. */
static void wake_lock(struct sk_call *call)
{
    while (atomic_flag_test_and_set_explicit(&call->wake_lock, memory_order_acquire))
        sched_yield();
}

static void wake_unlock(struct sk_call *call)
{
    atomic_flag_clear_explicit(&call->wake_lock, memory_order_release);
}

void sk_call_cancel(struct sk_call *call)
{
    atomic_store(&call->cancelled, true);
    wake_lock(call);
    if (call->wake != NULL)
        call->wake(call->wake_arg);
    wake_unlock(call);
}

bool sk_call_cancelled(const struct sk_call *call)
{
    return atomic_load(&call->cancelled);
}

void sk_call_set_wake(struct sk_call *call, void (*wake)(void *), void *arg)
{
    wake_lock(call);
    call->wake = wake;
    call->wake_arg = arg;
    /* A cancel that came before there was anything to wake must not be lost. */
    if (wake != NULL && atomic_load(&call->cancelled))
        wake(arg);
    wake_unlock(call);
}

int64_t sk_call_budget_ms(const struct sk_call *call, int64_t cap_ms)
{
    int64_t left_us;

    if (sk_call_cancelled(call))
        return 0;
    if (call->deadline_us == 0)
        return cap_ms;
    left_us = call->deadline_us - sk_mono_us(call->sched);
    if (left_us <= 0)
        return 0;
    /* Rounded up: 0 has to mean "passed". */
    left_us = (left_us + 999) / 1000;
    return left_us < cap_ms ? left_us : cap_ms;
}

bool sk_call_sleep_ms(struct sk_call *call, int64_t ms)
{
    int64_t end_us = sk_mono_us(call->sched) + ms * 1000;

    for (;;) {
        int64_t left_us = end_us - sk_mono_us(call->sched);
        int64_t slice;

        /* Looked at first, so that a call that ended already does not report a full sleep. */
        if (sk_call_budget_ms(call, 1) == 0)
            return false;
        if (left_us <= 0)
            return true;
        slice = sk_call_budget_ms(call, SLEEP_SLICE_MS);
        if (slice > (left_us + 999) / 1000)
            slice = (left_us + 999) / 1000;
        if (slice > 0)
            sk_sleep_ms(call->sched, slice);
    }
}
