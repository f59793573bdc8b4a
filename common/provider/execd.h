/* SPDX-License-Identifier: Apache-2.0
 *
 * A small client of execd, the server inside a sandbox (reference/providers.md §2): run a command with streamed output,
 * ask for its status, interrupt it, move files. All calls block, are bounded by the call's deadline and can be called
 * back (sk_call_cancel); an endpoint may be used by several threads, each with its own call. Errors as in provider.h.
 */
#ifndef SK_PROVIDER_EXECD_H
#define SK_PROVIDER_EXECD_H

#include "common/http/client.h"

#define SK_EXECD_URL_SIZE          1024
#define SK_EXECD_HEADERS_MAX       8
#define SK_EXECD_HEADER_NAME_SIZE  64
#define SK_EXECD_HEADER_VALUE_SIZE 1024
#define SK_EXECD_COMMAND_ID_SIZE   65
#define SK_EXECD_PATH_MAX          4096
#define SK_EXECD_EVENT_MAX         (16 * 1024 * 1024) /* one line of output is one event; larger ones are dropped */
#define SK_EXECD_IDLE_MS           10000 /* execd pings every 3 s: no byte for this long means it is dead */
#define SK_EXECD_MARGIN_MS         5000 /* on top of a command's own time-out before the client gives up on the server */
#define SK_EXECD_RECOVERY_MS       10000 /* how long the status of a command is asked for after its stream broke */
#define SK_EXECD_INTERRUPT_MS      1000  /* how long an interrupt is waited for when the caller was called back */

struct sk_execd_header {
    char name[SK_EXECD_HEADER_NAME_SIZE];
    char value[SK_EXECD_HEADER_VALUE_SIZE];
};

/* Where execd answers, from sk_opensandbox_execd. A plain value: copy it freely. Holds secrets: never log it. */
struct sk_execd {
    char url[SK_EXECD_URL_SIZE]; /* without a slash at its end */
    struct sk_execd_header headers[SK_EXECD_HEADERS_MAX];
    int header_count;
    int64_t request_timeout_ms; /* of calls other than run, upload and download; 0 = 120 s */
    size_t answer_max;          /* of JSON answers; 0 = 1 MiB */
};

/* *ready: execd answers. Not ready: it does not yet, is paused, its proxy says so (404, 409, 425, 429, 5xx), the
 * request took longer than request_timeout_ms, or a direct endpoint does not connect. Error: any other answer,
 * cancelled, the call's deadline. */
SK_MUST_USE int sk_execd_ping(const struct sk_execd *execd, struct sk_call *call, bool *ready, struct sk_error *err);

/* ---- commands --------------------------------------------------------------------------------------------------- */

enum sk_execd_stream { SK_EXECD_STDOUT, SK_EXECD_STDERR };

enum sk_execd_end {
    SK_EXECD_LOST,      /* unknown: the stream broke and the status could not be had; the command may run or have run */
    SK_EXECD_EXITED,    /* exit_code; background: started, exit_code is 0 */
    SK_EXECD_SIGNALLED, /* killed; detail tells by what */
    SK_EXECD_TIMED_OUT,
    SK_EXECD_START_FAILED, /* it never ran; detail tells why */
    SK_EXECD_STOPPED,      /* on_output said so; interrupted */
    SK_EXECD_CANCELLED,    /* the call was cancelled or its deadline passed; an interrupt was sent */
};
const char *sk_execd_end_name(enum sk_execd_end end);

struct sk_execd_env {
    const char *name, *value;
};

struct sk_execd_command {
    const char *command; /* for bash -c (sh -c where there is no bash) */
    const char *cwd;     /* NULL = execd's own; execd expands $VAR and ~ in it; a missing folder is refused (400) */
    int64_t timeout_ms;  /* the server kills the command after it; 0 = no limit */
    bool background;     /* returns when it started; output goes to a file at the server */
    const struct sk_execd_env *envs;
    size_t env_count;
    int uid, gid; /* < 0 = execd's own; gid needs uid */
    /* Output as lines, terminators included (execd drops them and splits at CR too; a last line without one gets one).
     * Return non-zero to stop: the command is interrupted. Runs inside the call: must not call execd. May be NULL. */
    int (*on_output)(void *arg, enum sk_execd_stream stream, const char *data, size_t len);
    void (*on_start)(void *arg, const char *command_id); /* may be NULL */
    void *arg;
    int64_t idle_ms;     /* 0 = SK_EXECD_IDLE_MS */
    int64_t recovery_ms; /* 0 = SK_EXECD_RECOVERY_MS */
};

