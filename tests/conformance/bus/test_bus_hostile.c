/* SPDX-License-Identifier: Apache-2.0
 * What strangers can put on the command stream: odd header blocks, status look-alikes, huge bodies, long subjects,
 * subjects that no consumer takes; and what copied headers could do to the stream that the copy goes to. */
#define SK_CHECK_TIMEOUT 60
#include "tests/conformance/bus/fixture.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STOP "sandbox.cmd.lifecycle.stop.app-0123456789abcdef"

static void publish_block(int fd, const char *block, const char *body)
{
    raw_publish(fd, STOP, NULL, block, strlen(block), body, strlen(body));
}

START_TEST(test_header_blocks)
{
    static const struct {
        const char *block;
        const char *reply_to, *traceparent; /* expected; NULL = absent */
        bool cut;
    } rows[] = {
        {"NATS/1.0\r\nSandbox-Reply-To: _INBOX.a\r\ntraceparent: 00-a\r\n\r\n", "_INBOX.a", "00-a", false},
        /* A header without a value must not swallow the next one. */
        {"NATS/1.0\r\ntracestate:\r\nSandbox-Reply-To: _INBOX.b\r\n\r\n", "_INBOX.b", NULL, false},
        {"NATS/1.0\r\nSandbox-Reply-To: _INBOX.c\r\ntracestate: \r\n\r\n", "_INBOX.c", NULL, false},
        {"NATS/1.0\r\nX-A:\r\n\r\n", NULL, NULL, false},
        /* A line that is no header does not cost the others. */
        {"NATS/1.0\r\nnonsense\r\nSandbox-Reply-To: _INBOX.d\r\n\r\n", "_INBOX.d", NULL, true},
        {"NATS/1.0\r\n: nameless\r\nSandbox-Reply-To: _INBOX.e\r\n\r\n", "_INBOX.e", NULL, true},
        {"NATS/1.0\r\n folded\r\nSandbox-Reply-To: _INBOX.f\r\n\r\n", "_INBOX.f", NULL, true},
        /* Case of names does not matter; the first of several counts. */
        {"NATS/1.0\r\nsandbox-reply-to: _INBOX.g\r\nTRACEPARENT: 00-g\r\n\r\n", "_INBOX.g", "00-g", false},
        {"garbage without prefix\r\n\r\n", NULL, NULL, true},
        {"NATS/1.0", NULL, NULL, true},
        {"NATS/1.0\r\nSandbox-Reply-To: _INBOX.h", "_INBOX.h", NULL, false},
        {"NATS/1.0\r\n\r\n", NULL, NULL, false},
        /* Looks like a status of the server, is a command all the same. */
        {"NATS/1.0 503\r\n\r\n", NULL, NULL, false},
        {"NATS/1.0 100 Idle Heartbeat\r\nSandbox-Reply-To: _INBOX.i\r\n\r\n", "_INBOX.i", NULL, false},
        {"NATS/1.0 409 Consumer Deleted\r\n\r\n", NULL, NULL, false},
    };
    struct rig rig;
    struct sk_error err;
    int count = sizeof(rows) / sizeof(rows[0]), fd;

    rig_start(&rig);
    fd = raw_open(rig.server.port);
    for (int i = 0; i < count; i++) {
        struct sk_delivery *delivery;
        publish_block(fd, rows[i].block, i % 2 ? "" : "{}");
        delivery = collector_wait(&rig.got, i + 1);
        ck_assert_uint_eq(delivery->body_len, i % 2 ? 0 : 2);
        ck_assert_ptr_nonnull(delivery->body);
        ck_assert_msg((sk_delivery_header(delivery, "Sandbox-Reply-To") != NULL) == (rows[i].reply_to != NULL),
                      "row %d", i);
        if (rows[i].reply_to != NULL)
            ck_assert_str_eq(sk_delivery_header(delivery, "Sandbox-Reply-To"), rows[i].reply_to);
        if (rows[i].traceparent != NULL)
            ck_assert_str_eq(sk_delivery_header(delivery, "traceparent"), rows[i].traceparent);
        ck_assert_msg(delivery->headers_cut == rows[i].cut, "row %d", i);
        ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, delivery, &err), 0);
    }
    /* The pull still works, on the same connection. */
    put(&rig.bus, STOP, NULL, "fine");
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, collector_wait(&rig.got, count + 1), &err), 0);
    close(fd);
    rig_end(&rig);
}
END_TEST

