/* SPDX-License-Identifier: Apache-2.0
 *
 * Claims, phases, commits: the only place that changes an operation of a record. Each change is one compare-and-set
 * that also appends its events; an answer that is lost is resolved by reading back, never by guessing. */
#include "services/lifecycle/internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define STORE_WAIT_FIRST_MS 25
#define STORE_WAIT_MAX_MS   1000
#define GUARD_POLL_MS       25
#define TRIES_CALLED_BACK   3
#define TRIES_DRAINING      1 /* little time is left, and others wait for it */
#define TRIES_BEFORE_CLAIM  3 /* a job that owns nothing yet gives its worker back instead of waiting for the store */

/* ---- events ------------------------------------------------------------------------------------- */
/* An event of the change in hand: run->after already says how it ends, `from` how it began. */
static struct sk_event *event_add(struct lc_run *run, int *count, enum sk_event_type type, enum sk_status from,
                                  enum sk_status to, const struct sk_operation *op)
{
    struct sk_instance *after = &run->after;
    struct sk_event *event = &run->events[(*count)++];

    memset(event, 0, sizeof(*event));
    sk_ulid(run->replica->sched, event->id);
    event->type = type;
    event->time = sk_wall_ms(run->replica->sched);
    memcpy(event->sandbox_id, after->sandbox_id, sizeof(event->sandbox_id));
    event->identity = after->identity;
    memcpy(event->team_id, after->team_id, sizeof(event->team_id));
    memcpy(event->provider, after->provider, sizeof(event->provider));
    event->epoch = after->epoch;
    event->sequence = ++after->sequence;
    event->from = from;
    event->to = to;
    memcpy(event->operation_id, op->id, sizeof(event->operation_id));
    memcpy(event->job_id, op->job_id, sizeof(event->job_id));
    event->operation_type = op->type;
    memcpy(event->phase, op->phase, sizeof(event->phase));
    event->attempt = op->attempt;
    memcpy(event->owner, op->owner, sizeof(event->owner));
    memcpy(event->command_id, op->command_id, sizeof(event->command_id));
    memcpy(event->traceparent, op->traceparent, sizeof(event->traceparent));
    event->duration_ms = -1;
    return event;
}

static int64_t since_ms(int64_t now_ms, int64_t then_ms)
{
    return now_ms > then_ms ? now_ms - then_ms : 0;
}

/* ---- the write ---------------------------------------------------------------------------------- */
enum verdict { VERDICT_APPLIED, VERDICT_UNCHANGED, VERDICT_CHANGED, VERDICT_UNKNOWN };

static bool same_operation(const struct sk_instance *a, const struct sk_instance *b)
{
    return a->has_operation == b->has_operation && (!a->has_operation || strcmp(a->operation.id, b->operation.id) == 0);
}

/* Did run->after reach the store? run->record is free for the answer: it is overwritten by every way out. */
static enum verdict read_back(struct lc_run *run)
{
    const struct sk_store *store = run->replica->seams.store;
    struct sk_instance *seen = &run->record;
    struct sk_error err = {.code = SK_OK};
    bool found;

    lc_count(run->replica, LC_COUNT_READ_BACKS, 1);
    if (store->ops->get(store->self, lc_commit_call(run), run->after.sandbox_id, seen, &found, &err) != 0)
        return VERDICT_UNKNOWN;
    /* An insert that is not there may have been applied and deleted since: writing it again would bring back a dead
     * record with its old epoch. The job looks anew and makes another one. */
    if (!found)
        return LC_MUTATE(REPEAT_LOST_INSERT) && !run->found ? VERDICT_UNCHANGED : VERDICT_CHANGED;
    if (!run->found && strcmp(seen->oid, run->after.oid) != 0)
        return VERDICT_CHANGED;
    if (run->after.sequence != run->before.sequence && seen->epoch == run->after.epoch &&
        seen->sequence == run->after.sequence &&
        (run->after.has_operation ? same_operation(seen, &run->after)
                                  : strcmp(seen->last_operation.id, run->after.last_operation.id) == 0)) {
        lc_count(run->replica, LC_COUNT_READ_BACK_APPLIED, 1);
        return VERDICT_APPLIED;
    }
    /* Also a change without event (same sequence) ends here: writing it once more changes nothing. */
    if (run->found && seen->status == run->before.status && same_operation(seen, &run->before) &&
        seen->epoch == run->before.epoch && seen->sequence == run->before.sequence)
        return VERDICT_UNCHANGED;
    return VERDICT_CHANGED;
}

