"""Loops that neighbouring threads run together, in parts whose sums fit the vector registers.

A thread with a tile of sums loads two vectors of factors for each row of sums, and its sums are
chains of dependent additions. Neighbouring threads of a product share the factors of one side. If
they run an iteration together, one load serves all of them; LLVM calls this unroll and jam. The
sums of several threads need more registers than a processor has, so the loop is written in parts,
each for some of the sums.

*Legality.* The loop is one block that only loads and computes, and lies between two barriers, where
the threads of a block may run in any order, also instruction by instruction. All threads leave it
in the same iteration. A part computes the same values as the whole loop; as the loop writes
nothing, it may run once for each part. Each sum takes the same operands in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
from nbrt.backends.cpu.simt.lanes.analysis.regions import DONE
from nbrt.backends.cpu.simt.lanes.analysis.splat_loads import with_splat_loads
from nbrt.backends.cpu.simt.lanes.analysis.thread_distances import ThreadDistances
from nbrt.backends.cpu.simt.llvm.model import BINARY, CASTS, CannotLowerError, Operand
from nbrt.backends.cpu.simt.llvm.types import is_scalar, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nbrt.backends.cpu.simt.lanes.analysis.regions import BarrierRegion, SplitThread
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Instruction

__all__ = ["ELEMENTWISE_CALLS", "JammedLoop", "JammedLoops", "LoopPart", "Registers"]

_TEAMS = (1, 2, 4, 8)
"""Numbers of threads that may run a loop together."""
_LATENCY = 4
"""Cycles of a dependent addition, for which an iteration takes at least as long."""
_PER_CYCLE = 2
"""Vector loads and vector operations that a processor starts in a cycle, of each."""
_MAX_COPIED = 256
"""Instructions around the loop, in the copies of all threads."""

ELEMENTWISE_CALLS = frozenset(
    ("fma", "fmuladd", "fabs", "sqrt", "minnum", "maxnum", "minimum", "maximum")
)
"""LLVM intrinsics of vectors, overloaded on the type of their operands."""

_ELEMENTWISE = BINARY | CASTS | {"icmp", "fcmp", "select", "fneg", "freeze"}
_MOVES = frozenset(("getelementptr", "insertelement", "extractelement", "shufflevector"))

Kind = Literal["same", "step", "joined"]
"""A value in neighbouring threads: equal, at a constant distance, or a vector of all threads."""


class Registers(NamedTuple):
    """The number of vector registers that code may use, and the bytes of one."""

    number: int
    size: int


class LoopPart(NamedTuple):
    """A part of a loop: instructions, and the names of values that are used behind the loop."""

    items: list[Instruction]
    results: list[str]


@dataclass(frozen=True)
class JammedLoop:
    """A loop of one block that neighbouring threads run together."""

    block: BasicBlock
    threads: int
    kinds: Mapping[str, Kind]
    """Kinds of the values of the loop, and of the values from outside that it uses, by name."""
    parts: list[LoopPart]

    @property
    def note(self) -> str:
        """The rule, for ``kernel.inspect``."""
        parts = f", in {len(self.parts)} parts" if len(self.parts) > 1 else ""
        if self.threads == 1:
            return f"a loop over sums in registers runs{parts}"
        return f"{self.threads} neighbouring threads run a loop over sums together{parts}"


class JammedLoops:
    """Finds the loops that threads of a block run together.

    Parameters
    ----------
    thread : SplitThread
        The thread, with its regions.
    width : int
        Threads of a block along x.
    x : str
        Name of the parameter ``threadIdx.x``.
    registers : Registers
        The vector registers that the code may use.
    """

    def __init__(self, thread: SplitThread, width: int, x: str, registers: Registers) -> None:
        self._thread = thread
        self._x = x
        self._registers = registers
        self._teams = [team for team in _TEAMS if width % team == 0]
        self._distances: dict[int, ThreadDistances] = {}

    def find(self, region: BarrierRegion) -> JammedLoop | None:
        """Return the loop of a region that threads run together, and how; None if there is none.

        The region is a sequence of blocks with the loop among them.
        """
        loop = self._only_loop(region)
        if loop is None or len(self._thread.regions) == 1 or region.aliases:
            return None
        best: tuple[float, JammedLoop] | None = None
        used = self._used_outside(loop)
        block = with_splat_loads(loop)
        for team in self._teams:
            if not self._may_copy(region, block, team):
                continue
            kinds = _Kinds(block, self._neighbours(team)).find(used)
            if kinds is None:
                continue
            for parts in _divisions(block, kinds, used):
                cost = self._cost(parts, kinds, team)
                if cost is not None and (best is None or cost < best[0]):
                    best = cost, JammedLoop(block, team, kinds, parts)
        if best is None or (best[1].threads == 1 and len(best[1].parts) == 1):
            return None
        return best[1]

    def _only_loop(self, region: BarrierRegion) -> BasicBlock | None:
        """Return the only loop of a region without branches, if it is one block."""
        level = region.level
        if len(level.loops) != 1 or any(len(level.edges(node)) != 1 for node in level.order):
            return None
        ((header, loop),) = level.loops.items()
        _, end = level.edges(level.order[-1])[0]
        if loop.blocks != {header} or end not in (*self._thread.barriers, DONE):
            return None
        return self._thread.function.blocks[header]

    def _may_copy(self, region: BarrierRegion, block: BasicBlock, team: int) -> bool:
        blocks = self._thread.function.blocks
        others = sum(
            item.opcode != "phi"
            for label in region.level.blocks - {block.label}
            for item in blocks[label].instructions
        )
        return others * team <= _MAX_COPIED

    def _neighbours(self, team: int) -> ThreadDistances:
        """Return the distances between as many threads along x."""
        if team not in self._distances:
            strides = {b.result: 0 for b in self._thread.barriers.values() if b.result}
            strides[self._x] = int(team > 1)
            function = self._thread.function
            divergence = Divergence(function, strides, {self._x: team}, team)
            divergence.refine(region.level for region in self._thread.regions)
            self._distances[team] = ThreadDistances(divergence, team)
        return self._distances[team]

    def _used_outside(self, block: BasicBlock) -> list[str]:
        """Return the names of values of the loop that are used behind it, in order."""
        names = [item.name for item in block.instructions if item.name]
        used = {
            operand.text
            for other, item in self._thread.function.instructions()
            if other is not block
            for operand in item.operands
        }
        used |= {operand.text for phi in self._thread.all_phis() for operand in phi.operands}
        return [name for name in names if name in used or name in self._thread.spilled]

    def _cost(self, parts: list[LoopPart], kinds: Mapping[str, Kind], team: int) -> float | None:
        """Return the cycles of an iteration for each thread; None if the registers do not suffice.

        Some processors multiply and add in separate units, so the more frequent operation counts.
        A part keeps its sums and the joined vectors that it loads in registers, and one vector of
        equal values at a time.
        """
        size, cycles = self._registers.size, 0.0

        def registers(kind: str, threads: int) -> int:
            return -(-size_of(kind) * threads // size)

        for items, _ in parts:
            kept = loads = products = others = 0
            for item in items:
                joined = kinds[item.name] == "joined"
                is_vector = joined or item.type.startswith("<")
                if item.opcode != "load" and not is_vector:
                    continue
                count = registers(item.type, team if joined else 1)
                if item.opcode == "load":
                    loads += count
                elif item.opcode in ("fmul", "mul"):
                    products += count
                elif item.opcode not in ("phi", *_MOVES):
                    others += count
                if is_vector and item.opcode in ("phi", "load"):
                    kept += count
            if kept + 1 > self._registers.number:
                return None
            cycles += max(_LATENCY, max(products, others, loads) / _PER_CYCLE)
        return cycles / team


class _Kinds:
    """Finds the kinds of the values of a loop in neighbouring threads."""

    def __init__(self, block: BasicBlock, distances: ThreadDistances) -> None:
        self._block = block
        self._distances = distances
        self._kinds: dict[str, Kind] = {}

    def find(self, used_outside: Sequence[str]) -> dict[str, Kind] | None:
        """Return the kinds by name; None if the loop has no joined sums, or other instructions."""
        kinds = self._kinds
        try:
            for phi in self._block.phis:
                kinds[phi.name] = self._of_value(Operand(phi.type, phi.name))
            for item in self._block.instructions:
                self._add(item)
        except CannotLowerError:
            return None
        for phi in self._block.phis:
            following = phi.operands[phi.labels.index(self._block.label)]
            if kinds[phi.name] != "joined" and self._of(following) == "joined":
                return None
        is_passed_on = all(kinds[name] != "step" for name in used_outside)
        has_sums = any(kinds[phi.name] == "joined" for phi in self._block.phis)
        return kinds if is_passed_on and has_sums else None

    def _of_value(self, operand: Operand) -> Kind:
        """Return the kind of a value from outside or of a phi; vectors of phis are joined."""
        distances = self._distances.of(operand)
        if distances is not None and not operand.type.startswith("<"):
            return "step" if any(distances) else "same"
        if operand.type == "ptr" or not (operand.type.startswith("<") or is_scalar(operand.type)):
            raise CannotLowerError(f"values of the type {operand.type} of several threads")
        return "joined"

    def _of(self, operand: Operand) -> Kind:
        if not operand.is_local:
            return "same"
        if operand.text not in self._kinds:
            distances = self._distances.of(operand)
            is_same = distances is not None and not any(distances)
            self._kinds[operand.text] = "same" if is_same else self._of_value(operand)
        return self._kinds[operand.text]

    def _add(self, item: Instruction) -> None:
        """Find the kind of an instruction, and of its operands."""
        kinds = [self._of(operand) for operand in item.operands]
        if item.opcode == "br":
            if kinds != ["same"]:
                raise CannotLowerError("threads leave the loop in different iterations")
        elif item.opcode != "phi":
            self._kinds[item.name] = self._of_instruction(item, kinds)

    def _of_instruction(self, item: Instruction, kinds: list[Kind]) -> Kind:
        is_call = item.opcode == "call"
        is_elementwise = is_call or item.opcode in _ELEMENTWISE
        if is_call and _base(item) not in ELEMENTWISE_CALLS:
            raise CannotLowerError("a call")
        if item.opcode == "load":
            return self._of_load(item, kinds[0])
        if not is_elementwise and item.opcode not in _MOVES:
            raise CannotLowerError(f"the instruction {item.opcode}")
        if all(kind == "same" for kind in kinds):
            return "same"
        if "joined" not in kinds:
            distances = self._distances.of(Operand(item.type, item.name))
            if distances is None:
                raise CannotLowerError("a value that differs between threads")
            return "step" if any(distances) else "same"
        if not is_elementwise or "step" in kinds or len(_counts(item)) > 1:
            raise CannotLowerError("an operation that vectors of several threads do not have")
        return "joined"

    def _of_load(self, item: Instruction, address: Kind) -> Kind:
        if item.detail:
            raise CannotLowerError("an access in an order")
        if address == "same":
            return "same"
        # The vectors of neighbouring threads lie beside each other.
        distances = self._distances.of(item.operands[0]) or ()
        size = size_of(item.type)
        if list(distances) != [size * number for number in range(len(distances))] or not distances:
            raise CannotLowerError("loads of threads that are not neighbours in memory")
        if item.type == "ptr" or _element(item.type) == "i1":
            raise CannotLowerError(f"loads of the type {item.type}")
        return "joined"


def _element(kind: str) -> str:
    """Return the type of the elements of a vector, or a scalar type."""
    return kind[1:-1].split(" x ", 1)[1] if kind.startswith("<") else kind


def _counts(item: Instruction) -> set[int]:
    """Return the numbers of elements of the operands and the result, for each thread."""
    types = [item.type, *(operand.type for operand in item.operands)]
    return {int(kind[1:].split()[0]) if kind.startswith("<") else 1 for kind in types}


def _base(item: Instruction) -> str:
    """Return the name of an intrinsic without types."""
    return item.detail.removeprefix("llvm.").rpartition(".")[0]


def _divisions(
    block: BasicBlock, kinds: Mapping[str, Kind], used_outside: Sequence[str]
) -> Iterable[list[LoopPart]]:
    """Return the loop in one part, in two parts, and so on, as far as its sums are independent."""
    items = {item.name: item for item in block.instructions if item.name}
    order = {name: position for position, name in enumerate(items)}

    def inner(item: Instruction) -> list[str]:
        operands = item.operands
        if item.opcode == "phi":
            operands = [operands[item.labels.index(block.label)]]
        return [operand.text for operand in operands if operand.text in items]

    def following(phi: Instruction) -> int:
        return max((order[name] for name in inner(phi)), default=0)

    sums = sorted((phi for phi in block.phis if kinds[phi.name] == "joined"), key=following)
    ends = inner(block.terminator)
    for count in range(1, len(sums) + 1):
        length = -(-len(sums) // count)
        chunks = [sums[at : at + length] for at in range(0, len(sums), length)]
        if len(chunks) < count:
            continue
        left, parts = set(used_outside), []
        for chunk in chunks:
            chosen = _closure([*ends, *(phi.name for phi in chunk)], lambda n: inner(items[n]))
            last = chunk is chunks[-1]
            if last:  # values that are no sums
                chosen = _closure([*chosen, *left], lambda n: inner(items[n]))
            if any(phi.name in chosen for phi in sums if phi not in chunk):
                return  # a sum depends on a sum of another part
            results = [name for name in used_outside if name in left and name in chosen]
            left -= set(results)
            parts.append(
                LoopPart([item for item in block.instructions if item.name in chosen], results)
            )
        yield parts


def _closure(names: Iterable[str], operands: Callable[[str], list[str]]) -> set[str]:
    """Return names and the names of all values that they are computed from."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += operands(name)
    return found
