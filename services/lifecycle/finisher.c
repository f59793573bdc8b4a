/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of every command: result stored, requester answered, event published and confirmed, delivery acknowledged and
 * confirmed, in this order and in batches. Redelivery is the outbox of command events (contract/messaging.md §4): what
 * dies in between comes again and finds its result in the store. Bad input ends here too, as dead letter. */
#include "services/lifecycle/internal.h"

#include "common/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_FIRST_MS 50
#define WAIT_MAX_MS   1000
#define ROUNDS_MAX    5 /* tries to publish a batch before others get their turn */

void lc_finisher_push(struct lc_replica *r, struct lc_held *held)
{
    pthread_mutex_lock(&r->finish_lock);
    sk_list_push_back(&r->finishes, &held->finish);
    pthread_mutex_unlock(&r->finish_lock);
    atomic_fetch_add(&r->finishing, 1);
    sk_gate_notify(r->sched, r->finish_gate);
}

/* A batch is worked on as an array; everything in it belongs to this thread. */
struct batch {
    struct lc_replica *replica;
    struct lc_held *items[LC_FINISH_BATCH];
    int count;
    struct sk_command_record *records;       /* LC_FINISH_BATCH */
    struct lc_held *stored[LC_FINISH_BATCH]; /* whose record it is */
    bool existed[LC_FINISH_BATCH];
    struct lc_event_message *events; /* 2 * LC_FINISH_BATCH: event, dead letter */
    struct sk_message *messages;     /* the same, as the bus wants them */
    struct lc_held *owners[2 * LC_FINISH_BATCH];
    bool acked[2 * LC_FINISH_BATCH];
    struct sk_delivery *deliveries[LC_FINISH_BATCH];
    struct sk_list backlog; /* taken over, not in this batch yet */
    struct sk_list crowd;   /* the same, of sandboxes that had their share */
    int crowd_count;
    int64_t crowd_us;        /* when its next slice is due */
    int64_t crowd_looked_us; /* when it was looked through for deliveries that expire */
    int64_t in_progress_us;
};

static void put_in_line(struct batch *b, struct lc_held *held)
{
    if (held->crowd)
        b->crowd_count++;
    sk_list_push_back(held->crowd ? &b->crowd : &b->backlog, &held->finish);
}

/* Everything that was pushed: from here on this thread keeps it alive. */
static void take_over(struct batch *b)
{
    struct lc_replica *r = b->replica;
    struct sk_list *item;

    pthread_mutex_lock(&r->finish_lock);
    while ((item = sk_list_pop_front(&r->finishes)) != NULL)
        put_in_line(b, SK_LIST_ENTRY(struct lc_held, item, finish));
    pthread_mutex_unlock(&r->finish_lock);
}

/* ---- preparing ---------------------------------------------------------------------------------- */
static char *conflict_text(const struct lc_command *command)
{
    struct lc_answer answer;

    memset(&answer, 0, sizeof(answer));
    sk_fail(&answer.err, SK_ERR_IDEMPOTENCY_CONFLICT, "this id was used for a command of another meaning");
    return lc_answer_text(&answer, command);
}

/* result, ok, store. Without memory the command is given back: it comes again. */
static void prepare(struct lc_held *held)
{
    if (held->kind == LC_FINISH_NAK || held->result != NULL)
        return;
    held->sequence = held->delivery->stream_sequence;
    if (held->stored != NULL) {
        json_t *stored = json_loads(held->stored, 0, NULL);

        held->ok = json_is_true(json_object_get(stored, "ok"));
        json_decref(stored);
        held->result = held->stored;
        held->stored = NULL;
        held->repeated = true;
        held->store = held->recalled;
    } else if (held->conflict) {
        held->result = conflict_text(&held->command);
    } else {
        held->ok = held->answer->ok;
        held->store = held->kind != LC_FINISH_REJECT && (held->ok || !held->answer->err.retryable);
        held->result = lc_answer_text(held->answer, &held->command);
    }
    if (held->result == NULL)
        held->kind = LC_FINISH_NAK;
}

