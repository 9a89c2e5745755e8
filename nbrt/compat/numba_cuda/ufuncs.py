"""Broadcasting of the arguments of ufuncs: by NumPy's rule, in which the last axes correspond.

numba-cuda compares the first axes, and repeats the first element of an array with fewer dimensions
than the others (`UFuncMechanism._broadcast` and `CUDAUFuncMechanism.broadcast_device`, 0.30.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from numba.cuda.deviceufunc import UFuncMechanism, _multi_broadcast
from numba.cuda.vectorizers import CUDAUFuncMechanism

if TYPE_CHECKING:
    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["correct_broadcasting"]


def correct_broadcasting(patches: Patches) -> None:
    """Let ufuncs broadcast as NumPy does."""
    patches.set(UFuncMechanism, "_broadcast", _broadcast)
    patches.set(CUDAUFuncMechanism, "broadcast_device", _broadcast_device)


def _broadcast(mechanism: Any, arrays: list[Any]) -> list[Any]:
    shape = _multi_broadcast(*[array.shape for array in arrays])
    for position, array in enumerate(arrays):
        if array.shape == shape:
            continue
        if mechanism.is_device_array(array):
            arrays[position] = mechanism.broadcast_device(array, shape)
        else:
            arrays[position] = mechanism.force_array_layout(np.broadcast_to(array, shape))
    return arrays


def _broadcast_device(_: Any, array: Any, shape: tuple[int, ...]) -> Any:
    missing = len(shape) - array.ndim
    pairs = zip(array.shape, array.strides, shape[missing:], strict=True)
    strides = [0] * missing + [stride if size == new else 0 for size, stride, new in pairs]
    return DeviceNDArray(
        shape=shape, strides=tuple(strides), dtype=array.dtype, gpu_data=array.gpu_data
    )
