/* SPDX-License-Identifier: Apache-2.0
 *
 * Records: the pairing of status and operation, identities, and operations that nobody cares for. */
#include "common/check/private.h"

#include <stdlib.h>
#include <string.h>

static void check_operation(struct sk_check_context *c, const struct sk_check_record *r)
{
    const struct sk_status_info *info = sk_status_info(r->status);
    const char *id = r->sandbox_id, *status = sk_status_name(r->status);

    if (info->stable) {
        if (r->has_operation)
            sk_check_find(c, SK_CHECK_STABLE_OPERATION, id, NULL, "status %s with operation %s (%s)", status,
                          sk_op_name(r->operation.type), r->operation.id);
        return;
    }
    if (!r->has_operation) {
        sk_check_find(c, SK_CHECK_OPERATION_MISSING, id, NULL, "status %s without an operation", status);
        return;
    }
    if (r->operation.type != info->operation) {
        sk_check_find(c, SK_CHECK_OPERATION_FOREIGN, id, NULL, "status %s with operation %s", status,
                      sk_op_name(r->operation.type));
        return;
    }
    if (sk_op_phase_index(r->operation.type, r->operation.phase) < 0) {
        sk_check_find(c, SK_CHECK_PHASE_UNKNOWN, id, NULL, "operation %s in phase \"%s\"",
                      sk_op_name(r->operation.type), r->operation.phase);
        return;
    }
    if (r->operation.blocked[0] != '\0') {
        sk_check_find(c, SK_CHECK_OPERATION_BLOCKED, id, NULL, "%s at %s: %s", sk_op_name(r->operation.type),
                      r->operation.phase, r->operation.blocked);
        return;
    }
    /* Who is due: a live owner beats; a released operation waits for its next try; FastGPT's has its own windows. */
    if (!r->operation.ours) {
        if (r->operation.failed && sk_check_old(c, r->operation.heartbeat_at, c->in->grace.operation_ms))
            sk_check_find(c, SK_CHECK_OPERATION_STUCK, id, NULL, "FastGPT's failed %s at %s, last seen %lld ms ago",
                          sk_op_name(r->operation.type), r->operation.phase,
                          (long long)(c->in->now_ms - r->operation.heartbeat_at));
        return;
    }
    if (r->operation.owned && sk_check_old(c, r->operation.heartbeat_at, c->in->grace.operation_ms))
        sk_check_find(c, SK_CHECK_OPERATION_STUCK, id, NULL, "%s at %s: last heartbeat %lld ms ago",
                      sk_op_name(r->operation.type), r->operation.phase,
                      (long long)(c->in->now_ms - r->operation.heartbeat_at));
    else if (!r->operation.owned) {
        int64_t due = r->operation.next_attempt_at != 0 ? r->operation.next_attempt_at : r->operation.heartbeat_at;

        if (sk_check_old(c, due, c->in->grace.operation_ms))
            sk_check_find(c, SK_CHECK_OPERATION_STUCK, id, NULL, "%s at %s: due for %lld ms without an owner",
                          sk_op_name(r->operation.type), r->operation.phase, (long long)(c->in->now_ms - due));
    }
}

static void check_record(struct sk_check_context *c, const struct sk_check_record *r)
{
    char expected[SK_SANDBOX_ID_SIZE];

    if (r->malformed) {
        sk_check_find(c, SK_CHECK_RECORD_MALFORMED, r->sandbox_id, NULL, "%s", r->trouble);
        return;
    }
    if (r->status == SK_STATUS_NONE || sk_status_info(r->status) == NULL) {
        sk_check_find(c, SK_CHECK_RECORD_INVALID, r->sandbox_id, NULL, "the status is unknown");
        return;
    }
    sk_identity_sandbox_id(&r->identity, expected);
    if (strcmp(expected, r->sandbox_id) != 0)
        sk_check_find(c, SK_CHECK_IDENTITY_MISMATCH, r->sandbox_id, NULL, "its identity gives %s", expected);
    if (r->epoch < 0 || r->sequence < 0)
        sk_check_find(c, SK_CHECK_RECORD_INVALID, r->sandbox_id, NULL, "epoch %lld with sequence %lld",
                      (long long)r->epoch, (long long)r->sequence);
    else if (r->trouble[0] != '\0')
        sk_check_find(c, SK_CHECK_RECORD_INVALID, r->sandbox_id, NULL, "%s", r->trouble);
    check_operation(c, r);
}

