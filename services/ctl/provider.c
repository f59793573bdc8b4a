/* SPDX-License-Identifier: Apache-2.0
 *
 * The provider as skctl sees it: opened from the environment, calls that an interrupt takes back. Used by doctor, and
 * by exec and cp until the runtime service exists. */
#include "services/ctl/provider.h"

#include <string.h>

#define REQUEST_TIMEOUT_MS 60000

int ctl_provider_open(struct ctl *ctl, struct ctl_provider *out)
{
    const struct ctl_config *config = &ctl->config;
    bool own = config->provider_url[0] == '\0';
    struct sk_opensandbox_config settings = {
        .base_url = own ? config->localbox_url : config->provider_url,
        .api_key = own ? config->localbox_key : config->provider_key,
        .use_server_proxy = true,
        .volume_manager_url = config->volume_url[0] != '\0' ? config->volume_url
                              : own                         ? config->localbox_url
                                                            : "",
        .volume_manager_token = config->volume_url[0] != '\0' ? config->volume_token
                                : own                         ? config->localbox_key
                                                              : "",
        .entrypoint = "",
        .request_timeout_ms = REQUEST_TIMEOUT_MS,
        .answer_max_bytes = CTL_ANSWER_MAX,
    };
    struct sk_error err = {0};

    memset(out, 0, sizeof(*out));
    if (settings.base_url[0] == '\0') {
        ctl_complain(
            "no provider: set SANDKEEP_LOCALBOX_URL and SANDKEEP_LOCALBOX_KEY (eval \"$(deploy/local/stack env)\"), or "
            "AGENT_SANDBOX_OPENSANDBOX_BASEURL and AGENT_SANDBOX_OPENSANDBOX_API_KEY");
        return CTL_USAGE;
    }
    if (sk_opensandbox_new(&settings, &sk_sched_system, &out->provider, &err) != 0) {
        ctl_show_error(ctl, &err);
        return CTL_USAGE;
    }
    out->volumes_url = settings.volume_manager_url;
    out->volumes_token = settings.volume_manager_token;
    if (ctl_guard_open(&out->guard, &out->call) != 0) {
        sk_opensandbox_free(&out->provider);
        return CTL_FAILED;
    }
    out->open = true;
    return 0;
}

void ctl_provider_close(struct ctl_provider *provider)
{
    if (!provider->open)
        return;
    ctl_guard_close(&provider->guard);
    sk_opensandbox_free(&provider->provider);
    provider->open = false;
}

int ctl_provider_error(const struct ctl *ctl, const struct sk_error *err)
{
    int status;

    if (ctl_interrupted)
        return ctl_say_interrupted("%s did not come to its end", ctl->verb->name);
    status = ctl_show_error(ctl, err);
    /* No HTTP status: nobody answered. */
    return (err->code == SK_ERR_PROVIDER_ERROR || err->code == SK_ERR_PROVIDER_TIMEOUT) && err->provider_status == 0
               ? CTL_UNREACHABLE
               : status;
}
