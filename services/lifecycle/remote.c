/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done at the provider, and how its doubtful answers are resolved: a create has no idempotency key there, so
 * every create is followed by a look, the highest epoch is kept, lower ones are removed, and a higher one than ours
 * means that the sandbox is somebody else's now (contract/lifecycle.md §3). */
#include "services/lifecycle/internal.h"

#include <string.h>

#define POLL_FIRST_MS 10
#define POLL_MAX_MS   1000
#define POLL_CLEAN_MS 100
#define WAKE_STAY_MS  1000 /* a worker's patience with a running sandbox that does not answer yet */
#define POLL_MORE_MS  100  /* between the rounds of a removal of more objects than are listed in one go */

static int no_provider(struct lc_run *run)
{
    return sk_fail(&run->err, SK_ERR_OPERATION_BLOCKED, "provider \"%s\" is not configured here", run->record.provider);
}

/* run->remotes = what the provider has for this sandbox. */
static int find(struct lc_run *run)
{
    if (run->provider->ops->find(run->provider->self, run->call, run->record.sandbox_id, run->remotes,
                                 &run->remote_count, &run->more_remotes, &run->err) != 0)
        return sk_fail_context(&run->err, "cannot list the sandbox at its provider");
    return 0;
}

static void forget_remote(struct lc_run *run, int index)
{
    run->remotes[index] = run->remotes[--run->remote_count];
}

static int ask_removal(struct lc_run *run, const struct sk_remote *remote, bool *gone)
{
    if (lc_engine_guard(run) != 0)
        return -1;
    if (run->provider->ops->remove(run->provider->self, run->call, remote->id, gone, &run->err) != 0)
        return sk_fail_context(&run->err, "cannot remove the sandbox at its provider");
    return 0;
}

/* An object of a later epoch than the operation: either ownership is lost and we do not know yet, or the object is left
 * from a former life of the record, made by a clock that was ahead. The next claim goes above it. */
static int higher_epoch(struct lc_run *run, int64_t epoch)
{
    run->epoch_floor = epoch;
    return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the provider has an object of a later epoch");
}

static int check_epochs(struct lc_run *run)
{
    for (int i = 0; i < run->remote_count; i++) {
        if (run->remotes[i].epoch > run->record.epoch && !LC_MUTATE(SKIP_EPOCH_CHECK))
            return higher_epoch(run, run->remotes[i].epoch);
    }
    return 0;
}

/* ---- removal ------------------------------------------------------------------------------------ */
static int64_t poll_ms(const struct lc_run *run, int round)
{
    return lc_backoff_ms(run->replica->sched, POLL_FIRST_MS, run->more_remotes ? POLL_MORE_MS : POLL_MAX_MS, round);
}

/* Whose is an object without an epoch that shows itself late? FastGPT's, and perhaps of a sandbox that it made since a
 * lease was lost without a word: no epoch tells, the record does. */
static int look_at_record(struct lc_run *run)
{
    if (lc_read(run) != 0)
        return -1;
    if (!run->found || !run->record.has_operation || strcmp(run->record.operation.id, run->beat.operation_id) != 0)
        return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record changed");
    return 0;
}

int lc_remote_remove(struct lc_run *run)
{
    if (run->provider == NULL)
        return no_provider(run);
    for (int round = 0;; round++) {
        if (lc_engine_guard(run) != 0 || find(run) != 0 || lc_engine_guard(run) != 0 || check_epochs(run) != 0)
            return -1;
        if (run->remote_count == 0)
            return 0;
        for (int i = 0; i < run->remote_count;) {
            /* Once it is on its way out, asking again changes nothing. */
            bool ask = round == 0 || run->remotes[i].state != SK_REMOTE_STOPPING, gone = false;

            if (ask && round > 0 && run->remotes[i].epoch == 0 && look_at_record(run) != 0)
                return -1;
            if (ask && ask_removal(run, &run->remotes[i], &gone) != 0)
                return -1;
            if (gone)
                forget_remote(run, i);
            else
                i++;
        }
        /* Success is absence that was seen, not a request that was taken. */
        if (round > 0 && !lc_pause(run, poll_ms(run, round - 1)))
            return lc_engine_guard(run) != 0
                       ? -1
                       : sk_fail_unknown(&run->err, SK_ERR_PROVIDER_TIMEOUT, "the sandbox is still there");
    }
}

