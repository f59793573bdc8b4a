/* SPDX-License-Identifier: Apache-2.0
 * The NATS bus against a real server: streams, publishing, the pull, the ways a delivery ends, requests. */
#define SK_CHECK_TIMEOUT 60
#include "common/log/log.h"
#include "tests/conformance/bus/fixture.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

static const char *text_at(json_t *root, const char *a, const char *b)
{
    return json_string_value(json_object_get(json_object_get(root, a), b));
}

static json_int_t number_at(json_t *root, const char *a, const char *b)
{
    return json_integer_value(json_object_get(json_object_get(root, a), b));
}

START_TEST(test_setup_is_idempotent_and_keeps_what_others_set)
{
    struct sk_test_server server;
    struct sk_bus bus, second_bus;
    struct sk_bus_nats *nats, *second;
    struct sk_error err;
    json_t *info, *config;
    char *body;

    sk_test_server_start(&server, SK_TEST_NATS, NULL);
    nats = bus_open(&server, NULL, &bus);
    second = bus_open(&server, NULL, &second_bus);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(sk_bus_nats_setup(nats, &err), 0);
        ck_assert_int_eq(sk_bus_nats_setup(second, &err), 0);
    }
    ck_assert(bus.ops->connected(bus.self));
    info = api(nats, "STREAM.INFO." SK_STREAM_COMMANDS, NULL);
    ck_assert_str_eq(text_at(info, "config", "retention"), "workqueue");
    ck_assert_str_eq(text_at(info, "config", "discard"), "new");
    ck_assert_str_eq(text_at(info, "config", "storage"), "file");
    ck_assert_int_eq(number_at(info, "config", "max_age"), INT64_C(86400) * 1000000000);
    ck_assert_int_eq(number_at(info, "config", "max_bytes"), 1 << 30);
    ck_assert_int_eq(number_at(info, "config", "duplicate_window"), INT64_C(120) * 1000000000);
    /* An operator sets what we do not, and breaks what we do. */
    config = json_object_get(info, "config");
    json_object_set_new(config, "description", json_string("kept"));
    json_object_set_new(config, "max_age", json_integer(INT64_C(3600) * 1000000000));
    body = json_dumps(config, 0);
    json_decref(info);
    info = api(nats, "STREAM.UPDATE." SK_STREAM_COMMANDS, body);
    ck_assert_ptr_null(json_object_get(info, "error"));
    json_decref(info);
    free(body);
    ck_assert_int_eq(sk_bus_nats_setup(nats, &err), 0);
    info = api(nats, "STREAM.INFO." SK_STREAM_COMMANDS, NULL);
    ck_assert_str_eq(text_at(info, "config", "description"), "kept");
    ck_assert_int_eq(number_at(info, "config", "max_age"), INT64_C(86400) * 1000000000);
    json_decref(info);

    info = api(nats, "STREAM.INFO." SK_STREAM_EVENTS, NULL);
    ck_assert_str_eq(text_at(info, "config", "retention"), "limits");
    ck_assert_str_eq(text_at(info, "config", "discard"), "old");
    ck_assert_int_eq(number_at(info, "config", "max_age"), INT64_C(7) * 86400 * 1000000000);
    ck_assert_int_eq(number_at(info, "config", "duplicate_window"), INT64_C(600) * 1000000000);
    json_decref(info);
    info = api(nats, "STREAM.INFO." SK_STREAM_DEAD, NULL);
    ck_assert_int_eq(number_at(info, "config", "max_age"), INT64_C(30) * 86400 * 1000000000);
    json_decref(info);
    info = api(nats, "CONSUMER.INFO." SK_STREAM_COMMANDS ".lifecycle", NULL);
    ck_assert_str_eq(text_at(info, "config", "filter_subject"), "sandbox.cmd.lifecycle.>");
    ck_assert_str_eq(text_at(info, "config", "ack_policy"), "explicit");
    ck_assert_int_eq(number_at(info, "config", "ack_wait"), INT64_C(2000000000));
    ck_assert_int_eq(number_at(info, "config", "max_ack_pending"), 20000);
    ck_assert_int_eq(number_at(info, "config", "max_deliver"), -1);
    json_decref(info);
    sk_bus_nats_free(second);
    sk_bus_nats_free(nats);
    sk_bus_nats_library_close();
    sk_test_server_end(&server);
}
END_TEST

