/* SPDX-License-Identifier: Apache-2.0
 *
 * The control connection to a sandbox's init: one long-lived link per box for orders (answered in order) and for
 * noticing its end, and short connections that bring a socket to a port inside the sandbox. */
#include "services/localbox/localbox.h"

#include "common/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINK_LINE_MAX 8192

struct order {
    lb_order_fn done;
    void *arg;
    struct order *next;
};

struct lb_link {
    uv_pipe_t pipe;
    uv_timer_t timer;
    uv_connect_t connect_req;
    struct lb_box *box; /* NULL once closed */
    struct order *first, *last;
    char line[LINK_LINE_MAX];
    size_t len;
    int handles;
    bool connected, attached, closing;
    void (*on_attached)(struct lb_box *box, bool ok, void *arg);
    void *arg;
};

static void socket_path(char *out, size_t size, const char *id, const char *name)
{
    snprintf(out, size, "/proc/self/fd/%d/sandboxes/%s/%s", lb.data_fd, id, name);
}

static void on_link_closed(uv_handle_t *handle)
{
    struct lb_link *link = handle->data;
    if (--link->handles == 0)
        free(link);
}

static void link_shut(struct lb_link *link)
{
    if (link->closing)
        return;
    link->closing = true;
    uv_close((uv_handle_t *)&link->pipe, on_link_closed);
    uv_close((uv_handle_t *)&link->timer, on_link_closed);
    struct lb_box *box = link->box;
    link->box = NULL;
    if (box != NULL)
        box->link = NULL;
    struct order *order = link->first;
    link->first = link->last = NULL;
    while (order != NULL) {
        struct order *next = order->next;
        if (order->done != NULL)
            order->done(order->arg, NULL);
        free(order);
        order = next;
    }
}

/* The connection is gone: either init ended or it is unwell; the box's state decides. */
static void link_lost(struct lb_link *link)
{
    struct lb_box *box = link->box;
    bool attached = link->attached;
    void (*told)(struct lb_box *, bool, void *) = link->on_attached;
    link->on_attached = NULL;
    link_shut(link);
    if (box == NULL)
        return;
    if (told != NULL)
        told(box, false, link->arg);
    else if (attached)
        lb_box_ended(box);
}

static void handle_line(struct lb_link *link, const char *text, size_t len)
{
    json_t *json = json_loadb(text, len, 0, NULL);
    struct lb_box *box = link->box;
    if (json == NULL || box == NULL) {
        json_decref(json);
        return;
    }
    if (json_object_get(json, "event") != NULL || json_object_get(json, "reason") != NULL) {
        json_decref(json); /* news; an end is noticed by the connection's end and read from the exit report */
        return;
    }
    if (!link->attached) {
        const char *nonce = json_string_value(json_object_get(json, "nonce"));
        if (nonce == NULL || strcmp(nonce, box->nonce) != 0) {
            json_decref(json);
            link_lost(link);
            return;
        }
        link->attached = true;
        uv_timer_stop(&link->timer);
        box->entrypoint_missing = json_is_true(json_object_get(json, "entrypoint_missing"));
        /* Else a limit that a daemon before us found passed would hold for ever. */
        box->storage_full = json_is_true(json_object_get(json, "storage_full"));
        if (json_is_true(json_object_get(json, "paused")) && box->state == LB_RUNNING)
            box->state = LB_PAUSED;
        void (*told)(struct lb_box *, bool, void *) = link->on_attached;
        link->on_attached = NULL;
        if (told != NULL)
            told(box, true, link->arg);
        json_decref(json);
        return;
    }
    struct order *order = link->first;
    if (order != NULL) {
        link->first = order->next;
        if (link->first == NULL) {
            link->last = NULL;
            uv_timer_stop(&link->timer);
        }
        if (order->done != NULL)
            order->done(order->arg, json);
        free(order);
    }
    json_decref(json);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct lb_link *link = handle->data;
    (void)suggested;
    *buf = uv_buf_init(link->line + link->len, (unsigned)(sizeof(link->line) - link->len));
}

