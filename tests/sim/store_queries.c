/* SPDX-License-Identifier: Apache-2.0
 *
 * The reading half of the store seam: scans, several records at once, lists with cursors, the timeline, statistics. A
 * caller gets copies, so that records may change while it looks at them. */
#include "tests/sim/monitor.h"
#include "tests/sim/servers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_LIMIT_MAX 500
#define CURSOR_SIZE    160

#define IO(inc_, call_, kind_, about_, write_)                                                                         \
    {                                                                                                                  \
        .inc = (inc_), .call = (call_), .kind = (kind_), .about = (about_), .write = (write_)                          \
    }

/* One item for each record there is now. Not cleared: that would be the most expensive thing a scan does. */
static void *many(const struct sim_world *w, size_t item)
{
    size_t count = 1;
    void *p;

    for (size_t i = 0; i < w->store->doc_count; i++)
        count += w->store->docs[i] != NULL;
    p = malloc(count * item);
    if (p == NULL)
        abort();
    return p;
}

static bool scan_wants(const struct sim_doc *doc, enum sk_scan_kind kind)
{
    if (doc == NULL || doc->i.malformed)
        return false;
    switch (kind) {
    case SK_SCAN_TRANSITIONAL:
        return doc->i.has_operation && doc->i.operation.blocked[0] == '\0';
    case SK_SCAN_OUTBOX:
        return doc->outbox_count > 0;
    default:
        return sk_status_info(doc->i.status) != NULL && sk_status_info(doc->i.status)->counts_for_quota;
    }
}

static int64_t scan_order(const struct sk_instance *i, enum sk_scan_kind kind)
{
    return kind == SK_SCAN_TRANSITIONAL ? i->operation.heartbeat_at : 0;
}

/* What a cursor holds: copies, so that records may change while the caller looks at them. */
struct snapshot {
    struct sk_instance i;
    struct sk_event *events;
    int count;
};

static struct snapshot snapshot(const struct sim_doc *doc, bool with_events)
{
    struct snapshot out = {.i = doc->i, .count = with_events ? doc->outbox_count : 0};

    if (out.count > 0) {
        out.events = malloc((size_t)out.count * sizeof(*out.events));
        if (out.events == NULL)
            abort();
        memcpy(out.events, doc->outbox, (size_t)out.count * sizeof(*out.events));
    }
    return out;
}

static int take_snapshots(struct sim_world *w, struct snapshot *out, enum sk_scan_kind kind)
{
    int count = 0;

    for (size_t d = 0; d < w->store->doc_count; d++) {
        const struct sim_doc *doc = w->store->docs[d];
        int at = count;

        if (!scan_wants(doc, kind))
            continue;
        while (at > 0 && scan_order(&out[at - 1].i, kind) > scan_order(&doc->i, kind)) {
            out[at] = out[at - 1];
            at--;
        }
        out[at] = snapshot(doc, kind == SK_SCAN_OUTBOX);
        count++;
    }
    return count;
}

int sim_store_scan(void *self, struct sk_call *call, enum sk_scan_kind kind, int64_t before_ms, int limit,
                   sk_scan_fn fn, void *arg, struct sk_error *err)
{
    static const char *const names[] = {"transitional", "outbox", "quota"};
    struct sim_io io = IO(self, call, SIM_STORE_SCAN, names[kind], false);
    struct sim_inc *inc = self;
    struct snapshot *found = NULL;
    int count = 0, told = 0, status = -1;

    (void)before_ms;
    if (sim_send(&io, err) == SIM_REFUSED)
        goto out;
    found = many(inc->w, sizeof(*found));
    count = take_snapshots(inc->w, found, kind);
    if (sim_reply(&io, err) != 0)
        goto out;
    while (told < count && told < limit) {
        sim_monitor_read(inc->w, inc, found[told].i.sandbox_id, &found[told].i, 0);
        told++;
        if (!fn(arg, &found[told - 1].i, found[told - 1].events, found[told - 1].count))
            break;
    }
    status = 0;
out:
    sim_done(&io, status == 0 ? told : -1, status == 0 ? "= %d records" : "failed", told);
    for (int i = 0; i < count; i++)
        free(found[i].events);
    free(found);
    return status;
}

