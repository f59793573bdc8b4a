/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that a signal takes back. The flag of a signal handler cannot wake a thread that waits inside libcurl; raising
 * the call's cancel flag from another thread does. */
#include "services/ctl/guard.h"

#include "common/http/client.h"

#define WATCH_MS 50

static void *watch_interrupt(void *arg)
{
    struct ctl_guard *guard = arg;

    while (!atomic_load(&guard->closing)) {
        if (ctl_interrupted)
            sk_call_cancel(guard->call);
        sk_sleep_ms(&sk_sched_system, WATCH_MS);
    }
    return NULL;
}

int ctl_guard_open(struct ctl_guard *guard, struct sk_call *call)
{
    guard->call = call;
    atomic_store(&guard->closing, false);
    sk_call_init(call, &sk_sched_system);
    ctl_catch_signals();
    if (pthread_create(&guard->watcher, NULL, watch_interrupt, guard) != 0) {
        ctl_complain("cannot start a thread");
        return CTL_FAILED;
    }
    guard->open = true;
    return 0;
}

void ctl_guard_close(struct ctl_guard *guard)
{
    if (!guard->open)
        return;
    atomic_store(&guard->closing, true);
    pthread_join(guard->watcher, NULL);
    sk_http_call_release(guard->call);
    guard->open = false;
}
