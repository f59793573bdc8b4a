/* SPDX-License-Identifier: Apache-2.0
 *
 * The operator's policy file: rules for queueIds, each with hosts that are allowed and denied. Rules are looked at in
 * order, in each one what it denies first; the first pattern that matches decides, else the file's default. */
#include "services/code/broker/policy.h"

#include "common/base/json.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define QUEUE_ID_MAX 128
#define FILE_DEPTH   8

struct pattern {
    char *host; /* lower case; an address in its canonical text, without brackets */
    int port;   /* 0 = any */
    bool glob;
    bool literal;
    struct sockaddr_storage address; /* of a literal */
};

struct patterns {
    struct pattern *items;
    size_t count;
};

struct rule {
    char *queue_id; /* NULL = any */
    struct patterns allow, deny;
};

struct code_policy {
    bool check_internal, deny_rest;
    char *own_host;
    struct rule *rules;
    size_t count;
};

static void patterns_free(struct patterns *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].host);
    free(list->items);
}

void code_policy_free(struct code_policy *policy)
{
    if (policy == NULL)
        return;
    for (size_t i = 0; i < policy->count; i++) {
        free(policy->rules[i].queue_id);
        patterns_free(&policy->rules[i].allow);
        patterns_free(&policy->rules[i].deny);
    }
    free(policy->rules);
    free(policy->own_host);
    free(policy);
}

/* True when `text` is an address as inet_pton reads it; *out has its port 0. */
static bool read_address(const char *text, struct sockaddr_storage *out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        return true;
    }
    return false;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const struct sockaddr *both[2] = {a, b};
    unsigned char bytes[2][16];

    for (int i = 0; i < 2; i++) {
        if (both[i]->sa_family == AF_INET) {
            memcpy(bytes[i], mapped, sizeof(mapped));
            memcpy(bytes[i] + 12, &((const struct sockaddr_in *)both[i])->sin_addr, 4);
        } else if (both[i]->sa_family == AF_INET6) {
            memcpy(bytes[i], &((const struct sockaddr_in6 *)both[i])->sin6_addr, 16);
        } else {
            return false;
        }
    }
    return memcmp(bytes[0], bytes[1], 16) == 0;
}

/* Splits "host:port" in place. False: the port is no port. */
static bool split_port(char *text, char **host, int *port)
{
    char *end = strrchr(text, ']'), *colon = strchr(end == NULL ? text : end, ':'), *rest;
    long value;

    *host = text;
    *port = 0;
    if (text[0] == '[') {
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return false;
        *host = text + 1;
        *end = '\0';
    }
    if (colon == NULL)
        return true;
    *colon = '\0';
    if (strcmp(colon + 1, "*") == 0)
        return true;
    if (!isdigit((unsigned char)colon[1]))
        return false;
    errno = 0;
    value = strtol(colon + 1, &rest, 10);
    if (*rest != '\0' || errno != 0 || value < 1 || value > 65535)
        return false;
    *port = (int)value;
    return true;
}

static int read_pattern(const char *text, struct pattern *out, const char *where, struct sk_error *err)
{
    char copy[CODE_HOST_SIZE + 16], *host;
    size_t len = strlen(text);

    if (len == 0 || len >= sizeof(copy))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: must be a host of 1 to %zu characters", where,
                       sizeof(copy) - 1);
    memcpy(copy, text, len + 1);
    if (strstr(copy, "//") != NULL || strchr(copy, '/') != NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: must be host or host:port, without scheme, path or mask",
                       where);
    if (!split_port(copy, &host, &out->port))
        return sk_fail(err, SK_ERR_INVALID_REQUEST,
                       "%s: the port must be 1 to 65535 or *, and an IPv6 address must stand in brackets", where);
    len = strlen(host);
    if (len > 1 && host[len - 1] == '.')
        host[--len] = '\0';
    if (len == 0)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: the host is empty", where);
    out->literal = read_address(host, &out->address);
    if (copy[0] == '[' && (!out->literal || out->address.ss_family != AF_INET6))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: no IPv6 address stands in the brackets", where);
    if (out->literal) {
        char canonical[INET6_ADDRSTRLEN];
        const void *bytes = out->address.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&out->address)->sin_addr
                                                              : &((struct sockaddr_in6 *)&out->address)->sin6_addr;

        out->host = strdup(inet_ntop(out->address.ss_family, bytes, canonical, sizeof(canonical)));
    } else {
        for (char *p = host; *p != '\0'; p++) {
            if (!isalnum((unsigned char)*p) && strchr("-._*", *p) == NULL)
                return sk_fail(err, SK_ERR_INVALID_REQUEST,
                               "%s: a host has letters, digits, '-', '.', '_' and '*'; write other names as xn--…",
                               where);
            *p = (char)tolower((unsigned char)*p);
            out->glob = out->glob || *p == '*';
        }
        out->host = strdup(host);
    }
    return out->host == NULL ? sk_fail(err, SK_ERR_INTERNAL, "out of memory") : 0;
}

