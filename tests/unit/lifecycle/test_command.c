/* SPDX-License-Identifier: Apache-2.0
 * The command parser: what it accepts, its defaults, the meaning hash, and every bad input of contract/messaging.md §2
 * with the code it must get. */
#include "services/lifecycle/command.h"
#include "tests/unit/check_main.h"

#include <stdlib.h>
#include <string.h>

#define APP_ID "app-8a3cb7a4e074fa1d"
#define SOURCE                                                                                                         \
    "{\"sourceType\":\"app\",\"sourceId\":\"66a1f0c2b7d4e8a1c0d3e501\",\"userId\":\"66b2aa10c4f3d5e7a9b1c201\"}"
#define ENSURE  "sandbox.cmd.lifecycle.ensure." APP_ID
#define STOP    "sandbox.cmd.lifecycle.stop." APP_ID
#define RECOVER "sandbox.cmd.lifecycle.recover." APP_ID

static int parse_bytes(const char *subject, const char *body, size_t len, struct lc_command *out, struct sk_error *err)
{
    struct sk_delivery delivery = {.body_len = len};
    int rc;

    ck_assert(sk_copy(delivery.subject, sizeof(delivery.subject), subject));
    /* An exact allocation, so that a sanitizer sees a read past the end. */
    delivery.body = malloc(len + 1);
    memcpy(delivery.body, body, len);
    delivery.body[len] = '\0';
    memset(err, 0, sizeof(*err));
    rc = lc_command_parse(&delivery, "sandbox", 10000, out, err);
    free(delivery.body);
    return rc;
}

static int parse(const char *subject, const char *body, struct lc_command *out, struct sk_error *err)
{
    return parse_bytes(subject, body, strlen(body), out, err);
}

