/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP client's own behaviour: what goes out, kept connections, time limits, streams, and that a cancel is noticed
 * at once wherever the request happens to be. */
#define SK_CHECK_TIMEOUT 60
#include "tests/unit/check_main.h"
#include "tests/unit/http/http_fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define RUNNING_ON_VALGRIND 0
#endif

/* ---- what goes out ---------------------------------------------------------------------------------------------- */

START_TEST(test_request_headers)
{
    const struct sk_http_header headers[] = {{"X-Key", "v1"}, {"X-Empty", ""}, {"Content-Type", "application/json"}};
    struct peer_request seen;
    struct fixture f;
    char value[256];

    /* None of these may matter. */
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("HTTP_PROXY", "http://127.0.0.1:1", 1);
    setenv("ALL_PROXY", "socks5://127.0.0.1:1", 1);
    setenv("HOME", "/nonexistent", 1);
    begin(&f, h_echo);
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "POST",
                                                                .url = f.url,
                                                                .headers = headers,
                                                                .header_count = 3,
                                                                .body = "{\"a\":1}",
                                                                .body_len = 7}),
                     0);
    ck_assert_str_eq(f.response.body, "{\"a\":1}");
    ck_assert(peer_last(f.peer, "POST", "/x", &seen));
    ck_assert(peer_header(&seen, "X-Key", value, sizeof(value)));
    ck_assert_str_eq(value, "v1");
    ck_assert(peer_header(&seen, "X-Empty", value, sizeof(value)));
    ck_assert_str_eq(value, "");
    ck_assert(peer_header(&seen, "Content-Type", value, sizeof(value)));
    ck_assert_str_eq(value, "application/json");
    ck_assert(peer_header(&seen, "Content-Length", value, sizeof(value)));
    ck_assert_str_eq(value, "7");
    ck_assert(peer_header(&seen, "User-Agent", value, sizeof(value)));
    ck_assert_str_eq(value, "sandkeep");
    ck_assert(!peer_header(&seen, "Expect", value, sizeof(value)));
    ck_assert(!peer_header(&seen, "Accept-Encoding", value, sizeof(value)));
    ck_assert(!peer_header(&seen, "Authorization", value, sizeof(value)));
    peer_request_free(&seen);

    /* An empty POST says so; DELETE and GET have no body and no type. */
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "POST", .url = f.url}), 0);
    ck_assert(peer_last(f.peer, "POST", "/x", &seen));
    ck_assert(peer_header(&seen, "Content-Length", value, sizeof(value)));
    ck_assert_str_eq(value, "0");
    ck_assert(!peer_header(&seen, "Content-Type", value, sizeof(value)));
    peer_request_free(&seen);
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "DELETE", .url = f.url}), 0);
    ck_assert(peer_last(f.peer, "DELETE", "/x", &seen));
    ck_assert(!peer_header(&seen, "Content-Length", value, sizeof(value)));
    ck_assert(!peer_header(&seen, "Content-Type", value, sizeof(value)));
    peer_request_free(&seen);
    end(&f);
}
END_TEST

START_TEST(test_paths_are_sent_as_they_are)
{
    struct peer_request seen;
    struct fixture f;
    char url[128];

    begin(&f, h_echo);
    snprintf(url, sizeof(url), "%s/a/../b/./%%2e%%2e/c?q=%%2525", peer_url(f.peer));
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "GET", .url = url}), 0);
    ck_assert(peer_last(f.peer, "", "", &seen));
    ck_assert_str_eq(seen.target, "/a/../b/./%2e%2e/c?q=%2525");
    peer_request_free(&seen);
    end(&f);
}
END_TEST

static bool h_headers(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    peer_text(fd, "HTTP/1.1 103 Early Hints\r\nX-One: interim\r\n\r\nHTTP/1.1 429 Slow\r\nX-One:  first \r\nx-one: "
                  "second\r\nX-Empty:\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n");
    return true;
}

START_TEST(test_answer_headers)
{
    struct fixture f;

    begin(&f, h_headers);
    ck_assert_int_eq(get(&f), 0);
    ck_assert_int_eq(f.response.status, 429);
    ck_assert_str_eq(sk_http_response_header(&f.response, "X-ONE", 0), "first");
    ck_assert_str_eq(sk_http_response_header(&f.response, "X-One", 1), "second");
    ck_assert_ptr_null(sk_http_response_header(&f.response, "X-One", 2));
    ck_assert_str_eq(sk_http_response_header(&f.response, "X-Empty", 0), "");
    ck_assert_int_eq(f.response.retry_after_ms, 7000);
    ck_assert(f.response.delimited);
    end(&f);
    begin(&f, h_until_close);
    ck_assert_int_eq(get(&f), 0);
    ck_assert_str_eq(f.response.body, "abc");
    ck_assert(!f.response.delimited);
    end(&f);
}
END_TEST

