/* SPDX-License-Identifier: Apache-2.0
 *
 * ensure: whatever leads to `running`: create, start, repair, or wait (contract/lifecycle.md §3). A running sandbox is
 * answered without any lease: one compare-and-set that notes the activity, one look at the provider. */
#include "services/lifecycle/internal.h"

#include <stdio.h>
#include <string.h>

/* The source must still exist: a sandbox of a deleted App is not started again. Its team is the quota's. */
static int check_source(struct lc_run *run, const struct sk_identity *identity, char team_id[SK_TEAM_ID_SIZE])
{
    const struct sk_store *store = run->replica->seams.store;
    struct sk_source_state state;

    memset(&state, 0, sizeof(state));
    if (store->ops->source_state(store->self, lc_commit_call(run), identity, &state, &run->err) != 0)
        return -1;
    if (!state.active) /* deleted, or not there in a collection that exists */
        return sk_fail(&run->err, SK_ERR_SOURCE_MISSING, "the %s is missing or deleted",
                       sk_source_type_name(identity->source_type));
    if (team_id[0] == '\0' && state.known)
        memcpy(team_id, state.team_id, SK_TEAM_ID_SIZE);
    return 0;
}

/* ---- there is no record ------------------------------------------------------------------------- */
static void new_oid(const struct sk_sched *sched, char out[25])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[12];
    uint32_t seconds = (uint32_t)(sk_wall_ms(sched) / 1000);

    sk_random(sched, bytes, sizeof(bytes));
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(seconds >> (24 - 8 * i));
    for (int i = 0; i < 12; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[24] = '\0';
}

static int fill_storage(struct lc_run *run, struct sk_instance *fresh, bool lived)
{
    const struct lc_settings *s = &run->replica->settings;
    char generation[9] = "0";

    if (!run->provider->ops->has_volumes)
        return 0;
    if (lived) {
        uint32_t chance;

        sk_random(run->replica->sched, &chance, sizeof(chance));
        snprintf(generation, sizeof(generation), "%08x", chance);
    }
    if (!sk_claim_name(fresh->storage.claim_name, s->volume_prefix, fresh->sandbox_id, generation))
        return sk_fail(&run->err, SK_ERR_INVALID_REQUEST, "the volume prefix does not make a valid name");
    fresh->storage.present = true;
    memcpy(fresh->storage.volume_name, "workspace", sizeof("workspace"));
    memcpy(fresh->storage.volume_mount_path, s->mount_path, sizeof(fresh->storage.volume_mount_path));
    memcpy(fresh->storage.mount_path, s->mount_path, sizeof(fresh->storage.mount_path));
    return 0;
}

static int fill_fresh(struct lc_run *run, struct sk_instance *fresh, bool lived)
{
    const struct lc_settings *s = &run->replica->settings;
    const struct lc_params *params = &run->command->params;

    memset(fresh, 0, sizeof(*fresh));
    new_oid(run->replica->sched, fresh->oid);
    sk_copy_cut(fresh->provider, sizeof(fresh->provider), run->provider->ops->name);
    memcpy(fresh->sandbox_id, run->job->sandbox_id, sizeof(fresh->sandbox_id));
    fresh->identity = run->command->identity;
    fresh->created_at = fresh->last_active_at = sk_wall_ms(run->replica->sched);
    fresh->limit = s->default_limit;
    fresh->limit.present = true;
    if (params->limit.cpu_count > 0)
        fresh->limit.cpu_count = params->limit.cpu_count;
    if (params->limit.memory_mib > 0)
        fresh->limit.memory_mib = params->limit.memory_mib;
    if (params->limit.storage_size[0] != '\0')
        memcpy(fresh->limit.storage_size, params->limit.storage_size, sizeof(fresh->limit.storage_size));
    memcpy(fresh->team_id, params->team_id, sizeof(fresh->team_id));
    memcpy(fresh->version_id, params->version_id, sizeof(fresh->version_id));
    fresh->image = params->image.present ? params->image : s->default_image;
    return fill_storage(run, fresh, lived);
}

/* The insert was refused although there is no record of this sandbox: the identity, or an id that hashes alike, is
 * taken under another sandbox id. */
static enum lc_outcome insert_refused(struct lc_run *run)
{
    const struct sk_store *store = run->replica->seams.store;

    run->insert_refused = false;
    if (store->ops->find(store->self, lc_commit_call(run), &run->command->identity, &run->record, &run->found,
                         &run->err) != 0)
        return lc_give_up(run);
    if (!run->found || strcmp(run->record.sandbox_id, run->job->sandbox_id) == 0)
        return LC_OUTCOME_AGAIN;
    run->found = false;
    sk_fail(&run->err, SK_ERR_IDENTITY_MISMATCH, "this identity has a record of another sandbox id");
    return LC_OUTCOME_FAILED;
}

static enum lc_outcome create(struct lc_run *run)
{
    const struct lc_command *command = run->command;
    struct sk_instance *fresh = &run->record; /* nothing is read into it until the claim */
    const struct lc_claim claim = {.type = SK_OP_PROVISION, .fresh = fresh};
    enum lc_outcome outcome;
    bool lived;

