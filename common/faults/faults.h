/* SPDX-License-Identifier: Apache-2.0
 *
 * Fault points: named places between a remote effect and its commit where a test build can die or misbehave. All names
 * stand in faults.def, so that a test can iterate over every point; release builds contain nothing of them.
 *
 * SANDKEEP_FAULT="<point>[@<operation>]=<action>[:<argument>][,…]" with action exit (status 86, no clean-up), delay:ms,
 * error (the point's call fails with `internal`), abort. Optional suffix "#n" fires only at the n-th pass. */
#ifndef SK_FAULTS_FAULTS_H
#define SK_FAULTS_FAULTS_H

#include "common/base/error.h"

enum sk_fault_point {
#define SK_FAULT_POINT(name, wire, doc) SK_FAULT_##name,
#include "common/faults/faults.def"
#undef SK_FAULT_POINT
    SK_FAULT_COUNT
};

/* A setting that does not parse ends the process with status 2 and a line on stderr: a test must never pass because its
 * fault was misspelt. Items are tried in order; several may act at one pass (a delay and then an exit). */
#ifdef SANDKEEP_FAULT_POINTS
/* Reads SANDKEEP_FAULT now instead of at the first point: call it at start. */
void sk_fault_check(void);
/* `operation` is a wire name such as "provision", or NULL. Returns true when the caller should fail. Thread-safe. */
bool sk_fault_hit(enum sk_fault_point point, const char *operation);
#define SK_FAULT(point, operation) sk_fault_hit(SK_FAULT_##point, (operation))
#else
#define SK_FAULT(point, operation) false
static inline void sk_fault_check(void)
{
}
#endif
const char *sk_fault_name(enum sk_fault_point point);
/* Prints "name<TAB>doc" lines: `sk-lifecycle --list-fault-points` in test builds. */
void sk_fault_list(void (*print)(void *arg, const char *name, const char *doc), void *arg);

#endif
