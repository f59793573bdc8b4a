/* SPDX-License-Identifier: Apache-2.0
 *
 * The JavaScript runtime: the tables of cases, each row in a child of one prepared process, and what a table cannot
 * say: requests through the broker, randomness, what is left by one task for the next. */
#include "tests/unit/code/js/cases.h"
#include "tests/unit/code/js/harness.h"

#include "services/code/js/environment.h"

#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define LIMITS_OF_MEMORY 0 /* the sanitizer needs terabytes of it */
/* The engine gives nothing back at the end, and its heap is not one that the sanitizer could search. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}
#else
#define LIMITS_OF_MEMORY 1
#endif

static const char *const modules[] = {"lodash", "dayjs", "moment",      "uuid",   "crypto-js",
                                      "qs",     "url",   "querystring", "buffer", NULL};

static const struct {
    const struct js_case *rows;
    const int *count;
} tables[] = {{cases_basic, &cases_basic_count},
              {cases_values, &cases_values_count},
              {cases_guard, &cases_guard_count},
              {cases_modules, &cases_modules_count},
              {cases_limits, &cases_limits_count}};

static struct code_task task_of(const char *code, const char *variables)
{
    return (struct code_task){
        .code = code, .code_length = strlen(code), .variables = variables, .variables_length = strlen(variables)};
}

static const char *text(json_t *frame, const char *key)
{
    const char *found = json_string_value(json_object_get(frame, key));

    return found == NULL ? "" : found;
}

static void check_case(const struct js_case *c)
{
    struct code_task task = task_of(c->code, c->variables == NULL ? "{}" : c->variables);
    bool fails = c->message != NULL || c->part != NULL;
    json_t *frame, *expected, *log;
    char *dump;
    int status = 0;

    if (c->memory_mb > 0 && !LIMITS_OF_MEMORY)
        return;
    task.strict = c->strict;
    task.limits.timeout_ms = c->timeout_ms;
    task.limits.output_bytes = c->output_bytes;
    task.limits.log_bytes = c->log_bytes;
    frame = js_run(&task, c->memory_mb, NULL, &status);
    /* The engine does not survive every allocation that fails: then the zygote tells the end by its signal and size. */
    if (frame == NULL && c->memory_mb > 0 && c->fails != NULL && WIFSIGNALED(status))
        return;
    ck_assert_msg(frame != NULL, "%s: no result, status 0x%x", c->name, (unsigned)status);
    dump = json_dumps(frame, JSON_COMPACT);
    if (dump != NULL && strlen(dump) > 1500)
        dump[1500] = '\0';
    ck_assert_msg(json_is_true(json_object_get(frame, "ok")) == !fails, "%s: %s", c->name, dump);
    if (fails) {
        ck_assert_msg(strcmp(text(frame, "code"), c->fails == NULL ? "error" : c->fails) == 0, "%s: code: %s", c->name,
                      dump);
        ck_assert_msg(c->message == NULL || strcmp(text(frame, "message"), c->message) == 0, "%s: message: %s", c->name,
                      dump);
        ck_assert_msg(c->part == NULL || strstr(text(frame, "message"), c->part) != NULL, "%s: message: %s", c->name,
                      dump);
        ck_assert_msg(c->type == NULL || strcmp(text(frame, "type"), c->type) == 0, "%s: type: %s", c->name, dump);
        ck_assert_msg(c->line == 0 || json_integer_value(json_object_get(frame, "line")) == c->line, "%s: line: %s",
                      c->name, dump);
        ck_assert_msg(c->traceback == NULL || strcmp(text(frame, "traceback"), c->traceback) == 0, "%s: traceback: %s",
                      c->name, dump);
        ck_assert_msg(strstr(dump, "sandkeep") == NULL && strstr(dump, "native code") == NULL, "%s: frames of ours: %s",
                      c->name, dump);
    } else {
        expected = json_loads(c->value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        ck_assert_msg(expected != NULL, "%s: the expectation is no JSON", c->name);
        ck_assert_msg(json_equal(json_object_get(frame, "value"), expected), "%s: %s", c->name, dump);
        json_decref(expected);
    }
    log = json_object_get(frame, "log");
    ck_assert_msg(json_is_string(log), "%s: no log: %s", c->name, dump);
    if (c->log == NULL || strcmp(c->log, "*") != 0)
        ck_assert_msg(strcmp(json_string_value(log), c->log == NULL ? "" : c->log) == 0, "%s: log: %s", c->name, dump);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status 0x%x", c->name, (unsigned)status);
    free(dump);
    json_decref(frame);
}