static const struct bad_row {
    const char *what, *subject, *body;
    enum sk_code code;
} bad_rows[] = {
    {"empty body", ENSURE, "", SK_ERR_INVALID_REQUEST},
    {"not JSON", ENSURE, "ensure please", SK_ERR_INVALID_REQUEST},
    {"cut JSON", ENSURE, "{\"id\":\"a\"", SK_ERR_INVALID_REQUEST},
    {"something after the document", ENSURE, "{\"id\":\"a\"} x", SK_ERR_INVALID_REQUEST},
    {"an array", ENSURE, "[\"id\"]", SK_ERR_INVALID_REQUEST},
    {"a string", ENSURE, "\"id\"", SK_ERR_INVALID_REQUEST},
    {"null", ENSURE, "null", SK_ERR_INVALID_REQUEST},
    {"duplicate keys", ENSURE, "{\"id\":\"a\",\"id\":\"b\"}", SK_ERR_INVALID_REQUEST},
    {"invalid UTF-8", ENSURE, "{\"id\":\"\xff\xfe\"}", SK_ERR_INVALID_REQUEST},
    {"overlong UTF-8", ENSURE, "{\"id\":\"\xc0\xaf\"}", SK_ERR_INVALID_REQUEST},
    {"lone surrogate", ENSURE, "{\"id\":\"\\ud800\"}", SK_ERR_INVALID_REQUEST},
    {"number out of range", ENSURE, "{\"id\":\"a\",\"deadlineMs\":99999999999999999999}", SK_ERR_INVALID_REQUEST},
    {"infinite number", ENSURE, "{\"id\":\"a\",\"deadlineMs\":1e999}", SK_ERR_INVALID_REQUEST},

    {"no id", ENSURE, "{}", SK_ERR_INVALID_REQUEST},
    {"empty id", ENSURE, "{\"id\":\"\"}", SK_ERR_INVALID_REQUEST},
    {"id of a number", ENSURE, "{\"id\":7}", SK_ERR_INVALID_REQUEST},
    {"id null", ENSURE, "{\"id\":null}", SK_ERR_INVALID_REQUEST},
    {"id of 65", ENSURE, "{\"id\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
     SK_ERR_INVALID_REQUEST},
    {"NUL in id", ENSURE, "{\"id\":\"a\\u0000b\"}", SK_ERR_INVALID_REQUEST},
    {"line feed in id", ENSURE, "{\"id\":\"a\\nb\"}", SK_ERR_INVALID_REQUEST},

    {"op of another type", ENSURE, "{\"id\":\"a\",\"op\":1}", SK_ERR_INVALID_REQUEST},
    {"op unknown", ENSURE, "{\"id\":\"a\",\"op\":\"explode\"}", SK_ERR_INVALID_REQUEST},
    {"op against subject", ENSURE, "{\"id\":\"a\",\"op\":\"delete\"}", SK_ERR_INVALID_REQUEST},
    {"op unknown in subject", "sandbox.cmd.lifecycle.explode." APP_ID, "{\"id\":\"a\"}", SK_ERR_INVALID_REQUEST},
    {"op empty in subject", "sandbox.cmd.lifecycle..x", "{\"id\":\"a\"}", SK_ERR_INVALID_REQUEST},
    {"very long op in subject", "sandbox.cmd.lifecycle.ensureensureensureensure." APP_ID, "{\"id\":\"a\"}",
     SK_ERR_INVALID_REQUEST},
    {"no sandbox in subject", "sandbox.cmd.lifecycle.ensure", "{\"id\":\"a\"}", SK_ERR_INVALID_REQUEST},
    {"foreign subject", "sandbox.cmd.archives.create." APP_ID, "{\"id\":\"a\"}", SK_ERR_INVALID_REQUEST},
    {"archive of a later release", "sandbox.cmd.archive.create." APP_ID, "{\"id\":\"a\"}", SK_ERR_OPERATION_BLOCKED},
    {"source of a later release", "sandbox.cmd.source.delete.app.66a1", "{\"id\":\"a\"}", SK_ERR_OPERATION_BLOCKED},
    {"migration of a later release", "sandbox.cmd.migration.run", "{\"id\":\"a\"}", SK_ERR_OPERATION_BLOCKED},
    {"foreign prefix", "other.cmd.lifecycle.ensure." APP_ID, "{\"id\":\"a\"}", SK_ERR_INVALID_REQUEST},
    {"bad sandbox id in subject", "sandbox.cmd.lifecycle.ensure.app-XYZ", "{\"id\":\"a\"}", SK_ERR_INVALID_REQUEST},
    {"token after sandbox id", ENSURE ".more", "{\"id\":\"a\"}", SK_ERR_INVALID_REQUEST},

    {"sandboxId against subject", ENSURE, "{\"id\":\"a\",\"sandboxId\":\"app-0000000000000000\"}",
     SK_ERR_IDENTITY_MISMATCH},
    {"sandboxId of another type", ENSURE, "{\"id\":\"a\",\"sandboxId\":{}}", SK_ERR_INVALID_REQUEST},
    {"source against subject", "sandbox.cmd.lifecycle.ensure.app-0000000000000000",
     "{\"id\":\"a\",\"source\":" SOURCE "}", SK_ERR_IDENTITY_MISMATCH},
    {"source type against subject", ENSURE,
     "{\"id\":\"a\",\"source\":{\"sourceType\":\"workflowBuilder\",\"sourceId\":\"66a1f0c2b7d4e8a1c0d3e501\","
     "\"userId\":\"66b2aa10c4f3d5e7a9b1c201\"}}",
     SK_ERR_IDENTITY_MISMATCH},
    {"source a string", ENSURE, "{\"id\":\"a\",\"source\":\"app\"}", SK_ERR_INVALID_REQUEST},
    {"source null", ENSURE, "{\"id\":\"a\",\"source\":null}", SK_ERR_INVALID_REQUEST},
    {"source empty", ENSURE, "{\"id\":\"a\",\"source\":{}}", SK_ERR_INVALID_REQUEST},
    {"source type unknown", ENSURE,
     "{\"id\":\"a\",\"source\":{\"sourceType\":\"chat\",\"sourceId\":\"a\",\"userId\":\"b\"}}", SK_ERR_INVALID_REQUEST},
    {"source without sandbox", ENSURE,
     "{\"id\":\"a\",\"source\":{\"sourceType\":\"chatAgentHelper\",\"sourceId\":\"a\",\"userId\":\"b\"}}",
     SK_ERR_SOURCE_UNSUPPORTED},
    {"source id missing", ENSURE, "{\"id\":\"a\",\"source\":{\"sourceType\":\"app\",\"userId\":\"b\"}}",
     SK_ERR_INVALID_REQUEST},
    {"source id of 65", ENSURE,
     "{\"id\":\"a\",\"source\":{\"sourceType\":\"app\",\"sourceId\":"
     "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\"userId\":\"b\"}}",
     SK_ERR_INVALID_REQUEST},
    {"NUL in source id", ENSURE,
     "{\"id\":\"a\",\"source\":{\"sourceType\":\"app\",\"sourceId\":\"a\\u0000\",\"userId\":\"b\"}}",
     SK_ERR_INVALID_REQUEST},
    {"user id missing", ENSURE, "{\"id\":\"a\",\"source\":{\"sourceType\":\"app\",\"sourceId\":\"a\"}}",
     SK_ERR_INVALID_REQUEST},
    {"user id a list", ENSURE, "{\"id\":\"a\",\"source\":{\"sourceType\":\"app\",\"sourceId\":\"a\",\"userId\":[]}}",
     SK_ERR_INVALID_REQUEST},
    {"control in user id", ENSURE,
     "{\"id\":\"a\",\"source\":{\"sourceType\":\"app\",\"sourceId\":\"a\",\"userId\":\"b\\u0007\"}}",
     SK_ERR_INVALID_REQUEST},

    {"requestedAt no time", ENSURE, "{\"id\":\"a\",\"requestedAt\":\"soon\"}", SK_ERR_INVALID_REQUEST},
    {"requestedAt a number", ENSURE, "{\"id\":\"a\",\"requestedAt\":1}", SK_ERR_INVALID_REQUEST},
    {"deadline zero", ENSURE, "{\"id\":\"a\",\"deadlineMs\":0}", SK_ERR_INVALID_REQUEST},
    {"deadline negative", ENSURE, "{\"id\":\"a\",\"deadlineMs\":-5}", SK_ERR_INVALID_REQUEST},
    {"deadline too long", ENSURE, "{\"id\":\"a\",\"deadlineMs\":3600001}", SK_ERR_INVALID_REQUEST},
    {"deadline a fraction", ENSURE, "{\"id\":\"a\",\"deadlineMs\":1.5}", SK_ERR_INVALID_REQUEST},
    {"deadline a string", ENSURE, "{\"id\":\"a\",\"deadlineMs\":\"10\"}", SK_ERR_INVALID_REQUEST},
    {"params a list", ENSURE, "{\"id\":\"a\",\"params\":[]}", SK_ERR_INVALID_REQUEST},
    {"params null", ENSURE, "{\"id\":\"a\",\"params\":null}", SK_ERR_INVALID_REQUEST},

    {"restore a string", ENSURE, "{\"id\":\"a\",\"params\":{\"restore\":\"yes\"}}", SK_ERR_INVALID_REQUEST},
    {"image a string", ENSURE, "{\"id\":\"a\",\"params\":{\"image\":\"busybox\"}}", SK_ERR_INVALID_REQUEST},
    {"image without repository", ENSURE, "{\"id\":\"a\",\"params\":{\"image\":{\"tag\":\"1\"}}}",
     SK_ERR_INVALID_REQUEST},
    {"image with blanks", ENSURE, "{\"id\":\"a\",\"params\":{\"image\":{\"repository\":\"a b\"}}}",
     SK_ERR_INVALID_REQUEST},
    {"image tag with a shell in it", ENSURE,
     "{\"id\":\"a\",\"params\":{\"image\":{\"repository\":\"a\",\"tag\":\"$(id)\"}}}", SK_ERR_INVALID_REQUEST},
    {"provider a number", ENSURE, "{\"id\":\"a\",\"params\":{\"provider\":1}}", SK_ERR_INVALID_REQUEST},
    {"provider too long", ENSURE, "{\"id\":\"a\",\"params\":{\"provider\":\"aaaaaaaaaaaaaaaaaaaaaaaaa\"}}",
     SK_ERR_INVALID_REQUEST},
    {"limit a number", ENSURE, "{\"id\":\"a\",\"params\":{\"limit\":1}}", SK_ERR_INVALID_REQUEST},
    {"cpu a string", ENSURE, "{\"id\":\"a\",\"params\":{\"limit\":{\"cpuCount\":\"1\"}}}", SK_ERR_INVALID_REQUEST},
    {"cpu negative", ENSURE, "{\"id\":\"a\",\"params\":{\"limit\":{\"cpuCount\":-1}}}", SK_ERR_INVALID_REQUEST},
    {"memory zero", ENSURE, "{\"id\":\"a\",\"params\":{\"limit\":{\"memoryMiB\":0}}}", SK_ERR_INVALID_REQUEST},
    {"storage without unit", ENSURE, "{\"id\":\"a\",\"params\":{\"limit\":{\"storageSize\":\"1\"}}}",
     SK_ERR_INVALID_REQUEST},
    {"storage in hex", ENSURE, "{\"id\":\"a\",\"params\":{\"limit\":{\"storageSize\":\"0x1Gi\"}}}",
     SK_ERR_INVALID_REQUEST},
    {"storage empty", ENSURE, "{\"id\":\"a\",\"params\":{\"limit\":{\"storageSize\":\"\"}}}", SK_ERR_INVALID_REQUEST},
    {"team a bool", ENSURE, "{\"id\":\"a\",\"params\":{\"teamId\":true}}", SK_ERR_INVALID_REQUEST},
    {"version a number", ENSURE, "{\"id\":\"a\",\"params\":{\"versionId\":1.5}}", SK_ERR_INVALID_REQUEST},
    {"reason with controls", ENSURE, "{\"id\":\"a\",\"params\":{\"reason\":\"\\u001b[2J\"}}", SK_ERR_INVALID_REQUEST},
    {"ifIdleSince no time", STOP, "{\"id\":\"a\",\"params\":{\"ifIdleSince\":\"yesterday\"}}", SK_ERR_INVALID_REQUEST},
    {"ifIdleSince a number", STOP, "{\"id\":\"a\",\"params\":{\"ifIdleSince\":1}}", SK_ERR_INVALID_REQUEST},
    {"force a string", "sandbox.cmd.lifecycle.archive." APP_ID, "{\"id\":\"a\",\"params\":{\"force\":\"1\"}}",
     SK_ERR_INVALID_REQUEST},
    {"recover without params", RECOVER, "{\"id\":\"a\"}", SK_ERR_INVALID_REQUEST},
    {"recover without action", RECOVER, "{\"id\":\"a\",\"params\":{}}", SK_ERR_INVALID_REQUEST},
    {"recover unknown action", RECOVER, "{\"id\":\"a\",\"params\":{\"action\":\"pray\"}}", SK_ERR_INVALID_REQUEST},
    {"converge without target", "sandbox.cmd.lifecycle.converge." APP_ID, "{\"id\":\"a\",\"params\":{}}",
     SK_ERR_INVALID_REQUEST},
};

