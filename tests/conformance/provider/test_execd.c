/* SPDX-License-Identifier: Apache-2.0
 *
 * The execd client against a scripted execd: both framings, the rules of terminal events, broken streams, calling back,
 * and files that are swallowed, cut or continued at the wrong place. */
#define SK_CHECK_TIMEOUT 60
#include "common/http/client.h"
#include "common/provider/execd.h"
#include "tests/conformance/provider/script.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CID    "0123456789abcdef0123456789abcdef"
#define HEAD   "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
#define INIT   "{\"type\":\"init\",\"text\":\"" CID "\",\"timestamp\":1}\n\n"
#define PING   "{\"type\":\"ping\",\"text\":\"pong\",\"timestamp\":1}\n\n"
#define OUT(t) "{\"type\":\"stdout\",\"text\":\"" t "\",\"timestamp\":1}\n\n"
#define ERR(t) "{\"type\":\"stderr\",\"text\":\"" t "\",\"timestamp\":1}\n\n"
#define DONE   "{\"type\":\"execution_complete\",\"execution_time\":12,\"timestamp\":1}\n\n"
#define EXIT(code, trace)                                                                                              \
    "{\"type\":\"error\",\"timestamp\":1,\"error\":{\"ename\":\"CommandExecError\",\"evalue\":\"" code                 \
    "\",\"traceback\":[\"" trace "\"]}}\n\n"

struct fixture {
    struct script script;
    struct sk_execd execd;
    struct sk_call call;
    struct sk_error err;
    struct sk_execd_result result;
    struct sk_buf out, errors;
    char started[SK_EXECD_COMMAND_ID_SIZE];
    int64_t stop_after; /* bytes of output, 0 = never */
    bool cancel;        /* from another thread, at the first output */
    pthread_t canceller;
    int64_t cancelled_us;
    int64_t deadline_ms; /* from the start of the command on, 0 = none */
};

static void begin(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    script_start(&f->script);
    sk_call_init(&f->call, &sk_sched_system);
    snprintf(f->execd.url, sizeof(f->execd.url), "%s/proxy/44772", peer_url(f->script.peer));
    snprintf(f->execd.headers[0].name, sizeof(f->execd.headers[0].name), "X-EXECD-ACCESS-TOKEN");
    snprintf(f->execd.headers[0].value, sizeof(f->execd.headers[0].value), "tok");
    f->execd.header_count = 1;
    f->execd.request_timeout_ms = 2000;
    sk_buf_init(&f->out, 1 << 26);
    sk_buf_init(&f->errors, 1 << 26);
}

static void end(struct fixture *f)
{
    sk_buf_fini(&f->out);
    sk_buf_fini(&f->errors);
    sk_http_call_release(&f->call);
    script_stop(&f->script);
}

static void *cancel_now(void *arg)
{
    struct fixture *f = arg;

    f->cancelled_us = sk_mono_us(&sk_sched_system);
    sk_call_cancel(&f->call);
    return NULL;
}

static int on_output(void *arg, enum sk_execd_stream stream, const char *data, size_t len)
{
    struct fixture *f = arg;
    struct sk_buf *to = stream == SK_EXECD_STDOUT ? &f->out : &f->errors;

    sk_buf_append(to, data, len);
    if (f->cancel) {
        f->cancel = false;
        pthread_create(&f->canceller, NULL, cancel_now, f);
    }
    return f->stop_after > 0 && (int64_t)sk_buf_len(to) >= f->stop_after;
}

static void on_start(void *arg, const char *id)
{
    struct fixture *f = arg;

    snprintf(f->started, sizeof(f->started), "%s", id);
    if (f->deadline_ms > 0)
        f->call.deadline_us = sk_mono_us(&sk_sched_system) + f->deadline_ms * 1000;
}

static int run_with(struct fixture *f, struct sk_execd_command command)
{
    sk_buf_clear(&f->out);
    sk_buf_clear(&f->errors);
    sk_error_clear(&f->err);
    f->started[0] = '\0';
    if (command.command == NULL)
        command.command = "true";
    if (command.recovery_ms == 0)
        command.recovery_ms = 300;
    command.uid = command.gid = -1;
    command.on_output = on_output;
    command.on_start = on_start;
    command.arg = f;
    return sk_execd_run(&f->execd, &f->call, &command, &f->result, &f->err);
}

static int run(struct fixture *f)
{
    return run_with(f, (struct sk_execd_command){0});
}

