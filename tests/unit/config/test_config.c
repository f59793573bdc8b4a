/* SPDX-License-Identifier: Apache-2.0
 * Loading: every type, every bad value at once, files, env-files, masking, reload. */
#include "tests/unit/check_main.h"
#include "tests/unit/config/sample.h"

static char *problems;
static size_t problems_len;

static int load(void)
{
    FILE *out;
    int bad;

    free(problems);
    out = open_memstream(&problems, &problems_len);
    bad = sk_config_load(&sample_config, out);
    fclose(out);
    return bad;
}

static int lines_of(const char *text)
{
    int count = 0;

    for (; *text != '\0'; text++)
        count += *text == '\n';
    return count;
}

START_TEST(test_defaults)
{
    sample_clear();
    ck_assert_int_eq(load(), 0);
    ck_assert_str_eq(problems, "");
    ck_assert_str_eq(sample.name, "somebody");
    ck_assert_str_eq(sample.token, "");
    ck_assert_int_eq(sample.workers, 64);
    ck_assert_double_eq(sample.ratio, 0.5);
    ck_assert(sample.enabled);
    ck_assert_int_eq(sample.mode, 1);
    ck_assert_str_eq(sample.listen, "127.0.0.1:0");
    ck_assert_str_eq(sample.nats, "nats://127.0.0.1:4222");
    ck_assert_int_eq(sample.log_level, 1);
    for (size_t i = 0; i < SAMPLE_COUNT; i++)
        ck_assert_str_eq(sample_config.sources[i], "default");
    sk_config_fini(&sample_config);
    ck_assert_ptr_null(sample.name);
}
END_TEST

START_TEST(test_token)
{
    static const char *const good[] = {
        "sandbox", "a", "Z9", "team-a_b", "0", "123456789012345678901234567890123456789012345678901234567890123"};
    static const char *const bad[] = {"",
                                      "a.b",
                                      "a*",
                                      "*",
                                      ">",
                                      "a>",
                                      "a b",
                                      " a",
                                      "a\t",
                                      "a\n",
                                      "$SYS",
                                      "_INBOX",
                                      "-a",
                                      "a\x7f",
                                      "a/b",
                                      "\xc3\xa4",
                                      "a\xff",
                                      "a:b",
                                      "1234567890123456789012345678901234567890123456789012345678901234"};
    const struct sk_config_key key[] = {SK_CONFIG_STRING(struct sample, name, "SKT_NAME", "sandbox",
                                                         SK_CONFIG_REQUIRED | SK_CONFIG_TOKEN, "First token.")};
    struct sk_config config = {.program = "sk-sample", .keys = key, .count = 1, .values = &sample};

    sample_clear();
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        setenv("SKT_NAME", good[i], 1);
        ck_assert_msg(sk_config_load(&config, stderr) == 0, "\"%s\"", good[i]);
        ck_assert_str_eq(sample.name, good[i]);
        sk_config_fini(&config);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char line[512] = "";
        FILE *out = fmemopen(line, sizeof(line), "w");

        setenv("SKT_NAME", bad[i], 1);
        ck_assert_msg(sk_config_load(&config, out) == 1, "\"%s\"", bad[i]);
        fclose(out);
        ck_assert_ptr_nonnull(strstr(line, "SKT_NAME"));
        ck_assert_ptr_nonnull(strstr(line, "1..63 letters, digits, '-' and '_'"));
        sk_config_fini(&config);
    }
    sample_clear();
}
END_TEST

