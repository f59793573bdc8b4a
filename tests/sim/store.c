/* SPDX-License-Identifier: Apache-2.0
 *
 * The store seam of an incarnation: every call travels (seam.c), then does what store_apply.c says. Writes that matter
 * (compare-and-set, insert, remove) can also arrive after their caller gave up. */
#include "tests/sim/monitor.h"
#include "tests/sim/servers.h"
#include "tests/sim/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in common/store, which would bring the Mongo driver along. */
void sk_command_record_fini(struct sk_command_record *record)
{
    free(record->result);
    record->result = NULL;
}

/* A write that is still on its way when nobody waits for it any more. */
struct late_write {
    int64_t sent_us;
    struct sim_world *w;
    struct sim_actor actor;
    enum sim_call kind;
    struct sk_instance before, after;
    struct sk_cas_guard guard;
    bool guarded;
    int event_count;
    struct sk_event events[];
};

/* Did a life of the sandbox end since? An insert has nothing that fences it against that (docs/simulator.md, limits).
 */
static bool life_ended_since(const struct sim_store *store, const char *sandbox_id, int64_t since_us)
{
    for (size_t i = store->stretch_count; i-- > 0 && store->stretches[i].at_us >= since_us;) {
        if (store->stretches[i].status == SK_STATUS_NONE && strcmp(store->stretches[i].sandbox_id, sandbox_id) == 0)
            return true;
    }
    return false;
}

static void late_arrives(void *arg)
{
    struct late_write *late = arg;
    struct sim_store *store = late->w->store;
    int64_t result = -1;

    store->late = true;
    if (late->kind == SIM_STORE_CAS)
        result = sim_store_apply_cas(store, late->actor, &late->before, &late->after, late->events, late->event_count,
                                     late->guarded ? &late->guard : NULL);
    else if (late->kind == SIM_STORE_INSERT && life_ended_since(store, late->after.sandbox_id, late->sent_us))
        result = 0; /* it got lost after all */
    else if (late->kind == SIM_STORE_INSERT)
        result = sim_store_apply_insert(store, late->actor, &late->after, late->events, late->event_count);
    else
        result = sim_store_apply_remove(store, late->actor, &late->before);
    store->late = false;
    if (result == 1 && late->kind == SIM_STORE_CAS)
        sim_saw(late->w, SIM_SOME_CAS_LATE);
    sim_mark(late->w, (int)late->kind, result, 77);
    SIM_TRACE(late->w, "%-22s %s arrives late: %s", sim_call_name(late->kind), late->after.sandbox_id,
              result == 1 ? "applied" : "refused");
    free(late);
}

static void send_late(struct sim_io *io, const struct sk_instance *before, const struct sk_instance *after,
                      const struct sk_event *events, int count, const struct sk_cas_guard *guard)
{
    struct late_write *late = calloc(1, sizeof(*late) + (size_t)count * sizeof(late->events[0]));

    if (late == NULL)
        abort();
    late->w = io->inc->w;
    late->actor = sim_actor_of(io->inc);
    late->kind = io->kind;
    late->sent_us = io->began_us;
    if (before != NULL)
        late->before = *before;
    late->after = after != NULL ? *after : *before;
    late->guarded = guard != NULL;
    if (guard != NULL)
        late->guard = *guard;
    late->event_count = count;
    if (count > 0)
        memcpy(late->events, events, (size_t)count * sizeof(late->events[0]));
    sim_at_own(late->w->sched, io->late_us, late_arrives, late);
}

#define IO(inc_, call_, kind_, about_, write_)                                                                         \
    {                                                                                                                  \
        .inc = (inc_), .call = (call_), .kind = (kind_), .about = (about_), .write = (write_)                          \
    }

static int read_one(struct sim_io *io, struct sim_doc *(*look)(struct sim_world *, const void *), const void *key,
                    struct sk_instance *out, bool *found, struct sk_error *err)
{
    struct sim_world *w = io->inc->w;
    struct sk_instance seen;
    struct sim_doc *doc;
    int64_t silent_us = 0;
    bool there;

