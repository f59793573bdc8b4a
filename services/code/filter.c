/* SPDX-License-Identifier: Apache-2.0
 *
 * The system call filter: what every task may, what a kind may add, and what none ever gets. Calls that are not listed
 * fail with EPERM, so that a library that tries one for comfort goes on; a foreign architecture or x32 is an attack and
 * kills. */
#include "services/code/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const allowed[] = {
    "read",
    "write",
    "readv",
    "writev",
    "close",
    "fstat",
    "lseek",
    "pread64",
    "munmap",
    "brk",
    "getrandom",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "restart_syscall",
    "sigaltstack",
    "setitimer",
    "alarm",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "nanosleep",
    "poll",
    "ppoll",
    "getpid",
    "clock_nanosleep",
    "getppid",
    "gettid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getgroups",
    "getrusage",
    "times",
    "uname",
    "sched_yield",
    "exit",
    "exit_group",
    "sched_getaffinity",
};

/* Refused at every level (contract/code.md §3): naming one of them in a kind is an error, not a wish. */
static const char *const never[] = {
    "kill",
    "tkill",
    "tgkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "pidfd_open",
    "pidfd_getfd",
    "ptrace",
    "pidfd_send_signal",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "kcmp",
    "prlimit64",
    "setrlimit",
    "setpriority",
    "sched_setaffinity",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
    "socket",
    "socketpair",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "setsockopt",
    "clone",
    "clone3",
    "fork",
    "vfork",
    "execve",
    "execveat",
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "mount_setattr",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "keyctl",
    "add_key",
    "request_key",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "memfd_create",
    "memfd_secret",
    "shmget",
    "shmat",
    "pkey_mprotect",
    "remap_file_pages",
    "personality",
    "modify_ldt",
    "setuid",
    "setgid",
    "setresuid",
    "setresgid",
    "setgroups",
    "open_by_handle_at",
    "name_to_handle_at",
    "seccomp",
    "prctl",
    "arch_prctl",
    "mmap",
    "mprotect",
    "mremap",
    "madvise",
    "fcntl",
    "ioctl",
    "mknod",
    "futex",
    "mknodat",
    "msgget",
    "semget",
    "mq_open",
};

static const int fcntl_commands[] = {F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC};
/* One thread waits and wakes; priority inheritance and requeueing are kernel code that it has no use for. */
static const int futex_operations[] = {FUTEX_WAIT, FUTEX_WAKE, FUTEX_WAIT_BITSET, FUTEX_WAKE_BITSET};
static const unsigned long ioctl_requests[] = {TCGETS, FIOCLEX};
/* Not MADV_MERGEABLE (its timing shows what others have in memory), nothing that poisons or moves pages. */
static const int madvise_advices[] = {MADV_NORMAL,   MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED,
                                      MADV_DONTNEED, MADV_FREE,   MADV_HUGEPAGE,   MADV_NOHUGEPAGE,
                                      MADV_DONTDUMP, MADV_DODUMP, MADV_DONTFORK,   MADV_COLD};

static int add(scmp_filter_ctx ctx, const char *name)
{
    int call = seccomp_syscall_resolve_name(name);

    return call == __NR_SCMP_ERROR ? -ENOENT : seccomp_rule_add(ctx, SCMP_ACT_ALLOW, call, 0);
}

