/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler of the simulator: virtual time, gates without lost notifications, cancellable sleeps, death of a group,
 * and above all that the order of things is the seed's and nobody else's. */
#include "services/lifecycle/mutations.h"
#include "tests/sim/sched.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

enum lc_mutation lc_mutation = LC_MUTATION_NONE;

#define MS 1000

struct stage {
    struct sim_sched *sched;
    struct sim_group group, other;
    struct sk_sched clock;
    char log[512];
};

static void stage_up(struct stage *s, uint64_t seed)
{
    memset(s, 0, sizeof(*s));
    s->sched = sim_sched_new(seed);
    sim_group_init(&s->group, s->sched, "a", 1000000, 500);
    sim_group_init(&s->other, s->sched, "b", 2000000, 0);
    s->clock = sim_group_clock(&s->group);
}

static void stage_down(struct stage *s)
{
    sim_group_fini(&s->group);
    sim_group_fini(&s->other);
    sim_sched_free(s->sched);
}

static void note(struct stage *s, const char *text)
{
    strncat(s->log, text, sizeof(s->log) - strlen(s->log) - 1);
}

/* ---- order ---------------------------------------------------------------------------------------------------------
 */

struct letter {
    struct stage *stage;
    char text[2];
};

static void write_letters(void *arg)
{
    struct letter *letter = arg;

    for (int i = 0; i < 8; i++) {
        note(letter->stage, letter->text);
        sim_sleep_us(letter->stage->sched, 0);
    }
}

static void letters(uint64_t seed, char out[64])
{
    struct letter items[4];
    struct stage s;

    stage_up(&s, seed);
    for (int i = 0; i < 4; i++) {
        items[i] = (struct letter){.stage = &s, .text = {(char)('a' + i), '\0'}};
        sim_spawn(&s.group, items[i].text, write_letters, &items[i]);
    }
    ck_assert_int_eq(sim_run(s.sched, SIM_MILLION), SIM_END_IDLE);
    ck_assert_int_eq(s.group.live, 0);
    memcpy(out, s.log, 64);
    stage_down(&s);
}

START_TEST(test_order_is_the_seeds)
{
    char first[64], again[64], other[64];
    bool differs = false;

    letters(7, first);
    letters(7, again);
    ck_assert_uint_eq(strlen(first), 32);
    ck_assert_str_eq(first, again);
    for (uint64_t seed = 8; seed < 12; seed++) {
        letters(seed, other);
        differs = differs || strcmp(first, other) != 0;
    }
    ck_assert(differs);
}
END_TEST

/* ---- time ----------------------------------------------------------------------------------------------------------
 */

static void sleeper(void *arg)
{
    struct stage *s = arg;

    ck_assert_int_eq(sk_wall_ms(&s->clock), 1000000);
    ck_assert_int_eq(sk_mono_us(&s->clock), 500);
    sk_sleep_ms(&s->clock, 250);
    ck_assert_int_eq(sim_now_us(s->sched), 250 * MS);
    ck_assert_int_eq(sk_wall_ms(&s->clock), 1000250);
    ck_assert_int_eq(sk_mono_us(&s->clock), 500 + 250 * MS);
    note(s, "slept ");
}

static void ring(void *arg)
{
    struct stage *s = arg;

    note(s, sim_now_us(s->sched) == 100 * MS ? "rang-in-time " : "rang-late ");
}

START_TEST(test_virtual_time)
{
    struct stage s;

    stage_up(&s, 1);
    sim_spawn(&s.group, "sleeper", sleeper, &s);
    sim_after(s.sched, 100 * MS, ring, &s);
    ck_assert_int_eq(sim_run(s.sched, 200 * MS), SIM_END_TIME);
    ck_assert_int_eq(sim_now_us(s.sched), 200 * MS);
    ck_assert_str_eq(s.log, "rang-in-time ");
    ck_assert_int_eq(sim_run(s.sched, SIM_MILLION), SIM_END_IDLE);
    ck_assert_str_eq(s.log, "rang-in-time slept ");
    stage_down(&s);
}
END_TEST

