/* SPDX-License-Identifier: Apache-2.0
 *
 * The task: what a child of the zygote does between its fork and its language's run(). */
#ifndef SK_CODE_TASK_H
#define SK_CODE_TASK_H

#include "services/code/cgroup.h"
#include "services/code/walls.h"

#include <sys/types.h>

#define CODE_TMP_INODES     1024
#define CODE_OPEN_FILES_MAX 64
/* Address space beyond the budget where a kind does not bound it itself: engines reserve, and page tables are memory
 * too. */
#define CODE_ADDRESS_SLACK ((int64_t)4 << 30)
#define CODE_STACK_BYTES   (8l << 20)
#define CODE_EXIT_WALLS    97 /* for people who look; the zygote looks at the stage */

/* How far a child has come. One that ends before RUNNING has not seen a byte of the tenant's code. */
enum code_stage {
    CODE_STAGE_FORKED,
    CODE_STAGE_SESSION,
    CODE_STAGE_DESCRIPTORS,
    CODE_STAGE_CGROUP,
    CODE_STAGE_TMP,
    CODE_STAGE_LIMITS,
    CODE_STAGE_IDENTITY,
    CODE_STAGE_PARENT,
    CODE_STAGE_PRIVILEGES,
    CODE_STAGE_LANDLOCK,
    CODE_STAGE_INPUT,
    CODE_STAGE_SEED,
    CODE_STAGE_FILTER,
    CODE_STAGE_RUNNING
};

/* In memory shared by zygote and child, until the child lets go of it just before the filter. */
struct code_stage_note {
    volatile uint32_t stage; /* the wall being built */
    volatile int32_t error;  /* errno of one that could not be */
    volatile int32_t pid;    /* outside (walls.h); 0 = not told yet */
};

struct code_task_start {
    uint32_t uid;
    pid_t parent; /* the zygote, as its child sees it */
    int input, result, rpc;
    int64_t memory_bytes, cpu_ms, tmp_bytes;
    int64_t base_data_bytes, base_address_bytes; /* the zygote's at the fork */
    const struct code_cgroup_slot *cgroup;
    struct code_stage_note *notes; /* the whole shared area, `note` inside it */
    size_t notes_size;
    struct code_stage_note *note;
};

/* Builds the walls of one task, runs it, ends the process. Fails closed. */
_Noreturn void code_task_main(const struct code_walls *walls, const struct code_task_start *start);

#endif