START_TEST(test_header_floods_and_values)
{
    struct rig rig;
    struct sk_error err;
    struct sk_delivery *delivery;
    static char block[200 * 1024];
    size_t used = 0;
    int fd;

    rig_start(&rig);
    fd = raw_open(rig.server.port);
    used += (size_t)snprintf(block + used, sizeof(block) - used, "NATS/1.0\r\n");
    for (int i = 0; i < 2000; i++)
        used += (size_t)snprintf(block + used, sizeof(block) - used, "X-%d: %d\r\n", i, i);
    used += (size_t)snprintf(block + used, sizeof(block) - used, "Sandbox-Reply-To: _INBOX.last\r\n\r\n");
    raw_publish(fd, STOP, NULL, block, used, "{}", 2);
    delivery = collector_wait(&rig.got, 1);
    ck_assert_str_eq(sk_delivery_header(delivery, "Sandbox-Reply-To"), "_INBOX.last");
    ck_assert_int_eq(delivery->header_count, SK_BUS_HEADERS_MAX);
    ck_assert(delivery->headers_cut);
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, delivery, &err), 0);

    used = (size_t)snprintf(block, sizeof(block), "NATS/1.0\r\ntraceparent: ");
    memset(block + used, 'v', 50000); /* the server takes 64 KiB of headers */
    used += 50000;
    used += (size_t)snprintf(block + used, sizeof(block) - used,
                             "\r\nSandbox-Reply-To: a\tb\x01"
                             "c\r\n\r\n");
    raw_publish(fd, STOP, NULL, block, used, "{}", 2);
    delivery = collector_wait(&rig.got, 2);
    ck_assert_uint_eq(strlen(sk_delivery_header(delivery, "traceparent")), SK_BUS_HEADER_VALUE_MAX);
    ck_assert_str_eq(sk_delivery_header(delivery, "Sandbox-Reply-To"), "a\tb");
    ck_assert(delivery->headers_cut);
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, delivery, &err), 0);

    /* NUL bytes inside a block. */
    memcpy(block, "NATS/1.0\r\nSandbox-Reply-To: x\0y\r\ntraceparent: z\r\n\r\n", 52);
    raw_publish(fd, STOP, NULL, block, 52, "{}", 2);
    delivery = collector_wait(&rig.got, 3);
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, delivery, &err), 0);
    close(fd);
    rig_end(&rig);
}
END_TEST

START_TEST(test_oversize_and_odd_bodies)
{
    struct rig rig;
    struct sk_error err;
    struct sk_delivery *delivery;
    static char big[SK_BUS_BODY_MAX + 1];
    int fd;

    rig_start(&rig);
    fd = raw_open(rig.server.port);
    memset(big, 'b', sizeof(big));
    raw_publish(fd, STOP, NULL, NULL, 0, big, SK_BUS_BODY_MAX);
    delivery = collector_wait(&rig.got, 1);
    ck_assert_ptr_nonnull(delivery->body);
    ck_assert_uint_eq(strlen(delivery->body), SK_BUS_BODY_MAX);
    raw_publish(fd, STOP, NULL, NULL, 0, big, SK_BUS_BODY_MAX + 1);
    delivery = collector_wait(&rig.got, 2);
    ck_assert_ptr_null(delivery->body);
    ck_assert_uint_eq(delivery->body_len, SK_BUS_BODY_MAX + 1);
    ck_assert_int_eq(memcmp(delivery->raw_body, big, sizeof(big)), 0); /* for the dead letter */
    raw_publish(fd, STOP, NULL, NULL, 0, "a\0b", 3);
    delivery = collector_wait(&rig.got, 3);
    ck_assert_uint_eq(delivery->body_len, 3);
    ck_assert_int_eq(memcmp(delivery->body, "a\0b", 4), 0);
    raw_publish(fd, STOP, NULL, NULL, 0, "", 0);
    delivery = collector_wait(&rig.got, 4);
    ck_assert_str_eq(delivery->body, "");
    ck_assert_int_eq(rig.bus.ops->ack_many(rig.bus.self, rig.got.items, 4, &err), 0);
    close(fd);
    rig_end(&rig);
}
END_TEST

