/* Managed memory: one copy of it, accessible to the host and to all devices. Advice and prefetches
 * have no effect; they are kept for queries, for an allocation as a whole. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#define HOST_BIT (1u << 31)

CUresult sim_cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream);

CUresult sim_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    SimContext *context;
    SimRange *range = NULL;
    if (!dptr || !bytesize || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (!status) status = sim_check_unsafe_call();
    if (!status && !context->device->attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY])
        status = CUDA_ERROR_NOT_SUPPORTED;
    SimAdvice *advice = status ? NULL : calloc(1, sizeof *advice);
    if (!status && !advice) status = CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = sim_allocate_range(SIM_MANAGED_MEMORY, context, bytesize, &range);
    if (status) {
        free(advice);
        return status;
    }
    range->flags = flags;
    range->advice = advice;
    *dptr = (CUdeviceptr)range->info.start;
    return CUDA_SUCCESS;
}

/* The advice of managed memory that holds [start, start + size), or NULL. Needs the lock. */
static SimAdvice *find_advice(CUdeviceptr start, size_t size) {
    SimRange *range = size ? sim_find_range((void *)start) : NULL;
    if (!range || !range->is_allocated) return NULL;
    return start + size <= (CUdeviceptr)range->info.start + range->info.size ? range->advice : NULL;
}

/* The location as CU_DEVICE_CPU (-1), a device, or CU_DEVICE_INVALID (-2). */
static int number_of(const CUmemLocation *location) {
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return sim_device(location->id) ? location->id : CU_DEVICE_INVALID;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CU_DEVICE_CPU;
    default: return CU_DEVICE_INVALID;
    }
}

static CUresult advise(SimAdvice *advice, CUmem_advise what, const CUmemLocation *location) {
    int number = number_of(location);
    unsigned int bit = number < 0 ? HOST_BIT : 1u << number;
    switch (what) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: advice->is_read_mostly = true; return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: advice->is_read_mostly = false; return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: advice->preferred = (CUmemLocation){0}; return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        if (number == CU_DEVICE_INVALID) return CUDA_ERROR_INVALID_DEVICE;
        advice->preferred = *location;
        return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        if (number == CU_DEVICE_INVALID) return CUDA_ERROR_INVALID_DEVICE;
        if (what == CU_MEM_ADVISE_SET_ACCESSED_BY) advice->accessed_by |= bit;
        else advice->accessed_by &= ~bit;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED({
        SimAdvice *found = find_advice(devPtr, count);
        if (found) status = advise(found, advice, &location);
    });
    return status;
}

CUresult sim_cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                                CUstream hStream) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_check_stream(hStream);
    if (status) return status;
    status = CUDA_ERROR_INVALID_VALUE;
    if (number_of(&location) == CU_DEVICE_INVALID) return CUDA_ERROR_INVALID_DEVICE;
    SIM_LOCKED({
        SimRange *range = sim_find_range((void *)devPtr);
        SimAdvice *found = find_advice(devPtr, count);
        if (found) found->prefetched = location;
        /* Memory of managed pools has no advice. */
        if (found || (range && range->pool && sim_place((void *)devPtr, count) == SIM_MANAGED_PLACE))
            status = CUDA_SUCCESS;
    });
    return status;
}

static CUresult list_accessed_by(const SimAdvice *advice, int *devices, size_t bytes) {
    if (!bytes || bytes % sizeof *devices) return CUDA_ERROR_INVALID_VALUE;
    size_t count = bytes / sizeof *devices, next = 0;
    for (int device = 0; device < SIM_MAX_DEVICES && next < count; device++)
        if (advice->accessed_by >> device & 1) devices[next++] = device;
    if ((advice->accessed_by & HOST_BIT) && next < count) devices[next++] = CU_DEVICE_CPU;
    while (next < count) devices[next++] = CU_DEVICE_INVALID;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(const SimAdvice *advice, CUmem_range_attribute attribute, int *data, size_t bytes) {
    if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) return list_accessed_by(advice, data, bytes);
    if (bytes != sizeof *data) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *data = advice->is_read_mostly; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: *data = number_of(&advice->preferred); break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: *data = number_of(&advice->prefetched); break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: *data = advice->preferred.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *data = advice->preferred.id; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: *data = advice->prefetched.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: *data = advice->prefetched.id; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
                                    CUdeviceptr devPtr, size_t count) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!data) return status;
    SIM_LOCKED({
        const SimAdvice *found = find_advice(devPtr, count);
        if (found) status = get_attribute(found, attribute, data, dataSize);
    });
    return status;
}

CUresult sim_cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
                                     size_t numAttributes, CUdeviceptr devPtr, size_t count) {
    if (!data || !dataSizes || !attributes || !numAttributes) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < numAttributes && !status; i++)
        status = sim_cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
    return status;
}

/* ---- batches ---------------------------------------------------------------------------------------- */

static CUresult check_batch(const void *dptrs, const void *sizes, size_t count, unsigned long long flags,
                            CUstream stream) {
    if (!dptrs || !sizes || !count || flags) return CUDA_ERROR_INVALID_VALUE;
    return sim_check_stream(stream);
}

CUresult sim_cuMemPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                     CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
                                     size_t numPrefetchLocs, unsigned long long flags, CUstream hStream) {
    CUresult status = check_batch(dptrs, sizes, count, flags, hStream);
    if (!status && (!prefetchLocs || !prefetchLocIdxs || !numPrefetchLocs || numPrefetchLocs > count ||
                    prefetchLocIdxs[0] != 0))
        status = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, place = 0; i < count && !status; i++) {
        while (place + 1 < numPrefetchLocs && prefetchLocIdxs[place + 1] <= i) place++;
        status = sim_cuMemPrefetchAsync(dptrs[i], sizes[i], prefetchLocs[place], 0, hStream);
    }
    return status;
}

CUresult sim_cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                    unsigned long long flags, CUstream hStream) {
    CUresult status = check_batch(dptrs, sizes, count, flags, hStream);
    for (size_t i = 0; i < count && !status; i++) {
        SimPlace place;
        SIM_LOCKED(place = sim_place((void *)dptrs[i], sizes[i]));
        /* Reads of discarded memory return anything: here, what new memory has. */
        status = place == SIM_MANAGED_PLACE ? sim_cuMemsetD8Async(dptrs[i], sim_fill_value(), sizes[i], hStream)
                                            : CUDA_ERROR_INVALID_VALUE;
    }
    return status;
}

CUresult sim_cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                               CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
                                               size_t numPrefetchLocs, unsigned long long flags,
                                               CUstream hStream) {
    CUresult status = sim_cuMemDiscardBatchAsync(dptrs, sizes, count, flags, hStream);
    if (status) return status;
    return sim_cuMemPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs,
                                       flags, hStream);
}
