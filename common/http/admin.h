/* SPDX-License-Identifier: Apache-2.0
 *
 * The admin listener of a service (contract/service.md §1), on h2o over the service's own loop:
 *
 *   /livez     200 "ok", or 503 with the reason: the loop turns and the registered checks hold; never dependencies
 *   /readyz    200 or 503, JSON: each dependency by name with state and last error; ?verbose adds since when
 *   /metrics   Prometheus text
 *
 * GET and HEAD only (405 with Allow), plain HTTP/1.1 only, everything else is 404 as application/problem+json. Paths
 * are compared raw. Bounded: connections, header bytes, body bytes, idle time, and the time a response may take to be
 * read.
 *
 * While it runs it beats the health registry's heart once a second and measures how late that timer is
 * (sandkeep_loop_delay_seconds). All calls on the loop thread. */
#ifndef SK_HTTP_ADMIN_H
#define SK_HTTP_ADMIN_H

#include "common/base/error.h"
#include "common/base/loop.h"
#include "common/health/health.h"

#define SK_ADMIN_CONNECTIONS_MAX  64    /* further ones are closed at once */
#define SK_ADMIN_HEADER_BYTES_MAX 16384 /* 431 beyond */
#define SK_ADMIN_BODY_BYTES_MAX   16384 /* 413 beyond; bodies are of no use here */
#define SK_ADMIN_IDLE_MS          10000 /* for a request's headers, and between requests */
#define SK_ADMIN_WRITE_MS         30000 /* a response of which nothing was read for so long is given up */

struct sk_admin;

/* Listens on "host:port" (as sk_config gives it; port 0 picks one) and logs the address. NULL with err: the address
 * cannot be resolved or bound (invalid_request, it is a matter of configuration), or memory is out. `loop` and `health`
 * must outlive it. */
SK_MUST_USE struct sk_admin *sk_admin_start(struct sk_loop *loop, const char *listen, struct sk_health *health,
                                            struct sk_error *err);
/* Same with other times than the ones above (tests do not want to wait for them). */
SK_MUST_USE struct sk_admin *sk_admin_start_limits(struct sk_loop *loop, const char *listen, struct sk_health *health,
                                                   int64_t idle_ms, int64_t write_ms, struct sk_error *err);
/* The port that was bound. */
int sk_admin_port(const struct sk_admin *admin);
/* Stops listening, closes idle connections at once, lets answers that are being written end for at most one second,
 * then frees it and calls `done` (may be NULL) on a later turn. The loop must go on running until then. */
void sk_admin_stop(struct sk_admin *admin, void (*done)(void *arg), void *arg);

#endif
