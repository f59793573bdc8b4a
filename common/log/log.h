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
/* Redirects lines to a callback (tests, simulator); NULL restores stderr. */
void sk_log_capture(void (*sink)(void *arg, const char *line, size_t len), void *arg);
void sk_log_write(enum sk_log_level level, const char *message, const struct sk_log_field *fields, size_t count);

#define SK_LOG_AT(lvl, msg, ...)                                                                                       \
    do {                                                                                                               \
        if ((lvl) >= sk_log_get_level()) {                                                                             \
            const struct sk_log_field sk_fields_[] = {__VA_ARGS__ __VA_OPT__(, ) SK_F("", NULL)};                      \
            sk_log_write((lvl), (msg), sk_fields_, sizeof(sk_fields_) / sizeof(sk_fields_[0]) - 1);                    \
        }                                                                                                              \
    } while (0)
#define SK_LOG_DEBUG(msg, ...) SK_LOG_AT(SK_LOG_LEVEL_DEBUG, msg __VA_OPT__(, ) __VA_ARGS__)
#define SK_LOG_INFO(msg, ...)  SK_LOG_AT(SK_LOG_LEVEL_INFO, msg __VA_OPT__(, ) __VA_ARGS__)
#define SK_LOG_WARN(msg, ...)  SK_LOG_AT(SK_LOG_LEVEL_WARN, msg __VA_OPT__(, ) __VA_ARGS__)
#define SK_LOG_ERROR(msg, ...) SK_LOG_AT(SK_LOG_LEVEL_ERROR, msg __VA_OPT__(, ) __VA_ARGS__)

#endif
