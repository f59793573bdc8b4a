/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's process: what it is made of, how it begins, drains and ends. Everything that needs privileges (ports,
 * files) is done before they are given away; tenants' bytes come after. */
#include "services/code/host/host.h"

#include "common/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define SWEEP_MS 1000

/* ---- end ---------------------------------------------------------------------------------------- */
static void admin_stopped(void *arg)
{
    struct code_host *host = arg;

    sk_loop_stop(host->loop);
}

static void server_closed(void *arg)
{
    struct code_host *host = arg;

    host->server = NULL;
    code_metrics_forget();
    if (host->admin != NULL)
        sk_admin_stop(host->admin, admin_stopped, host);
    else
        sk_loop_stop(host->loop);
    host->admin = NULL;
}

static void stop(struct code_host *host)
{
    if (host->stopping)
        return;
    host->stopping = true;
    if (host->server != NULL)
        sk_stream_server_close(host->server, server_closed, host);
    else
        server_closed(host);
}

static void on_drained(void *arg)
{
    stop(arg);
}

/* Out of time: what waits is refused, what runs is killed; both are answered within a moment, or cut. */
static void on_drain_over(void *arg)
{
    struct code_host *host = arg;

    if (host->given_up) {
        stop(host);
        return;
    }
    SK_LOG_WARN("the drain is over; tasks that run are killed");
    host->given_up = true;
    code_host_give_up(host);
    sk_timer_start(host->drain, CODE_KILLED_MS, 0);
}

static void on_drain(void *arg)
{
    struct code_host *host = arg;

    if (host->draining)
        return;
    SK_LOG_INFO("draining");
    host->draining = true;
    sk_health_set_draining(host->health);
    code_queue_drain(host->queue);
    sk_timer_start(host->drain, (uint64_t)host->config->drain_seconds * 1000, 0);
    if (host->server != NULL)
        sk_stream_server_drain(host->server, on_drained, host);
    else
        stop(host);
}

static void on_reload(void *arg)
{
    struct code_host *host = arg;

    if (sk_config_reload(host->source, stderr) == 0)
        sk_log_set_level(code_config_log_level(host->config));
}

/* ---- zygotes come and go ------------------------------------------------------------------------ */
static void on_level(void *arg, const struct code_message *message)
{
    struct code_host *host = arg;

    host->level = (enum code_level)message->u.level.level;
}

static void tell(struct code_host *host, enum code_pool pool, bool up)
{
    struct sk_error err = {0};

    code_queue_set_ready(host->queue, pool, up);
    if (up) {
        host->down_ms[pool] = 0;
        sk_dependency_up(host->pools_up[pool]);
        return;
    }
    if (sk_dependency_state(host->pools_up[pool]) == SK_DEPENDENCY_STARTING)
        return;
    if (host->down_ms[pool] == 0)
        host->down_ms[pool] = sk_mono_ms(&sk_sched_system);
    (void)sk_fail(&err, SK_ERR_INTERNAL, "no zygote serves");
    sk_dependency_down(host->pools_up[pool], &err);
}

static void announce(struct code_host *host)
{
    char text[16];
    int length = snprintf(text, sizeof(text), "%d\n", host->port);

    host->announced = true;
    sk_health_set_started(host->health);
    SK_LOG_INFO("serving", SK_F("address", host->config->host), SK_FI("port", host->port),
                SK_F("isolation", code_level_name(host->level)));
    if (host->port_file >= 0) {
        if (write(host->port_file, text, (size_t)length) != length)
            SK_LOG_ERROR("cannot write the port file", SK_F("reason", strerror(errno)));
        close(host->port_file);
    }
    host->port_file = -1;
}

/* Python is served as long as the lean kind is; tasks of the full one wait for theirs. At first both must be there. */
static void on_changed(void *arg)
{
    struct code_host *host = arg;
    bool js = code_zygotes_serving(host->zygotes, CODE_KIND_JS),
         lean = code_zygotes_serving(host->zygotes, CODE_KIND_LEAN),
         full = code_zygotes_serving(host->zygotes, CODE_KIND_FULL);

    tell(host, CODE_POOL_JS, js);
    tell(host, CODE_POOL_PYTHON, lean && (full || host->announced));
    if (!host->announced && js && lean && full)
        announce(host);
    code_host_unstall(host);
    code_host_pump(host);
}

