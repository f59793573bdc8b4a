/* SPDX-License-Identifier: Apache-2.0
 * Steps of the store checks; see fixture.h. */
#include "tests/conformance/store/fixture.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sc_fail(struct sk_store_conformance *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(c->failure, sizeof(c->failure), fmt, args);
    va_end(args);
    return false;
}

static void new_oid(struct sk_store_conformance *c, char out[25])
{
    unsigned char bytes[12];

    sk_random(c->sched, bytes, sizeof(bytes));
    for (int i = 0; i < 12; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static void event_of(struct sk_store_conformance *c, const struct sk_instance *after, enum sk_event_type type,
                     enum sk_status from, struct sk_event *event)
{
    memset(event, 0, sizeof(*event));
    sk_ulid(c->sched, event->id);
    event->type = type;
    event->time = sk_wall_ms(c->sched);
    memcpy(event->sandbox_id, after->sandbox_id, sizeof(event->sandbox_id));
    event->identity = after->identity;
    memcpy(event->team_id, after->team_id, sizeof(event->team_id));
    memcpy(event->provider, after->provider, sizeof(event->provider));
    event->epoch = after->epoch;
    event->sequence = after->sequence;
    event->from = from;
    event->to = after->status;
    memcpy(event->operation_id, after->operation.id, sizeof(event->operation_id));
    memcpy(event->job_id, after->operation.job_id, sizeof(event->job_id));
    event->operation_type = after->operation.type;
    memcpy(event->phase, after->operation.phase, sizeof(event->phase));
    event->attempt = after->operation.attempt;
    memcpy(event->owner, after->operation.owner, sizeof(event->owner));
    memcpy(event->command_id, after->operation.command_id, sizeof(event->command_id));
    event->duration_ms = -1;
}

void sc_new(struct sk_store_conformance *c, struct sk_instance *out, struct sk_event *claimed, const char *owner)
{
    int64_t now = sk_wall_ms(c->sched);
    char source[SK_SOURCE_ID_SIZE], user[SK_USER_ID_SIZE];
    struct sk_error err;

    memset(out, 0, sizeof(*out));
    new_oid(c, out->oid);
    snprintf(source, sizeof(source), "conf-%s-%d", out->oid, c->names++);
    snprintf(user, sizeof(user), "user-%d", c->names % 7);
    if (sk_identity_set(&out->identity, "app", source, strlen(source), user, strlen(user), &err) != 0)
        abort();
    sk_identity_sandbox_id(&out->identity, out->sandbox_id);
    strcpy(out->provider, "opensandbox");
    strcpy(out->team_id, TEAM);
    out->status = SK_STATUS_PROVISIONING;
    out->last_active_at = out->created_at = now;
    out->limit = (struct sk_limit){.present = true, .cpu_count = 0.5, .memory_mib = 2048, .storage_size = "1Gi"};
    out->storage.present = true;
    strcpy(out->storage.volume_name, "workspace");
    snprintf(out->storage.claim_name, sizeof(out->storage.claim_name), "fastgpt-session-%s-0", out->sandbox_id);
    strcpy(out->storage.volume_mount_path, "/workspace");
    strcpy(out->storage.mount_path, "/workspace");
    out->image.present = true;
    strcpy(out->image.repository, "registry.example/agent");
    strcpy(out->image.tag, "v1");
    out->has_operation = true;
    out->operation.type = SK_OP_PROVISION;
    sk_uuid4(c->sched, out->operation.id);
    sk_uuid4(c->sched, out->operation.job_id);
    strcpy(out->operation.phase, "claimed");
    out->operation.started_at = out->operation.heartbeat_at = now;
    strcpy(out->operation.owner, owner);
    strcpy(out->operation.command_id, "cmd-1");
    out->operation.deadline_at = now + 10000;
    out->epoch = now;
    out->sequence = 1;
    event_of(c, out, SK_EVENT_CLAIMED, SK_STATUS_NONE, claimed);
}

void sc_claim(struct sk_store_conformance *c, const struct sk_instance *before, struct sk_instance *after,
              struct sk_event *event, enum sk_op op, const char *owner)
{
    int64_t now = sk_wall_ms(c->sched);
    const struct sk_status_info *from = sk_status_info(before->status); /* NULL: not a status at all */
    struct sk_operation *o = &after->operation;
    bool again;

    *after = *before;
    again = before->has_operation && before->operation.type == op;
    after->status = sk_op_info(op)->transitional;
    after->has_operation = true;
    if (!again) {
        memset(o, 0, sizeof(*o));
        o->type = op;
        sk_uuid4(c->sched, o->job_id);
        strcpy(o->phase, "claimed");
        if (from != NULL && from->stable)
            o->previous_status = before->status;
    }
    sk_uuid4(c->sched, o->id);
    strcpy(o->owner, owner);
    o->started_at = o->heartbeat_at = now;
    o->failed_at = o->next_attempt_at = 0;
    memset(&o->error, 0, sizeof(o->error));
    after->epoch = before->epoch == 0 ? now : before->epoch + 1;
    after->sequence = before->sequence + 1;
    event_of(c, after, again ? SK_EVENT_TAKENOVER : SK_EVENT_CLAIMED, before->status, event);
}

void sc_phase(struct sk_store_conformance *c, const struct sk_instance *before, struct sk_instance *after,
              struct sk_event *event, const char *phase)
{
    *after = *before;
    sk_copy_cut(after->operation.phase, sizeof(after->operation.phase), phase);
    after->operation.heartbeat_at = sk_wall_ms(c->sched);
    after->sequence++;
    event_of(c, after, SK_EVENT_PHASE, before->status, event);
    event->duration_ms = 12;
}

void sc_complete(struct sk_store_conformance *c, const struct sk_instance *before, struct sk_instance *after,
                 struct sk_event *event)
{
    const struct sk_operation ended = before->operation; /* `after` may be `before` */
    enum sk_status from = before->status;
    int64_t now = sk_wall_ms(c->sched);

    *after = *before;
    after->sequence++;
    after->status = sk_op_info(ended.type)->terminal;
    event_of(c, after, SK_EVENT_COMPLETED, from, event);
    event->duration_ms = 34;
    after->has_operation = false;
    memset(&after->operation, 0, sizeof(after->operation));
    after->last_active_at = now;
    memset(&after->last_operation, 0, sizeof(after->last_operation));
    after->last_operation.present = true;
    memcpy(after->last_operation.id, ended.id, sizeof(after->last_operation.id));
    after->last_operation.type = ended.type;
    strcpy(after->last_operation.result, "completed");
    after->last_operation.started_at = ended.started_at;
    after->last_operation.ended_at = now;
}

bool sc_apply(struct sk_store_conformance *c, struct sk_instance *record, const struct sk_instance *after,
              const struct sk_event *event, const char *what)
{
    struct sk_error err = {0};
    enum sk_cas_result result;
    int outbox = record->outbox_count;

    result = OPS->cas(SELF, NULL, record, after, event, event != NULL ? 1 : 0, NULL, &err);
    CHECK(result == SK_CAS_APPLIED, "%s: compare-and-set gave %d: %s", what, (int)result, err.message);
    *record = *after;
    record->outbox_count = outbox + (event != NULL ? 1 : 0);
    return true;
}

bool sc_same(struct sk_store_conformance *c, const struct sk_instance *expected, const char *what)
{
    json_t *left, *right;
    char *left_text, *right_text;
    struct sk_error err = {0};
    struct sk_instance found;
    bool exists = false, same;

    CHECK(OPS->get(SELF, NULL, expected->sandbox_id, &found, &exists, &err) == 0, "%s: get: %s", what, err.message);
    CHECK(exists, "%s: the record is not there", what);
    CHECK(!found.malformed, "%s: the record is malformed: %s", what, found.malformed_reason);
    CHECK(strcmp(found.oid, expected->oid) == 0, "%s: _id differs", what);
    CHECK(found.outbox_count == expected->outbox_count, "%s: %d pending events instead of %d", what, found.outbox_count,
          expected->outbox_count);
    left = sk_instance_public_json(expected);
    right = sk_instance_public_json(&found);
    same = json_equal(left, right) == 1;
    left_text = json_dumps(left, JSON_COMPACT | JSON_SORT_KEYS);
    right_text = json_dumps(right, JSON_COMPACT | JSON_SORT_KEYS);
    if (!same)
        sc_fail(c, "%s: stored %.220s instead of %.220s", what, right_text, left_text);
    free(left_text);
    free(right_text);
    json_decref(left);
    json_decref(right);
    c->checks++;
    return same;
}

bool sc_insert(struct sk_store_conformance *c, struct sk_instance *out)
{
    struct sk_error err = {0};
    struct sk_event event;
    bool created = false;

    sc_new(c, out, &event, "replica-a");
    CHECK(OPS->insert(SELF, NULL, out, &event, 1, &created, &err) == 0, "insert: %s", err.message);
    CHECK(created, "a new record was not created");
    out->outbox_count = 1;
    return true;
}

struct pending {
    char ids[SK_OUTBOX_MAX][SK_ULID_SIZE];
    int count;
    const char *sandbox_id;
};

static bool note_pending(void *arg, const struct sk_instance *instance, const struct sk_event *events, int count)
{
    struct pending *pending = arg;

    if (strcmp(instance->sandbox_id, pending->sandbox_id) != 0)
        return true;
    for (int i = 0; i < count && pending->count < SK_OUTBOX_MAX; i++)
        memcpy(pending->ids[pending->count++], events[i].id, SK_ULID_SIZE);
    return false;
}

bool sc_drain(struct sk_store_conformance *c, const struct sk_instance *record)
{
    struct pending pending = {.sandbox_id = record->sandbox_id};
    char ids[1][SK_SANDBOX_ID_SIZE];
    struct sk_error err = {0};

    memcpy(ids[0], record->sandbox_id, sizeof(ids[0]));
    CHECK(OPS->scan(SELF, NULL, SK_SCAN_OUTBOX, 0, 100000, note_pending, &pending, &err) == 0, "scan of outboxes: %s",
          err.message);
    if (pending.count > 0)
        CHECK(OPS->outbox_pull(SELF, (const char(*)[SK_SANDBOX_ID_SIZE])ids, 1,
                               (const char(*)[SK_ULID_SIZE])pending.ids, pending.count, &err) == 0,
              "pull: %s", err.message);
    return true;
}

bool sc_running(struct sk_store_conformance *c, struct sk_instance *out)
{
    struct sk_instance after;
    struct sk_event event;

    if (!sc_insert(c, out))
        return false;
    sc_phase(c, out, &after, &event, "providerEnsured");
    if (!sc_apply(c, out, &after, &event, "phase"))
        return false;
    sc_complete(c, out, &after, &event);
    if (!sc_apply(c, out, &after, &event, "commit") || !sc_drain(c, out))
        return false;
    out->outbox_count = 0;
    return true;
}

void sc_parallel(struct sk_store_conformance *c, int count, void (*task)(void *arg, int index), void *arg)
{
    if (c->parallel != NULL) {
        c->parallel(count, task, arg);
        return;
    }
    for (int i = 0; i < count; i++)
        task(arg, i);
}

bool sk_store_conformance(struct sk_store_conformance *c)
{
    return sk_store_check_records(c) && sk_store_check_changes(c) && sk_store_check_companions(c) &&
           sk_store_check_quota(c) && sk_store_check_lists(c);
}
