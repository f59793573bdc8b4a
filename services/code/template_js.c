/* SPDX-License-Identifier: Apache-2.0
 *
 * The template program of JavaScript. A task of it needs nothing of the machine: no file, no /tmp. Executed with
 * SANDBOX_JS_JIT=off in its environment it goes without the just-in-time compiler. */
#include "services/code/js/environment.h"
#include "services/code/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The collector asks how much memory the process has. The descriptor is the template's: it tells of nobody else. Where
 * the engine's timers write, /dev/null has to stay: another descriptor of that number would get it. And its source of
 * random numbers would read from such a one. */
static const char *const keep[] = {"/statm", "/dev/null", "/dev/urandom", NULL};
/* What the engine's library is linked with for others than its C interface, and what these are linked with; and what
 * the template alone uses. Nearly half of all mappings. */
static const char *const unused[] = {
    "libgio-2.0.so", "libgobject-2.0.so", "libgmodule-2.0.so", "libffi.so", "libpcre2-8.so", "libsystemd.so",
    "libmount.so",   "libblkid.so",       "libselinux.so",     "libcap.so", "libgcrypt.so",  "libgpg-error.so",
    "liblz4.so",     "liblzma.so",        "libzstd.so",        "libz.so",   "libseccomp.so", NULL};
static const char *const calls[] = {"sysinfo", NULL};
static const struct code_kind kind_js = {.runtime = &code_runtime_js, .calls = calls, .keep = keep, .unused = unused};

int main(int argc, char **argv)
{
    static const struct code_kind *const kinds[] = {&kind_js};

    /* The engine reads its switches before main() begins: set them and begin again. */
    if (!code_js_environment_set()) {
        const char *jit = getenv("SANDBOX_JS_JIT");

        execve("/proc/self/exe", argv,
               (char *const *)(uintptr_t)code_js_environment(jit == NULL || strcmp(jit, "off") != 0));
        perror("sk-code-js");
        return EXIT_FAILURE;
    }
    return code_template_main(argc, argv, kinds, sizeof(kinds) / sizeof(kinds[0]));
}
