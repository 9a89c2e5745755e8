"""`ReadPolicy`: the host values of arrays that have none."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from nbrt._internal.callsite import CallSite
from nbrt.errors import ArgumentError, FakeReadError

if TYPE_CHECKING:
    from nbrt.backends.fake.array import FakeArray
    from nbrt.typing import HostArray

__all__ = ["ReadPolicy", "Reads"]

_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep

Reads: TypeAlias = Literal["error", "zeros"] | Callable[[Any], Any]
"""``"error"``, ``"zeros"``, or a function of the array that returns its values."""


class ReadPolicy:
    """Answer the reads of fake arrays by the host.

    Parameters
    ----------
    reads : {"error", "zeros"} or callable
        ``"error"``: `FakeReadError`. ``"zeros"``: zeros. A function gets the `FakeArray` and
        returns values that broadcast to its shape.

    Attributes
    ----------
    lines : collections.Counter
        Reads by file and line, such as ``"train.py:12"``; those that were refused, too.

    Raises
    ------
    ArgumentError
        If `reads` is something else.
    """

    def __init__(self, reads: Reads) -> None:
        if reads not in ("error", "zeros") and not callable(reads):
            raise ArgumentError(
                f'expected reads as "error", "zeros" or a function of the array, got {reads!r}'
            )
        self._reads = reads
        self.lines: Counter[str] = Counter()

    def read(self, array: FakeArray) -> HostArray:
        """Return values for an array.

        Raises
        ------
        FakeReadError
            If the policy is ``"error"``, or the function returns values of another shape or kind.
        """
        line = _line()
        self.lines[line] += 1
        if self._reads == "zeros":
            return np.zeros(array.shape, array.dtype)
        if not callable(self._reads):
            raise FakeReadError(
                f"expected a program that reads no value of a fake array, got a read of {array!r} "
                f'at {line}; pass reads="zeros" or reads=function to nbrt.fake'
            )
        given = self._reads(array)
        try:
            if given is None:
                raise TypeError("None is no value")
            values = np.asarray(given).astype(array.dtype, copy=False)
        except (TypeError, ValueError) as error:
            raise FakeReadError(
                f"expected reads to return values of dtype {array.dtype}, got {given!r} for the "
                f"read of {array!r} at {line}; return a number or an array"
            ) from error
        try:
            return np.broadcast_to(values, array.shape).copy()
        except ValueError as error:
            raise FakeReadError(
                f"expected reads to return values that broadcast to shape {array.shape}, got shape "
                f"{values.shape} for the read at {line}"
            ) from error


def _line() -> str:
    frames = CallSite.here(depth=1).frames()
    # NumPy's functions of Python call read methods, too; the line of the program is wanted.
    outside = (each for each in frames if not each["filename"].startswith(_NUMPY))
    frame = next(outside, frames[0])
    return f"{frame['filename']}:{frame['line']}"