/* Asks for the removal of all surplus objects, beginning with those in run->remotes; of more than are listed in one go
 * the rest shows itself as the first ones leave. */
static int remove_surplus(struct lc_run *run, bool (*surplus)(const void *arg, const struct sk_remote *remote),
                          const void *arg, int64_t *asked_for)
{
    for (int round = 0;; round++) {
        bool asked = false, gone;

        for (int i = 0; i < run->remote_count; i++) {
            if (!surplus(arg, &run->remotes[i]) || (round > 0 && run->remotes[i].state == SK_REMOTE_STOPPING))
                continue;
            if (ask_removal(run, &run->remotes[i], &gone) != 0)
                return -1;
            asked = true;
            ++*asked_for;
        }
        if (!run->more_remotes || !asked)
            return 0;
        if (round > 0 && !lc_pause(run, poll_ms(run, round - 1)))
            return lc_engine_guard(run) != 0
                       ? -1
                       : sk_fail_unknown(&run->err, SK_ERR_PROVIDER_TIMEOUT, "surplus objects are still there");
        if (lc_engine_guard(run) != 0 || find(run) != 0 || (run->claimed && check_epochs(run) != 0))
            return -1;
    }
}

static int remove_ghosts(struct lc_run *run, bool (*surplus)(const void *arg, const struct sk_remote *remote),
                         const void *arg)
{
    int64_t asked_for = 0;
    int rc = remove_surplus(run, surplus, arg, &asked_for);

    lc_count(run->replica, LC_COUNT_GHOSTS_REMOVED, asked_for);
    return rc;
}

/* What settling leaves alone: one object, and whatever was made for a later claim than that of the record as it was
 * read: the lease may have ended meanwhile, and somebody may have started the sandbox. */
struct settled {
    int64_t keep_epoch, record_epoch;
};

static bool left_over(const void *arg, const struct sk_remote *remote)
{
    const struct settled *settled = arg;

    return remote->epoch != settled->keep_epoch && remote->epoch <= settled->record_epoch;
}

int lc_remote_settle(struct lc_run *run, int64_t keep_epoch)
{
    const struct settled settled = {.keep_epoch = keep_epoch, .record_epoch = run->record.epoch};

    return remove_ghosts(run, left_over, &settled);
}

bool lc_remote_is_orphan(const struct lc_replica *r, const struct sk_remote *remote)
{
    /* Without our labels it is not ours to judge: FastGPT's older sandboxes have other tables. */
    return remote->epoch != 0 && remote->job_id[0] != '\0' && remote->created_at > 0 &&
           sk_wall_ms(r->sched) - remote->created_at >= r->settings.orphan_grace_ms;
}

static bool is_orphan(const void *replica, const struct sk_remote *remote)
{
    return lc_remote_is_orphan(replica, remote);
}

int lc_remote_remove_orphans(struct lc_run *run)
{
    struct lc_replica *r = run->replica;
    int64_t asked_for = 0; /* the sweep counts orphans when it sees them */

    if (!r->settings.orphan_remove)
        return 0;
    memcpy(run->record.sandbox_id, run->job->sandbox_id, sizeof(run->record.sandbox_id));
    for (int n = 0; n < r->seams.provider_count; n++) {
        run->provider = &r->seams.providers[n];
        if (find(run) != 0 || remove_surplus(run, is_orphan, r, &asked_for) != 0)
            return -1;
    }
    return 0;
}

static bool usable(const struct sk_remote *remote)
{
    return remote->state == SK_REMOTE_RUNNING || remote->state == SK_REMOTE_PENDING ||
           remote->state == SK_REMOTE_PAUSED || remote->state == SK_REMOTE_UNKNOWN;
}

/* ---- a running record --------------------------------------------------------------------------- */
int64_t lc_life_epoch(const struct sk_instance *record)
{
    return record->sequence == 0 ? 0 : record->epoch;
}

