/* SPDX-License-Identifier: Apache-2.0
 *
 * A request/reply service on the bus (contract/messaging.md §3): queue-group subscription on
 * "<prefix>.rpc.<service>.>", one handler for all methods, run on a worker pool of the caller's. Every bound has an
 * answer: too many requests, one that waited too long, a body or a reply that is too large each get a typed error, so
 * that a client never has to wait for its own time-out because of load. */
#ifndef SK_BUS_SERVICE_H
#define SK_BUS_SERVICE_H

#include "common/base/workers.h"
#include "common/bus/bus.h"

#define SK_SERVICE_REQUESTS_MAX 256   /* taken and not answered yet; more are answered `sandbox_busy` at once */
#define SK_SERVICE_AGE_MAX_MS   10000 /* a request that waited this long for a worker is answered `sandbox_busy` */
#define SK_SERVICE_METHOD_SIZE  64

struct sk_bus_service_config {
    const char *service;        /* "lifecycle" */
    struct sk_workers *workers; /* must outlive the service; best one that long jobs cannot fill */
    int requests_max;           /* 0 = SK_SERVICE_REQUESTS_MAX */
    /* Answers one request: a malloc'd JSON text {"ok":…}, freed by the service; NULL = answered with `internal`.
     * `body` is NUL-terminated; `len` counts its bytes. Runs on a worker thread and may block. */
    char *(*handler)(void *arg, const char *method, const char *body, size_t len);
    void *arg;
};

struct sk_bus_service;

/* Starts serving; answers are core messages (lost when the connection is down: requests are asked again). Messages
 * without a reply subject are ignored: hints, not requests. Errors: invalid_request, internal. */
SK_MUST_USE int sk_bus_service_start(struct sk_bus_nats *bus, const struct sk_bus_service_config *config,
                                     struct sk_bus_service **out, struct sk_error *err);
/* Takes no more requests, waits up to timeout_ms for those in hand and frees the service. Returns how many were not
 * answered: then it is not freed (their workers still use it) and may be stopped again. Not from a worker. */
SK_MUST_USE int sk_bus_service_stop(struct sk_bus_service *service, int64_t timeout_ms);
int sk_bus_service_in_hand(struct sk_bus_service *service); /* for a gauge */

#endif
