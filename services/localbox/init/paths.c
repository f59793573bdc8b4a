/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths, names and trees inside the sandbox. Everything runs with the sandbox user's own rights, so that a symlink can
 * lead nowhere the user could not go anyway. Thread-safe. */
#include "services/localbox/init/init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void sk_init_hex_id(char out[33])
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        abort();
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* Length of a valid UTF-8 sequence at p, 0 when it is not one. */
static size_t sequence(const unsigned char *p, size_t left)
{
    if (p[0] < 0x80)
        return 1;
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

size_t sk_init_utf8_clean(const char *in, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t s = sequence((const unsigned char *)in + i, len - i);
        if (s == 0) {
            memcpy(out + n, "\xef\xbf\xbd", 3);
            n += 3;
            i++;
        } else {
            memcpy(out + n, in + i, s);
            n += s;
            i += s;
        }
    }
    return n;
}

json_t *sk_init_string(const char *text)
{
    json_t *plain = json_string(text);
    if (plain != NULL)
        return plain;
    size_t len = strlen(text);
    char *clean = malloc(len * 3 + 1);
    if (clean == NULL)
        return NULL;
    json_t *out = json_stringn(clean, sk_init_utf8_clean(text, len, clean));
    free(clean);
    return out;
}

static bool append(char **out, size_t *len, const char *text, size_t n)
{
    if (*len + n >= 16384)
        return false;
    char *grown = realloc(*out, *len + n + 1);
    if (grown == NULL)
        return false;
    memcpy(grown + *len, text, n);
    *len += n;
    grown[*len] = '\0';
    *out = grown;
    return true;
}

char *sk_init_path(const char *text, const char **why)
{
    char *out = NULL;
    size_t len = 0;
    bool fits = true;
    *why = "the path is too long";
    if (*text == '\0') {
        *why = "the path is empty";
        return NULL;
    }
    if (text[0] == '~' && (text[1] == '/' || text[1] == '\0')) {
        const char *home = sk_init_env_get(sk_init_state.env, "HOME");
        fits = append(&out, &len, home != NULL ? home : "/", strlen(home != NULL ? home : "/"));
        text++;
    } else if (text[0] != '/' && text[0] != '$') {
        fits = append(&out, &len, sk_init_state.cwd, strlen(sk_init_state.cwd)) && append(&out, &len, "/", 1);
    }
    while (fits && *text != '\0') {
        size_t plain = strcspn(text, "$");
        fits = append(&out, &len, text, plain);
        text += plain;
        if (*text != '$' || !fits)
            continue;
        bool braces = text[1] == '{';
        const char *name = text + 1 + braces;
        size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
        char key[128];
        if (n == 0 || n >= sizeof(key) || (braces && name[n] != '}')) { /* not a variable: a plain dollar sign */
            fits = append(&out, &len, "$", 1);
            text++;
            continue;
        }
        memcpy(key, name, n);
        key[n] = '\0';
        const char *value = sk_init_env_get(sk_init_state.env, key);
        if (value == NULL) {
            *why = "the path names an undefined variable";
            free(out);
            return NULL;
        }
        fits = append(&out, &len, value, strlen(value));
        text = name + n + braces;
    }
    if (!fits) {
        free(out);
        return NULL;
    }
    if (out == NULL || out[0] != '/') { /* a variable may hold a relative path */
        char *absolute = NULL;
        if (asprintf(&absolute, "%s/%s", sk_init_state.cwd, out != NULL ? out : "") < 0)
            absolute = NULL;
        free(out);
        return absolute;
    }
    return out;
}

void sk_init_time_text(const struct timespec *t, char *out, size_t size)
{
    struct tm tm;
    char text[32];
    gmtime_r(&t->tv_sec, &tm);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, size, "%s.%09ldZ", text, t->tv_nsec);
}

/* Looks up "name:x:id" lines. by_id: finds the name of *id (into name_out); else the id of `name`. */
static bool lookup(const char *file, const char *name, long *id, char *name_out, size_t size)
{
    FILE *f = fopen(file, "re");
    char line[1024];
    bool found = false;
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        char *save = NULL;
        char *n = strtok_r(line, ":", &save);
        char *x = strtok_r(NULL, ":", &save);
        char *i = strtok_r(NULL, ":\n", &save);
        if (n == NULL || x == NULL || i == NULL)
            continue;
        long value = strtol(i, NULL, 10);
        if (name != NULL ? strcmp(n, name) == 0 : value == *id) {
            found = true;
            *id = value;
            if (name_out != NULL)
                snprintf(name_out, size, "%s", n);
        }
    }
    if (f != NULL)
        fclose(f);
    return found;
}

