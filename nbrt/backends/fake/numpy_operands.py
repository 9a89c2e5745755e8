"""Operands of NumPy's functions: their devices, and stand-ins without memory for NumPy itself.

A stand-in has the dtype of an array and no element. NumPy computes dtypes, and shapes behind a
leading axis of length 0, from stand-ins; its errors are the errors of the real operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.fake.numpy_metadata import ArrayMetadata
from nbrt.errors import DeviceMismatchError, FakeReadError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbrt.backends.fake.numpy_metadata import FakeMemory

__all__ = [
    "batch",
    "common_memory",
    "empty",
    "fake_arrays",
    "lifted",
    "read_values",
    "replaced",
    "sample",
    "stored",
    "written",
]

_empty: dict[np.dtype[Any], Any] = {}


# -- stand-ins -------------------------------------------------------------------------------------


def empty(operand: Any) -> Any:
    """Return an array of length 0 in place of an array; scalars themselves."""
    if isinstance(operand, ArrayMetadata):
        kind = operand.dtype
        writeable = operand.layout.flags.writeable
    elif isinstance(operand, np.ndarray) and operand.ndim:
        kind = operand.dtype
        writeable = operand.flags.writeable
    elif isinstance(operand, (list, tuple)):
        return empty(np.asarray(operand))
    else:
        return operand
    known = _empty.get(kind)
    if known is None:
        known = _empty[kind] = np.empty(0, kind)
    if not writeable:
        known = known.view()
        known.flags.writeable = False
    return known


def batch(operand: Any, ndim: int | None = None) -> Any:
    """Return an array without elements of the shape of an array behind an axis of length 0.

    With `ndim`, the shape gets leading axes of length 1 up to that number. Scalars are returned.
    """
    if not isinstance(operand, (ArrayMetadata, np.ndarray)):
        return operand
    leading = (1,) * (0 if ndim is None else ndim - operand.ndim)
    return np.empty((0, *leading, *operand.shape), operand.dtype)


def sample(operand: Any, length: int = 1) -> Any:
    """Return ones in the shape of an array with each axis cut to `length`; scalars themselves."""
    if not isinstance(operand, (ArrayMetadata, np.ndarray)):
        return operand
    shape = tuple(min(each, length) for each in operand.shape)
    if operand.dtype.kind in "biufc":
        return np.ones(shape, operand.dtype)
    return np.zeros(shape, operand.dtype)


# -- devices ---------------------------------------------------------------------------------------


def fake_arrays(value: Any) -> Iterable[ArrayMetadata]:
    """Yield the fake arrays in a value: itself, or those in sequences and mappings."""
    if isinstance(value, ArrayMetadata):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from fake_arrays(each)
    elif isinstance(value, dict):
        yield from fake_arrays(list(value.values()))


def common_memory(operands: Iterable[Any]) -> FakeMemory:
    """Return the memory for the result of an operation.

    Raises
    ------
    DeviceMismatchError
        If the operands are on two devices, or some are of a device and others of the host or real.
    """
    on_device: ArrayMetadata | None = None
    on_host: ArrayMetadata | None = None
    host_array: Any = None  # with axes: a number on the host goes with every device
    foreign: Any = None
    for each in operands:
        if isinstance(each, ArrayMetadata):
            each.check_active()
            if each.memory.is_host:
                on_host = each
                host_array = each if each.ndim else host_array
            elif on_device is None:
                on_device = each
            elif on_device.memory is not each.memory:
                raise _mismatch(on_device, each)
        elif isinstance(each, np.ndarray):
            host_array = each if each.ndim else host_array
        elif hasattr(each, "__cuda_array_interface__"):
            foreign = each
    known = on_host if on_device is None else on_device
    if known is None:
        raise AssertionError("an operation without a fake array")
    if foreign is not None:
        raise _mismatch(known, foreign)
    if on_device is not None and host_array is not None:
        raise _mismatch(on_device, host_array)
    return known.memory


def _mismatch(array: ArrayMetadata, other: Any) -> DeviceMismatchError:
    return DeviceMismatchError(
        f"expected arrays of one device, got {array!r} and {_described(other)}; move one with "
        f"nbrt.to or nbrt.asarray"
    )


def _described(other: Any) -> str:
    if isinstance(other, ArrayMetadata):
        return repr(other)
    place = "in host memory" if isinstance(other, np.ndarray) else "of a real device"
    name = f"{type(other).__module__}.{type(other).__name__}"
    return f"a {name}(shape={other.shape}, dtype={other.dtype}) {place}"


def lifted(*values: Any) -> list[Any]:
    """Return arrays and numbers as fake arrays, with NumPy arrays as their own layouts.

    None stays None. At least one value is a fake array, or a sequence with one.
    """
    known = None
    is_lifted = True
    for each in values:
        if isinstance(each, ArrayMetadata):
            known = each if known is None else known
        elif each is not None:
            is_lifted = False
    if is_lifted and known is not None:
        return list(values)
    if known is None:
        known = next(iter(fake_arrays(values)), None)
    if known is None:
        raise NotSupportedError(
            "expected a fake array among the arrays of the call, got only real ones; convert them "
            "with nbrt.asarray"
        )
    make, memory = type(known), known.memory
    return [
        each
        if each is None or isinstance(each, ArrayMetadata)
        else make(np.asarray(each), memory, None)
        for each in values
    ]


# -- results ---------------------------------------------------------------------------------------


def stored(
    out: Any, shape: tuple[int, ...], dtype: Any, casting: Any, name: str, memory: FakeMemory
) -> Any:
    """Check that a result can be stored in `out`, and return `out`."""
    if isinstance(out, tuple):
        (out,) = out
    if out.shape != shape:
        raise ValueError(
            f"output parameter for numpy.{name} has the wrong shape: expected {shape}, got "
            f"{out.shape}"
        )
    return written(out, shape, dtype, casting, memory)


def written(out: Any, shape: tuple[int, ...], dtype: Any, casting: Any, memory: FakeMemory) -> Any:
    """Check that a result can be stored in `out`, and return `out`.

    A real array gets the values that the policy gives for the result.
    """
    if isinstance(out, ArrayMetadata):
        np.copyto(empty(out), np.empty(0, dtype), casting=casting)
    else:
        values = memory.read(memory.result(shape, np.dtype(dtype)))
        np.copyto(out, values, casting=casting)
    return out


def read_values(value: Any, reason: str) -> Any:
    """Return a value with fake arrays replaced by the values that the policy gives.

    Raises
    ------
    FakeReadError
        If the policy gives none; the message has the reason.
    """

    def read(array: ArrayMetadata) -> Any:
        try:
            return array.memory.read(array)
        except FakeReadError as error:
            raise FakeReadError(f"{reason}: {error}") from None

    return replaced(value, read)


def replaced(value: Any, function: Any) -> Any:
    """Return a value with `function` applied to the fake arrays in it."""
    if isinstance(value, ArrayMetadata):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(replaced(each, function) for each in value)
    if type(value) is dict:
        return {key: replaced(each, function) for key, each in value.items()}
    return value
