/* SPDX-License-Identifier: Apache-2.0
 * Arena, byte buffer and list: bounds hold, nothing is half done, memory is given back. */
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/list.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

START_TEST(test_arena_values_live_together)
{
    struct sk_arena arena;
    char *texts[200];

    sk_arena_init(&arena, 0);
    for (int i = 0; i < 200; i++)
        texts[i] = sk_arena_printf(&arena, "text %d %0*d", i, i * 3, 7);
    for (int i = 0; i < 200; i++) {
        char start[32];
        snprintf(start, sizeof(start), "text %d ", i);
        ck_assert_int_eq(strncmp(texts[i], start, strlen(start)), 0);
        ck_assert_uint_eq(strlen(texts[i]), strlen(start) + (size_t)(i == 0 ? 1 : i * 3));
    }
    ck_assert(!arena.failed);
    sk_arena_fini(&arena);
}
END_TEST

START_TEST(test_arena_zeroes_and_aligns)
{
    struct sk_arena arena;

    sk_arena_init(&arena, 0);
    for (int round = 0; round < 2; round++) {
        for (size_t size = 0; size < 300; size += 7) {
            unsigned char *p = sk_arena_alloc(&arena, size);
            ck_assert_ptr_nonnull(p);
            ck_assert_uint_eq((uintptr_t)p % _Alignof(max_align_t), 0);
            for (size_t i = 0; i < size; i++)
                ck_assert_uint_eq(p[i], 0);
            memset(p, 0xff, size);
        }
        sk_arena_reset(&arena); /* the second round meets used memory */
    }
    sk_arena_fini(&arena);
}
END_TEST

START_TEST(test_arena_limit_holds)
{
    struct sk_arena arena;
    size_t got = 0;

    sk_arena_init(&arena, 100000);
    ck_assert_ptr_null(sk_arena_alloc(&arena, 100001));
    ck_assert(arena.failed);
    sk_arena_reset(&arena);
    ck_assert(!arena.failed);
    while (sk_arena_alloc(&arena, 1000) != NULL)
        got++;
    ck_assert(arena.failed);
    ck_assert_uint_ge(got, 90);
    ck_assert_uint_le(got, 100);
    ck_assert_uint_le(arena.taken, 100000);
    ck_assert_ptr_null(sk_arena_alloc(&arena, SIZE_MAX));
    ck_assert_ptr_null(sk_arena_alloc(&arena, SIZE_MAX - 8));
    ck_assert_ptr_null(sk_arena_array(&arena, SIZE_MAX / 2, 4));
    ck_assert_ptr_null(sk_arena_strndup(&arena, "x", SIZE_MAX));
    sk_arena_fini(&arena);
    sk_arena_fini(&arena);
    /* A limit below a first block is a limit all the same. */
    sk_arena_init(&arena, 256);
    ck_assert_ptr_nonnull(sk_arena_alloc(&arena, 64));
    ck_assert_ptr_null(sk_arena_alloc(&arena, 256));
    sk_arena_fini(&arena);
}
END_TEST

START_TEST(test_arena_reset_gives_large_blocks_back)
{
    struct sk_arena arena;

    sk_arena_init(&arena, 4 * 1024 * 1024);
    ck_assert_ptr_nonnull(sk_arena_alloc(&arena, 3 * 1024 * 1024));
    sk_arena_reset(&arena);
    ck_assert_uint_eq(arena.taken, 0);
    for (int i = 0; i < 1000; i++) {
        ck_assert_ptr_nonnull(sk_arena_alloc(&arena, 1000));
        if (i % 10 == 9)
            sk_arena_reset(&arena);
    }
    ck_assert_uint_le(arena.taken, 128 * 1024);
    sk_arena_fini(&arena);
}
END_TEST

START_TEST(test_arena_copies)
{
    struct sk_arena arena;
    const char *copy;

    sk_arena_init(&arena, 0);
    ck_assert_ptr_null(sk_arena_strdup(&arena, NULL));
    ck_assert(!arena.failed);
    ck_assert_str_eq(sk_arena_strdup(&arena, "abc"), "abc");
    ck_assert_str_eq(sk_arena_strdup(&arena, ""), "");
    copy = sk_arena_strndup(&arena, "a\0bc", 4);
    ck_assert_int_eq(memcmp(copy, "a\0bc", 5), 0);
    ck_assert_ptr_nonnull(sk_arena_array(&arena, 10, 8));
    sk_arena_fini(&arena);
}
END_TEST

START_TEST(test_buf_appends_and_consumes)
{
    struct sk_buf buf;

    sk_buf_init(&buf, 1000);
    ck_assert_str_eq(sk_buf_data(&buf), "");
    ck_assert(sk_buf_append_text(&buf, "hello "));
    ck_assert(sk_buf_printf(&buf, "%s %d", "world", 42));
    ck_assert(sk_buf_append_char(&buf, '!'));
    ck_assert_str_eq(sk_buf_data(&buf), "hello world 42!");
    sk_buf_consume(&buf, 6);
    ck_assert_str_eq(sk_buf_data(&buf), "world 42!");
    ck_assert_uint_eq(sk_buf_len(&buf), 9);
    sk_buf_consume(&buf, 100);
    ck_assert_str_eq(sk_buf_data(&buf), "");
    ck_assert_uint_eq(sk_buf_len(&buf), 0);
    sk_buf_fini(&buf);
    sk_buf_fini(&buf);
    ck_assert_str_eq(sk_buf_data(&buf), "");
}
END_TEST

