/* SPDX-License-Identifier: Apache-2.0
 *
 * What the adapters of one provider share: JSON over the HTTP client, the shapes in which providers report errors, and
 * the verdict about a status. Private to common/provider. */
#ifndef SK_PROVIDER_WIRE_H
#define SK_PROVIDER_WIRE_H

#include "common/http/client.h"

#include <jansson.h>

#define SK_WIRE_CODE_SIZE   64
#define SK_WIRE_DETAIL_SIZE 257
#define SK_WIRE_DEPTH_MAX   32 /* nesting of an answer: a list of sandboxes needs five */

/* Label of the metrics. */
enum sk_wire_operation {
    SK_WIRE_FIND,
    SK_WIRE_LIST,
    SK_WIRE_GET,
    SK_WIRE_CREATE,
    SK_WIRE_RESUME,
    SK_WIRE_REMOVE,
    SK_WIRE_RELABEL,
    SK_WIRE_PROBE,
    SK_WIRE_PING,
    SK_WIRE_ENDPOINT,
    SK_WIRE_VOLUME_ENSURE,
    SK_WIRE_VOLUME_REMOVE,
    SK_WIRE_EXEC,
    SK_WIRE_CONTROL,
    SK_WIRE_FILES,
    SK_WIRE_OPERATION_COUNT
};
const char *sk_wire_operation_name(enum sk_wire_operation operation);

struct sk_wire_answer {
    int status;
    json_t *json;                     /* NULL: no body, or no JSON object */
    bool empty;                       /* no body at all */
    bool html;                        /* a gateway's page */
    char code[SK_WIRE_CODE_SIZE];     /* the provider's error code: "DOCKER::SANDBOX_NOT_FOUND", or "" */
    char detail[SK_WIRE_DETAIL_SIZE]; /* one line for people: its message, or what the body was instead */
    int64_t retry_after_ms;
};

/* Registers provider_requests_total, provider_request_seconds and provider_unreadable_objects_total; from one thread,
 * may be repeated. */
void sk_wire_metrics_register(void);
/* Counts one finished request. */
void sk_wire_count(enum sk_wire_operation operation, const struct sk_http_response *response);

/* Counts one object of a list that cannot be read: sandkeep_provider_unreadable_objects_total. */
void sk_wire_count_unreadable(void);

/* Sends one request with the call's client and counts it. As sk_http_request. */
SK_MUST_USE int sk_wire_send(struct sk_call *call, enum sk_wire_operation operation,
                             const struct sk_http_request *request, struct sk_http_response *response,
                             struct sk_error *err);
/* Takes the answer apart; never fails. */
void sk_wire_read(struct sk_wire_answer *answer, const struct sk_http_response *response);
void sk_wire_answer_fini(struct sk_wire_answer *answer);

/* One JSON request: `body` (may be NULL) is borrowed, `headers` as in sk_http_request. Returns 0 with *answer filled
 * for any HTTP answer that came as a whole, -1 with err else; the answer may be passed to fini in both cases. */
struct sk_wire_request {
    enum sk_wire_operation operation;
    const char *method;
    char *url; /* taken over and freed; NULL = it could not be built (invalid_request) */
    const struct sk_http_header *headers;
    size_t header_count;
    const json_t *body;
    int64_t timeout_ms;
    size_t answer_max;
    bool idempotent; /* as in sk_http_request */
};
SK_MUST_USE int sk_wire_json(struct sk_call *call, const struct sk_wire_request *request, struct sk_wire_answer *answer,
                             struct sk_error *err);

/* An answer that is not what was asked for, as an error (provider.h: outcome, retryable); returns -1. */
int sk_wire_fail(struct sk_error *err, const struct sk_wire_answer *answer, const char *what);
/* A good status with a body that makes no sense: provider_error, outcome UNKNOWN; returns -1. */
int sk_wire_fail_body(struct sk_error *err, const struct sk_wire_answer *answer, const char *what, const char *why);
#if defined(__clang_analyzer__) && !defined(SK_WIRE_IMPLEMENTATION)
#define sk_wire_fail(...)      ((void)(sk_wire_fail)(__VA_ARGS__), -1) /* as in error.h */
#define sk_wire_fail_body(...) ((void)(sk_wire_fail_body)(__VA_ARGS__), -1)
#endif
/* The lifecycle API's own "no such sandbox": 404 and a JSON object with a code. */
bool sk_wire_absent(const struct sk_wire_answer *answer);
/* The text of a JSON string; NULL when it is none or holds a NUL, which a C string would hide. */
const char *sk_wire_text(const json_t *value);
/* Copies text for people: control characters become spaces, cut at a code point. */
void sk_wire_clean(char *out, size_t size, const char *text);

#endif
