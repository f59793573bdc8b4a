/* SPDX-License-Identifier: Apache-2.0
 *
 * The streaming HTTP library: the server runs on a loop of its own thread and is tried with plain blocking sockets, the
 * client runs on the test's loop against scripted peers. */
#include "common/http/stream/stream.h"

#include "tests/unit/check_main.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

/* ---- a server on a thread ---- */

static struct {
    uv_loop_t loop;
    uv_async_t stop, drain;
    uv_timer_t later;
    struct sk_stream_server *server;
    struct sk_stream_limits limits;
    struct sk_stream *held; /* /hold answers when it is told to */
    int port;
    pthread_t thread;
    pthread_barrier_t ready;
    atomic_int requests, gone, closed_whole, closed_cut, drained, largest_gap;
} s;

static void echo_body(struct sk_stream *x, const char *data, size_t len)
{
    if (!sk_stream_write(x, data, len))
        sk_stream_pause(x);
}

static void echo_end(struct sk_stream *x)
{
    sk_stream_end(x);
}

static void echo_drain(struct sk_stream *x)
{
    sk_stream_resume(x);
}

static void count_close(struct sk_stream *x, bool complete)
{
    (void)x;
    atomic_fetch_add(complete ? &s.closed_whole : &s.closed_cut, 1);
}

static void count_gone(struct sk_stream *x)
{
    atomic_fetch_add(&s.gone, 1);
    sk_stream_abort(x);
}

static const struct sk_stream_ops echo_ops = {
    .on_body = echo_body, .on_end = echo_end, .on_drain = echo_drain, .on_close = count_close, .on_gone = count_gone};

/* Pauses after every piece and goes on from a timer: each byte must still arrive, in order. */
static void on_later(uv_timer_t *timer)
{
    sk_stream_resume(timer->data);
}

static void stutter_body(struct sk_stream *x, const char *data, size_t len)
{
    sk_stream_write(x, data, len);
    sk_stream_pause(x);
    s.later.data = x;
    uv_timer_start(&s.later, on_later, 1, 0);
}

static const struct sk_stream_ops stutter_ops = {.on_body = stutter_body, .on_end = echo_end, .on_close = count_close};

static void endless_pump(struct sk_stream *x)
{
    static char block[65536];
    while (sk_stream_write(x, block, sizeof(block)))
        continue;
}

static const struct sk_stream_ops endless_ops = {.on_drain = endless_pump, .on_close = count_close};
static const struct sk_stream_ops hold_ops = {.on_gone = count_gone, .on_close = count_close};

static void collected(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    sk_stream_reply(x, 200, "text/plain", body, len);
}

static void on_request(void *arg, struct sk_stream *x)
{
    (void)arg;
    const char *path = sk_stream_path(x);
    atomic_fetch_add(&s.requests, 1);
    if (strcmp(path, "/echo") == 0) {
        sk_stream_set(x, &echo_ops, NULL);
        sk_stream_start(x, 200, NULL, 0, SK_STREAM_CHUNKED);
    } else if (strcmp(path, "/stutter") == 0) {
        sk_stream_set(x, &stutter_ops, NULL);
        sk_stream_start(x, 200, NULL, 0, sk_stream_body_length(x));
    } else if (strcmp(path, "/collect") == 0) {
        sk_stream_collect(x, 1000, 300, collected, NULL, NULL);
    } else if (strcmp(path, "/endless") == 0) {
        sk_stream_set(x, &endless_ops, NULL);
        sk_stream_start(x, 200, NULL, 0, SK_STREAM_CHUNKED);
        endless_pump(x);
    } else if (strcmp(path, "/hold") == 0) {
        s.held = x;
        sk_stream_set(x, &hold_ops, NULL);
    } else if (strcmp(path, "/short") == 0) { /* promises more than it sends */
        sk_stream_start(x, 200, NULL, 0, 100);
        sk_stream_write(x, "short", 5);
        sk_stream_end(x);
    } else if (strcmp(path, "/long") == 0) { /* sends more than it promised */
        sk_stream_start(x, 200, NULL, 0, 3);
        sk_stream_write(x, "longer", 6);
    } else if (strcmp(path, "/empty") == 0) {
        sk_stream_reply(x, 200, NULL, NULL, 0);
    } else if (strcmp(path, "/none") == 0) {
        sk_stream_reply(x, 204, NULL, NULL, 0);
    } else if (strcmp(path, "/early") == 0) {
        sk_stream_reply(x, 403, "text/plain", "no", 2);
    } else if (strcmp(path, "/split") == 0) {
        const struct sk_stream_header bad = {"X-Bad", "a\r\nInjected: b"};
        sk_stream_reply_with(x, 200, &bad, 1, "text/plain", "x", 1);
    } else if (strcmp(path, "/upgrade") == 0 && sk_stream_is_upgrade(x)) {
        const struct sk_stream_header to = {"Upgrade", "echo"};
        sk_stream_set(x, &echo_ops, NULL);
        sk_stream_upgrade(x, &to, 1);
    } else {
        const char *q = sk_stream_query(x);
        sk_stream_reply(x, 200, "text/plain", q, strlen(q));
    }
}

