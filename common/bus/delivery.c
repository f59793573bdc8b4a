/* SPDX-License-Identifier: Apache-2.0
 *
 * Deliveries: a message of the command stream as an owned object, and how it ends (ack, term, nak). The one rule that
 * matters here: an ack names a sequence of the stream, and a server that lost its store counts from 1 again. A word
 * about a delivery of an earlier incarnation would hit a stranger's command, so it is never sent. */
#include "common/bus/internal.h"

#include "common/metrics/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the headers of a dead letter may take of the largest message. */
#define HEADER_ROOM (SK_BUS_HEADER_BYTES_MAX + 16 * 1024)

struct sk_token {
    struct sk_bus_nats *bus;
    natsMsg *message; /* NULL: a stray, which is settled by deleting it from the stream */
    char *body;       /* of a stray */
    const char *ack;  /* reply subject, inside message */
    unsigned long long incarnation;
};

void sk_delivery_headers_free(struct sk_delivery *delivery)
{
    for (int i = 0; i < delivery->header_count; i++)
        free(delivery->headers[i].name); /* the value lives in the same block */
    delivery->header_count = 0;
}

static void delivery_free(struct sk_delivery *delivery)
{
    struct sk_token *token = delivery->token;

    sk_delivery_headers_free(delivery);
    sk_bus_discard(token->message);
    free(token->body);
    free(token);
    free(delivery);
}

/* For sk_delivery_drop: the bus may be gone already. */
static void delivery_release(struct sk_delivery *delivery)
{
    delivery_free(delivery);
}

static void set_subject(struct sk_delivery *out, const char *subject)
{
    size_t len = strlen(subject);

    if (len >= sizeof(out->subject)) {
        /* Nothing of ours is that long; what is left must still do as part of a dead letter's subject. */
        len = sizeof(out->subject) - 33;
        while (len > 0 && (((unsigned char)subject[len] & 0xc0) == 0x80 || subject[len - 1] == '.'))
            len--;
    }
    memcpy(out->subject, subject, len);
    out->subject[len] = '\0';
}

/* Copies what the library parsed. False when the block should be looked at raw: 3.4.1 rejects a whole block because of
 * one odd line, takes the line after a header without a value for that value, and lets a line without colon swallow the
 * next name. */
static bool copy_headers(struct sk_delivery *out, natsMsg *message)
{
    const char **keys = NULL, *value;
    int count = 0;
    bool sound = true;
    natsStatus status = natsMsgHeader_Keys(message, &keys, &count);

    if (status == NATS_NOT_FOUND)
        return true;
    if (status != NATS_OK) {
        out->headers_cut = true;
        return false;
    }
    for (int known = 1; known >= 0; known--) {
        for (int i = 0; i < count; i++) {
            const char *colon;
            size_t len = strlen(keys[i]);
            if (sk_header_known(keys[i], len) != (known == 1))
                continue;
            if (natsMsgHeader_Get(message, keys[i], &value) != NATS_OK) {
                out->headers_cut = true; /* no name */
                continue;
            }
            colon = strchr(value, ':');
            if ((colon != NULL && colon != value && colon[1] == ' ') || strpbrk(keys[i], "\r\n") != NULL)
                sound = false;
            (void)sk_delivery_add_header(out, keys[i], len, value, strlen(value));
        }
    }
    free((void *)keys);
    return sound;
}

/* `largest`: bytes that can be published again together with headers. */
static void set_body(struct sk_delivery *out, const char *data, size_t len, size_t largest)
{
    bool whole = len <= SK_BUS_BODY_MAX && len <= largest;

    if (largest > SK_BUS_RAW_MAX)
        largest = SK_BUS_RAW_MAX;
    out->raw_body = data != NULL ? data : "";
    out->body_len = whole || len < largest ? len : largest;
    out->body = whole ? (char *)(uintptr_t)out->raw_body : NULL;
}

static size_t republishable(struct sk_bus_nats *bus)
{
    int64_t most = atomic_load(&bus->max_payload) - HEADER_ROOM;

    return most > 0 ? (size_t)most : 0;
}

void sk_delivery_view(struct sk_delivery *out, natsMsg *message)
{
    memset(out, 0, sizeof(*out));
    set_subject(out, natsMsg_GetSubject(message));
    set_body(out, natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message), SIZE_MAX);
    (void)copy_headers(out, message);
}

/* "$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.…" or, from 2.10 with domains, two more tokens in front of the
 * stream ("$JS.ACK.<domain>.<account>.<stream>…") and at least eleven in all. */
