/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishing, plain and to a stream: many messages in flight, each with its PubAck. What was not acknowledged because
 * the connection broke or the stream was missing is published again under its message id (the server drops the repeat)
 * until the caller's time is over; without an id it is left to the caller. */
#include "common/bus/internal.h"

#include "common/base/id.h"
#include "common/metrics/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- publishing ---------------------------------------------------------------------------------------------------
 */

/* Header values are made safe here: the library writes them as they are, and a line break would forge a header. */
static int set_header(natsMsg *message, const char *name, const char *value, bool own)
{
    char safe_name[SK_BUS_HEADER_VALUE_MAX + 32], safe[SK_BUS_HEADER_VALUE_MAX + 1];
    size_t len;

    sk_copy_cut(safe, sizeof(safe), value != NULL ? value : "");
    for (char *c = safe; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    }
    /* The library's reader takes the next line for the value of a header that has none. */
    if (safe[strspn(safe, " ")] == '\0')
        return 0;
    len = strlen(name);
    if (len == 0 || len > SK_BUS_HEADER_VALUE_MAX)
        return 0;
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)name[i] <= ' ' || (unsigned char)name[i] >= 0x7f || name[i] == ':')
            return 0;
    }
    if (!own && strncasecmp(name, "Nats-", 5) == 0) {
        snprintf(safe_name, sizeof(safe_name), "Sandbox-Original-%s", name);
        name = safe_name;
    }
    return natsMsgHeader_Set(message, name, safe) == NATS_OK ? 0 : -1;
}

/* A later header of the same name takes the place of this one. */
static bool comes_again(const struct sk_message *message, int index)
{
    for (int i = index + 1; i < message->header_count; i++) {
        if (strcasecmp(message->headers[i].name, message->headers[index].name) == 0)
            return true;
    }
    return false;
}

/* Names of the contract; others come from strangers (copied into a dead letter) and have to share. */
static bool is_ours(const char *name)
{
    static const char *const names[] = {
        SK_HEADER_REPLY_TO,   SK_HEADER_PROGRESS, SK_HEADER_REASON,  SK_HEADER_DELIVERIES, SK_HEADER_TRACEPARENT,
        SK_HEADER_TRACESTATE, SK_HEADER_CE_ID,    SK_HEADER_CE_TYPE, SK_HEADER_CE_SOURCE,  SK_HEADER_CE_SUBJECT,
        SK_HEADER_CE_VERSION, SK_HEADER_CE_TIME,  "content-type"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcasecmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

static natsStatus set_headers(natsMsg *message, const struct sk_message *from)
{
    size_t strangers = 0;

    for (int i = 0; i < from->header_count; i++) {
        const struct sk_header *header = &from->headers[i];
        if (comes_again(from, i))
            continue;
        if (!is_ours(header->name)) {
            size_t bytes = strlen(header->name) + (header->value != NULL ? strlen(header->value) : 0) + 24;
            if (strangers + bytes > SK_BUS_HEADER_BYTES_MAX)
                continue;
            strangers += bytes;
        }
        if (set_header(message, header->name, header->value, false) != 0)
            return NATS_NO_MEMORY;
    }
    if (from->message_id != NULL && set_header(message, SK_HEADER_MESSAGE_ID, from->message_id, true) != 0)
        return NATS_NO_MEMORY;
    return NATS_OK;
}

int sk_bus_publish_raw(struct sk_bus_nats *bus, const char *subject, const char *reply, const char *body, size_t len,
                       const struct sk_message *headers, struct sk_error *err)
{
    natsMsg *message = NULL;
    natsStatus status = NATS_CONNECTION_DISCONNECTED;
    bool with_headers = headers != NULL && (headers->header_count > 0 || headers->message_id != NULL);

    sk_bus_thread_note();
    if (len > INT32_MAX)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "publish: body too large");
    pthread_rwlock_rdlock(&bus->conn_lock);
    if (bus->nc == NULL || !atomic_load(&bus->up)) {
        /* Not handed to the library: it would send it after the reconnect, perhaps to a server that lost its store. */
    } else if (!with_headers) {
        status = reply != NULL ? natsConnection_PublishRequest(bus->nc, subject, reply, body, (int)len)
                               : natsConnection_Publish(bus->nc, subject, body, (int)len);
    } else {
        status = natsMsg_Create(&message, subject, reply, body, (int)len);
        if (status == NATS_OK)
            status = set_headers(message, headers);
        if (status == NATS_OK)
            status = natsConnection_PublishMsg(bus->nc, message);
        sk_bus_discard(message);
    }
    pthread_rwlock_unlock(&bus->conn_lock);
    if (status == NATS_OK)
        return 0;
    if (status == NATS_MAX_PAYLOAD)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "publish: larger than the server takes");
    return sk_fail(err, SK_ERR_INTERNAL, "publish: %s", natsStatus_GetText(status));
}

int sk_bus_op_publish(void *self, const struct sk_message *message, struct sk_error *err)
{
    struct sk_bus_nats *bus = self;
    int rc;

    if (!sk_subject_valid(message->subject))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "publish: not a subject");
    rc = sk_bus_publish_raw(bus, message->subject, NULL, message->body, message->body_len, message, err);
    if (rc != 0)
        sk_metric_add(&sk_bus_metric_dropped, 0, 0, 1);
    return rc;
}

/* ---- to a stream
 * ----------------------------------------------------------------------------------------------------- */

enum item_state { ITEM_TODO = 0, ITEM_ACKED, ITEM_REFUSED, ITEM_UNKNOWN };

struct batch {
    struct sk_bus_nats *bus;
    const struct sk_message *messages;
    int count;
    enum item_state *states;
    int64_t deadline_us;
    struct sk_error *err;
    bool failed; /* err is filled with the first failure */
};

