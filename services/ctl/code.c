/* SPDX-License-Identifier: Apache-2.0
 *
 * `skctl code`: runs JavaScript or Python in the code sandbox, over its HTTP API (contract/code.md). What the code
 * returns is printed as it came: numbers keep their digits and depth is no matter, because the answer is cut, not
 * parsed and written anew. Leaving (interrupt, deadline) closes the connection, which cancels the task. */
#include "services/ctl/guard.h"

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/http/client.h"
#include "common/http/url.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CODE_UNITS_MAX     (5 * 1024 * 1024)   /* characters of UTF-16 that the service takes */
#define CODE_FILE_MAX      (16 * 1024 * 1024)  /* more bytes than those can have */
#define CODE_TIMEOUT_MAX   600000              /* the largest SANDBOX_MAX_TIMEOUT that there is, in milliseconds */
#define CODE_VARS_MAX      (100 * 1024 * 1024) /* and bodies of 100 MiB at most */
#define CODE_VARS_DEPTH    2000                /* the service takes 1,000 levels */
#define CODE_ANSWER_MAX    (128 * 1024 * 1024)
#define CODE_DEADLINE_MS   180000 /* FastGPT's own client waits that long */
#define CODE_AFTER_MS      60000  /* for the queue, when --timeout is longer */
#define CODE_IDLE_FOREVER  (-1)
#define CODE_TEXT_MAX      4096 /* of a foreign answer, in messages */
#define CODE_READ_SIZE     65536
#define CODE_AUTHORIZATION "Bearer "
#define HTTP_TOO_MANY      429
#define HTTP_UNAVAILABLE   503
#define HTTP_UNAUTHORIZED  401
#define HTTP_BAD_REQUEST   400
#define HTTP_TOO_LARGE     413

/* ---- what is sent ---------------------------------------------------------------------------------------------------
 */
/* A whole file ("-" is stdin) into `out`. 0, or an exit status after telling why. */
static int read_file(const char *name, struct sk_buf *out)
{
    bool standard = strcmp(name, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC), status = CTL_OK;
    ssize_t got = 1;

    if (fd < 0) {
        ctl_complain("%s: %s", ctl_clean(name), strerror(errno));
        return CTL_USAGE;
    }
    while (got > 0 && status == CTL_OK) {
        char *room = sk_buf_reserve(out, CODE_READ_SIZE);
        if (room == NULL) {
            ctl_complain("%s: more than %zu bytes", ctl_clean(name), out->limit - CODE_READ_SIZE);
            status = CTL_USAGE;
            break;
        }
        got = read(fd, room, CODE_READ_SIZE);
        if (got > 0) {
            sk_buf_commit(out, (size_t)got);
        } else if (got < 0 && errno == EINTR && !ctl_interrupted) {
            got = 1;
        } else if (got < 0 && ctl_interrupted) {
            status = ctl_say_interrupted("nothing was sent");
        } else if (got < 0) {
            ctl_complain("%s: %s", ctl_clean(name), strerror(errno));
            status = CTL_USAGE;
        }
    }
    if (!standard)
        close(fd);
    return status;
}

/* Length as the service counts it, in units of UTF-16; -1 when the text is not UTF-8. */
static long utf16_units(const char *text, size_t length)
{
    long units = 0;

    for (size_t step; length > 0; text += step, length -= step) {
        step = (unsigned char)text[0] < 0x80 ? 1 : sk_utf8_sequence(text, length);
        if (step == 0)
            return -1;
        units += step == 4 ? 2 : 1;
    }
    return units;
}

/* The code in `file` into `out`, as far as the service would take it: it can only name the request, not the file. */
static int read_code(const char *file, struct sk_buf *out)
{
    const char *name = strcmp(file, "-") == 0 ? "stdin" : ctl_clean(file);
    int status = read_file(file, out);
    long units = status == 0 ? utf16_units(sk_buf_data(out), sk_buf_len(out)) : 1;

    if (units >= 1 && units <= CODE_UNITS_MAX)
        return status;
    if (units < 0)
        ctl_complain("%s is not UTF-8", name);
    else if (units == 0)
        ctl_complain("%s is empty", name);
    else
        ctl_complain("%s has %ld characters: the code sandbox takes %d at most", name, units, CODE_UNITS_MAX);
    return CTL_USAGE;
}