START_TEST(test_setup_changes_an_existing_consumer)
{
    struct rig rig;
    struct sk_bus bus;
    struct sk_bus_nats *other = NULL;
    struct sk_bus_nats_config config = {.ack_wait_ms = 7000, .max_ack_pending = 50};
    struct sk_error err;
    json_t *info;

    rig_start(&rig);
    config.url = rig.server.url;
    ck_assert_int_eq(sk_bus_nats_new(&config, sched, &other, &bus, &err), 0);
    ck_assert_msg(sk_bus_nats_setup(other, &err) == 0, "%s", err.message);
    info = api(other, "CONSUMER.INFO." SK_STREAM_COMMANDS ".lifecycle", NULL);
    ck_assert_int_eq(number_at(info, "config", "ack_wait"), INT64_C(7000000000));
    ck_assert_int_eq(number_at(info, "config", "max_ack_pending"), 50);
    json_decref(info);
    sk_bus_nats_free(other);
    rig_end(&rig);
}
END_TEST

START_TEST(test_publish_acked_and_repeats)
{
    enum { COUNT = 3000 }; /* more than one window, fewer than the duplicate map minds */
    static struct sk_message messages[COUNT];
    static char ids[COUNT][32];
    static bool acked[COUNT];
    struct rig rig;
    struct sk_error err;

    rig_start(&rig);
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof(ids[i]), "id-%d", i);
        messages[i] = (struct sk_message){
            .subject = "sandbox.evt.app-1.lifecycle.phase", .message_id = ids[i], .body = "{}", .body_len = 2};
    }
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(rig.bus.ops->publish_acked(rig.bus.self, messages, COUNT, acked, 10000, &err), 0);
        for (int i = 0; i < COUNT; i++)
            ck_assert(acked[i]);
        ck_assert_int_eq(stored(rig.nats, SK_STREAM_EVENTS), COUNT);
    }
    ck_assert_int_eq(rig.bus.ops->publish_acked(rig.bus.self, messages, 0, acked, 1000, &err), 0);
    rig_end(&rig);
}
END_TEST

START_TEST(test_publish_refused_does_not_stop_the_others)
{
    struct rig rig;
    struct sk_error err;
    static char big[1100 * 1024];
    bool acked[6];
    int64_t start;
    struct sk_message messages[6] = {
        {.subject = "sandbox.evt.a.b", .body = "1", .body_len = 1},
        {.subject = "sandbox.evt.a b", .body = "2", .body_len = 1},
        {.subject = "sandbox.evt.big", .body = big, .body_len = sizeof(big)},
        {.subject = "sandbox.evt.*", .body = "4", .body_len = 1},
        {.subject = "sandbox.evt.a\r\nPUB sandbox.evt.forged 0", .body = "5", .body_len = 1},
        {.subject = "sandbox.evt.a.b", .body = "6", .body_len = 1},
    };

    rig_start(&rig);
    memset(big, 'x', sizeof(big));
    ck_assert_int_eq(rig.bus.ops->publish_acked(rig.bus.self, messages, 6, acked, 5000, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert(acked[0] && !acked[1] && !acked[2] && !acked[3] && !acked[4] && acked[5]);
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_EVENTS), 2);
    /* No stream takes it: it is tried until the time-out, not longer, and not in a spin. */
    messages[0].subject = "elsewhere.nobody";
    start = sk_mono_us(sched);
    ck_assert_int_eq(rig.bus.ops->publish_acked(rig.bus.self, messages, 1, acked, 600, &err), -1);
    ck_assert(!acked[0]);
    ck_assert_int_ge(sk_mono_us(sched) - start, 500000);
    ck_assert_int_le(sk_mono_us(sched) - start, 2500000);
    rig_end(&rig);
}
END_TEST

