/* SPDX-License-Identifier: Apache-2.0
 *
 * The durable record of a sandbox and re-adoption. A folder below sandboxes/ without a record is a creation that did
 * not finish; one with a record is a sandbox that either still runs (same boot, process start time and nonce) or is
 * kept as Terminated until somebody deletes it. */
#include "services/localbox/localbox.h"

#include "common/log/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RECORD_MAX (1u << 20)

static json_t *volume_json(const struct lb_volume *v)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:b,s:b,s:b}", "name", v->name, "claim", v->claim, "host", v->host, "sub",
                     v->sub, "mount", v->mount, "readOnly", (int)v->read_only, "deleteAfter", (int)v->delete_after,
                     "created", (int)v->created);
}

char *lb_box_record(const struct lb_box *box)
{
    json_t *volumes = json_array();
    bool whole = volumes != NULL;
    for (int i = 0; whole && i < box->volume_count; i++)
        whole = json_array_append_new(volumes, volume_json(&box->volumes[i])) == 0;
    if (!whole) { /* a record that forgot a volume would let it be deleted while it is in use */
        json_decref(volumes);
        return NULL;
    }
    json_t *json = json_pack(
        "{s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:O,s:O?,s:O,s:O?,s:O?,s:o,s:I,s:I,s:I,s:i,s:I,s:I,s:s,s:I}",
        "version", 1, "id", box->id, "token", box->token, "nonce", box->nonce, "state",
        lb_state_name(box->state == LB_CREATING ? LB_RUNNING : box->state), "reason", box->reason, "message",
        box->message, "createdAt", (json_int_t)box->created_ms, "transitionAt", (json_int_t)box->transition_ms,
        "expiresAt", (json_int_t)box->expires_ms, "metadata", box->metadata, "image", box->image, "entrypoint",
        box->entrypoint, "platform", box->platform, "extensions", box->extensions, "volumes", volumes, "uid",
        (json_int_t)box->uid, "memoryBytes", (json_int_t)box->memory_bytes, "diskBytes", (json_int_t)box->disk_bytes,
        "cpuMilli", box->cpu_milli, "initPid", (json_int_t)box->pid, "startTime", (json_int_t)box->start_time, "bootId",
        box->boot_id, "renewOnAccess", (json_int_t)box->renew_on_access_s);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

int lb_record_write(const char *id, const char *text)
{
    char folder[96];
    snprintf(folder, sizeof(folder), "sandboxes/%.36s", id);
    return lb_write_atomic(lb.data_fd, folder, "record.json", text, strlen(text), 0600);
}

/* ---- saving ---- */

struct lb_save_waiter {
    lb_saved_fn done;
    void *arg;
    struct lb_save_waiter *next;
};

struct save {
    uv_work_t work;
    struct lb_box *box;
    char id[LB_ID_SIZE];
    char *text;
    int error;
};

static void tell(struct lb_save_waiter *w, int error)
{
    while (w != NULL) {
        struct lb_save_waiter *next = w->next;
        if (w->done != NULL)
            w->done(w->arg, error);
        free(w);
        w = next;
    }
}

static void save_work(uv_work_t *work)
{
    struct save *s = work->data;
    s->error = s->text != NULL ? lb_record_write(s->id, s->text) : ENOMEM;
}

static void start_save(struct lb_box *box);

static void save_after(uv_work_t *work, int status)
{
    lb.jobs--;
    struct save *s = work->data;
    struct lb_box *box = s->box;
    int error = status != 0 ? EIO : s->error;
    if (error != 0)
        SK_LOG_ERROR("record not written", SK_F("providerId", s->id), SK_F("reason", strerror(error)));
    struct lb_save_waiter *w = box->save_now;
    box->save_now = NULL;
    box->saving = false;
    free(s->text);
    free(s);
    tell(w, error);
    if (box->ended_later && !box->saving && !box->gone) {
        box->ended_later = false;
        lb_box_ended(box);
    }
    if (box->save_next != NULL && !box->saving && !box->gone)
        start_save(box);
}

static void start_save(struct lb_box *box)
{
    struct save *s = calloc(1, sizeof(*s));
    struct lb_save_waiter *w = box->save_next;
    box->save_next = NULL;
    if (s == NULL) {
        SK_LOG_ERROR("record not written", SK_F("providerId", box->id), SK_F("reason", strerror(ENOMEM)));
        tell(w, ENOMEM); /* whoever waits must not wait for ever */
        return;
    }
    box->save_now = w;
    box->saving = true;
    s->box = box;
    s->work.data = s;
    snprintf(s->id, sizeof(s->id), "%s", box->id);
    s->text = lb_box_record(box);
    lb_queue(&s->work, save_work, save_after);
}

void lb_box_save(struct lb_box *box, lb_saved_fn done, void *arg)
{
    struct lb_save_waiter *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        if (done != NULL)
            done(arg, ENOMEM);
        return;
    }
    w->done = done;
    w->arg = arg;
    struct lb_save_waiter **last = &box->save_next;
    while (*last != NULL)
        last = &(*last)->next;
    *last = w;
    if (!box->saving)
        start_save(box);
}

