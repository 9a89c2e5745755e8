"""The properties of a device that ``getDeviceProperties`` of CuPy 14 returns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["device_properties"]

# Attributes by the names of cudaDeviceProp, as the members of CUdevice_attribute that the
# documentation of the runtime API names for them.
_ATTRIBUTES = {
    "sharedMemPerBlock": "MAX_SHARED_MEMORY_PER_BLOCK",
    "regsPerBlock": "MAX_REGISTERS_PER_BLOCK",
    "warpSize": "WARP_SIZE",
    "maxThreadsPerBlock": "MAX_THREADS_PER_BLOCK",
    "maxThreadsDim": ("MAX_BLOCK_DIM_X", "MAX_BLOCK_DIM_Y", "MAX_BLOCK_DIM_Z"),
    "maxGridSize": ("MAX_GRID_DIM_X", "MAX_GRID_DIM_Y", "MAX_GRID_DIM_Z"),
    "clockRate": "CLOCK_RATE",
    "totalConstMem": "TOTAL_CONSTANT_MEMORY",
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "textureAlignment": "TEXTURE_ALIGNMENT",
    "texturePitchAlignment": "TEXTURE_PITCH_ALIGNMENT",
    "multiProcessorCount": "MULTIPROCESSOR_COUNT",
    "kernelExecTimeoutEnabled": "KERNEL_EXEC_TIMEOUT",
    "integrated": "INTEGRATED",
    "canMapHostMemory": "CAN_MAP_HOST_MEMORY",
    "computeMode": "COMPUTE_MODE",
    "maxTexture1D": "MAXIMUM_TEXTURE1D_WIDTH",
    "maxTexture2D": ("MAXIMUM_TEXTURE2D_WIDTH", "MAXIMUM_TEXTURE2D_HEIGHT"),
    "maxTexture3D": (
        "MAXIMUM_TEXTURE3D_WIDTH",
        "MAXIMUM_TEXTURE3D_HEIGHT",
        "MAXIMUM_TEXTURE3D_DEPTH",
    ),
    "concurrentKernels": "CONCURRENT_KERNELS",
    "ECCEnabled": "ECC_ENABLED",
    "pciBusID": "PCI_BUS_ID",
    "pciDeviceID": "PCI_DEVICE_ID",
    "pciDomainID": "PCI_DOMAIN_ID",
    "tccDriver": "TCC_DRIVER",
    "memoryClockRate": "MEMORY_CLOCK_RATE",
    "memoryBusWidth": "GLOBAL_MEMORY_BUS_WIDTH",
    "l2CacheSize": "L2_CACHE_SIZE",
    "maxThreadsPerMultiProcessor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "isMultiGpuBoard": "MULTI_GPU_BOARD",
    "cooperativeLaunch": "COOPERATIVE_LAUNCH",
    "maxTexture1DMipmap": "MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH",
    "maxTexture1DLayered": (
        "MAXIMUM_TEXTURE1D_LAYERED_WIDTH",
        "MAXIMUM_TEXTURE1D_LAYERED_LAYERS",
    ),
    "maxTexture2DMipmap": (
        "MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH",
        "MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT",
    ),
    "maxTexture2DLinear": (
        "MAXIMUM_TEXTURE2D_LINEAR_WIDTH",
        "MAXIMUM_TEXTURE2D_LINEAR_HEIGHT",
        "MAXIMUM_TEXTURE2D_LINEAR_PITCH",
    ),
    "maxTexture2DLayered": (
        "MAXIMUM_TEXTURE2D_LAYERED_WIDTH",
        "MAXIMUM_TEXTURE2D_LAYERED_HEIGHT",
        "MAXIMUM_TEXTURE2D_LAYERED_LAYERS",
    ),
    "maxTexture2DGather": ("MAXIMUM_TEXTURE2D_GATHER_WIDTH", "MAXIMUM_TEXTURE2D_GATHER_HEIGHT"),
    "maxTexture3DAlt": (
        "MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE",
        "MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE",
        "MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE",
    ),
    "maxTextureCubemap": "MAXIMUM_TEXTURECUBEMAP_WIDTH",
    "maxTextureCubemapLayered": (
        "MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH",
        "MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS",
    ),
    "maxSurface1D": "MAXIMUM_SURFACE1D_WIDTH",
    "maxSurface1DLayered": ("MAXIMUM_SURFACE1D_LAYERED_WIDTH", "MAXIMUM_SURFACE1D_LAYERED_LAYERS"),
    "maxSurface2D": ("MAXIMUM_SURFACE2D_WIDTH", "MAXIMUM_SURFACE2D_HEIGHT"),
    "maxSurface2DLayered": (
        "MAXIMUM_SURFACE2D_LAYERED_WIDTH",
        "MAXIMUM_SURFACE2D_LAYERED_HEIGHT",
        "MAXIMUM_SURFACE2D_LAYERED_LAYERS",
    ),
    "maxSurface3D": (
        "MAXIMUM_SURFACE3D_WIDTH",
        "MAXIMUM_SURFACE3D_HEIGHT",
        "MAXIMUM_SURFACE3D_DEPTH",
    ),
    "maxSurfaceCubemap": "MAXIMUM_SURFACECUBEMAP_WIDTH",
    "maxSurfaceCubemapLayered": (
        "MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH",
        "MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS",
    ),
    "surfaceAlignment": "SURFACE_ALIGNMENT",
    "asyncEngineCount": "ASYNC_ENGINE_COUNT",
    "unifiedAddressing": "UNIFIED_ADDRESSING",
    "streamPrioritiesSupported": "STREAM_PRIORITIES_SUPPORTED",
    "globalL1CacheSupported": "GLOBAL_L1_CACHE_SUPPORTED",
    "localL1CacheSupported": "LOCAL_L1_CACHE_SUPPORTED",
    "sharedMemPerMultiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "regsPerMultiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "managedMemory": "MANAGED_MEMORY",
    "multiGpuBoardGroupID": "MULTI_GPU_BOARD_GROUP_ID",
    "hostNativeAtomicSupported": "HOST_NATIVE_ATOMIC_SUPPORTED",
    "pageableMemoryAccess": "PAGEABLE_MEMORY_ACCESS",
    "concurrentManagedAccess": "CONCURRENT_MANAGED_ACCESS",
    "computePreemptionSupported": "COMPUTE_PREEMPTION_SUPPORTED",
    "canUseHostPointerForRegisteredMem": "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    "sharedMemPerBlockOptin": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "pageableMemoryAccessUsesHostPageTables": "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
    "directManagedMemAccessFromHost": "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST",
    "persistingL2CacheMaxSize": "MAX_PERSISTING_L2_CACHE_SIZE",
    "maxBlocksPerMultiProcessor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "accessPolicyMaxWindowSize": "MAX_ACCESS_POLICY_WINDOW_SIZE",
    "reservedSharedMemPerBlock": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "deviceOverlap": "GPU_OVERLAP",
    "maxTexture1DLinear": "MAXIMUM_TEXTURE1D_LINEAR_WIDTH",
    "singleToDoublePrecisionPerfRatio": "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO",
}
_LUID_BYTES = 8  # of Windows only: zeros elsewhere


@functools.cache
def _numbers() -> dict[str, int]:
    """Return the numbers of the attributes; to ask the enumeration takes long."""
    from cuda.bindings.driver import CUdevice_attribute

    names = (name for value in _ATTRIBUTES.values() for name in _as_tuple(value))
    return {n: int(getattr(CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{n}")) for n in names}


def _as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def device_properties(
    attribute: Callable[[int, int], int], device: int, name: bytes, memory: int, uuid: bytes
) -> dict[str, Any]:
    """Return the properties of a device under the keys of CuPy 14.

    Parameters
    ----------
    attribute : callable
        Returns the value of an attribute (a number of CUdevice_attribute) of a device.
    """
    numbers = _numbers()

    def value(key: str) -> int:
        return attribute(numbers[key], device)

    found: dict[str, Any] = {"name": name, "totalGlobalMem": memory}
    for key, source in _ATTRIBUTES.items():
        found[key] = value(source) if isinstance(source, str) else tuple(map(value, source))
    found["cooperativeMultiDeviceLaunch"] = False  # CUDA 13 has it no more
    found["uuid"] = uuid
    found["luid"] = bytes(_LUID_BYTES)
    found["luidDeviceNodeMask"] = 0
    return found
