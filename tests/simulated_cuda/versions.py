"""The functions of the driver API whose interface changed, and those of the per-thread stream.

The facts are those of the public headers ``cudaTypedefs.h`` and ``cuda.h``, with which a test
compares this list where the wheel nvidia-cuda-runtime is installed.
"""

from __future__ import annotations

__all__ = ["PER_THREAD_COPIES", "PER_THREAD_STREAMS", "VARIANTS", "symbols", "variants"]

VARIANTS = """
cuArray3DCreate 2000:- 3020:cuArray3DCreate
cuArray3DGetDescriptor 2000:- 3020:cuArray3DGetDescriptor
cuArrayCreate 2000:- 3020:cuArrayCreate
cuArrayGetDescriptor 2000:- 3020:cuArrayGetDescriptor
cuCtxCreate 2000:- 3020:cuCtxCreate_v2 11040:cuCtxCreate_v3 12050:cuCtxCreate
cuCtxDestroy 2000:- 4000:cuCtxDestroy
cuCtxGetDevice 2000:cuCtxGetDevice 13000:cuCtxGetDevice_v2
cuCtxPopCurrent 2000:- 4000:cuCtxPopCurrent
cuCtxPushCurrent 2000:- 4000:cuCtxPushCurrent
cuCtxSynchronize 2000:cuCtxSynchronize 13000:cuCtxSynchronize_v2
cuDeviceGetUuid 9020:- 11040:cuDeviceGetUuid
cuDevicePrimaryCtxRelease 7000:- 11000:cuDevicePrimaryCtxRelease
cuDevicePrimaryCtxReset 7000:- 11000:cuDevicePrimaryCtxReset
cuDevicePrimaryCtxSetFlags 7000:- 11000:cuDevicePrimaryCtxSetFlags
cuDeviceTotalMem 2000:- 3020:cuDeviceTotalMem
cuEventDestroy 2000:- 4000:cuEventDestroy
cuEventElapsedTime 2000:cuEventElapsedTime 12080:cuEventElapsedTime
cuGetProcAddress 11030:- 12000:cuGetProcAddress
cuGraphAddDependencies 10000:- 12030:cuGraphAddDependencies
cuGraphAddKernelNode 10000:- 12000:cuGraphAddKernelNode
cuGraphAddNode 12020:- 12030:cuGraphAddNode 13040:cuGraphAddNode_v3
cuGraphExecKernelNodeSetParams 10010:- 12000:cuGraphExecKernelNodeSetParams
cuGraphExecUpdate 10020:- 12000:cuGraphExecUpdate
cuGraphGetEdges 10000:- 12030:cuGraphGetEdges
cuGraphInstantiate 10000:- 12000:cuGraphInstantiate
cuGraphInstantiateWithFlags 11040:cuGraphInstantiate
cuGraphKernelNodeGetParams 10000:- 12000:cuGraphKernelNodeGetParams
cuGraphKernelNodeSetParams 10000:- 12000:cuGraphKernelNodeSetParams
cuGraphNodeGetDependencies 10000:- 12030:cuGraphNodeGetDependencies
cuGraphNodeGetDependentNodes 10000:- 12030:cuGraphNodeGetDependentNodes
cuGraphNodeSetParams 12020:cuGraphNodeSetParams 13040:cuGraphNodeSetParams_v2
cuGraphRemoveDependencies 10000:- 12030:cuGraphRemoveDependencies
cuGraphicsResourceGetMappedPointer 3000:- 3020:cuGraphicsResourceGetMappedPointer
cuGraphicsResourceSetMapFlags 3000:- 6050:cuGraphicsResourceSetMapFlags
cuIpcOpenMemHandle 4010:- 11000:cuIpcOpenMemHandle
cuLaunchHostFunc 10000:cuLaunchHostFunc 13010:cuLaunchHostFunc_v2
cuLinkAddData 5050:- 6050:cuLinkAddData
cuLinkAddFile 5050:- 6050:cuLinkAddFile
cuLinkCreate 5050:- 6050:cuLinkCreate
cuMemAdvise 8000:- 12020:cuMemAdvise
cuMemAlloc 2000:- 3020:cuMemAlloc
cuMemAllocHost 2000:- 3020:cuMemAllocHost
cuMemAllocPitch 2000:- 3020:cuMemAllocPitch
cuMemFree 2000:- 3020:cuMemFree
cuMemGetAddressRange 2000:- 3020:cuMemGetAddressRange
cuMemGetInfo 2000:- 3020:cuMemGetInfo
cuMemHostGetDevicePointer 2020:- 3020:cuMemHostGetDevicePointer
cuMemHostRegister 4000:- 6050:cuMemHostRegister
cuMemPrefetchAsync 8000:- 12020:cuMemPrefetchAsync
cuMemcpy2D 2000:- 3020:cuMemcpy2D
cuMemcpy2DAsync 2000:- 3020:cuMemcpy2DAsync
cuMemcpy2DUnaligned 2000:- 3020:cuMemcpy2DUnaligned
cuMemcpy3D 2000:- 3020:cuMemcpy3D
cuMemcpy3DAsync 2000:- 3020:cuMemcpy3DAsync
cuMemcpy3DBatchAsync 12080:- 13000:cuMemcpy3DBatchAsync
cuMemcpyAtoA 2000:- 3020:cuMemcpyAtoA
cuMemcpyAtoD 2000:- 3020:cuMemcpyAtoD
cuMemcpyAtoH 2000:- 3020:cuMemcpyAtoH
cuMemcpyAtoHAsync 2000:- 3020:cuMemcpyAtoHAsync
cuMemcpyBatchAsync 12080:- 13000:cuMemcpyBatchAsync
cuMemcpyDtoA 2000:- 3020:cuMemcpyDtoA
cuMemcpyDtoD 2000:- 3020:cuMemcpyDtoD
cuMemcpyDtoDAsync 3000:- 3020:cuMemcpyDtoDAsync
cuMemcpyDtoH 2000:- 3020:cuMemcpyDtoH
cuMemcpyDtoHAsync 2000:- 3020:cuMemcpyDtoHAsync
cuMemcpyHtoA 2000:- 3020:cuMemcpyHtoA
cuMemcpyHtoAAsync 2000:- 3020:cuMemcpyHtoAAsync
cuMemcpyHtoD 2000:- 3020:cuMemcpyHtoD
cuMemcpyHtoDAsync 2000:- 3020:cuMemcpyHtoDAsync
cuMemsetD16 2000:- 3020:cuMemsetD16
cuMemsetD2D16 2000:- 3020:cuMemsetD2D16
cuMemsetD2D32 2000:- 3020:cuMemsetD2D32
cuMemsetD2D8 2000:- 3020:cuMemsetD2D8
cuMemsetD32 2000:- 3020:cuMemsetD32
cuMemsetD8 2000:- 3020:cuMemsetD8
cuModuleGetGlobal 2000:- 3020:cuModuleGetGlobal
cuMulticastBindAddr 12010:cuMulticastBindAddr 13010:cuMulticastBindAddr_v2
cuMulticastBindMem 12010:cuMulticastBindMem 13010:cuMulticastBindMem_v2
cuStreamBatchMemOp 8000:- 11070:cuStreamBatchMemOp
cuStreamBeginCapture 10000:- 10010:cuStreamBeginCapture
cuStreamDestroy 2000:- 4000:cuStreamDestroy
cuStreamGetCaptureInfo 10010:- 11030:cuStreamGetCaptureInfo_v2 12030:cuStreamGetCaptureInfo
cuStreamGetCtx 9020:cuStreamGetCtx 12050:cuStreamGetCtx_v2
cuStreamUpdateCaptureDependencies 11030:- 12030:cuStreamUpdateCaptureDependencies
cuStreamWaitValue32 8000:- 11070:cuStreamWaitValue32
cuStreamWaitValue64 9000:- 11070:cuStreamWaitValue64
cuStreamWriteValue32 8000:- 11070:cuStreamWriteValue32
cuStreamWriteValue64 9000:- 11070:cuStreamWriteValue64
cuTexRefGetAddress 2000:- 3020:cuTexRefGetAddress
cuTexRefSetAddress 2000:- 3020:cuTexRefSetAddress
cuTexRefSetAddress2D 2020:- 3020:- 4010:cuTexRefSetAddress2D
"""
"""Name, then for each interface of it the CUDA version that introduced it and the function of
cuda-bindings with that interface, or - if cuda-bindings declares none."""

