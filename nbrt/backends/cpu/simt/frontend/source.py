"""Extraction of the plain Python function of a kernel.

It accepts a function or a dispatcher (``py_func``), checks that it can be a kernel, and
copies it for the compiler: the same bytecode under a signature with the hidden argument in front.
Numba reads argument names from the signature and everything else from the bytecode, so the copy
needs no source text and no change of the bytecode.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.simt.thread_context import ARGUMENT
from nbrt.errors import ArgumentTypeError, CompileError, UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["describe", "kernel_function", "with_context", "without_context"]


def describe(function: types.FunctionType) -> str:
    """Return the name and the location of a function: ``name (file:line)``."""
    code = function.__code__
    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


def kernel_function(candidate: object) -> types.FunctionType:
    """Return the plain function of a kernel, after checking that it can be one.

    Parameters
    ----------
    candidate : function or dispatcher
        A function in the dialect, or the result of ``@cuda.jit``.

    Returns
    -------
    function
        The Python function to compile.

    Raises
    ------
    ArgumentTypeError
        If it is not a function, or is a method bound to an object.
    CompileError
        If it is a function of a kind that a kernel cannot be.
    """
    function = getattr(candidate, "py_func", candidate)
    if isinstance(function, types.MethodType):
        raise ArgumentTypeError(
            f"a kernel must be a plain function, got the bound method {function.__qualname__}: its "
            "object cannot go to the device; use a module-level function or a @staticmethod and "
            "pass what it needs as arguments"
        )
    if not isinstance(function, types.FunctionType):
        raise ArgumentTypeError(
            f"a kernel must be a Python function or a @cuda.jit dispatcher, got {candidate!r} of "
            f"type {type(candidate).__name__}"
        )
    for test, kind in (
        (inspect.iscoroutinefunction, "a coroutine function (async def)"),
        (inspect.isasyncgenfunction, "an asynchronous generator"),
        (inspect.isgeneratorfunction, "a generator (it has a yield)"),
    ):
        if test(function):
            raise UnsupportedConstructError(
                f"{describe(function)} is {kind}; a kernel must be a plain function that returns "
                "nothing and writes its results into array arguments"
            )
    for parameter in inspect.signature(function, follow_wrapped=False).parameters.values():
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            raise CompileError(
                f"{describe(function)}: parameter {parameter.name!r} can only be given by keyword, "
                "and kernels are launched with positional arguments; make it positional"
            )
    return function


def with_context(function: types.FunctionType) -> types.FunctionType:
    """Copy a function with the hidden argument in front of its signature."""
    return _copy(function, hidden=True)


def without_context(function: types.FunctionType) -> types.FunctionType:
    """Copy a function with its signature, without ``__wrapped__`` and other attributes."""
    return _copy(function, hidden=False)


def _copy(function: types.FunctionType, *, hidden: bool) -> types.FunctionType:
    signature = inspect.signature(function, follow_wrapped=False)
    parameters = list(signature.parameters.values())
    if hidden:
        kind = inspect.Parameter.POSITIONAL_ONLY
        context = inspect.Parameter(ARGUMENT, kind)
        parameters = [context, *parameters]
    copy: Callable[..., Any] = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    copy.__doc__ = None
    # Python ignores it in calls; inspect.signature, and so Numba, reads it.
    setattr(copy, "__signature__", inspect.Signature(parameters))  # noqa: B010
    assert isinstance(copy, types.FunctionType)
    return copy
