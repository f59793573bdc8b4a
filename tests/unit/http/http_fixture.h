/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the HTTP client share: a client, a call and a peer in one struct, and the peer's ways to answer.
 * The test program's own getaddrinfo hangs for "hang.test" and knows no "nowhere.test". */
#ifndef SK_TEST_HTTP_FIXTURE_H
#define SK_TEST_HTTP_FIXTURE_H

#include "common/http/client.h"
#include "tests/conformance/provider/peer.h"

#define MEBIBYTE (1024 * 1024)

/* What every test needs: a client, a call, a peer. */
struct fixture {
    struct sk_http_client *client;
    struct sk_call call;
    struct peer *peer;
    struct sk_http_response response;
    struct sk_error err;
    void *extra;
    char url[256];
};

int64_t now_us(void);
void begin(struct fixture *f, peer_handler handler);
void end(struct fixture *f);
int send_request(struct fixture *f, const struct sk_http_request *request);
int get(struct fixture *f);
struct peer *peer_of(void *arg);

/* Head, then `unit` so many times or until the client has gone. */
bool flood(int fd, const char *head, const char *unit, size_t times);
bool say(int fd, const char *text);

bool h_silent_close(void *a, const struct peer_request *r, int fd);
bool h_reset(void *a, const struct peer_request *r, int fd);
bool h_cut_body(void *a, const struct peer_request *r, int fd);
bool h_bad_chunk(void *a, const struct peer_request *r, int fd);
bool h_page_502(void *a, const struct peer_request *r, int fd);
bool h_until_close(void *a, const struct peer_request *r, int fd);
bool h_stall(void *a, const struct peer_request *r, int fd);
bool h_gigabyte(void *a, const struct peer_request *r, int fd);
bool h_gigabyte_500(void *a, const struct peer_request *r, int fd);
bool h_drip(void *a, const struct peer_request *r, int fd);
bool h_echo(void *a, const struct peer_request *r, int fd);
extern const char *const mebibyte;

/* A port whose accept queue is full: connecting to it hangs. Returns the listener; the waiting sockets leak on purpose
 * (the test's process ends). */
int full_listener(int *port);

#endif
