/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of single records: insert, read, compare-and-set with every way to lose it, removal, heartbeats, outboxes, and
 * the same under contention. */
#include "tests/conformance/store/fixture.h"

#include <stdio.h>
#include <string.h>

static bool check_absence(struct sk_store_conformance *c)
{
    struct sk_error err = {0};
    struct sk_instance record, after, out;
    struct sk_event event;
    bool found = true;

    sc_new(c, &record, &event, "replica-a");
    CHECK(OPS->get(SELF, NULL, record.sandbox_id, &out, &found, &err) == 0 && !found, "get of nobody: %s", err.message);
    found = true;
    CHECK(OPS->find(SELF, NULL, &record.identity, &out, &found, &err) == 0 && !found, "find of nobody: %s",
          err.message);
    sc_phase(c, &record, &after, &event, "providerEnsured");
    CHECK(OPS->cas(SELF, NULL, &record, &after, &event, 1, NULL, &err) == SK_CAS_LOST,
          "a change of nobody must be lost");
    return true;
}

static bool check_insert(struct sk_store_conformance *c)
{
    struct sk_error err = {0};
    struct sk_instance record, other, out;
    struct sk_event event;
    bool found = false, created = true;

    if (!sc_insert(c, &record) || !sc_same(c, &record, "insert"))
        return false;
    CHECK(OPS->find(SELF, NULL, &record.identity, &out, &found, &err) == 0 && found, "find by identity: %s",
          err.message);
    CHECK(strcmp(out.sandbox_id, record.sandbox_id) == 0, "find gave another record");

    /* The same identity with another _id, and the very same record again. */
    other = record;
    other.oid[0] = other.oid[0] == 'a' ? 'b' : 'a';
    sc_new(c, &out, &event, "replica-b");
    memcpy(event.sandbox_id, other.sandbox_id, sizeof(event.sandbox_id));
    CHECK(OPS->insert(SELF, NULL, &other, &event, 1, &created, &err) == 0 && !created, "an identity was stored twice");
    created = true;
    CHECK(OPS->insert(SELF, NULL, &record, &event, 1, &created, &err) == 0 && !created, "a record was stored twice");
    if (!sc_same(c, &record, "refused insert"))
        return false;

    /* Two identities that hash alike: the second does not get in. */
    sc_new(c, &other, &event, "replica-b");
    CHECK(sk_identity_set(&other.identity, "app", "a-b", 3, other.oid, 24, &err) == 0, "%s", err.message);
    sk_identity_sandbox_id(&other.identity, other.sandbox_id);
    CHECK(OPS->insert(SELF, NULL, &other, &event, 1, &created, &err) == 0 && created, "insert: %s", err.message);
    out = other;
    out.oid[0] = out.oid[0] == 'a' ? 'b' : 'a';
    strcpy(out.identity.source_id, "a");
    snprintf(out.identity.user_id, sizeof(out.identity.user_id), "b-%s", other.oid);
    created = true;
    CHECK(OPS->insert(SELF, NULL, &out, &event, 1, &created, &err) == 0 && !created, "two records got one sandbox id");
    return true;
}

static bool check_refused_insert(struct sk_store_conformance *c)
{
    struct sk_error err = {0};
    struct sk_instance record;
    struct sk_event event;
    bool created = true;

    sc_new(c, &record, &event, "replica-a");
    record.sequence = 2;
    CHECK(OPS->insert(SELF, NULL, &record, &event, 1, &created, &err) != 0 && err.code == SK_ERR_INTERNAL && !created,
          "a sequence without its event was stored");
    sc_new(c, &record, &event, "replica-a");
    record.oid[0] = '\0';
    CHECK(OPS->insert(SELF, NULL, &record, &event, 1, &created, &err) != 0 && !created,
          "a record without _id was stored");
    sc_new(c, &record, &event, "replica-a");
    strcpy(record.operation.phase, "somewhere");
    CHECK(OPS->insert(SELF, NULL, &record, &event, 1, &created, &err) != 0 && !created, "an unknown phase was stored");
    return true;
}

