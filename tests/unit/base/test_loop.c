/* SPDX-License-Identifier: Apache-2.0
 * The loop helpers: posting from other threads, bounds, timers, signals, and an end without open handles. */
#include "common/base/loop.h"
#include "common/base/sched.h"
#include "tests/unit/check_main.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sk_loop *loop_new(size_t capacity)
{
    struct sk_error err = {0};
    struct sk_loop *loop = sk_loop_new(capacity, &err);

    ck_assert_msg(loop != NULL, "%s", err.message);
    return loop;
}

#define POSTERS 3
#define POSTS   3000

struct posting {
    struct sk_loop *loop;
    int ran, last[POSTERS]; /* loop thread only: the sanitizer sees it if not */
    atomic_int next;
};

struct post {
    struct posting *posting;
    int poster, number;
};

static void run_post(void *arg)
{
    struct post *post = arg;
    struct posting *posting = post->posting;

    ck_assert(sk_loop_is_current(posting->loop));
    ck_assert_int_eq(post->number, posting->last[post->poster] + 1); /* in the order of posting */
    posting->last[post->poster] = post->number;
    free(post);
    if (++posting->ran == POSTERS * POSTS)
        sk_loop_stop(posting->loop);
}

static void *poster_thread(void *arg)
{
    struct posting *posting = arg;
    int me = atomic_fetch_add(&posting->next, 1);

    ck_assert(!sk_loop_is_current(posting->loop));
    for (int i = 1; i <= POSTS; i++) {
        struct post *post = malloc(sizeof(*post));
        *post = (struct post){posting, me, i};
        while (!sk_loop_post(posting->loop, run_post, post))
            sk_sleep_ms(&sk_sched_system, 1);
    }
    return NULL;
}

START_TEST(test_posts_run_once_and_in_order)
{
    struct posting posting = {.loop = loop_new(100)};
    pthread_t threads[POSTERS];

    for (int i = 0; i < POSTERS; i++)
        pthread_create(&threads[i], NULL, poster_thread, &posting);
    sk_loop_run(posting.loop);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(posting.ran, POSTERS * POSTS);
    ck_assert_uint_eq(sk_loop_free(posting.loop), 0);
}
END_TEST

static void count_up(void *arg)
{
    ++*(int *)arg;
}

START_TEST(test_post_bound_and_leftovers_at_free)
{
    struct sk_loop *loop = loop_new(3);
    int ran = 0;

    for (int i = 0; i < 3; i++)
        ck_assert(sk_loop_post(loop, count_up, &ran));
    ck_assert(!sk_loop_post(loop, count_up, &ran));
    ck_assert_uint_eq(sk_loop_posted(loop), 3);
    ck_assert_uint_eq(sk_loop_free(loop), 0); /* what is posted is run, so that nobody's argument leaks */
    ck_assert_int_eq(ran, 3);
    ck_assert_uint_eq(sk_loop_free(NULL), 0);
}
END_TEST

struct node {
    struct sk_loop_task task;
    struct sk_loop *loop;
    int *ran;
};

static void run_node(struct sk_loop_task *task)
{
    struct node *node = SK_LIST_ENTRY(struct node, task, task);

    if (++*node->ran == 1000)
        sk_loop_stop(node->loop);
    free(node);
}

START_TEST(test_own_nodes_never_fail)
{
    struct sk_loop *loop = loop_new(1);
    int ran = 0;

    for (int i = 0; i < 1000; i++) {
        struct node *node = malloc(sizeof(*node));
        *node = (struct node){.task.run = run_node, .loop = loop, .ran = &ran};
        sk_loop_post_task(loop, &node->task);
    }
    sk_loop_run(loop);
    ck_assert_int_eq(ran, 1000);
    ck_assert_uint_eq(sk_loop_free(loop), 0);
}
END_TEST

/* A closure that posts itself again for ever must not keep timers from firing. */
struct flood {
    struct sk_loop *loop;
    struct sk_timer *timer;
    long turns;
    bool stopped;
};

static void flood_again(void *arg)
{
    struct flood *flood = arg;

    flood->turns++;
    if (!flood->stopped)
        ck_assert(sk_loop_post(flood->loop, flood_again, flood));
}

static void flood_stop(void *arg)
{
    struct flood *flood = arg;

    flood->stopped = true;
    sk_timer_free(flood->timer); /* inside its own callback */
    sk_loop_stop(flood->loop);
}

