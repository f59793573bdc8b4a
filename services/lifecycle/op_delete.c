/* SPDX-License-Identifier: Apache-2.0
 *
 * delete: any state -> deleting -> no record. Delete wins: the tombstone is one compare-and-set with a new epoch, even
 * over an operation that is alive; the effects come after it, the record goes last, after its deleted event was
 * published (design/beyond.md, Lifecycle 8). */
#include "services/lifecycle/internal.h"

#include <string.h>

#define LEASE_POLL_MS 50

static int remove_volume(struct lc_run *run)
{
    const char *claim = run->record.storage.claim_name;

    if (claim[0] == '\0')
        return 0;
    if (lc_engine_guard(run) != 0)
        return -1;
    if (run->provider->ops->volume_remove(run->provider->self, run->call, claim, &run->err) != 0)
        return sk_fail_context(&run->err, "cannot remove the volume");
    if (SK_FAULT(VOLUME_REMOVED, sk_op_name(SK_OP_DELETE)))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
}

/* The operation that was overtaken may still hold the lease. It is told, and gets the time of one lease to come back
 * from its call; what it still does then is fenced by the epoch. */
static int wait_for_lease(struct lc_run *run)
{
    int64_t end_us = sk_mono_us(run->replica->sched) + run->replica->settings.lease_ttl_ms * 1000;

    if (run->lifecycle.held || run->unlocked)
        return 0;
    run->unlocked = true;
    lc_publish_wake(run->replica);
    while (sk_mono_us(run->replica->sched) < end_us) {
        if (lc_lock(run) == 0) {
            lc_beats_lease(run, &run->lifecycle);
            return 0;
        }
        if (run->err.code == SK_ERR_INTERNAL)
            return -1;
        /* Busy: somebody has it. Away: nothing may go on without asking it (contract/lifecycle.md §4). */
        if (run->err.code == SK_ERR_LEASE_UNAVAILABLE)
            end_us = sk_mono_us(run->replica->sched) + run->replica->settings.lease_ttl_ms * 1000;
        if (lc_engine_guard(run) != 0 || !lc_pause(run, LEASE_POLL_MS))
            return lc_engine_guard(run);
    }
    SK_LOG_WARN("delete goes on without the lease that the overtaken operation still holds",
                SK_F("sandboxId", run->record.sandbox_id), SK_FI("epoch", run->record.epoch));
    return 0;
}

/* What keeps the last event from going out, or the record from going away, is an outage and no fault of the operation:
 * it keeps its tries. By owner it is still this replica's, and the next job goes on here. */
static enum lc_outcome tail_failed(struct lc_run *run)
{
    enum lc_cancel reason = lc_job_cancelled(run->job);

    if (run->err.code == SK_ERR_LOST_OWNERSHIP || lc_stopping(run->replica) ||
        (reason != LC_CANCEL_NONE && reason != LC_CANCEL_DEADLINE))
        return lc_operation_failed(run);
    if (run->err.code == SK_ERR_PROVIDER_TIMEOUT || run->err.code == SK_ERR_CANCELLED)
        sk_fail(&run->err, SK_ERR_STORE_UNAVAILABLE,
                "the last event or the removal of the record did not go through in time");
    lc_engine_forget(run);
    return lc_give_up(run);
}

enum lc_outcome lc_run_delete_tail(struct lc_run *run)
{
    if (wait_for_lease(run) != 0)
        return tail_failed(run);
    do {
        if (lc_relay_flush(run) != 0)
            return tail_failed(run);
        if (SK_FAULT(DELETED_EVENT_PUBLISHED, sk_op_name(SK_OP_DELETE))) {
            sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
            return tail_failed(run);
        }
        if (lc_engine_remove(run) == 0)
            return LC_OUTCOME_DONE;
    } while (run->err.code == SK_ERR_SANDBOX_BUSY);
    return tail_failed(run);
}

