"""Analysis of thread indices: which values are uniform, and which are positions of the thread.

This is an abstract interpretation of Numba IR before typing. It follows variables that are assigned
once, so its results hold at all uses of a variable.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numba.core import ir, types

from nbrt.backends.cpu.simt.thread_context import ARGUMENT
from nbrt.backends.dialect import AXES

__all__ = ["Position", "ThreadIndexAnalysis", "Uniform", "simplify_positions"]


@dataclass(frozen=True)
class Position:
    """The thread's position along one axis, plus a constant."""

    kind: str
    """``"thread"``: in the block; ``"grid"``; ``"turn"``: in an iteration of a grid-stride loop."""

    axis: int
    shift: int = 0


@dataclass(frozen=True)
class Uniform:
    """A scalar that is the same for all threads, and that no store of the kernel can change."""

    constant: object = None
    """Its value, if it is a Python constant."""

    extent: str = ""
    """Its name, if it is a size of the grid: ``"gridsize.x"`` or ``"gridDim.x"``."""


@dataclass(frozen=True)
class _Part:
    """A term of the formula of the position in the grid."""

    what: str
    axis: int


@dataclass(frozen=True)
class _UniformTuple:
    """A tuple of uniform scalars, such as a shape."""


@dataclass(frozen=True)
class _Context:
    """The hidden argument itself."""


@dataclass(frozen=True)
class _Function:
    """A function without side effects on scalars."""

    function: Any


_Tuple = _UniformTuple | tuple[Position, ...] | tuple[Uniform, ...]
Kind = Position | Uniform | _Part | _Tuple | _Context | _Function | None

_TO_INT64 = (int, np.int64, np.intp, types.int64, types.intp)
_PURE_FUNCTIONS = (len, min, max, abs, bool, int, float, range)


def is_pure_function(value: object) -> bool:
    """Return whether a function only computes a scalar or a range."""
    if isinstance(value, types.NumberClass | types.Number):
        return True
    if isinstance(value, type) and issubclass(value, np.generic):
        return True
    try:
        return value in _PURE_FUNCTIONS
    except (TypeError, ValueError):
        return False


