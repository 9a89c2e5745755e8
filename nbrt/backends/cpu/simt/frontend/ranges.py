"""Ranges that count upwards: by a size of the grid or block, by a constant, or from a loaded start.

Numba counts the remaining iterations, which needs a division, and hides from LLVM that the counter
grows and is never negative. If the step is known to be positive, the loop can compare the counter
with its end.

In ``for i in range(offsets[row], offsets[row + 1])`` nothing tells LLVM that ``i`` is not negative,
and each access tests it, because negative indices count from the end. Each iteration therefore has
a branch on the sign of the start, with something that LLVM does not merge behind it: LLVM makes two
loops of one, and one of them has no such tests. Code in which the threads of a block run as lanes
has no such branches (`thread_ir`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir as llvm_ir
from numba.core import cgutils, ir, types
from numba.core.datamodel.models import StructModel
from numba.core.imputils import RefType, iternext_impl, lower_builtin
from numba.core.ir_utils import build_definitions, find_const, get_definition, guard
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import register_model

from nbrt.backends.cpu.simt.thread_context import ARGUMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["adapt_ranges"]

_SIZES = ("gridsize.", "blockDim.", "gridDim.")
_MAX_FACTORS = 6
_MAX_STEP = 2**20


def adapt_ranges(func_ir: Any) -> None:
    """Replace ``range`` if its step is a product of sizes of the launch, or a constant above 1.

    A step of 1 needs no division, and is replaced if the start is loaded. Other ranges are counted
    upwards if Numba gives their counter the type int64, as for constants and sizes of arrays. It
    cannot overflow: no array has an index near 2^63.
    """
    changed = False
    kept = _used_otherwise(func_ir)
    for block in func_ir.blocks.values():
        body = []
        for statement in block.body:
            call = statement.value if isinstance(statement, ir.Assign) else None
            if (
                call is not None
                and statement.target.name not in kept
                and (_is_upward_range(func_ir, call) or _has_loaded_start(func_ir, call))
            ):
                variable = block.scope.redefine("$simt_upward", loc=statement.loc)
                marker = ir.Global("upward_range", upward_range, statement.loc)
                body.append(ir.Assign(marker, variable, statement.loc))
                statement.value = ir.Expr.call(variable, call.args, (), statement.loc)
                changed = True
            body.append(statement)
        block.body = body
    if changed:
        func_ir._definitions = build_definitions(func_ir.blocks)


def _used_otherwise(func_ir: Any) -> set[str]:
    """Return the names of variables that other statements use than the start of a loop."""
    names = set()
    for block in func_ir.blocks.values():
        for statement in block.body:
            value = statement.value if isinstance(statement, ir.Assign) else statement
            if isinstance(value, ir.Del) or getattr(value, "op", "") == "getiter":
                continue
            if isinstance(value, ir.Var):
                names.add(value.name)
            elif isinstance(value, ir.Inst):
                names.update(variable.name for variable in value.list_vars())
    return names


def _is_range(func_ir: Any, call: Any, count: int) -> bool:
    """Return whether an expression is a call of ``range`` with a number of arguments."""
    if not isinstance(call, ir.Expr) or call.op != "call" or len(call.args) != count or call.kws:
        return False
    callee = guard(get_definition, func_ir, call.func)
    return isinstance(callee, ir.Global) and callee.value is range


def _has_loaded_start(func_ir: Any, call: Any) -> bool:
    """Return whether a range with the step 1 starts at an element of an array."""
    if not _is_range(func_ir, call, 2):
        return False
    start = guard(get_definition, func_ir, call.args[0])
    return isinstance(start, ir.Expr) and start.op in ("getitem", "static_getitem")


def _is_upward_range(func_ir: Any, call: Any) -> bool:
    if not _is_range(func_ir, call, 3):
        return False
    step = guard(find_const, func_ir, call.args[2])
    if type(step) is int:
        return 1 < step <= _MAX_STEP
    return _is_size(func_ir, call.args[2], _MAX_FACTORS)


def _is_size(func_ir: Any, variable: Any, depth: int) -> bool:
    """Return whether a variable is a size of the launch, or a product of sizes."""
    value = guard(get_definition, func_ir, variable)
    if depth == 0 or not isinstance(value, ir.Expr):
        return False
    if value.op == "getattr":
        return bool(value.value.name == ARGUMENT and value.attr.startswith(_SIZES))
    if value.op in ("static_getitem", "exhaust_iter", "cast"):
        return _is_size(func_ir, value.value, depth - 1)
    if value.op == "binop" and value.fn.__name__ == "mul":
        return all(_is_size(func_ir, side, depth - 1) for side in (value.lhs, value.rhs))
    return False


def upward_range(*_: Any) -> Any:
    """Replace ``range`` in compiled code."""
    raise TypeError("upward_range is callable in kernels only")


class _UpwardRange(types.SimpleIterableType):
    """`loaded` is whether the start is loaded, and the step 1."""

    def __init__(self, dtype: Any, *, loaded: bool) -> None:
        self.dtype = dtype
        self.loaded = loaded
        super().__init__(f"simt_range({dtype}, {loaded})", _UpwardIterator(dtype, loaded=loaded))


class _UpwardIterator(types.SimpleIteratorType):
    def __init__(self, dtype: Any, *, loaded: bool) -> None:
        self.loaded = loaded
        super().__init__(f"simt_range_iterator({dtype}, {loaded})", dtype)


@register_model(_UpwardRange)
class _RangeModel(StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        members = [(name, kind.dtype) for name in ("start", "stop", "step")]
        super().__init__(manager, kind, members)


@register_model(_UpwardIterator)
class _IteratorModel(StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        number = kind.yield_type
        super().__init__(
            manager,
            kind,
            [
                ("at", types.CPointer(number)),
                ("start", number),
                ("stop", number),
                ("step", number),
            ],
        )


class _Template(AbstractTemplate):
    key = upward_range

    def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
        if kws or not all(isinstance(types.unliteral(kind), types.Integer) for kind in args):
            return None
        found = self.context.resolve_value_type(range).get_call_type(self.context, args, kws)
        number = found.return_type.dtype
        if len(args) == 2:
            return signature(_UpwardRange(number, loaded=True), number, number)
        if number != types.int64:
            return found  # counted by Numba, because a step behind the end may overflow
        return signature(_UpwardRange(number, loaded=False), number, number, number)


infer_global(upward_range, types.Function(_Template))


@lower_builtin(upward_range, types.Integer, types.Integer, types.Integer)
def _lower_range(context: Any, builder: llvm_ir.IRBuilder, sig: Any, args: Any) -> llvm_ir.Value:
    if not isinstance(sig.return_type, _UpwardRange):
        return context.get_function(range, sig)(builder, args)
    result = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    result.start, result.stop, result.step = args
    return result._getvalue()


@lower_builtin(upward_range, types.Integer, types.Integer)
def _lower_loaded_range(
    context: Any, builder: llvm_ir.IRBuilder, sig: Any, args: Any
) -> llvm_ir.Value:
    result = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    result.start, result.stop = args
    result.step = result.start.type(1)
    return result._getvalue()


@lower_builtin("getiter", _UpwardRange)
def _lower_getiter(context: Any, builder: llvm_ir.IRBuilder, sig: Any, args: Any) -> llvm_ir.Value:
    counted = cgutils.create_struct_proxy(sig.args[0])(context, builder, value=args[0])
    iterator = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    iterator.at = cgutils.alloca_once_value(builder, counted.start)
    iterator.start, iterator.stop, iterator.step = counted.start, counted.stop, counted.step
    return iterator._getvalue()


@lower_builtin("iternext", _UpwardIterator)
@iternext_impl(RefType.UNTRACKED)
def _lower_iternext(
    context: Any, builder: llvm_ir.IRBuilder, sig: Any, args: Any, result: Any
) -> None:
    own = cgutils.create_struct_proxy(sig.args[0])(context, builder, value=args[0])
    here = builder.load(own.at)
    is_signed = sig.args[0].yield_type.signed
    compare = builder.icmp_signed if is_signed else builder.icmp_unsigned
    goes_on = compare("<", here, own.stop)
    result.set_valid(goes_on)
    with builder.if_then(goes_on):
        if sig.args[0].loaded and is_signed:
            with builder.if_then(builder.icmp_signed("<", own.start, own.start.type(0))):
                _emit_nothing(builder)
        result.yield_(here)
        flag = "nsw" if is_signed else "nuw"
        builder.store(builder.add(here, own.step, flags=(flag,)), own.at)


def _emit_nothing(builder: llvm_ir.IRBuilder) -> None:
    """Emit no instruction, in a way that LLVM has to assume an effect."""
    kind = llvm_ir.FunctionType(llvm_ir.VoidType(), [])
    builder.asm(kind, "", "", [], side_effect=True)
