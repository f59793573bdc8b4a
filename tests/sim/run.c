/* SPDX-License-Identifier: Apache-2.0
 *
 * One run of one seed: births, an active time with faults, calm, rest, verdict, drain. */
#include "common/log/log.h"
#include "tests/sim/monitor.h"
#include "tests/sim/scenario.h"
#include "tests/sim/verdict.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS     200   /* how often the resting world is looked at */
#define FAREWELL_MS 30000 /* the last drain, without faults */
#define UNWIND_MS   60000 /* after a failure: what has not unwound by then is abandoned */

static struct sim_world *traced; /* whose log lines are shown */

static void log_sink(void *arg, const char *line, size_t len)
{
    (void)arg;
    if (traced != NULL && traced->options.trace)
        sim_trace(traced, "log: %.*s", (int)(len > 0 && line[len - 1] == '\n' ? len - 1 : len), line);
}

static void world_init(struct sim_world *w, const struct sim_options *options, struct sim_result *result)
{
    memset(w, 0, sizeof(*w));
    memset(result, 0, sizeof(*result));
    w->options = *options;
    if (w->options.out == NULL)
        w->options.out = stdout;
    w->result = result;
    result->hash = 0xcbf29ce484222325u;
    sim_scenario_draw(&w->scenario, options->seed);
    w->sched = sim_sched_new(options->seed);
    sim_rng_seed(&w->faults, options->seed, 4);
    sim_rng_seed(&w->work, options->seed, 5);
    sim_group_init(&w->group, w->sched, "world", SIM_EPOCH_WALL_MS, 0);
    w->clock = sim_group_clock(&w->group);
    w->store = sim_store_new(w);
    w->lease = sim_lease_new(w);
    w->bus = sim_bus_new(w);
    w->provider = sim_provider_new(w);
    w->monitor = sim_monitor_new(w);
    w->workload = sim_workload_new(w);
    traced = w;
    sk_log_capture(log_sink, NULL);
    sk_log_set_clock(&w->clock);
    sk_log_set_level(options->trace ? SK_LOG_LEVEL_DEBUG : SK_LOG_LEVEL_ERROR);
}

static void world_fini(struct sim_world *w)
{
    sk_log_set_clock(NULL);
    sk_log_capture(NULL, NULL);
    traced = NULL;
    sim_incs_free(w);
    sim_workload_free(w->workload);
    sim_monitor_free(w->monitor);
    sim_provider_free(w->provider);
    sim_bus_free(w->bus);
    sim_lease_free(w->lease);
    sim_store_free(w->store);
    sim_group_fini(&w->group);
    sim_sched_free(w->sched);
}

/* Runs for so long; false when the run is over (failed). */
static bool advance(struct sim_world *w, int64_t ms)
{
    enum sim_end end = sim_run(w->sched, sim_now_us(w->sched) + ms * SIM_MS);

    if (end == SIM_END_LIVELOCK)
        sim_fail(w, "livelock", "%s runs on and on without time passing", sim_last_fiber(w->sched));
    return !w->failed;
}

static void show_scenario(struct sim_world *w)
{
    static const char *const names[SIM_FAULT_COUNT] = {
#define SIM_FAULT(name, wire, percent, low, high, doc) [SIM_FAULT_##name] = wire,
#include "tests/sim/faults.def"
#undef SIM_FAULT
    };
    const struct lc_settings *lc = &w->scenario.lc;

    if (!w->options.trace)
        return;
    sim_trace(w, "%d replicas, %d workers each, %d sandboxes, %d commands in %lld ms, volumes %s", w->scenario.replicas,
              lc->workers, w->scenario.sandboxes, w->scenario.commands, (long long)w->scenario.active_ms,
              w->scenario.has_volumes ? "on" : "off");
    sim_trace(w, "quota %lld/%lld, idle stop %lld ms, %d tries, phase deadlines %lld %%", (long long)lc->quota_global,
              (long long)lc->quota_per_team, (long long)lc->idle_stop_ms, lc->retry_limit,
              (long long)lc->phase_deadline_scale_pct);
    for (int i = 0; i < SIM_FAULT_COUNT; i++) {
        if (w->scenario.fault[i] > 0)
            sim_trace(w, "fault %s %lld", names[i], (long long)w->scenario.fault[i]);
    }
    if (w->scenario.hot_call >= 0)
        sim_trace(w, "replies of %s get lost often", sim_call_name((enum sim_call)w->scenario.hot_call));
    for (int i = 0; i < w->scenario.crash_point_count; i++)
        sim_trace(w, "crash %s the %lld. %s", w->scenario.crash_points[i].after ? "after" : "before",
                  (long long)w->scenario.crash_points[i].nth, sim_call_name(w->scenario.crash_points[i].call));
}

