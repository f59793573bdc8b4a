/* SPDX-License-Identifier: Apache-2.0
 *
 * Metric objects and the text format. Updates are relaxed atomics; a scrape sees each number, not one moment. */
#include "common/metrics/metrics.h"

#include "common/base/version.h"
#include "common/metrics/private.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const double sk_buckets_latency[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 0};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list; the numbers need none */
static struct sk_metric *first, **last = &first;

static int label_count(const struct sk_label *label)
{
    int count = 0;

    if (label->name == NULL || label->values == NULL)
        return 1;
    while (label->values[count] != NULL)
        count++;
    return count;
}

static int bucket_count(const struct sk_metric *metric)
{
    int count = 0;

    while (metric->buckets != NULL && metric->buckets[count] != 0)
        count++;
    return count;
}

/* -1 for labels that are not in the closed set: such an update is dropped. */
static int series_index(const struct sk_metric *metric, int label1, int label2)
{
    int count1 = label_count(&metric->labels[0]), count2 = label_count(&metric->labels[1]);

    if (label1 < 0 || label1 >= count1 || label2 < 0 || label2 >= count2)
        return -1;
    return label1 * count2 + label2;
}

static void misdeclared(const struct sk_metric *metric, const char *why)
{
    fprintf(stderr, "metric %s: %s\n", metric->name, why);
    abort();
}

void sk_metric_register(struct sk_metric *metric)
{
    int count1 = label_count(&metric->labels[0]), count2 = label_count(&metric->labels[1]);
    int buckets = bucket_count(metric);

    if (count1 * count2 == 0 || count1 * count2 > SK_METRIC_SERIES_MAX)
        misdeclared(metric, "the label sets are empty or have more than SK_METRIC_SERIES_MAX combinations");
    if (metric->kind == SK_METRIC_HISTOGRAM && (buckets == 0 || buckets > SK_METRIC_BUCKETS_MAX))
        misdeclared(metric, "a histogram has 1..SK_METRIC_BUCKETS_MAX buckets");
    for (int i = 1; i < buckets; i++) {
        if (metric->buckets[i] <= metric->buckets[i - 1])
            misdeclared(metric, "buckets must ascend");
    }
    if (metric->read != NULL && count1 * count2 != 1)
        misdeclared(metric, "a gauge that is read at scrape time has no labels");

    pthread_mutex_lock(&lock);
    for (struct sk_metric *other = first; other != NULL; other = other->next) {
        if (other == metric) {
            pthread_mutex_unlock(&lock);
            return;
        }
        if (strcmp(other->name, metric->name) == 0)
            misdeclared(metric, "another metric has this name");
    }
    if (metric->kind == SK_METRIC_HISTOGRAM) {
        metric->bucket_counts =
            calloc((size_t)count1 * (size_t)count2 * ((size_t)buckets + 1), sizeof(*metric->bucket_counts));
        if (metric->bucket_counts == NULL)
            misdeclared(metric, "out of memory");
    }
    metric->next = NULL;
    *last = metric;
    last = &metric->next;
    pthread_mutex_unlock(&lock);
}

void sk_metric_add(struct sk_metric *metric, int label1, int label2, long long delta)
{
    int series = series_index(metric, label1, label2);

    if (series >= 0 && (delta >= 0 || metric->kind == SK_METRIC_GAUGE))
        atomic_fetch_add_explicit(&metric->series[series], delta, memory_order_relaxed);
}

void sk_metric_set(struct sk_metric *metric, int label1, int label2, long long value)
{
    int series = series_index(metric, label1, label2);

    if (series >= 0)
        atomic_store_explicit(&metric->series[series], value, memory_order_relaxed);
}

