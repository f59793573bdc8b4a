/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing, authentication and the lifecycle calls on existing sandboxes (reference/providers.md §1). Every route is
 * mounted at / and at /v1. Creation is in create.c, the proxy in proxy.c, volumes in volumes.c. */
#include "services/localbox/localbox.h"

#include "common/base/id.h"
#include "common/log/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PAGE_DEFAULT 20
#define PAGE_MAX     200

/* ---- answers ---- */

static void request_id(struct sk_stream *x, char out[65])
{
    const char *given = sk_stream_header(x, "x-request-id");
    size_t n = given != NULL ? strspn(given, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") : 0;
    if (given != NULL && n > 0 && n <= 64 && given[n] == '\0')
        memcpy(out, given, n + 1);
    else
        lb_hex(out, 16);
}

static void reply_text(struct sk_stream *x, int status, const char *text)
{
    char id[65];
    request_id(x, id);
    const struct sk_stream_header header = {"X-Request-ID", id};
    sk_stream_reply_with(x, status, &header, 1, text != NULL ? "application/json" : NULL, text,
                         text != NULL ? strlen(text) : 0);
}

void lb_reply_json(struct sk_stream *x, int status, json_t *json)
{
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    reply_text(x, text != NULL ? status : 500,
               text != NULL ? text : "{\"code\":\"GENERAL::UNKNOWN_ERROR\",\"message\":\"out of memory\"}");
    free(text);
}

void lb_reply_error(struct sk_stream *x, int status, const char *code, const char *fmt, ...)
{
    char message[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    json_t *text = json_string(message);
    lb_reply_json(
        x, status,
        json_pack("{s:s,s:o}", "code", code, "message", text != NULL ? text : json_string("not valid UTF-8")));
}

void lb_reply_invalid(struct sk_stream *x, const char *field, const char *message)
{
    lb_reply_json(x, 422,
                  json_pack("{s:s,s:s++,s:[{s:s,s:[s,s],s:s}]}", "code", "GENERAL::VALIDATION_ERROR", "message", field,
                            ": ", message, "detail", "type", "value_error", "loc", "body", field, "msg", message));
}

static void reply_missing(struct sk_stream *x, const char *id)
{
    lb_reply_error(x, 404, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox %s not found", id);
}

bool lb_key_equal(const char *given, const char *wanted)
{
    size_t a = strlen(given), b = strlen(wanted);
    unsigned char difference = a != b;
    for (size_t i = 0; i < a; i++)
        difference |= (unsigned char)(given[i] ^ wanted[b > 0 ? i % b : 0]);
    return difference == 0;
}

/* ---- calls that wait for something: the stream may close first ---- */

struct wait {
    struct sk_stream *x; /* NULL once closed */
    struct lb_box *box;
    char id[LB_ID_SIZE];
    enum { WAIT_RENEW, WAIT_METADATA, WAIT_EMPTY } kind;
};

static void wait_closed(struct sk_stream *x, bool complete)
{
    struct wait *w = sk_stream_arg(x);
    (void)complete;
    if (w != NULL)
        w->x = NULL;
}

static const struct sk_stream_ops wait_ops = {.on_close = wait_closed};

static struct wait *wait_new(struct sk_stream *x, struct lb_box *box, int kind)
{
    struct wait *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        lb_reply_error(x, 500, "GENERAL::UNKNOWN_ERROR", "out of memory");
        return NULL;
    }
    w->x = x;
    w->box = box;
    w->kind = kind;
    snprintf(w->id, sizeof(w->id), "%s", box->id);
    sk_stream_set(x, &wait_ops, w);
    return w;
}

static struct sk_stream *wait_end(struct wait *w)
{
    struct sk_stream *x = w->x;
    if (x != NULL)
        sk_stream_set(x, NULL, NULL);
    free(w);
    return x;
}

static void saved(void *arg, int error)
{
    struct wait *w = arg;
    int kind = w->kind;
    struct lb_box *box = lb_box_find(w->id);
    char id[LB_ID_SIZE];
    memcpy(id, w->id, sizeof(id));
    struct sk_stream *x = wait_end(w);
    if (x == NULL)
        return;
    if (box == NULL || (error != 0 && box->state == LB_STOPPING)) { /* deleted meanwhile */
        reply_missing(x, id);
    } else if (error != 0) {
        lb_reply_error(x, 500, "GENERAL::UNKNOWN_ERROR", "the change could not be stored: %s", strerror(error));
    } else if (kind == WAIT_EMPTY) {
        reply_text(x, 202, NULL);
    } else if (kind == WAIT_METADATA) {
        lb_reply_json(x, 200, lb_box_json(box, true));
    } else {
        char text[SK_TIME_SIZE];
        sk_time_format(box->expires_ms, text);
        lb_reply_json(x, 200, json_pack("{s:s}", "expiresAt", text));
    }
}

/* ---- get, list, delete ---- */

static void get_box(struct sk_stream *x, struct lb_box *box)
{
    lb_reply_json(x, 200, lb_box_json(box, true));
}

static void delete_closed(struct sk_stream *x, bool complete)
{
    struct lb_box *box = sk_stream_arg(x);
    (void)complete;
    for (int i = 0; box != NULL && i < box->delete_waiter_count; i++) {
        if (box->delete_waiters[i] == x)
            box->delete_waiters[i] = NULL;
    }
}

static const struct sk_stream_ops delete_ops = {.on_close = delete_closed};

static void delete_box(struct sk_stream *x, struct lb_box *box)
{
    if (box->delete_waiter_count == LB_DELETE_WAITERS) {
        lb_reply_error(x, 409, "DOCKER::SANDBOX_DELETE_FAILED", "the sandbox is being deleted");
        return;
    }
    box->delete_waiters[box->delete_waiter_count++] = x;
    sk_stream_set(x, &delete_ops, box);
    lb_box_destroy(box);
}

/* metadata=k=v&k2=v2 in one parameter, decoded once by the query and once more here (OpenSandbox §1.5). */
static bool metadata_matches(const struct lb_box *box, const char *filter, const char **why)
{
    char *copy = strdup(filter), *save = NULL;
    bool match = true;
    *why = copy == NULL ? "out of memory" : NULL; /* a filter is never left out */
    for (char *pair = copy != NULL ? strtok_r(copy, "&", &save) : NULL; pair != NULL;
         pair = strtok_r(NULL, "&", &save)) {
        char *value = strchr(pair, '=');
        if (value == NULL) {
            *why = "metadata must be k=v&k2=v2";
            break;
        }
        *value++ = '\0';
        if (sk_stream_url_decode(pair, true) < 0 || sk_stream_url_decode(value, true) < 0) {
            *why = "metadata is not properly encoded";
            break;
        }
        const char *has = json_string_value(json_object_get(box->metadata, pair));
        match = match && has != NULL && strcmp(has, value) == 0;
    }
    free(copy);
    return match && *why == NULL;
}

static bool number_query(struct sk_stream *x, const char *name, int64_t low, int64_t high, int64_t *out)
{
    char *text = sk_stream_query_value(sk_stream_query(x), name, 0, NULL);
    if (text == NULL)
        return true;
    bool fine = lb_parse_number(text, low, high, out);
    free(text);
    if (!fine)
        lb_reply_invalid(x, name, "out of range");
    return fine;
}

static bool state_matches(struct sk_stream *x, const struct lb_box *box)
{
    bool any = false, hit = false;
    for (int i = 0; i < 32 && !hit; i++) {
        char *state = sk_stream_query_value(sk_stream_query(x), "state", i, NULL);
        if (state == NULL)
            break;
        any = true;
        hit = strcasecmp(state, lb_state_name(box->state)) == 0;
        free(state);
    }
    return hit || !any;
}

static void list_boxes(struct sk_stream *x)
{
    int64_t page = 1, size = PAGE_DEFAULT;
    if (!number_query(x, "page", 1, 1000000, &page) || !number_query(x, "pageSize", 1, PAGE_MAX, &size))
        return;
    char *filter = sk_stream_query_value(sk_stream_query(x), "metadata", 0, NULL);
    char *second = sk_stream_query_value(sk_stream_query(x), "metadata", 1, NULL);
    json_t *items = json_array();
    int64_t total = 0;
    const char *why = second != NULL ? "metadata may be given once only" : NULL;
    bool whole = items != NULL;
    struct lb_box nobody = {.metadata = NULL};
    free(second);
    if (filter != NULL && why == NULL)
        (void)metadata_matches(&nobody, filter, &why); /* the filter's form, whatever is in the table */
    for (struct lb_box *box = lb.boxes; why == NULL && box != NULL; box = box->next) {
        const char *ignored;
        if (box->state == LB_CREATING || !state_matches(x, box) ||
            (filter != NULL && !metadata_matches(box, filter, &ignored)))
            continue;
        if (total >= (page - 1) * size && total < page * size)
            whole = json_array_append_new(items, lb_box_json(box, true)) == 0 && whole;
        total++;
    }
    free(filter);
    if (why != NULL) {
        json_decref(items);
        lb_reply_error(x, 400, "INVALID_METADATA_FORMAT", "%s", why);
        return;
    }
    if (!whole) { /* a list with a hole says that a sandbox is not there */
        json_decref(items);
        items = NULL;
    }
    int64_t pages = (total + size - 1) / size;
    lb_reply_json(x, 200,
                  json_pack("{s:o,s:{s:I,s:I,s:I,s:I,s:b}}", "items", items, "pagination", "page", (json_int_t)page,
                            "pageSize", (json_int_t)size, "totalItems", (json_int_t)total, "totalPages",
                            (json_int_t)pages, "hasNextPage", (int)(page < pages)));
}

/* ---- pause and resume ---- */

static void paused_answer(void *arg, json_t *answer)
{
    struct wait *w = arg;
    struct lb_box *box = lb_box_find(w->id);
    if (box == NULL || !json_is_true(json_object_get(answer, "ok"))) {
        char id[LB_ID_SIZE];
        memcpy(id, w->id, sizeof(id));
        struct sk_stream *x = wait_end(w);
        if (x != NULL && box == NULL)
            reply_missing(x, id);
        else if (x != NULL)
            lb_reply_error(x, 500, "DOCKER::SANDBOX_PAUSE_FAILED", "the sandbox's init did not answer");
        return;
    }
    if (box->state == LB_RUNNING)
        lb_box_set_state(box, LB_PAUSED, "CONTAINER_PAUSED", "paused");
    lb_box_save(box, saved, w);
}

static void resumed_answer(void *arg, json_t *answer)
{
    struct wait *w = arg;
    struct lb_box *box = lb_box_find(w->id);
    if (box == NULL || !json_is_true(json_object_get(answer, "ok"))) {
        struct sk_stream *x = wait_end(w);
        if (x != NULL)
            lb_reply_error(x, 500, "DOCKER::SANDBOX_RESUME_FAILED", "the sandbox's init did not answer");
        return;
    }
    if (box->state == LB_PAUSED)
        lb_box_set_state(box, LB_RUNNING, "CONTAINER_RUNNING", "running");
    lb_box_save(box, saved, w);
}

static void pause_box(struct sk_stream *x, struct lb_box *box)
{
    if (box->state != LB_RUNNING) {
        lb_reply_error(x, 409, "DOCKER::SANDBOX_NOT_RUNNING", "Sandbox is not running (state %s)",
                       lb_state_name(box->state));
        return;
    }
    struct wait *w = wait_new(x, box, WAIT_EMPTY);
    if (w != NULL)
        lb_link_order(box, "{\"op\":\"pause\"}\n", paused_answer, w);
}

static void resume_box(struct sk_stream *x, struct lb_box *box)
{
    if (box->state != LB_PAUSED) {
        lb_reply_error(x, 409, "DOCKER::SANDBOX_NOT_PAUSED", "Sandbox is not paused (state %s)",
                       lb_state_name(box->state));
        return;
    }
    struct wait *w = wait_new(x, box, WAIT_EMPTY);
    if (w != NULL)
        lb_link_order(box, "{\"op\":\"resume\"}\n", resumed_answer, w);
}

/* ---- renew, metadata ---- */

static struct lb_box *box_of(struct sk_stream *x)
{
    const char *path = sk_stream_path(x);
    char id[LB_ID_SIZE] = "";
    if (strncmp(path, "/v1/", 4) == 0)
        path += 3;
    if (strlen(path) > 11)
        snprintf(id, sizeof(id), "%.*s",
                 (int)strcspn(path + 11, "/") < (int)sizeof(id) ? (int)strcspn(path + 11, "/") : (int)sizeof(id) - 1,
                 path + 11);
    struct lb_box *box = lb_box_find(id);
    if (box == NULL)
        reply_missing(x, id);
    return box;
}

static void renew_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    struct lb_box *box = box_of(x);
    if (box == NULL)
        return;
    json_t *json = json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL);
    const char *text = json_string_value(json_object_get(json, "expiresAt"));
    int64_t when = 0;
    if (text == NULL || !sk_time_parse(text, &when))
        lb_reply_invalid(x, "expiresAt", "must be an RFC 3339 time");
    else if (box->expires_ms == 0)
        lb_reply_error(x, 409, "DOCKER::INVALID_EXPIRATION", "the sandbox has no expiry (manual clean-up)");
    else if (when <= lb_now_ms())
        lb_reply_error(x, 400, "DOCKER::INVALID_EXPIRATION", "expiresAt must be in the future");
    else if (lb.config.timeout_max > 0 && when > lb_now_ms() + lb.config.timeout_max * 1000)
        lb_reply_error(x, 400, "SANDBOX::INVALID_PARAMETER", "expiresAt is further away than %lld s",
                       (long long)lb.config.timeout_max);
    else if (box->state == LB_STOPPING)
        reply_missing(x, box->id);
    else {
        struct wait *w = wait_new(x, box, WAIT_RENEW);
        if (w != NULL) {
            box->expires_ms = when;
            lb_box_arm_ttl(box);
            lb_box_save(box, saved, w);
        }
    }
    json_decref(json);
}