/* While the store or the bus is away, nothing that waits here may be redelivered. */
static void keep_alive(struct batch *b)
{
    struct lc_replica *r = b->replica;
    int64_t now_us = sk_mono_us(r->sched);

    if (now_us < b->in_progress_us)
        return;
    b->in_progress_us = now_us + r->settings.in_progress_every_ms * 1000 / 4;
    take_over(b);
    for (int i = 0; i < b->count; i++) {
        if (b->items[i]->delivery != NULL)
            r->seams.bus->ops->in_progress(r->seams.bus->self, b->items[i]->delivery);
    }
    SK_LIST_FOREACH (struct lc_held, held, &b->backlog, finish)
        r->seams.bus->ops->in_progress(r->seams.bus->self, held->delivery);
    SK_LIST_FOREACH (struct lc_held, held, &b->crowd, finish)
        r->seams.bus->ops->in_progress(r->seams.bus->self, held->delivery);
}

static bool wait_a_little(struct batch *b, int tries)
{
    struct lc_replica *r = b->replica;
    uint64_t ticket = sk_gate_ticket(r->sched, r->finish_gate);

    keep_alive(b);
    if (lc_stopping(r) || (lc_draining(r) && tries > 2))
        return false;
    sk_gate_wait(r->sched, r->finish_gate, ticket, lc_backoff_ms(r->sched, WAIT_FIRST_MS, WAIT_MAX_MS, tries));
    return !lc_stopping(r);
}

/* ---- storing ------------------------------------------------------------------------------------ */
/* Another replica was given the same id and was faster: its answer is the answer (contract/messaging.md §2). */
static int take_first_answer(struct batch *b, struct lc_held *held)
{
    const struct sk_store *store = b->replica->seams.store;
    struct sk_command_record record = {.result = NULL};
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;
    bool found = false;

    sk_call_init(&call, b->replica->sched);
    call.deadline_us = sk_mono_us(b->replica->sched) + LC_COMMIT_MS * 1000;
    if (store->ops->command_find(store->self, &call, held->command.sandbox_id, held->command.id, &record, &found,
                                 &err) != 0) {
        lc_note_store(b->replica, false);
        return -1;
    }
    if (!found || (strcmp(record.body_hash, held->command.hash) == 0 && strcmp(record.result, held->result) == 0)) {
        sk_command_record_fini(&record);
        return 0;
    }
    free(held->result);
    held->result = NULL;
    held->ok = held->recalled = false;
    if (strcmp(record.body_hash, held->command.hash) == 0) {
        held->stored = record.result;
        record.result = NULL;
        lc_count(b->replica, LC_COUNT_COMMANDS_REPEATED, 1);
    } else {
        held->conflict = true;
    }
    sk_command_record_fini(&record);
    prepare(held);
    return 0;
}

static bool take_first_answers(struct batch *b, int count)
{
    for (int i = 0; i < count; i++) {
        for (int tries = 0; b->existed[i] && !LC_MUTATE(ANSWER_ANEW) && take_first_answer(b, b->stored[i]) != 0;
             tries++) {
            if (!wait_a_little(b, tries))
                return false;
        }
    }
    return true;
}

static bool store_results(struct batch *b)
{
    struct lc_replica *r = b->replica;
    int count = 0;

    for (int i = 0; i < b->count; i++) {
        struct lc_held *held = b->items[i];
        struct sk_command_record *record = &b->records[count];

        if (held->kind == LC_FINISH_NAK || !held->store || held->is_stored)
            continue;
        memcpy(record->sandbox_id, held->command.sandbox_id, sizeof(record->sandbox_id));
        memcpy(record->command_id, held->command.id, sizeof(record->command_id));
        memcpy(record->body_hash, held->command.hash, sizeof(record->body_hash));
        record->result = held->result; /* borrowed for the call */
        record->at = sk_wall_ms(r->sched);
        record->existed = &b->existed[count];
        b->existed[count] = false;
        b->stored[count++] = held;
    }
    for (int tries = 0; count > 0; tries++) {
        struct sk_error err = {.code = SK_OK};

        /* Repeating is harmless: a result that is there already is left as it is. */
        if (r->seams.store->ops->command_put(r->seams.store->self, b->records, count, &err) == 0) {
            lc_note_store(r, true);
            lc_count(r, LC_COUNT_RESULTS_STORED, count);
            break;
        }
        lc_note_store(r, false);
        if (tries == 0)
            SK_LOG_WARN("results wait for the store", SK_FI("count", count), SK_FE(&err));
        if (!wait_a_little(b, tries))
            return false;
    }
    if (!take_first_answers(b, count))
        return false;
    for (int i = 0; i < b->count; i++)
        b->items[i]->is_stored = true;
    return !(count > 0 && SK_FAULT(RESULT_STORED, NULL));
}

