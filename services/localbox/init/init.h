/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-init: pid 1 of one sandbox. It reaps, starts commands, serves execd's HTTP API (reference: OpenSandbox execd) on
 * an inherited unix socket and takes orders from its daemon on a second one. It holds no privileges that the commands
 * it starts do not have; it is only not dumpable and cannot be killed from inside.
 *
 * Inherited descriptors: 3 = listening socket of the HTTP API, 4 = exit report (a regular file outside),
 * 5 = listening socket of the control endpoint, 6 = configuration (JSON, read once). */
#ifndef SK_LOCALBOX_INIT_H
#define SK_LOCALBOX_INIT_H

#include "common/http/stream/stream.h"

#include <jansson.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <uv.h>

#define SK_INIT_FD_HTTP    3
#define SK_INIT_FD_REPORT  4
#define SK_INIT_FD_CONTROL 5
#define SK_INIT_FD_CONFIG  6

/* Bounds, all on purpose: a sandbox's init must stay small whatever its user does. */
#define SK_INIT_COMMANDS_MAX    512      /* finished commands whose status is kept */
#define SK_INIT_LOGS_MAX        128      /* background logs kept open */
#define SK_INIT_COMMAND_KEEP_MS 86400000 /* and for at most a day */
#define SK_INIT_SESSIONS_MAX    64
#define SK_INIT_SESSION_STATE   (1u << 20)  /* exported variables of a session */
#define SK_INIT_LINE_MAX        (1u << 20)  /* a longer line is sent as several events */
#define SK_INIT_JSON_MAX        (8u << 20)  /* body of a JSON request */
#define SK_INIT_JSON_MS         15000       /* and the time it may take to arrive */
#define SK_INIT_METADATA_MAX    65536       /* metadata part of an upload */
#define SK_INIT_REPLACE_MAX     (64u << 20) /* file size for search and replace */
#define SK_INIT_LIST_MAX        20000       /* entries of one listing or search */
#define SK_INIT_DEPTH_MAX       256         /* folder depth of recursive work */
#define SK_INIT_INTERRUPT_MS    3000        /* TERM to KILL */
#define SK_INIT_PING_MS         3000
#define SK_INIT_CONNECT_MS      5000
#define SK_INIT_DATA_RESERVE    (64 << 20) /* memory of init itself, beyond what commands may have each */
#define SK_INIT_PROCESS_RESERVE 32 /* processes beyond the sandbox's limit that only init may start: see spawn.c */

struct sk_init {
    uv_loop_t loop;
    struct sk_stream_server *http;
    json_t *config;
    const char *nonce;
    char **env;           /* environment of everything started here, NULL-terminated */
    const char *cwd;      /* default working directory */
    int64_t memory_bytes; /* limit to show in metrics, 0 = the machine's */
    bool paused, storage_full, ending;
    bool entrypoint_too; /* the entrypoint went on writing: it is not spared any more */
    pid_t entrypoint;
    /* Limits of what is started here, not of init itself; 0 = none. `rescue_processes`: of a command that is started
     * when `child_processes` are there already. */
    rlim_t child_processes, rescue_processes, child_data;
    int attached;       /* daemons connected */
    uint64_t orphan_ms; /* without a daemon for so long: end */
    uv_timer_t orphan_timer, ttl_timer;
    uv_signal_t sigchld;
};
extern struct sk_init sk_init_state;

/* main.c: writes the exit report and ends the sandbox (pid 1 is gone, so is everything). */
void sk_init_exit(const char *reason, int code, int signal) __attribute__((noreturn));

/* control.c */
int sk_init_control_start(int fd);
void sk_init_control_event(const char *line); /* JSON line to every attached daemon */

