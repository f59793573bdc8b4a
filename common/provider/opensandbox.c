/* SPDX-License-Identifier: Apache-2.0
 *
 * The OpenSandbox adapter: every operation of the provider seam is one request to the lifecycle API (two for the
 * command channel, whose address has to be asked for). Waiting, repeating and reading back are the workflow's. */
#include "common/provider/opensandbox.h"

#include "common/base/json.h"
#include "common/log/log.h"
#include "common/provider/execd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PROBE_TIMEOUT_MS 5000 /* a paused sandbox accepts connections and never answers */
#define PAGE_SIZE_MAX    200
#define FIND_PAGES_MAX   16 /* of one sandbox's objects; what is beyond comes to light as these are removed */

static const struct sk_opensandbox *adapter(void *self)
{
    return self;
}

/* Sends one lifecycle request with the key. */
static int lifecycle(const struct sk_opensandbox *o, struct sk_call *call, struct sk_wire_request *request,
                     struct sk_wire_answer *answer, struct sk_error *err)
{
    const struct sk_http_header key = {"OPEN-SANDBOX-API-KEY", o->api_key};

    request->headers = &key;
    request->header_count = o->api_key[0] != '\0' ? 1 : 0;
    if (request->timeout_ms == 0)
        request->timeout_ms = o->request_timeout_ms;
    if (request->answer_max == 0)
        request->answer_max = o->object_max;
    if (sk_wire_json(call, request, answer, err) != 0)
        return sk_fail_context(err, "%s", sk_wire_operation_name(request->operation));
    return 0;
}

/* /v1/sandboxes/<id>[/<verb>]; NULL for an id that is none. */
static char *sandbox_url(const struct sk_opensandbox *o, const char *id, const char *verb)
{
    struct sk_url_builder b;

    if (!sk_opensandbox_id_valid(id))
        return NULL;
    sk_url_begin(&b, o->v1);
    sk_url_segment(&b, "sandboxes");
    sk_url_segment(&b, id);
    if (verb != NULL)
        sk_url_segment(&b, verb);
    return sk_url_take(&b);
}

/* The object in a good answer. */
static int read_object(const struct sk_wire_answer *answer, const char *what, struct sk_remote *out,
                       struct sk_error *err)
{
    const char *why = answer->detail;

    if (answer->json == NULL || !sk_opensandbox_read_remote(answer->json, out, &why))
        return sk_wire_fail_body(err, answer, what, why);
    return 0;
}

/* The `items` of a list answer and whether there are more pages. An answer without them is an error: taken for an empty
 * list it would mean that a running sandbox is gone. */
static int read_page(const struct sk_wire_answer *answer, const char *what, const json_t **items, bool *more,
                     struct sk_error *err)
{
    const json_t *next = json_object_get(json_object_get(answer->json, "pagination"), "hasNextPage");

    if (answer->status != 200)
        return sk_wire_fail(err, answer, what);
    *items = json_object_get(answer->json, "items");
    if (!json_is_array(*items))
        return sk_wire_fail_body(err, answer, what, answer->json == NULL ? answer->detail : "there are no items");
    if (!json_is_boolean(next))
        return sk_wire_fail_body(err, answer, what, "there is no pagination.hasNextPage");
    *more = json_is_true(next);
    return 0;
}

static char *list_url(const struct sk_opensandbox *o, const char *metadata, int page, int page_size)
{
    struct sk_url_builder b;
    char number[16];

    sk_url_begin(&b, o->v1);
    sk_url_segment(&b, "sandboxes");
    if (metadata != NULL)
        sk_url_query(&b, "metadata", metadata);
    snprintf(number, sizeof(number), "%d", page);
    sk_url_query(&b, "page", number);
    snprintf(number, sizeof(number), "%d", page_size);
    sk_url_query(&b, "pageSize", number);
    return sk_url_take(&b);
}

/* It may be the object that counts, and nothing can be done to it by its id: whoever looks after the provider has to.
 * Waiting does not help, so whoever asks is told at once; an operation tries a few times more and is blocked. */
static int fail_unreadable(struct sk_error *err, const struct sk_wire_answer *answer, const json_t *item, int number,
                           const char *reason)
{
    const char *id = sk_wire_text(json_object_get(item, "id"));
    char name[80], why[256];

    sk_wire_count_unreadable();
    sk_wire_clean(name, sizeof(name), id != NULL ? id : "");
    snprintf(why, sizeof(why),
             "object %d of this sandbox (id \"%s\") cannot be read: %s; mend or remove it there first", number, name,
             reason);
    (void)sk_wire_fail_body(err, answer, "find", why);
    if (err != NULL)
        err->retryable = false;
    return -1;
}

