"""Checks of the arguments of draws: dtypes, numbers, arrays of parameters, `out`."""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nbrt._internal.checks import as_dtype, checked_shape
from nbrt.errors import (
    ArgumentError,
    ArgumentOverflowError,
    ArgumentTypeError,
    DeviceMismatchError,
)
from nbrt.runtime.adoption import holder_of
from nbrt.runtime.array import device_of, to_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, DTypeLike, HostArray, Shape

__all__ = [
    "ArgumentAxisError",
    "CovarianceError",
    "checked_array",
    "checked_flag",
    "checked_out",
    "common_shape",
    "dtype_name",
    "exact_integers",
    "float_dtype",
    "integer",
    "integer_dtype",
    "is_array",
    "most_integer",
    "non_negative",
    "non_negative_or_nan",
    "number_dtype",
    "probability",
    "real",
    "rectangular",
    "vector",
    "vectors",
    "whole",
]

_NOT_REAL = frozenset("cSUMmO")
"""Kinds of dtypes: complex numbers, texts, dates and Python objects."""

_OBJECTS = frozenset("SUO")
"""Kinds of the arrays that NumPy makes of sequences with elements that are no numbers."""

_SEQUENCES = (list, tuple, range)
_NUMBERS = frozenset([float, int])

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_KNOWN_FLOATS: dict[object, np.dtype[Any]] = {
    spelling: np.dtype(scalar)
    for scalar in (np.float32, np.float64, np.float16)
    for spelling in (scalar, scalar.__name__)
}
_NATIVE_FLOATS = frozenset(_KNOWN_FLOATS.values())


class ArgumentAxisError(ArgumentError, np.exceptions.AxisError):
    """An axis is not one of an array, or there is no array with axes."""


class CovarianceError(ArgumentError, np.linalg.LinAlgError):
    """A matrix has no Cholesky factor, as it is not positive definite."""


@functools.cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return ``dtype.name``, which NumPy computes in a microsecond or two each time."""
    return dtype.name


def float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype of floats in this machine's byte order."""
    if type(dtype) is type:
        known = _KNOWN_FLOATS.get(dtype)
        return _checked_float(dtype) if known is None else known
    if isinstance(dtype, np.dtype):  # itself: equal ones may differ in metadata
        return dtype if dtype in _NATIVE_FLOATS else _checked_float(dtype)
    known = _KNOWN_FLOATS.get(dtype) if isinstance(dtype, str) else None
    return _checked_float(dtype) if known is None else known


def _checked_float(dtype: DTypeLike) -> np.dtype[Any]:
    element_dtype = as_dtype(dtype)
    if element_dtype.name not in _FLOATS or not element_dtype.isnative:
        raise ArgumentTypeError(f"expected a dtype of {', '.join(_FLOATS)}, got {element_dtype}")
    return element_dtype


def integer_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return an integer dtype, or bool, in this machine's byte order."""
    element_dtype = as_dtype(dtype)
    if element_dtype.kind not in "iub":
        raise ArgumentTypeError(f"expected an integer dtype or bool, got {element_dtype}")
    if not element_dtype.isnative:
        raise ArgumentError(f"expected a dtype in this machine's byte order, got {element_dtype}")
    return element_dtype


