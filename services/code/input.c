/* SPDX-License-Identifier: Apache-2.0
 *
 * The input of a task. */
#include "services/code/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_MAGIC 0x31544e4945444f43ull /* "CODEINT1" */
#define INPUT_SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
#define INPUT_MAX   (1ull << 30)

struct input_header {
    uint64_t magic, code_length, variables_length, strict;
    struct code_limits limits;
};

static bool put(int fd, const void *bytes, size_t length)
{
    size_t done = 0;

    while (done < length) {
        ssize_t n = write(fd, (const char *)bytes + done, length - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

int code_input_create(const struct code_task *task)
{
    struct input_header header;
    int fd, error;

    memset(&header, 0, sizeof(header));
    header.magic = INPUT_MAGIC;
    header.code_length = task->code_length;
    header.variables_length = task->variables_length;
    header.strict = task->strict ? 1 : 0;
    header.limits = task->limits;
    fd = memfd_create("task", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (put(fd, &header, sizeof(header)) && put(fd, task->code, task->code_length) && put(fd, "", 1) &&
        put(fd, task->variables, task->variables_length) && put(fd, "", 1) && fcntl(fd, F_ADD_SEALS, INPUT_SEALS) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

bool code_input_map(int fd, struct code_task *task)
{
    struct input_header header;
    struct stat info;
    const char *map;

    /* Without the seals the host could take pages away below a running task: a crash, but one that looks like the
     * task's. */
    if ((fcntl(fd, F_GET_SEALS) & INPUT_SEALS) != INPUT_SEALS || fstat(fd, &info) != 0 ||
        (uint64_t)info.st_size < sizeof(header) + 2)
        return false;
    map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return false;
    memcpy(&header, map, sizeof(header));
    if (header.magic != INPUT_MAGIC || header.code_length > INPUT_MAX || header.variables_length > INPUT_MAX ||
        (uint64_t)info.st_size != sizeof(header) + header.code_length + header.variables_length + 2)
        return false;
    task->code = map + sizeof(header);
    task->code_length = header.code_length;
    task->variables = task->code + header.code_length + 1;
    task->variables_length = header.variables_length;
    task->strict = header.strict != 0;
    task->limits = header.limits;
    return task->code[task->code_length] == '\0' && task->variables[task->variables_length] == '\0';
}
