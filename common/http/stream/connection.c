/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine of one server connection: head, exchange, tunnel, linger. All progress happens in `advance`, which is
 * entered from the loop only (read, drain, kick), so that a user's call never re-enters a user's callback. */
#include "common/http/stream/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void advance(struct connection *c, const char *data, size_t len);

static void close_exchange(struct connection *c, bool complete)
{
    struct sk_stream *x = c->x;
    if (x == NULL)
        return;
    c->x = NULL;
    if (x->ops != NULL && x->ops->on_close != NULL)
        x->ops->on_close(x, complete);
    sk_message_free(&x->message);
    free(x->path);
    free(x->query);
    free(x->body);
    free(x);
}

void sk_connection_cut(struct connection *c)
{
    if (c->cut)
        return;
    c->cut = true;
    close_exchange(c, false);
    sk_conn_close(&c->conn);
}

static void fail_head(struct connection *c, int status, const char *why)
{
    char text[512], body[256];
    c->server->counters.bad_requests++;
    int b = snprintf(body, sizeof(body), "{\"code\":\"%s\",\"message\":\"%s\"}",
                     status == 408 ? "REQUEST_TIMEOUT" : "BAD_REQUEST", why);
    int n = snprintf(
        text, sizeof(text),
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status,
        sk_stream_reason(status), b, body);
    sk_conn_write(&c->conn, text, (size_t)n);
    c->phase = PHASE_LINGER;
    c->linger_after = true;
    sk_conn_read(&c->conn, true);
    sk_conn_shutdown(&c->conn);
    sk_conn_timeout(&c->conn, LINGER_MS);
}

static void on_message_body(void *arg, const char *data, size_t len)
{
    struct sk_stream *x = arg;
    if (x->body_limit > 0 && x->message.body_seen > x->body_limit) {
        if (!x->started)
            sk_exchange_error(x, 413, "BODY_TOO_LARGE", "the request body is too large");
        else
            sk_stream_abort(x);
        return;
    }
    if (!x->ended && x->ops != NULL && x->ops->on_body != NULL)
        x->ops->on_body(x, data, len);
}

static bool split_target(struct sk_stream *x)
{
    char *url = x->message.url;
    if (url == NULL)
        return false;
    if (url[0] != '/') {
        if (strncasecmp(url, "http://", 7) == 0) { /* absolute form: RFC 9112 §3.2.2 obliges servers to accept it */
            char *slash = strchr(url + 7, '/');
            char *origin = strdup(slash != NULL ? slash : "/");
            if (origin == NULL)
                return false;
            free(url);
            x->message.url = url = origin;
        } else if (!(strcmp(url, "*") == 0 && x->message.parser.method == HTTP_OPTIONS)) {
            return false;
        }
    }
    size_t hash = strcspn(url, "#");
    url[hash] = '\0';
    size_t path = strcspn(url, "?");
    x->path = strndup(url, path);
    x->query = strdup(url[path] == '?' ? url + path + 1 : "");
    return x->path != NULL && x->query != NULL;
}

static void begin_exchange(struct connection *c)
{
    struct sk_stream *x = calloc(1, sizeof(*x));
    if (x == NULL) {
        sk_connection_cut(c);
        return;
    }
    x->conn = c;
    x->message = c->head;
    c->head = (struct sk_message){0};
    x->message.parser.data = &x->message;
    x->message.on_body = on_message_body;
    x->message.arg = x;
    x->body_limit = c->server->limits.body_bytes;
    x->keep_alive = http_should_keep_alive(&x->message.parser) && !c->server->draining;
    if (sk_stream_is_upgrade(x)) /* http_parser calls an upgrade the last message; we may still refuse it */
        x->keep_alive = x->message.parser.http_minor >= 1;
    c->server->counters.requests++;
    if (!split_target(x)) {
        sk_message_free(&x->message);
        free(x->path);
        free(x->query);
        free(x);
        fail_head(c, 400, "bad request target");
        return;
    }
    c->x = x;
    c->phase = PHASE_EXCHANGE;
    sk_conn_timeout(&c->conn, 0);
    const char *expect = sk_stream_header(x, "expect");
    if (expect != NULL && x->message.parser.http_minor >= 1) {
        if (strcasecmp(expect, "100-continue") != 0) {
            sk_exchange_error(x, 417, "EXPECTATION_FAILED", "unknown expectation");
            return;
        }
        x->wants_continue = x->message.declared != 0;
    }
    if (x->body_limit > 0 && x->message.declared > x->body_limit) {
        sk_exchange_error(x, 413, "BODY_TOO_LARGE", "the request body is too large");
        return;
    }
    c->server->on_request(c->server->arg, x);
}

