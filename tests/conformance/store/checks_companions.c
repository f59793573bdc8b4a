/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the timeline and of stored command results. */
#include "tests/conformance/store/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- timeline ---------------------------------------------------------------------------------- */

static bool read_timeline(struct sk_store_conformance *c, const char *sandbox_id, struct sk_timeline_entry *entries,
                          int *count)
{
    struct sk_error err = {0};

    *count = SK_TIMELINE_KEEP;
    CHECK(OPS->timeline_list(SELF, NULL, sandbox_id, entries, count, &err) == 0, "timeline: %s", err.message);
    for (int i = 1; i < *count; i++)
        CHECK(entries[i].epoch < entries[i - 1].epoch, "the timeline is not newest first");
    return true;
}

static bool apply(struct sk_store_conformance *c, const struct sk_event *events, int count)
{
    struct sk_error err = {0};

    CHECK(OPS->timeline_apply(SELF, events, count, &err) == 0, "timeline: %s", err.message);
    return true;
}

/* One operation from claim to end, its events given once, twice, and in two batches that overlap. */
static bool check_operation(struct sk_store_conformance *c)
{
    static struct sk_timeline_entry entries[SK_TIMELINE_KEEP];
    struct sk_instance record, after;
    struct sk_event events[3];
    int count;

    sc_new(c, &record, &events[0], "replica-a");
    sc_phase(c, &record, &after, &events[1], "providerEnsured");
    events[1].time = events[0].time + 12;
    sc_complete(c, &after, &after, &events[2]);
    events[2].time = events[0].time + 34;
    if (!read_timeline(c, record.sandbox_id, entries, &count))
        return false;
    CHECK(count == 0, "a sandbox that never was has a timeline");
    if (!apply(c, events, 1) || !read_timeline(c, record.sandbox_id, entries, &count))
        return false;
    CHECK(count == 1 && entries[0].result[0] == '\0' && entries[0].ended_at == 0, "a claimed operation has ended: %s",
          entries[0].result);
    for (int round = 0; round < 3; round++) {
        if (!apply(c, round == 1 ? events : events + 1, round == 1 ? 3 : 2) ||
            !read_timeline(c, record.sandbox_id, entries, &count))
            return false;
        CHECK(count == 1, "%d entries instead of 1", count);
        CHECK(strcmp(entries[0].operation_id, events[0].operation_id) == 0 &&
                  strcmp(entries[0].job_id, events[0].job_id) == 0 && entries[0].type == SK_OP_PROVISION &&
                  entries[0].epoch == record.epoch && strcmp(entries[0].owner, "replica-a") == 0 &&
                  strcmp(entries[0].command_id, "cmd-1") == 0,
              "the entry is not that of the operation");
        CHECK(strcmp(entries[0].result, "completed") == 0 && entries[0].started_at == events[0].time &&
                  entries[0].ended_at == events[2].time,
              "the entry does not tell how it ended: %s", entries[0].result);
        CHECK(entries[0].phase_count == 2 && strcmp(entries[0].phases[0].name, "claimed") == 0 &&
                  strcmp(entries[0].phases[1].name, "providerEnsured") == 0 &&
                  entries[0].phases[1].at == events[1].time && entries[0].phases[1].duration_ms == 12,
              "the phases are wrong (%d)", entries[0].phase_count);
    }
    return true;
}

/* The claim is written already and comes again together with what followed: another relay was faster, or its answer got
 * lost. What it comes with must not be lost with it. */
static bool check_claim_again(struct sk_store_conformance *c)
{
    static struct sk_timeline_entry entries[SK_TIMELINE_KEEP];
    struct sk_instance record, after;
    struct sk_event events[3];
    int count;

    sc_new(c, &record, &events[0], "replica-a");
    sc_phase(c, &record, &after, &events[1], "providerEnsured");
    sc_complete(c, &after, &after, &events[2]);
    if (!apply(c, events, 1) || !apply(c, events, 3) || !read_timeline(c, record.sandbox_id, entries, &count))
        return false;
    CHECK(count == 1 && strcmp(entries[0].result, "completed") == 0 && entries[0].ended_at == events[2].time &&
              entries[0].phase_count == 2,
          "what came with a claim that was there already got lost: %d entries, ended as %s, %d phases", count,
          entries[0].result, entries[0].phase_count);
    return true;
}

