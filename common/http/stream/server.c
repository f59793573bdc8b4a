/* SPDX-License-Identifier: Apache-2.0
 *
 * The server as a whole: listening, draining, closing. One request at a time per connection: see connection.c. */
#include "common/http/stream/server.h"

#include <stdlib.h>

static void on_connection(uv_stream_t *listener, int status)
{
    struct sk_stream_server *server = listener->data;
    if (status < 0 || server->closing)
        return;
    struct connection *c = sk_connection_new(server);
    if (c == NULL)
        return; /* libuv keeps the connection pending; it is accepted by a later event */
    if (uv_accept(listener, &c->conn.u.stream) != 0)
        sk_connection_cut(c);
    else
        sk_connection_start(c);
}

struct sk_stream_server *sk_stream_server_new(uv_loop_t *loop, const struct sk_stream_limits *limits,
                                              void (*on_request)(void *arg, struct sk_stream *x), void *arg)
{
    struct sk_stream_server *server = calloc(1, sizeof(*server));
    if (server == NULL)
        return NULL;
    server->loop = loop;
    server->limits = *limits;
    server->on_request = on_request;
    server->arg = arg;
    server->listener_closed = true;
    return server;
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct sk_stream_server *server = handle->data;
    server->listener_closed = true;
    sk_server_check_closed(server);
}

static int listen_now(struct sk_stream_server *server)
{
    server->listener.handle.data = server;
    server->listener_closed = false;
    int rc = uv_listen(&server->listener.stream, 1024, on_connection);
    if (rc == 0)
        server->listening = true;
    return rc;
}

int sk_stream_server_listen_tcp(struct sk_stream_server *server, const char *host, int port, int *bound)
{
    struct sockaddr_storage address;
    int rc = uv_ip4_addr(host, port, (struct sockaddr_in *)&address);
    if (rc != 0)
        rc = uv_ip6_addr(host, port, (struct sockaddr_in6 *)&address);
    if (rc != 0)
        return rc;
    uv_tcp_init(server->loop, &server->listener.tcp);
    server->listener.handle.data = server;
    server->listener_closed = false;
    rc = uv_tcp_bind(&server->listener.tcp, (struct sockaddr *)&address, 0);
    if (rc == 0)
        rc = listen_now(server);
    if (rc == 0) {
        int len = sizeof(address);
        rc = uv_tcp_getsockname(&server->listener.tcp, (struct sockaddr *)&address, &len);
        *bound = address.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&address)->sin6_port)
                                               : ntohs(((struct sockaddr_in *)&address)->sin_port);
    }
    if (rc != 0) {
        server->listening = false;
        uv_close(&server->listener.handle, on_listener_closed);
    }
    return rc;
}

int sk_stream_server_listen_fd(struct sk_stream_server *server, int fd)
{
    server->is_pipe = true;
    uv_pipe_init(server->loop, &server->listener.pipe, 0);
    server->listener.handle.data = server;
    server->listener_closed = false;
    int rc = uv_pipe_open(&server->listener.pipe, fd);
    if (rc == 0)
        rc = listen_now(server);
    if (rc != 0)
        uv_close(&server->listener.handle, on_listener_closed);
    return rc;
}

static void stop_listening(struct sk_stream_server *server)
{
    if (!server->listening)
        return;
    server->listening = false;
    uv_close(&server->listener.handle, on_listener_closed);
}

void sk_stream_server_drain(struct sk_stream_server *server, void (*on_drained)(void *arg), void *arg)
{
    server->draining = true;
    server->on_drained = on_drained;
    server->drained_arg = arg;
    stop_listening(server);
    for (struct connection *c = server->first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->phase == PHASE_IDLE)
            sk_connection_cut(c);
    }
    sk_server_check_drained(server);
}

void sk_stream_server_close(struct sk_stream_server *server, void (*on_closed)(void *arg), void *arg)
{
    server->closing = true;
    server->on_closed = on_closed;
    server->closed_arg = arg;
    stop_listening(server);
    for (struct connection *c = server->first, *next; c != NULL; c = next) {
        next = c->next;
        sk_connection_cut(c);
    }
    sk_server_check_closed(server);
}

size_t sk_stream_server_connections(const struct sk_stream_server *server)
{
    return server->count;
}

const struct sk_stream_counters *sk_stream_server_counters(const struct sk_stream_server *server)
{
    return &server->counters;
}
