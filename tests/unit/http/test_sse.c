/* SPDX-License-Identifier: Apache-2.0
 *
 * The event stream parser: both framings, every line end, every split, the event bound, and linear work. */
#include "common/base/buf.h"
#include "common/http/sse.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Events are written down as "B|name|id|data\n" lines, so that a whole stream compares as one text. */
struct record {
    struct sk_buf text;
    int events, stop_after;
};

static int note(void *arg, const struct sk_sse_event *event)
{
    struct record *record = arg;

    ck_assert_uint_eq(strlen(event->data) <= event->len, 1);
    ck_assert_int_eq(event->data[event->len], '\0');
    sk_buf_printf(&record->text, "%s%s%s|%s|%s|%s\n", event->bare ? "B" : "D", event->unterminated ? "u" : "",
                  event->oversize ? "x" : "", event->name, event->id, event->data);
    record->events++;
    return record->stop_after != 0 && record->events == record->stop_after;
}

/* Feeds in pieces of `step` bytes. */
static int parse(struct record *record, const char *text, size_t len, size_t step, size_t max, enum sk_sse_oversize how)
{
    struct sk_error err = {0};
    struct sk_sse sse;
    int rc = 0;

    sk_buf_init(&record->text, 64 * 1024 * 1024);
    record->events = 0;
    sk_sse_init(&sse, max, how, note, record);
    for (size_t at = 0; at < len && rc == 0; at += step)
        rc = sk_sse_feed(&sse, text + at, len - at < step ? len - at : step, &err);
    if (rc == 0)
        rc = sk_sse_finish(&sse, &err);
    if (rc < 0) {
        ck_assert_int_eq(err.code, SK_ERR_PROVIDER_ERROR);
        ck_assert(!err.retryable);
        ck_assert_int_eq(sk_sse_feed(&sse, "x", 1, &err), -1);
    }
    sk_sse_fini(&sse);
    return rc;
}

static const struct {
    const char *in, *out;
} streams[] = {
    /* execd */
    {"{\"a\":1}\n\n{\"b\":2}\n\n", "B|||{\"a\":1}\nB|||{\"b\":2}\n"},
    {"{\"a\":1}\n{\"b\":2}\r{\"c\":3}\r\n", "B|||{\"a\":1}\nB|||{\"b\":2}\nB|||{\"c\":3}\n"},
    {"{\"cut\":", "Bu|||{\"cut\":\n"},
    {"{\"last\":1}", "Bu|||{\"last\":1}\n"},
    {"[1]\n", "B|||[1]\n"},
    /* WHATWG */
    {"data: one\n\n", "D|||one\n"},
    {"data:one\ndata:two\ndata\n\n", "D|||one\ntwo\n\n"},
    {"data:  two spaces\n\n", "D||| two spaces\n"},
    {": comment\n:\nevent: tick\nid: 7\nretry: 10\ndata: x\n\ndata: y\n\n", "D|tick|7|x\nD||7|y\n"},
    {"event: lonely\n\ndata: x\n\n", "D|||x\n"},
    {"unknown: 1\nnothing\ndata: x\n\n", "D|||x\n"},
    {"data: a\r\n\r\ndata: b\r\rdata: c\n\n", "D|||a\nD|||b\nD|||c\n"},
    {"data: cut", "Du|||cut\n"},
    {"data: cut\n", "Du|||cut\n"},
    {"\xef\xbb\xbf"
     "data: x\n\n",
     "D|||x\n"},
    {"\xef\xbb\xbf{}\n", "B|||{}\n"},
    {"data: {\"a\":1}\n\n", "D|||{\"a\":1}\n"},
    {"id: 1\nid\ndata: x\n\n", "D|||x\n"},
    {"", ""},
    {"\n\r\n\r\n\n", ""},
    {":", ""},
    /* both at once: a bare line never disturbs the data around it */
    {"data: a\n{\"code\":1}\ndata: b\n\n", "B|||{\"code\":1}\nD|||a\nb\n"},
};

START_TEST(test_framings)
{
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        size_t len = strlen(streams[i].in);
        for (size_t step = 1; step <= len + 1; step++) {
            struct record record = {0};
            ck_assert_int_eq(parse(&record, streams[i].in, len, step, 0, SK_SSE_FAIL), 0);
            ck_assert_msg(strcmp(sk_buf_data(&record.text), streams[i].out) == 0, "row %zu step %zu: %s", i, step,
                          sk_buf_data(&record.text));
            sk_buf_fini(&record.text);
        }
    }
}
END_TEST

START_TEST(test_retry_and_long_names)
{
    char text[2048] = "id: ";
    struct record record = {0};
    struct sk_error err;
    struct sk_sse sse;

    memset(text + 4, 'i', 1000);
    strcat(text, "\nretry: 1500\nretry: 1x\nretry: \ndata: x\n\n");
    sk_buf_init(&record.text, 1 << 20);
    sk_sse_init(&sse, 0, SK_SSE_FAIL, note, &record);
    ck_assert_int_eq(sk_sse_feed(&sse, text, strlen(text), &err), 0);
    ck_assert_int_eq(sse.retry_ms, 1500);
    ck_assert_uint_eq(strlen(sse.id), SK_SSE_NAME_MAX - 1);
    ck_assert_int_eq(record.events, 1);
    sk_sse_fini(&sse);
    sk_buf_fini(&record.text);
}
END_TEST