/* Everything is answered: what now happens with the connection. */
static void finish_exchange(struct connection *c)
{
    struct sk_stream *x = c->x;
    bool keep = x->keep_alive && x->message.complete && !c->server->draining && !c->eof;
    bool unread = !x->message.complete;
    close_exchange(c, true);
    if (keep) {
        c->phase = PHASE_IDLE;
        sk_conn_timeout(&c->conn, c->server->limits.idle_ms);
        return;
    }
    c->phase = PHASE_LINGER;
    c->linger_after = unread;
    sk_pending_free(&c->pending);
    sk_conn_shutdown(&c->conn);
    sk_conn_timeout(&c->conn, LINGER_MS);
}

static size_t step_head(struct connection *c, const char *data, size_t len)
{
    if (c->phase == PHASE_IDLE) {
        c->phase = PHASE_HEAD;
        sk_message_init(&c->head, true, &c->server->limits);
        sk_conn_timeout(&c->conn, c->server->limits.header_ms);
    }
    size_t used = 0;
    const char *why = "bad request";
    int rc = sk_message_head(&c->head, data, len, &used, &why);
    if (rc == 1)
        begin_exchange(c);
    else if (rc != 0)
        fail_head(c, rc, why);
    return used;
}

static size_t step_body(struct connection *c, const char *data, size_t len)
{
    struct sk_stream *x = c->x;
    if (x->wants_continue) {
        x->wants_continue = false;
        if (!x->started)
            sk_conn_write(&c->conn, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    if (!x->collecting && !x->ended)
        sk_conn_timeout(&c->conn, c->server->limits.body_ms);
    if (len == 0)
        return 0;
    long used = sk_message_body(&x->message, data, len);
    if (used < 0) {
        c->server->counters.bad_requests++;
        if (!x->started) {
            sk_exchange_error(x, 400, "BAD_REQUEST", "bad body framing");
            x->message.complete = true;
            x->end_told = true;
            return len;
        }
        sk_stream_abort(x);
        return len;
    }
    return (size_t)used;
}

/* The heart: consumes what it can, tells what is due, decides what the connection does next. */
static void advance(struct connection *c, const char *data, size_t len)
{
    if (c->busy || c->cut)
        return;
    c->busy = true;
    bool own = c->pending.len > 0;
    if (own && len > 0) {
        if (!sk_pending_add(&c->pending, data, len)) {
            c->busy = false;
            sk_connection_cut(c);
            return;
        }
        len = 0;
    }
    for (;;) {
        size_t n = own ? c->pending.len : len;
        const char *p = n == 0 ? NULL : own ? c->pending.data + c->pending.offset : data;
        size_t used = 0;
        bool again = false;
        struct sk_stream *x = c->x;
        if (c->cut)
            break;
        if (x != NULL && x->aborted) {
            sk_connection_cut(c);
            break;
        }
        if (c->phase == PHASE_LINGER) {
            used = n;
            c->lingered += n;
        } else if (c->phase == PHASE_TUNNEL) {
            /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a tunnel has its exchange */
            if (!x->paused && n > 0) {
                sk_conn_timeout(&c->conn, c->server->limits.tunnel_ms);
                if (x->ops != NULL && x->ops->on_body != NULL)
                    x->ops->on_body(x, p, n);
                used = n;
            }
            if (!x->paused && c->eof && used == n && !x->end_told) {
                x->end_told = true;
                if (x->ops != NULL && x->ops->on_end != NULL)
                    x->ops->on_end(x);
            }
            if (x->ended && x->end_told && sk_conn_queued(&c->conn) == 0) {
                sk_connection_cut(c);
                break;
            }
        } else if (c->phase == PHASE_EXCHANGE) {
            /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): an exchange phase has its exchange */
            if (x->upgraded) {
                c->phase = PHASE_TUNNEL;
                x->end_told = false;
                again = true;
            } else if (!x->message.complete && !x->paused && !(x->ended && x->discard)) {
                used = step_body(c, p, n);
                again = used > 0;
            } else if (x->message.complete && !x->end_told && !x->paused) {
                x->end_told = true;
                if (!x->collecting)
                    sk_conn_timeout(&c->conn, 0);
                if (!x->ended && x->ops != NULL && x->ops->on_end != NULL)
                    x->ops->on_end(x);
                again = true;
            } else if (x->ended && (x->message.complete || x->discard || !x->keep_alive)) {
                if (sk_conn_queued(&c->conn) <= c->conn.high) {
                    finish_exchange(c);
                    again = true;
                } /* else the drain comes back here */
            }
        } else if (n > 0) {
            used = step_head(c, p, n);
            again = true;
        }
        if (own) {
            sk_pending_take(&c->pending, used);
        } else if (used > 0) {
            data += used;
            len -= used;
        }
        if (!again && used == 0)
            break;
    }
    c->busy = false;
    if (c->cut)
        return;
    if (!own && len > 0 && !sk_pending_add(&c->pending, data, len)) {
        sk_connection_cut(c);
        return;
    }
    if (c->phase == PHASE_LINGER && c->lingered > LINGER_BYTES) {
        sk_connection_cut(c);
        return;
    }
    if (c->eof) {
        struct sk_stream *x = c->x;
        bool tunnel = c->phase == PHASE_TUNNEL;
        if (c->phase == PHASE_IDLE || c->phase == PHASE_HEAD ||
            (c->phase == PHASE_EXCHANGE && !x->message.complete && c->pending.len == 0)) {
            sk_connection_cut(c); /* nothing more can come that would make a whole request */
            return;
        }
        if (x != NULL && !tunnel && !x->gone_told && !x->ended) {
            x->gone_told = true;
            if (x->ops != NULL && x->ops->on_gone != NULL)
                x->ops->on_gone(x);
        }
        return;
    }
    bool wanted = true;
    if (c->x != NULL && c->x->paused && !c->x->message.complete)
        wanted = false; /* back-pressure of a body */
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a tunnel has its exchange */
    if (c->phase == PHASE_TUNNEL && c->x->paused)
        wanted = false;
    if (c->pending.len >= PIPELINE_MAX)
        wanted = false;
    sk_conn_read(&c->conn, wanted);
}

static void conn_read(struct sk_conn *conn, const char *data, size_t len)
{
    advance((struct connection *)conn, data, len);
}

static void conn_eof(struct sk_conn *conn)
{
    struct connection *c = (struct connection *)conn;
    c->eof = true;
    if (c->phase == PHASE_LINGER && c->flushed)
        sk_connection_cut(c); /* the peer has everything and has said its last word */
    else
        advance(c, NULL, 0);
}

static void conn_error(struct sk_conn *conn, int error)
{
    struct connection *c = (struct connection *)conn;
    if (error == UV_ETIMEDOUT)
        c->server->counters.timeouts++;
    sk_connection_cut(c);
}

static void conn_drain(struct sk_conn *conn)
{
    struct connection *c = (struct connection *)conn;
    struct sk_stream *x = c->x;
    if (x != NULL && !x->ended && !x->aborted && x->ops != NULL && x->ops->on_drain != NULL)
        x->ops->on_drain(x);
    advance(c, NULL, 0);
}

static void conn_flushed(struct sk_conn *conn)
{
    struct connection *c = (struct connection *)conn;
    c->flushed = true;
    if (c->phase == PHASE_TUNNEL) {
        advance(c, NULL, 0);
        return;
    }
    if (c->phase == PHASE_LINGER && (c->linger_after || c->lingered > 0) && !c->eof)
        return; /* wait for the peer's end of file or the timer */
    sk_connection_cut(c);
}

static void conn_read_timeout(struct sk_conn *conn)
{
    struct connection *c = (struct connection *)conn;
    c->server->counters.timeouts++;
    if (c->phase == PHASE_HEAD) {
        fail_head(c, 408, "the request did not arrive in time");
        return;
    }
    if (c->phase == PHASE_EXCHANGE && c->x != NULL && !c->x->started) {
        sk_exchange_error(c->x, 408, "REQUEST_TIMEOUT", "the request body did not arrive in time");
        return;
    }
    sk_connection_cut(c);
}

static void conn_kick(struct sk_conn *conn)
{
    advance((struct connection *)conn, NULL, 0);
}

void sk_server_check_drained(struct sk_stream_server *server)
{
    if (server->draining && server->count == 0 && server->on_drained != NULL) {
        void (*drained)(void *) = server->on_drained;
        server->on_drained = NULL;
        drained(server->drained_arg);
    }
}

void sk_server_check_closed(struct sk_stream_server *server)
{
    if (!server->closing || server->count > 0 || !server->listener_closed || server->freed || server->telling)
        return;
    server->freed = true;
    if (server->on_closed != NULL)
        server->on_closed(server->closed_arg);
    free(server);
}

static void conn_closed(struct sk_conn *conn)
{
    struct connection *c = (struct connection *)conn;
    struct sk_stream_server *server = c->server;
    if (c->previous != NULL)
        c->previous->next = c->next;
    else
        server->first = c->next;
    if (c->next != NULL)
        c->next->previous = c->previous;
    server->count--;
    sk_message_free(&c->head);
    sk_pending_free(&c->pending);
    free(c);
    server->telling = true; /* on_drained may close the server */
    sk_server_check_drained(server);
    server->telling = false;
    sk_server_check_closed(server);
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

static void peer_name(struct connection *c)
{
    struct sockaddr_storage address;
    int len = sizeof(address);
    if (uv_tcp_getpeername(&c->conn.u.tcp, (struct sockaddr *)&address, &len) != 0)
        return;
    if (address.ss_family == AF_INET)
        uv_ip4_name((struct sockaddr_in *)&address, c->peer, sizeof(c->peer));
    else if (address.ss_family == AF_INET6)
        uv_ip6_name((struct sockaddr_in6 *)&address, c->peer, sizeof(c->peer));
}

struct connection *sk_connection_new(struct sk_stream_server *server)
{
    struct connection *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return NULL;
    c->server = server;
    if (server->is_pipe)
        uv_pipe_init(server->loop, &c->conn.u.pipe, 0);
    else
        uv_tcp_init(server->loop, &c->conn.u.tcp);
    sk_conn_init(&c->conn, server->loop, &conn_ops, server->limits.write_high, server->limits.write_ms);
    c->conn.bytes_in = &server->counters.bytes_in;
    c->conn.bytes_out = &server->counters.bytes_out;
    c->next = server->first;
    if (server->first != NULL)
        server->first->previous = c;
    server->first = c;
    server->count++;
    return c;
}

void sk_connection_start(struct connection *c)
{
    struct sk_stream_server *server = c->server;
    server->counters.accepted++;
    if (!server->is_pipe) {
        uv_tcp_nodelay(&c->conn.u.tcp, 1);
        peer_name(c);
    }
    if ((int64_t)server->count > server->limits.max_connections || server->draining) {
        server->counters.refused++;
        if ((int64_t)server->count > (int64_t)server->limits.max_connections + SK_STREAM_REFUSED_MAX)
            sk_connection_cut(c);
        else
            fail_head(c, 503, "too many connections");
        return;
    }
    sk_conn_timeout(&c->conn, server->limits.idle_ms);
    sk_conn_read(&c->conn, true);
}
