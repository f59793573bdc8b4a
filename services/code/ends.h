/* SPDX-License-Identifier: Apache-2.0
 *
 * Why a task ended: one pure function (contract/code.md §3, §4). */
#ifndef SK_CODE_ENDS_H
#define SK_CODE_ENDS_H

#include "services/code/control.h"

#define CODE_MEMORY_PERCENT 70 /* an abnormal end with this much of the budget in use was the budget's fault */

struct code_ending {
    int status;  /* of wait4 */
    bool killed; /* by the zygote, for the reason `cause` */
    enum code_end cause;
    bool walls;         /* every wall stood: the task's code was reached */
    bool cpu_out;       /* it has used its processor time */
    bool oom;           /* its control group killed it */
    bool leftover;      /* a process of its uid was still there after it */
    int64_t peak_bytes; /* beyond the zygote's own */
    int64_t budget_bytes;
};

enum code_end code_end_of(const struct code_ending *ending);

#endif
