/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP client against a peer that lies, cuts, stalls, drips and floods: how each request ends, whether it may have
 * had an effect, and that bounds hold; and requests of which nothing can have been sent. */
#define SK_CHECK_TIMEOUT 60
#include "tests/unit/check_main.h"
#include "tests/unit/http/http_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define RUNNING_ON_VALGRIND 0
#endif

/* ---- hostile answers -------------------------------------------------------------------------------------------- */

static bool h_cut_headers(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 200 OK\r\nContent-Ty");
}

static bool h_cut_chunk(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123");
}

static bool h_no_last_chunk(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n");
}

static bool h_huge_chunk(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\nx");
}

static bool h_not_http(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "SSH-2.0-OpenSSH_9.2p1\r\n\r\n");
}

static bool h_http09(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "<html>hello</html>");
}

static bool h_http9(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n");
}

static bool h_negative_length(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n12345");
}

static bool h_header_flood(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return flood(fd, "HTTP/1.1 200 OK\r\n", "X-Padding: 0123456789\r\n", 1000000);
}

static bool h_endless_header(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return flood(fd, "HTTP/1.1 200 OK\r\nX: ", "0123456789012345", 1000000);
}

static bool h_interim_flood(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return flood(fd, "", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 1000000);
}

static bool h_trailer_flood(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return flood(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
                 "X-Trailer: 0123456789\r\n", 1000000);
}

static bool h_redirect(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n");
}

static bool h_204(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    peer_text(fd, "HTTP/1.1 204 No Content\r\n\r\n");
    return true;
}

static bool h_gigabyte_until_close(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return flood(fd, "HTTP/1.1 200 OK\r\n\r\n", mebibyte, 1024);
}

static bool h_drip_headers(void *a, const struct peer_request *r, int fd)
{
    (void)r;
    peer_drip(peer_of(a), fd, "HTTP/1.1 200 OK\r\nX: 0123456789012345678901234567890123456789\r\n\r\n", 50);
    return false;
}

struct row {
    const char *what;
    peer_handler handler;
    enum sk_http_end end;
    int status;
    enum sk_outcome outcome; /* of a failure */
    enum sk_code code;
};

static const struct row rows[] = {
    {"closed without an answer", h_silent_close, SK_HTTP_LOST, 0, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"reset without an answer", h_reset, SK_HTTP_LOST, 0, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"cut in the headers", h_cut_headers, SK_HTTP_LOST, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"cut in the body", h_cut_body, SK_HTTP_LOST, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"cut in a chunk", h_cut_chunk, SK_HTTP_LOST, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"cut before the last chunk", h_no_last_chunk, SK_HTTP_LOST, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"garbage for a chunk size", h_bad_chunk, SK_HTTP_LOST, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"a chunk size out of range", h_huge_chunk, SK_HTTP_LOST, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"another protocol", h_not_http, SK_HTTP_GARBAGE, 0, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"HTTP/0.9", h_http09, SK_HTTP_GARBAGE, 0, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"HTTP/9.9", h_http9, SK_HTTP_GARBAGE, -1, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"a negative length", h_negative_length, SK_HTTP_GARBAGE, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"headers without end", h_header_flood, SK_HTTP_LIMIT, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"one header without end", h_endless_header, SK_HTTP_LIMIT, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"interim answers without end", h_interim_flood, SK_HTTP_LIMIT, -1, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"trailers without end", h_trailer_flood, SK_HTTP_LIMIT, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"1 GiB", h_gigabyte, SK_HTTP_LIMIT, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"1 GiB without a length", h_gigabyte_until_close, SK_HTTP_LIMIT, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_ERROR},
    {"1 GiB of an error page", h_gigabyte_500, SK_HTTP_DONE, 500, SK_OUTCOME_FAILED, SK_OK},
    {"an error page", h_page_502, SK_HTTP_DONE, 502, SK_OUTCOME_FAILED, SK_OK},
    {"a redirect", h_redirect, SK_HTTP_DONE, 302, SK_OUTCOME_FAILED, SK_OK},
    {"no content", h_204, SK_HTTP_DONE, 204, SK_OUTCOME_FAILED, SK_OK},
    {"no answer", h_stall, SK_HTTP_TIMEOUT, 0, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_TIMEOUT},
    {"a byte now and then", h_drip, SK_HTTP_TIMEOUT, 200, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_TIMEOUT},
    {"a header byte now and then", h_drip_headers, SK_HTTP_TIMEOUT, -1, SK_OUTCOME_UNKNOWN, SK_ERR_PROVIDER_TIMEOUT},
};

