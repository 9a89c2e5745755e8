/* Device memory: cuMemAlloc and what belongs to it.
 *
 * Each allocation has pages of its own between guard pages. It ends as near to the second guard
 * page as its alignment allows, so that most accesses beyond its end fault at once; canaries find
 * writes to the rest when the memory is freed. */
#include "pools.h"

#include <stdlib.h>

CUresult sim_require_context(SimContext **result) {
    *result = sim_current();
    return *result ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static bool is_on_device(SimMemoryKind kind) { return kind == SIM_DEVICE_MEMORY; }

CUresult sim_allocate_range(SimMemoryKind kind, SimContext *context, size_t size, SimRange **result) {
    int device = is_on_device(kind) ? context->device->ordinal : SIM_HOST;
    size_t counted = sim_round_up(size, SIM_ALIGNMENT);
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    if (counted < size) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim_memory_lock);
    SimRange *range = NULL;
    if (!sim_take_memory(device, counted)) goto done;
    range = sim_new_range(kind, device, size);
    if (!range || !sim_new_pages(device, counted, -1, 0, &range->pages)) goto failed;
    range->context = context;
    range->info.start = range->pages.start + range->pages.size - counted;
    if (!sim_show_pages(&range->pages, PROT_READ | PROT_WRITE) || !sim_add_range(range)) {
        sim_unmap_pages(&range->pages);
        goto failed;
    }
    sim_fill(range);
    *result = range;
    status = CUDA_SUCCESS;
    goto done;
failed:
    free(range);
    sim_return_memory(device, counted);
done:
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

void sim_free_range(SimRange *range) {
    sim_check_canaries(range);
    if (is_on_device(range->info.kind))
        sim_return_memory(range->info.device, sim_round_up(range->info.size, SIM_ALIGNMENT));
    sim_drop_pages(&range->pages);
    sim_remove_range(range);
}

bool sim_is_accessible_from(const SimRange *range, const SimContext *context) {
    int device = range->info.device, own = context->device->ordinal;
    switch (range->info.kind) {
    case SIM_POOL_MEMORY: return (range->pool ? range->pool->readers : range->readers) >> own & 1;
    case SIM_MAPPED_MEMORY: return range->readers >> own & 1;
    default: return device == SIM_HOST || device == own || (context->peers >> device & 1);
    }
}

CUresult sim_cuMemAlloc(CUdeviceptr *dptr, size_t bytesize) {
    SimContext *context;
    SimRange *range = NULL;
    if (!dptr || !bytesize) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (!status) status = sim_check_unsafe_call();
    if (!status) status = sim_allocate_range(SIM_DEVICE_MEMORY, context, bytesize, &range);
    if (!status) *dptr = (CUdeviceptr)range->info.start;
    return status;
}

CUresult sim_cuMemAllocPitch(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                             unsigned int ElementSizeBytes) {
    if (!dptr || !pPitch || !WidthInBytes || !Height) return CUDA_ERROR_INVALID_VALUE;
    if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = sim_round_up(WidthInBytes, SIM_ALIGNMENT), size;
    if (pitch < WidthInBytes || __builtin_mul_overflow(pitch, Height, &size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = sim_cuMemAlloc(dptr, size);
    if (!status) *pPitch = pitch;
    return status;
}

CUresult sim_cuMemFree(CUdeviceptr dptr) {
    SimContext *context;
    CUresult status = sim_require_context(&context);
    if (!status) status = sim_check_unsafe_call();
    if (status || !dptr) return status;
    SimContext *owner = NULL;
    bool is_found = false, is_pooled = false;
    SIM_LOCKED({
        SimRange *range = sim_find_range((void *)dptr);
        if (range && range->is_allocated && range->info.start == (char *)dptr) {
            SimMemoryKind kind = range->info.kind;
            is_pooled = kind == SIM_POOL_MEMORY;
            is_found = (is_pooled && (!range->is_graph_memory || range->is_claimed)) || kind == SIM_DEVICE_MEMORY || kind == SIM_MANAGED_MEMORY;
            owner = range->context;
            /* Memory of pools is freed without a wait, as the documentation of cuMemFree says. */
            if (is_pooled && is_found) sim_free_pool_range(range);
        }
    });
    if (!is_found) return CUDA_ERROR_INVALID_VALUE;
    if (is_pooled) return CUDA_SUCCESS;
    status = sim_context_synchronize(owner);
    SIM_LOCKED({
        SimRange *range = sim_find_range((void *)dptr);
        if (range && range->is_allocated && range->info.start == (char *)dptr) sim_free_range(range);
        else status = CUDA_ERROR_INVALID_VALUE; /* another thread freed it meanwhile */
    });
    return status;
}

CUresult sim_cuMemGetInfo(size_t *free, size_t *total) {
    SimContext *context;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    size_t used, all = context->device->total_memory;
    SIM_LOCKED(used = sim_used_memory(context->device->ordinal));
    if (free) *free = used < all ? all - used : 0;
    if (total) *total = all;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAddressRange(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
    SimContext *context;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    pthread_mutex_lock(&sim_memory_lock);
    SimRange *range = sim_find_range((void *)dptr);
    if (!range || !range->is_allocated) status = CUDA_ERROR_NOT_FOUND;
    if (!status && pbase) *pbase = (CUdeviceptr)range->info.start;
    if (!status && psize) *psize = range->info.size;
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

void sim_memory_release(SimContext *context) {
    pthread_mutex_lock(&sim_memory_lock);
    for (size_t index = sim_range_count(); index-- > 0;) {
        SimRange *range = sim_range_at(index);
        if (range->context != context) continue;
        switch (range->info.kind) {
        case SIM_DEVICE_MEMORY:
        case SIM_MANAGED_MEMORY:
        case SIM_PINNED_MEMORY: sim_free_range(range); break;
        case SIM_REGISTERED_MEMORY:
        case SIM_IPC_MEMORY: sim_remove_range(range); break;
        default: break;
        }
    }
    sim_pools_release(context);
    pthread_mutex_unlock(&sim_memory_lock);
}
