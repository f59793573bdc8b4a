/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines (buckets) and, for each language, the ring of lines that may give a job now. A line is in a language's ring if
 * and only if it has a job waiting there and is below its limit; it goes to the ring's end after each job it gave. */
#include "services/code/host/queue.h"

#include <stdlib.h>
#include <string.h>

struct line {
    struct sk_list ring; /* first member: a line is found from it */
    struct sk_list jobs;
    size_t count;
};

struct code_bucket {
    struct line lines[CODE_POOLS];
    int running;
    bool shared;
    char id[];
};

struct code_queue {
    struct code_queue_settings settings;
    struct code_queue_counters counters;
    struct sk_list rings[CODE_POOLS];
    struct sk_list arrivals[CODE_POOLS]; /* all that wait, oldest first */
    struct sk_map buckets;
    struct code_bucket *shared;
    size_t waiting[CODE_POOLS];
    int running[CODE_POOLS];
    bool ready[CODE_POOLS], was_ready[CODE_POOLS], draining;
};

const char *code_pool_name(enum code_pool pool)
{
    return pool == CODE_POOL_JS ? "js" : "python";
}

static struct code_bucket *bucket_new(const char *id)
{
    size_t size = strlen(id) + 1;
    struct code_bucket *bucket = calloc(1, sizeof(*bucket) + size);

    if (bucket == NULL)
        return NULL;
    memcpy(bucket->id, id, size);
    for (int i = 0; i < CODE_POOLS; i++) {
        sk_list_init(&bucket->lines[i].ring);
        sk_list_init(&bucket->lines[i].jobs);
    }
    return bucket;
}

struct code_queue *code_queue_new(const struct code_queue_settings *settings)
{
    struct code_queue *queue = calloc(1, sizeof(*queue));

    if (queue == NULL)
        return NULL;
    queue->settings = *settings;
    queue->shared = bucket_new("");
    if (queue->shared == NULL) {
        free(queue);
        return NULL;
    }
    queue->shared->shared = true;
    for (int i = 0; i < CODE_POOLS; i++) {
        sk_list_init(&queue->rings[i]);
        sk_list_init(&queue->arrivals[i]);
    }
    /* A line exists only while it has a job: there are never more lines than jobs. */
    sk_map_init(&queue->buckets, settings->max_waiting + (size_t)settings->pool_size * CODE_POOLS + 1, settings->seed);
    return queue;
}

void code_queue_free(struct code_queue *queue)
{
    if (queue == NULL)
        return;
    sk_map_fini(&queue->buckets);
    free(queue->shared);
    free(queue);
}

static struct code_bucket *bucket_of(struct code_queue *queue, const char *id)
{
    struct code_bucket *bucket;

    if (id[0] == '\0')
        return queue->shared;
    bucket = sk_map_get(&queue->buckets, id);
    if (bucket != NULL)
        return bucket;
    bucket = bucket_new(id);
    if (bucket != NULL && !sk_map_set(&queue->buckets, id, bucket, NULL)) {
        free(bucket);
        bucket = NULL;
    }
    return bucket;
}

/* Puts the lines of a bucket where they belong, at the end of a ring when they were in none; frees it when it has no
 * job any more. */
static void settle(struct code_queue *queue, struct code_bucket *bucket)
{
    bool may =
        bucket->shared || queue->settings.id_concurrency == 0 || bucket->running < queue->settings.id_concurrency;
    size_t waiting = 0;

    for (int i = 0; i < CODE_POOLS; i++) {
        struct line *line = &bucket->lines[i];
        waiting += line->count;
        if (!may || line->count == 0)
            sk_list_remove(&line->ring);
        else if (sk_list_empty(&line->ring))
            sk_list_push_back(&queue->rings[i], &line->ring);
    }
    if (waiting == 0 && bucket->running == 0 && !bucket->shared) {
        (void)sk_map_remove(&queue->buckets, bucket->id);
        free(bucket);
    }
}

/* Whether a task of this line would be the next one, and now. It does not wait, so that the bound on those that do is
 * none of its business: neither another language's crowd nor a queueId at its limit keeps it out of an idle pool. */
static bool starts_at_once(const struct code_queue *queue, enum code_pool pool, const char *queue_id)
{
    const struct code_bucket *bucket;

    if (!queue->ready[pool] || queue->running[pool] >= queue->settings.pool_size || !sk_list_empty(&queue->rings[pool]))
        return false;
    if (queue_id[0] == '\0' || queue->settings.id_concurrency == 0)
        return true;
    bucket = sk_map_get(&queue->buckets, queue_id);
    return bucket == NULL || bucket->running < queue->settings.id_concurrency;
}

