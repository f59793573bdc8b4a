/* SPDX-License-Identifier: Apache-2.0
 *
 * The process tree: kill -9 of each part, replacement, renewal of templates, nothing left behind, hostile hosts. */
#define SK_CHECK_TIMEOUT 120
#include "common/base/version.h"
#include "services/code/walls.h"
#include "tests/unit/check_main.h"
#include "tree.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEAL_MS 500   /* contract/code.md §1 */
#define WAIT_MS 20000 /* where nothing is measured */

static const struct tree_task held = {.held = true, .wall_ms = 60000};

static bool is_named(pid_t pid, const char *name)
{
    char path[64], text[32] = "";
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    file = fopen(path, "re");
    if (file != NULL && fgets(text, sizeof(text), file) == NULL)
        text[0] = '\0';
    if (file != NULL)
        fclose(file);
    text[strcspn(text, "\n")] = '\0';
    return strcmp(text, name) == 0;
}

/* The one template and the one zygote, when there is no more than that: the go-between that forked the zygote may still
 * be about to end. */
static void find(const struct tree *t, pid_t *template, pid_t *zygote)
{
    int64_t until = code_now_us() + WAIT_MS * 1000;
    int templates, zygotes;

    for (;;) {
        pid_t pids[16];
        int count = tree_processes(t, pids, 16);

        templates = zygotes = 0;
        for (int i = 0; i < count && i < 16; i++) {
            bool child = tree_parent(pids[i]) == t->launcher;

            if (child && is_named(pids[i], "sk-template")) {
                *template = pids[i];
                templates++;
            } else if (child && is_named(pids[i], "sk-zygote")) {
                *zygote = pids[i];
                zygotes++;
            }
        }
        if ((templates == 1 && zygotes == 1) || code_now_us() >= until)
            break;
        poll(NULL, 0, 2);
    }
    ck_assert_int_eq(templates, 1);
    ck_assert_int_eq(zygotes, 1);
}

static void works(struct tree *t)
{
    static struct tree_outcome out;

    tree_run(t, "uid", NULL, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    ck_assert_int_eq(strncmp(out.text, "uid: ", 5), 0);
}

static void closed(int fd)
{
    struct code_message message;
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    int fds[CODE_FDS_MAX];
    size_t count;
    enum code_receive got = CODE_RECEIVED;

    while (got == CODE_RECEIVED || got == CODE_NOTHING) {
        ck_assert_int_eq(poll(&polled, 1, WAIT_MS), 1);
        got = code_receive(fd, &message, fds, &count);
    }
    ck_assert_int_eq(got, CODE_CLOSED);
}

/* Within some seconds: it is told of before it is reaped. */
static void gone(pid_t pid)
{
    int64_t until = code_now_us() + WAIT_MS * 1000;

    while (kill(pid, 0) == 0 && code_now_us() < until)
        poll(NULL, 0, 5);
    ck_assert_int_ne(kill(pid, 0), 0);
}

static void kill_zygotes(enum code_level level)
{
    const struct tree_options options = {.highest = level};
    struct tree t;
    int late = 0;

    if (!tree_start(&t, &options))
        return;
    for (int round = 0; round < 3; round++) {
        struct code_message message;
        pid_t template, zygote;
        uint64_t number, before = t.id;
        int64_t start, took_ms;
        int result = tree_begin(&t, "spin", NULL, &number);
        char byte;

        tree_await(t.zygote, &message, NULL);
        find(&t, &template, &zygote);
        start = code_now_us();
        ck_assert_int_eq(kill(zygote, SIGKILL), 0);
        closed(t.zygote);
        ck_assert_int_eq(read(result, &byte, 1), 0); /* its task went with it */
        close(result);
        tree_next_zygote(&t);
        took_ms = (code_now_us() - start) / 1000;
        ck_assert_int_lt(took_ms, 4 * HEAL_MS);
        late += took_ms >= HEAL_MS;
        ck_assert_uint_ne(t.id, before);
        works(&t);
        tree_await_processes(&t, 2);
    }
    ck_assert_int_le(late, 1); /* a busy machine may pause us for that long, once */
    tree_end(&t);
}

START_TEST(test_kill_zygote)
{
    kill_zygotes(CODE_LEVEL_FULL);
}
END_TEST

/* Without a pid namespace the tasks go by their death signal, and by their uids. */
START_TEST(test_kill_zygote_container)
{
    kill_zygotes(CODE_LEVEL_CONTAINER);
}
END_TEST

static int oom_score(pid_t pid)
{
    char path[64];
    int score = -9999;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
    file = fopen(path, "re");
    if (file != NULL && fscanf(file, "%d", &score) != 1)
        score = -9999;
    if (file != NULL)
        fclose(file);
    return score;
}

/* A task says it of itself before anything else: it may have been forked this moment. */
static void goes_first(pid_t task)
{
    int64_t until = code_now_us() + WAIT_MS * 1000;

    while (oom_score(task) != 500 && code_now_us() < until)
        poll(NULL, 0, 2);
    ck_assert_int_eq(oom_score(task), 500);
}

START_TEST(test_kill_task)
{
    static struct tree_outcome out;
    pid_t pids[16], template, zygote;
    struct tree t;

    if (!tree_start(&t, NULL))
        return;
    find(&t, &template, &zygote);
    for (int round = 0; round < 3; round++) {
        struct code_message message;
        uint64_t number;
        int result = tree_begin(&t, "spin", NULL, &number);
        int count;

        tree_await(t.zygote, &message, NULL);
        tree_await_processes(&t, 3);
        count = tree_processes(&t, pids, 16);
        for (int i = 0; i < count; i++) {
            if (tree_parent(pids[i]) != zygote)
                continue;
            goes_first(pids[i]);
            ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
        }
        ck_assert_int_ne(oom_score(zygote), 500);
        tree_finish(&t, result, number, &out);
        ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_KILLED);
        works(&t);
    }
    tree_end(&t);
}
END_TEST

