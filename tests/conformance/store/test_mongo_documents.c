/* SPDX-License-Identifier: Apache-2.0
 *
 * Documents of others: what FastGPT wrote without our fields is read and upgraded in place, what nobody should have
 * written is reported and left alone, and what we write has exactly the types that mongoose gives. Besides: indexes
 * beside those of FastGPT, and the source collections. */
#include "tests/conformance/store/fixture.h"
#include "tests/conformance/store/mongo_fixture.h"

#include <stdio.h>
#include <string.h>

#undef OPS
#undef SELF
#define OPS  (f.store.ops)
#define SELF (f.store.self)

#define T0 1764500000000

/* ---- documents of the wrong shape -------------------------------------------------------------- */

/* Each row is an update of a good record, in extended JSON, and what the reason must name. */
static const struct {
    const char *update, *names;
} malformed[] = {
    {"{\"$set\": {\"status\": \"sleeping\"}}", "status"},
    {"{\"$set\": {\"status\": \"none\"}}", "status"},
    {"{\"$set\": {\"status\": 7}}", "status"},
    {"{\"$set\": {\"status\": null}}", "status"},
    {"{\"$unset\": {\"status\": 1}}", "status"},
    {"{\"$set\": {\"status\": [\"running\"]}}", "status"},
    {"{\"$set\": {\"provider\": {}}}", "provider"},
    {"{\"$unset\": {\"provider\": 1}}", "provider"},
    {"{\"$set\": {\"provider\": \"a provider with far too long a name\"}}", "provider"},
    {"{\"$set\": {\"sourceType\": \"chatAgentHelper\"}}", "sourceType"},
    {"{\"$set\": {\"sourceType\": \"workflowBuilder\"}}", "source type"},
    {"{\"$set\": {\"sourceId\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e501\"}}}", "sourceId"},
    {"{\"$set\": {\"sourceId\": \"\"}}", "identity"},
    {"{\"$set\": {\"userId\": null}}", "identity"},
    {"{\"$set\": {\"userId\": \"a\\u0000b\"}}", "userId"},
    {"{\"$set\": {\"lastActiveAt\": \"2026-11-30T00:00:00Z\"}}", "lastActiveAt"},
    {"{\"$set\": {\"lastActiveAt\": {\"$date\": {\"$numberLong\": \"-5\"}}}}", "lastActiveAt"},
    {"{\"$unset\": {\"createdAt\": 1}}", "createdAt"},
    {"{\"$set\": {\"createdAt\": 1764500000000}}", "createdAt"},
    {"{\"$set\": {\"limit\": \"1 CPU\"}}", "limit"},
    {"{\"$set\": {\"limit.cpuCount\": \"one\"}}", "limit.cpuCount"},
    {"{\"$set\": {\"limit.cpuCount\": {\"$numberDouble\": \"NaN\"}}}", "limit.cpuCount"},
    {"{\"$set\": {\"limit.memoryMiB\": {\"$numberDouble\": \"Infinity\"}}}", "limit.memoryMiB"},
    {"{\"$set\": {\"limit.memoryMiB\": -1}}", "limit.memoryMiB"},
    {"{\"$set\": {\"limit.storageSize\": \"more than sixteen bytes\"}}", "limit.storageSize"},
    {"{\"$set\": {\"storage\": []}}", "storage"},
    {"{\"$set\": {\"storage\": {\"volumes\": {}}}}", "storage.volumes"},
    {"{\"$set\": {\"storage\": {\"volumes\": [\"workspace\"]}}}", "storage.volumes"},
    {"{\"$set\": {\"storage\": {\"volumes\": [{\"claimName\": \"x\"}]}}}", "storage.volumes"},
    {"{\"$set\": {\"storage\": {\"volumes\": [{\"name\": \"workspace\", \"claimName\": 5}]}}}", "claimName"},
    {"{\"$set\": {\"storage.mountPath\": 5}}", "storage.mountPath"},
    {"{\"$set\": {\"image\": \"repo:tag\"}}", "image"},
    {"{\"$set\": {\"image\": {}}}", "repository"},
    {"{\"$set\": {\"image.tag\": 1}}", "image.tag"},
    {"{\"$set\": {\"teamId\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e501\"}}}", "teamId"},
    {"{\"$set\": {\"versionId\": false}}", "versionId"},
    {"{\"$unset\": {\"operation\": 1}}", "operation"},
    {"{\"$set\": {\"operation\": null}}", "operation"},
    {"{\"$set\": {\"operation\": \"provision\"}}", "operation"},
    {"{\"$set\": {\"operation\": {}}}", "operation"},
    {"{\"$set\": {\"operation.id\": 5}}", "operation.id"},
    {"{\"$set\": {\"operation.id\": \"\"}}", "id"},
    {"{\"$set\": {\"operation.id\": \"0123456789012345678901234567890123456789\"}}", "operation.id"},
    {"{\"$set\": {\"operation.type\": \"hibernate\"}}", "operation.type"},
    {"{\"$set\": {\"operation.type\": \"stop\"}}", "operation"},
    {"{\"$set\": {\"operation.phase\": \"rollbackProviderDeleted\"}}", "phase"},
    {"{\"$set\": {\"operation.phase\": 3}}", "operation.phase"},
    {"{\"$set\": {\"operation.previousStatus\": \"stopping\"}}", "previousStatus"},
    {"{\"$set\": {\"operation.previousStatus\": 1}}", "previousStatus"},
    {"{\"$unset\": {\"operation.startedAt\": 1}}", "start"},
    {"{\"$set\": {\"operation.heartbeatAt\": 12}}", "operation.heartbeatAt"},
    {"{\"$set\": {\"operation.failedAt\": true}}", "operation.failedAt"},
    {"{\"$set\": {\"operation.error\": {\"message\": \"x\"}}}", "operation.error"},
    {"{\"$set\": {\"operation.attempt\": -1}}", "operation.attempt"},
    {"{\"$set\": {\"operation.attempt\": 1.5}}", "operation.attempt"},
    {"{\"$set\": {\"operation.attempt\": {\"$numberLong\": \"9223372036854775807\"}}}", "operation.attempt"},
    {"{\"$set\": {\"operation.nextAttemptAt\": \"soon\"}}", "operation.nextAttemptAt"},
    {"{\"$set\": {\"operation.owner\": []}}", "operation.owner"},
    {"{\"$unset\": {\"operation.jobId\": 1}}", "job"},
    {"{\"$set\": {\"operation.commandId\": 1}}", "operation.commandId"},
    {"{\"$set\": {\"operation.deadlineAt\": {}}}", "operation.deadlineAt"},
    {"{\"$set\": {\"operation.blocked\": true}}", "operation.blocked"},
    {"{\"$set\": {\"epoch\": \"7\"}}", "epoch"},
    {"{\"$set\": {\"epoch\": -7}}", "epoch"},
    {"{\"$set\": {\"epoch\": 0}}", "epoch"},
    {"{\"$set\": {\"epoch\": 1e300}}", "epoch"},
    {"{\"$set\": {\"sequence\": {\"$numberLong\": \"9223372036854775807\"}}}", "sequence"},
    {"{\"$set\": {\"lastOperation\": 1}}", "lastOperation"},
    {"{\"$set\": {\"lastOperation\": {\"type\": \"nap\"}}}", "lastOperation.type"},
    {"{\"$set\": {\"lastOperation\": {\"result\": \"a very long result indeed\"}}}", "lastOperation.result"},
    {"{\"$set\": {\"pins\": {}}}", "pins"},
    {"{\"$set\": {\"pins\": [1]}}", "pins"},
    {"{\"$set\": {\"pins\": [{\"id\": \"x\"}]}}", "pins"},
    {"{\"$set\": {\"pins\": [{\"id\": \"x\", \"expiresAt\": \"later\"}]}}", "pins"},
    {"{\"$set\": {\"outbox\": \"full\"}}", "outbox"},
    {"{\"$set\": {\"outbox\": [\"event\"]}}", "outbox"},
    {"{\"$set\": {\"outbox\": [{\"id\": \"01J\"}]}}", "outbox"},
    {"{\"$set\": {\"outbox\": [{\"id\": \"01J\", \"type\": \"lifecycle.exploded\", \"sequence\": 1}]}}", "outbox"},
    {"{\"$set\": {\"outbox\": [{\"id\": 5, \"type\": \"lifecycle.claimed\", \"sequence\": 1}]}}", "outbox"},
};
#define MALFORMED_COUNT (sizeof(malformed) / sizeof(malformed[0]))

