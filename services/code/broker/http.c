/* SPDX-License-Identifier: Apache-2.0
 *
 * One exchange with one target: a multi handle of libcurl's with one transfer, its sockets and its timer on the loop.
 * It may connect only to addresses that were judged; the socket's and the connection's are looked at once more. */
#include "services/code/broker/internal.h"

#include "common/base/json.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define ANSWER_HEADERS 256 /* names kept */

struct poll {
    struct sk_list link;
    uv_poll_t handle;
    struct code_transfer *transfer;
    curl_socket_t fd;
};

static void poll_free(uv_handle_t *handle)
{
    free(handle->data);
}

static void poll_close(struct poll *p)
{
    sk_list_remove(&p->link);
    uv_poll_stop(&p->handle);
    uv_close((uv_handle_t *)&p->handle, poll_free);
}

static const char *curl_message(CURLcode code)
{
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
        return "Request timeout";
    case CURLE_COULDNT_CONNECT:
        return "Request failed: could not connect";
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
        return "Request failed: no TLS connection";
    case CURLE_BAD_CONTENT_ENCODING:
        return "Request failed: the response could not be decoded";
    case CURLE_OUT_OF_MEMORY:
        return "Out of memory";
    case CURLE_COULDNT_RESOLVE_HOST:
        return "Request failed: could not resolve host";
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        return "Request failed: the answer was not HTTP";
    default:
        return "Request failed: connection lost";
    }
}

/* After each call into libcurl from the loop: is the one transfer over? */
static void look(struct code_transfer *t)
{
    CURLMsg *m;
    int left;

    while (t->multi != NULL && (m = curl_multi_info_read(t->multi, &left)) != NULL) {
        if (m->msg == CURLMSG_DONE) {
            CURLcode code = m->data.result;

            code_transfer_exchanged(t, t->message != NULL ? t->message : code == CURLE_OK ? NULL : curl_message(code));
            return;
        }
    }
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct poll *p = handle->data;
    struct code_transfer *t = p->transfer;
    int running, flags = status < 0 ? CURL_CSELECT_ERR : 0;

    flags |= (events & UV_READABLE) != 0 ? CURL_CSELECT_IN : 0;
    flags |= (events & UV_WRITABLE) != 0 ? CURL_CSELECT_OUT : 0;
    curl_multi_socket_action(t->multi, p->fd, flags, &running);
    look(t);
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *of_socket)
{
    struct code_transfer *t = arg;
    struct poll *p = of_socket;
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (p != NULL)
            poll_close(p);
        curl_multi_assign(t->multi, fd, NULL);
        return 0;
    }
    if (p == NULL) {
        p = calloc(1, sizeof(*p));
        if (p == NULL)
            return -1;
        if (uv_poll_init(sk_loop_uv(t->requester->broker->options.loop), &p->handle, fd) != 0) {
            free(p);
            return -1;
        }
        p->handle.data = p;
        p->transfer = t;
        p->fd = fd;
        sk_list_push_back(&t->polls, &p->link);
        curl_multi_assign(t->multi, fd, p);
    }
    return uv_poll_start(&p->handle, events, on_poll) == 0 ? 0 : -1;
}

