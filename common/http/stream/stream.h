/* SPDX-License-Identifier: Apache-2.0
 *
 * A small, strict, streaming HTTP/1.1 server and client on one libuv loop. Bodies are handed on as they arrive and are
 * never kept whole; both directions have back-pressure; framing that two parties could read differently is refused.
 *
 * Everything here belongs to the loop's thread and never blocks. Callbacks are never run from inside a call that the
 * user makes, with one exception that says so (sk_stream_server_new's on_request runs from the read callback).
 * The library needs only libuv and http_parser, so that it also links into fully static programs.
 *
 * Server life of one request:
 *   on_request(x)            headers are complete and checked; set ops, answer now or later
 *   ops->on_body(x, ..)*     pieces of the request body, unless paused
 *   ops->on_end(x)           the request body is complete
 *   ops->on_drain(x)         after a write returned false: the queue fell below half of the mark
 *   ops->on_gone(x)          the client closed its side before the answer was complete (a hint; nothing is cut by it)
 *   ops->on_close(x, ok)     exactly once, always last; x is freed when it returns. ok = the answer was complete
 * An answer is sk_stream_reply, or sk_stream_start + sk_stream_write* + sk_stream_end, or sk_stream_upgrade. */
#ifndef SK_HTTP_STREAM_H
#define SK_HTTP_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#ifndef SK_MUST_USE
#define SK_MUST_USE __attribute__((warn_unused_result))
#endif

#define SK_STREAM_REFUSED_MAX 32 /* a refused one keeps its descriptor until it has read that, for two seconds */

struct sk_stream_limits {
    size_t header_bytes; /* request or status line plus headers; more is answered 431 */
    int header_count;    /* more is answered 431 */
    int64_t body_bytes;  /* of one request or response; more is answered 413; 0 = no limit */
    int header_ms;       /* first byte of a request until its headers are complete; then 408 */
    int idle_ms;         /* a kept connection without a request; client: until the response's headers, 0 = no limit */
    int body_ms;         /* gap between two pieces of a body that is wanted; 0 = no limit */
    int write_ms;        /* queued bytes without progress; then the connection is cut */
    int tunnel_ms;       /* an upgraded connection without traffic from the peer; 0 = no limit */
    int max_connections; /* more get 503 and are closed; SK_STREAM_REFUSED_MAX at a time, others are just closed */
    size_t write_high;   /* sk_stream_write returns false above this many queued bytes */
};

#define SK_STREAM_LIMITS_DEFAULT                                                                                       \
    {                                                                                                                  \
        .header_bytes = 32768, .header_count = 128, .body_bytes = 0, .header_ms = 10000, .idle_ms = 120000,            \
        .body_ms = 60000, .write_ms = 60000, .tunnel_ms = 3600000, .max_connections = 4096, .write_high = 262144       \
    }

struct sk_stream_header {
    const char *name;
    const char *value;
};

#define SK_STREAM_CHUNKED (-1) /* as a length: not known beforehand */

/* ------------------------------------------------------------------------------------------------ server */

struct sk_stream_server;
struct sk_stream; /* one request and its answer */

struct sk_stream_ops { /* each may be NULL; a missing on_body drops the body */
    void (*on_body)(struct sk_stream *x, const char *data, size_t len);
    void (*on_end)(struct sk_stream *x);
    void (*on_drain)(struct sk_stream *x);
    void (*on_gone)(struct sk_stream *x);
    void (*on_close)(struct sk_stream *x, bool complete);
};

struct sk_stream_counters { /* monotonic, for metrics */
    uint64_t accepted, refused, requests, bad_requests, timeouts, bytes_in, bytes_out;
};

/* Copies `limits`. Returns NULL when out of memory. The server must be closed, and its on_closed have run, before the
 * loop is closed. */
struct sk_stream_server *sk_stream_server_new(uv_loop_t *loop, const struct sk_stream_limits *limits,
                                              void (*on_request)(void *arg, struct sk_stream *x), void *arg);
