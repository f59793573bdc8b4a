/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool: a thread per slot, started when more jobs are outstanding than there are threads. */
#include "common/base/workers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_FACTOR 4
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STACK_FACTOR 4
#endif
#endif
#ifndef STACK_FACTOR
#define STACK_FACTOR 1
#endif

struct job {
    void (*run)(void *arg);
    void *arg;
};

struct slot {
    struct sk_workers *pool;
    pthread_t thread;
    atomic_llong deadline_us; /* 0 = none, or idle */
};

struct sk_workers {
    struct sk_workers_options options;
    struct sk_queue *queue;
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    size_t threads, outstanding, running; /* outstanding = queued + running */
    struct slot slots[];
};

static _Thread_local struct slot *current; /* of a worker thread */

struct sk_workers *sk_workers_new(const struct sk_workers_options *options, struct sk_error *err)
{
    struct sk_workers *workers;
    pthread_condattr_t attr;

    if (options->max_threads == 0 || options->max_threads > SK_WORKERS_MAX || options->queue_capacity == 0) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "a pool has 1..%d threads and a queue of at least 1", SK_WORKERS_MAX);
        return NULL;
    }
    workers = calloc(1, sizeof(*workers) + options->max_threads * sizeof(workers->slots[0]));
    if (workers == NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    workers->options = *options;
    if (workers->options.stack_bytes == 0)
        workers->options.stack_bytes = SK_WORKERS_DEFAULT_STACK;
    workers->queue = sk_queue_new(&sk_sched_system, options->queue_capacity);
    if (workers->queue == NULL) {
        free(workers);
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    pthread_mutex_init(&workers->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&workers->all_done, &attr);
    pthread_condattr_destroy(&attr);
    return workers;
}

static void count_done(struct sk_workers *workers, bool was_running)
{
    pthread_mutex_lock(&workers->lock);
    if (was_running)
        workers->running--;
    if (--workers->outstanding == 0)
        pthread_cond_broadcast(&workers->all_done);
    pthread_mutex_unlock(&workers->lock);
}

static void *worker_main(void *arg)
{
    struct slot *slot = arg;
    struct sk_workers *workers = slot->pool;
    void *item;

    current = slot;
    if (workers->options.thread_start != NULL)
        workers->options.thread_start(workers->options.arg);
    while (sk_queue_pop(workers->queue, -1, &item) == SK_QUEUE_OK) {
        struct job job = *(struct job *)item;
        free(item);
        pthread_mutex_lock(&workers->lock);
        workers->running++;
        pthread_mutex_unlock(&workers->lock);
        job.run(job.arg);
        atomic_store(&slot->deadline_us, 0);
        count_done(workers, true);
    }
    if (workers->options.thread_end != NULL)
        workers->options.thread_end(workers->options.arg);
    return NULL;
}

/* Under the lock. */
static bool start_thread(struct sk_workers *workers)
{
    struct slot *slot = &workers->slots[workers->threads];
    sigset_t all, before;
    pthread_attr_t attr;
    char name[16];
    int status;

    slot->pool = workers;
    atomic_init(&slot->deadline_us, 0);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, workers->options.stack_bytes * STACK_FACTOR);
    /* Signals belong to the loop thread; a worker must not see EINTR. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    status = pthread_create(&slot->thread, &attr, worker_main, slot);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (status != 0)
        return false;
    snprintf(name, sizeof(name), "%.10s-%u", workers->options.name != NULL ? workers->options.name : "worker",
             (unsigned)workers->threads % 10000u);
    pthread_setname_np(slot->thread, name);
    workers->threads++;
    return true;
}

enum sk_queue_status sk_workers_submit(struct sk_workers *workers, void (*run)(void *arg), void *arg)
{
    struct job *job = malloc(sizeof(*job));
    enum sk_queue_status status;

    if (job == NULL)
        return SK_QUEUE_FULL;
    job->run = run;
    job->arg = arg;
    pthread_mutex_lock(&workers->lock);
    if (sk_queue_closed(workers->queue)) {
        status = SK_QUEUE_CLOSED;
    } else {
        if (workers->outstanding >= workers->threads && workers->threads < workers->options.max_threads)
            start_thread(workers);
        status = workers->threads > 0 ? sk_queue_push_try(workers->queue, job) : SK_QUEUE_FULL;
    }
    if (status == SK_QUEUE_OK)
        workers->outstanding++;
    pthread_mutex_unlock(&workers->lock);
    if (status != SK_QUEUE_OK)
        free(job);
    return status;
}

size_t sk_workers_drain(struct sk_workers *workers, int64_t timeout_ms)
{
    struct timespec end;
    size_t left;

    clock_gettime(CLOCK_MONOTONIC, &end);
    if (timeout_ms > 0) {
        end.tv_sec += timeout_ms / 1000;
        end.tv_nsec += (timeout_ms % 1000) * 1000000;
        if (end.tv_nsec >= 1000000000) {
            end.tv_sec++;
            end.tv_nsec -= 1000000000;
        }
    }
    pthread_mutex_lock(&workers->lock);
    sk_queue_close(workers->queue);
    while (workers->outstanding > 0) {
        if (timeout_ms < 0)
            pthread_cond_wait(&workers->all_done, &workers->lock);
        else if (pthread_cond_timedwait(&workers->all_done, &workers->lock, &end) == ETIMEDOUT)
            break;
    }
    left = workers->outstanding;
    pthread_mutex_unlock(&workers->lock);
    return left;
}

size_t sk_workers_discard_queued(struct sk_workers *workers, void (*discard)(void *arg))
{
    size_t count = 0;
    void *item;

    while (sk_queue_pop(workers->queue, 0, &item) == SK_QUEUE_OK) {
        struct job job = *(struct job *)item;
        free(item);
        discard(job.arg);
        count_done(workers, false);
        count++;
    }
    return count;
}

void sk_workers_free(struct sk_workers *workers)
{
    if (workers == NULL)
        return;
    if (sk_workers_drain(workers, -1) != 0)
        abort(); /* cannot be: it waited without a limit */
    for (size_t i = 0; i < workers->threads; i++)
        pthread_join(workers->slots[i].thread, NULL);
    sk_queue_free(workers->queue);
    pthread_cond_destroy(&workers->all_done);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}

void sk_workers_set_deadline(int64_t deadline_us)
{
    if (current != NULL)
        atomic_store(&current->deadline_us, deadline_us);
}

size_t sk_workers_late(struct sk_workers *workers, int64_t grace_ms)
{
    int64_t now_us = sk_mono_us(&sk_sched_system);
    size_t late = 0;

    pthread_mutex_lock(&workers->lock); /* for `threads`: slots appear under it */
    for (size_t i = 0; i < workers->threads; i++) {
        long long deadline_us = atomic_load(&workers->slots[i].deadline_us);
        late += deadline_us != 0 && now_us - deadline_us > grace_ms * 1000;
    }
    pthread_mutex_unlock(&workers->lock);
    return late;
}

size_t sk_workers_queued(struct sk_workers *workers)
{
    return sk_queue_depth(workers->queue);
}

size_t sk_workers_running(struct sk_workers *workers)
{
    size_t count;

    pthread_mutex_lock(&workers->lock);
    count = workers->running;
    pthread_mutex_unlock(&workers->lock);
    return count;
}

size_t sk_workers_threads(struct sk_workers *workers)
{
    size_t count;

    pthread_mutex_lock(&workers->lock);
    count = workers->threads;
    pthread_mutex_unlock(&workers->lock);
    return count;
}
