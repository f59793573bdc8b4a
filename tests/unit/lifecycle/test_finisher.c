/* SPDX-License-Identifier: Apache-2.0
 * The finisher's batches: a sandbox with hundreds of waiters does not hold up the answers of others, nor is
 * it held up by them for ever. */
#include "tests/unit/check_main.h"
#include "tests/unit/lifecycle/fakes.h"

#include <string.h>

#define BUSY    "app-8a3cb7a4e074fa1d"
#define OTHER   "app-3b49bb9a3adef32c"
#define WAITERS 300
#define BATCHES 32

static struct fake f;
static int busy[BATCHES], other[BATCHES], batches; /* results of each write */
static int64_t at_us[BATCHES], begun_us;
static void (*after_batch)(void);

static int command_put(void *self, const struct sk_command_record *records, int count, struct sk_error *err)
{
    (void)self;
    (void)err;
    ck_assert_int_lt(batches, BATCHES);
    for (int i = 0; i < count; i++) {
        if (strcmp(records[i].sandbox_id, BUSY) == 0)
            busy[batches]++;
        else
            other[batches]++;
    }
    at_us[batches++] = f.now_us;
    return 0;
}

static int publish_acked(void *self, const struct sk_message *messages, int count, bool *acked, int64_t timeout_ms,
                         struct sk_error *err)
{
    (void)self;
    (void)messages;
    (void)timeout_ms;
    (void)err;
    for (int i = 0; i < count; i++)
        acked[i] = true;
    return 0;
}

static int ack_many(void *self, struct sk_delivery **deliveries, int count, struct sk_error *err)
{
    (void)self;
    (void)err;
    for (int i = 0; i < count; i++)
        sk_delivery_drop(deliveries[i]);
    /* The end of the last batch: lc_finisher_main returns. */
    if (atomic_load(&f.replica->finishing) == count)
        atomic_store(&f.replica->stopping, true);
    else if (after_batch != NULL)
        after_batch();
    return 0;
}

/* The finisher's own seams; the rest stays the fakes'. */
static void start(void)
{
    static const struct sk_store_ops store_ops = {.command_put = command_put};
    static struct sk_store store = {.ops = &store_ops};
    static struct sk_bus_ops bus_ops;
    static struct sk_bus bus;

    fake_start(&f, NULL);
    bus_ops = *f.bus.ops;
    bus_ops.publish_acked = publish_acked;
    bus_ops.ack_many = ack_many;
    bus = (struct sk_bus){&bus_ops, &f};
    f.replica->seams.bus = &bus;
    f.replica->seams.store = &store;
    batches = 0;
    memset(busy, 0, sizeof(busy));
    memset(other, 0, sizeof(other));
    after_batch = NULL;
    begun_us = f.now_us;
}

/* The results of WAITERS + 1 commands of one sandbox are on their way. */
static void start_crowd(void)
{
    struct lc_job *job;
    char id[16];

    fake_send(&f, "stop", BUSY, "first", "");
    job = fake_take(&f);
    for (int i = 0; i < WAITERS; i++) {
        snprintf(id, sizeof(id), "w%d", i);
        fake_send(&f, "ensure", BUSY, id, "");
    }
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
}

static void answer_other(void)
{
    static int number;
    char id[16];

    snprintf(id, sizeof(id), "o%d", number++);
    fake_send(&f, "stop", OTHER, id, "");
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
}

START_TEST(test_no_sandbox_takes_more_than_its_share)
{
    int answered = 0, with_other = -1;

    start();
    start_crowd();
    answer_other();
    lc_finisher_main(f.replica);
    for (int i = 0; i < batches; i++) {
        answered += busy[i];
        ck_assert_int_le(busy[i], LC_FINISH_SHARE);
        if (other[i] > 0)
            with_other = i;
    }
    ck_assert_int_eq(answered, WAITERS + 1);
    ck_assert_int_eq(with_other, 0);             /* with the first of the busy one, although it came after them all */
    ck_assert_int_lt(f.now_us - begun_us, 1000); /* nobody else is at work: no pause */
    fake_stop(&f);
}
END_TEST

static void one_other_comes(void)
{
    if (batches == 3)
        answer_other();
}

/* Who comes between two slices is next, and alone. */
START_TEST(test_others_go_before_the_crowd)
{
    start();
    start_crowd();
    after_batch = one_other_comes;
    lc_finisher_main(f.replica);
    ck_assert_int_eq(busy[2], LC_FINISH_SHARE);
    ck_assert_int_eq(other[3], 1);
    ck_assert_int_eq(busy[3], 0);
    ck_assert_int_eq(busy[4], LC_FINISH_SHARE);
    fake_stop(&f);
}
END_TEST

/* While others are at work the crowd pauses after each slice, but gets its slice after each pause. */
START_TEST(test_the_crowd_gives_way_while_others_work)
{
    struct lc_job *job;

    start();
    start_crowd();
    fake_send(&f, "stop", OTHER, "o", "");
    job = fake_take(&f); /* it runs all the time */
    lc_finisher_main(f.replica);
    ck_assert_int_eq(batches, (WAITERS + 1 + LC_FINISH_SHARE - 1) / LC_FINISH_SHARE);
    for (int i = 1; i < batches; i++) /* the first share is no crowd */
        ck_assert_int_eq(at_us[i] - at_us[i - 1], LC_CROWD_PAUSE_MS * 1000);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    fake_stop(&f);
}
END_TEST

static void results_come_all_the_time(void)
{
    if (batches < 8)
        answer_other();
    f.now_us += LC_CROWD_PAUSE_MS * 1000; /* each batch takes that long */
}

/* However busy others are, the crowd is not starved: every second batch is its slice. */
START_TEST(test_the_crowd_is_not_starved)
{
    start();
    start_crowd();
    answer_other();
    after_batch = results_come_all_the_time;
    lc_finisher_main(f.replica);
    for (int i = 1; i < 8; i += 2) {
        ck_assert_int_eq(busy[i], LC_FINISH_SHARE);
        ck_assert_int_eq(other[i], 0);
        ck_assert_int_ge(other[i + 1], 1);
    }
    fake_stop(&f);
}
END_TEST

static void time_passes(void)
{
    f.now_us += f.settings.in_progress_every_ms * 1000 / 2;
}

/* What waits in the crowd for long keeps its deliveries. */
START_TEST(test_the_crowd_keeps_its_deliveries)
{
    start();
    start_crowd();
    after_batch = time_passes;
    lc_finisher_main(f.replica);
    /* Half a period passes with each batch, and many batches go by: one sign of life is not enough. */
    ck_assert_int_ge(f.in_progress, 3 * WAITERS);
    fake_stop(&f);
}
END_TEST

START_TEST(test_a_drain_does_not_pause)
{
    start();
    start_crowd();
    fake_send(&f, "stop", OTHER, "o", "");
    atomic_store(&f.replica->draining, true);
    lc_finisher_main(f.replica);
    ck_assert_int_eq(batches, 3); /* the share, then the crowd as fast as it goes */
    ck_assert_int_eq(busy[1], LC_FINISH_BATCH);
    ck_assert_int_lt(f.now_us - begun_us, 1000);
    fake_stop(&f);
}
END_TEST

SK_CHECK_MAIN("finisher", test_no_sandbox_takes_more_than_its_share, test_others_go_before_the_crowd,
              test_the_crowd_gives_way_while_others_work, test_the_crowd_is_not_starved,
              test_the_crowd_keeps_its_deliveries, test_a_drain_does_not_pause)
