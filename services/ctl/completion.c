/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion scripts for bash and zsh, made from the tables of verbs.c. They need nothing but the shell itself. */
#include "services/ctl/ctl.h"

#include <string.h>

static void each_option(const struct ctl_verb *verb, void (*print)(const struct ctl_option *option))
{
    for (const struct ctl_option *const *option = verb->options; *option != NULL; option++)
        print(*option);
    for (const struct ctl_option *const *option = ctl_common_options; *option != NULL; option++)
        print(*option);
}

static void bash_option(const struct ctl_option *option)
{
    printf(" --%s%s", option->name, option->value != NULL ? "=" : "");
}

static void print_choices(const struct ctl_option *option, const char *separator)
{
    for (int i = 0; option->choices[i] != NULL; i++)
        printf("%s%s", i > 0 ? separator : "", option->choices[i]);
}

static void bash_script(void)
{
    fputs("# bash completion of skctl: source <(skctl completion bash)\n"
          "_skctl() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word\n"
          "    COMPREPLY=()\n"
          "    # bash splits --name=value at the equals sign\n"
          "    if [[ $cur == '=' ]]; then cur=; elif [[ $prev == '=' ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
          "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
          "        [[ $word == -* || $word == '=' ]] || { verb=$word; break; }\n"
          "    done\n"
          "    if [[ -z $verb ]]; then\n"
          "        COMPREPLY=($(compgen -W '",
          stdout);
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++)
        printf("%s ", verb->name);
    fputs("--help --version --print-config --check-config --env-file=' -- \"$cur\"))\n        return\n    fi\n    case "
          "$verb:$prev in\n",
          stdout);
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++) {
        for (const struct ctl_option *const *option = verb->options; *option != NULL; option++) {
            if ((*option)->choices == NULL)
                continue;
            printf("    %s:--%s) COMPREPLY=($(compgen -W '", verb->name, (*option)->name);
            print_choices(*option, " ");
            fputs("' -- \"$cur\")); return ;;\n", stdout);
        }
    }
    fputs("    completion:*) COMPREPLY=($(compgen -W 'bash zsh' -- \"$cur\")); return ;;\n    help:*) "
          "COMPREPLY=($(compgen -W '",
          stdout);
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++)
        printf("%s ", verb->name);
    fputs("man' -- \"$cur\")); return ;;\n    code:code) COMPREPLY=($(compgen -W 'js py python' -- \"$cur\")); return "
          ";;\n    "
          "cp:*|code:*) [[ $cur == -* ]] || { COMPREPLY=($(compgen -f -- \"$cur\")); "
          "return; } ;;\n    esac\n    case $verb in\n",
          stdout);
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++) {
        printf("    %s) COMPREPLY=($(compgen -W '", verb->name);
        each_option(verb, bash_option);
        fputs("' -- \"$cur\")) ;;\n", stdout);
    }
    fputs(
        "    esac\n    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace\n    return 0\n}\ncomplete -F _skctl skctl\n",
        stdout);
}

/* Inside '…[…]' of _arguments these characters need a backslash; quotes cannot stand there at all. */
static void zsh_text(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'' || *text == '"')
            continue;
        if (strchr("[]:\\", *text) != NULL)
            putchar('\\');
        putchar(*text);
    }
}

static void zsh_option(const struct ctl_option *option)
{
    printf(" \\\n            '%s--%s%s[", option->type == CTL_OPTION_LIST ? "*" : "", option->name,
           option->value != NULL ? "=" : "");
    zsh_text(option->help);
    putchar(']');
    if (option->choices != NULL) {
        printf(":%s:(", option->name);
        print_choices(option, " ");
        putchar(')');
    } else if (option->value != NULL) {
        putchar(':');
        zsh_text(option->value);
        putchar(':');
    }
    putchar('\'');
}

static void zsh_script(void)
{
    fputs("#compdef skctl\n# zsh completion of skctl: skctl completion zsh >\"${fpath[1]}/_skctl\"\n_skctl() {\n    "
          "local -a verbs\n    verbs=(\n",
          stdout);
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++) {
        printf("        '%s:", verb->name);
        zsh_text(verb->summary);
        fputs("'\n", stdout);
    }
    fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe -t verbs verb verbs\n        return\n    fi\n    "
          "local verb=$words[2]\n"
          "    shift words\n    (( CURRENT-- ))\n    case $verb in\n",
          stdout);
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++) {
        printf("        %s)\n            _arguments", verb->name);
        each_option(verb, zsh_option);
        if (strcmp(verb->name, "cp") == 0)
            fputs(" \\\n            '*:file:_files'", stdout);
        else if (strcmp(verb->name, "code") == 0)
            fputs(" \\\n            '1:language:(js py python)' \\\n            '2:file:_files'", stdout);
        else if (strcmp(verb->name, "completion") == 0)
            fputs(" \\\n            '1:shell:(bash zsh)'", stdout);
        fputs("\n            ;;\n", stdout);
    }
    fputs("    esac\n}\nif [ \"$funcstack[1]\" = _skctl ]; then _skctl \"$@\"; else compdef _skctl skctl; fi\n",
          stdout);
}

int ctl_completion(struct ctl *ctl)
{
    const char *shell = ctl->args.positional_count > 0 ? ctl->args.positional[0] : "";

    if (strcmp(shell, "bash") == 0)
        bash_script();
    else if (strcmp(shell, "zsh") == 0)
        zsh_script();
    else
        return ctl_usage(ctl, "say for which shell: bash or zsh");
    return CTL_OK;
}
