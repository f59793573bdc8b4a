/* SPDX-License-Identifier: Apache-2.0
 * Readiness by dependency, liveness by heartbeat and checks, what is logged and shown, reports from threads. */
#include "common/health/health.h"

#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "tests/unit/check_main.h"

#include <jansson.h>
#include <pthread.h>
#include <string.h>

static int64_t now_us;

static int64_t fake_wall(void *self)
{
    (void)self;
    return 1796025600000 + now_us / 1000;
}

static int64_t fake_mono(void *self)
{
    (void)self;
    return now_us;
}

static const struct sk_sched_ops fake_ops = {.wall_ms = fake_wall, .mono_us = fake_mono};
static const struct sk_sched fake = {.ops = &fake_ops};

static int lines;
static char last_line[8200];

static void capture(void *arg, const char *line, size_t len)
{
    (void)arg;
    lines++;
    memcpy(last_line, line, len);
    last_line[len] = '\0';
}

static json_t *written(struct sk_health *health, bool verbose, bool expected)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    json_t *object;

    ck_assert_int_eq(sk_health_write(health, verbose, out), expected);
    fclose(out);
    object = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(object != NULL, "%s", text);
    free(text);
    return object;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text != NULL ? text : "(absent)";
}

START_TEST(test_ready_when_all_required_are_up)
{
    struct sk_health *health = sk_health_new(&fake);
    struct sk_dependency *mongo = sk_health_add(health, "mongo", true), *nats = sk_health_add(health, "nats", true);
    struct sk_dependency *provider = sk_health_add(health, "provider", false);

    sk_log_capture(capture, NULL);
    ck_assert(!sk_health_ready(health));
    sk_dependency_up(mongo);
    sk_dependency_up(nats);
    ck_assert(!sk_health_ready(health)); /* not started */
    sk_health_set_started(health);
    ck_assert(sk_health_ready(health)); /* the provider is optional */
    sk_dependency_down(provider, NULL);
    ck_assert(sk_health_ready(health));
    sk_dependency_down(mongo, NULL);
    ck_assert(!sk_health_ready(health));
    ck_assert_int_eq(sk_dependency_state(mongo), SK_DEPENDENCY_DOWN);
    sk_dependency_up(mongo);
    ck_assert(sk_health_ready(health));
    sk_health_set_draining(health);
    ck_assert(!sk_health_ready(health));
    sk_dependency_up(NULL);
    sk_dependency_down(NULL, NULL);
    sk_health_free(health);
    sk_health_free(NULL);
}
END_TEST

START_TEST(test_changes_are_logged_once)
{
    struct sk_health *health = sk_health_new(&fake);
    struct sk_dependency *mongo = sk_health_add(health, "mongo", true);
    struct sk_error err = {0};

    sk_log_capture(capture, NULL);
    sk_fail(&err, SK_ERR_STORE_UNAVAILABLE, "no primary");
    now_us += 1500000;
    sk_dependency_down(mongo, &err);
    ck_assert_int_eq(lines, 1);
    ck_assert_ptr_nonnull(strstr(last_line, "\"dependency\":\"mongo\""));
    ck_assert_ptr_nonnull(strstr(last_line, "\"error.code\":\"store_unavailable\""));
    ck_assert_ptr_nonnull(strstr(last_line, "\"afterMs\":1500"));
    sk_dependency_down(mongo, &err);
    sk_dependency_down(mongo, &err);
    ck_assert_int_eq(lines, 1);
    sk_dependency_up(mongo);
    sk_dependency_up(mongo);
    ck_assert_int_eq(lines, 2);
    sk_health_free(health);
}
END_TEST

START_TEST(test_what_readyz_shows)
{
    struct sk_health *health = sk_health_new(&fake);
    struct sk_dependency *mongo = sk_health_add(health, "mongo", true);
    struct sk_error err = {0};
    json_t *object, *first;

    sk_log_capture(capture, NULL);
    (void)!sk_health_add(health, "redis", false);
    object = written(health, false, false);
    ck_assert_str_eq(text_of(object, "status"), "starting");
    json_decref(object);
    sk_health_set_started(health);
    sk_fail(&err, SK_ERR_STORE_UNAVAILABLE, "a \"quoted\" \n bad \xff byte");
    now_us += 2000000;
    sk_dependency_down(mongo, &err);
    object = written(health, false, false);
    ck_assert_str_eq(text_of(object, "status"), "unready");
    ck_assert_uint_eq(json_array_size(json_object_get(object, "dependencies")), 2);
    first = json_array_get(json_object_get(object, "dependencies"), 0);
    ck_assert_str_eq(text_of(first, "name"), "mongo");
    ck_assert_str_eq(text_of(first, "state"), "down");
    ck_assert_str_eq(text_of(json_object_get(first, "lastError"), "code"), "store_unavailable");
    ck_assert_str_eq(text_of(json_object_get(first, "lastError"), "message"), "a \"quoted\" \n bad \xef\xbf\xbd byte");
    ck_assert_ptr_null(json_object_get(first, "since"));
    json_decref(object);
    sk_dependency_up(mongo);
    object = written(health, true, true);
    ck_assert_str_eq(text_of(object, "status"), "ready");
    first = json_array_get(json_object_get(object, "dependencies"), 0);
    ck_assert_str_eq(text_of(first, "state"), "up");
    ck_assert_str_eq(text_of(first, "since"), "2026-11-30T08:00:02.000Z");
    ck_assert(json_is_true(json_object_get(first, "required")));
    ck_assert_str_eq(text_of(json_object_get(first, "lastError"), "code"), "store_unavailable"); /* stays visible */
    json_decref(object);
    sk_health_set_draining(health);
    object = written(health, true, false);
    ck_assert_str_eq(text_of(object, "status"), "draining");
    json_decref(object);
    sk_health_free(health);
}
END_TEST

