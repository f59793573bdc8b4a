/* SPDX-License-Identifier: Apache-2.0
 *
 * Real servers for tests (nats-server, redis-server, the embedded Mongo-wire server): each on 127.0.0.1, a free port
 * and a folder of its own, killed, frozen, wiped and started again by the test, and gone with the test process.
 * Failures end the test (ck_abort). Start them from the test's main thread: a server ends with the thread that started
 * it. */
#ifndef SK_TESTS_SERVER_H
#define SK_TESTS_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

struct sk_test_server {
    enum { SK_TEST_NATS, SK_TEST_REDIS, SK_TEST_MONGO } kind;
    pid_t pid; /* 0 = not running */
    int port;
    char dir[256];
    char url[128];
    bool plain;      /* NATS without JetStream, from the next start on */
    char extra[512]; /* words added to the command line, space separated */
};

/* A port that was free a moment ago. */
int sk_test_free_port(void);
/* Starts it and waits until it answers (30 s). `extra` may be NULL. */
void sk_test_server_start(struct sk_test_server *server, int kind, const char *extra);
/* Starts it again on the same port and folder. */
void sk_test_server_again(struct sk_test_server *server);
void sk_test_server_kill(struct sk_test_server *server); /* SIGKILL, waits for its end */
void sk_test_server_freeze(struct sk_test_server *server, bool frozen);
void sk_test_server_wipe(struct sk_test_server *server); /* empties the folder; not while it runs */
void sk_test_server_end(struct sk_test_server *server);  /* kills it and removes the folder; idempotent */

/* SK_TEST_MONGO: secantusd-py from the tools cache, syncing on commit; SANDKEEP_TEST_MONGO=fast takes the fast twin
 * instead. False when it is not installed. The url names no database. */
bool sk_test_mongo_available(void);

/* True when `probe` became true within ms (looked at each 5 ms). */
bool sk_test_within(int ms, bool (*probe)(void *arg), void *arg);

#endif
