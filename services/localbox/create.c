/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /sandboxes: checks the request (reference/providers.md §1.3, §1.7), chooses the host user, starts the launch job
 * and answers when the sandbox's init does. The loop never waits: other requests go on meanwhile. */
#include "services/localbox/localbox.h"

#include "common/log/log.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct creation {
    struct lb_launch launch;
    struct sk_stream *x; /* NULL once the client left; the sandbox is made all the same */
    int64_t begun_ms;
};

/* ---- values ---- */

int64_t lb_parse_quantity(const char *text)
{
    static const struct {
        const char *suffix;
        int64_t factor;
    } units[] = {{"", 1},
                 {"b", 1},
                 {"k", 1000},
                 {"kb", 1000},
                 {"ki", 1024},
                 {"m", 1000000},
                 {"mb", 1000000},
                 {"mi", 1048576},
                 {"g", 1000000000},
                 {"gb", 1000000000},
                 {"gi", 1073741824},
                 {"t", 1000000000000},
                 {"tb", 1000000000000},
                 {"ti", 1099511627776}};
    char *end;
    if (text == NULL || !isdigit((unsigned char)*text))
        return -1;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    for (size_t i = 0; errno == 0 && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(end, units[i].suffix) == 0)
            return n > INT64_MAX / units[i].factor ? -1 : n * units[i].factor;
    }
    return -1;
}

static int parse_cpu(const char *text)
{
    char *end;
    if (text == NULL)
        return 0;
    double n = strtod(text, &end);
    if (end == text || n <= 0 || n > 10000000)
        return 0;
    if (strcmp(end, "m") == 0)
        return (int)n;
    return *end == '\0' && n <= 10000 ? (int)(n * 1000) : 0;
}

static bool dns_label(const char *text, size_t max)
{
    size_t n = strlen(text);
    if (n == 0 || n > max || text[0] == '-' || text[n - 1] == '-')
        return false;
    return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

bool lb_claim_valid(const char *claim)
{
    size_t n = strlen(claim);
    return n > 0 && n < LB_CLAIM_SIZE && strspn(claim, "abcdefghijklmnopqrstuvwxyz0123456789-.") == n &&
           isalnum((unsigned char)claim[0]) && isalnum((unsigned char)claim[n - 1]) && strstr(claim, "..") == NULL;
}

/* Absolute or relative, without empty, "." or ".." parts and control characters. */
static bool normal_path(const char *path, bool absolute)
{
    if (absolute != (*path == '/') || strlen(path) >= 1000)
        return false;
    const char *p = absolute ? path + 1 : path;
    if (*p == '\0')
        return false;
    while (*p != '\0') {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        for (size_t i = 0; i < n; i++) {
            if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f)
                return false;
        }
        p += n;
        if (*p == '/' && p[1] == '\0')
            return false;
        p += *p == '/';
    }
    return true;
}