_SYMBOLS_V2 = """
    cuArray3DCreate cuArray3DGetDescriptor cuArrayCreate cuArrayGetDescriptor cuCtxDestroy
    cuCtxPopCurrent cuCtxPushCurrent cuDeviceGetUuid cuDevicePrimaryCtxRelease
    cuDevicePrimaryCtxReset cuDevicePrimaryCtxSetFlags cuDeviceTotalMem cuEventDestroy
    cuEventElapsedTime cuGraphAddDependencies cuGraphAddKernelNode cuGraphAddNode
    cuGraphExecKernelNodeSetParams cuGraphExecUpdate cuGraphGetEdges cuGraphKernelNodeGetParams
    cuGraphKernelNodeSetParams cuGraphNodeGetDependencies cuGraphNodeGetDependentNodes
    cuGraphRemoveDependencies cuGraphicsResourceGetMappedPointer cuGraphicsResourceSetMapFlags
    cuIpcOpenMemHandle cuLinkAddData cuLinkAddFile cuLinkCreate cuMemAdvise cuMemAlloc
    cuMemAllocHost cuMemAllocPitch cuMemFree cuMemGetAddressRange cuMemGetInfo
    cuMemHostGetDevicePointer cuMemHostRegister cuMemPrefetchAsync cuMemcpy2D cuMemcpy2DAsync
    cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpy3DBatchAsync cuMemcpyAtoA
    cuMemcpyAtoD cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyBatchAsync cuMemcpyDtoA cuMemcpyDtoD
    cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoD
    cuMemcpyHtoDAsync cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32
    cuMemsetD8 cuModuleGetGlobal cuStreamBatchMemOp cuStreamBeginCapture cuStreamDestroy
    cuStreamUpdateCaptureDependencies cuStreamWaitValue32 cuStreamWaitValue64
    cuStreamWriteValue32 cuStreamWriteValue64 cuTexRefGetAddress cuTexRefSetAddress
"""
_OTHER_SYMBOLS = {
    "cuCtxCreate": "cuCtxCreate_v4",
    "cuGraphInstantiate": "cuGraphInstantiateWithFlags",
    "cuStreamGetCaptureInfo": "cuStreamGetCaptureInfo_v3",
    "cuTexRefSetAddress2D": "cuTexRefSetAddress2D_v3",
}

