/* SPDX-License-Identifier: Apache-2.0
 *
 * The outbox relay: every lifecycle event is in its record first, then published until the stream confirmed it, then
 * written to the timeline, then pulled from the record (design/architecture.md §3). Events that this replica just
 * committed come as hints and are published at once; a scan of the sparse outbox index finds what hints and crashes
 * left behind. The two writes behind the publishing are puller.c's. */
#include "services/lifecycle/internal.h"

#include <stdlib.h>
#include <string.h>

#define FLUSH_POLL_MS     4
#define FLUSH_POLL_MAX_MS 100
#define FLUSH_SCAN_AFTER  3 /* looks before the scan is asked for */
#define FULL_POLL_MS      20
#define COLLECT_MS        4 /* of the 20 ms that an event may take to its subscriber */

void lc_relay_free_hints(struct sk_list *hints)
{
    struct sk_list *item;

    while ((item = sk_list_pop_front(hints)) != NULL)
        free(SK_LIST_ENTRY(struct lc_hint, item, link));
}

/* From now on, and until a scan saw them all published, the events of this sandbox go through the scan, in the order of
 * the record: a later one must not overtake an earlier one. Under relay_lock. */
static void by_record(struct lc_replica *r, const char *sandbox_id)
{
    static char mark;

    if (!sk_map_set(&r->relay_by_record, sandbox_id, &mark, NULL))
        return; /* table full or out of memory: order is lost for this one, its sequence numbers still tell */
}

void lc_relay_hint(struct lc_replica *r, const struct sk_event *events, int count, bool pending_before)
{
    int64_t now_us = sk_mono_us(r->sched);
    bool awake;

    pthread_mutex_lock(&r->relay_lock);
    awake = r->relay_awake;
    r->relay_awake = true;
    if (pending_before)
        by_record(r, events[0].sandbox_id);
    for (int i = 0; i < count; i++) {
        struct lc_hint *hint = r->hint_count < LC_HINTS_MAX ? malloc(sizeof(*hint)) : NULL;

        if (hint == NULL) {
            by_record(r, events[i].sandbox_id);
            break;
        }
        hint->event = events[i];
        hint->since_us = now_us;
        sk_list_push_back(&r->hints, &hint->link);
        r->hint_count++;
        atomic_fetch_add(&r->relay_pending, 1);
    }
    pthread_mutex_unlock(&r->relay_lock);
    if (!awake)
        sk_gate_notify(r->sched, r->relay_gate);
}

/* ---- the thread --------------------------------------------------------------------------------- */
struct relay {
    struct lc_replica *replica;
    int capacity;
    struct sk_event *events; /* to be published now */
    int64_t *since_us;       /* of those that came as hints */
    int count;
    struct lc_event_message *built;
    struct sk_message *messages;
    bool *acked;
    int64_t scan_us;
    bool full;          /* too much waits to be pulled */
    struct sk_map seen; /* ids the last scan left alone: somebody may be at it */
    struct sk_map seen_now;
    bool scan_all, more;
};

static bool relay_init(struct relay *relay, struct lc_replica *r)
{
    size_t n;

    memset(relay, 0, sizeof(*relay));
    relay->replica = r;
    relay->capacity = r->settings.relay_batch > 0 ? r->settings.relay_batch : 1;
    n = (size_t)relay->capacity;
    relay->events = calloc(n, sizeof(*relay->events));
    relay->since_us = calloc(n, sizeof(*relay->since_us));
    relay->built = calloc(n, sizeof(*relay->built));
    relay->messages = calloc(n, sizeof(*relay->messages));
    relay->acked = calloc(n, sizeof(*relay->acked));
    sk_map_init(&relay->seen, LC_HINTS_MAX, 1);
    sk_map_init(&relay->seen_now, LC_HINTS_MAX, 1);
    return relay->events != NULL && relay->since_us != NULL && relay->built != NULL && relay->messages != NULL &&
           relay->acked != NULL;
}

