/* Memory, pools and copies (CUDA Runtime API, sections 6.10, 6.12 and 6.13). */
#include "runtime.h"

#include <string.h>

/* ---- allocation ------------------------------------------------------------------------------- */

int runtime_malloc(size_t size, intptr_t *result) {
    BRIDGE_TRY(bridge_context());
    *result = 0;
    /* cudaMalloc takes 0 bytes, cuMemAlloc does not. */
    return size ? bridge_status(cuMemAlloc((CUdeviceptr *)result, size)) : 0;
}

int runtime_mallocManaged(size_t size, unsigned int flags, intptr_t *result) {
    BRIDGE_CALL(cuMemAllocManaged((CUdeviceptr *)result, size, flags));
}

int runtime_mallocAsync(size_t size, intptr_t stream, intptr_t *result) {
    BRIDGE_CALL(cuMemAllocAsync((CUdeviceptr *)result, size, (CUstream)stream));
}

int runtime_mallocFromPoolAsync(size_t size, intptr_t pool, intptr_t stream, intptr_t *result) {
    BRIDGE_CALL(cuMemAllocFromPoolAsync((CUdeviceptr *)result, size, (CUmemoryPool)pool,
                                        (CUstream)stream));
}

int runtime_hostAlloc(size_t size, unsigned int flags, intptr_t *result) {
    BRIDGE_TRY(bridge_context());
    *result = 0;
    return size ? bridge_status(cuMemHostAlloc((void **)result, size, flags)) : 0;
}

int runtime_hostRegister(intptr_t ptr, size_t size, unsigned int flags) {
    BRIDGE_CALL(cuMemHostRegister((void *)ptr, size, flags));
}

int runtime_hostUnregister(intptr_t ptr) { BRIDGE_CALL(cuMemHostUnregister((void *)ptr)); }

/* cudaFree and cudaFreeHost do nothing for a null pointer, but to make a context. */
int runtime_free(intptr_t ptr) {
    BRIDGE_TRY(bridge_context());
    return ptr ? bridge_status(cuMemFree((CUdeviceptr)ptr)) : 0;
}

int runtime_freeHost(intptr_t ptr) {
    BRIDGE_TRY(bridge_context());
    return ptr ? bridge_status(cuMemFreeHost((void *)ptr)) : 0;
}

int runtime_freeAsync(intptr_t ptr, intptr_t stream) {
    BRIDGE_CALL(cuMemFreeAsync((CUdeviceptr)ptr, (CUstream)stream));
}

PyObject *runtime_memGetInfo(void) {
    size_t available = 0, total = 0;
    int status = bridge_context();
    if (!status) status = bridge_status(cuMemGetInfo(&available, &total));
    if (status) return bridge_raise(status);
    return Py_BuildValue("KK", (unsigned long long)available, (unsigned long long)total);
}

/* ---- pools ------------------------------------------------------------------------------------ */

int runtime_deviceGetDefaultMemPool(int device, intptr_t *result) {
    CUcontext context;
    BRIDGE_TRY(bridge_primary(device, &context));
    return bridge_status(cuDeviceGetDefaultMemPool((CUmemoryPool *)result, device));
}

int runtime_deviceGetMemPool(int device, intptr_t *result) {
    CUcontext context;
    BRIDGE_TRY(bridge_primary(device, &context));
    return bridge_status(cuDeviceGetMemPool((CUmemoryPool *)result, device));
}

int runtime_deviceSetMemPool(int device, intptr_t pool) {
    CUcontext context;
    BRIDGE_TRY(bridge_primary(device, &context));
    return bridge_status(cuDeviceSetMemPool(device, (CUmemoryPool)pool));
}

PyObject *runtime_memPoolCreate(PyObject *props) {
    /* The fields of MemPoolProps are visible to Cython only; the helper reads its pickled form. */
    PyObject *fields = PyObject_CallFunctionObjArgs(bridge_helper("pool_fields"), props, NULL);
    if (!fields) return NULL;
    int values[4];
    for (int k = 0; k < 4; k++) bridge_to_int(PyTuple_GetItem(fields, k), &values[k]);
    Py_DecRef(fields);
    CUmemPoolProps pool_props;
    memset(&pool_props, 0, sizeof pool_props);
    pool_props.allocType = values[0];
    pool_props.handleTypes = values[1];
    pool_props.location.type = values[2];
    pool_props.location.id = values[3];
    CUmemoryPool pool = NULL;
    int status = bridge_context();
    if (!status) status = bridge_status(cuMemPoolCreate(&pool, &pool_props));
    return status ? bridge_raise(status) : bridge_from_intptr_t((intptr_t)pool);
}