int lc_remote_look(struct lc_run *run, enum lc_sight *sight)
{
    if (run->provider == NULL)
        return no_provider(run);
    if (find(run) != 0)
        return -1;
    *sight = LC_SIGHT_MISSING;
    for (int i = 0; i < run->remote_count; i++) {
        /* Of a former life of the record: not this sandbox, and not its volume. */
        if (run->remotes[i].epoch > lc_life_epoch(&run->record))
            continue;
        if (run->remotes[i].state == SK_REMOTE_RUNNING)
            *sight = LC_SIGHT_RUNNING;
        else if (usable(&run->remotes[i]) && *sight == LC_SIGHT_MISSING)
            *sight = LC_SIGHT_NOT_READY;
    }
    return 0;
}

/* ---- readiness ---------------------------------------------------------------------------------- */
/* `guarded`: as a step of a claimed operation, which has the time of its phase. Who only waits for what runs already
 * gives its worker back soon: the command is parked and looks again until its own deadline. */
static int wait_ready(struct lc_run *run, struct sk_remote *remote, bool guarded)
{
    const struct sk_provider *p = run->provider;
    int64_t wait_ms = guarded || run->replica->settings.ready_timeout_ms < WAKE_STAY_MS
                          ? run->replica->settings.ready_timeout_ms
                          : WAKE_STAY_MS;
    int64_t end_us = sk_mono_us(run->replica->sched) + wait_ms * 1000;

    for (int round = 0;; round++) {
        bool found = true, ready = false;

        if (guarded && lc_engine_guard(run) != 0)
            return -1;
        if (round > 0 && p->ops->get(p->self, run->call, remote->id, remote, &found, &run->err) != 0)
            return sk_fail_context(&run->err, "cannot look at the sandbox");
        if (!found || remote->state == SK_REMOTE_ENDED || remote->state == SK_REMOTE_STOPPING) {
            sk_fail_unknown(&run->err, SK_ERR_PROVIDER_ERROR, "the sandbox ended while it started");
            return -1;
        }
        if (remote->state == SK_REMOTE_PAUSED && p->ops->resume(p->self, run->call, remote->id, &run->err) != 0)
            return sk_fail_context(&run->err, "cannot resume the sandbox");
        if (remote->state == SK_REMOTE_RUNNING) {
            if (p->ops->probe(p->self, run->call, remote->id, &ready, &run->err) != 0)
                return sk_fail_context(&run->err, "cannot probe the sandbox");
            if (ready)
                break;
        }
        if (sk_mono_us(run->replica->sched) >= end_us)
            return sk_fail_unknown(&run->err, SK_ERR_PROVIDER_TIMEOUT, "the sandbox did not become ready in time");
        if (!lc_pause(run, lc_backoff_ms(run->replica->sched, POLL_FIRST_MS, POLL_MAX_MS, round)) && !guarded)
            return sk_fail(&run->err, SK_ERR_CANCELLED, "the job was called back");
    }
    if (SK_FAULT(PROVIDER_READY, sk_op_name(run->record.operation.type)))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
}

int lc_remote_wake(struct lc_run *run)
{
    const struct sk_remote *best = NULL;
    struct sk_remote remote;

    for (int i = 0; i < run->remote_count; i++) {
        if (usable(&run->remotes[i]) && run->remotes[i].epoch <= lc_life_epoch(&run->record) &&
            (best == NULL || run->remotes[i].epoch > best->epoch))
            best = &run->remotes[i];
    }
    if (best == NULL)
        return sk_fail(&run->err, SK_ERR_PROVIDER_ERROR, "the sandbox is gone");
    remote = *best;
    return wait_ready(run, &remote, false);
}

/* ---- creation ----------------------------------------------------------------------------------- */
/* Made by this very job, under whatever owner; or by FastGPT, which labels nothing. */
static bool adoptable(const struct lc_run *run, const struct sk_remote *remote)
{
    if (!usable(remote))
        return false;
    if (remote->job_id[0] != '\0')
        return strcmp(remote->job_id, run->record.operation.job_id) == 0;
    return remote->epoch == 0;
}

/* Of several the newest of this job; NULL = there is nothing to adopt. */
static const struct sk_remote *choose(const struct lc_run *run)
{
    const struct sk_remote *best = NULL;

    for (int i = 0; i < run->remote_count; i++) {
        const struct sk_remote *remote = &run->remotes[i];

        if (adoptable(run, remote) && (best == NULL || remote->epoch > best->epoch))
            best = remote;
    }
    return best;
}

