/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests of tasks, sent by the host (contract/code.md §5). For each one: count, scheme, body size, headers, name
 * and rules are judged; the name is resolved once; every address it has must be allowed; libcurl may connect to these
 * and no other, and is asked again for the address of each socket that it opens and of the connection it got. Redirects
 * are followed only where the request wants that, at most CODE_REDIRECTS_MAX, each one judged from the start. What
 * comes is counted after decoding. One audit line (log level info) is written per request.
 *
 * Everything belongs to the loop thread and nothing blocks: a multi handle of libcurl's per request is driven by the
 * loop, so that no connection and no resolved name is ever shared between two requests. Names are resolved on libuv's
 * threads (half of UV_THREADPOOL_SIZE at a time), one of a task and a few of a queueId at a time, the others wait in
 * order; a request that is over does not wait for its answer. */
#ifndef SK_CODE_BROKER_TRANSFER_H
#define SK_CODE_BROKER_TRANSFER_H

#include "common/base/loop.h"
#include "services/code/broker/policy.h"

#define CODE_REDIRECTS_MAX       5
#define CODE_FLIGHT_MAX          4                     /* requests of one task at a time; the worker keeps the rest */
#define CODE_BROKER_BUDGET       (256LL * 1024 * 1024) /* bytes of answers held by the whole host */
#define CODE_ANSWER_HEADERS_MAX  65536                 /* bytes of status lines, headers and trailers of one request */
#define CODE_CONNECT_TIMEOUT_MS  10000
#define CODE_RESOLVED_MAX        64 /* a name with more addresses is refused */
#define CODE_LOOKUPS_QUEUE_MAX   4  /* names that are looked up at a time for tasks of one queueId */
#define CODE_LOOKUPS_UNNAMED_MAX 16 /* and for all tasks without one */
#define CODE_REQUEST_LIMIT_TEXT  "Request limit exceeded"

struct code_broker_options {
    struct sk_loop *loop;
    const struct code_policy *policy; /* both outlive the broker */
    const char *ca_file;              /* NULL = the system's; outlives the broker */
    int64_t budget_bytes;             /* 0 = CODE_BROKER_BUDGET */
};

/* Since the start, for /metrics and /health. */
struct code_broker_counts {
    int64_t requests, refused, failed, answered, cancelled;
    int64_t sent_bytes, received_bytes;
    int64_t in_flight, held_bytes; /* now */
    int64_t resolving; /* look-ups now, also those that nobody waits for any more: one of a task, a few of a queueId */
};

struct code_broker;
/* NULL when out of memory. */
SK_MUST_USE struct code_broker *code_broker_new(const struct code_broker_options *options);
/* All its tasks were ended before. NULL is allowed. The loop cannot be closed while counts.resolving is not 0. */
void code_broker_free(struct code_broker *broker);
struct code_broker_counts code_broker_counts(const struct code_broker *broker);
/* Takes bytes of the budget for an answer that the task has not read yet (false: they are not there), and gives them
 * back. A transfer holds its own only until its done() returned. */
SK_MUST_USE bool code_broker_hold(struct code_broker *broker, int64_t bytes);
void code_broker_release(struct code_broker *broker, int64_t bytes);

/* One task's share: its limits and counters. */
struct code_requester_limits {
    int64_t request_max; /* requests of the task, those that failed or were refused too */
    int64_t timeout_ms;  /* longest and default time of one, redirects and name look-up included */
    int64_t body_bytes, response_bytes;
};
struct code_requester_counts {
    int64_t requests, refused, failed, answered;
    int64_t sent_bytes, received_bytes;
    int in_flight;
};
struct code_requester;
/* Copies the texts; queue_id NULL = none; task_id is for the audit line. NULL when out of memory. */
SK_MUST_USE struct code_requester *code_requester_new(struct code_broker *broker, const char *task_id,
                                                      const char *queue_id, const struct code_requester_limits *limits);
struct code_requester_counts code_requester_counts(const struct code_requester *requester);
/* Cancels every request that is on its way (no done() is called any more) and frees it. NULL is allowed. Also from
 * inside a done(). */
void code_requester_free(struct code_requester *requester);

struct code_net_request {
    const char *url;
    size_t url_length;
    const char *method;    /* NULL = GET */
    const json_t *headers; /* borrowed only during the call; NULL = none */
    const char *body;      /* NULL = none */
    size_t body_length;
    int64_t timeout_ms; /* <= 0 = the limit; more than the limit is the limit */
    bool follow_redirects;
};

/* Valid during done() only. */
struct code_net_answer {
    const char *message; /* why there is no answer, to be shown to the task; NULL = there is one */
    int status;
    const char *status_text;
    const json_t *headers; /* lower-case name -> text; several of one name are joined with ", " */
    const char *data;      /* valid UTF-8: other bytes became U+FFFD */
    size_t length;
};
struct code_transfer;
typedef void (*code_transfer_done)(void *arg, const struct code_net_answer *answer);
/* Copies the request and starts it. `done` is called exactly once, on a later turn of the loop, refusals included,
 * unless the request is cancelled before; the handle is gone then. NULL (out of memory): it will never be called. */
SK_MUST_USE struct code_transfer *code_transfer_start(struct code_requester *requester,
                                                      const struct code_net_request *request, code_transfer_done done,
                                                      void *arg);
void code_transfer_cancel(struct code_transfer *transfer);

#endif