    if (!command->has_identity) {
        sk_fail(&run->err, SK_ERR_INVALID_REQUEST, "source is required to create a sandbox");
        return LC_OUTCOME_FAILED;
    }
    run->provider = lc_provider(run->replica, command->params.provider);
    if (run->provider == NULL) {
        sk_fail(&run->err, SK_ERR_INVALID_REQUEST, "provider \"%s\" is not configured here", command->params.provider);
        return LC_OUTCOME_FAILED;
    }
    if (lc_lock_source(run, &command->identity) != 0 || lc_lock(run) != 0 || lc_engine_former_life(run, &lived) != 0)
        return lc_give_up(run);
    /* It was there once. A command that made it then, came again and waited here, must not bring it back: its result
     * was stored before anybody could ask for the delete. Under the lease nobody deletes it meanwhile. */
    if (lived) {
        if (lc_look_up_again(run) != 0)
            return lc_give_up(run);
        if (!lc_pick_head(run))
            return LC_OUTCOME_DONE;
        command = run->command;
    }
    if (fill_fresh(run, fresh, lived) != 0 || check_source(run, &command->identity, fresh->team_id) != 0 ||
        lc_quota_reserve(run, fresh->team_id) != 0)
        return lc_give_up(run);
    outcome = lc_run_provision(run, &claim);
    return outcome == LC_OUTCOME_AGAIN && run->insert_refused ? insert_refused(run) : outcome;
}

/* ---- there is one ------------------------------------------------------------------------------- */
/* Another image or provider than the recorded one would be converge: not in this release. */
static bool diverges(struct lc_run *run)
{
    const struct lc_params *params = &run->command->params;
    const struct sk_instance *record = &run->record;
    bool image = params->image.present &&
                 (!record->image.present || strcmp(params->image.repository, record->image.repository) != 0 ||
                  strcmp(params->image.tag, record->image.tag) != 0);
    bool provider = params->provider[0] != '\0' && strcmp(params->provider, record->provider) != 0;

    if (!image && !provider)
        return false;
    sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED,
            "the sandbox has another %s; convergence is not available in this release",
            provider ? "provider" : "image");
    return true;
}

static enum lc_outcome start(struct lc_run *run, const char *reason)
{
    char team_id[SK_TEAM_ID_SIZE];
    const struct lc_claim claim = {.type = SK_OP_PROVISION, .reason = reason, .team_id = team_id};

    if (run->provider == NULL) {
        sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "provider \"%s\" is not configured here", run->record.provider);
        return LC_OUTCOME_FAILED;
    }
    memcpy(team_id, run->record.team_id, sizeof(team_id));
    if (lc_lock(run) != 0 || check_source(run, &run->record.identity, team_id) != 0 ||
        lc_quota_reserve(run, team_id) != 0)
        return lc_give_up(run);
    return lc_run_provision(run, &claim);
}

/* The record says running, the provider has nothing: stop what is not there, then start. */
static enum lc_outcome repair(struct lc_run *run)
{
    const struct lc_claim claim = {.type = SK_OP_STOP, .reason = "remote_missing"};
    struct sk_identity identity = run->record.identity;
    enum lc_outcome outcome;
    enum lc_sight sight;

    if (lc_lock_source(run, &identity) != 0 || lc_lock(run) != 0 || lc_read(run) != 0)
        return lc_give_up(run);
    if (!run->found || run->record.malformed || run->record.status != SK_STATUS_RUNNING)
        return LC_OUTCOME_AGAIN;
    if (lc_remote_look(run, &sight) != 0)
        return lc_give_up(run);
    if (sight != LC_SIGHT_MISSING)
        return LC_OUTCOME_AGAIN;
    lc_count(run->replica, LC_COUNT_REPAIRS, 1);
    SK_LOG_WARN("running sandbox is missing at its provider and is started again",
                SK_F("sandboxId", run->record.sandbox_id), SK_FI("epoch", run->record.epoch));
    run->keep_quota = true;
    outcome = lc_run_stop(run, &claim);
    return outcome == LC_OUTCOME_DONE ? start(run, "remote_missing") : outcome;
}

static enum lc_outcome use_running(struct lc_run *run)
{
    enum lc_sight sight;

    if (lc_engine_touch(run) != 0 || lc_remote_look(run, &sight) != 0)
        return lc_give_up(run);
    if (sight == LC_SIGHT_RUNNING)
        return LC_OUTCOME_DONE;
    if (sight == LC_SIGHT_NOT_READY)
        return lc_remote_wake(run) == 0 ? LC_OUTCOME_DONE : lc_give_up(run);
    return repair(run);
}

enum lc_outcome lc_op_ensure(struct lc_run *run)
{
    for (int round = 0; round < LC_ROUNDS_MAX; round++) {
        enum lc_outcome outcome;

        if (lc_read(run) != 0)
            return lc_give_up(run);
        if (run->found && (lc_refused(run) || (run->record.status != SK_STATUS_DELETING && diverges(run))))
            return LC_OUTCOME_FAILED;
        if (!run->found)
            outcome = create(run);
        else if (run->record.status == SK_STATUS_RUNNING)
            outcome = use_running(run);
        else if (run->record.status == SK_STATUS_STOPPED)
            outcome = start(run, NULL);
        else if (run->record.has_operation)
            outcome = lc_continue(run);
        else
            return lc_op_pending(run); /* archived */
        if (outcome != LC_OUTCOME_AGAIN || lc_job_cancelled(run->job) != LC_CANCEL_NONE)
            return outcome;
    }
    return LC_OUTCOME_AGAIN;
}
