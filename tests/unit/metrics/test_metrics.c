/* SPDX-License-Identifier: Apache-2.0
 * Prometheus text: values, labels, histograms, escaping, closed label sets, updates from threads. */
#include "common/metrics/metrics.h"
#include "tests/unit/check_main.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

static const char *const ops[] = {"ensure", "stop", NULL};
static const char *const results[] = {"ok", "fail\"ed\\\n", NULL};
static const double buckets[] = {0.1, 1, 10, 0};

static struct sk_metric counter = {.name = "test_operations_total",
                                   .help = "Operations\\ that\nended.",
                                   .kind = SK_METRIC_COUNTER,
                                   .labels = {{"op", ops}, {"result", results}}};
static struct sk_metric gauge = {.name = "test_depth", .help = "Depth.", .kind = SK_METRIC_GAUGE};
static struct sk_metric histogram = {.name = "test_duration_seconds",
                                     .help = "Time.",
                                     .kind = SK_METRIC_HISTOGRAM,
                                     .labels = {{"op", ops}},
                                     .buckets = buckets};

static char *scrape(void)
{
    static char *text;
    static size_t len;
    FILE *out = open_memstream(&text, &len);

    sk_metrics_write(out);
    fclose(out);
    return text;
}

static void expect_line(const char *text, const char *line)
{
    char *wanted;
    int len = asprintf(&wanted, "\n%s\n", line);

    ck_assert_int_gt(len, 0);
    ck_assert_msg(strstr(text, wanted) != NULL, "no line: %s\nin:\n%s", line, text);
    free(wanted);
}

START_TEST(test_text_format)
{
    char *text, *once;

    sk_metric_register(&counter);
    sk_metric_register(&gauge);
    sk_metric_register(&histogram);
    sk_metric_register(&counter); /* again: allowed */
    sk_metric_add(&counter, 0, 0, 3);
    sk_metric_add(&counter, 1, 1, 1);
    sk_metric_add(&counter, 1, 1, -5); /* counters never fall */
    sk_metric_set(&gauge, 0, 0, 10);
    sk_metric_add(&gauge, 0, 0, -12);
    sk_metric_observe(&histogram, 0, 0, 0.1);
    sk_metric_observe(&histogram, 0, 0, 0.1000001);
    sk_metric_observe(&histogram, 0, 0, 5);
    sk_metric_observe(&histogram, 0, 0, 500);
    sk_metric_observe(&histogram, 0, 0, NAN);
    sk_metric_observe(&histogram, 0, 0, INFINITY);
    sk_metric_observe(&histogram, 0, 0, -1);
    text = scrape();
    ck_assert_ptr_nonnull(strstr(text, "# HELP test_operations_total Operations\\\\ that\\nended.\n"
                                       "# TYPE test_operations_total counter\n"));
    expect_line(text, "test_operations_total{op=\"ensure\",result=\"ok\"} 3");
    expect_line(text, "test_operations_total{op=\"ensure\",result=\"fail\\\"ed\\\\\\n\"} 0");
    expect_line(text, "test_operations_total{op=\"stop\",result=\"fail\\\"ed\\\\\\n\"} 1");
    expect_line(text, "test_depth -2");
    expect_line(text, "test_duration_seconds_bucket{op=\"ensure\",le=\"0.1\"} 1");
    expect_line(text, "test_duration_seconds_bucket{op=\"ensure\",le=\"1\"} 2");
    expect_line(text, "test_duration_seconds_bucket{op=\"ensure\",le=\"10\"} 3");
    expect_line(text, "test_duration_seconds_bucket{op=\"ensure\",le=\"+Inf\"} 4");
    expect_line(text, "test_duration_seconds_count{op=\"ensure\"} 4");
    expect_line(text, "test_duration_seconds_sum{op=\"ensure\"} 505.2");
    expect_line(text, "test_duration_seconds_count{op=\"stop\"} 0");
    ck_assert_ptr_nonnull(strstr(text, "\nprocess_threads "));
    ck_assert_ptr_nonnull(strstr(text, "\nsandkeep_build_info{version=\""));
    ck_assert_ptr_nonnull(strstr(text, "\nprocess_resident_memory_bytes "));
    ck_assert_ptr_nonnull(strstr(text, "\nprocess_open_fds "));
    ck_assert_ptr_nonnull(strstr(text, "\nprocess_cpu_seconds_total "));
    ck_assert_ptr_nonnull(strstr(text, "\nprocess_start_time_seconds "));
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
    ck_assert_int_eq(sk_metric_get(&counter, 0, 0), 3);
    ck_assert_int_eq(sk_metric_get(&histogram, 0, 0), 4);
    /* Each metric stands once. */
    once = strstr(text, "# TYPE test_operations_total");
    ck_assert_ptr_nonnull(once);
    ck_assert_ptr_null(strstr(once + 1, "# TYPE test_operations_total"));
    free(text);
}
END_TEST