int runtime_memPoolDestroy(intptr_t pool) { BRIDGE_CALL(cuMemPoolDestroy((CUmemoryPool)pool)); }

int runtime_memPoolTrimTo(intptr_t pool, size_t size) {
    BRIDGE_CALL(cuMemPoolTrimTo((CUmemoryPool)pool, size));
}

/* The first three attributes of a pool are of type int, the others of cuuint64_t. */
static bool is_int_attribute(int attr) { return attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; }

int runtime_memPoolGetAttribute(intptr_t pool, int attr, uintmax_t *result) {
    BRIDGE_TRY(bridge_context());
    int number = 0;
    cuuint64_t bytes = 0;
    void *value = is_int_attribute(attr) ? (void *)&number : (void *)&bytes;
    BRIDGE_TRY(bridge_status(cuMemPoolGetAttribute((CUmemoryPool)pool, attr, value)));
    *result = is_int_attribute(attr) ? (uintmax_t)number : bytes;
    return 0;
}

PyObject *runtime_memPoolSetAttribute(intptr_t pool, int attr, PyObject *value) {
    int number = 0;
    uintmax_t bytes = 0;
    int is_int = is_int_attribute(attr);
    if (!(is_int ? bridge_to_int(value, &number) : bridge_to_uintmax_t(value, &bytes))) return NULL;
    cuuint64_t wide = bytes;
    int status = bridge_context();
    if (!status)
        status = bridge_status(cuMemPoolSetAttribute((CUmemoryPool)pool, attr,
                                                     is_int ? (void *)&number : (void *)&wide));
    return status ? bridge_raise(status) : bridge_none();
}

/* ---- copies ----------------------------------------------------------------------------------- */

enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

int runtime_memcpy(intptr_t dst, intptr_t src, size_t size, int kind) {
    BRIDGE_TRY(bridge_context());
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS) return RUNTIME_INVALID_MEMCPY_DIRECTION;
    if (!size) return 0;
    CUdeviceptr to = dst, from = src;
    switch (kind) {
    case HOST_TO_DEVICE:
        return bridge_status(cuMemcpyHtoD(to, (void *)src, size));
    case DEVICE_TO_HOST:
        return bridge_status(cuMemcpyDtoH((void *)dst, from, size));
    case DEVICE_TO_DEVICE:
        return bridge_status(cuMemcpyDtoD(to, from, size));
    default:
        return bridge_status(cuMemcpy(to, from, size));
    }
}

int runtime_memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream) {
    BRIDGE_TRY(bridge_context());
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS) return RUNTIME_INVALID_MEMCPY_DIRECTION;
    if (!size) return 0;
    CUdeviceptr to = dst, from = src;
    CUstream queue = (CUstream)stream;
    switch (kind) {
    case HOST_TO_DEVICE:
        return bridge_status(cuMemcpyHtoDAsync(to, (void *)src, size, queue));
    case DEVICE_TO_HOST:
        return bridge_status(cuMemcpyDtoHAsync((void *)dst, from, size, queue));
    case DEVICE_TO_DEVICE:
        return bridge_status(cuMemcpyDtoDAsync(to, from, size, queue));
    default:
        return bridge_status(cuMemcpyAsync(to, from, size, queue));
    }
}

int runtime_memcpyPeer(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size) {
    CUcontext to, from;
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(bridge_primary(dstDevice, &to));
    BRIDGE_TRY(bridge_primary(srcDevice, &from));
    return size ? bridge_status(cuMemcpyPeer(dst, to, src, from, size)) : 0;
}

int runtime_memcpyPeerAsync(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size,
                            intptr_t stream) {
    CUcontext to, from;
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(bridge_primary(dstDevice, &to));
    BRIDGE_TRY(bridge_primary(srcDevice, &from));
    if (!size) return 0;
    return bridge_status(cuMemcpyPeerAsync(dst, to, src, from, size, (CUstream)stream));
}