int sk_init_user_id(const char *file, const char *name, long *id)
{
    char *end;
    *id = strtol(name, &end, 10);
    if (*name != '\0' && *end == '\0')
        return 0;
    return lookup(file, name, id, NULL, 0) ? 0 : -1;
}

static json_t *name_of(const char *file, long id)
{
    char name[128];
    if (!lookup(file, NULL, &id, name, sizeof(name)))
        snprintf(name, sizeof(name), "%ld", id);
    return sk_init_string(name);
}

json_t *sk_init_file_info(const char *path, const struct stat *st)
{
    const char *type = S_ISREG(st->st_mode)   ? "file"
                       : S_ISDIR(st->st_mode) ? "directory"
                       : S_ISLNK(st->st_mode) ? "symlink"
                                              : "other";
    char modified[64], created[64];
    struct timespec born = st->st_ctim;
    struct statx sx;
    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BTIME, &sx) == 0 && (sx.stx_mask & STATX_BTIME)) {
        born.tv_sec = sx.stx_btime.tv_sec;
        born.tv_nsec = sx.stx_btime.tv_nsec;
    }
    sk_init_time_text(&st->st_mtim, modified, sizeof(modified));
    sk_init_time_text(&born, created, sizeof(created));
    unsigned mode = st->st_mode & 0777;
    return json_pack("{s:o,s:s,s:I,s:s,s:s,s:o,s:o,s:i}", "path", sk_init_string(path), "type", type, "size",
                     (json_int_t)st->st_size, "modified_at", modified, "created_at", created, "owner",
                     name_of("/etc/passwd", st->st_uid), "group", name_of("/etc/group", st->st_gid), "mode",
                     (int)((mode >> 6) * 100 + ((mode >> 3) & 7) * 10 + (mode & 7)));
}

int sk_init_mkdirs(const char *path, mode_t mode)
{
    char *copy = strdup(path);
    if (copy == NULL)
        return ENOMEM;
    int error = 0;
    for (char *p = copy + 1; error == 0; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char keep = *p;
        *p = '\0';
        if (mkdir(copy, mode) != 0 && errno != EEXIST) {
            error = errno;
            struct stat st;
            if (error == EROFS && stat(copy, &st) == 0 && S_ISDIR(st.st_mode))
                error = 0; /* an existing folder on a read-only mount */
        }
        *p = keep;
        if (keep == '\0')
            break;
    }
    struct stat st;
    if (error == 0 && (stat(copy, &st) != 0 || !S_ISDIR(st.st_mode)))
        error = ENOTDIR;
    free(copy);
    return error;
}

int sk_init_set_mode(const char *path, json_t *spec, int *error)
{
    json_t *mode = json_object_get(spec, "mode");
    *error = 0;
    if (mode != NULL && !json_is_null(mode)) {
        if (!json_is_integer(mode))
            return 400;
        json_int_t digits = json_integer_value(mode);
        if (digits < 0 || digits > 7777)
            return 400;
        mode_t bits = 0;
        for (json_int_t d = digits, shift = 0; d > 0; d /= 10, shift += 3) {
            if (d % 10 > 7)
                return 400;
            bits |= (mode_t)((d % 10) << shift);
        }
        if (digits != 0 && chmod(path, bits) != 0) {
            *error = errno;
            return 500;
        }
    }
    const char *owner = json_string_value(json_object_get(spec, "owner"));
    const char *group = json_string_value(json_object_get(spec, "group"));
    long uid = -1, gid = -1;
    if ((owner != NULL && *owner != '\0' && sk_init_user_id("/etc/passwd", owner, &uid) != 0) ||
        (group != NULL && *group != '\0' && sk_init_user_id("/etc/group", group, &gid) != 0)) {
        *error = EINVAL;
        return 500;
    }
    if ((uid >= 0 || gid >= 0) && lchown(path, (uid_t)uid, (gid_t)gid) != 0) {
        *error = errno;
        return 500;
    }
    return 0;
}

