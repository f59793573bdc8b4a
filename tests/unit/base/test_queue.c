/* SPDX-License-Identifier: Apache-2.0
 * The bounded queue: order, bound, close while somebody waits, time-outs, and nothing lost or doubled under threads. */
#include "common/base/queue.h"
#include "tests/unit/check_main.h"

#include <pthread.h>

static const struct sk_sched *const sched = &sk_sched_system;

START_TEST(test_order_bound_and_front)
{
    struct sk_queue *queue = sk_queue_new(sched, 3);
    int values[5];
    void *item;

    for (int round = 0; round < 4; round++) { /* the ring wraps */
        ck_assert_int_eq(sk_queue_push_try(queue, &values[0]), SK_QUEUE_OK);
        ck_assert_int_eq(sk_queue_push_try(queue, &values[1]), SK_QUEUE_OK);
        ck_assert_int_eq(sk_queue_push_front_try(queue, &values[2]), SK_QUEUE_OK);
        ck_assert_int_eq(sk_queue_push_try(queue, &values[3]), SK_QUEUE_FULL);
        ck_assert_int_eq(sk_queue_push_front_try(queue, &values[3]), SK_QUEUE_FULL);
        ck_assert_uint_eq(sk_queue_depth(queue), 3);
        ck_assert_int_eq(sk_queue_pop(queue, 0, &item), SK_QUEUE_OK);
        ck_assert_ptr_eq(item, &values[2]);
        ck_assert_int_eq(sk_queue_pop(queue, -1, &item), SK_QUEUE_OK);
        ck_assert_ptr_eq(item, &values[0]);
        ck_assert_int_eq(sk_queue_pop(queue, 1000, &item), SK_QUEUE_OK);
        ck_assert_ptr_eq(item, &values[1]);
        ck_assert_int_eq(sk_queue_pop(queue, 0, &item), SK_QUEUE_TIMEOUT);
        ck_assert_ptr_null(item);
    }
    ck_assert_uint_eq(sk_queue_capacity(queue), 3);
    sk_queue_free(queue);
    sk_queue_free(NULL);
    ck_assert_ptr_null(sk_queue_new(sched, 0));
    ck_assert_ptr_null(sk_queue_new(sched, SIZE_MAX));
}
END_TEST

START_TEST(test_pop_times_out)
{
    struct sk_queue *queue = sk_queue_new(sched, 1);
    int64_t start = sk_mono_us(sched);
    void *item;

    ck_assert_int_eq(sk_queue_pop(queue, 40, &item), SK_QUEUE_TIMEOUT);
    ck_assert_int_ge(sk_mono_us(sched) - start, 40000);
    sk_queue_free(queue);
}
END_TEST

START_TEST(test_closed_queue_is_emptied_first)
{
    struct sk_queue *queue = sk_queue_new(sched, 4);
    int value;
    void *item;

    ck_assert_int_eq(sk_queue_push_try(queue, &value), SK_QUEUE_OK);
    sk_queue_close(queue);
    sk_queue_close(queue);
    ck_assert(sk_queue_closed(queue));
    ck_assert_int_eq(sk_queue_push_try(queue, &value), SK_QUEUE_CLOSED);
    ck_assert_int_eq(sk_queue_push_front_try(queue, &value), SK_QUEUE_CLOSED);
    ck_assert_int_eq(sk_queue_pop(queue, -1, &item), SK_QUEUE_OK);
    ck_assert_int_eq(sk_queue_pop(queue, -1, &item), SK_QUEUE_CLOSED);
    ck_assert_int_eq(sk_queue_pop(queue, 0, &item), SK_QUEUE_CLOSED);
    sk_queue_free(queue);
}
END_TEST

struct waiting {
    struct sk_queue *queue;
    atomic_int started, status_sum;
};

static void *wait_thread(void *arg)
{
    struct waiting *waiting = arg;
    void *item;

    atomic_fetch_add(&waiting->started, 1);
    atomic_fetch_add(&waiting->status_sum, (int)sk_queue_pop(waiting->queue, -1, &item));
    return NULL;
}

START_TEST(test_close_wakes_everybody)
{
    struct waiting waiting = {.queue = sk_queue_new(sched, 4)};
    pthread_t threads[8];

    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, wait_thread, &waiting);
    while (atomic_load(&waiting.started) < 8)
        sk_sleep_ms(sched, 1);
    sk_queue_close(waiting.queue); /* some may sleep already, some be on the way: both must end */
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(atomic_load(&waiting.status_sum), 8 * SK_QUEUE_CLOSED);
    sk_queue_free(waiting.queue);
}
END_TEST

/* Several producers and consumers over a small ring. Consumers mix endless and very short waits, so that a wake-up
 * meets a consumer which is just giving up: the case in which an item could be left lying with everybody asleep. */
#define PRODUCERS 3
#define CONSUMERS 4
#define ITEMS     4000

struct flow {
    struct sk_queue *queue;
    atomic_int seen[PRODUCERS * ITEMS];
    atomic_int next_producer, next_consumer;
};

static void *produce(void *arg)
{
    struct flow *flow = arg;
    int producer = atomic_fetch_add(&flow->next_producer, 1);

    for (int i = 0; i < ITEMS; i++) {
        while (sk_queue_push_try(flow->queue, &flow->seen[producer * ITEMS + i]) == SK_QUEUE_FULL)
            sk_sleep_ms(sched, 1);
    }
    return NULL;
}

