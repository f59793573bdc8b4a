/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher's loop. One thread, poll(2), every wait has a deadline. State of a language: one template that serves,
 * perhaps one that is coming to take its place, and up to CODE_ZYGOTES_PER_KIND zygotes, each with a block of uids of
 * its own. */
#include "services/code/launcher.h"

#include "common/log/log.h"
#include "services/code/cgroup.h"
#include "services/code/landlock.h"
#include "services/code/root.h"
#include "services/code/selftest.h"
#include "services/code/template.h"
#include "services/code/userns.h"
#include "services/code/walls.h"
#include "services/code/zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define UIDS_FREE_US 2000000
#define ACTED_US     100000 /* after something was begun, a language is looked at again */

enum template_state { TEMPLATE_NONE, TEMPLATE_STARTING, TEMPLATE_READY };
enum zygote_state {
    ZYGOTE_NONE,
    ZYGOTE_ASKED,
    ZYGOTE_SERVING,
    ZYGOTE_RETIRING,
    ZYGOTE_GONE /* uids still to be cleared */
};

struct template
{
    enum template_state state;
    pid_t pid;
    int fd;
    int64_t since_us, deadline_us;
};

struct zygote {
    enum zygote_state state;
    uint64_t id;
    struct template *template; /* that was asked; only while ASKED */
    int pidfd, host_end;       /* host_end until the host was told */
    int64_t since_us, deadline_us;
    uint32_t uid_base;
    enum zygote_state told; /* what the host knows */
};

struct language {
    const struct code_language *config;
    struct template templates[2]; /* current is the one that serves */
    int current;
    bool was_ready; /* some template was */
    struct zygote zygotes[CODE_ZYGOTES_PER_KIND];
    int64_t retry_us, backoff_us; /* no start before this */
};

struct launcher {
    const struct code_launcher_config *config;
    struct language languages[CODE_LANGUAGES_MAX];
    int host, children, lifeline[2];
    enum code_level level;
    struct code_cgroup cgroup;
    struct code_root root;
    uint64_t last_id;
    bool draining, stopping, host_ended; /* host_ended: its pid is nobody's any more */
    int host_status;                     /* of wait, then */
    const char *foreign;                 /* program of another build, at start */
};

static int64_t interval_us(const struct launcher *l)
{
    return (l->config->template_interval_ms > 0 ? l->config->template_interval_ms : CODE_TEMPLATE_INTERVAL_MS) * 1000;
}

static int64_t retire_us(const struct launcher *l)
{
    return (l->config->retire_ms > 0 ? l->config->retire_ms : CODE_RETIRE_MS) * 1000;
}

/* A death soon after birth is held against the next start, one in good age is not. */
static void died(struct language *lang, int64_t since_us)
{
    int64_t now = code_now_us();

    if (now - since_us >= CODE_QUICK_DEATH_MS * 1000) {
        lang->backoff_us = 0;
        return;
    }
    lang->retry_us = now + lang->backoff_us;
    lang->backoff_us = lang->backoff_us == 0 ? CODE_BACKOFF_MIN_MS * 1000 : lang->backoff_us * 2;
    if (lang->backoff_us > CODE_BACKOFF_MAX_MS * 1000)
        lang->backoff_us = CODE_BACKOFF_MAX_MS * 1000;
}

static const char *root_of(const struct launcher *l, enum code_level level)
{
    return level == CODE_LEVEL_CONTAINER && l->config->container_root != NULL ? l->config->container_root
                                                                              : l->root.path;
}

/* --- templates --- */

static _Noreturn void execute(const struct code_language *config, int fd)
{
    char *argv[CODE_MODULES_MAX + 3];
    char *const none[] = {NULL};
    size_t argc = 0;
    sigset_t no_signals;

    argv[argc++] = (char *)(uintptr_t)config->program;
    argv[argc++] = (char *)(uintptr_t)config->kind;
    for (size_t i = 0; config->modules != NULL && config->modules[i] != NULL && argc < CODE_MODULES_MAX + 2; i++)
        argv[argc++] = (char *)(uintptr_t)config->modules[i];
    argv[argc] = NULL;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (dup2(fd, CODE_TEMPLATE_FD + 1) >= 0 && dup2(CODE_TEMPLATE_FD + 1, CODE_TEMPLATE_FD) >= 0 &&
        syscall(SYS_close_range, CODE_TEMPLATE_FD + 1, ~0u, 0) == 0)
        execve(config->program, argv,
               config->environment != NULL ? (char *const *)(uintptr_t)config->environment : none);
    _exit(127);
}