static void relay_fini(struct relay *relay)
{
    free(relay->events);
    free(relay->since_us);
    free(relay->built);
    free(relay->messages);
    free(relay->acked);
    sk_map_fini(&relay->seen);
    sk_map_fini(&relay->seen_now);
}

static bool listed(struct sk_list *list, const char *event_id)
{
    SK_LIST_FOREACH (struct lc_hint, hint, list, link) {
        if (strcmp(hint->event.id, event_id) == 0)
            return true;
    }
    return false;
}

/* Confirmed by the stream, and on its way out of its record. Under relay_lock. */
static bool already_published(struct lc_replica *r, const char *event_id)
{
    return listed(&r->unended, event_id) || listed(&r->published, event_id) || listed(&r->pulling, event_id);
}

static void add_hint(struct relay *relay, const struct lc_hint *hint)
{
    relay->events[relay->count] = hint->event;
    relay->since_us[relay->count++] = hint->since_us;
}

/* Hints into relay->events. Those of sandboxes that go by their record are dropped: the scan has them. */
static void take_hints(struct relay *relay)
{
    struct lc_replica *r = relay->replica;
    struct sk_list *item;
    int dropped = 0;

    relay->count = 0;
    pthread_mutex_lock(&r->relay_lock);
    while (relay->count < relay->capacity && (item = sk_list_pop_front(&r->hints)) != NULL) {
        struct lc_hint *hint = SK_LIST_ENTRY(struct lc_hint, item, link);

        r->hint_count--;
        if (sk_map_get(&r->relay_by_record, hint->event.sandbox_id) == NULL && !already_published(r, hint->event.id))
            add_hint(relay, hint);
        else
            dropped++;
        free(hint);
    }
    relay->more = r->hint_count > 0;
    pthread_mutex_unlock(&r->relay_lock);
    atomic_fetch_sub(&r->relay_pending, dropped);
}

/* The scan takes over an event that was not confirmed. */
static void give_up(struct lc_replica *r, const struct sk_event *event, bool hint)
{
    pthread_mutex_lock(&r->relay_lock);
    by_record(r, event->sandbox_id);
    pthread_mutex_unlock(&r->relay_lock);
    if (hint)
        atomic_fetch_sub(&r->relay_pending, 1);
}

/* Publishes relay->events; the confirmed ones go to relay->published. Returns the number that was not confirmed. */
static int publish(struct relay *relay, bool hints)
{
    struct lc_replica *r = relay->replica;
    struct sk_error err = {.code = SK_OK};
    int built = 0, lost = 0;
    int64_t now_us;

    /* One that cannot be written must not hold up the others: it stays in its record, the scan tries it again. */
    for (int i = 0; i < relay->count; i++) {
        if (lc_message_of_event(r, &relay->events[i], &relay->built[built]) != 0) {
            lost++;
            give_up(r, &relay->events[i], hints);
            continue;
        }
        if (built != i) {
            relay->events[built] = relay->events[i];
            relay->since_us[built] = relay->since_us[i];
        }
        relay->messages[built] = relay->built[built].message;
        relay->acked[built++] = false;
    }
    relay->count = built;
    if (built > 0)
        (void)r->seams.bus->ops->publish_acked(r->seams.bus->self, relay->messages, built, relay->acked,
                                               r->settings.publish_timeout_ms, &err);
    now_us = sk_mono_us(r->sched);
    for (int i = 0; i < built; i++) {
        lc_message_fini(&relay->built[i]);
        if (relay->acked[i]) {
            lc_count(r, LC_COUNT_EVENTS_PUBLISHED, 1);
            if (hints && r->hooks.published != NULL)
                r->hooks.published(r->hooks.arg, now_us - relay->since_us[i]);
            lc_pull_later(r, &relay->events[i], hints);
            continue;
        }
        lost++;
        give_up(r, &relay->events[i], hints);
    }
    if (lost > 0)
        lc_count(r, LC_COUNT_PUBACKS_LOST, lost);
    return lost;
}

