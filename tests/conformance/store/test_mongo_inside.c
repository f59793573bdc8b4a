/* SPDX-License-Identifier: Apache-2.0
 *
 * What can only be reached from inside the Mongo store: pages that end early in every place, connections that were cut
 * while idle, the search for slots among many, hints that are wrong; and connections over TLS. */
#include "common/store/mongo.h"
#include "tests/conformance/store/fixture.h"
#include "tests/conformance/store/mongo_fixture.h"
#include "tests/conformance/store/proxy.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#undef OPS
#undef SELF
#define OPS  (f.store.ops)
#define SELF (f.store.self)

static bool count_record(void *arg, const struct sk_instance *instance, const struct sk_event *events, int count)
{
    (void)instance;
    (void)events;
    (void)count;
    ++*(int *)arg;
    return true;
}

/* Every page ends after its first window, wherever that is: the lists are complete all the same. */
START_TEST(test_early_pages)
{
    struct sk_error err = {0};
    struct mf f;

    mf_open(&f, 0, "", 2);
    ck_assert_msg(OPS->setup(SELF, NULL, &err) == 0, "%s", err.message);
    ((struct sk_store_mongo *)f.store.self)->list_budget_us = -1;
    f.c.records = 60;
    ck_assert_msg(sk_store_check_lists(&f.c), "%s", f.c.failure);
    mf_close(&f);
}
END_TEST

/* Hints decide about time only. */
START_TEST(test_wrong_hints)
{
    static const long long wrong[] = {1, 1577836800000, 1764500000000, 4102444800000, 253402300799998, -5};
    struct sk_store_mongo *store;
    struct mf f;

    mf_open(&f, 0, "", 2);
    store = f.store.self;
    f.c.records = 30;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        atomic_store(&store->hints.oldest_active, wrong[i]);
        atomic_store(&store->hints.oldest_running, wrong[i]);
        atomic_store(&store->hints.idle_width, wrong[i]);
        for (int sort = 0; sort < 4; sort++)
            atomic_store(&store->hints.width[sort], wrong[i]);
        ck_assert_msg(sk_store_check_lists(&f.c), "hint %lld: %s", wrong[i], f.c.failure);
        {
            mongoc_collection_t *records = mf_collection(&f, INSTANCES);

            ck_assert(mongoc_collection_drop(records, NULL));
            mongoc_collection_destroy(records);
        }
    }
    mf_close(&f);
}
END_TEST

/* A cancel that comes when the answer was there already shuts the connection down after its use. The next call of that
 * client finds it out by itself: it succeeds, and a write is not called unknown. */
START_TEST(test_cut_while_idle)
{
    struct sk_instance record, after;
    struct sk_error err = {0};
    struct sk_store_mongo *store;
    struct sk_event event;
    struct mf f;

    mf_open(&f, 0, "retryWrites=false&retryReads=false", 1);
    store = f.store.self;
    ck_assert_msg(sc_running(&f.c, &record), "%s", f.c.failure);
    for (int i = 0; i < 3; i++) {
        sk_mongo_stream_interrupt(&store->clients[0]);
        ck_assert(sk_mongo_stream_broken(&store->clients[0]));
        sc_claim(&f.c, &record, &after, &event, SK_OP_STOP, "replica-a");
        ck_assert_msg(OPS->cas(SELF, NULL, &record, &after, &event, 1, NULL, &err) == SK_CAS_APPLIED, "%s",
                      err.message);
        ck_assert(!sk_mongo_stream_broken(&store->clients[0]));
        record = after;
    }
    mf_close(&f);
}
END_TEST

