/* SPDX-License-Identifier: Apache-2.0
 *
 * The template's memory, laid out for many forks. Each of these is best effort, blocks for some milliseconds and needs
 * a process with one thread that has loaded everything; they read /proc, and a kernel before 6.1 leaves all as it is.
 */
#ifndef SK_CODE_PAGES_H
#define SK_CODE_PAGES_H

#include <stddef.h>

#define CODE_TEXT_BYTES_MAX ((size_t)64 << 20) /* copied by code_pages_text() */

/* Makes huge pages of this process' private anonymous memory, where they would be nearly full: a fork copies one entry
 * for each of them instead of 512, and the end of the child drops one, which is a fourth of what a small task costs. */
void code_pages_collapse(void);
/* Copies the parts of programs and libraries that are in use into huge pages of shared memory, sealed against writing,
 * and maps those in their place: a child maps them by some 10 page faults, where it took more than 100 of small pages
 * of the files. What lies in private copies already (relocations) stays. Returns the bytes that were copied. */
size_t code_pages_text(void);
/* Lets children go without these libraries (starts of their files' names, NULL-terminated): a fork has fewer mappings
 * to copy and to end, and a task less code to misuse. A child that calls one of them, or lists the loaded libraries,
 * dies. Symbols must be bound already. Returns the number of mappings. */
int code_pages_leave(const char *const *libraries);

#endif
