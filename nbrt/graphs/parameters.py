"""`Parameters`: the arrays and numbers of a graph that a replay may replace."""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError
from nbrt.graphs.buffers import address_of, views_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nbrt.backends.graphs import ArrayView, GraphBuffer, GraphNode, ReplayValues
    from nbrt.backends.interface import DeviceInterface

__all__ = ["ArrayParameter", "Parameters", "ScalarParameter"]


class ArrayParameter(NamedTuple):
    """An array that was captured by its name.

    Attributes
    ----------
    name : str
        The name of the variable, or of the parameter of the captured function.
    view : ArrayView
        Where the captured array lies.
    array : weakref.ref
        The captured array.
    """

    name: str
    view: ArrayView
    array: weakref.ref[Any]


class ScalarParameter(NamedTuple):
    """A number that was passed to kernels.

    Attributes
    ----------
    name : str
        The name of the kernel's parameter; ``kernel.name`` if several kernels got other values.
    value : object
        The captured value.
    places : tuple of (int, int, int)
        Node, number of its work, and number of the argument.
    """

    name: str
    value: Any
    places: tuple[tuple[int, int, int], ...]


class Parameters:
    """The parameters of a graph, by name and by identity.

    Parameters
    ----------
    interface : DeviceInterface
        The backend of the arrays.
    nodes : sequence of GraphNode
        The nodes of the graph.
    buffers : sequence of GraphBuffer
        Its buffers.
    named : mapping of str to (array, ArrayView)
        The captured arrays that have a name.

    Attributes
    ----------
    arrays : dict of str to ArrayParameter
        By name.
    scalars : dict of str to ScalarParameter
        By name.
    """

    def __init__(
        self,
        interface: DeviceInterface,
        nodes: Sequence[GraphNode],
        buffers: Sequence[GraphBuffer],
        named: Mapping[str, tuple[Any, ArrayView]],
    ) -> None:
        self._interface = interface
        self._buffers = buffers
        self._spans = _spans(nodes)
        self.arrays = {
            name: ArrayParameter(name, view, weakref.ref(array))
            for name, (array, view) in named.items()
        }
        self.scalars = _scalars(nodes)

    def bind(
        self, values: ReplayValues, pairs: Iterable[tuple[Any, Any]], named: Mapping[str, Any]
    ) -> None:
        """Enter replacements into the values of a replay.

        Raises
        ------
        ArgumentError
            If a name is unknown, or shape, dtype or strides differ.
        ArgumentTypeError
            If a replacement is no array, or no number.
        DeviceMismatchError
            If an array is of another device.
        """
        for name, value in named.items():
            if name in self.arrays:
                self._bind_array(values, name, self.arrays[name].view, value)
            elif name in self.scalars:
                self._bind_scalar(values, self.scalars[name], value)
            else:
                raise ArgumentError(
                    f"expected the name of a parameter of the graph, got {name!r}; it has "
                    f"{', '.join([*self.arrays, *self.scalars]) or 'none'}"
                )
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise ArgumentTypeError(
                    f"expected pairs (captured array, other array), got {pair!r}"
                )
            found = [each for each in self.arrays.values() if each.array() is pair[0]]
            if not found:
                raise ArgumentError(
                    "expected an array that was captured under a name as the first of a pair, got "
                    "another one; pass the object that the captured calls got"
                )
            self._bind_array(values, found[0].name, found[0].view, pair[1])

    def _bind_array(self, values: ReplayValues, name: str, view: ArrayView, other: Any) -> None:
        index = self._interface.index_of(other)
        if index is None:
            raise ArgumentTypeError(
                f"expected an array of {self._interface.name} for {name!r}, got "
                f"{type(other).__name__}; convert it with nbrt.asarray"
            )
        buffer = self._buffers[view.buffer]
        if buffer.device is not None and index != buffer.device:
            raise DeviceMismatchError(
                f"expected an array of {self._interface.name}:{buffer.device} for {name!r}, got "
                f"one of {self._interface.name}:{index}"
            )
        given = tuple(other.shape), other.dtype, tuple(other.strides)
        if given != (view.shape, view.dtype, view.strides):
            raise ArgumentError(
                f"expected shape {view.shape}, {view.dtype} and strides {view.strides} for "
                f"{name!r}, as captured, got {given[0]}, {given[1]} and {given[2]}"
            )
        low, high = self._spans.get(view.buffer, (view.offset, view.offset))
        first, last = _span(view)
        if low < first or high > last:
            raise ArgumentError(
                f"expected {name!r} to cover all elements that the graph uses of its memory, got "
                f"a part; replace the whole array"
            )
        address = address_of(other) - view.offset
        if values.addresses.get(view.buffer, address) != address:
            raise ArgumentError(
                f"expected one replacement for the memory of {name!r}, got two; arrays that share "
                f"memory are replaced together"
            )
        values.addresses[view.buffer] = address
        values.owners[view.buffer] = other

    def _bind_scalar(self, values: ReplayValues, parameter: ScalarParameter, other: Any) -> None:
        old = parameter.value
        is_number = isinstance(other, (bool, int, float, complex, np.generic))
        if not is_number or (isinstance(other, complex) and not isinstance(old, complex)):
            raise ArgumentTypeError(
                f"expected a number for {parameter.name!r}, which was {old!r}, got {other!r}"
            )
        if isinstance(old, (int, np.integer)) and not isinstance(other, (int, np.integer)):
            raise ArgumentTypeError(
                f"expected an integer for {parameter.name!r}, which was {old!r}, got {other!r}"
            )
        converted = type(old)(other)
        for place in parameter.places:
            values.scalars[place] = converted


