/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of Python as JSON (contract/code.md §4, reference A8). In C and by exact types, so that nothing a task
 * replaces (json, builtins, methods of a module) changes the form of its result; a value's own str() or isoformat() is
 * its affair. */
#include "services/code/python/internal.h"

#include <datetime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX    2000        /* beyond Python's own limit on recursion, which ends an encoding first */
#define SAFE_INTEGER (1LL << 53) /* up to here a double holds every integer */

static PyObject *path[DEPTH_MAX]; /* containers that are being encoded, outermost first: borrowed */
static int depth;

static bool encode(struct python_text *text, PyObject *value);

/* The type `name` of module `module`, when that is loaded. */
static PyObject *loaded(const char *module, const char *name)
{
    PyObject *modules = PyImport_GetModuleDict(), *found = PyDict_GetItemString(modules, module);

    return found == NULL ? NULL : PyObject_GetAttrString(found, name);
}

static bool load_type(PyTypeObject **slot, const char *module, const char *name)
{
    PyObject *type = loaded(module, name);

    if (type != NULL && !PyType_Check(type))
        Py_CLEAR(type);
    *slot = (PyTypeObject *)type;
    return !PyErr_Occurred();
}

bool python_encode_init(void)
{
    struct python_types *types = &python_state.types;

    PyDateTime_IMPORT;
    if (PyDateTimeAPI == NULL)
        return false;
    types->range = &PyRange_Type;
    if (!load_type(&types->decimal, "decimal", "Decimal") || !load_type(&types->deque, "collections", "deque") ||
        !load_type(&types->array, "array", "array") || !load_type(&types->numpy_generic, "numpy", "generic") ||
        !load_type(&types->numpy_array, "numpy", "ndarray") || !load_type(&types->frame, "pandas", "DataFrame") ||
        !load_type(&types->series, "pandas", "Series") || !load_type(&types->index, "pandas", "Index") ||
        !load_type(&types->extension, "pandas.api.extensions", "ExtensionArray"))
        return false;
    types->not_a_time = loaded("pandas", "NaT");
    types->not_available = loaded("pandas", "NA");
    return !PyErr_Occurred();
}

static bool is(PyObject *value, PyTypeObject *type)
{
    return type != NULL && PyObject_TypeCheck(value, type);
}

/* Appends a str that we own, quoted; false when it is NULL. */
static bool quote(struct python_text *text, PyObject *string)
{
    if (string == NULL)
        return false;
    if (!PyUnicode_Check(string)) {
        Py_DECREF(string);
        PyErr_SetString(PyExc_TypeError, "a value's text is not a str");
        return false;
    }
    python_text_puts(text, "\"");
    python_text_escape_str(text, string);
    python_text_puts(text, "\"");
    Py_DECREF(string);
    return true;
}

static bool encode_float(struct python_text *text, double number)
{
    char *digits;

    if (!isfinite(number)) {
        python_text_puts(text, "null");
        return true;
    }
    digits = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    if (digits == NULL)
        return false;
    python_text_puts(text, digits);
    PyMem_Free(digits);
    return true;
}

/* All digits, however many: an integer stays one, as the json module has it. */
static bool encode_int(struct python_text *text, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    const char *all;
    PyObject *string;
    Py_ssize_t length;
    char digits[32];

    if (number == -1 && overflow == 0 && PyErr_Occurred())
        return false;
    if (overflow == 0) {
        python_text_put(text, digits, (size_t)snprintf(digits, sizeof(digits), "%lld", number));
        return true;
    }
    string = PyLong_Type.tp_repr(value); /* not a subclass's own str(); the interpreter bounds the digits */
    all = string == NULL ? NULL : PyUnicode_AsUTF8AndSize(string, &length);
    if (all != NULL)
        python_text_put(text, all, (size_t)length);
    Py_XDECREF(string);
    return all != NULL;
}

