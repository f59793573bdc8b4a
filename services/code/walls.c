/* SPDX-License-Identifier: Apache-2.0
 *
 * The walls around a zygote: namespaces, a root of its own with nothing in it that is not wanted, no capability that it
 * does not use. All of it is inherited by its tasks, which build theirs on top (task.c). */
#include "services/code/walls.h"

#include "common/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BIND_FLAGS (MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)

int64_t code_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

bool code_walls_have_tmp(const struct code_walls *walls)
{
    return walls->kind->tmp && walls->level == CODE_LEVEL_FULL;
}

bool code_fds_keep(int *keep, size_t count)
{
    unsigned from = 3;

    for (size_t i = 1; i < count; i++) {
        for (size_t k = i; k > 0 && keep[k - 1] > keep[k]; k--) {
            int swap = keep[k];

            keep[k] = keep[k - 1];
            keep[k - 1] = swap;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (keep[i] < (int)from)
            continue; /* absent, a standard one, or twice in the list */
        if (keep[i] > (int)from && syscall(SYS_close_range, from, (unsigned)keep[i] - 1, 0) != 0)
            return false;
        from = (unsigned)keep[i] + 1;
    }
    return syscall(SYS_close_range, from, ~0u, 0) == 0;
}

bool code_uid_alive(uint32_t uid)
{
    errno = 0;
    return getpriority(PRIO_USER, uid) != -1 || errno != ESRCH;
}

void code_uid_kill(uint32_t uid)
{
    pid_t pid = fork();

    if (pid == 0) {
        if (setgroups(0, NULL) == 0 && setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0)
            kill(-1, SIGKILL);
        _exit(0);
    }
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* mkdir -p of the folder that shall hold `path`, below the current directory. */
static bool make_parents(const char *path)
{
    char part[CODE_PATH_MAX];

    for (const char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
        if (mkdir(part, 0755) != 0 && errno != EEXIST)
            return false;
    }
    return true;
}

/* Shows one file or folder of the machine, read-only, at its own place below the current directory. */
static bool show(const char *source)
{
    const char *target = source + strspn(source, "/");
    struct stat info;
    int fd;

    if (stat(source, &info) != 0)
        return errno == ENOENT || errno == ENOTDIR;
    if (!make_parents(target))
        return false;
    if (S_ISDIR(info.st_mode)) {
        if (mkdir(target, 0755) != 0 && errno != EEXIST)
            return false;
    } else {
        fd = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0)
            return false;
        close(fd);
    }
    return mount(source, target, NULL, MS_BIND, NULL) == 0 && mount(NULL, target, NULL, BIND_FLAGS, NULL) == 0;
}

/* A /proc of our pid namespace that only its descriptor leads to. Where parts of /proc are masked, as in an ordinary
 * pod, the kernel allows no new one in a user namespace: then the one that is there, which knows other pids. */
static void open_proc(struct code_walls *walls)
{
    walls->outside = mount("proc", walls->root, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0;
    walls->proc_fd = open(walls->outside ? "/proc" : walls->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (!walls->outside)
        umount2(walls->root, MNT_DETACH);
}

/* A tmpfs of our own with what the kind may read, and nothing else in it: no /proc, no /dev, no host. */
static int pivot(struct code_walls *walls, struct sk_error *err)
{
    const char *const *readable = walls->kind->readable;

    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot make mounts private: %s", strerror(errno));
    open_proc(walls);
    if (mount("tmpfs", walls->root, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=1m,nr_inodes=4096,mode=0755") !=
            0 ||
        chdir(walls->root) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot mount a root: %s", strerror(errno));
    for (int i = 0; readable != NULL && readable[i] != NULL; i++) {
        if (!show(readable[i]))
            return sk_fail(err, SK_ERR_INTERNAL, "cannot show %s in the root: %s", readable[i], strerror(errno));
    }
    if (walls->kind->tmp && (mkdir(&CODE_TMP_PARENT[1], 0755) != 0 || mkdir(&CODE_TMP_DIR[1], 0755) != 0))
        return sk_fail(err, SK_ERR_INTERNAL, "cannot make %s in the root: %s", CODE_TMP_DIR, strerror(errno));
    /* The old root comes to lie on top of the new one, at the same place, and is taken off. */
    if (syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot change the root: %s", strerror(errno));
    if (mount(NULL, "/", NULL, BIND_FLAGS, NULL) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot make the root read-only: %s", strerror(errno));
    return 0;
}

/* Keeps what a zygote uses; the bounding set as well, so that nothing brings the others back. */
static int drop_capabilities(const struct code_walls *walls, struct sk_error *err)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    uint64_t keep = 1ull << CAP_SETUID | 1ull << CAP_SETGID | 1ull << CAP_KILL;

    if (walls->level == CODE_LEVEL_SHARED_UID)
        keep = 0; /* tasks keep the uid, so what is kept here would be theirs */
    if (code_walls_have_tmp(walls))
        keep |= 1ull << CAP_SYS_ADMIN;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    for (int i = 0; prctl(PR_CAPBSET_READ, i, 0, 0, 0) >= 0; i++) {
        if ((keep & 1ull << i) == 0 && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) != 0 && walls->level == CODE_LEVEL_FULL)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot drop capability %d: %s", i, strerror(errno));
    }
    if (syscall(SYS_capget, &head, data) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot read capabilities: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        data[i].permitted &= (uint32_t)(keep >> 32 * i);
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    if (syscall(SYS_capset, &head, data) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot drop capabilities: %s", strerror(errno));
    return 0;
}

int code_walls_zygote(struct code_walls *walls, struct sk_error *err)
{
    walls->proc_fd = -1;
    walls->outside = false;
    walls->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    walls->statm_fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (walls->null_fd < 0 || walls->statm_fd < 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot open /dev/null and /proc/self/statm: %s", strerror(errno));
    if (walls->level == CODE_LEVEL_FULL) {
        if (getpid() != 1)
            return sk_fail(err, SK_ERR_INTERNAL, "not the first process of a pid namespace");
        if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot make namespaces: %s", strerror(errno));
        if (sethostname("sandbox", 7) != 0)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot set the host name: %s", strerror(errno));
        if (pivot(walls, err) != 0)
            return -1;
    } else if (walls->level == CODE_LEVEL_CONTAINER) {
        walls->proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (chroot(walls->root) != 0 || chdir("/") != 0)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot change the root: %s", strerror(errno));
    } else {
        walls->proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    if (walls->proc_fd < 0)
        SK_LOG_WARN("no /proc: the memory of tasks is bounded by rlimits and control groups alone",
                    SK_F("runtime", walls->kind->runtime->name));
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot become undumpable: %s", strerror(errno));
    return drop_capabilities(walls, err);
}