struct seen {
    const char *sandbox_id;
    int found, malformed;
};

static bool note(void *arg, const struct sk_instance *instance, const struct sk_event *events, int count)
{
    struct seen *seen = arg;

    (void)events;
    (void)count;
    if (strcmp(instance->sandbox_id, seen->sandbox_id) == 0) {
        seen->found++;
        seen->malformed += instance->malformed;
    }
    return true;
}

START_TEST(test_malformed)
{
    struct sk_error err = {0};
    struct sk_idle_cursor idle;
    struct mf f;

    mf_open(&f, 0, "", 4);
    ck_assert_msg(OPS->setup(SELF, NULL, &err) == 0, "%s", err.message);
    for (size_t i = 0; i < MALFORMED_COUNT; i++) {
        struct sk_instance good, out, after;
        struct sk_event event;
        struct sk_list_filter filter = {.older_than = 0};
        struct seen seen = {0};
        bson_t *update, *before, *now;
        bson_error_t error;
        bool found = false;
        char *next = NULL;
        json_t *shown;

        ck_assert_msg(sc_insert(&f.c, &good), "%s", f.c.failure);
        update = bson_new_from_json((const uint8_t *)malformed[i].update, -1, &error);
        ck_assert_msg(update != NULL, "%s: %s", malformed[i].update, error.message);
        mf_update(&f, good.sandbox_id, update);
        before = mf_raw(&f, good.sandbox_id);
        ck_assert_msg(OPS->get(SELF, NULL, good.sandbox_id, &out, &found, &err) == 0 && found, "%s: %s",
                      malformed[i].update, err.message);
        ck_assert_msg(out.malformed, "%s was accepted", malformed[i].update);
        ck_assert_msg(strstr(out.malformed_reason, malformed[i].names) != NULL, "%s: \"%s\" does not name %s",
                      malformed[i].update, out.malformed_reason, malformed[i].names);
        ck_assert_str_eq(out.sandbox_id, good.sandbox_id);
        shown = sk_instance_public_json(&out);
        ck_assert_ptr_nonnull(shown);
        ck_assert_ptr_nonnull(json_object_get(shown, "malformed"));
        json_decref(shown);
        /* It is left alone by everything that changes records by a plan. */
        after = out;
        after.last_active_at++;
        ck_assert_int_eq(OPS->cas(SELF, NULL, &out, &after, NULL, 0, NULL, &err), SK_CAS_ERROR);
        ck_assert_int_eq(err.code, SK_ERR_INTERNAL);
        sc_claim(&f.c, &out, &after, &event, SK_OP_DELETE, "replica-a");
        ck_assert_int_eq(OPS->cas(SELF, NULL, &out, &after, &event, 1, NULL, &err), SK_CAS_ERROR);
        now = mf_raw(&f, good.sandbox_id);
        ck_assert_msg(bson_equal(before, now), "%s: the document was changed", malformed[i].update);
        /* Everything that looks at many records survives it, and shows it where it is looked for by id. */
        seen.sandbox_id = good.sandbox_id;
        ck_assert_int_eq(OPS->scan(SELF, NULL, SK_SCAN_TRANSITIONAL, 0, 1000, note, &seen, &err), 0);
        ck_assert_int_eq(OPS->scan(SELF, NULL, SK_SCAN_OUTBOX, 0, 1000, note, &seen, &err), 0);
        idle = (struct sk_idle_cursor){0};
        ck_assert_int_eq(
            OPS->scan_idle(SELF, NULL, &idle, sk_wall_ms(&sk_sched_system) + 1000, 1000, note, &seen, &err), 0);
        ck_assert_int_eq(idle.last_active_at, 0);
        ck_assert_int_eq(seen.found, seen.malformed);
        memset(&seen, 0, sizeof(seen));
        seen.sandbox_id = good.sandbox_id;
        ck_assert_msg(OPS->list(SELF, NULL, &filter, SK_LIST_BY_SANDBOX_ID, NULL, 500, note, &seen, &next, &err) == 0,
                      "%s", err.message);
        ck_assert_ptr_null(next);
        ck_assert_int_eq(seen.malformed, 1);
        bson_destroy(update);
        bson_destroy(before);
        bson_destroy(now);
    }
    {
        struct sk_stats stats;

        ck_assert_int_eq(OPS->stats(SELF, NULL, &stats, &err), 0);
        ck_assert_int_gt(stats.malformed, 20);
    }
    mf_close(&f);
}
END_TEST