/* Every part of the filter, one by one. */
static bool check_lost(struct sk_store_conformance *c)
{
    struct sk_instance record, before, after;
    struct sk_error err = {0};
    struct sk_event event;

    if (!sc_running(c, &record))
        return false;
    before = record;
    before.epoch++;
    sc_claim(c, &before, &after, &event, SK_OP_STOP, "replica-b");
    CHECK(OPS->cas(SELF, NULL, &before, &after, &event, 1, NULL, &err) == SK_CAS_LOST, "a wrong epoch was accepted");
    before = record;
    before.epoch = 0;
    sc_claim(c, &before, &after, &event, SK_OP_STOP, "replica-b");
    CHECK(OPS->cas(SELF, NULL, &before, &after, &event, 1, NULL, &err) == SK_CAS_LOST, "a missing epoch was accepted");
    before = record;
    before.status = SK_STATUS_STOPPED;
    sc_claim(c, &before, &after, &event, SK_OP_PROVISION, "replica-b");
    CHECK(OPS->cas(SELF, NULL, &before, &after, &event, 1, NULL, &err) == SK_CAS_LOST, "a wrong status was accepted");
    if (!sc_same(c, &record, "lost changes"))
        return false;

    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    if (!sc_apply(c, &record, &after, &event, "claim"))
        return false;
    before = record;
    sk_uuid4(c->sched, before.operation.id);
    sc_phase(c, &before, &after, &event, "providerStopped");
    CHECK(OPS->cas(SELF, NULL, &before, &after, &event, 1, NULL, &err) == SK_CAS_LOST,
          "a wrong operation id was accepted");
    before = record;
    before.has_operation = false;
    before.status = SK_STATUS_RUNNING;
    sc_claim(c, &before, &after, &event, SK_OP_STOP, "replica-b");
    CHECK(OPS->cas(SELF, NULL, &before, &after, &event, 1, NULL, &err) == SK_CAS_LOST, "an operation was not seen");
    return sc_same(c, &record, "lost changes of an operation");
}

static bool refused(struct sk_store_conformance *c, const struct sk_instance *before, const struct sk_instance *after,
                    const struct sk_event *event, const char *what)
{
    struct sk_error err = {0};

    CHECK(OPS->cas(SELF, NULL, before, after, event, 1, NULL, &err) == SK_CAS_ERROR && err.code == SK_ERR_INTERNAL &&
              err.outcome == SK_OUTCOME_FAILED,
          "%s was not refused", what);
    return sc_same(c, before, what);
}

static bool check_refused_change(struct sk_store_conformance *c)
{
    struct sk_instance record, after;
    struct sk_event event;

    if (!sc_running(c, &record))
        return false;
    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    after.epoch = record.epoch;
    if (!refused(c, &record, &after, &event, "a claim without a new epoch"))
        return false;
    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    after.sequence++;
    if (!refused(c, &record, &after, &event, "a sequence that jumps"))
        return false;
    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    event.sequence++;
    if (!refused(c, &record, &after, &event, "an event of another sequence"))
        return false;
    sc_claim(c, &record, &after, &event, SK_OP_PROVISION, "replica-a");
    if (!refused(c, &record, &after, &event, "provisioning a running sandbox"))
        return false;
    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    after.operation.type = SK_OP_DELETE;
    if (!refused(c, &record, &after, &event, "an operation that does not fit its status"))
        return false;
    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    strcpy(after.identity.user_id, "somebody else");
    return refused(c, &record, &after, &event, "another identity");
}

