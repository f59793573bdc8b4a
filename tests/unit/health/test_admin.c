/* SPDX-License-Identifier: Apache-2.0
 * The admin listener from outside, over plain sockets: routes, methods, HEAD without a body on a kept connection,
 * limits, no HTTP/2, and an end that neither waits for idle connections nor leaks a descriptor. */
#include "common/http/admin.h"

#include "common/base/queue.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "tests/unit/check_main.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sk_loop *loop;
static struct sk_health *health;
static struct sk_admin *admin;
static struct sk_dependency *mongo;
static struct sk_queue *to_run, *has_run;
static int port;
static char log_text[65536];

static void capture(void *arg, const char *line, size_t len)
{
    size_t used = strlen(log_text);

    (void)arg;
    if (used + len < sizeof(log_text)) {
        memcpy(log_text + used, line, len);
        log_text[used + len] = '\0';
    }
}

/* One thread runs all loops and never ends: h2o keeps freed blocks in lists of the thread, which would be lost with it.
 */
static void *run_loops(void *arg)
{
    void *item;

    (void)arg;
    while (sk_queue_pop(to_run, -1, &item) == SK_QUEUE_OK) {
        sk_loop_run(item);
        if (sk_queue_push_try(has_run, item) != SK_QUEUE_OK)
            abort();
    }
    return NULL;
}

static void start_limits(int64_t idle_ms, int64_t write_ms)
{
    struct sk_error err = {0};

    sk_log_capture(capture, NULL);
    loop = sk_loop_new(0, &err);
    health = sk_health_new(&sk_sched_system);
    mongo = sk_health_add(health, "mongo", true);
    sk_health_set_started(health);
    admin = sk_admin_start_limits(loop, "127.0.0.1:0", health, idle_ms, write_ms, &err);
    ck_assert_msg(admin != NULL, "%s", err.message);
    port = sk_admin_port(admin);
    ck_assert_int_gt(port, 0);
    if (to_run == NULL) {
        pthread_t thread;
        to_run = sk_queue_new(&sk_sched_system, 1);
        has_run = sk_queue_new(&sk_sched_system, 1);
        pthread_create(&thread, NULL, run_loops, NULL);
        pthread_detach(thread);
    }
    ck_assert_int_eq(sk_queue_push_try(to_run, loop), SK_QUEUE_OK);
}

static void start(void)
{
    start_limits(SK_ADMIN_IDLE_MS, SK_ADMIN_WRITE_MS);
}

static void stop_done(void *arg)
{
    (void)arg;
    sk_loop_stop(loop);
}

static void stop_now(void *arg)
{
    (void)arg;
    sk_admin_stop(admin, stop_done, NULL);
}

static void stop(void)
{
    void *item;

    ck_assert(sk_loop_post(loop, stop_now, NULL));
    ck_assert_int_eq(sk_queue_pop(has_run, -1, &item), SK_QUEUE_OK);
    ck_assert_uint_eq(sk_loop_free(loop), 0);
    sk_health_free(health);
}

static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval limit = {.tv_sec = 10};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return fd;
}

