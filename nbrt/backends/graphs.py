"""Captured graphs as backends see them: nodes over buffers, and a program that replays them.

A capture runs no command. It calls each command's function with a `RecordingQueue`, so that the
backend checks the arguments as usual, and keeps what the function puts into the queue. Arrays are
replaced by `ArrayView`, so that a replay can use other memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from nbrt.errors import CaptureError, KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt._internal.callsite import CallSite
    from nbrt.backends.queue import Queue
    from nbrt.typing import Array

__all__ = [
    "ArrayView",
    "Branch",
    "CallerChecked",
    "ControlKind",
    "GraphBuffer",
    "GraphNode",
    "GraphProgram",
    "MeasuringProgram",
    "NodeKind",
    "NodeSource",
    "QueueProgram",
    "RecordingQueue",
    "ReplayValues",
    "StateAdvance",
    "Work",
    "arrays_of",
    "host_array",
    "with_arrays",
]

ControlKind: TypeAlias = Literal["if", "while", "switch"]
NodeKind: TypeAlias = Literal[
    "launch", "copy", "fill", "draw", "record", "wait", "call", "collective", "graph", "if",
    "while", "switch",
]  # fmt: skip


class ArrayView(NamedTuple):
    """An array in a buffer of a graph.

    Attributes
    ----------
    buffer : int
        The number of the buffer in the graph.
    offset : int
        Bytes from the first byte of the buffer to the first element.
    shape, strides : tuple of int
        As of a NumPy array; strides in bytes.
    dtype : dtype
        The dtype.
    """

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


class Work(NamedTuple):
    """One function that a command puts into its queue.

    Attributes
    ----------
    function : callable
        A plan of a kernel, ``np.copyto``, or a function of the user.
    args : tuple
        Its arguments; an array is an `ArrayView`, also inside of tuples.
    """

    function: Callable[..., object]
    args: tuple[Any, ...]


class CallerChecked:
    """A function of a `Work` that waits for other ranks.

    A graph with such work runs in the thread of the caller, in the order of the capture: in a queue
    it could block the ranks that it waits for.
    """

    __slots__ = ()

    def check_caller(self) -> None:
        """Raise if the running thread may not replay the work."""


class NodeSource(NamedTuple):
    """The captured command, from which the code of a node is written and a saved node is made.

    The capture sets it; nothing of a replay reads it.

    Attributes
    ----------
    function : callable
        That of the `Command`: ``plan.launch`` of a launch, or the backend's copy, fill, draw or
        call. For ``"graph"``: the graph that is replayed.
    args : tuple
        Its arguments. An array is an `ArrayView`, also inside of tuples and among the parameters
        and the state of a `Draw`. An array that is no operand, such as a value that a copy reads
        at the capture, is itself.
    result : object
        What the command returned, with arrays as in `args`: the local part and the spec of a
        collective.
    """

    function: Callable[..., object]
    args: tuple[Any, ...]
    result: Any = None


class StateAdvance(NamedTuple):
    """Words by which the turn of a loop moves the offset of a generator.

    Attributes
    ----------
    buffer : int
        The buffer with seed and offset, as uint64[2].
    words : int
        The words of one turn, a multiple of 4.
    """

    buffer: int
    words: int


@dataclass(slots=True, eq=False)
class Branch:
    """The body of a loop, or one branch of a condition.

    Attributes
    ----------
    nodes : list of GraphNode
        In an order that respects the dependencies, which are numbers in this list.
    advances : tuple of StateAdvance
        What one run of the body draws.
    """

    nodes: list[GraphNode]
    advances: tuple[StateAdvance, ...] = ()


@dataclass(slots=True, eq=False)
class GraphNode:
    """One command of a graph.

    Attributes
    ----------
    index : int
        The number of the node in its list.
    kind : str
        As of a `Command`, or ``"graph"`` for the replay of another graph, whose nodes are the one
        branch of the node, or ``"if"``, ``"while"`` and ``"switch"`` for control flow.
    label : str
        The name of the kernel, or of the distribution.
    stream : int
        The id of the stream that it was captured on.
    device : int
        The index of the stream's device.
    work : tuple of Work
        What the command puts into its queue; a draw may consist of several launches.
    dependencies : tuple of int
        The nodes that must be done before.
    site : CallSite or None
        The call that was captured.
    is_enabled : bool
        Whether replays run the node.
    flag : ArrayView or None
        Control flow: one element of a bool or integer dtype. ``"if"`` and ``"while"`` run the
        first branch while it is not 0; ``"if"`` has a second branch for 0; ``"switch"`` runs the
        branch of that number, and none if there is no such branch.
    branches : tuple of Branch
        Control flow: the bodies.
    limit : int
        ``"while"``: the largest number of turns; one more fails the replay.
    source : NodeSource or None
        The captured command; None for control flow.
    handles : tuple of int
        What `DriverCapture.nodes_since` returned after the command; empty without such a capture.
    """

    index: int
    kind: NodeKind
    label: str
    stream: int
    device: int
    work: tuple[Work, ...] = ()
    dependencies: tuple[int, ...] = ()
    site: CallSite | None = None
    is_enabled: bool = True
    flag: ArrayView | None = None
    branches: tuple[Branch, ...] = ()
    limit: int = 0
    source: NodeSource | None = None
    handles: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class GraphBuffer:
    """Memory that nodes of a graph use.

    Attributes
    ----------
    number : int
        The number of the buffer.
    address, nbytes : int
        First byte, and size.
    owner : object
        Keeps the memory alive.
    is_private : bool
        The memory belongs to the graph: no array of the user refers to it.
    device : int or None
        The index of the device that holds it; None for memory of the host.
    is_writable : bool
        Nodes may write it: they have it through an array that is not read-only.
    """

    number: int
    address: int
    nbytes: int
    owner: object = None
    is_private: bool = False
    device: int | None = None
    is_writable: bool = True


@dataclass(slots=True)
class ReplayValues:
    """Values that differ between the replays of a graph.

    Attributes
    ----------
    states : list of (int, int, int)
        Buffer, seed and offset of each generator; written into the buffer before the first node.
    addresses : dict of int to int
        Buffers whose memory this replay replaces, and the address of byte 0 of the replacement.
    owners : dict of int to object
        By buffer the array that replaces it; kept alive until the replay is done.
    scalars : dict of (int, int, int) to object
        Replaced scalar arguments, by node, number of its work, and number of the argument.
    times : list of float or None
        The program replaces the items by the seconds that each node took, if it can measure them;
        the nodes then run one after the other. None: not measured.
    """

    states: list[tuple[int, int, int]] = field(default_factory=list)
    addresses: dict[int, int] = field(default_factory=dict)
    owners: dict[int, Any] = field(default_factory=dict)
    scalars: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    times: list[float] | None = None


class GraphProgram(Protocol):
    """An instantiated graph of one backend. Replays of one program do not overlap."""

    def replay(self, queue: Queue, values: ReplayValues) -> None:
        """Enqueue one run of all enabled nodes; the call does not wait.

        Errors of nodes, and KernelError for a loop beyond its limit, fail the queue like errors of
        a launch.
        """
        ...

    def close(self) -> None:
        """Release all memory after the replays in flight; idempotent, from any thread."""
        ...


@runtime_checkable
class MeasuringProgram(GraphProgram, Protocol):
    """A program that fills `ReplayValues.times`."""

    @property
    def measures_nodes(self) -> bool:
        """Return True."""
        ...


class RecordingQueue:
    """A queue that keeps what is put into it and runs nothing.

    Parameters
    ----------
    queue : Queue
        The queue that is captured.

    Attributes
    ----------
    work : list of (callable, tuple)
        What was put since the last `take`.
    """

    __slots__ = ("handle", "index", "name", "priority", "work")

    def __init__(self, queue: Queue) -> None:
        self.index = queue.index
        self.priority = queue.priority
        self.handle = queue.handle
        self.name = queue.name
        self.work: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Keep ``function(*args)``."""
        self.work.append((function, args))

    def take(self) -> list[tuple[Callable[..., object], tuple[Any, ...]]]:
        """Return what was put, and forget it."""
        work, self.work = self.work, []
        return work

    def query(self) -> bool:
        """Raise CaptureError: a capture runs nothing that could be done."""
        raise self._unfinished()

    def synchronize(self) -> None:
        """Raise CaptureError: a capture runs nothing to wait for."""
        raise self._unfinished()

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Raise CaptureError: a capture runs nothing to wait for."""
        raise self._unfinished()

    def close(self) -> None:
        """Do nothing: there is no resource."""

    def _unfinished(self) -> CaptureError:
        return CaptureError(
            f"expected only work that can be captured, got a wait for {self.name}, which runs "
            f"nothing during the capture; wait after the replay"
        )


class QueueProgram:
    """Replays a graph by putting its work into a queue, one item after the other.

    For backends without a program for graphs. Control flow reads its flags on the host.

    Parameters
    ----------
    nodes : sequence of GraphNode
        In an order that respects the dependencies.
    buffers : sequence of GraphBuffer
        The buffers, by number.
    """

    def __init__(self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer]) -> None:
        self._nodes = list(nodes)
        self._buffers = list(buffers)

    def replay(self, queue: Queue, values: ReplayValues) -> None:
        """Put the work of all enabled nodes into the queue."""
        arrays = arrays_of(self._buffers, values)
        for buffer, seed, offset in values.states:
            state = arrays(ArrayView(buffer, 0, (2,), (8,), np.dtype(np.uint64)))
            queue.put(np.copyto, state, np.array([seed, offset], np.uint64))
        for node in self._nodes:
            if not node.is_enabled:
                continue
            for number, work in enumerate(node.work):
                args = [
                    values.scalars.get((node.index, number, position), arg)
                    for position, arg in enumerate(work.args)
                ]
                queue.put(work.function, *with_arrays(tuple(args), arrays))
            if node.branches:
                queue.put(_run_branches, node, arrays)

    def close(self) -> None:
        """Release the memory; what is queued keeps its own arrays alive."""
        self._nodes.clear()
        self._buffers.clear()


def _run_branches(node: GraphNode, arrays: Callable[[ArrayView], Any]) -> None:
    """Run control flow on the host, in the order of the queue."""
    if node.kind == "graph":
        _run(node.branches[0], arrays)
        return
    assert node.flag is not None
    flag = arrays(node.flag).reshape(-1)
    if node.kind == "while":
        turns = 0
        while flag[0]:
            if turns == node.limit:
                raise KernelError(
                    f"expected a loop of at most {node.limit} turns, got a flag that is not 0 "
                    f"after them; raise limit if the loop is right"
                )
            turns += 1
            _run(node.branches[0], arrays)
        return
    number = int(flag[0]) if node.kind == "switch" else int(not flag[0])
    if 0 <= number < len(node.branches):
        _run(node.branches[number], arrays)


def _run(branch: Branch, arrays: Callable[[ArrayView], Any]) -> None:
    for node in branch.nodes:
        if not node.is_enabled:
            continue
        for work in node.work:
            work.function(*with_arrays(work.args, arrays))
        if node.branches:
            _run_branches(node, arrays)
    for buffer, words in branch.advances:
        state = arrays(ArrayView(buffer, 0, (2,), (8,), np.dtype(np.uint64)))
        state[1] += np.uint64(words)


def arrays_of(buffers: Sequence[GraphBuffer], values: ReplayValues) -> Callable[[ArrayView], Array]:
    """Return a function from the views of a replay to NumPy arrays over their memory."""

    def array(view: ArrayView) -> Array:
        buffer = buffers[view.buffer]
        address = values.addresses.get(view.buffer, buffer.address)
        return host_array(view, buffer, address, (buffer.owner, values.owners))

    return array


def host_array(view: ArrayView, buffer: GraphBuffer, address: int, owner: object) -> Any:
    """Return a NumPy array over host memory at `address`, which keeps `owner` alive."""
    memory: Any = (ctypes.c_char * buffer.nbytes).from_address(address)
    memory.owner = owner
    return np.ndarray(view.shape, view.dtype, memory, view.offset, view.strides)


def with_arrays(args: tuple[Any, ...], array_of: Callable[[ArrayView], Any]) -> tuple[Any, ...]:
    """Return arguments with each `ArrayView`, also inside of tuples, replaced by an array."""
    return tuple(
        array_of(arg)
        if type(arg) is ArrayView
        else _like(arg, with_arrays(arg, array_of))
        if isinstance(arg, tuple)
        else arg
        for arg in args
    )


def _like(given: tuple[Any, ...], items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return items as a named tuple if that is what was given."""
    make: Any = getattr(type(given), "_make", None)
    converted: tuple[Any, ...] = items if make is None else make(items)
    return converted