/* One page of the objects that carry this sessionId. */
static int find_page(const struct sk_opensandbox *o, struct sk_call *call, const char *sandbox_id, const char *metadata,
                     int page, struct sk_remote *out, int *count, bool *left_out, bool *next, struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_FIND, .method = "GET"};
    const json_t *items = NULL;
    int rc = -1;

    request.url = list_url(o, metadata, page, PAGE_SIZE_MAX);
    request.answer_max = o->answer_max;
    if (lifecycle(o, call, &request, &answer, err) != 0 || read_page(&answer, "find", &items, next, err) != 0)
        goto out;
    if (*next && json_array_size(items) == 0) {
        sk_wire_fail_body(err, &answer, "find", "a page without items is not the last one");
        goto out;
    }
    for (size_t i = 0; i < json_array_size(items); i++) {
        struct sk_remote remote;
        const char *why = "";

        /* Without a state it is still an object of this sandbox, and has to be removed some day. */
        if (!sk_opensandbox_read_remote(json_array_get(items, i), &remote, &why) && remote.sandbox_id[0] == '\0') {
            fail_unreadable(err, &answer, json_array_get(items, i), (page - 1) * PAGE_SIZE_MAX + (int)i + 1, why);
            goto out;
        }
        /* A server that ignores the filter would hand out other people's sandboxes. */
        if (strcmp(remote.sandbox_id, sandbox_id) != 0) {
            sk_wire_fail_body(err, &answer, "find", "an object has another sessionId than the one asked for");
            goto out;
        }
        sk_remotes_offer(out, count, left_out, &remote);
    }
    rc = 0;
out:
    sk_wire_answer_fini(&answer);
    return rc;
}

static int find(void *self, struct sk_call *call, const char *sandbox_id, struct sk_remote *out, int *count, bool *more,
                struct sk_error *err)
{
    char value[3 * SK_SANDBOX_ID_SIZE], metadata[sizeof(value) + 32];
    bool next = true;

    *count = 0;
    *more = false;
    if (!sk_opensandbox_label_valid(sandbox_id) || !sk_url_encode(value, sizeof(value), sandbox_id))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "find: not a sandbox id");
    /* The server decodes this parameter twice, once as a query and once as a form: it is encoded twice. */
    snprintf(metadata, sizeof(metadata), SK_LABEL_SESSION "=%s", value);
    for (int page = 1; next && page <= FIND_PAGES_MAX; page++) {
        if (find_page(self, call, sandbox_id, metadata, page, out, count, more, &next, err) != 0) {
            *count = 0;
            *more = false;
            return -1;
        }
    }
    *more = *more || next;
    return 0;
}

/* One object that makes no sense must not hide all others. It is counted each time and told once: it will be in the
 * list of the next sweep, too. */
static void note_unreadable(struct sk_opensandbox *o, const struct sk_remote *remote, const char *why)
{
    sk_wire_count_unreadable();
    if (!atomic_exchange(&o->unreadable_told, true))
        SK_LOG_WARN("the provider lists an object that cannot be read; it is left out, others like it without a word",
                    SK_F("remoteId", remote->id), SK_F("why", why));
}

static int list(void *self, struct sk_call *call, int page, struct sk_remote *out, int capacity, int *count,
                int *unreadable, bool *more, struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_LIST, .method = "GET"};
    const json_t *items;
    int rc = -1;

    *count = *unreadable = 0;
    *more = false;
    if (page < 1 || capacity < 1)
        return sk_fail(err, SK_ERR_INTERNAL, "list: bad page");
    if (capacity > PAGE_SIZE_MAX)
        capacity = PAGE_SIZE_MAX;
    request.url = list_url(self, NULL, page, capacity);
    request.answer_max = adapter(self)->answer_max;
    if (lifecycle(self, call, &request, &answer, err) != 0 || read_page(&answer, "list", &items, more, err) != 0)
        goto out;
    if (json_array_size(items) > (size_t)capacity) {
        sk_wire_fail_body(err, &answer, "list", "the page is larger than asked for");
        goto out;
    }
    for (size_t i = 0; i < json_array_size(items); i++) {
        const char *why = "";

        if (!sk_opensandbox_read_remote(json_array_get(items, i), &out[*count], &why)) {
            note_unreadable(self, &out[*count], why);
            ++*unreadable;
        } else if (out[*count].sandbox_id[0] != '\0') {
            ++*count;
        }
    }
    rc = 0;
