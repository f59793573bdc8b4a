/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames and end reasons to bodies. Values and logs are copied as they stand once the scanner has passed the frame;
 * what a failure says of itself is decoded, cleared of this machine's folders and written anew. */
#include "services/code/host/answer.h"

#include "services/code/frame.h"
#include "services/code/host/scan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_DIGITS 9

struct frame {
    struct code_span ok, value, code, message, type, line, traceback, log, move;
};

struct failure {
    const char *code;  /* of data.error, static */
    const char *fixed; /* message, or NULL: the frame's */
    const char *type;  /* of ours, or NULL */
};

/* ---- frames ------------------------------------------------------------------------------------- */
static void on_member(void *arg, const struct code_span *key, const struct code_span *value)
{
    struct frame *f = arg;
    const struct {
        const char *name;
        struct code_span *span;
    } members[] = {{"ok", &f->ok},     {"value", &f->value}, {"code", &f->code},           {"message", &f->message},
                   {"type", &f->type}, {"line", &f->line},   {"traceback", &f->traceback}, {"log", &f->log},
                   {"move", &f->move}};

    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        if (code_scan_equals(key, members[i].name))
            *members[i].span = *value;
    }
}

static bool text_or_none(const struct code_span *span)
{
    return span->kind == CODE_SCAN_STRING || span->kind == CODE_SCAN_NONE;
}

enum frame_kind { FRAME_BAD, FRAME_VALUE, FRAME_FAILURE, FRAME_MOVE, FRAME_MEMORY };

/* Exactly one frame, whole, of one of the three shapes. */
static enum frame_kind read_frame(const struct code_outcome *o, struct frame *f)
{
    const unsigned char *head = (const unsigned char *)o->frame;
    struct code_scan_fault fault;
    struct code_span root;
    size_t length;

    *f = (struct frame){.ok = {.kind = CODE_SCAN_NONE}};
    if (o->frame == NULL || o->frame_length < CODE_FRAME_HEADER)
        return FRAME_BAD;
    length = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    if (length != o->frame_length - CODE_FRAME_HEADER)
        return FRAME_BAD;
    if (!code_scan(o->frame + CODE_FRAME_HEADER, length, CODE_RESULT_DEPTH_MAX, on_member, f, &root, &fault))
        return fault.memory ? FRAME_MEMORY : FRAME_BAD;
    if (root.kind != CODE_SCAN_OBJECT)
        return FRAME_BAD;
    if (f->move.kind == CODE_SCAN_STRING && f->ok.kind == CODE_SCAN_NONE && o->pool == CODE_POOL_PYTHON)
        return FRAME_MOVE;
    if (f->ok.kind != CODE_SCAN_BOOLEAN || !text_or_none(&f->log))
        return FRAME_BAD;
    if (f->ok.text[0] == 't')
        return FRAME_VALUE;
    return f->message.kind == CODE_SCAN_STRING && text_or_none(&f->code) && text_or_none(&f->type) &&
                   text_or_none(&f->traceback)
               ? FRAME_FAILURE
               : FRAME_BAD;
}