/* A mutation: what must never happen. */
static void clear_early(struct relay *relay)
{
    const struct sk_store *store = relay->replica->seams.store;

    for (int i = 0; i < relay->count; i++) {
        char sandbox_id[1][SK_SANDBOX_ID_SIZE], event_id[1][SK_ULID_SIZE];

        memcpy(sandbox_id[0], relay->events[i].sandbox_id, sizeof(sandbox_id[0]));
        memcpy(event_id[0], relay->events[i].id, sizeof(event_id[0]));
        (void)store->ops->outbox_pull(store->self, (const char(*)[SK_SANDBOX_ID_SIZE])sandbox_id, 1,
                                      (const char(*)[SK_ULID_SIZE])event_id, 1, NULL);
    }
}

/* ---- the scan ----------------------------------------------------------------------------------- */
static bool collect(void *arg, const struct sk_instance *record, const struct sk_event *events, int count)
{
    static char mark;
    struct relay *relay = arg;
    struct lc_replica *r = relay->replica;
    bool wanted, known;

    if (record->malformed)
        return true; /* left alone: what it holds may not even have a subject to be published to */
    pthread_mutex_lock(&r->relay_lock);
    wanted = relay->scan_all || sk_map_get(&r->relay_by_record, record->sandbox_id) != NULL;
    pthread_mutex_unlock(&r->relay_lock);
    for (int i = 0; i < count; i++) {
        pthread_mutex_lock(&r->relay_lock);
        known = already_published(r, events[i].id);
        pthread_mutex_unlock(&r->relay_lock);
        if (known)
            continue;
        /* Seen for the first time: most likely its own replica is just about to publish it. */
        if (!wanted && sk_map_get(&relay->seen, events[i].id) == NULL &&
            sk_map_set(&relay->seen_now, events[i].id, &mark, NULL))
            continue;
        if (relay->count >= relay->capacity) {
            relay->more = true;
            return false;
        }
        relay->events[relay->count++] = events[i];
    }
    return true;
}

static void scan(struct relay *relay)
{
    struct lc_replica *r = relay->replica;
    const struct sk_store *store = r->seams.store;
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;
    struct sk_map old;
    bool clean;

    relay->count = 0;
    relay->more = false;
    sk_call_init(&call, r->sched);
    call.deadline_us = sk_mono_us(r->sched) + LC_COMMIT_MS * 1000;
    /* More records than fit: broken ones, whose outbox nobody empties, must not hide the others behind them. */
    if (store->ops->scan(store->self, &call, SK_SCAN_OUTBOX, 0, LC_SCAN_LIMIT, collect, relay, &err) != 0) {
        lc_note_store(r, false);
        relay->count = 0;
        return;
    }
    lc_note_store(r, true);
    old = relay->seen;
    relay->seen = relay->seen_now;
    relay->seen_now = old;
    sk_map_fini(&relay->seen_now);
    sk_map_init(&relay->seen_now, LC_HINTS_MAX, 1);
    clean = !relay->more;
    /* Marks go before the events are sent: what is committed from here on comes as a hint behind them. */
    if (clean) {
        pthread_mutex_lock(&r->relay_lock);
        sk_map_fini(&r->relay_by_record);
        sk_map_init(&r->relay_by_record, LC_HINTS_MAX, 1);
        pthread_mutex_unlock(&r->relay_lock);
    }
    if (relay->count > 0 && publish(relay, false) == 0 && !clean)
        relay->scan_us = 0; /* there is more of a backlog, and it moves */
}

