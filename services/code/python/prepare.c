/* SPDX-License-Identifier: Apache-2.0
 *
 * The template's side of the Python runtime: starts the interpreter, loads every module (warm.py), takes hold of all
 * that a task needs later, runs one task to warm up, and freezes the heap, so that a child copies few pages. */
#include "services/code/python/internal.h"

#include "code_python_sources.h"
#include "services/code/python/task.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAIR_BYTES ((size_t)2 << 20) /* two arenas, one huge page */

/* What went wrong in Python, as an internal error; clears the exception. */
static int fail(struct sk_error *err, const char *what)
{
    PyObject *type, *value, *traceback, *text;

    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    text = value == NULL ? NULL : PyObject_Str(value);
    (void)sk_fail(err, SK_ERR_INTERNAL, "python: %s: %s: %s", what,
                  type != NULL && PyType_Check(type) ? ((PyTypeObject *)type)->tp_name : "error",
                  text == NULL || PyUnicode_AsUTF8(text) == NULL ? "unknown" : PyUnicode_AsUTF8(text));
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return -1;
}

/* Nothing of the template's environment reaches a task; what libraries read when they load is set here. */
static int set_environment(struct sk_error *err)
{
    static const char *const variables[][2] = {
        {"PATH", "/usr/bin:/bin"},    {"LANG", "C.UTF-8"},       {"OPENBLAS_NUM_THREADS", "1"},
        {"OMP_NUM_THREADS", "1"},     {"MKL_NUM_THREADS", "1"},  {"NUMEXPR_NUM_THREADS", "1"},
        {"NUMEXPR_MAX_THREADS", "1"}, {"BLIS_NUM_THREADS", "1"}, {"VECLIB_MAXIMUM_THREADS", "1"},
    };
    const char *zone = getenv("TZ");
    char *kept = zone == NULL ? NULL : strdup(zone);
    bool ok = clearenv() == 0;

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        ok = ok && setenv(variables[i][0], variables[i][1], 1) == 0;
    if (kept != NULL)
        ok = ok && setenv("TZ", kept, 1) == 0;
    free(kept);
    return ok ? 0 : sk_fail(err, SK_ERR_INTERNAL, "python: environment: %s", strerror(errno));
}

/* Python's small objects live in arenas of 1 MiB. While everything is loaded these come in pairs that a huge page can
 * take the place of (../pages.h); a task's own come alone. */
static struct {
    bool pairs;
    char *next; /* the second of a pair */
} arenas;

