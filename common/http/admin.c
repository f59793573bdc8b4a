/* SPDX-License-Identifier: Apache-2.0
 *
 * h2o 2.2 (libuv build) with what it lacks added here: own routing on the raw path, header limit, a limit on stalled
 * readers, and closing of idle keep-alive connections at the end (h2o would leave them open for ten seconds). */
#include "common/http/admin.h"

#include "common/log/log.h"
#include "common/metrics/metrics.h"

#include <h2o.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BEAT_MS       1000
#define BEAT_IDLE_MS  5000 /* while nobody is connected */
#define STOP_GRACE_MS 1000
#define BACKLOG       64

struct connection {
    uv_tcp_t uv;
    struct sk_admin *admin;
    struct sk_list link;
    size_t queued;       /* bytes unsent at the last look */
    int64_t progress_us; /* when that number last changed */
};

struct admin_handler {
    h2o_handler_t super;
    struct sk_admin *admin;
};

struct sk_admin {
    struct sk_loop *loop;
    struct sk_health *health;
    h2o_globalconf_t config;
    h2o_context_t context;
    h2o_accept_ctx_t accept;
    uv_tcp_t listener;
    struct sk_timer *beat, *grace;
    uv_timer_t last[2]; /* only closed, one after the other, at the very end */
    int64_t beat_due_us, write_ms;
    struct sk_list connections;
    size_t connection_count;
    int port;
    bool listener_open, stopping, beat_idle;
    bool accept_again; /* memory was out when a connection came: libuv would wait for uv_accept for ever */
    void (*done)(void *arg);
    void *done_arg;
};

static struct sk_metric loop_delay = {.name = "sandkeep_loop_delay_seconds",
                                      .help = "How late the loop runs its timers.",
                                      .kind = SK_METRIC_HISTOGRAM,
                                      .buckets = sk_buckets_latency};

static double read_log_dropped(void *arg)
{
    (void)arg;
    return (double)sk_log_dropped();
}

static struct sk_metric log_dropped = {.name = "sandkeep_log_lines_dropped_total",
                                       .help = "Log lines that could not be written.",
                                       .kind = SK_METRIC_COUNTER,
                                       .read = read_log_dropped};

static struct sk_metric refused = {.name = "sandkeep_admin_connections_refused_total",
                                   .help = "Connections closed because SK_ADMIN_CONNECTIONS_MAX were open.",
                                   .kind = SK_METRIC_COUNTER};

/* reason is never NULL (h2o would crash), content_length is always set (else the body is chunked), and h2o_send_inline
 * leaves the body out for HEAD, which h2o_send alone would not. */
static int reply(h2o_req_t *req, int status, const char *reason, const char *type, const char *body, size_t len)
{
    req->res.status = status;
    req->res.reason = reason;
    req->res.content_length = len;
    h2o_add_header(&req->pool, &req->res.headers, H2O_TOKEN_CONTENT_TYPE, NULL, type, strlen(type));
    h2o_add_header(&req->pool, &req->res.headers, H2O_TOKEN_CACHE_CONTROL, NULL, H2O_STRLIT("no-store"));
    h2o_send_inline(req, body, len);
    return 0;
}

static int reply_problem(h2o_req_t *req, int status, const char *title, const char *detail)
{
    char body[512];
    int len =
        snprintf(body, sizeof(body), "{\"type\":\"about:blank\",\"title\":\"%s\",\"status\":%d,\"detail\":\"%s\"}\n",
                 title, status, detail);

    return reply(req, status, title, "application/problem+json", body, (size_t)len);
}

static int reply_livez(struct sk_admin *admin, h2o_req_t *req)
{
    static const char type[] = "text/plain; charset=utf-8";
    char why[256], body[300];

    if (sk_health_live(admin->health, why, sizeof(why)))
        return reply(req, 200, "OK", type, "ok\n", 3);
    return reply(req, 503, "Service Unavailable", type, body, (size_t)snprintf(body, sizeof(body), "%s\n", why));
}

static int reply_written(struct sk_admin *admin, h2o_req_t *req, bool metrics, bool verbose)
{
    char *body = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&body, &len);
    bool ready = true;

    if (out == NULL)
        return reply_problem(req, 500, "Internal Server Error", "out of memory");
    if (metrics)
        sk_metrics_write(out);
    else
        ready = sk_health_write(admin->health, verbose, out);
    if (fclose(out) != 0) {
        free(body);
        return reply_problem(req, 500, "Internal Server Error", "out of memory");
    }
    /* Copied into the request's pool by h2o_send_inline. */
    if (metrics)
        reply(req, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", body, len);
    else
        reply(req, ready ? 200 : 503, ready ? "OK" : "Service Unavailable", "application/json", body, len);
    free(body);
    return 0;
}