static bool is_another(const void *keep_id, const struct sk_remote *remote)
{
    return keep_id == NULL || strcmp(remote->id, keep_id) != 0;
}

/* Puts this claim's epoch on an object of an earlier claim. *found = false: it vanished meanwhile. */
static int adopt(struct lc_run *run, const struct sk_remote *remote, bool *found)
{
    const struct sk_provider *p = run->provider;

    *found = true;
    if (remote->epoch == run->record.epoch && strcmp(remote->job_id, run->record.operation.job_id) == 0)
        return 0;
    if (lc_engine_guard(run) != 0)
        return -1;
    if (p->ops->relabel(p->self, run->call, remote->id, run->record.epoch, run->record.operation.job_id, found,
                        &run->err) != 0)
        return sk_fail_context(&run->err, "cannot adopt the sandbox");
    if (*found)
        lc_count(run->replica, LC_COUNT_ADOPTED, 1);
    return 0;
}

/* One create per claim. An answer that got lost is looked for; not found is a failed try, because the object may still
 * appear: the next claim has a higher epoch and removes it then. */
static int create(struct lc_run *run, const struct sk_create_spec *spec, struct sk_remote *out)
{
    const struct sk_provider *p = run->provider;
    struct sk_error first;

    if (lc_engine_guard(run) != 0)
        return -1;
    run->create_sent = true;
    if (p->ops->create(p->self, run->call, spec, out, &run->err) == 0) {
        sk_copy_cut(run->created_id, sizeof(run->created_id), out->id);
        if (SK_FAULT(PROVIDER_CREATED, sk_op_name(run->record.operation.type)))
            return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
        return 0;
    }
    sk_fail_context(&run->err, "cannot create the sandbox");
    if (run->err.outcome != SK_OUTCOME_UNKNOWN)
        return -1;
    if (LC_MUTATE(RETRY_CREATE_BLINDLY))
        return p->ops->create(p->self, run->call, spec, out, &run->err);
    first = run->err;
    lc_count(run->replica, LC_COUNT_READ_BACKS, 1);
    if (lc_engine_guard(run) != 0 || find(run) != 0)
        return -1;
    for (int i = 0; i < run->remote_count; i++) {
        if (run->remotes[i].epoch == run->record.epoch && adoptable(run, &run->remotes[i])) {
            *out = run->remotes[i];
            sk_copy_cut(run->created_id, sizeof(run->created_id), out->id);
            lc_count(run->replica, LC_COUNT_READ_BACK_APPLIED, 1);
            lc_count(run->replica, LC_COUNT_ADOPTED, 1);
            return 0;
        }
    }
    run->err = first;
    return -1;
}

int lc_remote_ensure(struct lc_run *run, const struct sk_image *image, const struct sk_limit *limit)
{
    const struct sk_create_spec spec = {
        .sandbox_id = run->record.sandbox_id,
        .epoch = run->record.epoch,
        .job_id = run->record.operation.job_id,
        .image = image,
        .limit = limit,
        .storage = &run->record.storage,
    };
    const struct sk_remote *best;
    struct sk_remote kept;
    bool found;

    if (run->provider == NULL)
        return no_provider(run);
    /* A first claim has nothing to adopt: what else there may be is found, and removed, right after the create. */
    run->remote_count = 0;
    run->more_remotes = false;
    if (run->resumed && (lc_engine_guard(run) != 0 || find(run) != 0 || check_epochs(run) != 0))
        return -1;
    best = choose(run);
    if (best != NULL) {
        kept = *best;
        if (adopt(run, &kept, &found) != 0)
            return -1;
        if (!found)
            best = NULL;
    }
    if (remove_ghosts(run, is_another, best != NULL ? kept.id : NULL) != 0)
        return -1;
    if (best == NULL) {
        if (create(run, &spec, &kept) != 0)
            return -1;
        /* A create of an earlier claim may have come through meanwhile. */
        if (lc_engine_guard(run) != 0 || find(run) != 0 || check_epochs(run) != 0 ||
            remove_ghosts(run, is_another, kept.id) != 0)
            return -1;
        for (int i = 0; i < run->remote_count; i++) {
            if (strcmp(run->remotes[i].id, kept.id) == 0)
                kept.state = run->remotes[i].state;
        }
    }
    return wait_ready(run, &kept, true);
}

