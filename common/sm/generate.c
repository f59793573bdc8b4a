/* SPDX-License-Identifier: Apache-2.0
 *
 * Build-time generator: writes what others read of the state table. `json FILE` is the list that tests (and the
 * dashboard) iterate over, `markdown FILE` is docs/state-machine.md. Everything is asked of common/sm, so the page can
 * not say anything else than the code does. */
#include "common/sm/sm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *yes_no(bool value)
{
    return value ? "yes" : "no";
}

static const char *json_bool(bool value)
{
    return value ? "true" : "false";
}

/* How a terminal or compensated status is written for people. */
static const char *target_name(enum sk_status status)
{
    if (status == SK_STATUS_NONE)
        return "record removed";
    return status == SK_STATUS_COUNT ? "previousStatus" : sk_status_name(status);
}

static void write_json_target(FILE *out, const char *key, enum sk_status status)
{
    if (status == SK_STATUS_NONE)
        fprintf(out, ", \"%s\": null", key);
    else
        fprintf(out, ", \"%s\": \"%s\"", key, target_name(status));
}

static void write_json(FILE *out)
{
    const char *separator = "";

    fputs("{\n  \"statuses\": [", out);
    for (int s = SK_STATUS_NONE + 1; s < SK_STATUS_COUNT; s++) {
        const struct sk_status_info *info = sk_status_info((enum sk_status)s);

        fprintf(out,
                "%s\n    {\"name\": \"%s\", \"stable\": %s, \"countsForQuota\": %s, \"operation\": ", s > 1 ? "," : "",
                info->name, json_bool(info->stable), json_bool(info->counts_for_quota));
        if (info->operation == SK_OP_NONE)
            fputs("null}", out);
        else
            fprintf(out, "\"%s\"}", sk_op_name(info->operation));
    }
    fputs("\n  ],\n  \"operations\": [", out);
    for (int o = SK_OP_NONE + 1; o < SK_OP_COUNT; o++) {
        const struct sk_op_info *info = sk_op_info((enum sk_op)o);

        fprintf(out, "%s\n    {\"name\": \"%s\", \"transitional\": \"%s\"", o > 1 ? "," : "", info->name,
                sk_status_name(info->transitional));
        write_json_target(out, "terminal", info->terminal);
        write_json_target(out, "compensated", info->compensated);
        fprintf(out, ", \"available\": %s,\n     \"phases\": [", json_bool(info->available));
        for (int p = 0; p < info->phase_count; p++)
            fprintf(out, "%s{\"name\": \"%s\", \"deadlineMs\": %lld}", p > 0 ? ", " : "", info->phases[p].name,
                    (long long)info->phases[p].deadline_ms);
        fputs("],\n     \"claimableFrom\": [", out);
        separator = "";
        for (int s = 0; s < SK_STATUS_COUNT; s++) {
            if (!info->claimable_from[s])
                continue;
            if (s == SK_STATUS_NONE)
                fprintf(out, "%snull", separator);
            else
                fprintf(out, "%s\"%s\"", separator, sk_status_name((enum sk_status)s));
            separator = ", ";
        }
        fputs("]}", out);
    }
    fputs("\n  ],\n  \"claims\": [", out);
    separator = "\n    ";
    for (int o = SK_OP_NONE + 1; o < SK_OP_COUNT; o++) {
        for (int s = 0; s < SK_STATUS_COUNT; s++) {
            if (!sk_op_claimable((enum sk_op)o, (enum sk_status)s))
                continue;
            if (s == SK_STATUS_NONE)
                fprintf(out, "%s{\"operation\": \"%s\", \"from\": null}", separator, sk_op_name((enum sk_op)o));
            else
                fprintf(out, "%s{\"operation\": \"%s\", \"from\": \"%s\"}", separator, sk_op_name((enum sk_op)o),
                        sk_status_name((enum sk_status)s));
            separator = ",\n    ";
        }
    }
    fputs("\n  ],\n  \"moves\": [", out);
    separator = "\n    ";
    for (int from = 0; from < SK_STATUS_COUNT; from++) {
        for (int to = 0; to < SK_STATUS_COUNT; to++) {
            if (from == to || !sk_status_move_legal((enum sk_status)from, (enum sk_status)to))
                continue;
            fprintf(out, "%s[\"%s\", \"%s\"]", separator, sk_status_name((enum sk_status)from),
                    sk_status_name((enum sk_status)to));
            separator = ",\n    ";
        }
    }
    fputs("\n  ]\n}\n", out);
}

static const char *diagram_name(enum sk_status status)
{
    return status == SK_STATUS_NONE ? "[*]" : sk_status_name(status);
}

