/* SPDX-License-Identifier: Apache-2.0
 * When events that were published are written to the timeline: an operation's together at its end, those of one that
 * lasts after a while, all of them at once when somebody waits for an empty outbox. */
#include "tests/unit/check_main.h"
#include "tests/unit/lifecycle/fakes.h"

#include <stdio.h>
#include <string.h>

#define SANDBOX "app-8a3cb7a4e074fa1d"
#define OTHER   "app-0123456789abcdef"

static struct fake f;
static struct lc_puller puller;
static int applied, pulled; /* events of the last write */
static bool store_fails;

static int timeline_apply(void *self, const struct sk_event *events, int count, struct sk_error *err)
{
    (void)self;
    (void)events;
    if (store_fails)
        return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "a test says so");
    applied = count;
    return 0;
}

static int outbox_pull(void *self, const char (*sandbox_ids)[SK_SANDBOX_ID_SIZE], int sandbox_count,
                       const char (*event_ids)[SK_ULID_SIZE], int event_count, struct sk_error *err)
{
    (void)self;
    (void)sandbox_ids;
    (void)sandbox_count;
    (void)event_ids;
    (void)err;
    pulled = event_count;
    return 0;
}

static void start(void)
{
    static const struct sk_store_ops ops = {.timeline_apply = timeline_apply, .outbox_pull = outbox_pull};
    static struct sk_store store = {.ops = &ops};

    fake_start(&f, NULL);
    f.replica->seams.store = &store;
    ck_assert(lc_puller_init(&puller, f.replica));
    applied = pulled = 0;
    store_fails = false;
}

static void stop(void)
{
    lc_puller_fini(&puller);
    fake_stop(&f);
}

static void publish_of(const char *sandbox_id, enum sk_event_type type, const char *operation)
{
    static int serial;
    struct sk_event event = {.type = type, .operation_type = SK_OP_PROVISION, .sequence = ++serial};

    snprintf(event.id, sizeof(event.id), "%026d", serial);
    strcpy(event.sandbox_id, sandbox_id);
    strcpy(event.operation_id, operation);
    lc_pull_later(f.replica, &event, false);
}

static void publish(enum sk_event_type type, const char *operation)
{
    publish_of(SANDBOX, type, operation);
}

static int64_t due_in(void)
{
    return lc_pull_in_ms(f.replica);
}

START_TEST(test_operation_is_written_once_at_its_end)
{
    int64_t window;

    start();
    window = f.replica->settings.relay_window_ms;
    publish(SK_EVENT_CLAIMED, "one");
    publish(SK_EVENT_PHASE, "one");
    ck_assert_int_gt(due_in(), window);
    fake_advance(&f, window);
    ck_assert_int_gt(due_in(), 0);
    publish(SK_EVENT_COMPLETED, "one");
    ck_assert_int_eq(due_in(), window);
    fake_advance(&f, window);
    ck_assert_int_eq(due_in(), 0);
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(applied, 3);
    ck_assert_int_eq(pulled, 3);
    ck_assert_int_eq(due_in(), -1);
    ck_assert_int_eq(atomic_load(&f.replica->relay_pending), 0);
    stop();
}
END_TEST

START_TEST(test_others_do_not_wait_for_an_operation_that_runs)
{
    start();
    publish(SK_EVENT_CLAIMED, "long");
    publish_of(OTHER, SK_EVENT_CLAIMED, "short");
    publish_of(OTHER, SK_EVENT_COMPLETED, "short");
    fake_advance(&f, f.replica->settings.relay_window_ms);
    ck_assert_int_eq(due_in(), 0);
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(applied, 2);
    ck_assert_int_gt(due_in(), 0);
    ck_assert_int_eq(atomic_load(&f.replica->relay_pending), 1);
    stop();
}
END_TEST

/* What ends the sandbox's timeline (a delete) must find the entry of whom it overtook. */
START_TEST(test_who_lost_the_sandbox_is_written_with_the_end_of_the_next)
{
    start();
    publish(SK_EVENT_CLAIMED, "overtaken");
    publish(SK_EVENT_CLAIMED, "delete");
    publish(SK_EVENT_DELETED, "delete");
    fake_advance(&f, f.replica->settings.relay_window_ms);
    ck_assert_int_eq(due_in(), 0);
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(applied, 3);
    ck_assert_int_eq(due_in(), -1);
    stop();
}
END_TEST

START_TEST(test_long_operation_is_shown_while_it_runs)
{
    int64_t ms;

    start();
    publish(SK_EVENT_CLAIMED, "long");
    ms = due_in();
    /* Below half the period of the scan: another replica takes no event for left behind. */
    ck_assert_int_le(ms, f.replica->settings.relay_poll_ms / 2);
    fake_advance(&f, ms);
    ck_assert_int_le(due_in(), f.replica->settings.relay_window_ms);
    fake_advance(&f, due_in());
    ck_assert_int_eq(due_in(), 0);
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(applied, 1);
    f.replica->settings.relay_poll_ms = 100; /* a scan that looks more often */
    publish(SK_EVENT_PHASE, "long");
    ck_assert_int_le(due_in(), 50);
    stop();
}
END_TEST

START_TEST(test_a_drain_waits_for_no_end)
{
    start();
    publish(SK_EVENT_CLAIMED, "long");
    atomic_store(&f.replica->draining, true);
    ck_assert_int_eq(due_in(), 0);
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(atomic_load(&f.replica->relay_pending), 0);
    stop();
}
END_TEST

START_TEST(test_who_waits_for_an_empty_outbox_gets_it_at_once)
{
    start();
    publish(SK_EVENT_CLAIMED, "long");
    f.replica->pull_hurry = true;
    ck_assert_int_eq(due_in(), 0);
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(pulled, 1);
    ck_assert_int_eq(due_in(), -1);
    stop();
}
END_TEST

START_TEST(test_many_that_run_are_bounded)
{
    char operation[SK_UUID_SIZE];

    start();
    for (int i = 0; i < 2 * f.replica->settings.relay_batch; i++) {
        snprintf(operation, sizeof(operation), "operation-%d", i);
        publish(SK_EVENT_CLAIMED, operation);
    }
    ck_assert_int_eq(due_in(), 0); /* as many as may wait do; the rest is written now */
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(applied, f.replica->settings.relay_batch);
    stop();
}
END_TEST

START_TEST(test_failed_write_is_tried_again_whole)
{
    start();
    publish(SK_EVENT_CLAIMED, "one");
    publish(SK_EVENT_COMPLETED, "one");
    fake_advance(&f, f.replica->settings.relay_window_ms);
    store_fails = true;
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(pulled, 0);
    ck_assert_int_gt(due_in(), 0);
    store_fails = false;
    fake_advance(&f, due_in());
    lc_pull(&puller, f.replica);
    ck_assert_int_eq(applied, 2);
    ck_assert_int_eq(pulled, 2);
    stop();
}
END_TEST

SK_CHECK_MAIN("puller", test_operation_is_written_once_at_its_end, test_others_do_not_wait_for_an_operation_that_runs,
              test_who_lost_the_sandbox_is_written_with_the_end_of_the_next, test_long_operation_is_shown_while_it_runs,
              test_a_drain_waits_for_no_end, test_who_waits_for_an_empty_outbox_gets_it_at_once,
              test_many_that_run_are_bounded, test_failed_write_is_tried_again_whole)
