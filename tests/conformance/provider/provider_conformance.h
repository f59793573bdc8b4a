/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that every struct sk_provider has to pass: the OpenSandbox adapter against a real server and the simulator's
 * provider alike. They use the seam only (no threads, no clock but the call's scheduler), so that they run inside the
 * simulator too. They leave nothing behind when they pass. */
#ifndef SK_TEST_PROVIDER_CONFORMANCE_H
#define SK_TEST_PROVIDER_CONFORMANCE_H

#include "common/provider/provider.h"

struct sk_conformance {
    const struct sk_provider *provider;
    struct sk_call *call;         /* no deadline, not cancelled */
    const char *sandbox_id;       /* a valid id that nobody else uses */
    const char *claim_name;       /* "" = do not look at volumes */
    const struct sk_image *image; /* one the provider can run */
    int64_t wait_ms;              /* longest wait for a state: 60 000 */
    /* Filled by the run. */
    int checks;
    char failure[512];
};

/* True when all checks hold; else `failure` says which one did not, and why. */
SK_MUST_USE bool sk_provider_conformance(struct sk_conformance *c);
/* Removes whatever carries the sandbox id, and the claim; for tests that failed half-way. */
void sk_provider_conformance_clean(struct sk_conformance *c);

#endif
