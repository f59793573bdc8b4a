/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that each field of a record can be set, changed and cleared by a compare-and-set, and comes back as it went.
 */
#include "tests/conformance/store/fixture.h"

#include <stdio.h>
#include <string.h>

typedef void (*edit_fn)(struct sk_store_conformance *c, struct sk_instance *after);

static void edit_failure(struct sk_store_conformance *c, struct sk_instance *after)
{
    after->operation.attempt = 3;
    after->operation.failed_at = sk_wall_ms(c->sched);
    after->operation.next_attempt_at = sk_wall_ms(c->sched) + 4000;
    strcpy(after->operation.error.code, "provider_timeout");
    strcpy(after->operation.error.detail, "create: no answer in 30 s: \"a: b\" über");
    after->operation.owner[0] = '\0';
    after->operation.deadline_at = 0;
}

static void edit_failure_cleared(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    after->operation.attempt = 0;
    after->operation.failed_at = after->operation.next_attempt_at = 0;
    memset(&after->operation.error, 0, sizeof(after->operation.error));
    strcpy(after->operation.owner, "replica-c");
    after->operation.deadline_at = sk_wall_ms(c->sched) + 1;
}

static void edit_blocked(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    strcpy(after->operation.blocked, "8 tries failed");
    strcpy(after->operation.traceparent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
}

static void edit_unblocked(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    after->operation.blocked[0] = '\0';
    after->operation.command_id[0] = '\0';
    after->operation.traceparent[0] = '\0';
}

static void edit_storage(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    strcpy(after->storage.claim_name, "fastgpt-session-app-x-1f2e3d4c");
    strcpy(after->storage.sub_path, "data");
    strcpy(after->storage.mount_path, "/other");
}

static void edit_storage_part(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    after->storage.sub_path[0] = '\0';
    after->storage.mount_path[0] = '\0';
}

static void edit_storage_gone(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    memset(&after->storage, 0, sizeof(after->storage));
}

static void edit_storage_back(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    after->storage.present = true;
    strcpy(after->storage.volume_name, "workspace");
    strcpy(after->storage.volume_mount_path, "/workspace");
}

static void edit_limit(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    after->limit.cpu_count = 2;
    after->limit.memory_mib = 1536.5;
    strcpy(after->limit.storage_size, "20Gi");
}

static void edit_limit_gone(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    memset(&after->limit, 0, sizeof(after->limit));
}

static void edit_image(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    strcpy(after->image.repository, "registry.example:5000/agent");
    after->image.tag[0] = '\0';
    strcpy(after->version_id, "66a1f0c2b7d4e8a1c0d3e5ff");
    strcpy(after->team_id, TEAM "-2");
}

static void edit_image_gone(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    memset(&after->image, 0, sizeof(after->image));
    after->version_id[0] = '\0';
    after->team_id[0] = '\0';
}

static void edit_image_back(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    after->image.present = true;
    strcpy(after->image.repository, "agent");
    strcpy(after->image.tag, "latest");
}

static void edit_previous(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    after->operation.previous_status = SK_STATUS_STOPPED;
}

static void edit_pins(struct sk_store_conformance *c, struct sk_instance *after)
{
    after->pin_count = SK_PINS_MAX;
    for (int i = 0; i < SK_PINS_MAX; i++) {
        snprintf(after->pins[i].id, sizeof(after->pins[i].id), "pin-%d", i);
        after->pins[i].expires_at = sk_wall_ms(c->sched) + i;
    }
}

static void edit_pins_gone(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    after->pin_count = 0;
    memset(after->pins, 0, sizeof(after->pins));
}

static void edit_last(struct sk_store_conformance *c, struct sk_instance *after)
{
    after->last_operation.present = true;
    strcpy(after->last_operation.id, after->operation.id);
    after->last_operation.type = SK_OP_ARCHIVE;
    strcpy(after->last_operation.result, "compensated");
    after->last_operation.started_at = sk_wall_ms(c->sched) - 5;
    after->last_operation.ended_at = sk_wall_ms(c->sched);
    strcpy(after->last_operation.error.detail, "written by FastGPT, without a code");
}

static void edit_last_gone(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    memset(&after->last_operation, 0, sizeof(after->last_operation));
}

static void edit_nothing(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    (void)after;
}

/* Full length, and every kind of character that JSON, BSON or shells treat as special. */
static void edit_text(struct sk_store_conformance *c, struct sk_instance *after)
{
    (void)c;
    memset(after->operation.blocked, 'x', sizeof(after->operation.blocked) - 1);
    strcpy(after->version_id, "$set.a.b \"'\\ {}[] \xf0\x9f\x92\xbe");
}

bool sk_store_check_changes(struct sk_store_conformance *c)
{
    static const struct {
        const char *name;
        edit_fn edit;
    } edits[] = {
        {"nothing", edit_nothing},
        {"a failed try", edit_failure},
        {"a failed try, cleared", edit_failure_cleared},
        {"blocked", edit_blocked},
        {"unblocked", edit_unblocked},
        {"storage", edit_storage},
        {"storage, some fields cleared", edit_storage_part},
        {"storage, cleared", edit_storage_gone},
        {"storage, set again", edit_storage_back},
        {"limit", edit_limit},
        {"limit, cleared", edit_limit_gone},
        {"limit, set again", edit_limit},
        {"image", edit_image},
        {"image, cleared", edit_image_gone},
        {"image, set again", edit_image_back},
        {"previousStatus", edit_previous},
        {"pins", edit_pins},
        {"pins, cleared", edit_pins_gone},
        {"lastOperation", edit_last},
        {"lastOperation, cleared", edit_last_gone},
        {"texts", edit_text},
    };
    struct sk_instance record, after;

    if (!sc_insert(c, &record))
        return false;
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        after = record;
        edits[i].edit(c, &after);
        if (after.limit.present && !record.limit.present)
            after.limit.cpu_count = 0.25;
        if (!sc_apply(c, &record, &after, NULL, edits[i].name) || !sc_same(c, &record, edits[i].name))
            return false;
    }
    return true;
}
