/* SPDX-License-Identifier: Apache-2.0
 *
 * The control endpoint: JSON lines on a unix socket that only the daemon can reach (its path is outside the sandbox).
 * `connect` opens a TCP connection to a port inside the sandbox's own network and hands the socket out (SCM_RIGHTS). */
#include "services/localbox/init/init.h"
#include "services/localbox/mountinfo.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096

struct control {
    uv_pipe_t pipe;
    uv_timer_t timer; /* limit of a connect */
    uv_tcp_t tcp;
    uv_connect_t connect_req;
    uv_write_t handle_req;
    char line[LINE_MAX_BYTES];
    size_t len;
    int port, handles;
    bool attached, closing, connecting, tcp_open, tried_v6;
    struct control *next, *previous;
};

static uv_pipe_t listener;
static struct control *first;
static int control_count;

static void try_connect(struct control *c);

static void on_orphan(uv_timer_t *timer)
{
    (void)timer;
    if (sk_init_state.attached == 0)
        sk_init_exit("orphan", 0, 0);
}

static void on_closed(uv_handle_t *handle)
{
    struct control *c = handle->data;
    if (--c->handles > 0)
        return;
    free(c);
}

static void control_close(struct control *c)
{
    if (c->closing)
        return;
    c->closing = true;
    if (c->previous != NULL)
        c->previous->next = c->next;
    else
        first = c->next;
    if (c->next != NULL)
        c->next->previous = c->previous;
    control_count--;
    if (c->attached && --sk_init_state.attached == 0)
        uv_timer_start(&sk_init_state.orphan_timer, on_orphan, sk_init_state.orphan_ms, 0);
    uv_close((uv_handle_t *)&c->pipe, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
    if (c->tcp_open)
        uv_close((uv_handle_t *)&c->tcp, on_closed);
}

static void send_line(struct control *c, const char *text)
{
    uv_buf_t buf = uv_buf_init((char *)text, (unsigned)strlen(text));
    /* Lines are far smaller than a socket buffer; a daemon that does not read loses its connection. */
    if (uv_try_write((uv_stream_t *)&c->pipe, &buf, 1) != (int)buf.len)
        control_close(c);
}

void sk_init_control_event(const char *line)
{
    for (struct control *c = first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->attached)
            send_line(c, line);
    }
}

static void on_handle_sent(uv_write_t *req, int status)
{
    (void)status;
    control_close(req->data);
}

static void send_socket(struct control *c)
{
    static char ok[] = "{\"ok\":true}\n";
    uv_buf_t buf = uv_buf_init(ok, sizeof(ok) - 1);
    c->handle_req.data = c;
    if (uv_write2(&c->handle_req, (uv_stream_t *)&c->pipe, &buf, 1, (uv_stream_t *)&c->tcp, on_handle_sent) != 0)
        control_close(c);
}

static void connect_failed(struct control *c, int error)
{
    char line[128];
    snprintf(line, sizeof(line), "{\"ok\":false,\"error\":\"%s\"}\n", uv_err_name(error));
    send_line(c, line);
    control_close(c);
}

static void on_first_closed(uv_handle_t *handle)
{
    struct control *c = handle->data;
    if (--c->handles == 0) {
        free(c);
        return;
    }
    if (!c->closing)
        try_connect(c);
}

static void on_connect(uv_connect_t *req, int status)
{
    struct control *c = req->data;
    if (c->closing)
        return;
    if (status == 0) {
        send_socket(c);
    } else if (!c->tried_v6 && status == UV_ECONNREFUSED) { /* servers on "localhost" may listen on ::1 alone */
        c->tried_v6 = true;
        c->tcp_open = false;
        uv_close((uv_handle_t *)&c->tcp, on_first_closed);
    } else {
        connect_failed(c, c->tried_v6 ? UV_ECONNREFUSED : status);
    }
}

static void try_connect(struct control *c)
{
    struct sockaddr_storage to;
    if (c->tried_v6)
        uv_ip6_addr("::1", c->port, (struct sockaddr_in6 *)&to);
    else
        uv_ip4_addr("127.0.0.1", c->port, (struct sockaddr_in *)&to);
    uv_tcp_init(&sk_init_state.loop, &c->tcp);
    c->tcp.data = c;
    c->tcp_open = true;
    c->handles++;
    c->connect_req.data = c;
    int rc = uv_tcp_connect(&c->connect_req, &c->tcp, (struct sockaddr *)&to, on_connect);
    if (rc != 0)
        connect_failed(c, rc);
}

static void on_connect_timeout(uv_timer_t *timer)
{
    connect_failed(timer->data, UV_ETIMEDOUT);
}

static void on_ttl(uv_timer_t *timer)
{
    (void)timer;
    sk_init_exit("ttl", 0, 0);
}