out:
    if (rc != 0) {
        *count = *unreadable = 0;
        *more = false;
    }
    sk_wire_answer_fini(&answer);
    return rc;
}

static int get(void *self, struct sk_call *call, const char *remote_id, struct sk_remote *out, bool *found,
               struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_GET, .method = "GET"};
    int rc = -1;

    *found = false;
    request.url = sandbox_url(self, remote_id, NULL);
    if (lifecycle(self, call, &request, &answer, err) != 0)
        goto out;
    if (sk_wire_absent(&answer)) {
        rc = 0;
    } else if (answer.status != 200) {
        sk_wire_fail(err, &answer, "get");
    } else if (read_object(&answer, "get", out, err) == 0) {
        if (strcmp(out->id, remote_id) != 0) {
            sk_wire_fail_body(err, &answer, "get", "it is another object");
            goto out;
        }
        *found = true;
        rc = 0;
    }
out:
    sk_wire_answer_fini(&answer);
    return rc;
}

static int create(void *self, struct sk_call *call, const struct sk_create_spec *spec, struct sk_remote *out,
                  struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_CREATE, .method = "POST"};
    struct sk_url_builder b;
    json_t *body = sk_opensandbox_create_body(self, spec, err);
    int rc = -1;

    if (body == NULL)
        return sk_fail_context(err, "create");
    sk_url_begin(&b, adapter(self)->v1);
    sk_url_segment(&b, "sandboxes");
    request.url = sk_url_take(&b);
    request.body = body;
    if (lifecycle(self, call, &request, &answer, err) != 0)
        goto out;
    if (answer.status != 200 && answer.status != 201 && answer.status != 202) {
        sk_wire_fail(err, &answer, "create");
        /* The claim was ensured a moment ago: another server may see it later. */
        if (err != NULL && strcmp(answer.code, "VOLUME::PVC_NOT_FOUND") == 0)
            err->retryable = true;
        goto out;
    }
    if (read_object(&answer, "create", out, err) != 0)
        goto out;
    /* Labels need not be echoed. */
    if (out->sandbox_id[0] == '\0') {
        if (!sk_copy(out->sandbox_id, sizeof(out->sandbox_id), spec->sandbox_id) ||
            !sk_copy(out->job_id, sizeof(out->job_id), spec->job_id))
            goto out;
        out->epoch = spec->epoch;
    }
    rc = 0;
out:
    sk_wire_answer_fini(&answer);
    json_decref(body);
    return rc;
}

/* The part of the provider's code behind "DOCKER::", "KUBERNETES::", … */
static bool code_is(const struct sk_wire_answer *answer, const char *name)
{
    const char *separator = strstr(answer->code, "::");

    return separator != NULL && strcmp(separator + 2, name) == 0;
}

static int resume(void *self, struct sk_call *call, const char *remote_id, struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_RESUME, .method = "POST"};
    int rc = -1;

    request.url = sandbox_url(self, remote_id, "resume");
    if (lifecycle(self, call, &request, &answer, err) != 0)
        goto out;
    if (answer.status / 100 == 2)
        rc = 0;
    else if (answer.status == 409 && code_is(&answer, "SANDBOX_NOT_PAUSED"))
        rc = 0; /* somebody resumed it before us */
    else
        sk_wire_fail(err, &answer, "resume");
out:
    sk_wire_answer_fini(&answer);
    return rc;
}

static int remove_object(void *self, struct sk_call *call, const char *remote_id, bool *gone, struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_REMOVE, .method = "DELETE"};
    int rc = -1;

    *gone = false;
    request.url = sandbox_url(self, remote_id, NULL);
    if (lifecycle(self, call, &request, &answer, err) != 0)
        goto out;
    if (answer.status / 100 == 2 || sk_wire_absent(&answer)) {
        *gone = answer.status == 404; /* Kubernetes takes its time after a 204 */
        rc = 0;
    } else {
        sk_wire_fail(err, &answer, "remove");
    }
out:
    sk_wire_answer_fini(&answer);
    return rc;
}

