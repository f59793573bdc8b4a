/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the Python runtime share. One interpreter in one thread: the state is one global. prepare.c fills
 * it in the template, task.c in the child; everything runs with the GIL held, which is never released. */
#ifndef SK_CODE_PYTHON_INTERNAL_H
#define SK_CODE_PYTHON_INTERNAL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "services/code/frame.h"
#include "services/code/runtime.h"

#include <signal.h>
#include <stdbool.h>

#define PYTHON_LOG_RAW_MAX   (1 << 20)                /* bytes of log kept, whatever the limit says (A4) */
#define PYTHON_LOG_ROOM      (6 * PYTHON_LOG_RAW_MAX) /* the same, escaped as JSON at worst */
#define PYTHON_FRAME_HEAD    512       /* before the log: the start of a frame made in a signal handler */
#define PYTHON_GRACE_MS      200       /* from the time-out until a child stuck in C ends without a line */
#define PYTHON_RPC_EXTRA     (1 << 20) /* head of an answer of the broker, beyond its data */
#define PYTHON_TRACE_FRAMES  10        /* shown from each end of a long traceback */
#define PYTHON_MESSAGE_CHARS 16384     /* an error's message is cut after that many characters */

/* JSON text that grows up to `limit`; then `over` is set and nothing more is added. `fixed` memory never grows. */
struct python_text {
    char *bytes;
    size_t used, room, limit;
    bool over, out_of_memory, fixed;
};

/* Types that the encoder knows; NULL = that module is not loaded. */
struct python_types {
    PyTypeObject *decimal, *deque, *array, *range, *numpy_generic, *numpy_array, *frame, *series, *index, *extension;
    PyObject *not_a_time, *not_available;
};

struct python_state {
    bool full;            /* numpy and its kin are loaded */
    bool active;          /* a task runs: the audit hook judges */
    bool requested;       /* the task has sent something to the broker */
    int requests;         /* how many */
    PyObject *allowed;    /* frozenset of names that import may be given besides the standard library */
    PyObject *stdlib;     /* frozenset: sys.stdlib_module_names */
    PyObject *denied;     /* frozenset: those of them that are refused */
    PyObject *builtins;   /* dict: __builtins__ of the user's code */
    PyObject *proxy;      /* what `import builtins` gives */
    PyObject *globals;    /* dict: the namespace of the module __main__ */
    PyObject *reserved;   /* frozenset: names that a variable does not replace */
    PyObject *filename;   /* "<string>": the very object tells the user's frames from all others */
    PyObject *scan;       /* the JSON scanner in C: scan(text, 0) -> (value, end) */
    PyObject *check;      /* rules.check(source, strict, filename) -> code */
    PyObject *bind;       /* helpers.bind(main, variables) -> (args, kwargs), for what task.c does not bind itself */
    PyObject *normalize;  /* unicodedata.normalize */
    PyObject *seed;       /* random._inst.seed */
    PyObject *numpy_seed; /* numpy.random.seed, NULL in lean */
    PyObject *finish_streams; /* helpers.finish_streams: what was written without an end of line */
    PyObject *paths;          /* tuple of folders that are cut out of messages */
    struct python_types types;
    const struct code_task *task;
    const struct code_channel *channel;
    char *log;                         /* PYTHON_FRAME_HEAD + PYTHON_LOG_ROOM + a little, never moved */
    volatile size_t log_used;          /* escaped bytes, after the head */
    size_t log_raw;                    /* the same before escaping */
    volatile sig_atomic_t asked;       /* the time-out has been put to the interpreter */
    volatile sig_atomic_t result_made; /* from now on the result belongs to the main path alone */
};

extern struct python_state python_state;

/* output.c ------------------------------------------------------------------------------------------------------- */
void python_text_put(struct python_text *text, const char *bytes, size_t length);
void python_text_puts(struct python_text *text, const char *string);
/* UTF-8 escaped for a JSON string, without the quotes; invalid bytes do not occur. */
void python_text_escape(struct python_text *text, const char *utf8, size_t length);
/* A str escaped likewise; a lone surrogate becomes U+FFFD. */
void python_text_escape_str(struct python_text *text, PyObject *string);
/* Reserves the log's memory; in the template. */
bool python_log_init(void);
/* Adds one line; dropped whole when it does not fit. Returns false with an exception set only on lack of memory. */
bool python_log_line(PyObject *string);
/* `string` without the interpreter's folders: a new reference, NULL with an exception set. */
PyObject *python_scrub(PyObject *string);
/* Writes the one result and ends the process; both async-signal-safe. The second makes a frame of a code, a message and
 * the log, without allocating. */
_Noreturn void python_finish(const char *json, size_t length);
_Noreturn void python_finish_plain(const char *code, const char *message, const char *type);
_Noreturn void python_finish_timeout(void);

/* encode.c: appends `value` as JSON. False: an exception is set, or text->over. */
bool python_encode(struct python_text *text, PyObject *value);
bool python_encode_init(void);

/* failure.c: ends the task with the exception that is set. */
_Noreturn void python_fail(void);
/* With a message of our own; `line` 0 = none. */
_Noreturn void python_fail_with(const char *code, const char *message, const char *type, long line);
/* The handler of SIGALRM that runs between two instructions: (signal number, frame). */
PyObject *python_on_timeout(PyObject *self, PyObject *args);
void python_on_alarm(int number);

/* guard.c */
int python_audit(const char *event, PyObject *args, void *data);
PyObject *python_guarded_import(PyObject *self, PyObject *args, PyObject *keywords);

/* native.c: the module that helpers.py is given as `native`. */
PyObject *python_native_new(void);

#endif
