/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to common/store: the Mongo store's connections, commands and error mapping. Nothing outside this folder
 * includes it.
 *
 *   op begin -> client from the bounded pool -> commands (one retry when certainly without effect) -> op end
 *
 * Clients are "pooled" ones of the driver: they share one background monitor per server, so a refused connect never
 * stalls a caller for the 5 s that a single client takes, and a failover is seen once for all. Each connection is
 * wrapped in a stream of ours (stream.c), which knows three things the driver does not tell: whether a command has left
 * in full (the difference between FAILED and UNKNOWN), the deadline of the call, and how to end a blocked read at once.
 */
#ifndef SK_STORE_MONGO_H
#define SK_STORE_MONGO_H

#include "common/base/list.h"
#include "common/metrics/metrics.h"
#include "common/store/store.h"

#include <mongoc/mongoc.h>
#include <pthread.h>

/* Events handed out with one record; a record may hold a few more than SK_OUTBOX_MAX, and the rest comes with the next
 * look. */
#define SK_MONGO_EVENTS_MAX (SK_OUTBOX_MAX + 64)

#define SK_MONGO_CLIENTS_MAX 64

/* Bounds; those that the URI can set take its value instead. */
#define SK_MONGO_CONNECT_MS     2000   /* connectTimeoutMS */
#define SK_MONGO_SOCKET_MS      10000  /* socketTimeoutMS: one answer */
#define SK_MONGO_SELECTION_MS   3000   /* serverSelectionTimeoutMS: waiting for a writable server */
#define SK_MONGO_MONITOR_MS     2000   /* heartbeatFrequencyMS */
#define SK_MONGO_SELECT_STEP_MS 200    /* one look of the driver within that time: how fast a cancel is seen */
#define SK_MONGO_HANDSHAKE_MS   250    /* a handshake younger than this is not cut off: see stream.c */
#define SK_MONGO_POOL_WAIT_MS   10000  /* waiting for a client of the pool (waitQueueTimeoutMS) */
#define SK_MONGO_HAND_OVER_US   250000 /* who has waited so long for a client is served first */
#define SK_MONGO_SETUP_MS       600000 /* building one index over existing documents */

enum sk_mongo_collection {
    SK_MONGO_INSTANCES,
    SK_MONGO_OPERATIONS,
    SK_MONGO_COMMANDS,
    SK_MONGO_QUOTA,
    SK_MONGO_APPS,
    SK_MONGO_SKILLS,
    SK_MONGO_COLLECTION_COUNT
};

/* Kinds of calls, for the metric's label. */
enum sk_mongo_kind {
    SK_MONGO_GET,
    SK_MONGO_INSERT,
    SK_MONGO_CAS,
    SK_MONGO_REMOVE,
    SK_MONGO_HEARTBEAT,
    SK_MONGO_SCAN,
    SK_MONGO_OUTBOX,
    SK_MONGO_TIMELINE,
    SK_MONGO_COMMAND,
    SK_MONGO_QUOTA_CALL,
    SK_MONGO_SOURCE,
    SK_MONGO_LIST,
    SK_MONGO_STATS,
    SK_MONGO_SETUP,
    SK_MONGO_PING,
    SK_MONGO_KIND_COUNT
};

struct sk_mongo_stream;

/* One client of the driver with everything that belongs to a call in progress. Used by one thread at a time; `streams`
 * and `interrupted` are also touched by whoever cancels the call. */
struct sk_mongo_client {
    struct sk_store_mongo *store;
    mongoc_client_t *driver;
    pthread_mutex_t lock;            /* streams */
    struct sk_mongo_stream *streams; /* open connections, one per server */
    atomic_bool interrupted;         /* the call was cancelled or its deadline passed while it was blocked */
    struct sk_call *call;            /* of the call in progress, or NULL */
    int64_t timeout_ms;              /* of one answer */
    unsigned sent;                   /* commands that left in full since the call began */
    struct sk_mongo_client *next_free;
};

