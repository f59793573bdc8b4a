/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the checker only: the snapshot, sorted, and the way to report a finding. */
#ifndef SK_CHECK_PRIVATE_H
#define SK_CHECK_PRIVATE_H

#include "common/check/check.h"

/* Pointers into one array of the snapshot, sorted. */
struct sk_check_index {
    const void **items;
    size_t count;
};

struct sk_check_context {
    const struct sk_check_snapshot *in;
    struct sk_check_report *report;
    bool failed;                            /* out of memory */
    struct sk_check_index records;          /* by sandbox id */
    struct sk_check_index remotes;          /* by sandbox id, then epoch, then id */
    struct sk_check_index slots;            /* by sandbox id, then scope */
    struct sk_check_index pending, history; /* by sandbox id, epoch, sequence, id */
};

typedef int (*sk_check_compare)(const void *a, const void *b); /* of pointers to items */

struct sk_check_index sk_check_sort(struct sk_check_context *c, const void *array, size_t count, size_t item,
                                    sk_check_compare compare);
void sk_check_index_free(struct sk_check_index *index);
void sk_check_find(struct sk_check_context *c, enum sk_check check, const char *sandbox_id, const char *subject,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* The record of a sandbox, or NULL. Every part of the snapshot names the sandbox id first. */
const struct sk_check_record *sk_check_record_find(const struct sk_check_context *c, const char *sandbox_id);
/* The first item of `index` whose sandbox id is this one; *count = how many follow (0: none). Items must start with
 * their sandbox id, or have it at `offset`. */
size_t sk_check_group(const struct sk_check_index *index, size_t offset, const char *sandbox_id, size_t *count);
/* Did this moment pass at least `grace` ago? An unknown moment (0) counts as old. */
bool sk_check_old(const struct sk_check_context *c, int64_t at, int64_t grace);

void sk_check_records(struct sk_check_context *c);
void sk_check_remotes(struct sk_check_context *c);
void sk_check_volumes(struct sk_check_context *c);
void sk_check_slots(struct sk_check_context *c);
void sk_check_leases(struct sk_check_context *c);
void sk_check_events(struct sk_check_context *c);
void sk_check_changes(struct sk_check_context *c);
void sk_check_commands(struct sk_check_context *c);

#endif
