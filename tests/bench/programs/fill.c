/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills the collection of instances: stopped ones of all ages, and running ones of which `--due` are idle for longer
 * than an hour. With --documents=0 it only lets that many running ones become due. */
#include "tests/bench/programs/load.h"

#include "common/base/id.h"

#include <mongoc/mongoc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLLECTION    "agent_sandbox_instances_v2"
#define BATCH         1000
#define RUNNING_EVERY 5 /* one of so many runs */
#define TEAMS         200
#define DAY_MS        86400000LL

static void must(bool done, const char *what, const bson_error_t *error)
{
    if (done)
        return;
    fprintf(stderr, "fill: %s: %s\n", what, error->message);
    exit(1);
}

static bson_t *make_record(const char *tag, int index, int64_t now)
{
    bool running = index % RUNNING_EVERY == 0;
    char source_id[64], sandbox_id[64], user_id[32], team_id[32], claim_name[160];
    /* Running: within the last 50 minutes; stopped: within the last 6 days. Spread by a multiplier, not by chance: the
     * same every time. */
    int64_t spread = (int64_t)((uint64_t)index * 2654435761u % 1000003u);
    int64_t active = now - (running ? spread * 3000000 / 1000003 : 2 * 3600000 + spread * 6 * DAY_MS / 1000003);

    load_sandbox(tag, index, source_id, sandbox_id);
    snprintf(user_id, sizeof(user_id), "bench");
    snprintf(team_id, sizeof(team_id), "team-%03d", index % TEAMS);
    snprintf(claim_name, sizeof(claim_name), "fastgpt-session-%s-0", sandbox_id);
    return BCON_NEW("provider", BCON_UTF8("opensandbox"), "sandboxId", BCON_UTF8(sandbox_id), "sourceType",
                    BCON_UTF8("app"), "sourceId", BCON_UTF8(source_id), "userId", BCON_UTF8(user_id), "teamId",
                    BCON_UTF8(team_id), "status", BCON_UTF8(running ? "running" : "stopped"), "lastActiveAt",
                    BCON_DATE_TIME(active), "createdAt", BCON_DATE_TIME(active - 60000 - spread * 1000), "epoch",
                    BCON_INT64(active), "sequence", BCON_INT64(3), "outbox", "[", "]", "limit", "{", "cpuCount",
                    BCON_INT32(1), "memoryMiB", BCON_INT32(2048), "storageSize", BCON_UTF8("1Gi"), "}", "storage", "{",
                    "volumes", "[", "{", "name", BCON_UTF8("workspace"), "claimName", BCON_UTF8(claim_name),
                    "mountPath", BCON_UTF8("/workspace"), "}", "]", "mountPath", BCON_UTF8("/workspace"), "}", "image",
                    "{", "repository", BCON_UTF8("bench/instant"), "tag", BCON_UTF8("1"), "}");
}

static void insert_batch(mongoc_client_t *client, const char *database, const char *tag, int first, int count)
{
    bson_t command = BSON_INITIALIZER, documents;
    int64_t now = sk_wall_ms(&sk_sched_system);
    bson_error_t error;
    char index[16];
    const char *position;
    bson_oid_t oid;

    BSON_APPEND_UTF8(&command, "insert", COLLECTION);
    BSON_APPEND_BOOL(&command, "ordered", false);
    BSON_APPEND_ARRAY_BEGIN(&command, "documents", &documents);
    for (int i = 0; i < count; i++) {
        bson_t *record = make_record(tag, first + i, now), document;

        bson_uint32_to_string((uint32_t)i, &position, index, sizeof(index));
        BSON_APPEND_DOCUMENT_BEGIN(&documents, position, &document);
        bson_oid_init(&oid, NULL);
        BSON_APPEND_OID(&document, "_id", &oid);
        bson_concat(&document, record);
        bson_append_document_end(&documents, &document);
        bson_destroy(record);
    }
    bson_append_array_end(&command, &documents);
    must(mongoc_client_write_command_with_opts(client, database, &command, NULL, NULL, &error), "insert", &error);
    bson_destroy(&command);
}

/* The first `due` running ones were last active two hours ago. */
static void make_due(mongoc_client_t *client, const char *database, const char *tag, int due)
{
    bson_t command = BSON_INITIALIZER, updates, statement, query, in, update, set;
    int64_t then = sk_wall_ms(&sk_sched_system) - 7200000;
    char index[16], source_id[64], sandbox_id[64];
    bson_error_t error;
    const char *position;

    BSON_APPEND_UTF8(&command, "update", COLLECTION);
    BSON_APPEND_ARRAY_BEGIN(&command, "updates", &updates);
    BSON_APPEND_DOCUMENT_BEGIN(&updates, "0", &statement);
    BSON_APPEND_DOCUMENT_BEGIN(&statement, "q", &query);
    BSON_APPEND_DOCUMENT_BEGIN(&query, "sandboxId", &in);
    {
        bson_t list;

        BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
        for (int i = 0; i < due; i++) {
            load_sandbox(tag, i * RUNNING_EVERY, source_id, sandbox_id);
            bson_uint32_to_string((uint32_t)i, &position, index, sizeof(index));
            BSON_APPEND_UTF8(&list, position, sandbox_id);
        }
        bson_append_array_end(&in, &list);
    }
    bson_append_document_end(&query, &in);
    bson_append_document_end(&statement, &query);
    BSON_APPEND_DOCUMENT_BEGIN(&statement, "u", &update);
    BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &set);
    BSON_APPEND_DATE_TIME(&set, "lastActiveAt", then);
    bson_append_document_end(&update, &set);
    bson_append_document_end(&statement, &update);
    BSON_APPEND_BOOL(&statement, "multi", true);
    bson_append_document_end(&updates, &statement);
    bson_append_array_end(&command, &updates);
    must(mongoc_client_write_command_with_opts(client, database, &command, NULL, NULL, &error), "update", &error);
    bson_destroy(&command);
}

int load_fill(const struct load_options *options)
{
    int64_t begun_us = load_now_us();
    mongoc_uri_t *uri;
    mongoc_client_t *client;
    bson_error_t error;
    const char *database;

    mongoc_init();
    uri = mongoc_uri_new_with_error(options->mongo, &error);
    must(uri != NULL, "URI", &error);
    database = mongoc_uri_get_database(uri);
    client = mongoc_client_new_from_uri(uri);
    for (int64_t done = 0; done < options->documents; done += BATCH) {
        int64_t left = options->documents - done;

        insert_batch(client, database, options->tag, (int)done, (int)(left < BATCH ? left : BATCH));
    }
    if (options->due > 0)
        make_due(client, database, options->tag, options->due);
    printf("{\"documents\":%lld,\"due\":%d,\"seconds\":%.3f}\n", (long long)options->documents, options->due,
           (double)(load_now_us() - begun_us) / 1e6);
    mongoc_client_destroy(client);
    return 0;
}
