/* Copies as operations: every form of cuMemcpy becomes a CUDA_MEMCPY3D_PEER.
 *
 * A copy between devices needs no peer access: without it, CUDA copies through host memory.
 * Which copies wait for their end is documented in "API synchronization behavior" of the driver
 * API: `start_copy` follows it, so that programs that rely on more than that fail here too. */
#include "copies.h"

#include <stdlib.h>
#include <string.h>

typedef struct Operand {
    char *start; /* of the first row */
    size_t pitch, slice;
    SimPlace place;
} Operand;

typedef struct CopyOperation {
    SimOperation base;
    CUDA_MEMCPY3D_PEER params;
    Operand source, target;
    char *staging; /* a copy of a pageable source, or NULL */
    bool is_synchronous;
} CopyOperation;

static size_t span(const CUDA_MEMCPY3D_PEER *params, const Operand *operand) {
    return (params->Depth - 1) * operand->slice + (params->Height - 1) * operand->pitch +
           params->WidthInBytes;
}

static void copy_rows(const CUDA_MEMCPY3D_PEER *params, const Operand *source, const Operand *target) {
    size_t width = params->WidthInBytes, rows = params->Height;
    for (size_t z = 0; z < params->Depth; z++) {
        char *to = target->start + z * target->slice;
        const char *from = source->start + z * source->slice;
        if (source->pitch == width && target->pitch == width) {
            memmove(to, from, width * rows);
            continue;
        }
        for (size_t y = 0; y < rows; y++)
            memmove(to + y * target->pitch, from + y * source->pitch, width);
    }
}

