/* SPDX-License-Identifier: Apache-2.0
 *
 * A TCP proxy between the store and a real server that understands just enough of the Mongo wire protocol to do
 * something at a chosen command: cut the connection before the request passes or before the answer does, answer
 * something else, or keep quiet. Handshakes and monitors pass untouched. One thread per connection, all joined by
 * proxy_stop. */
#ifndef SK_TEST_MONGO_PROXY_H
#define SK_TEST_MONGO_PROXY_H

#include <bson/bson.h>
#include <stdbool.h>

struct proxy;

enum proxy_action {
    PROXY_CUT_BEFORE,  /* the server never sees the request */
    PROXY_CUT_AFTER,   /* the server has answered, the client never hears of it */
    PROXY_RESET_AFTER, /* the same with a reset */
    PROXY_ANSWER,      /* the request is swallowed, `answer` comes back */
    PROXY_REPLACE,     /* the request passes, `answer` comes back instead of the server's */
    PROXY_SILENCE,     /* the request passes, nothing comes back until proxy_speak */
    PROXY_SWALLOW,     /* the request is swallowed, nothing comes back until proxy_speak */
};

struct proxy *proxy_start(int server_port); /* aborts the test program when it cannot start */
void proxy_stop(struct proxy *proxy);
int proxy_port(const struct proxy *proxy);
/* The next `times` commands of this name are met like this. `answer` is copied. */
void proxy_rule(struct proxy *proxy, const char *command, enum proxy_action action, int times, const bson_t *answer);
void proxy_clear(struct proxy *proxy);
/* How many commands met a rule since proxy_rule. */
int proxy_met(struct proxy *proxy);
/* Ends every silence: the quiet connections are cut. */
void proxy_speak(struct proxy *proxy);
/* Refuses new connections and cuts the open ones (a server that is gone), or lets them in again on the same port. */
void proxy_down(struct proxy *proxy, bool down);

#endif