/* http.c: routing and small answers */
void sk_init_http_request(void *arg, struct sk_stream *x);
void sk_init_reply_json(struct sk_stream *x, int status, json_t *json); /* takes json over */
void sk_init_reply_error(struct sk_stream *x, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void sk_init_reply_empty(struct sk_stream *x);

/* A request whose work may block: the body is collected, `run` is called on a pool thread, then the answer is sent.
 * `run` fills status, type and out (malloc'ed); status 200 without out is an empty answer. */
struct sk_init_job {
    uv_work_t work;
    struct sk_stream *x; /* NULL once the client is gone; loop thread only */
    bool working;
    char *query;
    char *body;
    size_t body_len;
    json_t *json;
    void (*run)(struct sk_init_job *job);
    int status;
    const char *type;
    char *out;
    size_t out_len;
};
void sk_init_job_start(struct sk_stream *x, bool wants_json, void (*run)(struct sk_init_job *job));
void sk_init_job_error(struct sk_init_job *job, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void sk_init_job_errno(struct sk_init_job *job, const char *what, int error); /* 404 for ENOENT, else 500 */
void sk_init_job_json(struct sk_init_job *job, json_t *json);                 /* takes json over */

/* spawn.c */
struct sk_init_spawn {
    char *const *argv;
    char *const *envp;
    const char *cwd;
    int in, out, err, extra; /* descriptors; in < 0 = /dev/null; extra >= 0 becomes descriptor 9 */
};
pid_t sk_init_spawn(const struct sk_init_spawn *spawn); /* -errno on failure, exec errors included */
/* environment + "K=V" overrides from a JSON object (may be NULL); free with sk_init_env_free */
char **sk_init_env_with(char *const *base, json_t *extra);
void sk_init_env_free(char **env);
const char *sk_init_env_get(char *const *env, const char *name);
const char *sk_init_shell(void); /* bash when there is one, else sh */

/* command.c */
void sk_init_command_post(struct sk_stream *x);
void sk_init_command_delete(struct sk_stream *x);
void sk_init_command_status(struct sk_stream *x, const char *id);
void sk_init_command_logs(struct sk_stream *x, const char *id);
void sk_init_command_reaped(pid_t pid, int status);
void sk_init_command_drop_removed_logs(void); /* of finished commands */
/* A session run: an SSE answer, stdout and stderr merged; `ended` gets the saved state (memfd) and owns it. */
struct sk_init_session;
void sk_init_command_session(struct sk_stream *x, struct sk_init_session *session, const char *text, const char *cwd,
                             char *const *env, int64_t timeout_ms);
/* session.c */
void sk_init_session_post(struct sk_stream *x);
void sk_init_session_run(struct sk_stream *x, const char *id);
void sk_init_session_delete(struct sk_stream *x, const char *id);
void sk_init_session_ended(struct sk_init_session *session, int state_fd);

/* files.c */
void sk_init_files_info(struct sk_init_job *job);
void sk_init_files_delete(struct sk_init_job *job);
void sk_init_files_permissions(struct sk_init_job *job);
void sk_init_files_move(struct sk_init_job *job);
void sk_init_files_search(struct sk_init_job *job);
void sk_init_files_replace(struct sk_init_job *job);
void sk_init_directories_make(struct sk_init_job *job);
void sk_init_directories_delete(struct sk_init_job *job);
void sk_init_directories_list(struct sk_init_job *job);
/* transfer.c */
void sk_init_upload(struct sk_stream *x);
void sk_init_download(struct sk_stream *x);
/* metrics.c */
void sk_init_metrics(struct sk_stream *x);
void sk_init_metrics_watch(struct sk_stream *x);

/* paths.c: thread-safe */
/* Expands a leading ~ and $VAR / ${VAR}, makes it absolute. malloc'ed, or NULL with *why set. */
char *sk_init_path(const char *text, const char **why);
json_t *sk_init_string(const char *text); /* invalid UTF-8 becomes U+FFFD */
json_t *sk_init_file_info(const char *path, const struct stat *st);
int sk_init_mkdirs(const char *path, mode_t mode);                /* 0 or errno */
int sk_init_set_mode(const char *path, json_t *spec, int *error); /* {mode, owner, group}; 0, 400 or 500 */
int sk_init_remove_tree(const char *path);                        /* 0 or errno; missing is fine */
int sk_init_move(const char *from, const char *to);               /* 0 or errno; works across mounts; never replaces */
void sk_init_time_text(const struct timespec *t, char *out, size_t size);
int sk_init_user_id(const char *file, const char *name, long *id); /* /etc/passwd, /etc/group */

int64_t sk_init_now_ms(void);
void sk_init_hex_id(char out[33]);
size_t sk_init_utf8_clean(const char *in, size_t len, char *out); /* out has room for 3 * len */

#endif