static void template_drop(struct template *t)
{
    if (t->state == TEMPLATE_NONE)
        return;
    close(t->fd);
    kill(t->pid, SIGKILL); /* not reaped: reap() takes the pid out first. Zygotes outlive it and come to us. */
    t->pid = 0;
    t->state = TEMPLATE_NONE;
}

static void template_start(struct launcher *l, struct language *lang, struct template *t)
{
    struct code_message message = {.kind = CODE_MSG_SETUP};
    int pair[2];

    t->since_us = code_now_us();
    if (code_control_pair(pair) != 0) {
        died(lang, t->since_us);
        return;
    }
    t->pid = fork();
    if (t->pid == 0)
        execute(lang->config, pair[1]);
    close(pair[1]);
    message.u.setup.level = l->level;
    message.u.setup.cgroup_version = (uint32_t)l->cgroup.version;
    snprintf(message.u.setup.cgroup, sizeof(message.u.setup.cgroup), "%s", l->cgroup.memory);
    snprintf(message.u.setup.root, sizeof(message.u.setup.root), "%s", root_of(l, l->level));
    t->fd = pair[0];
    t->state = TEMPLATE_STARTING;
    t->deadline_us = t->since_us + CODE_TEMPLATE_START_MS * 1000ll;
    if (t->pid > 0 && code_send(t->fd, &message, NULL, 0))
        return;
    SK_LOG_ERROR("cannot start a template", SK_F("kind", lang->config->kind));
    if (t->pid > 0) {
        template_drop(t);
    } else {
        close(t->fd);
        t->state = TEMPLATE_NONE;
    }
    died(lang, t->since_us);
}

/* --- zygotes --- */

/* The first thing not told yet, one step at a time: the host hears of every zygote in order, or a little later. */
static void zygote_tell(struct launcher *l, struct language *lang, struct zygote *z)
{
    struct code_message message = {0};

    message.u.zygote.zygote = z->id;
    message.u.zygote.language = (uint32_t)(lang - l->languages);
    if (z->told == ZYGOTE_NONE && z->state != ZYGOTE_ASKED && z->host_end >= 0) {
        message.kind = CODE_MSG_ZYGOTE;
        if (!code_send(l->host, &message, &z->host_end, 1))
            return;
        close(z->host_end);
        z->host_end = -1;
        z->told = ZYGOTE_SERVING;
    }
    if (z->told == ZYGOTE_SERVING && z->state == ZYGOTE_RETIRING) {
        message.kind = CODE_MSG_RETIRING;
        if (!code_send(l->host, &message, NULL, 0))
            return;
        z->told = ZYGOTE_RETIRING;
    }
    if (z->told != ZYGOTE_NONE && z->told != ZYGOTE_GONE && z->state == ZYGOTE_GONE) {
        message.kind = CODE_MSG_GONE;
        if (code_send(l->host, &message, NULL, 0))
            z->told = ZYGOTE_GONE;
    }
}

static bool untold(const struct zygote *z)
{
    return z->state != ZYGOTE_NONE && z->state != ZYGOTE_ASKED && z->told != z->state;
}

/* The block of uids is free again when no process has one of them. At level full that is so when pid 1 has gone. */
static void zygote_clear(struct launcher *l, struct language *lang, struct zygote *z)
{
    bool alive = false;

    zygote_tell(l, lang, z);
    if (l->level == CODE_LEVEL_CONTAINER) {
        for (uint32_t i = 0; i < lang->config->slots; i++) {
            if (code_uid_alive(z->uid_base + i)) {
                code_uid_kill(z->uid_base + i);
                alive = true;
            }
        }
    }
    if (!alive && !untold(z))
        z->state = ZYGOTE_NONE;
}

static void zygote_gone(struct launcher *l, struct language *lang, struct zygote *z)
{
    if (z->state != ZYGOTE_RETIRING) {
        SK_LOG_WARN("a zygote has ended", SK_F("kind", lang->config->kind), SK_FI("zygote", z->id));
        died(lang, z->since_us);
    }
    if (z->pidfd >= 0)
        close(z->pidfd);
    z->pidfd = -1;
    if (z->host_end >= 0 && z->told == ZYGOTE_NONE) { /* the host never heard of it */
        close(z->host_end);
        z->host_end = -1;
        z->told = ZYGOTE_GONE;
    }
    z->state = ZYGOTE_GONE;
    zygote_clear(l, lang, z);
}

