"""A light model of one LLVM function: blocks of instructions that know their operands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["BINARY", "CASTS", "LOCAL", "Block", "Function", "Instruction", "Operand", "renamed"]

LOCAL = re.compile(r'%(?:"[^"]*"|[-a-zA-Z$._0-9]+)')
"""A local name: a value or a block."""

BINARY = frozenset(
    [
        "add",
        "sub",
        "mul",
        "udiv",
        "sdiv",
        "urem",
        "srem",
        "shl",
        "lshr",
        "ashr",
        "and",
        "or",
        "xor",
        "fadd",
        "fsub",
        "fmul",
        "fdiv",
        "frem",
    ]
)
"""Opcodes of two operands of one type."""

CASTS = frozenset(
    [
        "zext",
        "sext",
        "trunc",
        "fpext",
        "fptrunc",
        "fptoui",
        "fptosi",
        "uitofp",
        "sitofp",
        "ptrtoint",
        "inttoptr",
        "bitcast",
    ]
)
"""Opcodes that turn one type into another."""


class Operand(NamedTuple):
    """A use of a value: its type and how it is written."""

    type: str
    text: str

    @property
    def is_local(self) -> bool:
        """Whether it names an argument or the result of an instruction."""
        return self.text.startswith("%")


@dataclass(slots=True)
class Instruction:
    """One instruction, without metadata and attributes that only advise."""

    name: str
    """Its result (``%x``), or empty."""

    opcode: str
    type: str
    """Type of the result; ``void`` if there is none."""

    operands: list[Operand]
    flags: str = ""
    """What stands between the opcode and the first type: ``nuw nsw``, ``fast``."""

    detail: str = ""
    """Predicate of a comparison, callee, source type of an address, operation of an atomic."""

    align: int = 0
    labels: list[str] = field(default_factory=list)
    """Targets of a branch; for a phi the blocks that its operands come from."""

    cases: list[str] = field(default_factory=list)
    """Values of a switch, one for each label after the first, the default."""

    text: str = ""
    """All of it behind the ``=``, as LLVM wrote it."""

    line: int = 0
    """Line of the kernel's source, or 0."""

    @property
    def is_terminator(self) -> bool:
        """Whether it ends a block."""
        return self.opcode in ("br", "switch", "ret", "unreachable")

    def written(self, names: Mapping[str, str]) -> str:
        """Write it with other names in place of its operands."""
        return renamed(self.text, names)


@dataclass(slots=True)
class Block:
    """A straight run of instructions; the last is a terminator."""

    label: str
    """Its name with the percent sign."""

    instructions: list[Instruction]

    @property
    def terminator(self) -> Instruction:
        """The instruction that leads out."""
        return self.instructions[-1]

    @property
    def successors(self) -> list[str]:
        """Labels of the blocks that may follow, each once."""
        return list(dict.fromkeys(self.terminator.labels))

    @property
    def phis(self) -> list[Instruction]:
        """The phis it begins with."""
        return [item for item in self.instructions if item.opcode == "phi"]


@dataclass(slots=True)
class Function:
    """A function with a body."""

    name: str
    result: str
    parameters: list[Operand]
    blocks: dict[str, Block]
    """By label, the entry first."""

    outside: str = ""
    """The rest of the module: globals, types, declarations and other functions."""

    @property
    def entry(self) -> str:
        """Label of the first block."""
        return next(iter(self.blocks))

    def instructions(self) -> Iterator[tuple[Block, Instruction]]:
        """Go through every instruction with its block."""
        for block in self.blocks.values():
            for instruction in block.instructions:
                yield block, instruction


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Put other texts in place of local names."""
    return LOCAL.sub(lambda found: names.get(found[0], found[0]), text)
