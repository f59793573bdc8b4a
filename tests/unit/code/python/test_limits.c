/* SPDX-License-Identifier: Apache-2.0
 *
 * How a task ends at a limit (reference A12, contract/code.md §4), that it always ends with exactly one frame whatever
 * it replaced, requests to the broker, and what a child may cost: page faults, threads, executable mappings. */
#include "tests/unit/code/python/harness.h"

#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define FAULTS_MAX    700 /* measured: 246; each costs about 2 us, which is nearly the whole price of a task */

static json_t *hang(const json_t *request);

static struct outcome check_one(struct code_task *task, broker_fn broker, void (*before)(void), const char *want)
{
    struct outcome outcome = run_task(&code_runtime_python, task, broker, before);
    char *said = difference(&outcome, want);

    ck_assert_msg(said == NULL, "%s\n%s", task->code, said);
    return outcome;
}

START_TEST(test_timeout)
{
    static const struct {
        const char *code, *want;
    } rows[] = {
        {"print('before')\ndef main():\n    while True: pass\n",
         "{\"line\":3,\"log\":\"before\",\"traceback~\":\"line 3, in main\"}"},
        {"def main():\n    while True:\n        try:\n            while True: pass\n        except: pass\n",
         "{\"line\":4}"},
        {"def main():\n    while True:\n        try:\n            while True: time.sleep(0.01)\n        finally: "
         "continue\n",
         "{\"line\":4}"},
        {"def main():\n    delay(9000)\n", "{\"line\":2}"},
        {"def main():\n    return 10 ** 10 ** 8 % 7\n", "{\"type\":\"TimeoutError\"}"},
        {"import re\ndef main():\n    return re.match('(a+)+$', 'a' * 40 + 'b')\n", "{\"line\":3}"},
        {"def main():\n    return sum(iter(int, 1))\n", "{\"log\":\"\"}"},
        {"class X:\n    def __str__(self):\n        while True: pass\ndef main(): return X()\n", "{\"line\":3}"},
        {"class X(dict):\n    def items(self):\n        while True: pass\ndef main(): return X()\n", "{\"line\":3}"},
        {"class X:\n    def __del__(self):\n        while True: pass\ndef main():\n    x = X()\n    del x\n",
         "{\"line\":3}"},
        {"class E(Exception):\n    def __str__(self):\n        while True: pass\ndef main(): raise E\n",
         "{\"line\":3}"},
        {"while True: print('x')\n", "{\"line\":1}"},
        {"def main():\n    http_request('http://x')\n", "{\"line\":2}"},
        {"x = [0]\ndef main():\n    for i in x: x.append(i)\n    return 1\n", "{\"code\":\"timeout\"}"},
    };

    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct code_task task = task_of(rows[i].code, NULL);
        struct outcome outcome;
        char *said;

        task.limits.timeout_ms = 250;
        outcome = check_one(&task, hang, NULL, rows[i].want);
        said = difference(&outcome,
                          "{\"ok\":false,\"code\":\"timeout\",\"message\":\"Script execution timed out after 250ms\"}");
        ck_assert_msg(said == NULL, "%s\n%s", rows[i].code, said);
        ck_assert_int_ge(outcome.wall_ms, 240);
        ck_assert_int_lt(outcome.wall_ms, 10000); /* a loaded machine; without the grace it would never end */
        outcome_free(&outcome);
    }
}
END_TEST

#ifndef __SANITIZE_ADDRESS__
static void limit_memory(void)
{
    struct rlimit limit = {.rlim_cur = 0};
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    if (file == NULL || fscanf(file, "%lu", &pages) != 1)
        _exit(9);
    (void)fclose(file);
    limit.rlim_cur = limit.rlim_max = pages * 4096 + (256ul << 20);
    if (setrlimit(RLIMIT_AS, &limit) != 0)
        _exit(9);
}

#endif

