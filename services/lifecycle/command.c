/* SPDX-License-Identifier: Apache-2.0
 *
 * Parsing of lifecycle commands. The subject says what and for whom; the body must agree with it. Everything that comes
 * from outside is bounded and typed here, so that the workflows never meet a surprise. */
#include "services/lifecycle/command.h"

#include "common/base/buf.h"
#include "common/base/json.h"
#include "proto/subjects.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const verb_names[LC_VERB_COUNT] = {
    [LC_VERB_NONE] = "",         [LC_VERB_ENSURE] = "ensure",     [LC_VERB_PROVISION] = "provision",
    [LC_VERB_STOP] = "stop",     [LC_VERB_ARCHIVE] = "archive",   [LC_VERB_RESTORE] = "restore",
    [LC_VERB_DELETE] = "delete", [LC_VERB_CONVERGE] = "converge", [LC_VERB_RECOVER] = "recover",
    [LC_VERB_TOUCH] = "touch",
};

const char *lc_verb_name(enum lc_verb verb)
{
    return (int)verb >= 0 && verb < LC_VERB_COUNT ? verb_names[verb] : "";
}

enum lc_verb lc_verb_parse(const char *name)
{
    for (int verb = LC_VERB_NONE + 1; verb < LC_VERB_COUNT; verb++) {
        if (strcmp(verb_names[verb], name) == 0)
            return (enum lc_verb)verb;
    }
    return LC_VERB_NONE;
}

/* Commands of services that come with later releases: whoever sends one must not take it for a typing error. */
static bool is_of_later_release(const char *rest)
{
    static const char *const families[] = {".cmd.source.", ".cmd.archive.", ".cmd.migration."};

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strncmp(rest, families[i], strlen(families[i])) == 0)
            return true;
    }
    return false;
}

/* "<prefix>.cmd.lifecycle.<op>.<sandboxId>" */
static int parse_subject(const struct sk_delivery *delivery, const char *prefix, struct lc_command *out,
                         struct sk_error *err)
{
    static const char middle[] = ".cmd.lifecycle.";
    const char *rest = delivery->subject, *dot;
    size_t prefix_len = strlen(prefix);
    char op[16];

