/* SPDX-License-Identifier: Apache-2.0
 *
 * The document codec without a server: what is encoded decodes to the same, random bytes and random documents never do
 * harm, and error texts keep their code. (Shapes and types row by row: tests/conformance/store/test_mongo_documents.c.)
 */
#include "common/store/instance_bson.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

#define NOW 1764500000000

static void fill(struct sk_instance *i, struct sk_event events[2])
{
    struct sk_error err;

    memset(i, 0, sizeof(*i));
    strcpy(i->oid, "66a1f0c2b7d4e8a1c0d3e501");
    ck_assert_int_eq(sk_identity_set(&i->identity, "app", "s", 1, "\xe7\x94\xa8\xe6\x88\xb7", 6, &err), 0);
    sk_identity_sandbox_id(&i->identity, i->sandbox_id);
    strcpy(i->provider, "opensandbox");
    strcpy(i->team_id, "team");
    strcpy(i->version_id, "v");
    i->status = SK_STATUS_PROVISIONING;
    i->last_active_at = NOW + 1;
    i->created_at = NOW;
    i->limit = (struct sk_limit){.present = true, .cpu_count = 1.5, .memory_mib = 3e9, .storage_size = "1Gi"};
    i->storage.present = i->image.present = i->last_operation.present = true;
    strcpy(i->storage.volume_name, "workspace");
    strcpy(i->storage.claim_name, "c");
    strcpy(i->storage.volume_mount_path, "/w");
    strcpy(i->storage.sub_path, "s");
    strcpy(i->storage.mount_path, "/m");
    strcpy(i->image.repository, "r");
    strcpy(i->image.tag, "t");
    i->has_operation = true;
    i->operation = (struct sk_operation){.type = SK_OP_PROVISION,
                                         .id = "11111111-1111-4111-8111-111111111111",
                                         .phase = "claimed",
                                         .previous_status = SK_STATUS_STOPPED,
                                         .started_at = NOW,
                                         .heartbeat_at = NOW + 2,
                                         .failed_at = NOW + 3,
                                         .attempt = 4,
                                         .next_attempt_at = NOW + 5,
                                         .owner = "o",
                                         .command_id = "c",
                                         .job_id = "j",
                                         .traceparent = "00",
                                         .deadline_at = NOW + 6,
                                         .blocked = "b"};
    strcpy(i->operation.error.code, "provider_error");
    strcpy(i->operation.error.detail, "a: b");
    i->epoch = NOW;
    i->sequence = 2;
    i->last_operation = (struct sk_last_operation){
        .present = true, .id = "l", .type = SK_OP_STOP, .result = "completed", .started_at = NOW, .ended_at = NOW};
    i->pin_count = SK_PINS_MAX;
    for (int p = 0; p < SK_PINS_MAX; p++) {
        snprintf(i->pins[p].id, sizeof(i->pins[p].id), "p%d", p);
        i->pins[p].expires_at = NOW + p;
    }
    memset(events, 0, 2 * sizeof(events[0]));
    for (int e = 0; e < 2; e++) {
        snprintf(events[e].id, sizeof(events[e].id), "01J0000000000000000000000%d", e);
        events[e].type = e == 0 ? SK_EVENT_CLAIMED : SK_EVENT_PHASE;
        events[e].time = NOW;
        events[e].epoch = NOW;
        events[e].sequence = 2 - e; /* out of order on purpose */
        events[e].from = e == 0 ? SK_STATUS_NONE : SK_STATUS_PROVISIONING;
        events[e].to = SK_STATUS_PROVISIONING;
        strcpy(events[e].operation_id, i->operation.id);
        strcpy(events[e].job_id, "j");
        events[e].operation_type = SK_OP_PROVISION;
        strcpy(events[e].phase, "claimed");
        events[e].attempt = e;
        strcpy(events[e].owner, "o");
        strcpy(events[e].reason, e == 0 ? "" : "why");
        events[e].duration_ms = e == 0 ? -1 : 0;
        strcpy(events[e].command_id, "c");
        strcpy(events[e].traceparent, "00");
        strcpy(events[e].sandbox_id, i->sandbox_id);
        events[e].identity = i->identity;
        strcpy(events[e].team_id, i->team_id);
        strcpy(events[e].provider, i->provider);
    }
}

