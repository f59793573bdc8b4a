/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the transfers share: the objects of transfer.h, and the two places where a test may stand in for
 * the world outside (no configuration reaches them). */
#ifndef SK_CODE_BROKER_INTERNAL_H
#define SK_CODE_BROKER_INTERNAL_H

#include "common/base/buf.h"
#include "common/base/list.h"
#include "services/code/broker/transfer.h"

struct code_broker {
    struct code_broker_options options;
    struct code_broker_counts counts;
    bool freed;             /* by its owner: the last look-up takes the memory with it */
    struct sk_list lookups; /* that run, also when nobody waits for them any more */
    struct sk_list names;   /* transfers that wait for their look-up, in order */
    /* For tests. `permit` true: this very address is allowed, whatever its class. `resolve` gives the addresses of a
     * name (0: there is none) instead of the system's resolver. */
    struct {
        bool (*permit)(void *arg, const struct sockaddr *address);
        size_t (*resolve)(void *arg, const char *host, struct sockaddr_storage *out, size_t max);
        void *arg;
    } seam;
};

struct code_requester {
    struct code_broker *broker;
    char *task_id, *queue_id;
    struct code_requester_limits limits;
    struct code_requester_counts counts;
    struct sk_list transfers;
    struct code_resolve *lookup; /* its one look-up, also when nobody waits for that any more */
};

struct code_resolve;

struct code_transfer {
    struct sk_list link; /* in the requester's */
    struct code_requester *requester;
    code_transfer_done done;
    void *arg;
    /* The request. */
    char method[CODE_METHOD_MAX + 1];
    json_t *headers; /* a copy */
    char *body;
    size_t body_length;
    bool has_body, follow, foreign, bare;
    int hops;
    int64_t started_us;
    struct code_target target;
    /* On its way. */
    struct sk_timer *begin, *deadline, *curl_timer;
    struct code_resolve *resolve;
    struct sk_list naming; /* in the broker's names */
    struct sockaddr_storage addresses[CODE_RESOLVED_MAX];
    size_t address_count;
    CURLM *multi;
    CURL *easy;
    struct curl_slist *header_list, *resolve_list;
    struct sk_list polls;
    struct sockaddr_storage peer; /* of the last socket */
    /* What came. */
    const char *message; /* how it ended, NULL = well; static */
    const char *why;     /* for the audit line; static */
    enum code_net_refusal refusal;
    bool settled; /* refused before anything was asked */
    int status;
    char status_text[128];
    struct sk_buf data, location;
    json_t *answer_headers;
    size_t header_bytes;
    int64_t held;
};

/* http.c: one exchange with the target, over libcurl on the loop. */

/* Starts it: the addresses were judged. A message when it cannot. */
const char *code_http_start(struct code_transfer *t);
/* Ends libcurl's part, whatever its state; never from inside one of its callbacks. */
void code_http_stop(struct code_transfer *t);
/* transfer.c: the exchange ended: with an answer (message NULL) or without. */
void code_transfer_exchanged(struct code_transfer *t, const char *message);
/* Whether a connection to this address may be used. Notes the refusal. */
bool code_transfer_permits(struct code_transfer *t, const struct sockaddr *address);

#endif
