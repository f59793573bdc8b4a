/* SPDX-License-Identifier: Apache-2.0
 *
 * What the language itself refuses: imports of the user's code, and by the audit hook processes, sockets and files.
 * These give the messages that upstream gives and keep honest code honest; what holds is the kernel (contract/code.md
 * §3).
 *
 * The user's functions have a dict of builtins of their own, with this import in it; the libraries keep the real one.
 * So nobody has to look at stack frames to tell who imports. */
#include "services/code/python/internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool in_set(PyObject *set, PyObject *name)
{
    return PySet_Contains(set, name) == 1;
}

static bool is_heavy(PyObject *top)
{
    return PyUnicode_CompareWithASCIIString(top, "numpy") == 0 ||
           PyUnicode_CompareWithASCIIString(top, "pandas") == 0 ||
           PyUnicode_CompareWithASCIIString(top, "matplotlib") == 0;
}

/* Lean only: the task starts over in full, unless the broker has heard of it. */
static void move(PyObject *top)
{
    struct python_text text = {.limit = 256};

    if (python_state.requested) {
        PyErr_Format(PyExc_ImportError, "Module '%U' must be imported by name at the top", top);
        return;
    }
    python_text_puts(&text, "{\"move\":\"");
    python_text_escape_str(&text, top);
    python_text_puts(&text, "\"}");
    if (text.out_of_memory)
        python_finish_plain("memory", "Memory limit exceeded", "MemoryError");
    python_finish(text.bytes, text.used);
}

PyObject *python_guarded_import(PyObject *Py_UNUSED(self), PyObject *args, PyObject *keywords)
{
    static char words[][9] = {"name", "globals", "locals", "fromlist", "level"};
    static char *names[] = {words[0], words[1], words[2], words[3], words[4], NULL};
    PyObject *name, *globals = NULL, *locals = NULL, *from = NULL, *top, *result = NULL;
    int level = 0;
    Py_ssize_t dot;
    bool allowed;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "U|OOOi:__import__", names, &name, &globals, &locals, &from,
                                     &level))
        return NULL;
    if (level > 0)
        return PyErr_Format(PyExc_ImportError, "attempted relative import with no known parent package");
    dot = PyUnicode_FindChar(name, '.', 0, PyUnicode_GET_LENGTH(name), 1);
    top = PyUnicode_Substring(name, 0, dot < 0 ? PyUnicode_GET_LENGTH(name) : dot);
    if (top == NULL)
        return NULL;
    if (PyUnicode_CompareWithASCIIString(name, "builtins") == 0) {
        Py_DECREF(top);
        return Py_NewRef(python_state.proxy);
    }
    allowed =
        in_set(python_state.allowed, top) || (in_set(python_state.stdlib, top) && !in_set(python_state.denied, top));
    if (!allowed) {
        PyErr_Format(PyExc_ImportError, "Module '%U' is not in the allowlist.", name);
        goto out;
    }
    if (!python_state.full && is_heavy(top)) {
        move(top);
        goto out;
    }
    result = PyImport_ImportModuleLevelObject(name, globals, locals, from, 0);
out:
    Py_DECREF(top);
    return result;
}

/* Is it the user's own code that runs right now, not a library on its behalf? */
static bool user_calls(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    PyCodeObject *code;
    bool user;

    if (frame == NULL)
        return false;
    code = PyFrame_GetCode(frame);
    user = code->co_filename == python_state.filename ||
           (PyUnicode_Check(code->co_filename) && PyUnicode_CompareWithASCIIString(code->co_filename, "<string>") == 0);
    Py_DECREF(code);
    return user;
}

/* Below the task's directory, as far as the text of the path tells: links are the walls' affair. */
static bool in_tmp(PyObject *path)
{
    const char *text = NULL, *tmp = python_state.task->tmp_dir;
    PyObject *bytes = NULL;
    size_t length = strlen(tmp);
    bool in = false;

    if (PyUnicode_Check(path)) {
        bytes = PyUnicode_EncodeFSDefault(path);
        text = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    } else if (PyBytes_Check(path)) {
        text = PyBytes_AS_STRING(path);
    }
    PyErr_Clear();
    if (text != NULL && length > 1 && strncmp(text, tmp, length) == 0 && (text[length] == '/' || text[length] == '\0'))
        in = strstr(text, "/../") == NULL && (strlen(text) < 3 || strcmp(text + strlen(text) - 3, "/..") != 0);
    Py_XDECREF(bytes);
    return in;
}

