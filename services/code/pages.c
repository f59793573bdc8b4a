/* SPDX-License-Identifier: Apache-2.0
 *
 * Huge pages for the template's memory. What a child writes to is still copied in small pages. */
#include "services/code/pages.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

#define HUGE_BYTES   ((uintptr_t)2 << 20)
#define SMALL_BYTES  ((uintptr_t)4096)
#define SMALL_PAGES  (HUGE_BYTES / SMALL_BYTES)
#define FULL_ENOUGH  (SMALL_PAGES * 9 / 10) /* the holes become memory too */
#define USED_ENOUGH  ((size_t)96)           /* of a file: six page faults map as many */
#define MAPPING_MAX  ((uintptr_t)1 << 30)   /* larger ones are reserved, hardly used */
#define PAGE_PRESENT ((uint64_t)1 << 63)
#define PAGE_OF_FILE ((uint64_t)1 << 61)

/* ---- /proc -------------------------------------------------------------------------------------- */
struct mapping {
    uintptr_t from, to;
    char permissions[8];
    unsigned long inode;
    bool stack, memfd;
    const char *file; /* the last part of its name, with the line's end; "" = none */
};

/* Calls `each` for every mapping of this process. Mappings that it replaces are not met again. */
static void each_mapping(void (*each)(const struct mapping *mapping, int pagemap, void *arg), void *arg)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    char line[512];

    while (maps != NULL && pagemap >= 0 && fgets(line, sizeof(line), maps) != NULL) {
        struct mapping m;
        unsigned long from, to;

        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &from, &to, m.permissions, &m.inode) !=
            4) /* NOLINT(cert-err34-c) */
            continue;
        m.from = from;
        m.to = to;
        m.stack = strstr(line, "[stack]") != NULL;
        m.memfd = strstr(line, "/memfd:") != NULL;
        m.file = m.inode != 0 && strrchr(line, '/') != NULL ? strrchr(line, '/') + 1 : "";
        each(&m, pagemap, arg);
    }
    if (maps != NULL)
        (void)fclose(maps);
    if (pagemap >= 0)
        close(pagemap);
}

/* Small pages of a huge one that are in this process' tables; of those, the ones that are not a file's. */
static size_t present(int pagemap, uintptr_t address, size_t *private)
{
    uint64_t entries[SMALL_PAGES];
    ssize_t n = pread(pagemap, entries, sizeof(entries), (off_t)(address / SMALL_BYTES * sizeof(entries[0])));
    size_t count = 0;

    *private = 0;
    for (size_t i = 0; n == (ssize_t)sizeof(entries) && i < SMALL_PAGES; i++) {
        count += (entries[i] & PAGE_PRESENT) != 0;
        *private += (entries[i] & PAGE_PRESENT) != 0 && (entries[i] & PAGE_OF_FILE) == 0;
    }
    return count;
}

static uintptr_t first_huge(const struct mapping *m)
{
    return (m->from + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
}

/* ---- anonymous memory --------------------------------------------------------------------------- */
static void collapse(const struct mapping *m, int pagemap, void *arg)
{
    size_t private;

    (void)arg;
    if (strcmp(m->permissions, "rw-p") != 0 || m->inode != 0 || m->stack || m->to - m->from > MAPPING_MAX)
        return;
    for (uintptr_t at = first_huge(m); at + HUGE_BYTES <= m->to; at += HUGE_BYTES) {
        if (present(pagemap, at, &private) >= FULL_ENOUGH)
            (void)madvise((void *)at, HUGE_BYTES, MADV_COLLAPSE);
    }
}

void code_pages_collapse(void)
{
    each_mapping(collapse, NULL);
}

/* ---- files -------------------------------------------------------------------------------------- */
struct text {
    int fd;       /* of memory */
    size_t bytes; /* of it that are used */
    bool full;    /* the kernel has no more, or CODE_TEXT_BYTES_MAX are used */
};

static int text_file(void)
{
    /* Kernels from 6.3 on want to be told that it will be executed; older ones do not know the word. */
    int fd = memfd_create("sk-text", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);

    return fd >= 0 || errno != EINVAL ? fd : memfd_create("sk-text", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

/* One more huge page of memory at the end, with this content; false when the kernel has none. */
static bool append(struct text *text, const void *content)
{
    void *copy;
    bool good;

    if (ftruncate(text->fd, (off_t)(text->bytes + HUGE_BYTES)) != 0)
        return false;
    copy = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, text->fd, (off_t)text->bytes);
    if (copy == MAP_FAILED)
        return false;
    memcpy(copy, content, HUGE_BYTES);
    good = madvise(copy, HUGE_BYTES, MADV_COLLAPSE) == 0;
    munmap(copy, HUGE_BYTES);
    return good;
}

static void replace(const struct mapping *m, int pagemap, void *arg)
{
    struct text *text = arg;
    bool executed = strcmp(m->permissions, "r-xp") == 0;
    int protection = PROT_READ | (executed ? PROT_EXEC : 0);
    size_t private;

    if ((!executed && strcmp(m->permissions, "r--p") != 0) || m->inode == 0 || m->memfd)
        return;
    for (uintptr_t at = first_huge(m); at + HUGE_BYTES <= m->to && !text->full; at += HUGE_BYTES) {
        if (present(pagemap, at, &private) < USED_ENOUGH || private > 0)
            continue;
        text->full = text->bytes + HUGE_BYTES > CODE_TEXT_BYTES_MAX || !append(text, (const void *)at) ||
                     mmap((void *)at, HUGE_BYTES, protection, MAP_PRIVATE | MAP_FIXED | MAP_POPULATE, text->fd,
                          (off_t)text->bytes) == MAP_FAILED;
        if (!text->full)
            text->bytes += HUGE_BYTES;
    }
}

size_t code_pages_text(void)
{
    struct text text = {.fd = text_file()};

    if (text.fd < 0)
        return 0;
    each_mapping(replace, &text);
    /* Whoever gets hold of it can change nothing: it is the code of every task. */
    (void)fcntl(text.fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    close(text.fd);
    return text.bytes;
}

/* ---- libraries that children go without ---------------------------------------------------------- */
struct left {
    const char *const *libraries;
    int count;
};

static void leave(const struct mapping *m, int pagemap, void *arg)
{
    struct left *left = arg;

    (void)pagemap;
    for (const char *const *name = left->libraries; *name != NULL; name++) {
        if (strncmp(m->file, *name, strlen(*name)) == 0 &&
            madvise((void *)m->from, m->to - m->from, MADV_DONTFORK) == 0)
            left->count++;
    }
}

int code_pages_leave(const char *const *libraries)
{
    struct left left = {.libraries = libraries};
    void *frame;

    if (libraries == NULL)
        return 0;
    (void)backtrace(&frame, 1); /* libc looks for its unwinder among all libraries, once */
    each_mapping(leave, &left);
    return left.count;
}
