/* Memory that graphs allocate. Its addresses belong to the operations of the graph, which share one
 * range; its pages exist from the run of an allocation node to the run of a free. */
#include "graphs.h"
#include "pools.h"

#include <stdlib.h>

typedef struct GraphMemory {
    size_t used, used_high, reserved, reserved_high;
} GraphMemory;

static GraphMemory counts[SIM_MAX_DEVICES];

static size_t counted(const SimRange *range) { return sim_round_up(range->info.size, SIM_ALIGNMENT); }

CUresult sim_show_graph_memory(SimRange *range) {
    int device = range->info.device;
    if (!range->is_accessible && device >= 0) {
        GraphMemory *count = &counts[device];
        size_t needed = sim_round_up(count->used + counted(range), SIM_GRANULARITY);
        if (needed > count->reserved) {
            if (!sim_take_memory(device, needed - count->reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
            count->reserved = needed;
        }
        count->used += counted(range);
        if (count->used > count->used_high) count->used_high = count->used;
        if (count->reserved > count->reserved_high) count->reserved_high = count->reserved;
    }
    if (!sim_show_pages(&range->pages, PROT_READ | PROT_WRITE)) return CUDA_ERROR_OUT_OF_MEMORY;
    range->is_accessible = true;
    sim_fill(range);
    return CUDA_SUCCESS;
}

bool sim_hide_graph_memory(SimRange *range) {
    if (!range->is_accessible) return false;
    sim_check_canaries(range);
    sim_drop_pages(&range->pages);
    sim_hide_pages(&range->pages);
    range->is_accessible = false;
    if (range->info.device >= 0) counts[range->info.device].used -= counted(range);
    if (!range->references) sim_remove_range(range);
    return true;
}

/* The memory that a node allocates or frees, or NULL. */
static SimRange *range_of(const SimNode *node, CUgraphNodeType type) {
    if (node->type != type || !node->contents) return NULL;
    return ((const PoolOperation *)node->contents->operation)->range;
}

CUresult sim_claim_graph_memory(CUgraph graph, bool frees) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_memory_lock);
    for (size_t number = 0; number < graph->count; number++) {
        const SimRange *range = range_of(graph->nodes[number], CU_GRAPH_NODE_TYPE_MEM_ALLOC);
        if (range && range->is_claimed && !frees) status = CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t number = 0; number < graph->count && !status; number++) {
        SimRange *range = range_of(graph->nodes[number], CU_GRAPH_NODE_TYPE_MEM_ALLOC);
        if (range) range->is_claimed = true;
    }
    for (size_t number = 0; number < graph->count && !status; number++) {
        SimRange *range = range_of(graph->nodes[number], CU_GRAPH_NODE_TYPE_MEM_FREE);
        if (range) range->is_claimed = false;
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

static bool set_access(SimRange *range, const CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    range->readers = range->writers = sim_location_bit(&params->poolProps.location);
    for (size_t i = 0; i < params->accessDescCount; i++) {
        unsigned int bit = sim_location_bit(&params->accessDescs[i].location);
        if (!bit) return false;
        if (params->accessDescs[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ) range->readers |= bit;
        if (params->accessDescs[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) range->writers |= bit;
    }
    return true;
}

CUresult sim_new_pool_allocation(CUDA_MEM_ALLOC_NODE_PARAMS *params, SimOperation **result) {
    int device = sim_location_device(&params->poolProps.location);
    if (!params->bytesize || device == -2 || (params->accessDescCount && !params->accessDescs) ||
        params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = sim_round_up(params->bytesize, SIM_ALIGNMENT);
    if (bytes < params->bytesize) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim_memory_lock);
    SimRange *range = sim_new_range(SIM_POOL_MEMORY, device, params->bytesize);
    SimOperation *operation = NULL;
    if (!range || !(operation = sim_new_pool_operation(&sim_pool_allocation_type, range))) goto failed;
    if (!set_access(range, params)) {
        status = CUDA_ERROR_INVALID_DEVICE;
        goto failed;
    }
    if (!sim_new_pages(device, bytes, -1, 0, &range->pages)) goto failed;
    range->info.start = range->pages.start + range->pages.size - bytes;
    range->is_graph_memory = true;
    range->is_accessible = false;
    if (!sim_add_range(range)) {
        sim_unmap_pages(&range->pages);
        goto failed;
    }
    params->dptr = (CUdeviceptr)range->info.start;
    ((PoolOperation *)operation)->params = *params;
    pthread_mutex_unlock(&sim_memory_lock);
    *result = operation;
    return CUDA_SUCCESS;
failed:
    free(operation);
    free(range);
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

CUresult sim_new_pool_free(CUdeviceptr address, SimOperation **result) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_memory_lock);
    SimRange *range = sim_find_range((void *)address);
    if (range && range->is_graph_memory && range->info.start == (char *)address) {
        *result = sim_new_pool_operation(&sim_pool_free_type, range);
        status = *result ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

CUresult sim_cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
    if (!sim_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    GraphMemory count;
    SIM_LOCKED(count = counts[device]);
    cuuint64_t *bytes = value;
    switch (attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *bytes = count.used; break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *bytes = count.used_high; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *bytes = count.reserved; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *bytes = count.reserved_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
    if (!sim_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value || *(const cuuint64_t *)value) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_SUCCESS;
    SIM_LOCKED({
        GraphMemory *count = &counts[device];
        if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) count->used_high = count->used;
        else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) count->reserved_high = count->reserved;
        else status = CUDA_ERROR_INVALID_VALUE;
    });
    return status;
}

CUresult sim_cuDeviceGraphMemTrim(CUdevice device) {
    if (!sim_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    SIM_LOCKED({
        GraphMemory *count = &counts[device];
        size_t kept = sim_round_up(count->used, SIM_GRANULARITY);
        sim_return_memory(device, count->reserved - kept);
        count->reserved = kept;
    });
    return CUDA_SUCCESS;
}
