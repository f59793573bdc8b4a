/* SPDX-License-Identifier: Apache-2.0
 *
 * One look of the doctor: everything that may explain a record is read before the records, as the checker wants it. */
#include "services/ctl/look.h"

#include "common/http/client.h"
#include "common/http/url.h"

#include <stdlib.h>
#include <string.h>

#define PAGE        200
#define RECORD_PAGE 500
#define PAGES_MAX   5000

void ctl_look_fini(struct ctl_look *look)
{
    for (size_t i = 0; i < look->lease_count; i++)
        free((char *)look->leases[i].name);
    free(look->leases);
    free(look->slots);
    free(look->events);
    free(look->remotes);
    free(look->volumes);
    free(look->records);
    memset(look, 0, sizeof(*look));
}

static int out_of_memory(void)
{
    ctl_complain("out of memory");
    return CTL_FAILED;
}

static int read_remotes(struct ctl *ctl, struct ctl_provider *provider, struct ctl_look *look)
{
    bool more = true;

    for (int page = 1; more && page <= PAGES_MAX; page++) {
        struct sk_error err = {0};
        int count = 0, unreadable = 0;
        struct sk_remote *grown = realloc(look->remotes, (look->remote_count + PAGE) * sizeof(*grown));
        if (grown == NULL)
            return out_of_memory();
        look->remotes = grown;
        if (provider->provider.ops->list(provider->provider.self, &provider->call, page, grown + look->remote_count,
                                         PAGE, &count, &unreadable, &more, &err) != 0)
            return ctl_provider_error(ctl, &err);
        look->remote_count += (size_t)count;
        look->unreadable_remotes += (size_t)unreadable;
    }
    return 0;
}

/* One entry of sk-localbox's list: {claimName, createdAt}. */
static bool read_volume(const json_t *item, struct sk_check_volume *out)
{
    const char *name = ctl_text(item, "claimName");

    memset(out, 0, sizeof(*out));
    if (!sk_time_parse(ctl_text(item, "createdAt"), &out->created_at))
        out->created_at = 0;
    return name[0] != '\0' && sk_copy(out->claim_name, sizeof(out->claim_name), name);
}

/* One page of volumes after *after. Returns 0 with *more, -1 when the manager cannot list, else an exit status. */
static int read_volume_page(struct ctl *ctl, struct ctl_provider *provider, struct ctl_look *look,
                            char after[SK_CLAIM_NAME_SIZE], bool *more)
{
    char authorization[1024];
    struct sk_http_header header = {"Authorization", authorization};
    struct sk_http_request request = {
        .method = "GET", .headers = &header, .header_count = 1, .body_max = CTL_ANSWER_MAX};
    struct sk_http_response response;
    struct sk_http_client *client = sk_http_call_client(&provider->call, NULL);
    struct sk_url_builder builder;
    struct sk_error err = {0};
    json_t *document = NULL;
    const json_t *items;
    char *url;
    int status = -1;

    sk_url_begin(&builder, provider->volumes_url);
    sk_url_segment(&builder, "v1");
    sk_url_segment(&builder, "volumes");
    if (after[0] != '\0')
        sk_url_query(&builder, "after", after);
    url = sk_url_take(&builder);
    if (client == NULL || url == NULL) {
        free(url);
        return out_of_memory();
    }
    request.url = url;
    snprintf(authorization, sizeof(authorization), "Bearer %s", provider->volumes_token);
    if (sk_http_request(client, &provider->call, &request, &response, &err) != 0) {
        status = ctl_provider_error(ctl, &err);
    } else if (response.status == 200) {
        document = json_loadb(response.body, response.body_len, 0, NULL);
        items = json_object_get(document, "items");
        if (json_is_array(items)) {
            struct sk_check_volume *grown =
                realloc(look->volumes, (look->volume_count + json_array_size(items) + 1) * sizeof(*grown));
            status = grown != NULL ? 0 : out_of_memory();
            look->volumes = grown != NULL ? grown : look->volumes;
            for (size_t i = 0; status == 0 && i < json_array_size(items); i++)
                look->volume_count += read_volume(json_array_get(items, i), &look->volumes[look->volume_count]) ? 1 : 0;
            *more = sk_copy(after, SK_CLAIM_NAME_SIZE, ctl_text(document, "next")) && after[0] != '\0';
        }
        json_decref(document);
    }
    sk_http_response_fini(&response);
    free(url);
    return status;
}