def number_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype of floats, of integers, or bool."""
    element_dtype = as_dtype(dtype)
    return (
        integer_dtype(element_dtype) if element_dtype.kind in "iub" else float_dtype(element_dtype)
    )


def most_integer(dtype: np.dtype[Any]) -> int:
    """Return the largest n such that a dtype represents all integers of [0, n]."""
    if dtype.kind == "b":
        return 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    return int(2 ** {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype.name])


def is_array(value: object) -> bool:
    """Return whether a parameter has a value for each element: an array or a sequence."""
    if type(value) in _NUMBERS:
        return False
    return isinstance(value, _SEQUENCES) or bool(getattr(value, "ndim", 0))


def real(name: str, value: Any, error: type[ArgumentError] = ArgumentError) -> Any:
    """Return a parameter as a finite float; arrays and sequences as arrays of real numbers.

    Infinity and NaN raise `error`.
    """
    if type(value) is float:
        number = value
    elif is_array(value):
        return _real_array(name, value)
    else:
        number = _converted(name, value, float, "a real number or an array of them")
    if not math.isfinite(number):
        raise error(f"expected {name} to be finite, got {number}")
    return number + 0.0  # -0.0, which equals 0.0, would give other bits


def non_negative(name: str, value: Any) -> Any:
    """Return a parameter as `real` does, but refuse a negative zero, as NumPy does.

    Kernels refuse other negative numbers, and negative zeros in arrays.
    """
    number = real(name, value)
    if type(number) is float and number == 0.0 and math.copysign(1.0, value) < 0.0:
        raise ArgumentError(f"expected {name} >= 0, got -0.0; pass 0.0")
    return number


def non_negative_or_nan(name: str, value: Any) -> Any:
    """Return a parameter as `non_negative` does, or NaN."""
    is_float = isinstance(value, (float, np.floating)) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind == "f"
    )
    if is_float and math.isnan(value):
        return math.nan
    return non_negative(name, value)


def _converted(name: str, value: Any, number_type: type, wanted: str) -> Any:
    """Convert a number to int or float."""
    if isinstance(value, np.complexfloating):
        value = complex(value)  # float() refuses it; of NumPy's complex numbers NumPy only warns
    if type(value) not in _NUMBERS and hasattr(value, "__nbrt_random__"):
        # Reading the value needs communication, which this layer must not do.
        raise ArgumentTypeError(
            f"expected {name} to be {wanted}, got a {type(value).__name__} without dimensions; "
            f"pass its value, {number_type.__name__}(...)"
        )
    if isinstance(value, (str, bytes)):
        raise ArgumentTypeError(f"expected {name} to be {wanted}, got {value!r}")
    try:
        return number_type(value)
    except OverflowError:
        raise ArgumentOverflowError(f"expected {name} to be {wanted}, got {value!r}") from None
    except TypeError:
        raise ArgumentTypeError(f"expected {name} to be {wanted}, got {value!r}") from None
    except ValueError:
        raise ArgumentError(f"expected {name} to be {wanted}, got {value!r}") from None


def _real_array(name: str, value: Any) -> Any:
    array = rectangular(name, value)
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        return array
    if dtype.kind in _OBJECTS and isinstance(value, _SEQUENCES):
        return _array_of(name, value, np.float64)
    if dtype.kind in _NOT_REAL:
        raise ArgumentTypeError(
            f"expected {name} to be a real number or an array of them, got an array of {dtype}"
        )
    return _native(array)


def _native(array: Any) -> Any:
    """Return an array in this machine's byte order."""
    dtype = array.dtype
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def _array_of(name: str, value: Any, dtype: Any) -> HostArray:
    """Convert a sequence to an array of a dtype, element by element."""
    try:
        return np.asarray(value, dtype)
    except OverflowError as error:
        raise ArgumentOverflowError(f"expected {name} to fit {dtype}: {error}") from None
    except TypeError as error:
        raise ArgumentTypeError(f"expected {name} as an array of numbers: {error}") from None
    except ValueError as error:
        raise ArgumentError(f"expected {name} as an array of numbers: {error}") from None


def probability(name: str, value: Any) -> Any:
    """Return a parameter as a float in [0, 1]; arrays and sequences as they are."""
    number = real(name, value)
    if not is_array(number) and not 0.0 <= number <= 1.0:
        raise ArgumentError(f"expected {name} in [0, 1], got {number}")
    return number


def integer(name: str, value: Any) -> Any:
    """Return a parameter as an int; arrays and sequences as they are."""
    if is_array(value):
        return rectangular(name, value)
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"expected {name} to be an integer or an array of them, got {value!r}"
        ) from None


def whole(name: str, value: Any) -> Any:
    """Return a count as an int without its fraction; sequences as arrays of int64.

    NumPy takes such counts too. Arrays of integers are returned as they are, others are refused.
    """
    if type(value) is int:
        return value
    if not is_array(value):
        # Ranks without a tensor's number know its dtype only.
        if isinstance(value, np.ndarray) and value.dtype.kind not in "iub":
            raise ArgumentTypeError(
                f"expected {name} to be an integer or an array of them, got a {value.dtype} array"
            )
        return _converted(name, value, int, "an integer or an array of them")
    array = rectangular(name, value)
    dtype = getattr(array, "dtype", None)
    if dtype is None or dtype.kind in "iub":
        return array if dtype is None else _native(array)
    if not isinstance(value, _SEQUENCES):
        raise ArgumentTypeError(f"expected {name} to be integers, got an array of {dtype}")
    return _array_of(name, exact_integers(name, value), np.int64)


def exact_integers(name: str, value: Any) -> HostArray:
    """Return numbers, or arrays and sequences of them, as Python integers without fractions.

    Returns
    -------
    array of object
        In host memory. Integers of any size in a sequence are exact.
    """
    array = np.asarray(
        to_host(value, copy=None) if hasattr(value, "dtype") else rectangular(name, value)
    )
    if array.dtype.kind in "iub":
        return array.astype(object)
    if array.dtype.kind in "cMm" or (array.dtype.kind in "SU" and array is value):
        raise ArgumentTypeError(f"expected {name} to be integers, got an array of {array.dtype}")
    # NumPy makes floats of integers that no common dtype of integers holds.
    whole_numbers = np.empty(array.shape, object)
    numbers = np.asarray(value, object) if isinstance(value, _SEQUENCES) else array
    for position, number in enumerate(numbers.flat):
        try:
            whole_numbers.flat[position] = int(number)
        except (OverflowError, ValueError) as error:  # of infinity and NaN
            raise ArgumentError(f"expected {name} to be integers: {error}") from None
        except TypeError as error:
            raise ArgumentTypeError(f"expected {name} to be integers: {error}") from None
    return whole_numbers


