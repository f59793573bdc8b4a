/* SPDX-License-Identifier: Apache-2.0
 *
 * What a task is given, in one sealed memfd: the host writes it, the task maps it, nobody between them looks inside. */
#ifndef SK_CODE_INPUT_H
#define SK_CODE_INPUT_H

#include "services/code/runtime.h"

/* A new sealed memfd with the task's code, variables, limits and `strict`; tmp_dir and seed are the task's own business
 * and not part of it. Blocking only for the copy. -1 on error: errno. */
int code_input_create(const struct code_task *task);
/* Maps the input for reading and fills *task (pointing into the map, which stays); seed and tmp_dir are left alone.
 * False: not an input, not sealed, or lengths that do not fit. */
SK_MUST_USE bool code_input_map(int fd, struct code_task *task);

#endif