START_TEST(test_cases)
{
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
        if (_i < *tables[t].count) {
            check_case(&tables[t].rows[_i]);
            return;
        }
        _i -= *tables[t].count;
    }
}
END_TEST

/* Runs code that must succeed; its value, a new reference. */
static json_t *value_of(const char *code, struct js_broker *broker)
{
    struct code_task task = task_of(code, "{}");
    int status;
    json_t *frame = js_run(&task, 0, broker, &status), *value;
    char *dump;

    ck_assert_ptr_nonnull(frame);
    dump = json_dumps(frame, JSON_COMPACT);
    ck_assert_msg(json_is_true(json_object_get(frame, "ok")), "%.1500s", dump);
    value = json_incref(json_object_get(frame, "value"));
    free(dump);
    json_decref(frame);
    return value;
}

/* The request itself is the data of its answer. */
static json_t *echo(struct js_broker *broker, int n, json_t *request)
{
    char *data = json_dumps(request, JSON_COMPACT | JSON_SORT_KEYS);
    json_t *answer = json_pack("{s:O, s:b, s:i, s:s, s:{s:s}, s:s}", "id", json_object_get(request, "id"), "ok", 1,
                               "status", 200 + n, "statusText", "OK", "headers", "x-n", "1", "data", data);

    (void)broker;
    free(data);
    return answer;
}

START_TEST(test_http_request)
{
    struct js_broker broker = {.answer = echo, .expect = 1};
    json_t *value =
               value_of("async function main() { const r = await httpRequest('http://a/b', { method: 'post', headers: "
                        "{ 'X-A': 1, n: null }, body: { q: [1] }, timeout: 2.5, followRedirects: true });\n"
                        " return [r.status, r.statusText, r.headers, JSON.parse(r.data), Object.keys(r)] }",
                        &broker),
           *expected =
               json_loads("[200,\"OK\",{\"x-n\":\"1\"},{\"id\":1,\"type\":\"http_request\",\"url\":\"http://a/"
                          "b\",\"method\":\"POST\",\"headers\":{\"X-A\":\"1\",\"Content-Type\":\"application/json\"},"
                          "\"body\":\"{\\\"q\\\":[1]}\",\"timeoutMs\":2500,\"followRedirects\":true},[\"status\","
                          "\"statusText\",\"headers\",\"data\"]]",
                          0, NULL);

    ck_assert_msg(json_equal(value, expected), "%s", json_dumps(value, 0));
    json_decref(value);
    json_decref(expected);
}
END_TEST

START_TEST(test_http_defaults)
{
    struct js_broker broker = {.answer = echo, .expect = 3};
    json_t *value =
               value_of("async function main() { const get = async (...a) => JSON.parse((await "
                        "SystemHelper.httpRequest(...a)).data);\n"
                        " return [await get('http://a'), await get('http://a', { body: 'x', headers: { 'content-type': "
                        "'text/plain' }, timeoutMs: 70 }), await get('http://a', { timeout: 1e9, body: 5 })] }",
                        &broker),
           *expected = json_loads(
               "[{\"id\":1,\"type\":\"http_request\",\"url\":\"http://"
               "a\",\"method\":\"GET\",\"headers\":{},\"timeoutMs\":60000},"
               "{\"id\":2,\"type\":\"http_request\",\"url\":\"http://"
               "a\",\"method\":\"GET\",\"headers\":{\"content-type\":\"text/plain\"},\"body\":\"x\",\"timeoutMs\":70},"
               "{\"id\":3,\"type\":\"http_request\",\"url\":\"http://"
               "a\",\"method\":\"GET\",\"headers\":{\"Content-Type\":\"application/"
               "json\"},\"body\":\"5\",\"timeoutMs\":60000}]",
               0, NULL);

    ck_assert_msg(json_equal(value, expected), "%s", json_dumps(value, 0));
    json_decref(value);
    json_decref(expected);
}
END_TEST

START_TEST(test_http_flight)
{
    struct js_broker broker = {.answer = echo, .hold = 4, .expect = 14};
    json_t *value = value_of("async function main() { const all = await Promise.all(Array.from({ length: 14 }, (_, i) "
                             "=> httpRequest('http://a/' + i)));\n"
                             " return all.every((r, i) => JSON.parse(r.data).url === 'http://a/' + i) }",
                             &broker);

    ck_assert(json_is_true(value));
    ck_assert_int_eq(broker.requests, 14);
    ck_assert_int_eq(broker.peak, 4);
    json_decref(value);
}
END_TEST

