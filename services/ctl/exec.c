/* SPDX-License-Identifier: Apache-2.0
 *
 * `skctl exec` and `skctl cp`: a stop-gap until the runtime service exists. They find the running object of a sandbox
 * at the provider and talk to execd inside it (common/provider/execd.h); sk-lifecycle does not see them, so they do not
 * count as activity. */
#include "services/ctl/provider.h"

#include "common/base/buf.h"
#include "common/provider/execd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMAND_MAX    (128 * 1024)
#define LOCAL_SLICE_MS 100 /* how soon an interrupt is seen while stdin or stdout does not move */
#define END_NOT_SEEN   125 /* killed, or the stream broke: no exit status of the command's own */

/* ---- finding the sandbox --------------------------------------------------------------------------------------------
 */
static int find_execd(struct ctl *ctl, struct ctl_provider *provider, struct sk_execd *execd)
{
    struct sk_remote remotes[SK_REMOTES_MAX];
    const struct sk_remote *best = NULL;
    struct sk_error err = {0};
    int count = 0;
    bool found = false, more = false;

    if (provider->provider.ops->find(provider->provider.self, &provider->call, ctl->sandbox_id, remotes, &count, &more,
                                     &err) != 0)
        return ctl_provider_error(ctl, &err);
    for (int i = 0; i < count; i++) {
        if (remotes[i].state == SK_REMOTE_RUNNING && (best == NULL || remotes[i].epoch > best->epoch))
            best = &remotes[i];
    }
    if (best == NULL) {
        ctl_complain("%s does not run at the provider: skctl ensure %s", ctl->sandbox_id, ctl->sandbox_id);
        return CTL_NOT_FOUND;
    }
    if (sk_opensandbox_execd(&provider->provider, &provider->call, best->id, execd, &found, &err) != 0)
        return ctl_provider_error(ctl, &err);
    if (!found) {
        ctl_complain("%s went away at the provider", ctl->sandbox_id);
        return CTL_NOT_FOUND;
    }
    return 0;
}

/* ---- exec ---- */
/* One word is shell text; several are words, quoted so that the shell hands them on as they are. */
static char *command_text(char *const *words, int count)
{
    struct sk_buf text;

    if (count == 1)
        return strdup(words[0]);
    sk_buf_init(&text, COMMAND_MAX);
    for (int i = 0; i < count; i++) {
        sk_buf_append_text(&text, i > 0 ? " '" : "'");
        for (const char *at = words[i]; *at != '\0'; at++) {
            if (*at == '\'')
                sk_buf_append_text(&text, "'\\''");
            else
                sk_buf_append_char(&text, *at);
        }
        sk_buf_append_char(&text, '\'');
    }
    if (text.overflow) {
        sk_buf_fini(&text);
        return NULL;
    }
    return sk_buf_take(&text, NULL);
}

static int on_output(void *arg, enum sk_execd_stream stream, const char *data, size_t len)
{
    const struct ctl *ctl = arg;
    json_t *line;

    if (!ctl->args.json) {
        FILE *out = stream == SK_EXECD_STDERR ? stderr : stdout;
        return fwrite(data, 1, len, out) == len && fflush(out) == 0 ? 0 : -1;
    }
    line = json_pack("{s:s, s:s%}", "stream", stream == SK_EXECD_STDERR ? "stderr" : "stdout", "text", data, len);
    if (line == NULL)
        return -1;
    ctl_json_line(line);
    json_decref(line);
    return ferror(stdout) ? -1 : 0;
}

