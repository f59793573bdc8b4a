/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of lc_core share: the replica and its tables, held commands, jobs, and the context of one running job.
 *
 * Who may touch what: `struct lc_queue` and the lists of held commands belong to the dispatcher's thread alone. A job
 * and the commands in it belong to the worker while it runs, except for the two ways in from outside: the cancel flag
 * and `replied`. A finished command belongs to the finisher until it comes back through the inbox. Every table with a
 * lock says so; no lock is held across a seam call (the scheduler is a seam too: clocks and gates come before or
 * after). */
#ifndef SK_LIFECYCLE_INTERNAL_H
#define SK_LIFECYCLE_INTERNAL_H

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/faults/faults.h"
#include "common/log/log.h"
#include "proto/subjects.h"
#include "services/lifecycle/command.h"
#include "services/lifecycle/lifecycle.h"
#include "services/lifecycle/mutations.h"

#include <pthread.h>

#define LC_MEMBERS_MAX        1024 /* commands answered by one job */
#define LC_ROUNDS_MAX         16   /* looks at a record that keeps changing before a job gives way to others */
#define LC_AGAIN_FIRST_MS     20   /* pause before a job looks again at a record it lost, doubling */
#define LC_AGAIN_MAX_MS       2000
#define LC_OUTAGE_FIRST_MS    100 /* pause before a job tries again after an outage of a dependency, doubling */
#define LC_OUTAGE_MAX_MS      2000
#define LC_RETRY_AFTER_MAX_MS (5 * 60 * 1000) /* a provider's Retry-After is honoured up to here */
#define LC_COMMIT_MS          10000           /* one call to the store or the lease service */
#define LC_DRAIN_CALL_MS      500             /* the same while draining (contract/service.md §1) */
#define LC_SOURCE_WAIT_MS     1000            /* waiting for the source lease: it is held for milliseconds */
#define LC_FINISH_BATCH       256             /* results stored in one write */
#define LC_FINISH_SHARE       16              /* of one sandbox among them; what is above is a crowd */
#define LC_CROWD_SLICES       64              /* a slice of a crowd is this part of it, and at least a share */
#define LC_CROWD_PAUSE_MS     20              /* between two slices of a crowd while others are at work */
#define LC_HINTS_MAX          4096            /* events waiting for the relay in memory; more are found by its scan */
#define LC_OBSERVED_MAX       16384           /* transitional records watched for a silent owner */
#define LC_SCAN_LIMIT         4096            /* records found by one sweep */
#define LC_HISTORIES_MAX      1024            /* sandboxes whose commands are remembered, see history.c */
#define LC_HISTORY_COMMANDS   128             /* of one sandbox; more are asked for */
#define LC_IDLE_PAGE          1024            /* idle records asked for at once */
#define LC_IDLE_LOOK_MAX      65536           /* looked at by one idle sweep; the next one goes on behind them */

/* ---- answers --------------------------------------------------------------------------------------------------------
 */
/* The operation that is in the way: shown in sandbox_busy. */
struct lc_busy {
    bool present;
    enum sk_status status;
    enum sk_op type;
    char operation_id[SK_UUID_SIZE];
    char phase[32];
    char command_id[SK_COMMAND_ID_SIZE];
};

/* What a job found, shared by all commands it answers; reference-counted. */
struct lc_answer {
    atomic_int references;
    bool ok;
    enum sk_status status; /* NONE: no record */
    int64_t epoch;
    char operation_id[SK_UUID_SIZE]; /* "" = nothing was done */
    char *instance;                  /* public view as JSON text, NULL = no record */
    struct sk_error err;
    struct lc_busy busy;
};
struct lc_answer *lc_answer_new(void); /* NULL when out of memory */
struct lc_answer *lc_answer_keep(struct lc_answer *answer);
void lc_answer_drop(struct lc_answer *answer); /* NULL is fine */
/* The result message (contract/messaging.md §2) for one command, malloc'd; NULL when out of memory. */
char *lc_answer_text(const struct lc_answer *answer, const struct lc_command *command);

