/* SPDX-License-Identifier: Apache-2.0
 *
 * Why tasks end: the rule by itself, and each reason through a real zygote. */
#define SK_CHECK_TIMEOUT 120
#include "services/code/ends.h"
#include "services/code/runtime.h"
#include "tests/unit/check_main.h"
#include "tree.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define EXITED(n)   ((n) << 8)
#define SIGNALED(n) (n)
#define MB          (1ll << 20)

START_TEST(test_rule)
{
    static const struct {
        struct code_ending ending;
        enum code_end expected;
    } rows[] = {
        {{.status = EXITED(0), .walls = true}, CODE_END_DONE},
        {{.status = EXITED(0), .walls = true, .leftover = true}, CODE_END_PROCESSES},
        {{.status = EXITED(0), .walls = true, .peak_bytes = 100 * MB},
         CODE_END_DONE}, /* memory is no fault by itself */
        {{.status = EXITED(0), .walls = true, .killed = true, .cause = CODE_END_TIMEOUT},
         CODE_END_DONE},                         /* it was faster */
        {{.status = EXITED(0)}, CODE_END_WALLS}, /* a runtime that was never reached cannot have done anything */
        {{.status = EXITED(97)}, CODE_END_WALLS},
        {{.status = SIGNALED(SIGSEGV)}, CODE_END_WALLS},
        {{.status = SIGNALED(SIGKILL)}, CODE_END_KILLED},
        {{.status = SIGNALED(SIGKILL), .killed = true, .cause = CODE_END_CANCELLED}, CODE_END_CANCELLED},
        {{.status = SIGNALED(SIGKILL), .walls = true, .killed = true, .cause = CODE_END_TIMEOUT, .peak_bytes = 99 * MB},
         CODE_END_TIMEOUT},
        {{.status = SIGNALED(SIGKILL), .walls = true, .killed = true, .cause = CODE_END_OUTPUT}, CODE_END_OUTPUT},
        {{.status = SIGNALED(SIGKILL), .walls = true}, CODE_END_KILLED},
        {{.status = SIGNALED(SIGKILL), .walls = true, .peak_bytes = 71 * MB}, CODE_END_MEMORY},
        {{.status = SIGNALED(SIGKILL), .walls = true, .oom = true}, CODE_END_MEMORY},
        {{.status = SIGNALED(SIGSEGV), .walls = true, .peak_bytes = 71 * MB}, CODE_END_MEMORY},
        {{.status = SIGNALED(SIGABRT), .walls = true, .peak_bytes = 69 * MB}, CODE_END_CRASHED},
        {{.status = EXITED(1), .walls = true, .peak_bytes = 70 * MB}, CODE_END_MEMORY},
        {{.status = EXITED(1), .walls = true}, CODE_END_CRASHED},
        {{.status = EXITED(1), .walls = true, .leftover = true}, CODE_END_PROCESSES},
        {{.status = SIGNALED(SIGXCPU), .walls = true}, CODE_END_TIMEOUT},
        {{.status = SIGNALED(SIGKILL), .walls = true, .cpu_out = true}, CODE_END_TIMEOUT},
        {{.status = SIGNALED(SIGSEGV), .walls = true, .cpu_out = true}, CODE_END_CRASHED},
        {{.status = SIGNALED(SIGXFSZ), .walls = true}, CODE_END_OUTPUT},
        {{.status = SIGNALED(SIGSYS), .walls = true}, CODE_END_CRASHED},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct code_ending ending = rows[i].ending;

        ending.budget_bytes = 100 * MB;
        ck_assert_msg(code_end_of(&ending) == rows[i].expected, "row %zu: %s instead of %s", i,
                      code_end_name(code_end_of(&ending)), code_end_name(rows[i].expected));
    }
}
END_TEST

