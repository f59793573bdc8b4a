/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands over execd's event stream. The rules are those of reference/providers.md §2.2: the terminal event ends the
 * command, not the end of the stream; a stream without one says nothing; closing it stops nothing. */
#include "common/provider/execd_private.h"

#include "common/base/id.h"
#include "common/base/json.h"
#include "common/http/sse.h"
#include "common/http/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_DEPTH_MAX  32
#define POLL_FIRST_MS    100
#define POLL_MAX_MS      1000
#define TIMEOUT_SLACK_MS 100 /* a kill this close to the time-out is taken for it */
#define REQUEST_MS       120000
#define ANSWER_MAX       (1024 * 1024)

const char *sk_execd_end_name(enum sk_execd_end end)
{
    static const char *const names[] = {
        [SK_EXECD_LOST] = "lost",           [SK_EXECD_EXITED] = "exited",   [SK_EXECD_SIGNALLED] = "signalled",
        [SK_EXECD_TIMED_OUT] = "timed_out", [SK_EXECD_STOPPED] = "stopped", [SK_EXECD_START_FAILED] = "start_failed",
        [SK_EXECD_CANCELLED] = "cancelled",
    };

    return names[end];
}

size_t sk_execd_headers(const struct sk_execd *execd, struct sk_http_header *out)
{
    for (int i = 0; i < execd->header_count; i++)
        out[i] = (struct sk_http_header){execd->headers[i].name, execd->headers[i].value};
    return (size_t)execd->header_count;
}

char *sk_execd_url(const struct sk_execd *execd, const char *const *segments, const char *query, const char *value)
{
    struct sk_url_builder b;

    sk_url_begin(&b, execd->url);
    for (; *segments != NULL; segments++)
        sk_url_segment(&b, *segments);
    if (query != NULL)
        sk_url_query(&b, query, value);
    return sk_url_take(&b);
}

static int64_t request_timeout(const struct sk_execd *execd)
{
    return execd->request_timeout_ms > 0 ? execd->request_timeout_ms : REQUEST_MS;
}

int sk_execd_json(const struct sk_execd *execd, struct sk_call *call, enum sk_wire_operation operation,
                  const char *method, char *url, struct sk_wire_answer *answer, struct sk_error *err)
{
    struct sk_http_header headers[SK_EXECD_HEADERS_MAX];
    const struct sk_wire_request request = {.operation = operation,
                                            .method = method,
                                            .url = url,
                                            .headers = headers,
                                            .header_count = sk_execd_headers(execd, headers),
                                            .timeout_ms = request_timeout(execd),
                                            .answer_max = execd->answer_max > 0 ? execd->answer_max : ANSWER_MAX};

    return sk_wire_json(call, &request, answer, err);
}

static bool invalid(const struct sk_error *err)
{
    return err != NULL && err->code == SK_ERR_INVALID_REQUEST;
}

int sk_execd_ping(const struct sk_execd *execd, struct sk_call *call, bool *ready, struct sk_error *err)
{
    static const char *const path[] = {"ping", NULL};
    struct sk_wire_answer answer = {0};
    struct sk_http_header headers[SK_EXECD_HEADERS_MAX];
    struct sk_http_response response = {0};
    char *url = sk_execd_url(execd, path, NULL, NULL);
    int rc = -1;

    *ready = false;
    if (url == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "ping: the address cannot be built");
    rc = sk_wire_send(call, SK_WIRE_PROBE,
                      &(struct sk_http_request){.method = "GET",
                                                .url = url,
                                                .headers = headers,
                                                .header_count = sk_execd_headers(execd, headers),
                                                .total_timeout_ms = request_timeout(execd)},
                      &response, err);
    if (rc != 0) {
        /* Nobody there, cut, or silent: that is what "not ready" looks like, unless we were called back ourselves. */
        bool silent =
            response.end == SK_HTTP_REFUSED || response.end == SK_HTTP_LOST || response.end == SK_HTTP_TIMEOUT;

        if (silent && !invalid(err) && sk_call_budget_ms(call, 1) > 0) {
            sk_error_clear(err);
            rc = 0;
        } else {
            sk_fail_context(err, "ping");
        }
        goto out;
    }
    sk_wire_read(&answer, &response);
    switch (response.status) {
    case 200:
    case 204:
        *ready = !answer.html; /* a gateway's page is not execd */
        break;
    case 404:
    case 409:
    case 425:
    case 429:
        break;
    default:
        if (response.status < 500)
            rc = sk_wire_fail(err, &answer, "ping");
        break;
    }
out:
    sk_wire_answer_fini(&answer);
    sk_http_response_fini(&response);
    free(url);
    return rc;
}

