/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenSandbox's JSON: objects as the lifecycle API shows them, and the create request as FastGPT's adapter writes it
 * (reference/providers.md §1.3, §1.4, §1.7, §4.1). */
#include "common/provider/opensandbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LABEL_MAX      63
#define WORKSPACE_PATH "/workspace"
#define WORKSPACE_NAME "workspace"

enum sk_remote_state sk_opensandbox_state(const char *name)
{
    static const struct {
        const char *name;
        enum sk_remote_state state;
    } table[] = {
        {"Running", SK_REMOTE_RUNNING},   {"Pending", SK_REMOTE_PENDING},      {"Creating", SK_REMOTE_PENDING},
        {"Starting", SK_REMOTE_PENDING},  {"Allocated", SK_REMOTE_PENDING},    {"Resuming", SK_REMOTE_PENDING},
        {"Pausing", SK_REMOTE_PENDING},   {"Paused", SK_REMOTE_PAUSED},        {"Stopping", SK_REMOTE_STOPPING},
        {"Deleting", SK_REMOTE_STOPPING}, {"Terminating", SK_REMOTE_STOPPING}, {"Terminated", SK_REMOTE_ENDED},
        {"Failed", SK_REMOTE_ENDED},      {"Error", SK_REMOTE_ENDED},          {"Deleted", SK_REMOTE_ENDED},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strcasecmp(table[i].name, name) == 0)
            return table[i].state;
    }
    return SK_REMOTE_UNKNOWN;
}

static bool is_alphanumeric(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_name(const char *text, size_t max)
{
    size_t len = strlen(text);

    if (len == 0 || len > max)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (!is_alphanumeric((unsigned char)text[i]) && strchr("-_.", text[i]) == NULL)
            return false;
    }
    return true;
}

bool sk_opensandbox_id_valid(const char *id)
{
    return id != NULL && is_name(id, SK_REMOTE_ID_SIZE - 1) && strcmp(id, ".") != 0 && strcmp(id, "..") != 0;
}

bool sk_opensandbox_label_valid(const char *value)
{
    size_t len;

    if (value == NULL || !is_name(value, LABEL_MAX))
        return false;
    len = strlen(value);
    return is_alphanumeric((unsigned char)value[0]) && is_alphanumeric((unsigned char)value[len - 1]);
}

/* A label that is not a positive number was not written by us: it counts as no label. */
static int64_t read_epoch(const char *text)
{
    int64_t value = 0;

    if (text == NULL || *text == '\0' || strlen(text) > 18)
        return 0;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return 0;
        value = value * 10 + (*text - '0');
    }
    return value;
}

bool sk_opensandbox_read_remote(const json_t *json, struct sk_remote *out, const char **why)
{
    const char *id = sk_wire_text(json_object_get(json, "id"));
    const json_t *status = json_object_get(json, "status"), *labels = json_object_get(json, "metadata");
    const char *state = sk_wire_text(json_object_get(status, "state"));
    const char *session = sk_wire_text(json_object_get(labels, SK_LABEL_SESSION));
    const char *job = sk_wire_text(json_object_get(labels, SK_LABEL_OPERATION));
    const char *created = sk_wire_text(json_object_get(json, "createdAt"));

    memset(out, 0, sizeof(*out));
    if (!json_is_object(json)) {
        *why = "it is not an object";
        return false;
    }
    if (!sk_opensandbox_id_valid(id)) {
        *why = "its id is missing or not usable";
        return false;
    }
    if (!sk_copy(out->id, sizeof(out->id), id))
        return false;
    if (labels != NULL && !json_is_object(labels) && !json_is_null(labels)) {
        *why = "its metadata is not an object";
        return false;
    }
    out->state = state == NULL ? SK_REMOTE_UNKNOWN : sk_opensandbox_state(state);
    /* Values that do not fit were not written by us: they count as absent. */
    if (session != NULL && !sk_copy(out->sandbox_id, sizeof(out->sandbox_id), session))
        out->sandbox_id[0] = '\0';
    if (job != NULL && !sk_copy(out->job_id, sizeof(out->job_id), job))
        out->job_id[0] = '\0';
    out->epoch = read_epoch(sk_wire_text(json_object_get(labels, SK_LABEL_EPOCH)));
    if (created == NULL || !sk_time_parse(created, &out->created_at))
        out->created_at = 0;
    if (state == NULL)
        *why = "it has no status.state";
    return state != NULL;
}

/* "repository:tag", or "repository@sha256:…" when the tag is a digest. */
static bool image_uri(char *out, size_t size, const struct sk_image *image)
{
    const char *separator = ":";
    int n;

    if (image->tag[0] == '\0' || image->tag[0] == '@')
        separator = "";
    else if (strncmp(image->tag, "sha256:", 7) == 0)
        separator = "@";
    n = snprintf(out, size, "%s%s%s", image->repository, separator, image->tag);
    return n > 0 && (size_t)n < size;
}

/* Plain decimals, as few as say the same: "1", "0.5", "1000000"; Docker and Kubernetes both read that. */
static void format_number(char *out, size_t size, double value)
{
    for (int decimals = 0; decimals <= 6; decimals++) {
        snprintf(out, size, "%.*f", decimals, value);
        if (strtod(out, NULL) == value)
            break;
    }
}

