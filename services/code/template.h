/* SPDX-License-Identifier: Apache-2.0
 *
 * The template: loads a language once and forks zygotes of it when the launcher asks. Executed afresh every some
 * minutes. */
#ifndef SK_CODE_TEMPLATE_H
#define SK_CODE_TEMPLATE_H

#include "services/code/kind.h"

#define CODE_TEMPLATE_FD 3 /* its socket to the launcher */

/* Serves one kind until the launcher's socket closes; returns an exit status. `modules` is NULL-terminated. Blocking.
 */
int code_template_run(const struct code_kind *kind, int launcher, const char *const *modules);
/* The main function of a language's program: `program KIND [MODULE…]`, the socket at CODE_TEMPLATE_FD, an environment
 * that holds only what the kind's engine wants. Nothing in it is a secret. */
int code_template_main(int argc, char **argv, const struct code_kind *const *kinds, size_t count);

#endif
