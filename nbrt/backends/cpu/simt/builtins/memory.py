"""Arrays that a kernel declares: ``shared.array``, ``local.array``, ``const.array_like``."""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import errors, types
from numba.core.datamodel.models import StructModel
from numba.core.funcdesc import default_mangler
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.npydecl import parse_dtype
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from nbrt.backends.cpu.simt.builtins.registry import Values, call_external, stand_in
from nbrt.backends.cpu.simt.placeholders import SHARED_BYTES, SHARED_DYNAMIC, shared_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_POINTER = ir.IntType(8).as_pointer()
_LOCAL_ALIGNMENT = 16
_LINE = 64  # bytes of a cache line, and of the widest vector
_MIN_BYTES_OF_LINES = 16 * _LINE
_SHARED_ALIGNMENT = _LINE  # rows of a tile are then loaded as whole vectors
_POINTER_BYTES = 8


def _literal_shape(name: str, shape: Any) -> tuple[int, ...]:
    members = shape if isinstance(shape, types.BaseTuple) else (shape,)
    if not all(isinstance(member, types.IntegerLiteral) for member in members):
        raise errors.RequireLiteralValue(
            f"the shape of {name} must consist of integers known at compile time"
        )
    return tuple(member.literal_value for member in members)


def _element(name: str, dtype: Any) -> Any:
    try:
        element = parse_dtype(dtype)
    except errors.TypingError:  # of a string
        element = None
    if element is not None:
        return element
    if isinstance(dtype, types.UnicodeType):
        raise errors.RequireLiteralValue(f"{name}: the dtype must be a constant")
    given = repr(dtype.literal_value) if isinstance(dtype, types.StringLiteral) else dtype
    raise errors.NumbaTypeError(
        f"argument 'dtype' (number 2) of {name}: expected a data type that kernels have, got "
        f"{given}; pass one such as np.float32, 'float32' or numba.float32"
    )


def _literal_alignment(name: str, alignment: Any) -> int | None:
    if alignment is None or isinstance(alignment, types.NoneType | types.Omitted):
        return None
    if not isinstance(alignment, types.IntegerLiteral):
        raise errors.RequireLiteralValue(f"{name}: the alignment must be a constant integer")
    value = int(alignment.literal_value)
    if value <= 0 or value & (value - 1) or value % _POINTER_BYTES:
        raise errors.NumbaValueError(
            f"the alignment of {name} must be a power of two and a multiple of {_POINTER_BYTES}, "
            f"got {value}"
        )
    return value


def _check(name: str, context: Any, element: Any, extents: tuple[int, ...]) -> None:
    plain = isinstance(element, types.Number | types.Boolean | types.Record)
    if not plain and not isinstance(context.data_model_manager[element], StructModel):
        raise errors.NumbaTypeError(f"{name} cannot hold elements of type {element}")
    if any(extent <= 0 for extent in extents):
        raise errors.NumbaValueError(f"{name} must have at least one element, got shape {extents}")


@intrinsic(prefer_literal=True)
def _local_array(_typingctx: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:
    """Allocate an uninitialised per-thread array on the stack (``cuda.local.array``)."""
    name = "cuda.local.array"
    extents = _literal_shape(name, shape)
    array = types.Array(dtype=_element(name, dtype), ndim=len(extents), layout="C")
    aligned = _literal_alignment(name, alignment)

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, _args: Any) -> ir.Value:
        _check(name, context, array.dtype, extents)
        data = context.get_data_type(array.dtype)
        # In the function's entry block: allocated once per call, not in each iteration of a loop,
        # and LLVM merges it into the caller's frame when inlining. Numba's alloca_once would store
        # zeros, and LLVM splits them into one store an element (minutes for 16000).
        with builder.goto_entry_block():
            storage = builder.alloca(ir.ArrayType(data, math.prod(extents)))
        size = math.prod(extents) * context.get_abi_sizeof(data)
        # Where the stack pointer is a multiple of 16 only, most wide vectors of an array would lie
        # in two lines. Smaller arrays may become registers.
        least = _LINE if size >= _MIN_BYTES_OF_LINES else _LOCAL_ALIGNMENT
        storage.align = max(aligned or 0, least)
        shape = [context.get_constant(types.intp, extent) for extent in extents]
        return _wrap_array(context, builder, array, storage, shape)

    alignment_type = types.Omitted(None) if alignment is None else alignment
    return array(shape, dtype, alignment_type), codegen


