/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that wait: for somebody else's operation, for the next attempt of their own, for a dependency that is away.
 * They keep their deliveries alive, wake by hints, polls and timers, and answer when their deadline passes. Part of the
 * dispatcher: one thread, never blocks. */
#include "services/lifecycle/internal.h"

#include <stdlib.h>
#include <string.h>

#define TICK_MIN_MS  10
#define TICK_IDLE_MS 60000

void lc_queue_park(struct lc_replica *r, struct lc_queue *queue, enum lc_park why, int64_t wake_us)
{
    if (queue->park == LC_PARK_NONE) {
        sk_list_push_back(&r->parked, &queue->parked);
        atomic_fetch_add(&r->parked_count, 1);
    }
    queue->park = why;
    queue->wake_us = wake_us;
    queue->told[0] = '\0';
    if (why != LC_PARK_BUSY && wake_us < r->next_tick_us)
        r->next_tick_us = wake_us;
    if (why == LC_PARK_BUSY && r->next_poll_us == 0)
        r->next_poll_us = sk_mono_us(r->sched) + r->settings.poll_parked_ms * 1000;
    if (r->next_poll_us != 0 && r->next_poll_us < r->next_tick_us)
        r->next_tick_us = r->next_poll_us;
}

void lc_queue_unpark(struct lc_replica *r, struct lc_queue *queue)
{
    if (queue->park == LC_PARK_NONE)
        return;
    queue->park = LC_PARK_NONE;
    sk_list_remove(&queue->parked);
    atomic_fetch_sub(&r->parked_count, 1);
}

bool lc_dispatch_hint_wanted(const struct lc_replica *r)
{
    return atomic_load_explicit(&r->parked_count, memory_order_relaxed) > 0;
}

/* ---- the end of a job --------------------------------------------------------------------------- */
/* Done again after its result was reported, it would undo what others asked for since: an ensure too, it would bring
 * back a sandbox that was deleted. */
static bool twice_matters(enum lc_verb verb)
{
    return verb == LC_VERB_DELETE || verb == LC_VERB_STOP || verb == LC_VERB_RECOVER || verb == LC_VERB_ENSURE ||
           verb == LC_VERB_PROVISION;
}

/* Back to the front of the queue, in their order, behind a delete that came meanwhile. */
static void requeue(struct lc_replica *r, struct lc_queue *queue, struct lc_job *job)
{
    struct sk_list *at;

    for (at = queue->waiting.next; at != &queue->waiting; at = at->next) {
        if (SK_LIST_ENTRY(struct lc_held, at, link)->command.verb != LC_VERB_DELETE)
            break;
    }
    SK_LIST_FOREACH (struct lc_held, held, &job->members, link) {
        sk_list_remove(&held->link);
        held->running = false;
        queue->count++;
        sk_list_insert_before(at, &held->link);
        if (job->outcome == LC_OUTCOME_RETRY)
            held->own = true;
        /* Somebody else may run this very command, or one that it rides with: its result will be in the store. For
         * those that nobody minds to be done twice the question is asked only when it is known. */
        if (twice_matters(held->command.verb) ||
            (job->busy.present && strcmp(job->busy.command_id, held->command.id) == 0))
            held->looked_up = false;
        if (held->parked)
            continue;
        held->parked = true;
        lc_count(r, LC_COUNT_COMMANDS_PARKED, 1);
        if (held->command.verb != LC_VERB_DELETE && held->delivery->body_len > (size_t)r->settings.park_body_max &&
            job->outcome == LC_OUTCOME_BUSY) {
            lc_count(r, LC_COUNT_PARK_REFUSED, 1);
            queue->count--;
            lc_queue_refuse_busy(r, queue, held, "the sandbox is busy and the command is too large to wait");
        }
    }
}

static void answer_members(struct lc_replica *r, struct lc_job *job)
{
    SK_LIST_FOREACH (struct lc_held, held, &job->members, link) {
        if (lc_held_answered(held))
            lc_held_finish(r, held, LC_FINISH_RESULT, NULL);
        else if (job->answer != NULL)
            lc_held_finish(r, held, LC_FINISH_RESULT, job->answer);
        else
            lc_held_finish(r, held, LC_FINISH_NAK, NULL); /* no memory for the answer: it comes again */
    }
}

