/* SPDX-License-Identifier: Apache-2.0
 *
 * How keys, ranges and values are shown: text, JSON and the Markdown table of docs/configuration.md. Secrets never
 * leave through here. */
#include "common/base/id.h"
#include "common/config/private.h"

#include <stdlib.h>
#include <string.h>

#define MASK            "********"
#define SHOWN_RANGE_MAX 256

/* Shown text is one line of printable characters. */
static void printable(const char *text, size_t len, char *out, size_t size)
{
    size_t at = 0, used = 0;

    while (at < len && used + 5 < size) {
        size_t seq = sk_utf8_sequence(text + at, len - at);
        if (seq == 0 || sk_text_has_control(text + at, seq)) {
            out[used++] = '?';
            at += seq > 0 ? seq : 1;
        } else {
            memcpy(out + used, text + at, seq);
            used += seq;
            at += seq;
        }
    }
    if (at < len && used + 4 < size) {
        memcpy(out + used, "...", 3);
        used += 3;
    }
    out[used] = '\0';
}

void sk_config_mask(const struct sk_config_key *key, const char *value, char *out, size_t size)
{
    const char *at = strrchr(value, '@'), *scheme = strstr(value, "://");

    if ((key->flags & SK_CONFIG_SECRET) != 0) {
        sk_copy_cut(out, size, value[0] != '\0' ? MASK : "");
        return;
    }
    /* Everything up to the last '@' counts as userinfo: a password with a raw '/' or '@' must not show either, and a
     * list of URLs loses all but its last host. */
    if (at != NULL && (scheme != NULL || key->type == SK_CONFIG_TYPE_URL)) {
        size_t prefix = scheme != NULL && scheme < at ? (size_t)(scheme + 3 - value) : 0;
        char rest[SHOWN_RANGE_MAX];
        printable(at, strlen(at), rest, sizeof(rest));
        if (prefix > 32) /* longer than any scheme: not one */
            prefix = 0;
        snprintf(out, size, "%.*s" MASK "%s", (int)prefix, value, rest);
        return;
    }
    printable(value, strlen(value), out, size);
}

static void append(char *out, size_t size, const char *text)
{
    size_t used = strlen(out);

    sk_copy_cut(out + used, size - used, text);
}

void sk_config_range(const struct sk_config_key *key, char *out, size_t size)
{
    out[0] = '\0';
    switch (key->type) {
    case SK_CONFIG_TYPE_STRING:
        if ((key->flags & SK_CONFIG_TOKEN) != 0)
            snprintf(out, size, "1..%d letters, digits, '-' and '_', the first a letter or digit", SK_CONFIG_TOKEN_MAX);
        else
            sk_copy_cut(out, size, (key->flags & SK_CONFIG_REQUIRED) != 0 ? "text, not empty" : "text");
        break;
    case SK_CONFIG_TYPE_INT:
        snprintf(out, size, "a whole number %.15g..%.15g%s%s", key->min, key->max, key->unit[0] != '\0' ? " " : "",
                 key->unit);
        break;
    case SK_CONFIG_TYPE_DOUBLE:
        snprintf(out, size, "a number %.15g..%.15g%s%s", key->min, key->max, key->unit[0] != '\0' ? " " : "",
                 key->unit);
        break;
    case SK_CONFIG_TYPE_BOOL:
        sk_copy_cut(out, size, "true or false");
        break;
    case SK_CONFIG_TYPE_ENUM:
        sk_copy_cut(out, size, "one of ");
        for (int i = 0; key->choices[i] != NULL; i++) {
            append(out, size, i > 0 ? ", " : "");
            append(out, size, key->choices[i]);
        }
        break;
    case SK_CONFIG_TYPE_LISTEN:
        sk_copy_cut(out, size, "host:port or :port, port 0..65535");
        break;
    case SK_CONFIG_TYPE_URL:
        sk_copy_cut(out, size, "a URL ");
        for (int i = 0; key->choices != NULL && key->choices[i] != NULL; i++) {
            append(out, size, i > 0 ? " or " : "");
            append(out, size, key->choices[i]);
            append(out, size, "://");
        }
        break;
    }
}

/* The value in its canonical spelling, masked; the default when nothing was loaded. */
static void shown_value(const struct sk_config *config, size_t index, char *out, size_t size)
{
    const struct sk_config_key *key = &config->keys[index];
    const char *field = (const char *)config->values + key->offset;

    out[0] = '\0';
    if (config->sources == NULL) {
        sk_config_mask(key, key->default_text != NULL ? key->default_text : "", out, size);
        return;
    }
    switch (key->type) {
    case SK_CONFIG_TYPE_INT: {
        int64_t value;
        memcpy(&value, field, sizeof(value));
        snprintf(out, size, "%lld", (long long)value);
        break;
    }
    case SK_CONFIG_TYPE_DOUBLE: {
        double value;
        memcpy(&value, field, sizeof(value));
        snprintf(out, size, "%.15g", value);
        break;
    }
    case SK_CONFIG_TYPE_BOOL: {
        bool value;
        memcpy(&value, field, sizeof(value));
        sk_copy_cut(out, size, value ? "true" : "false");
        break;
    }
    case SK_CONFIG_TYPE_ENUM: {
        int value;
        memcpy(&value, field, sizeof(value));
        sk_copy_cut(out, size, key->choices[value]);
        break;
    }
    case SK_CONFIG_TYPE_STRING:
    case SK_CONFIG_TYPE_LISTEN:
    case SK_CONFIG_TYPE_URL: {
        const char *value;
        memcpy(&value, field, sizeof(value));
        sk_config_mask(key, value != NULL ? value : "", out, size);
        break;
    }
    }
}

