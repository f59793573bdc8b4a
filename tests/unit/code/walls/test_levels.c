/* SPDX-License-Identifier: Apache-2.0
 *
 * Levels of isolation: what the self-test measures here, that it notices a missing wall, and that a lower level still
 * holds. */
#define SK_CHECK_TIMEOUT 120
#include "services/code/landlock.h"
#include "services/code/runtime.h"
#include "services/code/selftest.h"
#include "tests/unit/check_main.h"
#include "tree.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* May everybody come as far as this file? */
static bool reachable(const char *path)
{
    char part[512];

    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        struct stat info;

        snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
        if (stat(part, &info) != 0 || (info.st_mode & S_IXOTH) == 0)
            return false;
    }
    return true;
}

START_TEST(test_full)
{
    static struct tree_outcome out;
    struct tree t;

    if (!tree_start(&t, NULL))
        return;
    ck_assert_int_eq((int)t.hello.u.hello.level, CODE_LEVEL_FULL);
    ck_assert_uint_eq(t.hello.u.hello.slots, 4);
    ck_assert_uint_eq(t.level.u.level.crossed, 0);
    tree_run(&t, "pid", NULL, &out);
    ck_assert_str_eq(out.text, "pid: 2\n");
    tree_end(&t);
}
END_TEST

START_TEST(test_container)
{
    const struct tree_options options = {.highest = CODE_LEVEL_CONTAINER};
    static struct tree_outcome out;
    struct tree t;
    char expected[32];

    if (!tree_start(&t, &options))
        return;
    ck_assert_int_eq((int)t.hello.u.hello.level, CODE_LEVEL_CONTAINER);
    tree_run(&t, "uid", NULL, &out);
    snprintf(expected, sizeof(expected), "uid: %u\n", out.uid);
    ck_assert_str_eq(out.text, expected);
    tree_run(&t, "read /etc/passwd\nread /etc/debian_version\nwrite " CODE_TMP_DIR "/x\nsocket\nfork", NULL, &out);
    ck_assert_msg(strncmp(out.text, "open: E", 7) == 0 && strstr(out.text, "ok") == NULL, "%s", out.text);
    tree_end(&t);
}
END_TEST

/* A root that the image brings: what is in it can be read, nothing else, and nothing written. */
START_TEST(test_container_root)
{
    char root[] = "/tmp/sk-code-root-XXXXXX", etc[64], file[96];
    struct tree_options options = {.highest = CODE_LEVEL_CONTAINER, .container_root = root};
    static struct tree_outcome out;
    FILE *made;
    struct tree t;

    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(etc, sizeof(etc), "%s/etc", root);
    snprintf(file, sizeof(file), "%s/debian_version", etc);
    ck_assert_int_eq(chmod(root, 0755), 0);
    ck_assert_int_eq(mkdir(etc, 0755), 0);
    made = fopen(file, "we");
    ck_assert_ptr_nonnull(made);
    fclose(made);
    chmod(file, 0644);
    if (tree_start(&t, &options)) {
        tree_run(&t, "read /etc/debian_version\nread /etc/passwd\nread /etc/../../etc/passwd\nwrite /etc/x", NULL,
                 &out);
        ck_assert_msg(strncmp(out.text, "open: ok\nopen: ENOENT\nopen: ENOENT\nopen: E", 42) == 0, "%s", out.text);
        tree_end(&t);
    }
    unlink(file);
    rmdir(etc);
    rmdir(root);
}
END_TEST

/* Root in an ordinary container: `container`; where user namespaces are allowed, `full`. */
START_TEST(test_without_admin)
{
    struct tree_options options = {.drop_admin = true, .no_userns = true, .highest = CODE_LEVEL_FULL};
    static struct tree_outcome out;
    int status;
    struct tree t;

    if (geteuid() != 0) {
        fprintf(stderr, "SKIPPED: needs root\n");
        return;
    }
    ck_assert_int_eq(tree_start_launcher(&t, &options, &status), 0);
    ck_assert_int_eq((int)t.level.u.level.level, CODE_LEVEL_CONTAINER);
    tree_next_zygote(&t);
    tree_run(&t, "read /etc/passwd\nsocket", NULL, &out);
    ck_assert_str_eq(out.text, "open: ENOENT\nsocket: EPERM\n");
    tree_end(&t);
    options.no_userns = false;
    if (!tree_start(&t, &options)) /* skips where they are not allowed */
        return;
    ck_assert_uint_eq(t.level.u.level.user_namespace, 1);
    for (int i = 0; i < 3; i++) {
        tree_run(&t, "pid\nread /etc/passwd\nread /etc/debian_version\nwrite " CODE_TMP_DIR "/x\nsocket\nfork", NULL,
                 &out);
        ck_assert_int_eq(strncmp(out.text, "pid: ", 5), 0);
        ck_assert_str_eq(strchr(out.text, '\n') + 1, "open: ENOENT\nopen: ok\nopen: ok\nsocket: EPERM\nfork: EPERM\n");
    }
    tree_end(&t);
}
END_TEST

