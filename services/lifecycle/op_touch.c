/* SPDX-License-Identifier: Apache-2.0
 *
 * touch: activity on a running sandbox, so that it is not stopped as idle. In every other state nothing happens. */
#include "services/lifecycle/internal.h"

enum lc_outcome lc_op_touch(struct lc_run *run)
{
    for (int round = 0; round < LC_ROUNDS_MAX; round++) {
        if (lc_read(run) != 0)
            return lc_give_up(run);
        if (!run->found) {
            sk_fail(&run->err, SK_ERR_SANDBOX_NOT_FOUND, "there is no sandbox to touch");
            return LC_OUTCOME_FAILED;
        }
        if (lc_refused(run))
            return LC_OUTCOME_FAILED;
        if (run->record.status != SK_STATUS_RUNNING)
            return LC_OUTCOME_DONE;
        if (lc_engine_touch(run) == 0)
            return LC_OUTCOME_DONE;
        /* The record moved on between the look and the write: look again. */
        if (run->err.code != SK_ERR_LOST_OWNERSHIP)
            return lc_give_up(run);
    }
    return LC_OUTCOME_AGAIN;
}
