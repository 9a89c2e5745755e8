"""nbrt: write a GPU kernel once, run it on CUDA or as native CPU code, with equal random bits.

Importing nbrt touches no driver and imports neither Numba, CuPy nor NumPy: every public name is
loaded when it is first asked for (PEP 562). The imports below, which only type checkers run, say
where each name lives; `_HOMES` says the same at run time, and a test holds the two together.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nbrt._version import __version__

if TYPE_CHECKING:
    from nbrt import config, distributed, errors, memory, random, typing
    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.backends.registry import (
        get_interface_for_device,
        known_backends,
        register_interface_for_device,
        unregister_interface_for_device,
    )
    from nbrt.random.defaults import default_generator, fork_rng, manual_seed
    from nbrt.random.generator import Generator
    from nbrt.random.state import PhiloxState
    from nbrt.runtime.array import asarray, copy, device_of, full, to, to_host, zeros
    from nbrt.runtime.creation import empty, empty_pinned
    from nbrt.runtime.device import (
        can_access_peer,
        current_device,
        device_count,
        get_device_capability,
        get_device_name,
        get_device_properties,
        is_available,
        set_device,
    )
    from nbrt.runtime.event import Event
    from nbrt.runtime.guard import (
        DeviceGuard,
        MultiStreamGuard,
        OptionalDeviceGuard,
        OptionalStreamGuard,
        StreamGuard,
        set_stream,
    )
    from nbrt.runtime.guard import DeviceGuard as device  # noqa: N813  # torch's name for it
    from nbrt.runtime.guard import OptionalStreamGuard as stream  # noqa: N813
    from nbrt.runtime.interpreter import interpret
    from nbrt.runtime.kernel import Kernel, kernel
    from nbrt.runtime.memory.functions import (
        empty_cache,
        max_memory_allocated,
        max_memory_reserved,
        mem_get_info,
        memory_allocated,
        memory_reserved,
        memory_stats,
        reset_peak_memory_stats,
    )
    from nbrt.runtime.memory.pool import MemoryPool, use_pool
    from nbrt.runtime.stream import Stream, current_stream, default_stream, synchronize

__all__ = [
    "Device",
    "DeviceGuard",
    "DeviceInterface",
    "Event",
    "Generator",
    "Kernel",
    "MemoryPool",
    "MultiStreamGuard",
    "OptionalDeviceGuard",
    "OptionalStreamGuard",
    "PhiloxState",
    "Stream",
    "StreamGuard",
    "__version__",
    "asarray",
    "can_access_peer",
    "config",
    "copy",
    "current_device",
    "current_stream",
    "default_generator",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "distributed",
    "empty",
    "empty_cache",
    "empty_pinned",
    "errors",
    "fork_rng",
    "full",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_interface_for_device",
    "interpret",
    "is_available",
    "kernel",
    "known_backends",
    "manual_seed",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "random",
    "register_interface_for_device",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
    "to",
    "to_host",
    "typing",
    "unregister_interface_for_device",
    "use_pool",
    "zeros",
]

_HOMES = {
    "nbrt": "config distributed errors memory random typing",
    "nbrt._internal.device": "Device",
    "nbrt.backends.interface": "DeviceInterface",
    "nbrt.backends.registry": (
        "get_interface_for_device known_backends register_interface_for_device "
        "unregister_interface_for_device"
    ),
    "nbrt.random.defaults": "default_generator fork_rng manual_seed",
    "nbrt.random.generator": "Generator",
    "nbrt.random.state": "PhiloxState",
    "nbrt.runtime.array": "asarray copy device_of full to to_host zeros",
    "nbrt.runtime.device": (
        "can_access_peer current_device device_count get_device_capability get_device_name "
        "get_device_properties is_available set_device"
    ),
    "nbrt.runtime.event": "Event",
    "nbrt.runtime.guard": (
        "DeviceGuard MultiStreamGuard OptionalDeviceGuard OptionalStreamGuard StreamGuard "
        "device=DeviceGuard set_stream stream=OptionalStreamGuard"
    ),
    "nbrt.runtime.interpreter": "interpret",
    "nbrt.runtime.kernel": "Kernel kernel",
    "nbrt.runtime.memory.functions": (
        "empty_cache max_memory_allocated max_memory_reserved mem_get_info memory_allocated "
        "memory_reserved memory_stats reset_peak_memory_stats"
    ),
    "nbrt.runtime.memory.pool": "MemoryPool use_pool",
    "nbrt.runtime.creation": "empty empty_pinned",
    "nbrt.runtime.stream": "Stream current_stream default_stream synchronize",
}
_HOME_OF = {
    entry.partition("=")[0]: (module, entry.partition("=")[2] or entry)
    for module, entries in _HOMES.items()
    for entry in entries.split()
}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'nbrt' has no attribute {name!r}")
    module, attribute = home
    if module == "nbrt":
        return importlib.import_module(f"nbrt.{name}")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
