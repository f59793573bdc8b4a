/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests about instances (contract/messaging.md §3): get, find, list, exists, status, timeline, stats, and held,
 * which is for the doctor. Reads only: nothing here starts, stops or touches a sandbox, and looking never counts as
 * activity. */
#include "services/lifecycle/internal.h"

#include "common/base/json.h"

#include <stdlib.h>
#include <string.h>

#define LIST_LIMIT_DEFAULT 50
#define LIST_LIMIT_MAX     500
#define CURSOR_MAX         2048
#define RPC_MS             10000
#define HELD_PAGE          500
#define HELD_STEPS_MAX     50

/* A page of `held`. */
struct held {
    json_t *items;
    char next[SK_QUOTA_POSITION_SIZE];
};

struct rpc {
    struct lc_replica *replica;
    const struct sk_store *store;
    struct sk_call call;
    json_t *request;
    struct sk_instance record;
    bool found;
    struct sk_error err;
};

static int get_sandbox_id(struct rpc *rpc, unsigned flags, char out[SK_SANDBOX_ID_SIZE])
{
    const char *text;
    int rc = sk_json_get_string(rpc->request, "", "sandboxId", flags, 256, &text, NULL, &rpc->err);

    if (rc <= 0)
        return rc;
    if (!sk_sandbox_id_valid(text) || !sk_copy(out, SK_SANDBOX_ID_SIZE, text))
        return sk_fail(&rpc->err, SK_ERR_INVALID_REQUEST, "sandboxId is not valid");
    return 1;
}

static int get_identity(struct rpc *rpc, const json_t *object, const char *path, struct sk_identity *out)
{
    const char *type, *source, *user = NULL;
    size_t source_len, user_len = 0;

    if (sk_json_get_string(object, path, "sourceType", SK_JSON_REQUIRED, 64, &type, NULL, &rpc->err) < 0 ||
        sk_json_get_string(object, path, "sourceId", SK_JSON_REQUIRED, SK_SOURCE_ID_SIZE - 1, &source, &source_len,
                           &rpc->err) < 0 ||
        sk_json_get_string(object, path, "userId", 0, SK_USER_ID_SIZE - 1, &user, &user_len, &rpc->err) < 0)
        return -1;
    return sk_identity_set(out, type, source, source_len, user, user_len, &rpc->err);
}

/* The record that the request names by sandboxId, or by its identity. */
static int read_record(struct rpc *rpc)
{
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    struct sk_identity identity;
    int rc = get_sandbox_id(rpc, 0, sandbox_id);

    if (rc < 0)
        return -1;
    if (rc > 0)
        return rpc->store->ops->get(rpc->store->self, &rpc->call, sandbox_id, &rpc->record, &rpc->found, &rpc->err);
    if (get_identity(rpc, rpc->request, "", &identity) != 0)
        return -1;
    return rpc->store->ops->find(rpc->store->self, &rpc->call, &identity, &rpc->record, &rpc->found, &rpc->err);
}

static json_t *rpc_get(struct rpc *rpc)
{
    if (read_record(rpc) != 0)
        return NULL;
    if (!rpc->found) {
        sk_fail(&rpc->err, SK_ERR_SANDBOX_NOT_FOUND, "there is no such sandbox");
        return NULL;
    }
    return sk_instance_public_json(&rpc->record);
}

/* `find` asks for an identity and takes "there is none" as an answer. */
static json_t *rpc_find(struct rpc *rpc)
{
    if (read_record(rpc) != 0)
        return NULL;
    return rpc->found ? sk_instance_public_json(&rpc->record) : json_null();
}

static json_t *rpc_exists(struct rpc *rpc)
{
    if (read_record(rpc) != 0)
        return NULL;
    return rpc->found ? json_pack("{s:b,s:s}", "exists", 1, "status", sk_status_name(rpc->record.status))
                      : json_pack("{s:b}", "exists", 0);
}

/* ---- status: FastGPT's view of a runtime (reference §7) ----------------------------------------- */
static bool failed_or_old(struct rpc *rpc, int64_t window_ms)
{
    const struct sk_operation *op = &rpc->record.operation;

    return op->error.detail[0] != '\0' || op->error.code[0] != '\0' || op->blocked[0] != '\0' ||
           op->heartbeat_at + window_ms < sk_wall_ms(rpc->replica->sched);
}

