"""`FakeArray`: an array with shape, dtype, strides, device and storage, without values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbrt.backends.fake import numpy_indexing
from nbrt.backends.fake.numpy_functions import array_function
from nbrt.backends.fake.numpy_layouts import copied_like, reshaped
from nbrt.backends.fake.numpy_metadata import ArrayMetadata, FakeMemory
from nbrt.backends.fake.numpy_operands import empty
from nbrt.backends.fake.numpy_scalars import ScalarResults, as_scalar
from nbrt.backends.fake.numpy_ufuncs import array_ufunc
from nbrt.backends.fake.numpy_views import full_shape, reshape
from nbrt.errors import ArgumentTypeError, DeviceMismatchError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from nbrt.typing import HostArray

__all__ = ["FakeArray", "FakeMemory"]


class NoElementsError(NotSupportedError, AttributeError):
    """A fake array has no such attribute, because it has no elements."""


def _by_function(function: Any) -> Callable[..., Any]:
    """Return a method that calls a function of NumPy with the array as first argument."""

    def method(self: FakeArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = function.__name__
    method.__doc__ = f"Return the result of ``np.{function.__name__}`` of the array."
    return method


class FakeArray(ScalarResults, NDArrayOperatorsMixin):
    """An array of a fake device: it behaves as `numpy.ndarray` as far as metadata goes.

    Results have the shape, dtype and order of NumPy's, and its errors. Results that are scalars in
    NumPy are arrays without axes. A value is read by the policy of `nbrt.fake`.

    Parameters
    ----------
    layout : numpy.ndarray
        An array over addresses without memory. Only operations that make views may be applied to
        it: the process ends if an element is touched.
    memory : FakeMemory
        The memory that the array lies in.
    handle : object
        Keeps the allocation alive.
    base : FakeArray, optional
        The array that this one is a view of.
    """

    __slots__ = ()

    __array_priority__ = 100.0

    # -- NumPy's protocols -------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        result = array_ufunc(ufunc, method, inputs, kwargs)
        return as_scalar(result, ufunc, inputs, kwargs.get("out"))

    def __array_function__(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = array_function(func, types, args, kwargs)
        return as_scalar(result, func, args, kwargs.get("out"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        self.check_active()
        if not self.memory.is_current:
            raise DeviceMismatchError(
                f"expected an array of the innermost nbrt.fake block, got {self!r} of a block "
                f"around it; use it after the inner block"
            )
        if not self.memory.is_host:
            raise ArgumentTypeError(
                f"expected host data, got {self!r}; copy it with nbrt.to_host or get()"
            )
        if copy is False:
            raise ValueError("Unable to avoid copy while creating an array as requested.")
        values = self._values()
        return values if dtype is None else values.astype(dtype)

    # -- values ------------------------------------------------------------------------------------

    def _values(self) -> HostArray:
        self.check_active()
        return self.memory.read(self)

    def _scalar(self) -> Any:
        if self.size != 1:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        return self._values().reshape(())[()]

    def item(self, *args: Any) -> Any:
        """Return an element as a Python number, by the policy for reads."""
        if not args and self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self._values().item(*args)

    def tolist(self) -> Any:
        """Return the elements as nested lists, by the policy for reads."""
        return self._values().tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        """Return the bytes of the elements, by the policy for reads."""
        return self._values().tobytes(order)

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> Any:
        """Return a fake array of host memory after a copy from the device, as CuPy's method."""
        self.check_active()
        result = self if self.memory.is_host else self.memory.to_host(self)
        if out is None:
            return result
        out[...] = result
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        """Copy a host array into the array, as CuPy's method."""
        values = arr if isinstance(arr, ArrayMetadata) else np.asarray(arr)
        if values.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {values.shape}")
        if values.dtype != self.dtype:
            raise TypeError(f"{values.dtype} array cannot be set to {self.dtype} array")
        self.check_active()
        numpy_indexing.check_assignment(self, ..., values)
        self.memory.from_host(self, values)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                "The truth value of an array with more than one element is ambiguous. Use a.any() "
                "or a.all()"
                if self.size
                else "The truth value of an empty array is ambiguous."
            )
        return bool(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __index__(self) -> int:
        if self.ndim or self.dtype.kind not in "iu":
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return int(self._scalar())

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else format(self._scalar(), spec)

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    # -- elements ----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Self:
        result: Self = numpy_indexing.getitem(self, index)
        if not result.layout.ndim and self.memory.is_host:
            result.is_scalar = numpy_indexing.is_element(index)
        return result

    def __setitem__(self, index: Any, value: Any) -> None:
        numpy_indexing.setitem(self, index, value)

    def __iter__(self) -> Iterator[Self]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(len(self)))

    def fill(self, value: Any) -> None:
        """Check that a value can fill the array."""
        if np.ndim(value):
            raise ValueError("setting an array element with a sequence.")
        self[...] = value

    put = _by_function(np.put)
    take = _by_function(np.take)
    repeat = _by_function(np.repeat)
    choose = _by_function(np.choose)
    nonzero = _by_function(np.nonzero)
    diagonal = _by_function(np.diagonal)

    def compress(self, condition: Any, axis: int | None = None, out: Any = None) -> Any:
        """Return the elements where a condition is true; their number depends on values."""
        return np.compress(condition, self, axis, out)

    # -- shapes ------------------------------------------------------------------------------------

    def reshape(self, *shape: Any, order: str | None = "C", copy: bool | None = None) -> Self:
        """Return a view in another shape, or a copy where no view has it."""
        target = shape[0] if len(shape) == 1 else shape
        result: Self = reshape(self, target, order, copy=copy)
        return result

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis; a new shape must fit the storage as it is."""
        shape: tuple[int, ...] = self.layout.shape
        return shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        view = reshaped(self.layout, full_shape(self.layout.shape, shape), "C")
        if view is None:
            raise AttributeError(
                "Incompatible shape for in-place modification. Use `.reshape()` to make a copy "
                "with the desired shape."
            )
        self.layout = view
        self.known_form = None

    @property
    def real(self) -> Self:
        """View of the real parts; the array itself if it is real."""
        return self.view_of(self.layout.real) if self.dtype.kind == "c" else self

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Self:
        """View of the imaginary parts; zeros that cannot be written if the array is real."""
        if self.dtype.kind == "c":
            return self.view_of(self.layout.imag)
        self.check_active()
        zeros: Self = copied_like(self, self.memory, self.dtype, "A")
        zeros.flags.writeable = False
        return zeros

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != "c":
            raise TypeError("array does not have imaginary part to set")
        self.imag[...] = value

    @property
    def flat(self) -> NoReturn:
        """Refuse: an iterator would read the elements."""
        raise NoElementsError(
            f"expected an operation without values, got flat of {self!r}; use ravel() or "
            f"reshape(-1)"
        )

    @property
    def data(self) -> NoReturn:
        """Refuse: there is no memory to share."""
        raise NoElementsError(
            f"expected an operation without values, got data of {self!r}, which has no memory; use "
            f"`address`, or nbrt.to_host outside of nbrt.fake"
        )

    @property
    def ctypes(self) -> NoReturn:
        """Refuse: there is no memory that C functions could touch."""
        raise NoElementsError(
            f"expected an operation without values, got ctypes of {self!r}, which has no memory; "
            f"use `address`, or nbrt.to_host outside of nbrt.fake"
        )

    def setflags(self, write: bool | None = None) -> None:
        """Set whether the array can be written."""
        self.layout.setflags(write=write)
        self.known_form = None

    def resize(self, *shape: Any, refcheck: bool = True) -> NoReturn:
        """Refuse: memory of a device does not grow in place."""
        raise NotSupportedError(
            "expected an operation that keeps the storage, got resize; use nbrt.empty or np.resize"
        )

    def transpose(self, *axes: Any) -> Self:
        """Return a view with permuted axes."""
        return self.view_of(self.layout.transpose(*axes))

    def flatten(self, order: str = "C") -> Self:
        """Return a copy on one axis."""
        self.check_active()
        result: Self = self.memory.result((self.size,), self.dtype)
        return result

    def view(self, dtype: Any = None, type: Any = None) -> Self:
        """Return a view, with another dtype if one is given."""
        return self.view_of(self.layout.view() if dtype is None else self.layout.view(dtype))

    ravel = _by_function(np.ravel)
    squeeze = _by_function(np.squeeze)
    swapaxes = _by_function(np.swapaxes)

    # -- copies ------------------------------------------------------------------------------------

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: Any = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Self:
        """Return a copy in another dtype; with ``copy=False`` the array itself if it has it."""
        kind = np.empty(0, self.dtype).astype(dtype, casting=casting).dtype
        if not copy and kind == self.dtype and self._has_order(order):
            return self
        self.check_active()
        result: Self = copied_like(self, self.memory, kind, order)
        result.is_scalar = self.is_scalar
        return result

    def _has_order(self, order: str) -> bool:
        flags = self.flags
        return {
            "C": flags.c_contiguous,
            "F": flags.f_contiguous,
            "A": flags.forc,
            "K": True,
        }[order]

    def copy(self, order: str = "C") -> Self:
        """Return a copy."""
        result: Self = np.copy(self, order)  # type: ignore[call-overload]
        return result

    def __copy__(self) -> Self:
        return self.copy("K")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy("K")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise NotSupportedError(
            f"expected an array with values to pickle, got {self!r}; pickle shape and dtype, or "
            f"copy it to the host outside of nbrt.fake"
        )

    def byteswap(self, inplace: bool = False) -> Self:
        """Return a copy with swapped bytes; the array itself if it is done in place."""
        return self if inplace else self.copy("A")

    # -- arithmetic --------------------------------------------------------------------------------

    all = _by_function(np.all)
    any = _by_function(np.any)
    argmax = _by_function(np.argmax)
    argmin = _by_function(np.argmin)
    argpartition = _by_function(np.argpartition)
    argsort = _by_function(np.argsort)
    cumprod = _by_function(np.cumprod)
    cumsum = _by_function(np.cumsum)
    dot = _by_function(np.dot)
    max = _by_function(np.max)
    mean = _by_function(np.mean)
    min = _by_function(np.min)
    prod = _by_function(np.prod)
    round = _by_function(np.round)
    searchsorted = _by_function(np.searchsorted)
    std = _by_function(np.std)
    sum = _by_function(np.sum)
    trace = _by_function(np.trace)
    var = _by_function(np.var)

    def conj(self, out: Any = None) -> Any:
        """Return the complex conjugates; the array itself if it is real."""
        if out is None and self.dtype.kind in "biuf":
            return self
        return np.conjugate(self, out=out)

    conjugate = conj

    def __pow__(self, other: Any, modulo: Any = None) -> Any:
        if modulo is not None:
            return NotImplemented
        if self.dtype.kind == "b" and type(other) is int and other == 2:
            return np.square(self)  # NumPy's operator computes it so, with another dtype
        return super().__pow__(other)

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **options: Any) -> Any:
        """Return the result of ``np.clip`` of the array."""
        return np.clip(self, min, max, out=out, **options)

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, **options: Any) -> None:
        """Check the axis and the order of a sort in place."""
        self._check_axis(axis)
        empty(self)[:].sort(0, kind, order, **options)

    def partition(self, kth: Any, axis: int = -1, *args: Any, **options: Any) -> None:
        """Check the axis and the places of a partition in place."""
        self._check_axis(axis)
        length = self.shape[axis]
        for each in np.atleast_1d(np.asarray(kth)).tolist():
            if self.size and not -length <= each < length:
                raise ValueError(f"kth(={each}) out of bounds ({length})")

    def _check_axis(self, axis: int) -> None:
        self.check_active()
        np.lib.array_utils.normalize_axis_index(axis, self.ndim)
        if not self.flags.writeable:
            raise ValueError("sort array is read-only")
