/* SPDX-License-Identifier: Apache-2.0
 *
 * The sandbox state machine as data: statuses, operations, phases and legal claims, generated from proto/states.def.
 * Everything here is constant and thread-safe; nothing allocates (contract/lifecycle.md §2.4, §3). */
#ifndef SK_SM_SM_H
#define SK_SM_SM_H

#include "common/base/error.h"

enum sk_status {
    SK_STATUS_NONE = 0, /* no record */
#define SK_STATUS(name, wire, stable, quota, op) SK_STATUS_##name,
#define SK_OPERATION(...)
#define SK_PHASE(...)
#define SK_CLAIM(...)
#include "proto/states.def"
#undef SK_STATUS
#undef SK_OPERATION
#undef SK_PHASE
#undef SK_CLAIM
    SK_STATUS_COUNT,
    SK_STATUS_INVALID = SK_STATUS_COUNT /* a value this release does not know */
};

enum sk_op {
    SK_OP_NONE = 0,
#define SK_STATUS(...)
#define SK_OPERATION(name, wire, transitional, terminal, compensated, available) SK_OP_##name,
#define SK_PHASE(...)
#define SK_CLAIM(...)
#include "proto/states.def"
#undef SK_STATUS
#undef SK_OPERATION
#undef SK_PHASE
#undef SK_CLAIM
    SK_OP_COUNT,
    SK_OP_INVALID = SK_OP_COUNT
};

#define SK_PHASES_MAX 5

struct sk_status_info {
    const char *name;
    bool stable;
    bool counts_for_quota;
    enum sk_op operation; /* the only operation that may be in this status */
};

struct sk_phase_info {
    const char *name;
    int64_t deadline_ms; /* of the step that leads to this phase */
};

struct sk_op_info {
    const char *name;
    enum sk_status transitional;
    enum sk_status terminal;    /* NONE = the record is removed */
    enum sk_status compensated; /* NONE = the record is removed; SK_STATUS_COUNT = previousStatus */
    bool available;             /* false: commands answer operation_blocked in this release */
    int phase_count;
    struct sk_phase_info phases[SK_PHASES_MAX];
    bool claimable_from[SK_STATUS_COUNT]; /* [SK_STATUS_NONE] = no record */
};

/* The rows of the tables; never NULL for known values, NULL for NONE's neighbours outside the enum (INVALID, garbage).
 */
const struct sk_status_info *sk_status_info(enum sk_status status);
const struct sk_op_info *sk_op_info(enum sk_op op);
const char *sk_status_name(enum sk_status status); /* "none" for NONE, "invalid" for anything unknown */
const char *sk_op_name(enum sk_op op);             /* likewise */
enum sk_status sk_status_parse(const char *name);  /* SK_STATUS_INVALID when unknown, NULL or "none" */
enum sk_op sk_op_parse(const char *name);          /* SK_OP_INVALID likewise */
/* Index of a phase of an operation, -1 when the operation has no such phase. */
int sk_op_phase_index(enum sk_op op, const char *phase);
/* May `op` be claimed from `from`? A transitional `from` also needs a stale, failed or released operation: that is the
 * caller's to know. */
bool sk_op_claimable(enum sk_op op, enum sk_status from);
/* Is `to` a legal successor of `from` by any claim, commit, compensation or removal (NONE as `to`)? Staying is legal.
 * Used before every write. */
bool sk_status_move_legal(enum sk_status from, enum sk_status to);

#endif