static bool image_differs(const struct rpc *rpc)
{
    const struct sk_image *wanted = &rpc->replica->settings.default_image, *has = &rpc->record.image;

    if (!wanted->present)
        return false;
    return !has->present || strcmp(wanted->repository, has->repository) != 0 || strcmp(wanted->tag, has->tag) != 0;
}

static const char *runtime_status(struct rpc *rpc, bool *show_error)
{
    const struct lc_settings *s = &rpc->replica->settings;
    const struct sk_instance *record = &rpc->record;

    *show_error = false;
    if (!rpc->found)
        return "readyToInit";
    switch (record->status) {
    case SK_STATUS_ARCHIVED:
        return "readyToInit";
    case SK_STATUS_RUNNING:
    case SK_STATUS_STOPPED:
        return image_differs(rpc) ? "upgradeRequired" : "readyToInit";
    case SK_STATUS_PROVISIONING:
        *show_error = true;
        return failed_or_old(rpc, s->fastgpt_short_stale_ms) ? "readyToInit" : "upgrading";
    case SK_STATUS_RESTORING:
        return failed_or_old(rpc, s->fastgpt_long_stale_ms) ? "readyToInit" : "upgrading";
    case SK_STATUS_STOPPING:
    case SK_STATUS_ARCHIVING:
        *show_error = record->operation.error.detail[0] != '\0' || record->operation.error.code[0] != '\0';
        return *show_error ? "upgradeRequired" : "upgrading";
    default:
        *show_error = true;
        return "upgrading";
    }
}

static json_t *rpc_status(struct rpc *rpc)
{
    const struct sk_stored_error *error = &rpc->record.operation.error;
    bool show_error;
    const char *status;
    json_t *data;

    if (read_record(rpc) != 0)
        return NULL;
    status = runtime_status(rpc, &show_error);
    data = json_pack("{s:s}", "status", status);
    if (data == NULL || !rpc->found)
        return data;
    json_object_set_new(data, "sandboxId", sk_json_text(rpc->record.sandbox_id));
    json_object_set_new(data, "instanceStatus", sk_json_text(sk_status_name(rpc->record.status)));
    if (show_error && rpc->record.has_operation && (error->detail[0] != '\0' || error->code[0] != '\0'))
        json_object_set_new(data, "lastError", sk_json_text(error->detail[0] != '\0' ? error->detail : error->code));
    return data;
}

/* ---- list --------------------------------------------------------------------------------------- */
static int get_copy(struct rpc *rpc, const json_t *filter, const char *key, char *out, size_t size)
{
    const char *text;
    int rc = sk_json_get_string(filter, "filter", key, SK_JSON_NOT_EMPTY, size - 1, &text, NULL, &rpc->err);

    if (rc > 0 && !sk_copy(out, size, text))
        return sk_fail(&rpc->err, SK_ERR_INVALID_REQUEST, "filter.%s is too long", key);
    return rc < 0 ? -1 : 0;
}

static int add_status(struct rpc *rpc, struct sk_list_filter *out, const json_t *value)
{
    enum sk_status status = json_is_string(value) ? sk_status_parse(json_string_value(value)) : SK_STATUS_INVALID;

    if (status == SK_STATUS_INVALID)
        return sk_fail(&rpc->err, SK_ERR_INVALID_REQUEST, "filter.status must name statuses");
    out->statuses |= 1u << status;
    return 0;
}

/* One status or a list of them. */
static int get_statuses(struct rpc *rpc, const json_t *filter, struct sk_list_filter *out)
{
    const json_t *value = json_object_get(filter, "status"), *item;
    size_t index;

    if (value == NULL)
        return 0;
    if (!json_is_array(value))
        return add_status(rpc, out, value);
    json_array_foreach (value, index, item) {
        if (add_status(rpc, out, item) != 0)
            return -1;
    }
    return 0;
}

