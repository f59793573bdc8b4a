/* SPDX-License-Identifier: Apache-2.0
 *
 * The store seam: instance records and their companions, as the workflows need them. Production is Mongo
 * (sk_store_mongo_*, store_mongo.c and friends), the simulator has its own; both pass tests/conformance/store.
 *
 * All calls block (up to the time-outs of the URI and `call`, when given) and may be used from any thread. Errors:
 * store_unavailable (retryable; outcome UNKNOWN when a write may have been applied), cancelled, internal.
 * Collections: agent_sandbox_instances_v2, sandkeep_operations, sandkeep_commands, sandkeep_quota (contract §2). */
#ifndef SK_STORE_STORE_H
#define SK_STORE_STORE_H

#include "common/base/sched.h"
#include "common/instance/instance.h"

/* What a compare-and-set asks for besides status, operation.id (or its absence), epoch and sequence of `before`, which
 * always stand in the filter together with _id. The sequence is there for the write that arrives late: sent, given up,
 * sent again and applied, it must not be applied once more over what came after it. */
struct sk_cas_guard {
    bool last_active_at; /* lastActiveAt must still equal before's: a touch in between makes the change lose */
    int64_t unpinned_at; /* != 0: no pin may expire later than this moment (Unix ms) */
};

enum sk_cas_result {
    SK_CAS_ERROR = -1, /* err is set; with outcome UNKNOWN read back */
    SK_CAS_LOST = 0,   /* the record is not what `before` says (or is gone) */
    SK_CAS_APPLIED = 1,
};

struct sk_heartbeat {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char operation_id[SK_UUID_SIZE];
};

/* A stored result of a command: sandkeep_commands, _id = "<sandboxId>/<commandId>", kept 24 h. */
struct sk_command_record {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char command_id[SK_COMMAND_ID_SIZE];
    char body_hash[65]; /* SHA-256 of op, source, sandboxId, params in canonical form */
    char *result;       /* the result message as JSON text, malloc'd: owned by the record's holder */
    bool *existed;      /* NULL, or where command_put says that a result (perhaps another) was there already */
    int64_t at;
};
void sk_command_record_fini(struct sk_command_record *record);
#define SK_COMMANDS_FIND_MAX 1024

#define SK_TIMELINE_PHASES_MAX 8
#define SK_TIMELINE_KEEP       50 /* operations kept per sandbox */

/* One operation of the timeline: sandkeep_operations, _id = operation id. Built from events by the relay. */
struct sk_timeline_entry {
    char operation_id[SK_UUID_SIZE];
    char job_id[SK_UUID_SIZE];
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    enum sk_op type;
    int64_t epoch;
    char owner[SK_OWNER_SIZE];
    char command_id[SK_COMMAND_ID_SIZE];
    char result[16]; /* "" running, completed, failed, blocked, compensated, takenover, deleted */
    int attempt;
    int64_t started_at, ended_at; /* ended_at 0 = not ended */
    struct sk_stored_error error;
    char reason[SK_REASON_SIZE];
    int phase_count;
    struct {
        char name[32];
        int64_t at;
        int64_t duration_ms; /* -1 = absent */
    } phases[SK_TIMELINE_PHASES_MAX];
};

/* Fields a client filters `list` by; zero values mean "any". */
struct sk_list_filter {
    unsigned statuses; /* bit mask over enum sk_status; 0 = any */
    enum sk_source_type source_type;
    char source_id[SK_SOURCE_ID_SIZE];
    char user_id[SK_USER_ID_SIZE];
    char team_id[SK_TEAM_ID_SIZE];
    char provider[SK_PROVIDER_SIZE];
    int blocked;        /* 0 any, 1 only blocked, 2 only not blocked */
    int64_t older_than; /* lastActiveAt < this; 0 = any */
};
enum sk_list_sort {
    SK_LIST_BY_LAST_ACTIVE_DESC = 0,
    SK_LIST_BY_LAST_ACTIVE_ASC,
    SK_LIST_BY_CREATED_DESC,
    SK_LIST_BY_SANDBOX_ID
};

enum sk_scan_kind {
    /* Every record with an operation that is not blocked, oldest heartbeat first; before_ms != 0: older than that. */
    SK_SCAN_TRANSITIONAL,
    SK_SCAN_OUTBOX, /* records with pending events (sparse index on outbox.id) */
    SK_SCAN_QUOTA,  /* every record that counts for quota: only sandbox_id, team_id, status are filled */
};
/* Where a scan of idle records goes on: behind the record `oid` at this moment. All zero = at the oldest. */
struct sk_idle_cursor {
    int64_t last_active_at;
    char oid[25]; /* "" = at the moment itself */
};
/* Called for each record found; return false to stop. The pointer is valid during the call only. `events` are the
 * pending outbox events (SK_SCAN_OUTBOX, get_many), in order of sequence. */
typedef bool (*sk_scan_fn)(void *arg, const struct sk_instance *instance, const struct sk_event *events,
                           int event_count);

#define SK_QUOTA_GLOBAL "global" /* scope names: "global", "team:<teamId>" */

