/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated message server: a work queue of commands with AckWait, an event stream with a duplicate window, core
 * messages that may be lost. The seam of an incarnation loses publishes, PubAcks, acks and confirmations. */
#include "proto/subjects.h"
#include "tests/sim/monitor.h"
#include "tests/sim/servers.h"
#include "tests/sim/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX_EVENTS "sandbox.evt."
#define PREFIX_DEAD   "sandbox.dead."
#define PREFIX_INBOX  "client."
#define SUBJECT_WAKE  "sandbox.rpc.lifecycle.wake"

struct sim_bus *sim_bus_new(struct sim_world *w)
{
    struct sim_bus *bus = calloc(1, sizeof(*bus));

    if (bus == NULL)
        abort();
    bus->w = w;
    bus->duplicate_window_us =
        w->scenario.fault[SIM_FAULT_BUS_SHORT_WINDOW] > 0 ? SIM_SECOND / 2 : 120 * (int64_t)SIM_SECOND;
    return bus;
}

static void free_headers(struct sk_header *headers, int count)
{
    for (int i = 0; i < count; i++) {
        free(headers[i].name);
        free(headers[i].value);
    }
}

void sim_bus_free(struct sim_bus *bus)
{
    for (size_t i = 0; i < bus->command_count; i++) {
        free_headers(bus->commands[i]->headers, bus->commands[i]->header_count);
        free(bus->commands[i]->body);
        free(bus->commands[i]);
    }
    free(bus->commands);
    free(bus->events);
    free(bus->seen);
    free(bus);
}

static void *must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "sim: out of memory\n");
        abort();
    }
    return p;
}

static bool connected(const struct sim_inc *inc)
{
    return !sim_down(inc->w, SIM_BUS) && sim_now_us(inc->w->sched) >= inc->cut_until_us;
}

struct sim_message *sim_bus_find(struct sim_world *w, uint64_t sequence)
{
    for (size_t i = w->bus->command_count; i-- > 0;) {
        if (w->bus->commands[i]->sequence == sequence)
            return w->bus->commands[i];
    }
    return NULL;
}

bool sim_bus_idle(struct sim_world *w)
{
    for (size_t i = 0; i < w->bus->command_count; i++) {
        if (!w->bus->commands[i]->gone)
            return false;
    }
    return true;
}

/* ---- deliveries ---------------------------------------------------------------------------------------------------
 */

static void release_delivery(struct sk_delivery *delivery)
{
    free_headers(delivery->headers, delivery->header_count);
    free(delivery->body);
    free(delivery);
}

static struct sk_delivery *make_delivery(struct sim_message *m, struct sim_inc *inc)
{
    struct sk_delivery *d = must(calloc(1, sizeof(*d)));

    sk_copy_cut(d->subject, sizeof(d->subject), m->subject);
    d->body_len = m->body_len;
    if (m->body_len <= SK_BUS_BODY_MAX) {
        d->body = must(malloc(m->body_len + 1));
        memcpy(d->body, m->body, m->body_len);
        d->body[m->body_len] = '\0';
    }
    d->raw_body = m->body;
    for (int i = 0; i < m->header_count; i++) {
        d->headers[i].name = must(strdup(m->headers[i].name));
        d->headers[i].value = must(strdup(m->headers[i].value));
    }
    d->header_count = m->header_count;
    d->stream_sequence = m->sequence;
    d->delivered = (uint64_t)m->deliveries;
    d->received_us = sk_mono_us(&inc->clock);
    d->token = m;
    d->release = release_delivery;
    return d;
}

struct ack_wait {
    struct sim_world *w;
    struct sim_message *m;
    uint64_t timer;
};

static void ack_wait_over(void *arg)
{
    struct ack_wait *wait = arg;
    struct sim_message *m = wait->m;

    if (!m->gone && m->timer == wait->timer) {
        sim_monitor_ack_wait(wait->w, m);
        m->timer = 0;
        m->due_us = 0;
        sim_pump_later(wait->w);
    }
    free(wait);
}