static int show_end(const struct ctl *ctl, const struct sk_execd_result *result)
{
    if (ctl->args.json) {
        json_t *line =
            json_pack("{s:s, s:o, s:I, s:s, s:b}", "end", sk_execd_end_name(result->end), "exitCode",
                      result->end == SK_EXECD_EXITED ? json_integer(result->exit_code) : json_null(), "durationMs",
                      (json_int_t)result->duration_ms, "detail", result->detail, "outputLost", result->output_lost);
        ctl_json_line(line);
        json_decref(line);
    }
    if (result->output_lost)
        ctl_complain("part of the output was lost");
    if (result->end == SK_EXECD_EXITED)
        return result->exit_code;
    ctl_complain("the command did not exit: %s%s%s", sk_execd_end_name(result->end),
                 result->detail[0] != '\0' ? ", " : "", ctl_clean(result->detail));
    return END_NOT_SEEN;
}

int ctl_exec(struct ctl *ctl)
{
    struct ctl_provider provider = {0};
    struct sk_execd execd;
    struct sk_execd_result result = {0};
    struct sk_error err = {0};
    char *text = NULL;
    int status = ctl_identity(ctl);

    if (status != 0)
        return status;
    if (ctl->args.rest_count < 1)
        return ctl_usage(ctl, "say what to run after --");
    text = command_text(ctl->args.rest, ctl->args.rest_count);
    if (text == NULL)
        return ctl_usage(ctl, "the command is longer than %d bytes", COMMAND_MAX);
    status = ctl_provider_open(ctl, &provider);
    if (status == 0)
        status = find_execd(ctl, &provider, &execd);
    if (status == 0) {
        const struct sk_execd_command command = {
            .command = text,
            .cwd = ctl->args.cwd,
            .timeout_ms = ctl->args.timeout_ms > 0 ? ctl->args.timeout_ms : 0,
            .uid = -1,
            .gid = -1,
            .on_output = on_output,
            .arg = ctl,
        };
        bool known = sk_execd_run(&execd, &provider.call, &command, &result, &err) == 0;

        if (ctl_interrupted && !(known && result.end == SK_EXECD_EXITED)) {
            status = ctl_say_interrupted("the command in the sandbox was told to end");
        } else if (known) {
            status = show_end(ctl, &result);
        } else {
            status = ctl_provider_error(ctl, &err);
            status = result.end == SK_EXECD_LOST && result.id[0] != '\0' ? END_NOT_SEEN : status;
        }
    }
    ctl_provider_close(&provider);
    free(text);
    return status;
}

/* ---- cp ---- */
/* "<sandbox id>:PATH" or ":PATH". Returns PATH, or NULL when it is a local name. `id` gets the sandbox id or "". */
static const char *remote_side(const char *text, char id[SK_SANDBOX_ID_SIZE])
{
    const char *colon = strchr(text, ':');
    size_t len = colon != NULL ? (size_t)(colon - text) : 0;

    id[0] = '\0';
    if (colon == NULL || len >= SK_SANDBOX_ID_SIZE)
        return NULL;
    memcpy(id, text, len);
    id[len] = '\0';
    if (len > 0 && !sk_sandbox_id_valid(id)) {
        id[0] = '\0';
        return NULL;
    }
    return colon + 1;
}

/* Waits until the local side can be read or written: a terminal or a pipe may take for ever, and an interrupt ends it.
 */
static bool wait_local(int fd, short events)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};

    while (!ctl_interrupted) {
        int ready = poll(&poll_fd, 1, LOCAL_SLICE_MS);
        if (ready > 0 || (ready < 0 && errno != EINTR))
            return true; /* the read or write tells what is wrong */
    }
    return false;
}

static ssize_t read_source(void *arg, void *out, size_t size)
{
    int fd = *(int *)arg;
    ssize_t got = -1;

    while (wait_local(fd, POLLIN)) {
        got = read(fd, out, size);
        if (got >= 0 || errno != EINTR)
            return got;
    }
    return got;
}

