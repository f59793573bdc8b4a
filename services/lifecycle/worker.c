/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker: takes a job, runs the straight-line code of its operation, hands the outcome back. Also what every
 * operation needs on its way: reading the record, the leases, pauses that end when the job is called back. */
#include "services/lifecycle/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOURCE_POLL_MS 15

/* ---- the job list --------------------------------------------------------------------------------------------------
 */
/* A sweep may find thousands of idle sandboxes at once: nobody who asks for one waits behind them. */
static bool is_housekeeping(const struct lc_job *job)
{
    return job->kind == LC_JOB_IDLE_STOP || job->kind == LC_JOB_SETTLE;
}

/* One gate per worker, and the one that went idle last is woken: a shared gate would wake all 64 for each job. */
void lc_jobs_push(struct lc_replica *r, struct lc_job *job)
{
    struct sk_list *seat;

    pthread_mutex_lock(&r->jobs_lock);
    sk_list_push_back(is_housekeeping(job) ? &r->later_jobs : &r->jobs, &job->link);
    seat = sk_list_pop_front(&r->idle);
    pthread_mutex_unlock(&r->jobs_lock);
    if (seat != NULL)
        sk_gate_notify(r->sched, SK_LIST_ENTRY(struct lc_worker_seat, seat, link)->gate);
}

void lc_jobs_stop(struct lc_replica *r)
{
    struct sk_list *seat;

    do {
        pthread_mutex_lock(&r->jobs_lock);
        SK_LIST_FOREACH (struct lc_job, job, &r->jobs, link)
            lc_job_cancel(job, LC_CANCEL_STOP);
        SK_LIST_FOREACH (struct lc_job, job, &r->later_jobs, link)
            lc_job_cancel(job, LC_CANCEL_STOP);
        seat = sk_list_pop_front(&r->idle);
        pthread_mutex_unlock(&r->jobs_lock);
        if (seat != NULL)
            sk_gate_notify(r->sched, SK_LIST_ENTRY(struct lc_worker_seat, seat, link)->gate);
    } while (seat != NULL);
}

bool lc_jobs_withdraw(struct lc_replica *r, struct lc_job *job)
{
    bool mine;

    pthread_mutex_lock(&r->jobs_lock);
    mine = is_housekeeping(job) && !job->taken;
    if (mine)
        sk_list_remove(&job->link);
    pthread_mutex_unlock(&r->jobs_lock);
    return mine;
}

bool lc_worker_wanted(struct lc_replica *r)
{
    bool wanted;

    pthread_mutex_lock(&r->jobs_lock);
    wanted = (!sk_list_empty(&r->jobs) || !sk_list_empty(&r->later_jobs)) && sk_list_empty(&r->idle);
    pthread_mutex_unlock(&r->jobs_lock);
    return wanted;
}

/* The next job; NULL when the replica stops. */
static struct lc_job *take_job(struct lc_replica *r, struct lc_worker_seat *seat)
{
    while (!lc_stopping(r)) {
        uint64_t ticket = sk_gate_ticket(r->sched, seat->gate);
        struct sk_list *item;

        pthread_mutex_lock(&r->jobs_lock);
        sk_list_remove(&seat->link); /* still there when the wait ended by itself */
        item = sk_list_pop_front(&r->jobs);
        if (item == NULL)
            item = sk_list_pop_front(&r->later_jobs);
        if (item != NULL)
            SK_LIST_ENTRY(struct lc_job, item, link)->taken = true;
        else if (!lc_stopping(r))
            sk_list_push_front(&r->idle, &seat->link);
        pthread_mutex_unlock(&r->jobs_lock);
        if (item != NULL)
            return SK_LIST_ENTRY(struct lc_job, item, link);
        if (lc_stopping(r))
            break;
        sk_gate_wait(r->sched, seat->gate, ticket, -1);
    }
    return NULL;
}

void lc_job_cancel(struct lc_job *job, enum lc_cancel reason)
{
    int none = LC_CANCEL_NONE;

    atomic_compare_exchange_strong(&job->cancel, &none, (int)reason);
    sk_call_cancel(&job->call);
}