    *found = false;
    if (sim_send(io, err) == SIM_REFUSED)
        goto failed;
    /* As it is now: it may be another one when the reply arrives. */
    doc = look(w, key);
    there = doc != NULL;
    if (there) {
        seen = doc->i;
        silent_us = sim_now_us(w->sched) - doc->heartbeat_us;
    }
    if (sim_reply(io, err) != 0)
        goto failed;
    *found = there;
    if (there)
        *out = seen;
    sim_monitor_read(w, io->inc, *found ? out->sandbox_id : io->about, *found ? out : NULL, silent_us);
    sim_done(io, *found ? (int64_t)out->status + 1 : 0, "= %s epoch %lld seq %lld op %s%s",
             *found ? sk_status_name(out->status) : "no record", *found ? (long long)out->epoch : 0,
             *found ? (long long)out->sequence : 0, *found && out->has_operation ? out->operation.phase : "-",
             *found && out->has_operation && out->operation.owner[0] == '\0' ? " (released)" : "");
    return 0;
failed:
    *found = false;
    sim_done(io, -1, "failed");
    return -1;
}

static struct sim_doc *look_by_id(struct sim_world *w, const void *key)
{
    return sim_store_doc(w, key);
}

static struct sim_doc *look_by_identity(struct sim_world *w, const void *key)
{
    for (size_t i = 0; i < w->store->doc_count; i++) {
        if (w->store->docs[i] != NULL && sk_identity_equal(&w->store->docs[i]->i.identity, key))
            return w->store->docs[i];
    }
    return NULL;
}

static int seam_get(void *self, struct sk_call *call, const char *sandbox_id, struct sk_instance *out, bool *found,
                    struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_GET, sandbox_id, false);

    return read_one(&io, look_by_id, sandbox_id, out, found, err);
}

static int seam_find(void *self, struct sk_call *call, const struct sk_identity *identity, struct sk_instance *out,
                     bool *found, struct sk_error *err)
{
    char id[SK_SANDBOX_ID_SIZE];
    struct sim_io io = IO(self, call, SIM_STORE_FIND, id, false);

    sk_identity_sandbox_id(identity, id);
    return read_one(&io, look_by_identity, identity, out, found, err);
}

/* Every step of the sequence has its event, in order. */
static const char *events_invariant(int64_t before, int64_t after, const struct sk_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        if (events[i].sequence != before + 1 + i)
            return "an event has another sequence";
    }
    return after == before + count ? NULL : "the sequence does not fit the number of events";
}

/* While a writer does not know what came of its write, its lease goes and, sometimes, somebody deletes the sandbox. */
static void worst_timing(struct sim_world *w, const char *sandbox_id, bool burst)
{
    char name[SK_LEASE_NAME_SIZE];

    if (w->scenario.fault[SIM_FAULT_LEASE_VANISH] + w->scenario.fault[SIM_FAULT_PARTITION] == 0 || !w->faults_on ||
        sim_percent(&w->faults, 40))
        return;
    snprintf(name, sizeof(name), "agent-sandbox:lifecycle:%s", sandbox_id);
    sim_lease_lose(w, name);
    if (burst)
        sim_workload_burst(w, sandbox_id);
}

/* Nothing is left to do but the end of the operation. */
static void stands_still(struct sim_inc *inc, const struct sk_instance *before, const struct sk_instance *after)
{
    const struct sk_op_info *info;

    if (inc->w->freezes_armed == 0 || !inc->w->faults_on || !after->has_operation ||
        after->operation.owner[0] == '\0' || strcmp(before->operation.phase, after->operation.phase) == 0)
        return;
    info = sk_op_info(after->operation.type);
    if (sk_op_phase_index(after->operation.type, after->operation.phase) != info->phase_count - 1)
        return;
    inc->w->freezes_armed--;
    sim_freeze(inc);
}

