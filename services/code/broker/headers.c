/* SPDX-License-Identifier: Apache-2.0
 *
 * The headers and the method of a task's request: what can be sent, what is left out silently. Everything that frames a
 * message is the broker's own: two readers of one message is what smuggling lives from. */
#include "services/code/broker/policy.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_token(const char *text, size_t length)
{
    if (length == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c <= ' ' || c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c) != NULL)
            return false;
    }
    return true;
}

bool code_method_allowed(const char *method)
{
    static const char *const refused[] = {"CONNECT", "TRACE", "TRACK"};
    size_t len = strlen(method);

    if (len > CODE_METHOD_MAX || !is_token(method, len))
        return false;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (strcasecmp(method, refused[i]) == 0)
            return false;
    for (size_t i = 0; i < len; i++)
        if (islower((unsigned char)method[i]))
            return false;
    return true;
}

static bool in_list(const char *name, const char *const *list)
{
    for (; *list != NULL; list++)
        if (strcasecmp(name, *list) == 0)
            return true;
    return false;
}

static bool left_out(const char *name, struct code_header_rules rules)
{
    static const char *const framing[] = {
        "Host", "Connection", "Content-Length", "Transfer-Encoding", "Expect",         "Keep-Alive",
        "TE",   "Trailer",    "Trailers",       "Upgrade",           "HTTP2-Settings", NULL};
    static const char *const origin[] = {"Authorization", "Cookie", "Cookie2", NULL};
    static const char *const body[] = {
        "Content-Type", "Content-Encoding", "Content-Language", "Content-Location", "Digest", "Content-MD5", NULL};

    return strncasecmp(name, "Proxy-", 6) == 0 || in_list(name, framing) || (rules.foreign && in_list(name, origin)) ||
           (rules.bare && in_list(name, body));
}

static bool append(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);

    if (longer == NULL)
        return false;
    *list = longer;
    return true;
}

/* The value as text; NULL when it is none. `number` holds what is no text. */
static const char *value_text(const json_t *value, char number[64], size_t *length)
{
    if (json_is_string(value)) {
        *length = json_string_length(value);
        return json_string_value(value);
    }
    if (json_is_boolean(value))
        snprintf(number, 64, "%s", json_is_true(value) ? "true" : "false");
    else if (json_is_integer(value))
        snprintf(number, 64, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(number, 64, "%.17g", json_real_value(value));
    else
        return NULL;
    *length = strlen(number);
    return number;
}

static enum code_net_refusal add(struct curl_slist **list, const char *name, const char *value, size_t length)
{
    size_t size = strlen(name) + length + 3;
    bool good;
    char *line;

    for (size_t i = 0; i < length; i++)
        if (((unsigned char)value[i] < ' ' && value[i] != '\t') || value[i] == 0x7f)
            return CODE_REFUSED_HEADER;
    while (length > 0 && (value[0] == ' ' || value[0] == '\t')) {
        value++;
        length--;
    }
    line = malloc(size);
    if (line == NULL)
        return CODE_REFUSED_MEMORY;
    /* "Name:" would take a header of libcurl's away; "Name;" sends an empty one. */
    if (length == 0)
        snprintf(line, size, "%s;", name);
    else
        snprintf(line, size, "%s: %.*s", name, (int)length, value);
    good = append(list, line);
    free(line);
    return good ? CODE_REFUSED_NOT : CODE_REFUSED_MEMORY;
}

enum code_net_refusal code_headers_build(const json_t *headers, struct code_header_rules rules, struct curl_slist **out)
{
    enum code_net_refusal refusal = CODE_REFUSED_NOT;
    struct curl_slist *list = NULL;
    size_t count = 0, bytes = 0, length, name_length;
    bool typed = false;
    const char *name;
    json_t *value;

    *out = NULL;
    if (headers != NULL && !json_is_object(headers) && !json_is_null(headers))
        return CODE_REFUSED_HEADER;
    json_object_keylen_foreach((json_t *)headers, name, name_length, value)
    {
        char number[64];
        const char *text;

        if (json_is_null(value))
            continue;
        text = value_text(value, number, &length);
        if (text == NULL || strlen(name) != name_length || !is_token(name, name_length))
            refusal = CODE_REFUSED_HEADER;
        else if (++count > CODE_HEADERS_MAX)
            refusal = CODE_REFUSED_HEADER_COUNT;
        else if ((bytes += name_length + length) > CODE_HEADER_BYTES_MAX)
            refusal = CODE_REFUSED_HEADER_BYTES;
        if (refusal != CODE_REFUSED_NOT)
            goto fail;
        if (left_out(name, rules))
            continue;
        typed = typed || strcasecmp(name, "Content-Type") == 0;
        refusal = add(&list, name, text, length);
        if (refusal != CODE_REFUSED_NOT)
            goto fail;
    }
    /* "Expect:" and "Content-Type:" keep libcurl from adding its own. */
    if (!append(&list, "Expect:") ||
        (!typed &&
         !append(&list, rules.with_body && !rules.bare ? "Content-Type: application/json" : "Content-Type:"))) {
        refusal = CODE_REFUSED_MEMORY;
        goto fail;
    }
    *out = list;
    return CODE_REFUSED_NOT;
fail:
    curl_slist_free_all(list);
    return refusal;
}