static size_t header_bytes(const h2o_req_t *req)
{
    size_t bytes = req->path.len + req->authority.len + req->method.len;

    for (size_t i = 0; i < req->headers.size; i++)
        bytes += req->headers.entries[i].name->len + req->headers.entries[i].value.len + 4;
    return bytes;
}

static bool query_has(const char *query, size_t len, const char *name)
{
    size_t name_len = strlen(name);

    while (len > 0) {
        const char *end = memchr(query, '&', len);
        size_t part = end != NULL ? (size_t)(end - query) : len;
        if (part >= name_len && memcmp(query, name, name_len) == 0 && (part == name_len || query[name_len] == '='))
            return true;
        len -= end != NULL ? part + 1 : part;
        query += end != NULL ? part + 1 : part;
    }
    return false;
}

static int on_request(h2o_handler_t *self, h2o_req_t *req)
{
    struct sk_admin *admin = ((struct admin_handler *)self)->admin;
    const char *question = memchr(req->path.base, '?', req->path.len);
    size_t path_len = question != NULL ? (size_t)(question - req->path.base) : req->path.len;
    bool live = h2o_memis(req->path.base, path_len, H2O_STRLIT("/livez"));
    bool ready = h2o_memis(req->path.base, path_len, H2O_STRLIT("/readyz"));
    bool metrics = h2o_memis(req->path.base, path_len, H2O_STRLIT("/metrics"));

    if (header_bytes(req) > SK_ADMIN_HEADER_BYTES_MAX)
        return reply_problem(req, 431, "Request Header Fields Too Large", "the headers are too large");
    if (!live && !ready && !metrics)
        return reply_problem(req, 404, "Not Found", "there is /livez, /readyz and /metrics");
    if (!h2o_memis(req->method.base, req->method.len, H2O_STRLIT("GET")) &&
        !h2o_memis(req->method.base, req->method.len, H2O_STRLIT("HEAD"))) {
        h2o_add_header_by_str(&req->pool, &req->res.headers, H2O_STRLIT("allow"), 0, NULL, H2O_STRLIT("GET, HEAD"));
        return reply_problem(req, 405, "Method Not Allowed", "only GET and HEAD");
    }
    if (live)
        return reply_livez(admin, req);
    return reply_written(admin, req, metrics,
                         question != NULL && query_has(question + 1, req->path.len - path_len - 1, "verbose"));
}

static void admin_free(struct sk_admin *admin);

/* Makes h2o see the end of the stream: the only way to end a connection of its from outside. */
static void cut(struct connection *connection)
{
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)&connection->uv, &fd) == 0)
        shutdown(fd, SHUT_RDWR);
}

static void connection_closed(uv_handle_t *handle)
{
    struct connection *connection = handle->data;
    struct sk_admin *admin = connection->admin;

    sk_list_remove(&connection->link);
    admin->connection_count--;
    free(connection);
    if (admin->stopping)
        admin_free(admin);
}

/* h2o keeps uv.data for itself once the socket is its own, so the connection is found by its first member. */
static void h2o_connection_closed(uv_handle_t *handle)
{
    handle->data = handle;
    connection_closed(handle);
}

/* Readers that stall are looked for once a second; without any, the beat is only the loop's sign of life. */
static void arm_beat(struct sk_admin *admin)
{
    int64_t ms;

    admin->beat_idle = admin->connection_count == 0 && !admin->accept_again;
    ms = admin->beat_idle ? BEAT_IDLE_MS : BEAT_MS;
    admin->beat_due_us = sk_mono_us(&sk_sched_system) + ms * 1000;
    sk_timer_start(admin->beat, (uint64_t)ms, 0);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct sk_admin *admin = listener->data;
    struct connection *connection;

    if (status != 0)
        return;
    connection = calloc(1, sizeof(*connection));
    admin->accept_again = connection == NULL;
    if (connection == NULL) {
        arm_beat(admin);
        return;
    }
    connection->admin = admin;
    connection->progress_us = sk_mono_us(&sk_sched_system);
    uv_tcp_init(listener->loop, &connection->uv);
    connection->uv.data = connection;
    sk_list_push_back(&admin->connections, &connection->link);
    admin->connection_count++;
    if (admin->beat_idle)
        arm_beat(admin);
    if (uv_accept(listener, (uv_stream_t *)&connection->uv) != 0) {
        uv_close((uv_handle_t *)&connection->uv, connection_closed);
        return;
    }
    if (admin->connection_count > SK_ADMIN_CONNECTIONS_MAX) {
        sk_metric_add(&refused, 0, 0, 1);
        uv_close((uv_handle_t *)&connection->uv, connection_closed);
        return;
    }
    h2o_accept(&admin->accept, h2o_uv_socket_create((uv_stream_t *)&connection->uv, h2o_connection_closed));
}