/* A server that closes idle connections (or a firewall that forgets them): nothing is lost by it. */
START_TEST(test_closed_while_idle)
{
    struct proxy *proxy = proxy_start(mf_server.port);
    struct sk_instance record, after;
    struct sk_error err = {0};
    struct sk_event event;
    struct mf f;

    mf_open(&f, proxy_port(proxy), "", 1);
    ck_assert_msg(sc_running(&f.c, &record), "%s", f.c.failure);
    for (int i = 0; i < 3; i++) {
        enum sk_cas_result result;

        proxy_down(proxy, true);
        sk_sleep_ms(&sk_sched_system, 150);
        proxy_down(proxy, false);
        sk_sleep_ms(&sk_sched_system, 150);
        sc_claim(&f.c, &record, &after, &event, SK_OP_STOP, "replica-a");
        result = OPS->cas(SELF, NULL, &record, &after, &event, 1, NULL, &err);
        /* The connection looked alive when the command was written: then nobody can know. */
        ck_assert(result == SK_CAS_APPLIED || (result == SK_CAS_ERROR && err.code == SK_ERR_STORE_UNAVAILABLE));
        if (result == SK_CAS_ERROR) {
            result = OPS->cas(SELF, NULL, &record, &after, &event, 1, NULL, &err);
            ck_assert_msg(result == SK_CAS_APPLIED, "%d: %s", (int)result, err.message);
        }
        record = after;
    }
    mf_close(&f);
    proxy_stop(proxy);
}
END_TEST

/* Thousands of slots, the free ones in one place only: found, and never more than there are. */
START_TEST(test_many_slots)
{
    struct sk_error err = {0};
    mongoc_collection_t *quota;
    mongoc_bulk_operation_t *bulk;
    bson_error_t error;
    bool granted;
    struct mf f;
    bson_t *counter;

    mf_open(&f, 0, "", 4);
    ck_assert_msg(OPS->setup(SELF, NULL, &err) == 0, "%s", err.message);
    quota = mf_collection(&f, "sandkeep_quota");
    bulk = mongoc_collection_create_bulk_operation_with_opts(quota, NULL);
    for (int i = 0; i < 3000; i++) {
        char id[32], holder[32], held[64];
        bson_t *doc;

        snprintf(id, sizeof(id), "global#%08d", i);
        snprintf(holder, sizeof(holder), "app-%016d", i);
        snprintf(held, sizeof(held), "global/%s", holder);
        doc = i == 2998 ? BCON_NEW("_id", BCON_UTF8(id), "scope", "global", "slot", BCON_INT64(i), "free",
                                   BCON_UTF8(id), "at", BCON_DATE_TIME(1))
                        : BCON_NEW("_id", BCON_UTF8(id), "scope", "global", "slot", BCON_INT64(i), "holder",
                                   BCON_UTF8(holder), "held", BCON_UTF8(held), "at", BCON_DATE_TIME(1));
        mongoc_bulk_operation_insert(bulk, doc);
        bson_destroy(doc);
    }
    counter = BCON_NEW("_id", "slots:global", "counts", "global", "slots", BCON_INT64(3000));
    mongoc_bulk_operation_insert(bulk, counter);
    bson_destroy(counter);
    ck_assert_msg(mongoc_bulk_operation_execute(bulk, NULL, &error) != 0, "%s", error.message);
    mongoc_bulk_operation_destroy(bulk);
    mongoc_collection_destroy(quota);
    ck_assert_msg(OPS->quota_reserve(SELF, NULL, "global", 2998, "app-new", &granted, &err) == 0 && !granted,
                  "below a lowered limit: %s", err.message);
    ck_assert_msg(OPS->quota_reserve(SELF, NULL, "global", 3000, "app-new", &granted, &err) == 0 && granted, "%s",
                  err.message);
    ck_assert_msg(OPS->quota_reserve(SELF, NULL, "global", 3000, "app-newer", &granted, &err) == 0 && !granted, "%s",
                  err.message);
    ck_assert_msg(OPS->quota_reserve(SELF, NULL, "global", 3001, "app-newer", &granted, &err) == 0 && granted, "%s",
                  err.message);
    mf_close(&f);
}
END_TEST

