/* SPDX-License-Identifier: Apache-2.0
 *
 * Strict parsing, typed getters and problem objects over jansson. */
#include "common/base/json.h"

#include "common/base/id.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBLEM_TYPE_BASE "https://sandkeep.dev/errors/"
#define EXACT_DOUBLE_MAX  9007199254740992.0 /* 2^53: whole numbers above are not exact in a double */
#define FIELD_PATH_MAX    128

/* Brackets outside of strings, without recursion. A text that is not JSON may be misjudged here; the parser refuses it
 * anyway, and it never recurses deeper than what was counted. */
static bool depth_exceeds(const char *text, size_t len, int max_depth)
{
    bool in_string = false;
    int depth = 0;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > max_depth)
                return true;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return false;
}

/* jansson's own text quotes the input ("near '…'"): only the kind of fault is passed on. */
static const char *fault_text(enum json_error_code code)
{
    switch (code) {
    case json_error_premature_end_of_input:
        return "it ends too early";
    case json_error_end_of_input_expected:
        return "something follows the document";
    case json_error_invalid_utf8:
        return "it is not valid UTF-8";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "there is a NUL character";
    case json_error_duplicate_key:
        return "a key appears twice in one object";
    case json_error_numeric_overflow:
        return "a number is too large";
    case json_error_stack_overflow:
        return "it is nested too deeply";
    default:
        return "it is not JSON";
    }
}

json_t *sk_json_parse(const char *text, size_t len, const struct sk_json_limits *limits, struct sk_error *err)
{
    static const struct sk_json_limits defaults = {SK_JSON_MAX_BYTES, SK_JSON_MAX_DEPTH};
    json_error_t fault;
    json_t *value;

    if (limits == NULL)
        limits = &defaults;
    if (len > limits->max_bytes) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "the JSON text has %zu bytes, more than %zu", len, limits->max_bytes);
        return NULL;
    }
    if (len == 0) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "the JSON text is empty");
        return NULL;
    }
    if (depth_exceeds(text, len, limits->max_depth)) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "the JSON text is nested deeper than %d levels", limits->max_depth);
        return NULL;
    }
    value = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &fault);
    if (value == NULL) {
        enum json_error_code code = json_error_code(&fault);
        if (code == json_error_out_of_memory)
            sk_fail(err, SK_ERR_INTERNAL, "out of memory");
        else
            sk_fail(err, SK_ERR_INVALID_REQUEST, "the JSON text is not valid at line %d, column %d: %s", fault.line,
                    fault.column, fault_text(code));
    }
    return value;
}

json_t *sk_json_parse_object(const char *text, size_t len, const struct sk_json_limits *limits, struct sk_error *err)
{
    json_t *value = sk_json_parse(text, len, limits, err);

    if (value != NULL && !json_is_object(value)) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "the JSON text must be an object");
        json_decref(value);
        return NULL;
    }
    return value;
}

/* The name of a field in messages. Paths and keys come from our own code, never from the input. */
struct field_name {
    char text[FIELD_PATH_MAX];
};

static struct field_name field_name(const char *path, const char *key)
{
    struct field_name name;
    bool joined = path != NULL && path[0] != '\0';
    size_t used = 0;

    if (joined) {
        sk_copy_cut(name.text, sizeof(name.text) - 1, path);
        used = strlen(name.text);
        name.text[used++] = '.';
    }
    sk_copy_cut(name.text + used, sizeof(name.text) - used, key);
    return name;
}

static int bad_field(struct sk_error *err, const char *path, const char *key, const char *what)
{
    return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s %s", field_name(path, key).text, what);
}

/* 1 with *out, 0 absent, -1 required but absent. */
static int find(const json_t *object, const char *path, const char *key, unsigned flags, const json_t **out,
                struct sk_error *err)
{
    *out = json_object_get(object, key);
    if (*out != NULL && !(json_is_null(*out) && (flags & SK_JSON_NULLABLE) != 0))
        return 1;
    if ((flags & SK_JSON_REQUIRED) != 0)
        return bad_field(err, path, key, "is required");
    return 0;
}