START_TEST(test_long_subjects)
{
    struct rig rig;
    struct sk_error err;
    struct sk_delivery *delivery;
    char subject[1000], dead[SK_SUBJECT_SIZE];
    int fd;

    rig_start(&rig);
    fd = raw_open(rig.server.port);
    for (int dot = 440, seen = 1; dot < 520; dot += 7, seen++) {
        memset(subject, 'x', sizeof(subject));
        memcpy(subject, "sandbox.cmd.lifecycle.stop.", 27);
        subject[dot] = '.';
        subject[900] = '\0';
        raw_publish(fd, subject, NULL, NULL, 0, "{}", 2);
        delivery = collector_wait(&rig.got, seen);
        ck_assert(sk_subject_valid(delivery->subject));
        ck_assert_int_lt(snprintf(dead, sizeof(dead), "sandbox.dead.%s", delivery->subject + 12), (int)sizeof(dead));
        put(&rig.bus, dead, NULL, "{}");
        ck_assert_int_eq(rig.bus.ops->term(rig.bus.self, delivery, &err), 0);
    }
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_COMMANDS), 0);
    close(fd);
    rig_end(&rig);
}
END_TEST

static struct sk_header header(const char *name, const char *value)
{
    return (struct sk_header){(char *)(uintptr_t)name, (char *)(uintptr_t)value};
}

START_TEST(test_copied_headers_cannot_steer)
{
    struct rig rig;
    struct sk_error err;
    struct sk_header headers[] = {
        header("Nats-Rollup", "all"),
        header("Nats-Expected-Stream", "OTHER"),
        header("Nats-Msg-Id", "copied"),
        header("Sandbox-Reason", "line\r\nForged: yes\r\n\r\nbody"),
        header("bad name", "x"),
        header("bad\r\nname", "x"),
        header("", "x"),
        header("X-Empty", ""),
        header("X-Plain", "kept"),
    };
    struct sk_message message = {.subject = "sandbox.dead.lifecycle.stop.app-1",
                                 .message_id = "ours",
                                 .headers = headers,
                                 .header_count = sizeof(headers) / sizeof(headers[0]),
                                 .body = "{}",
                                 .body_len = 2};
    bool acked;
    json_t *answer;
    const char *encoded;
    char expect[512];

    rig_start(&rig);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(rig.bus.ops->publish_acked(rig.bus.self, &message, 1, &acked, 5000, &err) == 0, "%s",
                      err.message);
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_DEAD), 1); /* our id counts, not the copied one */
    answer = api(rig.nats, "STREAM.MSG.GET." SK_STREAM_DEAD, "{\"seq\":1}");
    encoded = json_string_value(json_object_get(json_object_get(answer, "message"), "hdrs"));
    ck_assert_ptr_nonnull(encoded);
    /* Decoded by hand here, so that the test does not trust what it tests. */
    {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        size_t used = 0;
        unsigned bits = 0, have = 0;
        for (const char *c = encoded; *c != '\0' && *c != '=' && used < sizeof(expect) - 1; c++) {
            bits = bits << 6 | (unsigned)(strchr(digits, *c) - digits);
            have += 6;
            if (have >= 8) {
                have -= 8;
                expect[used++] = (char)(bits >> have & 0xff);
            }
        }
        expect[used] = '\0';
    }
    ck_assert_ptr_nonnull(strstr(expect, "\r\nSandbox-Original-Nats-Rollup: all\r\n"));
    ck_assert_ptr_nonnull(strstr(expect, "\r\nSandbox-Original-Nats-Msg-Id: copied\r\n"));
    ck_assert_ptr_nonnull(strstr(expect, "\r\nNats-Msg-Id: ours\r\n"));
    ck_assert_ptr_nonnull(strstr(expect, "\r\nX-Plain: kept\r\n"));
    ck_assert_ptr_nonnull(strstr(expect, "\r\nSandbox-Reason: line  Forged: yes    body\r\n"));
    ck_assert_ptr_null(strstr(expect, "\r\nForged"));
    ck_assert_ptr_null(strstr(expect, "bad"));
    ck_assert_ptr_null(strstr(expect, "X-Empty"));
    json_decref(answer);
    rig_end(&rig);
}
END_TEST

