"""The calls that instrumentation inserts into a kernel, as Numba intrinsics.

Each computes addresses and bounds inline and passes them to the shadow runtime. Sites are integers
at run time, so one typed version serves all sites with the same types.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype

from nbrt.backends.cpu.simt.checked import layout
from nbrt.backends.cpu.simt.checked.memory import PREFIX, granule, state_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "FLAT",
    "HUGE",
    "TUPLE",
    "begin_thread",
    "call_runtime",
    "check_record",
    "check_sum",
    "check_tuple",
    "guard",
    "guard_flat",
    "local_array",
    "returned_in_loop",
    "runtime_probes",
    "shared_array",
    "touch",
]

_I64 = ir.IntType(64)
HUGE = 2**63 - 1
"""In reports: an unsigned index that is at least as large."""
FLAT = -1
"""Axis of an index that counts all elements of an array."""
TUPLE = -2
"""Axis of an index into a tuple."""
_I64_TYPES = types.Integer | types.IntegerLiteral


def call_runtime(builder: ir.IRBuilder, name: str, args: Sequence[ir.Value]) -> None:
    """Call a function of the shadow runtime; its first argument is the address of the state."""
    values = [_I64(state_address()), *args]
    kind = ir.FunctionType(ir.VoidType(), [_I64] * len(values))
    function = cgutils.get_or_insert_function(builder.module, kind, f"{PREFIX}{name}")
    builder.call(function, values)


def _wide(builder: ir.IRBuilder, value: ir.Value, typ: Any) -> ir.Value:
    """Extend an integer to 64 bits by the sign of its type."""
    if value.type.width == _I64.width:
        return value
    extend = builder.sext if typ.signed else builder.zext
    return extend(value, _I64)


# -- arrays ------------------------------------------------------------------------------------


def _members(typ: Any) -> tuple[Any, ...]:
    return tuple(typ) if isinstance(typ, types.BaseTuple) else (typ,)


def _axes(array: Any, members: tuple[Any, ...]) -> list[int | None]:
    """Return the axis of each member of an index; None for an ellipsis or a new axis."""
    axes: list[int | None] = []
    axis = 0
    consuming = sum(not (isinstance(m, types.NoneType) or m is types.ellipsis) for m in members)
    for member in members:
        if member is types.ellipsis:
            axis += array.ndim - consuming
            axes.append(None)
        elif isinstance(member, types.NoneType):
            axes.append(None)
        else:
            axes.append(axis)
            axis += 1
    return axes


def _report_outside(
    builder: ir.IRBuilder,
    given: tuple[ir.Value, Any],
    extent: ir.Value,
    axis: ir.Value,
    site: ir.Value,
    data: ir.Value,
    fits: ir.Value | None = None,
) -> None:
    """Report an index, given with its type, unless it is in [0, extent) or `fits` holds."""
    value, typ = given
    shown = _wide(builder, value, typ)
    if fits is None:
        fits = builder.icmp_unsigned("<", shown, extent)
    with builder.if_then(builder.not_(fits), likely=False):
        if not typ.signed:
            huge = builder.icmp_signed("<", shown, _I64(0))
            shown = builder.select(huge, _I64(HUGE), shown)
        call_runtime(builder, "bounds", [site, shown, extent, axis, data])


class _Guard:
    """Emits the check of an access; the access then uses the array and index that it returns.

    `given` are the types of the array and the index, `args` the values of these, of the site and
    of the access.
    """

    def __init__(
        self, context: Any, builder: ir.IRBuilder, given: Sequence[Any], args: Sequence[ir.Value]
    ) -> None:
        self._context, self._builder = context, builder
        self._array, self._index = given[:2]
        self._value, self._at, self._site, self._access = args
        self._members = _members(self._index)
        is_tuple = isinstance(self._index, types.BaseTuple)
        self._given = cgutils.unpack_tuple(builder, self._at) if is_tuple else [self._at]
        self._helper = context.make_array(self._array)(context, builder, self._value)
        self._shape = cgutils.unpack_tuple(builder, self._helper.shape, self._array.ndim)
        self._positions: list[ir.Value] = []

    def emit(self, result: Any) -> ir.Value:
        """Emit everything; `result` is the type of the pair of array and index."""
        builder = self._builder
        inside = self._emit_bounds()
        if len(self._positions) == self._array.ndim:
            with builder.if_then(inside):
                self._emit_access()
        array = self._redirected(inside)
        index = self._safe_index(inside, result.types[1])
        pair = self._context.make_tuple(builder, result, [array, index])
        return impl_ret_borrowed(self._context, builder, result, pair)

    def _emit_bounds(self) -> ir.Value:
        builder = self._builder
        inside = ir.Constant(ir.IntType(1), 1)
        axes = _axes(self._array, self._members)
        for member, value, axis in zip(self._members, self._given, axes, strict=True):
            if axis is None or not isinstance(member, _I64_TYPES):
                continue
            index, extent = _wide(builder, value, member), self._shape[axis]
            if isinstance(member, types.IntegerLiteral) and member.literal_value < 0:
                # The source itself says ``a[-1]``, which Python and the dialect allow.
                index = builder.add(index, extent)
            fits = builder.icmp_unsigned("<", index, extent)
            self._report(fits, value, member, extent, axis)
            inside = builder.and_(inside, fits)
            self._positions.append(index)
        return inside

    def _report(
        self, fits: ir.Value, value: ir.Value, typ: Any, extent: ir.Value, axis: int
    ) -> None:
        builder = self._builder
        data = builder.ptrtoint(self._helper.data, _I64)
        _report_outside(builder, (value, typ), extent, _I64(axis), self._site, data, fits)

    def _emit_access(self) -> None:
        # Accesses to records are checked where their fields are read and written.
        builder, context = self._builder, self._context
        pointer = cgutils.get_item_pointer(
            context, builder, self._array, self._helper, self._positions
        )
        size = _I64(context.get_abi_sizeof(context.get_data_type(self._array.dtype)))
        address = builder.ptrtoint(pointer, _I64)
        performs = builder.icmp_signed(">=", self._access, _I64(0))
        with builder.if_then(performs):
            call_runtime(builder, "access", [address, size, self._site, self._access])

    def _redirected(self, inside: ir.Value) -> ir.Value:
        """Return the array, or zeros in its place for an access outside of it."""
        builder, helper = self._builder, self._helper
        scratch = _I64(state_address() + layout.SCRATCH * 8)
        zeros = builder.inttoptr(scratch, helper.data.type)
        moved = self._context.make_array(self._array)(self._context, builder, self._value)
        moved.data = builder.select(inside, helper.data, zeros)
        # Extents of 0: a view of the zeros has no element that could be outside of them.
        extents = [builder.select(inside, extent, _I64(0)) for extent in self._shape]
        moved.shape = cgutils.pack_array(builder, extents, _I64)
        return moved._getvalue()

    def _safe_index(self, inside: ir.Value, result: Any) -> ir.Value:
        builder, context = self._builder, self._context
        values = []
        for member, value in zip(self._members, self._given, strict=True):
            is_position = isinstance(member, _I64_TYPES)
            values.append(builder.select(inside, value, value.type(0)) if is_position else value)
        if not isinstance(self._index, types.BaseTuple):
            return values[0]
        return context.make_tuple(builder, result, values)


@intrinsic(prefer_literal=True)
def guard(_typingctx: Any, array: Any, index: Any, site: Any, access: Any) -> Any:
    """Check an access; return an array and an index that are safe to use instead.

    `access` is an `Access`, or -1 to check bounds only.
    """
    result = types.Tuple((array, types.unliteral(index)))

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        return _Guard(context, builder, sig.args, args).emit(result)

    return result(array, index, types.int64, types.int64), codegen


class _FlatGuard(_Guard):
    """Emits the check of ``a.flat[i]``; returns the array and an index along all axes."""

    def __init__(
        self, context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]
    ) -> None:
        flat, index, *rest = sig.args
        array = cgutils.create_struct_proxy(flat)(context, builder, value=args[0]).array
        super().__init__(context, builder, (flat.array_type, index, *rest), (array, *args[1:]))

    def _emit_bounds(self) -> ir.Value:
        builder, (member,), (value,) = self._builder, self._members, self._given
        index, count = _wide(self._builder, value, member), self._helper.nitems
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
        _report_outside(builder, (args[1], index), count, _I64(TUPLE), args[2], _I64(1))
        return context.get_dummy_value()

    return types.none(members, index, types.int64), codegen


@contextlib.contextmanager
def _elements(builder: ir.IRBuilder, shape: Sequence[ir.Value]) -> Iterator[list[ir.Value]]:
    with contextlib.ExitStack() as nest:
        yield [nest.enter_context(cgutils.for_range(builder, n)).index for n in shape]


@intrinsic
def touch(_typingctx: Any, array: Any, site: Any, access: Any) -> Any:
    """Check an access to every element of an array or a view."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        helper = context.make_array(array)(context, builder, args[0])
        size = _I64(context.get_abi_sizeof(context.get_data_type(array.dtype)))
        shape = cgutils.unpack_tuple(builder, helper.shape, array.ndim)
        strides = cgutils.unpack_tuple(builder, helper.strides, array.ndim)
        base = builder.ptrtoint(helper.data, _I64)
        with _elements(builder, shape) as indices:
            address = base
            for index, stride in zip(indices, strides, strict=True):
                address = builder.add(address, builder.mul(index, stride))
            call_runtime(builder, "access", [address, size, args[1], args[2]])
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64), codegen


