/* SPDX-License-Identifier: Apache-2.0
 * Redis URLs, table-driven. */
#include "common/lease/internal.h"
#include "tests/unit/check_main.h"

#include <string.h>

START_TEST(test_urls)
{
    static const struct {
        const char *url;
        bool good;
        const char *host;
        int port;
        const char *user, *password;
        int database;
    } rows[] = {
        {"redis://127.0.0.1:6379", true, "127.0.0.1", 6379, NULL, NULL, 0},
        {"redis://redis", true, "redis", 6379, NULL, NULL, 0},
        {"redis://redis/", true, "redis", 6379, NULL, NULL, 0},
        {"redis://redis/5", true, "redis", 6379, NULL, NULL, 5},
        {"redis://:secret@redis:7000/2", true, "redis", 7000, NULL, "secret", 2},
        {"redis://user:secret@redis", true, "redis", 6379, "user", "secret", 0},
        {"redis://:a%40b%2Fc@redis", true, "redis", 6379, NULL, "a@b/c", 0},
        {"redis://:a@b@redis", true, "redis", 6379, NULL, "a@b", 0},
        {"redis://[::1]:7001/0", true, "::1", 7001, NULL, NULL, 0},
        {"redis://[::1]", true, "::1", 6379, NULL, NULL, 0},
        {"rediss://redis", false, NULL, 0, NULL, NULL, 0},
        {"http://redis", false, NULL, 0, NULL, NULL, 0},
        {"redis://", false, NULL, 0, NULL, NULL, 0},
        {"redis://:70000", false, NULL, 0, NULL, NULL, 0},
        {"redis://redis:", false, NULL, 0, NULL, NULL, 0},
        {"redis://redis:0", false, NULL, 0, NULL, NULL, 0},
        {"redis://redis:70000", false, NULL, 0, NULL, NULL, 0},
        {"redis://redis:12x", false, NULL, 0, NULL, NULL, 0},
        {"redis://redis/x", false, NULL, 0, NULL, NULL, 0},
        {"redis://redis/1/2", false, NULL, 0, NULL, NULL, 0},
        {"redis://redis/-1", false, NULL, 0, NULL, NULL, 0},
        {"redis://redis?db=1", false, NULL, 0, NULL, NULL, 0},
        {"redis://onlyuser@redis", false, NULL, 0, NULL, NULL, 0},
        {"redis://:bad%4@redis", false, NULL, 0, NULL, NULL, 0},
        {"redis://:bad%zz@redis", false, NULL, 0, NULL, NULL, 0},
        {"redis://[::1", false, NULL, 0, NULL, NULL, 0},
        {"redis://[::1]x", false, NULL, 0, NULL, NULL, 0},
        {"", false, NULL, 0, NULL, NULL, 0},
        {NULL, false, NULL, 0, NULL, NULL, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sk_redis_endpoint out;
        struct sk_error err;
        int rc = sk_redis_endpoint_parse(rows[i].url, &out, &err);
        ck_assert_msg((rc == 0) == rows[i].good, "row %zu: %s", i, rows[i].url != NULL ? rows[i].url : "(null)");
        if (rc != 0) {
            ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
            continue;
        }
        ck_assert_str_eq(out.host, rows[i].host);
        ck_assert_int_eq(out.port, rows[i].port);
        ck_assert_int_eq(out.database, rows[i].database);
        ck_assert_pstr_eq(out.user, rows[i].user);
        ck_assert_pstr_eq(out.password, rows[i].password);
        sk_redis_endpoint_fini(&out);
    }
}
END_TEST

SK_CHECK_MAIN("lease-url", test_urls)
