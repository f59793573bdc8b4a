/* SPDX-License-Identifier: Apache-2.0
 *
 * Asks a server for a sign of life before the library talks to it. nats.c 3.4.1, once it has read INFO, waits for PONG
 * in a loop that ignores its own time-out: it spins, grows by a megabyte a second and holds its lock for as long as the
 * server stays silent. A server that is frozen, or a proxy whose back end is, must not get there: this handshake has
 * one deadline, and the library is called only after it succeeded. */
#include "common/bus/internal.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINE_MAX_BYTES (64 * 1024) /* an INFO line with many peers */

struct server {
    bool tls;
    char host[256], port[8];
    char *user, *password; /* NULL = none */
};

static void server_fini(struct server *server)
{
    free(server->user);
    free(server->password);
}

/* "[nats://][user[:password]@]host[:port]", as the library takes it. */
static int server_parse(const char *url, struct server *out)
{
    const char *host = strstr(url, "://"), *at, *end, *colon;
    size_t host_len;

    memset(out, 0, sizeof(*out));
    out->tls = host != NULL && strncasecmp(url, "tls", 3) == 0;
    host = host != NULL ? host + 3 : url;
    end = host + strcspn(host, "/");
    at = memrchr(host, '@', (size_t)(end - host));
    if (at != NULL) {
        colon = memchr(host, ':', (size_t)(at - host));
        out->user = strndup(host, (size_t)((colon != NULL ? colon : at) - host));
        if (colon != NULL)
            out->password = strndup(colon + 1, (size_t)(at - colon - 1));
        host = at + 1;
    }
    if (*host == '[') {
        const char *bracket = memchr(host, ']', (size_t)(end - host));
        if (bracket == NULL)
            return -1;
        host++;
        host_len = (size_t)(bracket - host);
        colon = bracket[1] == ':' ? bracket + 1 : NULL;
    } else {
        colon = memchr(host, ':', (size_t)(end - host));
        host_len = (size_t)((colon != NULL ? colon : end) - host);
    }
    if (host_len == 0 || host_len >= sizeof(out->host))
        return -1;
    memcpy(out->host, host, host_len);
    snprintf(out->port, sizeof(out->port), "4222");
    if (colon != NULL && end - colon > 1) {
        if ((size_t)(end - colon - 1) >= sizeof(out->port))
            return -1;
        memset(out->port, 0, sizeof(out->port));
        memcpy(out->port, colon + 1, (size_t)(end - colon - 1));
    }
    return 0;
}

static bool ready(struct sk_bus_nats *bus, int fd, short events, int64_t deadline_us)
{
    for (;;) {
        struct pollfd item = {.fd = fd, .events = events};
        int64_t left_ms = (deadline_us - sk_mono_us(bus->sched) + 999) / 1000;
        int rc;
        if (left_ms <= 0)
            return false;
        rc = poll(&item, 1, (int)left_ms);
        if (rc > 0)
            return true;
        if (rc == 0 || errno != EINTR)
            return false;
    }
}

