/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sandbox sees as its system: the machine's /usr (or a configured root for its image), read-only, and an /etc
 * made here. Nothing else of the host is there: no /root, /home, /opt, /var, /run, /srv, /mnt. */
#include "services/localbox/localbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void lb_arg(struct lb_args *args, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    char *text = NULL;
    if (args->count >= 510 || vasprintf(&text, fmt, list) < 0)
        args->failed = true;
    else
        args->items[args->count++] = text;
    va_end(list);
}

void lb_args_free(struct lb_args *args)
{
    for (int i = 0; i < args->count; i++)
        free(args->items[i]);
    args->count = 0;
}

static int write_etc(const char *name, const char *text)
{
    return lb_write_atomic(lb.data_fd, "etc", name, text, strlen(text), 0644);
}

static int copy_etc(const char *from, const char *name)
{
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    int error = 0;
    char *text = malloc(4u << 20);
    size_t len = 0;
    for (;;) {
        ssize_t n = text != NULL && len < (4u << 20) ? read(fd, text + len, (4u << 20) - len) : -1;
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    if (text != NULL)
        error = lb_write_atomic(lb.data_fd, "etc", name, text, len, 0644);
    free(text);
    close(fd);
    return error;
}

/* The links below /etc/alternatives choose implementations (awk, editor, java …): made again, they tell nothing. */
static void copy_alternatives(void)
{
    int to = lb_open_beneath(lb.data_fd, "etc/alternatives", O_RDONLY | O_DIRECTORY, 0);
    DIR *d = opendir("/etc/alternatives");
    struct dirent *entry;
    while (to >= 0 && d != NULL && (entry = readdir(d)) != NULL) {
        char target[1024];
        ssize_t n = readlinkat(dirfd(d), entry->d_name, target, sizeof(target) - 1);
        if (n <= 0)
            continue;
        target[n] = '\0';
        if (strncmp(target, "/usr/", 5) == 0 || strncmp(target, "/bin/", 5) == 0) {
            int ignored = symlinkat(target, to, entry->d_name);
            (void)ignored; /* exists from an earlier start */
        }
    }
    if (d != NULL)
        closedir(d);
    if (to >= 0)
        close(to);
}

int lb_rootfs_prepare(struct sk_error *err)
{
    static const char *const folders[] = {"etc",           "etc/alternatives", "etc/ssl",
                                          "etc/ssl/certs", "etc/profile.d",    "masks"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        int error = lb_mkdir_beneath(lb.data_fd, folders[i], 0755);
        if (error != 0 && error != EEXIST)
            return sk_fail(err, SK_ERR_INTERNAL, "cannot make %s: %s", folders[i], strerror(error));
    }
    int error = 0;
    error |=
        write_etc("passwd", "root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:" LB_HOME ":/bin/bash\n"
                            "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n");
    error |= write_etc("group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n");
    error |= write_etc("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n");
    error |= write_etc("hostname", "sandbox\n");
    error |= write_etc("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
    error |= write_etc("profile", "export PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}\n");
    error |= write_etc("shells", "/bin/sh\n/bin/bash\n");
    error |= write_etc("localtime.txt", "UTC\n");
    error |= lb.net_host ? copy_etc("/etc/resolv.conf", "resolv.conf") : write_etc("resolv.conf", "");
    error |= copy_etc("/etc/ld.so.cache", "ld.so.cache");
    error |= copy_etc("/etc/os-release", "os-release");
    error |= copy_etc("/etc/ssl/certs/ca-certificates.crt", "ca-certificates.crt");
    error |= lb_write_atomic(lb.data_fd, "masks", "empty", "", 0, 0444);
    if (error != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot write the sandboxes' /etc below %s", lb.data_path);
    int certs = lb_open_beneath(lb.data_fd, "etc/ssl/certs", O_RDONLY | O_DIRECTORY, 0);
    if (certs >= 0) {
        int ignored = symlinkat("../../ca-certificates.crt", certs, "ca-certificates.crt");
        (void)ignored;
        close(certs);
    }
    copy_alternatives();
    return 0;
}

bool lb_rootfs_image(const char *uri, char *out, size_t size)
{
    if (lb.config.images_dir == NULL || lb.config.images_dir[0] == '\0' || uri == NULL || *uri == '\0')
        return false;
    char name[512];
    size_t n = 0;
    for (; uri[n] != '\0' && n < sizeof(name) - 1; n++)
        name[n] = strchr("/:@", uri[n]) != NULL ? '_' : uri[n];
    name[n] = '\0';
    struct stat st;
    if (name[0] == '.' || snprintf(out, size, "%s/%s", lb.config.images_dir, name) >= (int)size)
        return false;
    return stat(out, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool own_mount(const char *name)
{
    static const char *const names[] = {"proc", "dev",   "sys",        "tmp",  "run",       "home", "root",
                                        "mnt",  "media", "lost+found", "boot", "workspace", NULL};
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

static void one_entry(struct lb_args *args, const char *root, const char *shown_root, const char *name)
{
    char path[LB_PATH_SIZE + 300], target[1024];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", root, name);
    if (lstat(path, &st) != 0)
        return;
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        if (n <= 0)
            return;
        target[n] = '\0';
        lb_arg(args, "--symlink");
        lb_arg(args, "%s", target);
        lb_arg(args, "/%s", name);
    } else if (S_ISDIR(st.st_mode)) {
        lb_arg(args, "--ro-bind");
        lb_arg(args, "%s/%s", shown_root, name);
        lb_arg(args, "/%s", name);
    }
}

void lb_rootfs_args(struct lb_args *args, const char *image_root, const char *shown_root, const char *etc)
{
    if (image_root == NULL) {
        static const char *const system[] = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"};
        for (size_t i = 0; i < sizeof(system) / sizeof(system[0]); i++)
            one_entry(args, "", "", system[i]);
        lb_arg(args, "--ro-bind");
        lb_arg(args, "%s", etc);
        lb_arg(args, "/etc");
        return;
    }
    DIR *d = opendir(image_root);
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        if (entry->d_name[0] != '.' && !own_mount(entry->d_name))
            one_entry(args, image_root, shown_root, entry->d_name);
    }
    if (d != NULL)
        closedir(d);
}
