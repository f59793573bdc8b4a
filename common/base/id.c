/* SPDX-License-Identifier: Apache-2.0
 *
 * Random ids, digests and the sandbox identity (contract/lifecycle.md §1). */
#include "common/base/id.h"

#include <openssl/sha.h>
#include <string.h>

#define SOURCE_ID_POINTS_MAX 64
#define USER_ID_POINTS_MAX   128
#define SANDBOX_ID_HEX       16

static const char hex_digits[] = "0123456789abcdef";
static const char skill_edit_user[] = "skillEdit";

static const struct {
    const char *name, *prefix;
} source_types[] = {
    [SK_SOURCE_NONE] = {"", ""},
    [SK_SOURCE_APP] = {"app", "app-"},
    [SK_SOURCE_SKILL_EDIT] = {"skillEdit", "skilledit-"},
    [SK_SOURCE_WORKFLOW_BUILDER] = {"workflowBuilder", "workflowbuilder-"},
};
#define SOURCE_TYPE_COUNT ((int)(sizeof(source_types) / sizeof(source_types[0])))

static void to_hex(const unsigned char *bytes, size_t count, char *out)
{
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = hex_digits[bytes[i] >> 4];
        out[2 * i + 1] = hex_digits[bytes[i] & 15];
    }
    out[2 * count] = '\0';
}

void sk_uuid4(const struct sk_sched *sched, char out[SK_UUID_SIZE])
{
    unsigned char bytes[16];
    char hex[33];

    sk_random(sched, bytes, sizeof(bytes));
    bytes[6] = (unsigned char)((bytes[6] & 0x0f) | 0x40);
    bytes[8] = (unsigned char)((bytes[8] & 0x3f) | 0x80);
    to_hex(bytes, sizeof(bytes), hex);
    for (int i = 0, o = 0; i < 32; i++) {
        if (i == 8 || i == 12 || i == 16 || i == 20)
            out[o++] = '-';
        out[o++] = hex[i];
    }
    out[SK_UUID_SIZE - 1] = '\0';
}

void sk_ulid(const struct sk_sched *sched, char out[SK_ULID_SIZE])
{
    static const char crockford[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    uint64_t time = (uint64_t)sk_wall_ms(sched) & 0xffffffffffffULL;
    unsigned char bytes[10];

    for (int i = 9; i >= 0; i--, time >>= 5)
        out[i] = crockford[time & 31];
    sk_random(sched, bytes, sizeof(bytes));
    /* 80 bits as two groups of 5 bytes = 8 digits each. */
    for (int group = 0; group < 2; group++) {
        uint64_t bits = 0;
        for (int i = 0; i < 5; i++)
            bits = bits << 8 | bytes[group * 5 + i];
        for (int i = 7; i >= 0; i--, bits >>= 5)
            out[10 + group * 8 + i] = crockford[bits & 31];
    }
    out[SK_ULID_SIZE - 1] = '\0';
}

void sk_sha256_hex(const void *data, size_t len, char out[65])
{
    unsigned char digest[SHA256_DIGEST_LENGTH];

    SHA256(data, len, digest);
    to_hex(digest, sizeof(digest), out);
}

const char *sk_source_type_name(enum sk_source_type type)
{
    return (int)type > 0 && (int)type < SOURCE_TYPE_COUNT ? source_types[type].name : "";
}

enum sk_source_type sk_source_type_parse(const char *name, bool *unsupported)
{
    if (unsupported != NULL)
        *unsupported = false;
    if (name == NULL)
        return SK_SOURCE_NONE;
    for (int type = SK_SOURCE_APP; type < SOURCE_TYPE_COUNT; type++) {
        if (strcmp(source_types[type].name, name) == 0)
            return (enum sk_source_type)type;
    }
    if (unsupported != NULL)
        *unsupported = strcmp(name, "chatAgentHelper") == 0;
    return SK_SOURCE_NONE;
}

static int check_id(const char *field, const char *text, size_t len, long points_max, struct sk_error *err)
{
    long points;

    if (text == NULL || len == 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must not be empty", field);
    /* Looked at before the length is counted, so that a megabyte of text costs nothing. */
    if (len > (size_t)points_max * 4)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must have at most %ld characters", field, points_max);
    points = sk_utf8_length(text, len);
    if (points < 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must be valid UTF-8", field);
    if (points > points_max)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must have at most %ld characters", field, points_max);
    if (sk_text_has_control(text, len))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must not contain control characters", field);
    return 0;
}

int sk_identity_set(struct sk_identity *out, const char *source_type, const char *source_id, size_t source_id_len,
                    const char *user_id, size_t user_id_len, struct sk_error *err)
{
    bool unsupported;
    enum sk_source_type type = sk_source_type_parse(source_type, &unsupported);

    memset(out, 0, sizeof(*out));
    if (unsupported)
        return sk_fail(err, SK_ERR_SOURCE_UNSUPPORTED, "sourceType \"%s\" has no sandbox", source_type);
    if (type == SK_SOURCE_NONE)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "sourceType must be app, skillEdit or workflowBuilder");
    if (check_id("sourceId", source_id, source_id_len, SOURCE_ID_POINTS_MAX, err) != 0)
        return -1;
    if (type == SK_SOURCE_SKILL_EDIT) {
        user_id = skill_edit_user;
        user_id_len = sizeof(skill_edit_user) - 1;
    } else if (check_id("userId", user_id, user_id_len, USER_ID_POINTS_MAX, err) != 0) {
        return -1;
    }
    out->source_type = type;
    memcpy(out->source_id, source_id, source_id_len);
    memcpy(out->user_id, user_id, user_id_len);
    return 0;
}

void sk_identity_sandbox_id(const struct sk_identity *identity, char out[SK_SANDBOX_ID_SIZE])
{
    char text[SK_SOURCE_ID_SIZE + SK_USER_ID_SIZE], hex[65];
    size_t source_len = strlen(identity->source_id), user_len = strlen(identity->user_id), prefix_len;
    const char *prefix = source_types[identity->source_type].prefix;

    memcpy(text, identity->source_id, source_len);
    text[source_len] = '-';
    memcpy(text + source_len + 1, identity->user_id, user_len);
    sk_sha256_hex(text, source_len + 1 + user_len, hex);
    prefix_len = strlen(prefix);
    memcpy(out, prefix, prefix_len);
    memcpy(out + prefix_len, hex, SANDBOX_ID_HEX);
    out[prefix_len + SANDBOX_ID_HEX] = '\0';
}

bool sk_identity_equal(const struct sk_identity *a, const struct sk_identity *b)
{
    return a->source_type == b->source_type && strcmp(a->source_id, b->source_id) == 0 &&
           strcmp(a->user_id, b->user_id) == 0;
}

enum sk_source_type sk_sandbox_id_source_type(const char *id)
{
    if (id == NULL)
        return SK_SOURCE_NONE;
    for (int type = SK_SOURCE_APP; type < SOURCE_TYPE_COUNT; type++) {
        size_t prefix_len = strlen(source_types[type].prefix);
        if (strncmp(id, source_types[type].prefix, prefix_len) != 0)
            continue;
        id += prefix_len;
        if (strlen(id) != SANDBOX_ID_HEX || strspn(id, hex_digits) != SANDBOX_ID_HEX)
            return SK_SOURCE_NONE;
        return (enum sk_source_type)type;
    }
    return SK_SOURCE_NONE;
}

bool sk_sandbox_id_valid(const char *id)
{
    return sk_sandbox_id_source_type(id) != SK_SOURCE_NONE;
}