/* ---- gates ----------------------------------------------------------------------------------------------------------
 */

struct gate_stage {
    struct stage s;
    struct sk_gate *gate;
    int woken;
};

static void gate_waiter(void *arg)
{
    struct gate_stage *g = arg;
    uint64_t ticket = sk_gate_ticket(&g->s.clock, g->gate);

    sk_gate_wait(&g->s.clock, g->gate, ticket, -1);
    g->woken++;
    ck_assert_int_eq(sim_now_us(g->s.sched), 30 * MS);
}

static void gate_late(void *arg)
{
    struct gate_stage *g = arg;
    uint64_t ticket = sk_gate_ticket(&g->s.clock, g->gate);

    /* The notification comes between the ticket and the wait: it must not be lost. */
    sk_sleep_ms(&g->s.clock, 60);
    sk_gate_wait(&g->s.clock, g->gate, ticket, -1);
    g->woken++;
    ck_assert_int_eq(sim_now_us(g->s.sched), 60 * MS);
    /* Nobody notifies any more: the time-out ends it. */
    sk_gate_wait(&g->s.clock, g->gate, sk_gate_ticket(&g->s.clock, g->gate), 15);
    ck_assert_int_eq(sim_now_us(g->s.sched), 75 * MS);
    g->woken++;
}

static void gate_ringer(void *arg)
{
    struct gate_stage *g = arg;

    sk_sleep_ms(&g->s.clock, 30);
    sk_gate_notify(&g->s.clock, g->gate);
}

START_TEST(test_gates)
{
    struct gate_stage g;

    stage_up(&g.s, 3);
    g.gate = sk_gate_new(&g.s.clock);
    g.woken = 0;
    sim_spawn(&g.s.group, "w1", gate_waiter, &g);
    sim_spawn(&g.s.group, "w2", gate_waiter, &g);
    sim_spawn(&g.s.group, "late", gate_late, &g);
    sim_spawn(&g.s.group, "ringer", gate_ringer, &g);
    ck_assert_int_eq(sim_run(g.s.sched, SIM_MILLION), SIM_END_IDLE);
    ck_assert_int_eq(g.woken, 4);
    sk_gate_free(&g.s.clock, g.gate);
    stage_down(&g.s);
}
END_TEST

/* ---- calls ----------------------------------------------------------------------------------------------------------
 */

struct call_stage {
    struct stage s;
    struct sk_call call;
};

static void canceller(void *arg)
{
    struct call_stage *c = arg;

    sk_sleep_ms(&c->s.clock, 20);
    sk_call_cancel(&c->call);
}

static void caller(void *arg)
{
    struct call_stage *c = arg;
    struct sk_call other;

    ck_assert_int_eq(sim_sleep_call_us(c->s.sched, &c->call, 500 * MS), SIM_WAIT_CANCELLED);
    ck_assert_int_eq(sim_now_us(c->s.sched), 20 * MS);
    ck_assert_int_eq(sim_sleep_call_us(c->s.sched, &c->call, 500 * MS), SIM_WAIT_CANCELLED);
    ck_assert_int_eq(sim_now_us(c->s.sched), 20 * MS);
    sk_call_init(&other, &c->s.clock);
    other.deadline_us = sk_mono_us(&c->s.clock) + 7 * MS;
    ck_assert_int_eq(sim_sleep_call_us(c->s.sched, &other, 500 * MS), SIM_WAIT_DEADLINE);
    ck_assert_int_eq(sim_now_us(c->s.sched), 27 * MS);
    ck_assert_int_eq(sim_sleep_call_us(c->s.sched, &other, MS), SIM_WAIT_DEADLINE);
    other.deadline_us = 0;
    ck_assert_int_eq(sim_sleep_call_us(c->s.sched, &other, 3 * MS), SIM_WAIT_DONE);
    ck_assert_int_eq(sim_now_us(c->s.sched), 30 * MS);
    note(&c->s, "done");
}