START_TEST(test_bad_input)
{
    for (size_t i = 0; i < sizeof(bad_rows) / sizeof(bad_rows[0]); i++) {
        const struct bad_row *row = &bad_rows[i];
        struct lc_command command;
        struct sk_error err;

        ck_assert_msg(parse(row->subject, row->body, &command, &err) == -1, "%s: accepted", row->what);
        ck_assert_msg(err.code == row->code, "%s: %s (%s)", row->what, sk_code_name(err.code), err.message);
        ck_assert_msg(!err.retryable && err.message[0] != '\0', "%s", row->what);
    }
}
END_TEST

START_TEST(test_refusals_name_who_asked)
{
    struct lc_command command;
    struct sk_error err;

    ck_assert_int_eq(parse(ENSURE, "{\"id\":\"me\",\"op\":\"explode\"}", &command, &err), -1);
    ck_assert_str_eq(command.id, "me");
    ck_assert_str_eq(command.sandbox_id, APP_ID);
    /* A bad subject does not hide the id of the body. */
    ck_assert_int_eq(parse("sandbox.cmd.lifecycle.explode.nobody", "{\"id\":\"me\"}", &command, &err), -1);
    ck_assert_str_eq(command.id, "me");
    ck_assert_str_eq(command.sandbox_id, "");
    /* A known sandbox is named even when the op is not. */
    ck_assert_int_eq(parse("sandbox.cmd.lifecycle.explode." APP_ID, "{\"id\":\"me\"}", &command, &err), -1);
    ck_assert_str_eq(command.sandbox_id, APP_ID);
    /* An id that is no id is not echoed. */
    ck_assert_int_eq(parse(ENSURE, "{\"id\":\"a\\nb\"}", &command, &err), -1);
    ck_assert_str_eq(command.id, "");
}
END_TEST

