"""A plain model of a device's memory: who has what, and what torch's numbers must say about it."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.fake.array import FakeArray
from nbrt.backends.pools import SMALL_LIMIT

if TYPE_CHECKING:
    import nbrt

__all__ = [
    "Gauge",
    "HostAllocator",
    "Numbers",
    "Span",
    "address_of",
    "assert_apart",
]

MIB = 1 << 20


def address_of(array: Any) -> int:
    if isinstance(array, FakeArray):
        return array.address
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


@dataclass
class Span:
    """A block that is out, from its allocation until it may be used again."""

    address: int
    nbytes: int
    requested: int
    pool: int
    stream: Any
    arrays: list[Any] = field(default_factory=list)
    recorded: set[Any] = field(default_factory=set)
    waits: dict[Any, int] = field(default_factory=dict)
    mark: int = 0

    def holds_its_mark(self) -> bool:
        return not self.requested or all(
            ctypes.c_uint8.from_address(self.address + offset).value == self.mark
            for offset in (0, self.requested - 1)
        )


def assert_apart(spans: list[Span]) -> None:
    """No two blocks share a byte."""
    ordered = sorted(spans, key=lambda span: span.address)
    for first, second in itertools.pairwise(ordered):
        assert first.address + first.nbytes <= second.address, (first, second)


@dataclass
class Gauge:
    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def move(self, amount: int) -> None:
        self.current += amount
        self.allocated += max(amount, 0)
        self.freed += max(-amount, 0)
        self.peak = max(self.peak, self.current)


class Numbers:
    """The numbers of a device or a pool, one event at a time.

    Parameters
    ----------
    start : dict of str to int
        What `memory_stats` says before the first event, its peaks and sums just reset.
    """

    def __init__(self, start: dict[str, int]) -> None:
        self.ooms = 0
        self.gauges = {
            (what, pool): Gauge(*[start[f"{what}.{pool}.current"]] * 2)
            for what in (
                "allocated", "allocated_bytes", "active", "active_bytes", "requested_bytes",
            )
            for pool in ("all", "small_pool", "large_pool")
        }  # fmt: skip

    def _move(self, span: Span, sign: int, what: str) -> None:
        amounts = {"": 1, "_bytes": span.nbytes}
        if what == "allocated":
            self._shift("requested_bytes", span, sign * span.requested)
        for suffix, amount in amounts.items():
            self._shift(what + suffix, span, sign * amount)

    def _shift(self, what: str, span: Span, amount: int) -> None:
        pool = "small_pool" if span.nbytes <= SMALL_LIMIT else "large_pool"
        for each in ("all", pool):
            self.gauges[what, each].move(amount)

    def begin(self, span: Span) -> None:
        self._move(span, 1, "allocated")
        self._move(span, 1, "active")

    def end(self, span: Span) -> None:
        """The arrays are gone."""
        self._move(span, -1, "allocated")

    def give_back(self, span: Span) -> None:
        """The streams have passed, too."""
        self._move(span, -1, "active")

    def reset(self, *, peaks: bool, sums: bool) -> None:
        for gauge in self.gauges.values():
            if peaks:
                gauge.peak = gauge.current
            if sums:
                gauge.allocated = gauge.freed = 0
        if sums:
            self.ooms = 0

    def assert_equal(self, stats: dict[str, int]) -> None:
        expected = {
            f"{what}.{pool}.{name}": value
            for (what, pool), gauge in self.gauges.items()
            for name, value in vars(gauge).items()
        }
        wrong = {
            key: f"expected {value}, got {stats[key]}"
            for key, value in expected.items()
            if stats[key] != value
        }
        assert not wrong, wrong
        assert stats["num_ooms"] == self.ooms <= stats["num_alloc_retries"]


class HostAllocator:
    """Memory of an external allocator, which counts it."""

    def __init__(self) -> None:
        self.out: dict[int, tuple[Any, int]] = {}

    def allocate(self, nbytes: int, device: nbrt.Device, stream: nbrt.Stream) -> int:
        buffer = ctypes.create_string_buffer(nbytes + 511)
        address = -(-ctypes.addressof(buffer) // 512) * 512
        self.out[address] = (buffer, nbytes)
        return address

    def deallocate(
        self, address: int, nbytes: int, device: nbrt.Device, stream: nbrt.Stream
    ) -> None:
        assert self.out.pop(address)[1] == nbytes
