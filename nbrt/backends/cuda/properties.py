"""Convert CuPy's form of cudaDeviceProp to `DeviceProperties`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from nbrt.backends.interface import DeviceProperties

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["device_properties"]

# Name in cudaDeviceProp -> name in `details`; a CUDA version may lack some.
_DETAILS = {
    "clockRate": "clock_rate_khz",
    "memoryClockRate": "memory_clock_rate_khz",
    "memoryBusWidth": "memory_bus_bits",
    "l2CacheSize": "l2_cache_bytes",
    "totalConstMem": "constant_memory_bytes",
    "regsPerBlock": "registers_per_block",
    "regsPerMultiprocessor": "registers_per_multi_processor",
    "sharedMemPerMultiprocessor": "shared_memory_per_multi_processor",
    "sharedMemPerBlock": "shared_memory_per_block_static",
    "maxBlocksPerMultiProcessor": "max_blocks_per_multi_processor",
    "asyncEngineCount": "copy_engines",
    "concurrentKernels": "concurrent_kernels",
    "cooperativeLaunch": "cooperative_launch",
    "managedMemory": "managed_memory",
    "ECCEnabled": "ecc_enabled",
    "integrated": "integrated",
    "isMultiGpuBoard": "multi_gpu_board",
    "pciBusID": "pci_bus",
    "pciDeviceID": "pci_device",
    "pciDomainID": "pci_domain",
}


def device_properties(raw: Mapping[str, Any]) -> DeviceProperties:
    """Return the properties of a device.

    Parameters
    ----------
    raw : Mapping
        The result of ``cupy.cuda.runtime.getDeviceProperties``.
    """
    name = raw["name"]
    details: dict[str, object] = {
        ours: int(raw[theirs]) for theirs, ours in _DETAILS.items() if theirs in raw
    }
    uuid = raw.get("uuid")
    # CuPy returns a C string, which ends at the first zero byte: a shorter one is not the uuid.
    if isinstance(uuid, bytes) and len(uuid) == 16:
        details["uuid"] = _uuid(uuid)
    static = int(raw["sharedMemPerBlock"])
    return DeviceProperties(
        name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        total_memory=int(raw["totalGlobalMem"]),
        multi_processor_count=int(raw["multiProcessorCount"]),
        max_threads_per_block=int(raw["maxThreadsPerBlock"]),
        max_block_dim=_triple(raw["maxThreadsDim"]),
        max_grid_dim=_triple(raw["maxGridSize"]),
        max_threads_per_multi_processor=int(raw["maxThreadsPerMultiProcessor"]),
        # The limit of a launch: the backend opts in to more than the static 48 KiB.
        shared_memory_per_block=max(static, int(raw.get("sharedMemPerBlockOptin", 0))),
        warp_size=int(raw["warpSize"]),
        compute_capability=(int(raw["major"]), int(raw["minor"])),
        details=details,
    )


def _triple(sizes: Any) -> tuple[int, int, int]:
    x, y, z = (int(size) for size in sizes)
    return x, y, z


def _uuid(raw: bytes) -> str:
    digits = raw.hex()
    cuts = (0, 8, 12, 16, 20, 32)
    return "GPU-" + "-".join(digits[a:b] for a, b in itertools.pairwise(cuts))