static void on_curl_timer(void *arg)
{
    struct code_transfer *t = arg;
    int running;

    if (t->multi == NULL)
        return;
    curl_multi_socket_action(t->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    look(t);
}

static int on_timer_wish(CURLM *multi, long ms, void *arg)
{
    struct code_transfer *t = arg;

    (void)multi;
    if (ms < 0)
        sk_timer_stop(t->curl_timer);
    else
        sk_timer_start(t->curl_timer, (uint64_t)ms, 0);
    return 0;
}

static bool was_judged(const struct code_transfer *t, const struct sockaddr *address)
{
    for (size_t i = 0; i < t->address_count; i++) {
        const struct sockaddr *one = (const struct sockaddr *)&t->addresses[i];

        if (one->sa_family != address->sa_family)
            continue;
        if (one->sa_family == AF_INET && memcmp(&((const struct sockaddr_in *)one)->sin_addr,
                                                &((const struct sockaddr_in *)address)->sin_addr, 4) == 0)
            return true;
        if (one->sa_family == AF_INET6 && memcmp(&((const struct sockaddr_in6 *)one)->sin6_addr,
                                                 &((const struct sockaddr_in6 *)address)->sin6_addr, 16) == 0)
            return true;
    }
    return false;
}

static curl_socket_t on_open(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct code_transfer *t = arg;

    if (purpose != CURLSOCKTYPE_IPCXN || (address->family != AF_INET && address->family != AF_INET6) ||
        !was_judged(t, &address->addr) || !code_transfer_permits(t, &address->addr))
        return CURL_SOCKET_BAD;
    memset(&t->peer, 0, sizeof(t->peer));
    memcpy(&t->peer, &address->addr,
           address->family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* Connected, nothing sent yet: libcurl asked the kernel who the peer is. */
static int on_connected(void *arg, char *peer, char *local, int peer_port, int local_port)
{
    struct code_transfer *t = arg;
    struct sockaddr_storage address = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;

    (void)local;
    (void)local_port;
    if (inet_pton(AF_INET, peer, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)peer_port);
    } else if (inet_pton(AF_INET6, peer, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)peer_port);
    }
    return was_judged(t, (struct sockaddr *)&address) && code_transfer_permits(t, (struct sockaddr *)&address)
               ? CURL_PREREQFUNC_OK
               : CURL_PREREQFUNC_ABORT;
}

static bool keep_header(struct code_transfer *t, const char *line, size_t length)
{
    const char *colon = memchr(line, ':', length), *value;
    size_t name_len, len;
    char name[256], *text;
    const json_t *before;
    json_t *cleaned;
    bool good;

    if (colon == NULL || colon == line || (size_t)(colon - line) >= sizeof(name))
        return true;
    name_len = (size_t)(colon - line);
    for (size_t i = 0; i < name_len; i++) {
        if ((unsigned char)line[i] <= ' ' || (unsigned char)line[i] >= 0x7f)
            return true;
        name[i] = (char)tolower((unsigned char)line[i]);
    }
    name[name_len] = '\0';
    value = colon + 1;
    len = length - name_len - 1;
    while (len > 0 && (*value == ' ' || *value == '\t')) {
        value++;
        len--;
    }
    while (len > 0 && (unsigned char)value[len - 1] <= ' ')
        len--;
    if (memchr(value, '\0', len) != NULL)
        return true;
    if (strcmp(name, "location") == 0 && sk_buf_len(&t->location) == 0 && !sk_buf_append(&t->location, value, len))
        return false;
    before = json_object_get(t->answer_headers, name);
    if (before == NULL && json_object_size(t->answer_headers) >= ANSWER_HEADERS)
        return true;
    if (asprintf(&text, "%s%s%.*s", before == NULL ? "" : json_string_value(before), before == NULL ? "" : ", ",
                 (int)len, value) < 0)
        return false;
    cleaned = sk_json_text(text);
    free(text);
    good = cleaned != NULL && json_object_set_new(t->answer_headers, name, cleaned) == 0;
    return good;
}

static size_t on_header(char *line, size_t one, size_t length, void *arg)
{
    struct code_transfer *t = arg;
    long status = 0;

    (void)one;
    t->header_bytes += length;
    if (t->header_bytes > CODE_ANSWER_HEADERS_MAX) {
        t->message = "Response too large";
        return 0;
    }
    if (length >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        const char *end = line + length, *p = memchr(line, ' ', length);

        json_object_clear(t->answer_headers); /* what came before belonged to an interim answer */
        sk_buf_clear(&t->location);
        p = p == NULL ? NULL : memchr(p + 1, ' ', (size_t)(end - p - 1));
        t->status_text[0] = '\0';
        if (p != NULL) {
            size_t n = 0;

            for (p++; p < end && n + 1 < sizeof(t->status_text); p++)
                if ((unsigned char)*p >= ' ' && (unsigned char)*p < 0x7f)
                    t->status_text[n++] = *p;
            t->status_text[n] = '\0';
        }
        return length;
    }
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    t->status = (int)status;
    if (!keep_header(t, line, length)) {
        t->message = "Out of memory";
        return 0;
    }
    return length;
}

static size_t on_body(char *data, size_t one, size_t length, void *arg)
{
    struct code_transfer *t = arg;
    struct code_broker *broker = t->requester->broker;

    (void)one;
    broker->counts.received_bytes += (int64_t)length;
    t->requester->counts.received_bytes += (int64_t)length;
    if ((int64_t)(sk_buf_len(&t->data) + length) > t->requester->limits.response_bytes) {
        t->message = "Response too large";
        return 0;
    }
    if (!code_broker_hold(broker, (int64_t)length)) {
        t->message = "Too many responses at once, try again later";
        return 0;
    }
    t->held += (int64_t)length;
    if (!sk_buf_append(&t->data, data, length)) {
        t->message = "Out of memory";
        return 0;
    }
    return length;
}

/* "host:port:address,address": libcurl finds these and asks nobody. */
static bool pin(struct code_transfer *t)
{
    struct sk_buf line;
    bool good;

    if (t->target.literal)
        return true;
    sk_buf_init(&line, CODE_HOST_SIZE + (size_t)CODE_RESOLVED_MAX * 64);
    good = sk_buf_printf(&line, "%s:%d:", t->target.host, t->target.port);
    for (size_t i = 0; good && i < t->address_count; i++) {
        const struct sockaddr_storage *a = &t->addresses[i];
        char text[INET6_ADDRSTRLEN];

        if (a->ss_family == AF_INET)
            inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, text, sizeof(text));
        else
            inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)a)->sin6_addr, text, sizeof(text));
        good = sk_buf_printf(&line, a->ss_family == AF_INET ? "%s%s" : "%s[%s]", i == 0 ? "" : ",", text);
    }
    t->resolve_list = good ? curl_slist_append(NULL, sk_buf_data(&line)) : NULL;
    sk_buf_fini(&line);
    return t->resolve_list != NULL;
}

