/* SPDX-License-Identifier: Apache-2.0
 *
 * The timeline: sandkeep_operations, _id = operation id, built from lifecycle events (contract/lifecycle.md §2.2). It
 * outlives the record. Applying an event only sets fields of its operation's entry, so that events may come twice, and
 * those of one operation from two relays at once. Entries whose first event is here are inserted, all in one go
 * (measured: a seventh of what as many upserts cost); only those that are there already are updated. What needs other
 * entries (an operation that lost its sandbox to a newer one) is also worked out when reading, where order is known. */
#include "common/store/instance_bson.h"
#include "common/store/mongo.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APPLY_MAX       500 /* events of one bulk write */
#define TRIM_EVERY      16  /* a sandbox is trimmed at every 16th epoch: at most KEEP + 16 entries are stored */
#define DELETED_KEEP_MS (30LL * 86400 * 1000) /* the timeline of a sandbox that was deleted */

static void append_error(bson_t *doc, const struct sk_stored_error *error)
{
    char text[SK_ERROR_TEXT_SIZE];

    sk_stored_error_format(error, text);
    if (text[0] != '\0')
        BSON_APPEND_UTF8(doc, "error", text);
}

static void append_optional(bson_t *doc, const char *key, const char *text)
{
    if (text[0] != '\0')
        BSON_APPEND_UTF8(doc, key, text);
}

static bool starts(const struct sk_event *event)
{
    return event->type == SK_EVENT_CLAIMED || event->type == SK_EVENT_TAKENOVER;
}

static bool same_operation(const struct sk_event *a, const struct sk_event *b)
{
    return strcmp(a->operation_id, b->operation_id) == 0;
}

/* The last of these events that has a text at that place of the struct. */
static const char *last_text(const struct sk_event *const *events, int count, size_t place)
{
    while (count-- > 0) {
        const char *text = (const char *)events[count] + place;

        if (text[0] != '\0')
            return text;
    }
    return "";
}
#define LAST_TEXT(events, count, field) last_text(events, count, offsetof(struct sk_event, field))

/* Names of phases come from the state table: no dots, no dollars. Each is a step that was done, "claimed" too. */
static const char *phase_of(const struct sk_event *event)
{
    return starts(event) || event->type == SK_EVENT_PHASE ? event->phase : "";
}

/* `path` is put before the name: "phases." for an update that keeps the others. */
static void append_phases(bson_t *set, const char *path, const struct sk_event *const *events, int count)
{
    for (int i = 0; i < count; i++) {
        const char *name = phase_of(events[i]);
        bool again = false;
        char key[64];
        bson_t phase;

        for (int k = i + 1; k < count && !again; k++)
            again = strcmp(phase_of(events[k]), name) == 0;
        if (name[0] == '\0' || again)
            continue;
        snprintf(key, sizeof(key), "%s%s", path, name);
        BSON_APPEND_DOCUMENT_BEGIN(set, key, &phase);
        BSON_APPEND_DATE_TIME(&phase, "at", events[i]->time);
        if (events[i]->duration_ms >= 0)
            BSON_APPEND_INT64(&phase, "durationMs", events[i]->duration_ms);
        bson_append_document_end(set, &phase);
    }
}

/* What events of one operation, in their order, say together: the same as one after the other. */
struct said {
    const struct sk_event *const *events;
    int count, attempt;
    const struct sk_event *last, *start, *end, *failed;
};

static struct said what_they_say(const struct sk_event *const *events, int count)
{
    struct said said = {.events = events, .count = count, .last = events[count - 1]};

    for (int i = 0; i < count; i++) {
        const struct sk_event *event = events[i];

        said.start = starts(event) ? event : said.start;
        said.end = sk_event_result(event) != NULL ? event : said.end;
        if (said.end == event && (event->error.code[0] != '\0' || event->error.detail[0] != '\0'))
            said.failed = event;
        said.attempt = event->attempt > said.attempt ? event->attempt : said.attempt;
    }
    return said;
}

