/* The functions of Python's C API that the bridge calls, declared by hand: the headers of Python
 * are not installed everywhere. All but PyGILState_Ensure's result type are of the limited API. */
#ifndef PYTHON_API_H
#define PYTHON_API_H
#include <stdint.h>

typedef struct _object PyObject;
typedef struct PyThreadState PyThreadState;
typedef intptr_t Py_ssize_t;
typedef int PyGILState_STATE;
typedef PyObject *(*PyCFunction)(PyObject *, PyObject *, PyObject *);

typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;

#define METH_VARARGS 0x0001
#define METH_KEYWORDS 0x0002

void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
PyObject *Py_BuildValue(const char *, ...);
int PyArg_ParseTupleAndKeywords(PyObject *, PyObject *, const char *, char **, ...);

PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
PyGILState_STATE PyGILState_Ensure(void);
void PyGILState_Release(PyGILState_STATE);

void PyErr_Clear(void);
PyObject *PyErr_Occurred(void);
void PyErr_SetObject(PyObject *, PyObject *);
void PyErr_SetString(PyObject *, const char *);
void PyErr_WriteUnraisable(PyObject *);
extern PyObject *PyExc_OverflowError, *PyExc_RuntimeError, *PyExc_ValueError;

PyObject *PyNumber_Index(PyObject *);
PyObject *PyBool_FromLong(long);
PyObject *PyFloat_FromDouble(double);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
long long PyLong_AsLongLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);

PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
int PyBytes_AsStringAndSize(PyObject *, char **, Py_ssize_t *);
PyObject *PyUnicode_FromString(const char *);
const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
PyObject *PyDict_GetItemString(PyObject *, const char *);
int PyDict_SetItemString(PyObject *, const char *, PyObject *);
int PyObject_SetAttrString(PyObject *, const char *, PyObject *);

PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
PyObject *PyObject_CallMethod(PyObject *, const char *, const char *, ...);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);
PyObject *PyCapsule_New(void *, const char *, void (*)(PyObject *));
const char *PyCapsule_GetName(PyObject *);
#endif
