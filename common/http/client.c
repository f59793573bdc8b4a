/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocking HTTP client: one curl easy handle driven by one curl multi, because only a multi can be woken from
 * another thread. libcurl does HTTP; the deadlines, bounds and the verdict about a failed request are made here. */
#include "common/http/private.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define POLL_SLICE_MS      1000 /* longest wait in one poll, so that idle and total time-outs are looked at */
#define RETRY_AFTER_MAX_MS (24 * 3600 * 1000LL)

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_ready;

static void init_curl(void)
{
    curl_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
}

const char *sk_http_end_name(enum sk_http_end end)
{
    static const char *const names[SK_HTTP_END_COUNT] = {
        [SK_HTTP_DONE] = "done",       [SK_HTTP_REFUSED] = "refused", [SK_HTTP_LOST] = "lost",
        [SK_HTTP_GARBAGE] = "garbage", [SK_HTTP_TIMEOUT] = "timeout", [SK_HTTP_CANCELLED] = "cancelled",
        [SK_HTTP_LIMIT] = "limit",     [SK_HTTP_ABORTED] = "aborted",
    };

    return (int)end < 0 || end >= SK_HTTP_END_COUNT ? "unknown" : names[end];
}

/* OpenSSL writes with write(2): a peer that closed a TLS connection would raise SIGPIPE. Blocked for the time of a
 * request on this thread only (the signal is thread-directed), and taken away when it came. */
struct pipe_guard {
    sigset_t old;
    bool was_pending;
};

static void pipe_guard_enter(struct pipe_guard *guard)
{
    sigset_t pipe_set, pending;

    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigpending(&pending);
    guard->was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_set, &guard->old);
}

static void pipe_guard_leave(struct pipe_guard *guard)
{
    const struct timespec now = {0, 0};
    sigset_t pipe_set;

    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    if (!guard->was_pending)
        (void)sigtimedwait(&pipe_set, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &guard->old, NULL);
}

struct sk_http_client *sk_http_client_new(const struct sk_http_client_options *options)
{
    struct sk_http_client *client;

    pthread_once(&curl_once, init_curl);
    if (curl_ready != CURLE_OK)
        return NULL;
    client = calloc(1, sizeof(*client));
    if (client == NULL)
        return NULL;
    snprintf(client->user_agent, sizeof(client->user_agent), "%s",
             options != NULL && options->user_agent != NULL ? options->user_agent : "sandkeep");
    client->multi = curl_multi_init();
    client->easy = curl_easy_init();
    if (client->multi == NULL || client->easy == NULL)
        goto fail;
    if (options != NULL) {
        client->observe = options->observe;
        client->observe_arg = options->observe_arg;
        if (options->ca_file != NULL && (client->ca_file = strdup(options->ca_file)) == NULL)
            goto fail;
    }
    curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, (long)SK_HTTP_CONNECTIONS_MAX);
    curl_multi_setopt(client->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    return client;
fail:
    sk_http_client_free(client);
    return NULL;
}

void sk_http_client_free(struct sk_http_client *client)
{
    struct pipe_guard guard;

    if (client == NULL)
        return;
    pipe_guard_enter(&guard); /* closing a TLS connection sends close_notify */
    if (client->easy != NULL)
        curl_easy_cleanup(client->easy);
    if (client->multi != NULL)
        curl_multi_cleanup(client->multi);
    pipe_guard_leave(&guard);
    free(client->ca_file);
    free(client);
}

struct sk_http_client *sk_http_call_client(struct sk_call *call, const struct sk_http_client_options *options)
{
    if (call->transport == NULL)
        call->transport = sk_http_client_new(options);
    return call->transport;
}

void sk_http_call_release(struct sk_call *call)
{
    sk_http_client_free(call->transport);
    call->transport = NULL;
}

static void wake_multi(void *arg)
{
    curl_multi_wakeup(arg);
}

