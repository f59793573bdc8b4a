/* SPDX-License-Identifier: Apache-2.0
 *
 * What must stand in the environment before a process that runs JavaScript is started: JavaScriptCore and its allocator
 * read it while the program is loaded, so setting it in main() is too late. The one that executes a template sets it
 * (or main() sets it and executes itself once more). Without it the engine starts threads, and prepare() fails. */
#ifndef SK_CODE_JS_ENVIRONMENT_H
#define SK_CODE_JS_ENVIRONMENT_H

#include <stdbool.h>

/* "NAME=value" entries, NULL-terminated, static. `jit`: SANDBOX_JS_JIT. */
const char *const *code_js_environment(bool jit);
/* Whether this process was started with all of one of the two sets. */
bool code_js_environment_set(void);

#endif
