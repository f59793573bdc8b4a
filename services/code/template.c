/* SPDX-License-Identifier: Apache-2.0
 *
 * The template. It has the launcher's privileges and never meets a tenant's byte, nor the host. */
#include "services/code/template.h"

#include "common/log/log.h"
#include "services/code/landlock.h"
#include "services/code/pages.h"
#include "services/code/walls.h"
#include "services/code/zygote.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPEN_BEFORE_MAX 256

struct template
{
    struct code_walls walls;
    int launcher, children;
    int own_pid_namespace;
    bool open_before[OPEN_BEFORE_MAX]; /* descriptors that are not the runtime's */
};

/* Entries of a folder of numbers below /proc/self: threads, descriptors. */
static int each_number(const char *folder, int (*each)(struct template *, int number), struct template *t)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int count = 0;

    if (dir == NULL)
        return -1;
    while (count >= 0 && (entry = readdir(dir)) != NULL) {
        char *end;
        long number = strtol(entry->d_name, &end, 10);

        if (end == entry->d_name || *end != '\0' || (each != NULL && number == dirfd(dir)))
            continue;
        count = each == NULL || each(t, (int)number) == 0 ? count + 1 : -1;
    }
    closedir(dir);
    return count;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);

    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

static int note_descriptor(struct template *t, int fd)
{
    if (fd < OPEN_BEFORE_MAX)
        t->open_before[fd] = true;
    return 0;
}

/* Notes a descriptor that the runtime opened and tasks may keep. Any other is closed in them, and a fault: what holds
 * it would read and write there what has its number then. */
static int keep_descriptor(struct template *t, int fd)
{
    const char *const *keep = t->walls.kind->keep;
    char link[64], target[CODE_PATH_MAX];
    ssize_t n;

    if (fd < OPEN_BEFORE_MAX && t->open_before[fd])
        return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, target, sizeof(target) - 1);
    if (n < 0)
        return 0;
    target[n] = '\0';
    for (int i = 0; keep != NULL && keep[i] != NULL; i++) {
        if (!ends_with(target, keep[i]))
            continue;
        if (t->walls.kept_count == CODE_KEPT_MAX)
            return -1;
        t->walls.kept[t->walls.kept_count++] = fd;
        return 0;
    }
    SK_LOG_WARN("a descriptor is left open after loading", SK_F("runtime", t->walls.kind->runtime->name),
                SK_F("target", target));
    return 0;
}

