/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the OpenSandbox adapter: reading and writing its JSON, and the volume manager beside it. Private to
 * common/provider. */
#ifndef SK_PROVIDER_OPENSANDBOX_H
#define SK_PROVIDER_OPENSANDBOX_H

#include "common/http/url.h"
#include "common/provider/provider.h"
#include "common/provider/wire.h"

#include <stdatomic.h>

#define SK_EXECD_PORT        44772
#define SK_ENTRYPOINT_MAX    16            /* arguments */
#define SK_OBJECT_ANSWER_MAX (1024 * 1024) /* an answer about one object; lists take answer_max_bytes */

#define SK_LABEL_SESSION   "sessionId"
#define SK_LABEL_EPOCH     "sandkeep.dev/epoch"
#define SK_LABEL_OPERATION "sandkeep.dev/operation"

struct sk_opensandbox {
    struct sk_provider_ops ops;
    const struct sk_sched *sched;
    struct sk_url origin;
    char *root; /* base URL without /v1 and without a slash at its end */
    char *v1;   /* root + "/v1" */
    char *api_key;
    char *volumes_url;           /* "" = off */
    char *volumes_authorization; /* "Bearer …", "" = none */
    char *entrypoint[SK_ENTRYPOINT_MAX + 1];
    int entrypoint_count;
    bool use_server_proxy, docker;
    int64_t request_timeout_ms;
    size_t answer_max, object_max;
    atomic_bool unreadable_told;
};

/* One object of the lifecycle API. False with *why (a constant sentence) when it is not one; *out holds what could be
 * read: only the state is missing (UNKNOWN) when out->sandbox_id is there. */
SK_MUST_USE bool sk_opensandbox_read_remote(const json_t *json, struct sk_remote *out, const char **why);
enum sk_remote_state sk_opensandbox_state(const char *name);
/* Ids go into URLs and documents: 1..127 of [A-Za-z0-9._-], not "." or "..". */
bool sk_opensandbox_id_valid(const char *id);
/* Kubernetes label value syntax, at most 63 bytes. */
bool sk_opensandbox_label_valid(const char *value);
/* The create request. New reference; NULL with err (invalid_request: the spec cannot be expressed; internal). */
json_t *sk_opensandbox_create_body(const struct sk_opensandbox *o, const struct sk_create_spec *spec,
                                   struct sk_error *err);

int sk_volume_ensure(void *self, struct sk_call *call, const char *claim_name, const char *storage_size,
                     struct sk_error *err);
int sk_volume_remove(void *self, struct sk_call *call, const char *claim_name, struct sk_error *err);
int sk_volume_ping(const struct sk_opensandbox *o, struct sk_call *call, struct sk_error *err);

#endif
