"""From Numba's errors to nbrt's: the kernel's own file and line, the reason, and no more."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from numba.core import errors

from nbrt.backends.cpu.simt.source import describe
from nbrt.errors import CompileError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

__all__ = ["translated_errors"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def translated_errors(function: FunctionType) -> Iterator[None]:
    """Turn what goes wrong while a kernel compiles into nbrt's errors.

    Raises
    ------
    CompileError
        With the kernel's file and line and the reason; Numba's own error is its cause.
    """
    try:
        yield
    except NbrtError:
        raise
    except (errors.NumbaError, NotImplementedError, TypeError, ValueError, KeyError) as error:
        raise CompileError(_message(function, error)) from error


def _message(function: FunctionType, error: BaseException) -> str:
    return f"{describe(function)}: {error}"