static void parse_ack_subject(struct sk_delivery *out, const char *subject)
{
    const char *tokens[16];
    int count = 0, delivered_at;

    for (const char *at = subject; at != NULL && count < 16; count++) {
        tokens[count] = at;
        at = strchr(at, '.');
        if (at != NULL)
            at++;
    }
    delivered_at = count >= 11 ? 6 : 4;
    if (count < 9)
        return;
    out->delivered = strtoull(tokens[delivered_at], NULL, 10);
    out->stream_sequence = strtoull(tokens[delivered_at + 1], NULL, 10);
}

/* Fetches the stored message for its raw header block. */
static void reread_headers(struct sk_bus_nats *bus, struct sk_delivery *out)
{
    int api_error;
    size_t len = 0;
    struct sk_error err;
    json_t *answer = sk_js_api(bus, json_pack("{s:I}", "seq", (json_int_t)out->stream_sequence), SK_BUS_API_TIMEOUT_MS,
                               &api_error, &err, "STREAM.MSG.GET.%s", SK_STREAM_COMMANDS);
    json_t *headers = json_object_get(json_object_get(answer, "message"), "hdrs");

    if (json_is_string(headers)) {
        char *block = sk_base64_decode(json_string_value(headers), json_string_length(headers), &len);
        if (block != NULL) {
            sk_delivery_headers_free(out);
            out->headers_cut = false;
            sk_headers_parse(out, block, len);
        }
        free(block);
    }
    json_decref(answer);
}

struct sk_delivery *sk_delivery_from_message(struct sk_bus_nats *bus, natsMsg *message)
{
    struct sk_delivery *out = calloc(1, sizeof(*out));
    struct sk_token *token = calloc(1, sizeof(*token));

    if (out == NULL || token == NULL) {
        free(out);
        free(token);
        sk_bus_discard(message);
        return NULL;
    }
    *token = (struct sk_token){.bus = bus,
                               .message = message,
                               .ack = natsMsg_GetReply(message),
                               .incarnation = atomic_load(&bus->incarnation)};
    out->token = token;
    out->release = delivery_release;
    out->received_us = sk_mono_us(bus->sched);
    set_subject(out, natsMsg_GetSubject(message));
    set_body(out, natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message), republishable(bus));
    parse_ack_subject(out, token->ack);
    if (!copy_headers(out, message))
        reread_headers(bus, out);
    return out;
}

struct sk_delivery *sk_delivery_stray(struct sk_bus_nats *bus, uint64_t sequence, const char *subject,
                                      const char *header_block, size_t header_len, char *body, size_t body_len)
{
    struct sk_delivery *out = calloc(1, sizeof(*out));
    struct sk_token *token = calloc(1, sizeof(*token));

    if (out == NULL || token == NULL) {
        free(out);
        free(token);
        free(body);
        return NULL;
    }
    *token = (struct sk_token){.bus = bus, .body = body, .incarnation = atomic_load(&bus->incarnation)};
    out->token = token;
    out->release = delivery_release;
    out->received_us = sk_mono_us(bus->sched);
    out->stream_sequence = sequence;
    out->delivered = 1;
    set_subject(out, subject);
    set_body(out, body, body_len, republishable(bus));
    if (header_block != NULL)
        sk_headers_parse(out, header_block, header_len);
    return out;
}

/* True when the server still has the stream that this delivery came from. Waits for the streams to be looked at after
 * a reconnect, until the deadline; false with *known unset when that did not happen. */
static bool still_current(struct sk_bus_nats *bus, const struct sk_token *token, int64_t deadline_us, bool *known)
{
    *known = sk_bus_wait_link(bus, true, deadline_us);
    return *known && token->incarnation == atomic_load(&bus->incarnation);
}

static int settle_stray(struct sk_bus_nats *bus, struct sk_delivery *delivery, struct sk_error *err)
{
    int rc = sk_bus_nats_delete_message(bus, SK_STREAM_COMMANDS, delivery->stream_sequence, err);

    sk_strays_answered(bus, delivery->stream_sequence);
    return rc;
}