/* --vars as text in `out`; it is an object, the service judges the rest. */
static int read_vars(struct ctl *ctl, struct sk_buf *out)
{
    const struct sk_json_limits limits = {.max_bytes = CODE_VARS_MAX, .max_depth = CODE_VARS_DEPTH};
    const char *given = ctl->args.vars;
    struct sk_error err = {0};
    json_t *value;
    int status = 0;

    if (given == NULL)
        return 0;
    if (given[0] == '@')
        status = read_file(given + 1, out);
    else if (!sk_buf_append_text(out, given))
        status = ctl_usage(ctl, "--vars is too long");
    if (status != 0)
        return status;
    value = sk_json_parse_object(sk_buf_data(out), sk_buf_len(out), &limits, &err);
    if (value == NULL)
        return ctl_usage(ctl, "--vars must be a JSON object such as {\"name\": \"Ada\"}, or @FILE with one: %s",
                         err.message);
    json_decref(value);
    return 0;
}

/* A JSON string of text that is UTF-8. */
static bool put_string(struct sk_buf *out, const char *text, size_t length)
{
    size_t start = 0;
    bool good = sk_buf_append_char(out, '"');

    for (size_t i = 0; i < length && good; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        good = sk_buf_append(out, text + start, i - start) && sk_buf_printf(out, "\\u%04x", c);
        start = i + 1;
    }
    return good && sk_buf_append(out, text + start, length - start) && sk_buf_append_char(out, '"');
}

static int build_body(struct ctl *ctl, const char *file, struct sk_buf *body)
{
    struct sk_buf code, vars;
    int status;
    bool good;

    sk_buf_init(&code, CODE_FILE_MAX + CODE_READ_SIZE);
    sk_buf_init(&vars, CODE_VARS_MAX + CODE_READ_SIZE);
    status = ctl->args.vars != NULL && strcmp(ctl->args.vars, "@-") == 0 && strcmp(file, "-") == 0
                 ? ctl_usage(ctl, "only one of FILE and --vars can be stdin")
                 : read_code(file, &code);
    if (status == 0)
        status = read_vars(ctl, &vars);
    if (status == 0) {
        good =
            sk_buf_append_text(body, "{\"code\":") && put_string(body, sk_buf_data(&code), sk_buf_len(&code)) &&
            (ctl->args.vars == NULL || (sk_buf_append_text(body, ",\"variables\":") &&
                                        sk_buf_append(body, sk_buf_data(&vars), sk_buf_len(&vars)))) &&
            (ctl->args.timeout_ms < 0 || sk_buf_printf(body, ",\"timeoutMs\":%lld", (long long)ctl->args.timeout_ms)) &&
            (ctl->args.queue == NULL || (sk_buf_append_text(body, ",\"queueId\":") &&
                                         put_string(body, ctl->args.queue, strlen(ctl->args.queue)))) &&
            sk_buf_append_char(body, '}');
        if (!good) {
            ctl_complain("out of memory");
            status = CTL_FAILED;
        }
    }
    sk_buf_fini(&code);
    sk_buf_fini(&vars);
    return status;
}

/* ---- what comes back ------------------------------------------------------------------------------------------------
 */
/* A value as it stands in a JSON text; NULL text when it is absent. */
struct span {
    const char *text;
    size_t length;
};

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* Behind the string that starts at `at`; NULL when it has no end. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '\\')
            at++;
        else if (*at == '"')
            return at + 1;
    }
    return NULL;
}

