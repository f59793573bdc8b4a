/* SPDX-License-Identifier: Apache-2.0
 *
 * The server half: listeners, connections, one request at a time per connection. All progress happens in `advance`,
 * which is entered from the loop only (read, drain, kick), so that a user's call never re-enters a user's callback. */
#include "common/http/stream/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define PIPELINE_MAX 65536 /* bytes kept of requests that wait behind the current one */
#define LINGER_MS    2000  /* how long an unread body is read and dropped, so that the answer arrives */
#define LINGER_BYTES (4u << 20)

enum phase { PHASE_IDLE, PHASE_HEAD, PHASE_EXCHANGE, PHASE_TUNNEL, PHASE_LINGER };

struct connection;

struct sk_stream_server {
    uv_loop_t *loop;
    struct sk_stream_limits limits;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } listener;
    bool listening, is_pipe, draining, closing, freed, telling;
    void (*on_request)(void *arg, struct sk_stream *x);
    void *arg;
    void (*on_drained)(void *arg);
    void *drained_arg;
    void (*on_closed)(void *arg);
    void *closed_arg;
    struct connection *first;
    size_t count;
    bool listener_closed;
    struct sk_stream_counters counters;
};

struct sk_stream {
    struct connection *conn;
    struct sk_message message;
    const struct sk_stream_ops *ops;
    void *arg;
    char *path, *query;
    bool paused, started, ended, aborted, upgraded, peer_closed, end_told, gone_told, wants_continue, keep_alive;
    bool chunked, no_body_out, discard, collecting;
    int64_t out_left; /* of a declared length; -1 = not declared */
    int64_t body_limit;
    /* sk_stream_collect */
    char *body;
    size_t body_len, body_size, body_max;
    void (*done)(struct sk_stream *x, void *arg, char *body, size_t len);
    void (*collect_close)(struct sk_stream *x, void *arg, bool complete);
};

struct connection {
    struct sk_conn conn; /* first: callbacks cast */
    struct sk_stream_server *server;
    struct connection *next, *previous;
    enum phase phase;
    struct sk_stream *x;
    struct sk_message head; /* of the request that is arriving */
    struct sk_pending pending;
    size_t lingered;
    bool eof, busy, cut, linger_after;
    char peer[64];
};

static void advance(struct connection *c, const char *data, size_t len);

/* ---- small things ---- */

const char *sk_stream_reason(int status)
{
    switch (status) {
#define XX(num, name, string)                                                                                          \
    case num:                                                                                                          \
        return #string;
        HTTP_STATUS_MAP(XX)
#undef XX
    default:
        return "Status";
    }
}

