/* SPDX-License-Identifier: Apache-2.0
 *
 * A child a task, with the walls' limit of memory at most; the parent reads the result and answers requests. */
#include "tests/unit/code/js/harness.h"

#include "services/code/frame.h"

#include <check.h>
#include <poll.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FRAME_MAX   ((size_t)64 << 20)
#define WAITING_MAX 64
#define PATIENCE_MS 20000 /* of a slow, busy machine, beyond the task's own time */

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void limit_memory(int megabytes)
{
    FILE *file = fopen("/proc/self/status", "re");
    struct rlimit limit;
    char line[128];
    long kilobytes = 0;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "VmData:", 7) == 0)
            kilobytes = strtol(line + 7, NULL, 10);
    if (file != NULL)
        fclose(file);
    limit.rlim_cur = limit.rlim_max = ((rlim_t)kilobytes << 10) + ((rlim_t)megabytes << 20);
    if (kilobytes == 0 || setrlimit(RLIMIT_DATA, &limit) != 0)
        _exit(99);
    limit.rlim_cur = limit.rlim_max = 0;
    (void)setrlimit(RLIMIT_CORE, &limit);
}

#if defined(__SANITIZE_ADDRESS__)
static void wall(void)
{
}
#else
/* What the README says that a task needs of the kernel; anything else ends the child. */
static void wall(void)
{
    static const int calls[] = {
        SCMP_SYS(read),       SCMP_SYS(write),        SCMP_SYS(writev),        SCMP_SYS(close),
        SCMP_SYS(poll),       SCMP_SYS(brk),          SCMP_SYS(munmap),        SCMP_SYS(mremap),
        SCMP_SYS(madvise),    SCMP_SYS(getrandom),    SCMP_SYS(clock_gettime), SCMP_SYS(rt_sigaction),
        SCMP_SYS(setitimer),  SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack),   SCMP_SYS(rt_sigprocmask),
        SCMP_SYS(pread64),    SCMP_SYS(sysinfo),      SCMP_SYS(futex),         SCMP_SYS(sched_yield),
        SCMP_SYS(exit_group),
    };
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    int failed = filter == NULL;

    for (size_t i = 0; !failed && i < sizeof(calls) / sizeof(calls[0]); i++)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, calls[i], 0);
    failed =
        failed || seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                                   SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_SHARED, 0)) != 0;
    if (failed || seccomp_load(filter) != 0)
        _exit(98);
    seccomp_release(filter);
}
#endif

static void child(const struct code_task *task, int memory_mb, int result, int rpc)
{
    struct code_channel channel = {.result = result, .rpc = rpc};

    if (memory_mb > 0)
        limit_memory(memory_mb);
    wall();
    code_runtime_js.run(task, &channel);
    _exit(0);
}

static bool write_answer(int fd, json_t *answer)
{
    char *text = json_dumps(answer, JSON_COMPACT | JSON_ENCODE_ANY);
    bool written = code_frame_write(fd, text, strlen(text));

    free(text);
    json_decref(answer);
    return written;
}

/* One request came: takes it, and answers whatever it is time for. False = the stream is to be closed. */
static bool serve(struct js_broker *broker, int fd, json_t **waiting, int *count, int *answered)
{
    char *text;
    size_t length;

    if (!code_frame_read(fd, FRAME_MAX, &text, &length))
        return false;
    ck_assert_int_lt(*count, WAITING_MAX);
    waiting[(*count)++] = json_loadb(text, length, 0, NULL);
    ck_assert_ptr_nonnull(waiting[*count - 1]);
    free(text);
    broker->requests++;
    if (*count > broker->peak)
        broker->peak = *count;
    if (broker->junk)
        return code_frame_write(fd, "{\"id\":999}", 10);
    while (*count > 0 && (*count >= broker->hold || broker->requests >= broker->expect)) {
        json_t *request = waiting[0];

        memmove(waiting, waiting + 1, (size_t)-- * count * sizeof(*waiting));
        if (!write_answer(fd, broker->answer(broker, *answered, request)))
            return false;
        json_decref(request);
        if (++*answered == broker->close_after)
            return false;
    }
    return true;
}

char *js_run_text(struct code_task *task, int memory_mb, struct js_broker *broker, int *status, size_t *length)
{
    static const struct code_limits ordinary = {.timeout_ms = 60000,
                                                .output_bytes = 10 << 20,
                                                .log_bytes = 1 << 20,
                                                .request_max = 30,
                                                .request_timeout_ms = 60000,
                                                .request_body_bytes = 5 << 20,
                                                .response_bytes = 10 << 20};
    json_t *waiting[WAITING_MAX];
    int result[2], rpc[2] = {-1, -1}, count = 0, answered = 0;
    int64_t end;
    char *text = NULL, extra;
    pid_t pid;

    task->limits.timeout_ms = task->limits.timeout_ms != 0 ? task->limits.timeout_ms : ordinary.timeout_ms;
    task->limits.output_bytes = task->limits.output_bytes != 0 ? task->limits.output_bytes : ordinary.output_bytes;
    task->limits.log_bytes = task->limits.log_bytes != 0 ? task->limits.log_bytes : ordinary.log_bytes;
    task->limits.request_max = task->limits.request_max != 0 ? task->limits.request_max : ordinary.request_max;
    task->limits.request_timeout_ms = ordinary.request_timeout_ms;
    task->limits.request_body_bytes =
        task->limits.request_body_bytes != 0 ? task->limits.request_body_bytes : ordinary.request_body_bytes;
    task->limits.response_bytes = ordinary.response_bytes;
    task->tmp_dir = "";
    ck_assert_int_eq(getrandom(task->seed, sizeof(task->seed), 0), sizeof(task->seed));
    ck_assert_int_eq(pipe(result), 0);
    if (broker != NULL)
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, rpc), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(result[0]);
        if (rpc[0] >= 0)
            close(rpc[0]);
        child(task, memory_mb, result[1], rpc[1]);
    }
    close(result[1]);
    if (rpc[1] >= 0)
        close(rpc[1]);
    end = now_ms() + task->limits.timeout_ms + PATIENCE_MS;
    for (;;) {
        struct pollfd fds[2] = {{.fd = result[0], .events = POLLIN}, {.fd = rpc[0], .events = POLLIN}};
        int64_t left = end - now_ms();

        ck_assert_msg(left > 0, "no result in time");
        if (poll(fds, 2, (int)left) <= 0)
            continue;
        if (fds[0].revents != 0)
            break;
        if (fds[1].revents != 0 && !serve(broker, rpc[0], waiting, &count, &answered)) {
            close(rpc[0]);
            rpc[0] = -1;
        }
    }
    if (code_frame_read(result[0], FRAME_MAX, &text, length)) {
        ck_assert_msg((int64_t)*length <= task->limits.output_bytes, "a frame of %zu bytes", *length);
        ck_assert_msg(read(result[0], &extra, 1) == 0, "more than one frame");
    }
    close(result[0]);
    if (rpc[0] >= 0)
        close(rpc[0]);
    while (count > 0)
        json_decref(waiting[--count]);
    ck_assert_int_eq(waitpid(pid, status, 0), pid);
    return text;
}

json_t *js_run(struct code_task *task, int memory_mb, struct js_broker *broker, int *status)
{
    size_t length;
    char *text = js_run_text(task, memory_mb, broker, status, &length);
    json_error_t error;
    json_t *frame;

    if (text == NULL)
        return NULL;
    frame = json_loadb(text, length, JSON_ALLOW_NUL, &error);
    ck_assert_msg(frame != NULL, "the frame is no JSON: %s: %.300s", error.text, text);
    free(text);
    return frame;
}
