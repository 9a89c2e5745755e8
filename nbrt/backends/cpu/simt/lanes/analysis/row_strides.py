"""Strides in the rows of a group: `Divergence` for groups of several rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING, Divergence, Stride
from nbrt.backends.cpu.simt.lanes.vectors.lane_sets import constant
from nbrt.backends.cpu.simt.llvm.types import is_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Function, Instruction

__all__ = ["RowStrides"]

_ORDERS = ("llvm.smin.", "llvm.smax.", "llvm.umin.", "llvm.umax.")
_SHIFTS = ("shl", "lshr", "ashr")
_OPCODES = frozenset(
    (
        *("add", "sub", "mul", "and", "or", "xor", *_SHIFTS, "icmp", "select"),
        *("zext", "sext", "trunc", "freeze", "getelementptr"),
    )
)
"""Operations that are never poison without flags: a row without threads may run them."""


class RowStrides(Divergence):
    """Strides within the rows of a group, for integers and pointers without loads and phis.

    Parameters
    ----------
    function : Function
        One thread.
    whole : Divergence
        The strides across all lanes of a group.
    parameters : mapping
        Strides of the thread indices in a row.
    lanes : int
        Threads of a row.
    """

    def __init__(
        self,
        function: Function,
        whole: Divergence,
        parameters: Mapping[str, Stride],
        lanes: int,
    ) -> None:
        self._whole = whole
        first = {name: lanes for name, stride in parameters.items() if stride == 1}
        super().__init__(function, parameters, first, lanes)

    def has_rows(self, name: str) -> bool:
        """Return whether a value has a scalar for each row."""
        stride = self.strides.get(name, VARYING)
        return stride is not VARYING and self._whole.strides.get(name, VARYING) is VARYING

    def _stride(self, block: BasicBlock, item: Instruction) -> Stride:
        whole = self._whole.strides.get(item.name, VARYING)
        if whole is not VARYING:
            return 0 if whole == 0 else VARYING
        if not (is_integer(item.type) or item.type == "ptr"):
            return VARYING
        if item.opcode == "call":
            return super()._stride(block, item) if item.detail.startswith(_ORDERS) else VARYING
        if item.opcode not in _OPCODES:
            return VARYING
        if item.opcode in _SHIFTS and constant(item.operands[1].text) is None:
            return VARYING
        return super()._stride(block, item)
