/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-code: stateless execution of JavaScript and Python (contract/code.md). This process becomes the launcher; the
 * host, which talks to clients, is forked from it before anything else and gives its privileges away. */
#include "common/base/version.h"
#include "services/code/host/host.h"
#include "services/code/launcher.h"

#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#define SPARE_SLOTS 8 /* beyond the pool, for those whose last processes are still being cleared away */

static struct code_config values;
static struct sk_config config = {.program = "sk-code", .values = &values};

/* The folder of this program; the languages' programs stand beside it. */
static bool find_programs(char *folder, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", folder, size - 1);

    if (n <= 0)
        return false;
    folder[n] = '\0';
    *strrchr(folder, '/') = '\0';
    return true;
}

/* The launcher has no use for it, and what it has, its children could see in their memory. */
static void forget_secrets(void)
{
    char *token = getenv("SANDBOX_TOKEN");

    if (token != NULL)
        explicit_bzero(token, strlen(token));
    explicit_bzero(values.token, strlen(values.token));
    sk_config_forget_env_files();
}

/* A file that has no port in it would tell a reader to wait for one. */
static void remove_if_empty(const char *path)
{
    struct stat st;

    if (path[0] != '\0' && stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
        unlink(path);
}

static int run_launcher(const char *folder, int control, pid_t host)
{
    char js[CODE_PATH_MAX], python[CODE_PATH_MAX], jit[32];
    char **js_modules = code_config_modules(values.js_modules),
         **python_modules = code_config_modules(values.python_modules);
    const char *js_environment[] = {jit, NULL}, *python_environment[] = {NULL};
    uint32_t slots = (uint32_t)values.pool_size + SPARE_SLOTS;
    struct code_language languages[CODE_KINDS] = {
        [CODE_KIND_JS] = {js, "js", (const char *const *)js_modules, js_environment, slots},
        [CODE_KIND_LEAN] = {python, "python", (const char *const *)python_modules, python_environment, slots},
        [CODE_KIND_FULL] = {python, "python-full", (const char *const *)python_modules, python_environment, slots},
    };
    struct code_launcher_config launcher = {
        .languages = languages,
        .language_count = CODE_KINDS,
        .uid_base = (uint32_t)values.uid_base,
        .run_dir = values.run_dir,
        .container_root = values.container_root[0] != '\0' ? values.container_root : NULL,
        .allow_unsafe = values.allow_unsafe,
        .host_pid = host,
    };
    struct sk_error err = {0};
    int rc = -1;

    snprintf(jit, sizeof(jit), "SANDBOX_JS_JIT=%s", values.js_jit ? "on" : "off");
    if (js_modules == NULL || python_modules == NULL ||
        snprintf(js, sizeof(js), "%s/sk-code-js", folder) >= (int)sizeof(js) ||
        snprintf(python, sizeof(python), "%s/sk-code-python", folder) >= (int)sizeof(python))
        (void)sk_fail(&err, SK_ERR_INTERNAL, "out of memory, or the programs lie too deep");
    else if (access(js, X_OK) != 0 || access(python, X_OK) != 0)
        (void)sk_fail(&err, SK_ERR_INTERNAL, "cannot run sk-code-js or sk-code-python beside this program: %s",
                      strerror(errno));
    else
        rc = code_launcher_run(&launcher, control, &err);
    if (rc != 0)
        SK_LOG_ERROR("the launcher ends", SK_FE(&err));
    free(js_modules);
    free(python_modules);
    return rc == 0 ? 0 : 1;
}

static const struct sk_version_library libraries[] = {{"libuv", uv_version_string, NULL},
                                                      {"jansson", NULL, JANSSON_VERSION},
                                                      {"libcurl", NULL, LIBCURL_VERSION},
                                                      {NULL, NULL, NULL}};

int main(int argc, char **argv)
{
    const struct sk_service_cli cli = {.config = &config,
                                       .summary =
                                           "runs JavaScript and Python of FastGPT's workflows, each task walled in",
                                       .check = code_config_check,
                                       .libraries = libraries};
    struct code_host_options host = {.config = &values, .source = &config, .uid = -1};
    char folder[CODE_PATH_MAX - 32];
    int control[2], status;
    pid_t pid;

    config.keys = code_config_keys;
    config.count = code_config_key_count;
    status = sk_service_cli(&cli, argc, argv);
    if (status >= 0)
        return status;
    sk_log_init("sk-code", code_config_log_level(&values));
    if (!find_programs(folder, sizeof(folder)) || code_control_pair(control) != 0) {
        SK_LOG_ERROR("cannot start", SK_F("reason", strerror(errno)));
        return 1;
    }
    host.launcher = control[0];
    host.programs = folder;
    if (geteuid() == 0)
        host.uid = values.uid_base + (int64_t)CODE_KINDS * CODE_ZYGOTES_PER_KIND * (values.pool_size + SPARE_SLOTS);
    pid = fork();
    if (pid == 0) {
        close(control[1]);
        exit(code_host_run(&host));
    }
    close(control[0]);
    if (pid < 0) {
        SK_LOG_ERROR("cannot fork", SK_F("reason", strerror(errno)));
        return 1;
    }
    forget_secrets();
    status = run_launcher(folder, control[1], pid);
    remove_if_empty(values.port_file);
    sk_config_fini(&config);
    return status;
}