static int write_once(struct lc_run *run, int count, const struct sk_cas_guard *guard, struct sk_error *err)
{
    const struct sk_store *store = run->replica->seams.store;
    bool created = false;

    if (run->found)
        return store->ops->cas(store->self, lc_commit_call(run), &run->before, &run->after, run->events, count, guard,
                               err);
    if (store->ops->insert(store->self, lc_commit_call(run), &run->after, run->events, count, &created, err) != 0)
        return SK_CAS_ERROR;
    return created ? SK_CAS_APPLIED : SK_CAS_LOST;
}

static bool wait_for_store(struct lc_run *run, int tries)
{
    int64_t ms = lc_backoff_ms(run->replica->sched, STORE_WAIT_FIRST_MS, STORE_WAIT_MAX_MS, tries);

    if (!run->claimed && tries >= TRIES_BEFORE_CLAIM)
        return false;
    if (lc_pause(run, ms))
        return true;
    /* Called back. What is written now gives the operation up: one lost message must not leave it to the take-over. */
    return tries < (lc_draining(run->replica) ? TRIES_DRAINING : TRIES_CALLED_BACK) && !lc_stopping(run->replica) &&
           sk_call_sleep_ms(lc_commit_call(run), ms);
}

/* Writes run->after over run->before (inserts it when run->found is false). 0 = it is in the store, and run->record
 * shows it. -1: lost_ownership (the record is another one now), store_unavailable (outcome in run->err), internal. */
static int write_record(struct lc_run *run, int count, const struct sk_cas_guard *guard)
{
    bool ambiguous = false;

    run->in_doubt = false;
    for (int tries = 0;; tries++) {
        struct sk_error err = {.code = SK_OK};
        int result = write_once(run, count, guard, &err);
        enum verdict verdict = VERDICT_UNCHANGED;

        if (result == SK_CAS_APPLIED)
            break;
        if (result == SK_CAS_LOST && !run->in_doubt) {
            run->insert_refused = !run->found;
            return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record changed");
        }
        if (result == SK_CAS_LOST) {
            ambiguous = true; /* perhaps to our own first try, which arrived after it had been looked for */
        } else {
            if (err.code != SK_ERR_STORE_UNAVAILABLE && err.code != SK_ERR_CANCELLED) {
                run->err = err;
                return -1;
            }
            lc_note_store(run->replica, false);
            if (err.outcome == SK_OUTCOME_UNKNOWN)
                ambiguous = run->in_doubt = true;
        }
        /* Until the store answers nothing is known; when it does, one look settles it. */
        while (ambiguous && (verdict = read_back(run)) == VERDICT_UNKNOWN) {
            if (!wait_for_store(run, tries++))
                return sk_fail_unknown(&run->err, SK_ERR_STORE_UNAVAILABLE,
                                       "the store does not tell whether a change was applied");
        }
        if (verdict == VERDICT_APPLIED)
            break;
        if (verdict == VERDICT_CHANGED || result == SK_CAS_LOST)
            return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record changed");
        ambiguous = false;
        if (!wait_for_store(run, tries)) {
            run->err = err;
            return -1;
        }
    }
    run->in_doubt = false;
    lc_note_store(run->replica, true);
    if (count > 0)
        lc_relay_hint(run->replica, run->events, count,
                      run->found && run->before.outbox_count > 0 && run->before.has_operation &&
                          strcmp(run->before.operation.owner, run->replica->settings.replica_id) != 0);
    lc_history_wrote(run);
    run->record = run->after;
    run->found = true;
    return 0;
}