START_TEST(test_round_trip)
{
    static struct sk_instance in, out;
    static struct sk_event events[2], back[4];
    bson_t doc = BSON_INITIALIZER;

    fill(&in, events);
    sk_instance_encode(&in, events, 2, &doc);
    sk_instance_decode(&doc, &out);
    ck_assert_msg(!out.malformed, "%s", out.malformed_reason);
    ck_assert_int_eq(out.outbox_count, 2);
    in.outbox_count = 2;
    ck_assert_int_eq(memcmp(&in, &out, sizeof(in)), 0);
    ck_assert_int_eq(sk_outbox_decode(&doc, &out, back, 4), 2);
    ck_assert_int_eq(memcmp(&back[0], &events[1], sizeof(back[0])), 0);
    ck_assert_int_eq(memcmp(&back[1], &events[0], sizeof(back[0])), 0);
    ck_assert_int_eq(sk_outbox_decode(&doc, &out, back, 1), 1);
    bson_destroy(&doc);
}
END_TEST

/* Nothing changed: nothing is written. */
START_TEST(test_no_change)
{
    static struct sk_instance in;
    static struct sk_event events[2];
    bson_t set = BSON_INITIALIZER, unset = BSON_INITIALIZER;

    fill(&in, events);
    sk_instance_encode_change(&in, &in, &set, &unset);
    ck_assert(bson_empty(&set) && bson_empty(&unset));
    bson_destroy(&set);
    bson_destroy(&unset);
}
END_TEST

static int count_fields(const bson_t *doc)
{
    return (int)bson_count_keys(doc);
}

/* Only what changed is named, and the operation field by field while it is the same operation. */
START_TEST(test_change)
{
    static struct sk_instance before, after;
    static struct sk_event events[2];
    bson_t set = BSON_INITIALIZER, unset = BSON_INITIALIZER;
    bson_iter_t iter, value;

    fill(&before, events);
    after = before;
    strcpy(after.operation.phase, "providerEnsured");
    after.operation.error = (struct sk_stored_error){.code = ""};
    after.operation.failed_at = 0;
    sk_instance_encode_change(&before, &after, &set, &unset);
    ck_assert_int_eq(count_fields(&set), 1);
    ck_assert(bson_iter_init_find(&iter, &set, "operation.phase"));
    ck_assert_int_eq(count_fields(&unset), 2);
    ck_assert(bson_iter_init_find(&iter, &unset, "operation.error"));
    ck_assert(bson_iter_init_find(&iter, &unset, "operation.failedAt"));
    bson_reinit(&set);
    bson_reinit(&unset);
    /* Another operation: replaced as a whole, so nothing of the old one stays. */
    after = before;
    strcpy(after.operation.id, "22222222-2222-4222-8222-222222222222");
    after.epoch++;
    sk_instance_encode_change(&before, &after, &set, &unset);
    ck_assert_int_eq(count_fields(&set), 2);
    ck_assert(bson_iter_init(&iter, &set) && bson_iter_find_descendant(&iter, "operation.id", &value));
    ck_assert_str_eq(bson_iter_utf8(&value, NULL), after.operation.id);
    ck_assert(bson_empty(&unset));
    bson_reinit(&set);
    /* No operation any more. */
    after.has_operation = false;
    sk_instance_encode_change(&before, &after, &set, &unset);
    ck_assert(bson_iter_init_find(&iter, &unset, "operation"));
    ck_assert_int_eq(count_fields(&unset), 1);
    bson_destroy(&set);
    bson_destroy(&unset);
}
END_TEST