bool sk_stream_hop_by_hop(const char *name)
{
    static const char *const names[] = {"connection",
                                        "keep-alive",
                                        "proxy-authenticate",
                                        "proxy-authorization",
                                        "te",
                                        "trailer",
                                        "transfer-encoding",
                                        "upgrade",
                                        "content-length",
                                        "date",
                                        "proxy-connection",
                                        "expect",
                                        NULL};
    for (int i = 0; names[i] != NULL; i++) {
        if (strcasecmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

void sk_stream_set(struct sk_stream *x, const struct sk_stream_ops *ops, void *arg)
{
    x->ops = ops;
    x->arg = arg;
}

void *sk_stream_arg(const struct sk_stream *x)
{
    return x->arg;
}

uv_loop_t *sk_stream_loop(const struct sk_stream *x)
{
    return x->conn->server->loop;
}

const char *sk_stream_method(const struct sk_stream *x)
{
    return http_method_str((enum http_method)x->message.parser.method);
}

const char *sk_stream_target(const struct sk_stream *x)
{
    return x->message.url;
}

const char *sk_stream_path(const struct sk_stream *x)
{
    return x->path;
}

const char *sk_stream_query(const struct sk_stream *x)
{
    return x->query;
}

const char *sk_stream_peer(const struct sk_stream *x)
{
    return x->conn->peer;
}

const char *sk_stream_header(const struct sk_stream *x, const char *name)
{
    return sk_message_header(&x->message, name);
}

const struct sk_stream_header *sk_stream_headers(const struct sk_stream *x, size_t *count)
{
    *count = x->message.count;
    return x->message.headers;
}

bool sk_stream_has_body(const struct sk_stream *x)
{
    return x->message.declared != 0;
}

int64_t sk_stream_body_length(const struct sk_stream *x)
{
    return x->message.declared;
}

bool sk_stream_is_upgrade(const struct sk_stream *x)
{
    return x->message.parser.upgrade && x->message.declared == 0;
}

bool sk_stream_body_done(const struct sk_stream *x)
{
    return x->message.complete;
}

bool sk_stream_started(const struct sk_stream *x)
{
    return x->started;
}

bool sk_stream_ended(const struct sk_stream *x)
{
    return x->ended || x->aborted || x->conn->cut;
}

void sk_stream_limit_body(struct sk_stream *x, int64_t bytes)
{
    x->body_limit = bytes;
}

/* ---- answering ---- */

static const char *date_line(void)
{
    static __thread time_t last;
    static __thread char text[40];
    time_t now = time(NULL);
    if (now != last) {
        struct tm tm;
        gmtime_r(&now, &tm);
        strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm);
        last = now;
    }
    return text;
}

struct text {
    char *data;
    size_t len, size;
    bool failed;
};

static void text_add(struct text *t, const char *s, size_t len)
{
    if (t->len + len > t->size) {
        size_t size = (t->len + len) * 2 + 256;
        char *grown = realloc(t->data, size);
        if (grown == NULL) {
            t->failed = true;
            return;
        }
        t->data = grown;
        t->size = size;
    }
    memcpy(t->data + t->len, s, len);
    t->len += len;
}

static void text_header(struct text *t, const char *name, const char *value)
{
    size_t len = strcspn(value, "\r\n"); /* a value can never start a new line */
    text_add(t, name, strlen(name));
    text_add(t, ": ", 2);
    text_add(t, value, len);
    text_add(t, "\r\n", 2);
}

static void start(struct sk_stream *x, int status, const struct sk_stream_header *headers, size_t count, int64_t length,
                  const void *body, size_t body_len)
{
    struct connection *c = x->conn;
    if (x->started || x->ended || x->aborted)
        return;
    x->started = true;
    struct text t = {0};
    char line[96];
    int n = snprintf(line, sizeof(line), "HTTP/1.1 %d %s\r\n", status, sk_stream_reason(status));
    text_add(&t, line, (size_t)n);
    for (size_t i = 0; i < count; i++)
        text_header(&t, headers[i].name, headers[i].value);
    text_header(&t, "Date", date_line());
    bool bodiless = status == 204 || status == 304 || (status >= 100 && status < 200);
    x->no_body_out = bodiless || x->message.parser.method == HTTP_HEAD;
    x->out_left = -1;
    if (status == 101) {
        text_add(&t, "Connection: Upgrade\r\n", 21);
    } else {
        if (length >= 0 && !bodiless) {
            n = snprintf(line, sizeof(line), "Content-Length: %lld\r\n", (long long)length);
            text_add(&t, line, (size_t)n);
            x->out_left = length;
        } else if (length < 0 && !bodiless) {
            if (x->message.parser.http_minor >= 1) {
                text_add(&t, "Transfer-Encoding: chunked\r\n", 28);
                x->chunked = !x->no_body_out;
            } else {
                x->keep_alive = false;
            }
        }
        /* A final answer to a body that nobody reads to its end cannot keep the connection. */
        if (c->server->draining || (x->discard && !x->message.complete))
            x->keep_alive = false;
        if (!x->keep_alive)
            text_add(&t, "Connection: close\r\n", 19);
        else if (x->message.parser.http_minor == 0)
            text_add(&t, "Connection: keep-alive\r\n", 24);
    }
    text_add(&t, "\r\n", 2);
    if (body_len > 0 && !x->no_body_out) {
        text_add(&t, body, body_len); /* one segment for small answers */
        if (x->out_left >= 0)
            x->out_left -= (int64_t)body_len;
    }
    if (t.failed)
        sk_stream_abort(x);
    else
        sk_conn_write(&c->conn, t.data, t.len);
    free(t.data);
}

void sk_stream_start(struct sk_stream *x, int status, const struct sk_stream_header *headers, size_t count,
                     int64_t length)
{
    start(x, status, headers, count, length, NULL, 0);
}

bool sk_stream_write(struct sk_stream *x, const void *data, size_t len)
{
    struct connection *c = x->conn;
    if (!x->started || x->ended || x->aborted || c->cut || c->conn.failed)
        return false; /* nothing is wanted any more: on_close follows */
    if (len == 0)
        return true;
    if (x->upgraded) {
        sk_conn_write(&c->conn, data, len);
        return !c->conn.over && !c->conn.failed;
    }
    if (x->no_body_out)
        return true;
    if (x->chunked) {
        char line[32];
        int n = snprintf(line, sizeof(line), "%zx\r\n", len);
        if (len <= 16384) { /* one write for small pieces */
            char small[16384 + 64];
            memcpy(small, line, (size_t)n);
            memcpy(small + n, data, len);
            memcpy(small + n + len, "\r\n", 2);
            sk_conn_write(&c->conn, small, (size_t)n + len + 2);
        } else {
            sk_conn_write(&c->conn, line, (size_t)n);
            sk_conn_write(&c->conn, data, len);
            sk_conn_write(&c->conn, "\r\n", 2);
        }
        return !c->conn.over && !c->conn.failed;
    }
    if (x->out_left >= 0) {
        if ((int64_t)len > x->out_left) {
            sk_stream_abort(x);
            return false;
        }
        x->out_left -= (int64_t)len;
    }
    sk_conn_write(&c->conn, data, len);
    return !c->conn.over && !c->conn.failed;
}

void sk_stream_end(struct sk_stream *x)
{
    if (x->ended || x->aborted)
        return;
    if (!x->started || (x->out_left > 0 && !x->no_body_out)) {
        sk_stream_abort(x); /* a promise that cannot be kept must be seen by the client */
        return;
    }
    if (x->upgraded)
        sk_conn_shutdown(&x->conn->conn);
    else if (x->chunked)
        sk_conn_write(&x->conn->conn, "0\r\n\r\n", 5);
    x->ended = true;
    sk_conn_kick(&x->conn->conn);
}

void sk_stream_reply_with(struct sk_stream *x, int status, const struct sk_stream_header *headers, size_t count,
                          const char *type, const void *body, size_t len)
{
    if (x->started || x->ended || x->aborted)
        return;
    struct sk_stream_header all[24];
    size_t n = 0;
    for (; n < count && n < 23; n++)
        all[n] = headers[n];
    if (type != NULL)
        all[n++] = (struct sk_stream_header){"Content-Type", type};
    x->discard = true;
    start(x, status, all, n, (int64_t)len, len <= 65536 ? body : NULL, len <= 65536 ? len : 0);
    if (len > 65536)
        sk_stream_write(x, body, len);
    sk_stream_end(x);
}

void sk_stream_reply(struct sk_stream *x, int status, const char *type, const void *body, size_t len)
{
    sk_stream_reply_with(x, status, NULL, 0, type, body, len);
}

void sk_stream_upgrade(struct sk_stream *x, const struct sk_stream_header *headers, size_t count)
{
    if (x->started || !sk_stream_is_upgrade(x))
        return;
    start(x, 101, headers, count, 0, NULL, 0);
    x->upgraded = true;
    x->keep_alive = false;
    sk_conn_kick(&x->conn->conn);
}

void sk_stream_abort(struct sk_stream *x)
{
    if (x->aborted)
        return;
    x->aborted = true;
    sk_conn_kick(&x->conn->conn);
}

void sk_stream_pause(struct sk_stream *x)
{
    x->paused = true;
    sk_message_pause(&x->message);
}

void sk_stream_resume(struct sk_stream *x)
{
    if (!x->paused)
        return;
    x->paused = false;
    sk_conn_kick(&x->conn->conn);
}

/* ---- collecting small bodies ---- */

static void reply_error(struct sk_stream *x, int status, const char *code, const char *message)
{
    char body[256];
    int n = snprintf(body, sizeof(body), "{\"code\":\"%s\",\"message\":\"%s\"}", code, message);
    x->keep_alive = false;
    sk_stream_reply(x, status, "application/json", body, (size_t)n);
}

static void collect_body(struct sk_stream *x, const char *data, size_t len)
{
    if (x->ended || x->aborted)
        return;
    if (x->body_len + len > x->body_max) {
        reply_error(x, 413, "BODY_TOO_LARGE", "the request body is too large");
        return;
    }
    if (x->body_len + len + 1 > x->body_size) {
        size_t size = (x->body_len + len + 1) * 2;
        if (size > x->body_max + 1)
            size = x->body_max + 1;
        char *grown = realloc(x->body, size);
        if (grown == NULL) {
            sk_stream_abort(x);
            return;
        }
        x->body = grown;
        x->body_size = size;
    }
    memcpy(x->body + x->body_len, data, len);
    x->body_len += len;
}

static void collect_end(struct sk_stream *x)
{
    if (x->ended || x->aborted)
        return;
    x->collecting = false;
    sk_conn_timeout(&x->conn->conn, 0);
    char empty[1] = "";
    if (x->body != NULL)
        x->body[x->body_len] = '\0';
    x->done(x, x->arg, x->body != NULL ? x->body : empty, x->body_len);
    free(x->body);
    x->body = NULL;
}

static void collect_closed(struct sk_stream *x, bool complete)
{
    free(x->body);
    x->body = NULL;
    if (x->collect_close != NULL)
        x->collect_close(x, x->arg, complete);
}

static const struct sk_stream_ops collect_ops = {
    .on_body = collect_body, .on_end = collect_end, .on_close = collect_closed};

void sk_stream_collect(struct sk_stream *x, size_t max, int deadline_ms,
                       void (*done)(struct sk_stream *x, void *arg, char *body, size_t len),
                       void (*on_close)(struct sk_stream *x, void *arg, bool complete), void *arg)
{
    x->body_max = max;
    x->done = done;
    x->collect_close = on_close;
    x->collecting = true;
    sk_stream_set(x, &collect_ops, arg);
    if (x->message.declared > (int64_t)max) {
        reply_error(x, 413, "BODY_TOO_LARGE", "the request body is too large");
        return;
    }
    sk_conn_timeout(&x->conn->conn, deadline_ms);
}

/* ---- the connection's machine ---- */

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

static void cut(struct connection *c)
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
            reply_error(x, 413, "BODY_TOO_LARGE", "the request body is too large");
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
        cut(c);
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
            reply_error(x, 417, "EXPECTATION_FAILED", "unknown expectation");
            return;
        }
        x->wants_continue = x->message.declared != 0;
    }
    if (x->body_limit > 0 && x->message.declared > x->body_limit) {
        reply_error(x, 413, "BODY_TOO_LARGE", "the request body is too large");
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
            reply_error(x, 400, "BAD_REQUEST", "bad body framing");
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
            cut(c);
            return;
        }
        len = 0;
    }
    for (;;) {
        const char *p = own ? c->pending.data + c->pending.offset : data;
        size_t n = own ? c->pending.len : len;
        size_t used = 0;
        bool again = false;
        struct sk_stream *x = c->x;
        if (c->cut)
            break;
        if (x != NULL && x->aborted) {
            cut(c);
            break;
        }
        if (c->phase == PHASE_LINGER) {
            used = n;
            c->lingered += n;
        } else if (c->phase == PHASE_TUNNEL) {
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
                cut(c);
                break;
            }
        } else if (c->phase == PHASE_EXCHANGE) {
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
        if (own)
            sk_pending_take(&c->pending, used);
        else {
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
        cut(c);
        return;
    }
    if (c->phase == PHASE_LINGER && c->lingered > LINGER_BYTES) {
        cut(c);
        return;
    }
    if (c->eof) {
        struct sk_stream *x = c->x;
        bool tunnel = c->phase == PHASE_TUNNEL;
        if (c->phase == PHASE_IDLE || c->phase == PHASE_HEAD ||
            (c->phase == PHASE_EXCHANGE && !x->message.complete && c->pending.len == 0)) {
            cut(c); /* nothing more can come that would make a whole request */
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
    if (c->phase == PHASE_LINGER && !c->conn.shutting)
        cut(c);
    else
        advance(c, NULL, 0);
}

static void conn_error(struct sk_conn *conn, int error)
{
    struct connection *c = (struct connection *)conn;
    if (error == UV_ETIMEDOUT)
        c->server->counters.timeouts++;
    cut(c);
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
    if (c->phase == PHASE_TUNNEL) {
        advance(c, NULL, 0);
        return;
    }
    if (c->phase == PHASE_LINGER && (c->linger_after || c->lingered > 0) && !c->eof)
        return; /* wait for the peer's end of file or the timer */
    cut(c);
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
        reply_error(c->x, 408, "REQUEST_TIMEOUT", "the request body did not arrive in time");
        return;
    }
    cut(c);
}

static void conn_kick(struct sk_conn *conn)
{
    advance((struct connection *)conn, NULL, 0);
}

static void check_drained(struct sk_stream_server *server)
{
    if (server->draining && server->count == 0 && server->on_drained != NULL) {
        void (*drained)(void *) = server->on_drained;
        server->on_drained = NULL;
        drained(server->drained_arg);
    }
}

static void check_closed(struct sk_stream_server *server)
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
    check_drained(server);
    server->telling = false;
    check_closed(server);
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

/* ---- listening ---- */

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

static void on_connection(uv_stream_t *listener, int status)
{
    struct sk_stream_server *server = listener->data;
    if (status < 0 || server->closing)
        return;
    struct connection *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return; /* libuv keeps the connection pending; it is accepted by a later event */
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
    if (uv_accept(listener, &c->conn.u.stream) != 0) {
        cut(c);
        return;
    }
    server->counters.accepted++;
    if (!server->is_pipe) {
        uv_tcp_nodelay(&c->conn.u.tcp, 1);
        peer_name(c);
    }
    if ((int64_t)server->count > server->limits.max_connections || server->draining) {
        server->counters.refused++;
        fail_head(c, 503, "too many connections");
        return;
    }
    sk_conn_timeout(&c->conn, server->limits.idle_ms);
    sk_conn_read(&c->conn, true);
}

struct sk_stream_server *sk_stream_server_new(uv_loop_t *loop, const struct sk_stream_limits *limits,
                                              void (*on_request)(void *arg, struct sk_stream *x), void *arg)
{
    struct sk_stream_server *server = calloc(1, sizeof(*server));
    if (server == NULL)
        return NULL;
    server->loop = loop;
    server->limits = *limits;
    server->on_request = on_request;
    server->arg = arg;
    server->listener_closed = true;
    return server;
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct sk_stream_server *server = handle->data;
    server->listener_closed = true;
    check_closed(server);
}

static int listen_now(struct sk_stream_server *server)
{
    server->listener.handle.data = server;
    server->listener_closed = false;
    int rc = uv_listen(&server->listener.stream, 1024, on_connection);
    if (rc == 0)
        server->listening = true;
    return rc;
}

int sk_stream_server_listen_tcp(struct sk_stream_server *server, const char *host, int port, int *bound)
{
    struct sockaddr_storage address;
    int rc = uv_ip4_addr(host, port, (struct sockaddr_in *)&address);
    if (rc != 0)
        rc = uv_ip6_addr(host, port, (struct sockaddr_in6 *)&address);
    if (rc != 0)
        return rc;
    uv_tcp_init(server->loop, &server->listener.tcp);
    server->listener.handle.data = server;
    server->listener_closed = false;
    rc = uv_tcp_bind(&server->listener.tcp, (struct sockaddr *)&address, 0);
    if (rc == 0)
        rc = listen_now(server);
    if (rc == 0) {
        int len = sizeof(address);
        rc = uv_tcp_getsockname(&server->listener.tcp, (struct sockaddr *)&address, &len);
        *bound = address.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&address)->sin6_port)
                                               : ntohs(((struct sockaddr_in *)&address)->sin_port);
    }
    if (rc != 0) {
        server->listening = false;
        uv_close(&server->listener.handle, on_listener_closed);
    }
    return rc;
}

