/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames in, requests out, answers back. One incoming frame and any number of finished answers (at most
 * CODE_FLIGHT_MAX) are held at a time. */
#include "services/code/host/rpc.h"

#include "common/base/buf.h"
#include "common/base/json.h"
#include "services/code/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ESCAPED_MAX 6               /* bytes of JSON that one byte of text can become */
#define FRAME_ROOM  (256 * 1024)    /* of a frame beyond its body: URL and headers, escaped */
#define READ_BYTES  ((size_t)65536) /* of one read */
#define READS_MAX   16              /* of one turn */

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
    int64_t last_id;
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

    if (message != NULL)
        return json_pack("{sI sb ss}", "id", (json_int_t)id, "ok", 0, "message", message);
    json = json_pack("{sI sb si}", "id", (json_int_t)id, "ok", 1, "status", answer->status);
    if (json == NULL || json_object_set_new(json, "statusText", sk_json_text(answer->status_text)) != 0 ||
        json_object_set_new(json, "headers", json_deep_copy(answer->headers)) != 0 ||
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
static bool optional(const json_t *value, json_type type)
{
    return value == NULL || json_typeof(value) == type;
}

/* Milliseconds that fit; 0 = the limit. */
static int64_t whole(const json_t *value)
{
    double number = json_number_value(value);

    return number >= 1 && number <= 1e9 ? (int64_t)number : 0;
}

/* What is wrong with the frame, or NULL; static. */
static const char *start(struct code_rpc *rpc, const json_t *frame)
{
    const json_t *id = json_object_get(frame, "id"), *type = json_object_get(frame, "type"),
                 *url = json_object_get(frame, "url"), *method = json_object_get(frame, "method"),
                 *headers = json_object_get(frame, "headers"), *body = json_object_get(frame, "body"),
                 *timeout = json_object_get(frame, "timeoutMs"), *follow = json_object_get(frame, "followRedirects");
    struct code_net_request asked;
    struct request *request = rpc->requests;

    if (!json_is_object(frame) || !json_is_integer(id) || json_integer_value(id) <= rpc->last_id)
        return "an id that does not grow";
    if (!json_is_string(type) || strcmp(json_string_value(type), "http_request") != 0)
        return "an unknown type";
    if (!json_is_string(url) || !optional(method, JSON_STRING) || !optional(headers, JSON_OBJECT) ||
        !optional(body, JSON_STRING) || !(timeout == NULL || json_is_number(timeout)) ||
        !(follow == NULL || json_is_boolean(follow)))
        return "a member of a wrong type";
    rpc->last_id = json_integer_value(id);
    rpc->used = true;
    while (request->rpc != NULL) /* one is free: in_flight says so */
        request++;
    *request = (struct request){.rpc = rpc, .id = rpc->last_id};
    asked = (struct code_net_request){.url = json_string_value(url),
                                      .url_length = json_string_length(url),
                                      .method = json_string_value(method),
                                      .headers = headers,
                                      .body = json_string_value(body),
                                      .body_length = json_string_length(body),
                                      .timeout_ms = whole(timeout),
                                      .follow_redirects = json_is_true(follow)};
    if (code_transfer_start(rpc->requester, &asked, on_answer, request) == NULL) {
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
    if (rpc->in.capacity > CODE_RPC_FREE_BYTES && sk_buf_len(&rpc->in) == 0) {
        sk_buf_fini(&rpc->in);
        sk_buf_init(&rpc->in, rpc->frame_max + CODE_FRAME_HEADER + READ_BYTES);
    }
}

/* Starts the request of every whole frame that has come, as far as they may be on their way. */
static void take_frames(struct code_rpc *rpc)
{
    while (rpc->in_flight < CODE_FLIGHT_MAX && sk_buf_len(&rpc->out) == 0) {
        const unsigned char *head = (const unsigned char *)sk_buf_data(&rpc->in);
        const char *wrong;
        json_t *frame;

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
        frame = json_loadb(sk_buf_data(&rpc->in), rpc->wanted, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        sk_buf_consume(&rpc->in, rpc->wanted);
        rpc->wanted = 0;
        release_in(rpc);
        wrong = frame == NULL ? "a frame that is no JSON" : start(rpc, frame);
        json_decref(frame);
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
