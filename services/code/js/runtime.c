/* SPDX-License-Identifier: Apache-2.0
 *
 * JavaScript for the code sandbox on JavaScriptCore's C API: prepare() loads the embedded script with all modules,
 * run() hands it one task and turns the loop of timers and answers until there is a result. Microtasks run whenever the
 * engine is left. */
#include "services/code/runtime.h"
#include "services/code/js/broker.h"
#include "services/code/js/bundle.h"
#include "services/code/js/environment.h"
#include "services/code/js/natives.h"
#include "services/code/js/output.h"
#include "services/code/js/text.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_OVERHEAD   ((size_t)1 << 20) /* headers and frame around the data of an answer */
#define JSON_GROWTH       6                 /* one byte of data may take that many as JSON */
#define REHEARSAL_WAIT_MS 2000
/* What a first run leaves uncompiled, unlinked and in half-filled blocks would be every child's to do. More gain
 * nothing, and their garbage stays, 300 KB each in every zygote. */
#define REHEARSALS 6

static struct {
    JSGlobalContextRef context;
    JSObjectRef begin, fire, answer, disconnect, fail, rehearse;
} js;

static JSValueRef text_value(const char *text, size_t length)
{
    JSStringRef string = NULL;
    JSValueRef value;

    if (memchr(text, '\0', length) == NULL)
        string = JSStringCreateWithUTF8CString(text);
    if (string == NULL || (JSStringGetLength(string) == 0 && length > 0)) {
        uint16_t *chars = malloc((length + 1) * sizeof(*chars));
        bool valid;

        if (string != NULL)
            JSStringRelease(string);
        string = chars == NULL ? JSStringCreateWithUTF8CString("")
                               : JSStringCreateWithCharacters(
                                     chars, code_utf16_from((const unsigned char *)text, length, chars, &valid));
        free(chars);
    }
    value = JSValueMakeString(js.context, string);
    JSStringRelease(string);
    return value;
}

/* The text of a thrown value, for errors of prepare(). */
static void exception_text(JSValueRef exception, char *out, size_t size)
{
    JSStringRef string = JSValueToStringCopy(js.context, exception, NULL);

    out[0] = '\0';
    if (string == NULL)
        return;
    (void)JSStringGetUTF8CString(string, out, size);
    JSStringRelease(string);
}

/* Calls an entry point. What it throws becomes the failure of the task; the script itself lets nothing through, so that
 * is the engine at its limits. */
static void call(JSObjectRef function, size_t count, const JSValueRef arguments[])
{
    JSValueRef exception = NULL, ignored = NULL;

    (void)JSObjectCallAsFunction(js.context, function, NULL, count, arguments, &exception);
    if (exception == NULL)
        return;
    (void)JSObjectCallAsFunction(js.context, js.fail, NULL, 1, &exception, &ignored);
    if (ignored != NULL)
        code_output_fixed("error", "Error", "The script failed and its error could not be read");
}

static void take_answers(void)
{
    char *text;

    while (!code_output_done()) {
        enum code_broker_event event = code_broker_step(&text);
        bool known = false;

        if (event == CODE_BROKER_NOTHING)
            return;
        if (event == CODE_BROKER_ANSWER) {
            JSValueRef argument = text_value(text, strlen(text)), exception = NULL;
            JSValueRef took = JSObjectCallAsFunction(js.context, js.answer, NULL, 1, &argument, &exception);

            free(text);
            known = exception == NULL && JSValueToBoolean(js.context, took);
        }
        if (!known) {
            JSValueRef why = text_value("Network connection lost", strlen("Network connection lost"));

            code_broker_start(-1, 0);
            call(js.disconnect, 1, &why);
            return;
        }
    }
}

/* Until there is a result, or the deadline (-1 = none). A round fires what was due when it began, then takes answers:
 * timers that are always due keep nobody waiting. Without anything to wait for it waits for the end of the task's time:
 * the handler in output.c. */
static void turn(double deadline)
{
    while (!code_output_done()) {
        struct pollfd wanted;
        double now = code_natives_now(), wait, id;

        while (!code_output_done() && (id = code_timer_take(now)) > 0) {
            JSValueRef argument = JSValueMakeNumber(js.context, id);

            call(js.fire, 1, &argument);
        }
        take_answers();
        if (code_output_done())
            return;
        now = code_natives_now();
        wait = code_timer_wait(now);
        if (deadline >= 0) {
            if (now > deadline)
                return;
            if (wait < 0 || wait > deadline - now)
                wait = deadline - now;
        }
        wanted = code_broker_wanted();
        (void)poll(&wanted, wanted.fd < 0 ? 0 : 1, wait < 0 ? -1 : wait > 1e6 ? 1000000 : (int)ceil(wait));
    }
}

