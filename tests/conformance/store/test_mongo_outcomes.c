/* SPDX-License-Identifier: Apache-2.0
 *
 * What the Mongo store says about writes that went wrong: every way to lose a connection, a server or an answer, each
 * with what is really in the database afterwards. FAILED must mean "certainly not applied", and UNKNOWN must be said
 * whenever it may have been. */
#include "tests/conformance/store/mongo_fixture.h"
#include "tests/conformance/store/proxy.h"

#include "tests/conformance/store/fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#undef OPS
#undef SELF
#define OPS  (f->store.ops)
#define SELF (f->store.self)

struct ambient {
    struct mf f;
    struct proxy *proxy;
    struct sk_instance record; /* running, its outbox is empty */
};

static void open_ambient(struct ambient *a, const char *options)
{
    a->proxy = proxy_start(mf_server.port);
    mf_open(&a->f, proxy_port(a->proxy), options, 4);
    ck_assert_msg(sc_running(&a->f.c, &a->record), "%s", a->f.c.failure);
}

static void close_ambient(struct ambient *a)
{
    proxy_clear(a->proxy);
    proxy_speak(a->proxy);
    mf_close(&a->f);
    proxy_stop(a->proxy);
}

static int64_t elapsed_ms(int64_t since_us)
{
    return (sk_mono_us(&sk_sched_system) - since_us) / 1000;
}

/* Is the change in the database? Asked past the proxy. */
static bool applied(struct mf *f, const struct sk_instance *after)
{
    bson_t *raw = mf_raw(f, after->sandbox_id);
    bson_iter_t iter;
    bool result = raw != NULL && bson_iter_init_find(&iter, raw, "epoch") && bson_iter_as_int64(&iter) == after->epoch;

    if (raw != NULL)
        bson_destroy(raw);
    return result;
}

static bson_t *server_answer(int code)
{
    return BCON_NEW("ok", BCON_DOUBLE(0), "code", BCON_INT32(code), "codeName", BCON_UTF8("Whatever"), "errmsg",
                    BCON_UTF8("made up"));
}

enum expected { EXPECT_FAILED, EXPECT_UNKNOWN, EXPECT_APPLIED, EXPECT_REFUSED };

struct row {
    const char *name, *options;
    enum proxy_action action;
    int times;
    int code;            /* of an answer that is an error; 0 = none */
    const char *concern; /* a write concern error instead */
    enum expected expected;
    bool really_applied;
};

static const struct row rows[] = {
    {"cut before the request", "retryWrites=false", PROXY_CUT_BEFORE, 1, 0, NULL, EXPECT_UNKNOWN, false},
    {"cut after the answer", "retryWrites=false", PROXY_CUT_AFTER, 1, 0, NULL, EXPECT_UNKNOWN, true},
    {"reset after the answer", "retryWrites=false", PROXY_RESET_AFTER, 1, 0, NULL, EXPECT_UNKNOWN, true},
    /* The driver's own retry is not used: an ambiguous write is never sent again behind the caller's back. */
    {"cut before, retries", "retryWrites=true", PROXY_CUT_BEFORE, 1, 0, NULL, EXPECT_UNKNOWN, false},
    {"cut after, retries", "retryWrites=true", PROXY_CUT_AFTER, 1, 0, NULL, EXPECT_UNKNOWN, true},
    {"no answer in time", "retryWrites=true&socketTimeoutMS=300", PROXY_SILENCE, 1, 0, NULL, EXPECT_UNKNOWN, true},
    {"swallowed", "retryWrites=true&socketTimeoutMS=300", PROXY_SWALLOW, 1, 0, NULL, EXPECT_UNKNOWN, false},
    /* Refused before it was tried: certainly not applied, and with retries a second attempt succeeds. */
    {"not primary", "retryWrites=false", PROXY_ANSWER, 1, 10107, NULL, EXPECT_FAILED, false},
    {"not primary, retries", "retryWrites=true", PROXY_ANSWER, 1, 10107, NULL, EXPECT_APPLIED, true},
    {"not primary twice, retries", "retryWrites=true", PROXY_ANSWER, 2, 10107, NULL, EXPECT_FAILED, false},
    {"not primary or secondary ok", "retryWrites=false", PROXY_ANSWER, 1, 13435, NULL, EXPECT_FAILED, false},
    {"write conflict", "retryWrites=false", PROXY_ANSWER, 1, 112, NULL, EXPECT_FAILED, false},
    {"write conflict, retries", "retryWrites=true", PROXY_ANSWER, 1, 112, NULL, EXPECT_APPLIED, true},
    {"not authorised", "retryWrites=false", PROXY_ANSWER, 1, 13, NULL, EXPECT_FAILED, false},
    /* Interrupted while it ran: nobody knows. */
    {"stepped down", "retryWrites=true", PROXY_REPLACE, 1, 189, NULL, EXPECT_UNKNOWN, true},
    {"interrupted by a state change", "retryWrites=true", PROXY_REPLACE, 1, 11602, NULL, EXPECT_UNKNOWN, true},
    {"interrupted at shutdown", "retryWrites=true", PROXY_REPLACE, 1, 11600, NULL, EXPECT_UNKNOWN, true},
    {"shutdown in progress", "retryWrites=true", PROXY_ANSWER, 1, 91, NULL, EXPECT_UNKNOWN, false},
    {"out of time at the server", "retryWrites=true", PROXY_REPLACE, 1, 50, NULL, EXPECT_UNKNOWN, true},
    {"majority not reached", "retryWrites=true", PROXY_REPLACE, 1, 0, "wtimeout", EXPECT_UNKNOWN, true},
    /* Our own fault: no use in repeating. */
    {"bad value", "retryWrites=true", PROXY_ANSWER, 1, 2, NULL, EXPECT_REFUSED, false},
};

