/* SPDX-License-Identifier: Apache-2.0
 *
 * A task's line to the broker, from the task's side of the socket. Requests go to a port of this machine that takes
 * connections and never answers (permitted by the broker's seam), or are refused at once. */
#include "services/code/host/rpc.h"

#include "common/log/log.h"
#include "services/code/broker/internal.h"
#include "tests/unit/check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_MS 10000
#define BUDGET  (1024 * 1024)

#define REQUEST_MAX 1000

struct bed {
    struct sk_loop *loop;
    struct code_policy *policy;
    struct code_broker *broker;
    struct code_rpc *rpc;
    int task, listener, port;
    int broken;
    char why[64];
};

static bool permit(void *arg, const struct sockaddr *address)
{
    const struct bed *bed = arg;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;

    return address->sa_family == AF_INET && (v4->sin_port == 0 || ntohs(v4->sin_port) == bed->port);
}

static void on_broken(void *arg, const char *why)
{
    struct bed *bed = arg;

    bed->broken++;
    snprintf(bed->why, sizeof(bed->why), "%s", why);
}

static int logged;

static void sink(void *arg, const char *line, size_t length)
{
    (void)arg;
    (void)line;
    (void)length;
    logged++;
}

static void setup(struct bed *bed)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    struct sk_error err = {0};
    int pair[2];

    sk_log_capture(sink, NULL);
    memset(bed, 0, sizeof(*bed));
    bed->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(bed->listener, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(listen(bed->listener, 64), 0);
    ck_assert_int_eq(getsockname(bed->listener, (struct sockaddr *)&address, &size), 0);
    bed->port = ntohs(address.sin_port);
    bed->loop = sk_loop_new(0, &err);
    bed->policy = code_policy_load("", true, NULL, &err);
    ck_assert(bed->loop != NULL && bed->policy != NULL);
    bed->broker = code_broker_new(
        &(struct code_broker_options){.loop = bed->loop, .policy = bed->policy, .budget_bytes = BUDGET});
    ck_assert_ptr_nonnull(bed->broker);
    bed->broker->seam.permit = permit;
    bed->broker->seam.arg = bed;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    bed->task = pair[1];
    bed->rpc = code_rpc_new(&(struct code_rpc_options){.loop = bed->loop,
                                                       .broker = bed->broker,
                                                       .task_id = "1",
                                                       .queue_id = "",
                                                       .limits = {.request_max = REQUEST_MAX,
                                                                  .timeout_ms = 60000,
                                                                  .body_bytes = 512 * 1024,
                                                                  .response_bytes = 1024},
                                                       .broken = on_broken,
                                                       .arg = bed},
                            pair[0]);
    ck_assert_ptr_nonnull(bed->rpc);
}

static void teardown(struct bed *bed)
{
    code_rpc_free(bed->rpc);
    ck_assert_int_eq(code_broker_counts(bed->broker).in_flight, 0);
    ck_assert_int_eq(code_broker_counts(bed->broker).held_bytes, 0);
    code_broker_free(bed->broker);
    ck_assert_uint_eq(sk_loop_free(bed->loop), 0);
    code_policy_free(bed->policy);
    if (bed->task >= 0)
        close(bed->task);
    close(bed->listener);
    sk_log_capture(NULL, NULL);
}

static void turn(struct bed *bed)
{
    uv_run(sk_loop_uv(bed->loop), UV_RUN_NOWAIT);
}

/* Turns the loop until the condition holds; the bound is for a test that fails. */
#define UNTIL(bed, condition)                                                                                          \
    do {                                                                                                               \
        uint64_t until_ = uv_hrtime() + WAIT_MS * 1000000ull;                                                          \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(uv_hrtime() < until_, "not in time: " #condition);                                           \
            turn(bed);                                                                                                 \
        }                                                                                                              \
    } while (0)

static size_t frame_of(char *out, const char *json, size_t length)
{
    for (int i = 0; i < 4; i++)
        out[i] = (char)(length >> 8 * i);
    memcpy(out + 4, json, length);
    return length + 4;
}

