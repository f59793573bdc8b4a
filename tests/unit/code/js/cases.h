/* SPDX-License-Identifier: Apache-2.0
 *
 * One row: a script, its variables, and the result frame that it must give. Tables are in the cases_*.c files. */
#ifndef SK_TESTS_CODE_JS_CASES_H
#define SK_TESTS_CODE_JS_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct js_case {
    const char *name, *code;
    const char *variables; /* "{}" when NULL */
    /* A success: its value as JSON. */
    const char *value;
    /* A failure: its code ("error" when NULL), its message whole, or a part of it; the type and line when given. */
    const char *fails, *message, *part, *type;
    int line;
    const char *traceback;
    const char *log; /* "" when NULL, "*" = any */
    bool strict;
    int64_t timeout_ms, output_bytes, log_bytes; /* ordinary ones when 0 */
    int memory_mb;                               /* limit of data beyond what the process has at the start; 0 = none */
};

extern const struct js_case cases_basic[], cases_values[], cases_guard[], cases_modules[], cases_limits[];
extern const int cases_basic_count, cases_values_count, cases_guard_count, cases_modules_count, cases_limits_count;

#define CASES(table) const int table##_count = (int)(sizeof(table) / sizeof((table)[0]))

#endif
