"""Objects of Numba and numba-cuda that only the host, or only a GPU, can call."""

from __future__ import annotations

from typing import Any

from numba.core import errors
from numba.core.registry import CPUDispatcher

from nbrt.errors import UnsupportedConstructError

__all__ = ["refuse_host_object"]

_UFUNCS = ("numba.cuda.vectorizers", "numba.cuda.deviceufunc")
_EXTERNAL = ("numba.cuda.compiler", "ExternFunction")


def refuse_host_object(value: Any, name: str, loc: Any) -> None:
    """Raise if a kernel names an object that no kernel, or none on a CPU device, can call.

    Parameters
    ----------
    value : object
        The value of a name.
    name : str
        The name.
    loc : numba.core.ir.Loc
        Its place.

    Raises
    ------
    numba.core.errors.TypingError
        For a ufunc of the CUDA target, and for a function that was compiled for the host with
        explicit signatures: numba-cuda raises the same.
    UnsupportedConstructError
        For a function in CUDA C++ or PTX.
    """
    kind = type(value)
    if kind is CPUDispatcher and not value._can_compile:
        raise errors.TypingError(
            f"Untyped global name {name!r}: using cpu function on device but its compilation is "
            "disabled by explicit signatures; leave them out, or decorate the function with "
            "cuda.jit(device=True)",
            loc=loc,
        )
    if kind.__module__ in _UFUNCS:
        raise errors.TypingError(
            f"Untyped global name {name!r}: a ufunc of the target cuda is called by the host only; "
            "decorate the function that it was made of with cuda.jit(device=True) as well, and "
            "call that",
            loc=loc,
        )
    if (kind.__module__, kind.__name__) == _EXTERNAL:
        raise UnsupportedConstructError(
            f"{loc.filename}:{loc.line}: {name} is a function in CUDA C++ or PTX, declared with "
            "cuda.declare_device, which only a GPU can run; write it in Python, or run the kernel "
            "on a CUDA device"
        )
