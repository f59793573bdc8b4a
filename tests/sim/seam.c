/* SPDX-License-Identifier: Apache-2.0
 *
 * One call through a seam: the way there and the way back. Here requests get lost, replies get lost, callers die, and a
 * service that is away refuses. What the call does to its server stands in the server's own file. */
#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>

static const enum sim_service services[SIM_CALL_COUNT] = {
#define SIM_CALL(name, wire, service) [SIM_##name] = SIM_##service,
#include "tests/sim/calls.def"
#undef SIM_CALL
};

/* Microseconds of one leg of an undisturbed call. */
static const struct {
    int64_t low, high;
} legs[SIM_SERVICE_COUNT] = {
    [SIM_STORE] = {100, 900},
    [SIM_LEASE] = {50, 300},
    [SIM_BUS] = {50, 500},
    [SIM_PROVIDER] = {500, 12000},
};

static int64_t timeout_us(const struct sim_world *w, enum sim_service service)
{
    switch (service) {
    case SIM_STORE:
        return w->scenario.store_timeout_ms * SIM_MS;
    case SIM_LEASE:
        return w->scenario.lease_timeout_ms * SIM_MS;
    case SIM_BUS:
        return 500 * SIM_MS;
    default:
        return w->scenario.provider_timeout_ms * SIM_MS;
    }
}

/* Certainly without effect. */
static int fail_before(struct sim_io *io, struct sk_error *err, const char *why)
{
    switch (services[io->kind]) {
    case SIM_STORE:
        return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "%s: %s", sim_call_name(io->kind), why);
    case SIM_LEASE:
        return sk_fail(err, SK_ERR_LEASE_UNAVAILABLE, "%s: %s", sim_call_name(io->kind), why);
    case SIM_PROVIDER:
        return sk_fail(err, SK_ERR_PROVIDER_ERROR, "%s: %s", sim_call_name(io->kind), why);
    default:
        return sk_fail(err, SK_ERR_INTERNAL, "%s: %s", sim_call_name(io->kind), why);
    }
}

static int fail_after(struct sim_io *io, struct sk_error *err, const char *why)
{
    enum sk_code code = services[io->kind] == SIM_STORE   ? SK_ERR_STORE_UNAVAILABLE
                        : services[io->kind] == SIM_LEASE ? SK_ERR_LEASE_UNAVAILABLE
                        : services[io->kind] == SIM_BUS   ? SK_ERR_INTERNAL
                                                          : SK_ERR_PROVIDER_TIMEOUT;

    if (!io->write)
        return fail_before(io, err, why);
    return sk_fail_unknown(err, code, "%s: %s", sim_call_name(io->kind), why);
}

static int fail_dead(struct sim_io *io, struct sk_error *err)
{
    return sk_fail(err, SK_ERR_CANCELLED, "%s: the process is dead", sim_call_name(io->kind));
}

/* Dies the caller here? Planned points count the calls of all replicas together. */
static bool dies(struct sim_io *io, bool after)
{
    struct sim_world *w = io->inc->w;
    const struct sim_scenario *s = &w->scenario;
    bool die = false;

    if (!w->faults_on || io->inc->group.dead)
        return false;
    for (int i = 0; i < s->crash_point_count; i++) {
        const struct sim_crash_point *point = &s->crash_points[i];

        if (point->call == io->kind && point->after == after && point->nth == w->result->call_counts[io->kind])
            die = true;
    }
    if (!die && !sim_chance(&w->faults, s->fault[SIM_FAULT_CRASH] / 2))
        return false;
    w->result->crashes[io->kind]++;
    sim_saw(w, after ? SIM_SOME_CRASH_AFTER : SIM_SOME_CRASH_BEFORE);
    sim_crash(io->inc, sim_call_name(io->kind));
    return true;
}

static bool went_down_since(const struct sim_world *w, enum sim_service service, int64_t since_us)
{
    return w->down_until_us[service] > since_us && w->down_since_us[service] > since_us;
}

static bool reachable(const struct sim_inc *inc, enum sim_service service)
{
    int64_t now = sim_now_us(inc->w->sched);

    return !sim_down(inc->w, service) && (service != SIM_BUS || now >= inc->cut_until_us) &&
           (service != SIM_LEASE || now >= inc->lease_cut_until_us);
}