static int refuse(const char *message)
{
    PyErr_SetString(PyExc_PermissionError, message);
    return -1;
}

#define NO_FILES  "File system access is not allowed in sandbox"
#define NO_WRITES "File writes are only allowed in the task temporary directory"

/* A file that is no library's business: those of the machine, but for a few that tell how to show things. In a sandbox
 * none of them is there; the message is the user's. */
static bool is_private(PyObject *path)
{
    static const char *const private[] = {"/etc/", "/proc/", "/sys/", "/root", "/home/", "/run/", "/var/", NULL};
    static const char *const shared[] = {
        "/etc/localtime", "/etc/timezone",          "/etc/fonts/", "/etc/matplotlibrc", "/etc/mime.types",
        "/etc/mailcap",   "/var/cache/fontconfig/", NULL};
    PyObject *bytes = PyUnicode_Check(path) ? PyUnicode_EncodeFSDefault(path) : Py_NewRef(path);
    const char *text = bytes != NULL && PyBytes_Check(bytes) ? PyBytes_AS_STRING(bytes) : "";
    bool found = false;

    PyErr_Clear();
    for (int i = 0; !found && private[i] != NULL; i++)
        found = strncmp(text, private[i], strlen(private[i])) == 0;
    for (int i = 0; found && shared[i] != NULL; i++)
        found = strncmp(text, shared[i], strlen(shared[i])) != 0;
    Py_XDECREF(bytes);
    return found;
}

static int audit_open(PyObject *args)
{
    PyObject *path, *mode;
    int flags;

    if (!PyArg_ParseTuple(args, "OOi", &path, &mode, &flags))
        return -1;
    if (PyLong_Check(path)) /* a descriptor: the child has none but its own two */
        return user_calls() ? refuse(NO_FILES) : 0;
    if (in_tmp(path))
        return 0;
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND)) != 0)
        return refuse(NO_WRITES);
    return user_calls() || is_private(path) ? refuse(NO_FILES) : 0;
}

/* Events of the os module: what starts or hits a process is refused, what changes files stays in the task's directory.
 */
static int audit_os(const char *event, PyObject *args)
{
    static const char *const processes[] = {"system", "exec",   "posix_spawn", "spawn", "fork",  "forkpty",
                                            "kill",   "killpg", "startfile",   "chdir", "fwalk", NULL};
    static const char *const changes[] = {"mkdir", "remove", "rename",  "rmdir",    "truncate",    "utime", "chmod",
                                          "chown", "link",   "symlink", "setxattr", "removexattr", NULL};

    for (int i = 0; processes[i] != NULL; i++) {
        if (strcmp(event, processes[i]) == 0) {
            PyErr_Format(PyExc_PermissionError, "os.%s is not allowed in sandbox", event);
            return -1;
        }
    }
    for (int i = 0; changes[i] != NULL; i++) {
        if (strcmp(event, changes[i]) != 0)
            continue;
        if (PyTuple_GET_SIZE(args) < 1 || !in_tmp(PyTuple_GET_ITEM(args, 0)) ||
            ((strcmp(event, "rename") == 0 || strcmp(event, "link") == 0 || strcmp(event, "symlink") == 0) &&
             (PyTuple_GET_SIZE(args) < 2 || !in_tmp(PyTuple_GET_ITEM(args, 1)))))
            return refuse(NO_WRITES);
        return 0;
    }
    if ((strcmp(event, "listdir") == 0 || strcmp(event, "scandir") == 0 || strcmp(event, "listxattr") == 0) &&
        user_calls() && (PyTuple_GET_SIZE(args) < 1 || !in_tmp(PyTuple_GET_ITEM(args, 0))))
        return refuse(NO_FILES);
    return 0;
}

int python_audit(const char *event, PyObject *args, void *Py_UNUSED(data))
{
    static const char *const refused[] = {"socket.", "ctypes.", "subprocess.", "pty.", "fcntl.", "mmap.", NULL};

    if (!python_state.active)
        return 0;
    if (strcmp(event, "open") == 0)
        return audit_open(args);
    if (strncmp(event, "os.", 3) == 0)
        return audit_os(event + 3, args);
    for (int i = 0; refused[i] != NULL; i++) {
        if (strncmp(event, refused[i], strlen(refused[i])) == 0) {
            PyErr_Format(PyExc_PermissionError, "%s is not allowed in sandbox", event);
            return -1;
        }
    }
    return 0;
}