static bool label_value(const char *v)
{
    size_t n = strlen(v);
    if (n > 63 || (n > 0 && (!isalnum((unsigned char)v[0]) || !isalnum((unsigned char)v[n - 1]))))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)v[i]) && strchr("-_.", v[i]) == NULL)
            return false;
    }
    return true;
}

static bool label_key(const char *key)
{
    const char *slash = strchr(key, '/');
    const char *name = slash != NULL ? slash + 1 : key;
    if (*name == '\0' || !label_value(name))
        return false;
    if (slash == NULL)
        return true;
    if (slash == key || slash - key > 253 || strncmp(key, "opensandbox.io/", 15) == 0)
        return false;
    for (const char *p = key; p < slash; p++) {
        if (!islower((unsigned char)*p) && !isdigit((unsigned char)*p) && *p != '-' && *p != '.')
            return false;
    }
    return true;
}

bool lb_metadata_valid(json_t *metadata, bool patch, const char **why)
{
    const char *key;
    json_t *value;
    *why = "metadata must map names to strings";
    if (!json_is_object(metadata))
        return false;
    if (json_object_size(metadata) > 64) {
        *why = "too many metadata entries";
        return false;
    }
    json_object_foreach (metadata, key, value) {
        if (!(json_is_string(value) || (patch && json_is_null(value))))
            return false;
        if (!label_key(key) ||
            (json_is_string(value) && (!label_value(json_string_value(value)) ||
                                       strlen(json_string_value(value)) != json_string_length(value)))) {
            *why = "metadata keys and values must be Kubernetes labels (63 characters, letters, digits, - _ .)";
            return false;
        }
    }
    return true;
}

