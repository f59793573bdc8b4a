/* SPDX-License-Identifier: Apache-2.0
 *
 * Text on its way out: JSON of bounded size, the log, and the one result frame. The log is kept escaped in memory that
 * is set aside in the template, so that a signal handler can send it when the interpreter is stuck or out of memory. */
#include "services/code/python/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct python_state python_state;

void python_text_put(struct python_text *text, const char *bytes, size_t length)
{
    if (text->over || text->out_of_memory || length == 0)
        return;
    if (length > text->limit - text->used) {
        text->over = true;
        return;
    }
    if (length > text->room - text->used) {
        size_t room = text->room < 4096 ? 4096 : text->room;
        char *grown;

        if (text->fixed) {
            text->over = true;
            return;
        }
        while (room - text->used < length)
            room *= 2;
        if (room > text->limit)
            room = text->limit;
        grown = realloc(text->bytes, room);
        if (grown == NULL) {
            text->out_of_memory = true;
            return;
        }
        text->bytes = grown;
        text->room = room;
    }
    memcpy(text->bytes + text->used, bytes, length);
    text->used += length;
}

void python_text_puts(struct python_text *text, const char *string)
{
    python_text_put(text, string, strlen(string));
}

/* The escape of one ASCII character, or "" when it stands for itself. */
static size_t escape_of(unsigned char c, char out[8])
{
    static const char hex[] = "0123456789abcdef";

    out[0] = '\\';
    switch (c) {
    case '"':
    case '\\':
        out[1] = (char)c;
        return 2;
    case '\n':
        out[1] = 'n';
        return 2;
    case '\r':
        out[1] = 'r';
        return 2;
    case '\t':
        out[1] = 't';
        return 2;
    default:
        if (c >= 0x20)
            return 0;
        memcpy(out + 1, "u00", 3);
        out[4] = hex[c >> 4];
        out[5] = hex[c & 15];
        return 6;
    }
}

void python_text_escape(struct python_text *text, const char *utf8, size_t length)
{
    size_t from = 0;

    for (size_t i = 0; i < length; i++) {
        char escape[8];
        size_t size = escape_of((unsigned char)utf8[i], escape);

        if (size == 0)
            continue;
        python_text_put(text, utf8 + from, i - from);
        python_text_put(text, escape, size);
        from = i + 1;
    }
    python_text_put(text, utf8 + from, length - from);
}

void python_text_escape_str(struct python_text *text, PyObject *string)
{
    Py_ssize_t length;
    int kind;
    const void *data;

    if (PyUnicode_READY(string) != 0) {
        PyErr_Clear();
        return;
    }
    length = PyUnicode_GET_LENGTH(string);
    kind = (int)PyUnicode_KIND(string);
    data = PyUnicode_DATA(string);
    if (PyUnicode_IS_ASCII(string)) {
        python_text_escape(text, data, (size_t)length);
        return;
    }
    for (Py_ssize_t i = 0; i < length && !text->over && !text->out_of_memory; i++) {
        Py_UCS4 c = PyUnicode_READ(kind, data, i);
        char bytes[8];
        size_t size;

        if (c >= 0xd800 && c <= 0xdfff)
            c = 0xfffd;
        if (c < 0x80) {
            size = escape_of((unsigned char)c, bytes);
            if (size == 0) {
                bytes[0] = (char)c;
                size = 1;
            }
        } else if (c < 0x800) {
            bytes[0] = (char)(0xc0 | c >> 6);
            bytes[1] = (char)(0x80 | (c & 63));
            size = 2;
        } else if (c < 0x10000) {
            bytes[0] = (char)(0xe0 | c >> 12);
            bytes[1] = (char)(0x80 | (c >> 6 & 63));
            bytes[2] = (char)(0x80 | (c & 63));
            size = 3;
        } else {
            bytes[0] = (char)(0xf0 | c >> 18);
            bytes[1] = (char)(0x80 | (c >> 12 & 63));
            bytes[2] = (char)(0x80 | (c >> 6 & 63));
            bytes[3] = (char)(0x80 | (c & 63));
            size = 4;
        }
        python_text_put(text, bytes, size);
    }
}

