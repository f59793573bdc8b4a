/* SPDX-License-Identifier: Apache-2.0
 *
 * The storage scan. One sandbox after the other is measured: its own folders, its volumes, and what its processes hold
 * of removed files (unlinked.c). Over a limit, sk-init stops its writers and refuses uploads until there is room again.
 * A scan sees what has happened: a sandbox can pass its limit by what it writes between two scans
 * (SANDKEEP_LOCALBOX_SCAN_MS), and a reserve of free space (SANDKEEP_LOCALBOX_FREE_MB) guards the machine meanwhile. */
#include "services/localbox/localbox.h"

#include "common/log/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define GROWTH_FREE                                                                                                    \
    (16 << 20) /* an entrypoint that wrote so much, and a tenth of the limit, after the stop is stopped */

struct scan {
    uv_work_t work;
    char id[LB_ID_SIZE];
    pid_t pid;
    unsigned long long start_time;
    struct lb_volume volumes[LB_VOLUMES_MAX]; /* those with a claim */
    int count;
    int64_t limit, used;
    int64_t passed; /* the limit that was passed; 0 = none */
    const char *why;
    uint64_t took_ns;
};

static uv_timer_t scan_timer;
static bool scanning;
static char last_scanned[LB_ID_SIZE];

const char *lb_storage_mode(void)
{
    return "scan"; /* quotas by project id need a file system that was made for them; nothing is assumed */
}

static void pass(struct scan *s, int64_t used, int64_t limit, const char *why)
{
    if (limit > 0 && used > limit && s->passed == 0) {
        s->passed = limit;
        s->why = why;
    }
}

static void add_device(struct lb_unlinked *u, const char *path)
{
    struct stat st;
    if (fstatat(lb.data_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
        u->devices[u->device_count++] = st.st_dev;
}

static bool machine_is_full(void)
{
    struct statvfs fs;
    return lb.config.free_mb > 0 && fstatvfs(lb.data_fd, &fs) == 0 &&
           (uint64_t)fs.f_bavail * fs.f_frsize < (uint64_t)lb.config.free_mb << 20;
}

static void scan_work(uv_work_t *work)
{
    struct scan *s = work->data;
    uint64_t begun = uv_hrtime();
    char path[LB_CLAIM_SIZE + 64];
    static const char *const inner[] = {"tmp", "home", "workspace"};
    struct lb_unlinked unlinked = {.volumes = s->volumes, .volume_count = s->count};
    int64_t own = 0;
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "sandboxes/%s/%s", s->id, inner[i]);
        own += lb_tree_bytes(lb.data_fd, path);
    }
    add_device(&unlinked, path);
    for (int i = 0; i < s->count; i++) {
        snprintf(path, sizeof(path), "volumes/%s", s->volumes[i].claim);
        add_device(&unlinked, path);
    }
    lb_unlinked_scan(s->id, s->pid, s->start_time, &unlinked);
    own += unlinked.other;
    s->used = own;
    for (int i = 0; i < s->count; i++) {
        snprintf(path, sizeof(path), "volumes/%s", s->volumes[i].claim);
        int64_t used = lb_tree_bytes(lb.data_fd, path) + unlinked.bytes[i];
        pass(s, used, lb_volume_limit(s->volumes[i].claim), "a volume's size");
        s->used += used;
    }
    if (s->limit > 0)
        pass(s, s->used, s->limit, "the sandbox's disk");
    else
        pass(s, own, lb.config.scratch_mb << 20, "private folders (SANDKEEP_LOCALBOX_SCRATCH_MB)");
    if (unlinked.too_many)
        pass(s, s->used + 1, 1, "too many open files to look at");
    if (machine_is_full())
        pass(s, s->used + 1, 1, "the machine's disk (SANDKEEP_LOCALBOX_FREE_MB)");
    s->took_ns = uv_hrtime() - begun;
}

/* Tells init. The entrypoint is spared at first, since its end is the sandbox's; not when it goes on writing. */
static void tell(struct lb_box *box, const struct scan *s)
{
    bool over = s->passed > 0, again = over && box->storage_full;
    bool entrypoint_too = again && s->used > box->storage_base + s->passed / 10 + GROWTH_FREE;
    if (over && (!again || entrypoint_too)) {
        lb_count(LB_COUNT_STORAGE_STOPS);
        SK_LOG_WARN("storage limit passed, writers are stopped", SK_F("providerId", box->id), SK_F("limit", s->why),
                    SK_FI("bytes", s->used), SK_FB("entrypointToo", entrypoint_too));
        box->storage_base = s->used;
    }
    box->storage_full = over;
    lb_link_order(box,
                  !over            ? "{\"op\":\"storage\",\"full\":false}\n"
                  : entrypoint_too ? "{\"op\":\"storage\",\"full\":true,\"entrypoint_too\":true}\n"
                                   : "{\"op\":\"storage\",\"full\":true}\n",
                  NULL, NULL);
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
    if (box != NULL && box->link != NULL && (s->passed > 0 || box->storage_full))
        tell(box, s);
    /* Scanning may take a tenth of one processor at most, however large the trees are. */
    uint64_t rest = s->took_ns / 1000000 * 9;
    int running = 0;
    for (struct lb_box *b = lb.boxes; b != NULL; b = b->next)
        running += b->state == LB_RUNNING;
    uint64_t share = (uint64_t)lb.config.scan_ms / (uint64_t)(running > 0 ? running : 1);
    free(s);
    next_scan(share > rest ? share : rest);
}

/* Round robin over the running sandboxes that any limit is for. */
static struct lb_box *choose(void)
{
    bool seen = last_scanned[0] == '\0', all = lb.config.scratch_mb > 0 || lb.config.free_mb > 0;
    struct lb_box *first = NULL;
    for (struct lb_box *box = lb.boxes; box != NULL; box = box->next) {
        bool wanted = box->state == LB_RUNNING && (all || box->disk_bytes > 0 || box->volume_count > 0);
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
    s->pid = box->pid;
    s->start_time = box->start_time;
    s->limit = box->disk_bytes;
    for (int i = 0; i < box->volume_count; i++) {
        if (box->volumes[i].claim[0] != '\0')
            s->volumes[s->count++] = box->volumes[i];
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