@intrinsic
def check_record(
    _typingctx: Any, record: Any, offset: Any, size: Any, site: Any, access: Any
) -> Any:
    """Check an access to a field of a record."""

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        address = builder.add(builder.ptrtoint(args[0], _I64), args[1])
        call_runtime(builder, "access", [address, *args[2:]])
        return context.get_dummy_value()

    return types.none(record, *[types.int64] * 4), codegen


def _extent_of(context: Any, builder: ir.IRBuilder, array: Any, value: ir.Value) -> list[ir.Value]:
    """Return address, size and granule of a local or shared array."""
    helper = context.make_array(array)(context, builder, value)
    itemsize = context.get_abi_sizeof(context.get_data_type(array.dtype))
    count = helper.nitems
    size = builder.mul(count, _I64(itemsize))
    try:
        unit = granule(as_dtype(array.dtype))
    except NotImplementedError:  # such as a vector type of the dialect
        unit = itemsize & -itemsize
    return [builder.ptrtoint(helper.data, _I64), size, _I64(unit.bit_length() - 1)]


@intrinsic
def local_array(_typingctx: Any, array: Any, site: Any) -> Any:
    """Register a local array."""

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        figures = _extent_of(context, builder, array, args[0])
        call_runtime(builder, "local_array", [*figures, args[1]])
        return context.get_dummy_value()

    return types.none(array, types.int64), codegen


