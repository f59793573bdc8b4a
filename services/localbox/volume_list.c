/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /v1/volumes: what the volume manager holds, for operators and for `skctl doctor` (OpenSandbox's own manager has
 * no such call). Names in order, page by page: ?after=NAME&limit=N. */
#include "services/localbox/localbox.h"

#include "common/base/id.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_DEFAULT 1000
#define LIMIT_MAX     1000
#define NAMES_MAX     1000000

struct volume_list {
    uv_work_t work;
    struct sk_stream *x;
    char after[LB_CLAIM_SIZE];
    int64_t limit;
    char **names;
    size_t count, capacity;
    json_t *items;
    bool more;
    int error;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_name(struct volume_list *list, const char *name)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 256 : list->capacity * 2;
        char **grown = capacity > NAMES_MAX ? NULL : realloc(list->names, capacity * sizeof(*grown));
        if (grown == NULL)
            return ENOMEM;
        list->names = grown;
        list->capacity = capacity;
    }
    list->names[list->count] = strdup(name);
    return list->names[list->count++] != NULL ? 0 : ENOMEM;
}

static int read_names(struct volume_list *list)
{
    int fd = lb_open_beneath(lb.data_fd, "volumes", O_RDONLY | O_DIRECTORY, 0);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;
    int error = 0;

    if (folder == NULL) {
        if (fd >= 0)
            close(fd);
        return fd < 0 ? -fd : errno;
    }
    while (error == 0 && (entry = readdir(folder)) != NULL) {
        if (lb_claim_valid(entry->d_name) && strcmp(entry->d_name, list->after) > 0)
            error = add_name(list, entry->d_name);
    }
    closedir(folder);
    return error;
}

/* A folder's birth is not to be had everywhere: its last change is the next best and never earlier. */
static int64_t created_ms(const char *claim)
{
    char path[LB_CLAIM_SIZE + 16];
    struct statx info;

    snprintf(path, sizeof(path), "volumes/%s", claim);
    if (statx(lb.data_fd, path, AT_SYMLINK_NOFOLLOW, STATX_BTIME | STATX_CTIME, &info) != 0)
        return 0;
    if ((info.stx_mask & STATX_BTIME) != 0)
        return info.stx_btime.tv_sec * 1000 + info.stx_btime.tv_nsec / 1000000;
    return info.stx_ctime.tv_sec * 1000 + info.stx_ctime.tv_nsec / 1000000;
}

static void list_work(uv_work_t *work)
{
    struct volume_list *list = work->data;

    list->items = json_array();
    list->error = list->items != NULL ? read_names(list) : ENOMEM;
    if (list->error != 0 || list->count == 0)
        return;
    qsort(list->names, list->count, sizeof(*list->names), by_name);
    for (size_t i = 0; i < list->count; i++) {
        char time[SK_TIME_SIZE];
        json_t *item;
        if (i == (size_t)list->limit) {
            list->more = true;
            break;
        }
        sk_time_format(created_ms(list->names[i]), time);
        item = json_pack("{s:s,s:s}", "claimName", list->names[i], "createdAt", time);
        if (item == NULL || json_array_append_new(list->items, item) != 0)
            list->error = ENOMEM;
    }
}

static void list_after(uv_work_t *work, int status)
{
    lb.jobs--;
    struct volume_list *list = work->data;
    size_t shown = json_array_size(list->items);

    if (list->x != NULL) {
        sk_stream_set(list->x, NULL, NULL);
        if (status != 0 || list->error != 0)
            lb_reply_error(list->x, 500, "VOLUME::FAILED", "%s", strerror(list->error));
        else
            lb_reply_json(list->x, 200,
                          json_pack("{s:O,s:o}", "items", list->items, "next",
                                    list->more && shown > 0 ? json_string(list->names[shown - 1]) : json_null()));
    }
    json_decref(list->items);
    for (size_t i = 0; i < list->count; i++)
        free(list->names[i]);
    free(list->names);
    free(list);
}

static void list_closed(struct sk_stream *x, bool complete)
{
    struct volume_list *list = sk_stream_arg(x);

    (void)complete;
    if (list != NULL)
        list->x = NULL;
}

static const struct sk_stream_ops list_ops = {.on_close = list_closed};

void lb_volume_list(struct sk_stream *x)
{
    char *after = sk_stream_query_value(sk_stream_query(x), "after", 0, NULL);
    char *limit = sk_stream_query_value(sk_stream_query(x), "limit", 0, NULL);
    struct volume_list *list = calloc(1, sizeof(*list));

    if (list == NULL) {
        lb_reply_error(x, 500, "GENERAL::UNKNOWN_ERROR", "out of memory");
    } else if (after != NULL && (strlen(after) >= sizeof(list->after) || !lb_claim_valid(after))) {
        lb_reply_error(x, 400, "VOLUME::INVALID_NAME", "after is no volume name");
    } else {
        list->limit = LIMIT_DEFAULT;
        if (limit != NULL && !lb_parse_number(limit, 1, LIMIT_MAX, &list->limit)) {
            lb_reply_error(x, 400, "VOLUME::INVALID_LIMIT", "limit must be 1..%d", LIMIT_MAX);
        } else {
            snprintf(list->after, sizeof(list->after), "%s", after != NULL ? after : "");
            list->x = x;
            list->work.data = list;
            sk_stream_set(x, &list_ops, list);
            lb_queue(&list->work, list_work, list_after);
            list = NULL;
        }
    }
    free(list);
    free(limit);
    free(after);
}
