/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of sandboxes and what happens to one after its creation: states, expiry, end, destruction. */
#include "services/localbox/localbox.h"

#include "common/log/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The jobs that end a sandbox. They are made with it: memory that runs out must not keep one alive. */
struct lb_ending {
    uv_work_t work;
    struct lb_box *box;
    char id[LB_ID_SIZE];
    pid_t pid;
    unsigned long long start_time;
    char claims[LB_VOLUMES_MAX][LB_CLAIM_SIZE];
    int claim_count;
    int error;
    char *report;
};

struct lb_box *lb_box_new(void)
{
    struct lb_box *box = calloc(1, sizeof(*box));
    if (box == NULL)
        return NULL;
    box->destroying = calloc(1, sizeof(*box->destroying));
    box->ended = calloc(1, sizeof(*box->ended));
    if (box->destroying == NULL || box->ended == NULL) {
        free(box->destroying);
        free(box->ended);
        free(box);
        return NULL;
    }
    char hex[33];
    lb_hex(hex, 16);
    snprintf(box->id, sizeof(box->id), "%.8s-%.4s-4%.3s-a%.3s-%.12s", hex, hex + 8, hex + 13, hex + 17, hex + 20);
    lb_hex(box->token, 16);
    lb_hex(box->nonce, 16);
    uv_timer_init(lb.loop, &box->ttl_timer);
    box->ttl_timer.data = box;
    box->handles = 1;
    return box;
}

struct lb_box *lb_box_find(const char *id)
{
    for (struct lb_box *box = lb.boxes; box != NULL; box = box->next) {
        if (strcmp(box->id, id) == 0)
            return box->state == LB_CREATING ? NULL : box;
    }
    return NULL;
}

void lb_box_add(struct lb_box *box)
{
    box->next = lb.boxes;
    lb.boxes = box;
    lb.box_count++;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct lb_box *box = handle->data;
    if (--box->handles > 0)
        return;
    json_decref(box->metadata);
    json_decref(box->image);
    json_decref(box->entrypoint);
    json_decref(box->platform);
    json_decref(box->extensions);
    free(box->destroying);
    free(box->ended);
    free(box);
}

void lb_box_remove(struct lb_box *box)
{
    for (struct lb_box **p = &lb.boxes; *p != NULL; p = &(*p)->next) {
        if (*p == box) {
            *p = box->next;
            lb.box_count--;
            break;
        }
    }
    box->gone = true;
    lb_link_close(box);
    uv_close((uv_handle_t *)&box->ttl_timer, on_handle_closed);
}

const char *lb_state_name(enum lb_state state)
{
    static const char *const names[] = {"Pending", "Running", "Paused", "Stopping", "Terminated", "Failed"};
    return names[state];
}

void lb_box_set_state(struct lb_box *box, enum lb_state state, const char *reason, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(box->message, sizeof(box->message), fmt, args);
    va_end(args);
    snprintf(box->reason, sizeof(box->reason), "%s", reason);
    if (box->state != state)
        SK_LOG_INFO("sandbox state", SK_F("providerId", box->id), SK_F("state", lb_state_name(state)),
                    SK_F("reason", reason));
    box->state = state;
    box->transition_ms = lb_now_ms();
}

static json_t *time_json(int64_t ms)
{
    char text[40], fraction[8];
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(fraction, sizeof(fraction), ".%03dZ", (int)(ms % 1000));
    return json_pack("s+", text, fraction);
}

json_t *lb_box_json(const struct lb_box *box, bool with_image)
{
    json_t *status = json_pack("{s:s,s:s,s:s,s:o}", "state", lb_state_name(box->state), "reason", box->reason,
                               "message", box->message, "lastTransitionAt", time_json(box->transition_ms));
    json_t *out = json_pack("{s:s,s:o,s:o,s:O}", "id", box->id, "status", status, "createdAt",
                            time_json(box->created_ms), "entrypoint", box->entrypoint);
    bool whole = out != NULL;
    if (json_object_size(box->metadata) > 0)
        whole = json_object_set(out, "metadata", box->metadata) == 0 && whole;
    if (box->expires_ms > 0)
        whole = json_object_set_new(out, "expiresAt", time_json(box->expires_ms)) == 0 && whole;
    if (box->platform != NULL)
        whole = json_object_set(out, "platform", box->platform) == 0 && whole;
    if (with_image && box->image != NULL)
        whole = json_object_set(out, "image", box->image) == 0 && whole;
    if (whole)
        return out;
    json_decref(out); /* out of memory: without its metadata a sandbox would look like somebody else's */
    return NULL;
}