static void zygote_kill(struct zygote *z)
{
    if (z->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, z->pidfd, SIGKILL, NULL, 0);
}

static void zygote_ask(struct launcher *l, struct language *lang, struct template *t)
{
    struct code_message message = {.kind = CODE_MSG_SPAWN};
    struct zygote *z = NULL;
    int pair[2], fds[2];

    for (int i = 0; i < CODE_ZYGOTES_PER_KIND && z == NULL; i++)
        z = lang->zygotes[i].state == ZYGOTE_NONE ? &lang->zygotes[i] : NULL;
    if (z == NULL || code_control_pair(pair) != 0)
        return; /* tried again in the next turn */
    z->id = ++l->last_id;
    z->template = t;
    z->pidfd = -1;
    z->host_end = pair[0];
    z->told = ZYGOTE_NONE;
    z->since_us = code_now_us();
    z->deadline_us = z->since_us + CODE_SPAWN_MS * 1000;
    z->state = ZYGOTE_ASKED;
    message.u.spawn.zygote = z->id;
    message.u.spawn.uid_base = z->uid_base;
    message.u.spawn.slots = lang->config->slots;
    fds[0] = pair[1];
    fds[1] = l->lifeline[0];
    if (!code_send(t->fd, &message, fds, 2)) {
        close(z->host_end);
        z->state = ZYGOTE_NONE;
        template_drop(t);
        died(lang, t->since_us);
    }
    close(pair[1]);
}

static struct zygote *find_zygote(struct language *lang, uint64_t id)
{
    for (int i = 0; i < CODE_ZYGOTES_PER_KIND; i++) {
        if (lang->zygotes[i].state != ZYGOTE_NONE && lang->zygotes[i].id == id)
            return &lang->zygotes[i];
    }
    return NULL;
}

static bool has_zygote(const struct language *lang, enum zygote_state state)
{
    for (int i = 0; i < CODE_ZYGOTES_PER_KIND; i++) {
        if (lang->zygotes[i].state == state)
            return true;
    }
    return false;
}

/* A zygote came from the template that is to take over: it serves, the others retire, the old template ends. */
static void take_over(struct launcher *l, struct language *lang, struct template *t, const struct zygote *fresh)
{
    for (int i = 0; i < CODE_ZYGOTES_PER_KIND; i++) {
        struct zygote *z = &lang->zygotes[i];

        if (z == fresh || z->state != ZYGOTE_SERVING)
            continue;
        z->state = ZYGOTE_RETIRING;
        z->deadline_us = code_now_us() + retire_us(l);
        zygote_tell(l, lang, z);
    }
    if (t != &lang->templates[lang->current]) {
        template_drop(&lang->templates[lang->current]);
        lang->current = (int)(t - lang->templates);
    }
}

static void spawned(struct launcher *l, struct language *lang, struct template *t, const struct code_message *message,
                    int *pidfd)
{
    struct zygote *z = find_zygote(lang, message->u.spawned.zygote);

    if (z == NULL || z->state != ZYGOTE_ASKED || z->template != t)
        return;
    z->template = NULL;
    if (*pidfd < 0) {
        SK_LOG_ERROR("a template cannot fork", SK_F("kind", lang->config->kind),
                     SK_FI("errno", message->u.spawned.error));
        zygote_gone(l, lang, z);
        return;
    }
    z->pidfd = *pidfd;
    *pidfd = -1;
    z->state = ZYGOTE_SERVING;
    zygote_tell(l, lang, z);
    take_over(l, lang, t, z);
}

static void template_lost(struct launcher *l, struct language *lang, struct template *t, const char *why)
{
    if (t->state == TEMPLATE_NONE)
        return;
    SK_LOG_WARN("a template is lost", SK_F("kind", lang->config->kind), SK_F("why", why));
    for (int i = 0; i < CODE_ZYGOTES_PER_KIND; i++) {
        if (lang->zygotes[i].state == ZYGOTE_ASKED && lang->zygotes[i].template == t)
            zygote_gone(l, lang, &lang->zygotes[i]);
    }
    /* One that never was ready did nothing but fail, however long that took. */
    died(lang, t->state == TEMPLATE_READY ? t->since_us : code_now_us());
    template_drop(t);
}