static void write_diagram(FILE *out)
{
    fputs("```mermaid\nstateDiagram-v2\n", out);
    for (int o = SK_OP_NONE + 1; o < SK_OP_COUNT; o++) {
        const struct sk_op_info *info = sk_op_info((enum sk_op)o);

        /* delete may come from everywhere; drawn once, or the picture is a ball of wool. */
        if (o == SK_OP_DELETE) {
            fprintf(out, "    running --> %s : delete\n    stopped --> %s : delete\n    archived --> %s : delete\n",
                    sk_status_name(info->transitional), sk_status_name(info->transitional),
                    sk_status_name(info->transitional));
        } else {
            for (int s = 0; s < SK_STATUS_COUNT; s++) {
                if (info->claimable_from[s] && (enum sk_status)s != info->transitional)
                    fprintf(out, "    %s --> %s : %s\n", diagram_name((enum sk_status)s),
                            sk_status_name(info->transitional), info->name);
            }
        }
        fprintf(out, "    %s --> %s\n", sk_status_name(info->transitional), diagram_name(info->terminal));
        if (info->compensated != SK_STATUS_COUNT && info->compensated != info->terminal)
            fprintf(out, "    %s --> %s : compensated\n", sk_status_name(info->transitional),
                    diagram_name(info->compensated));
    }
    fputs("```\n", out);
}

static void write_deadline(FILE *out, int64_t ms)
{
    if (ms % 60000 == 0)
        fprintf(out, "%lld min", (long long)(ms / 60000));
    else
        fprintf(out, "%lld s", (long long)(ms / 1000));
}

static void write_markdown(FILE *out)
{
    fputs(
        "# The sandbox state machine\n\n"
        "<!-- Generated from proto/states.def by common/sm/generate.c: do not edit; `ninja docs-state-machine`. -->\n\n"
        "`agent_sandbox_instances_v2.status` is the single authority over a sandbox. A stable status carries no\n"
        "operation; each transitional status carries exactly the operation that owns it. Every change is one\n"
        "compare-and-set on the status, the operation's id and the epoch.\n\n",
        out);
    write_diagram(out);
    fputs("\n`delete` can be claimed from every status, also from the transitional ones (not drawn).\n\n"
          "## Statuses\n\n| status | kind | counts against the quota | owned by |\n|---|---|---|---|\n",
          out);
    for (int s = SK_STATUS_NONE + 1; s < SK_STATUS_COUNT; s++) {
        const struct sk_status_info *info = sk_status_info((enum sk_status)s);

        fprintf(out, "| `%s` | %s | %s | %s |\n", info->name, info->stable ? "stable" : "transitional",
                yes_no(info->counts_for_quota), info->operation == SK_OP_NONE ? "-" : sk_op_name(info->operation));
    }
    fputs("\n## Operations\n\n| operation | claimed from | through | ends in | after compensation | in this release |\n"
          "|---|---|---|---|---|---|\n",
          out);
    for (int o = SK_OP_NONE + 1; o < SK_OP_COUNT; o++) {
        const struct sk_op_info *info = sk_op_info((enum sk_op)o);
        const char *separator = "";

        fprintf(out, "| `%s` | ", info->name);
        for (int s = 0; s < SK_STATUS_COUNT; s++) {
            if (!info->claimable_from[s])
                continue;
            fprintf(out, "%s%s", separator, s == SK_STATUS_NONE ? "no record" : sk_status_name((enum sk_status)s));
            separator = ", ";
        }
        fprintf(out, " | `%s` | %s | %s%s | %s |\n", sk_status_name(info->transitional), target_name(info->terminal),
                target_name(info->compensated),
                info->claimable_from[SK_STATUS_NONE] && info->compensated != SK_STATUS_NONE
                    ? ", or record removed when it made the record"
                    : "",
                yes_no(info->available));
    }
    fputs("\nAn operation is claimed from its own transitional status only when it is stale, failed or released.\n\n"
          "## Phases\n\nA phase is written when its step is done. The deadline is that of the step that leads to the "
          "phase.\n\n"
          "| operation | phase | deadline |\n|---|---|---|\n",
          out);
    for (int o = SK_OP_NONE + 1; o < SK_OP_COUNT; o++) {
        const struct sk_op_info *info = sk_op_info((enum sk_op)o);

        for (int p = 0; p < info->phase_count; p++) {
            fprintf(out, "| `%s` | `%s` | ", info->name, info->phases[p].name);
            write_deadline(out, info->phases[p].deadline_ms);
            fputs(" |\n", out);
        }
    }
}

int main(int argc, char **argv)
{
    FILE *out;
    bool failed;

    if (argc != 3 || (strcmp(argv[1], "json") != 0 && strcmp(argv[1], "markdown") != 0)) {
        fprintf(stderr, "usage: %s json|markdown FILE\n", argv[0]);
        return 2;
    }
    out = fopen(argv[2], "w");
    if (out == NULL) {
        fprintf(stderr, "%s: %s\n", argv[2], strerror(errno));
        return 1;
    }
    if (strcmp(argv[1], "json") == 0)
        write_json(out);
    else
        write_markdown(out);
    failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        fprintf(stderr, "%s: cannot be written\n", argv[2]);
        remove(argv[2]);
        return 1;
    }
    return 0;
}