struct sk_mongo_waiter {
    struct sk_list link;
    pthread_cond_t changed;
    int64_t since_us;
    struct sk_mongo_client *client; /* handed over by a release */
    bool cancelled;
};

/* Reads by one unique key: see combine.c. */
#define SK_MONGO_COMBINE_MAX 64 /* keys of one command; who comes behind them waits for the next */
struct sk_mongo_combiner {
    pthread_mutex_t lock;
    struct sk_list waiting;
    bool busy; /* somebody asks; since then */
    int64_t since_us;
    enum sk_mongo_collection collection;
    enum sk_mongo_kind kind;
    const char *field;
};

/* How wide a window should be and where to begin: see window.h. 0 = not known yet; wrong ones cost time only. */
struct sk_mongo_hints {
    atomic_llong oldest_running; /* lastActiveAt of the oldest running record */
    atomic_llong oldest_active;  /* of the oldest record */
    atomic_llong idle_width;     /* windows of the idle scan */
    atomic_llong width[4];       /* by enum sk_list_sort: what a page of all records spanned */
};

struct sk_store_mongo {
    const struct sk_sched *sched;
    mongoc_uri_t *uri;
    mongoc_client_pool_t *pool;
    char database[64];
    char names[SK_MONGO_COLLECTION_COUNT][128];
    bool source_check;
    bool retry_writes, retry_reads;
    int64_t selection_ms, pool_wait_ms, socket_ms;
    atomic_bool selectable; /* the monitors know a writable server */

    pthread_mutex_t lock; /* the pool */
    struct sk_mongo_client clients[SK_MONGO_CLIENTS_MAX];
    int client_count, client_limit;
    struct sk_mongo_client *free_clients;
    struct sk_list waiters; /* of sk_mongo_waiter */

    struct sk_mongo_combiner records, results; /* by sandboxId, by _id */
    struct sk_mongo_hints hints;
    int64_t list_budget_us, scan_budget_us; /* how long one page may take before it ends early */

    pthread_mutex_t stats_lock; /* the last statistics, see stats.c */
    struct sk_stats stats;
    int64_t stats_at_us, stats_cost_us;

    pthread_mutex_t source_lock; /* what is known about the source collections, see source.c */
    int64_t source_checked_us[2];
    bool source_exists[2];
};

/* One call of the store: from begin to end it holds a client. */
struct sk_mongo_op {
    struct sk_store_mongo *store;
    struct sk_mongo_client *client;
    struct sk_call *call;
    enum sk_mongo_kind kind;
    int64_t started_us;
    bool idempotent; /* may be sent again even when its outcome is unknown */
    bool resent;     /* some command left more than once: "not matched" proves nothing */
};

/* What the server said to a write. */
struct sk_mongo_written {
    int64_t matched;  /* n */
    int64_t modified; /* nModified */
    bool duplicate;   /* some document was refused by a unique index; the others were written */
};

/* ---- connections (client.c) ----------------------------------------------------------------- */
/* Takes a client, waiting for one if all are out. On success sk_mongo_end must follow. */
SK_MUST_USE int sk_mongo_begin(struct sk_store_mongo *store, struct sk_call *call, enum sk_mongo_kind kind,
                               struct sk_mongo_op *op, struct sk_error *err);
void sk_mongo_end(struct sk_mongo_op *op);
SK_MUST_USE int sk_mongo_connect(struct sk_store_mongo *store, const struct sk_store_mongo_config *config,
                                 struct sk_error *err);
void sk_mongo_disconnect(struct sk_store_mongo *store);

/* ---- commands (command.c) ------------------------------------------------------------------- */

/* Called for one document after another; false stops. */
typedef bool (*sk_mongo_doc_fn)(void *arg, const bson_t *doc);
/* Runs a read command; *reply is always initialised (destroy it). */
SK_MUST_USE int sk_mongo_read(struct sk_mongo_op *op, const bson_t *command, bson_t *reply, struct sk_error *err);
/* The same for commands about the server itself (ping, listIndexes, listCollections). */
SK_MUST_USE int sk_mongo_ask(struct sk_mongo_op *op, const bson_t *command, bson_t *reply, struct sk_error *err);
/* Runs a write command ("update", "insert", "delete", "findAndModify" …); its errors are those of the store's contract.
 * `reply` may be NULL. */