/* A Decimal is a number when a double holds the very value. */
static bool encode_decimal(struct python_text *text, PyObject *value)
{
    PyObject *string = PyObject_Str(value), *again = NULL;
    const char *digits = string == NULL ? NULL : PyUnicode_AsUTF8(string);
    char *shortest = NULL, *end;
    bool ok = false;
    double number;
    int same;

    if (digits == NULL)
        goto out;
    if (strstr(digits, "NaN") != NULL || strstr(digits, "Inf") != NULL) {
        python_text_puts(text, "null");
        ok = true;
        goto out;
    }
    number = PyOS_string_to_double(digits, &end, NULL);
    if (number == -1.0 && PyErr_Occurred())
        goto out;
    if (*end == '\0' && fabs(number) <= (double)SAFE_INTEGER) {
        shortest = PyOS_double_to_string(number, 'r', 0, 0, NULL);
        again = shortest == NULL ? NULL : PyObject_CallFunction((PyObject *)python_state.types.decimal, "s", shortest);
        same = again == NULL ? -1 : PyObject_RichCompareBool(again, value, Py_EQ);
        if (same < 0)
            goto out;
        if (same == 1) {
            python_text_puts(text, shortest);
            ok = true;
            goto out;
        }
    }
    ok = quote(text, Py_NewRef(string));
out:
    PyMem_Free(shortest);
    Py_XDECREF(string);
    Py_XDECREF(again);
    return ok;
}

/* bytes -> base64, or as the interpreter shows it where the strict switch is on. */
static bool encode_bytes(struct python_text *text, PyObject *value)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    Py_buffer view;
    const unsigned char *bytes;

    if (python_state.task->strict)
        return quote(text, PyObject_Str(value));
    if (PyObject_GetBuffer(value, &view, PyBUF_CONTIG_RO) != 0)
        return false;
    bytes = view.buf;
    python_text_puts(text, "\"");
    for (Py_ssize_t i = 0; i < view.len && !text->over; i += 3) {
        Py_ssize_t rest = view.len - i;
        unsigned group = (unsigned)bytes[i] << 16 | (rest > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                         (rest > 2 ? (unsigned)bytes[i + 2] : 0);
        char four[4] = {digits[group >> 18], digits[group >> 12 & 63], rest > 1 ? digits[group >> 6 & 63] : '=',
                        rest > 2 ? digits[group & 63] : '='};

        python_text_put(text, four, sizeof(four));
    }
    python_text_puts(text, "\"");
    PyBuffer_Release(&view);
    return true;
}

static bool encode_time(struct python_text *text, PyObject *value)
{
    PyObject *string = python_state.task->strict ? PyObject_Str(value) : PyObject_CallMethod(value, "isoformat", NULL);

    return quote(text, string);
}

static bool encode_key(struct python_text *text, PyObject *key)
{
    PyObject *string;

    if (PyUnicode_Check(key))
        string = Py_NewRef(key);
    else if (key == Py_None)
        string = PyUnicode_FromString("null");
    else if (PyBool_Check(key))
        string = PyUnicode_FromString(key == Py_True ? "true" : "false");
    else
        string = PyObject_Str(key);
    return quote(text, string);
}

/* One pair of an object; `first` is cleared. Takes no reference. */
static bool encode_pair(struct python_text *text, PyObject *key, PyObject *value, bool *first)
{
    if (!*first)
        python_text_puts(text, ",");
    *first = false;
    if (!encode_key(text, key))
        return false;
    python_text_puts(text, ":");
    return encode(text, value);
}

/* A dict's own pairs, in place; a subclass is asked for its items, as the json module does. */
static bool encode_dict(struct python_text *text, PyObject *value)
{
    bool first = true, ok = true;
    PyObject *key, *item, *items;

    python_text_puts(text, "{");
    if (PyDict_CheckExact(value)) {
        Py_ssize_t at = 0, size = PyDict_GET_SIZE(value);

        while (ok && !text->over && PyDict_Next(value, &at, &key, &item)) {
            Py_INCREF(key);
            Py_INCREF(item);
            ok = encode_pair(text, key, item, &first);
            Py_DECREF(key);
            Py_DECREF(item);
            if (ok && PyDict_GET_SIZE(value) != size) {
                PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
                ok = false;
            }
        }
    } else {
        items = PyMapping_Items(value);
        if (items == NULL)
            return false;
        for (Py_ssize_t i = 0; ok && !text->over && i < PyList_GET_SIZE(items); i++) {
            PyObject *pair = Py_NewRef(PyList_GET_ITEM(items, i));

            if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2) {
                ok = encode_pair(text, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), &first);
            } else {
                PyErr_SetString(PyExc_ValueError, "items must return 2-tuples");
                ok = false;
            }
            Py_DECREF(pair);
        }
        Py_DECREF(items);
    }
    python_text_puts(text, "}");
    return ok;
}

