/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests out, answers in, over one blocking descriptor that never blocks us. */
#include "services/code/js/broker.h"

#include "services/code/frame.h"
#include "services/code/js/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A stream socket is writable while three quarters of its buffer are free: that much always fits. */
#define WRITE_CHUNK ((size_t)8192)

static struct {
    int fd;
    size_t limit;
    unsigned expected; /* answers that are due */
    char *out;
    size_t out_length, out_done, out_capacity;
    unsigned char header[CODE_FRAME_HEADER];
    size_t header_length;
    char *body;
    size_t body_length, body_done;
} broker = {.fd = -1};

void code_broker_start(int fd, size_t limit)
{
    free(broker.out);
    free(broker.body);
    memset(&broker, 0, sizeof(broker));
    broker.fd = fd;
    broker.limit = limit;
}

static short ready(short events)
{
    struct pollfd one = {.fd = broker.fd, .events = events};

    return broker.fd >= 0 && poll(&one, 1, 0) > 0 ? one.revents : 0;
}

/* False: the stream is broken. */
static bool flush(void)
{
    while (broker.out_done < broker.out_length && (ready(POLLOUT) & POLLOUT) != 0) {
        size_t left = broker.out_length - broker.out_done;
        ssize_t n = write(broker.fd, broker.out + broker.out_done, left < WRITE_CHUNK ? left : WRITE_CHUNK);

        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return false;
        broker.out_done += (size_t)n;
    }
    if (broker.out_done == broker.out_length)
        broker.out_done = broker.out_length = 0;
    return true;
}

bool code_broker_send(const uint16_t *json, size_t count)
{
    size_t length = code_json_text(json, count, NULL), need = broker.out_length + CODE_FRAME_HEADER + length;

    if (broker.fd < 0 || length > UINT32_MAX)
        return false;
    if (need > broker.out_capacity) {
        char *larger = realloc(broker.out, need);

        if (larger == NULL)
            return false;
        broker.out = larger;
        broker.out_capacity = need;
    }
    for (size_t i = 0; i < CODE_FRAME_HEADER; i++)
        broker.out[broker.out_length + i] = (char)(unsigned char)(length >> (8 * i));
    (void)code_json_text(json, count, broker.out + broker.out_length + CODE_FRAME_HEADER);
    broker.out_length = need;
    broker.expected++;
    (void)flush(); /* a broken stream shows when its answers are waited for */
    return true;
}

struct pollfd code_broker_wanted(void)
{
    struct pollfd wanted = {.fd = broker.expected > 0 ? broker.fd : -1, .events = POLLIN};

    if (broker.out_length > 0)
        wanted.events |= POLLOUT;
    return wanted;
}

static enum code_broker_event lost(void)
{
    size_t limit = broker.limit;

    code_broker_start(-1, limit);
    return CODE_BROKER_LOST;
}

/* The body of a frame whose header is complete; false when it may not be that large. */
static bool begin_body(void)
{
    size_t length = 0;

    for (size_t i = 0; i < CODE_FRAME_HEADER; i++)
        length |= (size_t)broker.header[i] << (8 * i);
    if (length > broker.limit || (broker.body = malloc(length + 1)) == NULL)
        return false;
    broker.body_length = length;
    broker.body_done = 0;
    return true;
}

enum code_broker_event code_broker_step(char **text)
{
    *text = NULL;
    if (broker.fd < 0)
        return CODE_BROKER_NOTHING;
    if (!flush())
        return lost();
    while (broker.expected > 0 && (ready(POLLIN) & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) != 0) {
        bool in_header = broker.body == NULL;
        char *to = in_header ? (char *)broker.header + broker.header_length : broker.body + broker.body_done;
        size_t left = in_header ? CODE_FRAME_HEADER - broker.header_length : broker.body_length - broker.body_done;
        ssize_t n = read(broker.fd, to, left);

        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return lost();
        if (in_header) {
            broker.header_length += (size_t)n;
            if (broker.header_length == CODE_FRAME_HEADER && !begin_body())
                return lost();
        } else {
            broker.body_done += (size_t)n;
        }
        if (broker.body != NULL && broker.body_done == broker.body_length) {
            broker.body[broker.body_length] = '\0';
            *text = broker.body;
            broker.body = NULL;
            broker.header_length = 0;
            broker.expected--;
            return CODE_BROKER_ANSWER;
        }
    }
    return CODE_BROKER_NOTHING;
}
