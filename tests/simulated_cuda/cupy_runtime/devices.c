/* Devices, contexts, errors: the runtime API's view of them (CUDA Runtime API, sections 6.1, 6.3,
 * 6.11 and 6.34, on the driver's primary contexts). */
#include "runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define MAX_DEVICES 64

static _Thread_local int selected_device; /* of cudaSetDevice, for a thread without a context */
static CUcontext primaries[MAX_DEVICES];
static pthread_mutex_t primaries_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool is_initialized;

/* Errors of the driver API without a number in the runtime API. */
static bool is_of_driver_only(CUresult status) {
    switch (status) {
    case CUDA_ERROR_CONTEXT_ALREADY_CURRENT:
    case CUDA_ERROR_GRAPH_RECAPTURE_FAILURE:
        return true;
    default:
        return false;
    }
}

int bridge_status(CUresult status) {
    /* Since CUDA 10.1 an error has one number in both APIs. */
    return is_of_driver_only(status) ? RUNTIME_UNKNOWN : (int)status;
}

static int initialize(void) {
    if (atomic_load(&is_initialized)) return 0;
    CUresult status = cuInit(0);
    if (!status) atomic_store(&is_initialized, true);
    return bridge_status(status);
}

static int check_device(int device) {
    int count = 0;
    BRIDGE_TRY(initialize());
    BRIDGE_TRY(bridge_status(cuDeviceGetCount(&count)));
    return device < 0 || device >= count || device >= MAX_DEVICES ? RUNTIME_INVALID_DEVICE : 0;
}

int bridge_primary(int device, CUcontext *result) {
    BRIDGE_TRY(check_device(device));
    unsigned int flags;
    int active = 0;
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&primaries_lock);
    /* A reset of the primary context drops the bridge's reference too. */
    if (primaries[device]) status = cuDevicePrimaryCtxGetState(device, &flags, &active);
    if (!status && !active)
        status = cuDevicePrimaryCtxRetain(&primaries[device], device);
    *result = primaries[device];
    pthread_mutex_unlock(&primaries_lock);
    return bridge_status(status);
}

static int select_device(int device) {
    CUcontext context;
    BRIDGE_TRY(bridge_primary(device, &context));
    selected_device = device;
    return bridge_status(cuCtxSetCurrent(context));
}

int bridge_context(void) {
    CUcontext context = NULL;
    CUresult status = cuCtxGetCurrent(&context);
    if (!status && context) return 0;
    if (status && status != CUDA_ERROR_NOT_INITIALIZED) return bridge_status(status);
    return select_device(selected_device);
}

PyObject *runtime__ensure_context(void) {
    int status = bridge_context();
    return status ? bridge_raise(status) : bridge_none();
}

PyObject *runtime_check_status(int status) { return status ? bridge_raise(status) : bridge_none(); }

int runtime_driverGetVersion(int *result) { return bridge_status(cuDriverGetVersion(result)); }

int runtime_getDeviceCount(int *result) {
    BRIDGE_TRY(initialize());
    return bridge_status(cuDeviceGetCount(result));
}

int runtime_getDevice(int *result) {
    BRIDGE_TRY(initialize());
    CUdevice device;
    *result = cuCtxGetDevice(&device) ? selected_device : device;
    return 0;
}

/* As of CUDA 12.0, cudaSetDevice makes the primary context too. */
int runtime_setDevice(int device) { return select_device(device); }

int runtime_deviceGetAttribute(int attrib, int device, int *result) {
    BRIDGE_TRY(check_device(device));
    return bridge_status(cuDeviceGetAttribute(result, attrib, device));
}

PyObject *runtime_getDeviceProperties(int device) {
    char name[256] = {0};
    CUuuid uuid;
    size_t memory = 0;
    int status = check_device(device);
    if (!status) status = bridge_status(cuDeviceGetName(name, sizeof name, device));
    if (!status) status = bridge_status(cuDeviceGetUuid(&uuid, device));
    if (!status) status = bridge_status(cuDeviceTotalMem(&memory, device));
    if (status) return bridge_raise(status);
    PyObject *identity = PyBytes_FromStringAndSize((char *)&uuid, sizeof uuid);
    return PyObject_CallFunction(bridge_helper("device_properties"), "iyKN", device, name,
                                 (unsigned long long)memory, identity);
}

PyObject *runtime_deviceGetByPCIBusId(PyObject *pci_bus_id) {
    const char *text = PyUnicode_AsUTF8AndSize(pci_bus_id, NULL);
    if (!text) return NULL;
    int device = -1;
    int status = initialize();
    if (!status) status = bridge_status(cuDeviceGetByPCIBusId(&device, text));
    return status ? bridge_raise(status) : bridge_from_int(device);
}

PyObject *runtime_deviceGetPCIBusId(int device) {
    char text[16] = {0};
    int status = check_device(device);
    if (!status) status = bridge_status(cuDeviceGetPCIBusId(text, sizeof text, device));
    return status ? bridge_raise(status) : PyUnicode_FromString(text);
}

int runtime_deviceSynchronize(void) { BRIDGE_CALL(cuCtxSynchronize()); }

int runtime_deviceCanAccessPeer(int device, int peerDevice, int *result) {
    BRIDGE_TRY(check_device(device));
    BRIDGE_TRY(check_device(peerDevice));
    return bridge_status(cuDeviceCanAccessPeer(result, device, peerDevice));
}

int runtime_deviceEnablePeerAccess(int peerDevice) {
    CUcontext peer;
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(bridge_primary(peerDevice, &peer));
    CUresult status = cuCtxEnablePeerAccess(peer, 0);
    /* cudaDeviceEnablePeerAccess has one error for a device that cannot be a peer, and for the
     * current device itself. */
    if (status == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || status == CUDA_ERROR_INVALID_CONTEXT)
        return RUNTIME_INVALID_DEVICE;
    return bridge_status(status);
}

int runtime_deviceDisablePeerAccess(int peerDevice) {
    CUcontext peer;
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(bridge_primary(peerDevice, &peer));
    return bridge_status(cuCtxDisablePeerAccess(peer));
}

int runtime__deviceEnsurePeerAccess(int peerDevice) {
    int status = runtime_deviceEnablePeerAccess(peerDevice);
    return status == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? 0 : status;
}

int runtime_deviceGetLimit(int limit, size_t *result) {
    BRIDGE_CALL(cuCtxGetLimit(result, limit));
}

int runtime_deviceSetLimit(int limit, size_t value) { BRIDGE_CALL(cuCtxSetLimit(limit, value)); }

int runtime_profilerStart(void) { BRIDGE_CALL(cuProfilerStart()); }

int runtime_profilerStop(void) { BRIDGE_CALL(cuProfilerStop()); }