static void *consume(void *arg)
{
    struct flow *flow = arg;
    int64_t timeout = atomic_fetch_add(&flow->next_consumer, 1) % 2 == 0 ? -1 : 1;
    enum sk_queue_status status;
    void *item;

    while ((status = sk_queue_pop(flow->queue, timeout, &item)) != SK_QUEUE_CLOSED) {
        if (status == SK_QUEUE_OK)
            atomic_fetch_add((atomic_int *)item, 1);
    }
    return NULL;
}

START_TEST(test_nothing_is_lost_or_doubled)
{
    struct flow *flow = calloc(1, sizeof(*flow));
    pthread_t producers[PRODUCERS], consumers[CONSUMERS];

    flow->queue = sk_queue_new(sched, 8);
    for (int i = 0; i < CONSUMERS; i++)
        pthread_create(&consumers[i], NULL, consume, flow);
    for (int i = 0; i < PRODUCERS; i++)
        pthread_create(&producers[i], NULL, produce, flow);
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(producers[i], NULL);
    sk_queue_close(flow->queue);
    for (int i = 0; i < CONSUMERS; i++)
        pthread_join(consumers[i], NULL);
    for (int i = 0; i < PRODUCERS * ITEMS; i++)
        ck_assert_int_eq(atomic_load(&flow->seen[i]), 1);
    ck_assert_uint_eq(sk_queue_depth(flow->queue), 0);
    sk_queue_free(flow->queue);
    free(flow);
}
END_TEST

/* One item at a time to a crowd of sleepers, each answered before the next is sent: a lost wake-up hangs the test. */
struct echo {
    struct sk_queue *requests, *replies;
};

static void *echo_thread(void *arg)
{
    struct echo *echo = arg;
    void *item;

    while (sk_queue_pop(echo->requests, -1, &item) == SK_QUEUE_OK) {
        if (sk_queue_push_try(echo->replies, item) != SK_QUEUE_OK)
            abort();
    }
    return NULL;
}

START_TEST(test_no_wake_up_is_lost)
{
    struct echo echo = {sk_queue_new(sched, 1), sk_queue_new(sched, 1)};
    pthread_t threads[6];
    int value;
    void *item;

    for (int i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, echo_thread, &echo);
    for (int i = 0; i < 3000; i++) {
        ck_assert_int_eq(sk_queue_push_try(echo.requests, &value), SK_QUEUE_OK);
        ck_assert_int_eq(sk_queue_pop(echo.replies, -1, &item), SK_QUEUE_OK);
    }
    sk_queue_close(echo.requests);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    sk_queue_free(echo.requests);
    sk_queue_free(echo.replies);
}
END_TEST

/* As many items as sleepers, and each consumer goes on only when all have theirs: two pushes that wake the same sleeper
 * would leave one item lying. */
#define CROWD 4

struct crowd {
    struct sk_queue *queue;
    pthread_barrier_t all;
};

static void *crowd_thread(void *arg)
{
    struct crowd *crowd = arg;
    void *item;

    while (sk_queue_pop(crowd->queue, -1, &item) == SK_QUEUE_OK)
        pthread_barrier_wait(&crowd->all);
    return NULL;
}

START_TEST(test_each_push_wakes_another)
{
    struct crowd crowd = {.queue = sk_queue_new(sched, CROWD)};
    pthread_t threads[CROWD];
    int value;

    pthread_barrier_init(&crowd.all, NULL, CROWD + 1);
    for (int i = 0; i < CROWD; i++)
        pthread_create(&threads[i], NULL, crowd_thread, &crowd);
    for (int round = 0; round < 300; round++) {
        if (round % 10 == 0)
            sk_sleep_ms(sched, 1); /* now and then let them fall asleep */
        for (int i = 0; i < CROWD; i++)
            ck_assert_int_eq(sk_queue_push_try(crowd.queue, &value), SK_QUEUE_OK);
        pthread_barrier_wait(&crowd.all);
    }
    sk_queue_close(crowd.queue);
    for (int i = 0; i < CROWD; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&crowd.all);
    sk_queue_free(crowd.queue);
}
END_TEST

/* A gate whose wait ends by time-out at the very moment of a push, which has chosen this consumer: if it did not look
 * at the ring once more, the item would be left to nobody. The push happens inside the wait. */
static struct sk_queue *pushed_to;
static int pushed;
static int64_t clock_us; /* the real one may pass the time-out before the wait begins */

static int64_t read_clock(void *self)
{
    (void)self;
    return clock_us;
}

static void wait_and_push(void *self, struct sk_gate *gate, uint64_t ticket, int64_t timeout_ms)
{
    (void)self;
    (void)gate;
    (void)ticket;
    clock_us += timeout_ms * 1000;
    pushed++;
    ck_assert_int_eq(sk_queue_push_try(pushed_to, &pushed), SK_QUEUE_OK);
}

START_TEST(test_item_that_comes_with_the_timeout)
{
    struct sk_sched_ops ops = *sched->ops;
    struct sk_sched unlucky = {.ops = &ops, .self = sched->self};
    void *item;

    ops.gate_wait = wait_and_push;
    ops.mono_us = read_clock;
    pushed_to = sk_queue_new(&unlucky, 2);
    ck_assert_int_eq(sk_queue_pop(pushed_to, 1, &item), SK_QUEUE_OK);
    ck_assert_ptr_eq(item, &pushed);
    ck_assert_int_eq(pushed, 1);
    sk_queue_free(pushed_to);
}
END_TEST

SK_CHECK_MAIN("queue", test_order_bound_and_front, test_pop_times_out, test_closed_queue_is_emptied_first,
              test_close_wakes_everybody, test_nothing_is_lost_or_doubled, test_no_wake_up_is_lost,
              test_each_push_wakes_another, test_item_that_comes_with_the_timeout)
