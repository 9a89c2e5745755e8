"""Compilation for argument types without a launch, as explicit signatures ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core import errors
from numba.core.compiler_lock import global_compiler_lock

from nbrt.backends.captures import Captures, is_device_function
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.cpu.simt.runtime.arguments import check_count
from nbrt.backends.cpu.simt.runtime.diagnostics import of_signal_handler, translated
from nbrt.backends.cpu.simt.runtime.dispatcher import lost_exceptions_raised
from nbrt.backends.cpu.simt.thread_context import SimtContextType
from nbrt.backends.plain_messages import plain_messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

    from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

__all__ = ["check_kernel", "device_result"]

_BLOCK = (1, 1, 1)
"""Type inference does not depend on the block."""


def check_kernel(function: FunctionType, body: KernelBody, types: tuple[Any, ...]) -> None:
    """Compile the code of one thread of a kernel for argument types.

    Parameters
    ----------
    function : function
        The kernel.
    body : KernelBody
        Its code.
    types : tuple of numba types
        The types of its arguments.

    Raises
    ------
    CompileError
        If it does not compile for them.
    """
    _translated(function, lambda: body.results((SimtContextType(_BLOCK), *types)), types)


def device_result(function: object, types: tuple[Any, ...], result: Any = None) -> Any:
    """Compile a device function for argument types; return the type of its result.

    Parameters
    ----------
    function : callable
        The device function, or a dispatcher of it.
    types : tuple of numba types
        The types of its arguments.
    result : numba type, optional
        The type to which it converts its result.

    Raises
    ------
    CompileError
        If it does not compile for them.
    """
    from nbrt.backends.cpu.simt.frontend.pipeline import DeviceCompiler, ThreadDispatcher
    from nbrt.backends.cpu.simt.frontend.source import with_context

    own: dict[str, Any] = {"itself": function} if is_device_function(function) else {}
    captures = Captures(kernel_function(function), **own)
    dispatcher = ThreadDispatcher(with_context(captures.frozen), DeviceCompiler, captures)
    arguments = (SimtContextType(_BLOCK), *types)

    return _translated(
        captures.frozen,
        lambda: dispatcher.result(arguments, result).signature.return_type,
        types,
    )


def _translated(function: FunctionType, run: Callable[[], Any], types: tuple[Any, ...]) -> Any:
    """Run the compiler; raise its errors as those of nbrt."""
    check_count(function, types)
    with global_compiler_lock, lost_exceptions_raised(), plain_messages(errors):
        try:
            return run()
        except Exception as error:
            interrupt = of_signal_handler(error)
            if interrupt is error or isinstance(error, Warning):  # with ``-W error``
                raise
            failed = interrupt or translated(function, error, types)
            raise failed from failed.__cause__
