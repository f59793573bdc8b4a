/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of skctl share: exit statuses, the parsed command line, the table of verbs and the connection to the
 * bus. One verb is one function `int ctl_<verb>(struct ctl *ctl)` that returns the exit status (contract/service.md
 * §2).
 *
 * Single-threaded: nats.c has its own threads, but everything here runs and waits on the main thread. */
#ifndef SK_CTL_CTL_H
#define SK_CTL_CTL_H

#include "common/base/id.h"
#include "common/config/config.h"

#include <jansson.h>
#include <nats/nats.h>
#include <stdatomic.h>

enum ctl_exit {
    CTL_OK = 0,
    CTL_FAILED = 1, /* the operation failed; doctor: there are findings */
    CTL_USAGE = 2,  /* arguments or configuration */
    CTL_NOT_FOUND = 3,
    CTL_BUSY = 4, /* busy or in conflict with something else */
    CTL_DEADLINE = 5,
    CTL_UNREACHABLE = 6, /* no bus, or nobody of ours on it */
    CTL_INTERRUPTED = 130,
    CTL_UNREAD = 141, /* nobody reads stdout any more: what a shell calls death by SIGPIPE */
};

#define CTL_POSITIONAL_MAX      8
#define CTL_TYPES_MAX           16 /* --type may be given that often */
#define CTL_RPC_TIMEOUT_MS      10000
#define CTL_DEADLINE_DEFAULT_MS 120000
#define CTL_ANSWER_MAX          (8 * 1024 * 1024) /* bytes of one JSON answer that are looked at */

struct ctl_config {
    char *nats_url, *nats_credentials_file, *nats_token, *prefix;
    char *localbox_url, *localbox_key;
    char *provider_url, *provider_key, *volume_url, *volume_token;
    char *code_url, *code_token;
};

/* Every option of every verb, by its long name. Strings point into argv; unset is NULL, false or -1. */
struct ctl_args {
    /* all verbs */
    bool json, quiet, help;
    /* identity */
    const char *app, *workflow, *skill, *user;
    /* commands */
    bool wait;
    int64_t deadline_ms;
    const char *id, *reason, *image, *provider, *team, *version_id, *storage, *if_idle_since, *action;
    double cpu;
    int64_t memory_mib;
    bool restore, force;
    /* list, stuck, watch */
    const char *status, *source_type, *source_id, *sort, *cursor, *since;
    const char *types[CTL_TYPES_MAX];
    int type_count;
    int64_t older_than_ms, limit, count, for_ms;
    bool blocked, all;
    /* doctor */
    bool repair, yes;
    int64_t grace_ms;
    /* exec */
    const char *cwd;
    int64_t timeout_ms;
    bool background;
    /* code */
    const char *vars, *queue, *url, *token;

    const char *positional[CTL_POSITIONAL_MAX];
    int positional_count;
    char **rest; /* after "--"; NULL-terminated */
    int rest_count;
};

enum ctl_option_type {
    CTL_OPTION_FLAG,     /* bool: --x, --x=true|false */
    CTL_OPTION_TEXT,     /* const char * */
    CTL_OPTION_LIST,     /* const char *types[]: may be repeated */
    CTL_OPTION_DURATION, /* int64_t ms: 250ms, 10s, 5m, 2h, 7d; a bare number is seconds */
    CTL_OPTION_COUNT,    /* int64_t >= 1 */
    CTL_OPTION_REAL,     /* double > 0 */
};

struct ctl_option {
    const char *name;  /* without the dashes */
    const char *value; /* shown in help; NULL for flags */
    enum ctl_option_type type;
    size_t offset; /* into struct ctl_args */
    const char *help;
    const char *const *choices; /* closed set of a TEXT or LIST, NULL = any; used by completion and checked */
};

struct ctl;

struct ctl_verb {
    const char *name;
    const char *arguments;                   /* synopsis without options */
    const char *summary;                     /* one line, no full stop */
    const char *text;                        /* paragraphs for help and the manual page */
    const struct ctl_option *const *options; /* own options, NULL-terminated; the common ones come on top */
    int positional_max;
    bool takes_rest; /* words after "--" */
    int (*run)(struct ctl *ctl);
};

struct ctl_link;

struct ctl {
    const struct ctl_verb *verb;
    struct ctl_args args;
    struct ctl_config config;
    struct ctl_link *link; /* opened by ctl_link */
    /* the identity given, after ctl_identity */
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    bool has_identity;
    struct sk_identity identity;
};

/* ---- verbs.c: the tables -------------------------------------------------------------------------------------------
 */
extern const struct ctl_verb ctl_verbs[]; /* ends with a NULL name */
extern const struct ctl_option *const ctl_common_options[];
const struct ctl_verb *ctl_verb_find(const char *name);
/* The option of this verb (common ones included) with this name, or NULL. `len` bytes of `name` count. */
const struct ctl_option *ctl_option_find(const struct ctl_verb *verb, const char *name, size_t len);

