"""Graphs on fake devices: a replay calls the captured functions of the host, and computes nothing.

No value of a device exists, so a replay reads no flag and runs no branch of control flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.fake.array import FakeArray
from nbrt.backends.fake.memory_segments import is_fake_address
from nbrt.backends.graphs import host_array, with_arrays
from nbrt.errors import DeviceMismatchError, GraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbrt.backends.fake.interface import FakeInterface
    from nbrt.backends.graphs import ArrayView, GraphBuffer, GraphNode, ReplayValues
    from nbrt.backends.queue import Queue
    from nbrt.typing import Array, HostArray

__all__ = ["FakeGraphProgram", "array_over", "arrays_of"]


class FakeGraphProgram:
    """A captured graph of fake devices, as a `GraphProgram`.

    Parameters
    ----------
    interface : FakeInterface
        The backend of the devices.
    nodes, buffers
        As of the graph.
    """

    def __init__(
        self,
        interface: FakeInterface,
        nodes: Sequence[GraphNode],
        buffers: Sequence[GraphBuffer],
    ) -> None:
        self._interface = interface
        self._nodes = list(nodes)
        self._buffers = list(buffers)
        self._is_closed = False

    def replay(self, queue: Queue, values: ReplayValues) -> None:
        """Call the functions of the host in the order of the capture.

        Collectives compare what the ranks do; copies into host arrays read by the policy.
        """
        if self._is_closed:
            raise GraphError(
                "expected a graph with its memory, got one after reset(); capture it again"
            )
        self._check_device(queue)
        if values.times is not None:
            values.times[:] = [0.0] * len(self._nodes)
        arrays = arrays_of(self._interface, self._buffers, values)
        for node in _nodes_in(self._nodes):
            for work in node.work:
                is_call = node.kind == "call" and node.source is not None
                if is_call or node.kind == "collective":
                    queue.put(work.function, *with_arrays(work.args, arrays))
                elif node.kind == "copy":
                    destination, source = with_arrays(work.args, arrays)
                    if isinstance(destination, np.ndarray):
                        queue.put(work.function, destination, source)

    @property
    def measures_nodes(self) -> bool:
        """Return True: nodes of fake devices take no time."""
        return True

    def _check_device(self, queue: Queue) -> None:
        """Raise DeviceMismatchError where CUDA would: its graphs belong to one device."""
        if self._interface.name != "cuda":
            return
        index = next((node.device for node in self._nodes), queue.index)
        if queue.index != index:
            raise DeviceMismatchError(
                f"expected a stream of cuda:{index}, where the graph was captured, got one of "
                f"cuda:{queue.index}; replay it on a stream of that device"
            )

    def close(self) -> None:
        """Release the memory; idempotent."""
        self._is_closed = True
        self._nodes.clear()
        self._buffers.clear()


def _nodes_in(nodes: Sequence[GraphNode]) -> Iterator[GraphNode]:
    """Yield the nodes that a replay certainly runs, also those of graphs in the graph."""
    for node in nodes:
        if node.is_enabled:
            yield node
            if node.kind == "graph":
                yield from _nodes_in(node.branches[0].nodes)


def arrays_of(
    interface: FakeInterface, buffers: Sequence[GraphBuffer], values: ReplayValues
) -> Callable[[ArrayView], Array]:
    """Return a function from the views of a replay to arrays over their memory."""

    def array(view: ArrayView) -> Array:
        buffer = buffers[view.buffer]
        address = values.addresses.get(view.buffer, buffer.address)
        owner = (buffer.owner, values.owners)
        return array_over(interface, host_array(view, buffer, address, owner), owner, buffer.device)

    return array


def array_over(
    interface: FakeInterface, layout: HostArray, owner: object, index: int | None
) -> Array:
    """Return the array with a layout; the layout itself if it has memory.

    Parameters
    ----------
    interface : FakeInterface
        The backend of the array.
    layout : numpy.ndarray
        An array over memory, or over addresses without any.
    owner : object
        An array over the same allocation, also inside of tuples.
    index : int or None
        The device, if no such array is known.
    """
    address = int(layout.__array_interface__["data"][0])
    if not is_fake_address(address):
        return layout
    known = next((each for each in _fake_arrays_in(owner) if _holds(each, address)), None)
    if known is None:
        return FakeArray(layout, interface.memories[index or 0], None)
    return FakeArray(layout, known.memory, known.handle, known.base or known)


def _fake_arrays_in(owner: object) -> Iterator[FakeArray]:
    if isinstance(owner, FakeArray):
        yield owner
    elif isinstance(owner, tuple):
        for each in owner:
            yield from _fake_arrays_in(each)


def _holds(array: FakeArray, address: int) -> bool:
    """Return whether an address lies in the allocation of an array."""
    allocation: Any = getattr(array.handle, "owner", None)
    whole: Any = array if array.base is None else array.base
    begin = whole.address if allocation is None else allocation.address
    nbytes = whole.nbytes if allocation is None else allocation.nbytes
    return bool(begin <= address <= begin + nbytes)
