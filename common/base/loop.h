/* SPDX-License-Identifier: Apache-2.0
 *
 * One libuv loop with what every service needs around it: a doorbell through which other threads hand work to the loop
 * thread, timers, signals, a clean end.
 *
 * Unless a function says "any thread", it belongs to the loop thread: the one that calls sk_loop_run (before the run,
 * the one that made the loop). Callbacks run on the loop thread and must not block. uv_async coalesces, so the doorbell
 * always empties its queues; at most SK_LOOP_BATCH closures run in one turn, so that a flood does not starve sockets.
 */
#ifndef SK_BASE_LOOP_H
#define SK_BASE_LOOP_H

#include "common/base/error.h"
#include "common/base/list.h"

#include <uv.h>

#define SK_LOOP_BATCH         256
#define SK_LOOP_POST_CAPACITY 65536 /* default bound of sk_loop_post */

struct sk_loop;

/* post_capacity 0 = SK_LOOP_POST_CAPACITY. SIGPIPE is ignored from here on. NULL with err. */
SK_MUST_USE struct sk_loop *sk_loop_new(size_t post_capacity, struct sk_error *err);
uv_loop_t *sk_loop_uv(struct sk_loop *loop);
/* Runs until sk_loop_stop. Handles may be left open then: their owners close them, and sk_loop_free waits. */
void sk_loop_run(struct sk_loop *loop);
/* Any thread. The run ends after the current turn. */
void sk_loop_stop(struct sk_loop *loop);
/* Runs what is still posted, closes the loop's own handles, runs the loop until all close callbacks were called, and
 * frees it. Handles that nobody closed are closed too; their number is returned (0 is what it should be: else an owner
 * leaks). No other thread may post any more. NULL is allowed. */
size_t sk_loop_free(struct sk_loop *loop);
/* Any thread: true on the loop thread. */
bool sk_loop_is_current(struct sk_loop *loop);

/* Any thread. Runs `run(arg)` on the loop thread, in the order of posting. False when post_capacity closures wait
 * already (or memory is out): the caller keeps arg. */
SK_MUST_USE bool sk_loop_post(struct sk_loop *loop, void (*run)(void *arg), void *arg);
/* Same, but never fails: the node is the caller's (part of the object whose result it reports), so its number is
 * bounded by the caller's own objects. Do not post a node again before it ran; it may be freed inside `run`. */
struct sk_loop_task {
    struct sk_list link;
    void (*run)(struct sk_loop_task *task);
};
void sk_loop_post_task(struct sk_loop *loop, struct sk_loop_task *task);
/* Any thread: closures and tasks that wait, for a gauge. */
size_t sk_loop_posted(struct sk_loop *loop);

/* Timers. Freed timers never fire again; the memory goes after libuv's close callback. */
struct sk_timer;
SK_MUST_USE struct sk_timer *sk_timer_new(struct sk_loop *loop, void (*fire)(void *arg), void *arg);
/* (Re)starts it: first after first_ms, then every repeat_ms (0 = once). A repeating timer never catches up: turns that
 * were missed because the loop was busy are skipped. */
void sk_timer_start(struct sk_timer *timer, uint64_t first_ms, uint64_t repeat_ms);
void sk_timer_stop(struct sk_timer *timer);
bool sk_timer_active(const struct sk_timer *timer);
void sk_timer_free(struct sk_timer *timer); /* NULL is allowed; also from inside its own callback */

/* SIGTERM and SIGINT: the first calls `drain` on the loop thread, the second ends the process at once with status 1,
 * even when the loop hangs. SIGHUP calls `reload` on the loop thread (NULL = ignored). One loop of a process may do
 * this. */
struct sk_loop_signals {
    void (*drain)(void *arg, int signal);
    void (*reload)(void *arg);
    void *arg;
};
SK_MUST_USE int sk_loop_on_signals(struct sk_loop *loop, const struct sk_loop_signals *signals, struct sk_error *err);

#endif
