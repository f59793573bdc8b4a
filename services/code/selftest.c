/* SPDX-License-Identifier: Apache-2.0
 *
 * The self-test, as a small launcher and host in one: a template process without exec, a zygote, a victim and an
 * attacker, once without the filter and once behind it. */
#include "services/code/selftest.h"

#include "services/code/frame.h"
#include "services/code/input.h"
#include "services/code/probe.h"
#include "services/code/template.h"
#include "services/code/walls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define STEP_MS 5000 /* of any one answer */
#define TASK_MS 20000

struct trial {
    const struct code_selftest *test;
    struct sk_error *err;
    int template, host, lifeline[2], pidfd, listener, local, shm, canary;
    int results[2];
    pid_t pid;
    int port, key, victim_pid;
    char file[CODE_PATH_MAX + 16], name[64];
};

static int fail(struct trial *t, const char *what)
{
    return sk_fail(t->err, SK_ERR_INTERNAL, "self-test at level %s: %s", code_level_name(t->test->level), what);
}

/* Waits for one message of a kind, up to STEP_MS. */
static bool await(int fd, enum code_message_kind kind, struct code_message *message, int *first_fd)
{
    int64_t until = code_now_us() + STEP_MS * 1000;

    for (;;) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        int64_t left = until - code_now_us();
        int fds[CODE_FDS_MAX];
        size_t count;
        enum code_receive got;

        if (left <= 0 || (poll(&polled, 1, (int)(left / 1000 + 1)) < 0 && errno != EINTR))
            return false;
        got = code_receive(fd, message, fds, &count);
        if (got == CODE_NOTHING)
            continue;
        if (got == CODE_RECEIVED && message->kind == (uint32_t)kind && first_fd != NULL) {
            *first_fd = fds[0];
            fds[0] = -1;
        }
        code_fds_close(fds);
        if (got != CODE_RECEIVED)
            return false;
        if (message->kind == (uint32_t)kind)
            return true;
    }
}

/* What the attacker shall not reach: a file, a port, a socket without a file, a piece of shared memory. */
static int make_targets(struct trial *t)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    socklen_t length = sizeof(address);

    snprintf(t->file, sizeof(t->file), "%s/" CODE_CANARY_PREFIX "%d", t->test->canary_dir, (int)getpid());
    t->canary = open(t->file, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    t->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (t->canary < 0 || fchmod(t->canary, 0644) != 0 || t->listener < 0 ||
        bind(t->listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(t->listener, 4) != 0 ||
        getsockname(t->listener, (struct sockaddr *)&address, &length) != 0)
        return fail(t, "cannot make its targets");
    t->port = ntohs(address.sin_port);
    snprintf(t->name, sizeof(t->name), "sandkeep-code-%d-%d", (int)getpid(), t->port);
    snprintf(local.sun_path + 1, sizeof(local.sun_path) - 1, "%s", t->name);
    t->local = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(t->name));
    if (t->local < 0 || bind(t->local, (struct sockaddr *)&local, length) != 0 || listen(t->local, 4) != 0)
        return fail(t, "cannot make its targets");
    t->key = 0x5ec0de00 ^ (int)getpid() ^ t->port << 8;
    t->shm = shmget(t->key, 4096, IPC_CREAT | IPC_EXCL | 0666); /* where there is none, there is nothing to reach */
    return 0;
}

