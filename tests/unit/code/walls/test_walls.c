/* SPDX-License-Identifier: Apache-2.0
 *
 * Each wall, tried in vain by a task, behind the filter and (kind toy-naked) without it. */
#define SK_CHECK_TIMEOUT 120
#include "services/code/filter.h"
#include "tests/unit/check_main.h"
#include "toy.h"
#include "tree.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct row {
    const char *program, *expected;
};

static void run_rows(struct tree *t, const struct row *rows, size_t count)
{
    static struct tree_outcome out;

    for (size_t i = 0; i < count; i++) {
        tree_run(t, rows[i].program, NULL, &out);
        ck_assert_msg(!out.refused && out.ended.u.ended.end == CODE_END_DONE,
                      "%s: ended as %s (signal %d, stage %u, error %d)", rows[i].program,
                      code_end_name((enum code_end)out.ended.u.ended.end), out.ended.u.ended.signal,
                      out.ended.u.ended.stage, out.ended.u.ended.stage_error);
        ck_assert_msg(strcmp(out.text, rows[i].expected) == 0, "%s gives\n%s instead of\n%s", rows[i].program, out.text,
                      rows[i].expected);
    }
}

START_TEST(test_filtered)
{
    static const struct row rows[] = {
        {"read /etc/passwd", "open: ENOENT\n"},
        {"read /etc/shadow", "open: ENOENT\n"},
        {"read /proc/self/status", "open: ENOENT\n"},
        {"read /sys/kernel", "open: ENOENT\n"},
        {"read /dev/null", "open: ENOENT\n"},
        {"read ../../../../etc/passwd", "open: ENOENT\n"},
        {"read /etc/debian_version", "open: ok\n"}, /* what the kind names is there, */
        {"read /usr/share/zoneinfo/UTC", "open: ok\n"},
        {"write /etc/debian_version", "open: EACCES\n"}, /* but not for writing */
        {"write /crossed", "open: EROFS\n"},
        {"write /usr/share/zoneinfo/x", "open: EROFS\n"},
        {"mkdir /crossed", "mkdir: EROFS\n"},
        {"write " CODE_TMP_DIR "/mine", "open: ok\n"},
        {"read " CODE_TMP_DIR "/mine", "open: ENOENT\n"},                    /* the one before left nothing */
        {"write /tmp/mine\nmkdir /tmp/mine", "open: EROFS\nmkdir: EROFS\n"}, /* around it nothing is the task's */
        {"fill " CODE_TMP_DIR "/a 1900000\nfill " CODE_TMP_DIR "/b 1900000",
         "fill: ok\nfilled: 1900544\nfill: ENOSPC\nfilled: 196608\n"},
        {"socket\nconnect", "socket: EPERM\nconnect: EPERM\n"},
        {"fork\ndaemon\nthread", "fork: EPERM\ndaemon: EPERM\nthread: EPERM\n"},
        {"kill 1 9\nkill -1 9\nkill 2 9\nkill 0 9", "kill: EPERM\nkill: EPERM\nkill: EPERM\nkill: EPERM\n"},
        {"map shared\nmap validate\nmap stack\nmap huge\nmap exec\nmap protect\nmap private",
         "map: EPERM\nmap: EPERM\nmap: EPERM\nmap: EPERM\nmap: EPERM\nmap protect: EPERM\nmap: ok\n"},
        {"alloc 100\nalloc 16", "alloc: ENOMEM\nalloc: ok\n"},
        {"environment", "environment: 0\n"},
        {"descriptors", "descriptors: 6\nkept: open\nnot kept: closed\n"}, /* 0-2, result, rpc, the one kept */
        {"state\nstate", "state: 0\nstate: 1\n"},
        {"state", "state: 0\n"},
    };
    struct tree t;

    if (!tree_start(&t, NULL))
        return;
    run_rows(&t, rows, sizeof(rows) / sizeof(rows[0]));
    tree_end(&t);
}
END_TEST

/* What one task writes in its /tmp, another that lives at the same time does not see. */
START_TEST(test_two_tmps)
{
    static struct tree_outcome out;
    struct code_message message;
    uint64_t first, second;
    struct tree t;
    int result, pipe;

    if (!tree_start(&t, NULL))
        return;
    result = tree_begin(
        &t, "write " CODE_TMP_DIR "/secret\nsleep 500\nread " CODE_TMP_DIR "/secret\nread " CODE_TMP_DIR "/other", NULL,
        &first);
    tree_await(t.zygote, &message, NULL); /* STARTED */
    poll(NULL, 0, 100);
    pipe = tree_begin(&t, "read " CODE_TMP_DIR "/secret\nwrite " CODE_TMP_DIR "/other\nstate", NULL, &second);
    tree_finish(&t, pipe, second, &out);
    ck_assert_str_eq(out.text, "open: ENOENT\nopen: ok\nstate: 0\n");
    tree_finish(&t, result, first, &out);
    ck_assert_str_eq(out.text, "open: ok\nopen: ok\nopen: ENOENT\n");
    tree_end(&t);
}
END_TEST

