/* SPDX-License-Identifier: Apache-2.0
 *
 * The attacker of the self-test: a runtime whose task tries to cross every wall. */
#ifndef SK_CODE_PROBE_H
#define SK_CODE_PROBE_H

#include "services/code/kind.h"

#define CODE_PROBE_TMP_BYTES    ((int64_t)4 << 20)
#define CODE_PROBE_MEMORY_BYTES ((int64_t)32 << 20)

/* The code of a task: "victim" (says its pid, then waits to be killed), or "attack" and the rest, split by blanks. */
#define CODE_PROBE_ATTACK                                                                                              \
    "attack %d %d %d %d %255s %63s" /* outside pid, victim pid, port, IPC key, file, socket name */

extern const struct code_kind code_kind_probe;       /* behind the filter */
extern const struct code_kind code_kind_probe_naked; /* without it: a wall must not hide behind another */

#endif
