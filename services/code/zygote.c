/* SPDX-License-Identifier: Apache-2.0
 *
 * The serving zygote. It believes nobody: the host may be wrong or taken over, so it names no uid and no pid, every
 * number is checked, and a host that does not read stops being read. It never looks into what a task is given or
 * answers. */
#include "services/code/zygote.h"

#include "common/log/log.h"
#include "services/code/cgroup.h"
#include "services/code/ends.h"
#include "services/code/task.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define FENCE_SHARE       ((int64_t)16 << 20) /* the kernel's own memory for a task, and copies of the zygote's pages */
#define WATCH_US          100000              /* how often a task without a control group is looked at */
#define MESSAGES_PER_TURN 32                  /* of the host's, before children are looked after again */

enum slot_state { SLOT_FREE, SLOT_LIVE, SLOT_DRAINING /* its task is reaped, others of its uid are not */ };

struct slot {
    enum slot_state state;
    uint32_t uid;
    pid_t pid;
    uint64_t task;
    int64_t started_us, deadline_us, base_rss, memory_bytes, cpu_us, watched_us;
    bool killed;
    enum code_end cause;
    struct code_cgroup_slot cgroup;
    struct code_message report; /* while DRAINING */
};

struct zygote {
    struct code_walls *walls;
    int host, lifeline, children;
    bool host_gone; /* nobody will ever read what is in the outbox */
    struct slot slots[CODE_SLOTS_MAX];
    struct code_stage_note *notes;
    size_t notes_size;
    /* Answers that the host's socket did not take. Every slot adds at most one (its end) by itself, every message of
     * the host at most one: reading stops while there is not room for all of them. */
    struct code_message outbox[2 * CODE_SLOTS_MAX + MESSAGES_PER_TURN];
    size_t outbox_first, outbox_count;
};

#define OUTBOX_SIZE (sizeof(((struct zygote *)0)->outbox) / sizeof(struct code_message))

static struct zygote zygote; /* large, and there is one */

static void flush(struct zygote *z)
{
    while (z->outbox_count > 0 && !z->host_gone) {
        if (!code_send(z->host, &z->outbox[z->outbox_first], NULL, 0)) {
            z->host_gone = errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM;
            return;
        }
        z->outbox_first = (z->outbox_first + 1) % OUTBOX_SIZE;
        z->outbox_count--;
    }
}

static void tell(struct zygote *z, const struct code_message *message)
{
    z->outbox[(z->outbox_first + z->outbox_count) % OUTBOX_SIZE] = *message;
    z->outbox_count++;
    flush(z);
}

static bool may_read(const struct zygote *z)
{
    return OUTBOX_SIZE - z->outbox_count >= CODE_SLOTS_MAX + MESSAGES_PER_TURN;
}

/* Own sizes, for the limits of a child that begins with the same memory. statm: size resident shared text 0 data 0. */
static bool own_sizes(const struct code_walls *walls, struct code_task_start *start, int64_t *anonymous)
{
    char text[160];
    ssize_t n = pread(walls->statm_fd, text, sizeof(text) - 1, 0);
    long long size, resident, shared, data;
    int64_t page = sysconf(_SC_PAGESIZE);

    if (n <= 0)
        return false;
    text[n] = '\0';
    if (sscanf(text, "%lld %lld %lld %*d %*d %lld", &size, &resident, &shared, &data) != 4) /* NOLINT(cert-err34-c) */
        return false;
    start->base_address_bytes = size * page;
    start->base_data_bytes = data * page;
    *anonymous = (resident - shared) * page;
    return true;
}

/* Where the second fence stands, for a budget: beyond the rlimits, which an engine turns into an error of the user's
 * code while this only kills; and before what an engine has reserved but not used, which the rlimits do not see
 * (JavaScriptCore reserves 4 GiB for the shapes of objects, and a task can fill them). */
static int64_t fence(int64_t budget)
{
    return budget + budget / 8 + FENCE_SHARE;
}