int sim_store_get_many(void *self, struct sk_call *call, const char (*ids)[SK_SANDBOX_ID_SIZE], int count,
                       sk_scan_fn fn, void *arg, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_GET_MANY, NULL, false);
    struct sim_inc *inc = self;
    struct snapshot *found = NULL;
    int n = 0, status = -1;

    if (sim_send(&io, err) == SIM_REFUSED)
        goto out;
    found = many(inc->w, sizeof(*found));
    for (size_t d = 0; d < inc->w->store->doc_count; d++) {
        bool wanted = false;

        for (int i = 0; i < count && inc->w->store->docs[d] != NULL; i++)
            wanted = wanted || strcmp(inc->w->store->docs[d]->i.sandbox_id, ids[i]) == 0;
        if (wanted)
            found[n++] = snapshot(inc->w->store->docs[d], true);
    }
    if (sim_reply(&io, err) != 0)
        goto out;
    for (int i = 0; i < count; i++)
        sim_monitor_read(inc->w, inc, ids[i], NULL, 0);
    for (int i = 0; i < n; i++)
        sim_monitor_read(inc->w, inc, found[i].i.sandbox_id, &found[i].i, 0);
    for (int i = 0; i < n; i++) {
        if (!fn(arg, &found[i].i, found[i].events, found[i].count))
            break;
    }
    status = 0;
out:
    sim_done(&io, status == 0 ? n : -1, status == 0 ? "%d asked, %d found" : "failed", count, n);
    for (int i = 0; i < n; i++)
        free(found[i].events);
    free(found);
    return status;
}

static bool among(const char (*command_ids)[SK_COMMAND_ID_SIZE], int count, const char *id)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(command_ids[i], id) == 0)
            return true;
    }
    return false;
}

/* Newest first, by epoch: events of an older operation may reach the timeline later. command_ids NULL: all. */
static int take_entries(const struct sim_world *w, const char *sandbox_id,
                        const char (*command_ids)[SK_COMMAND_ID_SIZE], int command_count, struct sk_timeline_entry *out,
                        int room)
{
    int n = 0;

    for (size_t i = 0; i < w->store->timeline_count; i++) {
        const struct sk_timeline_entry *e = &w->store->timeline[i];
        int at;

        if (strcmp(e->sandbox_id, sandbox_id) != 0 ||
            (command_ids != NULL && !among(command_ids, command_count, e->command_id)) ||
            (n == room && (room == 0 || out[room - 1].epoch >= e->epoch)))
            continue;
        at = n < room ? n++ : room - 1;
        for (; at > 0 && out[at - 1].epoch < e->epoch; at--)
            out[at] = out[at - 1];
        out[at] = *e;
    }
    return n;
}

int sim_store_timeline_of_commands(void *self, struct sk_call *call, const char *sandbox_id,
                                   const char (*command_ids)[SK_COMMAND_ID_SIZE], int command_count,
                                   struct sk_timeline_entry *out, int *count, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_TIMELINE_OF, sandbox_id, false);
    struct sim_inc *inc = self;
    int room = *count > SK_TIMELINE_KEEP ? SK_TIMELINE_KEEP : *count;

    *count = 0;
    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "failed");
        return -1;
    }
    *count = take_entries(inc->w, sandbox_id, command_ids, command_count, out, room);
    sim_done(&io, *count, "%d commands: %d", command_count, *count);
    return 0;
}

