/* SPDX-License-Identifier: Apache-2.0
 *
 * The language of attacks. */
#include "toy.h"

#include "services/code/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct toy {
    const struct code_task *task;
    const struct code_channel *channel;
    char out[1 << 16];
    size_t length;
};

#define RESERVE (400l << 20)

static char *reserve;
static int kept = -1;             /* opened by prepare(): tasks keep it */
static int not_kept = -1;         /* opened by prepare(): they do not */
static volatile int shared_state; /* that a task changes and the next must not see */

static void say(struct toy *t, const char *name, const char *value)
{
    int n = snprintf(t->out + t->length, sizeof(t->out) - t->length, "%s: %s\n", name, value);

    if (n > 0 && t->length + (size_t)n < sizeof(t->out))
        t->length += (size_t)n;
}

static void say_number(struct toy *t, const char *name, long value)
{
    char text[32];

    snprintf(text, sizeof(text), "%ld", value);
    say(t, name, text);
}

static void say_result(struct toy *t, const char *name, long result)
{
    say(t, name, result >= 0 ? "ok" : strerrorname_np(errno));
}

static void do_open(struct toy *t, const char *path, int flags)
{
    int fd = open(path, flags, 0600);

    say_result(t, "open", fd);
    if (fd >= 0)
        close(fd);
}

static void do_fill(struct toy *t, const char *path, long bytes)
{
    static const char block[4096];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    long done = 0;
    ssize_t n = -1;

    while (fd >= 0 && done < bytes && (n = write(fd, block, sizeof(block))) > 0)
        done += n;
    say_result(t, "fill", n);
    say_number(t, "filled", done);
    if (fd >= 0)
        close(fd);
}

static void do_alloc(struct toy *t, long mb)
{
    char *map = mmap(NULL, (size_t)mb << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    say_result(t, "alloc", map == MAP_FAILED ? -1 : 0);
    for (long i = 0; map != MAP_FAILED && i < mb << 20; i += 4096)
        map[i] = 1;
}

/* Memory that was reserved before the fork and that no rlimit counts against the task. */
static void do_fill_reserve(long mb)
{
    for (long i = 0; i < mb << 20 && i < RESERVE; i += 4096)
        reserve[i] = 1;
}

/* Threads and processes by every door. */
static void do_fork(struct toy *t, bool daemon)
{
    pid_t pid = fork();

    if (pid == 0) {
        if (daemon)
            setsid();
        for (;;)
            poll(NULL, 0, -1);
    }
    say_result(t, daemon ? "daemon" : "fork", pid);
}

static void *nothing(void *arg)
{
    for (;;)
        poll(NULL, 0, -1);
    return arg;
}

static void do_thread(struct toy *t)
{
    pthread_t thread;
    int rc = pthread_create(&thread, NULL, nothing, NULL);

    say(t, "thread", rc == 0 ? "ok" : strerrorname_np(rc));
}

static void do_map(struct toy *t, const char *how)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, protection = PROT_READ | PROT_WRITE;
    void *map;

    if (strcmp(how, "shared") == 0)
        flags = MAP_SHARED | MAP_ANONYMOUS;
    if (strcmp(how, "validate") == 0)
        flags = MAP_SHARED_VALIDATE | MAP_ANONYMOUS;
    if (strcmp(how, "stack") == 0)
        flags |= MAP_GROWSDOWN;
    if (strcmp(how, "huge") == 0)
        flags |= MAP_HUGETLB;
    if (strcmp(how, "exec") == 0)
        protection |= PROT_EXEC;
    map = mmap(NULL, 4096, protection, flags, -1, 0);
    if (strcmp(how, "protect") == 0)
        say_result(t, "map protect", mprotect(map, 4096, PROT_READ | PROT_EXEC));
    else
        say_result(t, "map", map == MAP_FAILED ? -1 : 0);
}

static void do_descriptors(struct toy *t)
{
    long count = 0;

    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    say_number(t, "descriptors", count);
    say(t, "kept", fcntl(kept, F_GETFD) >= 0 ? "open" : "closed");
    say(t, "not kept",
        not_kept == t->channel->result || not_kept == t->channel->rpc || fcntl(not_kept, F_GETFD) < 0 ? "closed"
                                                                                                      : "open");
}

static void do_connect(struct toy *t)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    say_result(t, "connect", fd < 0 ? -1 : connect(fd, (struct sockaddr *)&address, sizeof(address)));
    if (fd >= 0)
        close(fd);
}

static void do_filler(struct toy *t, long bytes)
{
    if (bytes < 0 || (size_t)bytes > sizeof(t->out) - t->length)
        bytes = (long)(sizeof(t->out) - t->length);
    memset(t->out + t->length, '.', (size_t)bytes);
    t->length += (size_t)bytes;
}

static void do_seed(struct toy *t)
{
    char text[2 * CODE_SEED_SIZE + 1];

    for (int i = 0; i < CODE_SEED_SIZE; i++)
        snprintf(text + 2 * i, 3, "%02x", t->task->seed[i]);
    say(t, "seed", text);
}

/* x32: the same call with a bit set; i386: another door. Both kill. */
static void do_foreign(const char *which)
{
    if (strcmp(which, "x32") == 0) {
        syscall(0x40000000 | SYS_getpid);
    } else {
        long number = 20; /* getpid of i386 */

        __asm__ volatile("int $0x80" : "+a"(number) : : "memory", "r8", "r9", "r10", "r11");
    }
}