static json_t *limits_json(const struct sk_limit *limit)
{
    char cpu[40] = "1", memory[48] = "2048Mi"; /* FastGPT's defaults: resourceLimits may not be left out */

    if (limit != NULL && limit->present) {
        char number[40];

        if (limit->cpu_count > 0 && limit->cpu_count < 1e9)
            format_number(cpu, sizeof(cpu), limit->cpu_count);
        if (limit->memory_mib > 0 && limit->memory_mib < 1e12) {
            format_number(number, sizeof(number), limit->memory_mib);
            snprintf(memory, sizeof(memory), "%sMi", number);
        }
    }
    return json_pack("{s:s, s:s}", "cpu", cpu, "memory", memory);
}

/* FastGPT lets the image's editor agent take half a volume less 150 MiB (reference/fastgpt-lifecycle.md §5). */
static int64_t editor_file_max(const struct sk_limit *limit)
{
    char *unit = NULL;
    double gib, mib;

    if (limit == NULL || !limit->present)
        return 0;
    gib = strtod(limit->storage_size, &unit);
    if (unit == limit->storage_size || strcmp(unit, "Gi") != 0)
        return 0;
    mib = gib * 1024 / 2 - 150;
    return mib < 1 || mib > 1024 * 1024 ? 0 : (int64_t)(mib + 0.5) * 1024 * 1024;
}

static json_t *env_json(const struct sk_create_spec *spec, const char *work_directory)
{
    json_t *env = json_pack("{s:s, s:s, s:s}", "FASTGPT_SESSION_ID", spec->sandbox_id, "FASTGPT_WORKDIR",
                            work_directory, "IDE_AGENT_ENABLED", "true");
    int64_t file_max = editor_file_max(spec->limit);

    if (env != NULL && file_max > 0)
        json_object_set_new(env, "FASTGPT_IDE_MAX_FILE_BYTES", json_sprintf("%lld", (long long)file_max));
    return env;
}

static json_t *volume_json(const struct sk_storage *storage, const char *mount_path)
{
    const char *name = storage->volume_name[0] != '\0' ? storage->volume_name : WORKSPACE_NAME;
    /* A claim that is missing must be an error, never a fresh empty workspace; and it outlives the sandbox. */
    json_t *volume = json_pack("{s:s, s:{s:s, s:b, s:b}, s:s}", "name", name, "pvc", "claimName", storage->claim_name,
                               "createIfNotExists", 0, "deleteOnSandboxTermination", 0, "mountPath", mount_path);

    if (volume != NULL && storage->sub_path[0] != '\0')
        json_object_set_new(volume, "subPath", json_string(storage->sub_path));
    return volume;
}

static json_t *network_policy_json(void)
{
    static const char *const denied[] = {
        "localhost",           "host.docker.internal", "host.orb.internal",
        "docker.orb.internal", "gateway.orb.internal", "proxyproxy.orb.internal",
        "*.orb.internal",      "*.orb.local",
    };
    json_t *egress = json_array();

    for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++)
        json_array_append_new(egress, json_pack("{s:s, s:s}", "action", "deny", "target", denied[i]));
    return json_pack("{s:s, s:o}", "defaultAction", "allow", "egress", egress);
}

static json_t *metadata_json(const struct sk_create_spec *spec)
{
    json_t *metadata = json_pack("{s:s}", SK_LABEL_SESSION, spec->sandbox_id);

    if (metadata != NULL) {
        json_object_set_new(metadata, SK_LABEL_EPOCH, json_sprintf("%lld", (long long)spec->epoch));
        json_object_set_new(metadata, SK_LABEL_OPERATION, json_string(spec->job_id));
    }
    return metadata;
}

json_t *sk_opensandbox_create_body(const struct sk_opensandbox *o, const struct sk_create_spec *spec,
                                   struct sk_error *err)
{
    const char *mount_path = WORKSPACE_PATH;
    char uri[SK_REPOSITORY_SIZE + SK_TAG_SIZE + 2];
    json_t *body, *entrypoint;

    if (!sk_opensandbox_label_valid(spec->sandbox_id) || !sk_opensandbox_label_valid(spec->job_id) ||
        spec->epoch <= 0) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "sandbox id, epoch or operation cannot be written as labels");
        return NULL;
    }
    if (spec->image == NULL || spec->image->repository[0] == '\0' || !image_uri(uri, sizeof(uri), spec->image)) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "a sandbox needs an image");
        return NULL;
    }
    if (spec->storage != NULL && spec->storage->volume_mount_path[0] != '\0')
        mount_path = spec->storage->volume_mount_path;

    entrypoint = json_array();
    for (int i = 0; i < o->entrypoint_count; i++)
        json_array_append_new(entrypoint, json_string(o->entrypoint[i]));
    /* No `timeout`: absent means no expiry. */
    body = json_pack("{s:{s:s}, s:o, s:o, s:o, s:o, s:{}, s:b}", "image", "uri", uri, "entrypoint", entrypoint,
                     "resourceLimits", limits_json(spec->limit), "env", env_json(spec, mount_path), "metadata",
                     metadata_json(spec), "extensions", "secureAccess", 0);
    if (body != NULL && spec->storage != NULL && spec->storage->claim_name[0] != '\0')
        json_object_set_new(body, "volumes", json_pack("[o]", volume_json(spec->storage, mount_path)));
    if (body != NULL && o->docker)
        json_object_set_new(body, "networkPolicy", network_policy_json());
    if (body == NULL)
        sk_fail(err, SK_ERR_INTERNAL, "create request: out of memory, or a text that is not UTF-8");
    return body;
}
