/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-localbox: OpenSandbox's lifecycle API, the sandbox proxy and the volume manager on one machine
 * (contract/localbox.md). One libuv loop owns every struct box and every socket; whatever may block (files, fork,
 * waiting for processes) runs as a job on libuv's pool and works on copies. Shared types of the service; each file
 * names its own subject. */
#ifndef SK_LOCALBOX_H
#define SK_LOCALBOX_H

#include "common/base/error.h"
#include "common/http/stream/stream.h"

#include <jansson.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <uv.h>

#define LB_ID_SIZE        37
#define LB_TOKEN_SIZE     33
#define LB_CLAIM_SIZE     254
#define LB_PATH_SIZE      4096
#define LB_VOLUMES_MAX    16
#define LB_JSON_MAX       (1u << 20) /* body of an API request */
#define LB_JSON_MS        10000      /* and the time it may take to arrive */
#define LB_LAUNCH_MS      15000      /* bwrap must have started by then */
#define LB_KILL_MS        10000      /* a killed init must be gone by then */
#define LB_ATTACH_MS      5000       /* init must answer by then */
#define LB_ORDER_MS       5000
#define LB_DEAF_MAX       12   /* attempts to reach a living init before its sandbox is given up */
#define LB_INSIDE_ID      1000 /* user and group inside the sandbox */
#define LB_DELETE_WAITERS 16
#define LB_OPEN_FILES_MAX (1 << 20) /* open files and mappings of a sandbox that a scan looks at */
#define LB_ENTRY_BYTES    4096      /* a file or link counts at least so much: it takes an inode however empty it is */
#define LB_QUANTITY_MAX   ((int64_t)1 << 60) /* an exbibyte: more is a slip, and sums of quantities must not overflow */
#define LB_HOME           "/home/sandbox"
#define LB_INIT_INSIDE    "/run/sandkeep/sk-init"

struct lb_config {
    char *listen, *admin_listen, *key, *data_dir, *port_file, *init, *bwrap, *host_paths, *images_dir;
    int64_t max_sandboxes, processes, files, memory_mb, timeout_max, uid_base, uid_count, scan_ms, shm_mb, storage_mb;
    int64_t max_connections, drain_seconds, pool_threads, orphan_seconds, scratch_mb, free_mb;
    int net, log_level;
};

enum lb_state { LB_CREATING, LB_RUNNING, LB_PAUSED, LB_STOPPING, LB_TERMINATED, LB_FAILED };

struct lb_volume {
    char name[64];
    char claim[LB_CLAIM_SIZE]; /* pvc, else "" */
    char host[LB_PATH_SIZE];   /* host path, else "" */
    char sub[1024];
    char mount[1024];
    bool read_only, delete_after, create, created;
};

struct lb_link;

/* One sandbox. Loop thread only. */
struct lb_box {
    char id[LB_ID_SIZE], token[LB_TOKEN_SIZE], nonce[LB_TOKEN_SIZE];
    enum lb_state state;
    char reason[64], message[512];
    int64_t created_ms, transition_ms, expires_ms; /* 0 = no expiry */
    json_t *metadata, *image, *entrypoint, *platform, *extensions;
    int64_t renew_on_access_s;
    struct lb_volume volumes[LB_VOLUMES_MAX];
    int volume_count;
    uid_t uid;
    int64_t memory_bytes, disk_bytes;
    int cpu_milli;
    pid_t pid; /* of sk-init, seen from outside */
    unsigned long long start_time;
    char boot_id[40];
    bool entrypoint_missing, storage_full;
    int64_t storage_base; /* bytes when its writers were stopped last */
    bool link_late;       /* the last link ended by a time limit, not by its other end */
    int deaf;             /* attempts to attach that failed in a row */
    struct lb_link *link;
    uv_timer_t ttl_timer;
    int handles;
    bool gone; /* removed from the table, waits for its handles */
    /* record.c: saves are serialised per box */
    bool saving;
    bool ended_later; /* its init was lost meanwhile */
    struct lb_save_waiter *save_now, *save_next;
    struct lb_ending *destroying, *ended; /* box.c */
    struct sk_stream *delete_waiters[LB_DELETE_WAITERS];
    int delete_waiter_count;
    struct lb_box *next;
};

struct lb {
    uv_loop_t *loop;
    struct lb_config config;
    struct sk_stream_server *server;
    int port;
    bool root;   /* runs as root: every sandbox gets a host user of its own */
    int data_fd; /* the data folder, O_PATH */
    char data_path[LB_PATH_SIZE];
    char init_path[LB_PATH_SIZE];
    char boot_id[40];
    struct lb_box *boxes; /* newest first */
    int box_count;
    int jobs; /* on the pool; each `after` callback counts itself off */
    bool draining, ready;
    bool net_host;
};
extern struct lb lb;

