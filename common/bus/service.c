/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests from the bus to a worker pool and back; see service.h. */
#include "common/bus/service.h"

#include "common/base/json.h"
#include "common/bus/internal.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUSY_RETRY_MS 500

struct sk_bus_service {
    struct sk_bus_nats *bus;
    struct sk_bus_service_config config;
    char name[64];
    size_t subject_skip; /* bytes of a subject before the method */
    struct sk_subscription *subscription;
    pthread_mutex_t mu;
    struct sk_gate *answered;
    int in_hand;   /* under mu */
    bool stopping; /* under mu */
};

struct request {
    struct sk_bus_service *service;
    int64_t received_us;
    size_t len;
    char method[SK_SERVICE_METHOD_SIZE];
    char reply[SK_SUBJECT_SIZE];
    char body[];
};

static void send_reply(struct sk_bus_service *service, const char *reply, const char *body, size_t len)
{
    struct sk_error err;

    if (sk_bus_publish_raw(service->bus, reply, NULL, body, len, NULL, &err) != 0)
        SK_LOG_DEBUG("reply lost", SK_F("service", service->name), SK_FE(&err));
}

static void send_error(struct sk_bus_service *service, const char *reply, const struct sk_error *error)
{
    json_t *answer = json_pack("{s:b, s:o?}", "ok", 0, "error", sk_json_problem(error));
    size_t len;
    char *text = sk_json_dump(answer, false, &len, NULL);

    if (text != NULL)
        send_reply(service, reply, text, len);
    free(text);
    json_decref(answer);
}

static void send_busy(struct sk_bus_service *service, const char *reply, const char *why)
{
    struct sk_error error;

    (void)sk_fail(&error, SK_ERR_SANDBOX_BUSY, "the %s service has more requests than it can take: %s", service->name,
                  why);
    error.retry_after_ms = BUSY_RETRY_MS;
    sk_metric_add(&sk_bus_metric_service_busy, 0, 0, 1);
    send_error(service, reply, &error);
}

static void request_done(struct request *request)
{
    struct sk_bus_service *service = request->service;

    free(request);
    pthread_mutex_lock(&service->mu);
    service->in_hand--;
    sk_gate_notify(service->bus->sched, service->answered); /* under mu: the last one must not outlive the service */
    pthread_mutex_unlock(&service->mu);
}

static void run_request(void *arg)
{
    struct request *request = arg;
    struct sk_bus_service *service = request->service;
    struct sk_error error;
    char *answer;
    size_t len;

    if (sk_mono_us(service->bus->sched) - request->received_us > SK_SERVICE_AGE_MAX_MS * INT64_C(1000)) {
        send_busy(service, request->reply, "it waited too long");
        request_done(request);
        return;
    }
    answer = service->config.handler(service->config.arg, request->method, request->body, request->len);
    len = answer != NULL ? strlen(answer) : 0;
    if (answer == NULL) {
        (void)sk_fail(&error, SK_ERR_INTERNAL, "the request could not be answered");
        send_error(service, request->reply, &error);
    } else if (len > SK_BUS_REPLY_MAX) {
        (void)sk_fail(&error, SK_ERR_INVALID_REQUEST,
                      "the answer has %zu bytes, a reply may have %d: ask for less at once", len, SK_BUS_REPLY_MAX);
        send_error(service, request->reply, &error);
    } else {
        send_reply(service, request->reply, answer, len);
    }
    free(answer);
    request_done(request);
}