SK_MUST_USE int sk_mongo_write(struct sk_mongo_op *op, const bson_t *command, struct sk_mongo_written *written,
                               bson_t *reply, struct sk_error *err);
/* Same for createIndexes and the like; *code is the server's code when it refused, else 0. */
SK_MUST_USE int sk_mongo_admin(struct sk_mongo_op *op, const bson_t *command, int *code, struct sk_error *err);
int sk_mongo_reply_code(const bson_t *reply); /* the server's code in a failed answer, 0 = none */
/* Which documents of an unordered insert a unique index refused: sets refused[index], for indexes below count. */
void sk_mongo_mark_refused(const bson_t *reply, bool *refused, int count);
/* Calls fn for each document of the first batch of a cursor reply (listIndexes, listCollections, aggregate). */
void sk_mongo_first_batch(const bson_t *reply, sk_mongo_doc_fn fn, void *arg);
/* Finds documents and calls fn for each; fn returns false to stop. `opts` as for mongoc_collection_find_with_opts
 * (may be NULL); all batches are read while the client is held. */
SK_MUST_USE int sk_mongo_find(struct sk_mongo_op *op, enum sk_mongo_collection collection, const bson_t *filter,
                              const bson_t *opts, sk_mongo_doc_fn fn, void *arg, struct sk_error *err);
/* Finds at most one document by a filter on a unique key and calls fn for it; *found tells. `projection` may be NULL.
 */
SK_MUST_USE int sk_mongo_find_one(struct sk_mongo_op *op, enum sk_mongo_collection collection, const bson_t *filter,
                                  const bson_t *projection, sk_mongo_doc_fn fn, void *arg, bool *found,
                                  struct sk_error *err);
/* The same through a combiner: fn may be called by another thread that asked for this caller, too, while this one
 * waits. Without an operation of its own around it. */
SK_MUST_USE int sk_mongo_find_by_key(struct sk_store_mongo *store, struct sk_mongo_combiner *combiner,
                                     struct sk_call *call, const char *key, sk_mongo_doc_fn fn, void *arg, bool *found,
                                     struct sk_error *err);
void sk_mongo_combiner_init(struct sk_mongo_combiner *combiner, enum sk_mongo_collection collection,
                            enum sk_mongo_kind kind, const char *field);
void sk_mongo_combiner_fini(struct sk_mongo_combiner *combiner);
void sk_mongo_command_metrics(void);

/* ---- streams (stream.c) --------------------------------------------------------------------- */
mongoc_stream_t *sk_mongo_stream_open(const mongoc_uri_t *uri, const mongoc_host_list_t *host, void *client,
                                      bson_error_t *error);
/* The TCP (or Unix) connection below it (socket.c); NULL with *error set. *descriptor stays the stream's; *established
 * (owned by the caller, outlives the stream) tells when the handshake is over. */
mongoc_stream_t *sk_mongo_socket_open(struct sk_mongo_client *client, const mongoc_host_list_t *host,
                                      int32_t timeout_ms, const atomic_bool *established, int *descriptor,
                                      bson_error_t *error);
/* Ends whatever a call is blocked on; called by sk_call_cancel from any thread. */
void sk_mongo_stream_interrupt(void *client);
/* A connection was shut down by an interrupt and still stands in the driver's table. */
bool sk_mongo_stream_broken(struct sk_mongo_client *client);

/* ---- small helpers -------------------------------------------------------------------------- */
static inline struct sk_store_mongo *sk_mongo_self(void *self)
{
    return self;
}
/* The operations, by file; store.h says what they promise. */
int sk_mongo_get(void *self, struct sk_call *call, const char *sandbox_id, struct sk_instance *out, bool *found,
                 struct sk_error *err);
int sk_mongo_find_identity(void *self, struct sk_call *call, const struct sk_identity *identity,
                           struct sk_instance *out, bool *found, struct sk_error *err);
