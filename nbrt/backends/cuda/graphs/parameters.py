"""`NodeParameters`: the addresses and scalars in the parameters of a node, which replays change."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

from nbrt.errors import ArgumentTypeError, GraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nbrt.backends.cuda.graphs.calls import GraphCalls

__all__ = ["KernelParameters", "NodeParameters", "Relocation", "read_parameters"]

_WORD = 8
_ADDRESS_OF_ARRAY = 4  # numba-cuda's fifth parameter of an array


class Relocation:
    """A map from memory of the capture to other memory.

    Parameters
    ----------
    ranges : iterable of (int, int, int)
        First byte, bytes, and the first byte of the other memory.
    """

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        self._ranges = tuple(ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def of(self, address: int) -> int:
        """Return the other address of a byte; the same if it is in no range."""
        for first, nbytes, other in self._ranges:
            if first <= address < first + nbytes:
                return other + address - first
        return address


class NodeParameters:
    """The parameters of one node, as the capture made them.

    Attributes
    ----------
    node, kind, index : int
        The node, its type, and its device.
    """

    def __init__(self, calls: GraphCalls, node: int, kind: int, index: int, params: Any) -> None:
        self.node = node
        self.kind = kind
        self.index = index
        self.params = params
        self._calls = calls

    def changed(
        self, relocation: Relocation, scalars: dict[int, Any]
    ) -> tuple[tuple[object, ...], Callable[[], Any]]:
        """Return what differs, as a key, and a function that makes the changed parameters.

        The key is empty if nothing differs.
        """
        changes: dict[str, int] = {}
        for field, offset in self._addresses():
            before = int(getattr(self.params, field) or 0)
            delta = relocation.of(before + offset) - before - offset
            if delta:
                changes[field] = before + delta
        return tuple(changes.items()), lambda: self._calls.copy_params(self.params, changes)

    def _addresses(self) -> list[tuple[str, int]]:
        """Return the fields with addresses, each with the bytes to its first used byte."""
        if self.kind == self._calls.memset:
            return [("dst", 0)]
        found = []
        for side in ("src", "dst"):
            offset = int(getattr(self.params, f"{side}XInBytes"))
            found += [(f"{side}Device", offset), (f"{side}Host", offset)]
        return found


class KernelParameters(NodeParameters):
    """The arguments of a launch."""

    def __init__(self, calls: GraphCalls, node: int, index: int = 0, shapes: Any = None) -> None:
        super().__init__(calls, node, calls.kernel, index, calls.params(node, calls.kernel))
        self._shapes = shapes
        self._values: list[bytes] | None = None

    def values(self) -> list[bytes]:
        """Return the bytes of each parameter."""
        if self._values is None:
            address = int(self.params.kernelParams or 0)
            if not address:
                raise GraphError(
                    "expected a kernel whose arguments the driver shows, got one launched with a "
                    "buffer of arguments by another library; capture it again with other memory"
                )
            sizes = self._calls.parameter_sizes(self.params)
            table = (ctypes.c_void_p * len(sizes)).from_address(address)
            self._values = [
                ctypes.string_at(place or 0, size) for place, size in zip(table, sizes, strict=True)
            ]
        return self._values

    def changed(
        self, relocation: Relocation, scalars: dict[int, Any]
    ) -> tuple[tuple[object, ...], Callable[[], Any]]:
        """Return the changed parameters and a function that makes them."""
        if not relocation and not scalars:
            return (), lambda: self.params
        values = self.values()
        changes: dict[int, bytes] = {}
        for position, offset in self._places():
            value = changes.get(position, values[position])
            before = int.from_bytes(value[offset : offset + _WORD], "little")
            after = relocation.of(before)
            if after != before:
                word = after.to_bytes(_WORD, "little")
                changes[position] = value[:offset] + word + value[offset + _WORD :]
        for argument, scalar in scalars.items():
            changes.update(self._packed(argument, scalar))
        return tuple(changes.items()), lambda: self.with_values(changes)

    def with_values(self, changes: dict[int, bytes]) -> Any:
        """Return the parameters with other bytes of some arguments."""
        values = [changes.get(number, value) for number, value in enumerate(self.values())]
        buffers = [ctypes.create_string_buffer(value, max(1, len(value))) for value in values]
        table = (ctypes.c_void_p * max(1, len(buffers)))(*map(ctypes.addressof, buffers))
        params = self._calls.kernel_params(self.params, ctypes.addressof(table))
        # The driver copies the arguments; until then they live as long as this object.
        self._table = (table, buffers)
        return params

    def _places(self) -> list[tuple[int, int]]:
        """Return (parameter, offset) of the words that may be addresses."""
        if self._shapes is None:
            # A kernel of another library: any word that lies in memory of the graph.
            return [
                (position, offset)
                for position, value in enumerate(self.values())
                for offset in range(0, len(value) - _WORD + 1, _WORD)
            ]
        starts = _starts(tuple(_without_tuples(self._shapes)))
        return [(first + _ADDRESS_OF_ARRAY, 0) for first, shape in starts if shape.is_array]

    def _packed(self, argument: int, scalar: Any) -> dict[int, bytes]:
        """Return the bytes of the parameters of a scalar argument."""
        starts = [] if self._shapes is None else _starts(self._shapes)
        shape = starts[argument][1] if argument < len(starts) else None
        if shape is None or shape.is_array or shape.members is not None:
            raise GraphError(
                f"expected a scalar argument of an nbrt kernel to replace, got argument {argument} "
                f"of another launch; pass the value in an array"
            )
        first = starts[argument][0]
        before = self.values()
        parts = (scalar.real, scalar.imag) if shape.is_complex else (scalar,)
        try:
            return {
                first + number: struct.pack(f"<{code}", part).ljust(
                    len(before[first + number]), b"\0"
                )
                for number, (code, part) in enumerate(zip(shape.codes, parts, strict=True))
            }
        except (struct.error, OverflowError, TypeError) as error:
            raise ArgumentTypeError(
                f"expected a value of the type of the capture for argument {argument}, got "
                f"{scalar!r}: {error}"
            ) from error


def _starts(shapes: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """Return the number of the first parameter of each argument, and its shape."""
    found, first = [], 0
    for shape in shapes:
        found.append((first, shape))
        first += len(shape.codes)
    return found


def _without_tuples(shapes: tuple[Any, ...]) -> Iterator[Any]:
    """Return the shapes of the members of tuples in the place of the tuples."""
    for shape in shapes:
        if shape.members is None:
            yield shape
        else:
            yield from _without_tuples(shape.members)


def read_parameters(calls: GraphCalls, node: int, index: int, shapes: Any) -> NodeParameters | None:
    """Return the parameters of a node; None if it uses no memory."""
    kind = calls.type_of(node)
    if kind == calls.kernel:
        return KernelParameters(calls, node, index, shapes)
    if kind in (calls.memcpy, calls.memset):
        return NodeParameters(calls, node, kind, index, calls.params(node, kind))
    return None