/* Programs were replaced under us. Who serves goes on, and is asked to give way an interval later; at start nobody is.
 */
static void template_foreign(struct launcher *l, struct language *lang, struct template *t)
{
    struct template *current = &lang->templates[lang->current];

    SK_LOG_ERROR("a program is of another build than the running sk-code: install all of one build and restart sk-code",
                 SK_F("kind", lang->config->kind), SK_F("program", lang->config->program));
    template_drop(t);
    if (!lang->was_ready) {
        l->foreign = lang->config->program;
        l->stopping = true;
    } else if (current->state == TEMPLATE_READY) {
        current->since_us = code_now_us();
    } else {
        died(lang, code_now_us());
    }
}

static void read_template(struct launcher *l, struct language *lang, struct template *t)
{
    struct code_message message;
    int fds[CODE_FDS_MAX];
    size_t count;

    switch (code_receive(t->fd, &message, fds, &count)) {
    case CODE_RECEIVED:
        if (message.kind == CODE_MSG_READY && t->state == TEMPLATE_STARTING) {
            message.u.ready.text[CODE_PATH_MAX - 1] = '\0';
            if (message.u.ready.error != 0) {
                template_lost(l, lang, t, message.u.ready.text);
            } else {
                t->state = TEMPLATE_READY;
                lang->was_ready = true;
                t->since_us = code_now_us();
                SK_LOG_INFO("template ready", SK_F("kind", lang->config->kind));
            }
        } else if (message.kind == CODE_MSG_SPAWNED) {
            spawned(l, lang, t, &message, &fds[0]);
        }
        code_fds_close(fds);
        break;
    case CODE_NOTHING:
        break;
    case CODE_FOREIGN:
        template_foreign(l, lang, t);
        break;
    default:
        template_lost(l, lang, t, "it has closed its socket");
    }
}

/* --- turns --- */

/* What is due for a language; returns when to look again. */
static int64_t tick(struct launcher *l, struct language *lang, int64_t now)
{
    struct template *current = &lang->templates[lang->current], *other = &lang->templates[1 - lang->current];
    int64_t next = INT64_MAX;
    bool acted = true;

    for (int i = 0; i < 2; i++) {
        struct template *t = &lang->templates[i];

        if (t->state == TEMPLATE_STARTING && now >= t->deadline_us)
            template_lost(l, lang, t, "it was not ready in time");
    }
    for (int i = 0; i < CODE_ZYGOTES_PER_KIND; i++) {
        struct zygote *z = &lang->zygotes[i];

        if (z->state == ZYGOTE_ASKED && now >= z->deadline_us)
            template_lost(l, lang, z->template, "it did not fork in time");
        if (z->state == ZYGOTE_RETIRING && now >= z->deadline_us)
            zygote_kill(z);
        if (z->state == ZYGOTE_GONE)
            zygote_clear(l, lang, z);
        else if (untold(z))
            zygote_tell(l, lang, z);
        if (z->state == ZYGOTE_ASKED && z->deadline_us < next)
            next = z->deadline_us;
        if (z->state == ZYGOTE_RETIRING && z->deadline_us < next)
            next = z->deadline_us > now ? z->deadline_us : now + 100000;
        if ((z->state == ZYGOTE_GONE || untold(z)) && next > now + 10000)
            next = now + 10000;
    }
    if (now >= lang->retry_us) {
        bool asked = has_zygote(lang, ZYGOTE_ASKED);

        if (current->state == TEMPLATE_NONE && other->state == TEMPLATE_NONE)
            template_start(l, lang, current);
        else if (current->state == TEMPLATE_READY && !asked && !has_zygote(lang, ZYGOTE_SERVING))
            zygote_ask(l, lang, current);
        else if (other->state == TEMPLATE_READY && !asked)
            zygote_ask(l, lang, other);
        else if (current->state == TEMPLATE_READY && other->state == TEMPLATE_NONE &&
                 now - current->since_us >= interval_us(l))
            template_start(l, lang, other);
        else
            acted = false;
        if (acted && next > now + ACTED_US)
            next = now + ACTED_US; /* its deadline, or another try */
    } else if (lang->retry_us < next) {
        next = lang->retry_us;
    }
    for (int i = 0; i < 2; i++) {
        const struct template *t = &lang->templates[i];

        if (t->state == TEMPLATE_STARTING && t->deadline_us < next)
            next = t->deadline_us;
    }
    if (current->state == TEMPLATE_READY && other->state == TEMPLATE_NONE && current->since_us + interval_us(l) < next)
        next = current->since_us + interval_us(l) > now ? current->since_us + interval_us(l) : now + 100000;
    return next;
}