static void send_text(int fd, const char *text)
{
    ck_assert_int_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static char answer[262144];

/* Reads exactly one response (headers, then content-length bytes unless it answers HEAD). Returns the status. */
static int read_answer(int fd, bool head)
{
    size_t len = 0, body = 0;
    const char *end = NULL, *length;
    int status = 0;

    answer[0] = '\0';
    while (end == NULL || len < (size_t)(end - answer) + 4 + body) {
        /* Byte by byte until the headers are there, so that nothing of a second response is taken. */
        size_t want = end == NULL ? 1 : (size_t)(end - answer) + 4 + body - len;
        ssize_t n = recv(fd, answer + len, want, 0);
        if (n <= 0)
            return -1;
        len += (size_t)n;
        answer[len] = '\0';
        if (end == NULL && (end = strstr(answer, "\r\n\r\n")) != NULL && !head) {
            length = strcasestr(answer, "\r\ncontent-length: ");
            ck_assert_msg(length != NULL, "%s", answer);
            body = (size_t)atol(length + 18);
        }
    }
    ck_assert_int_eq(sscanf(answer, "HTTP/1.1 %d", &status), 1);
    return status;
}

static int get(const char *target)
{
    char request[512];
    int fd = dial(), status;

    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", target);
    /* May fail when the server refuses connections. */
    status = send(fd, request, strlen(request), MSG_NOSIGNAL) > 0 ? read_answer(fd, false) : -1;
    close(fd);
    return status;
}

static const char *body_of(void)
{
    return strstr(answer, "\r\n\r\n") + 4;
}

START_TEST(test_routes)
{
    struct sk_error err = {0};
    char line[64];
    json_t *object;

    start();
    snprintf(line, sizeof(line), "\"address\":\"127.0.0.1:%d\"", port);
    ck_assert_ptr_nonnull(strstr(log_text, line)); /* the picked port is logged */

    ck_assert_int_eq(get("/livez"), 200);
    ck_assert_str_eq(body_of(), "ok\n");
    ck_assert_int_eq(get("/livez?x=1"), 200);
    ck_assert_int_eq(get("/readyz"), 503);
    sk_fail(&err, SK_ERR_STORE_UNAVAILABLE, "no primary");
    sk_dependency_down(mongo, &err);
    ck_assert_int_eq(get("/readyz"), 503);
    ck_assert_ptr_nonnull(strstr(answer, "content-type: application/json\r\n"));
    object = json_loads(body_of(), 0, NULL);
    ck_assert_ptr_nonnull(object);
    json_decref(object);
    ck_assert_ptr_nonnull(strstr(answer, "no primary"));
    ck_assert_ptr_null(strstr(answer, "\"since\""));
    sk_dependency_up(mongo);
    ck_assert_int_eq(get("/readyz?verbose"), 200);
    ck_assert_ptr_nonnull(strstr(answer, "\"since\""));
    ck_assert_int_eq(get("/readyz?a=b&verbose=1"), 200);
    ck_assert_ptr_nonnull(strstr(answer, "\"since\""));
    ck_assert_int_eq(get("/readyz?verbosely"), 200);
    ck_assert_ptr_null(strstr(answer, "\"since\""));
    ck_assert_int_eq(get("/metrics"), 200);
    ck_assert_ptr_nonnull(strstr(answer, "content-type: text/plain; version=0.0.4"));
    ck_assert_ptr_nonnull(strstr(answer, "\nprocess_open_fds "));
    ck_assert_ptr_nonnull(strstr(answer, "\nsandkeep_loop_delay_seconds_bucket{le=\"0.001\"} "));
    stop();
}
END_TEST

static atomic_int late;

static bool check_late(void *arg, char *why, size_t size)
{
    (void)arg;
    snprintf(why, size, "2 late");
    return atomic_load(&late) == 0;
}

START_TEST(test_a_stuck_worker_fails_livez)
{
    start();
    ck_assert(sk_health_add_live_check(health, "workers", check_late, NULL));
    ck_assert_int_eq(get("/livez"), 200);
    atomic_store(&late, 1);
    ck_assert_int_eq(get("/livez"), 503);
    ck_assert_str_eq(body_of(), "workers: 2 late\n");
    stop();
}
END_TEST

/* The path is taken as it is: no decoding, no folding, no prefixes. */
START_TEST(test_other_paths_are_404)
{
    static const char *const targets[] = {"/",        "/livez/",     "//livez",         "/LIVEZ",
                                          "/%6civez", "/x/../livez", "/livezz",         "/metrics/x",
                                          "/livez;x", "/%00",        "/livez%3Fverbose"};

    start();
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        json_t *object;
        ck_assert_msg(get(targets[i]) == 404, "%s", targets[i]);
        ck_assert_ptr_nonnull(strstr(answer, "content-type: application/problem+json\r\n"));
        object = json_loads(body_of(), 0, NULL);
        ck_assert_int_eq(json_integer_value(json_object_get(object, "status")), 404);
        json_decref(object);
    }
    stop();
}
END_TEST

START_TEST(test_methods)
{
    static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "get", "GETX"};

    start();
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        char request[256];
        int fd = dial();
        snprintf(request, sizeof(request), "%s /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", methods[i]);
        send_text(fd, request);
        ck_assert_msg(read_answer(fd, false) == 405, "%s", methods[i]);
        ck_assert_ptr_nonnull(strcasestr(answer, "\r\nallow: GET, HEAD\r\n"));
        close(fd);
    }
    stop();
}
END_TEST

/* A body after HEAD would be read as the beginning of the next response. */
START_TEST(test_head_has_no_body_on_a_kept_connection)
{
    static const char *const targets[] = {"/livez", "/readyz", "/metrics", "/nothing"};
    int fd;

    start();
    fd = dial();
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        char request[256];
        snprintf(request, sizeof(request), "HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n", targets[i]);
        send_text(fd, request);
        ck_assert_int_gt(read_answer(fd, true), 0);
        ck_assert_ptr_nonnull(strcasestr(answer, "\r\ncontent-length: "));
        ck_assert_ptr_null(strcasestr(answer, "transfer-encoding"));
        send_text(fd, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
        ck_assert_int_eq(read_answer(fd, false), 200); /* still in step */
        ck_assert_str_eq(body_of(), "ok\n");
    }
    close(fd);
    stop();
}
END_TEST

