/* SPDX-License-Identifier: Apache-2.0
 *
 * A kind of zygote: a language's runtime and what its tasks need of the kernel beyond what every task may. Constant
 * data of the template's program. */
#ifndef SK_CODE_KIND_H
#define SK_CODE_KIND_H

#include "services/code/runtime.h"

struct code_kind {
    const struct code_runtime *runtime;
    /* System calls beyond those of filter.c, by name, NULL-terminated; may be NULL. */
    const char *const *calls;
    /* Files and folders of the machine that tasks may read, NULL-terminated; may be NULL. What is not there is left
     * out. */
    const char *const *readable;
    /* Ends of the names of descriptors that prepare() leaves open and tasks keep ("/statm"); all others are closed. */
    const char *const *keep;
    /* Libraries that come along and no task uses (pages.h); may be NULL. */
    const char *const *unused;
    bool tmp;           /* tasks get a writable /tmp of their own */
    bool address_space; /* RLIMIT_AS is as narrow as RLIMIT_DATA; else it has 4 GiB more */
    bool unfiltered;    /* the self-test's alone: what holds without the filter? Never in a language. */
};

#endif