START_TEST(test_environment)
{
    sample_clear();
    setenv("SKT_NAME", "", 1);    /* a text may be nothing */
    setenv("SKT_WORKERS", "", 1); /* a number may not: as if unset */
    setenv("SKT_MODE", "", 1);
    setenv("SKT_RATIO", "1e-1", 1);
    setenv("SKT_ENABLED", "Off", 1);
    setenv("SKT_LISTEN", "[::1]:80", 1);
    setenv("SKT_NATS_URL", "", 1);
    setenv("SKT_MONGO_URI", "mongodb+srv://u:p@host/db?x=1", 1);
    ck_assert_msg(load() == 0, "%s", problems);
    ck_assert_str_eq(sample.name, "");
    ck_assert_int_eq(sample.workers, 64);
    ck_assert_double_eq(sample.ratio, 0.1);
    ck_assert(!sample.enabled);
    ck_assert_str_eq(sample.listen, "[::1]:80");
    ck_assert_str_eq(sample.nats, "");
    ck_assert_str_eq(sample.mongo, "mongodb+srv://u:p@host/db?x=1");
    ck_assert_str_eq(sample_config.sources[0], "environment");
    ck_assert_str_eq(sample_config.sources[3], "default");
    sk_config_fini(&sample_config);
}
END_TEST

START_TEST(test_all_bad_values_at_once)
{
    sample_clear();
    setenv("SKT_NAME", "bad \xff text", 1);
    setenv("SKT_MUST", "", 1);
    setenv("SKT_WORKERS", "many", 1);
    setenv("SKT_RATIO", "1.5", 1);
    setenv("SKT_ENABLED", "maybe", 1);
    setenv("SKT_MODE", "Safe", 1);
    setenv("SKT_LISTEN", "nowhere", 1);
    setenv("SKT_NATS_URL", "http://user:hunter2@host", 1);
    setenv("SKT_MONGO_URI", "root:hunter2@host", 1);
    setenv("SANDKEEP_LOG_LEVEL", "loud", 1);
    ck_assert_int_eq(load(), 10);
    ck_assert_int_eq(lines_of(problems), 10);
    for (size_t i = 0; i < SAMPLE_COUNT; i++) {
        if (strcmp(sample_names[i], "SKT_TOKEN") != 0)
            ck_assert_msg(strstr(problems, sample_names[i]) != NULL, "%s", sample_names[i]);
    }
    ck_assert_ptr_nonnull(
        strstr(problems, "SKT_WORKERS=many is not valid (environment): must be a whole number 1..512 count"));
    ck_assert_ptr_nonnull(strstr(problems, "one of fast, safe"));
    ck_assert_ptr_nonnull(strstr(problems, "SKT_MUST is required"));
    ck_assert_ptr_null(strstr(problems, "hunter2"));
    ck_assert_ptr_null(sample.name);
    ck_assert_ptr_null(sample_config.sources);
}
END_TEST

