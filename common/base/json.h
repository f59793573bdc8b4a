/* SPDX-License-Identifier: Apache-2.0
 *
 * Strict JSON from outside, over jansson: parsing with limits, typed getters whose errors name the field, and the
 * RFC 9457 problem object (contract/messaging.md §2, contract/lifecycle.md §6).
 *
 * Parsing refuses: more than max_bytes; nesting deeper than max_depth (checked by a flat scan before jansson recurses);
 * duplicate keys; invalid UTF-8; numbers that do not fit; anything after the document. The error is `invalid_request`
 * with line and column and never quotes the input, which may be secret. \u0000 is accepted by the parser (jansson would
 * else not tell it from other faults) and refused by sk_json_get_string, which names the field.
 *
 * Getters take the object, the path of that object for messages ("" or "params.limit"), and the key. They return 1 when
 * the value is there and good, 0 when it is absent and optional (*out is left alone: put the default there first), -1
 * with err else: "params.limit.cpuCount must be a number". Unknown members are the caller's to ignore. What they hand
 * out is borrowed from the object.
 *
 * Pure functions over objects of one thread; nothing blocks. */
#ifndef SK_BASE_JSON_H
#define SK_BASE_JSON_H

#include "common/base/error.h"

#include <jansson.h>

#define SK_JSON_MAX_BYTES (256 * 1024) /* a command or request body (contract/messaging.md §2) */
#define SK_JSON_MAX_DEPTH 64

struct sk_json_limits {
    size_t max_bytes;
    int max_depth;
};

/* Any JSON value; NULL limits = the defaults above. Returns a new reference, NULL with err. */
SK_MUST_USE json_t *sk_json_parse(const char *text, size_t len, const struct sk_json_limits *limits,
                                  struct sk_error *err);
/* Same, and it must be an object. */
SK_MUST_USE json_t *sk_json_parse_object(const char *text, size_t len, const struct sk_json_limits *limits,
                                         struct sk_error *err);

enum sk_json_flags {
    SK_JSON_REQUIRED = 1,  /* absent is an error: "id is required" */
    SK_JSON_NULLABLE = 2,  /* null counts as absent; without it null has the wrong type */
    SK_JSON_NOT_EMPTY = 4, /* string or array: at least one byte or item */
};

/* `max_len` in bytes. *len may be NULL; the text never contains NUL. */
SK_MUST_USE int sk_json_get_string(const json_t *object, const char *path, const char *key, unsigned flags,
                                   size_t max_len, const char **out, size_t *len, struct sk_error *err);
/* Whole numbers, also when written as 3.0 or 3e0. */
SK_MUST_USE int sk_json_get_int(const json_t *object, const char *path, const char *key, unsigned flags, int64_t min,
                                int64_t max, int64_t *out, struct sk_error *err);
SK_MUST_USE int sk_json_get_number(const json_t *object, const char *path, const char *key, unsigned flags, double min,
                                   double max, double *out, struct sk_error *err);
SK_MUST_USE int sk_json_get_bool(const json_t *object, const char *path, const char *key, unsigned flags, bool *out,
                                 struct sk_error *err);
SK_MUST_USE int sk_json_get_object(const json_t *object, const char *path, const char *key, unsigned flags,
                                   const json_t **out, struct sk_error *err);
SK_MUST_USE int sk_json_get_array(const json_t *object, const char *path, const char *key, unsigned flags,
                                  size_t max_items, const json_t **out, struct sk_error *err);
/* RFC 3339 text to Unix milliseconds. */
SK_MUST_USE int sk_json_get_time(const json_t *object, const char *path, const char *key, unsigned flags,
                                 int64_t *unix_ms, struct sk_error *err);
/* Index into the NULL-terminated choices: "op must be one of ensure, stop". */
SK_MUST_USE int sk_json_get_choice(const json_t *object, const char *path, const char *key, unsigned flags,
                                   const char *const *choices, int *out, struct sk_error *err);

/* A JSON string of any bytes: what is not UTF-8 becomes U+FFFD. json_null() for NULL. New reference. */
json_t *sk_json_text(const char *text);
/* Compact text in a fresh allocation (free it), keys in insertion order, or sorted (for digests). NULL with err
 * (`internal`) when out of memory or when `value` is NULL: a failed build need not be checked before. */
SK_MUST_USE char *sk_json_dump(const json_t *value, bool sort_keys, size_t *len, struct sk_error *err);

/* The RFC 9457 object of an error: type, title, status, code, detail, retryable, retryAfterMs?, fastgptCode?. New
 * reference, NULL only when out of memory. */
SK_MUST_USE json_t *sk_json_problem(const struct sk_error *err);
/* The way back, for clients: fills *out from such an object, leniently (an unknown code becomes `internal` and keeps
 * its detail). Always returns -1, so that `return sk_json_problem_to_error(…)` reads well. */
int sk_json_problem_to_error(const json_t *problem, struct sk_error *out);

#endif
