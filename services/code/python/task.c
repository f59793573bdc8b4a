/* SPDX-License-Identifier: Apache-2.0
 *
 * One task in a forked child: seeds, timer, rules, compile, the module's own code, the call of main by the names of its
 * parameters (reference A6), and the result. */
#include "services/code/python/task.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define NESTING_PROBE (16 << 20)

bool python_timer_init(PyObject *handler)
{
    PyObject *module = PyImport_ImportModule("_signal"), *old;

    old = module == NULL ? NULL : PyObject_CallMethod(module, "signal", "iO", SIGALRM, handler);
    Py_XDECREF(module);
    if (old == NULL)
        return false;
    Py_DECREF(old);
    return true;
}

/* The generators of the template would give the same numbers to every task. */
static bool reseed(const unsigned char seed[CODE_SEED_SIZE])
{
    PyObject *number = _PyLong_FromByteArray(seed, CODE_SEED_SIZE, 1, 0), *result, *list;

    result = number == NULL ? NULL : PyObject_CallOneArg(python_state.seed, number);
    Py_XDECREF(number);
    if (result == NULL)
        return false;
    Py_DECREF(result);
    if (python_state.numpy_seed == NULL)
        return true;
    list = PyList_New(CODE_SEED_SIZE / 4);
    for (Py_ssize_t i = 0; list != NULL && i < CODE_SEED_SIZE / 4; i++) {
        uint32_t part;

        /* Not the words that `random` got: the two generators are of one kind. */
        memcpy(&part, seed + i * 4, sizeof(part));
        number = PyLong_FromUnsignedLong(~part);
        if (number == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, number);
    }
    result = list == NULL ? NULL : PyObject_CallOneArg(python_state.numpy_seed, list);
    Py_XDECREF(list);
    Py_XDECREF(result);
    return result != NULL;
}

static bool holds(const char *text, size_t length, const char *word)
{
    return memmem(text, length, word, strlen(word)) != NULL;
}

/* Does the source hold a word that the rules on the tree are about? Identifiers are compared in NFKC by Python, so that
 * is what is searched when the text is not ASCII. -1 with an exception set. */
static int needs_rules(PyObject *source, bool strict)
{
    static const char *const words[] = {"__",      "getattr", "setattr", "delattr",    "eval", "exec", "compile",
                                        "globals", "locals",  "input",   "breakpoint", "vars", "dir",  "super"};
    const size_t always = sizeof(words) / sizeof(words[0]) - 3; /* the last three: strict only */
    PyObject *normal = Py_NewRef(source);
    const char *text;
    Py_ssize_t length;
    int found = 0;

    if (!PyUnicode_IS_ASCII(source))
        Py_SETREF(normal, PyObject_CallFunction(python_state.normalize, "sO", "NFKC", source));
    text = normal == NULL ? NULL : PyUnicode_AsUTF8AndSize(normal, &length);
    if (text == NULL)
        found = -1;
    for (size_t i = 0; found == 0 && i < always + (strict ? 3 : 0); i++)
        found = holds(text, (size_t)length, words[i]) ? 1 : 0;
    Py_XDECREF(normal);
    return found;
}

/* The parser calls its own limit of nesting a lack of memory; a real one still shows a moment later. */
static void tell_nesting(void)
{
    void *probe;

    if (!PyErr_ExceptionMatches(PyExc_MemoryError))
        return;
    probe = malloc(NESTING_PROBE);
    if (probe != NULL)
        PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded during compilation");
    free(probe);
}

/* The code object of a source, after the rules: a new reference. */
static PyObject *compile(const char *code, size_t length, bool strict)
{
    PyCompilerFlags flags = {.cf_flags = PyCF_SOURCE_IS_UTF8 | PyCF_IGNORE_COOKIE,
                             .cf_feature_version = PY_MINOR_VERSION};
    PyObject *source, *result;
    int rules;

    if (length >= 3 && memcmp(code, "\xef\xbb\xbf", 3) == 0) {
        code += 3;
        length -= 3;
    }
    if (memchr(code, '\0', length) != NULL)
        return PyErr_Format(PyExc_ValueError, "source code string cannot contain null bytes");
    source = PyUnicode_DecodeUTF8(code, (Py_ssize_t)length, NULL);
    if (source == NULL)
        return NULL;
    rules = needs_rules(source, strict);
    if (rules < 0)
        result = NULL;
    else if (rules > 0)
        result = PyObject_CallFunction(python_state.check, "OOO", source, strict ? Py_True : Py_False,
                                       python_state.filename);
    else
        result = Py_CompileStringObject(code, python_state.filename, Py_file_input, &flags, -1);
    if (result == NULL)
        tell_nesting();
    Py_DECREF(source);
    return result;
}

static PyObject *missing(PyObject *name)
{
    return PyErr_Format(PyExc_TypeError, "Missing required argument: %R", name);
}

