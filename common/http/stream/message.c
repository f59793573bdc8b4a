/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of one HTTP message is collected whole (it is bounded), scanned byte by byte for what http_parser lets pass
 * (bare CR or LF, NUL, folded lines), parsed in one go and then checked for ambiguous framing. Bodies run through the
 * same parser piece by piece. */
#include "common/http/stream/internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Room for the parser's own limit of a chunk line: our head limit rules, this one only bounds trailers. */
#define PARSER_HEADER_MAX (1024u * 1024u)

void sk_message_init(struct sk_message *m, bool request, const struct sk_stream_limits *limits)
{
    *m = (struct sk_message){.request = request, .head_max = limits->header_bytes, .count_max = limits->header_count};
    m->first_line = true;
    http_parser_set_max_header_size(PARSER_HEADER_MAX);
    http_parser_init(&m->parser, request ? HTTP_REQUEST : HTTP_RESPONSE);
    m->parser.data = m;
}

void sk_message_free(struct sk_message *m)
{
    free(m->head);
    free(m->headers);
    free(m->url);
    m->head = m->url = NULL;
    m->headers = NULL;
    m->count = m->room = m->head_len = m->head_size = 0;
}

static int on_url(http_parser *p, const char *at, size_t len)
{
    struct sk_message *m = p->data;
    free(m->url);
    m->url = strndup(at, len);
    m->out_of_memory |= m->url == NULL;
    return m->url == NULL;
}

/* Names and values point into the head; they are terminated after the parse, when nothing reads the head any more. */
static int on_field(http_parser *p, const char *at, size_t len)
{
    struct sk_message *m = p->data;
    if (m->declared != 0) /* trailers: read and dropped */
        return 0;
    if (m->count == m->room) {
        if ((int)m->count >= m->count_max) {
            m->too_many = true;
            return 1;
        }
        size_t room = m->room == 0 ? 16 : m->room * 2;
        struct sk_stream_header *grown = realloc(m->headers, room * sizeof(*grown));
        if (grown == NULL) {
            m->out_of_memory = true;
            return 1;
        }
        m->headers = grown;
        m->room = room;
    }
    if ((int)m->count >= m->count_max) {
        m->too_many = true;
        return 1;
    }
    m->headers[m->count++] = (struct sk_stream_header){.name = at, .value = ""};
    (void)len;
    return 0;
}

static int on_value(http_parser *p, const char *at, size_t len)
{
    struct sk_message *m = p->data;
    if (m->declared == 0 && m->count > 0 && len > 0)
        m->headers[m->count - 1].value = at;
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    struct sk_message *m = p->data;
    if (p->flags & F_CHUNKED)
        m->declared = SK_STREAM_CHUNKED;
    else if (p->flags & F_CONTENTLENGTH)
        m->declared = p->content_length > INT64_MAX ? INT64_MAX : (int64_t)p->content_length;
    else
        m->declared = 0;
    bool bodiless = m->no_body || p->status_code == 204 || p->status_code == 304 || p->status_code / 100 == 1;
    return !m->request && bodiless ? 1 : 0; /* http_parser would take a 304's Content-Length for a body's */
}

static int on_body(http_parser *p, const char *at, size_t len)
{
    struct sk_message *m = p->data;
    m->body_seen += (int64_t)len;
    if (m->on_body != NULL)
        m->on_body(m->arg, at, len);
    return 0;
}

static int on_complete(http_parser *p)
{
    struct sk_message *m = p->data;
    m->complete = true;
    http_parser_pause(p, 1); /* what follows belongs to the next message */
    return 0;
}

static const http_parser_settings settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_complete,
};

/* Refuses what two readers could read differently. Returns true at the empty line. */
static bool scan(struct sk_message *m, unsigned char c, const char **why)
{
    bool end = false;
    if (m->request) {
        if (c == 0)
            *why = "NUL in the head";
        else if (m->previous == '\r' && c != '\n')
            *why = "carriage return without line feed";
        else if (c == '\n' && m->previous != '\r')
            *why = "line feed without carriage return";
        else if (m->line_start && !m->first_line && (c == ' ' || c == '\t'))
            *why = "folded header line";
    }
    if (c == '\n') {
        end = m->line_start && !m->first_line;
        m->line_start = true;
        m->first_line = false;
    } else if (c != '\r') {
        m->line_start = false;
    }
    m->previous = c;
    return end;
}

static void terminate(struct sk_message *m)
{
    for (size_t i = 0; i < m->count; i++) {
        char *name = (char *)m->headers[i].name;
        name[strcspn(name, ":")] = '\0';
        char *value = (char *)m->headers[i].value;
        if (*value == '\0')
            continue; /* the static empty string */
        size_t len = strcspn(value, "\r\n");
        while (len > 0 && (value[len - 1] == ' ' || value[len - 1] == '\t'))
            len--;
        value[len] = '\0';
    }
}