/* ---- status and interrupt --------------------------------------------------------------------------------------- */

int sk_execd_command_status(const struct sk_execd *execd, struct sk_call *call, const char *command_id,
                            struct sk_execd_status *out, bool *found, struct sk_error *err)
{
    const char *const path[] = {"command", "status", command_id, NULL};
    struct sk_wire_answer answer = {0};
    const json_t *running, *exit_code;
    const char *error;
    int rc = -1;

    memset(out, 0, sizeof(*out));
    *found = false;
    if (sk_execd_json(execd, call, SK_WIRE_CONTROL, "GET", sk_execd_url(execd, path, NULL, NULL), &answer, err) != 0) {
        sk_fail_context(err, "command status");
        goto out;
    }
    if (sk_wire_absent(&answer)) {
        rc = 0;
        goto out;
    }
    if (answer.status != 200) {
        sk_wire_fail(err, &answer, "command status");
        goto out;
    }
    running = json_object_get(answer.json, "running");
    exit_code = json_object_get(answer.json, "exit_code");
    if (!json_is_boolean(running)) {
        sk_wire_fail_body(err, &answer, "command status", "it does not say whether the command is running");
        goto out;
    }
    out->running = json_is_true(running);
    if (json_is_integer(exit_code) && json_integer_value(exit_code) >= INT32_MIN &&
        json_integer_value(exit_code) <= INT32_MAX) {
        out->has_exit_code = true;
        out->exit_code = (int)json_integer_value(exit_code);
    }
    error = sk_wire_text(json_object_get(answer.json, "error"));
    if (error != NULL)
        sk_wire_clean(out->error, sizeof(out->error), error);
    *found = true;
    rc = 0;
out:
    sk_wire_answer_fini(&answer);
    return rc;
}

int sk_execd_interrupt(const struct sk_execd *execd, struct sk_call *call, const char *command_id, struct sk_error *err)
{
    static const char *const path[] = {"command", NULL};
    struct sk_wire_answer answer = {0};
    int rc = -1;

    if (sk_execd_json(execd, call, SK_WIRE_CONTROL, "DELETE", sk_execd_url(execd, path, "id", command_id), &answer,
                      err) != 0)
        sk_fail_context(err, "interrupt");
    else if (answer.status / 100 != 2)
        sk_wire_fail(err, &answer, "interrupt");
    else
        rc = 0;
    sk_wire_answer_fini(&answer);
    return rc;
}

/* ---- run -------------------------------------------------------------------------------------------------------- */

struct run {
    const struct sk_execd *execd;
    struct sk_call *call;
    const struct sk_execd_command *command;
    struct sk_execd_result *result;
    struct sk_sse sse;
    struct sk_buf line; /* one line of output with its end */
    int64_t started_us; /* when `init` came, or the request began */
    bool terminal;      /* the result's end is set by an event */
    bool stopped;       /* on_output wants no more */
};

static int64_t since_start_ms(const struct run *run)
{
    return (sk_mono_us(run->call->sched) - run->started_us) / 1000;
}

static void take_init(struct run *run, const json_t *event)
{
    const char *id = sk_wire_text(json_object_get(event, "text"));

    run->started_us = sk_mono_us(run->call->sched);
    /* Only an id that can go into a URL as one segment is of use. */
    if (id == NULL || id[0] == '\0' || strcmp(id, ".") == 0 || strcmp(id, "..") == 0 ||
        !sk_copy(run->result->id, sizeof(run->result->id), id))
        run->result->id[0] = '\0';
    else if (run->command->on_start != NULL)
        run->command->on_start(run->command->arg, run->result->id);
}

/* execd drops line ends; an empty line comes as "\n". */
static void take_output(struct run *run, enum sk_execd_stream stream, const json_t *event)
{
    const json_t *json = json_object_get(event, "text");
    const char *text = json_is_string(json) ? json_string_value(json) : "";
    size_t len = json_string_length(json);

    sk_buf_clear(&run->line);
    if (!sk_buf_append(&run->line, text, len) ||
        ((len != 1 || text[0] != '\n') && !sk_buf_append_char(&run->line, '\n'))) {
        run->result->output_lost = true;
        return;
    }
    len = sk_buf_len(&run->line);
    run->result->output_bytes += len;
    if (run->command->on_output != NULL &&
        run->command->on_output(run->command->arg, stream, sk_buf_data(&run->line), len) != 0)
        run->stopped = true;
}