static void wait_for_work(struct relay *relay, uint64_t ticket)
{
    struct lc_replica *r = relay->replica;
    int64_t ms = (relay->scan_us - sk_mono_us(r->sched) + 999) / 1000, collect_ms;
    bool idle;

    /* The pull is behind: it rings when there is room again. */
    if (relay->full)
        ms = FULL_POLL_MS;
    if (ms <= 0 || lc_stopping(r))
        return;
    pthread_mutex_lock(&r->relay_lock);
    idle = relay->full || (r->hint_count == 0 && !r->relay_scan);
    r->relay_awake = !idle;
    pthread_mutex_unlock(&r->relay_lock);
    if (!idle)
        return;
    sk_gate_wait(r->sched, r->relay_gate, ticket, ms);
    /* An operation makes several events within milliseconds: one message each, one round for all of them. */
    pthread_mutex_lock(&r->relay_lock);
    collect_ms = r->hint_count > 0 && !r->pull_hurry ? COLLECT_MS : 0;
    r->relay_awake = true;
    pthread_mutex_unlock(&r->relay_lock);
    if (collect_ms > 0 && !lc_stopping(r))
        sk_sleep_ms(r->sched, collect_ms);
}

void lc_relay_main(struct lc_replica *r)
{
    struct relay relay;

    if (!relay_init(&relay, r)) {
        SK_LOG_ERROR("no memory for the relay");
        relay_fini(&relay);
        return;
    }
    while (!lc_stopping(r)) {
        uint64_t ticket = sk_gate_ticket(r->sched, r->relay_gate);
        int64_t now_us;
        bool scan_now;

        pthread_mutex_lock(&r->relay_lock);
        scan_now = r->relay_scan;
        r->relay_scan = false;
        relay.full = r->published_count > 2 * relay.capacity;
        pthread_mutex_unlock(&r->relay_lock);

        relay.more = false;
        if (!relay.full) {
            take_hints(&relay);
            if (LC_MUTATE(CLEAR_OUTBOX_EARLY) && relay.count > 0)
                clear_early(&relay);
            if (relay.count > 0)
                (void)publish(&relay, true);
        }
        now_us = sk_mono_us(r->sched);
        if ((scan_now || now_us >= relay.scan_us) && !relay.full) {
            /* Does not wander with its lateness: it wakes together with the sweeps, which began when it did. */
            relay.scan_us += r->settings.relay_poll_ms * 1000;
            if (scan_now || relay.scan_us <= now_us)
                relay.scan_us = now_us + r->settings.relay_poll_ms * 1000;
            relay.scan_all = scan_now;
            scan(&relay);
        }
        if (!relay.more)
            wait_for_work(&relay, ticket);
    }
    relay_fini(&relay);
}

/* ---- waiting for an empty outbox ---------------------------------------------------------------- */
int lc_relay_flush(struct lc_run *run)
{
    struct lc_replica *r = run->replica;
    int64_t end_us = sk_mono_us(r->sched) + r->settings.publish_timeout_ms * 1000;
    bool scan_now;

    for (int looks = 0;; looks++) {
        pthread_mutex_lock(&r->relay_lock);
        r->pull_hurry = true;
        if (looks >= FLUSH_SCAN_AFTER)
            r->relay_scan = true;
        scan_now = r->relay_scan;
        pthread_mutex_unlock(&r->relay_lock);
        if (scan_now)
            sk_gate_notify(r->sched, r->relay_gate);
        sk_gate_notify(r->sched, r->poll_gate);
        if (!lc_pause(run, lc_backoff_ms(r->sched, FLUSH_POLL_MS, FLUSH_POLL_MAX_MS, looks)))
            return lc_engine_guard(run) != 0 ? -1 : sk_fail(&run->err, SK_ERR_CANCELLED, "the job was called back");
        run->before = run->record;
        if (lc_read(run) != 0)
            return -1;
        if (!run->found)
            return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record is gone");
        if (run->record.has_operation != run->before.has_operation ||
            (run->record.has_operation && strcmp(run->record.operation.id, run->before.operation.id) != 0))
            return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record changed");
        if (run->record.outbox_count == 0)
            return 0;
        /* The bus is away, not the operation's fault: nothing is removed before its last event is out. */
        if (sk_mono_us(r->sched) >= end_us)
            return sk_fail(&run->err, SK_ERR_STORE_UNAVAILABLE, "the events of the sandbox cannot be published");
    }
}
