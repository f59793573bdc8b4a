/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared parts of the HTTP client's tests. */
#include "tests/unit/http/http_fixture.h"

#include <arpa/inet.h>
#include <check.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char block[MEBIBYTE + 1];
const char *const mebibyte = block;

/* libcurl's resolver thread calls this one: the executable's symbol wins. "hang.test" hangs until the process ends. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

    if (node != NULL && strcmp(node, "hang.test") == 0)
        pause();
    if (node != NULL && strcmp(node, "nowhere.test") == 0)
        return EAI_NONAME;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(node, service, hints, out);
}

int64_t now_us(void)
{
    return sk_mono_us(&sk_sched_system);
}

void begin(struct fixture *f, peer_handler handler)
{
    memset(block, 'm', MEBIBYTE);
    memset(f, 0, sizeof(*f));
    sk_call_init(&f->call, &sk_sched_system);
    f->client = sk_http_client_new(NULL);
    ck_assert_ptr_nonnull(f->client);
    if (handler != NULL) {
        f->peer = peer_start(handler, f);
        snprintf(f->url, sizeof(f->url), "%s/x", peer_url(f->peer));
    }
}

void end(struct fixture *f)
{
    sk_http_response_fini(&f->response);
    sk_http_client_free(f->client);
    if (f->peer != NULL)
        peer_stop(f->peer);
}

int send_request(struct fixture *f, const struct sk_http_request *request)
{
    sk_http_response_fini(&f->response);
    sk_error_clear(&f->err);
    return sk_http_request(f->client, &f->call, request, &f->response, &f->err);
}

int get(struct fixture *f)
{
    return send_request(f, &(struct sk_http_request){.method = "GET", .url = f->url});
}

struct peer *peer_of(void *arg)
{
    return ((struct fixture *)arg)->peer;
}

bool flood(int fd, const char *head, const char *unit, size_t times)
{
    peer_text(fd, head);
    while (times-- > 0) {
        if (!peer_text(fd, unit))
            break;
    }
    return false;
}

bool say(int fd, const char *text)
{
    peer_text(fd, text);
    return false;
}

bool h_silent_close(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    (void)fd;
    return false;
}

bool h_reset(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    peer_reset_on_close(fd);
    return false;
}

bool h_cut_body(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345");
}

bool h_bad_chunk(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n12345\r\n0\r\n\r\n");
}

bool h_page_502(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    peer_answer(fd, 502, "text/html", "<html>Bad Gateway</html>");
    return true;
}

bool h_until_close(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return say(fd, "HTTP/1.1 200 OK\r\n\r\nabc");
}

bool h_stall(void *a, const struct peer_request *r, int fd)
{
    (void)r;
    peer_stall(peer_of(a), fd, -1);
    return false;
}

bool h_gigabyte(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return flood(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", mebibyte, 1024);
}

bool h_gigabyte_500(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    (void)r;
    return flood(fd, "HTTP/1.1 500 Oh\r\nContent-Length: 1073741824\r\n\r\n", mebibyte, 1024);
}

bool h_drip(void *a, const struct peer_request *r, int fd)
{
    (void)r;
    peer_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
    peer_drip(peer_of(a), fd, "0123456789012345678901234567890123456789", 50);
    return false;
}

bool h_echo(void *a, const struct peer_request *r, int fd)
{
    (void)a;
    peer_answer(fd, 200, "text/plain", r->body);
    return true;
}

int full_listener(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    ck_assert_int_eq(listen(fd, 0), 0);
    for (int i = 0; i < 4; i++) {
        int waiting = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!connect(waiting, (struct sockaddr *)&address, sizeof(address));
    }
    usleep(20000); /* not synchronisation: lets the kernel finish its own handshakes, else the test is merely easier */
    *port = ntohs(address.sin_port);
    return fd;
}