START_TEST(test_value_forms)
{
    static const struct {
        const char *name, *value;
        bool good;
    } rows[] = {
        {"SKT_WORKERS", "1", true},
        {"SKT_WORKERS", "512", true},
        {"SKT_WORKERS", "0", false},
        {"SKT_WORKERS", "513", false},
        {"SKT_WORKERS", " 5", false},
        {"SKT_WORKERS", "5 ", false},
        {"SKT_WORKERS", "+5", false},
        {"SKT_WORKERS", "0x10", false},
        {"SKT_WORKERS", "5.0", false},
        {"SKT_WORKERS", "-1", false},
        {"SKT_WORKERS", "-", false},
        {"SKT_WORKERS", "99999999999999999999", false},
        {"SKT_RATIO", "0", true},
        {"SKT_RATIO", "nan", false},
        {"SKT_RATIO", "inf", false},
        {"SKT_RATIO", "0x1", false},
        {"SKT_RATIO", "-0.1", false},
        {"SKT_RATIO", "1,5", false},
        {"SKT_ENABLED", "YES", true},
        {"SKT_ENABLED", "0", true},
        {"SKT_ENABLED", "2", false},
        {"SKT_LISTEN", ":65535", true},
        {"SKT_LISTEN", ":65536", false},
        {"SKT_LISTEN", "host", false},
        {"SKT_LISTEN", "host:", false},
        {"SKT_LISTEN", "a b:1", false},
        {"SKT_LISTEN", "h:-1", false},
        {"SKT_LISTEN", "::1:80", false},
        {"SKT_LISTEN", "[::1]:80", true},
        {"SKT_LISTEN", "0.0.0.0:8080", true},
        {"SKT_LISTEN", "[zz]:1", false},
        {"SKT_LISTEN", "h:99999999999", false},
        {"SKT_NATS_URL", "TLS://h", true},
        {"SKT_NATS_URL", "nats://", false},
        {"SKT_NATS_URL", "nats:/h", false},
        {"SKT_NATS_URL", "xnats://h", false},
        {"SKT_NATS_URL", "nats://h h", false},
        {"SKT_NATS_URL", "nats://h\n", false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        sample_clear();
        setenv(rows[i].name, rows[i].value, 1);
        ck_assert_msg((load() == 0) == rows[i].good, "%s=%s: %s", rows[i].name, rows[i].value, problems);
        if (rows[i].good)
            sk_config_fini(&sample_config);
    }
}
END_TEST

START_TEST(test_name_file)
{
    char *path = sample_file("s3cret\n", 7), *crlf = sample_file("x\r\n", 3), *two = sample_file("a\n\n", 3);

    sample_clear();
    setenv("SKT_TOKEN_FILE", path, 1);
    setenv("SKT_NAME_FILE", crlf, 1);
    setenv("SKT_MUST_FILE", two, 1);
    setenv("SKT_WORKERS_FILE", "", 1); /* empty = not set */
    ck_assert_msg(load() == 0, "%s", problems);
    ck_assert_str_eq(sample.token, "s3cret");
    ck_assert_str_eq(sample.name, "x");
    ck_assert_str_eq(sample.must, "a\n"); /* one newline is cut, not all */
    ck_assert_str_eq(sample_config.sources[1], "file");
    sk_config_fini(&sample_config);

    setenv("SKT_TOKEN", "direct", 1);
    ck_assert_int_eq(load(), 1);
    ck_assert_ptr_nonnull(strstr(problems, "SKT_TOKEN and SKT_TOKEN_FILE are both set"));
    ck_assert_ptr_null(strstr(problems, "direct"));

    sample_clear();
    setenv("SKT_TOKEN_FILE", "/no/such/file", 1);
    setenv("SKT_NAME_FILE", "/tmp", 1);
    ck_assert_int_eq(load(), 2);
    ck_assert_ptr_nonnull(strstr(problems, "SKT_TOKEN_FILE: cannot open /no/such/file"));
    ck_assert_ptr_nonnull(strstr(problems, "SKT_NAME_FILE: "));
    sample_drop(path);
    sample_drop(crlf);
    sample_drop(two);
}
END_TEST

START_TEST(test_file_limits)
{
    char *nul = sample_file("a\0b", 3), *large_text = malloc(70000), *large;

    memset(large_text, 'x', 70000);
    large = sample_file(large_text, 70000);
    sample_clear();
    setenv("SKT_TOKEN_FILE", nul, 1);
    setenv("SKT_NAME_FILE", large, 1);
    ck_assert_int_eq(load(), 2);
    ck_assert_ptr_nonnull(strstr(problems, "NUL"));
    ck_assert_ptr_nonnull(strstr(problems, "larger than"));
    free(large_text);
    sample_drop(nul);
    sample_drop(large);
}
END_TEST

START_TEST(test_env_file)
{
    static const char content[] = "# comment\n"
                                  "\n"
                                  "SKT_NAME=from file  \n"
                                  "export SKT_WORKERS = 7\n"
                                  "SKT_MUST=environment wins\n"
                                  "SKT_TOKEN=\"a \\\"quoted\\\" # \\\\ line\\nbreak\" # note\n"
                                  "  SKT_MONGO_URI='mongodb://h/?a=b#c'\r\n"
                                  "SKT_MODE=fast";
    char *path = sample_file(content, sizeof(content) - 1);
    struct sk_error err = {0};

    sample_clear();
    setenv("SKT_MUST", "mine", 1);
    ck_assert_msg(sk_config_env_file(path, &err) == -1, "blanks around '=' belong to no name");
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    ck_assert_ptr_nonnull(strstr(err.message, path));
    ck_assert_ptr_nonnull(strstr(err.message, "line 4"));
    ck_assert_ptr_null(getenv("SKT_NAME")); /* a bad file changes nothing */
    sample_drop(path);
}
END_TEST

START_TEST(test_env_file_good)
{
    static const char content[] = "# comment\n"
                                  "\n"
                                  "SKT_NAME=from file  \n"
                                  "export SKT_WORKERS=7\n"
                                  "SKT_MUST=environment wins\n"
                                  "SKT_TOKEN=\"a \\\"quoted\\\" # \\\\ line\\nbreak\" # note\n"
                                  "  SKT_MONGO_URI='mongodb://h/?a=b#c'\r\n"
                                  "SKT_RATIO=\n"
                                  "SKT_MODE=fast";
    char *path = sample_file(content, sizeof(content) - 1);
    struct sk_error err = {0};

    sample_clear();
    setenv("SKT_MUST", "mine", 1);
    ck_assert_msg(sk_config_env_file(path, &err) == 0, "%s", err.message);
    ck_assert_msg(load() == 0, "%s", problems);
    ck_assert_str_eq(sample.name, "from file");
    ck_assert_int_eq(sample.workers, 7);
    ck_assert_str_eq(sample.must, "mine");
    ck_assert_str_eq(sample.token, "a \"quoted\" # \\ line\nbreak");
    ck_assert_str_eq(sample.mongo, "mongodb://h/?a=b#c");
    ck_assert_double_eq(sample.ratio, 0.5);
    ck_assert_int_eq(sample.mode, 0);
    ck_assert_str_eq(sample_config.sources[0], "env-file");
    ck_assert_str_eq(sample_config.sources[2], "environment");
    ck_assert_str_eq(getenv("SKT_NAME"), "from file");
    sk_config_fini(&sample_config);
    sample_drop(path);
}
END_TEST

START_TEST(test_env_file_bad_lines)
{
    static const char *const rows[] = {"no equals",    "=value",      "1X=a",         "A-B=c",     "A B=c",
                                       "A=\"unclosed", "A='unclosed", "A=\"x\" tail", "A='x'tail", "A=\"esc\\"};
    struct sk_error err;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *path = sample_file(rows[i], strlen(rows[i]));
        ck_assert_msg(sk_config_env_file(path, &err) == -1, "%s", rows[i]);
        ck_assert_ptr_nonnull(strstr(err.message, "line 1"));
        sample_drop(path);
    }
    ck_assert_int_eq(sk_config_env_file("/no/such/file", &err), -1);
}
END_TEST