static void start_ack_wait(struct sim_world *w, struct sim_message *m)
{
    struct ack_wait *wait = must(calloc(1, sizeof(*wait)));

    m->timer = ++w->bus->timers;
    *wait = (struct ack_wait){.w = w, .m = m, .timer = m->timer};
    sim_after_own(w->sched, w->scenario.ack_wait_ms * SIM_MS, ack_wait_over, wait);
}

struct arrival {
    struct sim_inc *inc;
    struct sim_message *m;
};

static void arrives(void *arg)
{
    struct arrival *a = arg;
    struct sim_inc *inc = a->inc;
    struct sim_delivery_node *node;

    inc->arriving--;
    if (!inc->group.dead && !inc->stopping && inc->replica != NULL && connected(inc)) {
        node = must(calloc(1, sizeof(*node)));
        node->delivery = make_delivery(a->m, inc);
        if (inc->last != NULL)
            inc->last->next = node;
        else
            inc->first = node;
        inc->last = node;
        sim_mark(inc->w, 1000, (int64_t)a->m->sequence, inc->number);
        SIM_TRACE(inc->w, "delivery #%llu (%d. time) reaches %s: %s", (unsigned long long)a->m->sequence,
                  a->m->deliveries, inc->group.name, a->m->subject);
        sk_gate_notify(&inc->clock, inc->inbox);
    } else if (!connected(inc)) {
        a->m->progress_lost = true;
    }
    free(a);
}

static void deliver(struct sim_world *w, struct sim_message *m, struct sim_inc *inc)
{
    struct arrival *a = must(calloc(1, sizeof(*a)));
    int64_t us = sim_between(&w->faults, 50, 600);

    if (m->deliveries > 0)
        sim_saw(w, SIM_SOME_REDELIVERED);
    if (m->holder != NULL && m->holder != inc && sim_inc_alive(m->holder))
        sim_saw(w, SIM_SOME_DUPLICATE_IN_TWO);
    m->deliveries++;
    m->holder = inc;
    m->progress_lost = false;
    start_ack_wait(w, m);
    if (sim_strike(w, SIM_FAULT_BUS_DELAY))
        us += sim_between(&w->faults, 10 * SIM_MS, w->scenario.ack_wait_ms * SIM_MS / 3);
    inc->arriving++;
    *a = (struct arrival){.inc = inc, .m = m};
    sim_after_own(w->sched, us, arrives, a);
    if (sim_strike(w, SIM_FAULT_BUS_DUPLICATE)) {
        /* The server forgot that the message is out. */
        m->progress_lost = true;
        m->timer = 0;
        m->due_us = sim_now_us(w->sched) + sim_between(&w->faults, 1000, w->scenario.ack_wait_ms * SIM_MS);
        sim_pump_at(w, m->due_us);
    }
}

static struct sim_inc *choose_receiver(struct sim_world *w)
{
    struct sim_inc *able[SIM_REPLICAS_MAX];
    int count = 0;

    for (int i = 0; i < SIM_REPLICAS_MAX; i++) {
        struct sim_inc *inc = w->slots[i];

        if (inc != NULL && sim_inc_alive(inc) && inc->replica != NULL && connected(inc) &&
            lc_dispatch_want(inc->replica) - inc->arriving > 0)
            able[count++] = inc;
    }
    return count == 0 ? NULL : able[sim_below(&w->faults, (uint64_t)count)];
}

static bool deliverable(const struct sim_world *w, const struct sim_message *m)
{
    return !m->gone && m->timer == 0 && m->due_us <= sim_now_us(w->sched);
}

static void pump(void *arg)
{
    struct sim_world *w = arg;
    struct sim_bus *bus = w->bus;

    bus->pump_queued = false;
    if (sim_down(w, SIM_BUS))
        return;
    for (size_t i = 0; i < bus->command_count; i++) {
        size_t pick = i;
        struct sim_inc *inc;

        if (!deliverable(w, bus->commands[i]))
            continue;
        if (sim_strike(w, SIM_FAULT_BUS_REORDER)) {
            pick = i + sim_below(&w->faults, bus->command_count - i);
            if (!deliverable(w, bus->commands[pick]))
                pick = i;
        }
        inc = choose_receiver(w);
        if (inc == NULL)
            return;
        deliver(w, bus->commands[pick], inc);
        if (pick != i)
            i--;
    }
}