static int seam_insert(void *self, struct sk_call *call, const struct sk_instance *after, const struct sk_event *events,
                       int event_count, bool *created, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_INSERT, after->sandbox_id, true);
    struct sim_inc *inc = self;
    const char *reason = sk_instance_invariant(after);
    char expected[SK_SANDBOX_ID_SIZE];
    bool applied = false;

    if (reason == NULL)
        reason = events_invariant(0, after->sequence, events, event_count);
    if (reason == NULL && strspn(after->oid, "0123456789abcdef") != 24)
        reason = "a new record needs an _id";
    sk_identity_sandbox_id(&after->identity, expected);
    if (reason == NULL && strcmp(expected, after->sandbox_id) != 0)
        reason = "the sandbox id is not that of the identity";
    *created = false;
    if (reason != NULL) {
        sim_fail(inc->w, "illegal-write", "%s: insert refused: %s", after->sandbox_id, reason);
        return sk_fail(err, SK_ERR_INTERNAL, "%s", reason);
    }
    io.can_be_late = true;
    if (sim_send(&io, err) == SIM_REFUSED)
        goto failed;
    if (io.arrival == SIM_ARRIVED)
        applied = sim_store_apply_insert(inc->w->store, sim_actor_of(inc), after, events, event_count);
    else if (io.arrival == SIM_LATE)
        send_late(&io, NULL, after, events, event_count, NULL);
    if (applied && io.reply_lost)
        worst_timing(inc->w, after->sandbox_id, true);
    if (sim_reply(&io, err) != 0) {
        if (applied)
            sim_saw(inc->w, SIM_SOME_INSERT_AMBIGUOUS);
        goto failed;
    }
    *created = applied;
    sim_done(&io, applied, "epoch %lld: %s", (long long)after->epoch, applied ? "created" : "taken");
    return 0;
failed:
    sim_done(&io, -1, "epoch %lld: failed%s", (long long)after->epoch, applied ? " [was applied]" : "");
    return -1;
}

static enum sk_cas_result seam_cas(void *self, struct sk_call *call, const struct sk_instance *before,
                                   const struct sk_instance *after, const struct sk_event *events, int event_count,
                                   const struct sk_cas_guard *guard, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_CAS, before->sandbox_id, true);
    struct sim_inc *inc = self;
    const char *reason = sk_instance_change_invariant(before, after);
    enum sk_cas_result result = SK_CAS_LOST;

    if (reason == NULL)
        reason = events_invariant(before->sequence, after->sequence, events, event_count);
    if (reason != NULL) {
        sim_fail(inc->w, "illegal-write", "%s: %s -> %s refused: %s", before->sandbox_id,
                 sk_status_name(before->status), sk_status_name(after->status), reason);
        sk_fail(err, SK_ERR_INTERNAL, "%s", reason);
        return SK_CAS_ERROR;
    }
    io.can_be_late = true;
    if (sim_send(&io, err) == SIM_REFUSED)
        goto failed;
    if (io.arrival == SIM_ARRIVED)
        result = sim_store_apply_cas(inc->w->store, sim_actor_of(inc), before, after, events, event_count, guard);
    else if (io.arrival == SIM_LATE)
        send_late(&io, before, after, events, event_count, guard);
    if (result == SK_CAS_APPLIED && io.reply_lost)
        worst_timing(inc->w, before->sandbox_id, false);
    if (result == SK_CAS_APPLIED)
        stands_still(inc, before, after);
    if (sim_reply(&io, err) != 0) {
        sim_saw(inc->w, result == SK_CAS_APPLIED ? SIM_SOME_CAS_AMBIGUOUS_APPLIED : SIM_SOME_CAS_AMBIGUOUS_DROPPED);
        goto failed;
    }
    if (result == SK_CAS_LOST)
        sim_saw(inc->w, SIM_SOME_CAS_LOST);
    sim_done(&io, result, "%s -> %s%s%s epoch %lld seq %lld: %s", sk_status_name(before->status),
             sk_status_name(after->status), after->has_operation ? " " : "",
             after->has_operation ? after->operation.phase : "", (long long)after->epoch, (long long)after->sequence,
             result == SK_CAS_APPLIED ? "applied" : "LOST");
    return result;
