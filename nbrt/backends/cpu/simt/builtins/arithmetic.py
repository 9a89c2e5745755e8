"""The dialect's bit and arithmetic functions: ``fma``, ``popc``, ``clz``, ``ffs``, ``selp`` ...

Each has the same typing cases as in numba-cuda (``numba_cuda/numba/cuda/cudadecl.py``), so
argument types select the same version on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, overload_method

from nbrt.backends.cpu.simt.builtins.registry import (
    Values,
    by_intrinsic,
    call_external,
    register,
    stand_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS", "find_first_set"]

_INTEGERS = (
    types.int8,
    types.int16,
    types.int32,
    types.int64,
    types.uint8,
    types.uint16,
    types.uint32,
    types.uint64,
)
_FLOATS = (types.float32, types.float64)
_SELECTABLE = (*_FLOATS, *(t for t in _INTEGERS if t.bitwidth > 8))


def _fma(builder: ir.IRBuilder, args: Values) -> ir.Value:
    return builder.fma(*args)


def _count_leading(builder: ir.IRBuilder, args: Values) -> ir.Value:
    # The result for zero is the width, as of the PTX instruction.
    return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))


def find_first_set(builder: ir.IRBuilder, args: Values) -> ir.Value:
    """Return the position of the lowest bit that is set, from 1, or 0; as 32 bits."""
    value = args[0]
    zero = ir.Constant(value.type, 0)
    zero_based = builder.cttz(value, ir.Constant(ir.IntType(1), 0))
    one_based = builder.add(zero_based, ir.Constant(value.type, 1))
    position = builder.select(builder.icmp_unsigned("==", value, zero), zero, one_based)
    result = ir.IntType(32)
    if value.type.width == result.width:
        return position
    cast = builder.trunc if value.type.width > result.width else builder.zext
    return cast(position, result)


def _cube_root(builder: ir.IRBuilder, args: Values) -> ir.Value:
    real = args[0].type
    return call_external(builder, "cbrtf" if isinstance(real, ir.FloatType) else "cbrt", real, args)


_selp = stand_in("selp")


class _SelectTemplate(AbstractTemplate):
    key = _selp

    def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
        if kws or len(args) != 3:
            return None
        test, first, second = args
        first, second = types.unliteral(first), types.unliteral(second)
        if first != second or first not in _SELECTABLE:
            return None
        return signature(first, test, first, first)


infer_global(_selp, types.Function(_SelectTemplate))


@lower_builtin(_selp, types.Any, types.Any, types.Any)
def _lower_select(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
    test = context.cast(builder, args[0], sig.args[0], types.boolean)
    return builder.select(test, args[1], args[2])


_popc = register("popc", [signature(t, t) for t in _INTEGERS], by_intrinsic("llvm.ctpop"))


# Without annotations: Numba compares its signature with that of the code below.
@overload_method(types.Integer, "bit_count")
def _bit_count(i):  # type: ignore[no-untyped-def]
    return lambda i: _popc(i)


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "fma": register("fma", [signature(t, t, t, t) for t in _FLOATS], _fma),
    "popc": _popc,
    "clz": register("clz", [signature(t, t) for t in _INTEGERS], _count_leading),
    "ffs": register("ffs", [signature(types.uint32, t) for t in _INTEGERS], find_first_set),
    "brev": register(
        "brev",
        [signature(t, t) for t in (types.uint32, types.uint64)],
        by_intrinsic("llvm.bitreverse"),
    ),
    "cbrt": register("cbrt", [signature(t, t) for t in _FLOATS], _cube_root),
    "selp": _selp,
}