/* ---- loading ---- */

static void copy_text(char *out, size_t size, json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));
    snprintf(out, size, "%s", text != NULL ? text : "");
}

static json_t *keep(json_t *json, const char *name)
{
    json_t *value = json_object_get(json, name);
    return value != NULL && !json_is_null(value) ? json_incref(value) : NULL;
}

struct lb_box *lb_record_load(const char *id)
{
    char path[128];
    size_t len = 0;
    snprintf(path, sizeof(path), "sandboxes/%s/record.json", id);
    char *text = lb_read_file(lb.data_fd, path, RECORD_MAX, &len);
    json_t *json = text != NULL ? json_loadb(text, len, 0, NULL) : NULL;
    free(text);
    const char *recorded = json_string_value(json_object_get(json, "id"));
    struct lb_box *box = recorded != NULL && strcmp(recorded, id) == 0 ? lb_box_new() : NULL;
    if (box == NULL) {
        json_decref(json);
        return NULL;
    }
    copy_text(box->id, sizeof(box->id), json, "id");
    copy_text(box->token, sizeof(box->token), json, "token");
    copy_text(box->nonce, sizeof(box->nonce), json, "nonce");
    copy_text(box->reason, sizeof(box->reason), json, "reason");
    copy_text(box->message, sizeof(box->message), json, "message");
    copy_text(box->boot_id, sizeof(box->boot_id), json, "bootId");
    const char *state = json_string_value(json_object_get(json, "state"));
    box->state = LB_TERMINATED;
    for (int i = LB_RUNNING; state != NULL && i <= LB_FAILED; i++) {
        if (strcmp(lb_state_name((enum lb_state)i), state) == 0)
            box->state = (enum lb_state)i;
    }
    box->created_ms = json_integer_value(json_object_get(json, "createdAt"));
    box->transition_ms = json_integer_value(json_object_get(json, "transitionAt"));
    box->expires_ms = json_integer_value(json_object_get(json, "expiresAt"));
    box->renew_on_access_s = json_integer_value(json_object_get(json, "renewOnAccess"));
    box->uid = (uid_t)json_integer_value(json_object_get(json, "uid"));
    box->memory_bytes = json_integer_value(json_object_get(json, "memoryBytes"));
    box->disk_bytes = json_integer_value(json_object_get(json, "diskBytes"));
    box->cpu_milli = (int)json_integer_value(json_object_get(json, "cpuMilli"));
    box->pid = (pid_t)json_integer_value(json_object_get(json, "initPid"));
    box->start_time = (unsigned long long)json_integer_value(json_object_get(json, "startTime"));
    box->metadata = keep(json, "metadata");
    box->image = keep(json, "image");
    box->entrypoint = keep(json, "entrypoint");
    box->platform = keep(json, "platform");
    box->extensions = keep(json, "extensions");
    if (box->metadata == NULL)
        box->metadata = json_object();
    if (box->entrypoint == NULL)
        box->entrypoint = json_array();
    json_t *volumes = json_object_get(json, "volumes");
    for (size_t i = 0; i < json_array_size(volumes) && i < LB_VOLUMES_MAX; i++) {
        json_t *item = json_array_get(volumes, i);
        struct lb_volume *v = &box->volumes[box->volume_count++];
        copy_text(v->name, sizeof(v->name), item, "name");
        copy_text(v->claim, sizeof(v->claim), item, "claim");
        copy_text(v->host, sizeof(v->host), item, "host");
        copy_text(v->sub, sizeof(v->sub), item, "sub");
        copy_text(v->mount, sizeof(v->mount), item, "mount");
        v->read_only = json_is_true(json_object_get(item, "readOnly"));
        v->delete_after = json_is_true(json_object_get(item, "deleteAfter"));
        v->created = json_is_true(json_object_get(item, "created"));
    }
    json_decref(json);
    return box;
}

/* ---- adoption ---- */

