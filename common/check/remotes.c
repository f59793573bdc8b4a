/* SPDX-License-Identifier: Apache-2.0
 *
 * What exists outside of the records: provider objects, volumes, archives, quota slots and leases. */
#include "common/check/private.h"

#include <stdlib.h>
#include <string.h>

static bool counts_as_there(const struct sk_remote *remote)
{
    return remote->state != SK_REMOTE_ENDED && remote->state != SK_REMOTE_STOPPING;
}

static bool judged_by_remotes(const struct sk_check_context *c, const struct sk_check_record *r)
{
    return c->in->remotes_provider == NULL || strcmp(c->in->remotes_provider, r->provider) == 0;
}

/* The objects of one sandbox: items first .. first + count of the index. */
static void check_group(struct sk_check_context *c, const struct sk_check_record *r, size_t first, size_t count)
{
    const struct sk_remote *newest = NULL;
    int there = 0;

    for (size_t i = first; i < first + count; i++) {
        const struct sk_remote *remote = c->remotes.items[i];

        if (!counts_as_there(remote) || !sk_check_old(c, remote->created_at, c->in->grace.remote_ms))
            continue;
        there++;
        newest = remote;
        /* A record without epoch is FastGPT's: it is compared with nothing. */
        if (r->epoch > 0 && remote->epoch > r->epoch)
            sk_check_find(c, SK_CHECK_REMOTE_EPOCH_AHEAD, r->sandbox_id, remote->id,
                          "object %s has epoch %lld, the record %lld", remote->id, (long long)remote->epoch,
                          (long long)r->epoch);
    }
    /* In the middle of an operation objects come and go, and a record nobody understands allows no conclusion. */
    if (there == 0 || r->malformed || r->has_operation)
        return;
    if ((r->status == SK_STATUS_STOPPED || r->status == SK_STATUS_ARCHIVED) &&
        sk_check_old(c, r->changed_at, c->in->grace.remote_ms))
        sk_check_find(c, SK_CHECK_REMOTE_OF_STOPPED, r->sandbox_id, newest->id,
                      "status %s, but object %s (epoch %lld) exists", sk_status_name(r->status), newest->id,
                      (long long)newest->epoch);
    else if (r->status == SK_STATUS_RUNNING && there > 1)
        sk_check_find(c, SK_CHECK_REMOTE_DUPLICATE, r->sandbox_id, newest->id,
                      "%d objects, the newest is %s with epoch %lld", there, newest->id, (long long)newest->epoch);
}

static void check_running(struct sk_check_context *c, const struct sk_check_record *r)
{
    size_t count, first = sk_check_group(&c->remotes, offsetof(struct sk_remote, sandbox_id), r->sandbox_id, &count);

    if (r->malformed || r->has_operation || r->status != SK_STATUS_RUNNING || !judged_by_remotes(c, r))
        return;
    for (size_t i = first; i < first + count; i++) {
        if (counts_as_there(c->remotes.items[i]))
            return;
    }
    if (sk_check_old(c, r->changed_at, c->in->grace.remote_ms))
        sk_check_find(c, SK_CHECK_REMOTE_MISSING, r->sandbox_id, NULL,
                      "status running, epoch %lld, but the provider has nothing", (long long)r->epoch);
}

void sk_check_remotes(struct sk_check_context *c)
{
    if (!c->in->remotes_known)
        return;
    for (size_t i = 0, count; i < c->remotes.count; i += count) {
        const struct sk_remote *remote = c->remotes.items[i];
        const struct sk_check_record *r = sk_check_record_find(c, remote->sandbox_id);

        sk_check_group(&c->remotes, offsetof(struct sk_remote, sandbox_id), remote->sandbox_id, &count);
        if (r != NULL) {
            check_group(c, r, i, count);
            continue;
        }
        for (size_t j = i; j < i + count && c->in->records_complete; j++) {
            remote = c->remotes.items[j];
            if (counts_as_there(remote) && sk_check_old(c, remote->created_at, c->in->grace.remote_ms))
                sk_check_find(c, SK_CHECK_REMOTE_ORPHAN, remote->sandbox_id, remote->id,
                              "object %s with epoch %lld has no record", remote->id, (long long)remote->epoch);
        }
    }
    for (size_t i = 0; i < c->records.count; i++)
        check_running(c, c->records.items[i]);
}