static void put(struct bed *bed, const char *json)
{
    char frame[1024];
    size_t length = frame_of(frame, json, strlen(json));

    ck_assert_int_eq(send(bed->task, frame, length, 0), (ssize_t)length);
}

static void ask(struct bed *bed, int id, const char *url, int timeout_ms)
{
    char json[512];

    snprintf(json, sizeof(json), "{\"id\":%d,\"type\":\"http_request\",\"url\":\"%s\",\"timeoutMs\":%d}", id, url,
             timeout_ms);
    put(bed, json);
}

static void ask_silent(struct bed *bed, int id, int timeout_ms)
{
    char url[64];

    snprintf(url, sizeof(url), "http://127.0.0.1:%d/", bed->port);
    ask(bed, id, url, timeout_ms);
}

/* The next answer, as text; it turns the loop meanwhile. */
static void answer(struct bed *bed, char *out, size_t size)
{
    unsigned char head[4];
    size_t length, got = 0;

    UNTIL(bed, recv(bed->task, head, 4, MSG_PEEK) == 4);
    ck_assert_int_eq(recv(bed->task, head, 4, 0), 4);
    length = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    ck_assert_uint_lt(length, size);
    while (got < length) {
        ssize_t n = recv(bed->task, out + got, length - got, 0);
        got += n > 0 ? (size_t)n : 0;
        turn(bed);
    }
    out[length] = '\0';
}

START_TEST(test_refused_request)
{
    struct bed bed;
    char text[512];

    setup(&bed);
    ck_assert(!code_rpc_used(bed.rpc));
    ask(&bed, 7, "http://127.0.0.2/", 0);
    answer(&bed, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "\"id\":7"));
    ck_assert_ptr_nonnull(strstr(text, "\"ok\":false"));
    ck_assert_ptr_nonnull(strstr(text, "Request to private network not allowed"));
    ck_assert(code_rpc_used(bed.rpc));
    ck_assert_int_eq(bed.broken, 0);
    teardown(&bed);
}
END_TEST

START_TEST(test_byte_by_byte)
{
    struct bed bed;
    const char *json = "{\"id\":1,\"type\":\"http_request\",\"url\":\"ftp://x/\"}";
    char frame[256], text[256];
    size_t length = frame_of(frame, json, strlen(json));

    setup(&bed);
    for (size_t i = 0; i < length; i++) {
        ck_assert_int_eq(send(bed.task, frame + i, 1, 0), 1);
        turn(&bed);
    }
    answer(&bed, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "Protocol not allowed"));
    teardown(&bed);
}
END_TEST

