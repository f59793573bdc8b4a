/* SPDX-License-Identifier: Apache-2.0
 *
 * Volumes: one folder per claim below volumes/, and the volume-manager API over them (reference/providers.md §5). A
 * volume outlives its sandboxes and is never made from, or removed outside of, that folder. */
#include "services/localbox/localbox.h"

#include "common/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SESSION_PREFIX "fastgpt-session"

int lb_volume_stat(const char *claim, struct stat *st)
{
    char path[LB_CLAIM_SIZE + 16];
    snprintf(path, sizeof(path), "volumes/%s", claim);
    if (!lb_claim_valid(claim))
        return EINVAL;
    return fstatat(lb.data_fd, path, st, AT_SYMLINK_NOFOLLOW) == 0 ? S_ISDIR(st->st_mode) ? 0 : ENOTDIR : errno;
}

int lb_volume_make(const char *claim, bool *created)
{
    char path[LB_CLAIM_SIZE + 16];
    struct stat st;
    *created = false;
    if (!lb_claim_valid(claim))
        return EINVAL;
    snprintf(path, sizeof(path), "volumes/%s", claim);
    int error = lb_mkdir_beneath(lb.data_fd, path, 0700);
    if (error == EEXIST)
        return lb_volume_stat(claim, &st);
    if (error != 0)
        return error;
    int fd = lb_open_beneath(lb.data_fd, "volumes", O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return -fd;
    error = fsync(fd) != 0 ? errno : 0;
    close(fd);
    *created = error == 0;
    return error;
}

int lb_volume_remove(const char *claim)
{
    char path[LB_CLAIM_SIZE + 24];
    if (!lb_claim_valid(claim))
        return EINVAL;
    snprintf(path, sizeof(path), "limits/%s", claim);
    unlinkat(lb.data_fd, path, 0);
    snprintf(path, sizeof(path), "volumes/%s", claim);
    int error = lb_remove_tree(path);
    int fd = error == 0 ? lb_open_beneath(lb.data_fd, "volumes", O_RDONLY | O_DIRECTORY, 0) : -1;
    if (fd >= 0) {
        error = fsync(fd) != 0 ? errno : 0;
        close(fd);
    }
    return error;
}

int64_t lb_volume_limit(const char *claim)
{
    char path[LB_CLAIM_SIZE + 16];
    snprintf(path, sizeof(path), "limits/%s", claim);
    char *text = lb_read_file(lb.data_fd, path, 64, NULL);
    int64_t limit = text != NULL ? strtoll(text, NULL, 10) : 0;
    free(text);
    return limit;
}

/* ---- the volume manager ---- */

struct volume_job {
    uv_work_t work;
    struct sk_stream *x;
    char claim[LB_CLAIM_SIZE];
    int64_t limit;
    bool remove, created;
    int error;
};

static void job_work(uv_work_t *work)
{
    struct volume_job *j = work->data;
    char text[32];
    if (j->remove) {
        j->error = lb_volume_remove(j->claim);
        return;
    }
    j->error = lb_volume_make(j->claim, &j->created);
    if (j->error == 0 && j->limit > 0) {
        snprintf(text, sizeof(text), "%lld", (long long)j->limit);
        j->error = lb_write_atomic(lb.data_fd, "limits", j->claim, text, strlen(text), 0600);
    }
}

static void job_after(uv_work_t *work, int status)
{
    lb.jobs--;
    struct volume_job *j = work->data;
    struct sk_stream *x = j->x;
    if (x != NULL) {
        sk_stream_set(x, NULL, NULL);
        if (status != 0 || j->error != 0)
            lb_reply_json(x, 500,
                          json_pack("{s:s,s:s,s:s}", "error", strerror(j->error), "code", "VOLUME::FAILED", "message",
                                    strerror(j->error)));
        else if (j->remove)
            sk_stream_reply(x, 204, NULL, NULL, 0);
        else
            lb_reply_json(x, j->created ? 201 : 200,
                          json_pack("{s:s,s:b}", "claimName", j->claim, "created", (int)j->created));
    }
    if (j->remove && j->error == 0)
        lb_trash_start();
    free(j);
}

static void job_closed(struct sk_stream *x, bool complete)
{
    struct volume_job *j = sk_stream_arg(x);
    (void)complete;
    if (j != NULL)
        j->x = NULL;
}

static const struct sk_stream_ops job_ops = {.on_close = job_closed};

static void job_start(struct sk_stream *x, const char *claim, int64_t limit, bool remove)
{
    struct volume_job *j = calloc(1, sizeof(*j));
    if (j == NULL) {
        lb_reply_error(x, 500, "GENERAL::UNKNOWN_ERROR", "out of memory");
        return;
    }
    j->x = x;
    j->limit = limit;
    j->remove = remove;
    j->work.data = j;
    snprintf(j->claim, sizeof(j->claim), "%s", claim);
    sk_stream_set(x, &job_ops, j);
    lb_queue(&j->work, job_work, job_after);
}

static void bad(struct sk_stream *x, int status, const char *code, const char *message)
{
    lb_reply_json(x, status, json_pack("{s:s,s:s,s:s}", "error", message, "code", code, "message", message));
}

static bool session_claim(const char *session, char *out, size_t size)
{
    if (strlen(session) != 24 || strspn(session, "0123456789abcdefABCDEF") != 24)
        return false;
    int n = snprintf(out, size, SESSION_PREFIX "-%s", session);
    for (int i = 0; i < n; i++)
        out[i] = out[i] >= 'A' && out[i] <= 'F' ? (char)(out[i] + 32) : out[i];
    return true;
}

static void ensure_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    json_t *in = json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL);
    json_t *claim_json = json_object_get(in, "claimName");
    const char *session = json_string_value(json_object_get(in, "sessionId")), *claim = json_string_value(claim_json);
    json_t *size = json_object_get(in, "storageSize");
    int64_t limit = json_is_string(size) ? lb_parse_quantity(json_string_value(size))
                    : json_is_integer(size) && json_integer_value(size) < LB_QUANTITY_MAX ? json_integer_value(size)
                                                                                          : 0;
    char name[LB_CLAIM_SIZE] = "";
    if (in == NULL)
        bad(x, 400, "GENERAL::INVALID_JSON", "the body is not valid JSON");
    else if (limit < 0 || (size != NULL && !json_is_null(size) && limit <= 0))
        bad(x, 400, "VOLUME::INVALID_SIZE", "storageSize must be a positive quantity such as 1Gi, below 1Ei");
    else if (claim != NULL && lb_claim_valid(claim))
        job_start(x, claim, limit, false);
    else if ((claim_json == NULL || json_is_null(claim_json)) && session != NULL &&
             session_claim(session, name, sizeof(name)))
        job_start(x, name, limit, false);
    else
        bad(x, 400, "VOLUME::INVALID_NAME", "claimName must be a DNS name, or sessionId 24 hexadecimal digits");
    json_decref(in);
}

