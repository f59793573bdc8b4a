/* SPDX-License-Identifier: Apache-2.0
 *
 * A user namespace for the whole tree, where the launcher may not mount but may give itself uids (a container with uid
 * 0 and CAP_SETUID, CAP_SETGID, CAP_SETFCAP, no CAP_SYS_ADMIN, user namespaces allowed): in it level `full` can be had.
 */
#ifndef SK_CODE_USERNS_H
#define SK_CODE_USERNS_H

#include "common/base/error.h"

/* The calling process becomes uid 0 of a new user namespace that has itself and `count` uids and gids from `base` on,
 * under the same numbers. For good. Single-threaded callers; forks and waits. Errors: internal; the process is then
 * still where it was, or (when the uids could not be mapped) without any privilege: *lost. */
SK_MUST_USE int code_userns_enter(uint32_t base, uint32_t count, bool *lost, struct sk_error *err);

#endif
