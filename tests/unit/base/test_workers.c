/* SPDX-License-Identifier: Apache-2.0
 * The worker pool: threads appear with the work and up to the maximum, draining, late jobs, thread hooks. */
#include "common/base/workers.h"
#include "tests/unit/check_main.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

static const struct sk_sched *const sched = &sk_sched_system;

/* Jobs that wait until they are let go. */
struct blocker {
    struct sk_gate *gate;
    atomic_int running, open, done, discarded;
};

static void block(void *arg)
{
    struct blocker *blocker = arg;

    atomic_fetch_add(&blocker->running, 1);
    for (;;) {
        uint64_t ticket = sk_gate_ticket(sched, blocker->gate);
        if (atomic_load(&blocker->open) != 0)
            break;
        sk_gate_wait(sched, blocker->gate, ticket, -1);
    }
    atomic_fetch_add(&blocker->done, 1);
}

static void blocker_open(struct blocker *blocker)
{
    atomic_store(&blocker->open, 1);
    sk_gate_notify(sched, blocker->gate);
}

static void wait_for(atomic_int *value, int at_least)
{
    while (atomic_load(value) < at_least)
        sk_sleep_ms(sched, 1);
}

static struct sk_workers *pool(size_t threads, size_t queue)
{
    struct sk_workers_options options = {.name = "test", .max_threads = threads, .queue_capacity = queue};
    struct sk_error err = {0};
    struct sk_workers *workers = sk_workers_new(&options, &err);

    ck_assert_msg(workers != NULL, "%s", err.message);
    return workers;
}

START_TEST(test_threads_start_with_the_work)
{
    struct blocker blocker = {.gate = sk_gate_new(sched)};
    struct sk_workers *workers = pool(3, 4);

    ck_assert_uint_eq(sk_workers_threads(workers), 0);
    for (int i = 1; i <= 3; i++) {
        ck_assert_int_eq(sk_workers_submit(workers, block, &blocker), SK_QUEUE_OK);
        wait_for(&blocker.running, i); /* would hang if a job waited behind a blocked one while a thread may start */
        ck_assert_uint_eq(sk_workers_threads(workers), (size_t)i);
    }
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(sk_workers_submit(workers, block, &blocker), SK_QUEUE_OK);
    ck_assert_int_eq(sk_workers_submit(workers, block, &blocker), SK_QUEUE_FULL);
    ck_assert_uint_eq(sk_workers_threads(workers), 3);
    ck_assert_uint_eq(sk_workers_queued(workers), 4);
    ck_assert_uint_eq(sk_workers_running(workers), 3);
    ck_assert_uint_eq(sk_workers_drain(workers, 20), 7);
    ck_assert_int_eq(sk_workers_submit(workers, block, &blocker), SK_QUEUE_CLOSED);
    blocker_open(&blocker);
    ck_assert_uint_eq(sk_workers_drain(workers, -1), 0);
    ck_assert_int_eq(atomic_load(&blocker.done), 7);
    sk_workers_free(workers);
    sk_gate_free(sched, blocker.gate);
}
END_TEST

/* Submitted in one breath, two jobs must not end up behind each other on one thread. */
START_TEST(test_burst_gets_a_thread_each)
{
    struct blocker blocker = {.gate = sk_gate_new(sched)};
    struct sk_workers *workers = pool(8, 16);

    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(sk_workers_submit(workers, block, &blocker), SK_QUEUE_OK);
    wait_for(&blocker.running, 8);
    blocker_open(&blocker);
    sk_workers_free(workers);
    ck_assert_int_eq(atomic_load(&blocker.done), 8);
    sk_gate_free(sched, blocker.gate);
}
END_TEST