static int check_request(struct sk_message *m, const char **why)
{
    int hosts = 0, lengths = 0, codings = 0;
    for (size_t i = 0; i < m->count; i++) {
        const char *name = m->headers[i].name, *value = m->headers[i].value;
        if (*name == '\0' || strpbrk(name, " \t") != NULL) {
            *why = "white space in a header name";
            return 400;
        }
        for (const unsigned char *p = (const unsigned char *)value; *p != '\0'; p++) {
            if ((*p < 0x20 && *p != '\t') || *p == 0x7f) {
                *why = "control character in a header value";
                return 400;
            }
        }
        if (strcasecmp(name, "host") == 0) {
            hosts++;
            if (strpbrk(value, " \t/,@") != NULL) {
                *why = "bad Host";
                return 400;
            }
        } else if (strcasecmp(name, "content-length") == 0) {
            lengths++;
            if (value[strspn(value, "0123456789")] != '\0' || *value == '\0') {
                *why = "bad Content-Length";
                return 400;
            }
        } else if (strcasecmp(name, "transfer-encoding") == 0) {
            codings++;
            if (strcasecmp(value, "chunked") != 0) {
                *why = "unknown transfer coding";
                return 501;
            }
        }
    }
    if (lengths > 1 || codings > 1 || (lengths == 1 && codings == 1)) {
        *why = "ambiguous body length";
        return 400;
    }
    if (m->parser.http_major != 1 || m->parser.http_minor > 1) {
        *why = "HTTP version not supported";
        return 505;
    }
    if (m->parser.http_minor == 0 && codings > 0) {
        *why = "transfer coding in HTTP/1.0";
        return 400;
    }
    if (hosts > 1 || (hosts == 0 && m->parser.http_minor == 1)) {
        *why = hosts == 0 ? "Host is missing" : "more than one Host";
        return 400;
    }
    if (m->parser.method == HTTP_CONNECT) {
        *why = "CONNECT is not supported";
        return 501;
    }
    return 0;
}

static int parse_head(struct sk_message *m, const char **why)
{
    m->head[m->head_len] = '\0';
    size_t used = http_parser_execute(&m->parser, &settings, m->head, m->head_len);
    enum http_errno error = HTTP_PARSER_ERRNO(&m->parser);
    if (m->out_of_memory) {
        *why = "out of memory";
        return 503;
    }
    if (m->too_many) {
        *why = "too many headers";
        return 431;
    }
    if (error != HPE_OK && !(error == HPE_PAUSED && m->complete)) {
        *why = http_errno_description(error);
        return 400;
    }
    if (used != m->head_len && !m->complete) {
        *why = "bad head";
        return 400;
    }
    terminate(m);
    if (m->request) {
        int status = check_request(m, why);
        if (status != 0)
            return status;
    }
    return 1;
}

int sk_message_head(struct sk_message *m, const char *data, size_t len, size_t *used, const char **why)
{
    *used = 0;
    while (*used < len) {
        unsigned char c = (unsigned char)data[(*used)++];
        if (m->head_len == 0 && (c == '\r' || c == '\n')) { /* empty lines before a message are ignored */
            if (++m->body_seen > 8) {
                *why = "empty lines";
                return 400;
            }
            continue;
        }
        if (m->head_len + 2 > m->head_size) {
            if (m->head_len + 1 > m->head_max) {
                *why = "head too large";
                return 431;
            }
            size_t size = m->head_size == 0 ? 1024 : m->head_size * 2;
            char *grown = realloc(m->head, size);
            if (grown == NULL) {
                *why = "out of memory";
                return 503;
            }
            m->head = grown;
            m->head_size = size;
        }
        if (m->head_len + 1 > m->head_max) {
            *why = "head too large";
            return 431;
        }
        m->head[m->head_len++] = (char)c;
        *why = NULL;
        bool end = scan(m, c, why);
        if (*why != NULL)
            return 400;
        if (end) {
            m->body_seen = 0;
            return parse_head(m, why);
        }
    }
    return 0;
}

long sk_message_body(struct sk_message *m, const char *data, size_t len)
{
    if (m->complete)
        return 0;
    if (HTTP_PARSER_ERRNO(&m->parser) == HPE_PAUSED)
        http_parser_pause(&m->parser, 0);
    size_t used = http_parser_execute(&m->parser, &settings, data, len);
    enum http_errno error = HTTP_PARSER_ERRNO(&m->parser);
    if (error != HPE_OK && error != HPE_PAUSED)
        return -1;
    return (long)used;
}

void sk_message_pause(struct sk_message *m)
{
    if (HTTP_PARSER_ERRNO(&m->parser) == HPE_OK)
        http_parser_pause(&m->parser, 1);
}

const char *sk_message_header(const struct sk_message *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++) {
        if (strcasecmp(m->headers[i].name, name) == 0)
            return m->headers[i].value;
    }
    return NULL;
}