START_TEST(test_error_text)
{
    static const struct {
        const char *text, *code, *detail;
    } rows[] = {
        {"provider_error: HTTP 502", "provider_error", "HTTP 502"},
        {"provider_error: ", "provider_error", ""},
        {"Error: connect ECONNREFUSED", "", "Error: connect ECONNREFUSED"},
        {"internal: x", "internal", "x"},
        {"", "", ""},
        {": ", "", ": "},
        {"provider_error", "", "provider_error"},
        {"provider_error:x", "", "provider_error:x"},
        {"no_such_code: x", "", "no_such_code: x"},
        {"a code that is much longer than any of ours can ever be: x", "",
         "a code that is much longer than any of ours can ever be: x"},
    };
    struct sk_stored_error error;
    char text[SK_ERROR_TEXT_SIZE];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        sk_stored_error_parse(rows[i].text, strlen(rows[i].text), &error);
        ck_assert_str_eq(error.code, rows[i].code);
        ck_assert_str_eq(error.detail, rows[i].detail);
        sk_stored_error_format(&error, text);
        ck_assert_str_eq(text, rows[i].text);
    }
    sk_stored_error_parse("a\0b", 3, &error);
    ck_assert_str_eq(error.detail, "a");
    sk_stored_error_parse("a\xff", 2, &error);
    ck_assert_str_eq(error.detail, "a");
}
END_TEST

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Every cut and every flipped byte of a real document: no crash, no overrun (run it under the sanitizers), and an
 * answer that can be shown. */
START_TEST(test_broken_bytes)
{
    static struct sk_instance in, out;
    static struct sk_event events[2], back[8];
    uint8_t copy[16384];
    uint64_t state = 88172645463325252ULL;
    bson_t doc = BSON_INITIALIZER, view;
    int decoded = 0;

    fill(&in, events);
    sk_instance_encode(&in, events, 2, &doc);
    ck_assert_uint_lt(doc.len, sizeof(copy));
    for (uint32_t i = 0; i < doc.len * 4; i++) {
        uint32_t length = doc.len;
        json_t *shown;

        memcpy(copy, bson_get_data(&doc), doc.len);
        for (uint64_t flips = 1 + next_random(&state) % 3; flips > 0; flips--)
            copy[4 + next_random(&state) % (length - 5)] = (uint8_t)next_random(&state);
        if (i % 5 == 0) {
            length = 5 + (uint32_t)(next_random(&state) % (length - 5));
            copy[length - 1] = 0;
        }
        memcpy(copy, &length, 4);
        if (!bson_init_static(&view, copy, length))
            continue;
        decoded++;
        sk_instance_decode(&view, &out);
        ck_assert(out.malformed || sk_instance_invariant(&out) == NULL);
        (void)sk_outbox_decode(&view, &out, back, 8);
        shown = sk_instance_public_json(&out);
        ck_assert_ptr_nonnull(shown);
        json_decref(shown);
    }
    ck_assert_int_gt(decoded, 1000);
    bson_destroy(&doc);
}
END_TEST

START_TEST(test_numbers)
{
    static const struct {
        const char *json;
        bool good;
        int64_t value;
    } rows[] = {
        {"{\"n\": 5}", true, 5},
        {"{\"n\": {\"$numberLong\": \"1764500000000\"}}", true, 1764500000000},
        {"{\"n\": 5.0}", true, 5},
        {"{\"n\": 1764500000000.0}", true, 1764500000000},
        {"{\"n\": 5.5}", false, 0},
        {"{\"n\": -1}", false, 0},
        {"{\"n\": 9007199254740994.0}", false, 0},
        {"{\"n\": {\"$numberDouble\": \"NaN\"}}", false, 0},
        {"{\"n\": \"5\"}", false, 0},
        {"{\"n\": null}", false, 0},
        {"{\"n\": true}", false, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bson_t *doc = bson_new_from_json((const uint8_t *)rows[i].json, -1, NULL);
        bson_iter_t iter;
        int64_t value = 0;

        ck_assert_ptr_nonnull(doc);
        ck_assert(bson_iter_init_find(&iter, doc, "n"));
        ck_assert_msg(sk_bson_int(&iter, 0, INT64_MAX, &value) == rows[i].good, "%s", rows[i].json);
        ck_assert_int_eq(value, rows[i].value);
        bson_destroy(doc);
    }
}
END_TEST

SK_CHECK_MAIN("instance_bson", test_round_trip, test_no_change, test_change, test_error_text, test_broken_bytes,
              test_numbers)
