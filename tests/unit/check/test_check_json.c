/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker's JSON: a record read back from its public view judges like the record itself; events from their message;
 * input of any other shape is refused without a crash. */
#include "common/check/check.h"
#include "tests/unit/check_main.h"

#include <string.h>

static void fill(struct sk_instance *i)
{
    memset(i, 0, sizeof(*i));
    ck_assert_int_eq(sk_identity_set(&i->identity, "app", "source", 6, "user", 4, NULL), 0);
    sk_identity_sandbox_id(&i->identity, i->sandbox_id);
    strcpy(i->provider, "opensandbox");
    i->status = SK_STATUS_PROVISIONING;
    i->created_at = 1796025600000;
    i->last_active_at = 1796025601000;
    i->epoch = 77;
    i->sequence = 2;
    strcpy(i->team_id, "red");
    i->storage.present = true;
    strcpy(i->storage.volume_name, "workspace");
    strcpy(i->storage.claim_name, "fastgpt-session-x-0");
    i->has_operation = true;
    i->operation.type = SK_OP_PROVISION;
    strcpy(i->operation.id, "3f0e8a5e-0000-4000-8000-000000000001");
    strcpy(i->operation.job_id, "3f0e8a5e-0000-4000-8000-000000000002");
    strcpy(i->operation.phase, "claimed");
    strcpy(i->operation.owner, "host:1:2");
    i->operation.started_at = i->operation.heartbeat_at = 1796025602000;
    i->operation.next_attempt_at = 1796025603000;
    strcpy(i->operation.blocked, "reason");
    i->last_operation.present = true;
    i->last_operation.type = SK_OP_STOP;
    strcpy(i->last_operation.result, "completed");
    i->last_operation.started_at = i->last_operation.ended_at = 1796025600500;
}

START_TEST(test_record)
{
    static struct sk_instance instance;
    struct sk_check_record direct, parsed;
    json_t *view;

    fill(&instance);
    view = sk_instance_public_json(&instance);
    ck_assert_ptr_nonnull(view);
    sk_check_record_of(&direct, &instance);
    ck_assert(sk_check_record_parse(&parsed, view));
    ck_assert_str_eq(parsed.sandbox_id, direct.sandbox_id);
    ck_assert_str_eq(parsed.provider, direct.provider);
    ck_assert(sk_identity_equal(&parsed.identity, &direct.identity));
    ck_assert_int_eq(parsed.status, direct.status);
    ck_assert(parsed.has_operation);
    ck_assert_int_eq(parsed.operation.type, direct.operation.type);
    ck_assert_str_eq(parsed.operation.id, direct.operation.id);
    ck_assert_str_eq(parsed.operation.phase, direct.operation.phase);
    ck_assert_str_eq(parsed.operation.blocked, direct.operation.blocked);
    ck_assert(parsed.operation.ours && parsed.operation.owned && !parsed.operation.failed);
    ck_assert_int_eq(parsed.operation.heartbeat_at, direct.operation.heartbeat_at);
    ck_assert_int_eq(parsed.operation.next_attempt_at, direct.operation.next_attempt_at);
    ck_assert_int_eq(parsed.epoch, 77);
    ck_assert_int_eq(parsed.sequence, 2);
    ck_assert_int_eq(parsed.changed_at, direct.changed_at);
    ck_assert_str_eq(parsed.claim_name, direct.claim_name);
    ck_assert_str_eq(parsed.team_id, "red");
    json_decref(view);
}
END_TEST

START_TEST(test_bad_records)
{
    static const char *const views[] = {"{}", "[]", "17", "{\"sandboxId\":5}", "{\"sandboxId\":null}"};
    struct sk_check_record record;

    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
        json_t *view = json_loads(views[i], JSON_DECODE_ANY, NULL);

        ck_assert(!sk_check_record_parse(&record, view));
        json_decref(view);
    }
    ck_assert(!sk_check_record_parse(&record, NULL));
}
END_TEST

START_TEST(test_strange_status_is_a_finding)
{
    json_t *view = json_loads("{\"sandboxId\":\"app-0123456789abcdef\",\"status\":\"hibernating\"}", 0, NULL);
    struct sk_check_record record;
    struct sk_check_snapshot s = {
        .records = &record, .record_count = 1, .records_complete = true, .slots_known = true, .quota_global = 1};
    struct sk_check_report report;

    ck_assert(sk_check_record_parse(&record, view));
    sk_check_report_init(&report);
    ck_assert_int_eq(sk_check_run(&s, &report), 0);
    ck_assert_uint_eq(report.count, 1);
    ck_assert_int_eq(report.findings[0].check, SK_CHECK_RECORD_INVALID);
    sk_check_report_fini(&report);
    json_decref(view);
}
END_TEST

START_TEST(test_event)
{
    static struct sk_event event;
    struct sk_check_event direct, parsed;
    json_t *data;

    memset(&event, 0, sizeof(event));
    strcpy(event.id, "01J00000000000000000000000");
    event.type = SK_EVENT_COMPLETED;
    event.time = 1796025600123;
    strcpy(event.sandbox_id, "app-0123456789abcdef");
    event.epoch = 5;
    event.sequence = 6;
    event.from = SK_STATUS_DELETING;
    event.to = SK_STATUS_NONE;
    strcpy(event.operation_id, "op");
    event.operation_type = SK_OP_DELETE;
    event.duration_ms = -1;
    data = sk_event_data_json(&event);
    sk_check_event_of(&direct, &event);
    ck_assert(sk_check_event_parse(&parsed, event.id, "dev.sandkeep.lifecycle.completed.v1", "2026-11-30T08:00:00.123Z",
                                   data));
    ck_assert_int_eq(memcmp(&direct, &parsed, sizeof(parsed)), 0);
    ck_assert(sk_check_event_parse(&parsed, event.id, "lifecycle.completed", NULL, data));
    ck_assert(!sk_check_event_parse(&parsed, event.id, "lifecycle.exploded", NULL, data));
    ck_assert(!sk_check_event_parse(&parsed, event.id, "dev.sandkeep.command.completed.v1", NULL, data));
    ck_assert(!sk_check_event_parse(&parsed, "an id that is much too long to be the id of any event",
                                    "lifecycle.completed", NULL, data));
    ck_assert(!sk_check_event_parse(&parsed, NULL, "lifecycle.completed", NULL, data));
    ck_assert(!sk_check_event_parse(&parsed, event.id, "lifecycle.completed", NULL, NULL));
    json_decref(data);
}
END_TEST

START_TEST(test_report)
{
    struct sk_remote remote = {.id = "o1", .sandbox_id = "app-1"};
    struct sk_check_snapshot s = {
        .records_complete = true, .remotes_known = true, .remotes = &remote, .remote_count = 1};
    struct sk_check_report report;
    json_t *json, *finding;

    sk_check_report_init(&report);
    ck_assert_int_eq(sk_check_run(&s, &report), 0);
    json = sk_check_report_json(&report);
    finding = json_array_get(json_object_get(json, "findings"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(json, "violations")), 1);
    ck_assert_str_eq(json_string_value(json_object_get(finding, "check")), "remote-orphan");
    ck_assert_str_eq(json_string_value(json_object_get(finding, "severity")), "violation");
    ck_assert_str_eq(json_string_value(json_object_get(finding, "subject")), "o1");
    ck_assert_str_eq(json_string_value(json_object_get(finding, "sandboxId")), "app-1");
    json_decref(json);
    sk_check_report_fini(&report);
}
END_TEST

SK_CHECK_MAIN("check-json", test_record, test_bad_records, test_strange_status_is_a_finding, test_event, test_report)
