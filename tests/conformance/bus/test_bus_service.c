/* SPDX-License-Identifier: Apache-2.0
 * The request/reply service: answers, bounds and their typed errors, queue groups, stopping. */
#define SK_CHECK_TIMEOUT 60
#include "common/bus/service.h"
#include "tests/conformance/bus/fixture.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

struct served {
    struct sk_workers *workers;
    struct sk_bus_service *service;
    atomic_int running, calls;
    atomic_bool hold;
};

static char *handler(void *arg, const char *method, const char *body, size_t len)
{
    struct served *served = arg;
    char *out = NULL;

    atomic_fetch_add(&served->calls, 1);
    atomic_fetch_add(&served->running, 1);
    while (atomic_load(&served->hold))
        sk_sleep_ms(sched, 2);
    if (strcmp(method, "fail") == 0) {
        /* NULL */
    } else if (strcmp(method, "big") == 0) {
        out = malloc(SK_BUS_REPLY_MAX + 2);
        memset(out, ' ', SK_BUS_REPLY_MAX + 1);
        out[SK_BUS_REPLY_MAX + 1] = '\0';
    } else if (asprintf(&out, "{\"ok\":true,\"data\":{\"method\":\"%s\",\"len\":%zu,\"body\":%s}}", method, len,
                        len > 0 ? body : "null") < 0) {
        out = NULL;
    }
    atomic_fetch_sub(&served->running, 1);
    return out;
}

static void serve(struct rig *rig, struct sk_bus_nats *nats, struct served *served, int threads, int requests_max)
{
    struct sk_workers_options options = {.name = "rpc", .max_threads = (size_t)threads, .queue_capacity = 64};
    struct sk_bus_service_config config = {
        .service = "lifecycle", .requests_max = requests_max, .handler = handler, .arg = served};
    struct sk_error err;

    memset(served, 0, sizeof(*served));
    served->workers = sk_workers_new(&options, &err);
    ck_assert_ptr_nonnull(served->workers);
    config.workers = served->workers;
    ck_assert_msg(sk_bus_service_start(nats, &config, &served->service, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sk_bus_nats_drain(nats, 2000), 0); /* the subscription is there */
    (void)rig;
}

static json_t *ask(struct rig *rig, const char *method, const char *body, size_t len)
{
    char subject[256], *reply;
    size_t reply_len;
    struct sk_error err;
    json_t *json;

    snprintf(subject, sizeof(subject), "sandbox.rpc.lifecycle.%s", method);
    ck_assert_msg(sk_bus_nats_request(rig->nats, subject, body, len, 5000, &reply, &reply_len, &err) == 0, "%s",
                  err.message);
    json = json_loadb(reply, reply_len, 0, NULL);
    ck_assert_ptr_nonnull(json);
    free(reply);
    return json;
}

static const char *code_of(json_t *answer)
{
    ck_assert(json_is_false(json_object_get(answer, "ok")));
    return json_string_value(json_object_get(json_object_get(answer, "error"), "code"));
}

START_TEST(test_answers_and_typed_errors)
{
    struct rig rig;
    struct served served;
    json_t *answer;
    static char big[SK_BUS_BODY_MAX + 1];
    char method[100];

    rig_start(&rig);
    serve(&rig, rig.nats, &served, 2, 0);
    answer = ask(&rig, "get", "{\"a\":1}", 7);
    ck_assert(json_is_true(json_object_get(answer, "ok")));
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(answer, "data"), "method")), "get");
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(answer, "data"), "len")), 7);
    json_decref(answer);
    answer = ask(&rig, "file.list", "", 0);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(answer, "data"), "method")), "file.list");
    json_decref(answer);
    answer = ask(&rig, "fail", "", 0);
    ck_assert_str_eq(code_of(answer), "internal");
    json_decref(answer);
    answer = ask(&rig, "big", "", 0);
    ck_assert_str_eq(code_of(answer), "invalid_request");
    json_decref(answer);
    memset(big, ' ', sizeof(big));
    answer = ask(&rig, "get", big, sizeof(big));
    ck_assert_str_eq(code_of(answer), "invalid_request");
    json_decref(answer);
    memset(method, 'm', sizeof(method));
    method[sizeof(method) - 1] = '\0';
    answer = ask(&rig, method, "", 0);
    ck_assert_str_eq(code_of(answer), "invalid_request");
    json_decref(answer);
    ck_assert_int_eq(atomic_load(&served.calls), 4);
    ck_assert_int_eq(sk_bus_service_stop(served.service, 2000), 0);
    sk_workers_free(served.workers);
    rig_end(&rig);
}
END_TEST

