/* SPDX-License-Identifier: Apache-2.0
 *
 * The event stream parser. One buffer holds the finished data lines of the event followed by the line under
 * construction: a finished `data:` line is moved over its own field name, so nothing is ever copied twice. */
#include "common/http/sse.h"

#include <stdlib.h>
#include <string.h>

#define KIND_BYTES    16           /* of a line: enough to see of what kind it is */
#define KEEP_CAPACITY (256 * 1024) /* a larger buffer is given back after its event */

void sk_sse_init(struct sk_sse *sse, size_t event_max, enum sk_sse_oversize oversize, sk_sse_handler handler, void *arg)
{
    memset(sse, 0, sizeof(*sse));
    sse->handler = handler;
    sse->arg = arg;
    sse->event_max = event_max == 0 ? SK_SSE_EVENT_MAX : event_max;
    sse->oversize = oversize;
    sse->retry_ms = -1;
}

void sk_sse_fini(struct sk_sse *sse)
{
    free(sse->buffer);
    memset(sse, 0, sizeof(*sse));
}

static int fail(struct sk_sse *sse, struct sk_error *err)
{
    sse->failed = true;
    if (err != NULL)
        *err = sse->error;
    return -1;
}

/* Makes room for `more` bytes and a NUL. */
static bool reserve(struct sk_sse *sse, size_t more)
{
    size_t need = sse->len + more + 1;
    size_t capacity = sse->capacity == 0 ? 1024 : sse->capacity;
    char *grown;

    if (need <= sse->capacity)
        return true;
    while (capacity < need)
        capacity *= 2;
    grown = realloc(sse->buffer, capacity);
    if (grown == NULL)
        return false;
    sse->buffer = grown;
    sse->capacity = capacity;
    return true;
}

static bool is_bare(const char *line, size_t len)
{
    return len > 0 && (line[0] == '{' || line[0] == '[');
}

/* Hands one event over; the buffer holds at least one byte behind data + len. */
static void dispatch(struct sk_sse *sse, struct sk_sse_event *event)
{
    event->name = event->bare ? "" : sse->name;
    event->id = sse->id;
    if (event->data == NULL)
        event->data = "";
    if (event->oversize)
        sse->oversize_count++;
    if (sse->handler(sse->arg, event) != 0)
        sse->stopped = true;
}

static void dispatch_data(struct sk_sse *sse, bool unterminated)
{
    struct sk_sse_event event = {.unterminated = unterminated};

    if (sse->event_skip) {
        event.oversize = true;
        dispatch(sse, &event);
    } else if (sse->has_data) {
        if (sse->buffer != NULL) {
            sse->buffer[sse->data_len] = '\0';
            event.data = sse->buffer;
        }
        event.len = sse->data_len;
        dispatch(sse, &event);
    }
    sse->has_data = sse->event_skip = false;
    sse->name[0] = '\0';
    sse->data_len = sse->line = sse->len = 0;
    if (sse->capacity > KEEP_CAPACITY) {
        free(sse->buffer);
        sse->buffer = NULL;
        sse->capacity = 0;
    }
}

static void dispatch_bare(struct sk_sse *sse, const char *line, size_t len, bool unterminated, bool oversize)
{
    struct sk_sse_event event = {.bare = true, .unterminated = unterminated, .oversize = oversize};

    if (!oversize) {
        sse->buffer[sse->len] = '\0';
        event.data = line;
        event.len = len;
    }
    dispatch(sse, &event);
}

static void copy_value(char out[SK_SSE_NAME_MAX], const char *value, size_t len)
{
    if (len >= SK_SSE_NAME_MAX)
        len = SK_SSE_NAME_MAX - 1;
    memcpy(out, value, len);
    out[len] = '\0';
}

static void set_retry(struct sk_sse *sse, const char *value, size_t len)
{
    int64_t ms = 0;

    if (len == 0 || len > 12)
        return;
    for (size_t i = 0; i < len; i++) {
        if (value[i] < '0' || value[i] > '9')
            return;
        ms = ms * 10 + (value[i] - '0');
    }
    sse->retry_ms = ms;
}

static bool name_is(const char *name, size_t len, const char *expected)
{
    return strlen(expected) == len && memcmp(name, expected, len) == 0;
}

