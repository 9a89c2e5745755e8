"""What the methods of generators accept: dtypes, numbers, arrays of parameters, `out`."""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError
from nbrt.runtime.adoption import holder_of
from nbrt.runtime.array import device_of, to_host
from nbrt.runtime.new_array import checked_shape

if TYPE_CHECKING:
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, DTypeLike, HostArray, Shape

__all__ = [
    "as_dtype",
    "checked_array",
    "checked_flag",
    "checked_out",
    "dtype_name",
    "float_dtype",
    "integer",
    "integer_dtype",
    "is_array",
    "most_integer",
    "number_dtype",
    "probability",
    "real",
    "rectangular",
    "vector",
]

_NOT_REAL = frozenset("cSUMm")
"""Kinds of dtypes: complex numbers, texts and dates."""

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_KNOWN_FLOATS: dict[object, np.dtype[Any]] = {
    spelling: np.dtype(scalar)
    for scalar in (np.float32, np.float64, np.float16)
    for spelling in (scalar, scalar.__name__)
}
_NUMBERS = frozenset([float, int])
_NATIVE_FLOATS = frozenset(_KNOWN_FLOATS.values())


def as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype; "bfloat16" names that of ml_dtypes."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        import ml_dtypes

        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain
    try:
        return np.dtype(dtype)
    except TypeError:
        raise ArgumentTypeError(f"expected a dtype, got {dtype!r}") from None


@functools.cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return ``dtype.name``, which NumPy makes anew each time in a microsecond or two."""
    return dtype.name


def float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype of floats in this machine's byte order."""
    if isinstance(dtype, np.dtype):  # itself: equal ones may differ in metadata
        return dtype if dtype in _NATIVE_FLOATS else _checked_float(dtype)
    known = _KNOWN_FLOATS.get(dtype) if isinstance(dtype, (type, str)) else None
    return _checked_float(dtype) if known is None else known


def _checked_float(dtype: DTypeLike) -> np.dtype[Any]:
    kind = as_dtype(dtype)
    if kind.name not in _FLOATS or not kind.isnative:
        raise ArgumentTypeError(f"expected a dtype of {', '.join(_FLOATS)}, got {kind}")
    return kind


def integer_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return an integer dtype, or bool, in this machine's byte order."""
    kind = as_dtype(dtype)
    if kind.kind not in "iub" or not kind.isnative:
        raise ArgumentTypeError(
            f"expected an integer dtype or bool, in this machine's byte order, got {kind}"
        )
    return kind


def number_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype of floats, of integers, or bool."""
    kind = as_dtype(dtype)
    return integer_dtype(kind) if kind.kind in "iub" else float_dtype(kind)


def most_integer(dtype: np.dtype[Any]) -> int:
    """Return the largest integer such that a dtype holds it and all below."""
    if dtype.kind == "b":
        return 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    return int(2 ** {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype.name])


def is_array(value: object) -> bool:
    """Return whether a parameter has a value for each element: an array or a sequence."""
    return isinstance(value, (list, tuple)) or bool(getattr(value, "ndim", 0))


def real(name: str, value: Any) -> Any:
    """Return a parameter as a finite float; arrays and sequences as they are."""
    if type(value) is not float and is_array(value):
        return _real_array(name, value)
    if isinstance(value, np.complexfloating):
        value = complex(value)  # which is no float, while NumPy only warns
    if type(value) not in _NUMBERS and hasattr(value, "__nbrt_random__"):
        # A number would have to be asked of other ranks, and where is nobody's business here.
        raise ArgumentTypeError(
            f"expected {name} to be a real number or an array of them, got a "
            f"{type(value).__name__} without dimensions; pass its value, float(...)"
        )
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentTypeError(
            f"expected {name} to be a real number or an array of them, got {value!r}"
        ) from None
    if not math.isfinite(number):
        raise ArgumentError(f"expected {name} to be finite, got {number}")
    return number + 0.0  # -0.0, which equals 0.0, would give other bits


def _real_array(name: str, value: Any) -> Any:
    array = rectangular(name, value)
    dtype = getattr(array, "dtype", None)
    if getattr(dtype, "kind", None) in _NOT_REAL:
        raise ArgumentTypeError(
            f"expected {name} to be a real number or an array of them, got an array of {dtype}"
        )
    return array


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


def checked_flag(name: str, value: Any) -> bool:
    """Return whether a flag is set; anything may be one that is true or false."""
    if is_array(value):
        raise ArgumentTypeError(f"expected {name} to be True or False, got {value!r}")
    return bool(value)


def rectangular(name: str, value: Any) -> Any:
    """Return an array as it is, and a sequence as an array of the host."""
    if not isinstance(value, (list, tuple)):
        return value
    try:
        return np.asarray(value)
    except ValueError as error:  # as of rows of several lengths
        raise ArgumentError(f"expected {name} as an array of numbers: {error}") from None


def vector(name: str, value: Any) -> HostArray:
    """Return a parameter of a whole vector, such as chances of outcomes, in host memory."""
    numbers = (
        to_host(value, copy=None) if hasattr(value, "__array__") or hasattr(value, "get") else value
    )
    found = np.asarray(rectangular(name, numbers))
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iuf":
        raise ArgumentError(
            f"expected {name} to be a vector of numbers, got shape {found.shape} of {found.dtype}"
        )
    if not np.isfinite(found).all():
        raise ArgumentError(f"expected {name} to be finite, got {found}")
    return found


def checked_array(name: str, value: Any) -> Any:
    """Return an array of a device if it is one."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise ArgumentTypeError(f"expected {name} to be an array, got {type(value).__name__}")
    return value


def checked_out(stream: Stream, out: Any, size: Shape | None, dtype: np.dtype[Any]) -> Array:
    """Return `out` if it is an array of that device, dtype and shape that can be written to."""
    checked_array("out", out)
    if out.dtype != dtype:
        is_same_kind = (out.dtype.name in _FLOATS) == (dtype.name in _FLOATS)
        fits = is_same_kind and out.dtype.isnative and out.dtype.kind in "fiubV"
        step = f"pass dtype={out.dtype.name!r} too" if fits else f"make it with dtype={dtype}"
        raise ArgumentTypeError(f"expected out of dtype {dtype}, got {out.dtype}; {step}")
    shape = out.shape if size is None else checked_shape(size)
    if shape != out.shape:
        raise ArgumentError(f"expected out of shape {shape}, got {out.shape}; leave size out")
    host_addressable = stream.interface.capabilities.host_addressable
    # An array that owns its memory is nobody's but NumPy's.
    is_plain = host_addressable and type(out) is np.ndarray and out.base is None
    holder = None if is_plain else holder_of(out)
    if holder is None and not host_addressable:
        holder = device_of(out)
    if holder is not None and holder != stream.device:
        raise DeviceMismatchError(
            f"expected out on {stream.device}, got an array of {holder}; make it with "
            f"nbrt.empty(..., device='{stream.device}')"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ArgumentError("expected a writable out, got a read-only array")
    return out
