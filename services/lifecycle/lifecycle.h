/* SPDX-License-Identifier: Apache-2.0
 *
 * The heart of sk-lifecycle without any I/O of its own: one `struct lc_replica` is one incarnation of the service. It
 * sees the world only through the seams (sched, store, lease, bus, provider), so that main.c runs it on threads and a
 * libuv loop, and the simulator runs several of them on fibres with virtual time: the very same code.
 *
 *   deliveries ──> lc_dispatch_delivery ──> per-sandbox queue (parked, coalesced) ──> job queue ──> lc_worker_main
 *                        ▲   ▲                                                            │ straight-line operations
 *            lc_dispatch_tick │ lc_dispatch_done <────────────── done queue <─────────────┤ (op_*.c through engine.c)
 *                             │                                                           ├─> heartbeat table ──>
 * lc_heartbeat_main lifecycle events (hints), polls                                              ├─> outbox hints
 * ─────> lc_relay_main └─> results ──────────> lc_finisher_main lc_sweep_main finds what is due (idle, stale, pending
 * outboxes, orphans, quota) and posts internal jobs.
 *
 * Threading: everything named lc_dispatch_* is called from one thread (the loop) only and never blocks; the *_main
 * functions block and each runs on a thread (fibre) of its own until lc_replica_stop; shared tables have a mutex that
 * is never held across a seam call. */
#ifndef SK_LIFECYCLE_LIFECYCLE_H
#define SK_LIFECYCLE_LIFECYCLE_H

#include "common/bus/bus.h"
#include "common/instance/instance.h"
#include "common/lease/lease.h"
#include "common/provider/provider.h"
#include "common/store/store.h"

struct lc_replica;

/* Every bound and period, in one place; main.c fills it from the environment, the simulator from the seed. */
struct lc_settings {
    char replica_id[SK_OWNER_SIZE]; /* unique per incarnation: "<host>:<pid>:<random>" */
    char subject_prefix[64];
    int workers;                          /* worker threads: 64 */
    int park_limit;                       /* parked commands per sandbox: 1 024; beyond: sandbox_busy */
    int park_body_max;                    /* bytes of a parked command: 1 024 */
    int total_limit;                      /* commands held by this replica: 20 000 */
    int64_t default_deadline_ms;          /* 10 000 */
    int64_t in_progress_every_ms;         /* 10 000; must be < AckWait / 2 */
    int64_t poll_parked_ms;               /* 1 000 */
    int64_t heartbeat_ms;                 /* 5 000 */
    int64_t lease_ttl_ms;                 /* 15 000 */
    int64_t lease_renew_ms;               /* 2 500 */
    int64_t takeover_ms;                  /* 30 000; >= 3 heartbeats and > lease */
    int64_t stuck_grace_ms;               /* 10 000 after a phase deadline: then /livez fails */
    int64_t fastgpt_short_stale_ms;       /* 15 min: provisioning, stopping written by FastGPT */
    int64_t fastgpt_long_stale_ms;        /* 45 min: the other transitional states */
    int retry_limit;                      /* 8 tries, then blocked */
    int64_t retry_first_ms, retry_max_ms; /* 1 000 doubling to 60 000, +-20 % jitter */
    int command_failures_limit;           /* failures that are the command's own before the dead letter: 20 */
    int relay_batch;                      /* 300 events */
    int64_t relay_window_ms;              /* 20 */
    int64_t relay_poll_ms;                /* 1 000 */
    int64_t publish_timeout_ms;           /* 5 000 */
    int64_t stale_sweep_ms, idle_sweep_ms, orphan_sweep_ms, quota_recount_ms; /* 2 s, 30 s, 5 min, 10 min */
    int64_t orphan_grace_ms;                                                  /* 10 min */
    bool orphan_remove;                                                       /* false: report only */
    int64_t idle_stop_ms;                 /* AGENT_SANDBOX_SUSPEND_MINUTES 60; 0 = off */
    int idle_look_max;                    /* records looked at by one idle sweep: 65 536; the next one goes on */
    int64_t quota_global, quota_per_team; /* 0 = unlimited */
    int64_t quota_grace_ms;               /* 60 000: a slot younger than this is never recounted away */
    int64_t ready_timeout_ms;             /* waiting for the command channel of a new sandbox: 300 000 */
    int64_t phase_deadline_scale_pct;     /* 100; test profiles shorten the deadlines of states.def */
    struct sk_limit default_limit;        /* 1 CPU, 2 048 MiB, 1 Gi */
    struct sk_image default_image;
    char volume_prefix[64];        /* fastgpt-session */
    char mount_path[SK_PATH_SIZE]; /* /workspace */
};

/* The documented defaults, for programs and tests to start from; replica_id, providers' names and image stay empty. */
void lc_settings_defaults(struct lc_settings *settings);

struct lc_seams {
    const struct sk_sched *sched;
    const struct sk_store *store;
    const struct sk_lease_service *lease;
    const struct sk_bus *bus;
    const struct sk_provider *providers; /* by name; the first is the default for new records */
    int provider_count;
};

/* Counters for metrics, `sometimes` assertions of the simulator and tests. One X-macro: LC_COUNTERS in counters.def. */
enum lc_counter {
#define LC_COUNTER(name, wire, help) LC_COUNT_##name,
#include "services/lifecycle/counters.def"
#undef LC_COUNTER
    LC_COUNTER_COUNT
};
const char *lc_counter_name(enum lc_counter counter); /* the wire name */

