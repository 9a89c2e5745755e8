"""The guard of ``a.flat[i]``, and the check of a computed index into a tuple."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nbrt.backends.cpu.simt.checked.probes import Guard, report_outside

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FLAT", "TUPLE", "check_tuple", "guard_flat"]

_I64 = ir.IntType(64)

FLAT = -1
"""Axis of an index that counts all elements of an array."""
TUPLE = -2
"""Axis of an index into a tuple."""


class _FlatGuard(Guard):
    """Emits the check of ``a.flat[i]``; returns the array and an index along all axes."""

    def __init__(
        self, context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]
    ) -> None:
        flat, index, *rest = sig.args
        array = cgutils.create_struct_proxy(flat)(context, builder, value=args[0]).array
        super().__init__(context, builder, (flat.array_type, index, *rest), (array, *args[1:]))

    def _emit_bounds(self) -> ir.Value:
        builder, (member,), (value,) = self._builder, self._members, self._given
        index, count = self._wide(value, member), self._helper.nitems
        # Compiled code counts from the first element also for a negative index.
        fits = builder.icmp_unsigned("<", index, count)
        self._report(fits, value, member, count, FLAT)
        for extent in reversed(self._shape):
            none = builder.icmp_signed("==", extent, _I64(0))
            divisor = builder.select(none, _I64(1), extent)
            self._positions.insert(0, builder.urem(index, divisor))
            index = builder.udiv(index, divisor)
        return fits

    def _safe_index(self, inside: ir.Value, result: Any) -> ir.Value:
        builder = self._builder
        values = [builder.select(inside, position, _I64(0)) for position in self._positions]
        return self._context.make_tuple(builder, result, values)


@intrinsic
def guard_flat(_typingctx: Any, flat: Any, index: Any, site: Any, access: Any) -> Any:
    """Check an access; return the array and an index that are safe to use instead."""
    array = flat.array_type
    result = types.Tuple((array, types.Tuple([types.intp] * array.ndim)))

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        return _FlatGuard(context, builder, sig, args).emit(result)

    return result(flat, index, types.int64, types.int64), codegen


@intrinsic
def check_tuple(_typingctx: Any, members: Any, index: Any, site: Any) -> Any:
    """Report an index outside of a tuple, for which Numba raises an IndexError."""

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        count = _I64(len(members))
        report_outside(builder, (args[1], index), count, _I64(TUPLE), args[2], _I64(1))
        return context.get_dummy_value()

    return types.none(members, index, types.int64), codegen
