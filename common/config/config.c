/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling the table's fields from the environment, from files and from defaults. Every bad value is reported, not only
 * the first; a value is parsed whole or refused. */
#include "common/config/config.h"

#include "common/base/id.h"
#include "common/config/private.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SHOWN_VALUE_MAX 256
#define NAME_MAX_BYTES  128

const char *const sk_config_log_levels[] = {"debug", "info", "warn", "error", NULL};

union parsed {
    int64_t integer;
    double real;
    bool flag;
    int choice;
    char *text; /* owned */
};

static bool is_text(enum sk_config_type type)
{
    return type == SK_CONFIG_TYPE_STRING || type == SK_CONFIG_TYPE_LISTEN || type == SK_CONFIG_TYPE_URL;
}

static bool parse_int(const struct sk_config_key *key, const char *text, union parsed *out)
{
    char *end;
    long long value;

    if (!isdigit((unsigned char)text[text[0] == '-'])) /* strtoll would take blanks and a plus sign */
        return false;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || (double)value < key->min || (double)value > key->max)
        return false;
    out->integer = value;
    return true;
}

static bool parse_double(const struct sk_config_key *key, const char *text, union parsed *out)
{
    char *end;
    double value;

    if (strspn(text, "0123456789.eE+-") != strlen(text) || text[0] == '\0') /* no hex, no inf, no blanks */
        return false;
    errno = 0;
    value = strtod(text, &end);
    if (errno != 0 || *end != '\0' || !isfinite(value) || value < key->min || value > key->max)
        return false;
    out->real = value;
    return true;
}

static bool parse_bool(const char *text, union parsed *out)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {{"true", true},   {"1", true},  {"on", true},   {"yes", true},
                 {"false", false}, {"0", false}, {"off", false}, {"no", false}};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(text, words[i].word) == 0) {
            out->flag = words[i].value;
            return true;
        }
    }
    return false;
}

static bool parse_enum(const struct sk_config_key *key, const char *text, union parsed *out)
{
    for (int i = 0; key->choices[i] != NULL; i++) {
        if (strcmp(text, key->choices[i]) == 0) {
            out->choice = i;
            return true;
        }
    }
    return false;
}

static bool parse_text(const char *text, union parsed *out)
{
    size_t len = strlen(text);

    if (sk_utf8_length(text, len) < 0)
        return false;
    out->text = strdup(text);
    return out->text != NULL;
}

/* host:port, [v6]:port or :port; the last becomes 127.0.0.1:port, so that nothing listens outside by accident. */
static bool parse_listen(const char *text, union parsed *out)
{
    const char *colon = strrchr(text, ':');
    size_t host_len, size;
    char *end;
    long port;

    if (colon == NULL || !isdigit((unsigned char)colon[1]) || strlen(colon + 1) > 5)
        return false;
    port = strtol(colon + 1, &end, 10);
    if (*end != '\0' || port > 65535)
        return false;
    host_len = (size_t)(colon - text);
    if (host_len > 2 && text[0] == '[' && text[host_len - 1] == ']') {
        if (strspn(text + 1, "0123456789abcdefABCDEF:.") != host_len - 2)
            return false;
    } else {
        for (size_t i = 0; i < host_len; i++) {
            if (!isalnum((unsigned char)text[i]) && text[i] != '.' && text[i] != '-')
                return false;
        }
    }
    size = strlen(text) + sizeof("127.0.0.1");
    out->text = malloc(size);
    if (out->text == NULL)
        return false;
    snprintf(out->text, size, "%s%s", host_len == 0 ? "127.0.0.1" : "", text);
    return true;
}

static bool parse_url(const struct sk_config_key *key, const char *text, union parsed *out)
{
    size_t scheme_len;
    const char *colon = strstr(text, "://");
    bool known = false;

    if (text[0] == '\0') /* "not used"; SK_CONFIG_REQUIRED is checked by the caller */
        return parse_text(text, out);
    if (colon == NULL || colon[3] == '\0' || sk_text_has_control(text, strlen(text)) || strchr(text, ' ') != NULL)
        return false;
    scheme_len = (size_t)(colon - text);
    for (int i = 0; key->choices != NULL && key->choices[i] != NULL; i++)
        known |= strlen(key->choices[i]) == scheme_len && strncasecmp(key->choices[i], text, scheme_len) == 0;
    return known && parse_text(text, out);
}

/* NATS would take more, but wildcards, dots and spaces change what a subject means, "$JS" and "_INBOX" are its own, and
 * the rest of Unicode is not worth a surprise. */
static bool is_token(const char *text)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t len = strlen(text);

    return len > 0 && len <= SK_CONFIG_TOKEN_MAX && strspn(text, allowed) == len && text[0] != '-' && text[0] != '_';
}

static bool parse(const struct sk_config_key *key, const char *text, union parsed *out)
{
    memset(out, 0, sizeof(*out));
    switch (key->type) {
    case SK_CONFIG_TYPE_STRING:
        return ((key->flags & SK_CONFIG_TOKEN) == 0 || is_token(text)) && parse_text(text, out);
    case SK_CONFIG_TYPE_INT:
        return parse_int(key, text, out);
    case SK_CONFIG_TYPE_DOUBLE:
        return parse_double(key, text, out);
    case SK_CONFIG_TYPE_BOOL:
        return parse_bool(text, out);
    case SK_CONFIG_TYPE_ENUM:
        return parse_enum(key, text, out);
    case SK_CONFIG_TYPE_LISTEN:
        return parse_listen(text, out);
    case SK_CONFIG_TYPE_URL:
        return parse_url(key, text, out);
    }
    return false;
}

