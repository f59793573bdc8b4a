/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker's JSON: records from their public view, events from their message, and the report for `skctl doctor
 * --json`. What comes from outside may have any shape; what does not fit makes the parse fail or the field empty. */
#include "common/check/check.h"

#include <stdlib.h>
#include <string.h>

#define CE_PREFIX "dev.sandkeep."
#define CE_SUFFIX ".v1"

static bool take_text(const json_t *object, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(object, key));

    out[0] = '\0';
    return text != NULL && sk_copy(out, size, text);
}

static int64_t take_time(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    int64_t at = 0;

    return text != NULL && sk_time_parse(text, &at) ? at : 0;
}

static int64_t take_number(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static void take_operation(struct sk_check_record *out, const json_t *op)
{
    out->has_operation = true;
    out->operation.type = sk_op_parse(json_string_value(json_object_get(op, "type")));
    (void)take_text(op, "id", out->operation.id, sizeof(out->operation.id));
    (void)take_text(op, "phase", out->operation.phase, sizeof(out->operation.phase));
    out->operation.ours = json_is_string(json_object_get(op, "jobId"));
    out->operation.owned = json_is_string(json_object_get(op, "owner"));
    out->operation.failed = json_object_get(op, "error") != NULL;
    out->operation.heartbeat_at = take_time(op, "heartbeatAt");
    out->operation.next_attempt_at = take_time(op, "nextAttemptAt");
    (void)take_text(op, "blocked", out->operation.blocked, sizeof(out->operation.blocked));
}

bool sk_check_record_parse(struct sk_check_record *out, const json_t *view)
{
    const char *status = json_string_value(json_object_get(view, "status"));
    const char *malformed = json_string_value(json_object_get(view, "malformed"));
    const json_t *operation = json_object_get(view, "operation"), *volume;
    bool unsupported;

    memset(out, 0, sizeof(*out));
    if (!take_text(view, "sandboxId", out->sandbox_id, sizeof(out->sandbox_id)))
        return false;
    (void)take_text(view, "provider", out->provider, sizeof(out->provider));
    out->identity.source_type =
        sk_source_type_parse(json_string_value(json_object_get(view, "sourceType")), &unsupported);
    (void)take_text(view, "sourceId", out->identity.source_id, sizeof(out->identity.source_id));
    (void)take_text(view, "userId", out->identity.user_id, sizeof(out->identity.user_id));
    out->malformed = malformed != NULL;
    sk_copy_cut(out->trouble, sizeof(out->trouble), malformed == NULL ? "" : malformed);
    out->status = status == NULL ? SK_STATUS_INVALID : sk_status_parse(status);
    if (json_is_object(operation))
        take_operation(out, operation);
    out->epoch = take_number(view, "epoch");
    out->sequence = take_number(view, "sequence");
    out->created_at = take_time(view, "createdAt");
    out->changed_at = take_time(json_object_get(view, "lastOperation"), "endedAt");
    (void)take_text(view, "teamId", out->team_id, sizeof(out->team_id));
    volume = json_array_get(json_object_get(json_object_get(view, "storage"), "volumes"), 0);
    (void)take_text(volume, "claimName", out->claim_name, sizeof(out->claim_name));
    return true;
}

bool sk_check_event_parse(struct sk_check_event *out, const char *id, const char *type, const char *time,
                          const json_t *data)
{
    char name[64];
    size_t length;
    const char *from = json_string_value(json_object_get(data, "from")),
               *to = json_string_value(json_object_get(data, "to"));

    memset(out, 0, sizeof(*out));
    if (id == NULL || type == NULL || !sk_copy(out->id, sizeof(out->id), id))
        return false;
    if (strncmp(type, CE_PREFIX, strlen(CE_PREFIX)) == 0)
        type += strlen(CE_PREFIX);
    if (!sk_copy(name, sizeof(name), type))
        return false;
    length = strlen(name);
    if (length > strlen(CE_SUFFIX) && strcmp(name + length - strlen(CE_SUFFIX), CE_SUFFIX) == 0)
        name[length - strlen(CE_SUFFIX)] = '\0';
    out->type = sk_event_type_parse(name);
    if (out->type == SK_EVENT_TYPE_COUNT || from == NULL || to == NULL)
        return false;
    if (time != NULL && !sk_time_parse(time, &out->time))
        out->time = 0;
    out->epoch = take_number(data, "epoch");
    out->sequence = take_number(data, "sequence");
    out->from = strcmp(from, sk_status_name(SK_STATUS_NONE)) == 0 ? SK_STATUS_NONE : sk_status_parse(from);
    out->to = strcmp(to, sk_status_name(SK_STATUS_NONE)) == 0 ? SK_STATUS_NONE : sk_status_parse(to);
    (void)take_text(json_object_get(data, "operation"), "id", out->operation_id, sizeof(out->operation_id));
    return take_text(data, "sandboxId", out->sandbox_id, sizeof(out->sandbox_id));
}

static json_t *finding_json(const struct sk_check_finding *finding)
{
    bool violation = sk_check_severity(finding->check) == SK_CHECK_VIOLATION;
    json_t *out = json_pack("{ss, ss, ss, ss}", "check", sk_check_name(finding->check), "severity",
                            violation ? "violation" : "attention", "detail", finding->detail, "meaning",
                            sk_check_meaning(finding->check));

    if (out == NULL)
        return NULL;
    if ((finding->sandbox_id[0] != '\0' &&
         json_object_set_new(out, "sandboxId", json_string(finding->sandbox_id)) != 0) ||
        (finding->subject[0] != '\0' && json_object_set_new(out, "subject", json_string(finding->subject)) != 0)) {
        json_decref(out);
        return NULL;
    }
    return out;
}

json_t *sk_check_report_json(const struct sk_check_report *report)
{
    json_t *list = json_array(), *out;

    for (size_t i = 0; list != NULL && i < report->count; i++) {
        if (json_array_append_new(list, finding_json(&report->findings[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    out = json_pack("{sI, sI, so}", "violations", (json_int_t)report->violations, "dropped",
                    (json_int_t)report->dropped, "findings", list);
    return out;
}