static void fail_first(struct batch *batch, enum sk_code code, bool unknown, const char *text)
{
    if (batch->failed)
        return;
    batch->failed = true;
    if (unknown)
        (void)sk_fail_unknown(batch->err, code, "publish: %s", text);
    else
        (void)sk_fail(batch->err, code, "publish: %s", text);
}

/* {"stream","seq","duplicate"?} or {"error":{"code","err_code","description"}}. */
static enum item_state read_puback(struct batch *batch, natsMsg *message)
{
    json_t *answer = json_loadb(natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message), 0, NULL);
    json_t *error = json_object_get(answer, "error");
    enum item_state state = ITEM_UNKNOWN;

    if (json_is_object(error)) {
        const char *text = json_string_value(json_object_get(error, "description"));
        /* Refused by the stream: full, sealed, too large. Certainly not stored. */
        fail_first(batch, SK_ERR_INTERNAL, false, text != NULL ? text : "refused by the stream");
        state = ITEM_REFUSED;
    } else if (json_is_string(json_object_get(answer, "stream")) && json_is_integer(json_object_get(answer, "seq"))) {
        state = ITEM_ACKED;
    } else {
        fail_first(batch, SK_ERR_INTERNAL, true, "the acknowledgement cannot be read");
    }
    json_decref(answer);
    return state;
}

/* Publishes items [first, first + count) that are still to do and waits for their answers. */
static void publish_window(struct batch *batch, int first, int count)
{
    struct sk_reply replies[SK_BUS_WINDOW];
    struct sk_reply_group group;
    char reply[SK_BUS_INBOX_SIZE + 24];
    struct sk_error err;

    sk_group_init(&group, replies, count);
    for (int i = 0; i < count; i++) {
        const struct sk_message *message = &batch->messages[first + i];
        if (batch->states[first + i] != ITEM_TODO)
            continue;
        if (!sk_subject_valid(message->subject)) {
            fail_first(batch, SK_ERR_INVALID_REQUEST, false, "not a subject");
            batch->states[first + i] = ITEM_REFUSED;
            continue;
        }
        if (!sk_group_open(batch->bus, &group, i, reply, batch->deadline_us))
            break;
        if (sk_bus_publish_raw(batch->bus, message->subject, reply, message->body, message->body_len, message, &err) ==
            0)
            continue;
        sk_group_abandon(batch->bus, &group, i);
        if (err.code == SK_ERR_INVALID_REQUEST) {
            fail_first(batch, err.code, false, err.message);
            batch->states[first + i] = ITEM_REFUSED;
            continue;
        }
        /* Not connected, or the connection broke while writing: a part may have left. */
        if (message->message_id == NULL && atomic_load(&batch->bus->up))
            batch->states[first + i] = ITEM_UNKNOWN;
        break;
    }
    sk_group_wait(batch->bus, &group, batch->deadline_us);
    for (int i = 0; i < count; i++) {
        enum item_state *state = &batch->states[first + i];
        if (*state != ITEM_TODO)
            continue;
        switch (replies[i].state) {
        case SK_REPLY_UNUSED:
            break;
        case SK_REPLY_ARRIVED:
            *state = read_puback(batch, replies[i].message);
            break;
        case SK_REPLY_NOBODY:
            sk_bus_verify_again(batch->bus); /* no stream takes this subject (any more) */
            break;
        case SK_REPLY_LOST:
        case SK_REPLY_WAITING:
            if (batch->messages[first + i].message_id == NULL || replies[i].state == SK_REPLY_WAITING) {
                *state = ITEM_UNKNOWN;
                fail_first(batch, SK_ERR_INTERNAL, true, "no acknowledgement");
            }
            break;
        }
    }
    sk_group_fini(&group);
}

int sk_bus_op_publish_acked(void *self, const struct sk_message *messages, int count, bool *acked, int64_t timeout_ms,
                            struct sk_error *err)
{
    struct batch batch = {.bus = self, .messages = messages, .count = count, .err = err};
    unsigned rounds = 0;
    int good = 0, todo;

    for (int i = 0; i < count; i++)
        acked[i] = false;
    if (count <= 0)
        return 0;
    batch.deadline_us = sk_mono_us(batch.bus->sched) + timeout_ms * 1000;
    batch.states = calloc((size_t)count, sizeof(*batch.states));
    if (batch.states == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    do {
        int64_t left_ms, pause_ms = sk_bus_backoff_ms(rounds);
        if (rounds++ > 0) {
            left_ms = (batch.deadline_us - sk_mono_us(batch.bus->sched)) / 1000;
            if (left_ms <= 0)
                break;
            sk_sleep_ms(batch.bus->sched, pause_ms < left_ms ? pause_ms : left_ms);
        }
        if (!sk_bus_wait_link(batch.bus, false, batch.deadline_us))
            break;
        for (int first = 0; first < count; first += SK_BUS_WINDOW)
            publish_window(&batch, first, count - first < SK_BUS_WINDOW ? count - first : SK_BUS_WINDOW);
        todo = 0;
        for (int i = 0; i < count; i++)
            todo += batch.states[i] == ITEM_TODO;
    } while (todo > 0);

    for (int i = 0; i < count; i++) {
        acked[i] = batch.states[i] == ITEM_ACKED;
        good += acked[i];
        if (batch.states[i] == ITEM_TODO)
            fail_first(&batch, SK_ERR_INTERNAL, true, "not connected, or no stream takes it");
        sk_metric_add(&sk_bus_metric_published, acked[i] ? 0 : batch.states[i] == ITEM_REFUSED ? 1 : 2, 0, 1);
    }
    free(batch.states);
    return good == count ? 0 : -1;
}
