/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands: foreground (server-sent events while they run), background (log file, status) and session runs. Event
 * names, order and texts are execd's: init, ping, stdout/stderr lines, then error or execution_complete; the answer
 * ends right after the terminal event. A foreground command outlives its client; a session run does not. */
#include "services/localbox/init/command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct command *first;
static int finished_count, log_count;

int64_t sk_init_now_ms(void)
{
    uv_timeval64_t now;
    uv_gettimeofday(&now);
    return now.tv_sec * 1000 + now.tv_usec / 1000;
}

/* ---- the table ---- */

static struct command *find(const char *id)
{
    for (struct command *c = first; c != NULL; c = c->next) {
        if (strcmp(c->id, id) == 0)
            return c;
    }
    return NULL;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct command *c = handle->data;
    if (--c->timers == 0 && c->dead) {
        free(c->content);
        free(c);
    }
}

static void forget(struct command *c)
{
    for (struct command **p = &first; *p != NULL; p = &(*p)->next) {
        if (*p == c) {
            *p = c->next;
            break;
        }
    }
    finished_count--;
    if (c->log_fd >= 0) {
        close(c->log_fd);
        log_count--;
    }
    c->dead = true;
    if (c->timers == 0) {
        free(c->content);
        free(c);
    }
}

/* A log whose file was removed still takes the user's disk, without a name: nobody would miss it but the limit. */
void sk_init_command_drop_removed_logs(void)
{
    struct stat st;
    for (struct command *c = first; c != NULL; c = c->next) {
        if (!c->running && c->log_fd >= 0 && (fstat(c->log_fd, &st) != 0 || st.st_nlink == 0)) {
            close(c->log_fd);
            c->log_fd = -1;
            log_count--;
        }
    }
}

/* Oldest finished commands go first; running ones are never forgotten. */
static void evict(void)
{
    int64_t oldest = sk_init_now_ms() - SK_INIT_COMMAND_KEEP_MS;
    for (;;) {
        struct command *last = NULL, *last_log = NULL;
        for (struct command *c = first; c != NULL; c = c->next) {
            if (!c->running && c->interrupter == NULL) {
                last = c;
                if (c->log_fd >= 0)
                    last_log = c;
            }
        }
        if (log_count > SK_INIT_LOGS_MAX && last_log != NULL)
            forget(last_log);
        else if (last != NULL && (finished_count > SK_INIT_COMMANDS_MAX || last->finished_ms < oldest))
            forget(last);
        else
            return;
    }
}

/* ---- life of a command ---- */

static void group_kill(struct command *c, int signal)
{
    if (c->running && c->pid > 0)
        kill(-c->pid, signal);
}

static void on_timeout(uv_timer_t *timer)
{
    struct command *c = timer->data;
    c->timed_out = true;
    group_kill(c, SIGKILL);
}

static void on_kill(uv_timer_t *timer)
{
    group_kill(timer->data, SIGKILL);
}

static void on_ping(uv_timer_t *timer)
{
    sk_event_send(timer->data, "ping", "pong", 4, NULL);
}

static void send_terminal(struct command *c)
{
    if (c->x == NULL)
        return;
    struct event tail = {0};
    char text[96];
    if (c->error[0] != '\0' || c->signal != 0 || c->exit_code != 0) {
        sk_event_text(&tail, ",\"error\":{\"ename\":\"CommandExecError\",\"evalue\":\"");
        char trace[64];
        if (c->error[0] != '\0') {
            sk_event_escaped(&tail, c->error, strlen(c->error));
            snprintf(trace, sizeof(trace), "cannot start");
        } else if (c->signal != 0) {
            sk_event_add(&tail, "-1", 2);
            snprintf(trace, sizeof(trace), "signal: %s",
                     c->signal == SIGKILL   ? "killed"
                     : c->signal == SIGTERM ? "terminated"
                                            : strsignal(c->signal));
        } else {
            int n = snprintf(text, sizeof(text), "%d", c->exit_code);
            sk_event_add(&tail, text, (size_t)n);
            snprintf(trace, sizeof(trace), "exit status %d", c->exit_code);
        }
        sk_event_text(&tail, "\",\"traceback\":[\"");
        sk_event_escaped(&tail, trace, strlen(trace));
        sk_event_add(&tail, "\"]}", 4); /* with its NUL: a string from here on */
        if (tail.failed)
            sk_stream_abort(c->x);
        else
            sk_event_send(c, "error", NULL, 0, tail.data);
    } else {
        int64_t took = (c->running ? sk_init_now_ms() : c->finished_ms) - c->started_ms;
        snprintf(text, sizeof(text), ",\"execution_time\":%lld", (long long)took);
        sk_event_send(c, "execution_complete", NULL, 0, took > 0 ? text : NULL);
    }
    free(tail.data);
    struct sk_stream *x = c->x;
    c->x = NULL;
    sk_stream_set(x, NULL, NULL);
    sk_stream_end(x);
}

