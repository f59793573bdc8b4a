/* SPDX-License-Identifier: Apache-2.0
 *
 * Rest and verdict: when nothing is left to do, a snapshot of the whole world goes to the invariant checker, without
 * any grace: nothing is in passing any more. */
#include "tests/sim/verdict.h"

#include "tests/sim/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool records_rest(struct sim_world *w, char *why, size_t size)
{
    for (size_t i = 0; i < w->store->doc_count; i++) {
        const struct sim_doc *doc = w->store->docs[i];

        if (doc == NULL || doc->i.malformed)
            continue;
        if (doc->outbox_count > 0) {
            snprintf(why, size, "%s: %d events wait in the outbox", doc->i.sandbox_id, doc->outbox_count);
            return false;
        }
        if (doc->i.has_operation && doc->i.operation.blocked[0] == '\0') {
            snprintf(why, size, "%s is %s at %s (owner \"%s\", attempt %d)", doc->i.sandbox_id,
                     sk_status_name(doc->i.status), doc->i.operation.phase, doc->i.operation.owner,
                     doc->i.operation.attempt);
            return false;
        }
    }
    return true;
}

static bool replicas_rest(struct sim_world *w, char *why, size_t size)
{
    for (int i = 0; i < w->scenario.replicas; i++) {
        struct lc_gauges g;

        if (w->slots[i] == NULL || w->slots[i]->replica == NULL || !sim_inc_alive(w->slots[i])) {
            snprintf(why, size, "replica %d is not up", i + 1);
            return false;
        }
        lc_replica_gauges(w->slots[i]->replica, &g);
        if (g.held + g.jobs + g.operations + g.finishing + g.relay_pending > 0) {
            snprintf(why, size, "%s has %lld commands, %lld jobs, %lld operations, %lld results, %lld events",
                     w->slots[i]->group.name, (long long)g.held, (long long)g.jobs, (long long)g.operations,
                     (long long)g.finishing, (long long)g.relay_pending);
            return false;
        }
    }
    return true;
}

bool sim_settled(struct sim_world *w, char *why, size_t size)
{
    if (!sim_workload_answered(w))
        snprintf(why, size, "a command has no answer");
    else if (!sim_bus_idle(w))
        snprintf(why, size, "a command is not acknowledged");
    else if (w->provider->ghosts > 0)
        snprintf(why, size, "an effect is still on its way");
    else
        return records_rest(w, why, size) && replicas_rest(w, why, size);
    return false;
}

static void *array(size_t count, size_t item)
{
    void *p = calloc(count + 1, item);

    if (p == NULL)
        abort();
    return p;
}

static void take_records(struct sim_world *w, struct sk_check_snapshot *s, struct sk_check_record *records,
                         struct sk_check_event *pending)
{
    for (size_t i = 0; i < w->store->doc_count; i++) {
        const struct sim_doc *doc = w->store->docs[i];

        if (doc == NULL)
            continue;
        sk_check_record_of(&records[s->record_count++], &doc->i);
        for (int e = 0; e < doc->outbox_count; e++)
            sk_check_event_of(&pending[s->pending_count++], &doc->outbox[e]);
    }
    s->records = records;
    s->records_complete = true;
    s->pending = pending;
    s->pending_known = true;
}

/* A name that FastGPT may give to a new record at any time: nobody removes it but a delete. */
static bool first_generation(const char *claim_name)
{
    size_t length = strlen(claim_name);

    return length >= 2 && strcmp(claim_name + length - 2, "-0") == 0;
}

/* May calls to the store or the provider fail in this run? */
static bool disturbed(const struct sim_world *w)
{
    static const enum sim_fault kinds[] = {
        SIM_FAULT_STORE_ERROR,     SIM_FAULT_STORE_LOST_REQUEST, SIM_FAULT_STORE_LOST_REPLY,
        SIM_FAULT_STORE_LATE,      SIM_FAULT_STORE_FAILOVER,     SIM_FAULT_STORE_OUTAGE,
        SIM_FAULT_PROVIDER_5XX,    SIM_FAULT_PROVIDER_PARTIAL,   SIM_FAULT_PROVIDER_CONFLICT,
        SIM_FAULT_PROVIDER_LOST,   SIM_FAULT_PROVIDER_STUCK,     SIM_FAULT_PROVIDER_LOST_REPLY,
        SIM_FAULT_PROVIDER_OUTAGE,
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (w->scenario.fault[kinds[i]] > 0)
            return true;
    }
    return false;
}

