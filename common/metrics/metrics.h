/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics in Prometheus text format: counters, gauges and histograms with closed label sets. A metric is a static
 * object registered once; updates are lock-free atomics from any thread. Names carry base units (_seconds, _bytes,
 * _total). No ids as label values: a label's values are listed when the metric is declared. */
#ifndef SK_METRICS_METRICS_H
#define SK_METRICS_METRICS_H

#include "common/base/error.h"

#include <stdatomic.h>
#include <stdio.h>

#define SK_METRIC_SERIES_MAX  96 /* product of the label value counts of one metric */
#define SK_METRIC_BUCKETS_MAX 20

enum sk_metric_kind { SK_METRIC_COUNTER, SK_METRIC_GAUGE, SK_METRIC_HISTOGRAM };

struct sk_label {
    const char *name;
    const char *const *values; /* NULL-terminated closed set */
};

struct sk_metric {
    const char *name, *help;
    enum sk_metric_kind kind;
    struct sk_label labels[2]; /* name NULL = unused */
    const double *buckets;     /* histogram upper bounds, ascending, 0-terminated */
    double (*read)(void *arg); /* gauge computed at scrape time, or NULL */
    void *read_arg;
    atomic_llong series[SK_METRIC_SERIES_MAX];  /* counter, gauge; histogram: count */
    atomic_llong *bucket_counts;                /* allocated at registration */
    atomic_llong sums_us[SK_METRIC_SERIES_MAX]; /* histogram sum in micro-units */
    struct sk_metric *next;
};

/* Registers a static metric; call from one thread at start. Registering the same object twice is allowed. */
void sk_metric_register(struct sk_metric *metric);
/* Label arguments are indexes into the label's value list; 0 where a label is unused. */
void sk_metric_add(struct sk_metric *metric, int label1, int label2, long long delta);
void sk_metric_set(struct sk_metric *metric, int label1, int label2, long long value);
void sk_metric_observe(struct sk_metric *metric, int label1, int label2, double value); /* histogram, base unit */
long long sk_metric_get(const struct sk_metric *metric, int label1, int label2);
/* Writes all registered metrics plus process_* (cpu, rss, fds, start time) to `out`. */
void sk_metrics_write(FILE *out);

extern const double sk_buckets_latency[]; /* 1 ms … 60 s, for seconds */

#endif
