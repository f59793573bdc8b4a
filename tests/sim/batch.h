/* SPDX-License-Identifier: Apache-2.0
 *
 * Many seeds over several processes, and the report of one that failed. */
#ifndef SK_SIM_BATCH_H
#define SK_SIM_BATCH_H

#include "tests/sim/sim.h"

#define SIM_JOBS_MAX 64

struct sim_batch {
    uint64_t first, count;
    int jobs;
    bool twice, until_failure, sometimes, stats;
    const char *mutation; /* NULL = none; for the command that replays */
};

/* Both return the exit status. */
int sim_one(const struct sim_batch *batch, bool trace);
int sim_batch(const struct sim_batch *batch);

#endif
