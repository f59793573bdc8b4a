/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry: one mutex over a handful of fixed slots. */
#include "common/health/health.h"

#include "common/base/id.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct sk_dependency {
    struct sk_health *health;
    const char *name;
    int index;
    bool required;
    enum sk_dependency_state state;
    int64_t since_ms;      /* wall clock, of the last change of state */
    struct sk_error error; /* the last one; code SK_OK = never any */
    int64_t error_ms;
};

struct live_check {
    const char *name;
    bool (*check)(void *arg, char *why, size_t size);
    void *arg;
};

struct sk_health {
    const struct sk_sched *sched;
    pthread_mutex_t lock;
    struct sk_dependency dependencies[SK_HEALTH_DEPENDENCIES_MAX];
    struct live_check checks[SK_HEALTH_CHECKS_MAX];
    int dependency_count, check_count;
    bool started, draining;
    atomic_llong beat_us;
    bool has_metrics;
};

static const char *const state_names[] = {"starting", "up", "down"};

/* One registry of a process is shown in the metrics: the label values are the names it has. */
static const char *gauge_names[SK_HEALTH_DEPENDENCIES_MAX + 1];
static struct sk_metric dependency_gauge = {.name = "sandkeep_dependency_up",
                                            .help = "1 while the dependency can be used.",
                                            .kind = SK_METRIC_GAUGE,
                                            .labels = {{"dependency", gauge_names}}};

static double read_ready(void *arg)
{
    return sk_health_ready(arg) ? 1 : 0;
}

static struct sk_metric ready_gauge = {
    .name = "sandkeep_ready", .help = "1 while /readyz says ready.", .kind = SK_METRIC_GAUGE, .read = read_ready};

struct sk_health *sk_health_new(const struct sk_sched *sched)
{
    struct sk_health *health = calloc(1, sizeof(*health));

    if (health == NULL)
        return NULL;
    health->sched = sched;
    pthread_mutex_init(&health->lock, NULL);
    atomic_init(&health->beat_us, sk_mono_us(sched));
    return health;
}

void sk_health_free(struct sk_health *health)
{
    if (health == NULL)
        return;
    pthread_mutex_destroy(&health->lock);
    free(health);
}

struct sk_dependency *sk_health_add(struct sk_health *health, const char *name, bool required)
{
    struct sk_dependency *dependency;

    if (health->dependency_count == SK_HEALTH_DEPENDENCIES_MAX)
        return NULL;
    dependency = &health->dependencies[health->dependency_count];
    dependency->health = health;
    dependency->name = name;
    dependency->index = health->dependency_count++;
    dependency->required = required;
    dependency->since_ms = sk_wall_ms(health->sched);
    return dependency;
}

void sk_health_register_metrics(struct sk_health *health)
{
    ready_gauge.read_arg = health;
    sk_metric_register(&ready_gauge);
    if (health->dependency_count == 0)
        return;
    /* Not under the lock: a scrape holds the list of metrics and asks read_ready, which takes it. */
    for (int i = 0; i < health->dependency_count; i++)
        gauge_names[i] = health->dependencies[i].name;
    sk_metric_register(&dependency_gauge);
    pthread_mutex_lock(&health->lock);
    for (int i = 0; i < health->dependency_count; i++)
        sk_metric_set(&dependency_gauge, i, 0, health->dependencies[i].state == SK_DEPENDENCY_UP);
    health->has_metrics = true;
    pthread_mutex_unlock(&health->lock);
}

/* The line is written outside of the lock: stderr may be slow. */
static void report(struct sk_dependency *dependency, enum sk_dependency_state state, const struct sk_error *err)
{
    struct sk_health *health;
    int64_t now, lasted = 0;
    bool changed;

    if (dependency == NULL)
        return;
    health = dependency->health;
    now = sk_wall_ms(health->sched);
    pthread_mutex_lock(&health->lock);
    changed = dependency->state != state;
    if (err != NULL) {
        dependency->error = *err;
        dependency->error_ms = now;
    }
    if (changed) {
        lasted = now - dependency->since_ms;
        dependency->state = state;
        dependency->since_ms = now;
        if (health->has_metrics)
            sk_metric_set(&dependency_gauge, dependency->index, 0, state == SK_DEPENDENCY_UP);
    }
    pthread_mutex_unlock(&health->lock);
    if (changed && state == SK_DEPENDENCY_UP)
        SK_LOG_INFO("dependency is up", SK_F("dependency", dependency->name), SK_FI("afterMs", lasted));
    else if (changed)
        SK_LOG_WARN("dependency is down", SK_F("dependency", dependency->name), SK_FI("afterMs", lasted), SK_FE(err));
}

void sk_dependency_up(struct sk_dependency *dependency)
{
    report(dependency, SK_DEPENDENCY_UP, NULL);
}

void sk_dependency_down(struct sk_dependency *dependency, const struct sk_error *err)
{
    report(dependency, SK_DEPENDENCY_DOWN, err);
}