/* Those that have an answer of their own do not wait with the others. */
static void answer_known(struct lc_replica *r, struct lc_job *job)
{
    SK_LIST_FOREACH (struct lc_held, held, &job->members, link) {
        if (lc_held_answered(held))
            lc_held_finish(r, held, LC_FINISH_RESULT, NULL);
    }
}

static void broken(struct lc_replica *r, struct lc_job *job)
{
    SK_LOG_ERROR("job failed by our own fault", SK_F("sandboxId", job->sandbox_id), SK_FE(&job->err));
    SK_LIST_FOREACH (struct lc_held, held, &job->members, link) {
        struct lc_answer *answer;

        if (++held->failures < r->settings.command_failures_limit)
            continue;
        answer = lc_answer_new();
        if (answer == NULL)
            continue;
        answer->err = job->err;
        lc_held_finish(r, held, LC_FINISH_DEAD, answer);
        lc_answer_drop(answer);
    }
}

void lc_queue_ended(struct lc_replica *r, struct lc_job *job)
{
    struct lc_queue *queue = job->queue;
    int64_t now_us = sk_mono_us(r->sched), pause_ms;
    enum lc_outcome outcome = job->outcome;

    queue->job = NULL;
    atomic_fetch_sub(&r->job_count, 1);
    queue->busy = job->busy;
    if (outcome != LC_OUTCOME_DONE && outcome != LC_OUTCOME_FAILED)
        answer_known(r, job);
    if (outcome != LC_OUTCOME_AGAIN && outcome != LC_OUTCOME_OUTAGE && outcome != LC_OUTCOME_BROKEN)
        queue->again = 0;
    if (lc_draining(r) && outcome != LC_OUTCOME_DONE && outcome != LC_OUTCOME_FAILED)
        outcome = LC_OUTCOME_CALLED_BACK;
    switch (outcome) {
    case LC_OUTCOME_DONE:
    case LC_OUTCOME_FAILED:
        answer_members(r, job);
        break;
    case LC_OUTCOME_CALLED_BACK:
        SK_LIST_FOREACH (struct lc_held, held, &job->members, link)
            lc_held_finish(r, held, LC_FINISH_NAK, NULL);
        break;
    case LC_OUTCOME_BROKEN:
        broken(r, job);
        break;
    default:
        break;
    }
    requeue(r, queue, job);
    if (job->kind == LC_JOB_COMMANDS && !sk_list_empty(&queue->waiting)) {
        bool overtaken = SK_LIST_ENTRY(struct lc_held, queue->waiting.next, link)->command.verb == LC_VERB_DELETE &&
                         lc_job_cancelled(job) == LC_CANCEL_OVERTAKEN;

        if (outcome == LC_OUTCOME_BUSY && !overtaken) {
            lc_queue_park(r, queue, LC_PARK_BUSY, 0);
        } else if (outcome == LC_OUTCOME_RETRY && !overtaken) {
            lc_queue_park(r, queue, LC_PARK_OWN, now_us + job->wake_ms * 1000);
        } else if (outcome == LC_OUTCOME_OUTAGE && !overtaken) {
            pause_ms = lc_backoff_ms(r->sched, LC_OUTAGE_FIRST_MS, LC_OUTAGE_MAX_MS, queue->again++);
            pause_ms = lc_retry_in_ms(&job->err, pause_ms);
            queue->err = job->err;
            lc_queue_park(r, queue, LC_PARK_OUTAGE, now_us + pause_ms * 1000);
        } else if ((outcome == LC_OUTCOME_AGAIN || outcome == LC_OUTCOME_BROKEN) && !overtaken) {
            pause_ms = lc_backoff_ms(r->sched, LC_AGAIN_FIRST_MS, LC_AGAIN_MAX_MS, queue->again++);
            lc_queue_park(r, queue, LC_PARK_PAUSE, now_us + pause_ms * 1000);
        }
    } else if (queue->park == LC_PARK_BUSY) {
        lc_queue_unpark(r, queue); /* an internal job changed something */
    }
    lc_answer_drop(job->answer);
    free(job);
    lc_queue_start(r, queue);
    lc_queue_release(r, queue);
}

