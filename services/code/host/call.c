/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of one call, top to bottom: admitted, queued, run at a zygote, over, answered. A call is over when its task
 * has ended *and* its pipe is at its end; what cannot be had at once (a slot, a zygote) is waited for within bounds. */
#include "services/code/host/host.h"

#include "common/log/log.h"
#include "services/code/frame.h"
#include "services/code/input.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_SLACK  65536
#define ANSWER_SLACK (1 << 20)
#define READ_BYTES   32768

static void run(struct code_call *call);

/* ---- what a call holds -------------------------------------------------------------------------- */
bool code_call_buffer(struct code_call *call, int64_t bytes)
{
    struct code_host *host = call->host;

    if (host->buffered_bytes + bytes > host->config->max_buffered_mb * 1024 * 1024)
        return false;
    host->buffered_bytes += bytes;
    call->buffered += bytes;
    return true;
}

static void unbuffer(struct code_call *call)
{
    call->host->buffered_bytes -= call->buffered;
    call->buffered = 0;
}

struct code_call *code_call_new(struct code_host *host, struct sk_stream *x, enum code_pool pool)
{
    struct code_call *call = calloc(1, sizeof(*call));

    if (call == NULL)
        return NULL;
    call->host = host;
    call->x = x;
    call->pool = pool;
    call->since_ms = sk_mono_ms(&sk_sched_system);
    call->pipe_fd = call->input_fd = -1;
    sk_buf_init(&call->body, (size_t)host->config->api_max_body_mb * 1024 * 1024);
    sk_list_init(&call->stall);
    sk_list_push_back(&host->receiving, &call->link);
    return call;
}

static void on_poll_closed(uv_handle_t *handle)
{
    free(handle);
}

/* Everything of one try at a zygote but the input. */
static void drop_try(struct code_call *call)
{
    code_rpc_free(call->rpc);
    call->rpc = NULL;
    if (call->pipe != NULL)
        uv_close((uv_handle_t *)call->pipe, on_poll_closed);
    call->pipe = NULL;
    if (call->pipe_fd >= 0)
        close(call->pipe_fd);
    call->pipe_fd = -1;
    sk_timer_free(call->timer); /* it is about this try */
    call->timer = NULL;
    sk_buf_fini(&call->frame);
    memset(&call->ended, 0, sizeof(call->ended));
    call->pipe_over = call->child_over = false;
}

static void drop_all(struct code_call *call)
{
    drop_try(call);
    if (call->input_fd >= 0)
        close(call->input_fd);
    call->input_fd = -1;
    sk_buf_fini(&call->body);
    sk_list_remove(&call->stall);
}

static void free_call(struct code_call *call)
{
    drop_all(call);
    unbuffer(call);
    sk_list_remove(&call->link);
    free(call);
}

/* ---- answers ------------------------------------------------------------------------------------ */
static void reply(struct code_call *call, int status, struct sk_buf *out)
{
    call->state = CODE_CALL_ANSWERED;
    sk_list_remove(&call->link);
    sk_list_push_back(&call->host->live, &call->link);
    drop_all(call);
    unbuffer(call);
    if (call->x == NULL) {
        free_call(call);
        return;
    }
    call->buffered = (int64_t)sk_buf_len(out); /* until it is written */
    call->host->buffered_bytes += call->buffered;
    sk_stream_reply(call->x, status, "application/json", sk_buf_data(out), sk_buf_len(out));
}

void code_call_refuse(struct code_call *call, int status, const char *message)
{
    struct sk_buf out;

    sk_buf_init(&out, ANSWER_SLACK);
    if (!code_answer_refusal(message, &out))
        status = 500;
    reply(call, status, &out);
    sk_buf_fini(&out);
}

