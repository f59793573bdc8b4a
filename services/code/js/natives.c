/* SPDX-License-Identifier: Apache-2.0
 *
 * What the embedded script cannot do by itself: the log and the result, time, text, randomness, digests, compiling the
 * task's code. It calls them with arguments of the right types (src/); a task has no way to them. */
#include "services/code/js/natives.h"

#include "services/code/js/broker.h"
#include "services/code/js/output.h"
#include "services/code/js/text.h"

#include <errno.h>
#include <math.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define NATIVE(name)                                                                                                   \
    static JSValueRef name(JSContextRef context, JSObjectRef function, JSObjectRef self, size_t count,                 \
                           const JSValueRef arguments[], JSValueRef *exception)
#define UNUSED_NATIVE ((void)function, (void)self, (void)count, (void)exception)

struct timer {
    double due, order, id;
};

static struct {
    struct timer *heap;
    size_t count, capacity;
    double order;
} timers;

static JSValueRef undefined(JSContextRef context)
{
    return JSValueMakeUndefined(context);
}

static JSValueRef throw_error(JSContextRef context, JSValueRef *exception, const char *text)
{
    JSStringRef string = JSStringCreateWithUTF8CString(text);
    JSValueRef message = JSValueMakeString(context, string);

    JSStringRelease(string);
    *exception = JSObjectMakeError(context, 1, &message, NULL);
    return undefined(context);
}

/* A copy of argument `i` as a string, "" when it is missing. The caller releases it. */
static JSStringRef string_at(JSContextRef context, size_t count, const JSValueRef arguments[], size_t i,
                             JSValueRef *exception)
{
    JSStringRef string = i < count ? JSValueToStringCopy(context, arguments[i], exception) : NULL;

    return string != NULL ? string : JSStringCreateWithUTF8CString("");
}

/* Argument `i` in UTF-8: malloc'd, NUL-terminated, the caller's; NULL without memory. */
static char *utf8_at(JSContextRef context, size_t count, const JSValueRef arguments[], size_t i, size_t *length,
                     JSValueRef *exception)
{
    JSStringRef string = string_at(context, count, arguments, i, exception);
    const uint16_t *chars = JSStringGetCharactersPtr(string);
    size_t units = JSStringGetLength(string);
    char *text;

    *length = code_utf8_from(chars, units, NULL);
    text = malloc(*length + 1);
    if (text != NULL) {
        (void)code_utf8_from(chars, units, text);
        text[*length] = '\0';
    }
    JSStringRelease(string);
    return text;
}

static void free_bytes(void *bytes, void *context)
{
    (void)context;
    free(bytes);
}

/* A Uint8Array of malloc'd bytes, which it takes. */
static JSValueRef bytes_value(JSContextRef context, void *bytes, size_t length, JSValueRef *exception)
{
    return JSObjectMakeTypedArrayWithBytesNoCopy(context, kJSTypedArrayTypeUint8Array, bytes, length, free_bytes, NULL,
                                                 exception);
}

/* log(line) */
NATIVE(native_log)
{
    JSStringRef line = string_at(context, count, arguments, 0, exception);

    UNUSED_NATIVE;
    code_output_log(JSStringGetCharactersPtr(line), JSStringGetLength(line));
    JSStringRelease(line);
    return undefined(context);
}

/* finish(json) */
NATIVE(native_finish)
{
    JSStringRef json = string_at(context, count, arguments, 0, exception);

    UNUSED_NATIVE;
    code_output_value(JSStringGetCharactersPtr(json), JSStringGetLength(json));
    JSStringRelease(json);
    return undefined(context);
}

/* fail(code, message, type, line, traceback) */
NATIVE(native_fail)
{
    JSStringRef code = string_at(context, count, arguments, 0, exception);
    JSStringRef message = string_at(context, count, arguments, 1, exception);
    JSStringRef type = string_at(context, count, arguments, 2, exception);
    JSStringRef traceback = string_at(context, count, arguments, 4, exception);
    double line = count > 3 ? JSValueToNumber(context, arguments[3], exception) : 0;
    struct code_failure failure = {
        .code = JSStringIsEqualToUTF8CString(code, "memory") ? "memory" : "error",
        .message = JSStringGetCharactersPtr(message),
        .message_length = JSStringGetLength(message),
        .type = JSStringGetCharactersPtr(type),
        .type_length = JSStringGetLength(type),
        .traceback = JSStringGetCharactersPtr(traceback),
        .traceback_length = JSStringGetLength(traceback),
        .line = line > 0 && line < INT32_MAX ? (int)line : 0,
    };

    UNUSED_NATIVE;
    code_output_failure(&failure);
    JSStringRelease(code);
    JSStringRelease(message);
    JSStringRelease(type);
    JSStringRelease(traceback);
    return undefined(context);
}

/* overflow() */
NATIVE(native_overflow)
{
    UNUSED_NATIVE;
    (void)arguments;
    code_output_overflow();
    return undefined(context);
}