/* ---- held commands ------------------------------------------------------------------------------ */
enum lc_finish { LC_FINISH_RESULT, LC_FINISH_REJECT, LC_FINISH_DEAD, LC_FINISH_NAK };

/* One command this replica pulled and did not acknowledge yet. */
struct lc_held {
    struct sk_list link;    /* waiting in its queue, member of a job, queue->finishing */
    struct sk_list all;     /* replica->all while the dispatcher cares for its deadline */
    struct sk_list finish;  /* the finisher's list, then the inbox */
    struct lc_queue *queue; /* NULL: refused, never queued */
    struct lc_command command;
    struct sk_delivery *delivery;
    int64_t deadline_us, in_progress_us;
    bool running;        /* member of a job */
    bool parked;         /* counted once */
    bool own;            /* an operation that it started goes on */
    bool looked_up;      /* its stored result was looked for */
    atomic_bool replied; /* the requester got its final message */
    int failures;        /* failures that are the command's own */
    char *stored;        /* result of an earlier run of it, malloc'd */
    bool recalled;       /* `stored` comes from the timeline and is not in sandkeep_commands yet */
    /* For the finisher. */
    enum lc_finish kind;
    bool crowd; /* more of its sandbox than their share were on their way already */
    struct lc_answer *answer;
    bool conflict; /* the id is taken by another meaning: answered, never stored */
    char *result;  /* text, malloc'd, made by the finisher */
    bool ok, store, repeated;
    uint64_t sequence; /* of the delivery, in the stream */
    bool is_stored, is_published, is_replied;
};

/* ---- jobs --------------------------------------------------------------------------------------- */
enum lc_job_kind {
    LC_JOB_COMMANDS,
    LC_JOB_RECOVER, /* continue an operation whose owner is silent, or whose next try is due */
    LC_JOB_IDLE_STOP,
    LC_JOB_SETTLE, /* remove provider objects that a finished operation left behind */
    LC_JOB_KIND_COUNT
};

enum lc_cancel { LC_CANCEL_NONE = 0, LC_CANCEL_DEADLINE, LC_CANCEL_OVERTAKEN, LC_CANCEL_DRAIN, LC_CANCEL_STOP };

enum lc_outcome {
    LC_OUTCOME_DONE,        /* answer: ok */
    LC_OUTCOME_FAILED,      /* answer: the error */
    LC_OUTCOME_BUSY,        /* somebody else's operation: wait until it ends */
    LC_OUTCOME_RETRY,       /* the operation goes on at its next attempt */
    LC_OUTCOME_AGAIN,       /* the record is not what it was: look again soon */
    LC_OUTCOME_OUTAGE,      /* store, lease service, bus or provider are away: try again later */
    LC_OUTCOME_BROKEN,      /* a failure of our own */
    LC_OUTCOME_CALLED_BACK, /* drain or stop */
};

struct lc_job {
    struct sk_list link; /* job list, then the inbox */
    bool taken;          /* by a worker; under jobs_lock */
    enum lc_job_kind kind;
    struct lc_queue *queue;
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    struct sk_list members; /* held commands; the first one is the head */
    int member_count;
    struct sk_call call;
    atomic_int cancel; /* enum lc_cancel: the first reason wins */
    /* Outcome. */
    enum lc_outcome outcome;
    struct lc_answer *answer;
    struct lc_busy busy;
    int64_t wake_ms; /* RETRY: until the next attempt */
    struct sk_error err;
};
void lc_job_cancel(struct lc_job *job, enum lc_cancel reason); /* any thread that knows the job to be alive */
enum lc_cancel lc_job_cancelled(const struct lc_job *job);

/* ---- the dispatcher's queue of one sandbox ------------------------------------------------------ */
enum lc_park { LC_PARK_NONE = 0, LC_PARK_BUSY, LC_PARK_OWN, LC_PARK_OUTAGE, LC_PARK_PAUSE };

