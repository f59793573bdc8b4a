/* SPDX-License-Identifier: Apache-2.0
 *
 * The task's end of the stream to the broker (frame.h). A task may neither make the descriptor non-blocking nor use a
 * socket's calls, so nothing is read or written before poll(2) says that it will not block, and little at a time. */
#ifndef SK_CODE_JS_BROKER_H
#define SK_CODE_JS_BROKER_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Forgets everything; `fd` -1 = there is no broker. Answers of more than `limit` bytes end the stream. */
void code_broker_start(int fd, size_t limit);
/* Queues one frame of JSON text in UTF-16, and sends what goes out at once. False: no broker, or no memory. */
bool code_broker_send(const uint16_t *json, size_t count);
/* What to wait for, .fd -1 when for nothing. */
struct pollfd code_broker_wanted(void);

enum code_broker_event {
    CODE_BROKER_NOTHING,
    CODE_BROKER_ANSWER, /* *text is malloc'd, NUL-terminated and the caller's */
    CODE_BROKER_LOST,   /* the stream ended, or held a frame that is too large; reported once */
};
/* Sends and receives what is possible now, up to one answer; to be called again while it gives answers. Never blocks.
 */
enum code_broker_event code_broker_step(char **text);

#endif
