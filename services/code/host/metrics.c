/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of sk-code. What other parts count is read when it is scraped. */
#include "services/code/host/host.h"

#include "common/metrics/metrics.h"

#include <string.h>

static const char *const language_names[] = {"js", "python", NULL};
static const char *const kind_names[] = {"js", "python", "python-full", NULL};
/* "done", and what data.error.code can be. */
static const char *const end_names[] = {"done",      "error",  "timeout", "memory",    "output",
                                        "processes", "killed", "crashed", "cancelled", NULL};
static const char *const refused_names[] = {"queue_full", "buffers_full", "draining",  "not_ready", "auth",
                                            "invalid",    "too_large",    "slow_body", NULL};

static struct sk_metric tasks = {.name = "sandkeep_code_tasks_total",
                                 .help = "tasks that ended, by how",
                                 .kind = SK_METRIC_COUNTER,
                                 .labels = {{"language", language_names}, {"end", end_names}}};
static struct sk_metric refused = {.name = "sandkeep_code_refused_total",
                                   .help = "requests that were refused before a task was begun, by why",
                                   .kind = SK_METRIC_COUNTER,
                                   .labels = {{"reason", refused_names}}};
static struct sk_metric moved = {.name = "sandkeep_code_moved_total",
                                 .help = "Python tasks that were run again with all modules loaded",
                                 .kind = SK_METRIC_COUNTER};
static struct sk_metric wait_seconds = {.name = "sandkeep_code_wait_seconds",
                                        .help = "time of a task in the queue",
                                        .kind = SK_METRIC_HISTOGRAM,
                                        .labels = {{"language", language_names}},
                                        .buckets = sk_buckets_latency};
static struct sk_metric run_seconds = {.name = "sandkeep_code_run_seconds",
                                       .help = "time of a task's process, from its fork to its end",
                                       .kind = SK_METRIC_HISTOGRAM,
                                       .labels = {{"kind", kind_names}},
                                       .buckets = sk_buckets_latency};
static struct sk_metric cpu_seconds = {.name = "sandkeep_code_cpu_seconds",
                                       .help = "processor time of a task's process",
                                       .kind = SK_METRIC_HISTOGRAM,
                                       .labels = {{"kind", kind_names}},
                                       .buckets = sk_buckets_latency};

/* The scrape runs on the loop thread; the host forgets itself before its parts are freed. */
static struct code_host *host;

#define READ(name, expression)                                                                                         \
    static double read_##name(void *arg)                                                                               \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        return host == NULL ? 0 : (double)(expression);                                                                \
    }
READ(waiting, code_queue_pool(host->queue, CODE_POOL_JS).queued + code_queue_pool(host->queue, CODE_POOL_PYTHON).queued)
READ(running_js, code_queue_pool(host->queue, CODE_POOL_JS).busy)
READ(running_python, code_queue_pool(host->queue, CODE_POOL_PYTHON).busy)
READ(lines, code_queue_lines(host->queue))
READ(buffered, host->buffered_bytes)
READ(connections, host->server != NULL ? sk_stream_server_connections(host->server) : 0)
READ(level, host->level)
READ(flight, code_broker_counts(host->broker).in_flight)
READ(held, code_broker_counts(host->broker).held_bytes)
READ(requests, code_broker_counts(host->broker).requests)
READ(requests_refused, code_broker_counts(host->broker).refused)
READ(requests_failed, code_broker_counts(host->broker).failed)
READ(zygotes_lost, code_zygotes_counts(host->zygotes).lost[CODE_KIND_JS] +
                       code_zygotes_counts(host->zygotes).lost[CODE_KIND_LEAN] +
                       code_zygotes_counts(host->zygotes).lost[CODE_KIND_FULL])
READ(zygotes_suspect, code_zygotes_counts(host->zygotes).suspects[CODE_KIND_JS] +
                          code_zygotes_counts(host->zygotes).suspects[CODE_KIND_LEAN] +
                          code_zygotes_counts(host->zygotes).suspects[CODE_KIND_FULL])

#define READS(of, metric, text, reader)                                                                                \
    {                                                                                                                  \
        .name = "sandkeep_code_" metric, .help = (text), .kind = SK_METRIC_##of, .read = read_##reader                 \
    }
static struct sk_metric read_metrics[] = {
    READS(GAUGE, "tasks_waiting", "tasks in the queue; bound: SANDBOX_MAX_QUEUE", waiting),
    READS(GAUGE, "js_tasks_running", "JavaScript tasks that run; bound: SANDBOX_POOL_SIZE", running_js),
    READS(GAUGE, "python_tasks_running", "Python tasks that run; bound: SANDBOX_POOL_SIZE", running_python),
    READS(GAUGE, "queue_ids", "queueIds that have tasks", lines),
    READS(GAUGE, "buffered_bytes", "bodies of requests and answers that are held; bound: SANDBOX_MAX_BUFFERED_MB",
          buffered),
    READS(GAUGE, "connections", "client connections", connections),
    READS(GAUGE, "isolation_level", "what was measured: 3 full, 2 container, 1 shared-uid", level),
    READS(GAUGE, "http_requests_running", "HTTP requests of tasks that are on their way", flight),
    READS(GAUGE, "http_held_bytes", "answers to them that are held", held),
    READS(COUNTER, "http_requests_total", "HTTP requests of tasks", requests),
    READS(COUNTER, "http_requests_refused_total", "HTTP requests of tasks that were refused", requests_refused),
    READS(COUNTER, "http_requests_failed_total", "HTTP requests of tasks that got no answer", requests_failed),
    READS(COUNTER, "zygotes_lost_total", "zygotes that ended without being told to", zygotes_lost),
    READS(COUNTER, "zygotes_suspect_total", "zygotes that were killed because they did not answer", zygotes_suspect),
};

void code_metrics_register(struct code_host *of)
{
    struct sk_metric *all[] = {&tasks, &refused, &moved, &wait_seconds, &run_seconds, &cpu_seconds};

    host = of;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        sk_metric_register(all[i]);
    for (size_t i = 0; i < sizeof(read_metrics) / sizeof(read_metrics[0]); i++)
        sk_metric_register(&read_metrics[i]);
}

void code_metrics_forget(void)
{
    host = NULL;
}

void code_metrics_refused(enum code_refused why)
{
    sk_metric_add(&refused, (int)why, 0, 1);
}

void code_metrics_moved(void)
{
    sk_metric_add(&moved, 0, 0, 1);
}

void code_metrics_task(const struct code_call *call, const char *end)
{
    int index = 0;

    while (end_names[index] != NULL && strcmp(end_names[index], end) != 0)
        index++;
    sk_metric_add(&tasks, (int)call->pool, end_names[index] != NULL ? index : 1, 1);
    if (call->ended.kind != CODE_MSG_ENDED)
        return;
    sk_metric_observe(&wait_seconds, (int)call->pool, 0, (double)call->job.wait_ms / 1e3);
    sk_metric_observe(&run_seconds, (int)call->kind, 0, (double)call->ended.u.ended.wall_us / 1e6);
    sk_metric_observe(&cpu_seconds, (int)call->kind, 0, (double)call->ended.u.ended.cpu_us / 1e6);
}
