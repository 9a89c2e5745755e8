"""Parameters of draws: the part that a rank needs of tensors and arrays, and scalar tensors."""

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
from nbrt.random.distributions import Distributions
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
    "UnknownScalar",
    "accept_scalar_tensors",
    "checked_tensor",
    "is_scalar_tensor",
    "known_range",
    "known_scalar",
    "local_parameter",
    "scalar_value",
    "take_copy",
    "take_runs",
]


class UnknownScalar(np.ndarray[Any, Any]):
    """A number that a rank off the mesh does not know: an array without elements.

    As a parameter it counts as a valid number without dimensions.
    """


def local_parameter(value: Any, spec: DTensorSpec) -> Any:
    """Return the part of a parameter that this rank needs; numbers unchanged.

    An array is the same on all ranks. The result broadcasts to the local shape; off the mesh it is
    an array without elements.
    """
    if is_dtensor(value):
        _check_broadcasts(value.shape, spec.shape)
        placements = _aligned(value.shape, spec)
        tensor = checked_tensor(value, spec.mesh)
        if tensor.placements != placements:
            tensor = tensor.redistribute(placements=placements)
        array = tensor.to_local()
        return array.reshape(-1)[:0] if spec.local_runs is None else array
    if not is_array(value) or isinstance(value, UnknownScalar):
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
    return take_runs(array, runs, spec.mesh.device)


def take_runs(
    array: Array, runs: Sequence[Sequence[Runs]], device: Device, first: int = 0
) -> Array:
    """Return the elements of an array at runs of indices, along its dimensions from `first` on.

    Regular runs give a view, and all indices the array itself.
    """
    part: list[Sequence[Runs]] = [(Runs(0, size),) for size in array.shape]
    wanted = [*part[:first], *runs, *part[first + len(runs) :]]
    chosen = intersect(part, wanted)
    if chosen.shape == array.shape:
        return array
    return take(array, chosen.first, current_stream(device))


def take_copy(
    array: Array, runs: Sequence[Sequence[Runs]], device: Device, first: int = 0
) -> Array:
    """Return a copy of `take_runs`, or the array itself for all indices."""
    chosen = take_runs(array, runs, device, first)
    if chosen is array:
        return array
    result = empty(chosen.shape, chosen.dtype, device=device)
    copy(result, chosen, stream=current_stream(device))
    return result


def checked_tensor(tensor: DTensor, mesh: DeviceMesh) -> DTensor:
    """Return a tensor that is valid as an argument of a draw over a mesh.

    Raises
    ------
    PlacementError
        If the tensor is partial, or of another mesh.
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
    """Check against the shape of the whole draw: a part may have the shape by coincidence."""
    behind = whole[len(whole) - len(shape) :] if len(shape) <= len(whole) else ()
    if len(behind) != len(shape) or any(
        one not in (1, size) for one, size in zip(shape, behind, strict=True)
    ):
        raise ArgumentError(f"expected parameters that broadcast to shape {whole}, got {shape}")


def _aligned(shape: tuple[int, ...], spec: DTensorSpec) -> tuple[Placement, ...]:
    """Return placements such that each rank has the values that its part broadcasts from."""
    ahead = spec.ndim - len(shape)
    placements: list[Placement] = []
    for placement in spec.placements:
        dim = shard_dim(placement)
        at = -1 if dim is None else dim - ahead
        if dim is None or at < 0 or shape[at] != spec.shape[dim]:
            placements.append(Replicate())
        else:
            placements.append(on_other_dim(placement, at))
    return tuple(placements)


_Class = TypeVar("_Class", bound=type)

_NUMBERS = frozenset([float, int])
_COUNTED = ("multinomial", "multivariate_hypergeometric")
"""Distributions of vectors whose scalar parameters are counts, for which 0 is valid."""


def is_scalar_tensor(value: Any) -> bool:
    """Return whether a parameter is a distributed tensor without dimensions."""
    return is_dtensor(value) and not value.ndim


def scalar_value(value: Any, mesh: DeviceMesh, default: float | None = None) -> Any:
    """Return a tensor without dimensions as an array of the host, and other values unchanged.

    Such a tensor is replicated, so every rank of the mesh has its value. A rank off the mesh gets
    `default`, or an `UnknownScalar`, of the same dtype, so that wrong dtypes raise there too.

    Raises
    ------
    PlacementError
        If the tensor is partial, or of another mesh.
    """
    if not is_scalar_tensor(value):
        return value
    local = checked_tensor(value, mesh).to_local()
    if mesh.get_coordinate() is not None:
        return to_host(local)
    if default is None:
        return np.empty(0, value.dtype).view(UnknownScalar)
    return np.full((), default, value.dtype)


def known_scalar(name: str, value: Any, mesh: DeviceMesh) -> Any:
    """Return `scalar_value` of a parameter that determines the words of a draw.

    Raises
    ------
    ArgumentTypeError
        If the parameter is a tensor, and there are ranks off the mesh.
    """
    if is_scalar_tensor(value) and mesh.size() < mesh.communicator.size:
        raise ArgumentTypeError(
            f"expected {name} as a number that all ranks know, got a DTensor without dimensions: "
            f"how far the state moves depends on it, also on ranks off {mesh}; pass a number, or "
            f"draw over a mesh of all ranks"
        )
    return scalar_value(value, mesh)


def known_range(
    low: Any, high: Any, mesh: DeviceMesh, words: Callable[[int, int], int]
) -> tuple[Any, Any]:
    """Return the bounds of integers; off the mesh, bounds of a draw of as many words.

    `words` returns the words of a draw between two bounds; it grows with the range.
    """
    least = int(np.iinfo(low.dtype).min) if is_scalar_tensor(low) else low
    most = int(np.iinfo(high.dtype).max) if is_scalar_tensor(high) else high
    if words(0, 1) != words(least, max(most, least + 1)):
        return known_scalar("low", low, mesh), known_scalar("high", high, mesh)
    bounds = scalar_value(low, mesh, 0), scalar_value(high, mesh, 0)
    return (0, 1) if mesh.get_coordinate() is None else bounds


def accept_scalar_tensors(cls: _Class) -> _Class:
    """Let the distributions of a class accept scalar tensors as the parameters before `size`."""
    for name, method in inspect.getmembers(Distributions, inspect.isfunction):
        names = list(inspect.signature(method).parameters)[1:]
        if not name.startswith("_") and "size" in names[1:] and getattr(cls, name) is method:
            setattr(cls, name, _with_scalar_tensors(method, names[: names.index("size")]))
    return cls


def _with_scalar_tensors(method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    count, scalars = len(names), frozenset(names)
    default = 0 if method.__name__ in _COUNTED else None

    @functools.wraps(method)
    def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
        if scalars.isdisjoint(kwargs) and _NUMBERS.issuperset(map(type, args[:count])):
            return method(self, *args, **kwargs)
        mesh = self.device_mesh
        values = [scalar_value(value, mesh, default) for value in args[:count]]
        named = {
            name: scalar_value(value, mesh, default) if name in scalars else value
            for name, value in kwargs.items()
        }
        return method(self, *values, *args[count:], **named)

    return draw