static bool before(const struct timer *a, const struct timer *b)
{
    return a->due < b->due || (a->due == b->due && a->order < b->order);
}

static void sift_down(size_t at)
{
    struct timer moving = timers.heap[at];

    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= timers.count)
            break;
        if (child + 1 < timers.count && before(&timers.heap[child + 1], &timers.heap[child]))
            child++;
        if (!before(&timers.heap[child], &moving))
            break;
        timers.heap[at] = timers.heap[child];
        at = child;
    }
    timers.heap[at] = moving;
}

double code_natives_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* timer(id, ms) */
NATIVE(native_timer)
{
    struct timer timer = {.order = timers.order++};
    size_t at;

    UNUSED_NATIVE;
    if (count < 2)
        return undefined(context);
    timer.id = JSValueToNumber(context, arguments[0], exception);
    timer.due = code_natives_now() + JSValueToNumber(context, arguments[1], exception);
    if (timers.count == timers.capacity) {
        size_t capacity = timers.capacity == 0 ? 64 : timers.capacity * 2;
        struct timer *larger = realloc(timers.heap, capacity * sizeof(*larger));

        if (larger == NULL)
            return throw_error(context, exception, "Out of memory");
        timers.heap = larger;
        timers.capacity = capacity;
    }
    at = timers.count++;
    while (at > 0 && before(&timer, &timers.heap[(at - 1) / 2])) {
        timers.heap[at] = timers.heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    timers.heap[at] = timer;
    return undefined(context);
}

double code_timer_take(double now)
{
    double id;

    if (timers.count == 0 || timers.heap[0].due > now)
        return 0;
    id = timers.heap[0].id;
    timers.heap[0] = timers.heap[--timers.count];
    if (timers.count > 0)
        sift_down(0);
    return id;
}

double code_timer_wait(double now)
{
    if (timers.count == 0)
        return -1;
    return timers.heap[0].due > now ? timers.heap[0].due - now : 0;
}

void code_timer_clear(void)
{
    timers.count = 0;
}

/* send(json) */
NATIVE(native_send)
{
    JSStringRef json = string_at(context, count, arguments, 0, exception);
    bool sent = code_broker_send(JSStringGetCharactersPtr(json), JSStringGetLength(json));

    UNUSED_NATIVE;
    JSStringRelease(json);
    return sent ? undefined(context) : throw_error(context, exception, "Network is not available");
}

/* utf8(text) -> Uint8Array */
NATIVE(native_utf8)
{
    size_t length;
    char *text = utf8_at(context, count, arguments, 0, &length, exception);

    UNUSED_NATIVE;
    return text != NULL ? bytes_value(context, text, length, exception)
                        : throw_error(context, exception, "Out of memory");
}

/* The bytes of a typed array, which stay its own. */
static const unsigned char *view_bytes(JSContextRef context, JSValueRef value, size_t *length, JSValueRef *exception)
{
    JSObjectRef view = JSValueToObject(context, value, exception);
    JSObjectRef buffer = view == NULL ? NULL : JSObjectGetTypedArrayBuffer(context, view, exception);
    const unsigned char *bytes = buffer == NULL ? NULL : JSObjectGetArrayBufferBytesPtr(context, buffer, exception);

    *length = 0;
    if (bytes == NULL)
        return NULL;
    *length = JSObjectGetTypedArrayByteLength(context, view, exception);
    return bytes + JSObjectGetTypedArrayByteOffset(context, view, exception);
}

/* text(Uint8Array, fatal) -> string, or undefined when fatal and not UTF-8 */
NATIVE(native_text)
{
    size_t length = 0, units;
    const unsigned char *bytes = count > 0 ? view_bytes(context, arguments[0], &length, exception) : NULL;
    JSStringRef string;
    JSValueRef value;
    uint16_t *chars;
    bool valid;

    UNUSED_NATIVE;
    if (bytes == NULL)
        length = 0;
    chars = malloc((length + 1) * sizeof(*chars));
    if (chars == NULL)
        return throw_error(context, exception, "Out of memory");
    units = code_utf16_from(bytes, length, chars, &valid);
    if (!valid && count > 1 && JSValueToBoolean(context, arguments[1])) {
        free(chars);
        return undefined(context);
    }
    string = JSStringCreateWithCharacters(chars, units);
    free(chars);
    value = JSValueMakeString(context, string);
    JSStringRelease(string);
    return value;
}

/* random(n) -> Uint8Array */
NATIVE(native_random)
{
    double wanted = count > 0 ? JSValueToNumber(context, arguments[0], exception) : 0;
    size_t length = wanted > 0 && wanted <= 65536 ? (size_t)wanted : 0, done = 0;
    unsigned char *bytes = malloc(length + 1);

    UNUSED_NATIVE;
    while (bytes != NULL && done < length) {
        ssize_t n = getrandom(bytes + done, length - done, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            free(bytes);
            return throw_error(context, exception, "No randomness is available");
        }
        done += (size_t)n;
    }
    return bytes != NULL ? bytes_value(context, bytes, length, exception)
                         : throw_error(context, exception, "Out of memory");
}

/* Base64 of bytes as a string; NULL without memory. */
static JSValueRef base64_value(JSContextRef context, const unsigned char *bytes, size_t length)
{
    char *text = length <= (size_t)INT32_MAX / 2 ? malloc(4 * ((length + 2) / 3) + 1) : NULL;
    JSStringRef string;
    JSValueRef value;

    if (text == NULL)
        return NULL;
    (void)EVP_EncodeBlock((unsigned char *)text, bytes, (int)length);
    string = JSStringCreateWithUTF8CString(text);
    free(text);
    value = JSValueMakeString(context, string);
    JSStringRelease(string);
    return value;
}

/* base64(text) -> string */
NATIVE(native_base64)
{
    size_t length;
    char *text = utf8_at(context, count, arguments, 0, &length, exception);
    JSValueRef value = text == NULL ? NULL : base64_value(context, (unsigned char *)text, length);

    UNUSED_NATIVE;
    free(text);
    return value != NULL ? value : throw_error(context, exception, "Out of memory");
}

/* hmac(algorithm, key, data) -> base64, or undefined for an unknown algorithm */
NATIVE(native_hmac)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned digest_length = 0;
    size_t name_length, key_length, data_length;
    char *name = utf8_at(context, count, arguments, 0, &name_length, exception);
    char *key = utf8_at(context, count, arguments, 1, &key_length, exception);
    char *data = utf8_at(context, count, arguments, 2, &data_length, exception);
    JSValueRef value = undefined(context);

    UNUSED_NATIVE;
    if (name != NULL && key != NULL && data != NULL && key_length <= INT32_MAX) {
        const EVP_MD *algorithm = EVP_get_digestbyname(name);

        if (algorithm != NULL &&
            HMAC(algorithm, key, (int)key_length, (unsigned char *)data, data_length, digest, &digest_length) != NULL)
            value = base64_value(context, digest, digest_length);
    } else {
        value = NULL;
    }
    free(name);
    free(key);
    free(data);
    return value != NULL ? value : throw_error(context, exception, "Out of memory");
}

