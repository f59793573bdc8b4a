/* SPDX-License-Identifier: Apache-2.0
 *
 * How a task ends that does not end well: an exception, the wall time, too much output, too little memory. Each becomes
 * the one frame, with type, line and traceback of the user's own frames (contract/code.md §4) and without any path. */
#include "services/code/python/internal.h"

#include <errno.h>
#include <frameobject.h>
#include <string.h>
#include <unistd.h>

struct place {
    int line;
    PyObject *name; /* borrowed from a code object that lives as long as the traceback */
};

/* The user's frames, outermost first: the first and the last PYTHON_TRACE_FRAMES of `count`. */
struct places {
    struct place first[PYTHON_TRACE_FRAMES], last[PYTHON_TRACE_FRAMES];
    long count;
};

static void places_add(struct places *places, PyCodeObject *code, int line)
{
    struct place place = {.line = line, .name = code->co_name};

    if (code->co_filename != python_state.filename)
        return;
    if (places->count < PYTHON_TRACE_FRAMES)
        places->first[places->count] = place;
    else
        places->last[places->count % PYTHON_TRACE_FRAMES] = place;
    places->count++;
}

static const struct place *places_at(const struct places *places, long i)
{
    return i < PYTHON_TRACE_FRAMES ? &places->first[i] : &places->last[i % PYTHON_TRACE_FRAMES];
}

/* Line `line` of the task's code, without its indentation. */
static void put_source_line(struct python_text *text, int line)
{
    const char *at = python_state.task->code, *end = at + python_state.task->code_length, *stop;

    for (int i = 1; i < line && at != NULL; i++) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at == NULL ? NULL : at + 1;
    }
    if (line < 1 || at == NULL || at >= end)
        return;
    stop = memchr(at, '\n', (size_t)(end - at));
    stop = stop == NULL ? end : stop;
    while (at < stop && (*at == ' ' || *at == '\t'))
        at++;
    while (stop > at && (stop[-1] == '\r' || stop[-1] == ' '))
        stop--;
    if (stop - at > 200) {
        stop = at + 200;
        while (stop > at && ((unsigned char)*stop & 0xc0) == 0x80)
            stop--;
    }
    if (at == stop)
        return;
    python_text_puts(text, "    ");
    python_text_escape(text, at, (size_t)(stop - at));
    python_text_puts(text, "\\n");
}

static void put_places(struct python_text *text, const struct places *places)
{
    char line[64];

    python_text_puts(text, "Traceback (most recent call last):\\n");
    for (long i = 0; i < places->count; i++) {
        const struct place *place;

        if (i == PYTHON_TRACE_FRAMES && places->count > (long)2 * PYTHON_TRACE_FRAMES) {
            long hidden = places->count - (long)2 * PYTHON_TRACE_FRAMES;

            python_text_put(text, line, (size_t)snprintf(line, sizeof(line), "  [%ld more frames]\\n", hidden));
            i += hidden;
        }
        place = places_at(places, i);
        python_text_puts(text, "  File \\\"<string>\\\", line ");
        python_text_put(text, line, (size_t)snprintf(line, sizeof(line), "%d, in ", place->line));
        python_text_escape_str(text, place->name);
        python_text_puts(text, "\\n");
        put_source_line(text, place->line);
    }
}

/* Composes the frame; message and type are str objects. Falls back to a frame without details for want of memory. */
static _Noreturn void finish(const char *code, PyObject *message, const char *type, long line,
                             const struct places *places)
{
    struct python_text text = {.limit = (size_t)python_state.task->limits.output_bytes};
    size_t log = python_state.log_used;
    char number[32];

    if (text.limit < (size_t)4 * PYTHON_MESSAGE_CHARS) /* a small limit cuts a result, not the error that tells of it */
        text.limit = (size_t)4 * PYTHON_MESSAGE_CHARS;
    python_text_puts(&text, "{\"ok\":false,\"code\":\"");
    python_text_puts(&text, code);
    python_text_puts(&text, "\",\"message\":\"");
    /* `raise Exception`, a failed assert, exit(): a caller that shows the message only must have something to show. */
    if (PyUnicode_GET_LENGTH(message) > 0)
        python_text_escape_str(&text, message);
    else
        python_text_escape(&text, type, strlen(type));
    python_text_puts(&text, "\",\"type\":\"");
    python_text_escape(&text, type, strlen(type));
    python_text_puts(&text, "\"");
    if (line > 0)
        python_text_put(&text, number, (size_t)snprintf(number, sizeof(number), ",\"line\":%ld", line));
    if (places != NULL && places->count > 0) {
        python_text_puts(&text, ",\"traceback\":\"");
        put_places(&text, places);
        python_text_escape(&text, type, strlen(type));
        if (PyUnicode_GET_LENGTH(message) > 0) {
            python_text_puts(&text, ": ");
            python_text_escape_str(&text, message);
        }
        python_text_puts(&text, "\"");
    }
    python_text_puts(&text, ",\"log\":\"");
    if (log + 2 < text.limit - text.used)
        python_text_put(&text, python_state.log + PYTHON_FRAME_HEAD, log);
    python_text_puts(&text, "\"}");
    if (text.out_of_memory)
        python_finish_plain("memory", "Memory limit exceeded", "MemoryError");
    if (text.over)
        python_finish_plain(code, "Output too large", type);
    python_finish(text.bytes, text.used);
}