/* Numeric host. Returns 0 or a negative libuv error; *port is the port that was bound (for port 0). */
SK_MUST_USE int sk_stream_server_listen_tcp(struct sk_stream_server *server, const char *host, int port, int *bound);
/* A listening unix socket that exists already (for example inherited); takes the descriptor over on success. */
SK_MUST_USE int sk_stream_server_listen_fd(struct sk_stream_server *server, int fd);
/* Stops accepting, closes idle connections, ends the others after their answer, then calls on_drained once (at once,
 * from inside this call, when there is no connection). on_drained may close the server. */
void sk_stream_server_drain(struct sk_stream_server *server, void (*on_drained)(void *arg), void *arg);
/* Cuts everything; the server is freed after on_closed (may be NULL) has run (from inside this call when nothing is
 * open). */
void sk_stream_server_close(struct sk_stream_server *server, void (*on_closed)(void *arg), void *arg);
size_t sk_stream_server_connections(const struct sk_stream_server *server);
const struct sk_stream_counters *sk_stream_server_counters(const struct sk_stream_server *server);

void sk_stream_set(struct sk_stream *x, const struct sk_stream_ops *ops, void *arg); /* ops must outlive x */
void *sk_stream_arg(const struct sk_stream *x);
uv_loop_t *sk_stream_loop(const struct sk_stream *x);

/* All strings live until on_close. */
const char *sk_stream_method(const struct sk_stream *x);
const char *sk_stream_target(const struct sk_stream *x); /* origin form as sent: path and query, still encoded */
const char *sk_stream_path(const struct sk_stream *x);   /* still encoded, without query */
const char *sk_stream_query(const struct sk_stream *x);  /* without '?'; "" when there is none */
const char *sk_stream_peer(const struct sk_stream *x);   /* address of the client, "" for unix sockets */
/* First value of a header, or NULL. Name is compared without case. */
const char *sk_stream_header(const struct sk_stream *x, const char *name);
const struct sk_stream_header *sk_stream_headers(const struct sk_stream *x, size_t *count);
bool sk_stream_has_body(const struct sk_stream *x);
int64_t sk_stream_body_length(const struct sk_stream *x); /* declared, or SK_STREAM_CHUNKED, or 0 */
bool sk_stream_is_upgrade(const struct sk_stream *x);     /* asks for an upgrade and has no body */
bool sk_stream_body_done(const struct sk_stream *x);

void sk_stream_pause(struct sk_stream *x); /* no on_body until resumed; may be called inside on_body or on_request */
void sk_stream_resume(struct sk_stream *x);
/* Overrides the server's body limit for this request (call in on_request). */
void sk_stream_limit_body(struct sk_stream *x, int64_t bytes);

/* Headers must not contain Content-Length, Transfer-Encoding, Connection or Date: they are written here. A length of
 * 0 writes Content-Length: 0. For HEAD, 204 and 304 later writes are dropped. Call once. */
void sk_stream_start(struct sk_stream *x, int status, const struct sk_stream_header *headers, size_t count,
                     int64_t length);
/* Copies. False = stop: above the mark (on_drain follows) or nothing is wanted any more (on_close follows). Writing
 * more than the declared length cuts the connection. */
bool sk_stream_write(struct sk_stream *x, const void *data, size_t len);
void sk_stream_end(struct sk_stream *x);
/* A whole answer. `type` NULL with len 0 for an empty body (Content-Length: 0). */
void sk_stream_reply(struct sk_stream *x, int status, const char *type, const void *body, size_t len);
void sk_stream_reply_with(struct sk_stream *x, int status, const struct sk_stream_header *headers, size_t count,
                          const char *type, const void *body, size_t len);
/* 101 and a raw tunnel from then on: on_body gets the peer's bytes, on_end its end of file, sk_stream_write sends raw
 * bytes, sk_stream_end shuts our side. on_close comes when both sides are shut. Only when sk_stream_is_upgrade. */
void sk_stream_upgrade(struct sk_stream *x, const struct sk_stream_header *headers, size_t count);
void sk_stream_abort(struct sk_stream *x); /* cuts the connection; on_close(false) follows from the loop */
bool sk_stream_started(const struct sk_stream *x);
bool sk_stream_ended(const struct sk_stream *x); /* end, reply or abort was called, or the connection is gone */