static bool under(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

static bool mount_allowed(const char *mount)
{
    static const char *const taken[] = {"/proc",  "/dev",   "/sys",    "/usr", "/bin",          "/sbin",    "/lib",
                                        "/lib32", "/lib64", "/libx32", "/etc", "/run/sandkeep", "/var/tmp", NULL};
    for (int i = 0; taken[i] != NULL; i++) {
        if (under(mount, taken[i]) || under(taken[i], mount))
            return false;
    }
    return true;
}

/* ---- request ---- */

struct problem {
    int status;
    const char *code, *field;
    char message[256];
};

static bool refuse(struct problem *p, int status, const char *code, const char *field, const char *message)
{
    p->status = status;
    p->code = code;
    p->field = field;
    snprintf(p->message, sizeof(p->message), "%s", message);
    return false;
}

static bool given(json_t *object, const char *name, json_t **out)
{
    *out = json_object_get(object, name);
    return *out != NULL && !json_is_null(*out);
}

static bool host_allowed(const char *path)
{
    char real[PATH_MAX], *copy = strdup(lb.config.host_paths != NULL ? lb.config.host_paths : ""), *save = NULL;
    if (realpath(path, real) == NULL) { /* to be made: its parent decides */
        char parent[PATH_MAX];
        snprintf(parent, sizeof(parent), "%s", path);
        char *slash = strrchr(parent, '/');
        *(slash == parent ? slash + 1 : slash) = '\0';
        if (realpath(parent, real) == NULL) {
            free(copy);
            return false;
        }
    }
    bool hit = false;
    for (char *one = copy != NULL ? strtok_r(copy, ":", &save) : NULL; one != NULL && !hit;
         one = strtok_r(NULL, ":", &save)) {
        char allowed[PATH_MAX];
        hit = realpath(one, allowed) != NULL && under(real, allowed);
    }
    free(copy);
    return hit;
}

static bool read_pvc(struct lb_volume *v, json_t *pvc, struct problem *p)
{
    json_t *value;
    const char *claim = json_string_value(json_object_get(pvc, "claimName"));
    if (claim == NULL || !lb_claim_valid(claim))
        return refuse(p, 422, NULL, "volumes.pvc.claimName", "must be a DNS name");
    snprintf(v->claim, sizeof(v->claim), "%s", claim);
    v->create = true;
    if (given(pvc, "createIfNotExists", &value))
        v->create = json_is_true(value);
    if (given(pvc, "deleteOnSandboxTermination", &value))
        v->delete_after = json_is_true(value);
    return true;
}

static bool read_volume(struct lb_box *box, json_t *item, struct problem *p)
{
    if (!json_is_object(item) || box->volume_count >= LB_VOLUMES_MAX)
        return refuse(p, 422, NULL, "volumes", "must be a list of at most 16 objects");
    struct lb_volume *v = &box->volumes[box->volume_count];
    json_t *pvc, *host, *other;
    const char *name = json_string_value(json_object_get(item, "name")),
               *mount = json_string_value(json_object_get(item, "mountPath"));
    const char *sub = json_string_value(json_object_get(item, "subPath"));
    if (name == NULL || !dns_label(name, 63))
        return refuse(p, 400, "VOLUME::INVALID_NAME", NULL, "a volume's name must be a DNS label");
    if (mount == NULL || !normal_path(mount, true) || !mount_allowed(mount))
        return refuse(p, 400, "VOLUME::INVALID_MOUNT_PATH", NULL,
                      "mountPath must be absolute, normal and not a system folder");
    if (sub != NULL && *sub != '\0' && !normal_path(sub, false))
        return refuse(p, 400, "VOLUME::INVALID_SUB_PATH", NULL, "subPath must be relative and without ..");
    for (int i = 0; i < box->volume_count; i++) {
        if (strcmp(box->volumes[i].name, name) == 0)
            return refuse(p, 400, "VOLUME::DUPLICATE_NAME", NULL, "volume names must differ");
        if (strcmp(box->volumes[i].mount, mount) == 0)
            return refuse(p, 400, "VOLUME::INVALID_MOUNT_PATH", NULL, "mount paths must differ");
    }
    bool has_pvc = given(item, "pvc", &pvc), has_host = given(item, "host", &host);
    if (given(item, "ossfs", &other))
        return refuse(p, 501, "SANDBOX::API_NOT_SUPPORTED", NULL, "ossfs volumes are not supported");
    if (has_pvc == has_host)
        return refuse(p, 400, "VOLUME::INVALID_BACKEND", NULL, "a volume needs exactly one of pvc and host");
    snprintf(v->name, sizeof(v->name), "%s", name);
    snprintf(v->mount, sizeof(v->mount), "%s", mount);
    snprintf(v->sub, sizeof(v->sub), "%s", sub != NULL ? sub : "");
    v->read_only = json_is_true(json_object_get(item, "readOnly"));
    if (has_pvc) {
        if (!read_pvc(v, pvc, p))
            return false;
        if (!lb.root && v->sub[0] != '\0' && lb_box_uses_claim(v->claim, box)) /* nobody may swap a folder under us */
            return refuse(p, 409, "VOLUME::IN_USE", NULL,
                          "as an ordinary user a subPath of a volume in use cannot be mounted");
    } else {
        const char *path = json_string_value(json_object_get(host, "path"));
        if (path == NULL || !normal_path(path, true) || !host_allowed(path))
            return refuse(p, 400, "VOLUME::HOST_PATH_NOT_ALLOWED", NULL,
                          "the host path is not below an allowed folder");
        snprintf(v->host, sizeof(v->host), "%s", path);
    }
    box->volume_count++;
    return true;
}

static bool string_map(json_t *map, bool nulls)
{
    const char *key;
    json_t *value;
    json_object_foreach (map, key, value) {
        if (!(json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value)) &&
            !(nulls && json_is_null(value)))
            return false;
    }
    return json_is_object(map);
}