/* ---- writing ------------------------------------------------------------------------------------ */
static bool put_escaped(struct sk_buf *out, const char *text, size_t length)
{
    static const char short_forms[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
    size_t start = 0;
    bool good = true;

    for (size_t i = 0; i < length && good; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        const char *at = c != '\0' ? strchr(short_forms, c) : NULL;
        good = sk_buf_append(out, text + start, i - start);
        if (at != NULL)
            good = good && sk_buf_printf(out, "\\%c", letters[at - short_forms]);
        else
            good = good && sk_buf_printf(out, "\\u%04x", c);
        start = i + 1;
    }
    return good && sk_buf_append(out, text + start, length - start);
}

static bool put_string(struct sk_buf *out, const char *text, size_t length)
{
    return sk_buf_append_char(out, '"') && put_escaped(out, text, length) && sk_buf_append_char(out, '"');
}

/* Length of the hidden folder that starts at `text`, the path's further folders included; 0 = none. Its last component
 * stays: a file's name tells the user something, where it lies does not. */
static size_t hidden_at(const struct code_outcome *o, const char *text, size_t left)
{
    for (const char *const *h = o->hidden; h != NULL && *h != NULL; h++) {
        size_t length = strlen(*h), end;
        if (length == 0 || left < length || memcmp(text, *h, length) != 0)
            continue;
        if ((*h)[length - 1] != '/' && left > length && text[length] != '/' &&
            strchr(" \t\n\"'`,;:)]>", text[length]) == NULL)
            continue;
        end = length;
        for (size_t i = length; i < left && text[i] != '\0' && strchr(" \t\n\"'`,;:()[]<>", text[i]) == NULL; i++) {
            if (text[i] == '/')
                end = i + 1;
        }
        return end;
    }
    return 0;
}

static bool put_cleared(const struct code_outcome *o, const struct code_span *span, struct sk_buf *out, bool *memory)
{
    char *text = malloc(span->length);
    struct code_decoded decoded;
    size_t kept = 0, n;
    bool good;

    if (text == NULL) {
        *memory = true;
        return false;
    }
    decoded = code_scan_decode(span, text);
    for (size_t i = 0; i<decoded.length; i += n> 0 ? n : 1) {
        n = hidden_at(o, text + i, decoded.length - i);
        if (n == 0)
            text[kept++] = text[i];
    }
    good = put_string(out, text, kept);
    free(text);
    return good;
}

static bool put_log(const struct frame *f, struct sk_buf *out)
{
    return sk_buf_append_text(out, "\"log\":") &&
           (f->log.kind == CODE_SCAN_STRING ? sk_buf_append(out, f->log.text, f->log.length)
                                            : sk_buf_append_text(out, "\"\""));
}

static bool line_good(const struct code_span *line)
{
    bool good = line->kind == CODE_SCAN_NUMBER && line->length <= LINE_MAX_DIGITS && line->text[0] != '0';

    for (size_t i = 0; good && i < line->length; i++)
        good = line->text[i] >= '0' && line->text[i] <= '9';
    return good;
}

static enum code_verdict put_failure(const struct code_outcome *o, const struct frame *f, const struct failure *failure,
                                     struct sk_buf *out)
{
    static const struct code_span none = {.kind = CODE_SCAN_NONE};
    bool own = failure->fixed == NULL || f->message.kind == CODE_SCAN_STRING, memory = false, good;
    const struct code_span *type = own && failure->type == NULL ? &f->type : &none;

    good = sk_buf_append_text(out, "{\"success\":false,\"message\":");
    good = good && (failure->fixed != NULL ? put_string(out, failure->fixed, strlen(failure->fixed))
                                           : put_cleared(o, &f->message, out, &memory));
    good = good && sk_buf_append_text(out, ",\"data\":{\"codeReturn\":null,") && put_log(f, out);
    good = good && sk_buf_printf(out, ",\"error\":{\"code\":\"%s\"", failure->code);
    if (failure->type != NULL)
        good = good && sk_buf_printf(out, ",\"type\":\"%s\"", failure->type);
    if (type->kind == CODE_SCAN_STRING)
        good = good && sk_buf_append_text(out, ",\"type\":") && put_cleared(o, type, out, &memory);
    if (own && line_good(&f->line))
        good = good && sk_buf_append_text(out, ",\"line\":") && sk_buf_append(out, f->line.text, f->line.length);
    if (own && f->traceback.kind == CODE_SCAN_STRING)
        good = good && sk_buf_append_text(out, ",\"traceback\":") && put_cleared(o, &f->traceback, out, &memory);
    good = good && sk_buf_append_text(out, "}}}");
    return good && !memory ? CODE_VERDICT_FAILURE : CODE_VERDICT_MEMORY;
}

/* ---- outcomes ----------------------------------------------------------------------------------- */
/* As the original words it, each language its own way. */
static void crash_text(const struct code_outcome *o, char *text, size_t size)
{
    const char *abbreviation = o->signal > 0 ? sigabbrev_np(o->signal) : NULL;
    char code[16], name[24];

    snprintf(code, sizeof(code), "%d", o->exit_status);
    snprintf(name, sizeof(name), "SIG%s", abbreviation != NULL ? abbreviation : "UNKNOWN");
    snprintf(text, size, "%s (exit code: %s, signal: %s)",
             o->pool == CODE_POOL_JS ? "Worker crashed during execution" : "Python runner exited before result",
             o->signal > 0 ? "null" : code, o->signal > 0 ? name : "null");
}

/* The message of an end that the task did not tell itself. */
static void end_text(const struct code_outcome *o, char *text, size_t size)
{
    const int64_t mib = 1024 * 1024;

    switch (o->end) {
    case CODE_END_TIMEOUT:
        snprintf(text, size, "Script execution timed out after %" PRId64 "ms", o->timeout_ms);
        break;
    case CODE_END_MEMORY:
        snprintf(text, size, "Memory limit exceeded (RSS: %" PRId64 "MB, limit: %" PRId64 "MB)",
                 (o->peak_bytes + mib / 2) / mib, o->memory_bytes / mib);
        break;
    case CODE_END_OUTPUT:
        snprintf(text, size, "Output too large (limit: %" PRId64 " bytes)", o->output_bytes);
        break;
    case CODE_END_PROCESSES:
        snprintf(text, size, "The code left processes behind");
        break;
    case CODE_END_CANCELLED:
        snprintf(text, size, "The request was cancelled");
        break;
    case CODE_END_WALLS:
        snprintf(text, size, "The task could not be isolated: nothing of it was run");
        break;
    default:
        crash_text(o, text, size);
        break;
    }
}

/* What a frame may say of itself; all else is an ordinary error. */
static const char *frame_code(const struct code_span *code)
{
    static const char *const codes[] = {"timeout", "memory", "output"};

    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        if (code_scan_equals(code, codes[i]))
            return codes[i];
    }
    return "error";
}

