/* SPDX-License-Identifier: Apache-2.0
 *
 * A task's line to the broker (contract/code.md §5, services/code/frame.h): its frames become requests, their answers
 * frames. The task is not believed: a frame of a wrong length or kind, or an id that does not grow, breaks the line
 * (and the caller kills it). Of requests beyond the task's limit the first is judged and logged as any other; the rest
 * are only answered, and CODE_RPC_EXCESS_MAX of them break the line. While an answer waits to be read, or
 * CODE_FLIGHT_MAX requests are on their way, nothing is read; what is held for the task counts against the broker's
 * budget. One thread, the loop's; nothing blocks. */
#ifndef SK_CODE_HOST_RPC_H
#define SK_CODE_HOST_RPC_H

#include "services/code/broker/transfer.h"

#define CODE_RPC_FREE_BYTES 65536 /* of an incoming frame, before the budget is asked */
#define CODE_RPC_RETRY_MS   20    /* how often a full budget is asked again */
#define CODE_RPC_EXCESS_MAX 1000  /* requests beyond its limit that a task may make before its line is broken */

struct code_rpc;

struct code_rpc_options {
    struct sk_loop *loop;
    struct code_broker *broker;
    const char *task_id, *queue_id; /* queue_id "" = none; copied */
    struct code_requester_limits limits;
    /* Called once, from the loop: what the task did is no frame, and the line is dead. It must not free the line: have
     * the task killed. */
    void (*broken)(void *arg, const char *why);
    void *arg;
};

/* Takes `fd`, our end of the stream socketpair, non-blocking (not when it fails: NULL, out of memory). */
SK_MUST_USE struct code_rpc *code_rpc_new(const struct code_rpc_options *options, int fd);
/* Whether the task has asked for anything. */
bool code_rpc_used(const struct code_rpc *rpc);
/* Cancels what is on its way and closes the line. NULL is allowed. */
void code_rpc_free(struct code_rpc *rpc);

#endif