int sk_json_get_string(const json_t *object, const char *path, const char *key, unsigned flags, size_t max_len,
                       const char **out, size_t *len, struct sk_error *err)
{
    const json_t *value;
    int found = find(object, path, key, flags, &value, err);
    size_t length;

    if (found <= 0)
        return found;
    if (!json_is_string(value))
        return bad_field(err, path, key, "must be a string");
    length = json_string_length(value);
    if (length > max_len)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must have at most %zu bytes", field_name(path, key).text,
                       max_len);
    if (length == 0 && (flags & SK_JSON_NOT_EMPTY) != 0)
        return bad_field(err, path, key, "must not be empty");
    if (memchr(json_string_value(value), '\0', length) != NULL)
        return bad_field(err, path, key, "must not contain a NUL character");
    *out = json_string_value(value);
    if (len != NULL)
        *len = length;
    return 1;
}

int sk_json_get_int(const json_t *object, const char *path, const char *key, unsigned flags, int64_t min, int64_t max,
                    int64_t *out, struct sk_error *err)
{
    const json_t *value;
    int found = find(object, path, key, flags, &value, err);
    int64_t number;

    if (found <= 0)
        return found;
    if (json_is_integer(value)) {
        number = json_integer_value(value);
    } else if (json_is_real(value)) {
        double real = json_real_value(value);
        if (real != floor(real))
            return bad_field(err, path, key, "must be a whole number");
        /* Beyond that the cast would be undefined or not exact: out of range of every field we have. */
        number = fabs(real) <= EXACT_DOUBLE_MAX ? (int64_t)real : real > 0 ? INT64_MAX : INT64_MIN;
    } else {
        return bad_field(err, path, key, "must be a number");
    }
    if (number < min || number > max)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must be in %lld..%lld", field_name(path, key).text,
                       (long long)min, (long long)max);
    *out = number;
    return 1;
}

int sk_json_get_number(const json_t *object, const char *path, const char *key, unsigned flags, double min, double max,
                       double *out, struct sk_error *err)
{
    const json_t *value;
    int found = find(object, path, key, flags, &value, err);
    double number;

    if (found <= 0)
        return found;
    if (!json_is_number(value))
        return bad_field(err, path, key, "must be a number");
    number = json_number_value(value);
    if (!(number >= min && number <= max))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must be in %.15g..%.15g", field_name(path, key).text, min, max);
    *out = number;
    return 1;
}

int sk_json_get_bool(const json_t *object, const char *path, const char *key, unsigned flags, bool *out,
                     struct sk_error *err)
{
    const json_t *value;
    int found = find(object, path, key, flags, &value, err);

    if (found <= 0)
        return found;
    if (!json_is_boolean(value))
        return bad_field(err, path, key, "must be true or false");
    *out = json_is_true(value);
    return 1;
}

int sk_json_get_object(const json_t *object, const char *path, const char *key, unsigned flags, const json_t **out,
                       struct sk_error *err)
{
    const json_t *value;
    int found = find(object, path, key, flags, &value, err);

    if (found <= 0)
        return found;
    if (!json_is_object(value))
        return bad_field(err, path, key, "must be an object");
    *out = value;
    return 1;
}

int sk_json_get_array(const json_t *object, const char *path, const char *key, unsigned flags, size_t max_items,
                      const json_t **out, struct sk_error *err)
{
    const json_t *value;
    int found = find(object, path, key, flags, &value, err);

    if (found <= 0)
        return found;
    if (!json_is_array(value))
        return bad_field(err, path, key, "must be an array");
    if (json_array_size(value) > max_items)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s must have at most %zu items", field_name(path, key).text,
                       max_items);
    if (json_array_size(value) == 0 && (flags & SK_JSON_NOT_EMPTY) != 0)
        return bad_field(err, path, key, "must not be empty");
    *out = value;
    return 1;
}

int sk_json_get_time(const json_t *object, const char *path, const char *key, unsigned flags, int64_t *unix_ms,
                     struct sk_error *err)
{
    const char *text = "";
    int found = sk_json_get_string(object, path, key, flags, 64, &text, NULL, err);
    int64_t value;

    if (found <= 0)
        return found;
    if (!sk_time_parse(text, &value))
        return bad_field(err, path, key, "must be an RFC 3339 time");
    *unix_ms = value;
    return 1;
}

