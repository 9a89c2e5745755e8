"""What numba-cuda's device arrays do with kernels of CUDA, done by NumPy on the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda import args
from numba.cuda.cudadrv import devicearray

from nbrt.compat.numba_cuda.arguments import prepared
from nbrt.compat.numba_cuda.launch import CoreStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.compat.numba_cuda.driver.streams import Streams
    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["replace_kernels"]


class _Assignment:
    """Assigns one device array to another, with the interface of the kernel that does on a GPU."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:  # noqa: ARG002
        """Return a function that assigns on a stream."""

        def assign(target: Any, source: Any) -> None:
            handle = CoreStream.of(stream, self._streams).handle
            arrays = [prepared(each, [], []) for each in (target, source)]
            self._streams.ordered(handle).call(np.copyto, *arrays, "unsafe")

        return assign


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


def replace_kernels(patches: Patches, streams: Streams) -> None:
    """Let device arrays and argument hints work without code of CUDA."""
    assignment = _Assignment(streams)
    patches.set(devicearray, "_assign_kernel", lambda ndim: assignment)  # noqa: ARG005
    patches.set(args.In, "to_device", _input_to_device)
    patches.set(args.Out, "to_device", _output_to_device)
