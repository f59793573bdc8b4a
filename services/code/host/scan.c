/* SPDX-License-Identifier: Apache-2.0
 *
 * The scanner: one loop over the bytes and one bit per open bracket. */
#include "services/code/host/scan.h"

#include "common/base/id.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_LEVELS 512 /* bits on the stack; deeper texts get a table of their own */

enum state { WANT_VALUE, WANT_VALUE_OR_END, WANT_KEY, WANT_KEY_OR_END, AFTER_VALUE };

struct scanner {
    const char *text;
    size_t length, at, depth, depth_max, levels;
    unsigned char *bits; /* 1 = object */
    unsigned char first[FIRST_LEVELS / 8];
    const char *what;
    bool memory;
};

static bool fail(struct scanner *s, const char *what)
{
    s->what = what;
    return false;
}

static bool grow(struct scanner *s)
{
    size_t levels = s->levels * 2;
    unsigned char *bits = s->bits == s->first ? malloc(levels / 8) : realloc(s->bits, levels / 8);

    if (bits == NULL) {
        s->memory = true;
        return fail(s, "out of memory");
    }
    if (s->bits == s->first)
        memcpy(bits, s->first, sizeof(s->first));
    s->bits = bits;
    s->levels = levels;
    return true;
}

static bool push(struct scanner *s, bool object)
{
    if (s->depth >= s->depth_max)
        return fail(s, "it is nested too deeply");
    if (s->depth == s->levels && !grow(s))
        return false;
    if (object)
        s->bits[s->depth / 8] |= (unsigned char)(1u << s->depth % 8);
    else
        s->bits[s->depth / 8] &= (unsigned char)~(1u << s->depth % 8);
    s->depth++;
    s->at++;
    return true;
}

static bool in_object(const struct scanner *s)
{
    return (s->bits[(s->depth - 1) / 8] >> (s->depth - 1) % 8 & 1) != 0;
}

static bool is_digit(const struct scanner *s)
{
    return s->at < s->length && s->text[s->at] >= '0' && s->text[s->at] <= '9';
}

static bool digits(struct scanner *s)
{
    if (!is_digit(s))
        return fail(s, s->at < s->length ? "a number is not complete" : "it ends too early");
    while (is_digit(s))
        s->at++;
    return true;
}

static bool number(struct scanner *s)
{
    if (s->text[s->at] == '-')
        s->at++;
    if (s->at < s->length && s->text[s->at] == '0')
        s->at++;
    else if (!digits(s))
        return false;
    if (is_digit(s))
        return fail(s, "a number has a leading zero");
    if (s->at < s->length && s->text[s->at] == '.') {
        s->at++;
        if (!digits(s))
            return false;
    }
    if (s->at < s->length && (s->text[s->at] == 'e' || s->text[s->at] == 'E')) {
        s->at++;
        if (s->at < s->length && (s->text[s->at] == '+' || s->text[s->at] == '-'))
            s->at++;
        return digits(s);
    }
    return true;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool escape(struct scanner *s)
{
    if (s->at + 1 >= s->length) {
        s->at = s->length;
        return fail(s, "it ends too early");
    }
    if (s->text[s->at + 1] != 'u') {
        if (s->text[s->at + 1] == '\0' || strchr("\"\\/bfnrt", s->text[s->at + 1]) == NULL)
            return fail(s, "an escape in a string is unknown");
        s->at += 2;
        return true;
    }
    for (size_t i = 2; i < 6; i++) {
        if (s->at + i >= s->length) {
            s->at = s->length;
            return fail(s, "it ends too early");
        }
        if (hex(s->text[s->at + i]) < 0)
            return fail(s, "an escape in a string is unknown");
    }
    s->at += 6;
    return true;
}

static bool string(struct scanner *s)
{
    s->at++;
    while (s->at < s->length) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') {
            s->at++;
            return true;
        }
        if (c == '\\') {
            if (!escape(s))
                return false;
        } else if (c < 0x20) {
            return fail(s, "a control character stands in a string");
        } else if (c < 0x80) {
            s->at++;
        } else {
            size_t n = sk_utf8_sequence(s->text + s->at, s->length - s->at);
            if (n == 0)
                return fail(s, "it is not valid UTF-8");
            s->at += n;
        }
    }
    return fail(s, "it ends too early");
}