static void on_ttl(uv_timer_t *timer)
{
    struct lb_box *box = timer->data;
    if (box->expires_ms > lb_now_ms()) { /* the wall clock moved */
        lb_box_arm_ttl(box);
        return;
    }
    SK_LOG_INFO("sandbox expired", SK_F("providerId", box->id));
    lb_box_destroy(box);
}

void lb_box_arm_ttl(struct lb_box *box)
{
    char line[64];
    int64_t left = box->expires_ms > 0 ? box->expires_ms - lb_now_ms() : -1;
    if (box->expires_ms > 0 && left < 0)
        left = 0;
    snprintf(line, sizeof(line), "{\"op\":\"ttl\",\"in_ms\":%lld}\n", (long long)left);
    if (left < 0)
        uv_timer_stop(&box->ttl_timer);
    else
        uv_timer_start(&box->ttl_timer, on_ttl, (uint64_t)left, 0);
    if (box->link != NULL)
        lb_link_order(box, line, NULL, NULL);
}

bool lb_box_uses_claim(const char *claim, const struct lb_box *except)
{
    for (struct lb_box *box = lb.boxes; box != NULL; box = box->next) {
        if (box == except || box->state == LB_TERMINATED || box->state == LB_FAILED)
            continue;
        for (int i = 0; i < box->volume_count; i++) {
            if (strcmp(box->volumes[i].claim, claim) == 0)
                return true;
        }
    }
    return false;
}

uid_t lb_uid_free(void)
{
    static uid_t next;
    uid_t base = (uid_t)lb.config.uid_base, count = (uid_t)lb.config.uid_count;
    /* Round robin, so that a user id rests long before it is used again; owners of volumes keep theirs. */
    for (uid_t tries = 0; tries < count; tries++) {
        uid_t uid = base + next++ % count;
        bool used = false;
        for (struct lb_box *box = lb.boxes; box != NULL && !used; box = box->next)
            used = box->uid == uid;
        if (!used)
            return uid;
    }
    return 0;
}

/* ---- the end ---- */

static void destroy_work(uv_work_t *work)
{
    struct lb_ending *e = work->data;
    char folder[96];
    snprintf(folder, sizeof(folder), "sandboxes/%s", e->id);
    e->error = lb_process_kill(e->pid, e->start_time, LB_KILL_MS);
    if (e->error != 0)
        return; /* a process that will not die keeps its record: delete can be asked again */
    lb_cgroup_remove(e->id);
    e->error = lb_remove_tree(folder);
    for (int i = 0; i < e->claim_count; i++) {
        int error = lb_volume_remove(e->claims[i]);
        if (error != 0)
            e->error = error;
    }
}

static void trash_work(uv_work_t *work)
{
    (void)work;
    lb_empty_trash();
}

static void trash_after(uv_work_t *work, int status)
{
    lb.jobs--;
    (void)status;
    free(work);
}

void lb_trash_start(void)
{
    uv_work_t *work = calloc(1, sizeof(*work));
    if (work != NULL)
        lb_queue(work, trash_work, trash_after);
}

static void destroy_after(uv_work_t *work, int status)
{
    lb.jobs--;
    struct lb_ending *e = work->data;
    struct lb_box *box = e->box;
    (void)status;
    for (int i = 0; i < box->delete_waiter_count; i++) {
        struct sk_stream *x = box->delete_waiters[i];
        if (x == NULL)
            continue;
        sk_stream_set(x, NULL, NULL);
        if (e->error != 0)
            lb_reply_error(x, 500, "DOCKER::SANDBOX_DELETE_FAILED", "%s", strerror(e->error));
        else
            sk_stream_reply(x, 204, NULL, NULL, 0);
    }
    box->delete_waiter_count = 0;
    if (e->error != 0) {
        SK_LOG_ERROR("sandbox could not be removed", SK_F("providerId", e->id), SK_F("reason", strerror(e->error)));
        lb_box_set_state(box, LB_FAILED, "DELETE_FAILED", "%s", strerror(e->error));
    } else {
        lb_count(LB_COUNT_DELETED);
        lb_box_remove(box);
        lb_trash_start();
    }
}

static void destroy_saved(void *arg, int error)
{
    struct lb_ending *e = arg;
    (void)error;
    e->work.data = e;
    lb_queue(&e->work, destroy_work, destroy_after);
}