/* A template that dies takes nobody with it, and is made anew; killing both heals too. */
START_TEST(test_kill_template)
{
    static struct tree_outcome out;
    pid_t template, zygote, again;
    struct code_message message;
    uint64_t number;
    struct tree t;
    int result;

    if (!tree_start(&t, NULL))
        return;
    find(&t, &template, &zygote);
    result = tree_begin(&t, TREE_HELD, &held, &number);
    tree_await(t.zygote, &message, NULL);
    ck_assert_int_eq(kill(template, SIGKILL), 0);
    gone(template);
    tree_let_go(result);
    tree_finish(&t, result, number, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    works(&t);
    tree_await_processes(&t, 2);
    kill(zygote, SIGKILL);
    tree_next_zygote(&t);
    works(&t);
    find(&t, &again, &zygote);
    ck_assert_int_ne(again, template);
    kill(again, SIGKILL);
    kill(zygote, SIGKILL);
    tree_next_zygote(&t);
    works(&t);
    tree_end(&t);
}
END_TEST

/* A zygote that does not answer within 200 ms is named to the launcher, which ends its whole tree. The milliseconds
 * from then to the next one. */
static int64_t heal_stuck(struct tree *t)
{
    struct code_message message = {.kind = CODE_MSG_PING}, answer;
    pid_t template, zygote;
    uint64_t number;
    struct pollfd polled;
    int64_t start;
    int result;

    message.u.ping.number = 7;
    ck_assert(code_send(t->zygote, &message, NULL, 0));
    tree_await(t->zygote, &answer, NULL);
    ck_assert_int_eq((int)answer.kind, CODE_MSG_PONG);
    ck_assert_uint_eq(answer.u.ping.number, 7);
    result = tree_begin(t, "spin", NULL, &number);
    tree_await(t->zygote, &answer, NULL);
    find(t, &template, &zygote);
    ck_assert_int_eq(kill(zygote, SIGSTOP), 0);
    ck_assert(code_send(t->zygote, &message, NULL, 0));
    polled = (struct pollfd){.fd = t->zygote, .events = POLLIN};
    ck_assert_int_eq(poll(&polled, 1, CODE_ANSWER_MS), 0);
    start = code_now_us();
    message = (struct code_message){.kind = CODE_MSG_SUSPECT};
    message.u.zygote.zygote = t->id;
    ck_assert(code_send(t->host, &message, NULL, 0));
    closed(t->zygote);
    close(result);
    tree_next_zygote(t);
    return (code_now_us() - start) / 1000;
}

START_TEST(test_stuck_zygote)
{
    int64_t took_ms = INT64_MAX;
    struct tree t;

    if (!tree_start(&t, NULL))
        return;
    for (int tries = 0; tries < 3 && took_ms >= HEAL_MS; tries++) { /* a busy machine may pause us for that long */
        took_ms = heal_stuck(&t);
        works(&t);
        tree_await_processes(&t, 2);
    }
    ck_assert_int_lt(took_ms, HEAL_MS);
    tree_end(&t);
}
END_TEST

START_TEST(test_nothing_left)
{
    static struct tree_outcome out;
    static const char *const programs[] = {"uid",
                                           "crash",
                                           "alloc 30",
                                           "exit 5",
                                           "write " CODE_TMP_DIR "/x",
                                           "fork\nthread\nsocket",
                                           "fill " CODE_TMP_DIR "/x 100000",
                                           "state"};
    int launcher_before, template_before, zygote_before;
    pid_t template, zygote;
    struct tree t;

    if (!tree_start(&t, NULL))
        return;
    for (int i = 0; i < 8; i++)
        tree_run(&t, programs[i], NULL, &out);
    find(&t, &template, &zygote);
    launcher_before = tree_descriptors(t.launcher);
    template_before = tree_descriptors(template);
    zygote_before = tree_descriptors(zygote);
    for (int i = 0; i < 200; i++) {
        tree_run(&t, programs[i % 8], NULL, &out);
        ck_assert(!out.refused);
        ck_assert_int_ne((int)out.ended.u.ended.end, CODE_END_WALLS);
    }
    ck_assert_int_eq(tree_descriptors(t.launcher), launcher_before);
    ck_assert_int_eq(tree_descriptors(template), template_before);
    ck_assert_int_eq(tree_descriptors(zygote), zygote_before);
    tree_await_processes(&t, 2);
    tree_end(&t);
}
END_TEST

/* A tree of which nothing was renewed before its template and its zygote were known. False = skipped. */
static bool start_to_be_renewed(struct tree *t, pid_t *template, pid_t *zygote)
{
    struct tree_options options = {.template_interval_ms = 400, .retire_ms = 60000};

    for (;;) {
        struct pollfd told = {.events = POLLIN};

        if (!tree_start(t, &options))
            return false;
        find(t, template, zygote);
        told.fd = t->host;
        if (poll(&told, 1, 0) == 0) /* the host hears of a new zygote before the old template ends */
            return true;
        tree_end(t);
        options.template_interval_ms *= 2; /* the machine is busy: again, with more time */
        ck_assert_int_lt(options.template_interval_ms, 20000);
    }
}

/* A new template takes over, tasks of the old zygote end in peace, then it goes with its host's socket. */
START_TEST(test_renewal)
{
    static struct tree_outcome out;
    struct tree t, old;
    struct code_message message;
    pid_t template, zygote;
    uint64_t number, old_id;
    int result;

    if (!start_to_be_renewed(&t, &template, &zygote))
        return;
    result = tree_begin(&t, TREE_HELD, &held, &number);
    tree_await(t.zygote, &message, NULL);
    old = t;
    old_id = t.id;
    t.zygote = -1;
    tree_next_zygote(&t);
    ck_assert_uint_ne(t.id, old_id);
    works(&t);
    tree_await(t.host, &message, NULL);
    ck_assert_int_eq((int)message.kind, CODE_MSG_RETIRING);
    ck_assert_uint_eq(message.u.zygote.zygote, old_id);
    tree_let_go(result);
    tree_finish(&old, result, number, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    close(old.zygote);
    do
        tree_await(t.host, &message, NULL);
    while (message.kind != CODE_MSG_GONE || message.u.zygote.zygote != old_id);
    gone(zygote);
    gone(template);
    tree_end(&t);
}
END_TEST

/* The template's program again, at `path`; of another build when its revision is another. */
static void lay(const char *path, bool foreign)
{
    size_t length = strlen(sk_revision()), size, changed = 0;
    char fresh[560];
    struct stat stat;
    char *bytes;
    FILE *file = fopen(tree_template(), "re");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fstat(fileno(file), &stat), 0);
    size = (size_t)stat.st_size;
    bytes = malloc(size);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, size, file), size);
    fclose(file);
    for (char *at = bytes; foreign && (at = memmem(at, size - (size_t)(at - bytes), sk_revision(), length)) != NULL;) {
        *at = '#';
        changed++;
    }
    ck_assert_int_eq(changed > 0, foreign);
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    file = fopen(fresh, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fchmod(fileno(file), 0755), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(rename(fresh, path), 0);
    free(bytes);
}