/* The outcome as a body. False: the task is to be run again, in full Python. */
static bool answer(struct code_call *call)
{
    struct code_host *host = call->host;
    struct code_outcome outcome = {
        .pool = call->pool,
        .end = (enum code_end)call->ended.u.ended.end,
        .exit_status = call->ended.u.ended.exit_status,
        .signal = call->ended.u.ended.signal,
        .frame = sk_buf_data(&call->frame),
        .frame_length = sk_buf_len(&call->frame),
        .timeout_ms = call->request.timeout_ms,
        .memory_bytes = host->memory_bytes,
        .peak_bytes = call->ended.u.ended.peak_rss_bytes,
        .output_bytes = host->limits.output_bytes,
        .may_move = call->kind == CODE_KIND_LEAN && !(call->rpc != NULL && code_rpc_used(call->rpc)),
        .hidden = host->hidden,
    };
    struct code_answer told;
    struct sk_buf out;
    enum code_verdict verdict;
    int status = 200;

    sk_buf_init(&out, (size_t)host->limits.output_bytes + ANSWER_SLACK);
    verdict = code_answer_outcome(&outcome, &out, &told);
    if (verdict == CODE_VERDICT_MOVE) {
        sk_buf_fini(&out);
        return false;
    }
    if (verdict == CODE_VERDICT_MEMORY) {
        sk_buf_clear(&out);
        status = 500;
        if (!code_answer_refusal("Out of memory", &out))
            sk_buf_clear(&out); /* an empty body, then */
    }
    if (outcome.end == CODE_END_WALLS)
        SK_LOG_ERROR("a wall of a task could not be built", SK_F("kind", code_kind_name(call->kind)),
                     SK_FI("stage", call->ended.u.ended.stage), SK_FI("errno", call->ended.u.ended.stage_error));
    if (outcome.end == CODE_END_CRASHED || outcome.end == CODE_END_KILLED || outcome.end == CODE_END_PROCESSES)
        SK_LOG_WARN("a task was ended by force", SK_F("kind", code_kind_name(call->kind)), SK_FI("task", call->number),
                    SK_F("end", code_end_name(outcome.end)), SK_FI("signal", outcome.signal),
                    SK_F("queueId", call->request.queue_id[0] != '\0' ? call->request.queue_id : NULL));
    code_metrics_task(call, verdict == CODE_VERDICT_SUCCESS ? "done" : told.code);
    code_queue_done(host->queue, &call->job);
    reply(call, status, &out);
    sk_buf_fini(&out);
    return true;
}

/* ---- over --------------------------------------------------------------------------------------- */
static void finish(struct code_call *call)
{
    struct code_host *host = call->host;

    if (!call->child_over || !call->pipe_over)
        return;
    if (call->cancelled)
        call->ended.u.ended.end = CODE_END_CANCELLED;
    if (!answer(call)) { /* it keeps its place in the pool */
        code_metrics_moved();
        call->kind = CODE_KIND_FULL;
        drop_try(call);
        run(call);
        return;
    }
    code_host_pump(host);
}

/* It ended without a zygote's word. */
static void conclude(struct code_call *call, enum code_end end, int signal)
{
    memset(&call->ended, 0, sizeof(call->ended));
    call->ended.u.ended.end = end;
    call->ended.u.ended.signal = signal;
    call->child_over = call->pipe_over = true;
    finish(call);
}

static void give_up(struct code_call *call, int status, const char *message)
{
    struct code_host *host = call->host;

    code_queue_done(host->queue, &call->job);
    code_metrics_task(call, "crashed");
    code_call_refuse(call, status, message);
    code_host_pump(host);
}

/* ---- the pipe ----------------------------------------------------------------------------------- */
/* Reads what is there; true at the end of it. */
static bool read_pipe(struct code_call *call)
{
    for (;;) {
        char *room = sk_buf_reserve(&call->frame, READ_BYTES);
        ssize_t n;

        if (room == NULL) { /* more than a frame may be */
            code_child_kill(&call->child, CODE_END_OUTPUT);
            return true;
        }
        n = read(call->pipe_fd, room, READ_BYTES);
        if (n > 0)
            sk_buf_commit(&call->frame, (size_t)n);
        else if (n == 0 || (errno != EINTR && errno != EAGAIN))
            return true;
        else if (errno == EAGAIN)
            return false;
    }
}

static void on_pipe(uv_poll_t *poll, int status, int events)
{
    struct code_call *call = poll->data;

    (void)events;
    if (status >= 0 && !read_pipe(call))
        return;
    uv_poll_stop(poll);
    call->pipe_over = true;
    finish(call);
}

static void on_pipe_late(void *arg)
{
    struct code_call *call = arg;

    SK_LOG_WARN("a pipe has not ended with its task", SK_F("kind", code_kind_name(call->kind)));
    call->pipe_over = true;
    finish(call);
}

/* ---- the child ---------------------------------------------------------------------------------- */
static struct code_call *of_child(struct code_child *child)
{
    return SK_LIST_ENTRY(struct code_call, child, child);
}

static bool later(struct code_call *call, void (*fire)(void *), uint64_t ms)
{
    sk_timer_free(call->timer);
    call->timer = sk_timer_new(call->host->loop, fire, call);
    if (call->timer != NULL)
        sk_timer_start(call->timer, ms, 0);
    return call->timer != NULL;
}