START_TEST(test_buf_limit_is_exact_and_keeps_the_content)
{
    struct sk_buf buf;

    sk_buf_init(&buf, 10);
    ck_assert(sk_buf_append(&buf, "0123456789", 10));
    ck_assert(!buf.overflow);
    ck_assert(!sk_buf_append_char(&buf, 'x'));
    ck_assert(buf.overflow);
    ck_assert(!sk_buf_printf(&buf, "%d", 1));
    ck_assert_str_eq(sk_buf_data(&buf), "0123456789");
    sk_buf_consume(&buf, 4);
    ck_assert(buf.overflow);
    ck_assert(sk_buf_printf(&buf, "%s", "abcd"));
    ck_assert_str_eq(sk_buf_data(&buf), "456789abcd");
    ck_assert(!sk_buf_printf(&buf, "%s", "e"));
    ck_assert_ptr_null(sk_buf_reserve(&buf, SIZE_MAX));
    sk_buf_clear(&buf);
    ck_assert(!buf.overflow);
    ck_assert_str_eq(sk_buf_data(&buf), "");
    sk_buf_fini(&buf);
}
END_TEST

/* A stream passes through a small buffer: memory stays small and every byte comes out in order. */
START_TEST(test_buf_stream_keeps_order)
{
    struct sk_buf buf;
    unsigned written = 0, read = 0, state = 12345;

    sk_buf_init(&buf, 5000);
    while (read < 1000000) {
        unsigned want, got;
        state = state * 1103515245 + 12345;
        want = state / 65536 % 900;
        for (unsigned i = 0; i < want && sk_buf_append_char(&buf, (char)(written * 7 % 251)); i++)
            written++;
        state = state * 1103515245 + 12345;
        got = state / 65536 % 1000;
        if (got > sk_buf_len(&buf))
            got = (unsigned)sk_buf_len(&buf);
        for (unsigned i = 0; i < got; i++, read++) {
            if (sk_buf_data(&buf)[i] != (char)(read * 7 % 251)) /* each check that holds is written to a file, too */
                ck_abort_msg("byte %u is wrong", read);
        }
        sk_buf_consume(&buf, got);
    }
    ck_assert_uint_le(buf.capacity, 16384);
    sk_buf_fini(&buf);
}
END_TEST

START_TEST(test_buf_reserve_commit_take)
{
    struct sk_buf buf;
    size_t len;
    char *room, *taken;

    sk_buf_init(&buf, 100000);
    ck_assert(sk_buf_append_text(&buf, "ab"));
    room = sk_buf_reserve(&buf, 50000);
    memcpy(room, "cdef", 4);
    sk_buf_commit(&buf, 4);
    ck_assert_str_eq(sk_buf_data(&buf), "abcdef");
    sk_buf_consume(&buf, 1);
    taken = sk_buf_take(&buf, &len);
    ck_assert_str_eq(taken, "bcdef");
    ck_assert_uint_eq(len, 5);
    free(taken);
    ck_assert_uint_eq(sk_buf_len(&buf), 0);
    taken = sk_buf_take(&buf, &len);
    ck_assert_str_eq(taken, "");
    free(taken);
    sk_buf_fini(&buf);
}
END_TEST

struct item {
    int number;
    struct sk_list link;
};

START_TEST(test_list)
{
    struct sk_list list;
    struct item items[5], *gone;
    int sum = 0, expected = 0;

    sk_list_init(&list);
    ck_assert(sk_list_empty(&list));
    ck_assert_ptr_null(sk_list_pop_front(&list));
    SK_LIST_FOREACH (struct item, none, &list, link)
        ck_abort_msg("an empty list has no element %d", none->number);
    for (int i = 0; i < 5; i++) {
        items[i].number = i;
        sk_list_push_back(&list, &items[i].link);
    }
    ck_assert_uint_eq(sk_list_length(&list), 5);
    SK_LIST_FOREACH (struct item, item, &list, link) {
        ck_assert_int_eq(item->number, expected++);
        if (item->number % 2 == 1)
            sk_list_remove(&item->link);
    }
    ck_assert_int_eq(expected, 5);
    sk_list_remove(&items[1].link); /* again: harmless */
    sk_list_push_front(&list, &items[1].link);
    SK_LIST_FOREACH (struct item, item, &list, link)
        sum = sum * 10 + item->number;
    ck_assert_int_eq(sum, 1024);
    gone = SK_LIST_ENTRY(struct item, sk_list_pop_front(&list), link);
    ck_assert_int_eq(gone->number, 1);
    sk_list_insert_before(&items[4].link, &items[3].link);
    sum = 0;
    SK_LIST_FOREACH (struct item, item, &list, link)
        sum = sum * 10 + item->number;
    ck_assert_int_eq(sum, 234);
}
END_TEST

SK_CHECK_MAIN("memory", test_arena_values_live_together, test_arena_zeroes_and_aligns, test_arena_limit_holds,
              test_arena_reset_gives_large_blocks_back, test_arena_copies, test_buf_appends_and_consumes,
              test_buf_limit_is_exact_and_keeps_the_content, test_buf_stream_keeps_order, test_buf_reserve_commit_take,
              test_list)