/* ---- the storage limit ---- */

#define DISKS_MAX 32 /* own folders and volumes: at most 19 */

/* The mounts that the user can write to and that are counted: not /dev/shm, not the machine's read-only system (of
 * which an upgrade may have removed what is still mapped). */
struct disk {
    unsigned long long id;
    dev_t device;
    char point[1024];
};

struct disks {
    struct disk list[DISKS_MAX];
    int count;
};

static void find_disks(struct disks *d)
{
    char *line = NULL;
    size_t size = 0;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    d->count = 0;
    while (file != NULL && d->count < DISKS_MAX && getline(&line, &size, file) > 0) {
        struct disk *disk = &d->list[d->count];
        struct stat st;
        char options[4];
        int at = 0;
        if (sscanf(line, "%llu %*d %*s %*s %n%*s %3[^, ]", &disk->id, &at, options) != 2 || at == 0 ||
            strcmp(options, "rw") != 0)
            continue;
        char *point = line + at;
        point[strcspn(point, " ")] = '\0';
        lb_mount_unescape(point);
        if (strncmp(point, "/dev", 4) == 0 || strncmp(point, "/proc", 5) == 0 || strlen(point) >= sizeof(disk->point) ||
            stat(point, &st) != 0)
            continue;
        snprintf(disk->point, sizeof(disk->point), "%s", point);
        disk->device = st.st_dev;
        d->count++;
    }
    free(line);
    if (file != NULL)
        fclose(file);
}

static bool on_disk(const struct disks *d, const struct statx *x)
{
    for (int i = 0; i < d->count; i++) {
        if ((x->stx_mask & STATX_MNT_ID) != 0 ? d->list[i].id == x->stx_mnt_id
                                              : d->list[i].device == makedev(x->stx_dev_major, x->stx_dev_minor))
            return true;
    }
    return false;
}

static bool path_on_disk(const struct disks *d, const char *path)
{
    for (int i = 0; i < d->count; i++) {
        size_t n = strlen(d->list[i].point);
        if (strncmp(path, d->list[i].point, n) == 0 && path[n] == '/')
            return true;
    }
    return false;
}

