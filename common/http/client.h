/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocking HTTP/1.1 client of the workers. One struct sk_http_client belongs to one thread: it owns a curl multi
 * and its few kept-alive connections. A request blocks its thread and can be called back at any moment: sk_call_cancel
 * from any thread is noticed within a millisecond (curl_multi_wakeup), the call's deadline clips every time-out.
 *
 * What it never does: follow a redirect, use a proxy or a netrc file named by the environment, send `Expect:
 * 100-continue`, decompress, speak HTTP/0.9 or HTTP/2, raise SIGPIPE, or send a request twice, with one exception:
 * GET, HEAD, DELETE and PUT with a body in memory are sent once more when a *kept-alive* connection turns out to be
 * dead before a single byte of the answer came. Other requests always open a connection of their own, because libcurl
 * would repeat them in that case too.
 *
 * Outcome of a failed request (err->outcome): FAILED when no byte of the request can have reached the peer (name
 * resolution, connect, TLS handshake, cancelled or out of time before that), UNKNOWN from the first byte handed to the
 * kernel. An answer of any status is no failure: the caller judges it. Codes: provider_error, provider_timeout
 * (connect, idle, total time-out or the call's deadline), SK_ERR_CANCELLED, internal (out of memory, misuse),
 * invalid_request (a URL or header that cannot be sent). */
#ifndef SK_HTTP_CLIENT_H
#define SK_HTTP_CLIENT_H

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/base/sched.h"

#include <sys/types.h>

#define SK_HTTP_HEADERS_MAX        32                /* request headers */
#define SK_HTTP_PARTS_MAX          8                 /* parts of a multipart body */
#define SK_HTTP_ANSWER_HEADERS_MAX (64 * 1024)       /* bytes of status lines, headers and trailers of one answer */
#define SK_HTTP_BODY_MAX           (8 * 1024 * 1024) /* default bound of a collected body */
#define SK_HTTP_ERROR_BODY_MAX     (64 * 1024)       /* what is kept of a body whose status is not 2xx */
#define SK_HTTP_CONNECTIONS_MAX    8                 /* kept-alive connections of one client, all peers together */
#define SK_HTTP_CONNECTION_IDLE_S  20                /* never reuse one that idled longer: servers close at 30 s */
#define SK_HTTP_CONNECT_TIMEOUT_MS 5000
#define SK_HTTP_IDLE_TIMEOUT_MS    60000 /* no byte in either direction */
#define SK_HTTP_TOTAL_TIMEOUT_MS   120000

struct sk_http_client;

struct sk_http_header {
    const char *name, *value;
};

/* How a request ended below the level of HTTP; also the label of metrics. */
enum sk_http_end {
    SK_HTTP_DONE,    /* an answer with a status came as a whole (or as far as the sink wanted it) */
    SK_HTTP_REFUSED, /* not resolved, not connected, no TLS: nothing was sent */
    SK_HTTP_LOST,    /* cut after the request, or before the body was complete */
    SK_HTTP_GARBAGE, /* not HTTP, or broken framing */
    SK_HTTP_TIMEOUT, /* connect, idle or total time-out, or the call's deadline */
    SK_HTTP_CANCELLED,
    SK_HTTP_LIMIT,   /* answer larger than its bound: connection dropped */
    SK_HTTP_ABORTED, /* the caller's own source or sink failed */
    SK_HTTP_END_COUNT
};
const char *sk_http_end_name(enum sk_http_end end); /* "done", "refused", … */

/* Produces the next bytes of a request body: number of bytes (<= size), 0 at the end, -1 to give up. Runs on the worker
 * thread inside the request: it must not wait for anything but a local file, because a cancel is not seen meanwhile. */
typedef ssize_t (*sk_http_source)(void *arg, void *out, size_t size);
/* Takes the next bytes of an answer's body. Returns SK_HTTP_SINK_*. Same thread; must not start another request. The
 * response's status and headers can be read already. */
typedef int (*sk_http_sink)(void *arg, const void *data, size_t len);
enum { SK_HTTP_SINK_MORE = 0, SK_HTTP_SINK_STOP = 1 /* enough: success, connection dropped */, SK_HTTP_SINK_FAIL = -1 };

/* One part of a multipart/form-data body; either data/len or source. All pointers must outlive the request. */
struct sk_http_part {
    const char *name;
    const char *file_name;    /* NULL = none */
    const char *content_type; /* NULL = none */
    const void *data;
    size_t len;
    sk_http_source source;
    void *source_arg;
    int64_t size; /* of the source; < 0 = unknown: the body is sent chunked */
};

struct sk_http_request {
    const char *method; /* "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE" */
    const char *url;    /* http or https, encoded */
    const struct sk_http_header *headers;
    size_t header_count;
    /* At most one kind of body. `source` bodies are never repeated. */
    const void *body;
    size_t body_len;
    sk_http_source source;
    void *source_arg;
    int64_t source_size; /* < 0 = unknown: chunked */
    const struct sk_http_part *parts;
    size_t part_count;
    /* Body of a 2xx answer goes here when set; every other body is collected into the response. */
    sk_http_sink sink;
    void *sink_arg;
    size_t body_max; /* bound of a collected 2xx body, 0 = SK_HTTP_BODY_MAX; crossing it is SK_HTTP_LIMIT */
    /* Milliseconds, 0 = the defaults above, < 0 = none (the call's deadline still holds). */
    int64_t connect_timeout_ms, idle_timeout_ms, total_timeout_ms;
    bool close_after; /* do not keep the connection */
    /* Sending it twice does no harm, whatever its method says: a kept connection may be used, on which libcurl sends
     * once more what a server that closed it never answered. */
    bool idempotent;
};

struct sk_http_response {
    enum sk_http_end end;
    int status;             /* 0 = no answer came; may be set although the request failed later */
    const char *body;       /* NUL-terminated, never NULL after sk_http_request; "" when a sink took it */
    size_t body_len;        /* collected */
    bool body_cut;          /* a non-2xx body was longer than SK_HTTP_ERROR_BODY_MAX */
    bool delimited;         /* the end of the body was marked (length, chunked, no body): a cut would have been seen */
    bool stopped;           /* the sink said STOP */
    int64_t body_bytes;     /* received, collected or not */
    int64_t sent_bytes;     /* of the request body */
    int64_t retry_after_ms; /* Retry-After in seconds form, 0 = none, at most a day */
    int64_t duration_us;
    bool reused;                      /* a kept-alive connection was used */
    struct sk_buf collected, headers; /* private: what `body` points into; "name\0value\0" of the final answer */
};

/* One finished request, for metrics; runs on the worker thread. */
struct sk_http_sample {
    const char *method, *url;
    enum sk_http_end end;
    int status;
    int64_t duration_us;
    bool reused;
};

struct sk_http_client_options {
    const char *user_agent;                                          /* NULL = "sandkeep" */
    const char *ca_file;                                             /* NULL = the system's; copied */
    void (*observe)(void *arg, const struct sk_http_sample *sample); /* NULL = none */
    void *observe_arg;
};

/* NULL options = defaults. NULL when out of memory. First use initialises libcurl (thread-safe). */
struct sk_http_client *sk_http_client_new(const struct sk_http_client_options *options);
void sk_http_client_free(struct sk_http_client *client); /* NULL is fine; owner thread, no request in flight */
/* The client in call->transport, made on first use (with `options`). A worker keeps it over its jobs: it saves
 * call.transport before sk_call_init and puts it back after, and frees it with sk_http_call_release at its end.
 * NULL when out of memory. */
struct sk_http_client *sk_http_call_client(struct sk_call *call, const struct sk_http_client_options *options);
void sk_http_call_release(struct sk_call *call);

/* Sends one request and waits for its end. Owner thread only, not from inside a sink or source (internal). Returns 0
 * when an answer came, whatever its status; -1 otherwise, with *err filled and response->end telling why. The response
 * is always initialised and must be freed with sk_http_response_fini. While it runs, call->wake belongs to the client.
 */
SK_MUST_USE int sk_http_request(struct sk_http_client *client, struct sk_call *call,
                                const struct sk_http_request *request, struct sk_http_response *response,
                                struct sk_error *err);
void sk_http_response_fini(struct sk_http_response *response);
/* The n-th (from 0) value of a header of the final answer, name compared without case; NULL when there is none. */
const char *sk_http_response_header(const struct sk_http_response *response, const char *name, int n);

#endif