/* The memory types of the two ends of a copy. */
static int memory_type(int kind, bool is_source) {
    if (kind == BY_ADDRESS) return CU_MEMORYTYPE_UNIFIED;
    bool is_device = is_source ? kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE
                               : kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE;
    return is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

static int describe_rows(CUDA_MEMCPY2D *copy, intptr_t dst, size_t dpitch, intptr_t src,
                         size_t spitch, size_t width, size_t height, int kind) {
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS) return RUNTIME_INVALID_MEMCPY_DIRECTION;
    if (width > dpitch || width > spitch) return RUNTIME_INVALID_PITCH_VALUE;
    *copy = (CUDA_MEMCPY2D){
        .srcMemoryType = memory_type(kind, true),
        .srcHost = (void *)src,
        .srcDevice = (CUdeviceptr)src,
        .srcPitch = spitch,
        .dstMemoryType = memory_type(kind, false),
        .dstHost = (void *)dst,
        .dstDevice = (CUdeviceptr)dst,
        .dstPitch = dpitch,
        .WidthInBytes = width,
        .Height = height,
    };
    return 0;
}

int runtime_memcpy2D(intptr_t dst, size_t dpitch, intptr_t src, size_t spitch, size_t width,
                     size_t height, int kind) {
    CUDA_MEMCPY2D copy;
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(describe_rows(&copy, dst, dpitch, src, spitch, width, height, kind));
    return width && height ? bridge_status(cuMemcpy2DUnaligned(&copy)) : 0;
}

int runtime_memcpy2DAsync(intptr_t dst, size_t dpitch, intptr_t src, size_t spitch, size_t width,
                          size_t height, int kind, intptr_t stream) {
    CUDA_MEMCPY2D copy;
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(describe_rows(&copy, dst, dpitch, src, spitch, width, height, kind));
    return width && height ? bridge_status(cuMemcpy2DAsync(&copy, (CUstream)stream)) : 0;
}

/* cudaMemcpy3DParms and its parts, as the runtime API documents them. */
typedef struct Position {
    size_t x, y, z;
} Position;
typedef struct PitchedPointer {
    void *address;
    size_t pitch, xsize, ysize;
} PitchedPointer;
typedef struct BoxCopy {
    void *source_array;
    Position source_position;
    PitchedPointer source;
    void *target_array;
    Position target_position;
    PitchedPointer target;
    Position extent;
    int kind;
} BoxCopy;

static int describe_boxes(CUDA_MEMCPY3D *copy, const BoxCopy *box) {
    if (!box) return CUDA_ERROR_INVALID_VALUE;
    if (box->source_array || box->target_array) return CUDA_ERROR_NOT_SUPPORTED;
    if (box->kind < HOST_TO_HOST || box->kind > BY_ADDRESS) return RUNTIME_INVALID_MEMCPY_DIRECTION;
    *copy = (CUDA_MEMCPY3D){
        .srcXInBytes = box->source_position.x,
        .srcY = box->source_position.y,
        .srcZ = box->source_position.z,
        .srcMemoryType = memory_type(box->kind, true),
        .srcHost = box->source.address,
        .srcDevice = (CUdeviceptr)box->source.address,
        .srcPitch = box->source.pitch,
        .srcHeight = box->source.ysize,
        .dstXInBytes = box->target_position.x,
        .dstY = box->target_position.y,
        .dstZ = box->target_position.z,
        .dstMemoryType = memory_type(box->kind, false),
        .dstHost = box->target.address,
        .dstDevice = (CUdeviceptr)box->target.address,
        .dstPitch = box->target.pitch,
        .dstHeight = box->target.ysize,
        .WidthInBytes = box->extent.x,
        .Height = box->extent.y,
        .Depth = box->extent.z,
    };
    return 0;
}

int runtime_memcpy3D(intptr_t Memcpy3DParmsPtr) {
    CUDA_MEMCPY3D copy;
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(describe_boxes(&copy, (const BoxCopy *)Memcpy3DParmsPtr));
    return bridge_status(cuMemcpy3D(&copy));
}

int runtime_memcpy3DAsync(intptr_t Memcpy3DParmsPtr, intptr_t stream) {
    CUDA_MEMCPY3D copy;
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(describe_boxes(&copy, (const BoxCopy *)Memcpy3DParmsPtr));
    return bridge_status(cuMemcpy3DAsync(&copy, (CUstream)stream));
}

