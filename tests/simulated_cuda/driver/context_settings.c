/* Queries and settings of contexts: limits, flags, peers. */
#include "contexts.h"

#include <string.h>

#define KIB 1024
#define MIB (1024 * 1024)
#define MAX_STACK_BYTES (512 * KIB)
#define MAX_SYNC_DEPTH 24
#define MAX_FETCH_BYTES 128
#define GREATEST_PRIORITY (-5)

/* The CUDA version in which contexts became what they are today (cuCtxGetApiVersion). */
#define API_VERSION 3020

void sim_reset_settings(SimContext *context, const SimDevice *device) {
    context->sticky = 0;
    context->peers = 0;
    memset(context->limits, 0, sizeof context->limits);
    context->limits[CU_LIMIT_STACK_SIZE] = 1 * KIB;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 * MIB;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
    context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
}

bool sim_are_context_flags(unsigned int flags) {
    unsigned int schedule = flags & CU_CTX_SCHED_MASK;
    return !(flags & ~(unsigned int)CU_CTX_FLAGS_MASK) &&
           (schedule & (schedule - 1)) == 0; /* at most one way to wait */
}

/* ---- limits ----------------------------------------------------------------------------------- */

static bool is_limit(const SimContext *context, CUlimit limit) {
    switch (limit) {
    case CU_LIMIT_STACK_SIZE:
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE:
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
        return true;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
        return context->device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] < 9;
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
        return context->device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] >= 8;
    default:
        return false;
    }
}

CUresult sim_cuCtxGetLimit(size_t *value, CUlimit limit) {
    SimContext *context;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(NULL, &context);
    if (status != CUDA_SUCCESS)
        return status;
    if (!is_limit(context, limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetLimit(CUlimit limit, size_t value) {
    SimContext *context;
    CUresult status = sim_usable_context(NULL, &context);
    if (status != CUDA_SUCCESS)
        return status;
    if (!is_limit(context, limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    size_t most = SIZE_MAX;
    if (limit == CU_LIMIT_STACK_SIZE)
        most = MAX_STACK_BYTES;
    else if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH)
        most = MAX_SYNC_DEPTH;
    else if (limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE)
        most = context->device->total_memory;
    if (value > most)
        return CUDA_ERROR_INVALID_VALUE;
    /* The driver may clamp a hint. */
    if (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY && value > MAX_FETCH_BYTES)
        value = MAX_FETCH_BYTES;
    if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE) {
        size_t l2 = context->device->attributes[CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE];
        value = value > l2 ? l2 : value;
    }
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

/* ---- flags, ids, hints ------------------------------------------------------------------------ */

CUresult sim_cuCtxGetDevice_v2(CUdevice *result, CUcontext handle) {
    SimContext *context;
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(handle, &context);
    if (status == CUDA_SUCCESS)
        *result = context->device->ordinal;
    return status;
}

CUresult sim_cuCtxGetDevice(CUdevice *result) { return sim_cuCtxGetDevice_v2(result, NULL); }

CUresult sim_cuCtxGetFlags(unsigned int *flags) {
    SimContext *context;
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(NULL, &context);
    if (status == CUDA_SUCCESS)
        *flags = context->flags;
    return status;
}

CUresult sim_cuCtxSetFlags(unsigned int flags) {
    SimContext *context;
    if (!sim_are_context_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(NULL, &context);
    if (status == CUDA_SUCCESS)
        context->flags = flags;
    return status;
}

CUresult sim_cuCtxGetId(CUcontext handle, unsigned long long *id) {
    SimContext *context;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(handle, &context);
    if (status == CUDA_SUCCESS)
        *id = context->id;
    return status;
}

CUresult sim_cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
    SimContext *context;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(handle, &context);
    if (status == CUDA_SUCCESS)
        *version = API_VERSION;
    return status;
}

CUresult sim_cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    SimContext *context;
    CUresult status = sim_usable_context(NULL, &context);
    if (status != CUDA_SUCCESS)
        return status;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}

/* Preferences of caches change no result, and devices of today ignore that of shared memory. */
CUresult sim_cuCtxGetCacheConfig(CUfunc_cache *result) {
    SimContext *context;
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(NULL, &context);
    if (status == CUDA_SUCCESS)
        *result = context->cache_config;
    return status;
}

CUresult sim_cuCtxSetCacheConfig(CUfunc_cache config) {
    SimContext *context;
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(NULL, &context);
    if (status == CUDA_SUCCESS)
        context->cache_config = config;
    return status;
}

CUresult sim_cuCtxGetSharedMemConfig(CUsharedconfig *result) {
    SimContext *context;
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(NULL, &context);
    if (status == CUDA_SUCCESS)
        *result = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return status;
}

CUresult sim_cuCtxSetSharedMemConfig(CUsharedconfig config) {
    SimContext *context;
    if (config < 0 || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_usable_context(NULL, &context);
}

CUresult sim_cuCtxResetPersistingL2Cache(void) {
    SimContext *context;
    return sim_usable_context(NULL, &context);
}

CUresult sim_cuCtxGetExecAffinity(CUexecAffinityParam *result, CUexecAffinityType type) {
    SimContext *context;
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(NULL, &context);
    if (status != CUDA_SUCCESS)
        return status;
    if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    result->type = type;
    result->param.smCount.val =
        context->device->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    return CUDA_SUCCESS;
}

/* ---- waiting ---------------------------------------------------------------------------------- */

CUresult sim_cuCtxSynchronize_v2(CUcontext handle) {
    SimContext *context;
    CUresult status = sim_usable_context(handle, &context);
    if (status == CUDA_SUCCESS)
        status = context->sticky;
    if (status == CUDA_SUCCESS)
        status = sim_check_context_captures(context);
    return status == CUDA_SUCCESS ? sim_context_synchronize(context) : status;
}

CUresult sim_cuCtxSynchronize(void) { return sim_cuCtxSynchronize_v2(NULL); }

/* ---- peers ------------------------------------------------------------------------------------ */

CUresult sim_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    SimContext *context;
    CUresult status = sim_usable_context(NULL, &context);
    if (status != CUDA_SUCCESS)
        return status;
    if (!peer || peer == context || !sim_is_context(peer) || !peer->is_active)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_can_access_peer(context->device->ordinal, peer->device->ordinal))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    unsigned int bit = 1u << peer->device->ordinal;
    unsigned int before = __atomic_fetch_or(&context->peers, bit, __ATOMIC_SEQ_CST);
    return before & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUresult sim_cuCtxDisablePeerAccess(CUcontext peer) {
    SimContext *context;
    CUresult status = sim_usable_context(NULL, &context);
    if (status != CUDA_SUCCESS)
        return status;
    if (!peer || !sim_is_context(peer))
        return CUDA_ERROR_INVALID_CONTEXT;
    unsigned int bit = 1u << peer->device->ordinal;
    unsigned int before = __atomic_fetch_and(&context->peers, ~bit, __ATOMIC_SEQ_CST);
    return before & bit ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