static void logged(int log, const char *text)
{
    int64_t until = code_now_us() + WAIT_MS * 1000;
    static char all[65536];

    do {
        ssize_t n = pread(log, all, sizeof(all) - 1, 0);

        all[n > 0 ? n : 0] = '\0';
        ck_assert_msg(code_now_us() < until, "not logged: %s", text);
        poll(NULL, 0, 10);
    } while (strstr(all, text) == NULL);
}

/* Programs are replaced under a running launcher: the template that it has goes on, until there is one of its build. */
START_TEST(test_foreign_template)
{
    struct tree_options options = {.template_interval_ms = 300, .retire_ms = 60000};
    struct tree t;
    char path[512], name[64];
    pid_t template, zygote;
    uint64_t id;
    int log = memfd_create("log", MFD_CLOEXEC), err = dup(STDERR_FILENO);
    bool started;

    snprintf(name, sizeof(name), "code_walls_laid_%d", (int)getpid());
    snprintf(path, sizeof(path), "%s", tree_template());
    strcpy(strrchr(path, '/') + 1, name);
    lay(path, false);
    options.program = name;
    ck_assert_int_eq(dup2(log, STDERR_FILENO), STDERR_FILENO);
    started = tree_start(&t, &options);
    ck_assert_int_eq(dup2(err, STDERR_FILENO), STDERR_FILENO);
    close(err);
    if (started) {
        lay(path, true);
        logged(log, "of another build");
        do
            find(&t, &template, &zygote);
        while (kill(zygote, SIGKILL) != 0);
        tree_next_zygote(&t); /* healed by the template that was there, or by one that took over just before */
        works(&t);
        id = t.id;
        lay(path, false);
        tree_next_zygote(&t);
        ck_assert_uint_ne(t.id, id);
        works(&t);
        tree_end(&t);
    }
    close(log);
    unlink(path);
}
END_TEST