static int remove_at(int dir, const char *name, int depth)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return errno;
    if (unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return errno;
    if (depth >= SK_INIT_DEPTH_MAX)
        return ELOOP;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    DIR *d = fdopendir(fd);
    if (d == NULL) {
        close(fd);
        return ENOMEM;
    }
    int error = 0;
    struct dirent *entry;
    while (error == 0 && (entry = readdir(d)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            error = remove_at(dirfd(d), entry->d_name, depth + 1);
    }
    closedir(d);
    if (error == 0 && unlinkat(dir, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        error = errno;
    return error;
}

int sk_init_remove_tree(const char *path)
{
    return remove_at(AT_FDCWD, path, 0);
}

/* ---- move ---- */

static int copy_file(int from_dir, const char *from, int to_dir, const char *to, const struct stat *st)
{
    int in = openat(from_dir, from, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (in < 0)
        return errno;
    int out = openat(to_dir, to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int error = out < 0 ? errno : 0;
    char *buffer = malloc(131072);
    if (buffer == NULL)
        error = ENOMEM;
    while (error == 0) {
        ssize_t n = read(in, buffer, 131072);
        if (n == 0)
            break;
        if (n < 0)
            error = errno;
        for (ssize_t done = 0; error == 0 && done < n;) {
            ssize_t w = write(out, buffer + done, (size_t)(n - done));
            if (w < 0)
                error = errno;
            else
                done += w;
        }
    }
    if (error == 0) {
        const struct timespec times[2] = {st->st_atim, st->st_mtim};
        if (fchmod(out, st->st_mode & 07777) != 0 || futimens(out, times) != 0)
            error = errno;
    }
    free(buffer);
    close(in);
    if (out >= 0 && close(out) != 0 && error == 0)
        error = errno;
    return error;
}

static int copy_at(int from_dir, const char *from, int to_dir, const char *to, int depth)
{
    struct stat st;
    if (fstatat(from_dir, from, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno;
    if (S_ISREG(st.st_mode))
        return copy_file(from_dir, from, to_dir, to, &st);
    if (S_ISLNK(st.st_mode)) {
        char target[4096];
        ssize_t n = readlinkat(from_dir, from, target, sizeof(target) - 1);
        if (n < 0)
            return errno;
        target[n] = '\0';
        return symlinkat(target, to_dir, to) != 0 ? errno : 0;
    }
    if (S_ISFIFO(st.st_mode))
        return mkfifoat(to_dir, to, st.st_mode & 0777) != 0 ? errno : 0;
    if (!S_ISDIR(st.st_mode))
        return S_ISSOCK(st.st_mode) ? 0 : ENOTSUP; /* a socket means nothing in another place */
    if (depth >= SK_INIT_DEPTH_MAX)
        return ELOOP;
    if (mkdirat(to_dir, to, 0700) != 0)
        return errno;
    int in = openat(from_dir, from, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int out = openat(to_dir, to, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = in >= 0 ? fdopendir(in) : NULL;
    int error = d == NULL || out < 0 ? errno : 0;
    struct dirent *entry;
    while (error == 0 && d != NULL && (entry = readdir(d)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            error = copy_at(dirfd(d), entry->d_name, out, entry->d_name, depth + 1);
    }
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    if (error == 0 && (fchmod(out, st.st_mode & 07777) != 0 || futimens(out, times) != 0))
        error = errno;
    if (d != NULL)
        closedir(d);
    else if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return error;
}

static int rename_new(const char *from, const char *to)
{
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 1 /* RENAME_NOREPLACE */) == 0 ? 0 : errno;
}

int sk_init_move(const char *from, const char *to)
{
    int error = rename_new(from, to);
    if (error != EXDEV)
        return error;
    /* Between two mounts: copy aside, put in place in one step, then remove the source. */
    char aside[4200], id[33];
    sk_init_hex_id(id);
    const char *slash = strrchr(to, '/');
    if (snprintf(aside, sizeof(aside), "%.*s/.sk-move-%s", (int)(slash - to), to, id) >= (int)sizeof(aside))
        return ENAMETOOLONG;
    error = copy_at(AT_FDCWD, from, AT_FDCWD, aside, 0);
    if (error == 0)
        error = rename_new(aside, to);
    if (error != 0) {
        int ignored = sk_init_remove_tree(aside);
        (void)ignored;
        return error;
    }
    return sk_init_remove_tree(from);
}
