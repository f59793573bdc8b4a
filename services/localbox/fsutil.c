/* SPDX-License-Identifier: Apache-2.0
 *
 * Files and processes. Everything below the data folder may be shaped by a hostile sandbox user (links, depth, names),
 * so every step goes through a directory descriptor and never follows a link. All functions block: pool threads or
 * start. */
#include "services/localbox/localbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TREE_DEPTH_MAX 200 /* deeper folders are lifted to the trash's root first */

void lb_hex(char *out, size_t bytes)
{
    unsigned char raw[32];
    if (bytes > sizeof(raw) || getrandom(raw, bytes, 0) != (ssize_t)bytes)
        abort();
    for (size_t i = 0; i < bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
}

int lb_open_beneath(int dir, const char *path, int flags, mode_t mode)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                           .mode = mode,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof(how));
    return fd < 0 ? -errno : fd;
}

int lb_mkdir_beneath(int dir, const char *path, mode_t mode)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return mkdirat(dir, path, mode) == 0 ? 0 : errno;
    char parent[LB_PATH_SIZE];
    snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path);
    int fd = lb_open_beneath(dir, parent, O_PATH | O_DIRECTORY, 0);
    if (fd < 0)
        return -fd;
    int error = mkdirat(fd, slash + 1, mode) == 0 ? 0 : errno;
    close(fd);
    return error;
}