/* Library thread of the subscription: only checks and hands over. */
static void on_request(void *arg, const char *subject, const char *reply, const char *body, size_t len)
{
    struct sk_bus_service *service = arg;
    const char *method = strlen(subject) > service->subject_skip ? subject + service->subject_skip : "";
    struct request *request;
    struct sk_error error;
    bool room;

    if (reply == NULL || !sk_subject_valid(reply) || reply[0] == '$')
        return;
    if (len > SK_BUS_BODY_MAX || strlen(method) >= sizeof(request->method)) {
        (void)sk_fail(&error, SK_ERR_INVALID_REQUEST,
                      len > SK_BUS_BODY_MAX ? "the request is larger than 256 KiB" : "unknown method");
        send_error(service, reply, &error);
        return;
    }
    pthread_mutex_lock(&service->mu);
    room = !service->stopping && service->in_hand < service->config.requests_max;
    service->in_hand += room;
    pthread_mutex_unlock(&service->mu);
    if (!room) {
        send_busy(service, reply, "try again");
        return;
    }
    request = malloc(sizeof(*request) + len + 1);
    if (request == NULL) {
        pthread_mutex_lock(&service->mu);
        service->in_hand--;
        pthread_mutex_unlock(&service->mu);
        return;
    }
    request->service = service;
    request->received_us = sk_mono_us(service->bus->sched);
    request->len = len;
    snprintf(request->method, sizeof(request->method), "%s", method);
    snprintf(request->reply, sizeof(request->reply), "%s", reply);
    memcpy(request->body, body, len);
    request->body[len] = '\0';
    if (sk_workers_submit(service->config.workers, run_request, request) != SK_QUEUE_OK) {
        request_done(request);
        send_busy(service, reply, "try again");
    }
}

int sk_bus_service_start(struct sk_bus_nats *bus, const struct sk_bus_service_config *config,
                         struct sk_bus_service **out, struct sk_error *err)
{
    struct sk_bus_service *service;
    struct sk_subscription *item;
    char subject[SK_SUBJECT_SIZE];

    if (config->service == NULL || strlen(config->service) >= sizeof(service->name) ||
        !sk_subject_valid(config->service) || config->workers == NULL || config->handler == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "service: name, workers and handler are needed");
    service = calloc(1, sizeof(*service));
    if (service == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    service->bus = bus;
    service->config = *config;
    snprintf(service->name, sizeof(service->name), "%s", config->service);
    if (service->config.requests_max <= 0)
        service->config.requests_max = SK_SERVICE_REQUESTS_MAX;
    pthread_mutex_init(&service->mu, NULL);
    service->answered = sk_gate_new(bus->sched);
    service->subject_skip =
        (size_t)snprintf(subject, sizeof(subject), SK_SUBJECT_RPC_FMT, bus->prefix, config->service, ">") - 1;
    item = sk_bus_subscription_new(bus, subject, config->service, sk_bus_on_plain_message, service);
    if (item != NULL) {
        item->on_message = on_request;
        item->unlimited = true; /* each is answered: what we cannot take gets its refusal */
    }
    if (service->answered == NULL) {
        free(item);
        (void)sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        goto failed;
    }
    if (sk_bus_subscription_add(bus, item, err) != 0)
        goto failed;
    service->subscription = item;
    *out = service;
    return 0;

failed:
    if (service->answered != NULL)
        sk_gate_free(bus->sched, service->answered);
    pthread_mutex_destroy(&service->mu);
    free(service);
    return -1;
}

int sk_bus_service_in_hand(struct sk_bus_service *service)
{
    int count;

    pthread_mutex_lock(&service->mu);
    count = service->in_hand;
    pthread_mutex_unlock(&service->mu);
    return count;
}

int sk_bus_service_stop(struct sk_bus_service *service, int64_t timeout_ms)
{
    const struct sk_sched *sched;
    int64_t deadline_us;
    int left;

    if (service == NULL)
        return 0;
    sched = service->bus->sched;
    deadline_us = sk_mono_us(sched) + timeout_ms * 1000;
    if (service->subscription != NULL)
        sk_bus_subscription_end(service->bus, service->subscription);
    service->subscription = NULL;
    pthread_mutex_lock(&service->mu);
    service->stopping = true;
    pthread_mutex_unlock(&service->mu);
    for (;;) {
        uint64_t ticket = sk_gate_ticket(sched, service->answered);
        int64_t left_ms = (deadline_us - sk_mono_us(sched) + 999) / 1000;
        left = sk_bus_service_in_hand(service);
        if (left == 0 || left_ms <= 0)
            break;
        sk_gate_wait(sched, service->answered, ticket, left_ms);
    }
    if (left > 0)
        return left;
    sk_gate_free(sched, service->answered);
    pthread_mutex_destroy(&service->mu);
    free(service);
    return 0;
}
