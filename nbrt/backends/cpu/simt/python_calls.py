"""Stage 2b, Python's and NumPy's functions: ``max``, ``math.floor`` ... as CUDA means them.

It comes after the stages that look for guards and positions, which know these functions by what
they are in Python.
"""

from __future__ import annotations

from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from numba.core import ir
from numba.core.ir_utils import build_definitions, get_definition, guard

from nbrt.backends.cpu.simt.builtins.python import PYTHON
from nbrt.backends.cpu.simt.builtins.reductions import REDUCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["adapt_python_calls"]

_REPLACEMENTS = PYTHON | REDUCTIONS
_KINDS: tuple[type[Any], ...] = tuple({BuiltinFunctionType, *map(type, REDUCTIONS)})


def adapt_python_calls(func_ir: Any) -> None:
    """Put the CUDA target's meaning in the place of Python's functions where the two differ.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The function, rewritten in place.
    """
    for block in func_ir.blocks.values():
        for statement in block.find_insts(ir.Assign):
            replacement = _replacement(func_ir, statement.value)
            if replacement is not None:
                statement.value = ir.Global(replacement.__name__, replacement, statement.loc)
    func_ir._definitions = build_definitions(func_ir.blocks)


def _replacement(func_ir: Any, value: Any) -> Callable[..., Any] | None:
    found = guard(_known_object, func_ir, value)
    return _REPLACEMENTS.get(found) if isinstance(found, _KINDS) else None


def _known_object(func_ir: Any, value: Any) -> Any:
    """Give the object that a name stands for; raises Numba's GuardException if it is not known."""
    if isinstance(value, ir.Global | ir.FreeVar):
        return value.value
    if isinstance(value, ir.Expr) and value.op == "getattr":
        owner = _known_object(func_ir, get_definition(func_ir, value.value))
        return getattr(owner, value.attr, None) if isinstance(owner, ModuleType) else None
    return None
