/* SPDX-License-Identifier: Apache-2.0
 *
 * A request's way: judged, resolved once, every address judged, exchanged, redirected (and judged again) or answered.
 * Whoever ends it, whenever: it is finished exactly once, and nothing of it is left behind. */
#include "services/code/broker/internal.h"

#include "common/base/id.h"
#include "common/base/sched.h"
#include "common/log/log.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define LOCATION_MAX CODE_URL_MAX

/* A look-up cannot be called off while it runs: it outlives its transfer and frees itself. */
struct code_resolve {
    uv_getaddrinfo_t request;
    struct code_broker *broker;
    struct code_transfer *transfer;   /* NULL = nobody waits any more */
    struct code_requester *requester; /* NULL = gone */
    struct sk_list link;              /* in the broker's lookups */
    char *queue_id;                   /* a copy: a task may be gone before its look-up */
};

static void resolve_free(struct code_resolve *resolve)
{
    free(resolve->queue_id);
    free(resolve);
}

struct code_broker *code_broker_new(const struct code_broker_options *options)
{
    struct code_broker *broker = calloc(1, sizeof(*broker));

    if (broker == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(broker);
        return NULL;
    }
    sk_list_init(&broker->lookups);
    sk_list_init(&broker->names);
    broker->options = *options;
    if (broker->options.budget_bytes <= 0)
        broker->options.budget_bytes = CODE_BROKER_BUDGET;
    return broker;
}

void code_broker_free(struct code_broker *broker)
{
    if (broker == NULL)
        return;
    broker->freed = true;
    if (broker->counts.resolving == 0)
        free(broker);
}

struct code_broker_counts code_broker_counts(const struct code_broker *broker)
{
    return broker->counts;
}

bool code_broker_hold(struct code_broker *broker, int64_t bytes)
{
    if (bytes > broker->options.budget_bytes - broker->counts.held_bytes)
        return false;
    broker->counts.held_bytes += bytes;
    return true;
}

void code_broker_release(struct code_broker *broker, int64_t bytes)
{
    broker->counts.held_bytes -= bytes;
}

struct code_requester *code_requester_new(struct code_broker *broker, const char *task_id, const char *queue_id,
                                          const struct code_requester_limits *limits)
{
    struct code_requester *requester = calloc(1, sizeof(*requester));

    if (requester == NULL)
        return NULL;
    requester->broker = broker;
    requester->limits = *limits;
    requester->task_id = strdup(task_id);
    requester->queue_id = queue_id == NULL ? NULL : strdup(queue_id);
    sk_list_init(&requester->transfers);
    if (requester->task_id == NULL || (queue_id != NULL && requester->queue_id == NULL)) {
        code_requester_free(requester);
        return NULL;
    }
    return requester;
}

struct code_requester_counts code_requester_counts(const struct code_requester *requester)
{
    return requester->counts;
}

void code_requester_free(struct code_requester *requester)
{
    if (requester == NULL)
        return;
    while (!sk_list_empty(&requester->transfers))
        code_transfer_cancel(SK_LIST_ENTRY(struct code_transfer, requester->transfers.next, link));
    if (requester->lookup != NULL)
        requester->lookup->requester = NULL;
    free(requester->task_id);
    free(requester->queue_id);
    free(requester);
}

/* Never its path or query, which may hold keys. */
static void audit(const struct code_transfer *t, const char *result)
{
    const struct code_requester *requester = t->requester;
    char peer[INET6_ADDRSTRLEN] = "";

    if (t->peer.ss_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)&t->peer)->sin_addr, peer, sizeof(peer));
    else if (t->peer.ss_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)&t->peer)->sin6_addr, peer, sizeof(peer));
    SK_LOG_INFO("http request of a task", SK_F("taskId", requester->task_id), SK_F("queueId", requester->queue_id),
                SK_F("result", result), SK_F("reason", t->message), SK_F("rule", t->why), SK_F("method", t->method),
                SK_F("scheme", t->target.url == NULL ? NULL
                               : t->target.tls       ? "https"
                                                     : "http"),
                SK_F("host", t->target.url == NULL ? NULL : t->target.host), SK_FI("port", t->target.port),
                SK_F("address", peer[0] == '\0' ? NULL : peer), SK_FI("status", t->status), SK_FI("redirects", t->hops),
                SK_FI("requestBytes", t->body_length), SK_FI("responseBytes", sk_buf_len(&t->data)),
                SK_FI("durationMs", (sk_mono_us(&sk_sched_system) - t->started_us) / 1000));
}

