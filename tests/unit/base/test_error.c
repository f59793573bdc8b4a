/* SPDX-License-Identifier: Apache-2.0
 * Errors: defaults out of errors.def, context chains that are cut and never overrun. */
#include "common/base/error.h"
#include "common/base/id.h"
#include "tests/unit/check_main.h"

#include <string.h>

START_TEST(test_fill_takes_defaults_of_the_code)
{
    struct sk_error err;

    memset(&err, 0xaa, sizeof(err));
    ck_assert_int_eq(sk_fail(&err, SK_ERR_SANDBOX_BUSY, "held by %s", "other"), -1);
    ck_assert_int_eq(err.code, SK_ERR_SANDBOX_BUSY);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert(err.retryable);
    ck_assert_int_eq(err.http_status, 409);
    ck_assert_int_eq(err.retry_after_ms, 0);
    ck_assert_int_eq(err.provider_status, 0);
    ck_assert_str_eq(err.message, "held by other");
    ck_assert_int_eq(sk_fail_unknown(&err, SK_ERR_PROVIDER_TIMEOUT, "x"), -1);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert_int_eq(err.http_status, 504);
}
END_TEST

START_TEST(test_null_error_is_allowed)
{
    ck_assert_int_eq(sk_fail(NULL, SK_ERR_INTERNAL, "x"), -1);
    ck_assert_int_eq(sk_fail_unknown(NULL, SK_ERR_INTERNAL, "x"), -1);
    ck_assert_int_eq(sk_fail_context(NULL, "x"), -1);
    sk_error_clear(NULL);
}
END_TEST

START_TEST(test_context_goes_in_front)
{
    struct sk_error err = {0};

    sk_fail(&err, SK_ERR_PROVIDER_ERROR, "HTTP %d", 502);
    err.provider_status = 502;
    sk_fail_context(&err, "create %s", "volume");
    sk_fail_context(&err, "cannot start sandbox");
    ck_assert_str_eq(err.message, "cannot start sandbox: create volume: HTTP 502");
    ck_assert_int_eq(err.code, SK_ERR_PROVIDER_ERROR);
    ck_assert_int_eq(err.provider_status, 502);
}
END_TEST

START_TEST(test_own_message_as_argument)
{
    struct sk_error err = {0};

    sk_fail(&err, SK_ERR_INTERNAL, "inner");
    sk_fail(&err, SK_ERR_STORE_UNAVAILABLE, "outer (%s)", err.message);
    ck_assert_str_eq(err.message, "outer (inner)");
}
END_TEST

START_TEST(test_long_chains_are_cut_between_code_points)
{
    struct sk_error err = {0};
    char text[2000];

    for (size_t i = 0; i + 3 < sizeof(text); i += 3)
        memcpy(text + i, "\xe7\x94\xa8", 4);
    for (int shift = 0; shift < 3; shift++) {
        sk_fail(&err, SK_ERR_INTERNAL, "%.*s%s", shift, "xx", text);
        ck_assert_uint_lt(strlen(err.message), SK_ERROR_MESSAGE_MAX);
        ck_assert_uint_ge(strlen(err.message), SK_ERROR_MESSAGE_MAX - 4);
        ck_assert_int_gt(sk_utf8_length(err.message, strlen(err.message)), 0);
        for (int i = 0; i < 5; i++) {
            sk_fail_context(&err, "%s", text);
            ck_assert_uint_lt(strlen(err.message), SK_ERROR_MESSAGE_MAX);
            ck_assert_int_gt(sk_utf8_length(err.message, strlen(err.message)), 0);
        }
    }
}
END_TEST

START_TEST(test_codes_round_trip_by_name)
{
    static const struct {
        enum sk_code code;
        const char *name;
        int http, fastgpt;
        bool retryable;
    } rows[] = {
#define SK_ERROR(name_, wire, http_, retryable_, fastgpt_, title_) {SK_ERR_##name_, wire, http_, fastgpt_, retryable_},
#include "proto/errors.def"
#undef SK_ERROR
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_int_eq(sk_code_parse(rows[i].name), rows[i].code);
        ck_assert_str_eq(sk_code_name(rows[i].code), rows[i].name);
        ck_assert_int_eq(sk_code_http_status(rows[i].code), rows[i].http);
        ck_assert_int_eq(sk_code_fastgpt(rows[i].code), rows[i].fastgpt);
        ck_assert_int_eq(sk_code_retryable(rows[i].code), rows[i].retryable);
        ck_assert_int_gt((int)strlen(sk_code_title(rows[i].code)), 3);
    }
    ck_assert_int_eq(sk_code_parse("no_such_code"), SK_ERR_INTERNAL);
    ck_assert_int_eq(sk_code_parse(NULL), SK_ERR_INTERNAL);
}
END_TEST

START_TEST(test_internal_codes_show_as_internal)
{
    ck_assert_str_eq(sk_code_name(SK_ERR_CANCELLED), "internal");
    ck_assert_str_eq(sk_code_name(SK_ERR_LOST_OWNERSHIP), "internal");
    ck_assert_str_eq(sk_code_name((enum sk_code)9999), "internal");
    ck_assert_str_eq(sk_code_name((enum sk_code) - 5), "internal");
    ck_assert_int_eq(sk_code_http_status((enum sk_code)9999), 500);
}
END_TEST

SK_CHECK_MAIN("error", test_fill_takes_defaults_of_the_code, test_null_error_is_allowed, test_context_goes_in_front,
              test_own_message_as_argument, test_long_chains_are_cut_between_code_points, test_codes_round_trip_by_name,
              test_internal_codes_show_as_internal)
