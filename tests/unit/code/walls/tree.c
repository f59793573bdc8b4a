/* SPDX-License-Identifier: Apache-2.0
 *
 * A launcher and the host's side of it. */
#include "tree.h"

#include "common/log/log.h"
#include "services/code/frame.h"
#include "services/code/input.h"
#include "services/code/walls.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_US 30000000

static char program_path[512];

/* Test programs that run at the same time have nothing in common. */
uint32_t tree_uid_base(void)
{
    static uint32_t base;

    if (base == 0)
        base = 400000 + (uint32_t)getpid() % 10000 * 64;
    return base;
}

static const char *template_program(const char *name)
{
    ssize_t n = readlink("/proc/self/exe", program_path, sizeof(program_path) - 32);

    ck_assert_int_gt((int)n, 0);
    program_path[n] = '\0';
    strcpy(strrchr(program_path, '/') + 1, name != NULL ? name : "code_walls_toy");
    return program_path;
}

const char *tree_template(void)
{
    return template_program(NULL);
}

/* As a container runtime starts things by default: root, but not that. */
static void drop_admin(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];

    if (prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) != 0 || syscall(SYS_capget, &head, data) != 0)
        _exit(9);
    data[0].permitted &= ~(1u << CAP_SYS_ADMIN);
    data[0].effective = data[0].permitted;
    data[0].inheritable = 0;
    if (syscall(SYS_capset, &head, data) != 0 || unshare(CLONE_NEWNS) == 0)
        _exit(9);
}

static void run_launcher(const struct tree_options *options, int host)
{
    struct code_language language = {.program = template_program(options->program),
                                     .modules = options->modules,
                                     .environment = options->environment,
                                     .kind = options->kind != NULL ? options->kind : "toy",
                                     .slots = options->slots > 0 ? options->slots : 4};
    struct code_launcher_config config = {.languages = &language,
                                          .language_count = 1,
                                          .uid_base = tree_uid_base(),
                                          .run_dir = "/tmp",
                                          .allow_unsafe = options->allow_unsafe,
                                          .no_cgroup = options->no_cgroup,
                                          .no_userns = options->no_userns,
                                          .container_root = options->container_root,
                                          .host_pid = options->pass_term ? getppid() : 0,
                                          .highest = options->highest,
                                          .template_interval_ms = options->template_interval_ms,
                                          .retire_ms = options->retire_ms};
    struct sk_error err;
    int rc;

    if (options->drop_admin)
        drop_admin();
    if (options->nobody &&
        (setgroups(0, NULL) != 0 || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0))
        _exit(9);
    rc = code_launcher_run(&config, host, &err);

    if (rc != 0)
        fprintf(stderr, "launcher: %s\n", err.message);
    _exit(rc == 0 ? 0 : 1);
}

void tree_await(int fd, struct code_message *message, int *first_fd)
{
    int64_t until = code_now_us() + WAIT_US;

    for (;;) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        int fds[CODE_FDS_MAX];
        size_t count;
        enum code_receive got = code_receive(fd, message, fds, &count);

        ck_assert_msg(got == CODE_RECEIVED || got == CODE_NOTHING, "the socket is closed");
        if (got == CODE_RECEIVED) {
            if (first_fd != NULL && count > 0) {
                *first_fd = fds[0];
                fds[0] = -1;
            }
            code_fds_close(fds);
            return;
        }
        ck_assert_msg(code_now_us() < until, "no message in time");
        poll(&polled, 1, 100);
    }
}