void python_fail_with(const char *code, const char *message, const char *type, long line)
{
    PyObject *string = PyUnicode_FromString(message);

    if (string == NULL)
        python_finish_plain("memory", "Memory limit exceeded", "MemoryError");
    finish(code, string, type, line, NULL);
}

static void places_of_traceback(struct places *places, PyObject *traceback)
{
    for (PyTracebackObject *at = (PyTracebackObject *)traceback; at != NULL && PyTraceBack_Check(at);
         at = at->tb_next) {
        PyCodeObject *code = PyFrame_GetCode(at->tb_frame);

        places_add(places, code, PyCode_Addr2Line(code, at->tb_lasti));
        Py_DECREF(code); /* the frame keeps it */
    }
}

static void places_of_frame(struct places *places, PyFrameObject *frame)
{
    PyFrameObject *chain[2000];
    int count = 0;

    for (Py_XINCREF(frame); frame != NULL && count < (int)(sizeof(chain) / sizeof(chain[0]));
         frame = PyFrame_GetBack(frame))
        chain[count++] = frame;
    while (count > 0) {
        PyCodeObject *code = PyFrame_GetCode(chain[--count]);

        places_add(places, code, PyFrame_GetLineNumber(chain[count]));
        Py_DECREF(code);
    }
}

/* str(exception), at most PYTHON_MESSAGE_CHARS of it and without paths: never NULL, whatever the exception's str does.
 */
static PyObject *message_of(PyObject *exception)
{
    PyObject *message = exception == NULL ? NULL : PyObject_Str(exception);

    if (message != NULL && PyUnicode_GET_LENGTH(message) > PYTHON_MESSAGE_CHARS)
        Py_SETREF(message, PyUnicode_Substring(message, 0, PYTHON_MESSAGE_CHARS));
    if (message != NULL)
        Py_SETREF(message, python_scrub(message));
    if (message == NULL) {
        PyErr_Clear();
        message = PyUnicode_FromString("");
    }
    if (message == NULL)
        python_finish_plain("memory", "Memory limit exceeded", "MemoryError");
    return message;
}

static long attribute_number(PyObject *value, const char *name)
{
    PyObject *attribute = PyObject_GetAttrString(value, name);
    long number = attribute == NULL || !PyLong_Check(attribute) ? 0 : PyLong_AsLong(attribute);

    PyErr_Clear();
    Py_XDECREF(attribute);
    return number;
}

void python_fail(void)
{
    PyObject *type, *exception, *traceback, *message;
    struct places places = {.count = 0};
    const char *code = "error", *name;
    char quota[96];
    long line = 0, number;

    PyErr_Fetch(&type, &exception, &traceback);
    if (type == NULL)
        python_fail_with("error", "Python failed without an exception", "SystemError", 0);
    PyErr_NormalizeException(&type, &exception, &traceback);
    places_of_traceback(&places, traceback);
    if (places.count > 0)
        line = places_at(&places, places.count - 1)->line;
    else if (exception != NULL) /* a SyntaxError of the code itself, or what the rules refuse */
        line = attribute_number(exception, "lineno");
    name = PyType_Check(type) ? ((PyTypeObject *)type)->tp_name : "Exception";
    name = strrchr(name, '.') == NULL ? name : strrchr(name, '.') + 1;
    message = message_of(exception);
    if (PyErr_GivenExceptionMatches(type, PyExc_MemoryError)) {
        code = "memory";
        if (PyUnicode_GET_LENGTH(message) == 0)
            Py_SETREF(message, PyUnicode_FromString("Memory limit exceeded"));
        else
            Py_SETREF(message, PyUnicode_FromFormat("Memory limit exceeded: %U", message));
        if (message == NULL)
            python_finish_plain("memory", "Memory limit exceeded", "MemoryError");
    } else if (PyErr_GivenExceptionMatches(type, PyExc_OSError) && exception != NULL) {
        number = attribute_number(exception, "errno");
        if (number == ENOSPC || number == EFBIG || number == EDQUOT) {
            (void)snprintf(quota, sizeof(quota), "Task temporary file limit exceeded (limit: %lld bytes)",
                           (long long)python_state.task->limits.tmp_bytes);
            Py_SETREF(message, PyUnicode_FromString(quota));
            if (message == NULL)
                python_finish_plain("memory", "Memory limit exceeded", "MemoryError");
        }
    }
    finish(code, message, name, line, &places);
}

PyObject *python_on_timeout(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *number, *frame = NULL, *message;
    struct places places = {.count = 0};
    char text[96];

    if (!python_state.active || !python_state.asked || !PyArg_ParseTuple(args, "OO", &number, &frame))
        Py_RETURN_NONE;
    if (frame != NULL && PyFrame_Check(frame))
        places_of_frame(&places, (PyFrameObject *)frame);
    (void)snprintf(text, sizeof(text), "Script execution timed out after %lldms",
                   (long long)python_state.task->limits.timeout_ms);
    message = PyUnicode_FromString(text);
    if (message == NULL)
        python_finish_timeout();
    finish("timeout", message, "TimeoutError", places.count > 0 ? places_at(&places, places.count - 1)->line : 0,
           &places);
}

/* First the interpreter is asked: it ends the task between two instructions, with the line where it was, and no user
 * code runs any more, so that no `except` can keep it from that. When that has not happened by the next alarm (a loop
 * in C), the frame is made here. */
void python_on_alarm(int number)
{
    int saved = errno;

    if (python_state.result_made)
        return;
    if (python_state.asked)
        python_finish_timeout();
    python_state.asked = 1;
    (void)PyErr_SetInterruptEx(number);
    errno = saved;
}
