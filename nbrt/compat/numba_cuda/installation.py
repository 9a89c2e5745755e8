"""Installation: nbrt under numba-cuda's host code, and its undoing."""

from __future__ import annotations

import functools
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbrt.compat.numba_cuda.driver.binding import DRIVER_VERSION, Binding, process_binding
from nbrt.compat.numba_cuda.driver.contexts import COMPUTE_CAPABILITY, Contexts
from nbrt.compat.numba_cuda.driver.handles import CUcontext
from nbrt.compat.numba_cuda.driver.ipc import can_share
from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["apply"]


def apply(patches: Patches) -> Binding:
    """Put nbrt under the modules of numba-cuda, which are imported by this."""
    from numba import cuda
    from numba.core.target_extension import dispatcher_registry, target_registry
    from numba.cuda import decorators, device_init
    from numba.cuda.core import config
    from numba.cuda.cudadrv import devices, driver

    from nbrt.compat.numba_cuda.allocation_statistics import replace_statistics
    from nbrt.compat.numba_cuda.device_arrays import replace_kernels
    from nbrt.compat.numba_cuda.dispatcher import Dispatcher, adopt_dispatchers
    from nbrt.compat.numba_cuda.ufuncs import correct_broadcasting

    binding = process_binding()
    binding.contexts.forget_threads()
    _replace_driver(patches, driver, binding)
    _guard_finalizers(patches, driver, binding)
    _restart_driver(patches, driver)
    _forget_devices(patches, devices)
    _quieten(patches, config)
    replace_kernels(patches, binding.streams)
    replace_statistics(patches)
    correct_broadcasting(patches)
    Dispatcher.binding = binding
    patches.set(decorators, "CUDADispatcher", Dispatcher)
    adopt_dispatchers(patches)
    patches.set_item(dispatcher_registry, target_registry["cuda"], Dispatcher)
    _do_without_toolkit(patches, decorators)
    for module in (cuda, device_init):
        patches.set(module, "is_available", lambda: driver.driver.is_available)
        patches.set(module, "is_supported_version", lambda: True)
    patches.add_undo(lambda: _free_pending(driver.driver))
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
        """Make the context of the device current, above another one, which numba-cuda then pops."""
        context = self._contexts.primary(self.device_id)
        if self._contexts.current() != context:
            self._contexts.push(context)


def _replace_driver(patches: Patches, driver: Any, binding: Binding) -> None:
    from nbrt.compat.numba_cuda.launch import CoreStream
    from nbrt.runtime.stream import Stream

    streams, handle_of = binding.streams, driver._stream_handle

    def handle_of_any(stream: Any) -> Any:
        return int(streams.handle_of(stream)) if isinstance(stream, Stream) else handle_of(stream)

    patches.set(driver, "binding", binding)
    patches.set(driver, "get_cuda_native_handle", int)
    patches.set(driver, "ExperimentalDevice", lambda index: _CoreDevice(index, binding.contexts))
    patches.set(driver, "_to_core_stream", lambda stream: CoreStream.of(stream, streams))
    patches.set(driver, "_stream_handle", handle_of_any)
    patches.set(driver, "load_module_image", _refuse_machine_code)
    patches.set(driver, "SUPPORTS_IPC", can_share())
    patches.set(driver, "_memory_manager", driver._memory_manager)  # programs choose one


def _refuse_machine_code(*_: Any, **__: Any) -> None:
    raise NotSupportedError(
        "expected kernels in Python on CPU devices, got a module of PTX or of machine code for a "
        "GPU; write the kernel in Python with cuda.jit, or run the program on a CUDA device"
    )


def _guard_finalizers(patches: Patches, driver: Any, binding: Binding) -> None:
    """Let arrays and streams that outlive the installation never reach the real driver."""
    ends = {
        "_alloc_finalizer": lambda _manager, address, *_: binding.memory.free_at_end(address),
        "_hostalloc_finalizer": lambda _manager, address, *_: binding.memory.free_at_end(address),
        "_pin_finalizer": lambda _manager, address, *_: binding.memory.free_at_end(address),
        "_event_finalizer": lambda _, handle: binding.streams.destroy_event(handle),
        "_stream_finalizer": lambda _, handle: binding.streams.destroy(handle),
    }
    is_over = threading.Event()
    for name, end in ends.items():
        patches.set(driver, name, _guarded(getattr(driver, name), end, is_over))
    patches.add_undo(is_over.set)


def _guarded(make: Any, end: Any, is_over: threading.Event) -> Any:
    """Return a function that makes finalizers: numba-cuda's until `is_over`, then `end`."""

    @functools.wraps(make)
    def make_guarded(*args: Any) -> Any:
        finalize = make(*args)
        return lambda: end(*args) if is_over.is_set() else finalize()

    return make_guarded


def _free_pending(driver: Any) -> None:
    """Free what numba-cuda keeps for a later, common free."""
    for device in driver.devices.values():
        context = device.primary_context
        if context is not None:
            context.deallocations.clear()
            getattr(context.memory_manager, "deallocations", context.deallocations).clear()


def _quieten(patches: Patches, config: Any) -> None:
    """Switch off warnings about the speed of GPUs, unless the environment asks for them."""
    for name in ("CUDA_LOW_OCCUPANCY_WARNINGS", "CUDA_WARN_ON_IMPLICIT_COPY"):
        if f"NUMBA_{name}" not in os.environ:
            patches.set(config, name, 0)


def _do_without_toolkit(patches: Patches, decorators: Any) -> None:
    """Answer what numba-cuda asks of libraries for GPUs, which kernels on CPU devices do without.

    Link-time optimisation is accepted, and the version of the toolkit is that of the driver where
    NVRTC is not installed.
    """
    from cuda.pathfinder import DynamicLibNotFoundError
    from numba.cuda.cudadrv.runtime import Runtime

    version_of = Runtime.get_version

    def get_version(runtime: Any) -> tuple[int, int]:
        try:
            version: tuple[int, int] = version_of(runtime)
        except DynamicLibNotFoundError:
            return DRIVER_VERSION // 1000, DRIVER_VERSION % 1000 // 10
        return version

    patches.set(Runtime, "get_version", get_version)
    patches.set(decorators, "_have_nvjitlink", lambda: True)


def _restart_driver(patches: Patches, module: Any) -> None:
    """Let numba-cuda's driver object initialise anew, without the functions that it has bound."""
    driver = module.driver
    before = dict(vars(driver))

    def restore() -> None:
        vars(driver).clear()
        vars(driver).update(before)

    vars(driver).clear()
    vars(driver).update(
        devices=type(before["devices"])(),
        is_initialized=bool(module.config.DISABLE_CUDA),
        initialization_error=before["initialization_error"] if module.config.DISABLE_CUDA else None,
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