int tree_start_launcher(struct tree *t, const struct tree_options *options, int *status)
{
    struct pollfd polled = {.events = POLLIN};
    int pair[2];

    memset(t, 0, sizeof(*t));
    t->zygote = -1;
    ck_assert_int_eq(code_control_pair(pair), 0);
    sk_log_init("walls", SK_LOG_LEVEL_ERROR);
    (void)tree_uid_base();
    t->launcher = fork();
    ck_assert_int_ge(t->launcher, 0);
    if (t->launcher == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        close(pair[0]);
        run_launcher(options, pair[1]);
    }
    close(pair[1]);
    t->host = polled.fd = pair[0];
    ck_assert_int_eq(poll(&polled, 1, WAIT_US / 1000), 1);
    {
        int fds[CODE_FDS_MAX];
        size_t count;

        if (code_receive(t->host, &t->level, fds, &count) == CODE_RECEIVED)
            return 0;
    }
    waitpid(t->launcher, status, 0);
    close(t->host);
    return -1;
}

int64_t tree_next_zygote(struct tree *t)
{
    int64_t start = code_now_us();
    struct code_message message;
    int fd = -1;

    if (t->zygote >= 0)
        close(t->zygote);
    do
        tree_await(t->host, &message, &fd);
    while (message.kind != CODE_MSG_ZYGOTE);
    t->id = message.u.zygote.zygote;
    t->zygote = fd;
    ck_assert_int_ge(fd, 0);
    tree_await(t->zygote, &t->hello, NULL);
    ck_assert_int_eq((int)t->hello.kind, CODE_MSG_HELLO);
    return (code_now_us() - start) / 1000;
}

bool tree_start(struct tree *t, const struct tree_options *options)
{
    static const struct tree_options none;
    enum code_level wanted;
    int status;

    if (options == NULL)
        options = &none;
    wanted = options->highest == CODE_LEVEL_NONE ? CODE_LEVEL_FULL : options->highest;
    if (geteuid() != 0) {
        fprintf(stderr, "SKIPPED: building walls needs root\n");
        return false;
    }
    if (tree_start_launcher(t, options, &status) != 0) {
        fprintf(stderr, "SKIPPED: no level of isolation can be had on this machine\n");
        return false;
    }
    if (t->level.u.level.level != (uint32_t)wanted) {
        fprintf(stderr, "SKIPPED: this machine has level %s only\n",
                code_level_name((enum code_level)t->level.u.level.level));
        tree_end(t);
        return false;
    }
    tree_next_zygote(t);
    return true;
}

void tree_end(struct tree *t)
{
    int status;

    close(t->host);
    if (t->zygote >= 0)
        close(t->zygote);
    ck_assert_int_eq(waitpid(t->launcher, &status, 0), t->launcher);
    ck_assert_int_eq(status, 0);
}

int tree_begin(struct tree *t, const char *program, const struct tree_task *options, uint64_t *number)
{
    static const struct tree_task none;
    struct code_task task = {.code = program, .code_length = strlen(program), .variables = "{}", .variables_length = 2};
    struct code_message message = {.kind = CODE_MSG_START};
    int result[2], rpc[2], fds[3];

    if (options == NULL)
        options = &none;
    *number = ++t->last_task;
    task.limits = (struct code_limits){.timeout_ms = 8000,
                                       .output_bytes = 1 << 20,
                                       .log_bytes = 1 << 16,
                                       .tmp_bytes = 16 << 20,
                                       .request_max = 3,
                                       .request_timeout_ms = 1000,
                                       .request_body_bytes = 1 << 16,
                                       .response_bytes = 1 << 20};
    fds[0] = code_input_create(&task);
    ck_assert_int_ge(fds[0], 0);
    ck_assert_int_eq(pipe2(result, O_CLOEXEC), 0);
    if (options->held)
        ck_assert_int_gt(fcntl(result[1], F_SETPIPE_SZ, 4096), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, rpc), 0);
    fds[1] = result[1];
    fds[2] = rpc[1];
    message.u.start.task = *number;
    message.u.start.memory_bytes = (options->memory_mb > 0 ? options->memory_mb : 64) << 20;
    message.u.start.wall_ms = options->wall_ms > 0 ? options->wall_ms : 10000;
    message.u.start.cpu_ms = options->cpu_ms > 0 ? options->cpu_ms : 10000;
    message.u.start.tmp_bytes = (options->tmp_mb > 0 ? options->tmp_mb : 2) << 20;
    ck_assert(code_send(t->zygote, &message, fds, 3));
    close(fds[0]);
    close(result[1]);
    close(rpc[0]);
    close(rpc[1]);
    return result[0];
}

