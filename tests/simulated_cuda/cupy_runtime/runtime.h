/* What the files of the bridge share.
 *
 * A function of CuPy's module `cupy_backends.cuda.api.runtime` is answered by `runtime_<name>`, in
 * one of two forms. Parameters have the types of the capsule, without Cython's own.
 *
 *   int runtime_<name>(parameters, type *result)    no GIL; returns a cudaError_t
 *   PyObject *runtime_<name>(parameters)            has the GIL; NULL with an exception
 *
 * trampolines.py reads these definitions and writes the functions that CuPy and Python call. */
#ifndef RUNTIME_H
#define RUNTIME_H
#include "cuda_declarations.h"
#include "python_api.h"

#include <stdio.h>

#define BRIDGE_EXPORT __attribute__((visibility("default")))

/* Errors of the runtime API that no function of the driver API returns. */
enum {
    RUNTIME_INVALID_PITCH_VALUE = 12,
    RUNTIME_INVALID_MEMCPY_DIRECTION = 21,
    RUNTIME_INVALID_DEVICE = 101,
    RUNTIME_UNKNOWN = 999,
};

/* ---- trampolines.c, which is generated -------------------------------------------------------- */

typedef struct Trampoline {
    const char *name;
    void *capsule;      /* the C function for CuPy's other modules, or NULL */
    PyMethodDef method; /* the Python function; without a name if there is none */
} Trampoline;
extern Trampoline bridge_trampolines[]; /* ends with a NULL name */

/* ---- devices.c -------------------------------------------------------------------------------- */

/* Return the cudaError_t of a CUresult. */
int bridge_status(CUresult status);
/* Make the primary context of the thread's device current, unless a context is. */
int bridge_context(void);
/* Get the primary context of a device, which the bridge retains on first use. */
int bridge_primary(int device, CUcontext *result);

#define BRIDGE_TRY(call)                                                                           \
    do {                                                                                           \
        int bridge_result = (call);                                                                \
        if (bridge_result) return bridge_result;                                                   \
    } while (0)
/* In a context, return the translated status of a call of the driver. */
#define BRIDGE_CALL(call)                                                                          \
    do {                                                                                           \
        BRIDGE_TRY(bridge_context());                                                              \
        return bridge_status(call);                                                                \
    } while (0)

/* ---- objects.c -------------------------------------------------------------------------------- */

/* Return a borrowed Python object that `bridge_install` was given. */
PyObject *bridge_helper(const char *name);
/* Set CUDARuntimeError(status) as the exception; returns NULL. */
PyObject *bridge_raise(int status);
/* Set the exception of a function that the simulation does not have; returns NULL. */
PyObject *bridge_refuse(const char *name);
PyObject *bridge_none(void);

/* Converters of PyArg_ParseTupleAndKeywords ("O&"), and the other way, named after the types. */
int bridge_to_int(PyObject *value, int *result);
int bridge_to_unsigned_int(PyObject *value, unsigned int *result);
int bridge_to_intptr_t(PyObject *value, intptr_t *result);
int bridge_to_size_t(PyObject *value, size_t *result);
int bridge_to_uintmax_t(PyObject *value, uintmax_t *result);
int bridge_to_PyObject(PyObject *value, PyObject **result);
PyObject *bridge_from_int(int value);
PyObject *bridge_from_unsigned_int(unsigned int value);
PyObject *bridge_from_intptr_t(intptr_t value);
PyObject *bridge_from_size_t(size_t value);
PyObject *bridge_from_uintmax_t(uintmax_t value);
PyObject *bridge_from_float(float value);
#endif
