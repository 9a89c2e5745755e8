"""Find the registers whose NaN payload can be seen.

On a GPU a NaN that single-precision arithmetic produces is 0x7fffffff. The processor gives other
payloads, so results are made canonical, but only where the register is used by anything other than
such arithmetic: between those the payload makes no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.syntax import Address, Instruction, Name, Pair, Parentheses, Vector

if TYPE_CHECKING:
    from simulated_cuda.ptx.syntax import Function, Operand

__all__ = ["observed_names"]

_BLIND = frozenset(
    {"add", "sub", "mul", "fma", "mad", "div", "sqrt", "rcp", "rsqrt", "min", "max", "set", "setp"}
    | {"ex2", "lg2", "sin", "cos", "tanh"}
)
"""Instructions on .f32 whose results do not depend on the payloads of their operands."""


def observed_names(function: Function) -> set[str]:
    """Return the names of registers of a function whose payloads can be seen."""
    found: set[str] = set()
    for item in function.body or ():
        if not isinstance(item, Instruction):
            continue
        if item.opcode in _BLIND and item.modifiers[-1:] == ("f32",):
            continue
        for operand in item.operands:
            _add_names(operand, found)
    return found


def _add_names(operand: Operand, found: set[str]) -> None:
    if isinstance(operand, Name):
        found.add(operand.text)
    elif isinstance(operand, Vector | Parentheses):
        for element in operand.elements:
            _add_names(element, found)
    elif isinstance(operand, Pair):
        _add_names(operand.first, found)
        _add_names(operand.second, found)
    elif isinstance(operand, Address) and operand.base is not None:
        found.add(operand.base.text)
