/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated servers as the world sees them: what is in them, and what clients, FastGPT and operators do to them
 * directly. The seams that the code under test calls are installed into an incarnation by the *_seam functions. */
#ifndef SK_SIM_SERVERS_H
#define SK_SIM_SERVERS_H

#include "common/check/check.h"
#include "tests/sim/sim.h"

/* ---- store (store.c, store_apply.c) ------------------------------------------------------------------------------ */
struct sim_doc {
    struct sk_instance i;
    struct sk_event *outbox;
    int outbox_count, outbox_size;
    int64_t heartbeat_us;          /* virtual time at which heartbeatAt, or the operation, changed last */
    int64_t previous_heartbeat_us; /* the same before the newest write */
    int64_t claim_us;              /* of the last claim */
    int64_t deleting_us;           /* of the first claim of a delete */
    int64_t phase_us;              /* virtual time of the last claim or phase commit */
    int64_t beat_us;               /* virtual time at which its owner last tried to beat for the operation */
    unsigned claimed_by;           /* fibre that claimed the operation, 0 = FastGPT */
    bool raced;       /* an object of it vanished and nobody is to blame: it is ensured once more at the end */
    bool was_blocked; /* since the last stable status */
    bool repair_asked;
};

/* One stretch of a sandbox's life: from `at_us` on it had this status. */
struct sim_stretch {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    int64_t at_us;
    enum sk_status status; /* NONE = no record */
    int64_t epoch;
};

struct sim_source {
    char id[SK_SOURCE_ID_SIZE];
    bool deleted;
    char team_id[SK_TEAM_ID_SIZE];
};

struct sim_slot {
    char scope[SK_TEAM_ID_SIZE + 8];
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    int64_t at_ms; /* true wall clock */
};

struct sim_result_record {
    struct sk_command_record record;
    int64_t at_us;
};

struct sim_store {
    struct sim_world *w;
    struct sim_doc **docs; /* NULL = free place */
    size_t doc_count, doc_size;
    struct sim_stretch *stretches;
    size_t stretch_count, stretch_size;
    struct sk_check_change *changes; /* every event that a write carried */
    size_t change_count, change_size;
    struct sim_slot *slots;
    size_t slot_count, slot_size;
    struct sim_slot *scopes; /* every scope that was ever reserved in: `scope` alone counts */
    size_t scope_count, scope_size;
    struct sim_result_record *results;
    size_t result_count, result_size;
    struct sk_timeline_entry *timeline;
    size_t timeline_count, timeline_size;
    struct sim_source sources[SIM_SANDBOXES_MAX];
    int source_count;
    bool source_check;
    bool foreign_writers; /* FastGPT has written something in this run */
    bool late;            /* the write in hand arrives late */
};

struct sim_store *sim_store_new(struct sim_world *w);
void sim_store_free(struct sim_store *store);
void sim_store_seam(struct sim_inc *inc);
struct sim_doc *sim_store_doc(struct sim_world *w, const char *sandbox_id); /* NULL = no record */
const struct sim_result_record *sim_store_result(struct sim_world *w, const char *sandbox_id, const char *command_id);
/* The reading half of the seam (store_queries.c). */
int sim_store_scan_idle(void *self, struct sk_call *call, struct sk_idle_cursor *cursor, int64_t before_ms, int limit,
                        sk_scan_fn fn, void *arg, struct sk_error *err);
int sim_store_scan(void *self, struct sk_call *call, enum sk_scan_kind kind, int64_t before_ms, int limit,
                   sk_scan_fn fn, void *arg, struct sk_error *err);
int sim_store_get_many(void *self, struct sk_call *call, const char (*ids)[SK_SANDBOX_ID_SIZE], int count,
                       sk_scan_fn fn, void *arg, struct sk_error *err);
int sim_store_timeline_list(void *self, struct sk_call *call, const char *sandbox_id, struct sk_timeline_entry *out,
                            int *count, struct sk_error *err);
int sim_store_timeline_of_commands(void *self, struct sk_call *call, const char *sandbox_id,
                                   const char (*command_ids)[SK_COMMAND_ID_SIZE], int command_count,
                                   struct sk_timeline_entry *out, int *count, struct sk_error *err);
int sim_store_list(void *self, struct sk_call *call, const struct sk_list_filter *filter, enum sk_list_sort sort,
                   const char *cursor, int limit, sk_scan_fn fn, void *arg, char **next, struct sk_error *err);
int sim_store_stats(void *self, struct sk_call *call, struct sk_stats *out, struct sk_error *err);
/* Writes past every rule, as FastGPT does: inserts or replaces the record; NULL events. */
struct sim_doc *sim_store_foreign(struct sim_world *w, const struct sk_instance *instance);
void sim_store_note_status(struct sim_store *store, const char *sandbox_id, enum sk_status status, int64_t epoch);
void *sim_grow(void *array, size_t count, size_t *size, size_t item); /* room for one more; aborts without memory */

/* Who did it: effects may happen after the caller is gone. */
struct sim_actor {
    struct sim_inc *inc; /* NULL = FastGPT */
    unsigned fiber;
};
struct sim_actor sim_actor_of(struct sim_inc *inc);

enum sk_cas_result sim_store_apply_cas(struct sim_store *store, struct sim_actor actor,
                                       const struct sk_instance *before, const struct sk_instance *after,
                                       const struct sk_event *events, int event_count,
                                       const struct sk_cas_guard *guard);
bool sim_store_apply_insert(struct sim_store *store, struct sim_actor actor, const struct sk_instance *after,
                            const struct sk_event *events, int event_count);
