/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-init's events when memory runs out: whichever allocation fails, a reader gets whole events or a cut stream, never
 * an event with a piece missing. The sources are included, so that their allocations can be made to fail; the stream
 * and the rest of sk-init are stood in for. */
#include "services/localbox/init/command.h"

#include "tests/unit/check_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail_at;  /* the allocation that fails, counted down; 0 = none */
static bool refused; /* it was asked for */

static bool refuse(void)
{
    if (fail_at == 0 || --fail_at > 0)
        return false;
    refused = true;
    return true;
}

static void *test_realloc(void *old, size_t size)
{
    return refuse() ? NULL : realloc(old, size);
}

static void *test_malloc(size_t size)
{
    return refuse() ? NULL : malloc(size);
}

#define malloc  test_malloc
#define realloc test_realloc
#include "services/localbox/init/command.c"
#include "services/localbox/init/output.c"
#undef malloc
#undef realloc

/* ---- stand-ins ---- */

struct sk_init sk_init_state;

static struct answer {
    char text[1 << 16];
    size_t len;
    bool aborted, ended;
} answer;
static struct sk_stream *const stream = (struct sk_stream *)&answer;

bool sk_stream_write(struct sk_stream *x, const void *data, size_t len)
{
    ck_assert_ptr_eq(x, stream);
    if (answer.aborted || answer.ended)
        return false;
    ck_assert_uint_lt(answer.len + len, sizeof(answer.text));
    memcpy(answer.text + answer.len, data, len);
    answer.len += len;
    answer.text[answer.len] = '\0';
    return true;
}

void sk_stream_abort(struct sk_stream *x)
{
    ck_assert_ptr_eq(x, stream);
    answer.aborted = true;
}

void sk_stream_end(struct sk_stream *x)
{
    ck_assert_ptr_eq(x, stream);
    answer.ended = !answer.aborted;
}

void sk_stream_set(struct sk_stream *x, const struct sk_stream_ops *ops, void *arg)
{
    (void)x;
    (void)ops;
    (void)arg;
}

void *sk_stream_arg(const struct sk_stream *x)
{
    (void)x;
    return NULL;
}

void sk_stream_start(struct sk_stream *x, int status, const struct sk_stream_header *headers, size_t count,
                     int64_t length)
{
    (void)x;
    (void)status;
    (void)headers;
    (void)count;
    (void)length;
}

void sk_stream_collect(struct sk_stream *x, size_t max, int deadline_ms,
                       void (*done)(struct sk_stream *x, void *arg, char *body, size_t len),
                       void (*on_close)(struct sk_stream *x, void *arg, bool complete), void *arg)
{
    (void)x;
    (void)max;
    (void)deadline_ms;
    (void)done;
    (void)on_close;
    (void)arg;
}

const char *sk_stream_query(const struct sk_stream *x)
{
    (void)x;
    return "";
}

void sk_init_reply_json(struct sk_stream *x, int status, json_t *json)
{
    (void)x;
    (void)status;
    json_decref(json);
}

void sk_init_reply_error(struct sk_stream *x, int status, const char *code, const char *fmt, ...)
{
    (void)x;
    (void)status;
    (void)code;
    (void)fmt;
}

void sk_init_reply_empty(struct sk_stream *x)
{
    (void)x;
}

pid_t sk_init_spawn(const struct sk_init_spawn *spawn)
{
    (void)spawn;
    return -1;
}

char **sk_init_env_with(char *const *base, json_t *extra)
{
    (void)base;
    (void)extra;
    return NULL;
}

void sk_init_env_free(char **env)
{
    (void)env;
}

const char *sk_init_shell(void)
{
    return "/bin/sh";
}

void sk_init_session_ended(struct sk_init_session *session, int state_fd)
{
    (void)session;
    (void)state_fd;
}

char *sk_init_path(const char *text, const char **why)
{
    (void)text;
    (void)why;
    return NULL;
}

json_t *sk_init_string(const char *text)
{
    return json_string(text);
}

void sk_init_time_text(const struct timespec *t, char *out, size_t size)
{
    (void)t;
    snprintf(out, size, "now");
}

void sk_init_hex_id(char out[33])
{
    memset(out, 'a', 32);
    out[32] = '\0';
}

size_t sk_init_utf8_clean(const char *in, size_t len, char *out)
{
    memcpy(out, in, len);
    return len;
}

/* ---- what was sent ---- */

static void begin(struct command *c, int fail)
{
    memset(&answer, 0, sizeof(answer));
    memset(c, 0, sizeof(*c));
    c->x = stream;
    fail_at = fail;
    refused = false;
}

