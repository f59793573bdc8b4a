/* SPDX-License-Identifier: Apache-2.0
 *
 * The client half: one connection, one request, as a proxy needs it. Body bytes of the response are handed on as they
 * come; the end of the response is the end of the call. */
#include "common/http/stream/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum call_phase { CALL_HEAD, CALL_BODY, CALL_TUNNEL, CALL_DONE };

struct sk_stream_call {
    struct sk_conn conn; /* first: callbacks cast */
    uv_connect_t connect_req;
    struct sk_stream_limits limits;
    const struct sk_stream_call_ops *ops;
    void *arg;
    struct sk_message message;
    struct sk_pending pending;
    struct sk_pending early; /* written before the connection stood */
    enum call_phase phase;
    int error;
    bool connected, connecting, paused, chunked, ended, eof, busy, head_request, upgrade, told_end, shut_early, cut;
};

static void advance(struct sk_stream_call *call, const char *data, size_t len);

static void finish(struct sk_stream_call *call, int error)
{
    if (call->cut)
        return;
    call->cut = true;
    call->error = error;
    sk_conn_close(&call->conn);
}

static void conn_closed(struct sk_conn *conn)
{
    struct sk_stream_call *call = (struct sk_stream_call *)conn;
    if (call->ops->on_close != NULL)
        call->ops->on_close(call, call->error);
    sk_message_free(&call->message);
    sk_pending_free(&call->pending);
    sk_pending_free(&call->early);
    free(call);
}

static void on_message_body(void *arg, const char *data, size_t len)
{
    struct sk_stream_call *call = arg;
    if (call->limits.body_bytes > 0 && call->message.body_seen > call->limits.body_bytes) {
        call->error = UV_E2BIG;
        return;
    }
    if (call->ops->on_body != NULL)
        call->ops->on_body(call, data, len);
}

static void begin_head(struct sk_stream_call *call)
{
    sk_message_free(&call->message);
    sk_message_init(&call->message, false, &call->limits);
    call->message.no_body = call->head_request;
    call->message.on_body = on_message_body;
    call->message.arg = call;
    call->phase = CALL_HEAD;
}

static size_t step_head(struct sk_stream_call *call, const char *data, size_t len)
{
    size_t used = 0;
    const char *why = NULL;
    int rc = sk_message_head(&call->message, data, len, &used, &why);
    if (rc == 0)
        return used;
    if (rc != 1) {
        finish(call, UV_EPROTO);
        return used;
    }
    int status = (int)call->message.parser.status_code;
    if (status == 101 && call->upgrade) {
        call->phase = CALL_TUNNEL;
        sk_conn_timeout(&call->conn, call->limits.tunnel_ms);
    } else if (status >= 100 && status < 200) {
        if (status == 101) {
            finish(call, UV_EPROTO);
            return used;
        }
        begin_head(call); /* interim answers are dropped */
        return used;
    } else {
        call->phase = CALL_BODY;
        sk_conn_timeout(&call->conn, call->limits.body_ms);
    }
    if (call->ops->on_response != NULL)
        call->ops->on_response(call, status);
    return used;
}

static void advance(struct sk_stream_call *call, const char *data, size_t len)
{
    if (call->busy || call->cut)
        return;
    call->busy = true;
    bool own = call->pending.len > 0;
    if (own && len > 0) {
        if (!sk_pending_add(&call->pending, data, len))
            call->error = UV_ENOMEM;
        len = 0;
    }
    while (!call->cut && call->error == 0) {
        const char *p = own ? call->pending.data + call->pending.offset : data;
        size_t n = own ? call->pending.len : len;
        size_t used = 0;
        if (call->paused && call->phase != CALL_HEAD)
            break;
        if (call->phase == CALL_HEAD && n > 0) {
            used = step_head(call, p, n);
        } else if (call->phase == CALL_BODY && !call->message.complete && n > 0) {
            sk_conn_timeout(&call->conn, call->limits.body_ms);
            long took = sk_message_body(&call->message, p, n);
            if (took < 0)
                call->error = UV_EPROTO;
            else
                used = (size_t)took;
        } else if (call->phase == CALL_TUNNEL && n > 0) {
            sk_conn_timeout(&call->conn, call->limits.tunnel_ms);
            if (call->ops->on_body != NULL)
                call->ops->on_body(call, p, n);
            used = n;
        }
        if (own)
            sk_pending_take(&call->pending, used);
        else {
            data += used;
            len -= used;
        }
        if (used == 0)
            break;
    }
    if (!own && len > 0 && !call->cut && call->error == 0 && !call->message.complete &&
        !sk_pending_add(&call->pending, data, len))
        call->error = UV_ENOMEM;
    if (call->eof && !call->cut && call->error == 0 && !call->paused && call->pending.len == 0 &&
        call->phase == CALL_BODY && !call->message.complete) {
        if (sk_message_body(&call->message, NULL, 0) < 0 || !call->message.complete)
            call->error = UV_EOF; /* ended early: a cut answer is never taken for a whole one */
    }
    call->busy = false;
    if (call->cut)
        return;
    if (call->error != 0) {
        finish(call, call->error);
        return;
    }
    bool over = (call->phase == CALL_BODY && call->message.complete) ||
                (call->phase == CALL_TUNNEL && call->eof && call->pending.len == 0);
    if (over && !call->paused && !call->told_end) {
        call->told_end = true;
        if (call->ops->on_end != NULL)
            call->ops->on_end(call);
    }
    if (call->told_end && (call->phase == CALL_BODY || call->ended)) {
        finish(call, 0);
        return;
    }
    if (call->eof && call->phase == CALL_HEAD) {
        finish(call, UV_EOF);
        return;
    }
    if (!call->eof && call->connected)
        sk_conn_read(&call->conn, !call->paused);
}