static int write_sink(void *arg, const void *data, size_t len)
{
    const char *at = data;
    int fd = *(int *)arg;
    struct stat info;
    /* Into a pipe that can be written PIPE_BUF bytes fit for certain: more could block. */
    size_t most = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? SIZE_MAX : PIPE_BUF;

    while (len > 0) {
        ssize_t put = wait_local(fd, POLLOUT) ? write(fd, at, len < most ? len : most) : -1;
        if (put < 0 && errno == EINTR && !ctl_interrupted)
            continue;
        if (put <= 0)
            return SK_HTTP_SINK_FAIL;
        at += put;
        len -= (size_t)put;
    }
    return SK_HTTP_SINK_MORE;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static void show_copied(const struct ctl *ctl, int64_t bytes)
{
    json_t *document;

    if (!ctl->args.json) {
        ctl_note(ctl, "%lld bytes copied", (long long)bytes);
        return;
    }
    document = json_pack("{s:s, s:I}", "sandboxId", ctl->sandbox_id, "bytes", (json_int_t)bytes);
    ctl_json(document);
    json_decref(document);
}

static int upload(struct ctl *ctl, struct ctl_provider *provider, const struct sk_execd *execd, const char *local,
                  const char *remote)
{
    bool standard = strcmp(local, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(local, O_RDONLY | O_CLOEXEC);
    struct sk_execd_upload file = {.source = read_source, .source_arg = &fd, .size = -1};
    char path[SK_EXECD_PATH_MAX];
    struct sk_error err = {0};
    struct stat info;
    int64_t sent = 0;
    int status = CTL_OK;

    if (fd < 0 || fstat(fd, &info) != 0) {
        ctl_complain("%s: %s", local, strerror(errno));
        status = CTL_FAILED;
    } else if (S_ISDIR(info.st_mode)) {
        ctl_complain("%s is a directory", local);
        status = CTL_USAGE;
    } else if ((size_t)snprintf(path, sizeof(path), "%s%s", remote,
                                remote[0] == '\0' || remote[strlen(remote) - 1] == '/' ? base_name(local) : "") >=
               sizeof(path)) {
        ctl_complain("the path is too long");
        status = CTL_USAGE;
    } else {
        if (S_ISREG(info.st_mode)) {
            off_t at = lseek(fd, 0, SEEK_CUR);
            file.size = info.st_size - (at > 0 ? at : 0);
            file.mode = standard ? 0 : (int)(info.st_mode & 0777);
        }
        file.path = path;
        if (sk_execd_upload(execd, &provider->call, &file, &sent, &err) == 0)
            show_copied(ctl, sent);
        else if (ctl_interrupted)
            status = ctl_say_interrupted("%s in the sandbox may hold only a part of the file", ctl_clean(path));
        else
            status = ctl_provider_error(ctl, &err);
    }
    if (fd >= 0 && !standard)
        close(fd);
    return status;
}

static int download_to(struct ctl *ctl, struct ctl_provider *provider, const struct sk_execd *execd, const char *remote,
                       int fd)
{
    struct sk_error err = {0};
    int64_t received = 0;
    bool found = false;

    if (sk_execd_download(execd, &provider->call, remote, 0, write_sink, &fd, &received, &found, &err) != 0)
        return ctl_provider_error(ctl, &err);
    if (!found) {
        ctl_complain("%s: no such file in %s", ctl_clean(remote), ctl->sandbox_id);
        return CTL_NOT_FOUND;
    }
    if (fd == STDOUT_FILENO && ctl->args.json) /* the file itself is on stdout */
        return CTL_OK;
    show_copied(ctl, received);
    return CTL_OK;
}

/* A device or a pipe is written to as it is: renaming a file onto /dev/null would be remembered for long. */
static int download_into(struct ctl *ctl, struct ctl_provider *provider, const struct sk_execd *execd,
                         const char *remote, const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC), status;

    if (fd < 0) {
        ctl_complain("%s: %s", path, strerror(errno));
        return CTL_FAILED;
    }
    status = download_to(ctl, provider, execd, remote, fd);
    if (close(fd) != 0 && status == CTL_OK) {
        ctl_complain("%s: %s", path, strerror(errno));
        status = CTL_FAILED;
    }
    return status;
}

/* Written beside and renamed: a broken download never replaces a good file. */
static int download_file(struct ctl *ctl, struct ctl_provider *provider, const struct sk_execd *execd,
                         const char *remote, const char *path, mode_t mode)
{
    char part[SK_EXECD_PATH_MAX + 16];
    int fd, status;

    snprintf(part, sizeof(part), "%s.XXXXXX", path);
    fd = mkostemp(part, O_CLOEXEC);
    if (fd < 0) {
        ctl_complain("%s: %s", path, strerror(errno));
        return CTL_FAILED;
    }
    status = download_to(ctl, provider, execd, remote, fd);
    if (status == CTL_OK && (fchmod(fd, mode) != 0 || close(fd) != 0 || rename(part, path) != 0)) {
        ctl_complain("%s: %s", path, strerror(errno));
        status = CTL_FAILED;
        unlink(part);
    } else if (status != CTL_OK) {
        close(fd);
        unlink(part);
    }
    return status;
}

static int download(struct ctl *ctl, struct ctl_provider *provider, const struct sk_execd *execd, const char *remote,
                    const char *local)
{
    char path[SK_EXECD_PATH_MAX];
    mode_t mask = umask(077);
    struct stat info;
    char *real;
    bool folder;
    int status;

    umask(mask);
    if (strcmp(local, "-") == 0)
        return download_to(ctl, provider, execd, remote, STDOUT_FILENO);
    folder = stat(local, &info) == 0 && S_ISDIR(info.st_mode);
    if ((size_t)snprintf(path, sizeof(path), "%s%s%s", local, folder ? "/" : "", folder ? base_name(remote) : "") >=
        sizeof(path)) {
        ctl_complain("the path is too long");
        return CTL_USAGE;
    }
    if (stat(path, &info) != 0)
        return download_file(ctl, provider, execd, remote, path, 0666 & ~mask);
    if (!S_ISREG(info.st_mode))
        return download_into(ctl, provider, execd, remote, path);
    /* What is there keeps its mode, and a link goes on pointing to it. */
    real = realpath(path, NULL);
    if (real == NULL || strlen(real) >= sizeof(path)) {
        ctl_complain("%s: %s", path, real == NULL ? strerror(errno) : "the path is too long");
        free(real);
        return CTL_FAILED;
    }
    status = download_file(ctl, provider, execd, remote, real, info.st_mode & 0777);
    free(real);
    return status;
}

int ctl_cp(struct ctl *ctl)
{
    char from_id[SK_SANDBOX_ID_SIZE], to_id[SK_SANDBOX_ID_SIZE];
    struct ctl_provider provider = {0};
    const char *from, *to, *remote_from, *remote_to;
    struct sk_execd execd;
    int status;

    if (ctl->args.positional_count != 2)
        return ctl_usage(ctl, "say from where to where: one side is SANDBOX-ID:PATH (or :PATH with --app and --user)");
    from = ctl->args.positional[0];
    to = ctl->args.positional[1];
    remote_from = remote_side(from, from_id);
    remote_to = remote_side(to, to_id);
    if ((remote_from == NULL) == (remote_to == NULL))
        return ctl_usage(ctl, "exactly one side must be in a sandbox: SANDBOX-ID:PATH, or :PATH with --app and --user");
    if (remote_from != NULL && remote_from[0] == '\0')
        return ctl_usage(ctl, "say which file of the sandbox");
    /* The identity machinery looks at the first word. */
    ctl->args.positional[0] = remote_from != NULL ? from_id : to_id;
    ctl->args.positional_count = ctl->args.positional[0][0] != '\0' ? 1 : 0;
    status = ctl_identity(ctl);
    if (status != 0)
        return status;
    status = ctl_provider_open(ctl, &provider);
    if (status == 0)
        status = find_execd(ctl, &provider, &execd);
    if (status == 0)
        status = remote_to != NULL ? upload(ctl, &provider, &execd, from, remote_to)
                                   : download(ctl, &provider, &execd, remote_from, to);
    ctl_provider_close(&provider);
    return status;
}
