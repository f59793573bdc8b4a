/* SPDX-License-Identifier: Apache-2.0
 *
 * The empty folder that becomes the root of zygotes at level full: one per launcher, below the run folder, and gone
 * with it. A killed launcher leaves its own; the next one takes it away. Whose launcher lives is told by a lock and not
 * by a pid: a pid may be a zombie's, another program's, or of another pid namespace that shares the run folder. */
#ifndef SK_CODE_ROOT_H
#define SK_CODE_ROOT_H

#include "services/code/control.h"

struct sk_error;

struct code_root {
    char path[CODE_PATH_MAX]; /* "" = none */
    int lock;                 /* -1 = none */
};

/* Launcher, once, blocking: takes away what killed ones left and makes its own. On failure `out` holds nothing. */
SK_MUST_USE int code_root_make(const char *run_dir, struct code_root *out, struct sk_error *err);
/* Removes it; nothing when there is none. */
void code_root_remove(struct code_root *root);

#endif
