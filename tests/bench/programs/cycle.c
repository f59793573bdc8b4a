/* SPDX-License-Identifier: Apache-2.0
 *
 * Sandboxes that are started and stopped again and again, each by one client that waits for its answer: as fast as the
 * answers come, or at a given rate over all of them. Also the delay of their lifecycle events. */
#include "tests/bench/programs/commands.h"
#include "tests/bench/programs/load.h"

#include "common/base/id.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LAST_ANSWERS_MS 60000

struct box {
    char source_id[64], sandbox_id[64];
    bool started; /* runs, so the next command is stop */
    long number;
    int64_t sent_us;
};

static struct {
    const struct load_options *options;
    struct commands commands;
    struct box *boxes;
    atomic_bool measuring, ended;
    atomic_int waiting; /* for an answer */
    atomic_int errors;
    atomic_llong done, total; /* while measuring; with what came before and after */
    struct samples all, events;
    char error_text[512];
    /* Those that wait for their turn at a fixed rate. */
    pthread_mutex_t lock;
    int *idle, idle_first, idle_count;
    long late; /* turns without an idle sandbox */
} s;

static void send_next(int index)
{
    struct box *box = &s.boxes[index];

    atomic_fetch_add(&s.waiting, 1);
    box->sent_us = load_now_us();
    commands_send(&s.commands, box->started ? "stop" : "ensure", box->source_id, box->sandbox_id, index, ++box->number);
}

static void put_idle(int index)
{
    pthread_mutex_lock(&s.lock);
    s.idle[(s.idle_first + s.idle_count++) % s.options->clients] = index;
    pthread_mutex_unlock(&s.lock);
}

static int take_idle(void)
{
    int index = -1;

    pthread_mutex_lock(&s.lock);
    if (s.idle_count > 0) {
        index = s.idle[s.idle_first];
        s.idle_first = (s.idle_first + 1) % s.options->clients;
        s.idle_count--;
    }
    pthread_mutex_unlock(&s.lock);
    return index;
}

static void on_answer(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *arg)
{
    struct box *box;
    int index;
    bool ok;

    (void)nc;
    (void)sub;
    (void)arg;
    if (!commands_is_result(message, &index, &ok) || index < 0 || index >= s.options->clients) {
        natsMsg_Destroy(message);
        return;
    }
    box = &s.boxes[index];
    atomic_fetch_add(&s.total, 1);
    if (ok) {
        box->started = !box->started;
    } else {
        atomic_fetch_add(&s.errors, 1);
        sk_copy_cut(s.error_text, sizeof(s.error_text), natsMsg_GetData(message));
    }
    if (ok && atomic_load(&s.measuring)) {
        atomic_fetch_add(&s.done, 1);
        samples_add(&s.all, load_now_us() - box->sent_us);
    }
    natsMsg_Destroy(message);
    atomic_fetch_sub(&s.waiting, 1);
    if (atomic_load(&s.ended))
        return;
    if (s.options->rate > 0)
        put_idle(index);
    else
        send_next(index);
}

/* The event's time is taken just before its compare-and-set, in whole milliseconds: what is measured here is the delay
 * plus the write itself plus half a millisecond. */
static void on_event(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *arg)
{
    struct timespec now;
    const char *text;
    int64_t then_ms;

    (void)nc;
    (void)sub;
    (void)arg;
    clock_gettime(CLOCK_REALTIME, &now);
    if (atomic_load(&s.measuring) && natsMsgHeader_Get(message, "ce-time", &text) == NATS_OK &&
        sk_time_parse(text, &then_ms))
        samples_add(&s.events, (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 - then_ms * 1000);
    natsMsg_Destroy(message);
}

/* Until `end_us`, at the fixed rate. */
static void pace(int64_t end_us)
{
    double gap_us = 1e6 / s.options->rate, next_us = (double)load_now_us();

    while (load_now_us() < end_us) {
        int64_t wait_us = (int64_t)next_us - load_now_us();
        int index;

        if (wait_us > 0) {
            usleep((useconds_t)(wait_us > 2000 ? 2000 : wait_us));
            continue;
        }
        next_us += gap_us;
        index = take_idle();
        if (index >= 0)
            send_next(index);
        else
            s.late++;
    }
}

static void last_for(double seconds)
{
    int64_t end_us = load_now_us() + (int64_t)(seconds * 1e6);

    if (s.options->rate > 0)
        pace(end_us);
    else
        usleep((useconds_t)(seconds * 1e6));
}

static void wait_for_answers(void)
{
    for (int ms = 0; ms < LAST_ANSWERS_MS && atomic_load(&s.waiting) > 0; ms += 2)
        usleep(2000);
    if (atomic_load(&s.waiting) > 0) {
        fprintf(stderr, "cycle: %d commands were never answered\n", atomic_load(&s.waiting));
        exit(1);
    }
}

int load_cycle(const struct load_options *options)
{
    natsSubscription *events = NULL;
    int64_t begun_us, elapsed_us;
    json_t *out;

    s.options = options;
    s.boxes = calloc((size_t)options->clients, sizeof(*s.boxes));
    s.idle = calloc((size_t)options->clients, sizeof(*s.idle));
    pthread_mutex_init(&s.lock, NULL);
    samples_init(&s.all);
    samples_init(&s.events);
    for (int i = 0; i < options->clients; i++)
        load_sandbox(options->tag, i, s.boxes[i].source_id, s.boxes[i].sandbox_id);
    commands_open(&s.commands, options->nats, on_answer, NULL);
    if (options->events) {
        commands_check(natsConnection_Subscribe(&events, s.commands.nc, PREFIX ".evt.*.lifecycle.*", on_event, NULL),
                       "subscribe");
        commands_check(natsSubscription_SetPendingLimits(events, -1, -1), "limits");
    }
    /* Whatever they are from an earlier run: stopped ones that a stop finds are fine, too. */
    for (int i = 0; i < options->clients; i++)
        send_next(i);
    last_for(options->warm_up);
    begun_us = load_now_us();
    atomic_store(&s.measuring, true);
    last_for(options->seconds);
    atomic_store(&s.measuring, false);
    elapsed_us = load_now_us() - begun_us;
    atomic_store(&s.ended, true);
    wait_for_answers();
    out = json_pack("{s:i,s:I,s:I,s:f,s:f,s:i,s:s,s:I,s:o,s:o}", "clients", options->clients, "operations",
                    (json_int_t)atomic_load(&s.done), "total", (json_int_t)atomic_load(&s.total), "seconds",
                    (double)elapsed_us / 1e6, "perSecond", (double)atomic_load(&s.done) * 1e6 / (double)elapsed_us,
                    "errors", atomic_load(&s.errors), "lastError", s.error_text, "late", (json_int_t)s.late, "answer",
                    samples_json(&s.all), "eventDelay", samples_json(&s.events));
    json_dumpf(out, stdout, JSON_COMPACT);
    printf("\n");
    if (options->samples != NULL && samples_write(&s.all, options->samples) != 0)
        return 1;
    natsSubscription_Destroy(events);
    commands_close(&s.commands);
    return atomic_load(&s.errors) == 0 ? 0 : 1;
}