static void on_server_closed(void *arg)
{
    (void)arg;
    uv_close((uv_handle_t *)&s.stop, NULL);
    uv_close((uv_handle_t *)&s.drain, NULL);
    uv_close((uv_handle_t *)&s.later, NULL);
}

static void on_stop(uv_async_t *async)
{
    (void)async;
    sk_stream_server_close(s.server, on_server_closed, NULL);
}

static void on_drained(void *arg)
{
    (void)arg;
    atomic_store(&s.drained, 1);
}

static void on_drain(uv_async_t *async)
{
    (void)async;
    sk_stream_server_drain(s.server, on_drained, NULL);
    if (s.held != NULL)
        sk_stream_reply(s.held, 200, "text/plain", "held", 4);
}

static void *server_thread(void *arg)
{
    (void)arg;
    uv_loop_init(&s.loop);
    uv_async_init(&s.loop, &s.stop, on_stop);
    uv_async_init(&s.loop, &s.drain, on_drain);
    uv_timer_init(&s.loop, &s.later);
    s.server = sk_stream_server_new(&s.loop, &s.limits, on_request, NULL);
    int rc = sk_stream_server_listen_tcp(s.server, "127.0.0.1", 0, &s.port);
    pthread_barrier_wait(&s.ready);
    if (rc == 0)
        uv_run(&s.loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&s.loop) != 0)
        abort(); /* a handle was left open */
    return NULL;
}

static void server_start(struct sk_stream_limits limits)
{
    memset(&s, 0, sizeof(s));
    s.limits = limits;
    signal(SIGPIPE, SIG_IGN);
    pthread_barrier_init(&s.ready, NULL, 2);
    pthread_create(&s.thread, NULL, server_thread, NULL);
    pthread_barrier_wait(&s.ready);
}

static void server_stop(void)
{
    uv_async_send(&s.stop);
    pthread_join(s.thread, NULL);
    pthread_barrier_destroy(&s.ready);
}

static const struct sk_stream_limits defaults = SK_STREAM_LIMITS_DEFAULT;

/* ---- blocking sockets ---- */

static int dial(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s.port)};
    struct timeval limit = {.tv_sec = 10};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static void put(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        data += n;
        len -= (size_t)n;
    }
}

static void put_text(int fd, const char *text)
{
    put(fd, text, strlen(text));
}