static void metadata_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    struct lb_box *box = box_of(x);
    if (box == NULL)
        return;
    const char *why = NULL, *key;
    json_t *value, *json = json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL);
    json_t *patch = json_is_object(json_object_get(json, "metadata")) && json_object_size(json) == 1
                        ? json_object_get(json, "metadata")
                        : json;
    if (json == NULL) {
        lb_reply_error(x, 400, "GENERAL::INVALID_JSON", "the body is not valid JSON");
    } else if (box->state == LB_STOPPING) {
        reply_missing(x, box->id);
    } else if (!lb_metadata_valid(patch, true, &why)) {
        lb_reply_error(x, 400, "INVALID_METADATA_LABEL", "%s", why);
    } else {
        json_t *merged = json_copy(box->metadata);
        bool whole = merged != NULL;
        json_object_foreach (patch, key, value) {
            if (json_is_null(value))
                json_object_del(merged, key);
            else
                whole = json_object_set(merged, key, value) == 0 && whole;
        }
        struct wait *w = whole ? wait_new(x, box, WAIT_METADATA) : NULL;
        if (!whole)
            lb_reply_error(x, 500, "GENERAL::UNKNOWN_ERROR", "out of memory");
        if (w == NULL) {
            json_decref(merged);
        } else {
            json_decref(box->metadata);
            box->metadata = merged;
            lb_box_save(box, saved, w);
        }
    }
    json_decref(json);
}