static void begin(const struct code_task *task)
{
    JSObjectRef limits = JSObjectMake(js.context, NULL, NULL);
    JSValueRef arguments[8] = {text_value(task->code, task->code_length),
                               text_value(task->variables, task->variables_length),
                               JSValueMakeBoolean(js.context, task->strict), limits};

    code_natives_set(js.context, limits, "outputBytes",
                     JSValueMakeNumber(js.context, (double)task->limits.output_bytes));
    code_natives_set(js.context, limits, "requestMax", JSValueMakeNumber(js.context, task->limits.request_max));
    code_natives_set(js.context, limits, "requestBytes",
                     JSValueMakeNumber(js.context, (double)task->limits.request_body_bytes));
    code_natives_set(js.context, limits, "requestMs",
                     JSValueMakeNumber(js.context, (double)task->limits.request_timeout_ms));
    for (size_t i = 0; i < 4; i++) {
        uint32_t word;

        memcpy(&word, task->seed + 4 * i, sizeof(word));
        arguments[4 + i] = JSValueMakeNumber(js.context, word);
    }
    call(js.begin, 8, arguments);
}

static void js_run(const struct code_task *task, const struct code_channel *channel)
{
    if (!code_output_start(channel->result, &task->limits)) {
        code_output_fixed("crashed", "Error", "The clock of the task could not be set");
        return;
    }
    code_broker_start(channel->rpc, (size_t)task->limits.response_bytes * JSON_GROWTH + ANSWER_OVERHEAD);
    begin(task);
    turn(-1);
}

/* Runs the script's own task `times` times, without a result. The microtasks it leaves are done when it returns. */
static bool rehearse(int times)
{
    static const struct code_limits limits = {
        .timeout_ms = REHEARSAL_WAIT_MS, .output_bytes = 1 << 20, .log_bytes = 1 << 20};

    for (int i = 0; i < times; i++) {
        (void)code_output_start(-1, &limits);
        code_broker_start(-1, 0);
        call(js.rehearse, 0, NULL);
        turn(code_natives_now() + REHEARSAL_WAIT_MS);
        if (!code_output_done() || code_output_failed())
            return false;
    }
    code_timer_clear();
    return true;
}

/* 0 when it cannot be told. */
static int thread_count(void)
{
    DIR *dir = opendir("/proc/self/task");
    const struct dirent *entry;
    int count = 0;

    if (dir == NULL)
        return 0;
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    (void)closedir(dir);
    return count;
}

static JSObjectRef entry_point(JSObjectRef entry, const char *name)
{
    JSStringRef string = JSStringCreateWithUTF8CString(name);
    JSValueRef value = JSObjectGetProperty(js.context, entry, string, NULL);

    JSStringRelease(string);
    if (value == NULL || !JSValueIsObject(js.context, value))
        return NULL;
    JSValueProtect(js.context, value);
    return JSValueToObject(js.context, value, NULL);
}

/* The script, called with the native functions: an object of its entry points. The engine reads its text where it is
 * embedded: no copy, and none that children share. */
static JSObjectRef load_script(struct sk_error *err)
{
    JSStringRef file = JSStringCreateWithUTF8CString(CODE_JS_RUNTIME_FILE);
    JSScriptRef script = JSScriptCreateReferencingImmortalASCIIText(JSContextGetGroup(js.context), file, 1,
                                                                    code_js_bundle, strlen(code_js_bundle), NULL, NULL);
    JSValueRef exception = NULL, host, function = NULL, entry = NULL;
    char why[256] = "not a script";

    JSStringRelease(file);
    if (script != NULL)
        function = JSScriptEvaluate(js.context, script, NULL, &exception);
    if (function != NULL && exception == NULL) {
        host = code_natives_make(js.context);
        entry =
            JSObjectCallAsFunction(js.context, JSValueToObject(js.context, function, NULL), NULL, 1, &host, &exception);
    }
    if (exception == NULL && entry != NULL)
        return JSValueToObject(js.context, entry, NULL);
    if (exception != NULL)
        exception_text(exception, why, sizeof(why));
    (void)sk_fail(err, SK_ERR_INTERNAL, "the embedded script cannot be loaded: %s", why);
    return NULL;
}