static int relabel(void *self, struct sk_call *call, const char *remote_id, int64_t epoch, const char *job_id,
                   bool *found, struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_RELABEL, .method = "PATCH"};
    struct sk_remote now;
    json_t *patch;
    int rc = -1;

    *found = false;
    if (epoch <= 0 || !sk_opensandbox_label_valid(job_id))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "relabel: epoch or operation cannot be written as labels");
    patch = json_pack("{s:o, s:s}", SK_LABEL_EPOCH, json_sprintf("%lld", (long long)epoch), SK_LABEL_OPERATION, job_id);
    if (patch == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "relabel: out of memory");
    request.url = sandbox_url(self, remote_id, "metadata");
    request.body = patch;
    if (lifecycle(self, call, &request, &answer, err) != 0)
        goto out;
    if (sk_wire_absent(&answer)) {
        rc = 0;
    } else if (answer.status != 200) {
        sk_wire_fail(err, &answer, "relabel");
    } else if (read_object(&answer, "relabel", &now, err) == 0) {
        /* The server reads, changes and writes without a lock: what it answers is what counts. */
        if (now.epoch != epoch || strcmp(now.job_id, job_id) != 0) {
            sk_wire_fail_body(err, &answer, "relabel", "the object has other labels");
            goto out;
        }
        *found = true;
        rc = 0;
    }
out:
    sk_wire_answer_fini(&answer);
    json_decref(patch);
    return rc;
}

static bool is_printable(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    }
    return true;
}

/* Endpoint headers go into requests: printable text, nothing that frames a message. */
static int read_endpoint_headers(struct sk_execd *out, const json_t *headers)
{
    static const char *const framing[] = {"host", "content-length", "transfer-encoding", "connection", "expect"};
    const char *name;
    json_t *value;

    json_object_foreach ((json_t *)headers, name, value) {
        struct sk_execd_header *header = &out->headers[out->header_count];
        bool refused = false;

        for (size_t i = 0; i < sizeof(framing) / sizeof(framing[0]); i++)
            refused = refused || strcasecmp(name, framing[i]) == 0;
        if (refused || name[0] == '\0' || !is_printable(name) || out->header_count == SK_EXECD_HEADERS_MAX ||
            !json_is_string(value) || !is_printable(sk_wire_text(value)) ||
            !sk_copy(header->name, sizeof(header->name), name) ||
            !sk_copy(header->value, sizeof(header->value), sk_wire_text(value)))
            return -1;
        out->header_count++;
    }
    return 0;
}

static int read_endpoint(const struct sk_opensandbox *o, const json_t *json, struct sk_execd *out)
{
    const char *endpoint = sk_wire_text(json_object_get(json, "endpoint"));
    const json_t *headers = json_object_get(json, "headers");
    char text[SK_EXECD_URL_SIZE];
    struct sk_url url;
    int n;

    memset(out, 0, sizeof(*out));
    if (endpoint == NULL || (headers != NULL && !json_is_null(headers) && !json_is_object(headers)))
        return -1;
    /* "host:port/path", without a scheme */
    n = snprintf(text, sizeof(text), "%s%s", o->origin.tls ? "https://" : "http://", endpoint);
    if (n < 0 || (size_t)n >= sizeof(text) || !sk_url_parse(text, &url))
        return -1;
    while (n > 0 && text[n - 1] == '/')
        text[--n] = '\0';
    if (!sk_copy(out->url, sizeof(out->url), text))
        return -1;
    if (headers != NULL && json_is_object(headers) && read_endpoint_headers(out, headers) != 0)
        return -1;
    /* The key is for the lifecycle server alone: any other host runs what the sandbox's user wants. */
    if (sk_url_same_origin(&url, &o->origin) && o->api_key[0] != '\0' && out->header_count < SK_EXECD_HEADERS_MAX) {
        struct sk_execd_header *header = &out->headers[out->header_count++];

        if (!sk_copy(header->name, sizeof(header->name), "OPEN-SANDBOX-API-KEY") ||
            !sk_copy(header->value, sizeof(header->value), o->api_key))
            return -1;
    }
    out->answer_max = o->object_max;
    out->request_timeout_ms = o->request_timeout_ms;
    return 0;
}

enum resolved { RESOLVED, RESOLVED_ABSENT, RESOLVED_NOT_YET };