/* All but the attempt, the phases, and the start when it is not known for certain. */
static void append_fields(bson_t *set, const struct said *said)
{
    const struct sk_event *last = said->last;

    BSON_APPEND_UTF8(set, "sandboxId", last->sandbox_id);
    BSON_APPEND_UTF8(set, "type", sk_op_name(last->operation_type));
    BSON_APPEND_INT64(set, "epoch", last->epoch);
    append_optional(set, "jobId", LAST_TEXT(said->events, said->count, job_id));
    append_optional(set, "owner", LAST_TEXT(said->events, said->count, owner));
    append_optional(set, "commandId", LAST_TEXT(said->events, said->count, command_id));
    if (said->start != NULL)
        BSON_APPEND_DATE_TIME(set, "startedAt", said->start->time);
    if (said->end != NULL) {
        BSON_APPEND_UTF8(set, "result", sk_event_result(said->end));
        BSON_APPEND_DATE_TIME(set, "endedAt", said->end->time);
        if (said->failed != NULL)
            append_error(set, &said->failed->error);
    }
    append_optional(set, "reason", LAST_TEXT(said->events, said->count, reason));
}

static void append_new_entry(bson_t *documents, const char *position, const struct said *said)
{
    bson_t document, phases;

    BSON_APPEND_DOCUMENT_BEGIN(documents, position, &document);
    BSON_APPEND_UTF8(&document, "_id", said->last->operation_id);
    append_fields(&document, said);
    BSON_APPEND_INT32(&document, "attempt", said->attempt);
    BSON_APPEND_DOCUMENT_BEGIN(&document, "phases", &phases);
    append_phases(&phases, "", said->events, said->count);
    bson_append_document_end(&document, &phases);
    bson_append_document_end(documents, &document);
}

/* { q: {_id: operation}, u: {$set, $setOnInsert, $max}, upsert: true } */
static void append_entry(bson_t *updates, const char *position, const struct said *said)
{
    bson_t statement, filter, update, set, on_insert, max;

    BSON_APPEND_DOCUMENT_BEGIN(updates, position, &statement);
    BSON_APPEND_DOCUMENT_BEGIN(&statement, "q", &filter);
    BSON_APPEND_UTF8(&filter, "_id", said->last->operation_id);
    bson_append_document_end(&statement, &filter);
    BSON_APPEND_DOCUMENT_BEGIN(&statement, "u", &update);

    BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &set);
    append_fields(&set, said);
    append_phases(&set, "phases.", said->events, said->count);
    bson_append_document_end(&update, &set);

    if (said->start == NULL) {
        BSON_APPEND_DOCUMENT_BEGIN(&update, "$setOnInsert", &on_insert);
        BSON_APPEND_DATE_TIME(&on_insert, "startedAt", said->events[0]->time);
        bson_append_document_end(&update, &on_insert);
    }
    BSON_APPEND_DOCUMENT_BEGIN(&update, "$max", &max);
    BSON_APPEND_INT32(&max, "attempt", said->attempt);
    bson_append_document_end(&update, &max);

    bson_append_document_end(&statement, &update);
    BSON_APPEND_BOOL(&statement, "upsert", true);
    bson_append_document_end(updates, &statement);
}

/* Ends what the job of a take-over was before. */
static void append_takeover(bson_t *updates, const char *position, const struct sk_event *event)
{
    bson_t statement, filter, update, set, older;

    BSON_APPEND_DOCUMENT_BEGIN(updates, position, &statement);
    BSON_APPEND_DOCUMENT_BEGIN(&statement, "q", &filter);
    BSON_APPEND_UTF8(&filter, "sandboxId", event->sandbox_id);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "epoch", &older);
    BSON_APPEND_INT64(&older, "$gte", 0);
    BSON_APPEND_INT64(&older, "$lt", event->epoch);
    bson_append_document_end(&filter, &older);
    BSON_APPEND_UTF8(&filter, "jobId", event->job_id);
    BSON_APPEND_NULL(&filter, "result");
    bson_append_document_end(&statement, &filter);
    BSON_APPEND_DOCUMENT_BEGIN(&statement, "u", &update);
    BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &set);
    BSON_APPEND_UTF8(&set, "result", "takenover");
    BSON_APPEND_DATE_TIME(&set, "endedAt", event->time);
    bson_append_document_end(&update, &set);
    bson_append_document_end(&statement, &update);
    BSON_APPEND_BOOL(&statement, "multi", true);
    bson_append_document_end(updates, &statement);
}

