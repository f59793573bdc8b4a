/* SPDX-License-Identifier: Apache-2.0
 * Identities against the golden vectors, bad identities, and the forms of random ids. */
#include "common/base/id.h"
#include "tests/unit/check_main.h"

#include <jansson.h>
#include <string.h>

static const struct sk_sched *const sched = &sk_sched_system;

static int set(struct sk_identity *out, const char *type, const char *source, const char *user, struct sk_error *err)
{
    return sk_identity_set(out, type, source, strlen(source), user, strlen(user), err);
}

START_TEST(test_golden_vectors)
{
    json_error_t problem;
    json_t *rows = json_load_file(GOLDEN_DIR "/identity.json", 0, &problem), *row;
    size_t index;

    ck_assert_msg(rows != NULL, "%s", problem.text);
    ck_assert_uint_ge(json_array_size(rows), 4);
    json_array_foreach (rows, index, row) {
        const char *type, *source, *user, *expected;
        struct sk_identity identity;
        struct sk_error err = {0};
        char id[SK_SANDBOX_ID_SIZE];

        ck_assert_int_eq(json_unpack(row, "{s:s,s:s,s:s,s:s}", "sourceType", &type, "sourceId", &source, "userId",
                                     &user, "sandboxId", &expected),
                         0);
        ck_assert_msg(set(&identity, type, source, user, &err) == 0, "%s", err.message);
        sk_identity_sandbox_id(&identity, id);
        ck_assert_str_eq(id, expected);
        ck_assert(sk_sandbox_id_valid(id));
        ck_assert_int_eq(sk_sandbox_id_source_type(id), identity.source_type);
        ck_assert_str_eq(sk_source_type_name(identity.source_type), type);
    }
    json_decref(rows);
}
END_TEST

START_TEST(test_skill_edit_folds_the_user)
{
    struct sk_identity a, b;

    ck_assert_int_eq(set(&a, "skillEdit", "s", "somebody", NULL), 0);
    ck_assert_int_eq(set(&b, "skillEdit", "s", "", NULL), 0);
    ck_assert_str_eq(a.user_id, "skillEdit");
    ck_assert(sk_identity_equal(&a, &b));
    ck_assert_int_eq(set(&b, "app", "s", "skillEdit", NULL), 0);
    ck_assert(!sk_identity_equal(&a, &b));
}
END_TEST

START_TEST(test_alike_identities_are_told_apart)
{
    struct sk_identity a, b;
    char id_a[SK_SANDBOX_ID_SIZE], id_b[SK_SANDBOX_ID_SIZE];

    ck_assert_int_eq(set(&a, "app", "a-b", "c", NULL), 0);
    ck_assert_int_eq(set(&b, "app", "a", "b-c", NULL), 0);
    sk_identity_sandbox_id(&a, id_a);
    sk_identity_sandbox_id(&b, id_b);
    ck_assert_str_eq(id_a, id_b);
    ck_assert(!sk_identity_equal(&a, &b));
}
END_TEST

START_TEST(test_bad_identities)
{
    char points64[64 * 4 + 1], points65[65 * 4 + 1], user128[128 * 4 + 1], user129[129 * 4 + 1];
    struct sk_identity identity;
    struct sk_error err;

    for (int i = 0; i < 129; i++) {
        if (i < 64)
            memcpy(points64 + 4 * i, "\xf0\x9f\x98\x80", 5);
        if (i < 65)
            memcpy(points65 + 4 * i, "\xf0\x9f\x98\x80", 5);
        if (i < 128)
            memcpy(user128 + 4 * i, "\xf0\x9f\x98\x80", 5);
        memcpy(user129 + 4 * i, "\xf0\x9f\x98\x80", 5);
    }
    ck_assert_int_eq(set(&identity, "app", points64, user128, NULL), 0);
    ck_assert_uint_eq(strlen(identity.source_id), 256);
    ck_assert_uint_eq(strlen(identity.user_id), 512);

    const struct {
        const char *type, *source;
        size_t source_len;
        const char *user;
        size_t user_len;
        enum sk_code code;
    } rows[] = {
        {"chatAgentHelper", "s", 1, "u", 1, SK_ERR_SOURCE_UNSUPPORTED},
        {"App", "s", 1, "u", 1, SK_ERR_INVALID_REQUEST},
        {"", "s", 1, "u", 1, SK_ERR_INVALID_REQUEST},
        {NULL, "s", 1, "u", 1, SK_ERR_INVALID_REQUEST},
        {"app", "", 0, "u", 1, SK_ERR_INVALID_REQUEST},
        {"app", NULL, 0, "u", 1, SK_ERR_INVALID_REQUEST},
        {"app", "s", 1, "", 0, SK_ERR_INVALID_REQUEST},
        {"app", "s\0x", 3, "u", 1, SK_ERR_INVALID_REQUEST},
        {"app", "s", 1, "u\0", 2, SK_ERR_INVALID_REQUEST},
        {"app", "s\n", 2, "u", 1, SK_ERR_INVALID_REQUEST},
        {"app", "s\xff", 2, "u", 1, SK_ERR_INVALID_REQUEST},
        {"app", "s", 1, "\xed\xa0\x80", 3, SK_ERR_INVALID_REQUEST},
        {"app", points65, 260, "u", 1, SK_ERR_INVALID_REQUEST},
        {"app", "s", 1, user129, 516, SK_ERR_INVALID_REQUEST},
        {"skillEdit", "", 0, "u", 1, SK_ERR_INVALID_REQUEST},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        sk_error_clear(&err);
        ck_assert_msg(sk_identity_set(&identity, rows[i].type, rows[i].source, rows[i].source_len, rows[i].user,
                                      rows[i].user_len, &err) == -1,
                      "row %zu", i);
        ck_assert_int_eq(err.code, rows[i].code);
        ck_assert_int_eq(identity.source_type, SK_SOURCE_NONE);
    }
    /* 65 one-byte characters are few bytes, but too many code points. */
    char ascii65[66];
    memset(ascii65, 'a', 65);
    ascii65[65] = '\0';
    ck_assert_int_eq(set(&identity, "app", ascii65, "u", &err), -1);
    ascii65[64] = '\0';
    ck_assert_int_eq(set(&identity, "app", ascii65, "u", &err), 0);
}
END_TEST

