/* SPDX-License-Identifier: Apache-2.0
 *
 * The scriptable peer: accept thread, one thread per connection, everything recorded under one lock. */
#include "tests/conformance/provider/peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 4096
#define RECORDS_MAX     4096
#define HEAD_MAX        65536
#define BODY_MAX        (64 * 1024 * 1024)

struct connection {
    struct peer *peer;
    pthread_t thread;
    int fd;
    int number;
    bool open;
    char *pending; /* bytes read beyond the last request */
    size_t pending_len;
};

struct peer {
    peer_handler handler;
    void *arg;
    int listener, port;
    int stop_pipe[2]; /* closing the write end wakes everybody */
    char url[64];
    pthread_t accept_thread;
    pthread_mutex_t lock;
    struct connection connections[CONNECTIONS_MAX];
    int connection_count, open_count;
    struct peer_request records[RECORDS_MAX];
    int request_count;
};

static void die(const char *what)
{
    perror(what);
    abort();
}

bool peer_write(int fd, const void *data, size_t len)
{
    const char *p = data;

    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

bool peer_text(int fd, const char *text)
{
    return peer_write(fd, text, strlen(text));
}

void peer_answer(int fd, int status, const char *type, const char *body)
{
    char head[512];

    snprintf(head, sizeof(head), "HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", status, type,
             strlen(body));
    if (peer_text(fd, head))
        peer_text(fd, body);
}

void peer_json(int fd, int status, const char *body)
{
    peer_answer(fd, status, "application/json", body);
}

bool peer_stall(struct peer *peer, int fd, int ms)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN | POLLRDHUP}, {.fd = peer->stop_pipe[0], .events = POLLIN}};

    (void)!poll(fds, 2, ms);
    return (fds[0].revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

void peer_drip(struct peer *peer, int fd, const char *text, int interval_ms)
{
    for (; *text != '\0'; text++) {
        struct pollfd stop = {.fd = peer->stop_pipe[0], .events = POLLIN};

        if (!peer_write(fd, text, 1) || poll(&stop, 1, interval_ms) > 0)
            return;
    }
}

void peer_reset_on_close(int fd)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}

