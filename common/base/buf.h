/* SPDX-License-Identifier: Apache-2.0
 *
 * A growable byte buffer with an upper bound: bytes are appended at the end and consumed at the front. When the bound
 * is hit (or memory is out) nothing of that append is kept and `overflow` stays set: look at it once, at the end.
 *
 * The content always has a NUL after it (not counted), so that text can be handed on as a C string. Owned and used by
 * one thread at a time; nothing blocks. Pointers into the buffer are good until the next append or consume. */
#ifndef SK_BASE_BUF_H
#define SK_BASE_BUF_H

#include "common/base/error.h"

struct sk_buf {
    char *base;      /* allocation, NULL while empty */
    size_t start;    /* consumed bytes before the content */
    size_t len;      /* content */
    size_t capacity; /* of the allocation */
    size_t limit;    /* content bytes at most */
    bool overflow;
};

/* Allocates nothing yet. */
void sk_buf_init(struct sk_buf *buf, size_t limit);
void sk_buf_fini(struct sk_buf *buf); /* a zeroed buffer may be passed too */
/* Empties it, clears `overflow`, keeps the memory. */
void sk_buf_clear(struct sk_buf *buf);

/* The content; never NULL. */
const char *sk_buf_data(const struct sk_buf *buf);
static inline size_t sk_buf_len(const struct sk_buf *buf)
{
    return buf->len;
}

/* Each returns false (and sets overflow) when it does not fit; then the content is what it was. */
bool sk_buf_append(struct sk_buf *buf, const void *data, size_t len);
bool sk_buf_append_text(struct sk_buf *buf, const char *text);
bool sk_buf_append_char(struct sk_buf *buf, char c);
bool sk_buf_printf(struct sk_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for `len` bytes to be written by the caller (read(2) straight into the buffer), then sk_buf_commit of what came.
 * NULL when it does not fit. */
SK_MUST_USE char *sk_buf_reserve(struct sk_buf *buf, size_t len);
void sk_buf_commit(struct sk_buf *buf, size_t len);
/* Drops bytes at the front; more than there are drops all. */
void sk_buf_consume(struct sk_buf *buf, size_t len);
/* Gives the content away as a NUL-terminated allocation (free it) and leaves the buffer empty; NULL when out of memory.
 */
SK_MUST_USE char *sk_buf_take(struct sk_buf *buf, size_t *len);

#endif