static void reply_all(struct batch *b)
{
    for (int i = 0; i < b->count; i++) {
        struct lc_held *held = b->items[i];

        if (held->kind == LC_FINISH_NAK || held->is_replied)
            continue;
        held->is_replied = true;
        if (!atomic_exchange(&held->replied, true))
            lc_publish_reply(b->replica, &held->command, held->result, false);
    }
}

/* ---- events and dead letters -------------------------------------------------------------------- */
/* The same outcome of the same command always has the same event id: a second copy is dropped by the stream. What is
 * not stored may end differently the next time, so the delivery is part of it. */
static void event_id(const struct lc_held *held, const char *type, char out[33])
{
    char text[SK_SANDBOX_ID_SIZE + SK_COMMAND_ID_SIZE + 64], hex[65];
    int length = snprintf(text, sizeof(text), "%s/%s/%s/%llu", held->command.sandbox_id, held->command.id, type,
                          held->store || held->ok || held->repeated ? 0ULL : (unsigned long long)held->sequence);

    sk_sha256_hex(text, (size_t)length, hex);
    memcpy(out, hex, 32);
    out[32] = '\0';
}

/* The result with "commandId" in front. */
static char *event_body(const struct lc_held *held)
{
    struct sk_buf out;
    json_t *id = json_string(held->command.id);
    char *quoted = id != NULL ? json_dumps(id, JSON_ENCODE_ANY) : NULL;
    char *text = NULL;

    sk_buf_init(&out, SK_BUS_BODY_MAX * 2);
    if (quoted != NULL && held->result[0] == '{') {
        if (held->command.id[0] != '\0')
            sk_buf_printf(&out, "{\"commandId\":%s,", quoted);
        else
            sk_buf_append_char(&out, '{');
        sk_buf_append_text(&out, held->result + 1);
        if (!out.overflow)
            text = sk_buf_take(&out, NULL);
    }
    sk_buf_fini(&out);
    free(quoted);
    json_decref(id);
    return text;
}

static int make_event(struct lc_replica *r, const struct lc_held *held, struct lc_event_message *out)
{
    const char *type = held->kind == LC_FINISH_REJECT ? "command.rejected"
                       : held->ok                     ? "command.completed"
                                                      : "command.failed";
    char id[33];

    event_id(held, type, id);
    return lc_message_of_command(r, &held->command, type, id, event_body(held), out);
}

/* The message as it came, with its headers, the reason and the count of deliveries. */
static int make_dead_letter(struct lc_replica *r, const struct lc_held *held, struct lc_event_message *out,
                            struct sk_header *headers)
{
    static char reason_name[] = SK_HEADER_REASON, deliveries_name[] = SK_HEADER_DELIVERIES;
    const struct sk_delivery *d = held->delivery;
    size_t prefix_len = strlen(r->settings.subject_prefix);
    const char *rest = d->subject + prefix_len, *raw = d->body != NULL ? d->body : d->raw_body;
    char hex[65];
    int count = 0;

