/* SPDX-License-Identifier: Apache-2.0
 *
 * The log is kept as the inside of a JSON string, so that the signal handler has nothing to do but write: a chunk of
 * memory whose length is raised after its bytes are there, and that is replaced, not moved, when it is full. */
#include "services/code/js/output.h"

#include "services/code/frame.h"
#include "services/code/js/text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#define LOG_CHUNK_FIRST  4096
#define PARTS_MAX        6
#define LINGER_MS        50            /* how long the engine may go on after the result was written */
#define ALARM_STACK_SIZE (size_t)65536 /* the handler runs even when a task has used up the stack */

struct chunk {
    size_t length, capacity;
    char text[];
};

static struct {
    int fd;
    int64_t output_bytes, log_bytes, logged;
    int lines;
    bool failed;
    struct chunk *volatile log;
    volatile sig_atomic_t committed, written;
    char timeout_head[160];
    size_t timeout_head_length;
} output = {.fd = -1};

static char alarm_stack[ALARM_STACK_SIZE];

/* One frame of several parts. Async-signal-safe. A task whose result nobody takes has nothing else to do. */
static void write_frame(struct iovec *parts, int count)
{
    unsigned char header[CODE_FRAME_HEADER];
    struct iovec all[PARTS_MAX + 1], *next = all;
    size_t length = 0;
    int left = count + 1;

    for (int i = 0; i < count; i++) {
        all[i + 1] = parts[i];
        length += parts[i].iov_len;
    }
    for (size_t i = 0; i < sizeof(header); i++)
        header[i] = (unsigned char)(length >> (8 * i));
    all[0] = (struct iovec){header, sizeof(header)};
    while (left > 0) {
        ssize_t n = writev(output.fd, next, left);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        while (left > 0 && (size_t)n >= next->iov_len) {
            n -= (ssize_t)next->iov_len;
            next++;
            left--;
        }
        if (left > 0) {
            next->iov_base = (char *)next->iov_base + n;
            next->iov_len -= (size_t)n;
        }
    }
}

static struct iovec part(const char *text, size_t length)
{
    return (struct iovec){(char *)(uintptr_t)text, length};
}

/* head + log + "}: the log is left out when the frame would be too large with it. Async-signal-safe. */
static void write_failure(const char *head, size_t head_length)
{
    const struct chunk *log = output.log;
    size_t length = log == NULL ? 0 : log->length;
    struct iovec parts[3] = {part(head, head_length), part(log == NULL ? "" : log->text, length), part("\"}", 2)};

    if ((int64_t)(head_length + length + 2) > output.output_bytes)
        parts[1].iov_len = 0;
    write_frame(parts, 3);
}

static void on_alarm(int number)
{
    (void)number;
    if (output.written)
        _exit(0);
    if (output.committed)
        return; /* the result is being written: it counts */
    output.committed = 1;
    write_failure(output.timeout_head, output.timeout_head_length);
    _exit(0);
}

static bool set_alarm(int64_t ms)
{
    struct itimerval timer = {.it_value = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000}};

    return setitimer(ITIMER_REAL, &timer, NULL) == 0;
}

bool code_output_start(int fd, const struct code_limits *limits)
{
    stack_t stack = {.ss_sp = alarm_stack, .ss_size = sizeof(alarm_stack)};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART | SA_ONSTACK};
    int64_t ms = limits->timeout_ms > 0 ? limits->timeout_ms : 1;
    sigset_t set;

    free(output.log);
    output.log = NULL;
    output.fd = fd;
    output.output_bytes = limits->output_bytes;
    output.log_bytes = limits->log_bytes;
    output.logged = 0;
    output.lines = 0;
    output.failed = false;
    output.committed = output.written = 0;
    output.timeout_head_length =
        (size_t)snprintf(output.timeout_head, sizeof(output.timeout_head),
                         "{\"ok\":false,\"code\":\"timeout\",\"message\":\"Script execution timed out after %lldms\","
                         "\"type\":\"TimeoutError\",\"log\":\"",
                         (long long)ms);
    if (fd < 0)
        return true;
    (void)signal(SIGPIPE, SIG_IGN); /* who takes the result or answers may be gone: an error, not an end */
    sigfillset(&action.sa_mask);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    return sigaltstack(&stack, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0 &&
           sigprocmask(SIG_UNBLOCK, &set, NULL) == 0 && set_alarm(ms);
}

/* Room for `more` bytes; false without memory. */
static bool reserve(size_t more)
{
    struct chunk *old = output.log, *larger;
    size_t length = old == NULL ? 0 : old->length, capacity = old == NULL ? LOG_CHUNK_FIRST : old->capacity;

    if (old != NULL && more <= capacity - length)
        return true;
    while (capacity - length < more)
        capacity *= 2;
    larger = malloc(sizeof(*larger) + capacity);
    if (larger == NULL)
        return false;
    larger->length = length;
    larger->capacity = capacity;
    if (old != NULL)
        memcpy(larger->text, old->text, length);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    output.log = larger;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    free(old);
    return true;
}

