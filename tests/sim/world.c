/* SPDX-License-Identifier: Apache-2.0
 *
 * The incarnations of the service and what happens to the world around them: births, crashes, drains, outages. Each
 * incarnation has a keeper, a fibre of the world that starts it, waits for its end, unwinds and frees it, and starts
 * the next one. */
#include "tests/sim/world.h"

#include "tests/sim/monitor.h"
#include "tests/sim/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN_PATIENCE_MS 15000 /* then an impatient orchestrator kills */
#define DRAIN_BOUND_MS    5000  /* a drain in a world without faults must end by then */
#define TICK_US           (250 * SIM_MS)

bool sim_inc_alive(const struct sim_inc *inc)
{
    return !inc->crashed && !inc->drain && !inc->stopping && !inc->ended;
}

struct sim_inc *sim_inc_by_id(struct sim_world *w, const char *id)
{
    for (struct sim_inc *inc = w->incs; inc != NULL; inc = inc->next) {
        if (strcmp(inc->id, id) == 0)
            return inc;
    }
    return NULL;
}

void sim_crash(struct sim_inc *inc, const char *why)
{
    if (inc->crashed || inc->ended)
        return;
    SIM_TRACE(inc->w, "!!! %s dies (%s)", inc->group.name, why);
    inc->crashed = true;
    sim_group_kill(&inc->group);
    sk_gate_notify(&inc->w->clock, inc->attention);
}

void sim_freeze(struct sim_inc *inc)
{
    struct sim_world *w = inc->w;
    int64_t ms = w->scenario.lc.takeover_ms + sim_between(&w->faults, 100, 4000);

    if (sim_now_us(w->sched) < inc->group.frozen_until_us)
        return;
    SIM_TRACE(w, "--- %s stands still for %lld ms", inc->group.name, (long long)ms);
    inc->group.frozen_until_us = sim_now_us(w->sched) + ms * SIM_MS;
}

/* ---- the fibres of an incarnation ---------------------------------------------------------------------------------
 */

static void hook_wake(void *arg)
{
    struct sim_inc *inc = arg;

    inc->woken = true;
    sk_gate_notify(&inc->clock, inc->inbox);
}

static void die_of_stuck(void *arg)
{
    struct sim_inc *inc = arg;

    sim_crash(inc, "its /livez failed");
}

static void hook_stuck(void *arg, const char *sandbox_id, const char *phase)
{
    struct sim_inc *inc = arg;

    SIM_TRACE(inc->w, "stuck worker: %s at %s", sandbox_id, phase);
    if (!inc->stuck_reported && sim_percent(&inc->w->faults, 50))
        sim_after(inc->w->sched, 500 * SIM_MS, die_of_stuck, inc);
    inc->stuck_reported = true;
}

static void hook_counted(void *arg, enum lc_counter counter, int64_t delta)
{
    struct sim_inc *inc = arg;

    inc->w->result->counters[counter] += delta;
}

static void worker_fiber(void *arg)
{
    lc_worker_main(((struct sim_inc *)arg)->replica);
}

static void heartbeat_fiber(void *arg)
{
    lc_heartbeat_main(((struct sim_inc *)arg)->replica);
}

static void lease_fiber(void *arg)
{
    lc_lease_main(((struct sim_inc *)arg)->replica);
}

static void relay_fiber(void *arg)
{
    lc_relay_main(((struct sim_inc *)arg)->replica);
}

static void finisher_fiber(void *arg)
{
    lc_finisher_main(((struct sim_inc *)arg)->replica);
}

static void sweep_fiber(void *arg)
{
    lc_sweep_main(((struct sim_inc *)arg)->replica);
}

static void poller_fiber(void *arg)
{
    lc_poller_main(((struct sim_inc *)arg)->replica);
}

/* Somebody asks questions now and then: answers must be JSON whatever goes on. */
static void rpc_fiber(void *arg)
{
    static const char *const methods[] = {"get", "status", "timeline", "list", "stats", "exists"};
    struct sim_inc *inc = arg;
    char body[128], id[SK_SANDBOX_ID_SIZE];

    while (!inc->stopping && !inc->crashed) {
        const char *method = methods[sim_below(&inc->w->work, 6)];
        uint64_t ticket = sk_gate_ticket(&inc->clock, inc->attention);
        json_t *answer;
        char *text;

        sk_gate_wait(&inc->clock, inc->attention, ticket, sim_between(&inc->w->work, 500, 4000));
        if (inc->stopping || inc->crashed)
            return;
        sim_sandbox_id((int)sim_below(&inc->w->work, (uint64_t)inc->w->scenario.sandboxes), id);
        snprintf(body, sizeof(body), "{\"sandboxId\":\"%s\"}", id);
        text = lc_rpc(inc->replica, method, body, strlen(body));
        answer = text == NULL ? NULL : json_loads(text, 0, NULL);
        if (answer == NULL)
            sim_fail(inc->w, "rpc", "%s answered %s", method, text == NULL ? "nothing" : text);
        json_decref(answer);
        free(text);
    }
}

