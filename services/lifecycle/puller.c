/* SPDX-License-Identifier: Apache-2.0
 *
 * Behind the relay: events that the stream confirmed are written to the timeline and then pulled from their records,
 * all of one window in two writes. The events of one operation wait for its end, for a while: an entry that is written
 * once, whole, costs the store a seventh of one that is written three times. It shares the poller's thread: publishing
 * must never wait for a store that is busy. */
#include "services/lifecycle/internal.h"

#include <stdlib.h>
#include <string.h>

#define OUTAGE_PAUSE_MS 250
/* How long an operation's events wait for its end: most operations are shorter. Never more than half the period of the
 * scan, so that no other replica takes them for left behind. */
#define UNENDED_WAIT_MS 500

static int64_t unended_wait_us(const struct lc_replica *r)
{
    int64_t half_ms = r->settings.relay_poll_ms / 2;

    return (half_ms < UNENDED_WAIT_MS ? half_ms : UNENDED_WAIT_MS) * 1000;
}

/* Ready to be written from now on. Under relay_lock. */
static void make_due(struct lc_replica *r, struct lc_hint *item)
{
    if (r->published_count == 0)
        r->pull_us = sk_mono_us(r->sched) + r->settings.relay_window_ms * 1000;
    sk_list_push_back(&r->published, &item->link);
    r->published_count++;
}

/* Waits for the end of its operation no longer. Under relay_lock. */
static void end_wait(struct lc_replica *r, struct lc_hint *item)
{
    sk_list_remove(&item->link);
    r->unended_count--;
    make_due(r, item);
}

/* The events before this one of its sandbox, in their order: of its operation, and of those that lost the sandbox to
 * it, whose entries this end may say something about. Under relay_lock. */
static void collect_sandbox(struct lc_replica *r, const struct sk_event *event)
{
    struct sk_list *next;

    for (struct sk_list *item = r->unended.next; item != &r->unended; item = next) {
        struct lc_hint *hint = SK_LIST_ENTRY(struct lc_hint, item, link);

        next = item->next;
        if (strcmp(hint->event.sandbox_id, event->sandbox_id) != 0)
            continue;
        end_wait(r, hint);
    }
}

/* Those whose time is over, or all. Under relay_lock. */
static void collect_unended(struct lc_replica *r, bool all)
{
    int64_t now_us = sk_mono_us(r->sched);

    while (!sk_list_empty(&r->unended)) {
        struct lc_hint *hint = SK_LIST_ENTRY(struct lc_hint, r->unended.next, link);

        if (!all && now_us < hint->until_us)
            break;
        end_wait(r, hint);
    }
}

static int64_t rounded_up_ms(int64_t us)
{
    return us > 0 ? (us + 999) / 1000 : 0;
}

void lc_pull_later(struct lc_replica *r, const struct sk_event *event, bool counted)
{
    struct lc_hint *item = malloc(sizeof(*item));
    int64_t now_us = sk_mono_us(r->sched);
    bool ring;

    if (item == NULL) {
        /* Still in its record: the scan finds it and publishes it once more, under the same id. */
        if (counted)
            atomic_fetch_sub(&r->relay_pending, 1);
        return;
    }
    item->event = *event;
    item->until_us = now_us + unended_wait_us(r);
    if (!counted)
        atomic_fetch_add(&r->relay_pending, 1);
    pthread_mutex_lock(&r->relay_lock);
    ring = r->pull_hurry || (r->published_count == 0 && r->unended_count == 0);
    if (sk_event_result(event) != NULL) {
        ring = ring || r->published_count == 0;
        collect_sandbox(r, event);
        make_due(r, item);
    } else if (r->unended_count < r->settings.relay_batch) {
        sk_list_push_back(&r->unended, &item->link);
        r->unended_count++;
    } else {
        ring = ring || r->published_count == 0;
        make_due(r, item);
    }
    if (r->published_count >= r->settings.relay_batch)
        ring = true;
    pthread_mutex_unlock(&r->relay_lock);
    if (ring)
        sk_gate_notify(r->sched, r->poll_gate);
}

