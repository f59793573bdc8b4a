/* SPDX-License-Identifier: Apache-2.0
 *
 * One request for libcurl: its options, headers and body, and the callbacks that take the answer within bounds. */
#include "common/http/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DNS_CACHE_S    30
#define RECEIVE_BUFFER 65536 /* of streamed bodies */
#define COLLECT_BUFFER 16384 /* of small ones: libcurl allocates it anew for each request */

void sk_http_touch(struct sk_http_transfer *t)
{
    t->active_us = sk_mono_us(t->call->sched);
}

int sk_http_answer_status(const struct sk_http_transfer *t)
{
    long status = 0;

    curl_easy_getinfo(t->client->easy, CURLINFO_RESPONSE_CODE, &status);
    return (int)status;
}

/* Keeps "name\0value\0" of one header line. */
static bool keep_header(struct sk_http_transfer *t, const char *line, size_t len)
{
    struct sk_buf *kept = &t->response->headers;
    const char *colon = memchr(line, ':', len), *value;
    size_t name_len, value_len;

    if (colon == NULL || colon == line)
        return true;
    name_len = (size_t)(colon - line);
    value = colon + 1;
    value_len = len - name_len - 1;
    while (value_len > 0 && (*value == ' ' || *value == '\t')) {
        value++;
        value_len--;
    }
    while (value_len > 0 && ((unsigned char)value[value_len - 1] <= ' '))
        value_len--;
    if (memchr(line, '\0', name_len) != NULL || memchr(value, '\0', value_len) != NULL)
        return true; /* cannot be represented; curl refuses most of these by itself */
    return sk_buf_append(kept, line, name_len) && sk_buf_append_char(kept, '\0') &&
           sk_buf_append(kept, value, value_len) && sk_buf_append_char(kept, '\0');
}

static size_t on_header(char *line, size_t one, size_t len, void *arg)
{
    struct sk_http_transfer *t = arg;

    (void)one;
    sk_http_touch(t);
    t->header_bytes += len;
    if (t->header_bytes > SK_HTTP_ANSWER_HEADERS_MAX) {
        t->limit = true;
        return 0;
    }
    if (t->final_headers)
        return len; /* trailers are counted, not kept */
    if (len >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        sk_buf_clear(&t->response->headers); /* what came before belonged to an interim answer */
        return len;
    }
    if (len > 0 && (line[0] == '\r' || line[0] == '\n')) {
        t->final_headers = sk_http_answer_status(t) >= 200;
        return len;
    }
    if (!keep_header(t, line, len)) {
        t->out_of_memory = true;
        return 0;
    }
    return len;
}

/* Returning anything but `len` ends the transfer with CURLE_WRITE_ERROR; the flags say what was meant. */
static size_t on_body(char *data, size_t one, size_t len, void *arg)
{
    struct sk_http_transfer *t = arg;
    const struct sk_http_request *request = t->request;
    struct sk_http_response *response = t->response;
    int status = sk_http_answer_status(t);
    bool good = status >= 200 && status < 300;
    size_t max, room;

    (void)one;
    sk_http_touch(t);
    response->status = status; /* a sink may look at it, and at the headers */
    response->body_bytes += (int64_t)len;
    if (good && request->sink != NULL) {
        int verdict = request->sink(request->sink_arg, data, len);

        sk_http_touch(t); /* a slow sink is not an idle peer */
        if (verdict == SK_HTTP_SINK_MORE)
            return len;
        response->stopped = verdict == SK_HTTP_SINK_STOP;
        t->aborted = !response->stopped;
        return 0;
    }
    max = !good ? SK_HTTP_ERROR_BODY_MAX : request->body_max == 0 ? SK_HTTP_BODY_MAX : request->body_max;
    room = max - sk_buf_len(&response->collected);
    if (!sk_buf_append(&response->collected, data, len < room ? len : room)) {
        t->out_of_memory = true;
        return 0;
    }
    if (len > room) {
        /* The status of an error is worth more than the rest of its page. */
        t->limit = good;
        response->body_cut = response->stopped = !good;
        return 0;
    }
    return len;
}

