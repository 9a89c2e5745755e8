"""Divisions of lanes by one number, as multiplications by its reciprocal.

A division of a vector takes several times as long as a product. With the flag ``arcp``, which a
kernel has with ``fastmath=True`` only, ``x / d`` may be ``x * (1 / d)``. If all lanes have the same
``d``, its reciprocal is one scalar division. It follows the definition of ``d``, which dominates
all its uses, so it may move out of loops and in front of barriers, and a region keeps it instead of
``d``. Floating-point division has no traps and no other effects, so it may run where the original
division does not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING
from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Function

__all__ = ["multiply_by_reciprocals"]

_TYPES = ("float", "double")


def multiply_by_reciprocals(function: Function, analyse: Callable[[], Divergence]) -> bool:
    """Replace divisions of lanes by a value that is the same in all of them, where flags allow it.

    Parameters
    ----------
    function : Function
        One thread; it is changed.
    analyse : callable
        Returns the divergence of the thread; called only if there is such a division.

    Returns
    -------
    bool
        Whether there was one to replace.
    """
    divisions = [(b, i) for b, i in function.instructions() if _allows_reciprocal(i)]
    if not divisions:
        return False
    divergence = analyse()
    home = {i.name: block for block, i in function.instructions() if i.name}
    known: dict[tuple[str, str], Operand] = {}
    for block, item in divisions:
        divisor = item.operands[1]
        if divergence[Operand(item.type, item.name)] is not VARYING or divergence[divisor] != 0:
            continue
        key = divisor.text, item.flags
        if key not in known:
            known[key] = _add_reciprocal(function, home.get(divisor.text), item, len(known))
        _replace(block, item, known[key])
    return bool(known)


def _allows_reciprocal(item: Instruction) -> bool:
    flags = item.flags.split()
    return (
        item.opcode == "fdiv"
        and item.type in _TYPES
        and item.operands[1].is_local
        and ("arcp" in flags or "fast" in flags)
    )


def _add_reciprocal(
    function: Function, home: BasicBlock | None, item: Instruction, number: int
) -> Operand:
    """Add the reciprocal of a divisor behind its definition; arguments have theirs at the entry."""
    divisor, name = item.operands[1], f"%nbrt.reciprocal.{number}"
    text = f"fdiv {item.flags} {item.type} 1.000000e+00, {divisor.text}"
    operands = [Operand(item.type, "1.000000e+00"), divisor]
    reciprocal = Instruction(name, "fdiv", item.type, operands, flags=item.flags, text=text)
    block = function.blocks[function.entry] if home is None else home
    at = len(block.phis)
    for position, other in enumerate(block.instructions):
        if other.name == divisor.text and other.opcode != "phi":
            at = position + 1
    block.instructions.insert(at, reciprocal)
    return Operand(item.type, name)


def _replace(block: BasicBlock, item: Instruction, reciprocal: Operand) -> None:
    dividend = item.operands[0]
    text = f"fmul {item.flags} {item.type} {dividend.text}, {reciprocal.text}"
    product = replace(item, opcode="fmul", operands=[dividend, reciprocal], text=text)
    block.instructions[block.instructions.index(item)] = product
