/* SPDX-License-Identifier: Apache-2.0
 *
 * The self-test: a real zygote with real tasks that try to cross each wall. What a level promises is what was measured.
 */
#ifndef SK_CODE_SELFTEST_H
#define SK_CODE_SELFTEST_H

#include "services/code/cgroup.h"
#include "services/code/control.h"

/* X(name, text, lowest level that must have it) */
#define SK_CODE_WALLS(X)                                                                                               \
    X(IDENTITY, "an own uid, no way back, no capability", CODE_LEVEL_CONTAINER)                                        \
    X(FILES, "no file of the machine can be opened", CODE_LEVEL_SHARED_UID)                                            \
    X(PROC, "no /proc", CODE_LEVEL_SHARED_UID)                                                                         \
    X(ROOT, "nothing can be written outside of its folder", CODE_LEVEL_SHARED_UID)                                     \
    X(TMP, "its /tmp is writable and limited", CODE_LEVEL_FULL)                                                        \
    X(SIGNAL_OUT, "no process outside can be signalled", CODE_LEVEL_SHARED_UID)                                        \
    X(SIGNAL_TASK, "no other task can be signalled", CODE_LEVEL_SHARED_UID)                                            \
    X(NETWORK, "no network", CODE_LEVEL_FULL)                                                                          \
    X(ABSTRACT, "no abstract socket outside", CODE_LEVEL_FULL)                                                         \
    X(IPC, "no System V object outside", CODE_LEVEL_FULL)                                                              \
    X(MOUNT, "no mount, no chroot, no namespace of others", CODE_LEVEL_SHARED_UID)                                     \
    X(MEMORY, "no more memory than its budget", CODE_LEVEL_SHARED_UID)                                                 \
    X(PROCESSES, "no process of its own", CODE_LEVEL_CONTAINER)                                                        \
    X(DESCRIPTORS, "no descriptor but its own", CODE_LEVEL_SHARED_UID)                                                 \
    X(PRIVILEGES, "no new privileges, not dumpable", CODE_LEVEL_SHARED_UID)                                            \
    X(CALLS, "no call that is not listed", CODE_LEVEL_SHARED_UID)                                                      \
    X(SHARED_MAP, "no shared memory", CODE_LEVEL_SHARED_UID)                                                           \
    X(CODE_MAP, "no executable memory", CODE_LEVEL_SHARED_UID)

enum code_wall {
#define X(name, text, level) CODE_WALL_##name,
    SK_CODE_WALLS(X)
#undef X
        CODE_WALL_COUNT
};

#define CODE_CANARY_PREFIX "sandkeep-code-canary-" /* and the pid of the one that made it */

struct code_selftest {
    enum code_level level;
    enum code_level demands; /* the level whose walls are wanted; NONE = `level` */
    const struct code_cgroup *cgroup;
    const char *root;       /* as for real zygotes of this level */
    const char *canary_dir; /* writable, outside of it: for a file that no task may read */
    uint32_t uid_base;      /* two uids from here on */
};

/* Launcher, blocking for some 100 ms. *crossed gets a bit for each wall that was crossed at this level though the level
 * needs it. -1: the zygote or a task could not even be built (err says why). 0 and *crossed == 0: the level holds. */
SK_MUST_USE int code_selftest_run(const struct code_selftest *test, uint64_t *crossed, struct sk_error *err);
const char *code_wall_text(enum code_wall wall);

#endif
