"""The 8-bit formats of ``numba.cuda._internal.cuda_fp8``: e4m3, e5m2 and e8m0.

Values are bytes. A constructor converts a number, and saturates to finite values, as CUDA's
``cuda_fp8.h`` documents; a cast to another type of number is exact, or saturates to an integer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.datamodel.models import PrimitiveModel, StructModel
from numba.core.imputils import Registry
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import (
    intrinsic,
    lower_builtin,
    make_attribute_wrapper,
    register_model,
    typeof_impl,
)

from nbrt.backends.cpu.simt.builtins.bfloat16 import (
    NAN,
    bfloat16,
    from_double,
    from_integer,
    to_single,
)
from nbrt.backends.cpu.simt.builtins.registry import (
    Values,
    call_intrinsic,
    real_to_integer,
    stand_in,
)
from nbrt.backends.cpu.simt.builtins.vectors import VectorType
from nbrt.backends.cpu.simt.target import simt_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_BYTE, _SHORT, _WIDE = ir.IntType(8), ir.IntType(16), ir.IntType(64)
_SINGLE, _DOUBLE = ir.FloatType(), ir.DoubleType()
_FLAG = ir.IntType(1)

_registry = Registry("nbrt.fp8")

REPLACEMENTS: dict[str, Any] = {}


@dataclass(frozen=True)
class _Format:
    """A format with a sign, an exponent and a mantissa."""

    bias: int
    mantissa: int
    """Bits of the mantissa."""

    largest: int
    """The bits of the largest finite value."""

    overflow: int
    """The bits of what is larger, without saturation."""


_FORMATS = {"e4m3": _Format(7, 3, 0x7E, 0x7F), "e5m2": _Format(15, 2, 0x7B, 0x7C)}


class _Fp8(types.Number):
    """Numba type of one of the formats."""

    def __init__(self, kind: str) -> None:
        super().__init__(name=f"fp8_{kind}")
        self.kind = kind


@register_model(_Fp8)
class _Model(PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _BYTE)


# -- from numbers ------------------------------------------------------------------------------


def _rounded(
    builder: ir.IRBuilder, value: ir.Value, form: _Format, saturates: ir.Value
) -> ir.Value:
    """Round a double to the nearest value of a format, ties to even."""
    bits = builder.bitcast(value, _WIDE)
    size = call_intrinsic(builder, "llvm.fabs", value)
    size_bits = builder.bitcast(size, _WIDE)
    dropped = 52 - form.mantissa
    last = builder.and_(builder.lshr(size_bits, _wide(dropped)), _wide(1))
    added = builder.add(size_bits, builder.add(last, _wide((1 << (dropped - 1)) - 1)))
    normal = builder.sub(
        builder.lshr(added, _wide(dropped)), _wide((1023 - form.bias) << form.mantissa)
    )
    # Subnormal values are multiples of one unit.
    unit = 2.0 ** (form.bias - 1 + form.mantissa)
    limited = call_intrinsic(builder, "llvm.minnum", size, ir.Constant(_DOUBLE, 1.0))
    scaled = builder.fmul(limited, ir.Constant(_DOUBLE, unit))
    subnormal = builder.fptoui(call_intrinsic(builder, "llvm.rint", scaled), _WIDE)
    is_small = builder.fcmp_ordered("<", size, ir.Constant(_DOUBLE, 2.0 ** (1 - form.bias)))
    code = builder.select(is_small, subnormal, normal)
    too_large = builder.icmp_signed(">", code, _wide(form.largest))
    limit = builder.select(saturates, _wide(form.largest), _wide(form.overflow))
    code = builder.select(too_large, limit, code)
    sign = builder.and_(builder.lshr(bits, _wide(56)), _wide(0x80))
    is_nan = builder.fcmp_unordered("uno", value, value)
    code = builder.select(is_nan, _wide(0x7F), builder.or_(code, sign))
    return builder.trunc(code, _BYTE)


def _exponent(
    builder: ir.IRBuilder, value: ir.Value, saturates: ir.Value, up: ir.Value
) -> ir.Value:
    """Return the exponent of a bfloat16 as e8m0; `up`: of the next power of two."""
    seven, size = ir.Constant(_SHORT, 7), builder.and_(value, ir.Constant(_SHORT, 0x7FFF))
    code = builder.lshr(size, seven)
    rest = builder.icmp_unsigned(
        "!=", builder.and_(size, ir.Constant(_SHORT, 0x7F)), ir.Constant(_SHORT, 0)
    )
    # Half of the least power of two, 2**-127, is the subnormal 0x40.
    above = builder.icmp_unsigned(">", size, ir.Constant(_SHORT, 0x40))
    finite = builder.icmp_unsigned("<", size, ir.Constant(_SHORT, 0x7F80))
    steps = builder.and_(builder.and_(up, rest), builder.and_(above, finite))
    code = builder.add(code, builder.zext(steps, _SHORT))
    is_number = builder.icmp_unsigned("<=", size, ir.Constant(_SHORT, 0x7F80))
    is_full = builder.icmp_unsigned("==", code, ir.Constant(_SHORT, 0xFF))
    limited = builder.and_(saturates, builder.and_(is_number, is_full))
    return builder.trunc(builder.select(limited, ir.Constant(_SHORT, 0xFE), code), _BYTE)


def _e8m0_of_double(
    builder: ir.IRBuilder, value: ir.Value, saturates: ir.Value, up: ir.Value
) -> ir.Value:
    size = call_intrinsic(builder, "llvm.fabs", value)
    nearest = [from_double(builder, size, rounding) for rounding in ("ru", "rz")]
    return _exponent(builder, builder.select(up, *nearest), saturates, up)


def _of_number(
    context: Any, builder: ir.IRBuilder, typ: Any, source: Any, value: ir.Value
) -> ir.Value:
    """Construct a value of a format from a number, saturating."""
    yes = ir.Constant(_FLAG, 1)
    if isinstance(source, types.IntegerLiteral):
        value = context.cast(builder, value, source, source.literal_type)
        source = source.literal_type
    if typ.kind == "e8m0" and isinstance(source, types.Integer):
        negated = builder.neg(value)
        negative = builder.icmp_signed("<", value, ir.Constant(value.type, 0))
        size = builder.select(negative, negated, value) if source.signed else value
        return _exponent(builder, from_integer(builder, size, "ru", signed=False), yes, yes)
    wide = context.cast(builder, value, source, types.float64)
    if typ.kind == "e8m0":
        return _e8m0_of_double(builder, wide, yes, yes)
    return _rounded(builder, wide, _FORMATS[typ.kind], yes)


def _wide(value: int) -> ir.Value:
    return ir.Constant(_WIDE, value)


# -- to numbers --------------------------------------------------------------------------------


def _e8m0_as_bfloat16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    bits = builder.shl(builder.zext(value, _SHORT), ir.Constant(_SHORT, 7))
    least, none = (builder.icmp_unsigned("==", value, ir.Constant(_BYTE, b)) for b in (0, 0xFF))
    bits = builder.select(least, ir.Constant(_SHORT, 0x40), bits)
    return builder.select(none, ir.Constant(_SHORT, NAN), bits)


def _as_single(builder: ir.IRBuilder, kind: str, value: ir.Value) -> ir.Value:
    """Return a value of a format as a float, which is exact."""
    if kind == "e8m0":
        return to_single(builder, _e8m0_as_bfloat16(builder, value))
    short = builder.zext(value, _SHORT)
    if kind == "e5m2":  # the upper half of a float16
        half = builder.shl(short, ir.Constant(_SHORT, 8))
        return builder.fpext(builder.bitcast(half, ir.HalfType()), _SINGLE)
    sign = builder.shl(builder.and_(short, ir.Constant(_SHORT, 0x80)), ir.Constant(_SHORT, 8))
    size = builder.and_(short, ir.Constant(_SHORT, 0x7F))
    half = builder.or_(sign, builder.shl(size, ir.Constant(_SHORT, 7)))
    single = builder.fpext(builder.bitcast(half, ir.HalfType()), _SINGLE)
    single = builder.fmul(single, ir.Constant(_SINGLE, 2.0**8))  # the difference of the biases
    is_nan = builder.icmp_unsigned("==", size, ir.Constant(_SHORT, 0x7F))
    return builder.select(is_nan, ir.Constant(_SINGLE, float("nan")), single)


@_registry.lower_cast(_Fp8, types.Float)
@_registry.lower_cast(_Fp8, type(bfloat16))
def _cast_to_float(
    context: Any, builder: ir.IRBuilder, source: Any, to: Any, value: ir.Value
) -> ir.Value:
    single = _as_single(builder, source.kind, value)
    return context.cast(builder, single, types.float32, to)


@_registry.lower_cast(_Fp8, types.Integer)
def _cast_to_integer(
    _context: Any, builder: ir.IRBuilder, source: Any, to: Any, value: ir.Value
) -> ir.Value:
    single = _as_single(builder, source.kind, value)
    return real_to_integer(builder, single, "llvm.trunc", to.bitwidth, signed=to.signed)


@_registry.lower_cast(_Fp8, types.Boolean)
def _cast_to_boolean(
    _context: Any, builder: ir.IRBuilder, source: Any, _to: Any, value: ir.Value
) -> ir.Value:
    if source.kind == "e8m0":  # it has no zero
        return ir.Constant(_FLAG, 1)
    size = builder.and_(value, ir.Constant(_BYTE, 0x7F))
    return builder.icmp_unsigned("!=", size, ir.Constant(_BYTE, 0))


def _test(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
    return context.cast(builder, args[0], sig.args[0], types.boolean)


# -- constructors ------------------------------------------------------------------------------


def _add_constructor(typ: Any) -> None:
    constructor = stand_in(typ.name)

    class Template(AbstractTemplate):
        key = constructor

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            if kws or len(args) > 1 or not all(isinstance(arg, types.Number) for arg in args):
                return None
            if any(isinstance(arg, _Fp8 | types.Complex) for arg in args):
                return None
            return signature(typ, *args)

    infer_global(constructor, types.Function(Template))

    @lower_builtin(constructor)
    def default(_context: Any, _builder: ir.IRBuilder, _sig: Any, _args: Values) -> ir.Value:
        return ir.Constant(_BYTE, 0)

    @lower_builtin(constructor, types.Number)
    def construct(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        return _of_number(context, builder, typ, sig.args[0], args[0])

    REPLACEMENTS[f"fp8.{typ.name}"] = constructor


def _add_vector(typ: Any, count: int) -> None:
    """Add the type of 2 or 4 values in one integer, with its constructor and casts."""
    name = typ.name.replace("fp8", f"fp8x{count}")
    storage = types.Integer.from_bitwidth(8 * count, signed=False)
    # The module is given for the reason in vectors.py.
    kind = type(name, (types.Type,), {"__module__": __name__})

    @register_model(kind)
    class Model(StructModel):
        def __init__(self, manager: Any, fe_type: Any) -> None:
            super().__init__(manager, fe_type, [("__x", storage)])

    make_attribute_wrapper(kind, "__x", "__x")
    packed = kind(name)
    constructor = stand_in(name)

    class Template(AbstractTemplate):
        key = constructor

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            if kws or not all(_has_reals(arg, count) for arg in args) or len(args) > 1:
                return None
            return signature(packed, *args)

    infer_global(constructor, types.Function(Template))

    @lower_builtin(constructor)
    @lower_builtin(constructor, VectorType)
    def construct(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        bits: Any = ir.Constant(ir.IntType(8 * count), 0)
        if args:
            elements = _elements(context, builder, sig.args[0], args[0])
            source = sig.args[0].element
            codes = [_of_number(context, builder, typ, source, each) for each in elements]
            bits = _joined(builder, codes)
        result = cgutils.create_struct_proxy(packed)(context, builder)
        setattr(result, "__x", bits)  # in a class, it would be mangled
        return result._getvalue()

    REPLACEMENTS[f"fp8.{name}"] = constructor


def _has_reals(typ: Any, count: int) -> bool:
    return isinstance(typ, VectorType) and len(typ.fields) == count and typ.element in _REALS


def _elements(context: Any, builder: ir.IRBuilder, typ: Any, value: ir.Value) -> list[ir.Value]:
    proxy = cgutils.create_struct_proxy(typ)(context, builder, value)
    return [getattr(proxy, name) for name in typ.fields]


def _joined(builder: ir.IRBuilder, codes: list[ir.Value]) -> ir.Value:
    """Return bytes as one integer, the first one lowest."""
    whole = ir.IntType(8 * len(codes))
    bits: Any = ir.Constant(whole, 0)
    for position, code in enumerate(codes):
        shifted = builder.shl(builder.zext(code, whole), ir.Constant(whole, 8 * position))
        bits = builder.or_(bits, shifted)
    return bits


_REALS = (types.float32, types.float64)

# -- conversions by functions ------------------------------------------------------------------


class _RawBfloat16(types.Type):
    """The bits of a bfloat16, in the attribute `x`."""


@register_model(_RawBfloat16)
class _RawModel(StructModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, [("x", types.uint16)])


_raw = _RawBfloat16("__nv_bfloat16_raw")
make_attribute_wrapper(_RawBfloat16, "x", "x")


def _conversion(name: str, source: Any, *, e8m0: bool) -> Callable[..., Any]:
    """Return the function that converts a number, or a pair, with a saturation and a format.

    The last argument is the format, or for e8m0 the rounding: towards zero (1) or up (2).
    """
    count = len(source.fields) if isinstance(source, VectorType) else 1

    def implementing(_typingctx: Any, value: Any, saturate: Any, choice: Any) -> Any:
        wanted = _raw if source is bfloat16 else source
        modes = (types.IntEnumMember, types.Integer)
        if not (isinstance(saturate, modes) and isinstance(choice, modes)) or value != wanted:
            raise errors.TypingError(
                f"{name} takes a {wanted}, a saturation_t and a "
                f"{'cudaRoundMode' if e8m0 else 'fp8_interpretation_t'}, got {value}, {saturate} "
                f"and {choice}"
            )

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
            saturates, mode = (
                builder.icmp_unsigned("==", arg, ir.Constant(arg.type, number))
                for arg, number in ((args[1], 1), (args[2], 2 if e8m0 else 1))
            )
            if count > 1:
                values = _elements(context, builder, source, args[0])
                element = source.element
            else:
                is_raw = source is bfloat16
                values = [builder.extract_value(args[0], 0) if is_raw else args[0]]
                element = source
            codes = []
            for each in values:
                wide = context.cast(builder, each, element, types.float64)
                if e8m0:
                    codes.append(_e8m0_of_double(builder, wide, saturates, mode))
                else:
                    e5m2, e4m3 = (
                        _rounded(builder, wide, _FORMATS[kind], saturates)
                        for kind in ("e5m2", "e4m3")
                    )
                    codes.append(builder.select(mode, e5m2, e4m3))
            return _joined(builder, codes)

        result = types.Integer.from_bitwidth(8 * count, signed=False)
        return signature(result, value, saturate, choice), codegen

    implementing.__name__ = name
    return intrinsic(implementing)  # type: ignore[no-any-return]


@intrinsic
def _e8m0_to_raw(_typingctx: Any, value: Any) -> Any:
    if not isinstance(value, types.Integer):
        raise errors.TypingError(f"cvt_e8m0_to_bf16raw takes a byte, got {value}")

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Values) -> ir.Value:
        result = cgutils.create_struct_proxy(_raw)(context, builder)
        result.x = _e8m0_as_bfloat16(builder, args[0])
        return result._getvalue()

    return signature(_raw, types.uint8), codegen


def _type_rounding_modes() -> None:
    """Let kernels read ``cudaRoundMode`` of cuda-bindings, whose enums are not Python's."""
    module = sys.modules.get("cuda.bindings._internal._fast_enum")
    if module is None:
        return

    @typeof_impl.register(module.FastEnumMetaclass)
    def typeof_enum(value: Any, _context: Any) -> Any:
        return types.IntEnumClass(value, types.int64)


def _add_all() -> None:
    from nbrt.backends.cpu.simt.builtins.vectors import TYPES

    for kind in ("e4m3", "e5m2", "e8m0"):
        typ = _Fp8(kind)
        _add_constructor(typ)
        for count in (2, 4):
            _add_vector(typ, count)
        _registry.lower(bool, typ)(_test)
    sources = {
        "float": types.float32,
        "float2": TYPES["float32x2"],
        "double": types.float64,
        "double2": TYPES["float64x2"],
        "bfloat16raw": bfloat16,
    }
    for name, source in sources.items():
        suffix = "x2" if name.endswith("2") else ""
        for target in ("fp8", "e8m0"):
            full = f"cvt_{name}_to_{target}{suffix}"
            REPLACEMENTS[f"fp8.{full}"] = _conversion(full, source, e8m0=target == "e8m0")
    REPLACEMENTS["fp8.cvt_e8m0_to_bf16raw"] = _e8m0_to_raw
    _type_rounding_modes()
    simt_target.typing_context.refresh()
    simt_target.target_context.install_registry(_registry)


_add_all()