/* A take-over, a retry, a compensation, a delete that overtakes: what the ended operations are called. */
static bool check_ends(struct sk_store_conformance *c)
{
    static struct sk_timeline_entry entries[SK_TIMELINE_KEEP];
    static const char *const expected[] = {"deleted", "takenover", "compensated", "failed", "blocked", "takenover"};
    struct sk_instance record, after;
    struct sk_event event;
    int count;

    sc_new(c, &record, &event, "replica-a");
    if (!apply(c, &event, 1))
        return false;
    /* Another replica takes over, and gets blocked. */
    sc_claim(c, &record, &after, &event, SK_OP_PROVISION, "replica-b");
    record = after;
    if (!apply(c, &event, 1) || !read_timeline(c, record.sandbox_id, entries, &count))
        return false;
    CHECK(count == 2 && entries[0].result[0] == '\0' && strcmp(entries[1].result, "takenover") == 0 &&
              entries[1].ended_at == event.time,
          "a take-over does not end the former operation");
    event.type = SK_EVENT_BLOCKED;
    strcpy(event.error.code, "provider_error");
    strcpy(event.error.detail, "8 tries");
    if (!apply(c, &event, 1))
        return false;
    /* Recovered, fails once more: a retry of the same job is a claim with a higher attempt. */
    sc_claim(c, &record, &after, &event, SK_OP_PROVISION, "replica-b");
    event.type = SK_EVENT_CLAIMED;
    record = after;
    if (!apply(c, &event, 1))
        return false;
    record.operation.attempt = 1;
    sc_claim(c, &record, &after, &event, SK_OP_PROVISION, "replica-b");
    event.type = SK_EVENT_CLAIMED;
    record = after;
    if (!apply(c, &event, 1))
        return false;
    event.type = SK_EVENT_FAILED;
    event.to = SK_STATUS_STOPPED;
    strcpy(event.error.code, "provider_error");
    if (!apply(c, &event, 1))
        return false;
    /* Started again, and a delete overtakes it. */
    record.status = SK_STATUS_STOPPED;
    record.has_operation = false;
    sc_claim(c, &record, &after, &event, SK_OP_PROVISION, "replica-c");
    record = after;
    if (!apply(c, &event, 1))
        return false;
    sc_claim(c, &record, &after, &event, SK_OP_DELETE, "replica-c");
    if (!apply(c, &event, 1))
        return false;
    event.type = SK_EVENT_DELETED;
    event.to = SK_STATUS_NONE;
    strcpy(event.reason, "asked for");
    if (!apply(c, &event, 1) || !read_timeline(c, record.sandbox_id, entries, &count))
        return false;
    CHECK(count == 6, "%d entries instead of 6", count);
    for (int i = 0; i < count; i++) {
        CHECK(strcmp(entries[i].result, expected[i]) == 0, "operation %d ended as %s instead of %s", i,
              entries[i].result, expected[i]);
        CHECK(entries[i].ended_at > 0, "operation %d has no end", i);
    }
    CHECK(strcmp(entries[4].error.code, "provider_error") == 0 && strcmp(entries[4].error.detail, "8 tries") == 0 &&
              strcmp(entries[0].reason, "asked for") == 0 && entries[2].attempt == 1,
          "error, reason or attempt got lost");
    count = 2;
    {
        struct sk_error err = {0};

        CHECK(OPS->timeline_list(SELF, NULL, record.sandbox_id, entries, &count, &err) == 0 && count == 2 &&
                  entries[0].type == SK_OP_DELETE,
              "the capacity is not kept");
    }
    return true;
}

