/* SPDX-License-Identifier: Apache-2.0
 *
 * Text between the engine (UTF-16, which may hold lone surrogates) and JSON in UTF-8 (which must not). Pure functions.
 */
#ifndef SK_CODE_JS_TEXT_H
#define SK_CODE_JS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each writes to `out` what it is large enough for by contract, or nothing when `out` is NULL, and returns the length.
 */

/* UTF-8 of `chars`; a lone surrogate becomes U+FFFD. */
size_t code_utf8_from(const uint16_t *chars, size_t count, char *out);
/* The same as the inside of a JSON string. */
size_t code_json_escape(const uint16_t *chars, size_t count, char *out);
/* JSON text as JSON.stringify made it: also turns its escapes of lone surrogates (\udXXX) into U+FFFD. */
size_t code_json_text(const uint16_t *chars, size_t count, char *out);
/* UTF-16 of bytes by the rules of the encoding standard: U+FFFD for what is not UTF-8 (*valid tells whether there was
 * any). The result is never more units than bytes. */
size_t code_utf16_from(const unsigned char *bytes, size_t length, uint16_t *out, bool *valid);

#endif
