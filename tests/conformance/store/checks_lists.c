/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of lists, scans and statistics: every order and filter against a plain filter over what was stored, page sizes
 * that do not divide the number, many records of one moment, and pages that are read while records come and go. */
#include "tests/conformance/store/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS_MAX 400
#define LIST_TEAM   "conformance-list"

struct library {
    struct sk_store_conformance *c;
    struct sk_instance records[RECORDS_MAX];
    int count;
    int64_t base;
};

/* Statuses, owners, sources and times that overlap in many ways; a third of the records share one moment. */
static bool fill(struct library *library, int count)
{
    struct sk_store_conformance *c = library->c;

    library->count = count < RECORDS_MAX ? count : RECORDS_MAX;
    library->base = sk_wall_ms(c->sched) - 40LL * 86400000;
    for (int i = 0; i < library->count; i++) {
        struct sk_instance *record = &library->records[i];
        struct sk_error err = {0};
        struct sk_event event;
        bool created = false;
        char source[40], user[40];

        sc_new(c, record, &event, "replica-a");
        snprintf(source, sizeof(source), "%.12s-%d", record->oid, i % 11);
        snprintf(user, sizeof(user), "list-user-%d-%d", i % 5, i);
        if (i % 4 == 1)
            snprintf(user, sizeof(user), "list-user-shared");
        CHECK(sk_identity_set(&record->identity, i % 3 == 0 ? "workflowBuilder" : "app", source, strlen(source), user,
                              strlen(user), &err) == 0,
              "%s", err.message);
        sk_identity_sandbox_id(&record->identity, record->sandbox_id);
        strcpy(record->team_id, i % 2 == 0 ? LIST_TEAM : LIST_TEAM "-b");
        strcpy(record->provider, i % 7 == 0 ? "sealosdevbox" : "opensandbox");
        record->last_active_at = library->base + (i % 3 == 0 ? 5000 : (int64_t)(i * 7919 % 1000) * 3600000);
        record->created_at = library->base + (i % 3 == 1 ? 7000 : (int64_t)(i * 104729 % 1000) * 60000);
        if (i % 10 < 3) {
            record->sequence = 0;
            if (i % 20 == 1)
                strcpy(record->operation.blocked, "by the check");
        } else {
            record->has_operation = false;
            memset(&record->operation, 0, sizeof(record->operation));
            record->status = i % 10 < 6 ? SK_STATUS_RUNNING : i % 10 < 9 ? SK_STATUS_STOPPED : SK_STATUS_ARCHIVED;
            record->sequence = 0;
        }
        /* Stored as if nobody had told anybody: without events. */
        if (record->has_operation)
            record->operation.job_id[0] = record->operation.owner[0] = '\0';
        CHECK(OPS->insert(SELF, NULL, record, NULL, 0, &created, &err) == 0 && created, "insert: %s", err.message);
    }
    return true;
}

static bool wanted(const struct sk_list_filter *f, const struct sk_instance *r)
{
    bool blocked = r->has_operation && r->operation.blocked[0] != '\0';

    return (f->statuses == 0 || (f->statuses & 1u << r->status) != 0) &&
           (f->source_type == SK_SOURCE_NONE || f->source_type == r->identity.source_type) &&
           (f->source_id[0] == '\0' || strcmp(f->source_id, r->identity.source_id) == 0) &&
           (f->user_id[0] == '\0' || strcmp(f->user_id, r->identity.user_id) == 0) &&
           (f->team_id[0] == '\0' || strcmp(f->team_id, r->team_id) == 0) &&
           (f->provider[0] == '\0' || strcmp(f->provider, r->provider) == 0) &&
           (f->blocked == 0 || (f->blocked == 1) == blocked) &&
           (f->older_than == 0 || r->last_active_at < f->older_than);
}

static int by_position(const struct sk_instance *a, const struct sk_instance *b, enum sk_list_sort sort)
{
    int64_t left = sort == SK_LIST_BY_CREATED_DESC ? a->created_at : a->last_active_at;
    int64_t right = sort == SK_LIST_BY_CREATED_DESC ? b->created_at : b->last_active_at;

    switch (sort) {
    case SK_LIST_BY_SANDBOX_ID:
        return strcmp(a->sandbox_id, b->sandbox_id);
    case SK_LIST_BY_LAST_ACTIVE_ASC:
        return left < right ? -1 : left > right;
    default:
        return left > right ? -1 : left < right;
    }
}

