/* SPDX-License-Identifier: Apache-2.0
 *
 * Readiness and liveness of a process (contract/service.md §1).
 *
 * Readiness: every dependency by name with its state, its last error and since when. A service is ready when it has
 * started, all required dependencies are up, and it is not draining. A change of state is logged here (once), so
 * whoever reports it need not; it is also the gauge sandkeep_dependency_up{dependency}.
 *
 * Liveness never looks at dependencies: the loop turns (sk_health_beat), and the checks that the program registers hold
 * (for example: no worker is late by more than ten seconds).
 *
 * Names must be static strings. Everything but new, add and free may be called from any thread; nothing blocks. */
#ifndef SK_HEALTH_HEALTH_H
#define SK_HEALTH_HEALTH_H

#include "common/base/sched.h"

#include <stdio.h>

#define SK_HEALTH_DEPENDENCIES_MAX 32
#define SK_HEALTH_CHECKS_MAX       16
#define SK_HEALTH_BEAT_LIMIT_MS    15000 /* a loop that did not turn for so long fails /livez */

enum sk_dependency_state { SK_DEPENDENCY_STARTING, SK_DEPENDENCY_UP, SK_DEPENDENCY_DOWN };

struct sk_health;
struct sk_dependency; /* owned by the registry */

/* NULL when out of memory. `sched` must outlive it. */
SK_MUST_USE struct sk_health *sk_health_new(const struct sk_sched *sched);
void sk_health_free(struct sk_health *health); /* NULL is allowed */

/* At start, before other threads report. A dependency that is not required shows in /readyz and makes nothing unready.
 * NULL when there are too many. */
SK_MUST_USE struct sk_dependency *sk_health_add(struct sk_health *health, const char *name, bool required);
/* Registers the gauges sandkeep_ready and sandkeep_dependency_up with the names added so far; once in a process. */
void sk_health_register_metrics(struct sk_health *health);

/* Reports. NULL dependencies are ignored, so that libraries may report without asking. The last error stays visible
 * after the dependency is up again. */
void sk_dependency_up(struct sk_dependency *dependency);
void sk_dependency_down(struct sk_dependency *dependency, const struct sk_error *err);
enum sk_dependency_state sk_dependency_state(struct sk_dependency *dependency);

void sk_health_set_started(struct sk_health *health);  /* start-up work is done */
void sk_health_set_draining(struct sk_health *health); /* for good */
bool sk_health_ready(struct sk_health *health);
/* Writes the JSON body of /readyz; returns what sk_health_ready does, of the same moment. */
bool sk_health_write(struct sk_health *health, bool verbose, FILE *out);

/* The loop's timer calls it about once a second. */
void sk_health_beat(struct sk_health *health);
/* `check` returns true while all is well; else it writes a short reason into `why`. It is called from the thread that
 * serves /livez and must not block. False when there are too many. */
SK_MUST_USE bool sk_health_add_live_check(struct sk_health *health, const char *name,
                                          bool (*check)(void *arg, char *why, size_t size), void *arg);
/* False with the first reason: "loop: no turn for 20000 ms", "workers: 2 late". */
bool sk_health_live(struct sk_health *health, char *why, size_t size);

#endif