START_TEST(test_hostile_answers)
{
    static const char *const methods[] = {"GET", "POST", "DELETE"};
    struct rusage usage;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t m = 0; m < 3; m++) {
            const struct row *row = &rows[i];
            struct fixture f;
            int rc;

            begin(&f, row->handler);
            rc = send_request(&f, &(struct sk_http_request){.method = methods[m],
                                                            .url = f.url,
                                                            .body = m == 1 ? "{}" : NULL,
                                                            .body_len = m == 1 ? 2 : 0,
                                                            .body_max = 4 * 1024 * 1024,
                                                            .total_timeout_ms = 400});
            ck_assert_msg(f.response.end == row->end, "%s (%s): ended as %s: %s", row->what, methods[m],
                          sk_http_end_name(f.response.end), f.err.message);
            ck_assert_int_eq(rc, row->end == SK_HTTP_DONE ? 0 : -1);
            if (row->status >= 0)
                ck_assert_msg(f.response.status == row->status, "%s: status %d", row->what, f.response.status);
            if (rc != 0) {
                ck_assert_msg(f.err.code == row->code, "%s: %s", row->what, f.err.message);
                ck_assert_msg(f.err.outcome == row->outcome, "%s: %s", row->what, f.err.message);
                ck_assert_int_eq(f.err.provider_status, f.response.status);
                ck_assert_ptr_null(strstr(f.err.message, "?"));
            }
            ck_assert_int_eq(peer_request_count(f.peer), 1);
            ck_assert_ptr_nonnull(f.response.body);
            ck_assert_uint_le(f.response.body_len, 4 * 1024 * 1024);
            end(&f);
        }
    }
    getrusage(RUSAGE_SELF, &usage);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_msg(RUNNING_ON_VALGRIND || usage.ru_maxrss < 64 * 1024, "peak memory %ld KiB", usage.ru_maxrss);
#endif
}
END_TEST

START_TEST(test_error_body_is_cut)
{
    struct fixture f;

    begin(&f, h_gigabyte_500);
    ck_assert_int_eq(get(&f), 0);
    ck_assert(f.response.body_cut);
    ck_assert_uint_eq(f.response.body_len, SK_HTTP_ERROR_BODY_MAX);
    end(&f);
}
END_TEST

/* ---- nothing was sent ------------------------------------------------------------------------------------------- */

START_TEST(test_nothing_was_sent)
{
    struct fixture f;
    int port, listener = full_listener(&port);
    const struct {
        const char *what, *before;
        int port;
        enum sk_http_end end;
        enum sk_code code;
    } table[] = {
        {"refused", "http://127.0.0.1:", peer_refused_port(), SK_HTTP_REFUSED, SK_ERR_PROVIDER_ERROR},
        {"unknown host", "http://nowhere.test:", 80, SK_HTTP_REFUSED, SK_ERR_PROVIDER_ERROR},
        {"connect hangs", "http://127.0.0.1:", port, SK_HTTP_TIMEOUT, SK_ERR_PROVIDER_TIMEOUT},
        {"resolver hangs", "http://hang.test:", 80, SK_HTTP_TIMEOUT, SK_ERR_PROVIDER_TIMEOUT},
        {"no URL", "http://:", 80, SK_HTTP_REFUSED, SK_ERR_INVALID_REQUEST},
        {"wrong scheme", "ftp://127.0.0.1:", 80, SK_HTTP_REFUSED, SK_ERR_INVALID_REQUEST},
        {"local file", "file:///etc/passwd?", 0, SK_HTTP_REFUSED, SK_ERR_INVALID_REQUEST},
    };

    begin(&f, NULL);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char url[128];
        int64_t start = now_us();

        snprintf(url, sizeof(url), "%s%d", table[i].before, table[i].port);
        ck_assert_int_eq(
            send_request(&f,
                         &(struct sk_http_request){
                             .method = "POST", .url = url, .body = "{}", .body_len = 2, .connect_timeout_ms = 200}),
            -1);
        ck_assert_msg(f.response.end == table[i].end, "%s: %s %s", table[i].what, sk_http_end_name(f.response.end),
                      f.err.message);
        ck_assert_msg(f.err.code == table[i].code, "%s: %s", table[i].what, f.err.message);
        ck_assert_msg(f.err.outcome == SK_OUTCOME_FAILED, "%s: %s", table[i].what, f.err.message);
        ck_assert_msg(now_us() - start < 2000000, "%s took too long", table[i].what);
    }
    close(listener);
    end(&f);
}
END_TEST

