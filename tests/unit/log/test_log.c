/* SPDX-License-Identifier: Apache-2.0
 * Every line is one valid JSON object of at most 8 KiB, whatever is passed in; levels; threads; the terminal form. */
#include "common/log/log.h"

#include "common/base/id.h"
#include "tests/unit/check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char last[16384];
static size_t last_len;
static int lines;

static void capture(void *arg, const char *line, size_t len)
{
    (void)arg;
    ck_assert_uint_le(len, 8192);
    ck_assert_int_eq(line[len - 1], '\n');
    ck_assert_ptr_null(memchr(line, '\n', len - 1));
    memcpy(last, line, len);
    last[len] = '\0';
    last_len = len;
    lines++;
}

static void start(enum sk_log_level level)
{
    sk_log_init("sk-test", level);
    sk_log_capture(capture, NULL);
    lines = 0;
}

static json_t *last_object(void)
{
    json_error_t fault;
    json_t *object = json_loadb(last, last_len, JSON_REJECT_DUPLICATES, &fault);

    ck_assert_msg(object != NULL, "%s: %.200s", fault.text, last);
    return object;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text != NULL ? text : "(absent)";
}

START_TEST(test_fields_and_their_types)
{
    struct sk_error err = {0};
    json_t *object;
    int64_t when;

    start(SK_LOG_LEVEL_INFO);
    sk_fail_unknown(&err, SK_ERR_PROVIDER_TIMEOUT, "create: no answer");
    err.provider_status = 504;
    SK_LOG_WARN("operation failed", SK_F("sandboxId", "app-1"), SK_FI("epoch", 7), SK_FI("low", INT64_MIN),
                SK_FB("blocked", true), SK_FB("retry", 0), SK_F("left out", NULL), SK_FE(&err));
    object = last_object();
    ck_assert(sk_time_parse(text_of(object, "ts"), &when));
    ck_assert_str_eq(text_of(object, "level"), "warn");
    ck_assert_str_eq(text_of(object, "service"), "sk-test");
    ck_assert_str_eq(text_of(object, "msg"), "operation failed");
    ck_assert_str_eq(text_of(object, "sandboxId"), "app-1");
    ck_assert_int_eq(json_integer_value(json_object_get(object, "epoch")), 7);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "low")), INT64_MIN);
    ck_assert(json_is_true(json_object_get(object, "blocked")));
    ck_assert(json_is_false(json_object_get(object, "retry")));
    ck_assert_ptr_null(json_object_get(object, "left out"));
    ck_assert_str_eq(text_of(object, "error.code"), "provider_timeout");
    ck_assert_str_eq(text_of(object, "error.message"), "create: no answer");
    ck_assert_str_eq(text_of(object, "error.outcome"), "unknown");
    ck_assert_int_eq(json_integer_value(json_object_get(object, "error.providerStatus")), 504);
    ck_assert_ptr_null(json_object_get(object, "cut"));
    ck_assert_uint_eq(json_object_size(object), 13);
    json_decref(object);
}
END_TEST

START_TEST(test_no_fields_and_no_error)
{
    struct sk_error none = {0};
    json_t *object;

    start(SK_LOG_LEVEL_DEBUG);
    SK_LOG_DEBUG("bare");
    object = last_object();
    ck_assert_uint_eq(json_object_size(object), 4);
    json_decref(object);
    SK_LOG_ERROR("no error inside", SK_FE(NULL), SK_FE(&none));
    object = last_object();
    ck_assert_uint_eq(json_object_size(object), 4);
    json_decref(object);
    sk_log_write(SK_LOG_LEVEL_INFO, NULL, NULL, 0);
    object = last_object();
    ck_assert_str_eq(text_of(object, "msg"), "");
    json_decref(object);
}
END_TEST

static int evaluated;

static const char *count_evaluation(void)
{
    evaluated++;
    return "x";
}

START_TEST(test_levels)
{
    enum sk_log_level level;

    start(SK_LOG_LEVEL_WARN);
    SK_LOG_INFO("not written", SK_F("x", count_evaluation()));
    ck_assert_int_eq(lines, 0);
    ck_assert_int_eq(evaluated, 0); /* fields of a line that is not written cost nothing */
    SK_LOG_WARN("written", SK_F("x", count_evaluation()));
    ck_assert_int_eq(lines, 1);
    sk_log_set_level(SK_LOG_LEVEL_DEBUG);
    SK_LOG_DEBUG("written");
    ck_assert_int_eq(lines, 2);
    ck_assert(sk_log_level_parse("debug", &level) && level == SK_LOG_LEVEL_DEBUG);
    ck_assert(sk_log_level_parse("error", &level) && level == SK_LOG_LEVEL_ERROR);
    ck_assert(!sk_log_level_parse("Info", &level));
    ck_assert(!sk_log_level_parse("", &level));
    ck_assert(!sk_log_level_parse(NULL, &level));
}
END_TEST