void code_output_log(const uint16_t *chars, size_t count)
{
    size_t size;
    int64_t bytes;
    struct chunk *log;
    char *at;

    if (output.committed || (int64_t)count > output.log_bytes)
        return;
    bytes = (int64_t)code_utf8_from(chars, count, NULL) + (output.lines > 0 ? 1 : 0);
    if (output.logged + bytes > output.log_bytes)
        return;
    size = code_json_escape(chars, count, NULL) + (output.lines > 0 ? 2 : 0);
    if (!reserve(size))
        return;
    log = output.log;
    at = log->text + log->length;
    if (output.lines > 0) {
        at[0] = '\\';
        at[1] = 'n';
        at += 2;
    }
    (void)code_json_escape(chars, count, at);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    log->length += size;
    output.logged += bytes;
    output.lines++;
}

static void wrote(void)
{
    output.written = 1;
    if (output.fd >= 0)
        (void)set_alarm(LINGER_MS);
}

static bool commit(bool failed)
{
    if (output.committed)
        return false;
    output.committed = 1;
    output.failed = failed;
    return true;
}

static void write_overflow(void)
{
    char head[160];
    int length = snprintf(head, sizeof(head),
                          "{\"ok\":false,\"code\":\"output\",\"message\":\"Output too large (limit: %lld bytes)\","
                          "\"type\":\"RangeError\",\"log\":\"",
                          (long long)output.output_bytes);

    write_failure(head, (size_t)length);
}

static void write_fixed(const char *code, const char *type, const char *message)
{
    char head[320];
    int length =
        snprintf(head, sizeof(head), "{\"ok\":false,\"code\":\"%s\",\"message\":\"%s\",\"type\":\"%s\",\"log\":\"",
                 code, message, type);

    write_failure(head, (size_t)length < sizeof(head) ? (size_t)length : sizeof(head) - 1);
}

void code_output_value(const uint16_t *json, size_t count)
{
    static const char head[] = "{\"ok\":true,\"value\":", middle[] = ",\"log\":\"", tail[] = "\"}";
    const struct chunk *log = output.log;
    size_t log_length = log == NULL ? 0 : log->length, length;
    char *text;

    if (!commit(false))
        return;
    length = code_json_text(json, count, NULL);
    if (output.fd < 0) {
        wrote();
        return;
    }
    if ((int64_t)(sizeof(head) + length + sizeof(middle) + log_length + sizeof(tail) - 3) > output.output_bytes) {
        write_overflow();
    } else if ((text = malloc(length + 1)) == NULL) {
        write_fixed("memory", "RangeError", "Memory limit exceeded: Out of memory");
    } else {
        struct iovec parts[5] = {part(head, sizeof(head) - 1), part(text, length), part(middle, sizeof(middle) - 1),
                                 part(log == NULL ? "" : log->text, log_length), part(tail, sizeof(tail) - 1)};

        (void)code_json_text(json, count, text);
        write_frame(parts, 5);
        free(text);
    }
    wrote();
}

static char *append(char *at, const char *text)
{
    size_t length = strlen(text);

    memcpy(at, text, length);
    return at + length;
}

void code_output_failure(const struct code_failure *failure)
{
    size_t length;
    char *head, *at, line[32];

    if (!commit(true))
        return;
    length = code_json_escape(failure->message, failure->message_length, NULL) +
             code_json_escape(failure->type, failure->type_length, NULL) +
             code_json_escape(failure->traceback, failure->traceback_length, NULL) + 256;
    if (output.fd < 0) {
        wrote();
        return;
    }
    if ((int64_t)length > output.output_bytes) {
        write_overflow();
    } else if ((head = malloc(length)) == NULL) {
        write_fixed("memory", "RangeError", "Memory limit exceeded: Out of memory");
    } else {
        at = append(append(head, "{\"ok\":false,\"code\":\""), failure->code);
        at = append(at, "\",\"message\":\"");
        at += code_json_escape(failure->message, failure->message_length, at);
        at = append(at, "\",\"type\":\"");
        at += code_json_escape(failure->type, failure->type_length, at);
        at = append(at, "\"");
        if (failure->line > 0) {
            (void)snprintf(line, sizeof(line), ",\"line\":%d", failure->line);
            at = append(at, line);
        }
        if (failure->traceback_length > 0) {
            at = append(at, ",\"traceback\":\"");
            at += code_json_escape(failure->traceback, failure->traceback_length, at);
            at = append(at, "\"");
        }
        at = append(at, ",\"log\":\"");
        write_failure(head, (size_t)(at - head));
        free(head);
    }
    wrote();
}

void code_output_overflow(void)
{
    if (!commit(true))
        return;
    if (output.fd >= 0)
        write_overflow();
    wrote();
}

void code_output_fixed(const char *code, const char *type, const char *message)
{
    if (!commit(true))
        return;
    if (output.fd >= 0)
        write_fixed(code, type, message);
    wrote();
}

bool code_output_done(void)
{
    return output.written != 0;
}

bool code_output_failed(void)
{
    return output.failed;
}
