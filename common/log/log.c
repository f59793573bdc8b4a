/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds one bounded line in a stack buffer and writes it by one write(2). JSON strings are cut between code points
 * (and never inside an escape), bytes that are not UTF-8 become U+FFFD, so a line is valid JSON whatever is passed in.
 */
#include "common/log/log.h"

#include "common/base/id.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 8192           /* including the newline */
#define CLOSE_BYTES    14             /* room kept for: quote ,"cut":true } newline */
#define REPLACEMENT    "\xef\xbf\xbd" /* U+FFFD */

static struct {
    const char *service;
    atomic_int level;
    atomic_ullong dropped;
    bool terminal;
    const struct sk_sched *clock;
    pthread_mutex_t lock; /* the lines of two threads never mix, and guards the rest */
    bool torn;            /* the last line was written in part: the next one starts on a fresh line */
    void (*sink)(void *arg, const char *line, size_t len);
    void *sink_arg;
} state = {
    .service = "sandkeep",
    .level = SK_LOG_LEVEL_INFO,
    .clock = &sk_sched_system,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

static const char *const level_names[] = {"debug", "info", "warn", "error"};
static const char *const level_columns[] = {"DEBUG", "INFO ", "WARN ", "ERROR"};

struct line {
    size_t len;
    bool cut; /* something did not fit: nothing more is added */
    bool json;
    char text[1 + LINE_MAX_BYTES]; /* text[0] is kept for the newline that ends a torn line */
};

/* Adds all of it or nothing; CLOSE_BYTES stay free. */
static bool put(struct line *line, const char *text, size_t len)
{
    if (line->cut || line->len + len > LINE_MAX_BYTES - CLOSE_BYTES) {
        line->cut = true;
        return false;
    }
    memcpy(line->text + 1 + line->len, text, len);
    line->len += len;
    return true;
}

static bool put_text(struct line *line, const char *text)
{
    return put(line, text, strlen(text));
}

/* The inside of a JSON string. The terminal format uses it too: control characters must not reach a terminal. */
static void put_escaped(struct line *line, const char *text)
{
    size_t len = strlen(text), at = 0;

    while (at < len && !line->cut) {
        unsigned char c = (unsigned char)text[at];
        size_t size = sk_utf8_sequence(text + at, len - at);
        char escape[8];

        if (size == 0) {
            put_text(line, REPLACEMENT);
            at++;
        } else if (size == 1 && (c == '"' || c == '\\')) {
            put(line, (char[]){'\\', (char)c}, 2);
            at++;
        } else if (c == '\n' || c == '\t' || c == '\r') {
            put(line, (char[]){'\\', c == '\n' ? 'n' : c == '\t' ? 't' : 'r'}, 2);
            at++;
        } else if (sk_text_has_control(text + at, size)) {
            unsigned point = size == 1 ? c : (unsigned)(unsigned char)text[at + 1]; /* C1: U+0080..U+009F */
            snprintf(escape, sizeof(escape), "\\u%04x", point);
            put_text(line, escape);
            at += size;
        } else {
            put(line, text + at, size);
            at += size;
        }
    }
}

static bool plain_word(const char *text)
{
    if (text[0] == '\0')
        return false;
    for (const char *p = text; *p != '\0'; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || *p == '"' || *p == '\\' || *p == '=')
            return false;
    }
    return true;
}

/* Starts a field: `,"name":` or ` name=`. It is taken whole or not at all, with room for the shortest value after it;
 * on false the line ends before it. */
static bool put_name(struct line *line, const char *name, const char *suffix, size_t value_room)
{
    size_t mark = line->len;

    if (line->json) {
        put_text(line, mark > 0 ? ",\"" : "{\"");
        put_escaped(line, name);
        put_escaped(line, suffix);
        put_text(line, "\":");
    } else {
        put_text(line, " ");
        put_escaped(line, name);
        put_escaped(line, suffix);
        put_text(line, "=");
    }
    if (!line->cut && line->len + value_room > LINE_MAX_BYTES - CLOSE_BYTES)
        line->cut = true;
    if (line->cut)
        line->len = mark;
    return !line->cut;
}

static void put_string(struct line *line, const char *name, const char *suffix, const char *text)
{
    if (!put_name(line, name, suffix, 1))
        return;
    if (!line->json && plain_word(text)) {
        put_escaped(line, text);
        return;
    }
    put_text(line, "\"");
    put_escaped(line, text);
    /* Past the limit of put(): the closing quote has its place in CLOSE_BYTES. */
    line->text[1 + line->len++] = '"';
}

static void put_literal(struct line *line, const char *name, const char *suffix, const char *literal)
{
    if (put_name(line, name, suffix, strlen(literal)))
        put_text(line, literal);
}

