/* SPDX-License-Identifier: Apache-2.0
 *
 * What every part of the simulated world uses: names, faults, failures, the trace and its hash. */
#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const call_names[SIM_CALL_COUNT] = {
#define SIM_CALL(name, wire, service) [SIM_##name] = wire,
#include "tests/sim/calls.def"
#undef SIM_CALL
};

static const char *const sometimes_names[SIM_SOMETIMES_COUNT] = {
#define SIM_SOMETIMES(name, wire, doc) [SIM_SOME_##name] = wire,
#include "tests/sim/sometimes.def"
#undef SIM_SOMETIMES
};

const char *sim_call_name(enum sim_call call)
{
    return call_names[call];
}

const char *sim_sometimes_name(enum sim_sometimes which)
{
    return sometimes_names[which];
}

bool sim_strike(struct sim_world *w, enum sim_fault fault)
{
    return w->faults_on && sim_chance(&w->faults, w->scenario.fault[fault]);
}

bool sim_down(const struct sim_world *w, enum sim_service service)
{
    return sim_now_us(w->sched) < w->down_until_us[service];
}

void sim_fail(struct sim_world *w, const char *monitor, const char *fmt, ...)
{
    va_list args;

    if (w->failed || w->lenient)
        return;
    w->failed = true;
    w->result->failed = true;
    snprintf(w->result->monitor, sizeof(w->result->monitor), "%s", monitor);
    va_start(args, fmt);
    vsnprintf(w->result->failure, sizeof(w->result->failure), fmt, args);
    va_end(args);
    SIM_TRACE(w, "*** %s: %s", monitor, w->result->failure);
    sim_stop(w->sched);
}

void sim_mark(struct sim_world *w, int what, int64_t a, int64_t b)
{
    uint64_t h = w->result->hash;
    const struct sim_fiber *self = sim_self(w->sched);

    h = (h ^ (uint64_t)(unsigned)what) * 0x100000001b3u;
    h = (h ^ (uint64_t)sim_now_us(w->sched)) * 0x100000001b3u;
    h = (h ^ (self == NULL ? 0 : sim_fiber_id(self))) * 0x100000001b3u;
    h = (h ^ (uint64_t)a) * 0x100000001b3u;
    h = (h ^ (uint64_t)b) * 0x100000001b3u;
    w->result->hash = h ^ (h >> 29);
}

void sim_trace(struct sim_world *w, const char *fmt, ...)
{
    const struct sim_fiber *self = sim_self(w->sched);
    int64_t now = sim_now_us(w->sched);
    va_list args;

    fprintf(w->options.out, "%5lld.%06lld  %-22s ", (long long)(now / SIM_SECOND), (long long)(now % SIM_SECOND),
            self == NULL ? "-" : sim_fiber_name(self));
    va_start(args, fmt);
    vfprintf(w->options.out, fmt, args);
    va_end(args);
    fputc('\n', w->options.out);
}