/* What is going on now, for metrics and /readyz. */
struct lc_gauges {
    int64_t held;             /* commands pulled and not acknowledged */
    int64_t parked_sandboxes; /* sandboxes whose commands wait for something */
    int64_t jobs;             /* waiting for a worker or running */
    int64_t operations;       /* claimed and running here */
    int64_t stuck_workers;    /* of them: did not come back from a cancelled call in time; /livez fails meanwhile */
    int64_t finishing;        /* results on their way to the store and the requester */
    int64_t relay_pending;    /* events not yet published and pulled */
    bool store_down, lease_down;
};

/* How an operation ended in this replica, for metrics. */
enum lc_ending {
    LC_ENDED_COMPLETED,
    LC_ENDED_COMPENSATED,
    LC_ENDED_RETRIED, /* a failed try, to be continued */
    LC_ENDED_BLOCKED,
    LC_ENDED_HANDED_OVER,
    LC_ENDED_LOST,
};

/* Called (any thread) when the dispatcher's thread should look at its inbox: uv_async_send in production. */
struct lc_hooks {
    void (*wake_dispatcher)(void *arg);
    void (*stuck_worker)(void *arg, const char *sandbox_id, const char *phase); /* did not come back; NULL = none */
    void (*counted)(void *arg, enum lc_counter counter, int64_t delta);         /* NULL = none */
    void (*ended)(void *arg, enum sk_op op, enum lc_ending ending, int64_t duration_us); /* NULL = none */
    /* The stream has confirmed an event, that long after the write that made it; NULL = none. */
    void (*published)(void *arg, int64_t delay_us);
    /* A worker returns: frees what the providers left in call->transport. NULL = nothing is left there. */
    void (*worker_end)(void *arg, struct sk_call *call);
    void *arg;
};

/* Copies the settings; seams and hooks must outlive the replica. NULL only when out of memory. */
struct lc_replica *lc_replica_new(const struct lc_settings *settings, const struct lc_seams *seams,
                                  const struct lc_hooks *hooks);
/* Drain, step 1 (any thread): no new deliveries are taken, queued ones are nak'd, running operations are called back
 * (cancel), hand over by CAS (owner removed, phase kept), release their lease; the wake hint is published. */
void lc_replica_drain(struct lc_replica *replica);
/* True when no job runs, no result waits and no outbox hint is pending. */
bool lc_replica_drained(struct lc_replica *replica);
/* Makes all *_main functions return soon; step 2 of a drain, or of a hard stop. */
void lc_replica_stop(struct lc_replica *replica);
/* After every *_main returned. Frees everything; deliveries still held are dropped without ack (they come again). */
void lc_replica_free(struct lc_replica *replica);
void lc_replica_gauges(struct lc_replica *replica, struct lc_gauges *out); /* any thread */
/* What the replica's own calls told about a dependency since the last question; one thread asks. GOOD: one was answered
 * and none after it was not, so there is no need to ask the dependency itself. Never blocks. */
enum lc_sign { LC_SIGN_NONE, LC_SIGN_GOOD, LC_SIGN_BAD };
enum lc_sign lc_replica_store_sign(struct lc_replica *replica);
enum lc_sign lc_replica_lease_sign(struct lc_replica *replica);
int64_t lc_replica_count(const struct lc_replica *replica, enum lc_counter counter);

/* ---- the dispatcher: one thread, never blocks --------------------------------------------------- */
/* Takes the delivery. Bad input is answered, rejected and dead-lettered from here (through the finisher). */
void lc_dispatch_delivery(struct lc_replica *replica, struct sk_delivery *delivery);
/* Drains the inbox: finished jobs, internal jobs of sweeps, poll answers. Call after wake_dispatcher. */
void lc_dispatch_inbox(struct lc_replica *replica);
/* Deadlines, in-progress acks, parked polls, retry timers. Call every 100 ms at most; returns ms until it is next due.
 */
int64_t lc_dispatch_tick(struct lc_replica *replica);
/* A lifecycle event of this sandbox was seen on the bus: parked commands look again. NULL = look at all (wake hint). */
void lc_dispatch_hint(struct lc_replica *replica, const char *sandbox_id);
/* False: no command waits for anything, hints need not be handed over. Any thread. */
bool lc_dispatch_hint_wanted(const struct lc_replica *replica);
/* How many more deliveries may come now (back-pressure); any thread. */
int lc_dispatch_want(struct lc_replica *replica);

/* ---- blocking mains: one thread (fibre) each, several for workers --------------------------------------------------
 */
void lc_worker_main(struct lc_replica *replica);    /* runs jobs; start settings.workers of them (lazily in main.c) */
bool lc_worker_wanted(struct lc_replica *replica);  /* jobs wait and every started worker is busy */
void lc_heartbeat_main(struct lc_replica *replica); /* heartbeats of running operations, phase deadlines */
void lc_lease_main(struct lc_replica *replica);     /* lease renewals of running operations, phase deadlines */
void lc_relay_main(struct lc_replica *replica);     /* outbox -> PubAcks -> timeline -> pull */
void lc_finisher_main(
    struct lc_replica *replica); /* results: store (batched), publish command.*, reply, double-ack; dead letters */
void lc_sweep_main(struct lc_replica *replica); /* stale, idle, orphans, quota recount */
void lc_poller_main(
    struct lc_replica *replica); /* one find by $in for all parked sandboxes, when the dispatcher asks */

/* ---- requests ----------------------------------------------------------------------------------- */
/* Answers one RPC (`get`, `find`, `list`, `exists`, `status`, `timeline`, `stats`) with a malloc'd JSON reply
 * ({"ok":…}). Blocks; any thread; never NULL except out of memory. */
char *lc_rpc(struct lc_replica *replica, const char *method, const char *body, size_t len);

#endif