static void close_timers(struct command *c)
{
    uv_close((uv_handle_t *)&c->timeout, on_timer_closed);
    uv_close((uv_handle_t *)&c->kill_timer, on_timer_closed);
    uv_close((uv_handle_t *)&c->ping, on_timer_closed);
}

static void finish(struct command *c)
{
    if (c->kind == KIND_BACKGROUND && c->pid > 0)
        kill(-c->pid, SIGKILL); /* what is left of its group; setsid escapes on purpose */
    c->running = false;
    c->finished_ms = sk_init_now_ms();
    for (int i = 0; i < 2; i++) {
        if (c->taps[i] != NULL)
            sk_tap_finish(c->taps[i]);
        c->taps[i] = NULL;
    }
    close_timers(c);
    send_terminal(c);
    if (c->session != NULL) {
        sk_init_session_ended(c->session, c->state_fd);
        c->session = NULL;
    }
    if (c->interrupter != NULL) {
        struct sk_stream *x = c->interrupter;
        c->interrupter = NULL;
        sk_stream_set(x, NULL, NULL);
        sk_init_reply_empty(x);
    }
    finished_count++;
    sk_init_command_drop_removed_logs(); /* this command may have removed them */
    evict();
}

void sk_init_command_reaped(pid_t pid, int status)
{
    for (struct command *c = first; c != NULL; c = c->next) {
        if (c->running && c->pid == pid) {
            if (WIFSIGNALED(status)) {
                c->signal = WTERMSIG(status);
                c->exit_code = -1;
            } else {
                c->exit_code = WEXITSTATUS(status);
            }
            finish(c);
            return;
        }
    }
}

static void stream_drain(struct sk_stream *x)
{
    struct command *c = sk_stream_arg(x);
    for (int i = 0; i < 2; i++) {
        if (c->taps[i] != NULL)
            sk_tap_read(c->taps[i]);
    }
}

static void stream_gone(struct sk_stream *x)
{
    struct command *c = sk_stream_arg(x);
    if (c->kind == KIND_SESSION) /* as execd: a session run belongs to its request */
        group_kill(c, SIGKILL);
}

static void stream_closed(struct sk_stream *x, bool complete)
{
    struct command *c = sk_stream_arg(x);
    (void)complete;
    if (c == NULL || c->x != x)
        return;
    c->x = NULL;
    if (c->kind == KIND_SESSION)
        group_kill(c, SIGKILL);
    stream_drain(x); /* goes on without a reader: output is dropped, never blocks the command */
}

static const struct sk_stream_ops event_ops = {
    .on_drain = stream_drain, .on_gone = stream_gone, .on_close = stream_closed};

static struct command *command_new(enum kind kind, const char *text)
{
    struct command *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return NULL;
    sk_init_hex_id(c->id);
    c->kind = kind;
    c->log_fd = c->state_fd = -1;
    c->content = strndup(text, 4096); /* NOLINT(clang-analyzer-core.NonNullParamChecker): argv is not empty */
    c->started_ms = sk_init_now_ms();
    uv_timer_init(&sk_init_state.loop, &c->timeout);
    uv_timer_init(&sk_init_state.loop, &c->kill_timer);
    uv_timer_init(&sk_init_state.loop, &c->ping);
    c->timeout.data = c->kill_timer.data = c->ping.data = c;
    c->timers = 3;
    c->next = first;
    first = c;
    return c;
}

