/* SPDX-License-Identifier: Apache-2.0
 *
 * What client.c (lifetime, deadlines, verdict) and transfer.c (options, headers, bodies, callbacks) share. */
#ifndef SK_HTTP_PRIVATE_H
#define SK_HTTP_PRIVATE_H

#include "common/http/client.h"

#include <curl/curl.h>

struct sk_http_client {
    CURLM *multi;
    CURL *easy;
    char user_agent[64];
    char *ca_file;
    void (*observe)(void *arg, const struct sk_http_sample *sample);
    void *observe_arg;
    bool busy; /* a request is running on the owner thread: sinks and sources must not start another */
};

/* A body source with the number of bytes it still owes. */
struct sk_http_source_state {
    struct sk_http_transfer *transfer;
    sk_http_source read;
    void *arg;
    int64_t left; /* < 0 = size unknown */
};

/* One request on its way. */
struct sk_http_transfer {
    struct sk_http_client *client;
    struct sk_call *call;
    const struct sk_http_request *request;
    struct sk_http_response *response;
    struct curl_slist *headers;
    curl_mime *mime;
    struct sk_http_source_state sources[SK_HTTP_PARTS_MAX];
    char error_text[CURL_ERROR_SIZE];
    int64_t started_us, active_us;
    curl_off_t seen_bytes; /* up + down, at the last look of the progress callback */
    size_t header_bytes;   /* everything of the answer that is not body */
    bool final_headers;    /* the headers of the final answer are complete: what follows are trailers */
    bool limit, aborted, out_of_memory;
    bool idle; /* which time-out it was */
};

/* Sets every option of the client's easy handle for t->request. Fills err on -1; nothing was sent. */
int sk_http_prepare(struct sk_http_transfer *t, struct sk_error *err);
/* Notes that something moved just now. */
void sk_http_touch(struct sk_http_transfer *t);
int sk_http_answer_status(const struct sk_http_transfer *t);

#endif
