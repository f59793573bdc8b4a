/* SPDX-License-Identifier: Apache-2.0
 *
 * Files through execd (reference/providers.md §2.4): streamed both ways in constant memory. */
#include "common/provider/execd_private.h"

#include "common/base/id.h"
#include "common/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_MS 60000

/* execd writes modes as decimal numbers whose digits are octal: 0644 <-> 644. */
static int mode_digits(int mode)
{
    return (mode >> 9 & 7) * 1000 + (mode >> 6 & 7) * 100 + (mode >> 3 & 7) * 10 + (mode & 7);
}

static int mode_bits(int64_t digits)
{
    int mode = 0;

    for (int shift = 0; shift <= 9; shift += 3, digits /= 10)
        mode |= (int)(digits % 10 & 7) << shift;
    return mode;
}

static int check_path(const char *path, const char *what, struct sk_error *err)
{
    size_t len = path == NULL ? 0 : strlen(path);

    if (len == 0 || len > SK_EXECD_PATH_MAX || sk_utf8_length(path, len) < 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: the path is empty, too long or not UTF-8", what);
    return 0;
}

int sk_execd_stat(const struct sk_execd *execd, struct sk_call *call, const char *path, struct sk_execd_file_info *out,
                  bool *found, struct sk_error *err)
{
    static const char *const segments[] = {"files", "info", NULL};
    struct sk_wire_answer answer = {0};
    const json_t *info, *size, *mode;
    const char *type, *modified;
    int rc = -1;

    memset(out, 0, sizeof(*out));
    *found = false;
    if (check_path(path, "stat", err) != 0)
        return -1;
    if (sk_execd_json(execd, call, SK_WIRE_FILES, "GET", sk_execd_url(execd, segments, "path", path), &answer, err) !=
        0) {
        sk_fail_context(err, "stat");
        goto out;
    }
    if (sk_wire_absent(&answer)) {
        rc = 0;
        goto out;
    }
    if (answer.status != 200) {
        sk_wire_fail(err, &answer, "stat");
        goto out;
    }
    info = json_object_get(answer.json, path); /* keyed by the path as it was asked for */
    size = json_object_get(info, "size");
    mode = json_object_get(info, "mode");
    if (!json_is_integer(size) || json_integer_value(size) < 0) {
        sk_wire_fail_body(err, &answer, "stat", "the file is not in the answer");
        goto out;
    }
    out->size = json_integer_value(size);
    if (json_is_integer(mode) && json_integer_value(mode) >= 0)
        out->mode = mode_bits(json_integer_value(mode));
    type = sk_wire_text(json_object_get(info, "type"));
    if (type != NULL)
        sk_copy_cut(out->type, sizeof(out->type), type);
    modified = sk_wire_text(json_object_get(info, "modified_at"));
    if (modified == NULL || !sk_time_parse(modified, &out->modified))
        out->modified = 0;
    *found = true;
    rc = 0;
out:
    sk_wire_answer_fini(&answer);
    return rc;
}

/* ---- upload ----------------------------------------------------------------------------------------------------- */

struct counted_source {
    sk_http_source read;
    void *arg;
    int64_t bytes;
};

static ssize_t read_counted(void *arg, void *out, size_t size)
{
    struct counted_source *source = arg;
    ssize_t n = source->read(source->arg, out, size);

    if (n > 0)
        source->bytes += n;
    return n;
}

static char *upload_metadata(const struct sk_execd_upload *upload, size_t *len, struct sk_error *err)
{
    json_t *metadata = json_pack("{s:s}", "path", upload->path);
    char *text;

    if (metadata != NULL && upload->owner != NULL)
        json_object_set_new(metadata, "owner", json_string(upload->owner));
    if (metadata != NULL && upload->group != NULL)
        json_object_set_new(metadata, "group", json_string(upload->group));
    if (metadata != NULL && upload->mode != 0)
        json_object_set_new(metadata, "mode", json_integer(mode_digits(upload->mode)));
    text = sk_json_dump(metadata, false, len, err);
    json_decref(metadata);
    return text;
}

/* The size at the other side, after an answer that claims success (a gateway may have swallowed the body). */
static int verify_upload(const struct sk_execd *execd, struct sk_call *call, const char *path, int64_t bytes,
                         struct sk_error *err)
{
    struct sk_execd_file_info info;
    bool found;

    if (sk_execd_stat(execd, call, path, &info, &found, err) != 0) {
        if (err != NULL)
            err->outcome = SK_OUTCOME_UNKNOWN;
        return sk_fail_context(err, "upload, reading back");
    }
    if (!found)
        return sk_fail_unknown(err, SK_ERR_PROVIDER_ERROR, "upload: accepted, but the file is not there");
    if (info.size != bytes)
        return sk_fail_unknown(err, SK_ERR_PROVIDER_ERROR, "upload: %lld bytes were sent, %lld are there",
                               (long long)bytes, (long long)info.size);
    return 0;
}

int sk_execd_upload(const struct sk_execd *execd, struct sk_call *call, const struct sk_execd_upload *upload,
                    int64_t *sent, struct sk_error *err)
{
    static const char *const segments[] = {"files", "upload", NULL};
    struct counted_source source = {.read = upload->source, .arg = upload->source_arg};
    struct sk_http_header headers[SK_EXECD_HEADERS_MAX];
    struct sk_http_response response = {0};
    struct sk_wire_answer answer = {0};
    const char *base = upload->path == NULL ? NULL : strrchr(upload->path, '/');
    char *url = NULL, *metadata = NULL;
    size_t metadata_len = 0;
    int rc = -1;

    *sent = 0;
    if (check_path(upload->path, "upload", err) != 0)
        return -1;
    metadata = upload_metadata(upload, &metadata_len, err);
    url = sk_execd_url(execd, segments, NULL, NULL);
    if (metadata == NULL || url == NULL)
        goto out;
    /* Both parts must carry a file name, and the metadata comes first. */
    const struct sk_http_part parts[] = {
        {.name = "metadata",
         .file_name = "metadata",
         .content_type = "application/json",
         .data = metadata,
         .len = metadata_len},
        {.name = "file",
         .file_name = base == NULL      ? upload->path
                      : base[1] != '\0' ? base + 1
                                        : "file",
         .content_type = "application/octet-stream",
         .source = read_counted,
         .source_arg = &source,
         .size = upload->size},
    };
    if (sk_wire_send(call, SK_WIRE_FILES,
                     &(struct sk_http_request){.method = "POST",
                                               .url = url,
                                               .headers = headers,
                                               .header_count = sk_execd_headers(execd, headers),
                                               .parts = parts,
                                               .part_count = 2,
                                               .idle_timeout_ms = upload->idle_ms > 0 ? upload->idle_ms : IDLE_MS,
                                               .total_timeout_ms = -1},
                     &response, err) != 0) {
        sk_fail_context(err, "upload");
        goto out;
    }
    sk_wire_read(&answer, &response);
    if (response.status / 100 != 2) {
        sk_wire_fail(err, &answer, "upload");
        goto out;
    }
    rc = verify_upload(execd, call, upload->path, source.bytes, err);
out:
    *sent = source.bytes;
    sk_wire_answer_fini(&answer);
    sk_http_response_fini(&response);
    free(url);
    free(metadata);
    return rc;
}

/* ---- download --------------------------------------------------------------------------------------------------- */

struct download {
    const struct sk_http_response *response;
    sk_http_sink sink;
    void *arg;
    int64_t offset, received;
    bool wrong_part; /* the answer does not begin at the offset */
};

/* "bytes 5-9/10" begins at 5. */
static bool begins_at(const char *content_range, int64_t offset)
{
    char *end = NULL;

    if (content_range == NULL || strncmp(content_range, "bytes ", 6) != 0)
        return false;
    return strtoll(content_range + 6, &end, 10) == offset && *end == '-';
}

static int take_part(void *arg, const void *data, size_t len)
{
    struct download *d = arg;
    int verdict;

    if (d->offset > 0 && d->received == 0 &&
        (d->response->status != 206 ||
         !begins_at(sk_http_response_header(d->response, "Content-Range", 0), d->offset))) {
        d->wrong_part = true;
        return SK_HTTP_SINK_FAIL;
    }
    verdict = d->sink(d->arg, data, len);
    if (verdict != SK_HTTP_SINK_FAIL)
        d->received += (int64_t)len;
    return verdict;
}

int sk_execd_download(const struct sk_execd *execd, struct sk_call *call, const char *path, int64_t offset,
                      sk_http_sink sink, void *sink_arg, int64_t *received, bool *found, struct sk_error *err)
{
    static const char *const segments[] = {"files", "download", NULL};
    struct sk_http_header headers[SK_EXECD_HEADERS_MAX + 1];
    struct sk_http_response response = {0};
    struct download d = {.response = &response, .sink = sink, .arg = sink_arg, .offset = offset};
    struct sk_wire_answer answer = {0};
    size_t count = sk_execd_headers(execd, headers);
    char *url, range[48];
    int rc = -1;

    *received = 0;
    *found = false;
    if (check_path(path, "download", err) != 0)
        return -1;
    url = sk_execd_url(execd, segments, "path", path);
    if (url == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "download: the address cannot be built");
    if (offset > 0) {
        snprintf(range, sizeof(range), "bytes=%lld-", (long long)offset);
        headers[count++] = (struct sk_http_header){"Range", range};
    }
    if (sk_wire_send(call, SK_WIRE_FILES,
                     &(struct sk_http_request){.method = "GET",
                                               .url = url,
                                               .headers = headers,
                                               .header_count = count,
                                               .sink = take_part,
                                               .sink_arg = &d,
                                               .idle_timeout_ms = IDLE_MS,
                                               .total_timeout_ms = -1},
                     &response, err) != 0) {
        if (d.wrong_part)
            sk_fail(err, SK_ERR_PROVIDER_ERROR, "the server does not continue at the offset");
        sk_fail_context(err, "download");
        goto out;
    }
    if (response.status / 100 != 2) {
        sk_wire_read(&answer, &response);
        rc = sk_wire_absent(&answer) ? 0 : sk_wire_fail(err, &answer, "download");
        goto out;
    }
    /* Without a mark at its end a cut would look like the end of the file. */
    if (!response.delimited && !response.stopped) {
        sk_fail(err, SK_ERR_PROVIDER_ERROR, "download: the end of the file is not marked: it may be cut");
        goto out;
    }
    *found = true;
    rc = 0;
out:
    *received = d.received;
    sk_wire_answer_fini(&answer);
    sk_http_response_fini(&response);
    free(url);
    return rc;
}
