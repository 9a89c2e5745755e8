"""Measure contenders side by side: interleaved passes, medians, ratios pass by pass.

A machine that other people use drifts, so figures taken one after the other do not compare. Here
every pass measures every contender once, in an order that rotates; what is reported is the median
over the passes, the least, and the median of the ratios *within* a pass, in which drift cancels.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Contender",
    "Measurement",
    "Options",
    "absent",
    "each",
    "measure",
    "wait_for_other_threads",
]

_MAX_CALLS = 1 << 22
# Linux may add the time of a running thread only at its tick, every 4 or 10 ms.
_NAP = 0.025
_MAX_NAPS = 20


@dataclass(frozen=True, slots=True)
class Options:
    """How long to measure.

    Many short measurements beat a few long ones where others use the machine: a measurement shorter
    than a time slice is mostly either undisturbed or an outlier, which the median drops.

    Attributes
    ----------
    passes : int
        Times that every contender is measured.
    sample_seconds : float
        About how long one measurement lasts; 0 measures single calls.
    """

    passes: int = 41
    sample_seconds: float = 0.004

    @classmethod
    def quick(cls) -> Options:
        """Return options for a glance: numbers good to a factor of about 1.3."""
        return cls(passes=9, sample_seconds=0.002)


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to measure.

    Attributes
    ----------
    name : str
        Who.
    batch : callable or None
        ``batch(n)`` does the work n times; None: not installed.
    settle : callable or None
        Called after every batch, off the clock: waits for work that the batch only submitted.
    note : str
        What a reader must know of this row; why it is absent.
    most : int
        The largest n to ask of `batch`.
    """

    name: str
    batch: Callable[[int], object] | None
    settle: Callable[[], object] | None = None
    note: str = ""
    most: int = _MAX_CALLS


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds per call of one contender, one figure per pass; none if it was absent."""

    name: str
    seconds: tuple[float, ...] = ()
    calls: int = 0
    note: str = ""

    @property
    def median(self) -> float:
        """The median over the passes."""
        return statistics.median(self.seconds)

    @property
    def least(self) -> float:
        """The fastest pass: nearest to what an undisturbed machine would give."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles over the median: how far to trust the figure."""
        if len(self.seconds) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (third - first) / self.median

    def ratio_to(self, other: Measurement) -> float:
        """Return the median over the passes of this contender's time over the other's."""
        return statistics.median(
            mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)
        )

    def excess_over(self, other: Measurement) -> float:
        """Return the median over the passes of this contender's time less the other's."""
        return statistics.median(
            mine - theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        found: dict[str, Any] = {"name": self.name, "note": self.note}
        if self.seconds:
            found |= {"median_s": self.median, "least_s": self.least, "spread": self.spread}
            found |= {
                "calls": self.calls,
                "seconds": [float(f"{each:.4g}") for each in self.seconds],
            }
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Measurement:
        """Return what `as_json` described."""
        return cls(
            found["name"],
            tuple(found.get("seconds", ())),
            found.get("calls", 0),
            found.get("note", ""),
        )


def each(call: Callable[[], object]) -> Callable[[int], None]:
    """Return the batch that makes one call after the other."""

    def batch(n: int) -> None:
        for _ in itertools.repeat(None, n):
            call()

    return batch


def absent(name: str, reason: str) -> Contender:
    """Return a contender that cannot run here; it is listed with its reason."""
    return Contender(name, None, note=reason)


def wait_for_other_threads() -> None:
    """Wait until the other threads of this process sleep, half a second at most.

    OpenBLAS's and OpenMP's threads turn in a loop for up to 0.2 s after their work, so that what is
    measured next on several cores has a core less.
    """
    for _ in range(_MAX_NAPS):
        start = time.process_time()
        time.sleep(_NAP)
        if time.process_time() - start < _NAP / 20:
            return


def measure(
    contenders: Sequence[Contender],
    options: Options,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Measurement]:
    """Measure contenders in interleaved passes.

    Parameters
    ----------
    contenders : sequence of Contender
        Each is called once, then a few times, before anything counts, so compilation and first
        touch stay out of the figures.
    options : Options
        How many passes, and how long each measurement lasts.
    clock : callable
        Gives seconds.

    Returns
    -------
    measurements : list of Measurement
        In the order of `contenders`.
    """
    present = [contender for contender in contenders if contender.batch is not None]
    calls = {each.name: _calls_needed(each, options.sample_seconds, clock) for each in present}
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn in range(options.passes):
        shift = turn % max(1, len(present))
        for contender in (*present[shift:], *present[:shift]):
            count = calls[contender.name]
            seconds[contender.name].append(_sample(contender, count, clock) / count)
    return [
        Measurement(
            contender.name,
            tuple(seconds[contender.name]),
            calls.get(contender.name, 0),
            contender.note,
        )
        for contender in contenders
    ]


def _sample(contender: Contender, count: int, clock: Callable[[], float]) -> float:
    assert contender.batch is not None
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        contender.batch(count)
        elapsed = clock() - start
    finally:
        if was_enabled:
            gc.enable()
    if contender.settle is not None:
        contender.settle()
    return elapsed


def _calls_needed(contender: Contender, wanted: float, clock: Callable[[], float]) -> int:
    """Return how many calls last about as long as a measurement should."""
    _sample(contender, 1, clock)
    count = 1
    while True:
        elapsed = _sample(contender, count, clock)
        if elapsed >= wanted or count >= contender.most:
            return count
        # At most tenfold at a time: the first calls of a batch tell little of the later ones.
        growth = 10.0 if elapsed <= 0.0 else min(10.0, 1.1 * wanted / elapsed)
        count = min(contender.most, max(count + 1, int(count * growth)))