class ThreadIndexAnalysis:
    """Classifies the variables of one function."""

    def __init__(self, func_ir: Any) -> None:
        self._values: dict[str, list[Any]] = defaultdict(list)
        self._known: dict[str, Kind] = {}
        for block in func_ir.blocks.values():
            for statement in block.find_insts(ir.Assign):
                self._values[statement.target.name].append(statement.value)

    def definition(self, variable: Any) -> Any:
        """Return the value of a variable that is assigned once."""
        values = self._values.get(variable.name, ())
        return values[0] if len(values) == 1 else None

    def classify(self, variable: Any) -> Kind:
        """Return the kind of a variable, or None if it is not known."""
        name = variable.name
        if name not in self._known:
            self._known[name] = None  # for a cyclic definition
            self._known[name] = self.classify_value(self.definition(variable))
        return self._known[name]

    def classify_value(self, value: Any) -> Kind:
        """Return the kind of the right-hand side of an assignment."""
        if isinstance(value, ir.Arg):
            return _Context() if value.name == ARGUMENT else Uniform()
        if isinstance(value, (ir.Const, ir.Global, ir.FreeVar)):
            return _constant(value.value)
        if isinstance(value, ir.Var):
            return self.classify(value)
        if isinstance(value, ir.Expr):
            handler = getattr(self, f"_{value.op}", None)
            kind: Kind = handler(value) if handler is not None else None
            return kind
        return None

    # -- expressions, by their name in Numba IR ----------------------------------------------

    def _cast(self, value: Any) -> Kind:
        return self.classify(value.value)

    _exhaust_iter = _cast

    def _getattr(self, value: Any) -> Kind:
        if value.attr == "stop":
            counted = self.range_arguments(value.value)
            stop = self.classify(counted[1]) if counted is not None else None
            return Uniform() if isinstance(stop, Uniform) else None
        owner = self.classify(value.value)
        if isinstance(owner, _Context):
            return _index(value.attr)
        if isinstance(owner, Uniform):
            if value.attr in ("shape", "strides"):
                return _UniformTuple()
            if value.attr in ("size", "ndim", "itemsize"):
                return Uniform()
        return None

    def _static_getitem(self, value: Any) -> Kind:
        return _member(self.classify(value.value), value.index)

    def _getitem(self, value: Any) -> Kind:
        index = self.classify(value.index)
        at = index.constant if isinstance(index, Uniform) else None
        return _member(self.classify(value.value), at)

    def _unary(self, value: Any) -> Kind:
        return Uniform() if isinstance(self.classify(value.value), Uniform) else None

    def _binop(self, value: Any) -> Kind:
        function = value.immutable_fn if value.op == "inplace_binop" else value.fn
        return _combine(function, self.classify(value.lhs), self.classify(value.rhs))

    _inplace_binop = _binop

    def _call(self, value: Any) -> Kind:
        function = self.classify(value.func)
        if not isinstance(function, _Function) or value.kws or value.vararg is not None:
            return None
        if self.is_reduction(value):
            return None
        arguments = [self.classify(argument) for argument in value.args]
        if len(arguments) == 1 and function.function in _TO_INT64:
            return arguments[0] if isinstance(arguments[0], Position | Uniform) else None
        uniform = all(isinstance(a, Uniform | _UniformTuple) or _is_size(a) for a in arguments)
        return Uniform() if uniform and function.function is not range else None

    def range_arguments(self, variable: Any) -> Any:
        """Return the arguments of the call ``range(start, stop, step)`` that defines a variable."""
        value = self.definition(variable)
        if not (isinstance(value, ir.Expr) and value.op == "call"):
            return None
        is_range = self.classify(value.func) == _Function(range)
        is_plain = not value.kws and value.vararg is None and len(value.args) == 3
        return value.args if is_range and is_plain else None

    # -- control flow -----------------------------------------------------------------------

    def comparison(self, condition: Any) -> tuple[Any, bool]:
        """Return the comparison that defines a branch condition, and whether it is negated."""
        negated = False
        value = self.definition(condition)
        while value is not None:
            if isinstance(value, ir.Var):
                value = self.definition(value)
            elif isinstance(value, ir.Expr) and value.op == "unary" and value.fn is operator.not_:
                negated = not negated
                value = self.definition(value.value)
            elif isinstance(value, ir.Expr) and value.op == "call":
                if self.classify(value.func) != _Function(bool):
                    break
                value = self.definition(value.args[0])
            else:
                break
        is_binary = isinstance(value, ir.Expr) and value.op == "binop"
        return (value, negated) if is_binary else (None, False)

    def is_pure(self, block: Any) -> bool:
        """Return whether a block has no side effects."""
        return all(self._is_pure(statement) for statement in block.body[:-1])

    def is_pure_call(self, call: Any) -> bool:
        """Return whether a call has no side effects."""
        return isinstance(self.classify(call.func), _Function)

    def is_reduction(self, call: Any) -> bool:
        """Return whether a call may reduce an array: ``max(x)``, unlike ``max(a, b)``."""
        function = self.classify(call.func)
        is_extreme = isinstance(function, _Function) and function.function in (min, max)
        return is_extreme and len(call.args) == 1

    def _is_pure(self, statement: Any) -> bool:
        if isinstance(statement, ir.Del):
            return True
        if not isinstance(statement, ir.Assign):
            return False
        value = statement.value
        if isinstance(value, ir.Expr):
            if value.op == "call":
                return self.is_pure_call(value)
            return value.op not in ("inplace_binop", "iternext", "getiter", "yield")
        return isinstance(value, (ir.Arg, ir.Const, ir.Global, ir.FreeVar, ir.Var))


def _constant(value: object) -> Kind:
    if isinstance(value, bool | int | float | np.number):
        return Uniform(value)
    if is_pure_function(value):
        return _Function(value)
    if isinstance(value, ModuleType):
        return None
    return Uniform() if isinstance(value, np.ndarray) else None


def _index(attribute: str) -> Kind:
    head, _, tail = attribute.partition(".")
    if head == "grid":
        if tail in ("2", "3"):
            return tuple(Position("grid", axis) for axis in range(int(tail)))
        return Position("grid", 0 if tail == "1" else AXES.index(tail))
    if head == "threadIdx":
        return Position("thread", AXES.index(tail))
    if head in ("blockIdx", "blockDim"):
        return _Part(head, AXES.index(tail))
    if head == "turn":
        return Position("turn", AXES.index(tail))
    if head == "gridsize":
        sizes = tuple(Uniform(extent=f"gridsize.{axis}") for axis in AXES[: int(tail)])
        return sizes[0] if tail == "1" else sizes
    if head == "gridDim":
        return Uniform(extent=attribute)
    return Uniform() if head == "warpsize" else None


def _member(owner: Kind, index: object) -> Kind:
    if isinstance(owner, _UniformTuple):
        return Uniform()
    if isinstance(owner, tuple) and isinstance(index, int) and 0 <= index < len(owner):
        return owner[index]
    return Uniform() if _is_size(owner) else None


