/* SPDX-License-Identifier: Apache-2.0
 *
 * What the simulated store does once a request has arrived: the semantics of sk_store_ops on plain values. The records
 * are whole instances; a compare-and-set writes the difference of two of them, field by field, as the Mongo store does.
 */
#include "tests/sim/monitor.h"
#include "tests/sim/servers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *sim_grow(void *array, size_t count, size_t *size, size_t item)
{
    if (count < *size)
        return array;
    *size = *size == 0 ? 16 : *size * 2;
    array = realloc(array, *size * item);
    if (array == NULL) {
        fprintf(stderr, "sim: out of memory\n");
        abort();
    }
    return array;
}

struct sim_actor sim_actor_of(struct sim_inc *inc)
{
    const struct sim_fiber *self = sim_self(inc->w->sched);

    return (struct sim_actor){.inc = inc, .fiber = self == NULL ? 0 : sim_fiber_id(self)};
}

struct sim_store *sim_store_new(struct sim_world *w)
{
    struct sim_store *store = calloc(1, sizeof(*store));

    if (store == NULL)
        abort();
    store->w = w;
    return store;
}

void sim_store_free(struct sim_store *store)
{
    for (size_t i = 0; i < store->doc_count; i++) {
        if (store->docs[i] != NULL)
            free(store->docs[i]->outbox);
        free(store->docs[i]);
    }
    free(store->docs);
    for (size_t i = 0; i < store->result_count; i++)
        free(store->results[i].record.result);
    free(store->results);
    free(store->stretches);
    free(store->changes);
    free(store->slots);
    free(store->scopes);
    free(store->timeline);
    free(store);
}

struct sim_doc *sim_store_doc(struct sim_world *w, const char *sandbox_id)
{
    for (size_t i = 0; i < w->store->doc_count; i++) {
        if (w->store->docs[i] != NULL && strcmp(w->store->docs[i]->i.sandbox_id, sandbox_id) == 0)
            return w->store->docs[i];
    }
    return NULL;
}

const struct sim_result_record *sim_store_result(struct sim_world *w, const char *sandbox_id, const char *command_id)
{
    for (size_t i = 0; i < w->store->result_count; i++) {
        const struct sk_command_record *r = &w->store->results[i].record;

        if (strcmp(r->sandbox_id, sandbox_id) == 0 && strcmp(r->command_id, command_id) == 0)
            return &w->store->results[i];
    }
    return NULL;
}

void sim_store_note_status(struct sim_store *store, const char *sandbox_id, enum sk_status status, int64_t epoch)
{
    struct sim_stretch *s;

    store->stretches =
        sim_grow(store->stretches, store->stretch_count, &store->stretch_size, sizeof(*store->stretches));
    s = &store->stretches[store->stretch_count++];
    sk_copy_cut(s->sandbox_id, sizeof(s->sandbox_id), sandbox_id);
    s->at_us = sim_now_us(store->w->sched);
    s->status = status;
    s->epoch = epoch;
}

static struct sim_doc *doc_new(struct sim_store *store)
{
    struct sim_doc *doc = calloc(1, sizeof(*doc));
    size_t place = 0;

    if (doc == NULL)
        abort();
    while (place < store->doc_count && store->docs[place] != NULL)
        place++;
    if (place == store->doc_count)
        store->docs = sim_grow(store->docs, store->doc_count++, &store->doc_size, sizeof(*store->docs));
    store->docs[place] = doc;
    return doc;
}

static void append_events(struct sim_store *store, struct sim_doc *doc, const struct sk_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        struct sk_check_change *change;

        if (doc->outbox_count == doc->outbox_size) {
            doc->outbox_size = doc->outbox_size == 0 ? 4 : doc->outbox_size * 2;
            doc->outbox = realloc(doc->outbox, (size_t)doc->outbox_size * sizeof(*doc->outbox));
            if (doc->outbox == NULL)
                abort();
        }
        doc->outbox[doc->outbox_count++] = events[i];
        store->changes = sim_grow(store->changes, store->change_count, &store->change_size, sizeof(*store->changes));
        change = &store->changes[store->change_count++];
        sk_copy_cut(change->sandbox_id, sizeof(change->sandbox_id), doc->i.sandbox_id);
        sk_copy_cut(change->event_id, sizeof(change->event_id), events[i].id);
    }
    doc->i.outbox_count = doc->outbox_count;
}