START_TEST(test_outcome)
{
    const struct row *row = &rows[_i];
    struct sk_instance after;
    struct sk_error err = {0};
    struct sk_event event;
    enum sk_cas_result result;
    bson_t *answer = NULL;
    struct ambient a;
    struct mf *f = &a.f;

    open_ambient(&a, row->options);
    if (row->code != 0)
        answer = server_answer(row->code);
    else if (row->concern != NULL)
        answer = BCON_NEW("ok", BCON_DOUBLE(1), "n", BCON_INT32(1), "nModified", BCON_INT32(1), "writeConcernError",
                          "{", "code", BCON_INT32(64), "errmsg", BCON_UTF8(row->concern), "}");
    proxy_rule(a.proxy, "update", row->action, row->times, answer);
    sc_claim(&f->c, &a.record, &after, &event, SK_OP_STOP, "replica-a");
    result = OPS->cas(SELF, NULL, &a.record, &after, &event, 1, NULL, &err);
    ck_assert_msg(proxy_met(a.proxy) == row->times, "%s: the rule was met %d times", row->name, proxy_met(a.proxy));
    ck_assert_msg(applied(f, &after) == row->really_applied, "%s: the test itself is wrong about what was applied",
                  row->name);
    if (row->expected == EXPECT_APPLIED) {
        ck_assert_msg(result == SK_CAS_APPLIED, "%s: %d %s", row->name, (int)result, err.message);
    } else {
        ck_assert_msg(result == SK_CAS_ERROR, "%s: %d", row->name, (int)result);
        ck_assert_msg(err.code == (row->expected == EXPECT_REFUSED ? SK_ERR_INTERNAL : SK_ERR_STORE_UNAVAILABLE),
                      "%s: code %s", row->name, sk_code_name(err.code));
        ck_assert_msg(err.outcome == (row->expected == EXPECT_UNKNOWN ? SK_OUTCOME_UNKNOWN : SK_OUTCOME_FAILED),
                      "%s: outcome %d: %s", row->name, (int)err.outcome, err.message);
    }
    /* Whatever it was, the store works again at once. */
    proxy_clear(a.proxy);
    proxy_speak(a.proxy);
    if (!row->really_applied)
        ck_assert_int_eq(OPS->cas(SELF, NULL, &a.record, &after, &event, 1, NULL, &err), SK_CAS_APPLIED);
    else
        ck_assert_int_eq(OPS->cas(SELF, NULL, &a.record, &after, &event, 1, NULL, &err), SK_CAS_LOST);
    if (answer != NULL)
        bson_destroy(answer);
    close_ambient(&a);
}
END_TEST

/* The other writes, with the answer lost: insert and removal are ambiguous, what may come twice is simply done again.
 */
