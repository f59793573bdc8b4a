/* SPDX-License-Identifier: Apache-2.0
 *
 * What a language brings to the code sandbox (contract/code.md §1, §2): it loads everything once in a template, and
 * runs one task in each child that is forked from it. Around it, in other files: the process tree (launcher, template,
 * zygote), the walls, the host. A runtime knows none of them: it gets a task and two descriptors. */
#ifndef SK_CODE_RUNTIME_H
#define SK_CODE_RUNTIME_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODE_SEED_SIZE 32
/* Where the walls put a task's own folder, for kinds that have one. Each task sees its own there; /tmp around it
 * belongs to root and is read-only, as the original has it. */
#define CODE_TMP_PARENT "/tmp"
#define CODE_TMP_DIR    CODE_TMP_PARENT "/task-own"

/* Bounds of one task; the host fills them from its configuration and the request. */
struct code_limits {
    int64_t timeout_ms;   /* wall time of the whole task; the host's own kill comes some time later */
    int64_t output_bytes; /* result frame, log included: SANDBOX_MAX_OUTPUT_MB */
    int64_t log_bytes;    /* 1 MiB: a line that would not fit is dropped whole */
    int64_t tmp_bytes;    /* Python's task directory */
    int request_max;      /* http requests of one task */
    int64_t request_timeout_ms;
    int64_t request_body_bytes;
    int64_t response_bytes;
};

/* Everything is the caller's and stays valid during run(). */
struct code_task {
    const char *code; /* valid UTF-8, not NUL-terminated as far as length goes, but followed by a NUL */
    size_t code_length;
    const char *variables; /* the text of a JSON object, followed by a NUL */
    size_t variables_length;
    const char *tmp_dir; /* the task's own writable directory, "" = none */
    bool strict;         /* SANDBOX_COMPAT_STRICT */
    struct code_limits limits;
    unsigned char seed[CODE_SEED_SIZE]; /* fresh random bytes for this task alone */
};

/* Both carry frames (frame.h). `result` takes exactly one; `rpc` is a stream to the broker, both ways. */
struct code_channel {
    int result, rpc;
};

struct code_runtime {
    const char *name; /* "js", "python", "python-full" */
    /* In the template, once: loads the engine and every module, warms it up. After it the process has exactly one
     * thread and touches the kernel only as a task may. `modules` = names that `require`/`import` may be given,
     * NULL-terminated. Errors: internal, with what could not be loaded. */
    int (*prepare)(const char *const *modules, struct sk_error *err);
    /* In the child, once: runs the task, writes one result frame and returns, or ends the process with 0 itself. Blocks
     * for at most timeout_ms and a little. The caller exits at once; nothing is cleaned up. Never writes to any other
     * descriptor.
     *   {"ok":true,"value":<any>,"log":"…"}
     *   {"ok":false,"code":"error|timeout|memory|output","message":"…","type":"TypeError","line":3,"traceback":"…","log":"…"}
     *   {"move":"numpy"}     only of lean Python: run it again in full, nothing was sent to the broker */
    void (*run)(const struct code_task *task, const struct code_channel *channel);
};

extern const struct code_runtime code_runtime_js, code_runtime_python, code_runtime_python_full;

#endif