/* ---- deadlines ---------------------------------------------------------------------------------- */
/* Of the step that leads to phase `index` (index = count: the terminal commit takes as long as a claim). */
static int64_t step_deadline_ms(const struct lc_run *run, enum sk_op type, int index)
{
    const struct sk_op_info *info = sk_op_info(type);
    int64_t ms = info->phases[index < info->phase_count ? index : 0].deadline_ms;

    ms = ms * run->replica->settings.phase_deadline_scale_pct / 100;
    return ms > 0 ? ms : 1;
}

static int64_t next_step_ms(const struct lc_run *run, const struct sk_operation *op)
{
    return step_deadline_ms(run, op->type, sk_op_phase_index(op->type, op->phase) + 1);
}

static int64_t begin_step(struct lc_run *run)
{
    run->step_us = sk_mono_us(run->replica->sched);
    run->call->deadline_us = run->step_us + next_step_ms(run, &run->record.operation) * 1000;
    return run->call->deadline_us;
}

/* ---- claim -------------------------------------------------------------------------------------- */
static bool taken_over(const struct lc_run *run, const struct sk_operation *old)
{
    if (old->job_id[0] == '\0')
        return true;
    return old->owner[0] != '\0' && strcmp(old->owner, run->replica->settings.replica_id) != 0;
}

/* Is the operation what the command asks for? Only then it carries the command's id: by it a command that comes again
 * knows its own work. What a command does on its way (the stop of a repair, the removal of what failed) and the
 * operations of others that it continues are not its own. */
static bool wants(const struct lc_command *command, enum sk_op op)
{
    switch (command->verb) {
    case LC_VERB_ENSURE:
    case LC_VERB_PROVISION:
        return op == SK_OP_PROVISION;
    case LC_VERB_STOP:
        return op == SK_OP_STOP;
    case LC_VERB_DELETE:
        return op == SK_OP_DELETE;
    default:
        return command->params.abandon && (op == SK_OP_PROVISION || op == SK_OP_DELETE);
    }
}

static void fill_operation(struct lc_run *run, const struct lc_claim *claim, int64_t now_ms)
{
    const struct sk_operation *old = run->before.has_operation ? &run->before.operation : NULL;
    struct sk_operation *op = &run->after.operation;
    bool resumes = old != NULL && old->type == claim->type;

    memset(op, 0, sizeof(*op));
    op->type = claim->type;
    sk_uuid4(run->replica->sched, op->id);
    sk_copy_cut(op->phase, sizeof(op->phase), resumes ? old->phase : sk_op_info(claim->type)->phases[0].name);
    if (run->found && old == NULL)
        op->previous_status = run->before.status;
    else if (old != NULL)
        op->previous_status = old->previous_status;
    op->started_at = op->heartbeat_at = now_ms;
    memcpy(op->owner, run->replica->settings.replica_id, sizeof(op->owner));
    if (resumes) {
        op->attempt = claim->reset ? 0 : old->attempt;
        memcpy(op->job_id, old->job_id, sizeof(op->job_id));
        memcpy(op->command_id, old->command_id, sizeof(op->command_id));
        memcpy(op->traceparent, old->traceparent, sizeof(op->traceparent));
    }
    if (op->job_id[0] == '\0')
        sk_uuid4(run->replica->sched, op->job_id);
    /* What an operator gives up goes on in his name: it is not what its command asked for any more. */
    if (run->command != NULL && wants(run->command, op->type) &&
        (op->command_id[0] == '\0' || (run->command->params.abandon && op->type == SK_OP_PROVISION)))
        memcpy(op->command_id, run->command->id, sizeof(op->command_id));
    if (op->traceparent[0] == '\0' && run->command != NULL)
        memcpy(op->traceparent, run->command->traceparent, sizeof(op->traceparent));
    op->deadline_at = now_ms + next_step_ms(run, op);
}