static void start_worker(struct sim_inc *inc)
{
    char name[SIM_NAME_SIZE];

    snprintf(name, sizeof(name), "worker%d", ++inc->workers);
    sim_spawn(&inc->group, name, worker_fiber, inc);
}

static void drain_inbox(struct sim_inc *inc)
{
    while (inc->first != NULL && !inc->group.dead) {
        struct sim_delivery_node *node = inc->first;

        inc->first = node->next;
        if (inc->first == NULL)
            inc->last = NULL;
        lc_dispatch_delivery(inc->replica, node->delivery);
        free(node);
    }
    for (int i = 0; i < inc->hint_count; i++)
        lc_dispatch_hint(inc->replica, inc->hints[i]);
    inc->hint_count = 0;
    if (inc->hint_all)
        lc_dispatch_hint(inc->replica, NULL);
    inc->hint_all = false;
    if (inc->woken) {
        inc->woken = false;
        lc_dispatch_inbox(inc->replica);
    }
}

static void dispatcher_fiber(void *arg)
{
    struct sim_inc *inc = arg;

    while (!inc->stopping && !inc->group.dead) {
        uint64_t ticket = sk_gate_ticket(&inc->clock, inc->inbox);
        int64_t due_ms;

        drain_inbox(inc);
        due_ms = lc_dispatch_tick(inc->replica);
        while (inc->workers < inc->settings.workers && lc_worker_wanted(inc->replica))
            start_worker(inc);
        sim_bus_pump(inc->w);
        sk_gate_wait(&inc->clock, inc->inbox, ticket, due_ms < 1 ? 1 : due_ms);
    }
}

/* ---- the keeper
 * ------------------------------------------------------------------------------------------------------- */

static bool owns_operation(struct sim_inc *inc)
{
    for (size_t i = 0; i < inc->w->store->doc_count; i++) {
        const struct sim_doc *doc = inc->w->store->docs[i];

        if (doc != NULL && doc->i.has_operation && strcmp(doc->i.operation.owner, inc->id) == 0)
            return true;
    }
    return false;
}

static void wait_for_drain(struct sim_inc *inc)
{
    struct sim_world *w = inc->w;
    int64_t began_ms = sim_ms(w);

    SIM_TRACE(w, "%s drains", inc->group.name);
    if (owns_operation(inc))
        sim_saw(w, SIM_SOME_DRAIN_IN_OPERATION);
    lc_replica_drain(inc->replica);
    while (!inc->crashed && !lc_replica_drained(inc->replica)) {
        sim_sleep_us(w->sched, 5 * SIM_MS);
        if (w->closing && !w->failed && sim_ms(w) - began_ms > DRAIN_BOUND_MS) {
            sim_fail(w, "drain", "%s did not drain within %d ms without any fault", inc->group.name, DRAIN_BOUND_MS);
            return;
        }
        if (sim_ms(w) - began_ms > DRAIN_PATIENCE_MS) {
            sim_crash(inc, "its drain took too long");
            return;
        }
    }
}

static void drop_inbox(struct sim_inc *inc)
{
    while (inc->first != NULL) {
        struct sim_delivery_node *node = inc->first;

        inc->first = node->next;
        sk_delivery_drop(node->delivery);
        free(node);
    }
    inc->last = NULL;
}

