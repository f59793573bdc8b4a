/* SPDX-License-Identifier: Apache-2.0
 *
 * The sweeps: operations nobody works on, idle sandboxes, provider objects without a record, slots that lost their
 * sandbox. Every replica runs them; each item is claimed by compare-and-set, so no leader is needed
 * (contract/lifecycle.md §5). A sweep only finds; what it finds goes to the dispatcher as an internal job. */
#include "services/lifecycle/internal.h"
#include "services/lifecycle/observed.h"

#include <stdlib.h>
#include <string.h>

#define REMOTES_PAGE       100
#define REMOTES_LIST_MS    3000 /* a provider that hangs holds a take-over up for as long, no longer */
#define REMOTE_PAGES_MAX   1000
#define REMOTES_SEEN_MAX   (REMOTES_PAGE * REMOTE_PAGES_MAX)
#define DEPENDENCY_PING_MS 500

struct sweep {
    struct lc_replica *replica;
    int64_t stale_us, idle_us, orphan_us, quota_us, ping_us;
    int64_t last_scan_us; /* end of the last stale scan that worked, 0 = none */
    uint64_t scan;
    int64_t gap_ms;
    char (*ids)[SK_SANDBOX_ID_SIZE];
    int count, looked;
    int64_t now_ms;
    struct sk_idle_cursor idle_at; /* where the next idle sweep goes on */
};

static void add(struct sweep *s, const char *sandbox_id)
{
    if (s->count < LC_SCAN_LIMIT)
        memcpy(s->ids[s->count++], sandbox_id, sizeof(*s->ids));
}

static void post_all(struct sweep *s, enum lc_job_kind kind)
{
    for (int i = 0; i < s->count; i++)
        lc_dispatch_post(s->replica, kind, s->ids[i]);
}

static int64_t look_after_urgent(struct sweep *s);

/* ---- stale operations --------------------------------------------------------------------------- */
/* Remembers what the heartbeat looked like. Silence is the time between scans that both saw the same value, from the
 * end of one to the begin of the next, so never too long; a scan that could not look proves nothing, so a gap counts as
 * a few periods at most. */
static void observe(struct sweep *s, const struct sk_instance *record)
{
    struct lc_replica *r = s->replica;
    const struct sk_operation *op = &record->operation;
    struct lc_observed *seen;

    pthread_mutex_lock(&r->observed_lock);
    seen = sk_map_get(&r->observed, record->sandbox_id);
    if (seen == NULL) {
        seen = calloc(1, sizeof(*seen));
        if (seen != NULL && !sk_map_set(&r->observed, record->sandbox_id, seen, NULL)) {
            free(seen);
            seen = NULL;
        }
    }
    if (seen != NULL) {
        if (strcmp(seen->operation_id, op->id) == 0 && seen->heartbeat_at == op->heartbeat_at) {
            seen->silent_ms += s->gap_ms;
        } else {
            memcpy(seen->operation_id, op->id, sizeof(seen->operation_id));
            seen->heartbeat_at = op->heartbeat_at;
            seen->silent_ms = 0;
        }
        seen->scan = s->scan;
    }
    pthread_mutex_unlock(&r->observed_lock);
}

static bool look_at_transitional(void *arg, const struct sk_instance *record, const struct sk_event *events, int count)
{
    struct sweep *s = arg;

    (void)events;
    (void)count;
    if (record->malformed || lc_beats_running(s->replica, record->sandbox_id, NULL))
        return true;
    if (record->operation.job_id[0] == '\0' || record->operation.owner[0] != '\0')
        observe(s, record);
    if (lc_due(s->replica, record) == LC_DUE_NOW && lc_provider(s->replica, record->provider) != NULL)
        add(s, record->sandbox_id);
    return true;
}

struct forget {
    struct sk_map *map;
    uint64_t scan;
};

static bool forget_unseen(void *arg, const char *key, void *value)
{
    struct forget *forget = arg;
    struct lc_observed *seen = value;

    if (seen->scan != forget->scan) {
        sk_map_remove(forget->map, key);
        free(seen);
    }
    return true;
}

static int scan(struct sweep *s, enum sk_scan_kind kind, int64_t before_ms, int limit, sk_scan_fn fn)
{
    struct lc_replica *r = s->replica;
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;
    int rc;

    s->count = 0;
    s->now_ms = sk_wall_ms(r->sched);
    sk_call_init(&call, r->sched);
    call.deadline_us = sk_mono_us(r->sched) + LC_COMMIT_MS * 1000;
    rc = r->seams.store->ops->scan(r->seams.store->self, &call, kind, before_ms, limit, fn, s, &err);
    lc_note_store(r, rc == 0);
    return rc;
}