/* The sandbox is gone: its timeline goes too, a month later. A sandbox of that name made again starts a new one. */
static void append_expiry(bson_t *updates, const char *position, const struct sk_event *event)
{
    bson_t statement, filter, update, set, older;

    BSON_APPEND_DOCUMENT_BEGIN(updates, position, &statement);
    BSON_APPEND_DOCUMENT_BEGIN(&statement, "q", &filter);
    BSON_APPEND_UTF8(&filter, "sandboxId", event->sandbox_id);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "epoch", &older);
    BSON_APPEND_INT64(&older, "$gte", 0);
    BSON_APPEND_INT64(&older, "$lte", event->epoch);
    bson_append_document_end(&filter, &older);
    bson_append_document_end(&statement, &filter);
    BSON_APPEND_DOCUMENT_BEGIN(&statement, "u", &update);
    BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &set);
    BSON_APPEND_DATE_TIME(&set, "expiresAt", event->time + DELETED_KEEP_MS);
    bson_append_document_end(&update, &set);
    bson_append_document_end(&statement, &update);
    BSON_APPEND_BOOL(&statement, "multi", true);
    bson_append_document_end(updates, &statement);
}

/* ---- trimming ------------------------------------------------------------------------------- */

struct surplus {
    int seen;
    int count;
    char ids[TRIM_EVERY * 4][SK_UUID_SIZE];
};

/* Entries come newest first: those after the first KEEP go. */
static bool collect_surplus(void *arg, const bson_t *doc)
{
    struct surplus *surplus = arg;
    bson_iter_t iter;

    if (surplus->seen++ < SK_TIMELINE_KEEP)
        return true;
    if (bson_iter_init_find(&iter, doc, "_id") && sk_bson_text(&iter, surplus->ids[surplus->count], SK_UUID_SIZE))
        surplus->count++;
    return surplus->count < (int)(sizeof(surplus->ids) / sizeof(surplus->ids[0]));
}

static int trim(struct sk_mongo_op *op, const char *sandbox_id, struct sk_error *err)
{
    struct surplus surplus = {.seen = 0};
    bson_t filter = BSON_INITIALIZER, *opts, command = BSON_INITIALIZER, deletes, statement, query, id, in;
    char index[16];
    const char *position;
    int result;

    BSON_APPEND_UTF8(&filter, "sandboxId", sandbox_id);
    opts = BCON_NEW("projection", "{", "_id", BCON_INT32(1), "}", "sort", "{", "epoch", BCON_INT32(-1), "}");
    result = sk_mongo_find(op, SK_MONGO_OPERATIONS, &filter, opts, collect_surplus, &surplus, err);
    bson_destroy(opts);
    bson_destroy(&filter);
    if (result == 0 && surplus.count > 0) {
        BSON_APPEND_UTF8(&command, "delete", op->store->names[SK_MONGO_OPERATIONS]);
        BSON_APPEND_ARRAY_BEGIN(&command, "deletes", &deletes);
        BSON_APPEND_DOCUMENT_BEGIN(&deletes, "0", &statement);
        BSON_APPEND_DOCUMENT_BEGIN(&statement, "q", &query);
        BSON_APPEND_DOCUMENT_BEGIN(&query, "_id", &id);
        BSON_APPEND_ARRAY_BEGIN(&id, "$in", &in);
        for (int i = 0; i < surplus.count; i++) {
            bson_uint32_to_string((uint32_t)i, &position, index, sizeof(index));
            BSON_APPEND_UTF8(&in, position, surplus.ids[i]);
        }
        bson_append_array_end(&id, &in);
        bson_append_document_end(&query, &id);
        bson_append_document_end(&statement, &query);
        BSON_APPEND_INT32(&statement, "limit", 0);
        bson_append_document_end(&deletes, &statement);
        bson_append_array_end(&command, &deletes);
        result = sk_mongo_write(op, &command, NULL, NULL, err);
    }
    bson_destroy(&command);
    return result;
}

/* ---- the operations of the store ------------------------------------------------------------ */