static void note_host(struct launcher *l, pid_t pid, int status)
{
    if (pid != l->config->host_pid)
        return;
    l->host_ended = l->stopping = true;
    l->host_status = status;
}

static void reap(struct launcher *l)
{
    pid_t pid;
    int status;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        note_host(l, pid, status);
        for (size_t i = 0; i < l->config->language_count; i++) {
            for (int k = 0; k < 2; k++) {
                struct template *t = &l->languages[i].templates[k];

                if (t->state == TEMPLATE_NONE || t->pid != pid)
                    continue;
                t->pid = INT_MAX; /* kill() must not meet a stranger: this pid cannot exist */
                template_lost(l, &l->languages[i], t, "it has ended");
            }
        }
    }
}

static void read_host(struct launcher *l)
{
    struct code_message message;
    int fds[CODE_FDS_MAX];
    size_t count;
    enum code_receive got;

    while ((got = code_receive(l->host, &message, fds, &count)) == CODE_RECEIVED) {
        code_fds_close(fds);
        for (size_t i = 0; message.kind == CODE_MSG_SUSPECT && i < l->config->language_count; i++) {
            struct zygote *z = find_zygote(&l->languages[i], message.u.zygote.zygote);

            if (z == NULL)
                continue;
            SK_LOG_WARN("a zygote does not answer: its tree is killed", SK_FI("zygote", z->id));
            zygote_kill(z);
        }
    }
    if (got != CODE_NOTHING)
        l->stopping = true;
}

/* The host has another uid than ours, in another namespace perhaps: it is told by its socket, not by a signal. */
static void on_signal(struct launcher *l, uint32_t signal)
{
    struct code_message message = {.kind = signal == SIGHUP ? CODE_MSG_RELOAD : CODE_MSG_DRAIN};
    bool told = l->config->host_pid > 0 && !l->host_ended && !l->draining && code_send(l->host, &message, NULL, 0);

    if (signal == SIGHUP)
        return;
    l->stopping = l->stopping || !told;
    l->draining = true;
}

#define POLLED_MAX (2 + CODE_LANGUAGES_MAX * (2 + CODE_ZYGOTES_PER_KIND))