static void reasons(bool no_cgroup)
{
    const struct tree_options options = {.no_cgroup = no_cgroup};
    static const struct {
        const char *program;
        struct tree_task task;
        enum code_end expected;
        int exit_status, signal;
    } rows[] = {
        {"uid", {0}, CODE_END_DONE, 0, 0},
        {"exit 0", {0}, CODE_END_DONE, 0, 0},
        {"exit 3", {0}, CODE_END_CRASHED, 3, 0},
        {"exit 97", {0}, CODE_END_CRASHED, 97, 0}, /* the status of walls not built proves nothing */
        {"crash", {0}, CODE_END_CRASHED, -1, SIGSEGV},
        {"abort", {0}, CODE_END_CRASHED, -1, SIGSEGV}, /* tgkill is refused: libc falls back to an illegal access */
        {"foreign x32", {0}, CODE_END_CRASHED, -1, SIGSYS},
        {"foreign i386", {0}, CODE_END_CRASHED, -1, SIGSYS},
        {"spin", {.wall_ms = 150}, CODE_END_TIMEOUT, -1, SIGKILL},
        {"sleep 5000", {.wall_ms = 150}, CODE_END_TIMEOUT, -1, SIGKILL},
        {"spin", {.cpu_ms = 1000, .wall_ms = 60000}, CODE_END_TIMEOUT, -1, SIGXCPU},
        {"alloc 40\nalloc 20\nalloc 20\ncrash", {.memory_mb = 64}, CODE_END_MEMORY, -1, SIGSEGV},
        {"alloc 50\nexit 1", {.memory_mb = 64}, CODE_END_MEMORY, 1, 0},
        {"alloc 20\nexit 1", {.memory_mb = 64}, CODE_END_CRASHED, 1, 0},
        {"alloc 50", {.memory_mb = 64}, CODE_END_DONE, 0, 0},
        {"fill " CODE_TMP_DIR "/a 4000000", {.tmp_mb = 1}, CODE_END_OUTPUT, -1, SIGXFSZ},
        {"uid", {0}, CODE_END_DONE, 0, 0},
    };
    static struct tree_outcome out;
    struct tree t;

    if (!tree_start(&t, &options))
        return;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tree_run(&t, rows[i].program, &rows[i].task, &out);
        ck_assert_msg(!out.refused && out.ended.u.ended.end == rows[i].expected,
                      "row %zu: %s instead of %s (exit %d, signal %d, stage %u, error %d)", i,
                      out.refused ? "refused" : code_end_name((enum code_end)out.ended.u.ended.end),
                      code_end_name(rows[i].expected), out.ended.u.ended.exit_status, out.ended.u.ended.signal,
                      out.ended.u.ended.stage, out.ended.u.ended.stage_error);
        ck_assert_int_eq(out.ended.u.ended.exit_status, rows[i].exit_status);
        ck_assert_int_eq(out.ended.u.ended.signal, rows[i].signal);
    }
    tree_end(&t);
}

START_TEST(test_reasons)
{
    reasons(false);
}
END_TEST

START_TEST(test_reasons_without_groups)
{
    reasons(true);
}
END_TEST

START_TEST(test_on_request)
{
    static const enum code_end reasons[] = {CODE_END_CANCELLED, CODE_END_OUTPUT, CODE_END_TIMEOUT, CODE_END_KILLED,
                                            CODE_END_CRASHED};
    static struct tree_outcome out;
    struct tree t;
    uint64_t number;
    int result;

    if (!tree_start(&t, NULL))
        return;
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        result = tree_begin(&t, "spin", NULL, &number);
        tree_kill(&t, number, reasons[i]);
        tree_finish(&t, result, number, &out);
        ck_assert_int_eq((int)out.ended.u.ended.end, (int)reasons[i]);
    }
    /* A reason that is not the host's to give, and a task that is not there, are ignored. */
    result = tree_begin(&t, "sleep 300", NULL, &number);
    tree_kill(&t, number, CODE_END_WALLS);
    tree_kill(&t, number + 100, CODE_END_CANCELLED);
    tree_finish(&t, result, number, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    tree_end(&t);
}
END_TEST

START_TEST(test_measures)
{
    static struct tree_outcome out;
    struct tree t;

    if (!tree_start(&t, NULL))
        return;
    tree_run(&t, "alloc 30\nsleep 200", NULL, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    ck_assert_int_ge(out.ended.u.ended.peak_rss_bytes, 30 * MB);
    ck_assert_int_lt(out.ended.u.ended.peak_rss_bytes, 40 * MB);
    ck_assert_int_ge(out.ended.u.ended.wall_us, 200000);
    ck_assert_int_lt(out.ended.u.ended.cpu_us, 200000);
    tree_run(&t, "uid", NULL, &out);
    ck_assert_int_lt(out.ended.u.ended.peak_rss_bytes, 10 * MB); /* the budget of the one before is not ours */
    tree_end(&t);
}
END_TEST

/* Memory that its language has reserved before the fork: no rlimit counts it. Where groups can be written, they strike;
 * else the zygote does. */
static void reserved(bool no_cgroup)
{
    const struct tree_options options = {.no_cgroup = no_cgroup};
    static struct tree_outcome out;
    struct tree t;

    if (!tree_start(&t, &options))
        return;
    if (!no_cgroup && t.hello.u.hello.cgroup_version == 0)
        fprintf(stderr, "SKIPPED: no control group can be written here\n");
    for (int i = 0; i < 2 && (no_cgroup || t.hello.u.hello.cgroup_version != 0); i++) {
        tree_run(&t, "fill-reserve 300\nsleep 3000\nexit 0", NULL, &out);
        ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_MEMORY);
        ck_assert_int_eq(out.ended.u.ended.signal, SIGKILL);
        tree_run(&t, "fill-reserve 40\nsleep 250", NULL, &out);
        ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    }
    tree_end(&t);
}

START_TEST(test_group)
{
    reserved(false);
}
END_TEST

START_TEST(test_watch)
{
    reserved(true);
}
END_TEST

SK_CHECK_MAIN("code ends", test_rule, test_reasons, test_reasons_without_groups, test_on_request, test_measures,
              test_group, test_watch)
