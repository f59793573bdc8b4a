/* SPDX-License-Identifier: Apache-2.0
 *
 * `skctl doctor`: the invariants of common/check on live data. Reads provider objects and volumes first and records
 * last, as the checker wants it; what a first look finds must be there in a second one too. Reads only, unless --repair
 * is given: then each finding that has a safe repair is offered. */
#include "services/ctl/provider.h"

#include "common/check/check.h"
#include "common/http/client.h"
#include "common/http/url.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE        200
#define RECORD_PAGE 500
#define PAGES_MAX   5000
#define CONFIRM_MS  1500 /* between the two looks */

struct look {
    struct sk_remote *remotes;
    size_t remote_count;
    struct sk_check_volume *volumes;
    size_t volume_count;
    bool volumes_known;
    struct sk_check_record *records;
    size_t record_count;
    size_t unreadable;         /* answers of `list` that are no record */
    size_t unreadable_remotes; /* objects of the provider that make no sense */
};

static void look_fini(struct look *look)
{
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

static int read_remotes(struct ctl *ctl, struct ctl_provider *provider, struct look *look)
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
static int read_volume_page(struct ctl *ctl, struct ctl_provider *provider, struct look *look,
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
static int read_volumes(struct ctl *ctl, struct ctl_provider *provider, struct look *look)
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

static int read_records(struct ctl *ctl, struct look *look)
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

static int take_look(struct ctl *ctl, struct ctl_provider *provider, struct look *look, struct sk_check_report *report)
{
    struct sk_check_snapshot snapshot = {.grace = sk_check_grace_defaults};
    int64_t grace = ctl->args.grace_ms;
    int status = 0;

    memset(look, 0, sizeof(*look));
    if (grace >= 0)
        snapshot.grace = (struct sk_check_grace){grace, grace, grace, grace, grace};
    if (provider->open)
        status = read_remotes(ctl, provider, look);
    if (status == 0 && provider->open)
        status = read_volumes(ctl, provider, look);
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
    return sk_check_run(&snapshot, report) == 0 ? 0 : out_of_memory();
}

/* ---- repair ---- */
struct repair {
    enum sk_check check;
    const char *op;     /* command, or NULL: remove the provider object named by the finding */
    const char *action; /* recover's action */
    const char *text;
};

static const struct repair repairs[] = {
    {SK_CHECK_OPERATION_BLOCKED, "recover", "retry", "try the blocked operation again"},
    {SK_CHECK_OPERATION_STUCK, "recover", "retry", "claim the operation again"},
    {SK_CHECK_REMOTE_MISSING, "stop", NULL,
     "stop it: the record becomes stopped, the next ensure starts it with the same workspace"},
    {SK_CHECK_REMOTE_OF_STOPPED, NULL, NULL, "remove the object at the provider (the workspace is not touched)"},
    {SK_CHECK_REMOTE_ORPHAN, NULL, NULL, "remove the object at the provider (volumes are not touched)"},
};

static const struct repair *repair_of(const struct sk_check_finding *finding)
{
    for (size_t i = 0; i < sizeof(repairs) / sizeof(repairs[0]); i++) {
        if (repairs[i].check == finding->check &&
            (repairs[i].op != NULL ? finding->sandbox_id[0] != '\0' : finding->subject[0] != '\0'))
            return &repairs[i];
    }
    return NULL;
}

static bool agreed(const struct ctl *ctl, const struct sk_check_finding *finding, const struct repair *repair)
{
    char answer[16] = "";

    fprintf(stderr, "%s %s: %s? [y/N] ", finding->sandbox_id, sk_check_name(finding->check), repair->text);
    if (ctl->args.yes) {
        fputs("yes\n", stderr);
        return true;
    }
    fflush(stderr);
    if (fgets(answer, sizeof(answer), stdin) == NULL)
        fputc('\n', stderr);
    return answer[0] == 'y' || answer[0] == 'Y';
}

/* Returns how many findings are left. */
static size_t repair_all(struct ctl *ctl, struct ctl_provider *provider, const struct sk_check_report *report)
{
    size_t left = 0;

    for (size_t i = 0; i < report->count; i++) {
        const struct sk_check_finding *finding = &report->findings[i];
        const struct repair *repair = repair_of(finding);
        struct sk_error err = {0};
        bool done = false, gone;
        if (ctl_interrupted) {
            /* counted only */
        } else if (repair == NULL) {
            ctl_note(ctl, "%s %s: no safe repair is known, a person has to look", finding->sandbox_id,
                     sk_check_name(finding->check));
        } else if (!agreed(ctl, finding, repair)) {
            ctl_note(ctl, "left as it is");
        } else if (repair->op != NULL) {
            ctl->args.action = repair->action;
            sk_copy_cut(ctl->sandbox_id, sizeof(ctl->sandbox_id), finding->sandbox_id);
            done = ctl_send(ctl, repair->op) == CTL_OK;
        } else if (provider->provider.ops->remove(provider->provider.self, &provider->call, finding->subject, &gone,
                                                  &err) != 0) {
            ctl_provider_error(ctl, &err);
        } else {
            printf("%s  removed at the provider\n", finding->subject);
            done = true;
        }
        left += done ? 0 : 1;
    }
    return left;
}

/* ---- output ---- */
static void print_json(const struct sk_check_report *report)
{
    json_t *findings = json_array(), *document;

    for (size_t i = 0; i < report->count; i++) {
        const struct sk_check_finding *finding = &report->findings[i];
        json_array_append_new(findings,
                              json_pack("{s:o, s:s, s:s}", "sandboxId",
                                        finding->sandbox_id[0] != '\0' ? json_string(finding->sandbox_id) : json_null(),
                                        "invariant", sk_check_name(finding->check), "detail", finding->detail));
    }
    document = json_pack("{s:o}", "findings", findings);
    ctl_json(document);
    json_decref(document);
}

static void print_people(const struct ctl *ctl, const struct look *look, bool provider,
                         const struct sk_check_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct sk_check_finding *finding = &report->findings[i];
        printf("%-9s %s  %s: %s\n          %s\n",
               sk_check_severity(finding->check) == SK_CHECK_VIOLATION ? "VIOLATION" : "ATTENTION",
               finding->sandbox_id[0] != '\0' ? ctl_clean(finding->sandbox_id) : "-", sk_check_name(finding->check),
               ctl_clean(finding->detail), sk_check_meaning(finding->check));
    }
    printf("%zu records", look->record_count);
    if (provider)
        printf(", %zu provider objects", look->remote_count);
    if (look->volumes_known)
        printf(", %zu volumes", look->volume_count);
    printf(": %zu finding%s\n", report->count, report->count == 1 ? "" : "s");
    if (look->unreadable > 0)
        ctl_note(ctl, "%zu answers of the service were no records", look->unreadable);
    if (look->unreadable_remotes > 0)
        ctl_note(ctl, "%zu objects at the provider cannot be read and are not judged", look->unreadable_remotes);
    if (report->dropped > 0)
        ctl_note(ctl, "%zu more findings are not shown", report->dropped);
}

int ctl_doctor(struct ctl *ctl)
{
    struct ctl_provider provider = {0};
    struct sk_check_report first, second, *report = &first;
    struct look look = {0};
    int status = 0;

    if (ctl->args.repair && ctl->args.json)
        return ctl_usage(ctl, "--repair talks to a person: it does not go with --json");
    sk_check_report_init(&first);
    sk_check_report_init(&second);
    if (ctl->config.localbox_url[0] == '\0' && ctl->config.provider_url[0] == '\0')
        ctl_note(ctl, "no provider is configured (SANDKEEP_LOCALBOX_URL): only records are judged");
    else
        status = ctl_provider_open(ctl, &provider);
    if (status == 0)
        status = take_look(ctl, &provider, &look, &first);
    if (status == 0 && first.count > 0) { /* a live system moves: only what stays counts */
        look_fini(&look);
        ctl_sleep(CONFIRM_MS);
        status = take_look(ctl, &provider, &look, &second);
        sk_check_confirm(&first, &second);
        report = &second;
    }
    if (status == 0) {
        size_t left = report->count;
        if (ctl->args.json)
            print_json(report);
        else
            print_people(ctl, &look, provider.open, report);
        if (ctl->args.repair)
            left = repair_all(ctl, &provider, report);
        status = left > 0 || report->dropped > 0 ? CTL_FAILED : CTL_OK;
        if (ctl->args.repair && ctl_interrupted)
            status = ctl_say_interrupted("%zu findings are left as they are", left);
    }
    look_fini(&look);
    sk_check_report_fini(&first);
    sk_check_report_fini(&second);
    ctl_provider_close(&provider);
    return status;
}