/* What was done for some commands: only that, and only of this sandbox. */
static bool check_timeline_of_commands(struct sk_store_conformance *c)
{
    static const char ids[3][SK_COMMAND_ID_SIZE] = {"no such command", "provisioned", "stopped"};
    static struct sk_timeline_entry entries[SK_TIMELINE_KEEP];
    struct sk_error err = {0};
    struct sk_instance record, after, other;
    struct sk_event event;
    int count;

    sc_new(c, &record, &event, "replica-a");
    strcpy(event.command_id, "provisioned");
    if (!apply(c, &event, 1))
        return false;
    sc_claim(c, &record, &after, &event, SK_OP_DELETE, "replica-a");
    strcpy(event.command_id, "deleted");
    if (!apply(c, &event, 1))
        return false;
    sc_new(c, &other, &event, "replica-a");
    strcpy(event.command_id, "stopped");
    if (!apply(c, &event, 1))
        return false;
    count = SK_TIMELINE_KEEP;
    CHECK(OPS->timeline_of_commands(SELF, NULL, record.sandbox_id, ids, 3, entries, &count, &err) == 0,
          "timeline of commands: %s", err.message);
    CHECK(count == 1 && strcmp(entries[0].command_id, "provisioned") == 0 && entries[0].type == SK_OP_PROVISION,
          "%d operations instead of the one of the command", count);
    count = SK_TIMELINE_KEEP;
    CHECK(OPS->timeline_of_commands(SELF, NULL, record.sandbox_id, ids, 1, entries, &count, &err) == 0 && count == 0,
          "a command that nothing was done for has operations");
    return true;
}

/* Events of two sandboxes in one batch, mixed, with a take-over between them: as if each had come alone. */
static bool check_mixture(struct sk_store_conformance *c)
{
    static struct sk_timeline_entry entries[SK_TIMELINE_KEEP];
    struct sk_instance a, b, after;
    struct sk_event events[8];
    int count;

    sc_new(c, &a, &events[0], "replica-a");
    sc_new(c, &b, &events[1], "replica-a");
    sc_claim(c, &a, &after, &events[2], SK_OP_PROVISION, "replica-b"); /* takes over */
    a = after;
    sc_phase(c, &b, &after, &events[3], "providerEnsured");
    b = after;
    sc_phase(c, &a, &after, &events[4], "providerEnsured");
    a = after;
    events[4].duration_ms = 7;
    sc_complete(c, &b, &after, &events[5]);
    sc_complete(c, &a, &after, &events[6]);
    events[7] = events[4]; /* comes twice */
    if (!apply(c, events, 8) || !read_timeline(c, a.sandbox_id, entries, &count))
        return false;
    CHECK(count == 2 && strcmp(entries[0].operation_id, events[2].operation_id) == 0 &&
              strcmp(entries[0].owner, "replica-b") == 0 && strcmp(entries[0].result, "completed") == 0 &&
              entries[0].ended_at == events[6].time && entries[0].started_at == events[2].time,
          "the take-over's entry is wrong");
    CHECK(entries[0].phase_count == 2 && strcmp(entries[0].phases[1].name, "providerEnsured") == 0 &&
              entries[0].phases[1].duration_ms == 7,
          "its phases are wrong (%d)", entries[0].phase_count);
    CHECK(strcmp(entries[1].operation_id, events[0].operation_id) == 0 && strcmp(entries[1].owner, "replica-a") == 0 &&
              strcmp(entries[1].result, "takenover") == 0 && entries[1].phase_count == 1,
          "the operation that was taken over is wrong");
    if (!read_timeline(c, b.sandbox_id, entries, &count))
        return false;
    CHECK(count == 1 && strcmp(entries[0].result, "completed") == 0 && entries[0].phase_count == 2 &&
              entries[0].ended_at == events[5].time,
          "the other sandbox's entry is wrong");
    return true;
}

