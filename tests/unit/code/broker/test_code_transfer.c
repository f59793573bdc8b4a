/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of a task against a peer on this machine. The peer's very port is permitted by the test's seam; everything
 * else on this machine stays refused, which is what the redirects and the look-ups of names try. */
#include "services/code/broker/internal.h"

#include "common/log/log.h"
#include "tests/conformance/provider/peer.h"
#include "tests/unit/check_main.h"
#include "tests/unit/code/broker/tls.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define MIB      (1024 * 1024)
#define BOMB_MIB 40

struct result {
    struct bed *bed;
    bool done;
    char message[128], status_text[64];
    int status;
    json_t *headers;
    char *data;
    size_t length;
    bool free_requester; /* from inside the call back */
};

struct bed {
    struct sk_loop *loop;
    struct code_policy *policy;
    struct code_broker *broker;
    struct code_requester *requester;
    struct peer *peer;
    int port, waiting;
    const char *addresses[4]; /* what "site.test" resolves to */
    int resolved;
    void *bomb; /* made beforehand: it takes a while */
    size_t bomb_length;
    char log[16384];
};

static bool permit(void *arg, const struct sockaddr *address)
{
    const struct bed *bed = arg;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;

    /* A resolved address has no port yet. */
    return address->sa_family == AF_INET && ntohl(v4->sin_addr.s_addr) == INADDR_LOOPBACK &&
           (v4->sin_port == 0 || ntohs(v4->sin_port) == bed->port);
}

static size_t resolve(void *arg, const char *host, struct sockaddr_storage *out, size_t max)
{
    struct bed *bed = arg;
    size_t count = 0;

    bed->resolved++;
    if (strcmp(host, "site.test") != 0 && strcmp(host, "other.test") != 0)
        return 0;
    for (size_t i = 0; i < 4 && bed->addresses[i] != NULL && count < max; i++) {
        memset(&out[count], 0, sizeof(out[count]));
        if (inet_pton(AF_INET, bed->addresses[i], &((struct sockaddr_in *)&out[count])->sin_addr) == 1) {
            out[count++].ss_family = AF_INET;
        } else {
            ck_assert_int_eq(inet_pton(AF_INET6, bed->addresses[i], &((struct sockaddr_in6 *)&out[count])->sin6_addr),
                             1);
            out[count++].ss_family = AF_INET6;
        }
    }
    return count;
}

static void answer_with(int fd, const char *headers, const void *body, size_t length)
{
    char head[1024];

    snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\n%sContent-Length: %zu\r\n\r\n", headers, length);
    if (peer_text(fd, head))
        peer_write(fd, body, length);
}

static void *gzip(size_t size, size_t *length)
{
    z_stream z = {0};
    unsigned char *out = malloc(size / 500 + 4096), *zeros = calloc(1, MIB);

    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_out = out;
    z.avail_out = (unsigned)(size / 500 + 4096);
    for (size_t left = size; left > 0;) {
        size_t piece = left < MIB ? left : MIB;

        z.next_in = zeros;
        z.avail_in = (unsigned)piece;
        left -= piece;
        deflate(&z, left == 0 ? Z_FINISH : Z_NO_FLUSH);
    }
    *length = z.total_out;
    deflateEnd(&z);
    free(zeros);
    return out;
}

