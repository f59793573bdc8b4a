/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration of sk-code: the original service's variables by their own names (so that a deployment changes nothing
 * but the image), ours as SANDBOX_* and SANDKEEP_* beside them, and the values that are derived from them. */
#ifndef SK_CODE_HOST_CONFIG_H
#define SK_CODE_HOST_CONFIG_H

#include "common/config/config.h"
#include "common/log/log.h"
#include "services/code/launcher.h"
#include "services/code/runtime.h"

#define CODE_LOG_BYTES          (1024 * 1024)
#define CODE_MEMORY_OVERHEAD_MB 50 /* the runtime's own, as the original adds it */

struct code_config {
    char *host;
    int64_t port;
    char *token;
    int64_t pool_size, queue_id_concurrency, max_queue;
    int64_t api_max_body_mb, max_buffered_mb;
    int64_t max_timeout_ms, max_memory_mb, max_tmp_mb, max_output_mb;
    bool check_internal_ip;
    int64_t request_max_count, request_timeout_ms, request_max_response_mb, request_max_body_mb;
    char *net_policy;
    char *js_modules, *python_modules;
    bool js_jit, compat_strict, allow_unsafe, disable_seccomp;
    char *admin_listen, *port_file, *admin_port_file, *run_dir, *container_root;
    int64_t uid_base, drain_seconds;
    bool log_console, log_otel;
    int log_console_level, log_otel_level, log_level;
    char *log_otel_service, *log_otel_url;
};

extern const struct sk_config_key code_config_keys[];
extern const size_t code_config_key_count;

/* Rules between keys and on the content of strings: one line each to `problems`, returns their number. For struct
 * sk_service_cli. */
int code_config_check(void *values, FILE *problems);
/* One line for every variable that is set and has no effect here, or that leaves a door open: for the log at start.
 * Returns their number. */
int code_config_warnings(const struct code_config *config, FILE *out);

/* The bounds of one task; timeout_ms is the maximum. */
struct code_limits code_config_limits(const struct code_config *config);
int64_t code_config_memory_bytes(const struct code_config *config); /* budget of a task, overhead included */
/* The quieter of SANDKEEP_LOG_LEVEL and LOG_CONSOLE_LEVEL; errors only when LOG_ENABLE_CONSOLE is off. */
enum sk_log_level code_config_log_level(const struct code_config *config);
/* A list "a, b,,c" as names, NULL-terminated and in one allocation (free it). NULL when out of memory or when there are
 * more than CODE_MODULES_MAX. */
SK_MUST_USE char **code_config_modules(const char *list);

#endif