void sk_metric_observe(struct sk_metric *metric, int label1, int label2, double value)
{
    int series = series_index(metric, label1, label2), buckets = bucket_count(metric), bucket = 0;

    if (series < 0 || metric->bucket_counts == NULL || !isfinite(value) || value < 0)
        return;
    while (bucket < buckets && value > metric->buckets[bucket])
        bucket++;
    atomic_fetch_add_explicit(&metric->bucket_counts[series * (buckets + 1) + bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metric->sums_us[series], llround(fmin(value, 1e12) * 1e6), memory_order_relaxed);
    atomic_fetch_add_explicit(&metric->series[series], 1, memory_order_relaxed);
}

long long sk_metric_get(const struct sk_metric *metric, int label1, int label2)
{
    int series = series_index(metric, label1, label2);

    return series >= 0 ? atomic_load_explicit(&metric->series[series], memory_order_relaxed) : 0;
}

static void write_escaped(FILE *out, const char *text, bool quotes)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\n')
            fputs("\\n", out);
        else if (*p == '\\' || (quotes && *p == '"'))
            fprintf(out, "\\%c", *p);
        else
            fputc(*p, out);
    }
}

/* name_suffix{label1="…",label2="…",le="…"} and the space after it */
static void write_name(FILE *out, const struct sk_metric *metric, const char *suffix, int label1, int label2,
                       const char *le)
{
    int indexes[2] = {label1, label2};
    char separator = '{';

    fprintf(out, "%s%s", metric->name, suffix);
    for (int i = 0; i < 2; i++) {
        const struct sk_label *label = &metric->labels[i];
        if (label->name == NULL || label->values == NULL)
            continue;
        fprintf(out, "%c%s=\"", separator, label->name);
        write_escaped(out, label->values[indexes[i]], true);
        fputc('"', out);
        separator = ',';
    }
    if (le != NULL) {
        fprintf(out, "%cle=\"%s\"", separator, le);
        separator = ',';
    }
    fputs(separator == ',' ? "} " : " ", out);
}

static void write_double(FILE *out, double value)
{
    if (isnan(value))
        fputs("NaN\n", out);
    else if (isinf(value))
        fputs(value > 0 ? "+Inf\n" : "-Inf\n", out);
    else
        fprintf(out, "%.15g\n", value);
}

static void write_histogram(FILE *out, const struct sk_metric *metric, int label1, int label2)
{
    int series = series_index(metric, label1, label2), buckets = bucket_count(metric);
    long long count = 0;
    char le[32];

    /* _count is the sum of the buckets as they were read, so that it always equals le="+Inf". */
    for (int i = 0; i <= buckets; i++) {
        count += atomic_load_explicit(&metric->bucket_counts[series * (buckets + 1) + i], memory_order_relaxed);
        if (i < buckets)
            snprintf(le, sizeof(le), "%.15g", metric->buckets[i]);
        else
            snprintf(le, sizeof(le), "+Inf");
        write_name(out, metric, "_bucket", label1, label2, le);
        fprintf(out, "%lld\n", count);
    }
    write_name(out, metric, "_sum", label1, label2, NULL);
    write_double(out, (double)atomic_load_explicit(&metric->sums_us[series], memory_order_relaxed) / 1e6);
    write_name(out, metric, "_count", label1, label2, NULL);
    fprintf(out, "%lld\n", count);
}

static void write_metric(FILE *out, const struct sk_metric *metric)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};

    fprintf(out, "# HELP %s ", metric->name);
    write_escaped(out, metric->help != NULL ? metric->help : "", false);
    fprintf(out, "\n# TYPE %s %s\n", metric->name, kinds[metric->kind]);
    for (int i = 0; i < label_count(&metric->labels[0]); i++) {
        for (int j = 0; j < label_count(&metric->labels[1]); j++) {
            if (metric->kind == SK_METRIC_HISTOGRAM) {
                write_histogram(out, metric, i, j);
                continue;
            }
            write_name(out, metric, "", i, j, NULL);
            if (metric->read != NULL)
                write_double(out, metric->read(metric->read_arg));
            else
                fprintf(out, "%lld\n", sk_metric_get(metric, i, j));
        }
    }
}

void sk_metrics_write(FILE *out)
{
    pthread_mutex_lock(&lock);
    for (const struct sk_metric *metric = first; metric != NULL; metric = metric->next)
        write_metric(out, metric);
    pthread_mutex_unlock(&lock);
    fprintf(out,
            "# HELP sandkeep_build_info Version and revision of this binary.\n# TYPE sandkeep_build_info gauge\n"
            "sandkeep_build_info{version=\"%s\",revision=\"%s\"} 1\n",
            sk_version(), sk_revision());
    sk_metrics_write_process(out);
}