static void sweep_stale(struct sweep *s)
{
    struct lc_replica *r = s->replica;
    struct forget forget = {.map = &r->observed};
    int64_t now_us = sk_mono_us(r->sched), most_ms = r->settings.stale_sweep_ms * 3;

    s->gap_ms = s->last_scan_us == 0 ? 0 : (now_us - s->last_scan_us) / 1000;
    if (s->gap_ms > most_ms)
        s->gap_ms = most_ms;
    s->scan++;
    if (scan(s, SK_SCAN_TRANSITIONAL, 0, LC_SCAN_LIMIT, look_at_transitional) != 0)
        return;
    s->last_scan_us = sk_mono_us(r->sched);
    forget.scan = s->scan;
    pthread_mutex_lock(&r->observed_lock);
    sk_map_visit(&r->observed, forget_unseen, &forget);
    pthread_mutex_unlock(&r->observed_lock);
    post_all(s, LC_JOB_RECOVER);
}

/* ---- idle sandboxes ----------------------------------------------------------------------------- */
static bool look_at_idle(void *arg, const struct sk_instance *record, const struct sk_event *events, int count)
{
    struct sweep *s = arg;

    (void)events;
    (void)count;
    s->looked++;
    if (!record->malformed && record->status == SK_STATUS_RUNNING && !sk_instance_pinned(record, s->now_ms) &&
        lc_provider(s->replica, record->provider) != NULL)
        add(s, record->sandbox_id);
    return true;
}

static int idle_page(struct sweep *s, int limit)
{
    struct lc_replica *r = s->replica;
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;
    int rc;

    s->count = s->looked = 0;
    s->now_ms = sk_wall_ms(r->sched);
    sk_call_init(&call, r->sched);
    call.deadline_us = sk_mono_us(r->sched) + LC_COMMIT_MS * 1000;
    rc = r->seams.store->ops->scan_idle(r->seams.store->self, &call, &s->idle_at, s->now_ms - r->settings.idle_stop_ms,
                                        limit < LC_IDLE_PAGE ? limit : LC_IDLE_PAGE, look_at_idle, s, &err);
    lc_note_store(r, rc == 0);
    return rc;
}

/* A sweep looks at so many records and stops so many at most. Those that stay idle and are not stopped (pinned, of
 * somebody else's provider) must hide nobody for ever, so the next sweep goes on where this one ended. */
static void sweep_idle(struct sweep *s)
{
    struct lc_replica *r = s->replica;
    int left = r->settings.idle_look_max, posts_left = LC_SCAN_LIMIT;

    while (r->settings.idle_stop_ms > 0 && left > 0 && posts_left > 0 && !lc_draining(r)) {
        if (idle_page(s, left < posts_left ? left : posts_left) != 0)
            return;
        post_all(s, LC_JOB_IDLE_STOP);
        left -= s->looked;
        posts_left -= s->count;
        /* At the end; or a slow store: not all of this sweep's time for it. */
        if (s->idle_at.last_active_at == 0 || s->looked == 0)
            return;
        (void)look_after_urgent(s);
    }
}

/* ---- provider objects --------------------------------------------------------------------------- */
/* One page of a provider's objects, and what the records say of them. */
struct page {
    struct sweep *sweep;
    struct sk_map seen; /* sandboxes of this page and those before: one of their objects, as a hash of its id */
    struct sk_remote remotes[REMOTES_PAGE];
    int count;
    bool known[REMOTES_PAGE];
    bool another[REMOTES_PAGE]; /* its sandbox has another object, on whichever page */
    char ids[REMOTES_PAGE][SK_SANDBOX_ID_SIZE];
};

/* Never NULL. Two ids of one hash hide a surplus object until the sandbox is started or deleted: once in 2^32 times. */
static void *id_hash(const char *id)
{
    uint32_t hash = 2166136261u;

    for (; *id != '\0'; id++)
        hash = (hash ^ (unsigned char)*id) * 16777619u;
    return (void *)((uintptr_t)hash + 1);
}

/* Objects of one sandbox stand in the list by their age, so on any page. The same object may be listed twice, when
 * others came while the pages were read. */
static void find_twins(struct page *page)
{
    for (int i = 0; i < page->count; i++) {
        void *hash = id_hash(page->remotes[i].id), *first = sk_map_get(&page->seen, page->ids[i]);

        page->another[i] = first != NULL && first != hash;
        if (first == NULL)
            (void)!sk_map_set(&page->seen, page->ids[i], hash, NULL); /* no memory: not recognised this time */
    }
}

