/* SPDX-License-Identifier: Apache-2.0
 *
 * URL helpers of the HTTP client. Everything that comes from outside is encoded byte by byte; the base URL comes from
 * configuration or from the lifecycle server and is checked by sk_url_parse. */
#include "common/http/url.h"

#include <string.h>
#include <strings.h>

static bool is_unreserved(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

/* Host names, IPv4 and bracketed IPv6; anything else (percent, '@', '\\', …) is refused. */
static bool is_host_byte(unsigned char c, bool bracketed)
{
    if (bracketed)
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == ':' || c == '.';
    return is_unreserved(c) && c != '~';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool parse_port(const char *p, const char *end, int *port)
{
    int value = 0;

    if (p == end)
        return false;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9')
            return false;
        value = value * 10 + (*p - '0');
        if (value > 65535)
            return false;
    }
    *port = value;
    return value > 0;
}

bool sk_url_parse(const char *text, struct sk_url *out)
{
    const char *p, *authority_end, *host_end;
    bool bracketed;
    size_t len;

    memset(out, 0, sizeof(*out));
    if (text == NULL)
        return false;
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f || *c == '?' || *c == '#' || *c == '\\')
            return false;
    }
    if (strncasecmp(text, "http://", 7) == 0) {
        p = text + 7;
    } else if (strncasecmp(text, "https://", 8) == 0) {
        p = text + 8;
        out->tls = true;
    } else {
        return false;
    }
    out->port = out->tls ? 443 : 80;
    authority_end = p + strcspn(p, "/");

    bracketed = *p == '[';
    if (bracketed) {
        host_end = memchr(p, ']', (size_t)(authority_end - p));
        if (host_end == NULL || host_end == p + 1)
            return false;
        for (const char *c = p + 1; c < host_end; c++) {
            if (!is_host_byte((unsigned char)*c, true))
                return false;
        }
        host_end++;
    } else {
        host_end = memchr(p, ':', (size_t)(authority_end - p));
        if (host_end == NULL)
            host_end = authority_end;
        for (const char *c = p; c < host_end; c++) {
            if (!is_host_byte((unsigned char)*c, false))
                return false;
        }
    }
    len = (size_t)(host_end - p);
    if (len == 0 || len >= sizeof(out->host))
        return false;
    for (size_t i = 0; i < len; i++)
        out->host[i] = lower(p[i]);
    if (host_end < authority_end && (*host_end != ':' || !parse_port(host_end + 1, authority_end, &out->port)))
        return false;

    len = strlen(authority_end);
    while (len > 0 && authority_end[len - 1] == '/')
        len--;
    if (len >= sizeof(out->path))
        return false;
    memcpy(out->path, authority_end, len);
    return true;
}

bool sk_url_same_origin(const struct sk_url *a, const struct sk_url *b)
{
    return a->tls == b->tls && a->port == b->port && strcmp(a->host, b->host) == 0;
}

static size_t encode_byte(char out[3], unsigned char c)
{
    static const char digits[] = "0123456789ABCDEF";

    if (is_unreserved(c)) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = '%';
    out[1] = digits[c >> 4];
    out[2] = digits[c & 15];
    return 3;
}

static void append_encoded(struct sk_url_builder *b, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0' && !b->text.overflow; p++) {
        char code[3];
        sk_buf_append(&b->text, code, encode_byte(code, *p));
    }
}

void sk_url_begin(struct sk_url_builder *b, const char *base)
{
    memset(b, 0, sizeof(*b));
    sk_buf_init(&b->text, SK_URL_MAX);
    sk_buf_append_text(&b->text, base);
}

void sk_url_segment(struct sk_url_builder *b, const char *text)
{
    if (text[0] == '\0' || strcmp(text, ".") == 0 || strcmp(text, "..") == 0)
        b->failed = true;
    sk_buf_append_char(&b->text, '/');
    append_encoded(b, text);
}

void sk_url_query(struct sk_url_builder *b, const char *name, const char *value)
{
    sk_buf_append_char(&b->text, b->has_query ? '&' : '?');
    b->has_query = true;
    append_encoded(b, name);
    sk_buf_append_char(&b->text, '=');
    append_encoded(b, value);
}

char *sk_url_take(struct sk_url_builder *b)
{
    char *text = b->failed || b->text.overflow ? NULL : sk_buf_take(&b->text, NULL);

    sk_buf_fini(&b->text);
    memset(b, 0, sizeof(*b));
    return text;
}

bool sk_url_encode(char *out, size_t size, const char *text)
{
    size_t len = 0;

    if (size == 0)
        return false;
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        char code[3];
        size_t n = encode_byte(code, *p);
        if (len + n >= size) {
            out[0] = '\0';
            return false;
        }
        memcpy(out + len, code, n);
        len += n;
    }
    out[len] = '\0';
    return true;
}