static void stream(struct fixture *f, const char *raw)
{
    script_clear(&f->script);
    script_add(&f->script, (struct script_rule){.method = "POST", .prefix = "/proxy/44772/command", .raw = raw});
}

static void status(struct fixture *f, int code, const char *body)
{
    script_json(&f->script, "GET", "/proxy/44772/command/status/" CID, code, body);
}

/* ---- streams that end well -------------------------------------------------------------------------------------- */

static const struct {
    const char *what, *raw;
    enum sk_execd_end end;
    int exit_code;
    const char *out, *err, *detail;
} good[] = {
    {"nothing", HEAD INIT PING DONE, SK_EXECD_EXITED, 0, "", "", ""},
    {"lines", HEAD INIT PING OUT("a") ERR("b") OUT("\\n") OUT("c") DONE, SK_EXECD_EXITED, 0, "a\n\nc\n", "b\n", ""},
    {"exit 3", HEAD INIT OUT("a") EXIT("3", "exit status 3"), SK_EXECD_EXITED, 3, "a\n", "", "exit status 3"},
    {"killed", HEAD INIT EXIT("-1", "signal: killed"), SK_EXECD_SIGNALLED, 0, "", "", "signal: killed"},
    {"never started", HEAD INIT EXIT("fork/exec /bin/bash: no such file", ""), SK_EXECD_START_FAILED, 0, "", "",
     "fork/exec /bin/bash: no such file"},
    {"escapes", HEAD INIT OUT("\\u003ca\\u003e \\ud83d\\ude00 \\u0000.") DONE, SK_EXECD_EXITED, 0, NULL, "", ""},
    {"real SSE",
     HEAD "event: x\r\ndata: {\"type\":\"init\",\r\ndata: \"text\":\"" CID "\"}\r\n\r\n: hi\r\n\r\n"
          "data: {\"type\":\"stdout\",\"text\":\"a\"}\r\n\r\ndata: {\"type\":\"execution_complete\"}\r\n\r\n",
     SK_EXECD_EXITED, 0, "a\n", "", ""},
    {"bytes after the end are not looked at", HEAD INIT DONE OUT("late") "garbage", SK_EXECD_EXITED, 0, "", "", ""},
    {"unknown events", HEAD INIT "{\"type\":\"status\",\"text\":\"ok\"}\n\n{\"type\":\"new\"}\n\n" DONE,
     SK_EXECD_EXITED, 0, "", "", ""},
    {"no last line end", HEAD INIT "{\"type\":\"execution_complete\"}", SK_EXECD_EXITED, 0, "", "", ""},
    {"no init", HEAD OUT("a") DONE, SK_EXECD_EXITED, 0, "a\n", "", ""},
};

START_TEST(test_streams)
{
    struct fixture f;

    begin(&f);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        stream(&f, good[i].raw);
        ck_assert_msg(run(&f) == 0, "%s: %s", good[i].what, f.err.message);
        ck_assert_msg(f.result.end == good[i].end, "%s: %s", good[i].what, sk_execd_end_name(f.result.end));
        ck_assert_int_eq(f.result.exit_code, good[i].exit_code);
        if (good[i].out != NULL)
            ck_assert_str_eq(sk_buf_data(&f.out), good[i].out);
        else /* NUL and surrogates survive */
            ck_assert(sk_buf_len(&f.out) == 12 && memcmp(sk_buf_data(&f.out), "<a> \xf0\x9f\x98\x80 \0.\n", 12) == 0);
        ck_assert_str_eq(sk_buf_data(&f.errors), good[i].err);
        ck_assert_str_eq(f.result.detail, good[i].detail);
        ck_assert(!f.result.output_lost);
        ck_assert_uint_eq(f.result.output_bytes, sk_buf_len(&f.out) + sk_buf_len(&f.errors));
        if (strstr(good[i].raw, "init") != NULL) {
            ck_assert_str_eq(f.result.id, CID);
            ck_assert_str_eq(f.started, CID);
        }
    }
    end(&f);
}
END_TEST

static bool run_slow_close(struct script *s, const struct peer_request *r, int fd)
{
    (void)r;
    peer_text(fd, HEAD INIT OUT("a") DONE PING);
    peer_stall(s->peer, fd, 3000);
    return false;
}

