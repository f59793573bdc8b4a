/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedded script: the assembler takes the file as it is. cmake defines CODE_JS_BUNDLE_FILE. */
#include "services/code/js/bundle.h"

__asm__(".section .rodata\n"
        ".global code_js_bundle\n"
        ".type code_js_bundle, @object\n"
        "code_js_bundle:\n"
        ".incbin \"" CODE_JS_BUNDLE_FILE "\"\n"
        ".byte 0\n"
        ".size code_js_bundle, . - code_js_bundle\n"
        ".previous\n");
