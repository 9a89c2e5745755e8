"""`Binding`: what numba-cuda's host code sees in place of ``cuda.bindings.driver``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbrt.compat.numba_cuda.driver import handles
from nbrt.compat.numba_cuda.driver.contexts import Contexts, attribute_of
from nbrt.compat.numba_cuda.driver.ipc import CUipcMemHandle
from nbrt.compat.numba_cuda.driver.memory import Memory
from nbrt.compat.numba_cuda.driver.results import DriverCallError, with_error_codes
from nbrt.compat.numba_cuda.driver.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DRIVER_VERSION", "Binding", "process_binding"]

DRIVER_VERSION = 13000
"""CUDA 13.0, as ``1000 * major + 10 * minor``."""

_ATTRIBUTE_PREFIX = "CU_DEVICE_ATTRIBUTE_"


class Binding:
    """Functions of the CUDA driver on CPU devices; types and enumerators are those of CUDA.

    Functions that CPU devices do not have return ``CUDA_ERROR_NOT_SUPPORTED``.

    Parameters
    ----------
    constants : module
        ``cuda.bindings.driver``, for the enumerators.

    Attributes
    ----------
    contexts, streams, memory
        The state of the driver.
    """

    CUcontext = handles.CUcontext
    CUdevice = handles.CUdevice
    CUdeviceptr = handles.CUdeviceptr
    CUevent = handles.CUevent
    CUstream = handles.CUstream
    CUipcMemHandle = CUipcMemHandle
    CUstreamCallback = handles.Handle

    def __init__(self, constants: Any) -> None:
        self._constants = constants
        self.contexts = Contexts()
        self.streams = Streams(self.contexts)
        self.memory = Memory(self.contexts, self.streams)
        for name, function in self._functions().items():
            setattr(self, name, with_error_codes(function, constants.CUresult, name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu") and name[2:3].isupper():

            def unsupported(*_: Any) -> None:
                raise DriverCallError("NOT_SUPPORTED")

            return with_error_codes(unsupported, self._constants.CUresult, name)
        return getattr(self._constants, name)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        contexts, streams = self.contexts, self.streams
        return {
            "cuInit": lambda _: None,
            "cuDriverGetVersion": lambda: DRIVER_VERSION,
            "cuDeviceGetCount": contexts.count,
            "cuDeviceGet": lambda index: handles.CUdevice(contexts.checked_index(index)),
            "cuDeviceGetAttribute": self._attribute,
            "cuDeviceCanAccessPeer": lambda device, peer: int(
                contexts.checked_index(device) != contexts.checked_index(peer)
            ),
            "cuDevicePrimaryCtxRetain": contexts.primary,
            "cuDevicePrimaryCtxRelease": lambda _: None,
            "cuDevicePrimaryCtxReset": lambda _: None,
            "cuCtxCreate": contexts.create,
            "cuCtxDestroy": contexts.destroy,
            "cuCtxGetCurrent": contexts.current,
            "cuCtxSetCurrent": contexts.replace,
            "cuCtxGetDevice": self._current_device,
            "cuCtxPushCurrent": contexts.push,
            "cuCtxPopCurrent": contexts.pop,
            "cuCtxSynchronize": streams.synchronize_device,
            "cuCtxEnablePeerAccess": lambda _context, _flags: None,
            "cuProfilerStart": lambda: None,
            "cuProfilerStop": lambda: None,
            "cuStreamCreate": streams.create,
            "cuStreamDestroy": streams.destroy,
            "cuStreamSynchronize": streams.synchronize,
            "cuStreamQuery": streams.query,
            "cuStreamWaitEvent": streams.wait,
            "cuStreamAddCallback": streams.call,
            "cuEventCreate": streams.create_event,
            "cuEventDestroy": streams.destroy_event,
            "cuEventRecord": streams.record,
            "cuEventQuery": streams.query_event,
            "cuEventSynchronize": streams.synchronize_event,
            "cuEventElapsedTime": streams.elapsed,
            **self._memory_functions(),
        }

    def _memory_functions(self) -> dict[str, Callable[..., Any]]:
        memory = self.memory
        return {
            "cuMemAlloc": memory.allocate,
            "cuMemAllocManaged": memory.allocate_managed,
            "cuMemFree": memory.free,
            "cuMemHostAlloc": memory.allocate_host,
            "cuMemFreeHost": memory.free_host,
            "cuMemHostRegister": memory.register_host,
            "cuMemHostUnregister": memory.unregister_host,
            "cuMemHostGetDevicePointer": memory.device_address,
            "cuMemGetAddressRange": memory.address_range,
            "cuMemGetInfo": memory.information,
            "cuPointerGetAttribute": memory.pointer_attribute,
            "cuIpcGetMemHandle": memory.shared.share,
            "cuIpcOpenMemHandle": lambda handle, flags: handles.CUdeviceptr(
                memory.shared.open(handle, flags)
            ),
            "cuIpcCloseMemHandle": memory.shared.close,
            "cuMemcpyHtoD": memory.copy_to_device,
            "cuMemcpyDtoH": memory.copy_to_host,
            "cuMemcpyDtoD": memory.copy,
            "cuMemcpyHtoDAsync": memory.copy_to_device_async,
            "cuMemcpyDtoHAsync": memory.copy_to_host_async,
            "cuMemcpyDtoDAsync": memory.copy_async,
            "cuMemsetD8": memory.fill,
            "cuMemsetD8Async": memory.fill_async,
        }

    def _attribute(self, attribute: Any, device: Any) -> int:
        name = attribute.name.removeprefix(_ATTRIBUTE_PREFIX)
        return attribute_of(self.contexts.checked_index(device), name)

    def _current_device(self) -> handles.CUdevice:
        if not self.contexts.stack:
            raise DriverCallError("INVALID_CONTEXT")
        return handles.CUdevice(self.contexts.current_index())


@functools.cache
def process_binding() -> Binding:
    """Return the driver of the process: arrays and streams outlive an installation."""
    from cuda.bindings import driver as constants

    return Binding(constants)
