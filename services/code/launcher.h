/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher: measures what walls this machine can have, starts templates, has zygotes forked, hands them to the
 * host, and replaces what dies (contract/code.md §1). It never reads a tenant's byte. */
#ifndef SK_CODE_LAUNCHER_H
#define SK_CODE_LAUNCHER_H

#include "services/code/control.h"

#define CODE_LANGUAGES_MAX        4
#define CODE_MODULES_MAX          256
#define CODE_ZYGOTES_PER_KIND     4 /* serving, retiring, dying, coming */
#define CODE_TEMPLATE_START_MS    30000
#define CODE_SPAWN_MS             2000 /* a template that has not forked by then is killed */
#define CODE_TEMPLATE_INTERVAL_MS 600000
#define CODE_RETIRE_MS            660000
#define CODE_BACKOFF_MIN_MS       50 /* after the second death within CODE_QUICK_DEATH_MS; doubles */
#define CODE_BACKOFF_MAX_MS       5000
#define CODE_QUICK_DEATH_MS       1000

/* Strings are the caller's and outlive the run. */
struct code_language {
    const char *program;            /* a program whose main is code_template_main */
    const char *kind;               /* its first argument */
    const char *const *modules;     /* further arguments, NULL-terminated, at most CODE_MODULES_MAX; may be NULL */
    const char *const *environment; /* the whole of it, NULL-terminated; may be NULL */
    uint32_t slots;                 /* tasks of one zygote at a time, 1 … CODE_SLOTS_MAX */
};

struct code_launcher_config {
    const struct code_language *languages;
    size_t language_count; /* 1 … CODE_LANGUAGES_MAX */
    uint32_t uid_base;     /* the range is uid_base … + CODE_ZYGOTES_PER_KIND * slots of all; nobody else's uids */
    const char *run_dir;   /* an existing folder where an empty one can be made */
    /* Level container, which cannot show single paths: a folder of the image that holds copies of what the languages
     * read, and nothing else; NULL = an empty root, in which what is not loaded yet cannot be. */
    const char *container_root;
    bool allow_unsafe;                       /* level shared-uid may serve (SANDBOX_ALLOW_UNSAFE) */
    bool no_cgroup;                          /* do not even look */
    bool no_userns;                          /* never enter a user namespace */
    enum code_level highest;                 /* do not try above this; NONE = FULL (tests) */
    int64_t template_interval_ms, retire_ms; /* 0 = default */
    /* The host's process: the first SIGTERM or SIGINT becomes DRAIN, and the trees serve until it closes its socket;
     * the second ends everything at once; SIGHUP becomes RELOAD. 0 = the first ends everything. */
    int host_pid;
};

/* Serves until the host's socket closes or SIGTERM comes; then everything it started has ended. Sends LEVEL first.
 * `host` is non-blocking. Blocks SIGCHLD, SIGTERM, SIGINT and SIGHUP, becomes a subreaper, waits for every child: a
 * process of its own. -1: nothing was started, or no level that may serve (err says which wall is missing), or the host
 * ended with another status than 0. */
SK_MUST_USE int code_launcher_run(const struct code_launcher_config *config, int host, struct sk_error *err);

#endif
