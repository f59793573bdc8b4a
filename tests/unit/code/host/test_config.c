/* SPDX-License-Identifier: Apache-2.0
 *
 * The variables of sk-code: defaults, both ends of every range, the rules, and what is derived. */
#include "services/code/host/config.h"
#include "tests/unit/check_main.h"

#include <string.h>

struct loaded {
    struct code_config values;
    struct sk_config config;
    int bad;
    char problems[4096];
};

/* Loads with at most two variables set; the rules are asked when every value is good. */
static void load(struct loaded *l, const char *name, const char *value, const char *name2, const char *value2)
{
    FILE *problems;

    memset(l, 0, sizeof(*l));
    problems = fmemopen(l->problems, sizeof(l->problems), "w");
    ck_assert_ptr_nonnull(problems);
    ck_assert_int_eq(clearenv(), 0);
    if (name != NULL)
        ck_assert_int_eq(setenv(name, value, 1), 0);
    if (name2 != NULL)
        ck_assert_int_eq(setenv(name2, value2, 1), 0);
    l->config = (struct sk_config){"sk-code", code_config_keys, code_config_key_count, &l->values, NULL};
    l->bad = sk_config_load(&l->config, problems);
    if (l->bad == 0)
        l->bad = code_config_check(&l->values, problems);
    fclose(problems);
}

START_TEST(test_defaults)
{
    struct loaded l;

    load(&l, NULL, NULL, NULL, NULL);
    ck_assert_msg(l.bad == 0, "%s", l.problems);
    ck_assert_str_eq(l.values.host, "127.0.0.1");
    ck_assert_int_eq(l.values.port, 3000);
    ck_assert_str_eq(l.values.token, "");
    ck_assert_int_eq(l.values.pool_size, 20);
    ck_assert_int_eq(l.values.queue_id_concurrency, 0);
    ck_assert_int_eq(l.values.max_queue, 1000);
    ck_assert(l.values.check_internal_ip && l.values.js_jit && l.values.log_console);
    ck_assert(!l.values.compat_strict && !l.values.allow_unsafe && !l.values.disable_seccomp);
    struct code_limits limits = code_config_limits(&l.values);
    ck_assert_int_eq(limits.timeout_ms, 60000);
    ck_assert_int_eq(limits.output_bytes, 10 * 1024 * 1024);
    ck_assert_int_eq(limits.log_bytes, 1024 * 1024);
    ck_assert_int_eq(limits.tmp_bytes, 16 * 1024 * 1024);
    ck_assert_int_eq(limits.request_max, 30);
    ck_assert_int_eq(limits.request_timeout_ms, 60000);
    ck_assert_int_eq(limits.request_body_bytes, 5 * 1024 * 1024);
    ck_assert_int_eq(limits.response_bytes, 10 * 1024 * 1024);
    ck_assert_int_eq(code_config_memory_bytes(&l.values), 306 * 1024 * 1024);
    sk_config_fini(&l.config);
}
END_TEST