START_TEST(test_terminal_event_ends_the_wait)
{
    struct fixture f;
    int64_t start;

    begin(&f);
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_slow_close});
    start = sk_mono_us(&sk_sched_system);
    ck_assert_int_eq(run(&f), 0);
    ck_assert_int_lt(sk_mono_us(&sk_sched_system) - start, 2500000); /* the peer closes after three seconds */
    ck_assert_int_eq(f.result.duration_ms, 12);
    end(&f);
}
END_TEST

START_TEST(test_request)
{
    const struct sk_execd_env envs[] = {{"A", "1"}, {"B", "x\"y"}};
    struct peer_request seen;
    struct fixture f;
    char value[64];

    begin(&f);
    stream(&f, HEAD INIT DONE);
    ck_assert_int_eq(
        run_with(&f,
                 (struct sk_execd_command){
                     .command = "echo \"a\"\n", .cwd = "/workspace", .timeout_ms = 1500, .envs = envs, .env_count = 2}),
        0);
    ck_assert(peer_last(f.script.peer, "POST", "", &seen));
    ck_assert_str_eq(seen.target, "/proxy/44772/command");
    ck_assert_str_eq(seen.body, "{\"command\":\"echo \\\"a\\\"\\n\",\"cwd\":\"/workspace\",\"timeout\":1500,"
                                "\"envs\":{\"A\":\"1\",\"B\":\"x\\\"y\"}}");
    ck_assert(peer_header(&seen, "X-EXECD-ACCESS-TOKEN", value, sizeof(value)));
    ck_assert_str_eq(value, "tok");
    peer_request_free(&seen);

    ck_assert_int_eq(run_with(&f, (struct sk_execd_command){.command = "\xff"}), -1);
    ck_assert_int_eq(f.err.code, SK_ERR_INVALID_REQUEST);
    ck_assert_int_eq(peer_request_count(f.script.peer), 1);
    end(&f);
}
END_TEST

START_TEST(test_background)
{
    struct fixture f;

    begin(&f);
    stream(&f, HEAD INIT DONE);
    ck_assert_int_eq(run_with(&f, (struct sk_execd_command){.background = true}), 0);
    ck_assert_int_eq(f.result.end, SK_EXECD_EXITED);
    ck_assert_str_eq(f.result.id, CID);
    /* Its start failed late: a bare error object, no terminal event. */
    stream(&f, HEAD "{\"code\":\"RUNTIME_ERROR\",\"message\":\"no bash\"}");
    ck_assert_int_eq(run_with(&f, (struct sk_execd_command){.background = true}), -1);
    ck_assert_int_eq(f.result.end, SK_EXECD_LOST);
    ck_assert_ptr_nonnull(strstr(f.err.message, "no bash"));
    /* The stream broke, but it runs: that is all that was asked for. */
    stream(&f, HEAD INIT);
    status(&f, 200, "{\"id\":\"" CID "\",\"running\":true}");
    ck_assert_int_eq(run_with(&f, (struct sk_execd_command){.background = true}), 0);
    ck_assert_int_eq(f.result.end, SK_EXECD_EXITED);
    end(&f);
}
END_TEST

static bool run_large_line(struct script *s, const struct peer_request *r, int fd)
{
    char *line = malloc(SK_EXECD_EVENT_MAX + 1000);

    (void)s;
    (void)r;
    memset(line, 'x', SK_EXECD_EVENT_MAX + 999);
    line[SK_EXECD_EVENT_MAX + 999] = '\0';
    peer_text(fd, HEAD INIT OUT("before") "{\"type\":\"stdout\",\"text\":\"");
    peer_text(fd, line);
    peer_text(fd, "\"}\n\n" OUT("after") EXIT("4", "exit status 4"));
    free(line);
    return false;
}

START_TEST(test_line_above_the_bound)
{
    struct fixture f;

    begin(&f);
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_large_line});
    ck_assert_int_eq(run(&f), 0); /* the exit code is worth more than the line */
    ck_assert_int_eq(f.result.exit_code, 4);
    ck_assert(f.result.output_lost);
    ck_assert_str_eq(sk_buf_data(&f.out), "before\nafter\n");
    end(&f);
}
END_TEST

/* ---- streams that break ----------------------------------------------------------------------------------------- */

