/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting one sandbox, on a pool thread: folders, sockets, volumes, then fork, own host user, bubblewrap, sk-init.
 * As root the child first makes a private mount namespace and binds what the sandbox gets to /tmp/m0, /tmp/m1 …: the
 * unprivileged bwrap could not walk the folders that lead to it, and descriptors opened beneath the data folder cannot
 * be led astray by links. Nothing here survives a failure. */
#include "services/localbox/localbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOUNTS_MAX (LB_VOLUMES_MAX + 8)

struct bind_mount {
    char root[LB_PATH_SIZE + 256]; /* absolute */
    char rel[1024];                /* below root; "" = root itself */
    bool follow;                   /* links inside root may be followed (host volumes), never out of it */
    bool file;
    char shown[LB_PATH_SIZE + 1400]; /* what bwrap is told */
};

struct plan {
    struct lb_launch *launch;
    struct lb_box *box;
    char folder[96]; /* sandboxes/<id> */
    struct bind_mount mounts[MOUNTS_MAX];
    int mount_count;
    struct lb_args args;
    struct lb_cgroup cgroup;
    int http, control, report, config, seccomp, info_read, info_write, console, error_read, error_write;
};

static int fail(struct lb_launch *l, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int fail(struct lb_launch *l, int status, const char *code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(l->message, sizeof(l->message), fmt, args);
    va_end(args);
    l->status = status;
    l->code = code;
    return -1;
}

/* ---- folders, sockets, configuration ---- */

static int own(int dir, const char *path, uid_t uid)
{
    if (!lb.root)
        return 0;
    int fd = lb_open_beneath(dir, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return -fd;
    int error = fchown(fd, uid, uid) != 0 ? errno : 0;
    close(fd);
    return error;
}

static int make_folders(struct plan *p)
{
    int error = lb_mkdir_beneath(lb.data_fd, p->folder, 0700);
    static const char *const inner[] = {"tmp", "home", "workspace"};
    for (size_t i = 0; error == 0 && i < 3; i++) {
        char path[160];
        snprintf(path, sizeof(path), "%s/%s", p->folder, inner[i]);
        error = lb_mkdir_beneath(lb.data_fd, path, 0700);
        if (error == 0)
            error = own(lb.data_fd, path, p->box->uid);
    }
    if (error != 0)
        return fail(p->launch, 500, "DOCKER::SANDBOX_START_FAILED", "cannot make the sandbox's folders: %s",
                    strerror(error));
    return 0;
}

static int listen_at(struct plan *p, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[192];
    snprintf(path, sizeof(path), "/proc/self/fd/%d/%s/%s", lb.data_fd, p->folder, name);
    size_t len = strlen(path);
    if (len >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, len);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, 1024) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static json_t *environment(struct plan *p)
{
    json_t *env = json_pack("{s:s,s:s,s:s,s:s}", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                            "HOME", LB_HOME, "LANG", "C.UTF-8", "TERM", "xterm");
    const char *name;
    json_t *value;
    bool whole = env != NULL;
    json_object_foreach (p->launch->env, name, value) {
        if (json_is_string(value))
            whole = json_object_set(env, name, value) == 0 && whole;
    }
    if (whole)
        return env;
    json_decref(env);
    return NULL; /* no sandbox at all rather than one that lacks a variable */
}

static int make_config(struct plan *p)
{
    struct lb_box *box = p->box;
    json_t *json =
        json_pack("{s:s,s:s,s:o,s:O,s:I,s:I,s:I,s:I,s:I}", "nonce", box->nonce, "cwd", p->launch->cwd, "env",
                  environment(p), "entrypoint", box->entrypoint, "memory_bytes", (json_int_t)box->memory_bytes,
                  "processes", (json_int_t)lb.config.processes, "files", (json_int_t)lb.config.files, "data_bytes",
                  (json_int_t)(lb_cgroup_has_memory() ? 0 : box->memory_bytes), "orphan_ms",
                  (json_int_t)lb.config.orphan_seconds * 1000);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    int fd = text != NULL ? memfd_create("config", MFD_CLOEXEC) : -1;
    if (fd >= 0 && write(fd, text, strlen(text)) != (ssize_t)strlen(text)) {
        close(fd);
        fd = -1;
    }
    free(text);
    return fd;
}

static int open_files(struct plan *p)
{
    char path[160];
    int pipes[2];
    p->http = listen_at(p, "execd.sock");
    p->control = listen_at(p, "control.sock");
    snprintf(path, sizeof(path), "%s/exit.json", p->folder);
    p->report = lb_open_beneath(lb.data_fd, path, O_RDWR | O_CREAT | O_EXCL, 0600);
    snprintf(path, sizeof(path), "%s/console.log", p->folder);
    p->console = lb_open_beneath(lb.data_fd, path, O_RDWR | O_CREAT | O_EXCL | O_APPEND, 0600);
    p->config = make_config(p);
    p->seccomp = lb_seccomp_fd();
    if (pipe2(pipes, O_CLOEXEC) == 0) {
        p->info_read = pipes[0];
        p->info_write = pipes[1];
    }
    if (pipe2(pipes, O_CLOEXEC) == 0) {
        p->error_read = pipes[0];
        p->error_write = pipes[1];
    }
    if (p->http < 0 || p->control < 0 || p->report < 0 || p->console < 0 || p->config < 0 || p->seccomp < 0 ||
        p->info_read < 0 || p->error_read < 0)
        return fail(p->launch, 500, "DOCKER::SANDBOX_START_FAILED", "cannot open the sandbox's files: %s",
                    strerror(errno));
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* ---- volumes ---- */

static struct bind_mount *add_mount(struct plan *p, const char *root, const char *rel)
{
    struct bind_mount *m = &p->mounts[p->mount_count];
    snprintf(m->root, sizeof(m->root), "%s", root);
    snprintf(m->rel, sizeof(m->rel), "%s", rel);
    if (lb.root)
        snprintf(m->shown, sizeof(m->shown), "/tmp/m%d", p->mount_count);
    else
        snprintf(m->shown, sizeof(m->shown), "%s%s%s", root, *rel != '\0' ? "/" : "", rel);
    p->mount_count++;
    return m;
}

static int make_sub(int dir, const char *sub, uid_t uid)
{
    char path[1024];
    for (size_t at = 0; sub[at] != '\0';) {
        at += strcspn(sub + at, "/");
        snprintf(path, sizeof(path), "%.*s", (int)at, sub);
        int error = lb_mkdir_beneath(dir, path, 0755);
        if (error == 0)
            error = own(dir, path, uid);
        else if (error == EEXIST)
            error = 0;
        if (error != 0)
            return error;
        at += sub[at] == '/';
    }
    int fd = lb_open_beneath(dir, sub, O_PATH | O_DIRECTORY, 0); /* what was there already may be a link or a file */
    if (fd < 0)
        return -fd;
    close(fd);
    return 0;
}

/* What the contents of the volume, not this machine, are to blame for: the caller's mistake. */
static bool sub_is_wrong(int error)
{
    return error == ELOOP || error == EXDEV || error == ENOTDIR || error == ENOENT || error == ENAMETOOLONG;
}

static int fail_sub(struct plan *p, const char *sub)
{
    return fail(p->launch, 400, "VOLUME::INVALID_SUB_PATH",
                "subPath %s: a link, something that is no folder, or nothing is in its way", sub);
}

static int prepare_claim(struct plan *p, struct lb_volume *v)
{
    char rel[LB_CLAIM_SIZE + 16];
    struct stat st;
    int error = 0;
    if (lb_volume_stat(v->claim, &st) != 0) {
        if (!v->create)
            return fail(p->launch, 400, "VOLUME::PVC_NOT_FOUND", "there is no volume %s", v->claim);
        error = lb_volume_make(v->claim, &v->created);
    }
    snprintf(rel, sizeof(rel), "volumes/%s", v->claim);
    int fd = error == 0 ? lb_open_beneath(lb.data_fd, rel, O_RDONLY | O_DIRECTORY, 0) : -error;
    if (fd >= 0) {
        if (lb.root && (fstat(fd, &st) != 0 || st.st_uid != p->box->uid))
            error = lb_chown_tree(fd, p->box->uid, p->box->uid, 0);
        int sub_error = error == 0 && v->sub[0] != '\0' ? make_sub(fd, v->sub, p->box->uid) : 0;
        close(fd);
        if (sub_is_wrong(sub_error))
            return fail_sub(p, v->sub);
        error = error != 0 ? error : sub_error;
    } else {
        error = -fd;
    }
    if (error != 0)
        return fail(p->launch, 500, "VOLUME::MOUNT_FAILED", "volume %s: %s", v->claim, strerror(error));
    char root[LB_PATH_SIZE];
    if (snprintf(root, sizeof(root), "%s/volumes/%s", lb.data_path, v->claim) >= (int)sizeof(root))
        return fail(p->launch, 500, "VOLUME::MOUNT_FAILED", "the data folder's name is too long");
    add_mount(p, root, v->sub);
    return 0;
}

/* Also called in the child: nothing but what is safe after fork. */
static int open_mount(const struct bind_mount *m)
{
    int root = open(m->root, O_PATH | O_CLOEXEC | (m->follow ? 0 : O_NOFOLLOW));
    if (root < 0 || m->rel[0] == '\0')
        return root;
    struct open_how how = {.flags = O_PATH | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | (m->follow ? 0u : RESOLVE_NO_SYMLINKS)};
    int fd = (int)syscall(SYS_openat2, root, m->rel, &how, sizeof(how));
    int error = errno;
    close(root);
    errno = error;
    return fd;
}

static int prepare_host(struct plan *p, struct lb_volume *v)
{
    struct stat st;
    if (stat(v->host, &st) != 0) {
        if (errno != ENOENT || mkdir(v->host, 0755) != 0)
            return fail(p->launch, 400, "VOLUME::HOST_PATH_INVALID", "%s: %s", v->host, strerror(errno));
        if (lb.root && chown(v->host, p->box->uid, p->box->uid) != 0)
            return fail(p->launch, 500, "VOLUME::MOUNT_FAILED", "%s: %s", v->host, strerror(errno));
    }
    struct bind_mount *m = add_mount(p, v->host, v->sub);
    m->follow = true;
    int fd = open_mount(m);
    if (fd < 0 || fstat(fd, &st) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        if (v->sub[0] != '\0' && sub_is_wrong(error))
            return fail_sub(p, v->sub);
        return fail(p->launch, 500, "VOLUME::MOUNT_FAILED", "%s: %s", v->host, strerror(error));
    }
    m->file = !S_ISDIR(st.st_mode);
    close(fd);
    return 0;
}

/* ---- the command line ---- */

static void bind_to(struct plan *p, const char *how, const char *from, const char *to)
{
    lb_arg(&p->args, "%s", how);
    lb_arg(&p->args, "%s", from);
    lb_arg(&p->args, "%s", to);
}

static void plain(struct plan *p, const char *const *words)
{
    for (; *words != NULL; words++)
        lb_arg(&p->args, "%s", *words);
}

static int build(struct plan *p)
{
    struct lb_launch *l = p->launch;
    char root[LB_PATH_SIZE + 256];
    plain(p, (const char *const[]){lb.config.bwrap,
                                   "--setenv",
                                   "SANDKEEP_SANDBOX",
                                   p->box->id, /* the mark of lb_kill_marked; cleared below */
                                   "--unshare-user",
                                   "--unshare-ipc",
                                   "--unshare-pid",
                                   "--unshare-uts",
                                   "--unshare-cgroup-try",
                                   "--disable-userns",
                                   "--new-session",
                                   "--as-pid-1",
                                   "--clearenv",
                                   "--cap-drop",
                                   "ALL",
                                   "--hostname",
                                   "sandbox",
                                   "--uid",
                                   "1000",
                                   "--gid",
                                   "1000",
                                   NULL});
    if (!lb.net_host)
        lb_arg(&p->args, "--unshare-net");
    snprintf(root, sizeof(root), "%s/etc", lb.data_path);
    const char *etc = add_mount(p, root, "")->shown;
    if (l->root_image) {
        const char *shown = add_mount(p, l->image_root, "")->shown;
        lb_rootfs_args(&p->args, l->image_root, shown, etc);
    } else {
        lb_rootfs_args(&p->args, NULL, NULL, etc);
    }
    plain(p, (const char *const[]){"--proc", "/proc", NULL});
    snprintf(root, sizeof(root), "%s/masks/empty", lb.data_path);
    struct bind_mount *mask = add_mount(p, root, "");
    mask->file = true;
    /* Each bind makes bwrap read the whole mount table: only what an ordinary user could read is worth one. */
    static const char *const masked[] = {"/proc/kallsyms", "/proc/keys", "/proc/timer_list", "/proc/cmdline"};
    for (size_t i = 0; i < sizeof(masked) / sizeof(masked[0]); i++) {
        if (access(masked[i], F_OK) == 0)
            bind_to(p, "--ro-bind", mask->shown, masked[i]);
    }
    char shm[32];
    snprintf(shm, sizeof(shm), "%lld", (long long)lb.config.shm_mb << 20);
    plain(p, (const char *const[]){"--remount-ro", "/proc", "--dev", "/dev", "--size", shm, "--tmpfs", "/dev/shm",
                                   "--remount-ro", "/dev", "--dir", "/run", "--dir", "/var", "--symlink", "/tmp",
                                   "/var/tmp", NULL});
    static const char *const inner[3][2] = {{"tmp", "/tmp"}, {"home", LB_HOME}, {"workspace", "/workspace"}};
    bool own_workspace = true;
    for (int i = 0; i < p->box->volume_count; i++)
        own_workspace = own_workspace && strcmp(p->box->volumes[i].mount, "/workspace") != 0;
    for (int i = 0; i < (own_workspace ? 3 : 2); i++) {
        if (snprintf(root, sizeof(root), "%s/%s/%s", lb.data_path, p->folder, inner[i][0]) >= (int)sizeof(root))
            return fail(l, 500, "DOCKER::SANDBOX_START_FAILED", "the data folder's name is too long");
        bind_to(p, "--bind", add_mount(p, root, "")->shown, inner[i][1]);
    }
    for (int i = 0; i < p->box->volume_count; i++) {
        struct lb_volume *v = &p->box->volumes[i];
        int at = p->mount_count;
        if ((v->claim[0] != '\0' ? prepare_claim(p, v) : prepare_host(p, v)) != 0)
            return -1;
        bind_to(p, v->read_only ? "--ro-bind" : "--bind", p->mounts[at].shown, v->mount);
    }
    struct bind_mount *init = add_mount(p, lb.init_path, "");
    init->file = true;
    bind_to(p, "--ro-bind", init->shown, LB_INIT_INSIDE);
    plain(p, (const char *const[]){"--remount-ro", "/", "--chdir", "/", "--info-fd", "8", "--seccomp", "7", "--",
                                   LB_INIT_INSIDE, NULL});
    if (p->args.failed)
        return fail(l, 500, "DOCKER::SANDBOX_START_FAILED", "out of memory");
    p->args.items[p->args.count] = NULL;
    return 0;
}

/* ---- the child: only calls that are safe after fork in a threaded process ---- */

static void child_fail(int fd, const char *what)
{
    char text[160];
    const char *reason = strerrorname_np(errno);
    size_t n = 0;
    for (const char *s = what; *s != '\0' && n < 100; s++)
        text[n++] = *s;
    text[n++] = ' ';
    for (const char *s = reason != NULL ? reason : "?"; *s != '\0' && n < 150; s++)
        text[n++] = *s;
    if (write(fd, text, n) < 0)
        _exit(126);
    _exit(127);
}

static void decimal(char *out, int number)
{
    char digits[12];
    int n = 0;
    do
        digits[n++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (n > 0)
        *out++ = digits[--n];
    *out = '\0';
}

static void child_mounts(struct plan *p)
{
    int fds[MOUNTS_MAX];
    if (unshare(CLONE_NEWNS) != 0)
        child_fail(p->error_write, "unshare");
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        child_fail(p->error_write, "private mounts");
    for (int i = 0; i < p->mount_count; i++) {
        fds[i] = open_mount(&p->mounts[i]);
        if (fds[i] < 0)
            child_fail(p->error_write, p->mounts[i].root);
    }
    umount2("/sys", MNT_DETACH); /* with the control groups below it: bwrap copies and reads all that is left here */
    if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") != 0)
        child_fail(p->error_write, "tmpfs");
    for (int i = 0; i < p->mount_count; i++) {
        char from[40] = "/proc/self/fd/", *to = p->mounts[i].shown;
        decimal(from + 14, fds[i]);
        if (p->mounts[i].file) {
            int made = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
            if (made < 0)
                child_fail(p->error_write, "mount point");
            close(made);
        } else if (mkdir(to, 0755) != 0) {
            child_fail(p->error_write, "mount point");
        }
        if (mount(from, to, NULL, MS_BIND, NULL) != 0)
            child_fail(p->error_write, p->mounts[i].root);
        close(fds[i]);
    }
}

static void child_groups(struct plan *p)
{
    for (int i = 0; i < p->cgroup.count; i++) {
        int fd = open(p->cgroup.procs[i], O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "0", 1) != 1)
            child_fail(p->error_write, "cgroup");
        close(fd);
    }
}

static void child_run(struct plan *p)
{
    static char *const no_env[] = {NULL};
    sigset_t none;
    struct sigaction plain_action = {.sa_handler = SIG_DFL};
    for (int i = 1; i < 32; i++)
        sigaction(i, &plain_action, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    umask(022);
    child_groups(p);
    if (lb.root) {
        child_mounts(p);
        if (syscall(SYS_setgroups, 0, NULL) != 0 ||
            syscall(SYS_setresgid, p->box->uid, p->box->uid, p->box->uid) != 0 ||
            syscall(SYS_setresuid, p->box->uid, p->box->uid, p->box->uid) != 0)
            child_fail(p->error_write, "setuid");
    }
    /* Descriptors to their places: first out of the way, then down. The error pipe closes at exec. */
    int wanted[6] = {p->http, p->report, p->control, p->config, p->seccomp, p->info_write};
    for (int i = 0; i < 6; i++) {
        wanted[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, 64);
        if (wanted[i] < 0)
            child_fail(p->error_write, "descriptors");
    }
    int error = fcntl(p->error_write, F_DUPFD_CLOEXEC, 64), console = fcntl(p->console, F_DUPFD_CLOEXEC, 64);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (error < 0 || console < 0 || null < 0 || dup2(null, 0) < 0 || dup2(console, 1) < 0 || dup2(console, 2) < 0)
        child_fail(p->error_write, "descriptors");
    for (int i = 0; i < 6; i++)
        dup2(wanted[i], 3 + i);
    syscall(SYS_close_range, 9u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    if (chdir("/") != 0)
        child_fail(error, "chdir");
    execve(p->args.items[0], p->args.items, no_env);
    child_fail(error, p->args.items[0]);
}

/* ---- the parent ---- */

/* Reads until end of file or the time limit; returns the length. */
static size_t read_for(int fd, char *out, size_t size, int64_t until, bool stop_at_brace)
{
    size_t n = 0;
    while (n + 1 < size && lb_wait_readable(fd, until)) {
        ssize_t got = read(fd, out + n, size - 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
        if (stop_at_brace && memchr(out, '}', n) != NULL)
            break;
    }
    out[n] = '\0';
    return n;
}

/* An entrypoint may be over before we look: its report is there then, and the sandbox was made all the same. Its start
 * time stays 0, which no process has, so it is found to have ended. */
static bool ended_by_itself(struct plan *p)
{
    char first;
    p->box->start_time = 0;
    return pread(p->report, &first, 1, 0) == 1;
}

static int start(struct plan *p)
{
    struct lb_launch *l = p->launch;
    char text[1024];
    int64_t until = lb_mono_ms() + LB_LAUNCH_MS;
    pid_t pid = fork();
    if (pid == 0)
        child_run(p);
    if (pid < 0)
        return fail(l, 503, "DOCKER::SANDBOX_START_FAILED", "cannot fork: %s", strerror(errno));
    l->monitor = pid;
    close_fd(&p->error_write);
    close_fd(&p->info_write);
    close_fd(&p->http);
    close_fd(&p->control);
    if (read_for(p->error_read, text, sizeof(text), until, false) > 0)
        return fail(l, 500, "DOCKER::SANDBOX_START_FAILED", "cannot start the sandbox: %s", text);
    if (read_for(p->info_read, text, sizeof(text), until, true) == 0 || strchr(text, '}') == NULL) {
        ssize_t n = pread(p->console, text, 400, 0);
        text[n > 0 ? n : 0] = '\0';
        kill(pid, SIGKILL);
        return fail(l, 500, "DOCKER::SANDBOX_START_FAILED", "bubblewrap did not start the sandbox: %s", text);
    }
    json_t *info = json_loads(text, 0, NULL);
    l->box->pid = (pid_t)json_integer_value(json_object_get(info, "child-pid"));
    json_decref(info);
    if (l->box->pid <= 1 || (!lb_process_start(l->box->pid, &l->box->start_time) && !ended_by_itself(p))) {
        ssize_t n = pread(p->console, text, 400, 0);
        text[n > 0 ? n : 0] = '\0';
        kill(pid, SIGKILL);
        return fail(l, 500, "DOCKER::SANDBOX_START_FAILED", "the sandbox ended at once: %s", text);
    }
    snprintf(l->box->boot_id, sizeof(l->box->boot_id), "%s", lb.boot_id);
    return 0;
}

static int commit(struct plan *p)
{
    struct lb_launch *l = p->launch;
    l->record = lb_box_record(l->box);
    int error = l->record != NULL ? lb_record_write(l->box->id, l->record) : ENOMEM;
    if (error == 0)
        return 0;
    int ignored = lb_process_kill(l->box->pid, l->box->start_time, LB_KILL_MS);
    (void)ignored;
    return fail(l, 500, "DOCKER::SANDBOX_START_FAILED", "cannot write the sandbox's record: %s", strerror(error));
}

void lb_launch_run(struct lb_launch *l)
{
    struct plan *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        fail(l, 500, "DOCKER::SANDBOX_START_FAILED", "out of memory");
        return;
    }
    p->launch = l;
    p->box = l->box;
    p->http = p->control = p->report = p->config = p->seccomp = p->console = -1;
    p->info_read = p->info_write = p->error_read = p->error_write = -1;
    snprintf(p->folder, sizeof(p->folder), "sandboxes/%s", l->box->id);
    bool fine = make_folders(p) == 0 && open_files(p) == 0 && build(p) == 0;
    if (fine) {
        int error =
            lb_cgroup_make(l->box->id, l->box->memory_bytes, l->box->cpu_milli, lb.config.processes, &p->cgroup);
        if (error != 0)
            fail(l, 500, "DOCKER::SANDBOX_START_FAILED", "the sandbox's limits cannot be set: %s", strerror(error));
        fine = error == 0 && start(p) == 0 && commit(p) == 0;
    }
    int *fds[] = {&p->http,    &p->control,   &p->report,     &p->config,     &p->seccomp,
                  &p->console, &p->info_read, &p->info_write, &p->error_read, &p->error_write};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        close_fd(fds[i]);
    if (!fine) {
        (void)!lb_process_kill(l->box->pid, l->box->start_time, LB_KILL_MS);
        lb_kill_marked(l->box->id);
        lb_cgroup_remove(l->box->id);
        for (int i = 0; i < l->box->volume_count; i++) {
            if (l->box->volumes[i].created) /* made for this sandbox alone, and it never ran */
                (void)!lb_volume_remove(l->box->volumes[i].claim);
        }
        (void)!lb_remove_tree(p->folder);
    }
    lb_args_free(&p->args);
    free(p);
}