static size_t read_source(struct sk_http_source_state *source, char *out, size_t size)
{
    struct sk_http_transfer *t = source->transfer;
    ssize_t n;

    if (source->left >= 0 && (int64_t)size > source->left)
        size = (size_t)source->left;
    if (size == 0)
        return 0;
    n = source->read(source->arg, out, size);
    sk_http_touch(t);
    /* A source that ends before its declared size would leave the peer waiting for the rest. */
    if (n < 0 || (size_t)n > size || (n == 0 && source->left > 0)) {
        t->aborted = true;
        return CURL_READFUNC_ABORT;
    }
    if (source->left >= 0)
        source->left -= n;
    t->response->sent_bytes += n;
    return (size_t)n;
}

static size_t on_read(char *out, size_t one, size_t size, void *arg)
{
    return read_source(arg, out, one * size);
}

static int on_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
    struct sk_http_transfer *t = arg;

    (void)down_total;
    (void)up_total;
    if (down + up != t->seen_bytes) {
        t->seen_bytes = down + up;
        sk_http_touch(t);
    }
    return 0;
}

static bool is_token(const char *text)
{
    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c <= ' ' || c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c) != NULL)
            return false;
    }
    return true;
}

static bool is_header_value(const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static int append_line(struct sk_http_transfer *t, const char *line, struct sk_error *err)
{
    struct curl_slist *list = curl_slist_append(t->headers, line);

    if (list == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    t->headers = list;
    return 0;
}

static int build_headers(struct sk_http_transfer *t, struct sk_error *err)
{
    const struct sk_http_request *request = t->request;
    bool has_type = request->part_count > 0; /* curl writes the boundary */

    if (request->header_count > SK_HTTP_HEADERS_MAX)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "more than %d request headers", SK_HTTP_HEADERS_MAX);
    for (size_t i = 0; i < request->header_count; i++) {
        const struct sk_http_header *header = &request->headers[i];
        size_t size = strlen(header->name) + strlen(header->value) + 3;
        char *line;
        int failed;

        if (!is_token(header->name) || !is_header_value(header->value))
            return sk_fail(err, SK_ERR_INVALID_REQUEST, "request header %zu cannot be sent", i);
        if (strcasecmp(header->name, "Content-Type") == 0)
            has_type = true;
        line = malloc(size);
        if (line == NULL)
            return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        /* "Name:" would remove a header of curl's; "Name;" sends an empty one. */
        if (header->value[0] == '\0')
            snprintf(line, size, "%s;", header->name);
        else
            snprintf(line, size, "%s: %s", header->name, header->value);
        failed = append_line(t, line, err);
        free(line);
        if (failed != 0)
            return failed;
    }
    /* No body waits for a "100 Continue" that old proxies never send. */
    if (append_line(t, "Expect:", err) != 0)
        return -1;
    return has_type ? 0 : append_line(t, "Content-Type:", err);
}

static int build_parts(struct sk_http_transfer *t, struct sk_error *err)
{
    const struct sk_http_request *request = t->request;

    if (request->part_count > SK_HTTP_PARTS_MAX)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "more than %d parts", SK_HTTP_PARTS_MAX);
    t->mime = curl_mime_init(t->client->easy);
    if (t->mime == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    for (size_t i = 0; i < request->part_count; i++) {
        const struct sk_http_part *part = &request->parts[i];
        curl_mimepart *out = curl_mime_addpart(t->mime);
        CURLcode rc = out == NULL ? CURLE_OUT_OF_MEMORY : curl_mime_name(out, part->name);

        if (rc == CURLE_OK && part->file_name != NULL)
            rc = curl_mime_filename(out, part->file_name);
        if (rc == CURLE_OK && part->content_type != NULL)
            rc = curl_mime_type(out, part->content_type);
        if (rc == CURLE_OK && part->source != NULL) {
            struct sk_http_source_state *source = &t->sources[i];

            *source =
                (struct sk_http_source_state){t, part->source, part->source_arg, part->size < 0 ? -1 : part->size};
            rc = curl_mime_data_cb(out, part->size < 0 ? -1 : part->size, on_read, NULL, NULL, source);
        } else if (rc == CURLE_OK) {
            rc = curl_mime_data(out, part->data == NULL ? "" : part->data, part->len);
            t->response->sent_bytes += (int64_t)part->len;
        }
        if (rc != CURLE_OK)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot build part %zu: %s", i, curl_easy_strerror(rc));
    }
    return 0;
}

static bool is_method(const char *method)
{
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"};

    for (size_t i = 0; method != NULL && i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(method, known[i]) == 0)
            return true;
    }
    return false;
}