int lb_write_atomic(int dir, const char *folder, const char *name, const char *text, size_t len, mode_t mode)
{
    char aside[128], hex[17];
    lb_hex(hex, 8);
    snprintf(aside, sizeof(aside), ".%.60s.%s", name, hex);
    int at = lb_open_beneath(dir, folder, O_RDONLY | O_DIRECTORY, 0);
    if (at < 0)
        return -at;
    int error = 0;
    int fd = openat(at, aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        error = errno;
    for (size_t done = 0; error == 0 && done < len;) {
        ssize_t n = write(fd, text + done, len - done);
        if (n < 0)
            error = errno;
        else
            done += (size_t)n;
    }
    if (error == 0 && fdatasync(fd) != 0)
        error = errno;
    if (fd >= 0)
        close(fd);
    if (error == 0 && renameat(at, aside, at, name) != 0)
        error = errno;
    if (error == 0 && fsync(at) != 0)
        error = errno;
    if (error != 0 && fd >= 0)
        unlinkat(at, aside, 0);
    close(at);
    return error;
}

char *lb_read_file(int dir, const char *path, size_t max, size_t *len)
{
    int fd = lb_open_beneath(dir, path, O_RDONLY | O_NOFOLLOW, 0);
    char *text = fd >= 0 ? malloc(max + 1) : NULL;
    size_t n = 0;
    while (text != NULL && n < max) {
        ssize_t got = read(fd, text + n, max - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    if (fd >= 0)
        close(fd);
    if (text != NULL) {
        text[n] = '\0';
        if (len != NULL)
            *len = n;
    }
    return text;
}

/* ---- trees ---- */

static int trash_name(char *out, size_t size)
{
    char hex[33];
    lb_hex(hex, 16);
    return snprintf(out, size, "%s", hex);
}

/* Removes the children of `fd` (closed by this). Folders that lie too deep are moved to the trash's root, where a later
 * pass finds them: depth cannot exhaust the stack or the descriptors. */
static int remove_children(int fd, int trash, int depth)
{
    fchmod(fd, 0700);
    DIR *d = fdopendir(fd);
    if (d == NULL) {
        close(fd);
        return ENOMEM;
    }
    int error = 0;
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (unlinkat(dirfd(d), name, 0) == 0 || unlinkat(dirfd(d), name, AT_REMOVEDIR) == 0)
            continue;
        if (depth >= TREE_DEPTH_MAX) {
            char fresh[40];
            trash_name(fresh, sizeof(fresh));
            if (renameat(dirfd(d), name, trash, fresh) != 0)
                error = errno;
            continue;
        }
        int child = openat(dirfd(d), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child < 0 && errno == EACCES) { /* only as an ordinary user; nobody else changes this tree any more */
            fchmodat(dirfd(d), name, 0700, 0);
            child = openat(dirfd(d), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        if (child < 0) {
            if (errno != ENOENT)
                error = errno;
            continue;
        }
        int rc = remove_children(child, trash, depth + 1);
        if (rc != 0)
            error = rc;
        if (unlinkat(dirfd(d), name, AT_REMOVEDIR) != 0 && errno != ENOENT && error == 0)
            error = errno;
    }
    closedir(d);
    return error;
}

static void empty_trash_once(void)
{
    for (int pass = 0; pass < 10000; pass++) {
        int fd = lb_open_beneath(lb.data_fd, "trash", O_RDONLY | O_DIRECTORY, 0);
        int trash = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
        if (trash < 0) {
            if (fd >= 0)
                close(fd);
            return;
        }
        int error = remove_children(fd, trash, 0); /* what lay too deep comes back as a new entry: once more */
        close(trash);
        struct stat st;
        if (error != 0 || fstatat(lb.data_fd, "trash", &st, AT_SYMLINK_NOFOLLOW) != 0 || st.st_nlink <= 2)
            return;
    }
}

void lb_empty_trash(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static atomic_bool again;
    atomic_store(&again, true);
    while (atomic_load(&again) && pthread_mutex_trylock(&lock) == 0) { /* whoever empties now also takes what we left */
        while (atomic_exchange(&again, false))
            empty_trash_once();
        pthread_mutex_unlock(&lock);
    }
}

int lb_remove_tree(const char *path)
{
    char to[64] = "trash/";
    trash_name(to + 6, sizeof(to) - 6);
    const char *slash = strrchr(path, '/');
    char parent[LB_PATH_SIZE];
    snprintf(parent, sizeof(parent), "%.*s", slash != NULL ? (int)(slash - path) : 1, slash != NULL ? path : ".");
    int at = lb_open_beneath(lb.data_fd, parent, O_PATH | O_DIRECTORY, 0);
    if (at < 0)
        return at == -ENOENT ? 0 : -at;
    int error = renameat(at, slash != NULL ? slash + 1 : path, lb.data_fd, to) == 0 ? 0 : errno;
    close(at);
    return error == ENOENT ? 0 : error;
}

int lb_chown_tree(int fd, uid_t uid, gid_t gid, int depth)
{
    if (fchown(fd, uid, gid) != 0)
        return errno;
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (d == NULL) {
        if (copy >= 0)
            close(copy);
        return ENOMEM;
    }
    int error = 0;
    struct dirent *entry;
    while (error == 0 && (entry = readdir(d)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        int child = openat(dirfd(d), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child >= 0) {
            if (depth < TREE_DEPTH_MAX)
                error = lb_chown_tree(child, uid, gid, depth + 1);
            else
                error = ELOOP;
            close(child);
        } else if (fchownat(dirfd(d), entry->d_name, uid, gid, AT_SYMLINK_NOFOLLOW) != 0 && errno != ENOENT) {
            error = errno;
        }
    }
    closedir(d);
    return error;
}

static int64_t children_bytes(int fd, dev_t device, int depth)
{
    DIR *d = fdopendir(fd);
    if (d == NULL) {
        close(fd);
        return 0;
    }
    int64_t sum = 0;
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || st.st_dev != device)
            continue;
        int64_t bytes = (int64_t)st.st_blocks * 512;
        if (bytes < LB_ENTRY_BYTES)
            bytes = LB_ENTRY_BYTES;
        sum += S_ISDIR(st.st_mode) || st.st_nlink <= 1 ? bytes : bytes / (int64_t)st.st_nlink;
        if (S_ISDIR(st.st_mode) && depth < TREE_DEPTH_MAX) {
            int child = openat(dirfd(d), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (child >= 0)
                sum += children_bytes(child, device, depth + 1);
        }
    }
    closedir(d);
    return sum;
}

int64_t lb_tree_bytes(int dir, const char *path)
{
    struct stat st;
    int fd = lb_open_beneath(dir, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return 0;
    if (fstat(fd, &st) != 0) {
        close(fd);
        return 0;
    }
    return children_bytes(fd, st.st_dev, 0);
}

/* ---- processes ---- */

bool lb_process_start(pid_t pid, unsigned long long *start_time)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    char *p = strrchr(text, ')');
    char state = 0;
    return p != NULL &&
           sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
                  start_time) == 2 &&
           state != 'Z' && state != 'X';
}

bool lb_process_matches(pid_t pid, unsigned long long start_time)
{
    unsigned long long now = 0;
    return pid > 1 && lb_process_start(pid, &now) && now == start_time;
}

int64_t lb_mono_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Pool threads take signals: a SIGCHLD of another sandbox ends poll early, and must be taken neither for a time limit
 * nor for an end. */
bool lb_wait_readable(int fd, int64_t until_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (;;) {
        int64_t left = until_ms - lb_mono_ms();
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n >= 0 || errno != EINTR)
            return n > 0;
    }
}

int lb_process_kill(pid_t pid, unsigned long long start_time, int wait_ms)
{
    if (pid <= 1)
        return 0;
    /* The descriptor is taken first: when the start time matches afterwards it names the right process for good. */
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return errno == ESRCH ? 0 : errno;
    int error = 0;
    if (lb_process_matches(pid, start_time)) {
        if (syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) != 0 && errno != ESRCH)
            error = errno;
        if (error == 0 && !lb_wait_readable(fd, lb_mono_ms() + wait_ms))
            error = ETIMEDOUT;
    }
    close(fd);
    return error;
}

void lb_kill_marked(const char *id)
{
    DIR *d = opendir("/proc");
    struct dirent *entry;
    char *text = malloc(65536);
    while (d != NULL && text != NULL && (entry = readdir(d)) != NULL) {
        char path[300];
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid <= 1)
            continue;
        snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, text, 65536) : -1;
        if (fd >= 0)
            close(fd);
        /* Only our own command lines have this shape: the program first, the mark right behind it. */
        size_t program = strlen(lb.config.bwrap) + 1, mark = sizeof("--setenv") + sizeof("SANDKEEP_SANDBOX"),
               size = strlen(id) + 1;
        if (n >= (ssize_t)(program + mark + size) && memcmp(text, lb.config.bwrap, program) == 0 &&
            memcmp(text + program, "--setenv\0SANDKEEP_SANDBOX", mark) == 0 &&
            memcmp(text + program + mark, id, size) == 0)
            kill(pid, SIGKILL);
    }
    free(text);
    if (d != NULL)
        closedir(d);
}
