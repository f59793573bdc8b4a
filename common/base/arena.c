/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of 4 KiB, doubling up to 64 KiB; what is larger gets a block of its own. */
#include "common/base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BLOCK 4096
#define LAST_BLOCK  65536

struct sk_arena_block {
    struct sk_arena_block *older;
    size_t size, used; /* of data */
    max_align_t data[];
};

void sk_arena_init(struct sk_arena *arena, size_t limit)
{
    memset(arena, 0, sizeof(*arena));
    arena->limit = limit != 0 ? limit : SK_ARENA_DEFAULT_LIMIT;
}

static void free_blocks(struct sk_arena_block *block)
{
    while (block != NULL) {
        struct sk_arena_block *older = block->older;
        free(block);
        block = older;
    }
}

void sk_arena_fini(struct sk_arena *arena)
{
    free_blocks(arena->blocks);
    arena->blocks = NULL;
    arena->taken = 0;
}

void sk_arena_reset(struct sk_arena *arena)
{
    struct sk_arena_block *keep = arena->blocks;

    arena->failed = false;
    if (keep == NULL)
        return;
    free_blocks(keep->older);
    keep->older = NULL;
    arena->taken = sizeof(*keep) + keep->size;
    /* A block made for one large value would hold its memory for ever. */
    if (keep->size > LAST_BLOCK) {
        free(keep);
        arena->blocks = NULL;
        arena->taken = 0;
        return;
    }
    keep->used = 0;
}

static struct sk_arena_block *grow(struct sk_arena *arena, size_t need)
{
    size_t left = arena->limit - arena->taken, size = FIRST_BLOCK;
    struct sk_arena_block *block;

    if (left < sizeof(*block) || need > left - sizeof(*block))
        return NULL;
    if (arena->blocks != NULL && arena->blocks->size >= FIRST_BLOCK)
        size = arena->blocks->size * 2 < LAST_BLOCK ? arena->blocks->size * 2 : LAST_BLOCK;
    if (size < need)
        size = need;
    if (size > left - sizeof(*block))
        size = left - sizeof(*block);
    block = malloc(sizeof(*block) + size);
    if (block == NULL)
        return NULL;
    block->size = size;
    block->used = 0;
    block->older = arena->blocks;
    arena->blocks = block;
    arena->taken += sizeof(*block) + size;
    return block;
}

/* Not zeroed. */
static void *take(struct sk_arena *arena, size_t size)
{
    const size_t align = _Alignof(max_align_t);
    struct sk_arena_block *block = arena->blocks;
    void *out;

    if (size > SIZE_MAX - align)
        goto refuse;
    size = size == 0 ? align : (size + align - 1) / align * align;
    if (block == NULL || block->size - block->used < size)
        block = grow(arena, size);
    if (block == NULL)
        goto refuse;
    out = (char *)block->data + block->used;
    block->used += size;
    return out;
refuse:
    arena->failed = true;
    return NULL;
}

void *sk_arena_alloc(struct sk_arena *arena, size_t size)
{
    void *out = take(arena, size);

    if (out != NULL)
        memset(out, 0, size);
    return out;
}

void *sk_arena_array(struct sk_arena *arena, size_t count, size_t size)
{
    size_t total;

    if (__builtin_mul_overflow(count, size, &total)) {
        arena->failed = true;
        return NULL;
    }
    return sk_arena_alloc(arena, total);
}

char *sk_arena_strndup(struct sk_arena *arena, const char *text, size_t len)
{
    char *out;

    if (len == SIZE_MAX) {
        arena->failed = true;
        return NULL;
    }
    out = take(arena, len + 1);
    if (out != NULL) {
        if (len > 0)
            memcpy(out, text, len);
        out[len] = '\0';
    }
    return out;
}

char *sk_arena_strdup(struct sk_arena *arena, const char *text)
{
    return text != NULL ? sk_arena_strndup(arena, text, strlen(text)) : NULL;
}

char *sk_arena_vprintf(struct sk_arena *arena, const char *fmt, va_list args)
{
    va_list again;
    char *out = NULL;
    int len;

    va_copy(again, args);
    len = vsnprintf(NULL, 0, fmt, args);
    if (len >= 0)
        out = take(arena, (size_t)len + 1);
    else
        arena->failed = true;
    if (out != NULL && vsnprintf(out, (size_t)len + 1, fmt, again) != len) {
        arena->failed = true;
        out = NULL;
    }
    va_end(again);
    return out;
}

char *sk_arena_printf(struct sk_arena *arena, const char *fmt, ...)
{
    va_list args;
    char *out;

    va_start(args, fmt);
    out = sk_arena_vprintf(arena, fmt, args);
    va_end(args);
    return out;
}
