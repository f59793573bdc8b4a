/* SPDX-License-Identifier: Apache-2.0
 * The finisher's batches: a sandbox with hundreds of waiters does not hold up the answers of others. */
#include "tests/unit/check_main.h"
#include "tests/unit/lifecycle/fakes.h"

#include <string.h>

#define BUSY    "app-8a3cb7a4e074fa1d"
#define OTHER   "app-3b49bb9a3adef32c"
#define WAITERS 300
#define BATCHES 32

static struct fake f;
static int busy[BATCHES], other[BATCHES], batches; /* results of each write */

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
    batches++;
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
    return 0;
}

START_TEST(test_no_sandbox_takes_more_than_its_share)
{
    static const struct sk_store_ops store_ops = {.command_put = command_put};
    static struct sk_store store = {.ops = &store_ops};
    static struct sk_bus_ops bus_ops;
    static struct sk_bus bus;
    int answered = 0, with_other = -1;
    struct lc_job *job;
    char id[16];

    fake_start(&f, NULL);
    bus_ops = *f.bus.ops;
    bus_ops.publish_acked = publish_acked;
    bus_ops.ack_many = ack_many;
    bus = (struct sk_bus){&bus_ops, &f};
    f.replica->seams.bus = &bus;
    f.replica->seams.store = &store;

    fake_send(&f, "stop", BUSY, "first", "");
    job = fake_take(&f);
    for (int i = 0; i < WAITERS; i++) {
        snprintf(id, sizeof(id), "w%d", i);
        fake_send(&f, "ensure", BUSY, id, "");
    }
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    fake_send(&f, "stop", OTHER, "o", "");
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);

    lc_finisher_main(f.replica);
    for (int i = 0; i < batches; i++) {
        answered += busy[i];
        ck_assert_int_le(busy[i], LC_FINISH_SHARE);
        if (other[i] > 0)
            with_other = i;
    }
    ck_assert_int_eq(answered, WAITERS + 1);
    ck_assert_int_eq(with_other, 0); /* with the first of the busy one, although it came after them all */
    fake_stop(&f);
}
END_TEST

SK_CHECK_MAIN("finisher", test_no_sandbox_takes_more_than_its_share)
