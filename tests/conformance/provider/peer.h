/* SPDX-License-Identifier: Apache-2.0
 *
 * A scriptable HTTP peer for tests: a real TCP listener on 127.0.0.1 whose answers are written byte by byte by the
 * test's own handler, so that it can lie, stall, cut, drip and flood. One thread per connection; all of them are joined
 * by peer_stop. Requests are read whole (within bounds) and recorded. */
#ifndef SK_TEST_PEER_H
#define SK_TEST_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct peer;

struct peer_request {
    int number;     /* of all requests of this peer, from 1 */
    int connection; /* from 1 */
    char method[16];
    char target[4096];
    char *headers; /* raw header lines */
    char *body;    /* decoded, NUL-terminated */
    size_t body_len;
    bool chunked;
};

/* Writes the answer to fd. Returns true to keep the connection, false to close it. Runs on the connection's thread. */
typedef bool (*peer_handler)(void *arg, const struct peer_request *request, int fd);

/* `port` 0 picks one. Aborts the test program when it cannot start. */
struct peer *peer_start(peer_handler handler, void *arg);
int peer_port(const struct peer *peer);
/* "http://127.0.0.1:<port>" */
const char *peer_url(const struct peer *peer);
/* Wakes stalled handlers (peer_stall, peer_drip), closes every connection and joins every thread. */
void peer_stop(struct peer *peer);

int peer_request_count(struct peer *peer);
int peer_connection_count(struct peer *peer);
int peer_open_count(struct peer *peer); /* connections open just now */
/* A copy of the last request whose method and target prefix match ("" = any), false when there is none. */
bool peer_last(struct peer *peer, const char *method, const char *target_prefix, struct peer_request *out);
void peer_request_free(struct peer_request *request);
/* Value of a header of a recorded request into out; false when absent. */
bool peer_header(const struct peer_request *request, const char *name, char *out, size_t size);

/* Helpers for handlers. All give up silently when the client has gone. */
bool peer_write(int fd, const void *data, size_t len); /* false when the client has gone */
bool peer_text(int fd, const char *text);
/* status line, Content-Type, Content-Length and body */
void peer_answer(int fd, int status, const char *type, const char *body);
void peer_json(int fd, int status, const char *body);
/* Waits until the peer is stopped, the client has gone, or ms passed (< 0: no limit). True when the client has gone. */
bool peer_stall(struct peer *peer, int fd, int ms);
/* Writes text one byte per interval until it ends, the client leaves or the peer stops. */
void peer_drip(struct peer *peer, int fd, const char *text, int interval_ms);
/* Next close sends a reset instead of an orderly end. */
void peer_reset_on_close(int fd);

/* An address nobody listens on (a bound and closed port). */
int peer_refused_port(void);

#endif
