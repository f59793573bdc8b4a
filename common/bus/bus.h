/* SPDX-License-Identifier: Apache-2.0
 *
 * The bus seam: JetStream commands in, results and events out (contract/messaging.md). Production is nats.c with its
 * own threads (never its libuv adapter, never Fetch); the simulator has a bus that drops, delays and repeats.
 *
 * Deliveries are handed over as owned objects; every delivery ends with exactly one of ack, term or nak. */
#ifndef SK_BUS_BUS_H
#define SK_BUS_BUS_H

#include "common/base/sched.h"

#define SK_BUS_BODY_MAX (256 * 1024)     /* a command above this is refused (contract §2) */
#define SK_BUS_HEADERS_MAX 32
#define SK_BUS_HEADER_VALUE_MAX 1024
#define SK_SUBJECT_SIZE 512

struct sk_header {
    char *name, *value;
};

/* A message taken from the command stream. Owned by whoever holds it; freed by ack, term or nak. */
struct sk_delivery {
    char subject[SK_SUBJECT_SIZE];
    char *body; /* NUL-terminated copy; body_len counts the real bytes (may contain NUL). NULL when above SK_BUS_BODY_MAX */
    size_t body_len;
    struct sk_header headers[SK_BUS_HEADERS_MAX]; /* first ones; hostile values are cut, see `headers_cut` */
    int header_count;
    bool headers_cut;
    uint64_t stream_sequence;
    uint64_t delivered; /* server's count: a hint, never trusted */
    int64_t received_us;
    void *token; /* implementation's handle */
};
const char *sk_delivery_header(const struct sk_delivery *delivery, const char *name); /* case-insensitive; NULL = absent */

struct sk_message {
    const char *subject;
    const char *message_id; /* Nats-Msg-Id; NULL = none */
    const struct sk_header *headers;
    int header_count;
    const char *body;
    size_t body_len;
};

struct sk_bus {
    const struct sk_bus_ops *ops;
    void *self;
};

struct sk_bus_ops {
    /* Publishes all to JetStream and waits for every PubAck or the time-out. acked[i] tells each; a message that was
     * not acked may be stored all the same (publish again under the same id). Returns -1 when not all were acked. */
    int (*publish_acked)(void *self, const struct sk_message *messages, int count, bool *acked, int64_t timeout_ms, struct sk_error *err);
    /* Core publish, no acknowledgement, never blocks longer than a buffer copy. Lost when the connection is down. */
    int (*publish)(void *self, const struct sk_message *message, struct sk_error *err);
    /* Confirmed by the server when the call returns 0 (double ack); on error the message will come again. Frees it. */
    int (*ack)(void *self, struct sk_delivery *delivery, struct sk_error *err);
    /* Many at once: waits for all confirmations together. */
    int (*ack_many)(void *self, struct sk_delivery **deliveries, int count, struct sk_error *err);
    int (*term)(void *self, struct sk_delivery *delivery, struct sk_error *err);             /* frees it */
    int (*nak)(void *self, struct sk_delivery *delivery, int64_t delay_ms, struct sk_error *err); /* frees it */
    void (*in_progress)(void *self, struct sk_delivery *delivery); /* extends AckWait; any thread */
    bool (*connected)(void *self);
};

/* ---- NATS ---------------------------------------------------------------------------------------------------- */
struct sk_bus_nats_config {
    const char *url;            /* nats://host:port, comma separated */
    const char *credentials_file, *token; /* "" = none */
    const char *prefix;         /* "sandbox" */
    const char *client_name;
    int64_t ack_wait_ms;        /* 30 000 */
    int max_ack_pending;        /* 20 000 */
    int pull_batch;             /* messages asked for at once: 256 */
    int stream_replicas;        /* 1, 3, 5 */
    int64_t commands_max_bytes, events_max_bytes;
};
struct sk_bus_nats;
SK_MUST_USE int sk_bus_nats_new(const struct sk_bus_nats_config *config, const struct sk_sched *sched, struct sk_bus_nats **out, struct sk_bus *bus, struct sk_error *err);
/* Creates or updates SANDBOX_COMMANDS, SANDBOX_EVENTS, SANDBOX_DEAD and the durable consumer `lifecycle`. Blocks;
 * idempotent; runs again by itself after a reconnect to a server that lost its store. */
SK_MUST_USE int sk_bus_nats_setup(struct sk_bus_nats *bus, struct sk_error *err);
/* Starts the pull: `on_delivery` is called from a library thread for each message, in order; it must only hand over.
 * `want` says how many more may come now (back-pressure): called before each request. Heartbeat and re-request after a
 * reconnect are the implementation's. */
SK_MUST_USE int sk_bus_nats_pull(struct sk_bus_nats *bus, const char *durable, const char *filter, int (*want)(void *arg),
                                 void (*on_delivery)(void *arg, struct sk_delivery *delivery), void *arg, struct sk_error *err);
void sk_bus_nats_pull_stop(struct sk_bus_nats *bus); /* no on_delivery after it returns */
/* Core subscriptions (events as hints, wake, commands of unknown subjects). Callback from a library thread; strings are valid during the call only. */
SK_MUST_USE int sk_bus_nats_subscribe(struct sk_bus_nats *bus, const char *subject, const char *queue_group,
                                      void (*on_message)(void *arg, const char *subject, const char *reply, const char *body, size_t len), void *arg, struct sk_error *err);
/* Request/reply service: subject sandbox.rpc.<service>.<method>; `handler` runs on the caller-given pool thread via
 * `submit`; see bus_service.h. */
/* For stray subjects: all messages of a stream whose subject matches none of `known`; delete by sequence. */
SK_MUST_USE int sk_bus_nats_delete_message(struct sk_bus_nats *bus, const char *stream, uint64_t sequence, struct sk_error *err);
SK_MUST_USE int sk_bus_nats_drain(struct sk_bus_nats *bus, int64_t timeout_ms); /* flushes what was published */
void sk_bus_nats_free(struct sk_bus_nats *bus);

#endif
