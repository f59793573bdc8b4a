/* SPDX-License-Identifier: Apache-2.0
 * The common command line: what goes to stdout and stderr, and the exit status. */
#include "common/base/version.h"
#include "tests/unit/check_main.h"
#include "tests/unit/config/sample.h"

#include <jansson.h>

static const char *library_version(void)
{
    return "1.2.3";
}

static const struct sk_version_library libraries[] = {
    {"libsample", library_version, NULL}, {"libother", NULL, "9"}, {NULL, NULL, NULL}};

static int setups;

static bool extra(void *arg, int argc, char **argv, int *index)
{
    ck_assert_ptr_eq(arg, &setups);
    if (strcmp(argv[*index], "--setup") == 0 && *index + 1 < argc) {
        ++*index;
        setups++;
        return true;
    }
    return false;
}

static int cross_check(void *values, FILE *problems)
{
    const struct sample *s = values;

    if (s->workers != 13)
        return 0;
    fprintf(problems, "SKT_WORKERS must not be 13 here\n");
    return 1;
}

static char out[65536], err[65536];

/* Runs the command line with both streams caught. */
static int run(const char *const *arguments)
{
    static const struct sk_service_cli cli = {.config = &sample_config,
                                              .summary = "a sample",
                                              .extra_help = "  --setup WHAT   sets up\n",
                                              .extra = extra,
                                              .check = cross_check,
                                              .arg = &setups,
                                              .libraries = libraries};
    char *argv[16] = {(char *)(uintptr_t) "sk-sample"};
    FILE *files[2] = {tmpfile(), tmpfile()};
    int saved[2], argc = 1, status;

    while (arguments[argc - 1] != NULL) {
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
        argc++;
    }
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        saved[i] = dup(i + 1);
        dup2(fileno(files[i]), i + 1);
    }
    status = sk_service_cli(&cli, argc, argv);
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        char *text = i == 0 ? out : err;
        dup2(saved[i], i + 1);
        close(saved[i]);
        rewind(files[i]);
        text[fread(text, 1, sizeof(out) - 1, files[i])] = '\0';
        fclose(files[i]);
    }
    return status;
}

START_TEST(test_go_on)
{
    sample_clear();
    ck_assert_int_eq(run((const char *const[]){NULL}), -1);
    ck_assert_str_eq(out, "");
    ck_assert_str_eq(err, "");
    ck_assert_str_eq(sample.name, "somebody");
    sk_config_fini(&sample_config);
    ck_assert_int_eq(run((const char *const[]){"--setup", "x", NULL}), -1);
    ck_assert_int_eq(setups, 1);
    sk_config_fini(&sample_config);
}
END_TEST

START_TEST(test_help_and_version)
{
    sample_clear();
    setenv("SKT_WORKERS", "bad", 1); /* neither looks at the configuration */
    ck_assert_int_eq(run((const char *const[]){"--help", NULL}), 0);
    ck_assert_ptr_nonnull(strstr(out, "sk-sample: a sample"));
    ck_assert_ptr_nonnull(strstr(out, "--setup WHAT"));
    ck_assert_int_eq(run((const char *const[]){"--version", NULL}), 0);
    ck_assert_int_eq(strncmp(out, "sk-sample ", 10), 0);
    ck_assert_ptr_nonnull(strstr(out, sk_version()));
    ck_assert_ptr_nonnull(strstr(out, sk_revision()));
    ck_assert_ptr_nonnull(strstr(out, "\n  libsample 1.2.3\n  libother 9\n"));
}
END_TEST

START_TEST(test_check_config)
{
    sample_clear();
    ck_assert_int_eq(run((const char *const[]){"--check-config", NULL}), 0);
    ck_assert_ptr_nonnull(strstr(out, "good"));
    setenv("SKT_WORKERS", "bad", 1);
    setenv("SKT_RATIO", "7", 1);
    ck_assert_int_eq(run((const char *const[]){"--check-config", NULL}), 2);
    ck_assert_ptr_nonnull(strstr(err, "SKT_WORKERS=bad"));
    ck_assert_ptr_nonnull(strstr(err, "SKT_RATIO=7"));
    ck_assert_ptr_nonnull(strstr(err, "2 problems"));
    /* The same without the flag: the service does not start. */
    ck_assert_int_eq(run((const char *const[]){NULL}), 2);
    sample_clear();
    setenv("SKT_WORKERS", "13", 1);
    ck_assert_int_eq(run((const char *const[]){"--check-config", NULL}), 2);
    ck_assert_ptr_nonnull(strstr(err, "must not be 13"));
    ck_assert_int_eq(run((const char *const[]){NULL}), 2);
    ck_assert_ptr_null(sample.name);
}
END_TEST

START_TEST(test_print_config)
{
    json_t *object;

    sample_clear();
    setenv("SKT_TOKEN", "hunter2", 1);
    ck_assert_int_eq(run((const char *const[]){"--print-config", NULL}), 0);
    ck_assert_ptr_nonnull(strstr(out, "SKT_WORKERS=64\n"));
    ck_assert_ptr_null(strstr(out, "hunter2"));
    ck_assert_int_eq(run((const char *const[]){"--print-config", "--json", NULL}), 0);
    object = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(json_array_size(json_object_get(object, "keys")), SAMPLE_COUNT);
    json_decref(object);
    ck_assert_int_eq(run((const char *const[]){"--print-config", "--markdown", NULL}), 0);
    ck_assert_ptr_nonnull(strstr(out, "| `SKT_TOKEN` |"));
    setenv("SKT_WORKERS", "13", 1); /* a cross-key problem still shows what there is */
    ck_assert_int_eq(run((const char *const[]){"--print-config", NULL}), 2);
    ck_assert_ptr_nonnull(strstr(out, "SKT_WORKERS=13\n"));
    setenv("SKT_WORKERS", "x", 1);
    ck_assert_int_eq(run((const char *const[]){"--print-config", NULL}), 2);
    ck_assert_str_eq(out, "");
}
END_TEST

START_TEST(test_usage_errors)
{
    static const char *const rows[][3] = {{"--nonsense"},
                                          {"stray"},
                                          {"--json"},
                                          {"--env-file"},
                                          {"--setup"},
                                          {"--env-file", "/no/such/file"},
                                          {"--env-file=/no/such/file"}};

    sample_clear();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_int_eq(run(rows[i]), 2);
        ck_assert_str_eq(out, "");
        ck_assert_int_eq(strncmp(err, "sk-sample: ", 11), 0);
    }
}
END_TEST

START_TEST(test_env_file_option)
{
    char *path = sample_file("SKT_WORKERS=21\n", 15), option[128];

    sample_clear();
    ck_assert_int_eq(run((const char *const[]){"--env-file", path, NULL}), -1);
    ck_assert_int_eq(sample.workers, 21);
    sk_config_fini(&sample_config);
    snprintf(option, sizeof(option), "--env-file=%s", path);
    ck_assert_int_eq(run((const char *const[]){option, "--print-config", NULL}), 0);
    ck_assert_ptr_nonnull(strstr(out, "source: env-file"));
    sample_drop(path);
}
END_TEST

SK_CHECK_MAIN("config_cli", test_go_on, test_help_and_version, test_check_config, test_print_config, test_usage_errors,
              test_env_file_option)