static int64_t next_epoch(const struct lc_run *run, int64_t now_ms)
{
    int64_t epoch = run->found && run->before.epoch > 0 ? run->before.epoch + 1 : now_ms;

    if (epoch <= run->epoch_floor)
        epoch = run->epoch_floor + 1;
    return epoch > 0 ? epoch : 1;
}

int lc_engine_former_life(struct lc_run *run, bool *lived)
{
    const struct sk_store *store = run->replica->seams.store;
    struct sk_timeline_entry last;
    int count = 1;

    if (store->ops->timeline_list(store->self, lc_commit_call(run), run->job->sandbox_id, &last, &count, &run->err) !=
        0)
        return -1;
    if (lived != NULL)
        *lived = count > 0;
    if (count > 0 && last.epoch > run->epoch_floor)
        run->epoch_floor = last.epoch;
    return 0;
}

int lc_engine_claim(struct lc_run *run, const struct lc_claim *claim)
{
    struct lc_replica *r = run->replica;
    const struct sk_op_info *info = sk_op_info(claim->type);
    enum sk_status from = run->found ? run->record.status : SK_STATUS_NONE;
    struct sk_cas_guard guard = {.last_active_at = false};
    int64_t now_ms = sk_wall_ms(r->sched);
    bool resumes, takeover = false;
    struct sk_event *event;
    int count = 0;

    if (!sk_op_claimable(claim->type, from))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "%s cannot be claimed from %s", info->name, sk_status_name(from));
    /* A delete goes without when the operation it overtakes has the lease. Nobody else: what was looked at and reserved
     * under a lease that ended meanwhile is worth nothing. */
    if (claim->type != SK_OP_DELETE && !sk_lease_valid(&run->lifecycle, r->sched))
        return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the lease ended before the claim");
    if (claim->fresh != NULL && !sk_lease_valid(&run->source, r->sched))
        return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the source's lease ended before the claim");
    if (run->found && run->record.outbox_count >= SK_OUTBOX_MAX) {
        sk_fail(&run->err, SK_ERR_SANDBOX_BUSY, "too many events of this sandbox wait to be published");
        return -1;
    }
    /* FastGPT may have made the record again after we deleted it, and this clock may be behind the one that did. */
    if (run->found && run->record.epoch == 0 && lc_engine_former_life(run, NULL) != 0)
        return -1;
    if (run->found) {
        run->before = run->record;
        run->after = run->record;
    } else {
        assert(claim->fresh != NULL); /* only provision is claimable without a record */
        memset(&run->before, 0, sizeof(run->before));
        run->after = *claim->fresh;
    }
    resumes = run->before.has_operation && run->before.operation.type == claim->type;
    run->after.epoch = next_epoch(run, now_ms);
    if (claim->failed != NULL) {
        event = event_add(run, &count, SK_EVENT_FAILED, from, info->transitional, &run->before.operation);
        sk_stored_error_set(&event->error, claim->failed);
        event->duration_ms = since_ms(now_ms, run->before.operation.started_at);
        event->epoch = run->before.epoch; /* it ends the old operation; the claim that follows raises the epoch */
        from = info->transitional;
    }
    if (claim->team_id != NULL && run->after.team_id[0] == '\0')
        sk_copy_cut(run->after.team_id, sizeof(run->after.team_id), claim->team_id);
    fill_operation(run, claim, now_ms);
    run->after.has_operation = true;
    run->after.status = info->transitional;
    takeover = resumes && taken_over(run, &run->before.operation);
    event = event_add(run, &count, takeover ? SK_EVENT_TAKENOVER : SK_EVENT_CLAIMED, from, info->transitional,
                      &run->after.operation);
    if (claim->reason != NULL)
        sk_copy_cut(event->reason, sizeof(event->reason), claim->reason);
    else if (run->command != NULL)
        memcpy(event->reason, run->command->params.reason, sizeof(event->reason));
    /* FastGPT's delete, taken over in its last phase: a record of ours in that phase always has its deleted event. */
    if (takeover && claim->type == SK_OP_DELETE &&
        sk_op_phase_index(SK_OP_DELETE, run->after.operation.phase) == info->phase_count - 1)
        (void)event_add(run, &count, SK_EVENT_DELETED, info->transitional, SK_STATUS_NONE, &run->after.operation);
    if (claim->if_idle) {
        guard.last_active_at = true;
        guard.unpinned_at = now_ms;
    }
    run->claimed_us = sk_mono_us(r->sched);
    if (write_record(run, count, claim->if_idle ? &guard : NULL) != 0) {
        run->claimed_us = 0;
        if (run->err.code == SK_ERR_LOST_OWNERSHIP)
            lc_count(r, LC_COUNT_CLAIMS_LOST, 1);
        return -1;
    }
    run->claimed = true;
    run->resumed = resumes;
    run->create_sent = false;
    run->created_id[0] = run->ensured_volume[0] = '\0';
    run->provider = run->claimed_at = lc_provider(r, run->record.provider);
    lc_beats_add(run, begin_step(run));
    lc_count(r, LC_COUNT_CLAIMS, 1);
    if (takeover) {
        lc_count(r, LC_COUNT_TAKEOVERS, 1);
        SK_LOG_WARN("operation taken over", SK_F("sandboxId", run->record.sandbox_id),
                    SK_F("operationId", run->record.operation.id), SK_FI("epoch", run->record.epoch),
                    SK_F("operation", info->name), SK_F("phase", run->record.operation.phase),
                    SK_F("from", run->before.operation.owner));
    } else if (resumes) {
        lc_count(r, LC_COUNT_RESUMES, 1);
    }
    lc_progress(run);
    if (SK_FAULT(CLAIM_COMMITTED, info->name))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
}

