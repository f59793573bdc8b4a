/* SPDX-License-Identifier: Apache-2.0
 *
 * What launcher, templates, zygotes and host say to each other (services/code/README.md): fixed-size messages over
 * SOCK_SEQPACKET, descriptors by SCM_RIGHTS. All sides are of one build: before each message stands which, in bytes
 * that are read whatever the size of the rest. Programs are executed while another build may be laid over them. */
#ifndef SK_CODE_CONTROL_H
#define SK_CODE_CONTROL_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODE_FDS_MAX   3
#define CODE_SLOTS_MAX 128 /* tasks of one zygote at a time; SANDBOX_POOL_SIZE is at most 100 */
#define CODE_PATH_MAX  256
#define CODE_ANSWER_MS 200 /* a zygote that has not answered by then is SUSPECT: contract/code.md §1 */

enum code_level { CODE_LEVEL_NONE, CODE_LEVEL_SHARED_UID, CODE_LEVEL_CONTAINER, CODE_LEVEL_FULL };

enum code_message_kind {
    CODE_MSG_SETUP = 1,
    CODE_MSG_READY,
    CODE_MSG_SPAWN,   /* fds: zygote's end of the host's socket, lifeline */
    CODE_MSG_SPAWNED, /* fds: pidfd; none when it failed */
    CODE_MSG_LEVEL,
    CODE_MSG_ZYGOTE, /* fds: the host's end of the zygote's socket */
    CODE_MSG_RETIRING,
    CODE_MSG_GONE,
    CODE_MSG_SUSPECT,
    CODE_MSG_DRAIN,  /* the launcher was told to end: SIGTERM, SIGINT */
    CODE_MSG_RELOAD, /* SIGHUP */
    CODE_MSG_HELLO,
    CODE_MSG_START, /* fds: input, result, rpc */
    CODE_MSG_STARTED,
    CODE_MSG_REFUSED,
    CODE_MSG_KILL,
    CODE_MSG_ENDED,
    CODE_MSG_PING,
    CODE_MSG_PONG,
    CODE_MSG_LAST
};

enum code_end {
    CODE_END_DONE, /* exit status 0: what it says stands in its result */
    CODE_END_TIMEOUT,
    CODE_END_MEMORY,
    CODE_END_OUTPUT,
    CODE_END_PROCESSES,
    CODE_END_KILLED,
    CODE_END_CRASHED,
    CODE_END_CANCELLED,
    CODE_END_WALLS, /* a wall could not be built: nothing of the task was run */
    CODE_END_COUNT
};

enum code_refusal { CODE_REFUSED_BUSY, CODE_REFUSED_INVALID, CODE_REFUSED_NO_PROCESS };

struct code_message {
    uint32_t kind; /* enum code_message_kind */
    union {
        struct {
            uint32_t level;
            uint32_t cgroup_version;    /* 0 = none */
            char cgroup[CODE_PATH_MAX]; /* folder below which the zygote makes one group per slot */
            char root[CODE_PATH_MAX];   /* an empty folder: mount point (full) or chroot (container) */
        } setup;
        struct {
            int32_t error; /* errno, 0 = loaded */
            char text[CODE_PATH_MAX];
        } ready;
        struct {
            uint64_t zygote;
            uint32_t uid_base, slots;
        } spawn;
        struct {
            uint64_t zygote;
            int32_t error;
        } spawned;
        struct {
            uint32_t level;
            uint32_t landlock_abi, cgroup_version, user_namespace;
            uint64_t crossed; /* of the last level tried that did not hold: bits as in selftest.h */
        } level;
        struct {
            uint64_t zygote;
            uint32_t language; /* index of the kind in the launcher's configuration */
        } zygote;              /* also RETIRING, GONE, SUSPECT */
        struct {
            uint32_t level, slots, landlock_abi, cgroup_version;
        } hello;
        struct {
            uint64_t task; /* the host's own number, unique among the live tasks of this zygote */
            int64_t memory_bytes;
            int64_t wall_ms; /* the zygote kills after this time */
            int64_t cpu_ms;  /* RLIMIT_CPU, rounded up to seconds */
            int64_t tmp_bytes;
        } start;
        struct {
            uint64_t task;
            uint32_t uid;
        } started;
        struct {
            uint64_t task;
            uint32_t why; /* enum code_refusal */
        } refused;
        struct {
            uint64_t task;
            uint32_t end; /* enum code_end */
        } kill;
        struct {
            uint64_t task;
            uint32_t end; /* enum code_end */
            int32_t exit_status, signal;
            uint32_t stage; /* with CODE_END_WALLS: which wall, enum code_stage (task.h) */
            int32_t stage_error;
            int64_t peak_rss_bytes; /* beyond what the zygote itself has */
            int64_t cpu_us, wall_us;
        } ended;
        struct {
            uint64_t number;
            uint32_t live;
        } ping; /* PONG: the same number, and how many tasks live */
    } u;
};

/* A SEQPACKET pair, close-on-exec and non-blocking; -1 with errno. */
int code_control_pair(int fds[2]);
/* One message, whole or not at all. The descriptors stay the caller's. Never blocks on a non-blocking socket: false
 * with errno EAGAIN when it is full. EINTR is retried, SIGPIPE never raised. */
SK_MUST_USE bool code_send(int fd, const struct code_message *message, const int *fds, size_t count);

enum code_receive { CODE_RECEIVED, CODE_NOTHING, CODE_CLOSED, CODE_GARBLED, CODE_FOREIGN };
/* One message; the descriptors (close-on-exec) become the caller's: fds[CODE_FDS_MAX], unused ones -1. GARBLED: wrong
 * size or kind or too many descriptors (all of which are closed). FOREIGN: of another build, or no message of ours at
 * all; so are its descriptors. */
enum code_receive code_receive(int fd, struct code_message *message, int fds[CODE_FDS_MAX], size_t *count);
void code_fds_close(int fds[CODE_FDS_MAX]);

const char *code_end_name(enum code_end end);       /* "timeout", … as in data.error.code */
const char *code_level_name(enum code_level level); /* "full", "container", "shared-uid", "none" */

#endif
