"""A model of one LLVM function: blocks of instructions with their operands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "BINARY",
    "CASTS",
    "LOCAL",
    "NEGATED",
    "THREAD_PARAMETERS",
    "BasicBlock",
    "CannotLowerError",
    "Function",
    "Instruction",
    "NotReducibleError",
    "Operand",
    "ThreadIR",
    "ThreadsAreFasterError",
    "renamed",
]

LOCAL = re.compile(r'%(?:"[^"]*"|[-a-zA-Z$._0-9]+)')
"""A local name: a value or a block."""

BINARY = frozenset(
    (
        *("add", "sub", "mul", "udiv", "sdiv", "urem", "srem"),
        *("shl", "lshr", "ashr", "and", "or", "xor"),
        *("fadd", "fsub", "fmul", "fdiv", "frem"),
    )
)
"""Opcodes with two operands of one type."""

CASTS = frozenset(
    (
        *("zext", "sext", "trunc", "fpext", "fptrunc", "fptoui", "fptosi"),
        *("uitofp", "sitofp", "ptrtoint", "inttoptr", "bitcast"),
    )
)
"""Opcodes of conversions."""

NEGATED = {"ne": "eq", "uge": "ult", "ule": "ugt", "sge": "slt", "sle": "sgt"}
"""Predicates of integer comparisons, and their negations."""

THREAD_PARAMETERS = 2
"""Index of the first field of the hidden argument: it follows the result and the exception."""


class CannotLowerError(Exception):
    """One lowering does not support the code; the message says why. Users never see it."""


class ThreadsAreFasterError(CannotLowerError):
    """Lanes could run the code, but one thread after the other is faster; the message says why."""


class NotReducibleError(CannotLowerError):
    """A loop has several entries."""

    def __init__(self, block: str) -> None:
        super().__init__(f"a loop can be entered in its middle (at {block})")


@dataclass(frozen=True)
class ThreadIR:
    """LLVM IR of one thread of a kernel, with all calls inlined: the input of every lowering."""

    module: str
    """Text of the module; values and blocks have names, markers stand for operations of a block."""

    name: str
    """Symbol of the thread's function."""

    block: tuple[int, int, int]
    """Threads of a block along x, y and z."""


class Operand(NamedTuple):
    """A use of a value: its type and its text."""

    type: str
    text: str

    @property
    def is_local(self) -> bool:
        """Whether it is an argument or the result of an instruction."""
        return self.text.startswith("%")


@dataclass(slots=True)
class Instruction:
    """One instruction, without metadata and hints."""

    name: str
    """Its result (``%x``), or empty."""

    opcode: str
    type: str
    """Type of the result; ``void`` if there is none."""

    operands: list[Operand]
    flags: str = ""
    """Words between the opcode and the first type: ``nuw nsw``, ``fast``."""

    detail: str = ""
    """Predicate of a comparison, callee, source type of an address, operation of an atomic."""

    align: int = 0
    labels: list[str] = field(default_factory=list)
    """Targets of a branch; the incoming blocks of a phi."""

    text: str = ""
    """LLVM's text behind the ``=``."""

    line: int = 0
    """Line in the kernel's source, or 0."""

    @property
    def is_terminator(self) -> bool:
        """Whether the instruction ends a block."""
        return self.opcode in ("br", "switch", "ret", "unreachable")

    def without_flags(self, texts: Sequence[str]) -> str:
        """Return a scalar operation on other operands, without flags and attributes.

        The result is then no poison, whatever the operands are. Loads, stores and phis have no such
        form.
        """
        typed = [f"{o.type} {text}" for o, text in zip(self.operands, texts, strict=True)]
        if self.opcode == "call":
            return f"call {self.type} @{self.detail}({', '.join(typed)})"
        if self.opcode == "getelementptr":
            return f"getelementptr {self.detail}, {', '.join(typed)}"
        if self.opcode == "icmp":
            return f"icmp {self.detail} {typed[0]}, {texts[1]}"
        if self.opcode in CASTS:
            return f"{self.opcode} {typed[0]} to {self.type}"
        if self.opcode in BINARY:
            return f"{self.opcode} {typed[0]}, {texts[1]}"
        return f"{self.opcode} {', '.join(typed)}"

    def written(self, names: Mapping[str, str]) -> str:
        """Return the text with other names in place of its operands."""
        return renamed(self.text, names)


@dataclass(slots=True)
class BasicBlock:
    """A basic block; its last instruction is a terminator."""

    label: str
    """With the percent sign."""

    instructions: list[Instruction]

    @property
    def terminator(self) -> Instruction:
        """The last instruction."""
        return self.instructions[-1]

    @property
    def successors(self) -> list[str]:
        """Labels of the successors, each once."""
        return list(dict.fromkeys(self.terminator.labels))

    @property
    def phis(self) -> list[Instruction]:
        """The phis of the block."""
        return [item for item in self.instructions if item.opcode == "phi"]


@dataclass(slots=True)
class Function:
    """A function with a body."""

    name: str
    result: str
    parameters: list[Operand]
    blocks: dict[str, BasicBlock]
    """By label, the entry first."""

    outside: str = ""
    """Rest of the module: globals, types, declarations and other functions."""

    @property
    def entry(self) -> str:
        """Label of the first block."""
        return next(iter(self.blocks))

    def instructions(self) -> Iterator[tuple[BasicBlock, Instruction]]:
        """Iterate over all instructions with their blocks."""
        for block in self.blocks.values():
            for instruction in block.instructions:
                yield block, instruction


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Replace local names in a text."""
    return LOCAL.sub(lambda match: names.get(match[0], match[0]), text)
