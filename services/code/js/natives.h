/* SPDX-License-Identifier: Apache-2.0
 *
 * The native functions that the embedded script is given, and the timers that it sets. */
#ifndef SK_CODE_JS_NATIVES_H
#define SK_CODE_JS_NATIVES_H

#include <JavaScriptCore/JavaScript.h>
#include <stdbool.h>
#include <stdint.h>

/* Names of scripts, as stack frames show them; src/errors.js knows both. */
#define CODE_JS_USER_FILE    "code.js"
#define CODE_JS_RUNTIME_FILE "sandkeep:runtime"
/* What stands before a task's code on its first line. */
#define CODE_JS_HEAD "(function(){\"use strict\";"

/* The engine's own, which its installed headers leave out. */
void JSGlobalContextSetUnhandledRejectionCallback(JSGlobalContextRef context, JSObjectRef function,
                                                  JSValueRef *exception);
void JSGlobalContextSetEvalEnabled(JSGlobalContextRef context, bool enabled, JSStringRef message);
typedef struct OpaqueJSScript *JSScriptRef;
JSScriptRef JSScriptCreateReferencingImmortalASCIIText(JSContextGroupRef group, JSStringRef url, int line,
                                                       const char *source, size_t length, JSStringRef *error_message,
                                                       int *error_line);
JSValueRef JSScriptEvaluate(JSContextRef context, JSScriptRef script, JSValueRef self, JSValueRef *exception);
void JSDisableGCTimer(void);
void JSSynchronousGarbageCollectForDebugging(JSContextRef context);

/* An object with all native functions. */
JSObjectRef code_natives_make(JSContextRef context);
/* Sets a method of `object`. */
void code_natives_set(JSContextRef context, JSObjectRef object, const char *name, JSValueRef value);

/* Monotonic clock in milliseconds. */
double code_natives_now(void);
/* Takes the first timer that is due at `now`: its number, or 0 when none is. */
double code_timer_take(double now);
/* How many milliseconds the next timer is away: 0 when it is due, -1 when there is none. */
double code_timer_wait(double now);
void code_timer_clear(void);

#endif