enum lc_cancel lc_job_cancelled(const struct lc_job *job)
{
    return (enum lc_cancel)atomic_load(&job->cancel);
}

/* ---- what operations need ----------------------------------------------------------------------- */
struct sk_call *lc_commit_call(struct lc_run *run)
{
    int64_t ms = lc_draining(run->replica) ? LC_DRAIN_CALL_MS : LC_COMMIT_MS;

    run->commit.deadline_us = sk_mono_us(run->replica->sched) + ms * 1000;
    return &run->commit;
}

bool lc_pause(struct lc_run *run, int64_t ms)
{
    return sk_call_sleep_ms(run->call, ms) && !lc_stopping(run->replica);
}

int lc_read(struct lc_run *run)
{
    const struct sk_store *store = run->replica->seams.store;
    bool found;

    /* What is known of the record stays known when it cannot be read: a `found` that became false would turn the next
     * write, which tells of the failure, into an insert. */
    if (store->ops->get(store->self, lc_commit_call(run), run->job->sandbox_id, &run->record, &found, &run->err) != 0) {
        if (run->err.code == SK_ERR_STORE_UNAVAILABLE)
            lc_note_store(run->replica, false);
        return -1;
    }
    run->found = found;
    lc_note_store(run->replica, true);
    run->provider = run->found ? lc_provider(run->replica, run->record.provider) : NULL;
    return 0;
}

static int acquire(struct lc_run *run, const char *name, struct sk_lease *lease)
{
    const struct sk_lease_service *service = run->replica->seams.lease;
    enum sk_lease_result result;

    result = service->ops->acquire(service->self, lc_commit_call(run), name, run->replica->settings.lease_ttl_ms, lease,
                                   &run->err);
    if (result == SK_LEASE_ACQUIRED) {
        lc_note_lease(run->replica, true);
        return 0;
    }
    if (result == SK_LEASE_BUSY) {
        lc_note_lease(run->replica, true);
        lc_count(run->replica, LC_COUNT_LEASES_BUSY, 1);
        return sk_fail(&run->err, SK_ERR_SANDBOX_BUSY, "the lease is held by another worker");
    }
    if (run->err.code == SK_ERR_LEASE_UNAVAILABLE)
        lc_note_lease(run->replica, false);
    return -1;
}

int lc_lock(struct lc_run *run)
{
    char name[SK_LEASE_NAME_SIZE];

    if (run->lifecycle.held && sk_lease_valid(&run->lifecycle, run->replica->sched))
        return 0;
    if (run->lifecycle.held)
        lc_unlock(run);
    snprintf(name, sizeof(name), "agent-sandbox:lifecycle:%s", run->job->sandbox_id);
    if (acquire(run, name, &run->lifecycle) != 0)
        return -1;
    run->unlocked = false;
    if (SK_FAULT(LEASE_ACQUIRED, run->command != NULL ? lc_verb_name(run->command->verb) : NULL))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
}

int lc_lock_source(struct lc_run *run, const struct sk_identity *identity)
{
    /* workflowBuilder sandboxes belong to an App: one lease for both (contract/lifecycle.md §4). */
    enum sk_source_type type =
        identity->source_type == SK_SOURCE_WORKFLOW_BUILDER ? SK_SOURCE_APP : identity->source_type;
    int64_t end_us = sk_mono_us(run->replica->sched) + LC_SOURCE_WAIT_MS * 1000;
    char name[SK_LEASE_NAME_SIZE];

    if (run->source.held && sk_lease_valid(&run->source, run->replica->sched))
        return 0;
    lc_unlock(run); /* source before lifecycle, never the other way round */
    snprintf(name, sizeof(name), "agent-sandbox:source:%s:%s", sk_source_type_name(type), identity->source_id);
    for (int tries = 0;; tries++) {
        if (acquire(run, name, &run->source) == 0)
            return 0;
        if (run->err.code != SK_ERR_SANDBOX_BUSY || sk_mono_us(run->replica->sched) >= end_us ||
            !lc_pause(run, lc_backoff_ms(run->replica->sched, SOURCE_POLL_MS, SOURCE_POLL_MS * 8, tries)))
            return -1;
    }
}

