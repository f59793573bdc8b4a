/* SPDX-License-Identifier: Apache-2.0
 *
 * A bounded pool of worker threads for blocking, straight-line workflows (design/architecture.md §4). Threads are
 * started when there is more work than threads, up to a maximum, and stay. Production only: the simulator runs
 * workflows on its own fibres.
 *
 * Submitting never waits: a full queue is the caller's decision. A job that may hang says by when it means to be back
 * (sk_workers_set_deadline); those that are late are counted for a metric and may fail /livez, so that a hung worker
 * never looks alive. Worker threads have all signals blocked. */
#ifndef SK_BASE_WORKERS_H
#define SK_BASE_WORKERS_H

#include "common/base/queue.h"

#define SK_WORKERS_DEFAULT_STACK (512 * 1024) /* bytes; four times that under the sanitizers */
#define SK_WORKERS_MAX           1024

struct sk_workers;

struct sk_workers_options {
    const char *name;      /* of the threads, at most 11 characters are used; must outlive the pool */
    size_t max_threads;    /* 1..SK_WORKERS_MAX */
    size_t queue_capacity; /* jobs that wait, at most (> 0) */
    size_t stack_bytes;    /* 0 = SK_WORKERS_DEFAULT_STACK */
    /* Run on each thread at its start and end (for example nats_ReleaseThreadMemory); NULL = nothing. */
    void (*thread_start)(void *arg);
    void (*thread_end)(void *arg);
    void *arg;
};

/* No thread is started yet. NULL with err (invalid_request, internal). */
SK_MUST_USE struct sk_workers *sk_workers_new(const struct sk_workers_options *options, struct sk_error *err);
/* Drains without a limit and joins. NULL is allowed. After a drain that reported hung jobs, do not call it: end the
 * process. */
void sk_workers_free(struct sk_workers *workers);

/* Any thread. SK_QUEUE_FULL: the queue is full, or no thread could be started at all; SK_QUEUE_CLOSED: draining. */
SK_MUST_USE enum sk_queue_status sk_workers_submit(struct sk_workers *workers, void (*run)(void *arg), void *arg);

/* Refuses new jobs and waits up to timeout_ms (< 0 = no limit) until all queued and running ones have ended. Returns
 * how many have not. May be called again. Not from a worker. */
SK_MUST_USE size_t sk_workers_drain(struct sk_workers *workers, int64_t timeout_ms);
/* Takes back what is queued and not yet running, calling `discard` for each argument on this thread. Returns their
 * number. */
size_t sk_workers_discard_queued(struct sk_workers *workers, void (*discard)(void *arg));

/* From inside a job: the monotonic time (sk_sched_system) by which this job means to be done or to set a new time;
 * 0 = no promise (as at the start of each job). Outside of a worker it does nothing. */
void sk_workers_set_deadline(int64_t deadline_us);
/* Jobs that are past their deadline by more than grace_ms. Any thread; meant for a gauge and for /livez. */
size_t sk_workers_late(struct sk_workers *workers, int64_t grace_ms);

size_t sk_workers_queued(struct sk_workers *workers);
size_t sk_workers_running(struct sk_workers *workers);
size_t sk_workers_threads(struct sk_workers *workers);

#endif
