/* SPDX-License-Identifier: Apache-2.0
 *
 * Huge pages of the template's memory and of its libraries: where they are made, where not, and that nothing in them
 * changes; and what children go without. */
#include "services/code/pages.h"
#include "tests/unit/check_main.h"

#include <check.h>
#include <errno.h>
#include <execinfo.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES ((size_t)2 << 20)
#define PAGE_BYTES ((size_t)4096)

/* Memory at a multiple of 2 MiB, in small pages so far: `every`-th of them written. A mapping of its own: what lies
 * beside it cannot be accessed, so that the kernel joins it with no other. */
static char *memory(size_t every)
{
    char *map = mmap(NULL, 3 * HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;

    ck_assert_ptr_ne(map, MAP_FAILED);
    at = map + HUGE_BYTES - (size_t)map % HUGE_BYTES;
    ck_assert_int_eq(mprotect(at, HUGE_BYTES, PROT_READ | PROT_WRITE), 0);
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

/* A mapping of a file at a multiple of 2 MiB, three huge pages long, all of it touched. */
static char *file_memory(int protection)
{
    char path[] = "/tmp/sandkeep-pages-XXXXXX";
    int fd = mkstemp(path);
    char *room = mmap(NULL, 4 * HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;
    static char page[PAGE_BYTES];
    volatile char sum = 0;

    ck_assert_int_ge(fd, 0);
    unlink(path);
    ck_assert_ptr_ne(room, MAP_FAILED);
    for (size_t i = 0; i < 3 * HUGE_BYTES / PAGE_BYTES; i++) {
        memset(page, (int)(i % 251 + 1), sizeof(page));
        ck_assert_int_eq(write(fd, page, sizeof(page)), sizeof(page));
    }
    at = room + (HUGE_BYTES - (size_t)room % HUGE_BYTES) % HUGE_BYTES;
    ck_assert_ptr_eq(mmap(at, 3 * HUGE_BYTES, protection, MAP_PRIVATE | MAP_FIXED, fd, 0), at);
    close(fd);
    for (size_t i = 0; i < 3 * HUGE_BYTES; i += PAGE_BYTES)
        sum = (char)(sum + at[i]);
    return at;
}

static void same_content(const char *at)
{
    for (size_t i = 0; i < 3 * HUGE_BYTES / PAGE_BYTES; i++)
        ck_assert_int_eq((unsigned char)at[i * PAGE_BYTES + i % PAGE_BYTES], i % 251 + 1);
}

/* The line of /proc/self/maps of the mapping that holds `at`. */
static void line_of(const char *at, char line[512])
{
    FILE *file = fopen("/proc/self/maps", "re");
    unsigned long from, to;

    ck_assert_ptr_nonnull(file);
    while (fgets(line, 512, file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2 && from <= (unsigned long)at && (unsigned long)at < to)
            break;
    }
    (void)fclose(file);
}

START_TEST(test_text)
{
    bool possible = kernel_collapses();
    char line[512];
    char *code = file_memory(PROT_READ | PROT_EXEC), *constant = file_memory(PROT_READ),
         *written = file_memory(PROT_READ | PROT_WRITE);

    written[HUGE_BYTES] = written[HUGE_BYTES]; /* a private copy, as a relocation makes one */
    ck_assert_int_eq(mprotect(written, 3 * HUGE_BYTES, PROT_READ), 0);
    if (possible)
        ck_assert_uint_ge(code_pages_text(), 8 * HUGE_BYTES); /* and what this program has itself */
    else
        (void)code_pages_text();
    same_content(code);
    same_content(constant);
    same_content(written);
    line_of(code, line);
    ck_assert(strstr(line, " r-xp ") != NULL);
    ck_assert_int_eq(strstr(line, "/memfd:sk-text") != NULL, possible);
    line_of(constant, line);
    ck_assert(strstr(line, " r--p ") != NULL);
    ck_assert_int_eq(strstr(line, "/memfd:sk-text") != NULL, possible);
    line_of(written + HUGE_BYTES, line);
    ck_assert_ptr_null(strstr(line, "/memfd:"));
    if (!possible)
        return;
    /* Nobody changes it for everybody: what one process writes is its own. */
    ck_assert_int_eq(mprotect(code, PAGE_BYTES, PROT_READ | PROT_WRITE), 0);
    if (fork() == 0) {
        code[0] = 77;
        _exit(0);
    }
    ck_assert_int_gt(wait(NULL), 0);
    same_content(code);
}
END_TEST

/* Few pages of it are in use: not worth a copy. */
START_TEST(test_text_that_is_hardly_used)
{
    char line[512];
    char *code = file_memory(PROT_READ | PROT_EXEC);
    volatile char sum;

    ck_assert_int_eq(madvise(code, 3 * HUGE_BYTES, MADV_DONTNEED), 0);
    sum = code[HUGE_BYTES];
    (void)sum;
    (void)code_pages_text();
    same_content(code);
    line_of(code + HUGE_BYTES, line);
    ck_assert_ptr_null(strstr(line, "/memfd:"));
}
END_TEST

START_TEST(test_children_go_without_libraries)
{
    static const char *const names[] = {"no-such-library.so", "sandkeep-pages-", NULL};
    int status = 0;
    char *code = file_memory(PROT_READ | PROT_EXEC);
    unsigned char resident[1];
    pid_t pid;

    ck_assert_int_eq(code_pages_leave(names), 1);
    ck_assert_int_eq(code_pages_leave(NULL), 0);
    same_content(code);
    pid = fork();
    if (pid == 0)
        _exit(mincore(code, PAGE_BYTES, resident) != 0 && errno == ENOMEM ? 0 : 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* The engine asks for a backtrace where it reports a syntax error. */
START_TEST(test_children_can_unwind)
{
    static const char *const names[] = {"libsubunit.so", NULL};
    /* Bound now, as a template has all of its symbols bound. */
    int (*volatile unwind)(void **, int) = backtrace;
    void (*volatile end)(int) = _exit;
    int status = 0;
    void *frame;
    pid_t pid;

    ck_assert_int_gt(code_pages_leave(names), 0);
    pid = fork();
    if (pid == 0)
        end(unwind(&frame, 1) == 1 ? 0 : 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

SK_CHECK_MAIN("code walls pages", test_full_memory, test_memory_with_holes, test_text, test_text_that_is_hardly_used,
              test_children_go_without_libraries, test_children_can_unwind)