static enum code_verdict put_value(const struct frame *f, struct sk_buf *out)
{
    bool good = sk_buf_append_text(out, "{\"success\":true,\"data\":{\"codeReturn\":");

    good = good && (f->value.kind != CODE_SCAN_NONE ? sk_buf_append(out, f->value.text, f->value.length)
                                                    : sk_buf_append_text(out, "null"));
    good = good && sk_buf_append_char(out, ',') && put_log(f, out) && sk_buf_append_text(out, "}}");
    return good ? CODE_VERDICT_SUCCESS : CODE_VERDICT_MEMORY;
}

/* A module's name is one that could be written in a program: anything else is a forgery. */
static bool take_module(const struct code_span *span, struct code_answer *answer)
{
    struct code_decoded decoded;

    if (span->length < 3 || span->length - 2 >= sizeof(answer->module))
        return false;
    decoded = code_scan_decode(span, answer->module);
    answer->module[decoded.length] = '\0';
    return decoded.length > 0 &&
           strspn(answer->module, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == decoded.length;
}

static enum code_verdict outcome_of(const struct code_outcome *o, struct sk_buf *out, struct code_answer *answer)
{
    struct code_outcome crashed = *o;
    struct failure failure = {.code = code_end_name(o->end)};
    char text[256];
    struct frame f;
    enum frame_kind kind = read_frame(o, &f);

    if (kind == FRAME_MEMORY)
        return CODE_VERDICT_MEMORY;
    if (kind == FRAME_MOVE && !take_module(&f.move, answer))
        kind = FRAME_BAD;
    if (kind == FRAME_MOVE && o->end == CODE_END_DONE) {
        if (o->may_move)
            return CODE_VERDICT_MOVE;
        snprintf(text, sizeof(text), "Module '%s' must be imported by name at the top", answer->module);
        answer->code = "error";
        return put_failure(o, &f, &(struct failure){"error", text, "ImportError"}, out);
    }
    if (kind == FRAME_VALUE && o->end == CODE_END_DONE)
        return put_value(&f, out);
    if (kind == FRAME_FAILURE && (o->end == CODE_END_DONE || o->end == CODE_END_TIMEOUT || o->end == CODE_END_MEMORY ||
                                  o->end == CODE_END_OUTPUT)) {
        if (o->end == CODE_END_DONE)
            failure.code = frame_code(&f.code);
        /* Time-outs have one wording; the zygote's word on the reason stands above the frame's. */
        if (strcmp(failure.code, "timeout") == 0 ||
            (o->end != CODE_END_DONE && strcmp(frame_code(&f.code), failure.code) != 0)) {
            crashed.end = strcmp(failure.code, "timeout") == 0 ? CODE_END_TIMEOUT : o->end;
            end_text(&crashed, text, sizeof(text));
            failure.fixed = text;
        }
        answer->code = failure.code;
        return put_failure(o, &f, &failure, out);
    }
    /* Nothing of the frame but its log counts now. */
    f = (struct frame){.log = kind == FRAME_BAD ? (struct code_span){.kind = CODE_SCAN_NONE} : f.log};
    if (o->end == CODE_END_DONE || o->end == CODE_END_WALLS || o->end >= CODE_END_COUNT)
        failure.code = code_end_name(CODE_END_CRASHED);
    end_text(&crashed, text, sizeof(text));
    failure.fixed = text;
    answer->code = failure.code;
    return put_failure(o, &f, &failure, out);
}

enum code_verdict code_answer_outcome(const struct code_outcome *outcome, struct sk_buf *out,
                                      struct code_answer *answer)
{
    *answer = (struct code_answer){.code = ""};
    return outcome_of(outcome, out, answer);
}

bool code_answer_refusal(const char *message, struct sk_buf *out)
{
    return sk_buf_append_text(out, "{\"success\":false,\"message\":") && put_string(out, message, strlen(message)) &&
           sk_buf_append_char(out, '}');
}

void code_answer_admission(enum code_admission admission, enum code_pool pool, struct code_rejection *rejection)
{
    const char *message = "";

    rejection->status = 200; /* the original's pool errors are answers of the service, not of HTTP */
    switch (admission) {
    case CODE_ADMITTED:
        break;
    case CODE_FULL:
        rejection->status = 429;
        message = "Too many tasks are waiting, try again later";
        break;
    case CODE_DRAINING:
        message = "Pool is shutting down";
        break;
    case CODE_NOT_READY:
        message = pool == CODE_POOL_JS ? "JS process pool is not ready" : "Python isolated runner is not ready";
        break;
    case CODE_NO_MEMORY:
        rejection->status = 500;
        message = "Out of memory";
        break;
    }
    snprintf(rejection->message, sizeof(rejection->message), "%s", message);
}

int code_answer_health(const struct code_health *health, struct sk_buf *out)
{
    bool ready = !health->draining, good;

    for (int i = 0; i < CODE_POOLS; i++)
        ready = ready && health->pools[i].ready;
    good = sk_buf_printf(out, "{\"status\":\"%s\",\"pools\":{", ready ? "ok" : "degraded");
    for (int i = 0; i < CODE_POOLS; i++) {
        const struct code_queue_pool *p = &health->pools[i];
        good = good && sk_buf_printf(out,
                                     "%s\"%s\":{\"total\":%d,\"idle\":%d,\"busy\":%d,\"warming\":%d,\"queued\":%zu,"
                                     "\"poolSize\":%d,\"ready\":%s}",
                                     i > 0 ? "," : "", code_pool_name((enum code_pool)i), p->ready ? p->total : 0,
                                     p->ready ? p->idle : 0, p->busy, health->warming[i], p->queued, p->total,
                                     p->ready ? "true" : "false");
    }
    good = good && sk_buf_printf(out, "},\"isolation\":\"%s\"}", code_level_name(health->level));
    return good ? (ready ? 200 : 503) : 0;
}

static bool put_names(char *const *names, struct sk_buf *out)
{
    bool good = sk_buf_append_char(out, '[');

    for (size_t i = 0; names[i] != NULL; i++)
        good = good && (i == 0 || sk_buf_append_char(out, ',')) && put_string(out, names[i], strlen(names[i]));
    return good && sk_buf_append_char(out, ']');
}

bool code_answer_modules(char *const *js, char *const *python, struct sk_buf *out)
{
    return sk_buf_append_text(out, "{\"success\":true,\"data\":{\"js\":") && put_names(js, out) &&
           sk_buf_append_text(out, ",\"python\":") && put_names(python, out) &&
           sk_buf_append_text(out, ",\"builtinGlobals\":[\"SystemHelper.httpRequest\"]}}");
}
