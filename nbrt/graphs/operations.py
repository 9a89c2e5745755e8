"""The functions that the code of a graph calls: views of memory, fills, and draws.

`nbrt.graphs.code` writes calls of them, and `nbrt.graphs.saving` repeats them. In a capture they
are captured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.draw import Draw
from nbrt.graphs.buffers import address_of
from nbrt.random.arguments import dtype_name
from nbrt.random.memory_order import as_kernel_view
from nbrt.runtime.array import asarray, device_of
from nbrt.runtime.device import interface_of
from nbrt.runtime.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.graphs import ArrayView
    from nbrt.backends.interface import DeviceInterface
    from nbrt.index_sets import Region, RunTable
    from nbrt.random.stream_position import StreamPosition
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, DTypeLike

__all__ = [
    "DrawRule",
    "GraphState",
    "array_at",
    "draw",
    "fill",
    "kernel_of",
    "reserve",
    "rule_of",
    "view",
]

_MODULUS = 2**64


class _Memory:
    """Memory, for libraries that take arrays of others; `base` keeps it alive, and has its pool."""

    def __init__(self, base: object, **protocols: dict[str, Any]) -> None:
        self.base = base
        self.__dict__.update(protocols)


def _described(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> dict[str, Any]:
    return {
        "version": 3,
        "data": (address, False),
        "shape": shape,
        "strides": strides,
        "typestr": dtype.str,
    }


def _host_array(memory: _Memory, dtype: np.dtype[Any]) -> Any:
    array: Any = np.asarray(memory)
    if array.dtype != dtype:
        array.dtype = dtype  # a record, whose fields the type string lacks
    return array


def array_at(
    interface: DeviceInterface,
    address: int,
    view: ArrayView,
    owner: object,
    device: int | None = None,
) -> Array:
    """Return an array over memory of a device.

    Parameters
    ----------
    interface : DeviceInterface
        The backend of the memory.
    address : int
        The address of the first element.
    view : ArrayView
        Shape, strides and dtype.
    owner : object
        Keeps the memory alive.
    device : int, optional
        The index of the device that holds it.
    """
    described = _described(address, view.shape, view.strides, view.dtype)
    abilities = interface.capabilities
    if abilities.computes and not abilities.host_addressable:
        return interface.adopt(_Memory(owner, __cuda_array_interface__=described))
    array = _host_array(_Memory(owner, __array_interface__=described), view.dtype)
    return array if abilities.computes else interface.array_over(array, owner, device)


def view(
    array: Array,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
) -> Array:
    """Return the memory of an array as another array.

    Parameters
    ----------
    array : array
        An array of any device.
    shape, dtype : tuple of int, dtype
        Of the result.
    offset : int
        Bytes from the first element of `array` to that of the result.
    strides : tuple of int, optional
        In bytes; those of a C-contiguous array by default.

    Examples
    --------
    >>> import numpy as np
    >>> view(np.arange(6, dtype="int32"), (2, 2), "int32", 4, (8, 4))
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    kind = np.dtype(dtype)
    interface = None if isinstance(array, np.ndarray) else interface_of(device_of(array))
    if interface is not None and interface.capabilities.computes:
        memory: Any = array
        return type(memory)(shape, kind, memptr=memory.data + offset, strides=strides)
    described = _described(address_of(array) + offset, shape, strides, kind)
    described["data"] = address_of(array) + offset, not array.flags.writeable
    made = _host_array(_Memory(array, __array_interface__=described), kind)
    return made if interface is None else interface.array_over(made, array, None)


def fill(array: Array, value: Any, *, stream: Stream) -> None:
    """Set every element of an array to a value, in stream order."""
    stream.enqueue("fill", stream.interface.fill, (array, value))


