/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser for event streams in both framings that are in use: real server-sent events (WHATWG: `data:` over several
 * lines, `event:`, `id:`, `retry:`, comments) and execd's, where every event is one bare JSON object on one line and
 * blank lines lie between (reference/providers.md §2.2). Line ends may be LF, CR or CRLF, and the stream may be cut
 * anywhere between two feeds. Work is linear in the bytes fed; memory is bounded by the event limit.
 *
 * Not thread-safe; one parser belongs to one stream. Never blocks. */
#ifndef SK_HTTP_SSE_H
#define SK_HTTP_SSE_H

#include "common/base/error.h"

#define SK_SSE_EVENT_MAX (16 * 1024 * 1024) /* default bound of one event: execd sends a whole output line as one */
#define SK_SSE_NAME_MAX  256                /* event: and id: values; longer ones are cut */

struct sk_sse_event {
    const char *name; /* value of `event:`; "" when there was none or for bare JSON */
    const char *id;   /* last `id:` seen on the stream; "" */
    const char *data; /* NUL-terminated; lines of several `data:` fields joined by LF */
    size_t len;
    bool bare;         /* a JSON line without `data:` */
    bool unterminated; /* the stream ended in the middle of it: trust it only when it parses as a whole */
    bool oversize;     /* larger than the limit (policy SK_SSE_SKIP): data is "", the bytes were dropped */
};

/* Return 0 to go on, anything else to stop: sk_sse_feed then returns 1 and looks at nothing more. */
typedef int (*sk_sse_handler)(void *arg, const struct sk_sse_event *event);

enum sk_sse_oversize {
    SK_SSE_FAIL, /* an event above the limit is an error and the parser is finished */
    SK_SSE_SKIP, /* it is dropped up to its end, reported once, and the stream goes on */
};

struct sk_sse {
    sk_sse_handler handler;
    void *arg;
    size_t event_max;
    enum sk_sse_oversize oversize;
    /* Private. */
    char *buffer;         /* finished data lines of the event, then the line under construction */
    size_t len, capacity; /* bytes used and allocated */
    size_t line;          /* where the current line starts */
    size_t data_len;      /* bytes of finished data, joined */
    bool has_data, after_cr, line_skip, event_skip, stopped, failed, begun;
    struct sk_error error; /* why it failed, for later feeds */
    char name[SK_SSE_NAME_MAX], id[SK_SSE_NAME_MAX];
    int64_t retry_ms; /* last `retry:`, -1 = none */
    uint64_t oversize_count;
};

/* event_max 0 = SK_SSE_EVENT_MAX. Cannot fail; allocates on first use. */
void sk_sse_init(struct sk_sse *sse, size_t event_max, enum sk_sse_oversize oversize, sk_sse_handler handler,
                 void *arg);
void sk_sse_fini(struct sk_sse *sse);
/* Handles the next bytes. Returns 0, 1 when the handler stopped the stream, -1 on an event above the limit
 * (provider_error, not retryable) or out of memory (internal). */
SK_MUST_USE int sk_sse_feed(struct sk_sse *sse, const void *data, size_t len, struct sk_error *err);
/* The stream ended: hands over what is left, marked `unterminated`. Returns as sk_sse_feed. */
SK_MUST_USE int sk_sse_finish(struct sk_sse *sse, struct sk_error *err);

#endif