START_TEST(test_full_stream_refuses)
{
    struct sk_test_server server;
    struct sk_bus bus;
    struct sk_bus_nats *nats = NULL;
    struct sk_bus_nats_config config = {.commands_max_bytes = 4096};
    struct sk_message message = {.subject = "sandbox.cmd.lifecycle.stop.app-0123456789abcdef"};
    static char body[3000];
    struct sk_error err;
    bool acked;

    sk_test_server_start(&server, SK_TEST_NATS, NULL);
    sk_log_set_level(SK_LOG_LEVEL_ERROR);
    config.url = server.url;
    ck_assert_int_eq(sk_bus_nats_new(&config, sched, &nats, &bus, &err), 0);
    ck_assert_int_eq(sk_bus_nats_setup(nats, &err), 0);
    memset(body, 'x', sizeof(body));
    message.body = body;
    message.body_len = sizeof(body);
    ck_assert_int_eq(bus.ops->publish_acked(bus.self, &message, 1, &acked, 3000, &err), 0);
    ck_assert_int_eq(bus.ops->publish_acked(bus.self, &message, 1, &acked, 3000, &err), -1);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert(!acked);
    sk_bus_nats_free(nats);
    sk_bus_nats_library_close();
    sk_test_server_end(&server);
}
END_TEST

START_TEST(test_pull_order_headers_and_double_ack)
{
    struct rig rig;
    struct sk_error err;
    struct sk_header headers[] = {{(char *)(uintptr_t) "Sandbox-Reply-To", (char *)(uintptr_t) "_INBOX.me"},
                                  {(char *)(uintptr_t) "traceparent", (char *)(uintptr_t) "00-1-2-01"}};
    struct sk_message message = {.subject = "sandbox.cmd.lifecycle.ensure.app-0123456789abcdef",
                                 .message_id = "m1",
                                 .headers = headers,
                                 .header_count = 2,
                                 .body = "{\"id\":\"1\"}",
                                 .body_len = 10};
    struct sk_delivery *first;
    bool acked;

    rig_start(&rig);
    ck_assert_int_eq(rig.bus.ops->publish_acked(rig.bus.self, &message, 1, &acked, 5000, &err), 0);
    for (int i = 1; i < 50; i++) {
        char body[16];
        snprintf(body, sizeof(body), "%d", i);
        put(&rig.bus, "sandbox.cmd.lifecycle.stop.app-0123456789abcdef", NULL, body);
    }
    collector_wait(&rig.got, 50);
    first = rig.got.items[0];
    ck_assert_str_eq(first->subject, message.subject);
    ck_assert_str_eq(first->body, "{\"id\":\"1\"}");
    ck_assert_uint_eq(first->body_len, 10);
    ck_assert_ptr_eq(first->raw_body, first->body);
    ck_assert_str_eq(sk_delivery_header(first, "sandbox-reply-TO"), "_INBOX.me");
    ck_assert_str_eq(sk_delivery_header(first, "traceparent"), "00-1-2-01");
    ck_assert_str_eq(sk_delivery_header(first, "nats-msg-id"), "m1");
    ck_assert_ptr_null(sk_delivery_header(first, "absent"));
    ck_assert(!first->headers_cut);
    ck_assert_uint_eq(first->delivered, 1);
    for (int i = 0; i < 50; i++)
        ck_assert_uint_eq(rig.got.items[i]->stream_sequence, (uint64_t)i + 1);
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, first, &err), 0);
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_COMMANDS), 49); /* confirmed = gone */
    ck_assert_int_eq(rig.bus.ops->ack_many(rig.bus.self, &rig.got.items[1], 49, &err), 0);
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_COMMANDS), 0);
    rig_end(&rig);
}
END_TEST

