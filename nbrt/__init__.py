"""nbrt: write a GPU kernel once, run it on CUDA or as native CPU code, with equal random bits.

Importing nbrt touches no driver and imports neither Numba, CuPy nor NumPy: every public name loads
its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from nbrt import cache as cache
    from nbrt import config as config
    from nbrt import distributed as distributed
    from nbrt import errors as errors
    from nbrt import graphs as graphs
    from nbrt import memory as memory
    from nbrt import random as random
    from nbrt import typing as typing
    from nbrt._internal.device import Device as Device
    from nbrt._version import __version__ as __version__
    from nbrt.backends.interface import DeviceInterface as DeviceInterface
    from nbrt.backends.interface import DeviceProperties as DeviceProperties
    from nbrt.backends.registry import get_interface_for_device as get_interface_for_device
    from nbrt.backends.registry import known_backends as known_backends
    from nbrt.backends.registry import (
        register_interface_for_device as register_interface_for_device,
    )
    from nbrt.backends.registry import (
        unregister_interface_for_device as unregister_interface_for_device,
    )
    from nbrt.compilation.future import CompileFuture as CompileFuture
    from nbrt.compilation.pool import AsyncCompile as AsyncCompile
    from nbrt.graphs.capturing import graph as graph
    from nbrt.graphs.graph import Graph as Graph
    from nbrt.planning.fake_mode import fake as fake
    from nbrt.planning.function import plan as plan
    from nbrt.planning.plan import MemoryPlan as MemoryPlan
    from nbrt.planning.to_fake import to_fake as to_fake
    from nbrt.planning.warm import warm as warm
    from nbrt.planning.warm_result import WarmResult as WarmResult
    from nbrt.random.defaults import default_generator as default_generator
    from nbrt.random.defaults import fork_rng as fork_rng
    from nbrt.random.defaults import manual_seed as manual_seed
    from nbrt.random.generator import Generator as Generator
    from nbrt.random.state import PhiloxState as PhiloxState
    from nbrt.runtime.array import asarray as asarray
    from nbrt.runtime.array import copy as copy
    from nbrt.runtime.array import device_of as device_of
    from nbrt.runtime.array import to as to
    from nbrt.runtime.array import to_host as to_host
    from nbrt.runtime.compiling import compile as compile
    from nbrt.runtime.creation import empty as empty
    from nbrt.runtime.creation import empty_pinned as empty_pinned
    from nbrt.runtime.creation import full as full
    from nbrt.runtime.creation import zeros as zeros
    from nbrt.runtime.device import can_access_peer as can_access_peer
    from nbrt.runtime.device import current_device as current_device
    from nbrt.runtime.device import device_count as device_count
    from nbrt.runtime.device import get_device_capability as get_device_capability
    from nbrt.runtime.device import get_device_name as get_device_name
    from nbrt.runtime.device import get_device_properties as get_device_properties
    from nbrt.runtime.device import is_available as is_available
    from nbrt.runtime.device import set_device as set_device
    from nbrt.runtime.guard import DeviceGuard as DeviceGuard
    from nbrt.runtime.guard import MultiStreamGuard as MultiStreamGuard
    from nbrt.runtime.guard import OptionalDeviceGuard as OptionalDeviceGuard
    from nbrt.runtime.guard import OptionalStreamGuard as OptionalStreamGuard
    from nbrt.runtime.guard import StreamGuard as StreamGuard
    from nbrt.runtime.guard import device as device
    from nbrt.runtime.guard import set_stream as set_stream
    from nbrt.runtime.guard import stream as stream
    from nbrt.runtime.interpreter import interpret as interpret
    from nbrt.runtime.kernel import Kernel as Kernel
    from nbrt.runtime.kernel import kernel as kernel
    from nbrt.runtime.kernel_cost import KernelCost as KernelCost
    from nbrt.runtime.memory.functions import empty_cache as empty_cache
    from nbrt.runtime.memory.functions import max_memory_allocated as max_memory_allocated
    from nbrt.runtime.memory.functions import max_memory_reserved as max_memory_reserved
    from nbrt.runtime.memory.functions import mem_get_info as mem_get_info
    from nbrt.runtime.memory.functions import memory_allocated as memory_allocated
    from nbrt.runtime.memory.functions import memory_reserved as memory_reserved
    from nbrt.runtime.memory.functions import memory_stats as memory_stats
    from nbrt.runtime.memory.functions import reset_peak_memory_stats as reset_peak_memory_stats
    from nbrt.runtime.memory.pool import MemoryPool as MemoryPool
    from nbrt.runtime.memory.pool import use_pool as use_pool
    from nbrt.runtime.stream import Event as Event
    from nbrt.runtime.stream import Stream as Stream
    from nbrt.runtime.stream import current_stream as current_stream
    from nbrt.runtime.stream import default_stream as default_stream
    from nbrt.runtime.synchronization import synchronize as synchronize
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__)


def load_ipython_extension(shell: object) -> None:
    """Add nbrt's magics to IPython, which calls this for ``%load_ext nbrt``."""
    # `lazy_exports` reads lines that begin with "from".
    import nbrt.compat.notebook as numba_cuda
    import nbrt.planning.notebook as warm

    warm.load_extension(shell)
    numba_cuda.load_extension(shell)
