/* SPDX-License-Identifier: Apache-2.0
 *
 * What is judged when the world has come to rest: liveness, and the invariants of common/check. */
#ifndef SK_SIM_VERDICT_H
#define SK_SIM_VERDICT_H

#include "tests/sim/servers.h"

/* Has everything come to rest? Else *why tells what has not, for people. */
bool sim_settled(struct sim_world *w, char *why, size_t size);
/* Runs the checker over the whole world; the report belongs to the caller. */
void sim_verdict(struct sim_world *w, struct sk_check_report *report);
/* Asks for the repair that interference made due. True when something was asked. */
bool sim_ask_repairs(struct sim_world *w, const struct sk_check_report *report);

#endif