static void check_stalled_readers(struct sk_admin *admin, int64_t now_us)
{
    SK_LIST_FOREACH (struct connection, connection, &admin->connections, link) {
        size_t queued = uv_stream_get_write_queue_size((uv_stream_t *)&connection->uv);
        if (queued != connection->queued || queued == 0) {
            connection->queued = queued;
            connection->progress_us = now_us;
        } else if (now_us - connection->progress_us > admin->write_ms * 1000) {
            cut(connection);
        }
    }
}

static void on_beat(void *arg)
{
    struct sk_admin *admin = arg;
    int64_t now_us = sk_mono_us(&sk_sched_system), late_us = now_us - admin->beat_due_us;

    sk_metric_observe(&loop_delay, 0, 0, late_us > 0 ? (double)late_us / 1e6 : 0);
    sk_health_beat(admin->health);
    check_stalled_readers(admin, now_us);
    if (admin->accept_again)
        on_connection((uv_stream_t *)&admin->listener, 0);
    arm_beat(admin);
}

static int resolve(const char *listen, struct sockaddr_storage *address, struct sk_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    const char *colon = strrchr(listen, ':');
    char host[256];
    size_t len;
    int status;

    if (colon == NULL || (len = (size_t)(colon - listen)) >= sizeof(host))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "\"%s\" is not host:port", listen);
    memcpy(host, listen, len);
    host[len] = '\0';
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        memmove(host, host + 1, len - 2);
        host[len - 2] = '\0';
    }
    /* Never "all addresses" by an omission. */
    status = getaddrinfo(host[0] != '\0' ? host : "127.0.0.1", colon + 1, &hints, &found);
    if (status != 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "cannot resolve %s: %s", listen, gai_strerror(status));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

static int bound_port(const uv_tcp_t *listener, char *text, size_t size)
{
    struct sockaddr_storage address;
    int len = sizeof(address), port;
    char host[64] = "?";

    if (uv_tcp_getsockname(listener, (struct sockaddr *)&address, &len) != 0)
        return 0;
    if (address.ss_family == AF_INET6) {
        uv_ip6_name((struct sockaddr_in6 *)&address, host, sizeof(host));
        port = ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
        snprintf(text, size, "[%s]:%d", host, port);
    } else {
        uv_ip4_name((struct sockaddr_in *)&address, host, sizeof(host));
        port = ntohs(((struct sockaddr_in *)&address)->sin_port);
        snprintf(text, size, "%s:%d", host, port);
    }
    return port;
}

static int start_listening(struct sk_admin *admin, const char *listen, struct sk_error *err)
{
    struct sockaddr_storage address;
    char shown[96];
    int status;

    if (resolve(listen, &address, err) != 0)
        return -1;
    uv_tcp_init(sk_loop_uv(admin->loop), &admin->listener);
    admin->listener.data = admin;
    admin->listener_open = true;
    status = uv_tcp_bind(&admin->listener, (struct sockaddr *)&address, 0);
    if (status == 0)
        status = uv_listen((uv_stream_t *)&admin->listener, BACKLOG, on_connection);
    if (status != 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "cannot listen on %s: %s", listen, uv_strerror(status));
    admin->port = bound_port(&admin->listener, shown, sizeof(shown));
    SK_LOG_INFO("admin listener is open", SK_F("address", shown));
    return 0;
}

static void start_h2o(struct sk_admin *admin, int64_t idle_ms)
{
    struct admin_handler *handler;
    h2o_hostconf_t *host;

    h2o_config_init(&admin->config);
    admin->config.server_name = h2o_iovec_init(H2O_STRLIT("sandkeep"));
    admin->config.http1.req_timeout = (uint64_t)idle_ms;
    admin->config.http1.upgrade_to_http2 = 0; /* Debian's h2o has no answer to rapid reset */
    admin->config.max_request_entity_size = SK_ADMIN_BODY_BYTES_MAX;
    host = h2o_config_register_host(&admin->config, h2o_iovec_init(H2O_STRLIT("default")), 65535);
    /* One catch-all: h2o's own routing works on the decoded path. The pathconf pointer is used at once, it moves with
     * the next registration. */
    handler = (struct admin_handler *)h2o_create_handler(h2o_config_register_path(host, "/", 0), sizeof(*handler));
    handler->super.on_req = on_request;
    handler->admin = admin;
    h2o_context_init(&admin->context, sk_loop_uv(admin->loop), &admin->config);
    admin->accept.ctx = &admin->context;
    admin->accept.hosts = admin->config.hosts;
}