struct lc_queue {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    struct sk_list waiting, finishing; /* of lc_held */
    struct sk_list parked;             /* replica->parked while parked */
    int count, finishing_count;        /* waiting, finishing */
    struct lc_job *job;                /* waits for a worker or runs */
    unsigned internal;                 /* bit mask over lc_job_kind: wanted */
    enum lc_park park;
    int64_t wake_us; /* OWN, OUTAGE, PAUSE */
    bool polling;    /* asked for, not answered */
    int again;       /* losses in a row */
    struct lc_busy busy;
    struct sk_error err; /* OUTAGE */
    char told[32];       /* phase that the waiting were told of */
};

/* What the poller saw of one sandbox. */
struct lc_view {
    struct sk_list link;
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    bool known;    /* false: the store could not be asked */
    bool runnable; /* somebody should look at it now */
    struct lc_busy busy;
};

/* ---- running operations (heartbeat.c) ----------------------------------------------------------- */
/* Registered from claim to commit. All members but `link` are written under beats_lock. */
struct lc_beat {
    struct sk_list link;
    uint64_t serial; /* of the registration: tells a late renewal that it came too late */
    struct lc_job *job;
    struct sk_lease *lease; /* NULL: the operation runs without (delete that overtook) */
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char operation_id[SK_UUID_SIZE];
    char job_id[SK_UUID_SIZE];
    char phase[32];
    enum sk_op type;
    enum sk_status status;
    int64_t epoch;
    int64_t started_us, deadline_us;
    bool expired, stuck;
};

/* ---- the context of a running job --------------------------------------------------------------- */
struct lc_run {
    struct lc_replica *replica;
    struct lc_job *job;
    struct lc_held *head; /* NULL: internal job */
    const struct lc_command *command;
    struct sk_call *call;  /* remote effects and pauses: cancelled with the job, ends at the phase deadline */
    struct sk_call commit; /* store and lease calls: never cancelled, each bounded */
    void *transport;       /* of the provider's client; kept over jobs */
    const struct sk_provider *provider;   /* of the record, NULL = not configured here */
    const struct sk_provider *claimed_at; /* of the operation that was claimed last */
    bool found;
    struct sk_instance record;        /* as read or written last */
    struct sk_instance before, after; /* of the write in hand */
    struct sk_event events[3];
    struct sk_lease source, lifecycle;
    bool unlocked;    /* a delete that goes on without the lease of the operation it overtook */
    bool resumed;     /* the claim continues an operation that was claimed before */
    bool claimed;     /* record.operation is this job's */
    bool handed_over; /* another replica may go on: it is told when the lease is free */
    struct lc_beat beat;
    int64_t step_us;     /* when the current step began */
    int64_t claimed_us;  /* when the write of its claim began; 0 = nothing was claimed */
    int64_t epoch_floor; /* the next claim must be above: a provider object carries it */
    bool in_doubt;       /* the last write may still arrive: only a new claim fences it */
    bool insert_refused; /* the store said that the identity or the id is taken */
    bool create_sent;    /* within this claim a create may have reached the provider */
    char created_id[SK_REMOTE_ID_SIZE];
    char ensured_volume[SK_CLAIM_NAME_SIZE]; /* within this claim its ensure may have reached the volume manager */
    bool keep_quota;                         /* a stop that only repairs: the slot is needed again at once */
    char operation_id[SK_UUID_SIZE];         /* of the last operation this job completed */
    struct sk_remote remotes[SK_REMOTES_MAX];
    int remote_count;
    bool more_remotes; /* than fit: see sk_remotes_offer */
    struct sk_error err;
    struct lc_busy busy;
    int64_t wake_ms;
};

/* ---- the replica -------------------------------------------------------------------------------- */
struct lc_worker_seat {
    struct sk_list link;  /* replica->idle while it waits */
    struct sk_list seats; /* replica->seats */
    struct sk_gate *gate;
};

