/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client hears: a task's result frame and its end reason become the body of an HTTP response (contract/code.md
 * §4, reference A1, A3). A frame comes from a process that ran a tenant's code: nothing in it is believed before it was
 * checked, and what may stand in it is little (runtime.h).
 *
 *   {"success":true,"data":{"codeReturn":<value>,"log":"…"}}
 *   {"success":false,"message":"…","data":{"codeReturn":null,"log":"…","error":{"code":"…","type":"…","line":3,"traceback":"…"}}}
 *
 * The end reason decides; a frame counts when the task ended by itself, and its own account of a failure counts (it
 * knows the line) when the zygote says time-out, memory or output. Otherwise only its log is kept. Any thread, nothing
 * blocks. */
#ifndef SK_CODE_HOST_ANSWER_H
#define SK_CODE_HOST_ANSWER_H

#include "common/base/buf.h"
#include "services/code/control.h"
#include "services/code/host/auth.h"
#include "services/code/host/queue.h"
#include "services/code/host/request.h"

#define CODE_RESULT_DEPTH_MAX 1000000 /* of a result frame: 125 kB of memory while it is checked */
#define CODE_MODULE_NAME_SIZE 128

struct code_outcome {
    enum code_pool pool;
    enum code_end end;
    int exit_status, signal; /* of ENDED; signal 0 = none */
    const char *frame;       /* all that came through the result pipe, length word included; NULL with length 0 */
    size_t frame_length;
    int64_t timeout_ms, memory_bytes, peak_bytes, output_bytes;
    bool may_move;             /* lean Python that has sent nothing to the broker */
    const char *const *hidden; /* folders of this machine that no message may show, NULL-terminated; or NULL */
};

enum code_verdict {
    CODE_VERDICT_SUCCESS,
    CODE_VERDICT_FAILURE,
    CODE_VERDICT_MOVE,   /* run it again in full Python; no body */
    CODE_VERDICT_MEMORY, /* ours: no memory for the answer; no body */
};

struct code_answer {
    const char *code;                   /* data.error.code of a failure, for metrics and logs; "" else. Static */
    char module[CODE_MODULE_NAME_SIZE]; /* MOVE: what it wants */
};

/* Appends the body to `out` (the caller's; its limit should leave room for output_bytes, and 64 KiB more). The HTTP
 * status is 200 in any case but MEMORY (500). */
enum code_verdict code_answer_outcome(const struct code_outcome *outcome, struct sk_buf *out,
                                      struct code_answer *answer);

/* {"success":false,"message":"…"}; false when it does not fit into `out`. */
SK_MUST_USE bool code_answer_refusal(const char *message, struct sk_buf *out);
/* Status and message of a job that was not admitted. */
void code_answer_admission(enum code_admission admission, enum code_pool pool, struct code_rejection *rejection);

struct code_health {
    struct code_queue_pool pools[CODE_POOLS];
    int warming[CODE_POOLS]; /* zygotes on their way */
    enum code_level level;
    bool draining;
};
/* Status (200, or 503 "degraded") and body of GET /health: A1's shape, and the isolation that was measured. 0 when it
 * does not fit. */
int code_answer_health(const struct code_health *health, struct sk_buf *out);
/* Body of GET /sandbox/modules; names are NULL-terminated lists. */
SK_MUST_USE bool code_answer_modules(char *const *js, char *const *python, struct sk_buf *out);

#endif