static bool read_exit_code(const char *text, int *code)
{
    char *end = NULL;
    long value;

    if (text == NULL || *text == '\0')
        return false;
    value = strtol(text, &end, 10);
    if (*end != '\0' || value < INT32_MIN || value > INT32_MAX)
        return false;
    *code = (int)value;
    return true;
}

/* A negative exit code is execd's word for a death by signal; its own time-out kills too and looks the same. */
static void set_exit(struct run *run, int code)
{
    struct sk_execd_result *result = run->result;

    if (code >= 0) {
        result->end = SK_EXECD_EXITED;
        result->exit_code = code;
    } else if (run->command->timeout_ms > 0 && since_start_ms(run) + TIMEOUT_SLACK_MS >= run->command->timeout_ms) {
        result->end = SK_EXECD_TIMED_OUT;
    } else {
        result->end = SK_EXECD_SIGNALLED;
    }
}

static void take_error(struct run *run, const json_t *event)
{
    const json_t *error = json_object_get(event, "error");
    const char *value = sk_wire_text(json_object_get(error, "evalue"));
    const char *trace = sk_wire_text(json_array_get(json_object_get(error, "traceback"), 0));
    int code;

    run->terminal = true;
    run->result->duration_ms = since_start_ms(run);
    if (read_exit_code(value, &code)) {
        set_exit(run, code);
        value = trace;
    } else {
        run->result->end = SK_EXECD_START_FAILED;
    }
    if (value != NULL)
        sk_wire_clean(run->result->detail, sizeof(run->result->detail), value);
}

static void take_complete(struct run *run, const json_t *event)
{
    const json_t *time = json_object_get(event, "execution_time");

    run->terminal = true;
    run->result->end = SK_EXECD_EXITED;
    run->result->exit_code = 0;
    run->result->duration_ms = json_is_integer(time) ? json_integer_value(time) : since_start_ms(run);
}

static int on_event(void *arg, const struct sk_sse_event *raw)
{
    const struct sk_json_limits limits = {.max_bytes = SIZE_MAX, .max_depth = EVENT_DEPTH_MAX};
    struct run *run = arg;
    json_t *event = raw->oversize ? NULL : sk_json_parse_object(raw->data, raw->len, &limits, NULL);
    const char *type = sk_wire_text(json_object_get(event, "type"));

    if (event == NULL)
        run->result->output_lost = true; /* too long, cut, or not JSON: it may have been output */
    else if (type == NULL && json_object_get(event, "message") != NULL)
        /* A late failure of the handler, appended to a stream that began well; the command's own end is not known. */
        sk_wire_clean(run->result->detail, sizeof(run->result->detail),
                      sk_wire_text(json_object_get(event, "message")) == NULL
                          ? ""
                          : sk_wire_text(json_object_get(event, "message")));
    else if (type == NULL)
        run->result->output_lost = true;
    else if (strcmp(type, "init") == 0)
        take_init(run, event);
    else if (strcmp(type, "stdout") == 0)
        take_output(run, SK_EXECD_STDOUT, event);
    else if (strcmp(type, "stderr") == 0)
        take_output(run, SK_EXECD_STDERR, event);
    else if (strcmp(type, "execution_complete") == 0)
        take_complete(run, event);
    else if (strcmp(type, "error") == 0)
        take_error(run, event);
    /* "ping" and whatever comes later are only a sign of life. */
    json_decref(event);
    return run->terminal || run->stopped;
}

static int on_data(void *arg, const void *data, size_t len)
{
    struct run *run = arg;
    int rc = sk_sse_feed(&run->sse, data, len, NULL);

    return rc < 0 ? SK_HTTP_SINK_FAIL : rc > 0 ? SK_HTTP_SINK_STOP : SK_HTTP_SINK_MORE;
}

