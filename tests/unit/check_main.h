/* SPDX-License-Identifier: Apache-2.0
 *
 * The main function of a unit test program: includes <check.h>, and runs one suite made of the test cases that the file
 * lists. Used once, at the end of a test file:
 *
 *     SK_CHECK_MAIN("arena", test_alloc, test_reset)
 *
 * A test that hangs is ended after SK_CHECK_TIMEOUT seconds (50 unless it is defined before the include): a busy
 * machine may need a lot of what an idle one does in one. */
#ifndef SK_TESTS_CHECK_MAIN_H
#define SK_TESTS_CHECK_MAIN_H

#include <check.h>
#include <stdlib.h>

#ifndef SK_CHECK_TIMEOUT
#define SK_CHECK_TIMEOUT 50
#endif

#define SK_CHECK_MAIN(name, ...)                                                                                       \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        const TTest *const tests[] = {__VA_ARGS__};                                                                    \
        Suite *suite = suite_create(name);                                                                             \
        TCase *tcase = tcase_create(name);                                                                             \
        SRunner *runner = srunner_create(suite);                                                                       \
        int failed;                                                                                                    \
        tcase_set_timeout(tcase, SK_CHECK_TIMEOUT);                                                                    \
        for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)                                                  \
            tcase_add_test(tcase, tests[i]);                                                                           \
        suite_add_tcase(suite, tcase);                                                                                 \
        srunner_run_all(runner, CK_NORMAL);                                                                            \
        failed = srunner_ntests_failed(runner);                                                                        \
        srunner_free(runner);                                                                                          \
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;                                                              \
    }

#endif