START_TEST(test_http_large)
{
    struct js_broker broker = {.answer = echo, .expect = 6};
    json_t *value = value_of("async function main() { const all = await Promise.all([1, 2, 3, 4, 5, 6].map((i) => "
                             "httpRequest('http://a/' + i, { body: ('\\u4f60' + i).repeat(1000000) })));\n"
                             " return all.map((r) => JSON.parse(r.data).body.length) }",
                             &broker);

    ck_assert_int_eq((int)json_array_size(value), 6);
    ck_assert_int_eq((int)json_integer_value(json_array_get(value, 5)), 2000000);
    json_decref(value);
}
END_TEST

static json_t *refuse(struct js_broker *broker, int n, json_t *request)
{
    (void)broker;
    (void)n;
    return json_pack("{s:O, s:b, s:s}", "id", json_object_get(request, "id"), "ok", 0, "message",
                     "Request to private network not allowed");
}

static void expect_text(const char *code, struct js_broker *broker, const char *expected)
{
    json_t *value = value_of(code, broker);

    ck_assert_msg(json_is_string(value) && strcmp(json_string_value(value), expected) == 0, "%s",
                  json_dumps(value, JSON_ENCODE_ANY));
    json_decref(value);
}

START_TEST(test_http_refusals)
{
    struct js_broker refusing = {.answer = refuse, .expect = 1}, none = {.answer = echo, .expect = 1},
                     echoing = {.answer = echo, .expect = 1};

    expect_text("async function main() { try { await httpRequest('http://10.0.0.1') } catch (e) { return e.message } }",
                &refusing, "Request to private network not allowed");
    expect_text("async function main() { try { await httpRequest('http://a', { body: 'x'.repeat((5 << 20) + 1) }) } "
                "catch (e) { return e.message } }",
                &none, "Request body too large");
    expect_text("async function main() { try { await httpRequest('ftp://a', { body: '\\u4f60'.repeat(2 << 20) }) } "
                "catch (e) { return e.message } }",
                &none, "Protocol not allowed");
    ck_assert_int_eq(none.requests, 0);
    expect_text("async function main() { const all = await Promise.allSettled(Array.from({ length: 32 }, () => "
                "httpRequest('http://a'))); return all.map((r) => r.reason?.message).filter(Boolean).join() }",
                &echoing, "Request limit exceeded,Request limit exceeded");
    ck_assert_int_eq(echoing.requests, 30);
    expect_text("async function main() { try { await httpRequest('http://a') } catch (e) { return e.message } }", NULL,
                "Network is not available");
}
END_TEST

START_TEST(test_http_lost)
{
    struct js_broker closing = {.answer = echo, .expect = 3, .hold = 3, .close_after = 1},
                     junk = {.answer = echo, .expect = 1, .junk = true};

    expect_text(
        "async function main() { const all = await Promise.allSettled([1, 2, 3].map(() => httpRequest('http://a')));\n"
        " try { await httpRequest('http://a') } catch (e) { all.push({ reason: e }) } return all.map((r) => "
        "r.reason?.message ?? 'ok').join() }",
        &closing, "ok,Network connection lost,Network connection lost,Network connection lost");
    expect_text("async function main() { try { await httpRequest('http://a') } catch (e) { return e.message } }", &junk,
                "Network connection lost");
}
END_TEST

static void expect_failure(const char *code, struct js_broker *broker, const char *message, int line,
                           const char *traceback)
{
    struct code_task task = task_of(code, "{}");
    int status;
    json_t *frame = js_run(&task, 0, broker, &status);
    char *dump;

    ck_assert_ptr_nonnull(frame);
    dump = json_dumps(frame, JSON_COMPACT);
    ck_assert_msg(json_is_false(json_object_get(frame, "ok")), "%s", dump);
    ck_assert_str_eq(text(frame, "message"), message);
    ck_assert_str_eq(text(frame, "type"), "Error");
    ck_assert_msg(json_integer_value(json_object_get(frame, "line")) == line, "%s", dump);
    ck_assert_str_eq(text(frame, "traceback"), traceback);
    free(dump);
    json_decref(frame);
}