START_TEST(test_other_writes)
{
    struct sk_instance fresh, after;
    struct sk_error err = {0};
    struct sk_event event;
    struct sk_heartbeat beat = {.sandbox_id = ""};
    struct sk_command_record result = {.command_id = "c", .result = (char *)(uintptr_t) "{}", .at = 1700000000000},
                             stored;
    bool created = true, found = false, granted = false;
    struct sk_timeline_entry entry;
    int entries = 1;
    struct ambient a;
    struct mf *f = &a.f;
    char ids[1][SK_SANDBOX_ID_SIZE], events[1][SK_ULID_SIZE];

    open_ambient(&a, "retryWrites=true");
    sc_new(&f->c, &fresh, &event, "replica-a");
    proxy_rule(a.proxy, "insert", PROXY_CUT_AFTER, 1, NULL);
    ck_assert_int_ne(OPS->insert(SELF, NULL, &fresh, &event, 1, &created, &err), 0);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
    ck_assert(!created);
    ck_assert(OPS->get(SELF, NULL, fresh.sandbox_id, &after, &found, &err) == 0 && found &&
              strcmp(after.oid, fresh.oid) == 0);

    proxy_rule(a.proxy, "update", PROXY_CUT_AFTER, 1, NULL);
    memcpy(beat.sandbox_id, fresh.sandbox_id, sizeof(beat.sandbox_id));
    memcpy(beat.operation_id, fresh.operation.id, sizeof(beat.operation_id));
    ck_assert_msg(OPS->heartbeat(SELF, "replica-a", &beat, 1, fresh.operation.heartbeat_at + 1, &err) == 0, "%s",
                  err.message);
    ck_assert_int_eq(proxy_met(a.proxy), 1);
    proxy_rule(a.proxy, "update", PROXY_CUT_AFTER, 1, NULL);
    memcpy(ids[0], fresh.sandbox_id, sizeof(ids[0]));
    memcpy(events[0], event.id, sizeof(events[0]));
    ck_assert_msg(OPS->outbox_pull(SELF, (const char(*)[SK_SANDBOX_ID_SIZE])ids, 1, (const char(*)[SK_ULID_SIZE])events,
                                   1, &err) == 0,
                  "%s", err.message);
    /* An operation's entry is inserted with its claim, and updated with what comes later. */
    proxy_rule(a.proxy, "insert", PROXY_CUT_AFTER, 1, NULL);
    ck_assert_msg(OPS->timeline_apply(SELF, &event, 1, &err) == 0, "%s", err.message);
    ck_assert_int_eq(proxy_met(a.proxy), 1);
    sc_complete(&f->c, &fresh, &after, &event);
    proxy_rule(a.proxy, "update", PROXY_CUT_AFTER, 1, NULL);
    ck_assert_msg(OPS->timeline_apply(SELF, &event, 1, &err) == 0, "%s", err.message);
    ck_assert_int_eq(proxy_met(a.proxy), 1);
    ck_assert(OPS->timeline_list(SELF, NULL, fresh.sandbox_id, &entry, &entries, &err) == 0 && entries == 1);
    ck_assert_str_eq(entry.result, "completed");
    proxy_rule(a.proxy, "insert", PROXY_CUT_AFTER, 1, NULL);
    memcpy(result.sandbox_id, fresh.sandbox_id, sizeof(result.sandbox_id));
    ck_assert_msg(OPS->command_put(SELF, &result, 1, &err) == 0, "%s", err.message);
    ck_assert(OPS->command_find(SELF, NULL, fresh.sandbox_id, "c", &stored, &found, &err) == 0 && found);
    sk_command_record_fini(&stored);

    /* A reservation whose answer is lost: the caller asks again and has it. */
    proxy_rule(a.proxy, "insert", PROXY_CUT_AFTER, 1, NULL);
    ck_assert_int_ne(OPS->quota_reserve(SELF, NULL, "team:x", 1, "app-1", &granted, &err), 0);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert_msg(OPS->quota_reserve(SELF, NULL, "team:x", 1, "app-1", &granted, &err) == 0 && granted, "%s",
                  err.message);
    ck_assert_msg(OPS->quota_reserve(SELF, NULL, "team:x", 1, "app-2", &granted, &err) == 0 && !granted, "%s",
                  err.message);
    proxy_rule(a.proxy, "update", PROXY_CUT_AFTER, 1, NULL);
    ck_assert_msg(OPS->quota_release(SELF, "team:x", "app-1", &err) == 0, "%s", err.message);
    ck_assert_msg(OPS->quota_reserve(SELF, NULL, "team:x", 1, "app-2", &granted, &err) == 0 && granted, "%s",
                  err.message);

    sc_claim(&f->c, &a.record, &after, &event, SK_OP_DELETE, "replica-a");
    ck_assert_msg(sc_apply(&f->c, &a.record, &after, &event, "delete") && sc_drain(&f->c, &a.record), "%s",
                  f->c.failure);
    proxy_rule(a.proxy, "delete", PROXY_CUT_AFTER, 1, NULL);
    ck_assert_int_eq(OPS->remove(SELF, NULL, &a.record, &err), SK_CAS_ERROR);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert(OPS->get(SELF, NULL, a.record.sandbox_id, &after, &found, &err) == 0 && !found);
    close_ambient(&a);
}
END_TEST

