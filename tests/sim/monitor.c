/* SPDX-License-Identifier: Apache-2.0
 *
 * The safety monitors. Per fibre they remember what it claimed, what it read and which objects it looked at, because a
 * promise like "never removes what is newer than its claim" is about what the caller knew, not about what is so. */
#include "tests/sim/monitor.h"

#include "tests/sim/scenario.h"
#include "tests/sim/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEN_MAX       16
#define BELIEVERS_MAX  64
#define NO_DEADLINE    (INT64_MAX / 4 / SIM_MS)
#define LIFECYCLE_NAME "agent-sandbox:lifecycle:"

/* What one fibre knows of one sandbox. */
struct knowledge {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    bool claims; /* has a claim that it has not given up */
    enum sk_op type;
    int64_t epoch; /* of its newest claim */
    bool read;     /* has read the record */
    bool absent;   /* it was not there */
    int64_t read_epoch;
    int64_t silent_us; /* of the operation's owner, as it was read */
};

struct mind {
    struct knowledge of[SIM_SANDBOXES_MAX];
    int count;
    struct {
        char id[SK_REMOTE_ID_SIZE];
        int64_t epoch;
    } seen[SEEN_MAX]; /* objects it looked at, the newest look counts */
    int seen_next;
};

/* Somebody who believes to hold a lease. */
struct believer {
    struct sk_lease *lease;
    char name[SK_LEASE_NAME_SIZE];
    struct sim_inc *inc;
    unsigned fiber;
    bool excused;      /* the server lost the key */
    int64_t silent_us; /* how long the owner of its sandbox's operation had been silent then */
};

struct creation {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    int64_t epoch;
};

/* An operation that ended as its command wanted it: a stop that completed, a provision that was abandoned. */
struct deed {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char command_id[SK_COMMAND_ID_SIZE];
    enum sk_op type;
};

struct sim_monitor {
    struct mind **fibers;
    size_t fiber_size;
    struct believer believers[BELIEVERS_MAX];
    int believer_count;
    struct creation *creations;
    size_t creation_count, creation_size;
    struct deed *deeds;
    size_t deed_count, deed_size;
};

struct sim_monitor *sim_monitor_new(struct sim_world *w)
{
    struct sim_monitor *m = calloc(1, sizeof(*m));

    (void)w;
    if (m == NULL)
        abort();
    return m;
}

void sim_monitor_free(struct sim_monitor *m)
{
    for (size_t i = 0; i < m->fiber_size; i++)
        free(m->fibers[i]);
    free(m->fibers);
    free(m->creations);
    free(m->deeds);
    free(m);
}

static struct mind *mind_of(struct sim_world *w, unsigned fiber)
{
    struct sim_monitor *m = w->monitor;

    while (fiber >= m->fiber_size) {
        size_t old = m->fiber_size, size = old == 0 ? 128 : old * 2;

        m->fibers = realloc(m->fibers, size * sizeof(*m->fibers));
        if (m->fibers == NULL)
            abort();
        memset(m->fibers + old, 0, (size - old) * sizeof(*m->fibers));
        m->fiber_size = size;
    }
    if (m->fibers[fiber] == NULL && (m->fibers[fiber] = calloc(1, sizeof(struct mind))) == NULL)
        abort();
    return m->fibers[fiber];
}

static struct knowledge *knows_of(struct sim_world *w, unsigned fiber, const char *sandbox_id)
{
    struct mind *mind = mind_of(w, fiber);
    struct knowledge *k = &mind->of[SIM_SANDBOXES_MAX - 1]; /* for ids that do not exist: questions of clients */

    for (int i = 0; i < mind->count; i++) {
        if (strcmp(mind->of[i].sandbox_id, sandbox_id) == 0)
            return &mind->of[i];
    }
    if (mind->count < SIM_SANDBOXES_MAX)
        k = &mind->of[mind->count++];
    memset(k, 0, sizeof(*k));
    sk_copy_cut(k->sandbox_id, sizeof(k->sandbox_id), sandbox_id);
    return k;
}

static int64_t step_deadline_ms(const struct sim_world *w, const struct sk_operation *op)
{
    const struct sk_op_info *info = sk_op_info(op->type);
    int next = sk_op_phase_index(op->type, op->phase) + 1;

    if (next < 1 || next >= info->phase_count)
        return NO_DEADLINE;
    return info->phases[next].deadline_ms * w->scenario.lc.phase_deadline_scale_pct / 100;
}

/* ---- writes
 * ------------------------------------------------------------------------------------------------------------ */

