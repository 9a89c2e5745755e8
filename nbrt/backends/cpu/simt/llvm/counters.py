"""Loops of LLVM's text that count: the register that counts, its step and its limit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.polls import Body

__all__ = ["Counter", "counter_of"]

_NAME = r'%(?:"[^"]*"|[-\w$.]+)'
_BRANCH = re.compile(
    rf'  br i1 ({_NAME}), label %("[^"]*"|[-\w$.]+), label %("[^"]*"|[-\w$.]+)(?:,.*)?$'
)
_COMPARE = re.compile(rf"icmp (?:samesign )?(\w+) i(\d+) ({_NAME}|-?\d+), ({_NAME}|-?\d+)$")
_ADD = re.compile(rf"add (?:nuw |nsw )*i(\d+) ({_NAME}), (-?\d+)$")
_OPPOSITE = {
    "eq": "ne",
    "ne": "eq",
    "ult": "uge",
    "uge": "ult",
    "ule": "ugt",
    "ugt": "ule",
    "slt": "sge",
    "sge": "slt",
    "sle": "sgt",
    "sgt": "sle",
}
_SWAPPED = {
    "eq": "eq",
    "ne": "ne",
    "ult": "ugt",
    "ugt": "ult",
    "ule": "uge",
    "uge": "ule",
    "slt": "sgt",
    "sgt": "slt",
    "sle": "sge",
    "sge": "sle",
}
_UPWARDS = ("ult", "ule", "slt", "sle", "ne")
_DOWNWARDS = ("ugt", "uge", "sgt", "sge", "ne")
_MIN_BITS = 32


@dataclass(frozen=True)
class Counter:
    """How a loop counts.

    Attributes
    ----------
    phi : str
        The register that counts, at the beginning of a turn.
    bits : int
        Its width.
    step : int
        What each turn adds; not 0.
    start : str
        Its first value, or empty where there are several.
    compared : str
        What is compared with the bound: the register, or the register after the step.
    predicate : str
        Of the comparison, with the register on its left.
    bound : str
        A constant or a value from outside the loop.
    condition : str
        The result of the comparison.
    exit : str
        Label of the block behind the loop.
    continues_if_true : bool
        Whether the loop goes on where the condition holds.
    """

    phi: str
    bits: int
    step: int
    start: str
    compared: str
    predicate: str
    bound: str
    condition: str
    exit: str
    continues_if_true: bool

    @property
    def _continues(self) -> str:
        return self.predicate if self.continues_if_true else _OPPOSITE[self.predicate]

    @property
    def turns(self) -> int | None:
        """How many turns the loop makes at most, if that is a constant."""
        try:
            start, bound = int(self.start), int(self.bound)
        except ValueError:
            return None
        distance = (bound - start) * (1 if self.step > 0 else -1)
        if distance < 0 or (self._continues == "ne" and distance % abs(self.step)):
            return None
        return -(-distance // abs(self.step)) + 1

    def can_strip(self, turns: int) -> bool:
        """Whether the loop can be made to end earlier by another bound."""
        step = abs(self.step)
        if self._continues == "ne" and step & (step - 1):
            return False
        return self.bits >= _MIN_BITS and turns * step < 2 ** (self.bits - 2)

    def comparison(self, bound: str) -> str:
        """Write the comparison with another bound."""
        return f"icmp {self.predicate} i{self.bits} {self.compared}, {bound}"

    def limit_lines(self, begin: str, limit: str, turns: int, number: int) -> list[str]:
        """Write what computes the bound that ends the loop after some turns, or earlier.

        Parameters
        ----------
        begin : str
            What the register holds at first.
        limit : str
            Name of the result.
        turns : int
            The turns.
        number : int
            Makes names unique.
        """
        kind, span = f"i{self.bits}", turns * abs(self.step)
        left, long, far = (f"%nbrt.{name}.{number}" for name in ("left", "long", "far"))
        ends = (self.bound, begin) if self.step > 0 else (begin, self.bound)
        lines = [
            f"  {left} = sub {kind} {ends[0]}, {ends[1]}",
            f"  {long} = icmp ugt {kind} {left}, {span}",
            f"  {far} = add {kind} {begin}, {turns * self.step}",
        ]
        if self._continues == "ne":
            if abs(self.step) > 1:
                # Never equal to the bound: such a loop goes round all numbers.
                odd, misses = f"%nbrt.odd.{number}", f"%nbrt.misses.{number}"
                lines += [
                    f"  {odd} = and {kind} {left}, {abs(self.step) - 1}",
                    f"  {misses} = icmp ne {kind} {odd}, 0",
                    f"  {long}.any = or i1 {long}, {misses}",
                ]
                long = f"{long}.any"
        else:
            # The first turn may begin behind the bound, as the test is at the end.
            before = f"%nbrt.before.{number}"
            lines += [
                f"  {before} = icmp {self._continues} {kind} {begin}, {self.bound}",
                f"  {long}.both = and i1 {long}, {before}",
            ]
            long = f"{long}.both"
        lines.append(f"  {limit} = select i1 {long}, {kind} {far}, {kind} {self.bound}")
        return lines


def counter_of(body: Body, header: str, latch: str, blocks: set[str]) -> Counter | None:
    """Find how a loop counts, if it ends in its latch by comparing a register that counts.

    Parameters
    ----------
    body : Body
        The function.
    header, latch : str
        Labels of the loop's first block and of the one that leads back.
    blocks : set of str
        Labels of all its blocks.
    """
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
        left, right, predicate = right, left, _SWAPPED[predicate]
    if left not in definitions or right in definitions:
        return None
    found = _counting(left, definitions)
    if found is None:
        return None
    phi, step = found
    counter = Counter(
        *(phi, bits, step, _start(definitions[phi], latch), left, predicate, right),
        *(branch[1], exit_label, branch[2] == header),
    )
    return counter if counter._continues in (_UPWARDS if step > 0 else _DOWNWARDS) else None


def _definitions(body: Body, blocks: set[str]) -> dict[str, str]:
    """Map the names of the values that a loop computes to what computes them."""
    found = {}
    for label in blocks:
        for line in body.blocks[label].lines:
            name, equals, text = line.strip().partition(" = ")
            if equals and name.startswith("%"):
                found[name] = text
    return found


def _plain(text: str) -> str:
    """Remove metadata from an instruction."""
    return re.sub(r", !.*$", "", text)


def _counting(name: str, definitions: dict[str, str]) -> tuple[str, int] | None:
    """Return the phi that a value counts with, and the step."""
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
    """Return the one value that a phi has at first, or nothing."""
    ways = re.findall(r'\[ ([^\s,]+), %("[^"]*"|[-\w$.]+) \]', text)
    values = {value for value, label in ways if label != latch}
    return values.pop() if len(values) == 1 else ""