enum sk_cas_result sim_store_apply_remove(struct sim_store *store, struct sim_actor actor,
                                          const struct sk_instance *before);
void sim_store_apply_timeline(struct sim_store *store, const struct sk_event *events, int count);

/* ---- leases (lease.c) -------------------------------------------------------------------------------------------- */
struct sim_lease_key {
    char name[SK_LEASE_NAME_SIZE];
    char token[SK_UUID_SIZE];
    int64_t expires_us;
};

struct sim_lease_server {
    struct sim_world *w;
    struct sim_lease_key keys[64];
    int count;
};

struct sim_lease_server *sim_lease_new(struct sim_world *w);
void sim_lease_free(struct sim_lease_server *server);
void sim_lease_seam(struct sim_inc *inc);
void sim_lease_wipe(struct sim_world *w);
void sim_lease_vanish(struct sim_world *w); /* one key, drawn from the seed */
void sim_lease_lose(struct sim_world *w, const char *name);
/* FastGPT's own use of the keys. */
bool sim_lease_take(struct sim_world *w, const char *name, const char *token, int64_t ttl_ms);
void sim_lease_drop(struct sim_world *w, const char *name, const char *token);

/* ---- bus (bus.c) --------------------------------------------------------------------------------------------------
 */
struct sim_message {
    uint64_t sequence;
    char subject[SK_SUBJECT_SIZE];
    char message_id[300];
    char *body;
    size_t body_len;
    struct sk_header headers[8];
    int header_count;
    int64_t at_us;
    bool gone; /* acknowledged, terminated or wiped */
    int deliveries;
    int held;               /* deliveries that are out */
    int64_t due_us;         /* 0 = may be delivered now; else when AckWait (or a nak's delay) ends */
    uint64_t timer;         /* the newest AckWait of the message: older ones are void */
    int tag;                /* the client's command */
    struct sim_inc *holder; /* the last one it was delivered to */
    bool progress_lost;     /* an in-progress ack was lost: AckWait may pass without a fault of the holder */
};

struct sim_event {
    struct sk_check_event event;
    bool dropped_by_wipe;
};

struct sim_bus {
    struct sim_world *w;
    struct sim_message **commands; /* everything ever published to the command stream */
    size_t command_count, command_size;
    struct sim_event *events; /* everything ever stored in the event stream that was a lifecycle event */
    size_t event_count, event_size;
    struct {
        char id[300];
        int64_t at_us;
    } * seen; /* message ids of the event and dead letter streams, for the duplicate window */
    size_t seen_count, seen_size;
    uint64_t sequence, timers;
    int64_t duplicate_window_us;
    int64_t dead_letters;
    bool pump_queued;
};

struct sim_bus *sim_bus_new(struct sim_world *w);
void sim_bus_free(struct sim_bus *bus);
void sim_bus_seam(struct sim_inc *inc);
/* A client publishes a command. False when the publish was lost or the server is away (no PubAck). */
bool sim_bus_command(struct sim_world *w, int tag, const char *subject, const char *message_id, const char *body,
                     size_t body_len, const char *reply_to);
void sim_bus_wipe(struct sim_world *w);
void sim_bus_pump(struct sim_world *w); /* delivers what may be delivered, soon */
void sim_pump_later(struct sim_world *w);
void sim_pump_at(struct sim_world *w, int64_t at_us);
/* The incarnation is gone: what it holds comes back after its AckWait. */
void sim_bus_forget_inc(struct sim_world *w, struct sim_inc *inc);
bool sim_bus_idle(struct sim_world *w); /* no command is waiting or out */
struct sim_message *sim_bus_find(struct sim_world *w, uint64_t sequence);

/* ---- provider (provider.c) ------------------------------------------------------------------------------------------
 */
struct sim_object {
    struct sk_remote remote;
    bool gone;
    int64_t created_us, visible_us, ready_us; /* ready_us < 0: never */
    int64_t running_us;
    int64_t label_us; /* when the epoch label was last set */
    unsigned creator; /* fibre */
    char creator_job[SK_UUID_SIZE];
};

struct sim_volume {
    char claim_name[SK_CLAIM_NAME_SIZE];
    bool gone;
    struct sim_inc *stray_of; /* made for this caller after its sandbox was gone; only that one knows of it */
    int64_t created_us;
};

struct sim_provider_server {
    struct sim_world *w;
    struct sim_object **objects;
    size_t object_count, object_size;
    struct sim_volume *volumes;
    size_t volume_count, volume_size;
    int ghosts; /* effects that are still to come */
};

struct sim_provider_server *sim_provider_new(struct sim_world *w);
void sim_provider_free(struct sim_provider_server *server);
void sim_provider_seam(struct sim_inc *inc);
struct sim_object *sim_provider_object(struct sim_world *w, const char *remote_id);  /* also gone ones */
struct sim_volume *sim_provider_volume(struct sim_world *w, const char *claim_name); /* NULL = does not exist */
/* What others do there. */
/* What a running sandbox runs in: of the objects that are not of another life the newest. A record that no operation of
 * ours ever changed is FastGPT's, and so is its object, without an epoch. */
bool sim_provider_in_use(struct sim_world *w, const struct sim_object *object);
struct sim_object *sim_provider_add(struct sim_world *w, const char *sandbox_id, int64_t epoch, const char *job_id);
struct sim_volume *sim_provider_add_volume(struct sim_world *w, const char *claim_name);
void sim_provider_gone(struct sim_world *w);  /* one running object vanishes */
void sim_provider_pause(struct sim_world *w); /* one running object is paused */

#endif
