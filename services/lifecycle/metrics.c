/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of sk-lifecycle: every counter of counters.def, the gauges of the replica, and how long operations take. */
#include "services/lifecycle/service.h"

#include "common/metrics/metrics.h"

static struct sk_metric counters[LC_COUNTER_COUNT] = {
#define LC_COUNTER(NAME, wire, text)                                                                                   \
    [LC_COUNT_##NAME] = {.name = "sandkeep_lifecycle_" wire "_total", .help = (text), .kind = SK_METRIC_COUNTER},
#include "services/lifecycle/counters.def"
#undef LC_COUNTER
};

static const char *const op_names[] = {"none",    "provision", "legacyMigration", "stop",
                                       "archive", "restore",   "delete",          NULL};
static const char *const ending_names[] = {"completed",   "compensated", "retried", "blocked",
                                           "handed_over", "lost",        NULL};

static struct sk_metric operation_seconds = {
    .name = "sandkeep_lifecycle_operation_seconds",
    .help = "time of an operation in this replica, from the write of its claim to the end of its last write",
    .kind = SK_METRIC_HISTOGRAM,
    .labels = {{"operation", op_names}, {"result", ending_names}},
    .buckets = sk_buckets_latency,
};

static const double delay_buckets[] = {0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5, 30, 0};
static struct sk_metric event_delay_seconds = {
    .name = "sandkeep_lifecycle_event_delay_seconds",
    .help = "from the write that made an event to its confirmation by the stream; not those that a scan found",
    .kind = SK_METRIC_HISTOGRAM,
    .buckets = delay_buckets,
};

/* The scrape runs on the loop thread; the replica is freed after the admin listener has ended. */
static struct lc_replica *replica;

static struct lc_gauges gauges(void)
{
    struct lc_gauges now = {.held = 0};

    if (replica != NULL)
        lc_replica_gauges(replica, &now);
    return now;
}

#define GAUGE(field)                                                                                                   \
    static double read_##field(void *arg)                                                                              \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        return (double)gauges().field;                                                                                 \
    }
GAUGE(held)
GAUGE(parked_sandboxes)
GAUGE(jobs)
GAUGE(operations)
GAUGE(finishing)
GAUGE(relay_pending)

static struct sk_metric gauge_metrics[] = {
    {.name = "sandkeep_lifecycle_commands_held",
     .help = "commands pulled and not acknowledged",
     .kind = SK_METRIC_GAUGE,
     .read = read_held},
    {.name = "sandkeep_lifecycle_sandboxes_parked",
     .help = "sandboxes whose commands wait for something",
     .kind = SK_METRIC_GAUGE,
     .read = read_parked_sandboxes},
    {.name = "sandkeep_lifecycle_jobs",
     .help = "jobs that wait for a worker or run",
     .kind = SK_METRIC_GAUGE,
     .read = read_jobs},
    {.name = "sandkeep_lifecycle_operations_running",
     .help = "operations claimed and running in this replica",
     .kind = SK_METRIC_GAUGE,
     .read = read_operations},
    {.name = "sandkeep_lifecycle_results_pending",
     .help = "results on their way to the store and the requester",
     .kind = SK_METRIC_GAUGE,
     .read = read_finishing},
    {.name = "sandkeep_lifecycle_events_pending",
     .help = "events of this replica that are not yet published and pulled",
     .kind = SK_METRIC_GAUGE,
     .read = read_relay_pending},
};

void lc_metrics_register(struct lc_replica *r)
{
    replica = r;
    for (int i = 0; i < LC_COUNTER_COUNT; i++)
        sk_metric_register(&counters[i]);
    for (size_t i = 0; i < sizeof(gauge_metrics) / sizeof(gauge_metrics[0]); i++)
        sk_metric_register(&gauge_metrics[i]);
    sk_metric_register(&operation_seconds);
    sk_metric_register(&event_delay_seconds);
}

void lc_metrics_forget(void)
{
    replica = NULL;
}

void lc_metrics_counted(void *arg, enum lc_counter counter, int64_t delta)
{
    (void)arg;
    sk_metric_add(&counters[counter], 0, 0, delta);
}

void lc_metrics_ended(void *arg, enum sk_op op, enum lc_ending ending, int64_t duration_us)
{
    (void)arg;
    sk_metric_observe(&operation_seconds, (int)op, (int)ending, (double)duration_us / 1e6);
}

void lc_metrics_published(void *arg, int64_t delay_us)
{
    (void)arg;
    sk_metric_observe(&event_delay_seconds, 0, 0, (double)delay_us / 1e6);
}
