/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocking Redis connections with deadlines. hiredis 0.14 has a time-out per read only, so a server that hangs or sends
 * a byte a second could hold a worker for long: here every wait is a poll against one deadline, in slices short enough
 * to see a cancel. */
#include "common/lease/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CANCEL_SLICE_MS 50
#define REPLY_MAX       (64 * 1024) /* bytes buffered for one exchange; our answers are tiny */

/* ---- the URL ------------------------------------------------------------------------------------------------------
 */

static char *decode(const char *text, size_t len)
{
    char *out = malloc(len + 1);
    size_t used = 0;

    for (size_t i = 0; out != NULL && i < len; i++) {
        char hex[3] = {0};
        if (text[i] != '%') {
            out[used++] = text[i];
            continue;
        }
        if (i + 2 >= len) {
            free(out);
            return NULL;
        }
        hex[0] = text[i + 1];
        hex[1] = text[i + 2];
        if (strspn(hex, "0123456789abcdefABCDEF") != 2) {
            free(out);
            return NULL;
        }
        out[used++] = (char)strtol(hex, NULL, 16);
        i += 2;
    }
    if (out != NULL)
        out[used] = '\0';
    return out;
}

static int parse_number(const char *text, size_t len, long max, int *out)
{
    char buffer[12], *end;
    long value;

    if (len == 0 || len >= sizeof(buffer) || strspn(text, "0123456789") < len)
        return -1;
    memcpy(buffer, text, len);
    buffer[len] = '\0';
    value = strtol(buffer, &end, 10);
    if (value > max)
        return -1;
    *out = (int)value;
    return 0;
}

int sk_redis_endpoint_parse(const char *url, struct sk_redis_endpoint *out, struct sk_error *err)
{
    const char *at, *host, *host_end, *slash, *port = NULL;

    memset(out, 0, sizeof(*out));
    out->port = 6379;
    if (url == NULL || strncmp(url, "redis://", 8) != 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "Redis URL must begin with redis://");
    host = url + 8;
    slash = host + strcspn(host, "/?#");
    if (*slash == '?' || *slash == '#')
        goto bad;
    at = memrchr(host, '@', (size_t)(slash - host));
    if (at != NULL) {
        const char *colon = memchr(host, ':', (size_t)(at - host));
        if (colon == NULL)
            goto bad;
        if (colon > host && (out->user = decode(host, (size_t)(colon - host))) == NULL)
            goto bad;
        if ((out->password = decode(colon + 1, (size_t)(at - colon - 1))) == NULL)
            goto bad;
        host = at + 1;
    }
    if (*host == '[') {
        host++;
        host_end = memchr(host, ']', (size_t)(slash - host));
        if (host_end == NULL)
            goto bad;
        if (host_end[1] == ':')
            port = host_end + 2;
        else if (host_end + 1 != slash)
            goto bad;
    } else {
        host_end = memchr(host, ':', (size_t)(slash - host));
        if (host_end != NULL)
            port = host_end + 1;
        else
            host_end = slash;
    }
    if (host_end == host || (size_t)(host_end - host) >= sizeof(out->host))
        goto bad;
    memcpy(out->host, host, (size_t)(host_end - host));
    if (port != NULL && (parse_number(port, (size_t)(slash - port), 65535, &out->port) != 0 || out->port == 0))
        goto bad;
    if (*slash == '/' && slash[1] != '\0' && parse_number(slash + 1, strlen(slash + 1), 1023, &out->database) != 0)
        goto bad;
    return 0;
bad:
    sk_redis_endpoint_fini(out);
    return sk_fail(err, SK_ERR_INVALID_REQUEST, "Redis URL must be redis://[[user]:password@]host[:port][/db]");
}

void sk_redis_endpoint_fini(struct sk_redis_endpoint *endpoint)
{
    free(endpoint->user);
    free(endpoint->password);
    endpoint->user = endpoint->password = NULL;
}

/* ---- one exchange on one connection -------------------------------------------------------------------------------
 */