/* Everything until end of file, NUL-terminated. */
static char *get_all(int fd, size_t *len)
{
    size_t n = 0, size = 65536;
    char *out = malloc(size);
    for (;;) {
        if (n + 32768 > size)
            out = realloc(out, size *= 2);
        ssize_t got = recv(fd, out + n, 32000, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    out[n] = '\0';
    if (len != NULL)
        *len = n;
    close(fd);
    return out;
}

static char *exchange(const char *request)
{
    int fd = dial();
    put_text(fd, request);
    return get_all(fd, NULL);
}

/* Open descriptors of the process, counted without opening one (the server's thread opens and closes them meanwhile).
 */
static int descriptors(void)
{
    char path[64];
    struct stat st;
    int n = 0;
    for (int fd = 0; fd < 2048; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        n += lstat(path, &st) == 0;
    }
    return n;
}

static void wait_descriptors(int wanted)
{
    while (descriptors() > wanted) /* the test's own time limit ends a wait that is in vain */
        usleep(1000);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n"

START_TEST(test_refused)
{
    static const struct {
        const char *request;
        int status;
    } rows[] = {
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {GET("/") "Host: y\r\n\r\n", 400},
        {GET("/") "X: a\r\n b\r\n\r\n", 400},
        {"GET / HTTP/1.1\nHost: x\n\n", 400},
        {GET("/") "X: a\rb\r\n\r\n", 400},
        {GET("/") "X : a\r\n\r\n", 400},
        {GET("/") "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {GET("/") "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400},
        {GET("/") "Content-Length: 1,1\r\n\r\nx", 400},
        {GET("/") "Content-Length: x\r\n\r\n", 400},
        {GET("/") "Content-Length:\r\n\r\n", 400},
        {GET("/") "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"POST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nq\r\n", 400},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505},
        {"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", 501},
        {"GET / HTTP/1.1\r\nHost: x\r\nExpect: x\r\n\r\n", 417},
        {"\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n", 400},
        {"junk\r\n\r\n", 400},
    };
    server_start(defaults);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *answer = exchange(rows[i].request);
        ck_assert_msg(atoi(answer + 9) == rows[i].status, "row %zu: %s", i, answer);
        ck_assert_ptr_nonnull(strstr(answer, "Connection: close"));
        ck_assert_ptr_nonnull(strstr(answer, "\r\n\r\n{\"code\":"));
        free(answer);
    }
    server_stop();
}
END_TEST

/* Refused and closed: the time that is left for an answer to arrive is not spent on somebody who has gone. */
START_TEST(test_refused_clients_are_let_go_when_they_close)
{
    struct timespec before, after;

    server_start(defaults);
    int count = descriptors();
    for (int i = 0; i < 3; i++) {
        int fd = dial();
        put_text(fd, "junk\r\n\r\n");
        free(get_all(fd, NULL)); /* closes it */
    }
    clock_gettime(CLOCK_MONOTONIC, &before);
    wait_descriptors(count);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_int_lt((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000, 1500);
    server_stop();
}
END_TEST

START_TEST(test_nul_in_head)
{
    server_start(defaults);
    int fd = dial();
    put(fd, GET("/") "X: a\0b\r\n\r\n", sizeof(GET("/") "X: a\0b\r\n\r\n") - 1);
    char *answer = get_all(fd, NULL);
    ck_assert_int_eq(atoi(answer + 9), 400);
    free(answer);
    server_stop();
}
END_TEST

START_TEST(test_limits_of_the_head)
{
    struct sk_stream_limits limits = defaults;
    limits.header_bytes = 200;
    limits.header_count = 3;
    server_start(limits);
    char *answer = exchange(GET("/") "A: 1\r\nB: 2\r\nConnection: close\r\n\r\n");
    ck_assert_int_eq(atoi(answer + 9), 431);
    free(answer);
    answer = exchange(GET("/") "A: 1\r\nConnection: close\r\n\r\n");
    ck_assert_int_eq(atoi(answer + 9), 200);
    free(answer);
    char big[400] = GET("/") "A: ";
    memset(big + strlen(big), 'a', 300);
    answer = exchange(big);
    ck_assert_int_eq(atoi(answer + 9), 431);
    free(answer);
    server_stop();
}
END_TEST

START_TEST(test_pipelining_and_small_answers)
{
    server_start(defaults);
    char *answer = exchange("\r\n" GET("/a?1") "\r\n" GET("/none") "\r\n" GET(
        "/empty") "\r\n"
                  "HEAD /a?22 HTTP/1.1\r\nHost: x\r\n\r\n"
                  "POST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;e=1\r\nabc\r\n0\r\nT: "
                  "1\r\n\r\n"
                  "GET /split HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" GET("/never") "\r\n");
    static const char *const order[] = {"200 OK",
                                        "Content-Length: 1\r\n\r\n1HTTP/1.1 204 No Content",
                                        "HTTP/1.1 200 OK",
                                        "Content-Length: 0\r\n\r\nHTTP/1.1",
                                        "Content-Length: 2\r\n\r\nHTTP/1.1",
                                        "\r\n\r\nabcHTTP/1.1",
                                        "X-Bad: a\r\n",
                                        NULL};
    const char *p = answer;
    for (int i = 0; order[i] != NULL; i++) {
        p = strstr(p, order[i]);
        ck_assert_msg(p != NULL, "%s is missing in %s", order[i], answer);
    }
    ck_assert_ptr_null(strstr(answer, "Injected"));
    ck_assert_ptr_null(strstr(strstr(answer, "204"),
                              "Content-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0")); /* 204 has none */
    free(answer);
    server_stop();
}
END_TEST

START_TEST(test_byte_by_byte)
{
    static const char text[] =
        "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n1;x=\"y\"\r\n!\r\n0\r\nTrailer: x\r\n\r\n";
    server_start(defaults);
    int fd = dial(), on = 1;
    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof(on));
    for (size_t i = 0; i < sizeof(text) - 1; i++)
        put(fd, text + i, 1);
    char *answer = get_all(fd, NULL);
    ck_assert_ptr_nonnull(strstr(answer, "200 OK"));
    ck_assert_ptr_nonnull(strstr(answer, "0\r\n\r\n"));
    free(answer);
    server_stop();
}
END_TEST

struct sender {
    int fd;
    const char *data;
    size_t len;
};

static void *send_all(void *arg)
{
    struct sender *job = arg;
    put(job->fd, job->data, job->len);
    return NULL;
}

static void check_large(const char *path, size_t size)
{
    char head[128];
    size_t n =
        (size_t)snprintf(head, sizeof(head),
                         "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", path, size);
    char *data = malloc(n + size);
    memcpy(data, head, n);
    for (size_t i = 0; i < size; i++)
        data[n + i] = (char)(i * 31 + i / 251);
    struct sender job = {dial(), data, n + size};
    pthread_t thread;
    pthread_create(&thread, NULL, send_all, &job);
    size_t len;
    char *answer = get_all(job.fd, &len), *body = strstr(answer, "\r\n\r\n") + 4;
    pthread_join(thread, NULL);
    if (strstr(answer, "chunked") != NULL) { /* decode in place */
        char *out = body, *p = body;
        for (size_t piece; (piece = strtoul(p, &p, 16)) > 0; p += piece + 2) {
            p += 2;
            memmove(out, p, piece);
            out += piece;
        }
        len = (size_t)(out - answer);
    }
    ck_assert_uint_eq(len - (size_t)(body - answer), size);
    ck_assert_int_eq(memcmp(body, data + n, size), 0);
    free(answer);
    free(data);
}

START_TEST(test_large_bodies_both_ways)
{
    server_start(defaults);
    check_large("/echo", 20000000);
    check_large("/stutter", 3000000);
    server_stop();
    ck_assert_int_eq(s.closed_whole, 2);
}
END_TEST

START_TEST(test_pause_with_a_pipelined_request)
{
    server_start(defaults);
    char *answer = exchange("POST /stutter HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
                            "GET /?next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(answer, "\r\n\r\nhelloHTTP/1.1 200"));
    ck_assert_ptr_nonnull(strstr(answer, "\r\n\r\nnext"));
    free(answer);
    server_stop();
}
END_TEST

START_TEST(test_slow_reader_is_cut)
{
    struct sk_stream_limits limits = defaults;
    limits.write_ms = 200;
    server_start(limits);
    int fd = dial();
    put_text(fd, GET("/endless") "\r\n");
    while (s.closed_cut == 0)
        usleep(1000);
    ck_assert_int_eq(s.closed_cut, 1);
    close(fd);
    server_stop();
}
END_TEST

START_TEST(test_time_limits)
{
    struct sk_stream_limits limits = defaults;
    limits.header_ms = limits.body_ms = 100;
    limits.idle_ms = 100;
    server_start(limits);
    char *answer = exchange("GET / HTTP/1.1\r\nHo");
    ck_assert_int_eq(atoi(answer + 9), 408);
    free(answer);
    answer = exchange("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx");
    ck_assert_int_eq(atoi(answer + 9), 408);
    free(answer);
    answer = exchange(""); /* idle: closed without a word */
    ck_assert_str_eq(answer, "");
    free(answer);
    server_stop();
}
END_TEST

START_TEST(test_collect_limits)
{
    server_start(defaults);
    char *answer = exchange("POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
    ck_assert_int_eq(atoi(answer + 9), 413);
    free(answer);
    char big[1400] = "POST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n";
    memset(big + strlen(big), 'a', 1001);
    answer = exchange(big);
    ck_assert_int_eq(atoi(answer + 9), 413);
    free(answer);
    server_stop();
}
END_TEST

START_TEST(test_early_answer_arrives_although_the_body_is_not_read)
{
    server_start(defaults);
    static char body[1000000];
    char head[] = "POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    int fd = dial();
    put_text(fd, head);
    put(fd, body, sizeof(body));
    shutdown(fd, SHUT_WR);
    char *answer = get_all(fd, NULL);
    ck_assert_int_eq(atoi(answer + 9), 403);
    ck_assert_ptr_nonnull(strstr(answer, "Connection: close"));
    free(answer);
    server_stop();
}
END_TEST

START_TEST(test_broken_promises_are_seen)
{
    server_start(defaults);
    char *answer = exchange(GET("/short") "\r\n");
    ck_assert_ptr_nonnull(strstr(answer, "Content-Length: 100\r\n\r\nshort"));
    free(answer);
    answer = exchange(GET("/long") "\r\n");
    ck_assert_ptr_null(strstr(answer, "longer"));
    free(answer);
    server_stop();
}
END_TEST

START_TEST(test_a_leaving_client_is_noticed)
{
    server_start(defaults);
    int fd = dial();
    put_text(fd, GET("/hold") "\r\n");
    while (s.requests == 0)
        usleep(1000);
    close(fd);
    while (s.closed_cut == 0)
        usleep(1000);
    ck_assert_int_eq(s.gone, 1);
    server_stop();
}
END_TEST

START_TEST(test_drain)
{
    server_start(defaults);
    int idle = dial(), busy = dial();
    put_text(idle, GET("/") "\r\n");
    char byte;
    ck_assert_int_eq(recv(idle, &byte, 1, 0), 1); /* it has been accepted and served */
    put_text(busy, GET("/hold") "\r\n");
    while (s.requests < 2)
        usleep(1000);
    uv_async_send(&s.drain);
    char *answer = get_all(busy, NULL);
    ck_assert_ptr_nonnull(strstr(answer, "Connection: close"));
    ck_assert_ptr_nonnull(strstr(answer, "\r\n\r\nheld"));
    free(answer);
    free(get_all(idle, NULL)); /* ends */
    while (!s.drained)
        usleep(1000);
    server_stop();
}
END_TEST

START_TEST(test_too_many_connections)
{
    struct sk_stream_limits limits = defaults;
    limits.max_connections = 2;
    server_start(limits);
    int before = descriptors();
    int first = dial(), second = dial();
    char *answer = exchange(GET("/") "\r\n");
    ck_assert_int_eq(atoi(answer + 9), 503);
    free(answer);
    close(first);
    close(second);
    wait_descriptors(before);
    answer = exchange(GET("/") "Connection: close\r\n\r\n");
    ck_assert_int_eq(atoi(answer + 9), 200);
    free(answer);
    wait_descriptors(before);
    server_stop();
}
END_TEST

START_TEST(test_resets_leak_nothing)
{
    server_start(defaults);
    int before = descriptors();
    for (int i = 0; i < 300; i++) {
        struct linger hard = {.l_onoff = 1};
        int fd = dial();
        put_text(fd, i % 3 == 0   ? GET("/endless") "\r\n"
                     : i % 3 == 1 ? "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nx"
                                  : GET("/hold") "\r\n");
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
        close(fd); /* RST with data unread */
    }
    wait_descriptors(before);
    server_stop();
}
END_TEST

START_TEST(test_upgrade)
{
    server_start(defaults);
    int fd = dial();
    put_text(fd, GET("/upgrade") "Connection: Upgrade\r\nUpgrade: echo\r\n\r\nearly ");
    put_text(fd, "late");
    shutdown(fd, SHUT_WR);
    char *answer = get_all(fd, NULL);
    ck_assert_ptr_nonnull(strstr(answer, "HTTP/1.1 101"));
    ck_assert_ptr_nonnull(strstr(answer, "Upgrade: echo\r\n"));
    ck_assert_ptr_nonnull(strstr(answer, "\r\n\r\nearly late"));
    free(answer);
    answer =
        exchange(GET("/?plain") "Connection: Upgrade, close\r\nUpgrade: echo\r\n\r\n"); /* not wanted: a plain answer */
    ck_assert_ptr_nonnull(strstr(answer, "\r\n\r\nplain"));
    free(answer);
    server_stop();
}
END_TEST

/* ---- the client ---- */

struct peer {
    int listener, port;
    const char *answer;
    size_t piece; /* bytes per write, 0 = all */
    char request[4096];
    pthread_t thread;
};

static void *peer_thread(void *arg)
{
    struct peer *p = arg;
    int fd = accept(p->listener, NULL, NULL);
    size_t n = 0;
    while (strstr(p->request, "\r\n\r\n") == NULL && n < sizeof(p->request) - 1) {
        ssize_t got = recv(fd, p->request + n, sizeof(p->request) - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    size_t len = strlen(p->answer), piece = p->piece > 0 ? p->piece : len;
    for (size_t at = 0; at < len; at += piece)
        put(fd, p->answer + at, len - at < piece ? len - at : piece);
    shutdown(fd, SHUT_WR);
    char sink[256];
    while (recv(fd, sink, sizeof(sink), 0) > 0)
        continue;
    close(fd);
    return NULL;
}

struct result {
    int status, error, ends, closes;
    char body[4096];
    size_t len;
    bool echo; /* tunnel: send a word, then close our side */
};

static void call_response(struct sk_stream_call *call, int status)
{
    struct result *r = sk_stream_call_arg(call);
    r->status = status;
    if (status == 101) {
        sk_stream_call_write(call, "ping", 4);
        sk_stream_call_end(call);
    }
}

static void call_body(struct sk_stream_call *call, const char *data, size_t len)
{
    struct result *r = sk_stream_call_arg(call);
    memcpy(r->body + r->len, data, len);
    r->len += len;
    r->body[r->len] = '\0';
}

static void call_end(struct sk_stream_call *call)
{
    ((struct result *)sk_stream_call_arg(call))->ends++;
}

static void call_close(struct sk_stream_call *call, int error)
{
    struct result *r = sk_stream_call_arg(call);
    r->error = error;
    r->closes++;
}

static const struct sk_stream_call_ops call_ops = {
    .on_response = call_response, .on_body = call_body, .on_end = call_end, .on_close = call_close};

static struct result call_peer(const char *method, const char *answer, size_t piece, const char *upgrade)
{
    struct peer p = {.answer = answer, .piece = piece};
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof(at);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(p.listener, (struct sockaddr *)&at, sizeof(at)), 0);
    listen(p.listener, 1);
    getsockname(p.listener, (struct sockaddr *)&at, &size);
    pthread_create(&p.thread, NULL, peer_thread, &p);
    uv_loop_t loop;
    uv_loop_init(&loop);
    struct result r = {0};
    const struct sk_stream_header host = {"Host", "peer"};
    struct sk_stream_call *call = sk_stream_call_tcp(&loop, &defaults, (struct sockaddr *)&at, &call_ops, &r);
    sk_stream_call_request(call, method, "/x?y", &host, 1, 0, upgrade);
    if (upgrade == NULL)
        sk_stream_call_end(call);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    close(p.listener);
    pthread_join(p.thread, NULL);
    ck_assert_int_eq(r.closes, 1);
    ck_assert_int_eq(strncmp(p.request + strlen(method), " /x?y HTTP/1.1\r\nHost: peer\r\n", 28), 0);
    return r;
}

START_TEST(test_client_answers)
{
    static const struct {
        const char *method, *answer;
        int status, error;
        const char *body;
    } rows[] = {
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, 0, "hello"},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, 0, "hello"},
        {"GET", "HTTP/1.0 200 OK\r\n\r\nto the end", 200, 0, "to the end"},
        {"GET",
         "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Not "
         "Found\r\nContent-Length: 2\r\n\r\nno",
         404, 0, "no"},
        {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, 0, ""},
        {"GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, 0, ""},
        {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, 0, ""},
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", 200, UV_EOF, "short"},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 200, UV_EOF, "hello"},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 200, UV_EPROTO, ""},
        {"GET", "HTTP/1.1 200", 0, UV_EOF, ""},
        {"GET", "nonsense\r\n\r\n", 0, UV_EPROTO, ""},
        {"GET", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 0, UV_EPROTO, ""}, /* nobody asked */
        {"GET", "", 0, UV_EOF, ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t piece = 0; piece < 3; piece++) {
            struct result r = call_peer(rows[i].method, rows[i].answer, piece, NULL);
            ck_assert_msg(r.status == rows[i].status && r.error == rows[i].error && strcmp(r.body, rows[i].body) == 0,
                          "row %zu, pieces of %zu: status %d, error %s, body \"%s\"", i, piece, r.status,
                          r.error == 0 ? "none" : uv_err_name(r.error), r.body);
            ck_assert_int_eq(r.ends, rows[i].error == 0);
        }
    }
}
END_TEST

START_TEST(test_client_upgrade)
{
    struct result r = call_peer(
        "GET", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nraw \1 bytes", 0, "x");
    ck_assert_int_eq(r.status, 101);
    ck_assert_int_eq(r.error, 0);
    ck_assert_str_eq(r.body, "raw \1 bytes");
    r = call_peer("GET", "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno", 0, "x");
    ck_assert_int_eq(r.status, 400);
    ck_assert_int_eq(r.error, 0);
}
END_TEST

START_TEST(test_client_cannot_connect)
{
    uv_loop_t loop;
    uv_loop_init(&loop);
    struct result r = {0};
    struct sk_stream_call *call = sk_stream_call_unix(&loop, &defaults, "/nonexistent/socket", &call_ops, &r);
    sk_stream_call_request(call, "POST", "/", NULL, 0, 3, NULL);
    sk_stream_call_write(call, "abc", 3);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(r.closes, 1);
    ck_assert_int_eq(r.error, UV_ENOENT);
    call = sk_stream_call_unix(&loop, &defaults, "/nonexistent/socket", &call_ops, &r);
    sk_stream_call_abort(call);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(r.closes, 2);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}
END_TEST

START_TEST(test_url_helpers)
{
    char text[] = "a%20b+c%2F";
    ck_assert_int_eq(sk_stream_url_decode(text, false), 6);
    ck_assert_str_eq(text, "a b+c/");
    char bad[][8] = {"%", "%2", "%zz", "%00"};
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(sk_stream_url_decode(bad[i], true), -1);
    bool undecodable;
    char *value = sk_stream_query_value("a=1&path=x+y%2Bz&path=%C3%BC&empty&b=%zz", "path", 0, NULL);
    ck_assert_str_eq(value, "x y+z");
    free(value);
    value = sk_stream_query_value("a=1&path=x&path=%C3%BC", "path", 1, NULL);
    ck_assert_str_eq(value, "\xc3\xbc");
    free(value);
    ck_assert_ptr_null(sk_stream_query_value("a=1&path=x", "path", 1, NULL));
    ck_assert_ptr_null(sk_stream_query_value("b=%zz", "b", 0, &undecodable));
    char name[8] = "";
    ck_assert(sk_stream_query_valid("", name, sizeof(name)) &&
              sk_stream_query_valid("a=1&&b&c=%20", name, sizeof(name)));
    ck_assert(!sk_stream_query_valid("a=1&metadata=%00", name, sizeof(name)));
    ck_assert_str_eq(name, "metadat");
    ck_assert(!sk_stream_query_valid("b=%2&c=1", name, sizeof(name)));
    ck_assert_str_eq(name, "b");
    ck_assert(!sk_stream_query_valid("%00=1", name, sizeof(name)));
    ck_assert_str_eq(name, "");
    ck_assert(undecodable);
}
END_TEST

SK_CHECK_MAIN("stream", test_refused, test_refused_clients_are_let_go_when_they_close, test_nul_in_head,
              test_limits_of_the_head, test_pipelining_and_small_answers, test_byte_by_byte,
              test_large_bodies_both_ways, test_pause_with_a_pipelined_request, test_slow_reader_is_cut,
              test_time_limits, test_collect_limits, test_early_answer_arrives_although_the_body_is_not_read,
              test_broken_promises_are_seen, test_a_leaving_client_is_noticed, test_drain, test_too_many_connections,
              test_resets_leak_nothing, test_upgrade, test_client_answers, test_client_upgrade,
              test_client_cannot_connect, test_url_helpers)