/* ---- connections ------------------------------------------------------------------------------------------------ */

START_TEST(test_keep_alive)
{
    struct fixture f;

    begin(&f, h_echo);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(get(&f), 0);
        ck_assert_int_eq(f.response.reused, i > 0);
    }
    ck_assert_int_eq(peer_connection_count(f.peer), 1);
    end(&f);
}
END_TEST

START_TEST(test_connection_cache_is_bounded)
{
    struct peer *peers[SK_HTTP_CONNECTIONS_MAX * 3];
    struct fixture f;
    int open = 0;

    begin(&f, NULL);
    for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++) {
        peers[i] = peer_start(h_echo, NULL);
        snprintf(f.url, sizeof(f.url), "%s/", peer_url(peers[i]));
        ck_assert_int_eq(get(&f), 0);
    }
    /* What the client closed, the peers notice a moment later. */
    for (int64_t until = now_us() + 5000000; now_us() < until; usleep(1000)) {
        open = 0;
        for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++)
            open += peer_open_count(peers[i]);
        if (open <= SK_HTTP_CONNECTIONS_MAX)
            break;
    }
    ck_assert_int_le(open, SK_HTTP_CONNECTIONS_MAX);
    ck_assert_int_gt(open, 1);
    end(&f);
    for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++)
        peer_stop(peers[i]);
}
END_TEST

/* Answers the first request of the first connection, then closes at every further request without a word. */
static bool h_stale(void *a, const struct peer_request *r, int fd)
{
    const struct fixture *f = a;

    if (r->number == 1 || (f->extra == NULL && r->connection > 1)) {
        peer_answer(fd, 200, "text/plain", r->body);
        return true;
    }
    return false;
}

START_TEST(test_stale_connection_is_repeated_once)
{
    struct fixture f;
    struct sk_http_request put = {.method = "PUT", .body = "content", .body_len = 7};

    begin(&f, h_stale);
    ck_assert_int_eq(get(&f), 0);
    ck_assert_int_eq(get(&f), 0); /* the kept connection proves dead: sent again on a new one */
    ck_assert_int_eq(peer_request_count(f.peer), 3);
    ck_assert_int_eq(peer_connection_count(f.peer), 2);
    end(&f);

    begin(&f, h_stale);
    put.url = f.url;
    ck_assert_int_eq(get(&f), 0);
    ck_assert_int_eq(send_request(&f, &put), 0);
    ck_assert_str_eq(f.response.body, "content");
    ck_assert_int_eq(peer_request_count(f.peer), 3);
    end(&f);

    begin(&f, h_stale);
    f.extra = &f; /* the new connection is dead too: once is enough */
    ck_assert_int_eq(get(&f), 0);
    ck_assert_int_eq(get(&f), -1);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert_int_eq(peer_request_count(f.peer), 3);
    end(&f);
}
END_TEST

START_TEST(test_idempotent_post_uses_a_kept_connection)
{
    struct fixture f;
    struct sk_http_request post = {.method = "POST", .body = "content", .body_len = 7, .idempotent = true};

    begin(&f, h_echo);
    post.url = f.url;
    ck_assert_int_eq(get(&f), 0);
    ck_assert_int_eq(send_request(&f, &post), 0);
    ck_assert(f.response.reused);
    ck_assert_int_eq(get(&f), 0); /* and leaves it for the next */
    ck_assert(f.response.reused);
    ck_assert_int_eq(peer_connection_count(f.peer), 1);
    end(&f);

    begin(&f, h_stale);
    post.url = f.url;
    ck_assert_int_eq(get(&f), 0);
    ck_assert_int_eq(send_request(&f, &post), 0); /* the kept connection proves dead: sent again, with its body */
    ck_assert_str_eq(f.response.body, "content");
    ck_assert_int_eq(peer_request_count(f.peer), 3);
    end(&f);
}
END_TEST

