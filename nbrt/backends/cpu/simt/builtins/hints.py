"""Hints to the hardware: cached loads and stores, ``nanosleep``; without effect on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core import errors, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from nbrt.backends.cpu.simt.builtins.atomics import element_pointer, index_type
from nbrt.backends.cpu.simt.builtins.registry import Values, nothing, register

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite import ir

__all__ = ["CACHED_LOADS", "CACHED_STORES", "REPLACEMENTS"]

CACHED_LOADS = ("ldca", "ldcg", "ldcs", "ldlu", "ldcv")
CACHED_STORES = ("stcg", "stcs", "stwb", "stwt")


def _checked_index(name: str, array: Any, index: Any, *, is_written: bool) -> Any:
    index = index_type(f"cuda.{name}", array, index, is_written=is_written)
    if not isinstance(array.dtype, types.Integer | types.Float):
        raise errors.NumbaTypeError(
            f"cuda.{name} works on arrays of integers or floats, not on one of {array.dtype}"
        )
    return index


def _load(name: str) -> Callable[..., Any]:
    @intrinsic
    def load(_typingctx: Any, array: Any, index: Any) -> Any:
        converted = _checked_index(name, array, index, is_written=False)

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
            return context.unpack_value(
                builder, array.dtype, element_pointer(context, builder, sig, args)
            )

        return signature(array.dtype, array, converted), codegen

    return load  # type: ignore[no-any-return]


def _store(name: str) -> Callable[..., Any]:
    @intrinsic
    def store(_typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        converted = _checked_index(name, array, index, is_written=True)

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
            pointer = element_pointer(context, builder, sig, args)
            context.pack_value(builder, array.dtype, args[2], pointer)
            return nothing()

        return signature(types.none, array, converted, array.dtype), codegen

    return store  # type: ignore[no-any-return]


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    **{name: _load(name) for name in CACHED_LOADS},
    **{name: _store(name) for name in CACHED_STORES},
    "nanosleep": register(
        "nanosleep", [signature(types.none, types.uint32)], lambda _builder, _args: nothing()
    ),
}
