/* SPDX-License-Identifier: Apache-2.0
 *
 * Landlock: a task sees its own folder and what its kind may read, no TCP port, and nobody outside its domain to
 * signal. A second fence behind root, uid and filter; the only one for files at level `shared-uid`. */
#ifndef SK_CODE_LANDLOCK_H
#define SK_CODE_LANDLOCK_H

#include <stdbool.h>

#define CODE_LANDLOCK_SCOPES 6 /* from this ABI on it also stops signals and abstract sockets */

/* The kernel's ABI, 0 when it has none or does not let us. */
int code_landlock_abi(void);
/* Fences the calling process, which has no new privileges already. `readable` (NULL-terminated, may be NULL) and
 * `writable`
 * ("" = none); what does not exist is left out. Async-signal-safe. False: errno. */
bool code_landlock_enter(int abi, const char *const *readable, const char *writable);

#endif
