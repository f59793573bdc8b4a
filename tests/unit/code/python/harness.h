/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs tasks of the Python runtime as a zygote would: one prepare() per program, one forked child per task, with a
 * broker of its own. No walls. */
#ifndef SK_TESTS_CODE_PYTHON_HARNESS_H
#define SK_TESTS_CODE_PYTHON_HARNESS_H

#include "services/code/runtime.h"

#include <check.h>
#include <jansson.h>
#include <stdbool.h>
#include <sys/resource.h>

extern const char *const python_default_modules[]; /* reference A7 */

/* One row of a table: what the one frame must hold. `want` is a JSON object; each of its keys must be equal in the
 * frame, "key~" must be part of that text, "key!" must be absent. */
struct row {
    const char *code;
    const char *variables; /* NULL = {} */
    const char *want;
};

struct outcome {
    json_t *frame; /* NULL: none, or more than one */
    int frames, requests;
    int status; /* of the child, as wait gives it */
    struct rusage usage;
    int64_t wall_ms;
};

/* Answers a request of a task: a new object without "id"; NULL = hang up. */
typedef json_t *(*broker_fn)(const json_t *request);

/* The defaults of a task. */
struct code_task task_of(const char *code, const char *variables);
/* Forks and runs; `before` runs in the child first and may be NULL. The outcome is to be freed. */
struct outcome run_task(const struct code_runtime *runtime, const struct code_task *task, broker_fn broker,
                        void (*before)(void));
void outcome_free(struct outcome *outcome);
/* NULL, or a text that tells the first difference: the caller's to free. */
char *difference(const struct outcome *outcome, const char *want);
/* Fails the test at the first rows that differ, naming each. */
void check_rows(const struct code_runtime *runtime, bool strict, const struct row *rows, size_t count);
/* prepare() in this process; prints and exits on failure. */
void prepare_or_exit(const struct code_runtime *runtime);
/* A directory for tasks, removed at exit. */
const char *task_directory(void);
/* Anonymous memory of this process in KiB: forked from the prepared one, it shows what every zygote holds. */
long anonymous_kib(void);
/* The main function of a test program: prepares once, then runs the tests, each in a child of that process. */
int run_suite(const char *name, const struct code_runtime *runtime, const TTest *const *tests, size_t count);
#define PYTHON_CHECK_MAIN(name, runtime, ...)                                                                          \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        const TTest *const tests[] = {__VA_ARGS__};                                                                    \
        return run_suite(name, runtime, tests, sizeof(tests) / sizeof(tests[0]));                                      \
    }

#endif
