/* SPDX-License-Identifier: Apache-2.0
 *
 * A sandbox provider that answers at once: the part of OpenSandbox and of the volume manager that the lifecycle uses,
 * in memory, so that what is measured is the control plane and not the sandbox. A create can be told to take its time
 * (POST /bench/delay?ms=N[&sandbox=ID]), which makes an operation last while something else is looked at. */
#include "common/base/id.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/sched.h"
#include "common/http/stream/stream.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTS_MAX 300000
#define BODY_MAX    65536
#define BODY_MS     10000

struct object {
    struct sk_list link; /* of its sandbox */
    struct group *group;
    char id[SK_UUID_SIZE];
    json_t *metadata;
    char created_at[SK_TIME_SIZE];
};

/* The objects of one sandbox. */
struct group {
    struct sk_list objects;
};

struct late {
    uv_timer_t timer;
    struct sk_stream *x; /* NULL once closed */
    json_t *body;
};

static struct provider {
    uv_loop_t *loop;
    struct sk_stream_server *server;
    uv_signal_t terminate, interrupt;
    struct sk_map objects, groups;
    int port;
    int64_t delay_ms;
    char delayed[SK_SANDBOX_ID_SIZE]; /* "" = every create */
    uint64_t requests, creates;
} p;

/* ---- answers ----------------------------------------------------------------------------------------------------- */
static void reply_json(struct sk_stream *x, int status, json_t *json)
{
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;

    json_decref(json);
    if (text == NULL)
        sk_stream_reply(x, 500, NULL, NULL, 0);
    else
        sk_stream_reply(x, status, "application/json", text, strlen(text));
    free(text);
}

static void reply_error(struct sk_stream *x, int status, const char *code)
{
    reply_json(x, status, json_pack("{s:s,s:s}", "code", code, "message", code));
}

