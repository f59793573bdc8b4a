/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases in Redis (contract/lifecycle.md §4): SET NX PX with a random token, compare and extend, compare and delete.
 * A lease is only ever believed for the time counted from before its request left; an answer that got lost is found
 * out by reading the token back; a server that lost its memory makes a lease `lost` at the next renewal. */
#include "common/lease/internal.h"

#include "common/base/id.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX_SIZE     sizeof(((struct sk_lease_redis *)NULL)->prefix)
#define KEY_SIZE        (PREFIX_SIZE + 8 + SK_LEASE_NAME_SIZE)
#define ACQUIRE_TRIES   3
#define RENEW_BATCH_MAX 256 /* leases in one pipeline */

/* EVAL with the text each time: no second round trip after a restart or SCRIPT FLUSH, and the server caches it by hash.
 */
static const char renew_script[] =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";
static const char release_script[] =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

static const char *const call_names[] = {"acquire", "renew", "release", "ping", NULL};
enum { CALL_ACQUIRE, CALL_RENEW, CALL_RELEASE, CALL_PING };
static struct sk_metric metric_failures = {
    .name = "sandkeep_lease_failures_total",
    .help = "Lease calls that Redis did not answer, by call",
    .kind = SK_METRIC_COUNTER,
    .labels = {{"call", call_names}},
};
static struct sk_metric metric_ambiguous = {
    .name = "sandkeep_lease_ambiguous_total",
    .help = "Lease requests whose answer was lost and that were resolved by reading back",
    .kind = SK_METRIC_COUNTER,
};

static void key_of(const struct sk_lease_redis *service, const char *name, char key[KEY_SIZE])
{
    snprintf(key, KEY_SIZE, "%slock:%s", service->prefix, name);
}

static int refused(struct sk_error *err, const redisReply *reply)
{
    /* LOADING, READONLY, OOM, NOAUTH …: the server is there but does not do it; certainly without effect. */
    return sk_fail(err, SK_ERR_LEASE_UNAVAILABLE, "Redis: %.200s",
                   reply->type == REDIS_REPLY_ERROR ? reply->str : "unexpected answer");
}

/* 1 = the key holds our token, 0 = another's or none, -1 = no answer. */
static int holds(struct sk_lease_redis *service, struct sk_call *call, int64_t deadline_us, const char *key,
                 const char *token, struct sk_error *err)
{
    struct sk_redis_command command = {2, {"GET", key}};
    redisReply *reply;
    int rc;

    if (sk_redis_run(&service->redis, call, deadline_us, &command, 1, true, &reply, err) != 0)
        return -1;
    if (reply->type == REDIS_REPLY_STRING)
        rc = reply->len == strlen(token) && memcmp(reply->str, token, reply->len) == 0;
    else if (reply->type == REDIS_REPLY_NIL)
        rc = 0;
    else
        rc = refused(err, reply);
    freeReplyObject(reply);
    return rc;
}

static enum sk_lease_result redis_acquire(void *self, struct sk_call *call, const char *name, int64_t ttl_ms,
                                          struct sk_lease *out, struct sk_error *err)
{
    struct sk_lease_redis *service = self;
    char key[KEY_SIZE], token[SK_UUID_SIZE], ttl[24];
    struct sk_redis_command command = {6, {"SET", key, token, "NX", "PX", ttl}};
    int64_t started_us = sk_mono_us(service->redis.sched);
    enum sk_lease_result result = SK_LEASE_ERROR;
    int64_t deadline_us = 0;
    bool ambiguous = false;

    out->held = false;
    atomic_store(&out->lost, false);
    atomic_store(&out->valid_until_us, 0);
    if (ttl_ms <= 0 || name == NULL || name[0] == '\0' || !sk_copy(out->name, sizeof(out->name), name)) {
        (void)sk_fail(err, SK_ERR_INVALID_REQUEST, "lease: the name or the time cannot be used");
        return SK_LEASE_ERROR;
    }
    key_of(service, name, key);
    sk_uuid4(service->redis.sched, token);
    snprintf(ttl, sizeof(ttl), "%" PRId64, ttl_ms);
    for (int try = 0; try < ACQUIRE_TRIES && result == SK_LEASE_ERROR; try++) {
        redisReply *reply;
        struct sk_error lost;
        if (sk_redis_run(&service->redis, call, deadline_us, &command, 1, false, &reply, &lost) != 0) {
            if (err != NULL)
                *err = lost;
            if (lost.outcome == SK_OUTCOME_UNKNOWN && !ambiguous) {
                ambiguous = true;
                /* All the finding out together takes no longer than the request itself. */
                deadline_us = sk_mono_us(service->redis.sched) + service->redis.timeout_ms * 1000;
                sk_metric_add(&metric_ambiguous, 0, 0, 1);
            }
            if (lost.outcome != SK_OUTCOME_UNKNOWN || lost.code == SK_ERR_CANCELLED)
                break; /* it cannot be reached at all: no use in asking again now */
            continue;
        }
        if (reply->type == REDIS_REPLY_STATUS) {
            result = SK_LEASE_ACQUIRED;
        } else if (reply->type == REDIS_REPLY_NIL) {
            /* Held. By us, when an earlier SET went through and only its answer was lost. */
            int ours = ambiguous ? holds(service, call, deadline_us, key, token, err) : 0;
            if (ours >= 0)
                result = ours ? SK_LEASE_ACQUIRED : SK_LEASE_BUSY;
            freeReplyObject(reply);
            if (ours < 0)
                break;
            continue;
        } else {
            (void)refused(err, reply);
            freeReplyObject(reply);
            break;
        }
        freeReplyObject(reply);
    }
    if (result == SK_LEASE_ERROR) {
        sk_metric_add(&metric_failures, CALL_ACQUIRE, 0, 1);
        /* If the SET went through after all, nobody holds the key and it expires by itself. */
        if (ambiguous && err != NULL)
            err->outcome = SK_OUTCOME_UNKNOWN;
        return result;
    }
    if (result == SK_LEASE_ACQUIRED) {
        memcpy(out->token, token, sizeof(out->token));
        /* From before the first SET: the earliest moment that any of them can have taken effect. */
        atomic_store(&out->valid_until_us, started_us + ttl_ms * 1000);
        out->held = true;
    }
    return result;
}