static const struct {
    const char *what, *raw;
    int status;
    const char *status_body;
    int rc;
    enum sk_execd_end end;
    int exit_code;
} broken[] = {
    {"before init", HEAD, 0, NULL, -1, SK_EXECD_LOST, 0},
    {"inside init", HEAD "{\"type\":\"init\",\"text\":\"01", 0, NULL, -1, SK_EXECD_LOST, 0},
    {"no answer at all", "", 0, NULL, -1, SK_EXECD_LOST, 0},
    {"a page", "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>\n{\n</html>", 0, NULL, -1, SK_EXECD_LOST, 0},
    {"ended since", HEAD INIT OUT("a"), 200, "{\"id\":\"" CID "\",\"running\":false,\"exit_code\":5}", 0,
     SK_EXECD_EXITED, 5},
    {"killed since", HEAD INIT, 200,
     "{\"id\":\"" CID "\",\"running\":false,\"exit_code\":-1,\"error\":\"signal: killed\"}", 0, SK_EXECD_SIGNALLED, 0},
    {"failed since", HEAD INIT, 200, "{\"id\":\"" CID "\",\"running\":false,\"error\":\"no bash\"}", 0,
     SK_EXECD_START_FAILED, 0},
    {"still running", HEAD INIT, 200, "{\"id\":\"" CID "\",\"running\":true}", -1, SK_EXECD_LOST, 0},
    {"forgotten", HEAD INIT, 404, "{\"code\":\"INVALID_REQUEST_BODY\",\"message\":\"not found\"}", -1, SK_EXECD_LOST,
     0},
    {"status fails", HEAD INIT, 502, "{\"code\":\"GENERAL::UNKNOWN_ERROR\",\"message\":\"x\"}", -1, SK_EXECD_LOST, 0},
    {"status is junk", HEAD INIT, 200, "{\"running\":\"no\"}", -1, SK_EXECD_LOST, 0},
    {"cut inside the terminal event", HEAD INIT "{\"type\":\"execution_comp", 200,
     "{\"id\":\"" CID "\",\"running\":false,\"exit_code\":0}", 0, SK_EXECD_EXITED, 0},
    {"an id that climbs", HEAD "{\"type\":\"init\",\"text\":\"..\"}\n\n", 0, NULL, -1, SK_EXECD_LOST, 0},
};

START_TEST(test_broken_streams)
{
    struct fixture f;

    begin(&f);
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        struct peer_request seen;

        stream(&f, broken[i].raw);
        if (broken[i].status != 0)
            status(&f, broken[i].status, broken[i].status_body);
        ck_assert_msg(run(&f) == broken[i].rc, "%s: %s", broken[i].what, f.err.message);
        ck_assert_msg(f.result.end == broken[i].end, "%s: %s", broken[i].what, sk_execd_end_name(f.result.end));
        ck_assert_int_eq(f.result.exit_code, broken[i].exit_code);
        ck_assert(f.result.output_lost);
        if (broken[i].rc != 0) {
            ck_assert_int_eq(f.err.outcome, SK_OUTCOME_UNKNOWN);
            ck_assert_int_eq(f.err.code, SK_ERR_PROVIDER_ERROR);
        }
        ck_assert_int_eq(f.result.running, strcmp(broken[i].what, "still running") == 0);
        /* Neither repeated nor interrupted. */
        ck_assert(!peer_last(f.script.peer, "DELETE", "", &seen));
    }
    end(&f);
}
END_TEST

static bool run_init_then_silence(struct script *s, const struct peer_request *r, int fd)
{
    (void)r;
    peer_text(fd, HEAD INIT OUT("a"));
    peer_stall(s->peer, fd, -1);
    return false;
}

START_TEST(test_silent_stream)
{
    struct fixture f;

    begin(&f);
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_init_then_silence});
    /* First it runs, then it has ended. */
    script_add(&f.script, (struct script_rule){.method = "GET",
                                               .prefix = "/proxy/44772/command/status/" CID,
                                               .status = 200,
                                               .body = "{\"id\":\"" CID "\",\"running\":true}",
                                               .times = 2});
    status(&f, 200, "{\"id\":\"" CID "\",\"running\":false,\"exit_code\":9}");
    ck_assert_int_eq(run_with(&f, (struct sk_execd_command){.idle_ms = 1000, .recovery_ms = 5000}), 0);
    ck_assert_int_eq(f.result.end, SK_EXECD_EXITED);
    ck_assert_int_eq(f.result.exit_code, 9);
    ck_assert(f.result.output_lost);
    end(&f);
}
END_TEST

static bool run_refused(struct script *s, const struct peer_request *r, int fd)
{
    (void)s;
    (void)r;
    peer_json(fd, 400, "{\"code\":\"INVALID_REQUEST_BODY\",\"message\":\"cwd does not exist\"}");
    return true;
}

