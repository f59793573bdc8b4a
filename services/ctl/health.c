/* SPDX-License-Identifier: Apache-2.0
 *
 * What the doctor sees of the code sandbox: whether it answers /health and says that it is ready. */
#include "services/ctl/guard.h"
#include "services/ctl/look.h"

#include "common/http/client.h"
#include "common/http/url.h"

#include <stdlib.h>

#define HEALTH_CONNECT_MS 2000
#define HEALTH_TOTAL_MS   3000 /* one that needs longer does no work either */
#define HEALTH_ANSWER_MAX (64 * 1024)
#define HTTP_OK           200

static char *health_url(const char *base)
{
    struct sk_url_builder builder;
    struct sk_url parts;

    if (!sk_url_parse(base, &parts))
        return NULL;
    sk_url_begin(&builder, parts.tls ? "https://" : "http://");
    sk_buf_printf(&builder.text, "%s:%d%s", parts.host, parts.port, parts.path);
    sk_url_segment(&builder, "health");
    return sk_url_take(&builder);
}

int ctl_look_code(struct ctl *ctl, struct ctl_look *look)
{
    const char *base = ctl->config.code_url;
    struct sk_http_request request = {
        .method = "GET",
        .body_max = HEALTH_ANSWER_MAX,
        .connect_timeout_ms = HEALTH_CONNECT_MS,
        .total_timeout_ms = HEALTH_TOTAL_MS,
        .close_after = true,
    };
    struct sk_http_response response = {0};
    struct ctl_guard guard = {0};
    struct sk_http_client *client;
    struct sk_error err = {0};
    struct sk_call call;
    int status;
    char *url;

    if (base[0] == '\0')
        return 0;
    url = health_url(base);
    if (url == NULL)
        return ctl_usage(ctl, "SANDKEEP_CODE_URL must be http(s)://host[:port][/path]");
    status = ctl_guard_open(&guard, &call);
    client = status == 0 ? sk_http_call_client(&call, NULL) : NULL;
    if (client == NULL) {
        if (status == 0)
            ctl_complain("out of memory");
        status = CTL_FAILED;
    } else {
        request.url = url;
        look->code_asked = true;
        if (sk_http_request(client, &call, &request, &response, &err) != 0)
            snprintf(look->code_trouble, sizeof(look->code_trouble), "%.160s gave no answer: %.130s", url, err.message);
        else if (response.status != HTTP_OK)
            snprintf(look->code_trouble, sizeof(look->code_trouble), "%.160s answers HTTP %d: it is not ready", url,
                     response.status);
        sk_http_response_fini(&response);
        if (ctl_interrupted)
            status = ctl_say_interrupted("the code sandbox was not looked at");
    }
    ctl_guard_close(&guard);
    free(url);
    return status;
}
