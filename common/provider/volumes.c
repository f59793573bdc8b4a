/* SPDX-License-Identifier: Apache-2.0
 *
 * Client of the volume manager (reference/providers.md §5): ensure and remove a claim by name. Both are idempotent at
 * the other side; nothing is retried here. */
#include "common/provider/opensandbox.h"

#include <string.h>

static char *volume_url(const struct sk_opensandbox *o, const char *last)
{
    struct sk_url_builder b;

    sk_url_begin(&b, o->volumes_url);
    sk_url_segment(&b, "v1");
    sk_url_segment(&b, "volumes");
    sk_url_segment(&b, last);
    return sk_url_take(&b);
}

static int volume_request(const struct sk_opensandbox *o, struct sk_call *call, struct sk_wire_request *request,
                          struct sk_wire_answer *answer, struct sk_error *err)
{
    const struct sk_http_header authorization = {"Authorization", o->volumes_authorization};

    request->headers = &authorization;
    request->header_count = o->volumes_authorization[0] != '\0' ? 1 : 0;
    request->timeout_ms = o->request_timeout_ms;
    request->answer_max = o->object_max;
    return sk_wire_json(call, request, answer, err);
}

int sk_volume_ensure(void *self, struct sk_call *call, const char *claim_name, const char *storage_size,
                     struct sk_error *err)
{
    const struct sk_opensandbox *o = self;
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_VOLUME_ENSURE, .method = "POST", .idempotent = true};
    json_t *body;
    const char *name;
    int rc = -1;

    if (o->volumes_url[0] == '\0')
        return 0;
    body = json_pack("{s:s}", "claimName", claim_name);
    if (body != NULL && storage_size != NULL && storage_size[0] != '\0')
        json_object_set_new(body, "storageSize", json_string(storage_size));
    if (body == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "ensure volume: the claim name cannot be written");
    request.url = volume_url(o, "ensure");
    request.body = body;
    if (volume_request(o, call, &request, &answer, err) != 0) {
        sk_fail_context(err, "ensure volume");
        goto out;
    }
    if (answer.status != 200 && answer.status != 201) {
        sk_wire_fail(err, &answer, "ensure volume");
        goto out;
    }
    name = sk_wire_text(json_object_get(answer.json, "claimName"));
    if (name == NULL || strcmp(name, claim_name) != 0) {
        char other[64];

        /* A manager that picks names by itself would mount another workspace. */
        sk_wire_clean(other, sizeof(other), name == NULL ? "none" : name);
        sk_fail_unknown(err, SK_ERR_PROVIDER_ERROR, "ensure volume: asked for %s, the volume manager answered %s",
                        claim_name, other);
        if (err != NULL) {
            err->retryable = name == NULL;
            err->provider_status = answer.status;
        }
        goto out;
    }
    rc = 0;
out:
    sk_wire_answer_fini(&answer);
    json_decref(body);
    return rc;
}

int sk_volume_remove(void *self, struct sk_call *call, const char *claim_name, struct sk_error *err)
{
    const struct sk_opensandbox *o = self;
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_VOLUME_REMOVE, .method = "DELETE"};
    int rc = -1;

    if (o->volumes_url[0] == '\0')
        return 0;
    request.url = volume_url(o, claim_name);
    if (volume_request(o, call, &request, &answer, err) != 0)
        sk_fail_context(err, "remove volume");
    else if (answer.status / 100 == 2)
        rc = 0;
    else if (answer.status == 404 && (answer.json != NULL || answer.empty))
        rc = 0; /* absent is what was asked for; a page of a gateway would not be an answer */
    else
        sk_wire_fail(err, &answer, "remove volume");
    sk_wire_answer_fini(&answer);
    return rc;
}

int sk_volume_ping(const struct sk_opensandbox *o, struct sk_call *call, struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_PING, .method = "GET"};
    struct sk_url_builder b;
    int rc = -1;

    sk_url_begin(&b, o->volumes_url);
    sk_url_segment(&b, "health");
    request.url = sk_url_take(&b);
    if (volume_request(o, call, &request, &answer, err) != 0)
        sk_fail_context(err, "volume manager");
    else if (answer.status == 200 && answer.json != NULL)
        rc = 0;
    else if (answer.status == 200)
        sk_wire_fail_body(err, &answer, "volume manager", answer.detail);
    else
        sk_wire_fail(err, &answer, "volume manager");
    sk_wire_answer_fini(&answer);
    return rc;
}
