/* SPDX-License-Identifier: Apache-2.0
 *
 * The streaming HTTP server under libFuzzer: what a client may send on one connection. The first two bytes choose the
 * size of the pieces and how the connection is treated; the rest are the client's bytes, then its end of file. Handlers
 * of all kinds are chosen by the request's path. Besides crashes and leaks it is checked that each request is closed
 * once, that nothing is left open, and that bytes in small pieces make the same requests as the same bytes in one. */
#include "common/http/stream/server.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS_MAX  64     /* of the loop after each piece; more without progress is a hang */
#define PIECES_MAX  512    /* so that one input costs milliseconds */
#define COLLECT_MAX 512    /* of /c */
#define FOREVER_MS  600000 /* no time limit may strike in here */

struct run {
    uv_loop_t loop;
    uv_timer_t resumer;
    struct sk_stream_server *server;
    struct sk_stream *paused; /* /p, until the timer resumes it */
    uint64_t hash;
    size_t requests, open, out;
    bool holds; /* /h was asked for: such a connection stays open */
    char start[9];
};

static struct run *run;

static void mix(const void *data, size_t len)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < len; i++)
        run->hash = (run->hash ^ p[i]) * 1099511628211u;
}

static void mix_text(const char *text)
{
    mix(text, strlen(text) + 1);
}

/* ---- handlers ---- */

static void on_close(struct sk_stream *x, bool complete)
{
    (void)complete;
    if (run->open-- == 0)
        abort();
    if (run->paused == x)
        run->paused = NULL;
}

static void plain_closed(struct sk_stream *x, void *arg, bool complete)
{
    (void)arg;
    on_close(x, complete);
}

static void collected(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    if (body[len] != '\0' || len > COLLECT_MAX)
        abort();
    mix(body, len);
    body[0] = 'x'; /* it may be changed */
    sk_stream_reply(x, 200, "text/plain", body, len);
}

static void echo_body(struct sk_stream *x, const char *data, size_t len)
{
    mix(data, len);
    if (!sk_stream_write(x, data, len))
        sk_stream_pause(x);
}

static void echo_drain(struct sk_stream *x)
{
    sk_stream_resume(x);
}

static void echo_end(struct sk_stream *x)
{
    sk_stream_end(x);
}

static void on_resumer(uv_timer_t *timer)
{
    struct sk_stream *x = run->paused;

    (void)timer;
    run->paused = NULL;
    if (x != NULL)
        sk_stream_resume(x);
}

static void stutter_body(struct sk_stream *x, const char *data, size_t len)
{
    mix(data, len);
    sk_stream_pause(x);
    run->paused = x;
    uv_timer_start(&run->resumer, on_resumer, 0, 0);
}

static void late_reply(struct sk_stream *x)
{
    sk_stream_reply(x, 200, NULL, NULL, 0);
}

static void reply_in_body(struct sk_stream *x, const char *data, size_t len)
{
    (void)data;
    (void)len;
    sk_stream_reply(x, 409, "text/plain", "no", 2);
}

static void abort_in_body(struct sk_stream *x, const char *data, size_t len)
{
    (void)data;
    (void)len;
    sk_stream_abort(x);
}

static const struct sk_stream_ops none_ops = {.on_close = on_close};
static const struct sk_stream_ops echo_ops = {
    .on_body = echo_body, .on_end = echo_end, .on_drain = echo_drain, .on_close = on_close};
static const struct sk_stream_ops stutter_ops = {.on_body = stutter_body, .on_end = late_reply, .on_close = on_close};
static const struct sk_stream_ops late_ops = {.on_end = late_reply, .on_close = on_close};
static const struct sk_stream_ops reply_ops = {.on_body = reply_in_body, .on_end = late_reply, .on_close = on_close};
static const struct sk_stream_ops abort_ops = {.on_body = abort_in_body, .on_end = late_reply, .on_close = on_close};