/* A zygote that retires has an end even when its host does not let go. */
START_TEST(test_retirement_ends)
{
    const struct tree_options options = {.template_interval_ms = 300, .retire_ms = 300};
    struct tree t;
    int old;

    if (!tree_start(&t, &options))
        return;
    old = t.zygote;
    t.zygote = -1;
    tree_next_zygote(&t);
    closed(old);
    close(old);
    tree_end(&t);
}
END_TEST

/* A host that was taken over can ask for nothing that a task may not have. */
START_TEST(test_bad_host)
{
    static const struct code_message none;
    static struct tree_outcome out;
    struct tree t;
    char junk[100] = {0};

    if (!tree_start(&t, NULL))
        return;
    for (int row = 0; row < 8; row++) {
        struct code_message message = none, answer;

        message.kind = CODE_MSG_START;
        message.u.start.task = 1000 + (uint64_t)row;
        message.u.start.memory_bytes = row == 0 ? -1 : row == 1 ? INT64_MAX : row == 2 ? 0 : 64 << 20;
        message.u.start.wall_ms = row == 3 ? 0 : row == 4 ? INT64_MAX : 1000;
        message.u.start.cpu_ms = row == 5 ? -5 : 1000;
        message.u.start.tmp_bytes = row == 6 ? INT64_MIN : 1 << 20; /* and no descriptors in any */
        ck_assert(code_send(t.zygote, &message, NULL, 0));
        tree_await(t.zygote, &answer, NULL);
        ck_assert_int_eq((int)answer.kind, CODE_MSG_REFUSED);
        ck_assert_uint_eq(answer.u.refused.why, CODE_REFUSED_INVALID);
    }
    ck_assert_int_eq((int)write(t.zygote, junk, sizeof(junk)), (int)sizeof(junk));
    {
        struct code_message message = {.kind = 77};

        ck_assert(code_send(t.zygote, &message, NULL, 0));
        message.kind = CODE_MSG_SPAWN;
        ck_assert(code_send(t.zygote, &message, NULL, 0));
    }
    /* An input that is not sealed, or none: the task does not begin. */
    {
        struct code_message message = none, answer;
        int pipes[2], fds[3];

        ck_assert_int_eq(pipe(pipes), 0);
        fds[0] = pipes[0];
        fds[1] = fds[2] = pipes[1];
        message.kind = CODE_MSG_START;
        message.u.start.task = 5000;
        message.u.start.memory_bytes = 64 << 20;
        message.u.start.wall_ms = message.u.start.cpu_ms = 1000;
        message.u.start.tmp_bytes = 1 << 20;
        ck_assert(code_send(t.zygote, &message, fds, 3));
        tree_await(t.zygote, &answer, NULL);
        ck_assert_int_eq((int)answer.kind, CODE_MSG_STARTED);
        tree_await(t.zygote, &answer, NULL);
        ck_assert_int_eq((int)answer.kind, CODE_MSG_ENDED);
        ck_assert_int_eq((int)answer.u.ended.end, CODE_END_WALLS);
        close(pipes[0]);
        close(pipes[1]);
    }
    tree_run(&t, "uid", NULL, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    tree_end(&t);
}
END_TEST

/* A host that asks and does not read is not read any more; when it reads again, nothing is lost, and the zygote has not
 * grown. */
START_TEST(test_deaf_host)
{
    struct code_message ping = {.kind = CODE_MSG_PING}, answer;
    uint64_t sent = 0, got = 0;
    int64_t until;
    struct tree t;

    if (!tree_start(&t, NULL))
        return;
    until = code_now_us() + 500000;
    while (code_now_us() < until || (sent <= 300 && code_now_us() < until + WAIT_MS * 1000)) {
        ping.u.ping.number = sent + 1;
        if (code_send(t.zygote, &ping, NULL, 0))
            sent++;
        else
            poll(NULL, 0, 5);
    }
    ck_assert_uint_gt(sent, 300);
    while (got < sent) {
        tree_await(t.zygote, &answer, NULL);
        ck_assert_int_eq((int)answer.kind, CODE_MSG_PONG);
        ck_assert_uint_eq(answer.u.ping.number, ++got);
    }
    works(&t);
    /* And one that goes away like that is not waited for. */
    for (int i = 0; i < 100000 && code_send(t.zygote, &ping, NULL, 0); i++) {
    }
    close(t.zygote);
    t.zygote = -1;
    tree_next_zygote(&t);
    works(&t);
    tree_await_processes(&t, 2);
    tree_end(&t);
}
END_TEST

/* What ends a socket's messages: GONE may come before. */
static enum code_receive last_of(int fd)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    struct code_message message;
    int fds[CODE_FDS_MAX];
    size_t count;
    enum code_receive got;

    do {
        ck_assert_int_eq(poll(&readable, 1, WAIT_MS), 1);
        got = code_receive(fd, &message, fds, &count);
        if (got == CODE_RECEIVED)
            code_fds_close(fds);
    } while (got == CODE_RECEIVED || got == CODE_NOTHING);
    return got;
}