START_TEST(test_broken_lines)
{
    static const struct {
        const char *bytes;
        size_t length;
        const char *why;
    } rows[] = {
        {"\0\0\0\0", 4, "a frame of a wrong length"},
        {"\xff\xff\xff\xff", 4, "a frame of a wrong length"},
        {"\3\0\0\0abc", 7, "a frame that is no JSON"},
        {"\2\0\0\0[]", 6, "an id that does not grow"},
        {"\10\0\0\0{\"id\":0}", 12, "an id that does not grow"},
        {"\12\0\0\0{\"id\":-1} ", 14, "an id that does not grow"},
        {"\12\0\0\0{\"id\":\"1\"}", 14, "an id that does not grow"},
        {"\11\0\0\0{\"id\":1.5}", 14, "a frame that is no JSON"}, /* a byte short */
        {"\10\0\0\0{\"id\":1}", 12, "an unknown type"},
        {"\26\0\0\0{\"id\":1,\"type\":\"ping\"}", 26, "an unknown type"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bed bed;

        setup(&bed);
        ck_assert_int_eq(send(bed.task, rows[i].bytes, rows[i].length, 0), (ssize_t)rows[i].length);
        UNTIL(&bed, bed.broken > 0);
        ck_assert_msg(strcmp(bed.why, rows[i].why) == 0, "row %zu: %s", i, bed.why);
        ask(&bed, 9, "http://127.0.0.2/", 0); /* nobody listens any more */
        for (int k = 0; k < 20; k++)
            turn(&bed);
        ck_assert_int_eq(bed.broken, 1);
        ck_assert_int_eq(code_broker_counts(bed.broker).requests, 0);
        teardown(&bed);
    }
}
END_TEST

START_TEST(test_ids_grow)
{
    struct bed bed;
    char text[512];

    setup(&bed);
    ask(&bed, 5, "ftp://x/", 0);
    answer(&bed, text, sizeof(text));
    ask(&bed, 5, "ftp://x/", 0);
    UNTIL(&bed, bed.broken == 1);
    ck_assert_str_eq(bed.why, "an id that does not grow");
    teardown(&bed);
}
END_TEST

/* A task that goes on asking beyond its limit fills no log, makes no transfers, and is ended. */
START_TEST(test_flood)
{
    struct bed bed;
    char text[512];

    setup(&bed);
    logged = 0;
    for (int i = 1; i <= REQUEST_MAX + CODE_RPC_EXCESS_MAX; i++) {
        ask(&bed, i, "ftp://x/", 0);
        answer(&bed, text, sizeof(text));
        ck_assert_ptr_nonnull(strstr(text, i <= REQUEST_MAX ? "Protocol not allowed" : CODE_REQUEST_LIMIT_TEXT));
    }
    ck_assert_int_eq(code_broker_counts(bed.broker).requests, REQUEST_MAX + 1);
    ck_assert_int_le(logged, REQUEST_MAX + 1);
    ck_assert_int_eq(bed.broken, 0);
    ask(&bed, REQUEST_MAX + CODE_RPC_EXCESS_MAX + 1, "ftp://x/", 0);
    UNTIL(&bed, bed.broken == 1);
    ck_assert_str_eq(bed.why, "far more requests than it may make");
    teardown(&bed);
}
END_TEST

/* Those that never become a transfer count too. */
START_TEST(test_flood_of_bad_headers)
{
    struct bed bed;
    char json[256], text[512];

    setup(&bed);
    for (int i = 1; i <= REQUEST_MAX + CODE_RPC_EXCESS_MAX + 1; i++) {
        snprintf(json, sizeof(json),
                 "{\"id\":%d,\"type\":\"http_request\",\"url\":\"http://x/\",\"headers\":{\"a\":\"\\ud800\"}}", i);
        put(&bed, json);
        if (i <= REQUEST_MAX + CODE_RPC_EXCESS_MAX)
            answer(&bed, text, sizeof(text));
    }
    UNTIL(&bed, bed.broken == 1);
    ck_assert_int_le(code_broker_counts(bed.broker).requests, 1);
    teardown(&bed);
}
END_TEST

START_TEST(test_wrong_members)
{
    static const char *const rows[] = {"\"url\":1",
                                       "\"method\":\"GET\"",
                                       "\"url\":\"http://x/\",\"method\":1",
                                       "\"url\":\"http://x/\",\"headers\":[]",
                                       "\"url\":\"http://x/\",\"body\":{}",
                                       "\"url\":\"http://x/\",\"timeoutMs\":\"1\"",
                                       "\"url\":\"http://x/\",\"followRedirects\":1"};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bed bed;
        char json[256];

        setup(&bed);
        snprintf(json, sizeof(json), "{\"id\":1,\"type\":\"http_request\",%s}", rows[i]);
        put(&bed, json);
        UNTIL(&bed, bed.broken == 1);
        ck_assert_str_eq(bed.why, "a member of a wrong type");
        teardown(&bed);
    }
}
END_TEST

