/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that no consumer filters (messaging contract §2): a core queue subscription on all commands rings a bell,
 * and a sweep reads the stream's subject list (page by page), fetches each message of an unknown subject and hands it
 * over. Answering it deletes it from the stream by its sequence. */
#include "common/bus/internal.h"

#include "common/log/log.h"
#include "common/metrics/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTLE_MS       50 /* the core copy may be seen before the stream has stored the message */
#define PER_SUBJECT_MAX 256
#define RING_FLOOD_MS   200 /* a flood of strays costs five sweeps a second, no more */

static bool is_stray(const struct sk_strays *strays, const char *subject)
{
    for (int i = 0; i < strays->filter_count; i++) {
        if (sk_subject_matches(strays->filters[i], subject))
            return false;
    }
    return true;
}

static void on_command(void *arg, const char *subject, const char *reply, const char *body, size_t len)
{
    struct sk_bus_nats *bus = arg;
    struct sk_strays *strays = &bus->strays;
    bool known = false;

    (void)reply;
    (void)body;
    (void)len;
    if (!is_stray(strays, subject))
        return;
    pthread_mutex_lock(&bus->mu);
    for (int i = 0; i < strays->rung_count && !known; i++)
        known = strcmp(strays->rung[i], subject) == 0;
    if (!known && (strays->rung_count == SK_STRAYS_RUNG || strlen(subject) >= sizeof(strays->rung[0])))
        strays->look = true;
    else if (!known)
        snprintf(strays->rung[strays->rung_count++], sizeof(strays->rung[0]), "%s", subject);
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->mu);
}

/* False when it is being handled already, or when there is no room to remember it. */
static bool take(struct sk_bus_nats *bus, uint64_t sequence)
{
    int room = -1;

    pthread_mutex_lock(&bus->mu);
    for (int i = 0; i < SK_STRAYS_IN_HAND; i++) {
        if (bus->strays.in_hand[i] == sequence) {
            pthread_mutex_unlock(&bus->mu);
            return false;
        }
        if (bus->strays.in_hand[i] == 0)
            room = i;
    }
    if (room >= 0)
        bus->strays.in_hand[room] = sequence;
    else
        bus->strays.crowded = true;
    pthread_mutex_unlock(&bus->mu);
    return room >= 0;
}

void sk_strays_answered(struct sk_bus_nats *bus, uint64_t sequence)
{
    pthread_mutex_lock(&bus->mu);
    for (int i = 0; i < SK_STRAYS_IN_HAND; i++) {
        if (bus->strays.in_hand[i] == sequence)
            bus->strays.in_hand[i] = 0;
    }
    if (bus->strays.crowded) {
        bus->strays.crowded = false;
        bus->strays.look = true;
        pthread_cond_broadcast(&bus->changed);
    }
    pthread_mutex_unlock(&bus->mu);
}

/* Hands over the first message of the subject at or after *from. False when there is none (or on an error). */
static bool hand_over_next(struct sk_bus_nats *bus, const char *subject, uint64_t *from)
{
    struct sk_error err;
    int api_error;
    json_t *answer = sk_js_api(bus, json_pack("{s:I, s:s}", "seq", (json_int_t)*from, "next_by_subj", subject),
                               SK_BUS_API_TIMEOUT_MS, &api_error, &err, "STREAM.MSG.GET.%s", SK_STREAM_COMMANDS);
    json_t *message = json_object_get(answer, "message"), *data = json_object_get(message, "data");
    json_t *headers = json_object_get(message, "hdrs");
    uint64_t sequence = (uint64_t)json_integer_value(json_object_get(message, "seq"));
    char *block = NULL, *body = NULL;
    size_t block_len = 0, body_len = 0;
    bool found = sequence != 0;

    if (found) {
        *from = sequence + 1;
        if (json_is_string(headers))
            block = sk_base64_decode(json_string_value(headers), json_string_length(headers), &block_len);
        if (json_is_string(data))
            body = sk_base64_decode(json_string_value(data), json_string_length(data), &body_len);
        if (body == NULL)
            body = calloc(1, 1);
        if (body != NULL && take(bus, sequence)) {
            const char *exact = json_string_value(json_object_get(message, "subject"));
            struct sk_delivery *delivery =
                sk_delivery_stray(bus, sequence, exact != NULL ? exact : subject, block, block_len, body, body_len);
            body = NULL;
            if (delivery != NULL) {
                sk_metric_add(&sk_bus_metric_strays, 0, 0, 1);
                bus->strays.on_delivery(bus->strays.arg, delivery);
            } else {
                sk_strays_answered(bus, sequence);
            }
        }
    }
    free(block);
    free(body);
    json_decref(answer);
    return found;
}

static bool stopping(struct sk_bus_nats *bus)
{
    bool stop;

    pthread_mutex_lock(&bus->mu);
    stop = bus->strays.stopping;
    pthread_mutex_unlock(&bus->mu);
    return stop;
}

static void look_at(struct sk_bus_nats *bus, const char *subject)
{
    uint64_t from = 1;
    int count = 0;

    while (count < PER_SUBJECT_MAX && !stopping(bus) && hand_over_next(bus, subject, &from))
        count++;
    if (count == PER_SUBJECT_MAX) {
        pthread_mutex_lock(&bus->mu);
        bus->strays.crowded = true; /* the rest when these are answered */
        pthread_mutex_unlock(&bus->mu);
    }
}