START_TEST(test_refused)
{
    struct fixture f;

    begin(&f);
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_refused});
    ck_assert_int_eq(run(&f), -1);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_FAILED);
    ck_assert(!f.err.retryable);
    ck_assert_ptr_nonnull(strstr(f.err.message, "cwd does not exist"));
    snprintf(f.execd.url, sizeof(f.execd.url), "http://127.0.0.1:%d", peer_refused_port());
    ck_assert_int_eq(run(&f), -1);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_FAILED);
    end(&f);
}
END_TEST

/* ---- calling back ----------------------------------------------------------------------------------------------- */

static bool saw_interrupt(struct fixture *f)
{
    struct peer_request seen;

    /* It is sent before run returns; a slow machine may read it later. */
    for (int i = 0; i < 500; i++) {
        if (peer_last(f->script.peer, "DELETE", "/proxy/44772/command?id=" CID, &seen)) {
            peer_request_free(&seen);
            return true;
        }
        usleep(10000);
    }
    return false;
}

static bool run_chatter(struct script *s, const struct peer_request *r, int fd)
{
    (void)r;
    peer_text(fd, HEAD INIT);
    while (!peer_stall(s->peer, fd, 20) && peer_text(fd, OUT("tick")))
        ;
    return false;
}

START_TEST(test_cancel_interrupts)
{
    struct fixture f;

    begin(&f);
    f.cancel = true;
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_chatter});
    script_json(&f.script, "DELETE", "", 200, "");
    ck_assert_int_eq(run(&f), -1);
    pthread_join(f.canceller, NULL);
    ck_assert_int_lt(sk_mono_us(&sk_sched_system) - f.cancelled_us, 2000000);
    ck_assert_int_eq(f.err.code, SK_ERR_CANCELLED);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert_int_eq(f.result.end, SK_EXECD_CANCELLED);
    ck_assert(saw_interrupt(&f));
    end(&f);

    /* The deadline does the same. */
    begin(&f);
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_chatter});
    script_json(&f.script, "DELETE", "", 500, "{\"code\":\"RUNTIME_ERROR\",\"message\":\"not running\"}");
    f.deadline_ms = 150;
    ck_assert_int_eq(run(&f), -1);
    ck_assert_int_eq(f.err.code, SK_ERR_PROVIDER_TIMEOUT);
    ck_assert_int_eq(f.result.end, SK_EXECD_CANCELLED);
    ck_assert(saw_interrupt(&f));
    end(&f);
}
END_TEST

START_TEST(test_output_can_stop_it)
{
    struct fixture f;

    begin(&f);
    f.stop_after = 12;
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_chatter});
    script_json(&f.script, "DELETE", "", 200, "");
    ck_assert_int_eq(run(&f), 0);
    ck_assert_int_eq(f.result.end, SK_EXECD_STOPPED);
    ck_assert_str_eq(sk_buf_data(&f.out), "tick\ntick\ntick\n");
    ck_assert(saw_interrupt(&f));
    end(&f);
}
END_TEST

static bool run_killed_late(struct script *s, const struct peer_request *r, int fd)
{
    (void)r;
    peer_text(fd, HEAD INIT);
    peer_stall(s->peer, fd, 300);
    peer_text(fd, EXIT("-1", "signal: killed"));
    return false;
}

START_TEST(test_time_out_of_a_command)
{
    struct fixture f;

    begin(&f);
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_killed_late});
    ck_assert_int_eq(run_with(&f, (struct sk_execd_command){.timeout_ms = 300}), 0);
    ck_assert_int_eq(f.result.end, SK_EXECD_TIMED_OUT);
    ck_assert_int_eq(run_with(&f, (struct sk_execd_command){.timeout_ms = 30000}), 0);
    ck_assert_int_eq(f.result.end, SK_EXECD_SIGNALLED);
    end(&f);
}
END_TEST

START_TEST(test_server_that_forgets_the_time_out)
{
    struct fixture f;

    begin(&f);
    script_add(&f.script, (struct script_rule){.method = "POST", .prefix = "", .run = run_chatter});
    script_json(&f.script, "DELETE", "", 200, "");
    ck_assert_int_eq(run_with(&f, (struct sk_execd_command){.timeout_ms = 100}), 0);
    ck_assert_int_eq(f.result.end, SK_EXECD_TIMED_OUT);
    ck_assert_int_ge(f.result.duration_ms,
                     SK_EXECD_MARGIN_MS - 1000); /* counted from init, the limit from the request */
    ck_assert(saw_interrupt(&f));
    end(&f);
}
END_TEST

