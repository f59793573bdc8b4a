/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of running operations and the two threads that keep them alive: one updateMany for all heartbeats, one
 * pipeline for all leases, both only until the deadline of an operation's phase. Behind it the operation is called
 * back, and a worker that does not come back from that is reported: a hung worker never looks alive. Two threads,
 * because a store that is slow or away must not cost the leases, nor the lease service the heartbeats. */
#include "services/lifecycle/internal.h"

#include <stdlib.h>
#include <string.h>

#define TICK_MAX_MS 500
#define QUIET_TICKS 16 /* without any operation before the threads sleep; to wake them costs the next one time */

void lc_beats_add(struct lc_run *run, int64_t deadline_us)
{
    struct lc_replica *r = run->replica;
    struct lc_beat *beat = &run->beat;
    const struct sk_instance *record = &run->record;
    bool asleep;

    pthread_mutex_lock(&r->beats_lock);
    beat->serial = r->beat_serial++;
    beat->job = run->job;
    beat->lease = run->lifecycle.held ? &run->lifecycle : NULL;
    memcpy(beat->sandbox_id, record->sandbox_id, sizeof(beat->sandbox_id));
    memcpy(beat->operation_id, record->operation.id, sizeof(beat->operation_id));
    memcpy(beat->job_id, record->operation.job_id, sizeof(beat->job_id));
    memcpy(beat->phase, record->operation.phase, sizeof(beat->phase));
    beat->type = record->operation.type;
    beat->status = record->status;
    beat->epoch = record->epoch;
    beat->started_us = run->step_us;
    beat->deadline_us = deadline_us;
    beat->expired = beat->stuck = false;
    sk_list_push_back(&r->beats, &beat->link);
    r->beat_count++;
    asleep = r->beat_sleepers > 0;
    pthread_mutex_unlock(&r->beats_lock);
    if (asleep)
        sk_gate_notify(r->sched, r->beat_gate);
}

void lc_beats_step(struct lc_run *run, int64_t deadline_us)
{
    struct lc_replica *r = run->replica;

    pthread_mutex_lock(&r->beats_lock);
    memcpy(run->beat.phase, run->record.operation.phase, sizeof(run->beat.phase));
    run->beat.started_us = run->step_us;
    run->beat.deadline_us = deadline_us;
    pthread_mutex_unlock(&r->beats_lock);
}

void lc_beats_lease(struct lc_run *run, struct sk_lease *lease)
{
    pthread_mutex_lock(&run->replica->beats_lock);
    run->beat.lease = lease;
    run->beat.serial = run->replica->beat_serial++;
    pthread_mutex_unlock(&run->replica->beats_lock);
}

void lc_beats_remove(struct lc_run *run)
{
    struct lc_replica *r = run->replica;

    pthread_mutex_lock(&r->beats_lock);
    if (run->beat.job != NULL) {
        r->stuck_count -= run->beat.stuck; /* it came back after all */
        sk_list_remove(&run->beat.link);
        run->beat.job = NULL;
        run->beat.lease = NULL;
        r->beat_count--;
    }
    pthread_mutex_unlock(&r->beats_lock);
}

void lc_beats_stop(struct lc_replica *r)
{
    pthread_mutex_lock(&r->beats_lock);
    SK_LIST_FOREACH (struct lc_beat, beat, &r->beats, link)
        lc_job_cancel(beat->job, LC_CANCEL_STOP);
    pthread_mutex_unlock(&r->beats_lock);
}

bool lc_beats_running(struct lc_replica *r, const char *sandbox_id, struct lc_busy *busy)
{
    bool found = false;

    pthread_mutex_lock(&r->beats_lock);
    SK_LIST_FOREACH (struct lc_beat, beat, &r->beats, link) {
        if (strcmp(beat->sandbox_id, sandbox_id) != 0)
            continue;
        found = true;
        if (busy != NULL) {
            memset(busy, 0, sizeof(*busy));
            busy->present = true;
            busy->status = beat->status;
            busy->type = beat->type;
            memcpy(busy->operation_id, beat->operation_id, sizeof(busy->operation_id));
            memcpy(busy->phase, beat->phase, sizeof(busy->phase));
        }
        break;
    }
    pthread_mutex_unlock(&r->beats_lock);
    return found;
}

void lc_beats_overtaken(struct lc_replica *r, const struct sk_instance *record)
{
    pthread_mutex_lock(&r->beats_lock);
    SK_LIST_FOREACH (struct lc_beat, beat, &r->beats, link) {
        if (strcmp(beat->sandbox_id, record->sandbox_id) == 0 && record->epoch > beat->epoch)
            lc_job_cancel(beat->job, LC_CANCEL_OVERTAKEN);
    }
    pthread_mutex_unlock(&r->beats_lock);
}

