/* SPDX-License-Identifier: Apache-2.0
 *
 * Making, locking and sweeping of root folders. */
#include "services/code/root.h"

#include "common/base/error.h"
#include "services/code/selftest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX    "sandkeep-code-"
#define TRIES_MAX 5 /* another launcher's sweep can meet a folder before it is locked */

/* The lock of a folder whose launcher is gone; -1 when it lives. */
static int take_lock(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool is_dead(const char *pid)
{
    long number = strtol(pid, NULL, 10);

    return number > 0 && kill((pid_t)number, 0) != 0 && errno == ESRCH;
}

/* Folders that are empty and not locked, and the file of a self-test whose process is gone. */
static void sweep(const char *run_dir)
{
    DIR *dir = opendir(run_dir);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        int lock;

        if (strncmp(entry->d_name, CODE_CANARY_PREFIX, strlen(CODE_CANARY_PREFIX)) == 0) {
            if (is_dead(entry->d_name + strlen(CODE_CANARY_PREFIX)))
                unlinkat(dirfd(dir), entry->d_name, 0);
        } else if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) == 0 &&
                   (lock = take_lock(dirfd(dir), entry->d_name)) >= 0) {
            unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
            close(lock);
        }
    }
    if (dir != NULL)
        closedir(dir);
}

/* Whether the folder is there and nobody else's: only then it may be used. */
static bool is_ours(const struct code_root *root)
{
    struct stat now;

    return root->lock >= 0 && fstat(root->lock, &now) == 0 && now.st_nlink > 0;
}

int code_root_make(const char *run_dir, struct code_root *out, struct sk_error *err)
{
    sweep(run_dir);
    for (int i = 0; i < TRIES_MAX; i++) {
        int length = snprintf(out->path, sizeof(out->path), "%s/" PREFIX "%d-XXXXXX", run_dir, (int)getpid());

        out->lock = -1;
        if (length >= (int)sizeof(out->path))
            errno = ENAMETOOLONG;
        if (length >= (int)sizeof(out->path) || mkdtemp(out->path) == NULL) {
            out->path[0] = '\0';
            break;
        }
        out->lock = take_lock(AT_FDCWD, out->path);
        if (is_ours(out) && fchmod(out->lock, 0755) == 0)
            return 0;
        code_root_remove(out);
    }
    return sk_fail(err, SK_ERR_INTERNAL, "cannot make a folder in %s: %s", run_dir, strerror(errno));
}

void code_root_remove(struct code_root *root)
{
    int error = errno; /* of what failed before */

    if (root->path[0] != '\0')
        rmdir(root->path);
    if (root->lock >= 0)
        close(root->lock);
    root->path[0] = '\0';
    root->lock = -1;
    errno = error;
}