static void check_events(struct sim_world *w, const struct sk_instance *before, const struct sk_instance *after,
                         const struct sk_event *events, int count)
{
    enum sk_status at = before == NULL ? SK_STATUS_NONE : before->status;
    int64_t sequence = before == NULL ? 0 : before->sequence, epoch = before == NULL ? 0 : before->epoch;

    for (int i = 0; i < count; i++) {
        const struct sk_event *e = &events[i];

        /* The end of one operation and the claim of the next may stand in one write. */
        if (e->type == SK_EVENT_CLAIMED || e->type == SK_EVENT_TAKENOVER)
            epoch = after->epoch;
        if (e->sequence != ++sequence || e->epoch != epoch || strcmp(e->sandbox_id, after->sandbox_id) != 0 ||
            e->id[0] == '\0')
            sim_fail(w, "event-numbers", "%s: %s has sequence %lld and epoch %lld, expected %lld and %lld",
                     after->sandbox_id, sk_event_type_name(e->type), (long long)e->sequence, (long long)e->epoch,
                     (long long)sequence, (long long)epoch);
        if (e->from != at)
            sim_fail(w, "event-chain", "%s: %s number %lld starts from %s, the record was %s", after->sandbox_id,
                     sk_event_type_name(e->type), (long long)e->sequence, sk_status_name(e->from), sk_status_name(at));
        at = e->to;
    }
    /* A record of FastGPT's may be given its first epoch without a change of state. */
    if (after->sequence != sequence || (after->epoch != epoch && (count > 0 || epoch != 0)))
        sim_fail(w, "event-numbers",
                 "%s: %d events, but the sequence went from %lld to %lld and the epoch from %lld to %lld",
                 after->sandbox_id, count, (long long)(before == NULL ? 0 : before->sequence),
                 (long long)after->sequence, (long long)(before == NULL ? 0 : before->epoch), (long long)after->epoch);
    /* The deleted event tells of the removal that follows. */
    if (count > 0 && at != after->status &&
        !(events[count - 1].type == SK_EVENT_DELETED && after->status == SK_STATUS_DELETING))
        sim_fail(w, "event-chain", "%s: the last event ends in %s, the record is %s", after->sandbox_id,
                 sk_status_name(at), sk_status_name(after->status));
}

static bool changes_state(const struct sk_instance *before, const struct sk_instance *after)
{
    if (before == NULL || before->status != after->status || before->has_operation != after->has_operation)
        return true;
    if (!after->has_operation)
        return false;
    return strcmp(before->operation.id, after->operation.id) != 0 ||
           strcmp(before->operation.phase, after->operation.phase) != 0 ||
           (before->operation.blocked[0] == '\0') != (after->operation.blocked[0] == '\0');
}

static int64_t longest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool is_lease_of(const struct believer *b, const char *sandbox_id)
{
    return strncmp(b->name, LIFECYCLE_NAME, strlen(LIFECYCLE_NAME)) == 0 &&
           strcmp(b->name + strlen(LIFECYCLE_NAME), sandbox_id) == 0;
}

/* Whose operation is it that is taken away? */
static void check_takeover(struct sim_world *w, struct sim_actor actor, const struct sk_instance *before,
                           const struct sk_instance *after, int64_t silent_us)
{
    const struct sk_operation *old = &before->operation;
    struct sim_inc *owner = sim_inc_by_id(w, old->owner);
    bool delete = after->operation.type == SK_OP_DELETE;

    if (old->owner[0] == '\0' || owner == actor.inc)
        return;
    if (delete &&old->type != SK_OP_DELETE) {
        if (owner != NULL && sim_inc_alive(owner))
            sim_saw(w, old->type == SK_OP_PROVISION ? SIM_SOME_DELETE_OVER_PROVISION : SIM_SOME_DELETE_OVER_STOP);
        return;
    }
    /* It woke up and beat after the one who takes over had looked, or had taken the lease: without the lease, after all
     * that time, it could not have gone on. */
    silent_us = longest(silent_us, knows_of(w, actor.fiber, after->sandbox_id)->silent_us);
    for (int i = 0; i < w->monitor->believer_count; i++) {
        const struct believer *b = &w->monitor->believers[i];

        if (b->inc == actor.inc && b->fiber == actor.fiber && is_lease_of(b, after->sandbox_id))
            silent_us = longest(silent_us, b->silent_us);
    }
    if (owner != NULL && sim_now_us(w->sched) < owner->group.frozen_until_us)
        sim_saw(w, SIM_SOME_OWNER_SLEPT);
    if (silent_us < w->scenario.lc.takeover_ms * SIM_MS)
        sim_fail(w, "early-takeover", "%s: %s of %s was taken over after %lld ms of silence", after->sandbox_id,
                 sk_op_name(old->type), old->owner, (long long)(silent_us / SIM_MS));
    sim_saw(w, old->type == SK_OP_PROVISION ? SIM_SOME_TAKEOVER_PROVISIONING
               : old->type == SK_OP_STOP    ? SIM_SOME_TAKEOVER_STOPPING
                                            : SIM_SOME_TAKEOVER_DELETING);
}

