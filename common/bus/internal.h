/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the NATS bus share: the bus object, the confirmation table and the small helpers. Private to
 * common/bus.
 *
 * Locks, always taken in this order: subs_mu, conn_lock, mu, table.mu. Nothing is called back and no library function
 * is called while mu or table.mu is held; the library is called with conn_lock held for reading, which keeps the
 * connection object alive and is bounded by the write deadline. */
#ifndef SK_BUS_INTERNAL_H
#define SK_BUS_INTERNAL_H

#include "common/bus/bus.h"
#include "proto/subjects.h"

#include <jansson.h>
#include <nats/nats.h>
#include <pthread.h>

#define SK_BUS_PULL_EXPIRES_MS   15000
#define SK_BUS_PULL_HEARTBEAT_MS 3000
#define SK_BUS_IDLE_WAIT_MS      60000 /* of threads that are notified of everything they wait for */
#define SK_BUS_WANT_POLL_MS      20    /* how often `want` is asked again while it says 0 */
#define SK_BUS_RETRY_MIN_MS      50    /* minimum sleep of every retry loop */
#define SK_BUS_RETRY_MAX_MS      2000
#define SK_BUS_API_TIMEOUT_MS    3000
#define SK_BUS_PAGE_SUBJECTS     100000 /* the server's page size of a subject list */
#define SK_BUS_SERVERS_MAX       16
#define SK_BUS_WINDOW            1024 /* confirmations one call keeps in flight at once */

/* ---- confirmations (confirm.c): replies to what we published, matched by the last token of one inbox subject --------
 */
enum sk_reply_state {
    SK_REPLY_UNUSED = 0, /* never opened, or given back */
    SK_REPLY_WAITING,    /* after the wait: nothing came in time */
    SK_REPLY_ARRIVED,
    SK_REPLY_NOBODY, /* the server says that nobody listens on the subject: certainly without effect */
    SK_REPLY_LOST,   /* the connection broke while waiting: the effect is unknown */
};

struct sk_reply {
    enum sk_reply_state state;
    natsMsg *message; /* ARRIVED: owned by the group */
    uint32_t slot;    /* table index, while WAITING */
};

/* Replies that one caller waits for together. */
struct sk_reply_group {
    pthread_cond_t cond;
    int pending;
    int count;
    struct sk_reply *replies;
};

struct sk_reply_slot {
    struct sk_reply_group *group; /* NULL = free */
    int index;
    uint32_t generation;
    uint32_t next_free;
};

struct sk_reply_table {
    pthread_mutex_t mu;
    pthread_cond_t freed;
    uint32_t free_head, waiters;
    struct sk_reply_slot slots[SK_BUS_IN_FLIGHT_MAX];
};

int sk_replies_init(struct sk_reply_table *table);
void sk_replies_fini(struct sk_reply_table *table);
/* `replies` is the caller's array of `count`, which must outlive the group. */
void sk_group_init(struct sk_reply_group *group, struct sk_reply *replies, int count);
/* Takes a place for reply `index` and writes its reply subject. Waits for a free place until the deadline; false then.
 */
SK_MUST_USE bool sk_group_open(struct sk_bus_nats *bus, struct sk_reply_group *group, int index,
                               char reply[SK_BUS_INBOX_SIZE + 24], int64_t deadline_us);
/* Gives a place back: the message could not be sent. */
void sk_group_abandon(struct sk_bus_nats *bus, struct sk_reply_group *group, int index);
/* Waits until every open reply arrived or the deadline; gives all places back. */
void sk_group_wait(struct sk_bus_nats *bus, struct sk_reply_group *group, int64_t deadline_us);
/* Destroys messages that are left. */
void sk_group_fini(struct sk_reply_group *group);
void sk_replies_on_message(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *arg);
void sk_replies_connection_lost(struct sk_bus_nats *bus);

/* ---- messages of the library that are not needed any more --------------------------------------- */
/* Frees `message` (NULL is fine), perhaps a little later. Any thread; without a bus, too. */
void sk_bus_discard(natsMsg *message);
/* Frees what was kept for later. */
void sk_bus_discard_kept(void);

/* ---- subscriptions --------------------------------------------------------------------------------------------------
 */
/* One subscription of ours; outlives connections. */
struct sk_subscription {
    struct sk_bus_nats *bus;
    struct sk_subscription *next;
    char subject[SK_SUBJECT_SIZE];
    char queue_group[64];
    bool unlimited; /* never drop: outstanding is bounded by us */
    natsMsgHandler handler;
    void (*on_message)(void *arg, const char *subject, const char *reply, const char *body, size_t len);
    void (*on_full)(void *arg, const struct sk_delivery *message);
    void *arg;
    natsSubscription *sub; /* of the current connection, under subs_mu */
    bool ended;            /* not made again; under subs_mu */
    bool live;             /* a library thread serves it; under bus->mu */
};