static bool serve(void *arg, const struct peer_request *request, int fd)
{
    struct bed *bed = arg;
    const char *path = request->target;
    char text[512];

    if (strncmp(path, "/echo", 5) == 0) {
        char host[256] = "", type[128] = "", length[32] = "", auth[64] = "", agent[64] = "";
        char body[1024];

        peer_header(request, "Host", host, sizeof(host));
        peer_header(request, "Content-Type", type, sizeof(type));
        peer_header(request, "Content-Length", length, sizeof(length));
        peer_header(request, "Authorization", auth, sizeof(auth));
        peer_header(request, "User-Agent", agent, sizeof(agent));
        snprintf(body, sizeof(body), "%s|%.200s|%s|%s|%s|%s|%.200s", request->method, path, host, type, length, auth,
                 request->body == NULL ? "" : request->body);
        answer_with(fd, "X-One: a\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n", body, strlen(body));
    } else if (strncmp(path, "/go?", 4) == 0) {
        snprintf(text, sizeof(text), "HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 5\r\n\r\nmoved", path + 4);
        peer_text(fd, text);
    } else if (strncmp(path, "/loop", 5) == 0) {
        peer_text(fd, "HTTP/1.1 307 Again\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n");
    } else if (strncmp(path, "/hops/", 6) == 0) {
        int left = atoi(path + 6);

        if (left == 0)
            answer_with(fd, "", "there", 5);
        else {
            snprintf(text, sizeof(text), "HTTP/1.1 302 Found\r\nLocation: /hops/%d\r\nContent-Length: 0\r\n\r\n",
                     left - 1);
            peer_text(fd, text);
        }
    } else if (strncmp(path, "/bytes/", 7) == 0) {
        size_t size = (size_t)atol(path + 7);
        char *body = malloc(size + 1);

        memset(body, 'x', size);
        answer_with(fd, "", body, size);
        free(body);
    } else if (strcmp(path, "/bomb") == 0) {
        answer_with(fd, "Content-Encoding: gzip\r\n", bed->bomb, bed->bomb_length);
    } else if (strcmp(path, "/gzip") == 0) {
        size_t length;
        void *body = gzip(1000, &length);

        answer_with(fd, "Content-Encoding: gzip\r\n", body, length);
        free(body);
    } else if (strcmp(path, "/junk") == 0) {
        answer_with(fd, "",
                    "a\xff\xfe"
                    "b\xe4\xbd\xa0\xed\xa0\x80\0z",
                    12);
    } else if (strcmp(path, "/headers") == 0) {
        peer_text(fd, "HTTP/1.1 200 OK\r\n");
        memset(text, 'h', sizeof(text));
        memcpy(text, "A: ", 3);
        memcpy(text + sizeof(text) - 3, "\r\n", 3);
        for (int i = 0; i < 200 && peer_text(fd, text); i++)
            ;
    } else if (strcmp(path, "/stall") == 0) {
        peer_stall(bed->peer, fd, -1);
        return false;
    } else if (strcmp(path, "/drip") == 0) {
        peer_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n");
        peer_drip(bed->peer, fd, "dripdripdripdripdripdripdripdripdripdripdripdripdripdripdripdrip", 20);
        peer_stall(bed->peer, fd, -1);
        return false;
    } else if (strcmp(path, "/cut") == 0) {
        peer_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf");
        return false;
    } else if (strcmp(path, "/old") == 0) {
        peer_text(fd, "just text\r\n");
        return false;
    } else {
        answer_with(fd, "", "ok", 2);
    }
    return true;
}

static void on_log(void *arg, const char *line, size_t length)
{
    struct bed *bed = arg;
    size_t used = strlen(bed->log);

    if (used + length < sizeof(bed->log)) {
        memcpy(bed->log + used, line, length);
        bed->log[used + length] = '\0';
    }
}

static const struct code_requester_limits usual = {
    .request_max = 30, .timeout_ms = 10000, .body_bytes = 5 * MIB, .response_bytes = 10 * MIB};

static void begin_with(struct bed *bed, const char *policy, const struct code_requester_limits *limits, int64_t budget)
{
    struct code_broker_options options = {.budget_bytes = budget};
    const struct code_policy_options of_policy = {
        .text = policy, .length = policy == NULL ? 0 : strlen(policy), .check_internal = true};
    struct sk_error err;

    memset(bed, 0, sizeof(*bed));
    sk_log_capture(on_log, bed);
    bed->loop = sk_loop_new(0, &err);
    bed->policy = code_policy_new(&of_policy, &err);
    ck_assert(bed->loop != NULL && bed->policy != NULL);
    options.loop = bed->loop;
    options.policy = bed->policy;
    bed->broker = code_broker_new(&options);
    bed->broker->seam.permit = permit;
    bed->broker->seam.resolve = resolve;
    bed->broker->seam.arg = bed;
    bed->addresses[0] = "127.0.0.1";
    bed->peer = peer_start(serve, bed);
    bed->port = peer_port(bed->peer);
    bed->requester = code_requester_new(bed->broker, "task-1", "team-a", limits);
    ck_assert_ptr_nonnull(bed->requester);
}

