/* SPDX-License-Identifier: Apache-2.0
 *
 * Doubling growth up to the limit; consumed space at the front is reused before anything is allocated. */
#include "common/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 256

void sk_buf_init(struct sk_buf *buf, size_t limit)
{
    memset(buf, 0, sizeof(*buf));
    buf->limit = limit;
}

void sk_buf_fini(struct sk_buf *buf)
{
    free(buf->base);
    buf->base = NULL;
    buf->start = buf->len = buf->capacity = 0;
}

void sk_buf_clear(struct sk_buf *buf)
{
    buf->start = buf->len = 0;
    buf->overflow = false;
    if (buf->base != NULL)
        buf->base[0] = '\0';
}

const char *sk_buf_data(const struct sk_buf *buf)
{
    return buf->base != NULL ? buf->base + buf->start : "";
}

char *sk_buf_reserve(struct sk_buf *buf, size_t len)
{
    size_t need, capacity;
    char *base;

    if (buf->len > buf->limit || len > buf->limit - buf->len || buf->len + len >= SIZE_MAX / 2) {
        buf->overflow = true;
        return NULL;
    }
    need = buf->len + len + 1;
    if (buf->base != NULL && buf->capacity - buf->start >= need)
        return buf->base + buf->start + buf->len;
    /* Moving the content to the front pays when that frees at least half: then each byte moves once on average. */
    if (buf->base != NULL && buf->capacity >= need && buf->start >= buf->len) {
        memmove(buf->base, buf->base + buf->start, buf->len + 1);
        buf->start = 0;
        return buf->base + buf->len;
    }
    capacity = buf->capacity > 0 ? buf->capacity : FIRST_CAPACITY;
    while (capacity < need)
        capacity *= 2;
    base = malloc(capacity);
    if (base == NULL) {
        buf->overflow = true;
        return NULL;
    }
    if (buf->base != NULL)
        memcpy(base, buf->base + buf->start, buf->len);
    base[buf->len] = '\0';
    free(buf->base);
    buf->base = base;
    buf->start = 0;
    buf->capacity = capacity;
    return base + buf->len;
}

void sk_buf_commit(struct sk_buf *buf, size_t len)
{
    buf->len += len;
    if (buf->base != NULL)
        buf->base[buf->start + buf->len] = '\0';
}

bool sk_buf_append(struct sk_buf *buf, const void *data, size_t len)
{
    char *at = sk_buf_reserve(buf, len);

    if (at == NULL)
        return false;
    if (len > 0)
        memcpy(at, data, len);
    sk_buf_commit(buf, len);
    return true;
}

bool sk_buf_append_text(struct sk_buf *buf, const char *text)
{
    return sk_buf_append(buf, text, strlen(text));
}

bool sk_buf_append_char(struct sk_buf *buf, char c)
{
    return sk_buf_append(buf, &c, 1);
}

bool sk_buf_printf(struct sk_buf *buf, const char *fmt, ...)
{
    va_list args;
    char *at;
    int len;

    va_start(args, fmt);
    len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (len < 0) {
        buf->overflow = true;
        return false;
    }
    at = sk_buf_reserve(buf, (size_t)len);
    if (at == NULL)
        return false;
    va_start(args, fmt);
    vsnprintf(at, (size_t)len + 1, fmt, args);
    va_end(args);
    sk_buf_commit(buf, (size_t)len);
    return true;
}

void sk_buf_consume(struct sk_buf *buf, size_t len)
{
    if (len >= buf->len) {
        buf->start = buf->len = 0;
        if (buf->base != NULL)
            buf->base[0] = '\0';
        return;
    }
    buf->start += len;
    buf->len -= len;
}

char *sk_buf_take(struct sk_buf *buf, size_t *len)
{
    char *out;

    if (sk_buf_reserve(buf, 0) == NULL)
        return NULL;
    if (buf->start > 0)
        memmove(buf->base, buf->base + buf->start, buf->len + 1);
    out = buf->base;
    if (len != NULL)
        *len = buf->len;
    buf->base = NULL;
    buf->start = buf->len = buf->capacity = 0;
    return out;
}
