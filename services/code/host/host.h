/* SPDX-License-Identifier: Apache-2.0
 *
 * The host of the code sandbox: HTTP in front, zygotes behind, queue and broker between (contract/code.md §1). One
 * thread, one loop. This header is what its files share, and what the program starts. */
#ifndef SK_CODE_HOST_HOST_H
#define SK_CODE_HOST_HOST_H

#include "common/base/buf.h"
#include "common/health/health.h"
#include "common/http/admin.h"
#include "common/http/stream/stream.h"
#include "services/code/host/answer.h"
#include "services/code/host/config.h"
#include "services/code/host/rpc.h"
#include "services/code/host/zygotes.h"

#define CODE_WALL_GRACE_MS   500   /* after timeout_ms the zygote kills: the language had its chance to tell the line */
#define CODE_CPU_GRACE_MS    1000  /* processor time beyond that */
#define CODE_BODY_MS         30000 /* a request's body must be complete by then */
#define CODE_RETRY_MS        5     /* a zygote whose slots are still being cleared is asked again */
#define CODE_RETRIES_MAX     200
#define CODE_ZYGOTE_WAIT_MS  10000 /* how long a task waits for a zygote of its kind to come back */
#define CODE_PIPE_WAIT_MS    1000  /* after a task's end, for the end of its pipe */
#define CODE_KILLED_MS       1000  /* after the drain, for the tasks that were killed to be over and answered */
#define CODE_LAST_ANSWERS_MS 100   /* for answers to be written, when the end came suddenly */
#define CODE_OVERDUE_MS      5000  /* beyond its wall time: then its zygote has lost it */
#define CODE_WRITE_MS        20000 /* a client that reads nothing of its answer for so long is cut */
#define CODE_CONNECTIONS_MAX 4096
#define CODE_CONNECTIONS_MIN 32
#define CODE_TASK_FDS        (6 + 2 * CODE_FLIGHT_MAX) /* descriptors of a task at most, those of its requests too */
#define CODE_OTHER_FDS       32                        /* zygotes, listeners, log */
#define CODE_MMAP_BYTES      (1 << 20)                 /* buffers of this size and more are mappings of their own */
#define CODE_LOOKUPS_MAX     32                        /* names that are looked up at a time; twice as many threads */

struct code_call;

struct code_host {
    const struct code_config *config;
    struct sk_config *source; /* for SIGHUP */
    struct code_limits limits;
    int64_t memory_bytes;
    char **js_modules, **python_modules;
    const char *hidden[8]; /* struct code_outcome */
    struct sk_loop *loop;
    struct code_queue *queue;
    struct code_zygotes *zygotes;
    struct code_policy *policy;
    struct code_broker *broker;
    struct sk_stream_server *server;
    struct sk_health *health;
    struct sk_dependency *pools_up[CODE_POOLS];
    struct sk_admin *admin;
    struct sk_timer *drain;
    enum code_level level;
    int port, port_file;         /* port_file: opened before privileges were given away; -1 = none */
    struct sk_list receiving;    /* calls whose body is coming, oldest first */
    struct sk_list live;         /* calls that wait or run */
    struct sk_list stalled;      /* of those, the ones that run and have no zygote */
    struct sk_timer *sweep;      /* looks after receiving and stalled */
    int64_t buffered_bytes;      /* bodies that are held, and answers that are not read yet */
    int64_t down_ms[CODE_POOLS]; /* since when a pool that was ready is not; 0 = it is */
    uint64_t last_task;
    bool announced, draining, given_up, stopping, failed, pumping;
};

/* ---- host.c ---- */
struct code_host_options {
    const struct code_config *config;
    struct sk_config *source;
    int launcher;         /* control socket, non-blocking */
    const char *programs; /* folder of the programs: no message shows it */
    int64_t uid;          /* to become after start; -1 = stay */
};
/* Serves until the launcher says DRAIN and the drain has ended, or until the launcher is gone. Returns the exit status.
 * Signals are the launcher's. */
int code_host_run(const struct code_host_options *options);

/* ---- call.c: one request of a client, from its admission to its answer ---- */
enum code_call_state { CODE_CALL_RECEIVING, CODE_CALL_WAITING, CODE_CALL_RUNNING, CODE_CALL_ANSWERED };

struct code_call {
    struct sk_list link; /* in receiving or live */
    struct sk_list stall;
    struct code_host *host;
    struct sk_stream *x; /* NULL when the client is gone */
    enum code_call_state state;
    enum code_pool pool;
    int64_t since_ms; /* its headers came */
    struct sk_buf body;
    int64_t buffered; /* of host->buffered_bytes */
    struct code_request request;
    struct code_job job;
    /* While it runs. */
    enum code_kind_index kind;
    struct code_child child;
    struct code_rpc *rpc;
    uv_poll_t *pipe;
    int pipe_fd, input_fd;
    struct sk_buf frame;
    struct sk_timer *timer; /* a retry, or the pipe's end */
    uint64_t number;        /* in the log */
    int64_t stalled_ms, begun_ms;
    int retries;
    bool pipe_over, child_over, cancelled;
    struct code_message ended;
};

/* A call whose body is to come; NULL when out of memory. It is the host's: it frees itself. */
struct code_call *code_call_new(struct code_host *host, struct sk_stream *x, enum code_pool pool);
/* The body is complete. */
void code_call_admit(struct code_call *call);
/* The client has left (gone: half of it) or the exchange is over. */
void code_call_gone(struct code_call *call);
void code_call_closed(struct code_call *call);
/* Takes bytes of what may be buffered in all; false: they are not there. */
bool code_call_buffer(struct code_call *call, int64_t bytes);
/* Answers with {"success":false,"message"}; before it was admitted. */
void code_call_refuse(struct code_call *call, int status, const char *message);
/* Starts what may start. */
void code_host_pump(struct code_host *host);
/* Ends everything that waits or runs. */
void code_host_give_up(struct code_host *host);
/* At the end: no client and no zygote is there any more. */
void code_host_free_calls(struct code_host *host);
void code_host_sweep(void *host); /* struct code_host *: every second */
/* A zygote of this kind serves: tasks that wait for one go on. */
void code_host_unstall(struct code_host *host);

/* ---- http.c: routes ---- */
void code_http_request(void *host, struct sk_stream *x);

/* ---- metrics.c ---- */
enum code_refused {
    CODE_COUNT_FULL,
    CODE_COUNT_BUFFERED,
    CODE_COUNT_DRAINING,
    CODE_COUNT_NOT_READY,
    CODE_COUNT_AUTH,
    CODE_COUNT_INVALID,
    CODE_COUNT_TOO_LARGE,
    CODE_COUNT_SLOW
};
void code_metrics_register(struct code_host *host);
void code_metrics_forget(void); /* no scrape looks at the host any more */
void code_metrics_refused(enum code_refused why);
/* Times are observed of tasks that a zygote told the end of. */
void code_metrics_task(const struct code_call *call, const char *end);
void code_metrics_moved(void);

#endif