/* Around the limit byte by byte, with one- to four-byte characters and with escapes: always valid, cut when too long,
 * and what is left is a beginning of what was given. */
START_TEST(test_long_lines_are_cut_between_code_points)
{
    static const struct {
        const char *text;
        size_t encoded; /* bytes in the line */
    } units[] = {{"a", 1},  {"\xc3\xa9", 2}, {"\xe7\x94\xa8", 3}, {"\xf0\x9f\x98\x80", 4}, {"\"", 2}, {"\\", 2},
                 {"\n", 2}, {"\x01", 6},     {"\xff", 3}};
    static char text[40000], expected[120000];

    start(SK_LOG_LEVEL_INFO);
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        bool cut_seen = false, whole_seen = false;
        for (size_t count = (8192 - 200) / units[u].encoded; count < 8192 / units[u].encoded; count++) {
            size_t unit_len = strlen(units[u].text), len = 0;
            const char *shown;
            json_t *object;
            for (size_t i = 0; i < count; i++, len += unit_len)
                memcpy(text + len, units[u].text, unit_len);
            text[len] = '\0';
            SK_LOG_INFO("m", SK_F("text", text), SK_FI("after", 1));
            object = last_object();
            expected[0] = '\0';
            if (units[u].text[0] == '\xff')
                for (size_t i = 0; i < count; i++)
                    memcpy(expected + 3 * i, "\xef\xbf\xbd", 4);
            else
                memcpy(expected, text, len + 1);
            shown = text_of(object, "text");
            ck_assert_int_eq(strncmp(shown, expected, strlen(shown)), 0);
            if (json_is_true(json_object_get(object, "cut"))) {
                cut_seen = true;
                ck_assert_uint_ge(last_len, 8192 - 40);
            } else {
                whole_seen = true;
                ck_assert_str_eq(shown, expected);
                ck_assert_int_eq(json_integer_value(json_object_get(object, "after")), 1);
            }
            json_decref(object);
        }
        ck_assert(cut_seen && whole_seen);
    }
}
END_TEST

START_TEST(test_long_messages_and_many_fields_are_cut)
{
    static char text[10000];
    struct sk_log_field fields[500];
    json_t *object;

    start(SK_LOG_LEVEL_INFO);
    memset(text, 'm', sizeof(text) - 1);
    SK_LOG_INFO(text, SK_F("after", "x"));
    object = last_object();
    ck_assert(json_is_true(json_object_get(object, "cut")));
    ck_assert_ptr_null(json_object_get(object, "after"));
    json_decref(object);
    for (int i = 0; i < 500; i++) {
        static char names[500][24];
        snprintf(names[i], sizeof(names[i]), "field-number-%d", i);
        fields[i] = SK_FI(names[i], i);
    }
    sk_log_write(SK_LOG_LEVEL_INFO, "many", fields, 500);
    object = last_object();
    ck_assert(json_is_true(json_object_get(object, "cut")));
    ck_assert_int_eq(json_integer_value(json_object_get(object, "field-number-100")), 100);
    json_decref(object);
}
END_TEST

