/* SPDX-License-Identifier: Apache-2.0
 * The system scheduler's gates (no lost wake-up) and cancellable calls (cancel racing with set_wake). The races are for
 * ThreadSanitizer as much as for the assertions. */
#include "common/base/sched.h"
#include "tests/unit/check_main.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

static const struct sk_sched *const sched = &sk_sched_system;

START_TEST(test_notify_between_ticket_and_wait_is_not_lost)
{
    struct sk_gate *gate = sk_gate_new(sched);
    uint64_t ticket = sk_gate_ticket(sched, gate);

    sk_gate_notify(sched, gate);
    sk_gate_wait(sched, gate, ticket, -1); /* the test's time-out is the assertion */
    sk_gate_wait(sched, gate, ticket, -1); /* a ticket stays used up */
    sk_gate_free(sched, gate);
    sk_gate_free(sched, NULL);
}
END_TEST

START_TEST(test_wait_times_out)
{
    struct sk_gate *gate = sk_gate_new(sched);
    int64_t start = sk_mono_us(sched);

    sk_gate_wait(sched, gate, sk_gate_ticket(sched, gate), 30);
    ck_assert_int_ge(sk_mono_us(sched) - start, 30000);
    start = sk_mono_us(sched);
    sk_gate_wait(sched, gate, sk_gate_ticket(sched, gate), 0);
    ck_assert_int_lt(sk_mono_us(sched) - start, 5000000);
    sk_gate_free(sched, gate);
}
END_TEST

/* Two threads pass a turn to and fro through two gates, without any time-out: one lost wake-up hangs the test. */
struct ping {
    struct sk_gate *gate[2];
    atomic_int turn;
};
#define PING_ROUNDS 5000

static void ping_side(struct ping *ping, int side)
{
    for (int i = 0; i < PING_ROUNDS; i++) {
        for (;;) {
            uint64_t ticket = sk_gate_ticket(sched, ping->gate[side]);
            if (atomic_load(&ping->turn) == side)
                break;
            sk_gate_wait(sched, ping->gate[side], ticket, -1);
        }
        atomic_store(&ping->turn, !side);
        sk_gate_notify(sched, ping->gate[!side]);
    }
}

static void *ping_thread(void *arg)
{
    ping_side(arg, 1);
    return NULL;
}

START_TEST(test_ping_pong_never_hangs)
{
    struct ping ping = {.gate = {sk_gate_new(sched), sk_gate_new(sched)}};
    pthread_t thread;

    pthread_create(&thread, NULL, ping_thread, &ping);
    ping_side(&ping, 0);
    pthread_join(thread, NULL);
    sk_gate_free(sched, ping.gate[0]);
    sk_gate_free(sched, ping.gate[1]);
}
END_TEST

struct crowd {
    struct sk_gate *gate;
    atomic_int ready, go;
};

static void *crowd_thread(void *arg)
{
    struct crowd *crowd = arg;
    uint64_t ticket = sk_gate_ticket(sched, crowd->gate);

    atomic_fetch_add(&crowd->ready, 1);
    while (atomic_load(&crowd->go) == 0) {
        sk_gate_wait(sched, crowd->gate, ticket, -1);
        ticket = sk_gate_ticket(sched, crowd->gate);
    }
    return NULL;
}

START_TEST(test_notify_wakes_all)
{
    struct crowd crowd = {.gate = sk_gate_new(sched)};
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, crowd_thread, &crowd);
    while (atomic_load(&crowd.ready) < 4)
        sk_sleep_ms(sched, 1);
    atomic_store(&crowd.go, 1);
    sk_gate_notify(sched, crowd.gate);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    sk_gate_free(sched, crowd.gate);
}
END_TEST