static bool literal(struct scanner *s, const char *word)
{
    for (size_t i = 0; word[i] != '\0'; i++, s->at++) {
        if (s->at >= s->length)
            return fail(s, "it ends too early");
        if (s->text[s->at] != word[i])
            return fail(s, "it is not JSON");
    }
    return true;
}

static bool unexpected(struct scanner *s)
{
    bool broken = (unsigned char)s->text[s->at] >= 0x80 && sk_utf8_sequence(s->text + s->at, s->length - s->at) == 0;

    return fail(s, broken ? "it is not valid UTF-8" : "it is not JSON");
}

/* A scalar whole, or the opening of a container: *opened. */
static bool value(struct scanner *s, enum code_scan_kind *kind, bool *opened)
{
    char c = s->text[s->at];

    *opened = c == '{' || c == '[';
    switch (c) {
    case '{':
    case '[':
        *kind = c == '{' ? CODE_SCAN_OBJECT : CODE_SCAN_ARRAY;
        return push(s, c == '{');
    case '"':
        *kind = CODE_SCAN_STRING;
        return string(s);
    case 't':
    case 'f':
        *kind = CODE_SCAN_BOOLEAN;
        return literal(s, c == 't' ? "true" : "false");
    case 'n':
        *kind = CODE_SCAN_NULL;
        return literal(s, "null");
    default:
        *kind = CODE_SCAN_NUMBER;
        return c == '-' || (c >= '0' && c <= '9') ? number(s) : unexpected(s);
    }
}

static void skip_space(struct scanner *s)
{
    while (s->at < s->length &&
           (s->text[s->at] == ' ' || s->text[s->at] == '\n' || s->text[s->at] == '\r' || s->text[s->at] == '\t'))
        s->at++;
}

static bool key(struct scanner *s, struct code_span *out)
{
    size_t start = s->at;

    if (s->text[s->at] != '"')
        return unexpected(s);
    if (!string(s))
        return false;
    *out = (struct code_span){s->text + start, s->at - start, CODE_SCAN_STRING};
    skip_space(s);
    if (s->at == s->length)
        return fail(s, "it ends too early");
    if (s->text[s->at] != ':')
        return unexpected(s);
    s->at++;
    return true;
}

static bool document(struct scanner *s, code_scan_member member, void *arg, struct code_span *root)
{
    struct code_span name = {.kind = CODE_SCAN_NONE}, item = {.kind = CODE_SCAN_NONE}, last_key;
    enum state state = WANT_VALUE;
    enum code_scan_kind kind;
    bool opened;

    for (;;) {
        skip_space(s);
        if (s->at == s->length)
            return (state == AFTER_VALUE && s->depth == 0) || fail(s, "it ends too early");
        char c = s->text[s->at];
        if ((state == WANT_VALUE_OR_END && c == ']') || (state == WANT_KEY_OR_END && c == '}') ||
            (state == AFTER_VALUE && s->depth > 0 && c == (in_object(s) ? '}' : ']'))) {
            s->at++;
            s->depth--;
            state = AFTER_VALUE;
        } else if (state == WANT_VALUE || state == WANT_VALUE_OR_END) {
            size_t start = s->at, depth = s->depth;
            if (!value(s, &kind, &opened))
                return false;
            if (depth == 0)
                *root = (struct code_span){s->text + start, s->at - start, kind};
            if (depth == 1)
                item = (struct code_span){s->text + start, s->at - start, kind};
            state = !opened ? AFTER_VALUE : kind == CODE_SCAN_OBJECT ? WANT_KEY_OR_END : WANT_VALUE_OR_END;
            if (opened)
                continue;
        } else if (state == WANT_KEY || state == WANT_KEY_OR_END) {
            if (!key(s, &last_key))
                return false;
            if (s->depth == 1)
                name = last_key;
            state = WANT_VALUE;
            continue;
        } else if (s->depth == 0) {
            return fail(s, "something follows the document");
        } else if (c == ',') {
            s->at++;
            state = in_object(s) ? WANT_KEY : WANT_VALUE;
            continue;
        } else {
            return unexpected(s);
        }
        /* A value has just ended. */
        if (s->depth == 0)
            root->length = (size_t)(s->text + s->at - root->text);
        if (s->depth == 1 && root->kind == CODE_SCAN_OBJECT && name.kind == CODE_SCAN_STRING) {
            item.length = (size_t)(s->text + s->at - item.text);
            if (member != NULL)
                member(arg, &name, &item);
        }
    }
}

