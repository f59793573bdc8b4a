/* SPDX-License-Identifier: Apache-2.0
 *
 * What the helpers in Python cannot do themselves: add to the log, and talk to the broker. */
#include "services/code/python/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

/* print(*args, **ignored): str() of each, joined by a space. */
static PyObject *native_print(PyObject *Py_UNUSED(self), PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *parts = PyList_New(0), *space = NULL, *line = NULL;
    bool ok = parts != NULL;

    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(args); i++) {
        PyObject *part = PyObject_Str(PyTuple_GET_ITEM(args, i));

        ok = part != NULL && PyList_Append(parts, part) == 0;
        Py_XDECREF(part);
    }
    space = ok ? PyUnicode_FromString(" ") : NULL;
    line = space == NULL ? NULL : PyUnicode_Join(space, parts);
    ok = line != NULL && (!python_state.active || python_log_line(line));
    Py_XDECREF(parts);
    Py_XDECREF(space);
    Py_XDECREF(line);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* Waits for the broker's answer; between two waits the interpreter looks for the time-out. */
static bool wait_readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};

    while (poll(&wait, 1, -1) < 0) {
        if (errno != EINTR) {
            PyErr_SetFromErrno(PyExc_OSError);
            return false;
        }
        if (PyErr_CheckSignals() != 0)
            return false;
    }
    return true;
}

/* rpc(request: dict) -> answer: dict. RuntimeError when the count is spent or the broker is gone. */
static PyObject *native_rpc(PyObject *Py_UNUSED(self), PyObject *request)
{
    const struct code_limits *limits = &python_state.task->limits;
    struct python_text text = {.limit = (size_t)limits->request_body_bytes * 6 + PYTHON_RPC_EXTRA};
    int fd = python_state.channel->rpc;
    PyObject *source = NULL, *answer = NULL, *pair = NULL;
    char *json = NULL;
    size_t length;

    if (!python_state.active || python_state.requests >= limits->request_max)
        return PyErr_Format(PyExc_RuntimeError, "Request limit exceeded");
    python_state.requests++;
    if (!python_encode(&text, request)) {
        free(text.bytes);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "Request body too large");
    }
    python_state.requested = true;
    if (!code_frame_write(fd, text.bytes, text.used)) {
        PyErr_SetString(PyExc_RuntimeError, "Request failed");
        goto out;
    }
    if (!wait_readable(fd))
        goto out;
    if (!code_frame_read(fd, (size_t)limits->response_bytes * 6 + PYTHON_RPC_EXTRA, &json, &length)) {
        if (errno == ENOMEM)
            (void)PyErr_NoMemory();
        else
            PyErr_SetString(PyExc_RuntimeError, "Request failed");
        goto out;
    }
    source = PyUnicode_DecodeUTF8(json, (Py_ssize_t)length, "replace");
    pair = source == NULL ? NULL : PyObject_CallFunction(python_state.scan, "Oi", source, 0);
    if (pair != NULL)
        answer = Py_NewRef(PyTuple_GET_ITEM(pair, 0));
out:
    free(text.bytes);
    free(json);
    Py_XDECREF(source);
    Py_XDECREF(pair);
    return answer;
}

static PyObject *native_tmp_dir(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    return PyUnicode_DecodeFSDefault(python_state.active ? python_state.task->tmp_dir : "");
}

static PyObject *native_body_max(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong(python_state.active ? python_state.task->limits.request_body_bytes : 0);
}

/* A cast that tells the compiler that the table below is right. */
static PyCFunction with_keywords(PyCFunctionWithKeywords function)
{
    union {
        PyCFunctionWithKeywords from;
        PyCFunction to;
    } cast = {.from = function};

    return cast.to;
}

PyObject *python_native_new(void)
{
    static PyMethodDef methods[] = {
        {"rpc", native_rpc, METH_O, NULL},
        {"tmp_dir", native_tmp_dir, METH_NOARGS, NULL},
        {"body_max", native_body_max, METH_NOARGS, NULL},
        {"on_timeout", python_on_timeout, METH_VARARGS, NULL},
        {"print", NULL, METH_VARARGS | METH_KEYWORDS, "print(*values): one line of the log"},
        {"__import__", NULL, METH_VARARGS | METH_KEYWORDS, NULL},
        {NULL, NULL, 0, NULL},
    };
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "sandbox", .m_size = -1, .m_methods = methods};

    methods[4].ml_meth = with_keywords(native_print);
    methods[5].ml_meth = with_keywords(python_guarded_import);
    return PyModule_Create(&definition);
}
