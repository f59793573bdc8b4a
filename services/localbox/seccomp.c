/* SPDX-License-Identifier: Apache-2.0
 *
 * The system call filter of every sandbox. A list of what is refused, not of what is allowed: development tools use
 * nearly everything, and namespaces, capabilities and no-new-privs stand before this. Made once, handed to bwrap as a
 * file. */
#include "services/localbox/localbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef TIOCLINUX
#define TIOCLINUX 0x541C
#endif

static char *program;
static size_t program_len;

static const char *const refused[] = {"mount",
                                      "umount2",
                                      "pivot_root",
                                      "chroot",
                                      "setns",
                                      "unshare",
                                      "open_tree",
                                      "move_mount",
                                      "fsopen",
                                      "fsconfig",
                                      "fsmount",
                                      "fspick",
                                      "mount_setattr",
                                      "swapon",
                                      "swapoff",
                                      "reboot",
                                      "kexec_load",
                                      "kexec_file_load",
                                      "init_module",
                                      "finit_module",
                                      "delete_module",
                                      "create_module",
                                      "query_module",
                                      "get_kernel_syms",
                                      "bpf",
                                      "perf_event_open",
                                      "userfaultfd",
                                      "keyctl",
                                      "add_key",
                                      "request_key",
                                      "acct",
                                      "quotactl",
                                      "quotactl_fd",
                                      "nfsservctl",
                                      "lookup_dcookie",
                                      "iopl",
                                      "ioperm",
                                      "syslog",
                                      "vhangup",
                                      "settimeofday",
                                      "clock_settime",
                                      "clock_adjtime",
                                      "adjtimex",
                                      "stime",
                                      "sethostname",
                                      "setdomainname",
                                      "name_to_handle_at",
                                      "open_by_handle_at",
                                      "io_uring_setup",
                                      "io_uring_enter",
                                      "io_uring_register",
                                      "process_vm_writev",
                                      "vmsplice",
                                      "mbind",
                                      "set_mempolicy",
                                      "migrate_pages",
                                      "move_pages",
                                      "fanotify_init",
                                      "modify_ldt",
                                      "uselib",
                                      "ustat",
                                      "sysfs",
                                      "_sysctl",
                                      NULL};

static int add_rules(scmp_filter_ctx ctx)
{
    for (int i = 0; refused[i] != NULL; i++) {
        int call = seccomp_syscall_resolve_name(refused[i]);
        if (call == __NR_SCMP_ERROR)
            continue; /* unknown to this library: then also to the ABI it filters */
        int rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), call, 0);
        if (rc != 0 && rc != -EDOM && rc != -EACCES)
            return rc;
    }
    static const unsigned long spaces[] = {CLONE_NEWUSER, CLONE_NEWNS,  CLONE_NEWPID,   CLONE_NEWNET,
                                           CLONE_NEWIPC,  CLONE_NEWUTS, CLONE_NEWCGROUP};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(spaces) / sizeof(spaces[0]); i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, spaces[i], spaces[i]));
    /* The flags of clone3 lie in memory where no filter can look: libc falls back to clone on ENOSYS. */
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                              SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, TIOCSTI));
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                              SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, TIOCLINUX));
    /* Sockets: local, IP and netlink (name resolution lists addresses); nothing exotic. */
    for (int family = 0; rc == 0 && family < 64; family++) {
        if (family != AF_UNIX && family != AF_INET && family != AF_INET6 && family != AF_NETLINK)
            rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
                                  SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)family));
    }
    return rc;
}

int lb_seccomp_prepare(struct sk_error *err)
{
    int rc = -ENOMEM, fd = -1;
    off_t size = 0;
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    if (ctx == NULL)
        goto out;
    seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
    rc = add_rules(ctx);
    if (rc != 0)
        goto out;
    fd = memfd_create("seccomp", MFD_CLOEXEC);
    rc = fd < 0 ? -errno : seccomp_export_bpf(ctx, fd);
    if (rc != 0)
        goto out;
    size = lseek(fd, 0, SEEK_END);
    program = malloc((size_t)size);
    if (program == NULL || pread(fd, program, (size_t)size, 0) != size)
        rc = -EIO;
    program_len = (size_t)size;
out:
    if (fd >= 0)
        close(fd);
    if (ctx != NULL)
        seccomp_release(ctx);
    return rc == 0 ? 0 : sk_fail(err, SK_ERR_INTERNAL, "cannot build the system call filter: error %d", rc);
}

int lb_seccomp_fd(void)
{
    int fd = memfd_create("seccomp", MFD_CLOEXEC);
    if (fd >= 0 && (write(fd, program, program_len) != (ssize_t)program_len || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}