void sim_pump_at(struct sim_world *w, int64_t at_us)
{
    sim_at(w->sched, at_us, pump, w);
}

void sim_pump_later(struct sim_world *w)
{
    if (w->bus->pump_queued)
        return;
    w->bus->pump_queued = true;
    sim_after(w->sched, 50, pump, w);
}

void sim_bus_pump(struct sim_world *w)
{
    for (size_t i = 0; i < w->bus->command_count; i++) {
        if (deliverable(w, w->bus->commands[i])) {
            sim_pump_later(w);
            return;
        }
    }
}

void sim_bus_forget_inc(struct sim_world *w, struct sim_inc *inc)
{
    for (size_t i = 0; i < w->bus->command_count; i++) {
        if (w->bus->commands[i]->holder == inc)
            w->bus->commands[i]->holder = NULL;
    }
}

/* ---- the streams
 * ------------------------------------------------------------------------------------------------------ */

static bool seen_before(struct sim_bus *bus, const char *id)
{
    int64_t now = sim_now_us(bus->w->sched);

    for (size_t i = bus->seen_count; i-- > 0 && now - bus->seen[i].at_us < bus->duplicate_window_us;) {
        if (strcmp(bus->seen[i].id, id) == 0)
            return true;
    }
    bus->seen = sim_grow(bus->seen, bus->seen_count, &bus->seen_size, sizeof(*bus->seen));
    sk_copy_cut(bus->seen[bus->seen_count].id, sizeof(bus->seen[0].id), id);
    bus->seen[bus->seen_count++].at_us = now;
    return false;
}

static const char *header(const struct sk_message *message, const char *name)
{
    for (int i = 0; i < message->header_count; i++) {
        if (strcasecmp(message->headers[i].name, name) == 0)
            return message->headers[i].value;
    }
    return NULL;
}

bool sim_bus_command(struct sim_world *w, int tag, const char *subject, const char *message_id, const char *body,
                     size_t body_len, const char *reply_to)
{
    struct sim_bus *bus = w->bus;
    struct sim_message *m;

    if (sim_down(w, SIM_BUS) || sim_strike(w, SIM_FAULT_BUS_PUBLISH_LOST))
        return false;
    if (message_id == NULL || !seen_before(bus, message_id)) {
        m = must(calloc(1, sizeof(*m)));
        m->sequence = ++bus->sequence;
        m->tag = tag;
        sk_copy_cut(m->subject, sizeof(m->subject), subject);
        m->body = must(malloc(body_len + 1));
        memcpy(m->body, body, body_len);
        m->body[body_len] = '\0';
        m->body_len = body_len;
        m->at_us = sim_now_us(w->sched);
        if (reply_to != NULL) {
            m->headers[m->header_count].name = must(strdup(SK_HEADER_REPLY_TO));
            m->headers[m->header_count++].value = must(strdup(reply_to));
        }
        bus->commands = sim_grow(bus->commands, bus->command_count, &bus->command_size, sizeof(*bus->commands));
        bus->commands[bus->command_count++] = m;
        sim_pump_later(w);
    }
    return !sim_strike(w, SIM_FAULT_BUS_PUBACK_LOST);
}

void sim_bus_wipe(struct sim_world *w)
{
    SIM_TRACE(w, "the message server lost its streams");
    for (size_t i = 0; i < w->bus->command_count; i++) {
        if (w->bus->commands[i]->gone)
            continue;
        w->bus->commands[i]->gone = true;
        sim_workload_wiped(w, w->bus->commands[i]);
    }
    for (size_t i = 0; i < w->bus->event_count; i++)
        w->bus->events[i].dropped_by_wipe = true;
    w->bus->seen_count = 0;
}

