/* SPDX-License-Identifier: Apache-2.0
 *
 * What the store costs. Usage: bench_store mongodb://host:port [cas|lists|all] [records]
 *   cas    claim, phase and commit by the store against the same three updates by a bare client of the driver, one
 *          sandbox and 64 at once, on the same server in the same run; processor time per change on our side.
 *   lists  pages of 50, scans and statistics over `records` (100,000) records.
 * Uses a database of its own (bench_store) and drops it at the end. Numbers are milliseconds. With BENCH_SERVER_PID the
 * server's processor time per change is shown too: it tells more than the clock on a busy machine. BENCH_NO_INDEXES
 * leaves the indexes out. */
#include "common/log/log.h"
#include "tests/conformance/store/fixture.h"

#include <mongoc/mongoc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define THREADS    64
#define POOL       16
#define SAMPLE_MAX 200000

struct samples {
    double *ms;
    int count;
};

static double now_ms(void)
{
    return (double)sk_mono_us(&sk_sched_system) / 1000;
}

static double cpu_ms(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/* Processor time of the server so far, 0 when its pid is not known. */
static double server_cpu_ms(void)
{
    const char *pid = getenv("BENCH_SERVER_PID");
    unsigned long user = 0, system = 0;
    char path[64];
    FILE *stat;

    if (pid == NULL)
        return 0;
    snprintf(path, sizeof(path), "/proc/%.16s/stat", pid);
    stat = fopen(path, "re");
    if (stat == NULL)
        return 0;
    if (fscanf(stat, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        user = system = 0;
    fclose(stat);
    return (double)(user + system) * 1000 / (double)sysconf(_SC_CLK_TCK);
}

static void add(struct samples *s, double ms)
{
    if (s->ms == NULL)
        s->ms = malloc(SAMPLE_MAX * sizeof(*s->ms));
    if (s->ms != NULL && s->count < SAMPLE_MAX)
        s->ms[s->count++] = ms;
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return left < right ? -1 : left > right;
}

static double percentile(struct samples *s, double p)
{
    if (s->count == 0)
        return 0;
    qsort(s->ms, (size_t)s->count, sizeof(*s->ms), by_value);
    return s->ms[(int)((double)(s->count - 1) * p)];
}

static void report(const char *name, struct samples *s)
{
    printf("  %-44s p50 %8.2f  p99 %8.2f  max %8.2f  (%d)\n", name, percentile(s, 0.5), percentile(s, 0.99),
           percentile(s, 1), s->count);
    fflush(stdout);
    s->count = 0;
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* ---- compare-and-set --------------------------------------------------------------------------- */

struct relay;

struct worker {
    pthread_t thread;
    struct sk_store_conformance c;
    mongoc_client_pool_t *pool;
    int index, cycles;
    bool bare;
    struct sk_instance *record;
    struct relay *relay;
    struct samples samples; /* of three changes */
};

/* The three updates of one operation as FastGPT writes them, on a record of the same size below the same indexes. */
static void bare_cycles(struct worker *w)
{
    for (int i = 0; i < w->cycles; i++) {
        const char *stable = i % 2 == 0 ? "running" : "stopped", *busy = i % 2 == 0 ? "stopping" : "provisioning";
        const char *next = i % 2 == 0 ? "stopped" : "running";
        int64_t wall = sk_wall_ms(&sk_sched_system);
        double start = now_ms();
        char id[40], op[SK_UUID_SIZE];

        snprintf(id, sizeof(id), "bare-%d", w->index);
        sk_uuid4(&sk_sched_system, op);
        for (int step = 0; step < 3; step++) {
            mongoc_client_t *client = mongoc_client_pool_pop(w->pool);
            mongoc_collection_t *records =
                mongoc_client_get_collection(client, "bench_store", "agent_sandbox_instances_v2");
            bson_t *filter =
                step == 0 ? BCON_NEW("_id", BCON_UTF8(id), "status", BCON_UTF8(stable), "operation", BCON_NULL)
                          : BCON_NEW("_id", BCON_UTF8(id), "status", BCON_UTF8(busy), "operation.id", BCON_UTF8(op));
            bson_t *update =
                step == 0   ? BCON_NEW("$set", "{", "status", BCON_UTF8(busy), "operation", "{", "id", BCON_UTF8(op),
                                       "type", "stop", "phase", "claimed", "previousStatus", BCON_UTF8(stable),
                                       "startedAt", BCON_DATE_TIME(wall), "heartbeatAt", BCON_DATE_TIME(wall), "}", "}")
                : step == 1 ? BCON_NEW("$set", "{", "operation.phase", "providerStopped", "operation.heartbeatAt",
                                       BCON_DATE_TIME(wall), "}")
                            : BCON_NEW("$set", "{", "status", BCON_UTF8(next), "lastActiveAt", BCON_DATE_TIME(wall),
                                       "}", "$unset", "{", "operation", BCON_INT32(1), "}");
            bson_error_t error;
            bson_iter_t iter;
            bson_t reply;

            if (!mongoc_collection_update_one(records, filter, update, NULL, &reply, &error))
                fail("bare update", error.message);
            if (!bson_iter_init_find(&iter, &reply, "modifiedCount") || bson_iter_as_int64(&iter) != 1)
                fail("bare update", "not applied");
            bson_destroy(&reply);
            bson_destroy(update);
            bson_destroy(filter);
            mongoc_collection_destroy(records);
            mongoc_client_pool_push(w->pool, client);
        }
        add(&w->samples, now_ms() - start);
    }
}

static void change(struct worker *w, struct sk_instance *record, const struct sk_instance *after,
                   const struct sk_event *event)
{
    struct sk_store_conformance *c = &w->c;
    struct sk_error err = {0};

    if (OPS->cas(SELF, NULL, record, after, event, 1, NULL, &err) != SK_CAS_APPLIED)
        fail("compare-and-set", err.message);
    *record = *after;
}

/* What the relay does beside the workers: every 20 ms one update clears the outboxes of everybody. */
struct relay {
    pthread_mutex_t lock;
    const struct sk_store *store;
    atomic_bool stop;
    char (*sandboxes)[SK_SANDBOX_ID_SIZE];
    char (*events)[SK_ULID_SIZE];
    int count;
};
#define RELAY_MAX 4096

static void hand_over(struct relay *relay, const struct sk_event *event)
{
    pthread_mutex_lock(&relay->lock);
    if (relay->count < RELAY_MAX) {
        memcpy(relay->sandboxes[relay->count], event->sandbox_id, SK_SANDBOX_ID_SIZE);
        memcpy(relay->events[relay->count++], event->id, SK_ULID_SIZE);
    }
    pthread_mutex_unlock(&relay->lock);
}

static void *run_relay(void *arg)
{
    struct relay *relay = arg;
    char(*sandboxes)[SK_SANDBOX_ID_SIZE] = calloc(RELAY_MAX, sizeof(*sandboxes));
    char(*events)[SK_ULID_SIZE] = calloc(RELAY_MAX, sizeof(*events));
    struct sk_error err = {0};

    while (!atomic_load(&relay->stop)) {
        int count;

        sk_sleep_ms(&sk_sched_system, 20);
        pthread_mutex_lock(&relay->lock);
        count = relay->count;
        memcpy(sandboxes, relay->sandboxes, (size_t)count * sizeof(*sandboxes));
        memcpy(events, relay->events, (size_t)count * sizeof(*events));
        relay->count = 0;
        pthread_mutex_unlock(&relay->lock);
        if (count > 0 &&
            relay->store->ops->outbox_pull(relay->store->self, (const char(*)[SK_SANDBOX_ID_SIZE])sandboxes, count,
                                           (const char(*)[SK_ULID_SIZE])events, count, &err) != 0)
            fail("pull", err.message);
    }
    free(sandboxes);
    free(events);
    return NULL;
}

/* stop, then provision, and so on: each claim, phase, commit. */
static void store_cycles(struct worker *w)
{
    struct sk_store_conformance *c = &w->c;
    struct sk_instance *record = w->record, *after = malloc(sizeof(*after));

    if (after == NULL)
        fail("memory", "none");
    for (int i = 0; i < w->cycles; i++) {
        bool stop = record->status == SK_STATUS_RUNNING;
        double start = now_ms();
        struct sk_event event;

        sc_claim(c, record, after, &event, stop ? SK_OP_STOP : SK_OP_PROVISION, "bench");
        change(w, record, after, &event);
        hand_over(w->relay, &event);
        sc_phase(c, record, after, &event, stop ? "providerStopped" : "providerEnsured");
        change(w, record, after, &event);
        hand_over(w->relay, &event);
        sc_complete(c, record, after, &event);
        change(w, record, after, &event);
        hand_over(w->relay, &event);
        add(&w->samples, now_ms() - start);
    }
    free(after);
}

static void *run_worker(void *arg)
{
    struct worker *w = arg;

    if (w->bare)
        bare_cycles(w);
    else
        store_cycles(w);
    return NULL;
}

/* One round: changes per second, processor time per change, and the times of three changes. */
struct round {
    double rate, cpu, server_cpu, p50, p99;
};

static struct round run_round(const struct sk_store *store, mongoc_client_pool_t *pool, struct sk_instance *records,
                              int threads, int cycles, bool bare)
{
    struct worker *workers = calloc((size_t)threads, sizeof(*workers));
    struct relay relay = {.store = store};
    struct samples all = {0};
    struct round round;
    pthread_t relay_thread;
    double start, cpu, server_cpu, elapsed;

    pthread_mutex_init(&relay.lock, NULL);
    relay.sandboxes = calloc(RELAY_MAX, sizeof(*relay.sandboxes));
    relay.events = calloc(RELAY_MAX, sizeof(*relay.events));
    start = now_ms();
    cpu = cpu_ms();
    server_cpu = server_cpu_ms();
    if (!bare && pthread_create(&relay_thread, NULL, run_relay, &relay) != 0)
        fail("thread", "cannot be made");
    for (int i = 0; i < threads; i++) {
        workers[i] = (struct worker){.c = {.store = store, .sched = &sk_sched_system},
                                     .pool = pool,
                                     .index = i,
                                     .cycles = cycles,
                                     .bare = bare,
                                     .record = &records[i],
                                     .relay = &relay};
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0)
            fail("thread", "cannot be made");
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        for (int k = 0; k < workers[i].samples.count; k++)
            add(&all, workers[i].samples.ms[k]);
        free(workers[i].samples.ms);
    }
    elapsed = now_ms() - start;
    cpu = cpu_ms() - cpu;
    atomic_store(&relay.stop, true);
    if (!bare)
        pthread_join(relay_thread, NULL);
    server_cpu = server_cpu_ms() - server_cpu;
    round = (struct round){(double)all.count * 3 / elapsed * 1000, cpu / ((double)all.count * 3),
                           server_cpu / ((double)all.count * 3), percentile(&all, 0.5), percentile(&all, 0.99)};
    free(all.ms);
    free(relay.sandboxes);
    free(relay.events);
    pthread_mutex_destroy(&relay.lock);
    free(workers);
    return round;
}

#define ROUNDS 7

static int by_rate(const void *a, const void *b)
{
    return by_value(&((const struct round *)a)->rate, &((const struct round *)b)->rate);
}

/* Bare and store take turns, so that a busy machine disturbs both; the median round of each counts. */
static void compare(const struct sk_store *store, mongoc_client_pool_t *pool, struct sk_instance *records, int threads,
                    int cycles)
{
    struct round bare[ROUNDS], ours[ROUNDS];
    struct round b, o;

    for (int i = 0; i < ROUNDS; i++) {
        bare[i] = run_round(store, pool, records, threads, cycles, true);
        ours[i] = run_round(store, pool, records, threads, cycles, false);
    }
    qsort(bare, ROUNDS, sizeof(*bare), by_rate);
    qsort(ours, ROUNDS, sizeof(*ours), by_rate);
    b = bare[ROUNDS / 2];
    o = ours[ROUNDS / 2];
    printf("  %2d at once, bare : %7.0f changes/s, three of them p50 %7.2f p99 %7.2f, %.3f ms of processor time each "
           "(server %.3f)\n",
           threads, b.rate, b.p50, b.p99, b.cpu, b.server_cpu);
    printf("  %2d at once, store: %7.0f changes/s, three of them p50 %7.2f p99 %7.2f, %.3f ms of processor time each "
           "(server %.3f)\n",
           threads, o.rate, o.p50, o.p99, o.cpu, o.server_cpu);
    printf("  %2d at once: %.0f %% of the bare rate, %.2f times the bare time\n", threads, o.rate / b.rate * 100,
           o.p50 / b.p50);
    fflush(stdout);
}

static void bench_cas(const char *uri, const struct sk_store *store)
{
    struct sk_instance *made = calloc(THREADS, sizeof(*made));
    struct sk_store_conformance c = {.store = store, .sched = &sk_sched_system};
    mongoc_uri_t *parsed = mongoc_uri_new(uri);
    mongoc_client_pool_t *pool;
    mongoc_client_t *client;
    mongoc_collection_t *records;

    mongoc_uri_set_option_as_int32(parsed, MONGOC_URI_MAXPOOLSIZE, POOL);
    pool = mongoc_client_pool_new(parsed);
    mongoc_client_pool_set_error_api(pool, 2);
    client = mongoc_client_pool_pop(pool);
    records = mongoc_client_get_collection(client, "bench_store", "agent_sandbox_instances_v2");
    for (int i = 0; i < THREADS; i++) {
        char id[40];
        bson_error_t error;
        bson_t *doc;

        snprintf(id, sizeof(id), "bare-%d", i);
        doc = BCON_NEW("_id", BCON_UTF8(id), "provider", "opensandbox", "sandboxId", BCON_UTF8(id), "sourceType", "app",
                       "sourceId", BCON_UTF8(id), "userId", "u", "status", "running", "lastActiveAt", BCON_DATE_TIME(1),
                       "createdAt", BCON_DATE_TIME(1), "limit", "{", "cpuCount", BCON_INT32(1), "memoryMiB",
                       BCON_INT32(2048), "storageSize", "1Gi", "}", "teamId", "t", "image", "{", "repository",
                       "registry.example/agent", "tag", "v1", "}", "storage", "{", "volumes", "[", "{", "name",
                       "workspace", "claimName", "fastgpt-session-app-0123456789abcdef-0", "mountPath", "/workspace",
                       "}", "]", "mountPath", "/workspace", "}");
        if (!mongoc_collection_insert_one(records, doc, NULL, NULL, &error))
            fail("insert", error.message);
        bson_destroy(doc);
    }
    mongoc_collection_destroy(records);
    mongoc_client_pool_push(pool, client);
    for (int i = 0; i < THREADS; i++) {
        if (!sc_running(&c, &made[i]))
            fail("record", c.failure);
    }
    compare(store, pool, made, 1, 50);
    compare(store, pool, made, THREADS, 10); /* an even number: the records end as they began */
    free(made);
    mongoc_client_pool_destroy(pool);
    mongoc_uri_destroy(parsed);
}

/* ---- lists ------------------------------------------------------------------------------------- */

/* Records as a year of use leaves them: mostly stopped and archived, 2 % in operation, spread over teams and days. */
static void load(const char *uri, int count)
{
    mongoc_client_t *client = mongoc_client_new(uri);
    mongoc_collection_t *records = mongoc_client_get_collection(client, "bench_store", "agent_sandbox_instances_v2");
    int64_t now = sk_wall_ms(&sk_sched_system);
    unsigned state = 12345;

    for (int done = 0; done < count;) {
        mongoc_bulk_operation_t *bulk = mongoc_collection_create_bulk_operation_with_opts(records, NULL);
        bson_error_t error;

        for (int end = done + 1000; done < end && done < count; done++) {
            struct sk_identity identity;
            struct sk_error err;
            char source[64], user[64], sandbox[SK_SANDBOX_ID_SIZE], team[32];
            const char *status = rand_r(&state) % 5 == 0 ? "running" : rand_r(&state) % 2 == 0 ? "stopped" : "archived";
            bool busy = done % 50 == 7;
            bson_t *doc;

            snprintf(source, sizeof(source), "source-%d", done % 3000);
            snprintf(user, sizeof(user), "user-%d", done / 3);
            snprintf(team, sizeof(team), "team-%d", done % 200);
            if (sk_identity_set(&identity, "app", source, strlen(source), user, strlen(user), &err) != 0)
                fail("identity", err.message);
            sk_identity_sandbox_id(&identity, sandbox);
            doc = BCON_NEW("provider", done % 100 == 0 ? "sealosdevbox" : "opensandbox", "sandboxId",
                           BCON_UTF8(sandbox), "sourceType", "app", "sourceId", BCON_UTF8(source), "userId",
                           BCON_UTF8(user), "status", BCON_UTF8(busy ? "provisioning" : status), "lastActiveAt",
                           BCON_DATE_TIME(now - (int64_t)(rand_r(&state) % 30000000) * 1000), "createdAt",
                           BCON_DATE_TIME(now - (int64_t)(rand_r(&state) % 30000000) * 1000), "limit", "{", "cpuCount",
                           BCON_INT32(1), "memoryMiB", BCON_INT32(2048), "storageSize", "1Gi", "}", "teamId",
                           BCON_UTF8(team), "image", "{", "repository", "r", "tag", "v", "}", "epoch", BCON_INT64(5),
                           "sequence", BCON_INT64(9), "outbox", "[", "]");
            if (busy)
                BCON_APPEND(doc, "operation", "{", "id", BCON_UTF8(sandbox), "type", "provision", "phase", "claimed",
                            "startedAt", BCON_DATE_TIME(now - done), "heartbeatAt", BCON_DATE_TIME(now - done), "jobId",
                            BCON_UTF8(sandbox), "}");
            mongoc_bulk_operation_insert(bulk, doc);
            bson_destroy(doc);
        }
        if (mongoc_bulk_operation_execute(bulk, NULL, &error) == 0)
            fail("load", error.message);
        mongoc_bulk_operation_destroy(bulk);
    }
    mongoc_collection_destroy(records);
    mongoc_client_destroy(client);
}

static bool ignore(void *arg, const struct sk_instance *instance, const struct sk_event *events, int count)
{
    (void)instance;
    (void)events;
    (void)count;
    ++*(int *)arg;
    return true;
}

/* Reads up to `pages` pages, the first ones of which begin anew every 10 pages. */
static void bench_list(const struct sk_store *store, const char *name, const struct sk_list_filter *filter,
                       enum sk_list_sort sort, int pages)
{
    struct samples samples = {0};
    char *cursor = NULL, *next;
    int records = 0;

    for (int page = 0; page < pages; page++) {
        struct sk_error err = {0};
        double start = now_ms();

        if (page % 10 == 0) {
            free(cursor);
            cursor = NULL;
        }
        if (store->ops->list(store->self, NULL, filter, sort, cursor, 50, ignore, &records, &next, &err) != 0)
            fail(name, err.message);
        add(&samples, now_ms() - start);
        free(cursor);
        cursor = next;
    }
    free(cursor);
    report(name, &samples);
    free(samples.ms);
}

static void bench_idle(const struct sk_store *store, const char *name, int64_t before_ms, int limit, bool go_on)
{
    struct samples samples = {0};
    struct sk_idle_cursor cursor = {0};
    int records = 0;

    for (int i = 0; i < 50; i++) {
        struct sk_error err = {0};
        double start = now_ms();

        if (!go_on)
            memset(&cursor, 0, sizeof(cursor));
        if (store->ops->scan_idle(store->self, NULL, &cursor, before_ms, limit, ignore, &records, &err) != 0)
            fail(name, err.message);
        add(&samples, now_ms() - start);
    }
    report(name, &samples);
    free(samples.ms);
}

static void bench_scan(const struct sk_store *store, const char *name, enum sk_scan_kind kind, int limit)
{
    struct samples samples = {0};
    int records = 0;

    for (int i = 0; i < 50; i++) {
        struct sk_error err = {0};
        double start = now_ms();

        if (store->ops->scan(store->self, NULL, kind, 0, limit, ignore, &records, &err) != 0)
            fail(name, err.message);
        add(&samples, now_ms() - start);
    }
    report(name, &samples);
    free(samples.ms);
}

static void bench_lists(const char *uri, const struct sk_store *store, int count)
{
    static const struct {
        const char *name;
        struct sk_list_filter filter;
    } filters[] = {
        {"all", {.statuses = 0}},
        {"team", {.team_id = "team-7"}},
        {"source", {.source_id = "source-77"}},
        {"user", {.user_id = "user-99"}},
        {"running", {.statuses = 1u << SK_STATUS_RUNNING}},
        {"running or stopped", {.statuses = 1u << SK_STATUS_RUNNING | 1u << SK_STATUS_STOPPED}},
        {"in progress", {.statuses = 1u << SK_STATUS_PROVISIONING}},
        {"blocked", {.blocked = 1}},
        {"a provider of 1 %", {.provider = "sealosdevbox"}},
        {"team and status", {.team_id = "team-8", .statuses = 1u << SK_STATUS_ARCHIVED}},
    };
    static const char *const sorts[] = {"newest activity", "oldest activity", "newest", "by id"};
    struct sk_error err = {0};
    struct samples samples = {0};
    int64_t now = sk_wall_ms(&sk_sched_system);
    double start = now_ms();

    load(uri, count);
    printf("  %d records loaded in %.1f s\n", count, (now_ms() - start) / 1000);
    for (size_t f = 0; f < sizeof(filters) / sizeof(filters[0]); f++) {
        for (int sort = 0; sort < 4; sort++) {
            char name[80];

            snprintf(name, sizeof(name), "50 of %s, %s", filters[f].name, sorts[sort]);
            bench_list(store, name, &filters[f].filter, (enum sk_list_sort)sort, 60);
        }
    }
    bench_idle(store, "idle scan, nothing due", now - 40000000LL * 1000, 100, false);
    bench_idle(store, "idle scan, 100 of many due", now, 100, false);
    bench_idle(store, "idle scan, the next 1,024 of many", now, 1024, true);
    bench_scan(store, "pending outboxes", SK_SCAN_OUTBOX, 300);
    bench_scan(store, "100 of all in progress", SK_SCAN_TRANSITIONAL, 100);
    for (int i = 0; i < 3; i++) {
        struct sk_stats stats;

        start = now_ms();
        if (store->ops->stats(store->self, NULL, &stats, &err) != 0)
            fail("stats", err.message);
        add(&samples, now_ms() - start);
    }
    report("statistics (the first counts)", &samples);
    free(samples.ms);
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[2] : "all";
    struct sk_error err = {0};
    struct sk_store store;
    mongoc_client_t *client;
    mongoc_database_t *database;
    char uri[512];

    if (argc < 2) {
        fprintf(stderr, "usage: %s mongodb://host:port [cas|lists|all] [records]\n", argv[0]);
        return 2;
    }
    sk_log_set_level(SK_LOG_LEVEL_WARN);
    sk_store_mongo_init();
    snprintf(uri, sizeof(uri), "%s/bench_store", argv[1]);
    client = mongoc_client_new(uri);
    if (client == NULL)
        fail("URI", "not valid");
    database = mongoc_client_get_database(client, "bench_store");
    (void)mongoc_database_drop(database, NULL);
    if (sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = uri, .pool_size = POOL}, &sk_sched_system, &store,
                           &err) != 0 ||
        (getenv("BENCH_NO_INDEXES") == NULL && store.ops->setup(store.self, NULL, &err) != 0))
        fail("store", err.message);
    if (strcmp(what, "lists") != 0)
        bench_cas(uri, &store);
    if (strcmp(what, "cas") != 0)
        bench_lists(uri, &store, argc > 3 ? atoi(argv[3]) : 100000);
    sk_store_mongo_free(&store);
    (void)mongoc_database_drop(database, NULL);
    mongoc_database_destroy(database);
    mongoc_client_destroy(client);
    mongoc_cleanup();
    return 0;
}
