"""What a rank needs of the arguments of a draw: its part of tensors, and of everybody's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.draw import Runs
from nbrt.distributed.ops.operands import is_dtensor
from nbrt.distributed.ops.propagation import moved, on_dim
from nbrt.distributed.placements import Placement, Replicate
from nbrt.distributed.redistribution.execute import take
from nbrt.distributed.redistribution.selection import common
from nbrt.errors import ArgumentError, PlacementError
from nbrt.random.arguments import is_array
from nbrt.runtime.array import asarray, copy
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt._internal.device import Device
    from nbrt.distributed.dtensor import DTensor
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.typing import Array

__all__ = ["Elsewhere", "checked_tensor", "cut", "cut_copy", "local_parameter"]


class Elsewhere(np.ndarray[Any, Any]):
    """What stands for a number on a rank that cannot know it: an array without elements.

    As a parameter it has no dimensions, and the value that makes a draw a right one.
    """


def local_parameter(value: Any, spec: DTensorSpec) -> Any:
    """Return a parameter of a draw as this rank needs it; one that is no array as it is.

    Parameters
    ----------
    value : DTensor, array_like or number
        Broadcasts to the shape of the draw; an array is the same on all ranks.
    spec : DTensorSpec
        What is drawn.

    Returns
    -------
    array or number
        Broadcasts to the local shape; on a rank off the mesh, an array without elements.
    """
    if is_dtensor(value):
        _check_broadcasts(value.shape, spec.shape)
        placements = _aligned(value.shape, spec)
        tensor = checked_tensor(value, spec.mesh)
        if tensor.placements != placements:
            tensor = tensor.redistribute(placements=placements)
        array = tensor.to_local()
        return array.reshape(-1)[:0] if spec.local_runs is None else array
    if not is_array(value) or isinstance(value, Elsewhere):
        return value
    array = asarray(value, device=spec.mesh.device, copy=None)
    _check_broadcasts(array.shape, spec.shape)
    if spec.local_runs is None:
        return array.reshape(-1)[:0]
    ahead = spec.ndim - array.ndim
    runs = [
        spec.local_runs[ahead + dim] if size == spec.shape[ahead + dim] else (Runs(0, size),)
        for dim, size in enumerate(array.shape)
    ]
    return cut(array, runs, spec.mesh.device)


def cut(array: Array, runs: Sequence[Sequence[Runs]], device: Device, first: int = 0) -> Array:
    """Return what runs take of an array, along its dimensions from `first` on.

    Without a copy where they are regular; the array itself if they take all of it.
    """
    part: list[Sequence[Runs]] = [(Runs(0, size),) for size in array.shape]
    wanted = [*part[:first], *runs, *part[first + len(runs) :]]
    chosen = common(part, wanted)
    if chosen.shape == array.shape:
        return array
    return take(array, chosen.first, current_stream(device))


def cut_copy(array: Array, runs: Sequence[Sequence[Runs]], device: Device, first: int = 0) -> Array:
    """Return `cut` in memory of its own, unless it is the array itself."""
    chosen = cut(array, runs, device, first)
    if chosen is array:
        return array
    result = empty(chosen.shape, chosen.dtype, device=device)
    copy(result, chosen, stream=current_stream(device))
    return result


def checked_tensor(tensor: DTensor, mesh: DeviceMesh) -> DTensor:
    """Return a tensor that can be an argument of a draw over a mesh.

    Raises
    ------
    PlacementError
        If it is partial, or of another mesh.
    """
    spec = tensor._spec
    if spec.is_partial:
        raise PlacementError(
            f"expected Shard or Replicate, got {list(tensor.placements)}: no rank has the values "
            f"of a partial tensor; reduce it first with redistribute(placements=...)"
        )
    if spec.mesh is not mesh and spec.mesh != mesh:
        raise PlacementError(
            f"expected a tensor of {mesh}, got one of {tensor.device_mesh}; redistribute it first"
        )
    return tensor


def _check_broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> None:
    """Hold a parameter to the shape of the whole draw: a part might have its shape by chance."""
    behind = whole[len(whole) - len(shape) :] if len(shape) <= len(whole) else ()
    if len(behind) != len(shape) or any(
        one not in (1, size) for one, size in zip(shape, behind, strict=True)
    ):
        raise ArgumentError(f"expected parameters that broadcast to shape {whole}, got {shape}")


def _aligned(shape: tuple[int, ...], spec: DTensorSpec) -> tuple[Placement, ...]:
    """Return placements of a tensor that broadcasts, such that a rank has what its part needs."""
    ahead = spec.ndim - len(shape)
    found: list[Placement] = []
    for placement in spec.placements:
        dim = on_dim(placement)
        at = -1 if dim is None else dim - ahead
        if dim is None or at < 0 or shape[at] != spec.shape[dim]:
            found.append(Replicate())
        else:
            found.append(moved(placement, at))
    return tuple(found)