static void release(struct lc_run *run, struct sk_lease *lease)
{
    const struct sk_lease_service *service = run->replica->seams.lease;

    if (!lease->held)
        return;
    if (LC_MUTATE(RELEASE_FOREIGN_LEASE))
        lease->token[0] = '\0';
    service->ops->release(service->self, lease);
    lease->held = false;
}

void lc_unlock_source(struct lc_run *run)
{
    release(run, &run->source);
}

void lc_unlock(struct lc_run *run)
{
    release(run, &run->lifecycle);
    release(run, &run->source);
}

void lc_set_busy(struct lc_run *run)
{
    const struct sk_instance *record = &run->record;

    memset(&run->busy, 0, sizeof(run->busy));
    if (!run->found || record->malformed) /* what a broken document says of its operation is nothing to pass on */
        return;
    run->busy.status = record->status;
    if (!record->has_operation)
        return;
    run->busy.present = true;
    run->busy.type = record->operation.type;
    memcpy(run->busy.operation_id, record->operation.id, sizeof(run->busy.operation_id));
    memcpy(run->busy.phase, record->operation.phase, sizeof(run->busy.phase));
    memcpy(run->busy.command_id, record->operation.command_id, sizeof(run->busy.command_id));
}

static enum lc_outcome called_back(const struct lc_run *run)
{
    switch (lc_job_cancelled(run->job)) {
    case LC_CANCEL_DRAIN:
    case LC_CANCEL_STOP:
        return LC_OUTCOME_CALLED_BACK;
    default:
        return LC_OUTCOME_AGAIN;
    }
}

enum lc_outcome lc_give_up(struct lc_run *run)
{
    if (lc_stopping(run->replica))
        return LC_OUTCOME_CALLED_BACK;
    switch (run->err.code) {
    case SK_ERR_CANCELLED:
        return called_back(run);
    case SK_ERR_STORE_UNAVAILABLE:
    case SK_ERR_LEASE_UNAVAILABLE:
    case SK_ERR_PROVIDER_ERROR:
    case SK_ERR_PROVIDER_TIMEOUT:
        return run->err.retryable ? LC_OUTCOME_OUTAGE : LC_OUTCOME_FAILED;
    case SK_ERR_LOST_OWNERSHIP:
        return LC_OUTCOME_AGAIN;
    case SK_ERR_SANDBOX_BUSY:
        lc_set_busy(run);
        return LC_OUTCOME_BUSY;
    case SK_ERR_INTERNAL:
        return LC_OUTCOME_BROKEN;
    default:
        return LC_OUTCOME_FAILED;
    }
}

void lc_progress(struct lc_run *run)
{
    const char *phase = run->record.operation.phase;

    SK_LIST_FOREACH (struct lc_held, held, &run->job->members, link)
        lc_publish_progress(run->replica, held, phase, run->record.status);
}

/* ---- one job ------------------------------------------------------------------------------------ */
/* Commands that were answered before get the same answer again. Which of them are left is told by held->stored. */
static int look_up(struct lc_run *run, struct lc_held *held)
{
    const struct sk_store *store = run->replica->seams.store;
    struct sk_command_record record = {.result = NULL};
    bool found = false;

    if (store->ops->command_find(store->self, lc_commit_call(run), held->command.sandbox_id, held->command.id, &record,
                                 &found, &run->err) != 0) {
        if (run->err.code == SK_ERR_STORE_UNAVAILABLE)
            lc_note_store(run->replica, false);
        return -1;
    }
    held->looked_up = true;
    if (!found)
        return 0;
    if (strcmp(record.body_hash, held->command.hash) != 0) {
        held->conflict = true;
    } else {
        held->stored = record.result;
        record.result = NULL;
        lc_count(run->replica, LC_COUNT_COMMANDS_REPEATED, 1);
    }
    sk_command_record_fini(&record);
    return 0;
}