START_TEST(test_limits)
{
    char *request = malloc(600000), chunk[64];
    int fd, used, status;

    start();
    /* One large header, and many small ones. */
    for (int many = 0; many < 2; many++) {
        used = sprintf(request, "GET /livez HTTP/1.1\r\nHost: x\r\n");
        for (int i = 0; i < (many ? 90 : 1); i++) {
            used += sprintf(request + used, "X-%d: ", i);
            memset(request + used, 'a', many ? 300 : 20000);
            used += many ? 300 : 20000;
            used += sprintf(request + used, "\r\n");
        }
        sprintf(request + used, "\r\n");
        fd = dial();
        send_text(fd, request);
        ck_assert_int_eq(read_answer(fd, false), 431);
        close(fd);
    }
    /* A body that is announced too large is refused before it is read. */
    fd = dial();
    send_text(fd, "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 16385\r\n\r\n");
    ck_assert_int_eq(read_answer(fd, false), 413);
    close(fd);
    /* Chunked, it is refused when the limit is passed; the server may close while we still send. */
    fd = dial();
    send_text(fd, "POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    memset(request, 'b', 8192);
    request[8192] = '\0';
    for (int i = 0; i < 8; i++) {
        sprintf(chunk, "%x\r\n", 8192);
        (void)!send(fd, chunk, strlen(chunk), MSG_NOSIGNAL);
        (void)!send(fd, request, 8192, MSG_NOSIGNAL);
        (void)!send(fd, "\r\n", 2, MSG_NOSIGNAL);
    }
    status = read_answer(fd, false);
    ck_assert_msg(status == 413 || status == -1, "%d", status);
    close(fd);
    ck_assert_int_eq(get("/livez"), 200);
    stop();
    free(request);
}
END_TEST

START_TEST(test_no_http2)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    int fd;

    start();
    fd = dial();
    ck_assert_int_eq(send(fd, preface, sizeof(preface) - 1, MSG_NOSIGNAL), (ssize_t)sizeof(preface) - 1);
    ck_assert_int_ne(read_answer(fd, false), 200);
    ck_assert_ptr_null(memchr(answer, '\0', 3)); /* no SETTINGS frame: text or nothing */
    close(fd);
    fd = dial();
    send_text(fd, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                  "HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n");
    ck_assert_int_eq(read_answer(fd, false), 200); /* not 101 */
    close(fd);
    stop();
}
END_TEST

static int open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