/* A list or tuple, by index: it may change under us. */
static bool encode_list(struct python_text *text, PyObject *value)
{
    bool list = PyList_Check(value), ok = true;

    python_text_puts(text, "[");
    for (Py_ssize_t i = 0; ok && !text->over && i < (list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value)); i++) {
        PyObject *item = Py_NewRef(list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i));

        if (i > 0)
            python_text_puts(text, ",");
        ok = encode(text, item);
        Py_DECREF(item);
    }
    python_text_puts(text, "]");
    return ok;
}

/* Whatever gives its items one by one; those of a set in their own order where they have one. */
static bool encode_items(struct python_text *text, PyObject *value, bool sorted)
{
    PyObject *iterator, *item, *list;
    bool ok = true, first = true;

    if (sorted) {
        list = PySequence_List(value);
        if (list == NULL)
            return false;
        if (PyList_Sort(list) != 0) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
                Py_DECREF(list);
                return false;
            }
            PyErr_Clear();
        }
        ok = encode_list(text, list);
        Py_DECREF(list);
        return ok;
    }
    iterator = PyObject_GetIter(value);
    if (iterator == NULL)
        return false;
    python_text_puts(text, "[");
    while (ok && !text->over && (item = PyIter_Next(iterator)) != NULL) {
        if (!first)
            python_text_puts(text, ",");
        first = false;
        ok = encode(text, item);
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    python_text_puts(text, "]");
    return ok && !PyErr_Occurred();
}

/* Encodes what a method of the value gives, which is owned here. */
static bool encode_owned(struct python_text *text, PyObject *value)
{
    bool ok = value != NULL && encode(text, value);

    Py_XDECREF(value);
    return ok;
}

/* 'M' and 'm' are dates and spans of numpy, 0 when the value has no such kind. */
static int numpy_kind(PyObject *value)
{
    PyObject *dtype = PyObject_GetAttrString(value, "dtype");
    PyObject *kind = dtype == NULL ? NULL : PyObject_GetAttrString(dtype, "kind");
    int letter = kind != NULL && PyUnicode_Check(kind) && PyUnicode_GET_LENGTH(kind) == 1
                     ? (int)PyUnicode_READ_CHAR(kind, 0)
                     : 0;

    Py_XDECREF(dtype);
    Py_XDECREF(kind);
    PyErr_Clear();
    return letter;
}

/* The text of a date or span of numpy: NaT is null. */
static bool encode_numpy_time(struct python_text *text, PyObject *string)
{
    if (string != NULL && PyUnicode_Check(string) && PyUnicode_CompareWithASCIIString(string, "NaT") == 0) {
        Py_DECREF(string);
        python_text_puts(text, "null");
        return true;
    }
    return quote(text, string);
}

static bool encode_numpy_scalar(struct python_text *text, PyObject *value)
{
    int kind = numpy_kind(value);
    PyObject *plain;
    bool ok;

    if (kind == 'M' || kind == 'm')
        return encode_numpy_time(text, PyObject_Str(value));
    plain = PyObject_CallMethod(value, "item", NULL);
    if (plain != NULL && is(plain, python_state.types.numpy_generic)) /* long double stays what it is */
        Py_SETREF(plain, kind == 'f' ? PyNumber_Float(plain) : PyObject_Str(plain));
    ok = plain != NULL && encode(text, plain);
    Py_XDECREF(plain);
    return ok;
}

