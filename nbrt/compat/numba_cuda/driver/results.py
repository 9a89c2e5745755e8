"""Results of driver functions: tuples that begin with an error code, and the errors behind them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbrt.errors import (
    DeviceMismatchError,
    ForkedProcessError,
    KernelCheckError,
    NotSupportedError,
    OutOfMemoryError,
    StreamError,
    UnknownDeviceError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DriverCallError", "api_error", "stream_error_code", "with_error_codes"]

_CODES: dict[type[Exception], str] = {
    DeviceMismatchError: "INVALID_HANDLE",
    NotSupportedError: "NOT_SUPPORTED",
    OutOfMemoryError: "OUT_OF_MEMORY",
    UnknownDeviceError: "INVALID_DEVICE",
}
_ILLEGAL_ACCESSES = (IndexError, KernelCheckError)


class DriverCallError(Exception):
    """Ends a driver function with an error code.

    Parameters
    ----------
    code : str
        The name of the code without ``CUDA_ERROR_``.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def api_error(code: str, call: str, detail: object = "") -> Exception:
    """Return numba-cuda's exception for a failed call of the driver.

    Parameters
    ----------
    code : str
        The name of the code without ``CUDA_ERROR_``.
    call : str
        The function of the driver that a GPU would report.
    detail : object
        The end of the text.
    """
    from numba.cuda.cudadrv import driver

    number = getattr(driver.binding.CUresult, f"CUDA_ERROR_{code}")
    text = f"Call to {call} results in CUDA_ERROR_{code}"
    error: Exception = driver.CudaAPIError(number, f"{text}: {detail}" if detail else text)
    return error


def stream_error_code(error: StreamError) -> str:
    """Return the code for work of a stream that failed."""
    cause = error.__cause__
    if cause is None:  # the stream does not take the call, such as a wait for itself
        return "NOT_PERMITTED"
    return "ILLEGAL_ADDRESS" if isinstance(cause, _ILLEGAL_ACCESSES) else "LAUNCH_FAILED"


def with_error_codes(function: Callable[..., Any], codes: Any, name: str) -> Callable[..., Any]:
    """Return a function that returns ``(error code, *results)``, as in ``cuda.bindings.driver``.

    Parameters
    ----------
    function : callable
        Returns None, one result or a tuple; raises `DriverCallError`. Errors of nbrt come out as
        numba-cuda's ``CudaAPIError``, with what work on a stream raised as their cause.
    codes : enum
        ``CUresult``.
    name : str
        The name of the driver's function.
    """
    success = codes.CUDA_SUCCESS

    @functools.wraps(function)
    def call(*args: Any) -> tuple[Any, ...]:
        try:
            result = function(*args)
        except DriverCallError as error:
            return (getattr(codes, f"CUDA_ERROR_{error.code}"),)
        except StreamError as error:
            raise api_error(stream_error_code(error), name, error) from error.__cause__
        except ForkedProcessError as error:
            from numba.cuda.cudadrv.error import CudaDriverError

            raise CudaDriverError("CUDA initialized before forking") from error
        except tuple(_CODES) as error:
            code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
            raise api_error(code, name, error) from error
        if result is None:
            return (success,)
        return (success, *result) if isinstance(result, tuple) else (success, result)

    call.__name__ = name
    return call