static void note_foreign_claim(struct sim_world *w, const struct sk_operation *old)
{
    static const enum sim_sometimes which[SK_OP_COUNT] = {
        [SK_OP_PROVISION] = SIM_SOME_FASTGPT_PROVISIONING, [SK_OP_STOP] = SIM_SOME_FASTGPT_STOPPING,
        [SK_OP_DELETE] = SIM_SOME_FASTGPT_DELETING,        [SK_OP_ARCHIVE] = SIM_SOME_FASTGPT_ARCHIVING,
        [SK_OP_RESTORE] = SIM_SOME_FASTGPT_RESTORING,      [SK_OP_LEGACY_MIGRATION] = SIM_SOME_FASTGPT_MIGRATING,
    };

    sim_saw(w, which[old->type]);
}

static bool lease_held(struct sim_world *w, unsigned fiber, struct sim_inc *inc, const char *sandbox_id);

/* A command is one wish: what was made after it was fulfilled is not its business, however often it is delivered. */
static void check_delete_once(struct sim_world *w, const struct sk_instance *before, const struct sk_instance *after)
{
    if (after->operation.type != SK_OP_DELETE || after->operation.command_id[0] == '\0' || before == NULL ||
        before->status == SK_STATUS_DELETING)
        return;
    /* The compensation of a provision that failed for good is a delete in the name of the same command. */
    if (before->has_operation && strcmp(before->operation.command_id, after->operation.command_id) == 0)
        return;
    for (size_t i = 0; i < w->store->timeline_count; i++) {
        const struct sk_timeline_entry *old = &w->store->timeline[i];

        if (old->type == SK_OP_DELETE && strcmp(old->result, "deleted") == 0 &&
            strcmp(old->sandbox_id, after->sandbox_id) == 0 &&
            strcmp(old->command_id, after->operation.command_id) == 0)
            sim_fail(w, "deleted-twice", "%s: command %s deletes what was made after it had deleted", after->sandbox_id,
                     old->command_id);
    }
}

static void note_deed(struct sim_world *w, const struct sk_instance *before, const struct sk_instance *after)
{
    const struct sk_operation *old = &before->operation;
    struct sim_monitor *m = w->monitor;
    const char *result = old->type == SK_OP_STOP ? "completed" : "compensated";
    struct deed *deed;

    if (old->command_id[0] == '\0' || (old->type != SK_OP_STOP && old->type != SK_OP_PROVISION) ||
        strcmp(after->last_operation.result, result) != 0)
        return;
    m->deeds = sim_grow(m->deeds, m->deed_count, &m->deed_size, sizeof(*m->deeds));
    deed = &m->deeds[m->deed_count++];
    memcpy(deed->sandbox_id, before->sandbox_id, sizeof(deed->sandbox_id));
    memcpy(deed->command_id, old->command_id, sizeof(deed->command_id));
    deed->type = old->type;
}

/* The same for what takes something away without removing the record. */
static void check_done_once(struct sim_world *w, const struct sk_instance *before, const struct sk_instance *after,
                            const struct sk_event *claimed)
{
    const struct sk_operation *op = &after->operation;
    bool abandons = op->type == SK_OP_PROVISION && strcmp(claimed->reason, "abandoned") == 0;

    if (claimed->type != SK_EVENT_CLAIMED || (op->type != SK_OP_STOP && !abandons))
        return;
    /* Somebody else's stop that was left is continued by whoever meets it: nothing is ended anew. */
    if (!abandons && before != NULL && before->status == SK_STATUS_STOPPING)
        return;
    for (size_t i = 0; i < w->monitor->deed_count; i++) {
        const struct deed *deed = &w->monitor->deeds[i];

        if (deed->type == op->type && strcmp(deed->sandbox_id, after->sandbox_id) == 0 &&
            strcmp(deed->command_id, op->command_id) == 0)
            sim_fail(w, "done-twice", "%s: command %s ends by %s what was started after it had done so",
                     after->sandbox_id, op->command_id, sk_op_name(op->type));
    }
}

