/* SPDX-License-Identifier: Apache-2.0
 *
 * End reasons and frames to bodies: the whole text of each; what a hostile frame cannot do; health, modules, refusals.
 */
#include "services/code/host/answer.h"
#include "tests/unit/check_main.h"

#include <jansson.h>
#include <signal.h>
#include <string.h>

#define MIB 1048576

static const char *const hidden[] = {"/opt/sandkeep/bin", "/usr/lib/python3.11/", NULL};

/* The frame in an allocation of exactly its size. */
static char *framed(const char *json, size_t length, size_t *size)
{
    char *frame = malloc(length + 4);

    ck_assert_ptr_nonnull(frame);
    for (int i = 0; i < 4; i++)
        frame[i] = (char)(length >> 8 * i);
    memcpy(frame + 4, json, length);
    *size = length + 4;
    return frame;
}

static struct code_outcome outcome(enum code_pool pool, enum code_end end, int exit_status, int signal)
{
    return (struct code_outcome){.pool = pool,
                                 .end = end,
                                 .exit_status = exit_status,
                                 .signal = signal,
                                 .timeout_ms = 5000,
                                 .memory_bytes = 306LL * MIB,
                                 .peak_bytes = 250LL * MIB,
                                 .output_bytes = 10LL * MIB,
                                 .hidden = hidden};
}

#define JS CODE_POOL_JS
#define PY CODE_POOL_PYTHON
#define FAIL(m, l)                                                                                                     \
    "{\"success\":false,\"message\":\"" m "\",\"data\":{\"codeReturn\":null,\"log\":\"" l "\",\"error\":{"
#define CRASH  "Worker crashed during execution "
#define RUNNER "Python runner exited before result "