START_TEST(test_size_and_depth)
{
    size_t len = SK_BUS_BODY_MAX + 1, deep = 100000;
    char *body = malloc(len + 1);
    struct lc_command command;
    struct sk_error err;
    struct sk_delivery oversize = {.subject = ENSURE, .body = NULL, .body_len = 1 << 20};

    /* 256 KiB are allowed, one byte more is not. */
    memset(body, ' ', len);
    memcpy(body, "{\"id\":\"a\"}", 10);
    ck_assert_int_eq(parse_bytes(ENSURE, body, SK_BUS_BODY_MAX, &command, &err), 0);
    ck_assert_int_eq(parse_bytes(ENSURE, body, len, &command, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    memset(&err, 0, sizeof(err));
    ck_assert_int_eq(lc_command_parse(&oversize, "sandbox", 10000, &command, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    /* 100,000 levels must neither recurse nor be accepted. */
    memset(body, '[', deep);
    ck_assert_int_eq(parse_bytes(ENSURE, body, deep, &command, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    /* A raw NUL in the middle does not end the document. */
    ck_assert_int_eq(parse_bytes(ENSURE, "{\"id\":\"a\"}\0{", 12, &command, &err), -1);
    ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
    free(body);
}
END_TEST

START_TEST(test_defaults)
{
    struct lc_command command;
    struct sk_error err;

    ck_assert_msg(parse(ENSURE, "{\"id\":\"a\",\"whatever\":{\"x\":[1]}}", &command, &err) == 0, "%s", err.message);
    ck_assert_int_eq(command.verb, LC_VERB_ENSURE);
    ck_assert_str_eq(command.sandbox_id, APP_ID);
    ck_assert(!command.has_identity && command.params.restore && !command.params.image.present);
    ck_assert_int_eq(command.deadline_ms, 10000);
    ck_assert_str_eq(command.reply_to, "");
    ck_assert_msg(parse(RECOVER, "{\"id\":\"a\",\"params\":{\"action\":\"abandon\"}}", &command, &err) == 0, "%s",
                  err.message);
    ck_assert(command.params.abandon);
}
END_TEST

START_TEST(test_everything)
{
    static const char body[] = "{\"id\":\"01J\",\"op\":\"ensure\",\"source\":" SOURCE ",\"sandboxId\":\"" APP_ID
                               "\",\"requestedAt\":\"2026-11-30T08:00:00.000Z\","
                               "\"deadlineMs\":3600000,\"params\":{\"restore\":false,\"image\":{\"repository\":"
                               "\"registry:5000/a/b\",\"tag\":\"v1.2\"},"
                               "\"provider\":\"opensandbox\",\"limit\":{\"cpuCount\":0.5,\"memoryMiB\":512,"
                               "\"storageSize\":\"2Gi\"},\"teamId\":\"t\","
                               "\"versionId\":\"v\",\"reason\":\"r\"}}";
    struct lc_command command;
    struct sk_error err;

    ck_assert_msg(parse(ENSURE, body, &command, &err) == 0, "%s", err.message);
    ck_assert(command.has_identity && !command.params.restore);
    ck_assert_str_eq(command.identity.user_id, "66b2aa10c4f3d5e7a9b1c201");
    ck_assert_int_eq(command.deadline_ms, 3600000);
    ck_assert_str_eq(command.params.image.tag, "v1.2");
    ck_assert_str_eq(command.params.provider, "opensandbox");
    ck_assert(command.params.limit.present && command.params.limit.cpu_count == 0.5);
    ck_assert_str_eq(command.params.limit.storage_size, "2Gi");
    ck_assert_str_eq(command.params.team_id, "t");
    ck_assert_str_eq(command.params.version_id, "v");
    ck_assert_str_eq(command.params.reason, "r");
}
END_TEST

START_TEST(test_meaning_hash)
{
    static const struct {
        const char *subject, *a, *b;
        bool same;
    } rows[] = {
        {ENSURE, "{\"id\":\"1\"}", "{\"id\":\"2\",\"deadlineMs\":50}", true},
        {ENSURE, "{\"id\":\"1\"}", "{\"id\":\"1\",\"params\":{}}", true},
        {ENSURE, "{\"id\":\"1\",\"op\":\"ensure\"}", "{\"sandboxId\":\"" APP_ID "\",\"id\":\"1\"}", true},
        {ENSURE, "{\"id\":\"1\",\"params\":{\"teamId\":\"a\",\"restore\":true}}",
         "{\"id\":\"1\",\"params\":{ \"restore\" : true, \"teamId\":\"a\"}}", true},
        {ENSURE, "{\"id\":\"1\",\"params\":{\"teamId\":\"a\"}}", "{\"id\":\"1\",\"params\":{\"teamId\":\"b\"}}", false},
        {ENSURE, "{\"id\":\"1\",\"source\":" SOURCE "}", "{\"id\":\"1\"}", false},
        {STOP, "{\"id\":\"1\",\"params\":{\"ifIdleSince\":\"2026-11-30T08:00:00Z\"}}", "{\"id\":\"1\"}", false},
    };
    struct lc_command a, b;
    struct sk_error err;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_msg(parse(rows[i].subject, rows[i].a, &a, &err) == 0, "%s", err.message);
        ck_assert_msg(parse(rows[i].subject, rows[i].b, &b, &err) == 0, "%s", err.message);
        ck_assert_msg((strcmp(a.hash, b.hash) == 0) == rows[i].same, "row %zu", i);
    }
    ck_assert_int_eq(parse(ENSURE, "{\"id\":\"1\"}", &a, &err), 0);
    ck_assert_int_eq(parse(STOP, "{\"id\":\"1\"}", &b, &err), 0);
    ck_assert_str_ne(a.hash, b.hash);
}
END_TEST

static int parse_with(const char *name, const char *value, struct lc_command *out)
{
    char body[] = "{\"id\":\"a\"}", header[64], text[1024];
    struct sk_delivery delivery = {.subject = ENSURE, .body = body, .body_len = sizeof(body) - 1, .header_count = 1};
    struct sk_error err = {0};

    sk_copy_cut(header, sizeof(header), name);
    sk_copy_cut(text, sizeof(text), value);
    delivery.headers[0] = (struct sk_header){header, text};
    return lc_command_parse(&delivery, "sandbox", 10000, out, &err);
}

START_TEST(test_hostile_headers)
{
    static const char *const bad_replies[] = {"",
                                              " ",
                                              "a b",
                                              "a..b",
                                              ".a",
                                              "a.",
                                              "a.*",
                                              "a.>",
                                              "$JS.API.STREAM.DELETE.X",
                                              "sandbox.cmd.lifecycle.delete.x",
                                              "sandbox",
                                              "a\nb",
                                              "a\tb",
                                              "a\x7f",
                                              "\xff\xfe"};
    static const char *const bad_traces[] = {"", "00", "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                             "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                             "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x"};
    struct lc_command command;
    char long_reply[1024];

    for (size_t i = 0; i < sizeof(bad_replies) / sizeof(bad_replies[0]); i++) {
        ck_assert_int_eq(parse_with("Sandbox-Reply-To", bad_replies[i], &command), 0);
        ck_assert_msg(command.reply_to[0] == '\0' && command.reply_ignored, "row %zu", i);
    }
    memset(long_reply, 'a', sizeof(long_reply) - 1);
    long_reply[sizeof(long_reply) - 1] = '\0';
    ck_assert_int_eq(parse_with("Sandbox-Reply-To", long_reply, &command), 0);
    ck_assert(command.reply_to[0] == '\0' && command.reply_ignored);
    ck_assert_int_eq(parse_with("sandbox-reply-to", "_INBOX.abc.1", &command), 0);
    ck_assert_str_eq(command.reply_to, "_INBOX.abc.1");
    ck_assert(!command.reply_ignored);
    for (size_t i = 0; i < sizeof(bad_traces) / sizeof(bad_traces[0]); i++) {
        ck_assert_int_eq(parse_with("traceparent", bad_traces[i], &command), 0);
        ck_assert_msg(command.traceparent[0] == '\0', "row %zu", i);
    }
    ck_assert_int_eq(parse_with("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", &command), 0);
    ck_assert_str_eq(command.traceparent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
}
END_TEST

/* It goes with a traceparent or not at all, and only what W3C would call one. */
START_TEST(test_tracestate)
{
    static const struct {
        const char *text;
        bool kept;
    } rows[] = {
        {"congo=t61rcWkgMzE", true},
        {"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", true},
        {"a=1, b=2 ,,\tc=3", true},
        {"fw529a3039@dt=FfAxMA==", false},
        {"0tenant@sys=a b", true},
        {"a_-*/=!~", true},
        {"", false},
        {",", false},
        {"garbage", false},
        {"=1", false},
        {"a=", false},
        {"A=1", false},
        {"_a=1", false},
        {"a=1,b", false},
        {"a b=1", false},
        {"a=\xc3\xbc", false},
        {"a=\x7f", false},
    };
    char parent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", body[] = "{\"id\":\"a\"}";
    char names[2][16] = {"traceparent", "tracestate"}, text[1024];
    struct sk_delivery delivery = {.subject = ENSURE, .body = body, .body_len = sizeof(body) - 1, .header_count = 2};
    struct lc_command command;
    struct sk_error err = {0};

    delivery.headers[0] = (struct sk_header){names[0], parent};
    delivery.headers[1] = (struct sk_header){names[1], text};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        sk_copy_cut(text, sizeof(text), rows[i].text);
        ck_assert_int_eq(lc_command_parse(&delivery, "sandbox", 10000, &command, &err), 0);
        ck_assert_msg((command.tracestate != NULL) == rows[i].kept, "row %zu", i);
        if (rows[i].kept)
            ck_assert_str_eq(command.tracestate, rows[i].text);
    }
    for (size_t members = 31; members <= 33; members++) {
        text[0] = '\0';
        for (size_t i = 0; i < members; i++)
            strcat(text, i == 0 ? "a=1" : ",a=1");
        ck_assert_int_eq(lc_command_parse(&delivery, "sandbox", 10000, &command, &err), 0);
        ck_assert((command.tracestate != NULL) == (members <= 32));
    }
    for (size_t length = LC_TRACESTATE_MAX - 1; length <= LC_TRACESTATE_MAX + 1; length++) {
        memset(text, 'a', length);
        text[1] = '=';
        text[length] = '\0';
        ck_assert_int_eq(lc_command_parse(&delivery, "sandbox", 10000, &command, &err), 0);
        ck_assert((command.tracestate != NULL) == (length <= LC_TRACESTATE_MAX));
    }
    strcpy(text, "congo=t61rcWkgMzE");
    parent[0] = 'x';
    ck_assert_int_eq(lc_command_parse(&delivery, "sandbox", 10000, &command, &err), 0);
    ck_assert_ptr_null(command.tracestate);
}
END_TEST

SK_CHECK_MAIN("lifecycle command", test_bad_input, test_refusals_name_who_asked, test_size_and_depth, test_defaults,
              test_everything, test_meaning_hash, test_hostile_headers, test_tracestate)
