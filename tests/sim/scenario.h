/* SPDX-License-Identifier: Apache-2.0
 *
 * What a seed decides before anything runs. */
#ifndef SK_SIM_SCENARIO_H
#define SK_SIM_SCENARIO_H

#include "tests/sim/sim.h"

/* SIM_QUIET_BOUND: the longest virtual time the world may take to settle after the faults stopped. The longest legal
 * chain is: a FastGPT operation becomes stale, every try of the operation that follows runs into its phase deadline and
 * waits the longest back-off, a ghost appears last and lives until the next sweep after its grace. */
#define SIM_QUIET_BOUND_MS(s)                                                                                          \
    ((s)->lc.fastgpt_long_stale_ms + 2 * (s)->lc.takeover_ms + (s)->ghost_max_ms + (s)->lc.orphan_grace_ms +           \
     2 * (s)->lc.orphan_sweep_ms + 2 * (s)->lc.quota_recount_ms + (s)->lc.quota_grace_ms +                             \
     ((s)->lc.retry_limit + 2) * ((s)->lc.retry_max_ms * 12 / 10 + 600000 * (s)->lc.phase_deadline_scale_pct / 100) +  \
     60000)

void sim_scenario_draw(struct sim_scenario *scenario, uint64_t seed);

#endif
