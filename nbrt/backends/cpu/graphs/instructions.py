"""`Assembler`: turns the nodes of a graph into instructions and packed arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.backends.cpu.graphs.arguments import Relocation, pack, with_defaults
from nbrt.backends.cpu.graphs.layout import INSTRUCTION, Operation
from nbrt.backends.cpu.graphs.native import trampoline
from nbrt.backends.cpu.launch import CpuPlan
from nbrt.backends.graphs import ArrayView, host_array, with_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.cpu.graphs.flat_nodes import FlatNode
    from nbrt.backends.cpu.simt.runtime.dispatcher import NativeEntry
    from nbrt.backends.graphs import Branch, GraphBuffer, GraphNode, Work

__all__ = ["Assembly", "Call", "Packed", "PlacedNode", "assemble", "fill_block"]

_WORD = 8
_SIZE = INSTRUCTION.itemsize
_SMALL_BLOCK, _LARGE_BLOCK = 1 << 9, 1 << 12
_MIN_LARGE = 1 << 15
_ALIGNMENT = 16
_PLAIN = frozenset({float, bool, complex, *(np.dtype(code).type for code in "?bBhHiIlLqQefdFD")})


class Call(NamedTuple):
    """A function that an instruction calls in Python; an array is an `ArrayView`."""

    function: Callable[..., object]
    args: tuple[Any, ...]


class Packed(NamedTuple):
    """Arguments of a work in memory.

    Attributes
    ----------
    types : tuple of numba types, or a dtype
        The types of a kernel's arguments, or the dtype of a fill.
    begin : int
        The first word.
    """

    types: Any
    begin: int


class PlacedNode(NamedTuple):
    """A node and its instructions.

    Attributes
    ----------
    node : GraphNode
        The node.
    path : str
        Its number in the graph; behind it those in the branches.
    begin, end : int
        The first instruction, and the last one plus 1.
    """

    node: GraphNode
    path: str
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class Assembly:
    """A program in memory.

    Attributes
    ----------
    words : array of uint64
        The instructions, and behind them the data that they point to.
    instructions : array
        The instructions, over the same memory.
    calls : dict of int to Call
        By instruction: the work, also of instructions that do not call Python.
    placed : list of PlacedNode
        All nodes, an outer one behind those of its branches.
    nodes : list of GraphNode
        The same nodes.
    nested : list of (int, tuple of GraphNode)
        Numbers of placed nodes, and the child graphs that contain them.
    ends : list of int
        The instruction behind each node of the outermost list.
    relocations : dict of int to list of (int, int)
        By buffer: words that hold an address in it, and the offset in the buffer.
    packed : dict of int to Packed
        By instruction: the arguments of kernels and fills.
    works : dict of (int, int) to int
        By node of the outermost list and number of its work: the instruction.
    kept : list
        Objects whose memory the data points to.
    """

    words: Any
    instructions: Any
    calls: dict[int, Call]
    placed: list[PlacedNode]
    nodes: list[GraphNode]
    nested: list[tuple[int, tuple[GraphNode, ...]]]
    ends: list[int]
    relocations: dict[int, list[tuple[int, int]]]
    packed: dict[int, Packed]
    works: dict[tuple[int, int], int]
    kept: list[object]

    @property
    def address(self) -> int:
        """Address of the first instruction."""
        return int(self.words.ctypes.data)

    def launches(self) -> Any:
        """Return the instructions that run kernels in native code."""
        kinds = (Operation.LAUNCH, Operation.TIMED, Operation.SHARED)
        return np.flatnonzero(np.isin(self.instructions["operation"], kinds))


def assemble(order: Sequence[FlatNode], buffers: Sequence[GraphBuffer]) -> Assembly:
    """Return the program of nodes, in the order in which one thread runs them."""
    return _Assembler(buffers).finished(order)


class _Assembler:
    """Collects instructions and data; addresses are known at the end."""

    def __init__(self, buffers: Sequence[GraphBuffer]) -> None:
        self._buffers = buffers
        self._rows: list[dict[str, Any]] = []
        self._data = bytearray()
        self._pointers: list[tuple[int, str, int]] = []
        self._targets: list[tuple[int, str, ArrayView, int]] = []
        self._relocations: list[Relocation] = []
        self._calls: dict[int, Call] = {}
        self._placed: list[PlacedNode] = []
        self._packed: dict[int, Packed] = {}
        self._works: dict[tuple[int, int], int] = {}
        self._kept: list[object] = []
        self._trampolines: dict[int, int] = {}
        self._entries: dict[CpuPlan, dict[Any, NativeEntry | None]] = {}

    def finished(self, order: Sequence[FlatNode]) -> Assembly:
        """Place all nodes, and return the program."""
        ends = []
        nested = []
        for flat in order:
            self._node(flat.node, flat.path, is_outermost=not flat.parents)
            if flat.parents:
                nested.append((len(self._placed) - 1, flat.parents))
            ends.append(len(self._rows))
        first = len(self._rows) * _SIZE // _WORD
        # One instruction more, so that the memory is never empty.
        words = np.zeros(first + len(self._data) // _WORD + _SIZE // _WORD, np.uint64)
        rows = words[:first].view(INSTRUCTION)
        columns: dict[str, tuple[list[int], list[Any]]] = {}
        for index, row in enumerate(self._rows):
            for name, value in row.items():
                indices, values = columns.setdefault(name, ([], []))
                indices.append(index)
                values.append(value)
        for name, (indices, values) in columns.items():
            rows[name][indices] = values
        words[first : first + len(self._data) // _WORD] = np.frombuffer(self._data, np.uint64)
        base = int(words.ctypes.data) + first * _WORD
        for index, name, offset in self._pointers:
            rows[name][index] = base + offset
        relocations: dict[int, list[tuple[int, int]]] = {}
        for each in self._relocations:
            relocations.setdefault(each.buffer, []).append((first + each.at // _WORD, each.offset))
        for index, name, view, more in self._targets:
            assert INSTRUCTION.fields is not None
            at = (index * _SIZE + INSTRUCTION.fields[name][1]) // _WORD
            relocations.setdefault(view.buffer, []).append((at, view.offset + more))
        for buffer, slots in relocations.items():
            for at, offset in slots:
                words[at] = self._buffers[buffer].address + offset
        return Assembly(
            words,
            rows,
            self._calls,
            self._placed,
            [placed.node for placed in self._placed],
            nested,
            ends,
            relocations,
            {index: it._replace(begin=it.begin + first) for index, it in self._packed.items()},
            self._works,
            self._kept,
        )

    def _emit(self, operation: Operation, **fields: Any) -> int:
        index = len(self._rows)
        self._rows.append({"operation": operation, "next": index + 1, **fields})
        return index

    def _address(self, index: int, field_name: str, view: ArrayView, more: int = 0) -> None:
        self._targets.append((index, field_name, view, more))

    def _store(self, data: bytes) -> int:
        """Append data; return its offset."""
        at = len(self._data)
        self._data += data.ljust(-(-len(data) // _WORD) * _WORD, b"\0")
        return at

    def _node(self, node: GraphNode, path: str, *, is_outermost: bool = False) -> None:
        begin = len(self._rows)
        if node.flag is not None:
            self._control(node, node.flag, path)
        else:
            for number, work in enumerate(node.work):
                if is_outermost:
                    self._works[node.index, number] = len(self._rows)
                self._work(work)
            if node.branches:
                self._emit(Operation.SKIP)  # the first instruction of two nodes is never the same
            for number, branch in enumerate(node.branches):
                self._branch(branch, f"{path}.{number}")
        self._placed.append(PlacedNode(node, path, begin, len(self._rows)))

    # -- control flow ------------------------------------------------------------------------------

    def _control(self, node: GraphNode, flag: ArrayView, path: str) -> None:
        size = flag.dtype.itemsize * (
            -1 if flag.dtype.kind == "i" and flag.dtype.itemsize < 8 else 1
        )
        if node.kind == "while":
            self._loop(node, flag, size, path)
        elif node.kind == "switch":
            self._switch(node, flag, size, path)
        else:
            test = self._emit(Operation.TEST, a=size)
            self._address(test, "target", flag)
            jumps = []
            for number, branch in enumerate(node.branches):
                if number:
                    jumps.append(self._emit(Operation.SKIP))
                    self._rows[test]["b"] = len(self._rows)
                self._branch(branch, f"{path}.{number}")
            end = len(self._rows)
            for jump in jumps:
                self._rows[jump]["next"] = end
            self._rows[test].setdefault("b", end)

    def _loop(self, node: GraphNode, flag: ArrayView, size: int, path: str) -> None:
        counter = self._store(bytes(_WORD))
        begin = self._emit(Operation.LOOP)
        turn = self._emit(Operation.TURN, a=size, c=node.limit)
        self._pointers += [(begin, "source", counter), (turn, "source", counter)]
        self._address(turn, "target", flag)
        self._branch(node.branches[0], f"{path}.0")
        back = self._emit(Operation.SKIP)
        self._rows[back]["next"] = turn
        self._rows[turn]["b"] = len(self._rows)

    def _switch(self, node: GraphNode, flag: ArrayView, size: int, path: str) -> None:
        select = self._emit(Operation.SELECT, a=size, b=len(node.branches))
        self._address(select, "target", flag)
        begins, jumps = [], [select]
        for number, branch in enumerate(node.branches):
            begins.append(len(self._rows))
            self._branch(branch, f"{path}.{number}")
            jumps.append(self._emit(Operation.SKIP))
        self._pointers.append((select, "source", self._store(np.array(begins, "i8").tobytes())))
        for jump in jumps:
            self._rows[jump]["next"] = len(self._rows)

    def _branch(self, branch: Branch, path: str) -> None:
        for node in branch.nodes:
            self._node(node, f"{path}.{node.index}")
        for advance in branch.advances:
            index = self._emit(Operation.ADVANCE, b=advance.words)
            state = ArrayView(advance.buffer, 0, (2,), (_WORD, _WORD), np.dtype(np.uint64))
            self._address(index, "target", state, _WORD)

    # -- work --------------------------------------------------------------------------------------

    def _work(self, work: Work) -> None:
        self._calls[len(self._rows)] = Call(work.function, work.args)
        if type(work.function) is CpuPlan:
            self._launch(work.function, work.args)
        elif work.function is not np.copyto or not self._copy(work.args):
            self._emit(Operation.CALL)

    def _launch(self, plan: CpuPlan, args: tuple[Any, ...]) -> None:
        entry = self._entry(plan, args)
        if entry is None:  # checked mode
            self._emit(Operation.CALL)
            return
        packed = pack(entry.types, with_defaults(entry.types, args))
        at = self._store(packed.data)
        total = plan.grid[0] * plan.grid[1] * plan.grid[2]
        # A launch of several blocks may use all cores: Python times the first one.
        index = self._emit(
            Operation.LAUNCH if total == 1 else Operation.CALL,
            entry=entry.address,
            trampoline=self._trampoline(entry, packed.slots),
            grid=plan.grid,
            total=total,
            shared=plan.shared,
        )
        self._pointers.append((index, "source", at))
        self._relocations += [Relocation(at + it, *to) for it, *to in packed.relocations]
        self._kept += packed.kept
        self._packed[index] = Packed(entry.types, at // _WORD)

    def _trampoline(self, entry: NativeEntry, slots: tuple[tuple[str, int], ...]) -> int:
        found = self._trampolines.get(entry.address)  # the types of the entry decide the slots
        if found is None:
            found = self._trampolines[entry.address] = trampoline(slots)
        return found

    def _entry(self, plan: CpuPlan, args: tuple[Any, ...]) -> NativeEntry | None:
        key = _type_key(args)
        if key is None:
            return plan.native_entry(with_arrays(args, self._array))
        entries = self._entries.setdefault(plan, {})
        if key not in entries:
            entries[key] = plan.native_entry(with_arrays(args, self._array))
        return entries[key]

    def _copy(self, args: tuple[Any, ...]) -> bool:
        """Emit a copy or a fill of contiguous memory; return False for any other one."""
        target, source = args
        nbytes = _contiguous_bytes(target)
        if nbytes is None:
            return False
        if type(source) is ArrayView:
            same = (source.dtype, source.shape) == (target.dtype, target.shape)
            if not same or not _are_equal(source, target.strides):
                return False
            index = self._emit(Operation.COPY, b=nbytes)
            self._address(index, "target", target)
            self._address(index, "source", source)
            return True
        block = fill_block(source, target.dtype, nbytes)
        if block is None:
            return False
        at = self._store(block)
        index = self._emit(Operation.FILL, a=len(block), b=nbytes)
        self._address(index, "target", target)
        self._pointers.append((index, "source", at))
        self._packed[index] = Packed(target.dtype, at // _WORD)
        return True

    def _array(self, view: ArrayView) -> Any:
        buffer = self._buffers[view.buffer]
        return host_array(view, buffer, buffer.address, buffer.owner)


def _type_key(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return a key that is equal only for arguments of equal types; None if there is none."""
    parts: list[Any] = []
    for arg in args:
        if type(arg) is ArrayView:
            parts.append((arg.dtype, arg.shape, arg.strides, arg.offset % _ALIGNMENT))
        elif type(arg) is int:
            parts.append((int, arg < 1 << 63))
        elif type(arg) in _PLAIN:
            parts.append(type(arg))
        else:
            return None
    return tuple(parts)


