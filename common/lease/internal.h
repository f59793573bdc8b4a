/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection side of the Redis leases: a small pool of blocking connections whose every step has a deadline and can
 * be called back. Private to common/lease. */
#ifndef SK_LEASE_INTERNAL_H
#define SK_LEASE_INTERNAL_H

#include "common/lease/lease.h"

#include <hiredis/hiredis.h>
#include <pthread.h>

#define SK_REDIS_CONNECTIONS_MAX 64
#define SK_REDIS_BACKOFF_MIN_MS  50
#define SK_REDIS_BACKOFF_MAX_MS  1000

struct sk_redis_endpoint {
    char host[256];
    int port;
    char *user, *password; /* NULL = none */
    int database;
};

/* redis://[[user]:password@]host[:port][/db], percent-encoding in user and password. Errors: invalid_request, without
 * quoting the URL (it may hold a secret). */
SK_MUST_USE int sk_redis_endpoint_parse(const char *url, struct sk_redis_endpoint *out, struct sk_error *err);
void sk_redis_endpoint_fini(struct sk_redis_endpoint *endpoint);

struct sk_redis_connection {
    redisContext *context; /* NULL = not connected */
    bool busy;
};

struct sk_redis {
    const struct sk_sched *sched;
    struct sk_redis_endpoint endpoint;
    int64_t timeout_ms;
    pthread_mutex_t mu;
    pthread_cond_t freed;
    int count;               /* places in use below */
    unsigned failures;       /* connects that failed in a row */
    int64_t next_connect_us; /* not before this: everybody fails at once meanwhile */
    struct sk_redis_connection connections[SK_REDIS_CONNECTIONS_MAX];
};

SK_MUST_USE int sk_redis_init(struct sk_redis *redis, const struct sk_lease_redis_config *config,
                              const struct sk_sched *sched, struct sk_error *err);
void sk_redis_fini(struct sk_redis *redis);

struct sk_lease_redis {
    struct sk_redis redis;
    char prefix[128];
};

int sk_lease_redis_list(void *self, struct sk_call *call, const char *cursor,
                        void (*fn)(void *arg, const char *name, int64_t ttl_ms), void *arg,
                        char next[SK_LEASE_CURSOR_SIZE], struct sk_error *err);

struct sk_redis_command {
    int argc;
    const char *argv[8];
};

/* Sends `count` commands in one go and reads their replies (owned by the caller; NULL where none came). Returns 0 when
 * all came. On failure err is lease_unavailable (or cancelled); its outcome is UNKNOWN exactly when bytes left for the
 * server. A pooled connection that turns out to be dead before anything was answered is replaced and, when
 * `repeatable`, tried once more. Ends at the configured time-out, at the call's deadline or at deadline_us (monotonic,
 * 0 = none), whatever comes first. `call` may be NULL. */
SK_MUST_USE int sk_redis_run(struct sk_redis *redis, struct sk_call *call, int64_t deadline_us,
                             const struct sk_redis_command *commands, int count, bool repeatable, redisReply **replies,
                             struct sk_error *err);
void sk_redis_replies_free(redisReply **replies, int count);

#endif
