/* SPDX-License-Identifier: Apache-2.0
 *
 * The provider seam: what the lifecycle needs from a sandbox provider (OpenSandbox, later Devbox) and its volume
 * manager. Implementations translate wire answers into typed errors and never retry mutations; deciding, reading back
 * and waiting belong to the workflow. All calls block, may be used from any thread (one `call` per thread at a time)
 * and clip their time-outs to call->deadline_us. Errors: provider_error (HTTP status in err->provider_status),
 * provider_timeout (outcome UNKNOWN when the request had left), cancelled. Not found is an answer, not an error. */
#ifndef SK_PROVIDER_PROVIDER_H
#define SK_PROVIDER_PROVIDER_H

#include "common/base/sched.h"
#include "common/instance/instance.h"

#define SK_REMOTE_ID_SIZE 128
#define SK_REMOTES_MAX    16 /* objects of one sandbox that are looked at in one go; normally there is one */

enum sk_remote_state {
    SK_REMOTE_PENDING, /* in passing (creating, resuming, pausing, allocated): look again */
    SK_REMOTE_RUNNING,
    SK_REMOTE_PAUSED,   /* needs resume */
    SK_REMOTE_STOPPING, /* on its way out: look again until it is absent or ENDED */
    SK_REMOTE_ENDED,    /* terminated or failed; a resume does not help: remove and create */
    SK_REMOTE_UNKNOWN   /* a name this release does not know */
};

/* One provider object as listed. Labels: sessionId = sandboxId, sandkeep.dev/epoch, sandkeep.dev/operation (job id). */
struct sk_remote {
    char id[SK_REMOTE_ID_SIZE];
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    enum sk_remote_state state;
    int64_t epoch;             /* 0 = no label */
    char job_id[SK_UUID_SIZE]; /* "" = no label */
    int64_t created_at;        /* Unix ms, 0 = unknown */
};

/* Offers one more object of a sandbox to a list of at most SK_REMOTES_MAX. When it is full the least important one is
 * left out and *more is set: objects on their way out first, then those of the lowest epoch, then the oldest. So the
 * list always shows the highest epoch that is alive, and whoever removes what is listed and looks again gets to all. An
 * object that is in the list already takes its place anew. */
void sk_remotes_offer(struct sk_remote *list, int *count, bool *more, const struct sk_remote *remote);

struct sk_create_spec {
    const char *sandbox_id;
    int64_t epoch;
    const char *job_id;
    const struct sk_image *image;
    const struct sk_limit *limit;
    const struct sk_storage *storage; /* volume to mount when it has a claim */
};

struct sk_provider {
    const struct sk_provider_ops *ops;
    void *self;
};