static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    struct lb_link *link = stream->data;
    (void)buf;
    if (link->closing || nread == 0)
        return;
    if (nread < 0) {
        link_lost(link);
        return;
    }
    link->len += (size_t)nread;
    char *end;
    while (!link->closing && (end = memchr(link->line, '\n', link->len)) != NULL) {
        size_t len = (size_t)(end - link->line);
        handle_line(link, link->line, len);
        link->len -= len + 1;
        memmove(link->line, end + 1, link->len);
    }
    if (!link->closing && link->len == sizeof(link->line))
        link_lost(link);
}

static void on_timer(uv_timer_t *timer)
{
    struct lb_link *link = timer->data;
    if (link->box != NULL)
        link->box->link_late = true;
    link_lost(link);
}

/* A line is far smaller than a socket buffer: when it does not fit, init is unwell and the link is given up. */
static void send_text(struct lb_link *link, const char *text)
{
    uv_buf_t buf = uv_buf_init((char *)text, (unsigned)strlen(text));
    if (uv_try_write((uv_stream_t *)&link->pipe, &buf, 1) != (int)buf.len)
        uv_timer_start(&link->timer, on_timer, 0, 0);
}

static void on_connect(uv_connect_t *req, int status)
{
    struct lb_link *link = req->data;
    if (link->closing)
        return;
    if (status < 0) {
        link_lost(link);
        return;
    }
    link->connected = true;
    uv_read_start((uv_stream_t *)&link->pipe, on_alloc, on_read);
    send_text(link, "{\"op\":\"attach\"}\n");
}

void lb_link_open(struct lb_box *box, void (*attached)(struct lb_box *box, bool ok, void *arg), void *arg)
{
    struct lb_link *link = calloc(1, sizeof(*link));
    char path[160];
    if (link == NULL) {
        attached(box, false, arg);
        return;
    }
    link->box = box;
    link->on_attached = attached;
    link->arg = arg;
    link->handles = 2;
    box->link = link;
    box->link_late = false;
    uv_pipe_init(lb.loop, &link->pipe, 0);
    uv_timer_init(lb.loop, &link->timer);
    link->pipe.data = link->timer.data = link->connect_req.data = link;
    uv_timer_start(&link->timer, on_timer, LB_ATTACH_MS, 0);
    socket_path(path, sizeof(path), box->id, "control.sock");
    uv_pipe_connect(&link->connect_req, &link->pipe, path, on_connect);
}

void lb_link_order(struct lb_box *box, const char *line, lb_order_fn done, void *arg)
{
    struct lb_link *link = box->link;
    struct order *order = link != NULL && link->attached ? calloc(1, sizeof(*order)) : NULL;
    if (order == NULL) {
        if (done != NULL)
            done(arg, NULL);
        return;
    }
    order->done = done;
    order->arg = arg;
    if (link->last != NULL)
        link->last->next = order;
    else
        link->first = order;
    link->last = order;
    uv_timer_start(&link->timer, on_timer, LB_ORDER_MS, 0);
    send_text(link, line);
}

void lb_link_close(struct lb_box *box)
{
    struct lb_link *link = box->link;
    if (link == NULL)
        return;
    link->on_attached = NULL;
    link_shut(link);
}

/* ---- a socket from inside ---- */

struct lb_connect {
    uv_pipe_t pipe;
    uv_timer_t timer;
    uv_connect_t connect_req;
    uv_tcp_t tcp;
    char line[512];
    size_t len;
    int port, handles;
    bool closing, tcp_open;
    void (*done)(void *arg, int fd);
    void *arg;
};

static void on_connect_closed(uv_handle_t *handle)
{
    struct lb_connect *c = handle->data;
    if (--c->handles == 0)
        free(c);
}