@intrinsic(prefer_literal=True)
def _shared_array(
    _typingctx: Any, shape: Any, dtype: Any, alignment: Any = None, site: Any = None
) -> Any:
    """Return the block's array of this call site, or its dynamic memory (``cuda.shared.array``).

    The dialect pass adds `site`, the number of the call in its function.
    """
    name = "cuda.shared.array"
    extents = _literal_shape(name, shape)
    array = types.Array(dtype=_element(name, dtype), ndim=len(extents), layout="C")
    aligned = max(_literal_alignment(name, alignment) or 0, _SHARED_ALIGNMENT)
    dynamic = extents == (0,)

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, _args: Any) -> ir.Value:
        _check(name, context, array.dtype, () if dynamic else extents)
        itemsize = context.get_abi_sizeof(context.get_data_type(array.dtype))
        if dynamic:
            # Arrays of all types begin at the start of dynamic shared memory, as on CUDA.
            symbol = SHARED_DYNAMIC
            total = call_external(builder, SHARED_BYTES, ir.IntType(64))
            shape = [builder.udiv(total, ir.Constant(total.type, itemsize))]
        else:
            where = _site(context.fndesc, site.literal_value)
            symbol = shared_array(math.prod(extents) * itemsize, aligned, where)
            shape = [context.get_constant(types.intp, extent) for extent in extents]
        storage = call_external(builder, symbol, _POINTER)
        return _wrap_array(context, builder, array, storage, shape)

    alignment_type = types.Omitted(None) if alignment is None else alignment
    return array(shape, dtype, alignment_type, site), codegen


def _site(function: Any, number: int) -> str:
    """Return the name of a call site, unique for each compiled function."""
    # Numba's symbol distinguishes two closures of one text, and one function compiled for two
    # types, and is the same in every process; the label in front helps readers of the assembly.
    name = f"{function.modname}.{function.qualname}"
    symbol = default_mangler(name, function.argtypes, abi_tags=function.abi_tags, uid=function.uid)
    digest = hashlib.sha256(symbol.encode()).hexdigest()[:16]
    label = re.sub(r"\W", "_", function.qualname.rpartition(".")[2], flags=re.ASCII)
    return f"{label}_{number}_{digest}"


def _wrap_array(
    context: Any, builder: ir.IRBuilder, array: Any, storage: ir.Value, shape: Sequence[ir.Value]
) -> ir.Value:
    """Return a Numba array value that views ``storage``."""
    itemsize = context.get_constant(
        types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype))
    )
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], extent, flags=("nsw", "nuw")))
    value = context.make_array(array)(context, builder)
    context.populate_array(
        value,
        data=builder.bitcast(storage, value.data.type),
        shape=shape,
        strides=strides,
        itemsize=itemsize,
        meminfo=None,
    )
    return value._getvalue()


_array_like = stand_in("array_like")


class _ArrayLikeTemplate(AbstractTemplate):
    key = _array_like

    def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
        if kws or len(args) != 1 or not isinstance(args[0], types.Array):
            return None
        return signature(args[0], args[0])


infer_global(_array_like, types.Function(_ArrayLikeTemplate))


@lower_builtin(_array_like, types.Array)
def _lower_array_like(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
    # Numba compiles a global array as a constant.
    return impl_ret_borrowed(context, builder, sig.return_type, args[0])


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "shared.array": _shared_array,
    "local.array": _local_array,
    "const.array_like": _array_like,
}
