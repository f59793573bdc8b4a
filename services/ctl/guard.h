/* SPDX-License-Identifier: Apache-2.0
 *
 * A blocking call that SIGINT and SIGTERM take back: a small thread raises the call's cancel flag while the main thread
 * waits in it. */
#ifndef SK_CTL_GUARD_H
#define SK_CTL_GUARD_H

#include "common/base/sched.h"
#include "services/ctl/ctl.h"

#include <pthread.h>

struct ctl_guard {
    struct sk_call *call;
    pthread_t watcher;
    atomic_bool closing;
    bool open;
};

/* Prepares *call, catches signals from now on and watches. `call` must live until ctl_guard_close. 0, or CTL_FAILED
 * after telling why. */
SK_MUST_USE int ctl_guard_open(struct ctl_guard *guard, struct sk_call *call);
/* Ends the watching and gives back what the call holds; one that was never opened is fine. */
void ctl_guard_close(struct ctl_guard *guard);

#endif