/* Only sk-localbox's volume manager can list: elsewhere volumes are not judged. */
static int read_volumes(struct ctl *ctl, struct ctl_provider *provider, struct ctl_look *look)
{
    char after[SK_CLAIM_NAME_SIZE] = "";
    bool more = true;
    int status = 0;

    if (provider->volumes_url[0] == '\0')
        return 0;
    for (int page = 0; more && status == 0 && page < PAGES_MAX; page++) {
        more = false;
        status = read_volume_page(ctl, provider, look, after, &more);
    }
    if (status < 0)
        ctl_note(ctl, "the volume manager does not list volumes: they are not judged");
    look->volumes_known = status == 0;
    return status > 0 ? status : 0;
}

static int read_records(struct ctl *ctl, struct ctl_look *look)
{
    char *cursor = NULL;
    int status = 0;

    for (int page = 0; page < PAGES_MAX; page++) {
        /* By id: a record whose times are broken stands in no order of times. */
        json_t *data = NULL, *request = json_pack("{s:i, s:s}", "limit", RECORD_PAGE, "sort", "sandboxId"), *item;
        struct sk_check_record *grown;
        const json_t *items;
        size_t i;
        if (cursor != NULL)
            json_object_set_new(request, "cursor", json_string(cursor));
        free(cursor);
        cursor = NULL;
        status = ctl_rpc(ctl, "list", request, &data);
        if (status != 0)
            return status;
        items = json_object_get(data, "items");
        grown = realloc(look->records, (look->record_count + json_array_size(items) + 1) * sizeof(*grown));
        if (grown == NULL) {
            json_decref(data);
            return out_of_memory();
        }
        look->records = grown;
        json_array_foreach (items, i, item) {
            if (sk_check_record_parse(&look->records[look->record_count], item))
                look->record_count++;
            else
                look->unreadable++;
        }
        if (ctl_text(data, "nextCursor")[0] != '\0')
            cursor = strdup(ctl_text(data, "nextCursor"));
        json_decref(data);
        if (cursor == NULL)
            return 0;
        if (ctl_interrupted)
            break;
    }
    free(cursor);
    if (ctl_interrupted)
        return ctl_say_interrupted("not all records were read");
    ctl_complain("more records than doctor looks at in one go");
    return CTL_FAILED;
}

/* ---- slots and leases ---- */
static bool add_slot(struct ctl_look *look, const json_t *item)
{
    struct sk_check_slot *grown = realloc(look->slots, (look->slot_count + 1) * sizeof(*grown)), *slot;

    if (grown == NULL)
        return false;
    look->slots = grown;
    slot = &grown[look->slot_count];
    memset(slot, 0, sizeof(*slot));
    if (!sk_copy(slot->scope, sizeof(slot->scope), ctl_text(item, "scope")) ||
        !sk_copy(slot->sandbox_id, sizeof(slot->sandbox_id), ctl_text(item, "sandboxId")) || slot->scope[0] == '\0')
        return true; /* none of ours */
    if (!sk_time_parse(ctl_text(item, "takenAt"), &slot->taken_at))
        slot->taken_at = 0;
    look->slot_count++;
    return true;
}