static bool compare_with_record(void *arg, const struct sk_instance *record, const struct sk_event *events, int count)
{
    struct page *page = arg;
    bool settle = false;

    (void)events;
    (void)count;
    for (int i = 0; i < page->count; i++) {
        const struct sk_remote *remote = &page->remotes[i];

        if (strcmp(remote->sandbox_id, record->sandbox_id) != 0)
            continue;
        page->known[i] = true;
        if (record->malformed || record->has_operation)
            continue;
        /* Stopped, yet something runs: made by a call whose answer was lost. Running: one too many, or one of a former
         * life of the record. */
        settle = settle || record->status != SK_STATUS_RUNNING || remote->epoch > record->epoch || page->another[i];
    }
    if (settle)
        lc_dispatch_post(page->sweep->replica, LC_JOB_SETTLE, record->sandbox_id);
    return true;
}

static void judge_orphans(struct lc_replica *r, const struct page *page)
{
    for (int i = 0; i < page->count; i++) {
        const struct sk_remote *remote = &page->remotes[i];

        if (page->known[i] || !lc_remote_is_orphan(r, remote))
            continue;
        lc_count(r, LC_COUNT_ORPHANS, 1);
        SK_LOG_WARN("provider object without a record", SK_F("sandboxId", remote->sandbox_id),
                    SK_F("remoteId", remote->id), SK_FI("epoch", remote->epoch),
                    SK_FB("removed", r->settings.orphan_remove));
        /* Not from here: the sandbox may have been made anew since the records were read, and nothing is done at a
         * provider without its lease. */
        if (r->settings.orphan_remove)
            lc_dispatch_post(r, LC_JOB_SETTLE, remote->sandbox_id);
    }
}

static void sweep_provider(struct sweep *s, const struct sk_provider *p, struct page *page)
{
    struct lc_replica *r = s->replica;
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;
    bool more = true;
    int unreadable; /* the provider's adapter counts and tells them */

    sk_call_init(&call, r->sched);
    sk_map_init(&page->seen, REMOTES_SEEN_MAX, (uint64_t)sk_mono_us(r->sched) | 1);
    for (int number = 1; more && number <= REMOTE_PAGES_MAX && !lc_draining(r); number++) {
        page->count = 0;
        memset(page->known, 0, sizeof(page->known));
        call.deadline_us = sk_mono_us(r->sched) + REMOTES_LIST_MS * 1000;
        if (p->ops->list(p->self, &call, number, page->remotes, REMOTES_PAGE, &page->count, &unreadable, &more, &err) !=
            0) {
            SK_LOG_WARN("provider cannot be listed", SK_F("provider", p->ops->name), SK_FE(&err));
            break;
        }
        for (int i = 0; i < page->count; i++)
            memcpy(page->ids[i], page->remotes[i].sandbox_id, sizeof(page->ids[i]));
        find_twins(page);
        call.deadline_us = sk_mono_us(r->sched) + LC_COMMIT_MS * 1000;
        /* Records are read after the objects: a record that was deleted meanwhile is younger than the grace. */
        if (page->count > 0 &&
            r->seams.store->ops->get_many(r->seams.store->self, &call, (const char(*)[SK_SANDBOX_ID_SIZE])page->ids,
                                          page->count, compare_with_record, page, &err) != 0) {
            SK_LOG_WARN("provider objects cannot be compared with their records", SK_F("provider", p->ops->name),
                        SK_FE(&err));
            break;
        }
        judge_orphans(r, page);
        (void)look_after_urgent(s); /* a big or slow provider holds nobody's recovery up */
    }
    sk_map_fini(&page->seen);
    if (r->hooks.worker_end != NULL)
        r->hooks.worker_end(r->hooks.arg, &call);
}

static void sweep_orphans(struct sweep *s)
{
    struct page *page = calloc(1, sizeof(*page));

    if (page == NULL)
        return;
    page->sweep = s;
    for (int i = 0; i < s->replica->seams.provider_count; i++)
        sweep_provider(s, &s->replica->seams.providers[i], page);
    free(page);
}