START_TEST(test_nul_bytes)
{
    /* NUL is data like any other byte; an id with NUL is ignored (WHATWG). */
    static const char text[] = "id: a\0b\ndata: x\0y\n\n{\"n\":\"\0\"}\n";
    struct record record = {0};

    ck_assert_int_eq(parse(&record, text, sizeof(text) - 1, 1, 0, SK_SSE_FAIL), 0);
    ck_assert_int_eq(record.events, 2);
    ck_assert_ptr_nonnull(strstr(sk_buf_data(&record.text), "D|||x"));
    sk_buf_fini(&record.text);
}
END_TEST

START_TEST(test_stop)
{
    struct record record = {.stop_after = 1};
    static const char text[] = "{\"a\":1}\n\n{\"b\":2}\n\n";

    ck_assert_int_eq(parse(&record, text, sizeof(text) - 1, 100, 0, SK_SSE_FAIL), 1);
    ck_assert_int_eq(record.events, 1);
    sk_buf_fini(&record.text);
}
END_TEST

/* Streams with an event above 32 bytes between good ones. */
static const struct {
    const char *in, *out;
} large[] = {
    {"{\"a\":1}\n{\"0123456789012345678901234567890123456789\":2}\n{\"b\":2}\n",
     "B|||{\"a\":1}\nBx|||\nB|||{\"b\":2}\n"},
    {"data: 0123456789012345678901234567890123456789\ndata: more\n\ndata: x\n\n", "Dx|||\nD|||x\n"},
    {"data: 0123456789\ndata: 0123456789\ndata: 01234567890\n\ndata: x\n\n", "Dx|||\nD|||x\n"},
    {": 0123456789012345678901234567890123456789\ndata: x\n\n", "D|||x\n"},
    {"event: 0123456789012345678901234567890123456789\ndata: x\n\n", "D|||x\n"},
    {"data: a\n{\"0123456789012345678901234567890123456789\":2}\ndata: b\n\n", "Bx|||\nD|||a\nb\n"},
    {"{\"0123456789012345678901234567890123456789", "Bx|||\n"},
    /* 31 and 32 bytes fit, however they come */
    {"{\"01234567890123456789012345\":1}\n{\"a23456789012345678901234567890123456789\":2}\n",
     "B|||{\"01234567890123456789012345\":1}\nBx|||\n"},
};

START_TEST(test_oversize_is_skipped)
{
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        size_t len = strlen(large[i].in);
        for (size_t step = 1; step <= len; step++) {
            struct record record = {0};
            ck_assert_int_eq(parse(&record, large[i].in, len, step, 32, SK_SSE_SKIP), 0);
            ck_assert_msg(strcmp(sk_buf_data(&record.text), large[i].out) == 0, "row %zu step %zu: %s", i, step,
                          sk_buf_data(&record.text));
            sk_buf_fini(&record.text);
        }
    }
}
END_TEST

START_TEST(test_oversize_fails)
{
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        struct record record = {0};
        ck_assert_int_eq(parse(&record, large[i].in, strlen(large[i].in), 7, 32, SK_SSE_FAIL), -1);
        sk_buf_fini(&record.text);
    }
}
END_TEST

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int count(void *arg, const struct sk_sse_event *event)
{
    (void)event;
    ++*(int *)arg;
    return 0;
}

/* CPU time for `total` bytes made of `unit`, fed in pieces of `step`. */
static double cost(const char *unit, size_t total, size_t step)
{
    size_t unit_len = strlen(unit), len = 0;
    char *text = malloc(total + unit_len);
    struct sk_error err;
    struct sk_sse sse;
    int events = 0;
    double start;

    for (; len < total; len += unit_len)
        memcpy(text + len, unit, unit_len);
    sk_sse_init(&sse, 64 * 1024 * 1024, SK_SSE_FAIL, count, &events);
    start = seconds();
    for (size_t at = 0; at < len; at += step)
        ck_assert_int_eq(sk_sse_feed(&sse, text + at, len - at < step ? len - at : step, &err), 0);
    start = seconds() - start;
    sk_sse_fini(&sse);
    free(text);
    return start;
}

START_TEST(test_linear)
{
    /* Ten times the input may cost far less than a hundred times; quadratic parsing would cost a hundred. */
    static const char *const units[] = {"data: x\n", "data: x\r", "\n", "{}\n", ":\n", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        double small = cost(units[i], 40 * 1000, 16);
        double big = cost(units[i], 400 * 1000, 16);
        ck_assert_msg(big < small * 40 + 0.05, "%s: %f s against %f s", units[i], big, small);
    }
}
END_TEST

SK_CHECK_MAIN("sse", test_framings, test_retry_and_long_names, test_nul_bytes, test_stop, test_oversize_is_skipped,
              test_oversize_fails, test_linear)