static void conn_read(struct sk_conn *conn, const char *data, size_t len)
{
    advance((struct sk_stream_call *)conn, data, len);
}

static void conn_eof(struct sk_conn *conn)
{
    struct sk_stream_call *call = (struct sk_stream_call *)conn;
    call->eof = true;
    advance(call, NULL, 0);
}

static void conn_error(struct sk_conn *conn, int error)
{
    struct sk_stream_call *call = (struct sk_stream_call *)conn;
    /* An answer may already be here although the peer stopped reading our body: read it first. */
    if (error == UV_EPIPE && call->phase == CALL_HEAD && !call->eof) {
        conn->failed = 0;
        call->ended = true;
        return;
    }
    finish(call, error);
}

static void conn_drain(struct sk_conn *conn)
{
    struct sk_stream_call *call = (struct sk_stream_call *)conn;
    if (!call->cut && call->ops->on_drain != NULL)
        call->ops->on_drain(call);
}

static void conn_flushed(struct sk_conn *conn)
{
    advance((struct sk_stream_call *)conn, NULL, 0);
}

static void conn_read_timeout(struct sk_conn *conn)
{
    finish((struct sk_stream_call *)conn, UV_ETIMEDOUT);
}

static void conn_kick(struct sk_conn *conn)
{
    struct sk_stream_call *call = (struct sk_stream_call *)conn;
    if (call->error != 0)
        finish(call, call->error);
    else
        advance(call, NULL, 0);
}

static const struct sk_conn_ops conn_ops = {
    .on_read = conn_read,
    .on_eof = conn_eof,
    .on_error = conn_error,
    .on_drain = conn_drain,
    .on_flushed = conn_flushed,
    .on_read_timeout = conn_read_timeout,
    .on_kick = conn_kick,
    .on_closed = conn_closed,
};

static void connected(struct sk_stream_call *call)
{
    call->connected = true;
    if (call->early.len > 0) {
        sk_conn_write(&call->conn, call->early.data + call->early.offset, call->early.len);
        sk_pending_free(&call->early);
    }
    if (call->shut_early)
        sk_conn_shutdown(&call->conn);
    sk_conn_read(&call->conn, true);
    if (!call->conn.over && call->ops->on_drain != NULL)
        call->ops->on_drain(call);
}

static void on_connect(uv_connect_t *req, int status)
{
    struct sk_stream_call *call = req->data;
    call->connecting = false;
    if (call->cut)
        return;
    if (status < 0)
        finish(call, status);
    else
        connected(call);
}

static struct sk_stream_call *call_new(const struct sk_stream_limits *limits, const struct sk_stream_call_ops *ops,
                                       void *arg)
{
    struct sk_stream_call *call = calloc(1, sizeof(*call));
    if (call == NULL)
        return NULL;
    call->limits = *limits;
    call->ops = ops;
    call->arg = arg;
    begin_head(call);
    return call;
}

static void call_ready(struct sk_stream_call *call, uv_loop_t *loop)
{
    sk_conn_init(&call->conn, loop, &conn_ops, call->limits.write_high, call->limits.write_ms);
    call->connect_req.data = call;
    sk_conn_timeout(&call->conn, call->limits.idle_ms);
}

static void fail_later(struct sk_stream_call *call, int error)
{
    call->error = error;
    sk_conn_kick(&call->conn);
}

struct sk_stream_call *sk_stream_call_unix(uv_loop_t *loop, const struct sk_stream_limits *limits, const char *path,
                                           const struct sk_stream_call_ops *ops, void *arg)
{
    struct sk_stream_call *call = call_new(limits, ops, arg);
    if (call == NULL)
        return NULL;
    uv_pipe_init(loop, &call->conn.u.pipe, 0);
    call_ready(call, loop);
    call->connecting = true;
    uv_pipe_connect(&call->connect_req, &call->conn.u.pipe, path, on_connect);
    return call;
}

struct sk_stream_call *sk_stream_call_tcp(uv_loop_t *loop, const struct sk_stream_limits *limits,
                                          const struct sockaddr *to, const struct sk_stream_call_ops *ops, void *arg)
{
    struct sk_stream_call *call = call_new(limits, ops, arg);
    if (call == NULL)
        return NULL;
    uv_tcp_init(loop, &call->conn.u.tcp);
    call_ready(call, loop);
    call->connecting = true;
    int rc = uv_tcp_connect(&call->connect_req, &call->conn.u.tcp, to, on_connect);
    if (rc < 0)
        fail_later(call, rc);
    else
        uv_tcp_nodelay(&call->conn.u.tcp, 1);
    return call;
}