START_TEST(test_memory)
{
#ifndef __SANITIZE_ADDRESS__ /* which reserves more address space than any limit */
    static const char *const codes[] = {
        "print('before')\ndef main(): return len('x' * (1 << 30))\n",
        "print('before')\ndef main():\n    return [bytearray(10 << 20) for i in range(40)]\n",
        "print('before')\nkept = []\ndef main():\n    while True: kept.append(bytearray(4096))\n",
        "print('before')\nkept = []\ndef main():\n    while True: kept.append([None] * 3)\n",
        "print('before')\ndef main():\n    d = {}\n    i = 0\n    while True:\n        d[i] = str(i)\n        i += 1\n",
        "print('before')\ndef main():\n    return list(range(10 ** 9))\n",
        "print('before')\nkept = []\ndef main():\n    while True:\n        try:\n            while True: "
        "kept.append('x' * 1000)\n"
        "        except MemoryError:\n            raise\n",
    };
    struct code_task task;
    struct outcome outcome;

    for (size_t i = 0; i < LENGTH(codes); i++) {
        task = task_of(codes[i], NULL);
        outcome = check_one(
            &task, NULL, limit_memory,
            "{\"ok\":false,\"code\":\"memory\",\"type\":\"MemoryError\",\"message~\":\"Memory limit exceeded\",\"log\":"
            "\"before\"}");
        ck_assert_int_eq(outcome.status, 0);
        outcome_free(&outcome);
    }
    task = task_of("def main():\n    try: 'x' * (1 << 30)\n    except MemoryError: return 'caught'\n", NULL);
    outcome = check_one(&task, NULL, limit_memory, "{\"ok\":true,\"value\":\"caught\"}");
    outcome_free(&outcome);
    task = task_of("def main(): return len(bytearray(10 << 20))\n", NULL);
    outcome = check_one(&task, NULL, limit_memory, "{\"ok\":true,\"value\":10485760}");
    outcome_free(&outcome);
#endif
}
END_TEST

static void limit_files(void)
{
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};

    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        _exit(9);
}

START_TEST(test_files)
{
    struct code_task task = task_of("def main():\n    with open('big', 'wb') as f: f.write(b'x' * (17 << 20))\n", NULL);
    struct outcome outcome =
        check_one(&task, NULL, limit_files,
                  "{\"ok\":false,\"code\":\"error\",\"type\":\"OSError\",\"message\":\"Task temporary "
                  "file limit exceeded (limit: 16777216 bytes)\",\"line\":2}");

    outcome_free(&outcome);
    task = task_of("def main():\n    with open('small', 'wb') as f: return f.write(b'x' * 1024)\n", NULL);
    outcome = check_one(&task, NULL, limit_files, "{\"ok\":true,\"value\":1024}");
    outcome_free(&outcome);
    /* A kind of level that gives tasks no directory. */
    task = task_of("def main():\n    open('x', 'w')\n", NULL);
    task.tmp_dir = "";
    outcome = check_one(&task, NULL, NULL, "{\"ok\":false,\"type\":\"PermissionError\"}");
    outcome_free(&outcome);
}
END_TEST

START_TEST(test_output)
{
    static const char too_large[] =
        "{\"ok\":false,\"code\":\"output\",\"message\":\"Output too large (limit: 1048576 bytes)\",\"log\":\"before\"}";
    static const char *const codes[] = {
        "print('before')\ndef main(): return 'x' * (1 << 20)\n",
        "print('before')\ndef main(): return ['\\x01'] * 200000\n",
        "print('before')\ndef main(): return b'x' * 900000\n",
        "print('before')\ndef main(): return range(10 ** 12)\n",
        "print('before')\ndef main(): return {i: i for i in range(200000)}\n",
    };
    struct code_task task;
    struct outcome outcome;

    for (size_t i = 0; i < LENGTH(codes); i++) {
        task = task_of(codes[i], NULL);
        task.limits.output_bytes = 1 << 20;
        outcome = check_one(&task, NULL, NULL, too_large);
        outcome_free(&outcome);
    }
    task = task_of("def main(): return 'x' * (10 * 1024 * 1024 - 40)\n", NULL);
    outcome = check_one(&task, NULL, NULL, "{\"ok\":true}");
    outcome_free(&outcome);
    task = task_of("def main(): return 'x' * (10 * 1024 * 1024 + 1)\n", NULL);
    outcome = check_one(&task, NULL, NULL,
                        "{\"ok\":false,\"code\":\"output\",\"message\":\"Output too large (limit: 10485760 bytes)\"}");
    outcome_free(&outcome);
}
END_TEST

