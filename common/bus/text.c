/* SPDX-License-Identifier: Apache-2.0
 *
 * Text that comes from outside: subjects, subject filters, raw header blocks, base64. Everything here is bounded and
 * trusts no byte. */
#include "common/bus/internal.h"

#include "common/base/id.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool sk_subject_valid(const char *subject)
{
    size_t len = subject != NULL ? strlen(subject) : 0;
    size_t token = 0;

    if (len == 0 || len >= SK_SUBJECT_SIZE || sk_utf8_length(subject, len) < 0)
        return false;
    for (size_t i = 0; i <= len; i++) {
        unsigned char c = (unsigned char)subject[i];
        if (c == '.' || c == '\0') {
            if (token == 0 || (token == 1 && (subject[i - 1] == '*' || subject[i - 1] == '>')))
                return false;
            token = 0;
        } else if (c <= ' ' || c == 0x7f) {
            return false;
        } else {
            token++;
        }
    }
    return true;
}

bool sk_reply_subject_valid(const char *subject, const char *prefix)
{
    size_t len = strlen(prefix);

    if (!sk_subject_valid(subject) || subject[0] == '$')
        return false;
    return strncmp(subject, prefix, len) != 0 || (subject[len] != '.' && subject[len] != '\0');
}

bool sk_subject_matches(const char *filter, const char *subject)
{
    while (*filter != '\0') {
        if (filter[0] == '>' && filter[1] == '\0')
            return *subject != '\0';
        if (filter[0] == '*' && (filter[1] == '.' || filter[1] == '\0')) {
            size_t token = strcspn(subject, ".");
            if (token == 0)
                return false;
            subject += token;
            filter++;
        } else {
            size_t token = strcspn(filter, ".");
            if (strncmp(filter, subject, token) != 0 || (subject[token] != '.' && subject[token] != '\0'))
                return false;
            filter += token;
            subject += token;
        }
        if (*filter != *subject)
            return false;
        if (*filter == '.') {
            filter++;
            subject++;
        }
    }
    return *subject == '\0';
}

const char *sk_delivery_header(const struct sk_delivery *delivery, const char *name)
{
    for (int i = 0; i < delivery->header_count; i++) {
        if (strcasecmp(delivery->headers[i].name, name) == 0)
            return delivery->headers[i].value;
    }
    return NULL;
}

static bool is_token_char(unsigned char c)
{
    return c > ' ' && c < 0x7f && c != ':';
}

static bool has_prefix(const char *name, size_t len, const char *prefix)
{
    size_t prefix_len = strlen(prefix);

    return len >= prefix_len && strncasecmp(name, prefix, prefix_len) == 0;
}

bool sk_header_known(const char *name, size_t len)
{
    return has_prefix(name, len, "Sandbox-") || has_prefix(name, len, "ce-") ||
           (len == strlen(SK_HEADER_MESSAGE_ID) && has_prefix(name, len, SK_HEADER_MESSAGE_ID)) ||
           (len == strlen(SK_HEADER_TRACEPARENT) && has_prefix(name, len, SK_HEADER_TRACEPARENT)) ||
           (len == strlen(SK_HEADER_TRACESTATE) && has_prefix(name, len, SK_HEADER_TRACESTATE));
}

/* Keeps one header: first of its name wins, value cut at the first control character and at the bound. Name and value
 * share one allocation. False when there was no room or it had to be cut or left out. */
bool sk_delivery_add_header(struct sk_delivery *out, const char *name, size_t name_len, const char *value,
                            size_t value_len)
{
    size_t keep = 0;
    bool whole;
    char *block;

    for (size_t i = 0; i < name_len; i++) {
        if (!is_token_char((unsigned char)name[i]))
            name_len = 0;
    }
    if (name_len == 0 || name_len > SK_BUS_HEADER_VALUE_MAX || out->header_count >= SK_BUS_HEADERS_MAX)
        goto cut;
    for (int i = 0; i < out->header_count; i++) {
        if (strlen(out->headers[i].name) == name_len && strncasecmp(out->headers[i].name, name, name_len) == 0)
            return true;
    }
    while (keep < value_len && keep < SK_BUS_HEADER_VALUE_MAX &&
           ((unsigned char)value[keep] >= ' ' || value[keep] == '\t') && value[keep] != 0x7f)
        keep++;
    whole = keep == value_len;
    if (!whole && keep == SK_BUS_HEADER_VALUE_MAX) {
        /* Do not leave half a character at the end. */
        while (keep > 0 && ((unsigned char)value[keep] & 0xc0) == 0x80)
            keep--;
    }
    block = malloc(name_len + keep + 2);
    if (block == NULL)
        goto cut;
    memcpy(block, name, name_len);
    block[name_len] = '\0';
    memcpy(block + name_len + 1, value, keep);
    block[name_len + 1 + keep] = '\0';
    out->headers[out->header_count].name = block;
    out->headers[out->header_count].value = block + name_len + 1;
    out->header_count++;
    if (whole)
        return true;
cut:
    out->headers_cut = true;
    return false;
}

static void parse_lines(struct sk_delivery *out, const char *at, const char *end, bool known)
{
    while (at < end) {
        const char *lf = memchr(at, '\n', (size_t)(end - at));
        const char *line_end = lf != NULL ? lf : end;
        const char *colon, *value;

        if (line_end > at && line_end[-1] == '\r')
            line_end--;
        if (line_end == at)
            return; /* the empty line ends the block */
        colon = memchr(at, ':', (size_t)(line_end - at));
        if (colon == NULL || colon == at) {
            out->headers_cut = true;
        } else if (sk_header_known(at, (size_t)(colon - at)) == known) {
            value = colon + 1;
            while (value < line_end && (*value == ' ' || *value == '\t'))
                value++;
            while (line_end > value && (line_end[-1] == ' ' || line_end[-1] == '\t'))
                line_end--;
            (void)sk_delivery_add_header(out, at, (size_t)(colon - at), value, (size_t)(line_end - value));
        }
        if (lf == NULL)
            return;
        at = lf + 1;
    }
}

void sk_headers_parse(struct sk_delivery *out, const char *block, size_t len)
{
    const char *end = block + len, *first;

    if (len < 8 || memcmp(block, "NATS/1.0", 8) != 0) {
        out->headers_cut = out->headers_cut || len > 0;
        return;
    }
    first = memchr(block, '\n', len);
    if (first == NULL) {
        out->headers_cut = true;
        return;
    }
    /* Our own names first, so that a flood of others cannot crowd them out. */
    parse_lines(out, first + 1, end, true);
    parse_lines(out, first + 1, end, false);
}

static int base64_value(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' || c == '-' ? 62 : c == '/' || c == '_' ? 63 : -1;
}

char *sk_base64_decode(const char *text, size_t len, size_t *out_len)
{
    char *out;
    size_t used = 0;
    uint32_t bits = 0;
    int have = 0;

    while (len > 0 && text[len - 1] == '=')
        len--;
    if (len % 4 == 1 || len > SIZE_MAX / 3 || (out = malloc(len / 4 * 3 + 4)) == NULL)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        int value = base64_value((unsigned char)text[i]);
        if (value < 0) {
            free(out);
            return NULL;
        }
        bits = (bits << 6) | (uint32_t)value;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[used++] = (char)(bits >> have & 0xff);
        }
    }
    out[used] = '\0';
    *out_len = used;
    return out;
}