static bool encode_numpy_array(struct python_text *text, PyObject *value)
{
    int kind = numpy_kind(value);

    if (kind == 'M' || kind == 'm') {
        PyObject *dates = PyObject_CallMethod(value, "astype", "s", "U"), *nat = PyUnicode_FromString("NaT"), *where;
        bool ok;

        /* Every NaT becomes None before the list is made. */
        if (dates != NULL)
            Py_SETREF(dates, PyObject_CallMethod(dates, "astype", "s", "O"));
        where = dates == NULL || nat == NULL ? NULL : PyObject_RichCompare(dates, nat, Py_EQ);
        if (where != NULL && is(where, python_state.types.numpy_array) && PyObject_SetItem(dates, where, Py_None) != 0)
            Py_CLEAR(where);
        ok = where != NULL && encode_owned(text, PyObject_CallMethod(dates, "tolist", NULL));
        Py_XDECREF(dates);
        Py_XDECREF(nat);
        Py_XDECREF(where);
        return ok;
    }
    return encode_owned(text, PyObject_CallMethod(value, "tolist", NULL));
}

/* Containers and all that may call back; `path` guards against circles. */
static bool encode_deep(struct python_text *text, PyObject *value)
{
    const struct python_types *types = &python_state.types;

    if (PyDict_Check(value))
        return encode_dict(text, value);
    if (PyList_Check(value) || PyTuple_Check(value))
        return encode_list(text, value);
    if (PyAnySet_Check(value))
        return encode_items(text, value, true);
    if (is(value, types->numpy_array))
        return encode_numpy_array(text, value);
    if (is(value, types->numpy_generic))
        return encode_numpy_scalar(text, value);
    if (is(value, types->frame))
        return encode_owned(text, PyObject_CallMethod(value, "to_dict", "s", "records"));
    if (is(value, types->series) || is(value, types->index) || is(value, types->extension))
        return encode_owned(text, PyObject_CallMethod(value, "tolist", NULL));
    if (is(value, types->deque) || is(value, types->array) || is(value, types->range) || PyDictViewSet_Check(value) ||
        PyDictValues_Check(value))
        return encode_items(text, value, false);
    return quote(text, PyObject_Str(value));
}

static bool encode(struct python_text *text, PyObject *value)
{
    bool ok;

    if (text->over)
        return true; /* the caller looks */
    if (text->out_of_memory) {
        (void)PyErr_NoMemory();
        return false;
    }
    if (PyUnicode_Check(value))
        return quote(text, Py_NewRef(value));
    if (value == Py_None || value == python_state.types.not_a_time || value == python_state.types.not_available) {
        python_text_puts(text, "null");
        return true;
    }
    if (PyBool_Check(value)) {
        python_text_puts(text, value == Py_True ? "true" : "false");
        return true;
    }
    if (PyLong_Check(value))
        return encode_int(text, value);
    if (PyFloat_Check(value))
        return encode_float(text, PyFloat_AS_DOUBLE(value));
    if (PyBytes_Check(value) || PyByteArray_Check(value) || PyMemoryView_Check(value))
        return encode_bytes(text, value);
    if (PyDateTime_Check(value) || PyDate_Check(value) || PyTime_Check(value))
        return encode_time(text, value);
    if (is(value, python_state.types.decimal))
        return encode_decimal(text, value);
    for (int i = 0; i < depth; i++) {
        if (path[i] == value) {
            PyErr_SetString(PyExc_ValueError, "Circular reference detected");
            return false;
        }
    }
    if (depth >= DEPTH_MAX) {
        PyErr_SetString(PyExc_RecursionError, "result is nested too deeply");
        return false;
    }
    if (Py_EnterRecursiveCall(" while encoding the result") != 0)
        return false;
    path[depth++] = value;
    ok = encode_deep(text, value);
    depth--;
    Py_LeaveRecursiveCall();
    return ok;
}

bool python_encode(struct python_text *text, PyObject *value)
{
    if (!encode(text, value)) /* `depth` stays: a value's str() may come here again, by way of http_request */
        return false;
    if (text->out_of_memory) {
        (void)PyErr_NoMemory();
        return false;
    }
    return !text->over;
}
