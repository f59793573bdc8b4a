/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames in, requests out, answers back. One incoming frame and any number of finished answers (at most
 * CODE_FLIGHT_MAX) are held at a time. */
#include "services/code/host/rpc.h"

#include "common/base/buf.h"
#include "common/base/json.h"
#include "services/code/frame.h"
#include "services/code/host/scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ESCAPED_MAX  6            /* bytes of JSON that one byte of text can become */
#define FRAME_ROOM   (256 * 1024) /* of a frame beyond its body: URL and headers, escaped */
#define HEADERS_ROOM ((size_t)CODE_HEADER_BYTES_MAX * ESCAPED_MAX + 8192) /* of the headers alone, as JSON */
#define DEPTH_MAX    64
#define ID_MAX       9007199254740991.0 /* what JavaScript counts exactly */
#define TIMEOUT_MAX  1e9
#define READ_BYTES   ((size_t)65536) /* of one read */
#define READS_MAX    16              /* of one turn */

struct request {
    struct code_rpc *rpc; /* NULL = free */
    int64_t id;
};

struct code_rpc {
    struct code_rpc_options options;
    struct code_requester *requester;
    uv_poll_t *poll;
    struct sk_timer *retry;
    int fd, events;
    int64_t last_id, asked;   /* asked: frames that were requests */
    size_t frame_max, wanted; /* wanted: content of the frame that is coming; 0 = its header is */
    struct sk_buf in, out;
    int64_t held_in, held_out;
    struct request requests[CODE_FLIGHT_MAX];
    int in_flight;
    bool used, broken, eof;
};

static void on_poll(uv_poll_t *poll, int status, int events);
static void take_frames(struct code_rpc *rpc);

static void update(struct code_rpc *rpc)
{
    int events = 0;

    if (sk_buf_len(&rpc->out) > 0)
        events |= UV_WRITABLE;
    else if (!rpc->eof && rpc->in_flight < CODE_FLIGHT_MAX && !sk_timer_active(rpc->retry))
        events |= UV_READABLE;
    if (rpc->broken)
        events = 0;
    if (events == rpc->events)
        return;
    rpc->events = events;
    if (events != 0)
        uv_poll_start(rpc->poll, events, on_poll);
    else
        uv_poll_stop(rpc->poll);
}

static void break_line(struct code_rpc *rpc, const char *why)
{
    if (rpc->broken)
        return;
    rpc->broken = true;
    update(rpc);
    rpc->options.broken(rpc->options.arg, why);
}

/* ---- answers ------------------------------------------------------------------------------------ */
static void release_out(struct code_rpc *rpc)
{
    code_broker_release(rpc->options.broker, rpc->held_out);
    rpc->held_out = 0;
    sk_buf_fini(&rpc->out);
    sk_buf_init(&rpc->out, SIZE_MAX / 2);
}