static int read_patterns(const json_t *rule, const char *key, struct patterns *out, size_t at, struct sk_error *err)
{
    const json_t *list = json_object_get(rule, key);

    if (list == NULL)
        return 0;
    if (!json_is_array(list))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "rules[%zu].%s: must be a list of hosts", at, key);
    if (json_array_size(list) > CODE_POLICY_ITEMS_MAX)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "rules[%zu].%s: has more than %d hosts", at, key,
                       CODE_POLICY_ITEMS_MAX);
    out->items = calloc(json_array_size(list) + 1, sizeof(*out->items));
    if (out->items == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        char where[64];

        snprintf(where, sizeof(where), "rules[%zu].%s[%zu]", at, key, i);
        if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item))
            return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: must be a text", where);
        if (read_pattern(json_string_value(item), &out->items[i], where, err) != 0)
            return -1;
        out->count++;
    }
    return 0;
}

/* Typing "allows" for "allow" must not open or close anything silently. */
static int known_keys(const json_t *object, const char *where, const char *const *keys, struct sk_error *err)
{
    const char *key;
    json_t *value;

    json_object_foreach ((json_t *)object, key, value) {
        size_t i = 0;

        while (keys[i] != NULL && strcmp(keys[i], key) != 0)
            i++;
        if (keys[i] == NULL)
            return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: \"%.40s\" is not known here", where, key);
    }
    return 0;
}

static int read_rule(const json_t *item, struct rule *out, size_t at, struct sk_error *err)
{
    static const char *const keys[] = {"queueId", "allow", "deny", NULL};
    const json_t *queue_id;
    char where[32];

    snprintf(where, sizeof(where), "rules[%zu]", at);
    if (!json_is_object(item))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: must be an object", where);
    if (known_keys(item, where, keys, err) != 0)
        return -1;
    queue_id = json_object_get(item, "queueId");
    if (!json_is_string(queue_id) || json_string_length(queue_id) == 0 ||
        strlen(json_string_value(queue_id)) != json_string_length(queue_id) ||
        json_string_length(queue_id) > (size_t)QUEUE_ID_MAX * 4)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s.queueId: must be a queueId or \"*\"", where);
    if (json_object_get(item, "allow") == NULL && json_object_get(item, "deny") == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: allows and denies nothing", where);
    if (strcmp(json_string_value(queue_id), "*") != 0) {
        out->queue_id = strdup(json_string_value(queue_id));
        if (out->queue_id == NULL)
            return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    }
    if (read_patterns(item, "allow", &out->allow, at, err) != 0)
        return -1;
    return read_patterns(item, "deny", &out->deny, at, err);
}

static int read_file(struct code_policy *policy, const struct code_policy_options *options, struct sk_error *err)
{
    static const char *const keys[] = {"default", "rules", NULL};
    const struct sk_json_limits limits = {CODE_POLICY_FILE_MAX, FILE_DEPTH};
    json_t *root = sk_json_parse_object(options->text, options->length, &limits, err);
    const json_t *word, *rules;
    int rc = -1;

    if (root == NULL)
        return -1;
    if (known_keys(root, "the file", keys, err) != 0)
        goto out;
    word = json_object_get(root, "default");
    if (word != NULL && (!json_is_string(word) || (strcmp(json_string_value(word), "public") != 0 &&
                                                   strcmp(json_string_value(word), "none") != 0))) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "default: must be \"public\" or \"none\"");
        goto out;
    }
    policy->deny_rest = word != NULL && strcmp(json_string_value(word), "none") == 0;
    rules = json_object_get(root, "rules");
    if (rules != NULL && !json_is_array(rules)) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "rules: must be a list");
        goto out;
    }
    if (json_array_size(rules) > CODE_POLICY_RULES_MAX) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "rules: has more than %d items", CODE_POLICY_RULES_MAX);
        goto out;
    }
    policy->rules = calloc(json_array_size(rules) + 1, sizeof(*policy->rules));
    if (policy->rules == NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        goto out;
    }
    for (size_t i = 0; i < json_array_size(rules); i++) {
        policy->count++;
        if (read_rule(json_array_get(rules, i), &policy->rules[i], i, err) != 0)
            goto out;
    }
    rc = 0;
