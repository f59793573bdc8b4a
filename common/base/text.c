/* SPDX-License-Identifier: Apache-2.0
 *
 * Text and time helpers declared in id.h that need nothing but libc: strict UTF-8, bounded copies, RFC 3339. */
#include "common/base/id.h"

#include <stdio.h>
#include <string.h>

/* Length of the valid UTF-8 sequence at p (at most len bytes), 0 when there is none. Well-formed sequences are those of
 * the Unicode standard, table 3-7: the second byte's range depends on the first, which rules out overlong forms,
 * surrogates and everything above U+10FFFF. */
static size_t utf8_sequence(const unsigned char *p, size_t len)
{
    unsigned char low = 0x80, high = 0xbf;
    size_t size;

    if (len == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    size = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (size > len)
        return 0;
    if (p[0] == 0xe0)
        low = 0xa0;
    else if (p[0] == 0xed)
        high = 0x9f;
    else if (p[0] == 0xf0)
        low = 0x90;
    else if (p[0] == 0xf4)
        high = 0x8f;
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < size; i++) {
        if (p[i] < 0x80 || p[i] > 0xbf)
            return 0;
    }
    return size;
}

size_t sk_utf8_sequence(const char *text, size_t len)
{
    return utf8_sequence((const unsigned char *)text, len);
}

long sk_utf8_length(const char *text, size_t len)
{
    long count = 0;
    size_t at = 0;

    while (at < len) {
        size_t size = utf8_sequence((const unsigned char *)text + at, len - at);
        if (size == 0)
            return -1;
        at += size;
        count++;
    }
    return count;
}

bool sk_text_has_control(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;

    for (size_t i = 0; i < len; i++) {
        if (p[i] < 0x20 || p[i] == 0x7f)
            return true;
        /* C1 controls U+0080..U+009F */
        if (p[i] == 0xc2 && i + 1 < len && p[i + 1] >= 0x80 && p[i + 1] <= 0x9f)
            return true;
    }
    return false;
}

bool sk_copy(char *out, size_t size, const char *text)
{
    size_t len = strlen(text);

    if (size == 0)
        return false;
    if (len >= size) {
        out[0] = '\0';
        return false;
    }
    memcpy(out, text, len + 1);
    return true;
}

void sk_copy_cut(char *out, size_t size, const char *text)
{
    size_t len;

    if (size == 0)
        return;
    len = strnlen(text, size);
    if (len >= size) {
        len = size - 1;
        /* Steps back over the continuation bytes of a code point that was cut. Text that is not UTF-8 loses at most
         * three bytes. */
        for (int back = 0; back < 3 && len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80; back++)
            len--;
    }
    memcpy(out, text, len);
    out[len] = '\0';
}

/* Days since 1970-01-01 of a proleptic Gregorian date, and back (Howard Hinnant's era arithmetic). */
static int64_t days_from_civil(int64_t year, int month, int day)
{
    int64_t era, yoe, doy;

    year -= month <= 2;
    era = (year >= 0 ? year : year - 399) / 400;
    yoe = year - era * 400;
    doy = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

static void civil_from_days(int64_t days, int *year, int *month, int *day)
{
    int64_t era, doe, yoe, doy, mp;

    days += 719468;
    era = (days >= 0 ? days : days - 146096) / 146097;
    doe = days - era * 146097;
    yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    mp = (5 * doy + 2) / 153;
    *day = (int)(doy - (153 * mp + 2) / 5 + 1);
    *month = (int)(mp < 10 ? mp + 3 : mp - 9);
    *year = (int)(yoe + era * 400 + (*month <= 2));
}

#define MS_PER_DAY  86400000LL
#define TIME_MIN_MS (-62167219200000LL) /* 0000-01-01 */
#define TIME_MAX_MS 253402300799999LL   /* 9999-12-31T23:59:59.999Z */

static void put_digits(char *out, int value, int digits)
{
    while (digits-- > 0) {
        out[digits] = (char)('0' + value % 10);
        value /= 10;
    }
}

void sk_time_format(int64_t unix_ms, char out[SK_TIME_SIZE])
{
    int year, month, day, rest;
    int64_t days;

    /* Outside of four-digit years the form could not hold the value. */
    if (unix_ms < TIME_MIN_MS)
        unix_ms = TIME_MIN_MS;
    if (unix_ms > TIME_MAX_MS)
        unix_ms = TIME_MAX_MS;
    days = unix_ms / MS_PER_DAY;
    rest = (int)(unix_ms % MS_PER_DAY);
    if (rest < 0) {
        rest += (int)MS_PER_DAY;
        days--;
    }
    civil_from_days(days, &year, &month, &day);
    memcpy(out, "0000-00-00T00:00:00.000Z", SK_TIME_SIZE);
    put_digits(out, year, 4);
    put_digits(out + 5, month, 2);
    put_digits(out + 8, day, 2);
    put_digits(out + 11, rest / 3600000, 2);
    put_digits(out + 14, rest / 60000 % 60, 2);
    put_digits(out + 17, rest / 1000 % 60, 2);
    put_digits(out + 20, rest % 1000, 3);
}

static bool take_digits(const char **p, int digits, int *out)
{
    int value = 0;

    for (int i = 0; i < digits; i++, (*p)++) {
        if (**p < '0' || **p > '9')
            return false;
        value = value * 10 + (**p - '0');
    }
    *out = value;
    return true;
}

static bool take_char(const char **p, const char *set)
{
    if (**p == '\0' || strchr(set, **p) == NULL)
        return false;
    (*p)++;
    return true;
}

bool sk_time_parse(const char *text, int64_t *unix_ms)
{
    static const int month_days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year, month, day, hour, minute, second, leap, millis = 0, offset = 0;
    const char *p = text;

    if (text == NULL || !take_digits(&p, 4, &year) || !take_char(&p, "-") || !take_digits(&p, 2, &month) ||
        !take_char(&p, "-") || !take_digits(&p, 2, &day) || !take_char(&p, "Tt ") || !take_digits(&p, 2, &hour) ||
        !take_char(&p, ":") || !take_digits(&p, 2, &minute) || !take_char(&p, ":") || !take_digits(&p, 2, &second))
        return false;
    if (*p == '.') {
        int digits = 0;
        p++;
        while (*p >= '0' && *p <= '9') {
            if (++digits > 9)
                return false;
            if (digits <= 3)
                millis = millis * 10 + (*p - '0');
            p++;
        }
        if (digits == 0)
            return false;
        for (; digits < 3; digits++)
            millis *= 10;
    }
    if (!take_char(&p, "Zz")) {
        int off_hour, off_minute;
        bool minus = *p == '-';
        if (!take_char(&p, "+-") || !take_digits(&p, 2, &off_hour) || !take_char(&p, ":") ||
            !take_digits(&p, 2, &off_minute) || off_hour > 23 || off_minute > 59)
            return false;
        offset = (off_hour * 60 + off_minute) * (minus ? -1 : 1);
    }
    leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (*p != '\0' || month < 1 || month > 12 || day < 1 || day > month_days[month - 1] + (month == 2 && leap) ||
        hour > 23 || minute > 59 || second > 60)
        return false;
    /* A leap second is the first moment of the next minute, as POSIX time has no name for it. */
    *unix_ms =
        (days_from_civil(year, month, day) * 86400 + hour * 3600 + (minute - offset) * 60 + second) * 1000 + millis;
    return true;
}