/* False when the task's end is closed: its zygote will tell. */
static bool write_out(struct code_rpc *rpc)
{
    while (sk_buf_len(&rpc->out) > 0) {
        ssize_t n = send(rpc->fd, sk_buf_data(&rpc->out), sk_buf_len(&rpc->out), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        sk_buf_consume(&rpc->out, (size_t)n);
    }
    release_out(rpc);
    return true;
}

static json_t *answer_json(int64_t id, const struct code_net_answer *answer, const char *message)
{
    json_t *json;

    if (answer == NULL || message != NULL)
        return json_pack("{sI sb ss}", "id", (json_int_t)id, "ok", 0, "message", message);
    json = json_pack("{sI sb si}", "id", (json_int_t)id, "ok", 1, "status", answer->status);
    if (json == NULL || json_object_set_new(json, "statusText", sk_json_text(answer->status_text)) != 0 ||
        json_object_set_new(json, "headers", json_incref((json_t *)(uintptr_t)answer->headers)) != 0 ||
        json_object_set_new(json, "data", json_stringn_nocheck(answer->data, answer->length)) != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

/* Appends one frame, if the budget has room for it. */
static bool put_answer(struct code_rpc *rpc, const json_t *json)
{
    size_t length = json != NULL ? json_dumpb(json, NULL, 0, JSON_COMPACT) : 0;
    unsigned char head[CODE_FRAME_HEADER] = {(unsigned char)length, (unsigned char)(length >> 8),
                                             (unsigned char)(length >> 16), (unsigned char)(length >> 24)};
    char *room;

    if (length == 0 || length > UINT32_MAX || !code_broker_hold(rpc->options.broker, (int64_t)length))
        return false;
    room = sk_buf_reserve(&rpc->out, length + sizeof(head));
    if (room == NULL) {
        code_broker_release(rpc->options.broker, (int64_t)length);
        return false;
    }
    memcpy(room, head, sizeof(head));
    (void)json_dumpb(json, room + sizeof(head), length, JSON_COMPACT);
    sk_buf_commit(&rpc->out, length + sizeof(head));
    rpc->held_out += (int64_t)length;
    return true;
}

static void answer(struct code_rpc *rpc, int64_t id, const struct code_net_answer *given, const char *message)
{
    json_t *json = answer_json(id, given, message);

    if (!put_answer(rpc, json)) {
        json_decref(json);
        json = answer_json(id, NULL, "Too many responses at once, try again later");
        if (!put_answer(rpc, json)) {
            json_decref(json);
            break_line(rpc, "no room for an answer");
            return;
        }
    }
    json_decref(json);
    if (!write_out(rpc)) {
        rpc->eof = true;
        release_out(rpc);
    }
}

static void on_answer(void *arg, const struct code_net_answer *given)
{
    struct request *request = arg;
    struct code_rpc *rpc = request->rpc;
    int64_t id = request->id;

    request->rpc = NULL;
    rpc->in_flight--;
    if (rpc->eof || rpc->broken)
        return;
    answer(rpc, id, given, given->message);
    if (!rpc->broken)
        take_frames(rpc);
}

/* ---- requests ----------------------------------------------------------------------------------- */
/* Where the members of a frame stand: no tree is built of what a task sends, but for its headers, which are few. */
struct frame {
    struct code_span id, type, url, method, headers, body, timeout, follow;
};

static void on_member(void *arg, const struct code_span *key, const struct code_span *value)
{
    struct frame *f = arg;
    const struct {
        const char *name;
        struct code_span *span;
    } members[] = {
        {"id", &f->id},           {"type", &f->type}, {"url", &f->url},           {"method", &f->method},
        {"headers", &f->headers}, {"body", &f->body}, {"timeoutMs", &f->timeout}, {"followRedirects", &f->follow}};

    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        if (code_scan_equals(key, members[i].name))
            *members[i].span = *value;
    }
}

static bool optional(const struct code_span *span, enum code_scan_kind kind)
{
    return span->kind == CODE_SCAN_NONE || span->kind == kind;
}

static double number(const struct code_span *span)
{
    char text[32];

    if (span->kind != CODE_SCAN_NUMBER || span->length >= sizeof(text))
        return 0;
    memcpy(text, span->text, span->length);
    text[span->length] = '\0';
    return strtod(text, NULL);
}

/* Whole and exact; 0 = it is not. */
static int64_t whole(const struct code_span *span)
{
    double value = number(span);

    return value >= 1 && value <= ID_MAX && value == (double)(int64_t)value ? (int64_t)value : 0;
}

/* Decodes a string where it stands, and ends it with NUL; NULL when it is absent. */
static const char *text_of(const struct code_span *span, size_t *length)
{
    char *place = (char *)(uintptr_t)span->text; /* in our own buffer */

    if (span->kind == CODE_SCAN_NONE)
        return NULL;
    *length = code_scan_decode(span, place).length;
    place[*length] = '\0';
    return place;
}

/* What is wrong with the frame, or NULL; static. */
static const char *start(struct code_rpc *rpc, struct frame *f)
{
    struct request *request = rpc->requests;
    struct code_net_request asked = {.timeout_ms = 0};
    json_t *headers = NULL;
    size_t method_length = 0;
    struct code_transfer *started;
    int64_t id = whole(&f->id);

    if (id <= rpc->last_id)
        return "an id that does not grow";
    if (!code_scan_equals(&f->type, "http_request"))
        return "an unknown type";
    if (f->url.kind != CODE_SCAN_STRING || !optional(&f->method, CODE_SCAN_STRING) ||
        !optional(&f->headers, CODE_SCAN_OBJECT) || !optional(&f->body, CODE_SCAN_STRING) ||
        !optional(&f->timeout, CODE_SCAN_NUMBER) || !optional(&f->follow, CODE_SCAN_BOOLEAN))
        return "a member of a wrong type";
    rpc->last_id = id;
    rpc->used = true;
    if (++rpc->asked > rpc->options.limits.request_max + CODE_RPC_EXCESS_MAX)
        return "far more requests than it may make";
    if (rpc->asked > rpc->options.limits.request_max + 1) {
        answer(rpc, id, NULL, CODE_REQUEST_LIMIT_TEXT);
        return NULL;
    }
    if (f->headers.length > HEADERS_ROOM) {
        answer(rpc, id, NULL, code_net_refusal_message(CODE_REFUSED_HEADER_BYTES));
        return NULL;
    }
    if (f->headers.kind == CODE_SCAN_OBJECT) {
        headers = json_loadb(f->headers.text, f->headers.length, JSON_ALLOW_NUL, NULL);
        if (headers == NULL) { /* lone surrogates, or deeper than headers are */
            answer(rpc, id, NULL, code_net_refusal_message(CODE_REFUSED_HEADER));
            return NULL;
        }
    }
    while (request->rpc != NULL) /* one is free: in_flight says so */
        request++;
    *request = (struct request){.rpc = rpc, .id = id};
    asked.url = text_of(&f->url, &asked.url_length);
    asked.method = text_of(&f->method, &method_length);
    if (asked.method != NULL && strlen(asked.method) != method_length)
        asked.method = "\n"; /* with a NUL inside: no method */
    asked.headers = headers;
    asked.body = text_of(&f->body, &asked.body_length);
    asked.timeout_ms =
        number(&f->timeout) >= 1 && number(&f->timeout) <= TIMEOUT_MAX ? (int64_t)number(&f->timeout) : 0;
    asked.follow_redirects = f->follow.kind == CODE_SCAN_BOOLEAN && f->follow.text[0] == 't';
    started = code_transfer_start(rpc->requester, &asked, on_answer, request);
    json_decref(headers);
    if (started == NULL) {
        request->rpc = NULL;
        return "out of memory";
    }
    rpc->in_flight++;
    return NULL;
}

static void release_in(struct code_rpc *rpc)
{
    code_broker_release(rpc->options.broker, rpc->held_in);
    rpc->held_in = 0;
    if (rpc->in.capacity > 4 * CODE_RPC_FREE_BYTES && sk_buf_len(&rpc->in) == 0) {
        sk_buf_fini(&rpc->in);
        sk_buf_init(&rpc->in, rpc->frame_max + CODE_FRAME_HEADER + READ_BYTES);
    }
}

/* Starts the request of every whole frame that has come, as far as they may be on their way. */
static void take_frames(struct code_rpc *rpc)
{
    while (rpc->in_flight < CODE_FLIGHT_MAX && sk_buf_len(&rpc->out) == 0) {
        const unsigned char *head = (const unsigned char *)sk_buf_data(&rpc->in);
        struct code_scan_fault fault;
        struct frame frame = {.id = {.kind = CODE_SCAN_NONE}};
        struct code_span root;
        const char *wrong;

        if (rpc->wanted == 0) {
            if (sk_buf_len(&rpc->in) < CODE_FRAME_HEADER)
                break;
            rpc->wanted = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
            if (rpc->wanted == 0 || rpc->wanted > rpc->frame_max) {
                break_line(rpc, "a frame of a wrong length");
                return;
            }
            sk_buf_consume(&rpc->in, CODE_FRAME_HEADER);
        }
        if (sk_buf_len(&rpc->in) < rpc->wanted)
            break;
        wrong = code_scan(sk_buf_data(&rpc->in), rpc->wanted, DEPTH_MAX, on_member, &frame, &root, &fault)
                    ? start(rpc, &frame)
                    : "a frame that is no JSON";
        sk_buf_consume(&rpc->in, rpc->wanted);
        rpc->wanted = 0;
        release_in(rpc);
        if (rpc->broken)
            return;
        if (wrong != NULL) {
            break_line(rpc, wrong);
            return;
        }
    }
    update(rpc);
}

/* ---- the socket --------------------------------------------------------------------------------- */
/* Room for what is read next; false: later. Frames of ordinary size cost the budget nothing. */
static bool may_read(struct code_rpc *rpc)
{
    int64_t needs = (int64_t)sk_buf_len(&rpc->in) - CODE_RPC_FREE_BYTES;

    if (needs <= rpc->held_in)
        return true;
    if (!code_broker_hold(rpc->options.broker, needs - rpc->held_in)) {
        sk_timer_start(rpc->retry, CODE_RPC_RETRY_MS, 0);
        return false;
    }
    rpc->held_in = needs;
    return true;
}

static void on_retry(void *arg)
{
    update(arg);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct code_rpc *rpc = poll->data;

    if (status < 0) {
        rpc->eof = true;
        update(rpc);
        return;
    }
    if ((events & UV_WRITABLE) != 0 && !write_out(rpc)) {
        rpc->eof = true;
        release_out(rpc);
    }
    for (int i = 0; i < READS_MAX && (events & UV_READABLE) != 0 && !rpc->eof && may_read(rpc); i++) {
        size_t behind = rpc->wanted > sk_buf_len(&rpc->in) ? rpc->wanted - sk_buf_len(&rpc->in) : 0;
        char *room = sk_buf_reserve(&rpc->in, READ_BYTES);
        ssize_t n;

        if (room == NULL) {
            break_line(rpc, "no room for a frame");
            return;
        }
        n = recv(rpc->fd, room, READ_BYTES, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0) {
            rpc->eof = true;
            break;
        }
        sk_buf_commit(&rpc->in, (size_t)n);
        if ((size_t)n >= behind)
            break; /* a frame is whole, or a header has come: look at it before more is read */
    }
    if (rpc->eof && code_rpc_used(rpc)) {
        code_requester_free(rpc->requester); /* nobody is there for the answers */
        rpc->requester = NULL;
        update(rpc);
        return;
    }
    take_frames(rpc);
}

struct code_rpc *code_rpc_new(const struct code_rpc_options *options, int fd)
{
    struct code_rpc *rpc = calloc(1, sizeof(*rpc));
    const char *queue_id = options->queue_id[0] != '\0' ? options->queue_id : NULL;

    if (rpc == NULL)
        return NULL;
    rpc->options = *options;
    rpc->fd = fd;
    rpc->frame_max = (size_t)options->limits.body_bytes * ESCAPED_MAX + FRAME_ROOM;
    sk_buf_init(&rpc->in, rpc->frame_max + CODE_FRAME_HEADER + READ_BYTES);
    sk_buf_init(&rpc->out, SIZE_MAX / 2);
    rpc->requester = code_requester_new(options->broker, options->task_id, queue_id, &options->limits);
    rpc->retry = sk_timer_new(options->loop, on_retry, rpc);
    rpc->poll = calloc(1, sizeof(*rpc->poll));
    if (rpc->requester == NULL || rpc->retry == NULL || rpc->poll == NULL ||
        uv_poll_init(sk_loop_uv(options->loop), rpc->poll, fd) != 0) {
        code_requester_free(rpc->requester);
        sk_timer_free(rpc->retry);
        free(rpc->poll);
        free(rpc);
        return NULL;
    }
    rpc->poll->data = rpc;
    update(rpc);
    return rpc;
}

bool code_rpc_used(const struct code_rpc *rpc)
{
    return rpc->used;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle);
}

void code_rpc_free(struct code_rpc *rpc)
{
    if (rpc == NULL)
        return;
    code_requester_free(rpc->requester);
    code_broker_release(rpc->options.broker, rpc->held_in + rpc->held_out);
    sk_timer_free(rpc->retry);
    uv_close((uv_handle_t *)rpc->poll, on_closed);
    close(rpc->fd); /* after uv_close: the loop does not look at it any more */
    sk_buf_fini(&rpc->in);
    sk_buf_fini(&rpc->out);
    free(rpc);
}
