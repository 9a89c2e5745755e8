"""`Parameters`: the arrays and numbers of a graph that a replay may replace."""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.errors import (
    ArgumentError,
    ArgumentOverflowError,
    ArgumentTypeError,
    DeviceMismatchError,
)
from nbrt.graphs.buffers import address_of, views_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nbrt.backends.graphs import ArrayView, GraphBuffer, GraphNode, ReplayValues
    from nbrt.backends.interface import DeviceInterface
    from nbrt.graphs.buffers import KnownArrays

__all__ = ["ArrayParameter", "Parameters", "ScalarParameter"]

_KEYWORDS = frozenset(["stream"])
"""The keywords of `Graph.replay` itself."""

_BOOLS = (bool, np.bool_)
_MAX_INT64 = 2**63 - 1


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
    known : dict of int to (weakref, ArrayView)
        All captured arrays, by identity.

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
        known: KnownArrays,
    ) -> None:
        self._interface = interface
        self._nodes = nodes
        self._known = known
        self._buffers = buffers
        self._spans = _spans(nodes)
        self.arrays = {
            name: ArrayParameter(name, view, weakref.ref(array))
            for name, (array, view) in named.items()
        }
        self.scalars = _scalars(nodes, {*named, *_KEYWORDS})

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
                    f"expected pairs (captured array, other array), got {pair!r}; a stream goes by "
                    f"name: replay(stream=...)"
                )
            self._bind_pair(values, *pair)

    def _bind_pair(self, values: ReplayValues, captured: Any, other: Any) -> None:
        """Replace an array that is identified by the object of the capture."""
        for each in self.arrays.values():
            if each.array() is captured:
                self._bind_array(values, each.name, each.view, other)
                return
        known = self._known.get(id(captured))
        if known is None or known[0]() is not captured:
            raise ArgumentError(
                "expected an array that captured calls got as the first of a pair, got another "
                "one; views of it are other objects, also those that an attribute makes anew"
            )
        self._bind_array(values, "the first of a pair", known[1], other)

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
        is_read_only = not getattr(getattr(other, "flags", None), "writeable", True)
        if is_read_only and buffer.is_writable and _may_write(self._nodes, view.buffer):
            raise ArgumentError(
                f"expected a writable array for {name!r}, as captured, got a read-only one; pass a "
                f"copy of it, or capture with a read-only array"
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
        if isinstance(old, _BOOLS) and not isinstance(other, _BOOLS):
            raise ArgumentTypeError(
                f"expected True or False for {parameter.name!r}, which was {old!r}, got {other!r}"
            )
        is_number = isinstance(other, (bool, int, float, complex, np.generic))
        if not is_number or (isinstance(other, complex) and not isinstance(old, complex)):
            raise ArgumentTypeError(
                f"expected a number for {parameter.name!r}, which was {old!r}, got {other!r}"
            )
        if isinstance(old, (int, np.integer)) and not isinstance(other, (int, np.integer)):
            raise ArgumentTypeError(
                f"expected an integer for {parameter.name!r}, which was {old!r}, got {other!r}"
            )
        if isinstance(old, (int, np.integer)):
            _check_range(parameter.name, old, int(other))
        try:
            converted = type(old)(other)
        except OverflowError as error:
            raise ArgumentOverflowError(
                f"expected a number that fits {type(old).__name__} for {parameter.name!r}, which "
                f"was {old!r}, got {other!r}"
            ) from error
        for place in parameter.places:
            values.scalars[place] = converted


def _check_range(name: str, old: Any, other: int) -> None:
    """Raise ArgumentOverflowError if an integer does not fit the type of the captured one."""
    if isinstance(old, _BOOLS):
        return
    if isinstance(old, np.integer):
        kind = np.iinfo(old.dtype)
    else:
        kind = np.iinfo(np.int64 if old <= _MAX_INT64 else np.uint64)
    if not kind.min <= other <= kind.max:
        raise ArgumentOverflowError(
            f"expected an integer from {kind.min} to {kind.max} for {name!r}, which was {old!r}, "
            f"got {other}"
        )


def _may_write(nodes: Iterable[GraphNode], buffer: int) -> bool:
    """Return whether nodes may write a buffer: all but those that copy from it."""
    for node in nodes:
        for work in node.work:
            args = work.args[:1] if node.kind == "copy" else work.args
            if any(view.buffer == buffer for view in views_in(args)):
                return True
        if any(_may_write(branch.nodes, buffer) for branch in node.branches):
            return True
    return False


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


def _scalars(nodes: Sequence[GraphNode], taken: set[str]) -> dict[str, ScalarParameter]:
    """Return the numbers that launches pass, under the names of the kernels' parameters.

    Names that are taken get the kernel and the number of the node in front.
    """
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
    inside = _names_in_branches(nodes) | taken
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