START_TEST(test_connections_are_bounded)
{
    int fds[SK_ADMIN_CONNECTIONS_MAX], extra;
    char byte;

    start();
    for (int i = 0; i < SK_ADMIN_CONNECTIONS_MAX; i++) {
        fds[i] = dial();
        send_text(fds[i], "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
        ck_assert_int_eq(read_answer(fds[i], false), 200);
    }
    extra = dial();
    ck_assert_int_le(recv(extra, &byte, 1, 0), 0); /* closed at once */
    close(extra);
    close(fds[0]);
    /* As soon as the server saw that one go, there is room again. */
    for (int tries = 0;; tries++) {
        extra = dial();
        if (send(extra, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", 33, MSG_NOSIGNAL) > 0 &&
            read_answer(extra, false) == 200)
            break;
        close(extra);
        ck_assert_int_lt(tries, 1000);
        sk_sleep_ms(&sk_sched_system, 2);
    }
    close(extra);
    for (int i = 1; i < SK_ADMIN_CONNECTIONS_MAX; i++)
        close(fds[i]);
    stop();
}
END_TEST

/* h2o alone would take ten seconds, our grace for answers being written is one: idle connections take neither. Tried up
 * to three times, because a busy machine may pause a test for longer. */
START_TEST(test_stop_does_not_wait_for_idle_connections)
{
    int64_t took_us = INT64_MAX;
    int fds, idle, fresh;
    char byte;

    start(); /* libuv keeps a pipe for signals from the first loop on */
    stop();
    fds = open_fds();
    for (int tries = 0; tries < 3 && took_us > 900000; tries++) {
        start();
        idle = dial();
        send_text(idle, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        ck_assert_int_eq(read_answer(idle, false), 200);
        fresh = dial(); /* never sends anything */
        ck_assert_int_eq(get("/livez"), 200);
        took_us = sk_mono_us(&sk_sched_system);
        stop();
        took_us = sk_mono_us(&sk_sched_system) - took_us;
        ck_assert_int_le(recv(idle, &byte, 1, 0), 0);
        close(idle);
        close(fresh);
    }
    ck_assert_int_le(took_us, 900000);
    ck_assert_int_eq(open_fds(), fds);
}
END_TEST

/* Clients that vanish in every state leave nothing behind. */
START_TEST(test_rude_clients_leak_nothing)
{
    static const char *const parts[] = {"",
                                        "G",
                                        "GET /metrics HTTP/1.1\r\nHost: x\r\n",
                                        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                                        "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc",
                                        "\0\0\0\0",
                                        "GET /livez HTTP/9.9\r\n\r\n",
                                        "\r\n\r\n\r\n"};
    int before;

    start();
    stop();
    before = open_fds();
    start();
    for (int round = 0; round < 40; round++) {
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            struct linger hard = {1, 0};
            int fd = dial();
            (void)!send(fd, parts[i], strlen(parts[i]), MSG_NOSIGNAL);
            if (round % 2 == 0) /* reset instead of a polite end */
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
            close(fd);
        }
    }
    while (get("/livez") != 200) /* the bound on connections may still hold; endless, and so a failure, if for ever */
        sk_sleep_ms(&sk_sched_system, 5);
    stop();
    ck_assert_int_eq(open_fds(), before);
}
END_TEST

/* Half a request, or nothing after a response: the connection ends by itself. */
START_TEST(test_slow_and_idle_clients_are_closed)
{
    int slow, idle;
    char byte;

    start_limits(300, SK_ADMIN_WRITE_MS);
    slow = dial();
    idle = dial();
    send_text(slow, "GET /livez HTTP/1.1\r\nX-Slow: ");
    send_text(idle, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert_int_eq(read_answer(idle, false), 200);
    ck_assert_int_eq(recv(idle, &byte, 1, 0), 0);
    while (recv(slow, &byte, 1, 0) > 0) /* it may be told first (408) */
        ;
    ck_assert_int_ne(errno, EAGAIN);
    close(slow);
    close(idle);
    stop();
}
END_TEST

/* A client that asks and asks and never reads: h2o would keep it for ever. */
START_TEST(test_stalled_reader_is_given_up)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd, quiet = 0, fds;
    ssize_t n;

    start();
    stop();
    fds = open_fds();
    start_limits(SK_ADMIN_IDLE_MS, 1);
    fd = dial();
    while (quiet < 20) { /* until both directions are full */
        n = send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            quiet = 0;
            continue;
        }
        if (errno != EAGAIN)
            break; /* given up already */
        quiet++;
        sk_sleep_ms(&sk_sched_system, 5);
    }
    while ((n = send(fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT)) > 0 || errno == EAGAIN)
        sk_sleep_ms(&sk_sched_system, 10); /* endless, and so a failure, when the server keeps it */
    ck_assert_int_eq(get("/livez"), 200);
    close(fd);
    stop();
    ck_assert_int_eq(open_fds(), fds);
}
END_TEST

START_TEST(test_addresses)
{
    static const char *const bad[] = {"nonsense", "256.1.1.1:80", "127.0.0.1:notaport", "192.0.2.1:0"};
    struct sk_error err = {0};

    sk_log_capture(capture, NULL);
    loop = sk_loop_new(0, &err);
    health = sk_health_new(&sk_sched_system);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        sk_error_clear(&err);
        ck_assert_msg(sk_admin_start(loop, bad[i], health, &err) == NULL, "%s", bad[i]);
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    }
    ck_assert_uint_eq(sk_loop_free(loop), 0);
    sk_health_free(health);
}
END_TEST

START_TEST(test_port_in_use)
{
    struct sk_error err = {0};
    struct sk_loop *other;
    char address[32];

    start();
    other = sk_loop_new(0, &err);
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    ck_assert_ptr_null(sk_admin_start(other, address, health, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "in use"));
    ck_assert_uint_eq(sk_loop_free(other), 0);
    stop();
}
END_TEST

SK_CHECK_MAIN("admin", test_routes, test_a_stuck_worker_fails_livez, test_other_paths_are_404, test_methods,
              test_head_has_no_body_on_a_kept_connection, test_limits, test_no_http2, test_connections_are_bounded,
              test_stop_does_not_wait_for_idle_connections, test_rude_clients_leak_nothing,
              test_slow_and_idle_clients_are_closed, test_stalled_reader_is_given_up, test_addresses, test_port_in_use)
