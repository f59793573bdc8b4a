/* SPDX-License-Identifier: Apache-2.0
 *
 * execd's metrics, of this sandbox and not of the machine: processor use over a short sample and resident memory of its
 * own processes. */
#include "services/localbox/init/init.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAMPLE_MS 100
#define WATCH_MS  1000

struct sampler {
    struct sk_stream *x;
    uv_timer_t timer;
    uint64_t ticks, at_ns;
    bool watch;
};

static void totals(uint64_t *ticks, uint64_t *pages)
{
    *ticks = *pages = 0;
    DIR *dir = opendir("/proc");
    if (dir == NULL)
        return;
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        char path[300], line[1024];
        snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
        FILE *f = fopen(path, "re");
        if (f == NULL)
            continue;
        char *end = fgets(line, sizeof(line), f) != NULL ? strrchr(line, ')') : NULL;
        unsigned long user = 0, system = 0;
        long resident = 0;
        if (end != NULL &&
            sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %*u %*u %ld",
                   &user, &system, &resident) == 3) {
            *ticks += user + system;
            *pages += resident > 0 ? (uint64_t)resident : 0;
        }
        fclose(f);
    }
    closedir(dir);
}

static json_t *sample(struct sampler *s)
{
    uint64_t ticks, pages, now = uv_hrtime();
    totals(&ticks, &pages);
    double seconds = (double)(now - s->at_ns) / 1e9;
    long per_second = sysconf(_SC_CLK_TCK), processors = sysconf(_SC_NPROCESSORS_ONLN);
    double used = ticks > s->ticks && seconds > 0
                      ? (double)(ticks - s->ticks) / (double)per_second / seconds * 100.0 / (double)processors
                      : 0;
    s->ticks = ticks;
    s->at_ns = now;
    double total =
        (double)(sk_init_state.memory_bytes > 0 ? (uint64_t)sk_init_state.memory_bytes : uv_get_total_memory());
    return json_pack("{s:f,s:f,s:f,s:f,s:I}", "cpu_count", (double)processors, "cpu_used_pct",
                     used > 100 ? 100.0 : used, "mem_total_mib", total / 1048576.0, "mem_used_mib",
                     (double)pages * (double)sysconf(_SC_PAGESIZE) / 1048576.0, "timestamp",
                     (json_int_t)sk_init_now_ms());
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_closed(struct sk_stream *x, bool complete)
{
    struct sampler *s = sk_stream_arg(x);
    (void)complete;
    s->x = NULL;
    uv_close((uv_handle_t *)&s->timer, on_timer_closed);
}

static void on_timer(uv_timer_t *timer)
{
    struct sampler *s = timer->data;
    if (s->x == NULL)
        return;
    if (!s->watch) {
        sk_init_reply_json(s->x, 200, sample(s));
        return;
    }
    json_t *json = sample(s);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (text != NULL && (!sk_stream_write(s->x, text, strlen(text)) || !sk_stream_write(s->x, "\n", 1)))
        sk_stream_abort(s->x); /* a watcher that does not read for this long is gone */
    free(text);
}

static const struct sk_stream_ops ops = {.on_close = on_closed};

static void begin(struct sk_stream *x, bool watch)
{
    struct sampler *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        sk_stream_abort(x);
        return;
    }
    uint64_t pages;
    s->x = x;
    s->watch = watch;
    s->timer.data = s;
    s->at_ns = uv_hrtime();
    totals(&s->ticks, &pages);
    uv_timer_init(&sk_init_state.loop, &s->timer);
    uv_timer_start(&s->timer, on_timer, SAMPLE_MS, watch ? WATCH_MS : 0);
    sk_stream_set(x, &ops, s);
    if (watch) {
        const struct sk_stream_header type = {"Content-Type", "text/event-stream"};
        sk_stream_start(x, 200, &type, 1, SK_STREAM_CHUNKED);
    }
}

void sk_init_metrics(struct sk_stream *x)
{
    begin(x, false);
}

void sk_init_metrics_watch(struct sk_stream *x)
{
    begin(x, true);
}
