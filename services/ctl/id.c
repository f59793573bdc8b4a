/* SPDX-License-Identifier: Apache-2.0
 *
 * `skctl id`: the sandbox id of an identity (contract/lifecycle.md §1), computed here, without a connection. */
#include "services/ctl/ctl.h"

int ctl_id(struct ctl *ctl)
{
    int status = ctl_identity(ctl);
    json_t *document;

    if (status != 0)
        return status;
    if (!ctl->args.json) {
        puts(ctl->sandbox_id);
        return CTL_OK;
    }
    document = json_pack("{s:s, s:s, s:s, s:s}", "sandboxId", ctl->sandbox_id, "sourceType",
                         sk_source_type_name(ctl->identity.source_type), "sourceId", ctl->identity.source_id, "userId",
                         ctl->identity.user_id);
    ctl_json(document);
    json_decref(document);
    return CTL_OK;
}
