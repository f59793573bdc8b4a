/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of variables, the rules between them, and what follows from them. */
#include "services/code/host/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define INT(field, env, def, lo, hi, unit, doc) SK_CONFIG_INT(struct code_config, field, env, def, lo, hi, unit, doc)
#define STR(field, env, def, flags, doc)        SK_CONFIG_STRING(struct code_config, field, env, def, flags, doc)
#define LEVEL(field, env, def, doc)             SK_CONFIG_ENUM(struct code_config, field, env, def, levels, doc)

#define MODULE_NAME_MAX 64
#define MIB(mb)         ((int64_t)(mb)*1024 * 1024)

static const char *const levels[] = {"trace", "debug", "info", "warning", "error", "fatal", NULL};

#define JS_MODULES "lodash,dayjs,moment,uuid,crypto-js,qs,url,querystring"
#define PYTHON_MODULES                                                                                                 \
    "math,cmath,decimal,fractions,random,statistics,collections,array,heapq,bisect,queue,copy,itertools,functools,"    \
    "operator,string,re,difflib,textwrap,unicodedata,codecs,datetime,time,calendar,_strptime,json,csv,base64,"         \
    "binascii,struct,hashlib,hmac,secrets,uuid,typing,abc,enum,dataclasses,contextlib,pprint,weakref,numpy,pandas,"    \
    "matplotlib"