/* Keyword arguments of a plain function with two parameters or more: those that the variables name. */
static PyObject *keywords_of(PyFunctionObject *function, PyCodeObject *code, PyObject *names, PyObject *variables)
{
    PyObject *keywords = PyDict_New();
    Py_ssize_t total = code->co_argcount + code->co_kwonlyargcount;
    Py_ssize_t defaults = function->func_defaults == NULL ? 0 : PyTuple_GET_SIZE(function->func_defaults);

    for (Py_ssize_t i = 0; keywords != NULL && i < total; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *value = PyDict_GetItemWithError(variables, name);
        bool has_default = i < code->co_argcount ? i >= code->co_argcount - defaults
                                                 : function->func_kwdefaults != NULL &&
                                                       PyDict_Contains(function->func_kwdefaults, name) == 1;

        if (value != NULL) {
            if (PyDict_SetItem(keywords, name, value) != 0)
                Py_CLEAR(keywords);
        } else if (PyErr_Occurred() || !has_default) {
            if (!PyErr_Occurred())
                (void)missing(name);
            Py_CLEAR(keywords);
        }
    }
    return keywords;
}

/* Calls `main` as its parameters ask; the usual forms here, all others by helpers.bind. */
static PyObject *call_main(PyObject *function, PyObject *variables)
{
    PyObject *pair, *result, *names, *keywords, *value;
    PyFunctionObject *plain = (PyFunctionObject *)function;
    PyCodeObject *code;
    Py_ssize_t count;

    if (PyFunction_Check(function) && (plain->func_dict == NULL || PyDict_GET_SIZE(plain->func_dict) == 0)) {
        code = (PyCodeObject *)PyFunction_GET_CODE(function);
        count = code->co_argcount + code->co_kwonlyargcount;
        if (code->co_posonlyargcount == 0 && (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) == 0 &&
            (code->co_kwonlyargcount == 0 || count > 1)) {
            if (count == 0)
                return PyObject_CallNoArgs(function);
            names = PyCode_GetVarnames(code);
            if (names == NULL)
                return NULL;
            if (count == 1) {
                value = PyDict_GetItemWithError(variables, PyTuple_GET_ITEM(names, 0));
                result = PyErr_Occurred() ? NULL : PyObject_CallOneArg(function, value == NULL ? variables : value);
            } else {
                keywords = keywords_of(plain, code, names, variables);
                result = keywords == NULL ? NULL : PyObject_VectorcallDict(function, NULL, 0, keywords);
                Py_XDECREF(keywords);
            }
            Py_DECREF(names);
            return result;
        }
    }
    pair = PyObject_CallFunctionObjArgs(python_state.bind, function, variables, NULL);
    if (pair == NULL)
        return NULL;
    result = PyObject_Call(function, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    Py_DECREF(pair);
    return result;
}

/* What an `async def main` gives: driven to its end; it can wait for nothing but coroutines of its own. */
static PyObject *drive(PyObject *coroutine)
{
    PyObject *result = NULL;
    PySendResult sent = PyIter_Send(coroutine, Py_None, &result);

    if (sent == PYGEN_RETURN)
        return result;
    if (sent == PYGEN_NEXT) {
        Py_XDECREF(result);
        PyErr_SetString(PyExc_RuntimeError, "async main waits for something that is not a coroutine of its own");
    }
    return NULL;
}

/* Sets each variable as a global too, unless its name is taken (the legacy style of A6). */
static bool set_globals(PyObject *globals, PyObject *variables)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;

    while (PyDict_Next(variables, &at, &name, &value)) {
        int reserved = PySet_Contains(python_state.reserved, name);

        if (reserved < 0)
            return false;
        if (reserved == 0 &&
            !(PyUnicode_GET_LENGTH(name) > 2 && PyUnicode_READ_CHAR(name, 0) == '_' &&
              PyUnicode_READ_CHAR(name, 1) == '_') &&
            PyDict_SetItem(globals, name, value) != 0)
            return false;
    }
    return PyDict_SetItemString(globals, "variables", variables) == 0;
}

/* The text of the variables: a new dict. */
static PyObject *parse_variables(const char *text, size_t length)
{
    PyObject *source = PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace"), *pair, *variables = NULL;
    Py_ssize_t start = 0;

    if (source == NULL)
        return NULL;
    while (start < (Py_ssize_t)length && isspace((unsigned char)text[start]))
        start++;
    pair = PyObject_CallFunction(python_state.scan, "On", source, start);
    Py_DECREF(source);
    if (pair == NULL)
        return NULL;
    variables = Py_NewRef(PyTuple_GET_ITEM(pair, 0));
    Py_DECREF(pair);
    if (!PyDict_CheckExact(variables)) {
        Py_DECREF(variables);
        return PyErr_Format(PyExc_ValueError, "variables are not an object");
    }
    return variables;
}