/* ---- endpoints ---- */

static void endpoint(struct sk_stream *x, struct lb_box *box, const char *port_text)
{
    char text[512];
    int64_t port = 0;
    char *proxy = sk_stream_query_value(sk_stream_query(x), "use_server_proxy", 0, NULL);
    char *expires = sk_stream_query_value(sk_stream_query(x), "expires", 0, NULL);
    bool both = proxy != NULL && strcasecmp(proxy, "true") == 0 && expires != NULL;
    free(proxy);
    free(expires);
    if (!lb_parse_number(port_text, 1, 65535, &port)) {
        lb_reply_error(x, 400, "DOCKER::INVALID_PORT", "port must be 1..65535");
        return;
    }
    if (both) {
        lb_reply_error(x, 400, "SANDBOX::INVALID_PARAMETER", "expires cannot be used with use_server_proxy");
        return;
    }
    const char *host = sk_stream_header(x, "host");
    char fallback[64];
    snprintf(fallback, sizeof(fallback), "127.0.0.1:%d", lb.port);
    snprintf(text, sizeof(text), "%s/v1/sandboxes/%s/proxy/%d", host != NULL && *host != '\0' ? host : fallback,
             box->id, (int)port);
    json_t *out = json_pack("{s:s}", "endpoint", text);
    if (lb.config.key != NULL && lb.config.key[0] != '\0')
        json_object_set_new(out, "headers", json_pack("{s:s}", "X-EXECD-ACCESS-TOKEN", box->token));
    lb_reply_json(x, 200, out);
}