/* Calls that no task has, by number: with what the filter lets through for files (toy) and with nothing (toy-bare). */
static const long refused_calls[] = {SYS_ptrace,
                                     SYS_process_vm_readv,
                                     SYS_process_vm_writev,
                                     SYS_prlimit64,
                                     SYS_setpriority,
                                     SYS_sched_setaffinity,
                                     SYS_sched_setscheduler,
                                     SYS_sched_setattr,
                                     SYS_pidfd_open,
                                     SYS_pidfd_getfd,
                                     SYS_pidfd_send_signal,
                                     SYS_tgkill,
                                     SYS_tkill,
                                     SYS_kill,
                                     SYS_rt_sigqueueinfo,
                                     SYS_socket,
                                     SYS_socketpair,
                                     SYS_connect,
                                     SYS_bind,
                                     SYS_sendmsg,
                                     SYS_recvmsg,
                                     SYS_sendto,
                                     SYS_setsockopt,
                                     SYS_execve,
                                     SYS_execveat,
                                     SYS_fork,
                                     SYS_vfork,
                                     SYS_clone,
                                     SYS_clone3,
                                     SYS_unshare,
                                     SYS_setns,
                                     SYS_mount,
                                     SYS_umount2,
                                     SYS_pivot_root,
                                     SYS_chroot,
                                     SYS_open_tree,
                                     SYS_move_mount,
                                     SYS_fsopen,
                                     SYS_mount_setattr,
                                     SYS_bpf,
                                     SYS_perf_event_open,
                                     SYS_userfaultfd,
                                     SYS_keyctl,
                                     SYS_add_key,
                                     SYS_request_key,
                                     SYS_io_uring_setup,
                                     SYS_io_uring_enter,
                                     SYS_io_uring_register,
                                     SYS_memfd_create,
                                     447 /* memfd_secret */,
                                     SYS_shmget,
                                     SYS_shmat,
                                     SYS_msgget,
                                     SYS_semget,
                                     SYS_mq_open,
                                     SYS_personality,
                                     SYS_modify_ldt,
                                     SYS_arch_prctl,
                                     SYS_prctl,
                                     SYS_seccomp,
                                     SYS_setuid,
                                     SYS_setresuid,
                                     SYS_setgroups,
                                     SYS_capset,
                                     SYS_open_by_handle_at,
                                     SYS_name_to_handle_at,
                                     SYS_mknod,
                                     SYS_symlink,
                                     SYS_link,
                                     SYS_chmod,
                                     SYS_chown,
                                     SYS_inotify_init,
                                     SYS_fanotify_init,
                                     SYS_timerfd_create,
                                     SYS_signalfd4,
                                     SYS_eventfd2,
                                     SYS_epoll_create1,
                                     SYS_splice,
                                     SYS_vmsplice,
                                     SYS_sendfile,
                                     SYS_copy_file_range,
                                     SYS_getsid,
                                     SYS_setsid,
                                     SYS_setpgid,
                                     SYS_landlock_create_ruleset,
                                     SYS_kcmp,
                                     SYS_mincore,
                                     SYS_mlockall,
                                     SYS_move_pages,
                                     SYS_mbind,
                                     SYS_remap_file_pages,
                                     SYS_pkey_mprotect,
                                     SYS_process_madvise,
                                     SYS_reboot,
                                     SYS_init_module,
                                     SYS_kexec_load,
                                     SYS_syslog,
                                     SYS_settimeofday,
                                     SYS_clock_settime,
                                     SYS_adjtimex,
                                     SYS_iopl,
                                     SYS_ioperm,
                                     SYS_quotactl,
                                     SYS_sethostname,
                                     SYS_timer_create,
                                     SYS_wait4,
                                     SYS_waitid,
                                     SYS_set_robust_list,
                                     SYS_dup2,
                                     SYS_pipe2,
                                     SYS_chdir,
                                     SYS_creat,
                                     SYS_rseq,
                                     SYS_membarrier,
                                     1000};

START_TEST(test_calls)
{
    static const char *const kinds[] = {"toy", "toy-bare"};
    const size_t count = sizeof(refused_calls) / sizeof(refused_calls[0]);
    static struct tree_outcome out;
    static char program[16384], expected[16384];

    for (size_t i = 0; i < count; i++) {
        sprintf(program + strlen(program), "call %ld\n", refused_calls[i]);
        strcat(expected, "call: EPERM\n");
    }
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const struct tree_options options = {.kind = kinds[k]};
        struct tree t;

        if (!tree_start(&t, &options))
            return;
        tree_run(&t, program, NULL, &out);
        ck_assert_msg(strcmp(out.text, expected) == 0, "%s: %s%s", kinds[k],
                      code_end_name((enum code_end)out.ended.u.ended.end), out.text);
        tree_end(&t);
    }
}
END_TEST

