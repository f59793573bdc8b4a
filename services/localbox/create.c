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

#define CPU_MILLI_MAX 10000000   /* ten thousand processors */
#define MEMORY_MIN    (16 << 20) /* less cannot run a shell: smaller requests are raised to this */
#define STRING_MAX    131071     /* one argument or NAME=value of a process: the kernel's MAX_ARG_STRLEN */

struct creation {
    struct lb_launch launch;
    struct sk_stream *x; /* NULL once the client left; the sandbox is made all the same */
    int64_t begun_ms;
};

/* ---- values ---- */

bool lb_parse_number(const char *text, int64_t low, int64_t high, int64_t *out)
{
    size_t n = text != NULL ? strspn(text, "0123456789") : 0;
    if (n == 0 || n > 18 || text[n] != '\0')
        return false;
    *out = strtoll(text, NULL, 10);
    return *out >= low && *out <= high;
}

/* What stands behind a decimal point, in thousandths; further digits are cut. *text moves behind it. */
static int64_t thousandths(const char **text)
{
    int64_t value = 0, unit = 100;
    if (**text != '.')
        return 0;
    if (!isdigit((unsigned char)*++*text))
        return -1;
    for (; isdigit((unsigned char)**text); ++*text, unit /= 10)
        value += (**text - '0') * unit;
    return value;
}

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
    const char *suffix = end;
    int64_t fraction = errno == 0 ? thousandths(&suffix) : -1;
    for (size_t i = 0; fraction >= 0 && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(suffix, units[i].suffix) == 0 && (units[i].factor > 1 || suffix == end))
            return n >= LB_QUANTITY_MAX / units[i].factor ? -1
                                                          : n * units[i].factor + fraction * units[i].factor / 1000;
    }
    return -1;
}