static void add_polled(struct pollfd *polled, size_t *count, int fd)
{
    polled[(*count)++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void turn(struct launcher *l)
{
    struct pollfd polled[POLLED_MAX];
    struct signalfd_siginfo info;
    size_t count = 0, at = 2;
    int64_t now = code_now_us(), next = INT64_MAX;
    int wait_ms;

    for (size_t i = 0; i < l->config->language_count; i++) {
        int64_t due = tick(l, &l->languages[i], now);

        next = due < next ? due : next;
    }
    add_polled(polled, &count, l->host);
    add_polled(polled, &count, l->children);
    for (size_t i = 0; i < l->config->language_count; i++) {
        struct language *lang = &l->languages[i];

        for (int k = 0; k < 2; k++)
            add_polled(polled, &count, lang->templates[k].state != TEMPLATE_NONE ? lang->templates[k].fd : -1);
        for (int k = 0; k < CODE_ZYGOTES_PER_KIND; k++)
            add_polled(polled, &count, lang->zygotes[k].state != ZYGOTE_NONE ? lang->zygotes[k].pidfd : -1);
    }
    now = code_now_us();
    wait_ms = next == INT64_MAX ? -1 : next <= now ? 0 : (int)((next - now) / 1000 + 1);
    if (poll(polled, count, wait_ms) < 0) {
        if (errno != EINTR)
            l->stopping = true;
        return;
    }
    while (read(l->children, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo != SIGCHLD)
            on_signal(l, info.ssi_signo);
    }
    if (polled[0].revents != 0)
        read_host(l);
    if (l->stopping)
        return;
    /* What was polled is looked at before children are reaped: a descriptor that is closed here is never another's yet.
     */
    for (size_t i = 0; i < l->config->language_count; i++) {
        struct language *lang = &l->languages[i];

        for (int k = 0; k < 2; k++, at++) {
            if (polled[at].revents != 0 && lang->templates[k].state != TEMPLATE_NONE &&
                lang->templates[k].fd == polled[at].fd)
                read_template(l, lang, &lang->templates[k]);
        }
        for (int k = 0; k < CODE_ZYGOTES_PER_KIND; k++, at++) {
            if (polled[at].revents != 0 && lang->zygotes[k].pidfd == polled[at].fd &&
                lang->zygotes[k].state != ZYGOTE_NONE && lang->zygotes[k].state != ZYGOTE_ASKED)
                zygote_gone(l, lang, &lang->zygotes[k]);
        }
    }
    reap(l);
}

/* --- beginning and end --- */

/* The self-test at one level; -1 with the reason when it does not hold. */
static int try_level(struct launcher *l, enum code_level level, uint64_t *crossed, struct sk_error *err)
{
    struct code_selftest test = {.level = level,
                                 .cgroup = &l->cgroup,
                                 .root = root_of(l, level),
                                 .canary_dir = l->config->run_dir,
                                 .uid_base = l->config->uid_base};
    uint64_t these = 0;

    if (code_selftest_run(&test, &these, err) != 0)
        return -1;
    if (these == 0)
        return 0;
    *crossed = these;
    return sk_fail(err, SK_ERR_INTERNAL, "crossed: %s", code_wall_text((enum code_wall)__builtin_ctzll(these)));
}

/* Without a pid namespace we kill by uid: nobody else may have one of ours. A moment for those of a launcher that was
 * killed. */
static bool uids_free(uint32_t base, uint32_t count)
{
    int64_t until = code_now_us() + UIDS_FREE_US;

    for (uint32_t i = 0; i < count; i++) {
        while (code_uid_alive(base + i)) {
            if (code_now_us() >= until)
                return false;
            poll(NULL, 0, 10);
        }
    }
    return true;
}

static int measure(struct launcher *l, uint32_t uid_count, struct sk_error *err)
{
    enum code_level highest = l->config->highest == CODE_LEVEL_NONE ? CODE_LEVEL_FULL : l->config->highest;
    struct code_message message = {.kind = CODE_MSG_LEVEL};
    char why[200] = "shared-uid is not allowed";
    bool lost = false;

    for (enum code_level level = highest; level > CODE_LEVEL_NONE && !lost; level--) {
        if (level == CODE_LEVEL_SHARED_UID && !l->config->allow_unsafe)
            break;
        if (try_level(l, level, &message.u.level.crossed, err) == 0) {
            l->level = level;
            break;
        }
        SK_LOG_WARN("a level of isolation does not hold here", SK_F("level", code_level_name(level)), SK_FE(err));
        snprintf(why, sizeof(why), "%.190s", err->message);
        /* Without the right to mount, a user namespace may give it. Once in there, we stay: lower levels hold there as
         * well. */
        if (level != CODE_LEVEL_FULL || l->config->no_userns)
            continue;
        if (code_userns_enter(l->config->uid_base, uid_count, &lost, err) == 0) {
            message.u.level.user_namespace = 1;
            if (try_level(l, level, &message.u.level.crossed, err) == 0) {
                l->level = level;
                break;
            }
        }
        SK_LOG_WARN("nor in a user namespace", SK_F("level", code_level_name(level)), SK_FE(err));
    }
    if (l->level == CODE_LEVEL_NONE)
        return sk_fail(err, SK_ERR_INTERNAL, "no level of isolation that may serve can be had here; the last tried: %s",
                       why);
    message.u.level.level = l->level;
    message.u.level.landlock_abi = (uint32_t)code_landlock_abi();
    message.u.level.cgroup_version = (uint32_t)l->cgroup.version;
    if (l->level == CODE_LEVEL_CONTAINER && !uids_free(l->config->uid_base, uid_count))
        return sk_fail(err, SK_ERR_INTERNAL, "other processes have uids between %u and %u", l->config->uid_base,
                       l->config->uid_base + uid_count - 1);
    SK_LOG_INFO("isolation measured", SK_F("level", code_level_name(l->level)),
                SK_FI("landlock", message.u.level.landlock_abi), SK_FI("cgroup", message.u.level.cgroup_version),
                SK_FB("userNamespace", message.u.level.user_namespace != 0));
    if (!code_send(l->host, &message, NULL, 0))
        return sk_fail(err, SK_ERR_INTERNAL, "the host has ended before, its own line says why: %s", strerror(errno));
    return 0;
}

static int begin(struct launcher *l, struct sk_error *err)
{
    uint32_t uid = l->config->uid_base;
    struct rlimit files;
    sigset_t signals;
    char tag[32];

    if (l->config->language_count == 0 || l->config->language_count > CODE_LANGUAGES_MAX)
        return sk_fail(err, SK_ERR_INTERNAL, "%zu languages", l->config->language_count);
    for (size_t i = 0; i < l->config->language_count; i++) {
        struct language *lang = &l->languages[i];

        lang->config = &l->config->languages[i];
        if (lang->config->slots == 0 || lang->config->slots > CODE_SLOTS_MAX)
            return sk_fail(err, SK_ERR_INTERNAL, "%u slots of %s", lang->config->slots, lang->config->kind);
        for (int k = 0; k < CODE_ZYGOTES_PER_KIND; k++) {
            lang->zygotes[k].pidfd = lang->zygotes[k].host_end = -1;
            lang->zygotes[k].uid_base = uid;
            uid += lang->config->slots;
        }
    }
    if (uid < l->config->uid_base || l->config->uid_base == 0)
        return sk_fail(err, SK_ERR_INTERNAL, "the range of uids is not one");
    if (l->config->container_root != NULL && strlen(l->config->container_root) >= CODE_PATH_MAX)
        return sk_fail(err, SK_ERR_INTERNAL, "the root of level container has too long a name");
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &signals, NULL) != 0 ||
        (l->children = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)) < 0 || pipe2(l->lifeline, O_CLOEXEC) != 0 ||
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot watch children: %s", strerror(errno));
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* zygotes hold some descriptors per slot */
        files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (code_root_make(l->config->run_dir, &l->root, err) != 0)
        return -1;
    snprintf(tag, sizeof(tag), "%d", (int)getpid());
    if (!l->config->no_cgroup)
        code_cgroup_prepare(&l->cgroup, tag);
    return measure(l, uid - l->config->uid_base, err);
}