static int open_socket(struct sk_bus_nats *bus, const struct server *server, int64_t deadline_us, const char **why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *list = NULL, *item;
    int fd = -1;

    *why = "the host name cannot be resolved";
    if (getaddrinfo(server->host, server->port, &hints, &list) != 0)
        return -1;
    for (item = list; item != NULL; item = item->ai_next) {
        int error = 0;
        socklen_t len = sizeof(error);
        fd = socket(item->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        *why = "the connection is refused";
        if (connect(fd, item->ai_addr, item->ai_addrlen) == 0)
            break;
        if (errno == EINPROGRESS) {
            if (!ready(bus, fd, POLLOUT, deadline_us))
                *why = "no connection in time";
            else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0)
                break;
        }
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

/* Reads one line (without its end) into `line`; false at the deadline, the end, or when it is too long. */
static bool read_line(struct sk_bus_nats *bus, int fd, char *line, size_t size, int64_t deadline_us)
{
    size_t used = 0;

    for (;;) {
        char *end;
        ssize_t got;
        if (!ready(bus, fd, POLLIN, deadline_us))
            return false;
        /* Looks first and takes only the line: what follows belongs to the next call. */
        got = recv(fd, line + used, size - 1 - used, MSG_PEEK);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return false;
        end = memchr(line + used, '\n', (size_t)got);
        if (end != NULL)
            got = end + 1 - (line + used);
        if (recv(fd, line + used, (size_t)got, 0) != got)
            return false;
        used += (size_t)got;
        line[used] = '\0';
        if (end != NULL)
            return true;
        if (used >= size - 1)
            return false;
    }
}

static bool say_hello(struct sk_bus_nats *bus, int fd, const struct server *server, int64_t deadline_us)
{
    json_t *options = json_pack("{s:b, s:b, s:s, s:s, s:s}", "verbose", 0, "pedantic", 0, "lang", "C", "version",
                                NATS_VERSION_STRING, "name", "sandkeep-probe");
    char *text, *hello = NULL;
    size_t len, sent = 0;
    int rc = -1;

    /* With a credentials file the server answers -ERR to this, which is a sign of life as good as PONG. */
    if (bus->token != NULL)
        (void)json_object_set_new(options, "auth_token", json_string(bus->token));
    else if (server->user != NULL && server->password == NULL)
        (void)json_object_set_new(options, "auth_token", json_string(server->user));
    if (server->user != NULL && server->password != NULL) {
        (void)json_object_set_new(options, "user", json_string(server->user));
        (void)json_object_set_new(options, "pass", json_string(server->password));
    }
    text = json_dumps(options, JSON_COMPACT);
    json_decref(options);
    if (text != NULL)
        rc = asprintf(&hello, "CONNECT %s\r\nPING\r\n", text);
    free(text);
    if (rc < 0)
        return false;
    len = (size_t)rc;
    while (sent < len && ready(bus, fd, POLLOUT, deadline_us)) {
        ssize_t some = send(fd, hello + sent, len - sent, MSG_NOSIGNAL);
        if (some < 0 && errno != EINTR && errno != EAGAIN)
            break;
        if (some > 0)
            sent += (size_t)some;
    }
    free(hello);
    return sent == len;
}

int sk_bus_probe(struct sk_bus_nats *bus, const char *url, int64_t timeout_ms, struct sk_error *err)
{
    int64_t deadline_us = sk_mono_us(bus->sched) + timeout_ms * 1000;
    struct server server;
    char *line = malloc(LINE_MAX_BYTES);
    const char *why = "the URL cannot be used";
    int fd = -1, rc = -1;

    if (server_parse(url, &server) != 0 || line == NULL)
        goto out;
    if (server.tls) {
        rc = 0; /* the library does TLS before anything else, with its own time-outs */
        goto out;
    }
    fd = open_socket(bus, &server, deadline_us, &why);
    if (fd < 0)
        goto out;
    why = "it does not speak NATS";
    if (!read_line(bus, fd, line, LINE_MAX_BYTES, deadline_us) || strncmp(line, "INFO ", 5) != 0)
        goto out;
    if (strstr(line, "\"tls_required\":true") != NULL) {
        rc = 0;
        goto out;
    }
    why = "it took the connection but does not answer";
    if (!say_hello(bus, fd, &server, deadline_us))
        goto out;
    do {
        if (!read_line(bus, fd, line, LINE_MAX_BYTES, deadline_us))
            goto out;
    } while (strncmp(line, "PONG", 4) != 0 && strncmp(line, "-ERR", 4) != 0);
    rc = 0;
out:
    if (fd >= 0)
        close(fd);
    free(line);
    if (rc != 0)
        (void)sk_fail(err, SK_ERR_INTERNAL, "%s:%s: %s", server.host, server.port, why);
    server_fini(&server);
    return rc;
}
