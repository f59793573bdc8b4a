/* SPDX-License-Identifier: Apache-2.0
 *
 * What people and programs see: JSON documents on stdout, notes and errors on stderr, tables, durations, and the exit
 * status that an error code means. */
#include "services/ctl/ctl.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TABLE_ROWS_MAX 100000
#define CELL_MAX       256
#define COLUMNS_MAX    16
#define RING           8

void ctl_json(const json_t *value)
{
    json_dumpf(value, stdout, JSON_ENCODE_ANY | (isatty(STDOUT_FILENO) ? JSON_INDENT(2) : JSON_COMPACT));
    putchar('\n');
}

void ctl_json_line(const json_t *value)
{
    json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_COMPACT);
    putchar('\n');
    fflush(stdout);
}

void ctl_note(const struct ctl *ctl, const char *fmt, ...)
{
    va_list args;

    if (ctl->args.quiet)
        return;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

void ctl_complain(const char *fmt, ...)
{
    va_list args;

    fputs("skctl: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

enum ctl_exit ctl_exit_of(const char *name)
{
    enum sk_code code = sk_code_parse(name);

    switch (code) {
    case SK_ERR_DEADLINE_EXCEEDED:
        return CTL_DEADLINE;
    case SK_ERR_OPERATION_BLOCKED: /* 409 on the wire, but waiting does not help */
        return CTL_FAILED;
    case SK_ERR_IDEMPOTENCY_CONFLICT:
        return CTL_BUSY;
    default:
        break;
    }
    if (sk_code_http_status(code) == 404)
        return CTL_NOT_FOUND;
    return sk_code_http_status(code) == 409 ? CTL_BUSY : CTL_FAILED;
}

static const json_t *walk(const json_t *object, const char *path)
{
    char name[64];

    while (object != NULL && path[0] != '\0') {
        size_t len = strcspn(path, ".");
        if (len >= sizeof(name))
            return NULL;
        memcpy(name, path, len);
        name[len] = '\0';
        object = json_object_get(object, name);
        path += len;
        if (path[0] == '.')
            path++;
    }
    return object;
}

const char *ctl_text(const json_t *object, const char *path)
{
    const json_t *value = walk(object, path);

    return json_is_string(value) ? json_string_value(value) : "";
}

int64_t ctl_integer(const json_t *object, const char *path, int64_t absent)
{
    const json_t *value = walk(object, path);

    return json_is_integer(value) ? json_integer_value(value)
           : json_is_real(value)  ? (int64_t)json_real_value(value)
                                  : absent;
}

int ctl_show_failure(const struct ctl *ctl, const json_t *answer)
{
    const json_t *error = json_object_get(answer, "error");
    const char *code = ctl_text(error, "code"), *detail = ctl_text(error, "detail"), *title = ctl_text(error, "title");
    int64_t retry_after = ctl_integer(error, "retryAfterMs", 0);

    if (ctl->args.json)
        ctl_json(answer);
    ctl_complain("%s: %s", code[0] != '\0' ? ctl_clean(code) : "failed", ctl_clean(detail[0] != '\0' ? detail : title));
    if (json_object_get(error, "operation") != NULL)
        ctl_note(ctl, "       operation in the way: %s %s, phase %s", ctl_clean(ctl_text(error, "operation.type")),
                 ctl_clean(ctl_text(error, "operation.id")), ctl_clean(ctl_text(error, "operation.phase")));
    if (json_is_true(json_object_get(error, "retryable")))
        ctl_note(ctl, retry_after > 0 ? "       try again in %s" : "       trying again may help",
                 ctl_duration(retry_after));
    return ctl_exit_of(code);
}

int ctl_show_error(const struct ctl *ctl, const struct sk_error *err)
{
    if (ctl->args.json) {
        json_t *answer =
            json_pack("{s:b, s:{s:s, s:s}}", "ok", 0, "error", "code", sk_code_name(err->code), "detail", err->message);
        if (answer != NULL)
            ctl_json(answer);
        json_decref(answer);
    }
    ctl_complain("%s: %s", sk_code_name(err->code), ctl_clean(err->message));
    return ctl_exit_of(sk_code_name(err->code));
}

static char *ring_next(size_t *size)
{
    static char buffers[RING][1024];
    static unsigned next;

    *size = sizeof(buffers[0]);
    return buffers[next++ % RING];
}

const char *ctl_clean(const char *text)
{
    size_t size, used = 0, len = strlen(text);
    char *out = ring_next(&size);

    while (len > 0 && used + 5 < size) {
        size_t step = sk_utf8_sequence(text, len);
        if (step == 0) {
            out[used++] = '?';
            step = 1;
        } else if ((unsigned char)text[0] < 0x20 || text[0] == 0x7f ||
                   (step == 2 && (unsigned char)text[0] == 0xc2 && (unsigned char)text[1] < 0xa0)) { /* C0, DEL, C1 */
            out[used++] = '?';
        } else {
            memcpy(out + used, text, step);
            used += step;
        }
        text += step;
        len -= step;
    }
    out[used] = '\0';
    return out;
}

const char *ctl_duration(int64_t ms)
{
    size_t size;
    char *out = ring_next(&size);

    if (ms < 0)
        snprintf(out, size, "-");
    else if (ms < 1000)
        snprintf(out, size, "%lld ms", (long long)ms);
    else if (ms < 60000)
        snprintf(out, size, "%.1f s", (double)ms / 1000);
    else if (ms < 3600000)
        snprintf(out, size, "%lld min %lld s", (long long)(ms / 60000), (long long)(ms / 1000 % 60));
    else if (ms < 86400000)
        snprintf(out, size, "%lld h %lld min", (long long)(ms / 3600000), (long long)(ms / 60000 % 60));
    else
        snprintf(out, size, "%lld d %lld h", (long long)(ms / 86400000), (long long)(ms / 3600000 % 24));
    return out;
}

const char *ctl_age(const char *time)
{
    int64_t then, now = sk_wall_ms(&sk_sched_system);

    if (!sk_time_parse(time, &then))
        return "-";
    return ctl_duration(now > then ? now - then : 0);
}

struct ctl_table {
    int columns, rows, capacity;
    char **cells; /* rows * columns, heads first */
};

static void add_row(struct ctl_table *table, const char *const *cells)
{
    if (table->rows == table->capacity) {
        int capacity = table->capacity == 0 ? 64 : table->capacity * 2;
        char **grown = capacity > TABLE_ROWS_MAX
                           ? NULL
                           : realloc(table->cells, sizeof(char *) * (size_t)capacity * (size_t)table->columns);
        if (grown == NULL)
            return;
        table->cells = grown;
        table->capacity = capacity;
    }
    for (int i = 0; i < table->columns; i++) {
        char cut[CELL_MAX];
        sk_copy_cut(cut, sizeof(cut), ctl_clean(cells[i] != NULL && cells[i][0] != '\0' ? cells[i] : "-"));
        table->cells[table->rows * table->columns + i] = strdup(cut);
    }
    table->rows++;
}

struct ctl_table *ctl_table_new(const char *const *heads, int columns)
{
    struct ctl_table *table = calloc(1, sizeof(*table));

    if (table != NULL) {
        table->columns = columns < COLUMNS_MAX ? columns : COLUMNS_MAX;
        add_row(table, heads);
    }
    return table;
}

void ctl_table_row(struct ctl_table *table, const char *const *cells)
{
    if (table != NULL)
        add_row(table, cells);
}

static long cell_length(const char *cell)
{
    return cell != NULL ? sk_utf8_length(cell, strlen(cell)) : 0;
}

void ctl_table_free(struct ctl_table *table)
{
    if (table == NULL)
        return;
    for (int i = 0; i < table->rows * table->columns; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table);
}

void ctl_table_print(struct ctl_table *table, FILE *out)
{
    long widths[COLUMNS_MAX] = {0};

    if (table == NULL)
        return;
    for (int column = 0; column + 1 < table->columns && column < COLUMNS_MAX; column++) {
        for (int row = 0; row < table->rows; row++) {
            long len = cell_length(table->cells[row * table->columns + column]);
            widths[column] = len > widths[column] ? len : widths[column];
        }
    }
    for (int row = 0; row < table->rows; row++) {
        for (int column = 0; column < table->columns; column++) {
            const char *cell = table->cells[row * table->columns + column];
            fputs(cell != NULL ? cell : "", out);
            for (long pad = cell_length(cell); pad < widths[column] + 2 && column + 1 < table->columns; pad++)
                fputc(' ', out);
        }
        fputc('\n', out);
    }
    ctl_table_free(table);
}

/* Whether stdout is a pipe whose reader has left (`skctl … | head`): nothing went wrong then. */
static bool is_unread(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};

    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

int ctl_finish(int status)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (is_unread())
            return status == CTL_OK ? CTL_UNREAD : status;
        ctl_complain("stdout could not be written");
        return status == CTL_OK ? CTL_FAILED : status;
    }
    return status;
}
