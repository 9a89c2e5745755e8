/* Properties of streams. */
#include "streams.h"

#include <stddef.h>

typedef void (*Reader)(SimStream *stream, void *result);

/* Call `read` with a stream, under the lock. */
static CUresult read_stream(CUstream handle, void *result, Reader read) {
    if (result == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    if (stream != NULL) read(stream, result);
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

static void read_context(SimStream *stream, void *result) {
    *(CUcontext *)result = stream->context;
}

static void read_device(SimStream *stream, void *result) {
    *(CUdevice *)result = stream->context->device->ordinal;
}

static void read_flags(SimStream *stream, void *result) {
    *(unsigned int *)result = stream->flags;
}

static void read_priority(SimStream *stream, void *result) { *(int *)result = stream->priority; }

static void read_id(SimStream *stream, void *result) {
    *(unsigned long long *)result = stream->id;
}

CUresult sim_cuStreamGetCtx(CUstream handle, CUcontext *result) {
    return read_stream(handle, result, read_context);
}

CUresult sim_cuStreamGetCtx_v2(CUstream handle, CUcontext *result, CUgreenCtx *green) {
    if (green == NULL) return CUDA_ERROR_INVALID_VALUE;
    *green = NULL; /* no stream belongs to a green context */
    return sim_cuStreamGetCtx(handle, result);
}

CUresult sim_cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *result) {
    CUcontext context;
    return sim_cuStreamGetCtx_v2(handle, &context, result);
}

CUresult sim_cuStreamGetDevice(CUstream handle, CUdevice *result) {
    return read_stream(handle, result, read_device);
}

CUresult sim_cuStreamGetFlags(CUstream handle, unsigned int *result) {
    return read_stream(handle, result, read_flags);
}

CUresult sim_cuStreamGetPriority(CUstream handle, int *result) {
    return read_stream(handle, result, read_priority);
}

CUresult sim_cuStreamGetId(CUstream handle, unsigned long long *result) {
    return read_stream(handle, result, read_id);
}

/* Where a stream keeps an attribute, or NULL. */
static CUstreamAttrValue *attribute_place(SimStream *stream, CUstreamAttrID attribute) {
    switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return &stream->access_policy;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: return &stream->synchronization;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return &stream->domain_map;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: return &stream->domain;
    default: return NULL;
    }
}

CUresult sim_cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute,
                                  CUstreamAttrValue *value) {
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    if (stream != NULL) {
        CUstreamAttrValue *place = attribute_place(stream, attribute);
        if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
        else if (place != NULL) *value = *place;
        else status = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

CUresult sim_cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                                  const CUstreamAttrValue *value) {
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    if (stream != NULL) {
        CUstreamAttrValue *place = attribute_place(stream, attribute);
        if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) stream->priority = value->priority;
        else if (place != NULL) *place = *value;
        else status = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

CUresult sim_cuStreamCopyAttributes(CUstream to, CUstream from) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *source = sim_find_stream(from, &status);
    SimStream *target = source ? sim_find_stream(to, &status) : NULL;
    if (target != NULL && target->context != source->context) {
        status = CUDA_ERROR_INVALID_VALUE;
    } else if (target != NULL) {
        target->priority = source->priority;
        target->access_policy = source->access_policy;
        target->synchronization = source->synchronization;
        target->domain_map = source->domain_map;
        target->domain = source->domain;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

/* Managed memory of this driver is visible everywhere, so an attachment only takes its place in
 * the order of the stream. */
CUresult sim_cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t size,
                                    unsigned int flags) {
    SimAllocation allocation;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
        flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_find_allocation((void *)(uintptr_t)address, 0, &allocation) || allocation.is_freed ||
        allocation.kind != SIM_MANAGED_MEMORY || (size != 0 && size != allocation.size))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    if (stream == NULL) {
    } else if (stream->kind == SIM_LEGACY_STREAM && flags == CU_MEM_ATTACH_SINGLE) {
        status = CUDA_ERROR_INVALID_VALUE;
    } else if (stream->capture != NULL) {
        sim_invalidate_capture(stream->capture);
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if ((status = sim_check_legacy_stream(stream)) == CUDA_SUCCESS) {
        SimPoints points = {0};
        sim_enqueue_operation(stream, NULL, &points);
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

/* There is no profiler; both calls are valid without one. */
CUresult sim_cuProfilerStart(void) {
    return sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuProfilerStop(void) {
    return sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
