/* SPDX-License-Identifier: Apache-2.0
 * Leases against a real Redis: two clients, foreign tokens, lost answers, a wiped, killed and frozen server. */
#define SK_CHECK_TIMEOUT 60
#include "common/lease/lease.h"
#include "common/log/log.h"
#include "tests/support/server.h"
#include "tests/unit/check_main.h"

#include <arpa/inet.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAME "agent-sandbox:lifecycle:app-0123456789abcdef"
#define KEY  "fastgpt:lock:" NAME

static const struct sk_sched *const sched = &sk_sched_system;

struct rig {
    struct sk_test_server server;
    struct sk_lease_service a, b;
    redisContext *raw;
};

static void open_service(const char *url, int64_t timeout_ms, struct sk_lease_service *out)
{
    struct sk_lease_redis_config config = {
        .url = url, .key_prefix = "fastgpt:", .connections = 4, .timeout_ms = timeout_ms};
    struct sk_error err;

    sk_log_set_level(SK_LOG_LEVEL_ERROR);
    ck_assert_msg(sk_lease_redis_new(&config, sched, out, &err) == 0, "%s", err.message);
}

static void rig_start(struct rig *rig, const char *extra)
{
    memset(rig, 0, sizeof(*rig));
    sk_test_server_start(&rig->server, SK_TEST_REDIS, extra);
    open_service(rig->server.url, 500, &rig->a);
    open_service(rig->server.url, 500, &rig->b);
    rig->raw = redisConnect("127.0.0.1", rig->server.port);
    ck_assert_int_eq(rig->raw->err, 0);
}

static void rig_end(struct rig *rig)
{
    redisFree(rig->raw);
    sk_lease_redis_free(&rig->a);
    sk_lease_redis_free(&rig->b);
    sk_test_server_end(&rig->server);
}

/* The answer as text: "nil", a number or a string. */
static const char *raw(struct rig *rig, const char *command)
{
    static char text[256];
    redisReply *reply = redisCommand(rig->raw, command);

    ck_assert_ptr_nonnull(reply);
    if (reply->type == REDIS_REPLY_NIL)
        snprintf(text, sizeof(text), "nil");
    else if (reply->type == REDIS_REPLY_INTEGER)
        snprintf(text, sizeof(text), "%lld", reply->integer);
    else
        snprintf(text, sizeof(text), "%s", reply->str);
    freeReplyObject(reply);
    return text;
}

static enum sk_lease_result acquire(struct sk_lease_service *service, const char *name, int64_t ttl_ms,
                                    struct sk_lease *out, struct sk_error *err)
{
    struct sk_call call;

    sk_call_init(&call, sched);
    return service->ops->acquire(service->self, &call, name, ttl_ms, out, err);
}

START_TEST(test_one_holder)
{
    struct rig rig;
    struct sk_lease mine, theirs;
    struct sk_error err;
    int64_t before, ttl;

    rig_start(&rig, NULL);
    before = sk_mono_us(sched);
    ck_assert_int_eq(acquire(&rig.a, NAME, 60000, &mine, &err), SK_LEASE_ACQUIRED);
    ck_assert(sk_lease_valid(&mine, sched));
    ck_assert_int_ge(atomic_load(&mine.valid_until_us), before + 60000000);
    ck_assert_int_le(atomic_load(&mine.valid_until_us), sk_mono_us(sched) + 60000000);
    ck_assert_str_eq(mine.name, NAME);
    ck_assert_str_eq(raw(&rig, "GET " KEY), mine.token);
    ttl = atoll(raw(&rig, "PTTL " KEY));
    ck_assert(ttl > 50000 && ttl <= 60000);
    ck_assert_int_eq(acquire(&rig.b, NAME, 60000, &theirs, &err), SK_LEASE_BUSY);
    ck_assert(!theirs.held && !sk_lease_valid(&theirs, sched));
    ck_assert_int_eq(acquire(&rig.b, NAME "2", 60000, &theirs, &err), SK_LEASE_ACQUIRED);
    rig.b.ops->release(rig.b.self, &theirs);
    rig.a.ops->release(rig.a.self, &mine);
    ck_assert(!sk_lease_valid(&mine, sched));
    ck_assert_str_eq(raw(&rig, "GET " KEY), "nil");
    rig.a.ops->release(rig.a.self, &mine); /* idempotent */
    ck_assert_int_eq(acquire(&rig.b, NAME, 60000, &theirs, &err), SK_LEASE_ACQUIRED);
    rig.a.ops->release(rig.a.self, &mine);
    ck_assert_str_eq(raw(&rig, "GET " KEY), theirs.token);
    rig_end(&rig);
}
END_TEST