static void begin(struct bed *bed)
{
    begin_with(bed, NULL, &usual, 0);
}

static void end(struct bed *bed)
{
    struct code_broker_counts counts;

    code_requester_free(bed->requester);
    counts = code_broker_counts(bed->broker);
    ck_assert_int_eq(counts.held_bytes, 0);
    ck_assert_int_eq(counts.in_flight, 0);
    while (code_broker_counts(bed->broker).resolving > 0)
        uv_run(sk_loop_uv(bed->loop), UV_RUN_ONCE);
    ck_assert_int_eq(counts.requests, counts.answered + counts.refused + counts.failed + counts.cancelled);
    ck_assert_uint_eq(sk_loop_free(bed->loop), 0);
    peer_stop(bed->peer);
    code_broker_free(bed->broker);
    code_policy_free(bed->policy);
    sk_log_capture(NULL, NULL);
}

static void on_done(void *arg, const struct code_net_answer *answer)
{
    struct result *r = arg;

    ck_assert(!r->done);
    r->done = true;
    if (answer->message != NULL) {
        snprintf(r->message, sizeof(r->message), "%s", answer->message);
    } else {
        r->status = answer->status;
        snprintf(r->status_text, sizeof(r->status_text), "%s", answer->status_text);
        r->headers = json_deep_copy(answer->headers);
        r->data = malloc(answer->length + 1);
        memcpy(r->data, answer->data, answer->length);
        r->data[answer->length] = '\0';
        r->length = answer->length;
    }
    if (r->free_requester) {
        code_requester_free(r->bed->requester);
        r->bed->requester = NULL;
    }
    if (--r->bed->waiting <= 0)
        sk_loop_stop(r->bed->loop);
}

static struct code_transfer *send_to(struct bed *bed, struct result *r, const char *url,
                                     struct code_net_request request)
{
    char text[1024];
    const char *mark = strstr(url, "PORT");
    struct code_transfer *t;

    if (mark != NULL)
        snprintf(text, sizeof(text), "%.*s%d%s", (int)(mark - url), url, bed->port, mark + 4);
    else
        snprintf(text, sizeof(text), "%s", url);
    memset(r, 0, sizeof(*r));
    r->bed = bed;
    request.url = text;
    request.url_length = strlen(text);
    bed->waiting++;
    t = code_transfer_start(bed->requester, &request, on_done, r);
    ck_assert_ptr_nonnull(t);
    ck_assert(!r->done);
    return t;
}

static void fetch(struct bed *bed, struct result *r, const char *url, struct code_net_request request)
{
    send_to(bed, r, url, request);
    sk_loop_run(bed->loop);
    ck_assert(r->done);
}

static void drop(struct result *r)
{
    json_decref(r->headers);
    free(r->data);
}

#define PLAIN ((struct code_net_request){0})

