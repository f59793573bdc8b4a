/* SPDX-License-Identifier: Apache-2.0
 *
 * The bus seam: JetStream commands in, results and events out (contract/messaging.md). Production is nats.c with its
 * own threads (never its libuv adapter, never Fetch); the simulator has a bus that drops, delays and repeats.
 *
 * Deliveries are handed over as owned objects; every delivery ends with exactly one of ack, term or nak. */
#ifndef SK_BUS_BUS_H
#define SK_BUS_BUS_H

#include "common/base/sched.h"

#define SK_BUS_BODY_MAX         (256 * 1024) /* a command above this is refused (contract §2) */
#define SK_BUS_RAW_MAX          (512 * 1024) /* bytes kept of a larger one, for its dead letter */
#define SK_BUS_HEADERS_MAX      32
#define SK_BUS_HEADER_VALUE_MAX 1024
#define SK_SUBJECT_SIZE         512

struct sk_header {
    char *name, *value;
};

/* A message taken from the command stream. Owned by whoever holds it; freed by ack, term or nak. */
struct sk_delivery {
    char subject[SK_SUBJECT_SIZE];
    char *body;           /* NUL-terminated; body_len counts the real bytes (may contain NUL). NULL when above
                           * SK_BUS_BODY_MAX or what the server lets us publish again */
    size_t body_len;      /* of an oversize message at most SK_BUS_RAW_MAX, see raw_body */
    const char *raw_body; /* body_len bytes, also of an oversize message: what its dead letter carries, cut so that it
                           * can be published; may be NULL in a simulator */
    struct sk_header headers[SK_BUS_HEADERS_MAX]; /* first ones; hostile values are cut, see `headers_cut` */
    int header_count;
    bool headers_cut;
    uint64_t stream_sequence;
    uint64_t delivered; /* server's count: a hint, never trusted */
    int64_t received_us;
    void *token; /* implementation's handle */
    void (*release)(
        struct sk_delivery *delivery); /* frees it without a word to the server; set by the implementation */
};
/* Frees a delivery without ack, term or nak: it comes again after AckWait. For a replica that ends. */
static inline void sk_delivery_drop(struct sk_delivery *delivery)
{
    if (delivery != NULL && delivery->release != NULL)
        delivery->release(delivery);
}
const char *sk_delivery_header(const struct sk_delivery *delivery,
                               const char *name); /* case-insensitive; NULL = absent */

/* A subject that can be published to: 1..511 bytes, valid UTF-8 without spaces and controls, no empty token, no
 * wildcard. */
SK_MUST_USE bool sk_subject_valid(const char *subject);
/* What Sandbox-Reply-To may be (contract §2): a valid subject outside `prefix` and `$`. */
SK_MUST_USE bool sk_reply_subject_valid(const char *subject, const char *prefix);

/* Headers are made safe on the way out: a name that is no token is left out, controls in a value become spaces, and
 * names of the server's own ("Nats-…") are renamed to "Sandbox-Original-Nats-…", so that a copied header cannot steer
 * the stream that the copy goes to. Of several with one name (in any case) only the last is sent, and those that are
 * not ours share SK_BUS_HEADER_BYTES_MAX (the server takes 64 KiB): what does not fit is left out. */
#define SK_BUS_HEADER_BYTES_MAX (32 * 1024)
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
    int (*publish_acked)(void *self, const struct sk_message *messages, int count, bool *acked, int64_t timeout_ms,
                         struct sk_error *err);
    /* Core publish, no acknowledgement, never blocks longer than a buffer copy. Lost when the connection is down. */
    int (*publish)(void *self, const struct sk_message *message, struct sk_error *err);
    /* Confirmed by the server when the call returns 0 (double ack); on error the message will come again. Frees it. */
    int (*ack)(void *self, struct sk_delivery *delivery, struct sk_error *err);
    /* Many at once: waits for all confirmations together. */
    int (*ack_many)(void *self, struct sk_delivery **deliveries, int count, struct sk_error *err);
    int (*term)(void *self, struct sk_delivery *delivery, struct sk_error *err);                  /* frees it */
    int (*nak)(void *self, struct sk_delivery *delivery, int64_t delay_ms, struct sk_error *err); /* frees it */
    void (*in_progress)(void *self, struct sk_delivery *delivery); /* extends AckWait; any thread */
    bool (*connected)(void *self);
};

/* ---- NATS ------------------------------------------------------------------------------------------------------
 *
 * One connection. It is made and kept by a thread of the bus: connecting, re-connecting (for ever, with back-off, also
 * after an authentication error), checking that the streams are still the ones that deliveries came from, and making
 * them again on a server that lost its store. `connected()` is true when all of that is done.
 *
 * A delivery of a stream that was made anew since then must never be acknowledged: sequences start again at 1, the ack
 * would remove somebody else's command. Such an ack, term or nak does nothing and succeeds: the message is gone.
 *
 * All functions may be called from any thread unless said otherwise; threads that called them give back the library's
 * memory by themselves when they end. */
#define SK_BUS_IN_FLIGHT_MAX      4096 /* confirmations awaited at once by one bus; more wait for a place */
#define SK_BUS_ACK_TIMEOUT_MS     5000 /* ack, ack_many, term */
#define SK_BUS_CONNECT_TIMEOUT_MS 2000
#define SK_BUS_WRITE_DEADLINE_MS  2000 /* longest a write to a server that does not read can block */
#define SK_BUS_PULLS_MAX          4
#define SK_BUS_SUBSCRIPTIONS_MAX  64
#define SK_BUS_REPLY_MAX          (512 * 1024) /* largest reply of a request (contract §3) */
#define SK_BUS_INBOX_SIZE         64