static void sweep(struct sk_bus_nats *bus)
{
    int64_t offset = 0, total = 1;
    char filter[SK_SUBJECT_SIZE];

    snprintf(filter, sizeof(filter), SK_SUBJECT_COMMANDS_FMT, bus->prefix);
    while (offset < total && !stopping(bus)) {
        struct sk_error err;
        int api_error;
        json_t *answer =
            sk_js_api(bus, json_pack("{s:s, s:I}", "subjects_filter", filter, "offset", (json_int_t)offset),
                      SK_BUS_API_TIMEOUT_MS, &api_error, &err, "STREAM.INFO.%s", SK_STREAM_COMMANDS);
        json_t *subjects = json_object_get(json_object_get(answer, "state"), "subjects"), *count;
        const char *subject;
        size_t page = json_object_size(subjects);

        if (answer == NULL) {
            SK_LOG_DEBUG("stray sweep failed", SK_FE(&err));
            return;
        }
        json_object_foreach (subjects, subject, count) {
            if (is_stray(&bus->strays, subject))
                look_at(bus, subject);
        }
        total = json_integer_value(json_object_get(answer, "total"));
        offset += (int64_t)page;
        json_decref(answer);
        if (page == 0)
            return;
    }
}

static void *strays_main(void *arg)
{
    struct sk_bus_nats *bus = arg;
    struct sk_strays *strays = &bus->strays;
    int64_t due_us = sk_mono_us(bus->sched);
    unsigned connects = 0;
    char(*rung)[SK_SUBJECT_SIZE] = calloc(SK_STRAYS_RUNG, sizeof(*rung));

    sk_bus_thread_note();
    pthread_mutex_lock(&bus->mu);
    while (!strays->stopping) {
        int64_t now_us = sk_mono_us(bus->sched);
        bool all = strays->look || now_us >= due_us || connects != bus->connect_count || rung == NULL;
        int count = rung != NULL ? strays->rung_count : 0;
        if (!bus->linked || !bus->verified) {
            sk_bus_wait_changed(bus, SK_BUS_IDLE_WAIT_MS);
            continue;
        }
        if (!all && count == 0) {
            int64_t ms = (due_us - now_us) / 1000 + 1;
            sk_bus_wait_changed(bus, ms < SK_BUS_IDLE_WAIT_MS ? ms : SK_BUS_IDLE_WAIT_MS);
            continue;
        }
        if (count > 0)
            memcpy(rung, strays->rung, (size_t)count * sizeof(*rung));
        strays->rung_count = 0;
        strays->look = false;
        connects = bus->connect_count;
        pthread_mutex_unlock(&bus->mu);
        if (count > 0)
            sk_sleep_ms(bus->sched, SETTLE_MS);
        /* A ring is answered by looking at that subject only: another replica may be at work on the others. */
        for (int i = 0; i < count && !all; i++)
            look_at(bus, rung[i]);
        if (all) {
            sweep(bus);
            due_us = sk_mono_us(bus->sched) + strays->sweep_ms * 1000;
        }
        sk_sleep_ms(bus->sched, RING_FLOOD_MS);
        pthread_mutex_lock(&bus->mu);
    }
    pthread_mutex_unlock(&bus->mu);
    free(rung);
    return NULL;
}

int sk_bus_nats_strays(struct sk_bus_nats *bus, const char *const *filters, int filter_count, int64_t sweep_ms,
                       void (*on_delivery)(void *arg, struct sk_delivery *delivery), void *arg, struct sk_error *err)
{
    struct sk_strays *strays = &bus->strays;
    struct sk_subscription *item;
    char subject[SK_SUBJECT_SIZE];
    int most = (int)(sizeof(strays->filters) / sizeof(strays->filters[0]));
    bool busy;

    if (filter_count < 1 || filter_count > most)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "strays: 1 to %d filters", most);
    pthread_mutex_lock(&bus->mu);
    busy = strays->started;
    strays->started = true;
    pthread_mutex_unlock(&bus->mu);
    if (busy)
        return sk_fail(err, SK_ERR_INTERNAL, "strays: once a bus");
    strays->filter_count = filter_count;
    for (int i = 0; i < filter_count; i++)
        snprintf(strays->filters[i], sizeof(strays->filters[i]), "%s", filters[i]);
    strays->sweep_ms = sweep_ms > 0 ? sweep_ms : 300000;
    strays->on_delivery = on_delivery;
    strays->arg = arg;
    snprintf(subject, sizeof(subject), SK_SUBJECT_COMMANDS_FMT, bus->prefix);
    item = sk_bus_subscription_new(bus, subject, "sk-lifecycle-strays", sk_bus_on_plain_message, bus);
    if (item != NULL)
        item->on_message = on_command;
    if (sk_bus_subscription_add(bus, item, err) != 0)
        return -1;
    strays->subscription = item;
    if (pthread_create(&strays->thread, NULL, strays_main, bus) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot start a thread");
    strays->running = true;
    sk_bus_verify_again(bus);
    return 0;
}

void sk_strays_stop(struct sk_bus_nats *bus)
{
    struct sk_strays *strays = &bus->strays;

    pthread_mutex_lock(&bus->mu);
    strays->stopping = true;
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->mu);
    if (!strays->running)
        return;
    pthread_join(strays->thread, NULL);
    strays->running = false;
}