/* ---- quota, dependencies ------------------------------------------------------------------------ */
static void sweep_quota(struct sweep *s)
{
    struct lc_replica *r = s->replica;
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;
    int64_t changed = 0;

    if (r->settings.quota_global <= 0 && r->settings.quota_per_team <= 0)
        return;
    sk_call_init(&call, r->sched);
    call.deadline_us = sk_mono_us(r->sched) + LC_COMMIT_MS * 1000;
    if (r->seams.store->ops->quota_recount(r->seams.store->self, &call, NULL, r->settings.quota_grace_ms, &changed,
                                           &err) != 0)
        SK_LOG_WARN("quota not recounted", SK_FE(&err));
    else if (changed > 0)
        lc_count(r, LC_COUNT_QUOTA_RETURNED, changed);
}

/* Nobody works while a dependency is away, so nobody would notice that it is back. */
static void ping(struct sweep *s)
{
    struct lc_replica *r = s->replica;
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;

    sk_call_init(&call, r->sched);
    call.deadline_us = sk_mono_us(r->sched) + LC_COMMIT_MS * 1000;
    if (atomic_load(&r->store_down))
        lc_note_store(r, r->seams.store->ops->ping(r->seams.store->self, &call, &err) == 0);
    if (atomic_load(&r->lease_down))
        lc_note_lease(r, r->seams.lease->ops->ping(r->seams.lease->self, &call, &err) == 0);
}

/* The time of the next run does not wander with the lateness of the last one: what began together wakes together. */
static int64_t due(int64_t now_us, int64_t *at_us, int64_t period_ms, bool *run)
{
    *run = now_us >= *at_us;
    if (*run) {
        *at_us += period_ms * 1000;
        if (*at_us <= now_us)
            *at_us = now_us + period_ms * 1000;
    }
    return *at_us;
}

/* What cannot wait for a long sweep to end. Returns when it is due again. */
static int64_t look_after_urgent(struct sweep *s)
{
    struct lc_replica *r = s->replica;
    int64_t now_us = sk_mono_us(r->sched), next_us, at_us;
    bool run;

    if (atomic_exchange(&r->sweep_now, false))
        s->stale_us = now_us;
    next_us = due(now_us, &s->stale_us, r->settings.stale_sweep_ms, &run);
    if (run && !lc_draining(r))
        sweep_stale(s);
    if (atomic_load(&r->store_down) || atomic_load(&r->lease_down)) {
        at_us = due(now_us, &s->ping_us, DEPENDENCY_PING_MS, &run);
        if (run)
            ping(s);
        next_us = at_us < next_us ? at_us : next_us;
    }
    return next_us;
}

/* ---- the thread --------------------------------------------------------------------------------- */
static int64_t spread(struct lc_replica *r, int64_t now_us, int64_t period_ms)
{
    uint32_t chance;

    sk_random(r->sched, &chance, sizeof(chance));
    return now_us + (int64_t)(chance % 1000) * period_ms;
}

void lc_sweep_main(struct lc_replica *r)
{
    struct sweep s = {.replica = r, .ids = calloc(LC_SCAN_LIMIT, sizeof(*s.ids))};
    int64_t now_us = sk_mono_us(r->sched);

    if (s.ids == NULL) {
        SK_LOG_ERROR("no memory for the sweeps");
        return;
    }
    /* Replicas that start together shall not sweep together. The stale sweep starts at once: there may be work waiting.
     */
    s.idle_us = spread(r, now_us, r->settings.idle_sweep_ms);
    s.orphan_us = spread(r, now_us, r->settings.orphan_sweep_ms);
    s.quota_us = spread(r, now_us, r->settings.quota_recount_ms);
    while (!lc_stopping(r)) {
        uint64_t ticket = sk_gate_ticket(r->sched, r->sweep_gate);
        int64_t next_us, at_us;
        bool run;

        next_us = look_after_urgent(&s);
        now_us = sk_mono_us(r->sched);
        at_us = due(now_us, &s.idle_us, r->settings.idle_sweep_ms, &run);
        if (run && !lc_draining(r))
            sweep_idle(&s);
        next_us = at_us < next_us ? at_us : next_us;
        at_us = due(now_us, &s.orphan_us, r->settings.orphan_sweep_ms, &run);
        if (run && !lc_draining(r))
            sweep_orphans(&s);
        next_us = at_us < next_us ? at_us : next_us;
        at_us = due(now_us, &s.quota_us, r->settings.quota_recount_ms, &run);
        if (run && !lc_draining(r))
            sweep_quota(&s);
        next_us = at_us < next_us ? at_us : next_us;
        at_us = (next_us - sk_mono_us(r->sched) + 999) / 1000;
        /* An outage that begins while this thread sleeps is noticed at the next stale sweep. */
        if (at_us > 0 && !lc_stopping(r))
            sk_gate_wait(r->sched, r->sweep_gate, ticket, at_us);
    }
    free(s.ids);
}
