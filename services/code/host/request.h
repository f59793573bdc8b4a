/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of POST /sandbox/js and /sandbox/python: {"code", "variables"?, "queueId"?, "timeoutMs"?}; other members are
 * ignored (contract/code.md §4). A rejection carries the status and the message that clients of the original service
 * know. Where the original has none, ours: text with invalid UTF-8 is no JSON (400); code or queueId with half a
 * surrogate pair, and a queueId with U+0000, are no text that a language or a log could take (400); nesting beyond
 * CODE_REQUEST_DEPTH_MAX (400). Duplicate keys: the last counts. */
#ifndef SK_CODE_HOST_REQUEST_H
#define SK_CODE_HOST_REQUEST_H

#include "common/base/error.h"

#define CODE_REQUEST_CODE_MAX     (5 * 1024 * 1024) /* UTF-16 units, as the original counts */
#define CODE_REQUEST_QUEUE_ID_MAX 128               /* UTF-16 units, after trimming */
#define CODE_REQUEST_DEPTH_MAX    1000              /* about what Python's own parser takes */
#define CODE_QUEUE_ID_SIZE        (3 * CODE_REQUEST_QUEUE_ID_MAX + 1)

/* Everything points into the body (or to constants) and is followed by a NUL. */
struct code_request {
    const char *code; /* valid UTF-8, may contain NUL */
    size_t code_length;
    const char *variables; /* the text of a JSON object as it was sent */
    size_t variables_length;
    int64_t timeout_ms;                /* 1 … the maximum */
    char queue_id[CODE_QUEUE_ID_SIZE]; /* trimmed; "" = none */
};

struct code_rejection {
    int status; /* 400; 200 for what the original finds out only in its pool; 500 out of memory */
    char message[256];
};

/* Rewrites `body` in place; it must stay as it is while the request is used. `body` may be NULL when length is 0.
 * False with *rejection. Any thread, no allocation for texts of less than 512 levels, nothing blocks. */
SK_MUST_USE bool code_request_parse(char *body, size_t length, int64_t timeout_max_ms, struct code_request *request,
                                    struct code_rejection *rejection);
/* "Request body too large, max 8MB" with 413: the server's to send, on Content-Length or while it reads. */
void code_request_too_large(int64_t max_mb, struct code_rejection *rejection);

#endif