static void *arena_new(void *ctx, size_t size)
{
    char *found, *aligned;

    (void)ctx;
    if (arenas.next != NULL && size == PAIR_BYTES / 2) {
        found = arenas.next;
        arenas.next = NULL;
        return found;
    }
    if (!arenas.pairs || size != PAIR_BYTES / 2) {
        found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return found == MAP_FAILED ? NULL : found;
    }
    found = mmap(NULL, 2 * PAIR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        return NULL;
    aligned = found + (PAIR_BYTES - (uintptr_t)found % PAIR_BYTES) % PAIR_BYTES;
    if (aligned > found)
        (void)munmap(found, (size_t)(aligned - found));
    (void)munmap(aligned + PAIR_BYTES, (size_t)(found + PAIR_BYTES - aligned));
    arenas.next = aligned + PAIR_BYTES / 2;
    return aligned;
}

static void arena_free(void *ctx, void *arena, size_t size)
{
    (void)ctx;
    (void)munmap(arena, size);
}

static int start(struct sk_error *err)
{
    PyObjectArenaAllocator allocator = {.alloc = arena_new, .free = arena_free};
    PyPreConfig before;
    PyConfig config;
    PyStatus status;

    arenas.pairs = true;
    PyObject_SetArenaAllocator(&allocator);
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1; /* names of files and texts, whatever the locale */
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.write_bytecode = 0;
    config.install_signal_handlers = 0;
    config.parse_argv = 0;
    config.pathconfig_warnings = 0;
    status = Py_PreInitialize(&before);
    if (!PyStatus_Exception(status))
        status = PyConfig_SetBytesString(&config, &config.program_name, CODE_PYTHON_PREFIX "/bin/python3");
    if (!PyStatus_Exception(status) && PySys_AddAuditHook(python_audit, NULL) != 0)
        status = PyStatus_Error("audit hook");
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        return sk_fail(err, SK_ERR_INTERNAL, "python: %s", status.err_msg == NULL ? "cannot start" : status.err_msg);
    return 0;
}

/* Runs one of our own sources in a namespace of its own: a new reference, NULL with an exception set. */
static PyObject *run_source(const char *source, const char *name, PyObject *given)
{
    PyObject *code = Py_CompileString(source, name, Py_file_input), *space = PyDict_New(), *result = NULL;

    if (code == NULL || space == NULL || PyDict_SetItemString(space, "__builtins__", PyEval_GetBuiltins()) != 0)
        goto out;
    result = PyUnicode_FromString(name);
    if (result == NULL || PyDict_SetItemString(space, "__name__", result) != 0 ||
        (given != NULL && PyDict_Update(space, given) != 0)) {
        Py_CLEAR(result);
        goto out;
    }
    Py_SETREF(result, PyEval_EvalCode(code, space, space));
out:
    if (result == NULL)
        Py_CLEAR(space);
    Py_XDECREF(code);
    Py_XDECREF(result);
    return space;
}

/* Item `name` of a namespace, kept for good. */
static bool keep(PyObject **slot, PyObject *space, const char *name)
{
    PyObject *item = PyDict_GetItemString(space, name);

    if (item == NULL) {
        PyErr_Format(PyExc_SystemError, "no %s", name);
        return false;
    }
    *slot = Py_NewRef(item);
    return true;
}

static bool keep_attribute(PyObject **slot, const char *module, const char *name)
{
    PyObject *found = PyImport_ImportModule(module);

    *slot = found == NULL ? NULL : PyObject_GetAttrString(found, name);
    Py_XDECREF(found);
    return *slot != NULL;
}

static bool load_modules(const char *const *modules)
{
    PyObject *given = PyDict_New(), *names = PyList_New(0), *own = PyUnicode_FromString(CODE_TMP_DIR), *space = NULL,
             *result = NULL;
    bool ok = given != NULL && names != NULL && own != NULL;

    for (; ok && modules != NULL && *modules != NULL; modules++) {
        PyObject *name = PyUnicode_FromString(*modules);

        ok = name != NULL && PyList_Append(names, name) == 0;
        Py_XDECREF(name);
    }
    ok = ok && PyDict_SetItemString(given, "full", python_state.full ? Py_True : Py_False) == 0 &&
         PyDict_SetItemString(given, "modules", names) == 0 && PyDict_SetItemString(given, "own", own) == 0;
    space = ok ? run_source(code_python_warm, "warm.py", given) : NULL;
    if (space != NULL)
        result = PyObject_CallNoArgs(PyDict_GetItemString(space, "run"));
    python_state.allowed = result == NULL ? NULL : PyFrozenSet_New(names);
    ok = python_state.allowed != NULL && keep(&python_state.denied, space, "DENIED") &&
         keep_attribute(&python_state.stdlib, "sys", "stdlib_module_names");
    Py_XDECREF(given);
    Py_XDECREF(names);
    Py_XDECREF(own);
    Py_XDECREF(space);
    Py_XDECREF(result);
    return ok;
}

/* json.decoder.JSONDecoder().scan_once: text to values in C. */
static bool keep_scanner(void)
{
    PyObject *type, *decoder;

    if (!keep_attribute(&type, "json.decoder", "JSONDecoder"))
        return false;
    decoder = PyObject_CallNoArgs(type);
    Py_DECREF(type);
    python_state.scan = decoder == NULL ? NULL : PyObject_GetAttrString(decoder, "scan_once");
    Py_XDECREF(decoder);
    return python_state.scan != NULL;
}

static bool keep_seeds(void)
{
    PyObject *generator;
    bool ok;

    if (!keep_attribute(&generator, "random", "_inst"))
        return false;
    python_state.seed = PyObject_GetAttrString(generator, "seed");
    Py_DECREF(generator);
    ok = python_state.seed != NULL;
    if (ok && PyDict_GetItemString(PyImport_GetModuleDict(), "numpy") != NULL)
        ok = keep_attribute(&python_state.numpy_seed, "numpy.random", "seed");
    return ok;
}

/* The folders of the interpreter and of its packages, longest first: they never appear in a message. */
static bool keep_paths(void)
{
    static const char *const folders[] = {CODE_PYTHON_PREFIX "/lib/python3.11/lib-dynload/",
                                          CODE_PYTHON_PREFIX "/lib/python3/dist-packages/",
                                          CODE_PYTHON_PREFIX "/lib/python3.11/", CODE_PYTHON_PREFIX "/lib/python3/"};

    python_state.paths = PyTuple_New(sizeof(folders) / sizeof(folders[0]));
    if (python_state.paths == NULL)
        return false;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        PyObject *folder = PyUnicode_FromString(folders[i]);

        if (folder == NULL)
            return false;
        PyTuple_SET_ITEM(python_state.paths, (Py_ssize_t)i, folder);
    }
    return true;
}

