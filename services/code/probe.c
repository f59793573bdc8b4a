/* SPDX-License-Identifier: Apache-2.0
 *
 * The attacker of the self-test. It never does harm where a wall is missing: signals are signal 0, mounts are its own.
 * Its answer is one frame: a byte per wall, '-' not tried, 'h' held, 'X' crossed. */
#include "services/code/probe.h"

#include "services/code/frame.h"
#include "services/code/selftest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct attack {
    int outside, victim, port, key;
    char file[256], name[64];
    char answer[CODE_WALL_COUNT + 1];
};

static void note(struct attack *a, enum code_wall wall, bool held)
{
    if (a->answer[wall] != 'X')
        a->answer[wall] = held ? 'h' : 'X';
}

static void try_identity(struct attack *a)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0}};

    note(a, CODE_WALL_IDENTITY,
         getuid() != 0 && geteuid() == getuid() && getegid() != 0 && setuid(0) != 0 && setuid(getuid() + 1) != 0 &&
             syscall(SYS_capget, &head, data) == 0 && (data[0].permitted | data[1].permitted) == 0);
}

static bool cannot_open(const char *path, int flags)
{
    int fd = open(path, flags, 0600);

    if (fd < 0)
        return true;
    close(fd);
    return false;
}

static void try_files(struct attack *a)
{
    char climb[320];

    snprintf(climb, sizeof(climb), "../../../../..%s", a->file);
    note(a, CODE_WALL_FILES,
         cannot_open(a->file, O_RDONLY) && cannot_open(climb, O_RDONLY) && cannot_open("/etc/passwd", O_RDONLY));
    note(a, CODE_WALL_PROC, cannot_open("/proc/self/status", O_RDONLY) && cannot_open("/proc/1/environ", O_RDONLY));
    note(a, CODE_WALL_ROOT,
         cannot_open("/crossed", O_WRONLY | O_CREAT) && cannot_open("/dev/shm/crossed", O_WRONLY | O_CREAT) &&
             cannot_open("/var/tmp/crossed", O_WRONLY | O_CREAT) && cannot_open("/tmp/crossed", O_WRONLY | O_CREAT));
}

static long fill(const char *path, long wanted)
{
    static const char block[1 << 16];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    long done = 0;

    while (fd >= 0 && done < wanted) {
        ssize_t n = write(fd, block, sizeof(block));

        if (n <= 0)
            break;
        done += n;
    }
    if (fd >= 0)
        close(fd);
    return done;
}

static void try_tmp(struct attack *a)
{
    long part = (long)(CODE_PROBE_TMP_BYTES / 4 * 3), first = fill(CODE_TMP_DIR "/a", part),
         second = fill(CODE_TMP_DIR "/b", part);

    note(a, CODE_WALL_TMP, first == part && second < part);
}

static void try_signals(struct attack *a)
{
    note(a, CODE_WALL_SIGNAL_OUT, kill(a->outside, 0) != 0);
    note(a, CODE_WALL_SIGNAL_TASK, kill(a->victim, 0) != 0);
}

static void try_network(struct attack *a)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)a->port)};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(a->name));
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    note(a, CODE_WALL_NETWORK, fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0);
    if (fd >= 0)
        close(fd);
    snprintf(local.sun_path + 1, sizeof(local.sun_path) - 1, "%s", a->name);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    note(a, CODE_WALL_ABSTRACT, fd < 0 || connect(fd, (struct sockaddr *)&local, length) != 0);
    if (fd >= 0)
        close(fd);
    note(a, CODE_WALL_IPC, shmget(a->key, 1, 0) < 0);
}