const struct sk_config_key code_config_keys[] = {
    STR(host, "SANDBOX_HOST", "127.0.0.1", SK_CONFIG_REQUIRED, "Address to listen on."),
    INT(port, "SANDBOX_PORT", 3000, 0, 65535, "", "Port to listen on; 0 picks one."),
    STR(token, "SANDBOX_TOKEN", "", SK_CONFIG_SECRET,
        "Token that /sandbox routes ask for: visible ASCII; empty = everybody may run code."),
    INT(pool_size, "SANDBOX_POOL_SIZE", 20, 1, 100, "count", "Tasks of one language that run at the same time."),
    INT(queue_id_concurrency, "SANDBOX_QUEUE_ID_CONCURRENCY", 0, 0, 100, "count",
        "Tasks of one queueId that run at the same time; 0 = no limit."),
    INT(max_queue, "SANDBOX_MAX_QUEUE", 1000, 1, 100000, "count",
        "Tasks that wait; when so many do, new ones are refused with 429."),
    INT(api_max_body_mb, "SANDBOX_API_MAX_BODY_MB", 8, 1, 100, "MiB", "Body of a request."),
    INT(max_buffered_mb, "SANDBOX_MAX_BUFFERED_MB", 128, 1, 65536, "MiB",
        "Bodies held at the same time; beyond it requests are refused with 429."),
    INT(max_timeout_ms, "SANDBOX_MAX_TIMEOUT", 60000, 1000, 600000, "ms",
        "Wall time of a task; a request may ask for less (timeoutMs)."),
    INT(max_memory_mb, "SANDBOX_MAX_MEMORY_MB", 256, 32, 4096, "MiB",
        "Memory of a task, 50 MiB for the runtime not included."),
    INT(max_tmp_mb, "SANDBOX_MAX_TMP_MB", 16, 1, 1024, "MiB", "Files of a Python task."),
    INT(max_output_mb, "SANDBOX_MAX_OUTPUT_MB", 10, 1, 100, "MiB", "Result and log of a task."),
    SK_CONFIG_BOOL(
        struct code_config, check_internal_ip, "CHECK_INTERNAL_IP", true,
        "Refuse requests of tasks to private networks; loopback, link-local and metadata are always refused."),
    INT(request_max_count, "SANDBOX_REQUEST_MAX_COUNT", 30, 1, 1000, "count", "HTTP requests of a task."),
    INT(request_timeout_ms, "SANDBOX_REQUEST_TIMEOUT", 60000, 1000, 300000, "ms", "One HTTP request of a task."),
    INT(request_max_response_mb, "SANDBOX_REQUEST_MAX_RESPONSE_MB", 10, 1, 100, "MiB",
        "Response to it, after decoding."),
    INT(request_max_body_mb, "SANDBOX_REQUEST_MAX_BODY_MB", 5, 1, 100, "MiB", "Body of it."),
    STR(net_policy, "SANDBOX_NET_POLICY", "", 0, "File with rules for the requests of tasks; empty = none."),
    STR(js_modules, "SANDBOX_JS_ALLOWED_MODULES", JS_MODULES, 0, "What require() may be given, separated by commas."),
    STR(python_modules, "SANDBOX_PYTHON_ALLOWED_MODULES", PYTHON_MODULES, 0,
        "What import may be given, separated by commas."),
    SK_CONFIG_BOOL(struct code_config, js_jit, "SANDBOX_JS_JIT", on, "Compile JavaScript that runs hot."),
    SK_CONFIG_BOOL(
        struct code_config, compat_strict, "SANDBOX_COMPAT_STRICT", false,
        "Ban super, dir, vars, __class__ and __dict__ and show dates and bytes with str(), as the original does."),
    SK_CONFIG_BOOL(struct code_config, allow_unsafe, "SANDBOX_ALLOW_UNSAFE", false,
                   "Serve although tasks cannot have a uid each (isolation level shared-uid)."),
    SK_CONFIG_BOOL(struct code_config, disable_seccomp, "SANDBOX_DISABLE_SECCOMP", false,
                   "The original's switch, without effect here: no level of isolation goes without the filter."),
    SK_CONFIG_LISTEN(struct code_config, admin_listen, "SANDKEEP_CODE_ADMIN_LISTEN", "127.0.0.1:0",
                     "Address of /livez, /readyz and /metrics."),
    STR(port_file, "SANDKEEP_CODE_PORT_FILE", "", 0, "File that gets the API's port once it serves."),
    STR(admin_port_file, "SANDKEEP_CODE_ADMIN_PORT_FILE", "", 0, "File that gets the admin listener's port."),
    STR(run_dir, "SANDKEEP_CODE_RUN_DIR", "/run", SK_CONFIG_REQUIRED,
        "Folder in which an empty folder is made: the root of tasks."),
    STR(container_root, "SANDKEEP_CODE_CONTAINER_ROOT", "", 0,
        "Level container: a folder with copies of the files that the languages read, as the root of tasks; empty = "
        "an empty root."),
    INT(uid_base, "SANDKEEP_CODE_UID_BASE", 40000, 1000, 4000000000, "id",
        "First of the users of tasks, which must be nobody else's: 12 times (SANDBOX_POOL_SIZE + 8), and one more for "
        "the host."),
    INT(drain_seconds, "SANDKEEP_DRAIN_SECONDS", 25, 0, 3600, "s", "How long tasks may go on after SIGTERM."),
    SK_CONFIG_BOOL(struct code_config, log_console, "LOG_ENABLE_CONSOLE", true, "Off: only errors are logged."),
    LEVEL(log_console_level, "LOG_CONSOLE_LEVEL", "trace",
          "Lines below this level are not written; the quieter of this and SANDKEEP_LOG_LEVEL counts."),
    SK_CONFIG_BOOL(struct code_config, log_otel, "LOG_ENABLE_OTEL", false,
                   "The original's switch, without effect here: logs go to stderr alone."),
    LEVEL(log_otel_level, "LOG_OTEL_LEVEL", "info", "Without effect."),
    STR(log_otel_service, "LOG_OTEL_SERVICE_NAME", "fastgpt-code-sandbox", 0, "Without effect."),
    STR(log_otel_url, "LOG_OTEL_URL", "", 0, "Without effect."),
    SK_CONFIG_LOG_LEVEL(struct code_config, log_level),
};
const size_t code_config_key_count = sizeof(code_config_keys) / sizeof(code_config_keys[0]);

/* ---- rules -------------------------------------------------------------------------------------- */
static bool visible(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text < 0x21 || *text > 0x7e)
            return false;
    }
    return true;
}

/* Names of packages and modules, sub-modules and scopes included; nothing that would mean something in a path. */
static bool modules_good(const char *list)
{
    char **names = code_config_modules(list);
    bool good = names != NULL;

    for (size_t i = 0; good && names[i] != NULL; i++) {
        good = strlen(names[i]) <= MODULE_NAME_MAX && strstr(names[i], "..") == NULL;
        for (const char *c = names[i]; good && *c != '\0'; c++)
            good = isalnum((unsigned char)*c) || strchr("_-./@", *c) != NULL;
    }
    free(names);
    return good;
}