failed:
    sim_done(&io, -1, "%s -> %s%s%s epoch %lld seq %lld: failed%s", sk_status_name(before->status),
             sk_status_name(after->status), after->has_operation ? " " : "",
             after->has_operation ? after->operation.phase : "", (long long)after->epoch, (long long)after->sequence,
             result == SK_CAS_APPLIED ? " [was applied]" : "");
    return SK_CAS_ERROR;
}

static enum sk_cas_result seam_remove(void *self, struct sk_call *call, const struct sk_instance *before,
                                      struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_REMOVE, before->sandbox_id, true);
    struct sim_inc *inc = self;
    enum sk_cas_result result = SK_CAS_LOST;

    if (before->status != SK_STATUS_DELETING || !before->has_operation) {
        sim_fail(inc->w, "illegal-write", "%s: removal of a record that is %s", before->sandbox_id,
                 sk_status_name(before->status));
        sk_fail(err, SK_ERR_INTERNAL, "remove refused: only a record in deletion may be removed");
        return SK_CAS_ERROR;
    }
    io.can_be_late = true;
    if (sim_send(&io, err) == SIM_REFUSED)
        goto failed;
    if (io.arrival == SIM_ARRIVED)
        result = sim_store_apply_remove(inc->w->store, sim_actor_of(inc), before);
    else if (io.arrival == SIM_LATE)
        send_late(&io, before, NULL, NULL, 0, NULL);
    if (sim_reply(&io, err) != 0) {
        if (result == SK_CAS_APPLIED)
            sim_saw(inc->w, SIM_SOME_REMOVE_AMBIGUOUS);
        goto failed;
    }
    sim_done(&io, result, "epoch %lld: %s", (long long)before->epoch, result == SK_CAS_APPLIED ? "removed" : "LOST");
    return result;
failed:
    sim_done(&io, -1, "epoch %lld: failed%s", (long long)before->epoch,
             result == SK_CAS_APPLIED ? " [was applied]" : "");
    return SK_CAS_ERROR;
}