def fill_block(value: Any, dtype: np.dtype[Any], nbytes: int) -> bytes | None:
    """Return a value, repeated over some kilobytes at most; None if it is not one value.

    Raises
    ------
    TypeError
        If NumPy does not convert the value, as `numpy.copyto`.
    """
    if np.ndim(value) or dtype.hasobject or not dtype.itemsize:
        return None
    limit = _LARGE_BLOCK if nbytes >= _MIN_LARGE else _SMALL_BLOCK
    count = max(1, min(nbytes, limit) // dtype.itemsize)
    block = np.empty(count, dtype)
    np.copyto(block, value)
    return block.tobytes()


def _contiguous_bytes(view: Any) -> int | None:
    """Return the size of a contiguous array in C or Fortran order, None for any other one."""
    if type(view) is not ArrayView or view.dtype.hasobject:
        return None
    dense = (_dense_strides(view.shape, view.dtype.itemsize, order) for order in "CF")
    if not any(_are_equal(view, strides) for strides in dense):
        return None
    size = view.dtype.itemsize
    for extent in view.shape:
        size *= extent
    return size


def _dense_strides(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    strides, step = [], itemsize
    for extent in reversed(shape) if order == "C" else shape:
        strides.append(step)
        step *= extent
    return tuple(reversed(strides) if order == "C" else strides)


def _are_equal(view: ArrayView, strides: tuple[int, ...]) -> bool:
    """Return whether an array has these strides where it has more than one element."""
    return all(
        extent <= 1 or mine == other
        for extent, mine, other in zip(view.shape, view.strides, strides, strict=True)
    )
