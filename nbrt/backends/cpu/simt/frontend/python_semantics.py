"""Stage 2b, Python's and NumPy's functions: ``max``, ``math.floor`` ... as CUDA means them.

It comes after the stages that look for guards and positions, which know these functions by what
they are in Python.
"""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

from numba.core import ir
from numba.core.ir_utils import build_definitions

from nbrt.backends.cpu.simt.builtins.python import PYTHON
from nbrt.backends.cpu.simt.builtins.reductions import REDUCTIONS
from nbrt.backends.cpu.simt.builtins.ufuncs import UFUNCS
from nbrt.backends.cpu.simt.frontend.named_objects import named_object

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REPLACEMENTS", "adapt_python_calls"]

REPLACEMENTS = PYTHON | REDUCTIONS | UFUNCS
_KINDS: tuple[type[Any], ...] = tuple(
    {BuiltinFunctionType, *map(type, REDUCTIONS), *map(type, UFUNCS)}
)


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
    found = named_object(func_ir, value)
    return REPLACEMENTS.get(found) if isinstance(found, _KINDS) else None
