"""Implementations of overloads, which kernels compile like device functions.

Numba compiles the implementation of an overload with the decorator of the target. The program's
own may name the dialect, so they pass through the passes of kernels; those of Numba do not.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from numba.core.imputils import user_function
from numba.core.typing.templates import make_concrete_template, signature
from numba.core.utils import pysignature

from nbrt.backends.cpu.simt.frontend.wait_points import mentions_thread
from nbrt.backends.cpu.simt.target import (
    argument_types_of_caller,
    extensions,
    of_program,
    simt_target,
)
from nbrt.backends.cpu.simt.thread_context import SimtContextType
from nbrt.backends.program_registrations import is_program_module
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

__all__ = ["ImplementationCalls", "compile_implementations_with", "overloads_read_thread"]


class ImplementationCalls:
    """Typing and code of the calls of an implementation, which do not show the hidden argument.

    A mixin for the dispatcher of the implementation without it. If the implementation reads the
    index of its thread, the code of a call passes on the argument of the caller.
    """

    indexed: Any = None
    """The dispatcher with the hidden argument; None if the implementation needs none."""

    py_func: FunctionType

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return what Numba needs to type a call."""
        hidden = self._hidden()
        if hidden is None:
            return super().get_call_template(args, kws)  # type: ignore[misc]
        folded = self.indexed._compiler.fold_argument_types((hidden, *args), kws)[1]
        self.indexed.compile(folded)
        found = self.indexed.overloads[tuple(folded)].signature
        shown = signature(found.return_type, *found.args[1:])
        name = self.py_func.__name__
        return (
            make_concrete_template(name, name, [shown]),
            pysignature(self.py_func),
            shown.args,
            {},
        )

    def get_overload(self, sig: Any) -> Any:
        """Return the key of the code of a call."""
        hidden = self._hidden()
        if hidden is None:
            return super().get_overload(sig)  # type: ignore[misc]
        return _key_of(self.indexed, (hidden, *sig))

    def _hidden(self) -> Any:
        """Return the type of the hidden argument of the caller; None if none is passed."""
        caller = argument_types_of_caller.get()
        is_passed = self.indexed is not None and caller
        return caller[0] if is_passed and isinstance(caller[0], SimtContextType) else None


class _Key:
    """Key of the code of a call in the context of the compiler."""


def _key_of(indexed: Any, arguments: tuple[Any, ...]) -> _Key:
    """Return the key of the call of a compiled implementation with the hidden argument."""
    keys = indexed.__dict__.setdefault("_keys_of_calls", {})
    if arguments not in keys:
        result = indexed.overloads[arguments]
        call = user_function(result.fndesc, [result.library])

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            passed = (_hidden_argument(context, builder, arguments[0]), *args)
            return call(context, builder, signature(sig.return_type, *arguments), passed)

        code.signature, code.libs = arguments[1:], (result.library,)  # type: ignore[attr-defined]
        keys[arguments] = _Key()
        simt_target.target_context._defns[keys[arguments]].append(code, arguments[1:])
    key: _Key = keys[arguments]
    return key


def _hidden_argument(context: Any, builder: Any, kind: Any) -> Any:
    """Return the hidden argument of the function whose code is emitted."""
    function = context.fndesc
    if tuple(function.argtypes[:1]) != (kind,):
        raise UnsupportedConstructError(
            f"an overload that reads the index of its thread is called in {function.qualname}, "
            "which belongs to a library and has no index; pass the index as an argument"
        )
    arguments = context.call_conv.get_arguments(builder.function)
    packer = context.get_arg_packer(function.argtypes)
    return packer.from_arguments(builder, arguments)[0]


def overloads_read_thread() -> bool:
    """Return whether an overload of the program names the index of its thread."""
    return any(map(_names_thread, extensions.overloads))


_names_thread = functools.cache(mentions_thread)


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
