/* SPDX-License-Identifier: Apache-2.0
 *
 * Huge pages of the template's memory: where they are made, where not, and that nothing in them changes. */
#include "services/code/pages.h"
#include "tests/unit/check_main.h"

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES ((size_t)2 << 20)
#define PAGE_BYTES ((size_t)4096)

/* Memory at a multiple of 2 MiB, in small pages so far: `every`-th of them written. */
static char *memory(size_t every)
{
    char *map = mmap(NULL, 3 * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;

    ck_assert_ptr_ne(map, MAP_FAILED);
    at = map + (HUGE_BYTES - (size_t)map % HUGE_BYTES) % HUGE_BYTES;
    ck_assert_int_eq(madvise(at, HUGE_BYTES, MADV_NOHUGEPAGE), 0);
    for (size_t page = 0; page < HUGE_BYTES / PAGE_BYTES; page += every)
        memset(at + page * PAGE_BYTES, (int)(page % 251 + 1), PAGE_BYTES);
    ck_assert_int_eq(madvise(at, HUGE_BYTES, MADV_HUGEPAGE), 0);
    return at;
}

/* KiB of the mapping that holds `at`. */
static long size_of(const char *at, const char *field)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    unsigned long from, to;
    bool here = false;
    char line[512];
    long kib = -1;

    ck_assert_ptr_nonnull(file);
    while (kib < 0 && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = from <= (unsigned long)at && (unsigned long)at < to;
        else if (here && strncmp(line, field, strlen(field)) == 0)
            kib = strtol(line + strlen(field), NULL, 10);
    }
    (void)fclose(file);
    return kib;
}

static bool kernel_collapses(void)
{
    return madvise(memory(1), HUGE_BYTES, MADV_COLLAPSE) == 0;
}

START_TEST(test_full_memory)
{
    bool possible = kernel_collapses();
    char *at = memory(1);

    ck_assert_int_eq(size_of(at, "AnonHugePages:"), 0);
    code_pages_collapse();
    ck_assert_int_eq(size_of(at, "AnonHugePages:"), possible ? (long)HUGE_BYTES / 1024 : 0);
    for (size_t page = 0; page < HUGE_BYTES / PAGE_BYTES; page++) {
        ck_assert_int_eq((unsigned char)at[page * PAGE_BYTES], page % 251 + 1);
        ck_assert_int_eq((unsigned char)at[(page + 1) * PAGE_BYTES - 1], page % 251 + 1);
    }
}
END_TEST

/* Holes would become memory: every template and zygote pays for that. */
START_TEST(test_memory_with_holes)
{
    char *at = memory(2);
    long before = size_of(at, "Anonymous:");

    code_pages_collapse();
    ck_assert_int_eq(size_of(at, "AnonHugePages:"), 0);
    ck_assert_int_eq(size_of(at, "Anonymous:"), before);
    ck_assert_int_eq(at[PAGE_BYTES], 0);
}
END_TEST

SK_CHECK_MAIN("code walls pages", test_full_memory, test_memory_with_holes)
