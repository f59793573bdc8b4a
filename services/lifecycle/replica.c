/* SPDX-License-Identifier: Apache-2.0
 *
 * One incarnation of the service: its tables, its lifetime, its counters. */
#include "services/lifecycle/internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const counter_names[LC_COUNTER_COUNT] = {
#define LC_COUNTER(name, wire, help) [LC_COUNT_##name] = (wire),
#include "services/lifecycle/counters.def"
#undef LC_COUNTER
};

const char *lc_counter_name(enum lc_counter counter)
{
    return (int)counter >= 0 && counter < LC_COUNTER_COUNT ? counter_names[counter] : "";
}

void lc_settings_defaults(struct lc_settings *s)
{
    memset(s, 0, sizeof(*s));
    memcpy(s->subject_prefix, SK_SUBJECT_PREFIX_DEFAULT, sizeof(SK_SUBJECT_PREFIX_DEFAULT));
    s->workers = 64;
    s->park_limit = 1024;
    s->park_body_max = 1024;
    s->total_limit = 20000;
    s->default_deadline_ms = 10000;
    s->in_progress_every_ms = 10000;
    s->poll_parked_ms = 1000;
    s->heartbeat_ms = 5000;
    s->lease_ttl_ms = 15000;
    s->lease_renew_ms = 2500;
    s->takeover_ms = 30000;
    s->stuck_grace_ms = 10000;
    s->fastgpt_short_stale_ms = 15 * 60000;
    s->fastgpt_long_stale_ms = 45 * 60000;
    s->retry_limit = 8;
    s->retry_first_ms = 1000;
    s->retry_max_ms = 60000;
    s->command_failures_limit = 20;
    s->relay_batch = 300;
    s->relay_window_ms = 20;
    s->relay_poll_ms = 1000;
    s->publish_timeout_ms = 5000;
    s->stale_sweep_ms = 2000;
    s->idle_sweep_ms = 30000;
    s->idle_look_max = LC_IDLE_LOOK_MAX;
    s->orphan_sweep_ms = 5 * 60000;
    s->quota_recount_ms = 10 * 60000;
    s->orphan_grace_ms = 10 * 60000;
    s->idle_stop_ms = 60 * 60000;
    s->quota_grace_ms = 60000;
    s->ready_timeout_ms = 300000;
    s->phase_deadline_scale_pct = 100;
    s->default_limit = (struct sk_limit){.present = true, .cpu_count = 1, .memory_mib = 2048, .storage_size = "1Gi"};
    memcpy(s->volume_prefix, "fastgpt-session", sizeof("fastgpt-session"));
    memcpy(s->mount_path, "/workspace", sizeof("/workspace"));
}

static bool make_gates(struct lc_replica *r)
{
    struct sk_gate **const gates[] = {&r->poll_gate, &r->finish_gate, &r->relay_gate, &r->beat_gate, &r->sweep_gate};

    for (size_t i = 0; i < sizeof(gates) / sizeof(gates[0]); i++) {
        *gates[i] = sk_gate_new(r->sched);
        if (*gates[i] == NULL)
            return false;
    }
    return true;
}

struct lc_replica *lc_replica_new(const struct lc_settings *settings, const struct lc_seams *seams,
                                  const struct lc_hooks *hooks)
{
    struct lc_replica *r = calloc(1, sizeof(*r));
    uint64_t seed;

    if (r == NULL)
        return NULL;
    r->settings = *settings;
    r->seams = *seams;
    r->sched = seams->sched;
    r->hooks = *hooks;
    sk_list_init(&r->jobs);
    sk_list_init(&r->later_jobs);
    sk_list_init(&r->idle);
    sk_list_init(&r->seats);
    sk_list_init(&r->done);
    sk_list_init(&r->finished);
    sk_list_init(&r->posts);
    sk_list_init(&r->views);
    sk_list_init(&r->all);
    sk_list_init(&r->parked);
    sk_list_init(&r->polls);
    sk_list_init(&r->finishes);
    sk_list_init(&r->hints);
    sk_list_init(&r->unended);
    sk_list_init(&r->published);
    sk_list_init(&r->pulling);
    sk_list_init(&r->beats);
    pthread_mutex_init(&r->jobs_lock, NULL);
    pthread_mutex_init(&r->inbox_lock, NULL);
    pthread_mutex_init(&r->poll_lock, NULL);
    pthread_mutex_init(&r->finish_lock, NULL);
    pthread_mutex_init(&r->history_lock, NULL);
    pthread_mutex_init(&r->relay_lock, NULL);
    pthread_mutex_init(&r->beats_lock, NULL);
    pthread_mutex_init(&r->observed_lock, NULL);
    /* From the scheduler's chance, so that a simulated run can be repeated exactly. */
    sk_random(r->sched, &seed, sizeof(seed));
    sk_map_init(&r->queues, (size_t)settings->total_limit * 2 + 1024, seed | 1);
    sk_map_init(&r->relay_by_record, LC_HINTS_MAX, seed | 1);
    r->map_seed = seed | 1;
    sk_map_init(&r->histories, LC_HISTORIES_MAX, r->map_seed);
    sk_map_init(&r->observed, LC_OBSERVED_MAX, seed | 1);
    r->beat_serial = 1;
    if (!make_gates(r)) {
        lc_replica_free(r);
        return NULL;
    }
    return r;
}

