/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict JSON scanner that builds nothing: it checks a text and hands out where the members of the outermost object
 * stand. Variables and results go from one process to another as they are, so numbers keep their digits, objects their
 * order and nesting costs one bit a level instead of stack (contract/code.md §4, §5).
 *
 * Refused: what RFC 8259 does not allow, invalid UTF-8 (also in keys), nesting beyond `depth_max`, anything after the
 * document. Accepted as JSON.parse does: duplicate keys (all are handed out, the last counts), lone surrogates as
 * escapes, numbers of any size. Pure functions, any thread, nothing blocks. */
#ifndef SK_CODE_HOST_SCAN_H
#define SK_CODE_HOST_SCAN_H

#include "common/base/error.h"

enum code_scan_kind {
    CODE_SCAN_NONE, /* absent: "undefined" */
    CODE_SCAN_NULL,
    CODE_SCAN_BOOLEAN,
    CODE_SCAN_NUMBER,
    CODE_SCAN_STRING,
    CODE_SCAN_ARRAY,
    CODE_SCAN_OBJECT,
};

/* A value as it stands in the text; strings with their quotes. */
struct code_span {
    const char *text;
    size_t length;
    enum code_scan_kind kind;
};

struct code_scan_fault {
    const char *what; /* static: "it ends too early" */
    size_t offset;    /* of the byte that is wrong */
    long line, column;
    bool memory; /* not the text's fault: out of memory */
};

/* One member of the outermost object. The text may not be changed before code_scan() has returned. */
typedef void (*code_scan_member)(void *arg, const struct code_span *key, const struct code_span *value);

/* False with *fault. *root is the whole document without the space around it; `member` may be NULL. */
SK_MUST_USE bool code_scan(const char *text, size_t length, size_t depth_max, code_scan_member member, void *arg,
                           struct code_span *root, struct code_scan_fault *fault);

struct code_decoded {
    size_t length; /* bytes of UTF-8 */
    size_t units;  /* UTF-16 units: what JavaScript calls the length */
    bool lone;     /* a lone surrogate was there: U+FFFD stands in its place */
    bool nul;
};

/* The content of a string that code_scan() has passed. `out` has room for at least span->length - 2 bytes, is not
 * terminated, and may be the string's own place (span->text or later): the content is never longer than its spelling.
 */
struct code_decoded code_scan_decode(const struct code_span *string, char *out);
/* Whether a string's content is exactly `text` (shorter than 64 bytes, without NUL). */
bool code_scan_equals(const struct code_span *string, const char *text);
const char *code_scan_kind_name(enum code_scan_kind kind); /* as in JavaScript schemas: "undefined", "array", … */

#endif
