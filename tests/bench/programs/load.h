/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-bench-load: one program of several loads, each a file. A load prints one JSON object on stdout when it is done. */
#ifndef SK_BENCH_LOAD_H
#define SK_BENCH_LOAD_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Every option of every load; a load ignores what it does not know. */
struct load_options {
    const char *mongo, *nats, *tag, *samples, *sandbox;
    int clients;               /* bare: threads; cycle: sandboxes; burst: commands */
    double seconds;            /* of measuring */
    double warm_up;            /* seconds before, not measured */
    double rate;               /* operations a second; 0 = as fast as the answers come */
    int64_t documents;         /* fill */
    int due;                   /* fill: running ones that are idle for too long */
    bool events;               /* cycle: measure the delay of lifecycle events */
    const char *sort, *filter; /* pages */
    int limit;
};

int64_t load_now_us(void); /* monotonic */
int64_t load_cpu_us(void); /* user + system of this process */

/* Durations in microseconds, collected by several threads. */
struct samples {
    pthread_mutex_t lock;
    int64_t *values;
    size_t count, capacity;
};
void samples_init(struct samples *samples);
void samples_add(struct samples *samples, int64_t value);
/* Sorts; {"count","meanUs","p50Us","p95Us","p99Us","maxUs"}. */
json_t *samples_json(struct samples *samples);
/* One value a line. */
int samples_write(struct samples *samples, const char *path);

void load_sandbox(const char *tag, int index, char source_id[64], char sandbox_id[64]);

int load_bare(const struct load_options *options);
int load_cycle(const struct load_options *options);
int load_burst(const struct load_options *options);
int load_fill(const struct load_options *options);
int load_pages(const struct load_options *options);

#endif