START_TEST(test_sandbox_id_forms)
{
    static const char *const bad[] = {
        "",
        "app",
        "app-",
        "app-0123456789abcde",
        "app-0123456789abcdef0",
        "app-0123456789abcdeF",
        "App-0123456789abcdef",
        "app-0123456789abcde.",
        "app-0123456789abcde*",
        "skillEdit-0123456789abcdef",
        "helper-0123456789abcdef",
        "app-app-0123456789abcdef",
    };

    ck_assert_int_eq(sk_sandbox_id_source_type("app-0123456789abcdef"), SK_SOURCE_APP);
    ck_assert_int_eq(sk_sandbox_id_source_type("skilledit-0123456789abcdef"), SK_SOURCE_SKILL_EDIT);
    ck_assert_int_eq(sk_sandbox_id_source_type("workflowbuilder-0123456789abcdef"), SK_SOURCE_WORKFLOW_BUILDER);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(!sk_sandbox_id_valid(bad[i]), "%s", bad[i]);
    ck_assert(!sk_sandbox_id_valid(NULL));
}
END_TEST

static const struct sk_sched *fixed_sched(void);

START_TEST(test_random_ids)
{
    char a[SK_UUID_SIZE], b[SK_UUID_SIZE], ulid[SK_ULID_SIZE];

    sk_uuid4(sched, a);
    sk_uuid4(sched, b);
    ck_assert_str_ne(a, b);
    ck_assert_uint_eq(strlen(a), 36);
    ck_assert_int_eq(a[14], '4');
    ck_assert_ptr_nonnull(strchr("89ab", a[19]));
    ck_assert_uint_eq(strspn(a, "0123456789abcdef-"), 36);
    sk_ulid(sched, ulid);
    ck_assert_uint_eq(strlen(ulid), 26);
    ck_assert_uint_eq(strspn(ulid, "0123456789ABCDEFGHJKMNPQRSTVWXYZ"), 26);
    /* The specification's example of the time part: 1469918176385 ms. */
    sk_ulid(fixed_sched(), ulid);
    ck_assert_str_eq(ulid, "01ARYZ6S41ZZZZZZZZZZZZZZZZ");
}
END_TEST

static int64_t fixed_wall(void *self)
{
    (void)self;
    return 1469918176385;
}

static void fixed_random(void *self, void *out, size_t len)
{
    (void)self;
    memset(out, 0xff, len);
}

static const struct sk_sched *fixed_sched(void)
{
    static const struct sk_sched_ops ops = {.wall_ms = fixed_wall, .random_bytes = fixed_random};
    static const struct sk_sched fixed = {.ops = &ops};
    return &fixed;
}

START_TEST(test_sha256)
{
    char hex[65];

    sk_sha256_hex("abc", 3, hex);
    ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sk_sha256_hex("", 0, hex);
    ck_assert_str_eq(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}
END_TEST

SK_CHECK_MAIN("id", test_golden_vectors, test_skill_edit_folds_the_user, test_alike_identities_are_told_apart,
              test_bad_identities, test_sandbox_id_forms, test_random_ids, test_sha256)
