/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line that every service has (contract/service.md §1). */
#include "common/config/private.h"

#include <string.h>

#define EXIT_USAGE 2

static void print_help(const struct sk_service_cli *cli, FILE *out)
{
    fprintf(out,
            "%s: %s\n\n"
            "usage: %s [options]\n"
            "  --help                          this text\n"
            "  --version                       version, git revision, library versions\n"
            "  --check-config                  check the configuration: 0 good, 2 with every bad variable listed\n"
            "  --print-config [--json]         every key with value, source, default and range; secrets masked\n"
            "  --print-config --markdown       the table of keys as documentation\n"
            "  --env-file FILE                 KEY=VALUE lines for variables that the environment does not set\n",
            cli->config->program, cli->summary != NULL ? cli->summary : "", cli->config->program);
    if (cli->extra_help != NULL)
        fputs(cli->extra_help, out);
    fprintf(out, "\nConfiguration comes from the environment; NAME_FILE names a file that holds the value of NAME.\n"
                 "Exit status: 0 ended as asked, 1 failed, 2 usage or configuration, 69 a dependency stayed away.\n");
}

static int usage_error(const struct sk_service_cli *cli, const char *what, const char *argument)
{
    fprintf(stderr, "%s: %s%s%s (see --help)\n", cli->config->program, what, argument != NULL ? ": " : "",
            argument != NULL ? argument : "");
    return EXIT_USAGE;
}

int sk_service_cli(const struct sk_service_cli *cli, int argc, char **argv)
{
    struct sk_config *config = cli->config;
    enum sk_config_format format = SK_CONFIG_TEXT;
    bool check = false, print = false, version = false;
    struct sk_error err = {0};
    int problems;

    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *env_file = NULL;
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            print_help(cli, stdout);
            return 0;
        } else if (strcmp(arg, "--version") == 0) {
            version = true;
        } else if (strcmp(arg, "--check-config") == 0) {
            check = true;
        } else if (strcmp(arg, "--print-config") == 0) {
            print = true;
        } else if (strcmp(arg, "--json") == 0) {
            format = SK_CONFIG_JSON;
        } else if (strcmp(arg, "--markdown") == 0) {
            format = SK_CONFIG_MARKDOWN;
        } else if (strcmp(arg, "--env-file") == 0) {
            if (i + 1 >= argc)
                return usage_error(cli, "--env-file needs a file name", NULL);
            env_file = argv[++i];
        } else if (strncmp(arg, "--env-file=", 11) == 0) {
            env_file = arg + 11;
        } else if (cli->extra == NULL || !cli->extra(cli->arg, argc, argv, &i)) {
            return usage_error(cli, "unknown argument", arg);
        }
        if (env_file != NULL && sk_config_env_file(env_file, &err) != 0)
            return usage_error(cli, err.message, NULL);
    }
    if (version) {
        sk_version_print(config->program, cli->libraries, stdout);
        return 0;
    }
    if (format != SK_CONFIG_TEXT && !print)
        return usage_error(cli, "--json and --markdown go with --print-config", NULL);
    if (print && format == SK_CONFIG_MARKDOWN) {
        sk_config_print(config, format, stdout);
        return 0;
    }

    problems = sk_config_load(config, stderr);
    if (problems == 0 && cli->check != NULL) {
        problems = cli->check(config->values, stderr);
        if (problems > 0 && !print)
            sk_config_fini(config);
    }
    if (problems > 0 && !(print && config->sources != NULL)) {
        fprintf(stderr, "%s: %d problem%s in the configuration\n", config->program, problems, problems == 1 ? "" : "s");
        return EXIT_USAGE;
    }
    if (print)
        sk_config_print(config, format, stdout);
    else if (check)
        printf("%s: the configuration is good\n", config->program);
    if (!print && !check)
        return -1;
    sk_config_fini(config);
    return problems > 0 ? EXIT_USAGE : 0;
}