START_TEST(test_labels_outside_of_the_set_are_dropped)
{
    sk_metric_register(&counter);
    sk_metric_add(&counter, 2, 0, 1);
    sk_metric_add(&counter, -1, 0, 1);
    sk_metric_add(&counter, 0, 2, 1);
    sk_metric_set(&gauge, 1, 0, 1);
    sk_metric_observe(&histogram, 5, 0, 1);
    sk_metric_observe(&histogram, 0, 0, 1); /* not registered: dropped, no crash */
    for (int i = 0; i < SK_METRIC_SERIES_MAX; i++)
        ck_assert_int_eq(counter.series[i], 0);
    ck_assert_int_eq(sk_metric_get(&counter, 9, 9), 0);
}
END_TEST

static double read_value(void *arg)
{
    return *(double *)arg;
}

START_TEST(test_gauge_read_at_scrape_time)
{
    static double value = 1.25;
    static struct sk_metric read_gauge = {
        .name = "test_read", .help = "h", .kind = SK_METRIC_GAUGE, .read = read_value, .read_arg = &value};
    char *text;

    sk_metric_register(&read_gauge);
    text = scrape();
    expect_line(text, "test_read 1.25");
    free(text);
    value = NAN;
    text = scrape();
    expect_line(text, "test_read NaN");
    free(text);
    value = -INFINITY;
    text = scrape();
    expect_line(text, "test_read -Inf");
    free(text);
}
END_TEST

static void *update_thread(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++) {
        sk_metric_add(&counter, 0, 0, 1);
        sk_metric_observe(&histogram, 1, 0, 0.5);
    }
    return NULL;
}

START_TEST(test_updates_from_threads)
{
    pthread_t threads[4];

    sk_metric_register(&counter);
    sk_metric_register(&histogram);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, update_thread, NULL);
    for (int i = 0; i < 20; i++)
        free(scrape());
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(sk_metric_get(&counter, 0, 0), 80000);
    ck_assert_int_eq(sk_metric_get(&histogram, 1, 0), 80000);
}
END_TEST

/* Wrong declarations end the process at start, where a test or the first run sees it. */
static void expect_abort(struct sk_metric *metric)
{
    fclose(stderr);
    sk_metric_register(metric);
}

static const char *const ten[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", NULL};
static const double falling[] = {2, 1, 0};

START_TEST(test_too_many_series_abort)
{
    static struct sk_metric bad = {.name = "bad", .kind = SK_METRIC_COUNTER, .labels = {{"a", ten}, {"b", ten}}};
    expect_abort(&bad);
}
END_TEST

START_TEST(test_falling_buckets_abort)
{
    static struct sk_metric bad = {.name = "bad", .kind = SK_METRIC_HISTOGRAM, .buckets = falling};
    expect_abort(&bad);
}
END_TEST

START_TEST(test_same_name_aborts)
{
    static struct sk_metric bad = {.name = "test_depth", .kind = SK_METRIC_GAUGE};
    sk_metric_register(&gauge);
    expect_abort(&bad);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *tcase = tcase_create("metrics");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_set_timeout(tcase, SK_CHECK_TIMEOUT);
    tcase_add_test(tcase, test_text_format);
    tcase_add_test(tcase, test_labels_outside_of_the_set_are_dropped);
    tcase_add_test(tcase, test_gauge_read_at_scrape_time);
    tcase_add_test(tcase, test_updates_from_threads);
    tcase_add_test_raise_signal(tcase, test_too_many_series_abort, SIGABRT);
    tcase_add_test_raise_signal(tcase, test_falling_buckets_abort, SIGABRT);
    tcase_add_test_raise_signal(tcase, test_same_name_aborts, SIGABRT);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
