/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated store and provider against the checks that the Mongo store and the OpenSandbox adapter pass as well. */
#define SK_CHECK_TIMEOUT 120
#include "services/lifecycle/mutations.h"
#include "tests/conformance/provider/provider_conformance.h"
#include "tests/conformance/store/store_conformance.h"
#include "tests/sim/sim.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

enum lc_mutation lc_mutation = LC_MUTATION_NONE;

struct outcome {
    bool (*part)(struct sk_store_conformance *c);
    bool passed;
    int checks;
    char failure[512];
};

static void check_store(struct sim_inc *inc, void *arg)
{
    struct sk_store_conformance c = {.store = &inc->store, .sched = &inc->clock, .tasks = 16, .records = 150};
    struct outcome *outcome = arg;

    outcome->passed = outcome->part(&c);
    outcome->checks = c.checks;
    memcpy(outcome->failure, c.failure, sizeof(c.failure));
}

static void run_store(bool (*part)(struct sk_store_conformance *c))
{
    struct outcome outcome = {.part = part};

    ck_assert(sim_run_stage(1, check_store, &outcome));
    ck_assert_msg(outcome.passed, "%s", outcome.failure);
    ck_assert_int_gt(outcome.checks, 10);
}

START_TEST(test_records)
{
    run_store(sk_store_check_records);
}
END_TEST

START_TEST(test_changes)
{
    run_store(sk_store_check_changes);
}
END_TEST

START_TEST(test_companions)
{
    run_store(sk_store_check_companions);
}
END_TEST

START_TEST(test_quota)
{
    run_store(sk_store_check_quota);
}
END_TEST

START_TEST(test_lists)
{
    run_store(sk_store_check_lists);
}
END_TEST

static void check_provider(struct sim_inc *inc, void *arg)
{
    static const struct sk_image image = {.present = true, .repository = "good/image", .tag = "1"};
    struct outcome *outcome = arg;
    struct sk_call call;
    struct sk_conformance c = {.provider = &inc->provider,
                               .call = &call,
                               .sandbox_id = "app-0123456789abcdef",
                               .claim_name = "fastgpt-session-app-0123456789abcdef-0",
                               .image = &image,
                               .wait_ms = 60000};

    sk_call_init(&call, &inc->clock);
    outcome->passed = sk_provider_conformance(&c);
    outcome->checks = c.checks;
    memcpy(outcome->failure, c.failure, sizeof(c.failure));
}

START_TEST(test_provider)
{
    struct outcome outcome = {.passed = false};

    ck_assert(sim_run_stage(2, check_provider, &outcome));
    ck_assert_msg(outcome.passed, "%s", outcome.failure);
    ck_assert_int_gt(outcome.checks, 10);
}
END_TEST

SK_CHECK_MAIN("sim-seams", test_records, test_changes, test_companions, test_quota, test_lists, test_provider)