static void log_path(char *out, size_t size, const char *id)
{
    snprintf(out, size, "/tmp/opensandbox-execd/%s.output", id);
}

/* The log lies where the user's disk is counted, but is read through our own descriptor. */
static int open_log(const char *id)
{
    char path[96];
    mkdir("/tmp/opensandbox-execd", 0700);
    log_path(path, sizeof(path), id);
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static void begin_events(struct command *c, struct sk_stream *x)
{
    static const struct sk_stream_header headers[] = {
        {"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    c->x = x;
    sk_stream_set(x, &event_ops, c);
    sk_stream_start(x, 200, headers, 3, SK_STREAM_CHUNKED);
    sk_event_send(c, "init", c->id, 32, NULL);
    sk_event_send(c, "ping", "pong", 4, NULL);
}

/* Takes back a command that never ran and that nobody was told of. */
static void discard(struct command *c)
{
    for (int i = 0; i < 2; i++) {
        if (c->taps[i] != NULL)
            sk_tap_finish(c->taps[i]);
        c->taps[i] = NULL;
    }
    if (c->log_fd >= 0) {
        char path[96];
        log_path(path, sizeof(path), c->id);
        unlink(path);
    }
    if (c->session != NULL)
        sk_init_session_ended(c->session, c->state_fd);
    close_timers(c);
    finished_count++; /* forget counts it off */
    forget(c);
}

/* The sandbox has no room for another process just now. That is no failure of the command: it is answered as a limit,
 * before the stream begins, and may be tried again. */
static bool refuse_for_limit(struct sk_stream *x, int error)
{
    if (error == EAGAIN)
        sk_init_reply_error(x, 429, "PROCESS_LIMIT",
                            "the sandbox's limit of processes is reached: end some and try again");
    else if (error == ENOMEM)
        sk_init_reply_error(x, 429, "MEMORY_LIMIT",
                            "the sandbox's memory is used up: end some processes and try again");
    else if (error == EMFILE || error == ENFILE)
        sk_init_reply_error(x, 429, "FILE_LIMIT",
                            "the sandbox's limit of open files is reached: end some commands first");
    else if (error == ENOSPC || error == EDQUOT)
        sk_init_reply_error(x, 507, "STORAGE_FULL", "there is no room for the command's log");
    else
        return false;
    return true;
}

static void run(struct command *c, struct sk_stream *x, char *const *argv, const char *cwd, char *const *env,
                int64_t timeout_ms)
{
    int out = -1, err = -1, error = 0;
    if (c->kind == KIND_BACKGROUND) {
        out = err = open_log(c->id);
        if (out < 0)
            error = errno;
    } else {
        c->taps[0] = sk_tap_new(c, "stdout", &out);
        if (c->kind == KIND_FOREGROUND)
            c->taps[1] = sk_tap_new(c, "stderr", &err);
        else
            err = out;
        if (c->taps[0] == NULL || (c->kind == KIND_FOREGROUND && c->taps[1] == NULL))
            error = EMFILE;
    }
    if (error == 0) {
        struct sk_init_spawn spawn = {
            .argv = argv, .envp = env, .cwd = cwd, .in = -1, .out = out, .err = err, .extra = c->state_fd};
        pid_t pid = sk_init_spawn(&spawn);
        if (pid > 0)
            c->pid = pid;
        else
            error = -pid;
    }
    if (c->kind == KIND_BACKGROUND) {
        c->log_fd = out;
        log_count += out >= 0;
    } else {
        if (out >= 0)
            close(out);
        if (err >= 0 && err != out)
            close(err);
    }
    if (refuse_for_limit(x, error)) {
        discard(c);
        return;
    }
    c->running = true;
    begin_events(c, x); /* its end is told by the loop, so never before this */
    if (error != 0) {
        snprintf(c->error, sizeof(c->error), "%s", strerror(error));
        c->exit_code = -1;
        finish(c);
        return;
    }
    if (timeout_ms > 0)
        uv_timer_start(&c->timeout, on_timeout, (uint64_t)timeout_ms, 0);
    if (c->kind == KIND_BACKGROUND) {
        send_terminal(c);
        return;
    }
    uv_timer_start(&c->ping, on_ping, SK_INIT_PING_MS, SK_INIT_PING_MS);
    for (int i = 0; i < 2; i++) {
        if (c->taps[i] != NULL)
            sk_tap_read(c->taps[i]);
    }
}

void sk_init_command_session(struct sk_stream *x, struct sk_init_session *session, const char *text, const char *cwd,
                             char *const *env, int64_t timeout_ms)
{
    /* The command's variables and folder come back through a memory file on descriptor 9; `exit` in the command skips
     * that and the session stays as it was. */
    static const char script[] =
        "eval \"$1\" 9>&-\n__sk_rc=$?\n"
        "{ printf '%s\\0' \"$PWD\"; unset __sk_rc_; /usr/bin/env -0; } >&9 2>/dev/null\nexit $__sk_rc\n";
    struct command *c = command_new(KIND_SESSION, text);
    if (c == NULL) {
        sk_init_session_ended(session, -1);
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "out of memory");
        return;
    }
    c->session = session;
    c->state_fd = memfd_create("session", MFD_CLOEXEC);
    const char *shell = sk_init_shell();
    bool bash = strstr(shell, "bash") != NULL;
    char *argv[8];
    int n = 0;
    argv[n++] = (char *)shell;
    if (bash) {
        argv[n++] = (char *)"--noprofile";
        argv[n++] = (char *)"--norc";
    }
    argv[n++] = (char *)"-c";
    argv[n++] = (char *)script;
    argv[n++] = (char *)"session";
    argv[n++] = (char *)text;
    argv[n] = NULL;
    run(c, x, argv, cwd, env, timeout_ms);
}

static void bad(struct sk_stream *x, const char *what)
{
    sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "%s", what);
}

static const char *check_post(json_t *in, int64_t *timeout_ms)
{
    json_t *command = json_object_get(in, "command"), *argv = json_object_get(in, "argv");
    json_t *timeout = json_object_get(in, "timeout"), *envs = json_object_get(in, "envs");
    json_t *cwd = json_object_get(in, "cwd"), *background = json_object_get(in, "background");
    if (!json_is_object(in))
        return "the body must be an object";
    if (argv == NULL || json_is_null(argv)) {
        if (!json_is_string(command) || json_string_length(command) == 0)
            return "command must be a non-empty string";
        if (strlen(json_string_value(command)) != json_string_length(command))
            return "command must not contain NUL";
    } else {
        if (command != NULL && !json_is_null(command))
            return "give command or argv, not both";
        if (!json_is_array(argv) || json_array_size(argv) == 0 || json_array_size(argv) > 4096)
            return "argv must be a non-empty list of strings";
        for (size_t i = 0; i < json_array_size(argv); i++) {
            json_t *item = json_array_get(argv, i);
            if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item))
                return "argv must be a non-empty list of strings";
        }
    }
    if (timeout != NULL && !json_is_null(timeout) && (!json_is_integer(timeout) || json_integer_value(timeout) < 0))
        return "timeout must be milliseconds";
    if (envs != NULL && !json_is_null(envs) && !json_is_object(envs))
        return "envs must be an object";
    if (cwd != NULL && !json_is_null(cwd) && !json_is_string(cwd))
        return "cwd must be a string";
    if (background != NULL && !json_is_null(background) && !json_is_boolean(background))
        return "background must be true or false";
    json_t *uid = json_object_get(in, "uid"), *gid = json_object_get(in, "gid");
    if (gid != NULL && !json_is_null(gid) && (uid == NULL || json_is_null(uid)))
        return "gid needs uid";
    if (uid != NULL && !json_is_null(uid) && json_integer_value(uid) != (json_int_t)getuid())
        return "this sandbox has one user only";
    const char *name;
    json_t *value;
    if (json_is_string(cwd) && strlen(json_string_value(cwd)) != json_string_length(cwd))
        return "cwd must not contain NUL";
    json_object_foreach (envs, name, value) {
        if (*name == '\0' || strchr(name, '=') != NULL)
            return "names in envs must not be empty nor contain =";
        if (!json_is_string(value) && !json_is_null(value))
            return "envs must map names to strings";
        if (json_is_string(value) && strlen(json_string_value(value)) != json_string_length(value))
            return "envs must not contain NUL";
    }
    *timeout_ms = json_integer_value(timeout);
    return NULL;
}