static void keeper(void *arg)
{
    struct sim_inc *inc = arg;
    struct sim_world *w = inc->w;
    int slot = inc->slot;

    inc->replica = lc_replica_new(&inc->settings, &inc->seams, &inc->hooks);
    if (inc->replica == NULL)
        abort();
    sim_spawn(&inc->group, "dispatcher", dispatcher_fiber, inc);
    sim_spawn(&inc->group, "heartbeat", heartbeat_fiber, inc);
    sim_spawn(&inc->group, "lease", lease_fiber, inc);
    sim_spawn(&inc->group, "relay", relay_fiber, inc);
    sim_spawn(&inc->group, "finisher", finisher_fiber, inc);
    sim_spawn(&inc->group, "sweep", sweep_fiber, inc);
    sim_spawn(&inc->group, "poller", poller_fiber, inc);
    sim_spawn(&inc->group, "rpc", rpc_fiber, inc);
    sim_pump_later(w);
    while (!inc->crashed && !inc->drain)
        sk_gate_wait(&w->clock, inc->attention, sk_gate_ticket(&w->clock, inc->attention), -1);
    if (!inc->crashed)
        wait_for_drain(inc);
    inc->stopping = true;
    lc_replica_stop(inc->replica);
    sk_gate_notify(&w->clock, inc->inbox);
    sk_gate_notify(&w->clock, inc->attention);
    sim_group_join(&inc->group);
    drop_inbox(inc);
    lc_replica_free(inc->replica);
    inc->replica = NULL;
    inc->ended = true;
    sim_monitor_forget_inc(w, inc);
    sim_bus_forget_inc(w, inc);
    w->slots[slot] = NULL;
    w->keepers--;
    if (w->closing)
        return;
    sim_sleep_us(w->sched, sim_between(&w->faults, 20 * SIM_MS, 1500 * SIM_MS));
    if (!w->closing)
        sim_inc_start(w, slot);
}

struct sim_inc *sim_inc_new(struct sim_world *w, int slot)
{
    struct sim_inc *inc = calloc(1, sizeof(*inc));
    char name[SIM_NAME_SIZE];
    int64_t skew_ms = w->scenario.fault[SIM_FAULT_CLOCK_SKEW] > 0 ? sim_between(&w->faults, -1000, 1000)
                                                                  : sim_between(&w->faults, -3, 3);

    if (inc == NULL)
        abort();
    inc->w = w;
    inc->slot = slot;
    inc->number = ++w->inc_count;
    inc->next = w->incs;
    w->incs = inc;
    snprintf(name, sizeof(name), "r%d#%d", slot + 1, inc->number);
    sim_group_init(&inc->group, w->sched, name, SIM_EPOCH_WALL_MS + skew_ms,
                   sim_between(&w->faults, 1, 1000) * (int64_t)SIM_SECOND);
    inc->group.owner = inc;
    inc->clock = sim_group_clock(&inc->group);
    snprintf(inc->id, sizeof(inc->id), "host%d:%d:%08x", slot + 1, 100 + inc->number,
             (unsigned)sim_below(&w->work, UINT32_MAX));
    inc->inbox = sk_gate_new(&inc->clock);
    inc->attention = sk_gate_new(&inc->clock);
    sim_store_seam(inc);
    sim_lease_seam(inc);
    sim_bus_seam(inc);
    sim_provider_seam(inc);
    inc->settings = w->scenario.lc;
    memcpy(inc->settings.replica_id, inc->id, sizeof(inc->settings.replica_id));
    inc->seams = (struct lc_seams){
        .sched = &inc->clock,
        .store = &inc->store,
        .lease = &inc->lease,
        .bus = &inc->bus,
        .providers = &inc->provider,
        .provider_count = 1,
    };
    inc->hooks = (struct lc_hooks){
        .wake_dispatcher = hook_wake,
        .stuck_worker = hook_stuck,
        .counted = hook_counted,
        .arg = inc,
    };
    inc->started_us = sim_now_us(w->sched);
    return inc;
}

void sim_inc_start(struct sim_world *w, int slot)
{
    struct sim_inc *inc = sim_inc_new(w, slot);

    w->slots[slot] = inc;
    w->keepers++;
    SIM_TRACE(w, "%s starts as %s", inc->group.name, inc->id);
    sim_spawn(&w->group, inc->group.name, keeper, inc);
}

void sim_inc_drain(struct sim_inc *inc)
{
    if (!sim_inc_alive(inc))
        return;
    inc->drain = true;
    sk_gate_notify(&inc->w->clock, inc->attention);
}

void sim_incs_free(struct sim_world *w)
{
    struct sim_inc *next;

    for (struct sim_inc *inc = w->incs; inc != NULL; inc = next) {
        next = inc->next;
        /* One that never ended (a failed run) is abandoned with all it holds. */
        if (inc->ended) {
            sk_gate_free(&inc->clock, inc->inbox);
            sk_gate_free(&inc->clock, inc->attention);
            sim_group_fini(&inc->group);
        }
        free(inc);
    }
    w->incs = NULL;
}

/* ---- what happens to the world
 * ------------------------------------------------------------------------------------------ */

static void take_down(struct sim_world *w, enum sim_service service, int64_t ms)
{
    static const char *const names[] = {"store", "lease service", "message server", "provider"};
    int64_t now = sim_now_us(w->sched);

    SIM_TRACE(w, "--- the %s is away for %lld ms", names[service], (long long)ms);
    if (!sim_down(w, service))
        w->down_since_us[service] = now;
    if (w->down_until_us[service] < now + ms * SIM_MS)
        w->down_until_us[service] = now + ms * SIM_MS;
}

