/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of the scriptable peer. */
#include "tests/conformance/provider/script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool answer(void *arg, const struct peer_request *request, int fd)
{
    struct script *script = arg;
    struct script_rule rule = {.status = 599, .type = "text/plain", .body = "no rule"};

    pthread_mutex_lock(&script->lock);
    for (int i = 0; i < script->count; i++) {
        const struct script_rule *r = &script->rules[i];

        if ((r->method[0] != '\0' && strcmp(r->method, request->method) != 0) ||
            strncmp(r->prefix, request->target, strlen(r->prefix)) != 0 ||
            (r->times > 0 && script->used[i] >= r->times))
            continue;
        script->used[i]++;
        rule = *r;
        break;
    }
    pthread_mutex_unlock(&script->lock);
    if (rule.run != NULL)
        return rule.run(script, request, fd);
    if (rule.raw != NULL) {
        peer_text(fd, rule.raw);
        return false;
    }
    if (rule.status == 204) {
        peer_text(fd, "HTTP/1.1 204 No Content\r\n\r\n");
        return true;
    }
    peer_answer(fd, rule.status, rule.type == NULL ? "application/json" : rule.type, rule.body);
    return true;
}

void script_start(struct script *script)
{
    memset(script, 0, sizeof(*script));
    pthread_mutex_init(&script->lock, NULL);
    script->peer = peer_start(answer, script);
}

void script_stop(struct script *script)
{
    peer_stop(script->peer);
    for (size_t i = 0; i < script->owned_count; i++)
        free(script->owned[i]);
    free(script->owned);
    pthread_mutex_destroy(&script->lock);
}

void script_clear(struct script *script)
{
    pthread_mutex_lock(&script->lock);
    script->count = 0;
    memset(script->used, 0, sizeof(script->used));
    pthread_mutex_unlock(&script->lock);
}

static const char *keep(struct script *script, const char *text)
{
    char *copy;

    if (text == NULL)
        return NULL;
    copy = strdup(text);
    script->owned = realloc(script->owned, (script->owned_count + 1) * sizeof(*script->owned));
    if (copy == NULL || script->owned == NULL)
        abort();
    script->owned[script->owned_count++] = copy;
    return copy;
}

void script_add(struct script *script, struct script_rule rule)
{
    pthread_mutex_lock(&script->lock);
    rule.body = keep(script, rule.body);
    rule.raw = keep(script, rule.raw);
    if (script->count == SCRIPT_RULES_MAX) {
        fprintf(stderr, "too many rules\n");
        abort();
    }
    script->rules[script->count++] = rule;
    pthread_mutex_unlock(&script->lock);
}

void script_json(struct script *script, const char *method, const char *prefix, int status, const char *body)
{
    script_add(script, (struct script_rule){.method = method, .prefix = prefix, .status = status, .body = body});
}