START_TEST(test_bad_arguments)
{
    struct rig rig;
    struct sk_lease lease;
    struct sk_error err;
    static char name[600];

    rig_start(&rig, NULL);
    memset(name, 'x', sizeof(name) - 1);
    ck_assert_int_eq(acquire(&rig.a, NAME, 0, &lease, &err), SK_LEASE_ERROR);
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    ck_assert_int_eq(acquire(&rig.a, "", 1000, &lease, &err), SK_LEASE_ERROR);
    ck_assert_int_eq(acquire(&rig.a, name, 1000, &lease, &err), SK_LEASE_ERROR);
    /* Spaces and line breaks in a name are data, not protocol. */
    ck_assert_int_eq(acquire(&rig.a, "a b\r\nFLUSHALL\r\n", 1000, &lease, &err), SK_LEASE_ACQUIRED);
    ck_assert_str_eq(raw(&rig, "DBSIZE"), "1");
    rig_end(&rig);
}
END_TEST

START_TEST(test_renew_many)
{
    enum { COUNT = 600 };
    struct rig rig;
    static struct sk_lease leases[COUNT];
    struct sk_lease *list[COUNT];
    struct sk_error err;
    char name[64];
    long long before[COUNT];

    rig_start(&rig, NULL);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "agent-sandbox:lifecycle:%d", i);
        ck_assert_int_eq(acquire(&rig.a, name, 5000, &leases[i], &err), SK_LEASE_ACQUIRED);
        list[i] = &leases[i];
        before[i] = atomic_load(&leases[i].valid_until_us);
    }
    /* One is stolen, one expired, one is a key of another type. */
    raw(&rig, "SET fastgpt:lock:agent-sandbox:lifecycle:7 stranger");
    raw(&rig, "DEL fastgpt:lock:agent-sandbox:lifecycle:300");
    raw(&rig, "SCRIPT FLUSH");
    ck_assert_int_eq(rig.a.ops->renew(rig.a.self, list, COUNT, 90000, &err), 0);
    for (int i = 0; i < COUNT; i++) {
        bool gone = i == 7 || i == 300;
        ck_assert_int_eq(atomic_load(&leases[i].lost), gone);
        ck_assert_int_eq(sk_lease_valid(&leases[i], sched), !gone);
        if (!gone)
            ck_assert_int_ge(atomic_load(&leases[i].valid_until_us), before[i] + 80000000);
    }
    ck_assert_int_gt(atoll(raw(&rig, "PTTL fastgpt:lock:agent-sandbox:lifecycle:599")), 80000);
    ck_assert_str_eq(raw(&rig, "GET fastgpt:lock:agent-sandbox:lifecycle:7"), "stranger");
    rig.a.ops->release(rig.a.self, &leases[7]);
    ck_assert_str_eq(raw(&rig, "GET fastgpt:lock:agent-sandbox:lifecycle:7"), "stranger");
    raw(&rig, "DEL fastgpt:lock:agent-sandbox:lifecycle:8");
    raw(&rig, "LPUSH fastgpt:lock:agent-sandbox:lifecycle:8 x");
    ck_assert_int_eq(rig.a.ops->renew(rig.a.self, list, 20, 90000, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_LEASE_UNAVAILABLE);
    ck_assert(!atomic_load(&leases[8].lost)); /* an error says nothing about the token */
    ck_assert_int_eq(rig.a.ops->renew(rig.a.self, list, 0, 90000, &err), 0);
    rig_end(&rig);
}
END_TEST

struct seen {
    int leases, endless, bad;
    bool mine;
};

