/* SPDX-License-Identifier: Apache-2.0
 *
 * Volumes: one folder per claim below volumes/, the volume-manager API over them (reference/providers.md §5), and the
 * scan that holds sandboxes to their storage limit. A volume outlives its sandboxes and is never made from, or removed
 * outside of, that folder. */
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

const char *lb_storage_mode(void)
{
    return "scan"; /* quotas by project id need a file system that was made for them; nothing is assumed */
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
    const char *session = json_string_value(json_object_get(in, "sessionId")),
               *claim = json_string_value(json_object_get(in, "claimName"));
    json_t *size = json_object_get(in, "storageSize");
    int64_t limit = json_is_string(size)    ? lb_parse_quantity(json_string_value(size))
                    : json_is_integer(size) ? json_integer_value(size)
                                            : 0;
    char name[LB_CLAIM_SIZE] = "";
    if (in == NULL)
        bad(x, 400, "GENERAL::INVALID_JSON", "the body is not valid JSON");
    else if (limit < 0 || (size != NULL && !json_is_null(size) && limit <= 0))
        bad(x, 400, "VOLUME::INVALID_SIZE", "storageSize must be a quantity such as 1Gi");
    else if (claim != NULL && lb_claim_valid(claim))
        job_start(x, claim, limit, false);
    else if (claim == NULL && session != NULL && session_claim(session, name, sizeof(name)))
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
    if (!authorized(x))
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

/* ---- the storage scan ---- */

struct scan {
    uv_work_t work;
    char id[LB_ID_SIZE];
    char claims[LB_VOLUMES_MAX][LB_CLAIM_SIZE];
    int count;
    int64_t limit, used;
    bool over;
    uint64_t took_ns;
};

static uv_timer_t scan_timer;
static bool scanning;
static char last_scanned[LB_ID_SIZE];

static void scan_work(uv_work_t *work)
{
    struct scan *s = work->data;
    uint64_t begun = uv_hrtime();
    char path[LB_CLAIM_SIZE + 16];
    static const char *const inner[] = {"tmp", "home", "workspace"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "sandboxes/%s/%s", s->id, inner[i]);
        s->used += lb_tree_bytes(lb.data_fd, path);
    }
    for (int i = 0; i < s->count; i++) {
        snprintf(path, sizeof(path), "volumes/%s", s->claims[i]);
        int64_t limit = lb_volume_limit(s->claims[i]), used = lb_tree_bytes(lb.data_fd, path);
        s->over = s->over || (limit > 0 && used > limit);
        s->used += used;
    }
    s->over = s->over || (s->limit > 0 && s->used > s->limit);
    s->took_ns = uv_hrtime() - begun;
}

static void next_scan(uint64_t delay_ms);

static void scan_after(uv_work_t *work, int status)
{
    lb.jobs--;
    struct scan *s = work->data;
    struct lb_box *box = lb_box_find(s->id);
    (void)status;
    scanning = false;
    if (lb.server == NULL) {
        free(s);
        return;
    }
    if (box != NULL && box->link != NULL && (s->over || box->storage_full)) {
        if (s->over && !box->storage_full) {
            lb_count(LB_COUNT_STORAGE_STOPS);
            SK_LOG_WARN("storage limit passed, writers are stopped", SK_F("providerId", box->id),
                        SK_FI("bytes", s->used));
        }
        box->storage_full = s->over;
        lb_link_order(box, s->over ? "{\"op\":\"storage\",\"full\":true}\n" : "{\"op\":\"storage\",\"full\":false}\n",
                      NULL, NULL);
    }
    /* Scanning may take a tenth of one processor at most, however large the trees are. */
    uint64_t rest = s->took_ns / 1000000 * 9;
    int running = 0;
    for (struct lb_box *b = lb.boxes; b != NULL; b = b->next)
        running += b->state == LB_RUNNING;
    uint64_t share = (uint64_t)lb.config.scan_ms / (uint64_t)(running > 0 ? running : 1);
    free(s);
    next_scan(share > rest ? share : rest);
}

/* Round robin over the running sandboxes that have a limit. */
static struct lb_box *choose(void)
{
    bool seen = last_scanned[0] == '\0';
    struct lb_box *first = NULL;
    for (struct lb_box *box = lb.boxes; box != NULL; box = box->next) {
        bool wanted = box->state == LB_RUNNING && (box->disk_bytes > 0 || box->volume_count > 0);
        if (wanted && first == NULL)
            first = box;
        if (wanted && seen)
            return box;
        if (strcmp(box->id, last_scanned) == 0)
            seen = true;
    }
    return first;
}

static void on_scan(uv_timer_t *timer)
{
    (void)timer;
    struct lb_box *box = scanning ? NULL : choose();
    struct scan *s = box != NULL ? calloc(1, sizeof(*s)) : NULL;
    if (s == NULL) {
        next_scan((uint64_t)lb.config.scan_ms);
        return;
    }
    scanning = true;
    memcpy(s->id, box->id, sizeof(s->id));
    memcpy(last_scanned, box->id, sizeof(last_scanned));
    s->limit = box->disk_bytes;
    for (int i = 0; i < box->volume_count; i++) {
        if (box->volumes[i].claim[0] != '\0')
            memcpy(s->claims[s->count++], box->volumes[i].claim, LB_CLAIM_SIZE);
    }
    s->work.data = s;
    lb_queue(&s->work, scan_work, scan_after);
}

static void next_scan(uint64_t delay_ms)
{
    uv_timer_start(&scan_timer, on_scan, delay_ms < 20 ? 20 : delay_ms, 0);
}

void lb_scan_stop(void)
{
    if (scan_timer.loop != NULL)
        uv_timer_stop(&scan_timer);
}

void lb_scan_start(void)
{
    uv_timer_init(lb.loop, &scan_timer);
    uv_unref((uv_handle_t *)&scan_timer);
    next_scan((uint64_t)lb.config.scan_ms);
}
