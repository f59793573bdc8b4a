/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing of execd's API and the shape of its answers: {"code","message"} for errors, Content-Length: 0 for empty ones.
 */
#include "services/localbox/init/init.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sk_init_reply_json(struct sk_stream *x, int status, json_t *json)
{
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (text == NULL) {
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "out of memory");
        return;
    }
    sk_stream_reply(x, status, "application/json", text, strlen(text));
    free(text);
}

static char *error_text(const char *code, const char *fmt, va_list args)
{
    char message[1024];
    vsnprintf(message, sizeof(message), fmt, args);
    json_t *json = json_pack("{s:s,s:o}", "code", code, "message", sk_init_string(message));
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

void sk_init_reply_error(struct sk_stream *x, int status, const char *code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = error_text(code, fmt, args);
    va_end(args);
    static const char plain[] = "{\"code\":\"RUNTIME_ERROR\",\"message\":\"out of memory\"}";
    sk_stream_reply(x, status, "application/json", text != NULL ? text : plain, strlen(text != NULL ? text : plain));
    free(text);
}

void sk_init_reply_empty(struct sk_stream *x)
{
    sk_stream_reply(x, 200, NULL, NULL, 0);
}

void sk_init_job_error(struct sk_init_job *job, int status, const char *code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    free(job->out);
    job->out = error_text(code, fmt, args);
    va_end(args);
    job->status = status;
    job->type = "application/json";
    job->out_len = job->out != NULL ? strlen(job->out) : 0;
}

void sk_init_job_errno(struct sk_init_job *job, const char *what, int error)
{
    if (error == ENOENT || error == ENOTDIR)
        sk_init_job_error(job, 404, "FILE_NOT_FOUND", "%s: %s", what, strerror(error));
    else if (error == ENOSPC || error == EDQUOT)
        sk_init_job_error(job, 507, "STORAGE_FULL", "%s: %s", what, strerror(error));
    else
        sk_init_job_error(job, 500, "RUNTIME_ERROR", "%s: %s", what, strerror(error));
}

void sk_init_job_json(struct sk_init_job *job, json_t *json)
{
    job->out = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (job->out == NULL) {
        sk_init_job_error(job, 500, "RUNTIME_ERROR", "out of memory");
        return;
    }
    job->status = 200;
    job->type = "application/json";
    job->out_len = strlen(job->out);
}

/* ---- jobs ---- */

static void job_free(struct sk_init_job *job)
{
    json_decref(job->json);
    free(job->query);
    free(job->body);
    free(job->out);
    free(job);
}

static void job_work(uv_work_t *work)
{
    struct sk_init_job *job = work->data;
    job->run(job);
}

static void job_after(uv_work_t *work, int status)
{
    struct sk_init_job *job = work->data;
    job->working = false;
    if (job->x == NULL) {
        job_free(job);
        return;
    }
    if (status != 0 || job->status == 0)
        sk_init_reply_error(job->x, 500, "RUNTIME_ERROR", "cancelled");
    else
        sk_stream_reply(job->x, job->status, job->out != NULL ? job->type : NULL, job->out, job->out_len);
}

static void job_closed(struct sk_stream *x, void *arg, bool complete)
{
    struct sk_init_job *job = arg;
    (void)x;
    (void)complete;
    job->x = NULL;
    if (!job->working)
        job_free(job);
}

static void job_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    struct sk_init_job *job = arg;
    if (job->body_len == 1) { /* JSON is wanted */
        json_error_t error;
        job->json = json_loadb(body, len, JSON_REJECT_DUPLICATES, &error);
        if (job->json == NULL) {
            sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "the body is not valid JSON: %s", error.text);
            return;
        }
    }
    job->working = true;
    job->work.data = job;
    uv_queue_work(sk_stream_loop(x), &job->work, job_work, job_after);
}

void sk_init_job_start(struct sk_stream *x, bool wants_json, void (*run)(struct sk_init_job *job))
{
    struct sk_init_job *job = calloc(1, sizeof(*job));
    if (job == NULL || (job->query = strdup(sk_stream_query(x))) == NULL) {
        free(job);
        sk_stream_abort(x);
        return;
    }
    job->x = x;
    job->run = run;
    job->body_len = wants_json ? 1 : 0;
    sk_stream_collect(x, wants_json ? SK_INIT_JSON_MAX : 65536, SK_INIT_JSON_MS, job_body, job_closed, job);
}

/* ---- routes ---- */

static void run_not_supported(struct sk_stream *x)
{
    sk_init_reply_error(x, 501, "NOT_SUPPORTED", "this sandbox has no code interpreter and no terminals");
}