static void check_claim(struct sim_world *w, struct sim_actor actor, const struct sk_instance *before,
                        const struct sk_instance *after, int64_t silent_us)
{
    struct knowledge *k = knows_of(w, actor.fiber, after->sandbox_id);

    /* An insert that arrives after its caller made another one is not what the caller works on. */
    if (!w->store->late || after->epoch > k->epoch) {
        k->claims = true;
        k->type = after->operation.type;
        k->epoch = after->epoch;
    }
    /* FastGPT's operation that nobody here can continue is claimed and blocked in one write. */
    if (after->operation.blocked[0] != '\0' && after->operation.owner[0] == '\0')
        k->claims = false;
    else if (strcmp(after->operation.owner, actor.inc->id) != 0)
        sim_fail(w, "claim-owner", "%s: claimed by %s in the name of \"%s\"", after->sandbox_id, actor.inc->id,
                 after->operation.owner);
    sim_monitor_quota(w, before, after);
    check_delete_once(w, before, after);
    if (before == NULL || !before->has_operation)
        return;
    if (before->operation.job_id[0] == '\0')
        note_foreign_claim(w, &before->operation);
    if (before->operation.blocked[0] != '\0' && after->operation.type == SK_OP_DELETE)
        sim_saw(w, SIM_SOME_BLOCKED_THEN_DELETED);
    check_takeover(w, actor, before, after, silent_us);
}

static void check_idle_stop(struct sim_world *w, struct sim_actor actor, const struct sk_instance *before,
                            const struct sk_instance *after, const struct sk_event *claimed)
{
    if (before == NULL || before->status != SK_STATUS_RUNNING || after->status != SK_STATUS_STOPPING ||
        after->operation.command_id[0] != '\0' || strcmp(claimed->reason, "remote_missing") == 0)
        return;
    /* Neither what a command asks for nor the first half of a repair: an idle stop. */
    if (sk_instance_pinned(before, sk_wall_ms(&actor.inc->clock)))
        sim_fail(w, "idle-stop", "%s: stopped although it is pinned", after->sandbox_id);
}

/* Phase, terminal, failure: only by who owns the operation. */
static void check_commit(struct sim_world *w, struct sim_actor actor, const struct sk_instance *before,
                         const struct sk_instance *after)
{
    const struct sk_operation *old = &before->operation;
    struct knowledge *k = knows_of(w, actor.fiber, before->sandbox_id);
    bool blocks_foreign = after->has_operation && old->job_id[0] == '\0' && after->operation.blocked[0] != '\0';

    /* A release whose answer was lost is written once more: nothing changes by it. */
    if (after->has_operation && old->owner[0] == '\0' && !changes_state(before, after) &&
        old->attempt == after->operation.attempt)
        return;
    /* Given up and released, but nobody claimed it since: what arrives late was true when it was sent, and still is. */
    if (w->store->late && old->owner[0] == '\0')
        return;
    if (strcmp(old->owner, actor.inc->id) != 0 && !blocks_foreign)
        sim_fail(w, "foreign-commit", "%s: %s commits %s of \"%s\" (%s)", before->sandbox_id, actor.inc->id,
                 sk_op_name(old->type), old->owner,
                 after->has_operation ? after->operation.phase : sk_status_name(after->status));
    if (!after->has_operation || after->operation.owner[0] == '\0')
        k->claims = false;
    if (blocks_foreign)
        note_foreign_claim(w, old);
    if (!after->has_operation)
        note_deed(w, before, after);
    if (!after->has_operation && old->attempt > 0 && strcmp(after->last_operation.result, "completed") == 0)
        sim_saw(w, SIM_SOME_RETRIED_OK);
}

static bool has_object(struct sim_world *w, const char *sandbox_id)
{
    for (size_t i = 0; i < w->provider->object_count; i++) {
        if (!w->provider->objects[i]->gone && strcmp(w->provider->objects[i]->remote.sandbox_id, sandbox_id) == 0)
            return true;
    }
    return false;
}

void sim_monitor_write(struct sim_world *w, struct sim_actor actor, const struct sim_doc *doc,
                       const struct sk_instance *before, const struct sk_instance *after, const struct sk_event *events,
                       int event_count)
{
    struct sim_doc *writable = (struct sim_doc *)doc;
    int64_t silent_us = sim_now_us(w->sched) - doc->previous_heartbeat_us;
    bool claim;

    if (after == NULL) {
        sim_monitor_record_removed(w, before, doc);
        return;
    }
    check_events(w, before, after, events, event_count);
    if (changes_state(before, after) != (event_count > 0) &&
        !(event_count > 0 && events[event_count - 1].type == SK_EVENT_DELETED)) {
        sim_fail(w, "silent-change", "%s: %s -> %s %s with %d events", after->sandbox_id,
                 before == NULL ? "none" : sk_status_name(before->status), sk_status_name(after->status),
                 after->has_operation ? after->operation.phase : "", event_count);
    }
    claim = after->has_operation &&
            (before == NULL || !before->has_operation || strcmp(before->operation.id, after->operation.id) != 0);
    if (claim) {
        check_claim(w, actor, before, after, silent_us);
        if (event_count > 0) {
            check_done_once(w, before, after, &events[event_count - 1]);
            check_idle_stop(w, actor, before, after, &events[event_count - 1]);
        }
    } else if (before != NULL && before->has_operation) {
        check_commit(w, actor, before, after);
    }
    if (after->has_operation && after->operation.blocked[0] != '\0')
        writable->was_blocked = true;
    if (!after->has_operation && doc->was_blocked) {
        sim_saw(w, SIM_SOME_BLOCKED_THEN_RECOVERED);
        writable->was_blocked = false;
    }
    if (before == NULL) {
        for (size_t i = 0; i + 1 < w->store->stretch_count; i++) {
            if (w->store->stretches[i].status == SK_STATUS_NONE &&
                strcmp(w->store->stretches[i].sandbox_id, after->sandbox_id) == 0) {
                sim_saw(w, SIM_SOME_RECREATED);
                break;
            }
        }
    }
    if (doc->raced && after->status == SK_STATUS_RUNNING && before != NULL &&
        before->status == SK_STATUS_PROVISIONING && has_object(w, after->sandbox_id)) {
        sim_saw(w, SIM_SOME_REPAIRED);
        writable->raced = false;
    }
}

