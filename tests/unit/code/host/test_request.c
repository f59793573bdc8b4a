/* SPDX-License-Identifier: Apache-2.0
 *
 * Bodies of /sandbox/js and /sandbox/python: status and message of each bad one, the fields of each good one. */
#include "services/code/host/request.h"
#include "tests/unit/check_main.h"

#include <string.h>

#define MAX_MS 60000

/* The body on the heap and exactly as long as it is, so that a byte too far is seen by valgrind and ASan. */
struct body {
    char *text;
    size_t length;
};

static struct body body_of(const char *text, size_t length)
{
    struct body body = {malloc(length > 0 ? length : 1), length};

    ck_assert_ptr_nonnull(body.text);
    memcpy(body.text, text, length);
    return body;
}

#define ROW(text)                text, sizeof(text) - 1
#define TYPE(expected, received) "Invalid request: Invalid input: expected " expected ", received " received

START_TEST(test_refused)
{
    static const struct {
        const char *text;
        size_t length;
        int status;
        const char *message;
    } rows[] = {
        {ROW(""), 400, "Request body is empty"},
        {ROW("  \n"), 400, "Invalid JSON body: it ends too early at line 2, column 1"},
        {ROW("\xef\xbb\xbf"), 400, "Invalid JSON body: it ends too early at line 1, column 1"},
        {ROW("hello"), 400, "Invalid JSON body: it is not JSON at line 1, column 1"},
        {ROW("{\"code\":\"x\""), 400, "Invalid JSON body: it ends too early at line 1, column 12"},
        {ROW("{\"code\":\"x\"} x"), 400, "Invalid JSON body: something follows the document at line 1, column 14"},
        {ROW("{\"code\":\"x\",}"), 400, "Invalid JSON body: it is not JSON at line 1, column 13"},
        {ROW("{'code':1}"), 400, "Invalid JSON body: it is not JSON at line 1, column 2"},
        {ROW("{\"code\":\"a\nb\"}"), 400,
         "Invalid JSON body: a control character stands in a string at line 1, column 11"},
        {ROW("{\"code\":\"\xff\"}"), 400, "Invalid JSON body: it is not valid UTF-8 at line 1, column 10"},
        {ROW("{\"code\":\"\xed\xa0\x80\"}"), 400, "Invalid JSON body: it is not valid UTF-8 at line 1, column 10"},
        {ROW("{\"code\":\"x\",\"variables\":{\"\xc0\xaf\":1}}"), 400,
         "Invalid JSON body: it is not valid UTF-8 at line 1, column 27"},
        {ROW("{\"code\":\"x\",\"timeoutMs\":NaN}"), 400, "Invalid JSON body: it is not JSON at line 1, column 25"},
        {ROW("{\"code\":\"x\",\"timeoutMs\":Infinity}"), 400, "Invalid JSON body: it is not JSON at line 1, column 25"},
        {ROW("{\"code\":\"x\",\"variables\":{\"a\":-Infinity}}"), 400,
         "Invalid JSON body: a number is not complete at line 1, column 31"},
        {ROW("{\"code\":\"x\"\0}"), 400, "Invalid JSON body: it is not JSON at line 1, column 12"},
        {ROW("null"), 400, TYPE("object", "null")},
        {ROW("[]"), 400, TYPE("object", "array")},
        {ROW("\"code\""), 400, TYPE("object", "string")},
        {ROW("1"), 400, TYPE("object", "number")},
        {ROW("true"), 400, TYPE("object", "boolean")},
        {ROW("{}"), 400, TYPE("string", "undefined")},
        {ROW("{\"Code\":\"x\"}"), 400, TYPE("string", "undefined")},
        {ROW("{\"code\":null}"), 400, TYPE("string", "null")},
        {ROW("{\"code\":1}"), 400, TYPE("string", "number")},
        {ROW("{\"code\":true}"), 400, TYPE("string", "boolean")},
        {ROW("{\"code\":[]}"), 400, TYPE("string", "array")},
        {ROW("{\"code\":{}}"), 400, TYPE("string", "object")},
        {ROW("{\"code\":\"\"}"), 400, "Invalid request: Too small: expected string to have >=1 characters"},
        {ROW("{\"code\":\"x\",\"code\":5}"), 400, TYPE("string", "number")},
        {ROW("{\"code\":\"\\ud800\"}"), 400, "Invalid request: code must be well-formed text"},
        {ROW("{\"code\":\"x\",\"variables\":null}"), 400, TYPE("record", "null")},
        {ROW("{\"code\":\"x\",\"variables\":[]}"), 400, TYPE("record", "array")},
        {ROW("{\"code\":\"x\",\"variables\":\"{}\"}"), 400, TYPE("record", "string")},
        {ROW("{\"code\":\"x\",\"variables\":7}"), 400, TYPE("record", "number")},
        {ROW("{\"code\":\"x\",\"variables\":false}"), 400, TYPE("record", "boolean")},
        {ROW("{\"code\":\"x\",\"queueId\":null}"), 400, TYPE("string", "null")},
        {ROW("{\"code\":\"x\",\"queueId\":5}"), 400, TYPE("string", "number")},
        {ROW("{\"code\":\"x\",\"queueId\":{}}"), 400, TYPE("string", "object")},
        {ROW("{\"code\":\"x\",\"queueId\":\"\\udc00\"}"), 400, "Invalid request: queueId must be well-formed text"},
        {ROW("{\"code\":\"x\",\"queueId\":\"a\\u0000b\"}"), 400, "Invalid request: queueId must be well-formed text"},
        /* The first of several complaints is code's, then variables', then queueId's. */
        {ROW("{\"queueId\":5,\"variables\":5,\"code\":5}"), 400, TYPE("string", "number")},
        {ROW("{\"queueId\":5,\"variables\":[],\"code\":\" \"}"), 400, TYPE("record", "array")},
        {ROW("{\"queueId\":5,\"code\":\" \"}"), 400, TYPE("string", "number")},
        /* What only the pool finds out. */
        {ROW("{\"code\":\" \"}"), 200, "Code cannot be empty"},
        {ROW("{\"code\":\"\\n\\t\\u00a0\\u3000\\ufeff\\u2003\\u1680\\u202f\"}"), 200, "Code cannot be empty"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct body body = body_of(rows[i].text, rows[i].length);
        struct code_rejection rejection = {.status = 0};
        struct code_request request;
        bool good = code_request_parse(body.text, body.length, MAX_MS, &request, &rejection);
        ck_assert_msg(!good, "row %zu: %s", i, rows[i].text);
        ck_assert_str_eq(rejection.message, rows[i].message);
        ck_assert_int_eq(rejection.status, rows[i].status);
        free(body.text);
    }
}
END_TEST

START_TEST(test_accepted)
{
    static const struct {
        const char *text, *code, *variables, *queue_id;
        int64_t timeout_ms;
    } rows[] = {
        {"{\"code\":\"x\"}", "x", "{}", "", MAX_MS},
        {"\xef\xbb\xbf{\"code\":\"x\"}", "x", "{}", "", MAX_MS},
        {" {\n\"variables\" : { \"a\" : [1.50, 1e999] } , \"code\" : \"a\\n\\u00e9\\\"\" } ", "a\n\xc3\xa9\"",
         "{ \"a\" : [1.50, 1e999] }", "", MAX_MS},
        {"{\"c\\u006fde\":\"x\"}", "x", "{}", "", MAX_MS},
        {"{\"code\":1,\"code\":\"last\"}", "last", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"variables\":[],\"variables\":{\"a\":1,\"a\":2}}", "x", "{\"a\":1,\"a\":2}", "", MAX_MS},
        {"{\"code\":\"x\",\"variables\":{\"s\":\"\\ud800\",\"__proto__\":{}}}", "x",
         "{\"s\":\"\\ud800\",\"__proto__\":{}}", "", MAX_MS},
        {"{\"code\":\"x\",\"variables\":{\"n\":123456789012345678901234567890}}", "x",
         "{\"n\":123456789012345678901234567890}", "", MAX_MS},
        {"{\"code\":\"x\",\"limits\":{\"timeoutMs\":1},\"zzz\":[[]],\"\":null}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"queueId\":\"team\"}", "x", "{}", "team", MAX_MS},
        {"{\"code\":\"x\",\"queueId\":\" \\t\\u00a0a b\\u3000\\n\"}", "x", "{}", "a b", MAX_MS},
        {"{\"code\":\"x\",\"queueId\":\"\"}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"queueId\":\"  \\ufeff \"}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"queueId\":5,\"queueId\":\"b\"}", "x", "{}", "b", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":1500}", "x", "{}", "", 1500},
        {"{\"code\":\"x\",\"timeoutMs\":1}", "x", "{}", "", 1},
        {"{\"code\":\"x\",\"timeoutMs\":0.2}", "x", "{}", "", 1},
        {"{\"code\":\"x\",\"timeoutMs\":1500.5}", "x", "{}", "", 1501},
        {"{\"code\":\"x\",\"timeoutMs\":2e3}", "x", "{}", "", 2000},
        {"{\"code\":\"x\",\"timeoutMs\":60000}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":60001}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":1e999}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":99999999999999999999}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":0}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":-0.0}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":-5}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":-1e999}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":\"5000\"}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":null}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":[5]}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":{}}", "x", "{}", "", MAX_MS},
        {"{\"code\":\"x\",\"timeoutMs\":true}", "x", "{}", "", MAX_MS},
        {"{\"code\":\" x \"}", " x ", "{}", "", MAX_MS},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct body body = body_of(rows[i].text, strlen(rows[i].text));
        struct code_rejection rejection = {.message = ""};
        struct code_request request;
        ck_assert_msg(code_request_parse(body.text, body.length, MAX_MS, &request, &rejection), "row %zu: %s: %s", i,
                      rows[i].text, rejection.message);
        ck_assert_str_eq(request.code, rows[i].code);
        ck_assert_uint_eq(request.code_length, strlen(rows[i].code));
        ck_assert_str_eq(request.variables, rows[i].variables);
        ck_assert_uint_eq(request.variables_length, strlen(rows[i].variables));
        ck_assert_str_eq(request.queue_id, rows[i].queue_id);
        ck_assert_msg(request.timeout_ms == rows[i].timeout_ms, "row %zu: %lld", i, (long long)request.timeout_ms);
        free(body.text);
    }
}
END_TEST