/* Reads that lose their connection are simply asked again; one that cannot be is FAILED, as reads change nothing. */
START_TEST(test_reads)
{
    struct sk_instance out;
    struct sk_error err = {0};
    bool found = false;
    struct ambient a;
    struct mf *f = &a.f;

    open_ambient(&a, "");
    proxy_rule(a.proxy, "find", PROXY_CUT_BEFORE, 1, NULL);
    ck_assert_msg(OPS->get(SELF, NULL, a.record.sandbox_id, &out, &found, &err) == 0 && found, "%s", err.message);
    ck_assert_int_eq(proxy_met(a.proxy), 1);
    proxy_rule(a.proxy, "find", PROXY_CUT_AFTER, 100, NULL);
    ck_assert_int_ne(OPS->get(SELF, NULL, a.record.sandbox_id, &out, &found, &err), 0);
    ck_assert_int_eq(proxy_met(a.proxy), 2);
    ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert(err.retryable);
    close_ambient(&a);
    /* The URI may forbid it. */
    open_ambient(&a, "retryReads=false");
    proxy_rule(a.proxy, "find", PROXY_CUT_BEFORE, 1, NULL);
    ck_assert_int_ne(OPS->get(SELF, NULL, a.record.sandbox_id, &out, &found, &err), 0);
    ck_assert_int_eq(proxy_met(a.proxy), 1);
    close_ambient(&a);
}
END_TEST

/* No server: the call waits as long as it may and not longer, and nothing was sent. */
START_TEST(test_no_server)
{
    struct sk_instance out, after;
    struct sk_event event;
    struct sk_error err = {0};
    struct sk_call call;
    bool found;
    int64_t started_us;
    struct ambient a;
    struct mf *f = &a.f;

    open_ambient(&a, "serverSelectionTimeoutMS=1000");
    proxy_down(a.proxy, true);
    sk_sleep_ms(&sk_sched_system, 300);
    sc_claim(&f->c, &a.record, &after, &event, SK_OP_STOP, "replica-a");
    /* Several times: the first may still find a connection that dies under it, never one that may have carried it. */
    for (int i = 0; i < 3; i++) {
        started_us = sk_mono_us(&sk_sched_system);
        ck_assert_int_eq(OPS->cas(SELF, NULL, &a.record, &after, &event, 1, NULL, &err), SK_CAS_ERROR);
        ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
        ck_assert_int_lt(elapsed_ms(started_us), 4000);
    }
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    sk_call_init(&call, &sk_sched_system);
    call.deadline_us = sk_mono_us(&sk_sched_system) + 300000;
    started_us = sk_mono_us(&sk_sched_system);
    ck_assert_int_eq(OPS->cas(SELF, &call, &a.record, &after, &event, 1, NULL, &err), SK_CAS_ERROR);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert_int_lt(elapsed_ms(started_us), 700);
    ck_assert(!applied(f, &after));
    /* It comes back on the same port: seen within a second, without the 5 s that a single client would stall. */
    proxy_down(a.proxy, false);
    started_us = sk_mono_us(&sk_sched_system);
    while (OPS->get(SELF, NULL, a.record.sandbox_id, &out, &found, &err) != 0)
        ck_assert_int_lt(elapsed_ms(started_us), 3000);
    ck_assert_int_lt(elapsed_ms(started_us), 2500);
    ck_assert_int_eq(OPS->cas(SELF, NULL, &a.record, &after, &event, 1, NULL, &err), SK_CAS_APPLIED);
    close_ambient(&a);
}
END_TEST