struct lc_replica {
    struct lc_settings settings;
    struct lc_seams seams;
    const struct sk_sched *sched;
    struct lc_hooks hooks;
    atomic_bool draining, stopping;
    atomic_int held_count, job_count, parked_count;
    atomic_llong counters[LC_COUNTER_COUNT];
    atomic_bool store_down, lease_down; /* seen at the last call: no new deliveries meanwhile */
    atomic_bool store_used, lease_used; /* a call was answered since somebody asked (lc_replica_store_sign) */

    pthread_mutex_t jobs_lock; /* jobs, later_jobs, idle, seats */
    struct sk_list jobs, later_jobs, idle, seats;

    pthread_mutex_t inbox_lock; /* the four lists and the bell */
    struct sk_list done, finished, posts, views;
    bool bell;

    /* Dispatcher's thread only. */
    struct sk_map queues;
    struct sk_list all, parked;
    int64_t next_tick_us, next_poll_us;
    bool drain_begun;

    pthread_mutex_t poll_lock;
    struct sk_list polls; /* of lc_view */
    struct sk_gate *poll_gate;

    pthread_mutex_t finish_lock;
    struct sk_list finishes; /* of lc_held.finish */
    atomic_int finishing;
    struct sk_gate *finish_gate;

    pthread_mutex_t history_lock; /* histories, see history.c */
    struct sk_map histories;
    uint64_t map_seed;

    pthread_mutex_t relay_lock; /* hints, relay_*, unended, published, pulling, pull_* */
    struct sk_list hints;
    int hint_count;
    bool relay_scan;
    bool relay_awake;              /* the thread looks at the hints again before it waits: no need to ring */
    struct sk_map relay_by_record; /* sandboxes whose events go through the scan until it saw them all */
    atomic_int relay_pending;      /* hints and published events not pulled yet */
    struct sk_gate *relay_gate;
    /* Of lc_hint, all confirmed by the stream: of operations that run on; to be written next; in the writes that run.
     */
    struct sk_list unended, published, pulling;
    int unended_count, published_count;
    int64_t pull_us;
    bool pull_hurry, pull_failed;

    pthread_mutex_t beats_lock;
    struct sk_list beats;
    int beat_count, stuck_count;
    int beat_sleepers; /* threads that wait for an operation to begin */
    uint64_t beat_serial;
    struct sk_gate *beat_gate;

    pthread_mutex_t observed_lock;
    struct sk_map observed; /* of struct lc_observed */

    atomic_bool sweep_now;
    struct sk_gate *sweep_gate;
};

/* ---- replica.c ---------------------------------------------------------------------------------- */
void lc_count(struct lc_replica *replica, enum lc_counter counter, int64_t delta);
void lc_ended(struct lc_run *run, enum lc_ending ending); /* of the operation that was claimed last */
static inline bool lc_stopping(const struct lc_replica *r)
{
    return atomic_load(&r->stopping);
}
static inline bool lc_draining(const struct lc_replica *r)
{
    return atomic_load(&r->draining) || atomic_load(&r->stopping);
}
/* Remembers whether store and lease service answered: an outage stops the pull. */
void lc_note_store(struct lc_replica *replica, bool ok);
void lc_note_lease(struct lc_replica *replica, bool ok);
const struct sk_provider *lc_provider(const struct lc_replica *replica,
                                      const char *name); /* "" = default; NULL = unknown */
/* first_ms doubled n times up to max_ms, +-20 % jitter; pure but for the jitter. */
int64_t lc_backoff_ms(const struct sk_sched *sched, int64_t first_ms, int64_t max_ms, int n);
/* A pause after `cause`: what the provider asked for (Retry-After, at most LC_RETRY_AFTER_MAX_MS) when that is longer
 * than our own back-off. */
int64_t lc_retry_in_ms(const struct sk_error *cause, int64_t backoff_ms);