#define SK_QUOTA_POSITION_SIZE (SK_TEAM_ID_SIZE + 8 + SK_SANDBOX_ID_SIZE)
struct sk_quota_holding {
    char scope[SK_TEAM_ID_SIZE + 8];
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char position[SK_QUOTA_POSITION_SIZE];
    int64_t taken_at; /* 0 = unknown */
};

struct sk_source_state {
    bool known;                    /* the collection exists and holds the source (or the check is off) */
    bool active;                   /* deleteTime is null */
    char team_id[SK_TEAM_ID_SIZE]; /* from the source document when it has one */
};

struct sk_stats {
    int64_t by_status[SK_STATUS_COUNT];
    int64_t blocked, pending_outbox, malformed;
    int64_t oldest_transitional_ms; /* age of the oldest heartbeat, 0 = none */
};

struct sk_store {
    const struct sk_store_ops *ops;
    void *self;
};

struct sk_store_ops {
    /* Reads one record. *found tells; a malformed document is found with out->malformed set. On error *out is as it
     * was, *found is false. */
    int (*get)(void *self, struct sk_call *call, const char *sandbox_id, struct sk_instance *out, bool *found,
               struct sk_error *err);
    int (*find)(void *self, struct sk_call *call, const struct sk_identity *identity, struct sk_instance *out,
                bool *found, struct sk_error *err);
    /* Inserts a new record with its first events. *created = false when the identity or the sandbox id is taken. The
     * _id is chosen by the caller in after->oid (24 hex), so that an ambiguous insert can be read back. Refuses
     * (internal) a record whose sandbox id is not that of its identity, and events that do not count 1, 2, … up to its
     * sequence. */
    int (*insert)(void *self, struct sk_call *call, const struct sk_instance *after, const struct sk_event *events,
                  int event_count, bool *created, struct sk_error *err);
    /* The compare-and-set: writes the difference of `after` to `before` and appends the events to the outbox, in one
     * update. Refuses (internal, nothing written) what sk_instance_change_invariant refuses, and events whose sequences
     * are not before's +1, +2, … up to after's. */
    enum sk_cas_result (*cas)(void *self, struct sk_call *call, const struct sk_instance *before,
                              const struct sk_instance *after, const struct sk_event *events, int event_count,
                              const struct sk_cas_guard *guard, struct sk_error *err);
    /* Removes a record in status deleting whose operation.id and epoch equal before's and whose outbox is empty. */
    enum sk_cas_result (*remove)(void *self, struct sk_call *call, const struct sk_instance *before,
                                 struct sk_error *err);
    /* One updateMany: operation.heartbeatAt = now_ms for those of the operations that `owner` still owns. */
    int (*heartbeat)(void *self, const char *owner, const struct sk_heartbeat *items, int count, int64_t now_ms,
                     struct sk_error *err);
    /* before_ms: see the kind, else 0; limit bounds the number of records handed out. */
    int (*scan)(void *self, struct sk_call *call, enum sk_scan_kind kind, int64_t before_ms, int limit, sk_scan_fn fn,
                void *arg, struct sk_error *err);
    /* Running records with lastActiveAt < before_ms, oldest first, from *cursor on. Leaves in *cursor where to go on:
     * behind the last one handed out, all zero when nothing is left. Records that do not move are handed out once per
     * walk. A call that would take too long ends early, with fewer than `limit` or none; the cursor has moved all the
     * same. On error *cursor is as it was. */
    int (*scan_idle)(void *self, struct sk_call *call, struct sk_idle_cursor *cursor, int64_t before_ms, int limit,
                     sk_scan_fn fn, void *arg, struct sk_error *err);
    /* Reads several records at once (parked commands): calls fn for those that exist. count <= 1024. */
    int (*get_many)(void *self, struct sk_call *call, const char (*sandbox_ids)[SK_SANDBOX_ID_SIZE], int count,
                    sk_scan_fn fn, void *arg, struct sk_error *err);
    /* One updateMany that pulls events by id from the named records. */
    int (*outbox_pull)(void *self, const char (*sandbox_ids)[SK_SANDBOX_ID_SIZE], int sandbox_count,
                       const char (*event_ids)[SK_ULID_SIZE], int event_count, struct sk_error *err);
    /* Applies events to the timeline (idempotent per event: setting fields by operation id), in one bulk write, and
     * trims sandboxes to SK_TIMELINE_KEEP. */
    int (*timeline_apply)(void *self, const struct sk_event *events, int count, struct sk_error *err);
    /* Newest first; *count on entry is the capacity (<= SK_TIMELINE_KEEP). */
    int (*timeline_list)(void *self, struct sk_call *call, const char *sandbox_id, struct sk_timeline_entry *out,
                         int *count, struct sk_error *err);
    /* The operations of a sandbox that were done for these commands (1 … 1,024), newest first, at most *count (<=
     * SK_TIMELINE_KEEP). Those that have not ended have no result here: a later operation is not looked at. */
    int (*timeline_of_commands)(void *self, struct sk_call *call, const char *sandbox_id,
                                const char (*command_ids)[SK_COMMAND_ID_SIZE], int command_count,
                                struct sk_timeline_entry *out, int *count, struct sk_error *err);

