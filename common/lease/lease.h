/* SPDX-License-Identifier: Apache-2.0
 *
 * The lease seam (contract/lifecycle.md §4): advisory locks in Redis, SET NX PX with a random token. A lease keeps
 * well-behaved workers apart; the compare-and-set in the store is the fence. Names are the logical ones
 * ("agent-sandbox:lifecycle:<sandboxId>"); the implementation adds the prefix and "lock:". */
#ifndef SK_LEASE_LEASE_H
#define SK_LEASE_LEASE_H

#include "common/base/id.h"
#include "common/base/sched.h"

#define SK_LEASE_NAME_SIZE   512
#define SK_LEASE_CURSOR_SIZE 24
#define SK_LEASE_NAMES       "agent-sandbox:" /* what every lease of ours and of FastGPT's begins with (contract §4) */

/* Caller-owned. Renewed by whoever holds a pointer under the caller's own lock; `lost` and `valid_until_us` may be read
 * from other threads. */
struct sk_lease {
    char name[SK_LEASE_NAME_SIZE];
    char token[SK_UUID_SIZE];
    atomic_llong valid_until_us; /* monotonic, counted from the start of the last successful SET or renewal */
    atomic_bool lost;            /* the token is not ours any more */
    bool held;
};

enum sk_lease_result { SK_LEASE_ERROR = -1, SK_LEASE_BUSY = 0, SK_LEASE_ACQUIRED = 1 };

struct sk_lease_service {
    const struct sk_lease_ops *ops;
    void *self;
};

struct sk_lease_ops {
    /* One atomic attempt, no waiting. Errors: lease_unavailable (an ambiguous SET is resolved by reading the token
     * back). ttl_ms > 0. */
    enum sk_lease_result (*acquire)(void *self, struct sk_call *call, const char *name, int64_t ttl_ms,
                                    struct sk_lease *out, struct sk_error *err);
    /* Renews many in one pipeline: compare token, then PEXPIRE. Marks `lost` where the token differs. An error of the
     * connection leaves the leases as they are (they expire by valid_until_us). */
    int (*renew)(void *self, struct sk_lease *const *leases, int count, int64_t ttl_ms, struct sk_error *err);
    /* Compare and delete; best effort, idempotent. */
    void (*release)(void *self, struct sk_lease *lease);
    int (*ping)(void *self, struct sk_call *call, struct sk_error *err);
    /* For the doctor: a part of all leases there are, by logical name, with what is left of their time (-1 = no
     * expiry). `cursor` is "" or what the last part put into `next`; "" there = that was all. A lease may come twice,
     * one that came or went meanwhile may be missing, and a part may be empty. */
    int (*list)(void *self, struct sk_call *call, const char *cursor,
                void (*fn)(void *arg, const char *name, int64_t ttl_ms), void *arg, char next[SK_LEASE_CURSOR_SIZE],
                struct sk_error *err);
};

/* Synchronous and local: held, not lost, not past its expiry on the monotonic clock. */
static inline bool sk_lease_valid(const struct sk_lease *lease, const struct sk_sched *sched)
{
    return lease->held && !atomic_load(&lease->lost) && sk_mono_us(sched) < atomic_load(&lease->valid_until_us);
}

struct sk_lease_redis_config {
    const char *url;        /* redis://[:password@]host:port[/db] */
    const char *key_prefix; /* "fastgpt:" */
    int connections;        /* most connections in the pool */
    int64_t timeout_ms;     /* connect and command */
};
SK_MUST_USE int sk_lease_redis_new(const struct sk_lease_redis_config *config, const struct sk_sched *sched,
                                   struct sk_lease_service *out, struct sk_error *err);
void sk_lease_redis_free(struct sk_lease_service *service);

#endif