static json_t *object_json(const struct object *object)
{
    return json_pack("{s:s,s:{s:s},s:O,s:s}", "id", object->id, "status", "state", "Running", "metadata",
                     object->metadata, "createdAt", object->created_at);
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */
static struct group *group_of(const char *sandbox_id)
{
    struct group *group = sk_map_get(&p.groups, sandbox_id);

    if (group != NULL)
        return group;
    group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    sk_list_init(&group->objects);
    if (!sk_map_set(&p.groups, sandbox_id, group, NULL)) {
        free(group);
        return NULL;
    }
    return group;
}

static void create_now(struct sk_stream *x, json_t *body)
{
    json_t *metadata = json_object_get(body, "metadata");
    const char *sandbox_id = json_string_value(json_object_get(metadata, "sessionId"));
    struct object *object = calloc(1, sizeof(*object));
    struct group *group = sandbox_id != NULL ? group_of(sandbox_id) : NULL;

    if (object == NULL || group == NULL) {
        free(object);
        reply_error(x, 400, "BENCH::NOT_A_SANDBOX");
        return;
    }
    sk_uuid4(&sk_sched_system, object->id);
    sk_time_format(sk_wall_ms(&sk_sched_system), object->created_at);
    object->metadata = json_incref(metadata);
    object->group = group;
    if (!sk_map_set(&p.objects, object->id, object, NULL)) {
        json_decref(object->metadata);
        free(object);
        reply_error(x, 503, "BENCH::FULL");
        return;
    }
    sk_list_push_back(&group->objects, &object->link);
    p.creates++;
    reply_json(x, 202, object_json(object));
}

static void late_freed(uv_handle_t *handle)
{
    struct late *late = handle->data;

    json_decref(late->body);
    free(late);
}

static void late_closed(struct sk_stream *x, bool complete)
{
    struct late *late = sk_stream_arg(x);

    (void)complete;
    if (late != NULL)
        late->x = NULL;
}

static void late_due(uv_timer_t *timer)
{
    struct late *late = timer->data;

    if (late->x != NULL) {
        struct sk_stream *x = late->x;

        late->x = NULL;
        sk_stream_set(x, NULL, NULL);
        create_now(x, late->body);
    }
    uv_close((uv_handle_t *)&late->timer, late_freed);
}

static const struct sk_stream_ops late_ops = {.on_close = late_closed};

static void create_body(struct sk_stream *x, void *arg, char *text, size_t len)
{
    json_t *body = json_loadb(text, len, 0, NULL);
    const char *sandbox_id = json_string_value(json_object_get(json_object_get(body, "metadata"), "sessionId"));
    struct late *late;

    (void)arg;
    if (p.delay_ms > 0 && (p.delayed[0] == '\0' || (sandbox_id != NULL && strcmp(p.delayed, sandbox_id) == 0)) &&
        (late = calloc(1, sizeof(*late))) != NULL) {
        late->x = x;
        late->body = body;
        sk_stream_set(x, &late_ops, late);
        uv_timer_init(p.loop, &late->timer);
        late->timer.data = late;
        uv_timer_start(&late->timer, late_due, (uint64_t)p.delay_ms, 0);
        return;
    }
    create_now(x, body);
    json_decref(body);
}

static void list_objects(struct sk_stream *x)
{
    char *filter = sk_stream_query_value(sk_stream_query(x), "metadata", 0, NULL);
    json_t *items = json_array();

    /* The filter is encoded twice; sandbox ids need no decoding. Without one nothing is listed: nobody asks here. */
    if (filter != NULL && strncmp(filter, "sessionId=", 10) == 0) {
        struct group *group = sk_map_get(&p.groups, filter + 10);

        if (group != NULL) {
            SK_LIST_FOREACH (struct object, object, &group->objects, link)
                json_array_append_new(items, object_json(object));
        }
    }
    free(filter);
    reply_json(x, 200, json_pack("{s:o,s:{s:b}}", "items", items, "pagination", "hasNextPage", 0));
}

static void remove_object(struct sk_stream *x, struct object *object)
{
    sk_map_remove(&p.objects, object->id);
    sk_list_remove(&object->link);
    json_decref(object->metadata);
    free(object);
    sk_stream_reply(x, 204, NULL, NULL, 0);
}

static void patch_body(struct sk_stream *x, void *arg, char *text, size_t len)
{
    struct object *object = sk_map_get(&p.objects, arg);
    json_t *patch = json_loadb(text, len, 0, NULL);

    if (object == NULL) {
        reply_error(x, 404, "BENCH::SANDBOX_NOT_FOUND");
    } else {
        json_object_update(object->metadata, patch);
        reply_json(x, 200, object_json(object));
    }
    json_decref(patch);
}

static void patch_closed(struct sk_stream *x, void *arg, bool complete)
{
    (void)x;
    (void)complete;
    free(arg);
}

/* /v1/sandboxes/ID[/VERB…] */
static void on_object(struct sk_stream *x, const char *method, const char *rest)
{
    char id[SK_UUID_SIZE];
    size_t length = strcspn(rest, "/");
    const char *verb = rest + length;
    struct object *object;

    sk_copy_cut(id, length < sizeof(id) ? length + 1 : sizeof(id), rest);
    object = sk_map_get(&p.objects, id);
    if (object == NULL)
        reply_error(x, 404, "BENCH::SANDBOX_NOT_FOUND");
    else if (verb[0] == '\0' && strcmp(method, "GET") == 0)
        reply_json(x, 200, object_json(object));
    else if (verb[0] == '\0' && strcmp(method, "DELETE") == 0)
        remove_object(x, object);
    else if (strncmp(verb, "/endpoints/", 11) == 0)
        reply_json(x, 200,
                   json_pack("{s:o}", "endpoint", json_sprintf("127.0.0.1:%d/sandboxes/%s/proxy/44772", p.port, id)));
    else if (strcmp(verb, "/metadata") == 0 && strcmp(method, "PATCH") == 0)
        sk_stream_collect(x, BODY_MAX, BODY_MS, patch_body, patch_closed, strdup(id));
    else if (strcmp(verb, "/resume") == 0)
        sk_stream_reply(x, 202, NULL, NULL, 0);
    else
        reply_error(x, 404, "BENCH::NO_SUCH_CALL");
}

/* ---- volumes: every claim exists -----------------------------------------------------------------------------------
 */
static void volume_body(struct sk_stream *x, void *arg, char *text, size_t len)
{
    json_t *body = json_loadb(text, len, 0, NULL);
    json_t *name = json_object_get(body, "claimName");

    (void)arg;
    reply_json(x, 200, json_pack("{s:O}", "claimName", name));
    json_decref(body);
}

/* ---- the bench's own calls -----------------------------------------------------------------------------------------
 */
static void set_delay(struct sk_stream *x)
{
    char *ms = sk_stream_query_value(sk_stream_query(x), "ms", 0, NULL);
    char *sandbox_id = sk_stream_query_value(sk_stream_query(x), "sandbox", 0, NULL);

    p.delay_ms = ms != NULL ? strtoll(ms, NULL, 10) : 0;
    sk_copy_cut(p.delayed, sizeof(p.delayed), sandbox_id != NULL ? sandbox_id : "");
    free(ms);
    free(sandbox_id);
    reply_json(x, 200, json_pack("{s:I}", "delayMs", (json_int_t)p.delay_ms));
}

static void on_request(void *arg, struct sk_stream *x)
{
    const char *path = sk_stream_path(x), *method = sk_stream_method(x);

    (void)arg;
    p.requests++;
    if (strcmp(path, "/v1/sandboxes") == 0 && strcmp(method, "POST") == 0)
        sk_stream_collect(x, BODY_MAX, BODY_MS, create_body, NULL, NULL);
    else if (strcmp(path, "/v1/sandboxes") == 0)
        list_objects(x);
    else if (strncmp(path, "/v1/sandboxes/", 14) == 0)
        on_object(x, method, path + 14);
    else if (strncmp(path, "/sandboxes/", 11) == 0) /* the command channel's ping */
        reply_json(x, 200, json_pack("{s:s}", "status", "ok"));
    else if (strcmp(path, "/v1/volumes/ensure") == 0)
        sk_stream_collect(x, BODY_MAX, BODY_MS, volume_body, NULL, NULL);
    else if (strncmp(path, "/v1/volumes/", 12) == 0)
        sk_stream_reply(x, 204, NULL, NULL, 0);
    else if (strcmp(path, "/bench/delay") == 0)
        set_delay(x);
    else if (strcmp(path, "/bench/stats") == 0)
        reply_json(x, 200,
                   json_pack("{s:I,s:I,s:I}", "requests", (json_int_t)p.requests, "creates", (json_int_t)p.creates,
                             "objects", (json_int_t)sk_map_count(&p.objects)));
    else
        reply_json(x, 200, json_pack("{s:s}", "status", "healthy"));
}

static void on_signal(uv_signal_t *signal, int number)
{
    (void)signal;
    (void)number;
    uv_stop(p.loop);
}

int main(int argc, char **argv)
{
    const struct sk_stream_limits limits = SK_STREAM_LIMITS_DEFAULT;
    int rc;

    if (argc > 2) {
        fprintf(stderr, "usage: sk-bench-provider [PORT]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    p.loop = uv_default_loop();
    sk_map_init(&p.objects, OBJECTS_MAX, 0);
    sk_map_init(&p.groups, OBJECTS_MAX, 0);
    p.server = sk_stream_server_new(p.loop, &limits, on_request, NULL);
    rc = p.server == NULL ? -1
                          : sk_stream_server_listen_tcp(p.server, "127.0.0.1", argc == 2 ? atoi(argv[1]) : 0, &p.port);
    if (rc != 0) {
        fprintf(stderr, "sk-bench-provider: cannot listen\n");
        return 1;
    }
    uv_signal_init(p.loop, &p.terminate);
    uv_signal_init(p.loop, &p.interrupt);
    uv_signal_start(&p.terminate, on_signal, SIGTERM);
    uv_signal_start(&p.interrupt, on_signal, SIGINT);
    printf("{\"port\":%d}\n", p.port);
    fflush(stdout);
    uv_run(p.loop, UV_RUN_DEFAULT);
    return 0; /* the process ends: nothing of it has to be given back one by one */
}