/* A write without a result of its own, done at once when it arrives. */
#define SIMPLE_WRITE(io, err, effect)                                                                                  \
    do {                                                                                                               \
        if (sim_send(&(io), (err)) == SIM_REFUSED) {                                                                   \
            sim_done(&(io), -1, "failed");                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
        if ((io).arrival == SIM_ARRIVED) {                                                                             \
            effect;                                                                                                    \
        }                                                                                                              \
        if (sim_reply(&(io), (err)) != 0) {                                                                            \
            sim_done(&(io), -1, "failed");                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

static void apply_heartbeat(struct sim_inc *inc, const char *owner, const struct sk_heartbeat *items, int count,
                            int64_t now_ms)
{
    for (int i = 0; i < count; i++) {
        struct sim_doc *doc = sim_store_doc(inc->w, items[i].sandbox_id);

        if (doc == NULL || !doc->i.has_operation || strcmp(doc->i.operation.id, items[i].operation_id) != 0 ||
            strcmp(doc->i.operation.owner, owner) != 0)
            continue;
        sim_monitor_heartbeat(inc->w, inc, doc);
        doc->i.operation.heartbeat_at = now_ms;
        doc->heartbeat_us = sim_now_us(inc->w->sched);
    }
}

static int seam_heartbeat(void *self, const char *owner, const struct sk_heartbeat *items, int count, int64_t now_ms,
                          struct sk_error *err)
{
    struct sim_io io = IO(self, NULL, SIM_STORE_HEARTBEAT, count > 0 ? items[0].sandbox_id : NULL, true);

    sim_monitor_beating(io.inc->w, self, items, count);
    SIMPLE_WRITE(io, err, apply_heartbeat(self, owner, items, count, now_ms));
    sim_done(&io, count, "%d operations", count);
    return 0;
}

static void apply_pull(struct sim_world *w, const char (*ids)[SK_SANDBOX_ID_SIZE], int sandboxes,
                       const char (*event_ids)[SK_ULID_SIZE], int events)
{
    for (int s = 0; s < sandboxes; s++) {
        struct sim_doc *doc = sim_store_doc(w, ids[s]);
        int kept = 0;

        for (int i = 0; doc != NULL && i < doc->outbox_count; i++) {
            bool pulled = false;

            for (int e = 0; e < events && !pulled; e++)
                pulled = strcmp(doc->outbox[i].id, event_ids[e]) == 0;
            if (!pulled)
                doc->outbox[kept++] = doc->outbox[i];
        }
        if (doc != NULL)
            doc->i.outbox_count = doc->outbox_count = kept;
    }
}

static int seam_outbox_pull(void *self, const char (*ids)[SK_SANDBOX_ID_SIZE], int sandbox_count,
                            const char (*event_ids)[SK_ULID_SIZE], int event_count, struct sk_error *err)
{
    struct sim_io io = IO(self, NULL, SIM_STORE_OUTBOX_PULL, sandbox_count > 0 ? ids[0] : NULL, true);
    struct sim_inc *inc = self;

    SIMPLE_WRITE(io, err, apply_pull(inc->w, ids, sandbox_count, event_ids, event_count));
    sim_done(&io, event_count, "%d events", event_count);
    return 0;
}

static int seam_timeline_apply(void *self, const struct sk_event *events, int count, struct sk_error *err)
{
    struct sim_io io = IO(self, NULL, SIM_STORE_TIMELINE_APPLY, count > 0 ? events[0].sandbox_id : NULL, true);
    struct sim_inc *inc = self;

    SIMPLE_WRITE(io, err, sim_store_apply_timeline(inc->w->store, events, count));
    sim_done(&io, count, "%d events", count);
    return 0;
}

static int seam_command_find(void *self, struct sk_call *call, const char *sandbox_id, const char *command_id,
                             struct sk_command_record *out, bool *found, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_COMMAND_FIND, sandbox_id, false);
    struct sim_inc *inc = self;
    const struct sim_result_record *r;

    *found = false;
    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "%s failed", command_id);
        return -1;
    }
    r = sim_store_result(inc->w, sandbox_id, command_id);
    if (r != NULL) {
        *out = r->record;
        out->result = strdup(r->record.result);
        if (out->result == NULL)
            abort();
        *found = true;
    }
    sim_done(&io, *found, "%s: %s", command_id, *found ? "found" : "not there");
    return 0;
}

static int seam_command_find_many(void *self, struct sk_call *call, const char *sandbox_id,
                                  const char *const *command_ids, int count,
                                  bool (*fn)(void *arg, struct sk_command_record *record), void *arg,
                                  struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_COMMAND_FIND, sandbox_id, false);
    struct sim_inc *inc = self;
    int found = 0;

    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "%d commands failed", count);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        const struct sim_result_record *r = sim_store_result(inc->w, sandbox_id, command_ids[i]);
        struct sk_command_record record;
        bool more;

        if (r == NULL)
            continue;
        found++;
        record = r->record;
        record.result = strdup(r->record.result);
        if (record.result == NULL)
            abort();
        more = fn(arg, &record);
        free(record.result);
        if (!more)
            break;
    }
    sim_done(&io, found, "%d commands: %d found", count, found);
    return 0;
}

static void apply_put(struct sim_store *store, const struct sk_command_record *records, int count)
{
    for (int i = 0; i < count; i++) {
        struct sim_result_record *r;

        if (sim_store_result(store->w, records[i].sandbox_id, records[i].command_id) != NULL) {
            if (records[i].existed != NULL)
                *records[i].existed = true;
            continue;
        }
        store->results = sim_grow(store->results, store->result_count, &store->result_size, sizeof(*store->results));
        r = &store->results[store->result_count++];
        r->record = records[i];
        r->record.result = strdup(records[i].result);
        r->at_us = sim_now_us(store->w->sched);
        if (r->record.result == NULL)
            abort();
    }
}

static int seam_command_put(void *self, const struct sk_command_record *records, int count, struct sk_error *err)
{
    struct sim_io io = IO(self, NULL, SIM_STORE_COMMAND_PUT, count > 0 ? records[0].sandbox_id : NULL, true);
    struct sim_inc *inc = self;

    SIMPLE_WRITE(io, err, apply_put(inc->w->store, records, count));
    sim_done(&io, count, "%d results, first of %s", count, count > 0 ? records[0].command_id : "-");
    return 0;
}

