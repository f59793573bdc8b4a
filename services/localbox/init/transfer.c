/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes in and out: multipart upload as a stream into a file beside the target that takes its place when the part is
 * complete, and download with ranges or by lines. Neither ever holds a file in memory. */
#include "services/localbox/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define DELIMITER_MAX    256
#define PART_HEADERS_MAX 8192
#define PAIRS_MAX        1024
#define CHUNK            65536

/* ------------------------------------------------------------------------------------------------ upload */

enum upload_state { UP_BODY, UP_AFTER, UP_HEADERS, UP_END };
enum part_kind { PART_NONE, PART_METADATA, PART_FILE, PART_OTHER };

struct pair { /* in the order of arrival; metadata and file of the same index belong together */
    json_t *metadata;
    char *spool; /* a file that came before its metadata */
};

struct upload {
    struct sk_stream *x;
    char delimiter[DELIMITER_MAX];
    size_t delimiter_len;
    enum upload_state state;
    enum part_kind part;
    char *buffer;
    size_t len;
    char *metadata;
    size_t metadata_len;
    struct pair *pairs;
    size_t metadata_count, file_count;
    int fd;      /* of the part that is arriving */
    char *aside; /* its temporary name */
    bool failed;
};

static void fail(struct upload *u, int status, const char *code, const char *what, int error)
{
    if (u->failed)
        return;
    u->failed = true;
    if (error != 0)
        sk_init_reply_error(u->x, status, code, "%s: %s", what, strerror(error));
    else
        sk_init_reply_error(u->x, status, code, "%s", what);
}

static void fail_errno(struct upload *u, const char *what, int error)
{
    fail(u, error == ENOSPC || error == EDQUOT ? 507 : 500, "RUNTIME_ERROR", what, error);
}

/* Where a target really lies: a link to an existing file is followed, as writing through it would. */
static char *real_target(const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        char *real = realpath(path, NULL);
        if (real != NULL)
            return real;
    }
    return strdup(path);
}

static char *metadata_path(struct upload *u, json_t *metadata)
{
    const char *given = json_string_value(json_object_get(metadata, "path")), *why = "path is missing";
    char *path = given != NULL ? sk_init_path(given, &why) : NULL;
    if (path == NULL) {
        fail(u, 400, "INVALID_FILE_METADATA", why, 0);
        return NULL;
    }
    char *target = real_target(path);
    free(path);
    return target;
}