START_TEST(test_log)
{
    struct code_task task = task_of("def main():\n    for i in range(1000): print('line', i)\n    return 1\n", NULL);
    struct outcome outcome = check_one(&task, NULL, NULL, "{\"ok\":true,\"log~\":\"line 998\\nline 999\"}");
    const char *log;

    outcome_free(&outcome);
    /* A line that would not fit is dropped whole, a later one that fits is kept. */
    task = task_of("print('a' * 60)\nprint('b' * 60)\nprint('c' * 39)\nprint('d')\ndef main(): pass\n", NULL);
    task.limits.log_bytes = 100;
    outcome = check_one(&task, NULL, NULL, "{\"ok\":true}");
    log = json_string_value(json_object_get(outcome.frame, "log"));
    ck_assert_int_eq((int)strlen(log), 100);
    ck_assert_ptr_eq(strchr(log, 'b'), NULL);
    ck_assert_ptr_ne(strchr(log, 'c'), NULL);
    outcome_free(&outcome);
    task = task_of("def main():\n    for i in range(300): print('\\x01' * 10000)\n", NULL);
    outcome = check_one(&task, NULL, NULL, "{\"ok\":true}");
    ck_assert_int_le((int)json_string_length(json_object_get(outcome.frame, "log")), 1 << 20);
    ck_assert_int_ge((int)json_string_length(json_object_get(outcome.frame, "log")), (1 << 20) - 10001);
    outcome_free(&outcome);
    /* A log that does not fit beside the result is too much output. */
    task = task_of("def main():\n    print('x' * 1000)\n    return 'y' * 200\n", NULL);
    task.limits.output_bytes = 1100;
    outcome = check_one(&task, NULL, NULL, "{\"ok\":false,\"code\":\"output\"}");
    outcome_free(&outcome);
}
END_TEST

/* Whatever a task replaces, its result comes once and in the right form. */
START_TEST(test_one_frame)
{
    static const struct row rows[] = {
        {"import json\njson.dumps = json.loads = json.JSONEncoder = None\njson.decoder.scanner = None\n"
         "def main(): return {'a': [1]}\n",
         NULL, "{\"value\":{\"a\":[1]}}"},
        {"print = None\nvariables = None\ndef main(): return 1\n", "{\"a\":1}", "{\"value\":1}"},
        {"__builtins__.clear()\ndef main(): return {'a': (1, 2.5)}\n", NULL, "{\"value\":{\"a\":[1,2.5]}}"},
        {"import logging\nlogging.sys.stdout = logging.sys.stderr = None\nlogging.sys.modules.clear()\n"
         "def main():\n    print('x')\n    return {1: b'a'}\n",
         NULL, "{\"value\":{\"1\":\"YQ==\"},\"log\":\"x\"}"},
        {"import logging\nclass S:\n    def write(self, s): raise ValueError\n    flush = write\nlogging.sys.stdout = "
         "S()\n"
         "def main():\n    print('x')\n    return 1\n",
         NULL, "{\"value\":1,\"log\":\"x\"}"},
        {"import logging\nlogging.sys.excepthook = logging.sys.unraisablehook = None\ndef main(): raise "
         "ValueError('x')\n",
         NULL, "{\"ok\":false,\"message\":\"x\",\"line\":3}"},
        {"import datetime, decimal, collections\ndatetime.datetime = decimal.Decimal = collections.deque = None\n"
         "def main(): return datetime.date(2024, 1, 1)\n",
         NULL, "{\"value\":\"2024-01-01\"}"},
        {"import logging\nlogging.sys.settrace(lambda *a: None)\nlogging.sys.setprofile(lambda *a: 1 / 0)\ndef main(): "
         "return 1\n",
         NULL, "{\"ok\":false}"},
        {"import atexit\natexit.register(print, 'no')\ndef main(): return 1\n", NULL, "{\"value\":1,\"log\":\"\"}"},
        {"main = type('M', (), {'__call__': lambda self, a: a})()\n", "{\"a\":1}", "{\"value\":1}"},
        {"class D(dict):\n    def __getitem__(self, k): raise SystemExit\ndef main(): return D(a=1)\n", NULL,
         "{\"value\":{\"a\":1}}"},
        {"def main(): raise BaseException\n", NULL, "{\"ok\":false,\"type\":\"BaseException\"}"},
        {"def main():\n    raise SystemExit\n", NULL, "{\"ok\":false,\"type\":\"SystemExit\"}"},
        {"def main():\n    raise GeneratorExit\n", NULL, "{\"ok\":false,\"type\":\"GeneratorExit\"}"},
        {"import logging\nlogging.sys.exit(0)\n", NULL, "{\"ok\":false,\"type\":\"SystemExit\"}"},
        {"", NULL, "{\"ok\":false}"},
        {"\\\n", NULL, "{\"ok\":false}"},
        {"def main(a): return a\n", "{\"a\":1e999}", "{\"value\":null}"},
    };
    struct code_task task;
    struct outcome outcome;
    static char deep[40020];

    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
    /* Variables nested beyond what Python recurses into. */
    (void)strcpy(deep, "{\"a\":");
    memset(deep + 5, '[', 20000);
    memset(deep + 20005, ']', 20000);
    (void)strcpy(deep + 40005, "}");
    task = task_of("def main(): return 1\n", deep);
    outcome = check_one(&task, NULL, NULL, "{\"ok\":false,\"code\":\"error\",\"type\":\"RecursionError\"}");
    outcome_free(&outcome);
    /* A NUL inside the code. */
    task = task_of("def main(): return 1\n", NULL);
    task.code = "def main(): return 1\0 + 1";
    task.code_length = 25;
    outcome = check_one(&task, NULL, NULL, "{\"ok\":false,\"type\":\"ValueError\"}");
    outcome_free(&outcome);
}
END_TEST

