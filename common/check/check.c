/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame of the checker: the report, and the order in which the parts look. */
#include "common/check/check.h"

#include "common/check/private.h"

#include <stdlib.h>
#include <string.h>

const struct sk_check_grace sk_check_grace_defaults = {
    .operation_ms = 90 * 1000,
    .remote_ms = 15 * 60 * 1000,
    .volume_ms = 15 * 60 * 1000,
    .slot_ms = 15 * 60 * 1000,
    .outbox_ms = 5 * 1000,
    .lease_ms = 30 * 1000,
};

void sk_check_report_init(struct sk_check_report *report)
{
    memset(report, 0, sizeof(*report));
}

void sk_check_report_fini(struct sk_check_report *report)
{
    free(report->findings);
    memset(report, 0, sizeof(*report));
}

static int by_record(const void *a, const void *b)
{
    const struct sk_check_record *x = *(const struct sk_check_record *const *)a;
    const struct sk_check_record *y = *(const struct sk_check_record *const *)b;

    return strcmp(x->sandbox_id, y->sandbox_id);
}

static int by_remote(const void *a, const void *b)
{
    const struct sk_remote *x = *(const struct sk_remote *const *)a, *y = *(const struct sk_remote *const *)b;
    int order = strcmp(x->sandbox_id, y->sandbox_id);

    if (order == 0 && x->epoch != y->epoch)
        order = x->epoch < y->epoch ? -1 : 1;
    return order != 0 ? order : strcmp(x->id, y->id);
}

static int by_slot(const void *a, const void *b)
{
    const struct sk_check_slot *x = *(const struct sk_check_slot *const *)a,
                               *y = *(const struct sk_check_slot *const *)b;
    int order = strcmp(x->sandbox_id, y->sandbox_id);

    return order != 0 ? order : strcmp(x->scope, y->scope);
}

static int by_event(const void *a, const void *b)
{
    const struct sk_check_event *x = *(const struct sk_check_event *const *)a;
    const struct sk_check_event *y = *(const struct sk_check_event *const *)b;
    int order = strcmp(x->sandbox_id, y->sandbox_id);

    if (order == 0 && x->epoch != y->epoch)
        order = x->epoch < y->epoch ? -1 : 1;
    if (order == 0 && x->sequence != y->sequence)
        order = x->sequence < y->sequence ? -1 : 1;
    return order != 0 ? order : strcmp(x->id, y->id);
}

static int by_finding(const void *a, const void *b)
{
    const struct sk_check_finding *x = a, *y = b;
    int order = (int)x->check - (int)y->check;

    if (order == 0)
        order = strcmp(x->sandbox_id, y->sandbox_id);
    if (order == 0)
        order = strcmp(x->subject, y->subject);
    return order != 0 ? order : strcmp(x->detail, y->detail);
}

int sk_check_run(const struct sk_check_snapshot *snapshot, struct sk_check_report *report)
{
    struct sk_check_context c = {.in = snapshot, .report = report};

    c.records = sk_check_sort(&c, snapshot->records, snapshot->record_count, sizeof(*snapshot->records), by_record);
    if (snapshot->remotes_known)
        c.remotes = sk_check_sort(&c, snapshot->remotes, snapshot->remote_count, sizeof(*snapshot->remotes), by_remote);
    if (snapshot->slots_known)
        c.slots = sk_check_sort(&c, snapshot->slots, snapshot->slot_count, sizeof(*snapshot->slots), by_slot);
    if (snapshot->pending_known)
        c.pending = sk_check_sort(&c, snapshot->pending, snapshot->pending_count, sizeof(*snapshot->pending), by_event);
    if (snapshot->history_known)
        c.history = sk_check_sort(&c, snapshot->history, snapshot->history_count, sizeof(*snapshot->history), by_event);
    if (!c.failed) {
        sk_check_records(&c);
        sk_check_remotes(&c);
        sk_check_volumes(&c);
        sk_check_slots(&c);
        sk_check_leases(&c);
        sk_check_events(&c);
        sk_check_changes(&c);
        sk_check_commands(&c);
        if (snapshot->code_trouble != NULL)
            sk_check_find(&c, SK_CHECK_CODE_DOWN, "", "", "%s", snapshot->code_trouble);
    }
    sk_check_index_free(&c.records);
    sk_check_index_free(&c.remotes);
    sk_check_index_free(&c.slots);
    sk_check_index_free(&c.pending);
    sk_check_index_free(&c.history);
    if (report->count > 0)
        qsort(report->findings, report->count, sizeof(*report->findings), by_finding);
    return c.failed ? -1 : 0;
}

void sk_check_confirm(const struct sk_check_report *earlier, struct sk_check_report *later)
{
    size_t kept = 0;

    for (size_t i = 0; i < later->count; i++) {
        const struct sk_check_finding *finding = &later->findings[i];
        bool seen = false;

        for (size_t j = 0; j < earlier->count && !seen; j++) {
            const struct sk_check_finding *other = &earlier->findings[j];

            seen = other->check == finding->check && strcmp(other->sandbox_id, finding->sandbox_id) == 0 &&
                   strcmp(other->subject, finding->subject) == 0;
        }
        if (seen)
            later->findings[kept++] = *finding;
        else if (sk_check_severity(finding->check) == SK_CHECK_VIOLATION)
            later->violations--;
    }
    later->count = kept;
}
