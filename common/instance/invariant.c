/* SPDX-License-Identifier: Apache-2.0
 *
 * What must hold of one instance record and of one change to it (contract/lifecycle.md §2.4), and small questions one
 * may ask of a record. Called before every write, so everything here is plain comparisons. */
#include "common/instance/instance.h"

#include <stdio.h>
#include <string.h>

#define STORED_DETAIL_MAX 500 /* bytes of an error text kept in a document */
#define CLAIM_LENGTH_MAX  253

static bool uses_job(const struct sk_operation *op)
{
    return op->job_id[0] != '\0';
}

static const char *operation_invariant(const struct sk_instance *instance)
{
    const struct sk_operation *op = &instance->operation;
    const struct sk_status_info *previous;

    if (sk_status_info(instance->status)->stable)
        return "a stable status must not keep an operation";
    if (op->type != sk_status_info(instance->status)->operation)
        return "the operation does not belong to the status";
    if (op->id[0] == '\0')
        return "the operation has no id";
    if (sk_op_phase_index(op->type, op->phase) < 0)
        return "the operation has no such phase";
    if (op->previous_status != SK_STATUS_NONE) {
        previous = sk_status_info(op->previous_status);
        if (previous == NULL || !previous->stable)
            return "previousStatus is not a stable status";
    }
    if (op->started_at <= 0 || op->heartbeat_at <= 0)
        return "the operation has no start or no heartbeat";
    if (op->attempt < 0 || op->next_attempt_at < 0 || op->failed_at < 0 || op->deadline_at < 0)
        return "a number of the operation is negative";
    if (uses_job(op)) {
        if (instance->epoch <= 0 || instance->sequence <= 0)
            return "an operation of ours needs a positive epoch and sequence";
    } else if (op->owner[0] != '\0') {
        return "an operation with an owner needs a job id";
    }
    return NULL;
}

const char *sk_instance_invariant(const struct sk_instance *instance)
{
    if (instance->malformed)
        return "the document is malformed";
    if (instance->status == SK_STATUS_NONE || sk_status_info(instance->status) == NULL)
        return "the status is unknown";
    if (!sk_sandbox_id_valid(instance->sandbox_id))
        return "the sandbox id is not valid";
    if (instance->identity.source_type == SK_SOURCE_NONE || instance->identity.source_id[0] == '\0' ||
        instance->identity.user_id[0] == '\0')
        return "the identity is incomplete";
    if (sk_sandbox_id_source_type(instance->sandbox_id) != instance->identity.source_type)
        return "the sandbox id is of another source type";
    if (instance->provider[0] == '\0')
        return "the provider is missing";
    if (instance->created_at <= 0 || instance->last_active_at <= 0)
        return "createdAt or lastActiveAt is missing";
    if (instance->epoch < 0 || instance->sequence < 0)
        return "epoch or sequence is negative";
    if (instance->pin_count < 0 || instance->pin_count > SK_PINS_MAX)
        return "the number of pins is out of range";
    if (instance->image.present && instance->image.repository[0] == '\0')
        return "an image needs a repository";
    if (instance->has_operation)
        return operation_invariant(instance);
    if (!sk_status_info(instance->status)->stable)
        return "a transitional status needs its operation";
    return NULL;
}

const char *sk_instance_change_invariant(const struct sk_instance *before, const struct sk_instance *after)
{
    const struct sk_operation *old = &before->operation, *new = &after->operation;
    const char *reason;

    if (before->malformed)
        return "the document is malformed and is left alone";
    reason = sk_instance_invariant(after);
    if (reason != NULL)
        return reason;
    if (strcmp(before->oid, after->oid) != 0 || strcmp(before->sandbox_id, after->sandbox_id) != 0 ||
        !sk_identity_equal(&before->identity, &after->identity))
        return "the identity of a record never changes";
    if (before->created_at != after->created_at)
        return "createdAt never changes";
    /* An archived record has nothing at its provider: only then may it move to another one. */
    if (strcmp(before->provider, after->provider) != 0 && before->status != SK_STATUS_ARCHIVED)
        return "only an archived record may change its provider";
    if (!sk_status_move_legal(before->status, after->status))
        return "the status may not move like this";
    if (after->epoch < before->epoch || after->sequence < before->sequence)
        return "epoch and sequence never fall";
    if (!after->has_operation)
        return NULL;
    if (!before->has_operation || strcmp(old->id, new->id) != 0) {
        if (after->epoch <= before->epoch)
            return "a claim needs a higher epoch";
        if (!uses_job(new))
            return "a claim needs a job id";
        if (!sk_op_claimable(new->type, before->status))
            return "the operation may not be claimed from this status";
        /* Re-claiming the same job resumes it: what was done stays done. */
        if (before->has_operation && old->type == new->type &&sk_op_phase_index(new->type, new->phase) <
                                                      sk_op_phase_index(old->type, old->phase))
            return "a phase never goes back";
        return NULL;
    }
    if (old->type != new->type || strcmp(old->job_id, new->job_id) != 0)
        return "an operation keeps its type and its job";
    if (after->epoch != before->epoch)
        return "the epoch rises with claims only";
    if (sk_op_phase_index(new->type, new->phase) < sk_op_phase_index(old->type, old->phase))
        return "a phase never goes back";
    return NULL;
}

void sk_stored_error_set(struct sk_stored_error *out, const struct sk_error *error)
{
    char detail[STORED_DETAIL_MAX + 1];

    memset(out, 0, sizeof(*out));
    if (error == NULL || error->code == SK_OK)
        return;
    sk_copy_cut(out->code, sizeof(out->code), sk_code_name(error->code));
    sk_copy_cut(detail, sizeof(detail), error->message);
    sk_copy_cut(out->detail, sizeof(out->detail), detail);
}

bool sk_instance_pinned(const struct sk_instance *instance, int64_t now_ms)
{
    for (int i = 0; i < instance->pin_count && i < SK_PINS_MAX; i++) {
        if (instance->pins[i].expires_at > now_ms)
            return true;
    }
    return false;
}

bool sk_claim_name(char out[SK_CLAIM_NAME_SIZE], const char *prefix, const char *sandbox_id, const char *generation)
{
    int length = snprintf(out, SK_CLAIM_NAME_SIZE, "%s-%s-%s", prefix, sandbox_id, generation);

    if (length < 0 || length > CLAIM_LENGTH_MAX || length >= SK_CLAIM_NAME_SIZE || prefix[0] == '\0' ||
        sandbox_id[0] == '\0' || generation[0] == '\0')
        goto refuse;
    for (int i = 0; i < length; i++) {
        unsigned char c = (unsigned char)out[i];
        bool edge = i == 0 || i == length - 1;

        if (c >= 'A' && c <= 'Z')
            out[i] = (char)(c - 'A' + 'a');
        else if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && (c != '-' || edge))
            goto refuse;
    }
    return true;
refuse:
    out[0] = '\0';
    return false;
}
