"""Warp operations: shuffles, votes, matches and masks, with the typing of numba-cuda."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from nbrt.backends.cpu.simt.builtins.registry import Emit, Values, call_external, register
from nbrt.backends.cpu.simt.placeholders import ACTIVEMASK, MATCH, SHUFFLE, VOTE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_I32 = ir.IntType(32)
_VALUES = (types.int32, types.int64, types.float32, types.float64)


def _as_bits(builder: ir.IRBuilder, value: ir.Value, typ: Any) -> ir.Value:
    return builder.bitcast(value, ir.IntType(typ.bitwidth))


def _shuffle(kind: str) -> Callable[..., Any]:
    @intrinsic
    def shuffle(_typingctx: Any, mask: Any, value: Any, lane: Any) -> Any:
        if value not in _VALUES:
            raise errors.TypingError(
                f"warp shuffles move int32, int64, float32 and float64, as on CUDA, not {value}; "
                "cast the value to one of them"
            )
        if not isinstance(mask, types.Integer) or not isinstance(lane, types.Integer):
            raise errors.TypingError(
                f"the mask and the lane of a warp shuffle are integers, got {mask} and {lane}"
            )

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
            bits = _as_bits(builder, args[1], value)
            members, source = (
                context.cast(builder, arg, typ, types.int32)
                for arg, typ in ((args[0], mask), (args[2], lane))
            )
            symbol = f"{SHUFFLE}{kind}.i{value.bitwidth}"
            moved = call_external(builder, symbol, bits.type, (members, bits, source))
            return builder.bitcast(moved, args[1].type)

        return signature(value, mask, value, lane), codegen

    return shuffle  # type: ignore[no-any-return]


def _vote(kind: str) -> Callable[..., Any]:
    result = types.int32 if kind == "ballot" else types.boolean

    @intrinsic
    def vote(_typingctx: Any, mask: Any, predicate: Any) -> Any:
        if not isinstance(mask, types.Integer):
            raise errors.NumbaTypeError(f"Mask type must be an integer, got {mask}")
        if not isinstance(predicate, types.Integer | types.Boolean):
            raise errors.NumbaTypeError(f"Predicate must be an integer or boolean, got {predicate}")

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
            members = context.cast(builder, args[0], mask, types.int32)
            test = builder.zext(cgutils.is_not_null(builder, args[1]), _I32)
            voted = call_external(builder, f"{VOTE}{kind}", _I32, (members, test))
            return voted if kind == "ballot" else cgutils.is_not_null(builder, voted)

        return signature(result, mask, predicate), codegen

    return vote  # type: ignore[no-any-return]


def _match(kind: str) -> Callable[..., Any]:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        mask, value = args
        width = 32 if value.type in (_I32, ir.FloatType()) else 64
        bits = builder.bitcast(value, ir.IntType(width))
        lanes = call_external(builder, f"{MATCH}{kind}.i{width}", _I32, (mask, bits))
        if kind == "any":
            return lanes
        return cgutils.pack_struct(builder, (lanes, cgutils.is_not_null(builder, lanes)))

    pair = types.Tuple((types.int32, types.boolean))
    result = types.int32 if kind == "any" else pair
    cases = [signature(result, types.int32, value) for value in _VALUES]
    return register(f"match_{kind}_sync", cases, emit)


def _active_mask(builder: ir.IRBuilder, _args: Sequence[ir.Value]) -> ir.Value:
    return call_external(builder, ACTIVEMASK, _I32)


def _lanes_below(builder: ir.IRBuilder, args: Values) -> ir.Value:
    one = ir.Constant(_I32, 1)
    return builder.sub(builder.shl(one, args[0]), one)


def _mask(name: str, arguments: Sequence[Any], emit: Emit) -> Callable[..., Any]:
    return register(name, [signature(types.uint32, *arguments)], emit)


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "shfl_sync": _shuffle("idx"),
    "shfl_up_sync": _shuffle("up"),
    "shfl_down_sync": _shuffle("down"),
    "shfl_xor_sync": _shuffle("xor"),
    "all_sync": _vote("all"),
    "any_sync": _vote("any"),
    "eq_sync": _vote("eq"),
    "ballot_sync": _vote("ballot"),
    "match_any_sync": _match("any"),
    "match_all_sync": _match("all"),
    "activemask": _mask("activemask", (), _active_mask),
    # The dialect pass adds the lane, a field of the hidden argument.
    "lanemask_lt": _mask("lanemask_lt", (types.int32,), _lanes_below),
}