START_TEST(test_in_flight)
{
    struct bed bed;
    char text[512];

    setup(&bed);
    for (int id = 1; id <= CODE_FLIGHT_MAX + 2; id++)
        ask_silent(&bed, id, id == 1 ? 100 : 60000);
    UNTIL(&bed, code_broker_counts(bed.broker).in_flight == CODE_FLIGHT_MAX);
    answer(&bed, text, sizeof(text)); /* the first one's time is over */
    ck_assert_ptr_nonnull(strstr(text, "\"id\":1"));
    ck_assert_ptr_nonnull(strstr(text, "Request timeout"));
    UNTIL(&bed, code_broker_counts(bed.broker).requests == CODE_FLIGHT_MAX + 1);
    for (int k = 0; k < 20; k++)
        turn(&bed);
    ck_assert_int_eq(code_broker_counts(bed.broker).requests, CODE_FLIGHT_MAX + 1);
    ck_assert_int_eq(code_broker_counts(bed.broker).in_flight, CODE_FLIGHT_MAX);
    teardown(&bed); /* and with the line they are cancelled */
}
END_TEST

START_TEST(test_end_of_task_cancels)
{
    struct bed bed;

    setup(&bed);
    ask_silent(&bed, 1, 60000);
    UNTIL(&bed, code_broker_counts(bed.broker).in_flight == 1);
    close(bed.task);
    bed.task = -1;
    UNTIL(&bed, code_broker_counts(bed.broker).in_flight == 0);
    ck_assert_int_eq(bed.broken, 0);
    teardown(&bed);
}
END_TEST

START_TEST(test_unread_answers)
{
    struct bed bed;
    char text[512];
    int asked = 0, answered = 0, small = 4096;
    bool full = false;

    setup(&bed);
    ck_assert_int_eq(setsockopt(bed.task, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    /* Nothing is read here, so the host stops reading there, and our own socket fills. */
    while (!full && asked < 900) {
        char json[256], frame[300];
        size_t length;

        snprintf(json, sizeof(json), "{\"id\":%d,\"type\":\"http_request\",\"url\":\"ftp://%0150d/\"}", asked + 1, 0);
        length = frame_of(frame, json, strlen(json));
        full = send(bed.task, frame, length, 0) < 0;
        ck_assert(!full || errno == EAGAIN);
        asked += !full;
        if (asked % 4 == 0)
            turn(&bed);
        if (full) { /* only for want of turns? */
            for (int k = 0; k < 200; k++)
                turn(&bed);
            struct pollfd writable = {.fd = bed.task, .events = POLLOUT};
            full = poll(&writable, 1, 0) == 0;
        }
    }
    ck_assert(full);
    while (answered < asked) {
        answer(&bed, text, sizeof(text));
        answered++;
    }
    ck_assert_int_eq(code_broker_counts(bed.broker).requests, asked);
    ck_assert_int_eq(bed.broken, 0);
    teardown(&bed);
}
END_TEST

START_TEST(test_budget)
{
    struct bed bed;
    size_t body = 300 * 1024;
    char *json = malloc(body + 256), *frame = malloc(body + 260), text[512];
    size_t length, sent = 0;

    setup(&bed);
    length = (size_t)snprintf(json, 256, "{\"id\":1,\"type\":\"http_request\",\"url\":\"ftp://x/\",\"body\":\"");
    memset(json + length, 'x', body);
    memcpy(json + length + body, "\"}", 2);
    length = frame_of(frame, json, length + body + 2);
    ck_assert(code_broker_hold(bed.broker, BUDGET)); /* others have all of it */
    for (int k = 0; k < 2000; k++) {
        ssize_t n = sent < length ? send(bed.task, frame + sent, length - sent, 0) : 0;
        sent += n > 0 ? (size_t)n : 0;
        turn(&bed);
    }
    ck_assert_int_eq(code_broker_counts(bed.broker).requests, 0);
    code_broker_release(bed.broker, BUDGET);
    while (sent < length) {
        ssize_t n = send(bed.task, frame + sent, length - sent, 0);
        sent += n > 0 ? (size_t)n : 0;
        turn(&bed);
    }
    answer(&bed, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "Protocol not allowed"));
    ck_assert_int_eq(bed.broken, 0);
    teardown(&bed);
    free(json);
    free(frame);
}
END_TEST

SK_CHECK_MAIN("code host rpc", test_refused_request, test_byte_by_byte, test_broken_lines, test_ids_grow, test_flood,
              test_flood_of_bad_headers, test_wrong_members, test_in_flight, test_end_of_task_cancels,
              test_unread_answers, test_budget)