static int open_aside(struct upload *u, const char *target)
{
    char id[33];
    sk_init_hex_id(id);
    const char *slash = strrchr(target, '/');
    if (asprintf(&u->aside, "%.*s/.sk-upload-%s", (int)(slash - target), target, id) < 0)
        u->aside = NULL;
    u->fd = u->aside != NULL ? open(u->aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    return u->fd < 0 ? errno : 0;
}

static int make_parents(const char *target)
{
    char *copy = strdup(target);
    if (copy == NULL)
        return ENOMEM;
    char *slash = strrchr(copy, '/');
    int error = 0;
    if (slash != copy) {
        *slash = '\0';
        error = sk_init_mkdirs(copy, 0755);
    }
    free(copy);
    return error;
}

static void begin_file(struct upload *u)
{
    if (u->file_count >= PAIRS_MAX) {
        fail(u, 400, "INVALID_FILE", "too many files in one request", 0);
        return;
    }
    if (sk_init_state.storage_full) {
        fail(u, 507, "STORAGE_FULL", "the storage limit of this sandbox is reached", 0);
        return;
    }
    json_t *metadata = u->pairs[u->file_count].metadata;
    if (metadata == NULL) { /* its metadata follows */
        int error = open_aside(u, "/tmp/x");
        if (error != 0)
            fail_errno(u, "cannot keep the file", error);
        return;
    }
    char *target = metadata_path(u, metadata);
    if (target == NULL)
        return;
    struct stat st;
    int error = make_parents(target);
    if (error == 0 && stat(target, &st) == 0 && S_ISDIR(st.st_mode))
        error = EISDIR;
    if (error == 0)
        error = open_aside(u, target);
    if (error != 0)
        fail_errno(u, target, error);
    free(target);
}

/* The file is complete at `aside` on the target's file system or elsewhere: put it in place with its mode. */
static void commit(struct upload *u, json_t *metadata, const char *aside)
{
    char *target = metadata_path(u, metadata);
    if (target == NULL) {
        unlink(aside);
        return;
    }
    struct stat st;
    int error = make_parents(target);
    mode_t mode = 0755;
    if (error == 0 && lstat(target, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            error = EISDIR;
        mode = st.st_mode & 0777;
    }
    if (error == 0 && chmod(aside, mode) != 0)
        error = errno;
    int spec_error = 0, status = error == 0 ? sk_init_set_mode(aside, metadata, &spec_error) : 0;
    if (status == 400) {
        fail(u, 400, "INVALID_FILE_METADATA", "mode must be octal digits such as 644", 0);
    } else if (status != 0) {
        fail_errno(u, target, spec_error);
    } else if (error == 0 && rename(aside, target) != 0) {
        error = errno;
        if (error == EXDEV) {
            unlink(target);
            error = sk_init_move(aside, target);
        }
    }
    if (error != 0)
        fail_errno(u, target, error);
    if (u->failed)
        unlink(aside);
    free(target);
}

static void end_file(struct upload *u)
{
    int error = u->fd >= 0 && close(u->fd) != 0 ? errno : 0;
    u->fd = -1;
    struct pair *pair = &u->pairs[u->file_count++];
    char *aside = u->aside;
    u->aside = NULL;
    if (error != 0) {
        fail_errno(u, "write", error);
        unlink(aside);
        free(aside);
    } else if (pair->metadata != NULL) {
        commit(u, pair->metadata, aside);
        free(aside);
    } else {
        pair->spool = aside;
    }
}

static void end_metadata(struct upload *u)
{
    json_t *metadata =
        json_loadb(u->metadata != NULL ? u->metadata : "", u->metadata_len, JSON_REJECT_DUPLICATES, NULL);
    free(u->metadata);
    u->metadata = NULL;
    u->metadata_len = 0;
    if (!json_is_object(metadata)) {
        json_decref(metadata);
        fail(u, 400, "INVALID_FILE_METADATA", "metadata must be a JSON object", 0);
        return;
    }
    if (u->metadata_count >= PAIRS_MAX) {
        json_decref(metadata);
        fail(u, 400, "INVALID_FILE", "too many files in one request", 0);
        return;
    }
    struct pair *pair = &u->pairs[u->metadata_count++];
    pair->metadata = metadata;
    if (pair->spool != NULL) {
        commit(u, metadata, pair->spool);
        free(pair->spool);
        pair->spool = NULL;
    }
}

static void part_data(struct upload *u, const char *data, size_t len)
{
    if (u->part == PART_FILE && sk_init_state.storage_full) {
        fail(u, 507, "STORAGE_FULL", "the storage limit of this sandbox is reached", 0);
    } else if (u->part == PART_FILE && u->fd >= 0) {
        while (len > 0) {
            ssize_t n = write(u->fd, data, len);
            if (n < 0) {
                fail_errno(u, "write", errno);
                return;
            }
            data += n;
            len -= (size_t)n;
        }
    } else if (u->part == PART_METADATA) {
        if (u->metadata_len + len > SK_INIT_METADATA_MAX) {
            fail(u, 400, "INVALID_FILE_METADATA", "metadata is too large", 0);
            return;
        }
        char *grown = realloc(u->metadata, u->metadata_len + len + 1);
        if (grown == NULL) {
            fail_errno(u, "metadata", ENOMEM);
            return;
        }
        u->metadata = grown;
        memcpy(grown + u->metadata_len, data, len);
        u->metadata_len += len;
    }
}

static void end_part(struct upload *u)
{
    if (u->part == PART_FILE)
        end_file(u);
    else if (u->part == PART_METADATA)
        end_metadata(u);
    u->part = PART_NONE;
}

static void begin_part(struct upload *u, char *headers)
{
    char *name = NULL;
    for (char *line = strtok(headers, "\r\n"); line != NULL; line = strtok(NULL, "\r\n")) {
        if (strncasecmp(line, "content-disposition:", 20) != 0)
            continue;
        for (char *p = line + 20; (p = strcasestr(p, "name=")) != NULL; p += 5) {
            if (p[-1] == ';' || p[-1] == ' ' || p[-1] == '\t') {
                name = p + 5;
                break;
            }
        }
    }
    size_t len = 0;
    if (name != NULL && *name == '"')
        len = strcspn(++name, "\"");
    else if (name != NULL)
        len = strcspn(name, "; \t");
    if (len == 8 && strncmp(name, "metadata", 8) == 0) {
        u->part = PART_METADATA;
    } else if (len == 4 && strncmp(name, "file", 4) == 0) {
        u->part = PART_FILE;
        begin_file(u);
    } else {
        u->part = PART_OTHER;
    }
}

/* One step over the buffer; returns the bytes used, 0 = more input is needed. */
static size_t step(struct upload *u)
{
    char *p = u->buffer;
    size_t n = u->len;
    if (u->state == UP_BODY) {
        char *hit = memmem(p, n, u->delimiter, u->delimiter_len);
        if (hit != NULL) {
            part_data(u, p, (size_t)(hit - p));
            if (!u->failed)
                end_part(u);
            u->state = UP_AFTER;
            return (size_t)(hit - p) + u->delimiter_len;
        }
        if (n < u->delimiter_len)
            return 0;
        size_t safe = n - (u->delimiter_len - 1);
        part_data(u, p, safe);
        return safe;
    }
    if (u->state == UP_AFTER) {
        if (n < 2)
            return 0;
        if (p[0] == '-' && p[1] == '-') {
            u->state = UP_END;
            return 2;
        }
        if (p[0] == ' ' || p[0] == '\t')
            return 1;
        if (p[0] != '\r' || p[1] != '\n') {
            fail(u, 400, "INVALID_FILE", "broken multipart body", 0);
            return n;
        }
        u->state = UP_HEADERS;
        return 2;
    }
    if (u->state == UP_HEADERS) {
        char *end = memmem(p, n, "\r\n\r\n", 4);
        if (end == NULL) {
            if (n > PART_HEADERS_MAX)
                fail(u, 400, "INVALID_FILE", "part headers are too large", 0);
            return 0;
        }
        *end = '\0';
        u->state = UP_BODY;
        begin_part(u, p);
        return (size_t)(end - p) + 4;
    }
    return n; /* the epilogue */
}

static void upload_body(struct sk_stream *x, const char *data, size_t len)
{
    struct upload *u = sk_stream_arg(x);
    while (len > 0 && !u->failed) {
        size_t take = CHUNK + PART_HEADERS_MAX * 2 - u->len;
        if (take > len)
            take = len;
        memcpy(u->buffer + u->len, data, take);
        u->len += take;
        data += take;
        len -= take;
        size_t used;
        while (!u->failed && u->len > 0 && (used = step(u)) > 0) {
            u->len -= used;
            memmove(u->buffer, u->buffer + used, u->len);
        }
    }
}

static void upload_end(struct sk_stream *x)
{
    struct upload *u = sk_stream_arg(x);
    if (u->failed)
        return;
    if (u->state != UP_END)
        fail(u, 400, "INVALID_FILE", "the multipart body is not complete", 0);
    else if (u->metadata_count != u->file_count)
        fail(u, 400, "INVALID_FILE", "each file needs one metadata part", 0);
    else if (u->file_count == 0)
        fail(u, 400, "INVALID_FILE", "no file in the request", 0);
    else
        sk_init_reply_empty(x);
}

static void upload_closed(struct sk_stream *x, bool complete)
{
    struct upload *u = sk_stream_arg(x);
    (void)complete;
    if (u->fd >= 0)
        close(u->fd);
    if (u->aside != NULL)
        unlink(u->aside);
    for (size_t i = 0; i < PAIRS_MAX && (i < u->metadata_count || i < u->file_count); i++) {
        json_decref(u->pairs[i].metadata);
        if (u->pairs[i].spool != NULL)
            unlink(u->pairs[i].spool);
        free(u->pairs[i].spool);
    }
    free(u->pairs);
    free(u->metadata);
    free(u->aside);
    free(u->buffer);
    free(u);
}

static const struct sk_stream_ops upload_ops = {
    .on_body = upload_body, .on_end = upload_end, .on_close = upload_closed};

static bool read_boundary(struct upload *u, const char *type)
{
    const char *p =
        type != NULL && strncasecmp(type, "multipart/form-data", 19) == 0 ? strcasestr(type, "boundary=") : NULL;
    if (p == NULL)
        return false;
    p += 9;
    bool quoted = *p == '"';
    p += quoted;
    size_t len = strcspn(p, quoted ? "\"" : "; \t");
    if (len == 0 || len > 200)
        return false;
    u->delimiter_len = (size_t)snprintf(u->delimiter, sizeof(u->delimiter), "\r\n--%.*s", (int)len, p);
    return true;
}

void sk_init_upload(struct sk_stream *x)
{
    struct upload *u = calloc(1, sizeof(*u));
    if (u == NULL) {
        sk_stream_abort(x);
        return;
    }
    u->fd = -1;
    if (!read_boundary(u, sk_stream_header(x, "content-type"))) {
        free(u);
        sk_init_reply_error(x, 400, "INVALID_FILE", "a multipart/form-data body with a boundary is needed");
        return;
    }
    u->x = x;
    u->pairs = calloc(PAIRS_MAX, sizeof(*u->pairs));
    u->buffer = malloc(CHUNK + PART_HEADERS_MAX * 2);
    if (u->pairs == NULL || u->buffer == NULL) {
        free(u->pairs);
        free(u->buffer);
        free(u);
        sk_stream_abort(x);
        return;
    }
    memcpy(u->buffer, "\r\n", 2); /* so that the first boundary looks like all others */
    u->len = 2;
    sk_stream_set(x, &upload_ops, u);
}

/* ------------------------------------------------------------------------------------------------ download */

struct download {
    int fd;
    int64_t offset, left; /* bytes */
    bool lines;
    int64_t skip, take; /* lines to skip and to take; take < 0 = all */
    bool line_open;     /* inside a line that is taken */
    int64_t taken;
};

/* First range of a Range header. 0 = none or not understood (then the whole file, RFC 9110 §14.2), 1 = ok, -1 = 416. */
static int parse_range(const char *text, int64_t size, int64_t *start, int64_t *end)
{
    if (text == NULL || strncasecmp(text, "bytes=", 6) != 0)
        return 0;
    const char *p = text + 6;
    char *stop;
    p += strspn(p, " \t");
    if (*p == '-') {
        if (p[1] < '0' || p[1] > '9')
            return 0;
        errno = 0;
        long long suffix = strtoll(p + 1, &stop, 10);
        if ((*stop != '\0' && *stop != ',' && *stop != ' '))
            return 0;
        if (suffix == 0 || size == 0)
            return -1;
        *start = errno != 0 || suffix > size ? 0 : size - suffix;
        *end = size - 1;
        return 1;
    }
    if (*p < '0' || *p > '9')
        return 0;
    *start = strtoll(p, &stop, 10); /* saturates */
    if (*stop != '-')
        return 0;
    p = stop + 1;
    *end = size - 1;
    if (*p >= '0' && *p <= '9') {
        long long last = strtoll(p, &stop, 10);
        if (last < *start)
            return 0;
        if (last < *end)
            *end = last;
        p = stop;
    }
    p += strspn(p, " \t");
    if (*p != '\0' && *p != ',')
        return 0;
    return *start >= size ? -1 : 1;
}

static void download_pump(struct sk_stream *x)
{
    struct download *d = sk_stream_arg(x);
    static char buffer[CHUNK];
    while (d->left > 0) {
        ssize_t n = pread(d->fd, buffer, d->left < CHUNK ? (size_t)d->left : CHUNK, d->offset);
        if (n <= 0) {
            sk_stream_abort(x); /* shorter than promised: never a silent success */
            return;
        }
        d->offset += n;
        d->left -= n;
        if (!sk_stream_write(x, buffer, (size_t)n))
            return;
    }
    sk_stream_end(x);
}

/* Line mode: CR is trimmed, the last line end is dropped, so a separator goes before each line but the first. */
static void line_pump(struct sk_stream *x)
{
    struct download *d = sk_stream_arg(x);
    static char in[CHUNK], out[2 * CHUNK + 2];
    for (;;) {
        ssize_t n = pread(d->fd, in, sizeof(in), d->offset);
        if (n < 0) {
            sk_stream_abort(x);
            return;
        }
        size_t o = 0;
        bool done = n == 0;
        for (ssize_t i = 0; i < n && !done; i++) {
            if (d->skip == 0 && !d->line_open) {
                if (d->take >= 0 && d->taken >= d->take) {
                    done = true;
                    break;
                }
                if (d->taken++ > 0)
                    out[o++] = '\n';
                d->line_open = true;
            }
            if (in[i] == '\n') {
                if (d->skip > 0)
                    d->skip--;
                else
                    d->line_open = false;
            } else if (d->line_open && in[i] != '\r') {
                out[o++] = in[i];
            }
        }
        d->offset += n;
        bool more = o == 0 || sk_stream_write(x, out, o);
        if (done) {
            sk_stream_end(x);
            return;
        }
        if (!more)
            return;
    }
}

static void download_drain(struct sk_stream *x)
{
    struct download *d = sk_stream_arg(x);
    if (d->lines)
        line_pump(x);
    else
        download_pump(x);
}

static void download_closed(struct sk_stream *x, bool complete)
{
    struct download *d = sk_stream_arg(x);
    (void)complete;
    close(d->fd);
    free(d);
}

static const struct sk_stream_ops download_ops = {.on_drain = download_drain, .on_close = download_closed};

static void disposition(const char *path, char *out, size_t size)
{
    const char *name = strrchr(path, '/') + 1;
    bool plain = true;
    for (const char *p = name; *p != '\0'; p++)
        plain = plain && *p >= 0x20 && *p < 0x7f && *p != '"' && *p != '\\';
    if (plain) {
        snprintf(out, size, "attachment; filename=\"%s\"", name);
        return;
    }
    size_t n = (size_t)snprintf(out, size, "attachment; filename*=UTF-8''");
    for (const unsigned char *p = (const unsigned char *)name; *p != '\0' && n + 4 < size; p++)
        n += (size_t)snprintf(out + n, size - n,
                              strchr("-_.~", *p) != NULL || (*p < 0x80 && (*p | 0x20) >= 'a' && (*p | 0x20) <= 'z') ||
                                      (*p >= '0' && *p <= '9')
                                  ? "%c"
                                  : "%%%02X",
                              *p);
}

static bool line_number(struct sk_stream *x, const char *name, int64_t *out, bool *given)
{
    char *text = sk_stream_query_value(sk_stream_query(x), name, 0, NULL);
    char *end;
    if (text == NULL || *text == '\0') {
        free(text);
        return true;
    }
    *given = true;
    *out = strtoll(text, &end, 10);
    bool fine = *end == '\0' && *out >= 1;
    free(text);
    return fine;
}

static void send_lines(struct sk_stream *x, struct download *d, int64_t first, int64_t count)
{
    const struct sk_stream_header type = {"Content-Type", "text/plain; charset=utf-8"};
    d->lines = true;
    d->skip = first - 1;
    d->take = count;
    sk_stream_set(x, &download_ops, d);
    sk_stream_start(x, 200, &type, 1, SK_STREAM_CHUNKED);
    line_pump(x);
}

static void send_bytes(struct sk_stream *x, struct download *d, const char *path, const struct stat *st)
{
    int64_t start = 0, end = st->st_size - 1;
    int range = parse_range(sk_stream_header(x, "range"), st->st_size, &start, &end);
    char content_range[96], where[1024], modified[64];
    struct tm tm;
    gmtime_r(&st->st_mtime, &tm);
    strftime(modified, sizeof(modified), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (range < 0) {
        snprintf(content_range, sizeof(content_range), "bytes */%lld", (long long)st->st_size);
        const struct sk_stream_header header = {"Content-Range", content_range};
        static const char body[] = "{\"code\":\"UNKNOWN\",\"message\":\"the range is outside of the file\"}";
        close(d->fd);
        free(d);
        sk_stream_reply_with(x, 416, &header, 1, "application/json", body, sizeof(body) - 1);
        return;
    }
    disposition(path, where, sizeof(where));
    struct sk_stream_header headers[5] = {{"Content-Type", "application/octet-stream"},
                                          {"Content-Disposition", where},
                                          {"Accept-Ranges", "bytes"},
                                          {"Last-Modified", modified}};
    size_t count = 4;
    if (range > 0) {
        snprintf(content_range, sizeof(content_range), "bytes %lld-%lld/%lld", (long long)start, (long long)end,
                 (long long)st->st_size);
        headers[count++] = (struct sk_stream_header){"Content-Range", content_range};
    } else {
        start = 0;
        end = st->st_size - 1;
    }
    d->offset = start;
    d->left = end - start + 1;
    sk_stream_set(x, &download_ops, d);
    sk_stream_start(x, range > 0 ? 206 : 200, headers, count, d->left);
    if (strcmp(sk_stream_method(x), "HEAD") == 0)
        sk_stream_end(x);
    else
        download_pump(x);
}

void sk_init_download(struct sk_stream *x)
{
    char *given = sk_stream_query_value(sk_stream_query(x), "path", 0, NULL);
    const char *why = NULL;
    char *path = given != NULL ? sk_init_path(given, &why) : NULL;
    struct download *d = NULL;
    struct stat st;
    int64_t first = 1, count = -1;
    bool lines = false;
    if (given == NULL) {
        sk_init_reply_error(x, 400, "MISSING_QUERY", "path is missing");
        goto out;
    }
    if (path == NULL) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "%s", why);
        goto out;
    }
    if (!line_number(x, "offset", &first, &lines) || !line_number(x, "limit", &count, &lines)) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "offset and limit count lines from 1");
        goto out;
    }
    if (lines && sk_stream_header(x, "range") != NULL) {
        sk_init_reply_error(x, 400, "INVALID_REQUEST_BODY", "lines and Range do not go together");
        goto out;
    }
    d = calloc(1, sizeof(*d));
    if (d == NULL) {
        sk_init_reply_error(x, 500, "RUNTIME_ERROR", "out of memory");
        goto out;
    }
    d->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (d->fd < 0 || fstat(d->fd, &st) != 0) {
        int error = errno;
        if (error == ENOENT || error == ENOTDIR)
            sk_init_reply_error(x, 404, "FILE_NOT_FOUND", "%s: %s", given, strerror(error));
        else
            sk_init_reply_error(x, 500, "RUNTIME_ERROR", "%s: %s", given, strerror(error));
    } else if (!S_ISREG(st.st_mode)) {
        sk_init_reply_error(x, 400, "INVALID_FILE", "%s: not a regular file", given);
    } else if (lines) {
        send_lines(x, d, first, count);
        d = NULL;
    } else {
        send_bytes(x, d, path, &st);
        d = NULL;
    }
out:
    if (d != NULL) {
        if (d->fd >= 0)
            close(d->fd);
        free(d);
    }
    free(given);
    free(path);
}