START_TEST(test_tls_handshake_fails_before_anything_is_sent)
{
    struct fixture f;
    char url[64];

    begin(&f, h_echo);
    snprintf(url, sizeof(url), "https://127.0.0.1:%d/", peer_port(f.peer));
    ck_assert_int_eq(
        send_request(&f, &(struct sk_http_request){.method = "POST", .url = url, .connect_timeout_ms = 200}), -1);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_FAILED);
    ck_assert_int_eq(peer_request_count(f.peer), 0);
    end(&f);
}
END_TEST

/* openssl s_server on a free port with a self-signed certificate for 127.0.0.1; the pid of the server. */
static pid_t start_tls(const char *dir, int *port)
{
    char command[1024], accept[32], cert[64], key[64];
    pid_t pid;

    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(key, sizeof(key), "%s/key.pem", dir);
    snprintf(command, sizeof(command),
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1 "
             "-addext subjectAltName=IP:127.0.0.1 -keyout %s -out %s 2>/dev/null",
             key, cert);
    ck_assert_int_eq(system(command), 0);
    *port = peer_refused_port();
    snprintf(accept, sizeof(accept), "127.0.0.1:%d", *port);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        execlp("openssl", "openssl", "s_server", "-accept", accept, "-cert", cert, "-key", key, "-www", (char *)NULL);
        _exit(127);
    }
    return pid;
}

START_TEST(test_tls)
{
    char dir[] = "/tmp/sk-http-tls-XXXXXX", cert[64], url[64], command[64];
    struct sk_http_client_options options = {.ca_file = cert};
    struct sigaction action;
    struct fixture f;
    int port, rc = -1;
    pid_t pid;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    pid = start_tls(dir, &port);
    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(url, sizeof(url), "https://127.0.0.1:%d/", port);
    begin(&f, NULL);
    sk_http_client_free(f.client);
    f.client = sk_http_client_new(&options);
    for (int i = 0; i < 500 && rc != 0; i++) { /* until it listens */
        rc = send_request(&f, &(struct sk_http_request){.method = "GET", .url = url});
        if (rc != 0)
            usleep(10000);
    }
    ck_assert_msg(rc == 0, "%s", f.err.message);
    ck_assert_int_eq(f.response.status, 200);

    /* An authority that is not ours: refused before the request is sent. */
    sk_http_client_free(f.client);
    f.client = sk_http_client_new(NULL);
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "POST", .url = url}), -1);
    ck_assert_int_eq(f.response.end, SK_HTTP_REFUSED);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_FAILED);

    /* SIGPIPE is where it was. */
    ck_assert_int_eq(sigaction(SIGPIPE, NULL, &action), 0);
    ck_assert(action.sa_handler == SIG_DFL);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
    end(&f);
}
END_TEST

START_TEST(test_bad_requests)
{
    struct fixture f;
    struct sk_http_header bad[] = {{"X-A", "a\r\nX-B: b"}, {"X A", "a"}, {"", "a"}, {"X-A:", "a"}, {"X-A", "\x01"}};
    struct sk_http_header many[SK_HTTP_HEADERS_MAX + 1];

    begin(&f, h_echo);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(
            send_request(
                &f, &(struct sk_http_request){.method = "GET", .url = f.url, .headers = &bad[i], .header_count = 1}),
            -1);
        ck_assert_int_eq(f.err.code, SK_ERR_INVALID_REQUEST);
        ck_assert_int_eq(f.err.outcome, SK_OUTCOME_FAILED);
    }
    for (size_t i = 0; i <= SK_HTTP_HEADERS_MAX; i++)
        many[i] = (struct sk_http_header){"X-Many", "1"};
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "GET",
                                                                .url = f.url,
                                                                .headers = many,
                                                                .header_count = SK_HTTP_HEADERS_MAX + 1}),
                     -1);
    ck_assert_int_eq(send_request(&f, &(struct sk_http_request){.method = "TRACE", .url = f.url}), -1);
    ck_assert_int_eq(peer_request_count(f.peer), 0);
    ck_assert_int_eq(get(&f), 0); /* and the client still works */
    end(&f);
}
END_TEST

SK_CHECK_MAIN("http answers", test_hostile_answers, test_error_body_is_cut, test_nothing_was_sent,
              test_tls_handshake_fails_before_anything_is_sent, test_tls, test_bad_requests)
