/* SPDX-License-Identifier: Apache-2.0
 *
 * Landlock. The structures are written out here: Debian 12's headers know the first ABI only. */
#include "services/code/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ruleset_attr {
    uint64_t handled_fs, handled_net, scoped;
};

struct path_beneath_attr {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

enum {
    RULE_PATH_BENEATH = 1,
    CREATE_VERSION = 1,
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_REMOVE_DIR = 1 << 4,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_ABI_1 = (1 << 13) - 1,
    FS_REFER = 1 << 13,    /* ABI 2 */
    FS_TRUNCATE = 1 << 14, /* ABI 3 */
    FS_IOCTL_DEV = 1 << 15 /* ABI 5 */
};

int code_landlock_abi(void)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, CREATE_VERSION);

    return abi > 0 ? (int)abi : 0;
}

static bool allow(int ruleset, const char *path, uint64_t folder_rights, uint64_t file_rights)
{
    struct path_beneath_attr rule = {0, open(path, O_PATH | O_CLOEXEC)};
    struct stat info;
    bool done;

    if (rule.parent_fd < 0)
        return errno == ENOENT || errno == ENOTDIR;
    done = fstat(rule.parent_fd, &info) == 0;
    rule.allowed = done && S_ISDIR(info.st_mode) ? folder_rights : file_rights;
    done = done && syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &rule, 0) == 0;
    close(rule.parent_fd);
    return done;
}

bool code_landlock_enter(int abi, const char *const *readable, const char *writable)
{
    struct ruleset_attr attr = {FS_ABI_1 | (abi >= 2 ? FS_REFER : 0) | (abi >= 3 ? FS_TRUNCATE : 0) |
                                    (abi >= 5 ? FS_IOCTL_DEV : 0),
                                abi >= 4 ? 3 : 0, abi >= CODE_LANDLOCK_SCOPES ? 3 : 0};
    uint64_t read_file = FS_READ_FILE, read_folder = FS_READ_FILE | FS_READ_DIR;
    uint64_t write_file = FS_READ_FILE | FS_WRITE_FILE | (abi >= 3 ? FS_TRUNCATE : 0);
    uint64_t write_folder = write_file | FS_READ_DIR | FS_REMOVE_DIR | FS_REMOVE_FILE | FS_MAKE_DIR | FS_MAKE_REG;
    int fd = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
    bool done = fd >= 0;

    for (int i = 0; done && readable != NULL && readable[i] != NULL; i++)
        done = allow(fd, readable[i], read_folder, read_file);
    if (done && writable[0] != '\0')
        done = allow(fd, writable, write_folder, write_file);
    done = done && syscall(SYS_landlock_restrict_self, fd, 0) == 0;
    if (fd >= 0)
        close(fd);
    return done;
}