struct sk_stream_call *sk_stream_call_fd(uv_loop_t *loop, const struct sk_stream_limits *limits, int fd,
                                         const struct sk_stream_call_ops *ops, void *arg)
{
    struct sk_stream_call *call = call_new(limits, ops, arg);
    if (call == NULL)
        return NULL;
    uv_tcp_init(loop, &call->conn.u.tcp);
    call_ready(call, loop);
    int rc = uv_tcp_open(&call->conn.u.tcp, fd);
    if (rc < 0) {
        close(fd);
        fail_later(call, rc);
        return call;
    }
    call->connected = true;
    sk_conn_read(&call->conn, true);
    return call;
}

void *sk_stream_call_arg(const struct sk_stream_call *call)
{
    return call->arg;
}

static bool put(struct sk_stream_call *call, const void *data, size_t len)
{
    if (call->cut || len == 0)
        return true;
    if (!call->connected) {
        if (!sk_pending_add(&call->early, data, len))
            fail_later(call, UV_ENOMEM);
        return call->early.len <= call->conn.high;
    }
    sk_conn_write(&call->conn, data, len);
    return !call->conn.over && !call->conn.failed;
}

void sk_stream_call_request(struct sk_stream_call *call, const char *method, const char *target,
                            const struct sk_stream_header *headers, size_t count, int64_t body_length,
                            const char *upgrade_to)
{
    size_t size = strlen(method) + strlen(target) + 256 + (upgrade_to != NULL ? strlen(upgrade_to) : 0);
    for (size_t i = 0; i < count; i++)
        size += strlen(headers[i].name) + strlen(headers[i].value) + 4;
    char *head = malloc(size);
    if (head == NULL) {
        fail_later(call, UV_ENOMEM);
        return;
    }
    char *p = head;
    p += sprintf(p, "%s %s HTTP/1.1\r\n", method, target);
    for (size_t i = 0; i < count; i++)
        p += sprintf(p, "%s: %.*s\r\n", headers[i].name, (int)strcspn(headers[i].value, "\r\n"), headers[i].value);
    if (body_length == SK_STREAM_CHUNKED)
        p += sprintf(p, "Transfer-Encoding: chunked\r\n");
    else if (body_length > 0 || strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 ||
             strcmp(method, "PATCH") == 0)
        p += sprintf(p, "Content-Length: %lld\r\n", (long long)body_length);
    if (upgrade_to != NULL)
        p += sprintf(p, "Connection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgrade_to);
    else
        p += sprintf(p, "Connection: close\r\n\r\n");
    call->chunked = body_length == SK_STREAM_CHUNKED;
    call->upgrade = upgrade_to != NULL;
    call->head_request = strcmp(method, "HEAD") == 0;
    call->message.no_body = call->head_request;
    put(call, head, (size_t)(p - head));
    free(head);
}

bool sk_stream_call_write(struct sk_stream_call *call, const void *data, size_t len)
{
    if (call->ended || len == 0)
        return true;
    if (!call->chunked || call->phase == CALL_TUNNEL)
        return put(call, data, len);
    char line[32];
    int n = snprintf(line, sizeof(line), "%zx\r\n", len);
    put(call, line, (size_t)n);
    put(call, data, len);
    return put(call, "\r\n", 2);
}

void sk_stream_call_end(struct sk_stream_call *call)
{
    if (call->ended)
        return;
    if (call->phase == CALL_TUNNEL) {
        if (call->connected)
            sk_conn_shutdown(&call->conn);
        else
            call->shut_early = true;
        sk_conn_kick(&call->conn);
    } else if (call->chunked) {
        put(call, "0\r\n\r\n", 5);
    }
    call->ended = call->phase == CALL_TUNNEL || call->chunked || !call->upgrade;
}

void sk_stream_call_pause(struct sk_stream_call *call)
{
    call->paused = true;
    sk_message_pause(&call->message);
    if (call->connected)
        sk_conn_read(&call->conn, false);
}

void sk_stream_call_resume(struct sk_stream_call *call)
{
    if (!call->paused)
        return;
    call->paused = false;
    sk_conn_kick(&call->conn);
}

void sk_stream_call_abort(struct sk_stream_call *call)
{
    if (call->cut || call->error != 0)
        return;
    fail_later(call, UV_ECANCELED);
}

const char *sk_stream_call_header(const struct sk_stream_call *call, const char *name)
{
    return sk_message_header(&call->message, name);
}

const struct sk_stream_header *sk_stream_call_headers(const struct sk_stream_call *call, size_t *count)
{
    *count = call->message.count;
    return call->message.headers;
}

int64_t sk_stream_call_body_length(const struct sk_stream_call *call)
{
    return call->message.parser.flags & F_CONTENTLENGTH ? call->message.declared : SK_STREAM_CHUNKED;
}
