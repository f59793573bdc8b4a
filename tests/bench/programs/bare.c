/* SPDX-License-Identifier: Apache-2.0
 *
 * The peer of the control plane: a client that does the three compare-and-sets of an operation (claim, phase, terminal)
 * on records as FastGPT writes them, in the collection and below the indexes of the product, and nothing else. Each
 * client is a thread with a connection and a record of its own. */
#include "tests/bench/programs/load.h"

#include "common/base/id.h"

#include <mongoc/mongoc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COLLECTION "agent_sandbox_instances_v2"

static struct {
    mongoc_client_pool_t *pool;
    const struct load_options *options;
    struct samples triples, claims, phases, terminals;
    atomic_bool measuring, ended;
    atomic_llong done;
    atomic_int failed;
    char database[64];
} s;

static void fail(const char *what, const bson_error_t *error)
{
    fprintf(stderr, "bare: %s: %s\n", what, error->message);
    exit(1);
}

static int64_t wall_ms(void)
{
    return sk_wall_ms(&sk_sched_system);
}

/* One compare-and-set by `update`, as the product does it. */
static void compare_and_set(mongoc_client_t *client, bson_t *filter, bson_t *update)
{
    bson_t command = BSON_INITIALIZER, updates, statement, reply;
    bson_error_t error;
    bson_iter_t iter;

    BSON_APPEND_UTF8(&command, "update", COLLECTION);
    BSON_APPEND_ARRAY_BEGIN(&command, "updates", &updates);
    BSON_APPEND_DOCUMENT_BEGIN(&updates, "0", &statement);
    BSON_APPEND_DOCUMENT(&statement, "q", filter);
    BSON_APPEND_DOCUMENT(&statement, "u", update);
    bson_append_document_end(&updates, &statement);
    bson_append_array_end(&command, &updates);
    if (!mongoc_client_write_command_with_opts(client, s.database, &command, NULL, &reply, &error))
        fail("compare-and-set", &error);
    if (!bson_iter_init_find(&iter, &reply, "n") || bson_iter_as_int64(&iter) != 1)
        atomic_fetch_add(&s.failed, 1);
    bson_destroy(&reply);
    bson_destroy(&command);
    bson_destroy(filter);
    bson_destroy(update);
}

static void claim(mongoc_client_t *client, const bson_oid_t *oid, bool start, const char *operation)
{
    int64_t now = wall_ms();

    compare_and_set(
        client,
        BCON_NEW("_id", BCON_OID(oid), "status", BCON_UTF8(start ? "stopped" : "running"), "operation", BCON_NULL),
        BCON_NEW("$set", "{", "status", BCON_UTF8(start ? "provisioning" : "stopping"), "operation", "{", "id",
                 BCON_UTF8(operation), "type", BCON_UTF8(start ? "provision" : "stop"), "phase", BCON_UTF8("claimed"),
                 "previousStatus", BCON_UTF8(start ? "stopped" : "running"), "startedAt", BCON_DATE_TIME(now),
                 "heartbeatAt", BCON_DATE_TIME(now), "}", "}"));
}

static bson_t *own(const bson_oid_t *oid, bool start, const char *operation)
{
    return BCON_NEW("_id", BCON_OID(oid), "status", BCON_UTF8(start ? "provisioning" : "stopping"), "operation.id",
                    BCON_UTF8(operation));
}

static void phase(mongoc_client_t *client, const bson_oid_t *oid, bool start, const char *operation)
{
    compare_and_set(client, own(oid, start, operation),
                    BCON_NEW("$set", "{", "operation.phase", BCON_UTF8(start ? "providerEnsured" : "providerStopped"),
                             "operation.heartbeatAt", BCON_DATE_TIME(wall_ms()), "}"));
}

static void terminal(mongoc_client_t *client, const bson_oid_t *oid, bool start, const char *operation)
{
    compare_and_set(client, own(oid, start, operation),
                    BCON_NEW("$set", "{", "status", BCON_UTF8(start ? "running" : "stopped"), "lastActiveAt",
                             BCON_DATE_TIME(wall_ms()), "}", "$unset", "{", "operation", BCON_INT32(1), "}"));
}

static void insert_record(mongoc_client_t *client, const bson_oid_t *oid, int index)
{
    char source_id[64], sandbox_id[64], unique[64], claim_name[160];
    bson_t command = BSON_INITIALIZER, documents, *document;
    bson_error_t error;
    int64_t now = wall_ms();

    snprintf(unique, sizeof(unique), "bare%d", (int)getpid());
    load_sandbox(unique, index, source_id, sandbox_id);
    snprintf(claim_name, sizeof(claim_name), "fastgpt-session-%s-0", sandbox_id);
    document = BCON_NEW("_id", BCON_OID(oid), "provider", BCON_UTF8("opensandbox"), "sandboxId", BCON_UTF8(sandbox_id),
                        "sourceType", BCON_UTF8("app"), "sourceId", BCON_UTF8(source_id), "userId", BCON_UTF8("bench"),
                        "status", BCON_UTF8("stopped"), "lastActiveAt", BCON_DATE_TIME(now), "createdAt",
                        BCON_DATE_TIME(now), "limit", "{", "cpuCount", BCON_INT32(1), "memoryMiB", BCON_INT32(2048),
                        "storageSize", BCON_UTF8("1Gi"), "}", "storage", "{", "volumes", "[", "{", "name",
                        BCON_UTF8("workspace"), "claimName", BCON_UTF8(claim_name), "mountPath",
                        BCON_UTF8("/workspace"), "}", "]", "mountPath", BCON_UTF8("/workspace"), "}", "image", "{",
                        "repository", BCON_UTF8("bench/instant"), "tag", BCON_UTF8("1"), "}");
    BSON_APPEND_UTF8(&command, "insert", COLLECTION);
    BSON_APPEND_ARRAY_BEGIN(&command, "documents", &documents);
    BSON_APPEND_DOCUMENT(&documents, "0", document);
    bson_append_array_end(&command, &documents);
    if (!mongoc_client_write_command_with_opts(client, s.database, &command, NULL, NULL, &error))
        fail("insert", &error);
    bson_destroy(&command);
    bson_destroy(document);
}

