/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration: one table of keys per program, filled from the environment (contract/service.md §1). The table is the
 * documentation too: docs/configuration.md is generated from it (`<program> --print-config --markdown`).
 *
 *     static const struct sk_config_key keys[] = {
 *         SK_CONFIG_STRING(struct my_config, nats_url, "SANDKEEP_NATS_URL", "nats://127.0.0.1:4222", 0, "NATS server"),
 *         SK_CONFIG_INT(struct my_config, workers, "SANDKEEP_LIFECYCLE_WORKERS", 64, 1, 512, "count", "worker
 * threads"),
 *         ...
 *     };
 *
 * For every key NAME the variable NAME_FILE names a file holding the value (one trailing newline is cut). Values are
 * checked all at once: every bad variable is listed with its value (masked for secrets) and the allowed range. An empty
 * variable counts as unset, except for strings and URLs, where it means "nothing". NAME together with NAME_FILE is an
 * error. All calls on one thread; nothing blocks but reading local files. */
#ifndef SK_CONFIG_CONFIG_H
#define SK_CONFIG_CONFIG_H

#include "common/base/error.h"
#include "common/base/version.h"

#include <stdio.h>

enum sk_config_type {
    SK_CONFIG_TYPE_STRING, /* char *, owned by the config */
    SK_CONFIG_TYPE_INT,    /* int64_t */
    SK_CONFIG_TYPE_DOUBLE, /* double */
    SK_CONFIG_TYPE_BOOL,   /* bool: true|false|1|0|on|off|yes|no */
    SK_CONFIG_TYPE_ENUM,   /* int: index into `choices` */
    SK_CONFIG_TYPE_LISTEN, /* char *: host:port or :port (= 127.0.0.1), port 0 picks one */
    SK_CONFIG_TYPE_URL,    /* char *: scheme must be one of `choices` */
};

#define SK_CONFIG_SECRET   1u /* masked wherever it is shown (userinfo of URLs is always masked) */
#define SK_CONFIG_REQUIRED 2u /* empty is an error */
#define SK_CONFIG_RELOAD   4u /* re-read on SIGHUP */
#define SK_CONFIG_TOKEN    8u /* STRING: one token of a NATS subject, without what NATS keeps for itself ("$", "_") */

#define SK_CONFIG_TOKEN_MAX 63

struct sk_config_key {
    const char *name; /* environment variable */
    enum sk_config_type type;
    size_t offset; /* into the caller's config struct */
    const char *default_text;
    double min, max;            /* INT and DOUBLE */
    const char *unit;           /* "ms", "s", "count", "" … shown in documentation */
    const char *const *choices; /* ENUM, URL: NULL-terminated */
    unsigned flags;
    const char *help; /* one sentence */
};

#define SK_CONFIG_STRING(st, field, env, def, fl, doc)                                                                 \
    {                                                                                                                  \
        .name = env, .type = SK_CONFIG_TYPE_STRING, .offset = offsetof(st, field), .default_text = def, .flags = (fl), \
        .unit = "", .help = doc                                                                                        \
    }
#define SK_CONFIG_INT(st, field, env, def, lo, hi, un, doc)                                                            \
    {                                                                                                                  \
        .name = env, .type = SK_CONFIG_TYPE_INT, .offset = offsetof(st, field), .default_text = #def, .min = (lo),     \
        .max = (hi), .unit = un, .help = doc                                                                           \
    }
#define SK_CONFIG_DOUBLE(st, field, env, def, lo, hi, un, doc)                                                         \
    {                                                                                                                  \
        .name = env, .type = SK_CONFIG_TYPE_DOUBLE, .offset = offsetof(st, field), .default_text = #def, .min = (lo),  \
        .max = (hi), .unit = un, .help = doc                                                                           \
    }
#define SK_CONFIG_BOOL(st, field, env, def, doc)                                                                       \
    {                                                                                                                  \
        .name = env, .type = SK_CONFIG_TYPE_BOOL, .offset = offsetof(st, field), .default_text = #def, .unit = "",     \
        .help = doc                                                                                                    \
    }
#define SK_CONFIG_ENUM(st, field, env, def, ch, doc)                                                                   \
    {                                                                                                                  \
        .name = env, .type = SK_CONFIG_TYPE_ENUM, .offset = offsetof(st, field), .default_text = def, .choices = ch,   \
        .unit = "", .help = doc                                                                                        \
    }
#define SK_CONFIG_LISTEN(st, field, env, def, doc)                                                                     \
    {                                                                                                                  \
        .name = env, .type = SK_CONFIG_TYPE_LISTEN, .offset = offsetof(st, field), .default_text = def,                \
        .unit = "host:port", .help = doc                                                                               \
    }
#define SK_CONFIG_URL(st, field, env, def, ch, fl, doc)                                                                \
    {                                                                                                                  \
        .name = env, .type = SK_CONFIG_TYPE_URL, .offset = offsetof(st, field), .default_text = def, .choices = ch,    \
        .flags = (fl), .unit = "URL", .help = doc                                                                      \
    }
/* The key that every service has: names of enum sk_log_level in its order (so the int is the level), re-read on SIGHUP.
 */
#define SK_CONFIG_LOG_LEVEL(st, field)                                                                                 \
    {                                                                                                                  \
        .name = "SANDKEEP_LOG_LEVEL", .type = SK_CONFIG_TYPE_ENUM, .offset = offsetof(st, field),                      \
        .default_text = "info", .choices = sk_config_log_levels, .flags = SK_CONFIG_RELOAD, .unit = "",                \
        .help = "Lines below this level are not written."                                                              \
    }
extern const char *const sk_config_log_levels[];

struct sk_config {
    const char *program;
    const struct sk_config_key *keys;
    size_t count;
    void *values;         /* the caller's struct; strings inside are owned and freed by sk_config_fini */
    const char **sources; /* per key: "default", "environment", "file" (NAME_FILE), "env-file" */
};

/* Reads one --env-file (KEY=VALUE lines, '#' comments, optional quotes) into the environment without overwriting what
 * is set. Errors: invalid_request naming file and line. */
SK_MUST_USE int sk_config_env_file(const char *path, struct sk_error *err);
/* Fills `values` (zeroed by the caller). Writes one line per bad key to `problems` and returns their number (0 = good).
 * `values` is usable only on 0. Cross-key rules are the caller's own, after this. */
SK_MUST_USE int sk_config_load(struct sk_config *config, FILE *problems);
/* One such rule: writes `text` as a line unless it holds; returns the number of problems, 0 or 1. */
int sk_config_rule(bool holds, FILE *problems, const char *text);
/* Re-reads keys flagged SK_CONFIG_RELOAD (from --env-file and NAME_FILE: a process's own environment does not change);
 * returns the number of bad values, which are reported and left as they were. Only numbers, booleans and choices are
 * reloaded, never strings. Call it on the thread that reads those fields (the loop). */
int sk_config_reload(struct sk_config *config, FILE *problems);
/* Wipes and frees what was kept of the env-files, for a process that gives its secrets away: a reload finds none of
 * them any more. The environment and the config stay as they are. */
void sk_config_forget_env_files(void);
void sk_config_fini(struct sk_config *config);

enum sk_config_format { SK_CONFIG_TEXT, SK_CONFIG_JSON, SK_CONFIG_MARKDOWN };
void sk_config_print(const struct sk_config *config, enum sk_config_format format, FILE *out);

/* The command line that all services share: --help --version --check-config --print-config [--json|--markdown]
 * --env-file FILE, and the service's own flags handed to `extra` (returns true when it took the argument).
 * Returns -1 to go on (config loaded), else the exit status to end with (0, 2). */
struct sk_service_cli {
    struct sk_config *config;
    const char *summary;    /* one line for --help */
    const char *extra_help; /* lines for own flags or NULL */
    bool (*extra)(void *arg, int argc, char **argv, int *index);
    int (*check)(void *values, FILE *problems); /* cross-key rules: number of problems; or NULL */
    void *arg;
    const struct sk_version_library *libraries; /* for --version; ends with a NULL name; or NULL */
};
SK_MUST_USE int sk_service_cli(const struct sk_service_cli *cli, int argc, char **argv);

#endif