struct hint {
    struct sim_inc *inc;
    char sandbox_id[SK_SANDBOX_ID_SIZE]; /* "" = all */
};

static void hint_arrives(void *arg)
{
    struct hint *hint = arg;
    struct sim_inc *inc = hint->inc;

    if (!inc->group.dead && connected(inc) && !sim_strike(inc->w, SIM_FAULT_BUS_HINT_LOST)) {
        if (hint->sandbox_id[0] == '\0' || inc->hint_count == (int)(sizeof(inc->hints) / sizeof(inc->hints[0])))
            inc->hint_all = true;
        else
            memcpy(inc->hints[inc->hint_count++], hint->sandbox_id, sizeof(hint->sandbox_id));
        sk_gate_notify(&inc->clock, inc->inbox);
    }
    free(hint);
}

static void send_hints(struct sim_world *w, const char *sandbox_id)
{
    for (int i = 0; i < SIM_REPLICAS_MAX; i++) {
        struct hint *hint;

        if (w->slots[i] == NULL || !sim_inc_alive(w->slots[i]) || w->slots[i]->replica == NULL ||
            (sandbox_id[0] != '\0' && !lc_dispatch_hint_wanted(w->slots[i]->replica)))
            continue;
        hint = must(calloc(1, sizeof(*hint)));
        hint->inc = w->slots[i];
        sk_copy_cut(hint->sandbox_id, sizeof(hint->sandbox_id), sandbox_id);
        sim_after_own(w->sched, sim_between(&w->faults, 50, 800), hint_arrives, hint);
    }
}

static void store_event(struct sim_inc *inc, const struct sk_message *message)
{
    struct sim_world *w = inc->w;
    struct sim_bus *bus = w->bus;
    const char *type = header(message, SK_HEADER_CE_TYPE), *id = header(message, SK_HEADER_CE_ID);
    const char *subject_type = strchr(message->subject + strlen(PREFIX_EVENTS), '.');
    struct sk_check_event event;
    json_error_t error;
    json_t *data;

    if (type == NULL || id == NULL || subject_type == NULL || message->message_id == NULL ||
        strcmp(message->message_id, id) != 0) {
        sim_fail(w, "event-shape", "%s: event without ce-type, ce-id or an equal Nats-Msg-Id", message->subject);
        return;
    }
    if (seen_before(bus, id))
        return;
    data = json_loadb(message->body, message->body_len, 0, &error);
    if (data == NULL) {
        sim_fail(w, "event-shape", "%s: the body of event %s is not JSON: %s", message->subject, id, error.text);
        return;
    }
    if (strncmp(subject_type + 1, "lifecycle.", 10) != 0) {
        sim_workload_event(w, subject_type + 1, data);
        json_decref(data);
        return;
    }
    if (!sk_check_event_parse(&event, id, type, header(message, SK_HEADER_CE_TIME), data)) {
        sim_fail(w, "event-shape", "%s: event %s does not follow the contract", message->subject, id);
    } else {
        const struct sim_doc *doc = sim_store_doc(w, event.sandbox_id);

        for (size_t i = 0; i < bus->event_count; i++) {
            if (strcmp(bus->events[i].event.id, event.id) == 0)
                sim_saw(w, SIM_SOME_EVENT_REPEATED);
        }
        if (doc != NULL && doc->i.has_operation && doc->i.operation.owner[0] != '\0' &&
            strcmp(doc->i.operation.owner, inc->id) != 0)
            sim_saw(w, SIM_SOME_EVENT_LATE);
        bus->events = sim_grow(bus->events, bus->event_count, &bus->event_size, sizeof(*bus->events));
        bus->events[bus->event_count++] = (struct sim_event){.event = event};
        send_hints(w, event.sandbox_id);
    }
    json_decref(data);
}

