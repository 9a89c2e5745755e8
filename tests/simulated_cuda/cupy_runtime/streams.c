/* Streams, events, host functions and graphs (CUDA Runtime API, sections 6.4, 6.5 and 6.30). */
#include "runtime.h"

#include <string.h>

/* ---- streams ---------------------------------------------------------------------------------- */

int runtime_streamCreate(intptr_t *result) {
    BRIDGE_CALL(cuStreamCreate((CUstream *)result, CU_STREAM_DEFAULT));
}

int runtime_streamCreateWithFlags(unsigned int flags, intptr_t *result) {
    BRIDGE_CALL(cuStreamCreate((CUstream *)result, flags));
}

int runtime_streamCreateWithPriority(unsigned int flags, int priority, intptr_t *result) {
    BRIDGE_CALL(cuStreamCreateWithPriority((CUstream *)result, flags, priority));
}

int runtime_streamGetFlags(intptr_t stream, unsigned int *result) {
    BRIDGE_CALL(cuStreamGetFlags((CUstream)stream, result));
}

int runtime_streamGetPriority(intptr_t stream, int *result) {
    BRIDGE_CALL(cuStreamGetPriority((CUstream)stream, result));
}

int runtime_streamDestroy(intptr_t stream) { BRIDGE_CALL(cuStreamDestroy((CUstream)stream)); }

int runtime_streamSynchronize(intptr_t stream) {
    BRIDGE_CALL(cuStreamSynchronize((CUstream)stream));
}

/* CuPy returns the status of a query instead of raising it. */
int runtime_streamQuery(intptr_t stream, int *result) {
    *result = bridge_context();
    if (!*result) *result = bridge_status(cuStreamQuery((CUstream)stream));
    return 0;
}

int runtime_streamWaitEvent(intptr_t stream, intptr_t event, unsigned int flags) {
    BRIDGE_CALL(cuStreamWaitEvent((CUstream)stream, (CUevent)event, flags));
}

/* ---- host functions --------------------------------------------------------------------------- */

static void report(PyObject *function, PyObject *result) {
    if (result)
        Py_DecRef(result);
    else
        PyErr_WriteUnraisable(function);
}

/* Functions of a stream get a tuple (function, argument). */
static void call_unmanaged(void *pair) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *function = PyTuple_GetItem(pair, 0), *argument = PyTuple_GetItem(pair, 1);
    report(function, PyObject_CallFunctionObjArgs(function, argument, NULL));
    PyGILState_Release(state);
}

static void call_and_release(void *pair) {
    PyGILState_STATE state = PyGILState_Ensure();
    call_unmanaged(pair);
    Py_DecRef(pair);
    PyGILState_Release(state);
}

static void call_with_status(CUstream stream, CUresult status, void *pair) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *function = PyTuple_GetItem(pair, 0), *argument = PyTuple_GetItem(pair, 1);
    report(function, PyObject_CallFunction(function, "LiO", (long long)(intptr_t)stream,
                                           bridge_status(status), argument));
    Py_DecRef(pair);
    PyGILState_Release(state);
}

static int launch(CUstream stream, CUhostFn function, PyObject *pair) {
    PyThreadState *thread = PyEval_SaveThread();
    int status = bridge_context();
    if (!status) status = bridge_status(cuLaunchHostFunc(stream, function, pair));
    PyEval_RestoreThread(thread);
    return status;
}

PyObject *runtime__launchHostFuncUnmanaged(intptr_t stream, PyObject *func_arg) {
    int status = launch((CUstream)stream, call_unmanaged, func_arg);
    return status ? bridge_raise(status) : bridge_none();
}

PyObject *runtime_launchHostFunc(intptr_t stream, PyObject *callback, intptr_t arg) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    PyObject *pair = Py_BuildValue("OL", callback, (long long)arg);
    if (!pair) return NULL;
    if (!bridge_context()) cuStreamIsCapturing((CUstream)stream, &capture);
    /* A graph may run the function many times, or never: its tuple is kept for good. */
    bool is_captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    int status = launch((CUstream)stream, is_captured ? call_unmanaged : call_and_release, pair);
    if (!status) return bridge_none();
    Py_DecRef(pair);
    return bridge_raise(status);
}

PyObject *runtime_streamAddCallback(intptr_t stream, PyObject *callback, intptr_t arg,
                                    unsigned int flags) {
    PyObject *pair = Py_BuildValue("OL", callback, (long long)arg);
    if (!pair) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    int status = bridge_context();
    if (!status)
        status = bridge_status(
            cuStreamAddCallback((CUstream)stream, call_with_status, pair, flags));
    PyEval_RestoreThread(thread);
    if (!status) return bridge_none();
    Py_DecRef(pair);
    return bridge_raise(status);
}