/* The very first call finds nobody listening, and the server comes while it waits. */
START_TEST(test_late_server)
{
    struct sk_error err = {0};
    struct proxy *proxy = proxy_start(mf_server.port);
    struct sk_store store;
    char uri[128];
    int64_t started_us;

    proxy_down(proxy, true);
    sk_sleep_ms(&sk_sched_system, 100);
    mf_driver();
    snprintf(uri, sizeof(uri), "mongodb://127.0.0.1:%d/late", proxy_port(proxy));
    ck_assert_int_eq(
        sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = uri, .pool_size = 2}, &sk_sched_system, &store, &err),
        0);
    started_us = sk_mono_us(&sk_sched_system);
    ck_assert_int_ne(store.ops->ping(store.self, NULL, &err), 0);
    ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
    ck_assert_int_ge(elapsed_ms(started_us), 2500);
    ck_assert_int_lt(elapsed_ms(started_us), 4500);
    proxy_down(proxy, false);
    started_us = sk_mono_us(&sk_sched_system);
    ck_assert_msg(store.ops->ping(store.self, NULL, &err) == 0, "%s", err.message);
    ck_assert_int_lt(elapsed_ms(started_us), 2000);
    sk_store_mongo_free(&store);
    proxy_stop(proxy);
}
END_TEST

struct canceller {
    struct sk_call *call;
    int after_ms;
};

static void *cancel_later(void *arg)
{
    struct canceller *canceller = arg;

    sk_sleep_ms(&sk_sched_system, canceller->after_ms);
    sk_call_cancel(canceller->call);
    return NULL;
}

/* A cancelled call comes back at once from wherever it is, says what it knows, and costs nobody else anything. */
START_TEST(test_cancel)
{
    static const struct {
        enum proxy_action action;
        bool write, really_applied;
    } cases[] = {{PROXY_SILENCE, true, true}, {PROXY_SWALLOW, true, false}, {PROXY_SILENCE, false, false}};
    struct sk_instance out, after;
    struct sk_event event;
    struct sk_error err = {0};
    struct ambient a;
    struct mf *f = &a.f;
    bool found;

    open_ambient(&a, "");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sk_call call;
        struct canceller canceller = {&call, 100};
        int64_t started_us = sk_mono_us(&sk_sched_system);
        pthread_t thread;

        sk_call_init(&call, &sk_sched_system);
        proxy_rule(a.proxy, cases[i].write ? "update" : "find", cases[i].action, 1, NULL);
        ck_assert_int_eq(pthread_create(&thread, NULL, cancel_later, &canceller), 0);
        sc_claim(&f->c, &a.record, &after, &event, SK_OP_STOP, "replica-a");
        if (cases[i].write)
            ck_assert_int_eq(OPS->cas(SELF, &call, &a.record, &after, &event, 1, NULL, &err), SK_CAS_ERROR);
        else
            ck_assert_int_ne(OPS->get(SELF, &call, a.record.sandbox_id, &out, &found, &err), 0);
        ck_assert_int_ge(elapsed_ms(started_us), 95);
        ck_assert_int_lt(elapsed_ms(started_us), 400);
        ck_assert_int_eq(err.code, SK_ERR_CANCELLED);
        ck_assert_int_eq(err.outcome, cases[i].write ? SK_OUTCOME_UNKNOWN : SK_OUTCOME_FAILED);
        pthread_join(thread, NULL);
        ck_assert(!cases[i].write || applied(f, &after) == cases[i].really_applied);
        /* An ended call does nothing more. */
        ck_assert_int_ne(OPS->get(SELF, &call, a.record.sandbox_id, &out, &found, &err), 0);
        ck_assert_int_eq(err.code, SK_ERR_CANCELLED);
        ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
        /* Others go on without a pause: the server is not forgotten, and no other connection was cut. */
        started_us = sk_mono_us(&sk_sched_system);
        for (int k = 0; k < 8; k++)
            ck_assert_msg(OPS->get(SELF, NULL, a.record.sandbox_id, &out, &found, &err) == 0 && found, "%s",
                          err.message);
        ck_assert_int_lt(elapsed_ms(started_us), 250);
        a.record = out;
    }
    close_ambient(&a);
}
END_TEST