/* ---- quota ------------------------------------------------------------------------------------------------------- */

static struct sim_slot *slot_find(struct sim_store *store, const char *scope, const char *sandbox_id)
{
    for (size_t i = 0; i < store->slot_count; i++) {
        if (strcmp(store->slots[i].scope, scope) == 0 && strcmp(store->slots[i].sandbox_id, sandbox_id) == 0)
            return &store->slots[i];
    }
    return NULL;
}

/* Remembered for good, as the numbers of the slots are in the real store. */
static void note_scope(struct sim_store *store, const char *scope)
{
    for (size_t i = 0; i < store->scope_count; i++) {
        if (strcmp(store->scopes[i].scope, scope) == 0)
            return;
    }
    store->scopes = sim_grow(store->scopes, store->scope_count, &store->scope_size, sizeof(*store->scopes));
    sk_copy_cut(store->scopes[store->scope_count++].scope, sizeof(store->scopes->scope), scope);
}

static void slot_take(struct sim_store *store, const char *scope, const char *sandbox_id)
{
    struct sim_slot *slot;

    note_scope(store, scope);
    store->slots = sim_grow(store->slots, store->slot_count, &store->slot_size, sizeof(*store->slots));
    slot = &store->slots[store->slot_count++];
    sk_copy_cut(slot->scope, sizeof(slot->scope), scope);
    sk_copy_cut(slot->sandbox_id, sizeof(slot->sandbox_id), sandbox_id);
    slot->at_ms = sim_wall(store->w);
}

static bool apply_reserve(struct sim_store *store, const char *scope, int64_t limit, const char *sandbox_id)
{
    struct sim_slot *slot = slot_find(store, scope, sandbox_id);
    int64_t held = 0;

    if (slot != NULL) {
        slot->at_ms = sim_wall(store->w); /* young again: a recount leaves it to the claim that follows */
        return true;
    }
    for (size_t i = 0; i < store->slot_count; i++)
        held += strcmp(store->slots[i].scope, scope) == 0;
    if (held >= limit) {
        sim_saw(store->w, SIM_SOME_QUOTA_FULL);
        return false;
    }
    slot_take(store, scope, sandbox_id);
    return true;
}

static int seam_quota_reserve(void *self, struct sk_call *call, const char *scope, int64_t limit,
                              const char *sandbox_id, bool *granted, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_QUOTA_RESERVE, sandbox_id, true);
    struct sim_inc *inc = self;
    bool result = false;

    *granted = false;
    SIMPLE_WRITE(io, err, result = apply_reserve(inc->w->store, scope, limit, sandbox_id));
    *granted = result;
    sim_done(&io, result, "%s of %lld: %s", scope, (long long)limit, result ? "granted" : "FULL");
    return 0;
}

static void apply_release(struct sim_store *store, const char *scope, const char *sandbox_id)
{
    struct sim_slot *slot = slot_find(store, scope, sandbox_id);

    if (slot != NULL)
        *slot = store->slots[--store->slot_count];
}

static int seam_quota_release(void *self, const char *scope, const char *sandbox_id, struct sk_error *err)
{
    struct sim_io io = IO(self, NULL, SIM_STORE_QUOTA_RELEASE, sandbox_id, true);
    struct sim_inc *inc = self;

    SIMPLE_WRITE(io, err, apply_release(inc->w->store, scope, sandbox_id));
    sim_done(&io, 0, "%s", scope);
    return 0;
}

static bool counts(const struct sim_doc *doc)
{
    return doc != NULL && !doc->i.malformed && sk_status_info(doc->i.status) != NULL &&
           sk_status_info(doc->i.status)->counts_for_quota;
}