START_TEST(test_post_is_never_repeated)
{
    static const char *const methods[] = {"POST", "PATCH"};

    for (int m = 0; m < 2; m++) {
        struct fixture f;

        begin(&f, h_stale);
        f.extra = &f;
        ck_assert_int_eq(get(&f), 0);
        ck_assert_int_eq(
            send_request(&f,
                         &(struct sk_http_request){.method = methods[m], .url = f.url, .body = "{}", .body_len = 2}),
            -1);
        ck_assert_int_eq(f.err.outcome, SK_OUTCOME_UNKNOWN);
        ck_assert_int_eq(peer_request_count(f.peer), 2);
        ck_assert_int_eq(peer_connection_count(f.peer), 2); /* it did not even use the kept one */
        end(&f);
    }
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

static bool h_mixed(void *a, const struct peer_request *r, int fd)
{
    static const peer_handler handlers[] = {h_echo, h_cut_body, h_reset, h_bad_chunk, h_silent_close, h_page_502};

    return handlers[r->number % 6](a, r, fd);
}

START_TEST(test_descriptors_do_not_leak)
{
    struct fixture f;
    int before = 0;

    begin(&f, h_mixed);
    for (int i = 0; i < 1200; i++) {
        (void)!send_request(&f, &(struct sk_http_request){.method = i % 2 == 0 ? "GET" : "POST", .url = f.url});
        if (i == 100)
            before = open_fds();
    }
    /* The peer lives in this process too and closes its ends a moment later. */
    for (int64_t until = now_us() + 5000000; open_fds() > before + 4 && now_us() < until;)
        usleep(1000);
    ck_assert_int_le(open_fds(), before + 4);
    end(&f);
}
END_TEST

/* ---- time and cancel -------------------------------------------------------------------------------------------- */

START_TEST(test_deadline)
{
    int64_t patience_us = RUNNING_ON_VALGRIND ? 4000000 : 200000, start; /* time enough to send the request */
    struct fixture f;

    begin(&f, h_stall);
    f.call.deadline_us = now_us() + patience_us;
    start = now_us();
    ck_assert_int_eq(get(&f), -1);
    ck_assert_int_eq(f.response.end, SK_HTTP_TIMEOUT);
    ck_assert_int_eq(f.err.code, SK_ERR_PROVIDER_TIMEOUT);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert_int_ge(now_us() - start, patience_us - 10000);
    ck_assert_int_lt(now_us() - start, patience_us + 800000);
    /* And one that passed already: nothing goes out. */
    ck_assert_int_eq(get(&f), -1);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_FAILED);
    ck_assert_int_eq(peer_connection_count(f.peer), 1);
    end(&f);
}
END_TEST

START_TEST(test_idle_timeout)
{
    struct fixture f;
    int64_t start;

    begin(&f, h_stall);
    start = now_us();
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "GET", .url = f.url, .idle_timeout_ms = 150}),
                     -1);
    ck_assert_int_eq(f.response.end, SK_HTTP_TIMEOUT);
    ck_assert_int_lt(now_us() - start, 1000000);
    end(&f);
    /* A byte each 50 ms keeps a request alive for the idle time-out. */
    begin(&f, h_drip);
    start = now_us();
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "GET",
                                                                .url = f.url,
                                                                .idle_timeout_ms = 1300,
                                                                .total_timeout_ms = 1700}),
                     -1);
    ck_assert_int_ge(now_us() - start, 1690000);
    end(&f);
}
END_TEST

struct canceller {
    struct sk_call *call;
    struct peer *peer; /* when set, the cancel waits for its next request too */
    int requests;
    const atomic_llong *uploaded; /* when set, the cancel waits for the first bytes of an upload too */
    int after_us;
    int64_t at_us;
};

static void *cancel_later(void *arg)
{
    struct canceller *c = arg;

    while (c->peer != NULL && peer_request_count(c->peer) == c->requests)
        usleep(100);
    while (c->uploaded != NULL && atomic_load(c->uploaded) == 0)
        usleep(100);
    usleep((useconds_t)c->after_us);
    c->at_us = now_us();
    sk_call_cancel(c->call);
    return NULL;
}

static ssize_t endless(void *arg, void *out, size_t size)
{
    atomic_fetch_add((atomic_llong *)arg, (long long)size);
    memset(out, 'u', size);
    return (ssize_t)size;
}

/* Runs the request, cancels it after `after_us`, returns the time from cancel to return. */
static int64_t cancelled_after(struct fixture *f, const struct sk_http_request *request, int after_us,
                               enum sk_outcome outcome)
{
    struct canceller c = {.call = &f->call, .peer = f->peer, .after_us = after_us};
    pthread_t thread;
    int64_t returned;
    int rc;