static int resolve(const struct sk_opensandbox *o, struct sk_call *call, const char *remote_id, struct sk_execd *out,
                   enum resolved *how, struct sk_error *err)
{
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_ENDPOINT, .method = "GET"};
    struct sk_url_builder b;
    char port[8];
    int rc = -1;

    *how = RESOLVED_ABSENT;
    snprintf(port, sizeof(port), "%d", SK_EXECD_PORT);
    if (sk_opensandbox_id_valid(remote_id)) {
        sk_url_begin(&b, o->v1);
        sk_url_segment(&b, "sandboxes");
        sk_url_segment(&b, remote_id);
        sk_url_segment(&b, "endpoints");
        sk_url_segment(&b, port);
        sk_url_query(&b, "use_server_proxy", o->use_server_proxy ? "true" : "false");
        request.url = sk_url_take(&b);
    }
    if (lifecycle(o, call, &request, &answer, err) != 0)
        goto out;
    if (answer.status == 404 && code_is(&answer, "SANDBOX_NOT_FOUND")) {
        rc = 0;
    } else if (answer.code[0] != '\0' && (answer.status == 404 || answer.status == 409 || answer.status == 503)) {
        /* It exists and has no address yet ("KUBERNETES::POD_IP_NOT_AVAILABLE" is a 404 too). */
        *how = RESOLVED_NOT_YET;
        sk_wire_fail(err, &answer, "endpoint");
    } else if (answer.status != 200) {
        sk_wire_fail(err, &answer, "endpoint");
    } else if (read_endpoint(o, answer.json, out) != 0) {
        sk_wire_fail_body(err, &answer, "endpoint", "the endpoint is missing or not usable");
    } else {
        *how = RESOLVED;
        rc = 0;
    }
out:
    sk_wire_answer_fini(&answer);
    return rc;
}

int sk_opensandbox_execd(const struct sk_provider *provider, struct sk_call *call, const char *remote_id,
                         struct sk_execd *out, bool *found, struct sk_error *err)
{
    enum resolved how;
    int rc = resolve(provider->self, call, remote_id, out, &how, err);

    *found = rc == 0 && how == RESOLVED;
    return rc;
}

static int probe(void *self, struct sk_call *call, const char *remote_id, bool *ready, struct sk_error *err)
{
    struct sk_execd execd;
    enum resolved how;

    *ready = false;
    if (resolve(self, call, remote_id, &execd, &how, err) != 0) {
        if (how != RESOLVED_NOT_YET)
            return sk_fail_context(err, "probe");
        sk_error_clear(err);
        return 0;
    }
    if (how != RESOLVED)
        return 0;
    execd.request_timeout_ms = PROBE_TIMEOUT_MS;
    return sk_execd_ping(&execd, call, ready, err);
}

static int ping(void *self, struct sk_call *call, struct sk_error *err)
{
    const struct sk_opensandbox *o = self;
    struct sk_wire_answer answer = {0};
    struct sk_wire_request request = {.operation = SK_WIRE_PING, .method = "GET"};
    struct sk_url_builder b;
    int rc = -1;

    sk_url_begin(&b, o->root);
    sk_url_segment(&b, "health");
    request.url = sk_url_take(&b);
    if (lifecycle(self, call, &request, &answer, err) != 0)
        goto out;
    if (answer.status != 200)
        sk_wire_fail(err, &answer, "health");
    else if (answer.json == NULL)
        sk_wire_fail_body(err, &answer, "health", answer.detail);
    else
        rc = 0;
    if (rc == 0 && o->volumes_url[0] != '\0')
        rc = sk_volume_ping(o, call, err);
out:
    sk_wire_answer_fini(&answer);
    return rc;
}

/* ---- configuration ---------------------------------------------------------------------------------------------- */

/* A copy without the slashes at its end and, when `v1` asks for it, without a "/v1" there. */
static char *copy_base(const char *url, bool cut_v1)
{
    size_t len = strlen(url);
    char *out;

    while (len > 0 && url[len - 1] == '/')
        len--;
    if (cut_v1 && len > 3 && strncmp(url + len - 3, "/v1", 3) == 0) {
        len -= 3;
        while (len > 0 && url[len - 1] == '/')
            len--;
    }
    out = malloc(len + 1);
    if (out != NULL) {
        memcpy(out, url, len);
        out[len] = '\0';
    }
    return out;
}

static char *join(const char *a, const char *b)
{
    size_t size = strlen(a) + strlen(b) + 1;
    char *out = malloc(size);

    if (out != NULL)
        snprintf(out, size, "%s%s", a, b);
    return out;
}

