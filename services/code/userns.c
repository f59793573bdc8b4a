/* SPDX-License-Identifier: Apache-2.0
 *
 * A user namespace for the tree. The maps are written by a child that stays outside: only from there can more than one
 * uid be given away. Whether it may is tried on a grandchild first, because the way in is one way. */
#include "services/code/userns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool write_map(pid_t pid, const char *name, unsigned own, uint32_t base, uint32_t count)
{
    char path[64], text[96];
    int fd, length;
    bool done;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    length = snprintf(text, sizeof(text), "0 %u 1\n%u %u %u\n", own, base, base, count);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    done = write(fd, text, (size_t)length) == length;
    close(fd);
    return done;
}

/* Waits for a byte on `go`, writes both maps of `pid`, exits with 0 or errno. */
static _Noreturn void map_writer(int go, pid_t pid, uid_t uid, gid_t gid, uint32_t base, uint32_t count)
{
    char byte;

    if (read(go, &byte, 1) != 1)
        _exit(ECANCELED);
    if (!write_map(pid, "gid_map", gid, base, count) || !write_map(pid, "uid_map", uid, base, count))
        _exit(errno == 0 ? EIO : errno & 0x7f);
    _exit(0);
}

/* Enters, in this very process; 0 or errno. *entered tells whether there is a way back. */
static int enter(uint32_t base, uint32_t count, bool *entered)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    pid_t self = getpid(), writer;
    int go[2], status = 0, error;

    *entered = false;
    if (pipe2(go, O_CLOEXEC) != 0)
        return errno;
    writer = fork();
    if (writer == 0) {
        close(go[1]);
        map_writer(go[0], self, uid, gid, base, count);
    }
    close(go[0]);
    if (writer < 0) {
        error = errno;
        close(go[1]);
        return error;
    }
    error = unshare(CLONE_NEWUSER) != 0 ? errno : 0;
    *entered = error == 0;
    if (error == 0 && write(go[1], "", 1) != 1)
        error = EPIPE;
    close(go[1]);
    while (waitpid(writer, &status, 0) < 0 && errno == EINTR) {
    }
    if (error == 0 && status != 0)
        error = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
    if (error == 0 && (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0))
        error = errno;
    return error;
}

int code_userns_enter(uint32_t base, uint32_t count, bool *lost, struct sk_error *err)
{
    bool entered;
    int status = 0, error;
    pid_t trial = fork();

    *lost = false;
    if (trial == 0)
        _exit(enter(base, count, &entered) & 0x7f);
    if (trial < 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot fork: %s", strerror(errno));
    while (waitpid(trial, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "no user namespace with uids %u to %u can be had: %s", base,
                       base + count - 1, strerror(WIFEXITED(status) ? WEXITSTATUS(status) : EIO));
    error = enter(base, count, &entered);
    if (error == 0)
        return 0;
    *lost = entered;
    return sk_fail(err, SK_ERR_INTERNAL, "cannot enter a user namespace: %s", strerror(error));
}
