/* SPDX-License-Identifier: Apache-2.0
 * Strict JSON: hostile texts are refused cheaply and without quoting them; getters name the field; problem objects. */
#include "common/base/json.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static json_t *parse(const char *text, struct sk_error *err)
{
    sk_error_clear(err);
    return sk_json_parse(text, strlen(text), NULL, err);
}

START_TEST(test_bad_texts)
{
    static const struct {
        const char *text;
        size_t len;
        const char *message; /* part of it */
    } rows[] = {
#define ROW(text, message) {text, sizeof(text) - 1, message}
        ROW("", "empty"),
        ROW("{", "ends too early"),
        ROW("nope", "not JSON"),
        ROW("{\"a\":1}x", "something follows"),
        ROW("{\"a\":1} {}", "something follows"),
        ROW("{\"a\":1,\"a\":2}", "twice"),
        ROW("{\"x\":{\"a\":1,\"a\":1}}", "twice"),
        ROW("{\"a\":\"\xff\"}", "not valid UTF-8"),
        ROW("{\"a\":\"\xed\xa0\x80\"}", "not valid UTF-8"),
        ROW("{\"a\":\"\xc0\x80\"}", "not valid UTF-8"),
        ROW("{\"a\":\"\\ud800\"}", "not"),
        ROW("{\"a\\u0000b\":1}", "NUL"),
        ROW("{\"a\":\0}", "not"),
        ROW("{\"a\":1}\0", "not"),
        ROW("{\"a\":1e999}", "too large"),
        ROW("{\"a\":99999999999999999999}", "too large"),
        ROW("{\"a\":NaN}", "not JSON"),
        ROW("{'a':1}", "not JSON"),
        ROW("{\"a\":01}", "not"),
        ROW("[1,]", "not JSON"),
        ROW("// c\n{}", "not JSON"),
        ROW("\xef\xbb\xbf{}", "not"),
#undef ROW
    };
    struct sk_error err;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        sk_error_clear(&err);
        ck_assert_msg(sk_json_parse(rows[i].text, rows[i].len, NULL, &err) == NULL, "row %zu", i);
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
        ck_assert_msg(strstr(err.message, rows[i].message) != NULL, "row %zu: %s", i, err.message);
    }
    /* Nothing of the input is repeated: messages go into logs. */
    ck_assert_ptr_null(parse("{\"password\": hunter2}", &err));
    ck_assert_ptr_null(strstr(err.message, "hunter2"));
    ck_assert_ptr_null(strstr(err.message, "password"));
    ck_assert_ptr_nonnull(strstr(err.message, "line 1"));
}
END_TEST

START_TEST(test_depth_is_refused_cheaply)
{
    enum { DEEP = 100000 };
    char *deep = malloc(DEEP + 1);
    struct sk_error err = {0};
    struct sk_json_limits wide = {.max_bytes = 1 << 20, .max_depth = SK_JSON_MAX_DEPTH};
    json_t *value;
    clock_t start = clock();

    for (int round = 0; round < 20; round++) {
        memset(deep, round % 2 == 0 ? '[' : '{', DEEP);
        ck_assert_ptr_null(sk_json_parse(deep, DEEP, &wide, &err));
        ck_assert_ptr_nonnull(strstr(err.message, "deeper than 64"));
    }
    ck_assert_int_lt((long)(clock() - start), CLOCKS_PER_SEC);
    free(deep);

    /* Exactly 64 is allowed, 65 is not; brackets inside strings do not count. */
    char text[200];
    for (int depth = 64; depth <= 65; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        value = sk_json_parse(text, (size_t)depth * 2, NULL, &err);
        ck_assert_int_eq(value != NULL, depth == 64);
        json_decref(value);
    }
    value = parse("{\"a\":\"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"}", &err);
    ck_assert_msg(value != NULL, "%s", err.message);
    json_decref(value);
}
END_TEST

START_TEST(test_size_limit)
{
    size_t len = SK_JSON_MAX_BYTES + 1;
    char *text = malloc(len);
    struct sk_error err = {0};
    json_t *value;

    memset(text, 'x', len);
    text[0] = '"';
    text[len - 2] = '"';
    value = sk_json_parse(text, len - 1, NULL, &err);
    ck_assert_msg(value != NULL, "%s", err.message);
    json_decref(value);
    text[len - 2] = 'x';
    text[len - 1] = '"';
    ck_assert_ptr_null(sk_json_parse(text, len, NULL, &err));
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    free(text);
}
END_TEST

START_TEST(test_object_wanted)
{
    static const char *const others[] = {"[]", "1", "\"x\"", "null", "true"};
    struct sk_error err = {0};
    json_t *value = sk_json_parse_object("{}", 2, NULL, &err);

    ck_assert_ptr_nonnull(value);
    json_decref(value);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        ck_assert_ptr_null(sk_json_parse_object(others[i], strlen(others[i]), NULL, &err));
        ck_assert_str_eq(err.message, "the JSON text must be an object");
    }
}
END_TEST