/* ---- files ------------------------------------------------------------------------------------------------------ */

struct memory {
    const char *data;
    size_t len, at;
};

static ssize_t from_memory(void *arg, void *out, size_t size)
{
    struct memory *m = arg;

    if (size > m->len - m->at)
        size = m->len - m->at;
    memcpy(out, m->data + m->at, size);
    m->at += size;
    return (ssize_t)size;
}

static int upload(struct fixture *f, const char *path, int64_t *sent)
{
    struct memory m = {"hello\n", 6, 0};

    sk_error_clear(&f->err);
    return sk_execd_upload(
        &f->execd, &f->call,
        &(struct sk_execd_upload){
            .path = path, .mode = 0640, .owner = "me", .source = from_memory, .source_arg = &m, .size = 6},
        sent, &f->err);
}

#define INFO(size)                                                                                                     \
    "{\"/w/a b.txt\":{\"path\":\"/w/a b.txt\",\"type\":\"file\",\"size\":" size                                        \
    ",\"mode\":640,\"modified_at\":\"2026-11-30T08:00:00Z\"}}"

START_TEST(test_upload)
{
    static const struct {
        int upload_status;
        const char *upload_body;
        int info_status;
        const char *info;
        int rc;
        enum sk_outcome outcome;
    } table[] = {
        {200, "", 200, INFO("6"), 0, SK_OUTCOME_FAILED},
        {200, "", 200, INFO("5"), -1, SK_OUTCOME_UNKNOWN},                                         /* cut on the way */
        {200, "", 404, "{\"code\":\"FILE_NOT_FOUND\",\"message\":\"x\"}", -1, SK_OUTCOME_UNKNOWN}, /* swallowed */
        {200, "", 500, "{\"code\":\"RUNTIME_ERROR\",\"message\":\"x\"}", -1, SK_OUTCOME_UNKNOWN},
        {200, "", 200, "{}", -1, SK_OUTCOME_UNKNOWN},
        {500, "{\"code\":\"RUNTIME_ERROR\",\"message\":\"x\"}", 0, NULL, -1, SK_OUTCOME_UNKNOWN},
        {400, "{\"code\":\"INVALID_FILE\",\"message\":\"x\"}", 0, NULL, -1, SK_OUTCOME_FAILED},
    };
    struct peer_request seen;
    struct fixture f;
    int64_t sent;

    begin(&f);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        script_clear(&f.script);
        script_json(&f.script, "POST", "/proxy/44772/files/upload", table[i].upload_status, table[i].upload_body);
        if (table[i].info != NULL)
            script_json(&f.script, "GET", "/proxy/44772/files/info?path=%2Fw%2Fa%20b.txt", table[i].info_status,
                        table[i].info);
        ck_assert_msg(upload(&f, "/w/a b.txt", &sent) == table[i].rc, "row %zu: %s", i, f.err.message);
        ck_assert_int_eq(sent, 6);
        if (table[i].rc != 0)
            ck_assert_msg(f.err.outcome == table[i].outcome, "row %zu: %s", i, f.err.message);
    }
    ck_assert(peer_last(f.script.peer, "POST", "", &seen));
    ck_assert_ptr_nonnull(strstr(seen.body, "name=\"metadata\"; filename=\"metadata\""));
    ck_assert_ptr_nonnull(strstr(seen.body, "{\"path\":\"/w/a b.txt\",\"owner\":\"me\",\"mode\":640}"));
    ck_assert_ptr_nonnull(strstr(seen.body, "name=\"file\"; filename=\"a b.txt\""));
    ck_assert_ptr_nonnull(strstr(seen.body, "\r\n\r\nhello\n\r\n--"));
    ck_assert(strstr(seen.body, "metadata") < strstr(seen.body, "hello"));
    peer_request_free(&seen);
    ck_assert_int_eq(upload(&f, "", &sent), -1);
    ck_assert_int_eq(f.err.code, SK_ERR_INVALID_REQUEST);
    ck_assert_int_eq(upload(&f, "\xc3", &sent), -1);
    end(&f);
}
END_TEST

