/* SPDX-License-Identifier: Apache-2.0
 *
 * The token of /sandbox routes, judged before a byte of the body is read (contract/code.md §1): "Authorization: Bearer
 * TOKEN", or "X-Api-Key: TOKEN" as clients of Dify's sandbox send it. The time of a comparison says nothing about where
 * the tokens differ, nor how long ours is. */
#ifndef SK_CODE_HOST_AUTH_H
#define SK_CODE_HOST_AUTH_H

#include "common/base/error.h"

enum code_auth {
    CODE_AUTH_GOOD,
    CODE_AUTH_MISSING,   /* 401 */
    CODE_AUTH_MALFORMED, /* 400: not "Bearer", no token, several words */
    CODE_AUTH_WRONG,     /* 401 */
};

/* `token` is ours: "" lets everybody in. The headers' values are NULL when absent; Authorization counts when both are
 * there. Any thread. */
enum code_auth code_auth_check(const char *token, const char *authorization, const char *api_key);

struct code_auth_answer {
    int status;
    const char *challenge; /* WWW-Authenticate */
    const char *body;      /* text/plain, as the original's */
};
/* For everything but GOOD. Static. */
const struct code_auth_answer *code_auth_answer(enum code_auth auth);

#endif