int sk_stream_server_listen_fd(struct sk_stream_server *server, int fd)
{
    server->is_pipe = true;
    uv_pipe_init(server->loop, &server->listener.pipe, 0);
    server->listener.handle.data = server;
    server->listener_closed = false;
    int rc = uv_pipe_open(&server->listener.pipe, fd);
    if (rc == 0)
        rc = listen_now(server);
    if (rc != 0)
        uv_close(&server->listener.handle, on_listener_closed);
    return rc;
}

static void stop_listening(struct sk_stream_server *server)
{
    if (!server->listening)
        return;
    server->listening = false;
    uv_close(&server->listener.handle, on_listener_closed);
}

void sk_stream_server_drain(struct sk_stream_server *server, void (*on_drained)(void *arg), void *arg)
{
    server->draining = true;
    server->on_drained = on_drained;
    server->drained_arg = arg;
    stop_listening(server);
    for (struct connection *c = server->first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->phase == PHASE_IDLE)
            cut(c);
    }
    check_drained(server);
}

void sk_stream_server_close(struct sk_stream_server *server, void (*on_closed)(void *arg), void *arg)
{
    server->closing = true;
    server->on_closed = on_closed;
    server->closed_arg = arg;
    stop_listening(server);
    for (struct connection *c = server->first, *next; c != NULL; c = next) {
        next = c->next;
        cut(c);
    }
    check_closed(server);
}

size_t sk_stream_server_connections(const struct sk_stream_server *server)
{
    return server->count;
}

const struct sk_stream_counters *sk_stream_server_counters(const struct sk_stream_server *server)
{
    return &server->counters;
}
