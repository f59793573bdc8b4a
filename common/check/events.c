/* SPDX-License-Identifier: Apache-2.0
 *
 * Events and commands: sequences without gaps, a chain of statuses, epochs that rise with claims and only with them,
 * and no event without its change or change without its event. */
#include "common/check/private.h"

#include <stdlib.h>
#include <string.h>

static bool same_event(const struct sk_check_event *a, const struct sk_check_event *b)
{
    return a->type == b->type && a->epoch == b->epoch && a->sequence == b->sequence && a->from == b->from &&
           a->to == b->to && strcmp(a->operation_id, b->operation_id) == 0 && strcmp(a->sandbox_id, b->sandbox_id) == 0;
}

static bool is_claim(const struct sk_check_event *event)
{
    return event->type == SK_EVENT_CLAIMED || event->type == SK_EVENT_TAKENOVER;
}

/* Two neighbours of one life of a sandbox. */
static void check_step(struct sk_check_context *c, const struct sk_check_event *a, const struct sk_check_event *b)
{
    const char *id = b->sandbox_id;

    /* FastGPT deletes records without a word, and the next life counts from 1 again. */
    if (c->in->foreign_writers && is_claim(b) && b->sequence == 1 && b->epoch > a->epoch)
        return;
    if (a->sequence == b->sequence) {
        sk_check_find(c, SK_CHECK_EVENT_SEQUENCE_REUSED, id, b->id, "events %s and %s are both number %lld", a->id,
                      b->id, (long long)b->sequence);
        return;
    }
    if (b->sequence != a->sequence + 1) {
        sk_check_find(c, SK_CHECK_EVENT_GAP, id, b->id, "number %lld (epoch %lld, %s) follows %lld (epoch %lld, %s)",
                      (long long)b->sequence, (long long)b->epoch, sk_event_type_name(b->type), (long long)a->sequence,
                      (long long)a->epoch, sk_event_type_name(a->type));
        return; /* what was between is unknown */
    }
    if (is_claim(b) ? b->epoch <= a->epoch : b->epoch != a->epoch)
        sk_check_find(c, SK_CHECK_EVENT_EPOCH, id, b->id, "%s number %lld has epoch %lld, the event before it %lld",
                      sk_event_type_name(b->type), (long long)b->sequence, (long long)b->epoch, (long long)a->epoch);
    if (b->from != a->to && !(is_claim(b) && c->in->foreign_writers))
        sk_check_find(c, SK_CHECK_EVENT_CHAIN, id, b->id,
                      "%s number %lld starts from %s, the event before it ended in %s", sk_event_type_name(b->type),
                      (long long)b->sequence, sk_status_name(b->from), sk_status_name(a->to));
}

/* The first event of a life: of a record that was made by it, or that FastGPT had made before. */
static void check_first(struct sk_check_context *c, const struct sk_check_event *event, bool oldest)
{
    if (oldest && !c->in->history_complete)
        return;
    if (event->sequence != 1)
        sk_check_find(c, SK_CHECK_EVENT_GAP, event->sandbox_id, event->id,
                      "the first event (%s, epoch %lld) is number %lld", sk_event_type_name(event->type),
                      (long long)event->epoch, (long long)event->sequence);
    else if (event->from != SK_STATUS_NONE && !c->in->foreign_writers)
        sk_check_find(c, SK_CHECK_EVENT_CHAIN, event->sandbox_id, event->id, "the first event starts from %s",
                      sk_status_name(event->from));
}

static void check_last(struct sk_check_context *c, const struct sk_check_event *event)
{
    const struct sk_check_record *r = sk_check_record_find(c, event->sandbox_id);

    if (r == NULL || r->malformed || r->epoch == 0 || event->to == SK_STATUS_NONE)
        return;
    if (event->epoch > r->epoch || (event->epoch == r->epoch && event->sequence > r->sequence))
        sk_check_find(c, SK_CHECK_EVENT_AHEAD, r->sandbox_id, event->id,
                      "event %lld of epoch %lld, the record is at %lld of epoch %lld", (long long)event->sequence,
                      (long long)event->epoch, (long long)r->sequence, (long long)r->epoch);
    else if (event->sequence == r->sequence && event->to != r->status && !c->in->foreign_writers)
        sk_check_find(c, SK_CHECK_EVENT_STATUS, r->sandbox_id, event->id, "event %lld ends in %s, the record is %s",
                      (long long)event->sequence, sk_status_name(event->to), sk_status_name(r->status));
    else if (event->sequence < r->sequence && c->in->history_complete)
        sk_check_find(c, SK_CHECK_EVENT_GAP, r->sandbox_id, event->id,
                      "the newest event is number %lld, the record is at %lld", (long long)event->sequence,
                      (long long)r->sequence);
}

/* History and outboxes of one sandbox merged: both are sorted alike, repeats are skipped. */
static void check_sandbox(struct sk_check_context *c, const char *sandbox_id)
{
    const size_t offset = offsetof(struct sk_check_event, sandbox_id);
    size_t history_count, pending_count;
    size_t h = sk_check_group(&c->history, offset, sandbox_id, &history_count), h_end = h + history_count;
    size_t p = sk_check_group(&c->pending, offset, sandbox_id, &pending_count), p_end = p + pending_count;
    const struct sk_check_event *previous = NULL, *event;
    bool oldest = true;

    while (h < h_end || p < p_end) {
        const struct sk_check_event *left = h < h_end ? c->history.items[h] : NULL;
        const struct sk_check_event *right = p < p_end ? c->pending.items[p] : NULL;
        bool take_left =
            right == NULL || (left != NULL && (left->epoch < right->epoch ||
                                               (left->epoch == right->epoch && left->sequence <= right->sequence)));

        event = take_left ? left : right;
        if (event == NULL)
            break; /* cannot be: one of the two has more; said for the static analyser */
        h += take_left ? 1 : 0;
        p += take_left ? 0 : 1;
        if (previous != NULL && strcmp(previous->id, event->id) == 0)
            continue;
        if (previous == NULL || previous->to == SK_STATUS_NONE)
            check_first(c, event, oldest);
        else
            check_step(c, previous, event);
        oldest = false;
        previous = event;
    }
    if (previous != NULL)
        check_last(c, previous);
}

