"""Assignment and transposition of device arrays by NumPy, in the place of CUDA kernels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda import args
from numba.cuda.api import device_array
from numba.cuda.cudadrv import devicearray
from numba.cuda.kernels import transpose

from nbrt.compat.numba_cuda.arguments import prepared
from nbrt.compat.numba_cuda.launch import CoreStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.compat.numba_cuda.driver.streams import Streams
    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["replace_kernels"]


class _Assignment:
    """Assigns one array to another, with the interface of the kernel that does on a GPU."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:  # noqa: ARG002
        """Return a function that assigns on a stream."""
        return partial(self._assign, stream, lambda source: source)

    def transpose(self, a: Any, b: Any = None) -> Any:
        """Assign the transposed of a matrix to another one, or a new one, and return that."""
        stream = getattr(a, "stream", 0)
        if b is None:
            b = device_array(a.shape[::-1], a.dtype, stream=stream)
        self._assign(stream, np.transpose, b, a)
        return b

    def _assign(self, stream: Any, view: Any, target: Any, source: Any) -> None:
        queue = self._streams.ordered(CoreStream.of(stream, self._streams).handle)
        hosts: list[Any] = []
        into, values = (prepared(each, [], hosts) for each in (target, source))
        queue.call(np.copyto, into, view(values), "unsafe")
        self._streams.submitted(queue)
        if hosts:
            queue.synchronize()


def _input_to_device(hint: Any, retr: list[Callable[[], object]], stream: Any = 0) -> Any:
    """Copy the value of a hint to the device; `retr` keeps the array alive."""
    array, _ = devicearray.auto_device(hint.value, stream=stream)
    retr.append(lambda: array)
    return array


def _output_to_device(hint: Any, retr: list[Callable[[], object]], stream: Any = 0) -> Any:
    """Return the device array of a hint; a function in `retr` copies it back."""
    array, is_new = devicearray.auto_device(hint.value, stream=stream, copy=hint.copy_input)
    if is_new:
        retr.append(lambda: array.copy_to_host(hint.value, stream=stream))
    return array


def _with_stream_handle(interface: Any, streams: Streams) -> property:
    """Return ``__cuda_array_interface__``, also of arrays made on a stream that is not an int."""

    def get(array: Any) -> dict[str, Any]:
        if not hasattr(array.stream, "__int__"):
            array = array.bind(CoreStream.of(array.stream, streams))
        found: dict[str, Any] = interface.fget(array)
        return found

    return property(get)


def replace_kernels(patches: Patches, streams: Streams) -> None:
    """Let device arrays and argument hints work without code of CUDA."""
    assignment = _Assignment(streams)
    patches.set(devicearray, "_assign_kernel", lambda ndim: assignment)  # noqa: ARG005
    patches.set(transpose, "transpose", assignment.transpose)
    patches.set(args.In, "to_device", _input_to_device)
    patches.set(args.Out, "to_device", _output_to_device)
    base = devicearray.DeviceNDArrayBase
    interface = _with_stream_handle(base.__cuda_array_interface__, streams)
    patches.set(base, "__cuda_array_interface__", interface)
