/* SPDX-License-Identifier: Apache-2.0
 *
 * The event stream parser under libFuzzer. The first three bytes choose the event bound, the policy and the size of the
 * pieces; the rest is the stream. What one feed says has to be what many small feeds say: the events of both runs are
 * hashed and compared. */
#include "common/http/sse.h"

#include <stdlib.h>
#include <string.h>

struct digest {
    uint64_t hash;
    size_t events, bytes;
};

static void mix(struct digest *d, const void *data, size_t len)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < len; i++)
        d->hash = (d->hash ^ p[i]) * 1099511628211u;
    d->hash = (d->hash ^ 0xff) * 1099511628211u;
}

static int on_event(void *arg, const struct sk_sse_event *event)
{
    struct digest *d = arg;
    const unsigned char flags = (unsigned char)(event->bare | event->unterminated << 1 | event->oversize << 2);

    if (event->data[event->len] != '\0' || (event->oversize && event->len != 0))
        abort();
    mix(d, event->name, strlen(event->name));
    mix(d, event->id, strlen(event->id));
    mix(d, event->data, event->len);
    mix(d, &flags, 1);
    d->events++;
    d->bytes += event->len;
    return 0;
}

static int parse(const uint8_t *data, size_t len, size_t piece, size_t max, enum sk_sse_oversize how, struct digest *d)
{
    struct sk_error err;
    struct sk_sse sse;
    int rc = 0;

    *d = (struct digest){.hash = 14695981039346656037u};
    sk_sse_init(&sse, max, how, on_event, d);
    for (size_t at = 0; at < len && rc == 0; at += piece)
        rc = sk_sse_feed(&sse, data + at, len - at < piece ? len - at : piece, &err);
    if (rc == 0)
        rc = sk_sse_finish(&sse, &err);
    sk_sse_fini(&sse);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct digest whole, pieces;
    enum sk_sse_oversize how;
    size_t max, piece;
    int a, b;

    if (size < 3)
        return 0;
    max = 16 + (size_t)data[0] * 4;
    how = data[1] % 2 == 0 ? SK_SSE_SKIP : SK_SSE_FAIL;
    piece = 1 + data[2] % 64;
    data += 3;
    size -= 3;
    a = parse(data, size, size + 1, max, how, &whole);
    b = parse(data, size, piece, max, how, &pieces);
    if (a != b || whole.hash != pieces.hash || whole.events != pieces.events || whole.bytes > size)
        abort();
    return 0;
}