static void post_body(struct sk_stream *x, void *arg, char *body, size_t len)
{
    (void)arg;
    json_error_t parse;
    json_t *in = json_loadb(body, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &parse);
    int64_t timeout_ms = 0;
    char *cwd = NULL, **env = NULL, **argv = NULL;
    const char *why = in == NULL ? "the body is not valid JSON" : check_post(in, &timeout_ms);
    if (why != NULL) {
        bad(x, why);
        goto out;
    }
    const char *wanted = json_string_value(json_object_get(in, "cwd"));
    cwd = sk_init_path(wanted != NULL && *wanted != '\0' ? wanted : sk_init_state.cwd, &why);
    struct stat st;
    if (cwd == NULL) {
        bad(x, why);
        goto out;
    }
    if (stat(cwd, &st) != 0 || !S_ISDIR(st.st_mode)) {
        bad(x, "cwd does not exist or is not a directory");
        goto out;
    }
    env = sk_init_env_with(sk_init_state.env, json_object_get(in, "envs"));
    json_t *list = json_object_get(in, "argv");
    size_t count = json_array_size(list);
    argv = calloc(count + 8, sizeof(*argv));
    if (env == NULL || argv == NULL) {
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "out of memory");
        goto out;
    }
    const char *text = json_string_value(json_object_get(in, "command"));
    if (text != NULL) {
        const char *shell = sk_init_shell();
        int n = 0;
        argv[n++] = (char *)shell;
        if (strstr(shell, "bash") != NULL) {
            argv[n++] = (char *)"--noprofile";
            argv[n++] = (char *)"--norc";
        }
        argv[n++] = (char *)"-c";
        argv[n] = (char *)text;
    } else {
        for (size_t i = 0; i < count; i++)
            argv[i] = (char *)json_string_value(json_array_get(list, i));
        text = argv[0];
    }
    bool background = json_is_true(json_object_get(in, "background"));
    struct command *c = command_new(background ? KIND_BACKGROUND : KIND_FOREGROUND, text);
    if (c == NULL)
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "out of memory");
    else
        run(c, x, argv, cwd, env, timeout_ms);
