/* SPDX-License-Identifier: Apache-2.0
 *
 * What the three files of the server share: server.c (listening), connection.c (the machine of one connection) and
 * exchange.c (one request as its user sees it). */
#ifndef SK_HTTP_STREAM_SERVER_H
#define SK_HTTP_STREAM_SERVER_H

#include "common/http/stream/internal.h"

#define PIPELINE_MAX 65536 /* bytes kept of requests that wait behind the current one */
#define LINGER_MS    2000  /* how long an unread body is read and dropped, so that the answer arrives */
#define LINGER_BYTES (16u << 20)

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
    bool eof, busy, cut, linger_after, flushed;
    char peer[64];
};

/* connection.c */
struct connection *sk_connection_new(struct sk_stream_server *server); /* counted; its handle is not initialised yet */
void sk_connection_start(struct connection *c);                        /* accepted: reads or refuses */
void sk_connection_cut(struct connection *c);
void sk_server_check_drained(struct sk_stream_server *server);
void sk_server_check_closed(struct sk_stream_server *server);
/* exchange.c */
void sk_exchange_error(struct sk_stream *x, int status, const char *code, const char *message); /* and closes */

#endif