void lb_box_destroy(struct lb_box *box)
{
    if (box->state == LB_STOPPING)
        return;
    struct lb_ending *e = box->destroying; /* free: only a sandbox that is being deleted uses it */
    memset(e, 0, sizeof(*e));
    lb_box_set_state(box, LB_STOPPING, "DELETING", "the sandbox is being deleted");
    uv_timer_stop(&box->ttl_timer);
    lb_link_close(box);
    e->box = box;
    snprintf(e->id, sizeof(e->id), "%s", box->id);
    e->pid = box->pid;
    e->start_time = box->start_time;
    for (int i = 0; i < box->volume_count; i++) {
        struct lb_volume *v = &box->volumes[i];
        if (v->claim[0] != '\0' && v->delete_after && v->created && !lb_box_uses_claim(v->claim, box))
            snprintf(e->claims[e->claim_count++], LB_CLAIM_SIZE, "%s", v->claim);
    }
    if (box->saving) /* a save of this box is under way: behind it */
        lb_box_save(box, destroy_saved, e);
    else
        destroy_saved(e, 0);
}

static void ended_work(uv_work_t *work)
{
    struct lb_ending *e = work->data;
    char path[128];
    snprintf(path, sizeof(path), "sandboxes/%s/exit.json", e->id);
    /* The connection can end a moment before the process does. */
    for (int i = 0; i < 100 && lb_process_matches(e->pid, e->start_time); i++)
        uv_sleep(10);
    e->error = lb_process_matches(e->pid, e->start_time) ? EBUSY : 0;
    e->report = lb_read_file(lb.data_fd, path, 512, NULL);
    if (e->error == 0)
        lb_cgroup_remove(e->id);
}

/* A loaded machine can make init miss the time limit: it is asked again for about a minute before it is given up. */
static void reattached(struct lb_box *box, bool ok, void *arg)
{
    (void)arg;
    if (ok) {
        box->deaf = 0;
        lb_box_arm_ttl(box);
    } else if (box->state != LB_STOPPING && ++box->deaf < LB_DEAF_MAX) {
        lb_box_ended(box);
    } else if (box->state != LB_STOPPING) { /* alive but deaf: it cannot be used and must not linger */
        lb_box_set_state(box, LB_FAILED, "INIT_UNRESPONSIVE", "the sandbox's init does not answer");
        int ignored = lb_process_kill(box->pid, box->start_time, 0);
        (void)ignored;
        lb_box_save(box, NULL, NULL);
    }
}

static void ended_after(uv_work_t *work, int status)
{
    lb.jobs--;
    struct lb_ending *e = work->data;
    struct lb_box *box = e->box;
    (void)status;
    box->saving = false;
    box->ended_later = false;
    json_t *report = e->report != NULL ? json_loads(e->report, 0, NULL) : NULL;
    free(e->report);
    e->report = NULL;
    const char *reason = json_string_value(json_object_get(report, "reason"));
    int code = (int)json_integer_value(json_object_get(report, "code"));
    if (box->state == LB_STOPPING) {
        /* delete overtook us; its job waits for this one through `saving` */
    } else if (e->error != 0) {
        lb_link_open(box, reattached, NULL);
    } else {
        lb_count(LB_COUNT_ENDED);
        box->pid = 0;
        if (reason == NULL)
            lb_box_set_state(box, LB_TERMINATED, "SANDBOX_LOST",
                             "the sandbox's processes are gone (killed, or the machine restarted)");
        else if (strcmp(reason, "entrypoint") == 0 && code != 0)
            lb_box_set_state(box, LB_FAILED, "CONTAINER_EXITED_ERROR", "the entrypoint ended with status %d", code);
        else if (strcmp(reason, "entrypoint") == 0)
            lb_box_set_state(box, LB_TERMINATED, "CONTAINER_EXITED", "the entrypoint ended with status 0");
        else
            lb_box_set_state(box, LB_TERMINATED, "SANDBOX_ENDED", "the sandbox ended: %s", reason);
        if (box->expires_ms > 0 && box->expires_ms <= lb_now_ms() + 1000)
            lb_box_destroy(box);
    }
    if (box->save_next != NULL || box->state == LB_TERMINATED || box->state == LB_FAILED)
        lb_box_save(box, NULL, NULL);
    json_decref(report);
}

void lb_box_ended(struct lb_box *box)
{
    if (box->state == LB_STOPPING)
        return;
    if (box->saving) { /* looked at again when the save is done */
        box->ended_later = true;
        return;
    }
    struct lb_ending *e = box->ended; /* free: `saving` holds from here until its job is done */
    memset(e, 0, sizeof(*e));
    box->saving = true; /* holds back saves and destruction until the job is done */
    e->box = box;
    e->work.data = e;
    snprintf(e->id, sizeof(e->id), "%s", box->id);
    e->pid = box->pid;
    e->start_time = box->start_time;
    lb_queue(&e->work, ended_work, ended_after);
}
