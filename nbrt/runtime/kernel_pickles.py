"""Pickles of kernels: by name as functions are, else by value with Numba's pickler.

Numba's pickler is cloudpickle: functions of importable modules go by name; those of ``__main__``,
closures and functions made by ``exec`` with their code and the present values of their globals and
closure variables.
"""

from __future__ import annotations

import inspect
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nbrt.backends.by_value import pickled, unpickled
from nbrt.errors import ArgumentTypeError
from nbrt.runtime.kernel_cost import cost_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["rebuilt", "reduced"]

_MAX_KEPT = 64
"""Unpickled kernels that are kept: tasks that send the same kernel compile it once a process."""

_MAINS = ("__main__", "__mp_main__")
"""Modules that are others in another process."""


def reduced(kernel: Any) -> str | tuple[Any, ...]:
    """Return the reduction of a kernel, as of ``__reduce__``.

    Raises
    ------
    ArgumentTypeError
        If the kernel goes by value, and a value that it captures cannot be pickled.
    """
    name: str = kernel.__qualname__
    found = _found_by_name(kernel)
    if found is kernel:
        return name
    if isinstance(found, type(kernel)) and found.function is kernel.function:
        return _with_check, (found, kernel.check)
    function = kernel.function
    contents = type(kernel), function, kernel.check, cost_function(function)
    try:
        return rebuilt, (pickled(contents),)
    except Exception as error:
        raise _error(kernel, error) from error


@lru_cache(maxsize=_MAX_KEPT)
def rebuilt(payload: bytes) -> Any:
    """Return the kernel that was pickled by value; the same one each time for the same bytes."""
    kind, function, check, cost = unpickled(payload)
    return kind(function, check, cost)


def _with_check(kernel: Any, check: Any) -> Any:
    return kernel._with(check)


def _found_by_name(kernel: Any) -> object:
    """Return the object that another process would find under the name of a kernel; or None."""
    module = sys.modules.get(kernel.__module__ or "")
    if module is None or kernel.__module__ in _MAINS or getattr(module, "__spec__", None) is None:
        return None
    found: object = module
    for part in kernel.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def _error(kernel: Any, error: Exception) -> ArgumentTypeError:
    """Return the error about the first captured value that cannot be pickled."""
    name = kernel.__qualname__
    for captured, value in _captured(kernel.py_func):
        try:
            pickled(value)
        except Exception as cause:  # noqa: BLE001  # a user's object may raise anything
            return ArgumentTypeError(
                f"expected values that can be pickled in kernel {name}, got {captured} of type "
                f"{type(value).__name__}: {cause}; pass the value as an argument, or define the "
                f"kernel in a module that the other process imports"
            )
    return ArgumentTypeError(
        f"expected a kernel that can be pickled, got {name}: {error}; define the kernel in a "
        f"module that the other process imports"
    )


def _captured(function: Callable[..., object]) -> list[tuple[str, object]]:
    """Return the globals and closure variables of a function, with their names."""
    variables = inspect.getclosurevars(function)
    return [
        *((f"the closure variable {name}", value) for name, value in variables.nonlocals.items()),
        *((f"the global {name}", value) for name, value in variables.globals.items()),
    ]
