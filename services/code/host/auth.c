/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests are compared instead of tokens, so that lengths do not matter, and in constant time. */
#include "services/code/host/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>
#include <strings.h>

static bool same(const char *ours, const char *theirs, size_t length)
{
    unsigned char a[SHA256_DIGEST_LENGTH], b[SHA256_DIGEST_LENGTH];

    SHA256((const unsigned char *)ours, strlen(ours), a);
    SHA256((const unsigned char *)theirs, length, b);
    return CRYPTO_memcmp(a, b, sizeof(a)) == 0;
}

/* One word of visible ASCII with spaces around it. */
static bool word(const char **text, size_t *length)
{
    *text += strspn(*text, " \t");
    *length = 0;
    while ((*text)[*length] >= 0x21 && (*text)[*length] <= 0x7e)
        (*length)++;
    return *length > 0 && (*text)[*length + strspn(*text + *length, " \t")] == '\0';
}

enum code_auth code_auth_check(const char *token, const char *authorization, const char *api_key)
{
    const char *given = authorization;
    size_t length;

    if (token[0] == '\0')
        return CODE_AUTH_GOOD;
    if (authorization == NULL && api_key == NULL)
        return CODE_AUTH_MISSING;
    if (authorization != NULL) {
        if (strncasecmp(given, "Bearer", 6) != 0 || (given[6] != ' ' && given[6] != '\t'))
            return CODE_AUTH_MALFORMED;
        given += 6;
    } else {
        given = api_key;
    }
    if (!word(&given, &length))
        return CODE_AUTH_MALFORMED;
    return same(token, given, length) ? CODE_AUTH_GOOD : CODE_AUTH_WRONG;
}

const struct code_auth_answer *code_auth_answer(enum code_auth auth)
{
    static const struct code_auth_answer missing = {401, "Bearer realm=\"\"", "Unauthorized"},
                                         malformed = {400, "Bearer error=\"invalid_request\"", "Bad Request"},
                                         wrong = {401, "Bearer error=\"invalid_token\"", "Unauthorized"};

    return auth == CODE_AUTH_MALFORMED ? &malformed : auth == CODE_AUTH_WRONG ? &wrong : &missing;
}