/* ---- routing ---- */

static void health(struct sk_stream *x)
{
    int running = 0;
    for (struct lb_box *box = lb.boxes; box != NULL; box = box->next)
        running += box->state == LB_RUNNING || box->state == LB_PAUSED;
    json_t *limits = lb_cgroup_json();
    json_object_set_new(limits, "storage", json_string(lb_storage_mode()));
    json_object_set_new(limits, "user", json_string(lb.root ? "one host user per sandbox" : "the daemon's user"));
    json_object_set_new(limits, "network", json_string(lb.net_host ? "host" : "none"));
    lb_reply_json(x, 200,
                  json_pack("{s:s,s:s,s:o,s:i}", "status", "healthy", "provider", "sk-localbox", "limits", limits,
                            "sandboxes", running));
}

bool lb_query_valid(struct sk_stream *x)
{
    char name[32];
    if (sk_stream_query_valid(sk_stream_query(x), name, sizeof(name)))
        return true;
    lb_reply_error(x, 400, strcmp(name, "metadata") == 0 ? "INVALID_METADATA_FORMAT" : "GENERAL::INVALID_QUERY",
                   "the query parameter %s is not properly encoded", name);
    return false;
}

static bool key_given(struct sk_stream *x)
{
    const char *key = sk_stream_header(x, "open-sandbox-api-key");
    return key != NULL && lb_key_equal(key, lb.config.key);
}

static bool authorized(struct sk_stream *x)
{
    if (lb.config.key == NULL || lb.config.key[0] == '\0' || key_given(x))
        return true;
    bool missing = sk_stream_header(x, "open-sandbox-api-key") == NULL;
    lb_reply_error(x, 401, missing ? "MISSING_API_KEY" : "INVALID_API_KEY",
                   missing ? "Authentication credentials are missing" : "Authentication credentials are invalid");
    return false;
}