/* ---- dispatch.c, park.c ------------------------------------------------------------------------- */
/* Any thread: an internal job for a sandbox; dropped when the sandbox is being worked on. */
void lc_dispatch_post(struct lc_replica *replica, enum lc_job_kind kind, const char *sandbox_id);
void lc_dispatch_done(struct lc_replica *replica, struct lc_job *job);        /* worker: the job ended */
void lc_dispatch_finished(struct lc_replica *replica, struct sk_list *helds); /* finisher: takes the list */
void lc_dispatch_view(struct lc_replica *replica, struct sk_list *views);     /* poller: takes the list */
void lc_queue_start(struct lc_replica *replica, struct lc_queue *queue);
void lc_queue_park(struct lc_replica *replica, struct lc_queue *queue, enum lc_park why, int64_t wake_us);
void lc_queue_unpark(struct lc_replica *replica, struct lc_queue *queue);
void lc_queue_release(struct lc_replica *replica, struct lc_queue *queue); /* frees it when nothing is left */
void lc_queue_ended(struct lc_replica *replica, struct lc_job *job);       /* takes the job */
void lc_queue_viewed(struct lc_replica *replica, struct lc_view *view);    /* takes the view */
void lc_queue_poll(struct lc_replica *replica, struct lc_queue *queue);
/* Answers sandbox_busy with the operation in the way. The command is out of queue->count already. */
void lc_queue_refuse_busy(struct lc_replica *replica, struct lc_queue *queue, struct lc_held *held, const char *why);
/* Hands the command to the finisher. `answer` is kept, not taken; NULL for NAK. */
void lc_held_finish(struct lc_replica *replica, struct lc_held *held, enum lc_finish kind, struct lc_answer *answer);
void lc_held_fail(struct lc_replica *replica, struct lc_held *held, const struct sk_error *err,
                  const struct lc_busy *busy);
void lc_held_free(struct lc_held *held); /* the delivery must be gone already */

/* ---- worker.c ----------------------------------------------------------------------------------- */
void lc_jobs_push(struct lc_replica *replica, struct lc_job *job);
/* Takes a job of the sweeps back that no worker began: true = it is the caller's again. */
bool lc_jobs_withdraw(struct lc_replica *replica, struct lc_job *job);
void lc_jobs_stop(struct lc_replica *replica);     /* wakes every worker */
bool lc_held_answered(const struct lc_held *held); /* it has an answer of its own */
/* The first member without an answer of its own becomes run->head and run->command. False: there is none. */
SK_MUST_USE bool lc_pick_head(struct lc_run *run);
/* Asks the store once more for the results of those members that have no answer yet. -1 with run->err. */
SK_MUST_USE int lc_look_up_again(struct lc_run *run);
/* Reads the record into run->record and run->found. -1 with run->err. */
SK_MUST_USE int lc_read(struct lc_run *run);
/* Takes the lifecycle lease when it is not held yet. -1: sandbox_busy or lease_unavailable in run->err. */
SK_MUST_USE int lc_lock(struct lc_run *run);
SK_MUST_USE int lc_lock_source(struct lc_run *run, const struct sk_identity *identity); /* waits a little */
void lc_unlock(struct lc_run *run);                                                     /* both */
void lc_unlock_source(struct lc_run *run);
struct sk_call *lc_commit_call(struct lc_run *run); /* bounded, not cancelled with the job */
/* A pause inside a job; false = give up: cancelled, deadline, stopping. */
SK_MUST_USE bool lc_pause(struct lc_run *run, int64_t ms);
void lc_set_busy(struct lc_run *run); /* from run->record */
/* What an error before any claim means for the job; logs nothing. */
enum lc_outcome lc_give_up(struct lc_run *run);
void lc_progress(struct lc_run *run); /* tells the members that wait for an answer about status and phase */

/* ---- engine.c: the only place that changes an operation ----------------------------------------- */
struct lc_claim {
    enum sk_op type;
    const struct sk_instance *fresh; /* the record to create when there is none */
    const char *reason;              /* shown in the event; NULL = the command's own */
    const char *team_id;             /* filled in where the record has none; NULL = unknown */
    bool if_idle;                    /* lose to any activity and to any pin */
    bool reset;                      /* an operator's retry: the count of tries starts again */
    const struct sk_error *failed;   /* delete: ends the present operation as failed with this error */
};
SK_MUST_USE int lc_engine_claim(struct lc_run *run, const struct lc_claim *claim);
/* A sandbox of this identity may have lived before: its epochs and its volume name must not come again. Raises
 * run->epoch_floor; *lived (may be NULL) tells. -1 with run->err. */
