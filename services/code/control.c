/* SPDX-License-Identifier: Apache-2.0
 *
 * Control messages: sending and receiving them with their descriptors. */
#include "services/code/control.h"

#include "common/base/version.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static uint64_t mix(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u; /* FNV-1a */
    return hash;
}

/* Of version and revision, and of sizes: outside a clone the revision is not known. */
static uint64_t build(void)
{
    static const uint32_t sizes[] = {sizeof(struct code_message), CODE_MSG_LAST, CODE_END_COUNT, CODE_SLOTS_MAX};
    static uint64_t known;

    if (known == 0) {
        known = mix(0xcbf29ce484222325u, sk_version(), strlen(sk_version()) + 1);
        known = mix(known, sk_revision(), strlen(sk_revision()));
        known = mix(known, sizes, sizeof(sizes));
    }
    return known;
}

int code_control_pair(int fds[2])
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds);
}

bool code_send(int fd, const struct code_message *message, const int *fds, size_t count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * CODE_FDS_MAX)];
        struct cmsghdr align;
    } control;
    uint64_t ours = build();
    struct iovec parts[] = {{&ours, sizeof(ours)}, {(void *)(uintptr_t)message, sizeof(*message)}};
    struct msghdr head = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t n;

    if (count > CODE_FDS_MAX) {
        errno = EINVAL;
        return false;
    }
    if (count > 0) {
        struct cmsghdr *item;

        memset(&control, 0, sizeof(control));
        head.msg_control = control.bytes;
        head.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        item = CMSG_FIRSTHDR(&head);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(item), fds, sizeof(int) * count);
    }
    do
        n = sendmsg(fd, &head, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)(sizeof(ours) + sizeof(*message));
}

void code_fds_close(int fds[CODE_FDS_MAX])
{
    for (int i = 0; i < CODE_FDS_MAX; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

/* Takes the descriptors out of the ancillary data; false when there are more than a message may carry. */
static bool take_fds(struct msghdr *head, int fds[CODE_FDS_MAX], size_t *count)
{
    bool fits = true;

    for (struct cmsghdr *item = CMSG_FIRSTHDR(head); item != NULL; item = CMSG_NXTHDR(head, item)) {
        size_t got;

        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS)
            continue;
        got = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < got; i++) {
            int one;

            memcpy(&one, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
            if (*count < CODE_FDS_MAX) {
                fds[(*count)++] = one;
            } else {
                close(one);
                fits = false;
            }
        }
    }
    return fits;
}

enum code_receive code_receive(int fd, struct code_message *message, int fds[CODE_FDS_MAX], size_t *count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * CODE_FDS_MAX)];
        struct cmsghdr align;
    } control;
    uint64_t theirs = 0;
    struct iovec parts[] = {{&theirs, sizeof(theirs)}, {message, sizeof(*message)}};
    struct msghdr head = {
        .msg_iov = parts, .msg_iovlen = 2, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t n;
    bool fits;

    *count = 0;
    for (int i = 0; i < CODE_FDS_MAX; i++)
        fds[i] = -1;
    do
        n = recvmsg(fd, &head, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? CODE_NOTHING : CODE_CLOSED;
    fits = take_fds(&head, fds, count);
    if (n == 0) {
        code_fds_close(fds);
        return CODE_CLOSED;
    }
    if (n == (ssize_t)(sizeof(theirs) + sizeof(*message)) && theirs == build() && fits &&
        (head.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && message->kind >= CODE_MSG_SETUP &&
        message->kind < CODE_MSG_LAST)
        return CODE_RECEIVED;
    code_fds_close(fds);
    *count = 0;
    return theirs == build() ? CODE_GARBLED : CODE_FOREIGN;
}

const char *code_end_name(enum code_end end)
{
    static const char *const names[CODE_END_COUNT] = {"done",   "timeout", "memory",    "output", "processes",
                                                      "killed", "crashed", "cancelled", "walls"};

    return (unsigned)end < CODE_END_COUNT ? names[end] : "crashed";
}

const char *code_level_name(enum code_level level)
{
    static const char *const names[] = {"none", "shared-uid", "container", "full"};

    return (unsigned)level < sizeof(names) / sizeof(names[0]) ? names[level] : "none";
}