static int settle_window(struct sk_bus_nats *bus, struct sk_delivery **deliveries, int count, const char *word,
                         int64_t deadline_us, struct sk_error *err)
{
    struct sk_reply replies[SK_BUS_WINDOW];
    struct sk_reply_group group;
    char reply[SK_BUS_INBOX_SIZE + 24];
    bool void_one[SK_BUS_WINDOW] = {false};
    struct sk_error first = {.code = SK_OK}, *keep = &first;
    int rc = 0;

    sk_group_init(&group, replies, count);
    for (int i = 0; i < count; i++) {
        struct sk_token *token = deliveries[i]->token;
        bool known;
        if (!still_current(bus, token, deadline_us, &known)) {
            if (known) {
                sk_metric_add(&sk_bus_metric_stale_acks, 0, 0, 1);
                void_one[i] = true; /* gone with its stream: nothing will come again */
                if (token->message == NULL)
                    sk_strays_answered(bus, deliveries[i]->stream_sequence);
            } else {
                rc = sk_fail_unknown(keep, SK_ERR_INTERNAL, "not connected to NATS");
                keep = NULL;
            }
        } else if (token->message == NULL) {
            void_one[i] = true;
            if (settle_stray(bus, deliveries[i], keep) != 0) {
                rc = -1;
                keep = NULL;
            }
        } else if (!sk_group_open(bus, &group, i, reply, deadline_us) ||
                   sk_bus_publish_raw(bus, token->ack, reply, word, strlen(word), NULL, NULL) != 0) {
            sk_group_abandon(bus, &group, i);
        }
    }
    sk_group_wait(bus, &group, deadline_us);
    for (int i = 0; i < count; i++) {
        /* An empty answer confirms; "nobody" means that the consumer is gone: the command may come by another. */
        if (void_one[i] || replies[i].state == SK_REPLY_ARRIVED)
            continue;
        if (replies[i].state == SK_REPLY_NOBODY)
            sk_bus_verify_again(bus);
        rc = -1;
        if (keep != NULL) {
            (void)sk_fail_unknown(keep, SK_ERR_INTERNAL, "%s was not confirmed", word);
            keep = NULL;
        }
    }
    sk_group_fini(&group);
    if (rc != 0 && err != NULL)
        *err = first;
    return rc;
}

int sk_delivery_settle(struct sk_bus_nats *bus, struct sk_delivery **deliveries, int count, const char *word,
                       struct sk_error *err)
{
    int64_t deadline_us = sk_mono_us(bus->sched) + SK_BUS_ACK_TIMEOUT_MS * 1000;
    int rc = 0;

    for (int first = 0; first < count; first += SK_BUS_WINDOW) {
        int some = count - first < SK_BUS_WINDOW ? count - first : SK_BUS_WINDOW;
        if (settle_window(bus, deliveries + first, some, word, deadline_us, rc == 0 ? err : NULL) != 0)
            rc = -1;
    }
    for (int i = 0; i < count; i++)
        delivery_free(deliveries[i]);
    return rc;
}

int sk_bus_op_ack(void *self, struct sk_delivery *delivery, struct sk_error *err)
{
    return sk_delivery_settle(self, &delivery, 1, "+ACK", err);
}

int sk_bus_op_ack_many(void *self, struct sk_delivery **deliveries, int count, struct sk_error *err)
{
    return sk_delivery_settle(self, deliveries, count, "+ACK", err);
}

int sk_bus_op_term(void *self, struct sk_delivery *delivery, struct sk_error *err)
{
    return sk_delivery_settle(self, &delivery, 1, "+TERM", err);
}

int sk_bus_op_nak(void *self, struct sk_delivery *delivery, int64_t delay_ms, struct sk_error *err)
{
    struct sk_bus_nats *bus = self;
    struct sk_token *token = delivery->token;
    char word[64] = "-NAK";
    int rc = 0;

    if (token->message == NULL) {
        sk_strays_answered(bus, delivery->stream_sequence);
    } else if (atomic_load(&bus->usable) && token->incarnation == atomic_load(&bus->incarnation)) {
        if (delay_ms > 0)
            snprintf(word, sizeof(word), "-NAK {\"delay\": %" PRId64 "}", delay_ms * 1000000);
        rc = sk_bus_publish_raw(bus, token->ack, NULL, word, strlen(word), NULL, err);
    } else if (!atomic_load(&bus->usable)) {
        rc = sk_fail(err, SK_ERR_INTERNAL, "not connected to NATS: comes again after AckWait");
    }
    delivery_free(delivery);
    return rc;
}

void sk_bus_op_in_progress(void *self, struct sk_delivery *delivery)
{
    struct sk_bus_nats *bus = self;
    struct sk_token *token = delivery->token;

    if (token->message != NULL && atomic_load(&bus->usable) && token->incarnation == atomic_load(&bus->incarnation))
        (void)sk_bus_publish_raw(bus, token->ack, NULL, "+WPI", 4, NULL, NULL);
}
