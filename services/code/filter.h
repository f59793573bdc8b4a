/* SPDX-License-Identifier: Apache-2.0
 *
 * The system call filter of tasks: built once in the template, loaded by each task in one call. */
#ifndef SK_CODE_FILTER_H
#define SK_CODE_FILTER_H

#include "services/code/kind.h"

#include <linux/filter.h>

struct code_filter {
    struct sock_fprog program; /* .filter is malloc'd; .len 0 = no filter (kind->unfiltered) */
};

/* Default-deny with the argument rules of contract/code.md §3. Errors: internal; also when the kind asks for a call
 * that no task may ever have, or that nobody knows. Template only: allocates. */
SK_MUST_USE int code_filter_build(const struct code_kind *kind, struct code_filter *out, struct sk_error *err);
void code_filter_free(struct code_filter *filter);
/* Loads it into the calling process, which has no new privileges already. Async-signal-safe. False: errno. */
SK_MUST_USE bool code_filter_load(const struct code_filter *filter);

#endif
