/* SPDX-License-Identifier: Apache-2.0
 * The string map against a plain array as model, its bound, and removal while visiting. */
#include "common/base/map.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

#define KEYS 500

START_TEST(test_behaves_like_a_table)
{
    struct sk_map map;
    int values[KEYS];
    bool present[KEYS] = {false};
    unsigned state = 1;
    size_t count = 0;

    sk_map_init(&map, KEYS, 7);
    for (int step = 0; step < 20000; step++) {
        char key[32];
        int k;
        void *old;
        state = state * 1103515245 + 12345;
        k = (int)(state / 65536 % KEYS);
        snprintf(key, sizeof(key), "sandbox-%d", k);
        ck_assert_ptr_eq(sk_map_get(&map, key), present[k] ? &values[k] : NULL);
        if (state / 7 % 2 == 0) {
            ck_assert(sk_map_set(&map, key, &values[k], &old));
            ck_assert_ptr_eq(old, present[k] ? &values[k] : NULL);
            count += !present[k];
            present[k] = true;
        } else {
            ck_assert_ptr_eq(sk_map_remove(&map, key), present[k] ? &values[k] : NULL);
            count -= present[k];
            present[k] = false;
        }
        ck_assert_uint_eq(sk_map_count(&map), count);
    }
    sk_map_fini(&map);
    ck_assert_ptr_null(sk_map_get(&map, "sandbox-1"));
}
END_TEST

START_TEST(test_bound)
{
    struct sk_map map;
    int value;

    sk_map_init(&map, 2, 0);
    ck_assert(sk_map_set(&map, "a", &value, NULL));
    ck_assert(sk_map_set(&map, "b", &value, NULL));
    ck_assert(!sk_map_set(&map, "c", &value, NULL));
    ck_assert(sk_map_set(&map, "b", &value, NULL)); /* replacing is no growth */
    ck_assert_ptr_null(sk_map_get(&map, "c"));
    ck_assert_ptr_nonnull(sk_map_remove(&map, "a"));
    ck_assert(sk_map_set(&map, "c", &value, NULL));
    sk_map_fini(&map);
}
END_TEST

static bool remove_visited(void *arg, const char *key, void *value)
{
    struct sk_map *map = arg;

    (void)value;
    ck_assert_ptr_nonnull(sk_map_remove(map, key));
    return true;
}

static bool stop_at_once(void *arg, const char *key, void *value)
{
    (void)key;
    (void)value;
    ++*(int *)arg;
    return false;
}

START_TEST(test_visit)
{
    struct sk_map map;
    int value, visits = 0;
    char key[32];

    sk_map_init(&map, 1000, 0);
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "%d", i);
        ck_assert(sk_map_set(&map, key, &value, NULL));
    }
    sk_map_visit(&map, stop_at_once, &visits);
    ck_assert_int_eq(visits, 1);
    sk_map_visit(&map, remove_visited, &map);
    ck_assert_uint_eq(sk_map_count(&map), 0);
    sk_map_fini(&map);
}
END_TEST

SK_CHECK_MAIN("map", test_behaves_like_a_table, test_bound, test_visit)