/* Does the record still rely on what this claim made? Whoever continued the operation at `claimed` adopts it, at
 * `providerEnsured` he takes it as it is; only beside the object of a later claim it is one too many. */
static bool still_needed(const struct lc_run *run)
{
    const struct sk_instance *record = &run->record;

    if (LC_MUTATE(CLEAN_WHAT_IS_NEEDED) || !run->found)
        return false;
    if (!record->malformed && record->status != SK_STATUS_PROVISIONING && record->status != SK_STATUS_RUNNING)
        return false;
    for (int i = 0; i < run->remote_count; i++) {
        if (run->remotes[i].epoch > run->beat.epoch)
            return false;
    }
    return true;
}

static void clean_objects(struct lc_run *run, const struct sk_provider *p, struct sk_call *call)
{
    struct sk_remote remote;
    struct sk_error err = {.code = SK_OK};
    bool found, gone;

    if (lc_read(run) != 0 ||
        p->ops->find(p->self, call, run->job->sandbox_id, run->remotes, &run->remote_count, &run->more_remotes, &err) !=
            0 ||
        still_needed(run))
        return;
    for (int i = 0; i < run->remote_count; i++) {
        if (strcmp(run->remotes[i].job_id, run->beat.job_id) != 0 || run->remotes[i].epoch != run->beat.epoch)
            continue;
        /* Looked at once more: the new owner may have adopted it by now. */
        if (p->ops->get(p->self, call, run->remotes[i].id, &remote, &found, &err) != 0 || !found ||
            remote.epoch != run->beat.epoch)
            continue;
        if (p->ops->remove(p->self, call, remote.id, &gone, &err) == 0)
            lc_count(run->replica, LC_COUNT_GHOSTS_REMOVED, 1);
    }
}

/* An ensure that came through after a delete had removed the volume: it is empty, and its name is never used again,
 * because every later life of the sandbox has another generation. Not so generation 0: FastGPT gives it to a record
 * that it makes, and that may happen while our removal is on its way. Such a volume is left to the doctor: rather an
 * empty one too many than a workspace lost. While the record is still there the volume is the deleter's business: it is
 * waited for. */
static void clean_volume(struct lc_run *run, const struct sk_provider *p, struct sk_call *call)
{
    size_t length = strlen(run->ensured_volume);
    struct sk_error err = {.code = SK_OK};

    if (length >= 2 && strcmp(run->ensured_volume + length - 2, "-0") == 0)
        return;

    for (;;) {
        if (lc_read(run) != 0)
            return;
        if (!run->found || strcmp(run->record.storage.claim_name, run->ensured_volume) != 0)
            break;
        if (run->record.status != SK_STATUS_DELETING || !sk_call_sleep_ms(call, POLL_CLEAN_MS) ||
            lc_stopping(run->replica))
            return;
    }
    if (p->ops->volume_remove(p->self, call, run->ensured_volume, &err) != 0)
        SK_LOG_WARN("volume of a deleted sandbox may be left", SK_F("sandboxId", run->job->sandbox_id), SK_FE(&err));
}

void lc_remote_clean_own(struct lc_run *run)
{
    const struct sk_provider *p = run->claimed_at;
    struct sk_call call;

    if ((!run->create_sent && run->ensured_volume[0] == '\0') || p == NULL || lc_stopping(run->replica))
        return;
    /* The job's own call may have been called back. This one is short: it is a courtesy, the sweeps would find the
     * objects too. */
    sk_call_init(&call, run->replica->sched);
    call.transport = run->call->transport;
    call.deadline_us =
        sk_mono_us(run->replica->sched) + (lc_draining(run->replica) ? LC_DRAIN_CALL_MS : LC_COMMIT_MS) * 1000;
    if (run->create_sent)
        clean_objects(run, p, &call);
    if (run->ensured_volume[0] != '\0')
        clean_volume(run, p, &call);
    run->create_sent = false;
    run->ensured_volume[0] = '\0';
    run->call->transport = call.transport;
}