/* ---- while it runs ------------------------------------------------------------------------------ */
int lc_engine_guard(struct lc_run *run)
{
    const struct sk_sched *sched = run->replica->sched;
    const struct sk_lease *lease = &run->lifecycle;

    for (;;) {
        if (lc_stopping(run->replica))
            return sk_fail_unknown(&run->err, SK_ERR_CANCELLED, "the replica stops");
        if (sk_call_budget_ms(run->call, 1) == 0) {
            if (sk_call_cancelled(run->call))
                return sk_fail_unknown(&run->err, SK_ERR_CANCELLED, "the operation was called back");
            return sk_fail_unknown(&run->err, SK_ERR_PROVIDER_TIMEOUT, "the phase did not end in time");
        }
        if (run->unlocked || sk_lease_valid(lease, sched))
            return 0;
        /* Only the lease of a claimed operation is renewed: without a claim it just ends. */
        if (!run->claimed || !lease->held || atomic_load(&lease->lost)) {
            lc_count(run->replica, LC_COUNT_LEASES_LOST, 1);
            return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the lease was lost");
        }
        /* Expired by our clock and nobody says that it is lost: the lease service is away. */
        if (!lc_pause(run, GUARD_POLL_MS))
            continue;
    }
}

bool lc_engine_reached(const struct lc_run *run, const char *phase)
{
    const struct sk_operation *op = &run->record.operation;

    return sk_op_phase_index(op->type, op->phase) >= sk_op_phase_index(op->type, phase);
}

/* run->after = the record one phase further; *event is the phase event. */
static struct sk_event *advance(struct lc_run *run, const char *phase, int *count)
{
    struct sk_operation *op = &run->after.operation;
    int64_t now_ms = sk_wall_ms(run->replica->sched);
    struct sk_event *event;

    run->before = run->record;
    run->after = run->record;
    sk_copy_cut(op->phase, sizeof(op->phase), phase);
    op->heartbeat_at = now_ms;
    op->deadline_at = now_ms + next_step_ms(run, op);
    event = event_add(run, count, SK_EVENT_PHASE, run->after.status, run->after.status, op);
    event->duration_ms = (sk_mono_us(run->replica->sched) - run->step_us) / 1000;
    return event;
}

