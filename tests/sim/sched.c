/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler: a list of runnable fibres from which the seed picks, a heap of timers, and the clocks and gates of the
 * groups. A fibre that waits is in no list; its generation number tells a timer that it comes too late. */
#include "tests/sim/sched.h"

#include "tests/sim/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEAD_WAIT_US 1000 /* how long a wait lasts in a group that died */

struct sim_fiber {
    struct sim_group *group;
    struct sim_context *context;
    char name[SIM_NAME_SIZE * 2];
    unsigned id;
    void (*fn)(void *arg);
    void *arg;
    bool runnable, running;
    uint64_t generation;  /* of the wait: an old timer does not wake a new wait */
    struct sk_gate *gate; /* waits for it */
    struct sim_fiber *gate_prev, *gate_next;
    struct sim_fiber *all_prev, *all_next; /* all_next also links the ended ones */
};

struct sk_gate {
    struct sim_sched *sched;
    uint64_t count;
    struct sim_fiber *first, *last;
};

struct timer {
    int64_t at_us;
    uint64_t order; /* equal times fire in order of creation */
    struct sim_fiber *fiber;
    uint64_t generation;
    void (*fn)(void *arg);
    void *arg;
    bool owns;
};

struct sim_sched {
    int64_t now_us;
    struct sim_rng schedule, ids;
    struct sim_fiber **runnable;
    size_t runnable_count, runnable_size;
    struct timer *timers;
    size_t timer_count, timer_size;
    uint64_t timer_order, steps, steps_now;
    struct sim_fiber *current, *fibers;
    struct sim_fiber *ended; /* kept until the end: old timers still point at them */
    unsigned next_id;
    bool stopped;
    char last[SIM_NAME_SIZE * 2];
};

static void *must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "sim: out of memory\n");
        abort();
    }
    return p;
}

struct sim_sched *sim_sched_new(uint64_t seed)
{
    struct sim_sched *s = must(calloc(1, sizeof(*s)));

    sim_rng_seed(&s->schedule, seed, 1);
    sim_rng_seed(&s->ids, seed, 2);
    return s;
}

void sim_sched_free(struct sim_sched *s)
{
    struct sim_fiber *next;

    for (struct sim_fiber *f = s->fibers; f != NULL; f = next) {
        next = f->all_next;
        sim_context_free(f->context);
        free(f);
    }
    for (struct sim_fiber *f = s->ended; f != NULL; f = next) {
        next = f->all_next;
        free(f);
    }
    for (size_t i = 0; i < s->timer_count; i++) {
        if (s->timers[i].owns)
            free(s->timers[i].arg);
    }
    free(s->runnable);
    free(s->timers);
    free(s);
}

int64_t sim_now_us(const struct sim_sched *s)
{
    return s->now_us;
}

struct sim_rng *sim_sched_ids(struct sim_sched *s)
{
    return &s->ids;
}

uint64_t sim_steps(const struct sim_sched *s)
{
    return s->steps;
}

const char *sim_last_fiber(const struct sim_sched *s)
{
    return s->last;
}

struct sim_fiber *sim_self(struct sim_sched *s)
{
    return s->current;
}

const char *sim_fiber_name(const struct sim_fiber *f)
{
    return f->name;
}

struct sim_group *sim_fiber_group(const struct sim_fiber *f)
{
    return f->group;
}

unsigned sim_fiber_id(const struct sim_fiber *f)
{
    return f->id;
}

/* ---- timers --------------------------------------------------------------------------------------------------- */