int code_config_check(void *values, FILE *problems)
{
    const struct code_config *c = values;
    int n = 0;

    n += sk_config_rule(
        visible(c->token), problems,
        "SANDBOX_TOKEN contains invalid characters. Only ASCII printable characters (no spaces) are allowed.");
    n += sk_config_rule(visible(c->host), problems, "SANDBOX_HOST must be an address or a name");
    n += sk_config_rule(c->max_buffered_mb >= c->api_max_body_mb, problems,
                        "SANDBOX_MAX_BUFFERED_MB must not be less than SANDBOX_API_MAX_BODY_MB");
    n += sk_config_rule(c->run_dir[0] == '/', problems, "SANDKEEP_CODE_RUN_DIR must be an absolute path");
    n += sk_config_rule(c->container_root[0] == '\0' || c->container_root[0] == '/', problems,
                        "SANDKEEP_CODE_CONTAINER_ROOT must be an absolute path");
    n += sk_config_rule(c->net_policy[0] == '\0' || c->net_policy[0] == '/', problems,
                        "SANDBOX_NET_POLICY must be an absolute path");
    n += sk_config_rule(modules_good(c->js_modules), problems,
                        "SANDBOX_JS_ALLOWED_MODULES must be at most 256 module names, separated by commas");
    n += sk_config_rule(modules_good(c->python_modules), problems,
                        "SANDBOX_PYTHON_ALLOWED_MODULES must be at most 256 module names, separated by commas");
    return n;
}

int code_config_warnings(const struct code_config *c, FILE *out)
{
    int n = 0;

    n += sk_config_rule(c->token[0] != '\0', out,
                        "SANDBOX_TOKEN is not set: everybody who reaches the port may run code");
    n += sk_config_rule(!c->disable_seccomp, out, "SANDBOX_DISABLE_SECCOMP has no effect: the filter stays on");
    n += sk_config_rule(!c->log_otel, out, "LOG_ENABLE_OTEL has no effect: logs go to stderr alone");
    n += sk_config_rule(!c->allow_unsafe, out, "SANDBOX_ALLOW_UNSAFE is set: tasks may have to share a uid");
    n += sk_config_rule(c->check_internal_ip, out,
                        "CHECK_INTERNAL_IP is off: tasks may send requests to private networks");
    return n;
}

/* ---- derived ------------------------------------------------------------------------------------ */
struct code_limits code_config_limits(const struct code_config *c)
{
    return (struct code_limits){
        .timeout_ms = c->max_timeout_ms,
        .output_bytes = MIB(c->max_output_mb),
        .log_bytes = CODE_LOG_BYTES,
        .tmp_bytes = MIB(c->max_tmp_mb),
        .request_max = (int)c->request_max_count,
        .request_timeout_ms = c->request_timeout_ms,
        .request_body_bytes = MIB(c->request_max_body_mb),
        .response_bytes = MIB(c->request_max_response_mb),
    };
}

int64_t code_config_memory_bytes(const struct code_config *c)
{
    return MIB(c->max_memory_mb + CODE_MEMORY_OVERHEAD_MB);
}

enum sk_log_level code_config_log_level(const struct code_config *c)
{
    static const enum sk_log_level ours[] = {SK_LOG_LEVEL_DEBUG, SK_LOG_LEVEL_DEBUG, SK_LOG_LEVEL_INFO,
                                             SK_LOG_LEVEL_WARN,  SK_LOG_LEVEL_ERROR, SK_LOG_LEVEL_ERROR};
    enum sk_log_level console = c->log_console ? ours[c->log_console_level] : SK_LOG_LEVEL_ERROR;

    return (int)console > c->log_level ? console : (enum sk_log_level)c->log_level;
}

char **code_config_modules(const char *list)
{
    size_t size = (CODE_MODULES_MAX + 1) * sizeof(char *), count = 0, length = strlen(list);
    char **names = malloc(size + length + 1), *text, *rest = NULL;

    if (names == NULL)
        return NULL;
    text = memcpy((char *)names + size, list, length + 1);
    for (char *name = strtok_r(text, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        size_t n;
        while (isspace((unsigned char)*name))
            name++;
        n = strlen(name);
        while (n > 0 && isspace((unsigned char)name[n - 1]))
            name[--n] = '\0';
        if (n == 0)
            continue;
        if (count == CODE_MODULES_MAX) {
            free(names);
            return NULL;
        }
        names[count++] = name;
    }
    names[count] = NULL;
    return names;
}