/* The whole way from text to the value of main. */
static PyObject *execute(const struct code_task *task, PyObject *globals)
{
    PyObject *variables = parse_variables(task->variables, task->variables_length), *code = NULL, *result = NULL,
             *function, *folder = NULL;

    if (variables == NULL)
        return NULL;
    folder = PyUnicode_DecodeFSDefault(task->tmp_dir);
    if (folder == NULL || !set_globals(globals, variables) || PyDict_SetItemString(globals, "task_tmpdir", folder) != 0)
        goto out;
    code = compile(task->code, task->code_length, task->strict);
    if (code == NULL)
        goto out;
    result = PyEval_EvalCode(code, globals, globals);
    if (result == NULL)
        goto out;
    Py_CLEAR(result);
    function = PyDict_GetItemString(globals, "main");
    if (function == NULL || !PyCallable_Check(function)) {
        PyErr_SetString(PyExc_NameError, "No 'main' function defined");
        goto out;
    }
    Py_INCREF(function);
    result = call_main(function, variables);
    Py_DECREF(function);
    if (result != NULL && PyCoro_CheckExact(result))
        Py_SETREF(result, drive(result));
out:
    Py_XDECREF(variables);
    Py_XDECREF(code);
    Py_XDECREF(folder);
    return result;
}

/* The frame of a value; `text` is the caller's to free. False: too much output, or an exception is set. */
static bool encode_result(struct python_text *text, PyObject *value)
{
    PyObject *finished;

    python_text_puts(text, "{\"ok\":true,\"value\":");
    if (!python_encode(text, value))
        return false;
    /* Now that no code of the user's runs any more the log is whole. */
    finished = PyObject_CallNoArgs(python_state.finish_streams);
    if (finished == NULL)
        PyErr_Clear();
    Py_XDECREF(finished);
    python_text_puts(text, ",\"log\":\"");
    python_text_put(text, python_state.log + PYTHON_FRAME_HEAD, python_state.log_used);
    python_text_puts(text, "\"}");
    if (text->out_of_memory)
        (void)PyErr_NoMemory();
    return !text->over && !text->out_of_memory;
}

/* Whatever the zygote did with signals: the alarm is ours and comes. */
static void start_timer(int64_t ms)
{
    struct sigaction action = {.sa_handler = python_on_alarm};
    sigset_t alarm_only;
    struct itimerval timer = {
        .it_value = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000},
        .it_interval = {.tv_sec = PYTHON_GRACE_MS / 1000, .tv_usec = PYTHON_GRACE_MS % 1000 * 1000},
    };

    (void)sigemptyset(&action.sa_mask);
    (void)sigemptyset(&alarm_only);
    (void)sigaddset(&alarm_only, SIGALRM);
    (void)sigaction(SIGALRM, &action, NULL);
    (void)sigprocmask(SIG_UNBLOCK, &alarm_only, NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* a broker that has gone is an error of one request */
    (void)signal(SIGXFSZ, SIG_IGN); /* a file beyond its limit likewise: EFBIG */
    if (ms > 0)
        (void)setitimer(ITIMER_REAL, &timer, NULL);
}

void python_run(const struct code_task *task, const struct code_channel *channel)
{
    struct python_text text = {.limit = (size_t)task->limits.output_bytes};
    char message[96];
    PyObject *value;

    python_state.task = task;
    python_state.channel = channel;
    start_timer(task->limits.timeout_ms);
    if (!reseed(task->seed))
        python_fail();
    python_state.active = true;
    value = execute(task, python_state.globals);
    if (value == NULL || !encode_result(&text, value)) {
        if (text.over && !PyErr_Occurred()) {
            (void)snprintf(message, sizeof(message), "Output too large (limit: %lld bytes)",
                           (long long)task->limits.output_bytes);
            python_fail_with("output", message, "OutputError", 0);
        }
        free(text.bytes);
        python_fail();
    }
    python_finish(text.bytes, text.used);
}

/* One small task in a namespace that is thrown away. Only what is quickened and cached stays. */
static bool warm_once(const char *code)
{
    struct code_task task = {.code = code,
                             .code_length = strlen(code),
                             .variables = "{\"a\": 1, \"b\": [\"x\", 2.5, null, true, {\"c\": \"\xe4\xb8\xad\"}]}",
                             .tmp_dir = ""};
    struct code_channel channel = {.result = -1, .rpc = -1};
    struct python_text text = {.limit = 1 << 16};
    PyObject *globals = PyDict_Copy(python_state.globals), *value = NULL;
    bool ok;

    task.variables_length = strlen(task.variables);
    python_state.task = &task;
    python_state.channel = &channel;
    value = globals == NULL ? NULL : execute(&task, globals);
    ok = value != NULL && encode_result(&text, value);
    python_state.task = NULL;
    python_state.channel = NULL;
    free(text.bytes);
    Py_XDECREF(globals);
    Py_XDECREF(value);
    return ok;
}

bool python_warm_up(void)
{
    static const char *const codes[] = {
        "def main(a, b):\n    print('x', a)\n    return {'result': a, 'b': b}\n",
        "import json, re, datetime\nfrom math import sqrt\ndef main(variables):\n    s = {i: str(i) for i in "
        "range(9)}\n"
        "    try:\n        {}['x']\n    except KeyError as e:\n        pass\n"
        "    return [json.dumps(s), sqrt(2), f'{a:>3}', (1, 2), {1, 2}, b'x']\n",
        "class A:\n    def __init__(self): self.x = getattr(self, 'y', 1)\ndef main(**all): return [A().x, *all]\n",
    };

    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
            if (!warm_once(codes[i]))
                return false;
        }
    }
    return true;
}