static bool free_value(void *arg, const char *key, void *value)
{
    (void)arg;
    (void)key;
    free(value);
    return true;
}

static void free_list(struct sk_list *list, size_t offset)
{
    struct sk_list *item;

    while ((item = sk_list_pop_front(list)) != NULL)
        free((char *)item - offset);
}

static void free_held_list(struct lc_replica *r, struct sk_list *list)
{
    SK_LIST_FOREACH (struct lc_held, held, list, link) {
        sk_list_remove(&held->link);
        sk_list_remove(&held->all);
        sk_list_remove(&held->finish);
        sk_delivery_drop(held->delivery);
        held->delivery = NULL;
        lc_held_free(held);
    }
    (void)r;
}

static bool free_queue(void *arg, const char *key, void *value)
{
    struct lc_replica *r = arg;
    struct lc_queue *queue = value;

    (void)key;
    if (queue->job != NULL) {
        free_held_list(r, &queue->job->members);
        lc_answer_drop(queue->job->answer);
        free(queue->job);
    }
    free_held_list(r, &queue->waiting);
    free_held_list(r, &queue->finishing);
    free(queue);
    return true;
}

void lc_replica_free(struct lc_replica *r)
{
    if (r == NULL)
        return;
    sk_map_visit(&r->queues, free_queue, r);
    sk_map_fini(&r->queues);
    /* What is left in these lists was refused and never had a queue. */
    SK_LIST_FOREACH (struct lc_held, held, &r->finishes, finish) {
        sk_list_remove(&held->finish);
        sk_delivery_drop(held->delivery);
        held->delivery = NULL;
        lc_held_free(held);
    }
    SK_LIST_FOREACH (struct lc_held, held, &r->finished, finish) {
        sk_list_remove(&held->finish);
        lc_held_free(held);
    }
    free_list(&r->posts, offsetof(struct lc_view, link));
    free_list(&r->views, offsetof(struct lc_view, link));
    free_list(&r->polls, offsetof(struct lc_view, link));
    SK_LIST_FOREACH (struct lc_worker_seat, seat, &r->seats, seats) {
        sk_gate_free(r->sched, seat->gate);
        free(seat);
    }
    lc_relay_free_hints(&r->hints);
    lc_relay_free_hints(&r->unended);
    lc_relay_free_hints(&r->published);
    lc_relay_free_hints(&r->pulling);
    sk_map_fini(&r->relay_by_record);
    lc_histories_free(r);
    sk_map_visit(&r->observed, free_value, NULL);
    sk_map_fini(&r->observed);
    sk_gate_free(r->sched, r->poll_gate);
    sk_gate_free(r->sched, r->finish_gate);
    sk_gate_free(r->sched, r->relay_gate);
    sk_gate_free(r->sched, r->beat_gate);
    sk_gate_free(r->sched, r->sweep_gate);
    pthread_mutex_destroy(&r->jobs_lock);
    pthread_mutex_destroy(&r->inbox_lock);
    pthread_mutex_destroy(&r->poll_lock);
    pthread_mutex_destroy(&r->finish_lock);
    pthread_mutex_destroy(&r->history_lock);
    pthread_mutex_destroy(&r->relay_lock);
    pthread_mutex_destroy(&r->beats_lock);
    pthread_mutex_destroy(&r->observed_lock);
    free(r);
}

/* ---- drain and stop ------------------------------------------------------------------------------------------------
 */
void lc_replica_drain(struct lc_replica *r)
{
    if (atomic_exchange(&r->draining, true))
        return;
    /* Events that wait for the end of their operation wait no longer. */
    sk_gate_notify(r->sched, r->poll_gate);
    /* The queues belong to the dispatcher: it sees the flag when it next looks into its inbox. */
    if (r->hooks.wake_dispatcher != NULL)
        r->hooks.wake_dispatcher(r->hooks.arg);
}

bool lc_replica_drained(struct lc_replica *r)
{
    return atomic_load(&r->held_count) == 0 && atomic_load(&r->job_count) == 0 && atomic_load(&r->relay_pending) == 0;
}

