/* Queries about pointers. */
#include "pools.h"

#include <string.h>

/* What a query writes; the attributes have different types. */
typedef union Value {
    void *pointer;
    unsigned long long number;
    unsigned int flag;
    int integer;
} Value;

static size_t size_of(CUpointer_attribute attribute) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL: return sizeof(int);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return sizeof(void *);
    default: return 0;
    }
}

static int ordinal(const SimRange *range) {
    if (range->info.device >= 0) return range->info.device;
    return range->context ? range->context->device->ordinal : CU_DEVICE_INVALID;
}

static unsigned long long handle_types(const SimRange *range) {
    if (range->physical) return (unsigned long long)sim_handle_types(range->physical);
    return range->pool ? (unsigned long long)range->pool->props.handleTypes : 0;
}

static unsigned long long access_flags(const SimRange *range, const SimContext *context) {
    if (!sim_is_accessible_from(range, context)) return CU_MEM_ACCESS_FLAGS_PROT_NONE;
    bool is_read_only = range->physical && !(range->writers >> context->device->ordinal & 1);
    return is_read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/* Needs the lock. */
static CUresult query(const SimRange *range, SimPlace place, CUpointer_attribute attribute, CUdeviceptr pointer,
                      const SimContext *context, Value *result) {
    const SimPages *reservation = range->physical ? sim_reservation(range->info.start) : NULL;
    bool is_pooled = range->info.kind == SIM_POOL_MEMORY;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: result->pointer = is_pooled ? NULL : range->context; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        result->flag = place == SIM_HOST_PLACE ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!sim_is_accessible_from(range, context)) return CUDA_ERROR_INVALID_VALUE;
        result->number = pointer;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (place == SIM_DEVICE_PLACE) return CUDA_ERROR_INVALID_VALUE;
        result->number = pointer;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: result->flag = range->is_synchronous; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: result->number = range->info.id; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: result->flag = place == SIM_MANAGED_PLACE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: result->integer = ordinal(range); break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        result->flag = range->info.kind == SIM_DEVICE_MEMORY;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        result->pointer = reservation ? reservation->start : range->info.start;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        result->number = reservation ? reservation->size : range->info.size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED: result->flag = 1; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: result->number = handle_types(range); break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: result->number = access_flags(range, context); break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: result->pointer = range->pool; break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: result->number = range->info.size; break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: result->pointer = range->info.start; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        result->number = range->physical ? (uintptr_t)range->physical : range->info.id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: result->flag = 0; break;
    case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL: result->integer = -1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult get(CUpointer_attribute attribute, CUdeviceptr pointer, void *data) {
    SimContext *context;
    size_t size = size_of(attribute);
    if (!data || !size) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    Value value = {0};
    pthread_mutex_lock(&sim_memory_lock);
    const SimRange *range = sim_find_range((void *)pointer);
    if (range && range->is_allocated) {
        status = query(range, sim_place((void *)pointer, 1), attribute, pointer, context, &value);
    } else if (attribute == CU_POINTER_ATTRIBUTE_MAPPED && sim_is_reserved((void *)pointer)) {
        value.flag = 0;
    } else {
        status = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&sim_memory_lock);
    if (!status) memcpy(data, &value, size);
    return status;
}

CUresult sim_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    return get(attribute, ptr, data);
}

CUresult sim_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                    CUdeviceptr ptr) {
    if (!numAttributes || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < numAttributes; i++) {
        size_t size = size_of(attributes[i]);
        if (!data[i] || !size) return CUDA_ERROR_INVALID_VALUE;
        CUresult status = get(attributes[i], ptr, data[i]);
        if (status == CUDA_ERROR_INVALID_CONTEXT) return status;
        if (!status) continue;
        /* Attributes that an address does not have are null; that of a device is invalid. */
        memset(data[i], 0, size);
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)data[i] = CU_DEVICE_INVALID;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    SimContext *context;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    status = CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED({
        SimRange *range = sim_find_range((void *)ptr);
        if (range && range->is_allocated) {
            range->is_synchronous = *(const unsigned int *)value != 0;
            status = CUDA_SUCCESS;
        }
    });
    /* Synchronous operations that are still pending must end first. */
    return status ? status : sim_context_synchronize(context);
}