/* Code that nests or repeats beyond what the compiler takes is an error, not a crash. */
START_TEST(test_nested_code)
{
    static const struct {
        const char *before, *open, *middle, *close, *after, *type;
        int count;
    } shapes[] = {
        {"def main(): return ", "[", "", "]", "\n", "SyntaxError", 100000},
        {"def main(): return ", "-", "1", "", "\n", "RecursionError", 100000},
        {"def main(): return ", "not ", "1", "", " # __\n", "RecursionError", 100000},
        {"def main(): return 1", "+1", "", "", "\n", "RecursionError", 100000},
        {"def main(): return x", ".a", "", "", "\n", "RecursionError", 100000},
        {"def main(): return x", "()", "", "", " # __\n", "RecursionError", 100000},
        {"def main(): return ", "f(", "", ")", "\n", "SyntaxError", 100000},
        {"x = '", "\\", "", "", "", "SyntaxError", 100001},
    };

    for (size_t i = 0; i < LENGTH(shapes); i++) {
        size_t room = 400 + (size_t)shapes[i].count * (strlen(shapes[i].open) + strlen(shapes[i].close));
        char *code = malloc(room), want[128], *at;
        struct code_task task;
        struct outcome outcome;

        ck_assert_ptr_nonnull(code);
        at = stpcpy(code, shapes[i].before);
        for (int n = 0; n < shapes[i].count; n++)
            at = stpcpy(at, shapes[i].open);
        at = stpcpy(at, shapes[i].middle);
        for (int n = 0; n < shapes[i].count; n++)
            at = stpcpy(at, shapes[i].close);
        (void)stpcpy(at, shapes[i].after);
        (void)snprintf(want, sizeof(want), "{\"ok\":false,\"code\":\"error\",\"type\":\"%s\"}", shapes[i].type);
        task = task_of(code, NULL);
        outcome = run_task(&code_runtime_python, &task, NULL, NULL);
        at = difference(&outcome, want);
        ck_assert_msg(at == NULL, "shape %zu: %s", i, at);
        outcome_free(&outcome);
        free(code);
    }
}
END_TEST

static json_t *hang(const json_t *request)
{
    (void)request;
    (void)usleep(600000); /* longer than the time-out of the task that asks */
    return NULL;
}

static json_t *echo(const json_t *request)
{
    char *text = json_dumps(request, JSON_COMPACT | JSON_SORT_KEYS);
    json_t *answer = json_pack("{s:b,s:i,s:s,s:{s:s},s:s}", "ok", 1, "status", 201, "statusText", "Created", "headers",
                               "x-a", "1", "data", text);

    free(text);
    return answer;
}

static json_t *refuse(const json_t *request)
{
    (void)request;
    return json_pack("{s:b,s:s}", "ok", 0, "message", "Request to private network not allowed");
}

static json_t *hang_up(const json_t *request)
{
    (void)request;
    return NULL;
}