bool python_log_init(void)
{
    void *memory = mmap(NULL, PYTHON_FRAME_HEAD + PYTHON_LOG_ROOM + 16, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    python_state.log = memory == MAP_FAILED ? NULL : memory;
    return python_state.log != NULL;
}

/* Bytes of a str in UTF-8. */
static size_t utf8_size(PyObject *string)
{
    Py_ssize_t length = PyUnicode_GET_LENGTH(string);
    int kind = (int)PyUnicode_KIND(string);
    const void *data = PyUnicode_DATA(string);
    size_t size = 0;

    if (PyUnicode_IS_ASCII(string))
        return (size_t)length;
    for (Py_ssize_t i = 0; i < length; i++) {
        Py_UCS4 c = PyUnicode_READ(kind, data, i);

        size += c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    }
    return size;
}

bool python_log_line(PyObject *string)
{
    size_t used = python_state.log_used, limit = PYTHON_LOG_RAW_MAX, size;
    struct python_text text = {.bytes = python_state.log + PYTHON_FRAME_HEAD + used,
                               .room = PYTHON_LOG_ROOM - used,
                               .limit = PYTHON_LOG_ROOM - used,
                               .fixed = true};
    PyObject *clean = python_scrub(string);

    if (clean == NULL)
        return false;
    if (python_state.task->limits.log_bytes < (int64_t)limit)
        limit = (size_t)(python_state.task->limits.log_bytes < 0 ? 0 : python_state.task->limits.log_bytes);
    size = utf8_size(clean) + (python_state.log_raw > 0 ? 1 : 0);
    if (size <= limit - python_state.log_raw) {
        /* The first line of all may be empty, and still counts as a line: log_raw is one ahead of it then. */
        if (python_state.log_raw > 0)
            python_text_puts(&text, "\\n");
        python_text_escape_str(&text, clean);
        if (!text.over) {
            python_state.log_used = used + text.used;
            python_state.log_raw += size == 0 ? 1 : size;
        }
    }
    Py_DECREF(clean);
    return true;
}

PyObject *python_scrub(PyObject *string)
{
    PyObject *clean = Py_NewRef(string), *nothing;

    if (PyUnicode_READY(string) != 0)
        return NULL;
    if (python_state.paths == NULL || PyUnicode_FindChar(string, '/', 0, PyUnicode_GET_LENGTH(string), 1) < 0)
        return clean;
    nothing = PyUnicode_New(0, 0);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(python_state.paths) && clean != NULL; i++)
        Py_SETREF(clean, PyUnicode_Replace(clean, PyTuple_GET_ITEM(python_state.paths, i), nothing, -1));
    Py_DECREF(nothing);
    return clean;
}

void python_finish(const char *json, size_t length)
{
    python_state.result_made = 1;
    (void)code_frame_write(python_state.channel->result, json, length);
    _exit(0);
}

/* Copies `string` to `at`, escaping nothing: only texts of our own come here. */
static char *append(char *at, const char *end, const char *string)
{
    while (*string != '\0' && at < end)
        *at++ = *string++;
    return at;
}

void python_finish_plain(const char *code, const char *message, const char *type)
{
    char head[PYTHON_FRAME_HEAD], *at = head, *start;
    const char *end = head + sizeof(head);
    size_t log = python_state.log_used, size;

    python_state.result_made = 1;
    at = append(at, end, "{\"ok\":false,\"code\":\"");
    at = append(at, end, code);
    at = append(at, end, "\",\"message\":\"");
    at = append(at, end, message);
    at = append(at, end, "\",\"type\":\"");
    at = append(at, end, type);
    at = append(at, end, "\",\"log\":\"");
    size = (size_t)(at - head);
    if ((int64_t)(size + log + 2) > python_state.task->limits.output_bytes)
        log = 0;
    start = python_state.log + PYTHON_FRAME_HEAD - size;
    memcpy(start, head, size);
    memcpy(start + size + log, "\"}", 2);
    (void)code_frame_write(python_state.channel->result, start, size + log + 2);
    _exit(0);
}

void python_finish_timeout(void)
{
    char message[80] = "Script execution timed out after ", digits[24], *at = message + strlen(message);
    int64_t ms = python_state.task->limits.timeout_ms;
    int count = 0;

    do {
        digits[count++] = (char)('0' + ms % 10);
        ms /= 10;
    } while (ms > 0);
    while (count > 0)
        *at++ = digits[--count];
    memcpy(at, "ms", 3);
    python_finish_plain("timeout", message, "TimeoutError");
}