/* ---- the threads -------------------------------------------------------------------------------- */
/* A copy of what is to be renewed: the table may change while the calls are on their way. */
struct round {
    int capacity, count, lease_count, late_count, stuck_count;
    struct sk_heartbeat *beats;
    int64_t *started_us;
    struct sk_lease *leases;
    struct sk_lease **lease_list;
    uint64_t *serials;
    struct sk_heartbeat *stuck; /* sandbox id, phase */
};

static void round_fini(struct round *round)
{
    free(round->beats);
    free(round->started_us);
    free(round->leases);
    free(round->lease_list);
    free(round->serials);
    free(round->stuck);
    memset(round, 0, sizeof(*round));
}

static bool round_grow(struct round *round, int capacity)
{
    if (capacity <= round->capacity)
        return true;
    round_fini(round);
    round->beats = calloc((size_t)capacity, sizeof(*round->beats));
    round->started_us = calloc((size_t)capacity, sizeof(*round->started_us));
    round->leases = calloc((size_t)capacity, sizeof(*round->leases));
    round->lease_list = calloc((size_t)capacity, sizeof(struct sk_lease *));
    round->serials = calloc((size_t)capacity, sizeof(*round->serials));
    round->stuck = calloc((size_t)capacity, sizeof(*round->stuck));
    if (round->beats == NULL || round->started_us == NULL || round->leases == NULL || round->lease_list == NULL ||
        round->serials == NULL || round->stuck == NULL) {
        round_fini(round);
        return false;
    }
    round->capacity = capacity;
    return true;
}

static void take_lease(struct round *round, const struct lc_beat *beat)
{
    struct sk_lease *copy = &round->leases[round->lease_count];

    memcpy(copy->name, beat->lease->name, sizeof(copy->name));
    memcpy(copy->token, beat->lease->token, sizeof(copy->token));
    atomic_init(&copy->valid_until_us, atomic_load(&beat->lease->valid_until_us));
    atomic_init(&copy->lost, false);
    copy->held = true;
    round->lease_list[round->lease_count] = copy;
    round->serials[round->lease_count++] = beat->serial;
}

/* Under the lock: who beats, whose lease is renewed, whose time is over. */
static void collect(struct lc_replica *r, struct round *round, int64_t now_us, bool beat_due, bool renew_due)
{
    round->count = round->lease_count = round->late_count = round->stuck_count = 0;
    SK_LIST_FOREACH (struct lc_beat, beat, &r->beats, link) {
        if (now_us >= beat->deadline_us && !LC_MUTATE(RENEW_PAST_DEADLINE)) {
            if (!beat->expired) {
                beat->expired = true;
                round->late_count++;
                lc_job_cancel(beat->job, LC_CANCEL_DEADLINE);
            } else if (!beat->stuck && now_us >= beat->deadline_us + r->settings.stuck_grace_ms * 1000 &&
                       round->stuck_count < round->capacity) {
                struct sk_heartbeat *stuck = &round->stuck[round->stuck_count++];

                beat->stuck = true;
                r->stuck_count++;
                memcpy(stuck->sandbox_id, beat->sandbox_id, sizeof(stuck->sandbox_id));
                memcpy(stuck->operation_id, beat->phase, sizeof(beat->phase));
            }
            continue;
        }
        if (round->count >= round->capacity)
            break;
        if (beat_due && !LC_MUTATE(FORGET_HEARTBEAT)) {
            memcpy(round->beats[round->count].sandbox_id, beat->sandbox_id, SK_SANDBOX_ID_SIZE);
            memcpy(round->beats[round->count].operation_id, beat->operation_id, SK_UUID_SIZE);
            round->started_us[round->count++] = beat->started_us;
        }
        if (renew_due && beat->lease != NULL && beat->lease->held)
            take_lease(round, beat);
    }
}

/* Puts the outcome of a renewal back where the registration is still the same. */
static void settle(struct lc_replica *r, const struct round *round)
{
    pthread_mutex_lock(&r->beats_lock);
    for (int i = 0; i < round->lease_count; i++) {
        SK_LIST_FOREACH (struct lc_beat, beat, &r->beats, link) {
            if (beat->serial != round->serials[i] || beat->lease == NULL)
                continue;
            atomic_store(&beat->lease->valid_until_us, atomic_load(&round->leases[i].valid_until_us));
            if (atomic_load(&round->leases[i].lost))
                atomic_store(&beat->lease->lost, true);
            break;
        }
    }
    pthread_mutex_unlock(&r->beats_lock);
}

/* Another owner does not tell us: an operation that runs for longer than a beat looks whether it is still its own. */
static bool compare_owner(void *arg, const struct sk_instance *record, const struct sk_event *events, int count)
{
    (void)events;
    (void)count;
    lc_beats_overtaken(arg, record);
    return true;
}

