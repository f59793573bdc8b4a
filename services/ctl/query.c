/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions to sk-lifecycle (contract/messaging.md §3): get, find, list, stats and stuck. */
#include "services/ctl/ctl.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_DEFAULT     50
#define PAGE_MAX         500
#define PAGES_MAX        2000 /* --all ends here: a million sandboxes */
#define STUCK_DEFAULT_MS 60000

static void print_field(const char *name, const char *value)
{
    if (value[0] != '\0')
        printf("%-14s %s\n", name, ctl_clean(value));
}

static void print_time(const char *name, const json_t *object, const char *path)
{
    const char *time = ctl_text(object, path);

    if (time[0] != '\0')
        printf("%-14s %s  (%s ago)\n", name, ctl_clean(time), ctl_age(time));
}

static void print_operation(const json_t *instance)
{
    const json_t *operation = json_object_get(instance, "operation");

    if (operation == NULL)
        return;
    printf("%-14s %s, phase %s, %lld failed tries\n", "operation", ctl_clean(ctl_text(operation, "type")),
           ctl_clean(ctl_text(operation, "phase")), (long long)ctl_integer(operation, "attempt", 0));
    print_field("  id", ctl_text(operation, "id"));
    print_field("  owner", ctl_text(operation, "owner"));
    print_time("  started", operation, "startedAt");
    print_time("  heartbeat", operation, "heartbeatAt");
    print_field("  next try", ctl_text(operation, "nextAttemptAt"));
    print_field("  blocked", ctl_text(operation, "blocked"));
    print_field("  error", ctl_text(operation, "error"));
    print_field("  error", ctl_text(operation, "error.detail"));
}

static void print_instance(const json_t *instance)
{
    const char *repository = ctl_text(instance, "image.repository"), *tag = ctl_text(instance, "image.tag");

    print_field("sandbox", ctl_text(instance, "sandboxId"));
    print_field("status", ctl_text(instance, "status"));
    print_field("source", ctl_text(instance, "sourceType"));
    print_field("source id", ctl_text(instance, "sourceId"));
    print_field("user", ctl_text(instance, "userId"));
    print_field("team", ctl_text(instance, "teamId"));
    print_field("provider", ctl_text(instance, "provider"));
    if (repository[0] != '\0')
        printf("%-14s %s%s%s\n", "image", ctl_clean(repository), tag[0] != '\0' ? ":" : "", ctl_clean(tag));
    printf("%-14s %lld\n", "epoch", (long long)ctl_integer(instance, "epoch", 0));
    print_time("last active", instance, "lastActiveAt");
    print_time("created", instance, "createdAt");
    print_operation(instance);
    if (json_object_get(instance, "lastOperation") != NULL)
        printf("%-14s %s, %s, %s\n", "last operation", ctl_clean(ctl_text(instance, "lastOperation.type")),
               ctl_clean(ctl_text(instance, "lastOperation.result")),
               ctl_clean(ctl_text(instance, "lastOperation.endedAt")));
}

static int show_instance(const struct ctl *ctl, const json_t *data)
{
    if (ctl->args.json)
        ctl_json(data);
    else
        print_instance(data);
    return CTL_OK;
}

int ctl_get(struct ctl *ctl)
{
    json_t *data = NULL;
    int status = ctl_identity(ctl);

    if (status == 0)
        status = ctl_rpc(ctl, "get", json_pack("{s:s}", "sandboxId", ctl->sandbox_id), &data);
    if (status == 0)
        status = show_instance(ctl, data);
    json_decref(data);
    return status;
}

int ctl_find(struct ctl *ctl)
{
    json_t *data = NULL;
    int status = ctl_identity(ctl);

    if (status == 0)
        status = ctl_rpc(ctl, "find",
                         json_pack("{s:s, s:s, s:s}", "sourceType", sk_source_type_name(ctl->identity.source_type),
                                   "sourceId", ctl->identity.source_id, "userId", ctl->identity.user_id),
                         &data);
    if (status == 0 && json_is_null(data)) {
        if (ctl->args.json)
            ctl_json(data);
        ctl_complain("sandbox_not_found: %s", ctl->sandbox_id);
        status = CTL_NOT_FOUND;
    } else if (status == 0) {
        status = show_instance(ctl, data);
    }
    json_decref(data);
    return status;
}