/* May libcurl repeat it on a fresh connection when a kept-alive one proves dead before the answer's first byte? */
static bool repeatable(const struct sk_http_request *request)
{
    if (request->source != NULL || request->part_count > 0)
        return false;
    return request->idempotent || (strcmp(request->method, "POST") != 0 && strcmp(request->method, "PATCH") != 0);
}

static int set_body(struct sk_http_transfer *t, struct sk_error *err)
{
    const struct sk_http_request *request = t->request;
    CURL *easy = t->client->easy;
    int kinds = (request->body != NULL) + (request->source != NULL) + (request->part_count > 0);

    if (kinds > 1)
        return sk_fail(err, SK_ERR_INTERNAL, "more than one request body");
    if (strcmp(request->method, "HEAD") == 0) {
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
        return 0;
    }
    if (request->part_count > 0) {
        if (build_parts(t, err) != 0)
            return -1;
        curl_easy_setopt(easy, CURLOPT_MIMEPOST, t->mime);
    } else if (request->source != NULL) {
        t->sources[0] = (struct sk_http_source_state){t, request->source, request->source_arg,
                                                      request->source_size < 0 ? -1 : request->source_size};
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(easy, CURLOPT_READDATA, &t->sources[0]);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE,
                         (curl_off_t)(request->source_size < 0 ? -1 : request->source_size));
    } else if (request->body != NULL || strcmp(request->method, "GET") != 0) {
        bool with_body = request->body != NULL || strcmp(request->method, "DELETE") != 0;

        if (with_body) {
            curl_easy_setopt(easy, CURLOPT_POST, 1L);
            curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body == NULL ? "" : request->body);
            curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_len);
            t->response->sent_bytes = (int64_t)request->body_len;
        }
    }
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
    return 0;
}

int sk_http_prepare(struct sk_http_transfer *t, struct sk_error *err)
{
    const struct sk_http_request *request = t->request;
    CURL *easy = t->client->easy;
    int64_t connect_ms = request->connect_timeout_ms == 0 ? SK_HTTP_CONNECT_TIMEOUT_MS : request->connect_timeout_ms;

    if (!is_method(request->method) || request->url == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "bad method or URL");
    curl_easy_reset(easy);
    if (build_headers(t, err) != 0)
        return -1;
    curl_easy_setopt(easy, CURLOPT_URL, request->url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_HTTP09_ALLOWED, 0L);
    curl_easy_setopt(easy, CURLOPT_PROXY, ""); /* whatever http_proxy says */
    curl_easy_setopt(easy, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* a cancel must not wait for a resolver thread */
    curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (t->client->ca_file != NULL)
        curl_easy_setopt(easy, CURLOPT_CAINFO, t->client->ca_file);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, t->client->user_agent);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)(request->sink != NULL ? RECEIVE_BUFFER : COLLECT_BUFFER));
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, (long)DNS_CACHE_S);
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, (long)SK_HTTP_CONNECTION_IDLE_S);
    if (connect_ms > 0)
        curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)connect_ms);
    /* libcurl repeats any request, a POST too, when a reused connection is found dead. A connection that is not reused
     * is never repeated; not keeping it leaves at most one idle connection per peer, hence at most one repetition. */
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, repeatable(request) ? 0L : 1L);
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, repeatable(request) && !request->close_after ? 0L : 1L);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(easy, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t->error_text);
    return set_body(t, err);
}