/* What a write meant for the clocks that the monitors keep beside the record. */
static void note_change(struct sim_store *store, struct sim_doc *doc, struct sim_actor actor,
                        const struct sk_instance *before)
{
    int64_t now = sim_now_us(store->w->sched);
    const struct sk_instance *after = &doc->i;
    bool claim = after->has_operation &&
                 (before == NULL || !before->has_operation || strcmp(before->operation.id, after->operation.id) != 0);

    if (before == NULL || before->status != after->status)
        sim_store_note_status(store, after->sandbox_id, after->status, after->epoch);
    doc->previous_heartbeat_us = doc->heartbeat_us;
    if (claim)
        doc->claim_us = now;
    /* From its first phase on a delete sees what there is; a later phase of FastGPT's is taken at its word. */
    if (claim && after->status == SK_STATUS_DELETING && sk_op_phase_index(SK_OP_DELETE, after->operation.phase) == 0 &&
        doc->deleting_us == 0)
        doc->deleting_us = now;
    if (claim || (after->has_operation && before->operation.heartbeat_at != after->operation.heartbeat_at))
        doc->heartbeat_us = now;
    if (claim || (after->has_operation && strcmp(before->operation.phase, after->operation.phase) != 0))
        doc->phase_us = now;
    if (claim)
        doc->claimed_by = actor.fiber;
}

struct sim_doc *sim_store_foreign(struct sim_world *w, const struct sk_instance *instance)
{
    struct sim_doc *doc = sim_store_doc(w, instance->sandbox_id);
    struct sk_instance before;
    bool exists = doc != NULL;

    w->store->foreign_writers = true;
    if (doc == NULL)
        doc = doc_new(w->store);
    before = doc->i;
    doc->i = *instance;
    doc->i.outbox_count = doc->outbox_count;
    if (doc->i.oid[0] == '\0')
        snprintf(doc->i.oid, sizeof(doc->i.oid), "%024llx", (unsigned long long)sim_rng_next(&w->work));
    note_change(w->store, doc, (struct sim_actor){.inc = NULL}, exists ? &before : NULL);
    return doc;
}

bool sim_store_apply_insert(struct sim_store *store, struct sim_actor actor, const struct sk_instance *after,
                            const struct sk_event *events, int event_count)
{
    struct sim_doc *doc;

    for (size_t i = 0; i < store->doc_count; i++) {
        const struct sim_doc *other = store->docs[i];

        if (other != NULL &&
            (strcmp(other->i.sandbox_id, after->sandbox_id) == 0 || strcmp(other->i.oid, after->oid) == 0 ||
             sk_identity_equal(&other->i.identity, &after->identity)))
            return false;
    }
    doc = doc_new(store);
    doc->i = *after;
    append_events(store, doc, events, event_count);
    note_change(store, doc, actor, NULL);
    sim_monitor_write(store->w, actor, doc, NULL, &doc->i, events, event_count);
    return true;
}

#define MERGE(field)                                                                                                   \
    do {                                                                                                               \
        if (memcmp(&before->field, &after->field, sizeof(after->field)) != 0)                                          \
            to->field = after->field;                                                                                  \
    } while (0)
#define MERGE_TEXT(field)                                                                                              \
    do {                                                                                                               \
        if (strcmp(before->field, after->field) != 0)                                                                  \
            memcpy(to->field, after->field, sizeof(after->field));                                                     \
    } while (0)

