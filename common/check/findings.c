/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the checker share: the names of the checks, the way to report a finding, and sorted views of the
 * snapshot. */
#include "common/check/private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
