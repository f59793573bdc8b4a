/* SPDX-License-Identifier: Apache-2.0
 *
 * Files without a name. A file that is removed while it is open, or mapped, keeps its blocks, and no walk through the
 * folders finds it: a user could fill the disk with one. So the descriptors and mappings of a sandbox's processes are
 * looked at. As an ordinary user those of processes that are not dumpable cannot be read; the reserve of free space
 * (SANDKEEP_LOCALBOX_FREE_MB) stands behind that, as behind descriptors that are under way in a socket. */
#include "services/localbox/localbox.h"
#include "services/localbox/mountinfo.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define OWN_FOLDERS 3

/* Where the user can write besides the volumes. Everything else that is mounted is the machine's: a library of its /usr
 * that an upgrade replaced is removed and mapped, too, and nobody's fault. */
static const char *const own_folders[OWN_FOLDERS] = {"/tmp", LB_HOME, "/workspace"};

struct walk {
    struct lb_unlinked *u;
    unsigned long long mounts[LB_VOLUMES_MAX + OWN_FOLDERS]; /* ids, volumes first; 0 = unknown */
    uint64_t *seen;                                          /* hashed: device and inode, open addressing; 0 = free */
    size_t seen_count, seen_room;                            /* room is a power of two */
    int looked;
};

static uint64_t mix(dev_t device, uint64_t inode)
{
    uint64_t h = inode * 0x9e3779b97f4a7c15u ^ (uint64_t)device * 0xff51afd7ed558ccdu;
    h ^= h >> 29;
    return h != 0 ? h : 1;
}

static bool place(uint64_t *table, size_t room, uint64_t h)
{
    size_t at = h & (room - 1);
    while (table[at] != 0 && table[at] != h)
        at = (at + 1) & (room - 1);
    bool fresh = table[at] == 0;
    table[at] = h;
    return fresh;
}

/* True the first time. Without memory everything is new: counted too often is safe. */
static bool first_time(struct walk *w, dev_t device, uint64_t inode)
{
    if (w->seen_count * 2 >= w->seen_room) {
        size_t room = w->seen_room == 0 ? 256 : w->seen_room * 2;
        uint64_t *grown = calloc(room, sizeof(*grown));
        if (grown == NULL)
            return true;
        for (size_t i = 0; i < w->seen_room; i++) {
            if (w->seen[i] != 0)
                place(grown, room, w->seen[i]);
        }
        free(w->seen);
        w->seen = grown;
        w->seen_room = room;
    }
    bool fresh = place(w->seen, w->seen_room, mix(device, inode));
    w->seen_count += fresh;
    return fresh;
}

static bool counts(const struct lb_unlinked *u, dev_t device)
{
    for (int i = 0; i < u->device_count; i++) {
        if (u->devices[i] == device)
            return true;
    }
    return false;
}

static const char *mount_point(const struct walk *w, int i)
{
    return i < w->u->volume_count ? w->u->volumes[i].mount : own_folders[i - w->u->volume_count];
}

static void add(struct walk *w, int i, int64_t bytes)
{
    if (i < w->u->volume_count)
        w->u->bytes[i] += bytes;
    else
        w->u->other += bytes;
}

/* The user's mount with this id; one of his own folders when the kernel does not tell ids (before 5.8); -1 = not his.
 */
static int mount_of(const struct walk *w, const struct statx *x)
{
    if ((x->stx_mask & STATX_MNT_ID) == 0)
        return w->u->volume_count;
    for (int i = 0; i < w->u->volume_count + OWN_FOLDERS; i++) {
        if (w->mounts[i] == x->stx_mnt_id)
            return i;
    }
    return -1;
}

/* The user's mount that a path of the sandbox lies in: the longest that fits. */
static int mount_above(const struct walk *w, const char *path)
{
    int best = -1;
    size_t longest = 0;
    for (int i = 0; i < w->u->volume_count + OWN_FOLDERS; i++) {
        const char *point = mount_point(w, i);
        size_t n = strlen(point);
        if (n > longest && strncmp(path, point, n) == 0 && path[n] == '/') {
            best = i;
            longest = n;
        }
    }
    return best;
}