struct listing {
    const struct library *library;
    enum sk_list_sort sort;
    bool seen[RECORDS_MAX];
    int found, foreign, repeated, disordered;
    struct sk_instance last;
    int stop_after;
    char prefix[40]; /* of sandbox ids that are not ours and may come in between */
};

static bool note(void *arg, const struct sk_instance *instance, const struct sk_event *events, int count)
{
    struct listing *listing = arg;
    int at = -1;

    (void)events;
    (void)count;
    for (int i = 0; i < listing->library->count; i++) {
        if (strcmp(listing->library->records[i].sandbox_id, instance->sandbox_id) == 0)
            at = i;
    }
    if (at < 0) {
        listing->foreign++;
        return true;
    }
    if (listing->seen[at])
        listing->repeated++;
    listing->seen[at] = true;
    if (listing->found > 0 && by_position(&listing->last, instance, listing->sort) > 0)
        listing->disordered++;
    listing->last = *instance;
    listing->found++;
    return listing->stop_after == 0 || listing->found % listing->stop_after != 0;
}

static bool list_all(struct sk_store_conformance *c, const struct sk_list_filter *filter, int limit,
                     struct listing *listing)
{
    char *cursor = NULL, *next;

    for (int page = 0;; page++) {
        struct sk_error err = {0};
        int result = OPS->list(SELF, NULL, filter, listing->sort, cursor, limit, note, listing, &next, &err);

        free(cursor);
        CHECK(result == 0, "page %d: %s", page, err.message);
        if (next == NULL)
            return true;
        cursor = next;
        if (page > 5000) {
            free(cursor);
            return sc_fail(c, "a list does not end");
        }
    }
}

static bool check_filter(struct library *library, const struct sk_list_filter *filter, const char *name)
{
    static const int limits[] = {7, 50, 500};
    struct sk_store_conformance *c = library->c;
    static struct listing listing;

    for (int sort = SK_LIST_BY_LAST_ACTIVE_DESC; sort <= SK_LIST_BY_SANDBOX_ID; sort++) {
        for (size_t l = 0; l < sizeof(limits) / sizeof(limits[0]); l++) {
            int expected = 0;

            memset(&listing, 0, sizeof(listing));
            listing.library = library;
            listing.sort = (enum sk_list_sort)sort;
            listing.stop_after = l == 1 ? 13 : 0; /* a callback that stops in the middle of a page loses nothing */
            if (!list_all(c, filter, limits[l], &listing))
                return false;
            for (int i = 0; i < library->count; i++) {
                bool is_wanted = wanted(filter, &library->records[i]);

                expected += is_wanted;
                CHECK(listing.seen[i] == is_wanted, "filter %s, order %d, pages of %d: record %d (%s) is %s", name,
                      sort, limits[l], i, sk_status_name(library->records[i].status),
                      is_wanted ? "missing" : "too many");
            }
            CHECK(listing.repeated == 0 && listing.disordered == 0 && listing.found == expected,
                  "filter %s, order %d, pages of %d: %d of %d, %d twice, %d out of order", name, sort, limits[l],
                  listing.found, expected, listing.repeated, listing.disordered);
        }
    }
    return true;
}

