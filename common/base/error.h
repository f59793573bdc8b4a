/* SPDX-License-Identifier: Apache-2.0
 *
 * The one error type. A function that can fail fills a caller-owned struct sk_error and returns -1 (or false); the
 * error is logged once, where it is handled. Codes come from proto/errors.def; nobody ever matches message text.
 *
 * `outcome` tells whether the effect that was asked for may have happened all the same: SK_OUTCOME_UNKNOWN (time-out
 * after the request left, connection lost, PubAck lost) obliges the caller to read back before it decides anything. */
#ifndef SK_BASE_ERROR_H
#define SK_BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SK_MUST_USE __attribute__((warn_unused_result))

enum sk_code {
    SK_OK = 0,
#define SK_ERROR(name, wire, http, retryable, fastgpt, title) SK_ERR_##name,
#include "proto/errors.def"
#undef SK_ERROR
    /* Internal: never leaves a process under its own name (mapped where it is handled). */
    SK_ERR_CANCELLED,      /* the caller's cancel flag was raised */
    SK_ERR_LOST_OWNERSHIP, /* a compare-and-set or lease says that somebody else owns the operation now */
    SK_ERR_CODE_COUNT
};

enum sk_outcome {
    SK_OUTCOME_FAILED = 0, /* certainly without effect */
    SK_OUTCOME_UNKNOWN,    /* the effect may or may not have happened: read back */
};

#define SK_ERROR_MESSAGE_MAX 512 /* longer chains are cut, never overrun */

struct sk_error {
    enum sk_code code;
    enum sk_outcome outcome;
    bool retryable;
    int http_status;                    /* from errors.def unless set */
    int64_t retry_after_ms;             /* 0 = no hint */
    int provider_status;                /* HTTP status of a provider's answer, 0 = none */
    char message[SK_ERROR_MESSAGE_MAX]; /* outermost context first: "cannot start sandbox: create: HTTP 502" */
};

/* Fills *err (which may be NULL: then nothing is kept) and returns -1, so that `return sk_fail(...)` reads well.
 * Thread-safe, never allocates. Retryable and HTTP status take the code's defaults. */
int sk_fail(struct sk_error *err, enum sk_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Same with outcome SK_OUTCOME_UNKNOWN. */
int sk_fail_unknown(struct sk_error *err, enum sk_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts context before the message of an error that is passed upwards; returns -1. */
int sk_fail_context(struct sk_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sk_error_clear(struct sk_error *err);
#if defined(__clang_analyzer__) && !defined(SK_ERROR_IMPLEMENTATION)
/* The static analyser sees one file at a time: this tells it what these always return. */
#define sk_fail(...)         ((void)(sk_fail)(__VA_ARGS__), -1)
#define sk_fail_unknown(...) ((void)(sk_fail_unknown)(__VA_ARGS__), -1)
#define sk_fail_context(...) ((void)(sk_fail_context)(__VA_ARGS__), -1)
#endif

/* Static strings and constants of a code; never NULL. Internal codes are shown as "internal". */
const char *sk_code_name(enum sk_code code);
const char *sk_code_title(enum sk_code code);
int sk_code_http_status(enum sk_code code);
bool sk_code_retryable(enum sk_code code);
int sk_code_fastgpt(enum sk_code code); /* 510000..510005, or 0 */
/* The code of a wire name, SK_ERR_INTERNAL when unknown. */
enum sk_code sk_code_parse(const char *name);

#endif