/* Anonymous memory of a task; 0 when it cannot be seen. */
static int64_t task_rss(const struct zygote *z, const struct slot *slot)
{
    char text[160];
    pid_t pid = z->walls->outside ? z->notes[slot - z->slots].pid : slot->pid;
    int fd;
    ssize_t n;
    long long resident = 0, shared = 0;

    if (pid <= 0)
        return 0;
    snprintf(text, sizeof(text), "%d/statm", (int)pid);
    fd = openat(z->walls->proc_fd, text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    if (sscanf(text, "%*d %lld %lld", &resident, &shared) != 2) /* NOLINT(cert-err34-c) */
        return 0;
    return (resident - shared) * sysconf(_SC_PAGESIZE);
}

static struct slot *find_task(struct zygote *z, uint64_t task)
{
    for (uint32_t i = 0; i < z->walls->slots; i++) {
        if (z->slots[i].state != SLOT_FREE && z->slots[i].task == task)
            return &z->slots[i];
    }
    return NULL;
}

static struct slot *find_free(struct zygote *z)
{
    for (uint32_t i = 0; i < z->walls->slots; i++) {
        if (z->slots[i].state == SLOT_FREE)
            return &z->slots[i];
    }
    return NULL;
}

static bool valid(const struct code_message *message, size_t fds, bool tmp)
{
    return fds == 3 && message->u.start.memory_bytes >= CODE_MEMORY_MIN &&
           message->u.start.memory_bytes <= CODE_MEMORY_MAX && message->u.start.wall_ms > 0 &&
           message->u.start.wall_ms <= CODE_TIME_MAX && message->u.start.cpu_ms > 0 &&
           message->u.start.cpu_ms <= CODE_TIME_MAX &&
           (!tmp || (message->u.start.tmp_bytes > 0 && message->u.start.tmp_bytes <= CODE_TMP_MAX));
}

static void refuse(struct zygote *z, uint64_t task, enum code_refusal why)
{
    struct code_message answer = {.kind = CODE_MSG_REFUSED};

    answer.u.refused.task = task;
    answer.u.refused.why = why;
    tell(z, &answer);
}

static void start_task(struct zygote *z, const struct code_message *message, const int *fds, size_t count)
{
    uint64_t id = message->u.start.task;
    struct slot *slot = find_free(z);
    struct code_message answer = {.kind = CODE_MSG_STARTED};
    struct code_task_start start;
    bool tmp = code_walls_have_tmp(z->walls);

    if (!valid(message, count, tmp) || find_task(z, id) != NULL) {
        refuse(z, id, CODE_REFUSED_INVALID);
        return;
    }
    if (slot == NULL) {
        refuse(z, id, CODE_REFUSED_BUSY);
        return;
    }
    memset(&start, 0, sizeof(start));
    start.uid = slot->uid;
    start.parent = getpid();
    start.input = fds[0];
    start.result = fds[1];
    start.rpc = fds[2];
    start.memory_bytes = message->u.start.memory_bytes;
    start.cpu_ms = message->u.start.cpu_ms;
    start.tmp_bytes = message->u.start.tmp_bytes;
    start.cgroup = &slot->cgroup;
    start.notes = z->notes;
    start.notes_size = z->notes_size;
    start.note = &z->notes[slot - z->slots];
    start.note->stage = CODE_STAGE_FORKED;
    start.note->error = 0;
    start.note->pid = 0;
    if (!own_sizes(z->walls, &start, &slot->base_rss) ||
        !code_cgroup_slot_limit(z->walls->cgroup_version, &slot->cgroup,
                                slot->base_rss + fence(start.memory_bytes) + (tmp ? start.tmp_bytes : 0))) {
        refuse(z, id, CODE_REFUSED_NO_PROCESS);
        return;
    }
    slot->pid = fork();
    if (slot->pid == 0)
        code_task_main(z->walls, &start);
    if (slot->pid < 0) {
        refuse(z, id, CODE_REFUSED_NO_PROCESS);
        return;
    }
    slot->state = SLOT_LIVE;
    slot->task = id;
    slot->killed = false;
    slot->memory_bytes = start.memory_bytes;
    slot->cpu_us = start.cpu_ms * 1000;
    slot->started_us = slot->watched_us = code_now_us();
    slot->deadline_us = slot->started_us + message->u.start.wall_ms * 1000;
    answer.u.started.task = id;
    answer.u.started.uid = slot->uid;
    tell(z, &answer);
}

static void kill_slot(struct slot *slot, enum code_end cause)
{
    if (slot->state != SLOT_LIVE || slot->killed)
        return;
    slot->killed = true;
    slot->cause = cause;
    kill(slot->pid, SIGKILL); /* not reaped yet, so nobody else has this pid */
}

static bool kill_reason(uint32_t end)
{
    return end == CODE_END_TIMEOUT || end == CODE_END_OUTPUT || end == CODE_END_CANCELLED || end == CODE_END_KILLED ||
           end == CODE_END_CRASHED;
}

static void handle(struct zygote *z, const struct code_message *message, const int *fds, size_t count)
{
    struct code_message answer;
    struct slot *slot;

    switch (message->kind) {
    case CODE_MSG_START:
        start_task(z, message, fds, count);
        break;
    case CODE_MSG_KILL:
        slot = find_task(z, message->u.kill.task);
        if (slot != NULL && kill_reason(message->u.kill.end))
            kill_slot(slot, (enum code_end)message->u.kill.end);
        break; /* unknown: it has ended, and its ENDED is on its way */
    case CODE_MSG_PING:
        answer = *message;
        answer.kind = CODE_MSG_PONG;
        answer.u.ping.live = 0;
        for (uint32_t i = 0; i < z->walls->slots; i++)
            answer.u.ping.live += z->slots[i].state != SLOT_FREE;
        tell(z, &answer);
        break;
    default:
        break; /* not for zygotes */
    }
}

/* False when the host is gone. */
static bool read_host(struct zygote *z)
{
    for (int i = 0; i < MESSAGES_PER_TURN && may_read(z); i++) {
        struct code_message message;
        int fds[CODE_FDS_MAX];
        size_t count;

        switch (code_receive(z->host, &message, fds, &count)) {
        case CODE_RECEIVED:
            handle(z, &message, fds, count);
            code_fds_close(fds);
            break;
        case CODE_NOTHING:
            return true;
        case CODE_GARBLED:
        case CODE_FOREIGN:
            break;
        case CODE_CLOSED:
            return false;
        }
    }
    return true;
}

static void release(struct zygote *z, struct slot *slot)
{
    slot->state = SLOT_FREE;
    tell(z, &slot->report);
}

static void ended(struct zygote *z, struct slot *slot, int status, const struct rusage *usage)
{
    const struct code_stage_note *note = &z->notes[slot - z->slots];
    int64_t cpu_us = (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000ll + usage->ru_utime.tv_usec +
                     usage->ru_stime.tv_usec;
    struct code_ending ending = {.status = status,
                                 .killed = slot->killed,
                                 .cause = slot->cause,
                                 .walls = note->stage == CODE_STAGE_RUNNING,
                                 .cpu_out = cpu_us >= slot->cpu_us,
                                 .oom = code_cgroup_slot_oom(z->walls->cgroup_version, &slot->cgroup),
                                 .peak_bytes = (int64_t)usage->ru_maxrss * 1024 - slot->base_rss,
                                 .budget_bytes = slot->memory_bytes};
    struct code_message *report = &slot->report;

    if (ending.peak_bytes < 0)
        ending.peak_bytes = 0;
    if (z->walls->level != CODE_LEVEL_SHARED_UID)
        ending.leftover = code_uid_alive(slot->uid);
    memset(report, 0, sizeof(*report));
    report->kind = CODE_MSG_ENDED;
    report->u.ended.task = slot->task;
    report->u.ended.end = code_end_of(&ending);
    report->u.ended.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    report->u.ended.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    report->u.ended.stage = note->stage;
    report->u.ended.stage_error = note->error;
    report->u.ended.peak_rss_bytes = ending.peak_bytes;
    report->u.ended.cpu_us = cpu_us;
    report->u.ended.wall_us = code_now_us() - slot->started_us;
    slot->pid = 0;
    if (report->u.ended.end == CODE_END_WALLS)
        SK_LOG_ERROR("a task's wall could not be built", SK_FI("stage", note->stage), SK_FI("errno", note->error));
    if (!ending.leftover) {
        release(z, slot);
        return;
    }
    /* Only a broken filter or kernel gets here: the uid is not given out again before the last of them is reaped. */
    SK_LOG_ERROR("a task left processes behind", SK_FI("uid", slot->uid));
    slot->state = SLOT_DRAINING;
    code_uid_kill(slot->uid);
}

static void reap(struct zygote *z)
{
    struct rusage usage;
    int status;
    pid_t pid;

    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        for (uint32_t i = 0; i < z->walls->slots; i++) {
            if (z->slots[i].state == SLOT_LIVE && z->slots[i].pid == pid) {
                ended(z, &z->slots[i], status, &usage);
                break;
            }
        }
    }
    for (uint32_t i = 0; i < z->walls->slots; i++) {
        struct slot *slot = &z->slots[i];

        if (slot->state != SLOT_DRAINING)
            continue;
        if (code_uid_alive(slot->uid))
            code_uid_kill(slot->uid); /* a fork can win against one sweep, not against all */
        else
            release(z, slot);
    }
}

/* Kills a task that has grown beyond the fence where no control group does; returns when to look again. */
static int64_t watch(const struct zygote *z, struct slot *slot, int64_t now)
{
    if (slot->cgroup.limit >= 0 || z->walls->proc_fd < 0)
        return INT64_MAX;
    if (now - slot->watched_us >= WATCH_US) {
        slot->watched_us = now;
        if (task_rss(z, slot) - slot->base_rss > fence(slot->memory_bytes))
            kill_slot(slot, CODE_END_MEMORY);
    }
    return slot->watched_us + WATCH_US;
}

/* Kills what is over its time or its memory; returns how long poll may sleep. */
static int deadlines(struct zygote *z)
{
    int64_t now = code_now_us(), next = INT64_MAX, look;

    for (uint32_t i = 0; i < z->walls->slots; i++) {
        struct slot *slot = &z->slots[i];

        if (slot->state == SLOT_DRAINING && next > now + 10000)
            next = now + 10000;
        if (slot->state != SLOT_LIVE || slot->killed)
            continue;
        if (slot->deadline_us <= now) {
            kill_slot(slot, CODE_END_TIMEOUT);
            continue;
        }
        look = watch(z, slot, now);
        look = look < slot->deadline_us ? look : slot->deadline_us;
        next = look < next ? look : next;
    }
    return next == INT64_MAX ? -1 : (int)((next - now) / 1000 + 1);
}

static bool prepare(struct zygote *z, struct sk_error *err)
{
    struct code_walls *walls = z->walls;
    int keep[CODE_KEPT_MAX + 2];
    size_t count = 0;
    sigset_t children;

    /* The template's own descriptors are none of ours: its socket to the launcher above all. */
    keep[count++] = z->host;
    keep[count++] = z->lifeline;
    for (size_t i = 0; i < walls->kept_count; i++)
        keep[count++] = walls->kept[i];
    if (!code_fds_keep(keep, count)) {
        sk_fail(err, SK_ERR_INTERNAL, "cannot close descriptors: %s", strerror(errno));
        return false;
    }
    for (uint32_t i = 0; i < walls->slots; i++) {
        z->slots[i].uid = walls->uid_base + i;
        if (!code_cgroup_slot_open(walls->cgroup_version, walls->cgroup, z->slots[i].uid, &z->slots[i].cgroup)) {
            sk_fail(err, SK_ERR_INTERNAL, "cannot make a control group: %s", strerror(errno));
            return false;
        }
    }
    if (code_walls_zygote(walls, err) != 0)
        return false;
    z->notes_size = sizeof(struct code_stage_note) * CODE_SLOTS_MAX;
    z->notes = mmap(NULL, z->notes_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    if (z->notes == MAP_FAILED || sigprocmask(SIG_SETMASK, &children, NULL) != 0 ||
        (z->children = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        sk_fail(err, SK_ERR_INTERNAL, "cannot watch children: %s", strerror(errno));
        return false;
    }
    return true;
}

/* pid 1 takes its namespace with it. Without one, tasks are killed here (and by their death signal, had we no time). */
static _Noreturn void leave(struct zygote *z)
{
    for (uint32_t i = 0; i < z->walls->slots; i++)
        kill_slot(&z->slots[i], CODE_END_CANCELLED);
    _exit(CODE_ZYGOTE_RELEASED);
}

_Noreturn void code_zygote_run(struct code_walls *walls, int host, int lifeline)
{
    struct zygote *z = &zygote;
    struct code_message hello = {.kind = CODE_MSG_HELLO};
    struct sk_error err;

    prctl(PR_SET_NAME, "sk-zygote");
    (void)setsid(); /* one for all its tasks, see task.c */
    memset(z, 0, sizeof(*z));
    z->walls = walls;
    z->host = host;
    z->lifeline = lifeline;
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    if (walls->slots == 0 || walls->slots > CODE_SLOTS_MAX || !prepare(z, &err)) {
        SK_LOG_ERROR("a zygote could not build its walls", SK_F("kind", walls->kind->runtime->name), SK_FE(&err));
        _exit(CODE_ZYGOTE_NO_WALLS);
    }
    hello.u.hello.level = walls->level;
    hello.u.hello.slots = walls->slots;
    hello.u.hello.landlock_abi = (uint32_t)walls->landlock_abi;
    hello.u.hello.cgroup_version = (uint32_t)walls->cgroup_version;
    tell(z, &hello);
    for (;;) {
        struct pollfd polled[3] = {{.fd = z->children, .events = POLLIN}, {.fd = z->lifeline}, {.fd = z->host}};
        struct signalfd_siginfo info;

        if (may_read(z))
            polled[2].events |= POLLIN;
        if (z->outbox_count > 0)
            polled[2].events |= POLLOUT;
        if (poll(polled, 3, deadlines(z)) < 0 && errno != EINTR)
            leave(z);
        while (read(z->children, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        }
        reap(z);
        flush(z);
        if (z->host_gone || (polled[1].revents & (POLLHUP | POLLERR)) != 0)
            leave(z);
        if ((polled[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !read_host(z))
            leave(z);
    }
}