/* Many at once: a thousand waiters are one question. */
_Static_assert(LC_MEMBERS_MAX <= SK_COMMANDS_FIND_MAX, "the commands of a job are looked up in one call");
struct look_up {
    struct lc_run *run;
    struct lc_held *helds[LC_MEMBERS_MAX];
    const char *ids[LC_MEMBERS_MAX];
    int count;
};

static bool note_stored(void *arg, struct sk_command_record *record)
{
    struct look_up *look = arg;

    /* The same id may wait more than once. */
    for (int i = 0; i < look->count; i++) {
        struct lc_held *held = look->helds[i];

        if (strcmp(look->ids[i], record->command_id) != 0 || held->stored != NULL)
            continue;
        if (strcmp(record->body_hash, held->command.hash) != 0) {
            held->conflict = true;
            continue;
        }
        held->stored = strdup(record->result);
        if (held->stored == NULL) {
            sk_fail(&look->run->err, SK_ERR_INTERNAL, "out of memory");
            return false;
        }
        lc_count(look->run->replica, LC_COUNT_COMMANDS_REPEATED, 1);
    }
    return true;
}

static int look_up_all(struct lc_run *run)
{
    const struct sk_store *store = run->replica->seams.store;
    struct look_up look = {.run = run};

    SK_LIST_FOREACH (struct lc_held, held, &run->job->members, link) {
        if (held->looked_up || look.count == LC_MEMBERS_MAX)
            continue;
        look.ids[look.count] = held->command.id;
        look.helds[look.count++] = held;
    }
    if (look.count <= 1)
        return look.count == 0 ? 0 : look_up(run, look.helds[0]);
    sk_error_clear(&run->err);
    if (store->ops->command_find_many(store->self, lc_commit_call(run), run->job->sandbox_id, look.ids, look.count,
                                      note_stored, &look, &run->err) != 0) {
        if (run->err.code == SK_ERR_STORE_UNAVAILABLE)
            lc_note_store(run->replica, false);
        return -1;
    }
    if (run->err.code != SK_OK)
        return -1;
    for (int i = 0; i < look.count; i++)
        look.helds[i]->looked_up = true;
    return 0;
}

int lc_look_up_again(struct lc_run *run)
{
    SK_LIST_FOREACH (struct lc_held, held, &run->job->members, link) {
        if (!lc_held_answered(held))
            held->looked_up = false;
    }
    return look_up_all(run);
}

bool lc_held_answered(const struct lc_held *held)
{
    return held->stored != NULL || held->conflict;
}

bool lc_pick_head(struct lc_run *run)
{
    run->head = NULL;
    run->command = NULL;
    SK_LIST_FOREACH (struct lc_held, held, &run->job->members, link) {
        if (lc_held_answered(held))
            continue;
        run->head = held;
        run->command = &held->command;
        return true;
    }
    return false;
}

static enum lc_outcome run_commands(struct lc_run *run)
{
    if (look_up_all(run) != 0)
        return lc_give_up(run);
    if (!lc_pick_head(run))
        return LC_OUTCOME_DONE; /* every one has its own answer */
    switch (run->command->verb) {
    case LC_VERB_ENSURE:
    case LC_VERB_PROVISION:
        return lc_op_ensure(run);
    case LC_VERB_STOP:
        return lc_op_stop(run);
    case LC_VERB_DELETE:
        return lc_op_delete(run);
    case LC_VERB_TOUCH:
        return lc_op_touch(run);
    case LC_VERB_RECOVER:
        return lc_op_recover(run);
    default:
        return lc_op_pending(run);
    }
}

static enum lc_outcome run_kind(struct lc_run *run)
{
    if (lc_job_cancelled(run->job) != LC_CANCEL_NONE)
        return called_back(run);
    switch (run->job->kind) {
    case LC_JOB_COMMANDS:
        return run_commands(run);
    case LC_JOB_RECOVER:
        return lc_op_takeover(run);
    case LC_JOB_IDLE_STOP:
        return lc_op_idle_stop(run);
    default:
        return lc_op_settle(run);
    }
}

