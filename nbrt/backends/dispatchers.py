"""New dispatchers of ``jit`` from given ones, without what those have compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core.typing.templates import signature

from nbrt.backends.captures import is_device_function
from nbrt.backends.declared_signatures import declared_signatures

if TYPE_CHECKING:
    import types

__all__ = ["new_dispatcher", "with_option"]


def new_dispatcher(
    kind: Any,
    function: types.FunctionType,
    options: dict[str, Any],
    declared: list[tuple[tuple[Any, ...], Any]],
) -> Any:
    """Return a dispatcher without compiled versions, but with its explicit signatures.

    `kind` is its class; None for that of numba-cuda.
    """
    if kind is None:
        from numba.cuda.dispatcher import CUDADispatcher

        kind = CUDADispatcher
    dispatcher = kind(function, targetoptions=dict(options))
    if declared:
        dispatcher.declared_signatures = [signature(result, *args) for args, result in declared]
        dispatcher._can_compile = False
    return dispatcher


def with_option(function: Any, name: str, value: object) -> Any:
    """Return a ``cuda.jit`` dispatcher of a kernel with another value of a compiler option.

    Parameters
    ----------
    function : callable
        A Python function, or a dispatcher, which does not change.
    name : str
        Name of the option.
    value : object
        Its value.
    """
    if not is_device_function(function):
        from numba import cuda

        # Of the class of numba-cuda also in programs whose `cuda.jit` makes kernels for CPU devices
        # and does not report their exceptions.
        options = cuda.jit(**{name: value})(function).targetoptions
        return new_dispatcher(None, function, options, [])
    dispatcher: Any = function
    options = {**dispatcher.targetoptions, name: value}
    return new_dispatcher(
        type(dispatcher), dispatcher.py_func, options, declared_signatures(dispatcher)
    )
