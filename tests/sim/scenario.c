/* SPDX-License-Identifier: Apache-2.0
 *
 * What a seed decides before anything runs: how big the world is, which kinds of faults it has, how the service is set
 * up. Periods are a tenth of the production ones and keep their proportions; docs/simulator.md says which. */
#include "tests/sim/scenario.h"

#include <string.h>

static const struct {
    const char *name;
    int percent;
    int64_t low, high;
} kinds[SIM_FAULT_COUNT] = {
#define SIM_FAULT(name, wire, percent, low, high, doc) [SIM_FAULT_##name] = {wire, percent, low, high},
#include "tests/sim/faults.def"
#undef SIM_FAULT
};

/* A stream of its own for everything that has a name: a kind that is added later changes no other kind of an old seed.
 */
static struct sim_rng stream_of(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    struct sim_rng rng;

    while (*name != '\0')
        hash = (hash ^ (unsigned char)*name++) * 0x100000001b3u;
    sim_rng_seed(&rng, seed, hash);
    return rng;
}

static void draw_faults(struct sim_scenario *s, uint64_t seed)
{
    struct sim_rng rng = stream_of(seed, "calm");
    /* One run in twelve is calm: what goes wrong there goes wrong without any help. */
    bool calm = sim_below(&rng, 12) == 0;

    for (int kind = 0; kind < SIM_FAULT_COUNT; kind++) {
        rng = stream_of(seed, kinds[kind].name);
        if (sim_percent(&rng, kinds[kind].percent) && !calm)
            s->fault[kind] = sim_between(&rng, kinds[kind].low, kinds[kind].high);
    }
}

static void draw_crash_points(struct sim_scenario *s, uint64_t seed)
{
    static const int64_t spans[] = {1, 3, 12, 60};
    struct sim_rng rng = stream_of(seed, "crash points");

    s->crash_point_count = (int)s->fault[SIM_FAULT_CRASH_POINT];
    for (int i = 0; i < s->crash_point_count; i++) {
        struct sim_crash_point *point = &s->crash_points[i];

        point->call = (enum sim_call)sim_below(&rng, SIM_CALL_COUNT);
        point->nth = 1 + (int64_t)sim_below(&rng, (uint64_t)spans[sim_below(&rng, 4)]);
        point->after = sim_percent(&rng, 50);
    }
}

/* One call in the spotlight: what is one in a thousand otherwise happens again and again. */
static void draw_hot_call(struct sim_scenario *s, uint64_t seed)
{
    static const enum sim_call calls[] = {
        SIM_STORE_INSERT,           SIM_STORE_CAS,         SIM_STORE_CAS,           SIM_STORE_REMOVE,
        SIM_STORE_COMMAND_PUT,      SIM_STORE_OUTBOX_PULL, SIM_STORE_QUOTA_RESERVE, SIM_STORE_QUOTA_RELEASE,
        SIM_STORE_TIMELINE_APPLY,   SIM_LEASE_ACQUIRE,     SIM_LEASE_RELEASE,       SIM_PROVIDER_CREATE,
        SIM_PROVIDER_REMOVE,        SIM_PROVIDER_RELABEL,  SIM_PROVIDER_RESUME,     SIM_PROVIDER_VOLUME_ENSURE,
        SIM_PROVIDER_VOLUME_REMOVE,
    };
    struct sim_rng rng = stream_of(seed, "hot call");

    s->hot_call = -1;
    if (!sim_percent(&rng, 35))
        return;
    s->hot_call = (int)calls[sim_below(&rng, sizeof(calls) / sizeof(calls[0]))];
    s->hot_ppm = sim_between(&rng, 80000, 400000);
}

