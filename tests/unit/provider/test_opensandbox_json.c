/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenSandbox's JSON without a network: states, labels, objects, the create request in its variants, configuration. */
#include "common/provider/opensandbox.h"
#include "tests/unit/check_main.h"

#include "common/metrics/metrics.h"

#include <stdio.h>
#include <string.h>

#define JOB "11111111-1111-4111-8111-111111111111"

START_TEST(test_states)
{
    static const struct {
        const char *name;
        enum sk_remote_state state;
    } table[] = {
        {"Running", SK_REMOTE_RUNNING},  {"running", SK_REMOTE_RUNNING},   {"RUNNING", SK_REMOTE_RUNNING},
        {"Pending", SK_REMOTE_PENDING},  {"Allocated", SK_REMOTE_PENDING}, {"Resuming", SK_REMOTE_PENDING},
        {"Pausing", SK_REMOTE_PENDING},  {"Paused", SK_REMOTE_PAUSED},     {"Stopping", SK_REMOTE_STOPPING},
        {"Terminated", SK_REMOTE_ENDED}, {"Failed", SK_REMOTE_ENDED},      {"Deleted", SK_REMOTE_ENDED},
        {"Unknown", SK_REMOTE_UNKNOWN},  {"", SK_REMOTE_UNKNOWN},          {"Hibernating", SK_REMOTE_UNKNOWN},
        {"Running ", SK_REMOTE_UNKNOWN},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        ck_assert_msg(sk_opensandbox_state(table[i].name) == table[i].state, "%s", table[i].name);
}
END_TEST

START_TEST(test_labels)
{
    static const char *const good[] = {"a",
                                       "A-b_c.d9",
                                       "1764500000001",
                                       "app-0123456789abcdef",
                                       JOB,
                                       "012345678901234567890123456789012345678901234567890123456789012"};
    static const char *const bad[] = {
        "",         "-a",  "a-",
        ".a",       "a b", "a/b",
        "\xc3\xa9", "a\n", "0123456789012345678901234567890123456789012345678901234567890123"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        ck_assert_msg(sk_opensandbox_label_valid(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(!sk_opensandbox_label_valid(bad[i]), "%s", bad[i]);
    ck_assert(!sk_opensandbox_label_valid(NULL));
    ck_assert(sk_opensandbox_id_valid("...") && !sk_opensandbox_id_valid("..") && !sk_opensandbox_id_valid("."));
}
END_TEST

START_TEST(test_objects)
{
    static const struct {
        const char *text;
        bool good;
        const char *session, *job;
        int64_t epoch, created;
    } table[] = {
        {"{\"id\":\"a\",\"status\":{\"state\":\"Running\"}}", true, "", "", 0, 0},
        {"{\"id\":\"a\",\"status\":{\"state\":\"Running\"},\"metadata\":null,\"createdAt\":null}", true, "", "", 0, 0},
        {"{\"id\":\"a\",\"status\":{\"state\":\"Running\"},\"metadata\":{\"sessionId\":\"s\",\"sandkeep.dev/epoch\":"
         "\"1764500000001\",\"sandkeep.dev/operation\":\"" JOB "\"},\"createdAt\":\"2026-11-30T08:00:00.5+01:00\"}",
         true, "s", JOB, 1764500000001, 1796022000500},
        /* Labels that we did not write count as absent. */
        {"{\"id\":\"a\",\"status\":{\"state\":\"x\"},\"metadata\":{\"sessionId\":7,\"sandkeep.dev/epoch\":\"-1\","
         "\"sandkeep.dev/operation\":\"0123456789012345678901234567890123456789\"},\"createdAt\":\"yesterday\"}",
         true, "", "", 0, 0},
        {"{\"id\":\"a\",\"status\":{\"state\":\"x\"},\"metadata\":{\"sandkeep.dev/epoch\":\"99999999999999999999\"}}",
         true, "", "", 0, 0},
        {"{\"id\":\"a\",\"status\":{\"state\":\"x\"},\"metadata\":{\"sessionId\":"
         "\"0123456789012345678901234567890123456789012345678901234567890123456789\"}}",
         true, "", "", 0, 0},
        {"{\"status\":{\"state\":\"Running\"}}", false, "", "", 0, 0},
        {"{\"id\":\"\",\"status\":{\"state\":\"Running\"}}", false, "", "", 0, 0},
        {"{\"id\":\"a/b\",\"status\":{\"state\":\"Running\"}}", false, "", "", 0, 0},
        {"{\"id\":\"a\",\"status\":\"Running\"}", false, "", "", 0, 0},
        {"{\"id\":\"a\",\"status\":{}}", false, "", "", 0, 0},
        {"{\"id\":\"a\",\"status\":{\"state\":\"Running\"},\"metadata\":[]}", false, "", "", 0, 0},
        {"[]", false, "", "", 0, 0},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        json_t *json = json_loads(table[i].text, 0, NULL);
        const char *why = NULL;
        struct sk_remote remote;

        ck_assert_msg(sk_opensandbox_read_remote(json, &remote, &why) == table[i].good, "row %zu", i);
        json_decref(json);
        if (!table[i].good) {
            ck_assert_ptr_nonnull(why);
            continue;
        }
        ck_assert_str_eq(remote.sandbox_id, table[i].session);
        ck_assert_str_eq(remote.job_id, table[i].job);
        ck_assert_int_eq(remote.epoch, table[i].epoch);
        ck_assert_int_eq(remote.created_at, table[i].created);
    }
    ck_assert(!sk_opensandbox_read_remote(NULL, &(struct sk_remote){0}, &(const char *){NULL}));
}
END_TEST

static struct sk_opensandbox *adapter(struct sk_provider *provider, const char *entrypoint, const char *runtime)
{
    const struct sk_opensandbox_config config = {
        .base_url = "http://h/v1/", .entrypoint = entrypoint, .runtime = runtime};
    struct sk_error err;

    ck_assert_int_eq(sk_opensandbox_new(&config, &sk_sched_system, provider, &err), 0);
    return provider->self;
}

static json_t *body_of(const struct sk_opensandbox *o, const struct sk_create_spec *spec)
{
    struct sk_error err = {0};
    json_t *body = sk_opensandbox_create_body(o, spec, &err);

    if (body == NULL)
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    return body;
}

static const char *text_at(json_t *body, const char *a, const char *b)
{
    return json_string_value(json_object_get(json_object_get(body, a), b));
}

START_TEST(test_images_and_limits)
{
    static const struct {
        const char *repository, *tag, *uri;
    } images[] = {
        {"a/b", "", "a/b"},
        {"a/b", "v1", "a/b:v1"},
        {"localhost:5000/a", "v1", "localhost:5000/a:v1"},
        {"a/b", "sha256:00ff", "a/b@sha256:00ff"},
        {"a/b", "@sha256:00ff", "a/b@sha256:00ff"},
    };
    static const struct {
        double cpu, memory;
        const char *cpu_text, *memory_text;
    } limits[] = {
        {1, 2048, "1", "2048Mi"},       {0.5, 512, "0.5", "512Mi"}, {2.25, 1, "2.25", "1Mi"},
        {0.1, 1e6, "0.1", "1000000Mi"}, {0, 0, "1", "2048Mi"},      {16, 65536, "16", "65536Mi"},
    };
    struct sk_provider provider;
    struct sk_opensandbox *o = adapter(&provider, "", NULL);
    struct sk_image image = {.present = true};
    struct sk_limit limit = {.present = true};
    struct sk_create_spec spec = {.sandbox_id = "app-0123456789abcdef", .epoch = 1, .job_id = JOB, .image = &image};
    json_t *body;

    for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++) {
        snprintf(image.repository, sizeof(image.repository), "%s", images[i].repository);
        snprintf(image.tag, sizeof(image.tag), "%s", images[i].tag);
        body = body_of(o, &spec);
        ck_assert_str_eq(text_at(body, "image", "uri"), images[i].uri);
        ck_assert_str_eq(text_at(body, "resourceLimits", "cpu"), "1"); /* required by the server, absent here */
        ck_assert_ptr_null(json_object_get(body, "volumes"));
        ck_assert_ptr_null(json_object_get(body, "timeout"));
        ck_assert_ptr_null(json_object_get(body, "networkPolicy"));
        json_decref(body);
    }
    spec.limit = &limit;
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        limit.cpu_count = limits[i].cpu;
        limit.memory_mib = limits[i].memory;
        body = body_of(o, &spec);
        ck_assert_str_eq(text_at(body, "resourceLimits", "cpu"), limits[i].cpu_text);
        ck_assert_str_eq(text_at(body, "resourceLimits", "memory"), limits[i].memory_text);
        json_decref(body);
    }
    sk_opensandbox_free(&provider);
}
END_TEST

START_TEST(test_volumes_and_policy)
{
    struct sk_provider provider;
    struct sk_opensandbox *o = adapter(&provider, NULL, "docker");
    struct sk_image image = {.present = true, .repository = "a"};
    struct sk_storage storage = {.present = true, .claim_name = "claim", .sub_path = "sub"};
    struct sk_create_spec spec = {
        .sandbox_id = "app-0123456789abcdef", .epoch = 1, .job_id = JOB, .image = &image, .storage = &storage};
    json_t *body = body_of(o, &spec), *volume = json_array_get(json_object_get(body, "volumes"), 0), *policy;

    ck_assert_str_eq(json_string_value(json_object_get(volume, "name")), "workspace");
    ck_assert_str_eq(json_string_value(json_object_get(volume, "mountPath")), "/workspace");
    ck_assert_str_eq(json_string_value(json_object_get(volume, "subPath")), "sub");
    ck_assert_str_eq(text_at(volume, "pvc", "claimName"), "claim");
    ck_assert(json_is_false(json_object_get(json_object_get(volume, "pvc"), "createIfNotExists")));
    ck_assert(json_is_false(json_object_get(json_object_get(volume, "pvc"), "deleteOnSandboxTermination")));
    policy = json_object_get(body, "networkPolicy");
    ck_assert_str_eq(json_string_value(json_object_get(policy, "defaultAction")), "allow");
    ck_assert_uint_eq(json_array_size(json_object_get(policy, "egress")), 8);
    json_decref(body);

    storage.claim_name[0] = '\0'; /* a record without a claim mounts nothing */
    body = body_of(o, &spec);
    ck_assert_ptr_null(json_object_get(body, "volumes"));
    json_decref(body);
    sk_opensandbox_free(&provider);
}
END_TEST

START_TEST(test_bad_specs)
{
    struct sk_provider provider;
    struct sk_opensandbox *o = adapter(&provider, NULL, "");
    struct sk_image image = {.present = true, .repository = "a"}, none = {0}, broken = {.repository = "\xff"};
    struct sk_create_spec good = {.sandbox_id = "app-0123456789abcdef", .epoch = 1, .job_id = JOB, .image = &image},
                          bad;
    struct sk_error err;
    json_t *body = body_of(o, &good);

    ck_assert_ptr_nonnull(body);
    json_decref(body);
    bad = good;
    bad.sandbox_id = "not a label";
    ck_assert_ptr_null(body_of(o, &bad));
    bad = good;
    bad.epoch = 0;
    ck_assert_ptr_null(body_of(o, &bad));
    bad = good;
    bad.job_id = "";
    ck_assert_ptr_null(body_of(o, &bad));
    bad = good;
    bad.image = NULL;
    ck_assert_ptr_null(body_of(o, &bad));
    bad.image = &none;
    ck_assert_ptr_null(body_of(o, &bad));
    bad.image = &broken;
    ck_assert_ptr_null(sk_opensandbox_create_body(o, &bad, &err));
    sk_opensandbox_free(&provider);
}
END_TEST

START_TEST(test_entrypoints)
{
    static const struct {
        const char *text;
        int count;
        const char *first;
    } good[] = {
        {"", 3, "tail"},
        {"/home/sandbox/entrypoint.sh", 1, "/home/sandbox/entrypoint.sh"},
        {"/path with space.sh", 1, "/path with space.sh"},
        {"[\"sh\",\"-c\",\"true\"]", 3, "sh"},
    };
    static const char *const bad[] = {
        "[", "[]", "[1]", "[\"a\",null]",
        ("[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\","
         "\"14\",\"15\",\"16\",\"17\"]")};
    struct sk_provider provider;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct sk_opensandbox *o = adapter(&provider, good[i].text, NULL);

        ck_assert_int_eq(o->entrypoint_count, good[i].count);
        ck_assert_str_eq(o->entrypoint[0], good[i].first);
        sk_opensandbox_free(&provider);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct sk_opensandbox_config config = {.base_url = "http://h", .entrypoint = bad[i]};
        struct sk_error err;

        ck_assert_msg(sk_opensandbox_new(&config, &sk_sched_system, &provider, &err) == -1, "%s", bad[i]);
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    }
}
END_TEST

START_TEST(test_configuration)
{
    static const struct {
        const char *base, *root;
    } good[] = {
        {"http://h", "http://h"},
        {"http://h/", "http://h"},
        {"http://h/v1", "http://h"},
        {"http://h/v1///", "http://h"},
        {"https://h:8/a/v1", "https://h:8/a"},
        {"http://h/a", "http://h/a"},
        {"http://h/xv1", "http://h/xv1"},
    };
    static const struct sk_opensandbox_config bad[] = {
        {.base_url = NULL},
        {.base_url = ""},
        {.base_url = "localhost:8090"},
        {.base_url = "http://h?x"},
        {.base_url = "http://h", .volume_manager_url = "volumes"},
        {.base_url = "http://h", .api_key = "a\nb"},
        {.base_url = "http://h", .volume_manager_token = "a\r\nb"},
    };
    struct sk_provider provider;
    struct sk_error err;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        const struct sk_opensandbox_config config = {.base_url = good[i].base};
        const struct sk_opensandbox *o;
        char v1[64];

        ck_assert_int_eq(sk_opensandbox_new(&config, &sk_sched_system, &provider, &err), 0);
        o = provider.self;
        snprintf(v1, sizeof(v1), "%s/v1", good[i].root);
        ck_assert_str_eq(o->root, good[i].root);
        ck_assert_str_eq(o->v1, v1);
        ck_assert(!provider.ops->has_volumes);
        ck_assert_str_eq(provider.ops->name, "opensandbox");
        sk_opensandbox_free(&provider);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(sk_opensandbox_new(&bad[i], &sk_sched_system, &provider, &err) == -1, "row %zu", i);
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
        ck_assert_ptr_null(provider.self);
    }
}
END_TEST

