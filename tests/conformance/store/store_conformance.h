/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that every struct sk_store has to pass: the Mongo store against a real server and the simulator's store alike.
 * They use the seam only, so that they run inside the simulator too (`parallel` NULL: what would run at once runs one
 * after another). They expect a store without records of team "conformance*" and leave theirs behind. */
#ifndef SK_TEST_STORE_CONFORMANCE_H
#define SK_TEST_STORE_CONFORMANCE_H

#include "common/store/store.h"

struct sk_store_conformance {
    const struct sk_store *store;
    const struct sk_sched *sched;
    /* Runs task(arg, 0 … count - 1) at once and returns when all have ended; NULL = one after another. */
    void (*parallel)(int count, void (*task)(void *arg, int index), void *arg);
    int tasks;   /* for the checks that run at once: 16 … 64 */
    int records; /* of the list checks: 150 */
    /* Filled by the run. */
    int checks;
    char failure[512];
    int names; /* identities used so far */
};

/* True when all checks hold; else `failure` says which one did not, and why. */
SK_MUST_USE bool sk_store_conformance(struct sk_store_conformance *c);

/* The parts, each of them complete in itself. */
SK_MUST_USE bool sk_store_check_records(struct sk_store_conformance *c);
SK_MUST_USE bool sk_store_check_changes(struct sk_store_conformance *c);
SK_MUST_USE bool sk_store_check_companions(struct sk_store_conformance *c);
SK_MUST_USE bool sk_store_check_quota(struct sk_store_conformance *c);
SK_MUST_USE bool sk_store_check_lists(struct sk_store_conformance *c);

#endif