    if (f->peer != NULL)
        c.requests = peer_request_count(f->peer);
    if (request->source == endless)
        c.uploaded = request->source_arg;
    atomic_store(&f->call.cancelled, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, cancel_later, &c), 0);
    rc = send_request(f, request);
    returned = now_us();
    pthread_join(thread, NULL);
    ck_assert_int_eq(rc, -1);
    ck_assert_msg(f->err.code == SK_ERR_CANCELLED, "%s", f->err.message);
    ck_assert_int_eq(f->response.end, SK_HTTP_CANCELLED);
    ck_assert_msg(f->err.outcome == outcome, "%s", f->err.message);
    return returned - c.at_us;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

START_TEST(test_cancel_latency)
{
    struct fixture f;
    int64_t took[100];

    begin(&f, h_stall);
    for (int i = 0; i < 100; i++) {
        struct sk_http_request request = {.method = "POST", .url = f.url, .total_timeout_ms = 20000};
        took[i] = cancelled_after(&f, &request, i * 20, SK_OUTCOME_UNKNOWN);
    }
    qsort(took, 100, sizeof(took[0]), by_value);
    printf("cancel noticed after: median %lld us, p90 %lld us, worst %lld us\n", (long long)took[50],
           (long long)took[90], (long long)took[99]);
    ck_assert_int_lt(took[50], 50000);
    ck_assert_int_lt(took[99], 500000);
    end(&f);
}
END_TEST

START_TEST(test_cancel_before_anything_was_sent)
{
    int port, listener = full_listener(&port);
    struct fixture f;

    begin(&f, NULL);
    snprintf(f.url, sizeof(f.url), "http://127.0.0.1:%d/", port);
    ck_assert_int_lt(
        cancelled_after(&f, &(struct sk_http_request){.method = "POST", .url = f.url}, 50000, SK_OUTCOME_FAILED),
        500000);
    /* A resolver that hangs must not hold the worker either. */
    snprintf(f.url, sizeof(f.url), "http://hang.test:%d/", port);
    ck_assert_int_lt(
        cancelled_after(&f, &(struct sk_http_request){.method = "POST", .url = f.url}, 50000, SK_OUTCOME_FAILED),
        500000);
    /* Cancelled before it began. */
    ck_assert_int_eq(get(&f), -1);
    ck_assert_int_eq(f.err.code, SK_ERR_CANCELLED);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_FAILED);
    close(listener);
    end(&f);
}
END_TEST

START_TEST(test_cancel_of_a_stuck_upload)
{
    /* The accept queue takes the connection, nobody ever reads. */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct fixture f;
    atomic_llong sent = 0;

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    begin(&f, NULL);
    snprintf(f.url, sizeof(f.url), "http://127.0.0.1:%d/", ntohs(address.sin_port));
    struct sk_http_request request = {
        .method = "POST", .url = f.url, .source = endless, .source_arg = &sent, .source_size = -1};
    ck_assert_int_lt(cancelled_after(&f, &request, 100000, SK_OUTCOME_UNKNOWN), 500000);
    ck_assert_int_gt(atomic_load(&sent), 0);
    ck_assert_int_lt(atomic_load(&sent), 64 * 1024 * 1024);
    close(fd);
    end(&f);
}
END_TEST

/* ---- streams ---------------------------------------------------------------------------------------------------- */

struct sink_state {
    struct fixture *f;
    size_t bytes, stop_at;
    int verdict, calls;
};

static int sink(void *arg, const void *data, size_t len)
{
    struct sink_state *s = arg;

    (void)data;
    s->calls++;
    s->bytes += len;
    return s->bytes >= s->stop_at ? s->verdict : SK_HTTP_SINK_MORE;
}