static bool read_limits(struct lb_box *box, json_t *in, struct problem *p)
{
    json_t *limits, *extensions;
    if (!given(in, "resourceLimits", &limits))
        return refuse(p, 422, NULL, "resourceLimits", "Field required");
    if (!string_map(limits, false))
        return refuse(p, 422, NULL, "resourceLimits", "must map names to strings");
    int64_t memory = lb_parse_quantity(json_string_value(json_object_get(limits, "memory")));
    box->memory_bytes = memory > 0 ? memory : lb.config.memory_mb << 20;
    if (box->memory_bytes < (16 << 20))
        box->memory_bytes = 16 << 20; /* less cannot run a shell */
    box->cpu_milli = parse_cpu(json_string_value(json_object_get(limits, "cpu")));
    const char *disk_names[] = {"disk", "storage", "ephemeral-storage"};
    box->disk_bytes = lb.config.storage_mb << 20;
    for (size_t i = 0; i < 3; i++) {
        int64_t disk = lb_parse_quantity(json_string_value(json_object_get(limits, disk_names[i])));
        if (disk > 0)
            box->disk_bytes = disk;
    }
    if (given(in, "extensions", &extensions)) {
        if (!string_map(extensions, false))
            return refuse(p, 422, NULL, "extensions", "must map names to strings");
        box->extensions = json_incref(extensions);
        const char *renew = json_string_value(json_object_get(extensions, "access.renew.extend.seconds"));
        if (renew != NULL) {
            char *end;
            box->renew_on_access_s = strtoll(renew, &end, 10);
            if (!isdigit((unsigned char)*renew) || *end != '\0' || box->renew_on_access_s < 300 ||
                box->renew_on_access_s > 86400)
                return refuse(p, 400, "SANDBOX::INVALID_PARAMETER", NULL,
                              "access.renew.extend.seconds must be 300..86400");
        }
    }
    return true;
}

static bool read_timeout(struct lb_box *box, json_t *in, struct problem *p)
{
    json_t *timeout;
    if (!given(in, "timeout", &timeout))
        return true;
    if (!json_is_integer(timeout) || json_integer_value(timeout) < 60)
        return refuse(p, 422, NULL, "timeout", "Input should be an integer greater than or equal to 60");
    if ((lb.config.timeout_max > 0 && json_integer_value(timeout) > lb.config.timeout_max) ||
        json_integer_value(timeout) > 3155760000)
        return refuse(p, 400, "SANDBOX::INVALID_PARAMETER", NULL, "timeout is larger than allowed");
    box->expires_ms = box->created_ms + json_integer_value(timeout) * 1000;
    return true;
}

