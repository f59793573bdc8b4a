/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between UTF-16, UTF-8 and JSON. */
#include "services/code/js/text.h"

#include <string.h>

#define REPLACEMENT 0xfffdU

static size_t put(uint32_t point, char *out)
{
    char bytes[4];
    size_t length;

    if (point < 0x80) {
        bytes[0] = (char)point;
        length = 1;
    } else if (point < 0x800) {
        bytes[0] = (char)(0xc0 | point >> 6);
        bytes[1] = (char)(0x80 | (point & 0x3f));
        length = 2;
    } else if (point < 0x10000) {
        bytes[0] = (char)(0xe0 | point >> 12);
        bytes[1] = (char)(0x80 | (point >> 6 & 0x3f));
        bytes[2] = (char)(0x80 | (point & 0x3f));
        length = 3;
    } else {
        bytes[0] = (char)(0xf0 | point >> 18);
        bytes[1] = (char)(0x80 | (point >> 12 & 0x3f));
        bytes[2] = (char)(0x80 | (point >> 6 & 0x3f));
        bytes[3] = (char)(0x80 | (point & 0x3f));
        length = 4;
    }
    if (out != NULL)
        memcpy(out, bytes, length);
    return length;
}

/* The code point at chars[*at], which it steps over. */
static uint32_t next(const uint16_t *chars, size_t count, size_t *at)
{
    uint32_t unit = chars[(*at)++];

    if (unit < 0xd800 || unit > 0xdfff)
        return unit;
    if (unit < 0xdc00 && *at < count && chars[*at] >= 0xdc00 && chars[*at] <= 0xdfff)
        return 0x10000 + ((unit - 0xd800) << 10) + (chars[(*at)++] - 0xdc00U);
    return REPLACEMENT;
}

size_t code_utf8_from(const uint16_t *chars, size_t count, char *out)
{
    size_t length = 0;

    for (size_t i = 0; i < count;)
        length += put(next(chars, count, &i), out == NULL ? NULL : out + length);
    return length;
}

size_t code_json_escape(const uint16_t *chars, size_t count, char *out)
{
    static const char hex[] = "0123456789abcdef";
    size_t length = 0;

    for (size_t i = 0; i < count;) {
        uint32_t point = next(chars, count, &i);
        char escape[6] = {'\\', 0, '0', '0', 0, 0};
        size_t size = 2;

        switch (point) {
        case '"':
        case '\\':
            escape[1] = (char)point;
            break;
        case '\n':
            escape[1] = 'n';
            break;
        case '\r':
            escape[1] = 'r';
            break;
        case '\t':
            escape[1] = 't';
            break;
        default:
            if (point >= 0x20) {
                length += put(point, out == NULL ? NULL : out + length);
                continue;
            }
            escape[1] = 'u';
            escape[4] = hex[point >> 4];
            escape[5] = hex[point & 15];
            size = 6;
        }
        if (out != NULL)
            memcpy(out + length, escape, size);
        length += size;
    }
    return length;
}

static bool is_surrogate_escape(const uint16_t *chars, size_t count, size_t at)
{
    uint16_t third;

    if (count - at < 6 || chars[at + 1] != 'u' || (chars[at + 2] | 0x20) != 'd')
        return false;
    third = chars[at + 3] | 0x20;
    return chars[at + 3] == '8' || chars[at + 3] == '9' || (third >= 'a' && third <= 'f');
}

size_t code_json_text(const uint16_t *chars, size_t count, char *out)
{
    size_t length = 0;

    for (size_t i = 0; i < count;) {
        if (chars[i] != '\\' || i + 1 == count) {
            length += put(next(chars, count, &i), out == NULL ? NULL : out + length);
        } else if (is_surrogate_escape(chars, count, i)) {
            length += put(REPLACEMENT, out == NULL ? NULL : out + length);
            i += 6;
        } else {
            if (out != NULL) {
                out[length] = '\\';
                out[length + 1] = (char)chars[i + 1];
            }
            length += 2;
            i += 2;
        }
    }
    return length;
}

/* What the encoding standard allows after a lead byte: how many more, and the bounds of the first of them. */
static int follow(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 1;
    if (lead >= 0xe0 && lead <= 0xef) {
        if (lead == 0xe0)
            *low = 0xa0;
        if (lead == 0xed)
            *high = 0x9f;
        return 2;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        if (lead == 0xf0)
            *low = 0x90;
        if (lead == 0xf4)
            *high = 0x8f;
        return 3;
    }
    return -1;
}

size_t code_utf16_from(const unsigned char *bytes, size_t length, uint16_t *out, bool *valid)
{
    size_t count = 0;

    *valid = true;
    for (size_t i = 0; i < length;) {
        unsigned char lead = bytes[i++], low, high;
        uint32_t point;
        int more;

        if (lead < 0x80) {
            out[count++] = lead;
            continue;
        }
        more = follow(lead, &low, &high);
        point = more == 1 ? lead & 0x1fU : more == 2 ? lead & 0x0fU : lead & 0x07U;
        while (more > 0 && i < length && bytes[i] >= low && bytes[i] <= high) {
            point = point << 6 | (bytes[i++] & 0x3fU);
            low = 0x80;
            high = 0xbf;
            more--;
        }
        if (more != 0) {
            point = REPLACEMENT;
            *valid = false;
        }
        if (point >= 0x10000) {
            out[count++] = (uint16_t)(0xd800 + ((point - 0x10000) >> 10));
            out[count++] = (uint16_t)(0xdc00 + ((point - 0x10000) & 0x3ff));
        } else {
            out[count++] = (uint16_t)point;
        }
    }
    return count;
}
