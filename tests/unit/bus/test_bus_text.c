/* SPDX-License-Identifier: Apache-2.0
 * Subjects, filters, header blocks and base64 from strangers, table-driven; and every prefix and single-byte change of
 * a header block, which must neither crash nor run over. */
#include "common/bus/internal.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

START_TEST(test_subjects)
{
    static const struct {
        const char *subject;
        bool valid, reply;
    } rows[] = {
        {"a", true, true},
        {"_INBOX.abc.1", true, true},
        {"sandbox.evt.x", true, false},
        {"sandbox", true, false},
        {"sandboxes.mine", true, true},
        {"$JS.API.STREAM.DELETE.X", true, false},
        {"$SYS", true, false},
        {"\xc3\xa4.b", true, true},
        {"a.*b", true, true}, /* no wildcard: part of a token */
        {"", false, false},
        {".", false, false},
        {".a", false, false},
        {"a.", false, false},
        {"a..b", false, false},
        {"a b", false, false},
        {"a\tb", false, false},
        {"a\r\nb", false, false},
        {"a\x7f", false, false},
        {"*", false, false},
        {"a.*", false, false},
        {"a.*.b", false, false},
        {">", false, false},
        {"a.>", false, false},
        {"a.\xff", false, false},
        {NULL, false, false},
    };
    char longest[SK_SUBJECT_SIZE + 1];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_msg(sk_subject_valid(rows[i].subject) == rows[i].valid, "row %zu", i);
        ck_assert_msg(sk_reply_subject_valid(rows[i].subject, "sandbox") == rows[i].reply, "row %zu", i);
    }
    memset(longest, 'x', sizeof(longest));
    longest[SK_SUBJECT_SIZE] = '\0';
    ck_assert(!sk_subject_valid(longest));
    longest[SK_SUBJECT_SIZE - 1] = '\0';
    ck_assert(sk_subject_valid(longest));
}
END_TEST

START_TEST(test_filters)
{
    static const struct {
        const char *filter, *subject;
        bool matches;
    } rows[] = {
        {"a.b", "a.b", true}, {"a.b", "a.bc", false},   {"a.b", "a", false},      {"a.b", "a.b.c", false},
        {"a.>", "a.b", true}, {"a.>", "a.b.c.d", true}, {"a.>", "a", false},      {"a.>", "ab.c", false},
        {"a.*", "a.b", true}, {"a.*", "a.b.c", false},  {"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.d", false},
        {"*.b", "a.b", true}, {">", "a", true},         {">", "a.b", true},       {">", "", false},
        {"*", "a", true},     {"*", "", false},         {"", "", true},           {"a", "", false},
        {"a.*", "a.", false}, {"a*.b", "a*.b", true},   {"a*.b", "ab.b", false},  {"a.>.c", "a.>.c", true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_msg(sk_subject_matches(rows[i].filter, rows[i].subject) == rows[i].matches, "%s %s", rows[i].filter,
                      rows[i].subject);
}
END_TEST

static const char block[] = "NATS/1.0 503 No Responders\r\nSandbox-Reply-To:  _INBOX.x \r\nX-Other: \t1\r\n"
                            "traceparent:00-1\nNats-Msg-Id: id\r\nEmpty:\r\nx-other: 2\r\n\r\nBody: not a header\r\n";

START_TEST(test_header_block)
{
    struct sk_delivery out = {.header_count = 0};

    sk_headers_parse(&out, block, sizeof(block) - 1);
    ck_assert_int_eq(out.header_count, 5);
    ck_assert_str_eq(out.headers[0].name, "Sandbox-Reply-To"); /* our own names first */
    ck_assert_str_eq(out.headers[0].value, "_INBOX.x");
    ck_assert_str_eq(sk_delivery_header(&out, "x-OTHER"), "1");
    ck_assert_str_eq(sk_delivery_header(&out, "traceparent"), "00-1");
    ck_assert_str_eq(sk_delivery_header(&out, "nats-msg-id"), "id");
    ck_assert_str_eq(sk_delivery_header(&out, "empty"), "");
    ck_assert_ptr_null(sk_delivery_header(&out, "Body"));
    ck_assert(!out.headers_cut);
    sk_delivery_headers_free(&out);
    sk_headers_parse(&out, "", 0);
    ck_assert(!out.headers_cut);
}
END_TEST

START_TEST(test_header_block_changes)
{
    for (size_t len = 0; len < sizeof(block); len++) {
        struct sk_delivery out = {.header_count = 0};
        char *exact = malloc(len + 1); /* a byte read past the end is seen by the sanitizer */
        char *tight = malloc(len > 0 ? len : 1);
        memcpy(exact, block, len);
        memcpy(tight, block, len);
        sk_headers_parse(&out, tight, len);
        sk_delivery_headers_free(&out);
        for (int value = 0; len > 0 && value < 256; value += 5) {
            memcpy(tight, block, len);
            tight[len - 1] = (char)value;
            sk_headers_parse(&out, tight, len);
            ck_assert_int_le(out.header_count, SK_BUS_HEADERS_MAX);
            sk_delivery_headers_free(&out);
        }
        free(exact);
        free(tight);
    }
}
END_TEST

START_TEST(test_values_are_cut_at_characters)
{
    struct sk_delivery out = {.header_count = 0};
    char value[SK_BUS_HEADER_VALUE_MAX + 10];

    memset(value, 'a', sizeof(value));
    memcpy(value + SK_BUS_HEADER_VALUE_MAX - 1, "\xe2\x82\xac", 3); /* begins on the last byte that fits */
    ck_assert(!sk_delivery_add_header(&out, "n", 1, value, sizeof(value)));
    ck_assert_uint_eq(strlen(out.headers[0].value), SK_BUS_HEADER_VALUE_MAX - 1);
    ck_assert(out.headers_cut);
    ck_assert(!sk_delivery_add_header(&out, "a b", 3, "v", 1));
    ck_assert(!sk_delivery_add_header(&out, "", 0, "v", 1));
    ck_assert(sk_delivery_add_header(&out, "N", 1, "again", 5)); /* the first one stays */
    ck_assert_int_eq(out.header_count, 1);
    sk_delivery_headers_free(&out);
}
END_TEST

START_TEST(test_base64)
{
    static const struct {
        const char *text, *plain;
    } rows[] = {
        {"", ""},
        {"Zg==", "f"},
        {"Zm8=", "fo"},
        {"Zm9v", "foo"},
        {"Zm9vYg==", "foob"},
        {"Zm9vYg", "foob"},
        {"Zm9vYmE=", "fooba"},
        {"Zm9vYmFy", "foobar"},
        {"-_-_", "\xfb\xff\xbf"},
        {"A", NULL},
        {"Zm9v YmFy", NULL},
        {"Zm=v", NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t len = 99;
        char *out = sk_base64_decode(rows[i].text, strlen(rows[i].text), &len);
        if (rows[i].plain == NULL) {
            ck_assert_ptr_null(out);
            continue;
        }
        ck_assert_uint_eq(len, strlen(rows[i].plain));
        ck_assert_str_eq(out, rows[i].plain);
        free(out);
    }
}
END_TEST

SK_CHECK_MAIN("bus-text", test_subjects, test_filters, test_header_block, test_header_block_changes,
              test_values_are_cut_at_characters, test_base64)