static int load(struct template *t, const char *const *modules, struct sk_error *err)
{
    int threads;

    if (each_number("/proc/self/fd", note_descriptor, t) < 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot read /proc/self/fd: %s", strerror(errno));
    if (t->walls.kind->runtime->prepare(modules, err) != 0)
        return -1;
    code_pages_collapse();
    (void)code_pages_text();
    (void)code_pages_leave(t->walls.kind->unused);
    threads = each_number("/proc/self/task", NULL, t);
    if (threads != 1)
        return sk_fail(err, SK_ERR_INTERNAL, "%s has %d threads after loading: it cannot be forked",
                       t->walls.kind->runtime->name, threads);
    if (each_number("/proc/self/fd", keep_descriptor, t) < 0)
        return sk_fail(err, SK_ERR_INTERNAL, "%s leaves too many descriptors open", t->walls.kind->runtime->name);
    return code_filter_build(t->walls.kind, &t->walls.filter, err);
}

/* In a process of its own between template and zygote: only the next child of one that has unshared its pid namespace
 * goes there, and the way back is barred in a user namespace. The zygote comes to the launcher when this ends. fork()
 * and not clone(CLONE_NEWPID), so that libc's locks and thread id are right in the child. */
static _Noreturn void fork_zygote(struct template *t, struct code_message *answer, int fds[CODE_FDS_MAX])
{
    int pidfd = -1;
    pid_t pid = -1;

    if (t->walls.level != CODE_LEVEL_FULL || unshare(CLONE_NEWPID) == 0)
        pid = fork();
    if (pid == 0)
        code_zygote_run(&t->walls, fds[0], fds[1]);
    if (pid > 0)
        pidfd = (int)syscall(SYS_pidfd_open, pid, 0); /* our child and not reaped: surely this process */
    answer->u.spawned.error = pidfd < 0 ? errno : 0;
    if (!code_send(t->launcher, answer, &pidfd, pidfd >= 0 ? 1 : 0) || pidfd < 0) {
        if (pid > 0)
            kill(pid, SIGKILL); /* nobody would watch it */
    }
    _exit(EXIT_SUCCESS);
}

static void spawn(struct template *t, const struct code_message *message, int fds[CODE_FDS_MAX])
{
    struct code_message answer = {.kind = CODE_MSG_SPAWNED};
    pid_t pid;

    t->walls.uid_base = message->u.spawn.uid_base;
    t->walls.slots = message->u.spawn.slots;
    answer.u.spawned.zygote = message->u.spawn.zygote;
    pid = fork();
    if (pid == 0)
        fork_zygote(t, &answer, fds);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    if (pid > 0)
        return;
    answer.u.spawned.error = errno;
    if (!code_send(t->launcher, &answer, NULL, 0))
        _exit(EXIT_FAILURE);
}

static void setup(struct template *t, const struct code_message *message, const char *const *modules)
{
    struct code_message answer = {.kind = CODE_MSG_READY};
    struct sk_error err;

    t->walls.level = (enum code_level)message->u.setup.level;
    t->walls.cgroup_version = (int)message->u.setup.cgroup_version;
    snprintf(t->walls.cgroup, sizeof(t->walls.cgroup), "%s", message->u.setup.cgroup);
    snprintf(t->walls.root, sizeof(t->walls.root), "%s", message->u.setup.root);
    t->walls.landlock_abi = code_landlock_abi();
    if (load(t, modules, &err) != 0) {
        answer.u.ready.error = EINVAL;
        snprintf(answer.u.ready.text, sizeof(answer.u.ready.text), "%.*s", (int)sizeof(answer.u.ready.text) - 1,
                 err.message);
    }
    if (!code_send(t->launcher, &answer, NULL, 0))
        _exit(EXIT_FAILURE);
}

/* False when the launcher is gone. */
static bool read_launcher(struct template *t, const char *const *modules)
{
    struct code_message message;
    int fds[CODE_FDS_MAX];
    size_t count;

    switch (code_receive(t->launcher, &message, fds, &count)) {
    case CODE_RECEIVED:
        if (message.kind == CODE_MSG_SETUP)
            setup(t, &message, modules);
        else if (message.kind == CODE_MSG_SPAWN && count == 2)
            spawn(t, &message, fds);
        code_fds_close(fds);
        return true;
    case CODE_NOTHING:
        return true;
    case CODE_FOREIGN: /* an answer of any kind says of which build we are; what started us ends us then */
        memset(&message, 0, sizeof(message));
        message.kind = CODE_MSG_READY;
        message.u.ready.error = EPROTO;
        return code_send(t->launcher, &message, NULL, 0);
    default:
        return false;
    }
}

int code_template_run(const struct code_kind *kind, int launcher, const char *const *modules)
{
    struct template *t = calloc(1, sizeof(*t));
    struct pollfd polled = {.fd = launcher, .events = POLLIN};

    if (t == NULL)
        return EXIT_FAILURE;
    t->walls.kind = kind;
    t->launcher = launcher;
    prctl(PR_SET_NAME, "sk-template");
    do {
        polled.revents = 0;
        if (poll(&polled, 1, -1) < 0 && errno != EINTR)
            break;
    } while (polled.revents == 0 || read_launcher(t, modules));
    code_filter_free(&t->walls.filter);
    free(t);
    return EXIT_SUCCESS;
}

int code_template_main(int argc, char **argv, const struct code_kind *const *kinds, size_t count)
{
    sk_log_init("sk-code-template", SK_LOG_LEVEL_INFO);
    for (size_t i = 0; argc >= 2 && i < count; i++) {
        if (strcmp(argv[1], kinds[i]->runtime->name) == 0)
            return code_template_run(kinds[i], CODE_TEMPLATE_FD, (const char *const *)argv + 2);
    }
    SK_LOG_ERROR("unknown kind of template", SK_F("kind", argc >= 2 ? argv[1] : NULL));
    return EXIT_FAILURE;
}