def _span(view: ArrayView) -> tuple[int, int]:
    """Return the offsets of the first byte of a view, and behind the last."""
    low = high = view.offset
    if 0 not in view.shape:
        for size, stride in zip(view.shape, view.strides, strict=True):
            if stride < 0:
                low += (size - 1) * stride
            else:
                high += (size - 1) * stride
        high += view.dtype.itemsize
    return low, high


def _spans(nodes: Iterable[GraphNode]) -> dict[int, tuple[int, int]]:
    """Return the bytes of each buffer that nodes use: from, to."""
    spans: dict[int, tuple[int, int]] = {}
    for view in _all_views(nodes):
        low, high = _span(view)
        known = spans.get(view.buffer, (low, high))
        spans[view.buffer] = min(low, known[0]), max(high, known[1])
    return spans


def _all_views(nodes: Iterable[GraphNode]) -> Iterable[ArrayView]:
    for node in nodes:
        for work in node.work:
            yield from views_in(work.args)
        if node.flag is not None:
            yield node.flag
        for branch in node.branches:
            yield from _all_views(branch.nodes)


def _scalars(nodes: Sequence[GraphNode]) -> dict[str, ScalarParameter]:
    """Return the numbers that launches pass, under the names of the kernels' parameters."""
    groups: dict[str, dict[tuple[type, Any], list[tuple[int, int, int]]]] = {}
    labels: dict[tuple[int, int, int], str] = {}
    names_of: dict[int, list[str]] = {}
    for node in nodes:
        if node.kind != "launch":
            continue
        for number, work in enumerate(node.work):
            names = names_of.get(id(work.function))
            if names is None:
                names = names_of[id(work.function)] = _parameter_names(work.function)
            for position, name in enumerate(names[: len(work.args)]):
                value = work.args[position]
                if isinstance(value, (bool, int, float, complex, np.generic)):
                    place = node.index, number, position
                    labels[place] = node.label
                    groups.setdefault(name, {}).setdefault((type(value), value), []).append(place)
    # A replay replaces no numbers in branches, so a name that means them too would replace a part.
    inside = _names_in_branches(nodes)
    scalars = {}
    for name, values in groups.items():
        if len(values) == 1 and name not in inside:
            ((_, value), places) = next(iter(values.items()))
            scalars[name] = ScalarParameter(name, value, tuple(places))
            continue
        for (_, value), places in values.items():
            for place in places:
                unique = f"{labels[place]}_{place[0]}.{name}"
                scalars[unique] = ScalarParameter(unique, value, (place,))
    return scalars


def _names_in_branches(nodes: Iterable[GraphNode]) -> set[str]:
    """Return the names of the parameters of all kernels that control flow launches."""
    found: set[str] = set()
    for node in nodes:
        for branch in node.branches:
            found |= _names_in_branches(branch.nodes)
            for inner in branch.nodes:
                if inner.kind == "launch":
                    found.update(*(_parameter_names(work.function) for work in inner.work))
    return found


def _parameter_names(function: Any) -> list[str]:
    """Return the names of a kernel's parameters; none for other functions."""
    kernel = getattr(function, "function", None)
    if kernel is None:
        return []
    try:
        return list(inspect.signature(getattr(kernel, "py_func", kernel)).parameters)
    except (TypeError, ValueError):
        return []
