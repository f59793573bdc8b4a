/* SPDX-License-Identifier: Apache-2.0
 *
 * Control groups where they can be written: v2 first (production hosts), else the v1 controllers one by one. What is
 * not there is replaced by rlimits, and /health says which. Blocking: pool threads or start. */
#include "services/localbox/localbox.h"

#include "common/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_OF_OURS 40
#define CPU_QUOTA_MIN_US  1000 /* the kernel takes no less in a period of 100 ms: one hundredth of a processor */

enum { MEMORY, PIDS, CPU, CONTROLLERS };
static const char *const names[CONTROLLERS] = {"memory", "pids", "cpu"};
static bool usable[CONTROLLERS];
static bool v2;
static char base[CONTROLLERS][256]; /* v2: all the same */

/* v2 has one group for all controllers: it belongs to the first that can be used. */
static bool first_of_group(int controller)
{
    for (int i = 0; v2 && i < controller; i++) {
        if (usable[i])
            return false;
    }
    return usable[controller];
}

static int put(const char *dir, const char *file, const char *text)
{
    char path[896];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = write(fd, text, strlen(text)) < 0 ? errno : 0;
    close(fd);
    return error;
}

static bool make(const char *dir)
{
    return mkdir(dir, 0755) == 0 || errno == EEXIST;
}

/* Each data folder has its own parent group, so that two daemons do not meet. */
static unsigned folder_hash(void)
{
    unsigned h = 2166136261u;
    for (const char *p = lb.data_path; *p != '\0'; p++)
        h = (h ^ (unsigned char)*p) * 16777619u;
    return h;
}

static void prepare_v2(void)
{
    snprintf(base[0], sizeof(base[0]), "/sys/fs/cgroup/sandkeep-%08x", folder_hash());
    put("/sys/fs/cgroup", "cgroup.subtree_control", "+memory +pids +cpu"); /* often done already */
    if (!make(base[0]))
        return;
    for (int i = 0; i < CONTROLLERS; i++) {
        char text[32];
        snprintf(base[i], sizeof(base[i]), "/sys/fs/cgroup/sandkeep-%08x", folder_hash());
        snprintf(text, sizeof(text), "+%s", names[i]);
        char probe[384]; /* a kernel may have the controller without the limit */
        snprintf(probe, sizeof(probe), "%s/%s", base[i],
                 i == MEMORY ? "memory.max"
                 : i == PIDS ? "pids.max"
                             : "cpu.max");
        usable[i] = put(base[0], "cgroup.subtree_control", text) == 0 && access(probe, W_OK) == 0;
        v2 = v2 || usable[i];
    }
}

static void prepare_v1(void)
{
    for (int i = 0; i < CONTROLLERS; i++) {
        char probe[384];
        snprintf(base[i], sizeof(base[i]), "/sys/fs/cgroup/%s/sandkeep-%08x", names[i], folder_hash());
        snprintf(probe, sizeof(probe), "%s/%s", base[i],
                 i == MEMORY ? "memory.limit_in_bytes"
                 : i == PIDS ? "pids.max"
                             : "cpu.cfs_quota_us");
        usable[i] = make(base[i]) && access(probe, W_OK) == 0;
        if (i == MEMORY && usable[i])
            put(base[i], "memory.use_hierarchy", "1");
    }
}