/* A slot that was counted but is gone comes back with the next recount. */
START_TEST(test_lost_slot)
{
    struct sk_error err = {0};
    mongoc_collection_t *quota;
    int64_t changed;
    bson_t *filter;
    bool granted;
    struct mf f;

    mf_open(&f, 0, "", 2);
    for (int i = 0; i < 3; i++) {
        char holder[32];

        snprintf(holder, sizeof(holder), "app-%d", i);
        ck_assert(OPS->quota_reserve(SELF, NULL, "team:x", 3, holder, &granted, &err) == 0 && granted);
    }
    quota = mf_collection(&f, "sandkeep_quota");
    filter = BCON_NEW("_id", "team:x#00000001");
    ck_assert(mongoc_collection_delete_one(quota, filter, NULL, NULL, NULL));
    bson_destroy(filter);
    mongoc_collection_destroy(quota);
    ck_assert(OPS->quota_reserve(SELF, NULL, "team:x", 3, "app-9", &granted, &err) == 0 && !granted);
    ck_assert_msg(OPS->quota_recount(SELF, NULL, NULL, 3600000, &changed, &err) == 0, "%s", err.message);
    ck_assert(OPS->quota_reserve(SELF, NULL, "team:x", 3, "app-9", &granted, &err) == 0 && granted);
    ck_assert(OPS->quota_reserve(SELF, NULL, "team:x", 3, "app-10", &granted, &err) == 0 && !granted);
    mf_close(&f);
}
END_TEST

/* Many reserve for the same few sandboxes at once, again and again: no number gets lost on the way. */
struct reservers {
    struct mf *f;
    int round;
    atomic_int failed;
};

static void reserve_same(void *arg, int index)
{
    struct reservers *r = arg;
    struct sk_error err;
    char scope[32], holder[32];
    bool granted = false;

    snprintf(scope, sizeof(scope), "team:%d", r->round);
    snprintf(holder, sizeof(holder), "app-%d", index % 4);
    if (r->f->store.ops->quota_reserve(r->f->store.self, NULL, scope, 4, holder, &granted, &err) != 0 || !granted)
        atomic_fetch_add(&r->failed, 1);
}

START_TEST(test_same_holders)
{
    struct reservers r;
    struct sk_error err = {0};
    struct mf f;

    mf_open(&f, 0, "", 16);
    ck_assert_msg(OPS->setup(SELF, NULL, &err) == 0, "%s", err.message);
    r = (struct reservers){.f = &f};
    for (r.round = 0; r.round < 25; r.round++) {
        mf_parallel(16, reserve_same, &r);
        ck_assert_msg(r.failed == 0, "round %d: %d reservations failed or were refused", r.round, r.failed);
    }
    mf_close(&f);
}
END_TEST

/* Records of consecutive milliseconds, walked in windows of a few: none falls between two windows. */
struct holdings {
    int count, bad;
    char last[SK_QUOTA_POSITION_SIZE];
};

static bool count_holding(void *arg, const struct sk_quota_holding *holding)
{
    struct holdings *holdings = arg;

    holdings->count++;
    holdings->bad += strcmp(holding->position, holdings->last) <= 0 || holding->taken_at <= 0 ||
                     (strcmp(holding->scope, "global") != 0 && strcmp(holding->scope, "team:a/b") != 0) ||
                     strncmp(holding->sandbox_id, "app-", 4) != 0;
    memcpy(holdings->last, holding->position, sizeof(holdings->last));
    return true;
}

/* Held slots of every scope, page by page; free ones and documents of others are none. */
START_TEST(test_holdings)
{
    struct holdings holdings = {0};
    struct sk_error err = {0};
    int pages = 0, before;
    bool granted;
    struct mf f;

    mf_open(&f, 0, "", 2);
    ck_assert_msg(OPS->setup(SELF, NULL, &err) == 0, "%s", err.message);
    ck_assert_int_eq(OPS->quota_list(SELF, NULL, "", 10, count_holding, &holdings, &err), 0);
    ck_assert_int_eq(holdings.count, 0);
    for (int i = 0; i < 25; i++) {
        char id[SK_SANDBOX_ID_SIZE];

        snprintf(id, sizeof(id), "app-%016x", i);
        ck_assert_int_eq(OPS->quota_reserve(SELF, NULL, i % 2 ? "global" : "team:a/b", 100, id, &granted, &err), 0);
        ck_assert(granted);
    }
    ck_assert_int_eq(OPS->quota_release(SELF, "global", "app-0000000000000001", &err), 0);
    {
        mongoc_collection_t *quota = mf_collection(&f, "sandkeep_quota");
        bson_t *doc = BCON_NEW("_id", "odd", "held", "global/app-0", "scope", BCON_INT32(7));

        ck_assert(mongoc_collection_insert_one(quota, doc, NULL, NULL, NULL));
        bson_destroy(doc);
        mongoc_collection_destroy(quota);
    }
    do {
        before = holdings.count;
        ck_assert_int_eq(OPS->quota_list(SELF, NULL, holdings.last, 10, count_holding, &holdings, &err), 0);
        pages++;
    } while (holdings.count > before);
    ck_assert_int_eq(holdings.count, 24);
    ck_assert_int_eq(holdings.bad, 0);
    ck_assert_int_eq(pages, 4);
    mf_close(&f);
}
END_TEST