int sim_store_timeline_list(void *self, struct sk_call *call, const char *sandbox_id, struct sk_timeline_entry *out,
                            int *count, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_TIMELINE_LIST, sandbox_id, false);
    struct sim_inc *inc = self;
    int room = *count > SK_TIMELINE_KEEP ? SK_TIMELINE_KEEP : *count, n;

    *count = 0;
    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "failed");
        return -1;
    }
    n = take_entries(inc->w, sandbox_id, NULL, 0, out, room);
    /* What a later operation followed has ended, whoever noticed. */
    for (int i = 1; i < n; i++) {
        if (out[i].result[0] != '\0')
            continue;
        sk_copy_cut(out[i].result, sizeof(out[i].result),
                    strcmp(out[i - 1].job_id, out[i].job_id) == 0 && out[i - 1].attempt > out[i].attempt ? "failed"
                                                                                                         : "takenover");
        if (out[i].ended_at == 0)
            out[i].ended_at = out[i - 1].started_at;
    }
    *count = n;
    sim_done(&io, n, "= %d", n);
    return 0;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static bool list_wants(const struct sk_list_filter *f, const struct sk_instance *r)
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

/* A record's place in an order: its time (0 for the order of ids), then its _id or sandbox id. */
struct place {
    int64_t time;
    char id[SK_SANDBOX_ID_SIZE];
};

static struct place place_of(const struct sk_instance *r, enum sk_list_sort sort)
{
    struct place place = {.time = 0};

    if (sort == SK_LIST_BY_SANDBOX_ID) {
        sk_copy_cut(place.id, sizeof(place.id), r->sandbox_id);
    } else {
        place.time = sort == SK_LIST_BY_CREATED_DESC ? r->created_at : r->last_active_at;
        sk_copy_cut(place.id, sizeof(place.id), r->oid);
    }
    return place;
}

static bool comes_before(const struct place *a, const struct place *b, enum sk_list_sort sort)
{
    bool descending = sort == SK_LIST_BY_LAST_ACTIVE_DESC || sort == SK_LIST_BY_CREATED_DESC;

    if (a->time != b->time)
        return descending ? a->time > b->time : a->time < b->time;
    return descending ? strcmp(a->id, b->id) > 0 : strcmp(a->id, b->id) < 0;
}

/* A cursor belongs to its filter and its order. */
static unsigned query_of(const struct sk_list_filter *f, enum sk_list_sort sort)
{
    char text[2048], hex[65];
    int length =
        snprintf(text, sizeof(text), "%d|%u|%d|%s|%s|%s|%s|%d|%" PRId64, (int)sort, f->statuses, (int)f->source_type,
                 f->source_id, f->user_id, f->team_id, f->provider, f->blocked, f->older_than);

    sk_sha256_hex(text, (size_t)length, hex);
    hex[7] = '\0';
    return (unsigned)strtoul(hex, NULL, 16);
}

static bool cursor_read(const char *cursor, unsigned query, struct place *out)
{
    unsigned told;
    int used = 0;

    memset(out, 0, sizeof(*out));
    if (strlen(cursor) >= CURSOR_SIZE || sscanf(cursor, "sim%u.%" SCNd64 ".%n", &told, &out->time, &used) != 2 ||
        used == 0)
        return false;
    return told == query && cursor[used] != '\0' && sk_copy(out->id, sizeof(out->id), cursor + used);
}

static char *cursor_make(const struct place *place, unsigned query)
{
    char *text = malloc(CURSOR_SIZE);

    if (text == NULL)
        abort();
    snprintf(text, CURSOR_SIZE, "sim%u.%" PRId64 ".%s", query, place->time, place->id);
    return text;
}

/* The first record behind `after` (NULL = from the start); NULL when there is none. */
static const struct sk_instance *next_record(struct sim_world *w, const struct sk_list_filter *filter,
                                             enum sk_list_sort sort, const struct place *after)
{
    const struct sk_instance *best = NULL;
    struct place best_place = {.time = 0};

    for (size_t d = 0; d < w->store->doc_count; d++) {
        const struct sim_doc *doc = w->store->docs[d];
        struct place place;

        if (doc == NULL || doc->i.malformed || !list_wants(filter, &doc->i))
            continue;
        place = place_of(&doc->i, sort);
        if ((after != NULL && !comes_before(after, &place, sort)) ||
            (best != NULL && !comes_before(&place, &best_place, sort)))
            continue;
        best = &doc->i;
        best_place = place;
    }
    return best;
}