START_TEST(test_sink)
{
    struct sink_state s = {.stop_at = 3 * 1024 * 1024, .verdict = SK_HTTP_SINK_STOP};
    struct fixture f;

    begin(&f, h_gigabyte);
    struct sk_http_request request = {.method = "GET", .url = f.url, .sink = sink, .sink_arg = &s};
    ck_assert_int_eq(send_request(&f, &request), 0);
    ck_assert(f.response.stopped);
    ck_assert_uint_ge(s.bytes, 3 * 1024 * 1024);
    ck_assert_uint_lt(s.bytes, 8 * 1024 * 1024);
    ck_assert_uint_eq(f.response.body_len, 0);

    s = (struct sink_state){.stop_at = 1, .verdict = SK_HTTP_SINK_FAIL};
    ck_assert_int_eq(send_request(&f, &request), -1);
    ck_assert_int_eq(f.response.end, SK_HTTP_ABORTED);
    end(&f);

    /* An error page never reaches the sink. */
    begin(&f, h_page_502);
    s = (struct sink_state){.stop_at = SIZE_MAX};
    request.url = f.url;
    ck_assert_int_eq(send_request(&f, &request), 0);
    ck_assert_int_eq(s.calls, 0);
    ck_assert_str_eq(f.response.body, "<html>Bad Gateway</html>");
    end(&f);
}
END_TEST

static int nested(void *arg, const void *data, size_t len)
{
    struct sink_state *s = arg;
    struct sk_http_response response;
    struct sk_error err;

    (void)data;
    (void)len;
    s->calls = sk_http_request(s->f->client, &s->f->call, &(struct sk_http_request){.method = "GET", .url = s->f->url},
                               &response, &err);
    ck_assert_int_eq(err.code, SK_ERR_INTERNAL);
    sk_http_response_fini(&response);
    return SK_HTTP_SINK_MORE;
}

START_TEST(test_nested_request_is_refused)
{
    struct fixture f;
    struct sink_state s = {.f = &f};

    begin(&f, h_until_close);
    ck_assert_int_eq(
        send_request(&f, &(struct sk_http_request){.method = "GET", .url = f.url, .sink = nested, .sink_arg = &s}), 0);
    ck_assert_int_eq(s.calls, -1);
    ck_assert_int_eq(peer_request_count(f.peer), 1);
    end(&f);
}
END_TEST

struct source_state {
    int64_t left;
    bool fail;
    unsigned char next;
};

static ssize_t source(void *arg, void *out, size_t size)
{
    struct source_state *s = arg;
    unsigned char *p = out;

    if (s->left <= 0)
        return s->fail ? -1 : 0;
    if ((int64_t)size > s->left)
        size = (size_t)s->left;
    for (size_t i = 0; i < size; i++)
        p[i] = s->next++;
    s->left -= (int64_t)size;
    return (ssize_t)size;
}

static void check_counting(const char *body, size_t len, size_t expected)
{
    ck_assert_uint_eq(len, expected);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)body[i] != (unsigned char)i)
            ck_abort_msg("byte %zu is wrong", i);
    }
}

static bool h_count(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    peer_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    return true;
}

START_TEST(test_upload)
{
    const int64_t size = 5 * 1000 * 1000 + 7;
    struct peer_request seen;
    struct fixture f;

    begin(&f, h_count);
    for (int known = 0; known < 2; known++) {
        struct source_state s = {.left = size};
        ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "PUT",
                                                                    .url = f.url,
                                                                    .source = source,
                                                                    .source_arg = &s,
                                                                    .source_size = known ? size : -1}),
                         0);
        ck_assert_int_eq(f.response.sent_bytes, size);
        ck_assert(peer_last(f.peer, "PUT", "", &seen));
        ck_assert_int_eq(seen.chunked, !known);
        check_counting(seen.body, seen.body_len, (size_t)size);
        peer_request_free(&seen);
    }
    /* A source that breaks off, or ends early, is a failed request whose outcome is unknown; the peer sees a cut. */
    for (int how = 0; how < 3; how++) {
        struct source_state s = {.left = 1000 * 1000, .fail = how != 1};
        ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "PUT",
                                                                    .url = f.url,
                                                                    .source = source,
                                                                    .source_arg = &s,
                                                                    .source_size = how == 2 ? -1 : size}),
                         -1);
        ck_assert_int_eq(f.response.end, SK_HTTP_ABORTED);
        ck_assert_int_eq(f.err.outcome, SK_OUTCOME_UNKNOWN);
    }
    ck_assert_int_eq(peer_request_count(f.peer), 2);
    end(&f);
}
END_TEST