static void on_launcher_gone(void *arg)
{
    struct code_host *host = arg;

    if (host->draining) { /* a second signal: what waits will find nobody to run it */
        host->given_up = true;
        code_host_give_up(host);
        sk_timer_start(host->drain, CODE_LAST_ANSWERS_MS, 0);
        return;
    }
    SK_LOG_ERROR("the launcher has ended");
    host->failed = true;
    stop(host);
}

/* ---- beginning ---------------------------------------------------------------------------------- */
static int make_parts(struct code_host *host, const struct code_host_options *options, struct sk_error *err)
{
    const struct code_config *config = host->config;
    const struct code_queue_settings queue = {.max_waiting = (size_t)config->max_queue,
                                              .pool_size = (int)config->pool_size,
                                              .id_concurrency = (int)config->queue_id_concurrency};
    const struct code_zygotes_events events = {.level = on_level,
                                               .changed = on_changed,
                                               .drain = on_drain,
                                               .reload = on_reload,
                                               .launcher_gone = on_launcher_gone,
                                               .arg = host};
    struct code_broker_options broker = {.loop = host->loop};
    char own_host[256] = "";

    (void)gethostname(own_host, sizeof(own_host) - 1);
    host->policy = code_policy_load(config->net_policy, config->check_internal_ip, own_host, err);
    if (host->policy == NULL)
        return -1;
    broker.policy = host->policy;
    host->broker = code_broker_new(&broker);
    host->queue = code_queue_new(&queue);
    host->js_modules = code_config_modules(config->js_modules);
    host->python_modules = code_config_modules(config->python_modules);
    host->sweep = sk_timer_new(host->loop, code_host_sweep, host);
    host->drain = sk_timer_new(host->loop, on_drain_over, host);
    host->health = sk_health_new(&sk_sched_system);
    for (int i = 0; i < CODE_POOLS && host->health != NULL; i++)
        host->pools_up[i] = sk_health_add(host->health, code_pool_name((enum code_pool)i), true);
    if (host->broker == NULL || host->queue == NULL || host->js_modules == NULL || host->python_modules == NULL ||
        host->sweep == NULL || host->drain == NULL || host->health == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    host->zygotes = code_zygotes_new(host->loop, options->launcher, &events);
    if (host->zygotes == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot watch the launcher");
    sk_timer_start(host->sweep, SWEEP_MS, SWEEP_MS);
    return 0;
}

/* Idle connections, which need no token, must leave descriptors for the tasks. */
static int connections_max(const struct code_config *config)
{
    int64_t needed = CODE_OTHER_FDS + SK_STREAM_REFUSED_MAX + CODE_POOLS * config->pool_size * CODE_TASK_FDS, room;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY)
        return CODE_CONNECTIONS_MAX;
    room = (int64_t)files.rlim_cur - needed;
    if (room >= CODE_CONNECTIONS_MAX)
        return CODE_CONNECTIONS_MAX;
    if (room < CODE_CONNECTIONS_MIN)
        room = CODE_CONNECTIONS_MIN;
    SK_LOG_WARN("few descriptors: fewer client connections are taken", SK_FI("descriptors", files.rlim_cur),
                SK_FI("connections", room), SK_FI("wanted", needed + CODE_CONNECTIONS_MAX));
    return (int)room;
}

static int listen_at(struct code_host *host, struct sk_error *err)
{
    struct sk_stream_limits limits = SK_STREAM_LIMITS_DEFAULT;
    const char *address = strcmp(host->config->host, "localhost") == 0 ? "127.0.0.1" : host->config->host;
    int rc;

    limits.max_connections = connections_max(host->config);
    limits.write_ms = CODE_WRITE_MS;
    host->server = sk_stream_server_new(sk_loop_uv(host->loop), &limits, code_http_request, host);
    rc = host->server == NULL
             ? UV_ENOMEM
             : sk_stream_server_listen_tcp(host->server, address, (int)host->config->port, &host->port);
    return rc == 0 ? 0
                   : sk_fail(err, SK_ERR_INTERNAL, "cannot listen on %s port %d: %s", address, (int)host->config->port,
                             uv_strerror(rc));
}

static int open_port_file(const char *path, struct sk_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);

    if (fd < 0)
        (void)sk_fail(err, SK_ERR_INTERNAL, "cannot write %s: %s", path, strerror(errno));
    return fd;
}