static bool open_for_writing(const char *pid, const char *fd_name)
{
    char path[600], text[64] = "";
    snprintf(path, sizeof(path), "/proc/%s/fdinfo/%s", pid, fd_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    const char *flags = n > 0 ? strstr(text, "flags:") : NULL;
    return flags != NULL && (strtol(flags + 6, NULL, 8) & O_ACCMODE) != O_RDONLY;
}

/* A file of the user's disk that is mapped to be written, or that was removed and lives by its mapping. */
static bool maps_files(const struct disks *disks, const char *pid)
{
    static const char deleted[] = " (deleted)\n";
    char path[320], *line = NULL;
    size_t size = 0;
    ssize_t n;
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%s/maps", pid);
    FILE *file = fopen(path, "re");
    while (!found && file != NULL && (n = getline(&line, &size, file)) > 0) {
        const char *rights = strchr(line, ' '), *name = strchr(line, '/');
        bool removed = n >= (ssize_t)sizeof(deleted) && strcmp(line + n - (sizeof(deleted) - 1), deleted) == 0;
        found = rights != NULL && name != NULL && (removed || (rights[2] == 'w' && rights[4] == 's')) &&
                path_on_disk(disks, name);
    }
    free(line);
    if (file != NULL)
        fclose(file);
    return found;
}

/* Whether a process makes the disk fuller or keeps it full: it holds a file open for writing, or one that was removed.
 * One that hides its descriptors from us is taken for such a one. */
static bool holds_disk(const struct disks *disks, const char *pid)
{
    char path[320];
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return errno == EACCES || errno == EPERM;
    bool found = false;
    struct dirent *entry;
    while (!found && (entry = readdir(dir)) != NULL) {
        struct statx x;
        if (entry->d_name[0] == '.' ||
            statx(dirfd(dir), entry->d_name, AT_STATX_DONT_SYNC, STATX_TYPE | STATX_NLINK | STATX_MNT_ID, &x) != 0 ||
            !S_ISREG(x.stx_mode) || !on_disk(disks, &x))
            continue;
        found = x.stx_nlink == 0 || open_for_writing(pid, entry->d_name);
    }
    closedir(dir);
    return found || maps_files(disks, pid);
}

/* The storage limit is passed: who makes it worse ends. Reading, deleting and new commands go on. The entrypoint, whose
 * end is the sandbox's, is spared until it has gone on regardless. */
static void stop_writers(void)
{
    DIR *dir = opendir("/proc");
    if (dir == NULL)
        return;
    struct dirent *entry;
    static struct disks disks; /* too large for a stack, and there is one thread here */
    find_disks(&disks);
    while ((entry = readdir(dir)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 1 && (pid != sk_init_state.entrypoint || sk_init_state.entrypoint_too) &&
            holds_disk(&disks, entry->d_name))
            kill(pid, SIGKILL);
    }
    closedir(dir);
    sk_init_command_drop_removed_logs();
}

static void attach(struct control *c)
{
    if (!c->attached) {
        c->attached = true;
        sk_init_state.attached++;
        uv_timer_stop(&sk_init_state.orphan_timer);
    }
    char line[256];
    snprintf(line, sizeof(line),
             "{\"ok\":true,\"nonce\":\"%s\",\"paused\":%s,\"storage_full\":%s,\"entrypoint_missing\":%s}\n",
             sk_init_state.nonce, sk_init_state.paused ? "true" : "false",
             sk_init_state.storage_full ? "true" : "false",
             json_is_true(json_object_get(sk_init_state.config, "entrypoint_missing")) ? "true" : "false");
    send_line(c, line);
}

static void handle_line(struct control *c, const char *line, size_t len)
{
    json_t *order = json_loadb(line, len, 0, NULL);
    const char *op = json_string_value(json_object_get(order, "op"));
    const char *answer = "{\"ok\":true}\n";
    if (op == NULL) {
        answer = "{\"ok\":false,\"error\":\"bad order\"}\n";
    } else if (strcmp(op, "attach") == 0) {
        attach(c);
        answer = NULL;
    } else if (strcmp(op, "pause") == 0) {
        kill(-1, SIGSTOP);
        sk_init_state.paused = true;
    } else if (strcmp(op, "resume") == 0) {
        sk_init_state.paused = false;
        kill(-1, SIGCONT);
    } else if (strcmp(op, "ttl") == 0) {
        int64_t in_ms = json_integer_value(json_object_get(order, "in_ms"));
        if (in_ms < 0)
            uv_timer_stop(&sk_init_state.ttl_timer);
        else
            uv_timer_start(&sk_init_state.ttl_timer, on_ttl, (uint64_t)in_ms, 0);
    } else if (strcmp(op, "storage") == 0) {
        sk_init_state.storage_full = json_is_true(json_object_get(order, "full"));
        sk_init_state.entrypoint_too = json_is_true(json_object_get(order, "entrypoint_too"));
        if (sk_init_state.storage_full)
            stop_writers();
    } else if (strcmp(op, "shutdown") == 0) {
        send_line(c, answer);
        sk_init_exit("shutdown", 0, 0);
    } else if (strcmp(op, "connect") == 0 && !c->connecting) {
        c->port = (int)json_integer_value(json_object_get(order, "port"));
        c->connecting = true;
        answer = NULL;
        uv_timer_start(&c->timer, on_connect_timeout, SK_INIT_CONNECT_MS, 0);
        try_connect(c);
    } else {
        answer = "{\"ok\":false,\"error\":\"unknown order\"}\n";
    }
    json_decref(order);
    if (answer != NULL && !c->closing)
        send_line(c, answer);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct control *c = handle->data;
    (void)suggested;
    *buf = uv_buf_init(c->line + c->len, (unsigned)(sizeof(c->line) - c->len));
}

static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    struct control *c = stream->data;
    (void)buf;
    if (c->closing || nread == 0)
        return;
    if (nread < 0) {
        control_close(c);
        return;
    }
    c->len += (size_t)nread;
    char *end;
    while (!c->closing && (end = memchr(c->line, '\n', c->len)) != NULL) {
        size_t len = (size_t)(end - c->line);
        handle_line(c, c->line, len);
        c->len -= len + 1;
        memmove(c->line, end + 1, c->len);
    }
    if (c->len == sizeof(c->line))
        control_close(c);
}

static void on_connection(uv_stream_t *server, int status)
{
    if (status < 0)
        return;
    struct control *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return;
    uv_pipe_init(&sk_init_state.loop, &c->pipe, 1);
    uv_timer_init(&sk_init_state.loop, &c->timer);
    c->pipe.data = c->timer.data = c;
    c->handles = 2;
    c->next = first;
    if (first != NULL)
        first->previous = c;
    first = c;
    control_count++;
    if (uv_accept(server, (uv_stream_t *)&c->pipe) != 0 || control_count > 1024) {
        control_close(c);
        return;
    }
    uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
}

int sk_init_control_start(int fd)
{
    uv_timer_start(&sk_init_state.orphan_timer, on_orphan, sk_init_state.orphan_ms, 0);
    uv_pipe_init(&sk_init_state.loop, &listener, 0);
    int rc = uv_pipe_open(&listener, fd);
    if (rc != 0)
        return rc;
    return uv_listen((uv_stream_t *)&listener, 1024, on_connection);
}