static int get_filter(struct rpc *rpc, struct sk_list_filter *out)
{
    const json_t *filter = NULL;
    const char *type = NULL;
    bool blocked = false;
    int rc = sk_json_get_object(rpc->request, "", "filter", SK_JSON_NULLABLE, &filter, &rpc->err);

    if (rc <= 0)
        return rc;
    if (get_statuses(rpc, filter, out) != 0 ||
        sk_json_get_string(filter, "filter", "sourceType", 0, 64, &type, NULL, &rpc->err) < 0 ||
        get_copy(rpc, filter, "sourceId", out->source_id, sizeof(out->source_id)) != 0 ||
        get_copy(rpc, filter, "userId", out->user_id, sizeof(out->user_id)) != 0 ||
        get_copy(rpc, filter, "teamId", out->team_id, sizeof(out->team_id)) != 0 ||
        get_copy(rpc, filter, "provider", out->provider, sizeof(out->provider)) != 0 ||
        sk_json_get_time(filter, "filter", "olderThan", 0, &out->older_than, &rpc->err) < 0)
        return -1;
    rc = sk_json_get_bool(filter, "filter", "blocked", 0, &blocked, &rpc->err);
    if (rc < 0)
        return -1;
    out->blocked = rc == 0 ? 0 : blocked ? 1 : 2;
    if (type != NULL) {
        out->source_type = sk_source_type_parse(type, NULL);
        if (out->source_type == SK_SOURCE_NONE)
            return sk_fail(&rpc->err, SK_ERR_INVALID_REQUEST,
                           "filter.sourceType must be app, skillEdit or workflowBuilder");
    }
    return 0;
}

static bool add_item(void *arg, const struct sk_instance *record, const struct sk_event *events, int count)
{
    (void)events;
    (void)count;
    return json_array_append_new(arg, sk_instance_public_json(record)) == 0;
}

static json_t *rpc_list(struct rpc *rpc)
{
    static const char *const sorts[] = {"-lastActiveAt", "lastActiveAt", "-createdAt", "sandboxId", NULL};
    struct sk_list_filter filter;
    const char *cursor = NULL;
    int64_t limit = LIST_LIMIT_DEFAULT;
    int sort = SK_LIST_BY_LAST_ACTIVE_DESC;
    json_t *items = json_array(), *data;
    char *next = NULL;

    memset(&filter, 0, sizeof(filter));
    if (items == NULL || get_filter(rpc, &filter) != 0 ||
        sk_json_get_choice(rpc->request, "", "sort", SK_JSON_NULLABLE, sorts, &sort, &rpc->err) < 0 ||
        sk_json_get_string(rpc->request, "", "cursor", SK_JSON_NULLABLE, CURSOR_MAX, &cursor, NULL, &rpc->err) < 0 ||
        sk_json_get_int(rpc->request, "", "limit", SK_JSON_NULLABLE, 1, LIST_LIMIT_MAX, &limit, &rpc->err) < 0 ||
        rpc->store->ops->list(rpc->store->self, &rpc->call, &filter, (enum sk_list_sort)sort, cursor, (int)limit,
                              add_item, items, &next, &rpc->err) != 0) {
        json_decref(items);
        return NULL;
    }
    data = json_pack("{s:o,s:o}", "items", items, "nextCursor", next != NULL ? sk_json_text(next) : json_null());
    free(next);
    return data;
}

/* ---- timeline ----------------------------------------------------------------------------------- */
static void put_time(json_t *object, const char *key, int64_t at)
{
    char text[SK_TIME_SIZE];

    if (at == 0)
        return;
    sk_time_format(at, text);
    json_object_set_new(object, key, json_string(text));
}

static void put_some(json_t *object, const char *key, const char *text)
{
    if (text[0] != '\0')
        json_object_set_new(object, key, sk_json_text(text));
}

static json_t *entry_json(const struct sk_timeline_entry *e)
{
    json_t *object = json_pack("{s:o,s:s,s:I,s:i}", "operationId", sk_json_text(e->operation_id), "type",
                               sk_op_name(e->type), "epoch", (json_int_t)e->epoch, "attempt", e->attempt);
    json_t *phases = json_array();

    if (object == NULL || phases == NULL) {
        json_decref(object);
        json_decref(phases);
        return NULL;
    }
    json_object_set_new(object, "result", sk_json_text(e->result[0] != '\0' ? e->result : "running"));
    put_some(object, "jobId", e->job_id);
    put_some(object, "owner", e->owner);
    put_some(object, "commandId", e->command_id);
    put_time(object, "startedAt", e->started_at);
    put_time(object, "endedAt", e->ended_at);
    if (e->started_at > 0 && e->ended_at >= e->started_at)
        json_object_set_new(object, "durationMs", json_integer(e->ended_at - e->started_at));
    put_some(object, "reason", e->reason);
    if (e->error.code[0] != '\0' || e->error.detail[0] != '\0')
        json_object_set_new(
            object, "error",
            json_pack("{s:o,s:o}", "code", sk_json_text(e->error.code), "detail", sk_json_text(e->error.detail)));
    for (int i = 0; i < e->phase_count && i < SK_TIMELINE_PHASES_MAX; i++) {
        json_t *phase = json_pack("{s:o}", "name", sk_json_text(e->phases[i].name));

        put_time(phase, "at", e->phases[i].at);
        if (e->phases[i].duration_ms >= 0)
            json_object_set_new(phase, "durationMs", json_integer(e->phases[i].duration_ms));
        json_array_append_new(phases, phase);
    }
    json_object_set_new(object, "phases", phases);
    return object;
}