/* ---- events ----------------------------------------------------------------------------------- */

int runtime_eventCreate(intptr_t *result) {
    BRIDGE_CALL(cuEventCreate((CUevent *)result, CU_EVENT_DEFAULT));
}

int runtime_eventCreateWithFlags(unsigned int flags, intptr_t *result) {
    BRIDGE_CALL(cuEventCreate((CUevent *)result, flags));
}

int runtime_eventDestroy(intptr_t event) { BRIDGE_CALL(cuEventDestroy((CUevent)event)); }

int runtime_eventElapsedTime(intptr_t start, intptr_t end, float *result) {
    BRIDGE_CALL(cuEventElapsedTime(result, (CUevent)start, (CUevent)end));
}

int runtime_eventQuery(intptr_t event, int *result) {
    *result = bridge_context();
    if (!*result) *result = bridge_status(cuEventQuery((CUevent)event));
    return 0;
}

int runtime_eventRecord(intptr_t event, intptr_t stream) {
    BRIDGE_CALL(cuEventRecord((CUevent)event, (CUstream)stream));
}

int runtime_eventSynchronize(intptr_t event) { BRIDGE_CALL(cuEventSynchronize((CUevent)event)); }

PyObject *runtime_ipcGetEventHandle(intptr_t event) {
    CUipcEventHandle handle;
    int status = bridge_context();
    if (!status) status = bridge_status(cuIpcGetEventHandle(&handle, (CUevent)event));
    return status ? bridge_raise(status)
                  : PyBytes_FromStringAndSize((char *)&handle, sizeof handle);
}

PyObject *runtime_ipcOpenEventHandle(PyObject *handle) {
    CUipcEventHandle opened;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(handle, &bytes, &size)) return NULL;
    if (size != (Py_ssize_t)sizeof opened) {
        PyErr_SetString(PyExc_ValueError, "expected a handle of 64 bytes");
        return NULL;
    }
    memcpy(&opened, bytes, sizeof opened);
    CUevent event = NULL;
    int status = bridge_context();
    if (!status) status = bridge_status(cuIpcOpenEventHandle(&event, opened));
    return status ? bridge_raise(status) : bridge_from_intptr_t((intptr_t)event);
}

/* ---- captures and graphs ---------------------------------------------------------------------- */

int runtime_streamBeginCapture(intptr_t stream, int mode) {
    BRIDGE_CALL(cuStreamBeginCapture((CUstream)stream, mode));
}

int runtime_streamEndCapture(intptr_t stream, intptr_t *result) {
    BRIDGE_CALL(cuStreamEndCapture((CUstream)stream, (CUgraph *)result));
}

PyObject *runtime_streamIsCapturing(intptr_t stream) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    int status = bridge_context();
    if (!status) status = bridge_status(cuStreamIsCapturing((CUstream)stream, &capture));
    if (status) return bridge_raise(status);
    if (capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        PyErr_SetString(PyExc_RuntimeError, "the stream was capturing, but an error has invalidated"
                                            " the capture sequence");
        return NULL;
    }
    return PyBool_FromLong(capture != CU_STREAM_CAPTURE_STATUS_NONE);
}

int runtime_graphInstantiate(intptr_t graph, intptr_t *result) {
    BRIDGE_CALL(cuGraphInstantiate((CUgraphExec *)result, (CUgraph)graph, 0));
}

int runtime_graphDestroy(intptr_t graph) { BRIDGE_CALL(cuGraphDestroy((CUgraph)graph)); }

int runtime_graphExecDestroy(intptr_t graphExec) {
    BRIDGE_CALL(cuGraphExecDestroy((CUgraphExec)graphExec));
}

int runtime_graphLaunch(intptr_t graphExec, intptr_t stream) {
    BRIDGE_CALL(cuGraphLaunch((CUgraphExec)graphExec, (CUstream)stream));
}

int runtime_graphUpload(intptr_t graphExec, intptr_t stream) {
    BRIDGE_CALL(cuGraphUpload((CUgraphExec)graphExec, (CUstream)stream));
}

PyObject *runtime_graphDebugDotPrint(intptr_t graph, PyObject *path, unsigned int flags) {
    const char *text = PyUnicode_AsUTF8AndSize(path, NULL);
    if (!text) return NULL;
    int status = bridge_context();
    if (!status) status = bridge_status(cuGraphDebugDotPrint((CUgraph)graph, text, flags));
    return status ? bridge_raise(status) : bridge_none();
}