/* Ids that no sandbox has: another _id, another sandboxId, none at all. */
START_TEST(test_strange_ids)
{
    static const char *const docs[] = {
        "{\"_id\": \"text\", \"sandboxId\": \"app-00000000000000aa\", \"status\": \"running\"}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e501\"}, \"sandboxId\": \"APP\", \"status\": \"running\"}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e502\"}, \"sandboxId\": \"zzz\", \"status\": \"running\"}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e503\"}, \"sandboxId\": \"app-XYZ\", \"status\": \"running\"}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e504\"}, \"sandboxId\": \"skilledit-ffffffffffffffffff\", "
        "\"status\": \"running\"}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e505\"}, \"sandboxId\": \"\", \"status\": \"running\"}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e506\"}, \"status\": \"running\"}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e507\"}, \"sandboxId\": "
        "\"app-this-id-is-so-very-long-that-it-cannot-be-held-by-anything-of-ours\", \"status\": \"running\"}",
    };
    struct sk_list_filter filter = {.older_than = 0};
    struct seen seen = {.sandbox_id = "zzz"};
    struct sk_error err = {0};
    struct sk_stats stats;
    struct mf f;
    char *cursor = NULL, *next;
    int pages = 0;

    mf_open(&f, 0, "", 2);
    for (size_t i = 0; i < sizeof(docs) / sizeof(docs[0]); i++) {
        bson_error_t error;
        bson_t *doc = bson_new_from_json((const uint8_t *)docs[i], -1, &error);

        ck_assert_msg(doc != NULL, "%s", error.message);
        mf_put(&f, INSTANCES, doc);
        bson_destroy(doc);
    }
    do {
        ck_assert_msg(OPS->list(SELF, NULL, &filter, SK_LIST_BY_SANDBOX_ID, cursor, 1, note, &seen, &next, &err) == 0,
                      "%s", err.message);
        free(cursor);
        cursor = next;
        ck_assert_int_lt(pages++, 50);
    } while (cursor != NULL);
    ck_assert_int_eq(seen.found, 1);
    ck_assert_int_eq(OPS->stats(SELF, NULL, &stats, &err), 0);
    ck_assert_int_eq(stats.by_status[SK_STATUS_RUNNING], 8);
    mf_close(&f);
}
END_TEST