static void do_end(const char *how, long number)
{
    signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would make an exit of it */
    if (strcmp(how, "exit") == 0)
        _exit((int)number);
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "crash") == 0)
        *(volatile int *)(uintptr_t)8 = 1; /* NOLINT */
    if (strcmp(how, "spin") == 0) {
        for (;;)
            shared_state++;
    }
}

static bool ends(const char *word)
{
    return strcmp(word, "exit") == 0 || strcmp(word, "abort") == 0 || strcmp(word, "crash") == 0 ||
           strcmp(word, "spin") == 0;
}

static void command(struct toy *t, const char *line)
{
    char word[32] = "", text[256] = "";
    long a = 0, b = 0;

    if (sscanf(line, "%31s %255s %ld", word, text, &b) < 1)
        return;
    a = strtol(text, NULL, 0);
    if (ends(word))
        do_end(word, a);
    else if (strcmp(word, "read") == 0)
        do_open(t, text, O_RDONLY);
    else if (strcmp(word, "write") == 0)
        do_open(t, text, O_WRONLY | O_CREAT);
    else if (strcmp(word, "fill") == 0)
        do_fill(t, text, b);
    else if (strcmp(word, "mkdir") == 0)
        say_result(t, "mkdir", mkdir(text, 0700));
    else if (strcmp(word, "alloc") == 0)
        do_alloc(t, a);
    else if (strcmp(word, "fill-reserve") == 0)
        do_fill_reserve(a);
    else if (strcmp(word, "fork") == 0 || strcmp(word, "daemon") == 0)
        do_fork(t, word[0] == 'd');
    else if (strcmp(word, "thread") == 0)
        do_thread(t);
    else if (strcmp(word, "map") == 0)
        do_map(t, text);
    else if (strcmp(word, "kill") == 0)
        say_result(t, "kill", kill((pid_t)a, (int)b));
    else if (strcmp(word, "call") == 0)
        say_result(t, "call", syscall(a, b, 0, 0, 0, 0, 0));
    else if (strcmp(word, "socket") == 0)
        say_result(t, "socket", socket(AF_INET, SOCK_STREAM, 0));
    else if (strcmp(word, "connect") == 0)
        do_connect(t);
    else if (strcmp(word, "foreign") == 0)
        do_foreign(text);
    else if (strcmp(word, "descriptors") == 0)
        do_descriptors(t);
    else if (strcmp(word, "uid") == 0)
        say_number(t, "uid", getuid());
    else if (strcmp(word, "pid") == 0)
        say_number(t, "pid", getpid());
    else if (strcmp(word, "state") == 0)
        say_number(t, "state", shared_state++);
    else if (strcmp(word, "filler") == 0)
        do_filler(t, a);
    else if (strcmp(word, "seed") == 0)
        do_seed(t);
    else if (strcmp(word, "environment") == 0)
        say_number(t, "environment", environ == NULL || environ[0] == NULL ? 0 : 1);
    else if (strcmp(word, "sleep") == 0)
        poll(NULL, 0, (int)a);
    else
        say(t, word, "unknown");
}

static void run(const struct code_task *task, const struct code_channel *channel)
{
    static struct toy toy;
    char *program = strdup(task->code), *rest = program;

    toy.task = task;
    toy.channel = channel;
    toy.length = 0;
    for (char *line; program != NULL && (line = strsep(&rest, "\n")) != NULL;)
        command(&toy, line);
    code_frame_write(channel->result, toy.out, toy.length);
}

static int prepare(const char *const *modules, struct sk_error *err)
{
    (void)modules;
    kept = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    not_kept = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    reserve = mmap(NULL, RESERVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return kept >= 0 && not_kept >= 0 && reserve != MAP_FAILED ? 0 : sk_fail(err, SK_ERR_INTERNAL, "cannot open files");
}

static int prepare_threads(const char *const *modules, struct sk_error *err)
{
    pthread_t thread;

    if (prepare(modules, err) != 0)
        return -1;
    return pthread_create(&thread, NULL, nothing, NULL) == 0 ? 0 : sk_fail(err, SK_ERR_INTERNAL, "no thread");
}

static const char *const calls[] = {"openat", "newfstatat", "mkdir", "unlink", NULL};
static const char *const greedy_calls[] = {"openat", "clone", NULL};
static const char *const readable[] = {"/usr/share/zoneinfo", "/etc/debian_version", "/does/not/exist", NULL};
static const char *const keep[] = {"/statm", NULL};
static const struct code_runtime runtimes[] = {{"toy", prepare, run},
                                               {"toy-bare", prepare, run},
                                               {"toy-naked", prepare, run},
                                               {"toy-greedy", prepare, run},
                                               {"toy-threads", prepare_threads, run}};

const struct code_kind toy_kind = {
    .runtime = &runtimes[0], .calls = calls, .readable = readable, .keep = keep, .tmp = true, .address_space = true};
const struct code_kind toy_bare_kind = {.runtime = &runtimes[1]};
const struct code_kind toy_naked_kind = {
    .runtime = &runtimes[2], .readable = readable, .keep = keep, .tmp = true, .unfiltered = true};
const struct code_kind toy_greedy_kind = {.runtime = &runtimes[3], .calls = greedy_calls};
const struct code_kind toy_threads_kind = {.runtime = &runtimes[4]};