/* Everything that a handler may read of a request. */
static void read_request(struct sk_stream *x)
{
    static const char *const names[] = {"metadata", "path", ""};
    size_t count;
    const struct sk_stream_header *headers = sk_stream_headers(x, &count);
    char name[8];

    mix_text(sk_stream_method(x));
    mix_text(sk_stream_target(x));
    mix_text(sk_stream_path(x));
    mix_text(sk_stream_query(x));
    for (size_t i = 0; i < count; i++) {
        mix_text(headers[i].name);
        mix_text(headers[i].value);
        if (sk_stream_header(x, headers[i].name) == NULL)
            abort();
        mix(&(char){(char)sk_stream_hop_by_hop(headers[i].name)}, 1);
    }
    for (size_t i = 0; i < 3; i++) {
        bool bad;
        char *value = sk_stream_query_value(sk_stream_query(x), names[i], 0, &bad);
        if (bad && (value != NULL || sk_stream_query_valid(sk_stream_query(x), name, sizeof(name))))
            abort();
        free(value);
    }
    if (sk_stream_body_length(x) < SK_STREAM_CHUNKED || sk_stream_has_body(x) != (sk_stream_body_length(x) != 0))
        abort();
}

static void on_request(void *arg, struct sk_stream *x)
{
    const char *path = sk_stream_path(x);
    const struct sk_stream_header header = {"X-Name", path};

    (void)arg;
    run->requests++;
    run->open++;
    sk_stream_set(x, &none_ops, NULL);
    read_request(x);
    switch (path[0] == '/' ? path[1] : 0) {
    case 'c':
        sk_stream_collect(x, COLLECT_MAX, FOREVER_MS, collected, plain_closed, NULL);
        break;
    case 'e':
        sk_stream_set(x, &echo_ops, NULL);
        sk_stream_start(x, 200, &header, 1, SK_STREAM_CHUNKED);
        break;
    case 'l':
        sk_stream_set(x, &echo_ops, NULL);
        sk_stream_start(x, 200, NULL, 0, sk_stream_body_length(x));
        break;
    case 'u':
        sk_stream_set(x, &echo_ops, NULL);
        if (sk_stream_is_upgrade(x))
            sk_stream_upgrade(x, &header, 1);
        else
            sk_stream_reply(x, 426, NULL, NULL, 0);
        break;
    case 'h':
        run->holds = true;
        break;
    case 'p':
        sk_stream_set(x, &stutter_ops, NULL);
        break;
    case 'r':
        sk_stream_set(x, &reply_ops, NULL);
        break;
    case 'a':
        sk_stream_abort(x);
        break;
    case 'b':
        sk_stream_set(x, &abort_ops, NULL);
        break;
    case 'm':
        sk_stream_limit_body(x, 16);
        sk_stream_set(x, &late_ops, NULL);
        break;
    case 's': /* an answer in parts; the last one breaks the promise of a length */
        sk_stream_start(x, 200, &header, 1, path[2] == 's' ? 5 : SK_STREAM_CHUNKED);
        sk_stream_write(x, "one", 3);
        sk_stream_write(x, "two", 3);
        sk_stream_end(x);
        break;
    default:
        sk_stream_reply_with(x, 200, &header, 1, "text/plain", path, strlen(path));
        break;
    }
}

/* ---- one connection ---- */

static void on_server_closed(void *arg)
{
    *(bool *)arg = true;
}

