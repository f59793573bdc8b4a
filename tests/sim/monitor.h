/* SPDX-License-Identifier: Apache-2.0
 *
 * Safety monitors: they watch every effect while a run goes on and end it at the first broken promise. Each has a name,
 * which a failing seed prints; docs/simulator.md lists them. What can only be judged at the end stands in verdict.c. */
#ifndef SK_SIM_MONITOR_H
#define SK_SIM_MONITOR_H

#include "tests/sim/servers.h"

struct sim_monitor *sim_monitor_new(struct sim_world *w);
void sim_monitor_free(struct sim_monitor *monitor);

/* Store. `before` NULL = the record was inserted, `after` NULL = it was removed; both as the store holds them. */
void sim_monitor_write(struct sim_world *w, struct sim_actor actor, const struct sim_doc *doc,
                       const struct sk_instance *before, const struct sk_instance *after, const struct sk_event *events,
                       int event_count);
void sim_monitor_record_removed(struct sim_world *w, const struct sk_instance *before, const struct sim_doc *doc);
/* A compare-and-set that lost; `doc` NULL = no such record. */
void sim_monitor_lost(struct sim_world *w, struct sim_actor actor, const struct sim_doc *doc,
                      const struct sk_instance *before, const struct sk_instance *after);
void sim_monitor_read(struct sim_world *w, struct sim_inc *inc, const char *sandbox_id, const struct sk_instance *found,
                      int64_t silent_us);
/* Does this run take leases away from under their holders? */
bool sim_monitor_leases_may_vanish(const struct sim_world *w);
/* A claim was written (monitor_quota.c). */
void sim_monitor_quota(struct sim_world *w, const struct sk_instance *before, const struct sk_instance *after);
/* A heartbeat call begins; one of its items has reached the store. */
void sim_monitor_beating(struct sim_world *w, struct sim_inc *inc, const struct sk_heartbeat *items, int count);
void sim_monitor_heartbeat(struct sim_world *w, struct sim_inc *inc, const struct sim_doc *doc);

/* Leases. */
void sim_monitor_acquired(struct sim_world *w, struct sim_inc *inc, struct sk_lease *lease);
void sim_monitor_released(struct sim_world *w, struct sk_lease *lease);
void sim_monitor_lease_lost(struct sim_world *w,
                            const char *name); /* the server lost it (NULL: all): nobody is to blame */
/* The names of the leases that a living incarnation believes to hold, one after another; false at the end. */
bool sim_monitor_held(struct sim_world *w, const struct sim_inc *inc, int n, char name[SK_LEASE_NAME_SIZE]);
void sim_monitor_forget_inc(struct sim_world *w, struct sim_inc *inc);

/* Provider: called when the call begins (the caller's duty is judged then) and when its effect happens. */
void sim_monitor_effect(struct sim_world *w, struct sim_inc *inc, enum sim_call call, const char *sandbox_id,
                        const char *remote_id); /* "" = not about one object */
void sim_monitor_create(struct sim_world *w, struct sim_inc *inc, const struct sk_create_spec *spec);
void sim_monitor_seen(struct sim_world *w, struct sim_inc *inc, const struct sk_remote *remote);
void sim_monitor_remove(struct sim_world *w, struct sim_inc *inc, const char *remote_id);
void sim_monitor_removed(struct sim_world *w, struct sim_actor actor, const struct sim_object *object);
void sim_monitor_volume_removed(struct sim_world *w, struct sim_actor actor, const char *claim_name);

/* Bus. */
void sim_monitor_ack_wait(struct sim_world *w, const struct sim_message *message);

/* A look around, four times a second. */
void sim_monitor_tick(struct sim_world *w);

#endif