struct sk_provider_ops {
    /* Objects that carry sessionId = sandbox_id, any state, at most SK_REMOTES_MAX; *more = there are others, of less
     * importance (sk_remotes_offer). An object that cannot be read is a provider_error, not retryable, that names it:
     * it may be the one that counts, so it is never passed over, and an operation that meets it is blocked after its
     * tries. */
    int (*find)(void *self, struct sk_call *call, const char *sandbox_id, struct sk_remote *out, int *count, bool *more,
                struct sk_error *err);
    int (*get)(void *self, struct sk_call *call, const char *remote_id, struct sk_remote *out, bool *found,
               struct sk_error *err);
    /* Not idempotent: after any error with outcome UNKNOWN the caller lists. */
    int (*create)(void *self, struct sk_call *call, const struct sk_create_spec *spec, struct sk_remote *out,
                  struct sk_error *err);
    /* Of a paused object; "not paused" (409) counts as done. Absent: provider_error with provider_status 404. */
    int (*resume)(void *self, struct sk_call *call, const char *remote_id, struct sk_error *err);
    /* Asks for removal; *gone when the object is certainly absent already (404 counts). */
    int (*remove)(void *self, struct sk_call *call, const char *remote_id, bool *gone, struct sk_error *err);
    /* Re-labels an adopted object with a new epoch and job (merge-patch of its metadata). */
    int (*relabel)(void *self, struct sk_call *call, const char *remote_id, int64_t epoch, const char *job_id,
                   bool *found, struct sk_error *err);
    /* Does the command channel inside answer? *ready = false while it does not; only a broken provider is an error. */
    int (*probe)(void *self, struct sk_call *call, const char *remote_id, bool *ready, struct sk_error *err);
    /* Volumes: no-ops that succeed when the provider has none (has_volumes false). */
    int (*volume_ensure)(void *self, struct sk_call *call, const char *claim_name, const char *storage_size,
                         struct sk_error *err);
    int (*volume_remove)(void *self, struct sk_call *call, const char *claim_name,
                         struct sk_error *err); /* 404 = done */
    /* All objects that carry a sessionId label, page by page (1-based), at most `capacity` (1..200) looked at in each;
     * *more = false at the end. A page may hold fewer (others' objects are left out) or none. Pages are cut newest
     * first from a moving list: an object may appear twice or be missed while others come and go; the next sweep sees
     * it. FastGPT's own objects, chat-level ones of old too, carry a sessionId: look at sandbox_id before touching any.
     * *unreadable = objects of the page that are left out because they make no sense; the rest of the list is good. */
    int (*list)(void *self, struct sk_call *call, int page, struct sk_remote *out, int capacity, int *count,
                int *unreadable, bool *more, struct sk_error *err);
    int (*ping)(void *self, struct sk_call *call, struct sk_error *err);
    bool has_volumes;
    const char *name; /* "opensandbox": the record's provider field */
};

/* OpenSandbox (reference/providers.md §1, §4.1, §5). Answers of the wrong kind (not JSON, truncated, too large, wrong
 * status) are provider_error; 5xx and unexpected 2xx/3xx leave the outcome UNKNOWN, 4xx says FAILED. Not retryable: 4xx
 * other than 401, 403, 404, 408, 409, 425, 429. A 404 counts as absent only when the lifecycle API itself says so (JSON
 * with a `code`): a gateway's page or an unknown route is an error, never "gone". Metrics: provider_requests_total,
 * provider_request_seconds. */
struct sk_opensandbox_config {
    const char *base_url; /* AGENT_SANDBOX_OPENSANDBOX_BASEURL, with or without /v1 */
    const char *api_key;
    bool use_server_proxy;
    const char *volume_manager_url; /* "" = volumes off */
    const char *volume_manager_token;
    const char *entrypoint;     /* "" = the SDK's default tail -f /dev/null; a path; or a JSON array of strings */
    int64_t request_timeout_ms; /* 120 000 */
    int64_t answer_max_bytes;   /* bound of any JSON answer: 8 MiB */
    /* NULL or "" = no network policy is sent. "docker" sends FastGPT's default one (host names denied), which makes a
     * real OpenSandbox demand an egress side-car; FastGPT does so. */
    const char *runtime; /* AGENT_SANDBOX_OPENSANDBOX_RUNTIME */
};
/* Copies the configuration; no I/O. `sched` must outlive the provider. Errors: invalid_request naming the value. */
SK_MUST_USE int sk_opensandbox_new(const struct sk_opensandbox_config *config, const struct sk_sched *sched,
                                   struct sk_provider *out, struct sk_error *err);
void sk_opensandbox_free(struct sk_provider *provider); /* no call may be running */

struct sk_execd;
/* The data plane of one object: resolves the endpoint of execd's port and fills *out (execd.h). *found = false when the
 * object does not exist. Blocks for one request. Resolve again after a resume or when the endpoint does not connect. */
SK_MUST_USE int sk_opensandbox_execd(const struct sk_provider *provider, struct sk_call *call, const char *remote_id,
                                     struct sk_execd *out, bool *found, struct sk_error *err);

#endif
