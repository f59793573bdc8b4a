/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: options in any order, `--name value` or `--name=value`, flags as `--name` or `--name=false`, words
 * after `--` untouched. A value that starts with a dash must be given with `=`, so that a forgotten value is noticed.
 */
#include "services/ctl/ctl.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DURATION_MAX_MS (365LL * 24 * 3600 * 1000)

int ctl_usage(const struct ctl *ctl, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    ctl_complain("%s (see skctl help %s)", text, ctl->verb != NULL ? ctl->verb->name : "");
    return CTL_USAGE;
}

bool ctl_parse_duration(const char *text, int64_t *ms)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000}, {"", 1000}};
    char *end;
    double value;

    if (!isdigit((unsigned char)text[0]) || (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')))
        return false;
    errno = 0;
    value = strtod(text, &end);
    if (errno != 0 || !isfinite(value))
        return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(end, units[i].unit) == 0) {
            value *= units[i].ms;
            if (value > DURATION_MAX_MS)
                return false;
            *ms = (int64_t)value;
            return true;
        }
    }
    return false;
}

bool ctl_parse_when(const char *text, int64_t *unix_ms)
{
    int64_t ago;

    if (sk_time_parse(text, unix_ms))
        return true;
    if (!ctl_parse_duration(text, &ago))
        return false;
    *unix_ms = sk_wall_ms(&sk_sched_system) - ago;
    return true;
}

static bool parse_flag(const char *text, bool *out)
{
    if (strcmp(text, "true") == 0 || strcmp(text, "1") == 0 || strcmp(text, "yes") == 0)
        *out = true;
    else if (strcmp(text, "false") == 0 || strcmp(text, "0") == 0 || strcmp(text, "no") == 0)
        *out = false;
    else
        return false;
    return true;
}

static bool allowed(const struct ctl_option *option, const char *value)
{
    if (option->choices == NULL)
        return true;
    for (int i = 0; option->choices[i] != NULL; i++) {
        if (strcmp(option->choices[i], value) == 0)
            return true;
    }
    return false;
}