START_TEST(test_values)
{
    static const struct {
        const char *name, *value;
        bool good;
    } rows[] = {
        {"SANDBOX_PORT", "0", true},
        {"SANDBOX_PORT", "65535", true},
        {"SANDBOX_PORT", "65536", false},
        {"SANDBOX_PORT", "-1", false},
        {"SANDBOX_PORT", "3000x", false},
        {"SANDBOX_HOST", "", false},
        {"SANDBOX_HOST", "0.0.0.0", true},
        {"SANDBOX_HOST", "a b", false},
        {"SANDBOX_TOKEN", "!~x", true},
        {"SANDBOX_TOKEN", "a b", false},
        {"SANDBOX_TOKEN", "t\xc3\xa9", false},
        {"SANDBOX_POOL_SIZE", "1", true},
        {"SANDBOX_POOL_SIZE", "100", true},
        {"SANDBOX_POOL_SIZE", "0", false},
        {"SANDBOX_POOL_SIZE", "101", false},
        {"SANDBOX_QUEUE_ID_CONCURRENCY", "", true},
        {"SANDBOX_QUEUE_ID_CONCURRENCY", "1", true},
        {"SANDBOX_QUEUE_ID_CONCURRENCY", "100", true},
        {"SANDBOX_QUEUE_ID_CONCURRENCY", "101", false},
        {"SANDBOX_MAX_QUEUE", "1", true},
        {"SANDBOX_MAX_QUEUE", "0", false},
        {"SANDBOX_API_MAX_BODY_MB", "1", true},
        {"SANDBOX_API_MAX_BODY_MB", "100", true},
        {"SANDBOX_API_MAX_BODY_MB", "0", false},
        {"SANDBOX_API_MAX_BODY_MB", "101", false},
        {"SANDBOX_MAX_BUFFERED_MB", "8", true},
        {"SANDBOX_MAX_BUFFERED_MB", "7", false},
        {"SANDBOX_MAX_TIMEOUT", "1000", true},
        {"SANDBOX_MAX_TIMEOUT", "600000", true},
        {"SANDBOX_MAX_TIMEOUT", "999", false},
        {"SANDBOX_MAX_TIMEOUT", "600001", false},
        {"SANDBOX_MAX_MEMORY_MB", "32", true},
        {"SANDBOX_MAX_MEMORY_MB", "4096", true},
        {"SANDBOX_MAX_MEMORY_MB", "31", false},
        {"SANDBOX_MAX_MEMORY_MB", "4097", false},
        {"SANDBOX_MAX_TMP_MB", "1", true},
        {"SANDBOX_MAX_TMP_MB", "0", false},
        {"SANDBOX_MAX_OUTPUT_MB", "1", true},
        {"SANDBOX_MAX_OUTPUT_MB", "100", true},
        {"SANDBOX_MAX_OUTPUT_MB", "101", false},
        {"CHECK_INTERNAL_IP", "false", true},
        {"CHECK_INTERNAL_IP", "maybe", false},
        {"SANDBOX_REQUEST_MAX_COUNT", "1", true},
        {"SANDBOX_REQUEST_MAX_COUNT", "1000", true},
        {"SANDBOX_REQUEST_MAX_COUNT", "0", false},
        {"SANDBOX_REQUEST_MAX_COUNT", "1001", false},
        {"SANDBOX_REQUEST_TIMEOUT", "1000", true},
        {"SANDBOX_REQUEST_TIMEOUT", "300000", true},
        {"SANDBOX_REQUEST_TIMEOUT", "300001", false},
        {"SANDBOX_REQUEST_MAX_RESPONSE_MB", "100", true},
        {"SANDBOX_REQUEST_MAX_RESPONSE_MB", "101", false},
        {"SANDBOX_REQUEST_MAX_BODY_MB", "100", true},
        {"SANDBOX_REQUEST_MAX_BODY_MB", "0", false},
        {"SANDBOX_NET_POLICY", "/etc/policy.json", true},
        {"SANDBOX_NET_POLICY", "policy.json", false},
        {"SANDBOX_JS_ALLOWED_MODULES", "lodash, @scope/name", true},
        {"SANDBOX_JS_ALLOWED_MODULES", "", true},
        {"SANDBOX_JS_ALLOWED_MODULES", "../etc", false},
        {"SANDBOX_PYTHON_ALLOWED_MODULES", "a b", false},
        {"SANDBOX_JS_JIT", "off", true},
        {"SANDBOX_JS_JIT", "jit", false},
        {"SANDBOX_COMPAT_STRICT", "true", true},
        {"SANDBOX_ALLOW_UNSAFE", "yes", true},
        {"SANDBOX_DISABLE_SECCOMP", "true", true},
        {"SANDKEEP_DRAIN_SECONDS", "0", true},
        {"LOG_ENABLE_CONSOLE", "false", true},
        {"LOG_CONSOLE_LEVEL", "warning", true},
        {"LOG_CONSOLE_LEVEL", "warn", false},
        {"LOG_ENABLE_OTEL", "true", true},
        {"LOG_OTEL_LEVEL", "fatal", true},
        {"LOG_OTEL_SERVICE_NAME", "x", true},
        {"LOG_OTEL_URL", "http://x", true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct loaded l;
        load(&l, rows[i].name, rows[i].value, NULL, NULL);
        ck_assert_msg((l.bad == 0) == rows[i].good, "%s=%s: %s", rows[i].name, rows[i].value, l.problems);
        ck_assert_msg(l.bad == 0 || strstr(l.problems, rows[i].name) != NULL, "%s", l.problems);
        sk_config_fini(&l.config);
    }
}
END_TEST

START_TEST(test_log_level)
{
    static const struct {
        const char *console, *ours;
        enum sk_log_level level;
    } rows[] = {
        {"trace", "debug", SK_LOG_LEVEL_DEBUG}, {"trace", "info", SK_LOG_LEVEL_INFO},
        {"warning", "info", SK_LOG_LEVEL_WARN}, {"info", "error", SK_LOG_LEVEL_ERROR},
        {"fatal", "debug", SK_LOG_LEVEL_ERROR},
    };
    struct loaded l;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        load(&l, "LOG_CONSOLE_LEVEL", rows[i].console, "SANDKEEP_LOG_LEVEL", rows[i].ours);
        ck_assert_int_eq(l.bad, 0);
        ck_assert_int_eq(code_config_log_level(&l.values), rows[i].level);
        sk_config_fini(&l.config);
    }
    load(&l, "LOG_ENABLE_CONSOLE", "false", NULL, NULL);
    ck_assert_int_eq(code_config_log_level(&l.values), SK_LOG_LEVEL_ERROR);
    sk_config_fini(&l.config);
}
END_TEST

START_TEST(test_warnings)
{
    char text[1024] = "";
    struct loaded l;
    FILE *out;

    load(&l, "SANDBOX_DISABLE_SECCOMP", "true", "SANDBOX_TOKEN", "x");
    out = fmemopen(text, sizeof(text), "w");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(code_config_warnings(&l.values, out), 1);
    fclose(out);
    ck_assert_str_eq(text, "SANDBOX_DISABLE_SECCOMP has no effect: the filter stays on\n");
    sk_config_fini(&l.config);
}
END_TEST

START_TEST(test_modules)
{
    char **names = code_config_modules(" a,, b c ,d,"), text[1024] = "";

    ck_assert_ptr_nonnull(names);
    ck_assert_str_eq(names[0], "a");
    ck_assert_str_eq(names[1], "b c");
    ck_assert_str_eq(names[2], "d");
    ck_assert_ptr_null(names[3]);
    free(names);
    for (int i = 0; i < CODE_MODULES_MAX; i++)
        strcat(text, "x,");
    names = code_config_modules(text);
    ck_assert_ptr_nonnull(names);
    ck_assert_ptr_null(names[CODE_MODULES_MAX]);
    free(names);
    strcat(text, "x");
    ck_assert_ptr_null(code_config_modules(text));
}
END_TEST

SK_CHECK_MAIN("code host config", test_defaults, test_values, test_log_level, test_warnings, test_modules)