static char *command_body(const struct sk_execd_command *command, size_t *len, struct sk_error *err)
{
    json_t *body = json_object(), *envs = NULL;
    char *text;

    json_object_set_new(body, "command", json_string(command->command));
    if (command->cwd != NULL)
        json_object_set_new(body, "cwd", json_string(command->cwd));
    if (command->background)
        json_object_set_new(body, "background", json_true());
    if (command->timeout_ms > 0)
        json_object_set_new(body, "timeout", json_integer(command->timeout_ms));
    if (command->uid >= 0)
        json_object_set_new(body, "uid", json_integer(command->uid));
    if (command->gid >= 0)
        json_object_set_new(body, "gid", json_integer(command->gid));
    if (command->env_count > 0) {
        envs = json_object();
        for (size_t i = 0; i < command->env_count; i++) {
            if (json_object_set_new(envs, command->envs[i].name, json_string(command->envs[i].value)) != 0) {
                json_decref(envs);
                json_decref(body);
                sk_fail(err, SK_ERR_INVALID_REQUEST, "run: environment variable %zu is not UTF-8", i);
                return NULL;
            }
        }
        json_object_set_new(body, "envs", envs);
    }
    if (json_object_get(body, "command") == NULL || (command->cwd != NULL && json_object_get(body, "cwd") == NULL)) {
        json_decref(body);
        sk_fail(err, SK_ERR_INVALID_REQUEST, "run: command or folder is not UTF-8");
        return NULL;
    }
    text = sk_json_dump(body, false, len, err);
    json_decref(body);
    return text;
}

/* A call of its own on the caller's connections: the caller's may be cancelled already. */
static void interrupt_aside(struct run *run)
{
    struct sk_call aside;
    struct sk_error ignored;

    if (run->result->id[0] == '\0')
        return;
    sk_call_init(&aside, run->call->sched);
    aside.deadline_us = sk_mono_us(aside.sched) + SK_EXECD_INTERRUPT_MS * 1000;
    aside.transport = run->call->transport;
    /* Best effort: the command may have ended meanwhile (execd answers 500 then), or execd is gone. */
    (void)!sk_execd_interrupt(run->execd, &aside, run->result->id, &ignored);
    run->call->transport = aside.transport;
}

static int lost(struct run *run, const char *why, struct sk_error *err)
{
    run->result->end = SK_EXECD_LOST;
    return sk_fail_unknown(err, SK_ERR_PROVIDER_ERROR, "run: %s; the command's end is not known", why);
}

static int cancelled(struct run *run, struct sk_error *err)
{
    bool by_caller = sk_call_cancelled(run->call);

    interrupt_aside(run);
    run->result->end = SK_EXECD_CANCELLED;
    return sk_fail_unknown(err, by_caller ? SK_ERR_CANCELLED : SK_ERR_PROVIDER_TIMEOUT, "run: %s",
                           by_caller ? "cancelled" : "the deadline passed");
}

/* The stream ended without a terminal event: the status is the only witness left. */
static int recover(struct run *run, struct sk_error *err)
{
    const struct sk_execd_command *command = run->command;
    struct sk_execd_result *result = run->result;
    int64_t recovery_ms = command->recovery_ms > 0 ? command->recovery_ms : SK_EXECD_RECOVERY_MS;
    int64_t until_us = sk_mono_us(run->call->sched) + recovery_ms * 1000, wait_ms = POLL_FIRST_MS;
    bool asked = false;

    result->output_lost = true;
    if (result->id[0] == '\0')
        return lost(run, result->detail[0] != '\0' ? result->detail : "the stream broke before it began", err);
    /* A command with a time-out ends by itself: it is waited for. */
    if (command->timeout_ms > 0 && !command->background) {
        int64_t end_us = run->started_us + (command->timeout_ms + SK_EXECD_MARGIN_MS) * 1000;
        until_us = end_us > until_us ? end_us : until_us;
    }
    for (;;) {
        struct sk_execd_status status;
        bool found;

        if (sk_execd_command_status(run->execd, run->call, result->id, &status, &found, err) == 0) {
            if (!found)
                return lost(run, "the stream broke and execd does not know the command", err);
            asked = true;
            result->running = status.running;
            if (!status.running && (status.has_exit_code || command->background)) {
                set_exit(run, status.has_exit_code ? status.exit_code : 0);
                sk_copy_cut(result->detail, sizeof(result->detail), status.error);
                result->duration_ms = since_start_ms(run);
                return 0;
            }
            if (!status.running && status.error[0] != '\0') {
                result->end = SK_EXECD_START_FAILED;
                sk_copy_cut(result->detail, sizeof(result->detail), status.error);
                return 0;
            }
            if (status.running && command->background) {
                result->end = SK_EXECD_EXITED; /* it started, which is all that was asked for */
                return 0;
            }
        } else if (sk_call_budget_ms(run->call, 1) == 0) {
            return cancelled(run, err);
        }
        if (sk_mono_us(run->call->sched) >= until_us)
            break;
        if (!sk_call_sleep_ms(run->call, wait_ms))
            return cancelled(run, err);
        wait_ms = wait_ms * 2 < POLL_MAX_MS ? wait_ms * 2 : POLL_MAX_MS;
    }
    return lost(
        run, asked ? "the stream broke and the command still runs" : "the stream broke and execd does not answer", err);
}

