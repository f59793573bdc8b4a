/* SPDX-License-Identifier: Apache-2.0
 *
 * One request and its answer as the user of the server sees them: reading the head, answering, collecting small bodies.
 * Nothing here runs a user's callback: what is due is left to the connection (sk_conn_kick). */
#include "common/http/stream/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

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
    if (len == 0)
        return;
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
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): with len > 0 there is a buffer by now */
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

void sk_exchange_error(struct sk_stream *x, int status, const char *code, const char *message)
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
        sk_exchange_error(x, 413, "BODY_TOO_LARGE", "the request body is too large");
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
        sk_exchange_error(x, 413, "BODY_TOO_LARGE", "the request body is too large");
        return;
    }
    sk_conn_timeout(&x->conn->conn, deadline_ms);
}