static void remove_record(mongoc_client_t *client, const bson_oid_t *oid)
{
    bson_t *command = BCON_NEW("delete", BCON_UTF8(COLLECTION), "deletes", "[", "{", "q", "{", "_id", BCON_OID(oid),
                               "}", "limit", BCON_INT32(1), "}", "]");
    bson_error_t error;

    if (!mongoc_client_write_command_with_opts(client, s.database, command, NULL, NULL, &error))
        fail("remove", &error);
    bson_destroy(command);
}

static void *run_client(void *arg)
{
    mongoc_client_t *client = mongoc_client_pool_pop(s.pool);
    bool start = true;
    bson_oid_t oid;

    bson_oid_init(&oid, NULL);
    insert_record(client, &oid, (int)(intptr_t)arg);
    while (!atomic_load(&s.ended)) {
        char operation[SK_UUID_SIZE];
        int64_t t0 = load_now_us(), t1, t2, t3;

        sk_uuid4(&sk_sched_system, operation);
        claim(client, &oid, start, operation);
        t1 = load_now_us();
        phase(client, &oid, start, operation);
        t2 = load_now_us();
        terminal(client, &oid, start, operation);
        t3 = load_now_us();
        start = !start;
        if (!atomic_load(&s.measuring))
            continue;
        atomic_fetch_add(&s.done, 1);
        samples_add(&s.triples, t3 - t0);
        samples_add(&s.claims, t1 - t0);
        samples_add(&s.phases, t2 - t1);
        samples_add(&s.terminals, t3 - t2);
    }
    remove_record(client, &oid);
    mongoc_client_pool_push(s.pool, client);
    return NULL;
}

int load_bare(const struct load_options *options)
{
    pthread_t *threads = calloc((size_t)options->clients, sizeof(*threads));
    mongoc_uri_t *uri;
    mongoc_write_concern_t *majority;
    bson_error_t error;
    int64_t begun_us, cpu_us, elapsed_us, done;
    json_t *out;

    mongoc_init();
    uri = mongoc_uri_new_with_error(options->mongo, &error);
    if (uri == NULL || threads == NULL)
        fail("URI", &error);
    sk_copy_cut(s.database, sizeof(s.database), mongoc_uri_get_database(uri));
    majority = mongoc_write_concern_new();
    mongoc_write_concern_set_wmajority(majority, 0);
    mongoc_uri_set_write_concern(uri, majority);
    mongoc_uri_set_option_as_int32(uri, MONGOC_URI_MAXPOOLSIZE, options->clients);
    mongoc_uri_set_option_as_bool(uri, MONGOC_URI_RETRYWRITES, false);
    s.pool = mongoc_client_pool_new(uri);
    s.options = options;
    samples_init(&s.triples);
    samples_init(&s.claims);
    samples_init(&s.phases);
    samples_init(&s.terminals);
    for (int i = 0; i < options->clients; i++)
        pthread_create(&threads[i], NULL, run_client, (void *)(intptr_t)i);
    usleep((useconds_t)(options->warm_up * 1e6));
    begun_us = load_now_us();
    cpu_us = load_cpu_us();
    atomic_store(&s.measuring, true);
    usleep((useconds_t)(options->seconds * 1e6));
    atomic_store(&s.measuring, false);
    elapsed_us = load_now_us() - begun_us;
    cpu_us = load_cpu_us() - cpu_us;
    done = atomic_load(&s.done);
    atomic_store(&s.ended, true);
    for (int i = 0; i < options->clients; i++)
        pthread_join(threads[i], NULL);
    out = json_pack("{s:i,s:I,s:f,s:f,s:f,s:o,s:o,s:o,s:o,s:i}", "clients", options->clients, "operations",
                    (json_int_t)done, "seconds", (double)elapsed_us / 1e6, "perSecond",
                    (double)done * 1e6 / (double)elapsed_us, "cpuUsPerOperation",
                    done > 0 ? (double)cpu_us / (double)done : 0.0, "triple", samples_json(&s.triples), "claim",
                    samples_json(&s.claims), "phase", samples_json(&s.phases), "terminal", samples_json(&s.terminals),
                    "lost", atomic_load(&s.failed));
    json_dumpf(out, stdout, JSON_COMPACT);
    printf("\n");
    return atomic_load(&s.failed) == 0 ? 0 : 1;
}
