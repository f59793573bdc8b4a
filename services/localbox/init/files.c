/* SPDX-License-Identifier: Apache-2.0
 *
 * execd's file and directory calls that work on names: info, delete, permissions, move, search, replace, folders. They
 * run on a pool thread (struct sk_init_job). Bytes are moved in transfer.c. */
#include "services/localbox/init/init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Calls `each` for every path= of the query; false when an answer was written. */
static bool for_paths(struct sk_init_job *job,
                      bool (*each)(struct sk_init_job *job, const char *given, const char *path, void *arg), void *arg)
{
    for (int i = 0;; i++) {
        bool undecodable = false;
        char *given = sk_stream_query_value(job->query, "path", i, &undecodable);
        if (undecodable) {
            sk_init_job_error(job, 400, "MISSING_QUERY", "path is not properly encoded");
            return false;
        }
        if (given == NULL)
            return true;
        const char *why = NULL;
        char *path = sk_init_path(given, &why);
        bool go_on = path != NULL && each(job, given, path, arg);
        if (path == NULL)
            sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s", why);
        free(path);
        free(given);
        if (!go_on)
            return false;
    }
}

static bool info_one(struct sk_init_job *job, const char *given, const char *path, void *arg)
{
    struct stat st;
    if (lstat(path, &st) != 0) {
        sk_init_job_errno(job, given, errno);
        return false;
    }
    if (json_object_set_new_nocheck(arg, given, sk_init_file_info(path, &st)) == 0)
        return true;
    sk_init_job_error(job, 500, "RUNTIME_ERROR", "out of memory");
    return false;
}

void sk_init_files_info(struct sk_init_job *job)
{
    json_t *out = json_object();
    if (for_paths(job, info_one, out))
        sk_init_job_json(job, out);
    else
        json_decref(out);
}

static bool delete_one(struct sk_init_job *job, const char *given, const char *path, void *arg)
{
    (void)arg;
    struct stat st;
    if (lstat(path, &st) != 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return true;
        sk_init_job_errno(job, given, errno);
        return false;
    }
    if (S_ISDIR(st.st_mode)) {
        sk_init_job_error(job, 500, "RUNTIME_ERROR", "%s: is a directory", given);
        return false;
    }
    if (unlink(path) != 0 && errno != ENOENT) {
        sk_init_job_errno(job, given, errno);
        return false;
    }
    return true;
}

void sk_init_files_delete(struct sk_init_job *job)
{
    if (for_paths(job, delete_one, NULL))
        job->status = 200;
}

/* Calls `each` for every member of the JSON object in the body; false when an answer was written. */
static bool for_members(struct sk_init_job *job,
                        bool (*each)(struct sk_init_job *job, const char *path, json_t *spec, void *arg), void *arg)
{
    if (!json_is_object(job->json)) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "the body must be an object of paths");
        return false;
    }
    const char *given;
    json_t *spec;
    json_object_foreach (job->json, given, spec) {
        const char *why = NULL;
        if (!json_is_object(spec) && !json_is_null(spec)) {
            sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s: must be an object", given);
            return false;
        }
        char *path = sk_init_path(given, &why);
        if (path == NULL) {
            sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s", why);
            return false;
        }
        bool go_on = each(job, path, spec, arg);
        free(path);
        if (!go_on)
            return false;
    }
    return true;
}

static bool apply_mode(struct sk_init_job *job, const char *path, json_t *spec)
{
    int error = 0;
    int status = sk_init_set_mode(path, spec, &error);
    if (status == 400)
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s: mode must be octal digits such as 644", path);
    else if (status != 0)
        sk_init_job_errno(job, path, error);
    return status == 0;
}

static bool permissions_one(struct sk_init_job *job, const char *path, json_t *spec, void *arg)
{
    struct stat st;
    (void)arg;
    if (lstat(path, &st) != 0) {
        sk_init_job_errno(job, path, errno);
        return false;
    }
    return apply_mode(job, path, spec);
}

void sk_init_files_permissions(struct sk_init_job *job)
{
    if (for_members(job, permissions_one, NULL))
        job->status = 200;
}

