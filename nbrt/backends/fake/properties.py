"""The properties of GPUs that are not there, from the one table of GPUs."""

from __future__ import annotations

from typing import Any

from nbrt._internal.gpus import Gpu, gpu_named
from nbrt.backends.interface import DeviceProperties

__all__ = ["ASSUMED", "gpu_properties"]

_STATIC_SHARED = 48 * 1024
_REGISTERS = 64 * 1024
_BLACKWELL = 148
"""Multiprocessors of the Blackwell GPUs of which NVIDIA publishes no number: those of the B200."""

ASSUMED = "assumed"
"""The key of `DeviceProperties.details` for the names of the properties that are assumptions."""


def gpu_properties(gpu: str | Gpu) -> DeviceProperties:
    """Return what the driver would report of a GPU.

    ``details["assumed"]`` names what only the driver knows for certain.

    Parameters
    ----------
    gpu : str or Gpu
        A GPU of `nbrt._internal.gpus`, or its name.

    Raises
    ------
    ArgumentError
        If the name is unknown, with the names that are known and the nearest of them.

    Examples
    --------
    >>> properties = gpu_properties("H100")
    >>> properties.multi_processor_count, properties.compute_capability
    (132, (9, 0))
    >>> properties.details["assumed"]
    ('total_memory',)
    """
    known = gpu_named(gpu) if isinstance(gpu, str) else gpu
    limits = known.limits
    assumed: tuple[str, ...] = ("total_memory",)
    if known.multiprocessors is None:
        assumed = ("total_memory", "multi_processor_count")
    details: dict[str, Any] = {
        "gpu": known.name,
        "memory_bytes": known.memory,
        "memory_bandwidth": known.memory_bandwidth,
        "pcie_bandwidth": known.pcie_bandwidth,
        "nvlink_bandwidth": known.nvlink,
        "registers_per_block": _REGISTERS,
        "registers_per_multi_processor": _REGISTERS,
        "shared_memory_per_multi_processor": limits.shared,
        "shared_memory_per_block_static": _STATIC_SHARED,
        "max_blocks_per_multi_processor": limits.blocks,
        "cooperative_launch": 1,
        "managed_memory": 1,
        "integrated": int(known.pcie is None),
        ASSUMED: assumed,
    }
    return DeviceProperties(
        name=f"NVIDIA {known.name}",
        total_memory=known.usable_memory,
        multi_processor_count=known.multiprocessors or _BLACKWELL,
        max_threads_per_multi_processor=limits.threads,
        shared_memory_per_block=limits.shared_per_block,
        compute_capability=known.capability,
        details=details,
    )