/* ---- hints and polls ---------------------------------------------------------------------------- */
void lc_queue_poll(struct lc_replica *r, struct lc_queue *queue)
{
    struct lc_view *view;

    if (queue->polling)
        return;
    view = calloc(1, sizeof(*view));
    if (view == NULL)
        return;
    memcpy(view->sandbox_id, queue->sandbox_id, sizeof(view->sandbox_id));
    queue->polling = true;
    pthread_mutex_lock(&r->poll_lock);
    sk_list_push_back(&r->polls, &view->link);
    pthread_mutex_unlock(&r->poll_lock);
}

static bool poll_all(void *arg, const char *key, void *value)
{
    struct lc_queue *queue = value;

    (void)key;
    if (queue->job != NULL || queue->park == LC_PARK_BUSY)
        lc_queue_poll(arg, queue);
    return true;
}

void lc_dispatch_hint(struct lc_replica *r, const char *sandbox_id)
{
    struct lc_queue *queue;

    if (sandbox_id == NULL) {
        /* Somebody handed over, or overtook: what waits and what runs is compared with the records, and operations
         * without an owner are looked for at once. */
        sk_map_visit(&r->queues, poll_all, r);
        atomic_store(&r->sweep_now, true);
        sk_gate_notify(r->sched, r->sweep_gate);
    } else {
        queue = sk_map_get(&r->queues, sandbox_id);
        if (queue == NULL || (queue->park != LC_PARK_BUSY && queue->park != LC_PARK_OWN) || queue->polling)
            return;
        lc_queue_poll(r, queue);
    }
    sk_gate_notify(r->sched, r->poll_gate);
}

/* Those that wait for an answer hear how far the operation in their way is. */
static void tell_waiting(struct lc_replica *r, struct lc_queue *queue)
{
    if (!queue->busy.present || strcmp(queue->told, queue->busy.phase) == 0)
        return;
    memcpy(queue->told, queue->busy.phase, sizeof(queue->told));
    SK_LIST_FOREACH (struct lc_held, held, &queue->waiting, link)
        lc_publish_progress(r, held, queue->busy.phase, queue->busy.status);
}

void lc_queue_viewed(struct lc_replica *r, struct lc_view *view)
{
    struct lc_queue *queue = sk_map_get(&r->queues, view->sandbox_id);

    if (queue != NULL) {
        queue->polling = false;
        if (view->known && queue->job == NULL && (queue->park == LC_PARK_BUSY || queue->park == LC_PARK_OWN)) {
            queue->busy = view->busy;
            if (view->runnable) {
                lc_queue_unpark(r, queue);
                lc_queue_start(r, queue);
            } else {
                tell_waiting(r, queue);
            }
        }
        lc_queue_release(r, queue);
    }
    free(view);
}

struct seen {
    struct lc_replica *replica;
    struct lc_view **views; /* sorted by sandbox id */
    int count;
};

static int compare_views(const void *a, const void *b)
{
    return strcmp((*(struct lc_view *const *)a)->sandbox_id, (*(struct lc_view *const *)b)->sandbox_id);
}

static int compare_id(const void *id, const void *view)
{
    return strcmp(id, (*(struct lc_view *const *)view)->sandbox_id);
}

static bool look_at(void *arg, const struct sk_instance *record, const struct sk_event *events, int count)
{
    const struct seen *seen = arg;
    struct lc_view **found =
        bsearch(record->sandbox_id, seen->views, (size_t)seen->count, sizeof(struct lc_view *), compare_id);
    struct lc_view *view = found != NULL ? *found : NULL;

    (void)events;
    (void)count;
    lc_beats_overtaken(seen->replica, record);
    if (view == NULL)
        return true;
    view->runnable = record->malformed || !record->has_operation || lc_due(seen->replica, record) != LC_DUE_NO;
    if (record->has_operation) {
        view->busy.present = true;
        view->busy.status = record->status;
        view->busy.type = record->operation.type;
        memcpy(view->busy.operation_id, record->operation.id, sizeof(view->busy.operation_id));
        memcpy(view->busy.phase, record->operation.phase, sizeof(view->busy.phase));
    }
    return true;
}