static bool move_one(struct sk_init_job *job, json_t *item)
{
    const char *src = json_string_value(json_object_get(item, "src"));
    const char *dest = json_string_value(json_object_get(item, "dest"));
    const char *why = "src and dest must be strings";
    char *from = src != NULL ? sk_init_path(src, &why) : NULL;
    char *to = from != NULL && dest != NULL ? sk_init_path(dest, &why) : NULL;
    bool fine = false;
    struct stat st;
    if (to == NULL) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s", why);
    } else if (lstat(from, &st) != 0) {
        sk_init_job_errno(job, src, errno);
    } else {
        char *slash = strrchr(to, '/');
        int error = 0;
        if (slash != to) {
            *slash = '\0';
            error = sk_init_mkdirs(to, 0755);
            *slash = '/';
        }
        if (error == 0)
            error = sk_init_move(from, to);
        if (error == EEXIST)
            sk_init_job_error(job, 500, "RUNTIME_ERROR", "%s: exists already", dest);
        else if (error != 0)
            sk_init_job_error(job, error == ENOSPC ? 507 : 500, "RUNTIME_ERROR", "%s: %s", dest, strerror(error));
        fine = error == 0;
    }
    free(from);
    free(to);
    return fine;
}

void sk_init_files_move(struct sk_init_job *job)
{
    if (!json_is_array(job->json)) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "the body must be a list of {src, dest}");
        return;
    }
    for (size_t i = 0; i < json_array_size(job->json); i++) {
        if (!move_one(job, json_array_get(job->json, i)))
            return;
    }
    job->status = 200;
}

/* ---- search ---- */

/* Shell patterns on a base name, with {a,b}; ** means *. Alternatives are bounded by `left`. */
static bool matches(const char *pattern, const char *name, int *left)
{
    const char *open = strchr(pattern, '{');
    const char *close = open != NULL ? strchr(open, '}') : NULL;
    if (close == NULL || --*left < 0)
        return fnmatch(pattern, name, 0) == 0;
    for (const char *p = open + 1; p <= close;) {
        size_t n = strcspn(p, ",}");
        char *one = NULL;
        if (asprintf(&one, "%.*s%.*s%s", (int)(open - pattern), pattern, (int)n, p, close + 1) < 0)
            return false;
        bool hit = matches(one, name, left);
        free(one);
        if (hit)
            return true;
        p += n + 1;
    }
    return false;
}

struct search {
    const char *pattern;
    json_t *out;
    bool too_many, out_of_memory; /* either ends the search: a list with holes says that files are not there */
};

static void search_dir(struct search *s, const char *path, int depth)
{
    DIR *d = opendir(path);
    if (d == NULL)
        return; /* an unreadable corner does not hide the rest */
    struct dirent *entry;
    while (!s->too_many && !s->out_of_memory && (entry = readdir(d)) != NULL) {
        struct stat st;
        char *full = NULL;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (asprintf(&full, "%s%s%s", path, strcmp(path, "/") == 0 ? "" : "/", entry->d_name) < 0) {
            s->out_of_memory = true;
            break;
        }
        if (S_ISDIR(st.st_mode)) {
            if (depth < SK_INIT_DEPTH_MAX && strcmp(full, "/proc") != 0)
                search_dir(s, full, depth + 1);
        } else {
            int left = 64;
            if (matches(s->pattern, entry->d_name, &left)) {
                s->out_of_memory = json_array_append_new(s->out, sk_init_file_info(full, &st)) != 0;
                s->too_many = json_array_size(s->out) >= SK_INIT_LIST_MAX;
            }
        }
        free(full);
    }
    closedir(d);
}

void sk_init_files_search(struct sk_init_job *job)
{
    char *given = sk_stream_query_value(job->query, "path", 0, NULL);
    char *pattern = sk_stream_query_value(job->query, "pattern", 0, NULL);
    const char *why = NULL;
    char *path = given != NULL ? sk_init_path(given, &why) : NULL;
    struct stat st;
    if (given == NULL) {
        sk_init_job_error(job, 400, "MISSING_QUERY", "path is missing");
    } else if (path == NULL) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s", why);
    } else if (stat(path, &st) != 0) {
        sk_init_job_errno(job, given, errno);
    } else if (!S_ISDIR(st.st_mode)) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s: not a directory", given);
    } else {
        size_t len = strlen(path);
        while (len > 1 && path[len - 1] == '/')
            path[--len] = '\0';
        struct search s = {.pattern = pattern != NULL && *pattern != '\0' ? pattern : "*", .out = json_array()};
        search_dir(&s, path, 0);
        if (s.too_many || s.out_of_memory) {
            json_decref(s.out);
            if (s.too_many)
                sk_init_job_error(job, 413, "TOO_MANY_RESULTS", "more than %d files match", SK_INIT_LIST_MAX);
            else
                sk_init_job_error(job, 500, "RUNTIME_ERROR", "out of memory");
        } else {
            sk_init_job_json(job, s.out);
        }
    }
    free(given);
    free(pattern);
    free(path);
}