START_TEST(test_getters_name_the_field)
{
    struct sk_error err = {0};
    json_t *object = parse("{\"s\":\"text\",\"empty\":\"\",\"nul\":\"a\\u0000b\",\"i\":42,\"r\":1.5,\"whole\":3e2,"
                           "\"huge\":1e300,\"b\":true,\"o\":{},\"a\":[1,2,3],\"ea\":[],\"n\":null,"
                           "\"t\":\"2026-11-30T08:00:00.000Z\",\"op\":\"stop\"}",
                           &err);
    static const char *const ops[] = {"ensure", "stop", NULL};
    const char *text = "default";
    int64_t number = -7, time = 0;
    const json_t *inner = NULL;
    double real = 0;
    bool flag = false;
    size_t len = 0;
    int choice = -1;

    ck_assert_msg(object != NULL, "%s", err.message);
    ck_assert_int_eq(sk_json_get_string(object, "", "s", 0, 4, &text, &len, &err), 1);
    ck_assert_str_eq(text, "text");
    ck_assert_uint_eq(len, 4);
    ck_assert_int_eq(sk_json_get_int(object, NULL, "i", 0, 0, 42, &number, &err), 1);
    ck_assert_int_eq(number, 42);
    ck_assert_int_eq(sk_json_get_int(object, NULL, "whole", 0, 0, 300, &number, &err), 1);
    ck_assert_int_eq(number, 300);
    ck_assert_int_eq(sk_json_get_number(object, NULL, "r", 0, 0, 2, &real, &err), 1);
    ck_assert_double_eq(real, 1.5);
    ck_assert_int_eq(sk_json_get_number(object, NULL, "i", 0, 0, 100, &real, &err), 1);
    ck_assert_int_eq(sk_json_get_bool(object, NULL, "b", 0, &flag, &err), 1);
    ck_assert(flag);
    ck_assert_int_eq(sk_json_get_object(object, NULL, "o", 0, &inner, &err), 1);
    ck_assert_int_eq(sk_json_get_array(object, NULL, "a", SK_JSON_NOT_EMPTY, 3, &inner, &err), 1);
    ck_assert_int_eq(sk_json_get_time(object, NULL, "t", 0, &time, &err), 1);
    ck_assert_int_eq(time, 1796025600000);
    ck_assert_int_eq(sk_json_get_choice(object, NULL, "op", 0, ops, &choice, &err), 1);
    ck_assert_int_eq(choice, 1);
    /* Absent and optional: the default stays. */
    text = "default";
    ck_assert_int_eq(sk_json_get_string(object, "", "missing", 0, 4, &text, &len, &err), 0);
    ck_assert_int_eq(sk_json_get_string(object, "", "n", SK_JSON_NULLABLE, 4, &text, &len, &err), 0);
    ck_assert_str_eq(text, "default");

#define BAD(call, expected)                                                                                            \
    do {                                                                                                               \
        sk_error_clear(&err);                                                                                          \
        ck_assert_int_eq(call, -1);                                                                                    \
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);                                                            \
        ck_assert_str_eq(err.message, expected);                                                                       \
    } while (0)
    BAD(sk_json_get_string(object, "", "missing", SK_JSON_REQUIRED, 4, &text, NULL, &err), "missing is required");
    BAD(sk_json_get_string(object, "", "n", SK_JSON_REQUIRED | SK_JSON_NULLABLE, 4, &text, NULL, &err),
        "n is required");
    BAD(sk_json_get_string(object, "", "n", 0, 4, &text, NULL, &err), "n must be a string");
    BAD(sk_json_get_string(object, "p", "i", 0, 4, &text, NULL, &err), "p.i must be a string");
    BAD(sk_json_get_string(object, "p", "s", 0, 3, &text, NULL, &err), "p.s must have at most 3 bytes");
    BAD(sk_json_get_string(object, "", "empty", SK_JSON_NOT_EMPTY, 3, &text, NULL, &err), "empty must not be empty");
    BAD(sk_json_get_string(object, "", "nul", 0, 9, &text, NULL, &err), "nul must not contain a NUL character");
    BAD(sk_json_get_int(object, "params.limit", "s", 0, 0, 9, &number, &err), "params.limit.s must be a number");
    BAD(sk_json_get_int(object, "", "r", 0, 0, 9, &number, &err), "r must be a whole number");
    BAD(sk_json_get_int(object, "", "i", 0, 0, 41, &number, &err), "i must be in 0..41");
    BAD(sk_json_get_int(object, "", "huge", 0, 0, 41, &number, &err), "huge must be in 0..41");
    BAD(sk_json_get_number(object, "params.limit", "s", 0, 0, 9, &real, &err), "params.limit.s must be a number");
    BAD(sk_json_get_number(object, "", "r", 0, 2, 9, &real, &err), "r must be in 2..9");
    BAD(sk_json_get_bool(object, "", "i", 0, &flag, &err), "i must be true or false");
    BAD(sk_json_get_object(object, "", "a", 0, &inner, &err), "a must be an object");
    BAD(sk_json_get_array(object, "", "o", 0, 9, &inner, &err), "o must be an array");
    BAD(sk_json_get_array(object, "", "a", 0, 2, &inner, &err), "a must have at most 2 items");
    BAD(sk_json_get_array(object, "", "ea", SK_JSON_NOT_EMPTY, 2, &inner, &err), "ea must not be empty");
    BAD(sk_json_get_time(object, "", "s", 0, &time, &err), "s must be an RFC 3339 time");
    BAD(sk_json_get_choice(object, "", "s", 0, ops, &choice, &err), "s must be one of ensure, stop");
