/* SPDX-License-Identifier: Apache-2.0
 *
 * Percent decoding and query parameters. Pure functions. */
#include "common/http/stream/stream.h"

#include <stdlib.h>
#include <string.h>

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

long sk_stream_url_decode(char *text, bool plus)
{
    char *out = text;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '%') {
            int high = hex(p[1]);
            int low = high < 0 ? -1 : hex(p[2]);
            if (low < 0 || (high == 0 && low == 0))
                return -1;
            *out++ = (char)(high * 16 + low);
            p += 2;
        } else {
            *out++ = plus && *p == '+' ? ' ' : *p;
        }
    }
    *out = '\0';
    return out - text;
}

bool sk_stream_query_valid(const char *query, char *name, size_t size)
{
    for (const char *p = query; *p != '\0';) {
        size_t len = strcspn(p, "&");
        char *pair = strndup(p, len);
        char *value = pair != NULL ? strchr(pair, '=') : NULL;
        if (value != NULL)
            *value++ = '\0';
        bool named = pair != NULL && sk_stream_url_decode(pair, true) >= 0;
        bool fine = named && (value == NULL || sk_stream_url_decode(value, true) >= 0);
        if (!fine && size > 0) {
            size_t n = named ? strnlen(pair, size - 1) : 0;
            memcpy(name, named ? pair : "", n);
            name[n] = '\0';
        }
        free(pair);
        if (!fine)
            return false;
        p += len;
        if (*p == '&')
            p++;
    }
    return true;
}

char *sk_stream_query_value(const char *query, const char *name, int n, bool *bad)
{
    if (bad != NULL)
        *bad = false;
    for (const char *p = query; *p != '\0';) {
        size_t len = strcspn(p, "&");
        char *pair = strndup(p, len);
        if (pair == NULL)
            return NULL;
        char *value = strchr(pair, '=');
        if (value != NULL)
            *value++ = '\0';
        if (sk_stream_url_decode(pair, true) >= 0 && strcmp(pair, name) == 0 && n-- == 0) {
            char *copy = strdup(value != NULL ? value : "");
            free(pair);
            if (copy != NULL && sk_stream_url_decode(copy, true) < 0) {
                free(copy);
                copy = NULL;
                if (bad != NULL)
                    *bad = true;
            }
            return copy;
        }
        free(pair);
        p += len;
        if (*p == '&')
            p++;
    }
    return NULL;
}
