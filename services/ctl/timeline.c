/* SPDX-License-Identifier: Apache-2.0
 *
 * The timeline of a sandbox: its last operations, oldest first, each with who did it under which epoch and how long
 * each phase took. A take-over shows as two entries of one job: the silent owner's and the one that finished it. */
#include "services/ctl/ctl.h"

#include <string.h>

static void print_phases(const json_t *entry)
{
    json_t *phase;
    size_t i;

    json_array_foreach (json_object_get(entry, "phases"), i, phase) {
        int64_t took = ctl_integer(phase, "durationMs", -1);
        printf("      %-24s %s%s%s\n", ctl_clean(ctl_text(phase, "name")), ctl_clean(ctl_text(phase, "at")),
               took >= 0 ? "  after " : "", took >= 0 ? ctl_duration(took) : "");
    }
}

static void print_entry(const json_t *entry)
{
    const char *result = ctl_text(entry, "result"), *ended = ctl_text(entry, "endedAt");
    int64_t start, end;

    printf("%s  %-16s epoch %lld  %s", ctl_clean(ctl_text(entry, "startedAt")), ctl_clean(ctl_text(entry, "type")),
           (long long)ctl_integer(entry, "epoch", 0),
           strcmp(result, "running") != 0 ? ctl_clean(result) : "in progress");
    if (sk_time_parse(ctl_text(entry, "startedAt"), &start) && sk_time_parse(ended, &end))
        printf(" in %s", ctl_duration(end - start));
    if (ctl_integer(entry, "attempt", 0) > 0)
        printf(", %lld failed tries", (long long)ctl_integer(entry, "attempt", 0));
    putchar('\n');
    printf("      operation %s  by %s", ctl_clean(ctl_text(entry, "operationId")), ctl_clean(ctl_text(entry, "owner")));
    if (ctl_text(entry, "commandId")[0] != '\0')
        printf("  for command %s", ctl_clean(ctl_text(entry, "commandId")));
    putchar('\n');
    print_phases(entry);
    if (ctl_text(entry, "reason")[0] != '\0')
        printf("      reason: %s\n", ctl_clean(ctl_text(entry, "reason")));
    if (ctl_text(entry, "error.code")[0] != '\0')
        printf("      error: %s: %s\n", ctl_clean(ctl_text(entry, "error.code")),
               ctl_clean(ctl_text(entry, "error.detail")));
    else if (ctl_text(entry, "error")[0] != '\0')
        printf("      error: %s\n", ctl_clean(ctl_text(entry, "error")));
}

int ctl_timeline(struct ctl *ctl)
{
    json_t *data = NULL;
    const json_t *items;
    int status = ctl_identity(ctl);

    if (status == 0)
        status = ctl_rpc(ctl, "timeline", json_pack("{s:s}", "sandboxId", ctl->sandbox_id), &data);
    if (status != 0)
        return status;
    items = json_is_array(data) ? data : json_object_get(data, "items");
    if (ctl->args.json)
        ctl_json(data);
    else if (json_array_size(items) == 0)
        ctl_note(ctl, "no operation is known for %s", ctl->sandbox_id);
    else
        for (size_t i = json_array_size(items); i-- > 0;) /* the answer is newest first */
            print_entry(json_array_get(items, i));
    json_decref(data);
    return CTL_OK;
}
