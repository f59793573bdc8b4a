/* SPDX-License-Identifier: Apache-2.0
 *
 * One stream socket: reads into a buffer shared by the thread, a write queue with a mark and a stall timer, and one
 * place where all of its handles are closed. Failures of a write are reported from the loop, never from inside a call.
 */
#include "common/http/stream/internal.h"

#include <stdlib.h>
#include <string.h>

struct write_req {
    uv_write_t req;
    struct sk_conn *conn;
    size_t len;
    char data[];
};

static __thread char read_buffer[65536]; /* filled and consumed within one read callback */

static void on_handle_closed(uv_handle_t *handle)
{
    struct sk_conn *c = handle->data;
    if (--c->handles == 0)
        c->ops->on_closed(c);
}

static void on_read_timer(uv_timer_t *timer)
{
    struct sk_conn *c = timer->data;
    if (!c->closing)
        c->ops->on_read_timeout(c);
}

static void on_write_timer(uv_timer_t *timer)
{
    struct sk_conn *c = timer->data;
    if (!c->closing)
        c->ops->on_error(c, UV_ETIMEDOUT);
}

static void on_kick_timer(uv_timer_t *timer)
{
    struct sk_conn *c = timer->data;
    if (c->closing)
        return;
    if (c->failed)
        c->ops->on_error(c, c->failed);
    else
        c->ops->on_kick(c);
}

void sk_conn_init(struct sk_conn *c, uv_loop_t *loop, const struct sk_conn_ops *ops, size_t high, int write_ms)
{
    c->ops = ops;
    c->high = high;
    c->write_ms = write_ms;
    c->handles = 4;
    c->u.handle.data = c;
    uv_timer_init(loop, &c->read_timer);
    uv_timer_init(loop, &c->write_timer);
    uv_timer_init(loop, &c->kick_timer);
    c->read_timer.data = c->write_timer.data = c->kick_timer.data = c;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(read_buffer, sizeof(read_buffer));
}

static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    struct sk_conn *c = stream->data;
    if (c->closing || nread == 0)
        return;
    if (nread == UV_EOF) {
        c->reading = false;
        uv_read_stop(stream);
        c->ops->on_eof(c);
    } else if (nread < 0) {
        c->reading = false;
        uv_read_stop(stream);
        c->ops->on_error(c, (int)nread);
    } else {
        if (c->bytes_in != NULL)
            *c->bytes_in += (uint64_t)nread;
        c->ops->on_read(c, buf->base, (size_t)nread);
    }
}

void sk_conn_read(struct sk_conn *c, bool on)
{
    if (c->closing || on == c->reading)
        return;
    c->reading = on;
    if (on)
        uv_read_start(&c->u.stream, on_alloc, on_read);
    else
        uv_read_stop(&c->u.stream);
}

size_t sk_conn_queued(const struct sk_conn *c)
{
    return uv_stream_get_write_queue_size(&c->u.stream);
}

static void stall_timer(struct sk_conn *c)
{
    if (sk_conn_queued(c) > 0 && c->write_ms > 0)
        uv_timer_start(&c->write_timer, on_write_timer, (uint64_t)c->write_ms, 0);
    else
        uv_timer_stop(&c->write_timer);
}

static void on_written(uv_write_t *req, int status)
{
    struct write_req *w = (struct write_req *)req;
    struct sk_conn *c = w->conn;
    if (status == 0 && c->bytes_out != NULL)
        *c->bytes_out += w->len;
    free(w);
    if (c->closing)
        return;
    if (status < 0) {
        c->ops->on_error(c, status);
        return;
    }
    stall_timer(c);
    if (c->over && sk_conn_queued(c) <= c->high / 2) {
        c->over = false;
        c->ops->on_drain(c);
    }
}

static int write_failed(struct sk_conn *c, int error)
{
    if (!c->failed)
        c->failed = error;
    sk_conn_kick(c);
    return error;
}

int sk_conn_write(struct sk_conn *c, const void *data, size_t len)
{
    if (c->closing || c->failed || len == 0)
        return c->failed;
    const char *p = data;
    if (sk_conn_queued(c) == 0 && uv_is_writable(&c->u.stream)) {
        uv_buf_t direct = uv_buf_init((char *)p, (unsigned)(len > (1u << 30) ? (1u << 30) : len));
        int sent = uv_try_write(&c->u.stream, &direct, 1);
        if (sent < 0 && sent != UV_EAGAIN)
            return write_failed(c, sent);
        if (sent > 0) {
            p += sent;
            len -= (size_t)sent;
            if (c->bytes_out != NULL)
                *c->bytes_out += (uint64_t)sent;
        }
        if (len == 0)
            return 0;
    }
    struct write_req *w = malloc(sizeof(*w) + len);
    if (w == NULL)
        return write_failed(c, UV_ENOMEM);
    w->conn = c;
    w->len = len;
    memcpy(w->data, p, len);
    uv_buf_t buf = uv_buf_init(w->data, (unsigned)len);
    int rc = uv_write(&w->req, &c->u.stream, &buf, 1, on_written);
    if (rc < 0) { /* after a read error libuv refuses without ever calling back */
        free(w);
        return write_failed(c, rc);
    }
    if (sk_conn_queued(c) > c->high)
        c->over = true;
    if (!uv_is_active((uv_handle_t *)&c->write_timer))
        stall_timer(c);
    return 0;
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct sk_conn *c = req->data;
    if (c->closing)
        return;
    if (status < 0)
        c->ops->on_error(c, status);
    else
        c->ops->on_flushed(c);
}

void sk_conn_shutdown(struct sk_conn *c)
{
    if (c->closing || c->shutting || c->failed)
        return;
    c->shutting = true;
    c->shutdown_req.data = c;
    int rc = uv_shutdown(&c->shutdown_req, &c->u.stream, on_shutdown);
    if (rc < 0)
        write_failed(c, rc);
}

void sk_conn_timeout(struct sk_conn *c, int ms)
{
    if (c->closing)
        return;
    if (ms > 0)
        uv_timer_start(&c->read_timer, on_read_timer, (uint64_t)ms, 0);
    else
        uv_timer_stop(&c->read_timer);
}

void sk_conn_kick(struct sk_conn *c)
{
    if (!c->closing && !uv_is_active((uv_handle_t *)&c->kick_timer))
        uv_timer_start(&c->kick_timer, on_kick_timer, 0, 0);
}

void sk_conn_close(struct sk_conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    c->reading = false;
    uv_close(&c->u.handle, on_handle_closed);
    uv_close((uv_handle_t *)&c->read_timer, on_handle_closed);
    uv_close((uv_handle_t *)&c->write_timer, on_handle_closed);
    uv_close((uv_handle_t *)&c->kick_timer, on_handle_closed);
}

bool sk_pending_add(struct sk_pending *p, const char *data, size_t len)
{
    if (p->offset > 0) {
        memmove(p->data, p->data + p->offset, p->len);
        p->offset = 0;
    }
    if (p->len + len > p->size) {
        size_t size = p->len + len;
        char *grown = realloc(p->data, size);
        if (grown == NULL)
            return false;
        p->data = grown;
        p->size = size;
    }
    memcpy(p->data + p->len, data, len);
    p->len += len;
    return true;
}

void sk_pending_take(struct sk_pending *p, size_t len)
{
    p->offset += len;
    p->len -= len;
    if (p->len == 0)
        sk_pending_free(p);
}

void sk_pending_free(struct sk_pending *p)
{
    free(p->data);
    *p = (struct sk_pending){0};
}