/* Ends what is on its way and takes it out of its requester. */
static void leave(struct code_transfer *t)
{
    code_http_stop(t);
    sk_timer_stop(t->deadline);
    sk_timer_stop(t->begin);
    if (t->resolve != NULL) {
        t->resolve->transfer = NULL;
        uv_cancel((uv_req_t *)&t->resolve->request);
        t->resolve = NULL;
    }
    sk_list_remove(&t->naming);
    sk_list_remove(&t->link);
    t->requester->counts.in_flight--;
    t->requester->broker->counts.in_flight--;
}

static void transfer_free(struct code_transfer *t, struct code_broker *broker)
{
    if (broker != NULL)
        code_broker_release(broker, t->held);
    sk_timer_free(t->deadline);
    sk_timer_free(t->begin);
    sk_timer_free(t->curl_timer);
    code_target_fini(&t->target);
    json_decref(t->headers);
    json_decref(t->answer_headers);
    sk_buf_fini(&t->data);
    sk_buf_fini(&t->location);
    free(t->body);
    free(t);
}

static bool is_utf8(const char *data, size_t length)
{
    size_t n;

    for (size_t at = 0; at < length; at += n) {
        n = sk_utf8_sequence(data + at, length - at);
        if (n == 0)
            return false;
    }
    return true;
}

/* Makes the body a text: each byte that belongs to no UTF-8 becomes U+FFFD. Three times the bytes at most. */
static bool make_text(struct code_transfer *t)
{
    const char *data = sk_buf_data(&t->data);
    size_t length = sk_buf_len(&t->data), run = 0, n;
    struct sk_buf text;

    if (is_utf8(data, length))
        return true;
    sk_buf_init(&text, length * 3 + 1);
    for (size_t at = 0; at < length; at += n == 0 ? 1 : n) {
        n = sk_utf8_sequence(data + at, length - at);
        if (n != 0)
            continue;
        if (!sk_buf_append(&text, data + run, at - run) || !sk_buf_append_text(&text, "\xef\xbf\xbd"))
            goto fail;
        run = at + 1;
    }
    if (!sk_buf_append(&text, data + run, length - run))
        goto fail;
    n = sk_buf_len(&text) - length;
    if (!code_broker_hold(t->requester->broker, (int64_t)n))
        goto fail;
    t->held += (int64_t)n;
    sk_buf_fini(&t->data);
    t->data = text;
    return true;
fail:
    sk_buf_fini(&text);
    return false;
}

/* The end: counts, audit line, answer. */
static void finish(struct code_transfer *t, const char *message)
{
    struct code_requester *requester = t->requester;
    struct code_broker *broker = requester->broker;
    struct code_net_answer answer = {0};

    leave(t);
    t->message = message;
    if (message == NULL && !make_text(t))
        t->message = "Out of memory";
    if (t->message == NULL) {
        requester->counts.answered++;
        broker->counts.answered++;
    } else if (t->refusal != CODE_REFUSED_NOT || t->settled) {
        requester->counts.refused++;
        broker->counts.refused++;
        if (t->why == NULL)
            t->why = code_net_refusal_name(t->refusal);
    } else {
        requester->counts.failed++;
        broker->counts.failed++;
    }
    audit(t, t->message == NULL ? "answered" : t->refusal != CODE_REFUSED_NOT || t->settled ? "refused" : "failed");
    answer.message = t->message;
    if (t->message == NULL) {
        answer.status = t->status;
        answer.status_text = t->status_text;
        answer.headers = t->answer_headers;
        answer.data = sk_buf_data(&t->data);
        answer.length = sk_buf_len(&t->data);
    }
    t->done(t->arg, &answer); /* the requester may be gone after this */
    transfer_free(t, broker);
}