START_TEST(test_multipart)
{
    struct source_state s = {.left = 300000};
    const struct sk_http_part parts[] = {
        {.name = "metadata", .file_name = "metadata", .content_type = "application/json", .data = "{}", .len = 2},
        {.name = "file", .file_name = "a \"b\"\r\n;.txt", .source = source, .source_arg = &s, .size = 300000},
    };
    struct peer_request seen;
    struct fixture f;
    char type[256], *data;

    begin(&f, h_count);
    ck_assert_int_eq(
        send_request(&f, &(struct sk_http_request){.method = "POST", .url = f.url, .parts = parts, .part_count = 2}),
        0);
    ck_assert(peer_last(f.peer, "POST", "", &seen));
    ck_assert(!seen.chunked); /* both sizes are known */
    ck_assert(peer_header(&seen, "Content-Type", type, sizeof(type)));
    ck_assert_msg(strncmp(type, "multipart/form-data; boundary=", 30) == 0, "%s", type);
    ck_assert_ptr_nonnull(strstr(
        seen.body, "name=\"metadata\"; filename=\"metadata\"\r\nContent-Type: application/json\r\n\r\n{}\r\n--"));
    data = strstr(seen.body, "name=\"file\"; filename=\"a %22b%22%0D%0A;.txt\"");
    ck_assert_ptr_nonnull(data);
    data = strstr(data, "\r\n\r\n") + 4;
    check_counting(data, 300000, 300000);
    peer_request_free(&seen);

    /* A source of unknown size makes the body chunked; one that fails fails the request. */
    struct sk_http_part one = {.name = "file", .file_name = "f", .source = source, .source_arg = &s, .size = -1};
    s = (struct source_state){.left = 300000};
    ck_assert_int_eq(
        send_request(&f, &(struct sk_http_request){.method = "POST", .url = f.url, .parts = &one, .part_count = 1}), 0);
    ck_assert(peer_last(f.peer, "POST", "", &seen));
    ck_assert(seen.chunked);
    peer_request_free(&seen);
    s = (struct source_state){.left = 3000, .fail = true};
    ck_assert_int_eq(
        send_request(&f, &(struct sk_http_request){.method = "POST", .url = f.url, .parts = &one, .part_count = 1}),
        -1);
    ck_assert_int_eq(f.response.end, SK_HTTP_ABORTED);
    end(&f);
}
END_TEST

static void count_sample(void *arg, const struct sk_http_sample *sample)
{
    int *counts = arg;

    counts[sample->end]++;
    ck_assert_int_ge(sample->duration_us, 0);
    ck_assert_str_eq(sample->method, "GET");
}

START_TEST(test_observer_and_lazy_client)
{
    int counts[SK_HTTP_END_COUNT] = {0};
    const struct sk_http_client_options options = {.observe = count_sample, .observe_arg = counts};
    struct fixture f;

    begin(&f, h_mixed);
    sk_http_client_free(f.client);
    f.client = sk_http_call_client(&f.call, &options);
    ck_assert_ptr_nonnull(f.client);
    ck_assert_ptr_eq(f.client, sk_http_call_client(&f.call, &options));
    for (int i = 0; i < 12; i++)
        (void)!get(&f);
    ck_assert_int_gt(counts[SK_HTTP_DONE], 0);
    ck_assert_int_gt(counts[SK_HTTP_LOST], 0);
    ck_assert_int_eq(counts[SK_HTTP_DONE] + counts[SK_HTTP_LOST], 12);
    sk_http_call_release(&f.call);
    ck_assert_ptr_null(f.call.transport);
    f.client = NULL;
    end(&f);
}
END_TEST

START_TEST(test_request_cost)
{
    struct fixture f;
    int64_t start;
    const int n = 2000;

    begin(&f, h_echo);
    ck_assert_int_eq(get(&f), 0);
    start = now_us();
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(get(&f), 0);
    printf("GET on a kept connection: %.0f us\n", (double)(now_us() - start) / n);
    start = now_us();
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "POST", .url = f.url}), 0);
    printf("POST on a fresh connection: %.0f us\n", (double)(now_us() - start) / n);
    end(&f);
}
END_TEST

SK_CHECK_MAIN("http client", test_request_headers, test_paths_are_sent_as_they_are, test_answer_headers,
              test_keep_alive, test_connection_cache_is_bounded, test_stale_connection_is_repeated_once,
              test_idempotent_post_uses_a_kept_connection, test_post_is_never_repeated, test_descriptors_do_not_leak,
              test_deadline, test_idle_timeout, test_cancel_latency, test_cancel_before_anything_was_sent,
              test_cancel_of_a_stuck_upload, test_sink, test_nested_request_is_refused, test_upload, test_multipart,
              test_observer_and_lazy_client, test_request_cost)