void sim_monitor_record_removed(struct sim_world *w, const struct sk_instance *before, const struct sim_doc *doc)
{
    const struct sim_volume *volume;

    for (size_t i = 0; i < w->provider->object_count; i++) {
        const struct sim_object *object = w->provider->objects[i];

        /* What every list showed before the delete was claimed must be gone; later ghosts are the sweeps' business. */
        if (!object->gone && object->remote.state != SK_REMOTE_STOPPING &&
            strcmp(object->remote.sandbox_id, before->sandbox_id) == 0 && object->visible_us < doc->phase_us &&
            object->remote.epoch <= before->epoch && object->created_us < doc->deleting_us &&
            object->visible_us < doc->deleting_us)
            sim_fail(w, "deleted-leftover", "%s: the record was removed while %s (epoch %lld) exists",
                     before->sandbox_id, object->remote.id, (long long)object->remote.epoch);
    }
    /* Made again by a call of the overtaken owner that was under way: that one takes it away when it comes back. */
    volume = before->storage.claim_name[0] == '\0' ? NULL : sim_provider_volume(w, before->storage.claim_name);
    if (volume != NULL && w->scenario.has_volumes && volume->created_us < doc->deleting_us)
        sim_fail(w, "deleted-leftover", "%s: the record was removed while its volume %s exists", before->sandbox_id,
                 before->storage.claim_name);
}

void sim_monitor_lost(struct sim_world *w, struct sim_actor actor, const struct sim_doc *doc,
                      const struct sk_instance *before, const struct sk_instance *after)
{
    bool claim =
        after->has_operation && (!before->has_operation || strcmp(before->operation.id, after->operation.id) != 0);

    if (!claim && before->has_operation && strcmp(before->operation.owner, actor.inc->id) == 0 &&
        (doc == NULL || !doc->i.has_operation || strcmp(doc->i.operation.id, before->operation.id) != 0))
        sim_saw(w, SIM_SOME_FENCED_STALE_COMMIT);
}

void sim_monitor_read(struct sim_world *w, struct sim_inc *inc, const char *sandbox_id, const struct sk_instance *found,
                      int64_t silent_us)
{
    struct knowledge *k = knows_of(w, sim_actor_of(inc).fiber, sandbox_id);

    /* Who reads of a later claim knows that its own is over. */
    if (found == NULL || found->epoch > k->epoch)
        k->claims = false;
    k->read = true;
    k->absent = found == NULL;
    k->read_epoch = found == NULL ? 0 : found->epoch;
    k->silent_us = silent_us;
}

/* ---- heartbeats
 * ----------------------------------------------------------------------------------------------------------- */

void sim_monitor_beating(struct sim_world *w, struct sim_inc *inc, const struct sk_heartbeat *items, int count)
{
    for (int i = 0; i < count; i++) {
        struct sim_doc *doc = sim_store_doc(w, items[i].sandbox_id);

        if (doc != NULL && doc->i.has_operation && strcmp(doc->i.operation.id, items[i].operation_id) == 0 &&
            strcmp(doc->i.operation.owner, inc->id) == 0)
            doc->beat_us = sim_now_us(w->sched);
    }
}

void sim_monitor_heartbeat(struct sim_world *w, struct sim_inc *inc, const struct sim_doc *doc)
{
    const struct sim_scenario *s = &w->scenario;
    /* The step may begin later than its commit when that had to be read back. */
    int64_t slack_ms = 3 * s->store_timeout_ms + (s->fault[SIM_FAULT_STORE_OUTAGE] > 0 ? 12000 : 0) +
                       (s->fault[SIM_FAULT_STORE_FAILOVER] > 0 ? 3000 : 0);
    /* Who stood still knows of its commit since it goes on. */
    int64_t since_us = longest(doc->phase_us, inc->group.frozen_until_us);
    int64_t late_ms = (sim_now_us(w->sched) - since_us) / SIM_MS - step_deadline_ms(w, &doc->i.operation);

    if (late_ms > slack_ms)
        sim_fail(w, "beat-past-deadline", "%s: %s still beats for %s at %s, %lld ms after the deadline of the phase",
                 doc->i.sandbox_id, inc->id, sk_op_name(doc->i.operation.type), doc->i.operation.phase,
                 (long long)late_ms);
}

