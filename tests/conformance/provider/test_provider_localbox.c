/* SPDX-License-Identifier: Apache-2.0
 *
 * The OpenSandbox adapter and the execd client against a real sk-localbox: the provider checks with and without the
 * server proxy, then commands and files in a sandbox, and a workspace that outlives it. Skipped (exit status 77) when
 * there is no sk-localbox to start. SANDKEEP_TEST_LOCALBOX names another program, SANDKEEP_TEST_OPENSANDBOX_URL (with
 * _KEY and _IMAGE) a server that runs already, for example a real OpenSandbox. */
#define SK_CHECK_TIMEOUT 180
#include "common/http/client.h"
#include "common/provider/execd.h"
#include "tests/conformance/provider/provider_conformance.h"
#include "tests/unit/check_main.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIPPED 77
#define KEY     "conformance-key"
#define JOB     "11111111-1111-4111-8111-111111111111"

struct server {
    pid_t pid;
    char dir[64], url[256];
    const char *key;
};

static struct server server;
static const char *program;

static void set_environment(void)
{
    char value[128];

    snprintf(value, sizeof(value), "%s/data", server.dir);
    setenv("SANDKEEP_LOCALBOX_DATA_DIR", value, 1);
    snprintf(value, sizeof(value), "%s/port", server.dir);
    setenv("SANDKEEP_LOCALBOX_PORT_FILE", value, 1);
    setenv("SANDKEEP_LOCALBOX_LISTEN", "127.0.0.1:0", 1);
    setenv("SANDKEEP_LOCALBOX_ADMIN_LISTEN", "127.0.0.1:0", 1);
    setenv("SANDKEEP_LOCALBOX_KEY", KEY, 1);
}