/* Processors in thousandths: 500m, 2, 1.5; -1 = not such a number. */
static int parse_cpu(const char *text)
{
    char *end;
    if (text == NULL || !isdigit((unsigned char)*text))
        return -1;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno != 0 || n > CPU_MILLI_MAX)
        return -1;
    if (strcmp(end, "m") == 0)
        return n > 0 ? (int)n : -1;
    const char *rest = end;
    int64_t fraction = thousandths(&rest);
    n = n * 1000 + fraction;
    return fraction < 0 || *rest != '\0' || n < 1 || n > CPU_MILLI_MAX ? -1 : (int)n;
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
        if (n == 0 || n > NAME_MAX || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
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

/* A switch that may be left out. What is neither true nor false is refused: a "true" that is a string must not turn
 * into false. */
static bool read_switch(json_t *object, const char *name, const char *field, bool *out, struct problem *p)
{
    json_t *value;
    if (!given(object, name, &value))
        return true;
    if (!json_is_boolean(value))
        return refuse(p, 422, NULL, field, "must be true or false");
    *out = json_is_true(value);
    return true;
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
    const char *claim = json_string_value(json_object_get(pvc, "claimName"));
    if (claim == NULL || !lb_claim_valid(claim))
        return refuse(p, 422, NULL, "volumes.pvc.claimName", "must be a DNS name");
    snprintf(v->claim, sizeof(v->claim), "%s", claim);
    v->create = true;
    return read_switch(pvc, "createIfNotExists", "volumes.pvc.createIfNotExists", &v->create, p) &&
           read_switch(pvc, "deleteOnSandboxTermination", "volumes.pvc.deleteOnSandboxTermination", &v->delete_after,
                       p);
}

static bool read_volume(struct lb_box *box, json_t *item, struct problem *p)
{
    if (!json_is_object(item) || box->volume_count >= LB_VOLUMES_MAX)
        return refuse(p, 422, NULL, "volumes", "must be a list of at most 16 objects");
    struct lb_volume *v = &box->volumes[box->volume_count];
    json_t *pvc, *host, *other;
    const char *name = json_string_value(json_object_get(item, "name")),
               *mount = json_string_value(json_object_get(item, "mountPath"));
    json_t *sub_path;
    const char *sub = given(item, "subPath", &sub_path) ? json_string_value(sub_path) : "";
    if (name == NULL || !dns_label(name, 63))
        return refuse(p, 400, "VOLUME::INVALID_NAME", NULL, "a volume's name must be a DNS label");
    if (mount == NULL || !normal_path(mount, true) || !mount_allowed(mount))
        return refuse(p, 400, "VOLUME::INVALID_MOUNT_PATH", NULL,
                      "mountPath must be absolute, normal and not a system folder");
    if (sub == NULL || (*sub != '\0' && !normal_path(sub, false)))
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
    snprintf(v->sub, sizeof(v->sub), "%s", sub);
    if (!read_switch(item, "readOnly", "volumes.readOnly", &v->read_only, p))
        return false;
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

/* What the kernel takes; else every command of the sandbox would fail, or go without the variable. */
static bool env_valid(json_t *env)
{
    const char *name;
    json_t *value;
    json_object_foreach (env, name, value) {
        if (*name == '\0' || strchr(name, '=') != NULL || strlen(name) + 1 + json_string_length(value) > STRING_MAX)
            return false;
    }
    return true;
}

/* A quantity that may be left out; *bytes stays then. Never ignored when it is wrong: a limit that does not hold is
 * worse than a refusal (OpenSandbox ignores it with a warning). */
static bool read_quantity(json_t *limits, const char *name, int64_t *bytes, struct problem *p)
{
    json_t *value;
    char message[160];
    if (!given(limits, name, &value))
        return true;
    int64_t quantity = lb_parse_quantity(json_string_value(value));
    if (quantity <= 0) {
        snprintf(message, sizeof(message), "resourceLimits.%s must be a positive quantity such as 512Mi, below 1Ei",
                 name);
        return refuse(p, 400, "SANDBOX::INVALID_PARAMETER", NULL, message);
    }
    *bytes = quantity;
    return true;
}

static bool read_limits(struct lb_box *box, json_t *in, struct problem *p)
{
    json_t *limits, *extensions;
    if (!given(in, "resourceLimits", &limits))
        return refuse(p, 422, NULL, "resourceLimits", "Field required");
    if (!string_map(limits, false))
        return refuse(p, 422, NULL, "resourceLimits", "must map names to strings");
    box->memory_bytes = lb.config.memory_mb << 20;
    box->disk_bytes = lb.config.storage_mb << 20;
    if (!read_quantity(limits, "memory", &box->memory_bytes, p) ||
        !read_quantity(limits, "disk", &box->disk_bytes, p) || !read_quantity(limits, "storage", &box->disk_bytes, p) ||
        !read_quantity(limits, "ephemeral-storage", &box->disk_bytes, p))
        return false;
    if (box->memory_bytes < MEMORY_MIN)
        box->memory_bytes = MEMORY_MIN;
    const char *cpu = json_string_value(json_object_get(limits, "cpu"));
    box->cpu_milli = cpu != NULL ? parse_cpu(cpu) : 0;
    if (box->cpu_milli < 0)
        return refuse(p, 400, "SANDBOX::INVALID_PARAMETER", NULL,
                      "resourceLimits.cpu must be processors such as 2, 0.5 or 500m, at most 10000");
    if (given(in, "extensions", &extensions)) {
        if (!string_map(extensions, false))
            return refuse(p, 422, NULL, "extensions", "must map names to strings");
        box->extensions = json_incref(extensions);
        const char *renew = json_string_value(json_object_get(extensions, "access.renew.extend.seconds"));
        if (renew != NULL && !lb_parse_number(renew, 300, 86400, &box->renew_on_access_s))
            return refuse(p, 400, "SANDBOX::INVALID_PARAMETER", NULL, "access.renew.extend.seconds must be 300..86400");
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
        if (json_string_length(word) > STRING_MAX)
            return refuse(p, 422, NULL, "entrypoint", "a word must be shorter than 128 KiB");
    }
    box->entrypoint = json_incref(entrypoint);
    if (given(in, "env", &value)) {
        if (!string_map(value, true))
            return refuse(p, 422, NULL, "env", "must map names to strings");
        if (!env_valid(value))
            return refuse(p, 422, NULL, "env",
                          "names must not be empty nor contain '=', NAME=value must be shorter than 128 KiB");
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