START_TEST(test_answers)
{
    struct bed bed;
    struct result r;
    json_t *headers =
        json_pack("{s:s,s:s,s:s}", "Host", "evil.example", "Authorization", "Bearer x", "content-length", "1");
    char expected[256];

    begin(&bed);
    fetch(&bed, &r, "http://site.test:PORT/echo?a=b c", PLAIN);
    snprintf(expected, sizeof(expected), "GET|/echo?a=b+c|site.test:%d||||", bed.port);
    ck_assert_str_eq(r.message, "");
    ck_assert_int_eq(r.status, 200);
    ck_assert_str_eq(r.status_text, "OK");
    ck_assert_str_eq(r.data, expected);
    ck_assert_str_eq(json_string_value(json_object_get(r.headers, "x-one")), "a");
    ck_assert_str_eq(json_string_value(json_object_get(r.headers, "set-cookie")), "a=1, b=2");
    drop(&r);
    fetch(&bed, &r, "http://SITE.test.:PORT/echo",
          (struct code_net_request){.method = "POST", .headers = headers, .body = "{\"a\":1}", .body_length = 7});
    snprintf(expected, sizeof(expected), "POST|/echo|site.test:%d|application/json|7|Bearer x|{\"a\":1}", bed.port);
    ck_assert_str_eq(r.data, expected);
    drop(&r);
    fetch(&bed, &r, "http://127.0.0.1:PORT/echo", (struct code_net_request){.method = "DELETE"});
    snprintf(expected, sizeof(expected), "DELETE|/echo|127.0.0.1:%d||||", bed.port);
    ck_assert_str_eq(r.data, expected);
    drop(&r);
    fetch(&bed, &r, "http://site.test:PORT/echo",
          (struct code_net_request){.method = "GET", .body = "x", .body_length = 1});
    snprintf(expected, sizeof(expected), "GET|/echo|site.test:%d|application/json|1||x", bed.port);
    ck_assert_str_eq(r.data, expected);
    drop(&r);
    fetch(&bed, &r, "http://site.test:PORT/gzip", PLAIN);
    ck_assert_int_eq(r.length, 1000);
    drop(&r);
    fetch(&bed, &r, "http://site.test:PORT/junk", PLAIN);
    ck_assert_int_eq(r.length, 12 - 5 + 5 * 3);
    ck_assert_int_eq(memcmp(r.data,
                            "a\xef\xbf\xbd\xef\xbf\xbd"
                            "b\xe4\xbd\xa0\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\0z",
                            r.length),
                     0);
    drop(&r);
    fetch(&bed, &r, "http://site.test:PORT/bytes/5",
          (struct code_net_request){.method = "HEAD", .body = "x", .body_length = 1});
    ck_assert_int_eq(r.status, 200);
    ck_assert_int_eq(r.length, 0);
    ck_assert_str_eq(json_string_value(json_object_get(r.headers, "content-length")), "5");
    drop(&r);
    ck_assert_int_eq(code_requester_counts(bed.requester).answered, 7);
    /* Each request has its own connection and its own look-up. */
    ck_assert_int_eq(peer_connection_count(bed.peer), 7);
    ck_assert_int_eq(bed.resolved, 6);
    json_decref(headers);
    end(&bed);
}
END_TEST

/* One address among several that is not allowed refuses the name; nothing is ever sent. */
START_TEST(test_names_and_addresses)
{
    static const struct {
        const char *addresses[4];
        const char *message;
    } rows[] = {
        {{"127.0.0.2"}, "Request to private network not allowed"},
        {{"127.0.0.1", "10.0.0.1"}, "Request to private network not allowed"},
        {{"8.8.8.8", "169.254.169.254"}, "Request to private network not allowed"},
        {{"::ffff:127.0.0.1"}, "Request to private network not allowed"},
        {{"64:ff9b::7f00:1"}, "Request to private network not allowed"},
        {{"2001:4860:4860::8888", "::1"}, "Request to private network not allowed"},
        {{NULL}, "Request failed: could not resolve host"},
    };
    struct bed bed;
    struct result r;

    begin(&bed);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        memcpy(bed.addresses, rows[i].addresses, sizeof(bed.addresses));
        fetch(&bed, &r, "http://site.test:PORT/echo", PLAIN);
        ck_assert_str_eq(r.message, rows[i].message);
    }
    bed.addresses[0] = "127.0.0.1";
    bed.addresses[1] = NULL;
    /* The look-up says this machine; only the peer's port is permitted there, which shows on the socket alone. */
    fetch(&bed, &r, "http://site.test:1234/echo", PLAIN);
    ck_assert_str_eq(r.message, "Request to private network not allowed");
    fetch(&bed, &r, "http://127.0.0.1:1234/echo", PLAIN);
    ck_assert_str_eq(r.message, "Request to private network not allowed");
    fetch(&bed, &r, "http://localhost:PORT/echo", PLAIN);
    ck_assert_str_eq(r.message, "Request to private network not allowed");
    ck_assert_int_eq(peer_connection_count(bed.peer), 0);
    ck_assert_int_eq(code_requester_counts(bed.requester).refused, 9);
    ck_assert_int_eq(code_requester_counts(bed.requester).failed, 1);
    end(&bed);
}
END_TEST

START_TEST(test_system_resolver)
{
    struct bed bed;
    struct result r;

    begin(&bed);
    bed.broker->seam.resolve = NULL;
    fetch(&bed, &r, "http://no-such-name.invalid/", PLAIN);
    ck_assert_str_eq(r.message, "Request failed: could not resolve host");
    end(&bed);
}
END_TEST