/* ---- list ---- */
static json_t *filter_json(const struct ctl_args *args)
{
    json_t *filter = json_object();
    const struct {
        const char *name, *value;
    } texts[] = {{"status", args->status},      {"sourceType", args->source_type},
                 {"sourceId", args->source_id}, {"userId", args->user},
                 {"teamId", args->team},        {"provider", args->provider}};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i].value != NULL)
            json_object_set_new(filter, texts[i].name, json_string(texts[i].value));
    }
    if (args->blocked)
        json_object_set_new(filter, "blocked", json_true());
    if (args->older_than_ms >= 0) {
        char time[SK_TIME_SIZE];
        sk_time_format(sk_wall_ms(&sk_sched_system) - args->older_than_ms, time);
        json_object_set_new(filter, "olderThan", json_string(time));
    }
    return filter;
}

/* Reads pages from `cursor` on into *items (a new array): one, or all. *next is what the last page said (may be NULL).
 */
static int read_pages(struct ctl *ctl, json_t *filter, const char *cursor, int64_t limit, bool all, json_t **items,
                      char **next)
{
    int status = 0;

    *items = json_array();
    *next = cursor != NULL ? strdup(cursor) : NULL;
    for (int page = 0; page < PAGES_MAX; page++) {
        json_t *data = NULL, *request = json_pack("{s:O, s:I}", "filter", filter, "limit", (json_int_t)limit);
        if (*next != NULL)
            json_object_set_new(request, "cursor", json_string(*next));
        if (ctl->args.sort != NULL)
            json_object_set_new(request, "sort", json_string(ctl->args.sort));
        status = ctl_rpc(ctl, "list", request, &data);
        free(*next);
        *next = NULL;
        if (status != 0)
            break;
        json_array_extend(*items, json_object_get(data, "items"));
        if (ctl_text(data, "nextCursor")[0] != '\0')
            *next = strdup(ctl_text(data, "nextCursor"));
        json_decref(data);
        if (*next == NULL || !all || ctl_interrupted)
            break;
    }
    json_decref(filter);
    return status != 0 ? status : ctl_interrupted && *next != NULL ? ctl_say_interrupted("there are more pages") : 0;
}

static void print_list(const json_t *items)
{
    static const char *const heads[] = {"SANDBOX", "STATUS", "OPERATION", "ACTIVE", "SOURCE", "SOURCE ID", "USER"};
    struct ctl_table *table = ctl_table_new(heads, 7);
    size_t i;
    json_t *item;

    json_array_foreach (items, i, item) {
        char operation[128] = "", active[64];
        if (json_object_get(item, "operation") != NULL)
            snprintf(operation, sizeof(operation), "%s%s", ctl_text(item, "operation.phase"),
                     ctl_text(item, "operation.blocked")[0] != '\0' ? " BLOCKED" : "");
        snprintf(active, sizeof(active), "%s ago", ctl_age(ctl_text(item, "lastActiveAt")));
        const char *const cells[] = {
            ctl_text(item, "sandboxId"), ctl_text(item, "status"), operation, active, ctl_text(item, "sourceType"),
            ctl_text(item, "sourceId"),  ctl_text(item, "userId")};
        ctl_table_row(table, cells);
    }
    ctl_table_print(table, stdout);
}

int ctl_list(struct ctl *ctl)
{
    const struct ctl_args *args = &ctl->args;
    int64_t limit = args->limit > 0 ? args->limit : args->all ? PAGE_MAX : PAGE_DEFAULT;
    json_t *items = NULL;
    char *next = NULL;
    int status;

    if (limit > PAGE_MAX)
        return ctl_usage(ctl, "--limit: must be between 1 and %d", PAGE_MAX);
    status = read_pages(ctl, filter_json(args), args->cursor, limit, args->all, &items, &next);
    if (status == 0 && args->json) {
        json_t *document =
            json_pack("{s:O, s:o}", "items", items, "nextCursor", next != NULL ? json_string(next) : json_null());
        ctl_json(document);
        json_decref(document);
    } else if (status == 0) {
        print_list(items);
        if (next != NULL)
            ctl_note(ctl, "more: --cursor=%s", next);
    }
    free(next);
    json_decref(items);
    return status;
}

/* ---- stuck ---- */
/* Why this record deserves a look, or NULL. */
static const char *stuck_reason(const json_t *item, int64_t silent_ms)
{
    const json_t *operation = json_object_get(item, "operation");
    int64_t beat, now = sk_wall_ms(&sk_sched_system);

    if (operation == NULL)
        return NULL;
    if (ctl_text(operation, "blocked")[0] != '\0')
        return "blocked";
    if (ctl_integer(operation, "attempt", 0) > 0)
        return "retrying";
    if (!sk_time_parse(ctl_text(operation, "heartbeatAt"), &beat) || now - beat >= silent_ms)
        return "silent";
    return NULL;
}