/* One `name:value` line (WHATWG: a missing colon means an empty value; one space after the colon is dropped). */
static void take_field(struct sk_sse *sse, char *line, size_t len)
{
    char *colon = memchr(line, ':', len);
    size_t name_len = colon == NULL ? len : (size_t)(colon - line);
    char *value = colon == NULL ? line + len : colon + 1;
    size_t value_len = (size_t)(line + len - value);

    if (value_len > 0 && *value == ' ') {
        value++;
        value_len--;
    }
    if (name_is(line, name_len, "data")) {
        if (sse->event_skip)
            return;
        if (sse->has_data)
            sse->buffer[sse->data_len++] = '\n'; /* "data" is longer than the LF: there is room */
        memmove(sse->buffer + sse->data_len, value, value_len);
        sse->data_len += value_len;
        sse->has_data = true;
    } else if (name_is(line, name_len, "event")) {
        copy_value(sse->name, value, value_len);
    } else if (name_is(line, name_len, "id")) {
        if (memchr(value, '\0', value_len) == NULL)
            copy_value(sse->id, value, value_len);
    } else if (name_is(line, name_len, "retry")) {
        set_retry(sse, value, value_len);
    }
}

static void strip_bom(struct sk_sse *sse)
{
    if (!sse->begun && sse->len >= 3 && memcmp(sse->buffer, "\xef\xbb\xbf", 3) == 0) {
        memmove(sse->buffer, sse->buffer + 3, sse->len - 3);
        sse->len -= 3;
    }
    sse->begun = true;
}

static void end_of_line(struct sk_sse *sse)
{
    char *line;
    size_t len;

    if (sse->line_skip) {
        sse->line_skip = false;
        sse->len = sse->line;
        return;
    }
    strip_bom(sse);
    len = sse->len - sse->line;
    if (len == 0) {
        dispatch_data(sse, false);
        return;
    }
    line = sse->buffer + sse->line;
    if (is_bare(line, len))
        dispatch_bare(sse, line, len, false, false);
    else if (line[0] != ':')
        take_field(sse, line, len);
    sse->len = sse->line = sse->data_len;
}

/* The line under construction would pass the limit: an error, or everything that belongs to it is dropped. */
static int oversize(struct sk_sse *sse, struct sk_error *err)
{
    const char *line;
    size_t len;

    if (sse->oversize == SK_SSE_FAIL) {
        sk_fail(&sse->error, SK_ERR_PROVIDER_ERROR, "event stream: an event is larger than the limit of %zu bytes",
                sse->event_max);
        sse->error.retryable = false;
        return fail(sse, err);
    }
    strip_bom(sse);
    line = sse->buffer == NULL ? "" : sse->buffer + sse->line;
    len = sse->len - sse->line;
    sse->line_skip = true;
    if (is_bare(line, len)) {
        dispatch_bare(sse, line, len, false, true);
    } else if (len >= 5 && memcmp(line, "data:", 5) == 0) {
        sse->event_skip = true;
        sse->has_data = false;
        sse->data_len = sse->line = 0;
    }
    sse->len = sse->line;
    return 0;
}

static int append(struct sk_sse *sse, const char *run, size_t len, struct sk_error *err)
{
    /* Enough of the line is always kept to see what kind of line it is, however large the data before it. */
    size_t line_len = sse->len - sse->line;
    size_t room = sse->len < sse->event_max ? sse->event_max - sse->len : 0;

    if (sse->line_skip || len == 0)
        return 0;
    if (line_len < KIND_BYTES && room < KIND_BYTES - line_len)
        room = KIND_BYTES - line_len;
    if (!reserve(sse, len < room ? len : room)) {
        sk_fail(&sse->error, SK_ERR_INTERNAL, "event stream: out of memory");
        return fail(sse, err);
    }
    memcpy(sse->buffer + sse->len, run, len < room ? len : room);
    sse->len += len < room ? len : room;
    return len > room ? oversize(sse, err) : 0;
}

int sk_sse_feed(struct sk_sse *sse, const void *data, size_t size, struct sk_error *err)
{
    const char *p = data, *end = p + size;

    if (sse->failed)
        return fail(sse, err);
    while (p < end && !sse->stopped) {
        const char *run = p;

        if (sse->after_cr) {
            sse->after_cr = false;
            if (*p == '\n') {
                p++;
                continue;
            }
        }
        while (p < end && *p != '\n' && *p != '\r')
            p++;
        if (append(sse, run, (size_t)(p - run), err) != 0)
            return -1;
        if (p == end || sse->stopped)
            break;
        sse->after_cr = *p++ == '\r';
        end_of_line(sse);
    }
    return sse->stopped ? 1 : 0;
}

int sk_sse_finish(struct sk_sse *sse, struct sk_error *err)
{
    if (sse->failed)
        return fail(sse, err);
    if (!sse->stopped && !sse->line_skip && sse->len > sse->line) {
        size_t len;
        char *line;

        strip_bom(sse);
        line = sse->buffer + sse->line;
        len = sse->len - sse->line;
        if (is_bare(line, len))
            dispatch_bare(sse, line, len, true, false);
        else if (len > 0 && line[0] != ':')
            take_field(sse, line, len);
    }
    sse->line_skip = false;
    if (!sse->stopped)
        dispatch_data(sse, true);
    return sse->stopped ? 1 : 0;
}
