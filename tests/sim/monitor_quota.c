/* SPDX-License-Identifier: Apache-2.0
 *
 * The monitor of quotas: a claim that counts holds its slots, and the limit holds. */
#include "tests/sim/monitor.h"

#include <stdio.h>
#include <string.h>

bool sim_monitor_leases_may_vanish(const struct sim_world *w)
{
    const int64_t *fault = w->scenario.fault;

    return fault[SIM_FAULT_LEASE_WIPE] + fault[SIM_FAULT_LEASE_VANISH] + fault[SIM_FAULT_LEASE_CUT] +
               fault[SIM_FAULT_PARTITION] >
           0;
}

static bool holds_slot(const struct sim_world *w, const char *scope, const char *sandbox_id)
{
    for (size_t i = 0; i < w->store->slot_count; i++) {
        if (strcmp(w->store->slots[i].scope, scope) == 0 && strcmp(w->store->slots[i].sandbox_id, sandbox_id) == 0)
            return true;
    }
    return false;
}

void sim_monitor_quota(struct sim_world *w, const struct sk_instance *before, const struct sk_instance *after)
{
    const struct lc_settings *lc = &w->scenario.lc;
    char scope[SK_TEAM_ID_SIZE + 8];
    int64_t all = 0;

    /* Two that both believe to hold a lease may take and give back the same slot; the recount sets it right. */
    if (sim_monitor_leases_may_vanish(w))
        return;
    if (!sk_status_info(after->status)->counts_for_quota ||
        (before != NULL && sk_status_info(before->status) != NULL && sk_status_info(before->status)->counts_for_quota))
        return;
    snprintf(scope, sizeof(scope), "team:%s", after->team_id);
    if (lc->quota_global > 0 && !holds_slot(w, SK_QUOTA_GLOBAL, after->sandbox_id))
        sim_fail(w, "quota", "%s: claimed without a global slot", after->sandbox_id);
    if (lc->quota_per_team > 0 && after->team_id[0] != '\0' && !holds_slot(w, scope, after->sandbox_id))
        sim_fail(w, "quota", "%s: claimed without a slot of %s", after->sandbox_id, scope);
    for (size_t i = 0; i < w->store->doc_count; i++) {
        const struct sim_doc *doc = w->store->docs[i];

        if (doc != NULL && !doc->i.malformed && sk_status_info(doc->i.status)->counts_for_quota)
            all++;
    }
    if (lc->quota_global > 0 && all > lc->quota_global && !w->store->foreign_writers)
        sim_fail(w, "quota", "%s: claim number %lld, the limit is %lld", after->sandbox_id, (long long)all,
                 (long long)lc->quota_global);
}
