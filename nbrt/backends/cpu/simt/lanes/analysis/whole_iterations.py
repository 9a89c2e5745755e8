"""Loops over rows whose iterations either all threads of a block run, or none.

In ``for i in range(t, n, blockDim.x)``, threads leave the loop at different times, unless ``n`` is
a multiple of the number of threads, as the length of a row often is. `find_whole_iterations` writes
a thread for such lengths, and a test of the arguments that decides which thread a block runs.

*Legality.* The counter is ``i = t + k`` with ``0 <= t < threads``, and ``k`` is a multiple of the
number of threads. If the limit ``n`` is one, too, ``i < n`` and ``k < n`` are the same, so the
thread compares ``k``, which has one value in the block: signed numbers below zero are less than
both. ``k`` is not larger than ``i``, so it overflows only where ``i`` does.

*Barriers.* All threads are in the same iteration then, so a barrier may end it. Between two
barriers each thread runs one iteration, and the threads of the block read memory in order. If each
ran all its iterations before the next one, the distances between its accesses would be those of
whole blocks, which processors do not prefetch: rows in memory took four times as long. The values
that threads carry from one iteration to the next should fit the registers, or the loop keeps its
form. A barrier adds an order of accesses, and takes away none. Where a branch of some threads
encloses the loop, they would not all reach it: the thread cannot be lowered, and is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.analysis.special_threads import SpecialThread
from nbrt.backends.cpu.simt.llvm.graph import Level
from nbrt.backends.cpu.simt.llvm.model import THREAD_PARAMETERS
from nbrt.backends.cpu.simt.llvm.parse import function_lines, parse_function
from nbrt.backends.cpu.simt.llvm.types import is_integer, is_scalar, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cpu.simt.llvm.graph import LoopInfo
    from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand, ThreadIR

__all__ = ["COUNTER", "find_whole_iterations"]

COUNTER = "%nbrt.first."
"""Prefix of the names of the counters of thread 0."""

_EXTENSIONS = ("sext", "zext", "trunc")
_SWAPPED = {"sgt": "slt", "ugt": "ult", "sle": "sge", "ule": "uge"}
_PREDICATES = ("slt", "ult", "sge", "uge")
_NOTE = (
    "loops over a multiple of the {} threads of a block ({}): a version without masks, in which all"
    " threads run the same iterations"
)
_IN_ORDER = ", one after the other"
_CALL = f"call void @{placeholders.BARRIER}()"


class _Counter(NamedTuple):
    """A counter of a loop: its phi, the addition of its step, and the block of the phi."""

    phi: Instruction
    advance: Instruction
    header: str


def find_whole_iterations(code: ThreadIR, register_bytes: int) -> SpecialThread | None:
    """Find the loops from ``threadIdx.x`` on in steps of the block, up to a limit of arguments.

    Parameters
    ----------
    code : ThreadIR
        One thread.
    register_bytes : int
        Size of all vector registers. Loops whose carried values need at most half of it in a whole
        block get a barrier in each iteration.

    Returns
    -------
    SpecialThread or None
        None if there are none, or blocks are no rows of whole warps.
    """
    if code.block[1:] != (1, 1) or code.block[0] % placeholders.WARP_SIZE:
        return None
    return _Search(code, register_bytes).written()


class _Search:
    """Finds the loops of one thread, and writes them."""

    def __init__(self, code: ThreadIR, register_bytes: int) -> None:
        self._code = code
        self._threads = code.block[0]
        self._register_bytes = register_bytes
        self._function = parse_function(code.module, code.name)
        self._definitions = {i.name: i for _, i in self._function.instructions() if i.name}
        self._parameters = {p.text for p in self._function.parameters[THREAD_PARAMETERS + 3 :]}
        position = self._function.parameters[THREAD_PARAMETERS].text
        self._first = {position: "0"}
        """Values that are `threadIdx.x` plus a multiple of the threads: that of thread 0."""
        self._counters: list[_Counter] = []
        self._test: list[str] = []

    def written(self) -> SpecialThread | None:
        """Write the thread and the test; return None if there are no loops."""
        self._find_counters()
        counted = {each.phi.name for each in self._counters}
        counted |= {each.advance.name for each in self._counters}
        if any(item.opcode == "atomicrmw" for _, item in self._function.instructions()):
            return None  # private copies of shared arrays are for the other form of their loops
        compared = [(item, *parts) for item, parts in self._comparisons()]
        tests: dict[str, str] = {}
        for _, value, _, limit in compared:
            if value.text in counted and limit.text not in tests:
                test = self._is_multiple(limit)
                if test is not None:
                    tests[limit.text] = test
        if not tests:
            return None
        replaced: dict[str, str] = {}
        for item, value, predicate, limit in compared:
            if limit.text in tests:
                first = self._first[value.text]
                replaced[item.name] = f"icmp {predicate} {value.type} {first}, {limit.text}"
        barriers = self._latches(set(replaced))
        holds, *others = tests.values()
        for other in others:
            holds = self._op(f"and i1 {holds}, {other}")
        note = _NOTE.format(self._threads, len(counted) // 2) + (_IN_ORDER if barriers else "")
        return SpecialThread(self._text(replaced, barriers), self._test, holds, note)

    def _op(self, text: str) -> str:
        name = f"%whole.{len(self._test)}"
        self._test.append(f"{name} = {text}")
        return name

    # -- counters --------------------------------------------------------------------------------

    def _find_counters(self) -> None:
        for block, item in self._function.instructions():
            if item.opcode in ("sext", "zext") and self._first.get(item.operands[0].text) == "0":
                self._first[item.name] = "0"
            elif item.opcode == "phi" and is_integer(item.type):
                advance = self._advance(item)
                if advance is not None:
                    name = f"{COUNTER}{len(self._counters)}"
                    self._first |= {item.name: name, advance.name: f"{name}.next"}
                    self._counters.append(_Counter(item, advance, block.label))

    def _advance(self, phi: Instruction) -> Instruction | None:
        """Return the addition of a step if a phi counts from ``threadIdx.x`` on."""
        found: list[Instruction] = []
        for operand in phi.operands:
            if self._first.get(operand.text) == "0":
                continue
            item = self._definitions.get(operand.text)
            if item is None or item.opcode != "add" or item.operands[0].text != phi.name:
                return None
            step = item.operands[1].text
            if not step.isdigit() or int(step) == 0 or int(step) % self._threads:
                return None
            found.append(item)
        return found[0] if len(found) == 1 and len(phi.operands) > 1 else None

    # -- comparisons -----------------------------------------------------------------------------

    def _comparisons(self) -> Iterator[tuple[Instruction, tuple[Operand, str, Operand]]]:
        """Yield comparisons with a limit: the compared value, the predicate and the limit."""
        for _, item in self._function.instructions():
            if item.opcode != "icmp" or not is_integer(item.operands[0].type):
                continue
            left, right = item.operands
            if left.text in self._first and item.detail in _PREDICATES:
                yield item, (left, item.detail, right)
            elif right.text in self._first and item.detail in _SWAPPED:
                yield item, (right, _SWAPPED[item.detail], left)

    def _is_multiple(self, limit: Operand) -> str | None:
        """Write whether a limit is a multiple of the threads; None if arguments do not tell it."""
        text = self._clone(limit)
        if text is None:
            return None
        rest = self._op(f"urem {limit.type} {text}, {self._threads}")
        return self._op(f"icmp eq {limit.type} {rest}, 0")

    def _clone(self, operand: Operand) -> str | None:
        """Write an argument, or its extensions; return None for other values."""
        if operand.text in self._parameters:
            return operand.text
        item = self._definitions.get(operand.text)
        if item is None or item.opcode not in _EXTENSIONS:
            return None
        text = self._clone(item.operands[0])
        return None if text is None else self._op(item.without_flags([text]))

    # -- barriers --------------------------------------------------------------------------------

    def _latches(self, tests: set[str]) -> set[str]:
        """Return the last blocks of the loops that get a barrier."""
        if f"@{placeholders.BARRIER}()" not in self._code.module:
            return set()
        loops = {loop.header: loop for loop in self._loops()}
        headers = {each.header for each in self._counters} & loops.keys()
        found = {self._latch(loops[header], tests) for header in headers}
        return {latch for latch in found if latch is not None}

    def _loops(self) -> Iterator[LoopInfo]:
        function = self._function

        def successors(block: str) -> list[str]:
            return function.blocks[block].successors

        pending = [(function.entry, set(function.blocks))]
        while pending:
            for loop in Level(*pending.pop(), successors).loops.values():
                yield loop
                pending.append((loop.header, loop.blocks))

    def _latch(self, loop: LoopInfo, tests: set[str]) -> str | None:
        """Return the last block of a loop if it may have a barrier, and that is useful."""
        blocks = [self._function.blocks[label] for label in loop.blocks]
        latches = [block.label for block in blocks if loop.header in block.successors]
        items = [item for block in blocks for item in block.instructions]
        if len(latches) != 1 or any(placeholders.is_marker(item.detail) for item in items):
            return None
        for block in blocks:
            ends = block.terminator
            leaves = any(label not in loop.blocks for label in block.successors)
            if leaves and (ends.opcode != "br" or ends.operands[0].text not in tests):
                return None
        counters = {each.phi.name for each in self._counters}
        carried = [p for p in self._function.blocks[loop.header].phis if p.name not in counters]
        if not all(is_scalar(phi.type) for phi in carried):
            return None
        size = self._threads * sum(size_of(phi.type) for phi in carried)
        has_loads = any(item.opcode == "load" for item in items)
        return latches[0] if has_loads and 2 * size <= self._register_bytes else None

    # -- text ------------------------------------------------------------------------------------

    def _text(self, replaced: dict[str, str], barriers: set[str]) -> str:
        """Return the module with other comparisons, counters of thread 0, and barriers."""
        added: dict[str, str] = {}
        for phi, advance, _ in self._counters:
            name = self._first[phi.name]
            values = [
                "0" if self._first.get(o.text) == "0" else f"{name}.next" for o in phi.operands
            ]
            pairs = ", ".join(f"[ {v}, {at} ]" for v, at in zip(values, phi.labels, strict=True))
            added[phi.name] = f"  {name} = phi {phi.type} {pairs}"
            step = f"{advance.flags} {advance.type} {name}, {advance.operands[1].text}"
            added[advance.name] = f"  {name}.next = add {step}"
        lines = self._code.module.splitlines()
        label = self._function.entry
        for at in function_lines(lines, self._code.name):
            line = lines[at]
            if line and not line.startswith((" ", ";")):
                label = f"%{line.partition(':')[0]}"
            result = line.strip().partition(" = ")[0]
            if result in replaced:
                lines[at] = f"  {result} = {replaced[result]}"
            if result in added:
                lines[at] = f"{line}\n{added[result]}"
            if label in barriers and line.startswith("  br "):
                lines[at] = f"  {_CALL}\n{line}"
        return "\n".join(lines)