enum sk_dependency_state sk_dependency_state(struct sk_dependency *dependency)
{
    enum sk_dependency_state state;

    pthread_mutex_lock(&dependency->health->lock);
    state = dependency->state;
    pthread_mutex_unlock(&dependency->health->lock);
    return state;
}

void sk_health_set_started(struct sk_health *health)
{
    pthread_mutex_lock(&health->lock);
    health->started = true;
    pthread_mutex_unlock(&health->lock);
}

void sk_health_set_draining(struct sk_health *health)
{
    pthread_mutex_lock(&health->lock);
    health->draining = true;
    pthread_mutex_unlock(&health->lock);
}

/* Under the lock. */
static bool is_ready(const struct sk_health *health)
{
    bool ready = health->started && !health->draining;

    for (int i = 0; i < health->dependency_count; i++) {
        const struct sk_dependency *dependency = &health->dependencies[i];
        ready = ready && (!dependency->required || dependency->state == SK_DEPENDENCY_UP);
    }
    return ready;
}

bool sk_health_ready(struct sk_health *health)
{
    bool ready;

    pthread_mutex_lock(&health->lock);
    ready = is_ready(health);
    pthread_mutex_unlock(&health->lock);
    return ready;
}

static void write_string(FILE *out, const char *text)
{
    size_t len = strlen(text);

    fputc('"', out);
    for (size_t at = 0; at < len;) {
        size_t size = sk_utf8_sequence(text + at, len - at);
        unsigned char c = (unsigned char)text[at];
        if (size == 0)
            fputs("\xef\xbf\xbd", out);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fwrite(text + at, 1, size, out);
        at += size > 0 ? size : 1;
    }
    fputc('"', out);
}

static void write_dependency(FILE *out, const struct sk_dependency *dependency, bool verbose)
{
    char time[SK_TIME_SIZE];

    fputs("{\"name\":", out);
    write_string(out, dependency->name);
    fprintf(out, ",\"state\":\"%s\"", state_names[dependency->state]);
    if (verbose) {
        sk_time_format(dependency->since_ms, time);
        fprintf(out, ",\"required\":%s,\"since\":\"%s\"", dependency->required ? "true" : "false", time);
    }
    if (dependency->error.code != SK_OK) {
        fprintf(out, ",\"lastError\":{\"code\":\"%s\",\"message\":", sk_code_name(dependency->error.code));
        write_string(out, dependency->error.message);
        sk_time_format(dependency->error_ms, time);
        fprintf(out, ",\"at\":\"%s\"}", time);
    }
    fputc('}', out);
}

bool sk_health_write(struct sk_health *health, bool verbose, FILE *out)
{
    struct sk_health copy; /* formatting does not need the lock */
    bool ready;

    pthread_mutex_lock(&health->lock);
    ready = is_ready(health);
    copy.dependency_count = health->dependency_count;
    copy.started = health->started;
    copy.draining = health->draining;
    memcpy(copy.dependencies, health->dependencies, sizeof(copy.dependencies));
    pthread_mutex_unlock(&health->lock);

    fprintf(out, "{\"status\":\"%s\"",
            ready           ? "ready"
            : copy.draining ? "draining"
            : !copy.started ? "starting"
                            : "unready");
    fputs(",\"dependencies\":[", out);
    for (int i = 0; i < copy.dependency_count; i++) {
        if (i > 0)
            fputc(',', out);
        write_dependency(out, &copy.dependencies[i], verbose);
    }
    fputs("]}\n", out);
    return ready;
}

void sk_health_beat(struct sk_health *health)
{
    atomic_store_explicit(&health->beat_us, sk_mono_us(health->sched), memory_order_relaxed);
}

bool sk_health_add_live_check(struct sk_health *health, const char *name,
                              bool (*check)(void *arg, char *why, size_t size), void *arg)
{
    bool room;

    pthread_mutex_lock(&health->lock);
    room = health->check_count < SK_HEALTH_CHECKS_MAX;
    if (room)
        health->checks[health->check_count++] = (struct live_check){name, check, arg};
    pthread_mutex_unlock(&health->lock);
    return room;
}

bool sk_health_live(struct sk_health *health, char *why, size_t size)
{
    int64_t age_ms = (sk_mono_us(health->sched) - atomic_load_explicit(&health->beat_us, memory_order_relaxed)) / 1000;
    struct live_check checks[SK_HEALTH_CHECKS_MAX];
    char reason[200] = "";
    int count;

    if (age_ms > SK_HEALTH_BEAT_LIMIT_MS) {
        snprintf(why, size, "loop: no turn for %lld ms", (long long)age_ms);
        return false;
    }
    pthread_mutex_lock(&health->lock);
    count = health->check_count;
    memcpy(checks, health->checks, sizeof(checks));
    pthread_mutex_unlock(&health->lock);
    for (int i = 0; i < count; i++) {
        if (!checks[i].check(checks[i].arg, reason, sizeof(reason))) {
            snprintf(why, size, "%s: %s", checks[i].name, reason);
            return false;
        }
    }
    return true;
}