static void check_owners(struct lc_replica *r, const struct round *round, int64_t now_us)
{
    char(*ids)[SK_SANDBOX_ID_SIZE] = calloc((size_t)round->count, sizeof(*ids));
    int count = 0;

    if (ids == NULL)
        return;
    for (int i = 0; i < round->count && count < LC_MEMBERS_MAX; i++) {
        if (now_us - round->started_us[i] >= r->settings.heartbeat_ms * 1000)
            memcpy(ids[count++], round->beats[i].sandbox_id, sizeof(*ids));
    }
    if (count > 0) {
        struct sk_call call;

        sk_call_init(&call, r->sched);
        call.deadline_us = sk_mono_us(r->sched) + r->settings.heartbeat_ms * 1000;
        (void)r->seams.store->ops->get_many(r->seams.store->self, &call, (const char(*)[SK_SANDBOX_ID_SIZE])ids, count,
                                            compare_owner, r, NULL);
    }
    free(ids);
}

/* False: no operation runs. */
static bool one_round(struct lc_replica *r, struct round *round, bool beat_due, bool renew_due)
{
    int64_t now_us = sk_mono_us(r->sched), wall_ms = sk_wall_ms(r->sched);
    struct sk_error err = {.code = SK_OK};
    int wanted;

    pthread_mutex_lock(&r->beats_lock);
    wanted = r->beat_count;
    pthread_mutex_unlock(&r->beats_lock);
    if (wanted == 0)
        return false;
    if (!round_grow(round, wanted + 16))
        return true;
    pthread_mutex_lock(&r->beats_lock);
    collect(r, round, now_us, beat_due, renew_due);
    pthread_mutex_unlock(&r->beats_lock);

    if (round->late_count > 0)
        lc_count(r, LC_COUNT_PHASE_DEADLINES, round->late_count);
    for (int i = 0; i < round->stuck_count; i++) {
        lc_count(r, LC_COUNT_STUCK_WORKERS, 1);
        SK_LOG_ERROR("worker did not come back from a call that was called back",
                     SK_F("sandboxId", round->stuck[i].sandbox_id), SK_F("phase", round->stuck[i].operation_id));
        if (r->hooks.stuck_worker != NULL)
            r->hooks.stuck_worker(r->hooks.arg, round->stuck[i].sandbox_id, round->stuck[i].operation_id);
    }
    if (round->lease_count > 0) {
        if (r->seams.lease->ops->renew(r->seams.lease->self, round->lease_list, round->lease_count,
                                       r->settings.lease_ttl_ms, &err) != 0)
            lc_note_lease(r, false);
        else
            lc_note_lease(r, true);
        settle(r, round);
    }
    if (round->count > 0) {
        if (r->seams.store->ops->heartbeat(r->seams.store->self, r->settings.replica_id, round->beats, round->count,
                                           wall_ms, &err) != 0)
            lc_note_store(r, false);
        check_owners(r, round, now_us);
    }
    return true;
}

/* Until an operation begins, when none runs; `ticket` was taken before the last look. */
static void sleep_until_needed(struct lc_replica *r, uint64_t ticket)
{
    bool needed;

    pthread_mutex_lock(&r->beats_lock);
    needed = r->beat_count > 0;
    r->beat_sleepers += !needed;
    pthread_mutex_unlock(&r->beats_lock);
    if (needed)
        return;
    if (!lc_stopping(r))
        sk_gate_wait(r->sched, r->beat_gate, ticket, -1);
    pthread_mutex_lock(&r->beats_lock);
    r->beat_sleepers--;
    pthread_mutex_unlock(&r->beats_lock);
}

static void keep_alive(struct lc_replica *r, bool beats, int64_t period_ms)
{
    struct round round = {.capacity = 0};
    int64_t tick_ms = r->settings.lease_renew_ms / 4, due_us = 0;
    int quiet = 0;

    if (tick_ms > TICK_MAX_MS)
        tick_ms = TICK_MAX_MS;
    if (tick_ms < 10)
        tick_ms = 10;
    while (!lc_stopping(r)) {
        uint64_t ticket = sk_gate_ticket(r->sched, r->beat_gate);
        int64_t now_us = sk_mono_us(r->sched);
        bool due = now_us >= due_us;

        if (due)
            due_us = now_us + period_ms * 1000;
        quiet = one_round(r, &round, beats && due, !beats && due) ? 0 : quiet + 1;
        if (quiet >= QUIET_TICKS) {
            sleep_until_needed(r, ticket);
            quiet = 0;
            /* Its claim was its first heartbeat; its lease may be older, when the claim waited for the store. */
            due_us = beats ? sk_mono_us(r->sched) + period_ms * 1000 : 0;
        } else if (!lc_stopping(r)) {
            sk_gate_wait(r->sched, r->beat_gate, ticket, tick_ms);
        }
    }
    round_fini(&round);
}

void lc_heartbeat_main(struct lc_replica *r)
{
    keep_alive(r, true, r->settings.heartbeat_ms);
}

void lc_lease_main(struct lc_replica *r)
{
    keep_alive(r, false, r->settings.lease_renew_ms);
}
