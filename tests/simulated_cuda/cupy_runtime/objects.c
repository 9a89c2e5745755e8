/* Python objects: conversions, exceptions, and the installation of the trampolines. */
#include "runtime.h"

#include <limits.h>

static PyObject *helpers, *none;

PyObject *bridge_helper(const char *name) { return PyDict_GetItemString(helpers, name); }

PyObject *bridge_none(void) {
    Py_IncRef(none);
    return none;
}

PyObject *bridge_raise(int status) {
    PyObject *type = bridge_helper("CUDARuntimeError");
    PyObject *error = PyObject_CallFunction(type, "i", status);
    if (error) {
        PyErr_SetObject(type, error);
        Py_DecRef(error);
    }
    return NULL;
}

PyObject *bridge_refuse(const char *name) {
    PyObject *result = PyObject_CallFunction(bridge_helper("refuse"), "s", name);
    if (result) Py_DecRef(result); /* it raises */
    return NULL;
}

/* ---- from Python ------------------------------------------------------------------------------ */

/* Cython takes every number that has a method __int__, and no text. */
static PyObject *integer(PyObject *value) {
    PyObject *number = PyNumber_Index(value);
    if (number) return number;
    PyErr_Clear();
    return PyObject_CallMethod(value, "__int__", NULL);
}

static int convert(PyObject *value, long long least, long long most, long long *result) {
    PyObject *number = integer(value);
    if (!number) return 0;
    *result = PyLong_AsLongLong(number);
    Py_DecRef(number);
    if (*result == -1 && PyErr_Occurred()) return 0;
    if (*result >= least && *result <= most) return 1;
    PyErr_SetString(PyExc_OverflowError, "value too large to convert to the type of C");
    return 0;
}

int bridge_to_int(PyObject *value, int *result) {
    long long number = 0;
    int done = convert(value, INT_MIN, INT_MAX, &number);
    *result = (int)number;
    return done;
}

int bridge_to_unsigned_int(PyObject *value, unsigned int *result) {
    long long number = 0;
    int done = convert(value, 0, UINT_MAX, &number);
    *result = (unsigned int)number;
    return done;
}

int bridge_to_intptr_t(PyObject *value, intptr_t *result) {
    long long number = 0;
    int done = convert(value, INTPTR_MIN, INTPTR_MAX, &number);
    *result = (intptr_t)number;
    return done;
}

int bridge_to_uintmax_t(PyObject *value, uintmax_t *result) {
    PyObject *number = integer(value);
    if (!number) return 0;
    *result = PyLong_AsUnsignedLongLong(number);
    Py_DecRef(number);
    return !(*result == (uintmax_t)-1 && PyErr_Occurred());
}

int bridge_to_size_t(PyObject *value, size_t *result) {
    uintmax_t number = 0;
    int done = bridge_to_uintmax_t(value, &number);
    *result = number;
    return done;
}

int bridge_to_PyObject(PyObject *value, PyObject **result) {
    *result = value;
    return 1;
}

/* ---- to Python -------------------------------------------------------------------------------- */

PyObject *bridge_from_int(int value) { return PyLong_FromLongLong(value); }
PyObject *bridge_from_unsigned_int(unsigned int value) { return PyLong_FromLongLong(value); }
PyObject *bridge_from_intptr_t(intptr_t value) { return PyLong_FromLongLong(value); }
PyObject *bridge_from_size_t(size_t value) { return PyLong_FromUnsignedLongLong(value); }
PyObject *bridge_from_uintmax_t(uintmax_t value) { return PyLong_FromUnsignedLongLong(value); }
PyObject *bridge_from_float(float value) { return PyFloat_FromDouble(value); }

/* ---- installation ----------------------------------------------------------------------------- */

static int install_capsule(PyObject *capsules, const Trampoline *trampoline) {
    PyObject *replaced = PyDict_GetItemString(capsules, trampoline->name);
    /* The name, which is the signature, is a constant of CuPy's module. */
    PyObject *capsule = PyCapsule_New(trampoline->capsule, PyCapsule_GetName(replaced), NULL);
    if (!capsule) return -1;
    int status = PyDict_SetItemString(capsules, trampoline->name, capsule);
    Py_DecRef(capsule);
    return status;
}

static int install_method(PyObject *module, PyObject *module_name, Trampoline *trampoline) {
    PyObject *function = PyCFunction_NewEx(&trampoline->method, NULL, module_name);
    if (!function) return -1;
    int status = PyObject_SetAttrString(module, trampoline->name, function);
    Py_DecRef(function);
    return status;
}

/* Replace what CuPy's module publishes; returns None, or NULL with an exception. */
BRIDGE_EXPORT PyObject *bridge_install(PyObject *module, PyObject *module_name, PyObject *capsules,
                                       PyObject *given_helpers) {
    none = Py_BuildValue("");
    helpers = given_helpers;
    Py_IncRef(helpers);
    for (Trampoline *trampoline = bridge_trampolines; trampoline->name; trampoline++) {
        if (trampoline->capsule && install_capsule(capsules, trampoline)) return NULL;
        if (trampoline->method.ml_name && install_method(module, module_name, trampoline))
            return NULL;
    }
    return bridge_none();
}