#define SET(option, value)                                                                                             \
    do {                                                                                                               \
        if (curl_easy_setopt(t->easy, (option), (value)) != CURLE_OK)                                                  \
            return false;                                                                                              \
    } while (0)

static bool set_request(struct code_transfer *t)
{
    const bool head = strcmp(t->method, "HEAD") == 0;

    if (head)
        SET(CURLOPT_NOBODY, 1L);
    if (t->has_body && !t->bare && !head) {
        SET(CURLOPT_POSTFIELDS, t->body);
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->body_length);
    }
    if (!head)
        SET(CURLOPT_CUSTOMREQUEST, t->method);
    SET(CURLOPT_HTTPHEADER, t->header_list);
    return true;
}

static bool set_options(struct code_transfer *t)
{
    const struct code_broker_options *options = &t->requester->broker->options;

    SET(CURLOPT_CURLU, t->target.url);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_HTTP09_ALLOWED, 0L);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_NOPROXY, "*");
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_ACCEPT_ENCODING, "");
    SET(CURLOPT_USERAGENT, "sandkeep-code");
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)CODE_CONNECT_TIMEOUT_MS);
    SET(CURLOPT_FORBID_REUSE, 1L);
    if (t->resolve_list != NULL)
        SET(CURLOPT_RESOLVE, t->resolve_list);
    if (options->ca_file != NULL)
        SET(CURLOPT_CAINFO, options->ca_file);
    SET(CURLOPT_OPENSOCKETFUNCTION, on_open);
    SET(CURLOPT_OPENSOCKETDATA, t);
    SET(CURLOPT_PREREQFUNCTION, on_connected);
    SET(CURLOPT_PREREQDATA, t);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, t);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, t);
    return set_request(t);
}
#undef SET

const char *code_http_start(struct code_transfer *t)
{
    const struct code_header_rules rules = {.with_body = t->has_body, .foreign = t->foreign, .bare = t->bare};

    t->refusal = code_headers_build(t->headers, rules, &t->header_list);
    if (t->refusal != CODE_REFUSED_NOT)
        return code_net_refusal_message(t->refusal);
    t->multi = curl_multi_init();
    t->easy = curl_easy_init();
    if (t->curl_timer == NULL)
        t->curl_timer = sk_timer_new(t->requester->broker->options.loop, on_curl_timer, t);
    if (t->multi == NULL || t->easy == NULL || t->curl_timer == NULL || !pin(t) || !set_options(t))
        return "Out of memory";
    curl_multi_setopt(t->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(t->multi, CURLMOPT_SOCKETDATA, t);
    curl_multi_setopt(t->multi, CURLMOPT_TIMERFUNCTION, on_timer_wish);
    curl_multi_setopt(t->multi, CURLMOPT_TIMERDATA, t);
    return curl_multi_add_handle(t->multi, t->easy) == CURLM_OK ? NULL : "Out of memory";
}

void code_http_stop(struct code_transfer *t)
{
    if (t->easy != NULL) {
        curl_off_t sent = 0;

        curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
        t->requester->counts.sent_bytes += sent;
        t->requester->broker->counts.sent_bytes += sent;
    }
    if (t->curl_timer != NULL)
        sk_timer_stop(t->curl_timer);
    if (t->multi != NULL) {
        /* The sockets leave the loop before libcurl closes them. */
        curl_multi_setopt(t->multi, CURLMOPT_SOCKETFUNCTION, NULL);
        curl_multi_setopt(t->multi, CURLMOPT_TIMERFUNCTION, NULL);
    }
    while (!sk_list_empty(&t->polls))
        poll_close(SK_LIST_ENTRY(struct poll, t->polls.next, link));
    if (t->multi != NULL && t->easy != NULL)
        curl_multi_remove_handle(t->multi, t->easy);
    curl_easy_cleanup(t->easy);
    curl_multi_cleanup(t->multi);
    curl_slist_free_all(t->header_list);
    curl_slist_free_all(t->resolve_list);
    t->easy = NULL;
    t->multi = NULL;
    t->header_list = t->resolve_list = NULL;
}
