/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads SANDKEEP_FAULT once and acts at the named points. In builds without SANDKEEP_FAULT_POINTS only the table of
 * names is left. */
#include "common/faults/faults.h"

#include "common/base/sched.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name, *doc;
} points[SK_FAULT_COUNT] = {
#define SK_FAULT_POINT(name_, wire, doc_) [SK_FAULT_##name_] = {wire, doc_},
#include "common/faults/faults.def"
#undef SK_FAULT_POINT
};

const char *sk_fault_name(enum sk_fault_point point)
{
    return (int)point >= 0 && point < SK_FAULT_COUNT ? points[point].name : "";
}

void sk_fault_list(void (*print)(void *arg, const char *name, const char *doc), void *arg)
{
    for (int i = 0; i < SK_FAULT_COUNT; i++)
        print(arg, points[i].name, points[i].doc);
}

#ifdef SANDKEEP_FAULT_POINTS

#define RULES_MAX         32
#define OPERATION_MAX     32
#define DELAY_MAX_MS      600000
#define FAULT_EXIT_STATUS 86

struct rule {
    enum sk_fault_point point;
    char operation[OPERATION_MAX]; /* empty = any */
    enum { ACTION_EXIT, ACTION_ABORT, ACTION_ERROR, ACTION_DELAY } action;
    long delay_ms;
    long only_pass; /* 0 = each pass */
    atomic_long passes;
};

static struct rule rules[RULES_MAX];
static int rule_count;
static pthread_once_t parsed = PTHREAD_ONCE_INIT;

static bool parse_number(const char *text, long max, long *out)
{
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    *out = strtol(text, &end, 10);
    return *end == '\0' && *out <= max;
}

/* <point>[@<operation>]=<action>[:<argument>][#n] */
static bool parse_rule(char *text, struct rule *rule)
{
    char *action = strchr(text, '='), *pass, *operation, *argument;

    memset(rule, 0, sizeof(*rule));
    if (action == NULL)
        return false;
    *action++ = '\0';
    pass = strchr(action, '#');
    if (pass != NULL) {
        *pass++ = '\0';
        if (!parse_number(pass, 1000000000, &rule->only_pass) || rule->only_pass == 0)
            return false;
    }
    operation = strchr(text, '@');
    if (operation != NULL) {
        *operation++ = '\0';
        if (*operation == '\0' || strlen(operation) >= sizeof(rule->operation))
            return false;
        memcpy(rule->operation, operation, strlen(operation) + 1);
    }
    for (rule->point = 0; rule->point < SK_FAULT_COUNT; rule->point++) {
        if (strcmp(points[rule->point].name, text) == 0)
            break;
    }
    if (rule->point == SK_FAULT_COUNT)
        return false;
    argument = strchr(action, ':');
    if (argument != NULL)
        *argument++ = '\0';
    if (strcmp(action, "delay") == 0) {
        rule->action = ACTION_DELAY;
        return argument != NULL && parse_number(argument, DELAY_MAX_MS, &rule->delay_ms);
    }
    if (strcmp(action, "exit") == 0)
        rule->action = ACTION_EXIT;
    else if (strcmp(action, "abort") == 0)
        rule->action = ACTION_ABORT;
    else if (strcmp(action, "error") == 0)
        rule->action = ACTION_ERROR;
    else
        return false;
    return argument == NULL;
}

/* A test that asks for a fault which does not exist must not pass as if the fault had no effect: the process ends. */
static void parse_all(void)
{
    const char *setting = getenv("SANDKEEP_FAULT");
    char *copy, *rest, *item;

    if (setting == NULL || setting[0] == '\0')
        return;
    copy = strdup(setting);
    rest = copy;
    while ((item = strsep(&rest, ",")) != NULL) {
        char shown[128];
        snprintf(shown, sizeof(shown), "%s", item);
        if (rule_count == RULES_MAX || !parse_rule(item, &rules[rule_count])) {
            fprintf(stderr, "SANDKEEP_FAULT: \"%s\" is not <point>[@<operation>]=exit|abort|error|delay:<ms>[#<n>]\n",
                    shown);
            _exit(2);
        }
        rule_count++;
    }
    free(copy);
}

void sk_fault_check(void)
{
    pthread_once(&parsed, parse_all);
}

bool sk_fault_hit(enum sk_fault_point point, const char *operation)
{
    bool fail = false;

    pthread_once(&parsed, parse_all);
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (rule->point != point ||
            (rule->operation[0] != '\0' && (operation == NULL || strcmp(rule->operation, operation) != 0)))
            continue;
        if (atomic_fetch_add(&rule->passes, 1) + 1 != rule->only_pass && rule->only_pass != 0)
            continue;
        switch (rule->action) {
        case ACTION_EXIT:
            _exit(FAULT_EXIT_STATUS);
        case ACTION_ABORT:
            abort();
        case ACTION_ERROR:
            fail = true;
            break;
        case ACTION_DELAY:
            sk_sleep_ms(&sk_sched_system, rule->delay_ms);
            break;
        }
    }
    return fail;
}

#endif