SK_MUST_USE int lc_engine_former_life(struct lc_run *run, bool *lived);
/* Before and after every remote effect: not called back, and the lease is still ours. Waits while the lease service is
 * away, at most until the phase deadline. */
SK_MUST_USE int lc_engine_guard(struct lc_run *run);
bool lc_engine_reached(const struct lc_run *run, const char *phase);
SK_MUST_USE int lc_engine_phase(struct lc_run *run, const char *phase);
/* The terminal status. `active` also sets lastActiveAt; `image` (may be NULL) is what runs now. */
SK_MUST_USE int lc_engine_finish(struct lc_run *run, bool active, const struct sk_image *image);
/* delete: the last phase and the deleted event in one write; then the record may go. */
SK_MUST_USE int lc_engine_deleted(struct lc_run *run);
SK_MUST_USE int lc_engine_remove(struct lc_run *run);
/* Ends a failed operation in a stable status. */
SK_MUST_USE int lc_engine_compensate(struct lc_run *run, enum sk_status status, const struct sk_error *cause);
/* A failed try: next attempt or blocked (*blocked). */
SK_MUST_USE int lc_engine_retry(struct lc_run *run, const struct sk_error *cause, bool *blocked);
/* Blocks the claimed operation at once: this release cannot continue it. The error tells FastGPT that it may. */
SK_MUST_USE int lc_engine_block(struct lc_run *run, const struct sk_error *cause);
/* Takes the owner away: anybody may continue after pause_ms (0 = now). */
SK_MUST_USE int lc_engine_hand_over(struct lc_run *run, int64_t pause_ms);
/* lastActiveAt = now on a running record; -1 with lost_ownership when it is not running any more. */
SK_MUST_USE int lc_engine_touch(struct lc_run *run);
/* A stable record whose provider has an object of a later epoch, from a former life: puts the record above it. */
SK_MUST_USE int lc_engine_raise_epoch(struct lc_run *run, int64_t epoch);
void lc_engine_forget(struct lc_run *run); /* ends heartbeats: the operation is somebody else's, or nobody's */

/* ---- failure.c ---------------------------------------------------------------------------------- */
/* What becomes of a claimed operation whose step failed with run->err; of the job when nothing was claimed. */
enum lc_outcome lc_operation_failed(struct lc_run *run);

/* ---- due.c -------------------------------------------------------------------------------------- */
enum lc_due { LC_DUE_NO, LC_DUE_NOW, LC_DUE_BLOCKED };
enum lc_due lc_due(struct lc_replica *replica, const struct sk_instance *record);
bool lc_observed_silent(struct lc_replica *replica, const struct sk_instance *record);
/* Milliseconds until the next attempt of a released operation; 0 = now. */
int64_t lc_attempt_in_ms(const struct lc_replica *replica, const struct sk_instance *record);

/* The record must be left alone (malformed) or is somebody else's identity: run->err says so. */
bool lc_refused(struct lc_run *run);

