/* SPDX-License-Identifier: Apache-2.0
 *
 * The scanner: what it takes and refuses, where members stand, strings and their lengths; and that it agrees with
 * another parser on random texts. */
#include "services/code/host/scan.h"
#include "tests/unit/check_main.h"

#include <jansson.h>
#include <string.h>

static bool scan(const char *text, size_t length, size_t depth, struct code_scan_fault *fault)
{
    struct code_span root;

    return code_scan(text, length, depth, NULL, NULL, &root, fault);
}

START_TEST(test_grammar)
{
    static const struct {
        const char *text, *fault; /* NULL = good */
    } rows[] = {
        {"{}", NULL},
        {" [ ] ", NULL},
        {"null", NULL},
        {"-0", NULL},
        {"0.5e+10", NULL},
        {"1e999", NULL},
        {"123456789012345678901234567890", NULL},
        {"\"\\u0000\\ud800\\\"\\/\"", NULL},
        {"{\"a\":[1,{\"b\":null},true],\"a\":false}", NULL},
        {"\t\r\n{\"\":\"\"}\n", NULL},
        {"\"\xf0\x9f\x98\x80\"", NULL},
        {"", "it ends too early"},
        {"   ", "it ends too early"},
        {"{", "it ends too early"},
        {"[1,", "it ends too early"},
        {"\"a", "it ends too early"},
        {"\"\\", "it ends too early"},
        {"\"\\u12", "it ends too early"},
        {"{\"a\"", "it ends too early"},
        {"{\"a\":", "it ends too early"},
        {"tru", "it ends too early"},
        {"-", "it ends too early"},
        {"1.", "it ends too early"},
        {"1e", "it ends too early"},
        {"truf", "it is not JSON"},
        {"NaN", "it is not JSON"},
        {"Infinity", "it is not JSON"},
        {"'a'", "it is not JSON"},
        {"{a:1}", "it is not JSON"},
        {"{\"a\" 1}", "it is not JSON"},
        {"{\"a\":1,}", "it is not JSON"},
        {"[1,]", "it is not JSON"},
        {"[,1]", "it is not JSON"},
        {"[1 2]", "it is not JSON"},
        {"[1}", "it is not JSON"},
        {"{\"a\":1]", "it is not JSON"},
        {"]", "it is not JSON"},
        {"// x", "it is not JSON"},
        {"+1", "it is not JSON"},
        {".5", "it is not JSON"},
        {"01", "a number has a leading zero"},
        {"-01", "a number has a leading zero"},
        {"-x", "a number is not complete"},
        {"1.x", "a number is not complete"},
        {"1e+x", "a number is not complete"},
        {"0x10", "something follows the document"},
        {"{} {}", "something follows the document"},
        {"1,2", "something follows the document"},
        {"\"\\x41\"", "an escape in a string is unknown"},
        {"\"\\u00g0\"", "an escape in a string is unknown"},
        {"\"a\nb\"", "a control character stands in a string"},
        {"\"\xff\"", "it is not valid UTF-8"},
        {"\"\xc0\x80\"", "it is not valid UTF-8"},
        {"\"\xed\xa0\x80\"", "it is not valid UTF-8"},
        {"\"\xe2\x82\"", "it is not valid UTF-8"},
        {"{\"\xf5\x80\x80\x80\":1}", "it is not valid UTF-8"},
        {"[\x80]", "it is not valid UTF-8"},
        {"\xc3\xa9", "it is not JSON"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct code_scan_fault fault = {.what = NULL};
        bool good = scan(rows[i].text, strlen(rows[i].text), 100, &fault);
        ck_assert_msg(good == (rows[i].fault == NULL), "row %zu: %s", i, rows[i].text);
        if (!good)
            ck_assert_str_eq(fault.what, rows[i].fault);
    }
}
END_TEST

START_TEST(test_place_of_fault)
{
    struct code_scan_fault fault;

    ck_assert(!scan("{\n \"a\": x}", 10, 10, &fault));
    ck_assert_int_eq(fault.line, 2);
    ck_assert_int_eq(fault.column, 7);
    ck_assert_uint_eq(fault.offset, 8);
}
END_TEST

/* Every depth around the table on the stack and its growth, both kinds of bracket mixed. */
START_TEST(test_depth)
{
    static const size_t depths[] = {1, 7, 8, 511, 512, 513, 1024, 1025, 10000, 1000000};
    struct code_scan_fault fault;

    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
        size_t depth = depths[i], at = 0;
        char *text = malloc(depth * 6 + 1);
        ck_assert_ptr_nonnull(text);
        for (size_t d = 0; d < depth; d++) {
            memcpy(text + at, d % 3 == 0 ? "{\"a\":" : "[", d % 3 == 0 ? 5 : 1);
            at += d % 3 == 0 ? 5 : 1;
        }
        text[at++] = '0';
        for (size_t d = depth; d-- > 0;)
            text[at++] = d % 3 == 0 ? '}' : ']';
        ck_assert(scan(text, at, depth, &fault));
        ck_assert(!scan(text, at, depth - 1, &fault));
        ck_assert_str_eq(fault.what, "it is nested too deeply");
        text[at - 1] = ']'; /* the outermost is an object */
        ck_assert(!scan(text, at, depth, &fault));
        free(text);
    }
}
END_TEST

