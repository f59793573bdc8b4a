/* SPDX-License-Identifier: Apache-2.0
 *
 * One scan over the body, then judgement of the four members in the order of the original's schema. */
#include "services/code/host/request.h"

#include "services/code/host/scan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct members {
    struct code_span code, variables, queue_id, timeout;
};

static bool refuse(struct code_rejection *rejection, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool refuse(struct code_rejection *rejection, int status, const char *format, ...)
{
    va_list args;

    rejection->status = status;
    va_start(args, format);
    vsnprintf(rejection->message, sizeof(rejection->message), format, args);
    va_end(args);
    return false;
}

static bool refuse_type(struct code_rejection *rejection, const char *expected, enum code_scan_kind kind)
{
    return refuse(rejection, 400, "Invalid request: Invalid input: expected %s, received %s", expected,
                  code_scan_kind_name(kind));
}

static void on_member(void *arg, const struct code_span *key, const struct code_span *value)
{
    struct members *m = arg;

    if (code_scan_equals(key, "code"))
        m->code = *value;
    else if (code_scan_equals(key, "variables"))
        m->variables = *value;
    else if (code_scan_equals(key, "queueId"))
        m->queue_id = *value;
    else if (code_scan_equals(key, "timeoutMs"))
        m->timeout = *value;
}

/* Bytes of white space (as String.prototype.trim has it) that start at `text`, 0 = none. */
static size_t space(const char *text, size_t left)
{
    static const char *const wide[] = {"\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9",
                                       "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80", "\xef\xbb\xbf"};
    unsigned char c = (unsigned char)text[0];

    if (c == ' ' || (c >= '\t' && c <= '\r'))
        return 1;
    if (c < 0x80)
        return 0;
    for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
        size_t length = strlen(wide[i]);
        if (left >= length && memcmp(text, wide[i], length) == 0)
            return length;
    }
    /* U+2000 … U+200A */
    return left >= 3 && memcmp(text, "\xe2\x80", 2) == 0 && (unsigned char)text[2] >= 0x80 &&
                   (unsigned char)text[2] <= 0x8a
               ? 3
               : 0;
}

static void trim(const char **text, size_t *length)
{
    size_t n, last = 0;

    while (*length > 0 && (n = space(*text, *length)) > 0) {
        *text += n;
        *length -= n;
    }
    for (size_t i = 0; i<*length; i += n> 0 ? n : 1) {
        n = space(*text + i, *length - i);
        if (n == 0)
            last = i + 1;
    }
    *length = last;
}

/* Decodes a string over itself; the closing quote becomes its NUL. The spelling is never shorter than the content, so
 * the NUL stands within the string. */
static char *content(const struct code_span *span, char *body, struct code_decoded *decoded)
{
    char *out = body + (span->text - body);

    *decoded = code_scan_decode(span, out);
    out[decoded->length] = '\0';
    return out;
}

static bool take_queue_id(const struct code_span *span, char *body, struct code_request *request,
                          struct code_rejection *rejection)
{
    struct code_decoded decoded;
    const char *text;
    size_t length, units = 0;

    if (span->kind == CODE_SCAN_NONE)
        return true;
    if (span->kind != CODE_SCAN_STRING)
        return refuse_type(rejection, "string", span->kind);
    text = content(span, body, &decoded);
    length = decoded.length;
    trim(&text, &length);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        units += c < 0x80 || c >= 0xc0 ? (c >= 0xf0 ? 2 : 1) : 0;
    }
    if (units > CODE_REQUEST_QUEUE_ID_MAX)
        return refuse(rejection, 400, "Invalid request: Too big: expected string to have <=%d characters",
                      CODE_REQUEST_QUEUE_ID_MAX);
    if (decoded.lone || decoded.nul)
        return refuse(rejection, 400, "Invalid request: queueId must be well-formed text");
    memcpy(request->queue_id, text, length);
    request->queue_id[length] = '\0';
    return true;
}

/* Not a number or not more than 0: as if it were absent. Parts of a millisecond count as a whole one. */
static int64_t timeout_of(const struct code_span *span, int64_t max)
{
    double ms;

    if (span->kind != CODE_SCAN_NUMBER)
        return max;
    ms = strtod(span->text, NULL); /* ends within the body: at least the object's '}' follows */
    if (!(ms > 0))
        return max;
    return ms >= (double)max ? max : (int64_t)ceil(ms);
}

/* The code is decoded before the queueId is judged, but complaints come in this order. */
static bool take_code(const struct code_span *span, char *body, struct code_request *request, bool *blank,
                      struct code_rejection *rejection)
{
    struct code_decoded decoded;
    const char *text;
    size_t length;

    if (span->kind != CODE_SCAN_STRING)
        return refuse_type(rejection, "string", span->kind);
    request->code = content(span, body, &decoded);
    request->code_length = decoded.length;
    if (decoded.units == 0)
        return refuse(rejection, 400, "Invalid request: Too small: expected string to have >=1 characters");
    if (decoded.units > CODE_REQUEST_CODE_MAX)
        return refuse(rejection, 400, "Invalid request: Too big: expected string to have <=%d characters",
                      CODE_REQUEST_CODE_MAX);
    if (decoded.lone)
        return refuse(rejection, 400, "Invalid request: code must be well-formed text");
    text = request->code;
    length = request->code_length;
    while (length > 0) {
        size_t n = space(text, length);
        if (n == 0)
            break;
        text += n;
        length -= n;
    }
    *blank = length == 0;
    return true;
}

bool code_request_parse(char *body, size_t length, int64_t timeout_max_ms, struct code_request *request,
                        struct code_rejection *rejection)
{
    struct members m = {.code = {.kind = CODE_SCAN_NONE}};
    struct code_scan_fault fault;
    struct code_span root;
    bool blank = false;

    *request = (struct code_request){.variables = "{}", .variables_length = 2};
    if (length == 0)
        return refuse(rejection, 400, "Request body is empty");
    if (length >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0) {
        body += 3;
        length -= 3;
    }
    if (!code_scan(body, length, CODE_REQUEST_DEPTH_MAX, on_member, &m, &root, &fault)) {
        if (fault.memory)
            return refuse(rejection, 500, "Out of memory");
        return refuse(rejection, 400, "Invalid JSON body: %s at line %ld, column %ld", fault.what, fault.line,
                      fault.column);
    }
    if (root.kind != CODE_SCAN_OBJECT)
        return refuse_type(rejection, "object", root.kind);
    request->timeout_ms = timeout_of(&m.timeout, timeout_max_ms);
    if (!take_code(&m.code, body, request, &blank, rejection))
        return false;
    if (m.variables.kind == CODE_SCAN_OBJECT) {
        request->variables = m.variables.text;
        request->variables_length = m.variables.length;
        body[m.variables.text - body + (ptrdiff_t)m.variables.length] = '\0';
    } else if (m.variables.kind != CODE_SCAN_NONE) {
        return refuse_type(rejection, "record", m.variables.kind);
    }
    if (!take_queue_id(&m.queue_id, body, request, rejection))
        return false;
    return !blank || refuse(rejection, 200, "Code cannot be empty");
}

void code_request_too_large(int64_t max_mb, struct code_rejection *rejection)
{
    (void)refuse(rejection, 413, "Request body too large, max %lldMB", (long long)max_mb);
}
