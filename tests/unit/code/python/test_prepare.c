/* SPDX-License-Identifier: Apache-2.0
 *
 * prepare() when it cannot do what it is asked for, and with another list of modules than the default. Each test is a
 * process of its own, in which nothing was prepared. */
#include "tests/unit/check_main.h"
#include "tests/unit/code/python/harness.h"

#include <string.h>

START_TEST(test_unknown_module)
{
    static const char *const modules[] = {"json", "no_such_module", NULL};
    struct sk_error error = {0};

    ck_assert_int_eq(code_runtime_python.prepare(modules, &error), -1);
    ck_assert_int_eq(error.code, SK_ERR_INTERNAL);
    ck_assert_ptr_ne(strstr(error.message, "no_such_module"), NULL);
}
END_TEST

START_TEST(test_twice)
{
    static const char *const modules[] = {"json", NULL};
    struct sk_error error = {0};

    ck_assert_int_eq(code_runtime_python.prepare(modules, &error), 0);
    ck_assert_int_eq(code_runtime_python_full.prepare(modules, &error), -1);
    ck_assert_ptr_ne(strstr(error.message, "twice"), NULL);
}
END_TEST

/* A module that is refused by default and listed by the operator is given; a large one that is not listed is refused.
 */
START_TEST(test_own_list)
{
    static const char *const modules[] = {"os", NULL};
    static const struct row rows[] = {
        {"import os\ndef main(): return os.path.join('a', 'b')\n", NULL, "{\"value\":\"a/b\"}"},
        {"import numpy\ndef main(): pass\n", NULL,
         "{\"ok\":false,\"type\":\"ImportError\",\"message\":\"Module 'numpy' is not in the allowlist.\",\"move!\":0}"},
        {"import sys\ndef main(): pass\n", NULL, "{\"ok\":false,\"type\":\"ImportError\"}"},
        {"import json\ndef main(): return 1\n", NULL, "{\"value\":1}"},
    };
    struct sk_error error = {0};

    ck_assert_int_eq(code_runtime_python.prepare(modules, &error), 0);
    check_rows(&code_runtime_python, false, rows, sizeof(rows) / sizeof(rows[0]));
}
END_TEST

SK_CHECK_MAIN("code python prepare", test_unknown_module, test_twice, test_own_list)