START_TEST(test_redirects)
{
    static const struct {
        const char *url;
        bool follow;
        const char *message;
        int status;
        const char *data; /* a part of it */
    } rows[] = {
        {"http://site.test:PORT/go?/echo", false, "", 302, "moved"},
        {"http://site.test:PORT/go?/echo", true, "", 200, "GET|/echo|site.test"},
        {"http://site.test:PORT/hops/5", true, "", 200, "there"},
        {"http://site.test:PORT/hops/6", true, "Too many redirects", 0, NULL},
        {"http://site.test:PORT/loop", true, "Too many redirects", 0, NULL},
        {"http://site.test:PORT/go?http://169.254.169.254/", true, "Request to private network not allowed", 0, NULL},
        {"http://site.test:PORT/go?http://localhost/", true, "Request to private network not allowed", 0, NULL},
        {"http://site.test:PORT/go?http://127.0.0.1:1/", true, "Port not allowed", 0, NULL},
        {"http://site.test:PORT/go?http://127.0.0.1:1234/", true, "Request to private network not allowed", 0, NULL},
        {"http://site.test:PORT/go?file:///etc/passwd", true, "Protocol not allowed", 0, NULL},
        {"http://site.test:PORT/go?http://a@site.test/", true, "Credentials in URL not allowed", 0, NULL},
        {"http://site.test:PORT/go?http://nowhere.test/", true, "Request failed: could not resolve host", 0, NULL},
    };
    json_t *headers = json_pack("{s:s}", "Authorization", "secret");
    const struct code_net_request post = {
        .method = "POST", .headers = headers, .body = "x", .body_length = 1, .follow_redirects = true};
    struct bed bed;
    struct result r;
    char url[256], expected[256];

    begin(&bed);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fetch(&bed, &r, rows[i].url, (struct code_net_request){.follow_redirects = rows[i].follow});
        ck_assert_str_eq(r.message, rows[i].message);
        ck_assert_int_eq(r.status, rows[i].status);
        if (rows[i].data != NULL)
            ck_assert_ptr_nonnull(strstr(r.data, rows[i].data));
        drop(&r);
    }
    /* The same origin keeps the credentials, another one does not get them; POST becomes GET without its body. */
    fetch(&bed, &r, "http://site.test:PORT/go?/echo", post);
    snprintf(expected, sizeof(expected), "GET|/echo|site.test:%d|||secret|", bed.port);
    ck_assert_str_eq(r.data, expected);
    drop(&r);
    snprintf(url, sizeof(url), "http://site.test:PORT/go?http://other.test:%d/echo", bed.port);
    fetch(&bed, &r, url, post);
    snprintf(expected, sizeof(expected), "GET|/echo|other.test:%d||||", bed.port);
    ck_assert_str_eq(r.data, expected);
    drop(&r);
    json_decref(headers);
    end(&bed);
}
END_TEST

START_TEST(test_limits)
{
    struct code_requester_limits limits = {
        .request_max = 10, .timeout_ms = 300, .body_bytes = 10, .response_bytes = 1000};
    static const struct {
        const char *url, *body, *message;
    } rows[] = {
        {"http://site.test:PORT/bytes/1000", "0123456789", ""},
        {"http://site.test:PORT/bytes/1001", NULL, "Response too large"},
        {"http://site.test:PORT/echo", "0123456789a", "Request body too large"},
        {"ftp://site.test/", "0123456789a", "Protocol not allowed"},
        {"http://127.0.0.2/", "0123456789a", "Request body too large"},
        {"http://site.test:PORT/stall", NULL, "Request timeout"},
        {"http://site.test:PORT/drip", NULL, "Request timeout"},
        {"http://site.test:PORT/headers", NULL, "Response too large"},
        {"http://site.test:PORT/cut", NULL, "Request failed: connection lost"},
        {"http://site.test:PORT/old", NULL, "Request failed: the answer was not HTTP"},
        {"http://site.test:PORT/echo", NULL, "Request limit exceeded"},
        {"ftp://site.test/", NULL, "Request limit exceeded"},
    };
    struct bed bed;
    struct result r;

    begin_with(&bed, NULL, &limits, 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fetch(&bed, &r, rows[i].url,
              (struct code_net_request){.method = rows[i].body == NULL ? "GET" : "PUT",
                                        .body = rows[i].body,
                                        .body_length = rows[i].body == NULL ? 0 : strlen(rows[i].body)});
        ck_assert_msg(strcmp(r.message, rows[i].message) == 0, "%s: %s", rows[i].url, r.message);
        drop(&r);
    }
    end(&bed);
}
END_TEST

