/* SPDX-License-Identifier: Apache-2.0
 *
 * /sandboxes/{id}/proxy/{port}/…: byte for byte in both directions, never buffered whole. Port 44772 is execd, served
 * by sk-init on a unix socket; any other port is a socket that sk-init opened inside the sandbox's own network. */
#include "services/localbox/localbox.h"

#include "common/log/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define EXECD_PORT  44772
#define EGRESS_PORT 18080
#define HEADERS_MAX 256    /* upstream_limits.header_count: none is left out */
#define RESPONSE_MS 600000 /* until the response's headers, as execd's own proxy */

struct proxy {
    struct sk_stream *x;         /* NULL once the client's side is closed */
    struct sk_stream_call *call; /* NULL before and after the upstream call */
    struct lb_connect *connect;
    char *target;
    int port;
    bool upgrade, body_done, answered;
};

static void proxy_free(struct proxy *p)
{
    if (p->x != NULL || p->call != NULL || p->connect != NULL)
        return;
    free(p->target);
    free(p);
}

static const struct sk_stream_limits upstream_limits = {.header_bytes = 131072,
                                                        .header_count = 256,
                                                        .idle_ms = RESPONSE_MS,
                                                        .body_ms = 0,
                                                        .write_ms = 120000,
                                                        .tunnel_ms = 3600000,
                                                        .write_high = 262144};

/* ---- upstream to client ---- */

static void on_response(struct sk_stream_call *call, int status)
{
    struct proxy *p = sk_stream_call_arg(call);
    struct sk_stream_header out[HEADERS_MAX];
    size_t count, n = 0;
    const struct sk_stream_header *in = sk_stream_call_headers(call, &count);
    if (p->x == NULL)
        return;
    for (size_t i = 0; i < count && n < HEADERS_MAX; i++) {
        if (!sk_stream_hop_by_hop(in[i].name) || (status == 101 && strcasecmp(in[i].name, "upgrade") == 0))
            out[n++] = in[i];
    }
    p->answered = true;
    if (status == 101)
        sk_stream_upgrade(p->x, out, n);
    else
        sk_stream_start(p->x, status, out, n, sk_stream_call_body_length(call));
}

static void on_upstream_body(struct sk_stream_call *call, const char *data, size_t len)
{
    struct proxy *p = sk_stream_call_arg(call);
    if (p->x != NULL && !sk_stream_write(p->x, data, len))
        sk_stream_call_pause(call);
}

static void on_upstream_end(struct sk_stream_call *call)
{
    struct proxy *p = sk_stream_call_arg(call);
    if (p->x != NULL)
        sk_stream_end(p->x);
}

static void on_upstream_drain(struct sk_stream_call *call)
{
    struct proxy *p = sk_stream_call_arg(call);
    if (p->x != NULL)
        sk_stream_resume(p->x);
}

static void bad_gateway(struct proxy *p, int error)
{
    lb_count(LB_COUNT_PROXY_ERRORS);
    if (error == UV_ETIMEDOUT)
        lb_reply_error(p->x, 504, "GENERAL::UNKNOWN_ERROR",
                       "the service on port %d of the sandbox did not answer in time", p->port);
    else
        lb_reply_error(p->x, 502, "GENERAL::UNKNOWN_ERROR", "Could not connect to the backend sandbox port %d: %s",
                       p->port, uv_err_name(error));
}

static void on_upstream_close(struct sk_stream_call *call, int error)
{
    struct proxy *p = sk_stream_call_arg(call);
    p->call = NULL;
    if (p->x != NULL && !sk_stream_ended(p->x)) {
        if (!p->answered)
            bad_gateway(p, error != 0 ? error : UV_EOF);
        else if (error != 0)
            sk_stream_abort(p->x); /* a cut answer must not look whole */
        else
            sk_stream_end(p->x);
    }
    if (p->x != NULL)
        sk_stream_resume(p->x); /* what is left of the request body is read and dropped */
    proxy_free(p);
}