bool code_scan(const char *text, size_t length, size_t depth_max, code_scan_member member, void *arg,
               struct code_span *root, struct code_scan_fault *fault)
{
    struct scanner s = {.text = text, .length = length, .depth_max = depth_max, .levels = FIRST_LEVELS};
    bool good;

    s.bits = s.first;
    *root = (struct code_span){.text = text, .kind = CODE_SCAN_NONE};
    good = document(&s, member, arg, root);
    if (s.bits != s.first)
        free(s.bits);
    if (!good) {
        *fault = (struct code_scan_fault){.what = s.what, .offset = s.at, .line = 1, .column = 1, .memory = s.memory};
        for (size_t i = 0; i < s.at; i++) {
            fault->column = text[i] == '\n' ? 1 : fault->column + 1;
            fault->line += text[i] == '\n';
        }
    }
    return good;
}

/* ---- strings ------------------------------------------------------------------------------------ */
/* Four hexadecimal digits that the scanner has passed. */
static unsigned unit(const char *text)
{
    unsigned value = 0;

    for (int i = 0; i < 4; i++)
        value = value * 16 + (unsigned)hex(text[i]);
    return value;
}

static size_t put(char *out, unsigned c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* A \u escape at `text`, of which `left` bytes remain; returns how many were taken. */
static size_t decode_unicode(const char *text, size_t left, unsigned *c, bool *lone)
{
    unsigned low;

    *c = unit(text + 2);
    if (*c < 0xd800 || *c > 0xdfff)
        return 6;
    if (*c < 0xdc00 && left >= 12 && text[6] == '\\' && text[7] == 'u') {
        low = unit(text + 8);
        if (low >= 0xdc00 && low <= 0xdfff) {
            *c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
            return 12;
        }
    }
    *c = 0xfffd;
    *lone = true;
    return 6;
}

struct code_decoded code_scan_decode(const struct code_span *string_at, char *out)
{
    static const char escapes[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    const char *in = string_at->text + 1, *end = string_at->text + string_at->length - 1;
    struct code_decoded d = {.length = 0};

    while (in < end) {
        unsigned char first = (unsigned char)*in;
        unsigned c;
        if (first != '\\') {
            /* One byte of a sequence at a time: those that go on (10xxxxxx) are no new unit, four bytes are two. */
            d.units += first < 0x80 || first >= 0xc0 ? (first >= 0xf0 ? 2 : 1) : 0;
            out[d.length++] = *in++;
            continue;
        }
        if (in[1] == 'u') {
            in += decode_unicode(in, (size_t)(end - in), &c, &d.lone);
        } else {
            c = (unsigned char)plain[strchr(escapes, in[1]) - escapes];
            in += 2;
        }
        d.nul = d.nul || c == 0;
        d.units += c >= 0x10000 ? 2 : 1;
        d.length += put(out + d.length, c);
    }
    return d;
}

bool code_scan_equals(const struct code_span *string_at, const char *text)
{
    size_t length = strlen(text);
    char content[6 * 64];

    if (string_at->kind != CODE_SCAN_STRING || string_at->length - 2 > 6 * length || length >= 64)
        return false;
    struct code_decoded d = code_scan_decode(string_at, content);
    return d.length == length && memcmp(content, text, length) == 0;
}

const char *code_scan_kind_name(enum code_scan_kind kind)
{
    static const char *const names[] = {"undefined", "null", "boolean", "number", "string", "array", "object"};

    return names[kind];
}
