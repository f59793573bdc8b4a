/* SPDX-License-Identifier: Apache-2.0
 *
 * The dispatcher: one queue per sandbox, at most one worker per sandbox, neighbours of the same meaning ride together,
 * delete overtakes. Runs on one thread and never blocks; waiting costs no thread (design/architecture.md §4). What
 * waits for what, and for how long, is in park.c. */
#include "services/lifecycle/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- the inbox ---------------------------------------------------------------------------------- */
static void ring(struct lc_replica *r, bool was_silent)
{
    if (was_silent && r->hooks.wake_dispatcher != NULL)
        r->hooks.wake_dispatcher(r->hooks.arg);
}

/* Moves all of `from` to the end of `to`. */
static void splice(struct sk_list *to, struct sk_list *from)
{
    struct sk_list *item;

    while ((item = sk_list_pop_front(from)) != NULL)
        sk_list_push_back(to, item);
}

static void inbox_add(struct lc_replica *r, struct sk_list *box, struct sk_list *items)
{
    bool silent;

    pthread_mutex_lock(&r->inbox_lock);
    splice(box, items);
    silent = !r->bell;
    r->bell = true;
    pthread_mutex_unlock(&r->inbox_lock);
    ring(r, silent);
}

void lc_dispatch_done(struct lc_replica *r, struct lc_job *job)
{
    struct sk_list one;

    sk_list_init(&one);
    sk_list_init(&job->link);
    sk_list_push_back(&one, &job->link);
    inbox_add(r, &r->done, &one);
}

void lc_dispatch_finished(struct lc_replica *r, struct sk_list *helds)
{
    if (!sk_list_empty(helds))
        inbox_add(r, &r->finished, helds);
}

void lc_dispatch_view(struct lc_replica *r, struct sk_list *views)
{
    if (!sk_list_empty(views))
        inbox_add(r, &r->views, views);
}

struct post {
    struct lc_view view; /* for its list link and sandbox id */
    enum lc_job_kind kind;
};

void lc_dispatch_post(struct lc_replica *r, enum lc_job_kind kind, const char *sandbox_id)
{
    struct post *post = calloc(1, sizeof(*post));
    struct sk_list one;

    if (post == NULL)
        return; /* the next sweep posts it again */
    sk_copy_cut(post->view.sandbox_id, sizeof(post->view.sandbox_id), sandbox_id);
    post->kind = kind;
    sk_list_init(&one);
    sk_list_push_back(&one, &post->view.link);
    inbox_add(r, &r->posts, &one);
}

/* ---- held commands ------------------------------------------------------------------------------ */
void lc_held_free(struct lc_held *held)
{
    lc_answer_drop(held->answer);
    free(held->stored);
    free(held->result);
    free(held);
}

void lc_held_finish(struct lc_replica *r, struct lc_held *held, enum lc_finish kind, struct lc_answer *answer)
{
    held->kind = kind;
    held->answer = answer != NULL ? lc_answer_keep(answer) : NULL;
    held->running = false;
    sk_list_remove(&held->all);
    sk_list_remove(&held->link);
    if (held->queue != NULL) {
        sk_list_push_back(&held->queue->finishing, &held->link);
        held->crowd = ++held->queue->finishing_count > LC_FINISH_SHARE;
    }
    lc_finisher_push(r, held);
}

void lc_held_fail(struct lc_replica *r, struct lc_held *held, const struct sk_error *err, const struct lc_busy *busy)
{
    struct lc_answer *answer = lc_answer_new();

    if (answer == NULL) {
        lc_held_finish(r, held, LC_FINISH_NAK, NULL); /* no memory for an answer: it comes again */
        return;
    }
    answer->err = *err;
    if (busy != NULL)
        answer->busy = *busy;
    lc_held_finish(r, held, LC_FINISH_RESULT, answer);
    lc_answer_drop(answer);
}

/* ---- queues ------------------------------------------------------------------------------------- */
static struct lc_queue *queue_of(struct lc_replica *r, const char *sandbox_id, bool make)
{
    struct lc_queue *queue = sk_map_get(&r->queues, sandbox_id);

    if (queue != NULL || !make)
        return queue;
    queue = calloc(1, sizeof(*queue));
    if (queue == NULL)
        return NULL;
    sk_copy_cut(queue->sandbox_id, sizeof(queue->sandbox_id), sandbox_id);
    sk_list_init(&queue->waiting);
    sk_list_init(&queue->finishing);
    sk_list_init(&queue->parked);
    if (!sk_map_set(&r->queues, sandbox_id, queue, NULL)) {
        free(queue);
        return NULL;
    }
    return queue;
}

