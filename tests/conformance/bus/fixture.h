/* SPDX-License-Identifier: Apache-2.0
 *
 * What the bus tests share: a server with a bus on it, a collector for deliveries, and a raw client socket that sends
 * what no well-behaved library would. */
#ifndef SK_TESTS_BUS_FIXTURE_H
#define SK_TESTS_BUS_FIXTURE_H

#include "common/bus/bus.h"
#include "proto/subjects.h"
#include "tests/support/server.h"

#include <jansson.h>
#include <pthread.h>

#define COLLECT_MAX 8192

struct collector {
    pthread_mutex_t mu;
    int count;
    atomic_int want; /* room that is left: what the pull may ask for */
    struct sk_delivery *items[COLLECT_MAX];
};

struct rig {
    struct sk_test_server server;
    struct sk_bus_nats *nats;
    struct sk_bus bus;
    struct collector got;
};

extern const struct sk_sched *const sched;

void collector_init(struct collector *got);
void collector_add(void *arg, struct sk_delivery *delivery);
int collector_want(void *arg);
/* Waits until `count` deliveries were collected (10 s) and returns the last of them. */
struct sk_delivery *collector_wait(struct collector *got, int count);
int collector_count(struct collector *got);
/* Stays at `count` for ms. */
bool collector_stays(struct collector *got, int count, int ms);

struct sk_bus_nats *bus_open(const struct sk_test_server *server, const char *token, struct sk_bus *bus);
/* Server, bus, streams and a pull of the consumer `lifecycle` into rig->got. */
void rig_start(struct rig *rig);
void rig_start_want(struct rig *rig, int want); /* the same with room for `want` deliveries */
void rig_end(struct rig *rig);

void put(struct sk_bus *bus, const char *subject, const char *id, const char *body);
/* The API's answer for a stream or consumer ("STREAM.INFO.X"); the caller frees it. */
json_t *api(struct sk_bus_nats *nats, const char *name, const char *body);
/* Messages in the command stream. */
int stored(struct sk_bus_nats *nats, const char *stream);
bool stored_becomes(struct sk_bus_nats *nats, const char *stream, int count);

/* A raw connection: CONNECT done, headers allowed. */
int raw_open(int port);
/* HPUB with exactly this header block and body; subject as given. */
void raw_publish(int fd, const char *subject, const char *reply, const void *headers, size_t headers_len,
                 const void *body, size_t body_len);

#endif