START_TEST(test_table)
{
    static const struct {
        enum code_pool pool;
        enum code_end end;
        int exit_status, signal;
        const char *frame; /* NULL = none came */
        enum code_verdict verdict;
        const char *body;
    } rows[] = {
        /* success */
        {JS, CODE_END_DONE, 0, 0, "{\"ok\":true,\"value\":{\"a\":[1.50,\"\\ud800\"]},\"log\":\"x\\ny\"}",
         CODE_VERDICT_SUCCESS,
         "{\"success\":true,\"data\":{\"codeReturn\":{\"a\":[1.50,\"\\ud800\"]},\"log\":\"x\\ny\"}}"},
        {PY, CODE_END_DONE, 0, 0, "{\"ok\":true,\"value\":null,\"log\":\"\"}", CODE_VERDICT_SUCCESS,
         "{\"success\":true,\"data\":{\"codeReturn\":null,\"log\":\"\"}}"},
        {JS, CODE_END_DONE, 0, 0, "{\"ok\":true}", CODE_VERDICT_SUCCESS,
         "{\"success\":true,\"data\":{\"codeReturn\":null,\"log\":\"\"}}"},
        /* failures that the runtime tells */
        {JS, CODE_END_DONE, 0, 0,
         "{\"ok\":false,\"code\":\"error\",\"message\":\"x is \\\"bad\\\"\\n\",\"type\":\"TypeError\",\"line\":3,"
         "\"traceback\":\"at main:3\",\"log\":\"l\"}",
         CODE_VERDICT_FAILURE,
         FAIL("x is \\\"bad\\\"\\n",
              "l") "\"code\":\"error\",\"type\":\"TypeError\",\"line\":3,\"traceback\":\"at main:3\"}}}"},
        {PY, CODE_END_DONE, 0, 0, "{\"ok\":false,\"message\":\"boom\"}", CODE_VERDICT_FAILURE,
         FAIL("boom", "") "\"code\":\"error\"}}}"},
        {JS, CODE_END_DONE, 0, 0,
         "{\"ok\":false,\"code\":\"memory\",\"message\":\"Out of memory\",\"type\":\"RangeError\"}",
         CODE_VERDICT_FAILURE, FAIL("Out of memory", "") "\"code\":\"memory\",\"type\":\"RangeError\"}}}"},
        {JS, CODE_END_DONE, 0, 0,
         "{\"ok\":false,\"code\":\"output\",\"message\":\"Output too large (limit: 10485760 bytes)\"}",
         CODE_VERDICT_FAILURE, FAIL("Output too large (limit: 10485760 bytes)", "") "\"code\":\"output\"}}}"},
        {PY, CODE_END_DONE, 0, 0,
         "{\"ok\":false,\"code\":\"timeout\",\"message\":\"other words\",\"line\":7,\"log\":\"l\"}",
         CODE_VERDICT_FAILURE,
         FAIL("Script execution timed out after 5000ms", "l") "\"code\":\"timeout\",\"line\":7}}}"},
        /* a frame may not claim what only the zygote knows, nor a line that is none */
        {JS, CODE_END_DONE, 0, 0, "{\"ok\":false,\"code\":\"killed\",\"message\":\"m\",\"line\":0}",
         CODE_VERDICT_FAILURE, FAIL("m", "") "\"code\":\"error\"}}}"},
        {JS, CODE_END_DONE, 0, 0, "{\"ok\":false,\"code\":\"x\",\"message\":\"m\",\"line\":-1}", CODE_VERDICT_FAILURE,
         FAIL("m", "") "\"code\":\"error\"}}}"},
        {JS, CODE_END_DONE, 0, 0, "{\"ok\":false,\"message\":\"m\",\"line\":1e9}", CODE_VERDICT_FAILURE,
         FAIL("m", "") "\"code\":\"error\"}}}"},
        {JS, CODE_END_DONE, 0, 0, "{\"ok\":false,\"message\":\"m\",\"line\":1234567890}", CODE_VERDICT_FAILURE,
         FAIL("m", "") "\"code\":\"error\"}}}"},
        {JS, CODE_END_DONE, 0, 0, "{\"ok\":false,\"message\":\"\\ud800\\u0001\"}", CODE_VERDICT_FAILURE,
         FAIL("\xef\xbf\xbd\\u0001", "") "\"code\":\"error\"}}}"},
        /* the zygote's reasons, with and without the task's own account */
        {JS, CODE_END_TIMEOUT, 0, SIGKILL, NULL, CODE_VERDICT_FAILURE,
         FAIL("Script execution timed out after 5000ms", "") "\"code\":\"timeout\"}}}"},
        {PY, CODE_END_TIMEOUT, 0, SIGKILL,
         "{\"ok\":false,\"code\":\"timeout\",\"message\":\"m\",\"line\":2,\"log\":\"l\"}", CODE_VERDICT_FAILURE,
         FAIL("Script execution timed out after 5000ms", "l") "\"code\":\"timeout\",\"line\":2}}}"},
        {JS, CODE_END_TIMEOUT, 0, SIGKILL, "{\"ok\":true,\"value\":1,\"log\":\"l\"}", CODE_VERDICT_FAILURE,
         FAIL("Script execution timed out after 5000ms", "l") "\"code\":\"timeout\"}}}"},
        {JS, CODE_END_MEMORY, 0, SIGKILL, NULL, CODE_VERDICT_FAILURE,
         FAIL("Memory limit exceeded (RSS: 250MB, limit: 306MB)", "") "\"code\":\"memory\"}}}"},
        {PY, CODE_END_MEMORY, 0, SIGSEGV,
         "{\"ok\":false,\"code\":\"memory\",\"message\":\"m\",\"type\":\"MemoryError\"}", CODE_VERDICT_FAILURE,
         FAIL("m", "") "\"code\":\"memory\",\"type\":\"MemoryError\"}}}"},
        {PY, CODE_END_MEMORY, 0, SIGSEGV, "{\"ok\":false,\"code\":\"error\",\"message\":\"m\"}", CODE_VERDICT_FAILURE,
         FAIL("Memory limit exceeded (RSS: 250MB, limit: 306MB)", "") "\"code\":\"memory\"}}}"},
        {JS, CODE_END_OUTPUT, 0, SIGKILL, NULL, CODE_VERDICT_FAILURE,
         FAIL("Output too large (limit: 10485760 bytes)", "") "\"code\":\"output\"}}}"},
        {JS, CODE_END_PROCESSES, 0, 0, "{\"ok\":true,\"value\":1,\"log\":\"l\"}", CODE_VERDICT_FAILURE,
         FAIL("The code left processes behind", "l") "\"code\":\"processes\"}}}"},
        {JS, CODE_END_KILLED, 0, SIGKILL, NULL, CODE_VERDICT_FAILURE,
         FAIL(CRASH "(exit code: null, signal: SIGKILL)", "") "\"code\":\"killed\"}}}"},
        {JS, CODE_END_CRASHED, 0, SIGSEGV, "{\"ok\":true,\"value\":1,\"log\":\"l\"}", CODE_VERDICT_FAILURE,
         FAIL(CRASH "(exit code: null, signal: SIGSEGV)", "l") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_CRASHED, 3, 0, NULL, CODE_VERDICT_FAILURE,
         FAIL(RUNNER "(exit code: 3, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_CANCELLED, 0, SIGKILL, NULL, CODE_VERDICT_FAILURE,
         FAIL("The request was cancelled", "") "\"code\":\"cancelled\"}}}"},
        {PY, CODE_END_WALLS, 1, 0, NULL, CODE_VERDICT_FAILURE,
         FAIL("The task could not be isolated: nothing of it was run", "") "\"code\":\"crashed\"}}}"},
        {JS, CODE_END_CRASHED, 0, 120, NULL, CODE_VERDICT_FAILURE,
         FAIL(CRASH "(exit code: null, signal: SIGUNKNOWN)", "") "\"code\":\"crashed\"}}}"},
        /* done without a frame that may stand */
        {JS, CODE_END_DONE, 0, 0, NULL, CODE_VERDICT_FAILURE,
         FAIL(CRASH "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_DONE, 0, 0, "{\"ok\":true,\"value\":NaN}", CODE_VERDICT_FAILURE,
         FAIL(RUNNER "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_DONE, 0, 0, "[]", CODE_VERDICT_FAILURE,
         FAIL(RUNNER "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_DONE, 0, 0, "{\"ok\":1,\"value\":2}", CODE_VERDICT_FAILURE,
         FAIL(RUNNER "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_DONE, 0, 0, "{\"ok\":true,\"value\":1,\"log\":{}}", CODE_VERDICT_FAILURE,
         FAIL(RUNNER "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_DONE, 0, 0, "{\"ok\":false}", CODE_VERDICT_FAILURE,
         FAIL(RUNNER "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_DONE, 0, 0, "{\"ok\":false,\"message\":\"m\",\"type\":5}", CODE_VERDICT_FAILURE,
         FAIL(RUNNER "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {JS, CODE_END_DONE, 0, 0, "{\"ok\":true,\"value\":\"\xff\"}", CODE_VERDICT_FAILURE,
         FAIL(CRASH "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {JS, CODE_END_DONE, 0, 0, "{\"move\":\"numpy\"}", CODE_VERDICT_FAILURE,
         FAIL(CRASH "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        {PY, CODE_END_DONE, 0, 0, "{\"move\":\"a\\\"b\"}", CODE_VERDICT_FAILURE,
         FAIL(RUNNER "(exit code: 0, signal: null)", "") "\"code\":\"crashed\"}}}"},
        /* it has spoken to the broker: not from the start again */
        {PY, CODE_END_DONE, 0, 0, "{\"move\":\"pandas\"}", CODE_VERDICT_FAILURE,
         FAIL("Module 'pandas' must be imported by name at the top",
              "") "\"code\":\"error\",\"type\":\"ImportError\"}}}"},
        /* folders of this machine */
        {PY, CODE_END_DONE, 0, 0,
         "{\"ok\":false,\"message\":\"in '/usr/lib/python3.11/json/decoder.py', \\/opt\\/sandkeep\\/bin\\/x and "
         "/opt/sandkeep/binary\",\"type\":\"/opt/sandkeep/bin\",\"traceback\":\"/usr/lib/python3.11/ a/b\"}",
         CODE_VERDICT_FAILURE,
         FAIL("in 'decoder.py', x and /opt/sandkeep/binary",
              "") "\"code\":\"error\",\"type\":\"\",\"traceback\":\" a/b\"}}}"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct code_outcome o = outcome(rows[i].pool, rows[i].end, rows[i].exit_status, rows[i].signal);
        struct code_answer answer;
        struct sk_buf out;
        char *frame = NULL;
        sk_buf_init(&out, MIB);
        if (rows[i].frame != NULL)
            o.frame = frame = framed(rows[i].frame, strlen(rows[i].frame), &o.frame_length);
        ck_assert_int_eq(code_answer_outcome(&o, &out, &answer), rows[i].verdict);
        ck_assert_msg(strcmp(sk_buf_data(&out), rows[i].body) == 0, "row %zu: %s\nnot %s", i, sk_buf_data(&out),
                      rows[i].body);
        ck_assert((answer.code[0] == '\0') == (rows[i].verdict == CODE_VERDICT_SUCCESS));
        /* No failure quotes half a surrogate, so all of them are JSON for every parser. */
        json_t *value = json_loads(sk_buf_data(&out), 0, NULL);
        ck_assert(value != NULL || rows[i].verdict == CODE_VERDICT_SUCCESS);
        json_decref(value);
        sk_buf_fini(&out);
        free(frame);
    }
}
END_TEST

START_TEST(test_move)
{
    struct code_outcome o = outcome(PY, CODE_END_DONE, 0, 0);
    struct code_answer answer;
    struct sk_buf out;
    char *frame = framed("{\"move\":\"numpy.linalg\"}", 23, &o.frame_length);

    sk_buf_init(&out, MIB);
    o.frame = frame;
    o.may_move = true;
    ck_assert_int_eq(code_answer_outcome(&o, &out, &answer), CODE_VERDICT_MOVE);
    ck_assert_str_eq(answer.module, "numpy.linalg");
    ck_assert_uint_eq(sk_buf_len(&out), 0);
    o.end = CODE_END_TIMEOUT;
    ck_assert_int_eq(code_answer_outcome(&o, &out, &answer), CODE_VERDICT_FAILURE);
    ck_assert_str_eq(answer.code, "timeout");
    sk_buf_fini(&out);
    free(frame);
}
END_TEST

/* Every length word but the right one, and every cut: crashed, never a value. */
START_TEST(test_frames_whole_or_not)
{
    static const char json[] = "{\"ok\":true,\"value\":[1,{\"a\":\"b\"}],\"log\":\"\"}";
    size_t size;
    char *frame = framed(json, strlen(json), &size);

    for (size_t cut = 0; cut <= size; cut++) {
        for (int off = -1; off <= 1; off++) {
            struct code_outcome o = outcome(JS, CODE_END_DONE, 0, 0);
            struct code_answer answer;
            struct sk_buf out;
            char *part = malloc(cut > 0 ? cut : 1);
            ck_assert_ptr_nonnull(part);
            memcpy(part, frame, cut);
            if (cut > 0)
                part[0] = (char)(part[0] + off);
            sk_buf_init(&out, MIB);
            o.frame = part;
            o.frame_length = cut;
            ck_assert_int_eq(code_answer_outcome(&o, &out, &answer),
                             cut == size && off == 0 ? CODE_VERDICT_SUCCESS : CODE_VERDICT_FAILURE);
            sk_buf_fini(&out);
            free(part);
        }
    }
    free(frame);
}
END_TEST

START_TEST(test_no_room)
{
    static const char json[] = "{\"ok\":true,\"value\":\"0123456789\",\"log\":\"\"}";
    struct code_outcome o = outcome(JS, CODE_END_DONE, 0, 0);
    struct code_answer answer;
    char *frame = framed(json, strlen(json), &o.frame_length);

    o.frame = frame;
    for (size_t limit = 0; limit < 60; limit++) {
        struct sk_buf out;
        sk_buf_init(&out, limit);
        ck_assert_int_eq(code_answer_outcome(&o, &out, &answer), CODE_VERDICT_MEMORY);
        sk_buf_fini(&out);
    }
    free(frame);
}
END_TEST

START_TEST(test_admission)
{
    static const struct {
        enum code_admission admission;
        enum code_pool pool;
        int status;
        const char *message;
    } rows[] = {
        {CODE_FULL, JS, 429, "Too many tasks are waiting, try again later"},
        {CODE_DRAINING, JS, 200, "Pool is shutting down"},
        {CODE_NOT_READY, JS, 200, "JS process pool is not ready"},
        {CODE_NOT_READY, PY, 200, "Python isolated runner is not ready"},
        {CODE_NO_MEMORY, JS, 500, "Out of memory"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct code_rejection rejection;
        code_answer_admission(rows[i].admission, rows[i].pool, &rejection);
        ck_assert_int_eq(rejection.status, rows[i].status);
        ck_assert_str_eq(rejection.message, rows[i].message);
    }
}
END_TEST

START_TEST(test_other_bodies)
{
    struct code_health health = {
        .pools = {{20, 17, 3, 5, true}, {20, 20, 0, 0, true}}, .warming = {0, 1}, .level = CODE_LEVEL_FULL};
    char js_name[] = "lodash", second[] = "a\"b";
    char *js[] = {js_name, second, NULL}, *python[] = {NULL};
    struct sk_buf out;

    sk_buf_init(&out, MIB);
    ck_assert_int_eq(code_answer_health(&health, &out), 200);
    ck_assert_str_eq(
        sk_buf_data(&out),
        "{\"status\":\"ok\",\"pools\":{\"js\":{\"total\":20,\"idle\":17,\"busy\":3,\"warming\":0,\"queued\":5,"
        "\"poolSize\":20,\"ready\":true},\"python\":{\"total\":20,\"idle\":20,\"busy\":0,\"warming\":1,"
        "\"queued\":0,\"poolSize\":20,\"ready\":true}},\"isolation\":\"full\"}");
    sk_buf_clear(&out);
    health.pools[JS].ready = false;
    ck_assert_int_eq(code_answer_health(&health, &out), 503);
    ck_assert_ptr_nonnull(
        strstr(sk_buf_data(&out), "{\"status\":\"degraded\",\"pools\":{\"js\":{\"total\":0,\"idle\":0,"));
    sk_buf_clear(&out);
    health.pools[JS].ready = true;
    health.draining = true;
    ck_assert_int_eq(code_answer_health(&health, &out), 503);
    sk_buf_clear(&out);
    ck_assert(code_answer_modules(js, python, &out));
    ck_assert_str_eq(sk_buf_data(&out), "{\"success\":true,\"data\":{\"js\":[\"lodash\",\"a\\\"b\"],\"python\":[],"
                                        "\"builtinGlobals\":[\"SystemHelper.httpRequest\"]}}");
    sk_buf_clear(&out);
    ck_assert(code_answer_refusal("a \"b\"\n\x1f", &out));
    ck_assert_str_eq(sk_buf_data(&out), "{\"success\":false,\"message\":\"a \\\"b\\\"\\n\\u001f\"}");
    sk_buf_fini(&out);
    sk_buf_init(&out, 20);
    ck_assert_int_eq(code_answer_health(&health, &out), 0);
    sk_buf_fini(&out);
}
END_TEST

SK_CHECK_MAIN("code host answer", test_table, test_move, test_frames_whole_or_not, test_no_room, test_admission,
              test_other_bodies)