struct sk_execd_result {
    enum sk_execd_end end;
    int exit_code;                     /* of EXITED */
    char id[SK_EXECD_COMMAND_ID_SIZE]; /* "" = the stream broke before execd said it */
    char detail[257];                  /* one line for people, "" = nothing to say */
    int64_t duration_ms;               /* as execd says, or as seen here */
    uint64_t output_bytes;             /* handed to on_output */
    bool output_lost;                  /* part of the output was not seen: broken stream or a line above the bound */
    bool running;                      /* LOST: it was still running when last asked */
};

/* Runs a command. 0 when its end is known (EXITED, SIGNALLED, TIMED_OUT, START_FAILED, STOPPED). -1 else:
 * SK_ERR_CANCELLED or provider_timeout with CANCELLED; provider_error with LOST (outcome UNKNOWN), or when execd
 * refused the request (4xx: FAILED, it did not run). A stream that ends without its terminal event is never success:
 * the status is asked for. *result is always filled. Nothing is ever sent twice. */
SK_MUST_USE int sk_execd_run(const struct sk_execd *execd, struct sk_call *call, const struct sk_execd_command *command,
                             struct sk_execd_result *result, struct sk_error *err);

struct sk_execd_status {
    bool running, has_exit_code;
    int exit_code;
    char error[257];
};
/* *found = false when execd does not know the id (it forgets after a day, and when it restarts). */
SK_MUST_USE int sk_execd_command_status(const struct sk_execd *execd, struct sk_call *call, const char *command_id,
                                        struct sk_execd_status *out, bool *found, struct sk_error *err);
/* TERM to the command's process group, KILL 3 s later; the answer may take as long. A command that has ended is an
 * error at execd (500): look at the status when it matters. */
SK_MUST_USE int sk_execd_interrupt(const struct sk_execd *execd, struct sk_call *call, const char *command_id,
                                   struct sk_error *err);

/* ---- files ------------------------------------------------------------------------------------------------------ */

struct sk_execd_file_info {
    int64_t size;
    int mode;         /* POSIX bits, 0644 */
    int64_t modified; /* Unix ms, 0 = unknown */
    char type[16];    /* "file", "directory", "symlink", "other", "" (older execd) */
};
SK_MUST_USE int sk_execd_stat(const struct sk_execd *execd, struct sk_call *call, const char *path,
                              struct sk_execd_file_info *out, bool *found, struct sk_error *err);

struct sk_execd_upload {
    const char *path;
    int mode;                  /* POSIX bits, 0 = execd's default */
    const char *owner, *group; /* NULL = execd's own */
    sk_http_source source;
    void *source_arg;
    int64_t size;    /* < 0 = unknown */
    int64_t idle_ms; /* 0 = 60 s */
};
/* Streams a file into the sandbox; parents are made. execd truncates in place: an upload that fails leaves a part, so
 * upload beside and move when that matters. After a good answer the size is read back (a gateway may swallow a body and
 * still say 200): a difference is provider_error, outcome UNKNOWN. A 5xx may follow a file that was stored: UNKNOWN. */
SK_MUST_USE int sk_execd_upload(const struct sk_execd *execd, struct sk_call *call,
                                const struct sk_execd_upload *upload, int64_t *sent, struct sk_error *err);

/* Streams a file out, from byte `offset`. *received counts what the sink took, also on failure: ask again from there.
 * A body whose end is not marked, or a server that ignores the offset, is an error. Missing file: *found = false. */
SK_MUST_USE int sk_execd_download(const struct sk_execd *execd, struct sk_call *call, const char *path, int64_t offset,
                                  sk_http_sink sink, void *sink_arg, int64_t *received, bool *found,
                                  struct sk_error *err);

#endif