static void bus_back(void *arg)
{
    sim_pump_later(arg);
}

static struct sim_inc *any_alive(struct sim_world *w)
{
    struct sim_inc *able[SIM_REPLICAS_MAX];
    int count = 0;

    for (int i = 0; i < SIM_REPLICAS_MAX; i++) {
        if (w->slots[i] != NULL && sim_inc_alive(w->slots[i]))
            able[count++] = w->slots[i];
    }
    return count == 0 ? NULL : able[sim_below(&w->faults, (uint64_t)count)];
}

struct happening {
    struct sim_world *w;
    enum sim_fault kind;
    int patience; /* looks left for an occasion */
};

/* A replica that owns an operation. */
static struct sim_inc *one_at_work(struct sim_world *w, char sandbox_id[SK_SANDBOX_ID_SIZE])
{
    struct sim_inc *found = NULL;
    size_t seen = 0;

    for (size_t i = 0; i < w->store->doc_count; i++) {
        const struct sim_doc *doc = w->store->docs[i];
        struct sim_inc *owner = doc == NULL || !doc->i.has_operation ? NULL : sim_inc_by_id(w, doc->i.operation.owner);

        if (owner == NULL || !sim_inc_alive(owner) || sim_below(&w->faults, ++seen) != 0)
            continue;
        found = owner;
        memcpy(sandbox_id, doc->i.sandbox_id, SK_SANDBOX_ID_SIZE);
    }
    return found;
}

/* It still reaches store and provider, does not hear that it was overtaken, and believes in leases that are gone. */
static bool partition(struct sim_world *w)
{
    int64_t until = sim_now_us(w->sched) + sim_between(&w->faults, 300, 2500) * SIM_MS;
    char sandbox_id[SK_SANDBOX_ID_SIZE], name[SK_LEASE_NAME_SIZE];
    struct sim_inc *inc = one_at_work(w, sandbox_id);

    if (inc == NULL)
        return false;
    SIM_TRACE(w, "--- %s is cut off from bus and lease service while it works on %s", inc->group.name, sandbox_id);
    inc->cut_until_us = inc->lease_cut_until_us = inc->sluggish_until_us = until;
    for (int n = 0; sim_monitor_held(w, inc, n, name); n++)
        sim_lease_lose(w, name);
    if (sim_percent(&w->faults, 65))
        sim_workload_burst(w, sandbox_id);
    return true;
}

/* Most operations end within milliseconds after their last effect: chance alone would seldom meet that moment. */
static bool freeze(struct sim_world *w)
{
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    struct sim_inc *inc;

    if (sim_percent(&w->faults, 70)) {
        w->freezes_armed++;
        return true;
    }
    inc = one_at_work(w, sandbox_id);
    if (inc != NULL)
        sim_freeze(inc);
    return inc != NULL;
}

static void happens_to_bus(struct sim_world *w, enum sim_fault kind)
{
    int64_t ms = kind == SIM_FAULT_BUS_WIPE ? sim_between(&w->faults, 100, 1500) : sim_between(&w->faults, 300, 5000);

    take_down(w, SIM_BUS, ms);
    if (kind == SIM_FAULT_BUS_WIPE)
        sim_bus_wipe(w);
    sim_after(w->sched, ms * SIM_MS + 1, bus_back, w);
}

static void happens_to_replicas(struct sim_world *w, enum sim_fault kind)
{
    struct sim_inc *inc = any_alive(w);

    if (kind == SIM_FAULT_KILL_ALL) {
        for (int i = 0; i < SIM_REPLICAS_MAX; i++) {
            if (w->slots[i] != NULL)
                sim_crash(w->slots[i], "all are killed");
        }
    } else if (inc != NULL && kind == SIM_FAULT_DRAIN) {
        sim_inc_drain(inc);
    } else if (inc != NULL && kind == SIM_FAULT_LEASE_CUT) {
        inc->lease_cut_until_us = sim_now_us(w->sched) + sim_between(&w->faults, 200, 3000) * SIM_MS;
        SIM_TRACE(w, "--- %s cannot reach the lease service", inc->group.name);
        sim_lease_vanish(w);
    } else if (inc != NULL) {
        inc->cut_until_us = sim_now_us(w->sched) + sim_between(&w->faults, 200, 5000) * SIM_MS;
        SIM_TRACE(w, "--- %s loses its connection to the message server", inc->group.name);
    }
}