START_TEST(test_stat)
{
    struct sk_execd_file_info info;
    struct fixture f;
    bool found;

    begin(&f);
    script_json(&f.script, "GET", "", 200, INFO("6"));
    ck_assert_int_eq(sk_execd_stat(&f.execd, &f.call, "/w/a b.txt", &info, &found, &f.err), 0);
    ck_assert(found);
    ck_assert_int_eq(info.size, 6);
    ck_assert_int_eq(info.mode, 0640);
    ck_assert_int_eq(info.modified, 1796025600000);
    ck_assert_str_eq(info.type, "file");
    ck_assert_int_eq(sk_execd_stat(&f.execd, &f.call, "/other", &info, &found, &f.err), -1);
    script_clear(&f.script);
    script_json(&f.script, "GET", "", 404, "{\"code\":\"FILE_NOT_FOUND\",\"message\":\"x\"}");
    ck_assert_int_eq(sk_execd_stat(&f.execd, &f.call, "/w/a b.txt", &info, &found, &f.err), 0);
    ck_assert(!found);
    end(&f);
}
END_TEST

static int to_buffer(void *arg, const void *data, size_t len)
{
    return sk_buf_append(arg, data, len) ? SK_HTTP_SINK_MORE : SK_HTTP_SINK_FAIL;
}

START_TEST(test_download)
{
    static const struct {
        const char *what, *raw;
        int64_t offset;
        int rc;
        bool found;
        const char *content;
    } table[] = {
        {"whole", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n", 0, 0, true, "hello\n"},
        {"empty", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, 0, true, ""},
        {"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n0\r\n\r\n", 0, 0, true,
         "hello\n"},
        {"rest", "HTTP/1.1 206 X\r\nContent-Length: 3\r\nContent-Range: bytes 3-5/6\r\n\r\nlo\n", 3, 0, true, "lo\n"},
        {"cut", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello\n", 0, -1, false, "hello\n"},
        {"unmarked end", "HTTP/1.1 200 OK\r\n\r\nhello\n", 0, -1, false, "hello\n"},
        {"offset ignored", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n", 3, -1, false, ""},
        {"another part", "HTTP/1.1 206 X\r\nContent-Length: 3\r\nContent-Range: bytes 2-4/6\r\n\r\nllo", 3, -1, false,
         ""},
        {"part of nothing", "HTTP/1.1 206 X\r\nContent-Length: 3\r\n\r\nllo", 3, -1, false, ""},
        {"missing", "HTTP/1.1 404 X\r\nContent-Length: 41\r\n\r\n{\"code\":\"FILE_NOT_FOUND\",\"message\":\"xxx\"}", 0,
         0, false, ""},
        {"page", "HTTP/1.1 404 X\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", 0, -1, false, ""},
        {"416 with a wrong length", "HTTP/1.1 416 X\r\nContent-Length: 4100\r\n\r\n{}", 9, -1, false, ""},
        {"500", "HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\n{}", 0, -1, false, ""},
    };
    struct peer_request seen;
    struct fixture f;
    char value[64];

    begin(&f);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        int64_t received;
        bool found;

        script_clear(&f.script);
        script_add(&f.script, (struct script_rule){.method = "GET",
                                                   .prefix = "/proxy/44772/files/download?path=%2Ff%3F",
                                                   .raw = table[i].raw});
        sk_buf_clear(&f.out);
        ck_assert_msg(sk_execd_download(&f.execd, &f.call, "/f?", table[i].offset, to_buffer, &f.out, &received, &found,
                                        &f.err) == table[i].rc,
                      "%s: %s", table[i].what, f.err.message);
        ck_assert_msg(found == table[i].found, "%s", table[i].what);
        ck_assert_msg(strcmp(sk_buf_data(&f.out), table[i].content) == 0, "%s", table[i].what);
        ck_assert_int_eq(received, sk_buf_len(&f.out));
        ck_assert(peer_last(f.script.peer, "GET", "", &seen));
        ck_assert(peer_header(&seen, "Range", value, sizeof(value)) == (table[i].offset > 0));
        peer_request_free(&seen);
    }
    end(&f);
}
END_TEST

SK_CHECK_MAIN("execd client", test_streams, test_terminal_event_ends_the_wait, test_request, test_background,
              test_line_above_the_bound, test_broken_streams, test_silent_stream, test_refused, test_cancel_interrupts,
              test_output_can_stop_it, test_time_out_of_a_command, test_server_that_forgets_the_time_out, test_upload,
              test_stat, test_download)
