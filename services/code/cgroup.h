/* SPDX-License-Identifier: Apache-2.0
 *
 * Control groups where they can be written: one group per slot below one of the launcher's, for memory and processes.
 */
#ifndef SK_CODE_CGROUP_H
#define SK_CODE_CGROUP_H

#include "services/code/control.h"

struct code_cgroup {
    int version;                /* 0 = none, 1, 2 */
    char memory[CODE_PATH_MAX]; /* the launcher's folder (v2: for both) */
    char pids[CODE_PATH_MAX];   /* v1 only, "" = none */
};

/* One slot's group, by descriptors, so that it works after the root was changed; all -1 = none. */
struct code_cgroup_slot {
    int join, join_pids; /* cgroup.procs */
    int limit;           /* memory.max or memory.limit_in_bytes */
    int swap;            /* v2: memory.swap.max; v1: memory.memsw.limit_in_bytes */
    int events;          /* v2: memory.events; v1: memory.oom_control */
    int64_t ooms;        /* its count of kills when it was last looked at */
};

/* Launcher, once, blocking: makes the folder. version 0 when there is nothing to write. `tag` keeps two launchers
 * apart. */
void code_cgroup_prepare(struct code_cgroup *out, const char *tag);
/* Launcher: removes it and its slots; they must be empty. */
void code_cgroup_remove(const struct code_cgroup *group);
/* Zygote, before its root is changed: makes and opens the group of one slot (named by its uid). False: the machine has
 * changed its mind; errno. */
SK_MUST_USE bool code_cgroup_slot_open(int version, const char *memory, unsigned uid, struct code_cgroup_slot *out);
/* Zygote, before a task: sets its limit. Harmless without a group. */
SK_MUST_USE bool code_cgroup_slot_limit(int version, struct code_cgroup_slot *slot, int64_t bytes);
/* Task: enters. Async-signal-safe. */
SK_MUST_USE bool code_cgroup_slot_join(const struct code_cgroup_slot *slot);
/* Zygote, after a task: did the group kill since the last look? */
bool code_cgroup_slot_oom(int version, struct code_cgroup_slot *slot);

#endif
