/* SPDX-License-Identifier: Apache-2.0
 *
 * Control groups, v2 and v1. A group is a second fence behind the rlimits: it counts what they do not (page cache of
 * /tmp, page tables, pipes). Whatever is missing is simply not there; the self-test and /health say so. */
#include "services/code/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MOUNT         "/sys/fs/cgroup"
#define PREFIX        "sandkeep-code-"
#define PROCESSES_MAX "4"

static bool put(const char *dir, const char *file, const char *text)
{
    char path[2 * CODE_PATH_MAX];
    int fd;
    bool done;

    snprintf(path, sizeof(path), "%s/%s", dir, file);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    done = write(fd, text, strlen(text)) >= 0;
    close(fd);
    return done;
}

static bool make(const char *dir)
{
    return mkdir(dir, 0755) == 0 || errno == EEXIST;
}

/* The group this process is in, as a path below the mount; "" when it cannot be told or not be seen from here. */
static void own_group(const char *controller, char *out, size_t size)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[2 * CODE_PATH_MAX];

    out[0] = '\0';
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *list = strchr(line, ':'), *path = list == NULL ? NULL : strchr(list + 1, ':');

        if (path == NULL)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (strcmp(list + 1, controller) == 0 && strcmp(path, "/") != 0)
            snprintf(out, size, "%s", path);
    }
    if (file != NULL)
        fclose(file);
}

static void remove_tree(const char *folder)
{
    DIR *dir = folder[0] == '\0' ? NULL : opendir(folder);
    struct dirent *entry;

    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_type == DT_DIR && entry->d_name[0] == 'u')
            unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
    }
    closedir(dir);
    rmdir(folder);
}

/* Groups of launchers that were killed: they are named after pids that nobody has. */
static void sweep(const char *parent)
{
    DIR *dir = opendir(parent);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char folder[2 * CODE_PATH_MAX + 64], *end;
        long pid;

        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0)
            continue;
        pid = strtol(entry->d_name + strlen(PREFIX), &end, 10);
        if (pid <= 0 || *end != '\0' || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
            continue;
        snprintf(folder, sizeof(folder), "%s/%s", parent, entry->d_name);
        remove_tree(folder);
    }
    if (dir != NULL)
        closedir(dir);
}

static bool prepare_v2(struct code_cgroup *out, const char *tag)
{
    char own[128], parent[CODE_PATH_MAX], leaf[CODE_PATH_MAX + 16];
    struct stat info;

    own_group("", own, sizeof(own));
    snprintf(parent, sizeof(parent), MOUNT "%s", own);
    if (stat(parent, &info) != 0)
        snprintf(parent, sizeof(parent), MOUNT);
    if (!put(parent, "cgroup.subtree_control", "+memory +pids")) {
        /* A group with processes of its own cannot have controlled children: they move into a leaf first. */
        snprintf(leaf, sizeof(leaf), "%s/sandkeep-code", parent);
        if (errno != EBUSY || !make(leaf) || !put(leaf, "cgroup.procs", "0") ||
            !put(parent, "cgroup.subtree_control", "+memory +pids"))
            return false;
    }
    if (snprintf(out->memory, sizeof(out->memory), "%s/" PREFIX "%s", parent, tag) >= (int)sizeof(out->memory))
        return false;
    sweep(parent);
    return make(out->memory) && put(out->memory, "cgroup.subtree_control", "+memory +pids");
}

static bool prepare_v1(struct code_cgroup *out, const char *tag)
{
    static const char *const controllers[] = {"memory", "pids"};
    char *const folders[] = {out->memory, out->pids};

    for (int i = 0; i < 2; i++) {
        char own[128], parent[CODE_PATH_MAX];
        struct stat info;

        own_group(controllers[i], own, sizeof(own));
        snprintf(parent, sizeof(parent), MOUNT "/%s%s", controllers[i], own);
        if (stat(parent, &info) != 0)
            snprintf(parent, sizeof(parent), MOUNT "/%s", controllers[i]);
        sweep(parent);
        if (snprintf(folders[i], CODE_PATH_MAX, "%s/" PREFIX "%s", parent, tag) >= CODE_PATH_MAX || !make(folders[i]))
            folders[i][0] = '\0';
    }
    if (out->memory[0] != '\0')
        put(out->memory, "memory.use_hierarchy", "1");
    return out->memory[0] != '\0';
}

