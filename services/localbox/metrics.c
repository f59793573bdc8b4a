/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of sk-localbox. Gauges are computed when they are read; no ids anywhere. */
#include "services/localbox/localbox.h"

#include "common/metrics/metrics.h"

static const char *const events[] = {"created", "create_failed", "deleted", "ended", "adopted", "lost", NULL};
static struct sk_metric sandbox_events = {.name = "sandkeep_localbox_sandbox_events_total",
                                          .help = "What happened to sandboxes",
                                          .kind = SK_METRIC_COUNTER,
                                          .labels = {{"event", events}}};
static struct sk_metric proxied = {.name = "sandkeep_localbox_proxied_requests_total",
                                   .help = "Requests handed to a sandbox",
                                   .kind = SK_METRIC_COUNTER};
static struct sk_metric proxy_errors = {.name = "sandkeep_localbox_proxy_errors_total",
                                        .help = "Requests whose service inside the sandbox could not be reached",
                                        .kind = SK_METRIC_COUNTER};
static struct sk_metric storage_stops = {.name = "sandkeep_localbox_storage_stops_total",
                                         .help = "Times a storage limit was passed and writers were stopped",
                                         .kind = SK_METRIC_COUNTER};
static struct sk_metric create_seconds = {.name = "sandkeep_localbox_create_seconds",
                                          .help = "Create request to answering sandbox",
                                          .kind = SK_METRIC_HISTOGRAM,
                                          .buckets = sk_buckets_latency};

static double running(void *arg)
{
    int n = 0;
    (void)arg;
    for (struct lb_box *box = lb.boxes; box != NULL; box = box->next)
        n += box->state == LB_RUNNING || box->state == LB_PAUSED;
    return n;
}

static double connections(void *arg)
{
    (void)arg;
    return lb.server != NULL ? (double)sk_stream_server_connections(lb.server) : 0;
}

static struct sk_metric sandboxes = {.name = "sandkeep_localbox_sandboxes",
                                     .help = "Sandboxes that run or are paused",
                                     .kind = SK_METRIC_GAUGE,
                                     .read = running};
static struct sk_metric open_connections = {.name = "sandkeep_localbox_connections",
                                            .help = "Open client connections",
                                            .kind = SK_METRIC_GAUGE,
                                            .read = connections};

static double counter(void *arg)
{
    const struct sk_stream_counters *c = lb.server != NULL ? sk_stream_server_counters(lb.server) : NULL;
    return c == NULL ? 0 : (double)*(const uint64_t *)((const char *)c + (size_t)(uintptr_t)arg);
}

#define HTTP_GAUGE(var, metric, text, field)                                                                           \
    static struct sk_metric var = {.name = metric,                                                                     \
                                   .help = text,                                                                       \
                                   .kind = SK_METRIC_GAUGE,                                                            \
                                   .read = counter,                                                                    \
                                   .read_arg = (void *)offsetof(struct sk_stream_counters, field)}
HTTP_GAUGE(refused, "sandkeep_localbox_refused_connections", "Connections refused since start: too many at once",
           refused);
HTTP_GAUGE(bad, "sandkeep_localbox_bad_requests", "Requests refused since start for their framing", bad_requests);
HTTP_GAUGE(late, "sandkeep_localbox_timeouts", "Connections ended since start by a time limit", timeouts);

void lb_metrics_register(void)
{
    struct sk_metric *all[] = {&sandbox_events, &proxied,          &proxy_errors, &storage_stops, &create_seconds,
                               &sandboxes,      &open_connections, &refused,      &bad,           &late};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        sk_metric_register(all[i]);
}

void lb_count(enum lb_counter counter)
{
    if (counter <= LB_COUNT_LOST)
        sk_metric_add(&sandbox_events, (int)counter, 0, 1);
    else if (counter == LB_COUNT_PROXIED)
        sk_metric_add(&proxied, 0, 0, 1);
    else if (counter == LB_COUNT_PROXY_ERRORS)
        sk_metric_add(&proxy_errors, 0, 0, 1);
    else
        sk_metric_add(&storage_stops, 0, 0, 1);
}

void lb_observe_create(int64_t ms)
{
    sk_metric_observe(&create_seconds, 0, 0, (double)ms / 1000.0);
}
