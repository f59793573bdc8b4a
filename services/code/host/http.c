/* SPDX-License-Identifier: Apache-2.0
 *
 * The routes (reference A1). Whatever can be judged by the head of a request is answered before its body: token,
 * length, room for the body. */
#include "services/code/host/host.h"

#include <stdio.h>
#include <string.h>

#define HEALTH_BYTES  4096
#define MODULES_BYTES (64 * 1024)

/* ---- calls -------------------------------------------------------------------------------------- */
static void too_large(struct code_call *call)
{
    struct code_rejection rejection;

    code_request_too_large(call->host->config->api_max_body_mb, &rejection);
    code_metrics_refused(CODE_COUNT_TOO_LARGE);
    code_call_refuse(call, rejection.status, rejection.message);
}

static void no_room(struct code_call *call)
{
    code_metrics_refused(CODE_COUNT_BUFFERED);
    code_call_refuse(call, 429, "Too many request bodies at once, try again later");
}

static void on_body(struct sk_stream *x, const char *data, size_t length)
{
    struct code_call *call = sk_stream_arg(x);

    if (call->state != CODE_CALL_RECEIVING)
        return;
    if (sk_stream_body_length(x) == SK_STREAM_CHUNKED && !code_call_buffer(call, (int64_t)length))
        no_room(call);
    else if (!sk_buf_append(&call->body, data, length)) /* its bound is the limit */
        too_large(call);
}

static void on_end(struct sk_stream *x)
{
    struct code_call *call = sk_stream_arg(x);

    if (call->state == CODE_CALL_RECEIVING)
        code_call_admit(call);
}

static void on_gone(struct sk_stream *x)
{
    code_call_gone(sk_stream_arg(x));
}

static void on_close(struct sk_stream *x, bool complete)
{
    (void)complete;
    code_call_closed(sk_stream_arg(x));
}

static const struct sk_stream_ops call_ops = {
    .on_body = on_body, .on_end = on_end, .on_gone = on_gone, .on_close = on_close};

static void run_code(struct code_host *host, struct sk_stream *x, enum code_pool pool)
{
    int64_t declared = sk_stream_body_length(x), limit = host->config->api_max_body_mb * 1024 * 1024;
    struct code_call *call = code_call_new(host, x, pool);

    if (call == NULL) {
        sk_stream_abort(x);
        return;
    }
    sk_stream_set(x, &call_ops, call);
    if (declared > limit)
        too_large(call);
    else if (declared > 0 && !code_call_buffer(call, declared))
        no_room(call);
    else if (!sk_stream_has_body(x))
        code_call_admit(call);
}

/* ---- the others --------------------------------------------------------------------------------- */
static void text(struct sk_stream *x, int status, const char *body)
{
    sk_stream_reply(x, status, "text/plain; charset=UTF-8", body, strlen(body));
}

static void show_health(struct code_host *host, struct sk_stream *x)
{
    struct code_health health = {.level = host->level, .draining = host->draining};
    struct sk_buf out;
    int status;

    for (int i = 0; i < CODE_POOLS; i++)
        health.pools[i] = code_queue_pool(host->queue, (enum code_pool)i);
    health.warming[CODE_POOL_JS] = code_zygotes_warming(host->zygotes, CODE_KIND_JS);
    health.warming[CODE_POOL_PYTHON] =
        code_zygotes_warming(host->zygotes, CODE_KIND_LEAN) + code_zygotes_warming(host->zygotes, CODE_KIND_FULL);
    sk_buf_init(&out, HEALTH_BYTES);
    status = code_answer_health(&health, &out);
    if (status != 0)
        sk_stream_reply(x, status, "application/json", sk_buf_data(&out), sk_buf_len(&out));
    else
        text(x, 500, "Internal Server Error");
    sk_buf_fini(&out);
}

static void show_modules(struct code_host *host, struct sk_stream *x)
{
    struct sk_buf out;

    sk_buf_init(&out, MODULES_BYTES);
    if (code_answer_modules(host->js_modules, host->python_modules, &out))
        sk_stream_reply(x, 200, "application/json", sk_buf_data(&out), sk_buf_len(&out));
    else
        text(x, 500, "Internal Server Error");
    sk_buf_fini(&out);
}

static bool let_in(struct code_host *host, struct sk_stream *x)
{
    enum code_auth auth =
        code_auth_check(host->config->token, sk_stream_header(x, "Authorization"), sk_stream_header(x, "X-Api-Key"));
    const struct code_auth_answer *answer;
    struct sk_stream_header challenge;

    if (auth == CODE_AUTH_GOOD)
        return true;
    answer = code_auth_answer(auth);
    challenge = (struct sk_stream_header){"WWW-Authenticate", answer->challenge};
    code_metrics_refused(CODE_COUNT_AUTH);
    sk_stream_reply_with(x, answer->status, &challenge, 1, "text/plain; charset=UTF-8", answer->body,
                         strlen(answer->body));
    return false;
}

void code_http_request(void *arg, struct sk_stream *x)
{
    static const struct sk_stream_ops no_ops = {.on_body = NULL};
    struct code_host *host = arg;
    const char *path = sk_stream_path(x), *method = sk_stream_method(x);
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0, post = strcmp(method, "POST") == 0;

    sk_stream_set(x, &no_ops, host);
    if (get && strcmp(path, "/health") == 0) {
        show_health(host, x);
        return;
    }
    if ((strcmp(path, "/sandbox") == 0 || strncmp(path, "/sandbox/", 9) == 0) && !let_in(host, x))
        return;
    if (post && strcmp(path, "/sandbox/js") == 0)
        run_code(host, x, CODE_POOL_JS);
    else if (post && strcmp(path, "/sandbox/python") == 0)
        run_code(host, x, CODE_POOL_PYTHON);
    else if (get && strcmp(path, "/sandbox/modules") == 0)
        show_modules(host, x);
    else
        text(x, 404, "404 Not Found");
}