static void on_box_route(struct sk_stream *x, const char *method, const char *id, const char *rest)
{
    struct lb_box *box = lb_box_find(id);
    bool get = strcmp(method, "GET") == 0, post = strcmp(method, "POST") == 0;
    if (box == NULL) {
        reply_missing(x, id);
    } else if (*rest == '\0') {
        if (get)
            get_box(x, box);
        else if (strcmp(method, "DELETE") == 0)
            delete_box(x, box);
        else
            lb_reply_json(x, 405,
                          json_pack("{s:s,s:s,s:s}", "code", "GENERAL::METHOD_NOT_ALLOWED", "message",
                                    "Method Not Allowed", "detail", "Method Not Allowed"));
    } else if (post && strcmp(rest, "/pause") == 0) {
        pause_box(x, box);
    } else if (post && strcmp(rest, "/resume") == 0) {
        resume_box(x, box);
    } else if (post && strcmp(rest, "/renew-expiration") == 0) {
        sk_stream_collect(x, LB_JSON_MAX, LB_JSON_MS, renew_body, NULL, NULL);
    } else if (strcmp(method, "PATCH") == 0 && strcmp(rest, "/metadata") == 0) {
        sk_stream_collect(x, LB_JSON_MAX, LB_JSON_MS, metadata_body, NULL, NULL);
    } else if (get && strncmp(rest, "/endpoints/", 11) == 0) {
        endpoint(x, box, rest + 11);
    } else if (strncmp(rest, "/snapshots", 10) == 0 || strncmp(rest, "/diagnostics", 12) == 0 ||
               strncmp(rest, "/networkpolicy", 14) == 0) {
        lb_reply_error(x, 501, "SANDBOX::API_NOT_SUPPORTED", "sk-localbox has no such function");
    } else {
        lb_reply_json(
            x, 404,
            json_pack("{s:s,s:s,s:s}", "code", "GENERAL::NOT_FOUND", "message", "Not Found", "detail", "Not Found"));
    }
}

/* /sandboxes/{id}/proxy/{port}[/…]: true when the path has this form. */
static bool proxy_route(struct sk_stream *x, const char *path, const char *id, const char *rest)
{
    if (strncmp(rest, "/proxy/", 7) != 0)
        return false;
    char *end;
    long port = strtol(rest + 7, &end, 10);
    if (!isdigit((unsigned char)rest[7]) || (*end != '\0' && *end != '/'))
        return false;
    if (port < 1 || port > 65535)
        lb_reply_error(x, 400, "DOCKER::INVALID_PORT", "port must be 1..65535");
    else
        lb_proxy(x, id, (int)port, sk_stream_target(x) + (end - path) + (path - sk_stream_path(x)));
    return true;
}

static void event_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    (void)body;
    (void)len;
    reply_text(x, 204, NULL);
}

void lb_http_request(void *arg, struct sk_stream *x)
{
    (void)arg;
    const char *method = sk_stream_method(x), *path = sk_stream_path(x);
    const char *short_path = strncmp(path, "/v1/", 4) == 0 ? path + 3 : path;
    sk_stream_limit_body(x, 0);
    if (strcmp(short_path, "/health") == 0 || strcmp(short_path, "/healthz") == 0) {
        health(x);
        return;
    }
    if (strcmp(short_path, "/version") == 0) {
        lb_reply_json(x, 200, json_pack("{s:s}", "version", "1.1.1"));
        return;
    }
    if (strcmp(short_path, "/volumes") == 0 || strncmp(short_path, "/volumes/", 9) == 0) {
        lb_volume_request(x, short_path);
        return;
    }
    char id[64] = "";
    const char *rest = "";
    if (strncmp(short_path, "/sandboxes/", 11) == 0) {
        size_t n = strcspn(short_path + 11, "/");
        snprintf(id, sizeof(id), "%.*s", n < sizeof(id) ? (int)n : (int)sizeof(id) - 1, short_path + 11);
        rest = short_path + 11 + n;
        if (proxy_route(x, short_path, id, rest))
            return;
    }
    if (!authorized(x) || !lb_query_valid(x))
        return;
    if (strcmp(short_path, "/sandboxes") == 0) {
        if (strcmp(method, "POST") == 0)
            lb_create(x);
        else if (strcmp(method, "GET") == 0)
            list_boxes(x);
        else
            lb_reply_json(x, 405,
                          json_pack("{s:s,s:s,s:s}", "code", "GENERAL::METHOD_NOT_ALLOWED", "message",
                                    "Method Not Allowed", "detail", "Method Not Allowed"));
    } else if (id[0] != '\0') {
        on_box_route(x, method, id, rest);
    } else if (strcmp(short_path, "/metrics/events") == 0 && strcmp(method, "POST") == 0) {
        sk_stream_collect(x, LB_JSON_MAX, LB_JSON_MS, event_body, NULL, NULL);
    } else {
        lb_reply_json(
            x, 404,
            json_pack("{s:s,s:s,s:s}", "code", "GENERAL::NOT_FOUND", "message", "Not Found", "detail", "Not Found"));
    }
}