/* One message reaches the server. */
static void server_takes(struct sim_inc *inc, const struct sk_message *message)
{
    if (strncmp(message->subject, PREFIX_EVENTS, strlen(PREFIX_EVENTS)) == 0)
        store_event(inc, message);
    else if (strncmp(message->subject, PREFIX_DEAD, strlen(PREFIX_DEAD)) == 0)
        inc->w->bus->dead_letters++;
    else
        sim_fail(inc->w, "event-shape", "no stream takes %s", message->subject);
}

/* ---- the seam
 * ------------------------------------------------------------------------------------------------------------ */

static int seam_publish_acked(void *self, const struct sk_message *messages, int count, bool *acked, int64_t timeout_ms,
                              struct sk_error *err)
{
    struct sim_inc *inc = self;
    struct sim_world *w = inc->w;
    struct sim_io io = {
        .inc = inc, .kind = SIM_BUS_PUBLISH_ACKED, .about = count > 0 ? messages[0].subject : NULL, .write = true};
    bool *stored = must(calloc((size_t)count + 1, sizeof(*stored)));
    int good = 0, status = -1;

    for (int i = 0; i < count; i++)
        acked[i] = false;
    if (sim_send(&io, err) == SIM_REFUSED)
        goto out;
    for (int i = 0; i < count && io.arrival == SIM_ARRIVED; i++) {
        if (sim_strike(w, SIM_FAULT_BUS_PUBLISH_LOST)) {
            sim_saw(w, SIM_SOME_PUBACK_LOST_DROPPED);
            continue;
        }
        server_takes(inc, &messages[i]);
        stored[i] = !sim_strike(w, SIM_FAULT_BUS_PUBACK_LOST);
        if (!stored[i])
            sim_saw(w, SIM_SOME_PUBACK_LOST_STORED);
    }
    if (sim_reply(&io, err) != 0)
        goto out;
    for (int i = 0; i < count; i++) {
        acked[i] = stored[i];
        good += stored[i];
    }
    if (good < count) {
        sim_sleep_us(w->sched, timeout_ms * SIM_MS);
        sk_fail_unknown(err, SK_ERR_INTERNAL, "publish: %d of %d not acknowledged", count - good, count);
    } else {
        status = 0;
    }
out:
    sim_done(&io, status == 0 ? good : -1 - good, "%d of %d acknowledged", good, count);
    free(stored);
    return status;
}

static int seam_publish(void *self, const struct sk_message *message, struct sk_error *err)
{
    struct sim_inc *inc = self;
    struct sim_world *w = inc->w;
    bool lost;

    /* Never waits: no travel, no crash. What is under way when a connection breaks is lost without a word. */
    w->result->calls++;
    w->result->call_counts[SIM_BUS_PUBLISH]++;
    if (inc->group.dead || !connected(inc))
        return sk_fail(err, SK_ERR_INTERNAL, "publish: not connected");
    sim_mark(w, SIM_BUS_PUBLISH, (int64_t)message->body_len, 0);
    lost = sim_strike(w, SIM_FAULT_BUS_HINT_LOST);
    SIM_TRACE(w, "%-22s %s%s", "bus.publish", message->subject, lost ? " [lost on its way]" : "");
    if (strcmp(message->subject, SUBJECT_WAKE) == 0) {
        if (!lost)
            send_hints(w, "");
    } else if (strncmp(message->subject, PREFIX_INBOX, strlen(PREFIX_INBOX)) == 0) {
        sim_workload_reply(w, message->subject, message->body, message->body_len,
                           header(message, SK_HEADER_PROGRESS) != NULL, lost);
    } else if (strncmp(message->subject, PREFIX_EVENTS, strlen(PREFIX_EVENTS)) != 0 ||
               strstr(message->subject, ".lifecycle.") != NULL || strstr(message->subject, ".command.") != NULL)
        sim_fail(w, "subject", "unexpected core message to %s", message->subject);
    return 0;
}

static int finish(struct sim_inc *inc, struct sk_delivery **deliveries, int count, enum sim_call kind,
                  struct sk_error *err)
{
    struct sim_world *w = inc->w;
    struct sim_io io = {.inc = inc, .kind = kind, .write = true, .about = count > 0 ? deliveries[0]->subject : NULL};
    int lost = 0, status = -1;