int sk_mongo_insert(void *self, struct sk_call *call, const struct sk_instance *after, const struct sk_event *events,
                    int event_count, bool *created, struct sk_error *err);
enum sk_cas_result sk_mongo_cas(void *self, struct sk_call *call, const struct sk_instance *before,
                                const struct sk_instance *after, const struct sk_event *events, int event_count,
                                const struct sk_cas_guard *guard, struct sk_error *err);
enum sk_cas_result sk_mongo_remove(void *self, struct sk_call *call, const struct sk_instance *before,
                                   struct sk_error *err);
int sk_mongo_heartbeat(void *self, const char *owner, const struct sk_heartbeat *items, int count, int64_t now_ms,
                       struct sk_error *err);
int sk_mongo_get_many(void *self, struct sk_call *call, const char (*sandbox_ids)[SK_SANDBOX_ID_SIZE], int count,
                      sk_scan_fn fn, void *arg, struct sk_error *err);
int sk_mongo_outbox_pull(void *self, const char (*sandbox_ids)[SK_SANDBOX_ID_SIZE], int sandbox_count,
                         const char (*event_ids)[SK_ULID_SIZE], int event_count, struct sk_error *err);
int sk_mongo_scan(void *self, struct sk_call *call, enum sk_scan_kind kind, int64_t before_ms, int limit, sk_scan_fn fn,
                  void *arg, struct sk_error *err);
int sk_mongo_scan_idle(void *self, struct sk_call *call, struct sk_idle_cursor *cursor, int64_t before_ms, int limit,
                       sk_scan_fn fn, void *arg, struct sk_error *err);
int sk_mongo_list(void *self, struct sk_call *call, const struct sk_list_filter *filter, enum sk_list_sort sort,
                  const char *cursor, int limit, sk_scan_fn fn, void *arg, char **next, struct sk_error *err);
int sk_mongo_stats(void *self, struct sk_call *call, struct sk_stats *out, struct sk_error *err);
int sk_mongo_timeline_apply(void *self, const struct sk_event *events, int count, struct sk_error *err);
int sk_mongo_timeline_list(void *self, struct sk_call *call, const char *sandbox_id, struct sk_timeline_entry *out,
                           int *count, struct sk_error *err);
int sk_mongo_timeline_of_commands(void *self, struct sk_call *call, const char *sandbox_id,
                                  const char (*command_ids)[SK_COMMAND_ID_SIZE], int command_count,
                                  struct sk_timeline_entry *out, int *count, struct sk_error *err);
int sk_mongo_command_find(void *self, struct sk_call *call, const char *sandbox_id, const char *command_id,
                          struct sk_command_record *out, bool *found, struct sk_error *err);
int sk_mongo_command_find_many(void *self, struct sk_call *call, const char *sandbox_id, const char *const *command_ids,
                               int count, bool (*fn)(void *arg, struct sk_command_record *record), void *arg,
                               struct sk_error *err);
int sk_mongo_command_put(void *self, const struct sk_command_record *records, int count, struct sk_error *err);
int sk_mongo_quota_reserve(void *self, struct sk_call *call, const char *scope, int64_t limit, const char *sandbox_id,
                           bool *granted, struct sk_error *err);
int sk_mongo_quota_release(void *self, const char *scope, const char *sandbox_id, struct sk_error *err);
int sk_mongo_quota_recount(void *self, struct sk_call *call, const char *scope, int64_t grace_ms, int64_t *changed,
                           struct sk_error *err);
int sk_mongo_quota_list(void *self, struct sk_call *call, const char *after, int limit,
                        bool (*fn)(void *arg, const struct sk_quota_holding *holding), void *arg, struct sk_error *err);
int sk_mongo_source_state(void *self, struct sk_call *call, const struct sk_identity *identity,
                          struct sk_source_state *out, struct sk_error *err);
int sk_mongo_setup(void *self, struct sk_call *call, struct sk_error *err);
int sk_mongo_ping(void *self, struct sk_call *call, struct sk_error *err);

#endif