START_TEST(test_a_flood_does_not_starve_timers)
{
    struct flood flood = {.loop = loop_new(0)};

    flood.timer = sk_timer_new(flood.loop, flood_stop, &flood);
    sk_timer_start(flood.timer, 20, 0);
    ck_assert(sk_timer_active(flood.timer));
    ck_assert(sk_loop_post(flood.loop, flood_again, &flood));
    sk_loop_run(flood.loop);
    ck_assert_int_gt(flood.turns, 1);
    ck_assert_uint_eq(sk_loop_free(flood.loop), 0);
}
END_TEST

struct ticking {
    struct sk_loop *loop;
    int ticks;
};

static void tick(void *arg)
{
    struct ticking *ticking = arg;

    if (++ticking->ticks == 5)
        sk_loop_stop(ticking->loop);
}

START_TEST(test_timers_repeat_and_stop)
{
    struct ticking ticking = {.loop = loop_new(0)};
    struct sk_timer *timer = sk_timer_new(ticking.loop, tick, &ticking), *never;
    int fired = 0;
    int64_t start = sk_mono_us(&sk_sched_system);

    never = sk_timer_new(ticking.loop, count_up, &fired);
    sk_timer_start(never, 1, 1);
    sk_timer_stop(never);
    ck_assert(!sk_timer_active(never));
    sk_timer_start(timer, 5, 10);
    sk_loop_run(ticking.loop);
    ck_assert_int_ge(sk_mono_us(&sk_sched_system) - start, 40000);
    ck_assert_int_eq(fired, 0);
    sk_timer_free(timer);
    sk_timer_free(never);
    sk_timer_free(NULL);
    ck_assert_uint_eq(sk_loop_free(ticking.loop), 0);
}
END_TEST

START_TEST(test_stop_before_run_is_not_forgotten)
{
    struct sk_loop *loop = loop_new(0);

    sk_loop_stop(loop);
    sk_loop_run(loop);
    ck_assert_uint_eq(sk_loop_free(loop), 0);
}
END_TEST

START_TEST(test_leaked_handles_are_counted)
{
    struct sk_loop *loop = loop_new(0);
    static uv_timer_t forgotten;

    uv_timer_init(sk_loop_uv(loop), &forgotten);
    ck_assert_uint_eq(sk_loop_free(loop), 1);
}
END_TEST

struct signalled {
    struct sk_loop *loop;
    int drains, reloads;
};

static void on_drain(void *arg, int number)
{
    struct signalled *signalled = arg;

    ck_assert_int_eq(number, SIGTERM);
    ck_assert_int_eq(signalled->reloads, 1);
    signalled->drains++;
    sk_loop_stop(signalled->loop);
}

static void on_reload(void *arg)
{
    struct signalled *signalled = arg;

    signalled->reloads++;
    raise(SIGTERM);
}

START_TEST(test_first_signal_drains_and_hup_reloads)
{
    struct signalled signalled = {.loop = loop_new(0)};
    struct sk_loop_signals signals = {on_drain, on_reload, &signalled};

    ck_assert_int_eq(sk_loop_on_signals(signalled.loop, &signals, NULL), 0);
    ck_assert_int_eq(sk_loop_on_signals(signalled.loop, &signals, NULL), -1);
    raise(SIGHUP);
    sk_loop_run(signalled.loop);
    ck_assert_int_eq(signalled.drains, 1);
    ck_assert_uint_eq(sk_loop_free(signalled.loop), 0);
}
END_TEST

static void hang(void *arg, int number)
{
    int *ready = arg;

    (void)number;
    if (write(ready[1], "d", 1) != 1)
        _exit(9);
    for (;;)
        pause(); /* a loop that never comes back */
}

START_TEST(test_second_signal_ends_a_hanging_loop)
{
    int ready[2], status;
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        struct sk_loop *loop = sk_loop_new(0, NULL);
        struct sk_loop_signals signals = {hang, NULL, ready};
        if (loop == NULL || sk_loop_on_signals(loop, &signals, NULL) != 0 || write(ready[1], "r", 1) != 1)
            _exit(9);
        sk_loop_run(loop);
        _exit(9);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(kill(pid, SIGHUP), 0); /* without a reload function: ignored */
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'd');
    ck_assert_int_eq(kill(pid, SIGINT), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    close(ready[0]);
    close(ready[1]);
}
END_TEST

SK_CHECK_MAIN("loop", test_posts_run_once_and_in_order, test_post_bound_and_leftovers_at_free,
              test_own_nodes_never_fail, test_a_flood_does_not_starve_timers, test_timers_repeat_and_stop,
              test_stop_before_run_is_not_forgotten, test_leaked_handles_are_counted,
              test_first_signal_drains_and_hup_reloads, test_second_signal_ends_a_hanging_loop)