static int64_t recount_scope(struct sim_store *store, const char *scope, int64_t grace_ms)
{
    const char *team = strncmp(scope, "team:", 5) == 0 ? scope + 5 : NULL;
    int64_t changed = 0;

    for (size_t i = 0; i < store->slot_count;) {
        struct sim_slot *slot = &store->slots[i];

        if (strcmp(slot->scope, scope) == 0 && sim_wall(store->w) - slot->at_ms >= grace_ms &&
            !counts(sim_store_doc(store->w, slot->sandbox_id))) {
            *slot = store->slots[--store->slot_count];
            changed++;
        } else {
            i++;
        }
    }
    for (size_t d = 0; d < store->doc_count; d++) {
        const struct sim_doc *doc = store->docs[d];

        if (!counts(doc) || (team != NULL && strcmp(doc->i.team_id, team) != 0) ||
            slot_find(store, scope, doc->i.sandbox_id) != NULL)
            continue;
        slot_take(store, scope, doc->i.sandbox_id);
        changed++;
    }
    return changed;
}

/* NULL = every scope that was ever reserved in. */
static int64_t apply_recount(struct sim_store *store, const char *scope, int64_t grace_ms)
{
    int64_t changed = 0;

    if (scope != NULL)
        return recount_scope(store, scope, grace_ms);
    for (size_t i = 0; i < store->scope_count; i++)
        changed += recount_scope(store, store->scopes[i].scope, grace_ms);
    return changed;
}

static int seam_quota_recount(void *self, struct sk_call *call, const char *scope, int64_t grace_ms, int64_t *changed,
                              struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_QUOTA_RECOUNT, scope, true);
    struct sim_inc *inc = self;
    int64_t result = 0;

    *changed = 0;
    SIMPLE_WRITE(io, err, result = apply_recount(inc->w->store, scope, grace_ms));
    *changed = result;
    sim_done(&io, result, "changed %lld", (long long)result);
    return 0;
}

/* ---- the rest ------------------------------------------------------------------------------------------------------
 */

static int seam_source_state(void *self, struct sk_call *call, const struct sk_identity *identity,
                             struct sk_source_state *out, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_SOURCE_STATE, identity->source_id, false);
    struct sim_inc *inc = self;
    const struct sim_store *store = inc->w->store;

    memset(out, 0, sizeof(*out));
    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "failed");
        return -1;
    }
    out->known = !store->source_check;
    out->active = !store->source_check;
    for (int i = 0; i < store->source_count; i++) {
        if (strcmp(store->sources[i].id, identity->source_id) != 0)
            continue;
        out->known = true;
        out->active = !store->source_check || !store->sources[i].deleted;
        sk_copy_cut(out->team_id, sizeof(out->team_id), store->sources[i].team_id);
    }
    if (!out->active)
        sim_saw(inc->w, SIM_SOME_SOURCE_GONE);
    sim_done(&io, out->active, "%s", out->active ? "active" : "deleted");
    return 0;
}

static int seam_nothing(void *self, struct sk_call *call, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_PING, NULL, false);

    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "failed");
        return -1;
    }
    sim_done(&io, 0, "ok");
    return 0;
}

static const struct sk_store_ops store_ops = {
    .get = seam_get,
    .find = seam_find,
    .insert = seam_insert,
    .cas = seam_cas,
    .remove = seam_remove,
    .heartbeat = seam_heartbeat,
    .scan = sim_store_scan,
    .scan_idle = sim_store_scan_idle,
    .get_many = sim_store_get_many,
    .outbox_pull = seam_outbox_pull,
    .timeline_apply = seam_timeline_apply,
    .timeline_list = sim_store_timeline_list,
    .timeline_of_commands = sim_store_timeline_of_commands,
    .command_find = seam_command_find,
    .command_find_many = seam_command_find_many,
    .command_put = seam_command_put,
    .quota_reserve = seam_quota_reserve,
    .quota_release = seam_quota_release,
    .quota_recount = seam_quota_recount,
    .source_state = seam_source_state,
    .list = sim_store_list,
    .stats = sim_store_stats,
    .setup = seam_nothing,
    .ping = seam_nothing,
};

void sim_store_seam(struct sim_inc *inc)
{
    inc->store = (struct sk_store){.ops = &store_ops, .self = inc};
}
