/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-localbox: wiring. Configuration, the data folder, re-adoption, listeners, signals. Ending the daemon leaves its
 * sandboxes running; `--end-sandboxes` ends them (with or without a daemon that still lives). */
#include "services/localbox/localbox.h"

#include "common/base/loop.h"
#include "common/base/version.h"
#include "common/config/config.h"
#include "common/health/health.h"
#include "common/http/admin.h"
#include "common/log/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct lb lb = {.data_fd = -1};

static const char *const net_choices[] = {"off", "host", NULL};

static const struct sk_config_key keys[] = {
    SK_CONFIG_LISTEN(struct lb_config, listen, "SANDKEEP_LOCALBOX_LISTEN", "127.0.0.1:0",
                     "Address of the API; port 0 picks a free one."),
    SK_CONFIG_LISTEN(struct lb_config, admin_listen, "SANDKEEP_LOCALBOX_ADMIN_LISTEN", "127.0.0.1:0",
                     "Address of /livez, /readyz and /metrics."),
    SK_CONFIG_STRING(
        struct lb_config, key, "SANDKEEP_LOCALBOX_KEY", "", SK_CONFIG_SECRET,
        "API key and volume-manager token; empty leaves the API open to everybody who reaches the address."),
    SK_CONFIG_STRING(struct lb_config, data_dir, "SANDKEEP_LOCALBOX_DATA_DIR", "/var/lib/sandkeep/localbox",
                     SK_CONFIG_REQUIRED, "Folder of records, volumes and sandbox files."),
    SK_CONFIG_STRING(struct lb_config, port_file, "SANDKEEP_LOCALBOX_PORT_FILE", "", 0,
                     "File that gets the API's port once it serves."),
    SK_CONFIG_STRING(struct lb_config, init, "SANDKEEP_LOCALBOX_INIT", "", 0,
                     "The sk-init program; empty = beside this program."),
    SK_CONFIG_STRING(struct lb_config, bwrap, "SANDKEEP_LOCALBOX_BWRAP", "/usr/bin/bwrap", SK_CONFIG_REQUIRED,
                     "The bubblewrap program."),
    SK_CONFIG_STRING(struct lb_config, host_paths, "SANDKEEP_LOCALBOX_HOST_PATHS", "", 0,
                     "Folders, separated by ':', below which host volumes are allowed; empty allows none."),
    SK_CONFIG_STRING(
        struct lb_config, images_dir, "SANDKEEP_LOCALBOX_IMAGES_DIR", "", 0,
        "Folder of root file systems by image name ('/', ':' and '@' written as '_'); others use this machine's /usr."),
    SK_CONFIG_INT(struct lb_config, max_sandboxes, "SANDKEEP_LOCALBOX_MAX_SANDBOXES", 512, 1, 10000, "count",
                  "Sandboxes at the same time."),
    SK_CONFIG_INT(struct lb_config, max_connections, "SANDKEEP_LOCALBOX_MAX_CONNECTIONS", 4096, 16, 100000, "count",
                  "Client connections."),
    SK_CONFIG_INT(struct lb_config, processes, "SANDKEEP_LOCALBOX_PROCESSES", 512, 8, 100000, "count",
                  "Processes and threads of a sandbox."),
    SK_CONFIG_INT(struct lb_config, files, "SANDKEEP_LOCALBOX_FILES", 4096, 64, 1000000, "count",
                  "Open files of a process in a sandbox."),
    SK_CONFIG_INT(struct lb_config, memory_mb, "SANDKEEP_LOCALBOX_MEMORY_MB", 2048, 16, 1048576, "MiB",
                  "Memory of a sandbox that asks for none."),
    SK_CONFIG_INT(struct lb_config, storage_mb, "SANDKEEP_LOCALBOX_STORAGE_MB", 0, 0, 1073741824, "MiB",
                  "Disk of a sandbox that asks for none, its volumes included; 0 = no limit."),
    SK_CONFIG_INT(
        struct lb_config, scratch_mb, "SANDKEEP_LOCALBOX_SCRATCH_MB", 10240, 0, 1073741824, "MiB",
        "Private /tmp, home and /workspace of a sandbox without a disk limit, its volumes not counted; 0 = no "
        "limit."),
    SK_CONFIG_INT(struct lb_config, free_mb, "SANDKEEP_LOCALBOX_FREE_MB", 256, 0, 1073741824, "MiB",
                  "Writers of all sandboxes are stopped while the data folder's file system has less room than this; "
                  "0 = never."),
    SK_CONFIG_INT(struct lb_config, shm_mb, "SANDKEEP_LOCALBOX_SHM_MB", 64, 1, 65536, "MiB", "Size of /dev/shm."),
    SK_CONFIG_INT(struct lb_config, scan_ms, "SANDKEEP_LOCALBOX_SCAN_MS", 2000, 50, 3600000, "ms",
                  "How often each sandbox's disk use is measured."),
    SK_CONFIG_INT(struct lb_config, timeout_max, "SANDKEEP_LOCALBOX_TIMEOUT_MAX", 0, 0, 3155760000, "s",
                  "Longest time to live; 0 = no limit."),
    SK_CONFIG_INT(struct lb_config, uid_base, "SANDKEEP_LOCALBOX_UID_BASE", 2000000, 1000, 4000000000, "id",
                  "First host user of sandboxes (only when run as root)."),
    SK_CONFIG_INT(struct lb_config, uid_count, "SANDKEEP_LOCALBOX_UID_COUNT", 60000, 16, 1000000, "count",
                  "How many host users."),
    SK_CONFIG_INT(struct lb_config, pool_threads, "SANDKEEP_LOCALBOX_POOL_THREADS", 8, 2, 64, "count",
                  "Threads for files and process starts."),
    SK_CONFIG_ENUM(struct lb_config, net, "SANDKEEP_LOCALBOX_NET", "off", net_choices,
                   "Network of sandboxes: off = loopback of their own, host = the machine's."),
    SK_CONFIG_INT(struct lb_config, orphan_seconds, "SANDKEEP_LOCALBOX_ORPHAN_SECONDS", 600, 1, 86400, "s",
                  "A sandbox ends by itself after so long without its daemon."),
    SK_CONFIG_INT(struct lb_config, drain_seconds, "SANDKEEP_DRAIN_SECONDS", 25, 0, 3600, "s",
                  "How long requests may go on after SIGTERM."),
    SK_CONFIG_LOG_LEVEL(struct lb_config, log_level),
};