static void try_rest(struct attack *a, const struct code_channel *channel)
{
    size_t much = (size_t)CODE_PROBE_MEMORY_BYTES + (4 << 20);
    void *map = mmap(NULL, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t pid;

    note(a, CODE_WALL_MEMORY, map == MAP_FAILED);
    if (map != MAP_FAILED)
        munmap(map, much);
    note(a, CODE_WALL_MOUNT,
         mount("none", "/", "tmpfs", 0, NULL) != 0 && chroot("/") != 0 && unshare(CLONE_NEWNS) != 0);
    for (int fd = 3; fd < 1024; fd++) {
        if (fd != channel->result && fd != channel->rpc)
            note(a, CODE_WALL_DESCRIPTORS, fcntl(fd, F_GETFD) < 0);
    }
    note(a, CODE_WALL_PRIVILEGES, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && prctl(PR_GET_DUMPABLE) == 0);
    pid = fork();
    if (pid == 0)
        _exit(0);
    note(a, CODE_WALL_PROCESSES, pid < 0);
    if (pid > 0)
        waitpid(pid, NULL, 0);
}

static bool refused(long result)
{
    return result < 0 && (errno == EPERM || errno == ENOSYS);
}

/* What must fail by the filter alone. Arguments are such that nothing happens should it pass. */
static void try_calls(struct attack *a)
{
    static const long calls[] = {SYS_socket,
                                 SYS_socketpair,
                                 SYS_connect,
                                 SYS_bind,
                                 SYS_clone3,
                                 SYS_execve,
                                 SYS_execveat,
                                 SYS_kill,
                                 SYS_tkill,
                                 SYS_tgkill,
                                 SYS_rt_sigqueueinfo,
                                 SYS_ptrace,
                                 SYS_pidfd_open,
                                 SYS_pidfd_getfd,
                                 SYS_pidfd_send_signal,
                                 SYS_process_vm_readv,
                                 SYS_process_vm_writev,
                                 SYS_prlimit64,
                                 SYS_setpriority,
                                 SYS_sched_setaffinity,
                                 SYS_sched_setscheduler,
                                 SYS_sched_setattr,
                                 SYS_unshare,
                                 SYS_setns,
                                 SYS_mount,
                                 SYS_umount2,
                                 SYS_pivot_root,
                                 SYS_chroot,
                                 SYS_bpf,
                                 SYS_perf_event_open,
                                 SYS_userfaultfd,
                                 SYS_keyctl,
                                 SYS_add_key,
                                 SYS_io_uring_setup,
                                 SYS_io_uring_enter,
                                 SYS_memfd_create,
                                 SYS_open_by_handle_at,
                                 SYS_name_to_handle_at,
                                 SYS_personality,
                                 SYS_seccomp,
                                 SYS_prctl,
                                 SYS_shmget,
                                 SYS_shmat,
                                 SYS_msgget,
                                 SYS_semget,
                                 SYS_setrlimit,
                                 SYS_modify_ldt,
                                 SYS_setuid,
                                 SYS_syslog,
                                 SYS_reboot,
                                 SYS_init_module,
                                 SYS_kexec_load,
                                 SYS_swapon,
                                 SYS_acct,
                                 SYS_quotactl,
                                 SYS_inotify_init1,
                                 SYS_signalfd4,
                                 SYS_timer_create,
                                 SYS_pipe2,
                                 SYS_sendmsg};

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (!refused(syscall(calls[i], -1, -1, -1, -1, -1, -1)))
            note(a, CODE_WALL_CALLS, false);
    }
    note(a, CODE_WALL_CALLS,
         refused(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) && refused(syscall(SYS_fork)) &&
             refused(fcntl(1, F_SETOWN, 1)) && refused(fcntl(1, F_SETFL, O_APPEND)) &&
             refused(syscall(SYS_futex, &(int){0}, FUTEX_LOCK_PI, 0, NULL, NULL, 0)) &&
             refused(syscall(SYS_madvise, NULL, 0, MADV_MERGEABLE)) &&
             refused(syscall(SYS_ioctl, 0, 0x5412 /* TIOCSTI */, "x")));
}

static void try_maps(struct attack *a)
{
    static const int flags[] = {MAP_SHARED | MAP_ANONYMOUS, MAP_SHARED_VALIDATE | MAP_ANONYMOUS,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB};
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        note(a, CODE_WALL_SHARED_MAP,
             mmap(NULL, 4096, PROT_READ | PROT_WRITE, flags[i], -1, 0) == MAP_FAILED && errno == EPERM);
    note(a, CODE_WALL_CODE_MAP,
         mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED &&
             map != MAP_FAILED && mprotect(map, 4096, PROT_READ | PROT_EXEC) != 0 &&
             refused(syscall(SYS_pkey_mprotect, map, 4096, PROT_READ | PROT_EXEC, -1)));
}

static void attack(const struct code_task *task, const struct code_channel *channel, bool filtered)
{
    struct attack a = {0};

    memset(a.answer, '-', CODE_WALL_COUNT);
    if (sscanf(task->code, CODE_PROBE_ATTACK, &a.outside, &a.victim, &a.port, &a.key, a.file, a.name) !=
        6) /* NOLINT(cert-err34-c) */
        return;
    signal(SIGXFSZ, SIG_IGN);
    try_files(&a);
    if (task->tmp_dir[0] != '\0')
        try_tmp(&a);
    if (filtered) {
        try_signals(&a);
        try_calls(&a);
        try_maps(&a);
    } else {
        try_identity(&a);
        try_signals(&a);
        try_network(&a);
        try_rest(&a, channel);
    }
    code_frame_write(channel->result, a.answer, CODE_WALL_COUNT);
}

static void run(const struct code_task *task, const struct code_channel *channel, bool filtered)
{
    char pid[16];

    if (strcmp(task->code, "victim") != 0) {
        attack(task, channel, filtered);
        return;
    }
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    code_frame_write(channel->result, pid, strlen(pid));
    for (;;)
        poll(NULL, 0, -1);
}

static void run_filtered(const struct code_task *task, const struct code_channel *channel)
{
    run(task, channel, true);
}

static void run_naked(const struct code_task *task, const struct code_channel *channel)
{
    run(task, channel, false);
}

static int prepare(const char *const *modules, struct sk_error *err)
{
    (void)modules;
    (void)err;
    return 0;
}

/* The most any language asks for. */
static const char *const calls[] = {"openat", "newfstatat", "getdents64", "readlink", "mkdir", "unlink", NULL};
static const struct code_runtime runtime_filtered = {"probe", prepare, run_filtered};
static const struct code_runtime runtime_naked = {"probe-naked", prepare, run_naked};
const struct code_kind code_kind_probe = {.runtime = &runtime_filtered, .calls = calls, .tmp = true};
const struct code_kind code_kind_probe_naked = {
    .runtime = &runtime_naked, .calls = calls, .tmp = true, .unfiltered = true};