START_TEST(test_bomb_and_budget)
{
    struct bed bed;
    struct result r;

    begin(&bed);
    bed.bomb = gzip((size_t)BOMB_MIB * MIB, &bed.bomb_length);
    fetch(&bed, &r, "http://site.test:PORT/bomb", PLAIN);
    ck_assert_str_eq(r.message, "Response too large");
    ck_assert_int_le(code_requester_counts(bed.requester).received_bytes, 10 * MIB + 65536);
    end(&bed);
    free(bed.bomb);
    begin_with(&bed, NULL, &usual, 1000);
    ck_assert(code_broker_hold(bed.broker, 600));
    fetch(&bed, &r, "http://site.test:PORT/bytes/401", PLAIN);
    ck_assert_str_eq(r.message, "Too many responses at once, try again later");
    fetch(&bed, &r, "http://site.test:PORT/bytes/400", PLAIN);
    ck_assert_str_eq(r.message, "");
    drop(&r);
    code_broker_release(bed.broker, 600);
    end(&bed);
}
END_TEST

START_TEST(test_policy_and_audit)
{
    struct bed bed;
    struct result r;

    begin_with(&bed,
               "{\"default\":\"none\",\"rules\":[{\"queueId\":\"team-a\",\"allow\":[\"site.test\"]},{\"queueId\":\"*\","
               "\"allow\":[\"*\"]}]}",
               &usual, 0);
    fetch(&bed, &r, "http://site.test:PORT/echo?key=hidden", PLAIN);
    ck_assert_int_eq(r.status, 200);
    drop(&r);
    ck_assert_ptr_nonnull(strstr(bed.log, "\"result\":\"answered\""));
    ck_assert_ptr_nonnull(strstr(bed.log, "\"taskId\":\"task-1\""));
    ck_assert_ptr_nonnull(strstr(bed.log, "\"queueId\":\"team-a\""));
    ck_assert_ptr_nonnull(strstr(bed.log, "\"host\":\"site.test\""));
    ck_assert_ptr_nonnull(strstr(bed.log, "\"address\":\"127.0.0.1\""));
    ck_assert_ptr_null(strstr(bed.log, "hidden"));
    bed.log[0] = '\0';
    fetch(&bed, &r, "http://10.0.0.1/", PLAIN);
    ck_assert_str_eq(r.message, "Request to private network not allowed");
    ck_assert_ptr_nonnull(strstr(bed.log, "\"result\":\"refused\""));
    bed.log[0] = '\0';
    /* Two of one request's lines would be two requests. */
    fetch(&bed, &r, "mailto:a@b", PLAIN);
    ck_assert_ptr_eq(strchr(bed.log, '\n'), strrchr(bed.log, '\n'));
    end(&bed);
}
END_TEST

START_TEST(test_flight_and_cancel)
{
    struct bed bed;
    struct result r[5];
    struct code_transfer *t[5];

    begin(&bed);
    for (int i = 0; i < 5; i++)
        t[i] = send_to(&bed, &r[i], "http://site.test:PORT/stall", PLAIN);
    bed.waiting = 1;
    sk_loop_run(bed.loop);
    ck_assert(r[4].done && !r[0].done && !r[1].done && !r[2].done && !r[3].done);
    ck_assert_str_eq(r[4].message, "Too many requests in flight");
    ck_assert_int_eq(code_requester_counts(bed.requester).in_flight, 4);
    code_transfer_cancel(t[1]); /* on its way */
    fetch(&bed, &r[4], "http://site.test:PORT/echo", PLAIN);
    ck_assert_int_eq(r[4].status, 200);
    drop(&r[4]);
    t[1] = send_to(&bed, &r[1], "http://site.test:PORT/echo", PLAIN);
    code_transfer_cancel(t[1]); /* before its first turn */
    end(&bed);                  /* three are still on their way: cancelled */
    ck_assert(!r[0].done && !r[1].done && !r[2].done && !r[3].done);
}
END_TEST