/* Appends what one recv brings; 0 = end of stream. */
static ssize_t fill(struct connection *c, char *out, size_t size)
{
    ssize_t n;

    if (c->pending_len > 0) {
        n = (ssize_t)(c->pending_len < size ? c->pending_len : size);
        memcpy(out, c->pending, (size_t)n);
        c->pending_len -= (size_t)n;
        memmove(c->pending, c->pending + n, c->pending_len);
        return n;
    }
    do
        n = recv(c->fd, out, size, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

static void push_back(struct connection *c, const char *data, size_t len)
{
    char *joined = malloc(len + c->pending_len + 1);

    if (joined == NULL)
        die("malloc");
    memcpy(joined, data, len);
    if (c->pending_len > 0)
        memcpy(joined + len, c->pending, c->pending_len);
    free(c->pending);
    c->pending = joined;
    c->pending_len += len;
}

static bool read_line(struct connection *c, char *out, size_t size)
{
    size_t len = 0;

    while (len + 1 < size) {
        char byte;
        if (fill(c, &byte, 1) <= 0)
            return false;
        if (byte == '\n') {
            if (len > 0 && out[len - 1] == '\r')
                len--;
            out[len] = '\0';
            return true;
        }
        out[len++] = byte;
    }
    return false;
}

static bool read_exactly(struct connection *c, struct peer_request *r, size_t len)
{
    if (len > BODY_MAX || r->body_len + len > BODY_MAX)
        return false;
    r->body = realloc(r->body, r->body_len + len + 1);
    if (r->body == NULL)
        die("realloc");
    while (len > 0) {
        ssize_t n = fill(c, r->body + r->body_len, len);
        if (n <= 0)
            return false;
        r->body_len += (size_t)n;
        len -= (size_t)n;
    }
    r->body[r->body_len] = '\0';
    return true;
}

static bool read_chunks(struct connection *c, struct peer_request *r)
{
    char line[256];

    for (;;) {
        size_t size;
        if (!read_line(c, line, sizeof(line)))
            return false;
        size = strtoul(line, NULL, 16);
        if (size == 0)
            break;
        if (!read_exactly(c, r, size) || !read_line(c, line, sizeof(line)))
            return false;
    }
    while (read_line(c, line, sizeof(line))) {
        if (line[0] == '\0')
            return true;
    }
    return false;
}

static bool read_request(struct connection *c, struct peer_request *r)
{
    char *head = malloc(HEAD_MAX);
    char value[64], *end = NULL, *line_end;
    size_t len = 0;
    bool good = false;

    if (head == NULL)
        die("malloc");
    memset(r, 0, sizeof(*r));
    while (len + 1 < HEAD_MAX && end == NULL) {
        ssize_t n = fill(c, head + len, HEAD_MAX - 1 - len);
        if (n <= 0)
            goto out;
        len += (size_t)n;
        head[len] = '\0';
        end = strstr(head, "\r\n\r\n");
    }
    if (end == NULL)
        goto out;
    end += 4;
    if (end < head + len)
        push_back(c, end, (size_t)(head + len - end));
    *end = '\0';
    line_end = strstr(head, "\r\n");
    *line_end = '\0';
    if (sscanf(head, "%15s %4095s", r->method, r->target) != 2)
        goto out;
    r->headers = strdup(line_end + 2);
    r->body = calloc(1, 1);
    if (r->headers == NULL || r->body == NULL)
        die("malloc");
    if (peer_header(r, "Transfer-Encoding", value, sizeof(value))) {
        r->chunked = true;
        good = read_chunks(c, r);
    } else if (peer_header(r, "Content-Length", value, sizeof(value))) {
        good = read_exactly(c, r, strtoul(value, NULL, 10));
    } else {
        good = true;
    }
out:
    free(head);
    if (!good)
        peer_request_free(r);
    return good;
}

static char *copy(const char *data, size_t len)
{
    char *out = malloc(len + 1);

    if (out == NULL)
        die("malloc");
    memcpy(out, data, len);
    out[len] = '\0';
    return out;
}

static void copy_request(struct peer_request *out, const struct peer_request *in)
{
    *out = *in;
    out->headers = copy(in->headers, strlen(in->headers));
    out->body = copy(in->body, in->body_len);
}

void peer_request_free(struct peer_request *request)
{
    free(request->headers);
    free(request->body);
    request->headers = request->body = NULL;
}

bool peer_header(const struct peer_request *request, const char *name, char *out, size_t size)
{
    size_t name_len = strlen(name);

    for (const char *line = request->headers; line != NULL && *line != '\0';) {
        const char *end = strstr(line, "\r\n");
        size_t len = end == NULL ? strlen(line) : (size_t)(end - line);

        if (len > name_len && line[name_len] == ':' && strncasecmp(line, name, name_len) == 0) {
            const char *value = line + name_len + 1;
            while (*value == ' ')
                value++;
            snprintf(out, size, "%.*s", (int)(line + len - value), value);
            return true;
        }
        line = end == NULL ? NULL : end + 2;
    }
    return false;
}

static void *serve(void *arg)
{
    struct connection *c = arg;
    struct peer *peer = c->peer;
    bool keep = true;

    while (keep) {
        struct peer_request r;

        if (!read_request(c, &r))
            break;
        pthread_mutex_lock(&peer->lock);
        r.connection = c->number;
        r.number = ++peer->request_count;
        if (r.number <= RECORDS_MAX)
            copy_request(&peer->records[r.number - 1], &r);
        pthread_mutex_unlock(&peer->lock);
        keep = peer->handler(peer->arg, &r, c->fd);
        peer_request_free(&r);
    }
    pthread_mutex_lock(&peer->lock);
    close(c->fd);
    c->open = false;
    peer->open_count--;
    pthread_mutex_unlock(&peer->lock);
    free(c->pending);
    return NULL;
}

static void *accept_all(void *arg)
{
    struct peer *peer = arg;

    for (;;) {
        struct pollfd fds[2] = {{.fd = peer->listener, .events = POLLIN}, {.fd = peer->stop_pipe[0], .events = POLLIN}};
        int fd, one = 1;

        (void)!poll(fds, 2, -1);
        if (fds[1].revents != 0)
            return NULL;
        fd = accept4(peer->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        pthread_mutex_lock(&peer->lock);
        if (peer->connection_count < CONNECTIONS_MAX) {
            struct connection *c = &peer->connections[peer->connection_count++];
            *c = (struct connection){.peer = peer, .fd = fd, .number = peer->connection_count, .open = true};
            peer->open_count++;
            if (pthread_create(&c->thread, NULL, serve, c) != 0)
                die("pthread_create");
        } else {
            close(fd);
        }
        pthread_mutex_unlock(&peer->lock);
    }
}

static int bind_loopback(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        die("bind");
    *port = ntohs(address.sin_port);
    return fd;
}

struct peer *peer_start(peer_handler handler, void *arg)
{
    struct peer *peer = calloc(1, sizeof(*peer));

    if (peer == NULL)
        die("calloc");
    peer->handler = handler;
    peer->arg = arg;
    pthread_mutex_init(&peer->lock, NULL);
    peer->listener = bind_loopback(&peer->port);
    if (listen(peer->listener, 512) != 0 || pipe2(peer->stop_pipe, O_CLOEXEC) != 0)
        die("listen");
    snprintf(peer->url, sizeof(peer->url), "http://127.0.0.1:%d", peer->port);
    if (pthread_create(&peer->accept_thread, NULL, accept_all, peer) != 0)
        die("pthread_create");
    return peer;
}

int peer_port(const struct peer *peer)
{
    return peer->port;
}

const char *peer_url(const struct peer *peer)
{
    return peer->url;
}

void peer_stop(struct peer *peer)
{
    close(peer->stop_pipe[1]);
    pthread_join(peer->accept_thread, NULL);
    pthread_mutex_lock(&peer->lock);
    for (int i = 0; i < peer->connection_count; i++) {
        if (peer->connections[i].open)
            shutdown(peer->connections[i].fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&peer->lock);
    for (int i = 0; i < peer->connection_count; i++)
        pthread_join(peer->connections[i].thread, NULL);
    for (int i = 0; i < peer->request_count && i < RECORDS_MAX; i++)
        peer_request_free(&peer->records[i]);
    close(peer->listener);
    close(peer->stop_pipe[0]);
    pthread_mutex_destroy(&peer->lock);
    free(peer);
}

static int locked(struct peer *peer, const int *value)
{
    int out;

    pthread_mutex_lock(&peer->lock);
    out = *value;
    pthread_mutex_unlock(&peer->lock);
    return out;
}

int peer_request_count(struct peer *peer)
{
    return locked(peer, &peer->request_count);
}

int peer_connection_count(struct peer *peer)
{
    return locked(peer, &peer->connection_count);
}

int peer_open_count(struct peer *peer)
{
    return locked(peer, &peer->open_count);
}

bool peer_last(struct peer *peer, const char *method, const char *target_prefix, struct peer_request *out)
{
    bool found = false;

    pthread_mutex_lock(&peer->lock);
    for (int i = peer->request_count < RECORDS_MAX ? peer->request_count : RECORDS_MAX; i > 0 && !found; i--) {
        const struct peer_request *r = &peer->records[i - 1];
        if ((method[0] == '\0' || strcmp(method, r->method) == 0) &&
            strncmp(r->target, target_prefix, strlen(target_prefix)) == 0) {
            copy_request(out, r);
            found = true;
        }
    }
    pthread_mutex_unlock(&peer->lock);
    return found;
}

int peer_refused_port(void)
{
    int port, fd = bind_loopback(&port);

    close(fd);
    return port;
}
