/* SPDX-License-Identifier: Apache-2.0
 * The SANDKEEP_FAULT grammar and each action, in child processes because some of them end the process. In builds
 * without fault points only the table is there. */
#include "common/faults/faults.h"

#include "common/base/sched.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void count_point(void *arg, const char *name, const char *doc)
{
    ++*(int *)arg;
    ck_assert_int_gt((int)strlen(name), 3);
    ck_assert_int_gt((int)strlen(doc), 10);
    ck_assert_ptr_null(strpbrk(name, "@=:#,")); /* the grammar's own characters */
}

START_TEST(test_names)
{
    int count = 0;

    sk_fault_list(count_point, &count);
    ck_assert_int_eq(count, SK_FAULT_COUNT);
    ck_assert_str_eq(sk_fault_name(SK_FAULT_CLAIM_COMMITTED), "claim.committed");
    ck_assert_str_eq(sk_fault_name(SK_FAULT_COUNT), "");
    for (int a = 0; a < SK_FAULT_COUNT; a++) {
        for (int b = a + 1; b < SK_FAULT_COUNT; b++)
            ck_assert_str_ne(sk_fault_name((enum sk_fault_point)a), sk_fault_name((enum sk_fault_point)b));
    }
}
END_TEST

#ifdef SANDKEEP_FAULT_POINTS

/* The exit status of a child in which three passes of the point are made; its own result is a bit per pass that failed.
 */
static int passes(const char *setting, const char *operation)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        int result = 0;
        if (setting != NULL)
            setenv("SANDKEEP_FAULT", setting, 1);
        else
            unsetenv("SANDKEEP_FAULT");
        fclose(stderr);
        sk_fault_check();
        for (int i = 0; i < 3; i++)
            result |= SK_FAULT(PROVIDER_CREATED, operation) << i;
        _exit(result);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        return 1000 + WTERMSIG(status);
    return WEXITSTATUS(status);
}

START_TEST(test_actions)
{
    static const struct {
        const char *setting, *operation;
        int result;
    } rows[] = {
        {NULL, "provision", 0},
        {"", "provision", 0},
        {"provider.created=exit", "provision", 86},
        {"provider.created=exit", NULL, 86},
        {"provider.created=abort", NULL, 1006},
        {"provider.created=error", NULL, 7},
        {"provider.created=error#2", NULL, 2},
        {"provider.created=exit#3", NULL, 86},
        {"provider.created=exit#4", NULL, 0},
        {"provider.created@provision=error", "provision", 7},
        {"provider.created@provision=error", "stop", 0},
        {"provider.created@provision=error", NULL, 0},
        {"provider.created@provision=error#1", "provision", 1},
        {"provider.ready=exit", NULL, 0},
        {"provider.ready=exit,provider.created=error#1", NULL, 1},
        {"provider.created=error#1,provider.created=error#3", NULL, 5},
        {"provider.created=delay:1", NULL, 0},
        {"provider.created=delay:0#1,provider.created=exit#1", NULL, 86},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_msg(passes(rows[i].setting, rows[i].operation) == rows[i].result, "row %zu: %d", i,
                      passes(rows[i].setting, rows[i].operation));
}
END_TEST

START_TEST(test_delay_takes_time)
{
    int64_t start;

    setenv("SANDKEEP_FAULT", "claim.committed=delay:40", 1);
    start = sk_mono_us(&sk_sched_system);
    ck_assert(!SK_FAULT(CLAIM_COMMITTED, NULL));
    ck_assert_int_ge(sk_mono_us(&sk_sched_system) - start, 40000);
}
END_TEST

START_TEST(test_bad_settings_end_the_process)
{
    static const char *const rows[] = {
        "provider.creatd=exit",
        "provider.created",
        "provider.created=",
        "provider.created=die",
        "provider.created=exit:1",
        "provider.created=delay",
        "provider.created=delay:",
        "provider.created=delay:x",
        "provider.created=delay:-1",
        "provider.created=delay:9999999",
        "provider.created=exit#0",
        "provider.created=exit#",
        "provider.created=exit#x",
        "provider.created@=exit",
        "=exit",
        ",",
        "provider.created=exit,",
        "provider.created=exit provider.ready=exit",
        "provider.created@an-operation-with-a-name-that-is-too-long=exit",
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_msg(passes(rows[i], NULL) == 2, "%s", rows[i]);
}
END_TEST

SK_CHECK_MAIN("faults", test_names, test_actions, test_delay_takes_time, test_bad_settings_end_the_process)

#else

START_TEST(test_nothing_happens)
{
    setenv("SANDKEEP_FAULT", "claim.committed=abort", 1);
    sk_fault_check();
    ck_assert(!SK_FAULT(CLAIM_COMMITTED, "provision"));
}
END_TEST

SK_CHECK_MAIN("faults", test_names, test_nothing_happens)

#endif