static int by_event_id(const void *a, const void *b)
{
    return strcmp((*(const struct sk_check_event *const *)a)->id, (*(const struct sk_check_event *const *)b)->id);
}

static void check_ids(struct sk_check_context *c)
{
    struct sk_check_index index =
        sk_check_sort(c, c->in->history, c->in->history_count, sizeof(*c->in->history), by_event_id);

    for (size_t i = 1; i < index.count; i++) {
        const struct sk_check_event *a = index.items[i - 1], *b = index.items[i];

        if (strcmp(a->id, b->id) == 0 && !same_event(a, b))
            sk_check_find(c, SK_CHECK_EVENT_ID_REUSED, b->sandbox_id, b->id, "id %s: %s number %lld and %s number %lld",
                          b->id, sk_event_type_name(a->type), (long long)a->sequence, sk_event_type_name(b->type),
                          (long long)b->sequence);
    }
    sk_check_index_free(&index);
}

void sk_check_events(struct sk_check_context *c)
{
    if (c->in->pending_known) {
        for (size_t i = 0; i < c->pending.count; i++) {
            const struct sk_check_event *event = c->pending.items[i];

            if (sk_check_old(c, event->time, c->in->grace.outbox_ms))
                sk_check_find(c, SK_CHECK_OUTBOX_LATE, event->sandbox_id, event->id, "%s number %lld waits for %lld ms",
                              sk_event_type_name(event->type), (long long)event->sequence,
                              (long long)(c->in->now_ms - event->time));
        }
    }
    if (!c->in->history_known)
        return;
    check_ids(c);
    for (size_t i = 0, count; i < c->history.count; i += count) {
        const char *id = ((const struct sk_check_event *)c->history.items[i])->sandbox_id;

        sk_check_group(&c->history, offsetof(struct sk_check_event, sandbox_id), id, &count);
        check_sandbox(c, id);
    }
}

static int by_change(const void *a, const void *b)
{
    return strcmp((*(const struct sk_check_change *const *)a)->event_id,
                  (*(const struct sk_check_change *const *)b)->event_id);
}

void sk_check_changes(struct sk_check_context *c)
{
    struct sk_check_index published, pending, changes;
    size_t count;

    if (!c->in->changes_known || !c->in->history_known || !c->in->pending_known)
        return;
    published = sk_check_sort(c, c->in->history, c->in->history_count, sizeof(*c->in->history), by_event_id);
    pending = sk_check_sort(c, c->in->pending, c->in->pending_count, sizeof(*c->in->pending), by_event_id);
    changes = sk_check_sort(c, c->in->changes, c->in->change_count, sizeof(*c->in->changes), by_change);
    for (size_t i = 0; i < changes.count; i++) {
        const struct sk_check_change *change = changes.items[i];
        size_t waiting;

        sk_check_group(&published, offsetof(struct sk_check_event, id), change->event_id, &count);
        sk_check_group(&pending, offsetof(struct sk_check_event, id), change->event_id, &waiting);
        if (count == 0 && waiting == 0)
            sk_check_find(c, SK_CHECK_EVENT_LOST, change->sandbox_id, change->event_id,
                          "event %s is neither published nor pending", change->event_id);
    }
    for (size_t i = 0; i < published.count; i++) {
        const struct sk_check_event *event = published.items[i];

        sk_check_group(&changes, offsetof(struct sk_check_change, event_id), event->id, &count);
        if (count == 0)
            sk_check_find(c, SK_CHECK_EVENT_INVENTED, event->sandbox_id, event->id,
                          "%s number %lld of epoch %lld has no change", sk_event_type_name(event->type),
                          (long long)event->sequence, (long long)event->epoch);
    }
    sk_check_index_free(&published);
    sk_check_index_free(&pending);
    sk_check_index_free(&changes);
}

void sk_check_commands(struct sk_check_context *c)
{
    if (!c->in->commands_known)
        return;
    for (size_t i = 0; i < c->in->command_count; i++) {
        const struct sk_check_command *command = &c->in->commands[i];

        if (command->must_answer && command->answers == 0)
            sk_check_find(c, SK_CHECK_COMMAND_UNANSWERED, command->sandbox_id, command->command_id,
                          "command %s has no final answer", command->command_id);
        if (command->meanings > 1)
            sk_check_find(c, SK_CHECK_COMMAND_AMBIGUOUS, command->sandbox_id, command->command_id,
                          "command %s was answered with %d different results", command->command_id, command->meanings);
        if (command->acknowledged && !command->stored && !command->rejected && !command->retryable)
            sk_check_find(c, SK_CHECK_COMMAND_LOST, command->sandbox_id, command->command_id,
                          "command %s was acknowledged without a result", command->command_id);
    }
}

void sk_check_event_of(struct sk_check_event *out, const struct sk_event *event)
{
    memset(out, 0, sizeof(*out));
    sk_copy_cut(out->id, sizeof(out->id), event->id);
    sk_copy_cut(out->sandbox_id, sizeof(out->sandbox_id), event->sandbox_id);
    out->type = event->type;
    out->time = event->time;
    out->epoch = event->epoch;
    out->sequence = event->sequence;
    out->from = event->from;
    out->to = event->to;
    sk_copy_cut(out->operation_id, sizeof(out->operation_id), event->operation_id);
}
