/* SPDX-License-Identifier: Apache-2.0
 *
 * One task: what the template prepares for it, and what the child runs. */
#ifndef SK_CODE_PYTHON_TASK_H
#define SK_CODE_PYTHON_TASK_H

#include "services/code/python/internal.h"

/* Makes `handler` what Python runs for SIGALRM; what the kernel calls is set in the child. Template. */
bool python_timer_init(PyObject *handler);
/* Compiles, binds, calls and encodes a few small tasks, of which nothing stays. Template. */
bool python_warm_up(void);
/* code_runtime.run: ends the process itself, after its frame. */
void python_run(const struct code_task *task, const struct code_channel *channel);

#endif