    int (*command_find)(void *self, struct sk_call *call, const char *sandbox_id, const char *command_id,
                        struct sk_command_record *out, bool *found, struct sk_error *err);
    /* The same for many commands of one sandbox (at most SK_COMMANDS_FIND_MAX) in one question: `fn` gets those that
     * have a result, in no order; it may take record->result by setting it to NULL. False stops. */
    int (*command_find_many)(void *self, struct sk_call *call, const char *sandbox_id, const char *const *command_ids,
                             int count, bool (*fn)(void *arg, struct sk_command_record *record), void *arg,
                             struct sk_error *err);
    /* Stores results in one insertMany (unordered); an id that is there already is left as it is, and told by
     * record->existed (also when it was this very call's first attempt: look with command_find). */
    int (*command_put)(void *self, const struct sk_command_record *records, int count, struct sk_error *err);

    /* Takes one slot of `scope` for the sandbox; idempotent. *granted = false when all `limit` slots are held. */
    int (*quota_reserve)(void *self, struct sk_call *call, const char *scope, int64_t limit, const char *sandbox_id,
                         bool *granted, struct sk_error *err);
    int (*quota_release)(void *self, const char *scope, const char *sandbox_id, struct sk_error *err); /* idempotent */
    /* Releases slots of `scope` (NULL = all scopes that were ever reserved in) that are older than grace_ms and whose
     * sandbox has no record in a status that counts; takes slots for records that count but hold none, beyond any
     * limit. Returns how many were changed in *changed. */
    int (*quota_recount)(void *self, struct sk_call *call, const char *scope, int64_t grace_ms, int64_t *changed,
                         struct sk_error *err);

    /* For the doctor: held slots of all scopes after the one that `after` names ("" = from the first), at most `limit`.
     * `position` of the last one leads on; no call of fn: that was all. */
    int (*quota_list)(void *self, struct sk_call *call, const char *after, int limit,
                      bool (*fn)(void *arg, const struct sk_quota_holding *holding), void *arg, struct sk_error *err);

    int (*source_state)(void *self, struct sk_call *call, const struct sk_identity *identity,
                        struct sk_source_state *out, struct sk_error *err);

    /* Keyset pagination: `cursor` is opaque text from a former page or NULL; *next is malloc'd or NULL at the end. Only
     * *next says whether there is more: a page that would take too long ends early and may hold fewer records than
     * `limit` (1 … 500), even none. invalid_request for a cursor that is not ours or belongs to another filter or sort.
     */
    int (*list)(void *self, struct sk_call *call, const struct sk_list_filter *filter, enum sk_list_sort sort,
                const char *cursor, int limit, sk_scan_fn fn, void *arg, char **next, struct sk_error *err);
    /* May be old by up to 20 times what counting costs (milliseconds for few records). `malformed` counts unknown
     * statuses and transitional records of the wrong shape; `pending_outbox` records, not events. */
    int (*stats)(void *self, struct sk_call *call, struct sk_stats *out, struct sk_error *err);
    /* Creates indexes; idempotent (FastGPT's own of reference §1.4 and ours). */
    int (*setup)(void *self, struct sk_call *call, struct sk_error *err);
    int (*ping)(void *self, struct sk_call *call, struct sk_error *err);
};

/* ---- Mongo ---------------------------------------------------------------------------------- */
struct sk_store_mongo;
struct sk_store_mongo_config {
    const char *uri;                                 /* names the database (default "fastgpt") */
    int pool_size;                                   /* clients, made as needed; <= 16 against the embedded server */
    const char *apps_collection, *skills_collection; /* source check; names of FastGPT's collections */
    bool source_check;
};
/* The driver, once in a process, before its first thread; mongoc_cleanup() at its end. Its own words go to the log, and
 * the file of its counters is taken out of /dev/shm: named by the pid, it would outlive a kill -9, and the next process
 * of that pid (in a pod: the restarted container) would say so on stderr before it can log. */
void sk_store_mongo_init(void);
/* Needs sk_store_mongo_init() to have run. Does not connect: the first call does. A server that is away is waited for
 * up to serverSelectionTimeoutMS of the URI (default 3 s) or the call's deadline; a refused connect costs nothing more,
 * as the driver's background monitors see the server come. Defaults where the URI says nothing: w=majority (with
 * majority reads), connectTimeoutMS 2000, socketTimeoutMS 10000, waitQueueTimeoutMS 10000. retryWrites: a write that
 * certainly had no effect is sent once more. Errors: invalid_request (URI, pool size, names). Registers metrics
 * sandkeep_store_*.
 */
SK_MUST_USE int sk_store_mongo_new(const struct sk_store_mongo_config *config, const struct sk_sched *sched,
                                   struct sk_store *out, struct sk_error *err);
void sk_store_mongo_free(struct sk_store *store); /* no call may be running */

#endif