/* Buffers a body of at most `max` bytes that must be complete within `deadline_ms`, then calls `done` once with a
 * NUL-terminated copy that is valid during the call (body may be changed). Too large and too slow are answered here
 * (413, 408, JSON {code, message}) and `done` is not called; nor is it when the client leaves. `on_close` runs in every
 * case, also for requests whose `done` never ran, so `arg` can be released there. */
void sk_stream_collect(struct sk_stream *x, size_t max, int deadline_ms,
                       void (*done)(struct sk_stream *x, void *arg, char *body, size_t len),
                       void (*on_close)(struct sk_stream *x, void *arg, bool complete), void *arg);

/* ------------------------------------------------------------------------------------------------ client */

struct sk_stream_call; /* one connection, one request */

struct sk_stream_call_ops {
    void (*on_response)(struct sk_stream_call *call, int status); /* final status, 101 included; headers are readable */
    void (*on_body)(struct sk_stream_call *call, const char *data, size_t len);
    void (*on_end)(struct sk_stream_call *call); /* the response (or the tunnel's input) is complete */
    void (*on_drain)(struct sk_stream_call *call);
    /* Exactly once, last; the call is freed when it returns. 0 = complete, else a negative libuv error
     * (UV_EPROTO = not HTTP, UV_ETIMEDOUT, UV_EOF = ended early, UV_ECANCELED = aborted by us). */
    void (*on_close)(struct sk_stream_call *call, int error);
};

/* Connects (or takes over a connected stream socket). Failures are reported by on_close from the loop; NULL = out of
 * memory, then an fd is left to the caller. */
struct sk_stream_call *sk_stream_call_unix(uv_loop_t *loop, const struct sk_stream_limits *limits, const char *path,
                                           const struct sk_stream_call_ops *ops, void *arg);
struct sk_stream_call *sk_stream_call_tcp(uv_loop_t *loop, const struct sk_stream_limits *limits,
                                          const struct sockaddr *to, const struct sk_stream_call_ops *ops, void *arg);
struct sk_stream_call *sk_stream_call_fd(uv_loop_t *loop, const struct sk_stream_limits *limits, int fd,
                                         const struct sk_stream_call_ops *ops, void *arg);
void *sk_stream_call_arg(const struct sk_stream_call *call);
/* Queues the request head (sent once connected). The caller gives Host; framing and Connection are written here.
 * body_length: 0 = none, SK_STREAM_CHUNKED, or the length. upgrade_to = value of Upgrade, or NULL. */
void sk_stream_call_request(struct sk_stream_call *call, const char *method, const char *target,
                            const struct sk_stream_header *headers, size_t count, int64_t body_length,
                            const char *upgrade_to);
bool sk_stream_call_write(struct sk_stream_call *call, const void *data, size_t len); /* false = wait for on_drain */
void sk_stream_call_end(struct sk_stream_call *call); /* the request body is complete; tunnel: shuts our side */
void sk_stream_call_pause(struct sk_stream_call *call);
void sk_stream_call_resume(struct sk_stream_call *call);
void sk_stream_call_abort(struct sk_stream_call *call); /* on_close(UV_ECANCELED) follows from the loop */
const char *sk_stream_call_header(const struct sk_stream_call *call, const char *name);
const struct sk_stream_header *sk_stream_call_headers(const struct sk_stream_call *call, size_t *count);
int64_t sk_stream_call_body_length(const struct sk_stream_call *call); /* declared or SK_STREAM_CHUNKED */

/* ------------------------------------------------------------------------------------------------ helpers */

/* Decodes %XX (and '+' when `plus`) in place; returns the new length or -1 (bad escape or NUL). */
long sk_stream_url_decode(char *text, bool plus);
/* The n-th value of a query parameter, decoded ('+' = space) into a malloc'ed string; NULL when there is none or it is
 * not decodable (then *bad is set if given). */
char *sk_stream_query_value(const char *query, const char *name, int n, bool *bad);
/* Whether every parameter can be decoded; else its name (cut, "" when that cannot be decoded either) is in `name`. */
bool sk_stream_query_valid(const char *query, char *name, size_t size);
/* True for headers that belong to one connection (RFC 9110 §7.6.1) or that this library writes itself. */
bool sk_stream_hop_by_hop(const char *name);
const char *sk_stream_reason(int status);

#endif
