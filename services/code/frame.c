/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames over blocking descriptors: the task's side. */
#include "services/code/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

bool code_frame_write(int fd, const char *json, size_t length)
{
    unsigned char header[CODE_FRAME_HEADER] = {(unsigned char)length, (unsigned char)(length >> 8),
                                               (unsigned char)(length >> 16), (unsigned char)(length >> 24)};
    size_t done = 0, total = sizeof(header) + length;

    if (length > UINT32_MAX) {
        errno = EMSGSIZE;
        return false;
    }
    while (done < total) {
        struct iovec parts[2];
        int count = 0;
        ssize_t n;

        if (done < sizeof(header))
            parts[count++] = (struct iovec){header + done, sizeof(header) - done};
        if (length > 0) {
            size_t at = done > sizeof(header) ? done - sizeof(header) : 0;

            parts[count++] = (struct iovec){(char *)(uintptr_t)json + at, length - at};
        }
        n = writev(fd, parts, count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static bool read_whole(int fd, void *bytes, size_t length)
{
    size_t done = 0;

    while (done < length) {
        ssize_t n = read(fd, (char *)bytes + done, length - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = 0;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

bool code_frame_read(int fd, size_t limit, char **json, size_t *length)
{
    unsigned char header[CODE_FRAME_HEADER];
    size_t size;
    char *text;

    *json = NULL;
    if (!read_whole(fd, header, sizeof(header)))
        return false;
    size = (size_t)header[0] | (size_t)header[1] << 8 | (size_t)header[2] << 16 | (size_t)header[3] << 24;
    if (size > limit) {
        errno = EMSGSIZE;
        return false;
    }
    text = malloc(size + 1);
    if (text == NULL || !read_whole(fd, text, size)) {
        free(text);
        return false;
    }
    text[size] = '\0';
    *json = text;
    *length = size;
    return true;
}
