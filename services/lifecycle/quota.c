/* SPDX-License-Identifier: Apache-2.0
 *
 * Quotas are reservations: a slot is taken before the claim that starts to count, given back after the commit that ends
 * it, and whatever a crash leaves in between is put right by the recount (contract/lifecycle.md §3). Without a limit no
 * slot is ever written. */
#include "services/lifecycle/internal.h"

#include <stdio.h>
#include <string.h>

struct scope {
    char name[SK_TEAM_ID_SIZE + 8];
    int64_t limit;
    enum sk_code code;
};

/* The scopes that are limited, in the order of the checks (reference §8): system, then team. */
static int scopes(const struct lc_settings *s, const char *team_id, struct scope out[2])
{
    int count = 0;

    if (s->quota_global > 0) {
        snprintf(out[count].name, sizeof(out[count].name), "%s", SK_QUOTA_GLOBAL);
        out[count].limit = s->quota_global;
        out[count++].code = SK_ERR_LIMIT_REACHED;
    }
    if (s->quota_per_team > 0 && team_id[0] != '\0') {
        snprintf(out[count].name, sizeof(out[count].name), "team:%s", team_id);
        out[count].limit = s->quota_per_team;
        out[count++].code = SK_ERR_TEAM_LIMIT_REACHED;
    }
    return count;
}

static int reserve(struct lc_run *run, const struct scope *scope, bool *granted)
{
    const struct sk_store *store = run->replica->seams.store;

    if (store->ops->quota_reserve(store->self, lc_commit_call(run), scope->name, scope->limit, run->job->sandbox_id,
                                  granted, &run->err) == 0)
        return 0;
    /* An ambiguous answer leaves at most a slot too many: asking again is idempotent, the recount knows the truth. */
    return sk_fail_context(&run->err, "cannot reserve a slot");
}

static void give_back(struct lc_run *run, const struct scope *scope)
{
    const struct sk_store *store = run->replica->seams.store;
    struct sk_error err = {.code = SK_OK};

    /* On failure the slot stays until the recount: too strict for a while, never too generous. */
    if (store->ops->quota_release(store->self, scope->name, run->job->sandbox_id, &err) != 0)
        SK_LOG_WARN("quota slot not given back, the recount will", SK_F("sandboxId", run->job->sandbox_id),
                    SK_F("scope", scope->name), SK_FE(&err));
}

int lc_quota_reserve(struct lc_run *run, const char *team_id)
{
    const struct sk_store *store = run->replica->seams.store;
    const struct lc_settings *s = &run->replica->settings;
    struct scope list[2];
    int count = scopes(s, team_id, list), taken = 0;

    if (LC_MUTATE(PROVISION_WITHOUT_QUOTA))
        return 0;
    for (; taken < count; taken++) {
        bool granted = false;
        int64_t changed = 0;

        if (reserve(run, &list[taken], &granted) != 0)
            return -1;
        /* Full: slots whose sandbox does not count any more are found now, not at the next sweep. */
        if (!granted &&
            store->ops->quota_recount(store->self, lc_commit_call(run), list[taken].name, s->quota_grace_ms, &changed,
                                      &run->err) == 0 &&
            changed > 0) {
            lc_count(run->replica, LC_COUNT_QUOTA_RETURNED, changed);
            if (reserve(run, &list[taken], &granted) != 0)
                return -1;
        }
        if (!granted) {
            lc_count(run->replica, LC_COUNT_QUOTA_REJECTED, 1);
            lc_publish_quota_rejected(run, list[taken].name, list[taken].limit, team_id);
            sk_fail(&run->err, list[taken].code, "all %lld places of %s are taken", (long long)list[taken].limit,
                    taken == 0 && s->quota_global > 0 ? "this system" : "this team");
            goto full;
        }
    }
    if (count > 0 && SK_FAULT(QUOTA_RESERVED, sk_op_name(SK_OP_PROVISION)))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
full:
    /* Only who is refused gives back what he took on the way. After an outage the slot may belong to a claim that was
     * written before and whose answer got lost: that one had all its slots, so it is never the one that is refused.
     * Without the lease it may be another claim's by now. What stays too long is found by the recount. */
    while (taken-- > 0 && sk_lease_valid(&run->lifecycle, run->replica->sched))
        give_back(run, &list[taken]);
    return -1;
}

void lc_quota_release(struct lc_run *run, const char *team_id)
{
    struct scope list[2];
    int count = scopes(&run->replica->settings, team_id, list);

    /* Without the lease the sandbox may be counted again by its next owner. */
    if (run->keep_quota || !sk_lease_valid(&run->lifecycle, run->replica->sched))
        return;
    for (int i = 0; i < count; i++)
        give_back(run, &list[i]);
}