struct sk_admin *sk_admin_start(struct sk_loop *loop, const char *listen, struct sk_health *health,
                                struct sk_error *err)
{
    return sk_admin_start_limits(loop, listen, health, SK_ADMIN_IDLE_MS, SK_ADMIN_WRITE_MS, err);
}

struct sk_admin *sk_admin_start_limits(struct sk_loop *loop, const char *listen, struct sk_health *health,
                                       int64_t idle_ms, int64_t write_ms, struct sk_error *err)
{
    struct sk_admin *admin = calloc(1, sizeof(*admin));

    if (admin == NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    admin->loop = loop;
    admin->health = health;
    sk_list_init(&admin->connections);
    sk_metric_register(&loop_delay);
    sk_metric_register(&log_dropped);
    sk_metric_register(&refused);
    admin->write_ms = write_ms;
    start_h2o(admin, idle_ms);
    admin->beat = sk_timer_new(loop, on_beat, admin);
    if (admin->beat == NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        sk_admin_stop(admin, NULL, NULL);
        return NULL;
    }
    if (start_listening(admin, listen, err) != 0) {
        sk_admin_stop(admin, NULL, NULL);
        return NULL;
    }
    sk_health_beat(health);
    arm_beat(admin);
    return admin;
}

int sk_admin_port(const struct sk_admin *admin)
{
    return admin->port;
}

static void last_closed(uv_handle_t *handle)
{
    struct sk_admin *admin = handle->data;
    void (*done)(void *arg) = admin->done;
    void *done_arg = admin->done_arg;

    free(admin);
    if (done != NULL)
        done(done_arg);
}

static void last_but_one_closed(uv_handle_t *handle)
{
    struct sk_admin *admin = handle->data;

    uv_close((uv_handle_t *)&admin->last[1], last_closed);
}

/* When the last connection and the listener are gone. h2o closes its timers without a callback, and they lie inside
 * `context`: the memory may go only after libuv finished with them. A handle closed in the callback of another that was
 * closed with them comes after all of them. */
static void admin_free(struct sk_admin *admin)
{
    if (!sk_list_empty(&admin->connections) || admin->listener_open)
        return;
    sk_timer_free(admin->grace);
    for (int i = 0; i < 2; i++) {
        uv_timer_init(sk_loop_uv(admin->loop), &admin->last[i]);
        admin->last[i].data = admin;
    }
    h2o_context_dispose(&admin->context);
    h2o_config_dispose(&admin->config);
    uv_close((uv_handle_t *)&admin->last[0], last_but_one_closed);
}

static void listener_closed(uv_handle_t *handle)
{
    struct sk_admin *admin = handle->data;

    admin->listener_open = false;
    admin_free(admin);
}

static void on_grace_over(void *arg)
{
    struct sk_admin *admin = arg;

    SK_LIST_FOREACH (struct connection, connection, &admin->connections, link)
        cut(connection);
}

void sk_admin_stop(struct sk_admin *admin, void (*done)(void *arg), void *arg)
{
    admin->stopping = true;
    admin->done = done;
    admin->done_arg = arg;
    sk_timer_free(admin->beat);
    admin->beat = NULL;
    /* h2o_context_request_shutdown would also start HTTP/2's one-second timer, without which the context cannot be
     * disposed. The flag is what HTTP/1.1 looks at: answers carry "Connection: close" from now on. */
    admin->context.shutdown_requested = 1;
    SK_LIST_FOREACH (struct connection, connection, &admin->connections, link) {
        if (uv_stream_get_write_queue_size((uv_stream_t *)&connection->uv) == 0)
            cut(connection);
    }
    if (!sk_list_empty(&admin->connections)) {
        admin->grace = sk_timer_new(admin->loop, on_grace_over, admin);
        if (admin->grace != NULL)
            sk_timer_start(admin->grace, STOP_GRACE_MS, STOP_GRACE_MS);
        else
            on_grace_over(admin);
    }
    if (admin->listener_open)
        uv_close((uv_handle_t *)&admin->listener, listener_closed);
    else
        admin_free(admin);
}
