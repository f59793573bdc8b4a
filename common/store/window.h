/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to common/store: walking an index in two-sided windows of adaptive width. The embedded server reads
 * everything that a range matches before it applies a limit, so an open range over 100,000 records costs 0.2 s (python:
 * 3 s) for a page of 50; a window that holds about a page costs 1 ms on every server. */
#ifndef SK_STORE_WINDOW_H
#define SK_STORE_WINDOW_H

#include "common/store/mongo.h"

#define SK_WINDOW_TIME_MIN 1
#define SK_WINDOW_TIME_MAX 253402300799998LL /* one below what a date may be: ranges end with "$lt" */

/* A text that sorts behind every other one. */
#define SK_ID_END      "\xf4\x8f\xbf\xbf"
#define SK_ID_END_SIZE 5

/* Appends { field: <not something else than the value> }: means equality, but does not tempt the embedded server's
 * planner away from the index of the window (measured: 150 ms against 1 ms). MongoDB's own sees the equality. */
void sk_window_hidden_text(bson_t *filter, const char *field, const char *value);
/* The same for "one of these statuses". */
void sk_window_hidden_statuses(bson_t *filter, unsigned statuses);
/* { field: not later than / not earlier than } in the same manner; also matches what has no such field. */
void sk_window_hidden_date(bson_t *filter, const char *field, const char *refused, int64_t value);

/* A walk over a time field. Positions are milliseconds, both ends inclusive. */
struct sk_time_walk {
    const bson_t *leading; /* what stands before `field` in the index, or NULL. It must also stand before it in the
                            * filter: the embedded server chooses its index by the order there (2 ms against 800). */
    const bson_t *filter;  /* the rest of the filter */
    const char *field;
    bool descending;
    int64_t from, end; /* descending: from >= end */
    int64_t width;     /* in: first width (0 = default); out: what a page like this one spans */
    int64_t budget_us; /* of elapsed time */
    int want;
    sk_mongo_doc_fn fn; /* called in order; false stops */
    void *arg;
    /* Results. */
    int found;
    int64_t first; /* position of the first document found, 0 = none */
    bool finished; /* nothing is left beyond */
    bool out_of_time;
    int64_t next; /* where an unfinished walk that ran out of time goes on */
};
SK_MUST_USE int sk_walk_time(struct sk_mongo_op *op, struct sk_time_walk *walk, struct sk_error *err);
/* The documents at the moment `at` that stand behind the one of this _id, at most walk->want of them. `filter` is all
 * of the walk's filter but the field itself, with what leads in a walk hidden: with a condition on _id the fast twin
 * reads all that has the leading value (0.8 s at 20,000), while one moment of the plain index holds next to nothing. */
SK_MUST_USE int sk_walk_ties(struct sk_mongo_op *op, const struct sk_time_walk *walk, const bson_t *filter, int64_t at,
                             const char *oid, struct sk_error *err);
/* An ascending walk from the beginning of time. Windows cannot be laid out without knowing where documents begin, so
 * that is remembered in *oldest, a hint that is never trusted: what lies before it is asked for too. `learn` = this
 * walk sees everything the hint stands for. */
SK_MUST_USE int sk_walk_from_oldest(struct sk_mongo_op *op, struct sk_time_walk *walk, atomic_llong *oldest, bool learn,
                                    struct sk_error *err);

/* A walk over sandbox ids in ascending order, from just after `after` ("" = the beginning). Texts of any shape are met.
 */
struct sk_id_walk {
    const bson_t *filter;
    char after[SK_SANDBOX_ID_SIZE];
    bool inclusive; /* `after` itself belongs to the walk */
    int64_t width;  /* as above, of 2^64 */
    int64_t budget_us;
    int want;
    sk_mongo_doc_fn fn;
    void *arg;
    int found;
    bool finished, out_of_time;
    char next[SK_SANDBOX_ID_SIZE]; /* inclusive */
};
SK_MUST_USE int sk_walk_ids(struct sk_mongo_op *op, struct sk_id_walk *walk, struct sk_error *err);

#endif