/* A deadline ends a blocked call; the connection that was given up is replaced. */
START_TEST(test_deadline)
{
    struct sk_instance out, after;
    struct sk_event event;
    struct sk_error err = {0};
    struct sk_call call;
    struct ambient a;
    struct mf *f = &a.f;
    int64_t started_us;
    bool found;

    open_ambient(&a, "");
    for (int i = 0; i < 2; i++) {
        sk_call_init(&call, &sk_sched_system);
        call.deadline_us = sk_mono_us(&sk_sched_system) + 200000;
        proxy_rule(a.proxy, i == 0 ? "find" : "update", PROXY_SILENCE, 10, NULL);
        started_us = sk_mono_us(&sk_sched_system);
        sc_claim(&f->c, &a.record, &after, &event, SK_OP_STOP, "replica-a");
        if (i == 0)
            ck_assert_int_ne(OPS->get(SELF, &call, a.record.sandbox_id, &out, &found, &err), 0);
        else
            ck_assert_int_eq(OPS->cas(SELF, &call, &a.record, &after, &event, 1, NULL, &err), SK_CAS_ERROR);
        ck_assert_int_ge(elapsed_ms(started_us), 195);
        ck_assert_int_lt(elapsed_ms(started_us), 500);
        ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
        ck_assert_int_eq(err.outcome, i == 0 ? SK_OUTCOME_FAILED : SK_OUTCOME_UNKNOWN);
        proxy_clear(a.proxy);
        started_us = sk_mono_us(&sk_sched_system);
        ck_assert_msg(OPS->get(SELF, NULL, a.record.sandbox_id, &out, &found, &err) == 0 && found, "%s", err.message);
        ck_assert_int_lt(elapsed_ms(started_us), 500);
    }
    /* A call that is past its deadline is not begun. */
    ck_assert_int_ne(OPS->ping(SELF, &call, &err), 0);
    ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
    close_ambient(&a);
}
END_TEST

struct hog {
    struct mf *f;
    const char *sandbox_id;
    int result;
    struct sk_error err;
};

static void *hog_connection(void *arg)
{
    struct hog *hog = arg;
    struct mf *f = hog->f;
    struct sk_instance *out = calloc(1, sizeof(*out));
    bool found;

    hog->result = OPS->get(SELF, NULL, hog->sandbox_id, out, &found, &hog->err);
    free(out);
    return NULL;
}

/* All connections are out: the wait is bounded, can be cancelled, and ends as soon as one comes back. */
START_TEST(test_pool)
{
    struct hog hogs[4];
    pthread_t threads[4], canceller_thread;
    struct canceller canceller;
    struct sk_instance out;
    struct sk_error err = {0};
    struct sk_call call;
    struct ambient a;
    struct mf *f = &a.f;
    int64_t started_us;
    bool found;

    open_ambient(&a, "waitQueueTimeoutMS=300");
    proxy_rule(a.proxy, "find", PROXY_SILENCE, 4, NULL);
    for (int i = 0; i < 4; i++) {
        hogs[i] = (struct hog){.f = f, .sandbox_id = a.record.sandbox_id};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hog_connection, &hogs[i]), 0);
    }
    while (proxy_met(a.proxy) < 4)
        sk_sleep_ms(&sk_sched_system, 5);
    started_us = sk_mono_us(&sk_sched_system);
    ck_assert_int_ne(OPS->ping(SELF, NULL, &err), 0);
    ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert_int_ge(elapsed_ms(started_us), 295);
    ck_assert_int_lt(elapsed_ms(started_us), 600);
    sk_call_init(&call, &sk_sched_system);
    canceller = (struct canceller){&call, 50};
    ck_assert_int_eq(pthread_create(&canceller_thread, NULL, cancel_later, &canceller), 0);
    started_us = sk_mono_us(&sk_sched_system);
    ck_assert_int_ne(OPS->get(SELF, &call, a.record.sandbox_id, &out, &found, &err), 0);
    ck_assert_int_eq(err.code, SK_ERR_CANCELLED);
    ck_assert_int_lt(elapsed_ms(started_us), 250);
    pthread_join(canceller_thread, NULL);
    proxy_clear(a.proxy);
    proxy_speak(a.proxy);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_msg(hogs[i].result == 0, "%s", hogs[i].err.message);
    }
    ck_assert_msg(OPS->ping(SELF, NULL, &err) == 0, "%s", err.message);
    close_ambient(&a);
}
END_TEST