static bool authorized(struct sk_stream *x)
{
    const char *given = sk_stream_header(x, "authorization");
    if (lb.config.key == NULL || lb.config.key[0] == '\0' ||
        (given != NULL && strncasecmp(given, "Bearer ", 7) == 0 && lb_key_equal(given + 7, lb.config.key)))
        return true;
    bad(x, 401, "UNAUTHORIZED", "Unauthorized");
    return false;
}

void lb_volume_request(struct sk_stream *x, const char *path)
{
    const char *method = sk_stream_method(x), *rest = path[8] == '/' ? path + 9 : "";
    if (!authorized(x) || !lb_query_valid(x))
        return;
    if (rest[0] == '\0' && strcmp(method, "GET") == 0) {
        lb_volume_list(x);
        return;
    }
    if (strcmp(rest, "ensure") == 0 && strcmp(method, "POST") == 0) {
        sk_stream_collect(x, 65536, LB_JSON_MS, ensure_body, NULL, NULL);
        return;
    }
    if (strcmp(method, "DELETE") != 0) {
        bad(x, strcmp(rest, "ensure") == 0 ? 405 : 404, "GENERAL::NOT_FOUND", "Not Found");
        return;
    }
    char claim[LB_CLAIM_SIZE + 64], named[LB_CLAIM_SIZE];
    snprintf(claim, sizeof(claim), "%s", rest);
    if (sk_stream_url_decode(claim, false) < 0 || !lb_claim_valid(claim))
        bad(x, 400, "VOLUME::INVALID_NAME", "not a volume name");
    else if (session_claim(claim, named, sizeof(named)))
        snprintf(claim, sizeof(claim), "%s", named);
    if (sk_stream_started(x))
        return;
    if (lb_box_uses_claim(claim, NULL)) {
        bad(x, 409, "VOLUME::IN_USE", "the volume is in use by a sandbox");
        return;
    }
    job_start(x, claim, 0, true);
}