int runtime_memset(intptr_t ptr, int value, size_t size) {
    BRIDGE_TRY(bridge_context());
    return size ? bridge_status(cuMemsetD8((CUdeviceptr)ptr, (unsigned char)value, size)) : 0;
}

int runtime_memsetAsync(intptr_t ptr, int value, size_t size, intptr_t stream) {
    BRIDGE_TRY(bridge_context());
    if (!size) return 0;
    return bridge_status(
        cuMemsetD8Async((CUdeviceptr)ptr, (unsigned char)value, size, (CUstream)stream));
}

/* CuPy for CUDA 13 passes every number as the ordinal of a device. */
static CUmemLocation device_location(int device) {
    CUmemLocation location;
    memset(&location, 0, sizeof location);
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    return location;
}

int runtime_memPrefetchAsync(intptr_t devPtr, size_t count, int dstDevice, intptr_t stream) {
    BRIDGE_CALL(cuMemPrefetchAsync((CUdeviceptr)devPtr, count, device_location(dstDevice), 0,
                                   (CUstream)stream));
}

int runtime_memAdvise(intptr_t devPtr, size_t count, int advice, int device) {
    BRIDGE_CALL(cuMemAdvise((CUdeviceptr)devPtr, count, advice, device_location(device)));
}

/* ---- pointers --------------------------------------------------------------------------------- */

typedef struct Pointer {
    int type; /* cudaMemoryType */
    int device;
    CUdeviceptr device_address;
    void *host_address;
} Pointer;

enum { UNREGISTERED_MEMORY = 0, MANAGED_MEMORY = 3, INVALID_DEVICE_ID = -2 };

static int describe_pointer(intptr_t address, Pointer *result) {
    unsigned int type = 0, managed = 0;
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER,
    };
    void *values[] = {&type, &managed, &result->device, &result->device_address,
                      &result->host_address};
    *result = (Pointer){.device = INVALID_DEVICE_ID};
    BRIDGE_TRY(bridge_context());
    BRIDGE_TRY(bridge_status(cuPointerGetAttributes(5, attributes, values, (CUdeviceptr)address)));
    result->type = managed ? MANAGED_MEMORY : (int)type;
    if (result->type == UNREGISTERED_MEMORY)
        *result = (Pointer){.device = INVALID_DEVICE_ID, .host_address = (void *)address};
    return 0;
}

PyObject *runtime_pointerGetAttributes(intptr_t ptr) {
    Pointer pointer;
    int status = describe_pointer(ptr, &pointer);
    if (status) return bridge_raise(status);
    return PyObject_CallFunction(bridge_helper("PointerAttributes"), "iLLi", pointer.device,
                                 (long long)pointer.device_address,
                                 (long long)(intptr_t)pointer.host_address, pointer.type);
}

int runtime_pointerGetMemoryType(intptr_t ptr, int *result) {
    Pointer pointer;
    BRIDGE_TRY(describe_pointer(ptr, &pointer));
    *result = pointer.type;
    return 0;
}

/* ---- handles for other processes -------------------------------------------------------------- */

PyObject *runtime_ipcGetMemHandle(intptr_t devPtr) {
    CUipcMemHandle handle;
    int status = bridge_context();
    if (!status) status = bridge_status(cuIpcGetMemHandle(&handle, (CUdeviceptr)devPtr));
    return status ? bridge_raise(status)
                  : PyBytes_FromStringAndSize((char *)&handle, sizeof handle);
}

PyObject *runtime_ipcOpenMemHandle(PyObject *handle, unsigned int flags) {
    CUipcMemHandle opened;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(handle, &bytes, &size)) return NULL;
    if (size != (Py_ssize_t)sizeof opened) {
        PyErr_SetString(PyExc_ValueError, "expected a handle of 64 bytes");
        return NULL;
    }
    memcpy(&opened, bytes, sizeof opened);
    CUdeviceptr address = 0;
    int status = bridge_context();
    if (!status) status = bridge_status(cuIpcOpenMemHandle(&address, opened, flags));
    return status ? bridge_raise(status) : bridge_from_intptr_t((intptr_t)address);
}

int runtime_ipcCloseMemHandle(intptr_t devPtr) {
    BRIDGE_CALL(cuIpcCloseMemHandle((CUdeviceptr)devPtr));
}