static int by_identity(const void *a, const void *b)
{
    const struct sk_check_record *x = *(const struct sk_check_record *const *)a;
    const struct sk_check_record *y = *(const struct sk_check_record *const *)b;
    int order = (int)x->identity.source_type - (int)y->identity.source_type;

    if (order == 0)
        order = strcmp(x->identity.source_id, y->identity.source_id);
    return order != 0 ? order : strcmp(x->identity.user_id, y->identity.user_id);
}

static void check_identities(struct sk_check_context *c)
{
    struct sk_check_index index =
        sk_check_sort(c, c->in->records, c->in->record_count, sizeof(*c->in->records), by_identity);

    for (size_t i = 1; i < index.count; i++) {
        const struct sk_check_record *r = index.items[i], *previous = index.items[i - 1];

        /* Two records of one sandbox id have their own finding. */
        if (r->malformed || previous->malformed || strcmp(r->sandbox_id, previous->sandbox_id) == 0)
            continue;
        if (by_identity(&index.items[i - 1], &index.items[i]) == 0)
            sk_check_find(c, SK_CHECK_IDENTITY_DUPLICATE, r->sandbox_id, previous->sandbox_id, "same identity as %s",
                          previous->sandbox_id);
    }
    sk_check_index_free(&index);
}

void sk_check_records(struct sk_check_context *c)
{
    for (size_t i = 0; i < c->records.count; i++) {
        const struct sk_check_record *r = c->records.items[i];

        check_record(c, r);
        if (i > 0 && strcmp(((const struct sk_check_record *)c->records.items[i - 1])->sandbox_id, r->sandbox_id) == 0)
            sk_check_find(c, SK_CHECK_SANDBOX_DUPLICATE, r->sandbox_id, NULL, "another record has this sandbox id");
    }
    check_identities(c);
}

void sk_check_record_of(struct sk_check_record *out, const struct sk_instance *in)
{
    const char *reason;

    memset(out, 0, sizeof(*out));
    sk_copy_cut(out->sandbox_id, sizeof(out->sandbox_id), in->sandbox_id);
    sk_copy_cut(out->provider, sizeof(out->provider), in->provider);
    out->identity = in->identity;
    out->status = in->status;
    out->malformed = in->malformed;
    out->has_operation = in->has_operation;
    if (in->has_operation) {
        out->operation.type = in->operation.type;
        sk_copy_cut(out->operation.id, sizeof(out->operation.id), in->operation.id);
        sk_copy_cut(out->operation.phase, sizeof(out->operation.phase), in->operation.phase);
        out->operation.ours = in->operation.job_id[0] != '\0';
        out->operation.owned = in->operation.owner[0] != '\0';
        out->operation.failed = in->operation.error.code[0] != '\0' || in->operation.error.detail[0] != '\0';
        out->operation.heartbeat_at = in->operation.heartbeat_at;
        out->operation.next_attempt_at = in->operation.next_attempt_at;
        sk_copy_cut(out->operation.blocked, sizeof(out->operation.blocked), in->operation.blocked);
    }
    out->epoch = in->epoch;
    out->sequence = in->sequence;
    out->created_at = in->created_at;
    out->changed_at = in->last_operation.present ? in->last_operation.ended_at : 0;
    sk_copy_cut(out->team_id, sizeof(out->team_id), in->team_id);
    sk_copy_cut(out->claim_name, sizeof(out->claim_name), in->storage.present ? in->storage.claim_name : "");
    if (in->malformed) {
        sk_copy_cut(out->trouble, sizeof(out->trouble), in->malformed_reason);
        return;
    }
    /* What has a finding of its own is not told twice: only what this file does not look at is left to the sentence. */
    reason = sk_instance_invariant(in);
    if (reason != NULL && sk_status_info(in->status) != NULL && in->status != SK_STATUS_NONE && in->epoch >= 0 &&
        in->sequence >= 0) {
        bool stable = sk_status_info(in->status)->stable;
        bool own_finding = stable == in->has_operation ||
                           (in->has_operation && (in->operation.type != sk_status_info(in->status)->operation ||
                                                  sk_op_phase_index(in->operation.type, in->operation.phase) < 0));

        if (!own_finding)
            sk_copy_cut(out->trouble, sizeof(out->trouble), reason);
    }
}