START_TEST(test_many_deliveries)
{
    enum { COUNT = 3000 };
    static struct sk_message messages[COUNT];
    static bool acked[COUNT];
    struct rig rig;
    struct sk_error err;

    rig_start(&rig);
    for (int i = 0; i < COUNT; i++)
        messages[i] = (struct sk_message){
            .subject = "sandbox.cmd.lifecycle.touch.app-0123456789abcdef", .body = "{}", .body_len = 2};
    ck_assert_int_eq(rig.bus.ops->publish_acked(rig.bus.self, messages, COUNT, acked, 10000, &err), 0);
    collector_wait(&rig.got, COUNT);
    ck_assert_int_eq(rig.bus.ops->ack_many(rig.bus.self, rig.got.items, COUNT, &err), 0);
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_COMMANDS), 0);
    ck_assert(collector_stays(&rig.got, COUNT, 100));
    rig_end(&rig);
}
END_TEST

START_TEST(test_nak_term_in_progress)
{
    struct rig rig;
    struct sk_error err;
    struct sk_delivery *delivery;
    int64_t start;

    rig_start(&rig);
    put(&rig.bus, "sandbox.cmd.lifecycle.stop.app-0123456789abcdef", NULL, "nak");
    delivery = collector_wait(&rig.got, 1);
    start = sk_mono_us(sched);
    ck_assert_int_eq(rig.bus.ops->nak(rig.bus.self, delivery, 500, &err), 0);
    delivery = collector_wait(&rig.got, 2);
    ck_assert_int_ge(sk_mono_us(sched) - start, 450000);
    ck_assert_int_le(sk_mono_us(sched) - start, 1900000); /* not AckWait */
    ck_assert_uint_eq(delivery->delivered, 2);
    ck_assert_int_eq(rig.bus.ops->nak(rig.bus.self, delivery, 0, &err), 0);
    delivery = collector_wait(&rig.got, 3);
    ck_assert_int_eq(rig.bus.ops->term(rig.bus.self, delivery, &err), 0);
    ck_assert(stored_becomes(rig.nats, SK_STREAM_COMMANDS, 0));

    /* AckWait is 2 s: held for 5 s with in-progress every half a second it comes once, without it comes again. */
    put(&rig.bus, "sandbox.cmd.lifecycle.stop.app-0123456789abcdef", NULL, "hold");
    delivery = collector_wait(&rig.got, 4);
    for (int i = 0; i < 10; i++) {
        rig.bus.ops->in_progress(rig.bus.self, delivery);
        ck_assert(collector_stays(&rig.got, 4, 500));
    }
    ck_assert_uint_eq(collector_wait(&rig.got, 5)->delivered, 2);
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, rig.got.items[4], &err), 0);
    sk_delivery_drop(delivery);
    ck_assert(stored_becomes(rig.nats, SK_STREAM_COMMANDS, 0));
    rig_end(&rig);
}
END_TEST

START_TEST(test_want_is_a_limit)
{
    struct rig rig;
    struct sk_error err;

    rig_start_want(&rig, 0);
    for (int i = 0; i < 10; i++)
        put(&rig.bus, "sandbox.cmd.lifecycle.stop.app-0123456789abcdef", NULL, "y");
    ck_assert(collector_stays(&rig.got, 0, 300));
    atomic_store(&rig.got.want, 3);
    collector_wait(&rig.got, 3);
    ck_assert(collector_stays(&rig.got, 3, 300));
    atomic_store(&rig.got.want, 7);
    collector_wait(&rig.got, 10);
    ck_assert_int_eq(rig.bus.ops->ack_many(rig.bus.self, rig.got.items, 10, &err), 0);
    rig_end(&rig);
}
END_TEST