static struct sk_config config = {
    .program = "sk-localbox", .keys = keys, .count = sizeof(keys) / sizeof(keys[0]), .values = &lb.config};
static struct sk_loop *loop;
static struct sk_health *health;
static struct sk_dependency *sandboxes_ready;
static struct sk_admin *admin;
static uv_signal_t sigchld;
static uv_timer_t drain_timer;
static bool end_only, stopping;

int64_t lb_now_ms(void)
{
    uv_timeval64_t now;
    uv_gettimeofday(&now);
    return now.tv_sec * 1000 + now.tv_usec / 1000;
}

void lb_queue(uv_work_t *work, uv_work_cb run, uv_after_work_cb after)
{
    lb.jobs++;
    uv_queue_work(lb.loop, work, run, after);
}

/* ---- start ---- */

static int make_folder(const char *path)
{
    char copy[LB_PATH_SIZE];
    snprintf(copy, sizeof(copy), "%s", path);
    for (char *p = copy + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char keep = *p;
        *p = '\0';
        if (mkdir(copy, 0700) != 0 && errno != EEXIST)
            return errno;
        *p = keep;
        if (keep == '\0')
            return 0;
    }
}

/* A POSIX lock, because forked children do not inherit it: one that has not come to exec yet when the daemon is killed
 * must not keep the next daemon out. The file is opened nowhere else (closing any descriptor would drop the lock). */
static int lock_data(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = openat(lb.data_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? -1 : fcntl(fd, F_SETLK, &lock);
}

static int prepare_data(struct sk_error *err)
{
    static const char *const folders[] = {"sandboxes", "volumes", "limits", "trash"};
    int error = make_folder(lb.config.data_dir);
    if (error != 0 || realpath(lb.config.data_dir, lb.data_path) == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot make %s: %s", lb.config.data_dir,
                       strerror(error != 0 ? error : errno));
    lb.data_fd = open(lb.data_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lb.data_fd < 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot open %s: %s", lb.data_path, strerror(errno));
    if (!end_only && lock_data() != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "%s is in use by another sk-localbox", lb.data_path);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        error = lb_mkdir_beneath(lb.data_fd, folders[i], 0700);
        if (error != 0 && error != EEXIST)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot make %s/%s: %s", lb.data_path, folders[i], strerror(error));
    }
    return 0;
}

static int find_programs(struct sk_error *err)
{
    char self[LB_PATH_SIZE];
    if (lb.config.init[0] != '\0') {
        if (realpath(lb.config.init, lb.init_path) == NULL)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot find %s: %s", lb.config.init, strerror(errno));
    } else {
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 16);
        if (n <= 0)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot find this program: %s", strerror(errno));
        self[n] = '\0';
        strcpy(strrchr(self, '/') + 1, "sk-init");
        snprintf(lb.init_path, sizeof(lb.init_path), "%s", self);
    }
    if (access(lb.init_path, X_OK) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot run %s: %s", lb.init_path, strerror(errno));
    if (access(lb.config.bwrap, X_OK) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot run %s: %s (install bubblewrap)", lb.config.bwrap,
                       strerror(errno));
    return 0;
}

static int read_boot_id(struct sk_error *err)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, lb.boot_id, 36) : -1;
    if (fd >= 0)
        close(fd);
    return n == 36 ? 0 : sk_fail(err, SK_ERR_INTERNAL, "cannot read the boot id");
}

