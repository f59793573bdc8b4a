/* SPDX-License-Identifier: Apache-2.0
 *
 * URL helpers: what is accepted as a base URL, what counts as the same origin, and that nothing from outside can change
 * the structure of a built URL. */
#include "common/http/url.h"
#include "tests/unit/check_main.h"

#include <stdlib.h>
#include <string.h>

struct parse_row {
    const char *text;
    bool good, tls;
    const char *host;
    int port;
    const char *path;
};

static const struct parse_row parse_rows[] = {
    {"http://127.0.0.1:8090", true, false, "127.0.0.1", 8090, ""},
    {"http://Example.COM/v1/", true, false, "example.com", 80, "/v1"},
    {"HTTPS://a-b.c.d///", true, true, "a-b.c.d", 443, ""},
    {"https://[::1]:444/x/y", true, true, "[::1]", 444, "/x/y"},
    {"http://[fe80::1]", true, false, "[fe80::1]", 80, ""},
    {NULL, false, false, "", 0, ""},
    {"", false, false, "", 0, ""},
    {"127.0.0.1:80", false, false, "", 0, ""},
    {"ftp://x", false, false, "", 0, ""},
    {"file:///etc/passwd", false, false, "", 0, ""},
    {"http://", false, false, "", 0, ""},
    {"http:///x", false, false, "", 0, ""},
    {"http://:80", false, false, "", 0, ""},
    {"http://user:pw@host", false, false, "", 0, ""},
    {"http://host@evil", false, false, "", 0, ""},
    {"http://host:", false, false, "", 0, ""},
    {"http://host:0", false, false, "", 0, ""},
    {"http://host:65536", false, false, "", 0, ""},
    {"http://host:80x", false, false, "", 0, ""},
    {"http://host:-1", false, false, "", 0, ""},
    {"http://[::1", false, false, "", 0, ""},
    {"http://[]", false, false, "", 0, ""},
    {"http://[::1]x", false, false, "", 0, ""},
    {"http://[::g]", false, false, "", 0, ""},
    {"http://host?q", false, false, "", 0, ""},
    {"http://host/#f", false, false, "", 0, ""},
    {"http://host/a b", false, false, "", 0, ""},
    {"http://host\\evil", false, false, "", 0, ""},
    {"http://host/\r\nX: y", false, false, "", 0, ""},
    {"http://h\xc3\xb6st", false, false, "", 0, ""},
};

START_TEST(parse)
{
    for (size_t i = 0; i < sizeof(parse_rows) / sizeof(parse_rows[0]); i++) {
        const struct parse_row *row = &parse_rows[i];
        struct sk_url url;

        ck_assert_msg(sk_url_parse(row->text, &url) == row->good, "%s", row->text == NULL ? "NULL" : row->text);
        if (!row->good)
            continue;
        ck_assert_int_eq(url.tls, row->tls);
        ck_assert_str_eq(url.host, row->host);
        ck_assert_int_eq(url.port, row->port);
        ck_assert_str_eq(url.path, row->path);
    }
}
END_TEST

START_TEST(parse_bounds)
{
    char text[SK_URL_PATH_SIZE + SK_URL_HOST_SIZE + 64] = "http://";
    struct sk_url url;

    memset(text + 7, 'h', SK_URL_HOST_SIZE - 1);
    ck_assert(sk_url_parse(text, &url));
    text[7 + SK_URL_HOST_SIZE - 1] = 'h';
    ck_assert(!sk_url_parse(text, &url));

    memset(text, 0, sizeof(text));
    strcpy(text, "http://h/");
    memset(text + 9, 'p', SK_URL_PATH_SIZE - 2);
    ck_assert(sk_url_parse(text, &url));
    text[9 + SK_URL_PATH_SIZE - 2] = 'p';
    ck_assert(!sk_url_parse(text, &url));
}
END_TEST

START_TEST(same_origin)
{
    struct sk_url a, b;

    ck_assert(sk_url_parse("http://Host:80/x", &a) && sk_url_parse("http://host/y", &b));
    ck_assert(sk_url_same_origin(&a, &b));
    ck_assert(sk_url_parse("http://host:81", &b) && !sk_url_same_origin(&a, &b));
    ck_assert(sk_url_parse("https://host:80", &b) && !sk_url_same_origin(&a, &b));
    ck_assert(sk_url_parse("http://hos", &b) && !sk_url_same_origin(&a, &b));
    ck_assert(sk_url_parse("http://host.evil", &b) && !sk_url_same_origin(&a, &b));
}
END_TEST

START_TEST(build)
{
    struct sk_url_builder b;
    char *url;

    sk_url_begin(&b, "http://h:1/v1");
    sk_url_segment(&b, "sandboxes");
    sk_url_segment(&b, "a/b?c#d&e=%\r\n \xc3\xa9");
    sk_url_query(&b, "path", "/x y&z=+");
    sk_url_query(&b, "n", "");
    url = sk_url_take(&b);
    ck_assert_str_eq(url, "http://h:1/v1/sandboxes/a%2Fb%3Fc%23d%26e%3D%25%0D%0A%20%C3%A9?path=%2Fx%20y%26z%3D%2B&n=");
    free(url);
    /* A builder can be used again. */
    sk_url_begin(&b, "http://h");
    url = sk_url_take(&b);
    ck_assert_str_eq(url, "http://h");
    free(url);
}
END_TEST

START_TEST(build_refuses)
{
    static const char *const segments[] = {"", ".", ".."};
    struct sk_url_builder b;
    char *large = calloc(1, SK_URL_MAX + 1);

    for (size_t i = 0; i < 3; i++) {
        sk_url_begin(&b, "http://h");
        sk_url_segment(&b, segments[i]);
        sk_url_segment(&b, "fine");
        ck_assert_ptr_null(sk_url_take(&b));
    }
    memset(large, ' ', SK_URL_MAX / 3); /* three bytes each: just too long with the base */
    sk_url_begin(&b, "http://h");
    sk_url_query(&b, "q", large);
    ck_assert_ptr_null(sk_url_take(&b));
    large[SK_URL_MAX / 3 - 16] = '\0';
    sk_url_begin(&b, "http://h");
    sk_url_query(&b, "q", large);
    char *url = sk_url_take(&b);
    ck_assert_ptr_nonnull(url);
    free(url);
    free(large);
}
END_TEST

START_TEST(encode)
{
    char out[16];

    ck_assert(sk_url_encode(out, sizeof(out), "aZ09-._~"));
    ck_assert_str_eq(out, "aZ09-._~");
    ck_assert(sk_url_encode(out, sizeof(out), "sandkeep.dev/")); /* 15 bytes and the NUL */
    ck_assert(!sk_url_encode(out, sizeof(out), "sandkeep.dev/e"));
    ck_assert_str_eq(out, "");
    ck_assert(!sk_url_encode(out, 3, "/"));
    ck_assert(sk_url_encode(out, 4, "/"));
    ck_assert_str_eq(out, "%2F");
    ck_assert(!sk_url_encode(out, 0, ""));
}
END_TEST

SK_CHECK_MAIN("url", parse, parse_bounds, same_origin, build, build_refuses, encode)