struct runner {
    struct mf *f;
    atomic_bool *stop;
    int calls;
    int64_t longest_ms;
};

static void *run_calls(void *arg)
{
    struct runner *runner = arg;
    struct mf *f = runner->f;
    struct sk_error err;

    while (!atomic_load(runner->stop)) {
        int64_t started_us = sk_mono_us(&sk_sched_system), took_ms;

        if (OPS->ping(SELF, NULL, &err) == 0)
            runner->calls++;
        took_ms = elapsed_ms(started_us);
        if (took_ms > runner->longest_ms)
            runner->longest_ms = took_ms;
    }
    return NULL;
}

/* One connection and eight threads that never pause: whoever holds it may go on, but nobody starves. */
START_TEST(test_fairness)
{
    struct runner runners[8];
    pthread_t threads[8];
    atomic_bool stop = false;
    struct mf f;

    mf_open(&f, 0, "", 1);
    for (int i = 0; i < 8; i++) {
        runners[i] = (struct runner){.f = &f, .stop = &stop};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_calls, &runners[i]), 0);
    }
    sk_sleep_ms(&sk_sched_system, 3000);
    atomic_store(&stop, true);
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_gt(runners[i].calls, 3);
        ck_assert_int_lt(runners[i].longest_ms, 2500);
    }
    mf_close(&f);
}
END_TEST

struct writer {
    struct mf *f;
    struct sk_instance record;
    int applied, lost, failed, unknown;
    char wrong[256];
    atomic_bool *stop;
};

/* Claims again and again. After each error the database is asked what is true, past the store: FAILED must be not
 * applied, and the next change starts from the truth. */
static void *write_on(void *arg)
{
    struct writer *writer = arg;
    struct mf *f = writer->f;
    struct sk_instance *after = calloc(1, sizeof(*after)), *now = calloc(1, sizeof(*now));

    while (!atomic_load(writer->stop)) {
        struct sk_error err = {0}, ignored;
        struct sk_event event;
        bool found = false;

        sc_claim(&f->c, &writer->record, after, &event, SK_OP_STOP, "replica-a");
        switch (OPS->cas(SELF, NULL, &writer->record, after, &event, 1, NULL, &err)) {
        case SK_CAS_APPLIED:
            writer->applied++;
            writer->record = *after;
            continue;
        case SK_CAS_LOST:
            writer->lost++;
            break;
        case SK_CAS_ERROR:
            if (err.outcome == SK_OUTCOME_UNKNOWN)
                writer->unknown++;
            else
                writer->failed++;
            break;
        }
        while (OPS->get(SELF, NULL, writer->record.sandbox_id, now, &found, &ignored) != 0 || !found)
            sk_sleep_ms(&sk_sched_system, 5);
        if (writer->wrong[0] == '\0' &&
            ((now->epoch != writer->record.epoch && now->epoch != after->epoch) ||
             (err.code != SK_OK && err.outcome == SK_OUTCOME_FAILED && now->epoch == after->epoch)))
            snprintf(writer->wrong, sizeof(writer->wrong), "%s %s: from %lld to %lld, found %lld: %.120s",
                     sk_code_name(err.code), err.outcome == SK_OUTCOME_UNKNOWN ? "unknown" : "failed",
                     (long long)writer->record.epoch, (long long)after->epoch, (long long)now->epoch, err.message);
        writer->record = *now;
    }
    free(after);
    free(now);
    return NULL;
}

/* The real server is killed and started again under writers: every acknowledged change is there, nobody was told LOST
 * about his own change, and FAILED changes are not there. */