/* The namespace of the user's code is that of the module __main__, where dataclasses and typing look for it. */
static bool make_namespace(PyObject *helpers)
{
    PyObject *main_module = PyImport_AddModule("__main__"), *given = PyDict_GetItemString(helpers, "given");

    if (main_module == NULL || given == NULL)
        return false;
    python_state.globals = Py_NewRef(PyModule_GetDict(main_module));
    return PyDict_Update(python_state.globals, given) == 0 &&
           PyDict_SetItemString(python_state.globals, "__builtins__", python_state.builtins) == 0;
}

static bool load_helpers(void)
{
    PyObject *given = PyDict_New(), *native = python_native_new(), *helpers = NULL, *rules = NULL, *handler = NULL;
    bool ok = given != NULL && native != NULL && PyDict_SetItemString(given, "native", native) == 0;

    helpers = ok ? run_source(code_python_helpers, "helpers.py", given) : NULL;
    rules = helpers == NULL ? NULL : run_source(code_python_rules, "rules.py", NULL);
    python_state.filename = PyUnicode_FromString("<string>");
    ok = rules != NULL && python_state.filename != NULL && keep(&python_state.check, rules, "check") &&
         keep(&python_state.bind, helpers, "bind") && keep(&python_state.builtins, helpers, "user_builtins") &&
         keep(&python_state.proxy, helpers, "builtins_proxy") && keep(&python_state.reserved, helpers, "reserved") &&
         keep(&python_state.finish_streams, helpers, "finish_streams") && make_namespace(helpers);
    handler = ok ? PyObject_GetAttrString(native, "on_timeout") : NULL;
    ok = handler != NULL && python_timer_init(handler);
    Py_XDECREF(given);
    Py_XDECREF(native);
    Py_XDECREF(helpers);
    Py_XDECREF(rules);
    Py_XDECREF(handler);
    return ok;
}

/* Packages of the system: site is not imported, so its folder is added here. */
static bool add_packages(void)
{
    PyObject *path = PySys_GetObject("path"),
             *folder = PyUnicode_FromString(CODE_PYTHON_PREFIX "/lib/python3/dist-packages");
    bool ok = path != NULL && folder != NULL && PyList_Append(path, folder) == 0;

    Py_XDECREF(folder);
    return ok;
}

/* -1 when there is no /proc to count in. */
static int count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;

    if (folder == NULL)
        return -1;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    (void)closedir(folder);
    return count;
}

/* A thread of a library may need a moment to end. */
static int one_thread(struct sk_error *err)
{
    int count = 0;

    for (int i = 0; i < 100; i++) {
        count = count_threads();
        if (count == 1 || count < 0)
            return 0;
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return sk_fail(err, SK_ERR_INTERNAL, "python: %d threads after loading", count);
}

static int freeze(struct sk_error *err)
{
    PyObject *gc = PyImport_ImportModule("gc"), *result;

    (void)PyGC_Collect();
    result = gc == NULL ? NULL : PyObject_CallMethod(gc, "freeze", NULL);
    Py_XDECREF(gc);
    if (result == NULL)
        return fail(err, "freeze");
    Py_DECREF(result);
    (void)malloc_trim(0); /* what loading left behind would count in every zygote */
    return 0;
}

static int prepare(bool full, const char *const *modules, struct sk_error *err)
{
    if (Py_IsInitialized())
        return sk_fail(err, SK_ERR_INTERNAL, "python: prepared twice");
    python_state.full = full;
    if (!python_log_init())
        return sk_fail(err, SK_ERR_INTERNAL, "python: log: %s", strerror(errno));
    if (set_environment(err) != 0 || start(err) != 0)
        return -1;
    if (!add_packages() || !load_modules(modules))
        return fail(err, "modules");
    if (!keep_scanner() || !keep_seeds() || !keep_paths() || !python_encode_init() ||
        !keep_attribute(&python_state.normalize, "unicodedata", "normalize") || !load_helpers())
        return fail(err, "helpers");
    if (!python_warm_up())
        return fail(err, "warm-up");
    if (freeze(err) != 0)
        return -1;
    arenas.pairs = false;
    return one_thread(err);
}

static int prepare_lean(const char *const *modules, struct sk_error *err)
{
    return prepare(false, modules, err);
}

static int prepare_full(const char *const *modules, struct sk_error *err)
{
    return prepare(true, modules, err);
}

const struct code_runtime code_runtime_python = {.name = "python", .prepare = prepare_lean, .run = python_run};
const struct code_runtime code_runtime_python_full = {
    .name = "python-full", .prepare = prepare_full, .run = python_run};