static json_t *rpc_timeline(struct rpc *rpc)
{
    struct sk_timeline_entry *entries = calloc(SK_TIMELINE_KEEP, sizeof(*entries));
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    int count = SK_TIMELINE_KEEP;
    json_t *items = json_array(), *data = NULL;

    if (entries == NULL || items == NULL)
        sk_fail(&rpc->err, SK_ERR_INTERNAL, "out of memory");
    else if (get_sandbox_id(rpc, SK_JSON_REQUIRED, sandbox_id) > 0 &&
             rpc->store->ops->timeline_list(rpc->store->self, &rpc->call, sandbox_id, entries, &count, &rpc->err) ==
                 0) {
        for (int i = 0; i < count; i++)
            json_array_append_new(items, entry_json(&entries[i]));
        data = json_pack("{s:s,s:O}", "sandboxId", sandbox_id, "items", items);
    }
    json_decref(items);
    free(entries);
    return data;
}

/* ---- stats -------------------------------------------------------------------------------------- */
static json_t *rpc_stats(struct rpc *rpc)
{
    struct sk_stats stats;
    struct lc_gauges gauges;
    json_t *statuses, *counters, *data;

    memset(&stats, 0, sizeof(stats));
    if (rpc->store->ops->stats(rpc->store->self, &rpc->call, &stats, &rpc->err) != 0)
        return NULL;
    lc_replica_gauges(rpc->replica, &gauges);
    statuses = json_object();
    counters = json_object();
    for (int status = SK_STATUS_NONE + 1; status < SK_STATUS_COUNT; status++)
        json_object_set_new(statuses, sk_status_name((enum sk_status)status), json_integer(stats.by_status[status]));
    for (int i = 0; i < LC_COUNTER_COUNT; i++)
        json_object_set_new(counters, lc_counter_name((enum lc_counter)i),
                            json_integer(lc_replica_count(rpc->replica, (enum lc_counter)i)));
    data = json_pack("{s:o,s:I,s:I,s:I,s:I,s:{s:s,s:I,s:I,s:I,s:I,s:o}}", "statuses", statuses, "blocked",
                     (json_int_t)stats.blocked, "pendingOutbox", (json_int_t)stats.pending_outbox, "malformed",
                     (json_int_t)stats.malformed, "oldestTransitionalMs", (json_int_t)stats.oldest_transitional_ms,
                     "replica", "id", rpc->replica->settings.replica_id, "held", (json_int_t)gauges.held,
                     "parkedSandboxes", (json_int_t)gauges.parked_sandboxes, "jobs", (json_int_t)gauges.jobs,
                     "operations", (json_int_t)gauges.operations, "counters", counters);
    return data;
}

/* ---- held: slots and leases, for the doctor ----------------------------------------------------- */
static bool add_slot(void *arg, const struct sk_quota_holding *holding)
{
    struct held *held = arg;
    json_t *slot =
        json_pack("{s:o,s:o}", "scope", sk_json_text(holding->scope), "sandboxId", sk_json_text(holding->sandbox_id));

    if (slot == NULL)
        return false;
    put_time(slot, "takenAt", holding->taken_at);
    sk_copy_cut(held->next, sizeof(held->next), holding->position);
    return json_array_append_new(held->items, slot) == 0;
}

static void add_lease(void *arg, const char *name, int64_t ttl_ms)
{
    struct held *held = arg;

    json_array_append_new(held->items, json_pack("{s:o,s:o}", "name", sk_json_text(name), "ttlMs",
                                                 ttl_ms < 0 ? json_null() : json_integer(ttl_ms)));
}