/* ---- replace ---- */

static char *read_whole(const char *path, size_t *len, struct stat *st, int *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    *error = 0;
    *len = 0;
    if (fd < 0 || fstat(fd, st) != 0)
        *error = errno;
    else if (!S_ISREG(st->st_mode))
        *error = EISDIR;
    else if (st->st_size > SK_INIT_REPLACE_MAX)
        *error = EFBIG;
    else if ((text = malloc((size_t)st->st_size + 1)) == NULL)
        *error = ENOMEM;
    while (text != NULL && *len < (size_t)st->st_size) {
        ssize_t n = read(fd, text + *len, (size_t)st->st_size - *len);
        if (n < 0)
            *error = errno;
        if (n <= 0)
            break;
        *len += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    return text;
}

static int write_whole(const char *path, const char *text, size_t len, const struct stat *st)
{
    char *real = realpath(path, NULL), *aside = NULL;
    char id[33];
    sk_init_hex_id(id);
    int error = real != NULL ? 0 : errno != 0 ? errno : EIO;
    if (real != NULL && asprintf(&aside, "%.*s/.sk-replace-%s", (int)(strrchr(real, '/') - real), real, id) < 0)
        error = ENOMEM;
    int fd = error == 0 && aside != NULL ? open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (error == 0 && fd < 0)
        error = errno;
    for (size_t done = 0; error == 0 && done < len;) {
        ssize_t n = write(fd, text + done, len - done);
        if (n < 0)
            error = errno;
        else
            done += (size_t)n;
    }
    if (error == 0 && fchmod(fd, st->st_mode & 07777) != 0)
        error = errno;
    if (fd >= 0 && close(fd) != 0 && error == 0)
        error = errno;
    if (error == 0 && rename(aside, real) != 0)
        error = errno;
    if (error != 0 && fd >= 0)
        unlink(aside);
    free(real);
    free(aside);
    return error;
}

static bool replace_one(struct sk_init_job *job, const char *path, json_t *spec, void *arg)
{
    json_t *old_json = json_object_get(spec, "old"), *new_json = json_object_get(spec, "new");
    if (!json_is_string(old_json) || json_string_length(old_json) == 0 || !json_is_string(new_json)) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s: old must be a non-empty string and new a string",
                          path);
        return false;
    }
    const char *old = json_string_value(old_json), *fresh = json_string_value(new_json);
    size_t old_len = json_string_length(old_json), fresh_len = json_string_length(new_json), len = 0;
    struct stat st;
    int error = 0;
    json_int_t count = 0;
    char *text = read_whole(path, &len, &st, &error), *out = NULL;
    if (error == 0 && text != NULL) {
        for (char *p = text; (p = memmem(p, len - (size_t)(p - text), old, old_len)) != NULL; p += old_len)
            count++;
        size_t size = len + (size_t)count * fresh_len - (size_t)count * old_len;
        if (size > 2u * SK_INIT_REPLACE_MAX)
            error = EFBIG;
        else if ((out = malloc(size + 1)) == NULL)
            error = ENOMEM;
        char *to = out;
        const char *from = text, *hit;
        while (error == 0 && (hit = memmem(from, len - (size_t)(from - text), old, old_len)) != NULL) {
            memcpy(to, from, (size_t)(hit - from));
            to += hit - from;
            memcpy(to, fresh, fresh_len);
            to += fresh_len;
            from = hit + old_len;
        }
        if (error == 0) {
            memcpy(to, from, len - (size_t)(from - text));
            if (count > 0)
                error = write_whole(path, out, size, &st);
        }
    }
    free(text);
    free(out);
    if (error != 0) {
        sk_init_job_errno(job, path, error);
        return false;
    }
    json_object_set_new_nocheck(arg, path, json_pack("{s:I}", "replacedCount", count));
    return true;
}

void sk_init_files_replace(struct sk_init_job *job)
{
    json_t *counts = json_object();
    char *verbose = sk_stream_query_value(job->query, "verbose", 0, NULL);
    if (for_members(job, replace_one, counts)) {
        if (verbose != NULL && (strcmp(verbose, "true") == 0 || strcmp(verbose, "1") == 0)) {
            sk_init_job_json(job, counts);
            counts = NULL;
        } else {
            job->status = 200;
        }
    }
    json_decref(counts);
    free(verbose);
}

