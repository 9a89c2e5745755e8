"""``cuda.atomic`` in plain Python: one thread runs at a time, so plain reads and writes do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.interpret.arrays import Array, SharedArray

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Atomic"]


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _increment(old: Any, limit: Any) -> Any:
    return 0 if old >= limit else old + 1


def _decrement(old: Any, limit: Any) -> Any:
    return limit if old == 0 or old > limit else old - 1


def _maximum(old: Any, value: Any) -> Any:
    # As numba-cuda does: with a NaN on either side nothing is stored.
    return old if _is_nan(old) or _is_nan(value) else max(old, value)


def _minimum(old: Any, value: Any) -> Any:
    return old if _is_nan(old) or _is_nan(value) else min(old, value)


def _noted(array: Any, index: Any, old: Any) -> Any:
    """Return what an atomic operation has read; only now may other threads go on."""
    if isinstance(array, SharedArray):
        array.note(index, old)
    return old


def _update(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Make an atomic that stores ``combine(old, value)`` and returns the old element."""

    def update(array: Any, index: Any, value: Any) -> Any:
        old = Array.__getitem__(array, index)
        array[index] = combine(old, np.asarray(value).astype(array.dtype)[()])
        return _noted(array, index, old)

    return staticmethod(update)


class Atomic:
    """The functions of ``cuda.atomic``; each returns the element as it was before."""

    add = _update(lambda old, value: old + value)
    sub = _update(lambda old, value: old - value)
    and_ = _update(lambda old, value: old & value)
    or_ = _update(lambda old, value: old | value)
    xor = _update(lambda old, value: old ^ value)
    exch = _update(lambda _, value: value)
    inc = _update(_increment)
    dec = _update(_decrement)
    max = _update(_maximum)
    min = _update(_minimum)
    nanmax = _update(lambda old, value: np.fmax(old, value))
    nanmin = _update(lambda old, value: np.fmin(old, value))

    @staticmethod
    def cas(array: Any, index: Any, expected: Any, value: Any) -> Any:
        """Store `value` if the element is `expected`."""
        old = Array.__getitem__(array, index)
        if old == np.asarray(expected).astype(array.dtype)[()]:
            array[index] = value
        return _noted(array, index, old)

    @classmethod
    def compare_and_swap(cls, array: Any, expected: Any, value: Any) -> Any:
        """Do the same with the first element."""
        return cls.cas(array, (0,) * array.ndim, expected, value)