START_TEST(test_two_replicas_share_a_consumer_and_stop_hands_over)
{
    struct rig rig;
    struct sk_bus bus;
    struct sk_bus_nats *other;
    static struct collector got;
    struct sk_error err;
    int mine, theirs;

    rig_start(&rig);
    collector_init(&got);
    other = bus_open(&rig.server, NULL, &bus);
    ck_assert_int_eq(
        sk_bus_nats_pull(other, "lifecycle", "sandbox.cmd.lifecycle.>", collector_want, collector_add, &got, &err), 0);
    ck_assert_int_eq(sk_bus_nats_wait(other, 5000, &err), 0);
    for (int i = 0; i < 400; i++)
        put(&rig.bus, "sandbox.cmd.lifecycle.stop.app-0123456789abcdef", NULL, "x");
    for (int i = 0; i < 200 && collector_count(&rig.got) + collector_count(&got) < 400; i++)
        sk_sleep_ms(sched, 10);
    mine = collector_count(&rig.got);
    theirs = collector_count(&got);
    ck_assert_int_eq(mine + theirs, 400);
    ck_assert_int_gt(theirs, 0);
    ck_assert_int_eq(rig.bus.ops->ack_many(rig.bus.self, rig.got.items, mine, &err), 0);
    ck_assert_int_eq(bus.ops->ack_many(bus.self, got.items, theirs, &err), 0);
    /* One stops while a request of its is out: nothing may be stuck with it until AckWait. */
    sk_bus_nats_pull_stop(other);
    for (int i = 0; i < 50; i++)
        put(&rig.bus, "sandbox.cmd.lifecycle.stop.app-0123456789abcdef", NULL, "z");
    collector_wait(&rig.got, mine + 50);
    ck_assert_int_eq(collector_count(&got), theirs);
    ck_assert_int_eq(rig.bus.ops->ack_many(rig.bus.self, rig.got.items + mine, 50, &err), 0);
    sk_bus_nats_free(other);
    pthread_mutex_destroy(&got.mu);
    rig_end(&rig);
}
END_TEST

static void answer(void *arg, const char *subject, const char *reply, const char *body, size_t len)
{
    struct sk_bus *bus = arg;
    struct sk_message message = {.subject = reply, .body = body, .body_len = len};

    (void)subject;
    if (len > 0)
        ck_assert_int_eq(bus->ops->publish(bus->self, &message, NULL), 0);
}

START_TEST(test_requests)
{
    struct rig rig;
    struct sk_error err;
    char *reply = NULL;
    size_t len = 0;
    int64_t start;

    rig_start(&rig);
    ck_assert_int_eq(sk_bus_nats_subscribe(rig.nats, "echo.*", "group", answer, &rig.bus, &err), 0);
    ck_assert_int_eq(sk_bus_nats_request(rig.nats, "echo.one", "hello", 5, 3000, &reply, &len, &err), 0);
    ck_assert_str_eq(reply, "hello");
    ck_assert_uint_eq(len, 5);
    free(reply);
    start = sk_mono_us(sched);
    ck_assert_int_eq(sk_bus_nats_request(rig.nats, "nobody.home", "", 0, 3000, &reply, &len, &err), -1);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert_int_le(sk_mono_us(sched) - start, 1500000); /* the server says so at once */
    ck_assert_int_eq(sk_bus_nats_request(rig.nats, "echo.silent", "", 0, 200, &reply, &len, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_DEADLINE_EXCEEDED);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert_ptr_null(reply);
    ck_assert_int_eq(sk_bus_nats_request(rig.nats, "not a subject", "", 0, 200, &reply, &len, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    ck_assert_int_eq(sk_bus_nats_drain(rig.nats, 2000), 0);
    ck_assert_msg(sk_bus_nats_delete_message(rig.nats, SK_STREAM_COMMANDS, 77, &err) == 0, "%s",
                  err.message); /* not there: fine */
    rig_end(&rig);
}
END_TEST

static void *publisher(void *arg)
{
    struct rig *rig = arg;

    for (int i = 0; i < 100; i++)
        put(&rig->bus, "sandbox.evt.app-1.lifecycle.phase", NULL, "{}");
    return NULL;
}

START_TEST(test_many_threads)
{
    struct rig rig;
    pthread_t threads[8];

    rig_start(&rig);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, publisher, &rig), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_EVENTS), 800);
    rig_end(&rig);
}
END_TEST

SK_CHECK_MAIN("bus", test_setup_is_idempotent_and_keeps_what_others_set, test_setup_changes_an_existing_consumer,
              test_publish_acked_and_repeats, test_publish_refused_does_not_stop_the_others, test_full_stream_refuses,
              test_pull_order_headers_and_double_ack, test_many_deliveries, test_nak_term_in_progress,
              test_want_is_a_limit, test_two_replicas_share_a_consumer_and_stop_hands_over, test_requests,
              test_many_threads)