static bool check_trimming(struct sk_store_conformance *c)
{
    static struct sk_timeline_entry entries[SK_TIMELINE_KEEP];
    static struct sk_event events[SK_TIMELINE_KEEP * 2];
    struct sk_instance record, after;
    struct sk_event event;
    int count;

    sc_new(c, &record, &event, "replica-a");
    for (int i = 0; i < SK_TIMELINE_KEEP * 2; i++) {
        sc_claim(c, &record, &after, &events[i], SK_OP_PROVISION, "replica-a");
        record = after;
    }
    if (!apply(c, events, SK_TIMELINE_KEEP) || !apply(c, events + SK_TIMELINE_KEEP, SK_TIMELINE_KEEP) ||
        !read_timeline(c, record.sandbox_id, entries, &count))
        return false;
    CHECK(count == SK_TIMELINE_KEEP, "%d entries are kept instead of %d", count, SK_TIMELINE_KEEP);
    CHECK(strcmp(entries[0].operation_id, events[2 * SK_TIMELINE_KEEP - 1].operation_id) == 0, "the newest is missing");
    return true;
}

struct relays {
    struct sk_store_conformance *c;
    struct sk_event events[4];
    atomic_int failed;
};

static void relay(void *arg, int index)
{
    struct relays *relays = arg;
    struct sk_store_conformance *c = relays->c;
    struct sk_error err = {0};

    (void)index;
    if (OPS->timeline_apply(SELF, relays->events, 4, &err) != 0)
        atomic_fetch_add(&relays->failed, 1);
}

/* Several relays publish the same outbox at once. */
static bool check_relays(struct sk_store_conformance *c)
{
    static struct sk_timeline_entry entries[SK_TIMELINE_KEEP];
    struct relays relays = {.c = c};
    struct sk_instance record, after;
    int count;

    sc_new(c, &record, &relays.events[0], "replica-a");
    sc_claim(c, &record, &after, &relays.events[1], SK_OP_PROVISION, "replica-b");
    sc_phase(c, &after, &after, &relays.events[2], "providerEnsured");
    sc_complete(c, &after, &after, &relays.events[3]);
    sc_parallel(c, 6, relay, &relays);
    CHECK(relays.failed == 0, "%d relays failed", relays.failed);
    if (!read_timeline(c, record.sandbox_id, entries, &count))
        return false;
    CHECK(count == 2 && strcmp(entries[0].result, "completed") == 0 && strcmp(entries[1].result, "takenover") == 0,
          "relays at once made %d entries, %s and %s", count, entries[0].result, entries[1].result);
    return true;
}

/* ---- command results --------------------------------------------------------------------------- */

static bool check_commands(struct sk_store_conformance *c)
{
    static const char text[] = "{\"id\":\"c\",\"ok\":true,\"note\":\"\\u0000 \xc3\xbc\"}";
    struct sk_command_record records[3], found;
    struct sk_instance a, b;
    struct sk_event event;
    struct sk_error err = {0};
    bool exists = true;

    sc_new(c, &a, &event, "replica-a");
    sc_new(c, &b, &event, "replica-a");
    CHECK(OPS->command_find(SELF, NULL, a.sandbox_id, "c-1", &found, &exists, &err) == 0 && !exists,
          "find of nothing: %s", err.message);
    memset(records, 0, sizeof(records));
    for (int i = 0; i < 3; i++) {
        memcpy(records[i].sandbox_id, i < 2 ? a.sandbox_id : b.sandbox_id, SK_SANDBOX_ID_SIZE);
        snprintf(records[i].command_id, sizeof(records[i].command_id),
                 i == 1 ? "c-2/with a slash \xf0\x9f\x92\xbe" : "c-1");
        memset(records[i].body_hash, 'a' + i, 64);
        records[i].result = (char *)(uintptr_t)text;
        records[i].at = sk_wall_ms(c->sched) + i;
    }
    CHECK(OPS->command_put(SELF, records, 2, &err) == 0, "put: %s", err.message);
    /* One is there already, the other is new: the first stays, the second comes. */
    records[0].result = (char *)(uintptr_t) "{\"id\":\"c\",\"ok\":false}";
    CHECK(OPS->command_put(SELF, records, 3, &err) == 0, "put again: %s", err.message);
    CHECK(OPS->command_put(SELF, records, 0, &err) == 0, "put of nothing: %s", err.message);
    for (int i = 0; i < 3; i++) {
        bool good;

        exists = false;
        CHECK(OPS->command_find(SELF, NULL, records[i].sandbox_id, records[i].command_id, &found, &exists, &err) == 0 &&
                  exists,
              "find %d: %s", i, err.message);
        good = strcmp(found.result, text) == 0 && strcmp(found.body_hash, records[i].body_hash) == 0 &&
               found.at == records[i].at && strcmp(found.command_id, records[i].command_id) == 0 &&
               strcmp(found.sandbox_id, records[i].sandbox_id) == 0;
        sk_command_record_fini(&found);
        CHECK(good, "result %d came back changed", i);
    }
    CHECK(OPS->command_find(SELF, NULL, b.sandbox_id, "c-2", &found, &exists, &err) == 0 && !exists,
          "a result of another sandbox was found");
    return true;
}

