/* SPDX-License-Identifier: Apache-2.0
 *
 * Huge pages for the template's memory. What a child writes to is still copied in small pages. */
#include "services/code/pages.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES   ((uintptr_t)2 << 20)
#define SMALL_BYTES  ((uintptr_t)4096)
#define SMALL_PAGES  (HUGE_BYTES / SMALL_BYTES)
#define FULL_ENOUGH  (SMALL_PAGES * 9 / 10) /* the holes become memory too */
#define MAPPING_MAX  ((uintptr_t)1 << 30)   /* larger ones are reserved, hardly used */
#define PAGE_PRESENT ((uint64_t)1 << 63)

static size_t present(int pagemap, uintptr_t address)
{
    uint64_t entries[SMALL_PAGES];
    ssize_t n = pread(pagemap, entries, sizeof(entries), (off_t)(address / SMALL_BYTES * sizeof(entries[0])));
    size_t count = 0;

    for (size_t i = 0; n == (ssize_t)sizeof(entries) && i < SMALL_PAGES; i++)
        count += (entries[i] & PAGE_PRESENT) != 0;
    return count;
}

void code_pages_collapse(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    char line[512], permissions[8];
    unsigned long from, to, inode;

    while (maps != NULL && pagemap >= 0 && fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &from, &to, permissions, &inode) != 4 || /* NOLINT(cert-err34-c) */
            strcmp(permissions, "rw-p") != 0 || inode != 0 || strstr(line, "[stack]") != NULL ||
            to - from > MAPPING_MAX)
            continue;
        for (uintptr_t at = (from + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1); at + HUGE_BYTES <= to; at += HUGE_BYTES) {
            if (present(pagemap, at) >= FULL_ENOUGH)
                (void)madvise((void *)at, HUGE_BYTES, MADV_COLLAPSE);
        }
    }
    if (maps != NULL)
        (void)fclose(maps);
    if (pagemap >= 0)
        close(pagemap);
}