struct sk_bus_nats_config {
    const char *url;                      /* nats://host:port, comma separated */
    const char *credentials_file, *token; /* "" or NULL = none */
    const char *prefix;                   /* "sandbox" */
    const char *client_name;
    int64_t ack_wait_ms;                          /* 30 000 */
    int max_ack_pending;                          /* 20 000 */
    int pull_batch;                               /* messages asked for at once: 256 */
    int stream_replicas;                          /* 1, 3, 5 */
    int64_t commands_max_bytes, events_max_bytes; /* 1 GiB, 2 GiB */
    bool coalesce_writes; /* true: collect writes for about 1 ms (bulk); false: send at once (latency) */
};
struct sk_bus_nats;

/* Copies the configuration (0 and NULL take the defaults above) and starts connecting; does not wait and does not fail
 * because a server is away. Errors: invalid_request (unusable configuration), internal. */
SK_MUST_USE int sk_bus_nats_new(const struct sk_bus_nats_config *config, const struct sk_sched *sched,
                                struct sk_bus_nats **out, struct sk_bus *bus, struct sk_error *err);
/* Waits until connected() or the time-out. Errors: internal ("not connected"), with the last reason. */
SK_MUST_USE int sk_bus_nats_wait(struct sk_bus_nats *bus, int64_t timeout_ms, struct sk_error *err);
/* Creates or updates SANDBOX_COMMANDS, SANDBOX_EVENTS, SANDBOX_DEAD and the durable consumer `lifecycle`. Blocks (at
 * most about 10 s); idempotent; fields that others set on a stream or consumer are kept. From the first call on, also
 * when it failed, the bus does it again by itself after every reconnect. */
SK_MUST_USE int sk_bus_nats_setup(struct sk_bus_nats *bus, struct sk_error *err);
/* Starts the pull: `on_delivery` is called from a library thread for each message, in order; it must only hand over.
 * `want` says how many more may come now (back-pressure): called before each request, from a thread of the bus. The
 * durable consumer is made when it does not exist. Heartbeat and re-request after a reconnect are the implementation's.
 * At most SK_BUS_PULLS_MAX a bus. */
SK_MUST_USE int sk_bus_nats_pull(struct sk_bus_nats *bus, const char *durable, const char *filter,
                                 int (*want)(void *arg), void (*on_delivery)(void *arg, struct sk_delivery *delivery),
                                 void *arg, struct sk_error *err);
void sk_bus_nats_pull_stop(
    struct sk_bus_nats *bus); /* all pulls; what still arrives is nak'd; no on_delivery after it returns */
/* Stray commands (contract §2): messages of SANDBOX_COMMANDS whose subject matches none of `filters` (which may use `*`
 * and a final `>`) and so belong to no consumer. Found by a core queue subscription and by a sweep of the stream's
 * subject list at start and each sweep_ms. `on_delivery` gets each as a delivery: ack and term delete the message from
 * the stream by its sequence, nak leaves it for the next sweep, in_progress does nothing. Called from a thread of the
 * bus. Once a bus. */
SK_MUST_USE int sk_bus_nats_strays(struct sk_bus_nats *bus, const char *const *filters, int filter_count,
                                   int64_t sweep_ms, void (*on_delivery)(void *arg, struct sk_delivery *delivery),
                                   void *arg, struct sk_error *err);
/* Core subscriptions (events as hints, wake, inboxes). Callback from a library thread, one thread per subscription;
 * strings are valid during the call only. Lasts until sk_bus_nats_free; made again after each reconnect. */
SK_MUST_USE int sk_bus_nats_subscribe(struct sk_bus_nats *bus, const char *subject, const char *queue_group,
                                      void (*on_message)(void *arg, const char *subject, const char *reply,
                                                         const char *body, size_t len),
                                      void *arg, struct sk_error *err);
/* Same, with headers: `message` is valid during the call only and must not be acked (progress, CloudEvents attributes).
 */
SK_MUST_USE int sk_bus_nats_subscribe_full(struct sk_bus_nats *bus, const char *subject,
                                           void (*on_message)(void *arg, const struct sk_delivery *message), void *arg,
                                           struct sk_error *err);
/* A new inbox subject that nobody can guess. */
void sk_bus_nats_inbox(struct sk_bus_nats *bus, char out[SK_BUS_INBOX_SIZE]);
/* One request and its reply (`*reply` is malloc'd, NUL-terminated, owned by the caller). Errors: invalid_request (bad
 * subject), internal (no connection; nobody serves the subject), deadline_exceeded (outcome unknown). Not for streams
 * of answers. */
SK_MUST_USE int sk_bus_nats_request(struct sk_bus_nats *bus, const char *subject, const char *body, size_t len,
                                    int64_t timeout_ms, char **reply, size_t *reply_len, struct sk_error *err);
/* Deletes one message of a stream; a message that is gone already is a success. */
SK_MUST_USE int sk_bus_nats_delete_message(struct sk_bus_nats *bus, const char *stream, uint64_t sequence,
                                           struct sk_error *err);
SK_MUST_USE int sk_bus_nats_drain(struct sk_bus_nats *bus,
                                  int64_t timeout_ms); /* flushes what was published; -1 = not in time */
/* Stops everything and frees; no callback runs after it. Deliveries still held stay valid and must be dropped
 * (sk_delivery_drop) by their holder. */
void sk_bus_nats_free(struct sk_bus_nats *bus);
/* Ends the library's own threads; once, at the end of the process, after every bus was freed (clean leak reports). */
void sk_bus_nats_library_close(void);

#endif