static int prepare(struct sk_error *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    lb.root = geteuid() == 0;
    lb.net_host = lb.config.net == 1;
    umask(077);
    if (read_boot_id(err) != 0 || prepare_data(err) != 0)
        return -1;
    lb_cgroup_prepare();
    if (end_only)
        return 0;
    if (find_programs(err) != 0 || lb_seccomp_prepare(err) != 0)
        return -1;
    umask(022);
    return lb_rootfs_prepare(err);
}

/* ---- --end-sandboxes ---- */

static int end_sandboxes(void)
{
    int left = 0;
    int fd = lb_open_beneath(lb.data_fd, "sandboxes", O_RDONLY | O_DIRECTORY, 0);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        struct lb_box *box = entry->d_name[0] == '.' ? NULL : lb_record_load(entry->d_name);
        if (box == NULL)
            continue;
        if (strcmp(box->boot_id, lb.boot_id) == 0)
            left += lb_process_kill(box->pid, box->start_time, LB_KILL_MS) != 0;
        lb_cgroup_remove(box->id);
        lb_box_remove(box);
    }
    if (d != NULL)
        closedir(d);
    lb_cgroup_forget();
    return left == 0 ? 0 : 1;
}

/* ---- run and stop ---- */

static void on_sigchld(uv_signal_t *handle, int signum)
{
    (void)handle;
    (void)signum;
    while (waitpid(-1, NULL, WNOHANG) > 0) /* bwrap's outer halves; their sandboxes are watched through their links */
        continue;
}

static void admin_stopped(void *arg)
{
    (void)arg;
    sk_loop_stop(loop);
}

/* Jobs hold pointers to boxes: the table goes when the last of them is done (each is bounded in time). */
static void finish(uv_timer_t *timer)
{
    if (lb.jobs > 0) {
        uv_timer_start(timer, finish, 10, 0);
        return;
    }
    while (lb.boxes != NULL)
        lb_box_remove(lb.boxes);
    if (admin != NULL)
        sk_admin_stop(admin, admin_stopped, NULL);
    else
        sk_loop_stop(loop);
}

static void server_closed(void *arg)
{
    (void)arg;
    lb.server = NULL;
    lb_scan_stop();
    finish(&drain_timer);
}

static void close_server(void)
{
    if (stopping)
        return;
    stopping = true;
    if (lb.server != NULL)
        sk_stream_server_close(lb.server, server_closed, NULL);
    else
        server_closed(NULL);
}

static void on_drained(void *arg)
{
    (void)arg;
    close_server();
}

static void on_drain_timer(uv_timer_t *timer)
{
    (void)timer;
    close_server();
}

static void on_signal(void *arg, int signal)
{
    (void)arg;
    SK_LOG_INFO("stopping; sandboxes go on", SK_FI("signal", signal));
    lb.draining = true;
    sk_health_set_draining(health);
    uv_timer_start(&drain_timer, on_drain_timer, (uint64_t)lb.config.drain_seconds * 1000, 0);
    if (lb.server != NULL)
        sk_stream_server_drain(lb.server, on_drained, NULL);
    else
        close_server();
}

static void on_reload(void *arg)
{
    (void)arg;
    if (sk_config_reload(&config, stderr) == 0)
        sk_log_set_level((enum sk_log_level)lb.config.log_level);
}

static void write_port_file(void)
{
    if (lb.config.port_file == NULL || lb.config.port_file[0] == '\0')
        return;
    char aside[LB_PATH_SIZE + 8];
    snprintf(aside, sizeof(aside), "%s.new", lb.config.port_file);
    FILE *f = fopen(aside, "we");
    if (f == NULL || fprintf(f, "%d\n", lb.port) < 0 || fclose(f) != 0 || rename(aside, lb.config.port_file) != 0)
        SK_LOG_ERROR("cannot write the port file", SK_F("path", lb.config.port_file), SK_F("reason", strerror(errno)));
}