/* Looks through a magic link at what it stands for. False = it cannot be looked at. */
static bool look(struct walk *w, int dir, const char *name)
{
    struct statx x;
    if (statx(dir, name, AT_STATX_DONT_SYNC, STATX_TYPE | STATX_NLINK | STATX_INO | STATX_BLOCKS | STATX_MNT_ID, &x) !=
        0)
        return errno != EPERM && errno != EACCES;
    dev_t device = makedev(x.stx_dev_major, x.stx_dev_minor);
    int mount = S_ISREG(x.stx_mode) && x.stx_nlink == 0 && counts(w->u, device) ? mount_of(w, &x) : -1;
    if (mount >= 0 && first_time(w, device, x.stx_ino))
        add(w, mount, (int64_t)x.stx_blocks * 512);
    return true;
}

static bool enough(struct walk *w)
{
    w->u->too_many = w->u->too_many || ++w->looked > LB_OPEN_FILES_MAX;
    return w->u->too_many;
}

static void look_at_descriptors(struct walk *w, pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    struct dirent *entry;
    while (d != NULL && !enough(w) && (entry = readdir(d)) != NULL) {
        if (entry->d_name[0] != '.')
            look(w, dirfd(d), entry->d_name);
    }
    if (d != NULL)
        closedir(d);
}

/* Of the mappings only those that the kernel calls deleted. Where their link cannot be followed (an ordinary user), the
 * mapping's length stands for the file: not more than that was written through it. */
static void look_at_mappings(struct walk *w, pid_t pid)
{
    static const char deleted[] = " (deleted)\n";
    char path[96], *line = NULL;
    size_t size = 0;
    ssize_t n;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && !enough(w) && (n = getline(&line, &size, file)) > 0) {
        unsigned long long from, to, inode;
        unsigned major_id, minor_id;
        if (n < (ssize_t)sizeof(deleted) || strcmp(line + n - (sizeof(deleted) - 1), deleted) != 0 ||
            sscanf(line, "%llx-%llx %*s %*x %x:%x %llu", &from, &to, &major_id, &minor_id, &inode) != 5 || inode == 0)
            continue;
        snprintf(path, sizeof(path), "/proc/%d/map_files/%llx-%llx", (int)pid, from, to);
        const char *name = strchr(line, '/');
        if (look(w, AT_FDCWD, path) || name == NULL)
            continue;
        dev_t device = makedev(major_id, minor_id);
        int mount = counts(w->u, device) ? mount_above(w, name) : -1;
        if (mount >= 0 && first_time(w, device, inode))
            add(w, mount, (int64_t)(to - from));
    }
    free(line);
    if (file != NULL)
        fclose(file);
}

static void find_mounts(struct walk *w, pid_t init)
{
    char path[64], *line = NULL;
    size_t size = 0;
    snprintf(path, sizeof(path), "/proc/%d/mountinfo", (int)init);
    FILE *file = fopen(path, "re");
    while (file != NULL && getline(&line, &size, file) > 0) {
        unsigned long long id;
        int at = 0;
        if (sscanf(line, "%llu %*d %*s %*s %n", &id, &at) != 1 || at == 0)
            continue;
        char *point = line + at;
        point[strcspn(point, " ")] = '\0';
        lb_mount_unescape(point);
        for (int i = 0; i < w->u->volume_count + OWN_FOLDERS; i++) {
            if (strcmp(mount_point(w, i), point) == 0)
                w->mounts[i] = id;
        }
    }
    free(line);
    if (file != NULL)
        fclose(file);
}

/* Without a control group to ask: whoever is in init's own process namespace. */
static void look_at_namespace(struct walk *w, pid_t init)
{
    char path[300], wanted[64], other[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)init);
    ssize_t n = readlink(path, wanted, sizeof(wanted));
    DIR *d = n > 0 ? opendir("/proc") : NULL;
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)pid);
        if (pid > 1 && readlink(path, other, sizeof(other)) == n && memcmp(other, wanted, (size_t)n) == 0) {
            look_at_descriptors(w, pid);
            look_at_mappings(w, pid);
        }
    }
    if (d != NULL)
        closedir(d);
}

void lb_unlinked_scan(const char *id, pid_t init, unsigned long long start_time, struct lb_unlinked *u)
{
    struct walk w = {.u = u};
    pid_t *pids = NULL;
    size_t count = 0;
    if (!lb_process_matches(init, start_time))
        return;
    find_mounts(&w, init);
    if (lb_cgroup_members(id, &pids, &count) == 0) {
        for (size_t i = 0; i < count; i++) {
            look_at_descriptors(&w, pids[i]);
            look_at_mappings(&w, pids[i]);
        }
    } else {
        look_at_namespace(&w, init);
    }
    free(pids);
    free(w.seen);
}