static bool earlier(const struct timer *a, const struct timer *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void timer_push(struct sim_sched *s, struct timer timer)
{
    size_t i;

    if (s->timer_count == s->timer_size) {
        s->timer_size = s->timer_size == 0 ? 256 : s->timer_size * 2;
        s->timers = must(realloc(s->timers, s->timer_size * sizeof(*s->timers)));
    }
    timer.order = s->timer_order++;
    if (timer.at_us < s->now_us)
        timer.at_us = s->now_us;
    i = s->timer_count++;
    while (i > 0 && earlier(&timer, &s->timers[(i - 1) / 2])) {
        s->timers[i] = s->timers[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->timers[i] = timer;
}

static struct timer timer_pop(struct sim_sched *s)
{
    struct timer top = s->timers[0], last = s->timers[--s->timer_count];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= s->timer_count)
            break;
        if (child + 1 < s->timer_count && earlier(&s->timers[child + 1], &s->timers[child]))
            child++;
        if (!earlier(&s->timers[child], &last))
            break;
        s->timers[i] = s->timers[child];
        i = child;
    }
    s->timers[i] = last;
    return top;
}

void sim_at(struct sim_sched *s, int64_t at_us, void (*fn)(void *arg), void *arg)
{
    timer_push(s, (struct timer){.at_us = at_us, .fn = fn, .arg = arg});
}

void sim_at_own(struct sim_sched *s, int64_t at_us, void (*fn)(void *arg), void *arg)
{
    timer_push(s, (struct timer){.at_us = at_us, .fn = fn, .arg = arg, .owns = true});
}

void sim_after_own(struct sim_sched *s, int64_t us, void (*fn)(void *arg), void *arg)
{
    sim_at_own(s, s->now_us + us, fn, arg);
}

void sim_after(struct sim_sched *s, int64_t us, void (*fn)(void *arg), void *arg)
{
    sim_at(s, s->now_us + us, fn, arg);
}

/* ---- fibres --------------------------------------------------------------------------------------------------- */

static void gate_unlink(struct sim_fiber *f)
{
    struct sk_gate *gate = f->gate;

    if (gate == NULL)
        return;
    if (f->gate_prev != NULL)
        f->gate_prev->gate_next = f->gate_next;
    else
        gate->first = f->gate_next;
    if (f->gate_next != NULL)
        f->gate_next->gate_prev = f->gate_prev;
    else
        gate->last = f->gate_prev;
    f->gate = NULL;
    f->gate_prev = f->gate_next = NULL;
}

static void make_runnable(struct sim_fiber *f)
{
    struct sim_sched *s = f->group->sched;

    if (f->runnable || f->running)
        return;
    gate_unlink(f);
    f->generation++;
    f->runnable = true;
    if (s->runnable_count == s->runnable_size) {
        s->runnable_size = s->runnable_size == 0 ? 64 : s->runnable_size * 2;
        s->runnable = must(realloc(s->runnable, s->runnable_size * sizeof(*s->runnable)));
    }
    s->runnable[s->runnable_count++] = f;
}

/* Gives the processor away; somebody must have arranged for a wake-up. */
static void block(struct sim_sched *s)
{
    struct sim_fiber *self = s->current;

    sim_context_leave(self->context);
}

static void fiber_main(void *arg)
{
    struct sim_fiber *f = arg;
    struct sim_group *group = f->group;
    struct sim_sched *s = group->sched;

    f->fn(f->arg);
    group->live--;
    sk_gate_notify(&(struct sk_sched){.ops = sim_group_clock(group).ops, .self = group}, group->ended);
    f->running = false;
    if (f->all_prev != NULL)
        f->all_prev->all_next = f->all_next;
    else
        s->fibers = f->all_next;
    if (f->all_next != NULL)
        f->all_next->all_prev = f->all_prev;
    f->fn = NULL; /* the scheduler frees it after the switch */
    sim_context_exit(f->context);
}

struct sim_fiber *sim_spawn(struct sim_group *group, const char *name, void (*fn)(void *arg), void *arg)
{
    struct sim_sched *s = group->sched;
    struct sim_fiber *f = must(calloc(1, sizeof(*f)));

    f->group = group;
    f->id = ++s->next_id;
    snprintf(f->name, sizeof(f->name), "%s.%s", group->name, name);
    f->fn = fn;
    f->arg = arg;
    f->context = sim_context_new(fiber_main, f);
    f->all_next = s->fibers;
    if (s->fibers != NULL)
        s->fibers->all_prev = f;
    s->fibers = f;
    group->live++;
    make_runnable(f);
    return f;
}

void sim_sleep_us(struct sim_sched *s, int64_t us)
{
    struct sim_fiber *self = s->current;

    if (self->group->dead && us > DEAD_WAIT_US)
        us = DEAD_WAIT_US;
    if (us < 0)
        us = 0;
    timer_push(s, (struct timer){.at_us = s->now_us + us, .fiber = self, .generation = self->generation});
    block(s);
}

static void wake_call(void *arg)
{
    make_runnable(arg);
}

enum sim_wait sim_sleep_call_us(struct sim_sched *s, struct sk_call *call, int64_t us)
{
    struct sim_fiber *self = s->current;
    int64_t end_us = s->now_us + us, left_us;
    bool clipped = false;

    if (self->group->dead)
        return SIM_WAIT_DEAD;
    if (call == NULL) {
        sim_sleep_us(s, us);
        return self->group->dead ? SIM_WAIT_DEAD : SIM_WAIT_DONE;
    }
    if (sk_call_cancelled(call))
        return SIM_WAIT_CANCELLED;
    if (call->deadline_us != 0) {
        left_us = call->deadline_us - sk_mono_us(call->sched);
        if (left_us <= 0)
            return SIM_WAIT_DEADLINE;
        if (s->now_us + left_us < end_us) {
            end_us = s->now_us + left_us;
            clipped = true;
        }
    }
    sk_call_set_wake(call, wake_call, self);
    timer_push(s, (struct timer){.at_us = end_us, .fiber = self, .generation = self->generation});
    block(s);
    sk_call_set_wake(call, NULL, NULL);
    if (self->group->dead)
        return SIM_WAIT_DEAD;
    if (sk_call_cancelled(call))
        return SIM_WAIT_CANCELLED;
    return clipped ? SIM_WAIT_DEADLINE : SIM_WAIT_DONE;
}

/* ---- clocks and gates ----------------------------------------------------------------------------------------- */

static int64_t clock_wall_ms(void *self)
{
    const struct sim_group *group = self;

    return group->wall_zero_ms + group->sched->now_us / 1000;
}

static int64_t clock_mono_us(void *self)
{
    const struct sim_group *group = self;

    return group->mono_zero_us + group->sched->now_us;
}

void sim_group_thaw(struct sim_group *group)
{
    while (!group->dead && group->sched->now_us < group->frozen_until_us)
        sim_sleep_us(group->sched, group->frozen_until_us - group->sched->now_us);
}

static void clock_sleep_ms(void *self, int64_t ms)
{
    struct sim_group *group = self;

    if (ms > 0) {
        sim_sleep_us(group->sched, ms * 1000);
        sim_group_thaw(group);
    }
}

static void clock_random(void *self, void *out, size_t len)
{
    const struct sim_group *group = self;

    sim_fill(&group->sched->ids, out, len);
}

static struct sk_gate *gate_new(void *self)
{
    const struct sim_group *group = self;
    struct sk_gate *gate = must(calloc(1, sizeof(*gate)));

    gate->sched = group->sched;
    return gate;
}

static void gate_free(void *self, struct sk_gate *gate)
{
    (void)self;
    if (gate != NULL && gate->first != NULL) {
        fprintf(stderr, "sim: a gate is freed while %s waits for it\n", gate->first->name);
        abort();
    }
    free(gate);
}

static uint64_t gate_ticket(void *self, struct sk_gate *gate)
{
    (void)self;
    return gate->count;
}

static void gate_wait(void *self, struct sk_gate *gate, uint64_t ticket, int64_t timeout_ms)
{
    struct sim_group *group = self;
    struct sim_sched *s = group->sched;
    struct sim_fiber *f = s->current;
    int64_t timeout_us = timeout_ms * 1000;

    if (gate->count != ticket)
        return;
    f->gate = gate;
    f->gate_prev = gate->last;
    f->gate_next = NULL;
    if (gate->last != NULL)
        gate->last->gate_next = f;
    else
        gate->first = f;
    gate->last = f;
    if (timeout_us >= 0)
        timer_push(s, (struct timer){.at_us = s->now_us + timeout_us, .fiber = f, .generation = f->generation});
    block(s);
    sim_group_thaw(group);
}

static void gate_notify(void *self, struct sk_gate *gate)
{
    (void)self;
    gate->count++;
    while (gate->first != NULL)
        make_runnable(gate->first);
}

static const struct sk_sched_ops clock_ops = {
    .wall_ms = clock_wall_ms,
    .mono_us = clock_mono_us,
    .sleep_ms = clock_sleep_ms,
    .random_bytes = clock_random,
    .gate_new = gate_new,
    .gate_free = gate_free,
    .gate_ticket = gate_ticket,
    .gate_wait = gate_wait,
    .gate_notify = gate_notify,
};

struct sk_sched sim_group_clock(struct sim_group *group)
{
    return (struct sk_sched){.ops = &clock_ops, .self = group};
}

void sim_group_init(struct sim_group *group, struct sim_sched *sched, const char *name, int64_t wall_zero_ms,
                    int64_t mono_zero_us)
{
    memset(group, 0, sizeof(*group));
    group->sched = sched;
    snprintf(group->name, sizeof(group->name), "%s", name);
    group->wall_zero_ms = wall_zero_ms;
    group->mono_zero_us = mono_zero_us;
    group->ended = gate_new(group);
}

void sim_group_fini(struct sim_group *group)
{
    gate_free(group, group->ended);
    group->ended = NULL;
}

void sim_group_kill(struct sim_group *group)
{
    group->dead = true;
    for (struct sim_fiber *f = group->sched->fibers; f != NULL; f = f->all_next) {
        /* A gate does not wake without a notification: the replica's own stop rings them all. */
        if (f->group == group && f->gate == NULL)
            make_runnable(f);
    }
}

void sim_group_join(struct sim_group *group)
{
    while (group->live > 0)
        gate_wait(sim_self(group->sched)->group, group->ended, group->ended->count, -1);
}

/* ---- the loop ------------------------------------------------------------------------------------------------- */

static void fire(struct sim_sched *s)
{
    struct timer timer = timer_pop(s);

    if (timer.fiber == NULL)
        timer.fn(timer.arg);
    else if (timer.fiber->generation == timer.generation)
        make_runnable(timer.fiber);
}

static void step(struct sim_sched *s)
{
    size_t pick = sim_below(&s->schedule, s->runnable_count);
    struct sim_fiber *f = s->runnable[pick];

    s->runnable[pick] = s->runnable[--s->runnable_count];
    f->runnable = false;
    f->running = true;
    s->current = f;
    memcpy(s->last, f->name, sizeof(s->last));
    s->steps++;
    s->steps_now++;
    sim_context_enter(f->context);
    s->current = NULL;
    f->running = false;
    if (f->fn == NULL) {
        sim_context_free(f->context);
        f->generation++;
        f->all_next = s->ended;
        s->ended = f;
    }
}

enum sim_end sim_run(struct sim_sched *s, int64_t until_us)
{
    s->stopped = false;
    for (;;) {
        if (s->stopped)
            return SIM_END_STOPPED;
        if (s->runnable_count > 0) {
            if (s->steps_now > SIM_STEPS_WITHOUT_TIME)
                return SIM_END_LIVELOCK;
            step(s);
            continue;
        }
        if (s->timer_count == 0)
            return SIM_END_IDLE;
        if (s->timers[0].at_us > until_us) {
            s->now_us = until_us;
            return SIM_END_TIME;
        }
        if (s->timers[0].at_us > s->now_us) {
            s->now_us = s->timers[0].at_us;
            s->steps_now = 0;
        }
        /* All of this moment become runnable together, so that their order is the seed's choice. */
        while (s->timer_count > 0 && s->timers[0].at_us == s->now_us && !s->stopped)
            fire(s);
    }
}

void sim_stop(struct sim_sched *s)
{
    s->stopped = true;
}

void sim_each_fiber(struct sim_sched *s, void (*fn)(void *arg, const struct sim_fiber *fiber, const char *state),
                    void *arg)
{
    for (struct sim_fiber *f = s->fibers; f != NULL; f = f->all_next)
        fn(arg, f, f->runnable ? "can run" : f->gate != NULL ? "waits at a gate" : "sleeps or is inside a call");
}
