"""``print`` of more values than CUDA prints: it prints their format instead, and Numba warns."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from numba.core import errors, types
from numba.core.imputils import Registry

from nbrt.backends.cpu.simt.target import simt_target

if TYPE_CHECKING:
    from llvmlite import ir

    from nbrt.backends.cpu.simt.builtins.registry import Values

__all__: list[str] = []

_MAX_VALUES = 32
_registry = Registry("nbrt.printing")


@_registry.lower(print, *[types.Any] * (_MAX_VALUES + 1), types.VarArg(types.Any))
def _print_format(context: Any, builder: ir.IRBuilder, sig: Any, _args: Values) -> ir.Value:
    warnings.warn(
        errors.NumbaWarning(
            f"CUDA print() cannot print more than {_MAX_VALUES} items. The raw format string will "
            "be emitted by the kernel instead."
        ),
        stacklevel=2,
    )
    api = context.get_python_api(builder)
    state = api.gil_ensure()
    # The text is itself a format: of the Python function that writes it.
    api.print_string(" ".join(map(_format, sig.args)).replace("%", "%%") + "\n")
    api.gil_release(state)
    return context.get_dummy_value()


def _format(typ: Any) -> str:
    """Return the conversion of C for a value as CUDA prints it."""
    if isinstance(typ, types.BaseTuple):
        members = ", ".join(map(_format, typ.types))
        return f"({members},)" if len(typ) == 1 else f"({members})"
    if isinstance(typ, types.Integer | types.IntegerLiteral):
        signed = getattr(typ, "literal_type", typ).signed
        return "%lld" if signed else "%llu"
    return "%f" if isinstance(typ, types.Number) else "%s"


simt_target.target_context.refresh()
simt_target.target_context.install_registry(_registry)
