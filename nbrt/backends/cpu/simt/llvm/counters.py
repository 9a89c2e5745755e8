"""Loops in LLVM text that count: the induction register, its step and its bound."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.model import NEGATED

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.text import FunctionText

__all__ = ["Counter", "counter_of"]

_NAME = r'%(?:"[^"]*"|[-\w$.]+)'
_BRANCH = re.compile(
    rf'  br i1 ({_NAME}), label %("[^"]*"|[-\w$.]+), label %("[^"]*"|[-\w$.]+)(?:,.*)?$'
)
_COMPARE = re.compile(rf"icmp (?:samesign )?(\w+) i(\d+) ({_NAME}|-?\d+), ({_NAME}|-?\d+)$")
_ADD = re.compile(rf"add (?:nuw |nsw )*i(\d+) ({_NAME}), (-?\d+)$")
_OPPOSITE = NEGATED | {positive: negative for negative, positive in NEGATED.items()}
_SWAPPED = {
    f"{sign}{left}{right}": f"{sign}{swapped}{right}"
    for sign in "us"
    for left, swapped in ("lg", "gl")
    for right in "te"
}
_UPWARDS = ("ult", "ule", "slt", "sle", "ne")
_DOWNWARDS = ("ugt", "uge", "sgt", "sge", "ne")
_MIN_BITS = 32


@dataclass(frozen=True)
class Counter:
    """How a loop counts."""

    phi: str
    """The induction register."""
    bits: int
    """Width of the register."""
    step: int
    """Increment of an iteration; not 0."""
    start: str
    """First value, or empty if there are several."""
    compared: str
    """The register before or after the step, whichever is compared with the bound."""
    predicate: str
    """Of the comparison, with the register on its left."""
    bound: str
    """A constant or a loop-invariant value."""
    condition: str
    """Result of the comparison."""
    exit: str
    """Label of the block behind the loop."""
    continues_if_true: bool
    """Whether the loop continues if the condition holds."""

    @property
    def _continues(self) -> str:
        return self.predicate if self.continues_if_true else _OPPOSITE[self.predicate]

    @property
    def iterations(self) -> int | None:
        """Maximum number of iterations, if it is a constant."""
        try:
            start, bound = int(self.start), int(self.bound)
        except ValueError:
            return None
        distance = (bound - start) * (1 if self.step > 0 else -1)
        if distance < 0 or (self._continues == "ne" and distance % abs(self.step)):
            return None
        return -(-distance // abs(self.step)) + 1

    def can_strip(self, iterations: int) -> bool:
        """Return whether another bound can end the loop after some iterations."""
        step = abs(self.step)
        if self._continues == "ne" and step & (step - 1):
            return False
        return self.bits >= _MIN_BITS and iterations * step < 2 ** (self.bits - 2)

    def comparison(self, bound: str) -> str:
        """Return the comparison with another bound."""
        return f"icmp {self.predicate} i{self.bits} {self.compared}, {bound}"

    def limit_lines(self, begin: str, limit: str, iterations: int, number: int) -> list[str]:
        """Return lines that compute a bound which ends the loop after some iterations, or earlier.

        `begin` is the first value of the register, `limit` the name of the result; `number` makes
        names unique.
        """
        kind, span = f"i{self.bits}", iterations * abs(self.step)
        left, long, far = (f"%nbrt.{name}.{number}" for name in ("left", "long", "far"))
        ends = (self.bound, begin) if self.step > 0 else (begin, self.bound)
        lines = [
            f"  {left} = sub {kind} {ends[0]}, {ends[1]}",
            f"  {long} = icmp ugt {kind} {left}, {span}",
            f"  {far} = add {kind} {begin}, {iterations * self.step}",
        ]
        if self._continues == "ne":
            if abs(self.step) > 1:
                # A register that never equals the bound wraps around.
                odd, misses = f"%nbrt.odd.{number}", f"%nbrt.misses.{number}"
                lines += [
                    f"  {odd} = and {kind} {left}, {abs(self.step) - 1}",
                    f"  {misses} = icmp ne {kind} {odd}, 0",
                    f"  {long}.any = or i1 {long}, {misses}",
                ]
                long = f"{long}.any"
        else:
            # The test is at the end: the first value may be behind the bound.
            before = f"%nbrt.before.{number}"
            lines += [
                f"  {before} = icmp {self._continues} {kind} {begin}, {self.bound}",
                f"  {long}.both = and i1 {long}, {before}",
            ]
            long = f"{long}.both"
        lines.append(f"  {limit} = select i1 {long}, {kind} {far}, {kind} {self.bound}")
        return lines


def counter_of(body: FunctionText, header: str, latch: str, blocks: set[str]) -> Counter | None:
    """Return how a loop counts, if its latch compares an induction register with a bound."""
    branch = _BRANCH.match(body.blocks[latch].lines[-1])
    if branch is None or (branch[2] == header) == (branch[3] == header):
        return None
    exit_label = branch[3] if branch[2] == header else branch[2]
    definitions = _definitions(body, blocks)
    compare = _COMPARE.match(_plain(definitions.get(branch[1], "")))
    if compare is None or exit_label in blocks:
        return None
    predicate, bits, left, right = compare[1], int(compare[2]), compare[3], compare[4]
    if left not in definitions:
        left, right, predicate = right, left, _SWAPPED.get(predicate, predicate)
    if left not in definitions or right in definitions:
        return None
    induction = _induction(left, definitions)
    if induction is None:
        return None
    phi, step = induction
    counter = Counter(
        *(phi, bits, step, _start(definitions[phi], latch), left, predicate, right),
        *(branch[1], exit_label, branch[2] == header),
    )
    return counter if counter._continues in (_UPWARDS if step > 0 else _DOWNWARDS) else None


def _definitions(body: FunctionText, blocks: set[str]) -> dict[str, str]:
    """Return the instructions of a loop by the names of their results."""
    definitions = {}
    for label in blocks:
        for line in body.blocks[label].lines:
            name, equals, text = line.strip().partition(" = ")
            if equals and name.startswith("%"):
                definitions[name] = text
    return definitions


def _plain(text: str) -> str:
    """Remove metadata from an instruction."""
    return re.sub(r", !.*$", "", text)


def _induction(name: str, definitions: dict[str, str]) -> tuple[str, int] | None:
    """Return the phi and the step of an induction register, given before or after the step."""
    if definitions[name].startswith("phi "):
        values = re.findall(rf"\[ ({_NAME}),", definitions[name])
        phi, following = name, [v for v in values if _adds(v, name, definitions)]
    else:
        add = _ADD.match(_plain(definitions[name]))
        if add is None or not definitions.get(add[2], "").startswith("phi "):
            return None
        phi, following = add[2], [name] if f"[ {name}," in definitions[add[2]] else []
    if len(following) != 1:
        return None
    step = _ADD.match(_plain(definitions[following[0]]))
    return (phi, int(step[3])) if step is not None and int(step[3]) else None


def _adds(value: str, phi: str, definitions: dict[str, str]) -> bool:
    add = _ADD.match(_plain(definitions.get(value, "")))
    return add is not None and add[2] == phi


def _start(text: str, latch: str) -> str:
    """Return the first value of a phi, or nothing if there are several."""
    incoming = re.findall(r'\[ ([^\s,]+), %("[^"]*"|[-\w$.]+) \]', text)
    values = {value for value, label in incoming if label != latch}
    return values.pop() if len(values) == 1 else ""
