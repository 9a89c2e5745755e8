"""One path around a loop: the values that its branches depend on, and which are invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.model import BINARY, CASTS, NEGATED
from nbrt.backends.cpu.simt.placeholders import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cpu.simt.llvm.graph import LoopInfo
    from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand

__all__ = ["ATOMIC_FUNCTION", "Path", "changes_itself", "root", "stores"]

ATOMIC_FUNCTION = "nbrt_atomic_"
"""Prefix of atomic operations that are functions."""

_MAX_CHOICES = 64
"""Maximum number of outcomes of the selects on a path to examine."""

_PURE = {*BINARY, *CASTS, "icmp", "fcmp", "fneg", "freeze", "getelementptr", "extractvalue"}
_PURE |= {"insertvalue", "select"}


def root(pointer: str, definitions: dict[str, Instruction]) -> str:
    """Return the pointer that an address is derived from."""
    while pointer in definitions:
        item = definitions[pointer]
        if item.opcode == "getelementptr":
            pointer = item.operands[0].text
            continue
        # Checked mode replaces the address of an invalid access by the address of zeros.
        options = [o.text for o in item.operands[1:] if o.is_local]
        if item.opcode != "select" or len(options) != 1:
            break
        pointer = options[0]
    return pointer


def stores(item: Instruction, definitions: dict[str, Instruction]) -> bool:
    """Return whether an instruction is a plain store to memory that other threads can read."""
    return item.opcode == "store" and not _is_private(item.operands[1].text, definitions)


def changes_itself(item: Instruction) -> bool:
    """Return whether a read is an atomic operation that always writes another value."""
    if item.opcode != "atomicrmw":
        return False
    if item.detail in ("uinc_wrap", "udec_wrap"):
        return True
    return item.detail in ("add", "sub", "fadd", "fsub") and not _is_zero(item.operands[1])


def _is_zero(operand: Operand) -> bool:
    return operand.text in ("0", "-0", "0.000000e+00", "-0.000000e+00")


def _is_private(pointer: str, definitions: dict[str, Instruction]) -> bool:
    item = definitions.get(root(pointer, definitions))
    return item is not None and item.opcode == "alloca"


class Path:
    """One path.

    `labels` are its blocks, from the header on; `homes` are the blocks of `definitions`;
    `outcomes` are the conditions of its branches with their outcomes.

    Attributes
    ----------
    state : list of str
        Phis of the header that the branches depend on.
    """

    def __init__(
        self,
        loop: LoopInfo,
        labels: list[str],
        definitions: dict[str, Instruction],
        homes: dict[str, str],
        outcomes: dict[str, bool],
    ) -> None:
        self._blocks, self._header = loop.blocks, labels[0]
        self._definitions, self._homes, self._outcomes = definitions, homes, outcomes
        self._invariant: dict[str, bool] = {}
        self._previous = dict(zip(labels, [labels[-1], *labels[:-1]], strict=True))
        self._slice = self._depends_on(outcomes)
        items = [definitions[name] for name in self._slice]
        self.state = [item.name for item in items if self._is_state(item)]
        self._reads = [item for item in items if self._is_read(item)]

    def waits(
        self, stores: list[Instruction]
    ) -> Iterator[tuple[list[Instruction], list[Instruction]]]:
        """Iterate over the ways in which the path may repeat itself.

        Yields
        ------
        reads : list of Instruction
            The reads that may end the repetition, also those whose result the path stores to an
            address that it reads.
        changes : list of Instruction
            The stores whose value may differ in the next iteration.
        """
        for kept, origins in self._repetitions():
            rest = {name: origins[name] for name in self.state if name not in kept}
            if all(self._may_repeat(name, operand, kept) for name, operand in rest.items()):
                written = {root(s.operands[1].text, self._definitions) for s in stores}
                changes = [s for s in stores if self._is_change(s, written, kept)]
                reads = self._with_those_behind(stores)
                yield [item for item in reads if self._is_invariant_read(item, kept)], changes

    def _is_change(self, store: Instruction, written: set[str], kept: set[str]) -> bool:
        """Return whether the next iteration may store another value."""
        value = store.operands[0]
        if not self._is_invariant(value, kept):
            return True
        behind = [self._definitions[name] for name in self._depends_on({value.text: True})]
        reads = [item for item in behind if self._is_read(item)]
        return any(
            changes_itself(item)
            or (item.opcode == "load" and root(item.operands[0].text, self._definitions) in written)
            for item in reads
        )

    def _with_those_behind(self, stores: list[Instruction]) -> list[Instruction]:
        """Return the reads, and those whose results the path stores where it reads."""
        places = {root(item.operands[0].text, self._definitions) for item in self._reads}
        handed = {
            store.operands[0].text: True
            for store in stores
            if root(store.operands[1].text, self._definitions) in places
        }
        behind = [self._definitions[name] for name in self._depends_on(handed)]
        return [*self._reads, *(item for item in behind if self._is_read(item))]

    def timed_reads(self) -> list[Instruction]:
        """Return the reads of a path that only counters can end."""
        for kept, origins in self._repetitions():
            rest = {name: origins[name] for name in self.state if name not in kept}
            if all(
                self._is_counter(name, operand, kept) or self._may_repeat(name, operand, kept)
                for name, operand in rest.items()
            ):
                return [item for item in self._reads if self._is_invariant_read(item, kept)]
        return []

    # -- dependences of the branches ---------------------------------------------------------

    def _depends_on(self, names: dict[str, bool]) -> list[str]:
        slice_: dict[str, None] = {}
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in slice_ or self._homes.get(name) not in self._blocks:
                continue
            slice_[name] = None
            item = self._definitions[name]
            if item.opcode != "phi":
                pending += [operand.text for operand in item.operands]
            else:
                pending += [operand.text for operand in self._incoming(item)]
        return list(slice_)

    def _incoming(self, phi: Instruction) -> list[Operand]:
        """Return the operand of a phi on this path; all operands if its block is not on it."""
        previous = self._previous.get(self._homes[phi.name])
        chosen = [o for o, label in zip(phi.operands, phi.labels, strict=True) if label == previous]
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
        """Return whether an instruction has the same result in all iterations, for any operands."""
        if item.opcode == "call":
            return item.detail.startswith(SHARED)
        return item.opcode == "load" and root(item.operands[0].text, self._definitions).startswith(
            "@"
        )

    # -- invariants --------------------------------------------------------------------------

    def _repetitions(self) -> Iterator[tuple[set[str], dict[str, Operand]]]:
        """Iterate over outcomes of selects: the phis that keep their value, and all new values."""
        choices: list[tuple[int, dict[str, bool], dict[str, Operand]]] = [(0, self._outcomes, {})]
        budget = _MAX_CHOICES
        while choices and budget:
            position, outcomes, origins = choices.pop()
            if position == len(self.state):
                budget -= 1
                if not self._agrees(outcomes):
                    continue
                self._invariant.clear()
                kept = {name for name, operand in origins.items() if operand.text == name}
                yield kept, origins
                continue
            name = self.state[position]
            phi = self._definitions[name]
            for operand, chosen in self._values(self._incoming(phi)[0], outcomes):
                choices.append((position + 1, chosen, {**origins, name: operand}))

    def _agrees(self, outcomes: dict[str, bool]) -> bool:
        """Return whether equal comparisons have equal outcomes; if not, the path is infeasible."""
        known: dict[tuple[str, ...], bool] = {}
        for name, outcome in outcomes.items():
            item = self._definitions.get(name)
            if item is None or item.opcode not in ("icmp", "fcmp"):
                continue
            operands = [next(self._values(operand, outcomes))[0].text for operand in item.operands]
            negated = NEGATED.get(item.detail)
            key = (item.opcode, negated or item.detail, *operands)
            if known.setdefault(key, outcome != bool(negated)) != (outcome != bool(negated)):
                return False
        return True

    def _values(
        self, operand: Operand, outcomes: dict[str, bool]
    ) -> Iterator[tuple[Operand, dict[str, bool]]]:
        """Iterate over the sources of a value behind phis and selects of the path."""
        item = self._definitions.get(operand.text)
        inside = self._homes.get(operand.text) in self._blocks
        if item is None or not inside or self._is_state(item):
            yield operand, outcomes
        elif item.opcode == "phi" and len(self._incoming(item)) == 1:
            yield from self._values(self._incoming(item)[0], outcomes)
        elif item.opcode == "select":
            condition, *options = item.operands
            for outcome, option in zip((True, False), options, strict=True):
                if outcomes.get(condition.text, outcome) == outcome:
                    yield from self._values(option, {**outcomes, condition.text: outcome})
        else:
            yield operand, outcomes

    def _may_repeat(self, name: str, operand: Operand, kept: set[str]) -> bool:
        """Return whether the computed new value of a phi may equal its old value."""
        if operand.is_local and self._homes.get(operand.text) in self._blocks:
            return self._is_invariant(operand, kept)
        phi = self._definitions[name]
        pairs = zip(phi.operands, phi.labels, strict=True)
        first = [value for value, label in pairs if label not in self._blocks]
        return operand in first

    def _is_invariant(self, operand: Operand, kept: set[str]) -> bool:
        """Return whether a value depends on loop invariants and memory at fixed addresses only."""
        name = operand.text
        if not operand.is_local or self._homes.get(name) not in self._blocks:
            return True
        if name not in self._invariant:
            self._invariant[name] = False  # for a value of an inner loop that depends on itself
            self._invariant[name] = self._compute_invariant(self._definitions[name], kept)
        return self._invariant[name]

    def _compute_invariant(self, item: Instruction, kept: set[str]) -> bool:
        if self._is_state(item):
            return item.name in kept
        if item.opcode == "phi":
            return all(self._is_invariant(operand, kept) for operand in self._incoming(item))
        if self._is_read(item):
            return self._is_invariant_read(item, kept)
        if self._is_constant(item):
            return True
        return item.opcode in _PURE and all(self._is_invariant(o, kept) for o in item.operands)

    def _is_invariant_read(self, item: Instruction, kept: set[str]) -> bool:
        if _is_private(item.operands[0].text, self._definitions):
            return False
        return all(self._is_invariant(operand, kept) for operand in item.operands)

    def _is_counter(self, name: str, operand: Operand, kept: set[str]) -> bool:
        item = self._definitions.get(operand.text)
        if item is None or item.opcode not in ("add", "sub"):
            return False
        others = [o for o in item.operands if o.text != name]
        return len(others) == 1 and self._is_invariant(others[0], kept)