static void json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if ((unsigned char)*p < 0x20)
            fprintf(out, "\\u%04x", (unsigned char)*p);
        else
            fputc(*p, out);
    }
    fputc('"', out);
}

static bool is_number(enum sk_config_type type)
{
    return type == SK_CONFIG_TYPE_INT || type == SK_CONFIG_TYPE_DOUBLE;
}

static const char *const type_names[] = {
    [SK_CONFIG_TYPE_STRING] = "string", [SK_CONFIG_TYPE_INT] = "int",   [SK_CONFIG_TYPE_DOUBLE] = "number",
    [SK_CONFIG_TYPE_BOOL] = "bool",     [SK_CONFIG_TYPE_ENUM] = "enum", [SK_CONFIG_TYPE_LISTEN] = "listen",
    [SK_CONFIG_TYPE_URL] = "url",
};

static void print_json(const struct sk_config *config, FILE *out)
{
    char *value = malloc(SK_CONFIG_VALUE_MAX + 8);

    if (value == NULL)
        return;
    fprintf(out, "{\"program\":");
    json_text(out, config->program);
    fprintf(out, ",\"keys\":[");
    for (size_t i = 0; i < config->count; i++) {
        const struct sk_config_key *key = &config->keys[i];
        char range[SHOWN_RANGE_MAX];
        bool bare = is_number(key->type) || key->type == SK_CONFIG_TYPE_BOOL;

        shown_value(config, i, value, SK_CONFIG_VALUE_MAX + 8);
        sk_config_range(key, range, sizeof(range));
        fprintf(out, "%s\n  {\"name\":", i > 0 ? "," : "");
        json_text(out, key->name);
        fprintf(out, ",\"type\":\"%s\",\"value\":", type_names[key->type]);
        if (bare)
            fputs(value, out);
        else
            json_text(out, value);
        fprintf(out, ",\"source\":");
        json_text(out, config->sources != NULL ? config->sources[i] : "default");
        fprintf(out, ",\"default\":");
        json_text(out, key->default_text != NULL ? key->default_text : "");
        if (is_number(key->type))
            fprintf(out, ",\"min\":%.15g,\"max\":%.15g", key->min, key->max);
        fprintf(out, ",\"range\":");
        json_text(out, range);
        fprintf(out, ",\"unit\":");
        json_text(out, key->unit);
        fprintf(out, ",\"secret\":%s,\"required\":%s,\"reload\":%s,\"help\":",
                (key->flags & SK_CONFIG_SECRET) != 0 ? "true" : "false",
                (key->flags & SK_CONFIG_REQUIRED) != 0 ? "true" : "false",
                (key->flags & SK_CONFIG_RELOAD) != 0 ? "true" : "false");
        json_text(out, key->help);
        fprintf(out, "}");
    }
    fprintf(out, "\n]}\n");
    free(value);
}

static void print_text(const struct sk_config *config, FILE *out)
{
    char *value = malloc(SK_CONFIG_VALUE_MAX + 8);

    if (value == NULL)
        return;
    for (size_t i = 0; i < config->count; i++) {
        const struct sk_config_key *key = &config->keys[i];
        char range[SHOWN_RANGE_MAX];

        shown_value(config, i, value, SK_CONFIG_VALUE_MAX + 8);
        sk_config_range(key, range, sizeof(range));
        fprintf(out, "# %s\n# source: %s; default: %s; %s\n%s=%s\n", key->help,
                config->sources != NULL ? config->sources[i] : "default",
                key->default_text != NULL && key->default_text[0] != '\0' ? key->default_text : "(empty)", range,
                key->name, value);
    }
    free(value);
}

static void markdown_cell(FILE *out, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '|')
            fputc('\\', out);
        fputc(*p, out);
    }
}

/* From the table alone, never from the environment: this page is part of the documentation. */
static void print_markdown(const struct sk_config *config, FILE *out)
{
    fprintf(out, "## %s\n\n| variable | default | allowed | meaning |\n|---|---|---|---|\n", config->program);
    for (size_t i = 0; i < config->count; i++) {
        const struct sk_config_key *key = &config->keys[i];
        char range[SHOWN_RANGE_MAX];

        sk_config_range(key, range, sizeof(range));
        fprintf(out, "| `%s` | ", key->name);
        if (key->default_text != NULL && key->default_text[0] != '\0') {
            fputc('`', out);
            markdown_cell(out, key->default_text);
            fputc('`', out);
        }
        fprintf(out, " | ");
        markdown_cell(out, range);
        fprintf(out, " | ");
        markdown_cell(out, key->help);
        if ((key->flags & SK_CONFIG_REQUIRED) != 0)
            fputs(" Required.", out);
        if ((key->flags & SK_CONFIG_SECRET) != 0)
            fputs(" Secret.", out);
        if ((key->flags & SK_CONFIG_RELOAD) != 0)
            fputs(" Re-read on SIGHUP.", out);
        fputs(" |\n", out);
    }
    fprintf(out, "\nFor each variable `NAME`, `NAME_FILE` names a file that holds the value.\n");
}

void sk_config_print(const struct sk_config *config, enum sk_config_format format, FILE *out)
{
    switch (format) {
    case SK_CONFIG_TEXT:
        print_text(config, out);
        break;
    case SK_CONFIG_JSON:
        print_json(config, out);
        break;
    case SK_CONFIG_MARKDOWN:
        print_markdown(config, out);
        break;
    }
}