struct many {
    int found;
    bool wrong;
    char *taken; /* one result that is kept by taking it */
};

static bool note_found(void *arg, struct sk_command_record *record)
{
    struct many *many = arg;
    int number = -1;

    many->found++;
    if (sscanf(record->command_id, "m/%d", &number) != 1 || number % 3 != 0 || record->result == NULL ||
        atoi(record->result + strlen("{\"n\":")) != number || strlen(record->body_hash) != 64 || record->at <= 0)
        many->wrong = true;
    if (many->taken == NULL) {
        many->taken = record->result;
        record->result = NULL;
    }
    return true;
}

static bool note_first(void *arg, struct sk_command_record *record)
{
    (void)record;
    ++*(int *)arg;
    return false;
}

/* Every third of 300 commands has a result; another sandbox has all of them. */
static bool check_commands_together(struct sk_store_conformance *c)
{
    static struct sk_command_record records[400];
    static char ids[300][24], texts[300][32];
    const char *list[300];
    struct many many = {.found = 0};
    struct sk_instance a, b;
    struct sk_event event;
    struct sk_error err = {0};
    int count = 0, first = 0;

    sc_new(c, &a, &event, "replica-a");
    sc_new(c, &b, &event, "replica-a");
    memset(records, 0, sizeof(records));
    for (int i = 0; i < 300; i++) {
        snprintf(ids[i], sizeof(ids[i]), "m/%d", i); /* an id may hold what separates it from the sandbox id */
        snprintf(texts[i], sizeof(texts[i]), "{\"n\":%d}", i);
        list[i] = ids[i];
        for (int k = 0; k < 2; k++) {
            struct sk_command_record *record = &records[count];

            if ((k == 0) != (i % 3 == 0))
                continue;
            strcpy(record->sandbox_id, k == 0 ? a.sandbox_id : b.sandbox_id);
            strcpy(record->command_id, ids[i]);
            memset(record->body_hash, 'a', 64);
            record->result = texts[i];
            record->at = sk_wall_ms(c->sched);
            count++;
        }
    }
    CHECK(OPS->command_put(SELF, records, count, &err) == 0, "put: %s", err.message);
    CHECK(OPS->command_find_many(SELF, NULL, a.sandbox_id, list, 300, note_found, &many, &err) == 0, "find: %s",
          err.message);
    free(many.taken);
    CHECK(many.found == 100 && !many.wrong, "%d results instead of 100, or wrong ones", many.found);
    CHECK(OPS->command_find_many(SELF, NULL, a.sandbox_id, list, 300, note_first, &first, &err) == 0 && first == 1,
          "%d results after the first was enough", first);
    first = 0;
    CHECK(OPS->command_find_many(SELF, NULL, a.sandbox_id, list, 0, note_first, &first, &err) == 0 && first == 0,
          "a question about nothing found something");
    return true;
}

bool sk_store_check_companions(struct sk_store_conformance *c)
{
    return check_operation(c) && check_claim_again(c) && check_ends(c) && check_timeline_of_commands(c) &&
           check_mixture(c) && check_trimming(c) && check_relays(c) && check_commands(c) && check_commands_together(c);
}
