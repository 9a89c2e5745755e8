"""The language of the random kernels: a syntax tree with a type on every node, and its source.

An operation is followed by a cast to the type of its node, so that a program has one meaning that
does not depend on how Numba unifies types; operands may be of mixed types all the same.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

INTEGERS = {"int32": 32, "int64": 64, "uint32": 32}
FLOATS = ("float32", "float64")
TYPES = (*INTEGERS, *FLOATS)
PLAIN = ("int64", *FLOATS)
INPUT_SIZE = 32
BINS = 8
ATOMICS = {"add": "int64", "max": "int32", "min": "int64", "xor": "uint32", "or_": "int32"}
"""Commutative operations and the types of their arrays."""


@dataclass(frozen=True)
class Const:
    type: str
    value: float

    def __str__(self) -> str:
        # Python's own literals are int64 and float64.
        is_plain = self.type == "float64" or (self.type == "int64" and abs(self.value) < 2**31)
        return f"{self.value!r}" if is_plain else f"{self.type}({self.value!r})"


@dataclass(frozen=True)
class Name:
    type: str
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Cast:
    """From any integer, or from a float to a float."""

    type: str
    value: Expression

    def __str__(self) -> str:
        return f"{self.type}({self.value})"


@dataclass(frozen=True)
class Truncated:
    """A float converted to an integer; 0 where the conversion is undefined."""

    type: str
    value: Expression

    def __str__(self) -> str:
        return f"{self.type}(to_integer({self.value}))"


@dataclass(frozen=True)
class Unary:
    type: str
    operator: str  # - ~ abs sqrt
    value: Expression

    def __str__(self) -> str:
        if self.operator == "sqrt":
            return f"{self.type}(math.sqrt({self.value}))"
        return f"{self.type}({self.operator}({self.value}))"


@dataclass(frozen=True)
class Binary:
    type: str
    operator: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        left, right = str(self.left), str(self.right)
        if self.operator in ("//", "%"):
            right = f"(({right} & 15) + 1)"  # never 0, and never -1 under the smallest integer
        elif self.operator in ("<<", ">>"):
            right = f"({right} & 31)"
        elif self.operator in ("min", "max"):
            return f"{self.type}({self.operator}({left}, {right}))"
        text = f"({left} {self.operator} {right})"
        # What Numba makes of these anyway needs no cast.
        is_plain = {self.left.type, self.right.type} == {self.type} and self.type in PLAIN
        return text if is_plain else f"{self.type}{text}"


@dataclass(frozen=True)
class Compare:
    operator: str
    left: Expression
    right: Expression
    type: str = "bool"

    def __str__(self) -> str:
        return f"({self.left} {self.operator} {self.right})"


@dataclass(frozen=True)
class Logic:
    operator: str  # and, or, not (of the left one)
    left: Expression
    right: Expression
    type: str = "bool"

    def __str__(self) -> str:
        if self.operator == "not":
            return f"(not {self.left})"
        return f"({self.left} {self.operator} {self.right})"


@dataclass(frozen=True)
class Select:
    type: str
    test: Expression
    then: Expression
    otherwise: Expression

    def __str__(self) -> str:
        return f"({self.then} if {self.test} else {self.otherwise})"


@dataclass(frozen=True)
class Load:
    """An element of the input array of a type, counted from its end or its beginning."""

    type: str
    index: Expression
    from_end: bool

    def __str__(self) -> str:
        tail = f" - {INPUT_SIZE}" if self.from_end else ""
        return f"x_{self.type}[({self.index} & {INPUT_SIZE - 1}){tail}]"


@dataclass(frozen=True)
class Call:
    """A call of a device function of the program."""

    type: str
    function: Function
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"{self.function.name}({', '.join(map(str, self.arguments))})"


Expression = (
    Const | Name | Cast | Truncated | Unary | Binary | Compare | Logic | Select | Load | Call
)


@dataclass(frozen=True)
class Assign:
    target: Name
    value: Expression

    def __str__(self) -> str:
        return f"{self.target} = {self.value}"


@dataclass(frozen=True)
class Store:
    """The thread's own element of the output array of a type."""

    value: Expression

    def __str__(self) -> str:
        return f"y_{self.value.type}[g] = {self.value}"