PER_THREAD_COPIES = """
    cuMemcpy cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DPeer cuMemcpyAtoA cuMemcpyAtoD
    cuMemcpyAtoH cuMemcpyDtoA cuMemcpyDtoD cuMemcpyDtoH cuMemcpyHtoA cuMemcpyHtoD cuMemcpyPeer
    cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32 cuMemsetD8
"""
"""Functions without a stream that have a variant of suffix ``_ptds``: it uses the per-thread
stream."""

PER_THREAD_STREAMS = """
    cuEventRecord cuEventRecordWithFlags cuGraphInstantiateWithParams cuGraphLaunch cuGraphUpload
    cuGraphicsMapResources cuGraphicsUnmapResources cuLaunchCooperativeKernel cuLaunchHostFunc
    cuLaunchHostFunc_v2 cuLaunchKernel cuLaunchKernelEx cuMemAllocAsync cuMemAllocFromPoolAsync
    cuMemBatchDecompressAsync cuMemDiscardAndPrefetchBatchAsync cuMemDiscardBatchAsync
    cuMemFreeAsync cuMemMapArrayAsync cuMemPrefetchAsync cuMemPrefetchBatchAsync cuMemcpy2DAsync
    cuMemcpy3DAsync cuMemcpy3DBatchAsync cuMemcpy3DPeerAsync cuMemcpy3DWithAttributesAsync
    cuMemcpyAsync cuMemcpyAtoHAsync cuMemcpyBatchAsync cuMemcpyDtoDAsync cuMemcpyDtoHAsync
    cuMemcpyHtoAAsync cuMemcpyHtoDAsync cuMemcpyPeerAsync cuMemcpyWithAttributesAsync
    cuMemsetD16Async cuMemsetD2D16Async cuMemsetD2D32Async cuMemsetD2D8Async cuMemsetD32Async
    cuMemsetD8Async cuSignalExternalSemaphoresAsync cuStreamAddCallback cuStreamAttachMemAsync
    cuStreamBatchMemOp cuStreamBeginCapture cuStreamBeginCaptureToCig cuStreamBeginCaptureToGraph
    cuStreamBeginRecaptureToGraph cuStreamCopyAttributes cuStreamEndCapture cuStreamEndCaptureToCig
    cuStreamGetAttribute cuStreamGetCaptureInfo cuStreamGetCtx cuStreamGetCtx_v2
    cuStreamGetDevResource cuStreamGetDevice cuStreamGetFlags cuStreamGetId cuStreamGetPriority
    cuStreamIsCapturing cuStreamQuery cuStreamSetAttribute cuStreamSynchronize
    cuStreamUpdateCaptureDependencies cuStreamWaitEvent cuStreamWaitValue32 cuStreamWaitValue64
    cuStreamWriteValue32 cuStreamWriteValue64 cuWaitExternalSemaphoresAsync
"""
"""Functions of a stream that have a variant of suffix ``_ptsz``, in which stream 0 is the
per-thread stream."""


def symbols() -> dict[str, str]:
    """Return for each function that cuda.h renames the symbol that libcuda exports."""
    return {name: f"{name}_v2" for name in _SYMBOLS_V2.split()} | _OTHER_SYMBOLS


def variants() -> dict[str, tuple[tuple[int, str | None], ...]]:
    """Return for each name of `VARIANTS` its versions and functions, the oldest first."""
    found = {}
    for line in VARIANTS.split("\n"):
        if line:
            name, *entries = line.split()
            pairs = (entry.split(":") for entry in entries)
            found[name] = tuple((int(at), None if at_ == "-" else at_) for at, at_ in pairs)
    return found