/* ---- options.c ---- */
/* Parses argv[first..] for ctl->verb. Returns 0, or CTL_USAGE after telling what is wrong on stderr. */
SK_MUST_USE int ctl_parse(struct ctl *ctl, int argc, char **argv, int first);
SK_MUST_USE bool ctl_parse_duration(const char *text, int64_t *ms);
/* A point in time: RFC 3339, or a duration that means "so long ago". */
SK_MUST_USE bool ctl_parse_when(const char *text, int64_t *unix_ms);
/* Fills sandbox_id (and identity) from the first positional or the identity flags. Returns 0 or CTL_USAGE. */
SK_MUST_USE int ctl_identity(struct ctl *ctl);
/* Tells what is wrong with the usage of the current verb and returns CTL_USAGE. */
int ctl_usage(const struct ctl *ctl, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- help.c, completion.c -------------------------------------------------------------------------------------------
 */
void ctl_help_print(FILE *out);
void ctl_help_verb(const struct ctl_verb *verb, FILE *out);
void ctl_help_man(FILE *out); /* docs/man/skctl.1 */
int ctl_help(struct ctl *ctl);
int ctl_completion(struct ctl *ctl);

/* ---- output.c ---- */
/* The one JSON document of a --json verb; indented on a terminal. */
void ctl_json(const json_t *value);
/* One line of a --json stream, flushed. */
void ctl_json_line(const json_t *value);
/* A note for people on stderr (nothing with --quiet). */
void ctl_note(const struct ctl *ctl, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* An error for people on stderr, always shown. */
void ctl_complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Shows an error object of the contract (or a local error) and returns the exit status its code means; with --json the
 * whole answer goes to stdout. */
int ctl_show_failure(const struct ctl *ctl, const json_t *answer);
int ctl_show_error(const struct ctl *ctl, const struct sk_error *err);
enum ctl_exit ctl_exit_of(const char *code);
/* Text fields of JSON objects; `path` may be "operation.phase". Never NULL: "" when absent or not a string. */
const char *ctl_text(const json_t *object, const char *path);
int64_t ctl_integer(const json_t *object, const char *path, int64_t absent);
/* "4.2 s", "310 ms", "3 h 5 min" into a static ring of buffers; age of an RFC 3339 time. */
const char *ctl_duration(int64_t ms);
const char *ctl_age(const char *time);
/* Text from outside with control characters replaced, so that no record can move a terminal's cursor. */
const char *ctl_clean(const char *text);
/* Rows of text with aligned columns. Cells are copied. */
struct ctl_table;
struct ctl_table *ctl_table_new(const char *const *heads, int columns);
void ctl_table_row(struct ctl_table *table, const char *const *cells);
void ctl_table_print(struct ctl_table *table, FILE *out); /* and frees it */
void ctl_table_free(struct ctl_table *table);             /* NULL is fine */
/* Flushes stdout; CTL_FAILED when what was printed did not get out, else `status`. */
int ctl_finish(int status);

/* ---- link.c: the bus ---- */
extern atomic_int ctl_interrupted; /* SIGINT or SIGTERM came; looked at by more than one thread */
/* From now on the first SIGINT or SIGTERM only sets the flag; a second one ends the program at once with 130. */
void ctl_catch_signals(void);
/* Says that the run was interrupted and what that means; only the first call of a run says anything. */
int ctl_say_interrupted(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* CTL_INTERRUPTED */
/* A pause that an interrupt ends. */
void ctl_sleep(int64_t ms);
/* Connects once. 0, or the exit status (CTL_UNREACHABLE, CTL_INTERRUPTED, CTL_FAILED) after telling why. */
SK_MUST_USE int ctl_link(struct ctl *ctl);
void ctl_link_close(struct ctl *ctl);
natsConnection *ctl_link_connection(struct ctl_link *link);
/* Number of times the connection was made again. */
unsigned ctl_link_reconnects(const struct ctl_link *link);
/* Core request to sandbox.rpc.lifecycle.<method>. Takes `request`. On 0 *data is a new reference to `data` of the
 * answer; else the exit status, after showing the error. */
SK_MUST_USE int ctl_rpc(struct ctl *ctl, const char *method, json_t *request, json_t **data);
/* The same, but a refusal is only noted ("<unjudged> are not judged: …"): then 0 with *data = NULL. */
SK_MUST_USE int ctl_rpc_optional(struct ctl *ctl, const char *method, const char *unjudged, json_t *body,
                                 json_t **data);
/* One request of the JetStream API on an open link; `body` is borrowed. New reference, or NULL: no answer, or no JSON.
 */
json_t *ctl_api(struct ctl *ctl, const char *subject, const json_t *body);
/* One JetStream API request or acknowledged publish, repeated while the outcome is unknown (`headers` may be NULL).
 * Returns 0 with the parsed answer, or an exit status after telling why. */
SK_MUST_USE int ctl_publish_stored(struct ctl *ctl, const char *subject, const char *message_id, const char *reply_to,
                                   const char *body, int64_t deadline_mono_us, uint64_t *sequence);
/* Waits up to ms for the next message of a subscription; NULL when none came. Ends early when interrupted. */
natsMsg *ctl_next(natsSubscription *subscription, int64_t ms);
json_t *ctl_message_json(natsMsg *message); /* NULL when it is not JSON */

/* ---- verbs ---- */
int ctl_command(struct ctl *ctl); /* ensure, stop, archive, restore, delete, converge, recover, touch */
/* Publishes the command `op` for ctl->sandbox_id with the parsed arguments, waits for and shows its result. */
int ctl_send(struct ctl *ctl, const char *op);
int ctl_get(struct ctl *ctl);
int ctl_list(struct ctl *ctl);
int ctl_find(struct ctl *ctl);
int ctl_stats(struct ctl *ctl);
int ctl_stuck(struct ctl *ctl);
int ctl_timeline(struct ctl *ctl);
int ctl_watch(struct ctl *ctl);
int ctl_doctor(struct ctl *ctl);
int ctl_id(struct ctl *ctl);
int ctl_exec(struct ctl *ctl);
int ctl_cp(struct ctl *ctl);
int ctl_code(struct ctl *ctl);

#endif