static CUresult check_operand(const CUDA_MEMCPY3D_PEER *params, const Operand *operand) {
    SimAllocation missing;
    bool is_missing;
    SIM_LOCKED(is_missing = sim_find_inaccessible(operand->start, span(params, operand), &missing));
    if (is_missing) sim_report_missing("a copy", operand->start, &missing);
    return is_missing ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

static CUresult run_copy(SimOperation *operation) {
    CopyOperation *copy = (CopyOperation *)operation;
    CUresult status = check_operand(&copy->params, &copy->target);
    if (!status && !copy->staging) status = check_operand(&copy->params, &copy->source);
    if (status) return status;
    Operand staged = {copy->staging, copy->params.WidthInBytes,
                      copy->params.WidthInBytes * copy->params.Height, SIM_PAGEABLE};
    copy_rows(&copy->params, copy->staging ? &staged : &copy->source, &copy->target);
    return CUDA_SUCCESS;
}

static SimOperation *copy_copy(const SimOperation *operation) {
    CopyOperation *result = malloc(sizeof *result);
    if (!result) return NULL;
    *result = *(const CopyOperation *)operation;
    if (!result->staging) return &result->base;
    size_t bytes = result->params.WidthInBytes * result->params.Height * result->params.Depth;
    const char *staging = result->staging;
    result->staging = malloc(bytes);
    if (!result->staging) {
        free(result);
        return NULL;
    }
    memcpy(result->staging, staging, bytes);
    return &result->base;
}

static void destroy_copy(SimOperation *operation) {
    free(((CopyOperation *)operation)->staging);
    free(operation);
}

const SimOperationType sim_copy_type = {CU_GRAPH_NODE_TYPE_MEMCPY, "a copy", run_copy, copy_copy,
                                        destroy_copy};

typedef struct Side {
    CUmemorytype type;
    void *host;
    CUdeviceptr device;
    size_t x, y, z, pitch, height;
} Side;

/* Check one side of a copy: its pitches, and that its memory exists. */
static CUresult resolve(const CUDA_MEMCPY3D_PEER *params, const Side *side, Operand *result,
                        bool *is_synchronous) {
    size_t width = params->WidthInBytes + side->x;
    result->pitch = side->pitch ? side->pitch : width;
    if (result->pitch < width && params->Height * params->Depth > 1) return CUDA_ERROR_INVALID_VALUE;
    size_t height = side->height ? side->height : params->Height + side->y;
    if (height < params->Height + side->y && params->Depth > 1) return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(result->pitch, height, &result->slice)) return CUDA_ERROR_INVALID_VALUE;
    char *base = side->type == CU_MEMORYTYPE_HOST ? side->host : (char *)side->device;
    if (!base) return CUDA_ERROR_INVALID_VALUE;
    result->start = base + side->z * result->slice + side->y * result->pitch + side->x;
    SIM_LOCKED({
        result->place = sim_place(result->start, span(params, result));
        const SimRange *range = sim_find_range(result->start);
        if (range && range->is_synchronous) *is_synchronous = true;
    });
    switch (side->type) {
    case CU_MEMORYTYPE_HOST:
        return result->place == SIM_NOWHERE || result->place == SIM_DEVICE_PLACE
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE:
        return result->place == SIM_NOWHERE || result->place == SIM_PAGEABLE
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_SUCCESS;
    case CU_MEMORYTYPE_UNIFIED:
        return result->place == SIM_NOWHERE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_MEMORYTYPE_ARRAY: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult new_copy(const CUDA_MEMCPY3D_PEER *params, CopyOperation **result) {
    if (params->srcLOD || params->dstLOD) return CUDA_ERROR_INVALID_VALUE;
    CopyOperation *copy = calloc(1, sizeof *copy);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    copy->base.type = &sim_copy_type;
    copy->params = *params;
    Side source = {params->srcMemoryType, (void *)params->srcHost, params->srcDevice, params->srcXInBytes,
                   params->srcY, params->srcZ, params->srcPitch, params->srcHeight};
    Side target = {params->dstMemoryType, params->dstHost, params->dstDevice, params->dstXInBytes,
                   params->dstY, params->dstZ, params->dstPitch, params->dstHeight};
    CUresult status = resolve(params, &source, &copy->source, &copy->is_synchronous);
    if (!status) status = resolve(params, &target, &copy->target, &copy->is_synchronous);
    if (status) destroy_copy(&copy->base);
    else *result = copy;
    return status;
}

CUresult sim_new_copy(const CUDA_MEMCPY3D_PEER *params, SimOperation **result) {
    CopyOperation *copy;
    if (!params->WidthInBytes || !params->Height || !params->Depth) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = new_copy(params, &copy);
    if (!status) *result = &copy->base;
    return status;
}

void sim_copy_parameters(const SimOperation *operation, CUDA_MEMCPY3D *result) {
    /* The two structures differ in the contexts only, which are reserved fields of this one. */
    memcpy(result, &((const CopyOperation *)operation)->params, sizeof *result);
    result->reserved0 = result->reserved1 = NULL;
}

/* Copy a pageable source now, so that its owner may change it when the call returns. */
static CUresult stage(CopyOperation *copy) {
    const CUDA_MEMCPY3D_PEER *params = &copy->params;
    size_t slice = params->WidthInBytes * params->Height;
    copy->staging = malloc(slice * params->Depth);
    if (!copy->staging) return CUDA_ERROR_OUT_OF_MEMORY;
    Operand staged = {copy->staging, params->WidthInBytes, slice, SIM_PAGEABLE};
    copy_rows(params, &copy->source, &staged);
    return CUDA_SUCCESS;
}

static bool is_host(const Operand *operand) {
    return operand->place == SIM_PAGEABLE || operand->place == SIM_HOST_PLACE;
}

CUresult sim_start_copy(const CUDA_MEMCPY3D_PEER *params, CUstream stream, bool is_synchronous) {
    CopyOperation *copy;
    CUresult status = is_synchronous ? sim_check_unsafe_call() : CUDA_SUCCESS;
    if (!status) status = sim_check_stream(stream);
    if (status || !params->WidthInBytes || !params->Height || !params->Depth) return status;
    if ((status = new_copy(params, &copy))) return status;
    if (!is_synchronous && sim_is_capturing(stream)) return sim_submit(stream, &copy->base);
    bool to_host = is_host(&copy->target), is_staged = copy->source.place == SIM_PAGEABLE && !to_host;
    if (copy->is_synchronous || (is_host(&copy->source) && to_host)) {
        return sim_submit_and_wait(stream, &copy->base);
    }
    if (is_staged) {
        if (is_synchronous) status = sim_cuStreamSynchronize(stream);
        if (!status) status = stage(copy);
        if (status) {
            destroy_copy(&copy->base);
            return status;
        }
        return sim_submit(stream, &copy->base);
    }
    bool is_within_devices =
        copy->source.place == SIM_DEVICE_PLACE && copy->target.place == SIM_DEVICE_PLACE;
    if (is_synchronous ? !is_within_devices : copy->target.place == SIM_PAGEABLE)
        return sim_submit_and_wait(stream, &copy->base);
    return sim_submit(stream, &copy->base);
}