static int write_admin_port(struct code_host *host, const char *path, struct sk_error *err)
{
    char text[16];
    int length = snprintf(text, sizeof(text), "%d\n", sk_admin_port(host->admin)), fd = open_port_file(path, err),
        result = 0;

    if (fd < 0)
        return -1;
    if (write(fd, text, (size_t)length) != length)
        result = sk_fail(err, SK_ERR_INTERNAL, "cannot write %s: %s", path, strerror(errno));
    close(fd);
    return result;
}

/* From here on we are nobody: no file of the machine that is not everybody's, no signal to anybody. */
static int drop_privileges(int64_t uid, struct sk_error *err)
{
    if (uid >= 0 && (setgroups(0, NULL) != 0 || setresgid((gid_t)uid, (gid_t)uid, (gid_t)uid) != 0 ||
                     setresuid((uid_t)uid, (uid_t)uid, (uid_t)uid) != 0))
        return sk_fail(err, SK_ERR_INTERNAL, "cannot become user %lld: %s", (long long)uid, strerror(errno));
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot give up privileges: %s", strerror(errno));
    return 0;
}

static int begin(struct code_host *host, const struct code_host_options *options, struct sk_error *err)
{
    struct rlimit files;

    /* The launcher is told, and tells us: a signal to the whole group must not count twice. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    host->port_file = -1;
    host->loop = sk_loop_new(0, err);
    if (host->loop == NULL || make_parts(host, options, err) != 0 || listen_at(host, err) != 0 ||
        (host->admin = sk_admin_start(host->loop, host->config->admin_listen, host->health, err)) == NULL)
        return -1;
    if (host->config->admin_port_file[0] != '\0' && write_admin_port(host, host->config->admin_port_file, err) != 0)
        return -1;
    if (host->config->port_file[0] != '\0' && (host->port_file = open_port_file(host->config->port_file, err)) < 0)
        return -1;
    sk_health_register_metrics(host->health);
    code_metrics_register(host);
    return drop_privileges(options->uid, err);
}

static void warn(const struct code_config *config)
{
    char *text = NULL, *rest = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);

    if (out == NULL)
        return;
    (void)code_config_warnings(config, out);
    fclose(out);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        SK_LOG_WARN(line);
    free(text);
}

static void free_parts(struct code_host *host)
{
    code_zygotes_free(host->zygotes);
    code_host_free_calls(host);
    sk_timer_free(host->sweep);
    sk_timer_free(host->drain);
    code_broker_free(host->broker);
    sk_loop_free(host->loop);
    code_queue_free(host->queue);
    code_policy_free(host->policy);
    sk_health_free(host->health);
    free(host->js_modules);
    free(host->python_modules);
}

/* What libraries take from the environment and from malloc, before they begin. */
static void prepare_process(void)
{
    char size[16];

    /* Names are looked up on libuv's threads, of which it gives half to that; they are made when the first one is. */
    snprintf(size, sizeof(size), "%d", 2 * CODE_LOOKUPS_MAX);
    (void)setenv("UV_THREADPOOL_SIZE", size, 0); /* somebody who set it knows why */
    /* One heap for each of these threads would cost more than the host itself. And bodies, frames and answers of many
     * MiB go back to the machine when they are freed, whatever small piece lies behind them. */
    mallopt(M_ARENA_MAX, 2);
    mallopt(M_MMAP_THRESHOLD, CODE_MMAP_BYTES);
    mallopt(M_TRIM_THRESHOLD, 4 * CODE_MMAP_BYTES);
}

int code_host_run(const struct code_host_options *options)
{
    static struct code_host host;
    struct sk_error err = {0};

    prepare_process();
    host.config = options->config;
    host.source = options->source;
    host.limits = code_config_limits(options->config);
    host.memory_bytes = code_config_memory_bytes(options->config);
    host.hidden[0] = options->programs;
    host.hidden[1] = "/usr/lib/python3.11";
    host.hidden[2] = "/usr/lib/python3";
    host.hidden[3] = "/usr/share/matplotlib";
    sk_list_init(&host.receiving);
    sk_list_init(&host.live);
    sk_list_init(&host.stalled);
    warn(options->config);
    if (begin(&host, options, &err) != 0) {
        SK_LOG_ERROR("cannot start", SK_FE(&err));
        return 1;
    }
    sk_loop_run(host.loop);
    SK_LOG_INFO("stopped");
    if (code_broker_counts(host.broker).resolving > 0) /* a name server that is silent must not hold up our end */
        _exit(host.failed ? 1 : 0);
    free_parts(&host);
    return host.failed ? 1 : 0;
}