static int by_claim(const void *a, const void *b)
{
    const struct sk_check_record *x = *(const struct sk_check_record *const *)a;
    const struct sk_check_record *y = *(const struct sk_check_record *const *)b;

    return strcmp(x->claim_name, y->claim_name);
}

static int by_volume(const void *a, const void *b)
{
    const struct sk_check_volume *x = *(const struct sk_check_volume *const *)a;
    const struct sk_check_volume *y = *(const struct sk_check_volume *const *)b;

    return strcmp(x->claim_name, y->claim_name);
}

void sk_check_volumes(struct sk_check_context *c)
{
    const char *prefix = c->in->volume_prefix;
    struct sk_check_index claims, volumes;
    size_t count;

    if (!c->in->volumes_known)
        return;
    claims = sk_check_sort(c, c->in->records, c->in->record_count, sizeof(*c->in->records), by_claim);
    volumes = sk_check_sort(c, c->in->volumes, c->in->volume_count, sizeof(*c->in->volumes), by_volume);
    for (size_t i = 0; i < claims.count; i++) {
        const struct sk_check_record *r = claims.items[i];
        const struct sk_check_record *previous = i > 0 ? claims.items[i - 1] : NULL;

        if (r->malformed || r->claim_name[0] == '\0')
            continue;
        if (previous != NULL && !previous->malformed && strcmp(previous->claim_name, r->claim_name) == 0)
            sk_check_find(c, SK_CHECK_VOLUME_SHARED, r->sandbox_id, r->claim_name, "volume %s is also named by %s",
                          r->claim_name, previous->sandbox_id);
        sk_check_group(&volumes, offsetof(struct sk_check_volume, claim_name), r->claim_name, &count);
        if (count == 0 && r->status == SK_STATUS_RUNNING && !r->has_operation && judged_by_remotes(c, r))
            sk_check_find(c, SK_CHECK_VOLUME_MISSING, r->sandbox_id, r->claim_name, "volume %s does not exist",
                          r->claim_name);
    }
    for (size_t i = 0; i < volumes.count && c->in->records_complete; i++) {
        const struct sk_check_volume *volume = volumes.items[i];

        if (prefix != NULL && strncmp(volume->claim_name, prefix, strlen(prefix)) != 0)
            continue;
        sk_check_group(&claims, offsetof(struct sk_check_record, claim_name), volume->claim_name, &count);
        if (count == 0 && sk_check_old(c, volume->created_at, c->in->grace.volume_ms))
            sk_check_find(c, SK_CHECK_VOLUME_ORPHAN, "", volume->claim_name, "volume %s belongs to no record",
                          volume->claim_name);
    }
    sk_check_index_free(&claims);
    sk_check_index_free(&volumes);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void check_archives(struct sk_check_context *c)
{
    struct sk_check_index archives;
    size_t count;

    if (!c->in->archives_known)
        return;
    archives = sk_check_sort(c, c->in->archives, c->in->archive_count, sizeof(*c->in->archives), by_text);
    for (size_t i = 0; i < c->records.count; i++) {
        const struct sk_check_record *r = c->records.items[i];

        sk_check_group(&archives, 0, r->sandbox_id, &count);
        if (count == 0 && r->status == SK_STATUS_ARCHIVED && !r->malformed)
            sk_check_find(c, SK_CHECK_ARCHIVE_MISSING, r->sandbox_id, NULL, "status archived without an archive");
    }
    sk_check_index_free(&archives);
}

static bool counts_for_quota(const struct sk_check_record *r)
{
    const struct sk_status_info *info = sk_status_info(r->status);

    return info != NULL && info->counts_for_quota;
}

static bool has_slot(const struct sk_check_context *c, const char *sandbox_id, const char *scope)
{
    size_t count, first = sk_check_group(&c->slots, offsetof(struct sk_check_slot, sandbox_id), sandbox_id, &count);

    for (size_t i = first; i < first + count; i++) {
        if (strcmp(((const struct sk_check_slot *)c->slots.items[i])->scope, scope) == 0)
            return true;
    }
    return false;
}

static void team_scope(char out[SK_TEAM_ID_SIZE + 8], const char *team_id)
{
    memcpy(out, "team:", 6);
    sk_copy_cut(out + 5, SK_TEAM_ID_SIZE + 3, team_id);
}

static void check_limit(struct sk_check_context *c, const char *scope, size_t held, int64_t limit)
{
    if (limit > 0 && (int64_t)held > limit)
        sk_check_find(c, SK_CHECK_QUOTA_EXCEEDED, "", scope, "%zu slots of %s are held, the limit is %lld", held, scope,
                      (long long)limit);
}

static int by_scope(const void *a, const void *b)
{
    return strcmp((*(const struct sk_check_slot *const *)a)->scope, (*(const struct sk_check_slot *const *)b)->scope);
}

void sk_check_slots(struct sk_check_context *c)
{
    char scope[SK_TEAM_ID_SIZE + 8];
    struct sk_check_index scopes;

    check_archives(c);
    if (!c->in->slots_known)
        return;
    for (size_t i = 0; i < c->slots.count; i++) {
        const struct sk_check_slot *slot = c->slots.items[i];
        const struct sk_check_record *r = sk_check_record_find(c, slot->sandbox_id);

        if ((r == NULL ? c->in->records_complete : !r->malformed && !counts_for_quota(r)) &&
            sk_check_old(c, slot->taken_at, c->in->grace.slot_ms))
            sk_check_find(c, SK_CHECK_SLOT_LEAKED, slot->sandbox_id, slot->scope,
                          "slot of %s held by a sandbox that is %s", slot->scope,
                          r == NULL ? "gone" : sk_status_name(r->status));
    }
    for (size_t i = 0; i < c->records.count; i++) {
        const struct sk_check_record *r = c->records.items[i];

        if (r->malformed || !counts_for_quota(r) || !sk_check_old(c, r->changed_at, c->in->grace.slot_ms))
            continue;
        team_scope(scope, r->team_id);
        if (c->in->quota_global > 0 && !has_slot(c, r->sandbox_id, "global"))
            sk_check_find(c, SK_CHECK_SLOT_MISSING, r->sandbox_id, "global", "status %s without a global slot",
                          sk_status_name(r->status));
        if (c->in->quota_per_team > 0 && r->team_id[0] != '\0' && !has_slot(c, r->sandbox_id, scope))
            sk_check_find(c, SK_CHECK_SLOT_MISSING, r->sandbox_id, scope, "status %s without a slot of %s",
                          sk_status_name(r->status), scope);
    }
    scopes = sk_check_sort(c, c->in->slots, c->in->slot_count, sizeof(*c->in->slots), by_scope);
    for (size_t i = 0, end; i < scopes.count; i = end) {
        const char *name = ((const struct sk_check_slot *)scopes.items[i])->scope;

        for (end = i;
             end < scopes.count && strcmp(((const struct sk_check_slot *)scopes.items[end])->scope, name) == 0;)
            end++;
        check_limit(c, name, end - i, strcmp(name, "global") == 0 ? c->in->quota_global : c->in->quota_per_team);
    }
    sk_check_index_free(&scopes);
}

#define LIFECYCLE_LEASE "agent-sandbox:lifecycle:"

void sk_check_leases(struct sk_check_context *c)
{
    if (!c->in->leases_known)
        return;
    for (size_t i = 0; i < c->in->lease_count; i++) {
        const struct sk_check_lease *lease = &c->in->leases[i];
        bool named = strncmp(lease->name, LIFECYCLE_LEASE, strlen(LIFECYCLE_LEASE)) == 0;
        const char *id = named ? lease->name + strlen(LIFECYCLE_LEASE) : "";
        const struct sk_check_record *r = named ? sk_check_record_find(c, id) : NULL;

        if (lease->ttl_ms < 0)
            sk_check_find(c, SK_CHECK_LEASE_ENDLESS, id, lease->name, "lease %s never expires", lease->name);
        else if (named && lease->ttl_ms > c->in->grace.lease_ms &&
                 (r == NULL ? c->in->records_complete : !r->malformed && !r->has_operation))
            sk_check_find(c, SK_CHECK_LEASE_IDLE, id, lease->name, "lease %s ends in %lld ms, the sandbox %s",
                          lease->name, (long long)lease->ttl_ms, r == NULL ? "has no record" : "has no operation");
    }
}
