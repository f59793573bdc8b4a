/* SPDX-License-Identifier: Apache-2.0
 *
 * Births and deaths of incarnations, and the happenings of a run. */
#ifndef SK_SIM_WORLD_H
#define SK_SIM_WORLD_H

#include "tests/sim/servers.h"

struct sim_inc *sim_inc_new(struct sim_world *w, int slot); /* with its seams; nothing runs yet */
void sim_inc_start(struct sim_world *w, int slot);
void sim_inc_drain(struct sim_inc *inc);
void sim_incs_free(struct sim_world *w);
void sim_world_plan(struct sim_world *w);       /* draws the happenings of the active time */
void sim_world_calm(struct sim_world *w);       /* no fault from here on; everything that was away is back */
void sim_world_tick_start(struct sim_world *w); /* the monitors' look around */

#endif