static void put_int(struct line *line, const char *name, const char *suffix, int64_t number)
{
    char digits[24];

    snprintf(digits, sizeof(digits), "%lld", (long long)number);
    put_literal(line, name, suffix, digits);
}

static void put_field(struct line *line, const struct sk_log_field *field)
{
    switch (field->kind) {
    case SK_FIELD_STRING:
        if (field->text != NULL)
            put_string(line, field->name, "", field->text);
        break;
    case SK_FIELD_INT:
        put_int(line, field->name, "", field->number);
        break;
    case SK_FIELD_BOOL:
        put_literal(line, field->name, "", field->number != 0 ? "true" : "false");
        break;
    case SK_FIELD_ERROR:
        if (field->error == NULL || field->error->code == SK_OK)
            break;
        put_string(line, field->name, ".code", sk_code_name(field->error->code));
        put_string(line, field->name, ".message", field->error->message);
        if (field->error->outcome == SK_OUTCOME_UNKNOWN)
            put_string(line, field->name, ".outcome", "unknown");
        if (field->error->provider_status != 0)
            put_int(line, field->name, ".providerStatus", field->error->provider_status);
        break;
    }
}

void sk_log_init(const char *service, enum sk_log_level level)
{
    state.service = service;
    state.terminal = isatty(STDERR_FILENO) == 1;
    atomic_store(&state.level, (int)level);
}

void sk_log_set_level(enum sk_log_level level)
{
    atomic_store_explicit(&state.level, (int)level, memory_order_relaxed);
}

enum sk_log_level sk_log_get_level(void)
{
    return (enum sk_log_level)atomic_load_explicit(&state.level, memory_order_relaxed);
}

bool sk_log_level_parse(const char *text, enum sk_log_level *out)
{
    for (int level = SK_LOG_LEVEL_DEBUG; level <= SK_LOG_LEVEL_ERROR; level++) {
        if (text != NULL && strcmp(level_names[level], text) == 0) {
            *out = (enum sk_log_level)level;
            return true;
        }
    }
    return false;
}

void sk_log_capture(void (*sink)(void *arg, const char *line, size_t len), void *arg)
{
    pthread_mutex_lock(&state.lock);
    state.sink = sink;
    state.sink_arg = arg;
    pthread_mutex_unlock(&state.lock);
}

void sk_log_set_clock(const struct sk_sched *sched)
{
    state.clock = sched != NULL ? sched : &sk_sched_system;
}

unsigned long long sk_log_dropped(void)
{
    return atomic_load(&state.dropped);
}

/* Under the lock. A reader that is gone or slow costs lines, never the service: nothing is retried but EINTR. */
static void write_line(struct line *line)
{
    const char *from = line->text + 1;
    size_t len = line->len;
    ssize_t n;

    if (state.torn) {
        line->text[0] = '\n';
        from--;
        len++;
    }
    do {
        n = write(STDERR_FILENO, from, len);
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)len) {
        state.torn = false;
        return;
    }
    if (n > 0)
        state.torn = true;
    atomic_fetch_add(&state.dropped, 1);
}

void sk_log_write(enum sk_log_level level, const char *message, const struct sk_log_field *fields, size_t count)
{
    int saved_errno = errno; /* a log line must not disturb the error that it reports */
    char time[SK_TIME_SIZE];
    struct line line;
    static const char cut_json[] = ",\"cut\":true", cut_text[] = " cut=true";

    if ((int)level < SK_LOG_LEVEL_DEBUG || level > SK_LOG_LEVEL_ERROR)
        level = SK_LOG_LEVEL_ERROR;
    line.len = 0;
    line.cut = false;
    sk_time_format(sk_wall_ms(state.clock), time);

    pthread_mutex_lock(&state.lock);
    line.json = state.sink != NULL || !state.terminal;
    if (line.json) {
        put_string(&line, "ts", "", time);
        put_string(&line, "level", "", level_names[level]);
        put_string(&line, "service", "", state.service);
        put_string(&line, "msg", "", message != NULL ? message : "");
    } else {
        put_text(&line, time);
        put_text(&line, " ");
        put_text(&line, level_columns[level]);
        put_text(&line, " ");
        put_escaped(&line, message != NULL ? message : "");
    }
    for (size_t i = 0; i < count && !line.cut; i++)
        put_field(&line, &fields[i]);
    if (line.cut) {
        const char *mark = line.json ? cut_json : cut_text;
        size_t mark_len = strlen(mark);
        memcpy(line.text + 1 + line.len, mark, mark_len);
        line.len += mark_len;
    }
    if (line.json)
        line.text[1 + line.len++] = '}';
    line.text[1 + line.len++] = '\n';
    if (state.sink != NULL)
        state.sink(state.sink_arg, line.text + 1, line.len);
    else
        write_line(&line);
    pthread_mutex_unlock(&state.lock);
    errno = saved_errno;
}