START_TEST(test_cancel_and_deadline)
{
    struct call_stage c;

    stage_up(&c.s, 4);
    sk_call_init(&c.call, &c.s.clock);
    sim_spawn(&c.s.group, "caller", caller, &c);
    sim_spawn(&c.s.group, "canceller", canceller, &c);
    ck_assert_int_eq(sim_run(c.s.sched, SIM_MILLION), SIM_END_IDLE);
    ck_assert_str_eq(c.s.log, "done");
    stage_down(&c.s);
}
END_TEST

/* ---- death ----------------------------------------------------------------------------------------------------------
 */

static void doomed(void *arg)
{
    struct stage *s = arg;

    sim_sleep_us(s->sched, 900 * MS);
    ck_assert_int_eq(sim_now_us(s->sched), 50 * MS);
    /* What it still waits for is short, so that unwinding does not take long. */
    for (int i = 0; i < 5; i++)
        sim_sleep_us(s->sched, 900 * MS);
    ck_assert_int_le(sim_now_us(s->sched), 60 * MS);
    ck_assert_int_eq(sim_sleep_call_us(s->sched, NULL, 900 * MS), SIM_WAIT_DEAD);
    note(s, "unwound ");
}

static void killer(void *arg)
{
    struct stage *s = arg;

    sim_sleep_us(s->sched, 50 * MS);
    sim_group_kill(&s->group);
    sim_group_join(&s->group);
    note(s, "joined");
}

START_TEST(test_death)
{
    struct stage s;

    stage_up(&s, 5);
    sim_spawn(&s.group, "doomed", doomed, &s);
    sim_spawn(&s.other, "killer", killer, &s);
    sim_run(s.sched, SIM_MILLION);
    ck_assert_str_eq(s.log, "unwound joined");
    stage_down(&s);
}
END_TEST

static void spinner(void *arg)
{
    struct stage *s = arg;

    for (;;)
        sim_sleep_us(s->sched, 0);
}

START_TEST(test_livelock_is_told)
{
    struct stage s;

    stage_up(&s, 6);
    sim_spawn(&s.group, "spinner", spinner, &s);
    ck_assert_int_eq(sim_run(s.sched, SIM_MILLION), SIM_END_LIVELOCK);
    ck_assert_str_eq(sim_last_fiber(s.sched), "a.spinner");
    stage_down(&s); /* the fibre is abandoned */
}
END_TEST

static void own_argument(void *arg)
{
    free(arg);
}

START_TEST(test_arguments_of_timers)
{
    struct stage s;

    stage_up(&s, 7);
    sim_after_own(s.sched, 10, own_argument, malloc(8));
    sim_after_own(s.sched, 10 * (int64_t)SIM_MILLION, own_argument, malloc(8)); /* its time never comes */
    ck_assert_int_eq(sim_run(s.sched, 100), SIM_END_TIME);
    stage_down(&s);
}
END_TEST

START_TEST(test_random_streams)
{
    struct sim_rng a, b, c;
    int heads = 0;

    sim_rng_seed(&a, 9, 1);
    sim_rng_seed(&b, 9, 1);
    sim_rng_seed(&c, 9, 2);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = sim_rng_next(&a);

        ck_assert_uint_eq(x, sim_rng_next(&b));
        ck_assert_uint_ne(x, sim_rng_next(&c));
        ck_assert_uint_lt(sim_below(&a, 3), 3);
        ck_assert_uint_lt(sim_below(&b, 3), 3);
        ck_assert_int_ge(sim_between(&c, -5, 5), -5);
        ck_assert_int_le(sim_between(&c, -5, 5), 5);
        heads += sim_percent(&c, 50);
    }
    ck_assert_int_gt(heads, 400);
    ck_assert_int_lt(heads, 600);
    ck_assert_int_eq(sim_between(&a, 4, 4), 4);
    ck_assert(!sim_chance(&a, 0));
    ck_assert(sim_chance(&a, SIM_MILLION));
}
END_TEST

SK_CHECK_MAIN("sim-sched", test_order_is_the_seeds, test_virtual_time, test_gates, test_cancel_and_deadline, test_death,
              test_livelock_is_told, test_arguments_of_timers, test_random_streams)