struct route {
    const char *method, *path;
    void (*direct)(struct sk_stream *x);
    void (*job)(struct sk_init_job *job);
    bool json, changes; /* changes: refused while paused */
};

static void ping(struct sk_stream *x)
{
    sk_init_reply_empty(x);
}

static const struct route routes[] = {
    {"GET", "/ping", ping, NULL, false, false},
    {"POST", "/command", sk_init_command_post, NULL, false, true},
    {"DELETE", "/command", sk_init_command_delete, NULL, false, false},
    {"POST", "/session", sk_init_session_post, NULL, false, true},
    {"GET", "/files/info", NULL, sk_init_files_info, false, false},
    {"DELETE", "/files", NULL, sk_init_files_delete, false, true},
    {"POST", "/files/permissions", NULL, sk_init_files_permissions, true, true},
    {"POST", "/files/mv", NULL, sk_init_files_move, true, true},
    {"GET", "/files/search", NULL, sk_init_files_search, false, false},
    {"POST", "/files/replace", NULL, sk_init_files_replace, true, true},
    {"POST", "/files/upload", sk_init_upload, NULL, false, true},
    {"GET", "/files/download", sk_init_download, NULL, false, false},
    {"HEAD", "/files/download", sk_init_download, NULL, false, false},
    {"POST", "/directories", NULL, sk_init_directories_make, true, true},
    {"DELETE", "/directories", NULL, sk_init_directories_delete, false, true},
    {"GET", "/directories/list", NULL, sk_init_directories_list, false, false},
    {"GET", "/metrics", sk_init_metrics, NULL, false, false},
    {"GET", "/metrics/watch", sk_init_metrics_watch, NULL, false, false},
};

/* "/a/{id}/b" patterns: true and the id (bounded) when path has this shape. */
static bool with_id(const char *path, const char *before, const char *after, char *id, size_t size)
{
    size_t n = strlen(before);
    if (strncmp(path, before, n) != 0)
        return false;
    const char *start = path + n;
    size_t len = strcspn(start, "/");
    if (len == 0 || len >= size || strcmp(start + len, after) != 0)
        return false;
    memcpy(id, start, len);
    id[len] = '\0';
    return true;
}

static bool route_with_id(struct sk_stream *x, const char *method, const char *path)
{
    char id[64];
    if (strcmp(method, "GET") == 0 && with_id(path, "/command/status/", "", id, sizeof(id)))
        sk_init_command_status(x, id);
    else if (strcmp(method, "GET") == 0 && with_id(path, "/command/", "/logs", id, sizeof(id)))
        sk_init_command_logs(x, id);
    else if (strcmp(method, "POST") == 0 && with_id(path, "/session/", "/run", id, sizeof(id)))
        sk_init_session_run(x, id);
    else if (strcmp(method, "DELETE") == 0 && with_id(path, "/session/", "", id, sizeof(id)))
        sk_init_session_delete(x, id);
    else
        return false;
    return true;
}

void sk_init_http_request(void *arg, struct sk_stream *x)
{
    (void)arg;
    const char *method = sk_stream_method(x), *path = sk_stream_path(x);
    bool path_known = false;
    char name[32];
    if (!sk_stream_query_valid(sk_stream_query(x), name, sizeof(name))) { /* else it would count as left out */
        sk_init_reply_error(x, 400, "MISSING_QUERY", "the query parameter %s is not properly encoded", name);
        return;
    }
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        const struct route *r = &routes[i];
        if (strcmp(r->path, path) != 0)
            continue;
        path_known = true;
        if (strcmp(r->method, method) != 0)
            continue;
        if (r->changes && sk_init_state.paused)
            sk_init_reply_error(x, 409, "SANDBOX_PAUSED", "the sandbox is paused");
        else if (r->direct != NULL)
            r->direct(x);
        else
            sk_init_job_start(x, r->json, r->job);
        return;
    }
    if (strncmp(path, "/session/", 9) == 0 && strcmp(method, "POST") == 0 && sk_init_state.paused)
        sk_init_reply_error(x, 409, "SANDBOX_PAUSED", "the sandbox is paused");
    else if (route_with_id(x, method, path))
        return;
    else if (strncmp(path, "/pty", 4) == 0 || strncmp(path, "/code", 5) == 0)
        run_not_supported(x);
    else if (path_known)
        sk_init_reply_error(x, 405, "METHOD_NOT_ALLOWED", "this path does not know the method");
    else
        sk_init_reply_error(x, 404, "NOT_FOUND", "404 page not found");
}