static bool read_request(struct lb_box *box, struct lb_launch *launch, json_t *in, struct problem *p)
{
    json_t *value, *image;
    if (!json_is_object(in))
        return refuse(p, 422, NULL, "body", "Input should be an object");
    bool has_image = given(in, "image", &image);
    if (given(in, "snapshotId", &value))
        return has_image ? refuse(p, 400, "SANDBOX::INVALID_PARAMETER", NULL, "give image or snapshotId, not both")
                         : refuse(p, 501, "SANDBOX::API_NOT_SUPPORTED", NULL, "snapshots are not supported");
    if (!has_image)
        return refuse(p, 422, NULL, "image", "Field required");
    const char *uri = json_string_value(json_object_get(image, "uri"));
    if (uri == NULL || *uri == '\0' || strlen(uri) > 512)
        return refuse(p, 422, NULL, "image.uri", "must be an image name");
    box->image = json_pack("{s:s}", "uri", uri); /* never its credentials */
    launch->root_image = lb_rootfs_image(uri, launch->image_root, sizeof(launch->image_root));
    json_t *entrypoint;
    if (!given(in, "entrypoint", &entrypoint) || json_array_size(entrypoint) == 0 || json_array_size(entrypoint) > 1024)
        return refuse(p, 422, NULL, "entrypoint", "must be a non-empty list of strings");
    for (size_t i = 0; i < json_array_size(entrypoint); i++) {
        json_t *word = json_array_get(entrypoint, i);
        if (!json_is_string(word) || strlen(json_string_value(word)) != json_string_length(word) ||
            (i == 0 && json_string_length(word) == 0))
            return refuse(p, 422, NULL, "entrypoint", "must be a non-empty list of strings");
    }
    box->entrypoint = json_incref(entrypoint);
    if (given(in, "env", &value)) {
        if (!string_map(value, true))
            return refuse(p, 422, NULL, "env", "must map names to strings");
        launch->env = json_incref(value);
    }
    box->metadata = json_object();
    if (given(in, "metadata", &value)) {
        const char *why;
        if (!lb_metadata_valid(value, false, &why))
            return refuse(p, 400, "SANDBOX::INVALID_METADATA_LABEL", NULL, why);
        json_decref(box->metadata);
        box->metadata = json_incref(value);
    }
    if (given(in, "platform", &value)) {
        if (!json_is_object(value))
            return refuse(p, 422, NULL, "platform", "must be an object");
        box->platform = json_incref(value);
    }
    if (given(in, "secureAccess", &value) && !json_is_boolean(value))
        return refuse(p, 422, NULL, "secureAccess", "must be true or false");
    if (given(in, "volumes", &value)) {
        if (!json_is_array(value))
            return refuse(p, 422, NULL, "volumes", "must be a list");
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (!read_volume(box, json_array_get(value, i), p))
                return false;
        }
    }
    return read_timeout(box, in, p) && read_limits(box, in, p);
}

/* The host user: the owner of the first writable volume, so that a volume keeps its owner for life, else a fresh one.
 */
static bool choose_user(struct lb_box *box, struct problem *p)
{
    if (!lb.root) {
        box->uid = 0;
        return true;
    }
    for (int i = 0; i < box->volume_count; i++) {
        struct stat st;
        struct lb_volume *v = &box->volumes[i];
        if (v->claim[0] == '\0' || lb_volume_stat(v->claim, &st) != 0 || st.st_uid < (uid_t)lb.config.uid_base ||
            st.st_uid >= (uid_t)(lb.config.uid_base + lb.config.uid_count))
            continue;
        if (box->uid == 0)
            box->uid = st.st_uid;
        else if (box->uid != st.st_uid && lb_box_uses_claim(v->claim, box))
            return refuse(p, 409, "VOLUME::IN_USE", NULL, "a volume that another sandbox uses has another owner");
    }
    if (box->uid == 0)
        box->uid = lb_uid_free();
    if (box->uid == 0)
        return refuse(p, 503, "SANDBOX::LIMIT_REACHED", NULL, "no host user is left");
    return true;
}

/* ---- launch ---- */

static void creation_free(struct creation *c)
{
    json_decref(c->launch.env);
    free(c->launch.record);
    free(c);
}

static struct sk_stream *creation_stream(struct creation *c)
{
    struct sk_stream *x = c->x;
    if (x != NULL)
        sk_stream_set(x, NULL, NULL);
    return x;
}

static void attached(struct lb_box *box, bool ok, void *arg)
{
    struct creation *c = arg;
    struct sk_stream *x = creation_stream(c);
    if (!ok &&
        !lb_process_matches(box->pid, box->start_time)) { /* its entrypoint has ended already: no failure of ours */
        box->state = LB_RUNNING;
        lb_count(LB_COUNT_CREATED);
        if (x != NULL)
            lb_reply_json(x, 202, lb_box_json(box, false));
        lb_box_ended(box);
        creation_free(c);
        return;
    }
    if (!ok) {
        lb_count(LB_COUNT_CREATE_FAILED);
        SK_LOG_ERROR("new sandbox does not answer", SK_F("providerId", box->id));
        box->state = LB_RUNNING; /* so that it can be destroyed */
        lb_box_destroy(box);
        if (x != NULL)
            lb_reply_error(x, 500, "DOCKER::SANDBOX_EXECD_START_FAILED", "the sandbox's init does not answer");
        creation_free(c);
        return;
    }
    box->state = LB_RUNNING;
    lb_count(LB_COUNT_CREATED);
    lb_observe_create(lb_now_ms() - c->begun_ms);
    if (box->entrypoint_missing)
        snprintf(box->message, sizeof(box->message),
                 "running; the entrypoint is not in this machine's system root and was left out");
    SK_LOG_INFO("sandbox created", SK_F("providerId", box->id), SK_FI("ms", lb_now_ms() - c->begun_ms));
    lb_box_arm_ttl(box);
    if (x != NULL)
        lb_reply_json(x, 202, lb_box_json(box, false));
    creation_free(c);
}