/* ---- documents of FastGPT ---------------------------------------------------------------------- */

static void put_fastgpt(struct mf *f, const struct sk_identity *identity, const char *rest)
{
    char sandbox_id[SK_SANDBOX_ID_SIZE], json[4096];
    bson_error_t error;
    bson_t *doc;

    sk_identity_sandbox_id(identity, sandbox_id);
    snprintf(json, sizeof(json),
             "{\"provider\": \"opensandbox\", \"sandboxId\": \"%s\", \"sourceType\": \"app\", \"sourceId\": \"%s\", "
             "\"userId\": \"%s\", "
             "\"lastActiveAt\": {\"$date\": {\"$numberLong\": \"%lld\"}}, \"createdAt\": {\"$date\": {\"$numberLong\": "
             "\"%lld\"}}, "
             "\"__v\": 0, %s}",
             sandbox_id, identity->source_id, identity->user_id, (long long)T0, (long long)T0 - 1000, rest);
    doc = bson_new_from_json((const uint8_t *)json, -1, &error);
    ck_assert_msg(doc != NULL, "%s", error.message);
    mf_put(f, INSTANCES, doc);
    bson_destroy(doc);
}

static struct sk_identity identity_of(const char *source, const char *user)
{
    struct sk_identity identity;
    struct sk_error err;

    ck_assert_int_eq(sk_identity_set(&identity, "app", source, strlen(source), user, strlen(user), &err), 0);
    return identity;
}

static bson_type_t type_at(const bson_t *doc, const char *path)
{
    bson_iter_t iter, value;

    return bson_iter_init(&iter, doc) && bson_iter_find_descendant(&iter, path, &value) ? bson_iter_type(&value)
                                                                                        : BSON_TYPE_EOD;
}

static int64_t number_at(const bson_t *doc, const char *path)
{
    bson_iter_t iter, value;

    return bson_iter_init(&iter, doc) && bson_iter_find_descendant(&iter, path, &value) ? bson_iter_as_int64(&value)
                                                                                        : -1;
}

static const char *text_at(const bson_t *doc, const char *path)
{
    bson_iter_t iter, value;

    return bson_iter_init(&iter, doc) && bson_iter_find_descendant(&iter, path, &value) && BSON_ITER_HOLDS_UTF8(&value)
               ? bson_iter_utf8(&value, NULL)
               : "";
}

