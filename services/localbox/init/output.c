/* SPDX-License-Identifier: Apache-2.0
 *
 * The output of a command as execd's events: pipes are cut into lines, lines become JSON objects. Memory is bounded by
 * the longest line and by the reader, who slows the command when he is slow. */
#include "services/localbox/init/command.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void sk_event_add(struct event *e, const char *text, size_t len)
{
    if (len == 0 || e->failed)
        return;
    if (e->len + len > e->size) {
        size_t size = (e->len + len) * 2 + 128;
        char *grown = realloc(e->data, size);
        if (grown == NULL) {
            e->failed = true;
            return;
        }
        e->data = grown;
        e->size = size;
    }
    memcpy(e->data + e->len, text, len);
    e->len += len;
}

void sk_event_text(struct event *e, const char *text)
{
    sk_event_add(e, text, strlen(text));
}

void sk_event_escaped(struct event *e, const char *text, size_t len)
{
    char *clean = malloc(len * 3 + 1);
    if (clean == NULL) {
        e->failed = true;
        return;
    }
    size_t n = sk_init_utf8_clean(text, len, clean);
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)clean[i];
        if (ch >= 0x20 && ch != '"' && ch != '\\' && ch != 0x7f)
            continue;
        sk_event_add(e, clean + from, i - from);
        from = i + 1;
        char code[8];
        if (ch == '"' || ch == '\\') {
            code[0] = '\\';
            code[1] = (char)ch;
            sk_event_add(e, code, 2);
        } else if (ch == '\n' || ch == '\t' || ch == '\r') {
            sk_event_add(e, ch == '\n' ? "\\n" : ch == '\t' ? "\\t" : "\\r", 2);
        } else {
            snprintf(code, sizeof(code), "\\u%04x", ch);
            sk_event_add(e, code, 6);
        }
    }
    sk_event_add(e, clean + from, n - from);
    free(clean);
}

void sk_event_send(struct command *c, const char *type, const char *text, size_t len, const char *tail)
{
    if (c->x == NULL)
        return;
    struct event e = {0};
    sk_event_text(&e, "{\"type\":\"");
    sk_event_add(&e, type, strlen(type));
    sk_event_add(&e, "\"", 1);
    if (text != NULL && len > 0) {
        sk_event_text(&e, ",\"text\":\"");
        sk_event_escaped(&e, text, len);
        sk_event_add(&e, "\"", 1);
    }
    char end[64];
    int n = snprintf(end, sizeof(end), ",\"timestamp\":%lld", (long long)sk_init_now_ms());
    sk_event_add(&e, end, (size_t)n);
    if (tail != NULL)
        sk_event_add(&e, tail, strlen(tail));
    sk_event_add(&e, "}\n\n", 3);
    if (e.failed)
        sk_stream_abort(c->x);
    bool more = !e.failed && sk_stream_write(c->x, e.data, e.len);
    free(e.data);
    if (!more) { /* a slow reader slows the command, it does not fill our memory */
        for (int i = 0; i < 2; i++) {
            if (c->taps[i] != NULL && c->taps[i]->reading) {
                c->taps[i]->reading = false;
                uv_read_stop((uv_stream_t *)&c->taps[i]->pipe);
            }
        }
    }
}

static void send_line(struct tap *t)
{
    struct command *c = t->command;
    if (t->len > 0)
        sk_event_send(c, t->type, t->line, t->len, NULL);
    else if (c->kind != KIND_SESSION)
        sk_event_send(c, t->type, "\n", 1, NULL); /* execd's spelling of an empty line */
    t->len = 0;
}

static void take_output(struct tap *t, const char *data, size_t len)
{
    if (t->command == NULL || t->command->x == NULL)
        return;
    for (size_t i = 0; i < len;) {
        size_t n = 0;
        while (i + n < len && data[i + n] != '\n' && data[i + n] != '\r')
            n++;
        if (t->len + n > t->size) {
            size_t size = (t->len + n) * 2;
            char *grown = realloc(t->line, size);
            if (grown == NULL) { /* output with a hole must not look whole */
                sk_stream_abort(t->command->x);
                return;
            }
            t->line = grown;
            t->size = size;
        }
        if (n > 0) {
            memcpy(t->line + t->len, data + i, n);
            t->len += n;
            t->after_cr = false;
        }
        i += n;
        if (i < len) {
            if (!(data[i] == '\n' && t->after_cr)) /* CR LF is one end of line */
                send_line(t);
            t->after_cr = data[i] == '\r';
            i++;
        } else if (t->len >= SK_INIT_LINE_MAX) {
            send_line(t);
        }
    }
}

/* ---- taps ---- */

static char tap_buffer[65536];

static void on_tap_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(tap_buffer, sizeof(tap_buffer));
}

static void on_tap_closed(uv_handle_t *handle)
{
    struct tap *t = handle->data;
    free(t->line);
    free(t);
}

static void on_tap_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    struct tap *t = stream->data;
    if (nread > 0) {
        take_output(t, buf->base, (size_t)nread);
    } else if (nread < 0) {
        t->eof = true;
        t->reading = false;
        uv_read_stop(stream);
        if (t->command == NULL)
            uv_close((uv_handle_t *)&t->pipe, on_tap_closed);
    }
}

void sk_tap_read(struct tap *t)
{
    if (!t->reading && !t->eof) {
        t->reading = true;
        uv_read_start((uv_stream_t *)&t->pipe, on_tap_alloc, on_tap_read);
    }
}

/* Makes a tap; *child_fd is the end for the child (to be closed by the caller). */
struct tap *sk_tap_new(struct command *c, const char *type, int *child_fd)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return NULL;
    struct tap *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        close(fds[0]);
        close(fds[1]);
        return NULL;
    }
    t->command = c;
    t->type = type;
    uv_pipe_init(&sk_init_state.loop, &t->pipe, 0);
    t->pipe.data = t;
    uv_pipe_open(&t->pipe, fds[0]);
    *child_fd = fds[1];
    return t;
}

/* The leader ended: take what is in the pipe now (not more: a grandchild may write for ever), flush the last line. */
void sk_tap_finish(struct tap *t)
{
    uv_os_fd_t fd;
    int waiting = 0;
    if (!t->eof && uv_fileno((uv_handle_t *)&t->pipe, &fd) == 0 && ioctl(fd, FIONREAD, &waiting) == 0) {
        while (waiting > 0) {
            size_t want = (size_t)waiting < sizeof(tap_buffer) ? (size_t)waiting : sizeof(tap_buffer);
            ssize_t n = read(fd, tap_buffer, want);
            if (n <= 0)
                break;
            take_output(t, tap_buffer, (size_t)n);
            waiting -= (int)n;
        }
    }
    if (t->len > 0)
        send_line(t);
    t->command = NULL;
    if (t->eof)
        uv_close((uv_handle_t *)&t->pipe, on_tap_closed);
    else
        sk_tap_read(t);
}