/* A kind that asks for nothing has nothing: no file calls, no /tmp, no descriptor of its runtime. */
START_TEST(test_bare)
{
    static const struct row rows[] = {
        {"read /etc/passwd\nwrite /tmp/x\nmkdir /x", "open: EPERM\nopen: EPERM\nmkdir: EPERM\n"},
        {"descriptors", "descriptors: 5\nkept: closed\nnot kept: closed\n"},
    };
    const struct tree_options options = {.kind = "toy-bare"};
    struct tree t;

    if (!tree_start(&t, &options))
        return;
    run_rows(&t, rows, sizeof(rows) / sizeof(rows[0]));
    tree_end(&t);
}
END_TEST

/* The walls behind the filter hold by themselves. */
START_TEST(test_naked)
{
    static const struct row rows[] = {
        {"read /etc/passwd\nread /proc/1/status\nwrite /x", "open: ENOENT\nopen: ENOENT\nopen: EROFS\n"},
        {"connect", "connect: EACCES\n"}, /* Landlock; without it there would be no route */
        {"fork", "fork: EAGAIN\n"},
        {"thread", "thread: EAGAIN\n"},
        {"kill 1 0", "kill: EPERM\n"},
        {"call 105", "call: EPERM\n"}, /* setuid(0) */
        {"alloc 100", "alloc: ENOMEM\n"},
        {"map exec", "map: ok\n"}, /* only the filter stands before this: the test sees that it is really off */
    };
    const struct tree_options options = {.kind = "toy-naked"};
    static struct tree_outcome out;
    struct tree t;
    uint64_t number;
    static struct tree_outcome other;
    const struct tree_task held = {.held = true, .wall_ms = 60000};
    struct code_message message;
    uint64_t second;
    char program[1024] = "kill -1 9\n";
    int result, pipe;

    if (!tree_start(&t, &options))
        return;
    run_rows(&t, rows, sizeof(rows) / sizeof(rows[0]));
    for (int pid = 2; pid < 40; pid++) {
        if (pid != 3 + (int)(sizeof(rows) / sizeof(rows[0]))) /* not itself */
            snprintf(program + strlen(program), sizeof(program) - strlen(program), "kill %d 0\n", pid);
    }
    /* A sibling that lives cannot be signalled, though its number is known. */
    result = tree_begin(&t, TREE_HELD, &held, &number);
    tree_await(t.zygote, &message, NULL); /* STARTED */
    pipe = tree_begin(&t, program, NULL, &second);
    tree_finish(&t, pipe, second, &other);
    /* kill(-1) reports success when it was allowed nothing at all; that the sibling ends in peace is what counts. */
    ck_assert_msg(strncmp(other.text, "kill: ok\n", 9) == 0 && strstr(other.text + 9, "ok") == NULL &&
                      strstr(other.text, "kill: EPERM\n") != NULL,
                  "%s", other.text);
    tree_let_go(result);
    tree_finish(&t, result, number, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    tree_end(&t);
}
END_TEST

START_TEST(test_identity)
{
    static struct tree_outcome out;
    struct tree t;
    uint64_t numbers[4];
    int results[4];
    uint32_t uids[4];
    char seeds[4][80];

    if (!tree_start(&t, NULL))
        return;
    /* Four at once: four uids of the range, four seeds. */
    for (int i = 0; i < 4; i++) {
        struct code_message message;

        results[i] = tree_begin(&t, "uid\nsleep 30000", NULL, &numbers[i]);
        tree_await(t.zygote, &message, NULL);
        ck_assert_int_eq((int)message.kind, CODE_MSG_STARTED);
        uids[i] = message.u.started.uid;
        ck_assert_uint_ge(uids[i], tree_uid_base());
        ck_assert_uint_lt(uids[i], tree_uid_base() + 16);
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(uids[i], uids[k]);
    }
    {
        uint64_t fifth;
        int pipe = tree_begin(&t, "uid", NULL, &fifth);

        tree_finish(&t, pipe, fifth, &out);
        ck_assert(out.refused);
        ck_assert_int_eq(out.why, CODE_REFUSED_BUSY);
    }
    for (int i = 0; i < 4; i++) {
        tree_kill(&t, numbers[i], CODE_END_CANCELLED);
        tree_finish(&t, results[i], numbers[i], &out);
    }
    for (int i = 0; i < 4; i++) {
        char expected[64];

        tree_run(&t, "uid\nseed", NULL, &out);
        snprintf(expected, sizeof(expected), "uid: %u\nseed: ", out.uid);
        ck_assert_int_eq(strncmp(out.text, expected, strlen(expected)), 0);
        snprintf(seeds[i], sizeof(seeds[i]), "%s", out.text + strlen(expected));
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(seeds[i], seeds[k]);
    }
    tree_end(&t);
}
END_TEST

START_TEST(test_kind_cannot_ask_for_more)
{
    struct code_filter filter;
    struct sk_error err;

    ck_assert_int_eq(code_filter_build(&toy_greedy_kind, &filter, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "clone"));
    ck_assert_int_eq(code_filter_build(&toy_kind, &filter, &err), 0);
    ck_assert_uint_gt(filter.program.len, 40);
    code_filter_free(&filter);
}
END_TEST

SK_CHECK_MAIN("code walls", test_filtered, test_two_tmps, test_calls, test_bare, test_naked, test_identity,
              test_kind_cannot_ask_for_more)