enum code_admission code_queue_add(struct code_queue *queue, struct code_job *job, enum code_pool pool,
                                   const char *queue_id, int64_t now_ms)
{
    struct code_bucket *bucket;

    if (queue->draining) {
        queue->counters.refused_draining++;
        return CODE_DRAINING;
    }
    if (!queue->was_ready[pool]) {
        queue->counters.refused_not_ready++;
        return CODE_NOT_READY;
    }
    if (queue->waiting[CODE_POOL_JS] + queue->waiting[CODE_POOL_PYTHON] >= queue->settings.max_waiting &&
        !starts_at_once(queue, pool, queue_id)) {
        queue->counters.refused_full++;
        return CODE_FULL;
    }
    bucket = bucket_of(queue, queue_id);
    if (bucket == NULL)
        return CODE_NO_MEMORY;
    *job = (struct code_job){.bucket = bucket, .pool = pool, .state = CODE_JOB_WAITING, .added_ms = now_ms};
    sk_list_push_back(&bucket->lines[pool].jobs, &job->link);
    sk_list_push_back(&queue->arrivals[pool], &job->arrival);
    bucket->lines[pool].count++;
    queue->waiting[pool]++;
    queue->counters.added++;
    settle(queue, bucket);
    return CODE_ADMITTED;
}

/* Takes a waiting job out of its line; settle() is to follow. */
static void unlink_job(struct code_queue *queue, struct code_job *job)
{
    sk_list_remove(&job->link);
    sk_list_remove(&job->arrival);
    job->bucket->lines[job->pool].count--;
    queue->waiting[job->pool]--;
}

struct code_job *code_queue_next(struct code_queue *queue, enum code_pool pool, int64_t now_ms)
{
    struct sk_list *ring;
    struct code_bucket *bucket;
    struct code_job *job;

    if (!queue->ready[pool] || queue->running[pool] >= queue->settings.pool_size)
        return NULL;
    ring = sk_list_pop_front(&queue->rings[pool]);
    if (ring == NULL)
        return NULL;
    job = SK_LIST_ENTRY(struct code_job, SK_LIST_ENTRY(struct line, ring, ring)->jobs.next, link);
    bucket = job->bucket;
    unlink_job(queue, job);
    bucket->running++;
    queue->running[pool]++;
    job->state = CODE_JOB_RUNNING;
    job->wait_ms = now_ms > job->added_ms ? now_ms - job->added_ms : 0;
    queue->counters.started++;
    queue->counters.wait_ms_sum += job->wait_ms;
    if (job->wait_ms > queue->counters.wait_ms_max)
        queue->counters.wait_ms_max = job->wait_ms;
    settle(queue, bucket);
    return job;
}

void code_queue_done(struct code_queue *queue, struct code_job *job)
{
    struct code_bucket *bucket = job->bucket;

    if (job->state != CODE_JOB_RUNNING)
        return;
    job->state = CODE_JOB_NEW;
    job->bucket = NULL;
    bucket->running--;
    queue->running[job->pool]--;
    queue->counters.finished++;
    settle(queue, bucket);
}

static void withdraw(struct code_queue *queue, struct code_job *job)
{
    struct code_bucket *bucket = job->bucket;

    unlink_job(queue, job);
    job->state = CODE_JOB_NEW;
    job->bucket = NULL;
    settle(queue, bucket);
}

bool code_queue_leave(struct code_queue *queue, struct code_job *job)
{
    if (job->state == CODE_JOB_RUNNING && !job->cancelled) {
        job->cancelled = true;
        queue->counters.cancelled_running++;
    }
    if (job->state != CODE_JOB_WAITING)
        return false;
    withdraw(queue, job);
    queue->counters.cancelled_waiting++;
    return true;
}

void code_queue_set_ready(struct code_queue *queue, enum code_pool pool, bool ready)
{
    queue->ready[pool] = ready;
    queue->was_ready[pool] = queue->was_ready[pool] || ready;
}

void code_queue_drain(struct code_queue *queue)
{
    queue->draining = true;
}

struct code_job *code_queue_flush(struct code_queue *queue, enum code_pool pool)
{
    struct code_job *job;

    if (sk_list_empty(&queue->arrivals[pool]))
        return NULL;
    job = SK_LIST_ENTRY(struct code_job, queue->arrivals[pool].next, arrival);
    withdraw(queue, job);
    queue->counters.flushed++;
    return job;
}

struct code_queue_pool code_queue_pool(const struct code_queue *queue, enum code_pool pool)
{
    return (struct code_queue_pool){.total = queue->settings.pool_size,
                                    .idle = queue->settings.pool_size - queue->running[pool],
                                    .busy = queue->running[pool],
                                    .queued = queue->waiting[pool],
                                    .ready = queue->ready[pool]};
}

const struct code_queue_counters *code_queue_counters(const struct code_queue *queue)
{
    return &queue->counters;
}

size_t code_queue_lines(const struct code_queue *queue)
{
    return sk_map_count(&queue->buckets);
}

bool code_queue_empty(const struct code_queue *queue)
{
    bool empty = true;

    for (int i = 0; i < CODE_POOLS; i++)
        empty = empty && queue->waiting[i] == 0 && queue->running[i] == 0;
    return empty;
}
