/* Stream memory operations: wait for a value, write one, in the order of a stream. */
#include "memory_operations.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_OPERATIONS 256 /* in one batch, as documented */
/* A kernel or the host may write the value without telling anybody, so a waiting stream looks at it
 * again after this time. */
#define LOOK_NANOSECONDS 200000

typedef struct MemoryOperations {
    SimOperation base;
    unsigned int flags, count;
    CUstreamBatchMemOpParams params[];
} MemoryOperations;

static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_written;
static pthread_once_t is_prepared = PTHREAD_ONCE_INIT;

static void prepare(void) { sim_make_condition(&is_written); }

static bool is_wide(const CUstreamBatchMemOpParams *params) {
    return params->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
           params->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static bool is_met(const CUstreamBatchMemOpParams *params) {
    const void *address = (const void *)(uintptr_t)params->waitValue.address;
    unsigned int condition = params->waitValue.flags & 3u;
    if (is_wide(params)) {
        uint64_t found = __atomic_load_n((const uint64_t *)address, __ATOMIC_ACQUIRE);
        uint64_t value = params->waitValue.value64;
        switch (condition) {
        case CU_STREAM_WAIT_VALUE_GEQ: return (int64_t)(found - value) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ: return found == value;
        case CU_STREAM_WAIT_VALUE_AND: return (found & value) != 0;
        default: return ~(found | value) != 0;
        }
    }
    uint32_t found = __atomic_load_n((const uint32_t *)address, __ATOMIC_ACQUIRE);
    uint32_t value = params->waitValue.value;
    switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ: return (int32_t)(found - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return found == value;
    case CU_STREAM_WAIT_VALUE_AND: return (found & value) != 0;
    default: return ~(found | value) != 0;
    }
}

/* Memory that was freed after the call is a fault of the stream. */
static bool is_accessible(const CUstreamBatchMemOpParams *params) {
    SimAllocation allocation;
    const void *address = (const void *)(uintptr_t)params->waitValue.address;
    return sim_find_allocation(address, 0, &allocation) && !allocation.is_freed;
}

static CUresult wait_for_value(const CUstreamBatchMemOpParams *params, const SimContext *context) {
    pthread_once(&is_prepared, prepare);
    for (;;) {
        if (!is_accessible(params)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (is_met(params)) return CUDA_SUCCESS;
        if (context->sticky) return context->sticky;
        struct timespec limit;
        clock_gettime(CLOCK_MONOTONIC, &limit);
        limit.tv_nsec += LOOK_NANOSECONDS;
        limit.tv_sec += limit.tv_nsec / 1000000000;
        limit.tv_nsec %= 1000000000;
        pthread_mutex_lock(&write_lock);
        if (!is_met(params)) pthread_cond_timedwait(&is_written, &write_lock, &limit);
        pthread_mutex_unlock(&write_lock);
    }
}

static CUresult write_value(const CUstreamBatchMemOpParams *params) {
    if (!is_accessible(params)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    void *address = (void *)(uintptr_t)params->writeValue.address;
    pthread_once(&is_prepared, prepare);
    pthread_mutex_lock(&write_lock);
    if (is_wide(params))
        __atomic_store_n((uint64_t *)address, params->writeValue.value64, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)address, params->writeValue.value, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&is_written);
    pthread_mutex_unlock(&write_lock);
    return CUDA_SUCCESS;
}

static CUresult run(SimOperation *operation) {
    MemoryOperations *self = (MemoryOperations *)operation;
    CUresult status = CUDA_SUCCESS;
    for (unsigned int number = 0; number < self->count && status == CUDA_SUCCESS; number++) {
        const CUstreamBatchMemOpParams *params = &self->params[number];
        switch (params->operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            status = wait_for_value(params, operation->context);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: status = write_value(params); break;
        default: __atomic_thread_fence(__ATOMIC_SEQ_CST); break;
        }
    }
    return status;
}

static SimOperation *copy(const SimOperation *operation) {
    const MemoryOperations *self = (const MemoryOperations *)operation;
    SimOperation *result = NULL;
    sim_new_memory_operations(self->count, self->params, self->flags, &result);
    return result;
}

static void destroy(SimOperation *operation) { free(operation); }

const SimOperationType sim_memory_operations_type = {
    .node_type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
    .name = "memory operation",
    .run = run,
    .copy = copy,
    .destroy = destroy,
};

static bool is_valid(const CUstreamBatchMemOpParams *params) {
    const unsigned int wait_flags = CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
    uint64_t mask = is_wide(params) ? 7 : 3;
    switch (params->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        if (params->waitValue.flags & ~wait_flags) return false;
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        if (params->writeValue.flags & ~(unsigned int)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
            return false;
        break;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: return params->flushRemoteWrites.flags == 0;
    case CU_STREAM_MEM_OP_BARRIER: return params->memoryBarrier.flags <= 1;
    default: return false;
    }
    return !(params->waitValue.address & mask) && is_accessible(params);
}

CUresult sim_new_memory_operations(unsigned int count, const CUstreamBatchMemOpParams *params,
                                   unsigned int flags, SimOperation **result) {
    if (count == 0 || count > MAX_OPERATIONS || params == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int number = 0; number < count; number++)
        if (!is_valid(&params[number])) return CUDA_ERROR_INVALID_VALUE;
    MemoryOperations *operation = sim_zeroed(sizeof *operation + count * sizeof *params);
    operation->base.type = &sim_memory_operations_type;
    operation->flags = flags;
    operation->count = count;
    memcpy(operation->params, params, count * sizeof *params);
    *result = &operation->base;
    return CUDA_SUCCESS;
}

void sim_memory_operations_parameters(SimOperation *operation,
                                      CUDA_BATCH_MEM_OP_NODE_PARAMS *result) {
    MemoryOperations *self = (MemoryOperations *)operation;
    *result = (CUDA_BATCH_MEM_OP_NODE_PARAMS){operation->context, self->count, self->params,
                                              self->flags};
}

CUresult sim_cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                CUstreamBatchMemOpParams *params, unsigned int flags) {
    SimOperation *operation;
    CUresult status = sim_new_memory_operations(count, params, flags, &operation);
    return status ? status : sim_submit(stream, operation);
}

CUresult sim_cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags) {
    CUstreamBatchMemOpParams params = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                                                     .address = address,
                                                     .value = value,
                                                     .flags = flags}};
    return sim_cuStreamBatchMemOp(stream, 1, &params, 0);
}

CUresult sim_cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags) {
    CUstreamBatchMemOpParams params = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                                                     .address = address,
                                                     .value64 = value,
                                                     .flags = flags}};
    return sim_cuStreamBatchMemOp(stream, 1, &params, 0);
}

CUresult sim_cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                  unsigned int flags) {
    CUstreamBatchMemOpParams params = {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                                      .address = address,
                                                      .value = value,
                                                      .flags = flags}};
    return sim_cuStreamBatchMemOp(stream, 1, &params, 0);
}

CUresult sim_cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                  unsigned int flags) {
    CUstreamBatchMemOpParams params = {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
                                                      .address = address,
                                                      .value64 = value,
                                                      .flags = flags}};
    return sim_cuStreamBatchMemOp(stream, 1, &params, 0);
}