    if (sim_send(&io, err) == SIM_REFUSED)
        goto out;
    for (int i = 0; i < count && io.arrival == SIM_ARRIVED; i++) {
        struct sim_message *m = deliveries[i]->token;

        if (sim_strike(w, SIM_FAULT_BUS_ACK_LOST)) {
            m->progress_lost = true;
            lost++;
            continue;
        }
        if (!m->gone) {
            m->gone = true;
            sim_workload_acked(w, m);
        }
        if (sim_strike(w, SIM_FAULT_BUS_CONFIRM_LOST))
            lost++;
    }
    if (sim_reply(&io, err) != 0)
        goto out;
    if (lost > 0)
        sk_fail_unknown(err, SK_ERR_INTERNAL, "%d of %d acknowledgements not confirmed", lost, count);
    else
        status = 0;
out:
    if (status != 0) {
        /* The holder did what it could: what comes again is not its fault. */
        for (int i = 0; i < count; i++)
            ((struct sim_message *)deliveries[i]->token)->progress_lost = true;
    }
    sim_done(&io, status == 0 ? count : -1, "%d messages, first #%llu%s", count,
             count > 0 ? (unsigned long long)deliveries[0]->stream_sequence : 0, status == 0 ? "" : ": not confirmed");
    for (int i = 0; i < count; i++)
        release_delivery(deliveries[i]);
    return status;
}

static int seam_ack_many(void *self, struct sk_delivery **deliveries, int count, struct sk_error *err)
{
    return finish(self, deliveries, count, SIM_BUS_ACK, err);
}

static int seam_ack(void *self, struct sk_delivery *delivery, struct sk_error *err)
{
    return finish(self, &delivery, 1, SIM_BUS_ACK, err);
}

static int seam_term(void *self, struct sk_delivery *delivery, struct sk_error *err)
{
    return finish(self, &delivery, 1, SIM_BUS_TERM, err);
}

static int seam_nak(void *self, struct sk_delivery *delivery, int64_t delay_ms, struct sk_error *err)
{
    struct sim_inc *inc = self;
    struct sim_world *w = inc->w;
    struct sim_message *m = delivery->token;
    bool reached = !inc->group.dead && connected(inc);

    (void)err;
    w->result->calls++;
    w->result->call_counts[SIM_BUS_NAK]++;
    sim_mark(w, SIM_BUS_NAK, (int64_t)m->sequence, reached);
    SIM_TRACE(w, "%-22s #%llu in %lld ms%s", "bus.nak", (unsigned long long)m->sequence, (long long)delay_ms,
              reached ? "" : " [lost]");
    if (reached && !m->gone) {
        m->timer = 0;
        m->due_us = sim_now_us(w->sched) + delay_ms * SIM_MS;
        sim_pump_at(w, m->due_us + 1);
    } else {
        m->progress_lost = true;
    }
    release_delivery(delivery);
    return 0;
}

static void seam_in_progress(void *self, struct sk_delivery *delivery)
{
    struct sim_inc *inc = self;
    struct sim_message *m = delivery->token;

    if (inc->group.dead || m->gone)
        return;
    if (!connected(inc)) {
        m->progress_lost = true;
        return;
    }
    sim_mark(inc->w, 1001, (int64_t)m->sequence, 0);
    if (m->timer != 0)
        start_ack_wait(inc->w, m);
}

static bool seam_connected(void *self)
{
    const struct sim_inc *inc = self;

    return !inc->group.dead && connected(inc);
}

static const struct sk_bus_ops bus_ops = {
    .publish_acked = seam_publish_acked,
    .publish = seam_publish,
    .ack = seam_ack,
    .ack_many = seam_ack_many,
    .term = seam_term,
    .nak = seam_nak,
    .in_progress = seam_in_progress,
    .connected = seam_connected,
};

void sim_bus_seam(struct sim_inc *inc)
{
    inc->bus = (struct sk_bus){.ops = &bus_ops, .self = inc};
}
