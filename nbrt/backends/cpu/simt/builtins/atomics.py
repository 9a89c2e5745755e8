"""Atomic operations, as LLVM's atomic instructions: blocks run in different OS threads.

Types, index forms and the meaning of NaN are those of numba-cuda. Ordering is monotonic, as on
CUDA; the result is the previous value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.builtins.registry import Values

    Update = Callable[[ir.IRBuilder, Any, ir.Value, ir.Value], ir.Value]

__all__ = ["REPLACEMENTS", "element_pointer", "index_type"]

_UNSIGNED = (types.uint32, types.uint64)
_INTEGERS = (types.int32, types.int64, *_UNSIGNED)
_NUMBERS = (*_INTEGERS, types.float32, types.float64)
_ORDERING = "monotonic"


def index_type(name: str, array: Any, index: Any, *, is_written: bool, reals: bool = False) -> Any:
    """Check an array and an index; return the type that the index is converted to."""
    if not isinstance(array, types.Array):
        raise errors.NumbaTypeError(f"{name} works on an array, got {array}")
    if is_written and not array.mutable:
        raise errors.NumbaTypeError(f"{name} writes to an array, and cannot to a {array}")
    given = index.types if isinstance(index, types.BaseTuple) else (index,)
    members = tuple(_present(member) for member in given)
    kinds = (types.Integer, types.Boolean, types.Float)[: 3 if reals else 2]
    if len(members) != array.ndim or not all(isinstance(member, kinds) for member in members):
        raise errors.NumbaTypeError(
            f"{name}: an array of {array.ndim} dimensions takes as many integers as its index, "
            f"got {index}"
        )
    if not isinstance(index, types.BaseTuple):
        return types.intp
    return index if members == tuple(given) else types.Tuple(members)


def _present(kind: Any) -> Any:
    """Return the type of a value that is not None, as which a kernel uses an optional one."""
    return kind.type if isinstance(kind, types.Optional) else kind


def _checked_index(name: str, array: Any, index: Any, accepted: tuple[Any, ...]) -> Any:
    # A tuple may hold reals, which are truncated: `%` of a uint64 and an int64 returns one.
    reals = isinstance(index, types.BaseTuple)
    converted = index_type(f"cuda.atomic.{name}", array, index, is_written=True, reals=reals)
    if array.dtype not in accepted:
        known = ", ".join(str(typ) for typ in accepted)
        raise errors.NumbaTypeError(
            f"cuda.atomic.{name} works on arrays of {known}, not on one of {array.dtype}"
        )
    return converted


def element_pointer(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
    """Return the address of the element that the second argument of a call indexes."""
    array, index = sig.args[:2]
    if isinstance(index, types.BaseTuple):
        parts = cgutils.unpack_tuple(builder, args[1], count=len(index))
        indices = [
            context.cast(builder, part, typ, types.intp)
            for part, typ in zip(parts, index.types, strict=True)
        ]
    else:
        indices = [args[1]]
    view = context.make_array(array)(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, array, view, indices, wraparound=True)


def _atomic(name: str, accepted: tuple[Any, ...], update: Update) -> Callable[..., Any]:
    @intrinsic
    def atomic(_typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        index = _checked_index(name, array, index, accepted)

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
            pointer = element_pointer(context, builder, sig, args)
            return update(builder, array.dtype, pointer, args[2])

        return signature(array.dtype, array, index, array.dtype), codegen

    return atomic  # type: ignore[no-any-return]


def _instruction(integer: str, unsigned: str = "", real: str = "") -> Update:
    """Return an update by one ``atomicrmw`` instruction."""

    def update(builder: ir.IRBuilder, dtype: Any, pointer: ir.Value, value: ir.Value) -> ir.Value:
        if isinstance(dtype, types.Float):
            operation = real
        else:
            operation = integer if dtype.signed else unsigned or integer
        return builder.atomic_rmw(operation, pointer, value, _ORDERING)

    return update


def _extreme(name: str, better: str, *, skips_nan: bool) -> Update:
    """Return the update of ``max``, ``min`` or a ``nan`` form.

    A value that is NaN changes nothing. A NaN in the array stays; in the ``nan`` forms any number
    replaces it. No ``atomicrmw`` instruction does either.
    """
    integers = _instruction(name, f"u{name}")

    def update(builder: ir.IRBuilder, dtype: Any, pointer: ir.Value, value: ir.Value) -> ir.Value:
        if not isinstance(dtype, types.Float):
            return integers(builder, dtype, pointer, value)
        function = _extreme_function(builder.module, value.type, better, skips_nan=skips_nan)
        return builder.call(function, (builder.bitcast(pointer, function.args[0].type), value))

    return update


def _extreme_function(
    module: ir.Module, real: ir.Type, better: str, *, skips_nan: bool
) -> ir.Function:
    """Define, once in a module, a function that replaces an element by a better value.

    It is not inlined, so the thread's code does not contain its loop.
    """
    kind = "nan" if skips_nan else ""
    symbol = f"nbrt_atomic_{kind}{'max' if better == '<' else 'min'}_{real}"
    if symbol in module.globals:
        return module.globals[symbol]
    bits = ir.IntType(32 if isinstance(real, ir.FloatType) else 64)
    function = ir.Function(module, ir.FunctionType(real, (real.as_pointer(), real)), name=symbol)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    pointer, value = function.args
    entry, test, attempt, done = (
        function.append_basic_block(name) for name in ("entry", "test", "attempt", "done")
    )
    builder = ir.IRBuilder(entry)
    first = builder.load_atomic(pointer, _ORDERING, bits.width // 8)
    builder.branch(test)

    builder.position_at_end(test)
    old = builder.phi(real)
    if skips_nan:
        is_number = builder.fcmp_ordered("ord", value, value)
        wanted = builder.and_(is_number, builder.fcmp_unordered(better, old, value))
    else:
        wanted = builder.fcmp_ordered(better, old, value)
    builder.cbranch(wanted, attempt, done)

    builder.position_at_end(attempt)
    expected, new = builder.bitcast(old, bits), builder.bitcast(value, bits)
    swap = builder.cmpxchg(pointer, expected, new, _ORDERING, _ORDERING)
    current = builder.bitcast(builder.extract_value(swap, 0), real)
    builder.cbranch(builder.extract_value(swap, 1), done, test)
    old.add_incoming(first, entry)
    old.add_incoming(current, attempt)

    builder.position_at_end(done)
    builder.ret(old)
    return function


def _swap_if(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
    pointer = element_pointer(context, builder, sig, args)
    swap = builder.cmpxchg(pointer, args[2], args[3], _ORDERING, _ORDERING)
    return builder.extract_value(swap, 0)


@intrinsic
def _cas(_typingctx: Any, array: Any, index: Any, expected: Any, value: Any) -> Any:
    index = _checked_index("cas", array, index, _INTEGERS)
    return signature(array.dtype, array, index, array.dtype, array.dtype), _swap_if


@intrinsic
def _compare_and_swap(_typingctx: Any, array: Any, expected: Any, value: Any) -> Any:
    _checked_index("compare_and_swap", array, types.intp, _INTEGERS)
    sig = signature(array.dtype, array, array.dtype, array.dtype)

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        first = signature(sig.return_type, sig.args[0], types.intp, *sig.args[1:])
        zero = context.get_constant(types.intp, 0)
        return _swap_if(context, builder, first, (args[0], zero, *args[1:]))

    return sig, codegen


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "atomic.add": _atomic("add", _NUMBERS, _instruction("add", real="fadd")),
    "atomic.sub": _atomic("sub", _NUMBERS, _instruction("sub", real="fsub")),
    "atomic.and_": _atomic("and_", _INTEGERS, _instruction("and")),
    "atomic.or_": _atomic("or_", _INTEGERS, _instruction("or")),
    "atomic.xor": _atomic("xor", _INTEGERS, _instruction("xor")),
    "atomic.exch": _atomic("exch", _INTEGERS, _instruction("xchg")),
    "atomic.inc": _atomic("inc", _UNSIGNED, _instruction("uinc_wrap")),
    "atomic.dec": _atomic("dec", _UNSIGNED, _instruction("udec_wrap")),
    "atomic.max": _atomic("max", _NUMBERS, _extreme("max", "<", skips_nan=False)),
    "atomic.min": _atomic("min", _NUMBERS, _extreme("min", ">", skips_nan=False)),
    "atomic.nanmax": _atomic("nanmax", _NUMBERS, _extreme("max", "<", skips_nan=True)),
    "atomic.nanmin": _atomic("nanmin", _NUMBERS, _extreme("min", ">", skips_nan=True)),
    "atomic.cas": _cas,
    "atomic.compare_and_swap": _compare_and_swap,
}
