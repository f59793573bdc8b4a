/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-bench-load LOAD [--name=value…]: bare, cycle, burst, fill, pages. */
#include "tests/bench/programs/load.h"

#include "common/base/id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(list) (sizeof(list) / sizeof((list)[0]))

void load_sandbox(const char *tag, int index, char source_id[64], char sandbox_id[64])
{
    struct sk_identity identity = {.source_type = SK_SOURCE_APP};

    snprintf(source_id, 64, "bench-%s-%06d", tag, index);
    sk_copy_cut(identity.source_id, sizeof(identity.source_id), source_id);
    sk_copy_cut(identity.user_id, sizeof(identity.user_id), "bench");
    sk_identity_sandbox_id(&identity, sandbox_id);
}

static const char *value_of(const char *argument, const char *name)
{
    size_t length = strlen(name);

    if (strncmp(argument, "--", 2) != 0 || strncmp(argument + 2, name, length) != 0 || argument[2 + length] != '=')
        return NULL;
    return argument + length + 3;
}

static bool read_option(struct load_options *o, const char *argument)
{
    const struct {
        const char *name;
        const char **text;
    } texts[] = {{"mongo", &o->mongo},     {"nats", &o->nats}, {"tag", &o->tag},      {"samples", &o->samples},
                 {"sandbox", &o->sandbox}, {"sort", &o->sort}, {"filter", &o->filter}};
    const struct {
        const char *name;
        double *number;
    } numbers[] = {{"seconds", &o->seconds}, {"warm-up", &o->warm_up}, {"rate", &o->rate}};
    const struct {
        const char *name;
        int *number;
    } integers[] = {{"clients", &o->clients}, {"due", &o->due}, {"limit", &o->limit}};
    const char *value;

    for (size_t i = 0; i < LENGTH(texts); i++) {
        if ((value = value_of(argument, texts[i].name)) != NULL) {
            *texts[i].text = value;
            return true;
        }
    }
    for (size_t i = 0; i < LENGTH(numbers); i++) {
        if ((value = value_of(argument, numbers[i].name)) != NULL) {
            *numbers[i].number = strtod(value, NULL);
            return true;
        }
    }
    for (size_t i = 0; i < LENGTH(integers); i++) {
        if ((value = value_of(argument, integers[i].name)) != NULL) {
            *integers[i].number = (int)strtol(value, NULL, 10);
            return true;
        }
    }
    if ((value = value_of(argument, "documents")) != NULL) {
        o->documents = strtoll(value, NULL, 10);
        return true;
    }
    if (strcmp(argument, "--events") == 0) {
        o->events = true;
        return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct load_options *options);
    } loads[] = {
        {"bare", load_bare}, {"cycle", load_cycle}, {"burst", load_burst}, {"fill", load_fill}, {"pages", load_pages}};
    struct load_options options = {
        .tag = "a", .clients = 1, .seconds = 5, .warm_up = 1, .documents = 100000, .limit = 50};

    for (int i = 2; i < argc; i++) {
        if (!read_option(&options, argv[i])) {
            fprintf(stderr, "sk-bench-load: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    for (size_t i = 0; argc > 1 && i < LENGTH(loads); i++) {
        if (strcmp(argv[1], loads[i].name) == 0)
            return loads[i].run(&options);
    }
    fprintf(stderr, "usage: sk-bench-load bare|cycle|burst|fill|pages [--name=value…]\n");
    return 2;
}