static void merge_operation(struct sk_instance *to, const struct sk_instance *before, const struct sk_instance *after)
{
    to->has_operation = after->has_operation;
    if (!after->has_operation) {
        memset(&to->operation, 0, sizeof(to->operation));
        return;
    }
    if (!before->has_operation || strcmp(before->operation.id, after->operation.id) != 0) {
        to->operation = after->operation;
        return;
    }
    MERGE_TEXT(operation.phase);
    MERGE(operation.previous_status);
    MERGE(operation.started_at);
    MERGE(operation.heartbeat_at);
    MERGE(operation.failed_at);
    MERGE_TEXT(operation.error.code);
    MERGE_TEXT(operation.error.detail);
    MERGE(operation.attempt);
    MERGE(operation.next_attempt_at);
    MERGE_TEXT(operation.owner);
    MERGE_TEXT(operation.command_id);
    MERGE_TEXT(operation.job_id);
    MERGE_TEXT(operation.traceparent);
    MERGE(operation.deadline_at);
    MERGE_TEXT(operation.blocked);
}

static void merge(struct sk_instance *to, const struct sk_instance *before, const struct sk_instance *after)
{
    MERGE_TEXT(provider);
    MERGE(status);
    MERGE(last_active_at);
    MERGE(limit);
    MERGE(storage);
    MERGE_TEXT(team_id);
    MERGE(image);
    MERGE_TEXT(version_id);
    MERGE(epoch);
    MERGE(sequence);
    MERGE(last_operation);
    if (before->pin_count != after->pin_count ||
        memcmp(before->pins, after->pins, sizeof(after->pins[0]) * (size_t)after->pin_count) != 0) {
        to->pin_count = after->pin_count;
        memcpy(to->pins, after->pins, sizeof(after->pins));
    }
    if (before->has_operation || after->has_operation)
        merge_operation(to, before, after);
}

static bool matches(const struct sk_instance *doc, const struct sk_instance *before)
{
    return strcmp(doc->oid, before->oid) == 0 && doc->status == before->status && doc->epoch == before->epoch &&
           (doc->sequence == before->sequence || lc_mutation == LC_MUTATION_CAS_WITHOUT_SEQUENCE) &&
           doc->has_operation == before->has_operation &&
           (!doc->has_operation || strcmp(doc->operation.id, before->operation.id) == 0);
}

static bool guarded(const struct sk_instance *doc, const struct sk_instance *before, const struct sk_cas_guard *guard)
{
    if (guard == NULL)
        return true;
    if (guard->last_active_at && doc->last_active_at != before->last_active_at)
        return false;
    return guard->unpinned_at == 0 || !sk_instance_pinned(doc, guard->unpinned_at);
}

enum sk_cas_result sim_store_apply_cas(struct sim_store *store, struct sim_actor actor,
                                       const struct sk_instance *before, const struct sk_instance *after,
                                       const struct sk_event *events, int event_count, const struct sk_cas_guard *guard)
{
    struct sim_doc *doc = sim_store_doc(store->w, before->sandbox_id);
    struct sk_instance old;

    if (doc == NULL || !matches(&doc->i, before) || !guarded(&doc->i, before, guard)) {
        sim_monitor_lost(store->w, actor, doc, before, after);
        return SK_CAS_LOST;
    }
    old = doc->i;
    merge(&doc->i, before, after);
    append_events(store, doc, events, event_count);
    note_change(store, doc, actor, &old);
    sim_monitor_write(store->w, actor, doc, &old, &doc->i, events, event_count);
    return SK_CAS_APPLIED;
}

enum sk_cas_result sim_store_apply_remove(struct sim_store *store, struct sim_actor actor,
                                          const struct sk_instance *before)
{
    for (size_t i = 0; i < store->doc_count; i++) {
        struct sim_doc *doc = store->docs[i];

        if (doc == NULL || strcmp(doc->i.oid, before->oid) != 0)
            continue;
        if (doc->i.status != SK_STATUS_DELETING || !matches(&doc->i, before) || doc->outbox_count > 0)
            return SK_CAS_LOST;
        store->docs[i] = NULL;
        sim_store_note_status(store, doc->i.sandbox_id, SK_STATUS_NONE, doc->i.epoch);
        sim_monitor_write(store->w, actor, doc, &doc->i, NULL, NULL, 0);
        free(doc->outbox);
        free(doc);
        return SK_CAS_APPLIED;
    }
    return SK_CAS_LOST;
}