/* A running record, with unknown fields everywhere: claimed, and nothing of it is lost. */
START_TEST(test_upgrade)
{
    struct sk_identity identity = identity_of("66a1f0c2b7d4e8a1c0d3e501", "66b2aa10c4f3d5e7a9b1c201");
    struct sk_instance record, after;
    struct sk_error err = {0};
    struct sk_event event;
    struct mf f;
    bson_t *raw;
    bool found = false;

    mf_open(&f, 0, "", 2);
    put_fastgpt(
        &f, &identity,
        "\"status\": \"running\", \"limit\": {\"cpuCount\": 1, \"memoryMiB\": 2048, \"diskGiB\": 5}, \"storage\": "
        "{\"volumes\": "
        "[{\"name\": \"cache\", \"mountPath\": \"/cache\"}, {\"name\": \"workspace\", \"claimName\": \"claim-0\", "
        "\"mountPath\": \"/workspace\", \"readOnly\": false}], \"mountPath\": \"/workspace\", \"more\": 1}, \"image\": "
        "{\"repository\": \"r\", \"digest\": \"sha256:x\"}, \"teamId\": null, \"metadata\": {\"a\": 1}");
    ck_assert_msg(OPS->find(SELF, NULL, &identity, &record, &found, &err) == 0 && found, "%s", err.message);
    ck_assert_msg(!record.malformed, "%s", record.malformed_reason);
    ck_assert_int_eq(record.epoch, 0);
    ck_assert_int_eq(record.sequence, 0);
    ck_assert_str_eq(record.storage.claim_name, "claim-0");
    ck_assert_int_eq(record.storage.volume_index, 1);
    ck_assert(!record.has_operation && record.team_id[0] == '\0' && record.outbox_count == 0);
    sc_claim(&f.c, &record, &after, &event, SK_OP_STOP, "replica-a");
    ck_assert_msg(sc_apply(&f.c, &record, &after, &event, "claim"), "%s", f.c.failure);
    /* The upgrade in place, and a change deep inside. */
    after = record;
    strcpy(after.storage.claim_name, "claim-1");
    strcpy(after.image.tag, "v2");
    after.limit.cpu_count = 0.5;
    strcpy(after.limit.storage_size, "5Gi");
    strcpy(after.team_id, "team");
    ck_assert_msg(sc_apply(&f.c, &record, &after, NULL, "change"), "%s", f.c.failure);
    ck_assert_msg(sc_same(&f.c, &record, "upgraded"), "%s", f.c.failure);
    raw = mf_raw(&f, record.sandbox_id);
    ck_assert_int_eq(type_at(raw, "epoch"), BSON_TYPE_INT64);
    ck_assert_int_eq(type_at(raw, "sequence"), BSON_TYPE_INT64);
    ck_assert_int_eq(number_at(raw, "sequence"), 1);
    ck_assert_int_eq(number_at(raw, "metadata.a"), 1);
    ck_assert_int_eq(number_at(raw, "limit.diskGiB"), 5);
    ck_assert_int_eq(type_at(raw, "limit.cpuCount"), BSON_TYPE_DOUBLE);
    ck_assert_int_eq(number_at(raw, "storage.more"), 1);
    ck_assert_str_eq(text_at(raw, "storage.volumes.0.name"), "cache");
    ck_assert_int_eq(type_at(raw, "storage.volumes.0.claimName"), BSON_TYPE_EOD);
    ck_assert_str_eq(text_at(raw, "storage.volumes.1.claimName"), "claim-1");
    ck_assert_int_eq(type_at(raw, "storage.volumes.1.readOnly"), BSON_TYPE_BOOL);
    ck_assert_str_eq(text_at(raw, "image.digest"), "sha256:x");
    ck_assert_str_eq(text_at(raw, "image.tag"), "v2");
    ck_assert_int_eq(number_at(raw, "__v"), 0);
    ck_assert_int_eq(type_at(raw, "__v"), BSON_TYPE_INT32);
    bson_destroy(raw);
    mf_close(&f);
}
END_TEST

