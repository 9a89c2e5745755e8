"""Kernel arguments of a program's own types, which an extension of the launch prepares."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda, types
from numba.core.extending import make_attribute_wrapper, models, register_model, typeof_impl

pytestmark = pytest.mark.usefixtures("installed")


class Segment(NamedTuple):
    start: int
    stop: int
    values: Any


class Range:
    """A part of an array, of which only the extension knows how to pass it."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment


class RangeType(types.Type):
    def __init__(self) -> None:
        super().__init__("Range")


_RANGE = RangeType()


@typeof_impl.register(Range)
def _typeof(_value: Range, _context: Any) -> RangeType:
    return _RANGE


@register_model(RangeType)
class _RangeModel(models.StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        members = [("start", types.int64), ("stop", types.int64), ("at", types.int64)]
        super().__init__(manager, kind, members)


for _name in ("start", "stop", "at"):
    make_attribute_wrapper(RangeType, _name, _name)


class Handler:
    def __init__(self, given: Any = None) -> None:
        self._given = given or types.UniTuple(types.int64, 3)

    def prepare_args(self, kind: Any, value: Any, **_: Any) -> tuple[Any, Any]:
        if isinstance(value, Range):
            segment = value.segment
            return self._given, (segment.start, segment.stop, 7)[: len(self._given)]
        return kind, value


def total(part: Any, x: Any, out: Any) -> None:
    result = 0.0
    for i in range(part.start, part.stop):
        result += x[i]
    out[0] = result + part.at


def test_a_kernel_reads_the_members_of_a_type_of_the_program() -> None:
    x, out = np.arange(10.0), cuda.device_array(1)
    kernel = cuda.jit(extensions=[Handler()])(total)
    for start, stop in ((2, 5), (0, 10)):
        kernel[1, 1](Range(Segment(start, stop, x)), x, out)
        assert out.copy_to_host()[0] == x[start:stop].sum() + 7


def test_members_that_do_not_fit_are_refused() -> None:
    kernel = cuda.jit(extensions=[Handler(types.UniTuple(types.int64, 2))])(total)
    with pytest.raises(Exception, match=r"3 members, and the extension prepares it as .* with 2"):
        kernel[1, 1](Range(Segment(0, 1, None)), np.zeros(1), np.zeros(1))