void lc_queue_release(struct lc_replica *r, struct lc_queue *queue)
{
    if (!sk_list_empty(&queue->waiting) || !sk_list_empty(&queue->finishing) || queue->job != NULL ||
        queue->internal != 0 || queue->polling)
        return;
    lc_queue_unpark(r, queue);
    sk_map_remove(&r->queues, queue->sandbox_id);
    free(queue);
}

/* A command of the same id is on its way to the requester: its result must be in the store before this one asks. */
static bool id_is_finishing(const struct lc_queue *queue, const char *id)
{
    SK_LIST_FOREACH (struct lc_held, held, &queue->finishing, link) {
        if (strcmp(held->command.id, id) == 0)
            return true;
    }
    return false;
}

static struct lc_job *job_new(struct lc_replica *r, struct lc_queue *queue, enum lc_job_kind kind)
{
    struct lc_job *job = calloc(1, sizeof(*job));

    if (job == NULL)
        return NULL;
    sk_list_init(&job->link);
    sk_list_init(&job->members);
    job->kind = kind;
    job->queue = queue;
    memcpy(job->sandbox_id, queue->sandbox_id, sizeof(job->sandbox_id));
    sk_call_init(&job->call, r->sched);
    atomic_init(&job->cancel, LC_CANCEL_NONE);
    queue->job = job;
    atomic_fetch_add(&r->job_count, 1);
    return job;
}

static void add_member(struct lc_queue *queue, struct lc_job *job, struct lc_held *held)
{
    sk_list_remove(&held->link);
    sk_list_push_back(&job->members, &held->link);
    held->running = true;
    job->member_count++;
    queue->count--;
}

/* The head and its neighbours of the same meaning. */
static void take_members(struct lc_replica *r, struct lc_queue *queue, struct lc_job *job)
{
    struct lc_held *head = SK_LIST_ENTRY(struct lc_held, queue->waiting.next, link);

    add_member(queue, job, head);
    SK_LIST_FOREACH (struct lc_held, held, &queue->waiting, link) {
        if (job->member_count >= LC_MEMBERS_MAX || held->command.verb != head->command.verb ||
            strcmp(held->command.hash, head->command.hash) != 0 || id_is_finishing(queue, held->command.id))
            break;
        add_member(queue, job, held);
        lc_count(r, LC_COUNT_COMMANDS_COALESCED, 1);
    }
}

static enum lc_job_kind next_internal(struct lc_queue *queue)
{
    for (int kind = LC_JOB_COMMANDS + 1; kind < LC_JOB_KIND_COUNT; kind++) {
        if ((queue->internal & (1u << kind)) != 0) {
            queue->internal &= ~(1u << kind);
            return (enum lc_job_kind)kind;
        }
    }
    return LC_JOB_COMMANDS;
}

void lc_queue_start(struct lc_replica *r, struct lc_queue *queue)
{
    enum lc_job_kind kind;
    struct lc_held *head;
    struct lc_job *job;

    if (queue->job != NULL || lc_draining(r))
        return;
    kind = next_internal(queue);
    if (kind == LC_JOB_COMMANDS) {
        if (queue->park != LC_PARK_NONE || sk_list_empty(&queue->waiting))
            return;
        head = SK_LIST_ENTRY(struct lc_held, queue->waiting.next, link);
        if (id_is_finishing(queue, head->command.id))
            return;
    }
    job = job_new(r, queue, kind);
    if (job == NULL) {
        if (queue->park == LC_PARK_NONE && !sk_list_empty(&queue->waiting))
            lc_queue_park(r, queue, LC_PARK_PAUSE, sk_mono_us(r->sched) + LC_AGAIN_MAX_MS * 1000);
        return;
    }
    if (kind == LC_JOB_COMMANDS)
        take_members(r, queue, job);
    lc_jobs_push(r, job);
}

/* ---- deliveries --------------------------------------------------------------------------------- */
static void refuse(struct lc_replica *r, struct lc_held *held, const struct sk_error *err)
{
    struct lc_answer *answer = lc_answer_new();

    lc_count(r, LC_COUNT_COMMANDS_REJECTED, 1);
    SK_LOG_WARN("command refused",
                SK_F("sandboxId", held->command.sandbox_id[0] != '\0' ? held->command.sandbox_id : NULL),
                SK_FI("bytes", held->delivery->body_len), SK_FE(err));
    if (answer == NULL) {
        lc_held_finish(r, held, LC_FINISH_NAK, NULL);
        return;
    }
    answer->err = *err;
    lc_held_finish(r, held, LC_FINISH_REJECT, answer);
    lc_answer_drop(answer);
}