int lc_engine_phase(struct lc_run *run, const char *phase)
{
    int count = 0;

    if (lc_engine_guard(run) != 0)
        return -1;
    advance(run, phase, &count);
    if (write_record(run, count, NULL) != 0)
        return -1;
    lc_beats_step(run, begin_step(run));
    lc_progress(run);
    if (SK_FAULT(PHASE_COMMITTED, sk_op_name(run->record.operation.type)))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
}

void lc_engine_forget(struct lc_run *run)
{
    if (!run->claimed)
        return;
    lc_beats_remove(run);
    run->claimed = false;
    run->call->deadline_us = 0;
}

/* ---- ends --------------------------------------------------------------------------------------- */
/* run->after = the record without its operation, in `status`. */
static void end_operation(struct lc_run *run, enum sk_status status, const char *result, const struct sk_error *cause)
{
    const struct sk_operation *op = &run->before.operation;
    struct sk_last_operation *last = &run->after.last_operation;

    run->before = run->record;
    run->after = run->record;
    run->after.status = status;
    run->after.has_operation = false;
    memset(&run->after.operation, 0, sizeof(run->after.operation));
    memset(last, 0, sizeof(*last));
    last->present = true;
    memcpy(last->id, op->id, sizeof(last->id));
    last->type = op->type;
    sk_copy_cut(last->result, sizeof(last->result), result);
    last->started_at = op->started_at;
    last->ended_at = sk_wall_ms(run->replica->sched);
    if (cause != NULL)
        sk_stored_error_set(&last->error, cause);
}

static int commit_end(struct lc_run *run, int count)
{
    const char *name = sk_op_name(run->before.operation.type);

    (void)name; /* release builds have no fault points */
    if (write_record(run, count, NULL) != 0)
        return -1;
    memcpy(run->operation_id, run->before.operation.id, sizeof(run->operation_id));
    lc_engine_forget(run);
    lc_ended(run,
             strcmp(run->record.last_operation.result, "completed") == 0 ? LC_ENDED_COMPLETED : LC_ENDED_COMPENSATED);
    if (SK_FAULT(TERMINAL_COMMITTED, name))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
}

int lc_engine_finish(struct lc_run *run, bool active, const struct sk_image *image)
{
    const struct sk_op_info *info = sk_op_info(run->record.operation.type);
    struct sk_event *event;
    int count = 0;

    if ((LC_MUTATE(SKIP_TERMINAL_FENCE) ? lc_read(run) : lc_engine_guard(run)) != 0)
        return -1;
    end_operation(run, info->terminal, "completed", NULL);
    if (active && run->after.last_active_at < run->after.last_operation.ended_at)
        run->after.last_active_at = run->after.last_operation.ended_at;
    if (image != NULL && image->present)
        run->after.image = *image;
    event = event_add(run, &count, SK_EVENT_COMPLETED, run->before.status, info->terminal, &run->before.operation);
    event->duration_ms = since_ms(event->time, run->before.operation.started_at);
    return commit_end(run, count);
}

int lc_engine_compensate(struct lc_run *run, enum sk_status status, const struct sk_error *cause)
{
    struct sk_event *event;
    int count = 0;

    if (lc_engine_guard(run) != 0)
        return -1;
    end_operation(run, status, "compensated", cause);
    /* The image of a sandbox that never ran must not be what the next ensure starts. */
    if (run->before.operation.type == SK_OP_PROVISION && run->before.operation.previous_status == SK_STATUS_NONE)
        run->after.image.present = false;
    event = event_add(run, &count, SK_EVENT_FAILED, run->before.status, status, &run->before.operation);
    sk_stored_error_set(&event->error, cause);
    event->duration_ms = since_ms(event->time, run->before.operation.started_at);
    lc_count(run->replica, LC_COUNT_COMPENSATED, 1);
    return commit_end(run, count);
}