static int pending;
static void (*adopted_all)(void);

/* One try: true when nobody holds the control socket any more. */
static bool holders_gone(const char *id)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[160];
    snprintf(path, sizeof(path), "/proc/self/fd/%d/sandboxes/%.36s/control.sock", lb.data_fd, id);
    if (strlen(path) >= sizeof(address.sun_path))
        return true;
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool gone = fd < 0 || (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 && errno != EAGAIN);
    if (!gone) {
        static const char order[] = "{\"op\":\"shutdown\"}\n";
        char answer[64];
        if (send(fd, order, sizeof(order) - 1, MSG_NOSIGNAL) > 0 && lb_wait_readable(fd, lb_mono_ms() + 50))
            while (lb_wait_readable(fd, lb_mono_ms() + 500) && read(fd, answer, sizeof(answer)) > 0)
                continue;
    }
    if (fd >= 0)
        close(fd);
    return gone;
}

/* A half-made sandbox. Its control socket was open before anything was started, so whoever still belongs to it holds
 * that socket: a child before exec (moves on by itself), bwrap (whose inner half waits for ever once its outer half is
 * gone: killed by its mark), or init (ends when it reads the order). */
static void end_half_made(const char *id)
{
    bool gone = false;
    for (int tries = 0; tries < 100 && !gone; tries++) {
        lb_kill_marked(id);
        lb_cgroup_remove(id);
        gone = holders_gone(id);
    }
    char folder[96];
    snprintf(folder, sizeof(folder), "sandboxes/%.36s", id);
    int error = gone ? lb_remove_tree(folder) : EBUSY;
    SK_LOG_WARN("half-made sandbox removed", SK_F("providerId", id),
                SK_F("reason", error != 0 ? strerror(error) : NULL));
}

static void one_less(void)
{
    if (--pending == 0)
        adopted_all();
}

static void on_attached(struct lb_box *box, bool ok, void *arg)
{
    (void)arg;
    if (ok) {
        lb_count(LB_COUNT_ADOPTED);
        lb_box_arm_ttl(box);
        SK_LOG_INFO("sandbox adopted", SK_F("providerId", box->id), SK_F("state", lb_state_name(box->state)));
    } else {
        lb_count(LB_COUNT_LOST);
        lb_box_ended(box);
    }
    one_less();
}

static void adopt(struct lb_box *box)
{
    lb_box_add(box);
    if (box->state == LB_STOPPING || (box->expires_ms > 0 && box->expires_ms <= lb_now_ms())) {
        box->state = LB_RUNNING;
        lb_box_destroy(box); /* a delete that a crash interrupted, or an expiry that passed meanwhile */
        return;
    }
    if (box->state != LB_RUNNING && box->state != LB_PAUSED) {
        lb_box_arm_ttl(box);
        return;
    }
    if (strcmp(box->boot_id, lb.boot_id) == 0 && lb_process_matches(box->pid, box->start_time)) {
        pending++;
        lb_link_open(box, on_attached, NULL);
    } else {
        lb_count(LB_COUNT_LOST);
        box->pid = strcmp(box->boot_id, lb.boot_id) == 0 ? box->pid : 0;
        lb_box_arm_ttl(box);
        lb_box_ended(box);
    }
}

static int newest_last(const void *a, const void *b)
{
    const struct lb_box *x = *(struct lb_box *const *)a, *y = *(struct lb_box *const *)b;
    return x->created_ms < y->created_ms ? -1 : x->created_ms > y->created_ms;
}

void lb_adopt_all(void (*done)(void))
{
    adopted_all = done;
    pending = 1;
    struct lb_box **found = NULL;
    size_t count = 0, room = 0;
    int fd = lb_open_beneath(lb.data_fd, "sandboxes", O_RDONLY | O_DIRECTORY, 0);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) != LB_ID_SIZE - 1)
            continue;
        struct lb_box *box = lb_record_load(entry->d_name);
        if (box == NULL) {
            end_half_made(entry->d_name);
            continue;
        }
        if (count == room) {
            room = room == 0 ? 64 : room * 2;
            struct lb_box **grown = realloc(found, room * sizeof(*found));
            if (grown == NULL)
                abort(); /* at start, with nothing served yet */
            found = grown;
        }
        found[count++] = box;
    }
    if (d != NULL)
        closedir(d);
    if (count > 0)
        qsort(found, count, sizeof(*found), newest_last);
    for (size_t i = 0; i < count; i++)
        adopt(found[i]);
    free(found);
    one_less();
}