/* compile(code) -> a function whose body it is, in strict mode; it returns what the code calls `main`. The head stands
 * on the first line of the code, so that lines are the code's own. (Code that closes the function early gets out of
 * strict mode and sees the global object: nothing is kept from it there.) */
NATIVE(native_compile)
{
    static const char head[] = CODE_JS_HEAD, tail[] = "\nreturn typeof main === \"undefined\" ? undefined : main;})";
    JSStringRef code = string_at(context, count, arguments, 0, exception), script, file;
    size_t length = JSStringGetLength(code), total = sizeof(head) - 1 + length + sizeof(tail) - 1, at = 0;
    uint16_t *chars = malloc(total * sizeof(*chars));
    JSValueRef compiled = NULL;

    UNUSED_NATIVE;
    if (chars != NULL) {
        for (const char *c = head; *c != '\0'; c++)
            chars[at++] = (unsigned char)*c;
        memcpy(chars + at, JSStringGetCharactersPtr(code), length * sizeof(*chars));
        at += length;
        for (const char *c = tail; *c != '\0'; c++)
            chars[at++] = (unsigned char)*c;
        script = JSStringCreateWithCharacters(chars, total);
        free(chars);
        file = JSStringCreateWithUTF8CString(CODE_JS_USER_FILE);
        compiled = JSEvaluateScript(context, script, NULL, file, 1, exception);
        JSStringRelease(file);
        JSStringRelease(script);
    } else {
        (void)throw_error(context, exception, "Out of memory");
    }
    JSStringRelease(code);
    return compiled != NULL ? compiled : undefined(context);
}

void code_natives_set(JSContextRef context, JSObjectRef object, const char *name, JSValueRef value)
{
    JSStringRef string = JSStringCreateWithUTF8CString(name);

    JSObjectSetProperty(context, object, string, value, kJSPropertyAttributeNone, NULL);
    JSStringRelease(string);
}

JSObjectRef code_natives_make(JSContextRef context)
{
    static const struct {
        const char *name;
        JSObjectCallAsFunctionCallback function;
    } natives[] = {
        {"log", native_log},       {"finish", native_finish}, {"fail", native_fail}, {"overflow", native_overflow},
        {"timer", native_timer},   {"send", native_send},     {"utf8", native_utf8}, {"text", native_text},
        {"random", native_random}, {"base64", native_base64}, {"hmac", native_hmac}, {"compile", native_compile},
    };
    JSObjectRef host = JSObjectMake(context, NULL, NULL);

    for (size_t i = 0; i < sizeof(natives) / sizeof(natives[0]); i++) {
        JSStringRef name = JSStringCreateWithUTF8CString(natives[i].name);

        JSObjectSetProperty(context, host, name, JSObjectMakeFunctionWithCallback(context, name, natives[i].function),
                            kJSPropertyAttributeNone, NULL);
        JSStringRelease(name);
    }
    return host;
}
