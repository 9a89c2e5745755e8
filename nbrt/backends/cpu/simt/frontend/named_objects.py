"""Python objects that names in Numba IR stand for."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from numba.core import ir
from numba.core.ir_utils import get_definition, guard

__all__ = ["named_object"]


def named_object(func_ir: Any, value: Any) -> Any:
    """Return the object that a value of the IR names, such as ``np.sqrt``.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The function.
    value : object
        The right-hand side of an assignment.

    Returns
    -------
    object
        None if the value is not a name, or the attribute of something other than a module.
    """
    return guard(_found, func_ir, value)


def _found(func_ir: Any, value: Any) -> Any:
    """Raise Numba's GuardException where a variable has more than one definition."""
    if isinstance(value, ir.Global | ir.FreeVar):
        return value.value
    if isinstance(value, ir.Expr) and value.op == "getattr":
        owner = _found(func_ir, get_definition(func_ir, value.value))
        return getattr(owner, value.attr, None) if isinstance(owner, ModuleType) else None
    return None