    memset(out, 0, sizeof(*out));
    if (strncmp(rest, ".cmd.", 5) == 0)
        rest += 5;
    if (snprintf(out->subject, sizeof(out->subject), SK_SUBJECT_DEAD_FMT, r->settings.subject_prefix, rest) >=
        (int)sizeof(out->subject))
        sk_copy_cut(out->subject, sizeof(out->subject), "sandbox.dead.oversize-subject");
    sk_sha256_hex(raw != NULL ? raw : "", raw != NULL ? d->body_len : 0, hex);
    snprintf(out->id, sizeof(out->id), "dead-%llu-%.16s", (unsigned long long)d->stream_sequence, hex);
    for (int i = 0; i < d->header_count; i++)
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the table was made when there is a dead letter */
        headers[count++] = d->headers[i];
    sk_copy_cut(out->type, sizeof(out->type), sk_code_name(held->answer->err.code));
    snprintf(out->source, sizeof(out->source), "%llu", (unsigned long long)d->delivered);
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the table was made when there is a dead letter */
    headers[count++] = (struct sk_header){reason_name, out->type};
    headers[count++] = (struct sk_header){deliveries_name, out->source};
    out->message = (struct sk_message){.subject = out->subject,
                                       .message_id = out->id,
                                       .headers = headers,
                                       .header_count = count,
                                       .body = raw != NULL ? raw : "",
                                       .body_len = raw != NULL ? d->body_len : 0};
    return 0;
}

static bool is_dead(const struct lc_held *held)
{
    return held->kind == LC_FINISH_REJECT || held->kind == LC_FINISH_DEAD;
}

/* True when everything of the batch is confirmed by the streams. */
static bool publish_round(struct batch *b, struct sk_header (*headers)[SK_BUS_HEADERS_MAX + 2])
{
    struct lc_replica *r = b->replica;
    struct sk_error err = {.code = SK_OK};
    int count = 0, dead = 0, lost = 0;

    for (int i = 0; i < b->count; i++) {
        struct lc_held *held = b->items[i];

        if (held->kind == LC_FINISH_NAK || held->is_published)
            continue;
        if (make_event(r, held, &b->events[count]) != 0)
            continue;
        b->owners[count++] = held;
        if (is_dead(held) && make_dead_letter(r, held, &b->events[count], headers[dead++]) == 0)
            b->owners[count++] = held;
    }
    for (int i = 0; i < count; i++) {
        b->messages[i] = b->events[i].message;
        b->acked[i] = false;
    }
    if (count > 0)
        (void)r->seams.bus->ops->publish_acked(r->seams.bus->self, b->messages, count, b->acked,
                                               r->settings.publish_timeout_ms, &err);
    for (int i = 0; i < count; i++)
        b->owners[i]->is_published = true;
    for (int i = 0; i < count; i++) {
        if (!b->acked[i]) {
            b->owners[i]->is_published = false;
            lost++;
        }
        lc_message_fini(&b->events[i]);
    }
    if (lost > 0)
        lc_count(r, LC_COUNT_PUBACKS_LOST, lost);
    return lost == 0;
}

/* What the stream does not take, for whatever reason, must not keep others from being stored and answered. */
static bool gives_way(struct batch *b, int tries)
{
    return tries >= ROUNDS_MAX && !lc_draining(b->replica) && (!sk_list_empty(&b->backlog) || b->crowd_count > 0);
}

static bool publish_all(struct batch *b)
{
    struct sk_header(*headers)[SK_BUS_HEADERS_MAX + 2] = NULL;
    size_t dead = 0;
    bool done = false;

    for (int i = 0; i < b->count; i++)
        dead += is_dead(b->items[i]);
    for (int tries = 0; !done && (tries == 0 || (!gives_way(b, tries) && wait_a_little(b, tries - 1))); tries++) {
        if (dead > 0 && headers == NULL)
            headers = calloc(dead, sizeof(*headers));
        done = (dead == 0 || headers != NULL) && publish_round(b, headers);
    }
    free(headers);
    return done && !SK_FAULT(RESULT_PUBLISHED, NULL);
}

/* Stored and answered, but not published: behind those that came meanwhile, to be tried again. */
static void set_aside(struct batch *b)
{
    int left = 0;

    if (lc_draining(b->replica))
        return; /* they are given back */
    for (int i = 0; i < b->count; i++) {
        struct lc_held *held = b->items[i];

        if (held->kind != LC_FINISH_NAK && held->is_stored && !held->is_published && held->delivery != NULL) {
            sk_list_remove(&held->finish);
            put_in_line(b, held);
        } else {
            b->items[left++] = held;
        }
    }
    b->count = left;
}