START_TEST(test_kill)
{
    struct sk_test_server server;
    struct writer writers[8];
    pthread_t threads[8];
    atomic_bool stop = false;
    struct mf f;
    int applied_count = 0, unknown = 0;

    sk_test_server_start(&server, SK_TEST_MONGO, NULL);
    mf_open(&f, server.port, "", 8);
    for (int i = 0; i < 8; i++) {
        writers[i] = (struct writer){.f = &f, .stop = &stop};
        ck_assert_msg(sc_running(&f.c, &writers[i].record), "%s", f.c.failure);
    }
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, write_on, &writers[i]), 0);
    for (int round = 0; round < 3; round++) {
        sk_sleep_ms(&sk_sched_system, 700);
        sk_test_server_kill(&server);
        sk_sleep_ms(&sk_sched_system, 200);
        sk_test_server_again(&server);
    }
    sk_sleep_ms(&sk_sched_system, 700);
    atomic_store(&stop, true);
    for (int i = 0; i < 8; i++) {
        struct sk_instance out;
        struct sk_error err = {0};
        bool found = false;

        pthread_join(threads[i], NULL);
        ck_assert_str_eq(writers[i].wrong, "");
        ck_assert_int_eq(writers[i].lost, 0);
        ck_assert_msg(f.store.ops->get(f.store.self, NULL, writers[i].record.sandbox_id, &out, &found, &err) == 0 &&
                          found,
                      "%s", err.message);
        ck_assert_int_eq(out.epoch, writers[i].record.epoch);
        ck_assert_int_eq(out.sequence, writers[i].record.sequence);
        applied_count += writers[i].applied;
        unknown += writers[i].unknown;
    }
    ck_assert_int_gt(applied_count, 50);
    ck_assert_int_gt(unknown, 0);
    mf_close(&f);
    sk_test_server_end(&server);
}
END_TEST

static bool ask_state(struct mf *f)
{
    struct sk_error err;

    return f->store.ops->ping(f->store.self, NULL, &err) == 0;
}

/* A frozen server: calls end by their own time, and go on when it thaws. */
START_TEST(test_frozen)
{
    struct sk_test_server server;
    struct sk_error err = {0};
    int64_t started_us;
    struct mf f;

    sk_test_server_start(&server, SK_TEST_MONGO, NULL);
    mf_open(&f, server.port, "socketTimeoutMS=400&connectTimeoutMS=400&serverSelectionTimeoutMS=500", 2);
    ck_assert(ask_state(&f));
    sk_test_server_freeze(&server, true);
    for (int i = 0; i < 3; i++) {
        started_us = sk_mono_us(&sk_sched_system);
        ck_assert_int_ne(f.store.ops->ping(f.store.self, NULL, &err), 0);
        ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
        ck_assert_int_lt(elapsed_ms(started_us), 2500);
    }
    sk_test_server_freeze(&server, false);
    started_us = sk_mono_us(&sk_sched_system);
    while (!ask_state(&f))
        ck_assert_int_lt(elapsed_ms(started_us), 5000);
    mf_close(&f);
    sk_test_server_end(&server);
}
END_TEST

START_TEST(test_configuration)
{
    static const char *const bad[] = {"", "http://x", "mongodb://", "mongodb://h/?w=0", "mongodb://h:99999/"};
    struct sk_store store;
    struct sk_error err;

    mf_driver();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = bad[i], .pool_size = 4},
                                         &sk_sched_system, &store, &err) != 0,
                      "%s", bad[i]);
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
        ck_assert_ptr_null(store.self);
        sk_store_mongo_free(&store);
    }
    ck_assert_int_ne(sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = "mongodb://h/", .pool_size = 0},
                                        &sk_sched_system, &store, &err),
                     0);
    ck_assert_int_ne(sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = "mongodb://h/", .pool_size = 65},
                                        &sk_sched_system, &store, &err),
                     0);
    ck_assert_int_ne(sk_store_mongo_new(
                         &(struct sk_store_mongo_config){.uri = "mongodb://h/", .pool_size = 1, .apps_collection = ""},
                         &sk_sched_system, &store, &err),
                     0);
    ck_assert_int_eq(sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = "mongodb://h/", .pool_size = 1},
                                        &sk_sched_system, &store, &err),
                     0);
    sk_store_mongo_free(&store);
}
END_TEST

int main(void)
{
    const TTest *const single_tests[] = {test_other_writes, test_reads,    test_no_server,    test_late_server,
                                         test_cancel,       test_deadline, test_pool,         test_fairness,
                                         test_kill,         test_frozen,   test_configuration};

    return mf_main_loop("store_mongo_outcomes", test_outcome, sizeof(rows) / sizeof(rows[0]), single_tests,
                        sizeof(single_tests) / sizeof(single_tests[0]), 60);
}