/* What the commands of this job will be told: made here, where the record is at hand. */
static void make_answer(struct lc_run *run)
{
    struct lc_answer *answer;
    json_t *view = NULL;

    if (run->job->kind != LC_JOB_COMMANDS || run->head == NULL)
        return;
    answer = lc_answer_new();
    if (answer == NULL)
        return;
    answer->ok = run->job->outcome == LC_OUTCOME_DONE;
    if (!answer->ok) {
        answer->err = run->err;
        lc_set_busy(run);
        answer->busy = run->busy;
    } else {
        memcpy(answer->operation_id, run->operation_id, sizeof(answer->operation_id));
        if (run->found) {
            answer->status = run->record.status;
            answer->epoch = run->record.epoch;
            view = sk_instance_public_json(&run->record);
            answer->instance = view != NULL ? json_dumps(view, JSON_COMPACT) : NULL;
            json_decref(view);
            if (answer->instance == NULL) {
                lc_answer_drop(answer);
                return;
            }
        }
    }
    run->job->answer = answer;
}

static void run_job(struct lc_run *run, struct lc_job *job)
{
    run->job = job;
    run->call = &job->call;
    run->call->transport = run->transport;
    sk_call_init(&run->commit, run->replica->sched);
    run->head = NULL;
    run->command = NULL;
    run->provider = run->claimed_at = NULL;
    run->found = run->unlocked = run->claimed = run->handed_over = run->create_sent = run->keep_quota =
        run->insert_refused = run->in_doubt = false;
    run->source.held = run->lifecycle.held = false;
    run->operation_id[0] = run->created_id[0] = '\0';
    run->epoch_floor = run->wake_ms = run->claimed_us = 0;
    memset(&run->busy, 0, sizeof(run->busy));
    memset(&run->err, 0, sizeof(run->err));

    job->outcome = run_kind(run);
    /* Nothing of an operation is left behind here: it was committed, recorded as failed, handed over or lost. */
    lc_engine_forget(run);
    if (job->outcome == LC_OUTCOME_DONE || job->outcome == LC_OUTCOME_FAILED)
        make_answer(run);
    lc_unlock(run);
    if (run->handed_over && !lc_stopping(run->replica))
        lc_publish_wake(run->replica);
    run->transport = run->call->transport;
    run->call->transport = NULL;
    job->busy = run->busy;
    job->err = run->err;
    job->wake_ms = run->wake_ms;
}

/* Seats live as long as the replica: whoever took one off the idle list may still be about to ring its gate. */
static struct lc_worker_seat *take_seat(struct lc_replica *r)
{
    struct lc_worker_seat *seat = calloc(1, sizeof(*seat));

    if (seat == NULL)
        return NULL;
    sk_list_init(&seat->link);
    seat->gate = sk_gate_new(r->sched);
    if (seat->gate == NULL) {
        free(seat);
        return NULL;
    }
    pthread_mutex_lock(&r->jobs_lock);
    sk_list_push_back(&r->seats, &seat->seats);
    pthread_mutex_unlock(&r->jobs_lock);
    return seat;
}

void lc_worker_main(struct lc_replica *r)
{
    struct lc_run *run = calloc(1, sizeof(*run));
    struct lc_worker_seat *seat = take_seat(r);
    struct lc_job *job;

    if (run == NULL || seat == NULL) {
        SK_LOG_ERROR("no memory for a worker");
        free(run);
        return;
    }
    run->replica = r;
    sk_list_init(&run->beat.link);
    while ((job = take_job(r, seat)) != NULL) {
        run_job(run, job);
        lc_dispatch_done(r, job);
    }
    if (r->hooks.worker_end != NULL) {
        sk_call_init(&run->commit, r->sched);
        run->commit.transport = run->transport;
        r->hooks.worker_end(r->hooks.arg, &run->commit);
    }
    free(run);
}
