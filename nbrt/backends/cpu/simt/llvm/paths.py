"""One path around a loop: what its branches depend on, and what of that stays the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.model import BINARY, CASTS
from nbrt.backends.cpu.simt.placeholders import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cpu.simt.llvm.graph import Loop
    from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand

__all__ = ["ATOMIC_FUNCTION", "Path", "changes_itself", "root", "stores"]

ATOMIC_FUNCTION = "nbrt_atomic_"
"""In front of the names of atomic operations that are functions of their own."""

_MAX_CHOICES = 64
"""Ways through the selects on one path that are looked at."""

_PURE = {*BINARY, *CASTS, "icmp", "fcmp", "fneg", "freeze", "getelementptr", "extractvalue"}
_PURE |= {"insertvalue", "select"}


_NEGATED = {"ne": "eq", "uge": "ult", "ule": "ugt", "sge": "slt", "sle": "sgt"}
"""Comparisons of integers, and those that come out the other way."""


def root(pointer: str, definitions: dict[str, Instruction]) -> str:
    """Return the pointer that an address was made from."""
    while pointer in definitions:
        item = definitions[pointer]
        if item.opcode == "getelementptr":
            pointer = item.operands[0].text
            continue
        # Checked mode puts some zeros, at a constant address, in the place of a wrong access.
        options = [o.text for o in item.operands[1:] if o.is_local]
        if item.opcode != "select" or len(options) != 1:
            break
        pointer = options[0]
    return pointer


def stores(item: Instruction, definitions: dict[str, Instruction]) -> bool:
    """Return whether an instruction is a plain store that other threads can see."""
    return item.opcode == "store" and not _is_private(item.operands[1].text, definitions)


def changes_itself(item: Instruction) -> bool:
    """Return whether a read is an atomic operation that surely writes another value, as a count."""
    if item.opcode != "atomicrmw":
        return False
    if item.detail in ("uinc_wrap", "udec_wrap"):
        return True
    return item.detail in ("add", "sub", "fadd", "fsub") and not _is_zero(item.operands[1])


def _is_zero(operand: Operand) -> bool:
    return operand.text in ("0", "-0", "0.000000e+00", "-0.000000e+00")


def _is_private(pointer: str, definitions: dict[str, Instruction]) -> bool:
    found = definitions.get(root(pointer, definitions))
    return found is not None and found.opcode == "alloca"


class Path:
    """One path.

    Parameters
    ----------
    loop : Loop
        The loop.
    labels : list of str
        The blocks of the path, from the header on.
    definitions : dict
        The instructions of the function by their results.
    homes : dict
        The blocks that they are in.
    taken : dict of str to bool
        Conditions of the branches on the path, and how they come out.

    Attributes
    ----------
    state : list of str
        Phis of the header that the branches depend on.
    """

    def __init__(
        self,
        loop: Loop,
        labels: list[str],
        definitions: dict[str, Instruction],
        homes: dict[str, str],
        taken: dict[str, bool],
    ) -> None:
        self._blocks, self._header = loop.blocks, labels[0]
        self._definitions, self._homes, self._taken = definitions, homes, taken
        self._settled: dict[str, bool] = {}
        self._came = dict(zip(labels, [labels[-1], *labels[:-1]], strict=True))
        self._slice = self._depends_on(taken)
        items = [definitions[name] for name in self._slice]
        self.state = [item.name for item in items if self._is_state(item)]
        self._reads = [item for item in items if self._is_read(item)]

    def waits(
        self, stores: list[Instruction]
    ) -> Iterator[tuple[list[Instruction], list[Instruction]]]:
        """For each way in which the path may repeat itself, find the reads that end it.

        Parameters
        ----------
        stores : list of Instruction
            The stores on the path.

        Yields
        ------
        reads : list of Instruction
            The reads, also those whose result the path stores where it reads.
        changes : list of Instruction
            The stores whose value may be another in the next turn.
        """
        for kept, origins in self._repetitions():
            rest = {name: origins[name] for name in self.state if name not in kept}
            if all(self._comes_back(name, operand, kept) for name, operand in rest.items()):
                written = {root(s.operands[1].text, self._definitions) for s in stores}
                changes = [s for s in stores if self._is_change(s, written, kept)]
                reads = self._with_those_behind(stores)
                yield [item for item in reads if self._is_settled_read(item, kept)], changes

    def _is_change(self, store: Instruction, written: set[str], kept: set[str]) -> bool:
        """Return whether the next turn may store another value."""
        value = store.operands[0]
        if not self._is_settled(value, kept):
            return True
        behind = [self._definitions[name] for name in self._depends_on({value.text: True})]
        reads = [item for item in behind if self._is_read(item)]
        return any(
            changes_itself(item)
            or (item.opcode == "load" and root(item.operands[0].text, self._definitions) in written)
            for item in reads
        )

    def _with_those_behind(self, stores: list[Instruction]) -> list[Instruction]:
        """Add to the reads those that stores hand on to them through memory."""
        places = {root(item.operands[0].text, self._definitions) for item in self._reads}
        handed = {
            store.operands[0].text: True
            for store in stores
            if root(store.operands[1].text, self._definitions) in places
        }
        behind = [self._definitions[name] for name in self._depends_on(handed)]
        return [*self._reads, *(each for each in behind if self._is_read(each))]

    def timed_reads(self) -> list[Instruction]:
        """Return the reads of a path that repeats itself but for counters that will end it."""
        for kept, origins in self._repetitions():
            rest = {name: origins[name] for name in self.state if name not in kept}
            if all(
                self._is_counter(name, operand, kept) or self._comes_back(name, operand, kept)
                for name, operand in rest.items()
            ):
                return [item for item in self._reads if self._is_settled_read(item, kept)]
        return []

    # -- what the branches depend on ---------------------------------------------------------

    def _depends_on(self, names: dict[str, bool]) -> list[str]:
        found: dict[str, None] = {}
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in found or self._homes.get(name) not in self._blocks:
                continue
            found[name] = None
            item = self._definitions[name]
            if item.opcode != "phi":
                pending += [operand.text for operand in item.operands]
            else:
                incoming = self._incoming(item)
                pending += [operand.text for operand in incoming]
        return list(found)

    def _incoming(self, phi: Instruction) -> list[Operand]:
        """Return what a phi holds on this path; of a block beside it, all that it may hold."""
        came = self._came.get(self._homes[phi.name])
        chosen = [o for o, label in zip(phi.operands, phi.labels, strict=True) if label == came]
        return chosen or phi.operands

    def _is_state(self, item: Instruction) -> bool:
        return item.opcode == "phi" and self._homes[item.name] == self._header

    def _is_read(self, item: Instruction) -> bool:
        if item.opcode == "load" or (
            item.opcode == "call" and item.detail.startswith(ATOMIC_FUNCTION)
        ):
            return not self._is_constant(item)
        return item.opcode in ("atomicrmw", "cmpxchg")

    def _is_constant(self, item: Instruction) -> bool:
        """Return whether an instruction has one result in all turns, for any operands."""
        if item.opcode == "call":
            return item.detail.startswith(SHARED)
        return item.opcode == "load" and root(item.operands[0].text, self._definitions).startswith(
            "@"
        )

    # -- what stays the same -----------------------------------------------------------------

    def _repetitions(self) -> Iterator[tuple[set[str], dict[str, Operand]]]:
        """Go through the ways in which selects may come out: the phis kept, and all new values."""
        choices: list[tuple[int, dict[str, bool], dict[str, Operand]]] = [(0, self._taken, {})]
        budget = _MAX_CHOICES
        while choices and budget:
            position, taken, origins = choices.pop()
            if position == len(self.state):
                budget -= 1
                if not self._agrees(taken):
                    continue
                self._settled.clear()
                kept = {name for name, operand in origins.items() if operand.text == name}
                yield kept, origins
                continue
            name = self.state[position]
            for operand, chosen in self._values(self._incoming(self._definitions[name])[0], taken):
                choices.append((position + 1, chosen, {**origins, name: operand}))

    def _agrees(self, taken: dict[str, bool]) -> bool:
        """Return whether equal comparisons agree on the path; else it is infeasible."""
        outcomes: dict[tuple[str, ...], bool] = {}
        for name, outcome in taken.items():
            item = self._definitions.get(name)
            if item is None or item.opcode not in ("icmp", "fcmp"):
                continue
            operands = [next(self._values(each, taken))[0].text for each in item.operands]
            negated = _NEGATED.get(item.detail)
            key = (item.opcode, negated or item.detail, *operands)
            if outcomes.setdefault(key, outcome != bool(negated)) != (outcome != bool(negated)):
                return False
        return True

    def _values(
        self, operand: Operand, taken: dict[str, bool]
    ) -> Iterator[tuple[Operand, dict[str, bool]]]:
        """Follow a value through the phis and selects of the path."""
        item = self._definitions.get(operand.text)
        inside = self._homes.get(operand.text) in self._blocks
        if item is None or not inside or self._is_state(item):
            yield operand, taken
        elif item.opcode == "phi" and len(self._incoming(item)) == 1:
            yield from self._values(self._incoming(item)[0], taken)
        elif item.opcode == "select":
            condition, *options = item.operands
            for outcome, option in zip((True, False), options, strict=True):
                if taken.get(condition.text, outcome) == outcome:
                    yield from self._values(option, {**taken, condition.text: outcome})
        else:
            yield operand, taken

    def _comes_back(self, name: str, operand: Operand, kept: set[str]) -> bool:
        """Return whether a phi's new value may be its old one, though it is computed."""
        if operand.is_local and self._homes.get(operand.text) in self._blocks:
            return self._is_settled(operand, kept)
        phi = self._definitions[name]
        pairs = zip(phi.operands, phi.labels, strict=True)
        first = [value for value, label in pairs if label not in self._blocks]
        return operand in first

    def _is_settled(self, operand: Operand, kept: set[str]) -> bool:
        """Return whether a value is made of loop invariants and memory at fixed addresses."""
        name = operand.text
        if not operand.is_local or self._homes.get(name) not in self._blocks:
            return True
        if name not in self._settled:
            self._settled[name] = False  # for a value that an inner loop makes of itself
            self._settled[name] = self._settles(self._definitions[name], kept)
        return self._settled[name]

    def _settles(self, item: Instruction, kept: set[str]) -> bool:
        if self._is_state(item):
            return item.name in kept
        if item.opcode == "phi":
            return all(self._is_settled(operand, kept) for operand in self._incoming(item))
        if self._is_read(item):
            return self._is_settled_read(item, kept)
        if self._is_constant(item):
            return True
        return item.opcode in _PURE and all(self._is_settled(o, kept) for o in item.operands)

    def _is_settled_read(self, item: Instruction, kept: set[str]) -> bool:
        if _is_private(item.operands[0].text, self._definitions):
            return False
        return all(self._is_settled(operand, kept) for operand in item.operands)

    def _is_counter(self, name: str, operand: Operand, kept: set[str]) -> bool:
        item = self._definitions.get(operand.text)
        if item is None or item.opcode not in ("add", "sub"):
            return False
        others = [o for o in item.operands if o.text != name]
        return len(others) == 1 and self._is_settled(others[0], kept)