START_TEST(test_narrow_windows)
{
    static struct sk_instance records[60];
    int64_t base = sk_wall_ms(&sk_sched_system) - 86400000;
    struct sk_store_mongo *store;
    struct sk_error err = {0};
    struct mf f;

    mf_open(&f, 0, "", 2);
    store = f.store.self;
    for (int i = 0; i < 60; i++) {
        struct sk_event event;
        bool created = false;

        sc_new(&f.c, &records[i], &event, "replica-a");
        records[i].has_operation = false;
        records[i].status = SK_STATUS_RUNNING;
        records[i].last_active_at = records[i].created_at = base + i;
        records[i].sequence = 0;
        ck_assert_msg(OPS->insert(SELF, NULL, &records[i], NULL, 0, &created, &err) == 0 && created, "%s", err.message);
    }
    for (int width = 1; width <= 4; width++) {
        for (int sort = SK_LIST_BY_LAST_ACTIVE_DESC; sort <= SK_LIST_BY_CREATED_DESC; sort++) {
            struct sk_list_filter filter = {.older_than = base + 50};
            char *cursor = NULL, *next;
            int found = 0;

            do {
                store->list_budget_us = -1;
                atomic_store(&store->hints.oldest_active, base + 20);
                atomic_store(&store->hints.width[sort], width);
                ck_assert_msg(OPS->list(SELF, NULL, &filter, (enum sk_list_sort)sort, cursor, 3, count_record, &found,
                                        &next, &err) == 0,
                              "%s", err.message);
                free(cursor);
                cursor = next;
            } while (cursor != NULL);
            ck_assert_msg(found == 50, "width %d, order %d: %d records instead of 50", width, sort, found);
        }
    }
    {
        struct sk_idle_cursor cursor = {0};
        int found = 0, calls = 0;

        atomic_store(&store->hints.oldest_running, base + 7);
        atomic_store(&store->hints.idle_width, 3);
        ck_assert_msg(OPS->scan_idle(SELF, NULL, &cursor, base + 50, 1000, count_record, &found, &err) == 0, "%s",
                      err.message);
        ck_assert_int_eq(found, 50);
        ck_assert_int_eq(cursor.last_active_at, 0);
        /* Without any time the walk goes on all the same, a window a call. */
        store->scan_budget_us = -1;
        found = 0;
        do {
            atomic_store(&store->hints.oldest_running, base + 7);
            atomic_store(&store->hints.idle_width, 3);
            ck_assert_msg(OPS->scan_idle(SELF, NULL, &cursor, base + 50, 1000, count_record, &found, &err) == 0, "%s",
                          err.message);
            ck_assert_int_lt(++calls, 50);
        } while (cursor.last_active_at != 0);
        ck_assert_int_eq(found, 50);
        ck_assert_int_gt(calls, 3);
    }
    mf_close(&f);
}
END_TEST