START_TEST(test_free_inside_done)
{
    struct bed bed;
    struct result r[2];

    begin(&bed);
    send_to(&bed, &r[0], "http://site.test:PORT/stall", PLAIN);
    send_to(&bed, &r[1], "http://site.test:PORT/echo", PLAIN);
    r[1].free_requester = true;
    bed.waiting = 1;
    sk_loop_run(bed.loop);
    ck_assert(r[1].done && !r[0].done);
    drop(&r[1]);
    end(&bed);
}
END_TEST

/* A look-up that runs while its task ends, and its broker. */
START_TEST(test_cancel_while_resolving)
{
    struct bed bed;
    struct result r[3];

    begin(&bed);
    bed.broker->seam.resolve = NULL;
    send_to(&bed, &r[0], "http://a.invalid/", PLAIN);
    send_to(&bed, &r[1], "http://mailto/", PLAIN); /* refused at once: by then the other look-up has begun */
    bed.waiting = 1;
    sk_loop_run(bed.loop);
    ck_assert(r[1].done || r[0].done);
    end(&bed);
}
END_TEST

/* Every thread for look-ups is held, as by silent name servers, until this is posted. */
static sem_t held;

static void hold_thread(uv_work_t *work)
{
    (void)work;
    while (sem_wait(&held) != 0) {
    }
}

static int threads_freed;

static void thread_free(uv_work_t *work, int status)
{
    (void)work;
    ck_assert_int_eq(status, 0);
    threads_freed++;
}

/* The names of one task are looked up one after the other, so that it cannot hold every thread there is for that; one
 * that gives up its turn, or ends before it, holds up nobody. */
START_TEST(test_one_look_up_of_a_task)
{
    struct bed bed;
    struct result r[4], other;
    struct code_requester *requester;
    struct code_transfer *waiting = NULL;
    uv_work_t work[2];

    ck_assert_int_eq(setenv("UV_THREADPOOL_SIZE", "2", 1), 0);
    ck_assert_int_eq(sem_init(&held, 0, 0), 0);
    begin(&bed);
    bed.broker->seam.resolve = NULL;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(uv_queue_work(sk_loop_uv(bed.loop), &work[i], hold_thread, thread_free), 0);
    for (int i = 0; i < 4; i++)
        waiting = send_to(&bed, &r[i], "http://a.invalid/", PLAIN);
    requester = bed.requester;
    bed.requester = code_requester_new(bed.broker, "task-2", "team-b", &usual);
    send_to(&bed, &other, "http://b.invalid/", PLAIN);
    for (int i = 0; i < 100 || code_broker_counts(bed.broker).resolving < 2; i++)
        uv_run(sk_loop_uv(bed.loop), UV_RUN_NOWAIT);
    ck_assert_int_eq(code_broker_counts(bed.broker).resolving, 2); /* one of each task */
    code_transfer_cancel(waiting);
    bed.waiting--;
    for (int i = 0; i < 2; i++)
        sem_post(&held);
    while (bed.waiting > 0)
        uv_run(sk_loop_uv(bed.loop), UV_RUN_ONCE);
    ck_assert(r[0].done && r[1].done && r[2].done && !r[3].done && other.done);
    ck_assert_str_eq(r[2].message, "Request failed: could not resolve host");
    ck_assert_str_eq(other.message, "Request failed: could not resolve host");
    /* A task ends with one that runs and one that waits. */
    ck_assert_int_eq(uv_queue_work(sk_loop_uv(bed.loop), &work[0], hold_thread, thread_free), 0);
    ck_assert_int_eq(uv_queue_work(sk_loop_uv(bed.loop), &work[1], hold_thread, thread_free), 0);
    send_to(&bed, &other, "http://c.invalid/", PLAIN);
    send_to(&bed, &r[0], "http://d.invalid/", PLAIN);
    while (code_broker_counts(bed.broker).resolving == 0)
        uv_run(sk_loop_uv(bed.loop), UV_RUN_NOWAIT);
    code_requester_free(bed.requester);
    bed.requester = requester;
    for (int i = 0; i < 2; i++)
        sem_post(&held);
    while (threads_freed < 4)
        uv_run(sk_loop_uv(bed.loop), UV_RUN_ONCE);
    end(&bed);
}
END_TEST