static int allow_modules(JSObjectRef allow, const char *const *modules, struct sk_error *err)
{
    char *names;
    size_t size = 1;
    JSValueRef argument, exception = NULL, missing;
    char name[128];

    for (const char *const *m = modules; *m != NULL; m++)
        size += strlen(*m) + 1;
    names = malloc(size);
    if (names == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    names[0] = '\0';
    for (const char *const *m = modules; *m != NULL; m++) {
        (void)strcat(names, *m);
        if (m[1] != NULL)
            (void)strcat(names, ",");
    }
    argument = text_value(names, strlen(names));
    free(names);
    missing = JSObjectCallAsFunction(js.context, allow, NULL, 1, &argument, &exception);
    if (exception == NULL && JSValueIsUndefined(js.context, missing))
        return 0;
    exception_text(exception != NULL ? exception : missing, name, sizeof(name));
    return sk_fail(err, SK_ERR_INTERNAL, "the JavaScript module '%s' is not part of this build", name);
}

static int load(const char *const *modules, struct sk_error *err)
{
    JSObjectRef entry = load_script(err), allow, hide, unhandled;
    JSValueRef exception = NULL;
    JSStringRef refusal;
    char why[256];

    if (entry == NULL)
        return -1;
    js.begin = entry_point(entry, "begin");
    js.fire = entry_point(entry, "fire");
    js.answer = entry_point(entry, "answer");
    js.disconnect = entry_point(entry, "disconnect");
    js.fail = entry_point(entry, "fail");
    js.rehearse = entry_point(entry, "rehearse");
    allow = entry_point(entry, "allow");
    hide = entry_point(entry, "hide");
    unhandled = entry_point(entry, "unhandled");
    if (js.begin == NULL || js.fire == NULL || js.answer == NULL || js.disconnect == NULL || js.fail == NULL ||
        js.rehearse == NULL || allow == NULL || hide == NULL || unhandled == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "the embedded script lacks an entry point");
    if (allow_modules(allow, modules, err) != 0)
        return -1;
    (void)JSObjectCallAsFunction(js.context, hide, NULL, 0, NULL, &exception);
    if (exception != NULL) {
        exception_text(exception, why, sizeof(why));
        return sk_fail(err, SK_ERR_INTERNAL, "the engine's globals cannot be hidden: %s", why);
    }
    JSGlobalContextSetUnhandledRejectionCallback(js.context, unhandled, &exception);
    refusal = JSStringCreateWithUTF8CString("Code generation from strings is not allowed in sandbox");
    JSGlobalContextSetEvalEnabled(js.context, false, refusal);
    JSStringRelease(refusal);
    return 0;
}

/* The digests' tables are made at their first use, which must not be in a child: it may open no file. */
static void warm_digests(void)
{
    static const char *const names[] = {"md5", "sha1", "sha224", "sha256", "sha384", "sha512"};
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)HMAC(EVP_get_digestbyname(names[i]), "k", 1, (const unsigned char *)"d", 1, digest, &length);
}

/* The just-in-time compiler's own heap has a thread that gives memory back, whatever the environment says. A task ends
 * before it would matter. An engine without this switch shows by its thread. */
static void stop_scavenger(void)
{
    bool *enabled = dlsym(RTLD_DEFAULT, "pas_scavenger_is_enabled");

    if (enabled != NULL)
        *enabled = false;
}

/* The engine's timers wake a loop that never turns, by an eventfd. A child closes what is not its own, and the number
 * may be that of its result then: whatever the engine writes there has to go nowhere. The template keeps /dev/null open
 * in tasks. False: no memory of descriptors, or no /dev/null. */
static bool blind_wakeups(void)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    bool ok = dir != NULL;

    while (ok && (entry = readdir(dir)) != NULL) {
        char target[64];
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);
        int fd, null;

        if (n <= 0)
            continue; /* "." and ".." */
        target[n] = '\0';
        if (strcmp(target, "anon_inode:[eventfd]") != 0)
            continue;
        fd = (int)strtol(entry->d_name, NULL, 10);
        null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        ok = null >= 0 && dup3(null, fd, O_CLOEXEC) == fd;
        if (null >= 0)
            (void)close(null);
    }
    if (dir != NULL)
        (void)closedir(dir);
    return ok;
}

static int js_prepare(const char *const *modules, struct sk_error *err)
{
    int threads;

    if (!code_js_environment_set())
        return sk_fail(err, SK_ERR_INTERNAL, "the environment of the JavaScript engine was not set before the start");
    /* Without it a child would look for the machine's zone in files. */
    if (setenv("TZ", "UTC", 0) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "the time zone cannot be set");
    stop_scavenger();
    warm_digests();
    JSDisableGCTimer();
    js.context = JSGlobalContextCreate(NULL);
    if (js.context == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "the JavaScript engine does not start");
    if (load(modules, err) != 0)
        return -1;
    /* What was only needed for loading goes before the first task: a collection leaves the heap unswept, and a child
     * would copy every page that it sweeps. */
    JSSynchronousGarbageCollectForDebugging(js.context);
    if (!rehearse(REHEARSALS))
        return sk_fail(err, SK_ERR_INTERNAL, "a first JavaScript task failed");
    (void)malloc_trim(0);
    if (!blind_wakeups())
        return sk_fail(err, SK_ERR_INTERNAL, "the JavaScript engine's descriptors cannot be replaced");
    threads = thread_count();
    if (threads != 1)
        return sk_fail(err, SK_ERR_INTERNAL, "the JavaScript engine has %d threads, not one", threads);
    return 0;
}

const struct code_runtime code_runtime_js = {.name = "js", .prepare = js_prepare, .run = js_run};