START_TEST(test_requests)
{
    struct code_task task =
        task_of("def main():\n    r = http_request('http://a/', method='post', headers={'X': 1}, body={'k': '\xe4\xb8"
                "\xad\\ud800'}, timeout=2.5)\n"
                "    return [r['status'], r['statusText'], r['headers'], json.loads(r['data'])]\n",
                NULL);
    struct outcome outcome;

    outcome =
        check_one(&task, echo, NULL,
                  "{\"value\":[201,\"Created\",{\"x-a\":\"1\"},{\"id\":1,\"type\":\"http_request\",\"url\":\"http://"
                  "a/\",\"method\":\"POST\",\"headers\":{\"X\":\"1\",\"Content-Type\":\"application/json\"},\"body\":"
                  "\"{\\\"k\\\": \\\"\xe4\xb8\xad\xef\xbf\xbd\\\"}\",\"timeoutMs\":2500}]}");
    outcome_free(&outcome);
    task = task_of(
        "def main():\n    a = system_helper.httpRequest('http://a/', body='t', headers={'content-type': 'text/plain'}, "
        "timeout_ms=7)\n    b = SystemHelper.http_request('http://b/')\n    return [json.loads(x['data']) for x in (a, "
        "b)]\n",
        NULL);
    outcome = check_one(
        &task, echo, NULL,
        "{\"value\":[{\"id\":1,\"type\":\"http_request\",\"url\":\"http://a/\",\"method\":\"GET\",\"headers\":{"
        "\"content-type\":\"text/plain\"},\"body\":\"t\",\"timeoutMs\":7},{\"id\":2,\"type\":\"http_request\",\"url\":"
        "\"http://b/\",\"method\":\"GET\",\"headers\":{}}]}");
    outcome_free(&outcome);
    task = task_of("def main():\n    http_request('http://10.0.0.1/')\n", NULL);
    outcome = check_one(
        &task, refuse, NULL,
        "{\"ok\":false,\"message\":\"Request to private network not allowed\",\"line\":2,\"traceback~\":\"in main\"}");
    outcome_free(&outcome);
    task = task_of("def main():\n    http_request('http://a/')\n", NULL);
    outcome = check_one(&task, hang_up, NULL, "{\"ok\":false,\"message\":\"Request failed\"}");
    outcome_free(&outcome);
    /* Failed ones count too; the one beyond the limit is not even sent. */
    task = task_of("def main():\n    n = 0\n    for i in range(31):\n        try: http_request('http://a/')\n"
                   "        except RuntimeError as e: n += str(e).startswith('Request to private')\n"
                   "    print(n, e if False else '')\n    http_request('http://a/')\n",
                   NULL);
    outcome = check_one(&task, refuse, NULL, "{\"ok\":false,\"message\":\"Request limit exceeded\",\"log\":\"30 \"}");
    ck_assert_int_eq(outcome.requests, 30);
    outcome_free(&outcome);
    task = task_of("def main():\n    http_request('http://a/', body='x' * (5 * 1024 * 1024 + 1))\n", NULL);
    outcome = check_one(&task, echo, NULL, "{\"ok\":false,\"message\":\"Request body too large\"}");
    ck_assert_int_eq(outcome.requests, 0);
    outcome_free(&outcome);
    task = task_of("def main():\n    http_request('ftp://a/', body='x' * (5 * 1024 * 1024 + 1))\n", NULL);
    outcome = check_one(&task, echo, NULL, "{\"ok\":false,\"message\":\"Protocol not allowed\"}");
    outcome_free(&outcome);
    task = task_of("def main():\n    return len(http_request('http://a/', body='\\x01' * (5 * 1024 * 1024))['data'])\n",
                   NULL);
    outcome = check_one(&task, echo, NULL, "{\"ok\":true}");
    ck_assert_int_eq(outcome.requests, 1);
    outcome_free(&outcome);
}
END_TEST

static json_t *numbers(const unsigned char fill)
{
    struct code_task task = task_of(
        "import random, uuid, secrets\ndef main(): return [random.random(), random.randint(0, 1 << 40)]\n", NULL);
    struct outcome outcome;
    json_t *value;

    memset(task.seed, fill, sizeof(task.seed));
    outcome = check_one(&task, NULL, NULL, "{\"ok\":true}");
    value = json_incref(json_object_get(outcome.frame, "value"));
    outcome_free(&outcome);
    return value;
}

START_TEST(test_seed)
{
    json_t *one = numbers(1), *again = numbers(1), *two = numbers(2);

    ck_assert(json_equal(one, again));
    ck_assert(!json_equal(one, two));
    json_decref(one);
    json_decref(again);
    json_decref(two);
}
END_TEST

/* Nothing that one task leaves is there for the next: each is a child of the same template. */
START_TEST(test_next_task)
{
    static const struct row rows[] = {
        {"import json, math\njson._polluted = 1\njson.dumps = None\nsecret = 1\n__builtins__['x1'] = 1\nmath.pi = "
         "3\nprint('p')\n"
         "def main(): return 1\n",
         "{\"v\":1}", "{\"value\":1}"},
        {"import json, math\ndef main(): return [getattr(json, '_polluted', 0), json.dumps(1), math.pi > 3.1, "
         "list(variables), 'x1' in __builtins__]\n",
         NULL, "{\"value\":[0,\"1\",true,[],false],\"log\":\"\"}"},
        {"def main(): return [secret]\n", NULL, "{\"type\":\"NameError\"}"},
        {"def main(): return v\n", NULL, "{\"type\":\"NameError\"}"},
    };

    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
}
END_TEST

