/* SPDX-License-Identifier: Apache-2.0
 *
 * Stackful contexts of the simulator: one C stack each (mmap with a guard page below, kept in a pool between runs), a
 * first entry by makecontext and the sanitizers' fibre annotations. Single-threaded. */
#ifndef SK_SIM_CONTEXT_H
#define SK_SIM_CONTEXT_H

#include <stddef.h>

struct sim_context;

/* A context that starts in fn(arg) at the first switch to it. `fn` must not return: it ends with sim_context_exit. */
struct sim_context *sim_context_new(void (*fn)(void *arg), void *arg);
/* Gives the stack back to the pool. A context that is suspended may be freed: its frames are then never unwound. */
void sim_context_free(struct sim_context *context);
/* From the thread's own stack into the context; returns when the context switches back or exits. */
void sim_context_enter(struct sim_context *context);
/* From the context back to where it was entered from; returns at the next enter. */
void sim_context_leave(struct sim_context *context);
_Noreturn void sim_context_exit(struct sim_context *context);
/* True when `address` lies in the guard page of a stack of the pool or of a live context: the stack overflowed. */
int sim_context_is_guard(const void *address);

#endif