void lb_cgroup_prepare(void)
{
    struct statfs fs;
    if (statfs("/sys/fs/cgroup", &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC)
        prepare_v2();
    else
        prepare_v1();
}

bool lb_cgroup_has_memory(void)
{
    return usable[MEMORY];
}

json_t *lb_cgroup_json(void)
{
    const char *group = v2 ? "cgroup-v2" : "cgroup-v1";
    return json_pack("{s:s,s:s,s:s}", "memory", usable[MEMORY] ? group : "rlimit", "processes",
                     usable[PIDS] ? group : "rlimit", "cpu", usable[CPU] ? group : "none");
}

/* The group of one sandbox below the data folder's. That one may be gone: --end-sandboxes takes it away. */
static int make_group(const char *dir, int controller)
{
    if (make(dir))
        return 0;
    if (errno == ENOENT && make(base[controller])) {
        for (int i = 0; v2 && i < CONTROLLERS; i++) {
            char text[32];
            snprintf(text, sizeof(text), "+%s", names[i]);
            if (usable[i])
                put(base[0], "cgroup.subtree_control", text);
        }
    }
    return make(dir) ? 0 : errno;
}

int lb_cgroup_make(const char *id, int64_t memory_bytes, int cpu_milli, int64_t processes, struct lb_cgroup *out)
{
    int error = 0;
    out->count = 0;
    for (int i = 0; i < CONTROLLERS; i++) {
        char dir[832], text[64];
        if (!usable[i])
            continue;
        snprintf(dir, sizeof(dir), "%s/%.36s", base[i], id);
        error = make_group(dir, i);
        if (error != 0)
            break;
        if (i == MEMORY && memory_bytes > 0) {
            snprintf(text, sizeof(text), "%lld", (long long)memory_bytes);
            error = put(dir, v2 ? "memory.max" : "memory.limit_in_bytes", text);
            if (v2) /* swap is not counted everywhere: where it is not, these are not there */
                put(dir, "memory.swap.max", "0");
            else
                put(dir, "memory.memsw.limit_in_bytes", text);
        } else if (i == PIDS) {
            /* Behind sk-init's own limit (SK_INIT_PROCESS_RESERVE and bwrap's outer half included), for processes whose
             * rlimit does not hold. */
            snprintf(text, sizeof(text), "%lld", (long long)processes + PROCESSES_OF_OURS);
            error = put(dir, "pids.max", text);
        } else if (i == CPU && cpu_milli > 0) {
            int64_t quota_us = (int64_t)cpu_milli * 100;
            snprintf(text, sizeof(text), v2 ? "%lld 100000" : "%lld",
                     (long long)(quota_us < CPU_QUOTA_MIN_US ? CPU_QUOTA_MIN_US : quota_us));
            error = put(dir, v2 ? "cpu.max" : "cpu.cfs_quota_us", text);
        }
        if (error != 0)
            break;
        if (!v2 || out->count == 0) {
            /* A thread that moves itself ("0" to v1's tasks) skips the kernel's lock over all forks, which costs 10 ms
             * and more; the child has one thread, so that is the whole process. v2 knows this only for threaded groups.
             */
            snprintf(out->procs[out->count++], sizeof(out->procs[0]), "%s/%s", dir, v2 ? "cgroup.procs" : "tasks");
        }
    }
    return error;
}

int lb_cgroup_members(const char *id, pid_t **pids, size_t *count)
{
    char path[896];
    FILE *file = NULL;
    *pids = NULL;
    *count = 0;
    for (int i = 0; i < CONTROLLERS && file == NULL; i++) {
        snprintf(path, sizeof(path), "%s/%.36s/cgroup.procs", base[i], id);
        file = usable[i] ? fopen(path, "re") : NULL;
    }
    if (file == NULL)
        return ENOENT;
    int error = 0;
    size_t room = 0;
    char line[32];
    while (error == 0 && fgets(line, sizeof(line), file) != NULL) {
        if (*count == room) {
            room = room == 0 ? 64 : room * 2;
            pid_t *grown = realloc(*pids, room * sizeof(**pids));
            if (grown == NULL) {
                error = ENOMEM;
                break;
            }
            *pids = grown;
        }
        (*pids)[(*count)++] = (pid_t)strtol(line, NULL, 10);
    }
    fclose(file);
    return error;
}

void lb_cgroup_forget(void)
{
    for (int i = 0; i < CONTROLLERS; i++) {
        if (first_of_group(i))
            rmdir(base[i]);
    }
}

static void kill_members(const char *dir)
{
    char path[896], text[8192];
    if (put(dir, "cgroup.kill", "1") == 0)
        return;
    snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    for (char *p = text; *p != '\0'; p += strcspn(p, "\n"), p += *p == '\n') {
        pid_t pid = (pid_t)strtol(p, NULL, 10);
        if (pid > 1)
            kill(pid, SIGKILL);
    }
}

void lb_cgroup_remove(const char *id)
{
    for (int i = 0; i < CONTROLLERS; i++) {
        char dir[832];
        if (!first_of_group(i))
            continue;
        snprintf(dir, sizeof(dir), "%s/%.36s", base[i], id);
        for (int tries = 0; tries < 200 && rmdir(dir) != 0 && errno != ENOENT; tries++) {
            kill_members(dir);
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
    }
}