static pid_t spawn(const char *argument)
{
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        char path[128];
        int log;

        snprintf(path, sizeof(path), "%s/log", server.dir);
        log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        dup2(log, STDERR_FILENO);
        dup2(log, STDOUT_FILENO);
        execl(program, program, argument, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void show_log(void)
{
    char command[128];

    snprintf(command, sizeof(command), "tail -n 20 %s/log >&2", server.dir);
    (void)!system(command);
}

static void start_server(void)
{
    const char *url = getenv("SANDKEEP_TEST_OPENSANDBOX_URL");
    char path[128];
    int port = 0;

    memset(&server, 0, sizeof(server));
    if (url != NULL) {
        const char *key = getenv("SANDKEEP_TEST_OPENSANDBOX_KEY");
        snprintf(server.url, sizeof(server.url), "%s", url);
        server.key = key == NULL ? "" : key;
        return;
    }
    server.key = KEY;
    strcpy(server.dir, "/tmp/sk-provider-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(server.dir));
    ck_assert_int_eq(chmod(server.dir, 0755), 0);
    set_environment();
    server.pid = spawn(NULL);
    snprintf(path, sizeof(path), "%s/port", server.dir);
    for (int i = 0; i < 3000 && port == 0; i++) {
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            if (fscanf(file, "%d", &port) != 1)
                port = 0;
            fclose(file);
        }
        if (port == 0 && waitpid(server.pid, NULL, WNOHANG) == server.pid)
            break;
        usleep(5000);
    }
    if (port == 0)
        show_log();
    ck_assert_int_gt(port, 0);
    snprintf(server.url, sizeof(server.url), "http://127.0.0.1:%d", port);
}

static void stop_server(void)
{
    char command[128];
    pid_t pid;

    if (server.pid == 0)
        return;
    kill(server.pid, SIGTERM);
    waitpid(server.pid, NULL, 0);
    pid = spawn("--end-sandboxes"); /* whatever a failed test left */
    waitpid(pid, NULL, 0);
    snprintf(command, sizeof(command), "rm -rf %s", server.dir);
    (void)!system(command);
    server.pid = 0;
}

static const struct sk_image *image(void)
{
    static struct sk_image value = {.present = true, .repository = "sandkeep/conformance", .tag = "v1"};
    const char *name = getenv("SANDKEEP_TEST_OPENSANDBOX_IMAGE");

    if (name != NULL) {
        snprintf(value.repository, sizeof(value.repository), "%s", name);
        value.tag[0] = '\0';
    }
    return &value;
}

static void open_provider(struct sk_provider *provider, const char *key, bool proxy)
{
    const struct sk_opensandbox_config config = {.base_url = server.url,
                                                 .api_key = key,
                                                 .use_server_proxy = proxy,
                                                 .volume_manager_url = server.url,
                                                 .volume_manager_token = key,
                                                 .request_timeout_ms = 60000};
    struct sk_error err = {0};

    ck_assert_msg(sk_opensandbox_new(&config, &sk_sched_system, provider, &err) == 0, "%s", err.message);
}

static void conform(bool proxy)
{
    struct sk_provider provider;
    struct sk_call call;
    struct sk_conformance c = {.provider = &provider,
                               .call = &call,
                               .sandbox_id = proxy ? "app-00000000000000c1" : "app-00000000000000c2",
                               .claim_name = "fastgpt-session-app-00000000000000c1-0",
                               .image = image(),
                               .wait_ms = 60000};
    bool good;

    start_server();
    open_provider(&provider, server.key, proxy);
    sk_call_init(&call, &sk_sched_system);
    good = sk_provider_conformance(&c);
    sk_provider_conformance_clean(&c);
    if (!good)
        show_log();
    sk_http_call_release(&call);
    sk_opensandbox_free(&provider);
    stop_server();
    ck_assert_msg(good, "%s", c.failure);
    ck_assert_int_gt(c.checks, 60);
    printf("%d checks hold (%s)\n", c.checks, proxy ? "server proxy" : "direct endpoints");
}

START_TEST(test_conformance_by_proxy)
{
    conform(true);
}
END_TEST

START_TEST(test_conformance_direct)
{
    conform(false);
}
END_TEST

START_TEST(test_wrong_key)
{
    struct sk_provider provider;
    struct sk_remote remotes[SK_REMOTES_MAX];
    struct sk_error err = {0};
    struct sk_call call;
    bool more;
    int count;

    start_server();
    open_provider(&provider, "wrong", true);
    sk_call_init(&call, &sk_sched_system);
    ck_assert_int_eq(provider.ops->find(provider.self, &call, "app-00000000000000c1", remotes, &count, &more, &err),
                     -1);
    ck_assert_int_eq(err.provider_status, 401);
    ck_assert_int_eq(err.outcome, SK_OUTCOME_FAILED);
    ck_assert_ptr_null(strstr(err.message, "wrong"));
    ck_assert_int_eq(provider.ops->volume_ensure(provider.self, &call, "claim", "1Gi", &err), -1);
    ck_assert_int_eq(err.provider_status, 401);
    sk_http_call_release(&call);
    sk_opensandbox_free(&provider);
    stop_server();
}
END_TEST

/* ---- commands and files ----------------------------------------------------------------------------------------- */

struct box {
    struct sk_provider provider;
    struct sk_call call;
    struct sk_error err;
    struct sk_remote remote;
    struct sk_storage storage;
    struct sk_execd execd;
    struct sk_buf out, errors;
    int64_t stop_after;
};

static void create_box(struct box *b, int64_t epoch)
{
    static const struct sk_limit limit = {.present = true, .cpu_count = 1, .memory_mib = 512, .storage_size = "1Gi"};
    const struct sk_create_spec spec = {.sandbox_id = "app-00000000000000e1",
                                        .epoch = epoch,
                                        .job_id = JOB,
                                        .image = image(),
                                        .limit = &limit,
                                        .storage = &b->storage};
    bool ready = false, found = false;

    ck_assert_msg(b->provider.ops->create(b->provider.self, &b->call, &spec, &b->remote, &b->err) == 0, "%s",
                  b->err.message);
    for (int i = 0; i < 600 && !ready; i++) {
        ck_assert_msg(b->provider.ops->probe(b->provider.self, &b->call, b->remote.id, &ready, &b->err) == 0, "%s",
                      b->err.message);
        if (!ready)
            usleep(20000);
    }
    ck_assert(ready);
    ck_assert_msg(sk_opensandbox_execd(&b->provider, &b->call, b->remote.id, &b->execd, &found, &b->err) == 0, "%s",
                  b->err.message);
    ck_assert(found);
}

static void remove_box(struct box *b)
{
    bool gone = false, found = true;

    ck_assert_int_eq(b->provider.ops->remove(b->provider.self, &b->call, b->remote.id, &gone, &b->err), 0);
    for (int i = 0; i < 600 && found; i++) {
        ck_assert_int_eq(b->provider.ops->get(b->provider.self, &b->call, b->remote.id, &b->remote, &found, &b->err),
                         0);
        if (found)
            usleep(20000);
    }
    ck_assert(!found);
}

static void begin(struct box *b)
{
    start_server();
    memset(b, 0, sizeof(*b));
    open_provider(&b->provider, server.key, true);
    sk_call_init(&b->call, &sk_sched_system);
    sk_buf_init(&b->out, 1 << 26);
    sk_buf_init(&b->errors, 1 << 26);
    b->storage = (struct sk_storage){.present = true,
                                     .volume_name = "workspace",
                                     .claim_name = "fastgpt-session-app-00000000000000e1-0",
                                     .volume_mount_path = "/workspace"};
    ck_assert_msg(b->provider.ops->volume_ensure(b->provider.self, &b->call, b->storage.claim_name, "1Gi", &b->err) ==
                      0,
                  "%s", b->err.message);
    create_box(b, 1);
}

static void end(struct box *b)
{
    remove_box(b);
    ck_assert_msg(b->provider.ops->volume_remove(b->provider.self, &b->call, b->storage.claim_name, &b->err) == 0, "%s",
                  b->err.message);
    sk_buf_fini(&b->out);
    sk_buf_fini(&b->errors);
    sk_http_call_release(&b->call);
    sk_opensandbox_free(&b->provider);
    stop_server();
}

static int on_output(void *arg, enum sk_execd_stream stream, const char *data, size_t len)
{
    struct box *b = arg;
    struct sk_buf *to = stream == SK_EXECD_STDOUT ? &b->out : &b->errors;

    sk_buf_append(to, data, len);
    return b->stop_after > 0 && (int64_t)sk_buf_len(&b->out) >= b->stop_after;
}

static int run(struct box *b, const char *text, int64_t timeout_ms, struct sk_execd_result *result)
{
    const struct sk_execd_command command = {.command = text,
                                             .cwd = "/workspace",
                                             .timeout_ms = timeout_ms,
                                             .uid = -1,
                                             .gid = -1,
                                             .on_output = on_output,
                                             .arg = b};

    sk_buf_clear(&b->out);
    sk_buf_clear(&b->errors);
    sk_error_clear(&b->err);
    return sk_execd_run(&b->execd, &b->call, &command, result, &b->err);
}

static void check_run(struct box *b, const char *text, int exit_code, const char *out, const char *errors)
{
    struct sk_execd_result result;

    ck_assert_msg(run(b, text, 20000, &result) == 0, "%s: %s", text, b->err.message);
    ck_assert_msg(result.end == SK_EXECD_EXITED, "%s: %s", text, sk_execd_end_name(result.end));
    ck_assert_msg(result.exit_code == exit_code, "%s: exit %d", text, result.exit_code);
    ck_assert_msg(strcmp(sk_buf_data(&b->out), out) == 0, "%s: %s", text, sk_buf_data(&b->out));
    ck_assert_msg(strcmp(sk_buf_data(&b->errors), errors) == 0, "%s: %s", text, sk_buf_data(&b->errors));
    ck_assert(!result.output_lost);
    ck_assert_uint_gt(strlen(result.id), 0);
}

static void *cancel_soon(void *arg)
{
    usleep(300000);
    sk_call_cancel(arg);
    return NULL;
}

START_TEST(test_commands)
{
    struct sk_execd_result result;
    struct sk_execd_status status;
    pthread_t thread;
    int64_t start;
    struct box b;
    bool found;

    begin(&b);
    check_run(&b, "echo one; echo; echo 'two <&> \xc3\xa9'; echo three >&2", 0, "one\n\ntwo <&> \xc3\xa9\n", "three\n");
    check_run(&b, "exit 7", 7, "", "");
    check_run(&b, "pwd", 0, "/workspace\n", "");
    check_run(&b, "printf unterminated", 0, "unterminated\n", "");
    check_run(&b, "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done | tail -n 1", 0, "19999\n", "");

    start = sk_mono_us(&sk_sched_system);
    check_run(&b, "true", 0, "", "");
    printf("exec of true: %lld us\n", (long long)(sk_mono_us(&sk_sched_system) - start));

    ck_assert_int_eq(run(&b, "kill -9 $$", 20000, &result), 0);
    ck_assert_int_eq(result.end, SK_EXECD_SIGNALLED);
    start = sk_mono_us(&sk_sched_system);
    ck_assert_msg(run(&b, "sleep 30", 500, &result) == 0, "%s", b.err.message);
    ck_assert_int_eq(result.end, SK_EXECD_TIMED_OUT);
    ck_assert_int_lt(sk_mono_us(&sk_sched_system) - start, 4000000);
    ck_assert_int_eq(sk_execd_command_status(&b.execd, &b.call, result.id, &status, &found, &b.err), 0);
    ck_assert(found && !status.running);

    ck_assert_int_eq(run(&b, "true", 1000, &result), 0);
    ck_assert_int_eq(sk_execd_command_status(&b.execd, &b.call, result.id, &status, &found, &b.err), 0);
    ck_assert(found && !status.running && status.has_exit_code && status.exit_code == 0);
    ck_assert_int_eq(
        sk_execd_command_status(&b.execd, &b.call, "00000000000000000000000000000000", &status, &found, &b.err), 0);
    ck_assert(!found);

    /* A folder that does not exist is refused before anything ran. */
    const struct sk_execd_command nowhere = {.command = "true", .cwd = "/nowhere", .uid = -1, .gid = -1};
    ck_assert_int_eq(sk_execd_run(&b.execd, &b.call, &nowhere, &result, &b.err), -1);
    ck_assert_int_eq(b.err.provider_status, 400);
    ck_assert_int_eq(b.err.outcome, SK_OUTCOME_FAILED);

    /* Called back: the command is gone inside too. */
    pthread_create(&thread, NULL, cancel_soon, &b.call);
    start = sk_mono_us(&sk_sched_system);
    ck_assert_int_eq(run(&b, "exec sleep 4321", 0, &result), -1);
    ck_assert_int_lt(sk_mono_us(&sk_sched_system) - start, 3000000);
    pthread_join(thread, NULL);
    ck_assert_int_eq(result.end, SK_EXECD_CANCELLED);
    atomic_store(&b.call.cancelled, false);
    for (int i = 0; i < 500; i++) {
        ck_assert_int_eq(sk_execd_command_status(&b.execd, &b.call, result.id, &status, &found, &b.err), 0);
        if (!status.running)
            break;
        usleep(10000);
    }
    ck_assert(found && !status.running);

    b.stop_after = 100000;
    ck_assert_int_eq(run(&b, "yes", 20000, &result), 0);
    ck_assert_int_eq(result.end, SK_EXECD_STOPPED);
    b.stop_after = 0;
    check_run(&b, "echo still here", 0, "still here\n", "");
    end(&b);
}
END_TEST

struct pattern {
    int64_t left;
    uint32_t state;
};

static ssize_t make_pattern(void *arg, void *out, size_t size)
{
    struct pattern *p = arg;
    unsigned char *bytes = out;

    if ((int64_t)size > p->left)
        size = (size_t)p->left;
    for (size_t i = 0; i < size; i++) {
        p->state = p->state * 1664525 + 1013904223;
        bytes[i] = (unsigned char)(p->state >> 24);
    }
    p->left -= (int64_t)size;
    return (ssize_t)size;
}

static int check_pattern(void *arg, const void *data, size_t len)
{
    const unsigned char *bytes = data;
    struct pattern *p = arg;

    for (size_t i = 0; i < len; i++) {
        p->state = p->state * 1664525 + 1013904223;
        if (bytes[i] != (unsigned char)(p->state >> 24))
            return SK_HTTP_SINK_FAIL;
    }
    p->left += (int64_t)len;
    return SK_HTTP_SINK_MORE;
}

static int append(void *arg, const void *data, size_t len)
{
    return sk_buf_append(arg, data, len) ? SK_HTTP_SINK_MORE : SK_HTTP_SINK_FAIL;
}

START_TEST(test_files)
{
    const int64_t size = 20 * 1000 * 1000 + 3;
    static const char *const names[] = {"/workspace/plain.bin", "/workspace/dir/with space & \xc3\xa9 \"q\" %41 +.bin"};
    struct sk_execd_file_info info;
    int64_t sent, received;
    struct box b;
    bool found;

    begin(&b);
    for (int i = 0; i < 2; i++) {
        for (int known = 0; known < 2; known++) {
            struct pattern p = {.left = size, .state = 42};
            const struct sk_execd_upload upload = {
                .path = names[i], .mode = 0640, .source = make_pattern, .source_arg = &p, .size = known ? size : -1};

            ck_assert_msg(sk_execd_upload(&b.execd, &b.call, &upload, &sent, &b.err) == 0, "%s", b.err.message);
            ck_assert_int_eq(sent, size);
        }
        ck_assert_msg(sk_execd_stat(&b.execd, &b.call, names[i], &info, &found, &b.err) == 0, "%s", b.err.message);
        ck_assert(found);
        ck_assert_int_eq(info.size, size);
        ck_assert_int_eq(info.mode, 0640);
        ck_assert_str_eq(info.type, "file");
        struct pattern p = {.state = 42};
        ck_assert_msg(sk_execd_download(&b.execd, &b.call, names[i], 0, check_pattern, &p, &received, &found, &b.err) ==
                          0,
                      "%s", b.err.message);
        ck_assert(found);
        ck_assert_int_eq(received, size);
    }
    /* From an offset. */
    sk_buf_clear(&b.out);
    ck_assert_msg(
        sk_execd_download(&b.execd, &b.call, names[0], size - 10, append, &b.out, &received, &found, &b.err) == 0, "%s",
        b.err.message);
    ck_assert_int_eq(received, 10);
    ck_assert_int_eq(
        sk_execd_download(&b.execd, &b.call, names[0], size + 5, append, &b.out, &received, &found, &b.err), -1);
    ck_assert_int_eq(b.err.provider_status, 416);
    /* Missing. */
    ck_assert_int_eq(sk_execd_stat(&b.execd, &b.call, "/workspace/none", &info, &found, &b.err), 0);
    ck_assert(!found);
    ck_assert_int_eq(
        sk_execd_download(&b.execd, &b.call, "/workspace/none", 0, append, &b.out, &received, &found, &b.err), 0);
    ck_assert(!found);
    /* Empty. */
    struct pattern none = {0};
    const struct sk_execd_upload empty = {.path = "/workspace/empty", .source = make_pattern, .source_arg = &none};
    ck_assert_msg(sk_execd_upload(&b.execd, &b.call, &empty, &sent, &b.err) == 0, "%s", b.err.message);
    sk_buf_clear(&b.out);
    ck_assert_int_eq(
        sk_execd_download(&b.execd, &b.call, "/workspace/empty", 0, append, &b.out, &received, &found, &b.err), 0);
    ck_assert(found && received == 0);

    /* The workspace outlives the sandbox. */
    check_run(&b, "echo kept > /workspace/kept.txt", 0, "", "");
    remove_box(&b);
    create_box(&b, 2);
    check_run(&b, "cat /workspace/kept.txt; wc -c < /workspace/plain.bin", 0, "kept\n20000003\n", "");
    end(&b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("provider against localbox");
    TCase *t = tcase_create("localbox");

    tcase_set_timeout(t, SK_CHECK_TIMEOUT);
    tcase_add_checked_fixture(t, NULL, stop_server);
    tcase_add_test(t, test_conformance_by_proxy);
    tcase_add_test(t, test_conformance_direct);
    tcase_add_test(t, test_wrong_key);
    tcase_add_test(t, test_commands);
    tcase_add_test(t, test_files);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    SRunner *runner;
    int failed;

    program = getenv("SANDKEEP_TEST_LOCALBOX");
    if (program == NULL)
        program = SK_TEST_LOCALBOX;
    if (getenv("SANDKEEP_TEST_OPENSANDBOX_URL") == NULL && access(program, X_OK) != 0) {
        printf("skipped: there is no %s\n", program);
        return SKIPPED;
    }
    runner = srunner_create(suite());
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
