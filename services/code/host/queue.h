/* SPDX-License-Identifier: Apache-2.0
 *
 * Which task runs next (contract/code.md §4): a bounded queue with one pool per language. Every queueId has a line of
 * its own and the lines take turns, so that one tenant's hundred tasks delay another's single one by one task, not by a
 * hundred. A queueId may have a limit of tasks that run at once, both languages together; tasks without one share a
 * line without such a limit.
 *
 * It decides only; the caller starts and kills. Life of a job: add → next → done; leave() at any time. The memory of
 * jobs is the caller's. One thread (the host's loop); nothing blocks; every call is O(1) but for hashing the queueId.
 */
#ifndef SK_CODE_HOST_QUEUE_H
#define SK_CODE_HOST_QUEUE_H

#include "common/base/list.h"
#include "common/base/map.h"

enum code_pool { CODE_POOL_JS, CODE_POOL_PYTHON, CODE_POOLS }; /* lean and full Python are one pool */
const char *code_pool_name(enum code_pool pool);               /* "js", "python" */

enum code_job_state { CODE_JOB_NEW, CODE_JOB_WAITING, CODE_JOB_RUNNING };

struct code_bucket;

/* A member of the caller's struct, zeroed at first. Read only but for the queue. */
struct code_job {
    struct sk_list link;    /* in its line */
    struct sk_list arrival; /* of all that wait in its pool */
    struct code_bucket *bucket;
    enum code_pool pool;
    enum code_job_state state;
    bool cancelled;            /* it was running when it was left: counted once */
    int64_t added_ms, wait_ms; /* wait_ms is set when it starts */
};

struct code_queue_settings {
    size_t max_waiting; /* both languages together: SANDBOX_MAX_QUEUE */
    int pool_size;      /* running, each language: SANDBOX_POOL_SIZE */
    int id_concurrency; /* running, each queueId; 0 = no limit */
    uint64_t seed;      /* of the hash; 0 = from the kernel */
};

/* Since the start; never reset. added = started + cancelled_waiting + flushed + waiting now, and so on. */
struct code_queue_counters {
    int64_t added, started, finished, cancelled_waiting, cancelled_running, flushed;
    int64_t refused_full, refused_draining, refused_not_ready;
    int64_t wait_ms_sum, wait_ms_max; /* of started jobs */
};

/* As /health shows it. */
struct code_queue_pool {
    int total, idle, busy; /* total = pool size, busy = running */
    size_t queued;
    bool ready;
};

struct code_queue;

/* NULL when out of memory. */
SK_MUST_USE struct code_queue *code_queue_new(const struct code_queue_settings *settings);
/* No job may be in it any more. NULL is allowed. */
void code_queue_free(struct code_queue *queue);

enum code_admission {
    CODE_ADMITTED,
    CODE_FULL,      /* 429 */
    CODE_DRAINING,  /* "Pool is shutting down" */
    CODE_NOT_READY, /* the language has not been ready yet */
    CODE_NO_MEMORY,
};
/* Puts a job at the end of its line. FULL when max_waiting jobs wait, unless it is the next one and there is a place
 * for it now. `queue_id` "" = none; shorter than CODE_QUEUE_ID_SIZE. When not ADMITTED, the job
 * is as it was. */
SK_MUST_USE enum code_admission code_queue_add(struct code_queue *queue, struct code_job *job, enum code_pool pool,
                                               const char *queue_id, int64_t now_ms);
/* The next job that may run now, counted as running from here on; NULL when there is none. Call it after add, done and
 * set_ready until it is NULL. */
struct code_job *code_queue_next(struct code_queue *queue, enum code_pool pool, int64_t now_ms);
/* A running job has ended, whatever its end: its place is free. */
void code_queue_done(struct code_queue *queue, struct code_job *job);
/* The client left. True: it was waiting and is out of the queue (NEW again). False: it is running (kill it, done() is
 * to follow), or in no queue. */
bool code_queue_leave(struct code_queue *queue, struct code_job *job);
/* Whether somebody is there to run the language's tasks. While not, jobs wait; before the first time they are refused.
 */
void code_queue_set_ready(struct code_queue *queue, enum code_pool pool, bool ready);
/* From now on nothing is admitted; what waits still gets its turn. */
void code_queue_drain(struct code_queue *queue);
/* Takes out the job that has waited longest, to be refused (end of the drain, a language that cannot be started); NULL
 * when none waits. */
struct code_job *code_queue_flush(struct code_queue *queue, enum code_pool pool);

struct code_queue_pool code_queue_pool(const struct code_queue *queue, enum code_pool pool);
const struct code_queue_counters *code_queue_counters(const struct code_queue *queue);
size_t code_queue_lines(const struct code_queue *queue); /* queueIds that have jobs, the shared line not counted */
bool code_queue_empty(const struct code_queue *queue);   /* nothing waits and nothing runs */

#endif