@dataclass(frozen=True)
class If:
    test: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]

    def __str__(self) -> str:
        text = f"if {self.test}:\n{_block(self.then)}"
        return text + (f"\nelse:\n{_block(self.otherwise)}" if self.otherwise else "")


@dataclass(frozen=True)
class For:
    counter: Name
    turns: Expression  # masked, so that loops end
    body: tuple[Statement, ...]

    def __str__(self) -> str:
        return f"for {self.counter} in range({self.turns} & 3):\n{_block(self.body)}"


@dataclass(frozen=True)
class While:
    """``while True`` with an exit test, at most four iterations."""

    counter: Name
    body: tuple[Statement, ...]
    test: Expression

    def __str__(self) -> str:
        end = f"if {self.counter} > 3 or {self.test}:\n    break"
        lines = [f"{self.counter} += 1", *map(str, self.body), end]
        return f"{self.counter} = 0\nwhile True:\n{indent(chr(10).join(lines), '    ')}"


@dataclass(frozen=True)
class Leave:
    """``break``, ``continue`` or ``return`` if the test holds."""

    how: str
    test: Expression

    def __str__(self) -> str:
        return f"if {self.test}:\n    {self.how}"


@dataclass(frozen=True)
class Exchange:
    """An exchange through a shared array: every thread stores a value, and loads a neighbour's."""

    target: Name
    value: Expression
    shift: int
    block: int
    between: tuple[Statement, ...]  # before the barrier, which have no barriers
    called: bool  # in a device function that has the barriers inside

    def __str__(self) -> str:
        kind = self.target.type
        where = f"(t + {self.shift}) % {self.block}"
        between = "".join(f"{line}\n" for line in self.between)
        if self.called:
            return f"{between}{self.target} = exchange(s_{kind}, t, {where}, {self.value})"
        return (
            f"s_{kind}[t] = {self.value}\n{between}cuda.syncthreads()\n"
            f"{self.target} = s_{kind}[{where}]\ncuda.syncthreads()"
        )


@dataclass(frozen=True)
class SharedSum:
    """Integers that atomic operations add to bins of a shared array."""

    target: Name
    where: Expression
    value: Expression

    def __str__(self) -> str:
        return (
            f"if t < {BINS}:\n    bins[t] = 0\ncuda.syncthreads()\n"
            f"cuda.atomic.add(bins, {self.where} & {BINS - 1}, {self.value})\n"
            f"cuda.syncthreads()\n{self.target} = bins[t & {BINS - 1}]\ncuda.syncthreads()"
        )


@dataclass(frozen=True)
class Atomic:
    operator: str
    where: Expression
    value: Expression

    def __str__(self) -> str:
        place = f"a_{self.operator}, {self.where} & {BINS - 1}"
        return f"cuda.atomic.{self.operator}({place}, {self.value})"


@dataclass(frozen=True)
class Collective:
    """A function of a value of every thread: of the block (``syncthreads_*``) or of the warp."""

    target: Name
    function: str
    value: Expression
    lane: Expression | None = None

    def __str__(self) -> str:
        mask = "" if self.function.startswith("syncthreads") else "0xFFFFFFFF, "
        lane = "" if self.lane is None else f", {self.lane} & 31"
        return f"{self.target} = {self.target.type}(cuda.{self.function}({mask}{self.value}{lane}))"


Statement = Assign | Store | If | For | While | Leave | Exchange | SharedSum | Atomic | Collective