static int add_arguments(scmp_filter_ctx ctx)
{
    /* RLIMIT_DATA counts neither shared memory nor stacks that grow, and a task makes no code of its own. */
    int rc =
        seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                         SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_TYPE | MAP_GROWSDOWN | MAP_HUGETLB | MAP_LOCKED, MAP_PRIVATE));

    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                              SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC | PROT_GROWSDOWN | PROT_GROWSUP, 0));
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mremap), 1,
                              SCMP_A3(SCMP_CMP_MASKED_EQ, ~(scmp_datum_t)MREMAP_MAYMOVE, 0));
    for (size_t i = 0; rc == 0 && i < sizeof(fcntl_commands) / sizeof(fcntl_commands[0]); i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1,
                              SCMP_A1(SCMP_CMP_EQ, (scmp_datum_t)fcntl_commands[i]));
    for (size_t i = 0; rc == 0 && i < sizeof(ioctl_requests) / sizeof(ioctl_requests[0]); i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, ioctl_requests[i]));
    for (size_t i = 0; rc == 0 && i < sizeof(futex_operations) / sizeof(futex_operations[0]); i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(futex), 1,
                              SCMP_A1(SCMP_CMP_MASKED_EQ, ~(scmp_datum_t)(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME),
                                      (scmp_datum_t)futex_operations[i]));
    for (size_t i = 0; rc == 0 && i < sizeof(madvise_advices) / sizeof(madvise_advices[0]); i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(madvise), 1,
                              SCMP_A2(SCMP_CMP_EQ, (scmp_datum_t)madvise_advices[i]));
    return rc;
}

static bool is_never(const char *name)
{
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++) {
        if (strcmp(name, never[i]) == 0)
            return true;
    }
    return false;
}

/* libseccomp 2.5 exports to a descriptor only. */
static int export_program(scmp_filter_ctx ctx, struct code_filter *out)
{
    int fd = memfd_create("filter", MFD_CLOEXEC);
    int rc = fd < 0 ? -errno : seccomp_export_bpf(ctx, fd);
    off_t size = rc == 0 ? lseek(fd, 0, SEEK_END) : 0;

    if (rc == 0 && (size <= 0 || size / (off_t)sizeof(struct sock_filter) > BPF_MAXINSNS))
        rc = -E2BIG;
    if (rc == 0) {
        out->program.filter = malloc((size_t)size);
        rc = out->program.filter == NULL ? -ENOMEM : 0;
    }
    if (rc == 0 && pread(fd, out->program.filter, (size_t)size, 0) != size)
        rc = -EIO;
    if (rc == 0)
        out->program.len = (unsigned short)((size_t)size / sizeof(struct sock_filter));
    if (fd >= 0)
        close(fd);
    return rc;
}

int code_filter_build(const struct code_kind *kind, struct code_filter *out, struct sk_error *err)
{
    scmp_filter_ctx ctx = NULL;
    int rc = -ENOMEM;

    memset(out, 0, sizeof(*out));
    if (kind->unfiltered)
        return 0;
    for (size_t i = 0; kind->calls != NULL && kind->calls[i] != NULL; i++) {
        if (is_never(kind->calls[i]))
            return sk_fail(err, SK_ERR_INTERNAL, "kind %s asks for %s, which no task may have", kind->runtime->name,
                           kind->calls[i]);
    }
    ctx = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (ctx == NULL)
        goto out;
    rc = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (rc == 0)
        rc = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a tree: fewer steps per call */
    for (size_t i = 0; rc == 0 && i < sizeof(allowed) / sizeof(allowed[0]); i++)
        rc = add(ctx, allowed[i]);
    for (size_t i = 0; rc == 0 && kind->calls != NULL && kind->calls[i] != NULL; i++)
        rc = add(ctx, kind->calls[i]);
    if (rc == 0)
        rc = add_arguments(ctx);
    if (rc == 0)
        rc = export_program(ctx, out);
out:
    if (ctx != NULL)
        seccomp_release(ctx);
    if (rc == 0)
        return 0;
    code_filter_free(out);
    return sk_fail(err, SK_ERR_INTERNAL, "cannot build the system call filter of %s: %s", kind->runtime->name,
                   strerror(-rc));
}

void code_filter_free(struct code_filter *filter)
{
    free(filter->program.filter);
    memset(filter, 0, sizeof(*filter));
}

bool code_filter_load(const struct code_filter *filter)
{
    return filter->program.len == 0 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter->program) == 0;
}
