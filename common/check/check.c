/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame of the checker: names, the report, sorted views of the snapshot, and the order in which the parts look. */
#include "common/check/check.h"

#include "common/check/private.h"

#include <stdarg.h>
#include <stdio.h>
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

struct check_info {
    const char *name, *meaning;
    enum sk_check_severity severity;
};

static const struct check_info checks[SK_CHECK_COUNT] = {
#define SK_CHECK(name, wire, severity, meaning) [SK_CHECK_##name] = {wire, meaning, SK_CHECK_##severity},
#include "common/check/checks.def"
#undef SK_CHECK
};

const char *sk_check_name(enum sk_check check)
{
    return (unsigned)check < SK_CHECK_COUNT ? checks[check].name : "unknown";
}

const char *sk_check_meaning(enum sk_check check)
{
    return (unsigned)check < SK_CHECK_COUNT ? checks[check].meaning : "";
}

enum sk_check_severity sk_check_severity(enum sk_check check)
{
    return (unsigned)check < SK_CHECK_COUNT ? checks[check].severity : SK_CHECK_VIOLATION;
}

void sk_check_report_init(struct sk_check_report *report)
{
    memset(report, 0, sizeof(*report));
}

void sk_check_report_fini(struct sk_check_report *report)
{
    free(report->findings);
    memset(report, 0, sizeof(*report));
}

void sk_check_find(struct sk_check_context *c, enum sk_check check, const char *sandbox_id, const char *subject,
                   const char *fmt, ...)
{
    struct sk_check_report *report = c->report;
    struct sk_check_finding *finding;
    va_list args;

    if (sk_check_severity(check) == SK_CHECK_VIOLATION)
        report->violations++;
    if (report->count == SK_CHECK_FINDINGS_MAX) {
        report->dropped++;
        return;
    }
    if (report->count == report->size) {
        size_t size = report->size == 0 ? 16 : report->size * 2;

        finding = realloc(report->findings, size * sizeof(*finding));
        if (finding == NULL) {
            c->failed = true;
            report->dropped++;
            return;
        }
        report->findings = finding;
        report->size = size;
    }
    finding = &report->findings[report->count++];
    memset(finding, 0, sizeof(*finding));
    finding->check = check;
    sk_copy_cut(finding->sandbox_id, sizeof(finding->sandbox_id), sandbox_id);
    sk_copy_cut(finding->subject, sizeof(finding->subject), subject == NULL ? "" : subject);
    va_start(args, fmt);
    vsnprintf(finding->detail, sizeof(finding->detail), fmt, args);
    va_end(args);
}

struct sk_check_index sk_check_sort(struct sk_check_context *c, const void *array, size_t count, size_t item,
                                    sk_check_compare compare)
{
    struct sk_check_index index = {.items = NULL, .count = 0};

    if (count == 0)
        return index;
    index.items = malloc(count * sizeof(*index.items));
    if (index.items == NULL) {
        c->failed = true;
        return index;
    }
    for (size_t i = 0; i < count; i++)
        index.items[i] = (const char *)array + i * item;
    index.count = count;
    qsort(index.items, count, sizeof(*index.items), compare);
    return index;
}

void sk_check_index_free(struct sk_check_index *index)
{
    free(index->items);
    index->items = NULL;
    index->count = 0;
}

size_t sk_check_group(const struct sk_check_index *index, size_t offset, const char *sandbox_id, size_t *count)
{
    size_t low = 0, high = index->count, end;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp((const char *)index->items[middle] + offset, sandbox_id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (end = low; end < index->count && strcmp((const char *)index->items[end] + offset, sandbox_id) == 0;)
        end++;
    *count = end - low;
    return low;
}

const struct sk_check_record *sk_check_record_find(const struct sk_check_context *c, const char *sandbox_id)
{
    size_t count, first = sk_check_group(&c->records, offsetof(struct sk_check_record, sandbox_id), sandbox_id, &count);

    return count == 0 ? NULL : c->records.items[first];
}

bool sk_check_old(const struct sk_check_context *c, int64_t at, int64_t grace)
{
    return at == 0 || c->in->now_ms - at >= grace;
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