def _is_size(kind: Kind) -> bool:
    """Return whether a kind is the result of ``cuda.gridsize(2)`` or ``cuda.gridsize(3)``."""
    return isinstance(kind, tuple) and isinstance(kind[0], Uniform)


def _combine(function: Any, left: Kind, right: Kind) -> Kind:
    if _is_uniform(left) and _is_uniform(right):
        return Uniform(extent=_grid_size(left, right) if function is operator.mul else "")
    if function is operator.mul:
        return _base(left, right) or _base(right, left)
    if function is operator.add:
        return _sum(left, right) or _sum(right, left)
    if function is operator.sub and isinstance(left, Position):
        by = _whole_number(right)
        return replace(left, shift=left.shift - by) if by is not None else None
    return None


def _is_uniform(kind: Kind) -> bool:
    return isinstance(kind, Uniform) or (isinstance(kind, _Part) and kind.what == "blockDim")


def _grid_size(left: Kind, right: Kind) -> str:
    """Recognise ``gridDim.x * blockDim.x``, in either order."""
    for axis, name in enumerate(AXES):
        factors = Uniform(extent=f"gridDim.{name}"), _Part("blockDim", axis)
        if (left, right) in (factors, factors[::-1]):
            return f"gridsize.{name}"
    return ""


def _base(block: Kind, extent: Kind) -> Kind:
    """Recognise ``blockIdx.x * blockDim.x``."""
    if not (isinstance(block, _Part) and block.what == "blockIdx"):
        return None
    return _Part("base", block.axis) if extent == _Part("blockDim", block.axis) else None


def _sum(position: Kind, other: Kind) -> Kind:
    """Recognise a position plus a constant, and ``threadIdx.x + blockIdx.x * blockDim.x``."""
    if not isinstance(position, Position):
        return None
    if position.kind == "thread" and other == _Part("base", position.axis):
        return replace(position, kind="grid")
    by = _whole_number(other)
    return replace(position, shift=position.shift + by) if by is not None else None


def _whole_number(kind: Kind) -> int | None:
    value = kind.constant if isinstance(kind, Uniform) else None
    is_small = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31
    return value if is_small and isinstance(value, int) else None


def simplify_positions(func_ir: Any) -> set[str]:
    """Replace formulas of the position in the grid, and remove their unused terms.

    ``threadIdx.x + blockIdx.x * blockDim.x`` becomes ``grid(1)``. The loops over threads have more
    freedom if a kernel does not read its position in the block.

    Returns
    -------
    set of str
        The attributes of the hidden argument that the function still reads.
    """
    analysis = ThreadIndexAnalysis(func_ir)
    assigns = [s for block in func_ir.blocks.values() for s in block.find_insts(ir.Assign)]
    context = next(
        (s.target for s in assigns if isinstance(s.value, ir.Arg) and s.value.name == ARGUMENT),
        None,
    )
    if context is None:
        return set()
    for statement in assigns:
        value = statement.value
        place = analysis.classify_value(value)
        is_formula = isinstance(value, ir.Expr) and value.op == "binop"
        if is_formula and isinstance(place, Position) and place == Position("grid", place.axis):
            attribute = f"grid.{AXES[place.axis]}"
            statement.value = ir.Expr.getattr(context, attribute, statement.loc)
    _drop_unused(func_ir, context, analysis)
    reads = (s.value for block in func_ir.blocks.values() for s in block.find_insts(ir.Assign))
    return {
        value.attr
        for value in reads
        if isinstance(value, ir.Expr) and value.op == "getattr" and value.value.name == context.name
    }


def _drop_unused(func_ir: Any, context: Any, analysis: ThreadIndexAnalysis) -> None:
    """Remove unused reads of the hidden argument and terms of formulas."""
    dropped = True
    while dropped:
        dropped = False
        used: set[str] = set()
        for block in func_ir.blocks.values():
            for statement in block.body:
                is_assign = isinstance(statement, ir.Assign)
                node = statement.value if is_assign else statement
                listed = [node] if isinstance(node, ir.Var) else []
                listed += node.list_vars() if isinstance(node, (ir.Expr, ir.Stmt)) else []
                used.update(variable.name for variable in listed)
        for block in func_ir.blocks.values():
            kept = [s for s in block.body if not _is_droppable(s, used, context, analysis)]
            dropped |= len(kept) < len(block.body)
            block.body = kept


def _is_droppable(
    statement: Any, used: set[str], context: Any, analysis: ThreadIndexAnalysis
) -> bool:
    if not isinstance(statement, ir.Assign) or statement.target.name in used:
        return False
    value = statement.value
    if isinstance(value, ir.Expr) and value.op == "getattr":
        return bool(value.value.name == context.name)
    return isinstance(analysis.classify_value(value), _Part | Position)