/* Events that are applied together, ordered by operation. */
struct apply {
    const struct sk_event *events[APPLY_MAX];
    struct said said[APPLY_MAX]; /* one for each operation */
    bool existing[APPLY_MAX];    /* it has an entry already */
    int count;
};

static void group_by_operation(struct apply *apply, const struct sk_event *events, int count)
{
    bool done[APPLY_MAX] = {false};
    int used = 0;

    apply->count = 0;
    for (int i = 0; i < count; i++) {
        int first = used;

        /* An event of somebody else's making without an operation has no entry. */
        if (done[i] || events[i].operation_id[0] == '\0' || events[i].operation_type == SK_OP_NONE)
            continue;
        for (int k = i; k < count; k++) {
            if (!done[k] && same_operation(&events[k], &events[i])) {
                done[k] = true;
                apply->events[used++] = &events[k];
            }
        }
        apply->said[apply->count] = what_they_say(&apply->events[first], used - first);
        apply->existing[apply->count] = apply->said[apply->count].start == NULL;
        apply->count++;
    }
}

/* Entries whose operation starts here; those that turn out to exist are marked. */
static int insert_entries(struct sk_mongo_op *op, struct apply *apply, struct sk_error *err)
{
    bson_t command = BSON_INITIALIZER, documents, reply;
    bool refused[APPLY_MAX] = {false};
    int place[APPLY_MAX], count = 0, result;
    char index[16];
    const char *position;

    BSON_APPEND_UTF8(&command, "insert", op->store->names[SK_MONGO_OPERATIONS]);
    BSON_APPEND_BOOL(&command, "ordered", false);
    BSON_APPEND_ARRAY_BEGIN(&command, "documents", &documents);
    for (int i = 0; i < apply->count; i++) {
        if (apply->existing[i])
            continue;
        bson_uint32_to_string((uint32_t)count, &position, index, sizeof(index));
        append_new_entry(&documents, position, &apply->said[i]);
        place[count++] = i;
    }
    bson_append_array_end(&command, &documents);
    result = 0;
    if (count > 0) {
        result = sk_mongo_write(op, &command, NULL, &reply, err);
        if (result == 0)
            sk_mongo_mark_refused(&reply, refused, count);
        bson_destroy(&reply);
    }
    for (int i = 0; i < count; i++)
        apply->existing[place[i]] = refused[i];
    bson_destroy(&command);
    return result;
}

/* What is left: entries that exist, and what events say about other entries than their own. */
static uint32_t append_updates(bson_t *updates, const struct apply *apply)
{
    uint32_t statements = 0;
    char index[16];
    const char *position;

    for (int i = 0; i < apply->count; i++) {
        const struct said *said = &apply->said[i];

        if (apply->existing[i]) {
            bson_uint32_to_string(statements++, &position, index, sizeof(index));
            append_entry(updates, position, said);
        }
        for (int k = 0; k < said->count; k++) {
            const struct sk_event *event = said->events[k];

            if (event->type == SK_EVENT_TAKENOVER && event->job_id[0] != '\0') {
                bson_uint32_to_string(statements++, &position, index, sizeof(index));
                append_takeover(updates, position, event);
            }
            if (event->type == SK_EVENT_DELETED) {
                bson_uint32_to_string(statements++, &position, index, sizeof(index));
                append_expiry(updates, position, event);
            }
        }
    }
    return statements;
}

/* Two relays may insert the same entry at once; the loser's upsert is refused as a duplicate and told to come again as
 * an update. */
static int write_updates(struct sk_mongo_op *op, const bson_t *command, struct sk_error *err)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        struct sk_mongo_written written;

        if (sk_mongo_write(op, command, &written, NULL, err) != 0)
            return -1;
        if (!written.duplicate)
            return 0;
    }
    return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "the timeline is being written by another relay");
}

static int apply_part(struct sk_mongo_op *op, struct apply *apply, const struct sk_event *events, int count,
                      struct sk_error *err)
{
    bson_t command = BSON_INITIALIZER, updates;
    uint32_t statements;
    int result;