static void check_beat(struct sim_world *w, const struct sim_doc *doc)
{
    const struct sim_scenario *s = &w->scenario;
    struct sim_inc *owner;
    int64_t now = sim_now_us(w->sched), since,
            allowed_ms = 3 * s->lc.heartbeat_ms + 2 * s->store_timeout_ms + s->lease_timeout_ms;

    if (!doc->i.has_operation || doc->i.malformed || doc->i.operation.owner[0] == '\0')
        return;
    /* What is left after the deleted event (publish, remove) may be done by anybody, twice: no claim, no beat. */
    if (doc->i.operation.type == SK_OP_DELETE && step_deadline_ms(w, &doc->i.operation) == NO_DEADLINE)
        return;
    owner = sim_inc_by_id(w, doc->i.operation.owner);
    if (owner == NULL || !sim_inc_alive(owner))
        return;
    /* A job that gave its worker back (lease lost, outage) comes again in a moment. */
    if (!knows_of(w, doc->claimed_by, doc->i.sandbox_id)->claims)
        return;
    since = doc->claim_us > doc->beat_us ? doc->claim_us : doc->beat_us;
    /* During an outage a job gives its worker back and comes again: nobody beats meanwhile, and nobody could. */
    if (w->down_until_us[SIM_STORE] > since)
        since = w->down_until_us[SIM_STORE];
    if (w->down_until_us[SIM_LEASE] > since)
        since = w->down_until_us[SIM_LEASE];
    if (owner->lease_cut_until_us > since)
        since = owner->lease_cut_until_us;
    if (owner->group.frozen_until_us > since)
        since = owner->group.frozen_until_us;
    if (now - since > allowed_ms * SIM_MS && now < doc->phase_us + step_deadline_ms(w, &doc->i.operation) * SIM_MS)
        sim_fail(w, "silent-owner", "%s: %s has not tried to beat for %s at %s for %lld ms", doc->i.sandbox_id,
                 owner->id, sk_op_name(doc->i.operation.type), doc->i.operation.phase,
                 (long long)((now - since) / SIM_MS));
}

void sim_monitor_tick(struct sim_world *w)
{
    for (size_t i = 0; i < w->store->doc_count; i++) {
        const struct sim_doc *doc = w->store->docs[i];

        if (doc == NULL)
            continue;
        check_beat(w, doc);
        if (doc->i.status == SK_STATUS_RUNNING && w->scenario.lc.idle_stop_ms > 0 &&
            sk_instance_pinned(&doc->i, sim_wall(w)) &&
            sim_wall(w) - doc->i.last_active_at > w->scenario.lc.idle_stop_ms + w->scenario.lc.idle_sweep_ms)
            sim_saw(w, SIM_SOME_PIN_HELD);
    }
}

/* ---- leases
 * ----------------------------------------------------------------------------------------------------------------- */

static void drop_believer(struct sim_monitor *m, int i)
{
    m->believers[i] = m->believers[--m->believer_count];
}

static int64_t silence_of(struct sim_world *w, const char *lease_name)
{
    const struct sim_doc *doc = strncmp(lease_name, LIFECYCLE_NAME, strlen(LIFECYCLE_NAME)) == 0
                                    ? sim_store_doc(w, lease_name + strlen(LIFECYCLE_NAME))
                                    : NULL;

    return doc == NULL ? 0 : sim_now_us(w->sched) - doc->heartbeat_us;
}

void sim_monitor_acquired(struct sim_world *w, struct sim_inc *inc, struct sk_lease *lease)
{
    struct sim_monitor *m = w->monitor;

    for (int i = 0; i < m->believer_count;) {
        struct believer *b = &m->believers[i];

        if (b->inc->group.dead || b->lease == lease) {
            drop_believer(m, i);
            continue;
        }
        if (strcmp(b->name, lease->name) == 0 && !b->excused && sk_lease_valid(b->lease, &b->inc->clock))
            sim_fail(w, "two-holders", "%s: taken by %s while %s holds it", lease->name, inc->group.name,
                     b->inc->group.name);
        i++;
    }
    if (m->believer_count == BELIEVERS_MAX)
        return;
    m->believers[m->believer_count] = (struct believer){
        .lease = lease, .inc = inc, .fiber = sim_actor_of(inc).fiber, .silent_us = silence_of(w, lease->name)};
    memcpy(m->believers[m->believer_count++].name, lease->name, sizeof(lease->name));
}