/* Takes what the server has sent, so that it never waits for us. */
static size_t drain(int fd)
{
    char buffer[16384];
    size_t sum = 0;
    ssize_t n;

    while ((n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
        for (ssize_t i = 0; i < n && run->out + (size_t)i < sizeof(run->start) - 1; i++)
            run->start[run->out + (size_t)i] = buffer[i];
        run->out += (size_t)n;
        sum += (size_t)n;
    }
    return sum;
}

/* Lets the server do what it can with what it has. */
static void turn(int fd)
{
    const struct sk_stream_counters *counters = sk_stream_server_counters(run->server);

    for (int round = 0, quiet = 0; quiet < 3; round++) {
        uint64_t in = counters->bytes_in, out = counters->bytes_out;
        if (round > ROUNDS_MAX + (int)(counters->bytes_in / 16))
            abort(); /* it goes on without an end */
        uv_run(&run->loop, UV_RUN_NOWAIT);
        bool moved = drain(fd) > 0 || in != counters->bytes_in || out != counters->bytes_out || run->paused != NULL;
        quiet = moved ? 0 : quiet + 1;
    }
}

static void count_handles(uv_handle_t *handle, void *arg)
{
    (void)handle;
    ++*(int *)arg;
}

static void connect_once(struct run *r, const uint8_t *data, size_t size, size_t piece, bool drains, bool cuts)
{
    struct sk_stream_limits limits = SK_STREAM_LIMITS_DEFAULT;
    bool closed = false;
    int ends[2], left = 0;

    memset(r, 0, sizeof(*r));
    r->hash = 14695981039346656037u;
    run = r;
    limits.header_bytes = 1024;
    limits.header_count = 12;
    limits.body_bytes = 2048;
    limits.write_high = 4096;
    limits.header_ms = limits.idle_ms = limits.body_ms = limits.write_ms = limits.tunnel_ms = FOREVER_MS;
    if (uv_loop_init(&r->loop) != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        abort();
    uv_timer_init(&r->loop, &r->resumer);
    r->server = sk_stream_server_new(&r->loop, &limits, on_request, NULL);
    if (r->server == NULL)
        abort();
    r->server->is_pipe = true; /* what a listening unix socket would have said */
    struct connection *c = sk_connection_new(r->server);
    if (c == NULL || uv_pipe_open(&c->conn.u.pipe, ends[0]) != 0)
        abort();
    sk_connection_start(c);
    for (size_t at = 0; at < size && r->server->count > 0; at += piece) {
        size_t len = size - at < piece ? size - at : piece;
        for (size_t sent = 0; sent < len;) {
            ssize_t n = send(ends[1], data + at + sent, len - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n > 0)
                sent += (size_t)n;
            else
                break; /* closed, or the server does not read any more: a paused body, a full pipeline */
        }
        turn(ends[1]);
        if (drains && at >= size / 2) {
            drains = false;
            sk_stream_server_drain(r->server, on_server_closed, &closed);
        }
    }
    if (cuts) {
        close(ends[1]);
        ends[1] = -1;
        for (int i = 0; i < 8; i++)
            uv_run(&r->loop, UV_RUN_NOWAIT);
    } else {
        shutdown(ends[1], SHUT_WR);
        turn(ends[1]);
        /* Whoever has said everything and is owed nothing is let go; only a lingering connection waits for its timer.
         */
        if (r->server->count > 0 && !r->holds && r->server->first->phase != PHASE_LINGER)
            abort();
        if (r->out >= 8 && memcmp(r->start, "HTTP/1.1", 8) != 0)
            abort();
    }
    closed = false;
    sk_stream_server_close(r->server, on_server_closed, &closed);
    uv_close((uv_handle_t *)&r->resumer, NULL);
    for (int i = 0; i < 8 && uv_run(&r->loop, UV_RUN_NOWAIT) != 0; i++)
        continue;
    uv_walk(&r->loop, count_handles, &left);
    if (!closed || r->open != 0 || left != 0 || uv_loop_close(&r->loop) != 0)
        abort();
    if (ends[1] >= 0)
        close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run whole, pieces;

    if (size < 2)
        return 0;
    size_t piece = 1 + data[0] % 97;
    bool drains = (data[1] & 3) == 1, cuts = (data[1] & 3) == 2;
    data += 2;
    size -= 2;
    if (size / piece > PIECES_MAX)
        piece = size / PIECES_MAX + 1;
    connect_once(&pieces, data, size, piece, drains, cuts);
    if (drains || cuts) /* when it strikes depends on the pieces */
        return 0;
    connect_once(&whole, data, size, size + 1, false, false);
    if (whole.requests != pieces.requests || whole.hash != pieces.hash)
        abort();
    return 0;
}