/* An operation that FastGPT began: it is read as one without owner and job, and can be taken over and ended. */
START_TEST(test_takeover)
{
    struct sk_identity identity = identity_of("66a1f0c2b7d4e8a1c0d3e502", "66b2aa10c4f3d5e7a9b1c202");
    char rest[2600], error_text[1200];
    struct sk_instance record, after;
    struct sk_error err = {0};
    struct sk_event event;
    struct mf f;
    bson_t *raw;
    bool found = false;

    /* Its error texts have no limit and no code. */
    memset(error_text, 'e', sizeof(error_text) - 1);
    error_text[sizeof(error_text) - 1] = '\0';
    memcpy(error_text, "Error: no: ", 11);
    snprintf(rest, sizeof(rest),
             "\"status\": \"stopping\", \"operation\": {\"id\": \"3f2504e0-4f89-41d3-9a0c-0305e82c3301\", \"type\": "
             "\"stop\", \"phase\": "
             "\"claimed\", \"previousStatus\": \"running\", \"startedAt\": {\"$date\": {\"$numberLong\": \"%lld\"}}, "
             "\"heartbeatAt\": "
             "{\"$date\": {\"$numberLong\": \"%lld\"}}, \"failedAt\": {\"$date\": {\"$numberLong\": \"%lld\"}}, "
             "\"error\": \"%s\"}",
             (long long)T0, (long long)T0, (long long)T0, error_text);
    mf_open(&f, 0, "", 2);
    put_fastgpt(&f, &identity, rest);
    ck_assert_msg(OPS->find(SELF, NULL, &identity, &record, &found, &err) == 0 && found, "%s", err.message);
    ck_assert_msg(!record.malformed, "%s", record.malformed_reason);
    ck_assert(record.operation.owner[0] == '\0' && record.operation.job_id[0] == '\0' &&
              record.operation.error.code[0] == '\0');
    ck_assert_uint_eq(strlen(record.operation.error.detail), sizeof(record.operation.error.detail) - 1);
    ck_assert_int_eq(record.operation.previous_status, SK_STATUS_RUNNING);
    /* An unrelated change does not cut the text that only we cannot hold. */
    after = record;
    after.last_active_at++;
    ck_assert_msg(sc_apply(&f.c, &record, &after, NULL, "touch"), "%s", f.c.failure);
    raw = mf_raw(&f, record.sandbox_id);
    ck_assert_str_eq(text_at(raw, "operation.error"), error_text);
    bson_destroy(raw);
    sc_claim(&f.c, &record, &after, &event, SK_OP_STOP, "replica-a");
    sk_uuid4(&sk_sched_system, after.operation.job_id);
    ck_assert_msg(sc_apply(&f.c, &record, &after, &event, "take-over"), "%s", f.c.failure);
    ck_assert_msg(sc_same(&f.c, &record, "taken over"), "%s", f.c.failure);
    sc_phase(&f.c, &record, &after, &event, "providerStopped");
    ck_assert_msg(sc_apply(&f.c, &record, &after, &event, "phase"), "%s", f.c.failure);
    sc_complete(&f.c, &record, &after, &event);
    ck_assert_msg(sc_apply(&f.c, &record, &after, &event, "commit") && sc_same(&f.c, &record, "stopped"), "%s",
                  f.c.failure);
    mf_close(&f);
}
END_TEST

/* Types of everything we write (the mongoose test shows that they are those of mongoose). */
START_TEST(test_types)
{
    static const struct {
        const char *path;
        bson_type_t type;
    } expected[] = {
        {"_id", BSON_TYPE_OID},
        {"provider", BSON_TYPE_UTF8},
        {"sandboxId", BSON_TYPE_UTF8},
        {"status", BSON_TYPE_UTF8},
        {"lastActiveAt", BSON_TYPE_DATE_TIME},
        {"createdAt", BSON_TYPE_DATE_TIME},
        {"limit.cpuCount", BSON_TYPE_DOUBLE},
        {"limit.memoryMiB", BSON_TYPE_INT32},
        {"limit.storageSize", BSON_TYPE_UTF8},
        {"storage.volumes", BSON_TYPE_ARRAY},
        {"storage.volumes.0.claimName", BSON_TYPE_UTF8},
        {"image.repository", BSON_TYPE_UTF8},
        {"operation.id", BSON_TYPE_UTF8},
        {"operation.startedAt", BSON_TYPE_DATE_TIME},
        {"operation.heartbeatAt", BSON_TYPE_DATE_TIME},
        {"operation.attempt", BSON_TYPE_INT32},
        {"operation.deadlineAt", BSON_TYPE_DATE_TIME},
        {"operation.jobId", BSON_TYPE_UTF8},
        {"epoch", BSON_TYPE_INT64},
        {"sequence", BSON_TYPE_INT64},
        {"outbox", BSON_TYPE_ARRAY},
        {"outbox.0.time", BSON_TYPE_DATE_TIME},
        {"outbox.0.sequence", BSON_TYPE_INT64},
        /* Absent, not null. */
        {"versionId", BSON_TYPE_EOD},
        {"operation.failedAt", BSON_TYPE_EOD},
        {"operation.error", BSON_TYPE_EOD},
        {"operation.previousStatus", BSON_TYPE_EOD},
        {"operation.nextAttemptAt", BSON_TYPE_EOD},
        {"operation.blocked", BSON_TYPE_EOD},
        {"storage.volumes.0.subPath", BSON_TYPE_EOD},
        {"lastOperation", BSON_TYPE_EOD},
        {"pins", BSON_TYPE_EOD},
    };
    struct sk_instance record;
    struct mf f;
    bson_t *raw;

    mf_open(&f, 0, "", 2);
    ck_assert_msg(sc_insert(&f.c, &record), "%s", f.c.failure);
    raw = mf_raw(&f, record.sandbox_id);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        ck_assert_msg(type_at(raw, expected[i].path) == expected[i].type, "%s has type 0x%02x", expected[i].path,
                      type_at(raw, expected[i].path));
    ck_assert_uint_lt(raw->len, 1400);
    bson_destroy(raw);
    mf_close(&f);
}
END_TEST