struct seen {
    char text[256];
};

static void on_member(void *arg, const struct code_span *key, const struct code_span *value)
{
    struct seen *seen = arg;
    size_t used = strlen(seen->text);

    snprintf(seen->text + used, sizeof(seen->text) - used, "%.*s=%.*s(%s);", (int)key->length, key->text,
             (int)value->length, value->text, code_scan_kind_name(value->kind));
}

START_TEST(test_members)
{
    static const char text[] =
        " { \"a\" : 1.50 , \"b\" : {\"c\":[1, {\"d\":2}]} ,\"a\":\"x\",\"e\":[ ],\"f\":true,\"g\":null} ";
    struct code_scan_fault fault;
    struct seen seen = {""};
    struct code_span root;

    ck_assert(code_scan(text, strlen(text), 10, on_member, &seen, &root, &fault));
    ck_assert_str_eq(seen.text, "\"a\"=1.50(number);\"b\"={\"c\":[1, {\"d\":2}]}(object);\"a\"=\"x\"(string);"
                                "\"e\"=[ ](array);\"f\"=true(boolean);\"g\"=null(null);");
    ck_assert_uint_eq(root.length, strlen(text) - 2);
    seen.text[0] = '\0';
    ck_assert(code_scan("[{\"a\":1}]", 9, 10, on_member, &seen, &root, &fault));
    ck_assert_str_eq(seen.text, "");
    ck_assert_int_eq(root.kind, CODE_SCAN_ARRAY);
}
END_TEST

START_TEST(test_decode)
{
    static const struct {
        const char *text, *content;
        size_t length, units;
        bool lone, nul;
    } rows[] = {
        {"\"\"", "", 0, 0, false, false},
        {"\"abc\"", "abc", 3, 3, false, false},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8, 8, false, false},
        {"\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, 4, false, false},
        {"\"\\u00e9\\u20AC\\ud83d\\ude00\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, 4, false, false},
        {"\"\\ud83d\"", "\xef\xbf\xbd", 3, 1, true, false},
        {"\"\\ude00x\"", "\xef\xbf\xbdx", 4, 2, true, false},
        {"\"\\ud83d\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80", 7, 3, true, false},
        {"\"\\ud83d\\n\"", "\xef\xbf\xbd\n", 4, 2, true, false},
        {"\"a\\u0000b\"", "a\0b", 3, 3, false, true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char place[64];
        struct code_span span = {place, strlen(rows[i].text), CODE_SCAN_STRING};
        memcpy(place, rows[i].text, span.length);
        struct code_decoded d = code_scan_decode(&span, place); /* over itself */
        ck_assert_uint_eq(d.length, rows[i].length);
        ck_assert_uint_eq(d.units, rows[i].units);
        ck_assert(d.lone == rows[i].lone && d.nul == rows[i].nul);
        ck_assert_int_eq(memcmp(place, rows[i].content, d.length), 0);
    }
    ck_assert(code_scan_equals(&(struct code_span){"\"c\\u006fde\"", 11, CODE_SCAN_STRING}, "code"));
    ck_assert(!code_scan_equals(&(struct code_span){"\"cod\"", 5, CODE_SCAN_STRING}, "code"));
    ck_assert(!code_scan_equals(&(struct code_span){"\"code\\u0000\"", 12, CODE_SCAN_STRING}, "code"));
}
END_TEST

/* Random texts made of JSON's own pieces: what jansson takes the scanner takes, and what it refuses is refused (but for
 * what the two are known to see differently: numbers and surrogates, which are not among the pieces). */
START_TEST(test_against_another_parser)
{
    static const char *const pieces[] = {"{",    "}",    "[", "]",  ",",   ":",        "\"a\"", "\"b\"", "1",
                                         "true", "null", " ", "\"", "\\n", "\xc3\xa9", "\xc3",  "-",     "2.5"};
    struct code_scan_fault fault;
    unsigned random = 20260101;
    size_t accepted = 0;

    for (int round = 0; round < 200000; round++) {
        char text[128] = "";
        size_t count;
        random = random * 1103515245u + 12345u;
        count = 1 + (random >> 16) % 9;
        for (size_t i = 0; i < count; i++) {
            random = random * 1103515245u + 12345u;
            strcat(text, pieces[(random >> 16) % (sizeof(pieces) / sizeof(pieces[0]))]);
        }
        json_t *value = json_loadb(text, strlen(text), JSON_DECODE_ANY, NULL);
        bool good = scan(text, strlen(text), 100, &fault);
        ck_assert_msg(good == (value != NULL), "%s", text);
        accepted += good;
        json_decref(value);
    }
    ck_assert_uint_gt(accepted, 1000);
}
END_TEST

SK_CHECK_MAIN("code host scan", test_grammar, test_place_of_fault, test_depth, test_members, test_decode,
              test_against_another_parser)
