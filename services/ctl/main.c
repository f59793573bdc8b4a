/* SPDX-License-Identifier: Apache-2.0
 *
 * skctl: the command line of Sandkeep. This file reads the options that stand before the verb, the configuration and
 * the verb's arguments, and runs the verb. */
#include "services/ctl/ctl.h"

#include "common/base/version.h"

#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const char *const nats_schemes[] = {"nats", "tls", NULL};
static const char *const http_schemes[] = {"http", "https", NULL};

static const struct sk_config_key keys[] = {
    SK_CONFIG_URL(struct ctl_config, nats_url, "SANDKEEP_NATS_URL", "nats://127.0.0.1:4222", nats_schemes,
                  SK_CONFIG_REQUIRED, "The bus."),
    SK_CONFIG_STRING(struct ctl_config, nats_token, "SANDKEEP_NATS_TOKEN", "", SK_CONFIG_SECRET,
                     "Token for the bus; empty = none."),
    SK_CONFIG_STRING(struct ctl_config, nats_credentials_file, "SANDKEEP_NATS_CREDENTIALS_FILE", "", 0,
                     "Credentials file for the bus; empty = none."),
    SK_CONFIG_STRING(struct ctl_config, prefix, "SANDKEEP_SUBJECT_PREFIX", "sandbox",
                     SK_CONFIG_REQUIRED | SK_CONFIG_TOKEN, "First token of all subjects."),
    SK_CONFIG_URL(struct ctl_config, localbox_url, "SANDKEEP_LOCALBOX_URL", "", http_schemes, 0,
                  "sk-localbox of the one-machine stack; for exec, cp and doctor."),
    SK_CONFIG_STRING(struct ctl_config, localbox_key, "SANDKEEP_LOCALBOX_KEY", "", SK_CONFIG_SECRET, "Its key."),
    SK_CONFIG_URL(struct ctl_config, provider_url, "AGENT_SANDBOX_OPENSANDBOX_BASEURL", "", http_schemes, 0,
                  "OpenSandbox server; wins over SANDKEEP_LOCALBOX_URL."),
    SK_CONFIG_STRING(struct ctl_config, provider_key, "AGENT_SANDBOX_OPENSANDBOX_API_KEY", "", SK_CONFIG_SECRET,
                     "Its API key."),
    SK_CONFIG_URL(struct ctl_config, volume_url, "AGENT_SANDBOX_OPENSANDBOX_VOLUME_MANAGER_URL", "", http_schemes, 0,
                  "Volume manager; empty = sk-localbox itself, or none."),
    SK_CONFIG_STRING(struct ctl_config, volume_token, "AGENT_SANDBOX_OPENSANDBOX_VOLUME_MANAGER_TOKEN", "",
                     SK_CONFIG_SECRET, "Its token."),
    SK_CONFIG_URL(struct ctl_config, code_url, "SANDKEEP_CODE_URL", "", http_schemes, 0,
                  "Code sandbox (sk-code, or any with the same API); for code and doctor."),
    SK_CONFIG_STRING(struct ctl_config, code_token, "SANDKEEP_CODE_TOKEN", "", SK_CONFIG_SECRET,
                     "Its token; empty = none."),
};

static const struct sk_version_library libraries[] = {
    {"nats.c", nats_GetVersion, NULL}, {"jansson", jansson_version_str, NULL}, {NULL, NULL, NULL}};

enum { MODE_VERB, MODE_CHECK, MODE_PRINT };

/* Options before the verb. Returns the index of the verb (argc when there is none), or -1 with the exit status. */
static int global_options(int argc, char **argv, int *mode, enum sk_config_format *format, int *exit_status)
{
    struct sk_error err = {0};
    int i;

    *exit_status = CTL_USAGE;
    for (i = 1; i < argc && argv[i][0] == '-'; i++) {
        const char *env_file = NULL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            ctl_help_print(stdout);
            *exit_status = ctl_finish(CTL_OK);
            return -1;
        } else if (strcmp(argv[i], "--version") == 0) {
            sk_version_print("skctl", libraries, stdout);
            *exit_status = ctl_finish(CTL_OK);
            return -1;
        } else if (strcmp(argv[i], "--check-config") == 0) {
            *mode = MODE_CHECK;
        } else if (strcmp(argv[i], "--print-config") == 0) {
            *mode = MODE_PRINT;
        } else if (strcmp(argv[i], "--json") == 0 && *mode == MODE_PRINT) {
            *format = SK_CONFIG_JSON;
        } else if (strcmp(argv[i], "--markdown") == 0 && *mode == MODE_PRINT) {
            *format = SK_CONFIG_MARKDOWN;
        } else if (strcmp(argv[i], "--env-file") == 0 && i + 1 < argc) {
            env_file = argv[++i];
        } else if (strncmp(argv[i], "--env-file=", 11) == 0) {
            env_file = argv[i] + 11;
        } else {
            ctl_complain("unknown option %s before the verb (see skctl --help)", argv[i]);
            return -1;
        }
        if (env_file != NULL && sk_config_env_file(env_file, &err) != 0) {
            ctl_complain("%s", err.message);
            return -1;
        }
    }
    return i;
}

static int run_verb(struct ctl *ctl, int argc, char **argv, int at)
{
    int status;

    ctl->verb = ctl_verb_find(argv[at]);
    if (ctl->verb == NULL) {
        ctl_complain("there is no verb %s (see skctl --help)", ctl_clean(argv[at]));
        return CTL_USAGE;
    }
    status = ctl_parse(ctl, argc, argv, at + 1);
    if (status != 0)
        return status;
    if (ctl->args.help) {
        ctl_help_verb(ctl->verb, stdout);
        return CTL_OK;
    }
    status = ctl->verb->run(ctl);
    ctl_link_close(ctl);
    return status;
}

int main(int argc, char **argv)
{
    struct ctl ctl = {0};
    struct sk_config config = {
        .program = "skctl", .keys = keys, .count = sizeof(keys) / sizeof(keys[0]), .values = &ctl.config};
    enum sk_config_format format = SK_CONFIG_TEXT;
    int mode = MODE_VERB, status, at, problems;

    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN); /* a closed stdout ends the program in its own time, see ctl_finish */
    at = global_options(argc, argv, &mode, &format, &status);
    if (at < 0)
        return status;
    if (at == argc && mode == MODE_VERB) {
        ctl_help_print(stderr);
        return CTL_USAGE;
    }
    problems = sk_config_load(&config, stderr);
    if (problems > 0) {
        ctl_complain("%d problem%s in the configuration", problems, problems == 1 ? "" : "s");
        return CTL_USAGE;
    }
    if (mode == MODE_PRINT)
        sk_config_print(&config, format, stdout);
    else if (mode == MODE_CHECK)
        puts("skctl: the configuration is good");
    status = mode == MODE_VERB ? run_verb(&ctl, argc, argv, at) : CTL_OK;
    sk_config_fini(&config);
    return ctl_finish(status);
}