/* Drives the transfer to its end. Returns curl's result, or CURLE_OK with `end` set when it was ended from here. */
static CURLcode drive(struct sk_http_transfer *t, enum sk_http_end *end)
{
    const struct sk_http_request *request = t->request;
    int64_t total_ms = request->total_timeout_ms == 0 ? SK_HTTP_TOTAL_TIMEOUT_MS : request->total_timeout_ms;
    int64_t idle_ms = request->idle_timeout_ms == 0 ? SK_HTTP_IDLE_TIMEOUT_MS : request->idle_timeout_ms;
    CURLM *multi = t->client->multi;

    for (;;) {
        int64_t now_us, wait_ms = POLL_SLICE_MS;
        int running = 0, left = 0;
        CURLMsg *message;

        if (sk_call_cancelled(t->call)) {
            *end = SK_HTTP_CANCELLED;
            return CURLE_OK;
        }
        if (curl_multi_perform(multi, &running) != CURLM_OK)
            return CURLE_FAILED_INIT;
        while ((message = curl_multi_info_read(multi, &left)) != NULL) {
            if (message->msg == CURLMSG_DONE)
                return message->data.result;
        }
        /* A cancel that came during perform must not be taken for a time-out (its budget is 0 as well). */
        if (sk_call_cancelled(t->call))
            continue;
        now_us = sk_mono_us(t->call->sched);
        wait_ms = sk_call_budget_ms(t->call, wait_ms);
        if (total_ms > 0) {
            int64_t left_ms = total_ms - (now_us - t->started_us) / 1000;
            wait_ms = left_ms < wait_ms ? left_ms : wait_ms;
        }
        if (idle_ms > 0) {
            int64_t left_ms = idle_ms - (now_us - t->active_us) / 1000;
            t->idle = left_ms <= 0;
            wait_ms = left_ms < wait_ms ? left_ms : wait_ms;
        }
        if (wait_ms <= 0) {
            if (sk_call_cancelled(t->call))
                continue;
            *end = SK_HTTP_TIMEOUT;
            return CURLE_OK;
        }
        if (curl_multi_poll(multi, NULL, 0, (int)wait_ms, NULL) != CURLM_OK)
            return CURLE_FAILED_INIT;
    }
}

static enum sk_http_end end_of(const struct sk_http_transfer *t, CURLcode rc, bool sent)
{
    if (t->response->stopped)
        return SK_HTTP_DONE;
    if (t->limit)
        return SK_HTTP_LIMIT;
    if (t->aborted || t->out_of_memory)
        return SK_HTTP_ABORTED;
    switch (rc) {
    case CURLE_OK:
        /* libcurl takes a connection that is closed inside the headers for a complete empty answer. */
        return t->final_headers ? SK_HTTP_DONE : SK_HTTP_LOST;
    case CURLE_OPERATION_TIMEDOUT:
        return SK_HTTP_TIMEOUT;
    case CURLE_OUT_OF_MEMORY:
        /* Also libcurl's word for a header line above its own 100 KiB, which comes before ours can see it. */
        return sent ? SK_HTTP_LIMIT : SK_HTTP_ABORTED;
    case CURLE_UNSUPPORTED_PROTOCOL: /* HTTP/0.9, when something was sent */
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING:
        return sent ? SK_HTTP_GARBAGE : SK_HTTP_REFUSED;
    default: /* among them CURLE_RECV_ERROR: a reset, and also curl's word for broken chunks */
        return sent ? SK_HTTP_LOST : SK_HTTP_REFUSED;
    }
}

/* Method and URL without its query (signatures live there). */
static void describe(const struct sk_http_transfer *t, char *out, size_t size)
{
    snprintf(out, size, "%s %.*s", t->request->method, (int)strcspn(t->request->url, "?"), t->request->url);
}

static int report(struct sk_http_transfer *t, CURLcode rc, bool sent, struct sk_error *err)
{
    const struct sk_http_response *response = t->response;
    enum sk_code code = SK_ERR_PROVIDER_ERROR;
    char what[256];
    const char *why = t->error_text[0] != '\0' ? t->error_text : curl_easy_strerror(rc);
    bool retryable = true;

    describe(t, what, sizeof(what));
    switch (response->end) {
    case SK_HTTP_CANCELLED:
        code = SK_ERR_CANCELLED;
        why = "cancelled";
        break;
    case SK_HTTP_TIMEOUT:
        code = SK_ERR_PROVIDER_TIMEOUT;
        if (rc == CURLE_OK)
            why = t->idle ? "no byte within the idle time-out" : "not finished in time";
        break;
    case SK_HTTP_LIMIT:
        why = t->header_bytes > SK_HTTP_ANSWER_HEADERS_MAX || !t->final_headers
                  ? "the answer's headers are larger than the limit"
                  : "the answer is larger than the limit";
        retryable = false;
        break;
    case SK_HTTP_ABORTED:
        code = SK_ERR_INTERNAL;
        why = t->out_of_memory || rc == CURLE_OUT_OF_MEMORY ? "out of memory"
                                                            : "given up by the reader or writer of the body";
        break;
    case SK_HTTP_REFUSED:
        if (rc == CURLE_URL_MALFORMAT || rc == CURLE_UNSUPPORTED_PROTOCOL) {
            code = SK_ERR_INVALID_REQUEST;
            retryable = false;
        }
        break;
    case SK_HTTP_LOST:
        if (rc == CURLE_OK)
            why = "closed inside the headers";
        break;
    default:
        break;
    }
    if (sent)
        sk_fail_unknown(err, code, "%s: %s", what, why);
    else
        sk_fail(err, code, "%s: %s", what, why);
    if (err != NULL) {
        err->retryable = retryable && err->retryable;
        err->provider_status = response->status;
    }
    return -1;
}