static int held_slots(struct rpc *rpc, const char *cursor, struct held *held)
{
    return rpc->store->ops->quota_list(rpc->store->self, &rpc->call, cursor, HELD_PAGE, add_slot, held, &rpc->err);
}

static int held_leases(struct rpc *rpc, const char *cursor, struct held *held)
{
    const struct sk_lease_service *lease = rpc->replica->seams.lease;
    char at[SK_LEASE_CURSOR_SIZE], next[SK_LEASE_CURSOR_SIZE];

    if (!sk_copy(at, sizeof(at), cursor))
        return sk_fail(&rpc->err, SK_ERR_INVALID_REQUEST, "cursor is none of ours");
    /* Others' keys are passed over in small steps: a page ends when it is full or took its share of steps. */
    for (int step = 0; step < HELD_STEPS_MAX && json_array_size(held->items) < HELD_PAGE; step++) {
        if (lease->ops->list(lease->self, &rpc->call, at, add_lease, held, next, &rpc->err) != 0)
            return -1;
        memcpy(at, next, sizeof(at));
        if (next[0] == '\0')
            break;
    }
    sk_copy_cut(held->next, sizeof(held->next), at);
    return 0;
}

static json_t *rpc_held(struct rpc *rpc)
{
    static const char *const kinds[] = {"slots", "leases", NULL};
    const struct lc_settings *s = &rpc->replica->settings;
    struct held held = {.items = json_array()};
    const char *cursor = NULL;
    json_t *data = NULL;
    int kind = 0;

    if (held.items != NULL &&
        sk_json_get_choice(rpc->request, "", "kind", SK_JSON_REQUIRED, kinds, &kind, &rpc->err) >= 0 &&
        sk_json_get_string(rpc->request, "", "cursor", SK_JSON_NULLABLE, CURSOR_MAX, &cursor, NULL, &rpc->err) >= 0 &&
        (kind == 0 ? held_slots : held_leases)(rpc, cursor == NULL ? "" : cursor, &held) == 0)
        data = json_pack("{s:O,s:o,s:{s:I,s:I}}", "items", held.items, "nextCursor",
                         held.next[0] != '\0' ? sk_json_text(held.next) : json_null(), "limits", "global",
                         (json_int_t)s->quota_global, "perTeam", (json_int_t)s->quota_per_team);
    json_decref(held.items);
    return data;
}

/* ---- the door ----------------------------------------------------------------------------------- */
static const struct {
    const char *name;
    json_t *(*fn)(struct rpc *rpc);
} methods[] = {
    {"get", rpc_get},       {"find", rpc_find},         {"list", rpc_list},   {"exists", rpc_exists},
    {"status", rpc_status}, {"timeline", rpc_timeline}, {"stats", rpc_stats}, {"held", rpc_held},
};

static json_t *call_method(struct rpc *rpc, const char *method)
{
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        if (strcmp(methods[i].name, method) == 0)
            return methods[i].fn(rpc);
    }
    sk_fail(&rpc->err, SK_ERR_INVALID_REQUEST, "there is no such method");
    return NULL;
}

char *lc_rpc(struct lc_replica *replica, const char *method, const char *body, size_t len)
{
    struct rpc *rpc = calloc(1, sizeof(*rpc));
    json_t *data = NULL, *reply;
    char *text;

    if (rpc == NULL)
        return NULL;
    rpc->replica = replica;
    rpc->store = replica->seams.store;
    sk_call_init(&rpc->call, replica->sched);
    rpc->call.deadline_us = sk_mono_us(replica->sched) + RPC_MS * 1000;
    /* No body is an empty request: `stats` and `list` need none. */
    rpc->request = len > 0 ? sk_json_parse_object(body, len, NULL, &rpc->err) : json_object();
    if (rpc->request != NULL)
        data = call_method(rpc, method);
    if (data == NULL && rpc->err.code == SK_OK)
        sk_fail(&rpc->err, SK_ERR_INTERNAL, "out of memory");
    reply = data != NULL ? json_pack("{s:b,s:o}", "ok", 1, "data", data)
                         : json_pack("{s:b,s:o}", "ok", 0, "error", lc_error_json(&rpc->err, NULL));
    text = reply != NULL ? json_dumps(reply, JSON_COMPACT) : NULL;
    json_decref(reply);
    json_decref(rpc->request);
    free(rpc);
    return text;
}