int sk_json_get_choice(const json_t *object, const char *path, const char *key, unsigned flags,
                       const char *const *choices, int *out, struct sk_error *err)
{
    const char *text = "";
    int found = sk_json_get_string(object, path, key, flags, 256, &text, NULL, err);
    char list[SK_ERROR_MESSAGE_MAX] = "must be one of ";

    if (found <= 0)
        return found;
    for (int i = 0; choices[i] != NULL; i++) {
        size_t used = strlen(list);
        if (strcmp(choices[i], text) == 0) {
            *out = i;
            return 1;
        }
        if (i > 0)
            sk_copy_cut(list + used, sizeof(list) - used, ", ");
        used = strlen(list);
        sk_copy_cut(list + used, sizeof(list) - used, choices[i]);
    }
    return bad_field(err, path, key, list);
}

json_t *sk_json_text(const char *text)
{
    json_t *value;
    size_t len, used = 0;
    char *clean;

    if (text == NULL)
        return json_null();
    value = json_string(text);
    if (value != NULL)
        return value;
    len = strlen(text);
    clean = len <= (SIZE_MAX - 1) / 3 ? malloc(3 * len + 1) : NULL;
    if (clean == NULL)
        return NULL;
    for (size_t at = 0; at < len;) {
        size_t size = sk_utf8_sequence(text + at, len - at);
        if (size == 0) {
            memcpy(clean + used, "\xef\xbf\xbd", 3);
            used += 3;
            at++;
        } else {
            memcpy(clean + used, text + at, size);
            used += size;
            at += size;
        }
    }
    value = json_stringn(clean, used);
    free(clean);
    return value;
}

char *sk_json_dump(const json_t *value, bool sort_keys, size_t *len, struct sk_error *err)
{
    char *text = NULL;

    if (value != NULL)
        text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | (sort_keys ? JSON_SORT_KEYS : 0));
    if (text == NULL)
        sk_fail(err, SK_ERR_INTERNAL, "cannot write JSON: out of memory");
    else if (len != NULL)
        *len = strlen(text); /* jansson writes NUL characters as \u0000 */
    return text;
}

json_t *sk_json_problem(const struct sk_error *err)
{
    char type[sizeof(PROBLEM_TYPE_BASE) + 64];
    const char *code = sk_code_name(err->code);
    int fastgpt = sk_code_fastgpt(err->code), status;
    json_t *problem = json_object();

    snprintf(type, sizeof(type), PROBLEM_TYPE_BASE "%s", code);
    for (char *p = type + sizeof(PROBLEM_TYPE_BASE) - 1; *p != '\0'; p++) {
        if (*p == '_')
            *p = '-';
    }
    status = json_object_set_new(problem, "type", json_string(type));
    status |= json_object_set_new(problem, "title", json_string(sk_code_title(err->code)));
    status |= json_object_set_new(
        problem, "status", json_integer(err->http_status != 0 ? err->http_status : sk_code_http_status(err->code)));
    status |= json_object_set_new(problem, "code", json_string(code));
    status |= json_object_set_new(problem, "detail", sk_json_text(err->message));
    status |= json_object_set_new(problem, "retryable", json_boolean(err->retryable));
    if (err->retry_after_ms > 0)
        status |= json_object_set_new(problem, "retryAfterMs", json_integer(err->retry_after_ms));
    if (fastgpt != 0)
        status |= json_object_set_new(problem, "fastgptCode", json_integer(fastgpt));
    if (status != 0) {
        json_decref(problem);
        return NULL;
    }
    return problem;
}

int sk_json_problem_to_error(const json_t *problem, struct sk_error *out)
{
    const char *name = json_string_value(json_object_get(problem, "code"));
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    const json_t *retryable = json_object_get(problem, "retryable");
    json_int_t status = json_integer_value(json_object_get(problem, "status"));
    json_int_t retry_after = json_integer_value(json_object_get(problem, "retryAfterMs"));

    if (detail == NULL)
        detail = json_string_value(json_object_get(problem, "title"));
    sk_fail(out, sk_code_parse(name), "%s", detail != NULL ? detail : "no detail was given");
    if (out == NULL)
        return -1;
    if (status >= 100 && status <= 599)
        out->http_status = (int)status;
    if (json_is_boolean(retryable))
        out->retryable = json_is_true(retryable);
    if (retry_after > 0)
        out->retry_after_ms = retry_after;
    return -1;
}
