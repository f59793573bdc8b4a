/* SPDX-License-Identifier: Apache-2.0
 * The fakes of the dispatcher's unit tests. */
#include "tests/unit/lifecycle/fakes.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The one function of the store library that the core calls by name. */
void sk_command_record_fini(struct sk_command_record *record)
{
    free(record->result);
    record->result = NULL;
}

static struct fake *fake_of(void *self)
{
    return self;
}

static int64_t wall_ms(void *self)
{
    return 1796025600000 + fake_of(self)->now_us / 1000;
}

static int64_t mono_us(void *self)
{
    return fake_of(self)->now_us;
}

static void sleep_ms(void *self, int64_t ms)
{
    fake_of(self)->now_us += ms * 1000;
}

static void random_bytes(void *self, void *out, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)out)[i] = (unsigned char)(fake_of(self)->chance++ * 37);
}

static struct sk_gate *gate_new(void *self)
{
    (void)self;
    return malloc(1);
}

static void gate_free(void *self, struct sk_gate *gate)
{
    (void)self;
    free(gate);
}

static uint64_t gate_ticket(void *self, struct sk_gate *gate)
{
    (void)self;
    (void)gate;
    return 0;
}

static void gate_wait(void *self, struct sk_gate *gate, uint64_t ticket, int64_t timeout_ms)
{
    (void)gate;
    (void)ticket;
    if (timeout_ms > 0)
        fake_of(self)->now_us += timeout_ms * 1000;
}

static void gate_notify(void *self, struct sk_gate *gate)
{
    (void)self;
    (void)gate;
}

static const struct sk_sched_ops sched_ops = {wall_ms,   mono_us,     sleep_ms,  random_bytes, gate_new,
                                              gate_free, gate_ticket, gate_wait, gate_notify};

static void in_progress(void *self, struct sk_delivery *delivery)
{
    ck_assert_ptr_nonnull(delivery);
    fake_of(self)->in_progress++;
}

static int publish(void *self, const struct sk_message *message, struct sk_error *err)
{
    struct fake *f = self;

    (void)err;
    f->published++;
    sk_copy_cut(f->last_subject, sizeof(f->last_subject), message->subject);
    sk_copy_cut(f->last_body, sizeof(f->last_body), message->body);
    return 0;
}

static const struct sk_bus_ops bus_ops = {.in_progress = in_progress, .publish = publish};

static void bell(void *arg)
{
    fake_of(arg)->bells++;
}

void fake_start(struct fake *f, void (*change)(struct lc_settings *settings))
{
    struct lc_seams seams = {.sched = &f->sched, .bus = &f->bus};
    struct lc_hooks hooks = {.wake_dispatcher = bell, .arg = f};

    memset(f, 0, sizeof(*f));
    f->sched = (struct sk_sched){&sched_ops, f};
    f->bus = (struct sk_bus){&bus_ops, f};
    f->now_us = 1000000;
    lc_settings_defaults(&f->settings);
    memcpy(f->settings.replica_id, "me", 3);
    if (change != NULL)
        change(&f->settings);
    f->replica = lc_replica_new(&f->settings, &seams, &hooks);
    ck_assert_ptr_nonnull(f->replica);
    lc_dispatch_tick(f->replica);
}

void fake_stop(struct fake *f)
{
    lc_replica_stop(f->replica);
    lc_replica_free(f->replica);
}

void fake_advance(struct fake *f, int64_t ms)
{
    f->now_us += ms * 1000;
    lc_dispatch_tick(f->replica);
}

static void release(struct sk_delivery *delivery)
{
    fake_of(delivery->token)->dropped++;
    for (int i = 0; i < delivery->header_count; i++) {
        free(delivery->headers[i].name);
        free(delivery->headers[i].value);
    }
    free(delivery->body);
    free(delivery);
}

void fake_send(struct fake *f, const char *op, const char *sandbox_id, const char *id, const char *extra)
{
    struct sk_delivery *d = calloc(1, sizeof(*d));
    char body[8192];

    snprintf(d->subject, sizeof(d->subject), "sandbox.cmd.lifecycle.%s.%s", op, sandbox_id);
    snprintf(body, sizeof(body), "{\"id\":\"%s\"%s}", id, extra);
    d->body = strdup(body);
    d->body_len = strlen(body);
    d->headers[0] = (struct sk_header){strdup("Sandbox-Reply-To"), strdup("inbox.1")};
    d->header_count = 1;
    d->stream_sequence = ++f->next_sequence;
    d->token = f;
    d->release = release;
    lc_dispatch_delivery(f->replica, d);
}

struct lc_job *fake_take(struct fake *f)
{
    struct sk_list *item = sk_list_pop_front(&f->replica->jobs);

    return item != NULL ? SK_LIST_ENTRY(struct lc_job, item, link) : NULL;
}

void fake_end(struct fake *f, struct lc_job *job, enum lc_outcome outcome, enum sk_code code, int64_t wake_ms)
{
    job->outcome = outcome;
    job->wake_ms = wake_ms;
    if (code != SK_OK)
        sk_fail(&job->err, code, "a test says so");
    if (outcome == LC_OUTCOME_DONE || outcome == LC_OUTCOME_FAILED) {
        job->answer = lc_answer_new();
        job->answer->ok = outcome == LC_OUTCOME_DONE;
        job->answer->err = job->err;
    }
    lc_dispatch_done(f->replica, job);
    lc_dispatch_inbox(f->replica);
}

struct lc_held *fake_result(struct fake *f)
{
    struct sk_list *item = sk_list_pop_front(&f->replica->finishes);

    return item != NULL ? SK_LIST_ENTRY(struct lc_held, item, finish) : NULL;
}

void fake_finished(struct fake *f, struct lc_held *held)
{
    struct sk_list one;

    release(held->delivery);
    f->dropped--;
    held->delivery = NULL;
    sk_list_init(&one);
    sk_list_push_back(&one, &held->finish);
    lc_dispatch_finished(f->replica, &one);
    lc_dispatch_inbox(f->replica);
}