START_TEST(test_bytes_that_are_not_text)
{
    json_t *object;

    start(SK_LOG_LEVEL_INFO);
    SK_LOG_INFO("bad \x80 byte", SK_F("half", "\xe7\x94"), SK_F("surrogate", "\xed\xa0\x80"),
                SK_F("escape", "a\x1b[31mb\x7f\xc2\x9b"), SK_F("na\"me\n", "v"));
    object = last_object();
    ck_assert_str_eq(text_of(object, "msg"), "bad \xef\xbf\xbd byte");
    ck_assert_str_eq(text_of(object, "half"), "\xef\xbf\xbd\xef\xbf\xbd");
    ck_assert_str_eq(text_of(object, "surrogate"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    ck_assert_str_eq(text_of(object, "escape"), "a\x1b[31mb\x7f\xc2\x9b");
    ck_assert_ptr_null(memchr(last, '\x1b', last_len)); /* raw control characters never reach the stream */
    ck_assert_str_eq(text_of(object, "na\"me\n"), "v");
    json_decref(object);
}
END_TEST

static void *log_thread(void *arg)
{
    for (int i = 0; i < 300; i++)
        SK_LOG_INFO("from a thread", SK_F("thread", arg), SK_FI("i", i),
                    SK_F("pad", "0123456789012345678901234567890123"));
    return NULL;
}

/* Through a real pipe in place of stderr: lines of threads never mix. */
START_TEST(test_threads_write_whole_lines)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    static char text[1 << 20];
    pthread_t threads[4];
    size_t len = 0;
    int fd[2], saved = dup(STDERR_FILENO), count = 0;
    ssize_t n;
    char *rest, *line;

    ck_assert_int_eq(pipe(fd), 0);
    fcntl(fd[1], F_SETPIPE_SZ, 1 << 20);
    dup2(fd[1], STDERR_FILENO);
    sk_log_init("sk-test", SK_LOG_LEVEL_INFO);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, log_thread, (void *)(uintptr_t)names[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    dup2(saved, STDERR_FILENO);
    close(fd[1]);
    while ((n = read(fd[0], text + len, sizeof(text) - 1 - len)) > 0)
        len += (size_t)n;
    text[len] = '\0';
    rest = text;
    while ((line = strsep(&rest, "\n")) != NULL && *line != '\0') {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(object != NULL, "%s", line);
        json_decref(object);
        count++;
    }
    ck_assert_int_eq(count, 4 * 300);
    close(fd[0]);
    close(saved);
}
END_TEST

/* A reader that does not read: lines are dropped and counted, the next line that fits starts on a fresh line. */
START_TEST(test_full_pipe_drops_lines)
{
    static char text[1 << 17], pad[3000];
    int fd[2], saved = dup(STDERR_FILENO), good = 0;
    unsigned long long dropped = sk_log_dropped();
    char *rest = text, *line;
    ssize_t n;

    memset(pad, 'p', sizeof(pad) - 1);
    ck_assert_int_eq(pipe2(fd, O_NONBLOCK), 0);
    dup2(fd[1], STDERR_FILENO);
    sk_log_init("sk-test", SK_LOG_LEVEL_INFO);
    for (int i = 0; i < 100; i++) {
        errno = 77;
        SK_LOG_INFO("x", SK_F("pad", pad), SK_F("more", pad));
        ck_assert_int_eq(errno, 77);
    }
    ck_assert_uint_gt(sk_log_dropped(), dropped);
    n = read(fd[0], text, 8192 * 2);
    ck_assert_int_gt(n, 0);
    SK_LOG_INFO("after");
    dup2(saved, STDERR_FILENO);
    close(fd[1]);
    while (n < (ssize_t)sizeof(text) - 1) {
        ssize_t more = read(fd[0], text + n, sizeof(text) - 1 - (size_t)n);
        if (more <= 0)
            break;
        n += more;
    }
    text[n] = '\0';
    while ((line = strsep(&rest, "\n")) != NULL) {
        json_t *object = json_loads(line, 0, NULL);
        good += object != NULL && strcmp(text_of(object, "msg"), "after") == 0;
        json_decref(object);
    }
    ck_assert_int_eq(good, 1);
    close(fd[0]);
    close(saved);
}
END_TEST

START_TEST(test_terminal_form)
{
    char text[4096];
    struct sk_error err = {0};
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave, saved = dup(STDERR_FILENO);
    ssize_t n;

    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        return; /* no pseudo-terminals here */
    slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    ck_assert_int_ge(slave, 0);
    dup2(slave, STDERR_FILENO);
    sk_log_init("sk-test", SK_LOG_LEVEL_INFO);
    sk_fail(&err, SK_ERR_SANDBOX_BUSY, "held by x");
    SK_LOG_WARN("hello\x1b[2J", SK_F("id", "app-1"), SK_F("quoted", "two words"), SK_FI("n", 3), SK_FE(&err));
    dup2(saved, STDERR_FILENO);
    n = read(master, text, sizeof(text) - 1);
    ck_assert_int_gt(n, 26);
    text[n] = '\0';
    ck_assert_str_eq(text + 24, " WARN  hello\\u001b[2J id=app-1 quoted=\"two words\" n=3 error.code=sandbox_busy "
                                "error.message=\"held by x\"\r\n");
    close(master);
    close(slave);
    close(saved);
}
END_TEST

static int64_t fixed_wall(void *self)
{
    (void)self;
    return 0;
}

START_TEST(test_clock_can_be_replaced)
{
    static const struct sk_sched_ops ops = {.wall_ms = fixed_wall};
    static const struct sk_sched fixed = {.ops = &ops};

    start(SK_LOG_LEVEL_INFO);
    sk_log_set_clock(&fixed);
    SK_LOG_INFO("then");
    sk_log_set_clock(NULL);
    ck_assert_str_eq(
        last, "{\"ts\":\"1970-01-01T00:00:00.000Z\",\"level\":\"info\",\"service\":\"sk-test\",\"msg\":\"then\"}\n");
}
END_TEST

SK_CHECK_MAIN("log", test_fields_and_their_types, test_no_fields_and_no_error, test_levels,
              test_long_lines_are_cut_between_code_points, test_long_messages_and_many_fields_are_cut,
              test_bytes_that_are_not_text, test_threads_write_whole_lines, test_full_pipe_drops_lines,
              test_terminal_form, test_clock_can_be_replaced)
