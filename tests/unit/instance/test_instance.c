/* SPDX-License-Identifier: Apache-2.0
 *
 * Invariants of one record and of one change, row by row, and the JSON that clients see. */
#include "common/instance/instance.h"
#include "tests/unit/check_main.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NOW 1764500000000

static struct sk_instance provisioning(void)
{
    struct sk_instance i;
    struct sk_error err;

    memset(&i, 0, sizeof(i));
    strcpy(i.oid, "66a1f0c2b7d4e8a1c0d3e501");
    ck_assert_int_eq(sk_identity_set(&i.identity, "app", "66a1f0c2b7d4e8a1c0d3e501", 24, "u", 1, &err), 0);
    sk_identity_sandbox_id(&i.identity, i.sandbox_id);
    strcpy(i.provider, "opensandbox");
    i.status = SK_STATUS_PROVISIONING;
    i.last_active_at = i.created_at = NOW;
    i.has_operation = true;
    i.operation.type = SK_OP_PROVISION;
    strcpy(i.operation.id, "11111111-1111-4111-8111-111111111111");
    strcpy(i.operation.job_id, "22222222-2222-4222-8222-222222222222");
    strcpy(i.operation.phase, "claimed");
    strcpy(i.operation.owner, "host:1:abc");
    i.operation.started_at = i.operation.heartbeat_at = NOW;
    i.epoch = NOW;
    i.sequence = 1;
    return i;
}

static struct sk_instance stable(enum sk_status status)
{
    struct sk_instance i = provisioning();

    i.status = status;
    i.has_operation = false;
    memset(&i.operation, 0, sizeof(i.operation));
    return i;
}

static struct sk_instance claimed(const struct sk_instance *from, enum sk_op op)
{
    struct sk_instance i = *from;

    i.status = sk_op_info(op)->transitional;
    i.has_operation = true;
    memset(&i.operation, 0, sizeof(i.operation));
    i.operation.type = op;
    strcpy(i.operation.id, "33333333-3333-4333-8333-333333333333");
    strcpy(i.operation.job_id, "44444444-4444-4444-8444-444444444444");
    strcpy(i.operation.phase, "claimed");
    i.operation.started_at = i.operation.heartbeat_at = NOW + 1;
    i.epoch = from->epoch + 1;
    i.sequence = from->sequence + 1;
    return i;
}

START_TEST(test_good)
{
    struct sk_instance i = provisioning();

    ck_assert_ptr_null(sk_instance_invariant(&i));
    /* FastGPT's: no job, no owner, no epoch. */
    i.operation.job_id[0] = i.operation.owner[0] = '\0';
    i.epoch = i.sequence = 0;
    ck_assert_ptr_null(sk_instance_invariant(&i));
    for (int s = SK_STATUS_NONE + 1; s < SK_STATUS_COUNT; s++) {
        if (sk_status_info((enum sk_status)s)->stable) {
            i = stable((enum sk_status)s);
        } else {
            struct sk_instance running = stable(SK_STATUS_RUNNING);

            i = claimed(&running, sk_status_info((enum sk_status)s)->operation);
        }
        ck_assert_msg(sk_instance_invariant(&i) == NULL, "%s: %s", sk_status_name((enum sk_status)s),
                      sk_instance_invariant(&i));
    }
}
END_TEST