static void on_retry(void *arg)
{
    run(arg);
}

/* Nothing of the task was run yet. */
static void try_again(struct code_call *call)
{
    drop_try(call);
    if (call->cancelled)
        conclude(call, CODE_END_CANCELLED, 0);
    else if (call->retries++ >= CODE_RETRIES_MAX || !later(call, on_retry, CODE_RETRY_MS))
        give_up(call, 503, "The task could not be started, try again later");
}

static void on_refused(struct code_child *child, enum code_refusal why)
{
    struct code_call *call = of_child(child);

    if (why == CODE_REFUSED_INVALID) {
        SK_LOG_ERROR("a zygote calls a task invalid", SK_F("kind", code_kind_name(call->kind)));
        drop_try(call);
        give_up(call, 503, "The task could not be started");
        return;
    }
    try_again(call);
}

static void on_ended(struct code_child *child, const struct code_message *message)
{
    struct code_call *call = of_child(child);

    call->ended = *message;
    call->child_over = true;
    if (!call->pipe_over && read_pipe(call))
        call->pipe_over = true;
    if (!call->pipe_over && !later(call, on_pipe_late, CODE_PIPE_WAIT_MS))
        call->pipe_over = true;
    finish(call);
}

static void on_lost(struct code_child *child, bool started)
{
    struct code_call *call = of_child(child);

    if (started)
        conclude(call, CODE_END_KILLED, SIGKILL);
    else
        try_again(call);
}

static const struct code_child_ops child_ops = {.refused = on_refused, .ended = on_ended, .lost = on_lost};

static void on_broken(void *arg, const char *why)
{
    struct code_call *call = arg;

    SK_LOG_WARN("a task broke its line to the broker", SK_F("kind", code_kind_name(call->kind)), SK_F("why", why),
                SK_FI("task", call->number));
    code_child_kill(&call->child, CODE_END_CRASHED);
}

/* ---- running ------------------------------------------------------------------------------------ */
static bool make_input(struct code_call *call)
{
    struct code_task task = {
        .code = call->request.code,
        .code_length = call->request.code_length,
        .variables = call->request.variables,
        .variables_length = call->request.variables_length,
        .strict = call->host->config->compat_strict,
        .limits = call->host->limits,
    };

    task.limits.timeout_ms = call->request.timeout_ms;
    call->input_fd = code_input_create(&task);
    if (call->input_fd >= 0) /* it holds everything that a task needs, however often it is begun */
        sk_buf_fini(&call->body);
    return call->input_fd >= 0;
}

static bool make_rpc(struct code_call *call, int *theirs)
{
    const struct code_limits *limits = &call->host->limits;
    char name[32];
    struct code_rpc_options options = {
        .loop = call->host->loop,
        .broker = call->host->broker,
        .task_id = name,
        .queue_id = call->request.queue_id,
        .limits = {.request_max = limits->request_max,
                   .timeout_ms = limits->request_timeout_ms,
                   .body_bytes = limits->request_body_bytes,
                   .response_bytes = limits->response_bytes},
        .broken = on_broken,
        .arg = call,
    };
    int pair[2];

    snprintf(name, sizeof(name), "%llu", (unsigned long long)call->number);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    if (fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0)
        call->rpc = code_rpc_new(&options, pair[0]);
    if (call->rpc == NULL) {
        close(pair[0]);
        close(pair[1]);
        return false;
    }
    *theirs = pair[1];
    return true;
}

static bool make_pipe(struct code_call *call, int *theirs)
{
    int pair[2];

    if (pipe2(pair, O_CLOEXEC) != 0)
        return false;
    call->pipe_fd = pair[0];
    *theirs = pair[1];
    call->pipe = calloc(1, sizeof(*call->pipe));
    if (call->pipe == NULL || fcntl(pair[0], F_SETFL, O_NONBLOCK) != 0 ||
        uv_poll_init(sk_loop_uv(call->host->loop), call->pipe, pair[0]) != 0) {
        free(call->pipe);
        call->pipe = NULL;
        return false;
    }
    call->pipe->data = call;
    uv_poll_start(call->pipe, UV_READABLE, on_pipe);
    sk_buf_init(&call->frame, (size_t)call->host->limits.output_bytes + FRAME_SLACK);
    return true;
}