out:
    free(cwd);
    free(argv);
    sk_init_env_free(env);
    json_decref(in);
}

void sk_init_command_post(struct sk_stream *x)
{
    sk_stream_collect(x, SK_INIT_JSON_MAX, SK_INIT_JSON_MS, post_body, NULL, NULL);
}

static void interrupter_closed(struct sk_stream *x, bool complete)
{
    struct command *c = sk_stream_arg(x);
    (void)complete;
    if (c != NULL && c->interrupter == x)
        c->interrupter = NULL;
}

static const struct sk_stream_ops interrupter_ops = {.on_close = interrupter_closed};

void sk_init_command_delete(struct sk_stream *x)
{
    char *id = sk_stream_query_value(sk_stream_query(x), "id", 0, NULL);
    struct command *c = id != NULL ? find(id) : NULL;
    if (id == NULL || *id == '\0') {
        sk_init_reply_error(x, 400, "MISSING_QUERY", "id is missing");
    } else if (c == NULL || !c->running) {
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "no running command has this id");
    } else {
        group_kill(c, SIGTERM);
        if (!uv_is_active((uv_handle_t *)&c->kill_timer))
            uv_timer_start(&c->kill_timer, on_kill, SK_INIT_INTERRUPT_MS, 0);
        if (c->interrupter == NULL) {
            c->interrupter = x;
            sk_stream_set(x, &interrupter_ops, c);
        } else {
            sk_init_reply_empty(x);
        }
    }
    free(id);
}

