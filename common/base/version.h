/* SPDX-License-Identifier: Apache-2.0
 *
 * What --version prints (contract/service.md §1): version, git revision, and the libraries that run. Each program
 * passes its own table, so that nothing is linked only to be named:
 *
 *     static const struct sk_version_library libraries[] = {
 *         {"libuv", uv_version_string, NULL}, {"libh2o", NULL, H2O_LIBRARY_VERSION}, {NULL, NULL, NULL}};
 *
 * Pure functions, thread-safe, nothing to free. */
#ifndef SK_BASE_VERSION_H
#define SK_BASE_VERSION_H

#include <stdio.h>

struct sk_version_library {
    const char *name;             /* NULL ends the table */
    const char *(*version)(void); /* asked at run time (the library that is really loaded), or NULL */
    const char *text;             /* for libraries that only have a macro */
};

const char *sk_version(void);  /* "0.1.0" */
const char *sk_revision(void); /* 12 hex digits of the git commit, "unknown" outside a clone */
/* "sk-lifecycle 0.1.0 (a4ac0a5…)" and one line "  name version" for each library; `libraries` may be NULL. */
void sk_version_print(const char *program, const struct sk_version_library *libraries, FILE *out);

#endif