static bool check_guards(struct sk_store_conformance *c)
{
    struct sk_instance record, touched, after;
    int64_t now = sk_wall_ms(c->sched);
    struct sk_cas_guard guard = {.last_active_at = true};
    struct sk_error err = {0};
    struct sk_event event;

    /* A touch between the read and the claim. */
    if (!sc_running(c, &record))
        return false;
    touched = record;
    touched.last_active_at++;
    CHECK(OPS->cas(SELF, NULL, &record, &touched, NULL, 0, NULL, &err) == SK_CAS_APPLIED, "touch: %s", err.message);
    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    CHECK(OPS->cas(SELF, NULL, &record, &after, &event, 1, &guard, &err) == SK_CAS_LOST, "the touch was overlooked");
    if (!sc_same(c, &touched, "touch"))
        return false;
    /* Without the guard the claim does not mind. */
    record = touched;
    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    CHECK(OPS->cas(SELF, NULL, &record, &after, &event, 1, &guard, &err) == SK_CAS_APPLIED,
          "the guard lost without reason");

    /* Pins: one that is over, one that is not. */
    if (!sc_running(c, &record))
        return false;
    after = record;
    after.pin_count = 2;
    strcpy(after.pins[0].id, "over");
    after.pins[0].expires_at = now - 1000;
    strcpy(after.pins[1].id, "editor");
    strcpy(after.pins[1].kind, "websocket");
    after.pins[1].expires_at = now + 60000;
    if (!sc_apply(c, &record, &after, NULL, "pin") || !sc_same(c, &record, "pins"))
        return false;
    guard = (struct sk_cas_guard){.unpinned_at = now};
    sc_claim(c, &record, &after, &event, SK_OP_STOP, "replica-a");
    CHECK(OPS->cas(SELF, NULL, &record, &after, &event, 1, &guard, &err) == SK_CAS_LOST, "a pin was overlooked");
    guard.unpinned_at = now + 60000;
    CHECK(OPS->cas(SELF, NULL, &record, &after, &event, 1, &guard, &err) == SK_CAS_APPLIED, "a pin that is over holds");
    return true;
}

static bool check_heartbeat(struct sk_store_conformance *c)
{
    int64_t beat = sk_wall_ms(c->sched) + 5000;
    struct sk_instance mine, other, released, after;
    struct sk_heartbeat items[4];
    struct sk_error err = {0};
    struct sk_event event;

    if (!sc_insert(c, &mine) || !sc_insert(c, &other) || !sc_insert(c, &released))
        return false;
    sc_claim(c, &other, &after, &event, SK_OP_PROVISION, "replica-b");
    if (!sc_apply(c, &other, &after, &event, "take-over"))
        return false;
    after = released;
    after.operation.owner[0] = '\0';
    if (!sc_apply(c, &released, &after, NULL, "release"))
        return false;
    memset(items, 0, sizeof(items));
    memcpy(items[0].sandbox_id, mine.sandbox_id, sizeof(items[0].sandbox_id));
    memcpy(items[0].operation_id, mine.operation.id, sizeof(items[0].operation_id));
    memcpy(items[1].sandbox_id, other.sandbox_id, sizeof(items[1].sandbox_id));
    memcpy(items[1].operation_id, other.operation.id, sizeof(items[1].operation_id));
    memcpy(items[2].sandbox_id, released.sandbox_id, sizeof(items[2].sandbox_id));
    memcpy(items[2].operation_id, released.operation.id, sizeof(items[2].operation_id));
    strcpy(items[3].sandbox_id, "app-0000000000000000");
    strcpy(items[3].operation_id, mine.operation.job_id);
    CHECK(OPS->heartbeat(SELF, "replica-a", items, 4, beat, &err) == 0, "heartbeat: %s", err.message);
    CHECK(OPS->heartbeat(SELF, "replica-a", items, 0, beat, &err) == 0, "heartbeat of nothing: %s", err.message);
    mine.operation.heartbeat_at = beat;
    return sc_same(c, &mine, "own heartbeat") && sc_same(c, &other, "heartbeat of another's operation") &&
           sc_same(c, &released, "heartbeat of a released operation");
}