static bool begin(struct code_call *call)
{
    struct code_host *host = call->host;
    int64_t timeout = call->request.timeout_ms;
    int fds[3] = {-1, -1, -1};

    if ((call->input_fd < 0 && !make_input(call)) || (fds[0] = fcntl(call->input_fd, F_DUPFD_CLOEXEC, 0)) < 0 ||
        !make_pipe(call, &fds[1]) || !make_rpc(call, &fds[2]))
        goto out;
    memset(&call->child, 0, sizeof(call->child));
    call->child.ops = &child_ops;
    call->child.limits.memory_bytes = host->memory_bytes;
    call->child.limits.wall_ms = timeout + CODE_WALL_GRACE_MS;
    call->child.limits.cpu_ms = timeout + CODE_CPU_GRACE_MS;
    call->child.limits.tmp_bytes = host->limits.tmp_bytes;
    if (code_zygotes_start(host->zygotes, call->kind, &call->child, fds))
        return true;
    errno = EAGAIN;
out:
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    return false;
}

/* Begins its task at a zygote, now or when there is one. */
static void run(struct code_call *call)
{
    struct code_host *host = call->host;

    if (call->cancelled) {
        conclude(call, CODE_END_CANCELLED, 0);
        return;
    }
    if (!code_zygotes_serving(host->zygotes, call->kind)) {
        if (call->stalled_ms == 0)
            call->stalled_ms = sk_mono_ms(&sk_sched_system);
        sk_list_push_back(&host->stalled, &call->stall);
        return;
    }
    if (begin(call)) {
        call->stalled_ms = 0;
        call->begun_ms = sk_mono_ms(&sk_sched_system);
        return;
    }
    if (call->retries == 0) /* it is tried again and again, and said once */
        SK_LOG_WARN("a task cannot be begun", SK_F("kind", code_kind_name(call->kind)),
                    SK_F("reason", strerror(errno)));
    try_again(call);
}

void code_host_unstall(struct code_host *host)
{
    struct sk_list waiting;

    sk_list_init(&waiting);
    while (!sk_list_empty(&host->stalled)) {
        struct sk_list *at = sk_list_pop_front(&host->stalled);
        sk_list_push_back(&waiting, at);
    }
    while (!sk_list_empty(&waiting)) /* run() puts those back whose kind is not there */
        run(SK_LIST_ENTRY(struct code_call, sk_list_pop_front(&waiting), stall));
}

void code_host_pump(struct code_host *host)
{
    /* Tasks end inside, and that calls here again; and answers that nobody reads are a reason to make no more. */
    if (host->pumping || host->buffered_bytes > host->config->max_buffered_mb * 1024 * 1024)
        return;
    host->pumping = true;
    for (int pool = 0; pool < CODE_POOLS; pool++) {
        struct code_job *job;
        while ((job = code_queue_next(host->queue, (enum code_pool)pool, sk_mono_ms(&sk_sched_system))) != NULL) {
            struct code_call *call = SK_LIST_ENTRY(struct code_call, job, job);
            call->state = CODE_CALL_RUNNING;
            run(call);
        }
    }
    host->pumping = false;
}

/* ---- admission ---------------------------------------------------------------------------------- */
static bool names(const struct code_request *request, const char *word)
{
    return memmem(request->code, request->code_length, word, strlen(word)) != NULL;
}

/* contract/code.md §2: full Python iff one of its modules is named anywhere. */
static enum code_kind_index kind_of(const struct code_call *call)
{
    if (call->pool == CODE_POOL_JS)
        return CODE_KIND_JS;
    return names(&call->request, "numpy") || names(&call->request, "pandas") || names(&call->request, "matplotlib")
               ? CODE_KIND_FULL
               : CODE_KIND_LEAN;
}

static bool down_for_long(const struct code_host *host, enum code_pool pool)
{
    return host->down_ms[pool] != 0 && sk_mono_ms(&sk_sched_system) - host->down_ms[pool] >= CODE_ZYGOTE_WAIT_MS;
}