/* A request that fails is told where it was made, whenever that shows: by the answer or by the end of the line. */
START_TEST(test_http_failure_has_a_line)
{
    struct js_broker refusing = {.answer = refuse, .expect = 1}, later = {.answer = refuse, .expect = 1},
                     hostile = {.answer = refuse, .expect = 1}, junk = {.answer = echo, .expect = 1, .junk = true};

    expect_failure("async function main() {\n\n  return await httpRequest('http://10.0.0.1/')\n}", &refusing,
                   "Request to private network not allowed", 3,
                   "Error: Request to private network not allowed\n    at main (code.js:3:27)\n"
                   "    at main (code.js:1:21)"); /* an asynchronous function is two to the engine */
    expect_failure("async function get(url) {\n  await delay(1)\n  return httpRequest(url)\n}\n"
                   "async function main() {\n  return await get('http://10.0.0.1/')\n}",
                   &later, "Request to private network not allowed", 3,
                   "Error: Request to private network not allowed\n    at get (code.js:3:21)");
    expect_failure("async function main() {\n  const p = httpRequest('http://10.0.0.1/')\n"
                   "  Error.prototype.message = 'x'; Object.prototype.get = () => 1\n  await p\n}",
                   &hostile, "Request to private network not allowed", 2,
                   "Error: Request to private network not allowed\n    at main (code.js:2:24)\n"
                   "    at main (code.js:1:21)");
    expect_failure("async function main() {\n  await httpRequest('http://a')\n}", &junk, "Network connection lost", 2,
                   "Error: Network connection lost\n    at main (code.js:2:20)\n    at main (code.js:1:21)");
    expect_text("async function main() { try { await httpRequest('http://10.0.0.1') } catch (e) { return "
                "[e instanceof Error, Object.keys(e).length, String(e)].join() } }",
                &refusing, "true,0,Error: Request to private network not allowed");
}
END_TEST

START_TEST(test_http_beside_timers)
{
    struct js_broker broker = {.answer = echo, .expect = 2, .hold = 2};

    expect_text("async function main() { const first = httpRequest('http://a'); const o = []; setTimeout(() => { "
                "o.push('timer'); httpRequest('http://b') }, 5); await first; o.push('first'); return o.join() }",
                &broker, "timer,first");
}
END_TEST

/* Two intervals whose callbacks take longer than they are: one of them is always due. */
START_TEST(test_http_beside_a_busy_interval)
{
    struct js_broker broker = {.answer = echo, .expect = 1};

    expect_text(
        "const busy = () => { const end = Date.now() + 4; while (Date.now() < end); };\n"
        "async function main() { setInterval(busy, 1); setInterval(busy, 1); const r = await httpRequest('http://a');"
        " return 'status ' + r.status }",
        &broker, "status 200");
}
END_TEST

START_TEST(test_randomness_of_siblings)
{
    static const char code[] = "function main() { return [Math.random(), Math.random(), crypto.randomUUID(), "
                               "require('uuid').v4(), require('lodash').random(1e9)].join() }";
    json_t *seen = json_object();

    for (int i = 0; i < 8; i++) {
        json_t *value = value_of(code, NULL);

        ck_assert_msg(json_object_get(seen, json_string_value(value)) == NULL, "repeated: %s",
                      json_string_value(value));
        json_object_set_new(seen, json_string_value(value), json_true());
        for (const char *part = json_string_value(value); part != NULL; part = strchr(part + 1, ','))
            ck_assert_int_gt((int)strlen(part), 1);
        json_decref(value);
    }
    json_decref(seen);
}
END_TEST

START_TEST(test_nothing_is_left)
{
    json_decref(value_of(
        "function main() { Array.prototype.hacked = 1; JSON.stringify = null; String.leak = 1; "
        "require('lodash').templateSettings.leak = 1;"
        " require('moment').locale('fr'); variables.x = 1; console.log('secret'); setInterval(() => 1, 1); return 1 }",
        NULL));
    expect_text(
        "function main() { console.log('l'); return [[].hacked, typeof JSON.stringify, String.leak, "
        "require('lodash').templateSettings.leak, require('moment').locale(), Object.keys(variables).length].join() }",
        NULL, ",function,,,en,0");
}
END_TEST

/* Deeper than the parser of these tests goes. */
START_TEST(test_deep_values)
{
    enum { DEPTH = 10000 };
    static char variables[6 * DEPTH + 64], expected[sizeof(variables) + 64];
    struct code_task task;
    char *at = variables, *frame;
    size_t length;
    int status;

    for (int i = 0; i < DEPTH; i++)
        at = stpcpy(at, "{\"a\":");
    at = stpcpy(at, "1");
    for (int i = 0; i < DEPTH; i++)
        at = stpcpy(at, "}");
    task = task_of("function main(v) { return v }", variables);
    frame = js_run_text(&task, 0, NULL, &status, &length);
    snprintf(expected, sizeof(expected), "{\"ok\":true,\"value\":%s,\"log\":\"\"}", variables);
    ck_assert_ptr_nonnull(frame);
    ck_assert_msg(strcmp(frame, expected) == 0, "%.200s", frame);
    free(frame);
}
END_TEST