START_TEST(test_shared_uid_only_when_allowed)
{
    struct tree_options options = {.highest = CODE_LEVEL_SHARED_UID};
    static struct tree_outcome out;
    struct tree t;
    int status = 0;

    if (geteuid() != 0)
        return;
    ck_assert_int_eq(tree_start_launcher(&t, &options, &status), -1);
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    options.allow_unsafe = true;
    if (!tree_start(&t, &options))
        return;
    tree_run(&t, "read /etc/passwd\nread /proc/self/status\nsocket\nfork\nkill 1 0", NULL, &out);
    ck_assert_str_eq(out.text, "open: EACCES\nopen: EACCES\nsocket: EPERM\nfork: EPERM\nkill: EPERM\n");
    tree_end(&t);
}
END_TEST

/* Nobody in particular: one uid for all, and only when that is allowed. */
START_TEST(test_nobody)
{
    struct tree_options options = {.nobody = true, .highest = CODE_LEVEL_FULL};
    static struct tree_outcome out;
    struct tree t;
    int status = 0;

    if (geteuid() != 0 || code_landlock_abi() < CODE_LANDLOCK_SCOPES) {
        fprintf(stderr, "SKIPPED: needs root and Landlock with scopes\n");
        return;
    }
    if (access(tree_template(), X_OK) != 0 || !reachable(tree_template())) {
        fprintf(stderr, "SKIPPED: the build folder is not for everybody\n");
        return;
    }
    ck_assert_int_eq(tree_start_launcher(&t, &options, &status), -1);
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    options.allow_unsafe = true;
    ck_assert_int_eq(tree_start_launcher(&t, &options, &status), 0);
    ck_assert_int_eq((int)t.level.u.level.level, CODE_LEVEL_SHARED_UID);
    tree_next_zygote(&t);
    tree_run(&t, "uid\nread /etc/passwd\nread /proc/self/status\nwrite /tmp/x\nsocket\nfork\nkill 1 0", NULL, &out);
    ck_assert_str_eq(out.text,
                     "uid: 65534\nopen: EACCES\nopen: EACCES\nopen: EACCES\nsocket: EPERM\nfork: EPERM\nkill: EPERM\n");
    tree_end(&t);
}
END_TEST

/* The self-test is no formality: with a readable target beside it that is not behind a wall, it says which is crossed.
 * Here level shared-uid is run against the demands of level container. */
START_TEST(test_selftest_notices)
{
    struct code_cgroup none = {0};
    char root[] = "/tmp/sandkeep-code-test-XXXXXX";
    struct code_selftest test = {.level = CODE_LEVEL_SHARED_UID,
                                 .cgroup = &none,
                                 .root = root,
                                 .canary_dir = "/tmp",
                                 .uid_base = tree_uid_base()};
    uint64_t crossed = 0, naked = 0;
    struct sk_error err;

    if (geteuid() != 0) {
        fprintf(stderr, "SKIPPED: needs root\n");
        return;
    }
    ck_assert_ptr_nonnull(mkdtemp(root));
    chmod(root, 0755);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (code_landlock_abi() < CODE_LANDLOCK_SCOPES) {
        fprintf(stderr, "SKIPPED: needs Landlock with scopes\n");
    } else {
        ck_assert_msg(code_selftest_run(&test, &crossed, &err) == 0, "%s", err.message);
        ck_assert_uint_eq(crossed, 0);
        test.demands = CODE_LEVEL_FULL;
        ck_assert_msg(code_selftest_run(&test, &naked, &err) == 0, "%s", err.message);
        ck_assert_msg((naked & 1u << CODE_WALL_IDENTITY) != 0, "a task with its maker's uid was not noticed");
        ck_assert_msg((naked & 1u << CODE_WALL_PROCESSES) != 0, "a task that can fork was not noticed");
        ck_assert_msg((naked & 1u << CODE_WALL_IPC) != 0, "shared memory of others was not noticed");
        ck_assert_msg((naked & 1u << CODE_WALL_CALLS) == 0, "the filter does not hold");
    }
    rmdir(root);
}
END_TEST

SK_CHECK_MAIN("code levels", test_full, test_container, test_container_root, test_without_admin,
              test_shared_uid_only_when_allowed, test_nobody, test_selftest_notices)