static struct sk_timeline_entry *timeline_entry(struct sim_store *store, const struct sk_event *event)
{
    struct sk_timeline_entry *e;

    for (size_t i = 0; i < store->timeline_count; i++) {
        if (strcmp(store->timeline[i].operation_id, event->operation_id) == 0)
            return &store->timeline[i];
    }
    store->timeline = sim_grow(store->timeline, store->timeline_count, &store->timeline_size, sizeof(*store->timeline));
    e = &store->timeline[store->timeline_count++];
    memset(e, 0, sizeof(*e));
    memcpy(e->operation_id, event->operation_id, sizeof(e->operation_id));
    memcpy(e->sandbox_id, event->sandbox_id, sizeof(e->sandbox_id));
    return e;
}

static void timeline_phase(struct sk_timeline_entry *e, const struct sk_event *event)
{
    int i = 0;

    while (i < e->phase_count && strcmp(e->phases[i].name, event->phase) != 0)
        i++;
    if (i == SK_TIMELINE_PHASES_MAX)
        return;
    if (i == e->phase_count)
        e->phase_count++;
    sk_copy_cut(e->phases[i].name, sizeof(e->phases[i].name), event->phase);
    e->phases[i].at = event->time;
    e->phases[i].duration_ms = event->duration_ms;
}

static const char *result_of(const struct sk_event *event)
{
    switch (event->type) {
    case SK_EVENT_COMPLETED:
        return "completed";
    case SK_EVENT_FAILED:
        return event->to == SK_STATUS_NONE ? "failed" : "compensated";
    case SK_EVENT_BLOCKED:
        return "blocked";
    case SK_EVENT_DELETED:
        return "deleted";
    default:
        return NULL;
    }
}

/* A take-over ends the operations of its job that nobody ended. */
static void end_taken_over(struct sim_store *store, const struct sk_event *event)
{
    for (size_t i = 0; i < store->timeline_count && event->job_id[0] != '\0'; i++) {
        struct sk_timeline_entry *e = &store->timeline[i];

        if (e->result[0] != '\0' || e->epoch >= event->epoch || strcmp(e->job_id, event->job_id) != 0 ||
            strcmp(e->sandbox_id, event->sandbox_id) != 0)
            continue;
        sk_copy_cut(e->result, sizeof(e->result), "takenover");
        e->ended_at = event->time;
    }
}

void sim_store_apply_timeline(struct sim_store *store, const struct sk_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        const struct sk_event *event = &events[i];
        const char *result = result_of(event);
        struct sk_timeline_entry *e = timeline_entry(store, event);

        memcpy(e->job_id, event->job_id, sizeof(e->job_id));
        e->type = event->operation_type;
        e->epoch = event->epoch;
        if (event->owner[0] != '\0')
            memcpy(e->owner, event->owner, sizeof(e->owner));
        if (event->command_id[0] != '\0')
            memcpy(e->command_id, event->command_id, sizeof(e->command_id));
        if (event->reason[0] != '\0')
            memcpy(e->reason, event->reason, sizeof(e->reason));
        if (event->attempt > e->attempt)
            e->attempt = event->attempt;
        if (result != NULL) {
            e->ended_at = event->time;
            sk_copy_cut(e->result, sizeof(e->result), result);
            if (event->error.code[0] != '\0' || event->error.detail[0] != '\0')
                e->error = event->error;
            if (e->started_at == 0)
                e->started_at = event->time;
            continue;
        }
        if (event->type != SK_EVENT_PHASE || e->started_at == 0)
            e->started_at = event->time;
        timeline_phase(e, event);
        if (event->type == SK_EVENT_TAKENOVER)
            end_taken_over(store, event);
    }
}