void sim_monitor_released(struct sim_world *w, struct sk_lease *lease)
{
    struct sim_monitor *m = w->monitor;

    for (int i = 0; i < m->believer_count; i++) {
        if (m->believers[i].lease != lease)
            continue;
        if (strncmp(lease->name, LIFECYCLE_NAME, strlen(LIFECYCLE_NAME)) == 0)
            knows_of(w, m->believers[i].fiber, lease->name + strlen(LIFECYCLE_NAME))->claims = false;
        drop_believer(m, i);
        return;
    }
}

void sim_monitor_lease_lost(struct sim_world *w, const char *name)
{
    for (int i = 0; i < w->monitor->believer_count; i++) {
        if (name == NULL || strcmp(w->monitor->believers[i].name, name) == 0)
            w->monitor->believers[i].excused = true;
    }
}

bool sim_monitor_held(struct sim_world *w, const struct sim_inc *inc, int n, char name[SK_LEASE_NAME_SIZE])
{
    for (int i = 0; i < w->monitor->believer_count; i++) {
        if (w->monitor->believers[i].inc == inc && n-- == 0) {
            memcpy(name, w->monitor->believers[i].name, SK_LEASE_NAME_SIZE);
            return true;
        }
    }
    return false;
}

void sim_monitor_forget_inc(struct sim_world *w, struct sim_inc *inc)
{
    for (int i = 0; i < w->monitor->believer_count;) {
        if (w->monitor->believers[i].inc == inc)
            drop_believer(w->monitor, i);
        else
            i++;
    }
}

static bool lease_held(struct sim_world *w, unsigned fiber, struct sim_inc *inc, const char *sandbox_id)
{
    for (int i = 0; i < w->monitor->believer_count; i++) {
        const struct believer *b = &w->monitor->believers[i];

        if (b->inc == inc && b->fiber == fiber && is_lease_of(b, sandbox_id) && sk_lease_valid(b->lease, &inc->clock))
            return true;
    }
    return false;
}

/* ---- provider
 * ---------------------------------------------------------------------------------------------------------------- */

static bool epoch_seen(const struct mind *k, const char *remote_id, int64_t *epoch)
{
    for (int i = 0; i < SEEN_MAX; i++) {
        if (strcmp(k->seen[i].id, remote_id) == 0) {
            *epoch = k->seen[i].epoch;
            return true;
        }
    }
    return false;
}

void sim_monitor_effect(struct sim_world *w, struct sim_inc *inc, enum sim_call call, const char *sandbox_id,
                        const char *remote_id)
{
    unsigned fiber = sim_actor_of(inc).fiber;
    const struct knowledge *k = knows_of(w, fiber, sandbox_id);
    int64_t seen;

    if (inc->group.dead || sim_store_doc(w, sandbox_id) == NULL)
        return;
    /* A delete may go on without the lease of the operation it overtook. */
    if (k->claims && k->type == SK_OP_DELETE)
        return;
    /* Who lost its operation may take away what that operation had made. */
    if (call == SIM_PROVIDER_REMOVE && epoch_seen(mind_of(w, fiber), remote_id, &seen) && seen == k->epoch)
        return;
    if (!lease_held(w, fiber, inc, sandbox_id))
        sim_fail(w, "effect-without-lease", "%s: %s calls %s without a valid lease", sandbox_id, inc->group.name,
                 sim_call_name(call));
}

void sim_monitor_create(struct sim_world *w, struct sim_inc *inc, const struct sk_create_spec *spec)
{
    struct sim_monitor *m = w->monitor;
    const struct knowledge *k = knows_of(w, sim_actor_of(inc).fiber, spec->sandbox_id);

    if (inc->group.dead)
        return;
    if (!k->claims || k->epoch != spec->epoch)
        sim_fail(w, "create-epoch", "%s: created with epoch %lld, the claim is of %lld", spec->sandbox_id,
                 (long long)spec->epoch, (long long)(k->claims ? k->epoch : 0));
    if (w->scenario.has_volumes && spec->storage != NULL && spec->storage->claim_name[0] != '\0' &&
        sim_provider_volume(w, spec->storage->claim_name) == NULL && sim_store_doc(w, spec->sandbox_id) != NULL &&
        sim_store_doc(w, spec->sandbox_id)->i.epoch == spec->epoch)
        sim_fail(w, "create-without-volume", "%s: created on the volume %s, which does not exist", spec->sandbox_id,
                 spec->storage->claim_name);
    for (size_t i = 0; i < m->creation_count; i++) {
        if (m->creations[i].epoch == spec->epoch && strcmp(m->creations[i].sandbox_id, spec->sandbox_id) == 0)
            sim_fail(w, "double-create", "%s: a second create under epoch %lld", spec->sandbox_id,
                     (long long)spec->epoch);
    }
    m->creations = sim_grow(m->creations, m->creation_count, &m->creation_size, sizeof(*m->creations));
    memcpy(m->creations[m->creation_count].sandbox_id, k->sandbox_id, sizeof(k->sandbox_id));
    m->creations[m->creation_count++].epoch = spec->epoch;
}

