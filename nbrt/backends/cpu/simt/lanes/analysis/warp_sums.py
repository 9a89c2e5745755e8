"""Sums of warps that go through shared memory, kept as vectors until they are added up.

A reduction of a block adds the lanes of each warp by shuffles, and lane 0 stores the sum to shared
memory, where all threads add up the sums of the warps. The lanes of a warp are a vector, so each
warp would end with a chain of permutations and additions. If the sums are only added to each other
afterwards, the vectors can be added first, and the lanes of one vector at the end.

The thread stores a vector of partial sums in a second array, at the index at which it stored their
sum, and an addition of loads becomes one of vectors. This changes the order of additions only, so
floating-point additions need the flag ``reassoc``, which a kernel has with ``fastmath=True``; those
of integers need none. The conditions, for each shared array of a call site:

- Its addresses are operands of loads, stores and computations of addresses only.
- What is stored is the sum of a warp: five shuffles with all lanes in their mask, by the distances
  1, 2, 4, 8 and 16 down or by exclusive or, in any order. In lane 0, each adds lanes that are not
  in the sum yet, so it is that of all 32 lanes. A branch lets lane 0 alone reach the store.
- What is loaded, at constant indices, is added to other values in the block behind a barrier, and
  used nowhere else.

The shuffles remain, without uses. In a program that violates the rules of CUDA, lanes of the mask
do not run a shuffle; they count as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.model import BINARY, CASTS, Instruction, Operand
from nbrt.backends.cpu.simt.llvm.types import size_of

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.lane_layout import LaneLayout
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock

__all__ = ["SUMS_NOTE", "VECTOR_BYTES", "keep_warp_sums"]

SUMS_NOTE = "sums of warps stay vectors in shared memory until they are added up"

VECTOR_BYTES = 32
"""Size of a vector of partial sums."""

_TYPES = {"float": "fadd", "double": "fadd", "i32": "add", "i64": "add"}
_DISTANCES = frozenset((1, 2, 4, 8, 16))
_SHUFFLES = (f"{placeholders.SHUFFLE}xor.", f"{placeholders.SHUFFLE}down.")
_PURE = BINARY | CASTS | {"getelementptr", "icmp", "fcmp", "select", "freeze", "phi", "br"}


@dataclass(slots=True)
class _Sums:
    """A shared array of sums, by the marker of its call site."""

    site: str
    type: str = ""
    loads: list[Instruction] = field(default_factory=list)
    stores: list[tuple[Instruction, _WarpSum]] = field(default_factory=list)


class _WarpSum(NamedTuple):
    """The sum of a warp: what the lanes hold, its first shuffle, and the flags of an addition."""

    value: str
    shuffle: Instruction
    flags: str


def keep_warp_sums(thread: SplitThread, layout: LaneLayout, index: str) -> None:
    """Let sums of warps stay vectors, in blocks of one row of whole warps.

    Parameters
    ----------
    thread : SplitThread
        One thread; it is changed.
    layout : LaneLayout
        The groups of the block.
    index : str
        Name of ``threadIdx.x``.
    """
    if layout.block[1:] != (1, 1) or layout.tail or layout.width != placeholders.WARP_SIZE:
        return
    sites = dict.fromkeys(i.detail for _, i in thread.function.instructions() if _is_array(i))
    for number, site in enumerate(sites):
        # The additions of one array may have loads of another as operands, so each is found anew.
        _keep_sums_at(site, number, thread, index)


def _is_array(item: Instruction) -> bool:
    is_shared = item.opcode == "call" and item.detail.startswith(placeholders.SHARED)
    return is_shared and item.detail not in (
        placeholders.SHARED_DYNAMIC,
        placeholders.SHARED_BYTES,
    )


def _keep_sums_at(site: str, number: int, thread: SplitThread, index: str) -> None:
    finder = _Finder(thread, index)
    sums = finder.find(site)
    totals = [finder.total(load) for load in sums.loads] if sums is not None else []
    if sums is None or None in totals:
        return
    roots = {total.name: total for total in totals if total is not None}
    function = thread.function
    size, _ = placeholders.shared_extent(site)
    count = size // size_of(sums.type)
    vectors = placeholders.shared_array(count * VECTOR_BYTES, 64, f"sums.{number}")
    arrays: list[Operand] = []
    for symbol in (site, vectors):
        name = f"%nbrt.sums.{number}.{len(arrays)}"
        text = f"call ptr @{symbol}()"
        call = Instruction(name, "call", "ptr", [], detail=symbol, text=text)
        function.blocks[function.entry].instructions.insert(0, call)
        arrays.append(Operand("ptr", name))
    for at, (store, summed) in enumerate(sums.stores):
        lanes = finder.add_lanes(sums.type, summed, f"%nbrt.sums.{number}.lanes.{at}")
        address = store.operands[1]
        finder.replace(store, placeholders.SUM_KEEP, [address, *arrays, lanes], summed.flags)
    loads = {load.name: load.operands[0] for load in sums.loads}
    for at, root in enumerate(roots.values()):
        inner, leaves = finder.additions(root)
        addresses = [loads[leaf.text] for leaf in leaves if leaf.text in loads]
        others = [leaf for leaf in leaves if leaf.text not in loads]
        total = f"%nbrt.sums.{number}.total.{at}"
        finder.add_total(root, total, [*arrays, *addresses], others)
        finder.remove({*inner, *(leaf.text for leaf in leaves if leaf.text in loads)})


class _Finder:
    """Finds sums in a thread, and changes its instructions."""

    def __init__(self, thread: SplitThread, index: str) -> None:
        self._function = thread.function
        self._index = index
        self._definitions: dict[str, Instruction] = {}
        self._users: dict[str, list[Instruction]] = {}
        self._homes: dict[int, BasicBlock] = {}
        self._sources: dict[str, list[BasicBlock]] = {}
        for block, item in self._function.instructions():
            self._homes[id(item)] = block
            if item.name:
                self._definitions[item.name] = item
            self._add_users(item)
        for phi in thread.all_phis():
            self._add_users(phi)
        for block in self._function.blocks.values():
            for label in block.successors:
                self._sources.setdefault(label, []).append(block)
        self._behind = {barrier.after for barrier in thread.barriers.values()}

    def _add_users(self, item: Instruction) -> None:
        for operand in item.operands:
            self._users.setdefault(operand.text, []).append(item)

    # -- sums of warps -----------------------------------------------------------------------

    def find(self, site: str) -> _Sums | None:
        """Return the loads and stores of an array, if all of them are of sums of warps."""
        sums = _Sums(site)
        pending = [i.name for i in self._definitions.values() if i.detail == site]
        while pending:
            address = pending.pop()
            for user in self._users.get(address, ()):
                if user.opcode == "getelementptr" and user.operands[0].text == address:
                    pending.append(user.name)
                elif not self._add(sums, user, address):
                    return None
        return sums if sums.loads and sums.stores else None

    def _add(self, sums: _Sums, user: Instruction, address: str) -> bool:
        """Add a load or store of a sum; return whether it is one."""
        if user.opcode == "load" and not user.detail and self._is_constant(address):
            kind = user.type
            sums.loads.append(user)
        elif user.opcode == "store" and not user.detail and user.operands[0].text != address:
            kind = user.operands[0].type
            summed = self._warp_sum(user.operands[0].text)
            if summed is None or not self._is_for_first_lane(user):
                return False
            sums.stores.append((user, summed))
        else:
            return False
        sums.type = sums.type or kind
        return kind in _TYPES and kind == sums.type

    def _is_constant(self, address: str) -> bool:
        """Return whether an address is at a constant distance from the array."""
        while (item := self._definitions[address]).opcode == "getelementptr":
            if any(index.is_local for index in item.operands[1:]):
                return False
            address = item.operands[0].text
        return True

    def _warp_sum(self, name: str) -> _WarpSum | None:
        distances: set[int] = set()
        last, flags = None, ""
        while distances != _DISTANCES:
            item = self._definitions.get(name)
            if item is None or not _is_addition(item):
                return None
            left, right = (operand.text for operand in item.operands)
            found = self._shuffled(left, right) or self._shuffled(right, left)
            if found is None or found[2] in distances:
                return None
            name, last, distance = found
            flags = item.flags
            distances.add(distance)
        return _WarpSum(name, last, flags) if last is not None else None

    def _shuffled(self, own: str, other: str) -> tuple[str, Instruction, int] | None:
        """Return a value, its shuffle and the distance, if `other` is a shuffle of `own`."""
        item = self._definitions.get(self._without_casts(other))
        if item is None or item.opcode != "call" or not item.detail.startswith(_SHUFFLES):
            return None
        mask, value, distance = (operand.text for operand in item.operands)
        if mask != "-1" or self._without_casts(value) != self._without_casts(own):
            return None
        return (own, item, int(distance)) if distance.isdigit() else None

    def _without_casts(self, name: str) -> str:
        while (item := self._definitions.get(name)) is not None and item.opcode == "bitcast":
            name = item.operands[0].text
        return name

    def _is_for_first_lane(self, store: Instruction) -> bool:
        """Return whether a branch lets lane 0 alone reach a store, in a block that only stores."""
        block = self._homes[id(store)]
        sources = self._sources.get(block.label, [])
        if len(sources) != 1 or len(block.successors) != 1:
            return False
        if any(item is not store and item.opcode not in _PURE for item in block.instructions):
            return False
        branch = sources[0].terminator
        test = self._definitions.get(branch.operands[0].text) if branch.operands else None
        if test is None or test.opcode != "icmp" or test.operands[1].text != "0":
            return False
        predicate = "eq" if branch.labels[0] == block.label else "ne"
        lane = self._definitions.get(self._without_extensions(test.operands[0].text))
        if test.detail != predicate or lane is None or lane.opcode != "and":
            return False
        index, last = (operand.text for operand in lane.operands)
        is_lane = last == str(placeholders.WARP_SIZE - 1)
        return is_lane and self._without_extensions(index) == self._index

    def _without_extensions(self, name: str) -> str:
        while (item := self._definitions.get(name)) is not None and item.opcode in ("zext", "sext"):
            name = item.operands[0].text
        return name

    # -- additions of sums -------------------------------------------------------------------

    def total(self, load: Instruction) -> Instruction | None:
        """Return the last addition of a load to other values, if it has no other use."""
        block, last = self._homes[id(load)], load
        while (user := self._only_addition(last.name, block)) is not None:
            last = user
        return last if last is not load and block.label in self._behind else None

    def _only_addition(self, name: str, block: BasicBlock) -> Instruction | None:
        """Return the addition that alone uses a value, in the same block."""
        users = self._users.get(name, [])
        if len(users) != 1 or self._homes.get(id(users[0])) is not block:
            return None
        return users[0] if _is_addition(users[0]) else None

    def additions(self, root: Instruction) -> tuple[set[str], list[Operand]]:
        """Return the other additions of a total, and what they add up."""
        inner: set[str] = set()
        leaves: list[Operand] = []
        pending, block = list(root.operands), self._homes[id(root)]
        while pending:
            operand = pending.pop(0)
            item = self._definitions.get(operand.text)
            if (
                item is None
                or not _is_addition(item)
                or self._homes[id(item)] is not block
                or len(self._users[item.name]) != 1
            ):
                leaves.append(operand)
                continue
            inner.add(item.name)
            pending += item.operands
        return inner, leaves

    # -- changes -----------------------------------------------------------------------------

    def add_lanes(self, kind: str, summed: _WarpSum, name: str) -> Operand:
        """Add a marker for what the lanes of a sum hold, before its first shuffle."""
        block = self._homes[id(summed.shuffle)]
        at = block.instructions.index(summed.shuffle)
        operand = Operand(kind, summed.value)
        block.instructions.insert(
            at, Instruction(name, "call", kind, [operand], detail=placeholders.SUM_LANES)
        )
        return Operand(kind, name)

    def replace(self, item: Instruction, marker: str, operands: list[Operand], flags: str) -> None:
        """Put a marker in the place of an instruction."""
        instructions = self._homes[id(item)].instructions
        call = replace(item, opcode="call", operands=operands, flags=flags, detail=marker, text="")
        instructions[instructions.index(item)] = call

    def add_total(
        self, root: Instruction, name: str, operands: list[Operand], others: list[Operand]
    ) -> None:
        """Put the total of sums in the place of an addition, and then add the other values."""
        instructions, kind = self._homes[id(root)].instructions, root.type
        flags = root.flags if root.opcode == "fadd" else ""  # as integers may overflow elsewhere
        names = [*(f"{name}.{count}" for count in range(len(others))), root.name]
        marker = placeholders.SUM_TOTAL
        made = [Instruction(names[0], "call", kind, operands, flags, marker, line=root.line)]
        for before, after, other in zip(names, names[1:], others, strict=False):
            pair = [Operand(kind, before), other]
            text = f"{root.opcode} {flags} {kind} {before}, {other.text}"
            made.append(replace(root, name=after, operands=pair, flags=flags, text=text))
        at = instructions.index(root)
        instructions[at : at + 1] = made

    def remove(self, names: set[str]) -> None:
        """Remove instructions without uses."""
        for block in self._function.blocks.values():
            block.instructions = [i for i in block.instructions if i.name not in names]


def _is_addition(item: Instruction) -> bool:
    """Return whether an instruction is an addition whose order may change."""
    if item.opcode != _TYPES.get(item.type):
        return False
    flags = item.flags.split()
    return item.opcode == "add" or "reassoc" in flags or "fast" in flags