#undef BAD
    json_decref(object);
}
END_TEST

START_TEST(test_dump_is_compact_and_sortable)
{
    struct sk_error err = {0};
    json_t *value = parse("{\"b\": 1, \"a\": [true, null, \"\\u0000\"]}", &err);
    size_t len;
    char *text = sk_json_dump(value, false, &len, &err);

    ck_assert_str_eq(text, "{\"b\":1,\"a\":[true,null,\"\\u0000\"]}");
    ck_assert_uint_eq(len, strlen(text));
    free(text);
    text = sk_json_dump(value, true, NULL, &err);
    ck_assert_str_eq(text, "{\"a\":[true,null,\"\\u0000\"],\"b\":1}");
    free(text);
    json_decref(value);
    ck_assert_ptr_null(sk_json_dump(NULL, false, &len, &err));
    ck_assert_int_eq(err.code, SK_ERR_INTERNAL);
}
END_TEST

START_TEST(test_any_bytes_become_text)
{
    json_t *value = sk_json_text("a\xff\xe7\x94z\xe7\x94\xa8");

    ck_assert_str_eq(json_string_value(value), "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\xe7\x94\xa8");
    json_decref(value);
    value = sk_json_text(NULL);
    ck_assert(json_is_null(value));
}
END_TEST

START_TEST(test_problem_object)
{
    struct sk_error err = {0}, back = {0};
    json_t *problem;

    sk_fail(&err, SK_ERR_AGENT_SANDBOX_INITIALIZING, "being made");
    err.retry_after_ms = 1500;
    problem = sk_json_problem(&err);
    ck_assert_str_eq(json_string_value(json_object_get(problem, "type")),
                     "https://sandkeep.dev/errors/agent-sandbox-initializing");
    ck_assert_str_eq(json_string_value(json_object_get(problem, "title")), "The sandbox is being prepared");
    ck_assert_str_eq(json_string_value(json_object_get(problem, "code")), "agent_sandbox_initializing");
    ck_assert_str_eq(json_string_value(json_object_get(problem, "detail")), "being made");
    ck_assert_int_eq(json_integer_value(json_object_get(problem, "status")), 409);
    ck_assert(json_is_true(json_object_get(problem, "retryable")));
    ck_assert_int_eq(json_integer_value(json_object_get(problem, "retryAfterMs")), 1500);
    ck_assert_int_eq(json_integer_value(json_object_get(problem, "fastgptCode")), 510001);
    ck_assert_int_eq(sk_json_problem_to_error(problem, &back), -1);
    ck_assert_int_eq(back.code, err.code);
    ck_assert_str_eq(back.message, err.message);
    ck_assert_int_eq(back.retry_after_ms, 1500);
    ck_assert_int_eq(back.http_status, 409);
    json_decref(problem);

    sk_fail(&err, SK_ERR_LOST_OWNERSHIP, "bad byte \xff");
    problem = sk_json_problem(&err);
    ck_assert_str_eq(json_string_value(json_object_get(problem, "code")), "internal");
    ck_assert_str_eq(json_string_value(json_object_get(problem, "detail")), "bad byte \xef\xbf\xbd");
    ck_assert_ptr_null(json_object_get(problem, "retryAfterMs"));
    ck_assert_ptr_null(json_object_get(problem, "fastgptCode"));
    json_decref(problem);
}
END_TEST

START_TEST(test_problem_of_others)
{
    static const char *const texts[] = {"{}", "{\"code\":\"from_the_future\",\"detail\":7}", "{\"code\":\"ok\"}",
                                        "{\"code\":\"sandbox_busy\",\"status\":99999,\"retryable\":\"yes\"}"};
    struct sk_error err;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        json_t *value = parse(texts[i], &err);
        ck_assert_int_eq(sk_json_problem_to_error(value, &err), -1);
        ck_assert_int_eq(err.code, i == 3 ? SK_ERR_SANDBOX_BUSY : SK_ERR_INTERNAL);
        ck_assert_int_ne(err.message[0], '\0');
        json_decref(value);
    }
    ck_assert_int_eq(err.http_status, 409);
    ck_assert(err.retryable);
    ck_assert_int_eq(sk_json_problem_to_error(NULL, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_INTERNAL);
}
END_TEST

SK_CHECK_MAIN("json", test_bad_texts, test_depth_is_refused_cheaply, test_size_limit, test_object_wanted,
              test_getters_name_the_field, test_dump_is_compact_and_sortable, test_any_bytes_become_text,
              test_problem_object, test_problem_of_others)
