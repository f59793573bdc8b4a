/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-code-try js FILE [--vars JSON] [--timeout MS] [--strict] [--no-jit] [--repeat N]: runs one script in the
 * JavaScript runtime, in a forked child as the sandbox does but without its walls, and prints the result frame. With
 * --repeat it prints how long a child takes instead. Not installed. */
#include "services/code/frame.h"
#include "services/code/js/environment.h"
#include "services/code/runtime.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const modules[] = {"lodash", "dayjs", "moment", "uuid",        "crypto-js",
                                      "qs",     "url",   "buffer", "querystring", NULL};

static char *read_file(const char *path, size_t *length)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *text = NULL;

    *length = 0;
    if (file == NULL)
        return NULL;
    for (;;) {
        char *larger = realloc(text, *length + 65537);
        size_t n;

        if (larger == NULL)
            break;
        text = larger;
        n = fread(text + *length, 1, 65536, file);
        *length += n;
        text[*length] = '\0';
        if (n == 0)
            break;
    }
    if (file != stdin)
        (void)fclose(file);
    return text;
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Own memory of this process, in KiB: what a prepared runtime costs while it is idle. */
static long anonymous(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[128];
    long kilobytes = 0;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "Anonymous:", 10) == 0)
            kilobytes = strtol(line + 10, NULL, 10);
    if (file != NULL)
        (void)fclose(file);
    return kilobytes;
}

static int run_once(struct code_task *task, char **frame, size_t *length)
{
    int ends[2], status;
    pid_t pid;

    if (getrandom(task->seed, sizeof(task->seed), 0) != sizeof(task->seed) || pipe(ends) != 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        struct code_channel channel = {.result = ends[1], .rpc = -1};

        close(ends[0]);
        code_runtime_js.run(task, &channel);
        _exit(0);
    }
    close(ends[1]);
    if (pid < 0 || !code_frame_read(ends[0], 64 << 20, frame, length))
        *frame = NULL;
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    if (*frame == NULL && pid > 0)
        fprintf(stderr, "no result: status 0x%x\n", (unsigned)status);
    return *frame == NULL ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct code_task task = {
        .variables = "{}",
        .variables_length = 2,
        .tmp_dir = "",
        .limits = {.timeout_ms = 10000,
                   .output_bytes = 10 << 20,
                   .log_bytes = 1 << 20,
                   .request_max = 30,
                   .request_timeout_ms = 60000,
                   .request_body_bytes = 5 << 20,
                   .response_bytes = 10 << 20},
    };
    struct sk_error err = {0};
    struct rusage usage;
    const char *path = NULL;
    bool jit = true;
    int repeat = 1;
    double start;

    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--vars") == 0 && i + 1 < argc) {
            task.variables = argv[++i];
            task.variables_length = strlen(task.variables);
        } else if (strcmp(argv[i], "--timeout") == 0 && i + 1 < argc) {
            task.limits.timeout_ms = strtoll(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) {
            repeat = (int)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--strict") == 0) {
            task.strict = true;
        } else if (strcmp(argv[i], "--no-jit") == 0) {
            jit = false;
        } else {
            path = argv[i];
        }
    }
    if (argc < 3 || strcmp(argv[1], "js") != 0 || path == NULL) {
        fprintf(stderr, "usage: sk-code-try js FILE [--vars JSON] [--timeout MS] [--strict] [--no-jit] [--repeat N]\n");
        return 2;
    }
    if (!code_js_environment_set()) {
        for (const char *const *entry = code_js_environment(jit); *entry != NULL; entry++)
            putenv((char *)(uintptr_t)*entry);
        execv("/proc/self/exe", argv);
        return 1;
    }
    if ((task.code = read_file(path, &task.code_length)) == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    start = seconds();
    if (code_runtime_js.prepare(modules, &err) != 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    if (repeat > 1)
        fprintf(stderr, "prepared in %.0f ms, %ld KiB anonymous\n", (seconds() - start) * 1e3, anonymous());
    start = seconds();
    for (int i = 0; i < repeat; i++) {
        char *frame = NULL;
        size_t length = 0;

        if (run_once(&task, &frame, &length) != 0)
            return 1;
        if (i == 0)
            printf("%.*s\n", (int)length, frame);
        free(frame);
    }
    if (repeat > 1) {
        getrusage(RUSAGE_CHILDREN, &usage);
        fprintf(stderr, "%.2f ms wall, %.2f ms CPU, %ld faults a task\n", (seconds() - start) * 1e3 / repeat,
                ((double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3) /
                    repeat,
                usage.ru_minflt / repeat);
    }
    return 0;
}