int sim_store_list(void *self, struct sk_call *call, const struct sk_list_filter *filter, enum sk_list_sort sort,
                   const char *cursor, int limit, sk_scan_fn fn, void *arg, char **next, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_LIST, NULL, false);
    struct sim_world *w = io.inc->w;
    struct place place, *after = NULL;
    const struct sk_instance *r;
    int told = 0;
    bool go_on = true;

    *next = NULL;
    if (limit < 1 || limit > LIST_LIMIT_MAX || (cursor != NULL && !cursor_read(cursor, query_of(filter, sort), &place)))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the limit or the cursor of the list is not valid");
    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "failed");
        return -1;
    }
    if (cursor != NULL)
        after = &place;
    while (go_on && told < limit && (r = next_record(w, filter, sort, after)) != NULL) {
        struct sk_instance copy = *r;

        place = place_of(r, sort);
        after = &place;
        told++;
        go_on = fn(arg, &copy, NULL, 0);
    }
    if (after != NULL && next_record(w, filter, sort, after) != NULL)
        *next = cursor_make(after, query_of(filter, sort));
    sim_done(&io, told, "= %d", told);
    return 0;
}

int sim_store_scan_idle(void *self, struct sk_call *call, struct sk_idle_cursor *cursor, int64_t before_ms, int limit,
                        sk_scan_fn fn, void *arg, struct sk_error *err)
{
    static const struct sk_list_filter running = {.statuses = 1u << SK_STATUS_RUNNING};
    struct sim_io io = IO(self, call, SIM_STORE_SCAN, "idle", false);
    struct sim_inc *inc = self;
    struct sk_instance *found = NULL;
    struct place place = {.time = cursor->last_active_at};
    const struct sk_instance *r;
    int count = 0, told = 0;
    bool finished = false, go_on = true;

    if (sim_send(&io, err) == SIM_REFUSED)
        goto failed;
    memcpy(place.id, cursor->oid, sizeof(cursor->oid));
    found = many(inc->w, sizeof(*found));
    while (count < limit && !finished) {
        r = next_record(inc->w, &running, SK_LIST_BY_LAST_ACTIVE_ASC, &place);
        finished = r == NULL || r->last_active_at >= before_ms;
        if (!finished) {
            found[count++] = *r;
            place = place_of(r, SK_LIST_BY_LAST_ACTIVE_ASC);
        }
    }
    if (sim_reply(&io, err) != 0)
        goto failed;
    while (told < count && go_on) {
        sim_monitor_read(inc->w, inc, found[told].sandbox_id, &found[told], 0);
        go_on = fn(arg, &found[told], NULL, 0);
        told++;
    }
    if (finished && go_on) {
        memset(cursor, 0, sizeof(*cursor));
    } else if (told > 0) {
        cursor->last_active_at = found[told - 1].last_active_at;
        memcpy(cursor->oid, found[told - 1].oid, sizeof(cursor->oid));
    }
    sim_done(&io, told, "= %d records", told);
    free(found);
    return 0;
failed:
    sim_done(&io, -1, "failed");
    free(found);
    return -1;
}

int sim_store_stats(void *self, struct sk_call *call, struct sk_stats *out, struct sk_error *err)
{
    struct sim_io io = IO(self, call, SIM_STORE_STATS, NULL, false);
    struct sim_inc *inc = self;

    memset(out, 0, sizeof(*out));
    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "failed");
        return -1;
    }
    for (size_t d = 0; d < inc->w->store->doc_count; d++) {
        const struct sim_doc *doc = inc->w->store->docs[d];

        if (doc == NULL)
            continue;
        if (doc->i.malformed)
            out->malformed++;
        else
            out->by_status[doc->i.status]++;
        if (doc->i.has_operation && sim_wall(inc->w) - doc->i.operation.heartbeat_at > out->oldest_transitional_ms)
            out->oldest_transitional_ms = sim_wall(inc->w) - doc->i.operation.heartbeat_at;
        out->blocked += doc->i.has_operation && doc->i.operation.blocked[0] != '\0';
        out->pending_outbox += doc->outbox_count > 0;
    }
    sim_done(&io, 0, "ok");
    return 0;
}