static void launch_work(uv_work_t *work)
{
    struct creation *c = work->data;
    lb_launch_run(&c->launch);
}

static void launch_after(uv_work_t *work, int status)
{
    lb.jobs--;
    struct creation *c = work->data;
    struct lb_box *box = c->launch.box;
    if (status != 0 || c->launch.status != 0) {
        struct sk_stream *x = creation_stream(c);
        lb_count(LB_COUNT_CREATE_FAILED);
        SK_LOG_WARN("sandbox not created", SK_F("providerId", box->id), SK_F("reason", c->launch.message));
        if (x != NULL)
            lb_reply_error(x, c->launch.status != 0 ? c->launch.status : 500,
                           c->launch.code != NULL ? c->launch.code : "DOCKER::SANDBOX_START_FAILED", "%s",
                           c->launch.message);
        lb_box_remove(box);
        creation_free(c);
        return;
    }
    lb_link_open(box, attached, c);
}

static void create_closed(struct sk_stream *x, bool complete)
{
    struct creation *c = sk_stream_arg(x);
    (void)complete;
    if (c != NULL)
        c->x = NULL;
}

static const struct sk_stream_ops create_ops = {.on_close = create_closed};

static void create_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    json_error_t error;
    json_t *in = json_loadb(body, len, JSON_REJECT_DUPLICATES, &error);
    if (in == NULL) {
        lb_reply_error(x, 400, "GENERAL::INVALID_JSON", "the body is not valid JSON: %s", error.text);
        return;
    }
    struct creation *c = calloc(1, sizeof(*c));
    struct lb_box *box = c != NULL ? lb_box_new() : NULL;
    if (box == NULL) {
        free(c);
        json_decref(in);
        lb_reply_error(x, 500, "GENERAL::UNKNOWN_ERROR", "out of memory");
        return;
    }
    c->begun_ms = box->created_ms = box->transition_ms = lb_now_ms();
    c->launch.box = box;
    struct problem p = {0};
    bool fine = read_request(box, &c->launch, in, &p) && choose_user(box, &p);
    if (fine && lb.box_count >= lb.config.max_sandboxes)
        fine = refuse(&p, 429, "SANDBOX::LIMIT_REACHED", NULL, "this machine's limit of sandboxes is reached");
    json_decref(in);
    if (!fine) {
        if (p.code == NULL)
            lb_reply_invalid(x, p.field, p.message);
        else
            lb_reply_error(x, p.status, p.code, "%s", p.message);
        lb_box_remove(box);
        creation_free(c);
        return;
    }
    snprintf(c->launch.cwd, sizeof(c->launch.cwd), "/workspace");
    if (box->volume_count > 0)
        snprintf(c->launch.cwd, sizeof(c->launch.cwd), "%s", box->volumes[0].mount);
    snprintf(box->reason, sizeof(box->reason), "CONTAINER_RUNNING");
    snprintf(box->message, sizeof(box->message), "running");
    box->state = LB_CREATING;
    lb_box_add(box);
    c->x = x;
    sk_stream_set(x, &create_ops, c);
    c->launch.work.data = c;
    lb_queue(&c->launch.work, launch_work, launch_after);
}

void lb_create(struct sk_stream *x)
{
    if (lb.draining) {
        lb_reply_error(x, 503, "SANDBOX::DRAINING", "the provider is stopping");
        return;
    }
    sk_stream_collect(x, LB_JSON_MAX, LB_JSON_MS, create_body, NULL, NULL);
}