/* What the URI leaves open is set to what a record of truth needs; what it says is kept. */
START_TEST(test_uri)
{
    static const struct {
        const char *options;
        bool majority, majority_reads, retry_writes;
        int w;
    } rows[] = {
        {"", true, true, true, 0},
        {"w=majority&retryWrites=false", true, true, false, 0},
        {"w=1", false, false, true, 1},
        {"w=2&journal=true", false, false, true, 2},
        {"readConcernLevel=local", true, false, true, 0},
    };
    struct sk_error err;

    mf_driver();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const mongoc_write_concern_t *writes;
        const mongoc_read_concern_t *reads;
        struct sk_store_mongo *self;
        struct sk_store store;
        char uri[128];

        snprintf(uri, sizeof(uri), "mongodb://127.0.0.1:1/?%s", rows[i].options);
        ck_assert_int_eq(sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = uri, .pool_size = 1},
                                            &sk_sched_system, &store, &err),
                         0);
        self = store.self;
        writes = mongoc_uri_get_write_concern(self->uri);
        reads = mongoc_uri_get_read_concern(self->uri);
        ck_assert_int_eq(mongoc_write_concern_get_wmajority(writes), rows[i].majority);
        ck_assert(rows[i].majority || mongoc_write_concern_get_w(writes) == rows[i].w);
        ck_assert_int_eq(mongoc_read_concern_get_level(reads) != NULL &&
                             strcmp(mongoc_read_concern_get_level(reads), "majority") == 0,
                         rows[i].majority_reads);
        ck_assert_int_eq(self->retry_writes, rows[i].retry_writes);
        ck_assert_str_eq(self->database, "fastgpt");
        sk_store_mongo_free(&store);
    }
}
END_TEST

/* ---- TLS --------------------------------------------------------------------------------------- */

struct tls {
    char dir[64], certificate[96], key[96];
    pid_t pid;
    int port, control;
};

static bool run_quietly(const char *command)
{
    char line[512];

    snprintf(line, sizeof(line), "%s >/dev/null 2>&1", command);
    return system(line) == 0; /* constant text and names of mkdtemp */
}