/* ---- operations --------------------------------------------------------------------------------- */
enum lc_outcome lc_op_ensure(struct lc_run *run);
enum lc_outcome lc_op_stop(struct lc_run *run);
enum lc_outcome lc_op_delete(struct lc_run *run);
enum lc_outcome lc_op_touch(struct lc_run *run);
enum lc_outcome lc_op_recover(struct lc_run *run);
enum lc_outcome lc_op_pending(struct lc_run *run);   /* archive, restore, converge: not in this release */
enum lc_outcome lc_op_takeover(struct lc_run *run);  /* internal */
enum lc_outcome lc_op_idle_stop(struct lc_run *run); /* internal */
enum lc_outcome lc_op_settle(struct lc_run *run);    /* internal */
/* Continues whatever operation the record carries, when it is due; AGAIN when it ended well. */
enum lc_outcome lc_continue(struct lc_run *run);
enum lc_outcome lc_resume(struct lc_run *run, bool reset);
/* Claim and all steps of one operation. */
enum lc_outcome lc_run_provision(struct lc_run *run, const struct lc_claim *claim);
enum lc_outcome lc_run_stop(struct lc_run *run, const struct lc_claim *claim);
enum lc_outcome lc_run_delete(struct lc_run *run, const struct lc_claim *claim);
enum lc_outcome lc_run_delete_tail(struct lc_run *run); /* the deleted event is in the record: publish, remove */
/* Members that did their work in an earlier run, and whose result was never stored, get their answer from the timeline.
 * To be asked before an effect that takes something away, on a record that was just read. -1 with run->err:
 * lost_ownership when the record must be read again. */
SK_MUST_USE int lc_recall(struct lc_run *run);
enum lc_outcome lc_run_foreign(struct lc_run *run); /* archiving, restoring, legacyMigrating that FastGPT left */
/* The compensating phase of provision, for the error that ended it. */
enum lc_outcome lc_undo_provision(struct lc_run *run, const struct sk_error *cause);

/* ---- history.c: commands of a sandbox's former operations, as far as this replica knows them -------- */
enum lc_known {
    LC_KNOWN_NOTHING,  /* the timeline must be asked */
    LC_KNOWN_FOLLOWED, /* the same, and it pays to read it whole: this replica did all since it last asked */
    LC_KNOWN_NEW,      /* none of the members without an answer has had an operation: nothing need be asked */
};
/* Of the members of the job, at run->record as it was just read. */
enum lc_known lc_history_of(struct lc_run *run);
void lc_history_follow(struct lc_run *run); /* run->record was just read: from here on this replica looks on */
/* Of the sandbox whose record, at this very state, is followed; else nothing happens. */
void lc_history_note(struct lc_run *run, const char *command_id); /* it had an operation */
void lc_history_complete(struct lc_run *run);                     /* and nobody had one that was not noted */
void lc_history_wrote(struct lc_run *run);                        /* run->after is in the store over run->before */
void lc_histories_free(struct lc_replica *replica);

/* ---- remote.c ----------------------------------------------------------------------------------- */
/* The highest epoch that an object of this life of the record can have. A record that FastGPT made and no operation of
 * ours ever changed has objects without an epoch only, even after its own was raised above those of a former life. */
int64_t lc_life_epoch(const struct sk_instance *record);
enum lc_sight { LC_SIGHT_RUNNING, LC_SIGHT_NOT_READY, LC_SIGHT_MISSING };
SK_MUST_USE int lc_remote_look(struct lc_run *run, enum lc_sight *sight);
SK_MUST_USE int
lc_remote_wake(struct lc_run *run); /* after NOT_READY: resumes what is paused, waits until it answers */
SK_MUST_USE int lc_remote_ensure(struct lc_run *run, const struct sk_image *image, const struct sk_limit *limit);
SK_MUST_USE int lc_remote_remove(struct lc_run *run); /* all objects of the sandbox, until none is left */
void lc_remote_clean_own(struct lc_run *run);         /* after ownership was lost: what this claim created */
/* Removes what lc_remote_look found but the object of that epoch. */
SK_MUST_USE int lc_remote_settle(struct lc_run *run, int64_t keep_epoch);
/* Ours by its labels, and old enough that its record, were there one, would be seen. */
bool lc_remote_is_orphan(const struct lc_replica *replica, const struct sk_remote *remote);
/* Under the lease of a sandbox without a record: removes its orphans at every provider, if the settings say so. */
SK_MUST_USE int lc_remote_remove_orphans(struct lc_run *run);

