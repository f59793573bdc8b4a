/* SPDX-License-Identifier: Apache-2.0
 *
 * The token in both header forms. */
#include "services/code/host/auth.h"
#include "tests/unit/check_main.h"

START_TEST(test_table)
{
    static const struct {
        const char *token, *authorization, *api_key;
        enum code_auth auth;
        int status;
    } rows[] = {
        {"", NULL, NULL, CODE_AUTH_GOOD, 0},
        {"", "nonsense", NULL, CODE_AUTH_GOOD, 0},
        {"secret", "Bearer secret", NULL, CODE_AUTH_GOOD, 0},
        {"secret", "bearer   secret  ", NULL, CODE_AUTH_GOOD, 0},
        {"secret", "BEARER secret", NULL, CODE_AUTH_GOOD, 0},
        {"s!@#$%^&*()~", "Bearer s!@#$%^&*()~", NULL, CODE_AUTH_GOOD, 0},
        {"secret", NULL, "secret", CODE_AUTH_GOOD, 0},
        {"secret", NULL, " secret ", CODE_AUTH_GOOD, 0},
        {"secret", "Bearer secret", "wrong", CODE_AUTH_GOOD, 0},
        {"secret", "Bearer wrong", "secret", CODE_AUTH_WRONG, 401},
        {"secret", NULL, NULL, CODE_AUTH_MISSING, 401},
        {"secret", "Bearer Secret", NULL, CODE_AUTH_WRONG, 401},
        {"secret", "Bearer secre", NULL, CODE_AUTH_WRONG, 401},
        {"secret", "Bearer secretx", NULL, CODE_AUTH_WRONG, 401},
        {"secret", NULL, "other", CODE_AUTH_WRONG, 401},
        {"secret", "", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "secret", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "Basic c2VjcmV0", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "Bearer", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "Bearer ", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "Bearersecret", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "Bearer secret secret", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "Bearer secret, Bearer secret", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "Bearer s\xc3\xa9", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", "Bearer secret\x01", NULL, CODE_AUTH_MALFORMED, 400},
        {"secret", NULL, "", CODE_AUTH_MALFORMED, 400},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum code_auth auth = code_auth_check(rows[i].token, rows[i].authorization, rows[i].api_key);
        ck_assert_msg(auth == rows[i].auth, "row %zu: %d", i, (int)auth);
        if (auth != CODE_AUTH_GOOD)
            ck_assert_int_eq(code_auth_answer(auth)->status, rows[i].status);
    }
    ck_assert_str_eq(code_auth_answer(CODE_AUTH_MISSING)->body, "Unauthorized");
    ck_assert_str_eq(code_auth_answer(CODE_AUTH_WRONG)->challenge, "Bearer error=\"invalid_token\"");
    ck_assert_str_eq(code_auth_answer(CODE_AUTH_MALFORMED)->body, "Bad Request");
}
END_TEST

SK_CHECK_MAIN("code host auth", test_table)
