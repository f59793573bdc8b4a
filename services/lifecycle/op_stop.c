/* SPDX-License-Identifier: Apache-2.0
 *
 * stop: running -> stopping -> stopped. The compute goes, the volume stays. Also the idle stop, which loses to every
 * activity, and the settling of provider objects that a finished operation left behind. */
#include "services/lifecycle/internal.h"

#include <string.h>

enum lc_outcome lc_run_stop(struct lc_run *run, const struct lc_claim *claim)
{
    if (lc_engine_claim(run, claim) != 0)
        return lc_operation_failed(run);
    if (!lc_engine_reached(run, "providerStopped")) {
        if (lc_remote_remove(run) != 0)
            return lc_operation_failed(run);
        if (SK_FAULT(PROVIDER_REMOVED, sk_op_name(SK_OP_STOP))) {
            sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
            return lc_operation_failed(run);
        }
        if (lc_engine_phase(run, "providerStopped") != 0)
            return lc_operation_failed(run);
    }
    if (lc_engine_finish(run, false, NULL) != 0)
        return lc_operation_failed(run);
    lc_quota_release(run, run->record.team_id);
    return LC_OUTCOME_DONE;
}

static bool used_since(const struct lc_run *run, int64_t if_idle_since)
{
    return if_idle_since != 0 && run->record.last_active_at > if_idle_since;
}

/* Pins hold off a stop that is about idleness, never one that was asked for. */
static bool too_active(struct lc_run *run, int64_t idle_since)
{
    return run->record.last_active_at > idle_since || sk_instance_pinned(&run->record, sk_wall_ms(run->replica->sched));
}

static enum lc_outcome stop_running(struct lc_run *run)
{
    const struct lc_params *params = &run->command->params;
    const struct lc_claim claim = {.type = SK_OP_STOP, .if_idle = params->if_idle_since != 0};

    if (params->if_idle_since != 0 && too_active(run, params->if_idle_since))
        return LC_OUTCOME_DONE;
    if (run->provider == NULL) {
        sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "provider \"%s\" is not configured here", run->record.provider);
        return LC_OUTCOME_FAILED;
    }
    if (lc_recall(run) != 0)
        return lc_give_up(run);
    if (!lc_pick_head(run))
        return LC_OUTCOME_DONE;
    if (lc_lock(run) != 0)
        return lc_give_up(run);
    return lc_run_stop(run, &claim);
}

enum lc_outcome lc_op_stop(struct lc_run *run)
{
    for (int round = 0; round < LC_ROUNDS_MAX; round++) {
        enum lc_outcome outcome;

        if (lc_read(run) != 0)
            return lc_give_up(run);
        if (!run->found) {
            sk_fail(&run->err, SK_ERR_SANDBOX_NOT_FOUND, "there is no sandbox to stop");
            return LC_OUTCOME_FAILED;
        }
        if (lc_refused(run))
            return LC_OUTCOME_FAILED;
        if (run->record.status == SK_STATUS_RUNNING)
            outcome = stop_running(run);
        else if (!run->record.has_operation || used_since(run, run->command->params.if_idle_since))
            return LC_OUTCOME_DONE; /* nothing runs, or somebody needs what is being started */
        else
            outcome = lc_continue(run);
        if (outcome != LC_OUTCOME_AGAIN || lc_job_cancelled(run->job) != LC_CANCEL_NONE)
            return outcome;
    }
    return LC_OUTCOME_AGAIN;
}

enum lc_outcome lc_op_idle_stop(struct lc_run *run)
{
    const struct lc_claim claim = {.type = SK_OP_STOP, .if_idle = true, .reason = "idle"};
    int64_t idle_since = sk_wall_ms(run->replica->sched) - run->replica->settings.idle_stop_ms;
    enum lc_outcome outcome;

    if (lc_read(run) != 0)
        return lc_give_up(run);
    if (!run->found || run->record.malformed || run->record.status != SK_STATUS_RUNNING || run->provider == NULL ||
        too_active(run, idle_since))
        return LC_OUTCOME_DONE;
    if (lc_lock(run) != 0)
        return lc_give_up(run);
    outcome = lc_run_stop(run, &claim);
    if (outcome == LC_OUTCOME_DONE)
        lc_count(run->replica, LC_COUNT_IDLE_STOPS, 1);
    else if (outcome == LC_OUTCOME_AGAIN && run->operation_id[0] == '\0')
        lc_count(run->replica, LC_COUNT_IDLE_STOPS_FENCED, 1);
    return outcome;
}

enum lc_outcome lc_op_settle(struct lc_run *run)
{
    int64_t keep = -1 /* nothing may be left of a sandbox that does not run */, highest = 0;
    enum lc_sight sight;

    if (lc_read(run) != 0 || lc_lock(run) != 0)
        return lc_give_up(run);
    /* Read again under the lease: whoever holds it next makes sure of the provider by itself. */
    if (lc_read(run) != 0)
        return lc_give_up(run);
    if (!run->found)
        return lc_remote_remove_orphans(run) == 0 ? LC_OUTCOME_DONE : lc_give_up(run);
    if (run->record.malformed || run->record.has_operation || run->provider == NULL)
        return LC_OUTCOME_DONE;
    if (lc_remote_look(run, &sight) != 0)
        return lc_give_up(run);
    for (int i = 0; i < run->remote_count; i++) {
        int64_t epoch = run->remotes[i].epoch;

        highest = epoch > highest ? epoch : highest;
        if (run->record.status == SK_STATUS_RUNNING && epoch <= lc_life_epoch(&run->record) && epoch > keep)
            keep = epoch;
    }
    if (run->record.status == SK_STATUS_RUNNING && keep < 0)
        return LC_OUTCOME_DONE; /* nothing that is this record's: the next ensure repairs it */
    /* A record that FastGPT made again: above its former life, too, or two lives would share epochs. */
    if (highest > run->record.epoch && run->record.epoch == 0) {
        if (lc_engine_former_life(run, NULL) != 0)
            return lc_give_up(run);
        highest = run->epoch_floor > highest ? run->epoch_floor : highest;
    }
    if (highest > run->record.epoch && lc_engine_raise_epoch(run, highest) != 0)
        return lc_give_up(run);
    return lc_remote_settle(run, keep) == 0 ? LC_OUTCOME_DONE : lc_give_up(run);
}
