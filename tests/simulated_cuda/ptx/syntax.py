"""Syntax tree of a PTX module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "Address",
    "BranchTargets",
    "Function",
    "Immediate",
    "Initialiser",
    "Instruction",
    "Label",
    "Name",
    "Negation",
    "Operand",
    "Pair",
    "Parentheses",
    "Program",
    "Prototype",
    "Register",
    "Scope",
    "Variable",
    "Vector",
]


class Name(NamedTuple):
    """A register, label, symbol or special register, with a constant added to its address."""

    text: str
    offset: int = 0


class Immediate(NamedTuple):
    """A literal: `kind` is ``int`` (`value` is the integer), ``f32`` or ``f64`` (its bits)."""

    kind: str
    value: int


class Negation(NamedTuple):
    """``!p``."""

    name: Name


class Address(NamedTuple):
    """``[base + offset]``; without a base, `offset` is the address."""

    base: Name | None
    offset: int


class Vector(NamedTuple):
    """``{a, b, ...}``."""

    elements: tuple[Operand, ...]


class Pair(NamedTuple):
    """``p|q``: two destinations."""

    first: Operand
    second: Operand


class Parentheses(NamedTuple):
    """``(a, b, ...)`` of a call."""

    elements: tuple[Operand, ...]


Operand = Name | Immediate | Negation | Address | Vector | Pair | Parentheses


class Initialiser(NamedTuple):
    """One value of an initialiser.

    `symbol` is empty for a number; `value` is the number (of a float, its bits), or the constant
    that is added to the address of the symbol. `mask` selects bits of the address, as in
    ``0xFF00(symbol)``. `kind` is that of an `Immediate`.
    """

    value: int
    symbol: str = ""
    mask: int = 0
    kind: str = "int"


@dataclass(slots=True, eq=False)
class Register:
    """A virtual register; `width` is in bits, and 1 for a predicate."""

    name: str
    type: str
    width: int
    index: int


@dataclass(slots=True, eq=False)
class Label:
    """A label of a function body."""

    name: str
    index: int


@dataclass(slots=True, eq=False)
class Variable:
    """A variable or parameter in one of the state spaces."""

    space: str
    name: str
    type: str
    size: int
    alignment: int
    linkage: str = ""
    is_unsized: bool = False
    values: tuple[Initialiser, ...] = ()
    line: int = 0
    symbol: str = ""
    """Name in the native code, unique in the module; set for module and function variables."""


@dataclass(slots=True, eq=False)
class Prototype:
    """``.callprototype``: returned values and parameters of an indirect call."""

    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]


@dataclass(slots=True, eq=False)
class BranchTargets:
    """``.branchtargets``: the labels of ``brx.idx``."""

    labels: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Scope:
    """Names that are declared between two braces."""

    parent: Scope | None
    symbols: dict[str, Register | Label | Variable | Prototype | BranchTargets] = field(
        default_factory=dict
    )
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Of ``.reg .b32 %r<5>``: prefix to count and type."""


@dataclass(slots=True, eq=False)
class Instruction:
    """An instruction; `guard` is the register of ``@p``, `guard_value` False for ``@!p``."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: list[Operand]
    scope: Scope
    line: int
    guard: Name | None = None
    guard_value: bool = True

    @property
    def name(self) -> str:
        """The opcode with its modifiers."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(slots=True, eq=False)
class Function:
    """A kernel or a device function; `body` is None for a declaration."""

    name: str
    is_kernel: bool
    linkage: str
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    line: int
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Values of performance directives, as ``{"reqntid": (128, 1, 1)}``."""
    body: list[Instruction | Label] | None = None
    variables: list[Variable] = field(default_factory=list)
    """Variables that the body declares."""
    scope: Scope = field(default_factory=lambda: Scope(None))


@dataclass(slots=True, eq=False)
class Program:
    """A module: its functions and variables by name, in the order of the text."""

    target: int = 0
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