static int refuse_choice(const struct ctl *ctl, const struct ctl_option *option, const char *value)
{
    char list[512] = "";
    size_t used = 0;

    for (int i = 0; option->choices[i] != NULL && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", option->choices[i]);
    return ctl_usage(ctl, "--%s=%s: must be one of %s", option->name, value, list);
}

static int set_option(struct ctl *ctl, const struct ctl_option *option, const char *value)
{
    char *field = (char *)&ctl->args + option->offset;
    char *end;

    if (!allowed(option, value))
        return refuse_choice(ctl, option, value);
    switch (option->type) {
    case CTL_OPTION_FLAG:
        if (!parse_flag(value, (bool *)(void *)field))
            return ctl_usage(ctl, "--%s=%s: must be true or false", option->name, value);
        break;
    case CTL_OPTION_TEXT:
        memcpy(field, &value, sizeof(value));
        break;
    case CTL_OPTION_LIST:
        if (ctl->args.type_count >= CTL_TYPES_MAX)
            return ctl_usage(ctl, "--%s: given more than %d times", option->name, CTL_TYPES_MAX);
        ctl->args.types[ctl->args.type_count++] = value;
        break;
    case CTL_OPTION_DURATION:
        if (!ctl_parse_duration(value, (int64_t *)(void *)field))
            return ctl_usage(ctl, "--%s=%s: must be a time such as 500ms, 30s, 5m, 2h or 7d (30 is 30s)", option->name,
                             value);
        break;
    case CTL_OPTION_COUNT: {
        long long number;
        errno = 0;
        number = strtoll(value, &end, 10);
        if (!isdigit((unsigned char)value[0]) || *end != '\0' || errno != 0 || number < 1)
            return ctl_usage(ctl, "--%s=%s: must be a whole number from 1 on", option->name, value);
        *(int64_t *)(void *)field = number;
        break;
    }
    case CTL_OPTION_REAL: {
        double number = strtod(value, &end);
        if (!isdigit((unsigned char)value[0]) || *end != '\0' || !isfinite(number) || number <= 0)
            return ctl_usage(ctl, "--%s=%s: must be a number above 0", option->name, value);
        *(double *)(void *)field = number;
        break;
    }
    }
    return 0;
}

/* One "--name[=value]" at argv[*index]. */
static int parse_option(struct ctl *ctl, int argc, char **argv, int *index)
{
    const char *name = argv[*index] + 2, *equals = strchr(name, '='), *value;
    size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const struct ctl_option *option = ctl_option_find(ctl->verb, name, len);

    if (option == NULL)
        return ctl_usage(ctl, "%s does not know the option --%.*s", ctl->verb->name, (int)len, name);
    if (equals != NULL)
        value = equals + 1;
    else if (option->type == CTL_OPTION_FLAG)
        value = "true";
    else if (*index + 1 >= argc)
        return ctl_usage(ctl, "--%s needs a value (%s)", option->name, option->value);
    else if (argv[*index + 1][0] == '-' && argv[*index + 1][1] != '\0')
        return ctl_usage(ctl, "--%s needs a value; one that starts with a dash is written --%s=%s", option->name,
                         option->name, argv[*index + 1]);
    else
        value = argv[++*index];
    return set_option(ctl, option, value);
}

int ctl_parse(struct ctl *ctl, int argc, char **argv, int first)
{
    struct ctl_args *args = &ctl->args;

    args->wait = args->restore = true;
    args->deadline_ms = args->memory_mib = args->older_than_ms = args->limit = args->count = args->for_ms =
        args->grace_ms = args->timeout_ms = -1;
    for (int i = first; i < argc; i++) {
        int status;
        if (strcmp(argv[i], "--") == 0) {
            if (!ctl->verb->takes_rest)
                return ctl_usage(ctl, "%s takes nothing after --", ctl->verb->name);
            args->rest = argv + i + 1;
            args->rest_count = argc - i - 1;
            break;
        }
        if (strcmp(argv[i], "-h") == 0) {
            args->help = true;
            continue;
        }
        if (strncmp(argv[i], "--", 2) == 0) {
            status = parse_option(ctl, argc, argv, &i);
            if (status != 0)
                return status;
            continue;
        }
        if (argv[i][0] == '-' && argv[i][1] != '\0')
            return ctl_usage(ctl, "unknown option %s", argv[i]);
        if (args->positional_count >= ctl->verb->positional_max)
            return ctl_usage(ctl, "%s does not take the argument %s", ctl->verb->name, argv[i]);
        args->positional[args->positional_count++] = argv[i];
    }
    return 0;
}

/* The identity flags, checked as the service does it. */
static int identity_of_flags(struct ctl *ctl, bool *given)
{
    const struct ctl_args *args = &ctl->args;
    const char *source = args->app != NULL ? args->app : args->workflow != NULL ? args->workflow : args->skill;
    const char *type = args->app != NULL ? "app" : args->workflow != NULL ? "workflowBuilder" : "skillEdit";
    const char *user = args->user;
    struct sk_error err = {0};

    *given = false;
    if ((args->app != NULL) + (args->workflow != NULL) + (args->skill != NULL) > 1)
        return ctl_usage(ctl, "only one of --app, --workflow and --skill");
    if (source == NULL) {
        if (user != NULL)
            return ctl_usage(ctl, "--user needs --app or --workflow");
        return 0;
    }
    if (args->skill != NULL && user == NULL)
        user = "skillEdit";
    if (user == NULL)
        return ctl_usage(ctl, "--%s needs --user", args->app != NULL ? "app" : "workflow");
    if (sk_identity_set(&ctl->identity, type, source, strlen(source), user, strlen(user), &err) != 0)
        return ctl_usage(ctl, "%s", err.message);
    ctl->has_identity = *given = true;
    return 0;
}

int ctl_identity(struct ctl *ctl)
{
    char computed[SK_SANDBOX_ID_SIZE];
    const char *id = ctl->args.positional_count > 0 ? ctl->args.positional[0] : NULL;
    bool given;
    int status = identity_of_flags(ctl, &given);

    if (status != 0)
        return status;
    if (id != NULL && !sk_sandbox_id_valid(id))
        return ctl_usage(ctl, "%s is not a sandbox id (app-0123456789abcdef)", ctl_clean(id));
    if (id == NULL && !given)
        return ctl_usage(ctl,
                         "say which sandbox: its id, or --app ID --user ID, --workflow ID --user ID, or --skill ID");
    if (given) {
        sk_identity_sandbox_id(&ctl->identity, computed);
        if (id != NULL && strcmp(id, computed) != 0)
            return ctl_usage(ctl, "%s is not the id of that identity (%s)", id, computed);
        id = computed;
    }
    if (!sk_copy(ctl->sandbox_id, sizeof(ctl->sandbox_id), id))
        return ctl_usage(ctl, "the sandbox id is too long");
    return 0;
}