void tree_kill(struct tree *t, uint64_t number, enum code_end why)
{
    struct code_message message = {.kind = CODE_MSG_KILL};

    message.u.kill.task = number;
    message.u.kill.end = why;
    ck_assert(code_send(t->zygote, &message, NULL, 0));
}

void tree_let_go(int result)
{
    char bytes[4096];
    ssize_t n;

    do
        n = read(result, bytes, sizeof(bytes));
    while (n > 0);
    ck_assert_int_eq((int)n, 0);
}

/* The pipe is read to its end, which comes with the last process that has it. */
static void read_result(int fd, struct tree_outcome *out)
{
    size_t size = CODE_FRAME_HEADER + sizeof(out->text);
    unsigned char *bytes = malloc(size + 1);
    ssize_t n;

    ck_assert_ptr_nonnull(bytes);
    while (out->bytes < size && (n = read(fd, bytes + out->bytes, size - out->bytes)) > 0)
        out->bytes += (size_t)n;
    close(fd);
    if (out->bytes >= CODE_FRAME_HEADER) {
        size_t length = out->bytes - CODE_FRAME_HEADER;

        ck_assert_uint_eq(bytes[0] | (unsigned)bytes[1] << 8 | (unsigned)bytes[2] << 16, length);
        ck_assert_uint_lt(length, sizeof(out->text));
        memcpy(out->text, bytes + CODE_FRAME_HEADER, length);
    }
    free(bytes);
}

void tree_finish(struct tree *t, int result, uint64_t number, struct tree_outcome *out)
{
    struct code_message message;

    memset(out, 0, sizeof(*out));
    for (;;) {
        tree_await(t->zygote, &message, NULL);
        if (message.kind == CODE_MSG_REFUSED) {
            ck_assert_uint_eq(message.u.refused.task, number);
            out->refused = true;
            out->why = (enum code_refusal)message.u.refused.why;
            close(result);
            return;
        }
        if (message.kind == CODE_MSG_STARTED) {
            out->uid = message.u.started.uid;
            continue;
        }
        ck_assert_int_eq((int)message.kind, CODE_MSG_ENDED);
        ck_assert_uint_eq(message.u.ended.task, number);
        break;
    }
    out->ended = message;
    read_result(result, out);
}

void tree_run(struct tree *t, const char *program, const struct tree_task *task, struct tree_outcome *out)
{
    uint64_t number;
    int result = tree_begin(t, program, task, &number);

    tree_finish(t, result, number, out);
}

pid_t tree_parent(pid_t pid)
{
    char path[64], text[512];
    FILE *file;
    int parent = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fgets(text, sizeof(text), file) != NULL && strrchr(text, ')') != NULL)
        sscanf(strrchr(text, ')') + 1, " %*c %d", &parent);
    fclose(file);
    return parent;
}

static bool below(pid_t pid, pid_t ancestor)
{
    for (int depth = 0; pid > 1 && depth < 16; depth++) {
        pid = tree_parent(pid);
        if (pid == ancestor)
            return true;
    }
    return false;
}

int tree_processes(const struct tree *t, pid_t *pids, int room)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

        if (pid <= 0 || !below(pid, t->launcher))
            continue;
        if (pids != NULL && count < room)
            pids[count] = pid;
        count++;
    }
    closedir(dir);
    return count;
}

void tree_await_processes(const struct tree *t, int count)
{
    int64_t until = code_now_us() + WAIT_US;
    int now = tree_processes(t, NULL, 0);

    while (now != count && code_now_us() < until) {
        poll(NULL, 0, 5);
        now = tree_processes(t, NULL, 0);
    }
    ck_assert_int_eq(now, count);
}

int tree_descriptors(pid_t pid)
{
    char path[64];
    DIR *dir;
    int count = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 2;
}
