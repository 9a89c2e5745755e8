/* The functions of the API that copy. */
#include "copies.h"

#include <string.h>

static CUresult copy_bytes(CUmemorytype target_type, CUdeviceptr target, CUmemorytype source_type,
                           CUdeviceptr source, size_t bytes, CUstream stream, bool is_synchronous) {
    CUDA_MEMCPY3D_PEER params = {
        .srcMemoryType = source_type, .srcDevice = source, .srcHost = (void *)source,
        .dstMemoryType = target_type, .dstDevice = target, .dstHost = (void *)target,
        .WidthInBytes = bytes, .Height = 1, .Depth = 1,
    };
    return sim_start_copy(&params, stream, is_synchronous);
}

CUresult sim_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    return copy_bytes(CU_MEMORYTYPE_UNIFIED, dst, CU_MEMORYTYPE_UNIFIED, src, ByteCount, NULL, true);
}

CUresult sim_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    return copy_bytes(CU_MEMORYTYPE_UNIFIED, dst, CU_MEMORYTYPE_UNIFIED, src, ByteCount, hStream, false);
}

CUresult sim_cuMemcpyHtoD(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
    return copy_bytes(CU_MEMORYTYPE_DEVICE, dstDevice, CU_MEMORYTYPE_HOST, (CUdeviceptr)srcHost,
                      ByteCount, NULL, true);
}

CUresult sim_cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                               CUstream hStream) {
    return copy_bytes(CU_MEMORYTYPE_DEVICE, dstDevice, CU_MEMORYTYPE_HOST, (CUdeviceptr)srcHost,
                      ByteCount, hStream, false);
}

CUresult sim_cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
    return copy_bytes(CU_MEMORYTYPE_HOST, (CUdeviceptr)dstHost, CU_MEMORYTYPE_DEVICE, srcDevice,
                      ByteCount, NULL, true);
}

CUresult sim_cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                               CUstream hStream) {
    return copy_bytes(CU_MEMORYTYPE_HOST, (CUdeviceptr)dstHost, CU_MEMORYTYPE_DEVICE, srcDevice,
                      ByteCount, hStream, false);
}

CUresult sim_cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
    return copy_bytes(CU_MEMORYTYPE_DEVICE, dstDevice, CU_MEMORYTYPE_DEVICE, srcDevice, ByteCount,
                      NULL, true);
}

CUresult sim_cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                               CUstream hStream) {
    return copy_bytes(CU_MEMORYTYPE_DEVICE, dstDevice, CU_MEMORYTYPE_DEVICE, srcDevice, ByteCount,
                      hStream, false);
}

/* A copy between contexts follows all work of both, and precedes all later work of both. */
static CUresult synchronize_both(CUcontext first, CUcontext second) {
    CUresult status = sim_context_synchronize(first);
    return status || first == second ? status : sim_context_synchronize(second);
}

CUresult sim_cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                          CUcontext srcContext, size_t ByteCount) {
    if (!dstContext || !srcContext) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult status = sim_check_unsafe_call();
    if (!status) status = synchronize_both(dstContext, srcContext);
    if (!status) status = sim_cuMemcpyDtoD(dstDevice, srcDevice, ByteCount);
    return status ? status : sim_cuStreamSynchronize(NULL);
}

CUresult sim_cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                               CUcontext srcContext, size_t ByteCount, CUstream hStream) {
    if (!dstContext || !srcContext) return CUDA_ERROR_INVALID_CONTEXT;
    return sim_cuMemcpyDtoDAsync(dstDevice, srcDevice, ByteCount, hStream);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool is_synchronous) {
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D_PEER params = {
        .srcXInBytes = copy->srcXInBytes, .srcY = copy->srcY, .srcMemoryType = copy->srcMemoryType,
        .srcHost = copy->srcHost, .srcDevice = copy->srcDevice, .srcArray = copy->srcArray,
        .srcPitch = copy->srcPitch,
        .dstXInBytes = copy->dstXInBytes, .dstY = copy->dstY, .dstMemoryType = copy->dstMemoryType,
        .dstHost = copy->dstHost, .dstDevice = copy->dstDevice, .dstArray = copy->dstArray,
        .dstPitch = copy->dstPitch,
        .WidthInBytes = copy->WidthInBytes, .Height = copy->Height, .Depth = 1,
    };
    return sim_start_copy(&params, stream, is_synchronous);
}

CUresult sim_cuMemcpy2D(const CUDA_MEMCPY2D *pCopy) { return copy_2d(pCopy, NULL, true); }

CUresult sim_cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *pCopy) { return copy_2d(pCopy, NULL, true); }

CUresult sim_cuMemcpy2DAsync(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
    return copy_2d(pCopy, hStream, false);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *copy, CUstream stream, bool is_synchronous) {
    if (!copy || copy->reserved0 || copy->reserved1) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D_PEER params;
    memcpy(&params, copy, sizeof params); /* the contexts are the reserved fields */
    return sim_start_copy(&params, stream, is_synchronous);
}

CUresult sim_cuMemcpy3D(const CUDA_MEMCPY3D *pCopy) { return copy_3d(pCopy, NULL, true); }

CUresult sim_cuMemcpy3DAsync(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
    return copy_3d(pCopy, hStream, false);
}

CUresult sim_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy) {
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    if (!pCopy->dstContext || !pCopy->srcContext) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult status = sim_check_unsafe_call();
    if (!status) status = synchronize_both(pCopy->dstContext, pCopy->srcContext);
    if (!status) status = sim_start_copy(pCopy, NULL, true);
    return status ? status : sim_cuStreamSynchronize(NULL);
}

CUresult sim_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream) {
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    if (!pCopy->dstContext || !pCopy->srcContext) return CUDA_ERROR_INVALID_CONTEXT;
    return sim_start_copy(pCopy, hStream, false);
}