/* Waiting has its bounds: what does not fit is told at once. */
static bool may_wait(struct lc_replica *r, const struct lc_queue *queue, const struct lc_held *held)
{
    return held->command.verb == LC_VERB_DELETE ||
           (queue->count <= r->settings.park_limit && held->delivery->body_len <= (size_t)r->settings.park_body_max);
}

void lc_queue_refuse_busy(struct lc_replica *r, struct lc_queue *queue, struct lc_held *held, const char *why)
{
    struct sk_error err = {.code = SK_OK};
    struct lc_busy busy = queue->busy;

    sk_fail(&err, SK_ERR_SANDBOX_BUSY, "%s", why);
    err.retry_after_ms = r->settings.poll_parked_ms;
    if (queue->job != NULL)
        (void)lc_beats_running(r, queue->sandbox_id, &busy);
    lc_held_fail(r, held, &err, busy.present ? &busy : NULL);
}

/* Puts the command in its place: delete before everything but deletes, recover before what waits for a retry. */
static void enqueue(struct lc_replica *r, struct lc_queue *queue, struct lc_held *held)
{
    bool overtakes = held->command.verb == LC_VERB_DELETE || held->command.verb == LC_VERB_RECOVER, running;
    struct lc_busy busy = {.present = false};
    struct sk_list *at;

    held->queue = queue;
    queue->count++;
    if (!overtakes) {
        sk_list_push_back(&queue->waiting, &held->link);
        return;
    }
    for (at = queue->waiting.next; at != &queue->waiting; at = at->next) {
        const struct lc_held *other = SK_LIST_ENTRY(struct lc_held, at, link);

        if (other->command.verb != LC_VERB_DELETE &&
            (other->command.verb != LC_VERB_RECOVER || held->command.verb == LC_VERB_DELETE))
            break;
    }
    sk_list_insert_before(at, &held->link);
    lc_queue_unpark(r, queue);
    if (queue->job == NULL || held->command.verb != LC_VERB_DELETE)
        return;
    if (queue->job->kind == LC_JOB_COMMANDS &&
        SK_LIST_ENTRY(struct lc_held, queue->job->members.next, link)->command.verb == LC_VERB_DELETE)
        return;
    running = lc_beats_running(r, queue->sandbox_id, &busy);
    if (running && busy.type == SK_OP_DELETE)
        return; /* a take-over does what is asked for */
    if (running)
        lc_count(r, LC_COUNT_DELETE_OVERTOOK, 1);
    lc_job_cancel(queue->job, LC_CANCEL_OVERTAKEN);
}

/* What a sweep wanted of this sandbox, and nobody began: it can wait, the command cannot. The sweep comes again. */
static void withdraw_housekeeping(struct lc_replica *r, struct lc_queue *queue)
{
    if (queue->job == NULL || !lc_jobs_withdraw(r, queue->job))
        return;
    free(queue->job);
    queue->job = NULL;
    atomic_fetch_sub(&r->job_count, 1);
}

