/* SPDX-License-Identifier: Apache-2.0
 *
 * Start, reaping and end of sk-init. See init.h. */
#include "services/localbox/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct sk_init sk_init_state;

void sk_init_exit(const char *reason, int code, int signal)
{
    char line[160];
    int n = snprintf(line, sizeof(line), "{\"reason\":\"%s\",\"code\":%d,\"signal\":%d}\n", reason, code, signal);
    if (pwrite(SK_INIT_FD_REPORT, line, (size_t)n, 0) < 0) {
        /* the report is a courtesy: the daemon also sees that we are gone */
    }
    sk_init_control_event(line);
    _exit(code & 0xff);
}

static void on_sigchld(uv_signal_t *handle, int signum)
{
    (void)handle;
    (void)signum;
    for (;;) {
        int status = 0;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return;
        if (pid == sk_init_state.entrypoint) {
            int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            sk_init_exit("entrypoint", code, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        }
        sk_init_command_reaped(pid, status);
    }
}

static void limit(int which, int64_t value)
{
    if (value <= 0)
        return;
    struct rlimit r;
    if (getrlimit(which, &r) != 0)
        return;
    if (r.rlim_max == RLIM_INFINITY || (rlim_t)value < r.rlim_max)
        r.rlim_max = (rlim_t)value;
    r.rlim_cur = r.rlim_max;
    setrlimit(which, &r);
}

/* init may start a few more processes than the commands (spawn.c says what for). Where the limit given to us is lower
 * than that, the commands get less. */
static void limit_processes(int64_t value)
{
    struct rlimit r;
    struct sk_init *s = &sk_init_state;
    if (value <= 0)
        return;
    limit(RLIMIT_NPROC, value + SK_INIT_PROCESS_RESERVE);
    if (getrlimit(RLIMIT_NPROC, &r) != 0)
        return;
    rlim_t reserve = r.rlim_max / 2 < SK_INIT_PROCESS_RESERVE ? r.rlim_max / 2 : SK_INIT_PROCESS_RESERVE;
    s->child_processes = r.rlim_max - reserve;
    s->rescue_processes = r.rlim_max - reserve / 2;
    r.rlim_cur = s->child_processes;
    setrlimit(RLIMIT_NPROC, &r);
}

static void nothing(uv_work_t *work)
{
    (void)work;
}

static int64_t config_int(const char *name)
{
    return json_integer_value(json_object_get(sk_init_state.config, name));
}

static int read_config(void)
{
    char *text = NULL;
    size_t len = 0;
    for (;;) {
        char *grown = realloc(text, len + 65536);
        if (grown == NULL)
            return -1;
        text = grown;
        ssize_t n = pread(SK_INIT_FD_CONFIG, text + len, 65536, (off_t)len);
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    close(SK_INIT_FD_CONFIG);
    sk_init_state.config = json_loadb(text, len, 0, NULL);
    memset(text, 0, len);
    free(text);
    return sk_init_state.config == NULL ? -1 : 0;
}

static void start_entrypoint(void)
{
    json_t *list = json_object_get(sk_init_state.config, "entrypoint");
    size_t count = json_array_size(list);
    if (count == 0)
        return;
    char **argv = calloc(count + 1, sizeof(*argv));
    if (argv == NULL)
        return;
    for (size_t i = 0; i < count; i++)
        argv[i] = (char *)json_string_value(json_array_get(list, i));
    struct sk_init_spawn spawn = {
        .argv = argv, .envp = sk_init_state.env, .cwd = sk_init_state.cwd, .in = -1, .out = -1, .err = -1, .extra = -1};
    pid_t pid = sk_init_spawn(&spawn);
    if (pid > 0) {
        sk_init_state.entrypoint = pid;
    } else if (pid != -ENOENT) {
        sk_init_exit("entrypoint", 126, 0);
    } else {
        /* Images are not pulled here: an entrypoint that only the image has is not a failure of the sandbox. */
        sk_init_control_event("{\"event\":\"entrypoint_missing\"}\n");
        json_object_set_new(sk_init_state.config, "entrypoint_missing", json_true());
    }
    free(argv);
}

int main(void)
{
    if (getpid() != 1) { /* it signals every process it can see: never outside a sandbox */
        fputs("sk-init runs only as pid 1 of a sandbox\n", stderr);
        return 2;
    }
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NAME, "sk-init");
    for (int fd = 3; fd <= 6; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    umask(022);
    signal(SIGPIPE, SIG_IGN);
    if (read_config() != 0) {
        fputs("sk-init: no configuration on descriptor 6\n", stderr);
        return 2;
    }
    struct sk_init *s = &sk_init_state;
    s->nonce = json_string_value(json_object_get(s->config, "nonce"));
    s->cwd = json_string_value(json_object_get(s->config, "cwd"));
    s->memory_bytes = config_int("memory_bytes");
    s->orphan_ms = config_int("orphan_ms") > 0 ? (uint64_t)config_int("orphan_ms") : 600000;
    char *none[] = {NULL};
    s->env = sk_init_env_with(none, json_object_get(s->config, "env"));
    json_object_del(s->config, "env");
    if (s->nonce == NULL || s->cwd == NULL || s->env == NULL)
        return 2;
    if (chdir(s->cwd) != 0)
        s->cwd = "/";
    limit_processes(config_int("processes"));
    limit(RLIMIT_NOFILE, config_int("files"));
    s->child_data = (rlim_t)(config_int("data_bytes") > 0 ? config_int("data_bytes") : 0);
    if (s->child_data > 0)
        limit(RLIMIT_DATA, (int64_t)s->child_data + SK_INIT_DATA_RESERVE);
    limit(RLIMIT_FSIZE, config_int("file_bytes"));
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);

    setenv("UV_THREADPOOL_SIZE", "2", 1);
    uv_loop_init(&s->loop);
    /* The pool's threads are made now: libuv aborts when it cannot make them later, and a fork bomb would see to that.
     */
    static uv_work_t first_work;
    uv_queue_work(&s->loop, &first_work, nothing, NULL);
    uv_signal_init(&s->loop, &s->sigchld);
    uv_signal_start(&s->sigchld, on_sigchld, SIGCHLD);
    uv_timer_init(&s->loop, &s->ttl_timer);
    uv_timer_init(&s->loop, &s->orphan_timer);
    struct sk_stream_limits limits = SK_STREAM_LIMITS_DEFAULT;
    limits.max_connections = 512;
    limits.idle_ms = 30000;
    s->http = sk_stream_server_new(&s->loop, &limits, sk_init_http_request, s);
    if (s->http == NULL || sk_stream_server_listen_fd(s->http, SK_INIT_FD_HTTP) != 0 ||
        sk_init_control_start(SK_INIT_FD_CONTROL) != 0) {
        fputs("sk-init: cannot serve on the inherited sockets\n", stderr);
        return 1;
    }
    start_entrypoint();
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return 0;
}