static void refuse(struct code_transfer *t, enum code_net_refusal refusal)
{
    t->refusal = refusal;
    finish(t, code_net_refusal_message(refusal));
}

static void on_deadline(void *arg)
{
    struct code_transfer *t = arg;

    finish(t, "Request timeout");
}

bool code_transfer_permits(struct code_transfer *t, const struct sockaddr *address)
{
    struct code_broker *broker = t->requester->broker;
    enum code_net_refusal refusal;

    if (broker->seam.permit != NULL && broker->seam.permit(broker->seam.arg, address))
        return true;
    refusal = code_target_address(&t->target, broker->options.policy, t->requester->queue_id, address);
    if (refusal == CODE_REFUSED_NOT)
        return true;
    t->refusal = refusal;
    t->message = code_net_refusal_message(refusal);
    return false;
}

/* The addresses are here: all of them must be allowed, not only the one that would be used. */
static void exchange(struct code_transfer *t)
{
    const char *message;

    if (t->address_count == 0) {
        finish(t, "Request failed: could not resolve host");
        return;
    }
    for (size_t i = 0; i < t->address_count; i++) {
        if (!code_transfer_permits(t, (const struct sockaddr *)&t->addresses[i])) {
            finish(t, t->message);
            return;
        }
    }
    message = code_http_start(t);
    if (message != NULL)
        finish(t, message);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *list)
{
    struct code_resolve *resolve = request->data;
    struct code_transfer *t = resolve->transfer;
    struct code_requester *requester = resolve->requester;
    struct code_broker *broker = resolve->broker;
    bool too_many = false;
    struct sk_list *next;

    sk_list_remove(&resolve->link);
    resolve_free(resolve);
    if (requester != NULL)
        requester->lookup = NULL;
    /* All of them, CODE_FLIGHT_MAX of a task at most: the first that may gets it. Not from in here: it may end the
     * requester. */
    while ((next = sk_list_pop_front(&broker->names)) != NULL)
        sk_timer_start(SK_LIST_ENTRY(struct code_transfer, next, naming)->begin, 0, 0);
    if (--broker->counts.resolving == 0 && broker->freed)
        free(broker);
    if (t != NULL) {
        t->resolve = NULL;
        for (const struct addrinfo *a = status == 0 ? list : NULL; a != NULL && !too_many; a = a->ai_next) {
            if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) || a->ai_addrlen > sizeof(t->addresses[0]))
                continue;
            too_many = t->address_count == CODE_RESOLVED_MAX;
            if (!too_many)
                memcpy(&t->addresses[t->address_count++], a->ai_addr, a->ai_addrlen);
        }
    }
    uv_freeaddrinfo(list);
    if (t == NULL)
        return;
    if (too_many)
        refuse(t, CODE_REFUSED_PRIVATE);
    else
        exchange(t);
}

/* Each look-up may hold one of the few threads for as long as a name server is silent, also when its task is gone: a
 * task has one at a time, and a queueId, whose tasks may follow each other quickly, a few. */
static bool may_resolve(const struct code_requester *requester)
{
    size_t max = requester->queue_id == NULL ? CODE_LOOKUPS_UNNAMED_MAX : CODE_LOOKUPS_QUEUE_MAX, count = 0;

    if (requester->lookup != NULL)
        return false;
    SK_LIST_FOREACH (struct code_resolve, other, &requester->broker->lookups, link) {
        if (requester->queue_id == NULL || other->queue_id == NULL)
            count += requester->queue_id == other->queue_id;
        else
            count += strcmp(requester->queue_id, other->queue_id) == 0;
    }
    return count < max;
}

