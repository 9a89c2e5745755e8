"""Tensors without dimensions as parameters: numbers, whose values the ranks of the mesh have."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nbrt.distributed.ops.operands import is_dtensor
from nbrt.distributed.random.parameters import Elsewhere, checked_tensor
from nbrt.errors import ArgumentTypeError
from nbrt.random.generator import Generator
from nbrt.runtime.array import to_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.mesh import DeviceMesh

__all__ = ["is_number", "known_number", "known_range", "number", "taking_numbers"]

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
