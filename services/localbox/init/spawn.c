/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting a process: its own session and group, only the descriptors that were asked for, errors of exec reported. */
#include "services/localbox/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *find_executable(const char *name, char *const *envp, char *out, size_t size)
{
    if (strchr(name, '/') != NULL)
        return name;
    const char *path = sk_init_env_get(envp, "PATH");
    if (path == NULL)
        path = "/usr/local/bin:/usr/bin:/bin";
    size_t name_len = strlen(name);
    while (*path != '\0') {
        size_t len = strcspn(path, ":");
        if (len > 0 && len + 1 + name_len + 1 <= size) {
            memcpy(out, path, len);
            out[len] = '/';
            memcpy(out + len + 1, name, name_len + 1);
            if (access(out, X_OK) == 0)
                return out;
        }
        path += len + (path[len] == ':');
    }
    errno = ENOENT;
    return NULL;
}

static void child(const struct sk_init_spawn *spawn, const char *file, int null_fd, rlim_t processes,
                  volatile int *error)
{
    setsid();
    int in = spawn->in >= 0 ? spawn->in : null_fd;
    int out = spawn->out >= 0 ? spawn->out : null_fd;
    int err = spawn->err >= 0 ? spawn->err : null_fd;
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 ||
        (spawn->extra >= 0 && spawn->extra != 9 && dup2(spawn->extra, 9) < 0) || chdir(spawn->cwd) != 0) {
        *error = errno;
        _exit(127);
    }
    if (spawn->extra == 9)
        fcntl(9, F_SETFD, 0);
    struct sigaction plain = {.sa_handler = SIG_DFL};
    for (int i = 1; i < 32; i++)
        sigaction(i, &plain, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (processes > 0) {
        struct rlimit r = {processes, processes};
        setrlimit(RLIMIT_NPROC, &r);
    }
    if (sk_init_state.child_data > 0) {
        struct rlimit r = {sk_init_state.child_data, sk_init_state.child_data};
        setrlimit(RLIMIT_DATA, &r);
    }
    execve(file, spawn->argv, spawn->envp);
    *error = errno;
    _exit(127);
}

static pid_t start(const struct sk_init_spawn *spawn, rlim_t processes)
{
    char buffer[4096];
    const char *file = find_executable(spawn->argv[0], spawn->envp, buffer, sizeof(buffer));
    if (file == NULL)
        return -ENOENT;
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0)
        return -errno;
    volatile int error = 0;
    /* All signals wait while parent and child share memory: a handler of ours must not run in the child. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    /* Not posix_spawn: it cannot start a session and say which step failed. The child only calls what is allowed after
     * fork, up to _exit. */
    pid_t pid = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */
    if (pid == 0)
        child(spawn, file, null_fd, processes, &error); /* NOLINT(clang-analyzer-unix.Vfork) */
    int fork_error = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(null_fd);
    if (pid < 0)
        return -fork_error;
    if (error != 0) /* the zombie is reaped by SIGCHLD like any other */
        return -error;
    return pid;
}

/* A fork bomb fills what commands may have (child_processes), never the whole of what init may: a command that is
 * started then still runs, and may start a few processes of its own, up to rescue_processes. So one can look and end
 * the bomb. What the bomb itself starts stays below the lower limit, since only this function raises it. */
pid_t sk_init_spawn(const struct sk_init_spawn *spawn)
{
    struct rlimit r;
    pid_t pid = start(spawn, sk_init_state.child_processes);
    if (pid != -EAGAIN || sk_init_state.rescue_processes == 0 || getrlimit(RLIMIT_NPROC, &r) != 0)
        return pid;
    struct rlimit raised = {r.rlim_max, r.rlim_max};
    setrlimit(RLIMIT_NPROC, &raised);
    pid = start(spawn, sk_init_state.rescue_processes);
    setrlimit(RLIMIT_NPROC, &r);
    return pid;
}

const char *sk_init_env_get(char *const *env, const char *name)
{
    size_t len = strlen(name);
    for (; *env != NULL; env++) {
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return *env + len + 1;
    }
    return NULL;
}

static bool set_entry(char **env, size_t *count, const char *name, const char *value)
{
    size_t len = strlen(name);
    char *entry = malloc(len + strlen(value) + 2);
    if (entry == NULL)
        return false;
    memcpy(entry, name, len);
    entry[len] = '=';
    strcpy(entry + len + 1, value);
    for (size_t i = 0; i < *count; i++) {
        if (strncmp(env[i], name, len) == 0 && env[i][len] == '=') {
            free(env[i]);
            env[i] = entry;
            return true;
        }
    }
    env[(*count)++] = entry;
    return true;
}

char **sk_init_env_with(char *const *base, json_t *extra)
{
    size_t count = 0, room = json_object_size(extra) + 1;
    while (base[count] != NULL)
        count++;
    char **env = calloc(count + room, sizeof(*env));
    if (env == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        env[i] = strdup(base[i]);
        if (env[i] == NULL)
            goto fail;
    }
    const char *name;
    json_t *value;
    json_object_foreach (extra, name, value) {
        if (*name == '\0' || strchr(name, '=') != NULL || !json_is_string(value))
            continue;
        if (!set_entry(env, &count, name, json_string_value(value)))
            goto fail;
    }
    return env;
fail:
    sk_init_env_free(env);
    return NULL;
}

void sk_init_env_free(char **env)
{
    for (char **p = env; p != NULL && *p != NULL; p++)
        free(*p);
    free(env);
}

const char *sk_init_shell(void)
{
    static const char *const shells[] = {"/bin/bash", "/usr/bin/bash", "/bin/sh", NULL};
    for (int i = 0; shells[i] != NULL; i++) {
        if (access(shells[i], X_OK) == 0)
            return shells[i];
    }
    return "/bin/sh";
}
