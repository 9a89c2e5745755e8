"""The hidden first argument of every compiled function: the thread's index in the launch.

``threadIdx``, ``blockIdx`` and ``gridDim`` are fields of one value that the thread loop creates and
that device functions pass on. ``blockDim`` is part of the *type*: LLVM sees a constant, and Numba's
overload table keeps one compiled version for each block shape.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel.models import StructModel
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, lower_getattr_generic, register_model

from nbrt.backends.cpu.simt.placeholders import WARP_SIZE

__all__ = ["ARGUMENT", "SimtContextType"]

ARGUMENT = "__simt__"
"""Name of the hidden argument in the Numba IR."""

_AXES = "xyz"
_FIELDS = {
    f"{name}.{axis}": types.int64 if name == "turn" else types.int32
    for name in ("threadIdx", "blockIdx", "gridDim", "turn")
    for axis in _AXES
}
"""``turn`` is the distance of a grid-stride loop from the thread's index in the grid."""

Block = tuple[int, int, int]


class SimtContextType(types.Type):
    """Numba type of the hidden argument for one block shape."""

    def __init__(self, block: Block) -> None:
        self.block = block
        super().__init__(name=f"simt{block}")


@register_model(SimtContextType)
class _SimtContextModel(StructModel):
    def __init__(self, manager: Any, fe_type: SimtContextType) -> None:
        super().__init__(manager, fe_type, list(_FIELDS.items()))


def _attribute_type(attribute: str) -> types.Type | None:
    """Return the type of one attribute, as numba-cuda types it (``cudadecl``, ``intrinsics``)."""
    head, _, tail = attribute.partition(".")
    if head in ("threadIdx", "blockIdx", "blockDim", "gridDim") and tail in tuple(_AXES):
        return types.int32
    if head in ("laneid", "warpsize") and not tail:
        return types.int32
    if head in ("grid", "turn") and tail in tuple(_AXES):
        return types.int64
    if head in ("grid", "gridsize") and tail in ("1", "2", "3"):
        return types.int64 if tail == "1" else types.UniTuple(types.int64, int(tail))
    return None


@infer_getattr
class _SimtAttributes(AttributeTemplate):
    key = SimtContextType

    def generic_resolve(self, value: SimtContextType, attribute: str) -> types.Type | None:
        return _attribute_type(attribute)


class _Reader:
    """Emits the code that computes one attribute of the hidden argument."""

    def __init__(self, builder: ir.IRBuilder, block: Block, value: ir.Value) -> None:
        self._builder = builder
        self._block = block
        self._value = value

    def field(self, name: str) -> ir.Value:
        return self._builder.extract_value(self._value, list(_FIELDS).index(name))

    def wide(self, name: str) -> ir.Value:
        # All fields are in [0, 2**31), so zero extension is exact. It shows LLVM that an index
        # computed from them is not negative, so LLVM drops Numba's wraparound.
        return self._builder.zext(self.field(name), ir.IntType(64))

    def constant(self, value: int, bits: int = 32) -> ir.Value:
        return ir.Constant(ir.IntType(bits), value)

    def grid(self, axis: int) -> ir.Value:
        flags = ("nsw", "nuw")
        name = _AXES[axis]
        thread = self.wide(f"threadIdx.{name}")
        extent = self.constant(self._block[axis], 64)
        base = self._builder.mul(self.wide(f"blockIdx.{name}"), extent, flags=flags)
        return self._builder.add(base, thread, flags=flags)

    def turn(self, axis: int) -> ir.Value:
        moved = self.field(f"turn.{_AXES[axis]}")
        return self._builder.add(self.grid(axis), moved, flags=("nsw", "nuw"))

    def gridsize(self, axis: int) -> ir.Value:
        extent = self.constant(self._block[axis], 64)
        blocks = self.wide(f"gridDim.{_AXES[axis]}")
        return self._builder.mul(blocks, extent, flags=("nsw", "nuw"))

    def laneid(self) -> ir.Value:
        width, height, _ = self._block
        rank = self.field("threadIdx.x")
        for name, stride in (("threadIdx.y", width), ("threadIdx.z", width * height)):
            scaled = self._builder.mul(self.field(name), self.constant(stride))
            rank = self._builder.add(rank, scaled)
        return self._builder.and_(rank, self.constant(WARP_SIZE - 1))

    def read(self, attribute: str) -> ir.Value:
        head, _, tail = attribute.partition(".")
        if head == "blockDim":
            return self.constant(self._block[_AXES.index(tail)])
        if head == "warpsize":
            return self.constant(WARP_SIZE)
        if head == "laneid":
            return self.laneid()
        if head in ("grid", "turn") and tail in tuple(_AXES):
            compute = self.grid if head == "grid" else self.turn
            return compute(_AXES.index(tail))
        if head in ("grid", "gridsize"):
            compute = self.grid if head == "grid" else self.gridsize
            values = [compute(axis) for axis in range(int(tail))]
            return values[0] if tail == "1" else cgutils.pack_array(self._builder, values)
        return self.field(attribute)


@lower_getattr_generic(SimtContextType)
def _lower_attribute(
    context: Any, builder: ir.IRBuilder, typ: SimtContextType, value: ir.Value, attribute: str
) -> ir.Value:
    return _Reader(builder, typ.block, value).read(attribute)