int lc_engine_deleted(struct lc_run *run)
{
    const struct sk_op_info *info = sk_op_info(SK_OP_DELETE);
    struct sk_event *event;
    int count = 0;

    if (lc_engine_guard(run) != 0)
        return -1;
    advance(run, info->phases[info->phase_count - 1].name, &count);
    event = event_add(run, &count, SK_EVENT_DELETED, run->after.status, SK_STATUS_NONE, &run->after.operation);
    event->duration_ms = since_ms(event->time, run->after.operation.started_at);
    if (write_record(run, count, NULL) != 0)
        return -1;
    lc_beats_step(run, begin_step(run));
    return 0;
}

int lc_engine_remove(struct lc_run *run)
{
    const struct sk_store *store = run->replica->seams.store;

    for (int tries = 0;; tries++) {
        struct sk_error err = {.code = SK_OK};
        enum sk_cas_result result;

        if (lc_engine_guard(run) != 0)
            return -1;
        run->before = run->record;
        result = store->ops->remove(store->self, lc_commit_call(run), &run->before, &err);
        if (result == SK_CAS_APPLIED)
            break;
        if (result == SK_CAS_ERROR && err.code != SK_ERR_STORE_UNAVAILABLE && err.code != SK_ERR_CANCELLED) {
            run->err = err;
            return -1;
        }
        /* Gone is gone, whoever did it; still there and ours with events waiting: the caller publishes and comes again.
         */
        if (result == SK_CAS_LOST || err.outcome == SK_OUTCOME_UNKNOWN)
            lc_count(run->replica, LC_COUNT_READ_BACKS, 1);
        if (lc_read(run) == 0) {
            if (!run->found)
                break;
            if (!run->record.has_operation || strcmp(run->record.operation.id, run->before.operation.id) != 0)
                return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record changed");
            if (run->record.outbox_count > 0)
                return sk_fail(&run->err, SK_ERR_SANDBOX_BUSY, "events of this sandbox wait to be published");
        }
        if (!lc_pause(run, lc_backoff_ms(run->replica->sched, STORE_WAIT_FIRST_MS, STORE_WAIT_MAX_MS, tries)))
            return sk_fail_unknown(&run->err, SK_ERR_STORE_UNAVAILABLE,
                                   "the store does not tell whether the record is gone");
    }
    memcpy(run->operation_id, run->before.operation.id, sizeof(run->operation_id));
    lc_engine_forget(run);
    run->found = false;
    lc_ended(run, LC_ENDED_COMPLETED);
    if (SK_FAULT(RECORD_REMOVED, sk_op_name(SK_OP_DELETE)))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
}

/* ---- failures, hand-over, activity -------------------------------------------------------------- */
static bool deleted_event_out(const struct sk_instance *record)
{
    const struct sk_op_info *info = sk_op_info(SK_OP_DELETE);

    return record->operation.type == SK_OP_DELETE && record->operation.job_id[0] != '\0' &&
           strcmp(record->operation.phase, info->phases[info->phase_count - 1].name) == 0;
}

