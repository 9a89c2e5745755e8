"""NumPy functions for which a kernel needs other code than Numba's.

Numba's code of some universal functions traps or is wrong. Its code of reductions allocates an
array, which a kernel cannot do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import lower_builtin, overload

from nbrt.backends import numpy_functions
from nbrt.backends.cpu.simt.builtins.registry import Values, call_numba, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llvmlite import ir

__all__ = ["REDUCTIONS", "UFUNCS"]


def _kind(sig: Any) -> str | None:
    """Return the kind of the replacement for a call, or None for Numba's code."""
    if not all(isinstance(kind, types.Number) for kind in sig.args):
        return None
    result = sig.return_type[0] if isinstance(sig.return_type, types.BaseTuple) else sig.return_type
    if isinstance(result, types.Float):
        return "real"
    if not all(isinstance(kind, types.Integer) for kind in sig.args):
        return None
    signed = {kind.signed for kind in sig.args}
    return {(True,): "signed", (False,): "unsigned"}.get(tuple(signed))


def _replaced(ufunc: Any, codes: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a stand-in for a universal function, with other code for some scalars."""
    function = stand_in(ufunc.__name__)

    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            return self.context.resolve_function_type(ufunc, args, kws)

    infer_global(function, types.Function(Template))

    @lower_builtin(function, types.VarArg(types.Any))
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        code = codes.get(_kind(sig) or "")
        if code is not None:
            return context.compile_internal(builder, code, sig, args)
        return call_numba(context, builder, ufunc, sig, args)

    return function


UFUNCS: dict[Any, Callable[..., Any]] = {
    ufunc: _replaced(ufunc, codes) for ufunc, codes in numpy_functions.UFUNCS.items()
}
"""Universal function -> its replacement in kernels."""


_NUMBERS = (types.Integer, types.Float, types.Boolean)


def _of_numbers(function: Any, implementation: Callable[[Any], Any]) -> Callable[..., Any]:
    replacement = stand_in(function.__name__)

    def implementing(a: Any) -> Callable[[Any], Any] | None:
        if isinstance(a, (*_NUMBERS, types.Complex)):
            return _OF_SCALAR.get(function)
        known = isinstance(a, types.Array) and isinstance(a.dtype, _NUMBERS)
        return implementation if known else None

    overload(replacement)(implementing)
    return replacement


def _same(a: Any) -> Any:
    return a


def _is_nonzero(a: Any) -> Any:
    return int(a != 0)


_OF_SCALAR: dict[Any, Callable[[Any], Any]] = {
    np.max: _same,
    np.amax: _same,
    np.min: _same,
    np.amin: _same,
    np.count_nonzero: _is_nonzero,
}

REDUCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    function: _of_numbers(function, code) for function, code in numpy_functions.REDUCTIONS.items()
}
"""Reduction of NumPy -> its replacement in kernels."""