    if (strncmp(rest, prefix, prefix_len) == 0 && is_of_later_release(rest + prefix_len))
        return sk_fail(err, SK_ERR_OPERATION_BLOCKED, "commands of this kind are not available in this release");
    if (strncmp(rest, prefix, prefix_len) != 0 || strncmp(rest + prefix_len, middle, sizeof(middle) - 1) != 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the subject is not one of a lifecycle command");
    rest += prefix_len + sizeof(middle) - 1;
    dot = strchr(rest, '.');
    if (dot == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the subject has no sandbox id");
    if (sk_sandbox_id_valid(dot + 1) && !sk_copy(out->sandbox_id, sizeof(out->sandbox_id), dot + 1))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the sandbox id of the subject is too long");
    if (dot - rest < (ptrdiff_t)sizeof(op)) {
        memcpy(op, rest, (size_t)(dot - rest));
        op[dot - rest] = '\0';
        out->verb = lc_verb_parse(op);
    }
    if (out->sandbox_id[0] == '\0')
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the sandbox id of the subject is not valid");
    if (out->verb == LC_VERB_NONE)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the subject names an unknown operation");
    return 0;
}

/* W3C trace context, version 00; anything else is dropped: a broken trace must not cost a sandbox. */
static bool traceparent_valid(const char *text)
{
    static const char shape[] = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";

    if (strlen(text) != sizeof(shape) - 1)
        return false;
    for (size_t i = 0; i < sizeof(shape) - 1; i++) {
        bool hex = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');

        if (shape[i] == 'x' ? !hex : text[i] != shape[i])
            return false;
    }
    return true;
}

/* One member of a tracestate, "key=value", without the white space around it. */
static bool trace_member_valid(const char *member, size_t len)
{
    const char *equals = memchr(member, '=', len);
    size_t key = equals != NULL ? (size_t)(equals - member) : 0;

    if (key == 0 || key > 256 || len - key < 2 || !(islower((unsigned char)*member) || isdigit((unsigned char)*member)))
        return false;
    for (size_t i = 0; i < key; i++) {
        if (!islower((unsigned char)member[i]) && !isdigit((unsigned char)member[i]) &&
            (member[i] == '\0' || strchr("_-*/@", member[i]) == NULL))
            return false;
    }
    for (size_t i = key + 1; i < len; i++) {
        if (member[i] < 0x20 || member[i] > 0x7e || member[i] == '=')
            return false;
    }
    return true;
}

/* W3C trace context: at most 32 members, separated by commas; empty ones are allowed. It means something to those who
 * wrote it only, so it is passed on as it is, or not at all. */
static bool tracestate_valid(const char *text)
{
    int members = 0;

    if (strlen(text) > LC_TRACESTATE_MAX)
        return false;
    while (*text != '\0') {
        size_t len;

        text += strspn(text, ", \t");
        len = strcspn(text, ",");
        while (len > 0 && (text[len - 1] == ' ' || text[len - 1] == '\t'))
            len--;
        if (len > 0 && (++members > 32 || !trace_member_valid(text, len)))
            return false;
        text += strcspn(text, ",");
    }
    return members > 0;
}

static void parse_headers(const struct sk_delivery *delivery, const char *prefix, struct lc_command *out)
{
    const char *reply = sk_delivery_header(delivery, SK_HEADER_REPLY_TO);
    const char *trace = sk_delivery_header(delivery, SK_HEADER_TRACEPARENT);
    const char *state = sk_delivery_header(delivery, SK_HEADER_TRACESTATE);

    if (reply != NULL &&
        (!sk_reply_subject_valid(reply, prefix) || !sk_copy(out->reply_to, sizeof(out->reply_to), reply)))
        out->reply_ignored = true;
    if (trace != NULL && traceparent_valid(trace) && !sk_copy(out->traceparent, sizeof(out->traceparent), trace))
        out->traceparent[0] = '\0';
    if (state != NULL && out->traceparent[0] != '\0' && tracestate_valid(state))
        out->tracestate = state;
}

/* A bounded text without control characters; *present may be NULL. */
static int get_text(const json_t *object, const char *path, const char *key, unsigned flags, char *out, size_t size,
                    struct sk_error *err)
{
    const char *text;
    size_t len;
    int rc = sk_json_get_string(object, path, key, flags | SK_JSON_NOT_EMPTY, size - 1, &text, &len, err);

    if (rc <= 0)
        return rc;
    if (sk_text_has_control(text, len))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s%s%s must not contain control characters", path,
                       path[0] != '\0' ? "." : "", key);
    memcpy(out, text, len + 1);
    return 1;
}

static int parse_id(const json_t *body, struct lc_command *out, struct sk_error *err)
{
    char id[SK_COMMAND_ID_SIZE];

    if (get_text(body, "", "id", SK_JSON_REQUIRED, id, sizeof(id), err) < 0)
        return -1;
    if (sk_utf8_length(id, strlen(id)) > LC_COMMAND_ID_MAX)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "id must have at most %d characters", LC_COMMAND_ID_MAX);
    return sk_copy(out->id, sizeof(out->id), id) ? 0 : sk_fail(err, SK_ERR_INVALID_REQUEST, "id is too long");
}

static int parse_identity(const json_t *body, struct lc_command *out, struct sk_error *err)
{
    const char *type = NULL, *source = NULL, *user = NULL;
    size_t source_len = 0, user_len = 0;
    char computed[SK_SANDBOX_ID_SIZE];
    const json_t *object;
    int rc = sk_json_get_object(body, "", "source", 0, &object, err);

    if (rc <= 0)
        return rc;
    if (sk_json_get_string(object, "source", "sourceType", SK_JSON_REQUIRED, 64, &type, NULL, err) < 0 ||
        sk_json_get_string(object, "source", "sourceId", SK_JSON_REQUIRED, SK_SOURCE_ID_SIZE - 1, &source, &source_len,
                           err) < 0 ||
        sk_json_get_string(object, "source", "userId", 0, SK_USER_ID_SIZE - 1, &user, &user_len, err) < 0)
        return -1;
    if (sk_identity_set(&out->identity, type, source, source_len, user, user_len, err) != 0)
        return sk_fail_context(err, "source");
    sk_identity_sandbox_id(&out->identity, computed);
    if (strcmp(computed, out->sandbox_id) != 0)
        return sk_fail(err, SK_ERR_IDENTITY_MISMATCH, "the sandbox id of this source is %s", computed);
    out->has_identity = true;
    return 0;
}

static bool charset(const char *text, const char *more)
{
    for (; *text != '\0'; text++) {
        if (!isalnum((unsigned char)*text) && strchr(more, *text) == NULL)
            return false;
    }
    return true;
}

