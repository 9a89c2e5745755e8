"""Cooperative groups: ``cg.this_grid()`` and its ``sync``."""

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
from numba.extending import lower_builtin, register_model

from nbrt.backends.cpu.simt.builtins.registry import call_external, nothing, register
from nbrt.backends.cpu.simt.placeholders import GRID_SYNC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]


class GridGroupType(types.Type):
    """Numba type of what ``cg.this_grid()`` gives."""

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


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "cg.this_grid": register("this_grid", [signature(_grid_group)], _this_grid),
}
