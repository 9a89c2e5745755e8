"""Arrays of interpreted kernels, and atomic operations on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.interpret.spinning import watch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Array", "Atomic", "SharedArray"]


class Array(np.ndarray):
    """An array that casts stored values as compiled code does.

    NumPy refuses an integer scalar that the array's type cannot hold; compiled code keeps its
    lowest bits, like ``astype``. Fields of records are attributes in compiled code.
    """

    def __getitem__(self, index: Any) -> Any:
        """Read an element or a view; the fields of a record are attributes, too."""
        element = super().__getitem__(index)
        if isinstance(element, np.void) and self.dtype.names:
            return self.view(np.ndarray).view(np.recarray)[index]
        return element

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store a value; NumPy casts an array without dimensions where it refuses a scalar."""
        super().__setitem__(index, np.asarray(value) if isinstance(value, np.number) else value)

    def __repr__(self) -> str:
        """Return the text of a plain array."""
        return repr(self.view(np.ndarray))


class SharedArray(Array):
    """An array that several threads share; its reads and writes are recorded, to find spins."""

    def __getitem__(self, index: Any) -> Any:
        """Read an element or a view."""
        element = super().__getitem__(index)
        self.note(index, element)
        return element

    def note(self, index: Any, element: Any) -> None:
        """Record a read; the thread may yield here."""
        if watch.reads is not None and not isinstance(element, np.ndarray):
            owner = self if self.base is None else self.base
            value = element.tobytes() if isinstance(element, np.void) else element
            watch.reads.note((id(owner), index), value)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store a value."""
        reads = watch.reads
        if reads is None or reads.has_changed:
            super().__setitem__(index, value)
            return
        before = np.array(super().__getitem__(index))
        super().__setitem__(index, value)
        after = np.asarray(super().__getitem__(index))
        reads.has_changed = before.tobytes() != after.tobytes()


def _extremum(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    # As numba-cuda does: with a NaN on either side nothing is stored.
    return lambda old, value: old if old != old or value != value else choose(old, value)


def _noted(array: Any, index: Any, old: Any) -> Any:
    """Return the element that an atomic operation has read; other threads may run meanwhile."""
    if isinstance(array, SharedArray):
        array.note(index, old)
    return old


def _update(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return an atomic that stores ``combine(old, value)`` and returns the old element."""

    def update(array: Any, index: Any, value: Any) -> Any:
        old = Array.__getitem__(array, index)
        array[index] = combine(old, np.asarray(value).astype(array.dtype)[()])
        return _noted(array, index, old)

    return staticmethod(update)


class Atomic:
    """The functions of ``cuda.atomic``; each returns the old element.

    One thread runs at a time, so they need no atomic instructions.
    """

    add = _update(lambda old, value: old + value)
    sub = _update(lambda old, value: old - value)
    and_ = _update(lambda old, value: old & value)
    or_ = _update(lambda old, value: old | value)
    xor = _update(lambda old, value: old ^ value)
    exch = _update(lambda _, value: value)
    inc = _update(lambda old, limit: 0 if old >= limit else old + 1)
    dec = _update(lambda old, limit: limit if old == 0 or old > limit else old - 1)
    max = _update(_extremum(max))
    min = _update(_extremum(min))
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