static const struct sk_stream_call_ops call_ops = {.on_response = on_response,
                                                   .on_body = on_upstream_body,
                                                   .on_end = on_upstream_end,
                                                   .on_drain = on_upstream_drain,
                                                   .on_close = on_upstream_close};

/* ---- client to upstream ---- */

static void on_body(struct sk_stream *x, const char *data, size_t len)
{
    struct proxy *p = sk_stream_arg(x);
    if (p->call != NULL && !sk_stream_call_write(p->call, data, len))
        sk_stream_pause(x);
}

static void on_end(struct sk_stream *x)
{
    struct proxy *p = sk_stream_arg(x);
    p->body_done = true;
    if (p->call != NULL)
        sk_stream_call_end(p->call);
}

static void on_drain(struct sk_stream *x)
{
    struct proxy *p = sk_stream_arg(x);
    if (p->call != NULL)
        sk_stream_call_resume(p->call);
}

static void on_gone(struct sk_stream *x)
{
    struct proxy *p = sk_stream_arg(x);
    if (p->call != NULL)
        sk_stream_call_abort(p->call);
    sk_stream_abort(x);
}

static void on_close(struct sk_stream *x, bool complete)
{
    struct proxy *p = sk_stream_arg(x);
    (void)complete;
    p->x = NULL;
    if (p->connect != NULL) {
        lb_connect_cancel(p->connect);
        p->connect = NULL;
    }
    if (p->call != NULL)
        sk_stream_call_abort(p->call);
    proxy_free(p);
}

static const struct sk_stream_ops stream_ops = {
    .on_body = on_body, .on_end = on_end, .on_drain = on_drain, .on_gone = on_gone, .on_close = on_close};

/* Credentials of this provider, and of the browser that talks to it, are nobody's business inside a sandbox. */
static bool dropped(const char *name)
{
    static const char *const names[] = {
        "host", "authorization", "cookie", "open-sandbox-api-key", "x-execd-access-token", NULL};
    for (int i = 0; names[i] != NULL; i++) {
        if (strcasecmp(names[i], name) == 0)
            return true;
    }
    return sk_stream_hop_by_hop(name);
}

static void send_request(struct proxy *p)
{
    struct sk_stream *x = p->x;
    struct sk_stream_header out[HEADERS_MAX];
    size_t count, n = 0;
    const struct sk_stream_header *in = sk_stream_headers(x, &count);
    char host[32];
    snprintf(host, sizeof(host), "127.0.0.1:%d", p->port);
    out[n++] = (struct sk_stream_header){"Host", host};
    for (size_t i = 0; i < count && n < HEADERS_MAX - 4; i++) {
        if (!dropped(in[i].name))
            out[n++] = in[i];
    }
    const char *original = sk_stream_header(x, "host");
    if (sk_stream_header(x, "x-forwarded-proto") == NULL)
        out[n++] = (struct sk_stream_header){"X-Forwarded-Proto", "http"};
    if (sk_stream_header(x, "x-forwarded-host") == NULL && original != NULL)
        out[n++] = (struct sk_stream_header){"X-Forwarded-Host", original};
    if (sk_stream_header(x, "x-forwarded-for") == NULL && sk_stream_peer(x)[0] != '\0')
        out[n++] = (struct sk_stream_header){"X-Forwarded-For", sk_stream_peer(x)};
    sk_stream_call_request(p->call, sk_stream_method(x), p->target, out, n, sk_stream_body_length(x),
                           p->upgrade ? sk_stream_header(x, "upgrade") : NULL);
    if (p->body_done && !p->upgrade)
        sk_stream_call_end(p->call);
    sk_stream_resume(x);
}

static void socket_ready(void *arg, int fd)
{
    struct proxy *p = arg;
    p->connect = NULL;
    if (fd < 0) {
        bad_gateway(p, fd);
        sk_stream_resume(p->x);
        return;
    }
    p->call = sk_stream_call_fd(lb.loop, &upstream_limits, fd, &call_ops, p);
    if (p->call == NULL)
        sk_stream_abort(p->x);
    else
        send_request(p);
}

