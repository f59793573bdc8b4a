/* SPDX-License-Identifier: Apache-2.0
 *
 * FastGPT next to us: it writes records of its own (reference/fastgpt-lifecycle.md), some in the middle of an operation
 * that nobody will finish, takes the same leases, stops sandboxes, touches and pins running ones. It knows nothing of
 * epochs, outboxes and owners; unknown fields of a record survive its writes. */
#include "tests/sim/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill_base(struct sim_world *w, struct sk_instance *i, int identity)
{
    memset(i, 0, sizeof(*i));
    i->identity = sim_identity(identity);
    sk_identity_sandbox_id(&i->identity, i->sandbox_id);
    sk_copy_cut(i->provider, sizeof(i->provider), "opensandbox");
    i->created_at = sim_wall(w) - 60000;
    i->last_active_at = sim_wall(w) - sim_between(&w->work, 0, 20000);
    i->limit = w->scenario.lc.default_limit;
    i->image = w->scenario.lc.default_image;
    if (w->scenario.has_volumes) {
        i->storage.present = true;
        sk_copy_cut(i->storage.volume_name, sizeof(i->storage.volume_name), "workspace");
        sk_copy_cut(i->storage.volume_mount_path, sizeof(i->storage.volume_mount_path), "/workspace");
        if (!sk_claim_name(i->storage.claim_name, w->scenario.lc.volume_prefix, i->sandbox_id, "0"))
            abort();
        sim_provider_add_volume(w, i->storage.claim_name);
    }
    if (sim_percent(&w->work, 40))
        snprintf(i->team_id, sizeof(i->team_id), "team-%d", identity % w->scenario.teams);
}

static void fill_operation(struct sim_world *w, struct sk_instance *i, enum sk_op type)
{
    const struct sk_op_info *info = sk_op_info(type);
    int64_t age = sim_between(&w->work, 0, 20000);
    struct sk_operation *op = &i->operation;

    memset(op, 0, sizeof(*op));
    i->status = info->transitional;
    i->has_operation = true;
    op->type = type;
    sk_uuid4(&w->clock, op->id);
    sk_copy_cut(op->phase, sizeof(op->phase), info->phases[sim_below(&w->work, (uint64_t)info->phase_count)].name);
    op->started_at = op->heartbeat_at = sim_wall(w) - age;
    if (type == SK_OP_LEGACY_MIGRATION && sim_percent(&w->work, 60))
        sk_copy_cut(op->phase, sizeof(op->phase), "claimed");
    if (sim_percent(&w->work, 60)) {
        static const enum sk_status stable[] = {SK_STATUS_RUNNING, SK_STATUS_STOPPED, SK_STATUS_ARCHIVED};

        op->previous_status = type == SK_OP_PROVISION ? SK_STATUS_STOPPED
                              : type == SK_OP_STOP    ? SK_STATUS_RUNNING
                                                      : stable[sim_below(&w->work, type == SK_OP_ARCHIVE ? 2 : 3)];
    }
    if (sim_percent(&w->work, 35)) {
        op->failed_at = op->heartbeat_at;
        sk_copy_cut(op->error.detail, sizeof(op->error.detail), "TypeError: fetch failed");
    }
}

/* Has the operation passed this phase: is its effect done? */
static bool effect_done(const struct sk_instance *i, enum sk_op type, const char *phase)
{
    return i->has_operation && i->operation.type == type &&
           sk_op_phase_index(type, i->operation.phase) >= sk_op_phase_index(type, phase);
}

static void make_record(struct sim_world *w, int identity)
{
    static const enum sk_op operations[] = {SK_OP_PROVISION, SK_OP_STOP,    SK_OP_DELETE,
                                            SK_OP_ARCHIVE,   SK_OP_RESTORE, SK_OP_LEGACY_MIGRATION};
    struct sk_instance i;
    int roll = (int)sim_below(&w->work, 10);
    bool object = false;
    struct sim_volume *volume;

    fill_base(w, &i, identity);
    if (roll == 0) {
        i.status = SK_STATUS_RUNNING;
        object = true;
    } else if (roll == 1) {
        i.status = SK_STATUS_STOPPED;
    } else if (roll == 2) {
        i.status = SK_STATUS_ARCHIVED;
    } else {
        fill_operation(w, &i, operations[sim_below(&w->work, 6)]);
        object = i.operation.type != SK_OP_RESTORE && sim_percent(&w->work, 60);
        /* What this phase says, and what a reverted operation leaves, must be so. */
        if (effect_done(&i, SK_OP_PROVISION, "providerEnsured"))
            object = true;
        if (i.operation.previous_status == SK_STATUS_RUNNING && i.operation.type != SK_OP_STOP)
            object = true;
        if (i.operation.previous_status == SK_STATUS_ARCHIVED || i.operation.previous_status == SK_STATUS_STOPPED)
            object = i.operation.type == SK_OP_PROVISION && object;
    }
    object = object && !effect_done(&i, SK_OP_STOP, "providerStopped") &&
             !effect_done(&i, SK_OP_DELETE, "providerDeleted") && !effect_done(&i, SK_OP_ARCHIVE, "providerDeleted");
    if (object) {
        struct sim_object *made = sim_provider_add(w, i.sandbox_id, 0, "");

        /* It is there for long. */
        made->visible_us = made->running_us = made->ready_us = sim_now_us(w->sched);
    }
    volume = sim_provider_volume(w, i.storage.claim_name);
    if (volume != NULL &&
        (effect_done(&i, SK_OP_DELETE, "volumeDeleted") || effect_done(&i, SK_OP_ARCHIVE, "volumeDeleted")))
        volume->gone = true;
    SIM_TRACE(w, "FastGPT writes %s: %s %s%s%s", i.sandbox_id, sk_status_name(i.status),
              i.has_operation ? i.operation.phase : "",
              i.has_operation && i.operation.failed_at != 0 ? " (failed)" : "", object ? ", with an object" : "");
    sim_store_foreign(w, &i);
}