/* ---- the bus --------------------------------------------------------------------------------------------------------
 */
struct sk_pull {
    struct sk_bus_nats *bus;
    char durable[64], filter[SK_SUBJECT_SIZE], inbox[SK_BUS_INBOX_SIZE]; /* inbox: <ours>.p<n> */
    int (*want)(void *arg);
    void (*on_delivery)(void *arg, struct sk_delivery *delivery);
    void *arg;
    struct sk_subscription *subscription;
    pthread_t thread;
    bool started;
    /* under bus->mu */
    bool stopping;
    bool open;        /* a request is out */
    uint32_t request; /* its number: last token of its reply subject */
    int remaining;    /* messages it may still bring */
    int taken;        /* messages it brought */
    int64_t opened_us, last_seen_us;
    unsigned connect_count; /* bus->connect_count when it was sent */
    unsigned failures;      /* in a row, for the back-off */
};

#define SK_STRAYS_IN_HAND 256
#define SK_STRAYS_RUNG    32

struct sk_strays {
    bool started; /* under bus->mu */
    bool running; /* the thread exists */
    pthread_t thread;
    struct sk_subscription *subscription;
    int filter_count;
    char filters[8][SK_SUBJECT_SIZE];
    int64_t sweep_ms;
    void (*on_delivery)(void *arg, struct sk_delivery *delivery);
    void *arg;
    /* under bus->mu */
    bool stopping;
    bool crowded; /* one could not be taken in hand: sweep when there is room */
    bool look;    /* more rang than could be noted: sweep everything */
    int rung_count;
    char rung[SK_STRAYS_RUNG][SK_SUBJECT_SIZE]; /* subjects to look at */
    uint64_t in_hand[SK_STRAYS_IN_HAND];        /* handed over, not answered yet; 0 = free */
};

/* What the callbacks of one connection object know. Freed after its closed callback. Fields under bus->mu. */
struct sk_link {
    struct sk_bus_nats *bus;
    bool connected, closed;
};

struct sk_bus_nats {
    const struct sk_sched *sched;
    /* constant after _new */
    char *url, *credentials_file, *token, *client_name; /* url: cut at its commas */
    const char *servers[SK_BUS_SERVERS_MAX];
    int server_count;
    unsigned server_next; /* of the keeper: which server comes next */
    char prefix[64];
    int64_t ack_wait_ms, commands_max_bytes, events_max_bytes;
    int max_ack_pending, pull_batch, stream_replicas;
    bool coalesce_writes;
    char inbox[32]; /* "_INBOX.<22 random>" */

    pthread_rwlock_t conn_lock;
    natsConnection *nc; /* under conn_lock */

    pthread_mutex_t subs_mu;
    struct sk_subscription *subscriptions; /* under subs_mu */
    int subscription_count;

    pthread_mutex_t mu;
    pthread_cond_t changed; /* broadcast at each change of what follows */
    struct sk_link *link;   /* of `nc`, NULL = no connection object */
    bool linked;            /* the library is connected */
    bool verified;          /* the streams were looked at since then */
    bool stop;              /* the bus ends */
    bool setup_wanted;
    unsigned verify_count;   /* +1 each time somebody wants the streams looked at again */
    unsigned connect_count;  /* +1 each time the library is connected */
    char stream_created[64]; /* of SANDBOX_COMMANDS, as the server writes it */
    int live_subs;           /* library subscriptions whose thread has not ended */
    struct sk_bus_nats *next_orphan;
    bool orphaned; /* a library thread could not be waited for: nothing is freed */
    char last_error[256];

    atomic_bool up;             /* = linked */
    atomic_bool usable;         /* = linked && verified: for connected() */
    atomic_llong complained_us; /* last time an asynchronous error was logged */
    atomic_llong max_payload;   /* of the server we are connected to */
    atomic_ullong incarnation;  /* +1 each time SANDBOX_COMMANDS turns out to be another one */
    atomic_uint inbox_counter;

    pthread_t keeper;
    bool keeper_started;
    int pull_count; /* under mu */
    struct sk_pull pulls[SK_BUS_PULLS_MAX];
    struct sk_strays strays;
    struct sk_reply_table table;
};

/* connection.c */
int sk_bus_publish_raw(struct sk_bus_nats *bus, const char *subject, const char *reply, const char *body, size_t len,
                       const struct sk_message *headers, struct sk_error *err);
/* NULL when out of memory. Set callbacks and flags on the new object before it is added. */
struct sk_subscription *sk_bus_subscription_new(struct sk_bus_nats *bus, const char *subject, const char *queue_group,
                                                natsMsgHandler handler, void *arg);
