"""Barriers and fences: ``syncthreads*``, ``syncwarp``, ``threadfence*``, ``grid.sync``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel.models import OpaqueModel
from numba.core.typing.templates import (
    AttributeTemplate,
    bound_function,
    infer_getattr,
    signature,
)
from numba.extending import intrinsic, lower_builtin, register_model

from nbrt.backends.cpu.simt.builtins.registry import Values, call_external, nothing, register
from nbrt.backends.cpu.simt.placeholders import BARRIER, GRID_SYNC, WARP_SYNC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_I32 = ir.IntType(32)
_FULL_WARP = ir.Constant(_I32, 0xFFFFFFFF)


def _barrier(builder: ir.IRBuilder, _args: Sequence[ir.Value]) -> ir.Value:
    call_external(builder, BARRIER, ir.VoidType())
    return nothing()


def _warp_barrier(builder: ir.IRBuilder, args: Values) -> ir.Value:
    call_external(builder, WARP_SYNC, ir.VoidType(), args or (_FULL_WARP,))
    return nothing()


def _fence(builder: ir.IRBuilder, _args: Sequence[ir.Value]) -> ir.Value:
    builder.fence("seq_cst")
    return nothing()


def _deciding_barrier(kind: str) -> Callable[..., Any]:
    """Return ``syncthreads_count``, ``_and`` or ``_or``, with an integer predicate, as on CUDA."""

    @intrinsic
    def barrier(_typingctx: Any, predicate: Any) -> Any:
        if not isinstance(predicate, (types.Integer, types.Boolean)):
            return None

        def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Values) -> ir.Value:
            return call_external(builder, f"{BARRIER}.{kind}", _I32, args)

        return signature(types.int32, types.int32), codegen

    return barrier  # type: ignore[no-any-return]


class GridGroupType(types.Type):
    """Numba type of the result of ``cg.this_grid()``."""

    def __init__(self) -> None:
        super().__init__(name="grid group")


register_model(GridGroupType)(OpaqueModel)

_grid_group = GridGroupType()


def _this_grid(_builder: ir.IRBuilder, _args: Sequence[ir.Value]) -> ir.Value:
    return nothing()


@infer_getattr
class _GridGroupMethods(AttributeTemplate):
    key = GridGroupType

    @bound_function("grid_group.sync")
    def resolve_sync(self, group: Any, args: Sequence[Any], kws: dict[str, Any]) -> Any:
        return None if args or kws else signature(types.int32, recvr=group)


@lower_builtin("grid_group.sync", GridGroupType)
def _sync(context: Any, builder: ir.IRBuilder, _sig: Any, _args: Sequence[ir.Value]) -> ir.Value:
    call_external(builder, GRID_SYNC, ir.VoidType())
    return context.get_constant(types.int32, 0)


_threadfence = register("threadfence", [signature(types.none)], _fence)

REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "cg.this_grid": register("this_grid", [signature(_grid_group)], _this_grid),
    "syncthreads": register("syncthreads", [signature(types.none)], _barrier),
    "syncthreads_count": _deciding_barrier("count"),
    "syncthreads_and": _deciding_barrier("and"),
    "syncthreads_or": _deciding_barrier("or"),
    "syncwarp": register(
        "syncwarp",
        [signature(types.none), signature(types.none, types.int32)],
        _warp_barrier,
    ),
    "threadfence": _threadfence,
    "threadfence_block": _threadfence,
    "threadfence_system": _threadfence,
}