static void take_provider(struct sim_world *w, struct sk_check_snapshot *s, struct sk_remote *remotes,
                          struct sk_check_volume *volumes)
{
    for (size_t i = 0; i < w->provider->object_count; i++) {
        if (!w->provider->objects[i]->gone)
            remotes[s->remote_count++] = w->provider->objects[i]->remote;
    }
    for (size_t i = 0; i < w->provider->volume_count; i++) {
        const struct sim_volume *volume = &w->provider->volumes[i];

        /* Made by a call that was under way while its sandbox was deleted. Its maker takes it away, once; when it dies
         * or fails, nobody else can know of it (docs/simulator.md, limits). */
        if (!volume->gone && (volume->stray_of == NULL ||
                              (!volume->stray_of->crashed && !disturbed(w) && !first_generation(volume->claim_name))))
            sk_copy_cut(volumes[s->volume_count++].claim_name, sizeof(volumes->claim_name), volume->claim_name);
    }
    s->remotes = remotes;
    s->remotes_known = true;
    s->volumes = volumes;
    s->volumes_known = w->scenario.has_volumes;
    s->volume_prefix = w->scenario.lc.volume_prefix;
}

static void take_slots(struct sim_world *w, struct sk_check_snapshot *s, struct sk_check_slot *slots)
{
    const int64_t *fault = w->scenario.fault;
    /* As in the monitor: without a lease that holds, a slot may be given back under another's claim, and the recount
     * that gives that one its slot again is bound by no limit. */
    bool unbound = fault[SIM_FAULT_LEASE_WIPE] + fault[SIM_FAULT_LEASE_VANISH] + fault[SIM_FAULT_LEASE_CUT] +
                       fault[SIM_FAULT_PARTITION] >
                   0;

    s->quota_global = w->scenario.lc.quota_global > 0 && unbound ? INT64_MAX : w->scenario.lc.quota_global;
    s->quota_per_team = w->scenario.lc.quota_per_team > 0 && unbound ? INT64_MAX : w->scenario.lc.quota_per_team;
    for (size_t i = 0; i < w->store->slot_count; i++) {
        sk_copy_cut(slots[i].scope, sizeof(slots[i].scope), w->store->slots[i].scope);
        sk_copy_cut(slots[i].sandbox_id, sizeof(slots[i].sandbox_id), w->store->slots[i].sandbox_id);
    }
    s->slots = slots;
    s->slot_count = w->store->slot_count;
    s->slots_known = true;
    /* FastGPT takes no slots: the recount gives its sandboxes theirs, and the limit is then exceeded by its doing. */
    if (w->store->foreign_writers)
        s->slots_known = false;
}

void sim_verdict(struct sim_world *w, struct sk_check_report *report)
{
    struct sk_check_snapshot s = {.now_ms = sim_wall(w) + 10LL * 365 * 24 * 3600 * 1000,
                                  .grace = {.lease_ms = INT64_MAX}, /* those of dead owners end by themselves */
                                  .foreign_writers = w->store->foreign_writers};
    size_t docs = w->store->doc_count;
    struct sk_check_record *records = array(docs, sizeof(*records));
    struct sk_check_event *pending = array(docs * SK_OUTBOX_MAX, sizeof(*pending));
    struct sk_remote *remotes = array(w->provider->object_count, sizeof(*remotes));
    struct sk_check_volume *volumes = array(w->provider->volume_count, sizeof(*volumes));
    struct sk_check_slot *slots = array(w->store->slot_count, sizeof(*slots));
    struct sk_check_lease *leases = array((size_t)w->lease->count, sizeof(*leases));
    struct sk_check_event *history = array(w->bus->event_count, sizeof(*history));
    struct sk_check_command *commands;

    take_records(w, &s, records, pending);
    take_provider(w, &s, remotes, volumes);
    take_slots(w, &s, slots);
    for (int i = 0; i < w->lease->count; i++)
        leases[i] =
            (struct sk_check_lease){.name = w->lease->keys[i].name, .ttl_ms = w->lease->keys[i].expires_us / SIM_MS};
    s.leases = leases;
    s.lease_count = (size_t)w->lease->count;
    s.leases_known = true;
    for (size_t i = 0; i < w->bus->event_count; i++)
        history[i] = w->bus->events[i].event;
    s.history = history;
    s.history_count = w->bus->event_count;
    s.history_known = s.history_complete = true;
    s.changes = w->store->changes;
    s.change_count = w->store->change_count;
    s.changes_known = true;
    commands = sim_workload_commands(w, &s.command_count);
    s.commands = commands;
    s.commands_known = true;
    sk_check_report_init(report);
    if (sk_check_run(&s, report) != 0)
        abort();
    free(records);
    free(pending);
    free(remotes);
    free(volumes);
    free(slots);
    free(leases);
    free(history);
    free(commands);
}

bool sim_ask_repairs(struct sim_world *w, const struct sk_check_report *report)
{
    bool asked = false;

    for (size_t i = 0; i < report->count; i++) {
        struct sim_doc *doc = sim_store_doc(w, report->findings[i].sandbox_id);

        if (report->findings[i].check == SK_CHECK_REMOTE_MISSING && doc != NULL && doc->raced && !doc->repair_asked) {
            doc->repair_asked = asked = true;
            sim_workload_final_ensure(w, doc->i.sandbox_id);
        }
    }
    return asked;
}