/* Proportions as in production: heartbeat 5 s, lease 15 s, renewal 2.5 s, take-over 30 s. */
static void draw_settings(struct sim_scenario *s, struct sim_rng *rng)
{
    static const int64_t scales[] = {3, 10, 30};
    struct lc_settings *lc = &s->lc;

    lc_settings_defaults(lc);
    sk_copy_cut(lc->subject_prefix, sizeof(lc->subject_prefix), "sandbox");
    lc->workers = (int)sim_between(rng, 1, 4);
    lc->park_limit = sim_percent(rng, 30) ? 3 : 64;
    lc->total_limit = sim_percent(rng, 20) ? 12 : 1000;
    lc->default_deadline_ms = 2000;
    lc->in_progress_every_ms = 1000;
    lc->poll_parked_ms = 250;
    lc->heartbeat_ms = 500;
    lc->lease_ttl_ms = 1500;
    lc->lease_renew_ms = 250;
    lc->takeover_ms = 3000;
    lc->stuck_grace_ms = 1000;
    lc->fastgpt_short_stale_ms = 5000;
    lc->fastgpt_long_stale_ms = 12000;
    lc->retry_limit = (int)sim_between(rng, 2, 8);
    lc->retry_first_ms = 100;
    lc->retry_max_ms = 4000;
    lc->command_failures_limit = (int)sim_between(rng, 3, 20);
    lc->relay_batch = (int)sim_between(rng, 1, 40);
    lc->relay_window_ms = 20;
    lc->relay_poll_ms = 500;
    lc->publish_timeout_ms = 500;
    lc->stale_sweep_ms = 300;
    lc->idle_sweep_ms = 700;
    lc->idle_look_max = 2; /* fewer than there may be */
    lc->orphan_sweep_ms = 3000;
    lc->quota_recount_ms = 4000;
    lc->orphan_grace_ms = 8000;
    lc->orphan_remove = true; /* what is only reported would still be there at the end */
    lc->idle_stop_ms = sim_percent(rng, 50) ? sim_between(rng, 2000, 9000) : 0;
    lc->quota_global = sim_percent(rng, 35) ? sim_between(rng, 1, 4) : 0;
    lc->quota_per_team = sim_percent(rng, 35) ? sim_between(rng, 1, 3) : 0;
    lc->quota_grace_ms = 6000;
    lc->ready_timeout_ms = 3000;
    lc->phase_deadline_scale_pct = scales[sim_below(rng, 3)];
    lc->default_limit = (struct sk_limit){.present = true, .cpu_count = 1, .memory_mib = 2048, .storage_size = "1Gi"};
    lc->default_image = (struct sk_image){.present = true, .repository = "good/image", .tag = "1"};
    sk_copy_cut(lc->volume_prefix, sizeof(lc->volume_prefix), "fastgpt-session");
    sk_copy_cut(lc->mount_path, sizeof(lc->mount_path), "/workspace");
}

void sim_scenario_draw(struct sim_scenario *s, uint64_t seed)
{
    struct sim_rng rng;

    memset(s, 0, sizeof(*s));
    sim_rng_seed(&rng, seed, 3);
    s->replicas = (int)sim_between(&rng, 2, SIM_REPLICAS_MAX);
    s->sandboxes = (int)sim_between(&rng, 1, 5);
    s->teams = (int)sim_between(&rng, 1, 2);
    s->commands = (int)sim_between(&rng, 4, 40);
    s->active_ms = sim_between(&rng, 4000, 25000);
    s->ack_wait_ms = 4500; /* a finisher may spend one time-out each on store, publish and acknowledgement */
    s->store_timeout_ms = 1000;
    s->lease_timeout_ms = 500;
    s->provider_timeout_ms = sim_between(&rng, 2000, 6000);
    s->ghost_max_ms = 7000;
    s->has_volumes = sim_percent(&rng, 85);
    s->bad_images = sim_percent(&rng, 35);
    draw_settings(s, &rng);
    draw_faults(s, seed);
    draw_crash_points(s, seed);
    draw_hot_call(s, seed);
    s->quiet_bound_ms = SIM_QUIET_BOUND_MS(s);
}
