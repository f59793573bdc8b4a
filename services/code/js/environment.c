/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's switches: no helper threads at all; the just-in-time compiler, where it is on, works in the only thread.
 * When a child collects garbage must not depend on how long ago the template did: the engine lets its heap grow by
 * eight times as much right after a collection, and by less from second to second; without the compiler every small
 * task began with a collection then, six times as dear as the task. Nor does it let the heap double there between two
 * collections unless told. Symbols are bound in the template, not in every child. */
#include "services/code/js/environment.h"

#include <stdlib.h>
#include <string.h>

#define SINGLE_THREAD                                                                                                  \
    "JSC_useConcurrentGC=0", "JSC_numberOfGCMarkers=1", "JSC_useConcurrentJIT=0", "JSC_useWasm=0", "Malloc=1",         \
        "JSC_useTailCalls=0", "JSC_maxEdenSizeForRateLimitingMultiplier=1", "JSC_miniVMHeapGrowthFactor=2",            \
        "LD_BIND_NOW=1"

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
