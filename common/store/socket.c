/* SPDX-License-Identifier: Apache-2.0
 *
 * A TCP connection as a stream of the driver. The driver has one of its own, but tells nobody its descriptor, and
 * without the descriptor a blocked call cannot be ended from another thread. This one is plain: non-blocking socket,
 * poll, the time-out that was asked for. A cancel is seen while connecting, too. */
#include "common/store/mongo.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_TYPE        4710 /* the driver only compares it with its own */
#define HANDSHAKE_SLICE_MS 50
#define KEEP_IDLE_S        120
#define KEEP_INTERVAL_S    10
#define KEEP_COUNT         9
#define POLL_MAX           16

struct sk_mongo_socket {
    mongoc_stream_t vtable; /* must be first */
    struct sk_mongo_client *client;
    const atomic_bool *established;
    int64_t opened_ms;
    int fd;
    int last_errno; /* of the last read or write */
};

static struct sk_mongo_socket *self_of(mongoc_stream_t *stream)
{
    return (struct sk_mongo_socket *)stream;
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for `events`; 1 = ready, 0 = time is up, -1 = error. `until` < 0 = no limit. */
static int wait_ready(int fd, short events, int64_t until)
{
    struct pollfd descriptor = {.fd = fd, .events = events};
    int result;

    do {
        int64_t left = until < 0 ? -1 : until - now_ms();

        if (until >= 0 && left < 0)
            left = 0;
        result = poll(&descriptor, 1, left > INT_MAX ? INT_MAX : (int)left);
    } while (result < 0 && errno == EINTR);
    return result > 0 ? 1 : result;
}

/* Has the call in progress ended, by cancel or deadline? */
static bool call_ended(const struct sk_mongo_client *client)
{
    return atomic_load(&client->interrupted) || (client->call != NULL && sk_call_budget_ms(client->call, 1) == 0);
}

/* The same for a connection. Once it is established, a cancel shuts it down and so ends the wait, and the time-out
 * asked for is the call's own. A handshake must see to it by itself: see stream.c. */
static int wait_for(struct sk_mongo_socket *self, short events, int64_t until)
{
    while (!atomic_load(self->established)) {
        int64_t slice = now_ms() + HANDSHAKE_SLICE_MS;
        int ready = wait_ready(self->fd, events, until < 0 || slice < until ? slice : until);

        if (ready != 0)
            return ready;
        if ((until >= 0 && now_ms() >= until) ||
            (call_ended(self->client) && now_ms() - self->opened_ms >= SK_MONGO_HANDSHAKE_MS))
            return 0;
    }
    return wait_ready(self->fd, events, until);
}

static int64_t deadline(int32_t timeout_ms)
{
    return timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
}

static ssize_t fail(struct sk_mongo_socket *self, int code)
{
    self->last_errno = code;
    errno = code;
    return -1;
}

/* Steps over `done` bytes of the vector. */
static void advance(mongoc_iovec_t **iov, size_t *count, size_t done)
{
    while (*count > 0 && done >= (*iov)->iov_len) {
        done -= (*iov)->iov_len;
        ++*iov;
        --*count;
    }
    if (*count > 0) {
        (*iov)->iov_base = (char *)(*iov)->iov_base + done;
        (*iov)->iov_len -= done;
    }
}

static ssize_t socket_writev(mongoc_stream_t *base, mongoc_iovec_t *iov, size_t count, int32_t timeout_ms)
{
    struct sk_mongo_socket *self = self_of(base);
    int64_t until = deadline(timeout_ms);
    mongoc_iovec_t *parts = malloc((count > 0 ? count : 1) * sizeof(*parts)), *part = parts;
    ssize_t total = 0, done;
    int status = 0;

    if (parts == NULL)
        return fail(self, ENOMEM);
    memcpy(parts, iov, count * sizeof(*parts));
    self->last_errno = 0;
    while (count > 0 && status == 0) {
        struct msghdr message = {.msg_iov = part, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX};

        done = sendmsg(self->fd, &message, MSG_NOSIGNAL);
        if (done >= 0) {
            total += done;
            advance(&part, &count, (size_t)done);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int ready = wait_for(self, POLLOUT, until);

            status = ready > 0 ? 0 : ready == 0 ? ETIMEDOUT : errno;
        } else if (errno != EINTR) {
            status = errno;
        }
    }
    free(parts);
    return status != 0 ? fail(self, status) : total;
}

static ssize_t socket_readv(mongoc_stream_t *base, mongoc_iovec_t *iov, size_t count, size_t min_bytes,
                            int32_t timeout_ms)
{
    struct sk_mongo_socket *self = self_of(base);
    int64_t until = deadline(timeout_ms);
    size_t total = 0;

    self->last_errno = 0;
    while (count > 0) {
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX};
        ssize_t done = recvmsg(self->fd, &message, 0);

        if (done > 0) {
            total += (size_t)done;
            advance(&iov, &count, (size_t)done);
            if (total >= min_bytes)
                break;
        } else if (done == 0) {
            return total >= min_bytes && min_bytes > 0 ? (ssize_t)total : fail(self, ECONNRESET);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int ready = wait_for(self, POLLIN, until);

            if (ready <= 0)
                return fail(self, ready == 0 ? ETIMEDOUT : errno);
        } else if (errno != EINTR) {
            return fail(self, errno);
        }
    }
    return (ssize_t)total;
}