int64_t lc_pull_in_ms(struct lc_replica *r)
{
    int64_t now_us = sk_mono_us(r->sched), ms = -1, unended_ms;

    pthread_mutex_lock(&r->relay_lock);
    collect_unended(r, r->pull_hurry || lc_draining(r));
    if (r->published_count > 0) {
        ms = rounded_up_ms(r->pull_us - now_us);
        if (!r->pull_failed && (r->pull_hurry || lc_draining(r) || r->published_count >= r->settings.relay_batch))
            ms = 0;
    }
    if (!sk_list_empty(&r->unended)) {
        unended_ms = rounded_up_ms(SK_LIST_ENTRY(struct lc_hint, r->unended.next, link)->until_us - now_us);
        ms = ms < 0 || unended_ms < ms ? unended_ms : ms;
    }
    pthread_mutex_unlock(&r->relay_lock);
    return ms;
}

bool lc_puller_init(struct lc_puller *p, struct lc_replica *r)
{
    size_t n;

    memset(p, 0, sizeof(*p));
    p->capacity = 2 * (r->settings.relay_batch > 0 ? r->settings.relay_batch : 1);
    n = (size_t)p->capacity;
    p->events = calloc(n, sizeof(*p->events));
    p->sandbox_ids = calloc(n, sizeof(*p->sandbox_ids));
    p->event_ids = calloc(n, sizeof(*p->event_ids));
    return p->events != NULL && p->sandbox_ids != NULL && p->event_ids != NULL;
}

void lc_puller_fini(struct lc_puller *p)
{
    free(p->events);
    free(p->sandbox_ids);
    free(p->event_ids);
    memset(p, 0, sizeof(*p));
}

static int take(struct lc_puller *p, struct lc_replica *r)
{
    struct sk_list *item;
    int count = 0;

    pthread_mutex_lock(&r->relay_lock);
    while (count < p->capacity && (item = sk_list_pop_front(&r->published)) != NULL) {
        sk_list_push_back(&r->pulling, item);
        p->events[count++] = SK_LIST_ENTRY(struct lc_hint, item, link)->event;
    }
    r->published_count -= count;
    pthread_mutex_unlock(&r->relay_lock);
    return count;
}

static int write(struct lc_puller *p, struct lc_replica *r, int count)
{
    const struct sk_store *store = r->seams.store;
    struct sk_error err = {.code = SK_OK};
    int sandboxes = 0;

    if (SK_FAULT(OUTBOX_PUBLISHED, NULL) || store->ops->timeline_apply(store->self, p->events, count, &err) != 0 ||
        SK_FAULT(TIMELINE_WRITTEN, NULL))
        return -1;
    for (int i = 0; i < count; i++) {
        int k = sandboxes - 1;

        memcpy(p->event_ids[i], p->events[i].id, sizeof(p->event_ids[i]));
        while (k >= 0 && strcmp(p->sandbox_ids[k], p->events[i].sandbox_id) != 0)
            k--;
        if (k < 0)
            memcpy(p->sandbox_ids[sandboxes++], p->events[i].sandbox_id, SK_SANDBOX_ID_SIZE);
    }
    return store->ops->outbox_pull(store->self, (const char(*)[SK_SANDBOX_ID_SIZE])p->sandbox_ids, sandboxes,
                                   (const char(*)[SK_ULID_SIZE])p->event_ids, count, &err);
}

void lc_pull(struct lc_puller *p, struct lc_replica *r)
{
    int count = take(p, r);
    bool done = count > 0 && write(p, r, count) == 0;
    int64_t now_us = sk_mono_us(r->sched);
    struct sk_list gone, *item;

    if (count == 0)
        return;
    lc_note_store(r, done);
    sk_list_init(&gone);
    pthread_mutex_lock(&r->relay_lock);
    r->pull_failed = !done;
    if (done) {
        r->pull_hurry = false;
        r->pull_us = now_us + r->settings.relay_window_ms * 1000;
    } else {
        r->pull_us = now_us + OUTAGE_PAUSE_MS * 1000;
    }
    while (!sk_list_empty(&r->pulling)) {
        /* From the end: what failed goes back to the front in its order. */
        item = done ? r->pulling.next : r->pulling.prev;
        sk_list_remove(item);
        if (done) {
            sk_list_push_back(&gone, item);
        } else {
            sk_list_push_front(&r->published, item);
            r->published_count++;
        }
    }
    pthread_mutex_unlock(&r->relay_lock);
    if (!done)
        return;
    atomic_fetch_sub(&r->relay_pending, count);
    lc_relay_free_hints(&gone);
}