out:
    json_decref(root);
    return rc;
}

struct code_policy *code_policy_new(const struct code_policy_options *options, struct sk_error *err)
{
    struct code_policy *policy = calloc(1, sizeof(*policy));
    size_t len;

    if (policy == NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    policy->check_internal = options->check_internal;
    if (options->own_host != NULL && options->own_host[0] != '\0') {
        policy->own_host = strdup(options->own_host);
        if (policy->own_host == NULL) {
            sk_fail(err, SK_ERR_INTERNAL, "out of memory");
            goto fail;
        }
        len = strlen(policy->own_host);
        if (policy->own_host[len - 1] == '.')
            policy->own_host[len - 1] = '\0';
    }
    if (options->text != NULL && read_file(policy, options, err) != 0)
        goto fail;
    return policy;
fail:
    code_policy_free(policy);
    return NULL;
}

struct code_policy *code_policy_load(const char *path, bool check_internal, const char *own_host, struct sk_error *err)
{
    struct code_policy_options options = {.check_internal = check_internal, .own_host = own_host};
    struct code_policy *policy = NULL;
    char *text;
    size_t len = 0;
    ssize_t n = 1;
    int fd;

    if (path == NULL || path[0] == '\0')
        return code_policy_new(&options, err);
    text = malloc(CODE_POLICY_FILE_MAX + 1);
    if (text == NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && n != 0 && len <= CODE_POLICY_FILE_MAX) {
        n = read(fd, text + len, CODE_POLICY_FILE_MAX + 1 - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        len += (size_t)n;
    }
    if (fd < 0 || n < 0) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "cannot be read: %s", strerror(errno));
    } else if (len > CODE_POLICY_FILE_MAX) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "is larger than %d bytes", CODE_POLICY_FILE_MAX);
    } else {
        options.text = text;
        options.length = len;
        policy = code_policy_new(&options, err);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    if (policy == NULL)
        sk_fail_context(err, "SANDBOX_NET_POLICY %s", path);
    return policy;
}

bool code_policy_checks_internal(const struct code_policy *policy)
{
    return policy->check_internal;
}

bool code_policy_is_own_host(const struct code_policy *policy, const char *host)
{
    return policy->own_host != NULL && strcasecmp(policy->own_host, host) == 0;
}

/* '*' stands for any characters, dots too. Linear but for the stars: only the last one is ever gone back to. */
static bool glob_matches(const char *glob, const char *text)
{
    const char *star = NULL, *again = NULL;

    while (*text != '\0') {
        if (*glob == '*') {
            star = glob++;
            again = text;
        } else if (*glob == *text) {
            glob++;
            text++;
        } else if (star != NULL) {
            glob = star + 1;
            text = ++again;
        } else {
            return false;
        }
    }
    while (*glob == '*')
        glob++;
    return *glob == '\0';
}

static const struct pattern *find(const struct patterns *list, const char *host, int port)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct pattern *p = &list->items[i];

        if ((p->port == 0 || p->port == port) && glob_matches(p->host, host))
            return p;
    }
    return NULL;
}

static bool applies(const struct rule *rule, const char *queue_id)
{
    return rule->queue_id == NULL || (queue_id != NULL && strcmp(rule->queue_id, queue_id) == 0);
}

struct code_ruling code_policy_rule(const struct code_policy *policy, const char *queue_id, const char *host, int port)
{
    struct code_ruling ruling = {.allowed = !policy->deny_rest, .rules = policy->count};

    for (size_t i = 0; i < policy->count; i++) {
        const struct rule *rule = &policy->rules[i];
        const struct pattern *allow;

        if (!applies(rule, queue_id))
            continue;
        if (find(&rule->deny, host, port) != NULL)
            return (struct code_ruling){.allowed = false, .rules = i + 1};
        allow = find(&rule->allow, host, port);
        if (allow != NULL)
            return (struct code_ruling){true, !allow->glob, allow->port != 0, i + 1};
    }
    return ruling;
}

bool code_policy_denies_address(const struct code_policy *policy, const char *queue_id, size_t rules, int port,
                                const struct sockaddr *address)
{
    for (size_t i = 0; i < policy->count && i < rules; i++) {
        const struct patterns *deny = &policy->rules[i].deny;

        if (!applies(&policy->rules[i], queue_id))
            continue;
        for (size_t k = 0; k < deny->count; k++) {
            const struct pattern *p = &deny->items[k];

            if (p->literal && (p->port == 0 || p->port == port) &&
                same_address((const struct sockaddr *)&p->address, address))
                return true;
        }
    }
    return false;
}