/* Every event is whole JSON with a type; returns how many there are. */
static int whole_events(void)
{
    int count = 0;
    for (char *p = answer.text; *p != '\0'; count++) {
        char *end = strstr(p, "\n\n");
        ck_assert_ptr_nonnull(end);
        json_t *event = json_loadb(p, (size_t)(end - p), 0, NULL);
        ck_assert_ptr_nonnull(event);
        ck_assert_ptr_nonnull(json_object_get(event, "type"));
        ck_assert(json_is_integer(json_object_get(event, "timestamp")));
        json_decref(event);
        p = end + 2;
    }
    return count;
}

static const char *text_of(int n)
{
    static char text[4096];
    char *p = answer.text;
    for (; n > 0; n--)
        p = strstr(p, "\n\n") + 2;
    json_t *event = json_loadb(p, (size_t)(strstr(p, "\n\n") - p), 0, NULL);
    const char *value = json_string_value(json_object_get(event, "text"));
    snprintf(text, sizeof(text), "%s", value != NULL ? value : "");
    json_decref(event);
    return text;
}

START_TEST(an_event_is_whole_or_cuts_the_stream)
{
    char text[3000];
    struct command c;
    int fail = 0, cut = 0;

    for (size_t i = 0; i < sizeof(text) - 1; i++)
        text[i] = (char)(i % 96 + 32); /* quotes and backslashes among them */
    text[sizeof(text) - 1] = '\0';
    do {
        begin(&c, ++fail);
        sk_event_send(&c, "stdout", text, strlen(text), NULL);
        ck_assert_int_eq(answer.aborted, refused);
        ck_assert_int_eq(whole_events(), refused ? 0 : 1);
        cut += refused;
        if (!refused)
            ck_assert_str_eq(text_of(0), text);
        fail_at = 0;
        sk_event_send(&c, "stdout", "later", 5, NULL); /* nothing may follow a hole */
        ck_assert_int_eq(whole_events(), refused ? 0 : 2);
    } while (refused);
    ck_assert_int_gt(cut, 3);
}
END_TEST

START_TEST(a_terminal_event_is_whole_or_cuts_the_stream)
{
    static const struct {
        int exit_code, signal;
        const char *error;
    } ends[] = {{0, 0, ""}, {7, 0, ""}, {-1, SIGKILL, ""}, {-1, 0, "No such file or directory"}};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct command c;
        int fail = 0;
        do {
            begin(&c, ++fail);
            c.exit_code = ends[i].exit_code;
            c.signal = ends[i].signal;
            snprintf(c.error, sizeof(c.error), "%s", ends[i].error);
            send_terminal(&c);
            ck_assert_ptr_null(c.x);
            ck_assert_int_eq(answer.aborted, refused);
            ck_assert_int_eq(answer.ended, !refused);
            ck_assert_int_eq(whole_events(), refused ? 0 : 1);
            if (!refused && (ends[i].exit_code != 0))
                ck_assert_ptr_nonnull(strstr(answer.text, "\"error\":{\"ename\":\"CommandExecError\",\"evalue\":\""));
        } while (refused);
        ck_assert_int_gt(fail, 1);
    }
}
END_TEST

START_TEST(output_that_cannot_be_kept_cuts_the_stream)
{
    static const char output[] = "first line\nsecond \"line\"\nthird";
    struct command c;
    int fail = 0;

    do {
        struct tap t = {.command = &c, .type = "stdout"};
        begin(&c, ++fail);
        c.kind = KIND_FOREGROUND;
        for (size_t i = 0; i < sizeof(output) - 1; i += 5)
            take_output(&t, output + i, sizeof(output) - 1 - i < 5 ? sizeof(output) - 1 - i : 5);
        if (t.len > 0)
            send_line(&t);
        ck_assert_int_eq(answer.aborted, refused);
        int count = whole_events();
        ck_assert_int_le(count, refused ? 2 : 3);
        if (count > 0)
            ck_assert_str_eq(text_of(0), "first line");
        if (count > 1)
            ck_assert_str_eq(text_of(1), "second \"line\"");
        if (!refused)
            ck_assert_str_eq(text_of(2), "third");
        free(t.line);
    } while (refused);
    ck_assert_int_gt(fail, 3);
}
END_TEST

SK_CHECK_MAIN("init_output", an_event_is_whole_or_cuts_the_stream, a_terminal_event_is_whole_or_cuts_the_stream,
              output_that_cannot_be_kept_cuts_the_stream)