/* Faults of calls that are alike for all calls of a service; the provider's and the bus's own stand with them. */
static enum sim_arrival strike_generic(struct sim_io *io, struct sk_error *err)
{
    struct sim_world *w = io->inc->w;

    if ((int)io->kind == w->scenario.hot_call && w->faults_on && sim_chance(&w->faults, w->scenario.hot_ppm)) {
        io->reply_lost = true;
        return SIM_ARRIVED;
    }
    switch (services[io->kind]) {
    case SIM_STORE:
        if (sim_strike(w, SIM_FAULT_STORE_ERROR)) {
            fail_before(io, err, "the connection was refused");
            return SIM_REFUSED;
        }
        if (sim_strike(w, SIM_FAULT_STORE_LOST_REQUEST))
            return SIM_VANISHED;
        if (io->can_be_late && sim_strike(w, SIM_FAULT_STORE_LATE))
            return SIM_LATE;
        io->reply_lost = sim_strike(w, SIM_FAULT_STORE_LOST_REPLY);
        return SIM_ARRIVED;
    case SIM_LEASE:
        if (sim_strike(w, SIM_FAULT_LEASE_ERROR)) {
            fail_before(io, err, "the connection was refused");
            return SIM_REFUSED;
        }
        io->reply_lost = sim_strike(w, SIM_FAULT_LEASE_LOST_REPLY);
        return SIM_ARRIVED;
    case SIM_PROVIDER:
        if (sim_strike(w, SIM_FAULT_PROVIDER_LOST))
            return SIM_VANISHED;
        io->reply_lost = sim_strike(w, SIM_FAULT_PROVIDER_LOST_REPLY);
        return SIM_ARRIVED;
    default:
        return SIM_ARRIVED;
    }
}

static bool sluggish(struct sim_inc *inc)
{
    return sim_now_us(inc->w->sched) < inc->sluggish_until_us && sim_percent(&inc->w->faults, 40);
}

static int64_t leg_us(struct sim_io *io, bool there)
{
    struct sim_world *w = io->inc->w;
    enum sim_service service = services[io->kind];
    int64_t us = sim_between(&w->faults, legs[service].low, legs[service].high);
    enum sim_fault slow = service == SIM_STORE   ? SIM_FAULT_STORE_SLOW
                          : service == SIM_LEASE ? SIM_FAULT_LEASE_SLOW
                                                 : SIM_FAULT_PROVIDER_SLOW;

    if (service != SIM_BUS && (sim_strike(w, slow) || (service == SIM_PROVIDER && sluggish(io->inc)))) {
        /* On the way there no request outlives the lease of its caller (docs/simulator.md, limits of the model). */
        int64_t longest = there ? w->scenario.lc.lease_ttl_ms * SIM_MS * 3 / 4 : timeout_us(w, service);

        us += sim_between(&w->faults, 10 * SIM_MS, longest);
        if (service == SIM_LEASE && us > timeout_us(w, service))
            us = timeout_us(w, service);
    }
    return us;
}

/* The caller was called back, ran out of time or died while the request was on its way: it may have left or not. */
static enum sim_arrival interrupted(struct sim_io *io)
{
    struct sim_world *w = io->inc->w;

    if (!io->write)
        return SIM_VANISHED;
    switch (sim_below(&w->faults, io->can_be_late ? 3 : 2)) {
    case 0:
        return SIM_VANISHED;
    case 1:
        return SIM_ARRIVED;
    default:
        return SIM_LATE;
    }
}

/* An insert has nothing to be fenced by: it must not outlive a whole life of its sandbox (docs/simulator.md, limits).
 */
#define LATE_INSERT_MAX_MS 100

static void draw_late(struct sim_io *io)
{
    struct sim_world *w = io->inc->w;
    int64_t longest_ms = services[io->kind] == SIM_PROVIDER ? w->scenario.ghost_max_ms
                         : io->kind == SIM_STORE_INSERT     ? LATE_INSERT_MAX_MS
                                                            : w->scenario.store_timeout_ms * 2;

    io->late_us = sim_now_us(w->sched) + sim_between(&w->faults, 20 * SIM_MS, longest_ms * SIM_MS);
}

enum sim_arrival sim_send(struct sim_io *io, struct sk_error *err)
{
    struct sim_inc *inc = io->inc;
    struct sim_world *w = inc->w;
    enum sim_service service = services[io->kind];