static int start_zygote(struct trial *t, const struct code_kind *kind)
{
    const struct code_selftest *test = t->test;
    struct code_message message = {.kind = CODE_MSG_SETUP};
    int control[2] = {-1, -1}, hosts[2] = {-1, -1}, fds[2], rc = -1;

    if (code_control_pair(control) != 0 || code_control_pair(hosts) != 0 || pipe2(t->lifeline, O_CLOEXEC) != 0) {
        fail(t, "cannot make sockets");
        goto out;
    }
    t->pid = fork();
    if (t->pid == 0) {
        int keep[] = {control[1]};

        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        _exit(code_fds_keep(keep, 1) ? code_template_run(kind, control[1], NULL) : EXIT_FAILURE);
    }
    t->template = control[0];
    t->host = hosts[0];
    message.u.setup.level = test->level;
    message.u.setup.cgroup_version = (uint32_t)test->cgroup->version;
    snprintf(message.u.setup.cgroup, sizeof(message.u.setup.cgroup), "%s", test->cgroup->memory);
    snprintf(message.u.setup.root, sizeof(message.u.setup.root), "%s", test->root);
    if (t->pid < 0 || !code_send(t->template, &message, NULL, 0) ||
        !await(t->template, CODE_MSG_READY, &message, NULL) || message.u.ready.error != 0) {
        fail(t, "no template");
        goto out;
    }
    memset(&message, 0, sizeof(message));
    message.kind = CODE_MSG_SPAWN;
    message.u.spawn.zygote = 1;
    message.u.spawn.uid_base = test->uid_base;
    message.u.spawn.slots = 2;
    fds[0] = hosts[1];
    fds[1] = t->lifeline[0];
    if (!code_send(t->template, &message, fds, 2) || !await(t->template, CODE_MSG_SPAWNED, &message, &t->pidfd) ||
        t->pidfd < 0) {
        fail(t, "no zygote could be forked");
        goto out;
    }
    close(hosts[1]);
    hosts[1] = -1;
    rc = await(t->host, CODE_MSG_HELLO, &message, NULL) ? 0 : fail(t, "the zygote could not build its walls");
out:
    if (t->host < 0 && hosts[0] >= 0)
        close(hosts[0]);
    if (hosts[1] >= 0)
        close(hosts[1]);
    if (t->template <0 && control[0] >= 0)
        close(control[0]);
    if (control[1] >= 0)
        close(control[1]);
    return rc;
}

static int start_task(struct trial *t, int number, const char *code)
{
    struct code_task task = {.code = code, .code_length = strlen(code), .variables = "{}", .variables_length = 2};
    struct code_message message = {.kind = CODE_MSG_START};
    int result[2] = {-1, -1}, rpc[2] = {-1, -1}, fds[3], rc = -1;

    fds[0] = code_input_create(&task);
    if (fds[0] < 0 || pipe2(result, O_CLOEXEC) != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, rpc) != 0) {
        fail(t, "cannot make a task's descriptors");
        goto out;
    }
    fds[1] = result[1];
    fds[2] = rpc[1];
    message.u.start.task = (uint64_t)number;
    message.u.start.memory_bytes = CODE_PROBE_MEMORY_BYTES;
    message.u.start.wall_ms = message.u.start.cpu_ms = TASK_MS;
    message.u.start.tmp_bytes = CODE_PROBE_TMP_BYTES;
    if (!code_send(t->host, &message, fds, 3) || !await(t->host, CODE_MSG_STARTED, &message, NULL))
        fail(t, "a task could not be started");
    else
        rc = 0;
    t->results[number] = result[0];
    result[0] = -1;
out:
    for (int i = 0; i < 2; i++) {
        if (result[i] >= 0)
            close(result[i]);
        if (rpc[i] >= 0)
            close(rpc[i]);
    }
    if (fds[0] >= 0)
        close(fds[0]);
    return rc;
}

/* The frame of a task; NULL when it ended without one. The time is bounded by the task's. */
static char *result_of(struct trial *t, int number, size_t *length)
{
    char *text = NULL;

    return code_frame_read(t->results[number], 4096, &text, length) ? text : NULL;
}

static const enum code_level needed[] = {
#define X(name, text, level) [CODE_WALL_##name] = (level),
    SK_CODE_WALLS(X)
#undef X
};

