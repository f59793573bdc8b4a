/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuing operations that somebody else left: because a command meets one, because a sweep found one, because an
 * operator says so (`recover`). */
#include "services/lifecycle/internal.h"

#include <string.h>

bool lc_refused(struct lc_run *run)
{
    const struct sk_instance *record = &run->record;

    if (record->malformed) {
        lc_count(run->replica, LC_COUNT_MALFORMED, 1);
        sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "the document is not as this release knows it: %s",
                record->malformed_reason);
        return true;
    }
    if (run->command != NULL && run->command->has_identity &&
        !sk_identity_equal(&run->command->identity, &record->identity)) {
        sk_fail(&run->err, SK_ERR_IDENTITY_MISMATCH, "this sandbox id belongs to another identity");
        return true;
    }
    return false;
}

enum lc_outcome lc_resume(struct lc_run *run, bool reset)
{
    const struct lc_claim claim = {.type = run->record.operation.type, .reset = reset};

    if (run->provider == NULL) {
        sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "provider \"%s\" is not configured here", run->record.provider);
        return LC_OUTCOME_FAILED;
    }
    /* As at its first claim: a lease that is taken, by whom it overtook perhaps, does not stop a delete. */
    if (lc_lock(run) != 0 && (claim.type != SK_OP_DELETE || run->err.code != SK_ERR_SANDBOX_BUSY))
        return lc_give_up(run);
    switch (claim.type) {
    case SK_OP_PROVISION:
        return lc_run_provision(run, &claim);
    case SK_OP_STOP:
        return lc_run_stop(run, &claim);
    case SK_OP_DELETE:
        /* In its last phase a delete of ours has its deleted event in the record: only publishing and removal are
         * left, both of which may be done twice, so no further claim and no event after the last one. */
        if (run->record.operation.job_id[0] != '\0' && lc_engine_reached(run, "archiveDeleted"))
            return lc_run_delete_tail(run);
        return lc_run_delete(run, &claim);
    default:
        return lc_run_foreign(run);
    }
}

enum lc_outcome lc_continue(struct lc_run *run)
{
    bool own = run->command != NULL && strcmp(run->record.operation.command_id, run->command->id) == 0;
    enum lc_outcome outcome;

    switch (lc_due(run->replica, &run->record)) {
    case LC_DUE_NOW:
        outcome = lc_resume(run, false);
        /* Its end is not the answer, the record is looked at anew; but this command's own operation is shown in it. */
        if (outcome == LC_OUTCOME_DONE && !own)
            run->operation_id[0] = '\0';
        return outcome == LC_OUTCOME_DONE ? LC_OUTCOME_AGAIN : outcome;
    case LC_DUE_BLOCKED:
        sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "%s is blocked: %s", sk_op_name(run->record.operation.type),
                run->record.operation.blocked);
        return LC_OUTCOME_FAILED;
    default:
        lc_set_busy(run);
        if (run->record.operation.owner[0] == '\0' && run->record.operation.job_id[0] != '\0') {
            run->wake_ms = lc_attempt_in_ms(run->replica, &run->record);
            return LC_OUTCOME_RETRY;
        }
        return LC_OUTCOME_BUSY;
    }
}

enum lc_outcome lc_op_takeover(struct lc_run *run)
{
    if (lc_read(run) != 0)
        return lc_give_up(run);
    if (!run->found || run->provider == NULL || lc_due(run->replica, &run->record) != LC_DUE_NOW)
        return LC_OUTCOME_DONE;
    return lc_resume(run, false);
}

/* ---- recover ------------------------------------------------------------------------------------ */
static enum lc_outcome abandon_provision(struct lc_run *run)
{
    const struct lc_claim claim = {.type = SK_OP_PROVISION, .reset = !run->head->own, .reason = "abandoned"};
    struct sk_error cause = {.code = SK_OK};
    enum lc_outcome outcome;

    if (lc_recall(run) != 0)
        return lc_give_up(run);
    if (!lc_pick_head(run))
        return LC_OUTCOME_DONE;
    if (lc_lock(run) != 0)
        return lc_give_up(run);
    if (lc_engine_claim(run, &claim) != 0)
        return lc_operation_failed(run);
    sk_fail(&cause, SK_ERR_OPERATION_BLOCKED, "abandoned by an operator");
    outcome = lc_undo_provision(run, &cause);
    /* The operation failed, as was asked for: the command did not. */
    return outcome == LC_OUTCOME_FAILED && (!run->found || !run->record.has_operation) ? LC_OUTCOME_DONE : outcome;
}

static bool alive(struct lc_run *run)
{
    const struct sk_operation *op = &run->record.operation;

    if (op->blocked[0] != '\0')
        return false;
    if (op->job_id[0] != '\0' && op->owner[0] == '\0')
        return false; /* waits for its next attempt: recover means now */
    return lc_due(run->replica, &run->record) == LC_DUE_NO;
}

enum lc_outcome lc_op_recover(struct lc_run *run)
{
    const bool abandon = run->command->params.abandon;

    for (int round = 0; round < LC_ROUNDS_MAX; round++) {
        enum lc_outcome outcome;
        bool blocked;

        if (lc_read(run) != 0)
            return lc_give_up(run);
        if (!run->found) {
            /* An abandoned provision or a retried delete may have removed it: then that is the answer. */
            if (run->operation_id[0] != '\0' || run->head->own)
                return LC_OUTCOME_DONE;
            sk_fail(&run->err, SK_ERR_SANDBOX_NOT_FOUND, "there is no sandbox to recover");
            return LC_OUTCOME_FAILED;
        }
        if (lc_refused(run))
            return LC_OUTCOME_FAILED;
        if (!run->record.has_operation)
            return LC_OUTCOME_DONE;
        if (alive(run)) {
            lc_set_busy(run);
            return LC_OUTCOME_BUSY;
        }
        blocked = run->record.operation.blocked[0] != '\0';
        /* The tries start again once, not each time this command looks again. */
        if (run->head->own && blocked)
            return lc_continue(run);
        if (blocked)
            lc_count(run->replica, LC_COUNT_UNBLOCKED, 1);
        if (abandon && run->record.operation.type == SK_OP_PROVISION)
            outcome = run->provider != NULL ? abandon_provision(run) : lc_resume(run, true);
        else
            outcome = lc_resume(run, !run->head->own);
        if (outcome != LC_OUTCOME_AGAIN || lc_job_cancelled(run->job) != LC_CANCEL_NONE)
            return outcome;
    }
    return LC_OUTCOME_AGAIN;
}
