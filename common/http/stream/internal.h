/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared parts of the streaming server and client: a socket with timers and a bounded write queue (conn.c), and one
 * HTTP message head with its parser (message.c). Not for users of the library. */
#ifndef SK_HTTP_STREAM_INTERNAL_H
#define SK_HTTP_STREAM_INTERNAL_H

#include "common/http/stream/stream.h"

#include <http_parser.h>

/* ---- conn.c ---- */
struct sk_conn;

struct sk_conn_ops {
    void (*on_read)(struct sk_conn *c, const char *data, size_t len);
    void (*on_eof)(struct sk_conn *c);
    void (*on_error)(struct sk_conn *c, int error); /* read or write failed; the owner closes */
    void (*on_drain)(struct sk_conn *c);            /* queue below half of the mark after it was above it */
    void (*on_flushed)(struct sk_conn *c);          /* shutdown was sent after everything queued */
    void (*on_read_timeout)(struct sk_conn *c);
    void (*on_kick)(struct sk_conn *c);   /* asked for by sk_conn_kick, from the loop */
    void (*on_closed)(struct sk_conn *c); /* all handles are gone: free */
};

struct sk_conn {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } u;
    uv_timer_t read_timer, write_timer, kick_timer;
    uv_shutdown_t shutdown_req;
    const struct sk_conn_ops *ops;
    uint64_t *bytes_in, *bytes_out; /* counters or NULL */
    size_t high;
    int write_ms;
    int handles;
    int failed; /* a write failed synchronously; reported by the kick */
    bool closing, reading, over, shutting;
};

/* Initialises timers; the stream handle itself is initialised by the caller before (tcp or pipe). */
void sk_conn_init(struct sk_conn *c, uv_loop_t *loop, const struct sk_conn_ops *ops, size_t high, int write_ms);
void sk_conn_read(struct sk_conn *c, bool on);
int sk_conn_write(struct sk_conn *c, const void *data, size_t len);
void sk_conn_shutdown(struct sk_conn *c);        /* after everything queued */
void sk_conn_timeout(struct sk_conn *c, int ms); /* 0 = off */
void sk_conn_kick(struct sk_conn *c);
void sk_conn_close(struct sk_conn *c);
size_t sk_conn_queued(const struct sk_conn *c);

/* A byte queue for input that is not wanted yet. */
struct sk_pending {
    char *data;
    size_t offset, len, size;
};
bool sk_pending_add(struct sk_pending *p, const char *data, size_t len);
void sk_pending_take(struct sk_pending *p, size_t len);
void sk_pending_free(struct sk_pending *p);

/* ---- message.c ---- */
enum sk_message_state { SK_MESSAGE_HEAD, SK_MESSAGE_BODY, SK_MESSAGE_DONE };

struct sk_message {
    http_parser parser;
    char *head;
    size_t head_len, head_size, head_max;
    struct sk_stream_header *headers;
    size_t count, room;
    int count_max;
    char *url;
    bool request; /* else a response */
    bool no_body; /* response to HEAD */
    bool last_was_value;
    bool too_many, complete, out_of_memory;
    unsigned char previous; /* scanner: last byte */
    bool line_start, first_line;
    int64_t declared; /* body length or SK_STREAM_CHUNKED */
    int64_t body_seen;
    void (*on_body)(void *arg, const char *data, size_t len);
    void *arg;
};

void sk_message_init(struct sk_message *m, bool request, const struct sk_stream_limits *limits);
void sk_message_free(struct sk_message *m);
/* Consumes head bytes. Returns 0 = more wanted, 1 = complete and parsed, else an HTTP status (400, 413, 431, 501, 505;
 * for responses any such value means "not HTTP"). *used says how many bytes were taken; *why points to static text. */
int sk_message_head(struct sk_message *m, const char *data, size_t len, size_t *used, const char **why);
/* Feeds body bytes; on_body is called for pieces. Returns bytes used or -1 (bad framing). Stops at the message's end
 * (m->complete) and when sk_message_pause was called from on_body. len 0 = end of file. */
long sk_message_body(struct sk_message *m, const char *data, size_t len);
void sk_message_pause(struct sk_message *m);
const char *sk_message_header(const struct sk_message *m, const char *name);

#endif