    group_by_operation(apply, events, count);
    result = insert_entries(op, apply, err);
    BSON_APPEND_UTF8(&command, "update", op->store->names[SK_MONGO_OPERATIONS]);
    BSON_APPEND_ARRAY_BEGIN(&command, "updates", &updates);
    statements = append_updates(&updates, apply);
    bson_append_array_end(&command, &updates);
    if (result == 0 && statements > 0)
        result = write_updates(op, &command, err);
    bson_destroy(&command);
    for (int i = 0; i < count && result == 0; i++) {
        if (starts(&events[i]) && events[i].epoch % TRIM_EVERY == 0)
            result = trim(op, events[i].sandbox_id, err);
    }
    return result;
}

int sk_mongo_timeline_apply(void *self, const struct sk_event *events, int count, struct sk_error *err)
{
    struct apply *apply;
    struct sk_mongo_op op;
    int result = 0;

    if (count <= 0)
        return 0;
    apply = malloc(sizeof(*apply));
    if (apply == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    if (sk_mongo_begin(sk_mongo_self(self), NULL, SK_MONGO_TIMELINE, &op, err) != 0) {
        free(apply);
        return -1;
    }
    op.idempotent = true;
    for (int done = 0; done < count && result == 0; done += APPLY_MAX)
        result = apply_part(&op, apply, events + done, count - done < APPLY_MAX ? count - done : APPLY_MAX, err);
    sk_mongo_end(&op);
    free(apply);
    return result;
}

static void decode_phases(const bson_iter_t *iter, struct sk_timeline_entry *entry)
{
    bson_iter_t phases, fields;

    if (!BSON_ITER_HOLDS_DOCUMENT(iter) || !bson_iter_recurse(iter, &phases))
        return;
    while (entry->phase_count < SK_TIMELINE_PHASES_MAX && bson_iter_next(&phases)) {
        int at = entry->phase_count;

        if (!BSON_ITER_HOLDS_DOCUMENT(&phases) || !bson_iter_recurse(&phases, &fields))
            continue;
        sk_copy_cut(entry->phases[at].name, sizeof(entry->phases[at].name), bson_iter_key(&phases));
        entry->phases[at].at = 0;
        entry->phases[at].duration_ms = -1;
        while (bson_iter_next(&fields)) {
            if (strcmp(bson_iter_key(&fields), "at") == 0)
                (void)sk_bson_date(&fields, &entry->phases[at].at);
            else if (strcmp(bson_iter_key(&fields), "durationMs") == 0)
                (void)sk_bson_int(&fields, 0, INT64_MAX, &entry->phases[at].duration_ms);
        }
        entry->phase_count++;
    }
    /* A phase that was applied late stands late in the document: few enough to sort by insertion. */
    for (int i = 1; i < entry->phase_count; i++) {
        for (int j = i; j > 0 && entry->phases[j].at < entry->phases[j - 1].at; j--) {
            __typeof__(entry->phases[0]) swap = entry->phases[j];

            entry->phases[j] = entry->phases[j - 1];
            entry->phases[j - 1] = swap;
        }
    }
}

struct entries {
    struct sk_timeline_entry *out;
    int count, capacity;
};

static bool decode_entry(void *arg, const bson_t *doc)
{
    struct entries *entries = arg;
    struct sk_timeline_entry *entry = &entries->out[entries->count];
    bson_iter_t iter;
    char name[32], text[SK_ERROR_TEXT_SIZE];
    int64_t number;

    if (entries->count == entries->capacity || !bson_iter_init(&iter, doc))
        return false;
    memset(entry, 0, sizeof(*entry));
    while (bson_iter_next(&iter)) {
        const char *key = bson_iter_key(&iter);

        if (strcmp(key, "_id") == 0) {
            (void)sk_bson_text(&iter, entry->operation_id, sizeof(entry->operation_id));
        } else if (strcmp(key, "jobId") == 0) {
            (void)sk_bson_text(&iter, entry->job_id, sizeof(entry->job_id));
        } else if (strcmp(key, "sandboxId") == 0) {
            (void)sk_bson_text(&iter, entry->sandbox_id, sizeof(entry->sandbox_id));
        } else if (strcmp(key, "type") == 0) {
            entry->type = sk_bson_text(&iter, name, sizeof(name)) ? sk_op_parse(name) : SK_OP_INVALID;
        } else if (strcmp(key, "epoch") == 0) {
            (void)sk_bson_int(&iter, 0, INT64_MAX, &entry->epoch);
        } else if (strcmp(key, "owner") == 0) {
            (void)sk_bson_text(&iter, entry->owner, sizeof(entry->owner));
        } else if (strcmp(key, "commandId") == 0) {
            (void)sk_bson_text(&iter, entry->command_id, sizeof(entry->command_id));
        } else if (strcmp(key, "result") == 0) {
            (void)sk_bson_text(&iter, entry->result, sizeof(entry->result));
        } else if (strcmp(key, "attempt") == 0) {
            if (sk_bson_int(&iter, 0, INT32_MAX, &number))
                entry->attempt = (int)number;
        } else if (strcmp(key, "startedAt") == 0) {
            (void)sk_bson_date(&iter, &entry->started_at);
        } else if (strcmp(key, "endedAt") == 0) {
            (void)sk_bson_date(&iter, &entry->ended_at);
        } else if (strcmp(key, "error") == 0) {
            if (sk_bson_text(&iter, text, sizeof(text)))
                sk_stored_error_parse(text, strlen(text), &entry->error);
        } else if (strcmp(key, "reason") == 0) {
            (void)sk_bson_text(&iter, entry->reason, sizeof(entry->reason));
        } else if (strcmp(key, "phases") == 0) {
            decode_phases(&iter, entry);
        }
    }
    entries->count++;
    return true;
}

/* Newest first. */
static int find_entries(void *self, struct sk_call *call, const bson_t *filter, struct sk_timeline_entry *out,
                        int *count, struct sk_error *err)
{
    struct entries entries = {.out = out, .capacity = *count < SK_TIMELINE_KEEP ? *count : SK_TIMELINE_KEEP};
    struct sk_mongo_op op;
    bson_t *opts;
    int result;

    *count = 0;
    if (entries.capacity <= 0)
        return 0;
    if (sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_TIMELINE, &op, err) != 0)
        return -1;
    opts = BCON_NEW("sort", "{", "epoch", BCON_INT32(-1), "}", "limit", BCON_INT64(entries.capacity));
    result = sk_mongo_find(&op, SK_MONGO_OPERATIONS, filter, opts, decode_entry, &entries, err);
    sk_mongo_end(&op);
    bson_destroy(opts);
    if (result == 0)
        *count = entries.count;
    return result;
}

