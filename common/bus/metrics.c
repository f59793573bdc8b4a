/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of the bus: what its bounds and its ambiguities cost. Shared by all buses of a process. */
#include "common/metrics/metrics.h"

#include "common/bus/internal.h"

static const char *const results[] = {"acked", "refused", "unknown", NULL};

struct sk_metric sk_bus_metric_published = {
    .name = "sandkeep_bus_published_total",
    .help = "Messages published to a stream, by what the server said",
    .kind = SK_METRIC_COUNTER,
    .labels = {{"result", results}},
};
struct sk_metric sk_bus_metric_reconnects = {
    .name = "sandkeep_bus_reconnects_total", .help = "Times the bus was connected again", .kind = SK_METRIC_COUNTER};
struct sk_metric sk_bus_metric_dropped = {
    .name = "sandkeep_bus_dropped_total",
    .help = "Core messages not sent because the connection was down, or dropped for a slow reader",
    .kind = SK_METRIC_COUNTER};
struct sk_metric sk_bus_metric_pull_stalls = {.name = "sandkeep_bus_pull_stalls_total",
                                              .help = "Pull requests given up because their heartbeats stopped",
                                              .kind = SK_METRIC_COUNTER};
struct sk_metric sk_bus_metric_stale_acks = {
    .name = "sandkeep_bus_stale_acks_total",
    .help = "Acks not sent because the stream had been made anew since the delivery",
    .kind = SK_METRIC_COUNTER};
struct sk_metric sk_bus_metric_strays = {
    .name = "sandkeep_bus_strays_total", .help = "Commands of unknown subjects handed over", .kind = SK_METRIC_COUNTER};
struct sk_metric sk_bus_metric_service_busy = {.name = "sandkeep_bus_service_busy_total",
                                               .help = "Requests refused because the queue of a service was full",
                                               .kind = SK_METRIC_COUNTER};
struct sk_metric sk_bus_metric_in_flight = {.name = "sandkeep_bus_confirmations_in_flight",
                                            .help = "Confirmations of the server that are waited for",
                                            .kind = SK_METRIC_GAUGE};

void sk_bus_metrics_register(void)
{
    sk_metric_register(&sk_bus_metric_published);
    sk_metric_register(&sk_bus_metric_reconnects);
    sk_metric_register(&sk_bus_metric_dropped);
    sk_metric_register(&sk_bus_metric_pull_stalls);
    sk_metric_register(&sk_bus_metric_stale_acks);
    sk_metric_register(&sk_bus_metric_strays);
    sk_metric_register(&sk_bus_metric_service_busy);
    sk_metric_register(&sk_bus_metric_in_flight);
}