@dataclass(frozen=True)
class Function:
    """A device function: a few statements on its parameters, then one value."""

    name: str
    parameters: tuple[Name, ...]
    body: tuple[Statement, ...]
    result: Expression

    def __str__(self) -> str:
        names = ", ".join(map(str, self.parameters))
        body = "".join(f"{indent(str(line), '    ')}\n" for line in self.body)
        return (
            f"@cuda.jit(device=True)\ndef {self.name}({names}):\n{body}    return {self.result}\n"
        )


@dataclass(frozen=True, repr=False)
class Program:
    """A kernel with its device functions and its launch."""

    grid: int
    block: int
    n: int
    seed: int  # of the input arrays
    functions: tuple[Function, ...]
    variables: tuple[Assign, ...]
    body: tuple[Statement, ...]

    @property
    def waits(self) -> bool:
        """Whether threads wait for each other; only then there are several lowerings."""
        return any(self._uses(kind) for kind in (Exchange, SharedSum, Collective))

    @property
    def parameters(self) -> list[str]:
        """Names of the kernel's parameters: inputs, outputs, arrays for atomics, variables."""
        arrays = [f"{letter}_{kind}" for letter in "xy" for kind in TYPES]
        arrays += [f"a_{operator}" for operator in ATOMICS]
        used = [name for name in arrays if re.search(rf"\b{name}\b", self._body)]
        return ["n", *used, *(f"z_{variable.target}" for variable in self.variables)]

    def __repr__(self) -> str:
        return f"kernel[{self.grid}, {self.block}] with n = {self.n}, inputs {self.seed}:\n\n{self}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # how Hypothesis shows a failing case

    def __str__(self) -> str:
        body = indent(self._body, "    ")
        kernel = f"def kernel({', '.join(self.parameters)}):\n{body}\n"
        return "\n\n".join([*self._prelude(), *map(str, self.functions), kernel])

    @functools.cached_property
    def _body(self) -> str:
        shared = [f"s_{kind} = cuda.shared.array({self.block}, {kind})" for kind in self._shared]
        lines = [
            "g = cuda.grid(1)",
            "t = int32(cuda.threadIdx.x)",
            "b = int32(cuda.blockIdx.x)",
            *shared,
            *(f"s_{kind}[t] = 0" for kind in self._shared),
            *(_CLEARED_BINS if self._uses(SharedSum) else []),
            *map(str, self.variables),
            *map(str, self.body),
            *(f"z_{v.target}[g] = {v.target}" for v in self.variables),
        ]
        return "\n".join(lines)

    def _prelude(self) -> list[str]:
        text = self._body + "".join(map(str, self.functions))
        helpers = {"to_integer(": _TO_INTEGER, "exchange(": _EXCHANGE}
        return [_IMPORTS, *(helper for call, helper in helpers.items() if call in text)]

    @property
    def _shared(self) -> list[str]:
        """Types of the shared arrays, in a fixed order."""
        found = {s.target.type for s in walk(self.body) if isinstance(s, Exchange)}
        return [kind for kind in TYPES if kind in found]

    def _uses(self, kind: type) -> bool:
        return any(isinstance(statement, kind) for statement in walk(self.body))


_IMPORTS = """\
import math

from numba import cuda, float32, float64, int32, int64, uint32
"""
_CLEARED_BINS = (
    f"bins = cuda.shared.array({BINS}, int64)",
    f"if t == 0:\n    for i in range({BINS}):\n        bins[i] = 0",
    "cuda.syncthreads()",
)
_TO_INTEGER = """\
@cuda.jit(device=True)
def to_integer(value):
    if abs(value) < 1000000.0:
        return int64(value)
    return int64(0)
"""
_EXCHANGE = """\
@cuda.jit(device=True)
def exchange(shared, t, where, value):
    shared[t] = value
    cuda.syncthreads()
    found = shared[where]
    cuda.syncthreads()
    return found
"""


def walk(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    for statement in statements:
        yield statement
        for name in ("then", "otherwise", "body", "between"):
            yield from walk(getattr(statement, name, ()))


def _block(statements: tuple[Statement, ...]) -> str:
    return indent("\n".join(map(str, statements)) or "pass", "    ")