int sk_mongo_timeline_list(void *self, struct sk_call *call, const char *sandbox_id, struct sk_timeline_entry *out,
                           int *count, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    int result;

    BSON_APPEND_UTF8(&filter, "sandboxId", sandbox_id);
    result = find_entries(self, call, &filter, out, count, err);
    bson_destroy(&filter);
    if (result != 0)
        return -1;
    /* Only the newest operation of a sandbox can still run. One without an end lost the sandbox to the next: after a
     * failed try of the same job, or to another owner or operation. */
    for (int i = 1; i < *count; i++) {
        const struct sk_timeline_entry *newer = &out[i - 1];

        if (out[i].result[0] != '\0')
            continue;
        strcpy(out[i].result,
               strcmp(newer->job_id, out[i].job_id) == 0 && newer->attempt > out[i].attempt ? "failed" : "takenover");
        out[i].ended_at = newer->started_at;
    }
    return 0;
}

int sk_mongo_timeline_of_commands(void *self, struct sk_call *call, const char *sandbox_id,
                                  const char (*command_ids)[SK_COMMAND_ID_SIZE], int command_count,
                                  struct sk_timeline_entry *out, int *count, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER, in, list;
    char index[16];
    const char *position;
    int result;

    BSON_APPEND_UTF8(&filter, "sandboxId", sandbox_id);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "commandId", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (int i = 0; i < command_count; i++) {
        bson_uint32_to_string((uint32_t)i, &position, index, sizeof(index));
        BSON_APPEND_UTF8(&list, position, command_ids[i]);
    }
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    result = find_entries(self, call, &filter, out, count, err);
    bson_destroy(&filter);
    return result;
}