/* ---- acknowledging ------------------------------------------------------------------------------ */
static void acknowledge(struct batch *b)
{
    const struct sk_bus *bus = b->replica->seams.bus;
    struct sk_error err = {.code = SK_OK};
    int count = 0;

    for (int i = 0; i < b->count; i++) {
        struct lc_held *held = b->items[i];
        struct sk_delivery *delivery = held->delivery;

        if (delivery == NULL)
            continue;
        held->delivery = NULL;
        if (held->kind == LC_FINISH_NAK || !held->is_published) {
            (void)bus->ops->nak(bus->self, delivery, 0, &err);
        } else if (is_dead(held)) {
            if (held->kind == LC_FINISH_DEAD)
                SK_LOG_ERROR("command given up", SK_F("sandboxId", held->command.sandbox_id),
                             SK_F("commandId", held->command.id), SK_FE(&held->answer->err));
            lc_count(b->replica, LC_COUNT_COMMANDS_DEAD, 1);
            (void)bus->ops->term(bus->self, delivery, &err);
        } else {
            b->deliveries[count++] = delivery;
        }
    }
    /* An ack that gets lost brings the command back: it finds its result stored. */
    if (count > 0 && bus->ops->ack_many(bus->self, b->deliveries, count, &err) != 0)
        SK_LOG_WARN("acknowledgement not confirmed, commands may come again", SK_FI("count", count), SK_FE(&err));
    if (count > 0)
        (void)SK_FAULT(COMMAND_ACKED, NULL);
}

/* A mutation: what must never happen. */
static void acknowledge_early(struct batch *b)
{
    for (int i = 0; i < b->count; i++) {
        if (b->items[i]->kind == LC_FINISH_RESULT) {
            (void)b->replica->seams.bus->ops->ack(b->replica->seams.bus->self, b->items[i]->delivery, NULL);
            b->items[i]->delivery = NULL;
        }
    }
}

static void finish(struct batch *b)
{
    struct sk_list out;

    if (LC_MUTATE(ACK_BEFORE_STORE))
        acknowledge_early(b);
    if (store_results(b)) {
        reply_all(b);
        if (!publish_all(b))
            set_aside(b);
    }
    acknowledge(b);
    sk_list_init(&out);
    for (int i = 0; i < b->count; i++) {
        sk_list_remove(&b->items[i]->finish);
        sk_list_push_back(&out, &b->items[i]->finish);
    }
    atomic_fetch_sub(&b->replica->finishing, b->count);
    b->count = 0;
    lc_dispatch_finished(b->replica, &out);
}

/* A crowd (a sandbox's thousand waiters, answered at once) must not hold up the others, neither here nor in the store
 * and on the processors, where their operations run meanwhile: it is answered in slices, without a pause while nobody
 * else is at work, else one after each pause. */
static bool slice_due(const struct batch *b, int64_t now_us)
{
    if (b->crowd_count == 0)
        return false;
    return now_us >= b->crowd_us ||
           (sk_list_empty(&b->backlog) && (lc_draining(b->replica) || atomic_load(&b->replica->job_count) == 0));
}

/* A small share of it: others wait for one slice at most. The larger the crowd, the more at once: it must not take for
 * ever either. A drain has no time to lose. */
static int slice_size(const struct batch *b)
{
    int part = b->crowd_count / LC_CROWD_SLICES;

    if (part >= LC_FINISH_BATCH || lc_draining(b->replica))
        return LC_FINISH_BATCH;
    return part > LC_FINISH_SHARE ? part : LC_FINISH_SHARE;
}

/* In the order of their coming, either from the line or from the crowd. Returns ms to wait when nothing was taken, -1 =
 * until something comes. */
