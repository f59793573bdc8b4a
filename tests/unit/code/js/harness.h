/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one task in a child of the prepared process and plays its broker. */
#ifndef SK_TESTS_CODE_JS_HARNESS_H
#define SK_TESTS_CODE_JS_HARNESS_H

#include "services/code/runtime.h"

#include <jansson.h>
#include <sys/types.h>

/* The broker of one task. `requests` counts frames, `peak` how many were unanswered at a time. */
struct js_broker {
    /* Answers to the `n`th request (from 0): a new reference, or NULL = hold it back until `hold` others wait too. */
    json_t *(*answer)(struct js_broker *broker, int n, json_t *request);
    int hold;        /* answers are given once so many requests wait, or all of `expect` came */
    int expect;      /* how many requests there will be */
    int close_after; /* the stream ends after so many answers; 0 = with the task */
    int requests, peak;
    bool junk; /* writes what is no frame of the protocol instead of the first answer */
};

/* Sets ordinary limits where they are 0 and fresh randomness; `memory_mb` > 0 limits the child's data. The frame as
 * JSON (a new reference), or NULL when there was none; then *status is the child's. Fails the test when the stream
 * holds anything but one frame, and when it takes longer than `timeout_ms` and some. */
json_t *js_run(struct code_task *task, int memory_mb, struct js_broker *broker, int *status);
/* The same, not parsed: malloc'd, NUL-terminated, or NULL. */
char *js_run_text(struct code_task *task, int memory_mb, struct js_broker *broker, int *status, size_t *length);

#endif