struct stop {
    struct sim_world *w;
    char sandbox_id[SK_SANDBOX_ID_SIZE], token[SK_UUID_SIZE], operation_id[SK_UUID_SIZE], lease[SK_LEASE_NAME_SIZE];
};

/* FastGPT's stop: deletes every object of the sandbox, whoever made it, then commits by its operation id. */
static void stop_ends(void *arg)
{
    struct stop *stop = arg;
    struct sim_world *w = stop->w;
    struct sim_doc *doc = sim_store_doc(w, stop->sandbox_id);

    if (doc != NULL && doc->i.has_operation && strcmp(doc->i.operation.id, stop->operation_id) == 0) {
        struct sk_instance after = doc->i;

        for (size_t i = 0; i < w->provider->object_count; i++) {
            if (strcmp(w->provider->objects[i]->remote.sandbox_id, stop->sandbox_id) == 0)
                w->provider->objects[i]->gone = true;
        }
        after.status = SK_STATUS_STOPPED;
        after.has_operation = false;
        memset(&after.operation, 0, sizeof(after.operation));
        sim_store_foreign(w, &after);
        SIM_TRACE(w, "FastGPT stopped %s", stop->sandbox_id);
    }
    sim_lease_drop(w, stop->lease, stop->token);
    free(stop);
}

static void begin_stop(struct sim_world *w, struct sim_doc *doc)
{
    struct stop *stop = calloc(1, sizeof(*stop));
    struct sk_instance after = doc->i;

    if (stop == NULL)
        abort();
    stop->w = w;
    memcpy(stop->sandbox_id, doc->i.sandbox_id, sizeof(stop->sandbox_id));
    sk_uuid4(&w->clock, stop->token);
    snprintf(stop->lease, sizeof(stop->lease), "agent-sandbox:lifecycle:%s", doc->i.sandbox_id);
    if (!sim_lease_take(w, stop->lease, stop->token, w->scenario.lc.lease_ttl_ms)) {
        free(stop);
        return;
    }
    fill_operation(w, &after, SK_OP_STOP);
    after.operation.previous_status = SK_STATUS_RUNNING;
    after.operation.heartbeat_at = after.operation.started_at = sim_wall(w);
    after.operation.failed_at = 0;
    memset(&after.operation.error, 0, sizeof(after.operation.error));
    sk_copy_cut(after.operation.phase, sizeof(after.operation.phase), "claimed");
    memcpy(stop->operation_id, after.operation.id, sizeof(stop->operation_id));
    SIM_TRACE(w, "FastGPT begins to stop %s", after.sandbox_id);
    sim_store_foreign(w, &after);
    if (sim_percent(&w->work, 40))
        free(stop); /* it dies: lease and operation are left behind */
    else
        sim_after_own(w->sched, sim_between(&w->work, 5 * SIM_MS, w->scenario.lc.lease_ttl_ms * SIM_MS / 2), stop_ends,
                      stop);
}

void sim_fastgpt_act(struct sim_world *w)
{
    int identity = (int)sim_below(&w->work, (uint64_t)w->scenario.sandboxes);
    char id[SK_SANDBOX_ID_SIZE];
    struct sim_doc *doc;

    sim_sandbox_id(identity, id);
    doc = sim_store_doc(w, id);
    if (doc == NULL)
        make_record(w, identity);
    else if (doc->i.status == SK_STATUS_RUNNING && !doc->i.malformed && !doc->i.has_operation)
        begin_stop(w, doc);
}

void sim_fastgpt_malformed(struct sim_world *w)
{
    struct sk_instance i;
    int identity = (int)sim_below(&w->work, (uint64_t)w->scenario.sandboxes);
    char id[SK_SANDBOX_ID_SIZE];

    sim_sandbox_id(identity, id);
    if (sim_store_doc(w, id) != NULL)
        return;
    fill_base(w, &i, identity);
    i.status = SK_STATUS_INVALID;
    i.malformed = true;
    sk_copy_cut(i.malformed_reason, sizeof(i.malformed_reason), "status is \"hibernating\"");
    if (w->scenario.has_volumes && sim_provider_volume(w, i.storage.claim_name) != NULL)
        SIM_TRACE(w, "somebody writes a malformed record of %s", id);
    sim_store_foreign(w, &i);
}

void sim_fastgpt_activity(struct sim_world *w)
{
    int identity = (int)sim_below(&w->work, (uint64_t)w->scenario.sandboxes);
    char id[SK_SANDBOX_ID_SIZE];
    struct sim_doc *doc;

    sim_sandbox_id(identity, id);
    doc = sim_store_doc(w, id);
    if (doc == NULL || doc->i.malformed || doc->i.status != SK_STATUS_RUNNING || doc->i.has_operation)
        return;
    if (sim_percent(&w->work, 50)) {
        doc->i.last_active_at = sim_wall(w);
        SIM_TRACE(w, "activity of %s", id);
        return;
    }
    doc->i.pin_count = 1;
    sk_copy_cut(doc->i.pins[0].id, sizeof(doc->i.pins[0].id), "editor");
    sk_copy_cut(doc->i.pins[0].kind, sizeof(doc->i.pins[0].kind), "socket");
    doc->i.pins[0].expires_at = sim_wall(w) + sim_between(&w->work, 500, 15000);
    SIM_TRACE(w, "%s is pinned", id);
}
