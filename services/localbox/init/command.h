/* SPDX-License-Identifier: Apache-2.0
 *
 * What command.c (life of commands) and output.c (their output as events) share. */
#ifndef SK_LOCALBOX_INIT_COMMAND_H
#define SK_LOCALBOX_INIT_COMMAND_H

#include "services/localbox/init/init.h"

enum kind { KIND_FOREGROUND, KIND_BACKGROUND, KIND_SESSION };

struct command;

/* One output pipe. It outlives its command while a grandchild still holds the other end; what comes then is dropped,
 * because a closed pipe would kill the grandchild. */
struct tap {
    uv_pipe_t pipe;
    struct command *command; /* NULL = drop */
    const char *type;        /* "stdout" or "stderr" */
    char *line;
    size_t len, size;
    bool after_cr, reading, eof;
};

struct command {
    char id[33];
    enum kind kind;
    pid_t pid;
    bool running, exited, timed_out;
    int exit_code, signal;
    char error[96]; /* why it could not be started; "" = it was */
    char *content;  /* command text, cut */
    int64_t started_ms, finished_ms;
    struct sk_stream *x;           /* the event stream, NULL once the client left */
    struct sk_stream *interrupter; /* waits for the end */
    struct tap *taps[2];
    uv_timer_t timeout, kill_timer, ping;
    int timers;
    int log_fd;
    struct sk_init_session *session;
    int state_fd;
    bool dead;            /* out of the table, waits for its timers */
    struct command *next; /* newest first */
};

struct event {
    char *data;
    size_t len, size;
    bool failed; /* out of memory: something is missing in it, so it is never sent */
};
void sk_event_add(struct event *e, const char *text, size_t len);
void sk_event_text(struct event *e, const char *text);
void sk_event_escaped(struct event *e, const char *text, size_t len); /* as the inside of a JSON string */
/* {"type","text"?,"timestamp"<tail>} on the command's stream, if it has one. A slow reader stops its taps. An event
 * that memory is missing for cuts the stream: a reader that gets no terminal event asks for the command's status, one
 * that gets half an event would believe it. */
void sk_event_send(struct command *c, const char *type, const char *text, size_t len, const char *tail);

/* Makes a tap; *child_fd is the end for the child (to be closed by the caller). */
struct tap *sk_tap_new(struct command *c, const char *type, int *child_fd);
void sk_tap_read(struct tap *t);
/* The leader ended: sends what is in the pipe now and the last line, then lets go of the command. */
void sk_tap_finish(struct tap *t);

#endif