/* The dead letter of the largest and worst message that a server takes must itself be publishable: else the command
 * could never be given up. */
START_TEST(test_dead_letter_of_the_worst_message)
{
    static char block[64 * 1024], big[1024 * 1024];
    static const char *const limits[] = {NULL, "70000"};
    char config[300];

    for (size_t round = 0; round < 2; round++) {
        struct rig rig;
        struct sk_error err;
        struct sk_delivery *delivery;
        struct sk_header headers[SK_BUS_HEADERS_MAX + 2];
        struct sk_message dead = {.subject = "sandbox.dead.x", .message_id = "d", .headers = headers};
        size_t used = 0, body = round == 0 ? sizeof(big) : 70000;
        bool acked;
        int fd;

        rig_start(&rig);
        if (limits[round] != NULL) {
            FILE *file;
            snprintf(config, sizeof(config), "%s.conf", rig.server.dir);
            file = fopen(config, "we");
            ck_assert_ptr_nonnull(file);
            fprintf(file, "max_payload: %s\n", limits[round]);
            fclose(file);
            sk_test_server_kill(&rig.server);
            snprintf(rig.server.extra, sizeof(rig.server.extra), "-c %s", config);
            sk_test_server_again(&rig.server);
            put(&rig.bus, "sandbox.evt.x", "up", "{}"); /* connected again, to the new server */
        }
        fd = raw_open(rig.server.port);
        used += (size_t)snprintf(block + used, sizeof(block) - used, "NATS/1.0\r\n");
        for (int i = 0; i < 31; i++) {
            used += (size_t)snprintf(block + used, sizeof(block) - used, "Nats-%d-", i);
            memset(block + used, 'n', 980);
            used += 980;
            used += (size_t)snprintf(block + used, sizeof(block) - used, ": ");
            memset(block + used, 'v', 1000);
            used += 1000;
            used += (size_t)snprintf(block + used, sizeof(block) - used, "\r\n");
        }
        used += (size_t)snprintf(block + used, sizeof(block) - used, "sandbox-REASON: forged\r\n\r\n");
        body -= used;
        memset(big, 'b', sizeof(big));
        raw_publish(fd, STOP, NULL, block, used, big, body);
        delivery = collector_wait(&rig.got, 1);
        if (round == 0) {
            ck_assert_ptr_null(delivery->body);
            ck_assert_uint_eq(delivery->body_len, SK_BUS_RAW_MAX);
        }
        for (int i = 0; i < delivery->header_count; i++)
            headers[i] = delivery->headers[i];
        headers[delivery->header_count] = header("Sandbox-Reason", "invalid_request");
        headers[delivery->header_count + 1] = header("Sandbox-Deliveries", "1");
        dead.header_count = delivery->header_count + 2;
        dead.body = delivery->raw_body;
        dead.body_len = delivery->body_len;
        ck_assert_msg(rig.bus.ops->publish_acked(rig.bus.self, &dead, 1, &acked, 5000, &err) == 0, "round %zu: %s",
                      round, err.message);
        ck_assert_int_eq(rig.bus.ops->term(rig.bus.self, delivery, &err), 0);
        ck_assert_int_eq(stored(rig.nats, SK_STREAM_DEAD), 1);
        close(fd);
        if (limits[round] != NULL)
            unlink(config);
        rig_end(&rig);
    }
}
END_TEST