static bool add_lease(struct ctl_look *look, const json_t *item)
{
    const char *name = ctl_text(item, "name");
    struct sk_check_lease *grown;

    for (size_t i = 0; i < look->lease_count; i++) {
        if (strcmp(look->leases[i].name, name) == 0)
            return true; /* listed twice */
    }
    grown = realloc(look->leases, (look->lease_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return false;
    look->leases = grown;
    grown[look->lease_count] = (struct sk_check_lease){.name = strdup(name), .ttl_ms = ctl_integer(item, "ttlMs", -1)};
    if (grown[look->lease_count].name == NULL)
        return false;
    look->lease_count++;
    return true;
}

/* All pages of `held`. *known = the service told. */
static int read_held(struct ctl *ctl, struct ctl_look *look, const char *kind, const char *unjudged,
                     bool (*add)(struct ctl_look *look, const json_t *item), bool *known)
{
    char *cursor = NULL;
    int status = 0;

    *known = false;
    for (int page = 0; page < PAGES_MAX && status == 0; page++) {
        json_t *data = NULL, *request = json_pack("{s:s}", "kind", kind), *item;
        size_t i;

        if (cursor != NULL)
            json_object_set_new(request, "cursor", json_string(cursor));
        free(cursor);
        cursor = NULL;
        status = ctl_rpc_optional(ctl, "held", unjudged, request, &data);
        if (status != 0 || data == NULL)
            break;
        json_array_foreach (json_object_get(data, "items"), i, item) {
            if (!add(look, item)) {
                status = out_of_memory();
                break;
            }
        }
        look->quota_global = ctl_integer(data, "limits.global", 0);
        look->quota_per_team = ctl_integer(data, "limits.perTeam", 0);
        if (ctl_text(data, "nextCursor")[0] != '\0')
            cursor = strdup(ctl_text(data, "nextCursor"));
        json_decref(data);
        *known = cursor == NULL && status == 0;
        if (cursor == NULL)
            break;
    }
    free(cursor);
    return status;
}

int ctl_look_take(struct ctl *ctl, struct ctl_provider *provider, struct ctl_look *look, struct sk_check_report *report)
{
    struct sk_check_snapshot snapshot = {.grace = sk_check_grace_defaults};
    int64_t grace = ctl->args.grace_ms;
    int status = 0;

    memset(look, 0, sizeof(*look));
    if (grace >= 0)
        snapshot.grace = (struct sk_check_grace){grace, grace, grace, grace, grace, grace};
    if (provider->open)
        status = read_remotes(ctl, provider, look);
    if (status == 0 && provider->open)
        status = read_volumes(ctl, provider, look);
    if (status == 0)
        status = read_held(ctl, look, "slots", "quota slots", add_slot, &look->slots_known);
    if (status == 0)
        status = read_held(ctl, look, "leases", "leases", add_lease, &look->leases_known);
    if (status == 0)
        status = ctl_look_events(ctl, look);
    if (status == 0)
        status = ctl_look_code(ctl, look);
    if (status == 0)
        status = read_records(ctl, look);
    if (status != 0)
        return status;
    snapshot.now_ms = sk_wall_ms(&sk_sched_system);
    snapshot.records = look->records;
    snapshot.record_count = look->record_count;
    snapshot.records_complete = true;
    snapshot.remotes_known = provider->open;
    snapshot.remotes = look->remotes;
    snapshot.remote_count = look->remote_count;
    snapshot.remotes_provider = provider->open ? provider->provider.ops->name : NULL;
    snapshot.volumes_known = look->volumes_known;
    snapshot.volumes = look->volumes;
    snapshot.volume_count = look->volume_count;
    snapshot.slots_known = look->slots_known;
    snapshot.slots = look->slots;
    snapshot.slot_count = look->slot_count;
    snapshot.quota_global = look->quota_global;
    snapshot.quota_per_team = look->quota_per_team;
    snapshot.leases_known = look->leases_known;
    snapshot.leases = look->leases;
    snapshot.lease_count = look->lease_count;
    snapshot.history_known = look->events_known;
    snapshot.history = look->events;
    snapshot.history_count = look->event_count;
    snapshot.code_trouble = look->code_trouble[0] != '\0' ? look->code_trouble : NULL;
    snapshot.foreign_writers = true; /* FastGPT may write records at any time, and writes no events */
    return sk_check_run(&snapshot, report) == 0 ? 0 : out_of_memory();
}