static void see(void *arg, const char *name, int64_t ttl_ms)
{
    struct seen *seen = arg;

    seen->leases++;
    seen->endless += ttl_ms == -1;
    seen->bad += strncmp(name, SK_LEASE_NAMES, strlen(SK_LEASE_NAMES)) != 0 || ttl_ms < -1 || ttl_ms > 60000;
    seen->mine = seen->mine || strcmp(name, NAME) == 0;
}

/* All leases there are, part by part, and none of the other keys; the prefix is no pattern. */
START_TEST(test_list)
{
    struct sk_lease_redis_config config = {.key_prefix = "we[i]rd*?-:", .connections = 1, .timeout_ms = 500};
    char cursor[SK_LEASE_CURSOR_SIZE] = "", next[SK_LEASE_CURSOR_SIZE];
    struct sk_lease_service odd;
    struct seen seen = {0};
    struct rig rig;
    struct sk_lease lease;
    struct sk_error err;
    int steps = 0;

    rig_start(&rig, NULL);
    config.url = rig.server.url;
    ck_assert_int_eq(sk_lease_redis_new(&config, sched, &odd, &err), 0);
    ck_assert_int_eq(acquire(&rig.a, NAME, 60000, &lease, &err), SK_LEASE_ACQUIRED);
    ck_assert_int_eq(acquire(&odd, NAME, 60000, &lease, &err), SK_LEASE_ACQUIRED);
    raw(&rig, "SET fastgpt:lock:agent-sandbox:lifecycle:endless x");
    raw(&rig, "SET fastgpt:lock:other:lifecycle:endless x");
    raw(&rig, "SET fastgpt:agent-sandbox:no-lock x");
    raw(&rig, "SET weird:lock:agent-sandbox:x x");
    for (int i = 0; i < 1000; i++) {
        char command[128];

        snprintf(command, sizeof(command), "SET %s%d x PX 50000", i % 2 ? "fastgpt:lock:agent-sandbox:init:" : "k", i);
        raw(&rig, command);
    }
    do {
        ck_assert_msg(rig.a.ops->list(rig.a.self, NULL, cursor, see, &seen, next, &err) == 0, "%s", err.message);
        memcpy(cursor, next, sizeof(cursor));
        steps++;
    } while (cursor[0] != '\0');
    ck_assert_int_gt(steps, 5);
    ck_assert_int_ge(seen.leases, 502);
    ck_assert_int_eq(seen.endless, 1);
    ck_assert_int_eq(seen.bad, 0);
    ck_assert(seen.mine);

    memset(&seen, 0, sizeof(seen));
    do {
        ck_assert_msg(odd.ops->list(odd.self, NULL, cursor, see, &seen, next, &err) == 0, "%s", err.message);
        memcpy(cursor, next, sizeof(cursor));
    } while (cursor[0] != '\0');
    ck_assert_int_eq(seen.leases, 1);
    ck_assert(seen.mine);
    ck_assert_int_eq(rig.a.ops->list(rig.a.self, NULL, "x", see, &seen, next, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    sk_lease_redis_free(&odd);
    sk_test_server_kill(&rig.server);
    ck_assert_int_eq(rig.a.ops->list(rig.a.self, NULL, "", see, &seen, next, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_LEASE_UNAVAILABLE);
    rig_end(&rig);
}
END_TEST

START_TEST(test_expires_by_the_clock)
{
    struct rig rig;
    struct sk_lease mine, theirs;
    struct sk_error err;

    rig_start(&rig, NULL);
    ck_assert_int_eq(acquire(&rig.a, NAME, 150, &mine, &err), SK_LEASE_ACQUIRED);
    for (int i = 0; i < 400 && acquire(&rig.b, NAME, 5000, &theirs, &err) != SK_LEASE_ACQUIRED; i++) {
        /* Never two valid holders at one moment. */
        sk_sleep_ms(sched, 2);
    }
    ck_assert(theirs.held);
    ck_assert(!sk_lease_valid(&mine, sched));
    rig_end(&rig);
}
END_TEST

START_TEST(test_wiped_server)
{
    struct rig rig;
    struct sk_lease mine, theirs, *list[1] = {&mine};
    struct sk_error err;

    rig_start(&rig, NULL);
    ck_assert_int_eq(acquire(&rig.a, NAME, 60000, &mine, &err), SK_LEASE_ACQUIRED);
    raw(&rig, "FLUSHALL");
    ck_assert(sk_lease_valid(&mine, sched)); /* nobody knows yet */
    ck_assert_int_eq(rig.a.ops->renew(rig.a.self, list, 1, 60000, &err), 0);
    ck_assert(atomic_load(&mine.lost) && !sk_lease_valid(&mine, sched));
    ck_assert_int_eq(acquire(&rig.b, NAME, 60000, &theirs, &err), SK_LEASE_ACQUIRED);
    rig.a.ops->release(rig.a.self, &mine);
    ck_assert_str_eq(raw(&rig, "GET " KEY), theirs.token);
    rig_end(&rig);
}
END_TEST

START_TEST(test_killed_and_restarted_server)
{
    struct rig rig;
    struct sk_lease mine, *list[1] = {&mine};
    struct sk_error err;
    struct sk_call call;
    int64_t start;

    sk_call_init(&call, sched);
    rig_start(&rig, NULL);
    ck_assert_int_eq(acquire(&rig.a, NAME, 60000, &mine, &err), SK_LEASE_ACQUIRED);
    sk_test_server_kill(&rig.server);
    start = sk_mono_us(sched);
    ck_assert_int_eq(rig.a.ops->renew(rig.a.self, list, 1, 60000, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_LEASE_UNAVAILABLE);
    ck_assert(err.retryable);
    ck_assert(sk_lease_valid(&mine, sched)); /* held until its time is over */
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(acquire(&rig.a, NAME "x", 60000, &mine, &err), SK_LEASE_ERROR);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert_int_eq(rig.a.ops->ping(rig.a.self, &call, &err), -1);
    ck_assert_int_le(sk_mono_us(sched) - start, 2000000); /* refused connects and back-off fail at once */
    sk_test_server_again(&rig.server);
    for (int i = 0; i < 200 && rig.a.ops->ping(rig.a.self, &call, &err) != 0; i++)
        sk_sleep_ms(sched, 10);
    ck_assert_int_eq(rig.a.ops->ping(rig.a.self, &call, &err), 0);
    /* Its memory is gone: what was held is lost, and free for the next. */
    ck_assert_int_eq(acquire(&rig.a, NAME, 60000, &mine, &err), SK_LEASE_ACQUIRED);
    /* A restart that nobody noticed: the stale pooled connection is replaced without an error. */
    sk_test_server_kill(&rig.server);
    sk_test_server_again(&rig.server);
    ck_assert_int_eq(rig.a.ops->ping(rig.a.self, &call, &err), 0);
    ck_assert_int_eq(rig.a.ops->renew(rig.a.self, list, 1, 60000, &err), 0);
    ck_assert(atomic_load(&mine.lost));
    rig_end(&rig);
}
END_TEST

START_TEST(test_frozen_server_ends_at_the_timeout)
{
    struct rig rig;
    struct sk_lease mine, other, *list[1] = {&mine};
    struct sk_error err;
    int64_t start;

    rig_start(&rig, NULL);
    ck_assert_int_eq(acquire(&rig.a, NAME, 60000, &mine, &err), SK_LEASE_ACQUIRED);
    sk_test_server_freeze(&rig.server, true);
    start = sk_mono_us(sched);
    ck_assert_int_eq(rig.a.ops->renew(rig.a.self, list, 1, 60000, &err), -1);
    ck_assert_int_le(sk_mono_us(sched) - start, 1500000);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
    start = sk_mono_us(sched);
    ck_assert_int_eq(acquire(&rig.b, NAME "2", 60000, &other, &err), SK_LEASE_ERROR);
    ck_assert_int_le(sk_mono_us(sched) - start, 2500000); /* the request, and finding out */
    ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert(!other.held);
    sk_test_server_freeze(&rig.server, false);
    ck_assert_int_eq(rig.a.ops->renew(rig.a.self, list, 1, 60000, &err), 0);
    ck_assert(sk_lease_valid(&mine, sched));
    rig_end(&rig);
}
END_TEST

static void *cancel_soon(void *arg)
{
    sk_sleep_ms(sched, 100);
    sk_call_cancel(arg);
    return NULL;
}

START_TEST(test_a_call_can_be_called_back)
{
    struct rig rig;
    struct sk_lease mine;
    struct sk_error err;
    struct sk_call call;
    struct sk_lease_service patient;
    pthread_t thread;
    int64_t start;

    rig_start(&rig, NULL);
    open_service(rig.server.url, 20000, &patient);
    sk_call_init(&call, sched);
    ck_assert_int_eq(patient.ops->ping(patient.self, &call, &err), 0);
    sk_test_server_freeze(&rig.server, true);
    ck_assert_int_eq(pthread_create(&thread, NULL, cancel_soon, &call), 0);
    start = sk_mono_us(sched);
    ck_assert_int_eq(patient.ops->acquire(patient.self, &call, NAME, 60000, &mine, &err), SK_LEASE_ERROR);
    ck_assert_int_eq(err.code, SK_ERR_CANCELLED);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert_int_le(sk_mono_us(sched) - start, 1000000);
    pthread_join(thread, NULL);
    sk_call_init(&call, sched);
    call.deadline_us = sk_mono_us(sched) + 200000;
    start = sk_mono_us(sched);
    ck_assert_int_eq(patient.ops->acquire(patient.self, &call, NAME, 60000, &mine, &err), SK_LEASE_ERROR);
    ck_assert_int_le(sk_mono_us(sched) - start, 1000000);
    sk_test_server_freeze(&rig.server, false);
    sk_lease_redis_free(&patient);
    rig_end(&rig);
}
END_TEST

START_TEST(test_auth_and_database)
{
    struct sk_test_server server;
    struct sk_lease_service good, bad;
    struct sk_lease lease;
    struct sk_error err;
    struct sk_call call;
    char url[256];
    redisContext *context;
    redisReply *reply;

    sk_call_init(&call, sched);
    sk_test_server_start(&server, SK_TEST_REDIS, "--requirepass p@ss:w/rd");
    snprintf(url, sizeof(url), "redis://:p%%40ss%%3Aw%%2Frd@127.0.0.1:%d/3", server.port);
    open_service(url, 500, &good);
    ck_assert_msg(good.ops->ping(good.self, &call, &err) == 0, "%s", err.message);
    ck_assert_int_eq(acquire(&good, NAME, 60000, &lease, &err), SK_LEASE_ACQUIRED);
    snprintf(url, sizeof(url), "redis://:wrong@127.0.0.1:%d", server.port);
    open_service(url, 500, &bad);
    ck_assert_int_eq(bad.ops->ping(bad.self, &call, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_LEASE_UNAVAILABLE);
    ck_assert_ptr_null(strstr(err.message, "wrong"));
    sk_lease_redis_free(&bad);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%d", server.port);
    open_service(url, 500, &bad);
    ck_assert_int_eq(acquire(&bad, NAME, 60000, &lease, &err), SK_LEASE_ERROR);
    ck_assert_int_eq(err.code, SK_ERR_LEASE_UNAVAILABLE);
    sk_lease_redis_free(&bad);
    context = redisConnect("127.0.0.1", server.port);
    freeReplyObject(redisCommand(context, "AUTH %s", "p@ss:w/rd"));
    freeReplyObject(redisCommand(context, "SELECT 3"));
    reply = redisCommand(context, "EXISTS " KEY);
    ck_assert_int_eq(reply->integer, 1);
    freeReplyObject(reply);
    redisFree(context);
    sk_lease_redis_free(&good);
    sk_test_server_end(&server);
}
END_TEST

/* ---- a proxy that loses answers ------------------------------------------------------------------------------------
 */

struct proxy {
    int listen_fd, port, target;
    atomic_int swallow; /* connections whose first answer is lost: the connection is cut instead */
    atomic_bool stop;
    pthread_t thread;
};

static int tcp(int port, bool server)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (server) {
        ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
        ck_assert_int_eq(listen(fd, 8), 0);
    } else {
        ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    }
    return fd;
}

/* One connection at a time is enough. */
static void *proxy_main(void *arg)
{
    struct proxy *proxy = arg;

    while (!atomic_load(&proxy->stop)) {
        struct pollfd wait = {.fd = proxy->listen_fd, .events = POLLIN};
        int in, out;
        char buffer[4096];
        if (poll(&wait, 1, 20) != 1)
            continue;
        in = accept(proxy->listen_fd, NULL, NULL);
        out = tcp(proxy->target, false);
        for (;;) {
            struct pollfd both[2] = {{.fd = in, .events = POLLIN}, {.fd = out, .events = POLLIN}};
            ssize_t got;
            if (atomic_load(&proxy->stop))
                break;
            if (poll(both, 2, 20) <= 0)
                continue;
            if (both[0].revents != 0) {
                got = read(in, buffer, sizeof(buffer));
                if (got <= 0 || write(out, buffer, (size_t)got) != got)
                    break;
            }
            if (both[1].revents != 0) {
                got = read(out, buffer, sizeof(buffer));
                if (got <= 0)
                    break;
                if (atomic_load(&proxy->swallow) > 0) {
                    atomic_fetch_sub(&proxy->swallow, 1);
                    break; /* the server did it; the client never hears */
                }
                if (write(in, buffer, (size_t)got) != got)
                    break;
            }
        }
        close(in);
        close(out);
    }
    return NULL;
}

START_TEST(test_a_lost_answer_is_read_back)
{
    struct rig rig;
    struct proxy proxy = {0};
    struct sk_lease_service service;
    struct sk_lease mine, theirs, *list[1] = {&mine};
    struct sk_error err;
    struct sockaddr_in at;
    socklen_t len = sizeof(at);
    char url[64];
    int64_t before;

    rig_start(&rig, NULL);
    proxy.listen_fd = tcp(0, true);
    ck_assert_int_eq(getsockname(proxy.listen_fd, (struct sockaddr *)&at, &len), 0);
    proxy.target = rig.server.port;
    ck_assert_int_eq(pthread_create(&proxy.thread, NULL, proxy_main, &proxy), 0);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%d", ntohs(at.sin_port));
    open_service(url, 2000, &service);

    /* Free, and the answer of the SET is lost: it is ours, and believed from before the first request. */
    atomic_store(&proxy.swallow, 1);
    before = sk_mono_us(sched);
    ck_assert_int_eq(acquire(&service, NAME, 60000, &mine, &err), SK_LEASE_ACQUIRED);
    ck_assert_str_eq(raw(&rig, "GET " KEY), mine.token);
    ck_assert_int_le(atomic_load(&mine.valid_until_us), before + 60000000 + 1000000);
    ck_assert_int_eq(atomic_load(&proxy.swallow), 0);
    /* Held by another, and the answer is lost: busy, not ours. */
    atomic_store(&proxy.swallow, 1);
    raw(&rig, "SET fastgpt:lock:other stranger");
    ck_assert_int_eq(acquire(&service, "other", 60000, &theirs, &err), SK_LEASE_BUSY);
    ck_assert_int_eq(atomic_load(&proxy.swallow), 0);
    /* A renewal is repeated on a new connection. */
    atomic_store(&proxy.swallow, 1);
    ck_assert_int_eq(service.ops->renew(service.self, list, 1, 60000, &err), 0);
    ck_assert(sk_lease_valid(&mine, sched));
    atomic_store(&proxy.swallow, 1);
    service.ops->release(service.self, &mine);
    ck_assert_str_eq(raw(&rig, "GET " KEY), "nil");
    sk_lease_redis_free(&service);
    atomic_store(&proxy.stop, true);
    pthread_join(proxy.thread, NULL);
    close(proxy.listen_fd);
    rig_end(&rig);
}
END_TEST

/* ---- answers that no Redis gives -----------------------------------------------------------------------------------
 */

static void *liar_main(void *arg)
{
    struct proxy *proxy = arg;
    static const char drip[] = "$36\r\nxxxxxxxx";

    while (!atomic_load(&proxy->stop)) {
        struct pollfd wait = {.fd = proxy->listen_fd, .events = POLLIN};
        int in, kind = atomic_fetch_add(&proxy->swallow, 1);
        char buffer[512];
        if (poll(&wait, 1, 20) != 1) {
            atomic_fetch_sub(&proxy->swallow, 1);
            continue;
        }
        in = accept(proxy->listen_fd, NULL, NULL);
        if (read(in, buffer, sizeof(buffer)) > 0) {
            if (kind % 4 == 0) {
                ck_assert_int_gt(write(in, "HTTP/1.1 200 OK\r\n\r\n", 19), 0);
            } else if (kind % 4 == 1) {
                for (size_t i = 0; i < sizeof(drip) - 1 && !atomic_load(&proxy->stop); i++) {
                    if (send(in, drip + i, 1, MSG_NOSIGNAL) != 1)
                        break;
                    sk_sleep_ms(sched, 100);
                }
            } else if (kind % 4 == 2) {
                memset(buffer, 'x', sizeof(buffer));
                if (send(in, "$1000000000\r\n", 13, MSG_NOSIGNAL) == 13) {
                    for (int i = 0; i < 4000 && send(in, buffer, sizeof(buffer), MSG_NOSIGNAL) > 0; i++)
                        ;
                }
            } else {
                ck_assert_int_gt(write(in, ":5\r\n", 4), 0);
            }
        }
        close(in);
    }
    return NULL;
}

START_TEST(test_answers_of_a_liar)
{
    struct proxy proxy = {0};
    struct sk_lease_service service;
    struct sk_lease lease;
    struct sk_error err;
    struct sockaddr_in at;
    socklen_t len = sizeof(at);
    char url[64];

    proxy.listen_fd = tcp(0, true);
    ck_assert_int_eq(getsockname(proxy.listen_fd, (struct sockaddr *)&at, &len), 0);
    ck_assert_int_eq(pthread_create(&proxy.thread, NULL, liar_main, &proxy), 0);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%d", ntohs(at.sin_port));
    open_service(url, 400, &service);
    for (int i = 0; i < 6; i++) {
        int64_t start = sk_mono_us(sched);
        ck_assert_int_eq(acquire(&service, NAME, 1000, &lease, &err), SK_LEASE_ERROR);
        ck_assert_int_eq(err.code, SK_ERR_LEASE_UNAVAILABLE);
        ck_assert_int_le(sk_mono_us(sched) - start, 1500000); /* also when it drips a byte at a time */
        sk_sleep_ms(sched, 20);
    }
    atomic_store(&proxy.stop, true);
    pthread_join(proxy.thread, NULL);
    close(proxy.listen_fd);
    sk_lease_redis_free(&service);
}
END_TEST

static void *fighter(void *arg)
{
    struct sk_lease_service *service = arg;
    struct sk_lease lease;
    struct sk_error err;
    static atomic_int inside;

    for (int i = 0; i < 150; i++) {
        if (acquire(service, NAME, 30000, &lease, &err) != SK_LEASE_ACQUIRED)
            continue;
        ck_assert_int_eq(atomic_fetch_add(&inside, 1), 0);
        atomic_fetch_sub(&inside, 1);
        service->ops->release(service->self, &lease);
    }
    return NULL;
}

START_TEST(test_more_threads_than_connections)
{
    struct rig rig;
    pthread_t threads[12];

    rig_start(&rig, NULL);
    for (int i = 0; i < 12; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, fighter, i % 2 ? &rig.a : &rig.b), 0);
    for (int i = 0; i < 12; i++)
        pthread_join(threads[i], NULL);
    ck_assert_str_eq(raw(&rig, "GET " KEY), "nil");
    rig_end(&rig);
}
END_TEST

SK_CHECK_MAIN("lease", test_one_holder, test_bad_arguments, test_renew_many, test_list, test_expires_by_the_clock,
              test_wiped_server, test_killed_and_restarted_server, test_frozen_server_ends_at_the_timeout,
              test_a_call_can_be_called_back, test_auth_and_database, test_a_lost_answer_is_read_back,
              test_answers_of_a_liar, test_more_threads_than_connections)
