/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's side of the zygotes (services/code/README.md): it takes them from the launcher, gives them tasks, hears
 * how those end, and has a zygote killed that does not answer (contract/code.md §1). Of each kind the youngest zygote
 * gets new tasks; an older one keeps those it has until they end. One thread, the loop's; nothing blocks. */
#ifndef SK_CODE_HOST_ZYGOTES_H
#define SK_CODE_HOST_ZYGOTES_H

#include "common/base/list.h"
#include "common/base/loop.h"
#include "services/code/control.h"

/* Indices of the kinds in the launcher's configuration. */
enum code_kind_index { CODE_KIND_JS, CODE_KIND_LEAN, CODE_KIND_FULL, CODE_KINDS };
const char *code_kind_name(enum code_kind_index kind); /* "js", "python", "python-full" */

#define CODE_PING_MS  1000 /* every zygote is asked so often whether it lives */
#define CODE_HELLO_MS 2000 /* one whose walls do not stand by then is SUSPECT */

struct code_zygote;
struct code_child;

/* What becomes of a task. Exactly one of refused, ended and lost is the last of it; the child may be freed or started
 * again inside. */
struct code_child_ops {
    void (*refused)(struct code_child *child, enum code_refusal why);
    void (*ended)(struct code_child *child, const struct code_message *message); /* no process of it is left */
    void (*lost)(struct code_child *child, bool started);                        /* its zygote is gone */
};

/* One task at a zygote; a member of the caller's struct, zeroed at first. */
struct code_child {
    struct sk_list link; /* its zygote's */
    const struct code_child_ops *ops;
    struct code_zygote *zygote; /* NULL = at none */
    uint64_t id;
    struct {
        int64_t memory_bytes, wall_ms, cpu_ms, tmp_bytes;
    } limits;
    int fds[3]; /* input, result, rpc: until they were sent */
    bool sent, started, kill, kill_sent;
    enum code_end cause;
};

struct code_zygotes_events {
    void (*level)(void *arg, const struct code_message *message);
    void (*changed)(void *arg); /* a kind is served now, or is not any more: code_zygotes_serving() */
    void (*drain)(void *arg);
    void (*reload)(void *arg);
    void (*launcher_gone)(void *arg);
    void *arg;
};

struct code_zygotes_counts {
    int64_t lost[CODE_KINDS], suspects[CODE_KINDS];
};

struct code_zygotes;
/* `launcher` is the control socket, non-blocking, the caller's. NULL when out of memory. */
SK_MUST_USE struct code_zygotes *code_zygotes_new(struct sk_loop *loop, int launcher,
                                                  const struct code_zygotes_events *events);
/* Releases every zygote (their tasks die with them); no callback is called any more. NULL is allowed. */
void code_zygotes_free(struct code_zygotes *zygotes);
bool code_zygotes_serving(const struct code_zygotes *zygotes, enum code_kind_index kind);
/* Zygotes of this kind that were announced and have not said HELLO; 1 while none was announced. */
int code_zygotes_warming(const struct code_zygotes *zygotes, enum code_kind_index kind);
struct code_zygotes_counts code_zygotes_counts(const struct code_zygotes *zygotes);

/* Gives the task to a zygote and takes its descriptors (they are closed in any case). ops and limits are set before.
 * False: no zygote of this kind serves; then the descriptors are the caller's still. */
SK_MUST_USE bool code_zygotes_start(struct code_zygotes *zygotes, enum code_kind_index kind, struct code_child *child,
                                    const int fds[3]);
/* Has it killed for this reason (the first one counts); its end is told as ever. */
void code_child_kill(struct code_child *child, enum code_end cause);
/* It should have ended long ago: its zygote is killed, and it is told `lost`. */
void code_child_suspect(struct code_child *child);

#endif
