"""Whether a kernel may use barriers, shared memory or warp operations, told before compiling it."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from nbrt.backends.captures import is_device_function
from nbrt.backends.cpu.simt.builtins import MARKER_NAMES, marker_kind
from nbrt.backends.cpu.simt.frontend.dialect import dialect_name
from nbrt.backends.cpu.simt.frontend.overloads import is_extended

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mentions_markers"]


def mentions_markers(function: types.FunctionType) -> bool:
    """Tell whether a function, or one that it may call, mentions a name that becomes a marker.

    By names alone, so it may be wrong in saying yes (the compiled code then tells), not in saying
    no.

    Parameters
    ----------
    function : function
        The kernel.
    """
    pending, seen = [function], set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        names = {name for code in _codes(current.__code__) for name in _names(code)}
        if names & MARKER_NAMES:
            return True
        for value in _values(current, names):
            kind = dialect_name(value)
            if kind is not None and marker_kind(kind) is not None:
                return True
            if is_extended(value):
                return True  # its implementations are not known before it is typed
            if is_device_function(value):
                pending.append(getattr(value, "py_func"))  # noqa: B009 - no type has it
    return False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType) -> tuple[str, ...]:
    return (*code.co_names, *code.co_freevars)


def _values(function: types.FunctionType, names: set[str]) -> Iterator[object]:
    """Give what the names of a function may stand for, attributes of modules included."""
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for value in found:
        yield value
        if isinstance(value, types.ModuleType):
            yield from (getattr(value, name) for name in names if hasattr(value, name))