/* Nor can a tenant with many tasks: the names of the others are looked up beside its own. */
START_TEST(test_few_look_ups_of_a_queue_id)
{
    enum { TASKS = CODE_LOOKUPS_QUEUE_MAX + 2 };
    struct bed bed;
    struct result r[TASKS], other, unnamed;
    struct code_requester *first, *tasks[TASKS + 2];
    uv_work_t work[2];

    ck_assert_int_eq(setenv("UV_THREADPOOL_SIZE", "2", 1), 0);
    ck_assert_int_eq(sem_init(&held, 0, 0), 0);
    begin(&bed);
    first = bed.requester;
    bed.broker->seam.resolve = NULL;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(uv_queue_work(sk_loop_uv(bed.loop), &work[i], hold_thread, thread_free), 0);
    for (int i = 0; i < TASKS + 2; i++) {
        const char *queue_id = i < TASKS ? "team-many" : i == TASKS ? "team-other" : NULL;

        bed.requester = tasks[i] = code_requester_new(bed.broker, "task", queue_id, &usual);
        send_to(&bed, i < TASKS ? &r[i] : i == TASKS ? &other : &unnamed, "http://a.invalid/", PLAIN);
    }
    for (int i = 0; i < 100 || code_broker_counts(bed.broker).resolving < CODE_LOOKUPS_QUEUE_MAX + 2; i++)
        uv_run(sk_loop_uv(bed.loop), UV_RUN_NOWAIT);
    ck_assert_int_eq(code_broker_counts(bed.broker).resolving, CODE_LOOKUPS_QUEUE_MAX + 2);
    for (int i = 0; i < 2; i++)
        sem_post(&held);
    while (bed.waiting > 0 || threads_freed < 2)
        uv_run(sk_loop_uv(bed.loop), UV_RUN_ONCE);
    for (int i = 0; i < TASKS; i++)
        ck_assert_str_eq(r[i].message, "Request failed: could not resolve host");
    ck_assert(other.done && unnamed.done);
    for (int i = 0; i < TASKS + 2; i++)
        code_requester_free(tasks[i]);
    bed.requester = first;
    end(&bed);
}
END_TEST

/* The certificate must be one of a known authority, and for this very name. */
START_TEST(test_tls)
{
    char directory[] = "/tmp/code-broker-XXXXXX", path[64];
    struct tls_server *server;
    struct bed bed;
    struct result r;
    int of_peer;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/ca.pem", directory);
    server = tls_start("site.test", path);
    begin(&bed);
    of_peer = bed.port;
    bed.port = tls_port(server);
    fetch(&bed, &r, "https://site.test:PORT/", PLAIN);
    ck_assert_str_eq(r.message, "Request failed: no TLS connection");
    bed.broker->options.ca_file = path;
    fetch(&bed, &r, "https://other.test:PORT/", PLAIN);
    ck_assert_str_eq(r.message, "Request failed: no TLS connection");
    ck_assert_int_eq(tls_answered(server), 0);
    fetch(&bed, &r, "https://Site.Test.:PORT/", PLAIN);
    ck_assert_str_eq(r.message, "");
    ck_assert_str_eq(r.data, "secret");
    drop(&r);
    bed.port = of_peer;
    end(&bed);
    tls_stop(server);
    unlink(path);
    rmdir(directory);
}
END_TEST

SK_CHECK_MAIN("code transfer", test_answers, test_names_and_addresses, test_system_resolver, test_redirects,
              test_limits, test_bomb_and_budget, test_policy_and_audit, test_flight_and_cancel, test_free_inside_done,
              test_cancel_while_resolving, test_one_look_up_of_a_task, test_few_look_ups_of_a_queue_id, test_tls)