static void count_job(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

START_TEST(test_idle_threads_are_reused)
{
    struct sk_workers *workers = pool(8, 16);
    atomic_int count = 0;

    for (int i = 1; i <= 200; i++) {
        ck_assert_int_eq(sk_workers_submit(workers, count_job, &count), SK_QUEUE_OK);
        wait_for(&count, i);
        while (sk_workers_running(workers) > 0)
            sk_sleep_ms(sched, 1);
    }
    ck_assert_uint_eq(sk_workers_threads(workers), 1);
    sk_workers_free(workers);
}
END_TEST

static void discard(void *arg)
{
    struct blocker *blocker = arg;

    atomic_fetch_add(&blocker->discarded, 1);
}

START_TEST(test_queued_jobs_can_be_taken_back)
{
    struct blocker blocker = {.gate = sk_gate_new(sched)};
    struct sk_workers *workers = pool(1, 8);

    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(sk_workers_submit(workers, block, &blocker), SK_QUEUE_OK);
    wait_for(&blocker.running, 1);
    ck_assert_uint_eq(sk_workers_discard_queued(workers, discard), 4);
    ck_assert_int_eq(atomic_load(&blocker.discarded), 4);
    blocker_open(&blocker);
    ck_assert_uint_eq(sk_workers_drain(workers, -1), 0);
    ck_assert_int_eq(atomic_load(&blocker.done), 1);
    sk_workers_free(workers);
    sk_gate_free(sched, blocker.gate);
}
END_TEST

static void late_job(void *arg)
{
    sk_workers_set_deadline(sk_mono_us(sched) - 50000);
    block(arg);
}

START_TEST(test_late_jobs_are_counted)
{
    struct blocker blocker = {.gate = sk_gate_new(sched)};
    struct sk_workers *workers = pool(4, 8);

    sk_workers_set_deadline(1); /* not on a worker: nothing happens */
    ck_assert_int_eq(sk_workers_submit(workers, late_job, &blocker), SK_QUEUE_OK);
    ck_assert_int_eq(sk_workers_submit(workers, block, &blocker), SK_QUEUE_OK);
    wait_for(&blocker.running, 2);
    ck_assert_uint_eq(sk_workers_late(workers, 0), 1);
    ck_assert_uint_eq(sk_workers_late(workers, 60000), 0);
    blocker_open(&blocker);
    wait_for(&blocker.done, 2);
    while (sk_workers_running(workers) > 0)
        sk_sleep_ms(sched, 1);
    ck_assert_uint_eq(sk_workers_late(workers, 0), 0); /* cleared with the end of the job */
    sk_workers_free(workers);
    sk_gate_free(sched, blocker.gate);
}
END_TEST

static atomic_int hooks;

static void hook(void *arg)
{
    ck_assert_str_eq(arg, "hook");
    atomic_fetch_add(&hooks, 1);
}

static void look_at_thread(void *arg)
{
    sigset_t mask;
    char name[16];

    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    pthread_getname_np(pthread_self(), name, sizeof(name));
    atomic_store((atomic_int *)arg, sigismember(&mask, SIGTERM) == 1 && strncmp(name, "lifecycle-", 10) == 0 ? 1 : -1);
}

START_TEST(test_thread_hooks_names_and_signals)
{
    struct sk_workers_options options = {.name = "lifecycle-worker",
                                         .max_threads = 1,
                                         .queue_capacity = 1,
                                         .thread_start = hook,
                                         .thread_end = hook,
                                         .arg = (void *)"hook"};
    struct sk_workers *workers = sk_workers_new(&options, NULL);
    atomic_int result = 0;

    ck_assert_int_eq(sk_workers_submit(workers, look_at_thread, &result), SK_QUEUE_OK);
    sk_workers_free(workers);
    ck_assert_int_eq(atomic_load(&hooks), 2);
    ck_assert_int_eq(atomic_load(&result), 1);
}
END_TEST

START_TEST(test_bad_options)
{
    struct sk_workers_options options = {.max_threads = 0, .queue_capacity = 1};
    struct sk_error err = {0};

    ck_assert_ptr_null(sk_workers_new(&options, &err));
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    options.max_threads = SK_WORKERS_MAX + 1;
    ck_assert_ptr_null(sk_workers_new(&options, &err));
    options.max_threads = 1;
    options.queue_capacity = 0;
    ck_assert_ptr_null(sk_workers_new(&options, &err));
    sk_workers_free(NULL);
}
END_TEST

SK_CHECK_MAIN("workers", test_threads_start_with_the_work, test_burst_gets_a_thread_each, test_idle_threads_are_reused,
              test_queued_jobs_can_be_taken_back, test_late_jobs_are_counted, test_thread_hooks_names_and_signals,
              test_bad_options)
