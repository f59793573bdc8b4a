/* SPDX-License-Identifier: Apache-2.0
 *
 * The template's memory, laid out for many forks. */
#ifndef SK_CODE_PAGES_H
#define SK_CODE_PAGES_H

/* Makes huge pages of this process' private anonymous memory, where they would be nearly full: a fork copies one entry
 * for each of them instead of 512, and the end of the child drops one, which is a fourth of what a small task costs.
 * Best effort, blocks for some milliseconds; a kernel before 6.1 does nothing. Reads /proc. Call it with one thread,
 * when everything is loaded. */
void code_pages_collapse(void);

#endif
