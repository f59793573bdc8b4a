/* SPDX-License-Identifier: Apache-2.0
 *
 * Structured logging: one JSON object a line on stderr, readable text when stderr is a terminal (contract/service.md
 * §1). Thread-safe; one write(2) per line, never blocks longer than that write; a line is at most 8 KiB (cut, with
 * "cut":true). Secrets, tokens, session ids, message bodies and file contents must never be passed in.
 *
 *     SK_LOG_INFO("operation claimed", SK_F("sandboxId", id), SK_FI("epoch", epoch));
 *
 * Fields are typed by the macro; a NULL string is left out. */
#ifndef SK_LOG_LOG_H
#define SK_LOG_LOG_H

#include "common/base/error.h"
#include "common/base/sched.h"

enum sk_log_level { SK_LOG_LEVEL_DEBUG, SK_LOG_LEVEL_INFO, SK_LOG_LEVEL_WARN, SK_LOG_LEVEL_ERROR };

struct sk_log_field {
    const char *name;
    enum { SK_FIELD_STRING, SK_FIELD_INT, SK_FIELD_BOOL, SK_FIELD_ERROR } kind;
    const char *text;
    int64_t number;
    const struct sk_error *error; /* rendered as error.code and error.message */
};

#define SK_F(n, v)  ((struct sk_log_field){.name = (n), .kind = SK_FIELD_STRING, .text = (v)})
#define SK_FI(n, v) ((struct sk_log_field){.name = (n), .kind = SK_FIELD_INT, .number = (int64_t)(v)})
#define SK_FB(n, v) ((struct sk_log_field){.name = (n), .kind = SK_FIELD_BOOL, .number = (v) ? 1 : 0})
#define SK_FE(e)    ((struct sk_log_field){.name = "error", .kind = SK_FIELD_ERROR, .error = (e)})

/* Call once before threads start. `service` must outlive the process. */
void sk_log_init(const char *service, enum sk_log_level level);
void sk_log_set_level(enum sk_log_level level); /* any thread; SIGHUP uses it */
enum sk_log_level sk_log_get_level(void);
/* "debug" | "info" | "warn" | "error"; false when unknown. */
SK_MUST_USE bool sk_log_level_parse(const char *text, enum sk_log_level *out);
/* Redirects lines to a callback (tests, simulator; always JSON, newline included); NULL restores stderr. The callback
 * runs under the log lock: it must not log. */
void sk_log_capture(void (*sink)(void *arg, const char *line, size_t len), void *arg);
/* Takes the time stamps from this clock (simulator: virtual time); NULL restores the real one. Not while logging. */
void sk_log_set_clock(const struct sk_sched *sched);
/* Lines that could not be written (stderr is a full pipe in non-blocking mode, a closed one, …): for a metric. */
unsigned long long sk_log_dropped(void);
void sk_log_write(enum sk_log_level level, const char *message, const struct sk_log_field *fields, size_t count);

/* SK_LOG_AT(level, message, fields…). A closing empty field is put after the caller's own, so that no variadic macro is
 * ever called without an argument: __VA_OPT__ and ", ##" are warnings under -Wpedantic in one compiler or the other. */
#define SK_LOG_AT(lvl, ...) SK_LOG_AT_FIELDS((lvl), __VA_ARGS__, SK_F("", NULL))
#define SK_LOG_AT_FIELDS(lvl, msg, ...)                                                                                \
    do {                                                                                                               \
        if ((lvl) >= sk_log_get_level()) {                                                                             \
            const struct sk_log_field sk_fields_[] = {__VA_ARGS__};                                                    \
            sk_log_write((lvl), (msg), sk_fields_, sizeof(sk_fields_) / sizeof(sk_fields_[0]) - 1);                    \
        }                                                                                                              \
    } while (0)
#define SK_LOG_DEBUG(...) SK_LOG_AT(SK_LOG_LEVEL_DEBUG, __VA_ARGS__)
#define SK_LOG_INFO(...)  SK_LOG_AT(SK_LOG_LEVEL_INFO, __VA_ARGS__)
#define SK_LOG_WARN(...)  SK_LOG_AT(SK_LOG_LEVEL_WARN, __VA_ARGS__)
#define SK_LOG_ERROR(...) SK_LOG_AT(SK_LOG_LEVEL_ERROR, __VA_ARGS__)

#endif