static int trial_run(struct trial *t, const struct code_kind *kind, uint64_t *crossed)
{
    struct code_message message;
    enum code_level demands = t->test->demands != CODE_LEVEL_NONE ? t->test->demands : t->test->level;
    char code[640];
    char *text;
    size_t length = 0;

    if (make_targets(t) != 0 || start_zygote(t, kind) != 0 || start_task(t, 0, "victim") != 0)
        return -1;
    text = result_of(t, 0, &length);
    if (text == NULL) {
        if (await(t->host, CODE_MSG_ENDED, &message, NULL) && message.u.ended.end == CODE_END_WALLS)
            return sk_fail(t->err, SK_ERR_INTERNAL, "self-test at level %s: wall %u of a task could not be built: %s",
                           code_level_name(t->test->level), message.u.ended.stage,
                           strerror(message.u.ended.stage_error));
        return fail(t, "a task ended without a result");
    }
    t->victim_pid = (int)strtol(text, NULL, 10);
    free(text);
    snprintf(code, sizeof(code), "attack %d %d %d %d %s %s", (int)getpid(), t->victim_pid, t->port, t->key, t->file,
             t->name);
    if (start_task(t, 1, code) != 0)
        return -1;
    text = result_of(t, 1, &length);
    if (text == NULL || length != CODE_WALL_COUNT) {
        free(text);
        return fail(t, "the attacker ended without a result");
    }
    for (int i = 0; i < CODE_WALL_COUNT; i++) {
        if (text[i] == 'X' && demands >= needed[i])
            *crossed |= 1ull << i;
    }
    free(text);
    return 0;
}

static void trial_end(struct trial *t)
{
    const int fds[] = {t->template, t->host,  t->lifeline[0], t->lifeline[1], t->pidfd,
                       t->listener, t->local, t->canary,      t->results[0],  t->results[1]};

    if (t->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, t->pidfd, SIGKILL, NULL, 0);
    if (t->pid > 0)
        kill(t->pid, SIGKILL);
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    /* This process is a subreaper and has no other children: all that is left of the trial comes to it. */
    if (t->pid > 0) {
        while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {
        }
    }
    if (t->canary >= 0)
        unlink(t->file);
    if (t->shm >= 0)
        shmctl(t->shm, IPC_RMID, NULL);
}

struct verdict {
    int rc;
    uint64_t crossed;
    struct sk_error err;
};

static void try_both(const struct code_selftest *test, struct verdict *verdict)
{
    const struct code_kind *const kinds[] = {&code_kind_probe_naked, &code_kind_probe};

    for (size_t i = 0; verdict->rc == 0 && i < 2; i++) {
        struct trial t = {.test = test,
                          .err = &verdict->err,
                          .template = -1,
                          .host = -1,
                          .lifeline = {-1, -1},
                          .pidfd = -1,
                          .listener = -1,
                          .local = -1,
                          .shm = -1,
                          .canary = -1,
                          .results = {-1, -1}};

        verdict->rc = trial_run(&t, kinds[i], &verdict->crossed);
        trial_end(&t);
    }
}

/* In a process of its own, which waits for all that comes of it: the launcher has another child, the host. */
int code_selftest_run(const struct code_selftest *test, uint64_t *crossed, struct sk_error *err)
{
    struct verdict verdict = {.rc = 0};
    int pair[2];
    pid_t pid;
    bool whole;

    *crossed = 0;
    if (pipe2(pair, O_CLOEXEC) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot make a pipe for the self-test: %s", strerror(errno));
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        close(pair[0]);
        try_both(test, &verdict);
        _exit(write(pair[1], &verdict, sizeof(verdict)) == (ssize_t)sizeof(verdict) ? 0 : 1); /* less than PIPE_BUF */
    }
    close(pair[1]);
    whole = pid > 0 && read(pair[0], &verdict, sizeof(verdict)) == (ssize_t)sizeof(verdict);
    close(pair[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    if (!whole)
        return sk_fail(err, SK_ERR_INTERNAL, "the self-test ended without a result");
    *crossed = verdict.crossed;
    if (verdict.rc != 0)
        *err = verdict.err;
    return verdict.rc;
}

const char *code_wall_text(enum code_wall wall)
{
    static const char *const texts[] = {
#define X(name, text, level) [CODE_WALL_##name] = text,
        SK_CODE_WALLS(X)
#undef X
    };

    return (unsigned)wall < CODE_WALL_COUNT ? texts[wall] : "unknown";
}