static const char *stuck_advice(const char *reason)
{
    if (strcmp(reason, "blocked") == 0)
        return "skctl recover";
    return strcmp(reason, "retrying") == 0 ? "wait, or look at the error" : "is a sk-lifecycle running?";
}

static json_t *transitional_statuses(void)
{
    json_t *statuses = json_array();

#define SK_STATUS(name, wire, stable, counts, operation)                                                               \
    if (!(stable))                                                                                                     \
        json_array_append_new(statuses, json_string(wire));
#define SK_OPERATION(...)
#define SK_PHASE(...)
#define SK_CLAIM(...)
#include "proto/states.def"
#undef SK_STATUS
#undef SK_OPERATION
#undef SK_PHASE
#undef SK_CLAIM
    return statuses;
}

static void stuck_row(struct ctl_table *table, const json_t *item, const char *why)
{
    const char *blocked = ctl_text(item, "operation.blocked"), *error = ctl_text(item, "operation.error"), *status,
               *phase, *id;
    char tries[24], beat[64], reason[1024];

    if (error[0] == '\0')
        error = ctl_text(item, "operation.error.detail");
    /* Why it gave up, and over what: the second is what an operator can mend. */
    snprintf(reason, sizeof(reason), "%s%s%s", blocked, blocked[0] != '\0' && error[0] != '\0' ? "; " : "", error);
    snprintf(tries, sizeof(tries), "%lld", (long long)ctl_integer(item, "operation.attempt", 0));
    snprintf(beat, sizeof(beat), "%s ago", ctl_age(ctl_text(item, "operation.heartbeatAt")));
    id = ctl_text(item, "sandboxId");
    status = ctl_text(item, "status");
    phase = ctl_text(item, "operation.phase");
    const char *const cells[] = {id, status, phase, why, tries, beat, reason, stuck_advice(why)};
    ctl_table_row(table, cells);
}

int ctl_stuck(struct ctl *ctl)
{
    static const char *const heads[] = {"SANDBOX", "STATUS",    "PHASE",  "WHY",
                                        "TRIES",   "HEARTBEAT", "REASON", "WHAT TO DO"};
    int64_t silent_ms = ctl->args.older_than_ms >= 0 ? ctl->args.older_than_ms : STUCK_DEFAULT_MS;
    struct ctl_table *table = ctl_table_new(heads, 8);
    json_t *items = NULL, *item, *stuck = json_array();
    char *next = NULL;
    size_t i;
    int status =
        read_pages(ctl, json_pack("{s:o}", "status", transitional_statuses()), NULL, PAGE_MAX, true, &items, &next);

    json_array_foreach (items, i, item) {
        const char *why = stuck_reason(item, silent_ms);
        if (why == NULL)
            continue;
        stuck_row(table, item, why);
        json_array_append_new(stuck, json_pack("{s:s, s:s, s:O}", "sandboxId", ctl_text(item, "sandboxId"), "why", why,
                                               "instance", item));
    }
    if (status == 0 && ctl->args.json) {
        json_t *document = json_pack("{s:O}", "items", stuck);
        ctl_json(document);
        json_decref(document);
    } else if (status == 0 && json_array_size(stuck) == 0) {
        ctl_note(ctl, "nothing is stuck");
    } else if (status == 0) {
        ctl_table_print(table, stdout);
        table = NULL;
    }
    ctl_table_free(table);
    free(next);
    json_decref(items);
    json_decref(stuck);
    return status;
}

/* ---- stats ---- */
static void print_numbers(const char *prefix, json_t *object)
{
    const char *name;
    json_t *value;

    json_object_foreach (object, name, value) {
        char label[128];
        snprintf(label, sizeof(label), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", name);
        if (json_is_object(value))
            print_numbers(label, value);
        else if (json_is_string(value))
            printf("%-32s %s\n", ctl_clean(label), ctl_clean(json_string_value(value)));
        else if (json_is_number(value))
            printf("%-32s %.15g\n", ctl_clean(label), json_number_value(value));
        else if (json_is_boolean(value))
            printf("%-32s %s\n", ctl_clean(label), json_is_true(value) ? "yes" : "no");
    }
}

int ctl_stats(struct ctl *ctl)
{
    json_t *data = NULL;
    int status = ctl_rpc(ctl, "stats", json_object(), &data);

    if (status == 0 && ctl->args.json)
        ctl_json(data);
    else if (status == 0)
        print_numbers("", data);
    json_decref(data);
    return status;
}