class GraphState:
    """The state of a generator in one run of the code of a graph.

    Attributes
    ----------
    position : StreamPosition
        The state of the generator, already moved behind the words of the run.
    """

    def __init__(self, position: StreamPosition, words: int, stream: Stream) -> None:
        self.position = position
        self._stream: Any = stream
        self._seed, self._offset = 0, 0
        self._cell: Any = None
        capture = self._stream.capture
        if capture is not None:
            self._cell, self._offset = capture.reserve(stream, position, words)
        else:
            self._seed, self._offset = position.reserve(words)[0]

    def advance(self, words: int) -> None:
        """Move the state behind a turn of a loop, or behind a branch that was run."""
        capture = self._stream.capture
        if capture is not None:
            capture.reserve(self._stream, self.position, words)
        else:
            self.position.reserve(words)
            self._offset = (self._offset + words) % _MODULUS

    def ahead(self, words: int) -> GraphState:
        """Return the state `words` further, for a graph inside of this one."""
        other = object.__new__(GraphState)
        other.__dict__.update(self.__dict__)
        other._offset = (self._offset + words) % _MODULUS
        return other

    def follow(self, inner: GraphState, words: int) -> None:
        """Move as far as control flow has moved a state that was `words` ahead of this one."""
        self._offset = (inner._offset - words) % _MODULUS

    @property
    def array(self) -> Array:
        """Seed and offset on the device, as uint64[2], for kernels that draw."""
        if self._cell is not None:
            return self._cell
        values = np.array([self._seed, self._offset], np.uint64)
        array = asarray(values, stream=self._stream)
        self._stream.synchronize()  # other streams may read it
        return array

    def fields_at(self, offset: int) -> dict[str, Any]:
        """Return the fields of a `Draw` that begins `offset` words behind the state."""
        return {
            "seed": self._seed,
            "offset": (self._offset + offset) % _MODULUS,
            "device_state": self._cell,
            "generator": self.position.number,
        }


def reserve(position: StreamPosition, words: int, *, stream: Stream) -> GraphState:
    """Take the words of a run of a graph from a generator, and return the state before them."""
    return GraphState(position, words, stream)


@dataclass(frozen=True, slots=True)
class DrawRule:
    """The fields of a `Draw` that do not follow from its array.

    Attributes
    ----------
    n, dtype, layout, constants, index_to_counter, region
        As of a `Draw`.
    """

    n: int
    dtype: str
    layout: str = "element"
    constants: tuple[int, ...] = ()
    index_to_counter: Callable[..., Any] | None = None
    region: Region | RunTable | None = None

    def __str__(self) -> str:
        parts = [f"of {self.n} elements of {self.dtype}", f"layout {self.layout!r}"]
        if self.region is not None:
            parts.append(f"the elements {self.region}")
        return ", ".join(parts)


def rule_of(array: Any, request: Draw | None = None) -> DrawRule:
    """Return the rule of a draw; of a draw of a whole array in C order by default.

    Parameters
    ----------
    array : array or ArrayView
        The array that is filled.
    request : Draw, optional
        The draw.
    """
    if request is None:
        size = int(np.prod(array.shape, dtype=np.int64))
        return DrawRule(size, dtype_name(array.dtype))
    return DrawRule(
        request.n,
        request.dtype,
        request.layout,
        request.constants,
        request.index_to_counter,
        request.region,
    )


def draw(
    array: Array,
    distribution: str,
    parameters: tuple[Any, ...],
    state: GraphState,
    offset: int,
    *,
    stream: Stream,
    rule: DrawRule | None = None,
) -> None:
    """Fill an array with random numbers, in stream order.

    Parameters
    ----------
    array : array
        A contiguous array.
    distribution, parameters : str, tuple
        As of a `Draw`.
    state : GraphState
        The state of the generator in this run.
    offset : int
        The words of the run before the draw.
    stream : Stream
        The stream that fills.
    rule : DrawRule, optional
        The elements that the array holds, and their words; all in C order by default.
    """
    chosen = rule_of(array) if rule is None else rule
    request = Draw(
        distribution,
        chosen.dtype,
        chosen.n,
        parameters,
        chosen.layout,
        chosen.constants,
        chosen.index_to_counter,
        chosen.region,
        shape=array.shape,
        **state.fields_at(offset),
    )
    stream.enqueue("draw", stream.interface.draw, (as_kernel_view(array), request), distribution)


def kernel_of(function: Any) -> Kernel:
    """Return the kernel of a module with a function as its source, or a new one.

    A kernel that is found has compiled versions already.
    """
    module = sys.modules.get(str(getattr(function, "__module__", None)))
    found: Any = module
    for part in str(getattr(function, "__qualname__", "")).split("."):
        found = getattr(found, part, None)
    if isinstance(found, Kernel) and found.function is function and found.check is None:
        return found
    return Kernel(function)