/* The host hears of the launcher's signals by its socket, and drains: its tasks end in peace, and the trees only when
 * it closes that socket, or at the second signal. */
START_TEST(test_drain)
{
    const struct tree_options options = {.pass_term = true};
    static struct tree_outcome out;
    struct code_message message;
    uint64_t number;
    struct tree t;
    int result;

    if (!tree_start(&t, &options))
        return;
    result = tree_begin(&t, TREE_HELD, &held, &number);
    tree_await(t.zygote, &message, NULL);
    ck_assert_int_eq(kill(t.launcher, SIGHUP), 0);
    tree_await(t.host, &message, NULL);
    ck_assert_int_eq((int)message.kind, CODE_MSG_RELOAD);
    ck_assert_int_eq(kill(t.launcher, SIGTERM), 0);
    tree_await(t.host, &message, NULL);
    ck_assert_int_eq((int)message.kind, CODE_MSG_DRAIN);
    tree_let_go(result);
    tree_finish(&t, result, number, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_DONE);
    works(&t);
    ck_assert_int_eq(kill(t.launcher, SIGINT), 0);
    ck_assert_int_eq(last_of(t.host), CODE_CLOSED);
    tree_end(&t);
}
END_TEST

/* A launcher that is killed takes everything with it. */
START_TEST(test_launcher_dies)
{
    pid_t pids[16];
    struct code_message message;
    struct tree t;
    uint64_t number;
    int count, alive = 1;
    int64_t until;

    if (!tree_start(&t, NULL))
        return;
    close(tree_begin(&t, "spin", NULL, &number));
    tree_await(t.zygote, &message, NULL);
    tree_await_processes(&t, 3);
    count = tree_processes(&t, pids, 16);
    ck_assert_int_eq(kill(t.launcher, SIGKILL), 0);
    ck_assert_int_eq(waitpid(t.launcher, NULL, 0), t.launcher);
    until = code_now_us() + WAIT_MS * 1000;
    while (alive > 0 && code_now_us() < until) {
        alive = 0;
        for (int i = 0; i < count; i++)
            alive += tree_parent(pids[i]) != 0;
        poll(NULL, 0, 5);
    }
    ck_assert_int_eq(alive, 0);
    close(t.host);
    close(t.zygote);
}
END_TEST