static char *print(enum sk_config_format format)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    sk_config_print(&sample_config, format, out);
    fclose(out);
    return text;
}

START_TEST(test_secrets_are_masked_everywhere)
{
    static const char *const urls[] = {"mongodb://root:hunter2@host/db", "mongodb://root:hun/ter2@host/db",
                                       "mongodb://root:hun@ter2@host/db", "mongodb://hunter2@h1,h2/db",
                                       "mongodb://root:hun?ter2#x@host/db"};

    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        sample_clear();
        setenv("SKT_TOKEN", "hunter2", 1);
        setenv("SKT_MONGO_URI", urls[i], 1);
        setenv("SKT_NAME", "nats://root:hunter2@h1,nats://root:hunter2@h2", 1);
        ck_assert_msg(load() == 0, "%s", problems);
        for (int format = SK_CONFIG_TEXT; format <= SK_CONFIG_MARKDOWN; format++) {
            char *text = print(format);
            ck_assert_msg(strstr(text, "hunter2") == NULL && strstr(text, "ter2") == NULL, "%s", text);
            if (format == SK_CONFIG_TEXT) {
                ck_assert_ptr_nonnull(strstr(text, "SKT_TOKEN=********\n"));
                ck_assert_ptr_nonnull(strstr(text, "SKT_MONGO_URI=mongodb://********@h"));
            }
            free(text);
        }
        sk_config_fini(&sample_config);
    }
    /* Bad values of secrets are masked in problems too. */
    sample_clear();
    setenv("SKT_TOKEN", "hunter2\xff", 1);
    ck_assert_int_eq(load(), 1);
    ck_assert_ptr_null(strstr(problems, "hunter2"));
}
END_TEST