static void resolve(struct code_transfer *t)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct code_requester *requester = t->requester;
    struct code_broker *broker = requester->broker;

    t->address_count = 0;
    if (t->target.literal) {
        t->addresses[t->address_count++] = t->target.address;
        exchange(t);
        return;
    }
    if (broker->seam.resolve != NULL) {
        t->address_count = broker->seam.resolve(broker->seam.arg, t->target.host, t->addresses, CODE_RESOLVED_MAX);
        exchange(t);
        return;
    }
    if (!may_resolve(requester)) {
        sk_list_push_back(&broker->names, &t->naming);
        return;
    }
    t->resolve = calloc(1, sizeof(*t->resolve));
    if (t->resolve != NULL && requester->queue_id != NULL &&
        (t->resolve->queue_id = strdup(requester->queue_id)) == NULL) {
        resolve_free(t->resolve);
        t->resolve = NULL;
    }
    if (t->resolve == NULL) {
        finish(t, "Out of memory");
        return;
    }
    t->resolve->transfer = t;
    t->resolve->broker = broker;
    t->resolve->request.data = t->resolve;
    if (uv_getaddrinfo(sk_loop_uv(broker->options.loop), &t->resolve->request, on_resolved, t->target.host, NULL,
                       &hints) != 0) {
        resolve_free(t->resolve);
        t->resolve = NULL;
        finish(t, "Request failed: could not resolve host");
        return;
    }
    t->resolve->requester = requester;
    requester->lookup = t->resolve;
    sk_list_push_back(&broker->lookups, &t->resolve->link);
    broker->counts.resolving++;
}

/* Who is allowed to ask whom; then the way there. */
static void proceed(struct code_transfer *t)
{
    struct code_broker *broker = t->requester->broker;
    enum code_net_refusal refusal = code_target_judge(&t->target, broker->options.policy, t->requester->queue_id);

    /* A test's permitted address may stand in the URL. */
    if (refusal == CODE_REFUSED_PRIVATE && t->target.literal && broker->seam.permit != NULL &&
        broker->seam.permit(broker->seam.arg, (const struct sockaddr *)&t->target.address))
        refusal = CODE_REFUSED_NOT;
    if (refusal != CODE_REFUSED_NOT) {
        t->why = t->target.why;
        refuse(t, refusal);
        return;
    }
    resolve(t);
}

static bool is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* The next hop. */
static void redirect(struct code_transfer *t)
{
    struct code_target next;
    enum code_net_refusal refusal;

    if (++t->hops > CODE_REDIRECTS_MAX) {
        finish(t, "Too many redirects");
        return;
    }
    refusal = code_target_parse(&next, sk_buf_data(&t->location), sk_buf_len(&t->location), t->target.url);
    if (refusal != CODE_REFUSED_NOT) {
        refuse(t, refusal);
        return;
    }
    if (next.tls != t->target.tls || next.port != t->target.port || strcmp(next.host, t->target.host) != 0)
        t->foreign = true;
    if ((t->status == 303 && strcmp(t->method, "HEAD") != 0) ||
        ((t->status == 301 || t->status == 302) && strcmp(t->method, "POST") == 0)) {
        strcpy(t->method, "GET");
        t->bare = true;
    }
    code_target_fini(&t->target);
    t->target = next;
    code_broker_release(t->requester->broker, t->held);
    t->held = 0;
    sk_buf_clear(&t->data);
    sk_buf_clear(&t->location);
    json_object_clear(t->answer_headers);
    t->status = 0;
    memset(&t->peer, 0, sizeof(t->peer));
    proceed(t);
}

void code_transfer_exchanged(struct code_transfer *t, const char *message)
{
    code_http_stop(t);
    if (message == NULL && t->follow && is_redirect(t->status) && sk_buf_len(&t->location) > 0)
        redirect(t);
    else
        finish(t, message);
}

