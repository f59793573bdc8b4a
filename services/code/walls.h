/* SPDX-License-Identifier: Apache-2.0
 *
 * The walls around a zygote (contract/code.md §3), built once after it was forked from its template; and the small
 * tools that the wall builders share. Single-threaded processes only. */
#ifndef SK_CODE_WALLS_H
#define SK_CODE_WALLS_H

#include "services/code/control.h"
#include "services/code/filter.h"

#define CODE_KEPT_MAX 8 /* descriptors that a runtime may leave open for its tasks */

/* What a template knows and its zygotes inherit. */
struct code_walls {
    const struct code_kind *kind;
    enum code_level level;
    struct code_filter filter;
    int landlock_abi;
    int cgroup_version;
    char cgroup[CODE_PATH_MAX];
    char root[CODE_PATH_MAX];
    int kept[CODE_KEPT_MAX];
    size_t kept_count;
    /* Of one zygote: */
    uint32_t uid_base, slots;
    int proc_fd;  /* a /proc to look at its tasks; hangs in no tree. -1: not to be had */
    bool outside; /* it is that of an outer pid namespace, where they have other pids */
    int null_fd;  /* /dev/null, for tasks */
    int statm_fd; /* its own /proc/self/statm */
};

/* Zygote, as the first process of its pid namespace (level full): opens null_fd and statm_fd, then namespaces, root and
 * capabilities. Errors: internal, with the step that failed. Blocking for a millisecond. */
SK_MUST_USE int code_walls_zygote(struct code_walls *walls, struct sk_error *err);
/* What a task at this level can have of the kind's wishes. */
bool code_walls_have_tmp(const struct code_walls *walls);

/* Closes every descriptor from 3 on but these; negative ones are skipped. Sorts the array. Async-signal-safe. */
SK_MUST_USE bool code_fds_keep(int *keep, size_t count);
/* Is there a process of this uid (zombies count) in our pid namespace? */
bool code_uid_alive(uint32_t uid);
/* Kills every process of this uid in our pid namespace, with the rights of nobody but that uid. Needs CAP_SETUID;
 * forks, waits. */
void code_uid_kill(uint32_t uid);
/* CLOCK_MONOTONIC in microseconds. */
int64_t code_now_us(void);

#endif