static int64_t parse_retry_after(const struct sk_http_response *response)
{
    const char *text = sk_http_response_header(response, "Retry-After", 0);
    int64_t ms = 0;

    if (text == NULL || *text == '\0')
        return 0;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return 0; /* the date form is not worth a clock comparison */
        ms = ms * 10 + (*text - '0') * 1000;
        if (ms > RETRY_AFTER_MAX_MS)
            return RETRY_AFTER_MAX_MS;
    }
    return ms;
}

static bool is_delimited(const struct sk_http_transfer *t)
{
    const char *encoding = sk_http_response_header(t->response, "Transfer-Encoding", 0);

    return strcmp(t->request->method, "HEAD") == 0 || t->response->status == 204 || t->response->status == 304 ||
           encoding != NULL || sk_http_response_header(t->response, "Content-Length", 0) != NULL;
}

static void finish_response(struct sk_http_transfer *t)
{
    struct sk_http_response *response = t->response;
    long connects = 0;

    response->status = sk_http_answer_status(t);
    curl_easy_getinfo(t->client->easy, CURLINFO_NUM_CONNECTS, &connects);
    response->reused = response->status != 0 && connects == 0;
    response->retry_after_ms = parse_retry_after(response);
    response->delimited = is_delimited(t);
    response->duration_us = sk_mono_us(t->call->sched) - t->started_us;
    response->body = sk_buf_data(&response->collected);
    response->body_len = sk_buf_len(&response->collected);
}

static int run(struct sk_http_transfer *t, struct sk_error *err)
{
    struct sk_http_client *client = t->client;
    struct sk_http_response *response = t->response;
    enum sk_http_end ended = SK_HTTP_DONE;
    CURLcode rc = CURLE_FAILED_INIT;
    long request_bytes = 0;

    if (sk_call_budget_ms(t->call, 1) == 0) {
        /* Nothing is started that could not finish; the verdict "certainly not sent" is worth a check up front. */
        response->end = sk_call_cancelled(t->call) ? SK_HTTP_CANCELLED : SK_HTTP_TIMEOUT;
        return report(t, CURLE_OK, false, err);
    }
    if (sk_http_prepare(t, err) != 0) {
        response->end = SK_HTTP_ABORTED;
        return -1;
    }
    if (curl_multi_add_handle(client->multi, client->easy) != CURLM_OK) {
        response->end = SK_HTTP_ABORTED;
        return sk_fail(err, SK_ERR_INTERNAL, "cannot start a request");
    }
    sk_call_set_wake(t->call, wake_multi, client->multi);
    rc = drive(t, &ended);
    sk_call_set_wake(t->call, NULL, NULL);
    curl_easy_getinfo(client->easy, CURLINFO_REQUEST_SIZE, &request_bytes);
    response->end = ended != SK_HTTP_DONE ? ended : end_of(t, rc, request_bytes > 0);
    finish_response(t);
    curl_multi_remove_handle(client->multi, client->easy); /* drops the connection of an unfinished transfer */
    if (response->end == SK_HTTP_DONE)
        return 0;
    return report(t, rc, request_bytes > 0, err);
}

int sk_http_request(struct sk_http_client *client, struct sk_call *call, const struct sk_http_request *request,
                    struct sk_http_response *response, struct sk_error *err)
{
    struct sk_http_transfer t = {.client = client, .call = call, .request = request, .response = response};
    struct pipe_guard guard;
    int rc;

    memset(response, 0, sizeof(*response));
    response->end = SK_HTTP_ABORTED;
    if (client == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "no HTTP client: out of memory");
    if (client->busy)
        return sk_fail(err, SK_ERR_INTERNAL, "a request was started inside a request");
    response->body = "";
    sk_buf_init(&response->collected, SIZE_MAX / 4); /* bounded by on_body */
    sk_buf_init(&response->headers, 2 * SK_HTTP_ANSWER_HEADERS_MAX);
    t.started_us = t.active_us = sk_mono_us(call->sched);

    client->busy = true;
    pipe_guard_enter(&guard);
    rc = run(&t, err);
    pipe_guard_leave(&guard);
    curl_easy_reset(client->easy); /* nothing may point into this frame any more */
    curl_mime_free(t.mime);
    curl_slist_free_all(t.headers);
    client->busy = false;

    if (client->observe != NULL) {
        const struct sk_http_sample sample = {.method = request->method,
                                              .url = request->url,
                                              .end = response->end,
                                              .status = response->status,
                                              .duration_us = response->duration_us,
                                              .reused = response->reused};
        client->observe(client->observe_arg, &sample);
    }
    return rc;
}

void sk_http_response_fini(struct sk_http_response *response)
{
    sk_buf_fini(&response->collected);
    sk_buf_fini(&response->headers);
    memset(response, 0, sizeof(*response));
}

const char *sk_http_response_header(const struct sk_http_response *response, const char *name, int n)
{
    const char *at = sk_buf_data(&response->headers), *end = at + sk_buf_len(&response->headers);

    while (at < end) {
        const char *value = at + strlen(at) + 1;

        if (strcasecmp(at, name) == 0 && n-- == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}