void lc_dispatch_delivery(struct lc_replica *r, struct sk_delivery *delivery)
{
    struct lc_held *held = calloc(1, sizeof(*held));
    int64_t now_us = sk_mono_us(r->sched);
    struct sk_error err = {.code = SK_OK};
    struct lc_queue *queue;

    lc_count(r, LC_COUNT_COMMANDS, 1);
    if (held == NULL) {
        sk_delivery_drop(delivery); /* no memory: it comes again after AckWait */
        return;
    }
    sk_list_init(&held->link);
    sk_list_init(&held->all);
    sk_list_init(&held->finish);
    held->delivery = delivery;
    held->in_progress_us = now_us + r->settings.in_progress_every_ms * 1000;
    atomic_init(&held->replied, false);
    atomic_fetch_add(&r->held_count, 1);
    if (lc_draining(r)) {
        lc_held_finish(r, held, LC_FINISH_NAK, NULL);
        return;
    }
    if (lc_command_parse(delivery, r->settings.subject_prefix, r->settings.default_deadline_ms, &held->command, &err) !=
        0) {
        refuse(r, held, &err);
        return;
    }
    if (held->command.reply_ignored)
        SK_LOG_WARN("Sandbox-Reply-To is not usable and was ignored", SK_F("sandboxId", held->command.sandbox_id));
    held->deadline_us = now_us + held->command.deadline_ms * 1000;
    queue = queue_of(r, held->command.sandbox_id, true);
    if (queue == NULL) {
        lc_held_finish(r, held, LC_FINISH_NAK, NULL);
        return;
    }
    withdraw_housekeeping(r, queue);
    sk_list_push_back(&r->all, &held->all);
    if (held->deadline_us < r->next_tick_us || held->in_progress_us < r->next_tick_us)
        r->next_tick_us = held->deadline_us < held->in_progress_us ? held->deadline_us : held->in_progress_us;
    enqueue(r, queue, held);
    lc_queue_start(r, queue);
    if (held->running)
        return;
    if (!may_wait(r, queue, held)) {
        lc_count(r, LC_COUNT_PARK_REFUSED, 1);
        queue->count--;
        lc_queue_refuse_busy(r, queue, held, "too many or too large commands wait for this sandbox");
        return;
    }
    held->parked = true;
    lc_count(r, LC_COUNT_COMMANDS_PARKED, 1);
}

int lc_dispatch_want(struct lc_replica *r)
{
    int room = r->settings.total_limit - atomic_load(&r->held_count);

    if (lc_draining(r) || atomic_load(&r->store_down) || atomic_load(&r->lease_down))
        return 0;
    return room > 0 ? room : 0;
}

/* ---- what came in ------------------------------------------------------------------------------- */
static void take_finished(struct lc_replica *r, struct lc_held *held)
{
    struct lc_queue *queue = held->queue;

    sk_list_remove(&held->link);
    lc_held_free(held);
    atomic_fetch_sub(&r->held_count, 1);
    if (queue == NULL)
        return;
    queue->finishing_count--;
    lc_queue_start(r, queue);
    lc_queue_release(r, queue);
}

static void take_post(struct lc_replica *r, struct post *post)
{
    struct lc_queue *queue = lc_draining(r) ? NULL : queue_of(r, post->view.sandbox_id, true);

    /* A worker on this sandbox makes the job superfluous, whatever it finds: the sweep looks again. */
    if (queue != NULL && queue->job == NULL) {
        queue->internal |= 1u << post->kind;
        lc_queue_start(r, queue);
        lc_queue_release(r, queue);
    }
    free(post);
}

/* Everything that waits goes back to the stream; what runs is called back and hands over. */
static bool drain_queue(void *arg, const char *key, void *value)
{
    struct lc_replica *r = arg;
    struct lc_queue *queue = value;

    (void)key;
    queue->internal = 0;
    if (queue->job != NULL)
        lc_job_cancel(queue->job, LC_CANCEL_DRAIN);
    SK_LIST_FOREACH (struct lc_held, held, &queue->waiting, link) {
        queue->count--;
        lc_held_finish(r, held, LC_FINISH_NAK, NULL);
    }
    lc_queue_unpark(r, queue);
    return true;
}

void lc_dispatch_inbox(struct lc_replica *r)
{
    struct sk_list done, finished, posts, views, *item;

    sk_list_init(&done);
    sk_list_init(&finished);
    sk_list_init(&posts);
    sk_list_init(&views);
    pthread_mutex_lock(&r->inbox_lock);
    splice(&done, &r->done);
    splice(&finished, &r->finished);
    splice(&posts, &r->posts);
    splice(&views, &r->views);
    r->bell = false;
    pthread_mutex_unlock(&r->inbox_lock);
    if (lc_draining(r) && !r->drain_begun) {
        r->drain_begun = true;
        sk_map_visit(&r->queues, drain_queue, r);
    }
    while ((item = sk_list_pop_front(&done)) != NULL)
        lc_queue_ended(r, SK_LIST_ENTRY(struct lc_job, item, link));
    while ((item = sk_list_pop_front(&finished)) != NULL)
        take_finished(r, SK_LIST_ENTRY(struct lc_held, item, finish));
    while ((item = sk_list_pop_front(&views)) != NULL)
        lc_queue_viewed(r, SK_LIST_ENTRY(struct lc_view, item, link));
    while ((item = sk_list_pop_front(&posts)) != NULL)
        take_post(r, (struct post *)(void *)SK_LIST_ENTRY(struct lc_view, item, link));
}