START_TEST(test_one_thread)
{
    DIR *dir = opendir("/proc/self/task");
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(dir);
    ck_assert_int_eq(count, 1);
}
END_TEST

/* Whatever has the number of the engine's eventfd in a task would be written to. */
START_TEST(test_no_eventfd)
{
    DIR *dir = opendir("/proc/self/fd");
    int null = 0;

    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char target[128];
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

        if (n <= 0)
            continue;
        target[n] = '\0';
        ck_assert_msg(strstr(target, "eventfd") == NULL && strstr(target, "eventpoll") == NULL, "%s is %s",
                      entry->d_name, target);
        null += strtol(entry->d_name, NULL, 10) > 2 && strcmp(target, "/dev/null") == 0;
    }
    closedir(dir);
    ck_assert_int_ge(null, 1);
}
END_TEST

/* What a deployment allows is what require() gives; what this build does not have is an error at the start. Each in a
 * process of its own: a runtime is prepared once. */
START_TEST(test_module_list)
{
    static const char *const few[] = {"dayjs", NULL}, *const none[] = {NULL}, *const unknown[] = {"qs", "axios", NULL};
    struct sk_error err;

    ck_assert_int_eq(code_runtime_js.prepare(none, &err), 0);
    expect_text("function main() { try { require('qs') } catch (e) { return e.message } }", NULL,
                "Module 'qs' is not allowed in sandbox");
    ck_assert_int_eq(code_runtime_js.prepare(few, &err), 0);
    expect_text(
        "function main() { try { return typeof require('dayjs') + require('qs') } catch (e) { return e.message } }",
        NULL, "Module 'qs' is not allowed in sandbox");
    ck_assert_int_eq(code_runtime_js.prepare(unknown, &err), -1);
    ck_assert_str_eq(err.message, "the JavaScript module 'axios' is not part of this build");
}
END_TEST

/* Every zygote holds it, used or not: the bar is 16 MB (measured: 14,900 KiB, 12,400 without the compiler). */
START_TEST(test_idle_memory)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long kib = -1;

    ck_assert_ptr_nonnull(file);
    while (kib < 0 && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "Anonymous:", 10) == 0)
            kib = strtol(line + 10, NULL, 10);
    }
    (void)fclose(file);
    ck_assert_int_gt(kib, 0);
    if (LIMITS_OF_MEMORY)
        ck_assert_int_lt(kib * 1024, 16000000);
}
END_TEST

START_TEST(test_environment)
{
    struct sk_error err;

    ck_assert(code_js_environment_set());
    ck_assert_int_eq(unsetenv("Malloc"), 0);
    ck_assert(!code_js_environment_set());
    ck_assert_int_eq(code_runtime_js.prepare(modules, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "environment"));
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("code js");
    TCase *cases = tcase_create("cases"), *others = tcase_create("others");
    const TTest *const tests[] = {test_http_request,
                                  test_http_defaults,
                                  test_http_flight,
                                  test_http_large,
                                  test_http_refusals,
                                  test_http_lost,
                                  test_http_failure_has_a_line,
                                  test_http_beside_timers,
                                  test_http_beside_a_busy_interval,
                                  test_randomness_of_siblings,
                                  test_nothing_is_left,
                                  test_deep_values,
                                  test_one_thread,
                                  test_no_eventfd,
                                  test_module_list,
                                  test_idle_memory,
                                  test_environment};
    struct sk_error err = {0};
    SRunner *runner;
    int count = 0, failed;

    /* With or without the just-in-time compiler: "interpreter" as the argument is without. */
    if (!code_js_environment_set()) {
        for (const char *const *entry = code_js_environment(argc < 2); *entry != NULL; entry++)
            putenv((char *)(uintptr_t)*entry);
        execv("/proc/self/exe", argv);
        return EXIT_FAILURE;
    }
    if (code_runtime_js.prepare(modules, &err) != 0) {
        fprintf(stderr, "%s\n", err.message);
        return EXIT_FAILURE;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* a task may end before it is answered */
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
        count += *tables[t].count;
    tcase_add_loop_test(cases, test_cases, 0, count);
    tcase_set_timeout(cases, 120);
    tcase_set_timeout(others, 120);
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        tcase_add_test(others, tests[i]);
    suite_add_tcase(suite, cases);
    suite_add_tcase(suite, others);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