START_TEST(test_nul_in_code_is_kept)
{
    struct body body = body_of(ROW("{\"code\":\"a\\u0000b\"}"));
    struct code_rejection rejection;
    struct code_request request;

    ck_assert(code_request_parse(body.text, body.length, MAX_MS, &request, &rejection));
    ck_assert_uint_eq(request.code_length, 3);
    ck_assert_int_eq(memcmp(request.code, "a\0b", 4), 0);
    free(body.text);
}
END_TEST

/* head, `count` times `unit`, tail. */
static struct body repeated(const char *head, const char *unit, size_t count, const char *tail)
{
    size_t n = strlen(unit), at = strlen(head);
    struct body body = {malloc(at + n * count + strlen(tail)), at + n * count + strlen(tail)};

    ck_assert_ptr_nonnull(body.text);
    memcpy(body.text, head, at);
    for (size_t i = 0; i < count; i++, at += n)
        memcpy(body.text + at, unit, n);
    memcpy(body.text + at, tail, strlen(tail));
    return body;
}

START_TEST(test_lengths)
{
    static const struct {
        const char *head, *unit;
        size_t count;
        const char *tail, *message; /* NULL = good */
    } rows[] = {
        {"{\"code\":\"", "x", CODE_REQUEST_CODE_MAX, "\"}", NULL},
        {"{\"code\":\"", "x", CODE_REQUEST_CODE_MAX + 1, "\"}",
         "Invalid request: Too big: expected string to have <=5242880 characters"},
        {"{\"code\":\"", "\xc3\xa9", CODE_REQUEST_CODE_MAX, "\"}", NULL}, /* characters, not bytes */
        {"{\"code\":\"", "\xf0\x9f\x98\x80", CODE_REQUEST_CODE_MAX / 2, "\"}", NULL},
        {"{\"code\":\"", "\xf0\x9f\x98\x80", CODE_REQUEST_CODE_MAX / 2, "x\"}",
         "Invalid request: Too big: expected string to have <=5242880 characters"},
        {"{\"code\":\"x\",\"queueId\":\"", "q", 128, "\"}", NULL},
        {"{\"code\":\"x\",\"queueId\":\"  ", "q", 128, "  \"}", NULL},
        {"{\"code\":\"x\",\"queueId\":\"", "\xe2\x82\xac", 128, "\"}", NULL},
        {"{\"code\":\"x\",\"queueId\":\"", "\xf0\x9f\x98\x80", 64, "\"}", NULL},
        {"{\"code\":\"x\",\"queueId\":\"", "q", 129, "\"}",
         "Invalid request: Too big: expected string to have <=128 characters"},
        {"{\"code\":\"x\",\"queueId\":\"", "\xf0\x9f\x98\x80", 65, "\"}",
         "Invalid request: Too big: expected string to have <=128 characters"},
        {"{\"code\":\"x\",\"queueId\":\"", " ", 1000000, "\"}", NULL},
        {"{\"code\":\"x\",\"variables\":{\"a\":", "[", 998, "",
         "Invalid JSON body: it ends too early at line 1, column 1028"},
        {"{\"code\":\"x\",\"variables\":{\"a\":", "[", 10000, "",
         "Invalid JSON body: it is nested too deeply at line 1, column 1028"},
        {"{\"code\":\"x\",\"z\":", "[", 10000, "", "Invalid JSON body: it is nested too deeply at line 1, column 1016"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct body body = repeated(rows[i].head, rows[i].unit, rows[i].count, rows[i].tail);
        struct code_rejection rejection = {.message = ""};
        struct code_request request;
        bool good = code_request_parse(body.text, body.length, MAX_MS, &request, &rejection);
        ck_assert_str_eq(rejection.message, rows[i].message != NULL ? rows[i].message : "");
        ck_assert(good == (rows[i].message == NULL));
        free(body.text);
    }
}
END_TEST

START_TEST(test_too_large)
{
    struct code_rejection rejection;

    code_request_too_large(8, &rejection);
    ck_assert_int_eq(rejection.status, 413);
    ck_assert_str_eq(rejection.message, "Request body too large, max 8MB");
}
END_TEST

SK_CHECK_MAIN("code host request", test_refused, test_accepted, test_nul_in_code_is_kept, test_lengths, test_too_large)
