/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: what a task writes into its line to the broker. The first byte chooses: bit 0, whether the rest is the
 * stream as it is, or lines that get a right length word each; bits 1-3, in what pieces it comes; bit 4, whether the
 * answers are read as they come or only at the end; bit 5, whether the task closes its end first. No request leaves:
 * the policy allows no host. Whatever comes, the line breaks at most once, every answer is a whole frame with an id
 * that was asked for once, and nothing is held afterwards. */
#include "common/log/log.h"
#include "services/code/broker/internal.h"
#include "services/code/host/rpc.h"
#include "services/code/host/scan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TURNS_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bed {
    struct sk_loop *loop;
    struct code_policy *policy;
    struct code_broker *broker;
    int broken;
};

static bool permit(void *arg, const struct sockaddr *address)
{
    (void)arg;
    (void)address;
    return false;
}

static void on_broken(void *arg, const char *why)
{
    struct bed *bed = arg;

    assert(why != NULL && why[0] != '\0');
    bed->broken++;
}

static void sink(void *arg, const char *line, size_t length)
{
    (void)arg;
    (void)line;
    (void)length;
}

static struct bed *make(void)
{
    static const char nothing[] = "{\"default\":\"none\",\"rules\":[]}";
    static struct bed bed;
    struct sk_error err;

    if (bed.loop != NULL)
        return &bed;
    sk_log_capture(sink, NULL);
    bed.loop = sk_loop_new(0, &err);
    bed.policy = code_policy_new(
        &(struct code_policy_options){.text = nothing, .length = sizeof(nothing) - 1, .check_internal = true}, &err);
    assert(bed.loop != NULL && bed.policy != NULL);
    bed.broker =
        code_broker_new(&(struct code_broker_options){.loop = bed.loop, .policy = bed.policy, .budget_bytes = 1 << 20});
    assert(bed.broker != NULL);
    bed.broker->seam.permit = permit;
    return &bed;
}

static void turn(struct bed *bed)
{
    uv_run(sk_loop_uv(bed->loop), UV_RUN_NOWAIT);
}

/* Lines -> frames, each with its length before it. */
static void frames_of(const uint8_t *data, size_t size, struct sk_buf *out)
{
    while (size > 0) {
        const uint8_t *end = memchr(data, '\n', size);
        size_t length = end != NULL ? (size_t)(end - data) : size;
        unsigned char head[4] = {(unsigned char)length, (unsigned char)(length >> 8), (unsigned char)(length >> 16), 0};
        bool good = sk_buf_append(out, head, sizeof(head)) && sk_buf_append(out, data, length);

        assert(good);
        length += end != NULL;
        data += length;
        size -= length;
    }
}

static void on_member(void *arg, const struct code_span *key, const struct code_span *value)
{
    if (code_scan_equals(key, "id"))
        *(struct code_span *)arg = *value;
}

/* All that has been answered: whole frames, but for the last one of a line that broke; ids that grow no faster than
 * they were asked for and come once each. */
static void check_answers(const struct sk_buf *in, const struct bed *bed)
{
    const unsigned char *at = (const unsigned char *)sk_buf_data(in);
    size_t left = sk_buf_len(in);
    int64_t seen[64];
    size_t count = 0;

    while (left >= 4) {
        size_t length = (size_t)at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
        struct code_span root, id = {.kind = CODE_SCAN_NONE};
        struct code_scan_fault fault;
        char text[32] = "";

        if (length > left - 4)
            break;
        assert(code_scan((const char *)at + 4, length, 8, on_member, &id, &root, &fault));
        assert(root.kind == CODE_SCAN_OBJECT && id.kind == CODE_SCAN_NUMBER && id.length < sizeof(text));
        memcpy(text, id.text, id.length);
        for (size_t i = 0; i < count; i++)
            assert(seen[i] != strtoll(text, NULL, 10));
        if (count < sizeof(seen) / sizeof(seen[0]))
            seen[count++] = strtoll(text, NULL, 10);
        at += length + 4;
        left -= length + 4;
    }
    assert(left == 0 || bed->broken > 0);
}

static bool take(int fd, struct sk_buf *in)
{
    bool any = false;

    for (;;) {
        char *room = sk_buf_reserve(in, 65536);
        ssize_t n = room == NULL ? -1 : recv(fd, room, 65536, MSG_DONTWAIT);

        assert(room != NULL);
        if (n <= 0)
            return any;
        sk_buf_commit(in, (size_t)n);
        any = true;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bed *bed = make();
    struct sk_buf stream, in;
    size_t piece, at = 0;
    struct code_rpc *rpc;
    int pair[2], quiet = 0;
    uint8_t how;

    if (size == 0 || size > 1 << 16)
        return 0;
    how = data[0];
    piece = (size_t)1 << 2 * (how >> 1 & 7);
    sk_buf_init(&stream, 8 * size + 64);
    sk_buf_init(&in, SIZE_MAX / 2);
    if ((how & 1) != 0)
        frames_of(data + 1, size - 1, &stream);
    else if (!sk_buf_append(&stream, data + 1, size - 1))
        abort();
    bed->broken = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        abort();
    rpc = code_rpc_new(
        &(struct code_rpc_options){
            .loop = bed->loop,
            .broker = bed->broker,
            .task_id = "1",
            .queue_id = "q",
            .limits = {.request_max = 8, .timeout_ms = 1000, .body_bytes = 4096, .response_bytes = 1024},
            .broken = on_broken,
            .arg = bed},
        pair[0]);
    assert(rpc != NULL);
    /* Until all was written and the line has been silent for some turns: requests are answered on later ones. */
    for (int turns = 0; turns < TURNS_MAX && quiet < 8; turns++) {
        size_t length = sk_buf_len(&stream) - at < piece ? sk_buf_len(&stream) - at : piece;
        ssize_t n = length == 0 ? 0 : send(pair[1], sk_buf_data(&stream) + at, length, MSG_NOSIGNAL | MSG_DONTWAIT);

        at += n > 0 ? (size_t)n : 0;
        turn(bed);
        quiet = n <= 0 && ((how & 16) != 0 || !take(pair[1], &in)) ? quiet + 1 : 0;
    }
    if ((how & 32) != 0) {
        close(pair[1]);
        turn(bed);
        turn(bed);
    } else {
        take(pair[1], &in);
        check_answers(&in, bed);
    }
    assert(bed->broken <= 1);
    code_rpc_free(rpc);
    assert(code_broker_counts(bed->broker).in_flight == 0);
    assert(code_broker_counts(bed->broker).held_bytes == 0);
    turn(bed); /* what was closed is freed */
    if ((how & 32) == 0)
        close(pair[1]);
    sk_buf_fini(&stream);
    sk_buf_fini(&in);
    return 0;
}
