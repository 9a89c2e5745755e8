"""Functions of ``cuda.libdevice`` that round down, up or toward zero.

A processor has one rounding mode for all instructions of a thread, so each of these functions sets
the mode, computes and sets it back. They are not inlined: code of the caller must not run between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import signature

from nbrt.backends.cpu.simt.builtins.registry import Emit, Values, register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_MODES = {"rz": 0, "ru": 2, "rd": 3}
"""Rounding -> its number for LLVM; 1 is to the nearest."""

_NEAREST = 1

REPLACEMENTS: dict[str, Callable[..., Any]] = {}


def _constrained(builder: ir.IRBuilder, name: str, result: ir.Type, args: Values) -> ir.Value:
    """Call the form of an operation that LLVM neither folds nor moves."""
    types_of_name = [result]
    if args[0].type != result:
        types_of_name.append(args[0].type)
    suffix = ".".join(
        f"i{typ.width}" if isinstance(typ, ir.IntType) else typ.intrinsic_name
        for typ in types_of_name
    )
    metadata = [ir.MetaDataString(builder.module, f) for f in ("round.dynamic", "fpexcept.strict")]
    kind = ir.FunctionType(result, [*(arg.type for arg in args), *[ir.MetaDataType()] * 2])
    full = f"llvm.experimental.constrained.{name}.{suffix}"
    function = builder.module.globals.get(full) or ir.Function(builder.module, kind, name=full)
    return builder.call(function, [*args, *metadata])


def _in_mode(name: str, mode: int, result: ir.Type, compute: Emit) -> Emit:
    """Return the code that calls a function which computes in a rounding mode."""

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        symbol, module = f"nbrt_{name}", builder.module
        function = module.globals.get(symbol)
        if function is None:
            kind = ir.FunctionType(result, [arg.type for arg in args])
            function = ir.Function(module, kind, name=symbol)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            set.add(function.attributes, "strictfp")  # llvmlite does not know it
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            _set_mode(inner, mode)
            value = compute(inner, function.args)
            _set_mode(inner, _NEAREST)
            inner.ret(value)
        return builder.call(function, args)

    return emit


def _set_mode(builder: ir.IRBuilder, mode: int) -> None:
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
    function = builder.module.declare_intrinsic("llvm.set.rounding", (), kind)
    builder.call(function, [ir.Constant(ir.IntType(32), mode)])


def _operation(name: str) -> Emit:
    return lambda builder, args: _constrained(builder, name, args[0].type, args)


def _reciprocal(builder: ir.IRBuilder, args: Values) -> ir.Value:
    one = ir.Constant(args[0].type, 1.0)
    return _constrained(builder, "fdiv", args[0].type, (one, *args))


def _of_integer(result: ir.Type, *, signed: bool) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        value = args[0]
        if signed:
            return _constrained(builder, "sitofp", result, [value])
        wide = ir.IntType(64)
        if value.type != wide:
            return _constrained(builder, "sitofp", result, [builder.zext(value, wide)])
        # Half of a large number, with a last bit that records what is cut off.
        one = ir.Constant(wide, 1)
        half = builder.or_(builder.lshr(value, one), builder.and_(value, one))
        is_large = builder.icmp_signed("<", value, ir.Constant(wide, 0))
        chosen = builder.select(is_large, half, value)
        real = _constrained(builder, "sitofp", result, [chosen])
        scale = builder.select(is_large, ir.Constant(result, 2.0), ir.Constant(result, 1.0))
        return _constrained(builder, "fmul", result, [real, scale])

    return emit


def _narrowed(builder: ir.IRBuilder, args: Values) -> ir.Value:
    return _constrained(builder, "fptrunc", ir.FloatType(), args)


def _add(name: str, result: Any, arguments: Sequence[Any], compute: Emit) -> None:
    real = ir.FloatType() if result == types.float32 else ir.DoubleType()
    for rounding, mode in _MODES.items():
        full = f"{name}_{rounding}"
        emit = _in_mode(full, mode, real, compute)
        REPLACEMENTS[f"libdevice.{full}"] = register(full, [signature(result, *arguments)], emit)


def _add_all() -> None:
    for prefix, real in (("f", types.float32), ("d", types.float64)):
        for name in ("add", "sub", "mul", "div"):
            if f"{prefix}{name}" != "dsub":  # libdevice has none
                _add(f"{prefix}{name}", real, [real, real], _operation(f"f{name}"))
        _add(f"{prefix}rcp", real, [real], _reciprocal)
        _add(f"{prefix}sqrt", real, [real], _operation("sqrt"))
    _add("fmaf", types.float32, [types.float32] * 3, _operation("fma"))
    _add("fma", types.float64, [types.float64] * 3, _operation("fma"))
    _add("double2float", types.float32, [types.float64], _narrowed)
    # libdevice types every integer as signed; the name states whether it is unsigned.
    for name, typ in (("int", types.int32), ("ll", types.int64)):
        for prefix, signed in (("", True), ("u", False)):
            for real, llvm in ((types.float32, ir.FloatType()), (types.float64, ir.DoubleType())):
                if (name, real) != ("int", types.float64):  # exact
                    compute = _of_integer(llvm, signed=signed)
                    _add(f"{prefix}{name}2{_NAMES[real]}", real, [typ], compute)


_NAMES = {types.float32: "float", types.float64: "double"}
_add_all()
