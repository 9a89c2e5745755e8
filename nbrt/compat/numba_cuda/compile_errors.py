"""`compile_error`: an error of nbrt's compiler as one of numba-cuda's classes."""

from __future__ import annotations

import functools
import re
from typing import Any

import numba.core.errors
from numba.cuda.core import errors

from nbrt.errors import CompileError, UnsupportedConstructError

__all__ = ["compile_error"]

_VOID = "CUDA kernel must have void return type."
_FALLBACK = "TypingError"


def compile_error(error: CompileError) -> Exception:
    """Return the error that a program for ``numba.cuda`` gets in place of one of nbrt's compiler.

    It is of the class of its cause, as numba-cuda and as Numba have it, and of nbrt's own.
    """
    # A part of the compiler, which programs do not import if all their kernels are on disk.
    from nbrt.backends.cpu.simt.frontend.resolve import RETURNS_VALUE

    cause = error.__cause__
    text = str(error)
    if isinstance(error, UnsupportedConstructError):
        # numba-cuda refuses some of these before it infers types, and some while it does.
        return _made(("UnsupportedError", _FALLBACK), type(error), text)
    name = type(cause).__name__ if hasattr(errors, type(cause).__name__) else _FALLBACK
    if cause is not None:
        text = f"{text}\n{name}: {cause}"
    elif RETURNS_VALUE in text:
        text = f"{_VOID} {text}"
    return _made((name,), type(error), _with_names_of_dialect(text))


def _made(names: tuple[str, ...], own: Any, text: str) -> Exception:
    error = _class(names, own)(text)
    error.plain_text = text  # Numba's classes add colours to what they are given
    made: Exception = error
    return made


@functools.cache
def _class(names: tuple[str, ...], own: Any) -> Any:
    """Return the class of errors that has the classes of these names and nbrt's class as bases."""
    bases = [getattr(module, name) for module in (errors, numba.core.errors) for name in names]

    def reduce(error: Any) -> tuple[Any, ...]:
        return _made, (names, own, error.plain_text)

    name = own.__name__ if issubclass(own, UnsupportedConstructError) else names[0]
    members = {"__module__": __name__, "__reduce__": reduce}
    return type(name, (*dict.fromkeys(bases), own), members)


def _with_names_of_dialect(text: str) -> str:
    """Replace the names of nbrt's implementations in a message by those in the program."""
    text = re.sub(r", site=(?:Literal\[int\]\(\d+\)|int64)", "", text)
    text = re.sub(r"<intrinsic _(shared|local)_array>", r"<function \1.array>", text)
    text = re.sub(r">>> _(?:shared|local)_array\(", ">>> array(", text)
    return re.sub(r"\b_(shared|local)_array\b", r"\1.array", text)
