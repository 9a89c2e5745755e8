"""Stores of whole cache lines to large arrays, which bypass the caches (non-temporal stores).

A store to a line that is not in a cache first reads the line from memory. A store that covers the
line needs nothing of it, and a line of an array that is larger than its share of the last-level
cache has left the cache before anything reads it. `StreamedStores` finds the stores of a kernel for
which that may hold, and writes each in two forms. Tests of the size of the array and of the address
select the form when the code runs.

Legality: non-temporal stores write the same bytes. The thread that writes them sees them in program
order. For others, they are not ordered with later stores, so the entry function ends its blocks
with a fence (`BlockCalls.emit_end`), before anything says that the launch is complete. A launch
that ends early, by an error or a stop, is reported through locked instructions, which order all
stores on x86-64. Within a launch, blocks may rely on the order of their stores only by fences and
ordered operations; kernels with those, or with calls that could contain some, have no such stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.types import is_scalar, size_of
from nbrt.backends.cpu.simt.math_functions import PURE_FUNCTIONS
from nbrt.backends.cpu.simt.processor import processor

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.accesses.prefetch import Advances
    from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter
    from nbrt.backends.cpu.simt.lanes.vectors.values import Mask, Value
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = ["StreamedStores"]

_LINE = 64
"""Bytes of a cache line."""

_MIN_BYTES = 11 << 20
"""Minimum size of the array: a third of the last-level cache of a core complex of Zen. Steps that
alternate between two arrays of 8 MiB take 1.12 times as long with non-temporal stores; with 12, 14
and 16 MiB, 0.92, 0.83 and 0.73 times."""

_ATOMIC_CALLS = ("nbrt_atomic_", "nbrt.atomic.")
_ADDRESSES = ("getelementptr", "freeze")
_READ = "as the kernel reads it"
_REPEATED = "as the kernel stores to it at several places"
_ARRAY = ["ptr", "ptr", "i64", "i64", "ptr"]
"""Types of the first members of Numba's arrays: two objects, the number of elements, the size of
one, the address of the first."""


class StreamedStores:
    """Finds the stores of a thread that may bypass the caches, and writes them.

    A store qualifies if it is the only one to its array, which is an argument that the kernel does
    not read, and if each loop around it moves its address, so that no line is written twice.
    """

    def __init__(self, writer: RowWriter, advances: Advances) -> None:
        self._writer = writer
        self._advances = advances
        self._sizes: dict[str, tuple[str, str]] = {}
        """By the address of a store: the number of elements of the array, and their size."""
        self._homes: dict[str, str] = {}
        """By the address of a store: its block."""
        self._arrays: dict[str, str] = {}
        """By the address of a store: the name of the array."""
        self._obstacles: dict[str, str] = {}
        """By the address of a store: why it may not bypass the caches."""
        self._find(advances.function)

    def _find(self, function: Function) -> None:
        definitions = {item.name: item for _, item in function.instructions() if item.name}
        arrays = _arrays(function)
        stores: dict[str, list[str]] = {}
        read: set[str] = set()
        for block, item in function.instructions():
            is_store = item.opcode == "store"
            pointers = item.operands[1:] if is_store else item.operands
            for pointer in pointers if item.opcode not in _ADDRESSES else ():
                root = _root(pointer.text, definitions)
                if root not in arrays:
                    continue
                if is_store and is_scalar(item.operands[0].type):
                    stores.setdefault(root, []).append(pointer.text)
                    self._homes[pointer.text] = block.label
                else:
                    read.add(root)
        obstacle = _obstacle_of_all(function)
        for root, found in stores.items():
            its_own = _READ if root in read else _REPEATED if len(found) > 1 else ""
            for address in found:
                self._sizes[address] = arrays[root]
                self._arrays[address] = _name(root)
                self._obstacles[address] = obstacle or its_own

    def may_stream(self, item: Instruction, pointer: Value, mask: Mask) -> bool:
        """Return whether an access is a store of whole lines that may bypass the caches.

        If it is a store to an array that may not, a note says why.
        """
        if item.opcode != "store" or item.operands[1].text not in self._sizes:
            return False
        obstacle = self._obstacle(item, pointer, mask)
        if obstacle:
            array = self._arrays[item.operands[1].text]
            self._writer.notes[f"stores to {array} go through the caches {obstacle}"] = None
        return not obstacle

    def _obstacle(self, item: Instruction, pointer: Value, mask: Mask) -> str:
        """Return why or where a store to an array may not bypass the caches, or nothing."""
        address = item.operands[1]
        if self._obstacles[address.text]:
            return self._obstacles[address.text]
        size = size_of(item.operands[0].type)
        nbytes = size * self._writer.width
        if pointer.kind != "step" or pointer.step != size:
            return "where threads in a row do not store to neighbouring elements"
        if mask is not None or nbytes % _LINE:
            return f"where a vector does not cover whole lines of {_LINE} bytes"
        if not self._advances.moves_in_loops(address, self._homes[address.text], nbytes):
            return "as a loop may store to the same line again"
        return ""

    def condition(self, item: Instruction, pointer: Value) -> str:
        """Write the test whether a store should bypass the caches; return an ``i1``."""
        writer = self._writer
        count, size = self._sizes[item.operands[1].text]
        nbytes = writer.op(f"mul i64 {count}, {size}")
        is_large = writer.op(f"icmp uge i64 {nbytes}, {_MIN_BYTES}")
        address = writer.op(f"ptrtoint ptr {pointer.text} to i64")
        offset = writer.op(f"and i64 {address}, {_LINE - 1}")
        is_aligned = writer.op(f"icmp eq i64 {offset}, 0")
        return writer.op(f"and i1 {is_large}, {is_aligned}")

    def write(self, item: Instruction, vector: str, at: str) -> None:
        """Write a store that bypasses the caches, of whole lines from the start of one."""
        writer = self._writer
        array = self._arrays[item.operands[1].text]
        limit = f"if it has at least {_MIN_BYTES >> 20} MiB"
        writer.notes[f"stores of whole cache lines to {array} bypass caches {limit}"] = None
        node = writer.node("!{i32 1}")
        whole = writer.vector_type(item.operands[0].type)
        writer.do(f"store {whole} {vector}, ptr {at}, align {_LINE}, !nontemporal {node}")


def _arrays(function: Function) -> dict[str, tuple[str, str]]:
    """Return the array arguments: by address, the number of elements and the size of one."""
    parameters = function.parameters
    return {
        parameters[at + 4].text: (parameters[at + 2].text, parameters[at + 3].text)
        for at in range(len(parameters) - 4)
        if [each.type for each in parameters[at : at + 5]] == _ARRAY
    }


def _root(name: str, definitions: dict[str, Instruction]) -> str:
    """Return the pointer of which an address is an element."""
    while name in definitions and definitions[name].opcode in _ADDRESSES:
        name = definitions[name].operands[0].text
    return name


def _name(address: str) -> str:
    """Return the parameter of a kernel of which an argument of LLVM is the address."""
    return address.removeprefix("%arg.").rsplit(".", 1)[0]


def _obstacle_of_all(function: Function) -> str:
    """Return why no store of a thread may bypass the caches, or nothing."""
    if not processor().has_fast_streaming:
        return "as others may be slow on this processor"
    if _orders_memory(function):
        return "as fences, ordered operations or calls may order them"
    return ""


def _orders_memory(function: Function) -> bool:
    """Return whether a thread has, or could call, an operation that orders its stores."""
    for _, item in function.instructions():
        if item.opcode == "fence" or (item.opcode in ("load", "store") and item.detail):
            return True
        if item.opcode != "call":
            continue
        name = item.detail
        is_known = name.startswith(("llvm.", *_ATOMIC_CALLS)) or name in PURE_FUNCTIONS
        if not is_known and not placeholders.is_marker(name):
            return True
    return False