/* Nearly the whole cost of a task is the copying of pages: a change that touches many more is noticed here. */
START_TEST(test_faults)
{
    static const char *const codes[] = {
        "def main(a, b):\n    print('x')\n    return {'result': a, 'b': b}\n",
        "import json, re, datetime\ndef main(a, b):\n    return json.dumps({'r': re.sub('x', 'y', str(a))})\n",
    };

    for (size_t i = 0; i < LENGTH(codes); i++) {
        struct code_task task = task_of(codes[i], "{\"a\":1,\"b\":[1,2]}");
        struct outcome outcome = check_one(&task, NULL, NULL, "{\"ok\":true}");

        ck_assert_msg(outcome.usage.ru_minflt < FAULTS_MAX, "%ld page faults", outcome.usage.ru_minflt);
        outcome_free(&outcome);
    }
}
END_TEST

/* Kills the child at the first mapping that could be executed. */
static void no_executable_memory(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    bool ok = filter != NULL;

    ok = ok && seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(mmap), 1,
                                SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC)) == 0;
    ok = ok && seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(mprotect), 1,
                                SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC)) == 0;
    ok = ok && seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(clone), 0) == 0;
    ok = ok && seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(clone3), 0) == 0;
    if (!ok || seccomp_load(filter) != 0)
        _exit(9);
    seccomp_release(filter);
}

/* Every module of the default list, and others of the standard library that pass, come without one. */
START_TEST(test_no_executable_mapping)
{
    static const char *const more[] = {
        "zoneinfo",      "html.parser", "xml.etree.ElementTree",
        "email.message", "zipfile",     "gzip",
        "bz2",           "lzma",        "tarfile",
        "platform",      "ipaddress",   "configparser",
        "tomllib",       "logging",     "inspect",
        "traceback",     "ast",         "gettext",
        "audioop",       "wave",        "colorsys",
        "sched",         "shlex",       "plistlib",
        "quopri",        "graphlib",    "optparse",
        "argparse",      "stringprep",  "encodings.idna",
        "types",         "numbers",     "cProfile",
        "unittest",      "doctest",     "uuid",
        "nntplib",       "crypt",       "sqlite3.dbapi2",
    };
    char code[256];

    for (size_t i = 0; i < LENGTH(more) + 40; i++) {
        bool default_list = i >= LENGTH(more);
        const char *name = default_list ? python_default_modules[i - LENGTH(more)] : more[i];
        struct code_task task;
        struct outcome outcome;

        if (name == NULL)
            break;
        (void)snprintf(code, sizeof(code),
                       "def main():\n    try:\n        import %s\n    except ImportError: pass\n    return 1\n", name);
        task = task_of(code, NULL);
        outcome = run_task(&code_runtime_python, &task, NULL, no_executable_memory);
        ck_assert_msg(outcome.frame != NULL, "%s: status %#x", name, (unsigned)outcome.status);
        outcome_free(&outcome);
    }
}
END_TEST

START_TEST(test_one_thread)
{
    struct code_task task = task_of("def main(): return 1\n", NULL);
    struct outcome outcome = check_one(&task, NULL, no_executable_memory, "{\"ok\":true,\"value\":1}");

    ck_assert(WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == 0);
    outcome_free(&outcome);
    /* A thread is refused by the walls; here it is enough that none was there to begin with. */
    task = task_of("import platform\ndef main(): return platform.sys.modules['_thread']._count()\n", NULL);
    outcome = check_one(&task, NULL, NULL, "{\"value\":0}");
    outcome_free(&outcome);
}
END_TEST

/* The bar of an idle zygote; measured: 13,300. */
START_TEST(test_idle_memory)
{
#ifndef __SANITIZE_ADDRESS__
    ck_assert_int_gt(anonymous_kib(), 0);
    ck_assert_int_lt(anonymous_kib(), 16000);
#endif
}
END_TEST

PYTHON_CHECK_MAIN("code python limits", &code_runtime_python, test_timeout, test_memory, test_files, test_output,
                  test_log, test_one_frame, test_nested_code, test_requests, test_seed, test_next_task, test_faults,
                  test_idle_memory, test_no_executable_mapping, test_one_thread)