enum lc_outcome lc_run_delete(struct lc_run *run, const struct lc_claim *claim)
{
    if (lc_engine_claim(run, claim) != 0 || wait_for_lease(run) != 0)
        return lc_operation_failed(run);
    lc_quota_release(run, run->record.team_id);
    if (lc_engine_reached(run, "archiveDeleted"))
        return lc_run_delete_tail(run);
    if (LC_MUTATE(DELETE_RECORD_FIRST) && lc_relay_flush(run) == 0 && lc_engine_remove(run) == 0)
        return lc_remote_remove(run) == 0 ? LC_OUTCOME_DONE : LC_OUTCOME_FAILED;
    if (!lc_engine_reached(run, "providerDeleted")) {
        if (lc_remote_remove(run) != 0)
            return lc_operation_failed(run);
        if (SK_FAULT(PROVIDER_REMOVED, sk_op_name(SK_OP_DELETE))) {
            sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
            return lc_operation_failed(run);
        }
        if (lc_engine_phase(run, "providerDeleted") != 0)
            return lc_operation_failed(run);
    } else if (!lc_engine_reached(run, "volumeDeleted") && lc_remote_remove(run) != 0) {
        /* Resumed here: a create that was given up may have come through since, and what it made holds the volume. */
        return lc_operation_failed(run);
    }
    if (!lc_engine_reached(run, "volumeDeleted")) {
        if (remove_volume(run) != 0 || lc_engine_phase(run, "volumeDeleted") != 0)
            return lc_operation_failed(run);
    }
    if (run->record.operation.previous_status == SK_STATUS_ARCHIVED)
        SK_LOG_WARN("record deleted while its archive object stays: this release cannot remove archives",
                    SK_F("sandboxId", run->record.sandbox_id));
    if (lc_engine_deleted(run) != 0)
        return lc_operation_failed(run);
    return lc_run_delete_tail(run);
}

static enum lc_outcome delete_record(struct lc_run *run)
{
    const struct lc_claim claim = {.type = SK_OP_DELETE};

    if (run->provider == NULL) {
        sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "provider \"%s\" is not configured here", run->record.provider);
        return LC_OUTCOME_FAILED;
    }
    if (run->record.status == SK_STATUS_DELETING) {
        bool blocked = run->record.operation.blocked[0] != '\0';

        /* Asking again is an operator's or user's decision: the tries of a blocked delete start again, once for this
         * command; and one that FastGPT wrote is continued at once, by its own rule (reference §2.4). */
        if (blocked && !run->head->own) {
            lc_count(run->replica, LC_COUNT_UNBLOCKED, 1);
            return lc_resume(run, true);
        }
        return run->record.operation.job_id[0] == '\0' ? lc_resume(run, false) : lc_continue(run);
    }
    if (lc_recall(run) != 0)
        return lc_give_up(run);
    if (!lc_pick_head(run))
        return LC_OUTCOME_DONE;
    /* A lease that is taken does not stop a delete; a lease service that is away does. */
    if (lc_lock(run) != 0 && run->err.code != SK_ERR_SANDBOX_BUSY)
        return lc_give_up(run);
    if (run->record.has_operation && lc_due(run->replica, &run->record) == LC_DUE_NO)
        lc_count(run->replica, LC_COUNT_DELETE_OVERTOOK, 1);
    return lc_run_delete(run, &claim);
}

enum lc_outcome lc_op_delete(struct lc_run *run)
{
    for (int round = 0; round < LC_ROUNDS_MAX; round++) {
        enum lc_outcome outcome;

        if (lc_read(run) != 0)
            return lc_give_up(run);
        if (!run->found)
            return LC_OUTCOME_DONE;
        if (lc_refused(run))
            return LC_OUTCOME_FAILED;
        outcome = delete_record(run);
        if (outcome != LC_OUTCOME_AGAIN || lc_job_cancelled(run->job) != LC_CANCEL_NONE)
            return outcome;
    }
    return LC_OUTCOME_AGAIN;
}
