/* SPDX-License-Identifier: Apache-2.0
 *
 * The error type: filling, prefixing, and the constants of each code out of proto/errors.def. */
#define SK_ERROR_IMPLEMENTATION
#include "common/base/error.h"

#include "common/base/id.h"

#include <stdio.h>
#include <string.h>

struct code_info {
    const char *name, *title;
    int http_status;
    bool retryable;
    int fastgpt;
};

static const struct code_info codes[SK_ERR_CODE_COUNT] = {
    [SK_OK] = {"ok", "No error", 200, false, 0},
#define SK_ERROR(name_, wire, http, retryable_, fastgpt_, title_)                                                      \
    [SK_ERR_##name_] = {wire, title_, http, (retryable_) != 0, fastgpt_},
#include "proto/errors.def"
#undef SK_ERROR
    [SK_ERR_CANCELLED] = {"internal", "Internal error", 500, true, 0},
    [SK_ERR_LOST_OWNERSHIP] = {"internal", "Internal error", 500, true, 0},
};

static const struct code_info *code_info(enum sk_code code)
{
    if ((int)code < 0 || code >= SK_ERR_CODE_COUNT || codes[code].name == NULL)
        return &codes[SK_ERR_INTERNAL];
    return &codes[code];
}

/* A few bytes more than is kept, so that sk_copy_cut sees whether the last code point was cut. */
#define FORMAT_SIZE (SK_ERROR_MESSAGE_MAX + 8)

/* Formats into a buffer of its own first: an argument may be err->message itself. */
__attribute__((format(printf, 4, 0))) static void fill(struct sk_error *err, enum sk_code code, enum sk_outcome outcome,
                                                       const char *fmt, va_list args)
{
    char text[FORMAT_SIZE];
    const struct code_info *info = code_info(code);

    if (err == NULL)
        return;
    if (vsnprintf(text, sizeof(text), fmt, args) < 0)
        text[0] = '\0';
    memset(err, 0, offsetof(struct sk_error, message));
    err->code = code;
    err->outcome = outcome;
    err->retryable = info->retryable;
    err->http_status = info->http_status;
    sk_copy_cut(err->message, sizeof(err->message), text);
}

int sk_fail(struct sk_error *err, enum sk_code code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fill(err, code, SK_OUTCOME_FAILED, fmt, args);
    va_end(args);
    return -1;
}

int sk_fail_unknown(struct sk_error *err, enum sk_code code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fill(err, code, SK_OUTCOME_UNKNOWN, fmt, args);
    va_end(args);
    return -1;
}

int sk_fail_context(struct sk_error *err, const char *fmt, ...)
{
    char context[FORMAT_SIZE], text[2 * FORMAT_SIZE];
    va_list args;
    int len;

    if (err == NULL)
        return -1;
    va_start(args, fmt);
    len = vsnprintf(context, sizeof(context), fmt, args);
    va_end(args);
    if (len < 0)
        return -1;
    snprintf(text, sizeof(text), "%s%s%s", context, err->message[0] != '\0' ? ": " : "", err->message);
    sk_copy_cut(err->message, sizeof(err->message), text);
    return -1;
}

void sk_error_clear(struct sk_error *err)
{
    if (err != NULL)
        memset(err, 0, sizeof(*err));
}

const char *sk_code_name(enum sk_code code)
{
    return code_info(code)->name;
}

const char *sk_code_title(enum sk_code code)
{
    return code_info(code)->title;
}

int sk_code_http_status(enum sk_code code)
{
    return code_info(code)->http_status;
}

bool sk_code_retryable(enum sk_code code)
{
    return code_info(code)->retryable;
}

int sk_code_fastgpt(enum sk_code code)
{
    return code_info(code)->fastgpt;
}

enum sk_code sk_code_parse(const char *name)
{
    if (name == NULL)
        return SK_ERR_INTERNAL;
    for (int code = SK_OK + 1; code < SK_ERR_CANCELLED; code++) {
        if (strcmp(codes[code].name, name) == 0)
            return (enum sk_code)code;
    }
    return SK_ERR_INTERNAL;
}