struct exchange {
    struct sk_redis *redis;
    struct sk_call *call;
    int64_t deadline_us;
    bool sent; /* bytes left for the server */
};

static int fail(const struct exchange *exchange, struct sk_error *err, const char *text)
{
    enum sk_code code =
        exchange->call != NULL && sk_call_cancelled(exchange->call) ? SK_ERR_CANCELLED : SK_ERR_LEASE_UNAVAILABLE;

    return exchange->sent ? sk_fail_unknown(err, code, "Redis: %s", text) : sk_fail(err, code, "Redis: %s", text);
}

/* Waits until the socket is ready for `events`. False at the deadline or when called back. */
static bool wait_ready(const struct exchange *exchange, redisContext *context, short events)
{
    for (;;) {
        struct pollfd item = {.fd = context->fd, .events = events};
        int64_t left_ms = (exchange->deadline_us - sk_mono_us(exchange->redis->sched) + 999) / 1000;
        int rc;

        if (left_ms <= 0 || (exchange->call != NULL && sk_call_budget_ms(exchange->call, 1) == 0))
            return false;
        rc = poll(&item, 1, left_ms < CANCEL_SLICE_MS ? (int)left_ms : CANCEL_SLICE_MS);
        if (rc > 0)
            return true;
        if (rc < 0 && errno != EINTR)
            return false;
    }
}

static int flush(struct exchange *exchange, redisContext *context, struct sk_error *err)
{
    int done = 0;

    while (!done) {
        if (!wait_ready(exchange, context, POLLOUT))
            return fail(exchange, err, "no time left to send");
        exchange->sent = true;
        if (redisBufferWrite(context, &done) != REDIS_OK)
            return fail(exchange, err, context->errstr);
    }
    return 0;
}

static int read_reply(struct exchange *exchange, redisContext *context, redisReply **reply, struct sk_error *err)
{
    void *item = NULL;

    for (;;) {
        if (redisGetReplyFromReader(context, &item) != REDIS_OK)
            return fail(exchange, err, context->errstr);
        if (item != NULL)
            break;
        if (!wait_ready(exchange, context, POLLIN))
            return fail(exchange, err, "no answer in time");
        if (redisBufferRead(context) != REDIS_OK)
            return fail(exchange, err, context->errstr);
        if (context->reader->len > REPLY_MAX)
            return fail(exchange, err, "the answer is larger than any of ours can be");
    }
    *reply = item;
    return 0;
}

static int talk(struct exchange *exchange, redisContext *context, const struct sk_redis_command *commands, int count,
                redisReply **replies, struct sk_error *err)
{
    for (int i = 0; i < count; i++) {
        const char *argv[8];
        memcpy(argv, commands[i].argv, sizeof(argv));
        if (redisAppendCommandArgv(context, commands[i].argc, argv, NULL) != REDIS_OK)
            return fail(exchange, err, "out of memory");
    }
    if (flush(exchange, context, err) != 0)
        return -1;
    for (int i = 0; i < count; i++) {
        if (read_reply(exchange, context, &replies[i], err) != 0)
            return -1;
    }
    return 0;
}

