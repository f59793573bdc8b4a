/* SPDX-License-Identifier: Apache-2.0
 * Strict UTF-8, bounded copies and RFC 3339. */
#include "common/base/id.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

START_TEST(test_utf8_accepts_and_refuses)
{
    static const struct {
        const char *text;
        long points; /* -1 = not UTF-8 */
    } rows[] = {
        {"", 0},
        {"abc", 3},
        {"\xc3\xa9", 1},
        {"\xe7\x94\xa8\xe6\x88\xb7", 2},
        {"\xf0\x9f\x98\x80", 1},
        {"\xf4\x8f\xbf\xbf", 1},  /* U+10FFFF */
        {"\xed\x9f\xbf", 1},      /* U+D7FF */
        {"\xee\x80\x80", 1},      /* U+E000 */
        {"\xc0\x80", -1},         /* overlong NUL */
        {"\xc1\xbf", -1},         /* overlong */
        {"\xe0\x9f\xbf", -1},     /* overlong */
        {"\xf0\x8f\xbf\xbf", -1}, /* overlong */
        {"\xed\xa0\x80", -1},     /* surrogate */
        {"\xed\xbf\xbf", -1},     /* surrogate */
        {"\xf4\x90\x80\x80", -1}, /* above U+10FFFF */
        {"\xf5\x80\x80\x80", -1},
        {"\xff", -1},
        {"\x80", -1},
        {"a\xc3", -1}, /* cut */
        {"\xe7\x94", -1},
        {"\xf0\x9f\x98", -1},
        {"\xc3(", -1},
        {"\xe7\x94(", -1},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_msg(sk_utf8_length(rows[i].text, strlen(rows[i].text)) == rows[i].points, "row %zu", i);
    ck_assert_int_eq(sk_utf8_length("a\0b", 3), 3);
}
END_TEST

START_TEST(test_controls)
{
    ck_assert(!sk_text_has_control("a b\xe7\x94\xa8", 6));
    ck_assert(sk_text_has_control("a\nb", 3));
    ck_assert(sk_text_has_control("a\0b", 3));
    ck_assert(sk_text_has_control("\x7f", 1));
    ck_assert(sk_text_has_control("\xc2\x85", 2)); /* NEL */
    ck_assert(!sk_text_has_control("\xc2\xa0", 2));
}
END_TEST

START_TEST(test_copies_never_overrun)
{
    char out[5];

    ck_assert(sk_copy(out, sizeof(out), "1234"));
    ck_assert_str_eq(out, "1234");
    ck_assert(!sk_copy(out, sizeof(out), "12345"));
    ck_assert_str_eq(out, "");
    ck_assert(!sk_copy(out, 0, ""));
    sk_copy_cut(out, sizeof(out), "12345678");
    ck_assert_str_eq(out, "1234");
    sk_copy_cut(out, sizeof(out), "ab\xe7\x94\xa8");
    ck_assert_str_eq(out, "ab");
    sk_copy_cut(out, sizeof(out), "a\xe7\x94\xa8zz");
    ck_assert_str_eq(out, "a\xe7\x94\xa8");
    sk_copy_cut(out, sizeof(out), "\xf0\x9f\x98\x80\xf0\x9f\x98\x80");
    ck_assert_str_eq(out, "\xf0\x9f\x98\x80");
    sk_copy_cut(out, sizeof(out), "\x80\x80\x80\x80\x80\x80\x80");
    ck_assert_uint_lt(strlen(out), sizeof(out));
    sk_copy_cut(out, 1, "x");
    ck_assert_str_eq(out, "");
}
END_TEST

START_TEST(test_time_formats_like_gmtime)
{
    static const int64_t extra[] = {0, -1, 1, 951782400000, 4107542400000, -62167219200000, 253402300799999};
    char out[SK_TIME_SIZE];
    int64_t back;

    for (int64_t ms = -2000000000000; ms < 8000000000000; ms += 86399999777) {
        char expected[64];
        time_t seconds = (time_t)(ms >= 0 ? ms / 1000 : (ms - 999) / 1000);
        struct tm tm;
        gmtime_r(&seconds, &tm);
        snprintf(expected, sizeof(expected), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900, tm.tm_mon + 1,
                 tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(ms - (int64_t)seconds * 1000));
        sk_time_format(ms, out);
        ck_assert_str_eq(out, expected);
        ck_assert(sk_time_parse(out, &back));
        ck_assert_int_eq(back, ms);
    }
    for (size_t i = 0; i < sizeof(extra) / sizeof(extra[0]); i++) {
        sk_time_format(extra[i], out);
        ck_assert(sk_time_parse(out, &back));
        ck_assert_int_eq(back, extra[i]);
    }
    sk_time_format(INT64_MAX, out);
    ck_assert_str_eq(out, "9999-12-31T23:59:59.999Z");
    sk_time_format(INT64_MIN, out);
    ck_assert_str_eq(out, "0000-01-01T00:00:00.000Z");
}
END_TEST

START_TEST(test_time_parse_forms)
{
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {
        {"1970-01-01T00:00:00Z", 0},
        {"1970-01-01T00:00:00.5Z", 500},
        {"1970-01-01T00:00:00.123456789Z", 123},
        {"1970-01-01t00:00:01z", 1000},
        {"1970-01-01T01:00:00+01:00", 0},
        {"1969-12-31T23:30:00-00:30", 0},
        {"2000-02-29T00:00:00Z", 951782400000},
        {"2016-12-31T23:59:60Z", 1483228800000},
    };
    static const char *const bad[] = {
        "",
        "1970-01-01",
        "1970-01-01T00:00:00",
        "1970-13-01T00:00:00Z",
        "1970-00-01T00:00:00Z",
        "1970-01-32T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:60:00Z",
        "1970-01-01T00:00:61Z",
        "1970-01-01T00:00:00.Z",
        "1970-01-01T00:00:00.1234567890Z",
        "1970-01-01T00:00:00Zx",
        "1970-01-01T00:00:00+24:00",
        "1970-01-01T00:00:00+0100",
        "+970-01-01T00:00:00Z",
        " 1970-01-01T00:00:00Z",
        "1970-1-01T00:00:00Z",
    };
    int64_t ms;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ck_assert_msg(sk_time_parse(good[i].text, &ms), "%s", good[i].text);
        ck_assert_int_eq(ms, good[i].ms);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(!sk_time_parse(bad[i], &ms), "%s", bad[i]);
    ck_assert(!sk_time_parse(NULL, &ms));
}
END_TEST

SK_CHECK_MAIN("text", test_utf8_accepts_and_refuses, test_controls, test_copies_never_overrun,
              test_time_formats_like_gmtime, test_time_parse_forms)