void sim_monitor_seen(struct sim_world *w, struct sim_inc *inc, const struct sk_remote *remote)
{
    struct mind *k = mind_of(w, sim_actor_of(inc).fiber);

    for (int i = 0; i < SEEN_MAX; i++) {
        if (strcmp(k->seen[i].id, remote->id) == 0) {
            k->seen[i].epoch = remote->epoch;
            return;
        }
    }
    sk_copy_cut(k->seen[k->seen_next].id, sizeof(k->seen[0].id), remote->id);
    k->seen[k->seen_next].epoch = remote->epoch;
    k->seen_next = (k->seen_next + 1) % SEEN_MAX;
}

void sim_monitor_remove(struct sim_world *w, struct sim_inc *inc, const char *remote_id)
{
    const struct sim_object *object = sim_provider_object(w, remote_id);
    unsigned fiber = sim_actor_of(inc).fiber;
    const struct knowledge *k;
    int64_t seen, allowed;

    if (inc->group.dead || object == NULL)
        return;
    k = knows_of(w, fiber, object->remote.sandbox_id);
    /* No epoch tells whose an object of FastGPT's is, only the lease does. */
    if (sim_provider_in_use(w, object) && (object->remote.epoch > 0 || !sim_monitor_leases_may_vanish(w)))
        sim_fail(w, "used-removed", "%s: %s removes %s, in which the sandbox runs", object->remote.sandbox_id,
                 inc->group.name, remote_id);
    if (!epoch_seen(mind_of(w, fiber), remote_id, &seen) || (!k->claims && !k->read)) {
        sim_fail(w, "unseen-remove", "%s: %s removes %s without having looked at it or at the record",
                 object->remote.sandbox_id, inc->group.name, remote_id);
        return;
    }
    /* A record without epoch is FastGPT's: whatever carries one is left from a former life. */
    allowed = k->claims ? k->epoch : k->absent || k->read_epoch == 0 ? INT64_MAX : k->read_epoch;
    if (seen > allowed && seen != k->epoch)
        sim_fail(w, "newer-removed", "%s: %s removes %s of epoch %lld under epoch %lld", object->remote.sandbox_id,
                 inc->group.name, remote_id, (long long)seen, (long long)allowed);
}

void sim_monitor_removed(struct sim_world *w, struct sim_actor actor, const struct sim_object *object)
{
    struct sim_doc *doc = sim_store_doc(w, object->remote.sandbox_id);
    int64_t seen;

    if (doc == NULL || !epoch_seen(mind_of(w, actor.fiber), object->remote.id, &seen) || seen >= object->remote.epoch)
        return;
    /* It was labelled anew between the look and the removal: the provider offers no way to exclude that. */
    doc->raced = true;
}

void sim_monitor_volume_removed(struct sim_world *w, struct sim_actor actor, const char *claim_name)
{
    for (size_t i = 0; i < w->store->doc_count; i++) {
        const struct sim_doc *doc = w->store->docs[i];

        if (doc == NULL || strcmp(doc->i.storage.claim_name, claim_name) != 0)
            continue;
        if (doc->i.malformed || doc->i.status != SK_STATUS_DELETING)
            sim_fail(w, "workspace-lost", "%s: its volume was removed while it is %s", doc->i.sandbox_id,
                     sk_status_name(doc->i.status));
        else if (knows_of(w, actor.fiber, doc->i.sandbox_id)->type != SK_OP_DELETE)
            sim_fail(w, "workspace-lost", "%s: its volume was removed by somebody who does not delete it",
                     doc->i.sandbox_id);
    }
}

/* ---- bus
 * ------------------------------------------------------------------------------------------------------------------------
 */

void sim_monitor_ack_wait(struct sim_world *w, const struct sim_message *message)
{
    const struct sim_inc *inc = message->holder;

    /* A part of this AckWait passed while the holder stood still. */
    if (inc != NULL && sim_now_us(w->sched) - w->scenario.ack_wait_ms * SIM_MS < inc->group.frozen_until_us)
        return;
    if (inc == NULL || message->progress_lost || !sim_inc_alive(inc) || sim_now_us(w->sched) < inc->cut_until_us ||
        sim_down(w, SIM_BUS))
        return;
    sim_fail(w, "ack-wait", "#%llu (%s): %s holds it and let AckWait pass without a sign of life",
             (unsigned long long)message->sequence, message->subject, inc->group.name);
}
