/* SPDX-License-Identifier: Apache-2.0
 *
 * A launcher in a process of its own, and the host's side of it, for tests. Every failure here fails the test. */
#ifndef SK_TEST_CODE_TREE_H
#define SK_TEST_CODE_TREE_H

#include "services/code/launcher.h"

#include <sys/types.h>

struct tree_options {
    const char *kind;    /* NULL = "toy" */
    const char *program; /* beside the test; NULL = the toy's template */
    const char *const *modules, *const *environment;
    const char *container_root;
    uint32_t slots; /* 0 = 4 */
    enum code_level highest;
    bool allow_unsafe, no_cgroup, no_userns;
    bool nobody;     /* the launcher is not root */
    bool pass_term;  /* the test is the host that gets SIGTERM */
    bool drop_admin; /* the launcher runs without CAP_SYS_ADMIN, as in an ordinary container */
    int64_t template_interval_ms, retire_ms;
};

struct tree {
    pid_t launcher;
    int host, zygote;
    uint64_t id, last_task; /* of the zygote in service */
    struct code_message level, hello;
};

/* What became of a task. */
struct tree_outcome {
    bool refused;
    enum code_refusal why;
    uint32_t uid;
    struct code_message ended;
    char text[1 << 16]; /* of its result frame, "" = none */
    size_t bytes;       /* read from its pipe */
};

struct tree_task {
    int64_t memory_mb, wall_ms, cpu_ms, tmp_mb; /* 0 = 64, 10000, 10000, 2 */
    bool held; /* its pipe takes a page: with a larger result it ends after tree_let_go() */
};

/* The toy's template program. */
const char *tree_template(void);
/* The first uid of this test's trees; asked for before they start. */
uint32_t tree_uid_base(void);
/* False with a message on stderr when this machine cannot have the level (or we are not root): the test skips. */
bool tree_start(struct tree *t, const struct tree_options *options);
/* Without a zygote: -1 when the launcher ended, its exit status in *status; else 0 and LEVEL was read. */
int tree_start_launcher(struct tree *t, const struct tree_options *options, int *status);
/* Waits for the next zygote of the launcher, and its HELLO; returns the milliseconds it took. */
int64_t tree_next_zygote(struct tree *t);
void tree_end(struct tree *t); /* and nothing is left of it */

/* Starts a task; the result's pipe is returned, the number in *task. */
int tree_begin(struct tree *t, const char *program, const struct tree_task *task, uint64_t *number);
void tree_kill(struct tree *t, uint64_t number, enum code_end why);
/* The program of a task that is held. */
#define TREE_HELD "filler 8192"
/* Reads a held task's result to its end; tree_finish() finds no bytes then. */
void tree_let_go(int result);
/* Waits for STARTED and ENDED, or REFUSED, of one task (messages of others are an error) and reads its pipe to the end.
 */
void tree_finish(struct tree *t, int result, uint64_t number, struct tree_outcome *out);
/* Begin and finish. */
void tree_run(struct tree *t, const char *program, const struct tree_task *task, struct tree_outcome *out);
/* The next message of this socket within 30 s. */
void tree_await(int fd, struct code_message *message, int *first_fd);
/* Processes below the launcher, it excluded; the pids into `pids` (may be NULL) when there is room. */
int tree_processes(const struct tree *t, pid_t *pids, int room);
pid_t tree_parent(pid_t pid); /* 0 when it is gone */
/* Open descriptors of a process. */
int tree_descriptors(pid_t pid);
/* Waits up to 30 s until the launcher has this many descendants. */
void tree_await_processes(const struct tree *t, int count);

#endif