static bool start_tls(struct tls *tls)
{
    char command[512], server[16], port[16] = "";
    int in[2], out[2];

    strcpy(tls->dir, "/tmp/sk-tls-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(tls->dir));
    snprintf(tls->certificate, sizeof(tls->certificate), "%s/cert.pem", tls->dir);
    snprintf(tls->key, sizeof(tls->key), "%s/key.pem", tls->dir);
    snprintf(command, sizeof(command),
             "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext "
             "subjectAltName=IP:127.0.0.1 -keyout %s -out %s",
             tls->key, tls->certificate);
    if (!run_quietly(command) || !run_quietly("python3 -c 'import ssl'"))
        return false;
    ck_assert_int_eq(pipe(in), 0);
    ck_assert_int_eq(pipe(out), 0);
    tls->pid = fork();
    if (tls->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        snprintf(server, sizeof(server), "%d", mf_server.port);
        execlp("python3", "python3", SK_TLS_PROXY, server, tls->certificate, tls->key, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    tls->control = in[1];
    for (size_t n = 0; n < sizeof(port) - 1 && read(out[0], port + n, 1) == 1 && port[n] != '\n'; n++)
        ;
    close(out[0]);
    tls->port = atoi(port);
    ck_assert_int_gt(tls->port, 0);
    return true;
}

static void end_tls(struct tls *tls)
{
    char command[160];

    close(tls->control);
    kill(tls->pid, SIGKILL);
    waitpid(tls->pid, NULL, 0);
    snprintf(command, sizeof(command), "rm -r %s", tls->dir);
    (void)run_quietly(command);
}

START_TEST(test_tls)
{
    struct sk_instance record, after;
    struct sk_error err = {0};
    struct sk_event event;
    struct tls tls;
    struct mf f;
    char options[256];
    unsigned sent;

    if (!start_tls(&tls)) {
        fprintf(stderr, "TLS test skipped: no openssl or python3\n");
        return;
    }
    snprintf(options, sizeof(options), "tls=true&tlsCAFile=%s", tls.certificate);
    mf_open(&f, tls.port, options, 1);
    ck_assert_msg(sc_running(&f.c, &record), "%s", f.c.failure);
    /* What left is counted above the encryption: one command, one more. */
    sent = ((struct sk_store_mongo *)f.store.self)->clients[0].sent;
    ck_assert_uint_eq(sent, 1);
    sc_claim(&f.c, &record, &after, &event, SK_OP_STOP, "replica-a");
    kill(tls.pid, SIGSTOP);
    {
        struct sk_call call;
        int64_t started_us = sk_mono_us(&sk_sched_system);

        sk_call_init(&call, &sk_sched_system);
        call.deadline_us = started_us + 300000;
        ck_assert_int_eq(OPS->cas(SELF, &call, &record, &after, &event, 1, NULL, &err), SK_CAS_ERROR);
        ck_assert_int_eq(err.outcome, SK_OUTCOME_UNKNOWN);
        ck_assert_int_lt((sk_mono_us(&sk_sched_system) - started_us) / 1000, 600);
    }
    kill(tls.pid, SIGCONT);
    /* The frozen request may still be carried out: what is true is read back, as the contract says. */
    sk_sleep_ms(&sk_sched_system, 200);
    {
        struct sk_instance now;
        bool found = false;

        ck_assert_msg(OPS->get(SELF, NULL, record.sandbox_id, &now, &found, &err) == 0 && found, "%s", err.message);
        ck_assert(now.epoch == record.epoch || now.epoch == after.epoch);
    }
    mf_close(&f);
    /* Nobody vouches for it: not connected, certainly nothing sent. */
    mf_open(&f, tls.port, "tls=true&serverSelectionTimeoutMS=500", 1);
    ck_assert_int_ne(OPS->ping(SELF, NULL, &err), 0);
    ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    mf_close(&f);
    mf_open(&f, tls.port, "tls=true&tlsAllowInvalidCertificates=true", 1);
    ck_assert_msg(OPS->ping(SELF, NULL, &err) == 0, "%s", err.message);
    mf_close(&f);
    end_tls(&tls);
}
END_TEST

/* ---- credentials ------------------------------------------------------------------------------- */

static void try_login(const char *credentials, int port, bool good)
{
    struct sk_command_record result = {.sandbox_id = "app-0123456789abcdef", .command_id = "c", .at = 1764500000000};
    static char text[] = "{}";
    struct sk_error err = {0};
    struct sk_store store;
    char uri[160];

    snprintf(uri, sizeof(uri), "mongodb://%s127.0.0.1:%d/auth?authSource=admin", credentials, port);
    ck_assert_int_eq(
        sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = uri, .pool_size = 1}, &sk_sched_system, &store, &err),
        0);
    result.result = text;
    if (good) {
        ck_assert_msg(store.ops->command_put(store.self, &result, 1, &err) == 0, "%s", err.message);
        /* One command, and the conversation before it does not count. */
        ck_assert_uint_eq(((struct sk_store_mongo *)store.self)->clients[0].sent, 1);
    } else {
        ck_assert_int_ne(store.ops->command_put(store.self, &result, 1, &err), 0);
        ck_assert_int_eq(err.code, SK_ERR_STORE_UNAVAILABLE);
        ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    }
    sk_store_mongo_free(&store);
}

/* A wrong password is a store that cannot be used, and certainly nothing was written. */
START_TEST(test_login)
{
    struct sk_test_server server;
    mongoc_client_t *client;
    bson_error_t error;
    bson_t *command = BCON_NEW("createUser", "sk", "pwd", "secret", "roles", "[", "root", "]");
    bool made;

    mf_driver();
    sk_test_server_start(&server, SK_TEST_MONGO, NULL);
    client = mongoc_client_new(server.url);
    made = mongoc_client_command_simple(client, "admin", command, NULL, NULL, &error);
    ck_assert_msg(made, "%s", error.message);
    mongoc_client_destroy(client);
    bson_destroy(command);
    sk_test_server_kill(&server);
    strcpy(server.extra, "--auth");
    sk_test_server_again(&server);
    try_login("sk:secret@", server.port, true);
    try_login("sk:wrong@", server.port, false);
    try_login("", server.port, false);
    sk_test_server_end(&server);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_early_pages, test_wrong_hints, test_cut_while_idle, test_closed_while_idle,
                                  test_many_slots,  test_lost_slot,   test_same_holders,   test_narrow_windows,
                                  test_uri,         test_tls,         test_login,          test_holdings};

    return mf_main("store_mongo_inside", tests, 12, 280);
}