/* ---- setup and sources ------------------------------------------------------------------------- */

static int index_count(struct mf *f, const char *collection, const char *key, bool *unique)
{
    mongoc_collection_t *handle = mf_collection(f, collection);
    mongoc_cursor_t *cursor = mongoc_collection_find_indexes_with_opts(handle, NULL);
    const bson_t *doc;
    int count = 0;

    while (mongoc_cursor_next(cursor, &doc)) {
        bson_iter_t iter, keys;

        ck_assert(bson_iter_init_find(&iter, doc, "key") && bson_iter_recurse(&iter, &keys) && bson_iter_next(&keys));
        if (key == NULL || strcmp(bson_iter_key(&keys), key) == 0) {
            count++;
            *unique = bson_iter_init_find(&iter, doc, "unique") && bson_iter_as_bool(&iter);
        }
    }
    mongoc_cursor_destroy(cursor);
    mongoc_collection_destroy(handle);
    return count;
}

static void run_command(struct mf *f, const char *json)
{
    bson_error_t error;
    bson_t *command = bson_new_from_json((const uint8_t *)json, -1, &error);

    ck_assert_msg(command != NULL && mongoc_client_command_simple(f->client, f->database, command, NULL, NULL, &error),
                  "%s", error.message);
    bson_destroy(command);
}

START_TEST(test_setup)
{
    struct sk_error err = {0};
    struct sk_instance a;
    struct mf f;
    bson_t *raw, copy = BSON_INITIALIZER;
    bson_oid_t oid;
    bool unique = false;
    int count;

    mf_open(&f, 0, "", 2);
    /* FastGPT was here before, with names and options of its own; and two records share a sandbox id. */
    run_command(&f, "{\"createIndexes\": \"" INSTANCES
                    "\", \"indexes\": [{\"key\": {\"provider\": 1, \"sandboxId\": 1}, \"name\": \"by_provider\", "
                    "\"unique\": true}, {\"key\": {\"status\": 1, \"lastActiveAt\": 1}, \"name\": "
                    "\"status_1_lastActiveAt_1\", \"background\": true}]}");
    ck_assert_msg(sc_insert(&f.c, &a), "%s", f.c.failure);
    raw = mf_raw(&f, a.sandbox_id);
    bson_oid_init(&oid, NULL);
    BSON_APPEND_OID(&copy, "_id", &oid);
    bson_copy_to_excluding_noinit(raw, &copy, "_id", "provider", "userId", NULL);
    BSON_APPEND_UTF8(&copy, "provider", "sealosdevbox");
    BSON_APPEND_UTF8(&copy, "userId", "another");
    mf_put(&f, INSTANCES, &copy);
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(OPS->setup(SELF, NULL, &err) == 0, "%s", err.message);
        count = index_count(&f, INSTANCES, NULL, &unique);
        ck_assert_int_eq(count, 13); /* ours, FastGPT's and _id */
    }
    ck_assert_int_eq(index_count(&f, INSTANCES, "provider", &unique), 1);
    ck_assert(unique);
    ck_assert_int_eq(index_count(&f, INSTANCES, "sandboxId", &unique), 1);
    ck_assert(!unique); /* it could not be */
    ck_assert_int_eq(index_count(&f, "sandkeep_quota", "held", &unique), 1);
    ck_assert(unique);
    bson_destroy(raw);
    bson_destroy(&copy);
    mf_close(&f);

    mf_open(&f, 0, "", 2);
    ck_assert_msg(OPS->setup(SELF, NULL, &err) == 0, "%s", err.message);
    ck_assert_int_eq(index_count(&f, INSTANCES, "sandboxId", &unique), 1);
    ck_assert(unique);
    mf_close(&f);
}
END_TEST

