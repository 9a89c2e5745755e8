/* Pinned host memory: cuMemHostAlloc, cuMemHostRegister and what belongs to them. Its addresses are
 * valid on all devices, as with unified virtual addressing. */
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALLOCATION_FLAGS \
    (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTRATION_FLAGS                                                              \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |                       \
     CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

CUresult sim_cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
    SimContext *context;
    SimRange *range = NULL;
    if (!pp || !bytesize || (Flags & ~(unsigned int)ALLOCATION_FLAGS)) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (!status) status = sim_check_unsafe_call();
    if (!status) status = sim_allocate_range(SIM_PINNED_MEMORY, context, bytesize, &range);
    if (status) return status;
    range->flags = Flags;
    *pp = range->info.start;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocHost(void **pp, size_t bytesize) {
    return sim_cuMemHostAlloc(pp, bytesize, 0);
}

/* The context of host memory of a kind that begins at `start`; false if there is none. */
static bool find_owner(const void *start, SimMemoryKind kind, SimContext **owner) {
    bool is_found = false;
    SIM_LOCKED({
        SimRange *range = sim_find_range(start);
        is_found = range && range->info.kind == kind && range->info.start == start;
        if (is_found) *owner = range->context;
    });
    return is_found;
}

/* Wait for the work of the owner, which may use the memory, then forget the memory. */
static CUresult release(void *start, SimMemoryKind kind, CUresult missing) {
    SimContext *context, *owner;
    CUresult status = sim_require_context(&context);
    if (!status) status = sim_check_unsafe_call();
    if (status) return status;
    if (!find_owner(start, kind, &owner)) return missing;
    status = sim_context_synchronize(owner);
    SIM_LOCKED({
        SimRange *range = sim_find_range(start);
        if (!range || range->info.kind != kind) status = missing;
        else if (kind == SIM_PINNED_MEMORY) sim_free_range(range);
        else sim_remove_range(range);
    });
    return status;
}

CUresult sim_cuMemFreeHost(void *p) {
    return p ? release(p, SIM_PINNED_MEMORY, CUDA_ERROR_INVALID_VALUE) : CUDA_ERROR_INVALID_VALUE;
}

/* Whether every page of a range is mapped in this process. */
static bool is_mapped(const void *address, size_t size) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)address & ~(page - 1);
    uintptr_t end = (uintptr_t)address + size;
    /* msync without a flag that starts writing does nothing but look for pages. */
    return end > first && msync((void *)first, end - first, MS_ASYNC) == 0;
}

CUresult sim_cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
    SimContext *context;
    if (!p || !bytesize || (Flags & ~(unsigned int)REGISTRATION_FLAGS)) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (!status) status = sim_check_unsafe_call();
    if (status) return status;
    if (!(Flags & CU_MEMHOSTREGISTER_IOMEMORY) && !is_mapped(p, bytesize)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_memory_lock);
    SimRange *range = NULL;
    if (sim_overlapping_range(p, bytesize)) {
        status = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else if (!(range = sim_new_range(SIM_REGISTERED_MEMORY, SIM_HOST, bytesize))) {
        status = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        range->info.start = p;
        range->context = context;
        range->flags = Flags;
        if (!sim_add_range(range)) {
            free(range);
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

CUresult sim_cuMemHostUnregister(void *p) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    return release(p, SIM_REGISTERED_MEMORY, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* The flags of the host memory that holds an address; false if there is none. */
static bool find_flags(const void *address, unsigned int *flags, SimMemoryKind *kind) {
    bool is_found = false;
    SIM_LOCKED({
        SimRange *range = sim_find_range(address);
        is_found = range && (range->info.kind == SIM_PINNED_MEMORY ||
                             range->info.kind == SIM_REGISTERED_MEMORY);
        if (is_found) {
            *flags = range->flags;
            *kind = range->info.kind;
        }
    });
    return is_found;
}

CUresult sim_cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    SimContext *context;
    unsigned int flags;
    SimMemoryKind kind;
    if (!pdptr || !p || Flags) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    if (!find_flags(p, &flags, &kind)) return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetFlags(unsigned int *pFlags, void *p) {
    SimContext *context;
    SimMemoryKind kind;
    if (!pFlags || !p) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    if (!find_flags(p, pFlags, &kind)) return CUDA_ERROR_INVALID_VALUE;
    /* Unified addressing maps the memory for devices whether that was asked for or not. */
    if (kind == SIM_PINNED_MEMORY) *pFlags |= CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}