static int parse_image(const json_t *params, unsigned flags, struct lc_params *out, struct sk_error *err)
{
    const json_t *image;
    int rc = sk_json_get_object(params, "params", "image", flags, &image, err);

    if (rc <= 0)
        return rc;
    if (get_text(image, "params.image", "repository", SK_JSON_REQUIRED, out->image.repository,
                 sizeof(out->image.repository), err) < 0 ||
        get_text(image, "params.image", "tag", 0, out->image.tag, sizeof(out->image.tag), err) < 0)
        return -1;
    if (!charset(out->image.repository, "._-/:@") || !charset(out->image.tag, "._-"))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "params.image is not a valid image reference");
    out->image.present = true;
    return 1;
}

/* "1Gi", "512Mi", "0.5Gi" */
static bool storage_size_valid(const char *text)
{
    const char *unit = text + strspn(text, "0123456789.");
    char *end;
    double value = strtod(text, &end);

    /* strtod also takes hexadecimal and exponents: what it read must be what strspn saw. */
    return isdigit((unsigned char)text[0]) && end == unit && value > 0 && value <= 1048576 &&
           (strcmp(unit, "Ki") == 0 || strcmp(unit, "Mi") == 0 || strcmp(unit, "Gi") == 0 || strcmp(unit, "Ti") == 0);
}

static int parse_limit(const json_t *params, struct lc_params *out, struct sk_error *err)
{
    struct sk_limit *limit = &out->limit;
    const json_t *object;
    int rc = sk_json_get_object(params, "params", "limit", 0, &object, err);

    if (rc <= 0)
        return rc;
    if (sk_json_get_number(object, "params.limit", "cpuCount", 0, 0.01, LC_CPU_COUNT_MAX, &limit->cpu_count, err) < 0 ||
        sk_json_get_number(object, "params.limit", "memoryMiB", 0, 1, LC_MEMORY_MIB_MAX, &limit->memory_mib, err) < 0 ||
        get_text(object, "params.limit", "storageSize", 0, limit->storage_size, sizeof(limit->storage_size), err) < 0)
        return -1;
    if (limit->storage_size[0] != '\0' && !storage_size_valid(limit->storage_size))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "params.limit.storageSize must look like \"1Gi\" or \"512Mi\"");
    limit->present = true;
    return 1;
}

static int parse_provider(const json_t *params, unsigned flags, struct lc_params *out, struct sk_error *err)
{
    if (get_text(params, "params", "provider", flags, out->provider, sizeof(out->provider), err) < 0)
        return -1;
    if (!charset(out->provider, "-_"))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "params.provider is not a valid name");
    return 0;
}

static int parse_ensure(const json_t *params, struct lc_params *out, struct sk_error *err)
{
    if (sk_json_get_bool(params, "params", "restore", 0, &out->restore, err) < 0 ||
        parse_image(params, 0, out, err) < 0 || parse_provider(params, 0, out, err) < 0 ||
        parse_limit(params, out, err) < 0 ||
        get_text(params, "params", "teamId", 0, out->team_id, sizeof(out->team_id), err) < 0 ||
        get_text(params, "params", "versionId", 0, out->version_id, sizeof(out->version_id), err) < 0 ||
        get_text(params, "params", "reason", 0, out->reason, sizeof(out->reason), err) < 0)
        return -1;
    return 0;
}

static int parse_params(const json_t *params, enum lc_verb verb, struct lc_params *out, struct sk_error *err)
{
    static const char *const actions[] = {"retry", "abandon", NULL};
    int action = 0;

    switch (verb) {
    case LC_VERB_ENSURE:
    case LC_VERB_PROVISION:
        return parse_ensure(params, out, err);
    case LC_VERB_STOP:
    case LC_VERB_ARCHIVE:
        if (sk_json_get_time(params, "params", "ifIdleSince", 0, &out->if_idle_since, err) < 0 ||
            get_text(params, "params", "reason", 0, out->reason, sizeof(out->reason), err) < 0)
            return -1;
        return verb == LC_VERB_ARCHIVE && sk_json_get_bool(params, "params", "force", 0, &out->force, err) < 0 ? -1 : 0;
    case LC_VERB_DELETE:
        return get_text(params, "params", "reason", 0, out->reason, sizeof(out->reason), err) < 0 ? -1 : 0;
    case LC_VERB_CONVERGE:
        return parse_image(params, SK_JSON_REQUIRED, out, err) < 0 ||
                       parse_provider(params, SK_JSON_REQUIRED, out, err) < 0
                   ? -1
                   : 0;
    case LC_VERB_RECOVER:
        if (sk_json_get_choice(params, "params", "action", SK_JSON_REQUIRED, actions, &action, err) < 0)
            return -1;
        out->abandon = action == 1;
        return 0;
    default:
        return 0;
    }
}