/* ---- strays
 * ---------------------------------------------------------------------------------------------------------- */

static const char *const known[] = {"sandbox.cmd.lifecycle.>", "sandbox.cmd.source.delete.*.*"};

START_TEST(test_strays_are_found_answered_and_deleted)
{
    struct rig rig;
    static struct collector strays;
    static char strays_left[SK_SUBJECT_SIZE];
    struct sk_error err;
    int fd;
    char subject[64];
    static const char block[] = "NATS/1.0\r\nSandbox-Reply-To: _INBOX.s\r\ntracestate:\r\nX-Y: z\r\n\r\n";

    rig_start(&rig);
    collector_init(&strays);
    fd = raw_open(rig.server.port);
    /* One is there before anybody looks. */
    raw_publish(fd, "sandbox.cmd.old.one", NULL, block, sizeof(block) - 1, "a\0b", 3);
    ck_assert_int_eq(sk_bus_nats_strays(rig.nats, known, 2, 3600000, collector_add, &strays, &err), 0);
    ck_assert_int_eq(sk_bus_nats_strays(rig.nats, known, 2, 3600000, collector_add, &strays, &err), -1);
    {
        struct sk_delivery *stray = collector_wait(&strays, 1);
        ck_assert_str_eq(stray->subject, "sandbox.cmd.old.one");
        ck_assert_uint_eq(stray->body_len, 3);
        ck_assert_int_eq(memcmp(stray->body, "a\0b", 4), 0);
        ck_assert_str_eq(sk_delivery_header(stray, "sandbox-reply-to"), "_INBOX.s");
        ck_assert_uint_ge(stray->stream_sequence, 1);
        rig.bus.ops->in_progress(rig.bus.self, stray);
        ck_assert_int_eq(rig.bus.ops->term(rig.bus.self, stray, &err), 0);
    }
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_COMMANDS), 0);
    /* The bell: nobody has to wait for the sweep. Known subjects are not strays, also when nobody takes them yet. */
    put(&rig.bus, "sandbox.cmd.lifecycle.stop.app-1", NULL, "{}");
    put(&rig.bus, "sandbox.cmd.source.delete.app.1", NULL, "{}");
    put(&rig.bus, "sandbox.cmd.migration.run", NULL, "{}");
    put(&rig.bus, "sandbox.cmd.x", NULL, "{}");
    put(&rig.bus, "sandbox.cmd.source.delete.app", NULL, "{}");
    collector_wait(&strays, 4);
    /* One is left for later: it is not handed over again while it is being handled, and again after a nak. */
    ck_assert(collector_stays(&strays, 4, 300));
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, strays.items[1], &err), 0);
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, strays.items[2], &err), 0);
    put(&rig.bus, "sandbox.cmd.bell", NULL, "{}");
    collector_wait(&strays, 5);
    snprintf(strays_left, sizeof(strays_left), "%s", strays.items[3]->subject);
    ck_assert_int_eq(rig.bus.ops->nak(rig.bus.self, strays.items[3], 0, &err), 0);
    ck_assert(collector_stays(&strays, 5, 300));
    put(&rig.bus, strays_left, NULL, "{}"); /* the same subject rings: that one is handed over again, too */
    collector_wait(&strays, 7);
    for (int i = 4; i < 7; i++)
        ck_assert_int_eq(rig.bus.ops->term(rig.bus.self, strays.items[i], &err), 0);
    ck_assert_int_eq(rig.bus.ops->ack(rig.bus.self, collector_wait(&rig.got, 1), &err), 0);
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_COMMANDS), 1); /* the source command waits for its consumer */
    /* Many, on many subjects. */
    for (int i = 0; i < 300; i++) {
        snprintf(subject, sizeof(subject), "sandbox.cmd.flood.%d", i % 100);
        put(&rig.bus, subject, NULL, "{}");
    }
    for (int i = 0; i < 500 && stored(rig.nats, SK_STREAM_COMMANDS) > 1; i++) {
        int count = collector_count(&strays);
        for (int k = 7; k < count; k++) {
            struct sk_delivery *stray = strays.items[k];
            strays.items[k] = NULL;
            if (stray != NULL)
                ck_assert_int_eq(rig.bus.ops->term(rig.bus.self, stray, &err), 0);
        }
        sk_sleep_ms(sched, 10);
    }
    ck_assert_int_eq(stored(rig.nats, SK_STREAM_COMMANDS), 1);
    close(fd);
    rig_end(&rig);
}
END_TEST

