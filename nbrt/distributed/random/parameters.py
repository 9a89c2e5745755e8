"""What a rank needs of the arguments of a draw: its part of tensors, and of everybody's arrays."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nbrt.distributed.ops.operands import is_dtensor
from nbrt.distributed.ops.propagation import on_other_dim, shard_dim
from nbrt.distributed.placements import Placement, Replicate
from nbrt.distributed.redistribution.execute import take
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError
from nbrt.index_sets import Runs, intersect
from nbrt.random.arguments import is_array
from nbrt.random.generator import Generator
from nbrt.runtime.array import asarray, copy, to_host
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt._internal.device import Device
    from nbrt.distributed.dtensor import DTensor
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.typing import Array


__all__ = [
    "Elsewhere",
    "checked_tensor",
    "cut",
    "cut_copy",
    "is_number",
    "known_number",
    "known_range",
    "local_parameter",
    "number",
    "taking_numbers",
]


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
    chosen = intersect(part, wanted)
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
        dim = shard_dim(placement)
        at = -1 if dim is None else dim - ahead
        if dim is None or at < 0 or shape[at] != spec.shape[dim]:
            found.append(Replicate())
        else:
            found.append(on_other_dim(placement, at))
    return tuple(found)


_Class = TypeVar("_Class", bound=type)

_NUMBERS = frozenset([float, int])
_COUNTED = ("multinomial", "multivariate_hypergeometric")
"""Draws of vectors whose numbers are counts, of which 0 is always a right one."""


def is_number(value: Any) -> bool:
    """Return whether a parameter is a distributed tensor without dimensions."""
    return is_dtensor(value) and not value.ndim


def number(value: Any, mesh: DeviceMesh, elsewhere: float | None = None) -> Any:
    """Return a tensor without dimensions as an array of the host, and other things as they are.

    Such a tensor is replicated, so every rank of the mesh has its value. Off the mesh, `elsewhere`
    takes its place, by default an `Elsewhere`; of its dtype, so a wrong one is refused there too.

    Raises
    ------
    PlacementError
        If the tensor is partial, or of another mesh.
    """
    if not is_number(value):
        return value
    local = checked_tensor(value, mesh).to_local()
    if mesh.get_coordinate() is not None:
        return to_host(local)
    if elsewhere is None:
        return np.empty(0, value.dtype).view(Elsewhere)
    return np.full((), elsewhere, value.dtype)


def known_number(name: str, value: Any, mesh: DeviceMesh) -> Any:
    """Return a `number` that all ranks must know, since how far the state moves depends on it."""
    if is_number(value) and mesh.size() < mesh.communicator.size:
        raise ArgumentTypeError(
            f"expected {name} as a number that all ranks know, got a DTensor without dimensions: "
            f"how far the state moves depends on it, also on ranks off {mesh}; pass a number, or "
            f"draw over a mesh of all ranks"
        )
    return number(value, mesh)


def known_range(
    low: Any, high: Any, mesh: DeviceMesh, words: Callable[[int, int], int]
) -> tuple[Any, Any]:
    """Return the bounds of integers; on a rank off the mesh, of others that take as many words.

    Parameters
    ----------
    low, high : int, or DTensor without dimensions
        Bounds.
    mesh : DeviceMesh
        What is drawn over.
    words : callable
        Returns how many words a draw between bounds takes; as many or more for larger ranges.
    """
    least = int(np.iinfo(low.dtype).min) if is_number(low) else low
    most = int(np.iinfo(high.dtype).max) if is_number(high) else high
    if words(0, 1) != words(least, max(most, least + 1)):
        return known_number("low", low, mesh), known_number("high", high, mesh)
    bounds = number(low, mesh, 0), number(high, mesh, 0)
    return (0, 1) if mesh.get_coordinate() is None else bounds


def taking_numbers(cls: _Class) -> _Class:
    """Let the draws that a class has of `Generator` take such tensors where they take numbers.

    That is before `size`.
    """
    for name, method in inspect.getmembers(Generator, inspect.isfunction):
        names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
        if not name.startswith("_") and "size" in names[1:] and getattr(cls, name) is method:
            setattr(cls, name, _taking(method, names[: names.index("size")]))
    return cls


def _taking(method: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    count, named = len(names), frozenset(names)
    elsewhere = 0 if method.__name__ in _COUNTED else None

    @functools.wraps(method)
    def taking(self: Any, *args: Any, **kwargs: Any) -> Any:
        if named.isdisjoint(kwargs) and _NUMBERS.issuperset(map(type, args[:count])):
            return method(self, *args, **kwargs)
        first = [number(each, self._mesh, elsewhere) for each in args[:count]]
        others = {
            name: number(each, self._mesh, elsewhere) if name in named else each
            for name, each in kwargs.items()
        }
        return method(self, *first, *args[count:], **others)

    return taking
