/* Copies in batches, and copies with attributes. CUDA does not order the copies of a batch; here
 * they run in the given order. */
#include "copies.h"

#include <string.h>

static bool is_valid(const CUmemcpyAttributes *attributes) {
    return attributes->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
           attributes->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
           attributes->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

static CUresult copy_bytes(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
    CUDA_MEMCPY3D_PEER params = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = source,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = target,
        .WidthInBytes = bytes, .Height = 1, .Depth = 1,
    };
    return bytes ? sim_start_copy(&params, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attr,
                                         CUstream hStream) {
    if (!attr || !is_valid(attr)) return CUDA_ERROR_INVALID_VALUE;
    return copy_bytes(dst, src, size, hStream);
}

CUresult sim_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream) {
    if (!dsts || !srcs || !sizes || !count || !attrs || !attrsIdxs || !numAttrs || numAttrs > count)
        return CUDA_ERROR_INVALID_VALUE;
    /* The legacy default stream is not allowed. */
    if (!hStream || hStream == (CUstream)1) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numAttrs; i++)
        if (!is_valid(&attrs[i]) || (i ? attrsIdxs[i] <= attrsIdxs[i - 1] : attrsIdxs[0] != 0))
            return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < count && !status; i++) status = copy_bytes(dsts[i], srcs[i], sizes[i], hStream);
    return status;
}

static CUresult copy_3d(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream stream) {
    if (op->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER || op->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUDA_MEMCPY3D_PEER params = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = op->src.op.ptr.ptr,
        .srcPitch = op->src.op.ptr.rowLength, .srcHeight = op->src.op.ptr.layerHeight,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = op->dst.op.ptr.ptr,
        .dstPitch = op->dst.op.ptr.rowLength, .dstHeight = op->dst.op.ptr.layerHeight,
        .WidthInBytes = op->extent.width, .Height = op->extent.height, .Depth = op->extent.depth,
    };
    return sim_start_copy(&params, stream, false);
}

CUresult sim_cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags,
                                           CUstream hStream) {
    return op && !flags ? copy_3d(op, hStream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags,
                                  CUstream hStream) {
    if (!numOps || !opList || flags || !hStream || hStream == (CUstream)1) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < numOps && !status; i++) status = copy_3d(&opList[i], hStream);
    return status;
}