static void store(const struct sk_config *config, const struct sk_config_key *key, const union parsed *value)
{
    char *field = (char *)config->values + key->offset;

    switch (key->type) {
    case SK_CONFIG_TYPE_INT:
        memcpy(field, &value->integer, sizeof(value->integer));
        break;
    case SK_CONFIG_TYPE_DOUBLE:
        memcpy(field, &value->real, sizeof(value->real));
        break;
    case SK_CONFIG_TYPE_BOOL:
        memcpy(field, &value->flag, sizeof(value->flag));
        break;
    case SK_CONFIG_TYPE_ENUM:
        memcpy(field, &value->choice, sizeof(value->choice));
        break;
    case SK_CONFIG_TYPE_STRING:
    case SK_CONFIG_TYPE_LISTEN:
    case SK_CONFIG_TYPE_URL: {
        char *old;
        memcpy(&old, field, sizeof(old));
        free(old);
        memcpy(field, &value->text, sizeof(value->text));
        break;
    }
    }
}

/* Finds the text of a key. *owned is what has to be freed afterwards. Returns -1 after writing a problem line. */
static int find_text(const struct sk_config_key *key, const char **text, const char **source, char **owned,
                     FILE *problems)
{
    char file_name[NAME_MAX_BYTES + 8];
    const char *from_env_file = sk_config_env_file_get(key->name), *direct, *path;
    struct sk_error err = {0};

    *owned = NULL;
    direct = from_env_file != NULL ? from_env_file : getenv(key->name);
    snprintf(file_name, sizeof(file_name), "%s_FILE", key->name);
    path = sk_config_env_file_get(file_name);
    if (path == NULL)
        path = getenv(file_name);
    if (path != NULL && path[0] == '\0')
        path = NULL;
    /* Only texts may be set to nothing; an empty number means that nobody set it (compose files do that). */
    if (direct != NULL && direct[0] == '\0' &&
        ((key->type != SK_CONFIG_TYPE_STRING && key->type != SK_CONFIG_TYPE_URL) || path != NULL))
        direct = NULL;
    if (direct != NULL && path != NULL) {
        fprintf(problems, "%s and %s are both set: keep one of them\n", key->name, file_name);
        return -1;
    }
    if (path != NULL) {
        size_t len;
        *owned = sk_config_read_file(path, SK_CONFIG_VALUE_MAX, &err);
        if (*owned == NULL) {
            fprintf(problems, "%s: %s\n", file_name, err.message);
            return -1;
        }
        len = strlen(*owned);
        if (len > 0 && (*owned)[len - 1] == '\n')
            (*owned)[--len] = '\0';
        if (len > 0 && (*owned)[len - 1] == '\r')
            (*owned)[--len] = '\0';
        *text = *owned;
        *source = "file";
    } else if (direct != NULL) {
        *text = direct;
        *source = from_env_file != NULL ? "env-file" : "environment";
    } else {
        *text = key->default_text != NULL ? key->default_text : "";
        *source = "default";
    }
    return 0;
}

static int load_key(struct sk_config *config, size_t index, FILE *problems)
{
    const struct sk_config_key *key = &config->keys[index];
    char shown[SHOWN_VALUE_MAX], range[SHOWN_VALUE_MAX];
    const char *text, *source;
    union parsed value;
    char *owned;
    int status = -1;

    if (find_text(key, &text, &source, &owned, problems) != 0)
        return -1;
    sk_config_range(key, range, sizeof(range));
    if (text[0] == '\0' && (key->flags & SK_CONFIG_REQUIRED) != 0) {
        fprintf(problems, "%s is required: must be %s\n", key->name, range);
    } else if (strlen(text) > SK_CONFIG_VALUE_MAX || !parse(key, text, &value)) {
        sk_config_mask(key, text, shown, sizeof(shown));
        fprintf(problems, "%s=%s is not valid (%s): must be %s\n", key->name, shown, source, range);
    } else {
        store(config, key, &value);
        config->sources[index] = source;
        status = 0;
    }
    if (owned != NULL)
        explicit_bzero(owned, strlen(owned));
    free(owned);
    return status;
}

int sk_config_load(struct sk_config *config, FILE *problems)
{
    int bad = 0;

    config->sources = calloc(config->count > 0 ? config->count : 1, sizeof(*config->sources));
    if (config->sources == NULL) {
        fprintf(problems, "%s: out of memory\n", config->program);
        return 1;
    }
    for (size_t i = 0; i < config->count; i++) {
        config->sources[i] = "default";
        if (load_key(config, i, problems) != 0)
            bad++;
    }
    if (bad > 0)
        sk_config_fini(config);
    return bad;
}

int sk_config_rule(bool holds, FILE *problems, const char *text)
{
    if (!holds)
        fprintf(problems, "%s\n", text);
    return holds ? 0 : 1;
}

int sk_config_reload(struct sk_config *config, FILE *problems)
{
    int bad = sk_config_env_file_reload(problems);

    for (size_t i = 0; i < config->count; i++) {
        const struct sk_config_key *key = &config->keys[i];
        /* Somebody may hold a pointer to a string: those stay as they are. */
        if ((key->flags & SK_CONFIG_RELOAD) != 0 && !is_text(key->type) && load_key(config, i, problems) != 0)
            bad++;
    }
    return bad;
}

void sk_config_fini(struct sk_config *config)
{
    for (size_t i = 0; i < config->count; i++) {
        const struct sk_config_key *key = &config->keys[i];
        char *field = (char *)config->values + key->offset, *text = NULL;
        if (!is_text(key->type))
            continue;
        memcpy(&text, field, sizeof(text));
        if (text != NULL)
            explicit_bzero(text, strlen(text));
        free(text);
        text = NULL;
        memcpy(field, &text, sizeof(text));
    }
    free(config->sources);
    config->sources = NULL;
}