static json_t *time_json(int64_t ms)
{
    char text[64];
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000};
    sk_init_time_text(&t, text, sizeof(text));
    return json_string(text);
}

void sk_init_command_status(struct sk_stream *x, const char *id)
{
    struct command *c = find(id);
    if (c == NULL) {
        sk_init_reply_error(x, 404, "INVALID_REQUEST_BODY", "no such command");
        return;
    }
    json_t *out =
        json_pack("{s:s,s:o,s:b,s:o}", "id", c->id, "content", sk_init_string(c->content != NULL ? c->content : ""),
                  "running", (int)c->running, "started_at", time_json(c->started_ms));
    if (!c->running) {
        char error[128] = "";
        if (c->error[0] != '\0')
            snprintf(error, sizeof(error), "%s", c->error);
        else if (c->timed_out)
            snprintf(error, sizeof(error), "signal: killed (time limit)");
        else if (c->signal != 0)
            snprintf(error, sizeof(error), "signal: %s",
                     c->signal == SIGKILL   ? "killed"
                     : c->signal == SIGTERM ? "terminated"
                                            : strsignal(c->signal));
        else if (c->exit_code != 0)
            snprintf(error, sizeof(error), "exit status %d", c->exit_code);
        json_t *end = json_pack("{s:i,s:o,s:s*}", "exit_code", c->exit_code, "finished_at", time_json(c->finished_ms),
                                "error", error[0] != '\0' ? error : NULL);
        if (end == NULL || json_object_update(out, end) != 0) { /* an end without its code would mean "unknown" */
            json_decref(out);
            out = NULL;
        }
        json_decref(end);
    }
    sk_init_reply_json(x, 200, out);
}

/* ---- logs ---- */

struct log_reader {
    int fd;
    int64_t offset, left;
};

static void log_pump(struct sk_stream *x)
{
    struct log_reader *r = sk_stream_arg(x);
    char buffer[32768];
    while (r->left > 0) {
        size_t want = r->left < (int64_t)sizeof(buffer) ? (size_t)r->left : sizeof(buffer);
        ssize_t n = pread(r->fd, buffer, want, r->offset);
        if (n <= 0) {
            sk_stream_abort(x); /* the file shrank under us */
            return;
        }
        r->offset += n;
        r->left -= n;
        if (!sk_stream_write(x, buffer, (size_t)n))
            return;
    }
    sk_stream_end(x);
}

static void log_closed(struct sk_stream *x, bool complete)
{
    struct log_reader *r = sk_stream_arg(x);
    (void)complete;
    close(r->fd);
    free(r);
}

static const struct sk_stream_ops log_ops = {.on_drain = log_pump, .on_close = log_closed};

void sk_init_command_logs(struct sk_stream *x, const char *id)
{
    struct command *c = find(id);
    if (c == NULL || c->kind != KIND_BACKGROUND || c->log_fd < 0) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "no background command has this id");
        return;
    }
    char *text = sk_stream_query_value(sk_stream_query(x), "cursor", 0, NULL);
    char *end = text;
    long long cursor = text != NULL && *text != '\0' ? strtoll(text, &end, 10) : 0;
    bool fine = cursor >= 0 && (end == NULL || *end == '\0');
    free(text);
    if (!fine) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "cursor must be a byte offset");
        return;
    }
    struct stat st;
    struct log_reader *r = calloc(1, sizeof(*r));
    if (r == NULL || fstat(c->log_fd, &st) != 0 || (r->fd = fcntl(c->log_fd, F_DUPFD_CLOEXEC, 3)) < 0) {
        free(r);
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "cannot read the log");
        return;
    }
    r->offset = cursor < st.st_size ? cursor : st.st_size;
    r->left = st.st_size - r->offset;
    char tail[32];
    snprintf(tail, sizeof(tail), "%lld", (long long)st.st_size);
    const struct sk_stream_header headers[] = {{"Content-Type", "text/plain; charset=utf-8"},
                                               {"EXECD-COMMANDS-TAIL-CURSOR", tail}};
    sk_stream_set(x, &log_ops, r);
    sk_stream_start(x, 200, headers, 2, r->left);
    log_pump(x);
}