static bool worker_check(void *arg, char *why, size_t size)
{
    int late = *(int *)arg;

    if (late > 0)
        snprintf(why, size, "%d late", late);
    return late == 0;
}

START_TEST(test_liveness)
{
    struct sk_health *health = sk_health_new(&fake);
    char why[100] = "";
    int late = 0;

    (void)!sk_health_add(health, "mongo", true); /* down, which does not matter */
    ck_assert(sk_health_live(health, why, sizeof(why)));
    now_us += SK_HEALTH_BEAT_LIMIT_MS * 1000;
    ck_assert(sk_health_live(health, why, sizeof(why)));
    now_us += 1000;
    ck_assert(!sk_health_live(health, why, sizeof(why)));
    ck_assert_str_eq(why, "loop: no turn for 15001 ms");
    sk_health_beat(health);
    ck_assert(sk_health_live(health, why, sizeof(why)));
    ck_assert(sk_health_add_live_check(health, "workers", worker_check, &late));
    ck_assert(sk_health_live(health, why, sizeof(why)));
    late = 2;
    ck_assert(!sk_health_live(health, why, sizeof(why)));
    ck_assert_str_eq(why, "workers: 2 late");
    for (int i = 1; i < SK_HEALTH_CHECKS_MAX; i++)
        ck_assert(sk_health_add_live_check(health, "x", worker_check, &late));
    ck_assert(!sk_health_add_live_check(health, "one too many", worker_check, &late));
    sk_health_free(health);
}
END_TEST

START_TEST(test_bounds)
{
    struct sk_health *health = sk_health_new(&fake);

    for (int i = 0; i < SK_HEALTH_DEPENDENCIES_MAX; i++)
        ck_assert_ptr_nonnull(sk_health_add(health, "x", false));
    ck_assert_ptr_null(sk_health_add(health, "x", false));
    sk_health_free(health);
}
END_TEST

START_TEST(test_metrics)
{
    struct sk_health *health = sk_health_new(&fake);
    struct sk_dependency *mongo = sk_health_add(health, "mongo", true);
    char *text;
    size_t len;
    FILE *out;

    sk_log_capture(capture, NULL);
    (void)!sk_health_add(health, "nats", false);
    sk_dependency_up(mongo);
    sk_health_register_metrics(health);
    sk_health_set_started(health);
    out = open_memstream(&text, &len);
    sk_metrics_write(out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "\nsandkeep_dependency_up{dependency=\"mongo\"} 1\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nsandkeep_dependency_up{dependency=\"nats\"} 0\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nsandkeep_ready 1\n"));
    free(text);
    sk_dependency_down(mongo, NULL);
    out = open_memstream(&text, &len);
    sk_metrics_write(out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "\nsandkeep_dependency_up{dependency=\"mongo\"} 0\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nsandkeep_ready 0\n"));
    free(text);
    sk_health_free(health);
}
END_TEST

static void *reporter(void *arg)
{
    struct sk_error err = {0};

    sk_fail(&err, SK_ERR_STORE_UNAVAILABLE, "gone");
    for (int i = 0; i < 2000; i++) {
        if (i % 2 == 0)
            sk_dependency_down(arg, &err);
        else
            sk_dependency_up(arg);
    }
    return NULL;
}

START_TEST(test_reports_from_threads)
{
    struct sk_health *health = sk_health_new(&fake);
    struct sk_dependency *mongo = sk_health_add(health, "mongo", true);
    pthread_t threads[3];
    char why[64];

    sk_log_capture(capture, NULL);
    sk_health_set_started(health);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, reporter, mongo);
    for (int i = 0; i < 200; i++) {
        FILE *null = fopen("/dev/null", "w");
        sk_health_write(health, true, null);
        fclose(null);
        sk_health_live(health, why, sizeof(why));
        sk_health_beat(health);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(sk_dependency_state(mongo), SK_DEPENDENCY_UP);
    sk_health_free(health);
}
END_TEST

SK_CHECK_MAIN("health", test_ready_when_all_required_are_up, test_changes_are_logged_once, test_what_readyz_shows,
              test_liveness, test_bounds, test_metrics, test_reports_from_threads)