/* ---- main.c ---- */
int64_t lb_now_ms(void);
void lb_queue(uv_work_t *work, uv_work_cb run, uv_after_work_cb after); /* uv_queue_work, counted in lb.jobs */

/* ---- box.c ---- */
struct lb_box *lb_box_new(void); /* with id, token, nonce; not in the table */
struct lb_box *lb_box_find(const char *id);
void lb_box_add(struct lb_box *box);
void lb_box_remove(struct lb_box *box); /* out of the table; freed when its handles are closed */
void lb_box_set_state(struct lb_box *box, enum lb_state state, const char *reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const char *lb_state_name(enum lb_state state);
json_t *lb_box_json(const struct lb_box *box, bool with_image); /* NULL = out of memory */
void lb_box_arm_ttl(struct lb_box *box);                        /* our timer and init's */
/* Kills, removes everything that belongs to the box, answers all delete waiters. Idempotent. */
void lb_box_destroy(struct lb_box *box);
/* init is gone although nobody asked: finds out why and keeps the box as Terminated or Failed. */
void lb_box_ended(struct lb_box *box);
void lb_trash_start(void); /* empties the trash on a pool thread */
bool lb_box_uses_claim(const char *claim, const struct lb_box *except);
uid_t lb_uid_free(void); /* an unused host user, 0 = none left */

/* ---- record.c ---- */
typedef void (*lb_saved_fn)(void *arg, int error);
void lb_box_save(struct lb_box *box, lb_saved_fn done, void *arg); /* durable before `done`; done may be NULL */
char *lb_box_record(const struct lb_box *box);                     /* JSON text, malloc'ed */
int lb_record_write(const char *id, const char *text);             /* blocking: atomic and durable; 0 or errno */
struct lb_box *lb_record_load(const char *id);                     /* blocking, start only; NULL = none or broken */
/* Loads all records, re-adopts what still runs, clears what was half made; then calls `done` from the loop. */
void lb_adopt_all(void (*done)(void));

/* ---- launch.c (pool thread) ---- */
struct lb_launch {
    uv_work_t work;
    struct lb_box *box; /* owned by the creator until `after` */
    json_t *env;        /* the request's variables */
    char cwd[1024];
    char *record;    /* set by the job's end: JSON that was saved */
    bool root_image; /* image_root is used */
    char image_root[LB_PATH_SIZE];
    int status; /* 0 = running, else an HTTP status */
    const char *code;
    char message[512];
    pid_t monitor; /* bwrap outside; reaped by main */
    void *arg;
};
void lb_launch_run(struct lb_launch *launch); /* blocking */

/* ---- rootfs.c ---- */
int lb_rootfs_prepare(struct sk_error *err); /* start: synthetic /etc, masks */
/* Appends the read-only system root of the sandbox to an argument list. */
struct lb_args {
    char *items[512];
    int count;
    bool failed;
};
void lb_arg(struct lb_args *args, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void lb_args_free(struct lb_args *args);
void lb_rootfs_args(struct lb_args *args, const char *image_root, const char *shown_root, const char *etc);
bool lb_rootfs_image(const char *uri, char *out, size_t size); /* a configured root for this image name */

/* ---- seccomp.c ---- */
int lb_seccomp_prepare(struct sk_error *err);
int lb_seccomp_fd(void); /* a fresh descriptor holding the filter; -1 */

/* ---- cgroup.c ---- */
void lb_cgroup_prepare(void);
/* Makes the groups of a box and writes the paths of the files that take a "0" (NULL-terminated by count). Blocking. */
struct lb_cgroup {
    char procs[3][896];
    int count;
};
/* 0 or errno: a limit that a usable controller did not take. A sandbox never starts without the limits it was given. */
int lb_cgroup_make(const char *id, int64_t memory_bytes, int cpu_milli, int64_t processes, struct lb_cgroup *out);
/* The processes of a box; free *pids in every case. ENOENT = there is no control group to ask. Blocking. */
int lb_cgroup_members(const char *id, pid_t **pids, size_t *count);
void lb_cgroup_forget(void);           /* the data folder's own groups, when no sandbox is left in them */
void lb_cgroup_remove(const char *id); /* kills what is left inside; blocking */
bool lb_cgroup_has_memory(void);
json_t *lb_cgroup_json(void);

/* ---- link.c: the control connection to sk-init ---- */
typedef void (*lb_order_fn)(void *arg, json_t *answer); /* NULL = lost or timed out */
/* `attached` is called once with true when init answered with our nonce. */
void lb_link_open(struct lb_box *box, void (*attached)(struct lb_box *box, bool ok, void *arg), void *arg);
void lb_link_order(struct lb_box *box, const char *line, lb_order_fn done, void *arg);
void lb_link_close(struct lb_box *box);
/* A TCP connection to a port inside the sandbox; fd < 0 = libuv error. */
struct lb_connect;
struct lb_connect *lb_connect_open(const struct lb_box *box, int port, void (*done)(void *arg, int fd), void *arg);
void lb_connect_cancel(struct lb_connect *connect); /* `done` is not called any more */

/* ---- api.c, create.c, proxy.c, volumes.c ---- */
void lb_http_request(void *arg, struct sk_stream *x);
void lb_reply_json(struct sk_stream *x, int status, json_t *json); /* takes json over */
void lb_reply_error(struct sk_stream *x, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void lb_reply_invalid(struct sk_stream *x, const char *field, const char *message); /* 422, FastAPI's shape plus ours */
/* False, and 400 was answered: a parameter that cannot be decoded is refused, never taken for one that is not there. */
bool lb_query_valid(struct sk_stream *x);
void lb_create(struct sk_stream *x);
bool lb_metadata_valid(json_t *metadata, bool patch, const char **why);
void lb_proxy(struct sk_stream *x, const char *id, int port, const char *rest);
bool lb_key_equal(const char *given, const char *wanted); /* constant time */
void lb_volume_request(struct sk_stream *x, const char *path);
void lb_volume_list(struct sk_stream *x); /* volume_list.c */
bool lb_claim_valid(const char *claim);
/* Blocking: makes the folder of a claim; *created tells whether it was new. 0 or errno. */
int lb_volume_make(const char *claim, bool *created);
int lb_volume_stat(const char *claim, struct stat *st);
int lb_volume_remove(const char *claim);     /* 0 or errno; missing is fine */
int64_t lb_volume_limit(const char *claim);  /* bytes, 0 = none */
int64_t lb_parse_quantity(const char *text); /* 512Mi, 1.5G, 100; -1 = not a quantity */
/* Decimal digits alone, within low..high. */
bool lb_parse_number(const char *text, int64_t low, int64_t high, int64_t *out);

/* ---- storage.c: the scan that holds sandboxes to their storage limit ---- */
void lb_scan_start(void);
void lb_scan_stop(void);
const char *lb_storage_mode(void);

/* ---- unlinked.c: files without a name (blocking) ---- */
struct lb_unlinked {
    dev_t devices[LB_VOLUMES_MAX + 1]; /* file systems that count */
    int device_count;
    const struct lb_volume *volumes; /* bytes are told apart by their mount */
    int volume_count;
    int64_t bytes[LB_VOLUMES_MAX]; /* out: on each of the volumes */
    int64_t other;                 /* out: elsewhere, so in the sandbox's own folders */
    bool too_many;                 /* out: more open files than can be looked at */
};
/* Adds up the files that processes of the sandbox hold open, or mapped, although they were removed. */
void lb_unlinked_scan(const char *id, pid_t init, unsigned long long start_time, struct lb_unlinked *u);

/* ---- fsutil.c: blocking, never follows a link out of the data folder ---- */
int lb_open_beneath(int dir, const char *path, int flags, mode_t mode); /* -errno */
int lb_mkdir_beneath(int dir, const char *path, mode_t mode);           /* 0 or errno, EEXIST included */
int lb_write_atomic(int dir, const char *folder, const char *name, const char *text, size_t len, mode_t mode);
int lb_remove_tree(const char *path); /* below the data folder; moves to trash/ first, so that it is gone at once */
void lb_empty_trash(void);
int lb_chown_tree(int fd, uid_t uid, gid_t gid, int depth);
/* Bytes used by a tree (blocks), hard links counted once per pass are not told apart. */
int64_t lb_tree_bytes(int dir, const char *path);
char *lb_read_file(int dir, const char *path, size_t max, size_t *len); /* malloc'ed, NUL-terminated; NULL */
bool lb_process_matches(pid_t pid, unsigned long long start_time);
bool lb_process_start(pid_t pid, unsigned long long *start_time);
void lb_kill_marked(const char *id); /* bwrap processes that were started for this sandbox */
int lb_process_kill(pid_t pid, unsigned long long start_time, int wait_ms); /* 0 = gone */
int64_t lb_mono_ms(void);
bool lb_wait_readable(int fd, int64_t until_ms); /* end of file included; false = not until then */
void lb_hex(char *out, size_t bytes);            /* 2 * bytes + 1 characters */

/* ---- metrics.c ---- */
void lb_metrics_register(void);
enum lb_counter {
    LB_COUNT_CREATED,
    LB_COUNT_CREATE_FAILED,
    LB_COUNT_DELETED,
    LB_COUNT_ENDED,
    LB_COUNT_ADOPTED,
    LB_COUNT_LOST,
    LB_COUNT_PROXIED,
    LB_COUNT_PROXY_ERRORS,
    LB_COUNT_STORAGE_STOPS,
    LB_COUNTERS
};
void lb_count(enum lb_counter counter);
void lb_observe_create(int64_t ms);

#endif