/* The egress sidecar that SDKs ask for: there is none, and no network either. */
static bool egress(struct sk_stream *x, const char *target)
{
    if (strcmp(sk_stream_method(x), "GET") == 0 && strcmp(target, "/policy") == 0)
        lb_reply_json(x, 200,
                      json_pack("{s:s,s:s,s:{s:s,s:[]}}", "status", "ok", "mode", lb.net_host ? "off" : "deny_all",
                                "policy", "defaultAction", lb.net_host ? "allow" : "deny", "egress"));
    else if (strcmp(target, "/health") == 0 || strcmp(target, "/ping") == 0)
        sk_stream_reply(x, 200, NULL, NULL, 0);
    else
        lb_reply_error(x, 501, "NOT_SUPPORTED", "sk-localbox has no egress policies: sandboxes have no network");
    return true;
}

static bool allowed(struct sk_stream *x, const struct lb_box *box)
{
    if (lb.config.key == NULL || lb.config.key[0] == '\0')
        return true;
    const char *key = sk_stream_header(x, "open-sandbox-api-key"), *token = sk_stream_header(x, "x-execd-access-token");
    if ((key != NULL && lb_key_equal(key, lb.config.key)) ||
        (token != NULL && box != NULL && lb_key_equal(token, box->token)))
        return true;
    lb_reply_error(x, 401, "MISSING_API_KEY", "send the headers that the endpoint call returned, or the API key");
    return false;
}

static void renew_on_access(struct lb_box *box)
{
    if (box->renew_on_access_s == 0 || box->expires_ms == 0)
        return;
    int64_t until = lb_now_ms() + box->renew_on_access_s * 1000;
    if (until < box->expires_ms + 10000)
        return; /* not worth a write for each request */
    box->expires_ms = until;
    lb_box_arm_ttl(box);
    lb_box_save(box, NULL, NULL);
}

void lb_proxy(struct sk_stream *x, const char *id, int port, const char *rest)
{
    struct lb_box *box = lb_box_find(id);
    if (!allowed(x, box))
        return;
    if (box == NULL || box->state == LB_STOPPING) {
        lb_reply_error(x, 404, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox %s not found", id);
        return;
    }
    if (box->state == LB_TERMINATED || box->state == LB_FAILED) {
        lb_reply_error(x, 409, "DOCKER::SANDBOX_NOT_RUNNING", "the sandbox is %s: %s", lb_state_name(box->state),
                       box->message);
        return;
    }
    if (box->state == LB_PAUSED && port != EXECD_PORT) {
        lb_reply_error(x, 409, "SANDBOX_PAUSED", "the sandbox is paused");
        return;
    }
    struct proxy *p = calloc(1, sizeof(*p));
    char *target = p != NULL ? malloc(strlen(rest) + 2) : NULL;
    if (target == NULL) {
        free(p);
        lb_reply_error(x, 500, "GENERAL::UNKNOWN_ERROR", "out of memory");
        return;
    }
    sprintf(target, "%s%s", *rest == '/' ? "" : "/", rest);
    if (port == EGRESS_PORT && egress(x, target)) {
        free(target);
        free(p);
        return;
    }
    lb_count(LB_COUNT_PROXIED);
    renew_on_access(box);
    p->x = x;
    p->target = target;
    p->port = port;
    p->upgrade = sk_stream_is_upgrade(x);
    sk_stream_set(x, &stream_ops, p);
    if (port == EXECD_PORT) {
        char path[160];
        snprintf(path, sizeof(path), "/proc/self/fd/%d/sandboxes/%s/execd.sock", lb.data_fd, box->id);
        p->call = sk_stream_call_unix(lb.loop, &upstream_limits, path, &call_ops, p);
        if (p->call == NULL)
            sk_stream_abort(x);
        else
            send_request(p);
        return;
    }
    sk_stream_pause(x); /* the body waits until there is somebody to send it to */
    p->connect = lb_connect_open(box, port, socket_ready, p);
    if (p->connect == NULL)
        sk_stream_abort(x);
}