void sk_redis_replies_free(redisReply **replies, int count)
{
    for (int i = 0; i < count; i++) {
        if (replies[i] != NULL)
            freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}

/* ---- the pool -----------------------------------------------------------------------------------------------------
 */

/* Connects, then AUTH and SELECT. Nothing of the caller's has been sent, so a failure here is without effect. */
static redisContext *connect_new(struct exchange *exchange, struct sk_error *err)
{
    struct sk_redis *redis = exchange->redis;
    int64_t left_ms = (exchange->deadline_us - sk_mono_us(redis->sched)) / 1000, wait_ms;
    struct timeval limit;
    struct sk_redis_command hello[2];
    redisReply *replies[2] = {NULL, NULL};
    char database[16];
    int count = 0;
    redisContext *context = NULL;
    bool good = false;

    pthread_mutex_lock(&redis->mu);
    wait_ms = (redis->next_connect_us - sk_mono_us(redis->sched)) / 1000;
    pthread_mutex_unlock(&redis->mu);
    if (wait_ms > 0) {
        (void)fail(exchange, err, "cannot be reached");
        if (err != NULL)
            err->retry_after_ms = wait_ms;
        return NULL;
    }
    if (exchange->call != NULL && left_ms > 0)
        left_ms = sk_call_budget_ms(exchange->call, left_ms);
    if (left_ms <= 0) {
        (void)fail(exchange, err, "no time left to connect");
        return NULL;
    }
    limit = (struct timeval){left_ms / 1000, left_ms % 1000 * 1000};
    context = redisConnectWithTimeout(redis->endpoint.host, redis->endpoint.port, limit);
    if (context == NULL || context->err) {
        (void)fail(exchange, err, context != NULL ? context->errstr : "out of memory");
        goto out;
    }
    (void)redisEnableKeepAlive(context);
    (void)redisSetTimeout(context, limit);
    if (redis->endpoint.password != NULL && redis->endpoint.user != NULL)
        hello[count++] = (struct sk_redis_command){3, {"AUTH", redis->endpoint.user, redis->endpoint.password}};
    else if (redis->endpoint.password != NULL)
        hello[count++] = (struct sk_redis_command){2, {"AUTH", redis->endpoint.password}};
    if (redis->endpoint.database != 0) {
        snprintf(database, sizeof(database), "%d", redis->endpoint.database);
        hello[count++] = (struct sk_redis_command){2, {"SELECT", database}};
    }
    if (count > 0) {
        struct exchange greeting = *exchange;
        if (talk(&greeting, context, hello, count, replies, err) != 0) {
            if (err != NULL)
                err->outcome = exchange->sent ? SK_OUTCOME_UNKNOWN : SK_OUTCOME_FAILED;
            goto out;
        }
        for (int i = 0; i < count; i++) {
            if (replies[i] == NULL || replies[i]->type == REDIS_REPLY_ERROR) {
                /* The server's text names no secret: "WRONGPASS invalid username-password pair…". */
                (void)fail(exchange, err, replies[i] != NULL ? replies[i]->str : "no answer");
                goto out;
            }
        }
    }
    good = true;
out:
    sk_redis_replies_free(replies, 2);
    pthread_mutex_lock(&redis->mu);
    if (good) {
        redis->failures = 0;
        redis->next_connect_us = 0;
    } else if (exchange->call == NULL || !sk_call_cancelled(exchange->call)) {
        int64_t ms = SK_REDIS_BACKOFF_MIN_MS;
        for (unsigned i = 0; i < redis->failures && ms < SK_REDIS_BACKOFF_MAX_MS; i++)
            ms *= 2;
        redis->failures++;
        redis->next_connect_us =
            sk_mono_us(redis->sched) + (ms < SK_REDIS_BACKOFF_MAX_MS ? ms : SK_REDIS_BACKOFF_MAX_MS) * 1000;
    }
    pthread_mutex_unlock(&redis->mu);
    if (!good && context != NULL) {
        redisFree(context);
        context = NULL;
    }
    return context;
}

/* An idle connection that can be read from was closed by the server (or talks out of turn): not usable. */
static bool is_stale(redisContext *context)
{
    struct pollfd item = {.fd = context->fd, .events = POLLIN};

    return poll(&item, 1, 0) != 0;
}

static struct sk_redis_connection *take_place(struct exchange *exchange, struct sk_error *err)
{
    struct sk_redis *redis = exchange->redis;
    struct sk_redis_connection *found = NULL;

    pthread_mutex_lock(&redis->mu);
    for (;;) {
        int64_t left_us = exchange->deadline_us - sk_mono_us(redis->sched);
        struct timespec at;
        for (int i = 0; i < redis->count; i++) {
            struct sk_redis_connection *item = &redis->connections[i];
            if (!item->busy && (found == NULL || (found->context == NULL && item->context != NULL)))
                found = item; /* an open one before one that has to connect */
        }
        if (found != NULL || left_us <= 0 || (exchange->call != NULL && sk_call_budget_ms(exchange->call, 1) == 0))
            break;
        if (left_us > CANCEL_SLICE_MS * 1000)
            left_us = CANCEL_SLICE_MS * 1000;
        clock_gettime(CLOCK_MONOTONIC, &at);
        at.tv_nsec += left_us * 1000;
        if (at.tv_nsec >= 1000000000) {
            at.tv_sec++;
            at.tv_nsec -= 1000000000;
        }
        (void)pthread_cond_timedwait(&redis->freed, &redis->mu, &at);
    }
    if (found != NULL)
        found->busy = true;
    pthread_mutex_unlock(&redis->mu);
    if (found == NULL)
        (void)fail(exchange, err, "every connection is in use");
    return found;
}

static void give_place(struct sk_redis *redis, struct sk_redis_connection *place)
{
    pthread_mutex_lock(&redis->mu);
    place->busy = false;
    pthread_cond_signal(&redis->freed);
    pthread_mutex_unlock(&redis->mu);
}

int sk_redis_run(struct sk_redis *redis, struct sk_call *call, int64_t deadline_us,
                 const struct sk_redis_command *commands, int count, bool repeatable, redisReply **replies,
                 struct sk_error *err)
{
    struct exchange exchange = {.redis = redis, .call = call};
    struct sk_redis_connection *place;
    int64_t budget_ms = call != NULL ? sk_call_budget_ms(call, redis->timeout_ms) : redis->timeout_ms;
    int rc = -1;

    for (int i = 0; i < count; i++)
        replies[i] = NULL;
    exchange.deadline_us = sk_mono_us(redis->sched) + budget_ms * 1000;
    if (deadline_us != 0 && deadline_us < exchange.deadline_us)
        exchange.deadline_us = deadline_us;
    place = take_place(&exchange, err);
    if (place == NULL)
        return -1;
    for (int attempt = 0; attempt < 2; attempt++) {
        bool reused;
        if (place->context != NULL && is_stale(place->context)) {
            redisFree(place->context);
            place->context = NULL;
        }
        reused = place->context != NULL;
        if (!reused)
            place->context = connect_new(&exchange, err);
        if (place->context == NULL)
            break;
        rc = talk(&exchange, place->context, commands, count, replies, err);
        if (rc == 0)
            break;
        /* Whatever is still under way on it would answer the next question. */
        redisFree(place->context);
        place->context = NULL;
        if (!reused || !repeatable || replies[0] != NULL)
            break;
        sk_redis_replies_free(replies, count);
    }
    give_place(redis, place);
    if (rc != 0)
        sk_redis_replies_free(replies, count);
    return rc;
}

int sk_redis_init(struct sk_redis *redis, const struct sk_lease_redis_config *config, const struct sk_sched *sched,
                  struct sk_error *err)
{
    pthread_condattr_t attr;

    memset(redis, 0, sizeof(*redis));
    redis->sched = sched;
    redis->timeout_ms = config->timeout_ms > 0 ? config->timeout_ms : 2000;
    redis->count = config->connections > 0 ? config->connections : 8;
    if (redis->count > SK_REDIS_CONNECTIONS_MAX)
        redis->count = SK_REDIS_CONNECTIONS_MAX;
    if (sk_redis_endpoint_parse(config->url, &redis->endpoint, err) != 0)
        return -1;
    pthread_mutex_init(&redis->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&redis->freed, &attr);
    pthread_condattr_destroy(&attr);
    return 0;
}

void sk_redis_fini(struct sk_redis *redis)
{
    for (int i = 0; i < redis->count; i++) {
        if (redis->connections[i].context != NULL)
            redisFree(redis->connections[i].context);
    }
    pthread_cond_destroy(&redis->freed);
    pthread_mutex_destroy(&redis->mu);
    sk_redis_endpoint_fini(&redis->endpoint);
}
