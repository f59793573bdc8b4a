/* SPDX-License-Identifier: Apache-2.0
 *
 * What this release does not do yet: archive, restore, converge, and the transitional states that only FastGPT's own
 * code writes. Commands are answered with the reason; records that FastGPT left behind are recovered where that is safe
 * and shown as blocked where it is not. */
#include "services/lifecycle/internal.h"

#include <string.h>

static enum lc_outcome not_available(struct lc_run *run, const char *what)
{
    sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "%s is not available in this release", what);
    return LC_OUTCOME_FAILED;
}

enum lc_outcome lc_op_pending(struct lc_run *run)
{
    const struct lc_params *params = &run->command->params;

    if (lc_read(run) != 0)
        return lc_give_up(run);
    if (!run->found) {
        sk_fail(&run->err, SK_ERR_SANDBOX_NOT_FOUND, "there is no sandbox to %s", lc_verb_name(run->command->verb));
        return LC_OUTCOME_FAILED;
    }
    if (lc_refused(run))
        return LC_OUTCOME_FAILED;
    switch (run->command->verb) {
    case LC_VERB_ARCHIVE:
        if (run->record.status == SK_STATUS_ARCHIVED ||
            (params->if_idle_since != 0 && run->record.last_active_at > params->if_idle_since))
            return LC_OUTCOME_DONE;
        return not_available(run, "archiving");
    case LC_VERB_RESTORE:
        return run->record.status == SK_STATUS_RUNNING ? LC_OUTCOME_DONE : not_available(run, "restoring");
    case LC_VERB_CONVERGE:
        return not_available(run, "convergence");
    default: /* ensure of an archived record: never silently a fresh, empty sandbox */
        return not_available(run, "restoring an archived sandbox");
    }
}

/* FastGPT stopped between its claim and its first effect: nothing happened yet, the record goes back. */
static enum lc_outcome undo_legacy_migration(struct lc_run *run)
{
    const struct lc_claim claim = {.type = SK_OP_LEGACY_MIGRATION, .reason = "left behind in its first phase"};
    const struct lc_claim removal = {.type = SK_OP_DELETE, .reason = "left behind in its first phase"};
    enum sk_status previous = run->record.operation.previous_status;
    struct sk_error cause = {.code = SK_OK};

    if (previous == SK_STATUS_NONE)
        return lc_run_delete(run, &removal);
    if (lc_engine_claim(run, &claim) != 0)
        return lc_operation_failed(run);
    sk_fail(&cause, SK_ERR_OPERATION_BLOCKED, "legacy migration was left behind in its first phase");
    if (lc_engine_compensate(run, previous, &cause) != 0)
        return lc_operation_failed(run);
    return LC_OUTCOME_DONE;
}

enum lc_outcome lc_run_foreign(struct lc_run *run)
{
    const struct sk_operation *op = &run->record.operation;
    const struct lc_claim claim = {.type = op->type, .reason = "left behind, and not available in this release"};
    const char *what = op->type == SK_OP_ARCHIVE   ? "archiving"
                       : op->type == SK_OP_RESTORE ? "restoring"
                                                   : "legacy migration";

    if (op->blocked[0] != '\0')
        return not_available(run, what); /* `recover` cannot do more either */
    if (op->type == SK_OP_LEGACY_MIGRATION && strcmp(op->phase, sk_op_info(op->type)->phases[0].name) == 0)
        return undo_legacy_migration(run);
    if (lc_engine_claim(run, &claim) != 0)
        return lc_operation_failed(run);
    (void)not_available(run, what);
    if (lc_engine_block(run, &run->err) != 0)
        return lc_operation_failed(run);
    return not_available(run, what);
}