static bool check_filters(struct library *library)
{
    const unsigned running = 1u << SK_STATUS_RUNNING, stopped = 1u << SK_STATUS_STOPPED,
                   provisioning = 1u << SK_STATUS_PROVISIONING;
    int64_t older = library->base + 300LL * 3600000;
    struct sk_list_filter f;

#define FILTER(name, ...)                                                                                              \
    do {                                                                                                               \
        f = (struct sk_list_filter){__VA_ARGS__};                                                                      \
        if (!check_filter(library, &f, name))                                                                          \
            return false;                                                                                              \
    } while (0)
    FILTER("none", .statuses = 0);
    FILTER("team", .team_id = LIST_TEAM);
    FILTER("one status", .statuses = running);
    FILTER("two statuses", .statuses = running | stopped);
    FILTER("in progress", .statuses = provisioning);
    FILTER("in progress or stopped", .statuses = provisioning | stopped);
    FILTER("team and status", .team_id = LIST_TEAM, .statuses = stopped);
    FILTER("team and old", .team_id = LIST_TEAM "-b", .older_than = older);
    FILTER("old", .older_than = older);
    FILTER("running and old", .statuses = running, .older_than = older);
    FILTER("in progress and old", .statuses = provisioning, .older_than = older);
    FILTER("blocked", .blocked = 1);
    FILTER("not blocked", .blocked = 2);
    FILTER("not blocked in progress", .blocked = 2, .statuses = provisioning);
    FILTER("blocked but running", .blocked = 1, .statuses = running);
    FILTER("source type", .source_type = SK_SOURCE_WORKFLOW_BUILDER);
    FILTER("provider", .provider = "sealosdevbox");
    FILTER("user", .user_id = "list-user-shared");
    FILTER("user, team and status", .user_id = "list-user-shared", .team_id = LIST_TEAM "-b", .statuses = running);
    FILTER("nobody", .team_id = "conformance-nobody");
    FILTER("nobody's status", .statuses = 1u << SK_STATUS_RESTORING);
    memset(&f, 0, sizeof(f));
    memcpy(f.source_id, library->records[3].identity.source_id, sizeof(f.source_id));
    if (!check_filter(library, &f, "source"))
        return false;
    f.source_type = library->records[3].identity.source_type;
    memcpy(f.user_id, library->records[3].identity.user_id, sizeof(f.user_id));
    return check_filter(library, &f, "identity");
#undef FILTER
}

static bool check_cursors(struct library *library)
{
    static const char *const bad[] = {
        "", "x", "t1.", "i1.", "t1.zz.1.2.3", "t1.0000000000000000.1.5.", "t1.1.1.1.1.1.1", "../../etc"};
    struct sk_store_conformance *c = library->c;
    struct sk_list_filter filter = {.team_id = LIST_TEAM}, other = {.team_id = LIST_TEAM "-b"};
    static struct listing listing;
    struct sk_error err = {0};
    char *next = NULL, *again = NULL;

    memset(&listing, 0, sizeof(listing));
    listing.library = library;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK(OPS->list(SELF, NULL, &filter, SK_LIST_BY_LAST_ACTIVE_DESC, bad[i], 10, note, &listing, &next, &err) !=
                      0 &&
                  err.code == SK_ERR_INVALID_REQUEST && next == NULL,
              "the cursor \"%s\" was accepted", bad[i]);
    CHECK(OPS->list(SELF, NULL, &filter, SK_LIST_BY_LAST_ACTIVE_DESC, NULL, 10, note, &listing, &next, &err) == 0 &&
              next != NULL,
          "first page: %s", err.message);
    CHECK(OPS->list(SELF, NULL, &other, SK_LIST_BY_LAST_ACTIVE_DESC, next, 10, note, &listing, &again, &err) != 0 &&
              err.code == SK_ERR_INVALID_REQUEST,
          "a cursor of another filter was accepted");
    CHECK(OPS->list(SELF, NULL, &filter, SK_LIST_BY_LAST_ACTIVE_ASC, next, 10, note, &listing, &again, &err) != 0 &&
              err.code == SK_ERR_INVALID_REQUEST,
          "a cursor of another order was accepted");
    free(next);
    CHECK(OPS->list(SELF, NULL, &filter, SK_LIST_BY_LAST_ACTIVE_DESC, NULL, 0, note, &listing, &next, &err) != 0 &&
              OPS->list(SELF, NULL, &filter, SK_LIST_BY_LAST_ACTIVE_DESC, NULL, 501, note, &listing, &next, &err) != 0,
          "a page of 0 or 501 was accepted");
    return true;
}

