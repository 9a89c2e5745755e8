"""Indices that count from the end of an array if they are negative, and the addresses from them.

Numba computes ``i + n if i < 0 else i`` for each index that it does not know to be positive. The
result of a strided ``i`` has no stride, as the sign may change between two lanes. It rarely does:
if no lane has a negative index, the choice is the same in all lanes, and the address is strided. A
value with an alternative therefore comes with a condition, which is tested once for all lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import address_stride
from nbrt.backends.cpu.simt.lanes.vectors.writer import Element, LaneWriter, Linear, Value
from nbrt.backends.cpu.simt.llvm.types import is_integer

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.vectors.writer import Mask
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["element_address", "linear_address", "linear_choice", "linear_sum"]

_STRIDED = ("scalar", "step")


def linear_choice(
    writer: LaneWriter, item: Instruction, operands: list[Value], mask: Mask
) -> Linear | None:
    """Return the alternative of a ``select``: its last operand, if all active lanes select it."""
    condition, yes, other = operands
    if not is_integer(item.type) or other.kind not in _STRIDED:
        return None
    if condition.kind == "vector" and yes.kind == other.kind == "scalar":
        # Other lanes may hold poison, which a logical operation would keep.
        chosen = writer.blend("i1", mask, condition.text, "zeroinitializer")
        bits = writer.bits(Value("i1", "vector", chosen))
        return Linear(writer.op(f"icmp eq i{writer.width} {bits}, 0"), other)
    if condition.kind == "below":  # true in the lanes below a number
        return Linear(writer.op(f"icmp eq i64 {condition.text}, 0"), other)
    if condition.kind == "from":
        return Linear(writer.op(f"icmp eq i64 {condition.text}, {writer.width}"), other)
    return None


def linear_sum(writer: LaneWriter, item: Instruction, operands: list[Value]) -> Linear | None:
    """Return the alternative of an ``add`` or ``sub`` of values of which one has one."""
    known = _alternatives(writer, operands)
    if known is None or not is_integer(item.type):
        return None
    condition, (left, right) = known
    step = left.step + right.step if item.opcode == "add" else left.step - right.step
    text = writer.op(f"{item.opcode} {item.type} {left.text}, {right.text}")
    return Linear(condition, Value(item.type, "step" if step else "scalar", text, step))


def linear_address(writer: LaneWriter, item: Instruction, operands: list[Value]) -> Linear | None:
    """Return the alternative of an address of which an operand has one."""
    known = _alternatives(writer, operands)
    if known is None:
        return None
    condition, values = known
    step = address_stride(item, [value.step for value in values])
    if step is None:
        return None
    indices = [f"{o.type} {v.text}" for o, v in zip(item.operands, values, strict=True)]
    text = writer.op(f"getelementptr {item.detail}, {', '.join(indices)}")
    return Linear(condition, Value("ptr", "step" if step else "scalar", text, step))


def element_address(item: Instruction, operands: list[Value]) -> Element | None:
    """Return an address as that of an element of an array."""
    if len(operands) != 2 or operands[1].type != "i64" or operands[1].kind != "vector":
        return None
    base, index = operands
    extension, index = index.extended or ("", index)
    if index.kind != "vector":
        return None
    if base.kind == "scalar":
        return Element("true", base.text, item.detail, index, extension)
    if base.linear is not None and base.linear.value.kind == "scalar":
        condition, text = base.linear.condition, base.linear.value.text
        return Element(condition, text, item.detail, index, extension)
    return None


def _alternatives(writer: LaneWriter, operands: list[Value]) -> tuple[str, list[Value]] | None:
    """Return strided forms of all operands, and the condition under which they hold."""
    conditions = dict.fromkeys(value.linear.condition for value in operands if value.linear)
    if not conditions or any(v.linear is None and v.kind not in _STRIDED for v in operands):
        return None
    condition, *others = conditions
    for other in others:
        condition = writer.op(f"and i1 {condition}, {other}")
    return condition, [value.linear.value if value.linear else value for value in operands]
