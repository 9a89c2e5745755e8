"""Implementations of overloads, which kernels compile like device functions.

Numba compiles the implementation of an overload with the decorator of the target. The program's
own may name the dialect, so they pass through the passes of kernels; those of Numba do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.simt.target import of_program
from nbrt.backends.program_registrations import is_program_module

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compile_implementations_with"]


class _Implementation:
    """The implementation of an overload for certain types, as a device function."""

    def __init__(self, function: Any) -> None:
        self.py_func = function


def compile_implementations_with(compiler: Callable[[Any, bool], Any]) -> None:
    """Compile the program's implementations of overloads with a function.

    Parameters
    ----------
    compiler : callable
        Returns the dispatcher of an object with ``py_func``. The second argument is whether it is
        an implementation that numba-cuda may inline, which may return a view of an array.
    """

    def compiled(function: Any, options: dict[str, Any]) -> Any:
        if not is_program_module(function.__module__):
            return None
        return compiler(_Implementation(function), options.get("inline", "never") != "never")

    of_program.append(compiled)
