/* SPDX-License-Identifier: Apache-2.0
 *
 * The provider as skctl sees it. One at a time, on the main thread. */
#ifndef SK_CTL_PROVIDER_H
#define SK_CTL_PROVIDER_H

#include "common/provider/provider.h"
#include "services/ctl/guard.h"

struct ctl_provider {
    struct sk_provider provider;
    struct sk_call call;                     /* taken back when a signal comes */
    const char *volumes_url, *volumes_token; /* borrowed from the configuration; "" = none */
    struct ctl_guard guard;
    bool open;
};

/* From SANDKEEP_LOCALBOX_* or AGENT_SANDBOX_OPENSANDBOX_*. 0, or an exit status after telling why. No I/O. */
SK_MUST_USE int ctl_provider_open(struct ctl *ctl, struct ctl_provider *out);
void ctl_provider_close(struct ctl_provider *provider); /* one that was never opened is fine */
/* Shows an error of a provider call and returns its exit status. */
int ctl_provider_error(const struct ctl *ctl, const struct sk_error *err);

#endif