static int socket_close(mongoc_stream_t *base)
{
    struct sk_mongo_socket *self = self_of(base);
    int result = 0;

    if (self->fd >= 0)
        result = close(self->fd);
    self->fd = -1;
    return result;
}

static void socket_destroy(mongoc_stream_t *base)
{
    socket_close(base);
    free(self_of(base));
}

static int socket_flush(mongoc_stream_t *base)
{
    (void)base;
    return 0;
}

static int socket_setsockopt(mongoc_stream_t *base, int level, int name, void *value, mongoc_socklen_t length)
{
    return setsockopt(self_of(base)->fd, level, name, value, (socklen_t)length);
}

static bool socket_check_closed(mongoc_stream_t *base)
{
    char byte;
    ssize_t got = recv(self_of(base)->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

static ssize_t socket_poll(mongoc_stream_poll_t *streams, size_t count, int32_t timeout_ms)
{
    struct pollfd descriptors[POLL_MAX];
    int result;

    if (count > POLL_MAX) {
        errno = EINVAL;
        return -1;
    }
    for (size_t i = 0; i < count; i++)
        descriptors[i] = (struct pollfd){.fd = self_of(streams[i].stream)->fd, .events = (short)streams[i].events};
    result = poll(descriptors, count, timeout_ms);
    for (size_t i = 0; result > 0 && i < count; i++)
        streams[i].revents = descriptors[i].revents;
    return result;
}

static bool socket_timed_out(mongoc_stream_t *base)
{
    return self_of(base)->last_errno == ETIMEDOUT;
}

/* Reads and writes wait by themselves: there is never a reason to try again. */
static bool socket_should_retry(mongoc_stream_t *base)
{
    (void)base;
    return false;
}

/* Waits for a connection in progress in short slices; 0 = connected, else an errno. */
static int finish_connect(struct sk_mongo_client *client, int fd, int64_t until)
{
    int code = 0;
    socklen_t size = sizeof(code);

    for (;;) {
        int64_t slice = now_ms() + HANDSHAKE_SLICE_MS;
        int ready = wait_ready(fd, POLLOUT, slice < until ? slice : until);

        if (ready < 0)
            return errno;
        if (ready > 0)
            break;
        if (now_ms() >= until || call_ended(client))
            return ETIMEDOUT;
    }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) == 0 ? code : errno;
}

static void set_option(int fd, int level, int name, int value)
{
    /* Best effort: none of them changes what is right, and a Unix socket has none of them. */
    (void)setsockopt(fd, level, name, &value, sizeof(value));
}

static int connect_to(struct sk_mongo_client *client, int family, const struct sockaddr *address, socklen_t size,
                      int64_t until, int *code)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        *code = errno;
        return -1;
    }
    if (family != AF_UNIX) {
        set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
        set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
        set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_INTERVAL_S);
        set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT);
    }
    *code = connect(fd, address, size) == 0 ? 0 : errno;
    if (*code == EINPROGRESS)
        *code = finish_connect(client, fd, until);
    if (*code != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int connect_unix(struct sk_mongo_client *client, const mongoc_host_list_t *host, int64_t until, int *code)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (!sk_copy(address.sun_path, sizeof(address.sun_path), host->host)) {
        *code = ENAMETOOLONG;
        return -1;
    }
    return connect_to(client, AF_UNIX, (const struct sockaddr *)&address, sizeof(address), until, code);
}

static int connect_tcp(struct sk_mongo_client *client, const mongoc_host_list_t *host, int64_t until, int *code)
{
    struct addrinfo hints = {.ai_family = host->family, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[8];
    int fd = -1;

    snprintf(port, sizeof(port), "%u", host->port);
    *code = EHOSTUNREACH;
    if (getaddrinfo(host->host, port, &hints, &found) != 0)
        return -1;
    for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next)
        fd = connect_to(client, at->ai_family, at->ai_addr, at->ai_addrlen, until, code);
    freeaddrinfo(found);
    return fd;
}

mongoc_stream_t *sk_mongo_socket_open(struct sk_mongo_client *client, const mongoc_host_list_t *host,
                                      int32_t timeout_ms, const atomic_bool *established, int *descriptor,
                                      bson_error_t *error)
{
    int64_t until = now_ms() + timeout_ms;
    struct sk_mongo_socket *self;
    int code = 0;

    *descriptor =
        host->family == AF_UNIX ? connect_unix(client, host, until, &code) : connect_tcp(client, host, until, &code);
    if (*descriptor < 0) {
        bson_set_error(error, MONGOC_ERROR_STREAM, MONGOC_ERROR_STREAM_CONNECT, "cannot connect to %s: errno %d",
                       host->host_and_port, code);
        return NULL;
    }
    self = calloc(1, sizeof(*self));
    if (self == NULL) {
        close(*descriptor);
        bson_set_error(error, MONGOC_ERROR_STREAM, MONGOC_ERROR_STREAM_CONNECT, "out of memory");
        return NULL;
    }
    self->vtable = (mongoc_stream_t){
        .type = SOCKET_TYPE,
        .destroy = socket_destroy,
        .failed = socket_destroy,
        .close = socket_close,
        .flush = socket_flush,
        .writev = socket_writev,
        .readv = socket_readv,
        .setsockopt = socket_setsockopt,
        .check_closed = socket_check_closed,
        .poll = socket_poll,
        .timed_out = socket_timed_out,
        .should_retry = socket_should_retry,
    };
    self->client = client;
    self->established = established;
    self->opened_ms = now_ms();
    self->fd = *descriptor;
    return &self->vtable;
}