START_TEST(test_json_is_complete)
{
    char *text;

    sample_clear();
    setenv("SKT_NAME", "a \"quoted\" name", 1);
    setenv("SKT_WORKERS", "12", 1);
    ck_assert_int_eq(load(), 0);
    text = print(SK_CONFIG_JSON);
    ck_assert_ptr_nonnull(strstr(text,
                                 "{\"name\":\"SKT_WORKERS\",\"type\":\"int\",\"value\":12,\"source\":\"environment\","
                                 "\"default\":\"64\",\"min\":1,\"max\":512,"));
    ck_assert_ptr_nonnull(strstr(text, "\"value\":\"a \\\"quoted\\\" name\""));
    ck_assert_ptr_nonnull(strstr(text, "{\"name\":\"SKT_ENABLED\",\"type\":\"bool\",\"value\":true,"));
    free(text);
    sk_config_fini(&sample_config);
}
END_TEST

START_TEST(test_markdown_needs_no_environment)
{
    char *text;

    sample_clear();
    setenv("SKT_NAME", "mine", 1);
    text = print(SK_CONFIG_MARKDOWN);
    ck_assert_ptr_nonnull(strstr(text, "| `SKT_NAME` | `somebody` | text | Name. |"));
    ck_assert_ptr_nonnull(strstr(text, "Token \\| bearer. Secret."));
    ck_assert_ptr_nonnull(strstr(text, "Re-read on SIGHUP."));
    ck_assert_ptr_null(strstr(text, "mine"));
    free(text);
}
END_TEST

START_TEST(test_reload)
{
    char *path = sample_file("SANDKEEP_LOG_LEVEL=debug\nSKT_WORKERS=5\n", 39);
    struct sk_error err = {0};
    FILE *file, *null = fopen("/dev/null", "w");

    sample_clear();
    ck_assert_msg(sk_config_env_file(path, &err) == 0, "%s", err.message);
    ck_assert_int_eq(load(), 0);
    ck_assert_int_eq(sample.log_level, 0);
    file = fopen(path, "w");
    fputs("SANDKEEP_LOG_LEVEL=error\nSKT_WORKERS=9\n", file);
    fclose(file);
    ck_assert_int_eq(sk_config_reload(&sample_config, null), 0);
    ck_assert_int_eq(sample.log_level, 3);
    ck_assert_int_eq(sample.workers, 5); /* not flagged */
    file = fopen(path, "w");
    fputs("SANDKEEP_LOG_LEVEL=shout\n", file);
    fclose(file);
    ck_assert_int_eq(sk_config_reload(&sample_config, null), 1);
    ck_assert_int_eq(sample.log_level, 3); /* a bad value leaves it as it was */
    fclose(null);
    sk_config_fini(&sample_config);
    sample_drop(path);
}
END_TEST

SK_CHECK_MAIN("config", test_defaults, test_token, test_environment, test_all_bad_values_at_once, test_value_forms,
              test_name_file, test_file_limits, test_env_file, test_env_file_good, test_env_file_bad_lines,
              test_secrets_are_masked_everywhere, test_json_is_complete, test_markdown_needs_no_environment,
              test_reload)
