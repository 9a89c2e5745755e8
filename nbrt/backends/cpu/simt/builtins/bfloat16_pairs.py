"""Pairs of bfloat16 values, and bfloat16 values behind pointers, as in CUDA's ``cuda_bf16.h``.

A function of pairs is that of single values, for each of the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel.models import StructModel
from numba.core.typing.templates import signature
from numba.extending import make_attribute_wrapper, register_model

from nbrt.backends.cpu.simt.builtins.bfloat16 import bfloat16, from_single, to_single
from nbrt.backends.cpu.simt.builtins.bfloat16_functions import (
    COMPARISONS,
    SCALARS,
    TRANSCENDENTAL,
    is_nan,
)
from nbrt.backends.cpu.simt.builtins.pointer_updates import update_atomically
from nbrt.backends.cpu.simt.builtins.registry import Emit, Values, define, nothing, register
from nbrt.backends.cpu.simt.builtins.vectors import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_BITS, _WORD, _FLAG = ir.IntType(16), ir.IntType(32), ir.IntType(1)
_ONE = 0x3F80

REPLACEMENTS: dict[str, Callable[..., Any]] = {}


class _PairType(types.Type):
    """Numba type of two bfloat16 values, `x` and `y`."""


_pair = _PairType("__nv_bfloat162")


@register_model(_PairType)
class _Model(StructModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, [("x", bfloat16), ("y", bfloat16)])


for _name in ("x", "y"):
    make_attribute_wrapper(_PairType, _name, _name)


def _add(name: str, cases: Sequence[Any], emit: Emit) -> None:
    REPLACEMENTS[f"bf16.{name}"] = register(name, cases, emit)


def _halves(builder: ir.IRBuilder, pair: ir.Value) -> tuple[ir.Value, ir.Value]:
    return builder.extract_value(pair, 0), builder.extract_value(pair, 1)


def _packed(builder: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    return cgutils.pack_struct(builder, (low, high))


def _each(emit: Emit) -> Emit:
    """Return the function of pairs for a function of single values."""

    def both(builder: ir.IRBuilder, args: Values) -> ir.Value:
        columns = zip(*(_halves(builder, arg) for arg in args), strict=True)
        return _packed(builder, *(emit(builder, column) for column in columns))

    return both


def _add_elementwise() -> None:
    for name, (count, emit) in SCALARS.items():
        stem, _, suffix = name.removeprefix("__").partition("_")
        suffix = f"_{suffix}" if suffix else ""
        if name == "__hdiv":
            pair_name = "__h2div"
        elif name.startswith("__"):
            pair_name = f"__{stem}2{suffix}"
        else:
            pair_name = f"h2{stem[1:]}{suffix}"
        _add(pair_name, [signature(_pair, *[_pair] * count)], _each(emit))
    for name, lower in TRANSCENDENTAL.items():

        def both(
            context: Any, builder: ir.IRBuilder, sig: Any, args: Values, lower: Any = lower
        ) -> ir.Value:
            halves = _halves(builder, args[0])
            return _packed(builder, *(lower(context, builder, sig, [each]) for each in halves))

        pair_name = f"h2{name[1:]}"
        REPLACEMENTS[f"bf16.{pair_name}"] = define(pair_name, [signature(_pair, _pair)], both)


def _chosen(builder: ir.IRBuilder, flag: ir.Value, typ: ir.Type, yes: int) -> ir.Value:
    return builder.select(flag, ir.Constant(typ, yes), ir.Constant(typ, 0))


def _add_comparisons() -> None:
    two = [_pair, _pair]
    for name, emit in COMPARISONS.items():

        def as_reals(builder: ir.IRBuilder, args: Values, emit: Emit = emit) -> ir.Value:
            return _chosen(builder, emit(builder, args), _BITS, _ONE)

        def as_masks(builder: ir.IRBuilder, args: Values, emit: Emit = emit) -> ir.Value:
            flags = _each(emit)(builder, args)
            low, high = _halves(builder, flags)
            return builder.or_(
                _chosen(builder, low, _WORD, 0xFFFF), _chosen(builder, high, _WORD, 0xFFFF0000)
            )

        def of_both(builder: ir.IRBuilder, args: Values, emit: Emit = emit) -> ir.Value:
            return builder.and_(*_halves(builder, _each(emit)(builder, args)))

        _add(f"__h{name}2", [signature(_pair, *two)], _each(as_reals))
        _add(f"__h{name}2_mask", [signature(types.uint32, *two)], as_masks)
        _add(f"__hb{name}2", [signature(types.boolean, *two)], of_both)
    _add(
        "__hisnan2",
        [signature(_pair, _pair)],
        _each(lambda b, args: _chosen(b, is_nan(b, args[0]), _BITS, _ONE)),
    )


def _picked(*choices: tuple[int, int]) -> Emit:
    """Return the function that builds a pair, or one value, from halves of its arguments."""

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        parts = [builder.extract_value(args[number], half) for number, half in choices]
        return _packed(builder, *parts) if len(parts) == 2 else parts[0]

    return emit


def _complex_fused(builder: ir.IRBuilder, args: Values) -> ir.Value:
    """Multiply two complex numbers and add a third, with four fused operations."""
    fma, negated = SCALARS["__hfma"][1], SCALARS["__hneg"][1]
    (a, b), (c, d), (real, imaginary) = (_halves(builder, arg) for arg in args)
    real = fma(builder, [negated(builder, [b]), d, fma(builder, [a, c, real])])
    imaginary = fma(builder, [b, c, fma(builder, [a, d, imaginary])])
    return _packed(builder, real, imaginary)


def _add_movement() -> None:
    one, f32, f32x2 = bfloat16, types.float32, TYPES["float32x2"]
    joined = [signature(_pair, one, one)]
    constructor = [signature(_pair), signature(_pair, _pair), *joined]
    _add("__nv_bfloat162", constructor, _construct)
    for name in ("make_bfloat162", "__halves2bfloat162"):
        _add(name, joined, lambda b, args: _packed(b, *args))
    _add("__bfloat162bfloat162", [signature(_pair, one)], lambda b, a: _packed(b, a[0], a[0]))
    moves = {
        "__lowhigh2highlow": (1, [(0, 1), (0, 0)]),
        "__low2bfloat162": (1, [(0, 0), (0, 0)]),
        "__high2bfloat162": (1, [(0, 1), (0, 1)]),
        "__lows2bfloat162": (2, [(0, 0), (1, 0)]),
        "__highs2bfloat162": (2, [(0, 1), (1, 1)]),
    }
    for name, (count, choices) in moves.items():
        _add(name, [signature(_pair, *[_pair] * count)], _picked(*choices))
    for half, name in enumerate(("low", "high")):
        _add(f"__{name}2bfloat16", [signature(one, _pair)], _picked((0, half)))

        def as_single(builder: ir.IRBuilder, args: Values, half: int = half) -> ir.Value:
            return to_single(builder, builder.extract_value(args[0], half))

        _add(f"__{name}2float", [signature(f32, _pair)], as_single)
    single = _each(lambda b, args: from_single(b, args[0]))
    _add("__float22bfloat162_rn", [signature(_pair, f32x2)], single)
    wide = _each(lambda b, args: to_single(b, args[0]))
    _add("__bfloat1622float2", [signature(f32x2, _pair)], wide)
    _add(
        "__floats2bfloat162_rn",
        [signature(_pair, f32, f32)],
        lambda b, args: _packed(b, *(from_single(b, arg) for arg in args)),
    )
    _add(
        "__float2bfloat162_rn",
        [signature(_pair, f32)],
        lambda b, args: _packed(b, *[from_single(b, args[0])] * 2),
    )
    _add("__hcmadd", [signature(_pair, *[_pair] * 3)], _complex_fused)


def _construct(builder: ir.IRBuilder, args: Values) -> ir.Value:
    if len(args) == 1:
        return args[0]
    zero = ir.Constant(_BITS, 0)
    return _packed(builder, *(args or (zero, zero)))


# -- pointers ----------------------------------------------------------------------------------


def _add_bits(builder: ir.IRBuilder, pointer: ir.Value, value: ir.Value) -> ir.Value:
    """Add to a bfloat16 in memory as one atomic operation; return the value before."""
    add = SCALARS["__hadd"][1]
    return update_atomically(builder, "nbrt_atomic_add_bfloat16", pointer, value, add)


def _atomic_add(_context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
    pointer, value = args
    if sig.return_type == bfloat16:
        return _add_bits(builder, pointer, value)
    # As on the device, each of the two is one operation.
    places = [cgutils.gep_inbounds(builder, pointer, 0, half) for half in (0, 1)]
    added = zip(places, _halves(builder, value), strict=True)
    return _packed(builder, *(_add_bits(builder, *each) for each in added))


def _store(builder: ir.IRBuilder, args: Values) -> ir.Value:
    builder.store(args[1], args[0])
    return nothing()


def _add_pointers() -> None:
    kinds = [(types.CPointer(typ), typ) for typ in (_pair, bfloat16)]
    loads = [signature(typ, pointer) for pointer, typ in kinds]
    for name in ("ldg", "ldcg", "ldca", "ldcs", "ldlu", "ldcv"):
        _add(f"__{name}", loads, lambda b, args: b.load(args[0]))
    stores = [signature(types.none, pointer, typ) for pointer, typ in kinds]
    for name in ("stwb", "stcg", "stcs", "stwt"):
        _add(f"__{name}", stores, _store)
    cases = [signature(typ, pointer, typ) for pointer, typ in kinds]
    REPLACEMENTS["bf16.atomicAdd"] = define("atomicAdd", cases, _atomic_add)


_add_elementwise()
_add_comparisons()
_add_movement()
_add_pointers()