void code_call_admit(struct code_call *call)
{
    static const enum code_refused refused[] = {[CODE_FULL] = CODE_COUNT_FULL,
                                                [CODE_DRAINING] = CODE_COUNT_DRAINING,
                                                [CODE_NOT_READY] = CODE_COUNT_NOT_READY,
                                                [CODE_NO_MEMORY] = CODE_COUNT_FULL};
    struct code_host *host = call->host;
    struct code_rejection rejection;
    enum code_admission admission;
    size_t length = sk_buf_len(&call->body);
    /* The buffer is ours: the parser decodes in place, where nobody else looks. */
    char *body = length > 0 ? (char *)(uintptr_t)sk_buf_data(&call->body) : NULL;

    sk_list_remove(&call->link);
    sk_list_push_back(&host->live, &call->link);
    if (!code_request_parse(body, length, host->config->max_timeout_ms, &call->request, &rejection)) {
        code_metrics_refused(CODE_COUNT_INVALID);
        code_call_refuse(call, rejection.status, rejection.message);
        return;
    }
    call->number = ++host->last_task;
    if (down_for_long(host, call->pool))
        admission = CODE_NOT_READY;
    else
        admission =
            code_queue_add(host->queue, &call->job, call->pool, call->request.queue_id, sk_mono_ms(&sk_sched_system));
    if (admission != CODE_ADMITTED) {
        code_metrics_refused(refused[admission]);
        code_answer_admission(admission, call->pool, &rejection);
        code_call_refuse(call, rejection.status, rejection.message);
        return;
    }
    call->state = CODE_CALL_WAITING;
    call->kind = kind_of(call);
    code_host_pump(host);
}

/* ---- clients that leave ------------------------------------------------------------------------- */
void code_call_gone(struct code_call *call)
{
    struct code_host *host = call->host;

    if (call->cancelled || (call->state != CODE_CALL_WAITING && call->state != CODE_CALL_RUNNING))
        return;
    call->cancelled = true;
    if (code_queue_leave(host->queue, &call->job)) {
        conclude(call, CODE_END_CANCELLED, 0);
        return;
    }
    if (call->child.zygote != NULL)
        code_child_kill(&call->child, CODE_END_CANCELLED);
    else if (!call->child_over) /* it waits for a zygote */
        conclude(call, CODE_END_CANCELLED, 0);
}

void code_call_closed(struct code_call *call)
{
    struct code_host *host = call->host;

    call->x = NULL;
    if (call->state != CODE_CALL_RECEIVING && call->state != CODE_CALL_ANSWERED) {
        code_call_gone(call);
        return;
    }
    free_call(call);
    code_host_pump(host); /* there may be room again */
}

/* ---- bounds in time ----------------------------------------------------------------------------- */
void code_host_sweep(void *arg)
{
    struct code_host *host = arg;
    struct code_rejection rejection;
    int64_t now = sk_mono_ms(&sk_sched_system);

    SK_LIST_FOREACH (struct code_call, call, &host->receiving, link) {
        if (now - call->since_ms < CODE_BODY_MS)
            break;
        code_metrics_refused(CODE_COUNT_SLOW);
        code_call_refuse(call, 408, "Request body came too slowly");
    }
    SK_LIST_FOREACH (struct code_call, call, &host->stalled, stall) {
        if (now - call->stalled_ms < CODE_ZYGOTE_WAIT_MS)
            continue;
        sk_list_remove(&call->stall);
        code_answer_admission(CODE_NOT_READY, call->pool, &rejection);
        give_up(call, rejection.status, rejection.message);
    }
    for (int pool = 0; pool < CODE_POOLS; pool++) {
        struct code_job *job;
        code_answer_admission(CODE_NOT_READY, (enum code_pool)pool, &rejection);
        while (down_for_long(host, (enum code_pool)pool) &&
               (job = code_queue_flush(host->queue, (enum code_pool)pool)) != NULL)
            code_call_refuse(SK_LIST_ENTRY(struct code_call, job, job), rejection.status, rejection.message);
    }
    SK_LIST_FOREACH (struct code_call, call, &host->live, link) {
        if (call->state == CODE_CALL_RUNNING && call->child.zygote != NULL &&
            now - call->begun_ms > call->child.limits.wall_ms + CODE_OVERDUE_MS)
            code_child_suspect(&call->child);
    }
}

void code_host_give_up(struct code_host *host)
{
    for (int pool = 0; pool < CODE_POOLS; pool++) {
        struct code_job *job;
        while ((job = code_queue_flush(host->queue, (enum code_pool)pool)) != NULL)
            code_call_refuse(SK_LIST_ENTRY(struct code_call, job, job), 200, "Pool is shutting down");
    }
    SK_LIST_FOREACH (struct code_call, call, &host->live, link) {
        if (call->state == CODE_CALL_RUNNING)
            code_call_gone(call);
    }
}

void code_host_free_calls(struct code_host *host)
{
    struct sk_list *lists[] = {&host->receiving, &host->live};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct sk_list *at;
        while ((at = sk_list_pop_front(lists[i])) != NULL) {
            struct code_call *call = SK_LIST_ENTRY(struct code_call, at, link);
            (void)code_queue_leave(host->queue, &call->job);
            code_queue_done(host->queue, &call->job);
            free_call(call);
        }
    }
}
