/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole runs of the simulator: the same seed gives the same run, other seeds other runs, a deliberate bug is told by
 * the monitor that stands for it, and a failed run leaves nothing behind that spoils the next one. */
#include "services/lifecycle/mutations.h"
#include "tests/sim/sim.h"

#define SK_CHECK_TIMEOUT 60
#include "tests/unit/check_main.h"

#include <string.h>

enum lc_mutation lc_mutation = LC_MUTATION_NONE;

static struct sim_result run(uint64_t seed)
{
    struct sim_options options = {.seed = seed, .out = stdout};
    struct sim_result result;

    sim_run_seed(&options, &result);
    return result;
}

START_TEST(test_replays_exactly)
{
    struct sim_result before = run(3), after;

    ck_assert_msg(!before.failed, "%s: %s", before.monitor, before.failure);
    ck_assert_uint_gt(before.calls, 50);
    ck_assert_uint_ne(run(4).hash, before.hash);
    after = run(3);
    ck_assert_uint_eq(before.hash, after.hash);
    ck_assert_uint_eq(before.steps, after.steps);
    ck_assert_int_eq(before.virtual_ms, after.virtual_ms);
    ck_assert_int_eq(memcmp(before.counters, after.counters, sizeof(before.counters)), 0);
}
END_TEST

/* Tracing looks on and changes nothing. */
START_TEST(test_trace_changes_nothing)
{
    FILE *out = tmpfile();
    struct sim_options options = {.seed = 5, .trace = true, .out = out};
    struct sim_result traced;

    ck_assert_ptr_nonnull(out);
    sim_run_seed(&options, &traced);
    ck_assert_int_gt(ftell(out), 1000);
    ck_assert_uint_eq(traced.hash, run(5).hash);
    fclose(out);
}
END_TEST

START_TEST(test_bugs_are_told)
{
    static const struct {
        enum lc_mutation mutation;
        const char *monitor;
    } rows[] = {
        {LC_MUTATION_RETRY_CREATE_BLINDLY, "double-create"},
        {LC_MUTATION_ACK_BEFORE_STORE, "ack-before-result"},
        {LC_MUTATION_DELETE_RECORD_FIRST, "deleted-leftover"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sim_result result = {.failed = false};
        uint64_t seed;

        lc_mutation = rows[i].mutation;
        for (seed = 1; seed <= 100 && strcmp(result.monitor, rows[i].monitor) != 0; seed++)
            result = run(seed);
        lc_mutation = LC_MUTATION_NONE;
        ck_assert_msg(strcmp(result.monitor, rows[i].monitor) == 0, "%s was not seen in 100 seeds", rows[i].monitor);
        /* The next run is as if nothing had been. */
        result = run(seed);
        ck_assert_uint_eq(result.hash, run(seed).hash);
    }
}
END_TEST

SK_CHECK_MAIN("sim-run", test_replays_exactly, test_trace_changes_nothing, test_bugs_are_told)
