"""Translation of Numba's errors: file and line in the kernel, and the reason."""

from __future__ import annotations

import re
import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import numba

from nbrt.backends.cpu.simt.frontend.source import describe
from nbrt.backends.cpu.simt.runtime.argument_faults import fault_of_argument
from nbrt.errors import CompileError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FunctionType
    from typing import Any

__all__ = ["of_signal_handler", "translated"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r" at (\S.*) \((\d+)\)\s*$", re.MULTILINE)
_SPECIFIC = re.compile(r"raised a specific error:\s*\n\s*(?:(\w+): )?(.+)")
_SIGNATURE = re.compile(r"^\s*>>> (.+)$", re.MULTILINE)
_NOISE = re.compile(r"^\s*(Failed in \w+ mode pipeline.*|- Resolution failure for .*|)$")
_WITHOUT_CONSTANTS = ("RequireLiteralValue",)

_NOT_THE_KERNELS = (str(Path(numba.__file__).parent), str(Path(__file__).parents[1]), "<")

_ADVICE = (
    (
        ("Only accept returning of array",),
        "Only accept returning of array passed into the function as argument: a device function "
        "that returns a slice or its cuda.local.array needs inline='always'; or pass it the array "
        "to fill. Kernels allocate no other arrays: use cuda.local.array, or set "
        "NUMBA_CUDA_ENABLE_NRT=1",
    ),
    (
        ("NRT required",),
        "the kernel makes a new array, list, string or the like, and a kernel cannot allocate "
        "memory; use cuda.local.array, or pass an array in, or set NUMBA_CUDA_ENABLE_NRT=1",
    ),
    (
        ("float128\nDuring", "complex256\nDuring"),
        "expected a data type that kernels have, got {reason}; use one such as np.float64",
    ),
    (
        ("<class 'function'>",),
        "{reason}; to call a function from a kernel, decorate it with @cuda.jit(device=True)",
    ),
    (
        ("'breakpoint'",),
        "{reason}; breakpoint() stops in kernels that run in plain Python: set NBRT_INTERPRET=1 or "
        "launch inside `with nbrt.interpret():`",
    ),
)


def translated(
    function: FunctionType, error: Exception, arguments: Sequence[Any] = ()
) -> NbrtError:
    """Return the error of nbrt for an error of the compiler.

    The traceback omits the compiler's frames.

    Parameters
    ----------
    function : function
        The kernel.
    error : Exception
        The exception of the compiler.
    arguments : sequence of numba types
        The types of the kernel's arguments.

    Returns
    -------
    NbrtError
        The error itself if it is nbrt's; else a `CompileError` with the kernel's file and line and
        the reason, whose cause is Numba's own error. Where the reason is an argument, the message
        names it.
    """
    if isinstance(error, NbrtError):
        return error.with_traceback(None)
    failed = CompileError(_message(function, error, arguments))
    failed.__cause__ = error.with_traceback(None)
    return failed


def of_signal_handler(error: BaseException) -> BaseException | None:
    """Return the exception of a signal handler that an error of the compiler is or wraps, if any.

    Parameters
    ----------
    error : BaseException
        The error, as caught around the compiler.
    """
    handlers = map(signal.getsignal, signal.valid_signals())
    functions = (getattr(handler, "__func__", handler) for handler in handlers)
    codes = {getattr(function, "__code__", None) for function in functions} - {None}
    current: BaseException | None = error
    while current is not None:
        if any(frame.f_code in codes for frame, _ in traceback.walk_tb(current.__traceback__)):
            return current
        current = current.__cause__ or current.__context__
    return None


def _message(function: FunctionType, error: Exception, arguments: Sequence[Any]) -> str:
    text = _ANSI.sub("", str(error))
    place = _kernels_place(text) or _place_of(error)
    where = f"{place}, in kernel {function.__qualname__}" if place else describe(function)
    reason = _reason(text) or type(error).__name__
    places = [(file, int(line)) for file, line in _PLACE.findall(text)]
    loc = getattr(error, "loc", None)
    if loc is not None:
        places.append((loc.filename, loc.line))
    fault = fault_of_argument(function, arguments, places, reason) if arguments else None
    return f"{where}: {reason}" if fault is None else f"{where}: {fault} ({reason})"


def _kernels_place(text: str) -> str | None:
    """Return the innermost location in the user's code; Numba lists the innermost first."""
    for file, line in _PLACE.findall(text):
        if not file.startswith(_NOT_THE_KERNELS):
            return f"{file}:{line}"
    return None


def _place_of(error: Exception) -> str | None:
    loc = getattr(error, "loc", None)
    return f"{loc.filename}:{loc.line}" if loc is not None else None


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    reason = lines[0] if lines else ""
    signature = _SIGNATURE.search(text)
    if reason.startswith("No implementation") and signature is not None:
        reason = f"no version of {signature[1].strip()} exists for these types"
        specific = _SPECIFIC.findall(text)
        if specific:
            # Numba tries a call with constants, and again without: then each one is missing.
            specific = [each for each in specific if each[0] not in _WITHOUT_CONSTANTS] or specific
            lines = [line for _, line in specific]
            inner = [line for line in lines if not _NOISE.match(line)]
            reason = inner[-1] if inner else lines[-1]
            if not reason.startswith("argument "):
                reason = f"{signature[1].strip()}: {reason}"
    for marks, advice in _ADVICE:
        if any(mark in text for mark in marks):
            return advice.format(reason=reason)
    return reason