/* While pages are read, records come, go to the front and go away: those that stay are seen exactly once. */
static bool check_stability(struct library *library)
{
    struct sk_store_conformance *c = library->c;
    struct sk_list_filter filter = {.team_id = LIST_TEAM};
    static struct listing listing;
    static bool moved[RECORDS_MAX];
    char *cursor = NULL, *next;
    int turn = 0;

    for (int sort = SK_LIST_BY_LAST_ACTIVE_DESC; sort <= SK_LIST_BY_SANDBOX_ID; sort++) {
        memset(&listing, 0, sizeof(listing));
        memset(moved, 0, sizeof(moved));
        listing.library = library;
        listing.sort = (enum sk_list_sort)sort;
        do {
            struct sk_error err = {0};
            int result = OPS->list(SELF, NULL, &filter, listing.sort, cursor, 6, note, &listing, &next, &err);
            struct sk_instance fresh, after;
            int touched = turn * 14 % library->count;

            free(cursor);
            CHECK(result == 0, "page: %s", err.message);
            cursor = next;
            /* A new one, anywhere, and a touch of an old one. */
            if (turn++ % 3 == 0 && !sc_insert(c, &fresh)) {
                free(cursor);
                return false;
            }
            if (library->records[touched].status == SK_STATUS_RUNNING) {
                after = library->records[touched];
                after.last_active_at = sk_wall_ms(c->sched) + turn;
                if (!sc_apply(c, &library->records[touched], &after, NULL, "touch")) {
                    free(cursor);
                    return false;
                }
                moved[touched] = true;
            }
        } while (cursor != NULL);
        for (int i = 0; i < library->count; i++) {
            if (strcmp(library->records[i].team_id, LIST_TEAM) == 0 && (!moved[i] || sort >= SK_LIST_BY_CREATED_DESC))
                CHECK(listing.seen[i], "order %d: a record that did not move was missed", sort);
        }
        if (sort >= SK_LIST_BY_CREATED_DESC)
            CHECK(listing.repeated == 0, "order %d: %d records came twice", sort, listing.repeated);
    }
    return true;
}

/* ---- scans ------------------------------------------------------------------------------------- */

struct scanned {
    const struct library *library;
    bool seen[RECORDS_MAX];
    int found, disordered, wrong;
    int64_t last;
    bool idle;
    enum sk_scan_kind kind; /* if not */
};

static bool note_scanned(void *arg, const struct sk_instance *instance, const struct sk_event *events, int count)
{
    struct scanned *scanned = arg;
    int64_t position = scanned->idle ? instance->last_active_at : instance->operation.heartbeat_at;

    (void)events;
    (void)count;
    scanned->found++;
    if (scanned->idle && instance->status != SK_STATUS_RUNNING)
        scanned->wrong++;
    if (!scanned->idle && scanned->kind == SK_SCAN_TRANSITIONAL &&
        (!instance->has_operation || instance->operation.blocked[0] != '\0'))
        scanned->wrong++;
    if ((scanned->idle || scanned->kind == SK_SCAN_TRANSITIONAL) && position < scanned->last)
        scanned->disordered++;
    scanned->last = position;
    for (int i = 0; i < scanned->library->count; i++) {
        if (strcmp(scanned->library->records[i].sandbox_id, instance->sandbox_id) == 0)
            scanned->seen[i] = true;
    }
    return true;
}

/* A whole walk over the idle records in pages of `limit`. The static `scanned` tells what it saw. */
static bool walk_idle(struct library *library, int64_t before_ms, int limit, struct scanned *scanned)
{
    struct sk_store_conformance *c = library->c;
    struct sk_idle_cursor cursor = {0};
    struct sk_error err = {0};
    int pages = 0, before;

    memset(scanned, 0, sizeof(*scanned));
    scanned->library = library;
    scanned->idle = true;
    do {
        before = scanned->found;
        CHECK(OPS->scan_idle(SELF, NULL, &cursor, before_ms, limit, note_scanned, scanned, &err) == 0, "idle scan: %s",
              err.message);
        CHECK(scanned->found - before <= limit, "idle scan: %d instead of %d", scanned->found - before, limit);
        CHECK(++pages <= 2 * library->count + 10, "idle scan: pages of %d do not end", limit);
    } while (cursor.last_active_at != 0);
    CHECK(scanned->disordered == 0 && scanned->wrong == 0, "idle scan: %d out of order, %d not running",
          scanned->disordered, scanned->wrong);
    return true;
}