/* A language that cannot be loaded, or cannot be forked safely, never serves; the launcher keeps on trying, not wildly.
 */
START_TEST(test_bad_languages)
{
    static const char *const kinds[] = {"toy-greedy", "toy-threads", "no-such-kind"};

    for (int i = 0; i < 3; i++) {
        const struct tree_options options = {.kind = kinds[i]};
        struct pollfd polled = {.events = POLLIN};
        struct tree t;
        int status;

        if (geteuid() != 0)
            return;
        ck_assert_int_eq(tree_start_launcher(&t, &options, &status), 0);
        polled.fd = t.host;
        ck_assert_int_eq(poll(&polled, 1, 700), 0);
        tree_end(&t);
    }
}
END_TEST

/* A process of a task's uid that outlives it, as after a broken filter: made here, inside the zygote's pid namespace.
 * It is killed, the task's end says so, and the uid is not given out before it is reaped (by its maker, this test). */
START_TEST(test_leftovers)
{
    const struct tree_options options = {.slots = 1};
    static struct tree_outcome out;
    struct code_message message;
    char path[64];
    pid_t template, zygote, stranger;
    uint64_t number, second;
    siginfo_t info;
    uint32_t uid;
    struct tree t;
    int result, namespace, own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC), pipe, ready[2];
    char byte;

    if (!tree_start(&t, &options))
        return;
    find(&t, &template, &zygote);
    snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)zygote);
    namespace = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(namespace, 0);
    result = tree_begin(&t, TREE_HELD, &held, &number);
    tree_await(t.zygote, &message, NULL);
    ck_assert_int_eq((int)message.kind, CODE_MSG_STARTED);
    uid = message.u.started.uid;
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    ck_assert_int_eq(setns(namespace, CLONE_NEWPID), 0);
    stranger = fork();
    if (stranger == 0) {
        if (setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0 && write(ready[1], "r", 1) == 1)
            poll(NULL, 0, 60000);
        _exit(0);
    }
    ck_assert_int_gt(stranger, 0);
    ck_assert_int_eq(setns(own, CLONE_NEWPID), 0);
    close(own);
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1); /* it has the task's uid, */
    close(ready[0]);
    tree_let_go(result); /* and the task ends before it */
    ck_assert_int_eq(waitid(P_PID, (id_t)stranger, &info, WEXITED | WNOWAIT), 0);
    ck_assert_int_eq(info.si_status, SIGKILL);
    pipe = tree_begin(&t, "uid", NULL, &second);
    tree_finish(&t, pipe, second, &out);
    ck_assert(out.refused);
    ck_assert_int_eq(out.why, CODE_REFUSED_BUSY);
    ck_assert_int_eq(waitpid(stranger, NULL, 0), stranger);
    tree_finish(&t, result, number, &out);
    ck_assert_int_eq((int)out.ended.u.ended.end, CODE_END_PROCESSES);
    works(&t);
    close(namespace);
    tree_end(&t);
}
END_TEST

SK_CHECK_MAIN("code tree", test_kill_zygote, test_kill_zygote_container, test_kill_task, test_kill_template,
              test_stuck_zygote, test_nothing_left, test_renewal, test_foreign_template, test_retirement_ends,
              test_bad_host, test_deaf_host, test_drain, test_launcher_dies, test_bad_languages, test_leftovers)