@intrinsic
def shared_array(_typingctx: Any, array: Any, site: Any, by_byte: Any) -> Any:
    """Register a shared array; with `by_byte`, for accesses through several types."""

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        address, size, shift = _extent_of(context, builder, array, args[0])
        is_by_byte = builder.icmp_signed("!=", args[2], _I64(0))
        shift = builder.select(is_by_byte, _I64(0), shift)
        call_runtime(builder, "shared_array", [address, size, shift, args[1]])
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64), codegen


# -- arithmetic --------------------------------------------------------------------------------

_CHECKED = {"add": "sadd", "sub": "ssub", "mul": "smul"}


def _report_overflow(
    builder: ir.IRBuilder, failed: ir.Value, site: ir.Value, figures: list[ir.Value]
) -> None:
    with builder.if_then(failed, likely=False):
        call_runtime(builder, "overflow", [site, *figures])


def _make_overflow_probe(operation: str) -> Any:
    @intrinsic
    def probe(_typingctx: Any, left: Any, right: Any, site: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
            a, b = _wide(builder, args[0], left), _wide(builder, args[1], right)
            name = f"llvm.{_CHECKED[operation]}.with.overflow"
            kind = ir.FunctionType(ir.LiteralStructType([_I64, ir.IntType(1)]), [_I64, _I64])
            function = builder.module.declare_intrinsic(name, [_I64], kind)
            failed = builder.extract_value(builder.call(function, [a, b]), 1)
            _report_overflow(builder, failed, args[2], [a, b, _I64(64)])
            return context.get_dummy_value()

        return types.none(left, right, types.int64), codegen

    return probe


@intrinsic
def _check_narrowing(_typingctx: Any, value: Any, bits: Any, site: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        wide = _wide(builder, args[0], value)
        spare = builder.sub(_I64(64), args[1])
        kept = builder.ashr(builder.shl(wide, spare), spare)
        failed = builder.icmp_signed("!=", kept, wide)
        _report_overflow(builder, failed, args[2], [wide, wide, args[1]])
        return context.get_dummy_value()

    return types.none(value, types.int64, types.int64), codegen


# -- order -------------------------------------------------------------------------------------


def _rank(
    builder: ir.IRBuilder, at: Sequence[ir.Value], width: ir.Value, height: ir.Value
) -> ir.Value:
    row = builder.add(builder.mul(at[2], height), at[1])
    return builder.add(builder.mul(row, width), at[0])


@intrinsic
def begin_thread(_typingctx: Any, simt: Any) -> Any:
    """Set the current thread, at the beginning of a kernel."""

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        width, height, _ = simt.block
        indices = [builder.zext(builder.extract_value(args[0], at), _I64) for at in range(9)]
        thread = _rank(builder, indices[:3], _I64(width), _I64(height))
        block = _rank(builder, indices[3:6], indices[6], indices[7])
        call_runtime(builder, "begin_thread", [block, thread])
        return context.get_dummy_value()

    return types.none(simt), codegen


def _runtime_probe(name: str) -> Any:
    """Return a probe that passes integers on to a function of the shadow runtime."""

    @intrinsic
    def probe(_typingctx: Any, *kinds: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
            values = cgutils.unpack_tuple(builder, args[0])
            wide = [_wide(builder, *pair) for pair in zip(values, kinds, strict=True)]
            call_runtime(builder, name, wide)
            return context.get_dummy_value()

        return types.none(types.StarArgTuple(kinds)), codegen

    return probe


# Numba must know intrinsics before it compiles a kernel that uses them.
runtime_probes = {
    name: _runtime_probe(name)
    for name in (
        "before_barrier", "after_barrier", "before_grid", "after_grid", "before_warp", "after_warp",
        "reconverged", "returned", "fence",
    )
}  # fmt: skip
returned_in_loop = _runtime_probe("returned")
check_sum = {
    **{operation: _make_overflow_probe(operation) for operation in _CHECKED},
    "narrow": _check_narrowing,
}
"""The probes that check that an operation on integers is exact."""
