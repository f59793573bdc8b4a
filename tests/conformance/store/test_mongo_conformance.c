/* SPDX-License-Identifier: Apache-2.0
 *
 * The store checks against the Mongo store on a real server, with the indexes and without, and with a pool that is much
 * smaller than the number of threads. */
#include "tests/conformance/store/mongo_fixture.h"

#include <stdlib.h>

static void run(bool (*part)(struct sk_store_conformance *c), int pool_size, bool setup)
{
    struct sk_error err = {0};
    struct mf f;

    mf_open(&f, 0, "", pool_size);
    if (setup)
        ck_assert_msg(f.store.ops->setup(f.store.self, NULL, &err) == 0, "%s", err.message);
    ck_assert_msg(part(&f.c), "%s", f.c.failure);
    ck_assert_int_gt(f.c.checks, 10);
    mf_close(&f);
}

START_TEST(test_records)
{
    run(sk_store_check_records, 16, true);
}
END_TEST

START_TEST(test_changes)
{
    run(sk_store_check_changes, 2, true);
}
END_TEST

START_TEST(test_companions)
{
    run(sk_store_check_companions, 4, true);
}
END_TEST

START_TEST(test_quota)
{
    run(sk_store_check_quota, 16, true);
}
END_TEST

START_TEST(test_lists)
{
    run(sk_store_check_lists, 1, true);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_records, test_changes, test_companions, test_quota, test_lists};

    return mf_main("store_mongo_conformance", tests, 5, 280);
}