    io->began_us = sim_now_us(w->sched);
    io->interrupted = SIM_WAIT_DONE;
    io->reply_lost = false;
    io->arrival = SIM_REFUSED;
    w->result->calls++;
    if (inc->group.dead) {
        fail_dead(io, err);
        /* Not free: a loop that never looks whether it should stop must not hang the whole run. */
        sim_sleep_us(w->sched, 1);
        return SIM_REFUSED;
    }
    w->result->call_counts[io->kind]++;
    if (dies(io, false)) {
        fail_dead(io, err);
        return SIM_REFUSED;
    }
    if (io->call != NULL && sk_call_cancelled(io->call)) {
        sk_fail(err, SK_ERR_CANCELLED, "%s: cancelled", sim_call_name(io->kind));
        return SIM_REFUSED;
    }
    if (io->call != NULL && sk_call_budget_ms(io->call, 1) == 0) {
        if (service == SIM_PROVIDER)
            sk_fail(err, SK_ERR_PROVIDER_TIMEOUT, "%s: out of time", sim_call_name(io->kind));
        else
            fail_before(io, err, "out of time");
        return SIM_REFUSED;
    }
    io->interrupted = sim_sleep_call_us(w->sched, io->call, leg_us(io, true));
    if (io->interrupted != SIM_WAIT_DONE) {
        io->arrival = interrupted(io);
    } else if (!reachable(inc, service)) {
        if (went_down_since(w, service, io->began_us)) {
            io->arrival = SIM_VANISHED;
        } else {
            fail_before(io, err, "the service is away");
            return SIM_REFUSED;
        }
    } else {
        io->arrival = strike_generic(io, err);
    }
    if (io->arrival == SIM_LATE)
        draw_late(io);
    return io->arrival;
}

static int reply_interrupted(struct sim_io *io, struct sk_error *err)
{
    const char *name = sim_call_name(io->kind);

    switch (io->interrupted) {
    case SIM_WAIT_CANCELLED:
        return io->write ? sk_fail_unknown(err, SK_ERR_CANCELLED, "%s: cancelled under way", name)
                         : sk_fail(err, SK_ERR_CANCELLED, "%s: cancelled under way", name);
    case SIM_WAIT_DEADLINE:
        return fail_after(io, err, "out of time");
    default:
        return fail_dead(io, err);
    }
}

static int read_reply(struct sim_io *io, struct sk_error *err)
{
    struct sim_inc *inc = io->inc;
    struct sim_world *w = inc->w;
    enum sim_service service = services[io->kind];
    int64_t left_us;

    if (inc->group.dead)
        return fail_dead(io, err);
    if (io->interrupted != SIM_WAIT_DONE)
        return reply_interrupted(io, err);
    if (dies(io, true))
        return fail_dead(io, err);
    if (io->arrival != SIM_ARRIVED || io->reply_lost) {
        /* A connection that breaks is noticed at once, a packet that is lost after the time-out. */
        left_us = sim_percent(&w->faults, 50) ? leg_us(io, false)
                                              : timeout_us(w, service) - (sim_now_us(w->sched) - io->began_us);
        io->interrupted = sim_sleep_call_us(w->sched, io->call, left_us);
        if (io->interrupted != SIM_WAIT_DONE)
            return reply_interrupted(io, err);
        return fail_after(io, err, "no answer");
    }
    left_us = leg_us(io, false);
    io->interrupted = sim_sleep_call_us(w->sched, io->call, left_us);
    if (io->interrupted != SIM_WAIT_DONE)
        return reply_interrupted(io, err);
    if (!reachable(inc, service) || sim_now_us(w->sched) - io->began_us > timeout_us(w, service))
        return fail_after(io, err, "the connection was lost");
    return 0;
}

int sim_reply(struct sim_io *io, struct sk_error *err)
{
    int rc = read_reply(io, err);

    sim_group_thaw(&io->inc->group);
    return rc;
}

void sim_done(struct sim_io *io, int64_t result, const char *fmt, ...)
{
    struct sim_world *w = io->inc->w;
    char text[512];
    va_list args;

    sim_mark(w, (int)io->kind, result, io->arrival);
    if (!w->options.trace)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    sim_trace(w, "%-22s %s %s%s", sim_call_name(io->kind), io->about == NULL ? "" : io->about, text,
              io->arrival == SIM_VANISHED ? " [lost on its way]"
              : io->arrival == SIM_LATE   ? " [will arrive late]"
              : io->reply_lost            ? " [reply lost]"
                                          : "");
}