static bool check_idle_scans(struct library *library)
{
    static const int limits[] = {100000, 100000, 1, 3, 7};
    struct sk_store_conformance *c = library->c;
    int64_t idle_before = library->base + 200LL * 3600000;
    static struct scanned scanned;
    struct sk_idle_cursor cursor = {.last_active_at = idle_before + 1};
    struct sk_error err = {0};
    int expected = 0;

    /* All at once twice: the second time the store may know where to begin. In pages nothing is missed and nothing
     * comes twice, however many records share a moment. */
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (!walk_idle(library, idle_before, limits[i], &scanned))
            return false;
        if (i == 0)
            expected = scanned.found;
        CHECK(scanned.found == expected, "idle scan: pages of %d hold %d records instead of %d", limits[i],
              scanned.found, expected);
        for (int n = 0; n < library->count; n++) {
            const struct sk_instance *r = &library->records[n];

            CHECK(scanned.seen[n] == (r->status == SK_STATUS_RUNNING && r->last_active_at < idle_before),
                  "idle scan in pages of %d: record %d is wrong", limits[i], n);
        }
    }
    /* A cursor beyond the end (less is idle than was): nothing, and the next walk begins anew. */
    memset(&scanned, 0, sizeof(scanned));
    scanned.library = library;
    CHECK(OPS->scan_idle(SELF, NULL, &cursor, idle_before, 3, note_scanned, &scanned, &err) == 0 &&
              scanned.found == 0 && cursor.last_active_at == 0,
          "idle scan: a cursor beyond the end is not the end");
    return true;
}

static bool check_scans(struct library *library)
{
    struct sk_store_conformance *c = library->c;
    static struct scanned scanned;
    struct sk_error err = {0};

    memset(&scanned, 0, sizeof(scanned));
    scanned.library = library;
    scanned.kind = SK_SCAN_TRANSITIONAL;
    CHECK(OPS->scan(SELF, NULL, SK_SCAN_TRANSITIONAL, 0, 100000, note_scanned, &scanned, &err) == 0, "scan: %s",
          err.message);
    CHECK(scanned.disordered == 0 && scanned.wrong == 0, "transitional scan: %d out of order, %d wrong",
          scanned.disordered, scanned.wrong);
    for (int i = 0; i < library->count; i++)
        CHECK(scanned.seen[i] ==
                  (library->records[i].has_operation && library->records[i].operation.blocked[0] == '\0'),
              "transitional scan: record %d is wrong", i);

    memset(&scanned, 0, sizeof(scanned));
    scanned.library = library;
    scanned.kind = SK_SCAN_QUOTA;
    CHECK(OPS->scan(SELF, NULL, SK_SCAN_QUOTA, 0, 100000, note_scanned, &scanned, &err) == 0, "scan: %s", err.message);
    for (int i = 0; i < library->count; i++)
        CHECK(scanned.seen[i] == sk_status_info(library->records[i].status)->counts_for_quota,
              "quota scan: record %d is wrong", i);
    return true;
}

static bool check_stats(struct library *library)
{
    struct sk_store_conformance *c = library->c;
    struct sk_stats before, after;
    struct sk_instance record, blocked;
    struct sk_error err = {0};
    bool counted = false;

    CHECK(OPS->stats(SELF, NULL, &before, &err) == 0, "stats: %s", err.message);
    CHECK(before.by_status[SK_STATUS_RUNNING] > 0 && before.by_status[SK_STATUS_PROVISIONING] > 0 &&
              before.blocked > 0 && before.oldest_transitional_ms > 0,
          "statistics do not see what is there");
    if (!sc_insert(c, &record))
        return false;
    blocked = record;
    strcpy(blocked.operation.blocked, "for the statistics");
    if (!sc_apply(c, &record, &blocked, NULL, "block"))
        return false;
    /* They may be a little old. */
    for (int i = 0; i < 600 && !counted; i++) {
        CHECK(OPS->stats(SELF, NULL, &after, &err) == 0, "stats: %s", err.message);
        counted = after.by_status[SK_STATUS_PROVISIONING] == before.by_status[SK_STATUS_PROVISIONING] + 1 &&
                  after.blocked == before.blocked + 1 && after.pending_outbox == before.pending_outbox + 1 &&
                  after.by_status[SK_STATUS_RUNNING] == before.by_status[SK_STATUS_RUNNING] &&
                  after.malformed == before.malformed;
        if (!counted)
            sk_sleep_ms(c->sched, 50);
    }
    CHECK(counted, "statistics did not see a new record");
    return true;
}

bool sk_store_check_lists(struct sk_store_conformance *c)
{
    struct library *library = calloc(1, sizeof(*library));
    bool good;

    if (library == NULL)
        return sc_fail(c, "out of memory");
    library->c = c;
    good = fill(library, c->records) && check_filters(library) && check_cursors(library) && check_scans(library) &&
           check_idle_scans(library) && check_stats(library) && check_stability(library);
    free(library);
    return good;
}
