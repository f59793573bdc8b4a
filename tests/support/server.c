/* SPDX-License-Identifier: Apache-2.0
 * Starting and ending real servers; see server.h. */
#include "tests/support/server.h"

#include <arpa/inet.h>
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

bool sk_test_within(int ms, bool (*probe)(void *arg), void *arg)
{
    struct timespec start, now;

    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        if (probe(arg))
            return true;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >= ms)
            return probe(arg);
        pause_ms(5);
    }
}

static int loopback(int port, struct sockaddr_in *at)
{
    memset(at, 0, sizeof(*at));
    at->sin_family = AF_INET;
    at->sin_port = htons((uint16_t)port);
    at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

int sk_test_free_port(void)
{
    struct sockaddr_in at;
    socklen_t len = sizeof(at);
    int fd = loopback(0, &at);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static bool mongo_is_fast(void)
{
    const char *wanted = getenv("SANDKEEP_TEST_MONGO");

    return wanted != NULL && strcmp(wanted, "fast") == 0;
}

static void mongo_program(char *out, size_t size)
{
    const char *tools = getenv("SANDKEEP_TOOLS_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char base[256];

    if (tools != NULL)
        snprintf(base, sizeof(base), "%s", tools);
    else if (cache != NULL)
        snprintf(base, sizeof(base), "%s/sandkeep/tools", cache);
    else
        snprintf(base, sizeof(base), "%s/.cache/sandkeep/tools", home != NULL ? home : "");
    snprintf(out, size, "%s/%s", base,
             mongo_is_fast() ? "secantus-mdb-0.5.3-beta.193/bin/secantusd-rs" : "secantusdb-0.7.0b3/bin/secantusd-py");
}

bool sk_test_mongo_available(void)
{
    char program[320];

    mongo_program(program, sizeof(program));
    return access(program, X_OK) == 0;
}

/* An OP_MSG with { ping: 1, $db: "admin" }. */
static const unsigned char mongo_ping[] = {51, 0, 0,   0,   1,   0, 0, 0, 0,  0,   0,   0,   221, 7,   0,   0, 0,
                                           0,  0, 0,   0,   30,  0, 0, 0, 16, 'p', 'i', 'n', 'g', 0,   1,   0, 0,
                                           0,  2, '$', 'd', 'b', 0, 6, 0, 0,  0,   'a', 'd', 'm', 'i', 'n', 0, 0};

/* Ready = NATS has sent its INFO line; Redis and Mongo have answered a ping (with anything: they may want a password).
 */
static bool answers(void *arg)
{
    struct sk_test_server *server = arg;
    struct sockaddr_in at;
    int fd = loopback(server->port, &at);
    struct timeval limit = {1, 0};
    char first = 0;
    bool good;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    good = connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
    if (good && server->kind == SK_TEST_REDIS)
        good = write(fd, "PING\r\n", 6) == 6;
    if (good && server->kind == SK_TEST_MONGO)
        good = write(fd, mongo_ping, sizeof(mongo_ping)) == (ssize_t)sizeof(mongo_ping);
    good = good && read(fd, &first, 1) == 1 && (server->kind != SK_TEST_NATS || first == 'I');
    close(fd);
    return good;
}

static void reap(struct sk_test_server *server)
{
    while (waitpid(server->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    server->pid = 0;
}

static bool has_ended(const struct sk_test_server *server)
{
    siginfo_t info = {.si_pid = 0};

    return waitid(P_PID, (id_t)server->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

static bool answers_or_ended(void *arg)
{
    return has_ended(arg) || answers(arg);
}

/* False when it ended by itself, as it does when somebody else has its port. */
static bool start(struct sk_test_server *server)
{
    char port[16], extra[sizeof(server->extra)], log[sizeof(server->dir) + 8], program[320];
    const char *argv[48];
    int argc = 0;
    char *rest = extra, *word;
    pid_t parent = getpid();

    ck_assert_int_eq(server->pid, 0);
    snprintf(port, sizeof(port), "%d", server->port);
    snprintf(log, sizeof(log), "%s.log", server->dir);
    if (server->kind == SK_TEST_NATS) {
        const char *other = getenv("SANDKEEP_TEST_NATS_SERVER"); /* another version than the system's */
        const char *base[] = {
            other != NULL ? other : "nats-server", "-a", "127.0.0.1", "-p", port, "-sd", server->dir, "-js"};
        for (size_t i = 0; i < sizeof(base) / sizeof(base[0]) - (server->plain ? 1 : 0); i++)
            argv[argc++] = base[i];
    } else if (server->kind == SK_TEST_MONGO) {
        const char *base[] = {program, "--sync-on-commit", "--host",    "127.0.0.1",   "--port",
                              port,    "--storage-path",   server->dir, "--log-level", "WARNING"};
        mongo_program(program, sizeof(program));
        for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++)
            argv[argc++] = base[i];
        if (mongo_is_fast()) {
            argv[argc++] = "--cache-size";
            argv[argc++] = "256M";
        }
    } else {
        const char *base[] = {"redis-server", "--bind", "127.0.0.1", "--port",       port, "--dir",
                              server->dir,    "--save", "",          "--appendonly", "no"};
        for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++)
            argv[argc++] = base[i];
    }
    memcpy(extra, server->extra, sizeof(extra));
    while ((word = strsep(&rest, " ")) != NULL) {
        if (*word != '\0' && argc < 46)
            argv[argc++] = word;
    }
    argv[argc] = NULL;
    server->pid = fork();
    ck_assert_int_ge(server->pid, 0);
    if (server->pid == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(126);
        if (fd >= 0) {
            dup2(fd, 1);
            dup2(fd, 2);
        }
        execvp(argv[0], (char *const *)(void *)argv);
        _exit(127);
    }
    ck_assert_msg(sk_test_within(30000, answers_or_ended, server), "%s does not answer; see %s", argv[0], log);
    if (!has_ended(server))
        return true;
    reap(server);
    return false;
}

static bool starts(void *arg)
{
    return start(arg);
}

/* Its port may be that of somebody's connection for a while. */
void sk_test_server_again(struct sk_test_server *server)
{
    ck_assert_msg(sk_test_within(30000, starts, server), "the server of %s does not start", server->dir);
}

void sk_test_server_start(struct sk_test_server *server, int kind, const char *extra)
{
    const char *base = getenv("TMPDIR");

    memset(server, 0, sizeof(*server));
    server->kind = kind;
    snprintf(server->dir, sizeof(server->dir), "%s/sk-test-XXXXXX", base != NULL ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(server->dir));
    snprintf(server->extra, sizeof(server->extra), "%s", extra != NULL ? extra : "");
    for (int tries = 0; server->pid == 0; tries++) { /* another process can be faster to take a port that is free */
        ck_assert_msg(tries < 5, "the server of %s does not start", server->dir);
        server->port = sk_test_free_port();
        snprintf(server->url, sizeof(server->url), "%s://127.0.0.1:%d",
                 kind == SK_TEST_NATS    ? "nats"
                 : kind == SK_TEST_MONGO ? "mongodb"
                                         : "redis",
                 server->port);
        (void)start(server);
    }
}

void sk_test_server_kill(struct sk_test_server *server)
{
    if (server->pid <= 0)
        return;
    kill(server->pid, SIGKILL);
    reap(server);
}

/* Every thread of it is stopped: SIGSTOP returns before that. */
static bool all_stopped(void *arg)
{
    struct sk_test_server *server = arg;
    char path[64];
    DIR *tasks;
    struct dirent *entry;
    bool all = true;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)server->pid);
    tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    while (all && (entry = readdir(tasks)) != NULL) {
        char name[512], line[256] = "", *state;
        FILE *file;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s/stat", path, entry->d_name);
        file = fopen(name, "re");
        if (file == NULL)
            continue; /* ended meanwhile */
        state = fgets(line, sizeof(line), file) != NULL ? strrchr(line, ')') : NULL;
        all = state != NULL && strlen(state) > 2 && (state[2] == 'T' || state[2] == 't');
        fclose(file);
    }
    closedir(tasks);
    return all;
}

void sk_test_server_freeze(struct sk_test_server *server, bool frozen)
{
    ck_assert_int_gt(server->pid, 0);
    ck_assert_int_eq(kill(server->pid, frozen ? SIGSTOP : SIGCONT), 0);
    if (frozen)
        ck_assert(sk_test_within(5000, all_stopped, server));
}

static void remove_tree(const char *dir, bool itself)
{
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        execlp("find", "find", dir, "-mindepth", itself ? "0" : "1", "-delete", (char *)NULL);
        _exit(127);
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

void sk_test_server_wipe(struct sk_test_server *server)
{
    ck_assert_int_eq(server->pid, 0);
    remove_tree(server->dir, false);
}

void sk_test_server_end(struct sk_test_server *server)
{
    char log[sizeof(server->dir) + 8];

    if (server->dir[0] == '\0')
        return;
    sk_test_server_kill(server);
    remove_tree(server->dir, true);
    snprintf(log, sizeof(log), "%s.log", server->dir);
    unlink(log);
    server->dir[0] = '\0';
}
