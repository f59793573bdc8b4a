/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of an operation whose step failed: lost, called back, handed over, left for a better hour, tried again,
 * blocked, or ended by its compensating phase. The one place for this policy (design/beyond.md, Lifecycle 3 and 4). */
#include "services/lifecycle/internal.h"

#include <string.h>

static enum lc_outcome lost(struct lc_run *run)
{
    const struct sk_error cause = run->err;
    bool ours;

    lc_count(run->replica, LC_COUNT_FENCED_COMMITS, 1);
    lc_ended(run, LC_ENDED_LOST);
    SK_LOG_INFO("operation is not ours any more", SK_F("sandboxId", run->job->sandbox_id),
                SK_F("operationId", run->beat.operation_id), SK_FI("epoch", run->beat.epoch), SK_FE(&cause));
    /* When only the lease was lost the record is still ours: the next claim, right after this, adopts what was made.
     * When the store does not tell, what was made is left to the sweeps. */
    ours = (lc_read(run) != 0 ||
            (run->found && run->record.has_operation && strcmp(run->record.operation.id, run->beat.operation_id) == 0));
    lc_engine_forget(run);
    if (!ours)
        lc_remote_clean_own(run);
    return LC_OUTCOME_AGAIN;
}

static enum lc_outcome hand_over(struct lc_run *run)
{
    if (lc_engine_hand_over(run, 0) == 0) {
        run->handed_over = true;
        lc_count(run->replica, LC_COUNT_HANDED_OVER, 1);
        lc_ended(run, LC_ENDED_HANDED_OVER);
        SK_LOG_INFO("operation handed over", SK_F("sandboxId", run->job->sandbox_id),
                    SK_F("operationId", run->record.operation.id), SK_FI("epoch", run->record.epoch),
                    SK_F("phase", run->record.operation.phase));
    } else {
        SK_LOG_WARN("operation could not be handed over: its heartbeat will fall silent",
                    SK_F("sandboxId", run->job->sandbox_id), SK_FE(&run->err));
    }
    return LC_OUTCOME_CALLED_BACK;
}

static enum lc_outcome try_again_later(struct lc_run *run, const struct sk_error *cause)
{
    bool blocked = false;

    if (lc_engine_retry(run, cause, &blocked) != 0)
        return run->err.code == SK_ERR_LOST_OWNERSHIP ? lost(run) : LC_OUTCOME_OUTAGE;
    SK_LOG_WARN(blocked ? "operation blocked after its last try" : "operation failed and will be tried again",
                SK_F("sandboxId", run->job->sandbox_id), SK_F("operationId", run->record.operation.id),
                SK_FI("epoch", run->record.epoch), SK_F("phase", run->record.operation.phase),
                SK_FI("attempt", run->record.operation.attempt), SK_FI("nextAttemptMs", blocked ? -1 : run->wake_ms),
                SK_FE(cause));
    if (!blocked)
        return LC_OUTCOME_RETRY;
    sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "%s: %s", run->record.operation.blocked, cause->message);
    return LC_OUTCOME_FAILED;
}

/* The cancel flag with its reason; the cause of a timed-out phase is put into run->err. */
static bool called_back(struct lc_run *run, enum lc_outcome *outcome)
{
    switch (lc_job_cancelled(run->job)) {
    case LC_CANCEL_STOP:
        *outcome = LC_OUTCOME_CALLED_BACK;
        return true;
    case LC_CANCEL_DRAIN:
        *outcome = hand_over(run);
        return true;
    case LC_CANCEL_OVERTAKEN:
        /* A delete comes: it claims whatever stands there, and looks at the provider itself. Should it not come, the
         * operation is free after a while: nobody beats for it from here on. */
        *outcome = LC_OUTCOME_AGAIN;
        if (lc_engine_hand_over(run, run->replica->settings.lease_ttl_ms) != 0)
            SK_LOG_DEBUG("overtaken operation not released", SK_F("sandboxId", run->job->sandbox_id), SK_FE(&run->err));
        lc_engine_forget(run);
        lc_remote_clean_own(run);
        return true;
    case LC_CANCEL_DEADLINE:
        sk_fail_unknown(&run->err, SK_ERR_PROVIDER_TIMEOUT, "the step after phase %s did not end in time",
                        run->record.operation.phase);
        return false;
    default:
        return false;
    }
}

