"""`BufferTable`: the memory that a capture uses, and arrays as views of it."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbrt.backends.graphs import ArrayView, GraphBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.interface import DeviceInterface
    from nbrt.runtime.memory.allocation import Allocation

__all__ = ["BufferTable", "KnownArrays", "address_of", "base_of", "bounds_of", "views_in"]

KnownArrays: TypeAlias = "dict[int, tuple[weakref.ref[Any], ArrayView]]"
"""Arrays and their views, by the ids of the arrays."""


_NUMBERS = frozenset({bool, int, float, complex, *np.sctypeDict.values()})
"""Types of arguments without memory."""


class BufferTable:
    """The buffers of a graph under construction.

    An allocation of the graph's pool is one buffer for each use of its block. The table does not
    keep its arrays alive, so that its memory is free once the user has dropped them. Other memory
    is kept alive.

    Parameters
    ----------
    interface : DeviceInterface
        The backend of the arrays.

    Attributes
    ----------
    buffers : list of GraphBuffer
        By number.
    private : dict of Allocation to GraphBuffer
        Allocations of the graph's pool that are alive.
    """

    def __init__(self, interface: DeviceInterface) -> None:
        self._interface = interface
        self.buffers: list[GraphBuffer] = []
        self.private: dict[Allocation, GraphBuffer] = {}
        self._known: KnownArrays = {}
        self._external: dict[int, GraphBuffer] = {}

    def add_allocation(self, allocation: Allocation) -> None:
        """Add a new use of a block of the graph's pool."""
        buffer = self._add(allocation.address, allocation.nbytes, None, allocation.index)
        buffer.is_private = True
        self.private[allocation] = buffer

    def add_private(self, nbytes: int, device: int | None) -> GraphBuffer:
        """Add memory that only nodes use; the plan of the graph's memory gives it its address."""
        buffer = self._add(0, nbytes, None, device)
        buffer.is_private = True
        return buffer

    def external_buffer(
        self, address: int, nbytes: int, owner: object, device: int | None
    ) -> GraphBuffer:
        """Return the buffer over memory that `owner` keeps alive; add it if there is none.

        An array of the graph's pool is a buffer already, and is not kept alive.
        """
        if self._interface.index_of(owner) is not None:
            allocation: Any = self._interface.owner_of(owner)
            private = self.private.get(allocation) if allocation is not None else None
            if private is not None:
                return private
        return self._at(address, nbytes, owner, device)

    def end_allocation(self, allocation: Allocation) -> None:
        """Note that the arrays over a block are gone."""
        self.private.pop(allocation, None)

    def views_of(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with arrays of the device, also inside of tuples, as views."""
        # Without calls for what most launches get: a capture takes microseconds for a node.
        known_arrays, converted = self._known, []
        for arg in args:
            if arg.__class__ not in _NUMBERS:
                known = known_arrays.get(id(arg))
                arg = self._convert(arg) if known is None or known[0]() is not arg else known[1]
            converted.append(arg)
        return tuple(converted)

    def _convert(self, arg: Any) -> Any:
        known = self._known.get(id(arg))
        if known is not None and known[0]() is arg:
            return known[1]
        if isinstance(arg, tuple):
            converted = tuple(map(self._convert, arg))
            return type(arg)(*converted) if hasattr(arg, "_fields") else converted
        if self._interface.index_of(arg) is None or isinstance(arg, np.generic):
            return arg
        return self.view_of(arg)

    def view_of(self, array: Any) -> ArrayView:
        """Return an array of the device as a view of its buffer."""
        known = self._known.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        address = address_of(array)
        allocation: Any = self._interface.owner_of(array)
        buffer = self.private.get(allocation) if allocation is not None else None
        if buffer is None:
            buffer = self._external_buffer(array, allocation)
        if not buffer.is_writable and getattr(array.flags, "writeable", True):
            buffer.is_writable = True
        strides = tuple(array.strides)
        view = ArrayView(buffer.number, address - buffer.address, array.shape, strides, array.dtype)
        # An array class without weak references is converted at each use.
        with contextlib.suppress(TypeError):
            self._known[id(array)] = weakref.ref(array), view
        return view

    def known_view(self, array: Any) -> ArrayView | None:
        """Return an array as a view if nodes use its memory; None for anything else."""
        if self._interface.index_of(array) is None or not hasattr(array, "strides"):
            return None
        allocation: Any = self._interface.owner_of(array)
        if allocation is None:
            is_known = bounds_of(base_of(array))[0] in self._external
        else:
            is_known = allocation in self.private or allocation.address in self._external
        return self.view_of(array) if is_known else None

    @property
    def known_arrays(self) -> KnownArrays:
        """The arrays that nodes use, with their views, by identity."""
        return self._known

    def _external_buffer(self, array: Any, allocation: Any) -> GraphBuffer:
        if allocation is not None:
            low, high = allocation.address, allocation.address + allocation.nbytes
            owner = array
        else:
            owner = base_of(array)
            low, high = bounds_of(owner)
        device = getattr(allocation, "index", None)
        return self._at(low, high - low, owner, device)

    def _at(self, address: int, nbytes: int, owner: object, device: int | None) -> GraphBuffer:
        buffer = self._external.get(address)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._external[address] = self._add(address, nbytes, owner, device)
            buffer.is_writable = False  # until a node has it through a writable array
        return buffer

    def _add(self, address: int, nbytes: int, owner: object, device: int | None) -> GraphBuffer:
        buffer = GraphBuffer(len(self.buffers), address, nbytes, owner, device=device)
        self.buffers.append(buffer)
        return buffer


def address_of(array: Any) -> int:
    """Return the address of the first element of an array."""
    known = getattr(array, "address", None)
    if known is not None:  # of a fake device, without a protocol for memory
        return int(known)
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])


def views_in(args: tuple[Any, ...]) -> Iterator[ArrayView]:
    """Yield the views among arguments, also inside of tuples."""
    for arg in args:
        if type(arg) is ArrayView:
            yield arg
        elif isinstance(arg, tuple):
            yield from views_in(arg)


def base_of(array: Any) -> Any:
    """Return the array that owns the memory of an array, or the outermost one known."""
    while isinstance(getattr(array, "base", None), (np.ndarray, type(array))):
        array = array.base
    return array


def bounds_of(array: Any) -> tuple[int, int]:
    """Return the addresses of the first byte and behind the last byte of an array."""
    low = high = address_of(array)
    if array.size:
        for size, stride in zip(array.shape, array.strides, strict=True):
            if stride < 0:
                low += (size - 1) * stride
            else:
                high += (size - 1) * stride
        high += array.dtype.itemsize
    return low, high