#define BREAKS(base, change)                                                                                           \
    do {                                                                                                               \
        struct sk_instance i = base;                                                                                   \
        change;                                                                                                        \
        ck_assert_msg(sk_instance_invariant(&i) != NULL, "accepted: %s", #change);                                     \
    } while (0)

START_TEST(test_bad)
{
    BREAKS(provisioning(), i.malformed = true);
    BREAKS(provisioning(), i.status = SK_STATUS_NONE);
    BREAKS(provisioning(), i.status = SK_STATUS_INVALID);
    BREAKS(provisioning(), i.status = (enum sk_status)99);
    BREAKS(provisioning(), i.status = SK_STATUS_RUNNING);
    BREAKS(provisioning(), i.status = SK_STATUS_STOPPING);
    BREAKS(provisioning(), i.has_operation = false);
    BREAKS(provisioning(), i.sandbox_id[0] = '\0');
    BREAKS(provisioning(), strcpy(i.sandbox_id, "app-0123"));
    BREAKS(provisioning(), strcpy(i.sandbox_id, "skilledit-0123456789abcdef"));
    BREAKS(provisioning(), i.identity.source_type = SK_SOURCE_NONE);
    BREAKS(provisioning(), i.identity.source_id[0] = '\0');
    BREAKS(provisioning(), i.identity.user_id[0] = '\0');
    BREAKS(provisioning(), i.provider[0] = '\0');
    BREAKS(provisioning(), i.created_at = 0);
    BREAKS(provisioning(), i.last_active_at = -1);
    BREAKS(provisioning(), i.epoch = -1);
    BREAKS(provisioning(), i.epoch = 0);
    BREAKS(provisioning(), i.sequence = 0);
    BREAKS(provisioning(), i.sequence = -1);
    BREAKS(provisioning(), i.pin_count = -1);
    BREAKS(provisioning(), i.pin_count = SK_PINS_MAX + 1);
    BREAKS(provisioning(), i.image.present = true);
    BREAKS(provisioning(), i.operation.type = SK_OP_STOP);
    BREAKS(provisioning(), i.operation.type = SK_OP_NONE);
    BREAKS(provisioning(), i.operation.id[0] = '\0');
    BREAKS(provisioning(), strcpy(i.operation.phase, "providerStopped"));
    BREAKS(provisioning(), i.operation.phase[0] = '\0');
    BREAKS(provisioning(), i.operation.previous_status = SK_STATUS_STOPPING);
    BREAKS(provisioning(), i.operation.previous_status = SK_STATUS_INVALID);
    BREAKS(provisioning(), i.operation.started_at = 0);
    BREAKS(provisioning(), i.operation.heartbeat_at = 0);
    BREAKS(provisioning(), i.operation.attempt = -1);
    BREAKS(provisioning(), i.operation.next_attempt_at = -1);
    BREAKS(provisioning(), i.operation.failed_at = -1);
    BREAKS(provisioning(), i.operation.deadline_at = -1);
    BREAKS(provisioning(), i.operation.job_id[0] = '\0');
    BREAKS(stable(SK_STATUS_RUNNING), i.has_operation = true);
}
END_TEST

#define CHANGE(expected, from, change)                                                                                 \
    do {                                                                                                               \
        struct sk_instance before = from, after = before;                                                              \
        const char *reason;                                                                                            \
        change;                                                                                                        \
        reason = sk_instance_change_invariant(&before, &after);                                                        \
        ck_assert_msg((reason == NULL) == (expected), "%s: %s", #change, reason != NULL ? reason : "accepted");        \
    } while (0)

START_TEST(test_changes)
{
    CHANGE(true, provisioning(), (void)after);
    CHANGE(true, provisioning(), strcpy(after.operation.phase, "providerEnsured"));
    CHANGE(true, provisioning(), after.operation.owner[0] = '\0');
    CHANGE(true, stable(SK_STATUS_RUNNING), after.last_active_at++);
    CHANGE(true, stable(SK_STATUS_RUNNING), after = claimed(&before, SK_OP_STOP));
    CHANGE(true, stable(SK_STATUS_STOPPED), after = claimed(&before, SK_OP_PROVISION));
    CHANGE(true, provisioning(), after = claimed(&before, SK_OP_DELETE));
    CHANGE(true, provisioning(), after = stable(SK_STATUS_RUNNING));
    CHANGE(true, provisioning(), after = stable(SK_STATUS_STOPPED));
    CHANGE(true, provisioning(),
           (after = claimed(&before, SK_OP_PROVISION), strcpy(after.operation.job_id, before.operation.job_id)));
    CHANGE(true, stable(SK_STATUS_ARCHIVED), strcpy(after.provider, "sealosdevbox"));

    CHANGE(false, stable(SK_STATUS_RUNNING), before.malformed = true);
    CHANGE(false, stable(SK_STATUS_RUNNING), after.malformed = true);
    CHANGE(false, stable(SK_STATUS_RUNNING), after.oid[0] = '0');
    CHANGE(false, stable(SK_STATUS_RUNNING), after.sandbox_id[5] = before.sandbox_id[5] == 'a' ? 'b' : 'a');
    CHANGE(false, stable(SK_STATUS_RUNNING), strcpy(after.identity.user_id, "v"));
    CHANGE(false, stable(SK_STATUS_RUNNING), after.created_at++);
    CHANGE(false, stable(SK_STATUS_RUNNING), strcpy(after.provider, "sealosdevbox"));
    CHANGE(false, stable(SK_STATUS_RUNNING), after.status = SK_STATUS_STOPPED);
    CHANGE(false, stable(SK_STATUS_RUNNING), after = claimed(&before, SK_OP_PROVISION));
    CHANGE(false, stable(SK_STATUS_RUNNING), after = claimed(&before, SK_OP_RESTORE));
    CHANGE(false, stable(SK_STATUS_RUNNING), after.epoch--);
    CHANGE(false, stable(SK_STATUS_RUNNING), after.sequence--);
    CHANGE(false, stable(SK_STATUS_RUNNING), (after = claimed(&before, SK_OP_STOP), after.epoch = before.epoch));
    CHANGE(false, stable(SK_STATUS_RUNNING), (after = claimed(&before, SK_OP_STOP), after.operation.job_id[0] = '\0'));
    CHANGE(false, provisioning(), after.epoch++);
    CHANGE(false, provisioning(), after.operation.job_id[0] = 'f');
    CHANGE(false, provisioning(), (strcpy(before.operation.phase, "providerEnsured"), (void)after));
    CHANGE(false, provisioning(),
           (strcpy(before.operation.phase, "providerEnsured"), after = claimed(&before, SK_OP_PROVISION)));
    CHANGE(false, provisioning(), after = claimed(&before, SK_OP_STOP));
    CHANGE(false, provisioning(), after = stable(SK_STATUS_ARCHIVED));
}
END_TEST

static void expect_json(json_t *value, const char *expected)
{
    json_error_t error;
    json_t *wanted = json_loads(expected, 0, &error);
    char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS);

    ck_assert_msg(wanted != NULL, "%s", error.text);
    ck_assert_msg(json_equal(value, wanted) == 1, "%s", text);
    free(text);
    json_decref(wanted);
    json_decref(value);
}

START_TEST(test_public_json)
{
    struct sk_instance i = stable(SK_STATUS_RUNNING);

    strcpy(i.sandbox_id, "app-0123456789abcdef");
    i.epoch = 7;
    i.sequence = 42;
    expect_json(
        sk_instance_public_json(&i),
        "{\"sandboxId\":\"app-0123456789abcdef\",\"provider\":\"opensandbox\",\"sourceType\":\"app\",\"sourceId\":"
        "\"66a1f0c2b7d4e8a1c0d3e501\",\"userId\":\"u\",\"status\":\"running\",\"lastActiveAt\":\"2025-11-30T10:53:20."
        "000Z\","
        "\"createdAt\":\"2025-11-30T10:53:20.000Z\",\"epoch\":7,\"sequence\":42}");
    i = provisioning();
    strcpy(i.sandbox_id, "app-0123456789abcdef");
    i.epoch = 7;
    i.limit = (struct sk_limit){.present = true, .cpu_count = 0.5, .memory_mib = 2048, .storage_size = "1Gi"};
    i.storage.present = i.image.present = true;
    strcpy(i.storage.volume_name, "workspace");
    strcpy(i.storage.claim_name, "c-0");
    strcpy(i.storage.volume_mount_path, "/workspace");
    strcpy(i.storage.mount_path, "/workspace");
    strcpy(i.image.repository, "r");
    strcpy(i.team_id, "t");
    strcpy(i.version_id, "v");
    i.operation.previous_status = SK_STATUS_STOPPED;
    i.operation.attempt = 2;
    i.operation.failed_at = i.operation.next_attempt_at = i.operation.deadline_at = NOW;
    strcpy(i.operation.error.code, "provider_error");
    strcpy(i.operation.error.detail, "HTTP 502");
    strcpy(i.operation.command_id, "cmd");
    strcpy(i.operation.traceparent, "00-x");
    strcpy(i.operation.blocked, "why");
    i.last_operation = (struct sk_last_operation){
        .present = true, .type = SK_OP_STOP, .result = "failed", .started_at = NOW, .ended_at = NOW};
    strcpy(i.last_operation.id, "id");
    strcpy(i.last_operation.error.detail, "text of FastGPT");
    i.pin_count = 1;
    strcpy(i.pins[0].id, "p");
    strcpy(i.pins[0].kind, "tool");
    i.pins[0].expires_at = NOW;
    i.outbox_count = 3; /* never shown */
    expect_json(
        sk_instance_public_json(&i),
        "{\"sandboxId\":\"app-0123456789abcdef\",\"provider\":\"opensandbox\",\"sourceType\":\"app\",\"sourceId\":"
        "\"66a1f0c2b7d4e8a1c0d3e501\",\"userId\":\"u\",\"status\":\"provisioning\",\"lastActiveAt\":\"2025-11-30T10:53:"
        "20.000Z\","
        "\"createdAt\":\"2025-11-30T10:53:20.000Z\",\"epoch\":7,\"sequence\":1,\"limit\":{\"cpuCount\":0.5,"
        "\"memoryMiB\":2048,"
        "\"storageSize\":\"1Gi\"},\"storage\":{\"volumes\":[{\"name\":\"workspace\",\"claimName\":\"c-0\","
        "\"mountPath\":\"/workspace\"}],"
        "\"mountPath\":\"/"
        "workspace\"},\"teamId\":\"t\",\"image\":{\"repository\":\"r\"},\"versionId\":\"v\",\"operation\":{\"id\":"
        "\"11111111-1111-4111-8111-111111111111\",\"type\":\"provision\",\"phase\":\"claimed\",\"previousStatus\":"
        "\"stopped\","
        "\"startedAt\":\"2025-11-30T10:53:20.000Z\",\"heartbeatAt\":\"2025-11-30T10:53:20.000Z\",\"failedAt\":"
        "\"2025-11-30T10:53:20.000Z\",\"error\":{\"code\":\"provider_error\",\"detail\":\"HTTP "
        "502\"},\"attempt\":2,\"nextAttemptAt\":"
        "\"2025-11-30T10:53:20.000Z\",\"owner\":\"host:1:abc\",\"commandId\":\"cmd\",\"jobId\":"
        "\"22222222-2222-4222-8222-222222222222\",\"traceparent\":\"00-x\",\"deadlineAt\":\"2025-11-30T10:53:20.000Z\","
        "\"blocked\":"
        "\"why\"},\"lastOperation\":{\"id\":\"id\",\"type\":\"stop\",\"result\":\"failed\",\"startedAt\":\"2025-11-"
        "30T10:53:20.000Z\","
        "\"endedAt\":\"2025-11-30T10:53:20.000Z\",\"error\":{\"detail\":\"text of "
        "FastGPT\"}},\"pins\":[{\"id\":\"p\",\"kind\":\"tool\","
        "\"expiresAt\":\"2025-11-30T10:53:20.000Z\"}]}");
}
END_TEST

/* A record that somebody broke can still be shown. */
START_TEST(test_public_json_malformed)
{
    struct sk_instance i;
    json_t *value;

    memset(&i, 0, sizeof(i));
    value = sk_instance_public_json(&i);
    ck_assert_ptr_nonnull(value);
    json_decref(value);
    i = provisioning();
    i.status = SK_STATUS_INVALID;
    strcpy(i.identity.user_id, "a\xff\xc0z");
    i.limit = (struct sk_limit){.present = true, .cpu_count = NAN, .memory_mib = INFINITY};
    i.malformed = true;
    strcpy(i.malformed_reason, "status is unknown");
    value = sk_instance_public_json(&i);
    ck_assert_ptr_nonnull(value);
    ck_assert_str_eq(json_string_value(json_object_get(value, "userId")), "a??z");
    ck_assert_str_eq(json_string_value(json_object_get(value, "status")), "invalid");
    ck_assert_str_eq(json_string_value(json_object_get(value, "malformed")), "status is unknown");
    json_decref(value);
}
END_TEST

START_TEST(test_event_json)
{
    struct sk_instance i = provisioning();
    struct sk_event e;

    memset(&e, 0, sizeof(e));
    strcpy(e.id, "01J00000000000000000000000");
    e.type = SK_EVENT_CLAIMED;
    strcpy(e.sandbox_id, "app-0123456789abcdef");
    e.identity = i.identity;
    strcpy(e.provider, "opensandbox");
    e.epoch = 7;
    e.sequence = 42;
    e.from = SK_STATUS_NONE;
    e.to = SK_STATUS_PROVISIONING;
    strcpy(e.operation_id, "id");
    e.operation_type = SK_OP_PROVISION;
    strcpy(e.phase, "claimed");
    e.duration_ms = -1;
    strcpy(e.owner, "not shown");
    expect_json(sk_event_data_json(&e), "{\"sandboxId\":\"app-0123456789abcdef\",\"sourceType\":\"app\",\"sourceId\":"
                                        "\"66a1f0c2b7d4e8a1c0d3e501\",\"userId\":\"u\","
                                        "\"provider\":\"opensandbox\",\"epoch\":7,\"sequence\":42,\"from\":\"none\","
                                        "\"to\":\"provisioning\",\"operation\":{\"id\":"
                                        "\"id\",\"type\":\"provision\",\"phase\":\"claimed\",\"attempt\":0}}");
    strcpy(e.team_id, "t");
    strcpy(e.reason, "why");
    strcpy(e.error.code, "provider_error");
    strcpy(e.error.detail, "d");
    strcpy(e.command_id, "c");
    e.duration_ms = 0;
    e.attempt = 3;
    expect_json(sk_event_data_json(&e),
                "{\"sandboxId\":\"app-0123456789abcdef\",\"sourceType\":\"app\",\"sourceId\":"
                "\"66a1f0c2b7d4e8a1c0d3e501\",\"userId\":\"u\","
                "\"teamId\":\"t\",\"provider\":\"opensandbox\",\"epoch\":7,\"sequence\":42,\"from\":\"none\",\"to\":"
                "\"provisioning\","
                "\"operation\":{\"id\":\"id\",\"type\":\"provision\",\"phase\":\"claimed\",\"attempt\":3},\"reason\":"
                "\"why\",\"error\":"
                "{\"code\":\"provider_error\",\"detail\":\"d\"},\"durationMs\":0,\"commandId\":\"c\"}");
}
END_TEST

START_TEST(test_event_types)
{
    for (int t = 0; t < SK_EVENT_TYPE_COUNT; t++)
        ck_assert_int_eq(sk_event_type_parse(sk_event_type_name((enum sk_event_type)t)), t);
    ck_assert_str_eq(sk_event_type_name(SK_EVENT_TAKENOVER), "lifecycle.takenover");
    ck_assert_int_eq(sk_event_type_parse("lifecycle."), SK_EVENT_TYPE_COUNT);
    ck_assert_int_eq(sk_event_type_parse(NULL), SK_EVENT_TYPE_COUNT);
    ck_assert_str_eq(sk_event_type_name((enum sk_event_type)77), "lifecycle.unknown");
}
END_TEST

START_TEST(test_stored_error)
{
    struct sk_stored_error stored;
    struct sk_error err = {0};
    char long_text[SK_ERROR_MESSAGE_MAX];

    memset(&stored, 'x', sizeof(stored));
    sk_stored_error_set(&stored, &err);
    ck_assert_str_eq(stored.code, "");
    ck_assert_str_eq(stored.detail, "");
    sk_fail(&err, SK_ERR_PROVIDER_TIMEOUT, "no answer");
    sk_stored_error_set(&stored, &err);
    ck_assert_str_eq(stored.code, "provider_timeout");
    ck_assert_str_eq(stored.detail, "no answer");
    /* At most 500 bytes, cut between code points. */
    memset(long_text, 'a', sizeof(long_text));
    memcpy(long_text + 498, "\xf0\x9f\x92\xbe", 4);
    long_text[505] = '\0';
    sk_fail(&err, SK_ERR_INTERNAL, "%s", long_text);
    sk_stored_error_set(&stored, &err);
    ck_assert_uint_eq(strlen(stored.detail), 498);
    sk_stored_error_set(&stored, NULL);
    ck_assert_str_eq(stored.code, "");
}
END_TEST

START_TEST(test_pinned)
{
    struct sk_instance i = stable(SK_STATUS_RUNNING);

    ck_assert(!sk_instance_pinned(&i, NOW));
    i.pin_count = 2;
    i.pins[0].expires_at = NOW - 1;
    i.pins[1].expires_at = NOW;
    ck_assert(!sk_instance_pinned(&i, NOW));
    ck_assert(sk_instance_pinned(&i, NOW - 1));
}
END_TEST

START_TEST(test_claim_name)
{
    static const struct {
        const char *prefix, *id, *generation, *expected;
    } rows[] = {
        {"fastgpt-session", "app-0123456789abcdef", "0", "fastgpt-session-app-0123456789abcdef-0"},
        {"FastGPT", "skilledit-0123456789abcdef", "1F2E3D4C", "fastgpt-skilledit-0123456789abcdef-1f2e3d4c"},
        {"under_score", "app-0123456789abcdef", "0", NULL},
        {"-x", "app-0123456789abcdef", "0", NULL},
        {"x", "app-0123456789abcdef", "0-", NULL},
        {"", "app-0123456789abcdef", "0", NULL},
        {"x", "", "0", NULL},
        {"x", "app-0123456789abcdef", "", NULL},
        {"x y", "app-0123456789abcdef", "0", NULL},
        {"x.y", "app-0123456789abcdef", "0", NULL},
        {"\xc3\xbc", "app-0123456789abcdef", "0", NULL},
    };
    char out[SK_CLAIM_NAME_SIZE], prefix[SK_CLAIM_NAME_SIZE];

    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        bool good = sk_claim_name(out, rows[r].prefix, rows[r].id, rows[r].generation);

        ck_assert_int_eq(good, rows[r].expected != NULL);
        ck_assert_str_eq(out, rows[r].expected != NULL ? rows[r].expected : "");
    }
    memset(prefix, 'p', sizeof(prefix));
    prefix[253 - 4] = '\0';
    ck_assert(sk_claim_name(out, prefix, "a", "0"));
    ck_assert_uint_eq(strlen(out), 253);
    prefix[253 - 4] = 'p';
    prefix[253 - 3] = '\0';
    ck_assert(!sk_claim_name(out, prefix, "a", "0"));
}
END_TEST

SK_CHECK_MAIN("instance", test_good, test_bad, test_changes, test_public_json, test_public_json_malformed,
              test_event_json, test_event_types, test_stored_error, test_pinned, test_claim_name)