def checked_flag(name: str, value: Any) -> bool:
    """Return the truth of a flag that is no array."""
    if type(value) is not bool and is_array(value):
        raise ArgumentTypeError(f"expected {name} to be True or False, got {value!r}")
    return bool(value)


def rectangular(name: str, value: Any) -> Any:
    """Return an array unchanged, and a sequence as an array of the host."""
    if not isinstance(value, _SEQUENCES):
        return value
    try:
        return np.asarray(value)
    except ValueError as error:  # as of rows of several lengths
        raise ArgumentError(f"expected {name} as an array of numbers: {error}") from None


def vector(name: str, value: Any, *, may_be_empty: bool = False) -> HostArray:
    """Return a parameter that is a vector, such as concentrations, in host memory."""
    array = _numbers(name, value, "a vector of numbers")
    if array.ndim != 1 or not (array.size or may_be_empty):
        raise ArgumentError(f"expected {name} to be a vector of numbers, got shape {array.shape}")
    return array


def vectors(name: str, value: Any) -> HostArray:
    """Return a parameter of vectors along the last axis, in host memory."""
    array = _numbers(name, value, "vectors of numbers")
    if not array.ndim or not array.shape[-1]:
        raise ArgumentError(
            f"expected {name} to be vectors of numbers along the last axis, got shape {array.shape}"
        )
    return array


def _numbers(name: str, value: Any, wanted: str) -> HostArray:
    if hasattr(value, "__array__") or hasattr(value, "get"):
        value = to_host(value, copy=None)
    array = np.asarray(rectangular(name, value))
    if array.dtype.kind in _OBJECTS and isinstance(value, _SEQUENCES):
        array = _array_of(name, value, np.float64)
    if array.dtype.kind == "c":
        raise ArgumentTypeError(
            f"expected {name} to be {wanted}, which must not be complex, got {array.dtype}"
        )
    if array.dtype.kind == "b":
        array = array.astype(np.float64)
    if array.dtype.kind not in "iuf":
        raise ArgumentError(
            f"expected {name} to be {wanted}, got shape {array.shape} of {array.dtype}"
        )
    if not np.isfinite(array).all():
        raise ArgumentError(f"expected {name} to be finite, got {array}")
    return cast("HostArray", _native(array))


def checked_array(name: str, value: Any) -> Any:
    """Return an array; raise for other types."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise ArgumentTypeError(f"expected {name} to be an array, got {type(value).__name__}")
    return value


def checked_out(stream: Stream, out: Any, size: Shape | None, dtype: np.dtype[Any]) -> Array:
    """Return `out` after a check of its device, dtype, shape and flags."""
    # A quick test of the usual case: a plain array of the device.
    if (
        type(out) is np.ndarray
        and out.dtype is dtype
        and (size is None or (type(size) is int and out.shape == (size,)))
        and out.flags.writeable
        and stream.interface.may_fill(out, stream.device.index)
    ):
        return out
    checked_array("out", out)
    if out.dtype != dtype:
        is_same_kind = (out.dtype.name in _FLOATS) == (dtype.name in _FLOATS)
        fits = is_same_kind and out.dtype.isnative and out.dtype.kind in "fiubV"
        step = f"pass dtype={out.dtype.name!r} too" if fits else f"make it with dtype={dtype}"
        raise ArgumentTypeError(f"expected out of dtype {dtype}, got {out.dtype}; {step}")
    shape = out.shape if size is None else checked_shape(size)
    if shape != out.shape:
        raise ArgumentError(f"expected out of shape {shape}, got {out.shape}; leave size out")
    interface = stream.interface
    if interface.may_fill(out, stream.device.index):
        holder = None
    else:
        holder = holder_of(out)
        if holder is None and not interface.capabilities.host_addressable:
            holder = device_of(out)
    if holder is not None and holder != stream.device:
        raise DeviceMismatchError(
            f"expected out on {stream.device}, got an array of {holder}; make it with "
            f"nbrt.empty(..., device='{stream.device}')"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ArgumentError("expected a writable out, got a read-only array")
    return out


def common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which parameters of some shapes broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(
            f"expected parameters that broadcast together, got shapes {list(shapes)}"
        ) from None