static void check_source(struct mf *f, const char *type, const char *id, bool known, bool active, const char *team)
{
    struct sk_source_state state;
    struct sk_identity identity;
    struct sk_error err = {0};

    ck_assert_int_eq(sk_identity_set(&identity, type, id, strlen(id), "u", 1, &err), 0);
    ck_assert_msg(f->store.ops->source_state(f->store.self, NULL, &identity, &state, &err) == 0, "%s", err.message);
    ck_assert_msg(state.known == known && state.active == active && strcmp(state.team_id, team) == 0,
                  "%s %s: known %d, active %d, team %s", type, id, state.known, state.active, state.team_id);
}

START_TEST(test_sources)
{
    static const char *const apps[] = {
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e501\"}, \"teamId\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3ee01\"}, "
        "\"deleteTime\": null}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e502\"}, \"teamId\": \"team-2\"}",
        "{\"_id\": {\"$oid\": \"66a1f0c2b7d4e8a1c0d3e503\"}, \"teamId\": 7, \"deleteTime\": {\"$date\": "
        "{\"$numberLong\": \"1764500000000\"}}}",
        "{\"_id\": \"not-an-object-id\", \"teamId\": \"team-4\"}",
    };
    struct sk_error err = {0};
    struct sk_store other;
    struct mf f;

    mf_open(&f, 0, "", 2);
    /* No collections: nothing to check against. */
    check_source(&f, "app", "66a1f0c2b7d4e8a1c0d3e501", true, true, "");
    check_source(&f, "skillEdit", "66a1f0c2b7d4e8a1c0d3e501", true, true, "");
    mf_close(&f);

    mf_open(&f, 0, "", 2);
    for (size_t i = 0; i < sizeof(apps) / sizeof(apps[0]); i++) {
        bson_error_t error;
        bson_t *doc = bson_new_from_json((const uint8_t *)apps[i], -1, &error);

        ck_assert_msg(doc != NULL, "%s", error.message);
        mf_put(&f, "apps", doc);
        if (i == 0)
            mf_put(&f, "agent_skills", doc);
        bson_destroy(doc);
    }
    check_source(&f, "app", "66a1f0c2b7d4e8a1c0d3e501", true, true, "66a1f0c2b7d4e8a1c0d3ee01");
    check_source(&f, "workflowBuilder", "66a1f0c2b7d4e8a1c0d3e501", true, true, "66a1f0c2b7d4e8a1c0d3ee01");
    check_source(&f, "skillEdit", "66a1f0c2b7d4e8a1c0d3e501", true, true, "66a1f0c2b7d4e8a1c0d3ee01");
    check_source(&f, "app", "66a1f0c2b7d4e8a1c0d3e502", true, true, "team-2");
    check_source(&f, "skillEdit", "66a1f0c2b7d4e8a1c0d3e502", false, false, "");
    check_source(&f, "app", "66a1f0c2b7d4e8a1c0d3e503", true, false, "");
    check_source(&f, "app", "not-an-object-id", true, true, "team-4");
    check_source(&f, "app", "66a1f0c2b7d4e8a1c0d3e5ff", false, false, "");
    /* Switched off, or other names. */
    ck_assert_int_eq(sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = f.uri, .pool_size = 1}, &sk_sched_system,
                                        &other, &err),
                     0);
    {
        struct mf off = {.store = other};

        check_source(&off, "app", "66a1f0c2b7d4e8a1c0d3e5ff", true, true, "");
    }
    sk_store_mongo_free(&other);
    ck_assert_int_eq(sk_store_mongo_new(
                         &(struct sk_store_mongo_config){
                             .uri = f.uri, .pool_size = 1, .source_check = true, .apps_collection = "agent_skills"},
                         &sk_sched_system, &other, &err),
                     0);
    {
        struct mf renamed = {.store = other};

        check_source(&renamed, "app", "66a1f0c2b7d4e8a1c0d3e502", false, false, "");
    }
    sk_store_mongo_free(&other);
    mf_close(&f);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_malformed, test_strange_ids, test_upgrade, test_takeover,
                                  test_types,     test_setup,       test_sources};

    return mf_main("store_mongo_documents", tests, 7, 120);
}
