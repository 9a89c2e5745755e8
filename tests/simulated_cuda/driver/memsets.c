/* cuMemset in all forms, as operations. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct MemsetOperation {
    SimOperation base;
    CUDA_MEMSET_NODE_PARAMS params;
} MemsetOperation;

static size_t span(const CUDA_MEMSET_NODE_PARAMS *params) {
    return (params->height - 1) * params->pitch + params->width * params->elementSize;
}

static void set_row(char *row, const CUDA_MEMSET_NODE_PARAMS *params) {
    size_t width = params->width;
    unsigned int value = params->value;
    switch (params->elementSize) {
    case 1: memset(row, (int)value, width); break;
    case 2:
        for (size_t x = 0; x < width; x++) ((uint16_t *)row)[x] = (uint16_t)value;
        break;
    default:
        for (size_t x = 0; x < width; x++) ((uint32_t *)row)[x] = value;
    }
}

static CUresult run_memset(SimOperation *operation) {
    const CUDA_MEMSET_NODE_PARAMS *params = &((MemsetOperation *)operation)->params;
    SimAllocation missing;
    bool is_missing;
    SIM_LOCKED(is_missing = sim_find_inaccessible((void *)params->dst, span(params), &missing));
    if (is_missing) {
        sim_report_missing("a memset", (void *)params->dst, &missing);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (size_t y = 0; y < params->height; y++) set_row((char *)params->dst + y * params->pitch, params);
    return CUDA_SUCCESS;
}

static SimOperation *copy_memset(const SimOperation *operation) {
    MemsetOperation *result = malloc(sizeof *result);
    if (result) *result = *(const MemsetOperation *)operation;
    return result ? &result->base : NULL;
}

static void destroy_memset(SimOperation *operation) { free(operation); }

const SimOperationType sim_memset_type = {CU_GRAPH_NODE_TYPE_MEMSET, "a memset", run_memset, copy_memset,
                                          destroy_memset};

static CUresult new_memset(const CUDA_MEMSET_NODE_PARAMS *params, SimPlace *place, bool *is_synchronous,
                           SimOperation **result) {
    size_t unit = params->elementSize;
    if (unit != 1 && unit != 2 && unit != 4) return CUDA_ERROR_INVALID_VALUE;
    if (!params->width || !params->height || params->dst % unit) return CUDA_ERROR_INVALID_VALUE;
    if (params->height > 1 && (params->pitch % unit || params->pitch < params->width * unit))
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED({
        *place = sim_place((void *)params->dst, span(params));
        const SimRange *range = sim_find_range((void *)params->dst);
        *is_synchronous = range && range->is_synchronous;
    });
    if (*place == SIM_PAGEABLE || *place == SIM_NOWHERE) return CUDA_ERROR_INVALID_VALUE;
    MemsetOperation *operation = calloc(1, sizeof *operation);
    if (!operation) return CUDA_ERROR_OUT_OF_MEMORY;
    operation->base.type = &sim_memset_type;
    operation->params = *params;
    *result = &operation->base;
    return CUDA_SUCCESS;
}

CUresult sim_new_memset(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context, SimOperation **result) {
    SimPlace place;
    bool is_synchronous;
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    return new_memset(params, &place, &is_synchronous, result);
}

void sim_memset_parameters(const SimOperation *operation, CUDA_MEMSET_NODE_PARAMS *result) {
    *result = ((const MemsetOperation *)operation)->params;
}

/* A synchronous call waits only for host memory and managed memory, as documented. */
static CUresult start(CUdeviceptr target, size_t pitch, unsigned int value, unsigned int unit, size_t width,
                      size_t height, CUstream stream, bool is_synchronous) {
    CUDA_MEMSET_NODE_PARAMS params = {.dst = target, .pitch = pitch, .value = value, .elementSize = unit,
                                      .width = width, .height = height};
    SimOperation *operation;
    SimPlace place;
    bool has_to_wait;
    CUresult status = is_synchronous ? sim_check_unsafe_call() : CUDA_SUCCESS;
    if (!status) status = sim_check_stream(stream);
    if (status || !width || !height) return status;
    if ((status = new_memset(&params, &place, &has_to_wait, &operation))) return status;
    has_to_wait |= is_synchronous && place != SIM_DEVICE_PLACE;
    if (!is_synchronous && sim_is_capturing(stream)) has_to_wait = false;
    return has_to_wait ? sim_submit_and_wait(stream, operation) : sim_submit(stream, operation);
}

CUresult sim_cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
    return start(dstDevice, 0, uc, 1, N, 1, NULL, true);
}

CUresult sim_cuMemsetD16(CUdeviceptr dstDevice, unsigned short us, size_t N) {
    return start(dstDevice, 0, us, 2, N, 1, NULL, true);
}

CUresult sim_cuMemsetD32(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
    return start(dstDevice, 0, ui, 4, N, 1, NULL, true);
}

CUresult sim_cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
    return start(dstDevice, 0, uc, 1, N, 1, hStream, false);
}

CUresult sim_cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
    return start(dstDevice, 0, us, 2, N, 1, hStream, false);
}

CUresult sim_cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
    return start(dstDevice, 0, ui, 4, N, 1, hStream, false);
}

CUresult sim_cuMemsetD2D8(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                          size_t Height) {
    return start(dstDevice, dstPitch, uc, 1, Width, Height, NULL, true);
}

CUresult sim_cuMemsetD2D16(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                           size_t Height) {
    return start(dstDevice, dstPitch, us, 2, Width, Height, NULL, true);
}

CUresult sim_cuMemsetD2D32(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                           size_t Height) {
    return start(dstDevice, dstPitch, ui, 4, Width, Height, NULL, true);
}

CUresult sim_cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                               size_t Height, CUstream hStream) {
    return start(dstDevice, dstPitch, uc, 1, Width, Height, hStream, false);
}

CUresult sim_cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                                size_t Height, CUstream hStream) {
    return start(dstDevice, dstPitch, us, 2, Width, Height, hStream, false);
}

CUresult sim_cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                                size_t Height, CUstream hStream) {
    return start(dstDevice, dstPitch, ui, 4, Width, Height, hStream, false);
}
