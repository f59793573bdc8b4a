/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to common/store: what the recount (recount.c) needs of the slots (quota.c, where their documents are shown).
 */
#ifndef SK_STORE_QUOTA_H
#define SK_STORE_QUOTA_H

#include "common/store/mongo.h"

#define SK_QUOTA_SCOPE_SIZE (SK_TEAM_ID_SIZE + 8)
#define SK_QUOTA_ID_SIZE    (SK_QUOTA_SCOPE_SIZE + 16)
#define SK_QUOTA_SLOTS_MAX  99999999 /* what 8 digits hold */
#define SK_QUOTA_BATCH      1000     /* documents in one answer */

struct sk_quota_slot {
    char holder[SK_SANDBOX_ID_SIZE];
    int64_t number, at;
};

/* Numbers of slots, ascending; the list is malloc'd and the caller's, also after an error. */
struct sk_quota_numbers {
    int64_t *list;
    size_t count, capacity;
    bool failed;
};

bool sk_quota_scope_valid(const char *scope);
void sk_quota_slot_id(char out[SK_QUOTA_ID_SIZE], const char *scope, int64_t slot);
/* { <field>: every value that begins with "<scope><separator>", scope } */
void sk_quota_append_range(bson_t *filter, const char *field, const char *scope, char separator);
/* False when the document is no held slot. */
bool sk_quota_decode_slot(const bson_t *doc, struct sk_quota_slot *slot);
/* How many slots of the scope were ever made. */
SK_MUST_USE int sk_quota_count_slots(struct sk_mongo_op *op, const char *scope, int64_t *slots, struct sk_error *err);
/* The numbers of the slots that match. `out` begins as zeroes. */
SK_MUST_USE int sk_quota_read_numbers(struct sk_mongo_op *op, const bson_t *filter, struct sk_quota_numbers *out,
                                      struct sk_error *err);
/* Frees the slot if it is still held by the same reservation. */
SK_MUST_USE int sk_quota_free_slot(struct sk_mongo_op *op, const char *scope, const struct sk_quota_slot *slot,
                                   bool *freed, struct sk_error *err);
/* Takes a slot; `limit` < 0 = whatever the number. *granted is only ever set to true. */
SK_MUST_USE int sk_quota_take(struct sk_mongo_op *op, const char *scope, int64_t limit, const char *holder,
                              bool *granted, struct sk_error *err);
/* The same items with room for one more, `size` bytes each; *failed (and the same items) when there is no memory. */
void *sk_quota_grow(void *items, size_t count, size_t *capacity, size_t size, bool *failed);

#endif
