/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's switches: no helper threads at all. The just-in-time compiler, where it is on, works in the only thread.
 */
#include "services/code/js/environment.h"

#include <stdlib.h>
#include <string.h>

#define SINGLE_THREAD                                                                                                  \
    "JSC_useConcurrentGC=0", "JSC_numberOfGCMarkers=1", "JSC_useConcurrentJIT=0", "JSC_useWasm=0", "Malloc=1",         \
        "JSC_useTailCalls=0"

static const char *const with_jit[] = {SINGLE_THREAD, "JSC_useJIT=1", NULL};
static const char *const without_jit[] = {SINGLE_THREAD, "JSC_useJIT=0", NULL};

const char *const *code_js_environment(bool jit)
{
    return jit ? with_jit : without_jit;
}

static bool is_set(const char *const *entries)
{
    for (; *entries != NULL; entries++) {
        const char *equals = strchr(*entries, '=');
        char name[64];
        const char *value;

        memcpy(name, *entries, (size_t)(equals - *entries));
        name[equals - *entries] = '\0';
        value = getenv(name);
        if (value == NULL || strcmp(value, equals + 1) != 0)
            return false;
    }
    return true;
}

bool code_js_environment_set(void)
{
    return is_set(with_jit) || is_set(without_jit);
}
