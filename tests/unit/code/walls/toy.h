/* SPDX-License-Identifier: Apache-2.0
 *
 * A language whose only purpose is to attack the walls. A program is lines of one command each, run in order; the
 * result is a frame of lines "command: answer". Names of answers are errno's ("EPERM") or "ok". */
#ifndef SK_TEST_CODE_TOY_H
#define SK_TEST_CODE_TOY_H

#include "services/code/kind.h"

extern const struct code_kind toy_kind;         /* "toy": like Python, files and a /tmp */
extern const struct code_kind toy_bare_kind;    /* "toy-bare": like JavaScript, nothing at all */
extern const struct code_kind toy_naked_kind;   /* "toy-naked": without the filter, to see the walls behind it */
extern const struct code_kind toy_greedy_kind;  /* "toy-greedy": asks for a call that no task may have */
extern const struct code_kind toy_threads_kind; /* "toy-threads": leaves a second thread behind */

#endif