static int renew_some(struct sk_lease_redis *service, struct sk_lease *const *leases, int count, int64_t ttl_ms,
                      struct sk_error *err)
{
    char(*keys)[KEY_SIZE] = malloc((size_t)count * sizeof(*keys));
    struct sk_redis_command commands[RENEW_BATCH_MAX];
    redisReply *replies[RENEW_BATCH_MAX];
    char ttl[24];
    int64_t started_us = sk_mono_us(service->redis.sched);
    int rc = -1;

    if (keys == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    snprintf(ttl, sizeof(ttl), "%" PRId64, ttl_ms);
    for (int i = 0; i < count; i++) {
        key_of(service, leases[i]->name, keys[i]);
        commands[i] = (struct sk_redis_command){6, {"EVAL", renew_script, "1", keys[i], leases[i]->token, ttl}};
    }
    if (sk_redis_run(&service->redis, NULL, 0, commands, count, true, replies, err) != 0)
        goto out;
    rc = 0;
    for (int i = 0; i < count; i++) {
        if (replies[i]->type != REDIS_REPLY_INTEGER)
            rc = refused(err, replies[i]);
        else if (replies[i]->integer == 1)
            atomic_store(&leases[i]->valid_until_us, started_us + ttl_ms * 1000);
        else
            atomic_store(&leases[i]->lost, true);
    }
    sk_redis_replies_free(replies, count);
out:
    free(keys);
    return rc;
}

static int redis_renew(void *self, struct sk_lease *const *leases, int count, int64_t ttl_ms, struct sk_error *err)
{
    int rc = 0;

    if (ttl_ms <= 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "lease: the time cannot be used");
    for (int first = 0; first < count; first += RENEW_BATCH_MAX) {
        int some = count - first < RENEW_BATCH_MAX ? count - first : RENEW_BATCH_MAX;
        if (renew_some(self, leases + first, some, ttl_ms, err) != 0) {
            sk_metric_add(&metric_failures, CALL_RENEW, 0, 1);
            rc = -1;
        }
    }
    return rc;
}

static void redis_release(void *self, struct sk_lease *lease)
{
    struct sk_lease_redis *service = self;
    char key[KEY_SIZE];
    struct sk_redis_command command = {5, {"EVAL", release_script, "1", key, lease->token}};
    redisReply *reply;
    struct sk_error err;

    if (!lease->held)
        return;
    lease->held = false;
    if (atomic_load(&lease->lost))
        return;
    key_of(service, lease->name, key);
    if (sk_redis_run(&service->redis, NULL, 0, &command, 1, true, &reply, &err) != 0) {
        sk_metric_add(&metric_failures, CALL_RELEASE, 0, 1);
        SK_LOG_WARN("lease not released, it expires by itself", SK_F("lease", lease->name), SK_FE(&err));
        return;
    }
    freeReplyObject(reply);
}

static int redis_ping(void *self, struct sk_call *call, struct sk_error *err)
{
    struct sk_lease_redis *service = self;
    struct sk_redis_command command = {1, {"PING"}};
    redisReply *reply;
    int rc = 0;

    if (sk_redis_run(&service->redis, call, 0, &command, 1, true, &reply, err) != 0) {
        sk_metric_add(&metric_failures, CALL_PING, 0, 1);
        return -1;
    }
    if (reply->type != REDIS_REPLY_STATUS)
        rc = refused(err, reply);
    freeReplyObject(reply);
    return rc;
}

static const struct sk_lease_ops redis_ops = {
    .acquire = redis_acquire,
    .renew = redis_renew,
    .release = redis_release,
    .ping = redis_ping,
    .list = sk_lease_redis_list,
};

int sk_lease_redis_new(const struct sk_lease_redis_config *config, const struct sk_sched *sched,
                       struct sk_lease_service *out, struct sk_error *err)
{
    struct sk_lease_redis *service = calloc(1, sizeof(*service));

    if (service == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    if (!sk_copy(service->prefix, sizeof(service->prefix),
                 config->key_prefix != NULL ? config->key_prefix : "fastgpt:")) {
        (void)sk_fail(err, SK_ERR_INVALID_REQUEST, "Redis key prefix is longer than %d bytes", (int)PREFIX_SIZE - 1);
        goto failed;
    }
    if (sk_redis_init(&service->redis, config, sched, err) != 0)
        goto failed;
    sk_metric_register(&metric_failures);
    sk_metric_register(&metric_ambiguous);
    out->ops = &redis_ops;
    out->self = service;
    return 0;
failed:
    free(service);
    return -1;
}

void sk_lease_redis_free(struct sk_lease_service *lease)
{
    struct sk_lease_redis *service = lease->self;

    if (service == NULL)
        return;
    sk_redis_fini(&service->redis);
    free(service);
    lease->self = NULL;
    lease->ops = NULL;
}