/* ---- quota.c ------------------------------------------------------------------------------------ */
SK_MUST_USE int lc_quota_reserve(struct lc_run *run, const char *team_id);
void lc_quota_release(struct lc_run *run, const char *team_id);

/* ---- heartbeat.c -------------------------------------------------------------------------------- */
void lc_beats_add(struct lc_run *run, int64_t deadline_us);
void lc_beats_step(struct lc_run *run, int64_t deadline_us); /* next phase */
void lc_beats_lease(struct lc_run *run, struct sk_lease *lease);
void lc_beats_remove(struct lc_run *run);
void lc_beats_stop(struct lc_replica *replica); /* calls every running operation back */
bool lc_beats_running(struct lc_replica *replica, const char *sandbox_id, struct lc_busy *busy);
/* A record was read that is of a later epoch than the operation that runs here: calls that one back. */
void lc_beats_overtaken(struct lc_replica *replica, const struct sk_instance *record);

/* An event between its commit and its way out of the record. */
struct lc_hint {
    struct sk_list link;
    struct sk_event event;
    int64_t since_us; /* among the hints: when the write that made it was known to be done */
    int64_t until_us; /* in `unended`: how long it may stay */
};

/* ---- relay.c, puller.c, finisher.c, publish.c --------------------------------------------------- */
void lc_relay_hint(struct lc_replica *replica, const struct sk_event *events, int count, bool pending_before);
void lc_relay_free_hints(struct sk_list *hints);
/* Waits until nothing is left in the record's outbox. -1: outage (run->err), called back or deadline. */
SK_MUST_USE int lc_relay_flush(struct lc_run *run);
/* Scratch of the thread that pulls. */
struct lc_puller {
    int capacity;
    struct sk_event *events;
    char (*sandbox_ids)[SK_SANDBOX_ID_SIZE];
    char (*event_ids)[SK_ULID_SIZE];
};
bool lc_puller_init(struct lc_puller *puller, struct lc_replica *replica);
void lc_puller_fini(struct lc_puller *puller);
/* A confirmed event; `counted` = it is in relay_pending already. */
void lc_pull_later(struct lc_replica *replica, const struct sk_event *event, bool counted);
int64_t lc_pull_in_ms(struct lc_replica *replica); /* until the next pull; 0 = now, -1 = nothing to pull */
void lc_pull(struct lc_puller *puller, struct lc_replica *replica);
void lc_finisher_push(struct lc_replica *replica, struct lc_held *held);

#define LC_MESSAGE_HEADERS 10
/* A CloudEvent ready to be published. It owns its strings, but for the tracestate: that is the delivery's. */
struct lc_event_message {
    struct sk_message message;
    struct sk_header headers[LC_MESSAGE_HEADERS];
    char subject[SK_SUBJECT_SIZE];
    char id[48], type[64], time[SK_TIME_SIZE];
    char source[32], sandbox_id[SK_SANDBOX_ID_SIZE], trace[SK_TRACEPARENT_SIZE];
    char *body; /* malloc'd */
};
/* -1 when out of memory. */
SK_MUST_USE int lc_message_of_event(struct lc_replica *replica, const struct sk_event *event,
                                    struct lc_event_message *out);
/* command.completed|failed|rejected, before the command is acknowledged: `body` is taken. `type` = "command.completed".
 */
SK_MUST_USE int lc_message_of_command(struct lc_replica *replica, const struct lc_command *command, const char *type,
                                      const char *id, char *body, struct lc_event_message *out);
void lc_message_fini(struct lc_event_message *message);
void lc_publish_reply(struct lc_replica *replica, const struct lc_command *command, const char *text, bool progress);
void lc_publish_progress(struct lc_replica *replica, struct lc_held *held, const char *phase, enum sk_status status);
void lc_publish_wake(struct lc_replica *replica);
void lc_publish_quota_rejected(struct lc_run *run, const char *scope, int64_t limit, const char *team_id);
/* JSON text of the error object with the operation in the way; new reference. */
json_t *lc_error_json(const struct sk_error *err, const struct lc_busy *busy);

#endif