void code_cgroup_prepare(struct code_cgroup *out, const char *tag)
{
    struct statfs fs;

    memset(out, 0, sizeof(*out));
    if (statfs(MOUNT, &fs) != 0)
        return;
    if (fs.f_type == CGROUP2_SUPER_MAGIC)
        out->version = prepare_v2(out, tag) ? 2 : 0;
    else
        out->version = prepare_v1(out, tag) ? 1 : 0;
}

void code_cgroup_remove(const struct code_cgroup *group)
{
    remove_tree(group->memory);
    remove_tree(group->pids);
}

static int open_in(const char *dir, const char *file, int flags)
{
    char path[2 * CODE_PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir, file);
    return open(path, flags | O_CLOEXEC);
}

static int64_t oom_count(int version, int fd)
{
    char text[512];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    const char *at;

    if (n <= 0)
        return 0;
    text[n] = '\0';
    at = strstr(text, version == 2 ? "oom_kill " : "\noom_kill ");
    return at == NULL ? 0 : strtoll(strchr(at, ' ') + 1, NULL, 10);
}

/* The v1 folder for processes is named after that for memory: same path below another controller's mount. It is only a
 * comfort behind RLIMIT_NPROC and the filter, so it may be missing. */
static int join_pids_v1(const char *memory, unsigned uid)
{
    char folder[2 * CODE_PATH_MAX], own[128];
    const char *name = strrchr(memory, '/');
    struct stat info;
    int fd;

    own_group("pids", own, sizeof(own));
    snprintf(folder, sizeof(folder), MOUNT "/pids%s%s", own, name);
    if (stat(folder, &info) != 0)
        snprintf(folder, sizeof(folder), MOUNT "/pids%s", name);
    snprintf(folder + strlen(folder), sizeof(folder) - strlen(folder), "/u%u", uid);
    if (!make(folder) || !put(folder, "pids.max", PROCESSES_MAX))
        return -1;
    fd = open_in(folder, "cgroup.procs", O_WRONLY);
    return fd;
}

bool code_cgroup_slot_open(int version, const char *memory, unsigned uid, struct code_cgroup_slot *out)
{
    char folder[CODE_PATH_MAX + 16];

    *out = (struct code_cgroup_slot){-1, -1, -1, -1, -1, 0};
    if (version == 0)
        return true;
    snprintf(folder, sizeof(folder), "%s/u%u", memory, uid);
    if (!make(folder))
        return false;
    out->join = open_in(folder, "cgroup.procs", O_WRONLY);
    out->limit = open_in(folder, version == 2 ? "memory.max" : "memory.limit_in_bytes", O_WRONLY);
    out->swap = open_in(folder, version == 2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes", O_WRONLY);
    out->events = open_in(folder, version == 2 ? "memory.events" : "memory.oom_control", O_RDONLY);
    if (version == 2)
        put(folder, "pids.max", PROCESSES_MAX);
    else
        out->join_pids = join_pids_v1(memory, uid);
    if (out->join < 0 || out->limit < 0)
        return false;
    out->ooms = out->events >= 0 ? oom_count(version, out->events) : 0;
    return true;
}

bool code_cgroup_slot_limit(int version, struct code_cgroup_slot *slot, int64_t bytes)
{
    char text[32];
    size_t length;
    bool done;

    if (slot->limit < 0)
        return true;
    length = (size_t)snprintf(text, sizeof(text), "%lld", (long long)bytes);
    /* v1: the limit of memory with swap can be neither below that of memory nor above when it is to be met: it is
     * lifted, both are set, in the order that is always allowed. */
    if (version == 1 && slot->swap >= 0 && pwrite(slot->swap, "-1", 2, 0) < 0)
        return false;
    done = pwrite(slot->limit, text, length, 0) >= 0;
    if (done && slot->swap >= 0)
        done = pwrite(slot->swap, version == 1 ? text : "0", version == 1 ? length : 1, 0) >= 0;
    return done;
}

bool code_cgroup_slot_join(const struct code_cgroup_slot *slot)
{
    if (slot->join_pids >= 0 && write(slot->join_pids, "0", 1) != 1)
        return false;
    return slot->join < 0 || write(slot->join, "0", 1) == 1;
}

bool code_cgroup_slot_oom(int version, struct code_cgroup_slot *slot)
{
    int64_t now, before = slot->ooms;

    if (slot->events < 0)
        return false;
    now = oom_count(version, slot->events);
    slot->ooms = now;
    return now > before;
}