/* What the end of the HTTP request means for the command. */
static int conclude(struct run *run, const struct sk_http_response *response, int sent, struct sk_error *err)
{
    struct sk_execd_result *result = run->result;
    int64_t limit_ms = run->command->timeout_ms;

    if (run->terminal)
        return 0;
    if (run->stopped) {
        interrupt_aside(run);
        result->end = SK_EXECD_STOPPED;
        result->duration_ms = since_start_ms(run);
        return 0;
    }
    if (response->end == SK_HTTP_CANCELLED || sk_call_budget_ms(run->call, 1) == 0)
        return cancelled(run, err);
    if (sent != 0 && err->outcome == SK_OUTCOME_FAILED) {
        result->end = SK_EXECD_LOST;
        return sk_fail_context(err, "run");
    }
    if (response->end == SK_HTTP_TIMEOUT && limit_ms > 0 && since_start_ms(run) >= limit_ms) {
        /* The server did not keep its own time limit. */
        interrupt_aside(run);
        result->end = SK_EXECD_TIMED_OUT;
        result->duration_ms = since_start_ms(run);
        return 0;
    }
    return recover(run, err);
}

int sk_execd_run(const struct sk_execd *execd, struct sk_call *call, const struct sk_execd_command *command,
                 struct sk_execd_result *result, struct sk_error *err)
{
    static const char *const path[] = {"command", NULL};
    struct run run = {.execd = execd, .call = call, .command = command, .result = result};
    struct sk_http_header headers[SK_EXECD_HEADERS_MAX + 2];
    struct sk_http_response response = {0};
    struct sk_error own;
    size_t count = sk_execd_headers(execd, headers), body_len = 0;
    char *url = sk_execd_url(execd, path, NULL, NULL), *body = NULL;
    int rc = -1;

    err = err == NULL ? &own : err;
    memset(result, 0, sizeof(*result));
    sk_buf_init(&run.line, SK_EXECD_EVENT_MAX + 1);
    sk_sse_init(&run.sse, SK_EXECD_EVENT_MAX, SK_SSE_SKIP, on_event, &run);
    body = command_body(command, &body_len, err);
    if (body == NULL)
        goto out;
    if (url == NULL) {
        rc = sk_fail(err, SK_ERR_INVALID_REQUEST, "run: the address cannot be built");
        goto out;
    }
    headers[count++] = (struct sk_http_header){"Content-Type", "application/json"};
    headers[count++] = (struct sk_http_header){"Accept", "text/event-stream"};
    run.started_us = sk_mono_us(call->sched);
    rc = sk_wire_send(call, SK_WIRE_EXEC,
                      &(struct sk_http_request){
                          .method = "POST",
                          .url = url,
                          .headers = headers,
                          .header_count = count,
                          .body = body,
                          .body_len = body_len,
                          .sink = on_data,
                          .sink_arg = &run,
                          .idle_timeout_ms = command->idle_ms > 0 ? command->idle_ms : SK_EXECD_IDLE_MS,
                          .total_timeout_ms = command->timeout_ms > 0 ? command->timeout_ms + SK_EXECD_MARGIN_MS : -1},
                      &response, err);
    if (rc == 0 && response.status / 100 != 2) {
        struct sk_wire_answer answer;

        sk_wire_read(&answer, &response);
        rc = sk_wire_fail(err, &answer, "run");
        sk_wire_answer_fini(&answer);
        goto out;
    }
    if (!run.terminal && !run.stopped)
        (void)!sk_sse_finish(&run.sse, NULL); /* a last line without its end may be the terminal event */
    rc = conclude(&run, &response, rc, err);
out:
    sk_sse_fini(&run.sse);
    sk_buf_fini(&run.line);
    sk_http_response_fini(&response);
    free(url);
    free(body);
    return rc;
}
