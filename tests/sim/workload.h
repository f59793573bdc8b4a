/* SPDX-License-Identifier: Apache-2.0
 *
 * The clients of the simulated world: they publish commands, wait for answers, send again what was not answered, and
 * remember every answer, so that the verdict can compare. FastGPT (fastgpt.c) writes records of its own. */
#ifndef SK_SIM_WORKLOAD_H
#define SK_SIM_WORKLOAD_H

#include "tests/sim/servers.h"

struct sim_workload *sim_workload_new(struct sim_world *w);
void sim_workload_free(struct sim_workload *load);
void sim_workload_start(struct sim_world *w); /* plans all commands of the active time */
/* A final result or progress on an inbox; `lost`: it was sent but the client never sees it. */
void sim_workload_reply(struct sim_world *w, const char *inbox, const char *body, size_t len, bool progress, bool lost);
/* A command.* event from the stream. */
void sim_workload_event(struct sim_world *w, const char *type, const json_t *data);
/* A message of the stream was acknowledged: may it be? */
void sim_workload_acked(struct sim_world *w, const struct sim_message *message);
void sim_workload_wiped(struct sim_world *w, const struct sim_message *message); /* it was lost with its stream */
bool sim_workload_answered(struct sim_world *w); /* every command has its final answer */
void sim_workload_report(struct sim_world *w);   /* traces those that have none */
/* For the checker: one entry per command. The array belongs to the caller. */
struct sk_check_command *sim_workload_commands(struct sim_world *w, size_t *count);
/* Somebody deletes the sandbox now and uses it again a moment later. */
void sim_workload_burst(struct sim_world *w, const char *sandbox_id);
/* After outside interference repair is due at the next use: this is it. */
void sim_workload_final_ensure(struct sim_world *w, const char *sandbox_id);
struct sk_identity sim_identity(int index);
void sim_sandbox_id(int index, char out[SK_SANDBOX_ID_SIZE]);

/* fastgpt.c: what FastGPT does to the store, the leases and the provider past our seams. */
void sim_fastgpt_act(struct sim_world *w);       /* a record made, an operation begun, an activity, a pin */
void sim_fastgpt_malformed(struct sim_world *w); /* a record of a shape nobody knows */
void sim_fastgpt_activity(struct sim_world *w);  /* lastActiveAt or a pin of a running record */

#endif