/* Kills every template and tree and waits for all of them: nothing of ours is left when we return. */
static void end(struct launcher *l)
{
    pid_t pid;
    int status = 0;

    shutdown(l->host, SHUT_RDWR); /* a host that is our child and still there hears that it is over */
    if (l->lifeline[1] >= 0)
        close(l->lifeline[1]); /* zygotes that nobody has a pidfd of yet go by this */
    for (size_t i = 0; i < l->config->language_count; i++) {
        struct language *lang = &l->languages[i];

        for (int k = 0; k < CODE_ZYGOTES_PER_KIND; k++) {
            zygote_kill(&lang->zygotes[k]);
            if (lang->zygotes[k].host_end >= 0)
                close(lang->zygotes[k].host_end);
        }
        for (int k = 0; k < 2; k++)
            template_drop(&lang->templates[k]);
    }
    while ((pid = waitpid(-1, &status, 0)) > 0 || errno == EINTR)
        note_host(l, pid, status);
    for (size_t i = 0; i < l->config->language_count; i++) {
        for (int k = 0; k < CODE_ZYGOTES_PER_KIND; k++) {
            if (l->languages[i].zygotes[k].pidfd >= 0)
                close(l->languages[i].zygotes[k].pidfd);
        }
    }
    code_cgroup_remove(&l->cgroup);
    code_root_remove(&l->root);
    if (l->lifeline[0] >= 0)
        close(l->lifeline[0]);
    if (l->children >= 0)
        close(l->children);
}

int code_launcher_run(const struct code_launcher_config *config, int host, struct sk_error *err)
{
    struct launcher *l = calloc(1, sizeof(*l));
    int rc;

    if (l == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    l->config = config;
    l->host = host;
    l->children = l->lifeline[0] = l->lifeline[1] = l->root.lock = -1;
    rc = begin(l, err);
    while (rc == 0 && !l->stopping)
        turn(l);
    end(l);
    if (rc == 0 && l->foreign != NULL)
        rc = sk_fail(err, SK_ERR_INTERNAL, "%s is of another build: install all programs of one build", l->foreign);
    else if (rc == 0 && l->host_ended && l->host_status != 0)
        rc = sk_fail(err, SK_ERR_INTERNAL, "the host has ended with %s %d",
                     WIFSIGNALED(l->host_status) ? "signal" : "status",
                     WIFSIGNALED(l->host_status) ? WTERMSIG(l->host_status) : WEXITSTATUS(l->host_status));
    free(l);
    return rc;
}