enum lc_outcome lc_operation_failed(struct lc_run *run)
{
    struct sk_error cause;
    enum lc_outcome outcome;

    if (lc_stopping(run->replica))
        return LC_OUTCOME_CALLED_BACK;
    if (!run->claimed)
        return lc_give_up(run);
    if (run->err.code == SK_ERR_LOST_OWNERSHIP)
        return lost(run);
    /* A write that was sent and neither confirmed nor seen may arrive at any time: nothing is written over it that it
     * could still be applied to. The next claim, by whoever makes it, fences it. */
    if (run->in_doubt) {
        lc_engine_forget(run);
        return lc_job_cancelled(run->job) == LC_CANCEL_DRAIN ? LC_OUTCOME_CALLED_BACK : LC_OUTCOME_OUTAGE;
    }
    if (lc_job_cancelled(run->job) != LC_CANCEL_NONE && called_back(run, &outcome))
        return outcome;
    switch (run->err.code) {
    case SK_ERR_STORE_UNAVAILABLE:
    case SK_ERR_LEASE_UNAVAILABLE:
        /* No fault of the operation: it keeps its tries. It is still ours by owner, so the next job takes it up at
         * once; if this process dies, the others see its heartbeat fall silent. */
        return LC_OUTCOME_OUTAGE;
    case SK_ERR_SANDBOX_BUSY:
        return LC_OUTCOME_AGAIN;
    case SK_ERR_CANCELLED:
        /* Nobody called this job back: the provider's client gave up by itself. */
        sk_fail_unknown(&run->err, SK_ERR_PROVIDER_TIMEOUT, "the call was given up");
        break;
    default:
        break;
    }
    cause = run->err;
    if (!cause.retryable && run->record.operation.type == SK_OP_PROVISION)
        return lc_undo_provision(run, &cause);
    return try_again_later(run, &cause);
}

enum lc_outcome lc_undo_provision(struct lc_run *run, const struct sk_error *cause)
{
    const struct sk_operation *op = &run->record.operation;
    /* A record of this operation's own making goes away again, unless there is a volume: nobody can prove here that it
     * is empty, and a workspace is never thrown away on the way out of a failure. */
    bool remove = op->previous_status == SK_STATUS_NONE && run->record.storage.claim_name[0] == '\0';
    const struct lc_claim claim = {.type = SK_OP_DELETE, .reason = "provision failed for good", .failed = cause};
    enum lc_outcome outcome;

    SK_LOG_WARN("operation failed for good and is compensated", SK_F("sandboxId", run->job->sandbox_id),
                SK_F("operationId", op->id), SK_FI("epoch", run->record.epoch), SK_FE(cause));
    if (lc_remote_remove(run) != 0)
        goto failed;
    if (remove) {
        lc_engine_forget(run);
        outcome = lc_run_delete(run, &claim);
        if (outcome != LC_OUTCOME_DONE)
            return outcome;
        lc_count(run->replica, LC_COUNT_COMPENSATED, 1);
    } else {
        if (lc_engine_compensate(run, SK_STATUS_STOPPED, cause) != 0)
            goto failed;
        lc_quota_release(run, run->record.team_id);
    }
    run->err = *cause;
    return LC_OUTCOME_FAILED;
failed:
    /* What keeps the compensation from going on counts as a failed try of the operation. */
    if (run->err.code == SK_ERR_LOST_OWNERSHIP)
        return lost(run);
    if (run->in_doubt)
        return LC_OUTCOME_OUTAGE;
    if (lc_job_cancelled(run->job) != LC_CANCEL_NONE && called_back(run, &outcome))
        return outcome;
    if (run->err.code == SK_ERR_STORE_UNAVAILABLE || run->err.code == SK_ERR_LEASE_UNAVAILABLE)
        return LC_OUTCOME_OUTAGE;
    return try_again_later(run, cause);
}