/* Takes the object, also when it fails (or is NULL). */
SK_MUST_USE int sk_bus_subscription_add(struct sk_bus_nats *bus, struct sk_subscription *item, struct sk_error *err);
/* Ends one subscription for good: what the server sent before is still handed to its handler, which runs no more when
 * this returns. Bounded by 5 s. The object stays with the bus. */
void sk_bus_subscription_end(struct sk_bus_nats *bus, struct sk_subscription *item);
void sk_bus_on_plain_message(natsConnection *nc, natsSubscription *sub, natsMsg *message,
                             void *arg); /* -> on_message */
/* Waits for linked (or, with `verified`, for usable) until the deadline. */
SK_MUST_USE bool sk_bus_wait_link(struct sk_bus_nats *bus, bool verified, int64_t deadline_us);
/* Asks the keeper to look at the streams again. */
void sk_bus_verify_again(struct sk_bus_nats *bus);
void sk_bus_thread_note(void); /* this thread called the library: give its memory back when it ends */
/* Timed wait on bus->changed with bus->mu held. */
void sk_bus_wait_changed(struct sk_bus_nats *bus, int64_t ms);
int64_t sk_bus_backoff_ms(unsigned failures); /* 50 ms doubling to 2 s */

/* probe.c: 0 when the server at this URL answers the handshake (also with an error) within the time. */
SK_MUST_USE int sk_bus_probe(struct sk_bus_nats *bus, const char *url, int64_t timeout_ms, struct sk_error *err);

/* setup.c */
/* One JetStream API call: "$JS.API.<name>", JSON both ways; `request` is stolen. NULL on failure. *api_error is the
 * server's err_code (0 = none). */
json_t *sk_js_api(struct sk_bus_nats *bus, json_t *request, int64_t timeout_ms, int *api_error, struct sk_error *err,
                  const char *name_fmt, ...) __attribute__((format(printf, 6, 7)));
SK_MUST_USE int sk_bus_verify(struct sk_bus_nats *bus, bool setup, struct sk_error *err);

/* delivery.c */
struct sk_delivery *sk_delivery_from_message(struct sk_bus_nats *bus,
                                             natsMsg *message); /* takes the message; NULL when out of memory */
void sk_delivery_view(struct sk_delivery *out,
                      natsMsg *message); /* headers must be freed with sk_delivery_headers_free */
void sk_delivery_headers_free(struct sk_delivery *delivery);
SK_MUST_USE int sk_delivery_settle(struct sk_bus_nats *bus, struct sk_delivery **deliveries, int count,
                                   const char *word, struct sk_error *err);
int sk_bus_op_ack(void *self, struct sk_delivery *delivery, struct sk_error *err);
int sk_bus_op_ack_many(void *self, struct sk_delivery **deliveries, int count, struct sk_error *err);
int sk_bus_op_term(void *self, struct sk_delivery *delivery, struct sk_error *err);
int sk_bus_op_nak(void *self, struct sk_delivery *delivery, int64_t delay_ms, struct sk_error *err);
void sk_bus_op_in_progress(void *self, struct sk_delivery *delivery);
struct sk_token; /* what `delivery->token` points to */
struct sk_delivery *sk_delivery_stray(struct sk_bus_nats *bus, uint64_t sequence, const char *subject,
                                      const char *header_block, size_t header_len, char *body,
                                      size_t body_len); /* takes body */

/* publish.c */
int sk_bus_op_publish(void *self, const struct sk_message *message, struct sk_error *err);
int sk_bus_op_publish_acked(void *self, const struct sk_message *messages, int count, bool *acked, int64_t timeout_ms,
                            struct sk_error *err);

/* text.c */
bool sk_subject_matches(const char *filter, const char *subject);
/* Parses "NATS/1.0\r\nName: value\r\n…\r\n" into a delivery; hostile blocks give what is readable and headers_cut. */
void sk_headers_parse(struct sk_delivery *out, const char *block, size_t len);
bool sk_delivery_add_header(struct sk_delivery *out, const char *name, size_t name_len, const char *value,
                            size_t value_len);
bool sk_header_known(const char *name, size_t len);
/* Decodes into malloc'd memory (NUL added); NULL when it is not base64 or out of memory. */
char *sk_base64_decode(const char *text, size_t len, size_t *out_len);

/* pull.c, strays.c */
void sk_strays_stop(struct sk_bus_nats *bus);
void sk_strays_answered(struct sk_bus_nats *bus, uint64_t sequence);

/* metrics.c */
void sk_bus_metrics_register(void);
extern struct sk_metric sk_bus_metric_published, sk_bus_metric_reconnects, sk_bus_metric_dropped,
    sk_bus_metric_pull_stalls, sk_bus_metric_stale_acks, sk_bus_metric_strays, sk_bus_metric_service_busy,
    sk_bus_metric_in_flight;

#endif
