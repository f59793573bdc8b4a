/* SPDX-License-Identifier: Apache-2.0
 *
 * Switching between stacks. swapcontext costs two system calls for the signal mask (160 ns); after the first entry
 * plain builds switch by _setjmp/_longjmp instead (6 ns). AddressSanitizer builds keep swapcontext, because its longjmp
 * interceptor would unpoison the wrong stack, and tell the sanitizer about every switch. */
#include "tests/sim/context.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#endif

#ifdef SIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_SIZE ((size_t)2 << 20)
#else
#define STACK_SIZE ((size_t)1 << 20)
#endif
/* Fortified longjmp refuses to jump to another stack. */
#if !defined(SIM_ASAN) && !defined(_FORTIFY_SOURCE)
#define SIM_FAST_SWITCH 1
#endif
#define GUARD_SIZE ((size_t)4096)

struct sim_context {
    struct sim_context *next; /* in the pool */
    char *base;               /* guard page, then the stack */
    void (*fn)(void *arg);
    void *arg;
    int started;
    ucontext_t inside, outside;
#ifdef SIM_FAST_SWITCH
    jmp_buf jump_inside, jump_outside;
#endif
#ifdef SIM_ASAN
    void *fake_inside, *fake_outside;
    const void *outside_bottom;
    size_t outside_size;
#endif
};

static struct sim_context *pool;
static struct sim_context *all[4096]; /* every context ever made, for sim_context_is_guard */
static int all_count;

static void entry(unsigned high, unsigned low)
{
    struct sim_context *c = (struct sim_context *)(((uintptr_t)high << 32) | (uintptr_t)low);

#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(NULL, &c->outside_bottom, &c->outside_size);
#endif
    c->fn(c->arg);
    fprintf(stderr, "sim: a fibre returned without sim_context_exit\n");
    abort();
}

struct sim_context *sim_context_new(void (*fn)(void *arg), void *arg)
{
    struct sim_context *c = pool;

    if (c != NULL) {
        pool = c->next;
    } else {
        c = calloc(1, sizeof(*c));
        if (c == NULL || all_count == (int)(sizeof(all) / sizeof(all[0])))
            goto fatal;
        c->base = mmap(NULL, GUARD_SIZE + STACK_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (c->base == MAP_FAILED || mprotect(c->base, GUARD_SIZE, PROT_NONE) != 0)
            goto fatal;
        all[all_count++] = c;
    }
    c->fn = fn;
    c->arg = arg;
    c->started = 0;
    return c;
fatal:
    perror("sim: cannot make a fibre stack");
    abort();
}

void sim_context_free(struct sim_context *c)
{
#ifdef SIM_ASAN
    /* Frames that were abandoned left their poison behind; the next fibre on this stack must not stumble over it. */
    __asan_unpoison_memory_region(c->base + GUARD_SIZE, STACK_SIZE);
#endif
    c->next = pool;
    pool = c;
}

void sim_context_enter(struct sim_context *c)
{
#ifdef SIM_ASAN
    __sanitizer_start_switch_fiber(&c->fake_outside, c->base + GUARD_SIZE, STACK_SIZE);
#endif
    if (!c->started) {
        c->started = 1;
        if (getcontext(&c->inside) != 0)
            abort();
        c->inside.uc_stack.ss_sp = c->base + GUARD_SIZE;
        c->inside.uc_stack.ss_size = STACK_SIZE;
        c->inside.uc_link = NULL;
        makecontext(&c->inside, (void (*)(void))entry, 2, (unsigned)((uintptr_t)c >> 32), (unsigned)(uintptr_t)c);
#ifdef SIM_FAST_SWITCH
        if (_setjmp(c->jump_outside) == 0)
            setcontext(&c->inside);
#else
        swapcontext(&c->outside, &c->inside);
#endif
    } else {
#ifdef SIM_FAST_SWITCH
        if (_setjmp(c->jump_outside) == 0)
            _longjmp(c->jump_inside, 1);
#else
        swapcontext(&c->outside, &c->inside);
#endif
    }
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(c->fake_outside, NULL, NULL);
#endif
}

void sim_context_leave(struct sim_context *c)
{
#ifdef SIM_ASAN
    __sanitizer_start_switch_fiber(&c->fake_inside, c->outside_bottom, c->outside_size);
#endif
#ifdef SIM_FAST_SWITCH
    if (_setjmp(c->jump_inside) == 0)
        _longjmp(c->jump_outside, 1);
#else
    swapcontext(&c->inside, &c->outside);
#endif
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(c->fake_inside, &c->outside_bottom, &c->outside_size);
#endif
}

_Noreturn void sim_context_exit(struct sim_context *c)
{
#ifdef SIM_ASAN
    /* NULL: the fake stack of this fibre is destroyed with it. */
    __sanitizer_start_switch_fiber(NULL, c->outside_bottom, c->outside_size);
#endif
#ifdef SIM_FAST_SWITCH
    _longjmp(c->jump_outside, 1);
#else
    setcontext(&c->outside);
#endif
    abort();
}

int sim_context_is_guard(const void *address)
{
    const char *p = address;

    for (int i = 0; i < all_count; i++) {
        if (p >= all[i]->base && p < all[i]->base + GUARD_SIZE)
            return 1;
    }
    return 0;
}
