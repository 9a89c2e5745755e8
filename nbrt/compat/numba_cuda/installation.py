"""Installation: nbrt under numba-cuda's host code, and its undoing."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from nbrt.compat.numba_cuda.driver.binding import Binding
from nbrt.compat.numba_cuda.driver.contexts import COMPUTE_CAPABILITY, Contexts
from nbrt.compat.numba_cuda.driver.handles import CUcontext
from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["apply"]


def apply(patches: Patches) -> Binding:
    """Put nbrt under the modules of numba-cuda, which are imported by this."""
    from cuda.bindings import driver as constants
    from numba import cuda
    from numba.core.target_extension import dispatcher_registry, target_registry
    from numba.cuda import api, decorators, device_init, dispatcher
    from numba.cuda.cudadrv import devices, driver

    from nbrt.compat.numba_cuda.dispatcher import Dispatcher
    from nbrt.compat.numba_cuda.launch import CoreStream

    binding = Binding(constants)
    patches.set(driver, "binding", binding)
    patches.set(driver, "get_cuda_native_handle", int)
    patches.set(driver, "ExperimentalDevice", lambda index: _CoreDevice(index, binding.contexts))
    patches.set(driver, "_to_core_stream", lambda stream: CoreStream.of(stream, binding.streams))
    patches.set(driver, "_memory_manager", driver._memory_manager)  # the first context sets it
    _restart_driver(patches, driver.driver)
    _forget_devices(patches, devices)
    Dispatcher.binding = binding
    patches.set(decorators, "CUDADispatcher", Dispatcher)
    patches.set_item(dispatcher_registry, target_registry["cuda"], Dispatcher)
    for module in (cuda, device_init):
        patches.set(module, "is_available", lambda: True)
        patches.set(module, "is_supported_version", lambda: True)
    return binding


class _CoreDevice:
    """A CPU device, as ``cuda.core.Device`` describes a GPU."""

    def __init__(self, index: int, contexts: Contexts) -> None:
        from nbrt.backends.cpu.properties import cpu_properties

        self._contexts = contexts
        self.device_id = contexts.checked_index(index)
        self.compute_capability = COMPUTE_CAPABILITY
        self.name = cpu_properties().name
        self.uuid = contexts.uuid(index)
        self.context = SimpleNamespace(handle=CUcontext(index + 1))

    def set_current(self) -> None:
        """Make the context of the device current."""
        self._contexts.set_current(self.device_id)


def _restart_driver(patches: Patches, driver: Any) -> None:
    """Let numba-cuda's driver object initialise anew, and forget the functions that it has bound."""
    before = dict(vars(driver))

    def restore() -> None:
        vars(driver).clear()
        vars(driver).update(before)

    vars(driver).clear()
    vars(driver).update(
        devices=type(before["devices"])(),
        is_initialized=False,
        initialization_error=None,
        pid=None,
        lib=None,
    )
    patches.add_undo(restore)


def _forget_devices(patches: Patches, devices: Any) -> None:
    """Forget the list of devices and the contexts that threads are attached to."""
    listed = devices._DeviceList.lst.fget.cache_clear
    listed()
    patches.set(devices._runtime, "_tls", threading.local())
    patches.add_undo(listed)
