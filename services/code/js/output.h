/* SPDX-License-Identifier: Apache-2.0
 *
 * A task's log and its one result frame (runtime.h), and the clock that ends it. Whatever a task does, exactly one
 * frame is written: by a finish function, or, when the time is over first, by a signal handler that takes the log as it
 * is and ends the process. One task a process; one thread. */
#ifndef SK_CODE_JS_OUTPUT_H
#define SK_CODE_JS_OUTPUT_H

#include "services/code/runtime.h"

struct code_failure {
    const char *code; /* one of runtime.h */
    const uint16_t *message, *type, *traceback;
    size_t message_length, type_length, traceback_length;
    int line; /* 0 = not known */
};

/* Starts a task's output on `fd` and its clock; with `fd` -1 it is a rehearsal: nothing is written, no clock runs.
 * False: the clock could not be set (errno tells). */
bool code_output_start(int fd, const struct code_limits *limits);
/* Takes one line; one that would make the log longer than log_bytes is dropped whole. */
void code_output_log(const uint16_t *chars, size_t count);
/* The result. Only the first call of any of these does something. `json` is JSON text in UTF-16. */
void code_output_value(const uint16_t *json, size_t count);
void code_output_failure(const struct code_failure *failure);
void code_output_overflow(void);
/* A failure in fixed words of ASCII that need no escape. */
void code_output_fixed(const char *code, const char *type, const char *message);
/* Whether the result was written. From then on the process ends by itself soon, should the engine not come back. */
bool code_output_done(void);
/* Whether that result was a failure; for rehearsals. */
bool code_output_failed(void);

#endif