/* ---- directories ---- */

static bool make_one(struct sk_init_job *job, const char *path, json_t *spec, void *arg)
{
    (void)arg;
    struct stat st;
    bool existed = stat(path, &st) == 0;
    int error = sk_init_mkdirs(path, 0755);
    if (error != 0) {
        if (error == ENOTDIR)
            sk_init_job_error(job, 500, "RUNTIME_ERROR", "%s: a file is in the way", path);
        else
            sk_init_job_errno(job, path, error);
        return false;
    }
    return existed || apply_mode(job, path, spec);
}

void sk_init_directories_make(struct sk_init_job *job)
{
    if (for_members(job, make_one, NULL))
        job->status = 200;
}

static bool remove_one(struct sk_init_job *job, const char *given, const char *path, void *arg)
{
    (void)arg;
    int error = sk_init_remove_tree(path);
    if (error != 0 && error != ENOTDIR)
        sk_init_job_error(job, 500, "RUNTIME_ERROR", "%s: %s", given, strerror(error));
    return error == 0 || error == ENOTDIR;
}

void sk_init_directories_delete(struct sk_init_job *job)
{
    if (for_paths(job, remove_one, NULL))
        job->status = 200;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* 0, or why the list is not whole: E2BIG (too many entries), ENOMEM. */
static int list_dir(json_t *out, const char *path, long depth)
{
    DIR *d = opendir(path);
    if (d == NULL)
        return 0;
    int error = 0;
    char **names = NULL;
    size_t count = 0, room = 0;
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL && count < SK_INIT_LIST_MAX) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (count == room) {
            room = room == 0 ? 64 : room * 2;
            char **grown = realloc(names, room * sizeof(*names));
            if (grown == NULL) {
                error = ENOMEM;
                break;
            }
            names = grown;
        }
        if ((names[count] = strdup(entry->d_name)) == NULL) {
            error = ENOMEM;
            break;
        }
        count++;
    }
    closedir(d);
    if (count > 0)
        qsort(names, count, sizeof(*names), by_name);
    for (size_t i = 0; i < count; i++) {
        char *full = NULL;
        struct stat st;
        if (error == 0 && asprintf(&full, "%s%s%s", path, strcmp(path, "/") == 0 ? "" : "/", names[i]) < 0) {
            full = NULL;
            error = ENOMEM;
        }
        if (error == 0 && lstat(full, &st) == 0) {
            if (json_array_append_new(out, sk_init_file_info(full, &st)) != 0)
                error = ENOMEM;
            else if (json_array_size(out) >= SK_INIT_LIST_MAX)
                error = E2BIG;
            else if (S_ISDIR(st.st_mode) && depth > 1)
                error = list_dir(out, full, depth - 1);
        }
        free(full);
        free(names[i]);
    }
    free(names);
    return error;
}

void sk_init_directories_list(struct sk_init_job *job)
{
    char *given = sk_stream_query_value(job->query, "path", 0, NULL);
    char *depth_text = sk_stream_query_value(job->query, "depth", 0, NULL);
    char *end = NULL;
    const char *why = NULL;
    long depth = depth_text != NULL && *depth_text != '\0' ? strtol(depth_text, &end, 10) : 1;
    char *path = given != NULL ? sk_init_path(given, &why) : NULL;
    struct stat st;
    if (given == NULL) {
        sk_init_job_error(job, 400, "MISSING_QUERY", "path is missing");
    } else if (path == NULL) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s", why);
    } else if (depth < 0 || (end != NULL && *end != '\0')) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "depth must be a number of 0 or more");
    } else if (lstat(path, &st) != 0) {
        sk_init_job_errno(job, given, errno);
    } else if (!S_ISDIR(st.st_mode)) {
        sk_init_job_error(job, 400, "INVALID_REQUEST_BODY", "%s: not a directory", given);
    } else {
        json_t *out = json_array();
        int error = depth > 0 ? list_dir(out, path, depth < SK_INIT_DEPTH_MAX ? depth : SK_INIT_DEPTH_MAX) : 0;
        if (error != 0) {
            json_decref(out);
            if (error == E2BIG)
                sk_init_job_error(job, 413, "TOO_MANY_RESULTS", "more than %d entries", SK_INIT_LIST_MAX);
            else
                sk_init_job_error(job, 500, "RUNTIME_ERROR", "%s", strerror(error));
        } else {
            sk_init_job_json(job, out);
        }
    }
    free(given);
    free(depth_text);
    free(path);
}