/* One find for all of them: the truth that the hints only hint at. */
static void poll_batch(struct lc_replica *r, struct sk_list *views, int count)
{
    char(*ids)[SK_SANDBOX_ID_SIZE] = calloc((size_t)count, sizeof(*ids));
    struct seen seen = {.replica = r, .views = calloc((size_t)count, sizeof(struct lc_view *))};
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;
    bool known = false;

    if (ids != NULL && seen.views != NULL) {
        SK_LIST_FOREACH (struct lc_view, view, views, link) {
            view->runnable = true; /* stays so when there is no record */
            memcpy(ids[seen.count], view->sandbox_id, sizeof(*ids));
            seen.views[seen.count++] = view;
        }
        qsort(seen.views, (size_t)seen.count, sizeof(struct lc_view *), compare_views);
        sk_call_init(&call, r->sched);
        call.deadline_us = sk_mono_us(r->sched) + LC_COMMIT_MS * 1000;
        known = r->seams.store->ops->get_many(r->seams.store->self, &call, (const char(*)[SK_SANDBOX_ID_SIZE])ids,
                                              seen.count, look_at, &seen, &err) == 0;
        lc_note_store(r, known);
    }
    SK_LIST_FOREACH (struct lc_view, view, views, link)
        view->known = known;
    free(seen.views);
    free(ids);
    lc_dispatch_view(r, views);
}

/* Also pulls what the relay published: both are calls to the store that nobody waits for on a thread of his own. */
void lc_poller_main(struct lc_replica *r)
{
    struct lc_puller puller;

    if (!lc_puller_init(&puller, r)) {
        SK_LOG_ERROR("no memory for the poller");
        lc_puller_fini(&puller);
        return;
    }
    while (!lc_stopping(r)) {
        uint64_t ticket = sk_gate_ticket(r->sched, r->poll_gate);
        struct sk_list views, *item = NULL;
        int64_t wait_ms;
        int count = 0;

        sk_list_init(&views);
        pthread_mutex_lock(&r->poll_lock);
        while (count < LC_MEMBERS_MAX && (item = sk_list_pop_front(&r->polls)) != NULL) {
            sk_list_push_back(&views, item);
            count++;
        }
        pthread_mutex_unlock(&r->poll_lock);
        if (count > 0)
            poll_batch(r, &views, count);
        wait_ms = lc_pull_in_ms(r);
        if (wait_ms == 0)
            lc_pull(&puller, r);
        else if (count == 0 && !lc_stopping(r))
            sk_gate_wait(r->sched, r->poll_gate, ticket, wait_ms);
    }
    lc_puller_fini(&puller);
}

/* ---- time --------------------------------------------------------------------------------------- */
/* Tells the requester, once, without giving the command up. */
static void reply_only(struct lc_replica *r, struct lc_held *held, const struct sk_error *err)
{
    struct lc_answer *answer;
    char *text;

    if (atomic_exchange(&held->replied, true) || held->command.reply_to[0] == '\0')
        return;
    answer = lc_answer_new();
    if (answer == NULL)
        return;
    answer->err = *err;
    if (!lc_beats_running(r, held->command.sandbox_id, &answer->busy))
        answer->busy = held->queue->busy;
    text = lc_answer_text(answer, &held->command);
    if (text != NULL)
        lc_publish_reply(r, &held->command, text, false);
    free(text);
    lc_answer_drop(answer);
}

/* It waits for a provider that is away, and nothing was begun for it. */
static bool waits_for_provider(const struct lc_held *held)
{
    const struct lc_queue *queue = held->queue;

    return !held->running && !held->own && queue->park == LC_PARK_OUTAGE &&
           (queue->err.code == SK_ERR_PROVIDER_ERROR || queue->err.code == SK_ERR_PROVIDER_TIMEOUT);
}

