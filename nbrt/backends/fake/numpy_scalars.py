"""`ScalarResults`: fake arrays without axes in place of NumPy's scalars."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbrt.backends.fake.numpy_metadata import ArrayMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ScalarResults", "as_scalar"]

_NEW_ARRAYS = {
    np.copy,
    np.empty_like,
    np.full_like,
    np.ones_like,
    np.where,
    np.zeros_like,
}
"""Functions of NumPy that return a new array also where it has no axes."""


def as_scalar(result: Any, function: Any, args: Any, out: Any = None) -> Any:
    """Return the result of a call, marked as a scalar if NumPy's result is one."""
    if isinstance(result, tuple):
        for each in result:
            as_scalar(each, function, args, out)
    elif (
        isinstance(result, ArrayMetadata)
        and not result.layout.ndim
        and out is None
        and result.base is None
        and result.memory.is_host
        and function not in _NEW_ARRAYS
        and not any(each is result for each in args)
    ):
        result.is_scalar = True
    return result


def _in_place(name: str) -> Callable[..., Any]:
    ordinary = getattr(operator, name)
    in_place = getattr(NDArrayOperatorsMixin, f"__i{name.strip('_')}__")

    def method(self: ArrayMetadata, other: Any) -> Any:
        return ordinary(self, other) if self.is_scalar else in_place(self, other)

    return method


class ScalarResults(ArrayMetadata):
    """Operations that scalars have and arrays lack: hashes, rounding, operators that rebind."""

    __slots__ = ()

    __iadd__ = _in_place("add")
    __isub__ = _in_place("sub")
    __imul__ = _in_place("mul")
    __itruediv__ = _in_place("truediv")
    __ifloordiv__ = _in_place("floordiv")
    __imod__ = _in_place("mod")
    __ipow__ = _in_place("pow")
    __ilshift__ = _in_place("lshift")
    __irshift__ = _in_place("rshift")
    __iand__ = _in_place("and_")
    __ior__ = _in_place("or_")
    __ixor__ = _in_place("xor")

    def __imatmul__(self, other: Any) -> Any:
        if self.ndim == 0 or np.ndim(other) < 2:
            raise ValueError(
                "inplace matrix multiplication requires the first operand to have at least one and "
                "the second at least two dimensions."
            )
        return np.matmul(self, other, out=self)  # type: ignore[call-overload]

    def _check_is_scalar(self, operation: str) -> None:
        if not self.is_scalar:
            raise TypeError(
                f"expected a scalar for {operation}, got {self!r}; use NumPy's functions for arrays"
            )

    def _value(self, operation: str) -> Any:
        self._check_is_scalar(operation)
        return self.memory.read(self)[()]

    def __hash__(self) -> int:
        if not self.is_scalar:
            raise TypeError(f"unhashable type: {type(self).__name__!r}")
        return hash(self._value("hash"))

    def __round__(self, ndigits: int | None = None) -> Any:
        if ndigits is None:
            return round(self._value("round"))
        self._check_is_scalar("round")
        return np.round(self, ndigits)  # type: ignore[call-overload]

    def __trunc__(self) -> int:
        return int(self._value("math.trunc"))