static void serve(void)
{
    struct sk_stream_limits limits = SK_STREAM_LIMITS_DEFAULT;
    char host[256];
    limits.max_connections = (int)lb.config.max_connections;
    const char *colon = strrchr(lb.config.listen, ':');
    snprintf(host, sizeof(host), "%.*s", colon != NULL ? (int)(colon - lb.config.listen) : 0, lb.config.listen);
    if (host[0] == '\0')
        snprintf(host, sizeof(host), "127.0.0.1");
    if (host[0] == '[') { /* [::1]:port */
        host[strlen(host) - 1] = '\0';
        memmove(host, host + 1, strlen(host));
    }
    if (strcmp(host, "localhost") == 0)
        snprintf(host, sizeof(host), "127.0.0.1");
    lb.server = sk_stream_server_new(lb.loop, &limits, lb_http_request, NULL);
    int rc = lb.server == NULL
                 ? UV_ENOMEM
                 : sk_stream_server_listen_tcp(lb.server, host, colon != NULL ? atoi(colon + 1) : 0, &lb.port);
    if (rc != 0) {
        fprintf(stderr, "sk-localbox: cannot listen on %s: %s\n", lb.config.listen, uv_strerror(rc));
        exit(1);
    }
    lb.ready = true;
    lb_scan_start();
    lb_trash_start();
    sk_dependency_up(sandboxes_ready);
    sk_health_set_started(health);
    write_port_file();
    SK_LOG_INFO("serving", SK_F("address", host), SK_FI("port", lb.port), SK_FI("sandboxes", lb.box_count),
                SK_FB("root", lb.root));
}

static bool extra_flag(void *arg, int argc, char **argv, int *index)
{
    (void)arg;
    (void)argc;
    end_only = end_only || strcmp(argv[*index], "--end-sandboxes") == 0;
    return strcmp(argv[*index], "--end-sandboxes") == 0;
}

static const struct sk_version_library libraries[] = {
    {"libuv", uv_version_string, NULL}, {"jansson", NULL, JANSSON_VERSION}, {NULL, NULL, NULL}};

int main(int argc, char **argv)
{
    struct sk_error err = {0};
    const struct sk_service_cli cli = {.config = &config,
                                       .summary = "sandboxes on this machine behind the OpenSandbox API",
                                       .extra_help =
                                           "  --end-sandboxes  end all sandboxes of the data folder and exit\n",
                                       .extra = extra_flag,
                                       .libraries = libraries};
    int status = sk_service_cli(&cli, argc, argv);
    if (status >= 0)
        return status;
    sk_log_init("sk-localbox", (enum sk_log_level)lb.config.log_level);
    char threads[16];
    snprintf(threads, sizeof(threads), "%d", (int)lb.config.pool_threads);
    setenv("UV_THREADPOOL_SIZE", threads, 1);
    loop = sk_loop_new(0, &err);
    if (loop == NULL || (lb.loop = sk_loop_uv(loop), prepare(&err)) != 0) {
        SK_LOG_ERROR("cannot start", SK_FE(&err));
        return 1;
    }
    if (end_only) {
        status = end_sandboxes();
        sk_loop_free(loop);
        sk_config_fini(&config);
        return status;
    }
    health = sk_health_new(&sk_sched_system);
    sandboxes_ready = health != NULL ? sk_health_add(health, "sandboxes", true) : NULL;
    const struct sk_loop_signals signals = {.drain = on_signal, .reload = on_reload};
    if (sandboxes_ready == NULL || sk_loop_on_signals(loop, &signals, &err) != 0 ||
        (admin = sk_admin_start(loop, lb.config.admin_listen, health, &err)) == NULL) {
        SK_LOG_ERROR("cannot start", SK_FE(&err));
        return 1;
    }
    sk_health_register_metrics(health);
    lb_metrics_register();
    uv_signal_init(lb.loop, &sigchld);
    uv_signal_start(&sigchld, on_sigchld, SIGCHLD);
    uv_timer_init(lb.loop, &drain_timer);
    lb_adopt_all(serve);
    sk_loop_run(loop);
    sk_loop_free(loop);
    sk_health_free(health);
    sk_config_fini(&config);
    if (lb.config.port_file != NULL)
        close(lb.data_fd);
    SK_LOG_INFO("stopped");
    return 0;
}
