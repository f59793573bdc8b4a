/* SPDX-License-Identifier: Apache-2.0
 *
 * The script that build.mjs makes of src/ and the packages, embedded at build time: ASCII, NUL-terminated. */
#ifndef SK_CODE_JS_BUNDLE_H
#define SK_CODE_JS_BUNDLE_H

extern const char code_js_bundle[];

#endif
