/* SPDX-License-Identifier: Apache-2.0
 *
 * provision: none or stopped -> provisioning -> running (contract/lifecycle.md §3). The volume comes first, then one
 * sandbox that mounts it and answers. */
#include "services/lifecycle/internal.h"

#include <string.h>

static int ensure_volume(struct lc_run *run)
{
    const struct sk_instance *record = &run->record;
    const char *size = record->limit.present && record->limit.storage_size[0] != '\0'
                           ? record->limit.storage_size
                           : run->replica->settings.default_limit.storage_size;

    if (!run->provider->ops->has_volumes || record->storage.claim_name[0] == '\0')
        return 0;
    if (lc_engine_guard(run) != 0)
        return -1;
    memcpy(run->ensured_volume, record->storage.claim_name, sizeof(run->ensured_volume));
    if (run->provider->ops->volume_ensure(run->provider->self, run->call, record->storage.claim_name, size,
                                          &run->err) != 0)
        return sk_fail_context(&run->err, "cannot make sure of the volume");
    if (SK_FAULT(VOLUME_ENSURED, sk_op_name(SK_OP_PROVISION)))
        return sk_fail(&run->err, SK_ERR_INTERNAL, "fault point");
    return 0;
}

enum lc_outcome lc_run_provision(struct lc_run *run, const struct lc_claim *claim)
{
    const struct lc_settings *s = &run->replica->settings;
    struct sk_image image;
    struct sk_limit limit;

    if (lc_engine_claim(run, claim) != 0)
        return lc_operation_failed(run);
    /* From here on the record tells whoever deletes the source that there is a sandbox: others of the same source need
     * not wait for this one to start. */
    lc_unlock_source(run);
    image = run->record.image.present ? run->record.image : s->default_image;
    limit = run->record.limit.present ? run->record.limit : s->default_limit;
    if (!lc_engine_reached(run, "providerEnsured")) {
        if (ensure_volume(run) != 0 || lc_remote_ensure(run, &image, &limit) != 0 ||
            lc_engine_phase(run, "providerEnsured") != 0)
            return lc_operation_failed(run);
    }
    if (lc_engine_finish(run, true, &image) != 0)
        return lc_operation_failed(run);
    return LC_OUTCOME_DONE;
}