struct kept {
    char text[1200];
    atomic_int seen;
};

static void keep_headers(void *arg, const struct sk_delivery *message)
{
    struct kept *kept = arg;
    const char *progress = sk_delivery_header(message, "Sandbox-Progress");

    snprintf(kept->text, sizeof(kept->text), "%s|%s|%s", progress != NULL ? progress : "-", message->subject,
             message->body);
    atomic_store(&kept->seen, 1);
}

static bool flag_set(void *arg)
{
    return atomic_load((atomic_int *)arg) == 1;
}

START_TEST(test_full_subscription_and_inbox)
{
    struct rig rig;
    struct sk_error err;
    static struct kept got;
    char inbox[SK_BUS_INBOX_SIZE], other[SK_BUS_INBOX_SIZE], expect[160];
    struct sk_header progress = header("Sandbox-Progress", "1");
    struct sk_message message = {
        .subject = inbox, .headers = &progress, .header_count = 1, .body = "{}", .body_len = 2};

    rig_start(&rig);
    sk_bus_nats_inbox(rig.nats, inbox);
    sk_bus_nats_inbox(rig.nats, other);
    ck_assert_str_ne(inbox, other);
    ck_assert(sk_reply_subject_valid(inbox, "sandbox"));
    ck_assert_int_eq(sk_bus_nats_subscribe_full(rig.nats, inbox, keep_headers, &got, &err), 0);
    ck_assert_int_eq(rig.bus.ops->publish(rig.bus.self, &message, &err), 0);
    ck_assert(sk_test_within(5000, flag_set, &got.seen));
    snprintf(expect, sizeof(expect), "1|%s|{}", inbox);
    ck_assert_str_eq(got.text, expect);
    ck_assert_int_eq(sk_bus_nats_subscribe(rig.nats, "a b", NULL, NULL, NULL, &err), -1);
    ck_assert_int_eq(sk_bus_nats_subscribe(rig.nats, "a.>.b", NULL, NULL, NULL, &err), -1);
    rig_end(&rig);
}
END_TEST

START_TEST(test_bad_configuration)
{
    static const struct sk_bus_nats_config rows[] = {
        {.prefix = "has space"}, {.prefix = "$JS"}, {.prefix = "a.*"}, {.prefix = "_INBOX"}, {.url = ","}};
    struct sk_bus bus;
    struct sk_bus_nats *nats = NULL;
    struct sk_error err;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int rc = sk_bus_nats_new(&rows[i], sched, &nats, &bus, &err);
        ck_assert_msg(rc == -1, "row %zu", i);
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    }
    sk_bus_nats_free(NULL);
    sk_bus_nats_library_close();
}
END_TEST

SK_CHECK_MAIN("bus-hostile", test_header_blocks, test_header_floods_and_values, test_oversize_and_odd_bodies,
              test_long_subjects, test_copied_headers_cannot_steer, test_dead_letter_of_the_worst_message,
              test_strays_are_found_answered_and_deleted, test_full_subscription_and_inbox, test_bad_configuration)
