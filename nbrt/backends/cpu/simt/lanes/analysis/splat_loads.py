"""Splats of elements of a loaded vector, as splats of loaded elements.

Processors load an element into all elements of a register as fast as they load a vector, but have
fewer units for permutations of registers.
"""

from __future__ import annotations

from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Instruction, Operand
from nbrt.backends.cpu.simt.llvm.parse import split_list
from nbrt.backends.cpu.simt.llvm.types import size_of

__all__ = ["with_splat_loads"]


def with_splat_loads(block: BasicBlock) -> BasicBlock:
    """Return a block whose splats of elements of vectors load these elements.

    The block writes no memory, so that a second load gives the same element.
    """
    loads = {
        item.name: item
        for item in block.instructions
        if item.opcode == "load" and item.type.startswith("<") and not item.detail
    }
    items: list[Instruction] = []
    for item in block.instructions:
        lane = _splat_lane(item)
        vector = loads.get(item.operands[0].text) if lane is not None else None
        if vector is None or lane is None:
            items.append(item)
        else:
            items += _loaded_splat(item, vector, lane)
    return BasicBlock(block.label, items)


def _splat_lane(item: Instruction) -> int | None:
    """Return the element that a shuffle copies to all elements of its result; None if none."""
    if item.opcode != "shufflevector":
        return None
    mask = item.operands[2].text
    if mask == "zeroinitializer":
        return 0
    if not mask.startswith("<"):
        return None
    lanes = {part.rpartition(" ")[2] for part in split_list(mask[1:-1])}
    text = lanes.pop()
    count = int(item.operands[0].type[1:].partition(" ")[0])
    return int(text) if not lanes and text.isdigit() and int(text) < count else None


def _loaded_splat(item: Instruction, load: Instruction, lane: int) -> list[Instruction]:
    """Return the instructions that load an element, and copy it to all elements."""
    element = load.type[1:-1].split(" x ", 1)[1]
    stem = item.name[1:].strip('"')
    at, part, first = (f'%"{stem}.{name}"' for name in ("at", "element", "first"))
    pointer, result = load.operands[0], item.type
    address = Operand("ptr", at)
    index = Operand("i64", str(lane))
    zeros = Operand(f"<{result[1:].partition(' ')[0]} x i32>", "zeroinitializer")
    poison = Operand(result, "poison")
    align = min(load.align or 1, size_of(element))
    return [
        Instruction(
            *(at, "getelementptr", "ptr", [pointer, index]),
            detail=element,
            text=f"getelementptr {element}, ptr {pointer.text}, i64 {lane}",
        ),
        Instruction(
            *(part, "load", element, [address]),
            align=align,
            text=f"load {element}, ptr {at}, align {align}",
        ),
        Instruction(
            *(first, "insertelement", result, [poison, Operand(element, part)]),
            detail="0",
            text=f"insertelement {result} poison, {element} {part}, i64 0",
        ),
        Instruction(
            *(item.name, "shufflevector", result, [Operand(result, first), poison, zeros]),
            text=f"shufflevector {result} {first}, {result} poison, {zeros.type} zeroinitializer",
        ),
    ]
