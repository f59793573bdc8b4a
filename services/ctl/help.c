/* SPDX-License-Identifier: Apache-2.0
 *
 * Help texts and the manual page, made from the tables of verbs.c. docs/man/skctl.1 is `skctl help man`; a test
 * compares. */
#include "services/ctl/ctl.h"

#include "common/base/version.h"

#include <ctype.h>
#include <string.h>

#define WIDTH 100

static const char exit_text[] =
    "0 done, 1 the operation failed (doctor: there are findings), 2 usage or configuration, 3 not found, 4 busy or in "
    "conflict, 5 deadline, 6 the bus or the service cannot be reached, 130 interrupted (the operation goes on), 141 "
    "nobody reads stdout any "
    "more.";
static const char config_text[] =
    "Configuration comes from the environment: SANDKEEP_NATS_URL "
    "(nats://127.0.0.1:4222), SANDKEEP_NATS_TOKEN, SANDKEEP_NATS_CREDENTIALS_FILE, "
    "SANDKEEP_SUBJECT_PREFIX (sandbox); for exec, cp and doctor also "
    "SANDKEEP_LOCALBOX_URL and SANDKEEP_LOCALBOX_KEY, or "
    "AGENT_SANDBOX_OPENSANDBOX_BASEURL and AGENT_SANDBOX_OPENSANDBOX_API_KEY; for code (and doctor) "
    "SANDKEEP_CODE_URL and SANDKEEP_CODE_TOKEN. skctl --print-config shows them all with their values.";

static const char time_text[] =
    "TIME is a number and ms, s, m, h or d, such as 500ms or 1.5h; without a unit it is seconds.";

static bool takes_time(const struct ctl_verb *verb)
{
    const struct ctl_option *const *option = verb->options;

    while (*option != NULL && (*option)->type != CTL_OPTION_DURATION)
        option++;
    return *option != NULL;
}

/* Paragraph of text with `indent` blanks before each line. */
static void wrap(FILE *out, const char *text, int indent)
{
    int column = 0;

    while (*text != '\0') {
        size_t len = strcspn(text, " ");
        if (column > indent && column + 1 + (int)len > WIDTH) {
            fputc('\n', out);
            column = 0;
        }
        if (column == 0)
            column = fprintf(out, "%*s", indent, "");
        else
            column += fprintf(out, " ");
        column += fprintf(out, "%.*s", (int)len, text);
        text += len + (text[len] == ' ');
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const struct ctl_option *option)
{
    int used = fprintf(out, "  --%s%s%s", option->name, option->value != NULL ? "=" : "",
                       option->value != NULL ? option->value : "");

    fprintf(out, "%*s%s\n", used < 28 ? 28 - used : 1, "", option->help);
}

void ctl_help_verb(const struct ctl_verb *verb, FILE *out)
{
    fprintf(out, "usage: skctl %s %s%s[OPTIONS]\n\n", verb->name, verb->arguments,
            verb->arguments[0] != '\0' ? " " : "");
    wrap(out, verb->text, 0);
    fputs("\noptions:\n", out);
    for (const struct ctl_option *const *option = verb->options; *option != NULL; option++)
        print_option(out, *option);
    for (const struct ctl_option *const *option = ctl_common_options; *option != NULL; option++)
        print_option(out, *option);
    if (takes_time(verb)) {
        fputc('\n', out);
        wrap(out, time_text, 0);
    }
}

void ctl_help_print(FILE *out)
{
    fputs("usage: skctl VERB [ARGUMENTS] [OPTIONS]     drive and inspect the sandboxes of Sandkeep over NATS\n\n", out);
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++)
        fprintf(out, "  %-12s %s\n", verb->name, verb->summary);
    fputs("\nA sandbox is named by its id, or by --app ID --user ID, --workflow ID --user ID, or --skill ID.\n"
          "skctl help VERB tells more about a verb; skctl --version, --print-config [--json], --check-config and\n"
          "--env-file=FILE stand before the verb.\n\n",
          out);
    wrap(out, config_text, 0);
    fputs("\nExit status: ", out);
    wrap(out, exit_text, 0);
}

/* Text for roff: dashes and leading dots need care. */
static void roff(FILE *out, const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '-')
            fputs("\\-", out);
        else if (*at == '\\')
            fputs("\\e", out);
        else if ((*at == '.' || *at == '\'') && at == text)
            fprintf(out, "\\&%c", *at);
        else
            fputc(*at, out);
    }
}

static void roff_option(FILE *out, const struct ctl_option *option)
{
    fputs(".TP\n.BR \\-\\-", out);
    roff(out, option->name);
    if (option->value != NULL) {
        fputs(" =\\fI", out);
        roff(out, option->value);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    roff(out, option->help);
    fputc('\n', out);
}

void ctl_help_man(FILE *out)
{
    fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Made by: skctl help man\n", out);
    fprintf(out, ".TH SKCTL 1 \"\" \"Sandkeep %s\" \"Sandkeep\"\n", sk_version());
    fputs(".SH NAME\nskctl \\- drive and inspect the sandboxes of Sandkeep over NATS\n.SH SYNOPSIS\n.B skctl\n.I "
          "VERB\n[ARGUMENTS] [OPTIONS]\n"
          ".SH DESCRIPTION\n",
          out);
    roff(out, "A sandbox is named by its id, or by --app ID --user ID, --workflow ID --user ID, or --skill ID. "
              "Progress and notes go to stderr; with "
              "--json stdout holds one JSON document (for streams one per line) and nothing else.");
    fputs("\n.SH VERBS\n", out);
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++) {
        fputs(".SS \"", out);
        roff(out, verb->name);
        if (verb->arguments[0] != '\0')
            fputc(' ', out);
        roff(out, verb->arguments);
        fputs("\"\n", out);
        roff(out, verb->text);
        fputc('\n', out);
        for (const struct ctl_option *const *option = verb->options; *option != NULL; option++)
            roff_option(out, *option);
    }
    fputs(".SH OPTIONS OF EVERY VERB\n", out);
    for (const struct ctl_option *const *option = ctl_common_options; *option != NULL; option++)
        roff_option(out, *option);
    fputs(".PP\n", out);
    roff(out, time_text);
    fputs("\n.SH ENVIRONMENT\n", out);
    roff(out, config_text);
    fputs("\n.SH EXIT STATUS\n", out);
    roff(out, exit_text);
    fputs("\n.SH EXAMPLES\n.nf\n", out);
    roff(out, "skctl ensure --app 66a1f0c2b7d4e8a1c0d3e501 --user 66b2aa10c4f3d5e7a9b1c201\n");
    roff(out, "skctl list --status=running --json | jq -r '.items[].sandboxId'\n");
    roff(out, "skctl watch --since=10m --type='lifecycle.*'\n");
    roff(out, "skctl stuck && skctl recover app-8a3cb7a4e074fa1d --action=retry\n");
    roff(out, "skctl code js main.js --vars '{\"name\": \"Ada\"}'\n");
    fputs(".fi\n", out);
}

int ctl_help(struct ctl *ctl)
{
    const char *topic = ctl->args.positional_count > 0 ? ctl->args.positional[0] : NULL;
    const struct ctl_verb *verb;

    if (topic == NULL) {
        ctl_help_print(stdout);
        return CTL_OK;
    }
    if (strcmp(topic, "man") == 0) {
        ctl_help_man(stdout);
        return CTL_OK;
    }
    verb = ctl_verb_find(topic);
    if (verb == NULL)
        return ctl_usage(ctl, "there is no verb %s", ctl_clean(topic));
    ctl_help_verb(verb, stdout);
    return CTL_OK;
}
