/* SPDX-License-Identifier: Apache-2.0
 *
 * Shell sessions: each run is a new shell that gets the exported variables and the folder the previous run left. */
#include "services/localbox/init/init.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sk_init_session {
    char id[37];
    char *cwd;
    char **env;
    bool running, deleted;
    struct sk_init_session *next;
};

static struct sk_init_session *first;
static int count;

static void session_free(struct sk_init_session *s)
{
    free(s->cwd);
    sk_init_env_free(s->env);
    free(s);
}

static struct sk_init_session *find(const char *id)
{
    for (struct sk_init_session *s = first; s != NULL; s = s->next) {
        if (strcmp(s->id, id) == 0)
            return s;
    }
    return NULL;
}

static void post_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    json_t *in = len > 0 ? json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL) : json_object();
    if (in == NULL || !json_is_object(in)) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "the body must be a JSON object");
        json_decref(in);
        return;
    }
    json_t *given = json_object_get(in, "cwd");
    const char *why = "cwd must be a string", *cwd = json_string_value(given);
    char *path = NULL;
    if (given == NULL || json_is_null(given) || cwd != NULL)
        path = sk_init_path(cwd != NULL && *cwd != '\0' ? cwd : sk_init_state.cwd, &why);
    json_decref(in);
    if (path == NULL) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "%s", why);
        return;
    }
    int error = sk_init_mkdirs(path, 0755);
    if (error != 0) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "cannot make cwd: %s", strerror(error));
        free(path);
        return;
    }
    if (count >= SK_INIT_SESSIONS_MAX) {
        sk_init_reply_error(x, 429, "TOO_MANY_SESSIONS", "at most %d sessions", SK_INIT_SESSIONS_MAX);
        free(path);
        return;
    }
    struct sk_init_session *s = calloc(1, sizeof(*s));
    char hex[33];
    sk_init_hex_id(hex);
    if (s == NULL || (s->env = sk_init_env_with(sk_init_state.env, NULL)) == NULL) {
        free(s);
        free(path);
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "out of memory");
        return;
    }
    snprintf(s->id, sizeof(s->id), "%.8s-%.4s-4%.3s-a%.3s-%.12s", hex, hex + 8, hex + 13, hex + 17, hex + 20);
    s->cwd = path;
    s->next = first;
    first = s;
    count++;
    sk_init_reply_json(x, 200, json_pack("{s:s}", "session_id", s->id));
}

void sk_init_session_post(struct sk_stream *x)
{
    sk_stream_collect(x, 65536, SK_INIT_JSON_MS, post_body, NULL, NULL);
}

static void run_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    char id[64];
    (void)arg;
    snprintf(id, sizeof(id), "%.*s", (int)strcspn(sk_stream_path(x) + 9, "/"), sk_stream_path(x) + 9);
    struct sk_init_session *s = find(id);
    json_t *in = json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL);
    json_t *command = json_object_get(in, "command"), *cwd = json_object_get(in, "cwd"),
           *timeout = json_object_get(in, "timeout");
    const char *text = json_string_value(command);
    char *path = NULL;
    const char *why = NULL;
    struct stat st;
    if (s == NULL) {
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "context not found");
    } else if (text == NULL || *text == '\0') {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "command must be a non-empty string");
    } else if (cwd != NULL && !json_is_null(cwd) && !json_is_string(cwd)) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "cwd must be a string");
    } else if (timeout != NULL && !json_is_null(timeout) &&
               (!json_is_integer(timeout) || json_integer_value(timeout) < 0)) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "timeout must be milliseconds");
    } else if (s->running) {
        sk_init_reply_error(x, 409, "SESSION_BUSY", "the session is running a command");
    } else if ((path =
                    sk_init_path(json_is_string(cwd) && json_string_length(cwd) > 0 ? json_string_value(cwd) : s->cwd,
                                 &why)) == NULL) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "%s", why);
    } else if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "cwd does not exist or is not a directory");
    } else {
        int64_t limit = json_integer_value(timeout);
        s->running = true;
        sk_init_command_session(x, s, text, path, s->env, limit > 0 && limit < 86400000 ? limit : 86400000);
    }
    free(path);
    json_decref(in);
}

void sk_init_session_run(struct sk_stream *x, const char *id)
{
    (void)id;
    sk_stream_collect(x, SK_INIT_JSON_MAX, SK_INIT_JSON_MS, run_body, NULL, NULL);
}

static void unlink_session(struct sk_init_session *s)
{
    for (struct sk_init_session **p = &first; *p != NULL; p = &(*p)->next) {
        if (*p == s) {
            *p = s->next;
            count--;
            return;
        }
    }
}

void sk_init_session_delete(struct sk_stream *x, const char *id)
{
    struct sk_init_session *s = find(id);
    if (s == NULL) {
        sk_init_reply_error(x, 404, "CONTEXT_NOT_FOUND", "no such session");
        return;
    }
    unlink_session(s);
    if (s->running)
        s->deleted = true; /* its command ends by itself */
    else
        session_free(s);
    sk_init_reply_empty(x);
}

static bool kept_variable(const char *entry)
{
    return strlen(entry) <= 8192 && strchr(entry, '=') != NULL && strncmp(entry, "PS", 2) != 0 &&
           strncmp(entry, "PROMPT_COMMAND=", 15) != 0 && strncmp(entry, "_=", 2) != 0;
}

static void take_state(struct sk_init_session *s, char *text, size_t len)
{
    size_t entries = 0;
    for (size_t i = 0; i < len; i++)
        entries += text[i] == '\0';
    if (entries < 2 || text[len - 1] != '\0' || text[0] != '/')
        return;
    char *cwd = strdup(text);
    char **env = calloc(entries + 1, sizeof(*env));
    size_t n = 0;
    bool whole = cwd != NULL && env != NULL;
    for (char *p = text + strlen(text) + 1; whole && p < text + len; p += strlen(p) + 1) {
        if (kept_variable(p))
            whole = (env[n++] = strdup(p)) != NULL;
    }
    if (!whole) { /* the session stays as it was; one that lost a variable would run on with it missing */
        free(cwd);
        sk_init_env_free(env);
        return;
    }
    free(s->cwd);
    sk_init_env_free(s->env);
    s->cwd = cwd;
    s->env = env;
}

void sk_init_session_ended(struct sk_init_session *s, int state_fd)
{
    s->running = false;
    if (state_fd >= 0) {
        char *text = malloc(SK_INIT_SESSION_STATE);
        ssize_t n = text != NULL ? pread(state_fd, text, SK_INIT_SESSION_STATE, 0) : -1;
        if (n > 0 && n < SK_INIT_SESSION_STATE)
            take_state(s, text, (size_t)n);
        free(text);
        close(state_fd);
    }
    if (s->deleted)
        session_free(s);
}
