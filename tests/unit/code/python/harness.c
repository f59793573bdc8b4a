/* SPDX-License-Identifier: Apache-2.0
 *
 * See harness.h. */
#include "tests/unit/code/python/harness.h"

#include "services/code/frame.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FRAME_MAX (64 << 20)

#ifdef __SANITIZE_ADDRESS__
/* The interpreter is never taken down, neither here nor in a template: what it keeps is no leak. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}
#endif

const char *const python_default_modules[] = {
    "math",      "cmath",   "decimal",  "fractions",   "random",    "statistics",  "collections", "array",
    "heapq",     "bisect",  "queue",    "copy",        "itertools", "functools",   "operator",    "string",
    "re",        "difflib", "textwrap", "unicodedata", "codecs",    "datetime",    "time",        "calendar",
    "_strptime", "json",    "csv",      "base64",      "binascii",  "struct",      "hashlib",     "hmac",
    "secrets",   "uuid",    "typing",   "abc",         "enum",      "dataclasses", "contextlib",  "pprint",
    "weakref",   "numpy",   "pandas",   "matplotlib",  NULL};

static char directory[64];

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static pid_t owner;

static void remove_directory(void)
{
    if (getpid() == owner)
        (void)nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *task_directory(void)
{
    if (directory[0] == '\0') {
        (void)snprintf(directory, sizeof(directory), "/tmp/sandkeep-task-XXXXXX");
        if (mkdtemp(directory) == NULL)
            exit(EXIT_FAILURE);
        owner = getpid();
        (void)atexit(remove_directory);
    }
    return directory;
}

struct code_task task_of(const char *code, const char *variables)
{
    struct code_task task = {
        .code = code,
        .code_length = strlen(code),
        .variables = variables == NULL ? "{}" : variables,
        .tmp_dir = task_directory(),
        .limits = {.timeout_ms = 60000,
                   .output_bytes = 10 << 20,
                   .log_bytes = 1 << 20,
                   .tmp_bytes = 16 << 20,
                   .request_max = 30,
                   .request_timeout_ms = 60000,
                   .request_body_bytes = 5 << 20,
                   .response_bytes = 10 << 20},
    };

    task.variables_length = strlen(task.variables);
    if (getrandom(task.seed, sizeof(task.seed), 0) != (ssize_t)sizeof(task.seed))
        exit(EXIT_FAILURE);
    return task;
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool answer(int fd, broker_fn broker)
{
    char *text = NULL, *reply;
    size_t length;
    json_t *request, *response;
    bool ok;

    if (!code_frame_read(fd, FRAME_MAX, &text, &length))
        return false;
    request = json_loads(text, 0, NULL);
    free(text);
    response = request == NULL || broker == NULL ? NULL : broker(request);
    if (response == NULL) {
        json_decref(request);
        return false;
    }
    (void)json_object_set(response, "id", json_object_get(request, "id"));
    reply = json_dumps(response, JSON_COMPACT);
    ok = code_frame_write(fd, reply, strlen(reply));
    free(reply);
    json_decref(request);
    json_decref(response);
    return ok;
}

struct outcome run_task(const struct code_runtime *runtime, const struct code_task *task, broker_fn broker,
                        void (*before)(void))
{
    struct outcome outcome = {.frame = NULL};
    int result[2], rpc[2];
    int64_t start = now_ms();
    bool open = true;
    pid_t pid;

    if (pipe2(result, O_CLOEXEC) != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, rpc) != 0 ||
        (pid = fork()) < 0) {
        perror("run_task");
        exit(EXIT_FAILURE);
    }
    if (pid == 0) {
        struct code_channel channel = {.result = result[1], .rpc = rpc[1]};

        (void)close(result[0]);
        (void)close(rpc[0]);
        if (before != NULL)
            before();
        runtime->run(task, &channel);
        _exit(0);
    }
    (void)close(result[1]);
    (void)close(rpc[1]);
    while (open) {
        struct pollfd fds[2] = {{.fd = result[0], .events = POLLIN}, {.fd = rpc[0], .events = POLLIN}};

        if (poll(fds, 2, -1) < 0)
            continue;
        if (rpc[0] >= 0 && fds[1].revents != 0) {
            if (answer(rpc[0], broker)) {
                outcome.requests++;
            } else {
                (void)close(rpc[0]);
                rpc[0] = -1;
            }
        }
        if (fds[0].revents != 0) {
            char *text = NULL;
            size_t length;

            if (!code_frame_read(result[0], FRAME_MAX, &text, &length)) {
                open = false;
                continue;
            }
            json_decref(outcome.frame);
            outcome.frame = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
            outcome.frames++;
            free(text);
        }
    }
    (void)close(result[0]);
    if (rpc[0] >= 0)
        (void)close(rpc[0]);
    while (wait4(pid, &outcome.status, 0, &outcome.usage) < 0 && errno == EINTR)
        ;
    outcome.wall_ms = now_ms() - start;
    if (outcome.frames != 1) {
        json_decref(outcome.frame);
        outcome.frame = NULL;
    }
    return outcome;
}

void outcome_free(struct outcome *outcome)
{
    json_decref(outcome->frame);
    outcome->frame = NULL;
}

static char *say(const char *what, const json_t *value)
{
    char *text = value == NULL ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_SORT_KEYS), *said = NULL;

    if (asprintf(&said, "%s: %.1500s", what, text == NULL ? "(nothing)" : text) < 0)
        said = NULL;
    free(text);
    return said;
}

char *difference(const struct outcome *outcome, const char *want)
{
    json_error_t error;
    json_t *wanted = json_loads(want, JSON_ALLOW_NUL, &error), *value;
    const char *key;
    char *said = NULL;

    if (wanted == NULL)
        return say(error.text, json_null());
    if (outcome->frame == NULL) {
        json_decref(wanted);
        if (asprintf(&said, "%d frames, status %#x", outcome->frames, (unsigned)outcome->status) < 0)
            return NULL;
        return said;
    }
    json_object_foreach (wanted, key, value) {
        size_t length = strlen(key);
        char plain[64];
        const json_t *found;
        bool same;

        (void)snprintf(plain, sizeof(plain), "%.*s", (int)(strchr("~!", key[length - 1]) == NULL ? length : length - 1),
                       key);
        found = json_object_get(outcome->frame, plain);
        if (key[length - 1] == '~')
            same = json_is_string(found) && strstr(json_string_value(found), json_string_value(value)) != NULL;
        else if (key[length - 1] == '!')
            same = found == NULL;
        else
            same = json_equal(found, value) == 1;
        if (!same) {
            said = say(key, outcome->frame);
            break;
        }
    }
    json_decref(wanted);
    return said;
}

void check_rows(const struct code_runtime *runtime, bool strict, const struct row *rows, size_t count)
{
    int failed = 0;

    for (size_t i = 0; i < count; i++) {
        struct code_task task = task_of(rows[i].code, rows[i].variables);
        struct outcome outcome;
        char *said;

        task.strict = strict;
        outcome = run_task(runtime, &task, NULL, NULL);
        said = difference(&outcome, rows[i].want);
        if (said != NULL) {
            failed++;
            (void)fprintf(stderr, "row %zu: %s\n  want %s\n  got %s\n", i, rows[i].code, rows[i].want, said);
        }
        free(said);
        outcome_free(&outcome);
    }
    ck_assert_msg(failed == 0, "%d of %zu rows differ", failed, count);
}

void prepare_or_exit(const struct code_runtime *runtime)
{
    struct sk_error error = {0};

    (void)task_directory();
    if (runtime->prepare(python_default_modules, &error) != 0) {
        (void)fprintf(stderr, "%s\n", error.message);
        exit(EXIT_FAILURE);
    }
}

long anonymous_kib(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long size = -1;

    while (file != NULL && size < 0 && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "Anonymous:", 10) == 0)
            size = strtol(line + 10, NULL, 10);
    }
    if (file != NULL)
        (void)fclose(file);
    return size;
}

int run_suite(const char *name, const struct code_runtime *runtime, const TTest *const *tests, size_t count)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    SRunner *runner;
    int failed;

    (void)signal(SIGPIPE, SIG_IGN); /* a task may end before it is answered */
    prepare_or_exit(runtime);
    tcase_set_timeout(tcase, 120);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