/* Keys sorted, no blanks: two writings of one meaning hash alike. The separator cannot stand in any of the parts. */
static int hash_meaning(const json_t *params, struct lc_command *command, struct sk_error *err)
{
    const struct sk_identity *identity = &command->identity;
    struct sk_buf text;
    char *canonical = NULL;
    int rc = -1;

    sk_buf_init(&text, SK_BUS_BODY_MAX * 2);
    if (params != NULL && json_object_size(params) > 0) {
        canonical = sk_json_dump(params, true, NULL, err);
        if (canonical == NULL)
            goto out;
    }
    sk_buf_printf(&text, "%s\n%s\n%s\n%s\n%s\n", lc_verb_name(command->verb), command->sandbox_id,
                  sk_source_type_name(identity->source_type), identity->source_id, identity->user_id);
    sk_buf_append_text(&text, canonical != NULL ? canonical : "{}");
    if (text.overflow) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        goto out;
    }
    sk_sha256_hex(sk_buf_data(&text), sk_buf_len(&text), command->hash);
    rc = 0;
out:
    free(canonical);
    sk_buf_fini(&text);
    return rc;
}

static int parse_body(const json_t *body, struct lc_command *out, struct sk_error *err)
{
    char text[SK_SANDBOX_ID_SIZE + 64];
    const json_t *params = NULL;
    int64_t requested_at;
    int rc;

    if (parse_id(body, out, err) != 0)
        return -1;
    rc = get_text(body, "", "op", 0, text, sizeof(text), err);
    if (rc < 0)
        return -1;
    if (rc > 0 && lc_verb_parse(text) == LC_VERB_NONE)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "op is unknown");
    if (rc > 0 && lc_verb_parse(text) != out->verb)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "op does not agree with the subject");
    rc = get_text(body, "", "sandboxId", 0, text, sizeof(text), err);
    if (rc < 0)
        return -1;
    if (rc > 0 && strcmp(text, out->sandbox_id) != 0)
        return sk_fail(err, SK_ERR_IDENTITY_MISMATCH, "sandboxId does not agree with the subject");
    if (parse_identity(body, out, err) < 0 || sk_json_get_time(body, "", "requestedAt", 0, &requested_at, err) < 0 ||
        sk_json_get_int(body, "", "deadlineMs", 0, 1, LC_DEADLINE_MS_MAX, &out->deadline_ms, err) < 0)
        return -1;
    rc = sk_json_get_object(body, "", "params", 0, &params, err);
    if (rc < 0)
        return -1;
    if (rc == 0 && (out->verb == LC_VERB_CONVERGE || out->verb == LC_VERB_RECOVER))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "params is required");
    if (rc > 0 && parse_params(params, out->verb, &out->params, err) != 0)
        return -1;
    return hash_meaning(params, out, err);
}

/* Of a command that is refused for another reason: the id helps whoever waits for the answer. */
static void salvage_id(const json_t *body, struct lc_command *out)
{
    if (parse_id(body, out, NULL) != 0)
        out->id[0] = '\0';
}

int lc_command_parse(const struct sk_delivery *delivery, const char *prefix, int64_t default_deadline_ms,
                     struct lc_command *out, struct sk_error *err)
{
    static const struct sk_json_limits limits = {.max_bytes = SK_BUS_BODY_MAX, .max_depth = LC_JSON_DEPTH_MAX};
    json_t *body = NULL;
    int subject, rc = -1;

    memset(out, 0, sizeof(*out));
    out->deadline_ms = default_deadline_ms;
    out->params.restore = true;
    parse_headers(delivery, prefix, out);
    subject = parse_subject(delivery, prefix, out, err);
    if (delivery->body == NULL || delivery->body_len > SK_BUS_BODY_MAX) {
        if (subject == 0)
            sk_fail(err, SK_ERR_INVALID_REQUEST, "the command has more than %d bytes", SK_BUS_BODY_MAX);
        return -1;
    }
    body = sk_json_parse_object(delivery->body, delivery->body_len, &limits, subject == 0 ? err : NULL);
    if (body == NULL)
        return -1;
    if (subject != 0)
        salvage_id(body, out);
    else
        rc = parse_body(body, out, err);
    json_decref(body);
    return rc;
}
