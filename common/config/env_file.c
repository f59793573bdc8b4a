/* SPDX-License-Identifier: Apache-2.0
 *
 * --env-file: KEY=VALUE lines. The values are put into the environment once at start (for the libraries that look there
 * too) and kept in a table, from which a reload reads; setenv with threads about is not allowed. */
#include "common/base/id.h"
#include "common/config/private.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MAX   8
#define ENTRIES_MAX 1024

struct entry {
    char *name, *value; /* one allocation each */
};

struct table {
    struct entry entries[ENTRIES_MAX];
    size_t count;
};

/* Main thread at start, loop thread on reload: never two at once. */
static struct {
    char *paths[FILES_MAX];
    size_t path_count;
    struct table *table; /* only variables that were not in the environment */
} files;

char *sk_config_read_file(const char *path, size_t max, struct sk_error *err)
{
    FILE *in = fopen(path, "re");
    char *text = NULL;
    size_t len;

    if (in == NULL) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "cannot open %s: %s", path, strerror(errno));
        return NULL;
    }
    (void)setvbuf(in, NULL, _IONBF, 0); /* no copy of a secret in a buffer that is given back as it is */
    text = malloc(max + 2);
    if (text == NULL) {
        sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        goto out;
    }
    len = fread(text, 1, max + 1, in);
    if (ferror(in))
        sk_fail(err, SK_ERR_INVALID_REQUEST, "cannot read %s: %s", path, strerror(errno));
    else if (len > max)
        sk_fail(err, SK_ERR_INVALID_REQUEST, "%s is larger than %zu bytes", path, max);
    else if (memchr(text, '\0', len) != NULL)
        sk_fail(err, SK_ERR_INVALID_REQUEST, "%s contains a NUL byte", path);
    else {
        text[len] = '\0';
        fclose(in);
        return text;
    }
    free(text);
    text = NULL;
out:
    fclose(in);
    return text;
}

static void table_free(struct table *table)
{
    if (table == NULL)
        return;
    for (size_t i = 0; i < table->count; i++) {
        free(table->entries[i].name);
        explicit_bzero(table->entries[i].value, strlen(table->entries[i].value));
        free(table->entries[i].value);
    }
    free(table);
}

static struct entry *table_find(struct table *table, const char *name)
{
    for (size_t i = 0; table != NULL && i < table->count; i++) {
        if (strcmp(table->entries[i].name, name) == 0)
            return &table->entries[i];
    }
    return NULL;
}

/* A later line wins over an earlier one. */
static bool table_set(struct table *table, const char *name, const char *value)
{
    struct entry *entry = table_find(table, name);
    char *copy = strdup(value);

    if (copy == NULL)
        return false;
    if (entry != NULL) {
        explicit_bzero(entry->value, strlen(entry->value));
        free(entry->value);
        entry->value = copy;
        return true;
    }
    if (table->count < ENTRIES_MAX) {
        entry = &table->entries[table->count];
        entry->name = strdup(name);
        entry->value = copy;
        if (entry->name != NULL) {
            table->count++;
            return true;
        }
    }
    free(copy);
    return false;
}

/* Takes the quotes off, in place: '…' is literal, "…" knows \" \\ \n. False when a quote is not closed. */
static bool unquote(char *value)
{
    char quote = value[0], *in = value + 1, *out = value;

    for (; *in != '\0' && *in != quote; in++) {
        if (quote == '"' && *in == '\\' && in[1] != '\0') {
            in++;
            *out++ = *in == 'n' ? '\n' : *in;
        } else {
            *out++ = *in;
        }
    }
    if (*in != quote)
        return false;
    in++;
    in += strspn(in, " \t");
    if (*in != '\0' && *in != '#')
        return false;
    *out = '\0';
    return true;
}