static void count_wake(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

START_TEST(test_cancel_runs_wake_and_is_idempotent)
{
    struct sk_call call;
    atomic_int woken = 0;

    sk_call_init(&call, sched);
    ck_assert(!sk_call_cancelled(&call));
    sk_call_set_wake(&call, count_wake, &woken);
    ck_assert_int_eq(atomic_load(&woken), 0);
    sk_call_cancel(&call);
    sk_call_cancel(&call);
    ck_assert(sk_call_cancelled(&call));
    ck_assert_int_eq(atomic_load(&woken), 2);
    sk_call_set_wake(&call, NULL, NULL);
    sk_call_cancel(&call);
    ck_assert_int_eq(atomic_load(&woken), 2);
}
END_TEST

START_TEST(test_cancel_before_set_wake_is_seen)
{
    struct sk_call call;
    atomic_int woken = 0;

    sk_call_init(&call, sched);
    sk_call_cancel(&call);
    sk_call_set_wake(&call, count_wake, &woken);
    ck_assert_int_eq(atomic_load(&woken), 1);
}
END_TEST

/* After set_wake(NULL) has returned, the wake's argument may be gone: here it is freed, for the sanitizers to judge. */
struct race {
    struct sk_call call;
    atomic_int stop;
};

static void touch_wake(void *arg)
{
    *(volatile int *)arg += 1;
}

static void *race_thread(void *arg)
{
    struct race *race = arg;

    while (atomic_load(&race->stop) == 0) {
        sk_call_cancel(&race->call);
        sched_yield(); /* valgrind runs one thread at a time and would starve the other */
    }
    return NULL;
}

START_TEST(test_cancel_races_with_set_wake)
{
    struct race race;
    pthread_t thread;
    int woken = 0;

    sk_call_init(&race.call, sched);
    atomic_init(&race.stop, 0);
    pthread_create(&thread, NULL, race_thread, &race);
    for (int i = 0; i < 3000 || woken == 0; i++) { /* endless, and so a failure, when a wake is never run */
        int *argument = calloc(1, sizeof(*argument));
        sk_call_set_wake(&race.call, touch_wake, argument);
        sk_call_set_wake(&race.call, NULL, NULL);
        woken += *argument > 0;
        free(argument);
    }
    atomic_store(&race.stop, 1);
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(test_budget_clips_to_deadline)
{
    struct sk_call call;

    sk_call_init(&call, sched);
    ck_assert_int_eq(sk_call_budget_ms(&call, 700), 700);
    call.deadline_us = sk_mono_us(sched) + 60000000;
    ck_assert_int_eq(sk_call_budget_ms(&call, 700), 700);
    ck_assert_int_le(sk_call_budget_ms(&call, 1000000), 60000);
    ck_assert_int_gt(sk_call_budget_ms(&call, 1000000), 50000);
    call.deadline_us = sk_mono_us(sched) - 1;
    ck_assert_int_eq(sk_call_budget_ms(&call, 700), 0);
    call.deadline_us = 0;
    sk_call_cancel(&call);
    ck_assert_int_eq(sk_call_budget_ms(&call, 700), 0);
}
END_TEST

static void *cancel_thread(void *arg)
{
    sk_sleep_ms(sched, 30);
    sk_call_cancel(arg);
    return NULL;
}

START_TEST(test_sleep_ends_on_cancel_and_deadline)
{
    struct sk_call call;
    int64_t start = sk_mono_us(sched);
    pthread_t thread;

    sk_call_init(&call, sched);
    ck_assert(sk_call_sleep_ms(&call, 20));
    ck_assert_int_ge(sk_mono_us(sched) - start, 20000);
    ck_assert(sk_call_sleep_ms(&call, 0));

    call.deadline_us = sk_mono_us(sched) + 30000;
    ck_assert(!sk_call_sleep_ms(&call, 3600000));

    call.deadline_us = 0;
    pthread_create(&thread, NULL, cancel_thread, &call);
    ck_assert(!sk_call_sleep_ms(&call, 3600000));
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(test_random_fills_everything)
{
    unsigned char bytes[1000], seen = 0;

    memset(bytes, 0, sizeof(bytes));
    sk_random(sched, bytes, sizeof(bytes));
    for (size_t i = sizeof(bytes) - 64; i < sizeof(bytes); i++)
        seen |= bytes[i];
    ck_assert_int_ne(seen, 0);
}
END_TEST

SK_CHECK_MAIN("sched", test_notify_between_ticket_and_wait_is_not_lost, test_wait_times_out, test_ping_pong_never_hangs,
              test_notify_wakes_all, test_cancel_runs_wake_and_is_idempotent, test_cancel_before_set_wake_is_seen,
              test_cancel_races_with_set_wake, test_budget_clips_to_deadline, test_sleep_ends_on_cancel_and_deadline,
              test_random_fills_everything)
