"""Results of driver functions: tuples that begin with an error code."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DriverCallError", "with_error_codes"]


class DriverCallError(Exception):
    """Ends a driver function with an error code.

    Parameters
    ----------
    code : str
        The name of the code without ``CUDA_ERROR_``.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = f"CUDA_ERROR_{code}"


def with_error_codes(function: Callable[..., Any], codes: Any) -> Callable[..., Any]:
    """Return a function that returns ``(error code, *results)``, as in ``cuda.bindings.driver``.

    Parameters
    ----------
    function : callable
        Returns None, one result or a tuple; raises `DriverCallError`. What work on a stream raised
        comes out as it is.
    codes : enum
        ``CUresult``.
    """
    success = codes.CUDA_SUCCESS

    @functools.wraps(function)
    def call(*args: Any) -> tuple[Any, ...]:
        try:
            result = function(*args)
        except DriverCallError as error:
            return (getattr(codes, error.code),)
        except OutOfMemoryError:
            return (codes.CUDA_ERROR_OUT_OF_MEMORY,)
        if result is None:
            return (success,)
        return (success, *result) if isinstance(result, tuple) else (success, result)

    return call
