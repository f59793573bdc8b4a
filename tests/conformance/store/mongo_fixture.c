/* SPDX-License-Identifier: Apache-2.0
 * See mongo_fixture.h. */
#include "tests/conformance/store/mongo_fixture.h"

#include "common/log/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sk_test_server mf_server;

static void start_server(void)
{
    sk_test_server_start(&mf_server, SK_TEST_MONGO, NULL);
}

static void end_server(void)
{
    sk_test_server_end(&mf_server);
}

/* SK_TEST_ONLY=name runs one test of the program alone. */
static bool wanted(const TTest *test)
{
    const char *only = getenv("SK_TEST_ONLY");

    return only == NULL || strcmp(only, test->name) == 0;
}

int mf_main(const char *name, const TTest *const *tests, int count, int timeout_s)
{
    return mf_main_loop(name, NULL, 0, tests, count, timeout_s);
}

int mf_main_loop(const char *name, const TTest *looped, int rows, const TTest *const *tests, int count, int timeout_s)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    SRunner *runner;
    int failed;

    if (!sk_test_mongo_available()) {
        fprintf(stderr, "%s: the Mongo-wire server is not in the tools cache: skipped\n", name);
        return 77;
    }
    /* Unchecked: once, in this process, which the forked tests are children of. */
    tcase_add_unchecked_fixture(tcase, start_server, end_server);
    tcase_set_timeout(tcase, timeout_s);
    if (looped != NULL && wanted(looped))
        tcase_add_loop_test(tcase, looped, 0, rows);
    for (int i = 0; i < count; i++) {
        if (wanted(tests[i]))
            tcase_add_test(tcase, tests[i]);
    }
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Once per process: after mongoc_cleanup the driver cannot be initialised again. */
void mf_driver(void)
{
    static bool ready;

    if (!ready) {
        sk_store_mongo_init();
        atexit(mongoc_cleanup);
        ready = true;
    }
}

void mf_open(struct mf *f, int port, const char *options, int pool_size)
{
    struct sk_error err = {0};
    char raw[160], id[SK_ULID_SIZE];

    memset(f, 0, sizeof(*f));
    mf_driver();
    sk_log_set_level(SK_LOG_LEVEL_WARN);
    sk_ulid(&sk_sched_system, id);
    snprintf(f->database, sizeof(f->database), "t%s", id);
    snprintf(f->uri, sizeof(f->uri), "mongodb://127.0.0.1:%d/%s?%s", port != 0 ? port : mf_server.port, f->database,
             options);
    ck_assert_msg(
        sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = f->uri, .pool_size = pool_size, .source_check = true},
                           &sk_sched_system, &f->store, &err) == 0,
        "%s", err.message);
    snprintf(raw, sizeof(raw), "mongodb://127.0.0.1:%d/", mf_server.port);
    f->client = mongoc_client_new(raw);
    ck_assert_ptr_nonnull(f->client);
    mongoc_client_set_error_api(f->client, 2);
    f->db = mongoc_client_get_database(f->client, f->database);
    f->c = (struct sk_store_conformance){
        .store = &f->store, .sched = &sk_sched_system, .parallel = mf_parallel, .tasks = 64, .records = 150};
}

void mf_close(struct mf *f)
{
    mongoc_database_destroy(f->db);
    mongoc_client_destroy(f->client);
    sk_store_mongo_free(&f->store);
}

struct task {
    pthread_t thread;
    void (*run)(void *arg, int index);
    void *arg;
    int index;
    pthread_barrier_t *start;
};

static void *run_task(void *arg)
{
    struct task *task = arg;

    pthread_barrier_wait(task->start);
    task->run(task->arg, task->index);
    return NULL;
}

void mf_parallel(int count, void (*task)(void *arg, int index), void *arg)
{
    struct task *tasks = calloc((size_t)count, sizeof(*tasks));
    pthread_barrier_t start;

    ck_assert_ptr_nonnull(tasks);
    pthread_barrier_init(&start, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        tasks[i] = (struct task){.run = task, .arg = arg, .index = i, .start = &start};
        ck_assert_int_eq(pthread_create(&tasks[i].thread, NULL, run_task, &tasks[i]), 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(tasks[i].thread, NULL);
    pthread_barrier_destroy(&start);
    free(tasks);
}

mongoc_collection_t *mf_collection(struct mf *f, const char *name)
{
    return mongoc_client_get_collection(f->client, f->database, name);
}

void mf_put(struct mf *f, const char *collection, const bson_t *doc)
{
    mongoc_collection_t *handle = mf_collection(f, collection);
    bson_error_t error;

    ck_assert_msg(mongoc_collection_insert_one(handle, doc, NULL, NULL, &error), "%s", error.message);
    mongoc_collection_destroy(handle);
}

bson_t *mf_raw(struct mf *f, const char *sandbox_id)
{
    mongoc_collection_t *handle = mf_collection(f, INSTANCES);
    bson_t *filter = BCON_NEW("sandboxId", BCON_UTF8(sandbox_id)), *copy = NULL;
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(handle, filter, NULL, NULL);
    const bson_t *doc;

    if (mongoc_cursor_next(cursor, &doc))
        copy = bson_copy(doc);
    mongoc_cursor_destroy(cursor);
    bson_destroy(filter);
    mongoc_collection_destroy(handle);
    return copy;
}

void mf_update(struct mf *f, const char *sandbox_id, const bson_t *update)
{
    mongoc_collection_t *handle = mf_collection(f, INSTANCES);
    bson_t *filter = BCON_NEW("sandboxId", BCON_UTF8(sandbox_id)), reply;
    bson_error_t error;
    bson_iter_t iter;

    ck_assert_msg(mongoc_collection_update_one(handle, filter, update, NULL, &reply, &error), "%s", error.message);
    ck_assert(bson_iter_init_find(&iter, &reply, "matchedCount") && bson_iter_as_int64(&iter) == 1);
    bson_destroy(&reply);
    bson_destroy(filter);
    mongoc_collection_destroy(handle);
}

#ifdef __SANITIZE_THREAD__
/* Debian's driver is not instrumented: its atomic reference counts are invisible, and what the last holder frees looks
 * like a race with those who held it before. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:bson_destroy\n";
}
#endif