static void connect_shut(struct lb_connect *c)
{
    if (c->closing)
        return;
    c->closing = true;
    uv_close((uv_handle_t *)&c->pipe, on_connect_closed);
    uv_close((uv_handle_t *)&c->timer, on_connect_closed);
    if (c->tcp_open)
        uv_close((uv_handle_t *)&c->tcp, on_connect_closed);
}

static void connect_result(struct lb_connect *c, int fd)
{
    void (*done)(void *, int) = c->done;
    void *arg = c->arg;
    c->done = NULL;
    connect_shut(c);
    if (done != NULL)
        done(arg, fd);
    else if (fd >= 0)
        close(fd);
}

static void on_socket_line(struct lb_connect *c)
{
    json_t *json = json_loadb(c->line, c->len, 0, NULL);
    bool ok = json_is_true(json_object_get(json, "ok"));
    const char *error = json_string_value(json_object_get(json, "error"));
    int fd = error != NULL && strcmp(error, "ETIMEDOUT") == 0 ? UV_ETIMEDOUT : UV_ECONNREFUSED;
    if (ok && uv_pipe_pending_count(&c->pipe) > 0 && uv_pipe_pending_type(&c->pipe) == UV_TCP) {
        uv_tcp_init(lb.loop, &c->tcp);
        c->tcp.data = c;
        c->tcp_open = true;
        c->handles++;
        uv_os_fd_t raw;
        if (uv_accept((uv_stream_t *)&c->pipe, (uv_stream_t *)&c->tcp) == 0 &&
            uv_fileno((uv_handle_t *)&c->tcp, &raw) == 0)
            fd = fcntl(raw, F_DUPFD_CLOEXEC, 3);
    }
    json_decref(json);
    connect_result(c, fd);
}

static void on_socket_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct lb_connect *c = handle->data;
    (void)suggested;
    *buf = uv_buf_init(c->line + c->len, (unsigned)(sizeof(c->line) - c->len));
}

static void on_socket_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    struct lb_connect *c = stream->data;
    (void)buf;
    if (c->closing || nread == 0)
        return;
    if (nread < 0) {
        connect_result(c, UV_ECONNREFUSED);
        return;
    }
    c->len += (size_t)nread;
    if (memchr(c->line, '\n', c->len) != NULL)
        on_socket_line(c);
    else if (c->len == sizeof(c->line))
        connect_result(c, UV_EPROTO);
}

static void on_socket_connect(uv_connect_t *req, int status)
{
    struct lb_connect *c = req->data;
    if (c->closing)
        return;
    char text[64];
    uv_buf_t buf =
        uv_buf_init(text, (unsigned)snprintf(text, sizeof(text), "{\"op\":\"connect\",\"port\":%d}\n", c->port));
    if (status < 0 || uv_try_write((uv_stream_t *)&c->pipe, &buf, 1) != (int)buf.len)
        connect_result(c, status < 0 ? status : UV_EPIPE);
    else
        uv_read_start((uv_stream_t *)&c->pipe, on_socket_alloc, on_socket_read);
}

static void on_socket_timeout(uv_timer_t *timer)
{
    connect_result(timer->data, UV_ETIMEDOUT);
}

struct lb_connect *lb_connect_open(const struct lb_box *box, int port, void (*done)(void *arg, int fd), void *arg)
{
    struct lb_connect *c = calloc(1, sizeof(*c));
    char path[160];
    if (c == NULL)
        return NULL;
    c->port = port;
    c->done = done;
    c->arg = arg;
    c->handles = 2;
    uv_pipe_init(lb.loop, &c->pipe, 1);
    uv_timer_init(lb.loop, &c->timer);
    c->pipe.data = c->timer.data = c->connect_req.data = c;
    uv_timer_start(&c->timer, on_socket_timeout, LB_ORDER_MS + 1000, 0);
    socket_path(path, sizeof(path), box->id, "control.sock");
    uv_pipe_connect(&c->connect_req, &c->pipe, path, on_socket_connect);
    return c;
}

void lb_connect_cancel(struct lb_connect *c)
{
    c->done = NULL;
    connect_shut(c);
}