static void deadline_passed(struct lc_replica *r, struct lc_held *held)
{
    struct lc_queue *queue = held->queue;
    struct sk_error err = {.code = SK_OK};

    if (held->running || held->own) {
        sk_fail(&err, SK_ERR_DEADLINE_EXCEEDED, "the operation goes on; its outcome will be stored under this id");
        reply_only(r, held, &err);
        return;
    }
    if (queue->park == LC_PARK_OUTAGE) {
        /* An outage of our own dependencies never kills a command: it runs when they are back. */
        if (!waits_for_provider(held)) {
            reply_only(r, held, &queue->err);
            return;
        }
        queue->count--;
        lc_held_fail(r, held, &queue->err, NULL);
        return;
    }
    queue->count--;
    lc_queue_refuse_busy(r, queue, held, "another operation of this sandbox was still in progress at the deadline");
}

/* Answered ones have no deadline any more: they stay until their outcome is known. */
static int64_t held_due_us(const struct lc_held *held)
{
    if (atomic_load_explicit(&held->replied, memory_order_relaxed))
        return held->in_progress_us;
    return held->deadline_us < held->in_progress_us ? held->deadline_us : held->in_progress_us;
}

static void tick_held(struct lc_replica *r, int64_t now_us)
{
    const struct sk_bus *bus = r->seams.bus;

    SK_LIST_FOREACH (struct lc_held, held, &r->all, all) {
        if (now_us >= held->in_progress_us) {
            held->in_progress_us = now_us + r->settings.in_progress_every_ms * 1000;
            if (!LC_MUTATE(PARK_WITHOUT_IN_PROGRESS))
                bus->ops->in_progress(bus->self, held->delivery);
        }
        /* Who was answered while its job still looked may wait for a provider since: it ends like the others. */
        if (now_us >= held->deadline_us && (!atomic_load(&held->replied) || waits_for_provider(held)))
            deadline_passed(r, held);
        /* Outside of the list it is the finisher's. */
        if (!sk_list_empty(&held->all) && held_due_us(held) < r->next_tick_us)
            r->next_tick_us = held_due_us(held);
    }
}

static void tick_parked(struct lc_replica *r, int64_t now_us)
{
    bool poll = r->next_poll_us != 0 && now_us >= r->next_poll_us, polled = false, busy = false;

    SK_LIST_FOREACH (struct lc_queue, queue, &r->parked, parked) {
        if (sk_list_empty(&queue->waiting) && queue->job == NULL) {
            lc_queue_unpark(r, queue); /* its last command was answered at the deadline */
            lc_queue_release(r, queue);
            continue;
        }
        if (queue->park == LC_PARK_BUSY) {
            busy = true;
            if (poll && !queue->polling) {
                lc_queue_poll(r, queue);
                polled = true;
            }
        } else if (now_us >= queue->wake_us) {
            lc_queue_unpark(r, queue);
            lc_queue_start(r, queue);
        } else if (queue->wake_us < r->next_tick_us) {
            r->next_tick_us = queue->wake_us;
        }
    }
    if (polled)
        sk_gate_notify(r->sched, r->poll_gate);
    if (poll || !busy)
        r->next_poll_us = busy ? now_us + r->settings.poll_parked_ms * 1000 : 0;
    if (r->next_poll_us != 0 && r->next_poll_us < r->next_tick_us)
        r->next_tick_us = r->next_poll_us;
}

int64_t lc_dispatch_tick(struct lc_replica *r)
{
    int64_t now_us = sk_mono_us(r->sched), left_ms;

    if (now_us >= r->next_tick_us) {
        r->next_tick_us = now_us + TICK_IDLE_MS * 1000;
        tick_held(r, now_us);
        tick_parked(r, now_us);
    }
    left_ms = (r->next_tick_us - now_us + 999) / 1000;
    if (left_ms < TICK_MIN_MS)
        return TICK_MIN_MS;
    return left_ms < TICK_IDLE_MS ? left_ms : TICK_IDLE_MS;
}
