/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop object. Two posting queues share one doorbell: bounded closures and the callers' own nodes. */
#include "common/base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int signal_numbers[] = {SIGTERM, SIGINT, SIGHUP};
#define SIGNAL_COUNT (sizeof(signal_numbers) / sizeof(signal_numbers[0]))

/* A closure is a task that frees itself. */
struct closure {
    struct sk_loop_task task;
    struct sk_loop *loop;
    void (*run)(void *arg);
    void *arg;
};

struct sk_loop {
    uv_loop_t uv;
    uv_async_t doorbell;
    bool signals_open;
    struct sk_loop_signals on_signal;
    struct sigaction before[SIGNAL_COUNT];
    atomic_bool stop;
    pthread_mutex_t lock; /* the rest */
    struct sk_list tasks;
    size_t posted, closures, capacity;
    pthread_t thread;
};

/* What the handler may touch. uv_signal is not used: its second SIGTERM would wait for a loop that hangs. */
static _Atomic(uv_async_t *) signal_bell;
static atomic_int end_signal; /* SIGTERM or SIGINT, once seen */
static atomic_bool end_handled;
static atomic_bool reload_wanted;

static void on_signal(int number)
{
    int saved_errno = errno, none = 0;
    uv_async_t *bell;

    if (number == SIGHUP)
        atomic_store(&reload_wanted, true);
    else if (!atomic_compare_exchange_strong(&end_signal, &none, number))
        _exit(1);
    bell = atomic_load(&signal_bell);
    if (bell != NULL)
        uv_async_send(bell); /* async-signal-safe */
    errno = saved_errno;
}

static void run_signals(struct sk_loop *loop)
{
    int number = atomic_load(&end_signal);

    if (atomic_exchange(&reload_wanted, false) && loop->on_signal.reload != NULL)
        loop->on_signal.reload(loop->on_signal.arg);
    if (number != 0 && !atomic_exchange(&end_handled, true))
        loop->on_signal.drain(loop->on_signal.arg, number);
}

static void run_batch(struct sk_loop *loop)
{
    for (int i = 0; i < SK_LOOP_BATCH; i++) {
        struct sk_loop_task *task;
        struct sk_list *item;

        pthread_mutex_lock(&loop->lock);
        item = sk_list_pop_front(&loop->tasks);
        if (item != NULL)
            loop->posted--;
        pthread_mutex_unlock(&loop->lock);
        if (item == NULL)
            return;
        task = SK_LIST_ENTRY(struct sk_loop_task, item, link);
        task->run(task);
    }
    /* There may be more; sockets have their turn first. */
    uv_async_send(&loop->doorbell);
}

static void on_doorbell(uv_async_t *doorbell)
{
    struct sk_loop *loop = doorbell->data;

    if (loop->signals_open)
        run_signals(loop);
    run_batch(loop);
    if (atomic_load(&loop->stop))
        uv_stop(&loop->uv);
}

struct sk_loop *sk_loop_new(size_t post_capacity, struct sk_error *err)
{
    struct sk_loop *loop = calloc(1, sizeof(*loop));
    int status;