static void happen(void *arg)
{
    struct happening *h = arg;
    struct sim_world *w = h->w;
    enum sim_fault kind = h->kind;

    if (w->faults_on && h->patience-- > 0 &&
        ((kind == SIM_FAULT_PARTITION && !partition(w)) || (kind == SIM_FAULT_FREEZE && !freeze(w)))) {
        sim_after_own(w->sched, 30 * SIM_MS, happen, h);
        return;
    }
    free(h);
    if (!w->faults_on)
        return;
    switch (kind) {
    case SIM_FAULT_PARTITION:
    case SIM_FAULT_FREEZE:
        break;
    case SIM_FAULT_STORE_FAILOVER:
        take_down(w, SIM_STORE, sim_between(&w->faults, 100, 1200));
        break;
    case SIM_FAULT_STORE_OUTAGE:
        take_down(w, SIM_STORE, sim_between(&w->faults, 1500, 8000));
        break;
    case SIM_FAULT_LEASE_OUTAGE:
        take_down(w, SIM_LEASE, sim_between(&w->faults, 500, 6000));
        break;
    case SIM_FAULT_PROVIDER_OUTAGE:
        take_down(w, SIM_PROVIDER, sim_between(&w->faults, 500, 8000));
        break;
    case SIM_FAULT_LEASE_WIPE:
        sim_lease_wipe(w);
        break;
    case SIM_FAULT_LEASE_VANISH:
        sim_lease_vanish(w);
        break;
    case SIM_FAULT_BUS_OUTAGE:
    case SIM_FAULT_BUS_WIPE:
        happens_to_bus(w, kind);
        break;
    case SIM_FAULT_PROVIDER_GONE:
        sim_provider_gone(w);
        break;
    case SIM_FAULT_PROVIDER_PAUSE:
        sim_provider_pause(w);
        break;
    case SIM_FAULT_FASTGPT:
        sim_fastgpt_act(w);
        break;
    case SIM_FAULT_MALFORMED:
        sim_fastgpt_malformed(w);
        break;
    default:
        happens_to_replicas(w, kind);
        break;
    }
}

void sim_world_plan(struct sim_world *w)
{
    static const enum sim_fault events[] = {
        SIM_FAULT_STORE_FAILOVER, SIM_FAULT_STORE_OUTAGE,   SIM_FAULT_LEASE_OUTAGE,   SIM_FAULT_PROVIDER_OUTAGE,
        SIM_FAULT_LEASE_WIPE,     SIM_FAULT_LEASE_VANISH,   SIM_FAULT_BUS_OUTAGE,     SIM_FAULT_BUS_WIPE,
        SIM_FAULT_PROVIDER_GONE,  SIM_FAULT_PROVIDER_PAUSE, SIM_FAULT_FASTGPT,        SIM_FAULT_MALFORMED,
        SIM_FAULT_KILL_ALL,       SIM_FAULT_DRAIN,          SIM_FAULT_BUS_DISCONNECT, SIM_FAULT_LEASE_CUT,
        SIM_FAULT_PARTITION,      SIM_FAULT_FREEZE,
    };

    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        for (int64_t n = 0; n < w->scenario.fault[events[i]]; n++) {
            struct happening *h = calloc(1, sizeof(*h));
            bool early =
                (events[i] == SIM_FAULT_FASTGPT || events[i] == SIM_FAULT_MALFORMED) && sim_percent(&w->faults, 60);

            if (h == NULL)
                abort();
            *h = (struct happening){.w = w, .kind = events[i], .patience = 50};
            sim_at_own(w->sched, early ? 0 : sim_between(&w->faults, 0, w->scenario.active_ms * SIM_MS), happen, h);
        }
    }
}

void sim_world_calm(struct sim_world *w)
{
    SIM_TRACE(w, "=== faults stop");
    w->faults_on = false;
    for (int i = 0; i < SIM_SERVICE_COUNT; i++)
        w->down_until_us[i] = w->down_until_us[i] > sim_now_us(w->sched) ? sim_now_us(w->sched) : w->down_until_us[i];
    for (int i = 0; i < SIM_REPLICAS_MAX; i++) {
        if (w->slots[i] != NULL)
            w->slots[i]->cut_until_us = w->slots[i]->lease_cut_until_us = w->slots[i]->sluggish_until_us = 0;
    }
    sim_pump_later(w);
}

static void tick(void *arg)
{
    struct sim_world *w = arg;

    sim_monitor_tick(w);
    if (!w->closing)
        sim_after(w->sched, TICK_US, tick, w);
}

void sim_world_tick_start(struct sim_world *w)
{
    sim_after(w->sched, TICK_US, tick, w);
}