/* What is known without asking anybody, in the contract's order: count, scheme, body size; then the rest. */
static const char *judge(struct code_transfer *t, const struct code_net_request *request)
{
    struct code_requester *requester = t->requester;
    const char *method = request->method == NULL ? "GET" : request->method;
    struct curl_slist *list;
    enum code_net_refusal refusal;

    if (requester->counts.requests > requester->limits.request_max) {
        t->why = "count";
        return CODE_REQUEST_LIMIT_TEXT;
    }
    if (requester->counts.in_flight > CODE_FLIGHT_MAX) {
        t->why = "flight";
        return "Too many requests in flight";
    }
    refusal = code_target_parse(&t->target, request->url, request->url_length, NULL);
    if (refusal != CODE_REFUSED_PROTOCOL && request->body != NULL &&
        (int64_t)request->body_length > requester->limits.body_bytes) {
        t->why = "body";
        return "Request body too large";
    }
    if (refusal == CODE_REFUSED_NOT && !code_method_allowed(method))
        refusal = CODE_REFUSED_METHOD;
    if (refusal == CODE_REFUSED_NOT) {
        strcpy(t->method, method);
        refusal = code_headers_build(request->headers, (struct code_header_rules){0}, &list);
        curl_slist_free_all(list);
    }
    t->refusal = refusal;
    return refusal == CODE_REFUSED_NOT ? NULL : code_net_refusal_message(refusal);
}

static bool copy_request(struct code_transfer *t, const struct code_net_request *request)
{
    if (request->headers != NULL) {
        t->headers = json_deep_copy(request->headers);
        if (t->headers == NULL)
            return false;
    }
    if (request->body != NULL) {
        t->body = malloc(request->body_length + 1);
        if (t->body == NULL)
            return false;
        memcpy(t->body, request->body, request->body_length);
        t->body_length = request->body_length;
        t->has_body = true;
    }
    t->follow = request->follow_redirects;
    return true;
}

/* The turn after the start: nobody is called back from inside code_transfer_start. */
static void on_begin(void *arg)
{
    struct code_transfer *t = arg;

    if (t->settled)
        finish(t, t->message);
    else
        proceed(t);
}

struct code_transfer *code_transfer_start(struct code_requester *requester, const struct code_net_request *request,
                                          code_transfer_done done, void *arg)
{
    struct code_transfer *t = calloc(1, sizeof(*t));
    int64_t timeout = requester->limits.timeout_ms;
    const char *message;

    if (t == NULL)
        return NULL;
    sk_list_init(&t->link);
    sk_list_init(&t->naming);
    sk_list_init(&t->polls);
    sk_buf_init(&t->data, (size_t)requester->limits.response_bytes + 1);
    sk_buf_init(&t->location, LOCATION_MAX);
    t->requester = requester;
    t->done = done;
    t->arg = arg;
    t->started_us = sk_mono_us(&sk_sched_system);
    t->answer_headers = json_object();
    t->deadline = sk_timer_new(requester->broker->options.loop, on_deadline, t);
    t->begin = sk_timer_new(requester->broker->options.loop, on_begin, t);
    if (t->answer_headers == NULL || t->deadline == NULL || t->begin == NULL) {
        transfer_free(t, NULL);
        return NULL;
    }
    sk_list_push_back(&requester->transfers, &t->link);
    requester->counts.requests++;
    requester->counts.in_flight++;
    requester->broker->counts.requests++;
    requester->broker->counts.in_flight++;
    message = judge(t, request);
    if (message == NULL && !copy_request(t, request))
        message = "Out of memory";
    if (request->timeout_ms > 0 && request->timeout_ms < timeout)
        timeout = request->timeout_ms;
    t->message = message;
    t->settled = message != NULL;
    sk_timer_start(t->begin, 0, 0);
    sk_timer_start(t->deadline, (uint64_t)timeout, 0);
    return t;
}

void code_transfer_cancel(struct code_transfer *t)
{
    struct code_broker *broker = t->requester->broker;

    leave(t);
    broker->counts.cancelled++;
    t->message = "cancelled";
    audit(t, "cancelled");
    transfer_free(t, broker);
}