struct asker {
    struct rig *rig;
    bool busy, ok;
};

static void *ask_one(void *arg)
{
    struct asker *asker = arg;
    json_t *answer = ask(asker->rig, "get", "", 0);

    asker->ok = json_is_true(json_object_get(answer, "ok"));
    if (!asker->ok) {
        json_t *error = json_object_get(answer, "error");
        asker->busy = strcmp(code_of(answer), "sandbox_busy") == 0 &&
                      json_is_true(json_object_get(error, "retryable")) &&
                      json_integer_value(json_object_get(error, "retryAfterMs")) > 0;
    }
    json_decref(answer);
    return NULL;
}

static bool two_running(void *arg)
{
    return atomic_load(&((struct served *)arg)->running) == 2;
}

static bool four_in_hand(void *arg)
{
    return sk_bus_service_in_hand(((struct served *)arg)->service) == 4;
}

START_TEST(test_full_queue_is_busy_at_once)
{
    struct rig rig;
    struct served served;
    struct asker askers[6];
    pthread_t threads[6];

    rig_start(&rig);
    serve(&rig, rig.nats, &served, 2, 4);
    atomic_store(&served.hold, true);
    for (int i = 0; i < 4; i++) {
        askers[i] = (struct asker){.rig = &rig};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_one, &askers[i]), 0);
    }
    ck_assert(sk_test_within(5000, two_running, &served));
    ck_assert(sk_test_within(5000, four_in_hand, &served));
    for (int i = 4; i < 6; i++) {
        askers[i] = (struct asker){.rig = &rig};
        ask_one(&askers[i]);
        ck_assert(askers[i].busy && !askers[i].ok);
    }
    ck_assert_int_eq(sk_bus_service_stop(served.service, 100), 4); /* still running: not freed */
    atomic_store(&served.hold, false);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(askers[i].ok);
    }
    ck_assert_int_eq(sk_bus_service_stop(served.service, 5000), 0);
    sk_workers_free(served.workers);
    rig_end(&rig);
}
END_TEST

START_TEST(test_two_replicas_answer_once)
{
    struct rig rig;
    struct sk_bus bus;
    struct sk_bus_nats *other;
    struct served mine, theirs;

    rig_start(&rig);
    other = bus_open(&rig.server, NULL, &bus);
    ck_assert_int_eq(sk_bus_nats_wait(other, 5000, NULL), 0);
    serve(&rig, rig.nats, &mine, 2, 0);
    serve(&rig, other, &theirs, 2, 0);
    for (int i = 0; i < 100; i++)
        json_decref(ask(&rig, "get", "", 0));
    ck_assert_int_eq(atomic_load(&mine.calls) + atomic_load(&theirs.calls), 100);
    ck_assert_int_gt(atomic_load(&theirs.calls), 0);
    /* One leaves: the other answers everything. */
    ck_assert_int_eq(sk_bus_service_stop(mine.service, 2000), 0);
    for (int i = 0; i < 20; i++)
        json_decref(ask(&rig, "get", "", 0));
    ck_assert_int_eq(atomic_load(&mine.calls) + atomic_load(&theirs.calls), 120);
    /* A message that nobody waits for is a hint, not a request. */
    {
        struct sk_message hint = {.subject = "sandbox.rpc.lifecycle.wake", .body = "", .body_len = 0};
        ck_assert_int_eq(rig.bus.ops->publish(rig.bus.self, &hint, NULL), 0);
        json_decref(ask(&rig, "get", "", 0));
        ck_assert_int_eq(atomic_load(&mine.calls) + atomic_load(&theirs.calls), 121);
    }
    ck_assert_int_eq(sk_bus_service_stop(theirs.service, 2000), 0);
    sk_workers_free(mine.workers);
    sk_workers_free(theirs.workers);
    sk_bus_nats_free(other);
    rig_end(&rig);
}
END_TEST

SK_CHECK_MAIN("bus-service", test_answers_and_typed_errors, test_full_queue_is_busy_at_once,
              test_two_replicas_answer_once)
