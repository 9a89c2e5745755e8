"""CPU versions of the dialect's plain functions: the dialect pass puts these in their place.

Each is registered with Numba's CPU target under the same typing cases as numba-cuda has
(``numba_cuda/numba/cuda/cudadecl.py``), so argument types choose the same version on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.typing.npydecl import parse_dtype
from numba.core.typing.templates import (
    AbstractTemplate,
    ConcreteTemplate,
    infer_global,
    signature,
)
from numba.extending import intrinsic, lower_builtin

__all__ = ["REPLACEMENTS", "local_array"]

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

Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]


def _device_only(*_: Any) -> NoReturn:
    raise TypeError("this function stands for a CUDA builtin and is callable in kernels only")


def _marker(name: str) -> Callable[..., Any]:
    """Make a distinct function object for Numba's registries to know a builtin by."""

    def marker(*args: Any) -> NoReturn:
        _device_only(*args)

    marker.__name__ = marker.__qualname__ = name
    return marker


def _register(name: str, signatures: Sequence[Any], emit: Emit) -> Callable[..., Any]:
    """Register a builtin with fixed typing cases and one way of emitting it."""
    marker = _marker(name)
    template = type(f"Simt_{name}", (ConcreteTemplate,), {"key": marker, "cases": list(signatures)})
    infer_global(marker, types.Function(template))

    def lower(
        _context: Any, builder: ir.IRBuilder, _sig: Any, args: Sequence[ir.Value]
    ) -> ir.Value:
        return emit(builder, args)

    for case in signatures:
        lower_builtin(marker, *case.args)(lower)
    return marker


def _intrinsic_call(name: str, count: int = 1) -> Emit:
    """Emit a call of an LLVM intrinsic overloaded on its first argument's type."""

    def emit(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        llvm = builder.module.declare_intrinsic(name, [args[0].type])
        return builder.call(llvm, args[:count])

    return emit


def _fma(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    return builder.fma(*args)


def _count_leading(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    # Defined at zero (the width), as the PTX instruction is.
    return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))


def _find_first_set(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    value = args[0]
    zero = ir.Constant(value.type, 0)
    position = builder.cttz(value, ir.Constant(ir.IntType(1), 0))
    one_based = builder.add(position, ir.Constant(value.type, 1))
    found = builder.select(builder.icmp_unsigned("==", value, zero), zero, one_based)
    result = ir.IntType(32)
    if value.type.width == result.width:
        return found
    cast = builder.trunc if value.type.width > result.width else builder.zext
    return cast(found, result)


def _cube_root(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    real = args[0].type
    name = "cbrtf" if isinstance(real, ir.FloatType) else "cbrt"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(real, [real]), name)
    return builder.call(function, args)


_fma_marker = _register("fma", [signature(t, t, t, t) for t in _FLOATS], _fma)
_popc = _register("popc", [signature(t, t) for t in _INTEGERS], _intrinsic_call("llvm.ctpop"))
_clz = _register("clz", [signature(t, t) for t in _INTEGERS], _count_leading)
_ffs = _register("ffs", [signature(types.uint32, t) for t in _INTEGERS], _find_first_set)
_brev = _register(
    "brev",
    [signature(t, t) for t in (types.uint32, types.uint64)],
    _intrinsic_call("llvm.bitreverse"),
)
_cbrt = _register("cbrt", [signature(t, t) for t in _FLOATS], _cube_root)
_selp = _marker("selp")


class _SelectTemplate(AbstractTemplate):  # type: ignore[misc]
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


@lower_builtin(_selp, types.Any, types.Any, types.Any)  # type: ignore[untyped-decorator]
def _lower_select(
    context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]
) -> ir.Value:
    test = context.cast(builder, args[0], sig.args[0], types.boolean)
    return builder.select(test, args[1], args[2])


_array_like = _marker("array_like")


class _ArrayLikeTemplate(AbstractTemplate):  # type: ignore[misc]
    key = _array_like

    def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
        if kws or len(args) != 1 or not isinstance(args[0], types.Array):
            return None
        return signature(args[0], args[0])


infer_global(_array_like, types.Function(_ArrayLikeTemplate))


@lower_builtin(_array_like, types.Array)  # type: ignore[untyped-decorator]
def _lower_array_like(
    _context: Any, _builder: ir.IRBuilder, _sig: Any, args: Sequence[ir.Value]
) -> ir.Value:
    # A global array is compiled in as a constant already.
    return args[0]


def _fence(builder: ir.IRBuilder, _args: Sequence[ir.Value]) -> ir.Value:
    builder.fence("seq_cst")
    return ir.Constant(ir.IntType(8).as_pointer(), None)


_threadfence = _register("threadfence", [signature(types.none)], _fence)


def _literal_shape(shape: Any) -> tuple[int, ...]:
    members = shape if isinstance(shape, types.BaseTuple) else (shape,)
    if not all(isinstance(member, types.IntegerLiteral) for member in members):
        raise errors.RequireLiteralValue(
            "the shape of cuda.local.array must be made of integers known at compile time"
        )
    return tuple(member.literal_value for member in members)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def local_array(_typingctx: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:
    """Allocate an uninitialised per-thread array on the stack (``cuda.local.array``)."""
    extents = _literal_shape(shape)
    element = parse_dtype(dtype)
    if element is None:
        raise errors.NumbaTypeError(f"cuda.local.array: {dtype} is not a data type")
    array = types.Array(dtype=element, ndim=len(extents), layout="C")
    aligned = alignment.literal_value if isinstance(alignment, types.IntegerLiteral) else None

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, _args: Any) -> ir.Value:
        count = 1
        for extent in extents:
            count *= extent
        data = context.get_data_type(element)
        # alloca_once places it in the function's entry block: taken once per call, not once per
        # turn of a loop around it, and LLVM merges it into the caller's frame when inlining.
        storage = cgutils.alloca_once(builder, ir.ArrayType(data, count))
        storage.align = max(aligned or 0, 16)
        return _wrap_array(context, builder, array, storage, extents)

    given = types.Omitted(None) if alignment is None else alignment
    return array(shape, dtype, given), codegen


def _wrap_array(
    context: Any, builder: ir.IRBuilder, array: Any, storage: ir.Value, extents: tuple[int, ...]
) -> ir.Value:
    """Make a Numba array value that views ``storage``."""
    itemsize = context.get_abi_sizeof(context.get_data_type(array.dtype))
    strides = [itemsize] * len(extents)
    for axis in reversed(range(len(extents) - 1)):
        strides[axis] = strides[axis + 1] * extents[axis + 1]
    intp = [context.get_constant(types.intp, value) for value in (*extents, *strides)]
    value = context.make_array(array)(context, builder)
    context.populate_array(
        value,
        data=builder.bitcast(storage, value.data.type),
        shape=intp[: len(extents)],
        strides=intp[len(extents) :],
        itemsize=context.get_constant(types.intp, itemsize),
        meminfo=None,
    )
    return value._getvalue()


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "fma": _fma_marker,
    "popc": _popc,
    "clz": _clz,
    "ffs": _ffs,
    "brev": _brev,
    "cbrt": _cbrt,
    "selp": _selp,
    "const.array_like": _array_like,
    "threadfence": _threadfence,
    "threadfence_block": _threadfence,
    "threadfence_system": _threadfence,
    "local.array": local_array,
}
"""Dotted name in ``numba.cuda`` -> the function that stands for it on the CPU."""
