/* SPDX-License-Identifier: Apache-2.0
 *
 * A replica without threads for unit tests: the clock stands until it is moved, chance is a counter, gates do nothing,
 * the bus writes down what it is told. Jobs are taken from the replica's list and ended by the test itself. */
#ifndef SK_TESTS_LIFECYCLE_FAKES_H
#define SK_TESTS_LIFECYCLE_FAKES_H

#include "services/lifecycle/internal.h"

struct fake {
    struct sk_sched sched;
    struct sk_bus bus;
    struct lc_settings settings;
    struct lc_replica *replica;
    int64_t now_us;
    uint32_t chance;
    int in_progress, published, bells;
    char last_subject[SK_SUBJECT_SIZE], last_body[4096];
    int dropped; /* deliveries freed without a word */
    uint64_t next_sequence;
};

/* Defaults of the program, then `change` (may be NULL). */
void fake_start(struct fake *f, void (*change)(struct lc_settings *settings));
void fake_stop(struct fake *f); /* frees the replica and everything it still holds */
void fake_advance(struct fake *f, int64_t ms);

/* A command as it comes from the stream; `extra` goes into the body object ("" or ",\"params\":{…}"). */
void fake_send(struct fake *f, const char *op, const char *sandbox_id, const char *id, const char *extra);
struct lc_job *fake_take(struct fake *f); /* the next job, NULL = none waits */
/* Ends a job; an answer is made for DONE and FAILED. */
void fake_end(struct fake *f, struct lc_job *job, enum lc_outcome outcome, enum sk_code code, int64_t wake_ms);
/* The next command on its way to the finisher, NULL = none; give it back with fake_finished. */
struct lc_held *fake_result(struct fake *f);
void fake_finished(struct fake *f, struct lc_held *held);

#endif