static bool check_remove(struct sk_store_conformance *c)
{
    struct sk_instance record, before, after, out;
    struct sk_error err = {0};
    struct sk_event event;
    bool found = true;

    if (!sc_running(c, &record))
        return false;
    CHECK(OPS->remove(SELF, NULL, &record, &err) == SK_CAS_ERROR, "a running record was removed");
    sc_claim(c, &record, &after, &event, SK_OP_DELETE, "replica-a");
    if (!sc_apply(c, &record, &after, &event, "claim of delete"))
        return false;
    CHECK(OPS->remove(SELF, NULL, &record, &err) == SK_CAS_LOST, "a record with a pending event was removed");
    if (!sc_drain(c, &record))
        return false;
    record.outbox_count = 0;
    before = record;
    before.epoch--;
    CHECK(OPS->remove(SELF, NULL, &before, &err) == SK_CAS_LOST, "a wrong epoch removed the record");
    before = record;
    sk_uuid4(c->sched, before.operation.id);
    CHECK(OPS->remove(SELF, NULL, &before, &err) == SK_CAS_LOST, "a wrong operation id removed the record");
    if (!sc_same(c, &record, "removals that lost"))
        return false;
    CHECK(OPS->remove(SELF, NULL, &record, &err) == SK_CAS_APPLIED, "remove: %s", err.message);
    CHECK(OPS->get(SELF, NULL, record.sandbox_id, &out, &found, &err) == 0 && !found, "the record is still there");
    CHECK(OPS->remove(SELF, NULL, &record, &err) == SK_CAS_LOST, "a record was removed twice");
    return true;
}

struct seen_events {
    const char *sandbox_id;
    struct sk_event events[8];
    int count, records;
};

static bool note_events(void *arg, const struct sk_instance *instance, const struct sk_event *events, int count)
{
    struct seen_events *seen = arg;

    seen->records++;
    if (strcmp(instance->sandbox_id, seen->sandbox_id) == 0) {
        for (int i = 0; i < count && i < 8; i++)
            seen->events[i] = events[i];
        seen->count = count;
    }
    return true;
}

static bool same_event(const struct sk_event *a, const struct sk_event *b)
{
    json_t *left = sk_event_data_json(a), *right = sk_event_data_json(b);
    bool same = json_equal(left, right) == 1;

    json_decref(left);
    json_decref(right);
    return same && strcmp(a->id, b->id) == 0 && a->type == b->type && a->time == b->time &&
           strcmp(a->traceparent, b->traceparent) == 0 && strcmp(a->job_id, b->job_id) == 0 &&
           strcmp(a->owner, b->owner) == 0;
}

