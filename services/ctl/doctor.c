/* SPDX-License-Identifier: Apache-2.0
 *
 * `skctl doctor`: the invariants of common/check on live data. Reads provider objects and volumes first and records
 * last, as the checker wants it; what a first look finds must be there in a second one too. Reads only, unless --repair
 * is given: then each finding that has a safe repair is offered. */
#include "services/ctl/look.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIRM_MS 1500 /* between the two looks */

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

static void print_people(const struct ctl *ctl, const struct ctl_look *look, bool provider,
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
    if (look->slots_known)
        printf(", %zu quota slots", look->slot_count);
    if (look->leases_known)
        printf(", %zu leases", look->lease_count);
    if (look->events_known)
        printf(", %zu events", look->event_count);
    if (look->code_asked && look->code_trouble[0] == '\0')
        printf(", code sandbox ready");
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
    struct ctl_look look = {0};
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
        status = ctl_look_take(ctl, &provider, &look, &first);
    if (status == 0 && first.count > 0) { /* a live system moves: only what stays counts */
        ctl_look_fini(&look);
        ctl_sleep(CONFIRM_MS);
        status = ctl_look_take(ctl, &provider, &look, &second);
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
    ctl_look_fini(&look);
    sk_check_report_fini(&first);
    sk_check_report_fini(&second);
    ctl_provider_close(&provider);
    return status;
}