int lc_engine_retry(struct lc_run *run, const struct sk_error *cause, bool *blocked)
{
    const struct lc_settings *s = &run->replica->settings;
    int64_t now_ms = sk_wall_ms(run->replica->sched), pause_ms;
    bool unreached = (cause->code == SK_ERR_PROVIDER_ERROR || cause->code == SK_ERR_PROVIDER_TIMEOUT) &&
                     cause->outcome == SK_OUTCOME_FAILED && cause->provider_status == 0;
    struct sk_operation *op = &run->after.operation;
    struct sk_event *event;
    int count = 0;

    run->before = run->record;
    run->after = run->record;
    /* A provider that could not even be reached was not tried: its outage must not block what only waits for its end.
     */
    if (!unreached)
        op->attempt++;
    pause_ms = lc_backoff_ms(run->replica->sched, s->retry_first_ms, s->retry_max_ms, unreached ? 1 : op->attempt - 1);
    pause_ms = lc_retry_in_ms(cause, pause_ms);
    /* Once the deleted event is out there is nothing left that could fail for good, and no event may follow it. */
    *blocked = op->attempt >= s->retry_limit && !deleted_event_out(&run->record);
    op->failed_at = op->heartbeat_at = now_ms;
    op->deadline_at = 0;
    op->owner[0] = '\0';
    sk_stored_error_set(&op->error, cause);
    if (*blocked) {
        op->next_attempt_at = 0;
        snprintf(op->blocked, sizeof(op->blocked), "gave up after %d tries: %s", op->attempt,
                 sk_code_name(cause->code));
        event = event_add(run, &count, SK_EVENT_BLOCKED, run->after.status, run->after.status, op);
        event->error = op->error;
        memcpy(event->reason, op->blocked, sizeof(event->reason));
    } else {
        op->next_attempt_at = now_ms + pause_ms;
    }
    if (write_record(run, count, NULL) != 0)
        return -1;
    run->wake_ms = pause_ms;
    lc_count(run->replica, *blocked ? LC_COUNT_BLOCKED : LC_COUNT_RETRIES, 1);
    memcpy(run->operation_id, run->record.operation.id, sizeof(run->operation_id));
    lc_engine_forget(run);
    lc_ended(run, *blocked ? LC_ENDED_BLOCKED : LC_ENDED_RETRIED);
    (void)SK_FAULT(FAILURE_RECORDED, sk_op_name(run->record.operation.type));
    return 0;
}

int lc_engine_block(struct lc_run *run, const struct sk_error *cause)
{
    struct sk_operation *op = &run->after.operation;
    int64_t now_ms = sk_wall_ms(run->replica->sched);
    struct sk_event *event;
    int count = 0;

    run->before = run->record;
    run->after = run->record;
    op->owner[0] = '\0';
    op->deadline_at = op->next_attempt_at = 0;
    op->failed_at = op->heartbeat_at = now_ms;
    sk_stored_error_set(&op->error, cause);
    sk_copy_cut(op->blocked, sizeof(op->blocked), cause->message);
    event = event_add(run, &count, SK_EVENT_BLOCKED, run->after.status, run->after.status, op);
    event->error = op->error;
    memcpy(event->reason, op->blocked, sizeof(event->reason));
    if (write_record(run, count, NULL) != 0)
        return -1;
    lc_count(run->replica, LC_COUNT_BLOCKED, 1);
    lc_engine_forget(run);
    return 0;
}

int lc_engine_hand_over(struct lc_run *run, int64_t pause_ms)
{
    struct sk_operation *op = &run->after.operation;
    int64_t now_ms = sk_wall_ms(run->replica->sched);

    run->before = run->record;
    run->after = run->record;
    op->heartbeat_at = now_ms;
    op->owner[0] = '\0';
    op->next_attempt_at = pause_ms > 0 ? now_ms + pause_ms : 0;
    op->deadline_at = 0;
    if (write_record(run, 0, NULL) != 0)
        return -1;
    lc_engine_forget(run);
    (void)SK_FAULT(HANDED_OVER, sk_op_name(run->record.operation.type));
    return 0;
}

int lc_engine_touch(struct lc_run *run)
{
    int64_t now_ms = sk_wall_ms(run->replica->sched);

    /* Never backwards: the clock of another replica may be ahead. */
    if (now_ms <= run->record.last_active_at)
        return 0;
    run->before = run->record;
    run->after = run->record;
    run->after.last_active_at = now_ms;
    return write_record(run, 0, NULL);
}

int lc_engine_raise_epoch(struct lc_run *run, int64_t epoch)
{
    run->before = run->record;
    run->after = run->record;
    run->after.epoch = epoch;
    return write_record(run, 0, NULL);
}