START_TEST(test_metrics)
{
    struct sk_http_response response = {.end = SK_HTTP_DONE, .status = 200, .duration_us = 1500};
    char *text = NULL;
    size_t size = 0;
    FILE *out;

    sk_wire_metrics_register();
    sk_wire_metrics_register();
    sk_wire_count(SK_WIRE_CREATE, &response);
    response.status = 404;
    sk_wire_count(SK_WIRE_CREATE, &response);
    response.status = 502;
    sk_wire_count(SK_WIRE_CREATE, &response);
    response.end = SK_HTTP_LOST;
    sk_wire_count(SK_WIRE_CREATE, &response);
    response.end = SK_HTTP_TIMEOUT;
    sk_wire_count(SK_WIRE_CREATE, &response);
    response.end = SK_HTTP_CANCELLED;
    sk_wire_count(SK_WIRE_CREATE, &response);
    out = open_memstream(&text, &size);
    sk_metrics_write(out);
    fclose(out);
    for (int i = 0; i < 6; i++) {
        static const char *const results[] = {"ok", "rejected", "failed", "unreachable", "timeout", "cancelled"};
        char line[128];

        snprintf(line, sizeof(line), "sandkeep_provider_requests_total{operation=\"create\",result=\"%s\"} 1",
                 results[i]);
        ck_assert_msg(strstr(text, line) != NULL, "%s", line);
    }
    ck_assert_ptr_nonnull(strstr(text, "sandkeep_provider_request_seconds_count{operation=\"create\"} 6"));
    free(text);
}
END_TEST

SK_CHECK_MAIN("opensandbox json", test_states, test_labels, test_objects, test_images_and_limits,
              test_volumes_and_policy, test_bad_specs, test_entrypoints, test_configuration, test_metrics)