/* Behind the value that starts at `at`, whatever its depth; NULL when it has no end. */
static const char *skip_value(const char *at, const char *end)
{
    size_t depth = 0;

    while (at != NULL && at < end) {
        if (*at == '"') {
            at = skip_string(at, end);
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (*at == '}' || *at == ']') {
            if (depth == 0)
                return at;
            depth--;
            at++;
        } else if (depth == 0 && (*at == ',' || skip_space(at, at + 1) != at)) {
            return at;
        } else {
            at++;
            if (depth > 0 || (at < end && strchr(",}] \t\r\n", *at) == NULL))
                continue;
        }
        if (depth == 0)
            return at;
    }
    return depth == 0 ? at : NULL;
}

/* The last member of this name in the object; absent when it is no object or is broken before. */
static struct span member(struct span object, const char *name)
{
    const char *at = object.text, *end = at != NULL ? at + object.length : NULL;
    struct span found = {NULL, 0};

    if (at == NULL || object.length == 0 || *at != '{')
        return found;
    for (at = skip_space(at + 1, end); at < end && *at == '"'; at = skip_space(at + 1, end)) {
        const char *key = at + 1, *key_end = skip_string(at, end), *value;
        at = key_end != NULL ? skip_space(key_end, end) : end;
        if (at >= end || *at != ':')
            return found;
        value = skip_space(at + 1, end);
        at = skip_value(value, end);
        if (at == NULL || at == value)
            return found;
        if ((size_t)(key_end - 1 - key) == strlen(name) && memcmp(key, name, strlen(name)) == 0)
            found = (struct span){value, (size_t)(at - value)};
        at = skip_space(at, end);
        if (at >= end || *at != ',')
            return found;
    }
    return found;
}

static bool is(struct span span, const char *text)
{
    return span.text != NULL && span.length == strlen(text) && memcmp(span.text, text, span.length) == 0;
}

/* The content of a string, NUL inside included: new reference, NULL when it is none. */
static json_t *text_of(struct span span)
{
    json_t *value = span.text != NULL && span.text[0] == '"'
                        ? json_loadb(span.text, span.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                        : NULL;
    return value;
}

/* Text of the user's code for people: as it is into a file or pipe; on a terminal nothing can move its cursor. */
static void print_text(const json_t *value, FILE *out)
{
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    bool terminal = isatty(fileno(out));

    if (text == NULL || length == 0)
        return;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ||
                       (c == 0xc2 && i + 1 < length && (unsigned char)text[i + 1] < 0xa0);
        if (control && terminal) {
            fputc('?', out);
            i += c == 0xc2;
        } else {
            fputc(c, out);
        }
    }
    if (text[length - 1] != '\n')
        fputc('\n', out);
}

/* Whether the message ends with "line N)". */
static bool ends_with_line(const char *message, struct span line)
{
    static const char word[] = "line ";
    size_t tail = sizeof(word) - 1 + line.length + 1, length = strlen(message);
    const char *at = message + (length < tail ? 0 : length - tail);

    return length >= tail && memcmp(at, word, sizeof(word) - 1) == 0 &&
           memcmp(at + sizeof(word) - 1, line.text, line.length) == 0 && message[length - 1] == ')';
}

static int show_failure(const struct ctl *ctl, struct span answer, struct span data)
{
    struct span error = member(data, "error"), line = member(error, "line");
    json_t *message = text_of(member(answer, "message")), *type = text_of(member(error, "type")),
           *traceback = text_of(member(error, "traceback")), *code = text_of(member(error, "code"));
    const char *text = message != NULL ? json_string_value(message) : "no message", *kind = json_string_value(type);
    size_t kind_length = kind != NULL ? strlen(kind) : 0;
    bool repeats = kind == NULL ||
                   (strncmp(text, kind, kind_length) == 0 && (text[kind_length] == ':' || text[kind_length] == '\0'));
    bool placed = line.text == NULL || ends_with_line(text, line); /* a SyntaxError of Python says its line itself */
    int status = code != NULL && strcmp(json_string_value(code), "timeout") == 0 ? CTL_DEADLINE : CTL_FAILED;

    if (!ctl->args.json && traceback != NULL)
        print_text(traceback, stderr);
    ctl_complain("%s%s%s%s%.*s%s", repeats ? "" : ctl_clean(kind), repeats ? "" : ": ", ctl_clean(text),
                 placed ? "" : " (line ", placed ? 0 : (int)line.length, placed ? "" : line.text, placed ? "" : ")");
    json_decref(message);
    json_decref(type);
    json_decref(traceback);
    json_decref(code);
    return status;
}

/* An answer without our shape: a proxy's, another service's, a refused token's. */
static int show_foreign(const struct ctl *ctl, const struct sk_http_response *response)
{
    char text[CODE_TEXT_MAX];
    json_t *document;

    snprintf(text, sizeof(text), "%.*s", (int)strcspn(response->body, "\r\n"), response->body);
    if (ctl->args.json) {
        document =
            json_pack("{s:b, s:o, s:i}", "success", 0, "message", sk_json_text(text), "status", response->status);
        ctl_json(document);
        json_decref(document);
    }
    if (response->status == HTTP_UNAUTHORIZED)
        ctl_complain("the code sandbox does not accept the token (SANDKEEP_CODE_TOKEN)");
    else
        ctl_complain("HTTP %d%s%s: is this a code sandbox (SANDKEEP_CODE_URL)?", response->status,
                     text[0] != '\0' ? ": " : "", ctl_clean(text));
    return CTL_FAILED;
}

static int show_answer(const struct ctl *ctl, const struct sk_http_response *response)
{
    const char *end = response->body + response->body_len, *start = skip_space(response->body, end);
    const char *after = start < end && *start == '{' ? skip_value(start, end) : NULL;
    struct span answer = {start, after != NULL ? (size_t)(after - start) : 0}, data, value;
    bool whole = after != NULL && skip_space(after, end) == end,
         success = whole && is(member(answer, "success"), "true");
    json_t *log;
    int status;

    if (!whole || !(success || is(member(answer, "success"), "false")))
        return show_foreign(ctl, response);
    data = member(answer, "data");
    value = member(data, "codeReturn");
    if (success && (response->status != 200 || data.text == NULL))
        return show_foreign(ctl, response);
    if (ctl->args.json) {
        fwrite(answer.text, 1, answer.length, stdout);
        putchar('\n');
    } else {
        log = text_of(member(data, "log"));
        print_text(log, stderr);
        json_decref(log);
    }
    if (success) {
        if (!ctl->args.json) {
            value = value.text != NULL ? value : (struct span){"null", 4};
            fwrite(value.text, 1, value.length, stdout);
            putchar('\n');
        }
        return CTL_OK;
    }
    status = show_failure(ctl, answer, data);
    switch (response->status) {
    case HTTP_TOO_MANY:
    case HTTP_UNAVAILABLE:
        return CTL_BUSY;
    case HTTP_BAD_REQUEST:
    case HTTP_TOO_LARGE:
        return CTL_USAGE;
    default:
        return status;
    }
}

/* ---- the verb -------------------------------------------------------------------------------------------------------
 */
static int show_unreached(const struct ctl *ctl, const char *url, const struct sk_http_response *response,
                          const struct sk_error *err)
{
    if (ctl_interrupted)
        return ctl_say_interrupted("the task is cancelled");
    if (ctl->args.json)
        ctl_show_error(ctl, err);
    else
        ctl_complain("%s", ctl_clean(err->message));
    if (err->code == SK_ERR_INVALID_REQUEST) /* a token that no header can carry */
        return CTL_USAGE;
    switch (response->end) {
    case SK_HTTP_REFUSED:
    case SK_HTTP_LOST:
        ctl_complain("the code sandbox at %s cannot be reached", ctl_clean(url));
        return CTL_UNREACHABLE;
    case SK_HTTP_TIMEOUT:
        if (err->outcome == SK_OUTCOME_FAILED) {
            ctl_complain("the code sandbox at %s cannot be reached", ctl_clean(url));
            return CTL_UNREACHABLE;
        }
        ctl_complain("no answer within the deadline: the task is cancelled");
        return CTL_DEADLINE;
    default:
        return CTL_FAILED;
    }
}

static int64_t deadline_of(const struct ctl_args *args)
{
    int64_t longest =
        args->timeout_ms > CODE_DEADLINE_MS - CODE_AFTER_MS ? args->timeout_ms + CODE_AFTER_MS : CODE_DEADLINE_MS;
    return args->deadline_ms > 0 ? args->deadline_ms : longest;
}

static int run(struct ctl *ctl, const char *url, const char *token, const struct sk_buf *body)
{
    struct sk_buf authorization;
    struct sk_http_header headers[] = {{"Content-Type", "application/json"}, {"Authorization", NULL}};
    struct sk_http_request request = {
        .method = "POST",
        .url = url,
        .headers = headers,
        .header_count = token[0] != '\0' ? 2 : 1,
        .body = sk_buf_data(body),
        .body_len = sk_buf_len(body),
        .body_max = CODE_ANSWER_MAX,
        .idle_timeout_ms = CODE_IDLE_FOREVER, /* a task says nothing until it ends */
        .total_timeout_ms = deadline_of(&ctl->args),
        .close_after = true,
    };
    struct sk_http_response response = {0};
    struct sk_http_client *client;
    struct ctl_guard guard = {0};
    struct sk_error err = {0};
    struct sk_call call;
    int status = ctl_guard_open(&guard, &call);

    if (status != 0)
        return status;
    sk_buf_init(&authorization, 64 * 1024);
    if (!sk_buf_append_text(&authorization, CODE_AUTHORIZATION) || !sk_buf_append_text(&authorization, token)) {
        status = ctl_usage(ctl, "the token is too long");
        goto out;
    }
    headers[1].value = sk_buf_data(&authorization);
    client = sk_http_call_client(&call, NULL);
    if (client == NULL) {
        ctl_complain("out of memory");
        status = CTL_FAILED;
        goto out;
    }
    if (sk_http_request(client, &call, &request, &response, &err) == 0)
        status = show_answer(ctl, &response);
    else
        status = show_unreached(ctl, url, &response, &err);
    sk_http_response_fini(&response);
out:
    sk_buf_fini(&authorization);
    ctl_guard_close(&guard);
    return status;
}

int ctl_code(struct ctl *ctl)
{
    const char *base = ctl->args.url != NULL ? ctl->args.url : ctl->config.code_url, *language;
    const char *token = ctl->args.token != NULL ? ctl->args.token : ctl->config.code_token;
    struct sk_url_builder builder;
    struct sk_url parts;
    struct sk_buf body;
    char *url;
    int status;

    if (ctl->args.positional_count != 2)
        return ctl_usage(ctl, "say the language (js or python) and the file (- is stdin)");
    language = ctl->args.positional[0];
    if (strcmp(language, "py") == 0) /* FastGPT's codeType */
        language = "python";
    if (strcmp(language, "js") != 0 && strcmp(language, "python") != 0)
        return ctl_usage(ctl, "%s is not a language: js, or python (or py)", ctl_clean(language));
    if (base[0] == '\0') {
        ctl_complain(
            "no code sandbox: set SANDKEEP_CODE_URL and SANDKEEP_CODE_TOKEN (eval \"$(deploy/local/stack env)\")");
        return CTL_USAGE;
    }
    if (!sk_url_parse(base, &parts))
        return ctl_usage(ctl, "the URL of the code sandbox must be http(s)://host[:port][/path]");
    if (ctl->args.timeout_ms == 0 || ctl->args.deadline_ms == 0)
        return ctl_usage(ctl, "--timeout and --deadline must be more than 0");
    if (ctl->args.timeout_ms > CODE_TIMEOUT_MAX)
        return ctl_usage(ctl,
                         "--timeout: no code sandbox lets code run for longer than %d minutes (SANDBOX_MAX_TIMEOUT)",
                         CODE_TIMEOUT_MAX / 60000);
    if (ctl->args.queue != NULL && utf16_units(ctl->args.queue, strlen(ctl->args.queue)) < 0)
        return ctl_usage(ctl, "--queue is not UTF-8");
    sk_url_begin(&builder, parts.tls ? "https://" : "http://");
    sk_buf_printf(&builder.text, "%s:%d%s", parts.host, parts.port, parts.path);
    sk_url_segment(&builder, "sandbox");
    sk_url_segment(&builder, language);
    url = sk_url_take(&builder);
    if (url == NULL)
        return ctl_usage(ctl, "the URL of the code sandbox is too long");
    sk_buf_init(&body, 6 * (CODE_FILE_MAX + CODE_VARS_MAX));
    status = build_body(ctl, ctl->args.positional[1], &body);
    if (status == 0)
        status = run(ctl, url, token, &body);
    sk_buf_fini(&body);
    free(url);
    return status;
}
