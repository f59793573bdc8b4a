/* SPDX-License-Identifier: Apache-2.0
 *
 * The instance document as BSON (contract/lifecycle.md §2): decoding what FastGPT or Sandkeep wrote, and encoding
 * inserts and changes with exactly the types that mongoose writes. Pure functions, thread-safe, no I/O; decoding
 * allocates nothing and copes with any bytes (fuzz target tests/fuzz/fuzz_instance.c). */
#ifndef SK_STORE_INSTANCE_BSON_H
#define SK_STORE_INSTANCE_BSON_H

#include "common/instance/instance.h"

#include <bson/bson.h>

/* Fills *out from a document. What breaks the contract (unknown status or phase, wrong types, numbers out of range,
 * text that is too long, not UTF-8 or holds a NUL, an operation that does not belong to the status) sets out->malformed
 * and the first reason; the rest is filled as far as it can be read, for display only. Unknown fields are skipped,
 * optional fields may be absent or null. */
void sk_instance_decode(const bson_t *doc, struct sk_instance *out);

/* Decodes the pending events of a document into out[0..capacity), in order of sequence, completed with the identity and
 * provider of `instance` (the decoded document). Events of the wrong shape are skipped (the instance is marked
 * malformed for them). Returns how many were written. */
int sk_outbox_decode(const bson_t *doc, const struct sk_instance *instance, struct sk_event *out, int capacity);

/* Appends the fields of a new document to `doc` (an initialised bson_t), _id and outbox included. */
void sk_instance_encode(const struct sk_instance *instance, const struct sk_event *events, int event_count,
                        bson_t *doc);

/* Appends to `set` and `unset` (initialised) what turns `before` into `after`: changed fields only, fields of the
 * operation one by one unless its id changed, absent instead of null. The events are not part of it. */
void sk_instance_encode_change(const struct sk_instance *before, const struct sk_instance *after, bson_t *set,
                               bson_t *unset);

/* One event as it stands in the outbox. Identity, team and provider are left out: the record has them. */
void sk_event_encode(const struct sk_event *event, bson_t *doc);

/* An error as FastGPT's text field holds it: "<code>: <detail>", and back (no code when the text has none of ours). */
#define SK_ERROR_TEXT_SIZE (SK_ERROR_MESSAGE_MAX + 48)
void sk_stored_error_format(const struct sk_stored_error *error, char out[SK_ERROR_TEXT_SIZE]);
void sk_stored_error_parse(const char *text, size_t length, struct sk_stored_error *out);

/* ---- small readers shared with the other collections; `false` = absent, null, of another type or out of range ---- */
bool sk_bson_text(const bson_iter_t *iter, char *out, size_t size);
bool sk_bson_int(const bson_iter_t *iter, int64_t min, int64_t max, int64_t *out);
bool sk_bson_date(const bson_iter_t *iter, int64_t *out);

#define SK_BSON_DATE_MAX 253402300799999LL /* 9999-12-31T23:59:59.999Z */

#endif
