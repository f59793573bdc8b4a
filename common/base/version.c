/* SPDX-License-Identifier: Apache-2.0
 *
 * Version and revision, kept in a file of their own: it is the only one that is rebuilt when the revision changes. */
#include "common/base/version.h"

#include "sk_version.h"

const char *sk_version(void)
{
    return SK_VERSION;
}

const char *sk_revision(void)
{
    return SK_REVISION;
}

void sk_version_print(const char *program, const struct sk_version_library *libraries, FILE *out)
{
    fprintf(out, "%s %s (%s)\n", program, SK_VERSION, SK_REVISION);
    for (; libraries != NULL && libraries->name != NULL; libraries++) {
        const char *text = libraries->version != NULL ? libraries->version() : libraries->text;
        fprintf(out, "  %s %s\n", libraries->name, text != NULL ? text : "unknown");
    }
}