static bool check_outbox(struct sk_store_conformance *c)
{
    struct seen_events seen = {.count = -1};
    struct sk_instance record, after;
    struct sk_event first, events[2];
    char sandbox_ids[2][SK_SANDBOX_ID_SIZE], event_ids[2][SK_ULID_SIZE];
    struct sk_error err = {0};
    bool created = false;

    sc_new(c, &record, &first, "replica-a");
    strcpy(first.traceparent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    strcpy(first.reason, "ensure");
    CHECK(OPS->insert(SELF, NULL, &record, &first, 1, &created, &err) == 0 && created, "insert: %s", err.message);
    /* Two events in one change. */
    sc_phase(c, &record, &after, &events[0], "providerEnsured");
    sc_complete(c, &after, &after, &events[1]);
    strcpy(events[1].error.code, "provider_error");
    strcpy(events[1].error.detail, "odd, but kept");
    CHECK(OPS->cas(SELF, NULL, &record, &after, events, 2, NULL, &err) == SK_CAS_APPLIED, "two events: %s",
          err.message);
    seen.sandbox_id = record.sandbox_id;
    CHECK(OPS->scan(SELF, NULL, SK_SCAN_OUTBOX, 0, 1000, note_events, &seen, &err) == 0, "scan: %s", err.message);
    CHECK(seen.count == 3, "%d pending events instead of 3", seen.count);
    CHECK(same_event(&seen.events[0], &first) && same_event(&seen.events[1], &events[0]) &&
              same_event(&seen.events[2], &events[1]),
          "the events came back changed or out of order");
    seen.records = 0;
    CHECK(OPS->scan(SELF, NULL, SK_SCAN_OUTBOX, 0, 1, note_events, &seen, &err) == 0 && seen.records == 1,
          "the limit of a scan is not kept");

    /* Pull the first two; ids of other records and unknown ones do no harm. */
    memcpy(sandbox_ids[0], record.sandbox_id, SK_SANDBOX_ID_SIZE);
    strcpy(sandbox_ids[1], "app-ffffffffffffffff");
    memcpy(event_ids[0], first.id, SK_ULID_SIZE);
    memcpy(event_ids[1], events[0].id, SK_ULID_SIZE);
    for (int again = 0; again < 2; again++)
        CHECK(OPS->outbox_pull(SELF, (const char(*)[SK_SANDBOX_ID_SIZE])sandbox_ids, 2,
                               (const char(*)[SK_ULID_SIZE])event_ids, 2, &err) == 0,
              "pull: %s", err.message);
    seen.count = -1;
    CHECK(OPS->scan(SELF, NULL, SK_SCAN_OUTBOX, 0, 1000, note_events, &seen, &err) == 0, "scan: %s", err.message);
    CHECK(seen.count == 1 && same_event(&seen.events[0], &events[1]), "pull took the wrong events");
    if (!sc_drain(c, &record))
        return false;
    seen.count = -1;
    CHECK(OPS->scan(SELF, NULL, SK_SCAN_OUTBOX, 0, 1000, note_events, &seen, &err) == 0 && seen.count == -1,
          "a drained outbox is still found");
    after.outbox_count = 0;
    return sc_same(c, &after, "drained record");
}

struct seen_records {
    int count, events;
    char ids[8][SK_SANDBOX_ID_SIZE];
    int stop_after;
};

static bool note_record(void *arg, const struct sk_instance *instance, const struct sk_event *events, int count)
{
    struct seen_records *seen = arg;

    for (int i = 0; i < count; i++)
        seen->events += strcmp(events[i].sandbox_id, instance->sandbox_id) == 0;
    if (seen->count < 8)
        memcpy(seen->ids[seen->count], instance->sandbox_id, SK_SANDBOX_ID_SIZE);
    seen->count++;
    return seen->stop_after == 0 || seen->count < seen->stop_after;
}

static bool check_get_many(struct sk_store_conformance *c)
{
    struct seen_records seen = {.count = 0};
    struct sk_instance a, b;
    char ids[3][SK_SANDBOX_ID_SIZE];
    struct sk_error err = {0};

    if (!sc_insert(c, &a) || !sc_insert(c, &b))
        return false;
    memcpy(ids[0], b.sandbox_id, sizeof(ids[0]));
    strcpy(ids[1], "app-0123456789abcdef");
    memcpy(ids[2], a.sandbox_id, sizeof(ids[2]));
    CHECK(OPS->get_many(SELF, NULL, (const char(*)[SK_SANDBOX_ID_SIZE])ids, 3, note_record, &seen, &err) == 0 &&
              seen.count == 2,
          "%d records instead of 2: %s", seen.count, err.message);
    CHECK(seen.events == 2, "%d pending events instead of one each", seen.events);
    seen = (struct seen_records){.stop_after = 1};
    CHECK(OPS->get_many(SELF, NULL, (const char(*)[SK_SANDBOX_ID_SIZE])ids, 3, note_record, &seen, &err) == 0 &&
              seen.count == 1,
          "a scan does not stop when told to");
    seen = (struct seen_records){.count = 0};
    CHECK(OPS->get_many(SELF, NULL, (const char(*)[SK_SANDBOX_ID_SIZE])ids, 0, note_record, &seen, &err) == 0 &&
              seen.count == 0,
          "reading nothing found something");
    return true;
}

/* ---- contention -------------------------------------------------------------------------------- */

#define TASKS_MAX 64

struct race {
    struct sk_store_conformance *c;
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    struct sk_instance before;
    atomic_int applied, lost, failed;
    int wins[TASKS_MAX];
};

/* Everybody read the same record and claims it: one gets it. */
static void race_to_claim(void *arg, int index)
{
    struct race *race = arg;
    struct sk_store_conformance *c = race->c;
    struct sk_instance after;
    struct sk_error err = {0};
    struct sk_event event;
    char owner[SK_OWNER_SIZE];

    snprintf(owner, sizeof(owner), "replica-%d", index);
    sc_claim(c, &race->before, &after, &event, SK_OP_STOP, owner);
    switch (OPS->cas(SELF, NULL, &race->before, &after, &event, 1, NULL, &err)) {
    case SK_CAS_APPLIED:
        atomic_fetch_add(&race->applied, 1);
        break;
    case SK_CAS_LOST:
        atomic_fetch_add(&race->lost, 1);
        break;
    case SK_CAS_ERROR:
        atomic_fetch_add(&race->failed, 1);
        break;
    }
}

/* Everybody reads and touches until it worked 5 times: no touch may get lost, as each is a new sequence. */
static void race_to_count(void *arg, int index)
{
    struct race *race = arg;
    struct sk_store_conformance *c = race->c;

    for (int tries = 0; race->wins[index] < 5 && tries < 5000; tries++) {
        struct sk_instance before, after;
        struct sk_error err = {0};
        struct sk_event event;
        enum sk_cas_result result;
        bool found = false;

        if (OPS->get(SELF, NULL, race->sandbox_id, &before, &found, &err) != 0 || !found)
            continue;
        sc_claim(c, &before, &after, &event, SK_OP_STOP, "anybody");
        result = OPS->cas(SELF, NULL, &before, &after, &event, 1, NULL, &err);
        if (result == SK_CAS_APPLIED)
            race->wins[index]++;
        else if (result == SK_CAS_ERROR)
            atomic_fetch_add(&race->failed, 1);
    }
}

static bool check_races(struct sk_store_conformance *c)
{
    struct sk_instance record, out;
    struct sk_error err = {0};
    bool found = false;
    int tasks = c->tasks < TASKS_MAX ? c->tasks : TASKS_MAX;
    int64_t wins = 0;

    for (int round = 0; round < 3; round++) {
        struct race race = {.c = c};

        if (!sc_running(c, &race.before))
            return false;
        sc_parallel(c, tasks, race_to_claim, &race);
        CHECK(race.applied == 1 && race.lost == tasks - 1 && race.failed == 0,
              "%d of %d claims were applied, %d lost, %d failed", race.applied, tasks, race.lost, race.failed);
    }
    {
        struct race race = {.c = c};

        if (!sc_running(c, &record))
            return false;
        memcpy(race.sandbox_id, record.sandbox_id, sizeof(race.sandbox_id));
        /* Few enough that the outbox stays small. */
        sc_parallel(c, tasks < 8 ? tasks : 8, race_to_count, &race);
        for (int i = 0; i < TASKS_MAX; i++)
            wins += race.wins[i];
        CHECK(race.failed == 0, "%d changes failed", race.failed);
        CHECK(OPS->get(SELF, NULL, record.sandbox_id, &out, &found, &err) == 0 && found, "get: %s", err.message);
        CHECK(out.sequence == record.sequence + wins && out.epoch == record.epoch + wins && out.outbox_count == wins,
              "%lld changes were applied, but the sequence rose by %lld, the epoch by %lld and %d events wait",
              (long long)wins, (long long)(out.sequence - record.sequence), (long long)(out.epoch - record.epoch),
              out.outbox_count);
    }
    return true;
}

bool sk_store_check_records(struct sk_store_conformance *c)
{
    return check_absence(c) && check_insert(c) && check_refused_insert(c) && check_lost(c) && check_refused_change(c) &&
           check_guards(c) && check_heartbeat(c) && check_remove(c) && check_outbox(c) && check_get_many(c) &&
           check_races(c);
}
