/* SPDX-License-Identifier: Apache-2.0
 *
 * The state tables, expanded from proto/states.def at compile time, and the few questions one may ask of them. A new
 * operation is a row in states.def: nothing here changes. */
#include "common/sm/sm.h"

#include <string.h>

/* Words of states.def that are no statuses of their own. */
#define SK_STATUS_ABSENT SK_STATUS_NONE
#define SK_STATUS_SAME   SK_STATUS_COUNT

static const struct sk_status_info statuses[SK_STATUS_COUNT] = {
    [SK_STATUS_NONE] = {.name = "none", .stable = true, .operation = SK_OP_NONE},
#define SK_STATUS(NAME, wire, is_stable, quota, op)                                                                    \
    [SK_STATUS_##NAME] = {                                                                                             \
        .name = (wire), .stable = (is_stable) != 0, .counts_for_quota = (quota) != 0, .operation = SK_OP_##op},
#define SK_OPERATION(...)
#define SK_PHASE(...)
#define SK_CLAIM(...)
#include "proto/states.def"
#undef SK_STATUS
#undef SK_OPERATION
#undef SK_PHASE
#undef SK_CLAIM
};

/* The rows of one operation stand apart in states.def, so each sets single members. Phases come in ascending order:
 * the last row of an operation sets phase_count for good, which is what -Woverride-init would warn of. */
#pragma GCC diagnostic push
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
static const struct sk_op_info operations[SK_OP_COUNT] = {
    [SK_OP_NONE].name = "none",
#define SK_STATUS(...)
#define SK_OPERATION(NAME, wire, transitional_, terminal_, compensated_, available_)                                   \
    [SK_OP_##NAME].name = (wire), [SK_OP_##NAME].transitional = SK_STATUS_##transitional_,                             \
    [SK_OP_##NAME].terminal = SK_STATUS_##terminal_, [SK_OP_##NAME].compensated = SK_STATUS_##compensated_,            \
    [SK_OP_##NAME].available = (available_) != 0,
#define SK_PHASE(OP, index, NAME, wire, deadline)                                                                      \
    [SK_OP_##OP].phases[index] = {.name = (wire), .deadline_ms = (deadline)}, [SK_OP_##OP].phase_count = (index) + 1,
#define SK_CLAIM(OP, from) [SK_OP_##OP].claimable_from[SK_STATUS_##from] = true,
#include "proto/states.def"
#undef SK_STATUS
#undef SK_OPERATION
#undef SK_PHASE
#undef SK_CLAIM
};
#pragma GCC diagnostic pop

static bool status_known(enum sk_status status)
{
    return (int)status >= 0 && status < SK_STATUS_COUNT;
}

static bool op_known(enum sk_op op)
{
    return (int)op >= 0 && op < SK_OP_COUNT;
}

const struct sk_status_info *sk_status_info(enum sk_status status)
{
    return status_known(status) ? &statuses[status] : NULL;
}

const struct sk_op_info *sk_op_info(enum sk_op op)
{
    return op_known(op) ? &operations[op] : NULL;
}

const char *sk_status_name(enum sk_status status)
{
    return status_known(status) ? statuses[status].name : "invalid";
}

const char *sk_op_name(enum sk_op op)
{
    return op_known(op) ? operations[op].name : "invalid";
}

enum sk_status sk_status_parse(const char *name)
{
    if (name == NULL)
        return SK_STATUS_INVALID;
    for (int status = SK_STATUS_NONE + 1; status < SK_STATUS_COUNT; status++) {
        if (strcmp(statuses[status].name, name) == 0)
            return (enum sk_status)status;
    }
    return SK_STATUS_INVALID;
}

enum sk_op sk_op_parse(const char *name)
{
    if (name == NULL)
        return SK_OP_INVALID;
    for (int op = SK_OP_NONE + 1; op < SK_OP_COUNT; op++) {
        if (strcmp(operations[op].name, name) == 0)
            return (enum sk_op)op;
    }
    return SK_OP_INVALID;
}

int sk_op_phase_index(enum sk_op op, const char *phase)
{
    if (!op_known(op) || phase == NULL)
        return -1;
    for (int i = 0; i < operations[op].phase_count; i++) {
        if (strcmp(operations[op].phases[i].name, phase) == 0)
            return i;
    }
    return -1;
}

bool sk_op_claimable(enum sk_op op, enum sk_status from)
{
    return op_known(op) && status_known(from) && operations[op].claimable_from[from];
}

bool sk_status_move_legal(enum sk_status from, enum sk_status to)
{
    const struct sk_op_info *op;

    if (!status_known(from) || !status_known(to))
        return false;
    if (from == to)
        return from != SK_STATUS_NONE;
    /* A claim: the operation that owns `to` may be claimed from `from`. */
    op = &operations[statuses[to].operation];
    if (statuses[to].operation != SK_OP_NONE && op->claimable_from[from])
        return true;
    /* A commit, a compensation or a removal: it ends the operation that owns `from`. */
    op = &operations[statuses[from].operation];
    if (statuses[from].operation == SK_OP_NONE)
        return false;
    if (to == op->terminal || to == op->compensated)
        return true;
    /* An operation that may make a record compensates a record of its own making by removing it. */
    if (to == SK_STATUS_NONE)
        return op->claimable_from[SK_STATUS_NONE];
    /* "previousStatus": any stable status that the operation may come from. */
    return op->compensated == SK_STATUS_SAME && statuses[to].stable && op->claimable_from[to];
}