/* One line; NULL when it is good, else what is wrong with it. */
static const char *parse_line(char *line, struct table *table)
{
    char *name = line + strspn(line, " \t"), *equals, *value, *end;

    end = name + strlen(name);
    while (end > name && isspace((unsigned char)end[-1]))
        *--end = '\0';
    if (*name == '\0' || *name == '#')
        return NULL;
    if (strncmp(name, "export ", 7) == 0)
        name += 7 + strspn(name + 7, " \t");
    equals = strchr(name, '=');
    if (equals == NULL)
        return "there is no '='";
    *equals = '\0';
    if (*name == '\0' || isdigit((unsigned char)*name))
        return "the name is not valid";
    for (const char *p = name; *p != '\0'; p++) {
        if (!isalnum((unsigned char)*p) && *p != '_')
            return "the name is not valid";
    }
    value = equals + 1;
    value += strspn(value, " \t");
    if ((*value == '"' || *value == '\'') && !unquote(value))
        return "the quotes are not closed, or something follows them";
    if (getenv(name) != NULL && table_find(files.table, name) == NULL)
        return NULL; /* the environment proper wins */
    return table_set(table, name, value) ? NULL : "there are too many variables";
}

static int parse_file(const char *path, struct table *table, struct sk_error *err)
{
    char *text = sk_config_read_file(path, SK_CONFIG_ENV_FILE_MAX, err), *rest = text, *line;
    size_t length = text != NULL ? strlen(text) : 0;
    int number = 0, status = 0;

    if (text == NULL)
        return -1;
    while (status == 0 && (line = strsep(&rest, "\n")) != NULL) {
        const char *problem;
        number++;
        problem = parse_line(line, table);
        if (problem != NULL)
            status = sk_fail(err, SK_ERR_INVALID_REQUEST, "%s line %d: %s", path, number, problem);
    }
    explicit_bzero(text, length);
    free(text);
    return status;
}

int sk_config_env_file(const char *path, struct sk_error *err)
{
    struct table *table;
    int status;

    if (files.path_count >= FILES_MAX)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "more than %d env-files", FILES_MAX);
    table = calloc(1, sizeof(*table));
    if (table == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    status = parse_file(path, table, err);
    if (status == 0 && files.table == NULL) {
        files.table = calloc(1, sizeof(*files.table));
        if (files.table == NULL)
            status = sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    }
    for (size_t i = 0; status == 0 && i < table->count; i++) {
        const struct entry *entry = &table->entries[i];
        if (!table_set(files.table, entry->name, entry->value) || setenv(entry->name, entry->value, 1) != 0)
            status = sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: there are too many variables", path);
    }
    if (status == 0) {
        files.paths[files.path_count] = strdup(path);
        if (files.paths[files.path_count] != NULL)
            files.path_count++;
    }
    table_free(table);
    return status;
}

const char *sk_config_env_file_get(const char *name)
{
    const struct entry *entry = table_find(files.table, name);

    return entry != NULL ? entry->value : NULL;
}

int sk_config_env_file_reload(FILE *problems)
{
    struct sk_error err = {0};
    struct table *fresh;
    int bad = 0;

    if (files.path_count == 0)
        return 0;
    fresh = calloc(1, sizeof(*fresh));
    if (fresh == NULL) {
        fprintf(problems, "out of memory\n");
        return 1;
    }
    for (size_t i = 0; i < files.path_count; i++) {
        if (parse_file(files.paths[i], fresh, &err) != 0) {
            fprintf(problems, "%s\n", err.message);
            bad++;
        }
    }
    /* A variable that disappeared from the file keeps its value: the environment still holds it anyway. */
    for (size_t i = 0; bad == 0 && i < fresh->count; i++) {
        if (!table_set(files.table, fresh->entries[i].name, fresh->entries[i].value))
            bad++;
    }
    table_free(fresh);
    return bad;
}

void sk_config_forget_env_files(void)
{
    for (size_t i = 0; i < files.path_count; i++)
        free(files.paths[i]);
    files.path_count = 0;
    table_free(files.table);
    files.table = NULL;
}

void sk_config_env_file_reset(void)
{
    for (size_t i = 0; files.table != NULL && i < files.table->count; i++)
        unsetenv(files.table->entries[i].name);
    sk_config_forget_env_files();
}
