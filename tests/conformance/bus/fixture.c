/* SPDX-License-Identifier: Apache-2.0
 * See fixture.h. */
#include "tests/conformance/bus/fixture.h"

#include "common/log/log.h"

#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const struct sk_sched *const sched = &sk_sched_system;

void collector_init(struct collector *got)
{
    memset(got, 0, sizeof(*got));
    pthread_mutex_init(&got->mu, NULL);
    atomic_store(&got->want, COLLECT_MAX);
}

void collector_add(void *arg, struct sk_delivery *delivery)
{
    struct collector *got = arg;

    pthread_mutex_lock(&got->mu);
    ck_assert_int_lt(got->count, COLLECT_MAX);
    got->items[got->count++] = delivery;
    atomic_fetch_sub(&got->want, 1);
    pthread_mutex_unlock(&got->mu);
}

int collector_want(void *arg)
{
    return atomic_load(&((struct collector *)arg)->want);
}

int collector_count(struct collector *got)
{
    int count;

    pthread_mutex_lock(&got->mu);
    count = got->count;
    pthread_mutex_unlock(&got->mu);
    return count;
}

struct probe {
    struct collector *got;
    struct sk_bus_nats *nats;
    const char *stream;
    int count;
};

static bool has_count(void *arg)
{
    struct probe *probe = arg;

    return collector_count(probe->got) >= probe->count;
}

struct sk_delivery *collector_wait(struct collector *got, int count)
{
    struct probe probe = {.got = got, .count = count};
    struct sk_delivery *last;

    ck_assert_msg(sk_test_within(10000, has_count, &probe), "%d deliveries came, %d were expected",
                  collector_count(got), count);
    pthread_mutex_lock(&got->mu);
    last = count > 0 ? got->items[count - 1] : NULL;
    pthread_mutex_unlock(&got->mu);
    return last;
}

bool collector_stays(struct collector *got, int count, int ms)
{
    struct probe probe = {.got = got, .count = count + 1};

    return collector_count(got) == count && !sk_test_within(ms, has_count, &probe);
}

struct sk_bus_nats *bus_open(const struct sk_test_server *server, const char *token, struct sk_bus *bus)
{
    struct sk_bus_nats_config config = {.url = server->url, .token = token, .ack_wait_ms = 2000, .client_name = "test"};
    struct sk_bus_nats *nats = NULL;
    struct sk_error err;

    sk_log_set_level(getenv("SK_TEST_LOG") != NULL ? SK_LOG_LEVEL_DEBUG : SK_LOG_LEVEL_ERROR);
    ck_assert_msg(sk_bus_nats_new(&config, sched, &nats, bus, &err) == 0, "%s", err.message);
    return nats;
}

void rig_start(struct rig *rig)
{
    rig_start_want(rig, COLLECT_MAX);
}

void rig_start_want(struct rig *rig, int want)
{
    struct sk_error err;

    sk_log_set_level(getenv("SK_TEST_LOG") != NULL ? SK_LOG_LEVEL_DEBUG : SK_LOG_LEVEL_ERROR);
    memset(rig, 0, sizeof(*rig));
    collector_init(&rig->got);
    atomic_store(&rig->got.want, want);
    sk_test_server_start(&rig->server, SK_TEST_NATS, NULL);
    rig->nats = bus_open(&rig->server, NULL, &rig->bus);
    ck_assert_msg(sk_bus_nats_setup(rig->nats, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sk_bus_nats_pull(rig->nats, "lifecycle", "sandbox.cmd.lifecycle.>", collector_want, collector_add,
                                      &rig->got, &err),
                     0);
    ck_assert_int_eq(sk_bus_nats_wait(rig->nats, 5000, &err), 0);
}

void rig_end(struct rig *rig)
{
    sk_bus_nats_free(rig->nats);
    sk_bus_nats_library_close();
    sk_test_server_end(&rig->server);
    pthread_mutex_destroy(&rig->got.mu);
}

void put(struct sk_bus *bus, const char *subject, const char *id, const char *body)
{
    struct sk_message message = {.subject = subject, .message_id = id, .body = body, .body_len = strlen(body)};
    struct sk_error err;
    bool acked;

    ck_assert_msg(bus->ops->publish_acked(bus->self, &message, 1, &acked, 5000, &err) == 0, "%s", err.message);
    ck_assert(acked);
}

json_t *api(struct sk_bus_nats *nats, const char *name, const char *body)
{
    char subject[256], *reply = NULL;
    size_t len;
    struct sk_error err;
    json_t *json;

    snprintf(subject, sizeof(subject), "$JS.API.%s", name);
    ck_assert_msg(sk_bus_nats_request(nats, subject, body, body != NULL ? strlen(body) : 0, 3000, &reply, &len, &err) ==
                      0,
                  "%s", err.message);
    json = json_loadb(reply, len, 0, NULL);
    ck_assert_ptr_nonnull(json);
    free(reply);
    return json;
}

int stored(struct sk_bus_nats *nats, const char *stream)
{
    char name[64];
    json_t *info;
    int count;

    snprintf(name, sizeof(name), "STREAM.INFO.%s", stream);
    info = api(nats, name, NULL);
    count = (int)json_integer_value(json_object_get(json_object_get(info, "state"), "messages"));
    json_decref(info);
    return count;
}

static bool has_stored(void *arg)
{
    struct probe *probe = arg;

    return stored(probe->nats, probe->stream) == probe->count;
}

bool stored_becomes(struct sk_bus_nats *nats, const char *stream, int count)
{
    struct probe probe = {.nats = nats, .stream = stream, .count = count};

    return sk_test_within(5000, has_stored, &probe);
}

static void send_all(int fd, const void *data, size_t len)
{
    const char *at = data;

    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        ck_assert_int_gt(sent, 0);
        at += sent;
        len -= (size_t)sent;
    }
}

static void expect_pong(int fd)
{
    char line[8192];
    size_t used = 0;

    send_all(fd, "PING\r\n", 6);
    while (used < sizeof(line) - 1) {
        ssize_t got = recv(fd, line + used, 1, 0);
        ck_assert_int_eq(got, 1);
        line[++used] = '\0';
        if (used >= 6 && strcmp(line + used - 6, "PONG\r\n") == 0)
            return;
        ck_assert_msg(strstr(line, "-ERR") == NULL || line[used - 1] != '\n', "the server says %s", line);
    }
    ck_abort_msg("no PONG");
}

int raw_open(int port)
{
    static const char hello[] =
        "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n";
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {5, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    send_all(fd, hello, sizeof(hello) - 1);
    expect_pong(fd);
    return fd;
}

void raw_publish(int fd, const char *subject, const char *reply, const void *headers, size_t headers_len,
                 const void *body, size_t body_len)
{
    char line[1024];
    int len;

    if (headers_len > 0)
        len = snprintf(line, sizeof(line), "HPUB %s %s%s%zu %zu\r\n", subject, reply != NULL ? reply : "",
                       reply != NULL ? " " : "", headers_len, headers_len + body_len);
    else
        len = snprintf(line, sizeof(line), "PUB %s %s%s%zu\r\n", subject, reply != NULL ? reply : "",
                       reply != NULL ? " " : "", body_len);
    send_all(fd, line, (size_t)len);
    send_all(fd, headers, headers_len);
    send_all(fd, body, body_len);
    send_all(fd, "\r\n", 2);
    expect_pong(fd);
}
