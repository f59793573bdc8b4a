/* SPDX-License-Identifier: Apache-2.0
 *
 * Identifiers and the sandbox identity (contract/lifecycle.md §1). Pure functions, no I/O, thread-safe. */
#ifndef SK_BASE_ID_H
#define SK_BASE_ID_H

#include "common/base/error.h"
#include "common/base/sched.h"

#define SK_UUID_SIZE       37 /* 8-4-4-4-12 lower-case hex + NUL */
#define SK_ULID_SIZE       27
#define SK_SANDBOX_ID_SIZE 64  /* "workflowbuilder-" + 16 hex + NUL, with room */
#define SK_SOURCE_ID_SIZE  257 /* 64 code points of UTF-8 + NUL */
#define SK_USER_ID_SIZE    513 /* 128 code points */
#define SK_COMMAND_ID_SIZE 257 /* 64 code points */
#define SK_TIME_SIZE       25  /* 2026-11-30T08:00:00.000Z + NUL */

enum sk_source_type { SK_SOURCE_NONE = 0, SK_SOURCE_APP, SK_SOURCE_SKILL_EDIT, SK_SOURCE_WORKFLOW_BUILDER };

struct sk_identity {
    enum sk_source_type source_type;
    char source_id[SK_SOURCE_ID_SIZE];
    char user_id[SK_USER_ID_SIZE];
};

void sk_uuid4(const struct sk_sched *sched, char out[SK_UUID_SIZE]);
/* Monotonic within a process for the same millisecond is not promised: order comes from sequence numbers. */
void sk_ulid(const struct sk_sched *sched, char out[SK_ULID_SIZE]);
void sk_sha256_hex(const void *data, size_t len, char out[65]);

const char *sk_source_type_name(enum sk_source_type type); /* "app", "skillEdit", "workflowBuilder"; "" for NONE */
/* SK_SOURCE_NONE for anything else; *unsupported is set for "chatAgentHelper" (code source_unsupported). */
enum sk_source_type sk_source_type_parse(const char *name, bool *unsupported);

/* Checks lengths (in code points), UTF-8 and control characters and folds skillEdit's user id to the literal.
 * `*_len` are byte lengths, so that embedded NULs are seen and refused. Errors: invalid_request, source_unsupported. */
SK_MUST_USE int sk_identity_set(struct sk_identity *out, const char *source_type, const char *source_id,
                                size_t source_id_len, const char *user_id, size_t user_id_len, struct sk_error *err);
void sk_identity_sandbox_id(const struct sk_identity *identity, char out[SK_SANDBOX_ID_SIZE]);
bool sk_identity_equal(const struct sk_identity *a, const struct sk_identity *b);
/* True for "<app|skilledit|workflowbuilder>-<16 lower hex>"; such ids are safe in NATS subjects, URLs and labels. */
bool sk_sandbox_id_valid(const char *id);
enum sk_source_type sk_sandbox_id_source_type(const char *id);

/* RFC 3339 with milliseconds and Z. Parsing accepts offsets and 0..9 fraction digits; false when it is not a time. */
void sk_time_format(int64_t unix_ms, char out[SK_TIME_SIZE]);
SK_MUST_USE bool sk_time_parse(const char *text, int64_t *unix_ms);

/* Strict UTF-8 (no surrogates, no overlong forms). Returns the number of code points or -1. */
long sk_utf8_length(const char *text, size_t len);
/* Bytes of the valid sequence that starts at `text` (1..4), 0 when there is none within `len`. */
size_t sk_utf8_sequence(const char *text, size_t len);
bool sk_text_has_control(const char *text, size_t len);
/* Bounded copy: false (and an empty string) when it does not fit. */
SK_MUST_USE bool sk_copy(char *out, size_t size, const char *text);
/* Bounded copy for display: cuts at a code point boundary. */
void sk_copy_cut(char *out, size_t size, const char *text);

#endif