void lc_replica_stop(struct lc_replica *r)
{
    struct sk_gate *const gates[] = {r->poll_gate, r->finish_gate, r->relay_gate, r->beat_gate, r->sweep_gate};

    atomic_store(&r->stopping, true);
    lc_beats_stop(r);
    for (size_t i = 0; i < sizeof(gates) / sizeof(gates[0]); i++)
        sk_gate_notify(r->sched, gates[i]);
    lc_jobs_stop(r);
    if (r->hooks.wake_dispatcher != NULL)
        r->hooks.wake_dispatcher(r->hooks.arg);
}

/* ---- small things ------------------------------------------------------------------------------- */
void lc_count(struct lc_replica *r, enum lc_counter counter, int64_t delta)
{
    atomic_fetch_add_explicit(&r->counters[counter], delta, memory_order_relaxed);
    if (r->hooks.counted != NULL)
        r->hooks.counted(r->hooks.arg, counter, delta);
}

void lc_ended(struct lc_run *run, enum lc_ending ending)
{
    const struct lc_hooks *hooks = &run->replica->hooks;

    if (hooks->ended != NULL && run->claimed_us != 0)
        hooks->ended(hooks->arg, run->beat.type, ending, sk_mono_us(run->replica->sched) - run->claimed_us);
}

int64_t lc_replica_count(const struct lc_replica *r, enum lc_counter counter)
{
    return atomic_load_explicit(&r->counters[counter], memory_order_relaxed);
}

void lc_replica_gauges(struct lc_replica *r, struct lc_gauges *out)
{
    memset(out, 0, sizeof(*out));
    out->held = atomic_load(&r->held_count);
    out->parked_sandboxes = atomic_load(&r->parked_count);
    out->jobs = atomic_load(&r->job_count);
    out->finishing = atomic_load(&r->finishing);
    out->relay_pending = atomic_load(&r->relay_pending);
    out->store_down = atomic_load(&r->store_down);
    out->lease_down = atomic_load(&r->lease_down);
    pthread_mutex_lock(&r->beats_lock);
    out->operations = r->beat_count;
    out->stuck_workers = r->stuck_count;
    pthread_mutex_unlock(&r->beats_lock);
}

static void note(atomic_bool *down, atomic_bool *used, bool ok, const char *what)
{
    if (ok && !atomic_load_explicit(used, memory_order_relaxed))
        atomic_store_explicit(used, true, memory_order_relaxed);
    if (atomic_load_explicit(down, memory_order_relaxed) == !ok)
        return;
    atomic_store(down, !ok);
    if (ok)
        SK_LOG_INFO("dependency answers again", SK_F("dependency", what));
    else
        SK_LOG_WARN("dependency does not answer: no new commands are taken", SK_F("dependency", what));
}

void lc_note_store(struct lc_replica *r, bool ok)
{
    note(&r->store_down, &r->store_used, ok, "store");
}

void lc_note_lease(struct lc_replica *r, bool ok)
{
    note(&r->lease_down, &r->lease_used, ok, "lease");
}

static enum lc_sign sign(atomic_bool *down, atomic_bool *used)
{
    bool good = atomic_exchange(used, false);

    if (atomic_load(down))
        return LC_SIGN_BAD;
    return good ? LC_SIGN_GOOD : LC_SIGN_NONE;
}

enum lc_sign lc_replica_store_sign(struct lc_replica *r)
{
    return sign(&r->store_down, &r->store_used);
}

enum lc_sign lc_replica_lease_sign(struct lc_replica *r)
{
    return sign(&r->lease_down, &r->lease_used);
}

const struct sk_provider *lc_provider(const struct lc_replica *r, const char *name)
{
    if (name[0] == '\0')
        return r->seams.provider_count > 0 ? &r->seams.providers[0] : NULL;
    for (int i = 0; i < r->seams.provider_count; i++) {
        if (strcmp(r->seams.providers[i].ops->name, name) == 0)
            return &r->seams.providers[i];
    }
    return NULL;
}

int64_t lc_backoff_ms(const struct sk_sched *sched, int64_t first_ms, int64_t max_ms, int n)
{
    int64_t ms = first_ms;
    uint32_t chance;

    while (n-- > 0 && ms < max_ms)
        ms *= 2;
    if (ms > max_ms)
        ms = max_ms;
    sk_random(sched, &chance, sizeof(chance));
    /* 80 % .. 120 % */
    return ms * (800 + (int64_t)(chance % 401)) / 1000;
}

int64_t lc_retry_in_ms(const struct sk_error *cause, int64_t backoff_ms)
{
    int64_t asked_ms = cause->retry_after_ms;

    if (cause->code != SK_ERR_PROVIDER_ERROR && cause->code != SK_ERR_PROVIDER_TIMEOUT)
        return backoff_ms;
    if (asked_ms > LC_RETRY_AFTER_MAX_MS)
        asked_ms = LC_RETRY_AFTER_MAX_MS;
    return asked_ms > backoff_ms ? asked_ms : backoff_ms;
}