static void report_findings(struct sim_world *w, const struct sk_check_report *report)
{
    const struct sk_check_finding *first = NULL;

    for (size_t i = 0; i < report->count; i++) {
        const struct sk_check_finding *f = &report->findings[i];

        if (sk_check_severity(f->check) != SK_CHECK_VIOLATION)
            continue;
        SIM_TRACE(w, "invariant %s: %s: %s", sk_check_name(f->check), f->sandbox_id, f->detail);
        if (first == NULL)
            first = f;
    }
    if (first != NULL)
        sim_fail(w, sk_check_name(first->check), "%s: %s (%zu findings)", first->sandbox_id, first->detail,
                 report->violations);
}

/* Until the world rests and the checker has nothing to say, at most SIM_QUIET_BOUND_MS. */
static void come_to_rest(struct sim_world *w)
{
    int64_t began_ms = sim_ms(w);
    struct sk_check_report report;
    char why[256];
    bool clean;

    for (;;) {
        if (!advance(w, LOOK_MS))
            return;
        if (!sim_settled(w, why, sizeof(why))) {
            if (sim_ms(w) - began_ms < w->scenario.quiet_bound_ms)
                continue;
            sim_workload_report(w);
            sim_fail(w, "liveness", "%lld ms after the last fault: %s", (long long)(sim_ms(w) - began_ms), why);
            return;
        }
        sim_verdict(w, &report);
        clean = report.violations == 0;
        if (!clean && !sim_ask_repairs(w, &report) && sim_ms(w) - began_ms >= w->scenario.quiet_bound_ms)
            report_findings(w, &report);
        sk_check_report_fini(&report);
        if (clean || w->failed)
            return;
    }
}

static void show_fiber(void *arg, const struct sim_fiber *fiber, const char *state)
{
    SIM_TRACE((struct sim_world *)arg, "left: %s %s", sim_fiber_name(fiber), state);
}

static void farewell(struct sim_world *w)
{
    int64_t began_ms = sim_ms(w);

    w->closing = true;
    for (int i = 0; i < SIM_REPLICAS_MAX; i++) {
        if (w->slots[i] != NULL && w->failed)
            sim_crash(w->slots[i], "the run has failed");
        else if (w->slots[i] != NULL)
            sim_inc_drain(w->slots[i]);
    }
    while (w->keepers > 0 && sim_ms(w) - began_ms < (w->failed ? UNWIND_MS : FAREWELL_MS)) {
        enum sim_end end = sim_run(w->sched, sim_now_us(w->sched) + 50 * SIM_MS);

        if (end == SIM_END_LIVELOCK) {
            sim_fail(w, "livelock", "%s runs on and on while it should end", sim_last_fiber(w->sched));
            return;
        }
    }
    if (w->keepers > 0)
        sim_each_fiber(w->sched, show_fiber, w);
    if (w->keepers > 0)
        sim_fail(w, "unwind", "%d incarnations did not end", w->keepers);
}

void sim_run_seed(const struct sim_options *options, struct sim_result *result)
{
    struct sim_world *w = calloc(1, sizeof(*w));

    if (w == NULL)
        abort();
    world_init(w, options, result);
    show_scenario(w);
    w->faults_on = true;
    sim_workload_start(w);
    sim_world_plan(w);
    sim_world_tick_start(w);
    for (int i = 0; i < w->scenario.replicas; i++)
        sim_inc_start(w, i);
    if (advance(w, w->scenario.active_ms)) {
        sim_world_calm(w);
        come_to_rest(w);
    }
    sim_world_calm(w);
    farewell(w);
    result->virtual_ms = sim_ms(w);
    result->steps = sim_steps(w->sched);
    sim_mark(w, -1, (int64_t)result->calls, (int64_t)result->steps);
    world_fini(w);
    free(w);
}

struct stage {
    struct sim_inc *inc;
    void (*fn)(struct sim_inc *inc, void *arg);
    void *arg;
    bool done;
};

static void stage_main(void *arg)
{
    struct stage *stage = arg;

    stage->fn(stage->inc, stage->arg);
    stage->done = true;
}

bool sim_run_stage(uint64_t seed, void (*fn)(struct sim_inc *inc, void *arg), void *arg)
{
    const struct sim_options options = {.seed = seed, .out = stdout};
    struct sim_world *w = calloc(1, sizeof(*w));
    struct sim_result *result = calloc(1, sizeof(*result));
    struct stage stage = {.fn = fn, .arg = arg};

    if (w == NULL || result == NULL)
        abort();
    world_init(w, &options, result);
    w->lenient = true;
    w->scenario.has_volumes = true;
    stage.inc = sim_inc_new(w, 0);
    sim_spawn(&stage.inc->group, "stage", stage_main, &stage);
    (void)sim_run(w->sched, INT64_MAX / 2);
    stage.inc->ended = stage.inc->group.live == 0;
    world_fini(w);
    free(w);
    free(result);
    return stage.done;
}