static int read_entrypoint(struct sk_opensandbox *o, const char *text, struct sk_error *err)
{
    json_t *list;
    int rc = 0;

    if (text[0] == '\0')
        text = "[\"tail\",\"-f\",\"/dev/null\"]";
    if (text[0] != '[') {
        o->entrypoint[o->entrypoint_count++] = strdup(text);
        return o->entrypoint[0] != NULL ? 0 : sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    }
    list = sk_json_parse(text, strlen(text), NULL, NULL);
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > SK_ENTRYPOINT_MAX)
        rc = sk_fail(err, SK_ERR_INVALID_REQUEST, "entrypoint: not a JSON array of 1 to %d strings", SK_ENTRYPOINT_MAX);
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        const char *item = sk_wire_text(json_array_get(list, i));

        if (item == NULL)
            rc = sk_fail(err, SK_ERR_INVALID_REQUEST, "entrypoint: item %zu is not a string", i);
        else if ((o->entrypoint[o->entrypoint_count] = strdup(item)) == NULL)
            rc = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        else
            o->entrypoint_count++;
    }
    json_decref(list);
    return rc;
}

static void free_adapter(struct sk_opensandbox *o)
{
    if (o == NULL)
        return;
    for (int i = 0; i < o->entrypoint_count; i++)
        free(o->entrypoint[i]);
    free(o->root);
    free(o->v1);
    free(o->api_key);
    free(o->volumes_url);
    free(o->volumes_authorization);
    free(o);
}

static const char *text_or_empty(const char *text)
{
    return text == NULL ? "" : text;
}

static int configure(struct sk_opensandbox *o, const struct sk_opensandbox_config *config, struct sk_error *err)
{
    const char *volumes = text_or_empty(config->volume_manager_url),
               *token = text_or_empty(config->volume_manager_token);
    struct sk_url url;

    if (!sk_url_parse(config->base_url, &url))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the OpenSandbox base URL is not an http or https URL");
    if (volumes[0] != '\0' && !sk_url_parse(volumes, &url))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the volume manager's URL is not an http or https URL");
    o->root = copy_base(config->base_url, true);
    o->v1 = o->root == NULL ? NULL : join(o->root, "/v1");
    o->api_key = strdup(text_or_empty(config->api_key));
    o->volumes_url = copy_base(volumes, false);
    o->volumes_authorization = token[0] == '\0' ? strdup("") : join("Bearer ", token);
    if (o->root == NULL || o->v1 == NULL || o->api_key == NULL || o->volumes_url == NULL ||
        o->volumes_authorization == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    if (strlen(o->api_key) >= SK_EXECD_HEADER_VALUE_SIZE || !is_printable(o->api_key))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the OpenSandbox API key is too long or not printable");
    if (!is_printable(o->volumes_authorization))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the volume manager's token is not printable");
    if (!sk_url_parse(o->root, &o->origin))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the OpenSandbox base URL is not an http or https URL");
    o->use_server_proxy = config->use_server_proxy;
    o->docker = strcmp(text_or_empty(config->runtime), "docker") == 0;
    o->request_timeout_ms = config->request_timeout_ms > 0 ? config->request_timeout_ms : 120000;
    o->answer_max = config->answer_max_bytes > 0 ? (size_t)config->answer_max_bytes : SK_HTTP_BODY_MAX;
    o->object_max = o->answer_max < SK_OBJECT_ANSWER_MAX ? o->answer_max : SK_OBJECT_ANSWER_MAX;
    return read_entrypoint(o, text_or_empty(config->entrypoint), err);
}

int sk_opensandbox_new(const struct sk_opensandbox_config *config, const struct sk_sched *sched,
                       struct sk_provider *out, struct sk_error *err)
{
    struct sk_opensandbox *o = calloc(1, sizeof(*o));

    out->ops = NULL;
    out->self = NULL;
    if (o == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    o->sched = sched;
    if (configure(o, config, err) != 0) {
        free_adapter(o);
        return -1;
    }
    o->ops = (struct sk_provider_ops){
        .find = find,
        .get = get,
        .create = create,
        .resume = resume,
        .remove = remove_object,
        .relabel = relabel,
        .probe = probe,
        .volume_ensure = sk_volume_ensure,
        .volume_remove = sk_volume_remove,
        .list = list,
        .ping = ping,
        .has_volumes = o->volumes_url[0] != '\0',
        .name = "opensandbox",
    };
    out->ops = &o->ops;
    out->self = o;
    sk_wire_metrics_register();
    return 0;
}

void sk_opensandbox_free(struct sk_provider *provider)
{
    free_adapter(provider->self);
    provider->ops = NULL;
    provider->self = NULL;
}
