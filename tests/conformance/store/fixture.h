/* SPDX-License-Identifier: Apache-2.0
 *
 * Records, events and steps for the store checks: each step makes `after` and its event the way the engine does. */
#ifndef SK_TEST_STORE_FIXTURE_H
#define SK_TEST_STORE_FIXTURE_H

#include "tests/conformance/store/store_conformance.h"

#define TEAM "conformance"

#define OPS  (c->store->ops)
#define SELF (c->store->self)

bool sc_fail(struct sk_store_conformance *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        c->checks++;                                                                                                   \
        if (!(condition))                                                                                              \
            return sc_fail(c, __VA_ARGS__);                                                                            \
    } while (0)

/* A record that was never stored: provisioning, claimed by `owner`, with its first event. */
void sc_new(struct sk_store_conformance *c, struct sk_instance *out, struct sk_event *claimed, const char *owner);
/* Stores it; `out` is what the store gives back. */
SK_MUST_USE bool sc_insert(struct sk_store_conformance *c, struct sk_instance *out);
/* Stores it and makes it running, with an empty outbox. */
SK_MUST_USE bool sc_running(struct sk_store_conformance *c, struct sk_instance *out);

/* Steps: copy *before, change the copy, write its event. */
void sc_claim(struct sk_store_conformance *c, const struct sk_instance *before, struct sk_instance *after,
              struct sk_event *event, enum sk_op op, const char *owner);
void sc_phase(struct sk_store_conformance *c, const struct sk_instance *before, struct sk_instance *after,
              struct sk_event *event, const char *phase);
void sc_complete(struct sk_store_conformance *c, const struct sk_instance *before, struct sk_instance *after,
                 struct sk_event *event);

/* One compare-and-set that has to be applied; *record becomes `after`. */
SK_MUST_USE bool sc_apply(struct sk_store_conformance *c, struct sk_instance *record, const struct sk_instance *after,
                          const struct sk_event *event, const char *what);
/* Reads the record and compares everything that is public, and what is not. */
SK_MUST_USE bool sc_same(struct sk_store_conformance *c, const struct sk_instance *expected, const char *what);
/* Pulls every pending event. */
SK_MUST_USE bool sc_drain(struct sk_store_conformance *c, const struct sk_instance *record);

void sc_parallel(struct sk_store_conformance *c, int count, void (*task)(void *arg, int index), void *arg);

#endif
