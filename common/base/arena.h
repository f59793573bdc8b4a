/* SPDX-License-Identifier: Apache-2.0
 *
 * An arena: many small allocations with one lifetime (a request, an operation), freed together. Bounded: an arena never
 * takes more than `limit` bytes from the system, whatever is asked of it.
 *
 * Owned and used by one thread at a time. Nothing here blocks. Functions that allocate return NULL when the limit would
 * be passed or memory is out, and set `failed`: a caller that builds many strings may look at it once at the end.
 *
 *     struct sk_arena arena;
 *     sk_arena_init(&arena, SK_ARENA_DEFAULT_LIMIT);
 *     char *url = sk_arena_printf(&arena, "%s/v1/sandboxes/%s", base, id);
 *     …
 *     sk_arena_fini(&arena); */
#ifndef SK_BASE_ARENA_H
#define SK_BASE_ARENA_H

#include "common/base/error.h"

#define SK_ARENA_DEFAULT_LIMIT (1024 * 1024) /* bytes, for one request or operation */

struct sk_arena_block;

struct sk_arena {
    struct sk_arena_block *blocks; /* newest first */
    size_t limit;                  /* bytes taken from the system at most, headers included */
    size_t taken;
    bool failed; /* some allocation was refused since init or reset */
};

/* Takes nothing from the system yet. `limit` 0 means SK_ARENA_DEFAULT_LIMIT. */
void sk_arena_init(struct sk_arena *arena, size_t limit);
/* Frees everything. A zeroed arena may be passed too. */
void sk_arena_fini(struct sk_arena *arena);
/* Forgets all allocations but keeps one block for the next round; clears `failed`. */
void sk_arena_reset(struct sk_arena *arena);

/* Zeroed memory, aligned for any type; size 0 gives a valid pointer. Freed by reset or fini only. */
SK_MUST_USE void *sk_arena_alloc(struct sk_arena *arena, size_t size) __attribute__((malloc));
/* count * size with the overflow checked. */
SK_MUST_USE void *sk_arena_array(struct sk_arena *arena, size_t count, size_t size) __attribute__((malloc));
/* Copies with a NUL after them. strdup(NULL) is NULL and no failure. */
SK_MUST_USE char *sk_arena_strdup(struct sk_arena *arena, const char *text);
SK_MUST_USE char *sk_arena_strndup(struct sk_arena *arena, const char *text, size_t len);
SK_MUST_USE char *sk_arena_printf(struct sk_arena *arena, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
SK_MUST_USE char *sk_arena_vprintf(struct sk_arena *arena, const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0)));

#endif
