/* SPDX-License-Identifier: Apache-2.0
 *
 * The clocks of a load, collected durations and what is said about them. All are kept: a percentile of a histogram
 * would be as coarse as its buckets. */
#include "tests/bench/programs/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

int64_t load_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t load_cpu_us(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
}

void samples_init(struct samples *s)
{
    memset(s, 0, sizeof(*s));
    pthread_mutex_init(&s->lock, NULL);
}

void samples_add(struct samples *s, int64_t value)
{
    pthread_mutex_lock(&s->lock);
    if (s->count == s->capacity) {
        size_t capacity = s->capacity == 0 ? 4096 : s->capacity * 2;
        int64_t *values = realloc(s->values, capacity * sizeof(*values));

        if (values == NULL) {
            fprintf(stderr, "out of memory\n");
            exit(1);
        }
        s->values = values;
        s->capacity = capacity;
    }
    s->values[s->count++] = value;
    pthread_mutex_unlock(&s->lock);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int64_t percentile(const struct samples *s, int per_mille)
{
    size_t index = s->count * (size_t)per_mille / 1000;

    if (s->count == 0)
        return 0;
    return s->values[index < s->count ? index : s->count - 1];
}

json_t *samples_json(struct samples *s)
{
    double sum = 0;
    json_t *json;

    pthread_mutex_lock(&s->lock);
    if (s->count > 0)
        qsort(s->values, s->count, sizeof(*s->values), compare);
    for (size_t i = 0; i < s->count; i++)
        sum += (double)s->values[i];
    json = json_pack("{s:I,s:f,s:I,s:I,s:I,s:I}", "count", (json_int_t)s->count, "meanUs",
                     s->count > 0 ? sum / (double)s->count : 0.0, "p50Us", (json_int_t)percentile(s, 500), "p95Us",
                     (json_int_t)percentile(s, 950), "p99Us", (json_int_t)percentile(s, 990), "maxUs",
                     (json_int_t)percentile(s, 1000));
    pthread_mutex_unlock(&s->lock);
    return json;
}

int samples_write(struct samples *s, const char *path)
{
    FILE *file = fopen(path, "w");

    if (file == NULL) {
        perror(path);
        return -1;
    }
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->count; i++)
        fprintf(file, "%lld\n", (long long)s->values[i]);
    pthread_mutex_unlock(&s->lock);
    return fclose(file) == 0 ? 0 : -1;
}