    if (loop == NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    signal(SIGPIPE, SIG_IGN);
    status = uv_loop_init(&loop->uv);
    if (status != 0) {
        sk_fail(err, SK_ERR_INTERNAL, "cannot make an event loop: %s", uv_strerror(status));
        free(loop);
        return NULL;
    }
    status = uv_async_init(&loop->uv, &loop->doorbell, on_doorbell);
    if (status != 0) {
        sk_fail(err, SK_ERR_INTERNAL, "cannot make the loop's doorbell: %s", uv_strerror(status));
        uv_loop_close(&loop->uv);
        free(loop);
        return NULL;
    }
    loop->uv.data = loop;
    loop->doorbell.data = loop;
    loop->capacity = post_capacity != 0 ? post_capacity : SK_LOOP_POST_CAPACITY;
    loop->thread = pthread_self();
    pthread_mutex_init(&loop->lock, NULL);
    sk_list_init(&loop->tasks);
    return loop;
}

uv_loop_t *sk_loop_uv(struct sk_loop *loop)
{
    return &loop->uv;
}

void sk_loop_run(struct sk_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->thread = pthread_self();
    pthread_mutex_unlock(&loop->lock);
    /* The doorbell keeps the loop alive; uv_stop before the run would be forgotten, so the flag is looked at. */
    while (!atomic_load(&loop->stop))
        uv_run(&loop->uv, UV_RUN_DEFAULT);
    atomic_store(&loop->stop, false);
}

void sk_loop_stop(struct sk_loop *loop)
{
    atomic_store(&loop->stop, true);
    uv_async_send(&loop->doorbell);
}

bool sk_loop_is_current(struct sk_loop *loop)
{
    bool same;

    pthread_mutex_lock(&loop->lock);
    same = pthread_equal(loop->thread, pthread_self()) != 0;
    pthread_mutex_unlock(&loop->lock);
    return same;
}

static void count_closing(uv_handle_t *handle, void *arg)
{
    *(size_t *)arg += uv_is_closing(handle) != 0;
}

static void close_foreign(uv_handle_t *handle, void *arg)
{
    if (uv_is_closing(handle))
        return;
    uv_close(handle, NULL);
    (*(size_t *)arg)++;
}

/* Turns the loop until no close callback is due: those may close more handles. */
static void finish_closing(uv_loop_t *uv)
{
    size_t closing;

    do {
        closing = 0;
        uv_walk(uv, count_closing, &closing);
        if (closing > 0)
            uv_run(uv, UV_RUN_NOWAIT);
    } while (closing > 0);
}

size_t sk_loop_free(struct sk_loop *loop)
{
    size_t leaked = 0;

    if (loop == NULL)
        return 0;
    if (loop->signals_open) {
        for (size_t i = 0; i < SIGNAL_COUNT; i++)
            sigaction(signal_numbers[i], &loop->before[i], NULL);
        atomic_store(&signal_bell, NULL);
    }
    while (sk_loop_posted(loop) > 0)
        run_batch(loop);
    uv_close((uv_handle_t *)&loop->doorbell, NULL);
    finish_closing(&loop->uv);
    uv_walk(&loop->uv, close_foreign, &leaked);
    finish_closing(&loop->uv);
    if (uv_loop_close(&loop->uv) != 0)
        return leaked + 1; /* a request (getaddrinfo, fs) is still on its way: the memory is left to it */
    pthread_mutex_destroy(&loop->lock);
    free(loop);
    return leaked;
}

void sk_loop_post_task(struct sk_loop *loop, struct sk_loop_task *task)
{
    pthread_mutex_lock(&loop->lock);
    sk_list_push_back(&loop->tasks, &task->link);
    loop->posted++;
    pthread_mutex_unlock(&loop->lock);
    uv_async_send(&loop->doorbell);
}

static void run_closure(struct sk_loop_task *task)
{
    struct closure *closure = SK_LIST_ENTRY(struct closure, task, task);
    void (*run)(void *arg) = closure->run;
    void *arg = closure->arg;

    pthread_mutex_lock(&closure->loop->lock);
    closure->loop->closures--;
    pthread_mutex_unlock(&closure->loop->lock);
    free(closure);
    run(arg);
}

bool sk_loop_post(struct sk_loop *loop, void (*run)(void *arg), void *arg)
{
    struct closure *closure;
    bool room;

    pthread_mutex_lock(&loop->lock);
    room = loop->closures < loop->capacity;
    loop->closures += room;
    pthread_mutex_unlock(&loop->lock);
    if (!room)
        return false;
    closure = malloc(sizeof(*closure));
    if (closure == NULL) {
        pthread_mutex_lock(&loop->lock);
        loop->closures--;
        pthread_mutex_unlock(&loop->lock);
        return false;
    }
    closure->task.run = run_closure;
    closure->loop = loop;
    closure->run = run;
    closure->arg = arg;
    sk_loop_post_task(loop, &closure->task);
    return true;
}

size_t sk_loop_posted(struct sk_loop *loop)
{
    size_t posted;

    pthread_mutex_lock(&loop->lock);
    posted = loop->posted;
    pthread_mutex_unlock(&loop->lock);
    return posted;
}

struct sk_timer {
    uv_timer_t uv;
    void (*fire)(void *arg);
    void *arg;
};

static void on_timer(uv_timer_t *handle)
{
    struct sk_timer *timer = handle->data;

    timer->fire(timer->arg);
}

struct sk_timer *sk_timer_new(struct sk_loop *loop, void (*fire)(void *arg), void *arg)
{
    struct sk_timer *timer = calloc(1, sizeof(*timer));

    if (timer == NULL)
        return NULL;
    uv_timer_init(&loop->uv, &timer->uv);
    timer->uv.data = timer;
    timer->fire = fire;
    timer->arg = arg;
    return timer;
}

void sk_timer_start(struct sk_timer *timer, uint64_t first_ms, uint64_t repeat_ms)
{
    /* The loop's clock is as old as the current turn: a timer set after a long callback would fire too early. */
    uv_update_time(timer->uv.loop);
    uv_timer_start(&timer->uv, on_timer, first_ms, repeat_ms);
}

void sk_timer_stop(struct sk_timer *timer)
{
    uv_timer_stop(&timer->uv);
}

bool sk_timer_active(const struct sk_timer *timer)
{
    return uv_is_active((const uv_handle_t *)&timer->uv) != 0;
}

static void timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void sk_timer_free(struct sk_timer *timer)
{
    if (timer != NULL)
        uv_close((uv_handle_t *)&timer->uv, timer_closed);
}

int sk_loop_on_signals(struct sk_loop *loop, const struct sk_loop_signals *signals, struct sk_error *err)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    if (atomic_load(&signal_bell) != NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "another loop of this process has the signals");
    sigfillset(&action.sa_mask);
    loop->on_signal = *signals;
    atomic_store(&end_signal, 0);
    atomic_store(&end_handled, false);
    atomic_store(&signal_bell, &loop->doorbell);
    for (size_t i = 0; i < SIGNAL_COUNT; i++) {
        if (sigaction(signal_numbers[i], &action, &loop->before[i]) != 0) {
            while (i-- > 0)
                sigaction(signal_numbers[i], &loop->before[i], NULL);
            atomic_store(&signal_bell, NULL);
            return sk_fail(err, SK_ERR_INTERNAL, "cannot catch signal: %s", strerror(errno));
        }
    }
    loop->signals_open = true;
    return 0;
}
