/* SPDX-License-Identifier: Apache-2.0
 *
 * URLs for the HTTP client: taking a base URL apart, comparing origins, and building a request URL out of raw text so
 * that no id, path or value from outside can ever change its structure. Pure functions, thread-safe, no I/O. */
#ifndef SK_HTTP_URL_H
#define SK_HTTP_URL_H

#include "common/base/buf.h"

#define SK_URL_HOST_SIZE 256
#define SK_URL_PATH_SIZE 1024
#define SK_URL_MAX       32768 /* bytes of a built URL: a path of 4 KiB, encoded, fits twice */

struct sk_url {
    bool tls;                    /* https */
    char host[SK_URL_HOST_SIZE]; /* lower case, IPv6 with its brackets */
    int port;                    /* always set: 80 or 443 when the URL names none */
    char path[SK_URL_PATH_SIZE]; /* as written, without trailing slashes: "" or "/a/b" */
};

/* Takes an http or https base URL apart. False for any other scheme, user information, a query, a fragment, a bad port,
 * an empty host, a control character or a space, or a part that is too long. */
SK_MUST_USE bool sk_url_parse(const char *text, struct sk_url *out);
/* Same scheme, host and port. */
bool sk_url_same_origin(const struct sk_url *a, const struct sk_url *b);

/* Builds a URL step by step; a failure (out of memory, longer than SK_URL_MAX, text that is no UTF-8 is no failure: it
 * is encoded byte by byte) is kept and shows only in sk_url_take, so that a build reads as a list of lines:
 *
 *     struct sk_url_builder b;
 *     sk_url_begin(&b, "http://127.0.0.1:8090/v1");
 *     sk_url_segment(&b, "sandboxes");
 *     sk_url_segment(&b, id);
 *     sk_url_query(&b, "use_server_proxy", "true");
 *     char *url = sk_url_take(&b); */
struct sk_url_builder {
    struct sk_buf text;
    bool failed, has_query;
};

void sk_url_begin(struct sk_url_builder *b, const char *base); /* base is copied as it is */
/* Appends '/' and the text, encoded as one segment. An empty segment, "." and ".." fail: they would change the path. */
void sk_url_segment(struct sk_url_builder *b, const char *text);
/* Appends one query parameter; both sides are encoded (space as %20). */
void sk_url_query(struct sk_url_builder *b, const char *name, const char *value);
/* The URL, to be freed by the caller, or NULL when any step failed; the builder is empty afterwards. */
char *sk_url_take(struct sk_url_builder *b);

/* RFC 3986 encoding of one component: everything but ALPHA, DIGIT and "-._~" becomes %XX in upper case. Writes at most
 * `size` bytes including the NUL; false (and an empty string) when it does not fit. */
SK_MUST_USE bool sk_url_encode(char *out, size_t size, const char *text);

#endif