static int64_t take(struct batch *b)
{
    int64_t now_us = sk_mono_us(b->replica->sched);
    bool slice, gathers = b->crowd_count == 0;
    int most = LC_FINISH_BATCH;
    struct sk_list *item;

    take_over(b);
    if (gathers)
        b->crowd_us = now_us + LC_CROWD_PAUSE_MS * 1000; /* who is in the line goes first */
    slice = slice_due(b, now_us);
    if (slice)
        most = slice_size(b);
    while (b->count < most && (item = sk_list_pop_front(slice ? &b->crowd : &b->backlog)) != NULL)
        b->items[b->count++] = SK_LIST_ENTRY(struct lc_held, item, finish);
    if (slice)
        b->crowd_count -= b->count;
    return b->crowd_count > 0 ? (b->crowd_us - now_us + 999) / 1000 : -1;
}

/* Who waits in the crowd may do so for seconds. */
static void keep_crowd_alive(struct batch *b)
{
    struct lc_replica *r = b->replica;
    int64_t now_us = sk_mono_us(r->sched), every_us = r->settings.in_progress_every_ms * 1000;

    if (b->crowd_count == 0 || now_us < b->crowd_looked_us)
        return;
    b->crowd_looked_us = now_us + every_us / 4;
    SK_LIST_FOREACH (struct lc_held, held, &b->crowd, finish) {
        if (held->in_progress_us >= now_us + every_us / 2)
            continue;
        held->in_progress_us = now_us + every_us;
        r->seams.bus->ops->in_progress(r->seams.bus->self, held->delivery);
    }
}

/* Storing and publishing may block for a while: who gave no sign of life for long does it before. */
static void prepare_all(struct batch *b)
{
    struct lc_replica *r = b->replica;
    int64_t soon_us = sk_mono_us(r->sched) + r->settings.in_progress_every_ms * 1000 / 2;

    b->in_progress_us = 0; /* the first wait in here gives one for all */
    for (int i = 0; i < b->count; i++) {
        if (b->items[i]->in_progress_us < soon_us)
            r->seams.bus->ops->in_progress(r->seams.bus->self, b->items[i]->delivery);
        prepare(b->items[i]);
    }
}

/* What is left when the replica stops goes back to where lc_replica_free finds it. */
static void put_back(struct batch *b)
{
    struct sk_list *item;

    pthread_mutex_lock(&b->replica->finish_lock);
    while ((item = sk_list_pop_front(&b->backlog)) != NULL)
        sk_list_push_back(&b->replica->finishes, item);
    while ((item = sk_list_pop_front(&b->crowd)) != NULL)
        sk_list_push_back(&b->replica->finishes, item);
    pthread_mutex_unlock(&b->replica->finish_lock);
}

void lc_finisher_main(struct lc_replica *r)
{
    struct batch *b = calloc(1, sizeof(*b));
    bool slice;

    if (b != NULL) {
        b->replica = r;
        sk_list_init(&b->backlog);
        sk_list_init(&b->crowd);
        b->records = calloc(LC_FINISH_BATCH, sizeof(*b->records));
        b->events = calloc(2 * LC_FINISH_BATCH, sizeof(*b->events));
        b->messages = calloc(2 * LC_FINISH_BATCH, sizeof(*b->messages));
    }
    if (b == NULL || b->records == NULL || b->events == NULL || b->messages == NULL) {
        SK_LOG_ERROR("no memory for the finisher");
        goto out;
    }
    while (!lc_stopping(r)) {
        uint64_t ticket = sk_gate_ticket(r->sched, r->finish_gate);
        int64_t wait_ms = take(b);

        keep_crowd_alive(b);
        if (b->count == 0) {
            if (!lc_stopping(r))
                sk_gate_wait(r->sched, r->finish_gate, ticket, wait_ms);
            continue;
        }
        slice = b->items[0]->crowd;
        prepare_all(b);
        finish(b);
        if (slice)
            b->crowd_us = sk_mono_us(r->sched) + LC_CROWD_PAUSE_MS * 1000;
    }
out:
    if (b != NULL) {
        put_back(b);
        free(b->records);
        free(b->events);
        free(b->messages);
    }
    free(b);
}
